"""shapeless=True, where sizes meet in loops and branches: what has to be of one shape is guarded to be so, as in
`stack` and `matmul`. Other sizes are traced again, or raise what the plain function raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import weft.core as mx
from tests.loops import assert_same
from weft.array import array

Function = Callable[..., Any]
N = 6


def sample(n: int, width: int = 2) -> array:
    return mx.array(np.sin(np.arange(n * width) * 1.7).reshape(n, width), dtype=mx.float32)


def fixed(like: array) -> array:
    """N rows, whatever the sizes are."""
    return mx.ones((N, like.shape[1]), dtype=like.dtype)


YES = mx.array(True)
ONE = mx.array(1)

MEETING: dict[str, Function] = {
    "cond, two sizes": lambda x, y: mx.cond(YES, lambda: x * 2, lambda: y),
    "cond, a size and a number": lambda x, y: mx.cond(YES, lambda a: a * a, fixed, x),
    "cond, a number and a size": lambda x, y: mx.cond(YES, lambda a: fixed(a) * a[0], lambda a: a, x),
    "cond, a computed size": lambda x, y: mx.cond(
        YES, lambda: mx.concatenate([x, x]), lambda: mx.concatenate([x, y])
    ),
    "switch": lambda x, y: mx.switch(ONE, [lambda a: a, lambda a: y * a[0], fixed], x),
    "scan, the carry": lambda x, y: mx.scan(lambda c, r: (y + c[0] * r, c), x, sample(3))[0],
    "scan, the carry, a number": lambda x, y: mx.scan(lambda c, r: (fixed(c) * r + c[:1], r), x, sample(3)),
    "scan, a number, then a size": lambda x, y: mx.scan(lambda c, r: (x * c[0] + r, r), fixed(x), sample(3)),
    "scan, rows": lambda x, y: mx.scan(lambda c, r: (c + r[0] * r[1], c), mx.zeros(2), (x, y)),
    "scan, rows, a number": lambda x, y: mx.scan(lambda c, r: (c + r[0] * r[1], c), mx.zeros(2), [x, sample(N)]),
    "scan, rows and a length": lambda x, y: mx.scan(lambda c, r: (c + r, c), mx.zeros(2), x, length=4),
    "scan, backwards": lambda x, y: mx.scan(lambda c, r: (y * c[0] + r[0], r), x, (x, y), reverse=True),
    "scan, unrolled": lambda x, y: mx.scan(lambda c, r: (y * c[0], r), x, (x, y), unroll=2),
    "scan, checkpoints": lambda x, y: mx.scan(lambda c, r: (y * c[0], r), x, (x, y), checkpoint_every=2),
    "scan, until": lambda x, y: mx.scan(
        lambda c, r: (y * c[0] + r[0], r), x, (x, y), until=lambda c, r: mx.sum(c) > 2
    ),
    "scan, a late length": lambda x, y: mx.scan(lambda c, r: (y * c[0], r), x, (x, y), length=mx.array(3)),
    "while_loop": lambda x, y: mx.while_loop(
        lambda s: s[1] < 3, lambda s: (y * s[0][0] + s[0][-1], s[1] + 1), (x, mx.array(0))
    ),
    "fori_loop": lambda x, y: mx.fori_loop(0, 3, lambda i, c: {"c": y * i + c["c"][0]}, {"c": x}),
    "fori_loop, to a size": lambda x, y: mx.fori_loop(0, x.shape[0], lambda i, c: y * 0.5 + c[0], x),
    "map": lambda x, y: mx.map(lambda r: r[0] * r[1], (x, y)),
    "map, a number": lambda x, y: mx.map(lambda r: r["x"] * r["y"], {"x": x, "y": sample(N)}),
    "associative_scan": lambda x, y: mx.associative_scan(lambda a, b: (a[0] * b[0], a[1] + b[1]), (x, y)),
    "associative_scan, other axes": lambda x, y: mx.associative_scan(
        lambda a, b: a * b[:1] + y[:, : a.shape[1]], x, axis=1
    ),
    "a loop in a branch": lambda x, y: mx.cond(
        YES, lambda a: mx.scan(lambda c, r: (y + c[:1], r), a, (x, y))[0], lambda a: fixed(a), x
    ),
    "a branch in a loop": lambda x, y: mx.scan(
        lambda c, r: (mx.cond(mx.sum(r) > 0, lambda a: y * a[0], lambda a: a, c), r), x, sample(3)
    ),
}  # fmt: skip


def total(f: Function) -> Function:
    def loss(x: array, y: array) -> array:
        leaves = _leaves(f(x, y))
        return sum((mx.sum(mx.sin(leaf.astype(mx.float32))) for leaf in leaves), start=mx.array(0.0))

    return loss


def _leaves(value: Any) -> list[array]:
    if isinstance(value, array):
        return [value]
    return [leaf for part in (value.values() if isinstance(value, dict) else value) for leaf in _leaves(part)]


TRANSFORMS: dict[str, Function] = {
    "value": lambda f: f,
    "gradient": lambda f: mx.grad(total(f), argnums=(0, 1)),
    "tangent": lambda f: lambda x, y: mx.jvp(total(f), [x, y], [mx.cos(x), mx.cos(y)]),
    "batch": lambda f: lambda x, y: mx.vmap(f)(mx.stack([x, mx.cos(x)]), mx.stack([y, mx.cos(y)])),
    "batch of gradients": lambda f: (
        lambda x, y: mx.vmap(mx.grad(total(f), argnums=(0, 1)))(mx.stack([x, mx.cos(x)]), mx.stack([y, mx.cos(y)]))
    ),
}


def answer(f: Function, *xs: array) -> Any:
    """What a call gives, or the name of what it raises."""
    try:
        found = f(*xs)
        mx.eval(found)
    except Exception as error:
        return type(error).__name__
    return found


def compare(f: Function, compiled: Function, n: int, m: int) -> None:
    expected, found = answer(f, sample(n), sample(m)), answer(compiled, sample(n), sample(m))
    if isinstance(expected, str) or isinstance(found, str):
        assert found == expected, f"{n} and {m} rows"
    else:
        assert_same(found, expected, f"{n} and {m} rows")


@pytest.mark.parametrize("name", MEETING)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_sizes_that_meet_are_guarded(name: str, transform: str) -> None:
    """First where all of them are equal, then where some of them differ, and where they are equal once more."""
    f = TRANSFORMS[transform](MEETING[name])
    compiled = mx.compile(f, shapeless=True)
    for n, m in [(N, N), (N, 4), (4, 4), (4, N), (9, 9), (N, N), (1, 1), (1, N), (N, 1), (9, 9)]:
        compare(f, compiled, n, m)


@pytest.mark.parametrize("name", ["cond, two sizes", "scan, the carry", "scan, rows", "map", "while_loop", "fori_loop"])
def test_one_trace_for_all_sizes_that_are_equal(name: str) -> None:
    compiled = mx.compile(MEETING[name], shapeless=True)
    for n in (5, 9, 33, 7):
        compare(MEETING[name], compiled, n, n)
    assert compiled.traces == 1


@examples(max_examples=40)
@given(
    st.sampled_from([*MEETING]),
    st.sampled_from([*TRANSFORMS]),
    st.lists(
        st.tuples(st.sampled_from([1, 2, 3, N, N, 9, 0]), st.sampled_from([1, 2, 3, N, N, 9, 0])),
        min_size=2,
        max_size=5,
    ),
)
def test_any_sizes_in_any_order(name: str, transform: str, sizes: list[tuple[int, int]]) -> None:
    f = TRANSFORMS[transform](MEETING[name])
    compiled = mx.compile(f, shapeless=True)
    for n, m in sizes:
        compare(f, compiled, n, m)


def test_sizes_as_numbers_inside_of_branches_and_loops() -> None:
    """A size that is computed with, in a body in which no array has a symbolic shape."""

    def function(x: mx.array, y: mx.array) -> list[mx.array]:
        n, m = x.shape[0], y.shape[0]

        def number(size: int) -> mx.array:
            return mx.zeros((), mx.int64) + size

        repeated = mx.fori_loop(0, 3, lambda i, total: total + n, number(m))
        total, rows = mx.scan(lambda total, row: (total + row * n, number(n) * 2 + m), mx.array(0.0), x)
        positive = mx.sum(x) > 0
        chosen = mx.cond(positive, lambda: number(n), lambda: number(m) + n)
        return [
            repeated,
            total,
            rows,
            chosen,
            *mx.cond(positive, lambda: (x * n, n + number(1)), lambda: (x + m, number(m))),
        ]

    compiled = mx.compile(function, shapeless=True)
    for n, m in ((5, 2), (5, 3), (3, 2), (7, 7), (8, 1), (9, 4), (1, 1), (5, 2)):
        for sign in (1.0, -1.0):
            x, y = (mx.arange(n) + 0.5) * sign, mx.zeros((m,))
            for found, wanted in zip(compiled(x, y), function(x, y), strict=True):
                assert found.dtype == wanted.dtype
                assert np.array_equal(np.array(found), np.array(wanted))
