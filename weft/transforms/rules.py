"""Derivative rules, remembered: what a primitive's rule builds depends on the primitive and on the kinds of its
operands only.

A rule runs once, on stand-ins for its operands. What it built is kept as a list of steps, checked once, and built again
for every node of those kinds; a rule that comes back often becomes a Python function of its own. Nodes that no result
needs (the derivative by an operand that is not traced) are never built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.graph.node import Kind, Node, reachable
from weft.primitives.base import Constant, Placeholder, Primitive, View, constant
from weft.transforms.check import checked

OFTEN = 8
"""Uses after which a rule is worth a function: writing one takes as long as some dozen uses of the steps."""
MOST = 1 << 14
"""Rules remembered; beyond that all are forgotten."""

Build = Callable[..., Sequence[Node | None]]
"""(cotangent, out, *operands) -> cotangents, or (out, *operands, *tangents) -> (tangent,)."""


class Remembered:
    """One rule for operands of given kinds: `build` makes its results for other nodes, `positions` are theirs."""

    __slots__ = ("_results", "_steps", "_uses", "build", "positions")

    def __init__(self, positions: tuple[int, ...], given: Sequence[Node], results: Sequence[Node | None]) -> None:
        """`results` were built from the stand-ins `given`."""
        self.positions = positions
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
        self._results = tuple([None if r is None else slots[r] for r in results])
        self.build: Build = self._by_steps

    def _by_steps(self, *given: Node) -> Sequence[Node | None]:
        self._uses += 1
        if self._uses >= OFTEN:
            self.build = self._function(len(given))
        nodes = list(given)
        for op, what, operands in self._steps:
            nodes.append(what if op is None else Node(op, tuple([nodes[i] for i in operands]), what))
        return [None if i is None else nodes[i] for i in self._results]

    def _function(self, given: int) -> Build:
        """The steps as one Python function: a node a line, nothing looked up."""
        names: dict[str, Any] = {"Node": Node}
        lines = []
        for i, (op, what, operands) in enumerate(self._steps, given):
            names[f"k{i}"] = what
            if op is None:
                lines.append(f"n{i} = k{i}")
                continue
            names[f"o{i}"] = op
            lines.append(f"n{i} = Node(o{i}, ({''.join(f'n{k}, ' for k in operands)}), k{i})")
        results = "".join("None, " if i is None else f"n{i}, " for i in self._results)
        text = "\n    ".join([f"def build({', '.join(f'n{i}' for i in range(given))}):", *lines, f"return ({results})"])
        exec(text, names)
        return names["build"]  # type: ignore[no-any-return]


BACKWARD: dict[tuple[Any, ...], Remembered] = {}
"""vjp rules by (primitive, mask, kinds of the operands). Bit 0 of the mask says that the cotangent is exactly one, bit
i + 1 that operand i is wanted."""
FORWARD: dict[tuple[Any, ...], Remembered] = {}
"""jvp rules by (primitive, mask, kinds of the operands). Bit i of the mask says that operand i has a tangent."""


def _stand_in(kind: Kind) -> Node:
    return Node(Placeholder("a derivative rule"), (), kind)


def backward(key: tuple[Any, ...], node: Node) -> Remembered:
    """The vjp rule that is to be found under `key`, for operands like those of `node`."""
    op, mask = key[0], key[1]
    wanted = frozenset([i for i in range(len(node.inputs)) if mask >> i + 1 & 1])
    primals, out = tuple([_stand_in(x.kind) for x in node.inputs]), _stand_in(node.kind)
    cotangent = constant(1, node.kind) if mask & 1 else _stand_in(node.kind)
    found = op.vjp(out, primals, cotangent, wanted)
    results = {i: checked(r, primals[i].kind, op, "vjp") for i, r in found.items() if i in wanted}
    made = Remembered(tuple(results), (cotangent, out, *primals), tuple(results.values()))
    return _kept(BACKWARD, key, made, node)


def forward(key: tuple[Any, ...], node: Node) -> Remembered:
    """The jvp rule that is to be found under `key`, for operands like those of `node`."""
    op, mask = key[0], key[1]
    primals, out = tuple([_stand_in(x.kind) for x in node.inputs]), _stand_in(node.kind)
    tangents = {i: _stand_in(x.kind) for i, x in enumerate(node.inputs) if mask >> i & 1}
    result = op.jvp(out, primals, tangents)
    if result is not None:
        checked(result, node.kind, op, "jvp")
    made = Remembered(tuple(tangents), (out, *primals, *tangents.values()), (result,))
    return _kept(FORWARD, key, made, node)


def _kept(table: dict[tuple[Any, ...], Remembered], key: tuple[Any, ...], made: Remembered, node: Node) -> Remembered:
    if node.kind.symbolic or any(x.kind.symbolic for x in node.inputs):
        return made  # symbols belong to one trace
    if len(table) >= MOST:
        table.clear()
    table[key] = made
    return made
