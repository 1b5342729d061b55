"""Operations that hold graphs or are more than values: OpFromGraph, IfElse, checks that raise, and printing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.printing import Print
from pytensor.raise_op import CheckAndRaise
from pytensor.scan.op import Scan
from pytensor.tensor.subtensor import Subtensor
from pytensor.typed_list import Index

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import (
    Graph,
    Readers,
    collecting,
    converts,
    effects,
    has_computed_size,
    readers_of,
    refusal,
    rule_of,
    typed,
)
from weft.frontends.pytensor.sizes import is_known
from weft.frontends.pytensor.subtensors import counts_places
from weft.frontends.pytensor.values import Known, NotConverted, Value, cast, to_array
from weft.frontends.pytensor.versions import found, inner_graph

# ---- bodies ----


def body_of(op: Any) -> Graph:
    """The graph inside of an operation, rewritten for this back end, once for each operation."""
    found = getattr(op, "_weft_body", None)
    if found is None:
        fgraph = inner_graph(op)
        found = op._weft_body = Graph(fgraph.inputs, fgraph.outputs)
    return found  # type: ignore[no-any-return]


def refusal_inside(graph: Graph, in_loop: bool) -> str | None:
    """Why a body cannot be translated: a node has no translation, or needs a number that is not known inside."""
    inputs = set(graph.inputs)
    readers = readers_of(graph.nodes, graph.outputs)
    for node in graph.nodes:
        reason = refusal(node)
        if reason is None and in_loop and isinstance(node.op, Print):
            reason = "it prints at each step"
        if reason is None and in_loop and has_computed_size(node):
            reason = "it has a size that depends on data"
        if reason is None and stops_short(node, readers):
            reason = "it makes a number of rows that depends on data"
        if reason is not None:
            return f"{node.op} inside of it: {reason}"
        rule = rule_of(node.op)
        assert rule is not None
        for at in rule.known(node):
            if not is_known(node.inputs[at], inputs, set()):
                return f"{node.op} inside of it has a size that depends on data"
    return None


def stops_short(node: Apply, readers: Readers) -> bool:
    """Whether a node is a Scan whose outputs have a number of rows that depends on data, and that matters."""
    return isinstance(node.op, Scan) and may_stop_short(node) and not rows_are_read_singly(node, readers)


def rows_are_read_singly(node: Apply, readers: Readers) -> bool:
    """Whether all that is read of a node's outputs are single rows whose places are constants: the last one, mostly."""
    found = [reader for x in node.outputs for reader in readers.get(x, ())]
    return all(
        reader is not None
        and isinstance(reader.op, Subtensor)
        and at == 0
        and isinstance(reader.op.idx_list[0], int)
        and isinstance(reader.inputs[1], Constant)
        for reader, at in found
    )


def may_stop_short(node: Apply) -> bool:
    """Whether some output of a Scan that may stop early can have fewer rows than there is room for."""
    op = node.op
    if not op.info.as_while:
        return False
    buffers = op.outer_mitsot(node.inputs) + op.outer_sitsot(node.inputs)
    for buffer, taps in zip(buffers, op.info.mit_sot_in_slices + op.info.sit_sot_in_slices, strict=True):
        rows = buffer.type.shape[0]
        if rows is None or rows > 1 - min(taps):
            return True
    return bool(op.info.n_nit_sot)


def sizes_of(body: Graph) -> set[Variable]:
    """The inputs of a body that sizes inside of it are made of."""
    given: set[Variable] = set()
    for node in body.nodes:
        rule = rule_of(node.op)
        for at in rule.known(node) if rule is not None else ():
            is_known(node.inputs[at], set(body.inputs), given)
    return given


def checks_in(nodes: Sequence[Apply]) -> int:
    """How many checks there are among some nodes and in their bodies."""
    count = 0
    for node in nodes:
        if isinstance(node.op, (CheckAndRaise, Index)) or counts_places(node):
            count += 1
        elif isinstance(node.op, (Scan, OpFromGraph)):
            count += checks_in(body_of(node.op).nodes)
        elif hasattr(node.op, "true_branch"):
            count += sum(checks_in(body_of(part).nodes) for part in (node.op.true_branch, node.op.false_branch))
    return count


# ---- graphs as operations ----


def _known_of_graph(node: Apply) -> list[int]:
    body = body_of(node.op)
    wanted = sizes_of(body)
    return [at for at, x in enumerate(body.inputs) if x in wanted]


@converts(OpFromGraph, known=_known_of_graph, refuses=lambda node: refusal_inside(body_of(node.op), in_loop=False))
def op_from_graph(op: Any, node: Apply, *given: Value) -> list[Value]:
    """A graph in place of an operation is the graph."""
    return body_of(op)(*given)


# ---- branches ----


@converts(*(found("conditional.op", "IfElse") or found("ifelse", "IfElse")))
def if_else(op: Any, node: Apply, graph: Graph, values: dict[Variable, Value]) -> list[Value]:
    """One of two branches, with what only that one needs: the other is not computed."""
    count = op.n_outs
    condition = graph.value(node.inputs[0], values)
    results = [node.inputs[1 : 1 + count], node.inputs[1 + count :]]
    nodes = graph.lazy[node]
    if isinstance(condition, Known):
        chosen = 0 if bool(condition.numbers()) else 1
        return _run_chosen(graph, nodes[chosen], results[chosen], values)

    def branch(number: int) -> list[Value]:
        inside = dict(values)
        for each in nodes[number]:
            graph.run(each, inside)
        return [graph.value(x, inside) for x in results[number]]

    return _one_of(node, condition, branch, [checks_in(part) for part in nodes])


def _known_of_branches(node: Apply) -> list[int]:
    found: set[int] = set()
    for body in (body_of(node.op.true_branch), body_of(node.op.false_branch)):
        wanted = sizes_of(body)
        found.update(at for at, x in enumerate(body.inputs, 1) if x in wanted)
    return sorted(found)


def _refuses_branches(node: Apply) -> str | None:
    bodies = (body_of(node.op.true_branch), body_of(node.op.false_branch))
    return next((reason for body in bodies if (reason := refusal_inside(body, in_loop=True)) is not None), None)


@converts(*found("conditional.op", "LazyIfElse"), known=_known_of_branches, refuses=_refuses_branches)
def lazy_if_else(op: Any, node: Apply, condition: Value, *given: Value) -> list[Value]:
    """One of two graphs."""
    bodies = (body_of(op.true_branch), body_of(op.false_branch))
    if isinstance(condition, Known):
        return bodies[0 if bool(condition.numbers()) else 1](*given)
    return _one_of(node, condition, lambda number: bodies[number](*given), [checks_in(body.nodes) for body in bodies])


def _one_of(node: Apply, condition: array, branch: Callable[[int], list[Value]], checks: Sequence[int]) -> list[Value]:
    """The results of one of two branches that have so many checks."""
    acts: list[Sequence[Callable[[Any], None]]] = [(), ()]

    def runs(number: int) -> Callable[[], list[array]]:
        def run() -> list[array]:
            with collecting() as found:
                made = branch(number)
            acts[number] = [act for _, act in found.checks]
            arrays = [to_array(typed(x, out)) for x, out in zip(made, node.outputs, strict=True)]
            fine = [mx.array(True)] * sum(checks)
            first = checks[0] * number
            fine[first : first + checks[number]] = [flag for flag, _ in found.checks]
            return [*arrays, *fine]

        return run

    try:
        made = mx.cond(cast(condition, "bool").reshape(()), runs(0), runs(1))
    except ValueError as error:
        raise NotConverted(f"branches that differ: {error}") from None
    count = len(node.outputs)
    for flag, act in zip(made[count:], [*acts[0], *acts[1]], strict=True):
        effects().add(flag, act)
    return list(made[:count])


def _run_chosen(
    graph: Graph, nodes: Sequence[Apply], wanted: Sequence[Variable], values: dict[Variable, Value]
) -> list[Value]:
    inside = dict(values)
    for node in nodes:
        graph.run(node, inside)
    return [graph.value(x, inside) for x in wanted]


# ---- effects ----


@converts(CheckAndRaise)
def check_and_raise(op: Any, node: Apply, value: Value, *conditions: Value) -> Value:
    """The value itself. What is known to be wrong is so at once, the rest when the program has run."""

    def act(fine: Any) -> None:
        if not np.all(fine):
            raise op.exc_type(op.msg)

    unknown = []
    for condition in conditions:
        if isinstance(condition, Known):
            act(condition.numbers())
        else:
            unknown.append(cast(condition, "bool").reshape(()))
    flag = mx.array(True)
    for condition in unknown:
        flag = flag & condition
    effects().add(flag, act)
    return value


@converts(Print)
def printed(op: Any, node: Apply, value: Value) -> Value:
    """The value itself, which is printed when the program has run."""
    effects().add(to_array(value), lambda found: op.global_fn(op, found))
    return value
