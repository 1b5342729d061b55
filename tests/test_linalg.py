"""`mx.linalg` as users call it: values against NumPy in double precision, batches, any memory layout, threads,
gradients, edges, errors. (The rules of each primitive are tested in test_contract.py, failures in test_failing.py.)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import LAYOUTS, closed, place, same_bits, values_of
from weft import dtypes as dt
from weft import program
from weft.array import array
from weft.dtypes import Dtype
from weft.passes.pipeline import plan
from weft.primitives.linalg import Cholesky, Lu
from weft.runtime import blas
from weft.targets.cpu.target import CPU

DTYPES = (dt.float32, dt.float64, dt.complex64, dt.complex128)
SIZES = (1, 2, 3, 5, 8, 17, 40)


def random(*shape: int, dtype: Dtype = dt.float64, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng((seed, *shape))
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype.is_complex else x).astype(dtype.np)


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(x, -1, -2))


def positive(*shape: int, dtype: Dtype = dt.float64, seed: int = 0) -> np.ndarray:
    """Hermitian, positive definite, well conditioned."""
    x = random(*shape, dtype=dtype, seed=seed)
    return (x @ adjoint(x) + shape[-1] * np.eye(shape[-1])).astype(dtype.np)


def regular(*shape: int, dtype: Dtype = dt.float64, seed: int = 0) -> np.ndarray:
    """Far from singular, and so are its triangles."""
    return (random(*shape, dtype=dtype, seed=seed) + 2 * shape[-1] * np.eye(shape[-1])).astype(dtype.np)


def given_as(x: np.ndarray) -> array:
    return mx.array(x, dt.from_numpy(x.dtype))


def wide(x: Any) -> np.ndarray:
    values = np.array(x)
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def close(found: Any, expected: np.ndarray, dtype: Dtype, factor: float = 16) -> None:
    """Within some units of the last place of the largest element, for each row and column that takes part."""
    values = wide(found)
    assert values.shape == expected.shape
    if not expected.size:
        return
    n = max(expected.shape[-2:]) if expected.ndim > 1 else expected.shape[-1] if expected.ndim else 1
    allowed = factor * n * float(np.finfo(dtype.np).eps) * float(np.abs(expected).max())
    assert float(np.abs(values - expected).max()) <= allowed


FUNCTIONS: dict[str, Callable[[array, array], tuple[array, ...]]] = {
    "cholesky": lambda a, b: (mx.linalg.cholesky(a),),
    "qr": lambda a, b: mx.linalg.qr(a),
    "lu": lambda a, b: mx.linalg.lu(a),
    "lu_factor": lambda a, b: mx.linalg.lu_factor(a),
    "solve": lambda a, b: (mx.linalg.solve(a, b),),
    "solve_triangular": lambda a, b: (mx.linalg.solve_triangular(a, b),),
    "inv": lambda a, b: (mx.linalg.inv(a),),
    "tri_inv": lambda a, b: (mx.linalg.tri_inv(a, upper=True),),
    "cholesky_inv": lambda a, b: (mx.linalg.cholesky_inv(a),),
    "det": lambda a, b: (mx.linalg.det(a), *mx.linalg.slogdet(a)),
    "eigh": lambda a, b: (*mx.linalg.eigh(a), mx.linalg.eigvalsh(a, "U")),
    "eig": lambda a, b: (*mx.linalg.eig(a), mx.linalg.eigvals(a)),
    "svd": lambda a, b: (*mx.linalg.svd(a), mx.linalg.svd(b, compute_uv=False)),
    "pinv": lambda a, b: (mx.linalg.pinv(b),),
}


# ---- values ----


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("n", SIZES)
def test_cholesky(n: int, dtype: Dtype) -> None:
    a = positive(2, n, n, dtype=dtype)
    lower, upper = mx.linalg.cholesky(given_as(a)), mx.linalg.cholesky(given_as(a), upper=True)
    assert lower.dtype is upper.dtype is dtype
    close(lower, np.linalg.cholesky(wide(a)), dtype)
    close(upper, adjoint(np.linalg.cholesky(wide(a))), dtype)


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_reads_one_triangle(upper: bool) -> None:
    a = positive(6, 6)
    stained = np.where(np.tri(6, dtype=bool).T if upper else np.tri(6, dtype=bool), a, np.nan)
    found = mx.linalg.cholesky(given_as(stained), upper)
    assert same_bits(values_of(found), values_of(mx.linalg.cholesky(given_as(a), upper)))


def test_nan_in_nan_out() -> None:
    """A NaN is no error, and stays within its matrix."""
    a = positive(3, 4, 4)
    a[1, 2, 2] = np.nan
    found = np.array(mx.linalg.cholesky(given_as(a)))
    assert np.isnan(found[1, 2, 2])
    assert np.isnan(found[1, 3, 3])
    np.testing.assert_array_equal(np.isnan(found[[0, 2]]), False)
    q, r = mx.linalg.qr(given_as(a))
    assert np.isnan(np.array(q)[1]).any()
    assert np.isnan(np.array(r)[1]).any()
    assert not np.isnan(np.array(r)[2]).any()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("n", [3, 12])
def test_eigenvalues_grow_with_the_matrix(n: int, dtype: Dtype) -> None:
    """A power of two is exact, however large or small."""
    a = random(2, n, n, dtype=dtype)
    expected = [np.asarray(x) for x in (*mx.linalg.eig(given_as(a)), mx.linalg.eigvals(given_as(a)))]
    for power in (2.0**100, 2.0**-60, 2.0**-100):
        w, v, values = (
            np.asarray(x) for x in (*mx.linalg.eig(given_as(a) * power), mx.linalg.eigvals(given_as(a) * power))
        )
        for found, other in zip((w / power, v, values / power), expected, strict=True):
            assert np.array_equal(found.astype(other.dtype), other)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (7, 3), (3, 7), (40, 17), (17, 40), (2, 3, 5, 4)], ids=str)
def test_qr(shape: tuple[int, ...], dtype: Dtype) -> None:
    a = random(*shape, dtype=dtype)
    q, r = mx.linalg.qr(given_as(a))
    assert q.dtype is r.dtype is dtype
    close(wide(q) @ wide(r), wide(a), dtype)
    k = min(shape[-2:])
    close(adjoint(wide(q)) @ wide(q), np.broadcast_to(np.eye(k), (*shape[:-2], k, k)), dtype)
    np.testing.assert_array_equal(np.tril(np.array(r), -1), 0)
    expected = np.linalg.qr(wide(a))
    close(q, expected[0], dtype, 256)
    close(r, expected[1], dtype, 256)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_triangular_systems(n: int, upper: bool, dtype: Dtype) -> None:
    a, b = regular(2, n, n, dtype=dtype), random(2, n, 3, dtype=dtype)
    t = np.triu(wide(a)) if upper else np.tril(wide(a))
    close(mx.linalg.solve_triangular(given_as(a), given_as(b), upper=upper), np.linalg.solve(t, wide(b)), dtype)
    close(mx.linalg.tri_inv(given_as(a), upper), np.linalg.inv(t), dtype)


def test_right_sides_of_any_shape() -> None:
    a = np.tril(regular(2, 3, 4, 4))
    for b in (random(4), random(4, 2), random(3, 4, 2), random(2, 1, 4, 5), random(6, 1, 1, 4, 2)):
        expected = np.linalg.solve(a, b[:, None])[..., 0] if b.ndim == 1 else np.linalg.solve(a, b)
        close(mx.linalg.solve_triangular(given_as(a), given_as(b)), expected, dt.float64)
        one = np.linalg.solve(a[0, 0], b)
        close(mx.linalg.solve_triangular(given_as(a[0, 0]), given_as(b)), one, dt.float64)


def test_dtypes_promote() -> None:
    a, b = np.tril(regular(3, 3, dtype=dt.float32)), random(3, dtype=dt.complex64)
    assert mx.linalg.solve_triangular(given_as(a), given_as(b)).dtype is dt.complex64
    assert mx.linalg.solve_triangular(given_as(a), mx.array([1, 2, 3])).dtype is dt.float32
    assert mx.linalg.solve_triangular(given_as(a), given_as(random(3))).dtype is dt.float64


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("n", SIZES)
def test_systems(n: int, dtype: Dtype) -> None:
    a, b = regular(2, n, n, dtype=dtype), random(2, n, 3, dtype=dtype)
    assert mx.linalg.solve(given_as(a), given_as(b)).dtype is dtype
    close(mx.linalg.solve(given_as(a), given_as(b)), np.linalg.solve(wide(a), wide(b)), dtype)
    close(mx.linalg.inv(given_as(a)), np.linalg.inv(wide(a)), dtype)
    factor = np.tril(a)
    close(mx.linalg.cholesky_inv(given_as(a)), np.linalg.inv(wide(factor) @ adjoint(wide(factor))), dtype)
    factor = np.triu(a)
    close(mx.linalg.cholesky_inv(given_as(a), upper=True), np.linalg.inv(adjoint(wide(factor)) @ wide(factor)), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (7, 3), (3, 7), (40, 17), (2, 3, 5, 4)], ids=str)
def test_lu(shape: tuple[int, ...], dtype: Dtype) -> None:
    a = random(*shape, dtype=dtype)
    p, low, up = mx.linalg.lu(given_as(a))
    assert (p.dtype, low.dtype, up.dtype) == (dt.uint32, dtype, dtype)
    close(np.take_along_axis(wide(low), np.array(p)[..., None].astype(int), -2) @ wide(up), wide(a), dtype)
    np.testing.assert_array_equal(np.triu(np.array(low), 1), 0)
    np.testing.assert_array_equal(np.tril(np.array(up), -1), 0)
    packed, pivots = mx.linalg.lu_factor(given_as(a))
    k = min(shape[-2:])
    close(packed, np.tril(wide(low), -1) @ np.eye(k, shape[-1]) + np.eye(shape[-2], k) @ wide(up), dtype)
    assert pivots.shape == (*shape[:-2], k)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 8])
def test_determinants(n: int, dtype: Dtype) -> None:
    a = random(3, n, n, dtype=dtype)
    close(mx.linalg.det(given_as(a))[:, None], np.linalg.det(wide(a))[:, None], dtype, 64 * max(n, 1))
    sign, size = mx.linalg.slogdet(given_as(a))
    assert (sign.dtype, size.dtype) == (dtype, dt.real_of(dtype))
    expected = np.linalg.slogdet(wide(a))
    close(sign[:, None], expected[0][:, None], dtype, 64)
    close(size[:, None], expected[1][:, None], dtype, 64 * max(n, 1))


def test_determinants_of_singular_matrices_and_of_other_dtypes() -> None:
    assert mx.linalg.det(mx.ones((3, 3))).item() == 0
    sign, size = mx.linalg.slogdet(mx.ones((3, 3)))
    assert (sign.item(), size.item()) == (0, -np.inf)
    for dtype, result in ((mx.int32, mx.float32), (mx.float16, mx.float16), (mx.bfloat16, mx.bfloat16)):
        x = mx.array([[1, 2], [3, 4]]).astype(dtype)
        assert mx.linalg.det(x).dtype is result
        assert mx.linalg.det(x).item() == pytest.approx(-2)
        assert mx.linalg.slogdet(x)[1].dtype is result


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("uplo", ["L", "U"])
@pytest.mark.parametrize("n", SIZES)
def test_hermitian_eigenvalues(n: int, uplo: str, dtype: Dtype) -> None:
    a = positive(2, n, n, dtype=dtype)
    stained = np.tril(a) + 9 * np.triu(np.ones((n, n)), 1) if uplo == "L" else np.triu(a)
    w, v = mx.linalg.eigh(given_as(stained.astype(dtype.np)), uplo)
    assert (w.dtype, v.dtype) == (dt.real_of(dtype), dtype)
    close(w, np.linalg.eigvalsh(wide(a)), dtype)
    close(mx.linalg.eigvalsh(given_as(a), uplo), np.linalg.eigvalsh(wide(a)), dtype)
    close((wide(v) * wide(w)[:, None]) @ adjoint(wide(v)), wide(a), dtype)
    close(adjoint(wide(v)) @ wide(v), np.broadcast_to(np.eye(n), (2, n, n)), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("n", SIZES)
def test_eigenvalues(n: int, dtype: Dtype) -> None:
    a = random(2, n, n, dtype=dtype)
    w, v = mx.linalg.eig(given_as(a))
    assert w.dtype is v.dtype is dt.complex_of(dtype)
    close(wide(a) @ wide(v), wide(v) * wide(w)[:, None], dtype, 64)
    close(np.linalg.norm(wide(v), axis=-2), np.ones((2, n)), dtype)
    for found, matrix in zip(np.array(mx.linalg.eigvals(given_as(a))), wide(a), strict=True):
        close(np.poly(wide(found))[None], np.poly(matrix)[None] + 0j, dtype, 64 * n)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(1, 1), (4, 4), (7, 3), (3, 7), (40, 17), (2, 3, 5, 4)], ids=str)
def test_svd(shape: tuple[int, ...], dtype: Dtype) -> None:
    a = random(*shape, dtype=dtype)
    u, s, vt = mx.linalg.svd(given_as(a))
    *lead, m, n = shape
    k = min(m, n)
    assert (u.shape, s.shape, vt.shape) == ((*lead, m, m), (*lead, k), (*lead, n, n))
    assert (u.dtype, s.dtype, vt.dtype) == (dtype, dt.real_of(dtype), dtype)
    close((wide(u)[..., :k] * wide(s)[..., None, :]) @ wide(vt)[..., :k, :], wide(a), dtype)
    for x in (wide(u), wide(vt)):
        close(adjoint(x) @ x, np.broadcast_to(np.eye(x.shape[-1]), x.shape), dtype)
    close(s, np.linalg.svd(wide(a), compute_uv=False), dtype)
    close(mx.linalg.svd(given_as(a), compute_uv=False), np.linalg.svd(wide(a), compute_uv=False), dtype)
    close(mx.linalg.pinv(given_as(a)), np.linalg.pinv(wide(a)), dtype, 512)


def test_pinv_of_matrices_without_full_rank() -> None:
    a = random(2, 5, 2) @ random(2, 2, 4)
    close(mx.linalg.pinv(given_as(a)), np.linalg.pinv(a), dt.float64, 512)
    np.testing.assert_array_equal(np.array(mx.linalg.pinv(mx.zeros((3, 2)))), np.zeros((2, 3)))


NORMS: list[tuple[Any, Any]] = [
    *((order, axis) for order in (None, 0, 1, 2, 3, -1, -2, 0.5, np.inf, -np.inf) for axis in (0, -1, (1,))),
    *((o, axis) for o in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf) for axis in ((0, 1), (1, 0), (2, 0))),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [dt.float32, dt.complex128], ids=lambda d: d.name)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("order", "axis"), NORMS, ids=str)
def test_norms(order: Any, axis: Any, keepdims: bool, dtype: Dtype) -> None:
    a = random(3, 4, 2, dtype=dtype)
    found = mx.linalg.norm(given_as(a), order, axis, keepdims)
    single = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
    expected = np.linalg.norm(wide(a), order, single, keepdims)
    assert found.dtype is dt.real_of(dtype)
    np.testing.assert_allclose(np.array(found), expected, rtol=64 * float(np.finfo(dtype.np).eps))


def test_norms_of_everything() -> None:
    a = random(2, 3, 4)
    np.testing.assert_allclose(mx.linalg.norm(given_as(a)).item(), np.sqrt((a * a).sum()))
    assert mx.linalg.norm(given_as(a), keepdims=True).shape == (1, 1, 1)
    assert mx.linalg.norm(mx.array(-3.0)).item() == 3
    assert mx.linalg.norm(mx.array([3, 4])).dtype is dt.float32
    assert mx.linalg.norm(mx.array([3, 4], mx.float16)).dtype is dt.float16
    assert mx.linalg.norm(mx.ones((2, 2), mx.float16), "nuc").dtype is dt.float16


def test_other_norms() -> None:
    a = random(2, 3, 4)
    np.testing.assert_allclose(mx.linalg.vector_norm(given_as(a)).item(), np.linalg.norm(a.reshape(-1)))
    for order in (0, 1, 2, 3, np.inf):
        for axis in ((0, 2), 1, (-1, 0), None):
            for keepdims in (False, True):
                found = mx.linalg.vector_norm(given_as(a), axis=axis, keepdims=keepdims, ord=order)
                expected = np.linalg.vector_norm(a, axis=axis, keepdims=keepdims, ord=order)
                np.testing.assert_allclose(np.array(found), expected, rtol=1e-12)
    for order in ("fro", "nuc", 1, -2, np.inf):
        found = mx.linalg.matrix_norm(given_as(a), ord=order, keepdims=True)
        np.testing.assert_allclose(np.array(found), np.linalg.matrix_norm(a, ord=order, keepdims=True), rtol=1e-12)


def test_ranks() -> None:
    a = np.stack([random(4, 2) @ random(2, 5, seed=s) for s in range(3)])
    a[1] = 0
    np.testing.assert_array_equal(np.array(mx.linalg.matrix_rank(given_as(a))), np.linalg.matrix_rank(a))
    assert mx.linalg.matrix_rank(given_as(np.diag([1.0, 0.1, 0.01])), rtol=0.05).item() == 2
    assert mx.linalg.matrix_rank(mx.zeros((0, 3))).item() == 0


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_least_squares(dtype: Dtype) -> None:
    for shape in ((6, 3), (3, 6), (4, 4)):
        a, b = random(*shape, dtype=dtype), random(shape[0], 2, dtype=dtype)
        x, residuals, rank, s = mx.linalg.lstsq(given_as(a), given_as(b))
        expected = np.linalg.lstsq(wide(a), wide(b))
        close(x, expected[0], dtype, 256)
        assert rank.item() == expected[2]
        close(s[None], expected[3][None], dtype)
        if shape[0] > shape[1]:
            close(residuals[None], expected[1][None], dtype, 256)
        close(mx.linalg.lstsq(given_as(a), given_as(b[:, 0]))[0], expected[0][:, 0], dtype, 256)


@pytest.mark.parametrize("n", [-3, -1, 0, 1, 2, 5, 8, 13])
def test_powers(n: int) -> None:
    a = regular(2, 3, 3)
    np.testing.assert_allclose(
        np.array(mx.linalg.matrix_power(given_as(a), n)), np.linalg.matrix_power(a, n), rtol=1e-10
    )
    whole = mx.array([[1, 1], [0, 2]])
    if n >= 0:
        assert (
            mx.linalg.matrix_power(whole, n).tolist() == np.linalg.matrix_power(np.array([[1, 1], [0, 2]]), n).tolist()
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_exponentials(dtype: Dtype) -> None:
    """Of matrices of all sizes in one batch, each squared as often as it takes."""
    scale = np.array([1e-3, 0.1, 1.0, 3.0, 10.0, 30.0])[:, None, None]
    a = (scale * random(6, 5, 5, dtype=dtype) / 5).astype(dtype.np)
    found = np.array(mx.linalg.expm(given_as(a)))
    for x, y in zip(found, [scipy.linalg.expm(m) for m in wide(a)], strict=True):
        close(x, y, dtype, 1024)
    one = np.array(mx.linalg.expm(given_as(a[4])))
    assert same_bits(one, found[4])
    assert mx.linalg.expm(mx.zeros((0, 3, 3))).shape == (0, 3, 3)
    assert mx.linalg.expm(mx.zeros((2, 0, 0))).shape == (2, 0, 0)


def test_gradients_of_exponentials() -> None:
    for size in (0.1, 4.0):
        a = size * random(3, 3)
        weights = given_as(random(3, 3, seed=2))
        check_gradient(lambda a, weights=weights: (mx.linalg.expm(a) * weights).sum(), a)


def test_cross() -> None:
    a, b = random(4, 3), random(4, 3, seed=1)
    np.testing.assert_allclose(np.array(mx.linalg.cross(given_as(a), given_as(b))), np.cross(a, b))
    np.testing.assert_allclose(np.array(mx.linalg.cross(given_as(a.T), given_as(b.T), axis=0)), np.cross(a, b).T)
    np.testing.assert_allclose(np.array(mx.linalg.cross(given_as(a), given_as(b[0]))), np.cross(a, b[0]))
    flat = np.cross(np.pad(a[:, :2], [(0, 0), (0, 1)]), b)
    np.testing.assert_allclose(np.array(mx.linalg.cross(given_as(a[:, :2]), given_as(b))), flat)
    assert mx.linalg.cross(mx.array([1, 2]), mx.array([3, 4])).tolist() == [0, 0, -2]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 3, 3), (2, 0, 0)], ids=str)
def test_nothing(name: str, shape: tuple[int, ...]) -> None:
    for x in FUNCTIONS[name](mx.zeros(shape), mx.zeros((*shape[:-1], 2))):
        assert x.shape[: len(shape) - 2] == shape[:-2]
        mx.eval(x)


def test_matrices_without_rows_or_columns() -> None:
    for shape in ((3, 0), (0, 3), (2, 0, 3)):
        *lead, m, n = shape
        x = mx.zeros(shape)
        q, r = mx.linalg.qr(x)
        assert (q.shape, r.shape) == ((*lead, m, 0), (*lead, 0, n))
        u, s, vt = mx.linalg.svd(x)
        for found, size in ((u, m), (vt, n)):
            np.testing.assert_array_equal(np.array(found), np.broadcast_to(np.eye(size), (*lead, size, size)))
        assert mx.linalg.pinv(x).shape == (*lead, n, m)
        p, low, up = mx.linalg.lu(x)
        np.testing.assert_array_equal(np.array(p), np.broadcast_to(np.arange(m), (*lead, m)))
        mx.eval(q, r, s, low, up)


@pytest.mark.parametrize("name", ["eigh", "eig", "svd", "pinv", "inv", "det", "qr", "lu"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [dt.float32, dt.complex128], ids=lambda d: d.name)
def test_matrices_that_are_not_finite(name: str, bad: float, dtype: Dtype) -> None:
    """They have an answer at once, NaN at most, and their neighbours in a batch do not notice."""
    a = positive(3, 4, 4, dtype=dtype)
    good = [np.array(x) for x in FUNCTIONS[name](given_as(a), given_as(a))]
    a[1, 2, 2] = bad
    for x, y in zip(FUNCTIONS[name](given_as(a), given_as(a)), good, strict=True):
        found = np.array(x)
        np.testing.assert_array_equal(found[[0, 2]], y[[0, 2]])
        if name in ("eigh", "eig", "svd"):
            assert np.isnan(found[1]).all()


# ---- the same bits ----


@given(st.sampled_from(sorted(LAYOUTS)), st.sampled_from(DTYPES), st.integers(1, 12))
def test_bits_do_not_depend_on_the_layout(layout: str, dtype: Dtype, n: int) -> None:
    arrange, shift = LAYOUTS[layout]
    if layout.startswith("repeated"):
        return
    a, b = positive(3, n, n, dtype=dtype), random(3, n, 2, dtype=dtype)
    x, y = place(arrange(a), shift), place(arrange(b), shift)
    for f in FUNCTIONS.values():
        for found, expected in zip(f(x, y), f(given_as(a), given_as(b)), strict=True):
            assert same_bits(values_of(found), values_of(expected))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("n", [3, 70])
def test_bits_do_not_depend_on_batch_threads_or_compilation(name: str, n: int, team: Callable[[int], None]) -> None:
    f = FUNCTIONS[name]
    a, b = given_as(positive(7, n, n, dtype=dt.float32)), given_as(random(7, n, 2, dtype=dt.float32))
    whole = [values_of(x) for x in f(a, b)]
    alone = [[values_of(x) for x in f(a[i], b[i])] for i in range(7)]
    shapeless = mx.compile(f, shapeless=True)
    shapeless(a[:2], b[:2])
    for threads in (1, 3):
        team(threads)
        for run in (f, mx.compile(f), mx.vmap(f), shapeless):
            for x, expected in zip(run(a, b), whole, strict=True):
                assert same_bits(values_of(x), expected)
        for k, expected in enumerate(whole):
            assert all(same_bits(alone[i][k], expected[i]) for i in range(7))


def test_the_library_keeps_its_threads() -> None:
    """It is told to use one while it computes for us, and several again."""
    before = blas.set_threads(2)
    try:
        one = values_of(mx.linalg.cholesky(given_as(positive(300, 300))))
        assert blas.get_threads() == 2
        blas.set_threads(1)
        assert same_bits(values_of(mx.linalg.cholesky(given_as(positive(300, 300)))), one)
    finally:
        blas.set_threads(before)


# ---- gradients ----


def test_gradients_of_hermitian_matrices_are_hermitian() -> None:
    """That of log det a is the inverse of a."""
    a = positive(5, 5)
    gradient = mx.grad(lambda a: 2 * mx.log(mx.diagonal(mx.linalg.cholesky(a))).sum())(given_as(a))
    np.testing.assert_allclose(np.array(gradient), np.linalg.inv(a), rtol=1e-10)


def test_a_gaussian_process() -> None:
    """The gradient of a marginal likelihood by its parameter, and its second derivative, against differences."""
    x, y = np.linspace(0, 1, 8), np.sin(np.linspace(0, 5, 8))

    def loss(scale: Any, m: Any, np_: Any) -> Any:
        distance = np_.array(np.square(x[:, None] - x[None]))
        if m is mx:
            distance, noise, target = (given_as(np.asarray(v)) for v in (distance, 0.1 * np.eye(8), y[:, None]))
        else:
            noise, target = 0.1 * np.eye(8), y[:, None]
        factor = m.linalg.cholesky(m.exp(-distance / scale) + noise)
        z = m.linalg.solve_triangular(factor, target) if m is mx else np.linalg.solve(factor, target)
        return 0.5 * (z * z).sum() + m.log(m.diagonal(factor)).sum()

    at, step = 0.3, 1e-4
    point = mx.array(at, mx.float64)
    value = mx.value_and_grad(lambda s: loss(s, mx, np))
    second = mx.grad(lambda s: value(s)[1])(point)
    plain = [loss(at + k * step, np, np) for k in (-1, 0, 1)]
    np.testing.assert_allclose(value(point)[0].item(), plain[1], rtol=1e-12)
    np.testing.assert_allclose(value(point)[1].item(), (plain[2] - plain[0]) / (2 * step), rtol=1e-6)
    np.testing.assert_allclose(second.item(), (plain[2] - 2 * plain[1] + plain[0]) / step**2, rtol=1e-4)


def test_least_squares_by_qr() -> None:
    """Gradients flow through both results: those of a solution, against the normal equations."""
    a, b = random(6, 3), random(6, 1)

    def solution(a: array) -> array:
        q, r = mx.linalg.qr(a)
        return (mx.linalg.solve_triangular(r, q.T @ given_as(b), upper=True) * mx.array([[1.0], [2.0], [-1.0]])).sum()

    def expected(a: np.ndarray) -> float:
        return float((np.linalg.lstsq(a, b)[0] * np.array([[1.0], [2.0], [-1.0]])).sum())

    gradient = np.array(mx.grad(solution)(given_as(a)))
    move, step = random(6, 3, seed=4), 1e-6
    slope = (expected(a + step * move) - expected(a - step * move)) / (2 * step)
    np.testing.assert_allclose((gradient * move).sum(), slope, rtol=1e-7)


def differences(f: Callable[[array], array], a: np.ndarray, move: np.ndarray, step: float = 1e-6) -> float:
    up, down = (f(given_as(a + by * move)).item() for by in (step, -step))
    return (up - down) / (2 * step)


def check_gradient(f: Callable[[array], array], a: np.ndarray, move: np.ndarray | None = None) -> None:
    """Reverse and forward mode against differences, along some direction."""
    move = random(*a.shape, dtype=dt.from_numpy(a.dtype), seed=9) if move is None else move
    gradient = np.array(mx.grad(f)(given_as(a)))
    _, (tangent,) = mx.jvp(f, [given_as(a)], [given_as(move)])
    slope = np.real(np.conj(gradient) * move).sum()
    np.testing.assert_allclose(slope, tangent.item(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(slope, differences(f, a, move), rtol=1e-6, atol=1e-8)


def real_of(x: array) -> array:
    return (mx.real(x) if x.dtype.is_complex else x).sum()


@pytest.mark.parametrize("dtype", [dt.float64, dt.complex128], ids=lambda d: d.name)
def test_gradients_of_functions_that_do_not_depend_on_the_choice_of_vectors(dtype: Dtype) -> None:
    """A square root of a Hermitian matrix by its eigenvectors, the nearest unitary matrix by its singular vectors, a
    matrix function by eigenvectors of any matrix, completed bases as projectors."""
    weights = given_as(random(4, 4, dtype=dtype, seed=3))

    def root(a: array) -> array:
        w, v = mx.linalg.eigh(a)
        return real_of(weights * ((v * mx.sqrt(w).astype(v.dtype)) @ mx.conj(v.T)))

    def unitary(a: array) -> array:
        u, _, vt = mx.linalg.svd(a)
        return real_of(weights * (u @ vt))

    def cubed(a: array) -> array:
        w, v = mx.linalg.eig(a)
        return real_of(weights * (v @ mx.diag(w**3) @ mx.linalg.inv(v)))

    def projector(a: array) -> array:
        u, _, _ = mx.linalg.svd(a[:, :2])
        return real_of(weights * (u[:, 2:] @ mx.conj(u[:, 2:].T)))

    a = positive(4, 4, dtype=dtype)
    change = random(4, 4, dtype=dtype, seed=5)
    check_gradient(root, a, change + adjoint(change))
    for f in (unitary, cubed, projector):
        check_gradient(f, random(4, 4, dtype=dtype))


@pytest.mark.parametrize("dtype", [dt.float64, dt.complex128], ids=lambda d: d.name)
@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_gradients_of_matrix_norms(order: Any, dtype: Dtype) -> None:
    check_gradient(lambda a: mx.linalg.norm(a, order), random(4, 3, dtype=dtype))


@pytest.mark.parametrize("dtype", [dt.float64, dt.complex128], ids=lambda d: d.name)
def test_gradients_of_solutions(dtype: Dtype) -> None:
    a, b = regular(3, 3, dtype=dtype), given_as(random(3, 2, dtype=dtype))
    check_gradient(lambda a: real_of(mx.linalg.solve(a, b) ** 2), a)
    check_gradient(lambda a: real_of(mx.linalg.inv(a) ** 2), a)
    check_gradient(lambda a: real_of(mx.linalg.pinv(a[:, :2]) ** 2), a)
    check_gradient(lambda a: real_of(mx.linalg.det(a)), a)
    check_gradient(lambda a: real_of(mx.linalg.slogdet(a)[0] * 2) + mx.linalg.slogdet(a)[1], a)
    check_gradient(lambda a: real_of(mx.abs(mx.linalg.eigvals(a)) ** 2), a)
    change = random(3, 3, dtype=dtype, seed=5)
    check_gradient(lambda a: (mx.linalg.eigvalsh(a) ** 3).sum(), positive(3, 3, dtype=dtype), change + adjoint(change))


def test_the_gradient_of_the_determinant_of_a_singular_matrix() -> None:
    """The cofactors, whatever the rank."""
    for a in (np.ones((3, 3)), np.diag([1.0, 2.0, 0.0]), np.arange(9.0).reshape(3, 3), np.zeros((2, 2))):
        gradient = np.array(mx.grad(mx.linalg.det)(given_as(a)))
        minors = [[np.linalg.det(np.delete(np.delete(a, i, 0), j, 1)) for j in range(len(a))] for i in range(len(a))]
        signs = (-1.0) ** np.add.outer(np.arange(len(a)), np.arange(len(a)))
        np.testing.assert_allclose(gradient, signs * minors, atol=1e-12)


def test_equal_eigenvalues_have_gradients() -> None:
    """Of values alone; those of vectors are not defined."""
    for f in (mx.linalg.eigvalsh, lambda a: mx.linalg.svd(a, compute_uv=False)):
        gradient = np.array(mx.grad(lambda a, f=f: f(a).sum())(given_as(np.eye(3))))
        np.testing.assert_allclose(gradient, np.eye(3), atol=1e-12)


def test_a_factorization_is_shared() -> None:
    """Two solutions, a determinant and their gradients take one factorization."""
    a, b = given_as(regular(4, 4)), given_as(random(4, 1))

    def f(a: array) -> array:
        x, y = mx.linalg.solve(a, b), mx.linalg.solve(a, b + 1)
        return (x * y).sum() + mx.linalg.slogdet(a)[1]

    graph = mx.value_and_grad(f)
    value, gradient = graph(a)
    closed_graph, layouts = closed(value, gradient)
    planned = plan(closed_graph, CPU, layouts)
    assert sum(isinstance(item.group.nodes[0].op, Lu) for item in planned.items) == 1


# ---- errors ----


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: mx.linalg.cholesky(mx.array([1.0])), r"\[linalg.cholesky\] Arrays must have >= 2 dimensions"),
        (lambda: mx.linalg.cholesky(mx.ones((2, 3))), r"\[linalg.cholesky\] .* square .* \(2, 3\)"),
        (lambda: mx.linalg.cholesky(mx.array([[1]])), r"\[linalg.cholesky\] .* float32 .* int32"),
        (lambda: mx.linalg.qr(mx.array([1.0])), r"\[linalg.qr\] .* dimensions"),
        (lambda: mx.linalg.qr(mx.ones((2, 2), mx.float16)), r"\[linalg.qr\] .* float16"),
        (lambda: mx.linalg.tri_inv(mx.ones((2, 3))), r"\[linalg.tri_inv\] .* square"),
        (lambda: mx.linalg.solve_triangular(mx.eye(2), mx.ones(3)), r"solve_triangular\] .* \(2, 2\) .* \(3,\)"),
        (lambda: mx.linalg.solve_triangular(mx.eye(2), mx.array(1.0)), r"solve_triangular\] the right side"),
        (lambda: mx.linalg.solve_triangular(mx.array([[1]]), mx.array([1])), r"solve_triangular\] .* int32"),
        (lambda: mx.linalg.solve(mx.eye(2), mx.ones((3, 1))), r"linalg.solve\] .* \(2, 2\) .* \(3, 1\)"),
        (lambda: mx.linalg.inv(mx.ones((2, 3))), r"linalg.inv\] .* square"),
        (lambda: mx.linalg.det(mx.ones((2, 3))), r"linalg.det\] .* square"),
        (lambda: mx.linalg.det(mx.ones(3)), r"linalg.det\] .* dimensions"),
        (lambda: mx.linalg.eigh(mx.eye(2), "X"), r"linalg.eigh\] UPLO"),
        (lambda: mx.linalg.eigvalsh(mx.ones((2, 3))), r"linalg.eigvalsh\] .* square"),
        (lambda: mx.linalg.eig(mx.array([[1]])), r"linalg.eig\] .* int32"),
        (lambda: mx.linalg.svd(mx.ones(3)), r"linalg.svd\] .* dimensions"),
        (lambda: mx.linalg.norm(mx.ones((2, 2)), "what"), r"linalg.norm\] there is no norm 'what'"),
        (lambda: mx.linalg.norm(mx.ones((2, 2)), 3), r"linalg.norm\] there is no norm 3"),
        (lambda: mx.linalg.norm(mx.ones(2), "fro"), r"linalg.norm\] 'fro' is a norm of matrices"),
        (lambda: mx.linalg.norm(mx.ones((2, 2, 2)), 2), r"linalg.norm\] an array of 3 axes"),
        (lambda: mx.linalg.norm(mx.ones((2, 2, 2)), axis=(0, 1, 2)), r"linalg.norm\] one axis"),
        (lambda: mx.linalg.norm(mx.ones((2, 2)), axis=(0, 0)), r"linalg.norm\] one axis"),
        (lambda: mx.linalg.cross(mx.ones(4), mx.ones(4)), r"linalg.cross\] vectors have 2 or 3"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("solve", lambda a: mx.linalg.solve(a, mx.ones((2, 1), mx.float64))),
        ("solve", lambda a: mx.linalg.solve(a, mx.ones((2,), mx.float64))),
        ("inv", mx.linalg.inv),
        ("tri_inv", lambda a: mx.linalg.tri_inv(a * mx.eye(2))),
        ("cholesky_inv", lambda a: mx.linalg.cholesky_inv(a * mx.eye(2))),
    ],
)
def test_singular_matrices(name: str, call: Callable[[array], array]) -> None:
    a = np.stack([np.eye(2), 2 * np.eye(2), np.zeros((2, 2))])
    with pytest.raises(mx.linalg.LinAlgError, match=rf"\[linalg.{name}\] matrix 2 of the batch is singular.*\(at .*\)"):
        mx.eval(call(given_as(a)))


@pytest.mark.parametrize("call", [
    lambda a: mx.linalg.solve_triangular(a, mx.ones((3, 1), mx.float64)),
    lambda a: mx.linalg.tri_inv(a),
])  # fmt: skip
def test_singular_triangles(call: Callable[[array], array]) -> None:
    a = np.stack([np.eye(3), np.diag([1.0, 0.0, 2.0])])
    with pytest.raises(mx.linalg.LinAlgError, match=r"matrix 1 of the batch is singular: element 1 of its diagonal"):
        mx.eval(call(given_as(a)))


def test_streams_are_accepted() -> None:
    a = given_as(positive(3, 3))
    for stream in (mx.cpu, mx.default_stream(mx.cpu), None):
        mx.eval(
            mx.linalg.cholesky(a, stream=stream),
            mx.linalg.qr(a, stream=stream),
            mx.linalg.tri_inv(a, stream=stream),
            mx.linalg.solve_triangular(a, a, stream=stream),
        )


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.complex64], ids=str)
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("n", [3, 20])
def test_a_quiet_cholesky_factor_is_nan_where_there_is_none(dtype: Any, upper: bool, n: int) -> None:
    good = positive(n, n)
    batch = mx.array(np.stack([good, -good, good * 2]), dtype=dtype)
    quiet = program.apply(Cholesky(upper, quiet=True), batch)
    assert np.all(np.isnan(np.array(quiet[1])))
    for i in (0, 2):
        assert mx.array_equal(quiet[i], mx.linalg.cholesky(batch[i], upper=upper))
    with pytest.raises(np.linalg.LinAlgError, match="not positive definite"):
        mx.eval(mx.linalg.cholesky(batch, upper=upper))
