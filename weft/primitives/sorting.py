"""Sorting along an axis, and searching in what is sorted.

One order for all: NaN comes last (a complex number with a NaN part is one), complex numbers go by their real parts and
then by their imaginary parts, -0.0 and 0.0 are equal. Sorting is stable, so equal elements, zeros of both signs and
NaNs among them, keep their order, and all their bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node, Size, kind_of
from weft.primitives.base import ByOperand, Discrete, KernelOperation, Sample, bind, move_batch_to_front, zeros
from weft.primitives.checks import check_axis, equal_shapes, need
from weft.primitives.elementwise import draw
from weft.primitives.indexing import Gather, ScatterAdd

# ---- samples ----


def _apart(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Elements that are all different, as far as the dtype has so many: small changes do not exchange any."""
    numbers = rng.permutation(int(np.prod(shape))).reshape(shape) % (2 if dtype.is_bool else 256)
    return ((numbers - 100) / 8 if dtype.is_inexact else numbers).astype(dtype.np)


def _few(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Few distinct elements."""
    return (rng.integers(0, 5, shape) % (2 if dtype.is_bool else 5)).astype(dtype.np)


def _special(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Zeros of both signs, infinities and NaNs among a few numbers."""
    if not dtype.is_inexact:
        return draw(rng, dtype, shape)
    pool = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, -np.nan])
    found = np.empty(shape, dtype.np)
    for part in (found.real, found.imag) if dtype.is_complex else (found,):
        part[...] = rng.choice(pool, shape).astype(part.dtype)
    return found


def _sample(
    name: str, shape: tuple[int, ...], axis: int, values: Callable[..., np.ndarray], smooth: bool = False
) -> Sample:
    return Sample(lambda rng, dtype: [values(rng, dtype, shape)], {"axis": axis}, smooth, name)


_SAMPLES = (
    _sample("rows", (3, 37), 1, _apart, True),
    _sample("columns", (19, 5), 0, _apart, True),
    _sample("middle", (2, 7, 3), 1, _apart, True),
    _sample("short", (5, 6), 1, _apart, True),
    _sample("long", (1, 200), 1, draw),
    _sample("ties", (4, 40), 0, draw),
    _sample("special", (3, 90), 1, _special),
    _sample("one", (3, 1), 1, draw),
    _sample("empty", (2, 0), 1, draw),
)


# ---- sort ----


def stable_order(x: np.ndarray, axis: int) -> np.ndarray:
    """The places that sort x along an axis, in NumPy."""
    dtype = dt.from_numpy(x.dtype)
    x = np.moveaxis(x.astype(np.float32) if dtype in dt.HALVES else x, axis, -1)
    if dtype.is_complex:
        nan = np.isnan(x)
        plain = np.where(nan, 0, x)
        order = np.lexsort((plain.imag, plain.real, nan), axis=-1)
    else:
        order = np.argsort(x, axis=-1, kind="stable")
    return np.moveaxis(order, -1, axis)


class Sorting(KernelOperation):
    """What sorts along `axis`."""

    axis: int
    samples: ClassVar[tuple[Sample, ...]] = _SAMPLES

    def check(self, x: ArrayType) -> None:
        self.check_dtypes(x)
        check_axis(self.axis, x.ndim)

    def along_axis(self, axis: int) -> Sorting:
        """The same along another axis."""
        return type(self)(axis)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self.along_axis(self.axis + 1), move_batch_to_front(inputs[0], axes[0], size)), 0

    def along(self, ndim: int) -> tuple[tuple[int | None, ...], tuple[int, ...]]:
        """The gather (or scatter) that takes one index for every element, along the axis."""
        return tuple(None if i == self.axis else i for i in range(ndim)), tuple(range(ndim))


class Sort(Sorting):
    """x sorted along `axis`."""

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values[0], stable_order(values[0], self.axis), self.axis)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return bind(Gather(*self.along(out.ndim)), tangents[0], bind(ArgSort(self.axis), *primals))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        return {
            0: bind(ScatterAdd(*self.along(out.ndim)), zeros(out.kind), cotangent, bind(ArgSort(self.axis), *primals))
        }


class ArgSort(Sorting, Discrete):
    """The places (uint32) along `axis` of the elements of x in sorted order."""

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(kinds[0].shape, dt.uint32)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return stable_order(values[0], self.axis).astype(np.uint32)


class ArgSelect(Sorting, Discrete):
    """The places (uint32) along `axis` of the `count` (1 or more) largest (or smallest) elements of x in sorted order,
    as ArgSort has them."""

    count: int
    largest: bool
    samples = tuple(
        Sample(
            lambda rng, dtype, shape=shape, make=make: [make(rng, dtype, shape)],  # type: ignore[misc]
            {"axis": axis, "count": count, "largest": largest},
            False,
            f"{name}{'_largest' if largest else ''}",
        )
        for largest in (False, True)
        for name, shape, axis, count, make in (
            ("rows", (3, 137), 1, 5, draw),
            ("columns", (219, 3), 0, 17, _apart),
            ("middle", (2, 7, 3), 1, 7, draw),
            ("special", (3, 190), 1, 60, _special),
            ("long", (1, 5000), 1, 300, draw),
            ("one", (3, 1), 1, 1, draw),
            ("empty", (0, 9), 1, 3, draw),
        )
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(tuple(self.count if i == self.axis else n for i, n in enumerate(kinds[0].shape)), dt.uint32)

    def check(self, x: ArrayType) -> None:
        super().check(x)
        fits = self.count >= 1 and self.count <= x.shape[self.axis]
        need(fits, f"{self.count} elements of an axis that has fewer")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        order = np.moveaxis(stable_order(values[0], self.axis), self.axis, -1)
        first = order.shape[-1] - self.count if self.largest else 0
        return np.moveaxis(order[..., first : first + self.count], -1, self.axis).astype(np.uint32)

    def along_axis(self, axis: int) -> Sorting:
        return ArgSelect(axis, self.count, self.largest)


# ---- partition ----


_PARTITION_SAMPLES = tuple(
    Sample(
        lambda rng, dtype, shape=shape, make=make: [make(rng, dtype, shape)],  # type: ignore[misc]
        {"axis": axis, "kth": kth},
        make is _apart and int(np.prod(shape)) <= 256,
        name,
    )
    for name, shape, axis, kth, make in (
        ("rows", (1, 201), 1, 70, _apart),
        ("columns", (219, 3), 0, -20, _apart),
        ("middle", (2, 7, 3), 1, 0, _apart),
        ("special", (3, 190), 1, 60, _special),
        ("ties", (2, 700), 1, -300, _few),
        ("long", (1, 5000), 1, 300, draw),
        ("one", (3, 1), 1, 0, draw),
        ("empty", (0, 9), 1, 3, draw),
    )
)


class Partitioning(Sorting):
    """What divides x along `axis` at the element that a stable sort would put into place `kth` (from the end, if it is
    negative): the elements that it would put before that one, in the order of x, this one, and the others, in that
    order."""

    kth: int
    samples = _PARTITION_SAMPLES

    def rank(self, n: Any) -> Any:
        """The place in an axis of n elements, from its beginning."""
        return n + self.kth if self.kth < 0 else self.kth

    def check(self, x: ArrayType) -> None:
        super().check(x)
        n = x.shape[self.axis]
        need(-self.kth <= n and self.kth < n, f"element {self.kth} of an axis that has fewer")

    def places(self, x: np.ndarray) -> np.ndarray:
        """Where the elements come from, in NumPy."""
        order = np.moveaxis(stable_order(x, self.axis), self.axis, -1)
        rank = self.rank(order.shape[-1])
        before, found, after = np.split(order, [rank, rank + 1], -1)
        return np.moveaxis(np.concatenate([np.sort(before, -1), found, np.sort(after, -1)], -1), -1, self.axis)

    def along_axis(self, axis: int) -> Sorting:
        same: Any = type(self)
        found: Sorting = same(axis, self.kth)
        return found


class Partition(Partitioning):
    """x divided along `axis`."""

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values[0], self.places(values[0]), self.axis)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return bind(Gather(*self.along(out.ndim)), tangents[0], bind(ArgPartition(self.axis, self.kth), *primals))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        places = bind(ArgPartition(self.axis, self.kth), *primals)
        return {0: bind(ScatterAdd(*self.along(out.ndim)), zeros(out.kind), cotangent, places)}


class ArgPartition(Partitioning, Discrete):
    """The places (uint32) along `axis` of the elements of x, divided."""

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(kinds[0].shape, dt.uint32)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return self.places(values[0]).astype(np.uint32)


# ---- search ----


def _search_sample(
    name: str, rows: tuple[int, ...], values: tuple[int, ...], right: bool, make: Callable[..., np.ndarray]
) -> Sample:
    def operands(rng: np.random.Generator, dtype: Dtype) -> list[np.ndarray]:
        sequence = make(rng, dtype, rows)
        order = stable_order(sequence, sequence.ndim - 1)
        return [np.take_along_axis(sequence, order, -1), make(rng, dtype, values)]

    return Sample(operands, {"right": right}, False, name)


class SearchSorted(KernelOperation, Discrete):
    """The number of elements of a sorted row that are smaller than a value, or, `right`, not larger (uint32).

    Operands: rows[*lead, n] and values[*lead, ...]; the result has the shape of the values.
    """

    right: bool
    samples = tuple(
        _search_sample(name, rows, values, right, make)
        for right in (False, True)
        for name, rows, values, make in (
            ("vector", (37,), (50,), draw),
            ("matrix", (9,), (5, 7), _apart),
            ("scalar", (8,), (), draw),
            ("special", (40,), (60,), _special),
            ("batch", (2, 3, 11), (2, 3, 4, 5), draw),
            ("nothing", (0,), (3,), draw),
            ("empty", (4,), (0, 2), draw),
        )
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(kinds[1].shape, dt.uint32)

    def check(self, rows: ArrayType, values: ArrayType) -> None:
        self.check_dtypes(rows, values)
        need(rows.ndim >= 1, "rows without an axis")
        together = equal_shapes(rows.shape[:-1], values.shape[: rows.ndim - 1])
        need(together, f"rows {rows} and values {values} that do not go together")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        rows, wanted = values
        lead, n = rows.ndim - 1, rows.shape[-1]
        result = np.empty(wanted.shape, np.uint32)
        for place in np.ndindex(*rows.shape[:lead]):
            ranks = _ranks(np.concatenate([rows[place], wanted[place].reshape(-1)]))
            found = np.searchsorted(ranks[:n], ranks[n:], "right" if self.right else "left")
            result[place] = found.reshape(wanted.shape[lead:])
        return result

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        rows, values = inputs
        values = move_batch_to_front(values, axes[1], size)
        if axes[0] is not None or rows.ndim > 1:  # one row for all values serves those of the whole batch
            rows = move_batch_to_front(rows, axes[0], size)
        return bind(self, rows, values), 0


def _ranks(x: np.ndarray) -> np.ndarray:
    """The number of distinct smaller elements, for every element: integers in the same order."""
    order = stable_order(x, 0)
    placed = x[order]
    nan = np.isnan(placed.astype(np.float32) if dt.from_numpy(x.dtype) in dt.HALVES else placed)
    new = np.append(False, (placed[1:] != placed[:-1]) & ~(nan[1:] & nan[:-1]))[: len(x)]
    ranks = np.empty(len(x), np.int64)
    ranks[order] = np.cumsum(new)
    return ranks
