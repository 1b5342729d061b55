"""Statistics against NumPy in float64, their transforms, sizes that change, and errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.gradients import check_batch, check_derivatives
from weft.dtypes import Dtype

FLOATS = (mx.float16, mx.bfloat16, mx.float32, mx.float64)
NAN = float("nan")


def quiet(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """NumPy warns where there is nothing but NaN."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return function(*args, **options)


def wide(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.complex128 if x.dtype.is_complex else mx.float64))


def holed(shape: tuple[int, ...], seed: int, share: float = 0.3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < share, np.nan, rng.normal(size=shape))


def near(got: mx.array, expected: Any, roundings: float, size: float) -> None:
    np.testing.assert_allclose(wide(got), expected, rtol=0, atol=roundings * float(mx.finfo(got.dtype).eps) * size)


NAN_FUNCTIONS = ("nansum", "nanmean", "nanmax", "nanmin", "nanprod", "nanstd", "nanvar", "nanmedian")


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("name", NAN_FUNCTIONS)
def test_nan_is_left_out(name: str, dtype: Dtype) -> None:
    x = mx.array(holed((5, 7), 1), dtype)
    x[2] = NAN
    for axis, keepdims in ((None, False), (0, False), (1, True), ((0, 1), True)):
        got = getattr(mx, name)(x, axis, keepdims)
        expected = quiet(getattr(np, name), wide(x), axis=axis, keepdims=keepdims)
        assert got.dtype == dtype
        assert got.shape == np.shape(expected)
        near(got, expected, 16, 4.0 if name != "nanprod" else max(1.0, np.nanmax(np.abs(expected))))


@pytest.mark.parametrize("name", NAN_FUNCTIONS)
def test_nan_functions_of_integers_and_of_whole_arrays(name: str) -> None:
    x = np.array([[3, 1, 2], [5, 4, 9]])
    got, plain = getattr(mx, name)(mx.array(x), 1), getattr(mx, name.removeprefix("nan"))(mx.array(x), 1)
    assert got.dtype == plain.dtype
    np.testing.assert_allclose(wide(got), getattr(np, name)(x, axis=1), rtol=1e-6)


def test_degrees_of_freedom() -> None:
    x = np.array([[1.0, NAN, 2.0], [NAN, NAN, 3.0]])
    for name in ("nanvar", "nanstd"):
        expected = quiet(getattr(np, name), x, axis=1, ddof=1)
        np.testing.assert_allclose(wide(getattr(mx, name)(mx.array(x), axis=1, ddof=1)), expected, rtol=1e-6)


def test_gradients_pass_nan_by() -> None:
    x = mx.array([1.0, NAN, 3.0])
    for name in NAN_FUNCTIONS:
        gradient = np.array(mx.grad(getattr(mx, name))(x))
        assert gradient[1] == 0, name
        assert np.isfinite(gradient).all(), name


METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["quantile", "nanquantile"])
@given(data=st.data())
def test_quantiles(name: str, method: str, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 9))
    x = holed((3, n), data.draw(st.integers(0, 99)), data.draw(st.sampled_from([0.0, 0.3, 1.0])))
    q = data.draw(st.lists(st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 0.9, 1.0]), min_size=1, max_size=3))
    axis = data.draw(st.sampled_from([None, 0, 1]))
    keepdims = data.draw(st.booleans())
    expected = quiet(getattr(np, name), x, q, axis=axis, keepdims=keepdims, method=method)
    with_settings = getattr(mx, name)(mx.array(x, mx.float64), q, axis, keepdims, method=method)
    np.testing.assert_allclose(wide(with_settings), expected, rtol=1e-13, atol=1e-13)


def test_parts_of_quantiles() -> None:
    x = np.array([4.0, 1.0, 3.0])
    assert mx.quantile(mx.array(x), 0.5).shape == ()
    assert mx.quantile(mx.array(np.ones((4, 3))), np.full((2, 5), 0.5), axis=0).shape == (2, 5, 3)
    assert mx.percentile(mx.array(x), [25, 75]).tolist() == np.percentile(x, [25, 75]).tolist()
    assert mx.quantile(mx.array([1, 5, 2]), 0.4, method="lower").dtype == mx.int32
    assert mx.quantile(mx.array([1, 5, 2]), 0.4).dtype == mx.float32
    assert np.isnan(mx.quantile(mx.array(x), mx.array([1.5, -0.1])).tolist()).all()
    infinite = mx.quantile(mx.array([1.0, mx.inf, mx.inf]), mx.array([0.0, 0.75, 1.0]))
    assert infinite.tolist() == [1.0, mx.inf, mx.inf]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("density", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"bins": 4}, {"bins": 5, "range": (-0.5, 1.0)}, {"bins": [-1.0, 0.0, 0.1, 2.0]}], ids=str
)
def test_histogram(options: dict[str, Any], density: bool, weighted: bool) -> None:
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(6, 20)), rng.random((6, 20))
    more = {"weights": w} if weighted else {}
    counts, edges = np.histogram(x, **options, density=density, **more)
    ours = {"weights": mx.array(w, mx.float64)} if weighted else {}
    got, at = mx.histogram(mx.array(x, mx.float64), **options, density=density, **ours)
    np.testing.assert_allclose(wide(at), edges, rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(wide(got), counts, rtol=1e-12, atol=1e-12)


def test_histograms_at_the_edges() -> None:
    whole = mx.histogram(mx.array([0, 1, 1, 2, 4]), bins=[0, 1, 2, 4])[0]
    assert whole.tolist() == np.histogram([0, 1, 1, 2, 4], bins=[0, 1, 2, 4])[0].tolist()
    assert whole.dtype == mx.int32
    same, edges = mx.histogram(mx.array([3.0, 3.0]), bins=2)
    assert (same.tolist(), edges.tolist()) == ([0, 2], [2.5, 3.0, 3.5])
    assert mx.histogram(mx.array([NAN, 0.5]), bins=2, range=(0, 1))[0].tolist() == [0, 1]
    empty, edges = mx.histogram(mx.zeros((0,)), bins=2)
    assert (empty.tolist(), edges.tolist()) == ([0, 0], [0.0, 0.5, 1.0])
    gradient = mx.grad(lambda w: mx.histogram(mx.array([0.1, 0.9]), 2, (0, 1), weights=w)[0][1])(mx.ones(2))
    assert gradient.tolist() == [0.0, 1.0]


def test_interp() -> None:
    xs, ys = np.array([0.0, 1.0, 1.0, 3.0, 4.5]), np.array([1.0, -1.0, 2.0, 5.0, 0.0])
    at = np.array([[-1.0, 0.0, 0.25], [1.0, 2.9, 3.0], [4.5, 5.0, NAN]])
    double = [mx.array(v, mx.float64) for v in (at, xs, ys)]
    np.testing.assert_allclose(wide(mx.interp(*double)), np.interp(at, xs, ys), rtol=1e-14)
    ends = mx.interp(*double, left=7.0, right=-8.0)
    np.testing.assert_allclose(wide(ends), np.interp(at, xs, ys, left=7.0, right=-8.0), rtol=1e-14)
    turned, order = np.array([0.5, 3.0, 5.5, 7.0]), [2, 0, 3, 1]
    round_, values = turned[order], np.array([1.0, 4.0, 2.0, 0.0])
    got = mx.interp(double[0], mx.array(round_, mx.float64), mx.array(values, mx.float64), period=6.5)
    np.testing.assert_allclose(wide(got), np.interp(at, round_, values, period=6.5), rtol=1e-13)
    complex_ = mx.interp(mx.array([0.5]), mx.array([0.0, 1.0]), mx.array([0j, 2 + 4j]))
    assert complex_.tolist() == [1 + 2j]
    assert mx.interp(mx.array([0.5, 9.0]), mx.array([1.0]), mx.array([3.0])).tolist() == [3.0, 3.0]
    assert mx.interp(0.5, [0, 1], [0, 10]).item() == 5.0


@pytest.mark.parametrize(
    "options",
    [
        {}, {"rowvar": False}, {"bias": True}, {"ddof": 0}, {"fweights": [1, 2, 0, 3, 1]},
        {"aweights": [0.5, 1.0, 2.0, 0.1, 1.0]},
        {"aweights": [0.5, 1.0, 2.0, 0.1, 1.0], "fweights": [1, 2, 0, 3, 1], "ddof": 1},
    ],
    ids=str,
)  # fmt: skip
def test_cov(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(5, 5)), rng.normal(size=(5, 5))
    for more in ([], [y]):
        got = mx.cov(*(mx.array(v, mx.float64) for v in (x, *more)), **options)
        np.testing.assert_allclose(wide(got), np.cov(x, *more, **options), rtol=1e-12, atol=1e-14)


def test_cov_and_corrcoef_of_vectors_and_complex_numbers() -> None:
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=9), rng.normal(size=9)
    double = [mx.array(v, mx.float64) for v in (x, y)]
    assert mx.cov(double[0]).shape == ()
    np.testing.assert_allclose(wide(mx.cov(double[0])), np.cov(x), rtol=1e-13)
    np.testing.assert_allclose(wide(mx.corrcoef(*double)), np.corrcoef(x, y), rtol=1e-13)
    z = rng.normal(size=(3, 6)) + 1j * rng.normal(size=(3, 6))
    np.testing.assert_allclose(wide(mx.cov(mx.array(z, mx.complex128))), np.cov(z), rtol=1e-13)
    np.testing.assert_allclose(wide(mx.corrcoef(mx.array(z, mx.complex128))), np.corrcoef(z), rtol=1e-13, atol=1e-15)
    assert mx.corrcoef(double[0]).item() == 1.0
    assert mx.cov(mx.array([[1, 2], [3, 5]])).dtype == mx.float32


SMOOTH: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "nanmean": (lambda x: mx.nanmean(x, 1), (3, 5)),
    "nanstd": (lambda x: mx.nanstd(x, 1), (3, 5)),
    "quantile": (lambda x: mx.quantile(x, [0.3, 0.8], axis=1), (3, 5)),
    "nanquantile": (lambda x: mx.nanquantile(x, 0.3, axis=1), (3, 5)),
    "nanmedian": (lambda x: mx.nanmedian(x, 1), (3, 4)),
    "cov": (mx.cov, (3, 5)),
    "corrcoef": (mx.corrcoef, (3, 5)),
    "interp": (lambda x: mx.interp(x, mx.array([-4.0, 0.05, 4.0], mx.float64), x[0, :3]), (3, 5)),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_transforms(name: str) -> None:
    function, shape = SMOOTH[name]
    rng = np.random.default_rng(6)
    check_derivatives(function, rng.normal(size=shape))
    check_batch(function, [1], rng.normal(size=(shape[0], 2, *shape[1:])))
    traced = mx.compile(function, shapeless=True)
    for rows in (shape[0], shape[0] + 2):
        x = mx.array(rng.normal(size=(rows, shape[1])), mx.float64)
        assert mx.array_equal(traced(x), function(x)).item()


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: mx.quantile(mx.ones(3), 1.5), "between 0 and 1"),
        (lambda: mx.percentile(mx.ones(3), [50, 101]), "between 0 and 100"),
        (lambda: mx.quantile(mx.ones(3), 0.5, method="best"), "method is one of"),
        (lambda: mx.quantile(mx.zeros((0,)), 0.5), "size 0"),
        (lambda: mx.quantile(mx.array([1j]), 0.5), "real"),
        (lambda: mx.histogram(mx.ones(3), 0), "one bin"),
        (lambda: mx.histogram(mx.ones(3), mx.ones(1)), "at least two"),
        (lambda: mx.histogram(mx.ones(3), 2, (1, 0)), "lower end"),
        (lambda: mx.histogram(mx.ones(3), 2, weights=mx.ones(2)), "do not fit"),
        (lambda: mx.interp(1.0, mx.ones(3), mx.ones(2)), "one length"),
        (lambda: mx.interp(1.0, [0.0, 1.0], [0.0, 1.0], period=0), "period"),
        (lambda: mx.cov(mx.ones((2, 2, 2))), "vectors and matrices"),
        (lambda: mx.cov(mx.ones((2, 3)), fweights=mx.ones(2)), "one weight"),
        (lambda: mx.nansum(mx.ones(3), axis=2), "out of range"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call()
