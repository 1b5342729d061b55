"""Bodies from functions: a function is run once on placeholders, and what it captured becomes operands.

Values that a body computes without its parameters (loop-invariant code) are computed outside of a loop, once. The
global random state is one more carry of a body that draws numbers, so that each step draws the next ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft import tree
from weft.array import wrap
from weft.graph.node import Kind, Node, next_id
from weft.graph.trace import trace
from weft.primitives.base import Constant, Placeholder, RunTimeConstant, View
from weft.transforms.compile import RANDOM_STATE
from weft.transforms.paths import between, groups


class Traced:
    """What a function did with placeholders: the nodes and the structure that it returned, and the random state after
    it (None if it drew nothing)."""

    __slots__ = ("first", "leaves", "params", "random", "random_param", "structure")

    def __init__(self, params: list[Node], random_param: Node, first: int) -> None:
        self.params, self.random_param, self.first = params, random_param, first
        self.leaves: list[Any] = []
        self.structure: tree.Structure | None = None
        self.random: Node | None = None


def trace_body(name: str, fun: Callable[..., Any], kinds: Sequence[Kind]) -> Traced:
    """Run `fun` on one placeholder array for each kind."""
    state = RANDOM_STATE[0]
    before = state[0]
    traced = Traced(
        [Node(Placeholder(name), (), kind) for kind in kinds],
        Node(Placeholder(name), (), before._node.kind),
        next_id(),
    )
    drawn = state[0] = wrap(traced.random_param)
    try:
        with trace():
            leaves, traced.structure = tree.flatten(fun(*[wrap(node) for node in traced.params]))
        traced.leaves = leaves
        if state[0] is not drawn:
            traced.random = state[0]._node
    finally:
        state[0] = before
    return traced


def captured(params: Sequence[Node], outputs: Sequence[Node], hoist_from: int | None = None) -> list[Node]:
    """The nodes from outside that the outputs need beside the parameters, in a fixed order.

    All that does not depend on a parameter is outside, but for constants and views, which cost nothing inside; with
    `hoist_from` only what is older than that id, or is data. What a function with rules of its own computes stays with
    its operands, because its rules lead to nothing else.
    """
    path, inside = between(params, outputs)
    enclosed = {node for called in groups(path).values() for node in between(called[0].xs, called[0].ys)[0]}
    found: dict[Node, None] = {}
    stack = [node for node in outputs if node not in inside]
    for node in inside:
        stack.extend(x for x in node.inputs if x not in inside)
    seen = set(stack)
    while stack:
        node = stack.pop()
        if isinstance(node.op, Constant) and not isinstance(node.value, RunTimeConstant):
            continue
        stays = node in enclosed or isinstance(node.op, View)
        stays = stays or (not node.inputs and node.value is None and _is_source(node))
        if hoist_from is not None and node.id >= hoist_from and node.value is None and _is_computed(node):
            stays = True
        if not stays:
            found[node] = None
            continue
        for x in node.inputs:
            if x not in seen and x not in inside:
                seen.add(x)
                stack.append(x)
    return sorted(found, key=lambda node: node.id)


def _is_source(node: Node) -> bool:
    """A leaf that says itself what it is, like a range."""
    return not isinstance(node.op, Placeholder)


def _is_computed(node: Node) -> bool:
    return bool(node.inputs) or _is_source(node)
