"""Truncation, and division with a whole quotient: floor division, and the remainder with the sign of the divisor.

Integers follow one rule for every divisor, 0 included: x == y * (x // y) + x % y, with x // 0 == 0. Nothing traps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.graph.node import Node
from weft.lazy import lazy
from weft.llvm.builder import Builder, Value
from weft.primitives.base import Elementwise, bind, full_like
from weft.primitives.elementwise import BITS, REALS, Partials, Rint, Stepwise, samples

if TYPE_CHECKING:
    from weft.codegen.math import basics
else:
    basics = lazy("weft.codegen.math.basics")


class Trunc(Stepwise):
    """The nearest integer towards zero."""

    dtypes = dt.FLOATS
    reference = staticmethod(np.trunc)

    def emit(self, b: Builder, x: Any) -> Any:
        return b.trunc(x)


class FloorDivide(Stepwise):
    """The quotient of integers rounded down; 0 where the divisor is 0. (Floats take two operations: divide, floor.)"""

    samples = samples((-20, 20), (1, 7), smooth=False)
    dtypes = BITS
    cost = 30

    def reference(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if x.dtype == np.bool_:
            return x & y
        zero = y == 0
        return np.where(zero, 0, np.floor_divide(x, np.where(zero, 1, y).astype(y.dtype))).astype(x.dtype)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        if x.dtype.is_bool:
            return x & y
        quotient = b.int_divide(x, y)
        if x.dtype.kind == "u":
            return quotient
        rest = x - quotient * y
        return b.choose(_astray(rest, y) & y.ne(0), quotient - 1, quotient)


class Remainder(Elementwise):
    """x - y * floor(x / y), computed exactly: the sign is that of y. x % 0 is x for integers, NaN for floats."""

    samples = samples((-3.0, 3.0), (0.5, 3.0))
    dtypes = REALS
    cost = 30

    def reference(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if x.dtype == np.bool_:
            return x & ~y
        if x.dtype.kind == "f":
            return np.remainder(x, y)
        zero = y == 0
        return np.where(zero, x, np.remainder(x, np.where(zero, 1, y).astype(y.dtype)))

    def partials(self, out: Node, x: Node, y: Node) -> Partials:
        if x.dtype.is_float:
            return full_like(out, 1), -bind(Rint(), (x - out) / y)
        quotient = bind(FloorDivide(), x, y)
        return full_like(out, 1), quotient if x.dtype.is_bool else -quotient

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        if x.dtype.is_bool:
            return x & ~y
        if x.dtype.is_float:
            rest = truncated_remainder(b, x, y)
            zero = b.copysign(b.like(x, 0.0), y)
            return b.choose(_astray(rest, y), rest + y, b.choose(rest.eq(0.0), zero, rest))
        rest = b.int_divide(x, y, remainder=True)
        if x.dtype.kind == "i":
            rest = b.choose(_astray(rest, y), rest + y, rest)
        return b.choose(y.eq(0), x, rest)


def _astray(rest: Value, y: Value) -> Value:
    """Whether a remainder is not 0 and has not the sign of the divisor."""
    return rest.ne(0) & ((rest < 0) ^ (y < 0))


# ---- the remainder of floats ----


def truncated_remainder(b: Builder, x: Value, y: Value) -> Value:
    """x - y * trunc(x / y), exactly, for any finite x and any y: NaN where x is infinite or y is 0."""
    fmt = basics.format_of(x)
    dividend, divisor = b.abs(x), b.abs(y)
    ratio = dividend / divisor
    rest = _reduced(b, dividend, divisor, ratio)
    far = (ratio >= 2.0 ** (fmt.digits - 1)) & (dividend < np.inf) & (divisor > 0.0)

    def by_steps() -> tuple[Value]:
        return (b.choose(far, _long_division(b, dividend, divisor), rest),)

    (rest,) = b.rarely(b.any(far), (rest,), by_steps)
    rest = b.choose(divisor.eq(np.inf) & (dividend < np.inf), dividend, rest)
    return b.copysign(rest, x)


def _reduced(b: Builder, dividend: Value, divisor: Value, ratio: Value) -> Value:
    """dividend - divisor * trunc(ratio), where the rounded ratio is a whole number below 2**digits or has a fraction.

    Everything is a multiple of the divisor's last place, so the fused product is exact; the ratio may have been rounded
    up to the next integer.
    """
    rest = b.fma(-b.trunc(ratio), divisor, dividend)
    return b.choose(rest < 0.0, rest + divisor, rest)


def _long_division(b: Builder, dividend: Value, divisor: Value) -> Value:
    """The remainder, digits - 2 bits of the quotient at a time: each step divides by the divisor shifted up."""
    fmt = basics.format_of(dividend)
    width = fmt.digits - 2
    steps = (2 * fmt.bias + fmt.digits) // width + 1
    lowest = _exponent(b, divisor)
    with b.loop(0, steps, 1, dividend) as loop:
        (rest,) = loop.carried
        gap = _exponent(b, rest) - lowest - width
        shifted = _scaled(b, divisor, b.choose(gap > 0, gap, 0))
        loop.carry(_reduced(b, rest, shifted, rest / shifted))
    (rest,) = loop.carried
    return rest


def _exponent(b: Builder, x: Value) -> Value:
    """The exponent of a positive number as a signed integer, that of a subnormal one included."""
    fmt = basics.format_of(x)
    signed = dt.int64 if x.dtype is dt.float64 else dt.int32
    small = x < fmt.tiny
    normal = b.choose(small, x * 2.0**fmt.digits, x)
    field = b.bitcast(basics.to_bits(b, normal) >> fmt.shift, signed) - fmt.bias
    return b.choose(small, field - fmt.digits, field)


def _scaled(b: Builder, x: Value, exponent: Value) -> Value:
    """x * 2**exponent for an exponent of 0 or more, in two steps because 2**exponent may be out of range."""
    half = exponent >> 1
    return x * _power_of_two(b, x, half) * _power_of_two(b, x, exponent - half)


def _power_of_two(b: Builder, like: Value, exponent: Value) -> Value:
    fmt = basics.format_of(like)
    return basics.from_bits(b, b.bitcast(exponent + fmt.bias, fmt.bits) << fmt.shift)
