"""Cotangents of matrices that a loop multiplies with: summed up at once after the loop where that is faster, with the
same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.loops import Plain, assert_close, assert_same
from weft.array import array
from weft.primitives import control, deferred
from weft.primitives.contraction import Matmul
from weft.primitives.control import Loop

Body = Callable[[array, array, array], array]


def values(*shape: int, seed: int = 0) -> array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape) / 4, dtype=mx.float64)


def vector(h: array, x: array, w: array) -> array:
    return mx.tanh(h @ w + x)


def rows(h: array, x: array, w: array) -> array:
    return mx.tanh((h[None] * mx.arange(2, dtype=mx.float64)[:, None] @ w + x).sum(0))


def transposed(h: array, x: array, w: array) -> array:
    return mx.tanh(w.T @ x + w @ h)


def twice(h: array, x: array, w: array) -> array:
    return mx.tanh((x @ w) @ w + h * w[0])


def of_rows_alone(h: array, x: array, w: array) -> array:
    return h * 0.5 + mx.sin(x @ w)


def invariant_factor(h: array, x: array, w: array) -> array:
    """One factor is the same at every step."""
    return mx.tanh(mx.ones_like(x) @ w * x + h)


BODIES = (vector, rows, transposed, twice, of_rows_alone, invariant_factor)


def loss_of(body: Body, ways: Any, **options: Any) -> Callable[..., array]:
    def loss(w: array, h: array, xs: array) -> array:
        last, ys = ways.scan(lambda h, x: (body(h, x, w), h * x), h, xs, **options)
        return mx.sum(last * last) + mx.sum(mx.sin(ys))

    return loss


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_gradients_are_those_of_the_python_loop(body: Body, back: bool, steps: int) -> None:
    given = values(24, 24), values(24, seed=1), values(steps, 24, seed=2)
    names = (0, 1, 2)
    found = mx.grad(loss_of(body, mx, reverse=back), argnums=names)(*given)
    plain = loss_of(body, Plain, reverse=back)
    assert_close(found, mx.grad(plain, argnums=names)(*given))
    assert_same(mx.compile(mx.grad(loss_of(body, mx, reverse=back), argnums=names))(*given), found)


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
def test_second_derivatives_and_batches(body: Body) -> None:
    w, h, xs = values(24, 24), values(24, seed=1), values(4, 24, seed=2)
    slope = lambda ways: lambda w: mx.sum(mx.sin(mx.grad(loss_of(body, ways))(w, h, xs)))  # noqa: E731
    assert_close(mx.grad(slope(mx))(w), mx.grad(slope(Plain))(w))
    many = mx.stack([h, h * 0.5, -h])
    total = lambda ways: lambda w: mx.sum(mx.stack([loss_of(body, ways)(w, h, xs) for h in many]))  # noqa: E731
    expected = mx.grad(total(Plain))(w)
    assert_close(mx.grad(lambda w: mx.sum(mx.vmap(lambda h: loss_of(body, mx)(w, h, xs))(many)))(w), expected)
    assert_close(mx.sum(mx.vmap(lambda h: mx.grad(loss_of(body, mx))(w, h, xs))(many), axis=0), expected)


def test_complex_matrices() -> None:
    w = values(16, 16).astype(mx.float32) + 1j * values(16, 16, seed=3).astype(mx.float32)
    h, xs = values(16, seed=1).astype(mx.complex64), values(4, 16, seed=2).astype(mx.complex64)

    def loss(ways: Any) -> Callable[[array], array]:
        def total(w: array) -> array:
            last, _ = ways.scan(lambda h, x: (h @ w.astype(mx.complex64) + x, None), h, xs)
            return mx.sum(mx.abs(last) ** 2)

        return total

    assert_close(mx.grad(loss(mx))(w), mx.grad(loss(Plain))(w), 1e-4)


def test_steps_that_are_not_made_count_for_nothing() -> None:
    """Rows that a loop does not reach may hold anything."""
    xs = mx.concatenate([values(3, 24, seed=2), mx.full((2, 24), float("nan"), dtype=mx.float64)])
    w, h = values(24, 24), values(24, seed=1)

    def loss(w: array, length: Any) -> array:
        return mx.sum(mx.scan(lambda h, x: (vector(h, x, w), None), h, xs, length=length)[0])

    assert_close(mx.grad(lambda w: loss(w, mx.array(3)))(w), mx.grad(lambda w: loss(w, 3))(w))


def products_inside(gradient: array) -> int:
    """How many products the last loop behind an array makes at each step."""
    order, seen = [gradient._node], {gradient._node}
    for node in order:
        new = [x for x in node.inputs if x not in seen]
        seen.update(new)
        order.extend(new)
    loops = sorted([node for node in order if isinstance(node.op, Loop)], key=lambda node: node.id)
    return sum(isinstance(node.op, Matmul) for node in loops[-1].op.body.graph.order())


def test_only_few_rows_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def gradient(batch: int, steps: int = 5) -> array:
        h, xs = mx.zeros((batch, 32)), mx.zeros((steps, batch, 32))
        loss = lambda w: mx.sum(mx.scan(lambda h, x: (mx.tanh(h @ w + x), None), h, xs)[0])  # noqa: E731
        return mx.grad(loss)(mx.ones((32, 32)))

    assert products_inside(gradient(4)) == 1  # that of the cotangent of h
    assert products_inside(gradient(8)) == 2
    monkeypatch.setattr(deferred, "MOST_STACKED", 4 * 32 * 4 * 16)
    assert products_inside(gradient(4, steps=16)) == 1
    assert products_inside(gradient(4, steps=17)) == 2
    assert control.Product is deferred.Product
