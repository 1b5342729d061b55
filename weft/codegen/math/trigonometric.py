"""sin, cos and tan of every finite number.

x is reduced to n π/2 + r with r as a pair and |r| <= π/4, by subtracting n times three parts of π/2. Numbers too large
for that (where n no longer fits) take a branch that multiplies x by a window of the digits of 1/2π; the branch is not
taken unless some lane needs it, and gives lanes that do not need it their ordinary value back, so the bits depend on
the element alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from weft import dtypes as dt
from weft.codegen.math.basics import (
    FLOAT64,
    Coefficients,
    Constant,
    Pair,
    exact_product,
    exact_sum,
    fast_sum,
    format_of,
    from_bits,
    horner,
    pick,
    quotient,
    to_bits,
)
from weft.llvm.builder import Builder, Value

TWO_OVER_PI = 0.6366197723675814
HALF_PI = (
    Constant(1.5707964, 1.5707963267948966),
    Constant(-4.371139e-08, 6.123233995736766e-17),
    Constant(-1.7151245e-15, -1.4973849048591698e-33),
)
TWO_PI = (6.283185307179586, 2.4492935982947064e-16)

LARGE = Constant(2.0**17, 2.0**30)
"""From here on n is too long for the three parts of π/2."""

# (sin(r) / r - 1) / r² as a polynomial in r², |r| <= 0.79; relative errors 2**-27.8, 2**-57.9.
SIN = Coefficients(
    (-0.16666654, 0.008332106, -0.00019507884),
    (
        -0.16666666666666632, 0.008333333333322415, -0.00019841269829772425, 2.755731367313215e-06,
        -2.505075461186669e-08, 1.5896574133965666e-10,
    ),
)  # fmt: skip

# (cos(r) - 1 + r²/2) / r⁴ as a polynomial in r², |r| <= 0.79; errors of cos(r) 2**-33.1, 2**-64.2.
COS = Coefficients(
    (0.041666646, -0.0013887301, 2.4430668e-05),
    (
        0.0416666666666666, -0.001388888888887447, 2.4801587289666858e-05, -2.755731439923247e-07,
        2.0875728986824892e-09, -1.1359916792849026e-11,
    ),
)  # fmt: skip

INVERSE_TURN = int(
    "28BE60DB9391054A7F09D5F47D4D377036D8A5664F10E4107F9458EAF7AEF1586DC91B8E909374B801924BBA827464873F877AC72C4"
    "A69CFBA208D7D4BAED1213A671C09AD17DF904E64758E60D4CE7D272117E2EF7E4A0EC7FE25FFF7816603FBCBC462D6829B47DB4D9F"
    "B3C9F2C26DD3D18FD9A797FA8B5D49EEB1FAF97C5ECF41CE7DE294A4BA9AFED7EC47E357421580CC11BF1EDAEAFC33EF0826BD0D87",
    16,
)
"""1/2π in units of 2**-1280, rounded down."""

PIECES32 = tuple(((INVERSE_TURN >> (1280 - 29 * (i + 1))) & (2**29 - 1)) * 2.0 ** (-29 * (i + 1)) for i in range(7))
"""1/2π as a sum of parts, each short enough for its product with a float32 to be exact in float64."""

WINDOW = 16
"""Exponents that share a row of the table below."""
DOWN = 2.0**-512
"""x is multiplied by this and the table divided by it, so that neither overflows nor underflows."""


def _window(start: int) -> float:
    """Bits start + 1 … start + 53 after the binary point of 1/2π, as a float64, over DOWN."""
    bits = INVERSE_TURN >> (1280 - 53 - start)
    return math.ldexp(bits & (2**53 - 1), 512 - 53 - start)


ROWS64 = tuple(_window(first - 52 + 53 * i) for first in range(30, 1024, WINDOW) for i in range(4))
"""For each window of exponents, the 4 × 53 bits of 1/2π that matter: those above give whole turns."""


class Reduced(NamedTuple):
    """|x| = n π/2 + hi + lo, the low bits of `quadrant` holding n."""

    quadrant: Value
    hi: Value
    lo: Value


def reduce(b: Builder, a: Value) -> Reduced:
    """a mod π/2 to the nearest multiple, for a >= 0."""
    near = _reduce_near(b, a)
    large = a >= LARGE.of(a)

    def far() -> list[Value]:
        exact = pick(a, _reduce_far32, _reduce_far64)(b, a)
        return [b.choose(large, e, n) for e, n in zip(exact, near, strict=True)]

    return Reduced(*b.rarely(b.any(large), near, far))


def _reduce_near(b: Builder, a: Value) -> Reduced:
    first, second, third = (part.of(a) for part in HALF_PI)
    magic = format_of(a).rounder
    shifted = b.fma(a, TWO_OVER_PI, magic)
    n = shifted - magic
    r = b.fma(n, -first, a)  # exact: a multiple of the last bit of either operand, and below 1
    p = exact_product(b, n, second)
    hi = r - p.hi
    return Reduced(to_bits(b, shifted), hi, b.fma(n, -third, (r - hi) - p.hi) - p.lo)


def _reduce_far32(b: Builder, a: Value) -> Reduced:
    """Products with parts of 1/2π, less whole turns, are exact in float64; their sum is kept as a pair."""
    x = b.cast(a, dt.float64)
    turns, error = b.like(x, 0.0), b.like(x, 0.0)
    for piece in PIECES32:
        product = x * piece
        turns, lost = exact_sum(turns, product - b.rint(product))
        error = error + lost
    shifted = b.fma(turns, 4.0, FLOAT64.rounder)
    quarter = b.fma(shifted - FLOAT64.rounder, -0.25, turns) + error
    r = quarter * TWO_PI[0]
    hi = b.cast(r, dt.float32)
    return Reduced(b.cast(to_bits(b, shifted), dt.uint32), hi, b.cast(r - b.cast(hi, dt.float64), dt.float32))


def _reduce_far64(b: Builder, a: Value) -> Reduced:
    """x times 212 bits of 1/2π: a product with the first 53 bits is exact mod 1, the others are kept as pairs."""
    least = FLOAT64.bias + 30
    exponent = to_bits(b, a) >> FLOAT64.shift
    row = (b.choose(exponent < least, least, exponent) - least) >> 4 << 2
    table = b.table("weft_inverse_turn", dt.float64, ROWS64)
    t0, t1, t2, t3 = (b.lookup(table, row + i, dt.float64) for i in range(4))
    x = a * DOWN
    p0, p1, p2 = (exact_product(b, x, t) for t in (t0, t1, t2))
    whole = (p0.hi - b.rint(p0.hi)) + (p0.lo - b.rint(p0.lo))
    upper = exact_sum(whole, p1.hi - b.rint(p1.hi))
    lower = exact_sum(p1.lo, p2.hi)
    total = exact_sum(upper.hi, lower.hi)
    error = total.lo + (upper.lo + (lower.lo + b.fma(x, t3, p2.lo)))
    shifted = b.fma(total.hi, 4.0, FLOAT64.rounder)
    turns = fast_sum(b.fma(shifted - FLOAT64.rounder, -0.25, total.hi), error)
    r = exact_product(b, turns.hi, TWO_PI[0])
    return Reduced(to_bits(b, shifted), r.hi, b.fma(turns.lo, TWO_PI[0], b.fma(turns.hi, TWO_PI[1], r.lo)))


class SinCos(NamedTuple):
    """Both functions of r = hi + lo as unevaluated sums; the second terms are below a tenth of the first."""

    sin: Pair
    cos: Pair


def _sincos(b: Builder, r: Value, lo: Value) -> SinCos:
    square = r * r
    half = 0.5 * square
    c = 1.0 - half
    error = (1.0 - c) - half
    cos_tail = b.fma(square * square, horner(b, square, COS.of(r)), b.fma(-r, lo, error))
    sin_tail = b.fma(square * r, horner(b, square, SIN.of(r)), lo * c)
    return SinCos(Pair(r, sin_tail), Pair(c, cos_tail))


def _odd(quadrant: Value) -> Value:
    return (quadrant & 1).ne(0)


def _flip(b: Builder, y: Value, sign: Value) -> Value:
    """y with its sign changed where the top bit of `sign` is set."""
    top = 1 << (y.dtype.bits - 1)
    return from_bits(b, to_bits(b, y) ^ (sign & top))


def sin(b: Builder, x: Value) -> Value:
    quadrant, hi, lo = reduce(b, b.abs(x))
    s, c = _sincos(b, hi, lo)
    odd = _odd(quadrant)
    y = b.choose(odd, c.hi, s.hi) + b.choose(odd, c.lo, s.lo)
    return _flip(b, y, (quadrant << (x.dtype.bits - 2)) ^ to_bits(b, x))


def cos(b: Builder, x: Value) -> Value:
    quadrant, hi, lo = reduce(b, b.abs(x))
    s, c = _sincos(b, hi, lo)
    odd = _odd(quadrant)
    y = b.choose(odd, s.hi, c.hi) + b.choose(odd, s.lo, c.lo)
    return _flip(b, y, (quadrant + 1) << (x.dtype.bits - 2))


def sincos(b: Builder, x: Value) -> tuple[Value, Value]:
    """sin and cos, sharing what they share; the bits are those of each alone."""
    quadrant, hi, lo = reduce(b, b.abs(x))
    s, c = _sincos(b, hi, lo)
    odd = _odd(quadrant)
    sine, cosine = s.hi + s.lo, c.hi + c.lo
    quarter = x.dtype.bits - 2
    return (
        _flip(b, b.choose(odd, cosine, sine), (quadrant << quarter) ^ to_bits(b, x)),
        _flip(b, b.choose(odd, sine, cosine), (quadrant + 1) << quarter),
    )


def sincos_of_turn(b: Builder, x: Value) -> tuple[Value, Value]:
    """sin(π x) and cos(π x)."""
    n = b.rint(x)
    r = x - n
    a = b.abs(r)
    far = a > 0.25
    h = exact_product(b, b.choose(far, 0.5 - a, a), HALF_PI[0].of(x))
    lo = b.fma(h.hi, HALF_PI[1].of(x) / HALF_PI[0].of(x), h.lo)
    s, c = _sincos(b, h.hi + h.hi, lo + lo)
    sine, cosine = s.hi + s.lo, c.hi + c.lo
    odd = b.rint(0.5 * n).ne(0.5 * n)
    sine, cosine = b.copysign(b.choose(far, cosine, sine), r), b.choose(far, sine, cosine)
    return b.choose(odd, -sine, sine), b.choose(odd, -cosine, cosine)


def tan(b: Builder, x: Value) -> Value:
    """sin / cos, or -cos / sin in the odd quarters."""
    quadrant, hi, lo = reduce(b, b.abs(x))
    s, c = _sincos(b, hi, lo)
    s, c = fast_sum(*s), fast_sum(*c)
    odd = _odd(quadrant)
    n = Pair(b.choose(odd, c.hi, s.hi), b.choose(odd, c.lo, s.lo))
    d = Pair(b.choose(odd, s.hi, c.hi), b.choose(odd, s.lo, c.lo))
    return _flip(b, quotient(b, n, d), (quadrant << (x.dtype.bits - 1)) ^ to_bits(b, x))
