"""log, log2, log10 and log1p, and what is made of them: logaddexp, log1mexp, xlogy.

All write x = 2**k (1 + f) with 1 + f in [11/16, 11/8) and share log(1 + f) = f + q, where f is exact and |q| < 0.07:
the sum of the large terms is kept with its error, and q, k's low part and that error are added last.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.codegen.math.basics import (
    FLOAT32,
    FLOAT64,
    Constant,
    Pair,
    exact_sum,
    fast_sum,
    format_of,
    from_bits,
    pick,
    rough_inverse,
    split,
    to_bits,
)
from weft.codegen.math.exponential import LN2_HI, LN2_LO, exp, expm1, power_of_two
from weft.llvm.builder import Builder, Value

INF, NAN = math.inf, math.nan

LEAST = {FLOAT32: 0x3F300000, FLOAT64: 0x3FE6000000000000}
"""The bits of 11/16, the smallest 1 + f. The errors of f² grow towards f > 0, cancellation with log 2 towards f < 0;
this is where they are equal."""

# (log(1 + f) - f + f²/2) / f³ on [11/16 - 1, 11/8 - 1]; error relative to log(1 + f): 2**-30.3.
LOG32 = (
    0.3333332, -0.24999875, 0.20001431, -0.16676107, 0.14244504, -0.122593656, 0.11505098, -0.1249394, 0.08813428,
)  # fmt: skip

# (2 atanh(s) - 2 s) / s³ as a polynomial in s², |s| <= 5/27; relative error 2**-57.7.
ATANH64 = (
    0.6666666666666867, 0.3999999999851121, 0.2857142894468961, 0.22222177921281103, 0.18184623313242876,
    0.15287473365850374, 0.15055708312952973,
)  # fmt: skip


class Scale(NamedTuple):
    """log to some base = octave * k + factor * log(1 + f), both constants as hi + lo."""

    octave: tuple[Constant, Constant]
    factor: tuple[Constant, Constant]


ZERO, ONE = Constant(0.0, 0.0), Constant(1.0, 1.0)
NATURAL = Scale((LN2_HI, LN2_LO), (ONE, ZERO))
BINARY = Scale((ONE, ZERO), (Constant(1.442695, 1.4426950408889634), Constant(1.925963e-08, 2.0355273740931033e-17)))
DECIMAL = Scale(
    (Constant(0.30103, 0.3010299956639812), Constant(-1.4320989e-08, -2.8037281277851704e-18)),
    (Constant(0.4342945, 0.4342944819032518), Constant(-1.010305e-08, 1.098319650216765e-17)),
)


class Reduced(NamedTuple):
    """x = 2**k (1 + f), k as a float; `exponent` holds k + bias."""

    k: Value
    f: Value
    exponent: Value


def reduce(b: Builder, x: Value) -> Reduced:
    """Take a positive normal number apart; anything else gives numbers without a meaning."""
    fmt = format_of(x)
    base = LEAST[fmt]
    one = fmt.bias << fmt.shift
    bits = to_bits(b, x) + (one - base)
    exponent = bits >> fmt.shift
    m = from_bits(b, (bits & ((1 << fmt.shift) - 1)) + base)
    # An integer below 2**shift, put into the low bits of 2**shift, makes a float without a conversion.
    k = from_bits(b, exponent | ((fmt.bias + fmt.shift) << fmt.shift)) - (2.0**fmt.shift + fmt.bias)
    return Reduced(k, m - 1.0, exponent)


def rest(b: Builder, f: Value) -> Value:
    """q in log(1 + f) = f + q."""
    return pick(f, _rest32, _rest64)(b, f)


def _rest32(b: Builder, f: Value) -> Value:
    square = f * f
    even, odd = split(b, f, LOG32)
    return b.fma(square * f, b.fma(odd, f, even), -0.5 * square)


def _rest64(b: Builder, f: Value) -> Value:
    """With s = f / (2 + f): log(1 + f) = 2 atanh(s), and 2 s = f - s f."""
    s = f / (f + 2.0)
    square = s * s
    half = 0.5 * f * f
    even, odd = split(b, square, ATANH64)
    return b.fma(s, b.fma(square, b.fma(odd, square, even), half), -half)


def _assemble(b: Builder, k: Value, f: Value, q: Value, scale: Scale) -> Value:
    """octave * k + factor * (f + q)."""
    octave, octave_lo = (c.of(f) for c in scale.octave)
    factor, factor_lo = (c.of(f) for c in scale.factor)
    first = f * factor if factor != 1.0 else f
    hi = b.fma(k, octave, first)
    lo = b.fma(k, octave, -hi) + first
    if octave_lo:
        lo = b.fma(k, octave_lo, lo)
    if factor == 1.0:
        return hi + (lo + q)
    return hi + (b.fma(q, factor, b.fma(f, factor_lo, b.fma(f, factor, -first))) + lo)


def _logarithm(b: Builder, x: Value, scale: Scale) -> Value:
    fmt = format_of(x)
    small = x < fmt.tiny
    k, f, _ = reduce(b, b.choose(small, x * 2.0**fmt.digits, x))
    k = b.choose(small, k - fmt.digits, k)
    result = _assemble(b, k, f, rest(b, f), scale)
    result = b.choose(x > 0.0, result, b.choose(x.eq(0.0), b.like(x, -INF), NAN))
    return b.choose(x < INF, result, x)


def log_pair(b: Builder, x: Value, x_lo: Value | None = None) -> Pair:
    """log(x + x_lo) for a positive normal x, to a few more digits than the type has; x_lo is at most an ulp of x."""
    k, f, _ = reduce(b, x)
    octave, octave_lo = LN2_HI.of(x), LN2_LO.of(x)
    hi = b.fma(k, octave, f)
    lo = b.fma(k, octave_lo, b.fma(k, octave, -hi) + f)
    q = rest(b, f)
    if x_lo is not None:
        q = b.fma(x_lo, rough_inverse(b, x), q)
    return fast_sum(hi, lo + q)


def log(b: Builder, x: Value) -> Value:
    """The natural logarithm."""
    return _logarithm(b, x, NATURAL)


def log2(b: Builder, x: Value) -> Value:
    return _logarithm(b, x, BINARY)


def log10(b: Builder, x: Value) -> Value:
    return _logarithm(b, x, DECIMAL)


def log1p(b: Builder, x: Value) -> Value:
    """log(1 + x), accurate near 0."""
    y = log1p_pair(b, x)
    y = b.choose(x > -1.0, y, b.choose(x.eq(-1.0), b.like(x, -INF), NAN))
    y = b.choose(x < INF, y, x)
    return b.choose(b.abs(x) < 2.0 ** -(format_of(x).digits + 2), x, y)


def logaddexp(b: Builder, x: Value, y: Value) -> Value:
    """log(e**x + e**y): the larger plus log(1 + e**-gap). Where those two nearly cancel, their errors remain."""
    swap = x > y
    larger, smaller = b.choose(swap, x, y), b.choose(swap, y, x)
    gap = exact_sum(larger, -smaller)
    gap_hi = b.choose(x.eq(y), 0.0, gap.hi)  # infinities may be equal, and their difference is NaN
    e = exp(b, -gap_hi)
    e_lo = b.choose(gap.hi < INF, -e * gap.lo, 0.0)  # e**-(gap + error) = e + e_lo
    return larger + log1p_pair(b, e, e_lo) + b.choose(b.isnan(x), x, 0.0)


def log1mexp(b: Builder, x: Value) -> Value:
    """log(1 - e**x), for x <= 0."""
    near = log(b, -expm1(b, x))
    return b.choose(x > -0.6931472, near, log1p(b, -exp(b, x)))


def xlogy(b: Builder, x: Value, y: Value) -> Value:
    """x log(y), and 0 where x is 0 (but NaN where y is NaN)."""
    return b.choose(x.eq(0.0) & y.eq(y), 0.0, x * log(b, y))


def log1p_pair(b: Builder, x: Value, x_lo: Value | None = None, doubled: Value | None = None) -> Value:
    """log(1 + x + x_lo) for finite x > -1, plus log 2 in the lanes that are `doubled`."""
    u, lost = exact_sum(x, b.like(x, 1.0))
    if x_lo is None:
        return log_of_sum(b, u, lost)
    more = None if doubled is None else b.choose(doubled, b.like(x, 1.0), 0.0)
    return log_of_sum(b, u, lost + x_lo, more, whole=False)


def log_of_sum(b: Builder, u: Value, lost: Value, more: Value | None = None, *, whole: bool = True) -> Value:
    """log(2**more (u + lost)) for a positive normal u and a rest `lost` of about an ulp of it, which is carried into f.

    `whole` says that u + lost - 1 is exact where it is small, as it is if u + lost is 1 + x.
    """
    fmt = format_of(u)
    k, t, exponent = reduce(b, u)
    # 2**-k; past 2**(bias - 1) nothing is lost that matters, and 2**-k would underflow.
    last = 2 * fmt.bias - 1
    scaled = lost * power_of_two(b, 2 * fmt.bias - b.choose(exponent > last, last, exponent))
    f = t + scaled
    error = scaled - (f - t)
    if not whole:
        error = b.fma(-f, error, error)  # about error / (1 + f)
    if more is not None:
        k = k + more
    return _assemble(b, k, f, rest(b, f) + error, NATURAL)
