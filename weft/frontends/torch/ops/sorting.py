"""Operators that order elements. NaN counts as the largest; equal elements keep their order."""

from __future__ import annotations

from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Table, axis_of, to
from weft.frontends.torch.ops.views import part

aten = Table()


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


@aten("topk")
def topk(
    out: Any, x: mx.array, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[mx.array, mx.array]:
    if not x.ndim:
        return x, mx.zeros((), mx.int64)
    axis = axis_of(dim, x.ndim)
    order = _order(x, axis, largest)[part(x.ndim, axis, slice(0, k))]
    return mx.take_along_axis(x, order, axis=axis), order


@aten("kthvalue")
def kthvalue(out: Any, x: mx.array, k: Any, dim: int = -1, keepdim: bool = False) -> tuple[mx.array, mx.array]:
    if not x.ndim:
        return x, mx.zeros((), mx.int64)
    axis = axis_of(dim, x.ndim)
    order = _order(x, axis, False)[part(x.ndim, axis, slice(k - 1, k))]
    values = mx.take_along_axis(x, order, axis=axis)
    return (values, order) if keepdim else (mx.squeeze(values, axis), mx.squeeze(order, axis))
