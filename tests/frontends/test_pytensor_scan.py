"""Scan on Weft's native loop: all kinds of sequences, taps and outputs, loops that stop, gradients, nested loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.tensor as pt
from pytensor.scan.utils import until

from tests.frontends.pytensor_reference import assert_same, both, check, reference

X = np.random.default_rng(3).normal(size=6)
M = np.random.default_rng(4).normal(size=(6, 3)) * 0.5


def scan(*args: Any, **kwargs: Any) -> Any:
    return pytensor.scan(*args, return_updates=False, **kwargs)


def compare(inputs: Any, outputs: Any, *calls: Any, rtol: float = 1e-10) -> None:
    """As `check`; all of it is Weft's."""
    check(inputs, outputs, *calls, rtol=rtol, atol=1e-10)


def test_sequences_and_what_does_not_change() -> None:
    x, m, w = pt.vector("x"), pt.matrix("m"), pt.scalar("w")
    mapped = scan(lambda a, row, w: a * row.sum() + w, sequences=[x, m], non_sequences=[w])
    backwards = scan(lambda a, acc: acc * 0.5 + a, sequences=[x], outputs_info=[pt.zeros(())], go_backwards=True)
    compare([x, m, w], [mapped, backwards], (X, M, 2.0), (X[:2], M[:3], 1.0), (X[:0], M, 1.0))
    compare([x, m, w], [mapped[-1], backwards[-1]], (X, M, 2.0), (X[:1], M[:3], 1.0))


def test_taps_of_sequences_and_outputs() -> None:
    x, start = pt.vector("x"), pt.vector("start")
    both_ways = scan(lambda a, b, c: a + 2 * b - c, sequences=[{"input": x, "taps": [-1, 0, 1]}])
    recurrent = scan(
        lambda a, one, three: a + 0.5 * one - 0.2 * three,
        sequences=[x],
        outputs_info=[{"initial": start, "taps": [-1, -3]}],
    )
    values = (X, np.array([1.0, -1.0, 0.5]))
    compare([x, start], [both_ways, recurrent, recurrent[-1], recurrent[-2:]], values)
    compare([x, start], pt.grad((recurrent**2).sum(), [x, start]), values)
    compare([x, start], pt.grad(recurrent[-1], [x, start]), values)


def test_several_outputs_of_all_kinds() -> None:
    x, h = pt.matrix("x"), pt.vector("h")
    state, total, rows = scan(
        lambda row, state, total: (pt.tanh(state + row), total + state.sum(), row * 2),
        sequences=[x],
        outputs_info=[h, pt.zeros(()), None],
    )
    compare([x, h], [state, total, rows, state[-1], total[-1], rows[-1], state[::2]], (M, M[0]), (M[:1], M[0]))
    compare([x, h], pt.grad(total[-1] + rows.sum(), [x, h]), (M, M[0]))


@pytest.mark.parametrize("keep", ["all", "last", "two"])
def test_steps_are_known_when_it_runs(keep: str) -> None:
    n, a = pt.lscalar("n"), pt.scalar("a")
    powers = scan(lambda p, a: p * a, outputs_info=[pt.ones(())], non_sequences=[a], n_steps=n)
    output = {"all": powers, "last": powers[-1], "two": powers[-2:]}[keep]
    calls = [(n, 1.5) for n in ((1, 2, 7, 100) if keep == "last" else (2, 3, 7))]
    compare([n, a], output, *calls)
    compare([n, a], pt.grad(output.sum(), a), *calls)


def test_no_steps_at_all() -> None:
    n, x = pt.lscalar("n"), pt.vector("x")
    made = scan(lambda h: h * 2, outputs_info=[x], n_steps=n)
    function, wanted = both([n, x], made)
    assert_same(function(0, X), wanted(0, X))
    assert_same(function(2, X), wanted(2, X))


def test_a_loop_that_stops() -> None:
    x, most = pt.scalar("x"), pt.lscalar("most")
    values, squares = scan(
        lambda v: ((v * 2, v**2), until(v > 20)), outputs_info=[x, None], n_steps=most
    )  # fmt: skip
    compare([x, most], [values, squares, values[-1], values.shape[0]], (1.0, 50), (30.0, 50), (1.0, 3), (0.5, 1))
    compare([x, most], pt.grad(values.sum(), x), (1.0, 50), (1.0, 3))
    last = scan(lambda v: (v * 2, until(v > 20)), outputs_info=[x], n_steps=100)[-1]
    compare([x], last, (1.0,), (25.0,))


def test_gradients_of_gradients() -> None:
    x, w = pt.vector("x"), pt.scalar("w")
    h = scan(lambda a, h, w: pt.tanh(w * h + a), sequences=[x], outputs_info=[pt.zeros(())], non_sequences=[w])
    cost = (h**2).sum()
    first = pt.grad(cost, w)
    compare([x, w], [first, pt.grad(first, w), pt.grad(first, x), pt.grad(pt.grad(first, w), w)], (X, 0.7))


def test_truncated_gradients() -> None:
    x, w = pt.vector("x"), pt.scalar("w")
    h = scan(
        lambda a, h, w: w * h + a, sequences=[x], outputs_info=[pt.zeros(())], non_sequences=[w], truncate_gradient=2
    )
    compare([x, w], pt.grad(h[-1], [x, w]), (X, 0.7))


def test_loops_in_loops() -> None:
    m, v = pt.matrix("m"), pt.vector("v")

    def inner(row: Any, h: Any) -> Any:
        return scan(lambda a, acc: acc * 0.9 + a, sequences=[row], outputs_info=[h.sum()])

    outer = scan(inner, sequences=[m], outputs_info=[v])
    compare([m, v], [outer, outer[-1]], (M, M[0]))
    compare([m, v], pt.grad((outer**2).sum(), [m, v]), (M, M[0]))
    steps = scan(
        lambda v: scan(lambda u: (u * 2, until(u > 5)), outputs_info=[v], n_steps=20)[-1] * 0.1,
        outputs_info=[m[0, 0]],
        n_steps=4,
    )
    compare([m], steps, (np.abs(M) + 0.3,))


def test_matrices_in_the_state() -> None:
    a, p = pt.matrix("a"), pt.matrix("p")
    covariance = scan(lambda p, a: a @ p @ a.T + pt.eye(3), outputs_info=[p], non_sequences=[a], n_steps=5)
    values = (M[:3], np.eye(3))
    compare([a, p], [covariance[-1], *pt.grad(pt.linalg.slogdet(covariance[-1])[1], [a, p])], values)


def test_a_check_inside() -> None:
    x = pt.vector("x")
    checked = pytensor.raise_op.Assert("negative")
    made = scan(lambda a, s: s + checked(a, a >= 0), sequences=[x], outputs_info=[pt.zeros(())])
    function = pytensor.function([x], made, mode="WEFT")
    assert_same(function(np.abs(X)), np.cumsum(np.abs(X)))
    with pytest.raises(AssertionError, match="negative"):
        function(np.array([1.0, -1.0, 2.0]))


def test_a_body_that_has_no_translation_is_left_to_pytensor() -> None:
    x = pt.vector("x")
    made = scan(lambda a, s: s + x[x > a].sum(), sequences=[x], outputs_info=[pt.zeros(())])
    check([x], made, (X,), left_to_pytensor=True)


def test_the_graph_does_not_grow_with_the_steps() -> None:
    n = pt.lscalar("n")
    last = scan(lambda h: pt.sin(h) + 1, outputs_info=[pt.ones(())], n_steps=n)[-1]
    function = pytensor.function([n], last, mode="WEFT")
    assert_same(function(10_000), reference([n], last)(10_000))
    plans = [call.executable.commands for call in function.vm.jit_fn.steps[-1].prepared.values()]
    function(20_000)
    assert {call.executable.commands for call in function.vm.jit_fn.steps[-1].prepared.values()} == set(plans)


@pytest.mark.filterwarnings("ignore:WEFT leaves Scan")
@pytest.mark.parametrize("stops", [True, False])
def test_steps_of_an_inner_loop_that_differ_from_step_to_step(stops: bool) -> None:
    n = pt.lvector("n")

    def outer(k: Any) -> Any:
        inner = (lambda z: (z + 1, until(z > 2))) if stops else (lambda z: z + 1)
        return scan(inner, outputs_info=[pt.zeros(())], n_steps=k).sum()

    function = pytensor.function([n], scan(outer, sequences=[n]), mode="WEFT")
    assert_same(function(np.array([2, 1, 3])), np.array([3.0, 1.0, 6.0]))


def test_only_an_older_value_is_read() -> None:
    start = pt.vector("start")
    made = scan(lambda old: 2 * old, outputs_info=[{"initial": start, "taps": [-2]}], n_steps=6)
    compare([start], [made, made[-1], made[-3:]], (np.array([1.0, 3.0]),))
    compare([start], pt.grad((made * pt.arange(6)).sum(), start), (np.array([1.0, 3.0]),))


def test_integers_in_the_state() -> None:
    n, x = pt.lscalar("n"), pt.lvector("x")
    first, second = scan(lambda a, b: (b, a + b), outputs_info=[pt.constant(0), pt.constant(1)], n_steps=n)
    compare([n], [first, second[-1]], (10,), (2,))
    counted = scan(lambda v, c: c + pt.gt(v, 0), sequences=[x], outputs_info=[pt.constant(0, dtype="int64")])
    compare([x], counted, (np.array([1, -1, 3]),))


def test_a_row_that_is_read_in_the_middle() -> None:
    x = pt.vector("x")
    made = scan(lambda a, s: s * 0.5 + a, sequences=[x], outputs_info=[pt.zeros(())])
    compare([x], [made[2], made[1:-1], made[::-1], made[:3]], (X,))
    compare([x], pt.grad(made[2] + made[-2] ** 2, x), (X,))


def test_a_sequence_that_is_too_short() -> None:
    x = pt.vector("x")
    made = scan(lambda a, s: s + a, sequences=[x], outputs_info=[pt.zeros(())], n_steps=5)
    function = pytensor.function([x], made, mode="WEFT")
    assert_same(function(X), np.cumsum(X)[:5])
    with pytest.raises(Exception, match=r"rows|length|steps|bounds"):
        function(X[:3])


def test_the_gradient_of_a_loop_by_what_does_not_change() -> None:
    w, x = pt.matrix("w"), pt.matrix("x")
    h = scan(lambda row, h, w: pt.tanh(row + h @ w), sequences=[x], outputs_info=[pt.zeros(3)], non_sequences=[w])
    compare([w, x], pt.grad((h**2).sum(), [w, x]), (M[:3], M))
    jacobian = pytensor.gradient.jacobian(h[-1], x)
    compare([w, x], jacobian, (M[:3], M[:4]))
