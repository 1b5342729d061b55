"""The reference back end: every primitive by its NumPy reference, one after the other. Slow, plain, and the oracle of
the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft import interop
from weft.graph.body import Body
from weft.graph.node import Graph, Node
from weft.primitives.base import ConstantValue, ControlFlow, Elementwise, GetResult, MultiOutput, Primitive
from weft.runtime.data import Buffer, numpy_view, to_buffer


def apply_reference(op: Primitive, values: Sequence[np.ndarray], dtype: dt.Dtype) -> np.ndarray:
    """One primitive on NumPy values; halves are computed as float32 and rounded, as kernels do."""
    values = [
        v if position in op.moves or v.dtype != np.bool_ else interop.truths(v) for position, v in enumerate(values)
    ]
    with np.errstate(all="ignore"):
        if isinstance(op, Elementwise) and op.compute_halves:
            values = [v.astype(np.float32) if dt.from_numpy(v.dtype) in dt.HALVES else v for v in values]
        return np.asarray(op.reference(*values)).astype(dtype.np, copy=False)


def evaluate_reference(graph: Graph, leaves: Sequence[Buffer]) -> list[Buffer]:
    """The results of a closed graph, computed node by node."""
    operands = [
        numpy_view(leaf, tuple(map(int, node.shape)), node.dtype)
        for node, leaf in zip(graph.inputs, leaves, strict=True)
    ]
    return [to_buffer(value) for value in _run(graph, operands)]


def _applied(node: Node, values: dict[Node, np.ndarray]) -> Any:
    """One node; one with several results gives a tuple of them, of which `GetResult` takes one."""
    if isinstance(node.op, MultiOutput):
        with np.errstate(all="ignore"):
            given = {"run": run_body} if isinstance(node.op, ControlFlow) else {}
            return node.op.reference(*[values[i] for i in node.inputs], **given)
    if isinstance(node.op, GetResult):
        return values[node.inputs[0]][node.op.index]
    return apply_reference(node.op, [values[i] for i in node.inputs], node.dtype)


def run_body(body: Body, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a loop's or branch's body."""
    return _run(body.graph, operands)


def _run(graph: Graph, operands: Sequence[np.ndarray]) -> list[np.ndarray]:
    values: dict[Node, np.ndarray] = dict(zip(graph.inputs, operands, strict=True))
    for node in graph.order():
        if isinstance(node.value, ConstantValue):
            values[node] = np.broadcast_to(np.asarray(node.value.number, node.dtype.np), tuple(map(int, node.shape)))
        elif node not in values:
            values[node] = _applied(node, values)
    return [values[node] for node in graph.outputs]
