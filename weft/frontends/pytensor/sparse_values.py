"""Sparse matrices while a graph is translated: three vectors and a shape, as SciPy has them; and what rules share.

A matrix has a number of elements that may depend on data (the sum of two matrices, the nonzero elements of a dense one)
and is a size of the program then, like that of any selection. Shapes are plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import Graph
from weft.frontends.pytensor.values import Known, Value, cast, constant, is_sparse, number_of, to_array
from weft.graph.node import Size
from weft.transforms.computed import computed_size


class Sparse:
    """A matrix by rows ("csr") or by columns ("csc"), which are its `majors`: the elements of major i are those from
    `indptr[i]` up to `indptr[i + 1]`, and `indices` says where in it they are."""

    def __init__(
        self, data: array, indices: array, indptr: array, shape: Sequence[int], format: str, majors: array | None = None
    ) -> None:
        self.data, self.indices, self.indptr = data, cast(indices, "int32"), cast(indptr, "int32")
        self.shape, self.format = (int(shape[0]), int(shape[1])), format
        self._majors = majors
        if indptr.shape[0] != self.lines + 1:
            raise ValueError(f"index pointer size {indptr.shape[0]} should be {self.lines + 1}")
        if data.shape[0] != indices.shape[0]:
            raise ValueError(f"Data (shape {data.shape}) must have the same number of elements as indices")

    @property
    def lines(self) -> int:
        """How many majors there are."""
        return self.shape[0] if self.format == "csr" else self.shape[1]

    @property
    def width(self) -> int:
        """How many places each of them has."""
        return self.shape[1] if self.format == "csr" else self.shape[0]

    @property
    def count(self) -> Size:
        return self.data.shape[0]

    def majors(self) -> array:
        """The major that each element belongs to."""
        if self._majors is None:
            ends = cast(self.indptr, "int64")[1:]
            self._majors = line_of(ends, self.count)
        return self._majors

    def minors(self) -> array:
        """The place of each element in its major."""
        return cast(self.indices, "int64")

    def rows(self) -> array:
        return self.majors() if self.format == "csr" else self.minors()

    def columns(self) -> array:
        return self.minors() if self.format == "csr" else self.majors()

    def keys(self) -> array:
        """A number for the place of each element, in the order of the format."""
        return self.majors() * number_of(self.width) + self.minors()

    def with_data(self, data: array) -> Sparse:
        """Other elements in the same places."""
        return Sparse(data, self.indices, self.indptr, self.shape, self.format, self._majors)

    def dense(self) -> array:
        """Elements that stand for the same place are added up."""
        start = mx.zeros(self.shape, self.data.dtype)
        if 0 in self.shape:
            return start
        return start.at[self.rows(), self.columns()].add(self.data)


def line_of(ends: array, count: Size) -> array:
    """The line of each of `count` things, of which line i has those before `ends[i]` that no line before it has."""
    places = mx.arange(count, dtype=mx.int64)
    if ends.shape[0] == 0:
        return places
    return cast(mx.searchsorted(ends, places, side="right"), "int64")


def as_sparse(value: Value | Sparse) -> Sparse:
    """A sparse value, or a constant of SciPy's."""
    if isinstance(value, Sparse):
        return value
    assert isinstance(value, Known), value
    matrix = value.value
    majors = np.repeat(np.arange(len(matrix.indptr) - 1), np.diff(matrix.indptr))
    parts = [constant(x) for x in (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))]
    return Sparse(parts[0], parts[1], parts[2], matrix.shape, matrix.format, constant(majors))


# ---- elements by their places ----


def ordered(data: array, keys: array, shape: Sequence[int], format: str, is_sorted: bool = False) -> Sparse:
    """The matrix of elements whose places are `keys`, in the order of the format."""
    lines, width = (shape[0], shape[1]) if format == "csr" else (shape[1], shape[0])
    if not is_sorted:
        order = mx.argsort(keys, axis=0)
        data, keys = mx.take(data, order, axis=0), mx.take(keys, order, axis=0)
    step = number_of(max(int(width), 1))
    majors = mx.floor_divide(keys, step)
    pointers = mx.searchsorted(majors, mx.arange(int(lines) + 1, dtype=mx.int64))
    return Sparse(data, mx.remainder(keys, step), pointers, shape, format, majors)


def kept(data: array, keys: array, mask: array, shape: Sequence[int], format: str) -> Sparse:
    """The elements for which a mask holds, which are in order already."""
    (places,) = mx.nonzero(mask)
    return ordered(mx.take(data, places, axis=0), mx.take(keys, places, axis=0), shape, format, is_sorted=True)


def added_up(data: array, keys: array) -> tuple[array, array, array]:
    """Sorted elements: the sum of those in the same place stands at the first of them; keys, and which are first."""
    order = mx.argsort(keys, axis=0)
    data, keys = mx.take(data, order, axis=0), mx.take(keys, order, axis=0)
    firsts = cast(mx.searchsorted(keys, keys), "int64")
    sums = mx.zeros(data.shape, data.dtype).at[firsts].add(data)
    return sums, keys, firsts == mx.arange(data.shape[0], dtype=mx.int64)


def looked_up(x: Sparse, wanted: array) -> tuple[array, array]:
    """The elements at some places, and whether there are any."""
    if x.count == 0:
        return mx.zeros(wanted.shape, x.data.dtype), mx.zeros(wanted.shape, mx.bool_)
    sums, keys, _ = added_up(x.data, x.keys())
    places = mx.minimum(cast(mx.searchsorted(keys, wanted), "int64"), number_of(x.count) - number_of(1))
    is_there = mx.take(keys, places, axis=0) == wanted
    return mx.where(is_there, mx.take(sums, places, axis=0), mx.zeros((), x.data.dtype)), is_there


def expanded(starts: array, counts: array) -> tuple[array, array]:
    """Numbers from `starts[i]` on, `counts[i]` of them for each i, one after the other; and which i each is of. How
    many that are depends on data."""
    ends = mx.cumsum(counts)
    total = computed_size("a sparse matrix", mx.sum(counts)._node)
    line = line_of(ends, total)
    first = mx.take(ends - counts, line, axis=0)
    return mx.arange(total, dtype=mx.int64) - first + mx.take(starts, line, axis=0), line


def lines_of(x: Sparse, lines: array) -> tuple[array, array]:
    """The numbers of the elements in some majors, in the order of these, and which one of `lines` each belongs to."""
    pointers = cast(x.indptr, "int64")
    starts = mx.take(pointers, lines, axis=0)
    return expanded(starts, mx.take(pointers, lines + number_of(1), axis=0) - starts)


# ---- across the ends of a program ----


class PackedGraph(Graph):
    """A graph with sparse inputs and results, as a function of their parts."""

    def __call__(self, *given: Value) -> list[Value]:
        rest, values = list(given), []
        for x in self.inputs:
            if is_sparse(x):
                parts, rest = rest[:4], rest[4:]
                assert isinstance(parts[3], Known)
                data, indices, indptr = (to_array(part) for part in parts[:3])
                values.append(Sparse(data, indices, indptr, parts[3].numbers(), x.type.format))  # type: ignore[arg-type]
            else:
                values.append(rest.pop(0))  # type: ignore[arg-type]
        made: list[Any] = []
        for value, x in zip(super().__call__(*values), self.outputs, strict=True):  # type: ignore[arg-type]
            if is_sparse(x):
                matrix = as_sparse(value)
                made += [matrix.data, matrix.indices, matrix.indptr, Known(np.array(matrix.shape))]
            else:
                made.append(value)
        return made
