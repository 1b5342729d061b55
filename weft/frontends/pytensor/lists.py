"""Typed lists: what is in a list, and where, is known while a graph is translated, so a list is its elements.

How many elements there are is part of what a program is made for. What takes an element out depends on data, so it is
left to PyTensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pytensor import typed_list
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.type_other import SliceType

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import Graph, converts, effects
from weft.frontends.pytensor.sizes import SIZES
from weft.frontends.pytensor.values import Known, Value, is_list, to_array

SIZES[typed_list.Length] = frozenset({0})

Structure = tuple[Any, ...] | None
"""What is in a list, each a list or (None) an array."""


class Items:
    """The value of a variable that stands for lists."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = list(values)


def as_items(value: Items | Known) -> Items:
    """A list, or a constant that is one."""
    if isinstance(value, Items):
        return value
    return Items([as_items(Known(x)) if isinstance(x, list) else Known(np.asarray(x)) for x in value.value])


# ---- making and changing lists ----


def _position(node: Apply) -> tuple[int, ...]:
    return () if isinstance(node.inputs[1].type, SliceType) else (1,)


def _refuses_slice(node: Apply) -> str | None:
    index = node.inputs[1]
    return "its slice is computed" if isinstance(index.type, SliceType) and not isinstance(index, Constant) else None


@converts(typed_list.MakeList, lists=True)
def make_list(op: Any, node: Apply, *given: Any) -> Items:
    return Items(given)


@converts(typed_list.GetItem, known=_position, refuses=_refuses_slice, lists=True)
def get_item(op: Any, node: Apply, x: Any, index: Known) -> Any:
    values = as_items(x).values
    if isinstance(index.value, slice):
        return Items(values[index.value])
    return values[int(index.numbers())]


@converts(typed_list.Append, lists=True)
def append(op: Any, node: Apply, x: Any, more: Any) -> Items:
    return Items([*as_items(x).values, more])


@converts(typed_list.Extend, lists=True)
def extend(op: Any, node: Apply, x: Any, more: Any) -> Items:
    return Items([*as_items(x).values, *as_items(more).values])


@converts(typed_list.Insert, known=lambda node: (1,), lists=True)
def insert(op: Any, node: Apply, x: Any, index: Known, more: Any) -> Items:
    values = list(as_items(x).values)
    values.insert(int(index.numbers()), more)
    return Items(values)


@converts(typed_list.Reverse, lists=True)
def reverse(op: Any, node: Apply, x: Any) -> Items:
    return Items(as_items(x).values[::-1])


# ---- asking about them ----


@converts(typed_list.Length, lists=True)
def length(op: Any, node: Apply, x: Any) -> Known:
    return Known(np.array(len(as_items(x).values), np.int64))


def _are_equal(x: Any, y: Any) -> array:
    """Whether two elements are: arrays of one shape with equal numbers, or lists of equal elements."""
    if isinstance(x, Items) or isinstance(y, Items):
        mine, others = as_items(x).values, as_items(y).values
        flags = [_are_equal(*pair) for pair in zip(mine, others, strict=False)]
        return _all([mx.array(len(mine) == len(others)), *flags])
    left, right = to_array(x), to_array(y)
    if left.shape != right.shape:
        return mx.array(False)
    return mx.all(left == right)


def _all(flags: Sequence[array]) -> array:
    found = flags[0]
    for flag in flags[1:]:
        found = found & flag
    return found


@converts(typed_list.Count, lists=True)
def count(op: Any, node: Apply, x: Any, wanted: Any) -> array:
    total = mx.zeros((), mx.int64)
    for each in as_items(x).values:
        total = total + _are_equal(each, wanted).astype(mx.int64)
    return total


@converts(typed_list.Index, lists=True)
def index_of(op: Any, node: Apply, x: Any, wanted: Any) -> array:
    """The first place."""
    found = mx.array(-1, mx.int64)
    for at, each in reversed(list(enumerate(as_items(x).values))):
        found = mx.where(_are_equal(each, wanted), mx.array(at, mx.int64), found)

    def act(there: Any) -> None:
        if not there:
            raise ValueError("Index: the element is not in the list.")

    effects().add(found >= 0, act)
    return found


# ---- across the ends of a program ----


def structure_of(value: Any) -> Structure:
    """What a list of Python, or of a graph, holds."""
    if isinstance(value, Items):
        return tuple([structure_of(x) for x in value.values])
    if isinstance(value, list) or (isinstance(value, Known) and isinstance(value.value, list)):
        return structure_of(as_items(value if isinstance(value, Known) else Known(value)))
    return None


def leaves_of(kind: Any, structure: Structure) -> list[Variable]:
    """A variable for each array in a value of a type."""
    if structure is None:
        return [kind()]
    return [leaf for part in structure for leaf in leaves_of(kind.ttype, part)]


def arrays_in(value: Any, kind: Any) -> list[Any]:
    """The arrays in a value of Python's, in order."""
    if isinstance(value, list):
        return [x for part in value for x in arrays_in(part, kind.ttype)]
    return [np.asarray(value, kind.dtype)]


def packed(structure: Structure, arrays: Iterator[Any]) -> Any:
    """A value of Python's, made of its arrays."""
    if structure is None:
        return next(arrays)
    return [packed(part, arrays) for part in structure]


def _items(structure: Structure, given: Iterator[Value]) -> Any:
    if structure is None:
        return next(given)
    return Items([_items(part, given) for part in structure])


def _values_in(value: Any) -> list[Value]:
    if structure_of(value) is None:
        return [value]
    return [x for part in as_items(value).values for x in _values_in(part)]


class ListedGraph(Graph):
    """A graph with lists among its inputs or results, as a function of the arrays in them. What is in its inputs is
    given; what is in its `results` is known when it was called."""

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        nodes: Sequence[Apply],
        given: Sequence[Structure],
    ) -> None:
        super().__init__(inputs, outputs, nodes, is_whole=True)
        self._given = given
        self.results: list[Structure] = []

    def __call__(self, *given: Value) -> list[Value]:
        arrays = iter(given)
        made = super().__call__(*[_items(structure, arrays) for structure in self._given])
        self.results = [structure_of(x) if is_list(v) else None for x, v in zip(made, self.outputs, strict=True)]
        return [x for value in made for x in _values_in(value)]
