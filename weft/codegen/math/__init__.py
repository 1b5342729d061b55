"""The vector math library."""

from weft.codegen.math.error import erf, erfinv
from weft.codegen.math.exponential import cosh, exp, exp2, expm1, sigmoid, sinh, tanh
from weft.codegen.math.logarithm import log, log1p, log2, log10
from weft.codegen.math.powers import power
from weft.codegen.math.trigonometric import cos, sin, tan

__all__ = ["cos", "cosh", "erf", "erfinv", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "power", "sigmoid", "sin", "sinh", "tan", "tanh"]
