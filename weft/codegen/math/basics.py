"""What every elementary function is made of: float formats, polynomials, and arithmetic that keeps its rounding errors.

All of it is lane-wise, without branches, and made of correctly rounded IEEE operations only, so a result has the same
bits in a scalar and in a vector, at every optimisation level and on every processor. A number that needs more digits
than its type holds travels as an unevaluated sum of two (`Pair`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.llvm.builder import Builder, Operand, Value
from weft.records import dataclass

T = TypeVar("T")


@dataclass(frozen=True)
class Format:
    """The layout of a float type. `digits` counts the implicit bit, so an ulp of 1.0 is 2**(1 - digits)."""

    bits: Dtype
    """The unsigned integer type of the same width."""
    digits: int
    bias: int

    @property
    def shift(self) -> int:
        """Where the exponent field starts."""
        return self.digits - 1

    @property
    def tiny(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def rounder(self) -> float:
        """x + rounder - rounder is x rounded to an integer, and the low bits of x + rounder hold that integer."""
        return 1.5 * 2.0**self.shift


FLOAT32 = Format(dt.uint32, 24, 127)
FLOAT64 = Format(dt.uint64, 53, 1023)


def format_of(x: Value) -> Format:
    return FLOAT64 if x.dtype is dt.float64 else FLOAT32


class Pair(NamedTuple):
    """The unevaluated sum hi + lo, where lo is at most about an ulp of hi."""

    hi: Value
    lo: Value


class Coefficients(NamedTuple):
    """A polynomial for each format, constant term first; comments beside each say the interval and the error."""

    float32: tuple[float, ...]
    float64: tuple[float, ...]

    def of(self, x: Value) -> tuple[float, ...]:
        return self.float64 if x.dtype is dt.float64 else self.float32


class Constant(NamedTuple):
    """One number for each format."""

    float32: float
    float64: float

    def of(self, x: Value) -> float:
        return self.float64 if x.dtype is dt.float64 else self.float32


def pick(x: Value, float32: T, float64: T) -> T:
    """The choice for the format of x."""
    return float64 if x.dtype is dt.float64 else float32


# ---- polynomials ----


def horner(b: Builder, x: Value, coefficients: Sequence[Operand]) -> Value:
    """c[0] + c[1] x + c[2] x² + … by nested fma: the fewest instructions, in one long chain."""
    total = b.like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = b.fma(total, x, c)
    return total


def split(b: Builder, x: Value, coefficients: Sequence[Operand]) -> tuple[Value, Value]:
    """The polynomial as e + x o: e and o hold the even and the odd terms, in x²."""
    square = x * x
    return horner(b, square, coefficients[0::2]), horner(b, square, coefficients[1::2])


# ---- sums and products that keep their errors ----


def fast_sum(a: Value, c: Value) -> Pair:
    """a + c exactly, if |a| >= |c| (or a is 0)."""
    total = a + c
    return Pair(total, c - (total - a))


def exact_sum(a: Value, c: Value) -> Pair:
    """a + c exactly, whichever is larger."""
    total = a + c
    part = total - a
    return Pair(total, (a - (total - part)) + (c - part))


def exact_product(b: Builder, a: Value, c: Operand) -> Pair:
    """a * c exactly, unless the error underflows."""
    total = a * c
    return Pair(total, b.fma(a, c, -total))


def quotient_pair(b: Builder, n: Pair, d: Pair) -> Pair:
    """n / d: the rounded quotient of the first parts and what is missing, found from a remainder that is exact."""
    inverse = 1.0 / d.hi
    q = n.hi * inverse
    remainder = b.fma(-q, d.hi, n.hi) + b.fma(-q, d.lo, n.lo)
    return Pair(q, remainder * inverse)


def quotient(b: Builder, n: Pair, d: Pair) -> Value:
    """n / d, almost correctly rounded."""
    q = quotient_pair(b, n, d)
    return q.hi + q.lo


def root_pair(b: Builder, x: Value, lo: Value | None = None) -> Pair:
    """√(x + lo) for a normal or zero x: the rounded root, and its error to 4 %."""
    root = b.sqrt(x)
    remainder = b.fma(-root, root, x)
    if lo is not None:
        remainder = remainder + lo
    # 1 / (2 √x): halving and negating the exponent in the bits, with a constant that spreads the error evenly.
    magic = pick(x, 0x5EB759DF, 0x5FD6EB50C7B537A9)
    return Pair(root, remainder * from_bits(b, magic - (to_bits(b, x) >> 1)))


# ---- bits ----


def at_most(b: Builder, x: Value, limit: float) -> Value:
    """The smaller of x and limit; NaN stays."""
    return b.choose(b.like(x, limit) < x, limit, x)


def at_least(b: Builder, x: Value, limit: float) -> Value:
    """The larger of x and limit; NaN stays."""
    return b.choose(b.like(x, limit) > x, limit, x)


def rough_inverse(b: Builder, x: Value) -> Value:
    """1 / x to 13 %, for positive normal x: negates the exponent in the bits. Enough for a term that corrects the last
    digit."""
    return from_bits(b, pick(x, 0x7EF311C7, 0x7FDE623822FC16E6) - to_bits(b, x))


def to_bits(b: Builder, x: Value) -> Value:
    return b.bitcast(x, format_of(x).bits)


def from_bits(b: Builder, bits: Value) -> Value:
    return b.bitcast(bits, dt.float64 if bits.dtype.size == 8 else dt.float32)


def is_negative(b: Builder, x: Value) -> Value:
    """The sign bit, which -0.0 and some NaNs have too."""
    return (to_bits(b, x) >> (x.dtype.bits - 1)).ne(0)


def inverse_power(b: Builder, size: Value) -> Value:
    """A power of two that brings numbers of this size near 1; it is not the inverse of the largest ones, nor of those
    that are short of digits."""
    form = format_of(size)
    most = 2 * form.bias
    exponent = to_bits(b, size) >> form.shift
    return from_bits(b, b.choose(exponent < most, most - exponent, 1) << form.shift)
