"""Derivatives of integers and bools: those of the operation on reals, converted. Formulas that multiply and add serve
every dtype as they are; here is what to do about those that divide."""

from __future__ import annotations

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.base import bind, full_like
from weft.primitives.bits import UNSIGNED, Bitcast
from weft.primitives.elementwise import (
    BitwiseAnd,
    LeftShift,
    Minimum,
    NotEqual,
    RightShift,
    astype,
    less,
)
from weft.primitives.rounding import FloorDivide


def shared(x: Node, count: Node, dtype: Dtype) -> Node:
    """x / count, converted to `dtype`: integers are truncated, a bool is whether anything is left. Operands of integers
    are wide enough for the count."""
    if dtype.is_inexact:
        return x / count
    if dtype.is_bool:
        return astype(x, dtype)
    quotient = bind(FloorDivide(), x, count)
    left_over = bind(NotEqual(), quotient * count, x)
    up = bind(BitwiseAnd(), left_over, less(x, full_like(x, 0)))
    return astype(quotient + astype(up, x.dtype), dtype)


class Factors:
    """Integers that are not 0 as products of an odd number and a power of 2. Odd numbers have inverses, modulo 2 to the
    number of bits: so what is left of a product without one of its factors is known exactly, also where the product
    has wrapped."""

    __slots__ = ("odd", "twos")

    def __init__(self, x: Node) -> None:
        lowest = astype(bind(BitwiseAnd(), x, full_like(x, 0) - x), UNSIGNED[x.dtype.size])
        exponent = bind(Bitcast(dt.int32), astype(lowest, dt.float32))  # of a power of 2, all that is there
        self.twos = bind(RightShift(), exponent, full_like(exponent, 23)) - full_like(exponent, 127)
        """The power of 2 (int32)."""
        self.odd = bind(RightShift(), x, astype(self.twos, x.dtype))

    def left_of(self, odd: Node, twos: Node) -> Node:
        """What is left, without these factors, of products whose odd parts and powers of 2 are given."""
        rest = twos - self.twos
        most = full_like(rest, self.odd.dtype.bits)  # past which nothing is left, whatever the dtype can count to
        rest = bind(Minimum(), rest, most)
        return bind(LeftShift(), odd * self._inverse(), astype(rest, odd.dtype))

    def _inverse(self) -> Node:
        """Newton's method: the odd number is its own inverse modulo 8, and every step doubles the bits."""
        found, two = self.odd, full_like(self.odd, 2)
        bits = 3
        while bits < self.odd.dtype.bits:
            found = found * (two - self.odd * found)
            bits *= 2
        return found
