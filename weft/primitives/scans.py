"""Scans: running sums, products, extremes along an axis, and the recurrence that their derivatives are made of.

The order is the sequential one: each element of the result is one step, with one rounding per operation, from the one before it. float16 and
bfloat16 are carried in float32 and rounded where they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.codegen import moves
from weft.codegen.builder import Builder
from weft.codegen.launch import Layout, Lowering
from weft.dtypes import Dtype
from weft.graph.node import Kind, Node, Size
from weft.primitives.base import Opaque, Sample, bind, move_batch_to_front
from weft.primitives.elementwise import draw


def _samples(smooth: bool = True, low: float = -3.0, high: float = 3.0) -> tuple[Sample, ...]:
    cases = {
        "rows": ((21, 37), 1, False, False), "columns": ((9, 150), 0, False, False), "middle": ((2, 5, 4), 1, True, False),
        "vector": ((40,), 0, False, True), "back": ((5, 19), 1, True, True), "empty": ((0, 4), 0, False, False),
    }  # fmt: skip
    return tuple(
        Sample(
            lambda rng, dtype, shape=shape: [draw(rng, dtype, shape, low, high)],  # type: ignore[misc]
            {"axis": axis, "reverse": reverse, "exclusive": exclusive}, smooth, name,
        )
        for name, (shape, axis, reverse, exclusive) in cases.items()
    )  # fmt: skip


class Scan(Opaque):
    """y[j] = combine(y[j - 1], x[j]) along `axis`, from its end if `reverse`; `exclusive` stores the value before the step.

    Writes `identity`, `combine`, `ufunc`, `jvp` and `vjp`.
    """

    axis: int
    reverse: bool = False
    exclusive: bool = False
    cost: ClassVar[int] = 1
    ufunc: ClassVar[np.ufunc]
    """The step in NumPy, which accumulates in order too."""

    def accumulator(self, dtype: Dtype) -> Dtype:
        return dt.float32 if dtype in dt.HALVES else dtype

    def identity(self, dtype: Dtype, exclusive: bool) -> Any:
        """What stands before the first element; the first result of an exclusive scan."""
        raise NotImplementedError

    def combine(self, b: Builder, carry: Any, *xs: Any) -> Any:
        """Code of one step."""
        raise NotImplementedError

    def infer(self, *kinds: Kind) -> Kind:
        return kinds[0]

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x = values[0]
        dtype = dt.from_numpy(x.dtype)
        wide = self.accumulator(dtype)
        x = x.astype(wide.np)
        if self.reverse:
            x = np.flip(x, self.axis)
        if self.exclusive:
            first = np.full_like(x.take([0] if x.shape[self.axis] else [], self.axis), self.identity(wide, True))
            x = np.concatenate([first, x], self.axis).take(range(x.shape[self.axis]), self.axis)
        y = self.ufunc.accumulate(x, self.axis, dtype=wide.np).astype(dtype.np)
        return np.flip(y, self.axis) if self.reverse else y

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]
        return bind(type(self)(self.axis + 1, self.reverse, self.exclusive), *front), 0

    def lower(self, operands: Sequence[Layout], out: Layout) -> Lowering:
        return moves.scan(type(self)(0), operands, out, self.axis, self.reverse, self.exclusive, self.cost)

    def reversed(self) -> Scan:
        """The same scan from the other end."""
        return type(self)(self.axis, not self.reverse, self.exclusive)


class CumSum(Scan):
    """Running sums; the transpose is the running sum from the other end."""

    samples = _samples()
    dtypes = tuple(d for d in dt.ALL if not d.is_bool)
    ufunc = np.add

    def identity(self, dtype: Dtype, exclusive: bool) -> Any:
        zero = 0.0 if exclusive else -0.0  # x + -0.0 is x for every x
        return complex(zero, zero) if dtype.is_complex else zero if dtype.is_float else 0

    def combine(self, b: Builder, carry: Any, *xs: Any) -> Any:
        return carry + xs[0]

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: Any) -> Node | None:
        return bind(self, tangents[0]) if out.dtype.is_inexact else None

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> Any:
        return {0: bind(self.reversed(), cotangent)} if out.dtype.is_inexact else {}
