"""Running sums, products and extremes along an axis."""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.core._common import ArrayLike, array, astype, bind, normalize_axis, reshape, to_node, wrap
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives import scans

Stream = Any


def _scan(name: str, op: type[scans.Cumulative], x: Node, axis: int | None, reverse: bool, inclusive: bool) -> array:
    if x.dtype not in op.dtypes:
        raise ValueError(f"[{name}] is not defined for {x.dtype.name} arrays.")
    if axis is None:
        x, axis = reshape(x, (x.kind.size,)), 0
    axis = normalize_axis(name, axis, x.ndim)
    return wrap(bind(op(axis, bool(reverse), not inclusive), x))


def cumsum(
    a: ArrayLike,
    /,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    dtype: Dtype | None = None,
    stream: Stream = None,
) -> array:
    """Running sums along an axis (of the flattened array by default), from its end if `reverse`; without the element
    itself if not `inclusive`.

    >>> cumsum(array([1, 2, 3]))
    array([1, 3, 6], dtype=int32)
    """
    x = to_node(a)
    x = astype(x, dtype or (dt.int32 if x.dtype.is_bool else x.dtype))
    return _scan("cumsum", scans.CumSum, x, axis, reverse, inclusive)


def cumprod(
    a: ArrayLike,
    /,
    axis: int | None = None,
    *,
    reverse: bool = False,
    inclusive: bool = True,
    dtype: Dtype | None = None,
    stream: Stream = None,
) -> array:
    """Running products along an axis (of the flattened array by default).

    >>> cumprod(array([1, 2, 3, 4]))
    array([1, 2, 6, 24], dtype=int32)
    """
    x = to_node(a)
    return _scan("cumprod", scans.CumProd, astype(x, dtype or x.dtype), axis, reverse, inclusive)


cumulative_sum, cumulative_prod = cumsum, cumprod


def cummax(
    a: ArrayLike, /, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: Stream = None
) -> array:
    """Running maxima along an axis (of the flattened array by default); NaN from the first NaN on.

    >>> cummax(array([1, 3, 2, 5]))
    array([1, 3, 3, 5], dtype=int32)
    """
    return _scan("cummax", scans.CumMax, to_node(a), axis, reverse, inclusive)


def cummin(
    a: ArrayLike, /, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: Stream = None
) -> array:
    """Running minima along an axis (of the flattened array by default); NaN from the first NaN on."""
    return _scan("cummin", scans.CumMin, to_node(a), axis, reverse, inclusive)


def logcumsumexp(
    a: ArrayLike, /, axis: int | None = None, *, reverse: bool = False, inclusive: bool = True, stream: Stream = None
) -> array:
    """log(cumsum(exp(a))) along an axis (of the flattened array by default), without overflow."""
    x = to_node(a)
    return _scan("logcumsumexp", scans.CumLogAddExp, astype(x, dt.inexact_of(x.dtype)), axis, reverse, inclusive)
