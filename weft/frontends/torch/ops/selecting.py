"""Operators whose results have sizes that depend on data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, iota, to
from weft.transforms.computed import computed_size

aten = Table()


@aten("_local_scalar_dense")
def item(out: Out, x: mx.array) -> mx.array:
    """The number as an array; where a size is asked for, it becomes one (data_sizes.py)."""
    return mx.reshape(x, ())


@aten("nonzero")
def nonzero(out: Out, x: mx.array) -> mx.array:
    if not x.ndim:
        return mx.argwhere(mx.reshape(x, (1,)))[:, :0]
    return to(mx.argwhere(x), mx.int64)


@aten("masked_select")
def masked_select(out: Out, x: mx.array, mask: mx.array) -> mx.array:
    shape = mx.broadcast_shapes(x.shape, mask.shape)
    whole = mx.reshape(mx.broadcast_to(x, shape), (-1,))
    return whole[mx.reshape(mx.broadcast_to(mask, shape), (-1,))]


def places_of(indices: Sequence[mx.array | None]) -> list[mx.array | None]:
    """Indices in which each mask is the places that it marks, along each of its axes. One without axes stands for none,
    and torch has it only beside others."""
    found: list[mx.array | None] = []
    for index in indices:
        if index is None or not (index.dtype.is_bool or index.dtype is mx.uint8):
            found.append(index)
        elif index.ndim:
            found.extend(to(places, mx.int64) for places in mx.nonzero(to(index, mx.bool_)))
    return found


@aten("repeat_interleave.Tensor")
def repeat_interleave(out: Out, repeats: mx.array, *, output_size: Any = None) -> mx.array:
    """The number of each element as often as it says."""
    counts = to(repeats, mx.int64)
    n = output_size if output_size is not None else computed_size("repeat_interleave", mx.sum(counts)._node)
    if isinstance(n, int) and n == 0:
        return mx.zeros((0,), out.dtype)
    return to(mx.searchsorted(mx.cumsum(counts), iota(n), side="right"), out.dtype)


@aten("_unique2")
def unique(
    out: Any, x: mx.array, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[mx.array, ...]:
    values, inverse, counts = mx.unique(x, return_inverse=True, return_counts=True)  # type: ignore[misc]
    none = mx.zeros((0,), mx.int64)
    return values, to(inverse, mx.int64) if return_inverse else none, to(counts, mx.int64) if return_counts else none


@aten("unique_consecutive")
def unique_consecutive(
    out: Any, x: mx.array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[mx.array, ...]:
    """Of elements, or of slices along an axis."""
    values = mx.reshape(x, (-1,)) if dim is None else mx.moveaxis(x, dim, 0)
    rows, inverse, counts = _runs(values, return_inverse, return_counts)
    if dim is None:
        return rows, mx.reshape(inverse, x.shape) if return_inverse else inverse, counts
    return mx.moveaxis(rows, 0, dim), inverse, counts


@aten("unique_dim_consecutive")
def unique_dim_consecutive(
    out: Any, x: mx.array, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[mx.array, ...]:
    return unique_consecutive(out, x, return_inverse, return_counts, dim)


@aten("unique_dim")
def unique_dim(
    out: Any, x: mx.array, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[mx.array, ...]:
    """Distinct slices along an axis, in the order of their elements."""
    rows = mx.moveaxis(x, dim, 0)
    order = _order_of_rows(rows)
    found, inverse, counts = _runs(mx.take(rows, order, axis=0), return_inverse, return_counts)
    if return_inverse:
        inverse = mx.zeros(order.shape, mx.int64).at[order].add(inverse)
    return mx.moveaxis(found, 0, dim), inverse, counts


def _order_of_rows(rows: mx.array) -> mx.array:
    """The numbers of rows, sorted by their first elements, then by their second ones, and so on."""
    n = rows.shape[0]
    if is_none(rows.size):
        return iota(n)
    columns = mx.transpose(mx.reshape(rows, (n, rows.size // n)))

    def sort_by(order: mx.array, column: mx.array) -> tuple[mx.array, None]:
        return mx.take(order, mx.argsort(mx.take(column, order)), axis=0), None

    return mx.scan(sort_by, iota(n), columns, reverse=True)[0]


def is_none(n: Any) -> bool:
    """Whether a size is known to be 0."""
    return type(n) is int and n == 0


def _runs(rows: mx.array, return_inverse: bool, return_counts: bool) -> tuple[mx.array, mx.array, mx.array]:
    """The first rows of runs of equal ones, the number of each row's run, and how many each has."""
    n = rows.shape[0]
    none = mx.zeros((0,), mx.int64)
    if is_none(n):
        return rows, none, none
    differ = rows[1:] != rows[:-1]
    if rows.ndim > 1:
        differ = mx.any(mx.reshape(differ, (n - 1, -1)), axis=1) if not is_none(rows.size) else mx.zeros((n - 1,)) > 0
    is_new = mx.concatenate([mx.ones((1,), mx.bool_), differ])
    first = to(mx.flatnonzero(is_new), mx.int64)
    inverse = mx.cumsum(to(is_new, mx.int64)) - 1 if return_inverse else none
    ends = mx.concatenate([first[1:], mx.full((1,), n, mx.int64)]) if return_counts else none
    return mx.take(rows, first, axis=0), inverse, ends - first if return_counts else none


@aten("bincount")
def bincount(out: Out, x: mx.array, weights: mx.array | None = None, minlength: int = 0) -> mx.array:
    return to(mx.bincount(x, to(weights, out.dtype) if weights is not None else None, minlength), out.dtype)
