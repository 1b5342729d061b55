"""Operators that order elements. NaN counts as the largest; equal elements keep their order."""

from __future__ import annotations

from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, axis_of, to
from weft.frontends.torch.ops.views import part

aten = Table()

FEW, SHORT = 8, 64
"""One in so many elements of an axis that is longer than this are few: to select them first is faster than to sort."""


def _order(x: mx.array, axis: int, descending: bool) -> mx.array:
    """The places of the elements in order. Descending, equal ones keep their order too: what is sorted backwards is the
    array seen backwards."""
    if not descending:
        return to(mx.argsort(x, axis=axis), mx.int64)
    backwards = mx.argsort(mx.flip(x, axis), axis=axis)
    return (x.shape[axis] - 1) - to(mx.flip(backwards, axis), mx.int64)


def _sorted(x: mx.array, dim: int, descending: bool) -> tuple[mx.array, mx.array]:
    if not x.ndim:
        return x, mx.zeros((), mx.int64)
    axis = axis_of(dim, x.ndim)
    order = _order(x, axis, descending)
    return mx.take_along_axis(x, order, axis=axis), order


@aten("sort")
def sort(out: Any, x: mx.array, dim: int = -1, descending: bool = False) -> tuple[mx.array, mx.array]:
    return _sorted(x, dim, descending)


@aten("sort.stable")
def sort_stable(
    out: Any, x: mx.array, *, stable: bool | None, dim: int = -1, descending: bool = False
) -> tuple[mx.array, mx.array]:
    return _sorted(x, dim, descending)


@aten("argsort", "argsort.stable")
def argsort(out: Any, x: mx.array, dim: int = -1, descending: bool = False, *, stable: bool = False) -> mx.array:
    return _sorted(x, dim, descending)[1]


def _first(x: mx.array, k: Any, axis: int, descending: bool) -> mx.array:
    """The places of the first k elements in order. Where these are few, they are selected before they are sorted."""
    n = x.shape[axis]
    if not isinstance(n, int) or not isinstance(k, int) or n <= SHORT or not 0 < k <= n // FEW:
        return _order(x, axis, descending)[part(x.ndim, axis, slice(0, k))]
    cut = slice(n - k, n) if descending else slice(0, k)
    places = mx.argpartition(x, n - k if descending else k - 1, axis=axis)[part(x.ndim, axis, cut)]
    inner = _order(mx.take_along_axis(x, places, axis=axis), axis, descending)
    return to(mx.take_along_axis(places, inner, axis=axis), mx.int64)


@aten("topk")
def topk(
    out: Any, x: mx.array, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[mx.array, mx.array]:
    if not x.ndim:
        return x, mx.zeros((), mx.int64)
    axis = axis_of(dim, x.ndim)
    order = _first(x, k, axis, largest)
    return mx.take_along_axis(x, order, axis=axis), order


def _kth(x: mx.array, k: Any, axis: int) -> mx.array:
    """The place of the element that stands at k, counted from 1, with its axis."""
    order = mx.argpartition(x, k - 1, axis=axis) if isinstance(k, int) else _order(x, axis, False)
    return to(order[part(x.ndim, axis, slice(k - 1, k))], mx.int64)


@aten("kthvalue")
def kthvalue(out: Any, x: mx.array, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[mx.array, mx.array]:
    if not x.ndim:
        return x, mx.zeros((), mx.int64)
    axis = axis_of(dim, x.ndim)
    order = _kth(x, k, axis)
    values = mx.take_along_axis(x, order, axis=axis)
    return (values, order) if keepdim else (mx.squeeze(values, axis), mx.squeeze(order, axis))


# ---- the middle, and the most frequent ----


def _median(x: mx.array, axis: int, skips_nan: bool) -> tuple[mx.array, mx.array]:
    """The element in the middle, the lower of two, and its place, with its axis. A NaN counts for all, or for none."""
    n = x.shape[axis]
    if not isinstance(n, int) or n == 0:
        raise ValueError("a median of how many elements is not known")
    order = _order(x, axis, False)
    middle: Any = mx.full((1,) * x.ndim, (n - 1) // 2, mx.int64)
    if x.dtype.kind == "f":
        count = mx.sum(to(mx.isnan(x), mx.int64), axis=axis, keepdims=True)
        if skips_nan:
            middle = mx.maximum(mx.floor_divide(mx.maximum(n - count - 1, 0), 2), 0)
        else:
            middle = mx.where(count > 0, n - count, middle)
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    place = mx.take_along_axis(order, mx.broadcast_to(middle, shape), axis=axis)
    return mx.take_along_axis(x, place, axis=axis), place


def _of_axis(x: mx.array, dim: int, keepdim: bool, found: Any) -> tuple[mx.array, mx.array]:
    if not x.ndim:
        return x, mx.zeros((), mx.int64)
    axis = axis_of(dim, x.ndim)
    values, places = found(x, axis)
    return (values, places) if keepdim else (mx.squeeze(values, axis), mx.squeeze(places, axis))


def _medians(name: str, skips_nan: bool) -> None:
    @aten(f"{name}.dim")
    def along(out: Any, x: mx.array, dim: int = -1, keepdim: bool = False) -> tuple[mx.array, mx.array]:
        return _of_axis(x, dim, keepdim, lambda a, axis: _median(a, axis, skips_nan))

    @aten(name)
    def whole(out: Any, x: mx.array) -> mx.array:
        return mx.reshape(_median(mx.reshape(x, (-1,)), 0, skips_nan)[0], ())


_medians("median", False)
_medians("nanmedian", True)


def _mode(x: mx.array, axis: int) -> tuple[mx.array, mx.array]:
    """The smallest of the elements that occur most often, and where it does so last."""
    n = x.shape[axis]
    if not isinstance(n, int) or n == 0:
        raise ValueError("the most frequent of how many elements is not known")
    order = _order(x, axis, False)
    ordered = mx.take_along_axis(x, order, axis=axis)
    places = mx.reshape(mx.arange(n, dtype=mx.int64), (-1,) + (1,) * (x.ndim - 1 - axis))
    before = mx.take(ordered, mx.maximum(mx.arange(n, dtype=mx.int64) - 1, 0), axis=axis)
    is_first = mx.logical_or(places == 0, ordered != before)
    length = places - mx.cummax(mx.where(is_first, places, to(0, mx.int64)), axis=axis)
    last = mx.argmax(length, axis=axis, keepdims=True)
    return mx.take_along_axis(ordered, last, axis=axis), mx.take_along_axis(order, last, axis=axis)


@aten("mode")
def mode(out: Any, x: mx.array, dim: int = -1, keepdim: bool = False) -> tuple[mx.array, mx.array]:
    return _of_axis(x, dim, keepdim, _mode)


# ---- places in what is sorted ----


@aten("searchsorted.Tensor", "searchsorted.Scalar")
def searchsorted(
    out: Out, boundaries: mx.array, x: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None,
    sorter: mx.array | None = None,
) -> mx.array:  # fmt: skip
    """Of each row in the row of boundaries that goes with it, or of all in one."""
    ordered = boundaries if sorter is None else mx.take_along_axis(boundaries, sorter, axis=-1)
    given = x if isinstance(x, mx.array) else to(x, ordered.dtype)
    which = "right" if right or side == "right" else "left"
    if ordered.ndim == 1:
        return to(mx.searchsorted(ordered, given, which), out.dtype)
    rows = mx.reshape(ordered, (-1, ordered.shape[-1])), mx.reshape(given, (-1, given.shape[-1]))
    found = mx.vmap(lambda row, wanted: mx.searchsorted(row, wanted, which))(*rows)
    return mx.reshape(to(found, out.dtype), given.shape)


@aten("bucketize.Tensor", "bucketize.Scalar")
def bucketize(out: Out, x: Any, boundaries: mx.array, *, out_int32: bool = False, right: bool = False) -> mx.array:
    return searchsorted(out, boundaries, x, right=right)
