"""Loops of PyTensor whose bodies are no parts of one program: each step is programs, in a loop of Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.scan.utils import until

from tests.frontends.pytensor_reference import check

X = np.array([0.3, -1.2, 0.8, 2.0, -0.4, 1.1])


class Same(Op):
    """The value itself, by an implementation in Python alone, with a derivative."""

    __props__ = ()

    def make_node(self, x: Any) -> Apply:
        x = pt.as_tensor_variable(x)
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        outputs[0][0] = np.array(inputs[0])

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> Any:
        return [Same()(cotangents[0])]

    L_op = pullback


def same(x: Any) -> Any:
    return Same()(x)


def scan(*given: Any, **options: Any) -> Any:
    return pytensor.scan(*given, **options, return_updates=False)


def outputs_of(x: Any) -> dict[str, Callable[[], Any]]:
    return {
        "a sum": lambda: scan(lambda a, s: s + same(a), sequences=[x], outputs_info=[pt.zeros(())]),
        "rows": lambda: scan(lambda a: same(a) * x, sequences=[x]),
        "the last row": lambda: scan(lambda a, s: s * 0.5 + same(a), sequences=[x], outputs_info=[pt.zeros(())])[-1],
        "two taps": lambda: scan(
            lambda a, b, c: same(a) + 0.5 * b - 0.1 * c,
            sequences=[x],
            outputs_info=[{"initial": x[:3], "taps": [-1, -3]}],
        ),
        "taps of a sequence": lambda: scan(
            lambda a, b: same(a) - b, sequences=[{"input": x, "taps": [0, 2]}]
        ),
        "backwards": lambda: scan(
            lambda a, s: s * 0.9 + same(a), sequences=[x], outputs_info=[pt.zeros(())], go_backwards=True
        ),
        "several": lambda: list(
            scan(
                lambda a, s, t: [s + t, same(t) + a, a * 2],
                sequences=[x],
                outputs_info=[pt.zeros(()), pt.ones(()), None],
            )
        ),
        "until": lambda: scan(
            lambda a, s: (s + same(a), {}, until(s + a > 1)),
            sequences=[x],
            outputs_info=[pt.zeros(())],
        ),
        "distinct values": lambda: scan(
            lambda a, s: s + pt.unique(pt.floor(x * a)).sum(), sequences=[x], outputs_info=[pt.zeros(())]
        ),
        "a mask": lambda: scan(lambda a: x[x > a].sum(), sequences=[x]),
        "a loop in a loop": lambda: scan(
            lambda a: scan(lambda b, s: s + same(b) * a, sequences=[x], outputs_info=[pt.zeros(())])[-1], sequences=[x]
        ),
        "a matrix as a state": lambda: scan(
            lambda a, s: same(s) + a * pt.outer(x, x), sequences=[x], outputs_info=[pt.zeros((6, 6))]
        )[-1],
    }  # fmt: skip


@pytest.mark.parametrize("name", list(outputs_of(pt.vector("x"))))
def test_values(name: str) -> None:
    x = pt.vector("x")
    check([x], outputs_of(x)[name](), (X,), (X[::-1].copy(),), left_to_pytensor=True)


@pytest.mark.parametrize(
    "name", ["a sum", "rows", "the last row", "two taps", "taps of a sequence", "backwards", "a matrix as a state"]
)
def test_gradients(name: str) -> None:
    x = pt.vector("x")
    cost = pt.sin(outputs_of(x)[name]()).sum()
    check([x], pytensor.grad(cost, x), (X,), left_to_pytensor=True)


def test_gradients_of_a_loop_that_stops() -> None:
    """The loop of the way back has room for more rows than it makes."""
    x = pt.vector("x")
    sums, values = scan(
        lambda a, s: ([s + same(a), same(a)], {}, until(s + a > 1)), sequences=[x], outputs_info=[pt.zeros(()), None]
    )
    cost = pt.sin(sums).sum() + pt.sin(values).sum()
    check([x], pytensor.grad(cost, x), (X[2:].copy(),), (X[3:].copy(),), left_to_pytensor=True)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_number_of_steps_that_is_an_input(steps: int) -> None:
    x, n = pt.vector("x"), pt.lscalar("n")
    rows = scan(lambda s: same(s) * 0.5, outputs_info=[x], n_steps=n)
    check([x, n], rows, (X, np.int64(steps)), left_to_pytensor=True)


@pytest.mark.filterwarnings("ignore:WEFT leaves", "ignore:RandomVariable Ops will stop hiding:DeprecationWarning")
def test_draws_in_a_body() -> None:
    """The generator of one step is the one that the step before left."""
    rng = pytensor.shared(np.random.default_rng(3))

    def step(s: Any, generator: Any) -> Any:
        following, value = pt.random.normal(rng=generator).owner.outputs
        return [same(s) + value, following]

    rows, last = scan(step, outputs_info=[pt.zeros(()), rng], n_steps=6)
    function = pytensor.function([], rows, updates={rng: last}, mode="WEFT")
    first, second = function(), function()
    assert len({*np.diff(first), *np.diff(second)}) == 10
    assert isinstance(rng.get_value(), np.random.Generator)
