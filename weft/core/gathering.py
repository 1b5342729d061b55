"""Taking and putting elements at places that are data, and `a.at[...]`: updates of parts of an array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import dtypes as dt
from weft.core._common import (
    ArrayLike,
    array,
    astype,
    bind,
    broadcast_node,
    broadcast_shapes,
    constant,
    normalize_axis,
    reshape,
    to_int64,
    to_node,
    whole_number,
    wrap,
)
from weft.core.indexing import Advanced, Place, fitted, place_of, resolve_integer, take_op, values_node
from weft.core.shaping import slice_axis
from weft.graph.dims import is_now
from weft.graph.node import Node, Shape
from weft.primitives import elementwise as e
from weft.primitives.base import Elementwise, full_like
from weft.primitives.creation import Iota
from weft.primitives.indexing import Gather, Scatter, ScatterAdd, ScatterMax, ScatterMin, ScatterMultiply, ScatterSet
from weft.primitives.views import SliceUpdate

Stream = Any


def _integers(name: str, indices: ArrayLike) -> Node:
    if isinstance(indices, float):
        raise TypeError(f"[{name}] an index must be an integer; got {indices!r}.")
    found = to_node(indices)
    if not found.dtype.is_integer:
        raise ValueError(f"[{name}] indices must be integers; got {found.dtype.name}.")
    return found


def take(a: ArrayLike, /, indices: int | ArrayLike, axis: int | None = None, *, stream: Stream = None) -> array:
    """Elements (or slices along an axis) of `a` at `indices`; of the flattened array if no axis is given.

    Negative indices count from the end. Indices in an array that are out of range are moved to the nearest end.

    >>> take(array([10, 20, 30]), array([2, 0, -1]))
    array([30, 10, 30], dtype=int32)
    """
    x = to_node(a)
    if axis is None:
        x, axis = reshape(x, (x.kind.size,)), 0
    axis = normalize_axis("take", axis, x.ndim)
    n = x.shape[axis]
    if isinstance(indices, int):
        part = slice_axis(x, axis, resolve_integer(indices, n, axis), 1)
        return wrap(reshape(part, tuple(m for i, m in enumerate(x.shape) if i != axis)))
    index = _integers("take", indices)
    if is_now(n, 0) and not is_now(index.kind.size, 0):
        raise ValueError(f"[take] axis {axis} of shape {x.shape} is empty: there is nothing to take.")
    return wrap(bind(take_op(x.ndim, axis, index.ndim), x, index))


def _along(name: str, x: Node, index: Node, axis: int) -> tuple[Node, Node]:
    """Array and indices, broadcast along all axes but one."""
    _same_axes(name, x, index)
    others = broadcast_shapes(name, _without(x.shape, axis), _without(index.shape, axis))
    return tuple(broadcast_node(node, (*others[:axis], node.shape[axis], *others[axis:])) for node in (x, index))  # type: ignore[return-value]


def _same_axes(name: str, x: Node, index: Node) -> None:
    if x.ndim != index.ndim:
        raise ValueError(f"[{name}] indices (shape {index.shape}) need as many axes as the array (shape {x.shape}).")


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _along_where(ndim: int, axis: int) -> tuple[int | None, ...]:
    return tuple(None if i == axis else i for i in range(ndim))


def take_along_axis(a: ArrayLike, /, indices: ArrayLike, axis: int | None = -1, *, stream: Stream = None) -> array:
    """out[..., j, ...] = a[..., indices[..., j, ...], ...]: one index for every element; of the flattened array if the
    axis is None.

    >>> take_along_axis(array([[3, 1], [2, 4]]), array([[1], [0]]), axis=1)
    array([[1],
           [2]], dtype=int32)
    """
    x, index = to_node(a), _integers("take_along_axis", indices)
    if axis is None:
        x, index, axis = reshape(x, (x.kind.size,)), reshape(index, (index.kind.size,)), 0
    axis = normalize_axis("take_along_axis", axis, x.ndim)
    x, index = _along("take_along_axis", x, index, axis)
    return wrap(bind(Gather(_along_where(x.ndim, axis), tuple(range(x.ndim))), x, index))


def put_along_axis(
    a: ArrayLike, /, indices: ArrayLike, values: ArrayLike, axis: int | None = None, *, stream: Stream = None
) -> array:
    """`a` with values written where `take_along_axis` would read; of several for one place the last stays.

    >>> put_along_axis(zeros((2, 2)), array([[1], [0]]), array(5.0), axis=1)
    array([[0, 5],
           [5, 0]], dtype=float32)
    """
    x, index = to_node(a), _integers("put_along_axis", indices)
    shape = x.shape
    if axis is None:
        x, index, axis = reshape(x, (x.kind.size,)), reshape(index, (index.kind.size,)), 0
    axis = normalize_axis("put_along_axis", axis, x.ndim)
    _same_axes("put_along_axis", x, index)
    index = broadcast_node(index, (*x.shape[:axis], index.shape[axis], *x.shape[axis + 1 :]))
    updates = fitted(values_node(values, x.dtype), index.shape)
    out = bind(ScatterSet(_along_where(x.ndim, axis), tuple(range(x.ndim))), x, updates, index)
    return wrap(reshape(out, shape))


# ---- slices that begin at a computed place ----


def _dynamic(name: str, x: Node, starts: ArrayLike, axes: Sequence[int], sizes: Shape) -> tuple[Gather, list[Node]]:
    """The gather of a slice of `sizes` that begins at `starts` along `axes`, and its index arrays.

    Negative starts count from the end; a start is then moved so that the slice lies inside.
    """
    first = _integers(name, starts)
    places = [normalize_axis(name, axis, x.ndim) for axis in axes]
    if len(set(places)) != len(places):
        raise ValueError(f"[{name}] axes {tuple(axes)} name an axis twice.")
    if first.ndim > 1 or first.kind.size != len(places):
        raise ValueError(f"[{name}] {len(places)} axes need as many start indices; got shape {first.shape}.")
    first = to_int64(reshape(first, (len(places),)))
    where = tuple(None if axis in places else axis for axis in range(x.ndim))
    ordered = sorted(places)
    together = tuple(sizes[axis] for axis in ordered)
    indices = []
    for k, axis in enumerate(ordered):
        start = reshape(slice_axis(first, 0, places.index(axis), 1), ())
        start = _inside(start, x.shape[axis], sizes[axis])
        counts = bind(Iota((sizes[axis],))) + broadcast_node(start, (sizes[axis],))
        indices.append(broadcast_node(reshape(counts, (sizes[axis], *(1,) * (len(ordered) - k - 1))), together))
    return Gather(where, tuple(ordered)), indices


def _inside(start: Node, n: Any, size: Any) -> Node:
    zero, whole, last = (constant(number, start.kind) for number in (0, n, n - size))
    wrapped = e.select(e.less(start, zero), start + whole, start)
    return bind(e.Minimum(), bind(e.Maximum(), wrapped, zero), last)


def slice_(
    a: ArrayLike, start_indices: ArrayLike, axes: Sequence[int], slice_size: Sequence[int], *, stream: Stream = None
) -> array:
    """A part of `a` of `slice_size`, beginning at the computed `start_indices` along `axes` (at 0 along the others).

    >>> slice(array([1, 2, 3, 4]), array([1]), (0,), (2,))
    array([2, 3], dtype=int32)
    """
    x, sizes = to_node(a), tuple([whole_number("slice", "a size", n) for n in slice_size])
    if len(sizes) != x.ndim or any(not 0 <= size <= n for size, n in zip(sizes, x.shape, strict=False)):
        raise ValueError(f"[slice] slice_size {sizes} is no size of a part of an array of shape {x.shape}.")
    for axis, (size, n) in enumerate(zip(sizes, x.shape, strict=True)):
        if size != n and axis not in (normalize_axis("slice", k, x.ndim) for k in axes):
            x = slice_axis(x, axis, 0, size)
    op, indices = _dynamic("slice", x, start_indices, axes, sizes)
    return wrap(bind(op, x, *indices) if indices else x)


slice_.__name__ = "slice"


def slice_update(
    a: ArrayLike, update: ArrayLike, start_indices: ArrayLike, axes: Sequence[int], *, stream: Stream = None
) -> array:
    """`a` with `update` written over the part of its size that begins at the computed `start_indices` along `axes` (at
    0 along the others). Axes that the update lacks have size 1 if they are among `axes`, else all of `a`.

    >>> slice_update(zeros((4,)), array([7.0, 8.0]), array([1]), axes=(0,))
    array([0, 7, 8, 0], dtype=float32)
    """
    x = to_node(a)
    part = values_node(update, x.dtype)
    if part.ndim > x.ndim:
        raise ValueError(
            f"[slice_update] an update of shape {part.shape} has more axes than the array (shape {x.shape})."
        )
    places = [normalize_axis("slice_update", axis, x.ndim) for axis in axes]
    lacking = x.ndim - part.ndim
    sizes = (*(1 if axis in places else x.shape[axis] for axis in range(lacking)), *part.shape)
    if any(size > n for size, n in zip(sizes, x.shape, strict=True)):
        raise ValueError(
            f"[slice_update] an update of shape {part.shape} does not fit into an array of shape {x.shape}."
        )
    region = x
    for axis, (size, n) in enumerate(zip(sizes, x.shape, strict=True)):
        if size != n and axis not in places:
            region = slice_axis(region, axis, 0, size)
    op, indices = _dynamic("slice_update", region, start_indices, axes, sizes)
    part = fitted(part, sizes)
    part = bind(ScatterSet(op.where, op.axes), region, part, *indices) if indices else part
    return wrap(part if region is x else bind(SliceUpdate((0,) * x.ndim, (1,) * x.ndim), x, part))


# ---- a.at[...] ----


class ArrayAt:
    """`a.at`, and `a.at[key]` when it has been indexed: each method returns `a` with `value` (broadcast, in the dtype
    of `a`) combined into the part; `a` itself stays as it is.

    Updates to one place are all applied, in order, unlike with `a[i] += v`, where the last stays.

    >>> array([1, 2, 3]).at[array([0, 0, 2])].add(10)
    array([21, 2, 13], dtype=int32)
    """

    __slots__ = ("_array", "_place")

    def __init__(self, a: array, place: Place | None = None) -> None:
        self._array, self._place = a, place

    def __getitem__(self, key: Any) -> ArrayAt:
        return ArrayAt(self._array, place_of(key, self._array._node.kind))

    @property
    def place(self) -> Place:
        """What is updated."""
        if self._place is None:
            raise ValueError("[at] needs to know which part: index it, as in a.at[0].add(4), or a.at[...] for all.")
        return self._place

    def _update(self, name: str, op: Elementwise, scatter: type[Scatter], value: Node) -> array:
        x = self._array._node
        if x.dtype not in op.dtypes:
            raise ValueError(f"[at.{name}] is not defined for {x.dtype.name} arrays.")
        return wrap(self.place.combine(x, value, op, scatter))

    def _value(self, value: Any) -> Node:
        return values_node(value, self._array.dtype)

    def add(self, value: ArrayLike) -> array:
        """The part plus value."""
        return self._update("add", e.Add(), ScatterAdd, self._value(value))

    def subtract(self, value: ArrayLike) -> array:
        """The part minus value."""
        if self._array.dtype.is_bool:
            raise ValueError("[at.subtract] is not defined for bool arrays.")
        return self._update("subtract", e.Add(), ScatterAdd, -self._value(value))

    def multiply(self, value: ArrayLike) -> array:
        """The part times value."""
        return self._update("multiply", e.Multiply(), ScatterMultiply, self._value(value))

    def divide(self, value: ArrayLike) -> array:
        """The part divided by value: multiplied by its reciprocal where the index is an array. Quotients of integers
        are truncated."""
        dtype = self._array.dtype
        if not dtype.is_inexact:
            wide = wrap(astype(self._array._node, dt.float32))
            return wrap(astype(ArrayAt(wide, self.place).divide(value)._node, dtype))
        number = self._value(value)
        if isinstance(self.place, Advanced):
            return self._update("divide", e.Multiply(), ScatterMultiply, full_like(number, 1) / number)
        return self._update("divide", e.Divide(), ScatterMultiply, number)

    def maximum(self, value: ArrayLike) -> array:
        """The larger of the part and value; NaN if either is."""
        return self._update("maximum", e.Maximum(), ScatterMax, self._value(value))

    def minimum(self, value: ArrayLike) -> array:
        """The smaller of the part and value; NaN if either is."""
        return self._update("minimum", e.Minimum(), ScatterMin, self._value(value))
