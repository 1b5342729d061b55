"""Reading and writing at places that are data: gathers and scatters.

An index on an axis of n elements counts from the end if it is negative, and is then moved into [0, n): no index reads
or writes foreign memory. Updates that go to one place are taken in increasing order of their position, one rounded
operation each (float16 and bfloat16 sums and products are kept in float32 and rounded once), whatever the number of
threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.errors import BoundsError
from weft.graph.dims import is_now
from weft.graph.node import ArrayType, Node, Shape, Size, kind_of
from weft.primitives.base import (
    ByOperand,
    Discrete,
    Elementwise,
    KernelOperation,
    Linear,
    Sample,
    bind,
    full_like,
    move_batch_to_front,
    zeros,
)
from weft.primitives.checks import check_axes, check_shape, equal_shapes, need
from weft.primitives.creation import Iota
from weft.primitives.elementwise import (
    EITHER_ZERO,
    Add,
    Maximum,
    Minimum,
    Multiply,
    astype,
    conjugate,
    draw,
    equal,
    select,
)
from weft.primitives.integers import Factors, shared
from weft.primitives.reductions import sum_dtype
from weft.primitives.views import Broadcast

Where = tuple[int | None, ...]


def gathered_shape(where: Where, axes: Sequence[int], x: Shape, index: Shape) -> Shape:
    """Index sizes along `axes`, sizes of x elsewhere."""
    sizes: dict[int, Size] = {axis: n for axis, n in zip(where, x, strict=True) if axis is not None}
    sizes.update(zip(axes, index, strict=True))
    return tuple(sizes[axis] for axis in range(len(sizes)))


class Indexed(KernelOperation):
    """What gathers and scatters share: how axes of x, index arrays and axes of the gathered shape belong together.

    Axis k of x is walked along axis where[k] of the gathered shape, or, where that is None, by the next of the index
    arrays, which all have one shape and run along `axes` of the gathered shape. An axis that is in both walks x and
    the index arrays together.
    """

    where: Where
    axes: tuple[int, ...]

    def places(self, x: Sequence[int], indices: Sequence[np.ndarray], shape: Sequence[int]) -> tuple[np.ndarray, ...]:
        """The index in x of every element of the gathered shape, one array per axis of x."""
        found: list[np.ndarray] = []
        arrays = iter(indices)
        grid = np.ogrid[tuple(slice(n) for n in shape)]
        for axis, n in zip(self.where, x, strict=True):
            if axis is not None:
                found.append(np.asarray(grid[axis]))
                continue
            index = next(arrays)
            sizes = [1] * len(shape)
            for k, a in enumerate(self.axes):
                sizes[a] = index.shape[k]
            found.append(resolved(index, n).reshape(sizes))
        return tuple(np.broadcast_to(index, shape) for index in found)

    def need_elements(self, x: ArrayType) -> None:
        """An axis without elements has no place for an index."""
        for axis, n in zip(self.where, x.shape, strict=True):
            if axis is None and is_now(n, 0):
                raise IndexError(
                    f"[{self.title}] an axis of size 0 (shape {x.shape}) has no element that could be indexed."
                )

    def checked_shape(self, x: ArrayType, indices: Sequence[ArrayType]) -> Shape:
        """The gathered shape, if index arrays and parameters fit x."""
        need(len(self.where) == x.ndim, f"{len(self.where)} places for the {x.ndim} axes of its operand")
        need(1 <= len(indices) == self.where.count(None), "an index for each axis that is indexed")
        first = indices[0]
        need(all(kind.dtype.is_integer for kind in indices), "an index that is no integer")
        need(all(equal_shapes(first.shape, kind.shape) for kind in indices), "indices of different shapes")
        need(len(self.axes) == first.ndim, "an axis of the result for each axis of the indices")
        walked = [axis for axis in self.where if axis is not None]
        together = {*walked, *self.axes}
        check_axes(walked, len(together))
        check_axes(self.axes, len(together))
        for axis, n in zip(self.where, x.shape, strict=True):
            if axis in self.axes:
                need(n == first.shape[self.axes.index(axis)], "indices that go along an axis of another size")
        shape = gathered_shape(self.where, self.axes, x.shape, first.shape)
        check_shape(shape)
        return shape

    def batched(self, x: bool, indices: bool) -> Any:
        """The same with a new first axis, of x or of the indices or of both."""
        where = tuple(None if axis is None else axis + 1 for axis in self.where)
        axes = tuple(axis + 1 for axis in self.axes)
        return type(self)((0, *where) if x else where, (0, *axes) if indices else axes)


def resolved(index: np.ndarray, n: int) -> np.ndarray:
    """Places on an axis of n elements, in NumPy."""
    if index.dtype.kind == "u":
        return np.minimum(index, np.uint64(n - 1)).astype(np.int64)
    wide = index.astype(np.int64)
    return np.clip(np.where(wide < 0, wide + n, wide), 0, n - 1)


def _same_batch(nodes: Sequence[Node], axes: Sequence[int | None], size: Size) -> tuple[list[Node], bool]:
    """Index arrays (one shape): all with a first batch axis if any has one."""
    if all(axis is None for axis in axes):
        return list(nodes), False
    return [move_batch_to_front(node, axis, size) for node, axis in zip(nodes, axes, strict=True)], True


# ---- samples ----

_CASES: Mapping[str, tuple[tuple[int, ...], tuple[int, ...], Where, tuple[int, ...]]] = {
    "rows": ((7, 37), (11,), (None, 1), (0,)),
    "columns": ((5, 9), (21,), (0, None), (1,)),
    "matrix": ((6, 5), (3, 4), (None, 2), (0, 1)),
    "along": ((6, 19), (4, 19), (None, 1), (0, 1)),
    "along_last": ((6, 19), (6, 40), (0, None), (0, 1)),
    "points": ((6, 5, 3), (13,), (None, None, 1), (0,)),
    "apart": ((6, 5, 3), (4,), (None, 1, None), (0,)),
    "batch": ((3, 6, 5), (3, 4), (0, None, 2), (0, 1)),
    "scalar": ((6, 5), (), (0, None), ()),
    "nothing": ((6, 5), (0,), (None, 1), (0,)),
}
"""name: (shape of x, shape of the index arrays, where, axes)"""
_INDEX_DTYPES = (dt.int32, dt.int64, dt.uint8, dt.int16, dt.uint32, dt.int8, dt.uint64, dt.uint16)


def _indices(
    rng: np.random.Generator, x: Sequence[int], index: tuple[int, ...], where: Where, number: int
) -> list[np.ndarray]:
    """Index arrays with duplicates, negative ones and ones out of range, in one dtype after the other."""
    dtype = _INDEX_DTYPES[number % len(_INDEX_DTYPES)]
    found = []
    for axis, n in zip(where, x, strict=True):
        if axis is None:
            low = 0 if dtype.kind == "u" else -n - 2
            found.append(rng.integers(low, n + 2, index).astype(dtype.np))
    return found


def _samples(updates: tuple[float, float] | None = None) -> tuple[Sample, ...]:
    """Operands of a gather, or of a scatter whose updates (and x) lie in a range."""
    low, high = updates or (-3.0, 3.0)

    def make(number: int, x: tuple[int, ...], index: tuple[int, ...], where: Where, axes: tuple[int, ...]) -> Any:
        shapes: list[Any] = [x] if updates is None else [x, gathered_shape(where, axes, x, index)]
        return lambda rng, dtype: [
            *(draw(rng, dtype, shape, low, high) for shape in shapes), *_indices(rng, x, index, where, number)
        ]  # fmt: skip

    return tuple(
        Sample(make(i, *case), {"where": case[2], "axes": case[3]}, True, name)
        for i, (name, case) in enumerate(_CASES.items())
    )


# ---- bounds ----


def _within(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...], back: bool) -> list[np.ndarray]:
    return [rng.integers(-100 if back and dtype.kind != "u" else 0, 100, shape).astype(dtype.np)]


class BoundsCheck(Discrete, KernelOperation):
    """Indices of an axis of `size` elements, as they are; it fails where one is not in [0, size), or in [-size, size)
    if they may `count_back`. For libraries whose indices are errors outside of an array: `site` is what the error
    names."""

    size: Size
    count_back: bool
    site: str
    dtypes = dt.INTEGERS
    overwrites = (0,)
    is_total = False  # type: ignore[assignment]
    samples = tuple(
        Sample(
            lambda rng, dtype, shape=shape, back=back: _within(rng, dtype, shape, back),  # type: ignore[misc]
            {"size": 100, "count_back": back, "site": "sample"},
            name=name,
        )
        for name, shape, back in (
            ("vector", (37,), False), ("matrix", (5, 19), True), ("number", (), True), ("nothing", (0, 3), False),
        )
    )  # fmt: skip

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def check(self, x: ArrayType) -> None:
        self.check_dtypes(x)
        need(self.size >= 0, "a size is negative")

    def lowest(self, dtype: Dtype) -> Size:
        """The least index that is right."""
        return -self.size if self.count_back and dtype.kind != "u" else 0

    def reference(self, x: np.ndarray) -> np.ndarray:  # type: ignore[override]
        wrong = (x < self.lowest(dt.from_numpy(x.dtype))) | (x >= self.size)
        if wrong.any():
            raise self._error(int(x[wrong][0]), int(self.size))
        return x

    def failure(self, detail: Sequence[int], kinds: Sequence[ArrayType], steps: Sequence[int] = ()) -> Exception:
        index, size = detail[:2]
        return self._error(index % (1 << 64) if kinds[0].dtype.kind == "u" else index, size)

    def _error(self, index: int, size: int) -> BoundsError:
        error = BoundsError(f"[{self.site}] index {index} is out of range for an axis of {size} elements.")
        error.operation = self
        return error

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, *inputs), axes[0]


# ---- gather ----


class Gather(Linear, Indexed):
    """Elements of x at the places that index arrays give; the transpose is ScatterAdd."""

    moves = (0,)
    samples = _samples()

    def infer(self, *kinds: ArrayType) -> ArrayType:
        shape = gathered_shape(self.where, self.axes, kinds[0].shape, kinds[1].shape)
        if not any(is_now(n, 0) for n in shape):
            self.need_elements(kinds[0])
        return kind_of(shape, kinds[0].dtype)

    def check(self, x: ArrayType, *indices: ArrayType) -> None:
        self.check_dtypes(x)
        self.checked_shape(x, indices)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, *indices = values
        shape = gathered_shape(self.where, self.axes, x.shape, indices[0].shape)
        return x[self.places(x.shape, indices, shape)] if 0 not in shape else np.empty(shape, x.dtype)  # type: ignore[arg-type]

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        x, *indices = primals
        return bind(ScatterAdd(self.where, self.axes), zeros(x.kind), cotangent, *indices)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        indices, both = _same_batch(inputs[1:], axes[1:], size)
        x = inputs[0] if axes[0] is None else move_batch_to_front(inputs[0], axes[0], size)
        return bind(self.batched(axes[0] is not None, both), x, *indices), 0


# ---- scatters ----


class Scatter(Indexed):
    """x with updates combined into the places that index arrays give. Operands: x, updates (of the gathered shape),
    the index arrays.

    Writes `op` (how an update meets what is there; None replaces it), `jvp` and `vjp`.
    """

    overwrites = (0,)

    op: ClassVar[Elementwise | None]

    def infer(self, *kinds: ArrayType) -> ArrayType:
        if not any(is_now(n, 0) for n in kinds[1].shape):
            self.need_elements(kinds[0])
        return kinds[0]

    def check(self, x: ArrayType, updates: ArrayType, *indices: ArrayType) -> None:
        self.check_dtypes(x, updates)
        fits = equal_shapes(self.checked_shape(x, indices), updates.shape)
        need(fits, f"updates {updates} of another shape than their places")

    def accumulator(self, dtype: Dtype) -> Dtype:
        """The dtype in which updates are combined."""
        return dt.float32 if dtype in dt.HALVES and isinstance(self.op, (Add, Multiply)) else dtype

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, updates, *indices = values
        wide = self.accumulator(dt.from_numpy(x.dtype)).np
        result = x.astype(wide)
        if updates.size:
            self.put(result, self.places(x.shape, indices, updates.shape), updates.astype(wide))
        return result.astype(x.dtype)

    def put(self, target: np.ndarray, places: tuple[np.ndarray, ...], updates: np.ndarray) -> None:
        """The updates of the reference, in place and in order."""
        assert self.op is not None
        self.op.reference.at(target, places, updates)  # type: ignore[attr-defined]

    def gather(self, x: Node, indices: Sequence[Node]) -> Node:
        return bind(Gather(self.where, self.axes), x, *indices)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        x, updates = (move_batch_to_front(node, axis, size) for node, axis in zip(inputs[:2], axes[:2], strict=True))
        indices, both = _same_batch(inputs[2:], axes[2:], size)
        return bind(self.batched(True, both), x, updates, *indices), 0


class ScatterSet(Linear, Scatter):
    """Updates replace what is there; of several for one place the last one stays, and it alone has a gradient."""

    moves = (0, 1)
    linear = (0, 1)
    op = None
    samples = _samples((-3.0, 3.0))

    def put(self, target: np.ndarray, places: tuple[np.ndarray, ...], updates: np.ndarray) -> None:
        # One by one: NumPy does not say which of several assignments to one place is the last.
        for position in np.ndindex(updates.shape):
            target[tuple(index[position] for index in places)] = updates[position]

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        x, updates, *indices = primals
        if position == 0:
            return bind(self, cotangent, zeros(updates.kind), *indices)
        found = self.gather(cotangent, indices)
        return select(self._stays(x, updates.shape, indices), found, zeros(found.kind))

    def _stays(self, x: Node, shape: Shape, indices: Sequence[Node]) -> Node:
        """Which updates are the last ones for their place: each place is told the number of its last update."""
        kept = [axis for axis in self.where if axis is None or axis in self.axes]
        rank = {axis: i for i, axis in enumerate(self.axes)}
        where = tuple(None if axis is None else rank[axis] for axis in kept)
        sizes = tuple(n for axis, n in zip(self.where, x.shape, strict=True) if axis is None or axis in self.axes)
        numbers = astype(bind(Iota(indices[0].shape)), dt.int32)  # a bare count does not lie in memory
        op = ScatterSet(where, tuple(range(len(self.axes))))
        last = bind(op, zeros(kind_of(sizes, dt.int32)), numbers, *indices)
        return bind(Broadcast(shape, self.axes), equal(op.gather(last, indices), numbers))


class ScatterAdd(Linear, Scatter):
    """Updates are added."""

    linear = (0, 1)
    op = Add()
    samples = _samples((-3.0, 3.0))

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        return cotangent if position == 0 else self.gather(cotangent, primals[2:])


class ScatterMultiply(Scatter):
    """Updates are multiplied in."""

    op = Multiply()
    samples = _samples((0.5, 1.5))
    tolerance = {dt.complex64: 16, dt.complex128: 16}

    def _factors(self, primals: tuple[Node, ...]) -> tuple[Node, Node]:
        """The derivatives by x and by each update: products of all other factors, right also where some are 0."""
        x, updates, *indices = primals
        if not x.dtype.is_inexact:
            return self._factors_of_integers(*primals)
        zero, one = full_like(updates, 0), full_like(updates, 1)
        is_zero = equal(updates, zero)
        counts = bind(
            ScatterAdd(self.where, self.axes), zeros(kind_of(x.shape, dt.int32)), astype(is_zero, dt.int32), *indices
        )
        rest = bind(self, full_like(x, 1), select(is_zero, one, updates), *indices)
        none, single = (self.gather(equal(counts, full_like(counts, n)), indices) for n in (0, 1))
        found = self.gather(rest, indices)
        others = select(none, found / select(is_zero, one, updates), select(single, select(is_zero, found, zero), zero))
        by_x = select(equal(counts, full_like(counts, 0)), rest, full_like(x, 0))
        return by_x, others * self.gather(x, indices)

    def _factors_of_integers(self, x: Node, updates: Node, *indices: Node) -> tuple[Node, Node]:
        """The same for integers, whose products wrap: nothing is divided."""
        dtype = x.dtype
        x, updates = (astype(node, sum_dtype(dtype)) for node in (x, updates))
        add = ScatterAdd(self.where, self.axes)
        is_zero = equal(updates, full_like(updates, 0))
        zeros_here, none = astype(is_zero, dt.int32), zeros(kind_of(x.shape, dt.int32))
        counts = bind(add, none, zeros_here, *indices)
        factors = Factors(select(is_zero, full_like(updates, 1), updates))
        odd = bind(self, full_like(x, 1), factors.odd, *indices)
        twos = bind(add, none, factors.twos, *indices)
        elsewhere = self.gather(counts, indices) - zeros_here
        others = factors.left_of(self.gather(odd, indices), self.gather(twos, indices))
        others = select(equal(elsewhere, full_like(elsewhere, 0)), others, full_like(others, 0))
        by_x = select(equal(counts, none), bind(self, full_like(x, 1), updates, *indices), full_like(x, 0))
        return astype(by_x, dtype), astype(others * self.gather(x, indices), dtype)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        if not (0 in tangents or 1 in tangents):
            return None
        by_x, by_update = self._factors(primals)
        total = by_x * tangents[0] if 0 in tangents else zeros(out.kind)
        if 1 not in tangents:
            return total
        return bind(ScatterAdd(self.where, self.axes), total, by_update * tangents[1], *primals[2:])

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        by_x, by_update = self._factors(primals)
        both = {
            0: lambda: conjugate(by_x) * cotangent,
            1: lambda: conjugate(by_update) * self.gather(cotangent, primals[2:]),
        }
        return {position: both[position]() for position in sorted(wanted) if position in both}


class ScatterExtremum(Scatter):
    """The larger or smaller of what is there and the updates; NaN wins. All that are equal to the result share its
    gradient equally."""

    samples = _samples((-3.0, 3.0))
    tolerance = EITHER_ZERO

    def _winners(self, out: Node, primals: tuple[Node, ...]) -> tuple[Node, Node, Node]:
        """(1 where x is the result, 1 for each update that is, how many they are), wide enough to count them."""
        x, updates, *indices = primals
        wide = sum_dtype(out.dtype)
        first = astype(equal(x, out), wide)
        then = astype(equal(updates, self.gather(out, indices)), wide)
        return first, then, bind(ScatterAdd(self.where, self.axes), first, then, *indices)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        if not (0 in tangents or 1 in tangents):
            return None
        first, then, count = self._winners(out, primals)
        wide = {i: astype(tangents[i], first.dtype) for i in (0, 1) if i in tangents}
        total = first * wide[0] if 0 in wide else zeros(first.kind)
        if 1 in wide:
            total = bind(ScatterAdd(self.where, self.axes), total, then * wide[1], *primals[2:])
        return shared(total, count, out.dtype)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        first, then, count = self._winners(out, primals)
        cotangent = astype(cotangent, first.dtype)
        parts = {0: lambda: (first, cotangent, count), 1: lambda: (then, *self._gathered(primals, cotangent, count))}
        found = {position: parts[position]() for position in sorted(wanted) if position in parts}
        return {position: shared(on * ct, n, out.dtype) for position, (on, ct, n) in found.items()}

    def _gathered(self, primals: tuple[Node, ...], *nodes: Node) -> tuple[Node, ...]:
        return tuple([self.gather(node, primals[2:]) for node in nodes])


class ScatterMax(ScatterExtremum):
    """The largest of what is there and the updates."""

    op = Maximum()


class ScatterMin(ScatterExtremum):
    """The smallest of what is there and the updates."""

    op = Minimum()
