"""exp and its relatives: exp2, expm1, sigmoid, tanh, sinh, cosh.

All reduce x = k ln 2 + r with |r| <= ln 2 / 2 and build on one polynomial for e**r - 1 - r. Sums whose first term is
not small against the result are kept as pairs, so that the last addition is the only rounding that counts.
"""

from __future__ import annotations

from typing import NamedTuple

from weft.codegen.math.basics import (
    FLOAT32,
    Coefficients,
    Constant,
    Pair,
    at_least,
    at_most,
    exact_sum,
    fast_sum,
    format_of,
    from_bits,
    horner,
    pick,
    quotient,
    split,
    to_bits,
)
from weft.llvm.builder import Builder, Value

LOG2_E = 1.4426950408889634
LN2_HI = Constant(0.6931472, 0.6931471805599453)
LN2_LO = Constant(-1.9046542e-09, 2.3190468138462996e-17)

# (e**r - 1 - r) / r² on |r| <= 0.3467; errors relative to e**r: 2**-28.2, 2**-57.9.
EXP = Coefficients(
    (0.49999994, 0.16666517, 0.041668106, 0.008369135, 0.0013836564),
    (
        0.5000000000000011, 0.16666666666666435, 0.04166666666652577, 0.008333333333475057, 0.0013888888944864702,
        0.00019841269557771242, 2.4801491761346747e-05, 2.7557533485510806e-06, 2.763073694954769e-07,
        2.5018710596495597e-08,
    ),
)  # fmt: skip

# (e**r - 1 - r - r²/2) / r³ on the same interval; errors relative to r: 2**-31.1, 2**-61.7.
EXPM1 = Coefficients(
    (0.16666667, 0.04166649, 0.008333208, 0.0013932674, 0.00019944267),
    (
        0.16666666666666677, 0.04166666666666667, 0.008333333333321381, 0.0013888888888883538, 0.00019841269886838569,
        2.4801587323957557e-05, 2.7557243421350053e-06, 2.7557277101690235e-07, 2.510933383115562e-08,
        2.091290402414198e-09,
    ),
)  # fmt: skip

# (2**f - 1 - f ln 2) / f² on |f| <= 1/2; errors relative to 2**f: 2**-28.2, 2**-57.9.
EXP2 = Coefficients(
    (0.24022648, 0.055503614, 0.0096184835, 0.0013390582, 0.00015337205),
    (
        0.24022650695910125, 0.05550410866482084, 0.009618129107595843, 0.001333355814664658, 0.00015403530455601543,
        1.5252733595261893e-05, 1.321543579881859e-06, 1.0178160759291541e-07, 7.073725631713643e-09,
        4.440410190093955e-10,
    ),
)  # fmt: skip

# x² / (1 - tanh(x) / x) as a polynomial in x², |x| <= 0.93; the relative error of tanh is 2**-28.9.
TANH = (3.0, 1.1999979, -0.0057023726, 0.00023291472)


class Reduced(NamedTuple):
    """x = k ln 2 + hi + lo. `hi` is exact; the low bits of `biased` hold k plus the offset that was asked for."""

    biased: Value
    hi: Value
    lo: Value


def reduce(b: Builder, x: Value, offset: int) -> Reduced:
    """x mod ln 2, for |x| below 2**12. With an offset of a format's bias, `biased << shift` is 2**k."""
    magic = format_of(x).rounder + offset
    shifted = b.fma(x, LOG2_E, magic)
    k = shifted - magic
    return Reduced(to_bits(b, shifted), b.fma(k, -LN2_HI.of(x), x), k * -LN2_LO.of(x))


class Series(NamedTuple):
    """e**r = 1 + r + even + odd, even and odd being the terms of those degrees from r² on."""

    even: Value
    odd: Value


def series(b: Builder, r: Value, coefficients: tuple[float, ...]) -> Series:
    odd, even = split(b, r, coefficients)
    square = r * r
    return Series(b.fma(square * square, even, 0.5 * square), square * r * odd)


def tail(b: Builder, reduced: Reduced, coefficients: tuple[float, ...]) -> Value:
    """t in e**r = 1 + hi + t, where r = hi + lo; its error is small even against e**r - 1."""
    r = reduced.hi + reduced.lo
    even, odd = split(b, r, coefficients)
    square = r * r
    return b.fma(square * r, b.fma(odd, r, even), b.fma(square, 0.5, reduced.lo))


def power_of_two(b: Builder, biased: Value) -> Value:
    """2**k, for bits that hold k + bias and 2**k that is normal."""
    return from_bits(b, biased << (23 if biased.dtype.size == 4 else 52))


def halves(b: Builder, biased: Value) -> Pair:
    """Two factors whose product is 2**k, for bits that hold k + 2 bias.

    2**k itself may be out of range; y * f * g has one rounding, also where the result is subnormal or overflows.
    """
    half = biased >> 1
    return Pair(power_of_two(b, half), power_of_two(b, biased - half))


def exp(b: Builder, x: Value) -> Value:
    """e**x."""
    low, high = pick(x, (-104.0, 89.0), (-746.0, 710.0))
    reduced = reduce(b, at_most(b, at_least(b, x, low), high), 2 * format_of(x).bias)
    f, g = halves(b, reduced.biased)
    return (1.0 + _rise(b, reduced, x)) * f * g


def _rise(b: Builder, reduced: Reduced, x: Value) -> Value:
    """e**r - 1, to within an ulp of e**r or less."""
    r = reduced.hi + reduced.lo
    even, odd = split(b, r, EXP.of(x))
    return reduced.hi + b.fma(r * r, b.fma(odd, r, even), reduced.lo)


def exp2(b: Builder, x: Value) -> Value:
    """2**x."""
    low, high = pick(x, (-151.0, 128.0), (-1076.0, 1024.0))
    x = at_most(b, at_least(b, x, low), high)
    magic = format_of(x).rounder + 2 * format_of(x).bias
    shifted = x + magic
    r = x - (shifted - magic)
    even, odd = split(b, r, EXP2.of(x))
    p = b.fma(r, LN2_HI.of(x), b.fma(r * r, b.fma(odd, r, even), r * LN2_LO.of(x)))
    f, g = halves(b, to_bits(b, shifted))
    return (1.0 + p) * f * g


def expm1(b: Builder, x: Value) -> Value:
    """e**x - 1, accurate near 0."""
    low, high = pick(x, (-18.0, 89.0), (-38.0, 710.0))
    fmt = format_of(x)
    # 2**k overflows before the result does, so everything is halved until the end.
    reduced = reduce(b, at_most(b, at_least(b, x, low), high), fmt.bias - 1)
    half = _expm1(b, reduced, tail(b, reduced, EXPM1.of(x)), 0.5)
    return b.choose(b.abs(x) < 2.0 ** -(fmt.digits + 2), x, 2.0 * (half.hi + half.lo))


def _expm1(b: Builder, reduced: Reduced, t: Value, unit: float) -> Pair:
    """(e**x - 1) * unit, for a reduction whose biased bits stand for 2**k * unit."""
    s = power_of_two(b, reduced.biased)
    base, error = exact_sum(s, b.like(s, -unit))
    hi = b.fma(s, reduced.hi, base)
    # |base| >= |s hi| unless base is 0: the difference and with it the error of `hi` are exact.
    return Pair(hi, b.fma(s, t, b.fma(s, reduced.hi, base - hi) + error))


def tanh(b: Builder, x: Value) -> Value:
    """The hyperbolic tangent."""
    return pick(x, _tanh32, _tanh64)(b, x)


def _tanh64(b: Builder, x: Value) -> Value:
    """tanh(a) = -m / (m + 2) with m = e**(-2a) - 1 in (-1, 0], for a = |x|."""
    a = at_most(b, b.abs(x), 19.1)
    reduced = reduce(b, -2.0 * a, format_of(x).bias)
    m = fast_sum(*_expm1(b, reduced, tail(b, reduced, EXPM1.of(x)), 1.0))
    d = fast_sum(b.like(x, 2.0), m.hi)
    return b.copysign(quotient(b, m, Pair(d.hi, d.lo + m.lo)), x)


def _tanh32(b: Builder, x: Value) -> Value:
    """a - a a² / (3 + 1.2 a² + …) for a = |x| < 0.93, from there on 1 - 2 / (e**(2a) + 1): a number and a part of it
    that is so small that errors of the quotient are less than half a unit of the difference.

    A step of a recurrence waits for all of it, so no more operations than have to follow each other: the polynomial is
    taken in pairs of terms, and what is multiplied with it is made meanwhile."""
    a = b.abs(x)
    bounded = at_most(b, a, 9.1)
    magic = FLOAT32.rounder + FLOAT32.bias
    shifted = b.fma(bounded, 2.0 * LOG2_E, magic)
    r = b.fma(shifted - magic, -LN2_HI.float32, bounded + bounded)
    s = power_of_two(b, to_bits(b, shifted))
    c0, c1, c2, c3, c4 = EXP.float32
    rr = r * r
    terms = b.fma(b.fma(rr, c4, b.fma(r, c3, c2)), rr, b.fma(r, c1, c0))
    grown = b.fma(s * rr, terms, b.fma(s, r, s + 1.0))
    square, small = a * a, a < 0.93
    part = b.choose(small, square, 2.0) / b.choose(small, horner(b, square, TANH), grown)
    whole = b.choose(small, a, 1.0)
    return b.copysign(b.fma(-whole, part, whole), x)


def sigmoid(b: Builder, x: Value) -> Value:
    """1 / (1 + e**-x): with e = e**-|x| <= 1, that is 1 / (1 + e) or e / (1 + e)."""
    reduced = reduce(b, -at_most(b, b.abs(x), pick(x, 104.0, 746.0)), 2 * format_of(x).bias)
    rise = _rise(b, reduced, x)
    f, g = halves(b, reduced.biased)
    s = f * g  # may be subnormal
    negative = x < 0.0
    # The quotient n / (1 + s (1 + rise)), with n = 1 + rise or 1; in the first case n lacks a factor s until the end.
    n = fast_sum(b.like(x, 1.0), b.choose(negative, rise, 0.0))
    inverse = 1.0 / b.fma(s, rise, s + 1.0)
    q = n.hi * inverse
    part = q * s
    remainder = b.fma(-part, rise, (n.hi - q) - part) + n.lo  # both differences are exact
    return b.fma(remainder, inverse, q) * b.choose(negative, s, 1.0)


class Hyperbolic(NamedTuple):
    """|x| = k ln 2 + hi + lo, the series of e**(hi + lo), and half of cosh and sinh of k ln 2 (halved against
    overflow)."""

    reduced: Reduced
    series: Series
    cosh: Pair
    sinh: Pair


def _hyperbolic(b: Builder, x: Value) -> Hyperbolic:
    fmt = format_of(x)
    a = at_most(b, b.abs(x), pick(x, 89.5, 710.6))
    reduced = reduce(b, a, fmt.bias - 2)
    terms = series(b, reduced.hi + reduced.lo, EXPM1.of(x))
    up = power_of_two(b, reduced.biased)  # 2**(k-2)
    down = power_of_two(b, 2 * fmt.bias - 4 - reduced.biased)  # 2**(-k-2), too small to matter before it underflows
    down = b.choose(a > 40.0, 0.0, down)
    return Hyperbolic(reduced, terms, fast_sum(up, down), fast_sum(up, -down))


def sinh(b: Builder, x: Value) -> Value:
    return _sinh(b, x, _hyperbolic(b, x))


def cosh(b: Builder, x: Value) -> Value:
    return _cosh(b, _hyperbolic(b, x))


def sinh_cosh(b: Builder, x: Value) -> tuple[Value, Value]:
    """sinh and cosh, sharing what they share; the bits are those of each alone."""
    parts = _hyperbolic(b, x)
    return _sinh(b, x, parts), _cosh(b, parts)


def _sinh(b: Builder, x: Value, parts: Hyperbolic) -> Value:
    """sinh(k ln 2 + r) = sinh(k ln 2) cosh(r) + cosh(k ln 2) sinh(r)."""
    (_, hi, lo), (even, odd), c, s = parts
    first = b.fma(c.hi, hi, s.hi)
    error = b.fma(c.hi, hi, s.hi - first) + s.lo
    total = first + b.fma(c.hi, odd + lo, b.fma(s.hi, even, error))
    return b.choose(b.abs(x) < 2.0 ** -(format_of(x).digits // 2 + 1), x, b.copysign(total + total, x))


def _cosh(b: Builder, parts: Hyperbolic) -> Value:
    """cosh(k ln 2 + r) = cosh(k ln 2) cosh(r) + sinh(k ln 2) sinh(r)."""
    (_, hi, lo), (even, odd), c, s = parts
    first = b.fma(s.hi, hi, c.hi)
    error = b.fma(s.hi, hi, c.hi - first) + c.lo
    total = first + b.fma(s.hi, odd + lo, b.fma(c.hi, even, error))
    return total + total


def times_exp(b: Builder, x: Value, *factors: Value) -> list[Value]:
    """factor * e**x for each factor, right also where e**x overflows or underflows but the product does not."""
    low, high = pick(x, (-310.0, 310.0), (-2200.0, 2200.0))
    bias = format_of(x).bias
    reduced = reduce(b, at_most(b, at_least(b, x, low), high), 4 * bias)
    m = 1.0 + _rise(b, reduced, x)
    # 2**k as q³ r: each is in range, and no product leaves it unless the result does.
    quarter = reduced.biased >> 2
    q, r = power_of_two(b, quarter), power_of_two(b, reduced.biased - (quarter + quarter + quarter))
    return [factor * m * q * q * q * r for factor in factors]
