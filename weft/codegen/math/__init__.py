"""The vector math library."""

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
from weft.codegen.math.error import erf, erfinv
from weft.codegen.math.exponential import cosh, exp, exp2, expm1, sigmoid, sinh, tanh
from weft.codegen.math.inverse import arccos, arccosh, arcsin, arcsinh, arctan, arctan2, arctanh, rsqrt
from weft.codegen.math.logarithm import log, log1p, log2, log10, logaddexp
from weft.codegen.math.powers import power
from weft.codegen.math.trigonometric import cos, sin, tan
