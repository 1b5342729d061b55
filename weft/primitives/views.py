"""Views: the same elements in another arrangement. A view never moves data: it changes how its operand is indexed.

All but Reshape are index maps (`AxisMap` per operand axis), so any composition of them is again one; Reshape is
resolved against the memory layout, and copies only where no strides can express it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.graph.dims import provably_equal, same_shape
from weft.graph.node import ArrayType, Node, Shape, Size, kind_of
from weft.primitives.base import (
    OPERATORS,
    AxisMap,
    IndexMap,
    KernelOperation,
    Linear,
    Sample,
    View,
    bind,
    move_batch_to_front,
    zeros,
)
from weft.primitives.checks import check_axes, check_shape, check_slice, need
from weft.primitives.elementwise import draw


def _sample(operand: tuple[int, ...], /, **params: object) -> Sample:
    return Sample(lambda rng, dtype: [draw(rng, dtype, operand)], params)


class Transpose(View):
    """Axes in another order: result axis i is operand axis order[i]."""

    order: tuple[int, ...]
    samples = (
        _sample((2, 3, 5), order=(2, 0, 1)),
        _sample((4, 6), order=(1, 0)),
        _sample((), order=()),
        _sample((3, 0), order=(1, 0)),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(tuple(kinds[0].shape[i] for i in self.order), kinds[0].dtype)

    def check(self, x: ArrayType) -> None:
        need(sorted(self.order) == list(range(x.ndim)), f"order {self.order} of {x.ndim} axes")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.transpose(values[0], self.order)

    def index_map(self, kind: ArrayType) -> IndexMap:
        return tuple(AxisMap(self.order.index(k)) for k in range(kind.ndim))

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        return transpose(cotangent, tuple(self.order.index(k) for k in range(len(self.order))))

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = move_batch_to_front(inputs[0], axes[0], size)
        return transpose(front, (0, *(i + 1 for i in self.order))), 0


class Slice(View):
    """`sizes[i]` elements along axis i, from `starts[i]` in steps of `steps[i]` (any sign, not 0)."""

    starts: tuple[Size, ...]
    sizes: Shape
    steps: tuple[Size, ...]
    samples = (
        _sample((7, 5), starts=(1, 0), sizes=(3, 5), steps=(2, 1)),
        _sample((7, 5), starts=(6, 4), sizes=(7, 3), steps=(-1, -2)),
        _sample((4,), starts=(2,), sizes=(0,), steps=(1,)),
        _sample((), starts=(), sizes=(), steps=()),
        _sample((0, 4), starts=(0, 3), sizes=(0, 4), steps=(1, -1)),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(self.sizes, kinds[0].dtype)

    def check(self, x: ArrayType) -> None:
        check_slice(x.shape, self.starts, self.sizes, self.steps)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        index = [
            start + step * np.arange(int(n)) for start, n, step in zip(self.starts, self.sizes, self.steps, strict=True)
        ]
        return x[np.ix_(*index)] if index else x

    def index_map(self, kind: ArrayType) -> IndexMap:
        return tuple(
            AxisMap(i, start, step) for i, (start, step) in enumerate(zip(self.starts, self.steps, strict=True))
        )

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        base = zeros(kind_of(primals[0].shape, cotangent.dtype))
        return bind(SliceUpdate(self.starts, self.steps), base, cotangent)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = move_batch_to_front(inputs[0], axes[0], size)
        return bind(Slice((0, *self.starts), (size, *self.sizes), (1, *self.steps)), front), 0


class Broadcast(View):
    """Operand axis k becomes result axis axes[k], repeated where its size is 1; other result axes are repetitions."""

    shape: Shape
    axes: tuple[int, ...]
    samples = (
        _sample((5,), shape=(3, 5), axes=(1,)),
        _sample((4, 1), shape=(4, 6), axes=(0, 1)),
        _sample((), shape=(2, 3), axes=()),
        _sample((3,), shape=(3, 0), axes=(0,)),
        _sample((0,), shape=(2, 0), axes=(1,)),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(self.shape, kinds[0].dtype)

    def check(self, x: ArrayType) -> None:
        check_shape(self.shape)
        need(len(self.axes) == x.ndim, f"{len(self.axes)} axes for the {x.ndim} of its operand")
        check_axes(self.axes, len(self.shape))
        for n, axis in zip(x.shape, self.axes, strict=True):
            need(provably_equal(n, 1) or n == self.shape[axis], f"{x} does not fit the shape that it is repeated in")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        sizes = [1] * len(self.shape)
        for k, axis in enumerate(self.axes):
            sizes[axis] = x.shape[k]
        return np.broadcast_to(x.reshape(sizes), tuple(map(int, self.shape)))

    def index_map(self, kind: ArrayType) -> IndexMap:
        return tuple(
            AxisMap(None if provably_equal(n, 1) else axis) for n, axis in zip(kind.shape, self.axes, strict=True)
        )

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        shape = primals[0].shape
        # What repeats a computed size was guarded to be 1, where it is.
        kept = {
            axis
            for n, axis in zip(shape, self.axes, strict=True)
            if not provably_equal(n, 1) or provably_equal(self.shape[axis], 1)
        }
        summed = OPERATORS["sum"](cotangent, tuple(i for i in range(len(self.shape)) if i not in kept))
        return reshape(OPERATORS["astype"](summed, cotangent.dtype), shape)  # sums of flags are integers

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = move_batch_to_front(inputs[0], axes[0], size)
        return bind(Broadcast((size, *self.shape), (0, *(a + 1 for a in self.axes))), front), 0


class Reshape(View):
    """The elements in row-major order, in another shape of as many elements."""

    shape: Shape
    samples = (
        _sample((4, 6), shape=(2, 3, 4)),
        _sample((2, 3, 4), shape=(24,)),
        _sample((1, 1), shape=()),
        _sample((), shape=(1, 1)),
        _sample((0, 4), shape=(3, 0)),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(self.shape, kinds[0].dtype)

    def check(self, x: ArrayType) -> None:
        check_shape(self.shape)
        need(kind_of(self.shape, x.dtype).size == x.size, f"{x} has another number of elements")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return values[0].reshape(self.shape)

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        return reshape(cotangent, primals[0].shape)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = move_batch_to_front(inputs[0], axes[0], size)
        return reshape(front, (size, *self.shape)), 0


class SliceUpdate(Linear, KernelOperation):
    """The first operand with the second written over the slice that begins at `starts` and goes in `steps`."""

    starts: tuple[Size, ...]
    steps: tuple[Size, ...]
    moves = (0, 1)
    linear = (0, 1)
    overwrites = (0,)
    samples = tuple(
        Sample(
            lambda rng, dtype, base=base, part=part: [draw(rng, dtype, base), draw(rng, dtype, part)],  # type: ignore[misc]
            {"starts": starts, "steps": steps},
        )
        for base, part, starts, steps in (
            ((7, 5), (3, 5), (1, 0), (2, 1)),
            ((7, 5), (7, 3), (6, 4), (-1, -2)),
            ((4,), (0,), (2,), (1,)),
            ((0, 3), (0, 2), (0, 1), (1, 1)),
            ((), (), (), ()),
        )
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def reordered(self, order: tuple[int, ...]) -> SliceUpdate:
        return SliceUpdate(tuple(self.starts[axis] for axis in order), tuple(self.steps[axis] for axis in order))

    def check(self, x: ArrayType, part: ArrayType) -> None:
        self.check_dtypes(x, part)
        check_slice(x.shape, self.starts, part.shape, self.steps)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        base, part = values
        result = np.array(base, copy=True)
        index = [
            start + step * np.arange(n) for start, n, step in zip(self.starts, part.shape, self.steps, strict=True)
        ]
        if index:
            result[np.ix_(*index)] = part
            return result
        return part

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        part = primals[1]
        if position == 1:
            return bind(Slice(self.starts, part.shape, self.steps), cotangent)
        return bind(self, cotangent, zeros(kind_of(part.shape, cotangent.dtype)))

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        base, part = (move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True))
        return bind(SliceUpdate((0, *self.starts), (1, *self.steps)), base, part), 0


class Contiguous(Linear, KernelOperation):
    """The operand in row-major order in memory (or, if `allow_col_major`, in column-major order where it is already): a
    copy, unless it lies so."""

    allow_col_major: bool
    cancels = False
    moves = (0,)
    overwrites = (0,)
    samples = tuple(
        Sample(lambda rng, dtype, shape=shape: [draw(rng, dtype, shape)], {"allow_col_major": either}, name=name)  # type: ignore[misc]
        for name, shape, either in (
            ("matrix", (3, 37), False),
            ("cube", (2, 3, 4), True),
            ("scalar", (), False),
            ("empty", (0, 4), True),
        )
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def check(self, x: ArrayType) -> None:
        self.check_dtypes(x)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.array(values[0], order="C", copy=True)

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        return cotangent

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, move_batch_to_front(inputs[0], axes[0], size)), 0


# ---- node functions, for rules ----


def transpose(x: Node, order: tuple[int, ...]) -> Node:
    return x if order == tuple(range(x.ndim)) else bind(Transpose(order), x)


def reshape(x: Node, shape: Shape) -> Node:
    return x if same_shape(x.shape, shape) else bind(Reshape(shape), x)


def broadcast_front(x: Node, size: Size) -> Node:
    """A new first axis of `size` repetitions."""
    return bind(Broadcast((size, *x.shape), tuple(range(1, x.ndim + 1))), x)


def restore_axes(x: Node, shape: Shape, axes: Sequence[int]) -> Node:
    """Undo a reduction of `shape` along `axes`: the reduced value repeated along them."""
    kept = tuple(i for i in range(len(shape)) if i not in axes)
    return bind(Broadcast(shape, kept), x)
