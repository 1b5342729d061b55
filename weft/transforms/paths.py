"""Which nodes lie between a trace's inputs and its outputs: the part of the graph that a transform walks."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.node import Node


def between(inputs: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    """Nodes that the outputs are computed from and that depend on an input, in topological order (inputs themselves left out).

    Nodes older than all inputs cannot depend on them, so the walk never leaves the trace.
    """
    if not inputs:
        return []
    oldest = min(node.id for node in inputs)
    seen = {node for node in outputs if node.id >= oldest}
    stack = list(seen)
    while stack:
        for operand in stack.pop().inputs:
            if operand.id >= oldest and operand not in seen:
                seen.add(operand)
                stack.append(operand)
    active = set(inputs)
    path: list[Node] = []
    for node in sorted(seen, key=lambda n: n.id):
        if node not in active and not active.isdisjoint(node.inputs):
            active.add(node)
            path.append(node)
    return path
