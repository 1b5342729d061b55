"""Evaluation beside the traces of other threads: what a thread sees of nodes that belong to a function which another
one is tracing or differentiating."""

from __future__ import annotations

from collections.abc import Sequence

from weft.evaluate.turns import LOCK
from weft.graph.dims import hint_of
from weft.graph.node import ArrayType, Node, handles, reachable
from weft.graph.overlay import Running
from weft.graph.trace import keeps_inputs, traced_elsewhere
from weft.primitives.base import DATA, Constant, Placeholder, RunTimeConstant, bind, constant
from weft.primitives.filling import fill_kind, fill_primitive


class TraceInput(Node):
    """What stands for an array's node in a trace of compile's. To the thread that traces it is a placeholder; to others
    it is what that array has."""

    __slots__ = ("origin", "running")

    def __init__(self, running: Running, origin: Node, kind: ArrayType) -> None:
        super().__init__(Placeholder("compile"), (), kind)
        self.running, self.origin = running, origin


def trace_of(node: Node) -> Running | None:
    """The trace of another thread that a node stands for an array or a number of."""
    found = node.running if isinstance(node, TraceInput) else None
    if isinstance(node.value, RunTimeConstant):
        found = node.value.scalar.env.running
    return found if found is not None and found.is_elsewhere() else None


def evaluated_beside(constant: Node) -> Node | None:
    """What a number of another thread's trace is to this one; None for any other constant."""
    return None if trace_of(constant) is None else beside(constant, {})


def copies_beside(roots: Sequence[Node]) -> tuple[dict[Node, Node], set[Running]]:
    """Copies of nodes, to be evaluated in their place: those of a trace are to stay as they are; and the traces. What
    the function has put into a container is seen as what was there before, its other values as they will be."""
    with LOCK:
        order = reachable(roots)
        traces = {running for running in map(trace_of, order) if running is not None}
        new: dict[Node, Node] = {}
        stood_for: dict[int, Node] = {}
        for running in traces:
            new.update(running.copies)
            stood_for.update(running.stood_for())
        for node in order:
            if node not in new:
                found = [stood_for[id(a)] for a in handles(node) if id(a) in stood_for]
                new[node] = found[0] if found else beside(node, new)
    return {root: new[root] for root in roots if new[root] is not root}, traces


def keep_copies(copies: dict[Node, Node], traces: set[Running]) -> None:
    """The copies have values. As long as a trace is open it remembers them for the next time."""
    with LOCK:
        over = all(running.over for running in traces)
        for running in traces:
            running.copies.update({} if over else copies)
        for node, copy in copies.items():
            if over and node.value is None:
                node.value, node.inputs, node.op = copy.value, (), DATA


def beside(node: Node, new: dict[Node, Node]) -> Node:
    """What other threads have in place of a node."""
    if isinstance(node, TraceInput):
        return node.origin
    if isinstance(node.value, RunTimeConstant):
        return constant(node.value.scalar.hint, fill_kind(node.kind, hint_of))
    if isinstance(node.op, Constant):
        return Node(node.op, (), fill_kind(node.kind, hint_of), node.value)
    inputs, op = tuple([new[x] for x in node.inputs]), fill_primitive(node.op, hint_of)
    if op is not node.op or node.kind.symbolic:
        return bind(op, *inputs)
    return node if inputs == node.inputs else node.again(inputs, new)  # type: ignore[arg-type]


class Elsewhere(Exception):
    """What is evaluated belongs to a trace of another thread, which opened at the node `first`."""

    def __init__(self, first: int) -> None:
        super().__init__("another thread differentiates this")
        self.first = first


def follow_others(order: Sequence[Node]) -> None:
    """Make sure that what other threads differentiate keeps its inputs."""
    firsts = [first for first in map(traced_elsewhere, order) if first is not None]
    keep = keeps_inputs()
    if firsts and (keep is None or min(firsts) < keep):
        raise Elsewhere(min(firsts))
