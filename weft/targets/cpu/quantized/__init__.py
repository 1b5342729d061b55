"""Products with quantized matrices: `lower` chooses and parametrises the kernels. Codes to words, and words to codes
(`repack`) and to numbers (`dequantize`), numbers to words (`quantize`); nothing else here is for others.

Codes are unpacked where they are used. A few rows of x (few.py) stream through the packed words once; many (tiled.py)
are multiplied with panels that are unpacked block by block. Which of the two orders of summation an element gets
follows from the number of rows of x and from the direction of the matrix alone, so the bits of a product depend on
values, shapes and dtypes only, as in weft/targets/cpu/matmul.
"""

from weft.targets.cpu.quantized.lowering import lower
from weft.targets.cpu.quantized.packing import dequantize
from weft.targets.cpu.quantized.packing import lower as repack
from weft.targets.cpu.quantized.quantize import lower as quantize

__all__ = ["dequantize", "lower", "quantize", "repack"]
