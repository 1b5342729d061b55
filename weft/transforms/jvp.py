"""Forward mode: tangents flow from inputs to outputs.

A rule gets a mapping from the positions of its *traced* operands to their tangents, so it cannot read another
operand's; what it returns is checked for the output's shape and dtype.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.lines import on_behalf_of
from weft.graph.node import Node, TupleType
from weft.primitives.base import GetResult, MultiOutput, picks
from weft.primitives.custom import Application, Called, called
from weft.transforms.check import checked, checked_result
from weft.transforms.paths import between, groups
from weft.transforms.rules import FORWARD, forward


@on_behalf_of("node")
def push_forward(inputs: Sequence[Node], outputs: Sequence[Node], tangents: Sequence[Node | None]) -> list[Node | None]:
    """Tangents of the outputs, given those of the inputs; None is an exact zero, in and out."""
    known: dict[Node, Node] = {n: t for n, t in zip(inputs, tangents, strict=True) if t is not None}
    path, _ = between(inputs, outputs, "jvp")
    applications = groups(path)
    bundles: dict[Node, Sequence[Node | None]] = {}
    for node in path:
        if node.__class__ is Called:
            _through_call(node, applications, known)  # type: ignore[arg-type]
            continue
        operands = node.inputs
        if node.kind.__class__ is TupleType:
            bundles[node] = _through_many(node, known)
            continue
        if node.op.__class__ is GetResult:
            tangent = bundles[operands[0]][node.op.index]  # type: ignore[attr-defined]
            if tangent is not None:
                known[node] = tangent
            continue
        mask, traced = 0, []
        for i, operand in enumerate(operands):
            tangent = known.get(operand)
            if tangent is not None:
                mask |= 1 << i
                traced.append(tangent)
        if not mask:
            continue
        key = (node.op, mask, *[x.kind for x in operands])
        rule = FORWARD.get(key) or forward(key, node)
        result = rule.run(node, *operands, *traced)
        if result is not None:
            known[node] = result
    return [known.get(node) for node in outputs]


def _through_many(node: Node, known: dict[Node, Node]) -> Sequence[Node | None]:
    """Tangents of all results of an operation that has several."""
    op, kind = node.op, node.kind
    assert isinstance(op, MultiOutput)
    assert isinstance(kind, TupleType)
    traced = {i: known[x] for i, x in enumerate(node.inputs) if x in known}
    if not traced:
        return [None] * len(kind.parts)
    found: Sequence[Node | None] = op.jvp(picks(node), node.inputs, traced)
    return [None if t is None else checked(t, part, op, "jvp") for t, part in zip(found, kind.parts, strict=True)]


def _through_call(node: Called, applications: dict[Application, list[Called]], known: dict[Node, Node]) -> None:
    """A result of a function with rules: the tangents of all results are made when the first is met."""
    rules = node.application.rules
    if not rules.has("jvp"):
        tangent = known.get(node.inputs[0])
        if tangent is not None:
            known[node] = tangent
        return
    members = applications.pop(node.application, None)
    if members is None:
        return
    xs, ys = node.xs, node.ys
    traced = {i: known[x] for i, x in enumerate(xs) if x in known}
    if not traced:
        return
    outs: list[Node] = list(called(rules, xs, ys)) if len(members) < len(ys) else list(ys)
    for member in members:
        outs[member.index] = member
    results = rules.jvp(xs, outs, traced)
    for member in members:
        tangent = results[member.index]
        if tangent is not None:
            known[member] = checked_result(tangent, member.kind)
