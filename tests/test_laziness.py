"""Nothing is computed before it is asked for, nothing twice, nothing is kept that nobody refers to, and no depth of
graph is too deep."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import weft.core as mx
from tests import contract
from tests.contract import values_of
from weft import evaluate as evaluation
from weft.array import array
from weft.graph.node import Node
from weft.passes.executable import Executable
from weft.runtime.objects import MAKERS

MIB = 1 << 20


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Executable]]:
    """Every program that is run from now on, planned anew, with its plan. Python's forms run them."""
    found: list[Executable] = []
    monkeypatch.setattr(Executable, "forget_plan", lambda self: None)
    monkeypatch.setattr("weft.evaluate.programs.PROGRAMS", {})
    original = Executable.run

    def run(self: Executable, *args: object) -> object:
        found.append(self)
        return original(self, *args)

    monkeypatch.setattr(Executable, "run", run)
    MAKERS.watch(True)
    yield found
    MAKERS.watch(False)


@pytest.fixture(autouse=True)
def _no_garbage() -> Iterator[None]:
    gc.collect()
    yield
    gc.collect()


def computed(x: array) -> bool:
    return x._node.value is not None


def big() -> array:
    x = mx.array(np.ones(MIB // 4, np.float32))
    assert x.nbytes == MIB
    return x


# ---- when ----


def test_nothing_is_computed_until_asked(runs: list[Executable]) -> None:
    x = mx.array([1.0, 2.0])
    y = mx.exp(x) + 1
    z = mx.sum(y[::-1] @ mx.ones((2, 3)))
    assert (z.shape, z.dtype, z.size, y.ndim) == ((), mx.float32, 1, 1), "shapes are known without values"
    assert not computed(y)
    assert not computed(z)
    assert runs == []
    mx.eval(z)
    assert len(runs) == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x[0].item(), lambda x: x.tolist(), repr, str, lambda x: np.asarray(x), memoryview,
        lambda x: float(mx.sum(x)),
        lambda x: bool(mx.all(x == x)), lambda x: np.from_dlpack(x), mx.eval, lambda x: mx.eval({"a": [x, 3]}),
        mx.async_eval,
        lambda x: mx.array(x.tolist()),
    ],
)  # fmt: skip
def test_what_asks(ask: object, runs: list[Executable]) -> None:
    x = mx.array([1.0, 2.0]) * 2
    assert runs == []
    ask(x)
    assert runs


def test_a_value_is_computed_once(runs: list[Executable]) -> None:
    x = mx.array([1.0, 2.0]) * 2
    for _ in range(3):
        mx.eval(x)
        x.tolist()
    assert len(runs) == 1
    y = x + 1
    mx.eval(y)
    assert len(runs) == 2
    assert y.tolist() == [3.0, 5.0]


def test_several_arrays_are_computed_together(runs: list[Executable]) -> None:
    x = mx.array([1.0, 2.0])
    parts = {"a": x * 2, "b": [x + 1, (x - 1, "text", None)]}
    mx.eval(parts, x * 3)
    assert len(runs) == 1
    assert parts["b"][1][0].tolist() == [0.0, 1.0]


def test_eval_of_what_is_known_does_nothing(runs: list[Executable]) -> None:
    mx.eval()
    mx.eval(3, "text", None, [])
    mx.eval(mx.array([1.0]), mx.zeros((2,)))
    assert runs == []


# ---- what is kept ----


def test_intermediates_that_are_referred_to_are_kept_and_not_computed_again(runs: list[Executable]) -> None:
    x = mx.array([1.0, 2.0])
    middle = mx.exp(x)
    last = middle * 2
    mx.eval(last)
    assert computed(middle), "a live array is a result of the evaluation that passes it"
    middle.tolist()
    (middle + 1).tolist()
    assert len(runs) == 2
    assert [n.op.title for item in runs[1].plan.items for n in item.group.nodes] == ["add"]


def test_intermediates_that_nobody_refers_to_are_not_kept(runs: list[Executable]) -> None:
    x = mx.array([1.0, 2.0])
    middle = mx.exp(x)
    last = mx.sum(middle * 2)
    del middle
    mx.eval(last)
    assert len(runs[0].plan.outputs) == 1


def test_an_array_that_was_overwritten_is_no_longer_referred_to(runs: list[Executable]) -> None:
    x = mx.array([1.0, 2.0])
    for _ in range(10):
        x *= 2
        x[0] = x[1]
    mx.eval(x)
    assert len(runs) == 1
    assert len(runs[0].plan.outputs) == 1


def test_a_second_name_for_a_value_counts(runs: list[Executable]) -> None:
    x = mx.array([1.0, 2.0])
    y = mx.exp(x)
    z = mx.array(y)
    del y
    last = z + 1
    mx.eval(last)
    assert computed(z)
    assert len(runs[0].plan.outputs) == 2


def test_evaluation_forgets_how_values_were_computed() -> None:
    x = mx.array([1.0, 2.0])
    y = mx.exp(x)
    node = y._node
    assert node.inputs
    mx.eval(y)
    assert node.inputs == ()


def test_operands_are_freed_when_their_readers_are_computed() -> None:
    gc.collect()
    before = mx.get_active_memory()
    x = big()
    y = mx.exp(x)
    mx.eval(y)
    assert mx.get_active_memory() - before >= 2 * MIB
    del x
    assert mx.get_active_memory() - before < 2 * MIB, "y does not hold on to x"
    del y
    assert mx.get_active_memory() == before


def test_a_lazy_array_holds_its_operands() -> None:
    before = mx.get_active_memory()
    x = big()
    y = x + 1
    del x
    assert mx.get_active_memory() - before >= MIB
    assert y[0].item() == 2.0
    del y
    assert mx.get_active_memory() == before


def test_dropping_a_lazy_array_frees_what_only_it_needed() -> None:
    before = mx.get_active_memory()
    y = mx.exp(big()) + big()
    del y
    assert mx.get_active_memory() == before


def test_temporaries_live_no_longer_than_the_program() -> None:
    x = big()
    w = mx.array(np.eye(8, dtype=np.float32))
    mx.eval(x, w)
    gc.collect()
    before = mx.get_active_memory()
    y = x.reshape(-1, 8)
    for _ in range(6):
        y = mx.tanh(y @ w)
    total = mx.sum(y)
    del y
    mx.reset_peak_memory()
    mx.eval(total)
    assert mx.get_active_memory() - before < MIB // 4, "only the sum is left"
    assert mx.get_peak_memory() - before < 4 * MIB, "two products at a time, not six"


def test_a_view_keeps_what_it_looks_at() -> None:
    before = mx.get_active_memory()
    x = big()
    part = x[5:7]
    mx.eval(part)
    del x
    assert mx.get_active_memory() - before >= MIB
    assert part.tolist() == [1.0, 1.0]
    del part
    assert mx.get_active_memory() == before


def test_no_reference_cycles() -> None:
    """Everything goes as soon as it is dropped, without the collector's help."""
    gc.disable()
    try:
        before = mx.get_active_memory()
        x = big()
        y = mx.softmax(x * 2)
        mx.eval(y)
        value, gradient = mx.value_and_grad(lambda a: mx.sum(mx.square(a)))(x)
        mx.eval(value, gradient)
        del x, y, value, gradient
        assert mx.get_active_memory() == before
    finally:
        gc.enable()


# ---- deep graphs ----


@pytest.mark.parametrize("depth", [100_000])
def test_a_deep_chain(depth: int) -> None:
    """Built, evaluated and freed without recursion; the windows it is cut into share programs."""
    limit = sys.getrecursionlimit()
    x = mx.zeros((4,)) + mx.array([0.0, 1.0, 2.0, 3.0])
    programs = len(evaluation.programs.PROGRAMS)
    for _ in range(depth):
        x = x + 1.0
    mx.eval(x)
    assert x.tolist() == [depth + i for i in range(4)]
    assert sys.getrecursionlimit() == limit
    assert len(evaluation.programs.PROGRAMS) - programs < 10


def test_a_deep_chain_that_is_dropped_unevaluated() -> None:
    before = mx.get_active_memory()
    x = big()
    for _ in range(100_000):
        x = mx.sin(x)
    del x
    assert mx.get_active_memory() == before


def test_a_deep_graph_with_long_skips() -> None:
    """Values that are read again thousands of nodes later cross the windows."""
    x = mx.array([1.0, 2.0])
    first = x * 3
    y = first
    for i in range(3000):
        y = y * 0.5 + (first if i % 1000 == 999 else 1.0)
    expected = np.array([1.0, 2.0], np.float32) * np.float32(3)
    kept, want = expected, expected
    for i in range(3000):
        want = want * np.float32(0.5) + (kept if i % 1000 == 999 else np.float32(1.0))
    del first
    assert values_of(y).tolist() == want.tolist()


def test_windows_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> array:
        x = mx.array(contract.generator("windows").uniform(-1, 1, (7, 33)).astype(np.float32))
        for i in range(60):
            x = mx.softmax(mx.sin(x) + x[::-1] * 0.5, axis=i % 2)
        return x

    whole = values_of(build())
    for window in (1, 7, 50):
        monkeypatch.setattr(evaluation.reach, "WINDOW", window)
        assert contract.same_bits(values_of(build()), whole), window


def test_deep_derivatives() -> None:
    def f(x: array) -> array:
        y = x
        for _ in range(3000):
            y = y * 0.999 + x
        return y

    expected = sum(0.999**k for k in range(3001))
    assert mx.grad(f)(mx.array(0.5)).item() == pytest.approx(expected, rel=1e-4)
    _, (tangent,) = mx.jvp(f, [mx.array(0.5)], [mx.array(1.0)])
    assert tangent.item() == pytest.approx(expected, rel=1e-4)


def test_wide_graphs() -> None:
    parts = [mx.array([float(i)]) for i in range(1500)]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)] + (parts[-1:] if len(parts) % 2 else [])
    assert parts[0].item() == sum(range(1500))


# ---- under differentiation, and threads ----


def test_values_can_be_read_while_a_function_is_differentiated() -> None:
    def f(x: array) -> array:
        y = mx.exp(x)
        if y.item() > 1.0:  # evaluates; y must still know where it came from
            y = y * x
        return y

    assert mx.grad(f)(mx.array(2.0)).item() == pytest.approx(float(np.exp(2.0) * 3), rel=1e-6)
    assert mx.grad(f)(mx.array(-1.0)).item() == pytest.approx(float(np.exp(-1.0)), rel=1e-6)


def test_two_threads_ask_for_the_same_value() -> None:
    for _ in range(20):
        x = mx.array(np.arange(100, dtype=np.float32))
        y = mx.sum(mx.exp(x * 0.01) + x)
        found: list[float] = []
        workers = [threading.Thread(target=lambda y=y, found=found: found.append(y.item())) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(set(found)) == 1
        assert len(found) == 4


def test_nodes_are_small() -> None:
    """100,000 of them must not hurt: a node has slots, no dictionary."""
    assert not hasattr(Node(mx.array(1)._node.op, (), mx.array(1)._node.kind), "__dict__")
    assert not hasattr(mx.array(1), "__dict__")
