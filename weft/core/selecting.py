"""Selections whose size depends on data: mask reads, nonzero, argwhere, flatnonzero, bincount.

Where values are known such a size is a number, for which the mask (or the counted values) is evaluated; the selection
itself is lazy and differentiable. In a function that is compiled the size is a symbol, which the program computes
(transforms/computed.py). Under `vmap` and in bodies of loops, where it would be ragged, a `size` has to be given.
"""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.array import array, wrap
from weft.core._common import (
    ArrayLike,
    astype,
    bind,
    broadcast_node,
    constant,
    kind_of,
    scalar_node,
    to_int64,
    to_node,
    whole_number,
)
from weft.graph.dims import dim_max, hint_of, is_now
from weft.graph.node import Node
from weft.primitives import elementwise as e
from weft.primitives.creation import Iota
from weft.primitives.indexing import Gather, ScatterAdd, ScatterSet
from weft.primitives.reductions import Max, Min, Sum
from weft.primitives.rounding import FloorDivide, Remainder
from weft.primitives.scans import CumSum
from weft.primitives.views import Slice, reshape
from weft.transforms.computed import computed_size

Stream = Any
FillValue = int | tuple[int, ...]


def counted(name: str, mask: Node) -> Any:
    """How many elements of a mask hold, for a function of this name."""
    size = mask.kind.size
    flat = astype(reshape(mask, (size,)), dt.int64)
    return computed_size(name, bind(Sum((0,)), flat), hint_of(size) // 2)


def positions(mask: Node, count: Any) -> Node:
    """Where a mask holds, as `count` increasing positions (int64) in row-major order: the first ones if there are more,
    and then 0 if there are fewer."""
    if is_now(count, 0) or is_now(mask.kind.size, 0):
        return constant(0, kind_of((count,), dt.int64))
    size = mask.kind.size
    flat = reshape(mask, (size,))
    # Element i goes to the place of its rank among the selected ones; all others share one place past the end.
    rank = bind(CumSum(0, False, True), astype(flat, dt.int64))
    end = scalar_node(count, rank.kind)
    place = e.select(flat, bind(e.Minimum(), rank, end), end)
    targets = bind(ScatterSet((None,), (0,)), constant(0, kind_of((count + 1,), dt.int64)), bind(Iota((size,))), place)
    return bind(Slice((0,), (count,), (1,)), targets)


def masked(x: Node, mask: Node) -> Node:
    """The elements (or rows) of x where a mask over its first axes holds, in order."""
    rows = mask.kind.size
    rest = x.shape[mask.ndim :]
    flat = reshape(x, (rows, *rest))
    count = counted("index", mask)
    if is_now(count, 0):
        return constant(0, kind_of((0, *rest), x.dtype))
    return bind(Gather((None, *range(1, len(rest) + 1)), (0,)), flat, positions(mask, count))


def _checked_size(name: str, size: Any) -> Any:
    if size is None:
        return None
    if isinstance(size, (bool, float, array)) or not hasattr(size, "__index__"):
        raise TypeError(f"[{name}] size must be an integer; got {size!r}.")
    if size < 0:
        raise ValueError(f"[{name}] size cannot be negative; got {size}.")
    return size


def _indices(name: str, x: Node, size: int | None, fill_value: FillValue) -> list[Node]:
    """The indices of nonzero elements, one node per axis; `size` of them if that is given."""
    mask = astype(x, dt.bool_)
    given = _checked_size(name, size)
    count = counted(name, mask) if given is None else given
    place = positions(mask, count)
    found: list[Node] = []
    for n in reversed(x.shape):
        extent = scalar_node(n, place.kind)
        empty = is_now(n, 0)  # and then there is nothing to be found
        found.append(place if empty else bind(Remainder(), place, extent))
        place = place if empty else bind(FloorDivide(), place, extent)
    found.reverse()
    return found if given is None else _filled(name, found, mask, fill_value)


def _filled(name: str, found: list[Node], mask: Node, fill_value: FillValue) -> list[Node]:
    """Indices with the fill value of their axis where there are no more elements."""
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * len(found)
    if len(fills) != len(found) or not all(hasattr(n, "__index__") for n in fills):
        raise ValueError(
            f"[{name}] fill_value is an integer, or one for each of {len(found)} axes; got {fill_value!r}."
        )
    total = bind(Sum(tuple(range(mask.ndim))), astype(mask, dt.int64))
    made = []
    for index, fill in zip(found, fills, strict=True):
        there = e.less(bind(Iota(index.shape)), broadcast_node(total, index.shape))
        made.append(e.select(there, index, scalar_node(fill.__index__(), index.kind)))
    return made


def nonzero(
    a: ArrayLike, /, *, size: int | None = None, fill_value: FillValue = 0, stream: Stream = None
) -> tuple[array, ...]:
    """The indices of nonzero elements, one array per axis, in row-major order.

    With a `size` there are so many of them, whatever the data: the first ones, or all and then `fill_value` (one
    number, or one per axis).

    >>> nonzero(array([0, 3, 0, 5]))
    (array([1, 3], dtype=int64),)
    >>> nonzero(array([0, 3, 0, 5]), size=3, fill_value=-1)
    (array([1, 3, -1], dtype=int64),)
    """
    x = to_node(a)
    if x.ndim == 0:
        raise ValueError("[nonzero] a 0-d array has no axes to index; reshape it to (1,).")
    return tuple([wrap(index) for index in _indices("nonzero", x, size, fill_value)])


def flatnonzero(a: ArrayLike, /, *, size: int | None = None, fill_value: FillValue = 0, stream: Stream = None) -> array:
    """The indices of nonzero elements of the flattened array; `size` and `fill_value` as in `nonzero`.

    >>> flatnonzero(array([[0, 3], [0, 5]]))
    array([1, 3], dtype=int64)
    """
    x = to_node(a)
    return wrap(_indices("flatnonzero", reshape(x, (x.kind.size,)), size, fill_value)[0])


def argwhere(a: ArrayLike, /, *, size: int | None = None, fill_value: FillValue = 0, stream: Stream = None) -> array:
    """The indices of nonzero elements as rows of a matrix; `size` and `fill_value` as in `nonzero`.

    >>> argwhere(array([[1, 0], [0, 2]]))
    array([[0, 0],
           [1, 1]], dtype=int64)
    """
    x = to_node(a)
    if x.ndim == 0:
        given = _checked_size("argwhere", size)
        count = counted("argwhere", reshape(astype(x, dt.bool_), (1,))) if given is None else given
        return wrap(constant(0, kind_of((count, 0), dt.int64)))
    columns = [reshape(c, (*c.shape, 1)) for c in _indices("argwhere", x, size, fill_value)]
    from weft.core.joining import joined  # joining builds on indexing, which builds on this module

    return wrap(joined(columns, 1))


def bincount(x: ArrayLike, /, weights: ArrayLike | None = None, minlength: int = 0, *, stream: Stream = None) -> array:
    """How often each of 0, 1, 2, … occurs in x, or the sum of the weights there; added in the order of x.

    >>> bincount(array([0, 2, 2]))
    array([1, 0, 2], dtype=int32)
    """
    values, minlength = to_node(x), whole_number("bincount", "minlength", minlength)
    if values.ndim != 1 or not (values.dtype.is_integer or values.dtype.is_bool):
        raise ValueError(f"[bincount] counts a vector of integers; got {values.kind}.")
    if minlength < 0:
        raise ValueError(f"[bincount] minlength cannot be negative; got {minlength}.")
    values = to_int64(values)
    length: Any = minlength
    if values.shape[0] != 0:
        if computed_size("bincount", bind(Min((0,)), values)) < 0:
            raise ValueError("[bincount] counts numbers from 0 up; some are negative.")
        length = dim_max(minlength, computed_size("bincount", bind(Max((0,)), values)) + 1)
    given = None if weights is None else to_node(weights)
    if given is not None and given.shape != values.shape:
        raise ValueError(f"[bincount] weights of shape {given.shape} do not fit values of shape {values.shape}.")
    added = constant(1, kind_of(values.shape, dt.int32)) if given is None else given
    base = constant(0, kind_of((length,), added.dtype))
    return wrap(
        bind(ScatterAdd((None,), (0,)), base, added, values) if values.shape[0] and not is_now(length, 0) else base
    )
