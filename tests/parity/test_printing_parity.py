"""The same bits, written by MLX and by Weft."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from weft import dtypes, printing

mx = pytest.importorskip("mlx.core")

COMMON = [d for d in dtypes.ALL if d is not dtypes.complex128]


def mlx_array(values: np.ndarray, dtype: dtypes.Dtype):
    """An MLX array of the same bits."""
    if dtype is dtypes.bfloat16:
        return mx.array(values.view(np.uint16)).view(mx.bfloat16)
    return mx.array(values, mx.bool_ if dtype.is_bool else getattr(mx, dtype.name))


@st.composite
def arrays(draw):
    """A dtype, and an array of it: any bits, or numbers of everyday size."""
    dtype = draw(st.sampled_from(COMMON))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool), dtype
    if dtype.is_inexact and draw(st.booleans()):
        everyday = rng.normal(size=shape) * 10.0 ** rng.integers(-4, 5, size=shape)
        return everyday.astype(dtypes.real_of(dtype).np).astype(dtype.np), dtype
    size = math.prod(shape) * dtype.size
    return rng.integers(0, 256, size, dtype=np.uint8).view(dtype.np).reshape(shape), dtype


@given(arrays(), st.sampled_from([-1, -1, 0, 1, 3, 9, -4]))
def test_random_arrays(array, precision):
    values, dtype = array
    theirs = mlx_array(values, dtype)
    with mx.printoptions(precision=precision), printing.printoptions(precision=precision):
        assert printing.format_array(values, dtype) == repr(theirs) == str(theirs)


SPECIAL = [0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, -math.nan, 0.5, 1e-5, 123456.5, 1e15, 3e38, 1e-44, 1 / 3]


@pytest.mark.parametrize("dtype", dtypes.FLOATS, ids=lambda d: d.name)
def test_special_floats(dtype):
    with np.errstate(all="ignore"):
        values = np.array(SPECIAL).astype(dtype.np)
    for value in values:
        one = np.array(value, dtype.np)
        assert printing.format_array(one, dtype) == repr(mlx_array(one, dtype))


def test_special_complex():
    for real in SPECIAL:
        for imag in SPECIAL:
            one = np.array(complex(real, imag), np.complex64)
            assert printing.format_array(one, dtypes.complex64) == repr(mlx_array(one, dtypes.complex64))


def test_defaults():
    assert printing.get_printoptions().precision == mx.get_printoptions().precision
    assert printing.PrintOptions().precision == mx.PrintOptions().precision
