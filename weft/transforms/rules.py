"""Derivative rules, remembered: what a primitive's rule builds depends on the primitive and on the kinds of its
operands only.

A rule runs once, on stand-ins for its operands. What it built is kept as a list of steps, checked once, and built again
for every node of those kinds, by machine code. Nodes that no result needs (the derivative by an operand that is not
traced) are never built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.graph.node import ArrayType, Node, Tape, node_of, reachable
from weft.primitives.base import Constant, Placeholder, Primitive, View, constant
from weft.primitives.control import add_tapes
from weft.primitives.elementwise import Add
from weft.runtime.objects import MAKERS
from weft.transforms.check import checked

MOST = 1 << 14
"""Rules remembered; beyond that all are forgotten."""

ADD = Add()
Gathered = dict[Node, Node]
"""The sum of the cotangents that each node has been given so far."""


def give(gathered: Gathered, node: Node, cotangent: Node) -> None:
    """Add to a node's cotangent."""
    held = gathered.get(node)
    gathered[node] = cotangent if held is None else total(held, cotangent)


def total(x: Node, y: Node) -> Node:
    """The sum of two cotangents."""
    return add_tapes(x, y) if x.kind.__class__ is Tape else Node(ADD, (x, y), x.kind)


class Steps:
    """What a rule built from the nodes it was given, as steps that build it again from others."""

    __slots__ = ("_results", "_steps", "run")

    run: Callable[..., Any]
    """The rule for other nodes."""

    def __init__(self, given: Sequence[Node], results: Sequence[Node | None]) -> None:
        slots: dict[Node, int] = {node: i for i, node in enumerate(given)}
        same: dict[tuple[Any, ...], int] = {}
        asked = {r for r in results if r is not None}
        self._steps: list[tuple[Primitive | None, Any, tuple[int, ...]]] = []
        constants = {node: node for node in given if isinstance(node.op, Constant)}
        for node in reachable(list(asked)):
            if node in slots:
                continue
            operands = tuple([slots[operand] for operand in node.inputs])
            plain = bool(operands) and node.op.node_class is Node and node not in asked
            alike = (node.op, node.kind, operands) if plain else (node,)
            if alike in same:  # once for each distinct operation, as passes would have it; results stay apart
                slots[node] = same[alike]
                continue
            slots[node] = same[alike] = len(given) + len(self._steps)
            if isinstance(node.op, View) and node.inputs[0] in constants:  # a number elsewhere is the number
                number = constants[node.inputs[0]]
                constants[node] = Node(number.op, (), node.kind, number.value)
            elif node.value is not None:
                constants[node] = node
            if node in constants:
                self._steps.append((None, constants[node], ()))  # shared by all that the rule builds
            else:
                self._steps.append((node.op, node.kind, operands))
        self._results = [None if r is None else slots[r] for r in results]

    def _built(self, given: Sequence[Node]) -> list[Node | None]:
        """The results, step by step."""
        nodes = list(given)
        for op, what, operands in self._steps:
            nodes.append(what if op is None else node_of(op, tuple([nodes[i] for i in operands]), what))
        return [None if i is None else nodes[i] for i in self._results]

    def _made_of_one_class(self) -> bool:
        """Whether machine code can build it, which makes plain nodes."""
        return all(op is None or op.node_class is Node for op, _, _ in self._steps)


class Backward(Steps):
    """A vjp rule. `run(gathered, cotangent, out, *operands)` gives the operands at `positions` their cotangents."""

    __slots__ = ("positions",)

    def __init__(self, positions: Sequence[int], given: Sequence[Node], results: Sequence[Node]) -> None:
        super().__init__(given, results)
        self.positions = tuple(positions)
        pairs = [(position + 2, place) for position, place in zip(positions, self._results, strict=True)]
        self.run = self._by_steps
        # Tapes are added in a way of their own.
        if all(result.kind.__class__ is not Tape for result in results) and self._made_of_one_class():
            self.run = MAKERS.recipe(len(given), pairs, self._steps, self._by_steps, adds=ADD)

    def _by_steps(self, gathered: Gathered, *given: Node) -> None:
        for position, found in zip(self.positions, self._built(given), strict=True):
            assert found is not None
            give(gathered, given[position + 2], found)


class Forward(Steps):
    """A jvp rule. `run(out, *operands, *tangents)` is the tangent of the result, or None."""

    __slots__ = ()

    def __init__(self, given: Sequence[Node], result: Node | None) -> None:
        super().__init__(given, [result])
        self.run = self._by_steps
        if result is not None and self._made_of_one_class():
            self.run = MAKERS.recipe(len(given), self._results, self._steps, self._by_steps)

    def _by_steps(self, *given: Node) -> Node | None:
        return self._built(given)[0]


class Rebuilding(Steps):
    """What a function built. `run(*given)` is what it builds of others: nodes, one for each of its results."""

    __slots__ = ("_one", "is_plain")

    def __init__(self, given: Sequence[Node], results: Sequence[Node]) -> None:
        super().__init__(given, results)
        made = {len(given) + i for i, (op, _, _) in enumerate(self._steps) if op is not None}
        self.is_plain = made.issuperset(self._results) and all(op is None or op.is_total for op, _, _ in self._steps)
        """Whether all results are new nodes, and no operation has to know its line, because it may fail."""
        self.run = self._by_steps
        if len(results) == 1 and self._made_of_one_class():
            self._one = MAKERS.recipe(len(given), self._results, self._steps, self._one_by_steps)
            self.run = self._single

    def _single(self, *given: Node) -> tuple[Node]:
        return (self._one(*given),)

    def _one_by_steps(self, *given: Node) -> Node | None:
        return self._built(given)[0]

    def _by_steps(self, *given: Node) -> list[Node | None]:
        return self._built(given)


BACKWARD: dict[tuple[Any, ...], Backward] = {}
"""vjp rules by (primitive, mask, kinds of the operands). Bit 0 of the mask says that the cotangent is exactly one, bit
i + 1 that operand i is wanted."""
FORWARD: dict[tuple[Any, ...], Forward] = {}
"""jvp rules by (primitive, mask, kinds of the operands). Bit i of the mask says that operand i has a tangent."""


def _stand_in(kind: ArrayType) -> Node:
    return Node(Placeholder("a derivative rule"), (), kind)


def backward(key: tuple[Any, ...], node: Node) -> Backward:
    """The vjp rule that is to be found under `key`, for operands like those of `node`."""
    op, mask = key[0], key[1]
    wanted = frozenset([i for i in range(len(node.inputs)) if mask >> i + 1 & 1])
    primals, out = tuple([_stand_in(x.kind) for x in node.inputs]), _stand_in(node.kind)
    cotangent = constant(1, node.kind) if mask & 1 else _stand_in(node.kind)
    found = op.vjp(out, primals, cotangent, wanted)
    results = {i: checked(r, primals[i].kind, op, "vjp") for i, r in found.items() if i in wanted}
    rule = Backward(tuple(results), (cotangent, out, *primals), tuple(results.values()))
    if not _is_symbolic(node):
        _remember(BACKWARD, key, rule)
    return rule


def forward(key: tuple[Any, ...], node: Node) -> Forward:
    """The jvp rule that is to be found under `key`, for operands like those of `node`."""
    op, mask = key[0], key[1]
    primals, out = tuple([_stand_in(x.kind) for x in node.inputs]), _stand_in(node.kind)
    tangents = {i: _stand_in(x.kind) for i, x in enumerate(node.inputs) if mask >> i & 1}
    result = op.jvp(out, primals, tangents)
    if result is not None:
        checked(result, node.kind, op, "jvp")
    rule = Forward((out, *primals, *tangents.values()), result)
    if not _is_symbolic(node):
        _remember(FORWARD, key, rule)
    return rule


def _is_symbolic(node: Node) -> bool:
    """Symbols belong to one trace."""
    return node.kind.symbolic or any(x.kind.symbolic for x in node.inputs)


def _remember(table: dict[tuple[Any, ...], Any], key: tuple[Any, ...], rule: Steps) -> None:
    if len(table) >= MOST:
        table.clear()
    table[key] = rule
