"""Reading and writing parts of arrays: Subtensor, IncSubtensor, and their relatives with arrays of indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor import subtensor as pts

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import converts
from weft.frontends.pytensor.values import Known, NotConverted, Partial, Value, cast, size, to_array
from weft.frontends.pytensor.versions import found


def _slices(node: Apply, first: int) -> Iterable[int]:
    """The positions of the bounds of slices among the inputs; those of single elements may be data."""
    for entry in node.op.idx_list:
        if isinstance(entry, slice):
            for at in (entry.start, entry.stop, entry.step):
                if at is not None:
                    yield first + at


def _index(op: Any, given: Sequence[Value]) -> tuple[Any, ...]:
    """What stands between the brackets."""

    def bound(at: int | None) -> Any:
        if at is None or (isinstance(given[at], Known) and given[at].value is None):  # type: ignore[union-attr]
            return None
        return size(given[at])

    def entry(item: Any) -> Any:
        if isinstance(item, slice):
            return slice(bound(item.start), bound(item.stop), bound(item.step))
        return _element(given[item])

    return tuple(entry(item) for item in op.idx_list)


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
    index = _index(op, given)
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
    x, index = to_array(x), _index(op, given)
    _check_indices(x, index)
    return _written(x, index, to_array(y, node.inputs[0].type.dtype), op.set_instead_of_inc)


def _written(x: array, index: tuple[Any, ...], y: array, sets: bool) -> array:
    if not index:
        return mx.broadcast_to(y, x.shape) if sets else x + y
    if not sets:
        return x.at[index].add(y)
    made = mx.array(x)
    made[index] = y
    return made


def _refuses_masks(first: int) -> Any:
    def refuses(node: Apply) -> str | None:
        masks = any(getattr(x.type, "dtype", "") == "bool" for x in node.inputs[first:])
        return "indices that are masks, whose results have a size that depends on data" if masks else None

    return refuses


def _known_advanced(first: int) -> Any:
    return lambda node: _slices(node, first) if hasattr(node.op, "idx_list") else ()


def _advanced_index(op: Any, given: Sequence[Value]) -> tuple[Any, ...]:
    return _index(op, given)


@converts(pts.AdvancedSubtensor, known=_known_advanced(1), refuses=_refuses_masks(1))
def advanced_subtensor(op: Any, node: Apply, x: Value, *given: Value) -> array:
    """Elements by arrays of indices, beside slices."""
    x = to_array(x)
    return _gathered(x, _advanced_index(op, given), node)


def _gathered(x: array, index: tuple[Any, ...], node: Apply) -> array:
    made = x[index]
    if made.ndim != node.outputs[0].type.ndim:
        raise NotConverted(f"indices whose result has {made.ndim} axes instead of {node.outputs[0].type.ndim}")
    return made


@converts(*found("tensor.subtensor", "AdvancedSubtensor1"))
def advanced_subtensor1(op: Any, node: Apply, x: Value, rows: Value) -> array:
    """Some rows."""
    return mx.take(to_array(x), to_array(rows), axis=0)


@converts(pts.AdvancedIncSubtensor, known=_known_advanced(2), refuses=_refuses_masks(2))
def advanced_inc_subtensor(op: Any, node: Apply, x: Value, y: Value, *given: Value) -> array:
    """An array with elements replaced, or increased as often as they are named."""
    if getattr(op, "ignore_duplicates", False) and not op.set_instead_of_inc:
        raise NotConverted("an increment that ignores indices which come twice")
    return _written(
        to_array(x), _advanced_index(op, given), to_array(y, node.inputs[0].type.dtype), op.set_instead_of_inc
    )


@converts(*found("tensor.subtensor", "AdvancedIncSubtensor1"))
def advanced_inc_subtensor1(op: Any, node: Apply, x: Value, y: Value, rows: Value) -> array:
    """An array with rows replaced, or increased as often as they are named."""
    index = (to_array(rows),)
    return _written(to_array(x), index, to_array(y, node.inputs[0].type.dtype), op.set_instead_of_inc)
