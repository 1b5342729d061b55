"""LAPACK on the CPU: what calls it (calls.py), and the operations that it does."""

from weft.targets.cpu.lapack.factors import cholesky, inverse, lu, qr, solve_triangular
from weft.targets.cpu.lapack.schur import generalized_schur, schur, sylvester
from weft.targets.cpu.lapack.spectral import eig, eigenvalues, eigh, hermitian_eigenvalues, singular_values, svd
