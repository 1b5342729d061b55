"""Gradients where functions have edges: every line of the table in docs/gradients.md, in both modes, eager and
compiled."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.contract import settings

DOCS = Path(__file__).resolve().parents[1] / "docs" / "gradients.md"
ROW = re.compile(r"\| `(?P<function>[^`]+)`[^|]*\| `(?P<at>[^`]+)` \| `(?P<gradient>[^`]+)` \|")


def rows() -> list[tuple[str, str, str]]:
    """What the table says."""
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| `")]
    found = [ROW.fullmatch(line) for line in lines]
    assert all(found), [line for line, row in zip(lines, found, strict=True) if row is None]
    return [row.group("function", "at", "gradient") for row in found if row is not None]


ROWS = rows()
REVERSE = "where(x > 0, sqrt(x), 0.0)"
"""The one line that forward mode has another value for: it chooses among tangents, where a cotangent of 0 meets NaN."""


@pytest.fixture(autouse=True)
def reference_backend() -> Iterator[None]:
    with settings(backend="reference"):
        yield


def function(text: str) -> Callable[[mx.array], mx.array]:
    names = {**vars(mx), "inf": math.inf, "nan": math.nan}
    return eval(f"lambda x: sum({text})", names)


def numbers(text: str) -> Any:
    return eval(text, {"inf": math.inf, "nan": math.nan})


def test_the_table_is_there() -> None:
    assert len(ROWS) > 50


@pytest.mark.parametrize(("text", "at", "gradient"), ROWS, ids=[f"{row[0]} at {row[1]}" for row in ROWS])
def test_gradients_at_the_edges(text: str, at: str, gradient: str) -> None:
    fun, x, expected = function(text), mx.array(numbers(at)), np.asarray(numbers(gradient))
    found = np.array(mx.grad(fun)(x))
    np.testing.assert_array_equal(found, expected)
    if x.size == 1 and text != REVERSE:  # of more, a tangent of 0 in one would meet an infinite derivative in another
        _, (tangent,) = mx.jvp(fun, [x], [mx.ones_like(x)])
        np.testing.assert_array_equal(np.array(tangent), np.real(expected).reshape(()))
    np.testing.assert_array_equal(np.array(mx.vmap(mx.grad(fun))(mx.stack([x, x]))), np.stack([found, found]))


@pytest.mark.parametrize("text", ["max(x)", "where(x > 0, sqrt(x), 0.0)", "x ** 2.5", "logsumexp(x)", "sort(x)[0]"])
def test_machine_code_has_the_same_edges(text: str) -> None:
    for _, at, gradient in [row for row in ROWS if row[0] == text]:
        x = mx.array(numbers(at))
        with settings(backend="native"):
            eager, compiled = mx.grad(function(text))(x), mx.compile(mx.grad(function(text)))(x)
            np.testing.assert_array_equal(np.array(eager), np.array(compiled))
            np.testing.assert_array_equal(np.array(eager), np.asarray(numbers(gradient)))


@pytest.mark.parametrize(
    ("text", "ties", "directions"),
    [
        ("max(x)", [1.0, 3.0, 3.0], [1.0, 2.0, 3.0]),
        ("min(x)", [1.0, 1.0, 3.0], [1.0, 2.0, 3.0]),
        ("sort(x) * array([1.0, 10.0, 100.0])", [2.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        ("cummax(x)", [1.0, 1.0, 0.0], [1.0, 2.0, 3.0]),
        ("cummin(x)", [1.0, 1.0, 2.0], [1.0, 2.0, 3.0]),
        ("topk(x, 2)", [1.0, 1.0, 1.0], [1.0, 2.0, 3.0]),
        ("median(x)", [2.0, 2.0, 1.0, 3.0], [1.0, 2.0, 3.0, 4.0]),
        ("maximum(x, x[::-1])", [2.0, 1.0, 2.0], [1.0, 2.0, 3.0]),
        ("clip(x, 0.0, 1.0)", [0.0, 1.0, 0.5], [1.0, 2.0, 3.0]),
        ("prod(x)", [0.0, 2.0, 0.0], [1.0, 2.0, 3.0]),
        ("cumprod(x)", [0.0, 2.0, 0.0], [1.0, 2.0, 3.0]),
        ("abs(x)", [0.0, -1.0, 0.0], [1.0, 2.0, 3.0]),
    ],
)
def test_both_modes_agree_at_ties(text: str, ties: list[float], directions: list[float]) -> None:
    fun, x, t = function(text), mx.array(ties), mx.array(directions)
    _, (tangent,) = mx.jvp(fun, [x], [t])
    assert tangent.item() == mx.sum(mx.grad(fun)(x) * t).item()


def test_forward_mode_chooses_among_tangents() -> None:
    assert mx.jvp(function(REVERSE), [mx.array([-1.0])], [mx.array([1.0])])[1][0].item() == 0.0


def test_nothing_leaks_from_the_other_side_of_a_where() -> None:
    """Whatever it is: a value, a derivative, a cotangent; in both modes and in second derivatives."""
    bad = mx.array([math.nan, math.inf, -math.inf])
    never, always = mx.array([False] * 3), mx.array([True] * 3)
    x = mx.array([1.0, 2.0, 3.0])
    for fun in (lambda a: mx.where(never, bad, a * a), lambda a: mx.where(always, a * a, bad)):
        np.testing.assert_array_equal(np.array(mx.grad(lambda a, f=fun: mx.sum(f(a)))(x)), [2.0, 4.0, 6.0])
        np.testing.assert_array_equal(np.array(mx.jvp(fun, [x], [x])[1][0]), [2.0, 8.0, 18.0])
        second = mx.grad(lambda a, f=fun: mx.sum(mx.grad(lambda b: mx.sum(f(b)))(a)))(x)
        np.testing.assert_array_equal(np.array(second), [2.0, 2.0, 2.0])
    _, (ct,) = mx.vjp(lambda a: mx.where(never, a, x), [x], [bad])
    np.testing.assert_array_equal(np.array(ct), [0.0, 0.0, 0.0])
