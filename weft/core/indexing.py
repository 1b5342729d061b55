"""Reading and writing parts of arrays with brackets.

A key is worked out against a shape into a *place*, of which there are three kinds: `Basic` (integers, slices, None,
Ellipsis: a view), `Advanced` (with arrays of integers: a gather or scatter) and `Masked` (an array of bools, for
writing). All positions follow NumPy and MLX.
"""

from __future__ import annotations

import functools
from types import EllipsisType, NoneType
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.core._common import (
    array,
    astype,
    bind,
    broadcast_node,
    broadcast_shapes,
    constant,
    default_dtype,
    refuse_overflow,
    scalar_node,
    to_node,
    wrap,
)
from weft.core.selecting import masked
from weft.dtypes import Dtype
from weft.errors import BadIndex
from weft.graph.dims import Dim, ceil_div, dim_max, dim_min, is_now, same_shape
from weft.graph.node import ArrayType, Node, Shape, kind_of
from weft.primitives import elementwise as e
from weft.primitives.base import Elementwise, Primitive
from weft.primitives.indexing import Gather, Scatter, ScatterSet
from weft.primitives.scans import CumSum
from weft.primitives.views import Reshape, Slice, SliceUpdate, reshape


class Basic:
    """An index of integers, slices, None and Ellipsis, worked out against a shape: a Slice and a Reshape to `shape`."""

    __slots__ = ("_plain", "_update", "shape", "sizes", "starts", "steps", "views")

    def __init__(self, key: tuple[Any, ...], shape: Shape) -> None:
        starts, sizes, steps, result = [], [], [], []
        axis = 0
        for item in expand_ellipsis(key, len(shape)):
            if item is None:
                result.append(1)
                continue
            n = shape[axis]
            if isinstance(item, slice):
                start, size, step = resolve_slice(item, n)
                result.append(size)
            else:
                start, size, step = resolve_integer(item, n, axis), 1, 1
            starts.append(start)
            sizes.append(size)
            steps.append(step)
            axis += 1
        self.starts, self.sizes, self.steps = tuple(starts), tuple(sizes), tuple(steps)
        self.shape: Shape = tuple(result)
        self._plain = self.shape == self.sizes if all(type(n) is int for n in (*result, *sizes)) else False
        """Whether values of this shape are written as they are."""
        self._update: SliceUpdate | None = None
        self.views: list[Primitive] = []
        if not is_whole(shape, self.starts, self.sizes, self.steps):
            self.views.append(Slice(self.starts, self.sizes, self.steps))
        if not same_shape(self.shape, self.sizes):
            self.views.append(Reshape(self.shape))

    def read(self, x: Node) -> Node:
        for view in self.views:
            x = bind(view, x)
        return x

    def write(self, x: Node, values: Node) -> Node:
        """x with `values` (broadcast) in this place."""
        if not (self._plain and not values.kind.symbolic and values.shape == self.shape):
            values = reshape(fitted(values, self.shape), self.sizes)
        update = self._update
        if update is None:
            update = self._update = SliceUpdate(self.starts, self.steps)
        return bind(update, x, values)

    def combine(self, x: Node, values: Node, op: Elementwise, scatter: type[Scatter]) -> Node:
        """x with `values` combined into this place by `op`."""
        part = self.read(x)
        return self.write(x, bind(op, part, broadcast_node(fitted(values, self.shape), self.shape)))


_NEW, _INDEX = "new", "index"


class Advanced:
    """An index with arrays of integers (which integers beside them join), worked out against a shape: a Slice, a
    Gather, and a Reshape to `shape`.

    The axes of the index arrays (broadcast together) stand where the first of them stood if they stood together, else
    in front.
    """

    __slots__ = ("axes", "gathered", "indices", "shape", "sizes", "starts", "steps", "where", "whole")

    def __init__(self, key: tuple[Any, ...], shape: Shape) -> None:
        starts, sizes, steps, arrays = [], [], [], []
        slots: list[Any] = []
        axis = 0
        for item in expand_ellipsis(key, len(shape)):
            if item is None:
                slots.append(_NEW)
                continue
            start, size, step = 0, shape[axis], 1
            if isinstance(item, slice):
                start, size, step = resolve_slice(item, size)
                slots.append(axis)
            else:
                arrays.append(index_node(item, size, axis))
                slots.append(_INDEX)
            starts.append(start)
            sizes.append(size)
            steps.append(step)
            axis += 1
        self.starts, self.sizes, self.steps = tuple(starts), tuple(sizes), tuple(steps)
        self.whole = is_whole(shape, self.starts, self.sizes, self.steps)
        together = broadcast_shapes("index", *(a.shape for a in arrays))
        self.indices = [broadcast_node(a, together) for a in arrays]
        self._arrange(slots, together)

    def _arrange(self, slots: list[Any], index: Shape) -> None:
        """Where the axes of x and of the index arrays stand in the result."""
        places = [i for i, slot in enumerate(slots) if slot == _INDEX]
        first = places[0] if places == list(range(places[0], places[0] + len(places))) else 0
        rest = [slot for slot in slots[:first] if slot != _INDEX], [slot for slot in slots[first:] if slot != _INDEX]
        where: list[int | None] = [None] * len(self.sizes)
        gathered: list[Any] = []
        shape: list[Any] = []
        for slot in (*rest[0], _INDEX, *rest[1]):
            if slot == _NEW:
                shape.append(1)
            elif slot == _INDEX:
                self.axes = tuple(range(len(gathered), len(gathered) + len(index)))
                gathered.extend(index)
                shape.extend(index)
            else:
                where[slot] = len(gathered)
                gathered.append(self.sizes[slot])
                shape.append(self.sizes[slot])
        self.where, self.gathered, self.shape = tuple(where), tuple(gathered), tuple(shape)

    def read(self, x: Node) -> Node:
        part = read_slice(x, self.starts, self.sizes, self.steps)
        return reshape(bind(Gather(self.where, self.axes), part, *self.indices), self.shape)

    def write(self, x: Node, values: Node) -> Node:
        return self._scatter(ScatterSet, x, values)

    def combine(self, x: Node, values: Node, op: Elementwise, scatter: type[Scatter]) -> Node:
        return self._scatter(scatter, x, values)

    def _scatter(self, op: type[Scatter], x: Node, values: Node) -> Node:
        updates = reshape(fitted(values, self.shape), self.gathered)
        part = read_slice(x, self.starts, self.sizes, self.steps)
        part = bind(op(self.where, self.axes), part, updates, *self.indices)
        return part if self.whole else bind(SliceUpdate(self.starts, self.steps), x, part)


class Masked:
    """The elements (or rows) of an array where a mask over its first axes holds."""

    __slots__ = ("mask", "shape")

    def __init__(self, mask: Node, shape: Shape) -> None:
        if mask.shape != shape[: mask.ndim]:
            raise ValueError(f"[setitem] a mask of shape {mask.shape} must match the first axes of shape {shape}.")
        self.mask, self.shape = mask, shape

    def read(self, x: Node) -> Node:
        """The elements where the mask holds; how many there are is found out now."""
        return masked(x, self.mask)

    def write(self, x: Node, values: Node) -> Node:
        spread = self._spread(values)
        return x if spread is None else e.select(self._everywhere(), spread, x)

    def combine(self, x: Node, values: Node, op: Elementwise, scatter: type[Scatter]) -> Node:
        spread = self._spread(values)
        return x if spread is None else e.select(self._everywhere(), bind(op, x, spread), x)

    def _everywhere(self) -> Node:
        """The mask in the shape of the array."""
        sizes = (*self.mask.shape, *(1,) * (len(self.shape) - self.mask.ndim))
        return broadcast_node(reshape(self.mask, sizes), self.shape)

    def _spread(self, values: Node) -> Node | None:
        """Values in the shape of the array: the same for every place of the mask, or (one more axis) one after the
        other, the last of them again where they are too few. None if there are none."""
        rest = self.shape[self.mask.ndim :]
        extra = values.ndim - len(rest)
        if extra <= 0:
            return broadcast_node(fitted(values, rest), self.shape)
        if extra > 1:
            raise ValueError(f"[setitem] values of shape {values.shape} do not fit masked elements of shape {rest}.")
        if is_now(values.shape[0], 0):
            return None
        values = broadcast_node(values, (values.shape[0], *broadcast_fits(values.shape[1:], rest)))
        count = self.mask.kind.size
        turn = bind(CumSum(0, False, True), astype(reshape(self.mask, (count,)), dt.int32))
        taken = bind(Gather((None, *range(1, len(rest) + 1)), (0,)), values, turn)
        return reshape(taken, self.shape)


Place = Basic | Advanced | Masked


_PLACES: dict[Any, Basic] = {}
_MOST_PLACES = 4096
_PLAIN = frozenset({int, NoneType, EllipsisType})


def _recent_place(items: tuple[Any, ...], shape: Shape) -> Basic | None:
    """Basic places that were worked out before; indices are often the same in every round of a loop. None if the items
    are not plain integers, slices of these, None and Ellipsis."""
    key: list[Any] = [shape]
    for item in items:
        if item.__class__ is slice:
            start, stop, step = item.start, item.stop, item.step
            if type(start) not in _PLAIN or type(stop) not in _PLAIN or type(step) not in _PLAIN:
                return None
            key.append((start, stop, step))
        elif type(item) in _PLAIN:
            key.append(item)
        else:
            return None
    found = _PLACES.get(known := tuple(key))
    if found is None:
        if len(_PLACES) >= _MOST_PLACES:
            _PLACES.clear()
        found = _PLACES[known] = Basic(items, shape)
    return found


def place_of(key: Any, kind: ArrayType) -> Place:
    """The place that a[key] means in an array of this kind."""
    items, shape = key if isinstance(key, tuple) else (key,), kind.shape
    if not kind.symbolic:
        place = _recent_place(items, shape)
        if place is not None:
            return place
    if all(is_basic(item) for item in items):
        return Basic(items, shape)
    masks = [is_mask(item) for item in items]
    if len(items) == 1 and masks[0]:
        return Masked(to_node(items[0]), shape)
    if any(masks):
        raise ValueError(
            "[index] a boolean mask must be the only index; turn it into integer indices to combine it with others."
        )
    return Advanced(items, shape)


@functools.cache
def take_op(ndim: int, axis: int, index_ndim: int) -> Gather:
    """The gather that replaces one axis by those of an index array."""
    after = range(axis + index_ndim, ndim + index_ndim - 1)
    return Gather((*range(axis), None, *after), tuple(range(axis, axis + index_ndim)))


def getitem(a: array, key: Any) -> array:
    """a[key]."""
    x = a._node
    if key.__class__ is slice:
        start, stop, step = key.start, key.stop, key.step
        if type(start) in _BOUNDS and type(stop) in _BOUNDS and type(step) in _BOUNDS:
            known = (x.kind, start, stop, step)
            found = _SLICES.get(known)
            if found is not None:
                return wrap(Node(found[0], (x,), found[1]))
            return wrap(_first_slice(known, key, x))
    elif key.__class__ is array and x.ndim and key.dtype.is_integer:  # an embedding's look-up, worth a short path
        return wrap(bind(take_op(x.ndim, 0, key.ndim), x, key._node))
    return wrap(place_of(key, x.kind).read(x))


_BOUNDS = frozenset({int, NoneType})
_SLICES: dict[tuple[Any, ...], tuple[Primitive, ArrayType]] = {}
"""What a slice of the first axis is, and of which kind, by the kind of the array and the slice's bounds."""


def _first_slice(known: tuple[Any, ...], key: slice, x: Node) -> Node:
    """A slice of the first axis, found at once the next time if it is one operation."""
    made = place_of(key, x.kind).read(x)
    if made.inputs == (x,) and made.__class__ is Node and made.op.__class__ is Slice and not x.kind.symbolic:
        if len(_SLICES) >= _MOST_PLACES:
            _SLICES.clear()
        _SLICES[known] = made.op, made.kind
    return made


def setitem(a: array, key: Any, value: Any) -> None:
    """a[key] = value."""
    x = a._node
    a._overwrite(wrap(place_of(key, x.kind).write(x, values_node(value, x.dtype))))


# ---- items ----


def expand_ellipsis(key: tuple[Any, ...], ndim: int) -> list[Any]:
    """The index with one item for every axis."""
    used = sum(item is not None and item is not Ellipsis for item in key)
    if sum(item is Ellipsis for item in key) > 1:
        raise BadIndex("[index] an index can have only one Ellipsis (...).")
    if used > ndim:
        raise BadIndex(f"[index] {used} indices are too many for an array with {ndim} axes.")
    fill = [slice(None)] * (ndim - used)
    items: list[Any] = []
    for item in key:
        items.extend(fill if item is Ellipsis else [item])
    return items if any(item is Ellipsis for item in key) else items + fill


def resolve_slice(item: slice, n: Any) -> tuple[Any, Any, int]:
    """(start, size, step) of a slice of an axis of n elements."""
    for bound in (item.start, item.stop, item.step):
        if bound is not None and not hasattr(bound, "__index__"):
            raise ValueError(f"[index] slice bounds are integers; got {bound!r}.")
    step = 1 if item.step is None else item.step.__index__()
    if step == 0:
        raise ValueError("[index] a slice's step cannot be 0.")
    if any(type(size) is Dim for size in (n, item.start, item.stop)):
        return _symbolic_slice(item.start, item.stop, step, n)
    start, stop, step = slice(item.start, item.stop, step).indices(n)
    return start, len(range(start, stop, step)), step


def _symbolic_slice(start: Any, stop: Any, step: int, n: Any) -> tuple[Any, Any, int]:
    """Python's rules for slices, for sizes that are symbols."""

    def bound(given: Any, default: Any, low: Any, high: Any) -> Any:
        if given is None:
            return default
        return dim_min(dim_max(given + n if given < 0 else given, low), high)

    if step > 0:
        first, last = bound(start, 0, 0, n), bound(stop, n, 0, n)
        return first, dim_max(ceil_div(last - first, step), 0), step
    first, last = bound(start, n - 1, -1, n - 1), bound(stop, -1, -1, n - 1)
    return first, dim_max(ceil_div(first - last, -step), 0), step


def resolve_integer(item: Any, n: Any, axis: int) -> int:
    index = item if type(item) is Dim else item.__index__()
    if not -n <= index < n:
        raise IndexError(f"[index] {index} is out of range for axis {axis} with {n} elements.")
    return index + n if index < 0 else index  # type: ignore[no-any-return, return-value]


def is_basic(item: Any) -> bool:
    if item.__class__ is int or item.__class__ is slice or item is None or item is Ellipsis:
        return True
    if isinstance(item, (array, bool, np.bool_)) or (isinstance(item, np.ndarray) and item.ndim > 0):
        return False
    return hasattr(item, "__index__")


def is_mask(item: Any) -> bool:
    """Whether an item is an array (or nested list) of bools."""
    if isinstance(item, (bool, np.bool_)):
        return True
    if isinstance(item, array):
        return item.dtype.is_bool
    if isinstance(item, list):
        return bool(item) and is_mask(item[0])
    return isinstance(item, np.ndarray) and item.dtype == np.bool_


def index_node(item: Any, n: Any, axis: int) -> Node:
    """Indices of an axis of n elements. What Python knows the numbers of is checked; indices in arrays are moved into
    range when they are used."""
    if is_basic(item) and not isinstance(item, np.ndarray):
        number = resolve_integer(item, n, axis)
        return constant(number, kind_of((), default_dtype(number)))
    if not isinstance(item, (array, list, np.ndarray)):
        raise ValueError(
            f"[index] an index is an integer, slice, None, Ellipsis or array of integers; got {type(item).__name__}."
        )
    if isinstance(item, array):
        found = item._node
    else:
        found = to_node(np.zeros(np.shape(item), np.int32) if np.size(item) == 0 else item)
        check_range(np.asarray(item), n, axis)
    if not found.dtype.is_integer:
        raise ValueError(f"[index] index arrays are integers; got {found.dtype.name}.")
    return found


def check_range(numbers: np.ndarray, n: Any, axis: int) -> None:
    """IndexError for the first number that is no index of an axis of n elements."""
    if numbers.dtype.kind not in "iu" or not numbers.size:
        return
    outside = (numbers < -n) | (numbers >= n) if numbers.dtype.kind == "i" else numbers >= n
    if outside.any():
        raise IndexError(f"[index] {numbers[outside][0]} is out of range for axis {axis} with {n} elements.")


# ---- parts and values ----


def is_whole(shape: Shape, starts: tuple[Any, ...], sizes: Shape, steps: tuple[int, ...]) -> bool:
    still = all(type(start) is int and start == 0 for start in starts)
    return still and all(step == 1 for step in steps) and same_shape(sizes, shape)


def read_slice(x: Node, starts: tuple[Any, ...], sizes: Shape, steps: tuple[int, ...]) -> Node:
    return x if is_whole(x.shape, starts, sizes, steps) else bind(Slice(starts, sizes, steps), x)


def values_node(value: Any, dtype: Dtype) -> Node:
    """What is to be written, in the dtype of the array."""
    if value.__class__ is array and value._node.kind.dtype is dtype:
        return value._node  # type: ignore[no-any-return]
    if type(value) is Dim:
        return scalar_node(value, kind_of((), dtype), "setitem")
    if value.__class__ in (bool, int, float, complex):
        refuse_overflow("setitem", value, dtype)
        return constant(value, kind_of((), dtype))  # not a shared one: it may become an array's own
    return astype(to_node(value), dtype)


def fitted(values: Node, shape: Shape) -> Node:
    """Values broadcast to `shape`; axes of size 1 in front of them may go."""
    extra = values.ndim - len(shape)
    if extra > 0 and all(n == 1 for n in values.shape[:extra]):
        values = reshape(values, values.shape[extra:])
    return broadcast_node(values, broadcast_fits(values.shape, shape))


def broadcast_fits(values: Shape, shape: Shape) -> Shape:
    """`shape`, if values can be broadcast to it."""
    if len(values) > len(shape) or broadcast_shapes("setitem", values, shape) != shape:
        raise ValueError(f"[setitem] values of shape {values} do not fit the indexed part of shape {shape}.")
    return shape
