"""Lanes of a batch that go different ways: what a lane computes only because others do it leaves no trace, neither in
values nor in derivatives, and always ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx
from tests.loops import assert_close, assert_same
from weft.array import array

XS = mx.array([4.0, 0.0, -1.0, 9.0, 0.0], dtype=mx.float64)
W = mx.array(0.5, dtype=mx.float64)


def root(x: array, w: array) -> array:
    """Without a derivative at 0, and without a value below."""
    return mx.cond(x > 0, lambda x: mx.sqrt(x) * w, lambda x: x * 2.0 + w, x)


def logarithm_of_what_is_shared(x: array, w: array) -> array:
    return mx.cond(x > 100, lambda x: mx.log(w - 0.5) * x, lambda x: w * x, x)


def one_of_three(x: array, w: array) -> array:
    index = mx.sign(x).astype(mx.int32) + 1
    return mx.switch(index, [lambda x: mx.sqrt(-x) * w, lambda x: w * mx.cos(x), lambda x: mx.log(x) * w], x)


def harmonic(x: array, w: array) -> array:
    """1/x + 1/(x - 1) + …: a lane that has ended stands at zero."""

    def body(state: Any) -> Any:
        n, total = state
        return n - 1.0, total + w / n + mx.sqrt(n) * w

    return mx.while_loop(lambda s: s[0] > 0, body, (x, mx.zeros_like(x)))[1]


def steps_of_its_own(x: array, w: array) -> array:
    count = mx.maximum(x, 0).astype(mx.int32)
    body = lambda i, s: (s[0] + w / (s[1] + x - i), s[1])  # noqa: E731
    return mx.fori_loop(0, count, body, (mx.zeros_like(x), mx.zeros_like(x)))[0]


def rows_until(x: array, w: array) -> array:
    rows = mx.arange(4, dtype=mx.float64)
    left, ys, _ = mx.scan(
        lambda left, row: (left - 1.0, mx.sqrt(left) * w + row), mx.abs(x), rows, until=lambda left, y: left <= 0
    )
    return mx.sum(ys) + left


FUNCTIONS = (root, logarithm_of_what_is_shared, one_of_three, harmonic, steps_of_its_own, rows_until)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_derivatives_of_a_batch_are_those_of_its_lanes(f: Callable[..., array]) -> None:
    """Every lane is finite on its own except where it is meant to be: the sums over lanes must be, too."""
    xs = XS if f is not rows_until else mx.array([4.5, 0.5, -1.5, 9.5, 2.5], dtype=mx.float64)
    alone = [mx.grad(f, argnums=(0, 1))(x, W) for x in xs]
    assert all(mx.isfinite(g).item() for pair in alone for g in pair)
    of_x, of_w = mx.grad(lambda xs, w: mx.sum(mx.vmap(f, (0, None))(xs, w)), argnums=(0, 1))(xs, W)
    assert_close(of_x, mx.stack([pair[0] for pair in alone]))
    assert_close(of_w, mx.sum(mx.stack([pair[1] for pair in alone])))
    assert_same(
        mx.compile(mx.grad(lambda xs, w: mx.sum(mx.vmap(f, (0, None))(xs, w)), argnums=(0, 1)))(xs, W), (of_x, of_w)
    )
    assert_close(mx.vmap(mx.grad(f), (0, None))(xs, W), of_x)
    _, (pushed,) = mx.jvp(lambda xs: mx.vmap(f, (0, None))(xs, W), [xs], [mx.ones_like(xs)])
    assert_close(pushed, of_x)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_second_derivatives_of_a_batch(f: Callable[..., array]) -> None:
    xs = mx.array([4.5, 0.5, -1.5, 9.5, 2.5], dtype=mx.float64)
    w = mx.array(0.75, dtype=mx.float64)

    def slope(f: Callable[..., array]) -> Callable[..., array]:
        return lambda x, w: mx.sum(mx.sin(mx.grad(f)(x, w)))

    alone = [mx.grad(slope(f), argnums=(0, 1))(x, w) for x in xs]
    of_x, of_w = mx.grad(slope(lambda xs, w: mx.sum(mx.vmap(f, (0, None))(xs, w))), argnums=(0, 1))(xs, w)
    assert_close(of_x, mx.stack([pair[0] for pair in alone]))
    assert_close(of_w, mx.sum(mx.stack([pair[1] for pair in alone])))


def down(n: array) -> array:
    """Ends for numbers that are not negative only."""
    return mx.while_loop(lambda s: s != 0, lambda s: s - 1, n)


@pytest.mark.parametrize("numbers", [[3, 0, -2], [0, -1, -2], [1, 2, 3]])
def test_a_branch_that_a_lane_does_not_take_need_not_end_for_it(numbers: list[int]) -> None:
    f = lambda n: mx.cond(n > 0, down, lambda n: n * 2, n)  # noqa: E731
    xs = mx.array(numbers)
    expected = mx.stack([f(x) for x in xs])
    assert_same(mx.vmap(f)(xs), expected)
    assert_same(mx.compile(mx.vmap(f))(xs), expected)
    assert_same(mx.vmap(lambda n: mx.switch(n, [lambda n: n, down], n))(mx.maximum(xs, 0)), mx.minimum(xs, 0) * 0)


def test_a_loop_inside_a_loop_ends_for_lanes_that_have_ended() -> None:
    """Halving goes on for ever at 0, which is what finished lanes have."""

    def odd_part(n: array) -> array:
        return mx.while_loop(lambda n: n % 2 == 0, lambda n: n // 2, n)

    def f(n: array) -> array:
        return mx.while_loop(lambda s: s[0] != 0, lambda s: (odd_part(s[0]) - 1, s[1] + 1), (n, mx.array(0)))[1]

    xs = mx.array([0, 12, 7, 1, 96])
    assert_same(mx.vmap(f)(xs), mx.stack([f(x) for x in xs]))


def test_gradients_through_branches_that_loop() -> None:
    def grown(x: array, w: array) -> array:
        body = lambda s: (s[0] * w, s[1] + mx.log(s[0]))  # noqa: E731
        return mx.while_loop(lambda s: s[0] < 10, body, (x, mx.zeros_like(x)))[1]

    def f(x: array, w: array) -> array:
        return mx.cond(x > 0, grown, lambda x, w: x * w, x, w)

    xs, w = mx.array([3.0, 0.0, -1.0, 0.5], dtype=mx.float64), mx.array(1.5, dtype=mx.float64)
    alone = [mx.grad(f, argnums=(0, 1))(x, w) for x in xs]
    of_x, of_w = mx.grad(lambda xs, w: mx.sum(mx.vmap(f, (0, None))(xs, w)), argnums=(0, 1))(xs, w)
    assert_close(of_x, mx.stack([pair[0] for pair in alone]))
    assert_close(of_w, mx.sum(mx.stack([pair[1] for pair in alone])))


@pytest.mark.parametrize("axis", [0, 1])
def test_lanes_along_any_axis(axis: int) -> None:
    def f(row: array, w: array) -> array:
        return mx.cond(row[0] > 0, lambda r: mx.sum(mx.log(mx.abs(r)) * w), lambda r: mx.sum(r) * w, row)

    table = mx.array([[1.0, -2.0, 3.0], [0.0, 0.0, -6.0]], dtype=mx.float64)  # no logarithm of the second row
    table = table if axis == 0 else mx.contiguous(table.T)
    lanes = [table[i] if axis == 0 else table[:, i] for i in range(2)]
    alone = [mx.grad(f, argnums=(0, 1))(lane, W) for lane in lanes]
    total = lambda t, w: mx.sum(mx.vmap(f, (axis, None))(t, w))  # noqa: E731
    of_table, of_w = mx.grad(total, argnums=(0, 1))(table, W)
    assert_close(of_table, mx.stack([pair[0] for pair in alone], axis=axis))
    assert_close(of_w, mx.sum(mx.stack([pair[1] for pair in alone])))


def test_no_lanes() -> None:
    nothing = mx.zeros((0,), mx.float64)
    for f in FUNCTIONS[:5]:
        assert mx.vmap(f, (0, None))(nothing, W).shape == (0,)
