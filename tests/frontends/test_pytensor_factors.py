"""QR factors in all forms, Schur's forms and Sylvester's equations against PyTensor's own implementation."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.tensor as pt
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg import qr
from pytensor.tensor.linalg.decomposition.qr import QR
from pytensor.tensor.linalg.decomposition.schur import qz, schur
from pytensor.tensor.linalg.solvers.linear_control import TRSYL, solve_sylvester

from tests.frontends.pytensor_reference import check

DTYPES = ["float32", "float64", "complex64", "complex128"]
SORTS = [None, "lhp", "rhp", "iuc", "ouc"]


@pytest.fixture(autouse=True)
def nothing_is_left_to_pytensor() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "WEFT leaves")
        yield


def numbers(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if dtype.startswith("complex") else x).astype(dtype)


def close(dtype: str) -> dict[str, float]:
    single = dtype in ("float32", "complex64")
    return {"rtol": 2e-4, "atol": 2e-4} if single else {"rtol": 1e-9, "atol": 1e-9}


# ---- QR ----


@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("mode", ["full", "economic", "r", "raw"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_qr_in_all_forms(dtype: str, mode: Any, pivoting: bool) -> None:
    """Tall, wide and square matrices, small ones and larger ones; a column, a row."""
    a = pt.matrix("a", dtype=dtype)
    outputs = QR(mode=mode, pivoting=pivoting)(a, return_list=True)
    shapes = ((4, 4), (7, 3), (3, 7), (40, 23), (23, 40), (5, 1), (1, 5))
    check([a], outputs, *([numbers(dtype, *shape)] for shape in shapes), **close(dtype))


@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("mode", ["full", "economic", "r"])
def test_qr_of_a_batch(mode: Any, pivoting: bool) -> None:
    a = pt.tensor3("a")
    outputs = Blockwise(QR(mode=mode, pivoting=pivoting))(a, return_list=True)
    check([a], outputs, [numbers("float64", 3, 6, 4)], [numbers("float64", 2, 3, 5)], **close("float64"))


@pytest.mark.parametrize("pivoting", [False, True])
def test_qr_of_zeros_and_of_large_numbers(pivoting: bool) -> None:
    """Columns that need no reflection have none, and squares that overflow are not taken."""
    a = pt.matrix("a")
    outputs = QR(mode="raw", pivoting=pivoting)(a, return_list=True)
    with_zeros = np.triu(numbers("float64", 6, 4))
    with_zeros[:, 2] = 0
    check([a], outputs, [with_zeros], [np.zeros((4, 3))], **close("float64"))
    function = pytensor.function([a], outputs, mode="WEFT")
    for found, plain in zip(
        function(1e200 * numbers("float64", 6, 4)), function(numbers("float64", 6, 4)), strict=True
    ):
        assert np.isfinite(found).all()
        assert found.shape == plain.shape


@pytest.mark.parametrize("mode", ["economic", "r"])
def test_gradients_of_qr(mode: Any) -> None:
    a = pt.matrix("a", shape=(6, 4))
    made = qr(a, mode=mode)
    cost = sum((pt.sin(x) ** 2).sum() for x in (made if isinstance(made, (list, tuple)) else [made]))
    check([a], [pytensor.grad(cost, a)], [numbers("float64", 6, 4)], **close("float64"))


# ---- Schur ----


def values_of(t: np.ndarray) -> np.ndarray:
    return np.linalg.eigvals(t)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("output", ["real", "complex"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_schur(dtype: str, output: Any, sort: Any) -> None:
    a = pt.matrix("a", dtype=dtype)
    outputs = schur(a, output=output, sort=sort)
    given = [[numbers(dtype, n, n, seed=n)] for n in (1, 2, 5, 9)]
    check([a], outputs, *given, **close(dtype))


def test_schur_of_a_batch_and_of_what_is_not_finite() -> None:
    a = pt.tensor3("a")
    given = numbers("float64", 3, 4, 4)
    given[1, 2, 2] = np.nan
    check([a], schur(a), [given], [numbers("float64", 2, 6, 6)], **close("float64"))


@pytest.mark.parametrize("values", [False, True])
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_qz(dtype: str, sort: Any, values: bool) -> None:
    a, b = pt.matrix("a", dtype=dtype), pt.matrix("b", dtype=dtype)
    outputs = qz(a, b, sort=sort, return_eigenvalues=values)
    given = [[numbers(dtype, n, n, seed=n), numbers(dtype, n, n, seed=n + 1)] for n in (1, 2, 5, 8)]
    check([a, b], outputs, *given, **close(dtype))


def test_qz_as_complex_numbers() -> None:
    a, b = pt.matrix("a"), pt.matrix("b")
    given = [numbers("float64", 5, 5), numbers("float64", 5, 5, seed=1)]
    check([a, b], qz(a, b, output="complex", return_eigenvalues=True), given, **close("float64"))


def test_a_matrix_that_is_not_square() -> None:
    a = pt.matrix("a")
    function = pytensor.function([a], schur(a), mode="WEFT")
    with pytest.raises(ValueError, match="square"):
        function(np.ones((2, 3)))


# ---- Sylvester ----


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_forms_in_an_equation(dtype: str) -> None:
    a, b, c = (pt.matrix(name, dtype=dtype) for name in "abc")
    given = [
        [np.triu(numbers(dtype, m, m)) + 3 * np.eye(m, dtype=dtype),
         np.triu(numbers(dtype, n, n)) + 3 * np.eye(n, dtype=dtype), numbers(dtype, m, n)]
        for m, n in ((4, 3), (1, 6), (8, 8))
    ]  # fmt: skip
    check([a, b, c], [TRSYL()(a, b, c)], *given, **close(dtype))


def test_solutions_and_their_gradients() -> None:
    a, b, c = pt.matrix("a"), pt.matrix("b"), pt.matrix("c")
    x = solve_sylvester(a, b, c)
    outputs = [x, *pytensor.grad((pt.sin(x)).sum(), [a, b, c])]
    given = [
        numbers("float64", 4, 4) + 3 * np.eye(4),
        numbers("float64", 3, 3) + 3 * np.eye(3),
        numbers("float64", 4, 3),
    ]
    check([a, b, c], outputs, given, rtol=1e-8, atol=1e-8)
