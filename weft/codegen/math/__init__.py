"""The vector math library: elementary and special functions as code for the builder.

A function takes the builder and values of float32 or float64 (the `complex_` ones take and return `Complex`) and any
number of lanes; float16 and bfloat16 are for the caller to widen and round. Nothing here depends on the number of
lanes, the optimisation level or the processor: every operation is a correctly rounded one of IEEE 754, fma included,
and all choices are made lane by lane, so the bits of a result are a function of the bits of its operands. Primitives
call these functions from their `emit`.
"""

from weft.codegen.math.bessel import i0, i0e, i1, i1e
from weft.codegen.math.complexes import (
    complex_arccos,
    complex_arccosh,
    complex_arcsin,
    complex_arcsinh,
    complex_arctan,
    complex_arctanh,
    complex_cos,
    complex_cosh,
    complex_divide,
    complex_exp,
    complex_log,
    complex_log1p,
    complex_log2,
    complex_log10,
    complex_power,
    complex_sin,
    complex_sinh,
    complex_sqrt,
    complex_tan,
    complex_tanh,
    hypot,
)
from weft.codegen.math.error import erf, erfc, erfcx, erfinv
from weft.codegen.math.exponential import cosh, exp, exp2, expm1, sigmoid, sinh, tanh
from weft.codegen.math.gamma import digamma, gammaln
from weft.codegen.math.inverse import arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh, rsqrt
from weft.codegen.math.logarithm import log, log1mexp, log1p, log2, log10, logaddexp, xlogy
from weft.codegen.math.powers import power
from weft.codegen.math.trigonometric import cos, sin, tan

__all__ = [
    "COMPLEX_ULP", "ULP", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh",
    "complex_arccos", "complex_arccosh", "complex_arcsin", "complex_arcsinh", "complex_arctan", "complex_arctanh",
    "complex_cos", "complex_cosh", "complex_divide", "complex_exp", "complex_log", "complex_log10", "complex_log1p",
    "complex_log2", "complex_power", "complex_sin", "complex_sinh", "complex_sqrt", "complex_tan", "complex_tanh",
    "cos", "cosh", "digamma", "erf", "erfc", "erfcx", "erfinv", "exp", "exp2", "expm1", "gammaln", "hypot", "i0",
    "i0e", "i1", "i1e", "log", "log10", "log1mexp", "log1p", "log2", "logaddexp", "power", "rsqrt", "sigmoid",
    "sin", "sinh", "tan", "tanh", "xlogy",
]  # fmt: skip

ULP: dict[str, tuple[float, float]] = {
    "arccos": (0.75, 0.75),
    "arccosh": (1.0, 1.0),
    "arcsin": (0.85, 0.75),
    "arcsinh": (1.0, 1.0),
    "arctan": (0.85, 0.85),
    "arctan2": (1.0, 1.0),
    "arctanh": (1.0, 1.0),
    "cos": (0.85, 0.85),
    "cosh": (0.85, 0.85),
    "digamma": (4.0, 4.0),
    "erf": (1.0, 1.0),
    "erfc": (4.0, 4.0),
    "erfcx": (5.0, 5.0),
    "erfinv": (1.25, 1.1),
    "exp": (1.0, 1.0),
    "exp2": (1.0, 1.0),
    "expm1": (1.0, 1.0),
    "gammaln": (6.0, 6.0),
    "hypot": (0.75, 0.75),
    "i0": (4.0, 4.0),
    "i0e": (4.0, 4.0),
    "i1": (4.0, 4.5),
    "i1e": (4.0, 4.5),
    "log": (0.85, 0.85),
    "log10": (1.0, 1.0),
    "log1mexp": (2.0, 2.0),
    "log1p": (1.0, 1.0),
    "log2": (1.0, 1.0),
    "logaddexp": (2.0, 2.0),
    "power": (0.6, 1.0),
    "rsqrt": (0.51, 0.51),
    "sigmoid": (1.0, 1.0),
    "sin": (0.85, 0.85),
    "sinh": (1.0, 1.0),
    "tan": (1.0, 1.0),
    "tanh": (1.15, 1.0),
    "xlogy": (2.0, 2.0),
}
"""The largest error of each real function in float32 and float64, in units of the last place of the exact result, over
all operands. That of logaddexp is in units of the largest of the result and of the two terms whose sum it is, which may
cancel: the larger operand and log(1 + e**-|x - y|). Those of gammaln and digamma are for x > 0."""

COMPLEX_ULP: dict[str, float] = {
    "complex_arccos": 2.0,
    "complex_arccosh": 2.0,
    "complex_arcsin": 2.0,
    "complex_arcsinh": 2.0,
    "complex_arctan": 2.0,
    "complex_arctanh": 2.0,
    "complex_cos": 2.0,
    "complex_cosh": 2.0,
    "complex_divide": 2.0,
    "complex_exp": 2.0,
    "complex_log": 1.0,
    "complex_log1p": 1.5,
    "complex_log2": 1.5,
    "complex_log10": 1.5,
    "complex_sin": 2.0,
    "complex_sinh": 2.0,
    "complex_sqrt": 1.0,
    "complex_tan": 3.0,
    "complex_tanh": 3.0,
}
"""The largest error of each complex function, as a multiple of the type's epsilon times the modulus of the exact
result. That of complex_power is not bounded: it grows with |y log x|."""
