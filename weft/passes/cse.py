"""Common subexpressions: nodes that compute the same thing from the same operands become one.

Primitives are interned, so "the same thing" is identity of the operation, the operands and the kind. Two constants are
merged only where their value is part of the program (0 and 1): other constants are run-time scalars and may differ on
the next run.
"""

from __future__ import annotations

from weft.graph.lines import inherit
from weft.graph.node import Graph, Node
from weft.primitives.base import CONSTANT, Parameter


def cse(graph: Graph) -> Graph:
    """One node for each distinct (operation, operands, kind)."""
    numbered: dict[tuple[object, ...], Node] = {}
    new: dict[Node, Node] = {}
    for node in graph.order():
        inputs = tuple(new[i] for i in node.inputs)
        if isinstance(node.op, Parameter) or node.op is CONSTANT:
            new[node] = node
            continue
        key = (node.op, node.kind, *inputs)
        found = numbered.get(key)
        if found is None:
            found = numbered[key] = node.on(inputs)
        new[node] = found
    inherit(new)
    return Graph(graph.inputs, [new[o] for o in graph.outputs])
