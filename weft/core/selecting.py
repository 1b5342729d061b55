"""Selections whose size depends on data: mask reads, nonzero, argwhere, bincount.

Their sizes are numbers, so the mask (or the counted values) is evaluated where they are called; the selection itself is
lazy and differentiable. Inside `compile` and `vmap`, where values are not known, they raise an error that names the
line.
"""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.array import array, wrap
from weft.core._common import ArrayLike, astype, bind, constant, kind_of, scalar_node, to_int64, to_node
from weft.evaluate import evaluated
from weft.graph.node import Node
from weft.primitives import elementwise as e
from weft.primitives.creation import Iota
from weft.primitives.indexing import Gather, ScatterAdd, ScatterSet
from weft.primitives.reductions import Max, Min, Sum
from weft.primitives.rounding import FloorDivide, Remainder
from weft.primitives.scans import CumSum
from weft.primitives.views import Slice, reshape
from weft.runtime.data import numpy_view

Stream = Any


def _number(node: Node) -> int:
    """The value of a 0-d integer node, computed now."""
    node = evaluated(node)
    return int(numpy_view(node.value, (), node.dtype)[()])


def positions(mask: Node) -> Node:
    """Where a mask holds, as increasing positions (int64) in row-major order."""
    size = mask.kind.size
    flat = astype(reshape(mask, (size,)), dt.int64)
    count = _number(bind(Sum((0,)), flat))
    if not count:
        return constant(0, kind_of((0,), dt.int64))
    # Element i goes to the place of its rank among the selected ones; all others share one place past the end.
    rank = bind(CumSum(0, False, True), flat)
    place = e.select(reshape(mask, (size,)), rank, scalar_node(count, rank.kind))
    targets = bind(ScatterSet((None,), (0,)), constant(0, kind_of((count + 1,), dt.int64)), bind(Iota((size,))), place)
    return bind(Slice((0,), (count,), (1,)), targets)


def masked(x: Node, mask: Node) -> Node:
    """The elements (or rows) of x where a mask over its first axes holds, in order."""
    rows = mask.kind.size
    rest = x.shape[mask.ndim :]
    flat = reshape(x, (rows, *rest))
    return bind(Gather((None, *range(1, len(rest) + 1)), (0,)), flat, positions(mask))


def nonzero(a: ArrayLike, /, *, stream: Stream = None) -> tuple[array, ...]:
    """The indices of nonzero elements, one array per axis, in row-major order.

    >>> nonzero(array([0, 3, 0, 5]))
    (array([1, 3], dtype=int64),)
    """
    x = to_node(a)
    if x.ndim == 0:
        raise ValueError("[nonzero] a 0-d array has no axes to index; reshape it to (1,).")
    place = positions(astype(x, dt.bool_))
    found: list[array] = []
    for n in reversed(x.shape):
        size = scalar_node(n, place.kind)
        found.append(wrap(bind(Remainder(), place, size)))
        place = bind(FloorDivide(), place, size)
    return tuple(reversed(found))


def argwhere(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """The indices of nonzero elements as rows of a matrix.

    >>> argwhere(array([[1, 0], [0, 2]]))
    array([[0, 0],
           [1, 1]], dtype=int64)
    """
    x = to_node(a)
    if x.ndim == 0:
        return wrap(constant(0, kind_of((_number(bind(Sum(()), astype(astype(x, dt.bool_), dt.int64))), 0), dt.int64)))
    columns = [reshape(c._node, (*c.shape, 1)) for c in nonzero(wrap(x))]
    from weft.core.joining import joined  # joining builds on indexing, which builds on this module

    return wrap(joined(columns, 1))


def bincount(x: ArrayLike, /, weights: ArrayLike | None = None, minlength: int = 0, *, stream: Stream = None) -> array:
    """How often each of 0, 1, 2, … occurs in x, or the sum of the weights there; added in the order of x.

    >>> bincount(array([0, 2, 2]))
    array([1, 0, 2], dtype=int32)
    """
    values = to_node(x)
    if values.ndim != 1 or not (values.dtype.is_integer or values.dtype.is_bool):
        raise ValueError(f"[bincount] counts a vector of integers; got {values.kind}.")
    if minlength < 0:
        raise ValueError(f"[bincount] minlength cannot be negative; got {minlength}.")
    values = to_int64(values)
    length = minlength
    if values.shape[0] != 0:
        if _number(bind(Min((0,)), values)) < 0:
            raise ValueError("[bincount] counts numbers from 0 up; some are negative.")
        length = max(minlength, _number(bind(Max((0,)), values)) + 1)
    given = None if weights is None else to_node(weights)
    if given is not None and given.shape != values.shape:
        raise ValueError(f"[bincount] weights of shape {given.shape} do not fit values of shape {values.shape}.")
    added = constant(1, kind_of(values.shape, dt.int32)) if given is None else given
    base = constant(0, kind_of((length,), added.dtype))
    return wrap(bind(ScatterAdd((None,), (0,)), base, added, values) if values.shape[0] and length else base)
