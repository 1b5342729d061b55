"""Situations in which loops of PyTensor are easily wrong: buffers of every length, gradients of loops that stop and of
those that are cut off, taps ahead and behind, derivatives of high order, steps that are known late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.tensor as pt
from pytensor.scan.utils import until

from tests.frontends.pytensor_reference import check

X = np.random.default_rng(3).normal(size=9) * 0.5


def loop(*args: Any, **options: Any) -> Any:
    return pytensor.scan(*args, return_updates=False, **options)


@pytest.mark.parametrize("steps", [1, 2, 9])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "kept", ["last", "last two", "last three", "all", "all and the first", "first", "every second"]
)
def test_buffers_of_every_length(kept: str, late: bool, steps: int) -> None:
    x, n = pt.vector("x", shape=(2,)), pt.lscalar("n")
    rows = loop(lambda a: a * 0.5 + 1, outputs_info=[x], n_steps=n if late else steps)
    parts = {
        "last": lambda: rows[-1], "last two": lambda: rows[-2:], "last three": lambda: rows[-3:], "all": lambda: rows,
        "all and the first": lambda: rows if rows.owner is None else rows.owner.inputs[0], "first": lambda: rows[0],
        "every second": lambda: rows[::2],
    }  # fmt: skip
    check([x, n], parts[kept](), (np.array([1.0, 2.0]), steps))


@pytest.mark.parametrize("steps", [1, 3, 50])
@pytest.mark.parametrize("late", [False, True])
def test_older_values_in_short_buffers(late: bool, steps: int) -> None:
    x, n = pt.vector("x", shape=(3,)), pt.iscalar("n")
    options = {"outputs_info": [{"initial": x, "taps": [-3, -1]}], "n_steps": n if late else steps}
    rows = loop(lambda a, b: 0.3 * a + 0.9 * b, **options)
    values = (np.array([1.0, -2.0, 0.5]), steps)
    check([x, n], [rows[-1]], values)
    check([x, n], [rows[-1], rows[-2] if steps > 1 else rows[-1]], values)
    check([x, n], pytensor.grad(rows[-1], x), values)


@pytest.mark.skipif(pytensor.__version__ < "3.3", reason="the gradient that PyTensor writes is wrong here")
@pytest.mark.parametrize("truncate", [-1, 2, 4])
def test_gradients_of_loops_that_stop_with_taps_of_sequences(truncate: int) -> None:
    x, limit = pt.vector("x"), pt.scalar("limit")

    def step(before: Any, here: Any, after: Any, total: Any) -> Any:
        new = total + here * before - 0.1 * after**2
        return new, until(new > limit)

    rows = loop(
        step, sequences=[{"input": x, "taps": [-1, 0, 2]}], outputs_info=[pt.zeros(())], truncate_gradient=truncate
    )
    values = 0.3 * np.abs(X) + 0.3
    for bound in (0.01, 0.3, 1e6):  # after one step, after some, never
        check([x, limit], [rows, pytensor.grad(rows.sum(), x)], (values, bound))
        check([x, limit], pytensor.grad(rows[-1], x), (values, bound))


def test_derivatives_of_high_order() -> None:
    x = pt.scalar("x")
    value = loop(lambda a, x: pt.sin(a * x), outputs_info=[pt.ones(())], non_sequences=[x], n_steps=4)[-1]
    made = [value]
    for _ in range(3):
        made.append(pytensor.grad(made[-1], x))
    check([x], made, (0.7,), rtol=1e-9)


def test_second_derivatives_by_states_and_sequences() -> None:
    start, x = pt.vector("start", shape=(2,)), pt.vector("x")
    rows = loop(lambda x, a, b: pt.tanh(a * b + x), sequences=[x], outputs_info=[{"initial": start, "taps": [-2, -1]}])
    cost = (rows**2).sum()
    check([start, x], pytensor.gradient.hessian(cost, x), (np.array([0.3, -0.4]), X[:4]), rtol=1e-9)
    slope = pytensor.grad(cost, start)
    check([start, x], pytensor.grad((slope**2).sum(), x), (np.array([0.3, -0.4]), X[:4]), rtol=1e-9)


def test_jacobians_and_directional_derivatives() -> None:
    x = pt.vector("x", shape=(3,))
    rows = loop(lambda a: pt.sin(a) * a.sum(), outputs_info=[x], n_steps=3)[-1]
    check([x], pytensor.gradient.jacobian(rows, x), (X[:3],), rtol=1e-9)
    direction = pt.vector("v", shape=(3,))
    forward = getattr(pytensor.gradient, "pushforward", None) or pytensor.gradient.Rop
    check([x, direction], forward(rows, x, direction), (X[:3], X[3:6]), rtol=1e-9)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_steps_fewer_than_the_sequence(steps: int) -> None:
    x, n = pt.vector("x"), pt.lscalar("n")
    rows = loop(lambda x, a: a + x, sequences=[x], outputs_info=[pt.zeros(())], n_steps=n)
    check([x, n], [rows, rows.sum()], (X, steps))
    check([x, n], pytensor.grad(rows.sum(), x), (X, steps))


def test_backwards_with_taps() -> None:
    x = pt.vector("x")
    rows = loop(
        lambda x, y, a: a * 0.5 + x * y, sequences=[{"input": x, "taps": [0, 1]}], outputs_info=[pt.ones(())],
        go_backwards=True,
    )  # fmt: skip
    check([x], [rows, pytensor.grad(rows[-1], x)], (X,))


def test_several_loops_that_share_and_that_follow_each_other() -> None:
    x = pt.vector("x")
    first = loop(lambda x, a: a * 0.5 + x, sequences=[x], outputs_info=[pt.zeros(())])
    second = loop(lambda y, x, a: a + y * x, sequences=[first, x], outputs_info=[pt.ones(())])
    third = loop(lambda x, a: a - x, sequences=[x], outputs_info=[pt.zeros(())])
    cost = (first * second * third).sum()
    check([x], [first, second, third, cost, pytensor.grad(cost, x)], (X,), (X[:4],))


def test_a_state_of_another_dtype_and_an_unused_output() -> None:
    x = pt.vector("x", dtype="float32")

    def step(x: Any, count: Any, total: Any) -> Any:
        return count + pt.gt(x, 0), total + x, pt.exp(x)

    counts, totals, _ = loop(
        step, sequences=[x], outputs_info=[pt.zeros((), "int64"), pt.zeros((), "float32"), None]
    )  # fmt: skip
    check([x], [counts, totals[-1]], (X.astype("float32"),))


@pytest.mark.parametrize("inner", [1, 3])
def test_gradients_of_loops_in_loops(inner: int) -> None:
    x, w = pt.vector("x"), pt.scalar("w")

    def outer(x: Any, a: Any, w: Any) -> Any:
        return loop(lambda b, x, w: pt.tanh(b * w + x), outputs_info=[a], non_sequences=[x, w], n_steps=inner)[-1]

    rows = loop(outer, sequences=[x], outputs_info=[pt.zeros(())], non_sequences=[w])
    check([x, w], [rows, *pytensor.grad(rows.sum(), [x, w])], (X[:4], 0.7), rtol=1e-9)
    check([x, w], pytensor.grad(pytensor.grad(rows.sum(), w), w), (X[:4], 0.7), rtol=1e-8)


def test_a_body_with_linear_algebra() -> None:
    a, b = pt.matrix("a", shape=(3, 3)), pt.matrix("b")
    rows = loop(
        lambda row, p, a: pt.linalg.solve(pt.eye(3) * 2 + p, a @ p.T) + pt.outer(row, row),
        sequences=[b], outputs_info=[pt.eye(3)], non_sequences=[a],
    )  # fmt: skip
    values = (X.reshape(3, 3), X[:6].reshape(2, 3))
    check([a, b], [rows, pytensor.grad(rows.sum(), a)], values, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:Scan return signature will change")
def test_updates_of_a_body_are_state() -> None:
    count = pytensor.shared(np.array(3, "int64"))
    x = pt.scalar("x")
    rows, updates = pytensor.scan(
        lambda a: (a + count, {count: count + 1}), outputs_info=[x], n_steps=4, return_updates=True
    )
    made = pytensor.function([x], rows, updates=updates, mode="WEFT")
    assert made(0.5).tolist() == [3.5, 7.5, 12.5, 18.5]
    assert made(0.0).tolist() == [7.0, 15.0, 24.0, 34.0]
    assert int(count.get_value()) == 11


def test_a_complex_number_as_the_state() -> None:
    x, z = pt.vector("x"), pt.zscalar("z")
    rows = loop(
        lambda x, a: a * (0.5 + 0.5j) + x, sequences=[x], outputs_info=[pt.constant(np.complex128(0.1))]
    )  # fmt: skip
    check([x, z], [rows, rows[-1] * (2 - 1j), z + 1j], (X, 0.5 - 2j))
