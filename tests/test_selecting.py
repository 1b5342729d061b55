"""Selections whose size depends on data, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx

shapes = st.lists(st.integers(0, 6), min_size=1, max_size=3).map(tuple)


@given(shapes, st.integers(0, 2**32 - 1))
def test_mask_reads(shape: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    for axes in range(1, len(shape) + 1):
        mask = rng.random(shape[:axes]) < 0.4
        found = mx.array(x)[mx.array(mask)]
        assert found.shape == x[mask].shape
        assert np.array_equal(np.array(found), x[mask])


@given(shapes, st.integers(0, 2**32 - 1))
def test_nonzero_and_argwhere(shape: tuple[int, ...], seed: int) -> None:
    x = np.random.default_rng(seed).integers(-1, 2, shape).astype(np.int32)
    for ours, theirs in zip(mx.nonzero(mx.array(x)), np.nonzero(x), strict=True):
        assert np.array_equal(np.array(ours), theirs)
    assert np.array_equal(np.array(mx.argwhere(mx.array(x))), np.argwhere(x))


@given(st.lists(st.integers(0, 20), max_size=40), st.integers(0, 30), st.booleans())
def test_bincount(values: list[int], minlength: int, weighted: bool) -> None:
    x = np.array(values, np.int32)
    weights = np.linspace(0, 1, len(values)).astype(np.float32) if weighted else None
    found = mx.bincount(mx.array(x), None if weights is None else mx.array(weights), minlength)
    expected = np.bincount(x, weights, minlength)
    assert found.shape == expected.shape
    assert np.allclose(np.array(found), expected, rtol=1e-6)


def test_masks_inside_grad() -> None:
    x = mx.array([1.0, -2.0, 3.0])
    assert mx.grad(lambda x: mx.sum(mx.square(x[x > 0])))(x).tolist() == [2.0, 0.0, 6.0]


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"\[bincount\].*negative"):
        mx.bincount(mx.array([-1]))
    with pytest.raises(ValueError, match=r"\[bincount\].*vector of integers"):
        mx.bincount(mx.array([1.0]))
    with pytest.raises(ValueError, match=r"\[nonzero\]"):
        mx.nonzero(mx.array(1))
