"""Reductions, and what is built from them: means, variances, softmax, logsumexp."""

from __future__ import annotations

import builtins
from typing import Any

from weft import dtypes as dt
from weft.core._common import (
    ArrayLike,
    Axes,
    array,
    astype,
    bind,
    kind_of,
    normalize_axes,
    normalize_axis,
    size_node,
    to_node,
    wrap,
)
from weft.core._remember import remembered
from weft.dtypes import Dtype
from weft.graph.dims import Dim, dim_max, is_now, prod
from weft.graph.node import Node
from weft.primitives import elementwise as e
from weft.primitives import reductions as r
from weft.primitives.base import constant, reduced_shape
from weft.primitives.views import reshape, restore_axes

Stream = Any


def _reduce(op: type[Any], x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    fold = op(axes)
    out = bind(fold, x) if axes else astype(x, fold.result(x.dtype))
    return reshape(out, reduced_shape(x.shape, axes)) if keepdims else out


def _count(x: Node, axes: tuple[int, ...]) -> Any:
    return prod(tuple(x.shape[a] for a in axes))


def _refuse_empty(name: str, x: Node, axes: tuple[int, ...]) -> None:
    if any_empty(x, axes):
        raise ValueError(
            f"[{name}] cannot reduce an axis of size 0 (shape {x.shape}): there is no smallest or largest of nothing."
        )


@remembered(1)
def sum(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The sum over axes (all by default).

    >>> sum(array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
    array([4, 6], dtype=float32)
    """
    x = to_node(a)
    return wrap(_reduce(r.Sum, x, normalize_axes("sum", axis, x.ndim), keepdims))


@remembered(1)
def prod_(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The product over axes (all by default)."""
    x = to_node(a)
    return wrap(_reduce(r.Prod, x, normalize_axes("prod", axis, x.ndim), keepdims))


prod_.__name__ = "prod"


@remembered(1)
def max(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The largest element over axes (all by default); NaN if any is.

    >>> max(array([[1, 5], [7, 2]]), axis=0)
    array([7, 5], dtype=int32)
    """
    x = to_node(a)
    axes = normalize_axes("max", axis, x.ndim)
    _refuse_empty("max", x, axes)
    return wrap(_reduce(r.Max, x, axes, keepdims))


@remembered(1)
def min(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The smallest element over axes (all by default); NaN if any is."""
    x = to_node(a)
    axes = normalize_axes("min", axis, x.ndim)
    _refuse_empty("min", x, axes)
    return wrap(_reduce(r.Min, x, axes, keepdims))


@remembered(1)
def all(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """Whether all elements along axes are nonzero.

    >>> all(array([[True, False], [True, True]]), axis=1)
    array([False, True], dtype=bool)
    """
    x = astype(to_node(a), dt.bool_)
    return wrap(_reduce(r.All, x, normalize_axes("all", axis, x.ndim), keepdims))


@remembered(1)
def any(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """Whether any element along axes is nonzero.

    >>> any(array([[0, 0], [0, 3]]), axis=1)
    array([False, True], dtype=bool)
    """
    x = astype(to_node(a), dt.bool_)
    return wrap(_reduce(r.Any_, x, normalize_axes("any", axis, x.ndim), keepdims))


def count_nonzero(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """How many elements along axes (all by default) are not zero.

    >>> count_nonzero(array([[1, 0], [2, 3]]), axis=0)
    array([2, 1], dtype=int32)
    """
    x = astype(astype(to_node(a), dt.bool_), dt.int32)
    return wrap(_reduce(r.Sum, x, normalize_axes("count_nonzero", axis, x.ndim), keepdims))


def _arg(name: str, op: type[Any], a: ArrayLike, axis: int | None, keepdims: bool) -> array:
    x = to_node(a)
    shape = x.shape
    if axis is None:
        x = reshape(x, (x.kind.size,))
    axes = (normalize_axis(name, 0 if axis is None else axis, x.ndim),)
    _refuse_empty(name, x, axes)
    out = bind(op(axes), x)
    if keepdims:
        out = reshape(out, (1,) * len(shape) if axis is None else reduced_shape(shape, axes))
    return wrap(out)


def argmax(a: ArrayLike, /, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The place of the (first) largest element along an axis, or in the flattened array.

    >>> argmax(array([[1, 9, 2], [7, 3, 5]]), axis=1)
    array([1, 0], dtype=uint32)
    """
    return _arg("argmax", r.ArgMax, a, axis, keepdims)


def argmin(a: ArrayLike, /, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The place of the (first) smallest element along an axis, or in the flattened array."""
    return _arg("argmin", r.ArgMin, a, axis, keepdims)


@remembered(1)
def mean(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The arithmetic mean over axes (all by default).

    >>> mean(array([[1.0, 2.0], [3.0, 5.0]]), axis=1, keepdims=True)
    array([[1.5],
           [4]], dtype=float32)
    """
    x = to_node(a)
    x = astype(x, dt.inexact_of(x.dtype))
    axes = normalize_axes("mean", axis, x.ndim)
    return wrap(_mean(x, axes, keepdims))


def _widened(x: Node) -> tuple[Node, Dtype]:
    """Halves as float32: composites round once, at the end."""
    return (astype(x, dt.float32), x.dtype) if x.dtype in dt.HALVES else (x, x.dtype)


def _mean(x: Node, axes: tuple[int, ...], keepdims: bool) -> Node:
    wide, dtype = _widened(x)
    total = _reduce(r.Sum, wide, axes, keepdims)
    return astype(total / _number(total, _count(x, axes)), dtype)


def _number(like: Node, n: Any) -> Node:
    """A size as a constant of the kind of `like`."""
    return size_node(n if type(n) is Dim else float(n), like.kind)


@remembered(1)
def var(
    a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, ddof: int = 0, *, correction: int | None = None,
    stream: Stream = None,
) -> array:  # fmt: skip
    """The variance over axes (all by default); the divisor is the count minus `ddof`, which the Python array API calls
    `correction`.

    >>> var(array([1.0, 3.0]), ddof=1)
    array(2, dtype=float32)
    """
    x = to_node(a)
    x = astype(x, dt.inexact_of(x.dtype))
    axes = normalize_axes("var", axis, x.ndim)
    return wrap(_var(x, axes, keepdims, ddof if correction is None else correction))


def _var(x: Node, axes: tuple[int, ...], keepdims: bool, ddof: int) -> Node:
    wide, dtype = _widened(x)
    center = restore_axes(_mean(wide, axes, False), wide.shape, axes)
    deviation = wide - center
    square = e.real(deviation * e.conjugate(deviation)) if wide.dtype.is_complex else bind(e.Square(), deviation)
    total = _reduce(r.Sum, square, axes, keepdims)
    divisor = _number(total, dim_max(_count(x, axes) - ddof, 0))
    return astype(total / divisor, dt.real_of(dtype))


@remembered(1)
def std(
    a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, ddof: int = 0, *, correction: int | None = None,
    stream: Stream = None,
) -> array:  # fmt: skip
    """The standard deviation over axes (all by default): the square root of `var`.

    >>> std(array([1.0, 3.0]))
    array(1, dtype=float32)
    """
    x = to_node(a)
    x = astype(x, dt.inexact_of(x.dtype))
    axes = normalize_axes("std", axis, x.ndim)
    return wrap(bind(e.Sqrt(), _var(x, axes, keepdims, ddof if correction is None else correction)))


def _shift(x: Node, axes: tuple[int, ...]) -> Node:
    """The largest element along axes, 0 where that is infinite; a constant for differentiation (results do not depend
    on it)."""
    top = bind(e.StopGradient(), bind(r.Max(axes), x))
    size = bind(e.Absolute(), e.real(top))
    return e.select(bind(e.Equal(), size, constant(float("inf"), size.kind)), constant(0, top.kind), top)


@remembered(1)
def logsumexp(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """log(sum(exp(a))) over axes (all by default), without overflow; -inf for nothing but -inf.

    >>> logsumexp(array([1000.0, 1000.0]))
    array(1000.69, dtype=float32)
    """
    x = to_node(a)
    x = astype(x, dt.inexact_of(x.dtype))
    axes = normalize_axes("logsumexp", axis, x.ndim)
    if not axes:
        return wrap(x)
    if any_empty(x, axes):
        return wrap(constant(float("-inf"), kind_of(_reduce(r.Sum, x, axes, keepdims).shape, x.dtype)))
    wide, dtype = _widened(x)
    shift = _shift(wide, axes)
    total = bind(r.Sum(axes), e.exp(wide - restore_axes(shift, wide.shape, axes)))
    result = astype(e.log(total) + shift, dtype)
    return wrap(reshape(result, reduced_shape(x.shape, axes)) if keepdims else result)


def any_empty(x: Node, axes: tuple[int, ...]) -> bool:
    """Whether one of these axes has no elements."""
    return builtins.any(is_now(x.shape[axis], 0) for axis in axes)


@remembered(1)
def softmax(a: ArrayLike, /, axis: Axes = None, *, precise: bool = False, stream: Stream = None) -> array:
    """exp(a) / sum(exp(a)) over axes (all by default), without overflow. Always computed in at least float32.

    >>> softmax(array([[0.0, 0.0], [1000.0, -1000.0]]), axis=-1)
    array([[0.5, 0.5],
           [1, 0]], dtype=float32)
    """
    x = to_node(a)
    x = astype(x, dt.inexact_of(x.dtype))
    axes = normalize_axes("softmax", axis, x.ndim)
    if any_empty(x, axes) or not axes:
        return wrap(constant(1, x.kind) if not axes else x)
    wide, dtype = _widened(x)
    top = bind(e.StopGradient(), bind(r.Max(axes), wide))
    powers = e.exp(wide - restore_axes(top, wide.shape, axes))
    total = restore_axes(bind(r.Sum(axes), powers), wide.shape, axes)
    return wrap(astype(powers / total, dtype))
