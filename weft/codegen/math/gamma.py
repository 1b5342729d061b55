"""gammaln and digamma.

Both have a polynomial for [1, 2], reach (0, 4) from there by recurrence, use Stirling's series from 4 on, and reflect
negative numbers. There the terms of the reflection may cancel, and errors are small against the largest term only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.codegen.math.basics import (
    Coefficients,
    Constant,
    at_most,
    exact_product,
    fast_sum,
    format_of,
    split,
)
from weft.codegen.math.logarithm import log, log_pair
from weft.codegen.math.trigonometric import sincos_of_turn
from weft.llvm.builder import Builder, Value

# gammaln(x) / ((x - 1) (x - 2)) as a polynomial in x - 3/2 on [1, 2]; relative errors 2**-25.0, 2**-54.7.
GAMMALN = Coefficients(
    (
        0.48312896, -0.1459599, 0.06290936, -0.031307913, 0.016843239, -0.00944081, 0.0050955084, -0.0030790037,
        0.0029160292, -0.0016119893,
    ),
    (
        0.4831289505409809, -0.14595989591430608, 0.06291140107457768, -0.031308487501014844, 0.016797098629581148,
        -0.009425622447791493, 0.0054464579229061795, -0.0032120741183401216, 0.0019229142043833366,
        -0.0011644132686128056, 0.0007115495854685832, -0.0004380147935758092, 0.0002710444704613876,
        -0.00016870342237096015, 0.00010682739267185975, -6.743472137979884e-05, 3.815730653913447e-05,
        -2.2532209239063647e-05, 2.2116115162173576e-05, -1.7617526540645507e-05, 5.173612215569923e-06,
    ),
)  # fmt: skip

# x (gammaln(x) - (x - 1/2) log x + x - log(2π) / 2) as a polynomial in 1/x², x >= 4; errors of gammaln 2**-33.2 and
# 2**-57.7.
STIRLING = Coefficients(
    (
        0.083333306, -0.0027753022, 0.0007269107,
    ),
    (
        0.08333333333332064, -0.0027777777721095186, 0.000793649875829906, -0.0005951631595619136,
        0.0008382302941924811, -0.0018162225641283657, 0.004570968609589389, -0.007937786472235446,
    ),
)  # fmt: skip

# digamma(x) / (x - root) as a polynomial in x - 3/2 on [1, 2]; relative errors 2**-26.8, 2**-54.3.
DIGAMMA = Coefficients(
    (
        0.9510559, -0.42362744, 0.24054119, -0.14840269, 0.09502086, -0.061996825, 0.04049737, -0.026114238,
        0.018555919, -0.015778739, 0.008801164,
    ),
    (
        0.9510558760318328, -0.42362742128146047, 0.24054248424082764, -0.1484049230539353, 0.09498872444657798,
        -0.06192213326946228, 0.04076083432298287, -0.026975796948090977, 0.017907236456773928, -0.011908212810259767,
        0.007927236518855465, -0.005280045310762183, 0.003515683116112616, -0.0023445110813741904,
        0.0015809377527698054, -0.0010420289515322052, 0.0006090957322341224, -0.0004668346568740648,
        0.0005607028217247825, -0.0001811759964805949, -0.00029066160066710075, -0.000148790614618395,
        0.0003923824343294385,
    ),
)  # fmt: skip
ROOT = (Constant(0.46163213, 0.46163214496836225), Constant(1.243815e-08, 9.549995429965697e-17))
"""The positive root of digamma, less 1, as a sum of two."""

# x² (digamma(x) - log x + 1 / (2 x)) as a polynomial in 1/x², x >= 4; relative errors 2**-31.8, 2**-58.6.
DIGAMMA_FAR = Coefficients(
    (
        -0.08333315, 0.008316733, -0.0035159367,
    ),
    (
        -0.08333333333331923, 0.008333333324954681, -0.003968252184015984, 0.004166474780874987, -0.007563736090003698,
        0.020620512549156506, -0.07119924136777865, 0.23274633124144523, -0.44941638932417155,
    ),
)  # fmt: skip

HALF_LOG_TURN = 0.4189385332046727  # log(2π) / 2 - 1/2


class Unit(NamedTuple):
    """Where x > 0 stands: x = 1 + u + (0, 1, 2 or -1), with 0 <= u < 1, for x < 4."""

    u: Value
    low: Value
    second: Value
    third: Value
    far: Value


def _unit(b: Builder, x: Value) -> Unit:
    low, second, third, far = x < 1.0, x >= 2.0, x >= 3.0, x >= 4.0
    steps = b.choose(third, 3.0, b.choose(second, 2.0, b.choose(low, b.like(x, 0.0), 1.0)))
    return Unit(b.choose(far, 0.0, x - steps), low, second, third, far)


def _polynomial(b: Builder, u: Value, coefficients: Coefficients) -> Value:
    t = u - 0.5
    even, odd = split(b, t, coefficients.of(u))
    return b.fma(odd, t, even)


def _in_inverse_square(b: Builder, inverse: Value, coefficients: Coefficients) -> Value:
    square = inverse * inverse
    even, odd = split(b, square, coefficients.of(inverse))
    return b.fma(odd, square, even)


def gammaln(b: Builder, x: Value) -> Value:
    """log |Γ(x)|."""
    a = b.abs(x)
    positive = _gammaln(b, a)
    mirrored = x < 0.0

    def reflect() -> list[Value]:
        """Γ(-a) Γ(a) = -π / (a sin(π a))."""
        sine, _ = sincos_of_turn(b, a)
        other = b.choose(sine.eq(0.0), math.inf, -(log(b, b.abs(sine) / math.pi) + log(b, a)) - positive)
        return [b.choose(mirrored, other, positive)]

    (result,) = b.rarely(b.any(mirrored), (positive,), reflect)
    return b.choose(a.eq(math.inf) | x.eq(0.0), math.inf, result)


def _gammaln(b: Builder, x: Value) -> Value:
    fmt = format_of(x)
    u, low, second, third, far = _unit(b, x)
    tiny = x < fmt.tiny
    # One logarithm serves all: of x far out and below 1, of (x - 1) or (x - 1) (x - 2) between 2 and 4.
    factor = b.choose(third, (x - 1.0) * (x - 2.0), b.choose(second, x - 1.0, 1.0))
    argument = b.choose(far | low, b.choose(tiny, x * 2.0**fmt.digits, x), factor)
    logarithm = log_pair(b, argument)
    near = u * (u - 1.0) * _polynomial(b, u, GAMMALN)
    near = (
        near + b.choose(low, -logarithm.hi, logarithm.hi) + b.choose(tiny, b.like(x, fmt.digits * math.log(2.0)), 0.0)
    )
    slope = fast_sum(logarithm.hi, b.like(x, -1.0))
    base = x - 0.5
    product = exact_product(b, base, slope.hi)
    inverse = 1.0 / x
    series = b.fma(inverse, _in_inverse_square(b, inverse, STIRLING), HALF_LOG_TURN)
    rest = b.fma(base, slope.lo + logarithm.lo, series + product.lo)
    rest = b.choose(product.hi < math.inf, rest, 0.0)
    return b.choose(far, product.hi + rest, near)


def digamma(b: Builder, x: Value) -> Value:
    """The derivative of gammaln; NaN at negative whole numbers."""
    a = b.abs(x)
    positive = _digamma(b, a)
    mirrored = x < 0.0

    def reflect() -> list[Value]:
        """digamma(-a) = digamma(a) + 1 / a + π cot(π a)."""
        sine, cosine = sincos_of_turn(b, a)
        cotangent = b.choose(sine.eq(0.0), math.nan, math.pi * (cosine / sine))
        return [b.choose(mirrored, (cotangent + 1.0 / a) + positive, positive)]

    (result,) = b.rarely(b.any(mirrored), (positive,), reflect)
    return b.choose(x.eq(0.0), b.copysign(b.like(x, math.inf), -x), result)


def _digamma(b: Builder, x: Value) -> Value:
    u, low, second, third, far = _unit(b, x)
    near = ((u - ROOT[0].of(x)) - ROOT[1].of(x)) * _polynomial(b, u, DIGAMMA)
    # One quotient serves all: 1 / x far out, -1 / x below 1, 1 / (x - 1) + 1 / (x - 2) or its first term from 2 to 4.
    before = x - 1.0
    n = b.choose(
        low, -1.0, b.choose(far, 1.0, b.choose(third, x + before - 2.0, b.choose(second, b.like(x, 1.0), 0.0)))
    )
    d = b.choose(far | low, x, b.choose(third, before * (x - 2.0), before))
    quotient = n / b.choose(d.eq(0.0), 1.0, d)
    inverse = at_most(b, quotient, 0.25)
    tail = b.fma(inverse * inverse, _in_inverse_square(b, inverse, DIGAMMA_FAR), -0.5 * inverse)
    return b.choose(far, log(b, x) + tail, near + quotient)
