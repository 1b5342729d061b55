"""Loops over a handful of numbers, or over many such handfuls side by side, element by element.

The state of a differential equation, a filter or a small model is a vector of a few elements that are taken apart and
put together again at each step. As arrays they cost a kernel for each such move. Here every element of every array in
a body becomes a value of its own: moves are then only a matter of names, what remains is elementwise on single
numbers, and the whole loop one kernel that keeps its carries in registers (targets/cpu/forms/steps.py). Each number is
computed by the same operations as before, so bits stay the same.

Where many such states go side by side (a mapped function), all arrays have one axis in common along which nothing
moves, the *lanes*. Then every element is a vector of that length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.graph.body import body_of
from weft.graph.node import ArrayType, Node, Shape, Size, kind_of
from weft.primitives.base import Constant, Elementwise, Placeholder, Primitive, View, bind, bind_many
from weft.primitives.control import Loop
from weft.primitives.joins import Concatenate
from weft.primitives.views import Broadcast, Reshape, Slice, SliceUpdate, Transpose, reshape, transpose

MOST_CARRIED = 32
"""Elements of all carries together: about as many as there is room for in registers."""
MOST_ELEMENTS = 64
"""Elements of one array of a body."""
MOST_VALUES = 400
"""Numbers that a body computes."""
WORTH = 24
"""How many numbers may be computed, read and written one by one, and not in vectors, to save one move: about what a
kernel costs."""
LEAST_LANES = 16
"""States side by side that fill vectors."""


def by_elements(op: Loop, operands: Sequence[Node]) -> list[Node] | None:
    """The results of a loop over small arrays that moves elements about, as a loop over single numbers, or over lanes;
    None if it is no such loop."""
    nodes = op.body.graph.order()
    if any(type(node.kind) is not ArrayType or node.kind.symbolic for node in nodes):
        return None
    for lanes in (None, _lanes(op)):
        moves = _moves(op, lanes) if _is_small(op, lanes) else 0
        if not moves:
            continue
        body = _Elements(op, lanes)
        if body.known and (lanes is not None or body.cost <= WORTH * moves):
            return body.results(operands)
    return None


def _lanes(op: Loop) -> Size | None:
    """How many states go side by side, if it is clear which axis that is: the longest one of the carries, whose size no
    other axis has."""
    carries = op.body.inputs[op.invariants : op.invariants + op.carries]
    longest = max((n for x in carries for n in x.shape), default=0)
    if op.stops or longest < LEAST_LANES:
        return None
    return longest if all(node.shape.count(longest) <= 1 for node in op.body.graph.order()) else None


def _is_small(op: Loop, lanes: Size | None) -> bool:
    """Whether there are so few elements that each can have a name."""
    nodes = op.body.graph.order()
    if not all(0 < _count(node, lanes) <= MOST_ELEMENTS for node in nodes):
        return False
    carries = op.body.inputs[op.invariants : op.invariants + op.carries]
    if op.length is None and (op.split_body()[1] or len(op.body.inputs) > op.invariants + op.carries):
        return False  # tapes are for other loops as they are
    if lanes is not None and not all(lanes in row.shape for row in op.split_body()[1]):
        return False
    elements = sum([_count(node, lanes) for node in nodes])
    return elements <= 2 * MOST_VALUES and 0 < sum([_count(x, lanes) for x in carries]) <= MOST_CARRIED


def _moves(op: Loop, lanes: Size | None) -> int:
    """How many moves make elements of arrays meet each other. Without any, vectors do better."""
    carried = {x for x in op.body.inputs[op.invariants : op.invariants + op.carries] if _count(x, lanes) > 1}
    found = 0
    for node in op.body.graph.order():
        found += isinstance(node.op, (Concatenate, SliceUpdate))
        if isinstance(node.op, View) and node.inputs[0] in carried:
            carried.add(node)
            found += isinstance(node.op, (Slice, Transpose))
    return found


def _shape(node: Node, lanes: Size | None) -> Shape:
    """The shape without the axis of lanes."""
    return tuple(n for n in node.shape if n != lanes)


def _count(node: Node, lanes: Size | None) -> int:
    return math.prod(_shape(node, lanes))  # type: ignore[arg-type]


class _Elements:
    """A body by elements: for each node an array of the numbers of its elements among `values`."""

    def __init__(self, op: Loop, lanes: Size | None) -> None:
        self.op, self.lanes = op, lanes
        self.values: list[Node] = []
        self.numbers: dict[Node, np.ndarray] = {}
        self.made: dict[tuple[Any, ...], int] = {}
        self.cost = sum([_count(x, lanes) for x in (*op.body.inputs[op.invariants :], *op.body.outputs)])
        for k, param in enumerate(op.body.inputs):
            wide = self._is_wide(param) or op.invariants <= k < op.invariants + op.carries
            count = range(_count(param, lanes))
            fresh = [Node(Placeholder("a body"), (), self._single(param, wide)) for _ in count]
            self.numbers[param] = self._add(fresh).reshape(_shape(param, lanes))
        self.known = all(self._visit(node) for node in op.body.graph.order())

    def _is_wide(self, node: Node) -> bool:
        return self.lanes in node.shape

    def _single(self, node: Node, wide: bool) -> ArrayType:
        """The kind of an element; in a loop of lanes it may be the same in all of them, and a number."""
        return kind_of((self.lanes,) if wide and self.lanes is not None else (), node.dtype)

    def _add(self, nodes: Sequence[Node]) -> np.ndarray:
        first = len(self.values)
        self.values.extend(nodes)
        return np.arange(first, len(self.values))

    def _visit(self, node: Node) -> bool:
        """Whether the elements of a node could be named."""
        if node in self.numbers:
            return True
        shape = _shape(node, self.lanes)
        given = [self.numbers[x] for x in node.inputs]
        if isinstance(node.op, Constant):
            found = np.full(shape, self._add([Node(node.op, (), kind_of((), node.dtype), node.value)])[0])
        elif isinstance(node.op, (View, Concatenate, SliceUpdate)):
            op = self._of_one_lane(node)
            if op is None:
                return False
            found = np.asarray(op.reference(*map(self._lifted, node.inputs, given))).reshape(shape)
        elif isinstance(node.op, Elementwise) and node.inputs:
            rows = np.stack([x.reshape(-1) for x in given], axis=1)
            found = np.array([self._computed(node, row) for row in rows.tolist()], np.int64).reshape(shape)
        else:
            return False
        self.numbers[node] = found
        return len(self.values) <= MOST_VALUES

    def _lifted(self, node: Node, numbers: np.ndarray) -> np.ndarray:
        """The numbers of a node's elements, with an axis of one element for the lanes."""
        return numbers.reshape([1 if n == self.lanes else n for n in node.shape])

    def _of_one_lane(self, node: Node) -> Primitive | None:
        """The move, if there were but one lane; None if it moves lanes about."""
        op, lanes = node.op, self.lanes
        if lanes is None or not self._is_wide(node):
            return None if any(map(self._is_wide, node.inputs)) else op
        axis = node.shape.index(lanes)
        if isinstance(op, Broadcast):
            return Broadcast((*op.shape[:axis], 1, *op.shape[axis + 1 :]), op.axes)
        if not all(map(self._is_wide, node.inputs)):
            return None
        source = node.inputs[0].shape
        before = source.index(lanes)
        if isinstance(op, Reshape):
            one = Reshape((*op.shape[:axis], 1, *op.shape[axis + 1 :]))
            return one if math.prod(source[:before]) == math.prod(op.shape[:axis]) else None
        if isinstance(op, Slice):
            one_of = Slice(op.starts, (*op.sizes[:axis], 1, *op.sizes[axis + 1 :]), op.steps)
            return one_of if op.starts[axis] == 0 and op.steps[axis] == 1 else None
        if isinstance(op, SliceUpdate):
            return op if op.starts[axis] == 0 and op.steps[axis] == 1 else None
        return op if isinstance(op, Transpose) or (isinstance(op, Concatenate) and op.axis != axis) else None

    def _computed(self, node: Node, operands: Sequence[int]) -> int:
        key = (node.op, node.dtype, *operands)
        found = self.made.get(key)
        if found is None:
            assert isinstance(node.op, Elementwise)
            self.cost += node.op.cost
            wide = any(self.values[i].shape for i in operands)
            inputs = tuple([self.values[self._spread(i) if wide else i] for i in operands])
            found = self.made[key] = int(self._add([Node(node.op, inputs, self._single(node, wide))])[0])
        return found

    def _spread(self, number: int) -> int:
        """The number of the same element in all lanes."""
        value = self.values[number]
        if value.shape or self.lanes is None:
            return number
        found = self.made.get(("spread", number))
        if found is None:
            found = self.made["spread", number] = int(self._add([_repeated(value, self.lanes)])[0])
        return found

    def _elements(self, nodes: Sequence[Node], spread: bool = False) -> list[Node]:
        numbers = [i for node in nodes for i in self.numbers[node].reshape(-1).tolist()]
        return [self.values[self._spread(i) if spread else i] for i in numbers]

    def results(self, operands: Sequence[Node]) -> list[Node]:
        """What the loop by elements gives, put together again."""
        op, lanes = self.op, self.lanes
        count, invariants, carries, rows = op.split(operands)
        inputs = op.body.inputs
        first, last = op.invariants, op.invariants + op.carries
        body = body_of(self._elements(inputs), self._elements(op.body.outputs, spread=True))
        inside = [x for node in invariants for x in _apart(node, lanes)]
        firsts = [x for node in carries for x in _apart(node, lanes)]
        if lanes is not None:
            firsts = [x if x.shape else _repeated(x, lanes) for x in firsts]
        loop = op.with_body(body, len(inside), len(firsts))
        given = [*count, *inside, *firsts, *(x for node in rows for x in _columns(node, lanes))]
        parts = iter(bind_many(loop, *given))
        after, made, _ = op.split_body()
        found = []
        for x in inputs[first:last]:
            elements = [next(parts) for _ in range(_count(x, lanes))]
            if lanes is not None and not self._is_wide(x):
                elements = [reshape(bind(Slice((0,), (1,), (1,)), e), ()) for e in elements]
            found.append(_together(elements, x.shape, lanes, ()))
        assert len(found) == len(after)
        along = () if op.length is None else (op.length,)
        found += [_together([next(parts) for _ in range(_count(x, lanes))], x.shape, lanes, along) for x in made]
        return [*found, *parts]


def _repeated(x: Node, lanes: Size) -> Node:
    return bind(Broadcast((lanes,), ()), x)


def _apart(x: Node, lanes: Size | None) -> list[Node]:
    """The elements of an array."""
    return [reshape(row, row.shape[1:]) for row in _columns(reshape(x, (1, *x.shape)), lanes)]


def _columns(x: Node, lanes: Size | None) -> list[Node]:
    """For each element of a row, that of all rows."""
    length, *shape = x.shape
    wide: tuple[Size, ...] = ()
    if lanes is not None and lanes in shape:  # they go last
        axis, wide = x.shape.index(lanes, 1), (lanes,)
        x = transpose(x, (*(i for i in range(x.ndim) if i != axis), axis))
    size = math.prod(n for n in shape if n != lanes)
    flat = reshape(x, (length, size, *wide))
    steps = (1,) * flat.ndim
    zeros = (0,) * len(wide)
    return [reshape(bind(Slice((0, i, *zeros), (length, 1, *wide), steps), flat), (length, *wide)) for i in range(size)]


def _together(elements: Sequence[Node], shape: Shape, lanes: Size | None, rows: tuple[Size, ...]) -> Node:
    """The array of these elements; of rows if each of them is one of some rows."""
    if not elements:
        raise AssertionError("an array without elements has no place in a loop by elements")
    wide: tuple[Size, ...] = (lanes,) if lanes is not None and lanes in shape else ()
    others = tuple(n for n in shape if n != lanes)
    if wide and shape[-1] == lanes:
        return reshape(_joined([reshape(x, (*rows, 1, *wide)) for x in elements], len(rows)), (*rows, *shape))
    whole = _joined([reshape(x, (*rows, *wide, 1)) for x in elements], len(rows) + len(wide))
    whole = reshape(whole, (*rows, *wide, *others))
    if not wide:
        return whole
    order = [*range(len(rows) + 1, whole.ndim)]
    order.insert(shape.index(lanes), len(rows))
    return transpose(whole, (*range(len(rows)), *order))


def _joined(parts: Sequence[Node], axis: int) -> Node:
    return parts[0] if len(parts) == 1 else bind(Concatenate(axis), *parts)
