"""Loops over a handful of numbers: one kernel, whatever its body takes apart and puts together, and the bits of the
Python loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests import contract
from tests.loops import Native, Plain, assert_same
from weft.array import array
from weft.evaluate import close
from weft.graph.node import reachable
from weft.passes import elements, pipeline
from weft.passes.memory import Plan
from weft.targets import CPU

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "uint8", "int64", "complex64")


def lorenz(y: array, x: array) -> Any:
    a, b, c = y[0], y[1], y[2]
    change = mx.stack([(b - a) * x[0], a * (x[1] - c) - b, a * b - c * x[2]])
    return y + change, change


def shift(y: array, x: array) -> Any:
    return mx.concatenate([x[:1], y[:-1]]), y[::-1] * x


def written(y: array, x: array) -> Any:
    z = mx.array(y)
    z[1] = x[0] * y[2]
    return z, z[0:2]


def turned(y: array, x: array) -> Any:
    square = mx.broadcast_to(y[None], (3, 3)) * mx.broadcast_to(x[:, None], (3, 3))
    return square.T[1] - square[2], square.T


def constants(y: array, x: array) -> Any:
    return mx.concatenate([mx.zeros_like(y[:1]), y[1:] + 1]), mx.ones_like(x)


BODIES: tuple[Callable[[array, array], Any], ...] = (lorenz, shift, written, turned, constants)


def drawn(dtype: str, *shape: int) -> array:
    values = np.random.default_rng(sum(shape)).integers(-3, 4, shape) / 2
    return mx.array(values).astype(mx.float32).astype(getattr(mx, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_bits_are_those_of_the_python_loop(body: Callable[..., Any], dtype: str) -> None:
    for steps in (1, 2, 5):
        y, xs = drawn(dtype, 3), drawn(dtype, steps, 3)
        for back in (False, True):
            expected = Plain.scan(body, y, xs, reverse=back)
            assert_same(mx.scan(body, y, xs, reverse=back), expected)
            assert_same(mx.compile(lambda y, xs, b=back: mx.scan(body, y, xs, reverse=b))(y, xs), expected)


def test_loops_that_stop() -> None:
    def run(ways: Any, y: array) -> Any:
        step = lambda y: mx.stack([y[1] * 0.5, y[0] - y[1], y[2] + 1])  # noqa: E731
        last = ways.while_loop(lambda y: (y[2] < 7) & (mx.abs(y[0]) < 100), step, y)
        late = ways.scan(lambda y, _: (step(y), y[0]), y, None, 9, until=lambda y, _: y[2] > 4)
        return last, late[0], mx.array(late[2])

    for start in ([1.0, 2.0, 0.0], [1.0, 2.0, 9.0]):
        assert_same(run(Native, mx.array(start)), run(Plain, mx.array(start)))


def plan_of(*results: array) -> Plan:
    """How the arrays would be computed."""
    nodes = [x._node for x in results]
    graph, layouts = close(reachable(nodes), nodes)
    return pipeline.plan(graph, CPU, layouts)


def kernels_of_steps(plan: Plan) -> list[int]:
    """For each loop of a plan, how many kernels it runs at each step; 0 if it is one kernel itself."""
    found = []
    for item in plan.items:
        code = type(item.code).__name__
        if code in ("Repeat", "Steps"):
            found.append(len(item.code.plan.items) if code == "Repeat" else 0)
    return found


def test_small_systems_are_one_kernel() -> None:
    y, xs = drawn("float32", 3), drawn("float32", 5, 3)
    assert kernels_of_steps(plan_of(mx.scan(lorenz, y, xs)[0])) == [0]
    loss = lambda y, xs: mx.sum(mx.scan(lorenz, y, xs)[1])  # noqa: E731
    assert kernels_of_steps(plan_of(*mx.grad(loss, argnums=(0, 1))(y, xs))) == [0, 0]


def test_large_arrays_stay_arrays() -> None:
    y, xs = drawn("float32", 64), drawn("float32", 5, 64)
    assert kernels_of_steps(plan_of(mx.scan(shift, y, xs)[0])) != [0]
    costly = lambda y, x: (mx.concatenate([mx.tanh(mx.exp(y))[1:], x[:1]]), None)  # noqa: E731
    assert kernels_of_steps(plan_of(mx.scan(costly, drawn("float32", 24), drawn("float32", 5, 24))[0])) != [0]


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_gradients_are_the_same_either_way(body: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    y, xs = drawn("float64", 3), drawn("float64", 6, 3)

    def loss(y: array, xs: array) -> array:
        last, ys = mx.scan(lambda y, x: body(mx.sin(y), x), y, xs)
        return mx.sum(mx.sin(ys)) + mx.sum(last * last)

    found = mx.compile(mx.grad(loss, argnums=(0, 1)))(y, xs)
    mx.eval(found)
    monkeypatch.setattr(elements, "MOST_CARRIED", 0)
    whole = mx.compile(mx.grad(loss, argnums=(0, 1)))(y, xs)
    for a, b in zip(found, whole, strict=True):
        assert contract.same_bits(contract.values_of(a), contract.values_of(b))


# ---- many of them side by side ----

LANES = 37


@pytest.mark.parametrize("axes", [(0, 1), (0, None), (1, 2), (None, 1)], ids=str)
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_mapped_loops_have_the_bits_of_each_alone(
    body: Callable[..., Any], axes: tuple[int | None, int | None], dtype: str
) -> None:
    y, xs = drawn(dtype, LANES, 3), drawn(dtype, 4, LANES, 3)
    start = y[5] if axes[0] is None else mx.contiguous(mx.moveaxis(y, 0, axes[0]))
    rows = xs[:, 5] if axes[1] is None else mx.contiguous(mx.moveaxis(xs, 1, axes[1]))
    run = lambda y, xs: mx.scan(body, y, xs)  # noqa: E731
    last, made = mx.compile(mx.vmap(run, in_axes=axes))(start, rows)
    for lane in (0, 5, LANES - 1):
        one = (y[5 if axes[0] is None else lane], xs[:, 5 if axes[1] is None else lane])
        assert_same((last[lane], made[lane]), Plain.scan(body, *one))


def test_many_small_systems_are_one_kernel() -> None:
    y, xs = drawn("float32", LANES, 3), drawn("float32", 5, LANES, 3)
    for axis in (0, 1):
        run = mx.vmap(lambda y, xs: mx.scan(lorenz, y, xs), in_axes=(axis, 1))
        assert kernels_of_steps(plan_of(*run(mx.moveaxis(y, 0, axis), xs))) == [0]
    mapped = mx.vmap(lambda y: mx.fori_loop(0, 9, lambda i, y: mx.stack([y[1] * i, y[0] - y[1], y[2]]), y))
    assert kernels_of_steps(plan_of(mapped(y))) == [0]


def test_what_moves_lanes_stays_an_array() -> None:
    y = drawn("float32", LANES, 3)
    bodies = (
        lambda y: mx.concatenate([y[1:], y[:1]]) * mx.stack([y[:, 0], y[:, 2], y[:, 1]], axis=1),  # another lane's
        lambda y: mx.stack([y[:, 1], y[::-1, 2], y[:, 0]], axis=1),
        lambda y: mx.stack([y[:, 1], y.reshape(3, LANES)[1], y[:, 0]], axis=1),
        lambda y: mx.stack([y[:, 1], mx.broadcast_to(y[3, 2], (LANES,)), y[:, 0]], axis=1),
    )
    for body in bodies:
        run = mx.compile(lambda y, body=body: mx.fori_loop(0, 3, lambda i, y: body(y), y))
        expected = y
        for _ in range(3):
            expected = body(expected)
        assert_same(run(y), expected)
        assert kernels_of_steps(plan_of(mx.fori_loop(0, 3, lambda i, y, body=body: body(y), y))) != [0]


def test_gradients_of_mapped_loops_are_the_same_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    y, xs = drawn("float64", LANES, 3), drawn("float64", 6, LANES, 3)

    def loss(y: array, xs: array) -> array:
        last, ys = mx.vmap(lambda y, xs: mx.scan(lambda y, x: lorenz(mx.sin(y), x), y, xs), in_axes=(0, 1))(y, xs)
        return mx.sum(mx.sin(ys)) + mx.sum(last * last)

    found = mx.compile(mx.grad(loss, argnums=(0, 1)))(y, xs)
    mx.eval(found)
    monkeypatch.setattr(elements, "MOST_CARRIED", 0)
    whole = mx.compile(mx.grad(loss, argnums=(0, 1)))(y, xs)
    for a, b in zip(found, whole, strict=True):
        assert contract.same_bits(contract.values_of(a), contract.values_of(b))
