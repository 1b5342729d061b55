"""Comparison of whole arrays: equality, and closeness within tolerances."""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.core import reducing
from weft.core._common import ArrayLike, array, astype, bind, constant, kind_of, promoted, scalar_node, to_node, wrap
from weft.graph.node import Node
from weft.primitives import elementwise as e
from weft.primitives.bits import IsFinite

Stream = Any


def _or(x: Node, y: Node) -> Node:
    return bind(e.BitwiseOr(), x, y)


def _both_nan(x: Node, y: Node) -> Node:
    return bind(e.BitwiseAnd(), bind(e.IsNan(), x), bind(e.IsNan(), y))


def _close(name: str, a: ArrayLike, b: ArrayLike, rtol: float, atol: float, equal_nan: bool) -> array:
    x, y = promoted(name, a, b)
    dtype = dt.float64 if x.dtype.is_integer else dt.promote(x.dtype, dt.float32)
    x, y = astype(x, dtype), astype(y, dtype)
    gap, size = bind(e.Absolute(), x - y), bind(e.Absolute(), y)
    allowed = scalar_node(float(rtol), size.kind) * size + scalar_node(float(atol), size.kind)
    near = bind(e.BitwiseAnd(), bind(e.LessEqual(), gap, allowed), bind(IsFinite(), y))
    close = _or(near, e.equal(x, y))
    return wrap(_or(close, _both_nan(x, y)) if equal_nan else close)


def isclose(
    a: ArrayLike,
    b: ArrayLike,
    /,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    *,
    equal_nan: bool = False,
    stream: Stream = None,
) -> array:
    """Whether |a - b| <= atol + rtol * |b|, or a equals b (infinities of one sign are close); NaNs are if `equal_nan`.

    Computed in at least float32, integers in float64.

    >>> isclose(array([1.0, 1.1]), array([1.0, 1.0]))
    array([True, False], dtype=bool)
    """
    return _close("isclose", a, b, rtol, atol, equal_nan)


def allclose(
    a: ArrayLike,
    b: ArrayLike,
    /,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    *,
    equal_nan: bool = False,
    stream: Stream = None,
) -> array:
    """Whether all elements are close, as `isclose` says."""
    return reducing.all(_close("allclose", a, b, rtol, atol, equal_nan))


def array_equal(a: ArrayLike, b: ArrayLike, equal_nan: bool = False, stream: Stream = None) -> array:
    """Whether two arrays have one shape and equal elements; NaNs are equal if `equal_nan`.

    >>> array_equal(array([1, 2]), array([1.0, 2.0]))
    array(True, dtype=bool)
    """
    x, y = to_node(a), to_node(b)
    if x.shape != y.shape:
        return wrap(constant(False, kind_of((), dt.bool_)))
    dtype = dt.promote(x.dtype, y.dtype)
    x, y = astype(x, dtype), astype(y, dtype)
    same = e.equal(x, y)
    if equal_nan and x.dtype.is_inexact:
        same = _or(same, _both_nan(x, y))
    return reducing.all(wrap(same))
