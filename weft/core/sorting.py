"""Sorting, selecting by rank, searching, distinct elements, medians.

One order everywhere: NaN comes last, -0.0 and 0.0 are equal, complex numbers go by their real parts and then by their
imaginary parts. Sorts are stable.
"""

from __future__ import annotations

from typing import Any, Final

from weft import dtypes as dt
from weft.core import reducing
from weft.core._common import (
    ArrayLike,
    Axes,
    array,
    astype,
    bind,
    broadcast_node,
    constant,
    kind_of,
    normalize_axes,
    normalize_axis,
    reshape,
    scalar_node,
    to_node,
    transpose,
    whole_number,
    wrap,
)
from weft.core.selecting import counted, positions
from weft.core.shaping import slice_axis
from weft.graph.dims import is_now, prod
from weft.graph.node import Node
from weft.primitives import elementwise as e
from weft.primitives.base import full_like, reduced_shape
from weft.primitives.indexing import Gather, ScatterAdd, ScatterSet
from weft.primitives.joins import Concatenate
from weft.primitives.scans import CumSum
from weft.primitives.sorting import ArgPartition, ArgSelect, ArgSort, Partition, SearchSorted, Sort

Stream = Any
SHORT: Final = 64
"""Elements of an axis that are sorted as fast as divided."""
FEW: Final = 2048
"""The part of an axis that is found best by comparing everything with the worst of what is kept."""


def _operand(name: str, a: ArrayLike, axis: int | None) -> tuple[Node, int]:
    """The array (flat if there is no axis) and the axis, not negative."""
    x = to_node(a)
    if axis is None:
        return reshape(x, (x.kind.size,)), 0
    return x, normalize_axis(name, axis, x.ndim)


# ---- sorting ----


def sort(a: ArrayLike, /, axis: int | None = -1, *, stream: Stream = None) -> array:
    """The elements in increasing order along an axis; of the flattened array if it is None. Stable; NaN comes last.

    >>> sort(array([3.0, float("nan"), -1.0, 2.0]))
    array([-1, 2, 3, nan], dtype=float32)
    """
    x, axis = _operand("sort", a, axis)
    return wrap(bind(Sort(axis), x))


def argsort(a: ArrayLike, /, axis: int | None = -1, *, stream: Stream = None) -> array:
    """The places (uint32) of the elements in increasing order along an axis; of the flattened array if it is None.
    Stable; NaN comes last.

    >>> argsort(array([30, 10, 20, 10]))
    array([1, 3, 2, 0], dtype=uint32)
    """
    x, axis = _operand("argsort", a, axis)
    return wrap(bind(ArgSort(axis), x))


def partition(a: ArrayLike, /, kth: int, axis: int | None = -1, *, stream: Stream = None) -> array:
    """The elements with the one of rank `kth` in its sorted place, none larger before it and none smaller after it.

    What else the order is may change. Today axes of up to 64 elements are sorted; of longer ones, what comes before the
    element and what comes after it keeps the order that it had.

    >>> partition(array([5, 1, 4, 2, 3]), 2)[2]
    array(3, dtype=int32)
    """
    x, axis = _operand("partition", a, axis)
    kth = _rank("partition", x, kth, axis)
    return wrap(bind(Sort(axis) if x.shape[axis] <= SHORT else Partition(axis, kth), x))


def argpartition(a: ArrayLike, /, kth: int, axis: int | None = -1, *, stream: Stream = None) -> array:
    """The places (uint32) from which `partition` takes its elements."""
    x, axis = _operand("argpartition", a, axis)
    kth = _rank("argpartition", x, kth, axis)
    return wrap(bind(ArgSort(axis) if x.shape[axis] <= SHORT else ArgPartition(axis, kth), x))


def _rank(name: str, x: Node, kth: Any, axis: int) -> int:
    """A rank along an axis as a number, refused if there is no such element."""
    n, kth = x.shape[axis], int(whole_number(name, "kth", kth))
    if not -n <= kth < n:
        raise ValueError(f"[{name}] kth {kth} is out of range for {n} elements along axis {axis} (shape {x.shape}).")
    return kth


def _taken(x: Node, places: Node, axis: int) -> Node:
    """The elements at places along an axis, one for each."""
    where = tuple(None if i == axis else i for i in range(x.ndim))
    return bind(Gather(where, tuple(range(x.ndim))), x, places)


def topk(a: ArrayLike, /, k: int, axis: int | None = -1, *, stream: Stream = None) -> array:
    """The `k` largest elements along an axis; of the flattened array if it is None. NaN counts as largest.

    Their order may change; today it is increasing.

    >>> topk(array([5, 1, 9, 7]), 2)
    array([7, 9], dtype=int32)
    """
    x, axis = _operand("topk", a, axis)
    n = x.shape[axis]
    k = whole_number("topk", "k", k)
    if not 0 <= k <= n:
        raise ValueError(f"[topk] k {k} is out of range for {n} elements along axis {axis} (shape {x.shape}).")
    if type(n) is int and type(k) is int and n > SHORT and 0 < k <= n // 2:  # the same elements as below, and faster
        if k <= n // FEW:
            return wrap(_taken(x, bind(ArgSelect(axis, k, True), x), axis))
        return wrap(bind(Sort(axis), slice_axis(bind(Partition(axis, -k), x), axis, n - k, k)))
    return wrap(slice_axis(bind(Sort(axis), x), axis, n - k, k))


# ---- searching ----


def searchsorted(
    sorted_sequence: ArrayLike, values: ArrayLike, /, side: str = "left", *, stream: Stream = None
) -> array:
    """Where `values` would have to be put into a sorted sequence (one axis) to keep it sorted: a uint32 array in the
    shape of the values.

    The place is before equal elements if side is "left", after them if it is "right".

    >>> searchsorted(array([1, 2, 2, 4]), array([0, 2, 3, 5]))
    array([0, 1, 3, 4], dtype=uint32)
    """
    if side not in ("left", "right"):
        raise ValueError(f"[searchsorted] side must be 'left' or 'right'; got {side!r}.")
    sequence = to_node(sorted_sequence)
    if sequence.ndim != 1:
        raise ValueError(f"[searchsorted] the sorted sequence must have one axis; got shape {sequence.shape}.")
    wanted = to_node(values)
    if isinstance(values, (bool, int, float, complex)):
        dtype = dt.promote_scalar(sequence.dtype, type(values))
        wanted = scalar_node(values, kind_of((), dtype))
    else:
        dtype = dt.promote(sequence.dtype, wanted.dtype)
    return wrap(bind(SearchSorted(side == "right"), astype(sequence, dtype), astype(wanted, dtype)))


# ---- distinct elements ----


def unique(
    a: ArrayLike, /, size: int | None = None, return_index: bool = False, return_inverse: bool = False,
    return_counts: bool = False, fill_value: ArrayLike | None = None, *, stream: Stream = None,
) -> array | tuple[array, ...]:  # fmt: skip
    """The distinct elements of the flattened array in increasing order: all of them, or the `size` smallest, and then
    `fill_value` (the first of them by default) if there are fewer.

    On request also, in this order: the place of the first occurrence of each (uint32), the place in the result of each
    element of `a` (uint32, in the shape of `a`), the number of occurrences of each (int32; 0 for what was filled in).
    Where a size is given nothing has to be computed to know the shape. If it is too small, places beyond it become the
    last one. Every NaN is distinct from all others.

    >>> unique(array([2, 1, 2, 3, 1]))
    array([1, 2, 3], dtype=int32)
    """
    x = to_node(a)
    if size is None:
        found = _distinct(x, return_index, return_inverse, return_counts)
        return wrap(found[0]) if len(found) == 1 else tuple(wrap(node) for node in found)
    if isinstance(size, (float, array)) or not hasattr(size, "__index__"):
        raise TypeError(f"[unique] size must be an integer; got {size!r}.")
    if size < 0:
        raise ValueError(f"[unique] size cannot be negative; got {size}.")
    n = x.kind.size
    flat = reshape(x, (n,))
    empty = is_now(n, 0)
    if empty and size > 0 and fill_value is None:
        raise ValueError("[unique] an array without elements has none to fill the result with; give a fill_value.")
    order = bind(ArgSort(0), flat)
    placed = bind(Gather((None,), (0,)), flat, order)
    new = _starts(placed)
    counted = bind(CumSum(0), astype(new, dt.int32))
    ranks = counted - full_like(counted, 1)
    limit = full_like(ranks, size)
    kept = bind(e.Minimum(), ranks, limit)
    slots = e.select(new, kept, limit)  # one more slot than asked for: for what has no place in the result
    results = [_scattered(_filling(fill_value, placed, size), placed, slots, size)]
    if return_index:
        results.append(_scattered(_filling(0 if empty else None, order, size), order, slots, size))
    if return_inverse:
        inside = astype(bind(e.Minimum(), ranks, full_like(ranks, max(0, size - 1))), dt.uint32)
        results.append(reshape(_put(constant(0, inside.kind), inside, order), x.shape))
    if return_counts:
        zero = constant(0, kind_of((size + 1,), dt.int32))
        counts = bind(ScatterAdd((None,), (0,)), zero, full_like(ranks, 1), kept)
        results.append(slice_axis(counts, 0, 0, size))
    return wrap(results[0]) if len(results) == 1 else tuple(wrap(node) for node in results)


def _distinct(x: Node, index: bool, inverse: bool, counts: bool) -> list[Node]:
    """All distinct elements, and what was asked for beside them. How many there are depends on data."""
    n = x.kind.size
    flat = reshape(x, (n,))
    order = bind(ArgSort(0), flat)
    placed = bind(Gather((None,), (0,)), flat, order) if not is_now(n, 0) else flat
    new = _starts(placed)
    count = counted("unique", new)
    first = positions(new, count)
    results = [_at(placed, first)]
    if index:
        results.append(_at(order, first))
    if inverse:
        ranks = bind(CumSum(0), astype(new, dt.int32))
        ranks = astype(ranks - full_like(ranks, 1), dt.uint32)
        results.append(reshape(ranks if is_now(n, 0) else _put(constant(0, ranks.kind), ranks, order), x.shape))
    if counts:
        end = scalar_node(n, kind_of((1,), dt.int64))
        after = first if is_now(count, 0) else bind(Concatenate(0), slice_axis(first, 0, 1, count - 1), end)
        results.append(astype(after - first, dt.int32))
    return results


def _at(x: Node, index: Node) -> Node:
    """The elements at these positions, if there are any."""
    if is_now(index.shape[0], 0):
        return constant(0, kind_of((0,), x.dtype))
    return bind(Gather((None,), (0,)), x, index)


def _put(x: Node, updates: Node, index: Node) -> Node:
    return bind(ScatterSet((None,), (0,)), x, updates, index)


def _starts(placed: Node) -> Node:
    """Whether an element of a sorted sequence differs from the one before it."""
    n = placed.shape[0]
    first = constant(True, kind_of((1,), dt.bool_))
    if is_now(n, 0) or is_now(n, 1):
        return constant(True, kind_of((0,), dt.bool_)) if is_now(n, 0) else first
    differs = bind(e.NotEqual(), slice_axis(placed, 0, 1, n - 1), slice_axis(placed, 0, 0, n - 1))
    return bind(Concatenate(0), first, differs)


def _filling(value: ArrayLike | None, placed: Node, size: int) -> Node:
    """What stands where there are no more distinct elements: a given number, or the first of them."""
    if size == 0:
        return constant(0, kind_of((0,), placed.dtype))
    if value is None:
        return broadcast_node(slice_axis(placed, 0, 0, 1), (size,))
    node = astype(to_node(value), placed.dtype)
    if node.kind.size != 1:
        raise ValueError(f"[unique] fill_value must be one element; got shape {node.shape}.")
    return broadcast_node(reshape(node, (1,)), (size,))


def _scattered(fill: Node, updates: Node, slots: Node, size: int) -> Node:
    """`size` elements with updates in their slots; slot number `size` is cut off."""
    spare = constant(0, kind_of((1,), fill.dtype))
    return slice_axis(_put(bind(Concatenate(0), fill, spare), updates, slots), 0, 0, size)


# ---- medians and extremes ----


def median(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The middle element over axes (all by default), or the mean of the two in the middle; NaN if any element is.

    >>> median(array([3, 1, 2, 10]))
    array(2.5, dtype=float32)
    """
    x = to_node(a)
    x = astype(x, dt.inexact_of(x.dtype))
    axes = normalize_axes("median", axis, x.ndim)
    if reducing.any_empty(x, axes):
        raise ValueError(f"[median] an axis of size 0 (shape {x.shape}) has no middle.")
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    count = prod(tuple(x.shape[i] for i in axes))
    shape = tuple(x.shape[i] for i in kept)
    rows = reshape(transpose(x, (*kept, *axes)), (*shape, count))
    if type(count) is int and count > SHORT:
        out = _mean_of_middle(*_divided(rows, count))
    else:
        out = _mean_of_middle(*_sorted(bind(Sort(len(kept)), rows), count))
    out = reshape(out, shape)
    return wrap(reshape(out, reduced_shape(x.shape, axes)) if keepdims else out)


def _sorted(rows: Node, n: Any) -> tuple[Node, Node | None, Node]:
    """The element in the middle of sorted rows, the one before it if n is even, and what is NaN if any element is."""
    axis = rows.ndim - 1
    lower = slice_axis(rows, axis, n // 2 - 1, 1) if n % 2 == 0 else None
    return slice_axis(rows, axis, n // 2, 1), lower, slice_axis(rows, axis, n - 1, 1)


def _divided(rows: Node, n: int) -> tuple[Node, Node | None, Node]:
    """The same of rows in any order: divided at the lower one, the other is the first of the smallest behind it."""
    axis, k = rows.ndim - 1, (n - 1) // 2
    parts = bind(Partition(axis, k), rows)
    middle, behind = slice_axis(parts, axis, k, 1), slice_axis(parts, axis, k + 1, n - 1 - k)
    last = to_node(reducing.max(wrap(slice_axis(parts, axis, k, n - k)), -1, keepdims=True))
    if n % 2:
        return middle, None, last
    return _taken(behind, to_node(reducing.argmin(wrap(behind), -1, keepdims=True)), axis), middle, last


def _mean_of_middle(middle: Node, lower: Node | None, last: Node) -> Node:
    """The median of rows. Halves are averaged in float32 and rounded once."""
    if lower is not None:
        wide = dt.float32 if middle.dtype in dt.HALVES else middle.dtype
        total = astype(lower, wide) + astype(middle, wide)
        middle = astype(total * full_like(total, 0.5), middle.dtype)
    return e.select(bind(e.IsNan(), last), full_like(last, float("nan")), middle)


def minmax(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> tuple[array, array]:
    """(the smallest, the largest) element over axes (all by default); NaN if any is.

    >>> minmax(array([3, 1, 2]))
    (array(1, dtype=int32), array(3, dtype=int32))
    """
    return reducing.min(a, axis, keepdims), reducing.max(a, axis, keepdims)
