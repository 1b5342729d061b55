"""Batching: the nodes of a trace again, for operands that carry one more axis."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.node import Node, Size
from weft.transforms.paths import between


def batch(
    inputs: Sequence[Node], outputs: Sequence[Node], batched: Sequence[Node], axes: Sequence[int | None], size: Size
) -> list[tuple[Node, int | None]]:
    """(node, batch axis or None) for each output, given the batched stand-ins of the inputs."""
    new: dict[Node, tuple[Node, int | None]] = {
        node: (stand_in, axis) for node, stand_in, axis in zip(inputs, batched, axes, strict=True)
    }
    for node in between(inputs, outputs):
        found = [new.get(operand, (operand, None)) for operand in node.inputs]
        operands, places = tuple(n for n, _ in found), tuple(axis for _, axis in found)
        if all(axis is None for axis in places):
            new[node] = (Node(node.op, operands, node.kind), None)
        else:
            new[node] = node.op.batch(operands, places, size)
    return [new.get(node, (node, None)) for node in outputs]
