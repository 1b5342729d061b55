"""x * y + z with one rounding where the processor has no instruction for it (x86-64 without FMA).

The C library has a function, but it takes one number at a time, and hundreds of nanoseconds for it. What is written
here works on whole vectors and gives the same bits. The builder comes here; kernels call its `fma`.

Both forms get an exact sum in pieces and round it to odd before it is rounded to its type: a number that stands
between two neighbours takes the one whose last bit is 1, so that the last rounding sees on which side it was
(S. Boldo, G. Melquiond: Emulation of FMA and correctly rounded sums, IEEE Transactions on Computers 57, 2008).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import dtypes as dt

if TYPE_CHECKING:
    from weft.llvm.builder import Builder, Value

_REGISTER = 16
"""Bytes. Longer vectors are arguments of a function, which the lines of a kernel share."""

# Between these no product of two parts of the factors underflows or overflows, nor the sum.
_LEAST_PRODUCT, _MOST = 2.0**-900, 2.0**990


def fused(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """x * y + z, rounded once, for operands of one type (float32 or float64) and as many lanes."""
    if x.dtype is dt.float64:
        return b.shared(f"fused.double.{x.lanes}", _double, x, y, z)
    if x.lanes * x.dtype.size <= _REGISTER:
        return _single(b, x, y, z)
    return b.shared(f"fused.single.{x.lanes}", _single, x, y, z)


def _single(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """In float64 the product of two float32 is exact, and nothing overflows or underflows."""
    product = b.cast(x, dt.float64) * b.cast(y, dt.float64)
    total, error = _sum(product, b.cast(z, dt.float64))
    return b.cast(_to_odd(b, total, error, (total * error) < 0.0), dt.float32)


def _double(b: Builder, x: Value, y: Value, z: Value) -> Value:
    """Dekker's product and two sums, which are exact for numbers that are neither too small nor too large; the C
    library's function for the others."""
    product = x * y
    zero = x.eq(0.0) | y.eq(0.0)
    usual = (b.abs(x) <= _MOST) & (b.abs(y) <= _MOST) & (b.abs(z) <= _MOST)
    usual = usual & (b.abs(product) <= _MOST) & (zero | (b.abs(product) >= _LEAST_PRODUCT))
    rest = _rest_of_product(x, y, product)
    low, low_error = _sum(z, rest)
    high, high_error = _sum(product, low)
    small, error = _sum(low_error, high_error)
    apart = (b.bitcast(small, dt.int64) ^ b.bitcast(error, dt.int64)) < 0
    near = high + _to_odd(b, small, error, apart & error.ne(0.0))
    found = b.choose(zero, product + z, near)  # which also gives the right zero
    (result,) = b.rarely(b.any(~usual), [found], lambda: [b.intrinsic("fma", x, y, z)])
    return result


def _rest_of_product(x: Value, y: Value, product: Value) -> Value:
    """x * y - product, exactly."""
    (x1, x2), (y1, y2) = _halves(x), _halves(y)
    return ((x1 * y1 - product) + x1 * y2 + x2 * y1) + x2 * y2


def _halves(x: Value) -> tuple[Value, Value]:
    """The first 26 bits of a float64 and the others."""
    far = x * (2.0**27 + 1)
    high = far - (far - x)
    return high, x - high


def _sum(x: Value, y: Value) -> tuple[Value, Value]:
    """x + y and what rounding took from it."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _to_odd(b: Builder, total: Value, error: Value, apart: Value) -> Value:
    """total + error rounded to odd; `apart`: whether there is an error, and of the other sign."""
    inexact = b.abs(error) > 0.0  # not where it is NaN, as behind an infinite total
    bits = b.bitcast(total, dt.int64) - b.cast(apart, dt.int64)
    return b.bitcast(bits | b.cast(inexact, dt.int64), dt.float64)
