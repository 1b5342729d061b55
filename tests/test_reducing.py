"""Reductions against NumPy: every dtype, shape (without axes and without elements, too), set of axes and layout."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import LAYOUTS, place, values_of
from weft import dtypes as dt
from weft import explain
from weft.dtypes import Dtype

SHAPES = ((), (7,), (3, 0), (0,), (2, 3), (4, 1, 5), (2, 3, 17))
TOLERANCE = {dt.float16: 2e-3, dt.bfloat16: 2e-2, dt.float32: 2e-6, dt.complex64: 2e-6}


def numbers(seed: int, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Small numbers, few enough that there are ties."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0 if dtype.kind in "bu" else -3, 4, shape)
    return (x + 1j * rng.integers(-3, 4, shape) if dtype.is_complex else x).astype(dtype.np)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, Any, Any, bool]:
    """(elements, the array in some layout, axes, keepdims)."""
    dtype, shape = draw(st.sampled_from(dt.ALL)), draw(st.sampled_from(SHAPES))
    x = numbers(draw(st.integers(0, 99)), dtype, shape)
    axes = st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda a: a % len(shape)).map(tuple)
    axis = draw(st.none() | axes) if shape else draw(st.sampled_from([None, ()]))
    lay, shift = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    a = place(lay(x), shift)
    return values_of(a), a, axis, draw(st.booleans())  # a broadcast layout has elements of its own


def close(got: Any, wanted: np.ndarray, dtype: Dtype) -> None:
    assert got.shape == wanted.shape
    tolerance = TOLERANCE.get(dtype, 1e-12)
    np.testing.assert_allclose(wide(values_of(got)), wide(np.asarray(wanted)), rtol=tolerance, atol=tolerance)


@settings(max_examples=150)
@given(case=cases())
def test_sums_and_products(case: Any) -> None:
    x, a, axis, keepdims = case
    dtype = dt.from_numpy(x.dtype)
    total = mx.sum(a, axis, keepdims)
    exact = wide(x) if dtype.is_inexact else x.astype(np.int64)
    if dtype.is_inexact:
        close(total, exact.sum(axis, keepdims=keepdims).astype(dtype.np), dtype)
    else:
        assert total.dtype.size >= 4
        np.testing.assert_array_equal(values_of(total), exact.sum(axis, keepdims=keepdims).astype(total.dtype.np))
        product = mx.prod(a, axis, keepdims)
        wanted = exact.prod(axis, keepdims=keepdims).astype(product.dtype.np)
        np.testing.assert_array_equal(values_of(product), wanted)
    np.testing.assert_array_equal(values_of(mx.count_nonzero(a, axis, keepdims)), (x != 0).sum(axis, keepdims=keepdims))
    np.testing.assert_array_equal(values_of(mx.all(a, axis, keepdims)), (x != 0).all(axis, keepdims=keepdims))
    np.testing.assert_array_equal(values_of(mx.any(a, axis, keepdims)), (x != 0).any(axis, keepdims=keepdims))


@settings(max_examples=150)
@given(case=cases(), ddof=st.integers(0, 2))
def test_moments(case: Any, ddof: int) -> None:
    x, a, axis, keepdims = case
    dtype = dt.inexact_of(dt.from_numpy(x.dtype))
    with np.errstate(all="ignore"):
        wanted = wide(x).sum(axis, keepdims=keepdims) / _count(x, axis)
    close(mx.mean(a, axis, keepdims), wanted, dtype)
    real = dt.real_of(dtype)
    with np.errstate(all="ignore"):
        center = wide(x).sum(axis, keepdims=True) / _count(x, axis)
        squares = (np.abs(wide(x) - center) ** 2).sum(axis, keepdims=keepdims)
        spread = squares / np.float64(max(0, _count(x, axis) - ddof))
    close(mx.var(a, axis, keepdims, ddof), spread, real)
    close(mx.std(a, axis, keepdims, correction=ddof), np.sqrt(spread), real)


def _count(x: np.ndarray, axis: Any) -> np.float64:
    return np.float64(x.size if axis is None else math.prod(x.shape[i] for i in axis))


@settings(max_examples=150)
@given(case=cases(), nan=st.booleans())
def test_extremes(case: Any, nan: bool) -> None:
    x, a, axis, keepdims = case
    if nan and x.size and x.dtype.kind in "fc":
        x = x.copy()
        x.reshape(-1)[x.size // 2] = np.nan
        a = mx.array(x, dt.from_numpy(x.dtype))
    gone = range(x.ndim) if axis is None else axis
    if any(x.shape[i] == 0 for i in gone):
        for function in (mx.max, mx.min, mx.minmax):
            with pytest.raises(ValueError, match="size 0"):
                function(a, axis, keepdims)
        return
    least, most = mx.minmax(a, axis, keepdims)
    found = [(mx.max(a, axis, keepdims), np.max), (mx.min(a, axis, keepdims), np.min), (least, np.min), (most, np.max)]
    for got, numpy in found:
        assert got.dtype is dt.from_numpy(x.dtype)
        np.testing.assert_array_equal(wide(values_of(got)), wide(numpy(wide(x), axis, keepdims=keepdims)))


@settings(max_examples=100)
@given(case=cases(), nan=st.booleans(), data=st.data())
def test_places_of_extremes(case: Any, nan: bool, data: st.DataObject) -> None:
    x, a, _, keepdims = case
    if nan and x.size and x.dtype.kind in "fc":
        x = x.copy()
        x.reshape(-1)[x.size // 2] = np.nan
        a = mx.array(x, dt.from_numpy(x.dtype))
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1)) if x.ndim else None
    if (x.size if axis is None else x.shape[axis]) == 0:
        with pytest.raises(ValueError, match="size 0"):
            mx.argmax(a, axis)
        return
    for function, numpy in ((mx.argmax, np.argmax), (mx.argmin, np.argmin)):
        got = function(a, axis, keepdims)
        assert got.dtype is dt.uint32
        np.testing.assert_array_equal(values_of(got), numpy(wide(x), axis, keepdims=keepdims))


@settings(max_examples=100)
@given(case=cases())
def test_exponentials(case: Any) -> None:
    x, a, axis, keepdims = case
    dtype = dt.inexact_of(dt.from_numpy(x.dtype))
    with np.errstate(all="ignore"):
        total = np.exp(wide(x)).sum(axis, keepdims=True)
        if not dtype.is_complex:
            close(mx.logsumexp(a, axis, keepdims), np.log(np.exp(wide(x)).sum(axis, keepdims=keepdims)), dtype)
        elif x.size:  # the logarithm is one of many, and the sum may vanish
            got = wide(values_of(mx.logsumexp(a, axis, keepdims)))
            wanted = np.exp(wide(x)).sum(axis, keepdims=keepdims)
            np.testing.assert_allclose(np.exp(got), wanted, rtol=1e-3, atol=1e-4)
    if not dtype.is_complex or (np.abs(total) > 0.1).all():
        soft = values_of(mx.softmax(a, axis))
        tolerance = 1e-4 if dtype.is_complex else TOLERANCE.get(dtype, 1e-12)
        np.testing.assert_allclose(wide(soft), np.exp(wide(x)) / total, rtol=tolerance, atol=tolerance)


def test_a_long_sum_of_ones_is_exact() -> None:
    assert mx.sum(mx.ones((20_000_000,))).item() == 20_000_000
    assert mx.mean(mx.ones((70_000,), mx.float16)).item() == 1
    assert mx.sum(mx.ones((3000,), mx.bfloat16)).item() == 3008  # 3000, rounded once


VIEWS = {
    "contiguous": lambda x: mx.contiguous(x[:, 1:-1]),
    "sliced": lambda x: x[:, 1:-1],
    "reversed": lambda x: x[:, 1:-1][:, ::-1],
    "upwards": lambda x: x[::-1, 1:-1],
    "repeated": lambda x: mx.broadcast_to(x[:1, 1:-1], (x.shape[0], x.shape[1] - 2)),
}
REDUCED = {
    "sum": lambda x, axis: mx.sum(x, axis=axis),
    "prod": lambda x, axis: mx.prod(x, axis=axis),
    "max": lambda x, axis: mx.max(x, axis=axis),
    "argmax": lambda x, axis: mx.argmax(x, axis=axis),
    "var": lambda x, axis: mx.var(x, axis=axis),
}


def rows_of_few(dtype: Dtype, rows: int, columns: int) -> mx.array:
    """Numbers whose sums are rounded, in rows with an element before and behind."""
    rng = np.random.default_rng(rows)
    x = rng.uniform(0.4, 1.6, (rows, columns + 2))
    x = x + 1j * rng.uniform(-1, 1, x.shape) if dtype.is_complex else x * 3 if dtype.is_integer else x
    return mx.array(x.astype(np.complex64 if dtype.is_complex else np.float32)).astype(dtype)


def same_bits(x: mx.array, y: mx.array) -> bool:
    return x.dtype == y.dtype and np.array(x.view(mx.uint8)).tobytes() == np.array(y.view(mx.uint8)).tobytes()


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.float16, dt.int8, dt.bool_, dt.complex64], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(64, 3), (100, 16), (4111, 7), (9000, 33)])
@pytest.mark.parametrize("name", REDUCED)
def test_few_columns_are_reduced_in_the_order_of_rows(name: str, rows: int, columns: int, dtype: Dtype) -> None:
    if name == "var" and not dtype.is_float:
        return
    x, reduced = rows_of_few(dtype, rows, columns), REDUCED[name]
    for kind, view in VIEWS.items():
        down = mx.compile(lambda x, view=view: reduced(view(x), 0))(x)
        along = reduced(mx.contiguous(mx.transpose(view(x))), 1)
        assert same_bits(down, along), kind


@pytest.mark.parametrize("columns", [65, 100, 700])
@pytest.mark.parametrize("rows", [1, 3, 16, 17, 64, 65, 203, 4099])
def test_what_is_exact_in_every_order_is_reduced_across_rows(rows: int, columns: int) -> None:
    """Integers and places of extremes have one result for each column, in registers or in scratch."""
    x = np.random.default_rng(rows).integers(-100, 100, (rows, columns))
    for dtype in (np.int8, np.int32, np.int64, np.bool_):
        given = x.astype(dtype)
        wide = np.int32 if given.itemsize == 1 else dtype
        np.testing.assert_array_equal(np.array(mx.sum(mx.array(given), axis=0)), given.sum(0, dtype=wide))
        np.testing.assert_array_equal(np.array(mx.max(mx.array(given), axis=0)), given.max(0))
        np.testing.assert_array_equal(np.array(mx.any(mx.array(given) != 0, axis=0)), given.any(0))
    real = x.astype(np.float32)
    real[rows // 2, ::7] = np.nan
    np.testing.assert_array_equal(np.array(mx.argmax(mx.array(real), axis=0)), real.argmax(0))
    np.testing.assert_array_equal(np.array(mx.argmin(mx.array(real[::-1]), axis=0)), real[::-1].argmin(0))


@pytest.mark.parametrize("columns", [2, 5, 16, 20])
def test_few_columns_of_what_is_computed_and_stored(columns: int) -> None:
    x = rows_of_few(dt.float32, 5000, columns)
    row, column = x[0, 1:-1], x[:, :1]

    def scaled(x: mx.array, row: mx.array, column: mx.array) -> mx.array:
        return mx.exp(x[:, 1:-1] * row) + column

    @mx.compile
    def both(x: mx.array, row: mx.array, column: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        y = scaled(x, row, column)
        return y, mx.sum(y, axis=0) * row, mx.argmin(y, axis=0)

    y = scaled(x, row, column)
    turned = mx.contiguous(mx.transpose(y))
    wanted = (y, mx.sum(turned, axis=1) * row, mx.argmin(turned, axis=1))
    assert all(same_bits(a, b) for a, b in zip(both(x, row, column), wanted, strict=True))


def test_few_columns_of_a_batch() -> None:
    x = mx.contiguous(mx.moveaxis(rows_of_few(dt.float32, 300, 40)[:, 1:-1].reshape(300, 8, 5), 1, 0))
    assert same_bits(mx.sum(x, axis=1), mx.sum(mx.contiguous(mx.swapaxes(x, 1, 2)), axis=2))


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64, dt.bfloat16, dt.complex64], ids=str)
@pytest.mark.parametrize("count", [1, 15, 17, 4095, 4096, 8192, 70001])
def test_sums_of_equal_elements_are_sums(count: int, dtype: Dtype) -> None:
    x = rows_of_few(dtype, 1, max(3, 70_000 // count))[0]
    repeated = mx.contiguous(mx.broadcast_to(x, (count, x.size)))
    mx.eval(repeated)
    for reduced in (REDUCED["sum"], REDUCED["var"]) if dtype.is_float else (REDUCED["sum"],):
        short = mx.compile(lambda x, reduced=reduced: reduced(mx.broadcast_to(x, (count, x.size)), 0))(x)
        assert same_bits(short, reduced(repeated, 0))


def test_equal_elements_apart_are_summed_group_by_group() -> None:
    x = rows_of_few(dt.float32, 1, 1)[0]
    repeated = mx.contiguous(mx.broadcast_to(x, (100, 3, 150, 3)))
    mx.eval(repeated)
    for axes in ((0, 1), (0, 2), (1, 2), (0, 1, 2)):
        assert same_bits(mx.sum(mx.broadcast_to(x, (100, 3, 150, 3)), axis=axes), mx.sum(repeated, axis=axes))


def test_repeats_between_axes_of_one_element_cost_nothing() -> None:
    program = str(explain(lambda x: mx.sum(mx.broadcast_to(x, (100_000, 1)), axis=0), mx.array([3])))
    assert "reducing axis" not in program


LONG_TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("name", LONG_TYPES)
def test_places_in_long_rows(name: str) -> None:
    """A long row is searched block by block. The first of equals counts, and the first NaN."""
    rng, n = np.random.default_rng(5), 9 * 4096 + 131
    if name.startswith("f"):
        plain = rng.standard_normal(n).astype(name)
        zeros, nans, least = np.zeros(n, name), plain.copy(), np.full(n, -np.inf, name)
        zeros[5000], nans[[n - 7, n - 1]] = -0.0, np.nan
        rows = [plain, zeros, nans, least]
    else:
        ends = np.iinfo(name)
        plain, late = rng.integers(ends.min, ends.max, n, name, endpoint=True), np.full(n, 3, name)
        late[[n - 3, n - 1]], late[[4095, 4097]] = ends.max, ends.min
        rows = [plain, late, np.full(n, ends.min, name), np.full(n, ends.max, name)]
    for row in (*rows, *(r[::-1] for r in rows)):
        x = mx.array(row)
        assert int(mx.argmax(x)) == row.argmax()
        assert int(mx.argmin(x)) == row.argmin()
        assert int(mx.argmax(x[::-1])) == row[::-1].argmax()
    table = np.stack(rows)
    assert np.array_equal(np.array(mx.argmax(mx.array(table), axis=1)), table.argmax(1))


@pytest.mark.parametrize("name", ["bool_", *(name for name in LONG_TYPES if "int" in name)])
def test_what_is_exact_in_long_rows(name: str) -> None:
    """Integers and truths are taken in by whole registers, whatever their width."""
    rng = np.random.default_rng(6)
    for n in (1 << 15, 9 * 4096 + 131):
        x = rng.integers(0, 2 if name == "bool_" else 100, n).astype(name)
        ours = mx.array(x)
        assert int(ours.max()) == x.max()
        assert int(ours.min()) == x.min()
        assert int(ours.sum()) == x.sum()
        assert bool(mx.all(ours)) == x.all()
        assert bool(mx.any(ours[::-1])) == x.any()


@pytest.mark.parametrize("dtype", [dt.float32, dt.float16, dt.float64, dt.int8, dt.complex64, dt.bool_], ids=str)
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((3, 6, 2, 5, 2, 4), (2, 4)), ((3, 4, 5, 3), (1, 3)), ((2, 3, 37, 2), (0, 3)), ((2, 5, 3, 2, 2, 2), (0, 3, 5))],
)
def test_extremes_of_windows(shape: tuple[int, ...], axes: tuple[int, ...], dtype: Dtype) -> None:
    """Pooling: short axes that are not neighbours."""
    x = np.random.default_rng(len(shape)).integers(-50, 50, shape).astype(dtype.np)
    if dtype in (dt.float32, dt.float64):
        x[..., 0][x[..., 0] > 40] = np.nan
    ours = mx.array(x)
    for name in ("max", "min"):
        expected, run = getattr(x, name)(axes), getattr(mx, name)
        np.testing.assert_array_equal(np.array(run(ours, axis=axes)), expected)
        fused = mx.compile(lambda x, run=run: run(mx.abs(x) if x.dtype != mx.bool_ else ~x, axis=axes))(ours)
        single = run(mx.abs(ours) if dtype is not dt.bool_ else ~ours, axis=axes)
        np.testing.assert_array_equal(np.array(fused), np.array(single))


def test_pooling_is_one_kernel() -> None:
    x = mx.zeros((4, 8, 2, 8, 2, 32))
    assert len(explain(lambda x: mx.maximum(mx.max(x, axis=(2, 4)), 0) + 1, x).facts.kernels) == 1


@pytest.mark.parametrize("name", ["sum", "max", "argmax", "var"])
def test_few_and_many_rows_of_one_program(name: str) -> None:
    """A function of any number of rows has a kernel for few of them and one for many."""
    function = mx.compile(lambda x: getattr(mx, name)(x, axis=0), shapeless=True)
    for rows in (5, 16, 17, 9, 64, 65, 4100, 1):
        x = mx.array(np.random.default_rng(rows).standard_normal((rows, 70)).astype(np.float32))
        assert mx.array_equal(function(x), getattr(mx, name)(x, axis=0))
