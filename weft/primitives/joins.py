"""Joins and repetitions: several arrays, or one several times, become one."""

from __future__ import annotations

import sys

import numpy as np

from weft.graph.node import ArrayType, Node, Shape, Size, kind_of
from weft.primitives.base import ByOperand, KernelOperation, Linear, Sample, bind, move_batch_to_front, zeros
from weft.primitives.checks import check_axis, equal_shapes, need
from weft.primitives.elementwise import astype, draw
from weft.primitives.reductions import sum_over
from weft.primitives.views import Slice, reshape


class Concatenate(KernelOperation):
    """The operands one after the other along `axis`; all other sizes agree. Its transpose cuts the cotangent up."""

    axis: int
    moves = range(sys.maxsize)
    samples = tuple(
        Sample(
            lambda rng, dtype, shapes=shapes: [draw(rng, dtype, shape) for shape in shapes],  # type: ignore[misc]
            {"axis": axis},
            name=name,
        )
        for name, axis, shapes in (
            ("rows", 0, ((3, 5), (1, 5), (4, 5))),
            ("columns", 1, ((3, 21), (3, 2))),
            ("middle", 1, ((2, 3, 4), (2, 1, 4), (2, 0, 4))),
            ("vector", 0, ((7,), (40,))),
            ("one", 0, ((3, 4),)),
            ("empty", 1, ((0, 2), (0, 3))),
        )
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        shape = list(kinds[0].shape)
        for kind in kinds[1:]:
            shape[self.axis] = shape[self.axis] + kind.shape[self.axis]
        return kind_of(tuple(shape), kinds[0].dtype)

    def reordered(self, order: tuple[int, ...]) -> Concatenate:
        return Concatenate(order.index(self.axis))

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) >= 1, "no operands")
        self.check_dtypes(*kinds)
        check_axis(self.axis, kinds[0].ndim)

        def others(kind: ArrayType) -> Shape:
            return (*kind.shape[: self.axis], *kind.shape[self.axis + 1 :])

        need(all(kind.ndim == kinds[0].ndim for kind in kinds), "operands of different numbers of axes")
        fits = all(equal_shapes(others(kinds[0]), others(kind)) for kind in kinds)
        need(fits, "operands that differ along other axes")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.concatenate(values, self.axis)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return bind(self, *(tangents[i] if i in tangents else zeros(x.kind) for i, x in enumerate(primals)))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        found: dict[int, Node] = {}
        at: Size = 0
        for position, x in enumerate(primals):
            if position in wanted:
                starts = tuple(at if a == self.axis else 0 for a in range(x.ndim))
                found[position] = bind(Slice(starts, x.shape, (1,) * x.ndim), cotangent)
            at = at + x.shape[self.axis]
        return found

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]
        return bind(Concatenate(self.axis + 1), *front), 0


class Repeat(Linear, KernelOperation):
    """Every element of the last axis `count` times in a row. Its transpose adds them up.

    A broadcast says the same without moving anything, but what reads it then walks an axis of `count` elements, which
    is slow where that is the innermost one and short.
    """

    count: int
    cancels = False
    moves = (0,)
    samples = tuple(
        Sample(lambda rng, dtype, shape=shape: [draw(rng, dtype, shape)], {"count": count}, name=name)  # type: ignore[misc]
        for name, shape, count in (
            ("pairs", (3, 37), 2),
            ("triples", (90,), 3),
            ("many", (2, 3, 21), 16),
            ("once", (5, 4), 1),
            ("single", (6, 1), 5),
            ("empty", (0, 4), 2),
            ("none", (3, 0), 2),
        )
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        *before, n = kinds[0].shape
        return kind_of((*before, n * self.count), kinds[0].dtype)

    def check(self, x: ArrayType) -> None:
        self.check_dtypes(x)
        need(x.ndim >= 1 and self.count >= 1, f"{self.count} repetitions of {x}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.repeat(values[0], self.count, -1)

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        (x,) = primals
        return astype(sum_over(reshape(cotangent, (*x.shape, self.count)), (x.ndim,)), x.dtype)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, move_batch_to_front(inputs[0], axes[0], size)), 0
