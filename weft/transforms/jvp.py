"""Forward mode: tangents flow from inputs to outputs.

A rule gets a mapping from the positions of its *traced* operands to their tangents, so it cannot read another operand's; what it returns is checked
for the output's shape and dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.node import Node
from weft.transforms.check import checked
from weft.transforms.paths import between


def push_forward(inputs: Sequence[Node], outputs: Sequence[Node], tangents: Sequence[Node | None]) -> list[Node | None]:
    """Tangents of the outputs, given those of the inputs; None is an exact zero, in and out."""
    known: dict[Node, Node] = {n: t for n, t in zip(inputs, tangents, strict=True) if t is not None}
    for node in between(inputs, outputs):
        if not node.dtype.is_inexact:
            continue
        traced = {i: known[operand] for i, operand in enumerate(node.inputs) if operand in known}
        if not traced:
            continue
        tangent = node.op.jvp(node, node.inputs, traced)
        if tangent is not None:
            known[node] = checked(tangent, node.kind, node.op, "jvp")
    return [known.get(node) for node in outputs]
