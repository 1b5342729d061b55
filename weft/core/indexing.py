"""Reading and writing parts of arrays with brackets."""

from __future__ import annotations

from typing import Any

from weft.core._common import array, astype, bind, broadcast_node, broadcast_shapes, scalar_node, to_node, wrap
from weft.graph.node import Node, Shape, kind_of
from weft.primitives.views import Slice, SliceUpdate, reshape


class Basic:
    """An index of integers, slices, None and Ellipsis, worked out against a shape: one Slice, then a Reshape to `shape`."""

    __slots__ = ("shape", "sizes", "starts", "steps")

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

    def read(self, x: Node) -> Node:
        whole = self.sizes == x.shape and not any(self.starts) and all(step == 1 for step in self.steps)
        part = x if whole else bind(Slice(self.starts, self.sizes, self.steps), x)
        return reshape(part, self.shape)

    def write(self, x: Node, values: Node) -> Node:
        """x with `values` (broadcast) in this place."""
        part = reshape(broadcast_node(values, self.shape), self.sizes)
        return bind(SliceUpdate(self.starts, self.steps), x, part)


def expand_ellipsis(key: tuple[Any, ...], ndim: int) -> list[Any]:
    """The index with one item for every axis."""
    used = sum(item is not None and item is not Ellipsis for item in key)
    if sum(item is Ellipsis for item in key) > 1:
        raise IndexError("[index] an index can have only one Ellipsis (...).")
    if used > ndim:
        raise IndexError(f"[index] {used} indices are too many for an array with {ndim} axes.")
    fill = [slice(None)] * (ndim - used)
    items: list[Any] = []
    for item in key:
        items.extend(fill if item is Ellipsis else [item])
    return items if any(item is Ellipsis for item in key) else items + fill


def resolve_slice(item: slice, n: Any) -> tuple[Any, Any, int]:
    """(start, size, step) of a slice of an axis of n elements."""
    for bound in (item.start, item.stop, item.step):
        if bound is not None and not hasattr(bound, "__index__"):
            raise TypeError(f"[index] slice bounds are integers; got {bound!r}.")
    step = 1 if item.step is None else item.step.__index__()
    if step == 0:
        raise ValueError("[index] a slice's step cannot be 0.")
    start, stop, step = slice(item.start, item.stop, step).indices(n)
    return start, len(range(start, stop, step)), step


def resolve_integer(item: Any, n: Any, axis: int) -> int:
    index: int = item.__index__()
    if not -n <= index < n:
        raise IndexError(f"[index] {index} is out of range for axis {axis} with {n} elements.")
    return index + n if index < 0 else index


def is_basic(item: Any) -> bool:
    if isinstance(item, bool):
        return False
    return item is None or item is Ellipsis or isinstance(item, slice) or (hasattr(item, "__index__") and not isinstance(item, array))


def getitem(a: array, key: Any) -> array:
    """a[key]."""
    items = key if isinstance(key, tuple) else (key,)
    if all(is_basic(item) for item in items):
        x = a._node
        return wrap(Basic(items, x.shape).read(x))
    return advanced_read(a, items)


def setitem(a: array, key: Any, value: Any) -> None:
    """a[key] = value."""
    items = key if isinstance(key, tuple) else (key,)
    if not all(is_basic(item) for item in items):
        return advanced_write(a, items, value)
    x = a._node
    place = Basic(items, x.shape)
    if isinstance(value, (bool, int, float, complex)):
        values = scalar_node(value, kind_of((), x.dtype))
    else:
        values = astype(to_node(value), x.dtype)
    extra = values.ndim - len(place.shape)
    if extra > 0 and all(n == 1 for n in values.shape[:extra]):
        values = reshape(values, values.shape[extra:])
    if broadcast_shapes("setitem", values.shape, place.shape) != place.shape:
        raise ValueError(f"[setitem] values of shape {values.shape} do not fit the indexed part of shape {place.shape}.")
    a._overwrite(wrap(place.write(x, values)))
    return None


def advanced_read(a: array, items: tuple[Any, ...]) -> array:
    raise TypeError("[index] array indices are handled by weft.core.gathering.")


def advanced_write(a: array, items: tuple[Any, ...], value: Any) -> None:
    raise TypeError("[index] array indices are handled by weft.core.gathering.")
