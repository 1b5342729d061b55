"""Operators that order elements. NaN counts as the largest; equal elements keep their order."""

from __future__ import annotations

from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Table, axis_of, to
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
