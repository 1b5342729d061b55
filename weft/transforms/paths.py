"""Which nodes lie between a trace's inputs and its outputs: the part of the graph that a transform walks, and how to
build it again elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from weft.graph.node import Node
from weft.primitives.custom import Application, Called
from weft.runtime.objects import MAKERS

_by_id = attrgetter("id")


def between(inputs: Sequence[Node], outputs: Sequence[Node], rule: str | None = None) -> tuple[list[Node], set[Node]]:
    """What `path_of` says, but for the last."""
    path, seen, _ = path_of(inputs, outputs, rule)
    return path, seen


def path_of(
    inputs: Sequence[Node], outputs: Sequence[Node], rule: str | None = None
) -> tuple[list[Node], set[Node], bool]:
    """Nodes that the outputs are computed from and that depend on an input, in topological order (inputs themselves
    left out), the set of them with the inputs, and whether all are plain nodes.

    `rule` names the rule that is going to be applied: what a function with such a rule of its own does inside is left
    out. Nodes older than all inputs cannot depend on them, so the walk never leaves the trace.
    """
    seen = set(inputs)
    if not inputs:
        return [], seen, True
    oldest = inputs[0].id if len(inputs) == 1 else min([node.id for node in inputs])
    found = []
    for node in outputs:
        if node not in seen and node.id >= oldest:
            seen.add(node)
            found.append(node)
    done = _spread(found, seen, oldest, 0)
    while done < len(found):
        for operand in _operands(found[done], rule):
            if operand not in seen and operand.id >= oldest:
                seen.add(operand)
                found.append(operand)
        done = _spread(found, seen, oldest, done + 1)
    _by_age(found)
    path: list[Node] = []
    done = _follow(found, seen, path, 0)
    is_plain = done == len(found)
    while done < len(found):
        node = found[done]
        if seen.isdisjoint(_operands(node, rule)):
            seen.discard(node)
        else:
            path.append(node)
        done = _follow(found, seen, path, done + 1)
    return path, seen, is_plain


def _spread_by_python(found: list[Node], seen: set[Node], oldest: int, start: int) -> int:
    """Adds to `found`, from its item `start` on, what its items are made of, unless that is in `seen` or too old. Stops
    at an item that is no plain node, whose operands are for others to say. The number of items done."""
    while start < len(found) and found[start].__class__ is Node:
        for operand in found[start].inputs:
            if operand not in seen and operand.id >= oldest:
                seen.add(operand)
                found.append(operand)
        start += 1
    return start


def _follow_by_python(found: list[Node], seen: set[Node], path: list[Node], start: int) -> int:
    """Adds to `path` the items of `found`, from `start` on, that have an operand in `seen`, and takes the others out of
    it. Stops as `_spread_by_python` does. The number of items done."""
    while start < len(found) and found[start].__class__ is Node:
        if seen.isdisjoint(found[start].inputs):
            seen.discard(found[start])
        else:
            path.append(found[start])
        start += 1
    return start


def _by_age_by_python(found: list[Node]) -> None:
    found.sort(key=_by_id)  # of a chain it is the order reversed, which sorts in linear time


_by_age = MAKERS.by_age(_by_age_by_python)
_spread = MAKERS.spread(_spread_by_python)
_follow = MAKERS.follow(_follow_by_python)


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
        self.memo: dict[Any, Any] = {}

    def node(self, node: Node, operands: tuple[Node, ...]) -> Node:
        return node.again(operands, self.memo)


def rebuild(outputs: Sequence[Node], replacements: Mapping[Node, Node]) -> list[Node]:
    """The outputs computed from other nodes in place of the keys of `replacements`; only what depends on those is made
    again."""
    path, _ = between(tuple(replacements), outputs)
    again = Rebuilder()
    new = dict(replacements)
    for node in path:
        new[node] = again.node(node, tuple([new.get(operand, operand) for operand in node.inputs]))
    return [new.get(node, node) for node in outputs]
