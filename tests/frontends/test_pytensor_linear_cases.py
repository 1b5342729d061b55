"""Linear algebra of PyTensor in its less usual forms: generalized eigenvalues, systems with three diagonals, branches
that are graphs of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.tensor as pt
from pytensor.compile.mode import get_mode
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg import Eigh, Eigvalsh
from pytensor.tensor.linalg.solvers.tridiagonal import LUFactorTridiagonal, SolveLUFactorTridiagonal

from tests.frontends.pytensor_reference import check

RNG = np.random.default_rng(8)
A = RNG.normal(size=(5, 5))
B = A @ A.T + 5 * np.eye(5)


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_generalized_eigenvalues(lower: bool, dtype: str) -> None:
    """Of each matrix one triangle counts. Vectors have some sign or other."""
    a, b = pt.matrix("a", dtype=dtype), pt.matrix("b", dtype=dtype)
    values, vectors = Eigh(lower=lower)(a, b)
    given = (A.astype(dtype), B.astype(dtype))
    check([a, b], [values, pt.abs(vectors), Eigvalsh(lower=lower)(a, b)], given, rtol=1e-10, atol=1e-10)


def test_generalized_eigenvalues_of_a_matrix_that_is_not_positive() -> None:
    a, b = pt.matrix("a"), pt.matrix("b")
    function = pytensor.function([a, b], Eigh()(a, b)[0], mode="WEFT")
    with pytest.raises(Exception, match="positive"):
        function(A, -B)
    assert np.isfinite(function(A, B)).all()


def diagonals(n: int, dtype: str, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    made = [rng.normal(size=m) for m in (n - 1, n, n - 1)]
    if dtype.startswith("complex"):
        made = [x + 1j * rng.normal(size=x.shape) for x in made]
    return [x.astype(dtype) for x in made]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("n", [3, 7])
def test_factors_of_three_diagonals(n: int, dtype: str) -> None:
    given = [pt.vector(name, dtype=dtype) for name in ("below", "middle", "above")]
    check(given, list(LUFactorTridiagonal()(*given)), *(diagonals(n, dtype, seed) for seed in range(3)))


def test_a_pivot_of_zero() -> None:
    given = pt.vectors("below", "middle", "above")
    values = (np.array([0.0, 2.0]), np.array([0.0, 1.0, 3.0]), np.array([1.0, 1.0]))
    check(given, list(LUFactorTridiagonal()(*given)), values)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("b_ndim", [1, 2])
@pytest.mark.parametrize("n", [3, 7])
def test_solutions_of_three_diagonals(n: int, b_ndim: int, transposed: bool) -> None:
    given = list(pt.vectors("below", "middle", "above"))
    right = pt.vector("b") if b_ndim == 1 else pt.matrix("b")
    made = SolveLUFactorTridiagonal(b_ndim=b_ndim, transposed=transposed)(*LUFactorTridiagonal()(*given), right)
    b = RNG.normal(size=(n, 3))
    calls = [(*diagonals(n, "float64", seed), b[:, 0] if b_ndim == 1 else b) for seed in range(3)]
    check([*given, right], made, *calls, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_systems_that_scipy_refuses(n: int, transposed: bool) -> None:
    given = list(pt.vectors("below", "middle", "above"))
    right = pt.vector("b")
    made = SolveLUFactorTridiagonal(b_ndim=1, transposed=transposed)(*LUFactorTridiagonal()(*given), right)
    function = pytensor.function([*given, right], made, mode="WEFT")
    for seed in range(3):
        below, middle, above = diagonals(n, "float64", seed)
        matrix = np.diag(middle) + np.diag(below, -1) + np.diag(above, 1)
        wanted = np.linalg.solve(matrix.T if transposed else matrix, A[0, :n])
        np.testing.assert_allclose(function(below, middle, above, A[0, :n]), wanted, rtol=1e-10)


def test_many_systems_of_three_diagonals() -> None:
    given = [pt.matrix(name) for name in ("below", "middle", "above")]
    right = pt.matrix("b")
    factors = Blockwise(LUFactorTridiagonal())(*given)
    made = Blockwise(SolveLUFactorTridiagonal(b_ndim=1, transposed=False))(*factors, right)
    stacked = [np.stack(parts) for parts in zip(*(diagonals(6, "float64", seed) for seed in range(4)), strict=True)]
    check([*given, right], made, (*stacked, RNG.normal(size=(4, 6))), rtol=1e-8, atol=1e-8)


def test_a_system_of_three_diagonals_in_a_loop() -> None:
    below, middle, above, start = (pt.vector(name) for name in ("below", "middle", "above", "start"))
    factors = LUFactorTridiagonal()(below, middle, above)
    solve = SolveLUFactorTridiagonal(b_ndim=1, transposed=False)
    rows = pytensor.scan(
        lambda x, *given: solve(*given, x), outputs_info=[start], non_sequences=list(factors), n_steps=3,
        return_updates=False,
    )  # fmt: skip
    check([below, middle, above, start], rows, (*diagonals(5, "float64", 2), A[0]), rtol=1e-8, atol=1e-8)


def test_branches_that_are_graphs() -> None:
    """What PyTensor makes of an `ifelse` where it compiles its branches for themselves."""
    conditional = pytest.importorskip("pytensor.conditional.op")
    x = pt.vector("x")
    inside = [
        pytensor.compile.builders.OpFromGraph([x], [x * 2, x.sum()]),
        pytensor.compile.builders.OpFromGraph([x], [pt.exp(x), x.prod()]),
    ]
    op = conditional.LazyIfElse(*inside, [x.type, pt.scalar().type])
    outputs: Any = op(x.sum() > 0, x)
    check([x], outputs, (np.arange(4.0),), (-np.arange(4.0),), (np.zeros(2),))
    chosen: Any = conditional.ifelse(x.sum() > 0, pt.exp(x), x - 1)
    function = pytensor.function([x], chosen, mode=get_mode("WEFT").including("lazy_ifelse"))
    for values in (A[0], -abs(A[1])):
        np.testing.assert_allclose(function(values), np.exp(values) if values.sum() > 0 else values - 1, rtol=1e-12)
