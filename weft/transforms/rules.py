"""Derivative rules, remembered: what a primitive's rule builds depends on the primitive and on the kinds of its
operands only.

A rule runs once, on stand-ins for its operands. What it built is kept as a list of steps, checked once, and built again
for every node of those kinds; a rule that comes back often becomes a Python function of its own. Nodes that no result
needs (the derivative by an operand that is not traced) are never built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.graph.node import Kind, Node, Tape, make, reachable
from weft.primitives.base import Constant, Placeholder, Primitive, View, constant
from weft.primitives.control import add_tapes
from weft.primitives.elementwise import Add
from weft.transforms.check import checked

OFTEN = 8
"""Uses after which a rule is worth a function: writing one takes as long as some dozen uses of the steps."""
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
    return add_tapes(x, y) if x.kind.__class__ is Tape else make(ADD, (x, y), x.kind)


class Steps:
    """What a rule built from the nodes it was given, as steps that build it again from others."""

    __slots__ = ("_results", "_steps", "_uses", "run")

    run: Callable[..., Any]
    """The rule for other nodes; at first step by step, later by a function."""

    def __init__(self, given: Sequence[Node], results: Sequence[Node | None]) -> None:
        self._uses = 0
        slots: dict[Node, int] = {node: i for i, node in enumerate(given)}
        self._steps: list[tuple[Primitive | None, Any, tuple[int, ...]]] = []
        constants = {node: node for node in given if isinstance(node.op, Constant)}
        for node in reachable([r for r in results if r is not None]):
            if node in slots:
                continue
            slots[node] = len(slots)
            if isinstance(node.op, View) and node.inputs[0] in constants:  # a number elsewhere is the number
                number = constants[node.inputs[0]]
                constants[node] = Node(number.op, (), node.kind, number.value)
            elif node.value is not None:
                constants[node] = node
            if node in constants:
                self._steps.append((None, constants[node], ()))  # shared by all that the rule builds
            else:
                self._steps.append((node.op, node.kind, tuple([slots[operand] for operand in node.inputs])))
        self._results = [None if r is None else slots[r] for r in results]

    def _built(self, given: Sequence[Node]) -> list[Node | None]:
        """The results, step by step."""
        self._uses += 1
        if self._uses >= OFTEN:
            self.run = self._function(len(given))
        nodes = list(given)
        for op, what, operands in self._steps:
            nodes.append(what if op is None else make(op, tuple([nodes[i] for i in operands]), what))
        return [None if i is None else nodes[i] for i in self._results]

    def _function(self, given: int) -> Callable[..., Any]:
        """The same as one Python function: a node a line, nothing looked up."""
        names: dict[str, Any] = {"make": make, "ADD": ADD}
        lines = []
        for i, (op, what, operands) in enumerate(self._steps, given):
            names[f"k{i}"] = what
            if op is None:
                lines.append(f"n{i} = k{i}")
                continue
            names[f"o{i}"] = op
            lines.append(f"n{i} = make(o{i}, ({''.join(f'n{k}, ' for k in operands)}), k{i})")
        head, tail = self._frame([f"n{i}" for i in range(given)])
        exec("\n    ".join([head, *lines, *tail, "return"]), names)
        return names["function"]  # type: ignore[no-any-return]

    def _frame(self, given: list[str]) -> tuple[str, list[str]]:
        """The head of the function, and what it does with the results."""
        raise NotImplementedError


class Backward(Steps):
    """A vjp rule. `run(gathered, cotangent, out, *operands)` gives the operands at `positions` their cotangents."""

    __slots__ = ("positions",)

    def __init__(self, positions: Sequence[int], given: Sequence[Node], results: Sequence[Node]) -> None:
        super().__init__(given, results)
        self.positions = tuple(positions)
        self.run = self._by_steps

    def _by_steps(self, gathered: Gathered, *given: Node) -> None:
        for position, found in zip(self.positions, self._built(given), strict=True):
            assert found is not None
            give(gathered, given[position + 2], found)

    def _frame(self, given: list[str]) -> tuple[str, list[str]]:
        tail = []
        for position, i in zip(self.positions, self._results, strict=True):
            x = given[position + 2]
            tail.append(f"gathered[{x}] = make(ADD, (gathered[{x}], n{i}), {x}.kind) if {x} in gathered else n{i}")
        return f"def function(gathered, {', '.join(given)}):", tail


class Forward(Steps):
    """A jvp rule. `run(out, *operands, *tangents)` is the tangent of the result, or None."""

    __slots__ = ()

    def __init__(self, given: Sequence[Node], result: Node | None) -> None:
        super().__init__(given, [result])
        self.run = self._by_steps

    def _by_steps(self, *given: Node) -> Node | None:
        return self._built(given)[0]

    def _frame(self, given: list[str]) -> tuple[str, list[str]]:
        (i,) = self._results
        return f"def function({', '.join(given)}):", [f"return {None if i is None else f'n{i}'}"]


BACKWARD: dict[tuple[Any, ...], Backward] = {}
"""vjp rules by (primitive, mask, kinds of the operands). Bit 0 of the mask says that the cotangent is exactly one, bit
i + 1 that operand i is wanted."""
FORWARD: dict[tuple[Any, ...], Forward] = {}
"""jvp rules by (primitive, mask, kinds of the operands). Bit i of the mask says that operand i has a tangent."""


def _stand_in(kind: Kind) -> Node:
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
