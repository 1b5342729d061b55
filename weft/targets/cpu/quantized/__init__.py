"""Products with quantized matrices: `lower` chooses and parametrises the kernels. Codes to words, and words to codes
(`repack`) and to numbers (`dequantize`), numbers to words (`quantize`); nothing else here is for others.

Codes are unpacked where they are used. A few rows of x (few.py) stream through the packed words once; many (tiled.py)
are multiplied with panels that are unpacked block by block. Which order of summation an element gets follows from the
number of rows of x, their dtype and the direction of the matrix alone, so the bits of a product depend on values,
shapes and dtypes only, as in weft/targets/cpu/matmul.

Rows of halves become fixed-point numbers first (fixed.py), in a launch of its own, and their sums are exact
(fixed_few.py, fixed_tiled.py).
"""

from weft.targets.cpu.quantized.lowering import lower
from weft.targets.cpu.quantized.packing import dequantize
from weft.targets.cpu.quantized.packing import lower as repack
from weft.targets.cpu.quantized.quantize import lower as quantize

__all__ = ["dequantize", "lower", "quantize", "repack"]
