"""`mx.linalg` beside MLX's: the same shapes and dtypes, and values that are equally near to exact ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as wx
from tests.parity.oracle import mx, ours, theirs

FLOATS = (np.float32, np.float64)


def matrices(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(dtype)


def positive(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    x = matrices(*shape)
    return (x @ np.swapaxes(x, -1, -2) + shape[-1] * np.eye(shape[-1])).astype(dtype)


def regular(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return (matrices(*shape) + 2 * shape[-1] * np.eye(shape[-1])).astype(dtype)


def leaves(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def compare(call: Callable[[Any, Any], Any], *operands: np.ndarray) -> None:
    """The same call in both libraries."""
    expected = leaves(call(mx, [theirs(x) for x in operands]))
    found = leaves(call(wx, [ours(x) for x in operands]))
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert tuple(x.shape) == tuple(y.shape)
        assert x.dtype.name == str(y.dtype).rpartition(".")[2]
        a, b = np.array(x), np.array(y.astype(mx.float32)) if str(y.dtype).endswith("float64") else np.array(y)
        scale = max(1.0, float(np.abs(b).max(initial=0.0)))
        np.testing.assert_allclose(a, b, rtol=0, atol=3e-5 * scale)


CALLS: dict[str, tuple[Callable[[Any, Any], Any], Callable[..., np.ndarray]]] = {
    "cholesky": (lambda m, x: m.linalg.cholesky(x[0], stream=m.cpu), positive),
    "cholesky_upper": (lambda m, x: m.linalg.cholesky(x[0], upper=True, stream=m.cpu), positive),
    "qr": (lambda m, x: m.linalg.qr(x[0], stream=m.cpu), matrices),
    "tri_inv": (lambda m, x: m.linalg.tri_inv(x[0], stream=m.cpu), regular),
    "tri_inv_upper": (lambda m, x: m.linalg.tri_inv(x[0], True, stream=m.cpu), regular),
    "inv": (lambda m, x: m.linalg.inv(x[0], stream=m.cpu), regular),
    "cholesky_inv": (lambda m, x: m.linalg.cholesky_inv(x[0], stream=m.cpu), regular),
    "cholesky_inv_upper": (lambda m, x: m.linalg.cholesky_inv(x[0], True, stream=m.cpu), regular),
    "lu": (lambda m, x: m.linalg.lu(x[0], stream=m.cpu), matrices),
    "lu_factor": (lambda m, x: m.linalg.lu_factor(x[0], stream=m.cpu), matrices),
    "det": (lambda m, x: m.linalg.det(x[0], stream=m.cpu), matrices),
    "slogdet": (lambda m, x: m.linalg.slogdet(x[0], stream=m.cpu), matrices),
    "eigvalsh": (lambda m, x: m.linalg.eigvalsh(x[0], stream=m.cpu), matrices),
    "eigvalsh_upper": (lambda m, x: m.linalg.eigvalsh(x[0], "U", stream=m.cpu), matrices),
    "singular values": (lambda m, x: m.linalg.svd(x[0], compute_uv=False, stream=m.cpu), matrices),
    "pinv": (lambda m, x: m.linalg.pinv(x[0], stream=m.cpu), regular),
    "eigh": (lambda m, x: _without_signs(m, *m.linalg.eigh(x[0], stream=m.cpu)), positive),
    "svd": (lambda m, x: _without_signs(m, *m.linalg.svd(x[0], stream=m.cpu)), regular),
}


def _without_signs(m: Any, *results: Any) -> Any:
    """Vectors are determined up to their signs."""
    return [m.abs(x) for x in results]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (5, 5), (2, 3, 4, 4)], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_square_matrices(name: str, shape: tuple[int, ...], dtype: Any) -> None:
    call, make = CALLS[name]
    compare(call, make(*shape, dtype=dtype))


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (3, 5, 2), (1, 3), (3, 1)], ids=str)
@pytest.mark.parametrize("name", ["qr", "lu", "lu_factor", "singular values", "pinv"])
def test_other_shapes(name: str, shape: tuple[int, ...]) -> None:
    compare(CALLS[name][0], matrices(*shape))


def test_eig() -> None:
    """In the same order; MLX has no complex128."""
    a = matrices(3, 4, 4)
    compare(lambda m, x: m.linalg.eigvals(x[0], stream=m.cpu), a)
    compare(lambda m, x: _without_signs(m, *m.linalg.eig(x[0], stream=m.cpu)), a)


@pytest.mark.parametrize(
    ("a", "b"), [((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (2, 3, 1)), ((2, 2, 3, 3), (2, 2, 3, 2))]
)
def test_solve(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    compare(lambda m, x: m.linalg.solve(*x, stream=m.cpu), regular(*a), matrices(*b))


@pytest.mark.parametrize("order", [None, 0, 1, 2, 3, -1, -2, 0.5, float("inf"), -float("inf")])
@pytest.mark.parametrize("axis", [0, 1, -1, (1,), [0]], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_norms_of_vectors(order: Any, axis: Any, keepdims: bool) -> None:
    compare(lambda m, x: m.linalg.norm(x[0], order, axis, keepdims), matrices(2, 3, 4))


@pytest.mark.parametrize("order", [None, "fro", "f", "nuc", 1, -1, 2, -2, float("inf"), -float("inf")])
@pytest.mark.parametrize("axis", [(0, 1), (1, 0), (-1, 0)], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_norms_of_matrices(order: Any, axis: Any, keepdims: bool) -> None:
    compare(lambda m, x: m.linalg.norm(x[0], order, axis, keepdims, stream=m.cpu), matrices(2, 3, 4))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.bool_, np.float16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("order", [None, 1, float("inf"), 0])
def test_norms_of_other_dtypes(dtype: Any, order: Any) -> None:
    compare(lambda m, x: m.linalg.norm(x[0], order), np.array([3, 0, 4]).astype(dtype))
    compare(lambda m, x: m.linalg.norm(x[0]), np.array([[3, 0, 4]]).astype(dtype))


@pytest.mark.parametrize(("a", "b", "axis"), [
    ((3,), (3,), -1), ((2,), (2,), -1), ((2,), (3,), -1), ((5, 3), (3,), -1), ((5, 2), (5, 2), 1), ((3, 4), (3, 4), 0),
])  # fmt: skip
def test_cross(a: tuple[int, ...], b: tuple[int, ...], axis: int) -> None:
    compare(lambda m, x: m.linalg.cross(*x, axis=axis), matrices(*a), matrices(*b, seed=1))
    whole = (10 * matrices(*a)).astype(np.int32), (10 * matrices(*b, seed=1)).astype(np.int32)
    compare(lambda m, x: m.linalg.cross(*x, axis=axis), *whole)


def test_what_both_refuse() -> None:
    for call in (
        lambda m: m.linalg.norm(m.ones((2, 2)), "what"),
        lambda m: m.linalg.norm(m.ones((2, 2)), 3),
        lambda m: m.linalg.norm(m.ones(2), "nuc"),
        lambda m: m.linalg.norm(m.ones((2, 2, 2)), 2),
        lambda m: m.linalg.norm(m.ones((2, 2, 2)), axis=(0, 1, 2)),
        lambda m: m.linalg.cross(m.ones(4), m.ones(4)),
        lambda m: m.linalg.solve(m.eye(2), m.ones(3), stream=m.cpu),
        lambda m: m.linalg.det(m.ones((2, 3)), stream=m.cpu),
        lambda m: m.linalg.inv(m.ones((2, 3)), stream=m.cpu),
    ):
        assert refused(lambda call=call: call(mx)) is ValueError
        assert refused(lambda call=call: call(wx)) is ValueError


def test_every_function_of_theirs_is_there() -> None:
    missing = {name for name in dir(mx.linalg) if not name.startswith("_")} - set(dir(wx.linalg))
    assert not missing


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(
    ("a", "b"), [((3, 3), (3,)), ((3, 3), (3, 2)), ((2, 3, 3), (2, 3, 1)), ((2, 3, 3), (3, 4)), ((3, 3), (2, 3, 2))]
)
def test_solve_triangular(a: tuple[int, ...], b: tuple[int, ...], upper: bool) -> None:
    compare(lambda m, x: m.linalg.solve_triangular(*x, upper=upper, stream=m.cpu), regular(*a), matrices(*b))


def refused(call: Callable[[], Any]) -> type[Exception] | None:
    try:
        for x in leaves(call()):
            np.array(x)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("name", ["cholesky", "qr", "tri_inv", "inv", "lu", "eigh", "eig", "svd", "pinv"])
@pytest.mark.parametrize("dtype", ["int32", "float16", "bool_"])
def test_dtypes_that_both_refuse(name: str, dtype: str) -> None:
    assert refused(lambda: getattr(mx.linalg, name)(mx.ones((2, 2), getattr(mx, dtype)), stream=mx.cpu)) is ValueError
    assert refused(lambda: getattr(wx.linalg, name)(wx.ones((2, 2), getattr(wx, dtype)))) is ValueError


def test_singular_matrices_are_refused() -> None:
    for call in (
        lambda m: m.linalg.tri_inv(m.zeros((2, 2)), stream=m.cpu),
        lambda m: m.linalg.inv(m.ones((2, 2)), stream=m.cpu),
        lambda m: m.linalg.solve(m.ones((2, 2)), m.ones(2), stream=m.cpu),
    ):
        mine = refused(lambda call=call: call(wx))
        assert mine is not None
        assert issubclass(mine, RuntimeError), "which is what MLX raises, if it notices in time"
