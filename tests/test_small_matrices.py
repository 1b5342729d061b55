"""Linear algebra of small matrices: the same bits in any batch and layout, errors within their bounds, failures."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import same_bits
from weft.config import config
from weft.errors import ConfigError
from weft.primitives.base import Primitive
from weft.primitives.linalg import Cholesky, Eigh, Inverse, Lu, Qr, SingularValues, SolveTriangular, Svd

DTYPES = {"float32": np.float32, "float64": np.float64, "complex64": np.complex64, "complex128": np.complex128}
Function = Callable[..., Any]


def of(x: np.ndarray) -> mx.array:
    """With the dtype that it has."""
    return mx.array(x, getattr(mx, x.dtype.name))


def positive(a: np.ndarray) -> np.ndarray:
    return a @ np.swapaxes(a.conj(), -1, -2) + a.shape[-1] * np.eye(a.shape[-1], dtype=a.dtype)


OPERATIONS: dict[str, tuple[Function, bool]] = {
    "cholesky": (mx.linalg.cholesky, True),
    "upper": (lambda a: mx.linalg.cholesky(a, upper=True), True),
    "inv": (mx.linalg.inv, False),
    "lu": (mx.linalg.lu_factor, False),
    "qr": (mx.linalg.qr, False),
    "det": (mx.linalg.det, False),
    "slogdet": (mx.linalg.slogdet, False),
    "solve": (lambda a: mx.linalg.solve(a, a[..., :1] + 1), False),
    "triangle": (lambda a: mx.linalg.solve_triangular(a, a[..., ::2]), True),
    "eigh": (mx.linalg.eigh, True),
    "eigvalsh": (mx.linalg.eigvalsh, True),
    "svd": (mx.linalg.svd, False),
    "wide svd": (lambda a: mx.linalg.svd(a[..., : (a.shape[-2] + 1) // 2, :]), False),
    "singular values": (lambda a: mx.linalg.svd(a, compute_uv=False), False),
}


def listed(x: Any) -> list[mx.array]:
    return list(x) if isinstance(x, (tuple, list)) else [x]


def same(got: Any, expected: Any) -> None:
    for one, other in zip(listed(got), listed(expected), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    x = rng.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=shape)
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("name", OPERATIONS)
def test_bits_are_those_of_one_matrix(name: str, dtype: Any) -> None:
    """Whatever stands beside it, wherever it lies, eager, compiled or mapped."""
    f, needs_positive = OPERATIONS[name]
    for n, batch in ((1, 5), (3, 33), (4, 16), (7, 18), (16, 5)):
        a = normal(np.random.default_rng(n), (batch, n, n), dtype)
        x = of(positive(a) if needs_positive else a)
        whole = f(x)
        for place in (0, batch // 2, batch - 1):
            same(f(x[place]), [part[place] for part in listed(whole)])
        same(mx.compile(f)(x), whole)
        same(mx.vmap(f)(x), whole)
        turned = mx.contiguous(x.transpose(2, 0, 1)).transpose(1, 2, 0)
        same(f(turned), whole)
        same([part[:, 1] for part in listed(f(mx.stack([x[::-1], x], axis=1)))], whole)


def test_one_matrix_for_many_right_sides() -> None:
    """Right sides may be lanes, instead of matrices: nothing changes."""
    rng = np.random.default_rng(0)
    a, b = (mx.array(rng.normal(size=shape).astype(np.float32)) for shape in ((2, 6, 6), (2, 6, 70)))
    for upper in (False, True):
        solve = lambda a, b, upper=upper: mx.linalg.solve_triangular(a, b, upper=upper)  # noqa: E731
        whole = solve(a, b)
        same(mx.concatenate([solve(a, b[..., i : i + 1]) for i in range(70)], axis=-1), whole)
        many = mx.vmap(solve, in_axes=(None, 0))(a[0], mx.moveaxis(b[0], -1, 0)[..., None])
        same(mx.moveaxis(many[..., 0], 0, -1), whole[0])


@settings(max_examples=40)
@given(
    m=st.integers(1, 16), n=st.integers(1, 16), batch=st.integers(1, 20), scale=st.sampled_from([1.0, 1e-30, 1e30]),
    dtype=st.sampled_from(list(DTYPES.values())), seed=st.integers(0, 99),
)  # fmt: skip
def test_backward_errors(m: int, n: int, batch: int, scale: float, dtype: Any, seed: int) -> None:
    """Results are exact for matrices that differ by a few epsilon, whatever their size."""
    rng = np.random.default_rng(seed)
    tall = normal(rng, (batch, m, n), dtype) * dtype(scale)
    square = normal(rng, (batch, n, n), dtype)
    cases: list[tuple[Primitive, Function, Sequence[np.ndarray]]] = [
        (Qr(), mx.linalg.qr, [tall]),
        (Lu(), lambda a: (*mx.linalg.lu_factor(a), None), [tall]),
        (Cholesky(False), mx.linalg.cholesky, [positive(square)]),
        (Inverse(), mx.linalg.inv, [square + 4 * np.eye(n, dtype=dtype)]),
        (SolveTriangular(True), lambda a, b: mx.linalg.solve_triangular(a, b, upper=True),
         [square + 4 * np.eye(n, dtype=dtype), normal(rng, (batch, n, m), dtype)]),
        (Eigh(False), mx.linalg.eigh, [square * dtype(scale)]),
        (Svd(full=True), mx.linalg.svd, [tall]),
        (SingularValues(), lambda a: mx.linalg.svd(a, compute_uv=False), [tall]),
    ]  # fmt: skip
    for op, f, operands in cases:
        results = [x for x in listed(f(*map(of, operands))) if x is not None]
        values = [np.asarray(x) for x in results]
        if isinstance(op, Lu):
            values.append(_order(values[1], m))
        error = op.backward_error(operands, values)
        assert error is not None
        assert error <= type(op).tolerance[of(operands[0]).dtype]


def _order(pivots: np.ndarray, rows: int) -> np.ndarray:
    found = np.tile(np.arange(rows, dtype=np.uint32), (*pivots.shape[:-1], 1))
    for place in np.ndindex(*pivots.shape[:-1]):
        for i, p in enumerate(pivots[place]):
            found[place][[i, p]] = found[place][[p, i]]
    return found


def test_failures_name_the_first_matrix() -> None:
    a = np.tile(np.eye(5, dtype=np.float32), (40, 1, 1))
    a[23, 2, 2] = a[31, 0, 0] = -1
    with pytest.raises(mx.linalg.LinAlgError, match=r"matrix 23 of the batch .* leading minor of order 3 "):
        mx.eval(mx.linalg.cholesky(mx.array(a)))
    a[23, 2, 2] = 0
    for f in (mx.linalg.inv, lambda a: mx.linalg.solve(a, a), lambda a: mx.linalg.solve_triangular(a, a)):
        x = mx.array(a)
        with pytest.raises(mx.linalg.LinAlgError, match="matrix 23 of the batch is singular"):
            mx.eval(f(x))
        assert np.array_equal(np.asarray(x), a)
    with pytest.raises(mx.linalg.LinAlgError, match="at step 23 of its loop"):
        mx.eval(mx.scan(lambda total, x: (total + mx.linalg.inv(x), None), mx.zeros((5, 5)), mx.array(a))[0])
    assert mx.linalg.det(mx.array(a))[23].item() == 0


def test_nan_and_infinity_stay_in_their_matrix() -> None:
    a = positive(np.random.default_rng(0).normal(size=(20, 4, 4)).astype(np.float32))
    for value in (np.nan, np.inf):
        spoiled = a.copy()
        spoiled[7, 1, 0] = spoiled[7, 0, 1] = value
        for f in (mx.linalg.inv, mx.linalg.qr, mx.linalg.det, mx.linalg.lu_factor, mx.linalg.eigh, mx.linalg.svd):
            got, clean = listed(f(mx.array(spoiled))), listed(f(mx.array(a)))
            others = mx.array([i for i in range(20) if i != 7])
            same([x[others] for x in got], [x[others] for x in clean])
            assert value is np.inf or np.isnan(np.asarray(got[0])[7]).any()
    spoiled[7, 1, 0] = np.nan
    assert np.isnan(np.asarray(mx.linalg.cholesky(mx.array(spoiled)))).any((1, 2)).nonzero()[0].tolist() == [7]


# ---- spectra ----


def degenerate(n: int, dtype: Any) -> np.ndarray:
    """Symmetric or Hermitian matrices with equal, tiny and vanishing eigenvalues, at the ends of the range, diagonal in
    any order, and such that rotations have to exchange everything."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, n))
    q = np.linalg.qr(x)[0]
    signs = np.where(np.arange(n) % 2, -1.0, 1.0)
    made = [
        np.zeros((n, n)), np.eye(n), np.ones((n, n)), np.diag(np.arange(n) - 2.0), np.diag(-np.arange(float(n))),
        np.outer(x[0], x[0]), np.eye(n)[::-1], (q * signs) @ q.T, (q * 2.0 ** -np.arange(0, 4 * n, 4)) @ q.T,
        np.eye(n) + 1e-9 * (x + x.T), (x + x.T) * 1e-44, (x + x.T) * 1e37,
        np.diag(np.ones(n - 1), 1) * 1e-20 + np.eye(n), (q * np.maximum(signs, 0)) @ q.T,
    ]  # fmt: skip
    found = np.stack([(a + a.T) / 2 for a in made])
    if np.dtype(dtype).kind == "c":
        phases = np.exp(1j * np.arange(n) ** 2)
        found = phases[:, None] * found * phases.conj()
    return found.astype(dtype)


def adjoint(x: np.ndarray) -> np.ndarray:
    return x.conj().swapaxes(-1, -2)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_degenerate_spectra(n: int, dtype: Any) -> None:
    """Vectors are orthonormal also where values are equal or 0, and values are right in units of the norm."""
    a, wide = degenerate(n, dtype), np.result_type(dtype, np.float64)
    exact = np.linalg.eigvalsh(a.astype(wide))
    size = np.maximum(np.abs(a.astype(wide)).max((-1, -2)), float(np.finfo(dtype).tiny))[:, None]
    bound = 8 * n * np.finfo(dtype).eps * size
    w, v = mx.linalg.eigh(of(a))
    assert (np.abs(np.asarray(w) - exact) <= bound).all()
    assert (np.abs(np.asarray(mx.linalg.eigvalsh(of(a))) - exact) <= bound).all()
    s = np.asarray(mx.linalg.svd(of(a), compute_uv=False))
    assert (np.abs(s - np.sort(np.abs(exact))[:, ::-1]) <= bound).all()
    vectors = [
        v,
        *(mx.linalg.svd(of(a))[i] for i in (0, 2)),
        *(mx.linalg.svd(of(a)[:, : (n + 1) // 2])[i] for i in (0, 2)),
    ]
    for x in vectors:
        x = np.asarray(x).astype(wide)
        off = np.abs(x @ adjoint(x) - np.eye(x.shape[-1])).max()
        assert off <= 8 * n * np.finfo(dtype).eps
    product = (np.asarray(v).astype(wide) * np.asarray(w).astype(np.float64)[:, None]) @ adjoint(np.asarray(v))
    whole = mx.linalg.svd(of(a))
    by_values = (np.asarray(whole[0]).astype(wide) * np.asarray(whole[1])[:, None]) @ np.asarray(whole[2])
    assert (np.abs(by_values - a).max((-1, -2)) <= bound[:, 0]).all()
    assert (np.abs(product - a).max((-1, -2)) <= bound[:, 0]).all()


def test_instructions_do_not_change_the_bits_of_spectra() -> None:
    for dtype in DTYPES.values():
        x = of(np.concatenate([degenerate(6, dtype), positive(normal(np.random.default_rng(0), (9, 6, 6), dtype))]))
        found = []
        for cpu in ("native", "x86-64-v3", "x86-64-v2"):
            before, config.cpu = config.cpu, cpu
            try:
                found.append([np.asarray(part) for part in (*mx.linalg.eigh(x), *mx.linalg.svd(x[:, :, :4]))])
            except ConfigError:  # it lacks these instructions
                pass
            finally:
                config.cpu = before
        for other in found[1:]:
            same(other, found[0])


def test_spectra_inside_of_a_loop() -> None:
    """The same bits as outside, and derivatives."""
    a = of(positive(np.random.default_rng(3).normal(size=(7, 4, 4))))
    inside = mx.scan(lambda total, x: (total + 1, mx.linalg.eigh(x)[0]), mx.array(0), a)[1]
    same(inside, mx.linalg.eigh(a)[0])
    by_values = mx.grad(lambda x: mx.scan(lambda t, y: (t + mx.linalg.eigvalsh(y).sum(), None), x[0, 0, 0] * 0, x)[0])(
        a
    )
    np.testing.assert_allclose(np.asarray(by_values), np.broadcast_to(np.eye(4), (7, 4, 4)), atol=1e-12)


# ---- matrices of any kind ----


def unusual(n: int, dtype: Any) -> np.ndarray:
    """Matrices without a full set of eigenvectors, with equal eigenvalues, that a step without unusual shifts leaves as
    they are, at the ends of the range, badly balanced, triangular, of low rank."""
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, n))
    q, powers = np.linalg.qr(x)[0], 10.0 ** np.arange(n)
    step, turn = np.diag(np.ones(n - 1), 1), np.roll(np.eye(n), 1, 0)
    pair = np.kron(np.ones(((n + 1) // 2,) * 2), [[0, 1], [-1, 0]])[:n, :n]
    made = [
        np.zeros((n, n)), np.eye(n), np.ones((n, n)), step, step.T, step + np.eye(n), turn, turn.T, np.triu(x),
        np.tril(x), q, x * 1e-35, x * 1e30, x * 1e-42, np.diag(2.0 ** -np.arange(0, 4 * n, 4)), x + x.T, x - x.T,
        np.outer(x[0], x[-1]), q @ (step + np.diag(np.arange(n) // 2)) @ q.T, powers[:, None] * x / powers,
        step * 1e-20 + np.eye(n), turn * 1e-30, np.eye(n)[::-1], pair,
        pair * np.kron(np.eye((n + 1) // 2), [[1, 1]] * 2)[:n, :n], *rng.integers(-2, 3, size=(40, n, n)),
    ]  # fmt: skip
    found = np.stack(made)
    return (found * (1 + 0.5j) if np.dtype(dtype).kind == "c" else found).astype(dtype)


def sizes(a: np.ndarray, dtype: Any) -> np.ndarray:
    """The largest element of each matrix, or the least number that is not short of digits."""
    return np.maximum(np.abs(a).max((-1, -2)), float(np.finfo(dtype).tiny))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("n", range(1, 9))
def test_eigenvectors_of_any_matrix(n: int, dtype: Any) -> None:
    """Each value is one of a matrix that is some units of the norm away, each vector has length 1 and a largest element
    that is real, and both belong together. LAPACK's own residuals are up to 45 units of these matrices."""
    rng = np.random.default_rng(n)
    a = np.concatenate([unusual(n, dtype), normal(rng, (40, n, n), dtype)])
    wide, eps = a.astype(np.complex128), float(np.finfo(dtype).eps)
    w, v = (np.asarray(x).astype(np.complex128) for x in mx.linalg.eig(of(a)))
    assert np.array_equal(np.asarray(mx.linalg.eigvals(of(a))).astype(np.complex128), w)
    unit = eps * sizes(wide, dtype)
    assert (np.abs(wide @ v - v * w[:, None]).max((-1, -2)) <= 16 * n * unit).all()
    shifted = wide[:, None] - w[..., None, None] * np.eye(n)
    assert (np.linalg.svd(shifted, compute_uv=False)[..., -1].max(-1) <= 16 * n * unit).all()
    assert np.abs(np.sqrt((np.abs(v) ** 2).sum(-2)) - 1).max() <= 4 * eps
    largest = np.abs(v) >= np.abs(v).max(-2, keepdims=True) * (1 - 8 * eps)  # there may be several
    assert np.where(largest, np.abs(v.imag), 1).min(-2).max() <= 2 * eps
    if np.dtype(dtype).kind == "f":
        assert all(np.array_equal(np.sort_complex(x), np.sort_complex(x.conj())) for x in w)
        assert not v.imag[np.broadcast_to((w.imag == 0)[:, None], v.shape)].any()
        pairs = (w.imag[:, :-1] > 0)[:, None] & np.ones((n, 1), bool)
        assert np.array_equal(v[..., :-1][pairs], v[..., 1:][pairs].conj())


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_eigenvalues_are_near_the_library_s(dtype: Any) -> None:
    """Of matrices whose eigenvalues are far apart, so that each has one to be compared with."""
    rng = np.random.default_rng(5)
    for n in (2, 3, 5, 8):
        far = np.arange(1.0, n + 1) * np.where(np.arange(n) % 2, -4, 4)
        x = normal(rng, (50, n, n), dtype).astype(np.complex128 if np.dtype(dtype).kind == "c" else np.float64)
        a = (np.linalg.qr(x)[0] * far @ np.linalg.qr(x)[0].conj().swapaxes(-1, -2) + 0.02 * x).astype(dtype)
        exact = np.linalg.eigvals(a.astype(x.dtype))
        found = np.asarray(mx.linalg.eigvals(of(a)))
        distance = np.abs(found[:, :, None] - exact[:, None]).min(-1)
        assert distance.max() <= 64 * n * n * np.finfo(dtype).eps


def test_small_eigenvalues_are_not_lost_beside_large_elements() -> None:
    """Rows and columns are balanced first: the eigenvalues are 0 and 2, though one element is 1e10."""
    for dtype in (np.float64, np.complex128):
        a = np.array([[[1, 1e10], [1e-10, 1]], [[1, -1e10], [1e-10, 1]]], dtype)
        w, v = (np.asarray(x) for x in mx.linalg.eig(of(a)))
        assert np.abs(np.sort_complex(w[0]) - [0, 2]).max() < 1e-14
        assert np.abs(w[1].real - 1).max() < 1e-14
        assert np.abs(np.abs(w[1].imag) - 1).max() < 1e-14
        assert np.abs(np.sqrt((np.abs(v) ** 2).sum(-2)) - 1).max() < 1e-15


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_equal_eigenvalues_that_rounding_has_set_apart_are_found(dtype: Any) -> None:
    """Shifts are as near to each other as to the eigenvalues."""
    rng = np.random.default_rng(11)
    for values in ([1.0], [1.0, -1.0], [3.0, 0.0]):
        q = np.linalg.qr(normal(rng, (600, 8, 8), dtype))[0]
        exact = rng.choice(values, size=(600, 8))
        a = (q * exact[:, None] @ q.conj().swapaxes(-1, -2)).astype(dtype)
        found = np.asarray(mx.linalg.eigvals(of(a)))
        error = np.abs(found[:, :, None] - np.array(values)).min(-1).max()
        assert error <= 64 * np.finfo(dtype).eps * max(values)  # of the norm


STUBBORN = (
    "7bGRiqtr8T96/XHCN4rlvzgO5kNWhMg/8u/90bVh0r92OnVHYXHlP9Bkd8tQQO6/96bz+uoG0r/azqmZ+NTSP3r9ccI3iuW/lCq/"
    "qEJO/z/ebQvHa8nTP9HwrNtv27c/qeTygiaH3b8Og9jUbULFv6rZ8aHKPvC/3vS9dfuF3b85DuZDVoTIP95tC8drydM/NL8ujU39"
    "9j8HJV+Xn7fQvxupoQUIre6/34Hmv4xY7b8LOZz/HMbYP/seTAXLk9c/8+/90bVh0r/P8Kzbb9u3PwglX5eft9C/CHuhPe78BkBJ"
    "QPNLV3G4P6BakXoTXNW/9UdoyUWLyD+0k+vfLrLLP3c6dUdhceU/qOTygiaH3b8bqaEFCK3uv0lA80tXcbg/07Tqzelr9T+B+Ezn"
    "RizPv7rxPDDGLeS/Z9MUkkXv2r/QZHfLUEDuvw+D2NRtQsW/4IHmv4xY7b+hWpF6E1zVv374TOdGLM+/gyuL7mvo/T+wtG/r9vW6"
    "P4WZHqdSW9o/96bz+uoG0r+q2fGhyj7wvws5nP8cxtg/80doyUWLyD+58Twwxi3kv7C0b+v29bo/24GyzcGa/j98IytKGpLjv9nO"
    "qZn41NI/3/S9dfuF3b/6HkwFy5PXP7CT698usss/aNMUkkXv2r+DmR6nUlvaP3wjK0oakuO/BYYKHegvBEA=",
    "ARjP+EfABECW6zodNkrGP2j4lxpSS9Y/j+F4apsk6r+yobE9j9vaP4cf1vlE9pY/B1UeqUfQsD+sqPQrspLNv5zrOh02SsY/2gIi"
    "eafmBEA97arltEnhvwTVPuV8aNY/pi5f7GQZ3z9hdTx9U+i8v3fIhYra59u/kGDN42/s1j9p+JcaUkvWPz3tquW0SeG/I7qfDxob"
    "AUDxEQKrr/7jP+3/frtAFdk/Y3XWlx0t478Ygcg/ndrgv5x3Be8e7t8/j+F4apsk6r8E1T7lfGjWP/IRAquv/uM/2LEgyc149D+U"
    "BSArTWjoP01Ac9zXe9q/XMWMzsgFxj8miuAScD7fv7KhsT2P29o/pC5f7GQZ3z/t/367QBXZP5QFICtNaOg/HjCbkrr78D9SwLA/"
    "xZ3SvzJwnVSF/Oo/WTBolKGi1b+HH9b5RPaWP2J1PH1T6Ly/Y3XWlx0t479OQHPc13vav1PAsD/FndK/WU5vEC6YzT8+xCdQn9a5"
    "P7bYDEgigqW/BlUeqUfQsD93yIWK2ufbvxiByD+d2uC/XMWMzsgFxj8ycJ1UhfzqPzrEJ1Cf1rk/pTBCO9l9A0DUm3Iqrc7YP6qo"
    "9Cuyks2/k2DN42/s1j+bdwXvHu7fPyeK4BJwPt+/WTBolKGi1b+02AxIIoKlv9Sbciqtztg/dxRINFYsBUA=",
    "PMR91YGNBEABFE8uLKzbvxUlHKgxi9s/ccLALN+H2b8GLm4yZmyRvzHyOpg+Rug/ABRPLiys2782voIUbqHxP3fcZDxGFuI/YhF5T1/g"
    "6r82YvObxinrv4VRJlLsh9m/EiUcqDGL2z923GQ8RhbiP7IK5dGzoOs/lK7oDMs2xT9phhJNOjLyv6Y7T7Q6ucE/b8LALN+H2b9lEXlP"
    "X+Dqv5Ou6AzLNsU/+vLv6HijA0BUMXbs2qjdv+VzeDGey94/5C1uMmZskb83YvObxinrv2eGEk06MvK/VDF27Nqo3b9jzP6CCCX6P0Gr"
    "xtc6Vqy/M/I6mD5G6D+GUSZS7IfZv6c7T7Q6ucE/6XN4MZ7L3j82q8bXOlasv2IGwgroHNg/",
    "1+l27aF69D/WDVuwcGfdPxnr6sF4nt2/119BT3u50r+mV3FuG7nQP+3DzbZqXru/07dumBry1b+jeHn4jfGoP9UNW7BwZ90/qbytziD9"
    "8j8NDrhNCziNP7pGu+qaer0/l++ZAeUVwT8mhygykWjQPxy5wZwHncg/10Zfq8ek0z8X6+rBeJ7dvw4OuE0LOI0/d1zBXReB6T8c5Mw8"
    "99DJv41Qox3Npba/9r8W8A650b+r3+166NO4v9gUmNufR6q/119BT3u50r+4Rrvqmnq9Px3kzDz30Mm/FEsJGxxr5D8jsUxcP9fRv0Z5"
    "1zQYaYs/LAFAq9Xp4D/FmIBfblzhP6ZXcW4budA/l++ZAeUVwT+OUKMdzaW2vySxTFw/19G/SLoyI7W8zD+JtxAKE2zOPwdbXr/In9C/"
    "rpyNYx24y7/uw822al67vyiHKDKRaNA/9b8W8A650b9Gedc0GGmLP4u3EAoTbM4/dzeqBLLX6T+MrE5zi77Cv6qxpDwsI8A/0rdumBry"
    "1b8cucGcB53IP6zf7Xro07i/LAFAq9Xp4D8HW16/yJ/Qv4usTnOLvsK/4qs/NyPl5j9HlsjQfR2UP6V4efiN8ag/2EZfq8ek0z/ZFJjb"
    "n0eqv8SYgF9uXOE/r5yNYx24y7+rsaQ8LCPAP0iWyNB9HZQ/w7waRSKc9T8=",
)
"""Matrices of eigenvalues 3, 2, 1 and 0, as they come from rounding: the rows that are left of the zeros do not get
smaller by steps, or only after many."""


@pytest.mark.parametrize("text", STUBBORN)
def test_what_rounding_left_of_zeros_is_zero(text: str) -> None:
    elements = np.frombuffer(base64.b64decode(text), "<f8")
    a = elements.reshape(2 * [math.isqrt(elements.size)])
    for member in (a, a.T, a * 2.0**40):
        w, v = (np.asarray(x) for x in mx.linalg.eig(of(member)))
        assert same_bits(np.asarray(mx.linalg.eigvals(of(member))), w)
        exact = np.linalg.eigvalsh(member)
        bound = 64 * np.finfo(np.float64).eps * np.abs(exact).max()
        assert np.abs(np.sort(w.real) - exact).max() <= bound
        assert np.abs(member @ v - v * w).max() <= bound


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_rows_that_get_small_have_eigenvectors(dtype: Any) -> None:
    """Down to squares that are no numbers. The vectors of the library are as far off."""
    rows = 10.0 ** -np.arange(0, 32, 4)
    a = (normal(np.random.default_rng(2), (300, 8, 8), dtype) * rows[:, None]).astype(dtype)
    w, v = (np.asarray(x).astype(np.complex128) for x in mx.linalg.eig(of(a)))
    error = np.abs(a @ v - v * w[:, None]).max((-1, -2)) / np.abs(a).max((-1, -2))
    assert np.median(error) <= 16 * 8 * np.finfo(dtype).eps


def test_neighbours_layouts_and_loops_do_not_change_eigenvectors() -> None:
    rng = np.random.default_rng(8)
    for dtype in DTYPES.values():
        a = np.concatenate([unusual(5, dtype), normal(rng, (20, 5, 5), dtype)])
        expected = listed(mx.linalg.eig(of(a)))
        for i in (0, 6, 7, 30, len(a) - 1):
            same([x[0] for x in listed(mx.linalg.eig(of(a[i : i + 1])))], [x[i] for x in expected])
        same(listed(mx.linalg.eig(of(np.ascontiguousarray(a.swapaxes(-1, -2))).swapaxes(-1, -2))), expected)
        inside = mx.scan(lambda total, x: (total + 1, mx.linalg.eig(x)), mx.array(0), of(a))[1]
        same(listed(inside), expected)
        spoiled = a.copy()
        spoiled[3, 2, 1], spoiled[9, 0, 0] = np.nan, np.inf
        others = mx.array([i for i in range(len(a)) if i not in (3, 9)])
        found = listed(mx.linalg.eig(of(spoiled)))
        same([x[others] for x in found], [x[others] for x in expected])
        assert all(np.isnan(np.asarray(x)[[3, 9]].real).all() for x in found)


def test_instructions_do_not_change_the_bits_of_eigenvectors() -> None:
    for dtype in DTYPES.values():
        x, found = of(np.concatenate([unusual(6, dtype), normal(np.random.default_rng(0), (9, 6, 6), dtype)])), []
        for cpu in ("native", "x86-64-v3", "x86-64-v2"):
            before, config.cpu = config.cpu, cpu
            try:
                found.append([np.asarray(part) for part in (*mx.linalg.eig(x), mx.linalg.eigvals(x))])
            except ConfigError:  # it lacks these instructions
                pass
            finally:
                config.cpu = before
        for other in found[1:]:
            same(other, found[0])


def test_derivatives_of_general_eigenvalues_inside_of_a_loop() -> None:
    """The sum of the squares of the eigenvalues is the trace of the square."""
    a = of(np.random.default_rng(4).normal(size=(7, 4, 4)))

    def total(x: Any) -> Any:
        def step(sum_: Any, y: Any) -> Any:
            return sum_ + mx.square(mx.linalg.eigvals(y)).sum().real, None

        return mx.scan(step, mx.zeros((), mx.float64), x)[0]

    np.testing.assert_allclose(np.asarray(mx.grad(total)(a)), 2 * np.asarray(a).swapaxes(-1, -2), atol=1e-12)
