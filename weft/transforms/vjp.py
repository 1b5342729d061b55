"""Reverse mode: cotangents flow from outputs to inputs, each primitive's rule once.

An exact zero is None and costs nothing; a cotangent of exactly one is a constant that rules leave out of their
products.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.lines import on_behalf_of
from weft.graph.node import Node, TupleType
from weft.primitives.base import ONE, GetResult, MultiOutput, picks
from weft.primitives.custom import Application, Called, called
from weft.runtime.objects import MAKERS
from weft.transforms.check import checked, checked_results
from weft.transforms.paths import groups, path_of
from weft.transforms.rules import BACKWARD, Backward, Gathered, backward, give, total


def pull_back(inputs: Sequence[Node], outputs: Sequence[Node], cotangents: Sequence[Node | None]) -> list[Node | None]:
    """Cotangents of the inputs, given those of the outputs; None is an exact zero, in and out."""
    gathered: Gathered = {}
    for node, cotangent in zip(outputs, cotangents, strict=True):
        if cotangent is not None and node in gathered:
            give(gathered, node, cotangent)
        elif cotangent is not None:
            gathered[node] = cotangent
    path, active, is_plain = path_of(inputs, outputs, "vjp")
    if is_plain:
        _pull(path, gathered, active)
    else:
        _through_all(path, gathered, active)
    return [gathered.get(node) for node in inputs]


@on_behalf_of("node")
def _through_plain(path: list[Node], gathered: Gathered, active: set[Node]) -> None:
    """Nodes that have one result each, by the rules of their primitives."""
    for node in reversed(path):
        cotangent = gathered.get(node)
        if cotangent is None:
            continue
        operands = node.inputs
        mask = (cotangent.op is ONE) + sum([2 << i for i, x in enumerate(operands) if x in active])
        key = (node.op, mask, *[x.kind for x in operands])
        (BACKWARD.get(key) or backward(key, node)).run(gathered, cotangent, node, *operands)


_pull = MAKERS.pull(BACKWARD, Backward, ONE, _through_plain)


@on_behalf_of("node")
def _through_all(path: list[Node], gathered: Gathered, active: set[Node]) -> None:
    """Among them results of functions with rules of their own, and operations with several results."""
    applications = groups(path)
    bundles: dict[Node, dict[int, Node]] = {}
    for node in reversed(path):
        if node.__class__ is Called:
            _through_call(node, applications, gathered, active)  # type: ignore[arg-type]
        elif node.kind.__class__ is TupleType:
            _through_many(node, bundles.pop(node, {}), gathered, active)
        elif node.op.__class__ is not GetResult:
            _pull([node], gathered, active)
        elif node in gathered:
            given = bundles.setdefault(node.inputs[0], {})
            place, cotangent = node.op.index, gathered[node]  # type: ignore[attr-defined]
            given[place] = total(given[place], cotangent) if place in given else cotangent


def _through_many(node: Node, given: dict[int, Node], gathered: Gathered, active: set[Node]) -> None:
    """An operation with several results: whatever picks one is newer, so the cotangents of all are known."""
    op, xs, kind = node.op, node.inputs, node.kind
    assert isinstance(op, MultiOutput)
    assert isinstance(kind, TupleType)
    if not given:
        return
    wanted = frozenset([i for i, x in enumerate(xs) if x in active])
    found = op.vjp(picks(node), xs, [given.get(i) for i in range(len(kind.parts))], wanted)
    for position, cotangent in found.items():
        if position in wanted:
            give(gathered, xs[position], checked(cotangent, xs[position].kind, op, "vjp"))


def _through_call(
    node: Called, applications: dict[Application, list[Called]], gathered: Gathered, active: set[Node]
) -> None:
    """A result of a function with rules. All results of a call are newer than what they are made of and older than what
    reads them, so the cotangents of all of them are known when the first is met."""
    rules = node.application.rules
    if not rules.has("vjp"):
        cotangent = gathered.pop(node, None)
        if cotangent is not None and node.inputs[0] in active:
            give(gathered, node.inputs[0], cotangent)
        return
    members = applications.pop(node.application, None)
    if members is None:
        return
    xs, ys = node.xs, node.ys
    given: list[Node | None] = [None] * len(ys)
    outs: list[Node] = list(called(rules, xs, ys)) if len(members) < len(ys) else list(ys)
    for member in members:
        given[member.index], outs[member.index] = gathered.pop(member, None), member
    if all(ct is None for ct in given):
        return
    wanted = frozenset([i for i, x in enumerate(xs) if x in active])
    for position, cotangent in checked_results(rules.vjp(xs, outs, given, wanted), xs, wanted).items():
        give(gathered, xs[position], cotangent)
