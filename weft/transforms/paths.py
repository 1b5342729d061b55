"""Which nodes lie between a trace's inputs and its outputs: the part of the graph that a transform walks, and how to
build it again elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from weft.graph.node import Node
from weft.primitives.custom import Application, Called

_by_id = attrgetter("id")


def between(inputs: Sequence[Node], outputs: Sequence[Node], rule: str | None = None) -> tuple[list[Node], set[Node]]:
    """Nodes that the outputs are computed from and that depend on an input, in topological order (inputs themselves
    left out), and the set of them with the inputs.

    `rule` names the rule that is going to be applied: what a function with such a rule of its own does inside is left
    out. Nodes older than all inputs cannot depend on them, so the walk never leaves the trace.
    """
    active = set(inputs)
    if not inputs:
        return [], active
    oldest = min([node.id for node in inputs])
    seen = {node for node in outputs if node.id >= oldest}
    seen |= active
    stack = [node for node in seen if node not in active]
    pop, push, see = stack.pop, stack.append, seen.add
    while stack:
        node = pop()
        operands = node.inputs if node.__class__ is Node else _operands(node, rule)
        for operand in operands:
            if operand not in seen and operand.id >= oldest:
                see(operand)
                push(operand)
    path: list[Node] = []
    is_free, add, follow = active.isdisjoint, active.add, path.append
    for node in sorted(seen - active, key=_by_id):
        if not is_free(node.inputs if node.__class__ is Node else _operands(node, rule)):
            add(node)
            follow(node)
    return path, active


def _operands(node: Node, rule: str | None) -> tuple[Node, ...]:
    return node.seen_by(rule) if rule is not None and isinstance(node, Called) else node.inputs


def groups(path: Sequence[Node]) -> dict[Application, list[Called]]:
    """The results on a path that belong to one application, by application."""
    found: dict[Application, list[Called]] = {}
    for node in path:
        if node.__class__ is Called:
            found.setdefault(node.application, []).append(node)  # type: ignore[attr-defined]
    return found


class Rebuilder:
    """Makes nodes again on other operands. Results of one application stay results of one application, which is a new
    one."""

    def __init__(self) -> None:
        self.applications: dict[Application, Application] = {}

    def node(self, node: Node, operands: tuple[Node, ...]) -> Node:
        if not isinstance(node, Called):
            return Node(node.op, operands, node.kind)
        old = node.application
        new = self.applications.get(old)
        if new is None:
            new = self.applications[old] = Application(old.rules, old.arity)
        return Called(new, node.index, operands[1 : 1 + old.arity], operands[1 + old.arity :])


def rebuild(outputs: Sequence[Node], replacements: Mapping[Node, Node]) -> list[Node]:
    """The outputs computed from other nodes in place of the keys of `replacements`; only what depends on those is made
    again."""
    path, _ = between(tuple(replacements), outputs)
    again = Rebuilder()
    new = dict(replacements)
    for node in path:
        new[node] = again.node(node, tuple([new.get(operand, operand) for operand in node.inputs]))
    return [new.get(node, node) for node in outputs]
