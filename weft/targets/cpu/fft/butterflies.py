"""Short transforms of complex values in registers: what a stage does for each radix.

Written with the builder, so they are the same for any number of lanes. Every operation rounds once, in the order that
stands here; products are fused with the sum they are part of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from weft.llvm.builder import Builder, Complex


def times(b: Builder, x: Complex, w: Complex) -> Complex:
    """x * w, each part with two roundings."""
    return Complex(b.fma(x.re, w.re, -(x.im * w.im)), b.fma(x.re, w.im, x.im * w.re))


def butterfly(b: Builder, x: Sequence[Complex]) -> list[Complex]:
    """The transform of these values."""
    if len(x) == 2:
        return [x[0] + x[1], x[0] - x[1]]
    if len(x) == 4:
        return _four(x)
    if len(x) == 8:
        return _eight(b, x)
    return _odd(b, x)


def _four(x: Sequence[Complex]) -> list[Complex]:
    a, c = x[0] + x[2], x[0] - x[2]
    d, e = x[1] + x[3], x[1] - x[3]
    return [
        a + d,
        Complex(c.re + e.im, c.im - e.re),
        a - d,
        Complex(c.re - e.im, c.im + e.re),
    ]


def _eight(b: Builder, x: Sequence[Complex]) -> list[Complex]:
    even, odd = _four(x[0::2]), _four(x[1::2])
    half = math.sqrt(0.5)
    low, high = [even[0] + odd[0]], [even[0] - odd[0]]
    o = odd[1]  # times (1 - i) / sqrt 2
    s, d = o.re + o.im, o.im - o.re
    low.append(Complex(b.fma(s, half, even[1].re), b.fma(d, half, even[1].im)))
    high.append(Complex(b.fma(s, -half, even[1].re), b.fma(d, -half, even[1].im)))
    o = odd[2]  # times -i
    low.append(Complex(even[2].re + o.im, even[2].im - o.re))
    high.append(Complex(even[2].re - o.im, even[2].im + o.re))
    o = odd[3]  # times -(1 + i) / sqrt 2
    s, d = o.re + o.im, o.im - o.re
    low.append(Complex(b.fma(d, half, even[3].re), b.fma(s, -half, even[3].im)))
    high.append(Complex(b.fma(d, -half, even[3].re), b.fma(s, half, even[3].im)))
    return low + high


def _odd(b: Builder, x: Sequence[Complex]) -> list[Complex]:
    """An odd prime: sums and differences of pairs, then sums of multiples of those."""
    n = len(x)
    pairs = range(1, n // 2 + 1)
    sums, differences = [x[k] + x[n - k] for k in pairs], [x[k] - x[n - k] for k in pairs]
    first = x[0]
    for s in sums:
        first = first + s
    low, high = [first], []
    for q in pairs:
        re, im = x[0].re, x[0].im
        for k, s in zip(pairs, sums, strict=True):
            c = _cos(q * k, n)
            re, im = b.fma(s.re, c, re), b.fma(s.im, c, im)
        c = _sin(q, n)
        u, v = differences[0].re * c, differences[0].im * c
        for k, d in list(zip(pairs, differences, strict=True))[1:]:
            c = _sin(q * k, n)
            u, v = b.fma(d.re, c, u), b.fma(d.im, c, v)
        low.append(Complex(re + v, im - u))
        high.append(Complex(re - v, im + u))
    return low + high[::-1]


def _cos(k: int, n: int) -> float:
    """cos(2 pi k / n) for n up to 13, rounded from an angle of at most an eighth of a turn."""
    return _sin(4 * k + n, 4 * n)


def _sin(k: int, n: int) -> float:
    turn = Fraction(k, n) % 1
    sign = 1.0
    if turn >= Fraction(1, 2):
        turn, sign = turn - Fraction(1, 2), -1.0
    if turn > Fraction(1, 4):
        turn = Fraction(1, 2) - turn
    if turn > Fraction(1, 8):
        return sign * math.cos(2 * math.pi * float(Fraction(1, 4) - turn))
    return sign * math.sin(2 * math.pi * float(turn))
