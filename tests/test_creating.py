"""Arrays from nothing and from other objects, against NumPy; sizes, dtypes, and what is refused."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import values_of
from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import reachable
from weft.primitives.base import Constant

inf, nan = math.inf, math.nan
DTYPES = st.sampled_from(dt.ALL)
SHAPES = st.sampled_from([(), (0,), (3,), (2, 5), (2, 0, 3)])


def exactly(got: Any, expected: Any) -> None:
    found, want = values_of(got), np.asarray(expected)
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(found, want)


# ---- constants ----


@given(dtype=DTYPES, shape=SHAPES, value=st.sampled_from([0, 1, True, 2.5]))
def test_full(dtype: Dtype, shape: tuple[int, ...], value: Any) -> None:
    expected = np.full(shape, np.asarray(value).astype(dtype.np))
    exactly(mx.full(shape, value, dtype), expected)
    exactly(mx.full_like(mx.zeros(shape, dtype), value), expected)
    exactly(mx.full_like(mx.zeros(shape), value, dtype), expected)
    exactly(mx.zeros(shape, dtype), np.zeros(shape, dtype.np))
    exactly(mx.ones(shape, dtype), np.ones(shape, dtype.np))
    exactly(mx.empty(shape, dtype), np.zeros(shape, dtype.np))
    for like, number in ((mx.zeros_like, 0), (mx.ones_like, 1), (mx.empty_like, 0)):
        exactly(like(mx.full(shape, value, dtype)), np.full(shape, number, dtype.np))
        exactly(like(mx.full(shape, value, dtype), mx.int8), np.full(shape, number, np.int8))


def test_full_of_an_array_is_broadcast() -> None:
    exactly(mx.full((2, 3), mx.array([1, 2, 3])), np.array([[1, 2, 3]] * 2, np.int32))
    exactly(mx.full((2, 3), mx.array([[1], [2]]), mx.float16), np.array([[1] * 3, [2] * 3], np.float16))
    exactly(mx.full_like(mx.zeros((2, 2), mx.int8), np.array([3.7, -1.2])), np.array([[3, -1]] * 2, np.int8))
    for wrong in ((2,), (3, 2)):
        with pytest.raises(ValueError, match=r"\[full\]"):
            mx.full(wrong, mx.array([1, 2, 3]))


def test_default_dtypes() -> None:
    for value, dtype in (
        (True, mx.bool_),
        (3, mx.int32),
        (3_000_000_000, mx.int64),
        (2.5, mx.float32),
        (1j, mx.complex64),
    ):
        assert mx.full((2,), value).dtype is dtype
    for function in (mx.zeros, mx.ones, mx.empty):
        assert function(2).dtype is mx.float32


@pytest.mark.parametrize("function", [mx.zeros, mx.ones, mx.empty, lambda s: mx.full(s, 1)])
def test_shapes(function: Any) -> None:
    for shape in (3, (3,), [3], (np.int64(3),), np.int32(3), True):
        assert function(shape).shape == ((1,) if shape is True else (3,))
    for shape in ((-1,), (2, -3), -1):
        with pytest.raises(ValueError, match="cannot be negative"):
            function(shape)
    for shape in ((mx.array(3),), mx.array([3]), np.array([3]), mx.array(3, mx.uint8), range(3, 4)):
        assert function(shape).shape == (3,)
    for shape in (2.5, (2.5,), "a", (mx.array(2.0),), (mx.array([2]),), None):
        with pytest.raises(TypeError, match="a size is an integer"):
            function(shape)


def test_constants_are_no_work() -> None:
    for a in (
        mx.full((1000, 1000), 3),
        mx.zeros((5,)),
        mx.full_like(mx.zeros((9,)), 2),
        mx.isnan(mx.zeros(3, mx.int8)),
    ):
        (node,) = reachable([a._node])
        assert isinstance(node.op, Constant)


def test_arrays_made_of_one_number_do_not_share_it() -> None:
    a, b = mx.full((2,), 5), mx.full((2,), 5)
    a += 1
    assert (a.tolist(), b.tolist()) == ([6, 6], [5, 5])


@pytest.mark.parametrize(
    "make",
    [
        lambda: mx.slice_update(mx.array(5.0), 7.0, mx.array([], mx.int32), ()),
        lambda: _assigned(...),
        lambda: _assigned(()),
        lambda: mx.array(5.0).at[()].add(7.0),
        lambda: mx.where(mx.array(True), 7.0, 7.0),
        lambda: mx.clip(mx.array(5.0), 7.0, 7.0),
        lambda: mx.grad(lambda x: x * 7.0)(mx.array(5.0)),
        lambda: mx.broadcast_to(7.0, ()),
        lambda: mx.maximum(7.0, 7.0),
        lambda: mx.full((), 7.0),
    ],
    ids=range(10),
)
def test_no_result_is_a_number_that_others_read(make: Any) -> None:
    """Numbers in programs are shared, so that views of results are read-only; one that is written to all the same must
    not be one of them."""
    first, second = make(), make()
    mx.eval(first, second)
    before = second.item()
    view = np.asarray(first)
    with pytest.raises(ValueError, match="read-only"):
        view[...] = 100
    ctypes.memmove(view.ctypes.data, b"\xff" * view.nbytes, view.nbytes)
    assert second.item() == before
    assert (mx.array(1.0) * 7.0).item() == 7
    assert make().item() == before


def _assigned(key: Any) -> mx.array:
    x = mx.array(5.0)
    x[key] = 7.0
    return x


# ---- ranges ----


@settings(max_examples=150)
@given(
    start=st.integers(-50, 50) | st.floats(-50, 50, width=32),
    stop=st.integers(-50, 50) | st.floats(-50, 50, width=32),
    step=(st.integers(-7, 7) | st.floats(-7, 7, width=16)).filter(lambda s: abs(s) > 0.05),
    dtype=st.none() | st.sampled_from([dt.int32, dt.int8, dt.float16, dt.float32, dt.float64, dt.complex64]),
)
def test_arange(start: Any, stop: Any, step: Any, dtype: Dtype | None) -> None:
    got = values_of(mx.arange(start, stop, step, dtype=dtype))
    whole = all(isinstance(n, int) for n in (start, stop, step))
    expected = np.arange(start, stop, step)
    if dtype is not None and dtype.is_integer and not whole:
        first, second = int(start), int(start + step)  # as NumPy goes on from the first two
        expected = first + np.arange(len(expected)) * (second - first)
    own = dtype or (dt.int32 if whole else dt.float32)
    assert got.dtype == own.np
    assert got.shape == expected.shape
    if own.is_inexact:
        np.testing.assert_allclose(
            got, expected.astype(own.np), rtol=2e-7 if own is not dt.float16 else 1e-3, atol=1e-12
        )
    else:
        np.testing.assert_array_equal(got, expected.astype(own.np))


def test_ranges_of_floats_are_rounded_once() -> None:
    exactly(mx.arange(0, 1, 0.1), np.arange(0, 1, 0.1).astype(np.float32))
    exactly(mx.arange(0.0, 1e6, 0.7), (np.arange(1428572) * 0.7).astype(np.float32))


def test_arange_forms() -> None:
    for a in (
        mx.arange(1, 9, 3),
        mx.arange(start=1, stop=9, step=3),
        mx.arange(1, 9, step=3),
        mx.arange(1, 9, 3, mx.int32),
    ):
        assert a.tolist() == [1, 4, 7]
    for a in (mx.arange(3), mx.arange(stop=3), mx.arange(np.int64(3)), mx.arange(3, None), mx.arange(0, 3, None)):
        assert a.tolist() == [0, 1, 2]
    assert mx.arange(5, 2, mx.float32).tolist() == [0, 2, 4]  # MLX's arange(stop, step, dtype)
    assert mx.arange(0, 5, inf).tolist() == [0.0]
    assert mx.arange(5, 0, inf).tolist() == []
    assert mx.arange(3_000_000_000, 3_000_000_002).dtype is mx.int64
    assert mx.arange(-3, 3, dtype=mx.uint8).tolist() == [253, 254, 255, 0, 1, 2]


def test_arange_refuses() -> None:
    for wrong in ((0, 5, 0), (0, inf), (nan, 1), (0, inf, inf)):
        with pytest.raises(ValueError, match=r"\[arange\]"):
            mx.arange(*wrong)
    for strange in (("a",), (1, 2, 3, 4), (mx.array(3),), ()):
        with pytest.raises(TypeError, match=r"\[arange\]"):
            mx.arange(*strange)
    for boolean in ((True,), (0, True)):
        with pytest.raises(ValueError, match=r"\[arange\]"):
            mx.arange(*boolean)
    with pytest.raises(ValueError, match=r"\[arange\] a range of bools"):
        mx.arange(5, dtype=mx.bool_)


@settings(max_examples=80)
@given(
    start=st.floats(-1e4, 1e4, width=32),
    stop=st.floats(-1e4, 1e4, width=32),
    num=st.integers(0, 60),
    endpoint=st.booleans(),
)
def test_linspace(start: float, stop: float, num: int, endpoint: bool) -> None:
    got = values_of(mx.linspace(start, stop, num, endpoint, mx.float64))
    np.testing.assert_allclose(got, np.linspace(start, stop, num, endpoint), rtol=1e-13, atol=1e-10)
    exactly(mx.linspace(start, stop, num, endpoint), got.astype(np.float32))
    if num > 1 and endpoint:
        assert got[0] == start
        assert got[-1] == stop


def test_linspace_in_other_dtypes() -> None:
    assert mx.linspace(0, 10, 5, dtype=mx.int32).tolist() == [0, 2, 5, 7, 10]
    assert mx.linspace(mx.array(0.0), 1, 3).tolist() == [0, 0.5, 1]
    assert mx.linspace(3, 4, 1).tolist() == [3]
    for num in (2.5, None):
        with pytest.raises(TypeError, match=r"\[linspace\] a size is an integer"):
            mx.linspace(0, 1, num)
    with pytest.raises(ValueError, match="cannot be negative"):
        mx.linspace(0, 1, -1)
    with pytest.raises(TypeError, match="real numbers"):
        mx.linspace(1j, 2, 3)


# ---- grids, windows, matrices ----


@settings(max_examples=40)
@given(sizes=st.lists(st.integers(0, 4), max_size=4), sparse=st.booleans(), indexing=st.sampled_from(["xy", "ij"]))
def test_meshgrid(sizes: list[int], sparse: bool, indexing: Any) -> None:
    vectors = [np.arange(n, dtype=np.int32) * (i + 1) for i, n in enumerate(sizes)]
    got = mx.meshgrid(*map(mx.array, vectors), sparse=sparse, indexing=indexing)
    expected = np.meshgrid(*vectors, sparse=sparse, indexing=indexing)
    assert len(got) == len(expected)
    for g, e in zip(got, expected, strict=True):
        exactly(g, e)


def test_meshgrid_refuses() -> None:
    with pytest.raises(ValueError, match=r"\[meshgrid\] indexing is 'xy' or 'ij'"):
        mx.meshgrid(mx.array([1]), indexing="yx")


@pytest.mark.parametrize("name", ["hanning", "hamming", "blackman", "bartlett"])
def test_windows(name: str) -> None:
    for size in (-3, 0, 1, 2, 3, 4, 5, 64, 999):
        expected = getattr(np, name)(size).astype(np.float32)
        got = values_of(getattr(mx, name)(size))
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-15)
        np.testing.assert_array_equal(got, got[::-1])
    with pytest.raises(TypeError, match="number of points"):
        getattr(mx, name)(2.5)


@given(n=st.integers(0, 5), m=st.none() | st.integers(0, 5), k=st.integers(-6, 6), dtype=DTYPES)
def test_diagonals_and_triangles(n: int, m: int | None, k: int, dtype: Dtype) -> None:
    exactly(mx.eye(n, m, k, dtype), np.eye(n, m, k, dtype=dtype.np))
    exactly(mx.tri(n, m, k, dtype), np.tri(n, m, k).astype(dtype.np))
    exactly(mx.identity(n, dtype), np.eye(n, dtype=dtype.np))
    x = np.arange(2 * n * 3).reshape(2, n, 3).astype(dtype.np)
    exactly(mx.tril(mx.array(x, dtype), k), np.tril(x, k))
    exactly(mx.triu(x=mx.array(x, dtype), k=k), np.triu(x, k))


def test_triangles_refuse_vectors() -> None:
    with pytest.raises(ValueError, match=r"\[tril\] needs a matrix"):
        mx.tril(mx.array([1, 2]))
    with pytest.raises(ValueError, match=r"\[eye\] a size cannot be negative"):
        mx.eye(-1)


# ---- other objects ----


def test_asarray() -> None:
    x = mx.array([1.0, 2.0])
    assert mx.asarray(x).tolist() == [1, 2]
    assert mx.asarray(x, copy=False).tolist() == [1, 2]
    assert mx.asarray(x, mx.int32).dtype is mx.int32
    assert mx.asarray([[1], [2]]).shape == (2, 1)
    assert mx.asarray(np.ones(3)).dtype is mx.float32
    for value, dtype in ((np.ones(3), None), ([1], None), (x, mx.int32)):
        with pytest.raises(ValueError, match=r"\[asarray\].*leave out copy=False"):
            mx.asarray(value, dtype, copy=False)
    y = mx.asarray(x)
    y += 1
    assert x.tolist() == [1, 2]


def test_from_dlpack() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    exactly(mx.from_dlpack(x.T), x.T)
    exactly(mx.from_dlpack(mx.array(x)), x)
    with pytest.raises(TypeError, match=r"\[from_dlpack\] needs an object with __dlpack__; got list"):
        mx.from_dlpack([1, 2])


# ---- the Python array API ----


def test_what_the_array_api_asks() -> None:
    info = mx.__array_namespace_info__()
    assert info.default_device() in info.devices()
    assert info.default_dtypes()["real floating"] is mx.array(1.0).dtype
    assert set(info.dtypes(kind=("bool", "real floating"))) == {"bool", "float32", "float64"}
    with pytest.raises(ValueError, match="kind"):
        info.dtypes(kind="?")
    with pytest.raises(TypeError, match="device"):
        info.dtypes(device="cpu")
    assert mx.cumulative_sum(mx.array([[1, 2], [3, 4]]), axis=1).tolist() == [[1, 3], [3, 7]]
    assert mx.cumulative_prod(mx.array([2, 3]), dtype=mx.float32).tolist() == [2, 6]


def test_elements_are_copied_from_other_objects() -> None:
    x = np.ones(3, np.float32)
    for copy in (None, True):
        a = mx.from_dlpack(x, copy=copy)
        mx.eval(a)
        x += 1
        assert a.tolist() == (x - 1).tolist()
    with pytest.raises(ValueError, match="copy"):
        mx.from_dlpack(x, copy=False)
    assert mx.from_dlpack(a, copy=False).tolist() == a.tolist()


def test_dependencies_leave_values_and_gradients_alone() -> None:
    a, b = mx.array([1.0, 2.0]), mx.array(3.0)
    assert mx.depends(a, b).tolist() == [1, 2]
    assert [x.tolist() for x in mx.depends([a, b], [a * 2])] == [[1, 2], 3]
    assert mx.grad(lambda x: (mx.depends(x, b) * x).sum())(a).tolist() == [2, 4]
