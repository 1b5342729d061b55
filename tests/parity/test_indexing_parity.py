"""Indexing, scans and joins: the same shapes, dtypes and values as MLX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import weft.core as wx

mx = pytest.importorskip("mlx.core")

DTYPES = ("bool_", "uint8", "int16", "int32", "int64", "float16", "float32", "complex64")


def both(function: Any, *values: Any) -> None:
    """`function(module, arrays...)` gives the same shape, dtype and values with both libraries."""
    theirs = function(mx, *(mx.array(v) if isinstance(v, np.ndarray) else v for v in values))
    mine = function(wx, *(wx.array(v) if isinstance(v, np.ndarray) else v for v in values))
    if isinstance(theirs, (tuple, list)):
        assert len(theirs) == len(mine)
    for t, w in zip(theirs, mine, strict=True) if isinstance(theirs, (tuple, list)) else [(theirs, mine)]:
        assert str(t.dtype).rpartition(".")[2] == w.dtype.name
        np.testing.assert_array_equal(np.array(w), np.array(t))


def numbers(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    kind = np.dtype(dtype.rstrip("_"))
    return np.random.default_rng(seed).integers(0 if kind.kind in "ub" else -9, 9, shape).astype(kind)


@st.composite
def keys(draw: st.DrawFn) -> tuple[Any, ...]:
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    together = draw(st.sampled_from([(), (3,), (2, 3)]))
    items: list[Any] = []
    for n in (4, 5, 6)[: draw(st.integers(1, 3))]:
        kind = draw(st.sampled_from(["array", "array", "integer", "slice"]))
        if kind == "array":
            items.append(rng.integers(-n, n, together).astype(np.int32))
        elif kind == "integer":
            items.append(draw(st.integers(-n, n - 1)))
        else:
            items.append(slice(draw(st.none() | st.integers(0, n - 1)), None, draw(st.sampled_from([None, 2, -1]))))
    assume(any(isinstance(item, np.ndarray) for item in items))
    if draw(st.booleans()):
        items.insert(draw(st.integers(0, len(items))), None)
    return tuple(items)


def converted(library: Any, key: Any) -> Any:
    return tuple(library.array(item) if isinstance(item, np.ndarray) else item for item in key)


@given(key=keys(), dtype=st.sampled_from(DTYPES))
def test_reading(key: Any, dtype: str) -> None:
    both(lambda m, x: x[converted(m, key)], numbers((4, 5, 6), dtype))


@given(key=keys(), dtype=st.sampled_from(DTYPES), value=st.sampled_from([0, 1, 2.5, True]))
def test_writing_numbers(key: Any, dtype: str, value: Any) -> None:
    def write(m: Any, x: Any) -> Any:
        x[converted(m, key)] = value
        return x

    both(write, numbers((4, 5, 6), dtype))


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "maximum", "minimum"])
@pytest.mark.parametrize("dtype", ["int32", "float32", "uint8"])
def test_updates(name: str, dtype: str) -> None:
    index, values = np.array([1, 1, 2, 0, 1], np.int32), numbers((5, 3), dtype, 1)
    both(lambda m, x, i, v: getattr(x.at[i], name)(v), numbers((4, 3), dtype), index, values)
    both(lambda m, x: getattr(x.at[1:3, 0], name)(2.5), numbers((4, 3), dtype))
    both(lambda m, x, i: getattr(x.at[:, i], name)(3), numbers((4, 3), dtype), index)


@pytest.mark.parametrize("mask", [np.array([True, False, True, True]), numbers((4, 3)) > 0])
def test_masks(mask: np.ndarray) -> None:
    def write(m: Any, x: Any, where: Any, value: Any) -> Any:
        x[where] = value
        return x

    for value in (7, np.float32(1.5), numbers((12, 3), seed=2) if mask.ndim == 1 else numbers((12,), seed=2)):
        both(write, numbers((4, 3)), mask, value)


def test_take_and_put() -> None:
    x, index = numbers((3, 4, 5)), np.array([[0, -1], [2, 1]], np.int32)
    for axis in (None, 0, 1, 2, -1):
        both(lambda m, a, i, axis=axis: m.take(a, i, axis=axis), x, index)
    both(lambda m, a: m.take(a, 2, axis=1), x)
    along = np.array([[[0], [2], [1], [-1]]], np.int32)
    both(lambda m, a, i: m.take_along_axis(a, i, axis=2), x, along)
    both(lambda m, a, i: m.take_along_axis(a, i, axis=None), x, index.reshape(-1))
    both(lambda m, a, i, v: m.put_along_axis(a, i, v, axis=2), x, along, np.float32([7.5]))
    both(lambda m, a, i, v: m.put_along_axis(a, i, v, axis=None), x, np.array([1, 9, 30], np.int32), numbers((3,)))
    both(
        lambda m, a, u, s: m.slice_update(a, u, s, axes=(1, 2)), x, numbers((2, 3), seed=3), np.array([1, 2], np.int32)
    )
    both(lambda m, a, s: m.slice(a, s, (0, 2), (2, 4, 3)), x, np.array([1, 2], np.int32))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("dtype", ["bool_", "uint8", "int16", "int64", "float32"])
def test_scans(name: str, dtype: str) -> None:
    for axis in (None, 0, 1):
        for reverse, inclusive in [(False, True), (True, True), (False, False), (True, False)]:
            both(
                lambda m, x, a=axis, r=reverse, i=inclusive: getattr(m, name)(x, axis=a, reverse=r, inclusive=i),
                numbers((3, 4), dtype) % 3 if dtype != "bool_" else numbers((3, 4), dtype),
            )


def test_gradients_of_scans() -> None:
    x, w = np.array([1.0, 0.0, 3.0, 2.0], np.float32), numbers((4,), seed=4)
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        both(lambda m, a, v, name=name: m.grad(lambda z: (getattr(m, name)(z, axis=0) * v).sum())(a), x, w)


def test_joins() -> None:
    x, y = numbers((3, 4)), numbers((3, 4), "int32", 1)
    for axis in (None, 0, 1, -1):
        both(lambda m, a, b, axis=axis: m.concatenate([a, b], axis), x, y)
    for axis in (0, 1, 2, -1):
        both(lambda m, a, b, axis=axis: m.stack([a, b], axis), x, y)
    both(lambda m, a: m.unstack(a, axis=1), x)
    for widths in (1, (1, 2), [(1, 0), (2, 3)]):
        for mode in ("constant", "edge", "reflect", "symmetric"):
            both(lambda m, a, widths=widths, mode=mode: m.pad(a, widths, mode=mode), x)
    both(lambda m, a: m.pad(a, 1, constant_values=9.5), y)
    for axis in (None, 0, 1):
        both(lambda m, a, axis=axis: m.repeat(a, 2, axis=axis), x)
        both(lambda m, a, axis=axis: m.roll(a, 5, axis), x)
    for reps in (2, (2, 1), (2, 1, 3), 0):
        both(lambda m, a, reps=reps: m.tile(a, reps), x)
    both(lambda m, a: m.roll(a, (1, 2), (0, 1)), x)
    both(lambda m, a: m.roll(a, (1, 2)), x)


@pytest.mark.parametrize("offset", [-2, -1, 0, 2])  # beyond the matrix MLX reads on without end
def test_diagonals(offset: int) -> None:
    x = numbers((3, 4, 5), "int8")
    both(lambda m, a: m.diagonal(a, offset, 0, 2), x)
    both(lambda m, a: m.trace(a, offset, 2, 1), x)
    both(lambda m, a: m.diag(a[0], offset), x)
    both(lambda m, a: m.diag(a[0, 0], offset), x)
