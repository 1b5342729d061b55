"""Composites give way to what they are made of: the first of the passes, so no other one sees them.

A composite (`Composite` of weft/primitives/base.py) is one node while a graph is built and a program looked up, which
is what a norm or a rotation costs in a program that is evaluated again and again.
"""

from __future__ import annotations

from typing import Any

from weft.graph.body import rebuilt
from weft.graph.lines import inherit
from weft.graph.node import ArrayType, Graph, Node
from weft.primitives.base import Composite, Parameter

Made = tuple[tuple[Node, ...], list[Node], Node]
"""(operands, nodes that compute the result from them, the result)."""


def decompose(graph: Graph) -> Graph:
    """The parts of every composite in its place, in the order in which a program without composites would have made
    them."""
    order = graph.order()
    if not any(isinstance(node.op, Composite) for node in order):
        return graph
    known: dict[tuple[Composite, tuple[ArrayType, ...]], Made] = {}
    new: dict[Node, Node] = {}
    memo: dict[Any, Any] = {}
    for node in order:
        inputs = tuple([new[x] for x in node.inputs])
        if isinstance(node.op, Composite):
            new[node] = _parts(node.op, inputs, known)
        else:
            new[node] = node.again(inputs, memo) if inputs else node
    inherit(new)
    return Graph(graph.inputs, [new[o] for o in graph.outputs])


def _parts(op: Composite, inputs: tuple[Node, ...], known: dict[tuple[Composite, tuple[ArrayType, ...]], Made]) -> Node:
    """The result of a composite. Those of one kind of operands share their constants, which passes tell apart by the
    node."""
    kinds = tuple([x.kind for x in inputs])
    found = known.get((op, kinds))
    if found is None:
        given = tuple([Node(Parameter(i), (), kind) for i, kind in enumerate(kinds)])
        found = known[op, kinds] = (given, *op.parts(given))
    given, order, result = found
    return rebuilt(order, [result], dict(zip(given, inputs, strict=True)))[0]
