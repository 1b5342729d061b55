"""Scans: running sums, products, extremes along an axis, and the recurrence that their derivatives are made of.

The order is the sequential one: each element of the result is one step from the one before it, with one rounding per
operation. float16 and bfloat16 are carried in float32 and rounded where they are stored; running sums of float32 in
float64.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.dims import is_now
from weft.graph.node import ArrayType, Node, Size
from weft.llvm.builder import Builder
from weft.primitives.base import (
    ByOperand,
    Elementwise,
    KernelOperation,
    Sample,
    bind,
    constant,
    full_like,
    move_batch_to_front,
    zeros,
)
from weft.primitives.checks import check_axis, equal_shapes, need
from weft.primitives.elementwise import (
    INEXACT,
    NUMBERS,
    Add,
    BitwiseAnd,
    BitwiseInvert,
    BitwiseOr,
    GreaterEqual,
    IsNan,
    LessEqual,
    Maximum,
    Minimum,
    Multiply,
    astype,
    conjugate,
    draw,
    equal,
    select,
)
from weft.primitives.logarithms import LogAddExp
from weft.primitives.reductions import largest, smallest
from weft.primitives.views import Slice, SliceUpdate


def _samples(
    operands: int = 1, low: float = -3.0, high: float = 3.0, exclusive: bool = True, finite: bool = True
) -> tuple[Sample, ...]:
    """Where the value before the first element is not finite, finite differences cannot check exclusive scans."""
    cases = {
        "rows": ((21, 37), 1, False, False),
        "columns": ((9, 150), 0, False, False),
        "middle": ((2, 5, 4), 1, True, False),
        "vector": ((40,), 0, False, True),
        "back": ((5, 19), 1, True, True),
        "empty": ((0, 4), 0, False, False),
    }
    return tuple(
        Sample(
            lambda rng, dtype, shape=shape: [draw(rng, dtype, shape, low, high) for _ in range(operands)],  # type: ignore[misc]
            {"axis": axis, "reverse": back} | ({"exclusive": before} if exclusive else {}),
            finite or not before,
            name,
        )
        for name, (shape, axis, back, before) in cases.items()
    )


class Scan(KernelOperation):
    """y[j] = combine(y[j - 1], x[j], …) along `axis`, from its end if `reverse`. Writes `identity` and `combine`."""

    axis: int
    reverse: bool = False
    cost: ClassVar[int] = 1
    arity: ClassVar[int] = 1
    associates: ClassVar[bool] = False
    """Whether `combine` of neighbours first, then of what they made, is the same for integers."""

    def accumulator(self, dtype: Dtype) -> Dtype:
        return dt.float32 if dtype in dt.HALVES else dtype

    def identity(self, dtype: Dtype, exclusive: bool) -> Any:
        """What stands before the first element; the first result of an exclusive scan."""
        raise NotImplementedError

    def combine(self, b: Builder, carry: Any, *xs: Any) -> Any:
        """Code of one step."""
        raise NotImplementedError

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == self.arity, f"{len(kinds)} operands, and it has {self.arity}")
        self.check_dtypes(*kinds)
        need(all(equal_shapes(kinds[0].shape, kind.shape) for kind in kinds), "operands of different shapes")
        check_axis(self.axis, kinds[0].ndim)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]
        return bind(self.along(self.axis + 1), *front), 0

    def along(self, axis: int) -> Scan:
        """The same scan along another axis."""
        return type(self)(axis, self.reverse)


def shift(x: Node, axis: int, reverse: bool) -> Node:
    """Every element one step further along a scan, with 0 at its start. The transpose goes the other way."""
    n = x.shape[axis]
    if is_now(n, 0):
        return x
    to, since = (0, 1) if reverse else (1, 0)
    sizes = tuple(n - 1 if a == axis else m for a, m in enumerate(x.shape))
    ones = (1,) * x.ndim
    part = bind(Slice(tuple(since if a == axis else 0 for a in range(x.ndim)), sizes, ones), x)
    return bind(SliceUpdate(tuple(to if a == axis else 0 for a in range(x.ndim)), ones), zeros(x.kind), part)


class Recurrence(Scan):
    """y[j] = a[j] * y[j - 1] + b[j], from y = 0: two roundings a step. Tangents of the scans below obey it."""

    arity = 2
    samples = _samples(2, -1.2, 1.2, exclusive=False)
    cancels = True
    tolerance = {dt.complex64: 16, dt.complex128: 16}

    def identity(self, dtype: Dtype, exclusive: bool) -> Any:
        return 0j if dtype.is_complex else 0.0 if dtype.is_float else 0

    def combine(self, b: Builder, carry: Any, *xs: Any) -> Any:
        return Add().emit(b, Multiply().emit(b, xs[0], carry), xs[1])

    def reference(self, *values: np.ndarray) -> np.ndarray:
        wide = self.accumulator(dt.from_numpy(values[0].dtype)).np
        a, b = (np.moveaxis(x.astype(wide), self.axis, 0) for x in values)
        y, carry = np.empty_like(b), np.zeros(b.shape[1:], wide)
        for j in range(len(b) - 1, -1, -1) if self.reverse else range(len(b)):
            y[j] = carry = a[j] * carry + b[j]
        return np.moveaxis(y, 0, self.axis).astype(values[0].dtype)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        if 0 not in tangents:
            return bind(self, primals[0], tangents[1])
        moved = tangents[0] * shift(out, self.axis, self.reverse)
        return bind(self, primals[0], moved + tangents[1] if 1 in tangents else moved)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        found = self.transposed(primals[0], cotangent)
        both = {0: lambda: found * conjugate(shift(out, self.axis, self.reverse)), 1: lambda: found}
        return {position: both[position]() for position in sorted(wanted)}

    def transposed(self, a: Node, cotangent: Node) -> Node:
        """The cotangent of b: the recurrence from the other end, whose factors come one step earlier."""
        back = not self.reverse
        return bind(Recurrence(self.axis, back), conjugate(shift(a, self.axis, back)), cotangent)


class Cumulative(Scan):
    """A running combination by an elementwise operation; `exclusive` stores the value before each step.

    Writes `op`, `identity` and `weights`: the tangent t of the result obeys t[j] = a[j] * t[j - 1] + b[j] * (tangent
    of x[j]).
    """

    exclusive: bool = False
    op: ClassVar[Elementwise]
    associates = True

    def along(self, axis: int) -> Scan:
        return type(self)(axis, self.reverse, self.exclusive)

    def combine(self, b: Builder, carry: Any, *xs: Any) -> Any:
        return self.op.emit(b, carry, xs[0])

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x = values[0]
        wide = self.accumulator(dt.from_numpy(x.dtype))
        y = np.flip(x, self.axis) if self.reverse else x
        y = y.astype(wide.np)
        if self.exclusive and x.shape[self.axis]:
            first = np.full_like(y.take([0], self.axis), self.identity(wide, True))
            y = np.concatenate([first, y.take(range(x.shape[self.axis] - 1), self.axis)], self.axis)
        y = self.accumulate(y).astype(x.dtype)
        return np.flip(y, self.axis) if self.reverse else y

    def accumulate(self, x: np.ndarray) -> np.ndarray:
        """The scan of the reference, in the dtype of x."""
        return self.op.reference.accumulate(x, self.axis, dtype=x.dtype)  # type: ignore[attr-defined, no-any-return]

    def weights(self, x: Node, before: Node) -> tuple[Node, Node]:
        """(a, b) of the tangent; `before` is the exclusive scan of x."""
        raise NotImplementedError

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        a, b = self._weights(primals[0])
        tangent = bind(Recurrence(self.axis, self.reverse), a, b * tangents[0])
        return shift(tangent, self.axis, self.reverse) if self.exclusive else tangent

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        a, b = self._weights(primals[0])
        if self.exclusive:
            cotangent = shift(cotangent, self.axis, not self.reverse)
        return {0: conjugate(b) * Recurrence(self.axis, self.reverse).transposed(a, cotangent)}

    def _weights(self, x: Node) -> tuple[Node, Node]:
        return self.weights(x, bind(type(self)(self.axis, self.reverse, True), x))


class CumSum(Cumulative):
    """Running sums; the transpose is the running sum from the other end."""

    samples = _samples()
    dtypes = NUMBERS
    op = Add()

    def accumulator(self, dtype: Dtype) -> Dtype:
        """Twice the digits: in its own, the running sum of 2**24 ones in float32 would stand still from there on."""
        wider = {dt.float32: dt.float64, dt.complex64: dt.complex128}
        return wider.get(dtype) or super().accumulator(dtype)

    def identity(self, dtype: Dtype, exclusive: bool) -> Any:
        zero = 0.0 if exclusive else -0.0  # x + -0.0 is x for every x
        return complex(zero, zero) if dtype.is_complex else zero if dtype.is_float else 0

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return bind(self, tangents[0])

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        back = CumSum(self.axis, not self.reverse, self.exclusive)
        return {0: bind(back, cotangent)}


class CumProd(Cumulative):
    """Running products. The derivative divides by nothing, so zeros are like all other numbers."""

    samples = (
        *_samples(1, 0.5, 1.5),
        Sample(lambda rng, dtype: [rng.integers(0, 3, (3, 20)).astype(dtype.np)], {"axis": 1}, name="zeros"),
    )
    op = Multiply()
    tolerance = {dt.complex64: 64, dt.complex128: 64}

    def identity(self, dtype: Dtype, exclusive: bool) -> Any:
        return 1 + 0j if dtype.is_complex else True if dtype.is_bool else 1

    def weights(self, x: Node, before: Node) -> tuple[Node, Node]:
        return x, before


class CumExtremum(Cumulative):
    """Running maxima and minima: NaN from the first NaN on. Of equal elements the latest has the gradient. Complex
    numbers go by their real parts, then by their imaginary parts."""

    samples = _samples(finite=False)
    at_least: ClassVar[Elementwise]

    def weights(self, x: Node, before: Node) -> tuple[Node, Node]:
        wins = bind(self.at_least, x, before)
        if x.dtype.is_inexact:
            first_nan = bind(BitwiseAnd(), bind(IsNan(), x), bind(BitwiseInvert(), bind(IsNan(), before)))
            wins = bind(BitwiseOr(), wins, first_nan)
        wins = astype(wins, x.dtype)
        return full_like(x, 1) - wins, wins


class CumMax(CumExtremum):
    """Running maxima."""

    op, at_least = Maximum(), GreaterEqual()

    def identity(self, dtype: Dtype, exclusive: bool) -> Any:
        return smallest(dtype)


class CumMin(CumExtremum):
    """Running minima."""

    op, at_least = Minimum(), LessEqual()

    def identity(self, dtype: Dtype, exclusive: bool) -> Any:
        return largest(dtype)


class CumLogAddExp(Cumulative):
    """log of running sums of exponentials, without overflow. An element -inf adds nothing and has gradient 0."""

    samples = _samples(1, 0.0, 3.0, finite=False)  # a result near 0 has few correct digits, as log(x) has for x near 1
    dtypes = INEXACT
    op: ClassVar[LogAddExp] = LogAddExp()
    cost = LogAddExp.cost
    tolerance = {
        dt.float32: 32, dt.float64: 32, dt.float16: 1, dt.bfloat16: 1, dt.complex64: 512, dt.complex128: 512
    }  # fmt: skip

    def identity(self, dtype: Dtype, exclusive: bool) -> Any:
        return complex(-np.inf, 0.0) if dtype.is_complex else -np.inf

    def accumulate(self, x: np.ndarray) -> np.ndarray:
        found = np.moveaxis(x, self.axis, 0).copy()
        for j in range(1, len(found)):
            found[j] = self.op.reference(found[j - 1], found[j])
        return np.moveaxis(found, 0, self.axis)

    def weights(self, x: Node, before: Node) -> tuple[Node, Node]:
        # An element -inf adds nothing. The derivative does not look at it: there it may be NaN.
        nothing = equal(x, constant(-np.inf, x.kind))
        of_before, of_x = self.op.partials(bind(self.op, before, x), before, x)
        return select(nothing, full_like(x, 1), of_before), select(nothing, full_like(x, 0), of_x)
