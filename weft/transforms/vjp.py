"""Reverse mode: cotangents flow from outputs to inputs, each primitive's rule once."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.node import Node
from weft.transforms.check import checked
from weft.transforms.paths import between


def pull_back(inputs: Sequence[Node], outputs: Sequence[Node], cotangents: Sequence[Node | None]) -> list[Node | None]:
    """Cotangents of the inputs, given those of the outputs; None is an exact zero, in and out."""
    gathered: dict[Node, Node] = {}

    def give(node: Node, cotangent: Node) -> None:
        held = gathered.get(node)
        gathered[node] = cotangent if held is None else held + cotangent

    for node, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent is not None:
            give(node, cotangent)
    path = between(inputs, outputs)
    traced = {*inputs, *path}
    for node in reversed(path):
        cotangent = gathered.pop(node, None)
        if cotangent is None or not node.dtype.is_inexact:
            continue
        wanted = frozenset(i for i, operand in enumerate(node.inputs) if operand in traced and operand.dtype.is_inexact)
        if not wanted:
            continue
        for position, found in node.op.vjp(node, node.inputs, cotangent, wanted).items():
            if position in wanted:
                operand = node.inputs[position]
                give(operand, checked(found, operand.kind, node.op, "vjp"))
    return [gathered.get(node) for node in inputs]
