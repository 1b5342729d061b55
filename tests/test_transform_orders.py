"""Transforms of one function in any order: none of them leaves anything behind that changes what another one gives.

Bodies of loops and branches are shared by all that have the same structure, those that a pass made included. So a
function is called plain, differentiated, batched, compiled, exported, explained and checked in a random order, and
each answer must have the bits that such an answer had first.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import weft
import weft.core as mx
from tests.loops import Native, assert_same
from tests.test_looping_generated import Case, loss_of, problem_of, smooth_cases
from weft import checking, evaluate
from weft.array import array
from weft.config import config

Function = Callable[..., Any]


@contextmanager
def checking_itself() -> Iterator[None]:
    before = config.check
    evaluate.programs.PROGRAMS.clear()
    checking.enable()
    try:
        with checking.collected():
            yield
    finally:
        checking.disable()
        config.check = before
        evaluate.programs.PROGRAMS.clear()


def _checked(f: Function, *xs: array) -> Any:
    with checking_itself():
        return evaluated(f(*xs))


def _exported(f: Function, *xs: array, shapeless: bool = False) -> Any:
    file = io.BytesIO()
    mx.export_function(file, f, *xs, shapeless=shapeless)
    return mx.import_function(io.BytesIO(file.getvalue()))(*xs)[0]


def _explained(f: Function, *xs: array) -> Any:
    assert str(weft.explain(f, *xs, measure=False))
    return f(*xs)


def _gradient(f: Function) -> Function:
    return lambda *xs: mx.grad(f, argnums=tuple(range(len(xs))))(*xs)


def _pushed(f: Function, *xs: array) -> Any:
    return mx.jvp(f, xs, [mx.ones_like(x) for x in xs])


def _batched(f: Function, *xs: array) -> Any:
    return mx.vmap(f)(*[mx.stack([x, mx.sin(x)]) for x in xs])


WAYS: dict[str, tuple[str, Function]] = {
    "plain": ("value", lambda f, *xs: f(*xs)),
    "compiled": ("value", lambda f, *xs: mx.compile(f)(*xs)),
    "shapeless": ("value", lambda f, *xs: mx.compile(f, shapeless=True)(*xs)),
    "exported": ("value", _exported),
    "exported shapeless": ("value", lambda f, *xs: _exported(f, *xs, shapeless=True)),
    "explained": ("value", _explained),
    "checked": ("value", _checked),
    "grad": ("gradient", lambda f, *xs: _gradient(f)(*xs)),
    "compiled grad": ("gradient", lambda f, *xs: mx.compile(_gradient(f))(*xs)),
    "shapeless grad": ("gradient", lambda f, *xs: mx.compile(_gradient(f), shapeless=True)(*xs)),
    "grad of compiled": ("gradient", lambda f, *xs: _gradient(mx.compile(f))(*xs)),
    "grad of shapeless": ("gradient", lambda f, *xs: _gradient(mx.compile(f, shapeless=True))(*xs)),
    "explained grad": ("gradient", lambda f, *xs: _explained(_gradient(f), *xs)),
    "checked grad": ("gradient", lambda f, *xs: _checked(_gradient(f), *xs)),
    "jvp": ("tangent", _pushed),
    "compiled jvp": ("tangent", lambda f, *xs: mx.compile(lambda *ys: _pushed(f, *ys))(*xs)),
    "shapeless jvp": ("tangent", lambda f, *xs: mx.compile(lambda *ys: _pushed(f, *ys), shapeless=True)(*xs)),
    "vmap": ("batch", _batched),
    "compiled vmap": ("batch", lambda f, *xs: mx.compile(lambda *ys: _batched(f, *ys))(*xs)),
    "shapeless vmap": ("batch", lambda f, *xs: mx.compile(lambda *ys: _batched(f, *ys), shapeless=True)(*xs)),
    "vmap of grad": ("batch of gradients", lambda f, *xs: _batched(_gradient(f), *xs)),
    "shapeless vmap of grad": (
        "batch of gradients",
        lambda f, *xs: mx.compile(lambda *ys: _batched(_gradient(f), *ys), shapeless=True)(*xs),
    ),
}  # fmt: skip


def evaluated(value: Any) -> Any:
    mx.eval(value)
    return value


def in_order(f: Function, order: Any, *xs: array) -> None:
    """Transform `f` in these ways, one after the other: answers of one kind are the same, bit by bit."""
    first: dict[str, Any] = {}
    for way in order:
        kind, transformed = WAYS[way]
        found = evaluated(transformed(f, *xs))
        assert_same(found, first.setdefault(kind, found), f"{way}, after {order}:")


X = mx.array(np.linspace(-1, 1, 12).reshape(4, 3), dtype=mx.float32)


def loop_in_a_branch(x: array) -> array:
    return mx.sum(
        mx.cond(mx.array(True), lambda p: mx.scan(lambda c, r: (c + r[:2], c), p, x)[0], lambda p: p, x[0, :2])
    )


def branch_in_a_loop(x: array) -> array:
    step = lambda c, r: (mx.cond(mx.sum(c) > 0, mx.sin, lambda a: a * r, c), c)  # noqa: E731
    return mx.sum(mx.scan(step, x[0], x)[0])


def loop_in_a_loop(x: array) -> array:
    inner = lambda i, c: mx.fori_loop(0, 2, lambda j, a: a * x[0] + j, c)  # noqa: E731
    return mx.sum(mx.fori_loop(0, 3, inner, x[1]))


def loop_that_stops_in_a_map(x: array) -> array:
    return mx.sum(mx.map(lambda r: mx.while_loop(lambda c: mx.sum(c) < 2, lambda c: c * c + 1, r), x))


NESTED = [loop_in_a_branch, branch_in_a_loop, loop_in_a_loop, loop_that_stops_in_a_map]


@pytest.mark.parametrize("f", NESTED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "plain"])
def test_one_transform_then_another(f: Function, way: str) -> None:
    """Whatever was done first, gradients and values afterwards are there, and are those of an untouched function."""
    in_order(f, (way, "plain", "grad", "jvp", "vmap", "vmap of grad", way), X)


@examples(max_examples=12)
@given(smooth_cases(), st.lists(st.sampled_from([*WAYS]), min_size=3, max_size=6))
def test_transforms_in_any_order(case: Case, order: list[str]) -> None:
    problem = problem_of(case)
    in_order(loss_of(problem, Native), order, *problem.primals)


@pytest.mark.slow
@examples(max_examples=200)
@given(smooth_cases(), st.permutations([*WAYS]))
def test_all_transforms_in_any_order(case: Case, order: list[str]) -> None:
    problem = problem_of(case)
    in_order(loss_of(problem, Native), order, *problem.primals)
