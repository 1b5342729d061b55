"""x**y = 2**(y log2 |x|), with the logarithm to more digits than the type has: float32 works in float64, float64 in
pairs.

The special cases are those of C's pow. x**1, x**2 and x**-1 are the correctly rounded x, x * x and 1 / x.
"""

from __future__ import annotations

import math

from weft import dtypes as dt
from weft.codegen.math.basics import (
    FLOAT64,
    Constant,
    Pair,
    at_least,
    at_most,
    exact_product,
    fast_sum,
    from_bits,
    horner,
    pick,
    split,
    to_bits,
)
from weft.codegen.math.exponential import EXP2, LN2_HI, LN2_LO, halves
from weft.codegen.math.logarithm import reduce as take_apart
from weft.llvm.builder import Builder, Value

# log2((1 + s) / (1 - s)) / s as a polynomial in s², |s| <= 5/27; relative error 2**-36.7.
LOG2_32 = (2.885390081804481, 0.9617966554389024, 0.5770869347213095, 0.4114772268690886, 0.3442307984726822)

# 2**g on |g| <= 1/2; relative error 2**-28.9.
EXP2_32 = (
    1.0, 0.6931472028534014, 0.24022647913500955, 0.05550332471312068, 0.009618437353281465, 0.0013398874675147282,
    0.00015353366172294282,
)  # fmt: skip

# log2((1 + s) / (1 - s)) / s = 2/ln 2 + 2/(3 ln 2) s² + s⁴ P(s²), the first two coefficients as pairs, |s| <= 0.0799;
# relative error 2**-76.7.
LOG2_FIRST = (2.8853900817779268, 4.0710547481862066e-17)
LOG2_SECOND = (0.9617966939259756, 5.0577616648125907e-17)
LOG2_64 = (
    0.5770780163555851, 0.4121985831117356, 0.3205988974876121, 0.26230838137469487, 0.22191339097142398,
    0.19648975530458324,
)  # fmt: skip

# -log2(5/4) and -log2(3/4); the first parts are short enough to be added to an exponent without error.
MINUS_LOG2_FIVE_QUARTERS = (-0.3219280948874257, 6.33385952568616e-14)
MINUS_LOG2_THREE_QUARTERS = (0.4150374992786965, 1.4733181985781966e-13)

LIMIT = Constant(2.0**40, 2.0**66)
"""Exponents above it overflow or underflow every base but 1."""


def power(b: Builder, x: Value, y: Value) -> Value:
    """x**y. Where all exponents are 1 or 2, as in `x ** 2` and its derivative, that is a multiplication."""
    (result,) = b.rarely(b.any(y.ne(1.0) & y.ne(2.0)), (b.choose(y.eq(2.0), x * x, x),), lambda: (_general(b, x, y),))
    return result


def _general(b: Builder, x: Value, y: Value) -> Value:
    a, limit = b.abs(x), LIMIT.of(x)
    result = pick(x, _magnitude32, _magnitude64)(b, a, at_most(b, at_least(b, y, -limit), limit))
    ordinary = (x > 0.0) & (x < math.inf) & y.ne(1.0) & y.ne(2.0) & y.ne(-1.0) & y.eq(y)
    (result,) = b.rarely(b.any(~ordinary), (result,), lambda: (_by_the_letter(b, x, y, result),))
    return result


def _by_the_letter(b: Builder, x: Value, y: Value, result: Value) -> Value:
    """x**y for all x and y as C's pow has it; `result` is |x|**y where neither is 0, infinite or NaN."""
    a = b.abs(x)
    grows = b.choose((a > 1.0) ^ (y < 0.0), b.like(x, math.inf), 0.0)
    result = b.choose(a.eq(0.0) | a.eq(math.inf), grows, result)
    whole = b.rint(y).eq(y)
    half = 0.5 * y
    odd = whole & b.rint(half).ne(half)
    result = b.copysign(result, b.choose(odd, x, 1.0))
    result = b.choose((x < 0.0) & (x > -math.inf) & ~whole, math.nan, result)
    result = b.choose(b.isnan(x) | b.isnan(y), x + y, result)
    result = b.choose(y.eq(1.0), x, b.choose(y.eq(2.0), x * x, result))
    result = b.choose(y.eq(-1.0), 1.0 / x, result)
    return b.choose(y.eq(0.0) | x.eq(1.0), 1.0, result)


def _magnitude32(b: Builder, a: Value, y: Value) -> Value:
    """a**y in float64, where float32's subnormals are normal and results that overflow are finite."""
    k, f, _ = take_apart(b, b.cast(a, dt.float64))
    s = f / (f + 2.0)
    logarithm = b.fma(s, horner(b, s * s, LOG2_32), k)
    t = at_most(b, at_least(b, b.cast(y, dt.float64) * logarithm, -160.0), 130.0)
    shifted = t + FLOAT64.rounder
    g = t - (shifted - FLOAT64.rounder)
    even, odd = split(b, g, EXP2_32)
    bits = to_bits(b, b.fma(odd, g, even)) + (to_bits(b, shifted) << FLOAT64.shift)
    return b.cast(from_bits(b, bits), dt.float32)


def _magnitude64(b: Builder, a: Value, y: Value) -> Value:
    small = a < FLOAT64.tiny
    k, f, _ = take_apart(b, b.choose(small, a * 2.0**FLOAT64.digits, a))
    k = b.choose(small, k - FLOAT64.digits, k)
    logarithm = _log2_pair(b, k, f)
    t = y * logarithm.hi
    tail = b.fma(y, logarithm.lo, b.fma(y, logarithm.hi, -t))
    return _exp2_pair(b, t, tail)


def _log2_pair(b: Builder, k: Value, f: Value) -> Pair:
    """k + log2(1 + f), to about 2**-68."""
    # 1 + f, multiplied by 5/4, 1 or 3/4, comes closer to 1, without a rounding error.
    low, high = f < -0.112, f > 0.14
    c = b.choose(low, 1.25, b.choose(high, b.like(f, 0.75), 1.0))
    less, more = MINUS_LOG2_FIVE_QUARTERS, MINUS_LOG2_THREE_QUARTERS
    k = k + b.choose(low, less[0], b.choose(high, b.like(f, more[0]), 0.0))
    k_lo = b.choose(low, less[1], b.choose(high, b.like(f, more[1]), 0.0))
    f = b.fma(f, c, c - 1.0)
    d = fast_sum(b.like(f, 2.0), f)
    inverse = 1.0 / d.hi
    s = f * inverse
    s_lo = (b.fma(-s, d.hi, f) - s * d.lo) * inverse
    z, z_lo = exact_product(b, s, s)
    z_lo = b.fma(s + s, s_lo, z_lo)
    second = exact_product(b, z, LOG2_SECOND[0])
    even, odd = split(b, z, LOG2_64)
    rest = b.fma(z * z, b.fma(odd, z, even), b.fma(z_lo, LOG2_SECOND[0], b.fma(z, LOG2_SECOND[1], second.lo)))
    first = fast_sum(b.like(f, LOG2_FIRST[0]), second.hi)
    c_lo = first.lo + (rest + LOG2_FIRST[1])
    product = exact_product(b, s, first.hi)
    total = fast_sum(k, product.hi)
    return fast_sum(total.hi, (total.lo + k_lo) + b.fma(s, c_lo, b.fma(s_lo, first.hi, product.lo)))


def _exp2_pair(b: Builder, t: Value, tail: Value) -> Value:
    """2**(t + tail)."""
    limit = 1080.0
    tail = b.choose(b.abs(t) > limit, 0.0, tail)
    t = at_most(b, at_least(b, t, -limit), limit)
    magic = FLOAT64.rounder + 2 * FLOAT64.bias
    shifted = t + magic
    r = fast_sum(t - (shifted - magic), tail)
    even, odd = split(b, r.hi, EXP2.of(t))
    low = b.fma(r.hi, LN2_LO.of(t), r.lo * LN2_HI.of(t))
    p = b.fma(r.hi, LN2_HI.of(t), b.fma(r.hi * r.hi, b.fma(odd, r.hi, even), low))
    f, g = halves(b, to_bits(b, shifted))
    return (1.0 + p) * f * g
