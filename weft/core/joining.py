"""Arrays made larger, joined and cut: concatenation, padding, repetition, rotation, diagonals."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.core._common import (
    ArrayLike,
    array,
    astype,
    bind,
    broadcast_node,
    constant,
    is_sequence,
    kind_of,
    normalize_axis,
    reshape,
    to_node,
    transpose,
    whole_number,
    wrap,
)
from weft.core.indexing import take_op, values_node
from weft.core.reducing import sum as sum_of
from weft.core.shaping import slice_axis
from weft.dtypes import Dtype
from weft.graph.dims import dim_max, dim_min
from weft.graph.node import Node, Shape, Size
from weft.primitives.joins import Concatenate, Repeat
from weft.primitives.views import SliceUpdate

Stream = Any


def _operands(name: str, arrays: Sequence[ArrayLike]) -> list[Node]:
    """The arrays to join, in one dtype."""
    if isinstance(arrays, array):
        arrays = list(arrays)
    if not isinstance(arrays, (list, tuple)):
        raise TypeError(f"[{name}] needs a list of arrays; got {type(arrays).__name__}.")
    if not arrays:
        raise ValueError(f"[{name}] needs at least one array.")
    nodes = [to_node(a) for a in arrays]
    dtype = functools.reduce(dt.promote, (node.dtype for node in nodes))
    return [astype(node, dtype) for node in nodes]


def joined(nodes: Sequence[Node], axis: int) -> Node:
    """Nodes one after the other; one alone is itself."""
    return nodes[0] if len(nodes) == 1 else bind(Concatenate(axis), *nodes)


def concatenate(arrays: Sequence[ArrayLike], axis: int | None = 0, *, stream: Stream = None) -> array:
    """The arrays one after the other along an existing axis; flattened first if the axis is None.

    >>> concatenate([array([1, 2]), array([3])])
    array([1, 2, 3], dtype=int32)
    """
    nodes = _operands("concatenate", arrays)
    if axis is None:
        nodes, axis = [reshape(node, (node.kind.size,)) for node in nodes], 0
    first = nodes[0]
    axis = normalize_axis("concatenate", axis, first.ndim)
    for i, node in enumerate(nodes[1:], 1):
        if node.ndim != first.ndim or any(
            m != n for k, (m, n) in enumerate(zip(first.shape, node.shape, strict=True)) if k != axis
        ):
            raise ValueError(
                f"[concatenate] shapes must agree in all axes but axis {axis}: "
                f"array 0 has shape {first.shape}, array {i} has {node.shape}."
            )
    return wrap(joined(nodes, axis))


concat = concatenate


def stack(arrays: Sequence[ArrayLike], axis: int | None = 0, *, stream: Stream = None) -> array:
    """Arrays of one shape along a new axis.

    >>> stack([array([1, 2]), array([3, 4])], axis=1)
    array([[1, 3],
           [2, 4]], dtype=int32)
    """
    nodes = _operands("stack", arrays)
    shape = nodes[0].shape
    for i, node in enumerate(nodes[1:], 1):
        if node.ndim != len(shape) or any(m != n for m, n in zip(shape, node.shape, strict=True)):
            raise ValueError(
                f"[stack] all arrays must have one shape: array 0 has shape {shape}, array {i} has {node.shape}."
            )
    axis = normalize_axis("stack", axis or 0, len(shape) + 1)
    widened = (*shape[:axis], 1, *shape[axis:])
    return wrap(joined([reshape(node, widened) for node in nodes], axis))


def unstack(x: ArrayLike, /, *, axis: int = 0, stream: Stream = None) -> tuple[array, ...]:
    """The slices along an axis, each without that axis.

    >>> unstack(array([[1, 2], [3, 4]]))
    (array([1, 2], dtype=int32), array([3, 4], dtype=int32))
    """
    node = to_node(x)
    axis = normalize_axis("unstack", axis, node.ndim)
    rest = (*node.shape[:axis], *node.shape[axis + 1 :])
    return tuple(wrap(reshape(slice_axis(node, axis, i, 1), rest)) for i in range(node.shape[axis]))


# ---- padding ----


def pad(
    a: ArrayLike,
    pad_width: int | Sequence[Any],
    mode: str = "constant",
    constant_values: ArrayLike = 0,
    *,
    stream: Stream = None,
) -> array:
    """The array with more elements before and after it along its axes.

    Parameters
    ----------
    pad_width : one number for all sides, one pair (before, after) for all axes, or a pair for each axis
    mode : "constant" (`constant_values`), "edge" (the outermost element), "reflect" (mirrored at the outermost element)
        or "symmetric" (mirrored behind it)

    >>> pad(array([1, 2]), (1, 2))
    array([0, 1, 2, 0, 0], dtype=int32)
    >>> pad(array([1, 2, 3]), 1, mode="edge")
    array([1, 1, 2, 3, 3], dtype=int32)
    """
    x = to_node(a)
    widths = _widths(pad_width, x.ndim)
    if mode == "constant":
        return wrap(_pad_constant(x, widths, constant_values))
    if mode not in ("edge", "reflect", "symmetric"):
        raise ValueError(f'[pad] mode is "constant", "edge", "reflect" or "symmetric"; got {mode!r}.')
    for axis, (before, after) in enumerate(widths):
        if (before, after) == (0, 0):
            continue
        if x.shape[axis] == 0:
            raise ValueError(f"[pad] axis {axis} of shape {x.shape} is empty: mode {mode!r} has nothing to repeat.")
        x = _pad_edge(x, axis, before, after) if mode == "edge" else _pad_mirrored(x, axis, before, after, mode)
    return wrap(x)


def _widths(given: int | Sequence[Any], ndim: int) -> list[tuple[int, int]]:
    """(before, after) for each axis."""
    numbers: Any = list(given) if is_sequence(given) else [given]  # type: ignore[arg-type]
    if numbers and not any(map(is_sequence, numbers)):
        numbers = [(numbers[0], numbers[-1])] if len(numbers) <= 2 else None
    if not isinstance(numbers, list) or any(not is_sequence(p) or len(p) != 2 for p in numbers):
        raise ValueError(f"[pad] pad_width is a number, a pair, or a pair for each axis; got {given!r}.")
    if len(numbers) == 1:
        numbers = numbers * ndim
    if len(numbers) != ndim:
        raise ValueError(f"[pad] {len(numbers)} pairs of widths do not fit an array with {ndim} axes.")
    widths = [
        (whole_number("pad", "a width", before), whole_number("pad", "a width", after)) for before, after in numbers
    ]
    for before, after in widths:
        if before < 0 or after < 0:
            raise ValueError(f"[pad] widths cannot be negative; got {given!r}.")
    return widths


def _pad_constant(x: Node, widths: Sequence[tuple[int, int]], value: ArrayLike) -> Node:
    number = values_node(value, x.dtype)
    if number.kind.size != 1:
        raise ValueError(f"[pad] constant_values is one number; got shape {number.shape}.")
    shape: Shape = tuple(n + before + after for n, (before, after) in zip(x.shape, widths, strict=True))
    base = broadcast_node(reshape(number, ()), shape)
    return bind(SliceUpdate(tuple(before for before, _ in widths), (1,) * x.ndim), base, x)


def _pad_edge(x: Node, axis: int, before: int, after: int) -> Node:
    def repeated(at: Size, count: int) -> list[Node]:
        edge = slice_axis(x, axis, at, 1)  # type: ignore[arg-type]
        return [broadcast_node(edge, (*x.shape[:axis], count, *x.shape[axis + 1 :]))] if count else []

    return joined([*repeated(0, before), x, *repeated(x.shape[axis] - 1, after)], axis)


def _pad_mirrored(x: Node, axis: int, before: int, after: int, mode: str) -> Node:
    """Walks back and forth over the axis, with or without the outermost elements twice."""
    n = x.shape[axis].__index__()
    there = list(range(n))
    back = there[-2:0:-1] if mode == "reflect" else there[::-1]
    cycle = np.array(there + back, np.int32)
    places = cycle[np.arange(-before, n + after) % len(cycle)]
    return bind(take_op(x.ndim, axis, 1), x, to_node(places))


# ---- repetition ----


def repeat(array: ArrayLike, repeats: int, axis: int | None = None, *, stream: Stream = None) -> Any:
    """Every element (or slice along an axis) `repeats` times in a row; of the flattened array if no axis is given.

    >>> repeat(array([1, 2]), 2)
    array([1, 1, 2, 2], dtype=int32)
    """
    x = to_node(array)
    repeats = whole_number("repeat", "the number of repeats", repeats)
    if repeats < 0:
        raise ValueError(f"[repeat] the number of repeats cannot be negative; got {repeats}.")
    if axis is None:
        x, axis = reshape(x, (x.kind.size,)), 0
    axis = normalize_axis("repeat", axis, x.ndim)
    before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    if not after and 1 < repeats <= 16:
        return wrap(bind(Repeat(repeats), x))
    spread = broadcast_node(reshape(x, (*before, n, 1, *after)), (*before, n, repeats, *after))
    return wrap(reshape(spread, (*before, n * repeats, *after)))


def tile(a: ArrayLike, reps: int | Sequence[int], /, *, stream: Stream = None) -> array:
    """The whole array repeated `reps` times along each axis; a shorter `reps` counts from the last axis.

    >>> tile(array([1, 2]), (2, 2))
    array([[1, 2, 1, 2],
           [1, 2, 1, 2]], dtype=int32)
    """
    x = to_node(a)
    given: list[Any] = list(reps) if is_sequence(reps) else [reps]  # type: ignore[arg-type]
    counts = [whole_number("tile", "a number of repetitions", count) for count in given]
    if any(count < 0 for count in counts):
        raise ValueError(f"[tile] the number of repetitions cannot be negative; got {reps}.")
    ndim = max(len(counts), x.ndim)
    counts = [1] * (ndim - len(counts)) + counts
    sizes = (1,) * (ndim - x.ndim) + x.shape
    apart = tuple(size for n in sizes for size in (1, n))
    spread = broadcast_node(
        reshape(x, apart), tuple(size for count, n in zip(counts, sizes, strict=True) for size in (count, n))
    )
    return wrap(reshape(spread, tuple(count * n for count, n in zip(counts, sizes, strict=True))))


def roll(
    a: ArrayLike, shift: int | Sequence[int], axis: int | Sequence[int] | None = None, *, stream: Stream = None
) -> array:
    """Elements moved `shift` places along axes; what leaves at one end comes in at the other. The flattened array is
    rolled if no axis is given.

    >>> roll(array([1, 2, 3, 4]), 1)
    array([4, 1, 2, 3], dtype=int32)
    """
    x = to_node(a)
    given: list[Any] = list(shift) if is_sequence(shift) else [shift]  # type: ignore[arg-type]
    shifts = [whole_number("roll", "a shift", places) for places in given]
    if axis is None:
        return wrap(reshape(_rolled(reshape(x, (x.kind.size,)), 0, sum(shifts)), x.shape))
    axes: list[Any] = list(axis) if is_sequence(axis) else [axis]  # type: ignore[arg-type]
    if len(shifts) == 1:
        shifts = shifts * len(axes)
    elif len(axes) == 1:
        shifts = [sum(shifts)]
    if len(shifts) != len(axes):
        raise ValueError(f"[roll] {len(shifts)} shifts do not fit {len(axes)} axes.")
    for k, places in zip(axes, shifts, strict=True):
        x = _rolled(x, normalize_axis("roll", k, x.ndim), places)
    return wrap(x)


def _rolled(x: Node, axis: int, places: int) -> Node:
    n = x.shape[axis]
    by = places % n if n != 0 else 0
    if by == 0:
        return x
    return joined([slice_axis(x, axis, n - by, by), slice_axis(x, axis, 0, n - by)], axis)  # type: ignore[arg-type]


# ---- diagonals ----


def _diagonal(name: str, x: Node, offset: int, axis1: int, axis2: int) -> Node:
    """The diagonal as the last axis: of the two axes flattened, every (columns + 1)-th element."""
    if x.ndim < 2:
        raise ValueError(f"[{name}] needs at least two axes; got shape {x.shape}.")
    offset = whole_number(name, "the offset of a diagonal", offset)
    i, j = normalize_axis(name, axis1, x.ndim), normalize_axis(name, axis2, x.ndim)
    if i == j:
        raise ValueError(f"[{name}] axis1 and axis2 are the same axis.")
    rest = tuple(k for k in range(x.ndim) if k not in (i, j))
    moved = transpose(x, (*rest, i, j))
    rows, columns = moved.shape[-2:]
    count = dim_max(0, dim_min(rows, columns - offset) if offset >= 0 else dim_min(rows + offset, columns))
    empty = type(count) is int and count == 0
    start = 0 if empty else offset if offset >= 0 else -offset * columns
    flat = reshape(moved, (*moved.shape[:-2], rows * columns))
    return slice_axis(flat, flat.ndim - 1, start, count, columns + 1)


def diagonal(a: ArrayLike, offset: int = 0, axis1: int = 0, axis2: int = 1, stream: Stream = None) -> array:
    """The elements of two axes whose indices differ by `offset`, as the last axis.

    >>> diagonal(array([[1, 2], [3, 4]]))
    array([1, 4], dtype=int32)
    """
    return wrap(_diagonal("diagonal", to_node(a), offset, axis1, axis2))


def diag(a: ArrayLike, /, k: int = 0, *, stream: Stream = None) -> array:
    """The k-th diagonal of a matrix, or a matrix with a vector on its k-th diagonal and zeros elsewhere.

    >>> diag(array([1, 2]))
    array([[1, 0],
           [0, 2]], dtype=int32)
    """
    x = to_node(a)
    if x.ndim == 2:
        return wrap(_diagonal("diag", x, k, 0, 1))
    if x.ndim != 1:
        raise ValueError(f"[diag] needs a vector or a matrix; got shape {x.shape}.")
    k = whole_number("diag", "the number of a diagonal", k)
    n = x.shape[0] + abs(k)
    start = k if k >= 0 else -k * n
    flat = constant(0, kind_of((n * n,), x.dtype))
    return wrap(reshape(bind(SliceUpdate((start,), (n + 1,)), flat, x), (n, n)))


def trace(
    a: ArrayLike,
    /,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: Dtype | None = None,
    *,
    stream: Stream = None,
) -> array:
    """The sum of a diagonal, in the dtype of a sum or in `dtype`.

    >>> trace(array([[1, 2], [3, 4]]))
    array(5, dtype=int32)
    """
    x = _diagonal("trace", to_node(a), offset, axis1, axis2)
    return sum_of(wrap(astype(x, dtype or x.dtype)), -1)
