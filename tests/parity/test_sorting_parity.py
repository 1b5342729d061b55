"""Sorting and its relatives: the same shapes, dtypes and values as MLX, in the same order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as wx
from weft import dtypes as dt
from weft.dtypes import Dtype

mx = pytest.importorskip("mlx.core")

COMMON = tuple(d for d in dt.ALL if d is not dt.complex128)
REALS = tuple(d for d in COMMON if not d.is_complex)


def bits(values: Any) -> np.ndarray:
    """The elements of an array of either library as unsigned integers; pairs for complex numbers."""
    if isinstance(values, mx.array):
        values = values.view(mx.uint16) if values.dtype == mx.bfloat16 else values
        found = np.array(values)
    else:
        found = np.array(values._view())
    found = np.ascontiguousarray(found)
    if found.dtype.kind == "c":
        return np.stack([found.real, found.imag], -1).view(np.uint32)
    return found.view(f"u{found.dtype.itemsize}")


def arrays(x: np.ndarray, dtype: Dtype) -> tuple[Any, Any]:
    """The same elements in both libraries."""
    if dtype is dt.bfloat16:
        return mx.array(x.view(np.uint16)).view(mx.bfloat16), wx.array(x, dtype=dtype)
    return mx.array(x, mx.bool_ if dtype.is_bool else getattr(mx, dtype.name)), wx.array(x, dtype=dtype)


def same(theirs: Any, mine: Any) -> None:
    """The same shapes, dtypes and bits, NaNs included."""
    pairs = zip(theirs, mine, strict=True) if isinstance(theirs, tuple) else [(theirs, mine)]
    for t, w in pairs:
        assert str(t.dtype).rpartition(".")[2] == w.dtype.name
        np.testing.assert_array_equal(bits(w), bits(t))


def numbers(seed: int, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Few different values, among them those that compare strangely."""
    rng = np.random.default_rng(seed)
    if not dtype.is_inexact:
        low, high = (0, 2) if dtype.is_bool else (0, 9) if dtype.kind == "u" else (-9, 9)
        return rng.integers(low, high, shape).astype(dtype.np)
    pool = [0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0, 0.5, 3.0, -2.0]
    result = np.empty(shape, dtype.np)
    for part in (result.real, result.imag) if dtype.is_complex else (result,):
        part[...] = rng.choice(pool, shape).astype(part.dtype)
    return result


SHAPES = st.sampled_from([(1,), (40,), (3, 21), (20, 4), (2, 5, 7), (3, 0), (300,)])


@given(seed=st.integers(0, 99), dtype=st.sampled_from(COMMON), shape=SHAPES, axis=st.none() | st.integers(-1, 0))
def test_sort(seed: int, dtype: Dtype, shape: tuple[int, ...], axis: int | None) -> None:
    theirs, mine = arrays(numbers(seed, dtype, shape), dtype)
    same(mx.sort(theirs, axis=axis, stream=mx.cpu), wx.sort(mine, axis=axis))
    same(mx.argsort(theirs, axis=axis, stream=mx.cpu), wx.argsort(mine, axis=axis))


@given(seed=st.integers(0, 99), dtype=st.sampled_from(REALS), shape=SHAPES, k=st.integers(0, 9))
def test_the_largest_are_the_same(seed: int, dtype: Dtype, shape: tuple[int, ...], k: int) -> None:
    """Their order is nobody's promise, nor which of several equal ones they are."""
    theirs, mine = arrays(numbers(seed, dtype, shape), dtype)
    k = min(k, shape[-1])
    found = [np.array(m.topk(x, k).astype(m.float32)) for m, x in ((mx, theirs), (wx, mine))]
    assert found[0].shape == found[1].shape
    np.testing.assert_array_equal(np.sort(found[1], -1), np.sort(found[0], -1))


@given(
    seed=st.integers(0, 99),
    dtype=st.sampled_from(COMMON),
    n=st.integers(0, 40),
    shape=st.sampled_from([(), (30,), (3, 5), (0,)]),
    side=st.sampled_from(["left", "right"]),
)
def test_searchsorted(seed: int, dtype: Dtype, n: int, shape: tuple[int, ...], side: str) -> None:
    rows, values = arrays(numbers(seed, dtype, (n,)), dtype), arrays(numbers(seed + 1, dtype, shape), dtype)
    theirs = mx.searchsorted(mx.sort(rows[0], stream=mx.cpu), values[0], side)
    same(theirs, wx.searchsorted(wx.sort(rows[1]), values[1], side))


@given(
    seed=st.integers(0, 99),
    dtype=st.sampled_from(COMMON),
    shape=st.sampled_from([(1,), (12,), (3, 4), ()]),
    size=st.integers(1, 15),
    fill=st.sampled_from([None, 0, 1, 2.5]),
)
def test_unique(seed: int, dtype: Dtype, shape: tuple[int, ...], size: int, fill: Any) -> None:
    theirs, mine = arrays(numbers(seed, dtype, shape), dtype)
    found = mx.unique(theirs, size, True, True, True, fill_value=fill, stream=mx.cpu)
    same(found, wx.unique(mine, size, True, True, True, fill_value=fill))


@given(
    seed=st.integers(0, 99),
    dtype=st.sampled_from(COMMON),
    shape=st.sampled_from([(1,), (8,), (9,), (3, 4), (2, 3, 5)]),
    axis=st.sampled_from([None, 0, -1, (0, -1)]),
    keepdims=st.booleans(),
)
def test_median(seed: int, dtype: Dtype, shape: tuple[int, ...], axis: Any, keepdims: bool) -> None:
    axis = 0 if isinstance(axis, tuple) and len(shape) == 1 else axis
    theirs, mine = arrays(numbers(seed, dtype, shape), dtype)
    t, w = mx.median(theirs, axis=axis, keepdims=keepdims, stream=mx.cpu), wx.median(mine, axis=axis, keepdims=keepdims)
    assert str(t.dtype).rpartition(".")[2] == w.dtype.name
    wide = mx.complex64 if dtype.is_complex else mx.float32
    np.testing.assert_array_equal(
        np.array(w.astype(wx.complex64 if dtype.is_complex else wx.float32)), np.array(t.astype(wide))
    )


@given(seed=st.integers(0, 99), axis=st.sampled_from([None, 0, 1]), keepdims=st.booleans())
def test_minmax(seed: int, axis: int | None, keepdims: bool) -> None:
    theirs, mine = arrays(np.random.default_rng(seed).normal(size=(4, 5)).astype(np.float32), dt.float32)
    same(mx.minmax(theirs, axis=axis, keepdims=keepdims), wx.minmax(mine, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize(
    "call",
    [
        lambda m, x: m.sort(x, axis=2),
        lambda m, x: m.argsort(m.array(1.0)),
        lambda m, x: m.partition(x, 3),
        lambda m, x: m.argpartition(x, -4),
        lambda m, x: m.partition(x, 1.5),
        lambda m, x: m.topk(x, 4),
        lambda m, x: m.topk(x, -1),
        lambda m, x: m.searchsorted(x, x),
        lambda m, x: m.searchsorted(x[0], x, side="up"),
        lambda m, x: m.unique(x, -1),
        lambda m, x: m.unique(m.zeros((0,)), 2),
        lambda m, x: m.unique(x, 2, fill_value=x[0]),
        lambda m, x: m.median(m.zeros((2, 0)), axis=1),
    ],
)
def test_the_same_is_refused(call: Any) -> None:
    with pytest.raises(Exception) as theirs:
        call(mx, mx.zeros((2, 3)))
    with pytest.raises(theirs.type):
        call(wx, wx.zeros((2, 3)))


def test_gradients() -> None:
    x = np.random.default_rng(1).normal(size=(3, 7)).astype(np.float32)
    weights = np.random.default_rng(2).normal(size=(3, 7)).astype(np.float32)
    for axis in (0, 1):
        found = [
            m.grad(lambda a, m=m, axis=axis: (m.sort(a, axis=axis) * m.array(weights)).sum())(m.array(x))
            for m in (mx, wx)
        ]
        same(*found)
