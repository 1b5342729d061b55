"""The inverse functions: arcsin, arccos, arctan, arctan2, arcsinh, arccosh, arctanh, and rsqrt."""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.codegen.math.basics import (
    Coefficients,
    Constant,
    Pair,
    at_most,
    exact_product,
    fast_sum,
    format_of,
    is_negative,
    pick,
    quotient_pair,
    root_pair,
    split,
)
from weft.codegen.math.logarithm import log1p_pair
from weft.llvm.builder import Builder, Value

PI = (Constant(3.1415927, 3.141592653589793), Constant(-8.742278e-08, 1.2246467991473532e-16))
HALF_PI = (Constant(1.5707964, 1.5707963267948966), Constant(-4.371139e-08, 6.123233995736766e-17))
QUARTER_PI = (Constant(0.7853982, 0.7853981633974483), Constant(-2.1855694e-08, 3.061616997868383e-17))

# (arcsin(s) / s - 1) / s² as a polynomial in s², |s| <= 1/2; relative errors 2**-27.6, 2**-59.8.
ARCSIN = Coefficients(
    (0.16666752, 0.074953035, 0.04547039, 0.024176808, 0.04217442),
    (
        0.1666666666666676, 0.07499999999970759, 0.04464285717472501, 0.030381942699868394, 0.0223722152642819,
        0.017351606261431687, 0.01398089746012571, 0.01139822602118657, 0.010784384353619968, 0.003689820248076034,
        0.02175001821153915, -0.02106223059675477, 0.032669851662532355,
    ),
)  # fmt: skip

# (arctan(t) / t - 1) / t² as a polynomial in t², |t| <= 1/2; relative errors 2**-27.5, 2**-57.8.
ARCTAN = Coefficients(
    (-0.33333236, 0.19994274, -0.14175451, 0.10161679, -0.051347766),
    (
        -0.3333333333333298, 0.19999999999902873, -0.1428571427635478, 0.11111110658019512, -0.09090896199836447,
        0.07692073160676548, -0.06663802569696319, 0.05858242554988399, -0.05121748557062558, 0.041857671709153894,
        -0.027422907368940538, 0.010108293123301791,
    ),
)  # fmt: skip


def rsqrt(b: Builder, x: Value) -> Value:
    """1 / √x: the quotient of the rounded root, and one Newton step with an accurate residual."""
    y = 1.0 / b.sqrt(x)
    p = exact_product(b, x, y)
    residual = b.fma(-p.hi, y, 1.0) - p.lo * y
    better = b.fma(0.5 * y, residual, y)
    return b.choose(b.isnan(better), y, better)  # x = 0 and infinity


# ---- arcsin and arccos ----


class Root(NamedTuple):
    """For |x| > 1/2, arcsin(√z) with z = (1 - |x|) / 2 takes the place of arcsin(x)."""

    far: Value
    z: Value
    root: Pair


def _root(b: Builder, x: Value) -> Root:
    a = b.abs(x)
    far = a > 0.5
    z = b.choose(far, b.fma(a, -0.5, 0.5), a * a)
    return Root(far, z, root_pair(b, z))


def _series(b: Builder, s: Value, z: Value) -> Value:
    """arcsin(s) - s, for s² = z."""
    even, odd = split(b, z, ARCSIN.of(s))
    return s * z * b.fma(odd, z, even)


def arcsin(b: Builder, x: Value) -> Value:
    """arcsin(x) = π/2 - 2 arcsin(√((1 - x) / 2)) above 1/2."""
    far, z, root = _root(b, x)
    s = b.choose(far, root.hi, b.abs(x))
    tail = _series(b, s, z)
    first = fast_sum(b.like(x, HALF_PI[0].of(x)), -2.0 * s)
    y = first.hi + (first.lo + b.fma(tail + root.lo, -2.0, HALF_PI[1].of(x)))
    return b.copysign(b.choose(far, y, s + tail), x)


def arccos(b: Builder, x: Value) -> Value:
    """π/2 - arcsin(x), or 2 arcsin(√((1 - x) / 2)) above 1/2, or π less that of -x below -1/2."""
    far, z, root = _root(b, x)
    negative = x < 0.0
    double, double_lo = root.hi + root.hi, root.lo + root.lo
    s = b.choose(far, b.choose(negative, double, -double), x)
    s_lo = b.choose(far, b.choose(negative, double_lo, -double_lo), 0.0)
    tail = _series(b, s, z) + s_lo
    hi = b.choose(far, b.choose(negative, b.like(x, PI[0].of(x)), 0.0), HALF_PI[0].of(x))
    lo = b.choose(far, b.choose(negative, b.like(x, PI[1].of(x)), 0.0), HALF_PI[1].of(x))
    first = fast_sum(hi, -s)
    return first.hi + (first.lo + (lo - tail))


# ---- arctan ----


class Angle(NamedTuple):
    """An angle of k π/4 + hi + lo."""

    k: Value
    hi: Value
    lo: Value


def _angle(b: Builder, y: Value, x: Value) -> Angle:
    """The angle of (x, y), for finite x, y >= 0 whose sum and quotient neither overflow nor underflow."""
    steep = y > x
    n, d = b.choose(steep, x, y), b.choose(steep, y, x)
    # Above half the diagonal, the angle from the diagonal: arctan(n / d) = π/4 + arctan((n - d) / (n + d)).
    middle = n + n > d
    total = fast_sum(d, n)
    numerator = b.choose(middle, n - d, n)
    denominator = Pair(b.choose(middle, total.hi, d), b.choose(middle, total.lo, 0.0))
    q = quotient_pair(b, Pair(numerator, b.like(n, 0.0)), denominator)
    z = q.hi * q.hi
    even, odd = split(b, z, ARCTAN.of(x))
    tail = b.fma(q.hi * z, b.fma(odd, z, even), q.lo)
    k = b.choose(middle, b.like(x, 1.0), 0.0)
    return Angle(b.choose(steep, 2.0 - k, k), b.choose(steep, -q.hi, q.hi), b.choose(steep, -tail, tail))


def _sum_angle(b: Builder, angle: Angle) -> Value:
    k, first, tail = angle
    quarter, quarter_lo = (part.of(k) for part in QUARTER_PI)
    hi = b.fma(k, quarter, first)
    error = b.fma(k, quarter, -hi) + first
    return hi + (b.fma(k, quarter_lo, error) + tail)


def arctan(b: Builder, x: Value) -> Value:
    a = at_most(b, b.abs(x), 2.0**60)  # from there on π/2
    return b.copysign(_sum_angle(b, _angle(b, a, b.like(x, 1.0))), x)


def arctan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of the point (x, y) in (-π, π], with C's conventions for zeros and infinities."""
    fmt = format_of(x)
    ay, ax = b.abs(y), b.abs(x)
    angle = _arctan2(b, ay, ax, x)
    high, low = 2.0 ** (fmt.bias - 3), 2.0 ** (2 * fmt.digits - fmt.bias)
    extreme = (ay > high) | (ax > high) | (ay < low) | (ax < low)

    def exact() -> list[Value]:
        return [b.choose(extreme, _extreme_arctan2(b, ay, ax, x), angle)]

    (angle,) = b.rarely(b.any(extreme), (angle,), exact)
    return b.copysign(angle, y)


def _arctan2(b: Builder, ay: Value, ax: Value, x: Value) -> Value:
    """The angle of (x, |y|)."""
    k, hi, lo = _angle(b, ay, ax)
    left = is_negative(b, x)
    return _sum_angle(b, Angle(b.choose(left, 4.0 - k, k), b.choose(left, -hi, hi), b.choose(left, -lo, lo)))


def _extreme_arctan2(b: Builder, ay: Value, ax: Value, x: Value) -> Value:
    """The same where numbers are infinite, zero, subnormal, or near overflow."""
    fmt = format_of(x)
    infinite = ay.eq(math.inf) | ax.eq(math.inf)
    ay, ax = (b.choose(infinite, b.choose(v.eq(math.inf), 1.0, v * 0.0), v) for v in (ay, ax))
    ax = b.choose(ax.eq(0.0) & ay.eq(0.0), 1.0, ax)
    # A quotient that is nearly zero is its own arctan, and a division does not lose what a product with 1/x would.
    ratio = ay / ax
    minute = ~is_negative(b, x) & (ratio < 2.0 ** -(fmt.digits // 2 + 4))
    factor = b.choose(b.choose(ay > ax, ay, ax) < 1.0, b.like(x, 2.0 ** (2 * fmt.digits)), 2.0**-4)
    return b.choose(minute, ratio, _arctan2(b, ay * factor, ax * factor, x))


# ---- inverse hyperbolic functions ----


def _huge(x: Value) -> float:
    return pick(x, 2.0**30, 2.0**60)


def arcsinh(b: Builder, x: Value) -> Value:
    """log(1 + a + (√(1 + a²) - 1)) for a = |x|; log(2 a) where a² is too large."""
    a = b.abs(x)
    huge = a > _huge(x)
    c = b.choose(huge, 1.0, a)
    square = exact_product(b, c, c)
    one = b.like(x, 1.0)
    larger, smaller = b.choose(square.hi > 1.0, square.hi, one), b.choose(square.hi > 1.0, one, square.hi)
    total = fast_sum(larger, smaller)
    root = root_pair(b, total.hi, total.lo + square.lo)
    denominator = fast_sum(root.hi, one)
    rise = quotient_pair(b, square, Pair(denominator.hi, denominator.lo + root.lo))
    argument = fast_sum(c, rise.hi)
    y = log1p_pair(b, b.choose(huge, a, argument.hi), b.choose(huge, 0.0, argument.lo + rise.lo), huge)
    y = b.choose(a < 2.0 ** -(format_of(x).digits // 2 + 2), a, y)
    return b.copysign(b.choose(a < math.inf, y, a), x)


def arccosh(b: Builder, x: Value) -> Value:
    """log(1 + t + √(t (t + 2))) for t = x - 1; log(2 x) where t² is too large."""
    huge = x > _huge(x)
    t = b.choose(huge, 1.0, x - 1.0)
    double, square = t + t, exact_product(b, t, t)
    larger, smaller = b.choose(t > 2.0, square.hi, double), b.choose(t > 2.0, double, square.hi)
    total = fast_sum(larger, smaller)
    root = root_pair(b, total.hi, total.lo + square.lo)
    larger, smaller = b.choose(t > root.hi, t, root.hi), b.choose(t > root.hi, root.hi, t)
    argument = fast_sum(larger, smaller)
    y = log1p_pair(b, b.choose(huge, x, argument.hi), b.choose(huge, 0.0, argument.lo + root.lo), huge)
    return b.choose(x >= 1.0, b.choose(x < math.inf, y, x), math.nan)


def arctanh(b: Builder, x: Value) -> Value:
    """log(1 + 2 a / (1 - a)) / 2 for a = |x|."""
    a = b.abs(x)
    denominator = fast_sum(b.like(x, 1.0), -a)
    argument = quotient_pair(b, Pair(a + a, b.like(x, 0.0)), denominator)
    y = 0.5 * log1p_pair(b, *argument)
    y = b.choose(a < 1.0, y, b.choose(a.eq(1.0), b.like(x, math.inf), math.nan))
    return b.copysign(b.choose(a < 2.0 ** -(format_of(x).digits // 2 + 2), a, y), x)
