"""The seam between planning and a machine: what passes ask of a target, and what a target says of what it cannot do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.contract import settings
from weft import dtypes as dt
from weft.codegen.launch import Layout, Lowering, Pointer
from weft.graph.node import ArrayType, Graph, Node, TupleType, bundle_of, kind_of
from weft.passes.pipeline import compile_graph, plan
from weft.passes.verify import verify_plan
from weft.primitives.base import KernelOperation, MultiOutput, Parameter, bind, picks
from weft.primitives.elementwise import Multiply, Tanh
from weft.runtime.data import numpy_view, to_buffer
from weft.targets import CPU
from weft.targets.cpu import moves
from weft.targets.cpu.lowerings import LOWERINGS


class Halves(MultiOutput, KernelOperation):
    """The first and the second half of a vector."""

    def infer(self, *kinds: ArrayType) -> TupleType:
        half = kind_of((kinds[0].size // 2,), kinds[0].dtype)
        return bundle_of([half, half])


class Unknown(KernelOperation):
    """An operation without kernels."""

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]


def copy_halves(op: Halves, operands: Any, first: Layout, second: Layout) -> Lowering:
    (x,) = operands
    part = Layout(first.shape, x.strides, x.dtype)
    middle = first.shape[0] * x.strides[0] * x.dtype.size
    launches = [
        *moves.copy(part, first, Pointer(0), Pointer(1)),
        *moves.copy(part, second, Pointer(0, middle), Pointer(2)),
    ]
    return Lowering(tuple(launches))


def vector(n: int) -> Node:
    return Node(Parameter(0), (), kind_of((n,), dt.float32))


@pytest.mark.parametrize("used", [(0, 1), (1,), (0,)])
def test_an_operation_with_several_results_has_kernels_of_its_own(
    used: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LOWERINGS, Halves, copy_halves)  # type: ignore[arg-type]
    x = vector(40)
    found = picks(bind(Halves(), bind(Multiply(), x, x)))
    graph = Graph([x], [bind(Multiply(), found[i], found[i]) for i in used])
    verify_plan(plan(graph, CPU))
    values = np.arange(40, dtype=np.float32)
    made = compile_graph(graph, CPU).run([to_buffer(values)], ())
    for i, buffer in zip(used, made, strict=True):
        expected = (values * values)[20 * i : 20 * i + 20] ** 2
        np.testing.assert_array_equal(numpy_view(buffer, (20,), dt.float32), expected)


def test_an_operation_without_kernels_is_named() -> None:
    x = vector(4)
    with pytest.raises(NotImplementedError, match=r"\[unknown\] .*CPU"):
        plan(Graph([x], [bind(Unknown(), x)]), CPU)


@pytest.mark.parametrize(("cpu", "long"), [("x86-64-v2", False), ("x86-64-v3", True)])
def test_costly_maps_use_longer_vectors_where_registers_are_long(cpu: str, long: bool) -> None:
    x = vector(1000)
    with settings(cpu=cpu):
        (item,) = plan(Graph([x], [bind(Tanh(), x)]), CPU).items
        assert ("<32 x float>" in item.launches[0].source.ir()) is long
