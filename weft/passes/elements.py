"""Loops over a handful of numbers, element by element.

The state of a differential equation, a filter or a small model is a vector of a few elements that are taken apart and
put together again at each step. As arrays they cost a kernel for each such move. Here every element of every array in
a body becomes a value of its own: moves are then only a matter of names, what remains is elementwise on single
numbers, and the whole loop one kernel that keeps its carries in registers (targets/cpu/forms/steps.py). Each number is
computed by the same operations as before, so bits stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.graph.body import body_of
from weft.graph.node import ArrayType, Node, Size, kind_of
from weft.primitives.base import Constant, Elementwise, Placeholder, View, bind, bind_many
from weft.primitives.control import Loop
from weft.primitives.joins import Concatenate
from weft.primitives.views import Slice, SliceUpdate, Transpose, reshape

MOST_CARRIED = 32
"""Elements of all carries together: about as many as there is room for in registers."""
MOST_ELEMENTS = 64
"""Elements of one array of a body."""
MOST_VALUES = 400
"""Numbers that a body computes."""
WORTH = 24
"""How many numbers may be computed, read and written one by one, and not in vectors, to save one move: about what a
kernel costs."""


def by_elements(op: Loop, operands: Sequence[Node]) -> list[Node] | None:
    """The results of a loop over small arrays that moves elements about, as a loop over single numbers; None if it is
    no such loop."""
    moves = _moves(op) if _is_small(op) else 0
    if not moves:
        return None
    body = _Elements(op)
    return body.results(operands) if body.known and body.cost <= WORTH * moves else None


def _is_small(op: Loop) -> bool:
    """Whether there are so few elements that each can have a name."""
    nodes = op.body.graph.order()
    if any(type(node.kind) is not ArrayType or node.kind.symbolic for node in nodes):
        return False
    if not all(0 < _count(node) <= MOST_ELEMENTS for node in nodes):
        return False
    carries = op.body.inputs[op.invariants : op.invariants + op.carries]
    if op.length is None and (op.split_body()[1] or len(op.body.inputs) > op.invariants + op.carries):
        return False  # tapes are for other loops as they are
    return sum(map(_count, nodes)) <= 2 * MOST_VALUES and 0 < sum(map(_count, carries)) <= MOST_CARRIED


def _moves(op: Loop) -> int:
    """How many moves make elements of arrays meet each other. Without any, vectors do better."""
    carried = {x for x in op.body.inputs[op.invariants : op.invariants + op.carries] if _count(x) > 1}
    found = 0
    for node in op.body.graph.order():
        found += isinstance(node.op, (Concatenate, SliceUpdate))
        if isinstance(node.op, View) and node.inputs[0] in carried:
            carried.add(node)
            found += isinstance(node.op, (Slice, Transpose))
    return found


def _count(node: Node) -> int:
    return math.prod(node.shape)  # type: ignore[arg-type]


class _Elements:
    """A body by elements: for each node an array of the numbers of its elements among `values`."""

    def __init__(self, op: Loop) -> None:
        self.op = op
        self.values: list[Node] = []
        self.numbers: dict[Node, np.ndarray] = {}
        self.made: dict[tuple[Any, ...], int] = {}
        self.cost = sum(map(_count, (*op.body.inputs[op.invariants :], *op.body.outputs)))
        for param in op.body.inputs:
            fresh = [Node(Placeholder("a body"), (), _single(param)) for _ in range(_count(param))]
            self.numbers[param] = self._add(fresh).reshape(param.shape)
        self.known = all(self._visit(node) for node in op.body.graph.order())

    def _add(self, nodes: Sequence[Node]) -> np.ndarray:
        first = len(self.values)
        self.values.extend(nodes)
        return np.arange(first, len(self.values))

    def _visit(self, node: Node) -> bool:
        """Whether the elements of a node could be named."""
        if node in self.numbers:
            return True
        given = [self.numbers[x] for x in node.inputs]
        if isinstance(node.op, Constant):
            found = np.full(node.shape, self._add([Node(node.op, (), _single(node), node.value)])[0])
        elif isinstance(node.op, (View, Concatenate, SliceUpdate)):
            found = np.asarray(node.op.reference(*given))
        elif isinstance(node.op, Elementwise) and node.inputs:
            rows = np.stack([x.reshape(-1) for x in given], axis=1)
            found = np.array([self._computed(node, row) for row in rows.tolist()], np.int64).reshape(node.shape)
        else:
            return False
        self.numbers[node] = found
        return len(self.values) <= MOST_VALUES

    def _computed(self, node: Node, operands: Sequence[int]) -> int:
        key = (node.op, node.dtype, *operands)
        found = self.made.get(key)
        if found is None:
            assert isinstance(node.op, Elementwise)
            self.cost += node.op.cost
            value = Node(node.op, tuple([self.values[i] for i in operands]), _single(node))
            found = self.made[key] = int(self._add([value])[0])
        return found

    def _elements(self, nodes: Sequence[Node]) -> list[Node]:
        return [self.values[i] for node in nodes for i in self.numbers[node].reshape(-1).tolist()]

    def results(self, operands: Sequence[Node]) -> list[Node]:
        """What the loop by elements gives, put together again."""
        op = self.op
        count, invariants, carries, rows = op.split(operands)
        inputs = op.body.inputs
        first, last = op.invariants, op.invariants + op.carries
        body = body_of(self._elements(inputs), self._elements(op.body.outputs))
        inside = [x for node in invariants for x in _apart(node)]
        firsts = [x for node in carries for x in _apart(node)]
        loop = op.with_body(body, len(inside), len(firsts))
        given = [*count, *inside, *firsts, *(x for node in rows for x in _columns(node))]
        parts = iter(bind_many(loop, *given))
        after, made, _ = op.split_body()
        found = [_together([next(parts) for _ in range(_count(x))], x.shape, None) for x in inputs[first:last]]
        assert len(found) == len(after)
        found += [_together([next(parts) for _ in range(_count(x))], x.shape, op.length) for x in made]
        return [*found, *parts]


def _single(node: Node) -> ArrayType:
    return kind_of((), node.dtype)


def _apart(x: Node) -> list[Node]:
    """The elements of an array."""
    flat = reshape(x, (_count(x),))
    return [reshape(bind(Slice((i,), (1,), (1,)), flat), ()) for i in range(_count(x))]


def _columns(x: Node) -> list[Node]:
    """For each element of a row, that of all rows."""
    length = x.shape[0]
    size = math.prod(x.shape[1:])
    flat = reshape(x, (length, size))
    return [reshape(bind(Slice((0, i), (length, 1), (1, 1)), flat), (length,)) for i in range(size)]


def _together(elements: Sequence[Node], shape: Sequence[Size], length: Size | None) -> Node:
    """The array of these elements; of rows if each of them is one of `length` rows."""
    rows: tuple[Size, ...] = () if length is None else (length,)
    columns = [reshape(x, (*rows, 1)) for x in elements]
    if not columns:
        raise AssertionError("an array without elements has no place in a loop by elements")
    whole = columns[0] if len(columns) == 1 else bind(Concatenate(len(rows)), *columns)
    return reshape(whole, (*rows, *shape))
