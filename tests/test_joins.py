"""Joining, padding, repeating, rolling and diagonals, against NumPy; derivatives and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import LAYOUTS, place, values_of
from tests.contract import assert_values as same
from tests.gradients import check_batch, check_derivatives
from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.primitives.elementwise import draw as draw_values

DTYPES = (dt.bool_, dt.int8, dt.float16, dt.bfloat16, dt.float32, dt.uint64, dt.complex64, dt.complex128)


def numbers(shape: tuple[int, ...], dtype: Dtype = dt.float32, seed: int = 0) -> np.ndarray:
    return draw_values(np.random.default_rng(seed), dtype, shape, -50.0, 50.0)


@given(
    dtype=st.sampled_from(DTYPES),
    axis=st.integers(0, 2),
    sizes=st.lists(st.sampled_from([0, 1, 2, 5, 20]), min_size=1, max_size=4),
    layouts=st.lists(st.sampled_from(sorted(LAYOUTS)), min_size=4, max_size=4),
)
def test_concatenate(dtype: Dtype, axis: int, sizes: list[int], layouts: list[str]) -> None:
    placed = []
    for i, (size, layout) in enumerate(zip(sizes, layouts, strict=False)):
        arrange, shift = LAYOUTS[layout]
        placed.append(
            place(arrange(numbers(tuple(size if a == axis else n for a, n in enumerate((3, 4, 19))), dtype, i)), shift)
        )
    same(mx.concatenate(placed, axis), np.concatenate([values_of(x) for x in placed], axis))


def test_a_transposed_operand_is_turned_on_the_way() -> None:
    x, y = numbers((70, 50)), numbers((50, 70))
    same(mx.concatenate([mx.array(x).T, mx.array(y)], 0), np.concatenate([x.T, y], 0))
    same(mx.concatenate([mx.array(y), mx.array(x).T], 1), np.concatenate([y, x.T], 1))
    same(mx.stack([mx.array(x)[::-1].T, mx.array(y)], 2), np.stack([x[::-1].T, y], 2))


def test_joining_promotes_and_flattens() -> None:
    assert mx.concatenate([mx.array([1, 2]), mx.array([0.5])]).dtype is mx.float32
    assert mx.concatenate([mx.array([[1], [2]]), mx.array([3])], None).tolist() == [1, 2, 3]
    assert mx.concat((mx.array([1]), mx.array([2]))).tolist() == [1, 2]
    assert mx.stack([mx.array(1), mx.array(2)]).tolist() == [1, 2]
    assert mx.concatenate(mx.array([[1, 2], [3, 4]])).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_stack_and_unstack(axis: int) -> None:
    parts = [numbers((3, 4), seed=i) for i in range(5)]
    whole = mx.stack([mx.array(p) for p in parts], axis)
    same(whole, np.stack(parts, axis))
    apart = mx.unstack(whole, axis=axis)
    assert isinstance(apart, tuple)
    for part, expected in zip(apart, parts, strict=True):
        same(part, expected)


@given(
    shape=st.sampled_from([(5,), (3, 20), (2, 3, 4), (1, 7)]),
    widths=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=3),
    mode=st.sampled_from(["constant", "edge", "reflect", "symmetric"]),
    dtype=st.sampled_from([dt.uint8, dt.float32, dt.complex64]),
)
def test_pad(shape: tuple[int, ...], widths: list[tuple[int, int]], mode: str, dtype: Dtype) -> None:
    x = numbers(shape, dtype)
    expected = np.pad(x, widths[: len(shape)], mode=mode)  # type: ignore[call-overload]
    same(mx.pad(mx.array(x, dtype=dtype), widths[: len(shape)], mode=mode), expected)


def test_widths_of_padding() -> None:
    x = numbers((2, 3))
    a = mx.array(x)
    for widths in (1, (1,), (1, 2), [(1, 2)], [(0, 1), (2, 0)]):
        same(mx.pad(a, widths), np.pad(x, widths if isinstance(widths, int) or len(widths) == 2 else widths[0]))
    same(mx.pad(a, 1, constant_values=7), np.pad(x, 1, constant_values=7))
    same(mx.pad(a, 1, constant_values=mx.array(2.5)), np.pad(x, 1, constant_values=2.5))
    assert mx.pad(mx.array([1]), 1, constant_values=9.5).tolist() == [9, 1, 9]


@given(
    shape=st.sampled_from([(), (5,), (3, 4), (2, 3, 4), (0, 2)]),
    reps=st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=4).map(tuple),
)
def test_tile(shape: tuple[int, ...], reps: Any) -> None:
    x = numbers(shape)
    same(mx.tile(mx.array(x), reps), np.tile(x, reps))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_repeat(axis: int | None, count: int) -> None:
    x = numbers((3, 5))
    same(mx.repeat(mx.array(x), count, axis), np.repeat(x, count, axis))


@pytest.mark.parametrize(
    ("shift", "axis"),
    [
        (2, None),
        (-9, None),
        (1, 0),
        (-2, 1),
        ((1, 2), (0, 1)),
        (3, (0, 1)),
        ((1, 2), (1, 1)),
        ((1, 2), 0),
        ((1, 2), None),
    ],
)
def test_roll(shift: Any, axis: Any) -> None:
    x = numbers((4, 5))
    if axis is None:
        expected = np.roll(x, sum(shift) if isinstance(shift, tuple) else shift)
    else:
        expected = np.roll(x, shift, axis)
    same(mx.roll(mx.array(x), shift, axis), expected)
    assert mx.roll(mx.zeros((0,)), 1).shape == (0,)


@pytest.mark.parametrize("offset", [-5, -2, -1, 0, 1, 3, 9])
def test_diagonals(offset: int) -> None:
    x = numbers((4, 3, 5))
    for axis1, axis2 in [(0, 1), (1, 0), (0, 2), (-1, 1)]:
        same(mx.diagonal(mx.array(x), offset, axis1, axis2), np.diagonal(x, offset, axis1, axis2))
        np.testing.assert_allclose(
            np.array(mx.trace(mx.array(x), offset, axis1, axis2)), np.trace(x, offset, axis1, axis2), rtol=1e-5
        )
    same(mx.diag(mx.array(x[0]), offset), np.diag(x[0], offset))
    same(mx.diag(mx.array(x[:, 0, 0]), offset), np.diag(x[:, 0, 0], offset))
    same(mx.array(x[0]).T.diagonal(offset), x[0].T.diagonal(offset))


def test_dtypes_of_a_trace() -> None:
    assert mx.trace(mx.ones((3, 3), dtype=mx.int8)).dtype is mx.int32
    assert mx.trace(mx.ones((3, 3)), dtype=mx.int32).dtype is mx.int32
    assert mx.trace(mx.ones((3, 3), dtype=mx.bool_)).item() == 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mx.concatenate([]), "at least one"),
        (lambda: mx.concatenate([mx.zeros((2, 3)), mx.zeros((3,))]), "agree"),
        (lambda: mx.concatenate([mx.zeros((2, 3)), mx.zeros((2, 2))]), r"array 1 has \(2, 2\)"),
        (lambda: mx.stack([mx.zeros((2,)), mx.zeros((3,))]), "one shape"),
        (lambda: mx.stack([mx.zeros((2,))], 2), "axis 2"),
        (lambda: mx.concatenate([mx.array(1), mx.array(2)]), "axis 0"), (lambda: mx.unstack(mx.array(1)), "axis 0"),
        (lambda: mx.pad(mx.zeros((2, 2)), -1), "negative"), (lambda: mx.pad(mx.zeros((2, 2)), [(1, 1)] * 3), "3 pairs"),
        (lambda: mx.pad(mx.zeros((2,)), 1, "wrap"), "mode"), (lambda: mx.pad(mx.zeros((0,)), 1, "edge"), "empty"),
        (lambda: mx.pad(mx.zeros((2,)), 1, constant_values=mx.array([1, 2])), "one number"),
        (lambda: mx.repeat(mx.zeros((2,)), -1), "negative"), (lambda: mx.tile(mx.zeros((2,)), -1), "negative"),
        (lambda: mx.roll(mx.zeros((2, 2)), (1, 2, 3), (0, 1)), "3 shifts"),
        (lambda: mx.diag(mx.zeros((2, 2, 2))), "vector or a matrix"),
        (lambda: mx.diagonal(mx.zeros((2,))), "two axes"), (lambda: mx.trace(mx.zeros((2, 2)), 0, 1, 1), "same axis"),
    ],
)  # fmt: skip
def test_errors(call: Any, words: str) -> None:
    with pytest.raises((ValueError, IndexError), match=words):
        call()


def test_derivatives() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=(3, 2))
    check_derivatives(lambda a, b: mx.concatenate([a, b, a], 1), x, y)
    check_derivatives(lambda a: mx.stack([a, a * a], 1), x)
    for mode in ("constant", "edge", "reflect", "symmetric"):
        check_derivatives(lambda a, mode=mode: mx.pad(a, ((1, 2), (0, 3)), mode=mode), x)
    check_derivatives(lambda a, v: mx.pad(a, 1, constant_values=v), x, np.array(2.0))
    check_derivatives(lambda a: mx.repeat(a, 3, 1), x)
    check_derivatives(lambda a: mx.tile(a, (2, 3)), x)
    check_derivatives(lambda a: mx.roll(a, (1, 2), (0, 1)), x)
    check_derivatives(lambda a: mx.diagonal(a, 1), x)
    check_derivatives(lambda a: mx.diag(a, -1), x[0])
    check_derivatives(lambda a: mx.trace(a, 1), x)


def test_batches() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(5, 3, 4)), rng.normal(size=(3, 5, 2))
    check_batch(lambda a, b: mx.concatenate([a, b], 1), (0, 1), x, y)
    check_batch(lambda a, b: mx.concatenate([a, b], 1), (0, None), x, y[:, 0])
    check_batch(lambda a, b: mx.concatenate([a, b], 1), (None, 1), x[0], y)
    for function in (
        lambda a: mx.pad(a, 1),
        lambda a: mx.roll(a, 1, 1),
        lambda a: mx.diagonal(a, 1),
        lambda a: mx.tile(a, 2),
    ):
        check_batch(function, (0,), x)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex64", "complex128"])
@pytest.mark.parametrize(
    "widths", [(1, 1), (2, 2), (4, 4), (8, 8), (3, 5, 7), (33, 2), (1, 1, 1, 1), (2, 1, 1)], ids=str
)
def test_short_rows_are_joined_at_once(dtype: str, widths: tuple[int, ...]) -> None:
    """Rows of several parts, as they lie, backwards, the same one again and again, and column by column."""
    rng = np.random.default_rng(len(widths))
    for n in (5, 16, 17, 100, 1500):
        parts = [rng.integers(-99, 99, (n, width)).astype(dtype) for width in widths]
        arrays = [mx.array(part, getattr(mx, dtype)) for part in parts]
        for view in (lambda x: x, lambda x: x[:, ::-1], lambda x: x[::-1], lambda x: x[:1] + 0 * x):
            found = mx.concatenate([view(x) for x in arrays], axis=-1)
            np.testing.assert_array_equal(np.array(found), np.concatenate([view(x) for x in parts], -1))
        columns = [mx.array(part.T.copy(), getattr(mx, dtype)).T for part in parts]
        np.testing.assert_array_equal(np.array(mx.concatenate(columns, axis=-1)), np.concatenate(parts, -1))
        if len(set(widths)) == 1:
            np.testing.assert_array_equal(np.array(mx.stack(arrays, axis=-1)), np.stack(parts, -1))
            np.testing.assert_array_equal(np.array(mx.stack(arrays, axis=1)), np.stack(parts, 1))
