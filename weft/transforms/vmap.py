"""Batching: the nodes of a trace again, for operands that carry one more axis."""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.lines import hand_on, line_of, on_behalf_of
from weft.graph.node import Node, Size, next_id
from weft.primitives.base import GetResult, MultiOutput, move_batch_to_front
from weft.primitives.custom import Application, Batch, Batched, Called, called
from weft.transforms.paths import Rebuilder, between, groups


@on_behalf_of("node")
def batch(
    inputs: Sequence[Node], outputs: Sequence[Node], batched: Sequence[Node], axes: Sequence[int | None], size: Size
) -> list[Batched]:
    """(node, batch axis or None) for each output, given the batched stand-ins of the inputs."""
    new: dict[Node, Batched] = {
        node: (stand_in, axis) for node, stand_in, axis in zip(inputs, batched, axes, strict=True)
    }
    again = Rebuilder()
    path, _ = between(inputs, outputs, "batch")
    applications = groups(path)
    around = Batch(tuple(inputs), tuple(batched), tuple(axes), size)
    bundles: dict[Node, Sequence[Batched]] = {}
    results: Sequence[Batched]
    for node in path:
        if node.op.__class__ is GetResult and node.inputs[0] in bundles:
            new[node] = bundles[node.inputs[0]][node.op.index]  # type: ignore[attr-defined]
            continue
        found = [new.get(operand, (operand, None)) for operand in node.inputs]
        operands, places = tuple([n for n, _ in found]), tuple([axis for _, axis in found])
        if places.count(None) == len(places):
            new[node] = (again.node(node, operands), None)
        elif node.__class__ is Called:
            _through_call(node, applications, new, around)  # type: ignore[arg-type]
        else:
            since = 0 if node.op.is_total else next_id()
            if isinstance(node.op, MultiOutput):
                results = bundles[node] = node.op.batch(operands, places, size)
            else:
                results = (new[node],) = (node.op.batch(operands, places, size),)
            if since:
                hand_on(line_of(node), [x for x, _ in results], since)
    return [new.get(node, (node, None)) for node in outputs]


def _through_call(
    node: Called, applications: dict[Application, list[Called]], new: dict[Node, Batched], around: Batch
) -> None:
    """A result of a function with rules: all results are batched when the first is met."""
    rules = node.application.rules
    members = applications.pop(node.application, None)
    if members is None:
        return
    xs = [new.get(x, (x, None)) for x in node.xs]
    results: Sequence[Batched]
    if rules.has("batch"):
        results = rules.batch(xs, around)
    else:
        ys = [move_batch_to_front(*new.get(y, (y, None)), around.size) for y in node.ys]
        batched = rules.batched([axis for _, axis in xs], around)
        results = [(out, 0) for out in called(batched, [x for x, _ in xs], ys)]
    for member in members:
        new[member] = results[member.index]
