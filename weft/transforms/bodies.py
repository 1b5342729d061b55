"""Bodies from functions: a function is run once on placeholders, and what it captured becomes operands.

Values that a body computes without its parameters (loop-invariant code) are computed outside of a loop, once, unless
they may fail or never come to an end: then a loop that makes no step must not compute them. The global random state is
one more carry of a body that draws numbers, so that each step draws the next ones.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft import tree
from weft.array import array, wrap
from weft.graph.node import ArrayType, Node, next_id, reachable_by
from weft.graph.trace import Change, changes, finishing, trace
from weft.primitives.base import Constant, Placeholder, RunTimeConstant, View
from weft.transforms.drawing import RANDOM_STATE
from weft.transforms.paths import between, groups


class _OwnState(threading.local):
    """The random state of the function or body that this thread is tracing; other threads go on drawing from the
    global one."""

    state: list[array] | None = None


OWN = _OwnState()


def random_state() -> list[array]:
    """The list that holds the random state here and now."""
    return RANDOM_STATE[0] if OWN.state is None else OWN.state


class TracedBody:
    """What a function did with placeholders: the nodes and the structure that it returned, and the random state after
    it (None if it drew nothing)."""

    __slots__ = ("first", "leaves", "params", "random", "random_param", "structure")

    def __init__(self, params: list[Node], random_param: Node, first: int) -> None:
        self.params, self.random_param, self.first = params, random_param, first
        self.leaves: list[Any] = []
        self.structure: tree.Structure | None = None
        self.random: Node | None = None


def trace_body(name: str, fun: Callable[..., Any], kinds: Sequence[ArrayType]) -> TracedBody:
    """Run `fun` on one placeholder array for each kind."""
    first, around = next_id(), OWN.state
    traced = TracedBody(
        [Node(Placeholder(name), (), kind) for kind in kinds],
        Node(Placeholder(name), (), random_state()[0]._node.kind),
        next_id(),
    )
    drawn = wrap(traced.random_param)
    own = OWN.state = [drawn]
    changed: list[Change] = []
    try:
        with trace(), changes() as changed, finishing(name):
            leaves, traced.structure = tree.flatten(fun(*[wrap(node) for node in traced.params]))
    except BaseException:
        _undo(changed, first)
        raise
    finally:
        OWN.state = around
    # Other handles on the same nodes, so that those of the body's own arrays are gone.
    traced.leaves = [wrap(leaf._node) if isinstance(leaf, array) else leaf for leaf in leaves]
    del leaves
    if own[0] is not drawn:
        traced.random = own[0]._node
    if any(found() is not None and before.id < first for found, before, _ in changed):
        gc.collect()  # what only a cycle of the body's own objects holds is not from outside
    undone = _undo(changed, first)
    if undone is not None:
        raise ValueError(
            f"[{name}] the function changes an array that it captures{undone}, which would happen once and not at each "
            f"step: make it part of what {name} carries or returns, or work on a copy (array(x))."
        )
    return traced


def _undo(changed: Sequence[Change], first: int) -> str | None:
    """Give arrays from outside (older than `first`) back what a body has overwritten; the line where it did so first,
    or None. Arrays of the body itself are gone when it has returned."""
    where = None
    for found, before, line in reversed(changed):
        kept = found()
        if kept is not None and before.id < first:
            kept._bind(before)
            where = line
    return where


def captured(params: Sequence[Node], outputs: Sequence[Node], first: int, hoist: bool) -> list[Node]:
    """The nodes from outside that the outputs of a body need beside its parameters, in a fixed order. What the body
    made is newer than the id `first`.

    If it is to `hoist`, all that does not depend on a parameter is outside, but for constants and views, which cost
    nothing inside, and what may have no value; otherwise only what is older than the body, or is data. What a function
    with rules of its own computes stays with its operands, because its rules lead to nothing else.
    """
    path, inside = between(params, outputs)
    enclosed = {node for called in groups(path).values() for node in between(called[0].xs, called[0].ys)[0]}
    found: dict[Node, None] = {}
    stack = [node for node in outputs if node not in inside]
    for node in inside:
        stack.extend(x for x in node.inputs if x not in inside)
    seen, partial = set(stack), _partial(outputs, first)
    while stack:
        node = stack.pop()
        if isinstance(node.op, Constant) and not isinstance(node.value, RunTimeConstant):
            continue
        stays = node in enclosed or isinstance(node.op, View)
        stays = stays or (not node.inputs and node.value is None and _is_source(node))
        if node.id >= first and node.value is None and (node in partial or (not hoist and _is_computed(node))):
            stays = True
        if not stays:
            found[node] = None
            continue
        for x in node.inputs:
            if x not in seen and x not in inside:
                seen.add(x)
                stack.append(x)
    return sorted(found, key=lambda node: node.id)


def _partial(outputs: Sequence[Node], first: int) -> set[Node]:
    """What a body computes from something that may fail or never end."""
    found: set[Node] = set()
    for node in reachable_by(outputs, lambda node: [x for x in node.inputs if x.id >= first]):
        if not node.op.is_total or any(x in found for x in node.inputs):
            found.add(node)
    return found


def _is_source(node: Node) -> bool:
    """A leaf that says itself what it is, like a range."""
    return not isinstance(node.op, Placeholder)


def _is_computed(node: Node) -> bool:
    return bool(node.inputs) or _is_source(node)
