"""Linear algebra: factorizations and solutions, by LAPACK on the CPU (weft/targets/cpu/lapack).

Every operation works on the matrices in the last two axes; leading axes are a batch. One that has no answer for a
matrix fails, and the error names the matrix. Derivatives are the standard formulas, in terms of these operations and
products.
"""

from weft.primitives.linalg.determinants import Adjugate, Determinant, DetSign, LogAbsDet
from weft.primitives.linalg.factors import Cholesky, Lu, Qr
from weft.primitives.linalg.implicit import Implicit, PseudoInverse, Solution
from weft.primitives.linalg.schur import GeneralizedSchur, Schur, Sylvester
from weft.primitives.linalg.spectral import Eig, Eigenvalues, Eigh, HermitianEigenvalues, SingularValues, Svd
from weft.primitives.linalg.systems import Inverse, SolveTriangular
