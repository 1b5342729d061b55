"""Distinct elements of PyTensor's arrays: all that `unique` gives, along no axis and along each."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

pytest.importorskip("pytensor")

import pytensor.tensor as pt
from pytensor.tensor.extra_ops import Unique

from tests.frontends.pytensor_reference import both, check

X = np.random.default_rng(6).integers(0, 3, size=(5, 4, 2)).astype(float)
FLAGS = list(itertools.product([False, True], repeat=3))


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_all_that_it_gives(axis: int | None, flags: tuple[bool, bool, bool]) -> None:
    x = pt.tensor3("x")
    made = Unique(*flags, axis=axis)(x)
    check([x], made, (X,), (X[:1],), (X[:, :0],), (X * 0,))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64", "float32", "float64", "complex128"])
def test_dtypes(dtype: str) -> None:
    x = pt.vector("x", dtype=dtype)
    values = np.array([3, 0, 2, 2, 0, 3, 3, 1]).astype(dtype)
    if dtype.startswith("complex"):
        values = values + 1j * np.array([0, 1, 2, 1, 1, 0, 1, 0])
    check([x], Unique(True, True, True)(x), (values,), (values[:0],), (values[:1],))


def test_what_is_no_number_is_one_element_but_many_rows() -> None:
    values = np.array([np.nan, 1.0, -0.0, np.nan, 0.0, np.inf, -np.inf, np.nan])
    x, y = pt.vector("x"), pt.matrix("y")
    check([x], Unique(True, True, True)(x), (values,))
    check([y], Unique(True, True, True, axis=0)(y), (np.stack([values, values]).T[1:3],))


def test_it_is_a_part_of_the_program_around_it() -> None:
    x = pt.vector("x")
    values, counts = Unique(return_counts=True)(x * 2)
    function, wanted = both([x], [(values * counts).sum(), values.shape[0], values - values.mean()])
    for given_ in (X.ravel(), X.ravel()[:7], np.arange(9.0), np.zeros(3)):
        for found, right in zip(function(given_), wanted(given_), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-12)
    assert len(function.vm.jit_fn.steps) <= 2


@given(
    hnp.arrays(
        st.sampled_from([np.int64, np.float64]), hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=6),
        elements=st.integers(-2, 2),
    ),
    st.sampled_from([None, 0, 1]),
)  # fmt: skip
def test_random_arrays(values: np.ndarray, axis: int | None) -> None:
    x = pt.matrix("x", dtype=values.dtype.name)
    key = (values.dtype.name, axis)
    if key not in FUNCTIONS:
        FUNCTIONS[key] = both([x], Unique(True, True, True, axis=axis)(x))
    function, wanted = FUNCTIONS[key]
    for found, right in zip(function(values), wanted(values), strict=True):
        np.testing.assert_array_equal(found, right)


FUNCTIONS: dict[tuple[str, int | None], tuple[Any, Any]] = {}
