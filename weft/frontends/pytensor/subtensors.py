"""Reading and writing parts of arrays: Subtensor, IncSubtensor, and their relatives with arrays of indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor import subtensor as pts
from pytensor.tensor.basic import Nonzero

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import converts, effects
from weft.frontends.pytensor.values import (
    Known,
    NotConverted,
    Partial,
    Value,
    cast,
    constant,
    number_of,
    size,
    to_array,
)
from weft.frontends.pytensor.versions import found


def _slices(node: Apply, first: int) -> Iterable[int]:
    """The positions of the bounds of slices among the inputs; those of single elements may be data."""
    for entry in node.op.idx_list:
        if isinstance(entry, slice):
            for at in (entry.start, entry.stop, entry.step):
                if at is not None:
                    yield first + at


def _index(entries: Sequence[Any], given: Sequence[Value]) -> tuple[Any, ...]:
    """What stands between the brackets."""

    def bound(at: int | None) -> Any:
        if at is None or (isinstance(given[at], Known) and given[at].value is None):  # type: ignore[union-attr]
            return None
        return size(given[at])

    def entry(item: Any) -> Any:
        if isinstance(item, slice):
            return slice(bound(item.start), bound(item.stop), bound(item.step))
        return _element(given[item])

    return tuple(entry(item) for item in entries)


def _element(value: Value) -> Any:
    """An index that is no slice: a number if it is known."""
    if isinstance(value, Known):
        if np.ndim(value.value) == 0:
            return size(value)
        return value.array()
    return value


def _check_indices(x: array, index: Sequence[Any]) -> None:
    for axis, item in enumerate(index):
        if isinstance(item, int) and not -x.shape[axis] <= item < x.shape[axis]:
            raise IndexError(f"index {item} is out of bounds for axis {axis} with size {x.shape[axis]}")


@converts(pts.Subtensor, known=lambda node: _slices(node, 1))
def subtensor(op: Any, node: Apply, x: Value | Partial, *given: Value) -> array:
    """Slices and single elements."""
    index = _index(op.idx_list, given)
    if isinstance(x, Partial):
        row = x.row(int(index[0]))
        return row[index[1:]] if len(index) > 1 else row
    x = to_array(x)
    _check_indices(x, index)
    if not index:
        return x
    single = [item if not isinstance(item, array) else cast(item, "int64") for item in index]
    return x[tuple(single)]


@converts(pts.IncSubtensor, known=lambda node: _slices(node, 2))
def inc_subtensor(op: Any, node: Apply, x: Value, y: Value, *given: Value) -> array:
    """An array with a part replaced, or increased."""
    x, index = to_array(x), _index(op.idx_list, given)
    _check_indices(x, index)
    return _written(x, index, to_array(y, node.inputs[0].type.dtype), op.set_instead_of_inc)


SHORT = 16
"""Elements of a vector up to which one of them is replaced by choosing between two for each: that is a part of the
kernels around it, and a write is one of its own."""


def _written(x: array, index: tuple[Any, ...], y: array, sets: bool) -> array:
    if not index:
        return mx.broadcast_to(y, x.shape) if sets else x + y
    if x.ndim == 1 and type(x.shape[0]) is int and x.shape[0] <= SHORT and type(index[0]) is int:
        here = mx.arange(x.shape[0]) == index[0] % x.shape[0]
        return mx.where(here, y if sets else x + y, x)
    if not sets:
        return x.at[index].add(y)
    made = mx.array(x)
    made[index] = y
    return made


# ---- arrays of indices, and masks ----


def _is_mask(x: Variable) -> bool:
    return getattr(x.type, "dtype", "") == "bool"


def _is_computed_mask(x: Variable) -> bool:
    return _is_mask(x) and not isinstance(x, Constant)


def _reads_by_mask(node: Apply) -> bool:
    """Whether a node reads the elements that a computed mask selects."""
    return any(_is_computed_mask(x) for x in node.inputs[1:])


def _writes_by_places(node: Apply) -> bool:
    """Whether a node writes by a computed mask beside other indices: how many places that are depends on data."""
    return any(_is_computed_mask(x) for x in node.inputs[2:]) and not _writes_by_mask(node)


def _writes_by_mask(node: Apply) -> bool:
    """Whether a node writes to the elements that a computed mask selects, and that is its only index."""
    if not isinstance(node.op, pts.AdvancedIncSubtensor) or len(node.inputs) != 3:
        return False
    return _is_computed_mask(node.inputs[2]) and node.inputs[2].type.ndim > 0


def counts_places(node: Apply) -> bool:
    """Whether a node writes one value each to the elements that a computed mask selects."""
    if not _writes_by_mask(node):
        return False
    x, y, mask = node.inputs
    return y.type.ndim == x.type.ndim - mask.type.ndim + 1 and y.type.shape[0] != 1


def _known_advanced(first: int) -> Any:
    return lambda node: _slices(node, first) if hasattr(node.op, "idx_list") else ()


def _advanced_index(x: array, op: Any, given: Sequence[Value]) -> tuple[Any, ...]:
    """What stands between the brackets, with places in the stead of masks that are known, or not the only index."""
    made: list[Any] = []
    for item in op.idx_list:
        value = given[item] if isinstance(item, int) else None
        if isinstance(value, Known) and np.asarray(value.value).dtype == bool:
            made += _selected(x, len(made), np.asarray(value.value))
        elif isinstance(value, array) and value.dtype is mx.bool_ and len(op.idx_list) > 1:
            _check_mask(x, len(made), value.shape)
            made += mx.nonzero(value)
        else:
            made += _index([item], given)
    return tuple(made)


def _selected(x: array, axis: int, mask: np.ndarray) -> list[array]:
    """The places that a mask selects, along each of the axes that it is for."""
    _check_mask(x, axis, mask.shape)
    return [constant(places) for places in np.nonzero(mask)]


def _check_mask(x: array, axis: int, shape: Sequence[Any]) -> None:
    if not shape:
        raise NotConverted("a mask without axes")
    for at, n in enumerate(shape, axis):
        if x.shape[at] != n:
            raise IndexError(
                f"boolean index did not match indexed array along axis {at}; size of axis is {x.shape[at]} but size of "
                f"corresponding boolean axis is {n}"
            )


@converts(pts.AdvancedSubtensor, known=_known_advanced(1), sized=_reads_by_mask)
def advanced_subtensor(op: Any, node: Apply, x: Value, *given: Value) -> array:
    """Elements by arrays of indices, beside slices."""
    x = to_array(x)
    made: array = x[_advanced_index(x, op, given)]
    if made.ndim != node.outputs[0].type.ndim:
        raise NotConverted(f"indices whose result has {made.ndim} axes instead of {node.outputs[0].type.ndim}")
    return made


@converts(Nonzero, sized=lambda node: True)
def nonzero(op: Any, node: Apply, x: Value) -> list[array]:
    """The places of the elements that are not 0, along each axis."""
    return list(mx.nonzero(to_array(x)))


@converts(*found("tensor.subtensor", "AdvancedSubtensor1"))
def advanced_subtensor1(op: Any, node: Apply, x: Value, rows: Value) -> array:
    """Some rows."""
    return mx.take(to_array(x), to_array(rows), axis=0)


@converts(pts.AdvancedIncSubtensor, known=_known_advanced(2), sized=_writes_by_places)
def advanced_inc_subtensor(op: Any, node: Apply, x: Value, y: Value, *given: Value) -> array:
    """An array with elements replaced, or increased as often as they are named."""
    if getattr(op, "ignore_duplicates", False) and not op.set_instead_of_inc:
        raise NotConverted("an increment that ignores indices which come twice")
    x, y = to_array(x), to_array(y, node.inputs[0].type.dtype)
    if _writes_by_mask(node):
        return _written_by_mask(x, to_array(given[0]), y, op.set_instead_of_inc, counts_places(node))
    return _written(x, _advanced_index(x, op, given), y, op.set_instead_of_inc)


def _written_by_mask(x: array, mask: array, y: array, sets: bool, counts: bool) -> array:
    """An array with the elements that a mask selects replaced, or increased, by one value or by one each. If it
    `counts`, whether there are as many values as there are places for them is known when the program has run."""
    if any(n != m for n, m in zip(mask.shape, x.shape, strict=False)):
        raise IndexError(f"boolean index of shape {mask.shape} did not match indexed array of shape {x.shape}")
    inner = x.ndim - mask.ndim
    chosen = mask.reshape([*mask.shape, *[1] * inner])
    if counts:
        count = y.shape[0]
        fine = mx.sum(cast(mask, "int64")) == number_of(count) if count != 1 else mx.array(True)
        effects().add(fine.reshape(()), _counted)
        if count == 0:
            return x
        if count != 1:
            numbers = mx.cumsum(cast(mask.reshape([-1]), "int64")) - number_of(1)
            y = mx.take(y, mx.maximum(numbers, number_of(0)), axis=0).reshape([*mask.shape, *y.shape[1:]])
    if y.ndim == inner + 1 and y.shape[0] == 1 and not (counts and count != 1):
        y = y.reshape(y.shape[1:])
    return mx.where(chosen, y if sets else x + y, x)


def _counted(fine: Any) -> None:
    if not np.all(fine):
        raise ValueError("the values for the elements that a mask selects are more or fewer than these")


@converts(*found("tensor.subtensor", "AdvancedIncSubtensor1"))
def advanced_inc_subtensor1(op: Any, node: Apply, x: Value, y: Value, rows: Value) -> array:
    """An array with rows replaced, or increased as often as they are named."""
    index = (to_array(rows),)
    return _written(to_array(x), index, to_array(y, node.inputs[0].type.dtype), op.set_instead_of_inc)
