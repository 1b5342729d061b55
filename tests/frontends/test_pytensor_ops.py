"""Every operation that PyTensor on Weft translates, beside PyTensor's own implementation: values, dtypes, shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pytensor")

import pytensor
import pytensor.scalar as ps
import pytensor.sparse
import pytensor.tensor as pt
import scipy.sparse
from pytensor import ifelse
from pytensor.tensor.elemwise import Elemwise

from tests.frontends.pytensor_reference import assert_same, both, check

RANDOM = np.random.default_rng(7)
X = RANDOM.normal(size=(4, 3))
SQUARE = RANDOM.normal(size=(3, 3))
BATCH = RANDOM.normal(size=(2, 3, 3))
POSITIVE = SQUARE @ SQUARE.T + 3 * np.eye(3)
POSITIVES = np.stack([POSITIVE, POSITIVE * 2 + np.eye(3)])
V = RANDOM.normal(size=3)

# ---- scalar operations ----

REAL = np.array([-2.5, -1.0, -0.5, 0.0, 0.3, 0.5, 1.0, 1.5, 2.5, 7.0])
UNIT = np.array([-0.99, -0.5, 0.0, 0.25, 0.9])
ABOVE = np.array([0.05, 0.5, 1.0, 1.5, 3.0, 10.5])
INTEGERS = np.array([-7, -2, -1, 0, 1, 2, 5])

UNARY: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    **{name: (getattr(pt, name), REAL) for name in (
        "abs", "sign", "ceil", "floor", "trunc", "round", "neg", "exp", "exp2", "expm1", "sqr", "sin", "cos", "tan",
        "arctan", "sinh", "cosh", "tanh", "arcsinh", "erf", "erfc", "erfcx", "sigmoid", "softplus", "isnan", "isinf",
        "i0", "i1", "deg2rad", "rad2deg",
    )},
    **{name: (getattr(pt, name), ABOVE) for name in (
        "log", "log2", "log10", "log1p", "sqrt", "reciprocal", "gammaln", "psi", "tri_gamma", "gamma",
    )},
    **{name: (getattr(pt, name), UNIT) for name in ("arcsin", "arccos", "arctanh", "erfinv")},
    "arccosh": (pt.arccosh, 1 + ABOVE),
    "log1mexp": (pt.log1mexp, -ABOVE),
    "polygamma": (lambda x: pt.polygamma(3, x), ABOVE),
    "erfcinv": (pt.erfcinv, np.array([1e-300, 1e-20, 1e-5, 0.01, 0.3, 0.9, 1.0, 1.2, 1.9, 2.0])),
    "gamma_of_negatives": (pt.gamma, np.array([-0.5, -1.5, -2.2, 0.3])),
    "invert_integers": (pt.invert, INTEGERS),
    "invert_bools": (pt.invert, np.array([True, False])),
    "exp_of_integers": (pt.exp, INTEGERS),
    "sqrt_of_integers": (pt.sqrt, np.abs(INTEGERS)),
    "abs_of_integers": (pt.abs, INTEGERS),
    "sign_of_integers": (pt.sign, INTEGERS),
    "round_half_away": (lambda x: pt.round(x, mode="half_away_from_zero"), REAL),
}  # fmt: skip


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str) -> None:
    fun, values = UNARY[name]
    x = pt.vector("x", dtype=values.dtype.name)
    check([x], fun(x), (values,), (values[::-2],), rtol=1e-11)


BINARY: dict[str, tuple[Callable[..., Any], np.ndarray, np.ndarray]] = {
    **{name: (getattr(pt, name), REAL[:, None], REAL[None]) for name in (
        "add", "sub", "mul", "maximum", "minimum", "lt", "le", "gt", "ge", "eq", "neq", "arctan2",
    )},
    "true_div": (pt.true_div, REAL[:, None], ABOVE[None]),
    "int_div": (pt.int_div, REAL[:, None], np.array([-2.0, 0.7, 3.0])[None]),
    "int_div_integers": (pt.int_div, INTEGERS[:, None], np.array([-3, -1, 2, 4])[None]),
    "mod": (pt.mod, REAL[:, None], np.array([-2.0, 0.7, 3.0])[None]),
    "mod_integers": (pt.mod, INTEGERS[:, None], np.array([-3, -1, 2, 4])[None]),
    "true_div_integers": (pt.true_div, INTEGERS[:, None], np.array([-3, -1, 2, 4])[None]),
    "pow": (pt.pow, ABOVE[:, None], REAL[None]),
    "pow_by_integers": (pt.pow, REAL[:, None], np.array([0, 1, 2, 3])[None]),
    "pow_integers": (pt.pow, INTEGERS[:, None], np.array([0, 1, 2, 3])[None]),
    "and": (pt.and_, INTEGERS[:, None], INTEGERS[None]),
    "or": (pt.or_, INTEGERS[:, None], INTEGERS[None]),
    "xor": (pt.xor, INTEGERS[:, None], INTEGERS[None]),
    "compare_integers_with_floats": (pt.lt, INTEGERS[:, None], REAL[None]),
    "second": (pt.second, REAL[:, None], np.ones((1, 1))),
    "gammainc": (pt.gammainc, ABOVE[:, None], ABOVE[None]),
    "gammaincc": (pt.gammaincc, ABOVE[:, None], ABOVE[None]),
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str) -> None:
    fun, a, b = BINARY[name]
    x = pt.tensor("x", dtype=a.dtype.name, shape=tuple(1 if n == 1 else None for n in a.shape))
    y = pt.tensor("y", dtype=b.dtype.name, shape=tuple(1 if n == 1 else None for n in b.shape))
    check([x, y], fun(x, y), (a, b), rtol=1e-10)


def test_operations_of_three_operands() -> None:
    x, y, z = pt.vectors("x", "y", "z")
    outputs = [pt.switch(x > 0, y, z), pt.clip(x, -1, 1), x + y + z, x * y * z, pt.switch(x, 1, 0)]
    check([x, y, z], outputs, (V, V * 2, V - 1))
    a = np.array([0.5, 2.0, 7.5])
    check([x, y, z], pt.betainc(x, y, z), (a, a[::-1], np.array([0.1, 0.5, 0.9])), rtol=1e-11)


def test_casts() -> None:
    x = pt.vector("x")
    names = ("int8", "int16", "int32", "int64", "uint8", "float32", "bool", "complex64", "complex128")
    check([x], [pt.cast(x, name) for name in names], (np.array([0.0, 1.7, 3.0]),))


def test_complex_numbers() -> None:
    x, y = pt.zvector("x"), pt.vector("y")
    values = V + 1j * V[::-1]
    outputs = [x + y, x * x, pt.exp(x), pt.real(x), pt.imag(x), pt.abs(x), pt.conj(x), pt.angle(x), pt.complex(y, y)]
    check([x, y], outputs, (values, V))


def test_a_composite_of_several_outputs_with_a_nan() -> None:
    a, b = ps.float64("a"), ps.float64("b")
    nan = ps.constant(np.nan, dtype="float64")
    op = Elemwise(ps.Composite([a, b], [ps.add(ps.sqr(a), b), ps.switch(ps.lt(a, b), a, nan)]))
    x, y = pt.vectors("x", "y")
    check([x, y], op(x, y), (V, V[::-1]))


# ---- reductions ----

REDUCTIONS = {
    "sum": lambda x: x.sum(axis=0), "prod": lambda x: x.prod(axis=1), "max": lambda x: x.max(axis=0),
    "min": lambda x: x.min(), "mean": lambda x: x.mean(axis=1), "var": lambda x: x.var(),
    "any": lambda x: (x > 1).any(),
    "all": lambda x: (x > -9).all(axis=0), "argmax": lambda x: pt.argmax(x, axis=0), "argmax_all": pt.argmax,
    "argmin": lambda x: pt.argmin(x, axis=1), "logsumexp": lambda x: pt.logsumexp(x, axis=0), "ptp": pt.ptp,
    "max_and_argmax": lambda x: list(pt.max_and_argmax(x, axis=1)), "none": lambda x: x.sum(axis=()),
    "softmax": lambda x: pt.special.softmax(x, axis=1), "log_softmax": lambda x: pt.special.log_softmax(x, axis=0),
    "softmax_all": lambda x: pt.special.softmax(x, axis=None),
}  # fmt: skip


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str) -> None:
    x = pt.matrix("x")
    check([x], REDUCTIONS[name](x), (X,), (X[:1],), (X.T,))


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8", "bool", "float32"])
def test_reductions_of_other_dtypes(dtype: str) -> None:
    x = pt.matrix("x", dtype=dtype)
    values = (np.abs(X) * 40).astype(dtype)
    check([x], [x.sum(), x.sum(axis=1), x.prod(axis=0), x.max(), x.mean()], (values,))


def test_a_product_without_its_zeros() -> None:
    x = pt.matrix("x")
    check([x], pt.math.ProdWithoutZeros(axis=0)(x), (np.array([[0.0, 2.0, 3.0], [5.0, 0.0, 4.0]]),))


def test_a_reduction_of_nothing() -> None:
    x = pt.vector("x")
    check([x], [x.sum(), x.prod()], (np.zeros(0),))
    with pytest.raises(ValueError, match="zero-size"):
        pytensor.function([x], x.max(), mode="WEFT")(np.zeros(0))


# ---- parts of arrays ----


def test_slices_of_all_kinds() -> None:
    x = pt.vector("x")
    slices = [slice(a, b, c) for a in (None, 1, -2) for b in (None, 3, -1) for c in (None, 2, -1, -2)]
    values = np.arange(5.0)
    check([x], [x[s] for s in slices], (values,))
    check([x], [pt.set_subtensor(x[s], 9.0) for s in slices], (values,))
    check([x], [pt.inc_subtensor(x[s], x[s] * 2) for s in slices], (values,))


def test_bounds_that_are_inputs() -> None:
    x, a, b = pt.vector("x"), pt.lscalar("a"), pt.lscalar("b")
    values = np.arange(6.0)
    check([x, a, b], [x[a:b], x[b:a:-1], pt.set_subtensor(x[a:b], 1.0)], (values, 1, 4), (values, 0, 6), (values, 3, 2))


def test_indices_that_are_arrays() -> None:
    x, i, j = pt.tensor3("x"), pt.lvector("i"), pt.lmatrix("j")
    values = RANDOM.normal(size=(4, 5, 6))
    outputs = [
        x[i], x[:, i], x[i, i], x[i, :, i], x[:, i, i], x[j], x[:, j], x[1:, i], x[i, 1:3], x[..., i], x[i][:, :, j],
        x[i, 2], x[0, i], x[i, :, 1], x[::-1, i], x[j, i], x[j, :, j],
    ]  # fmt: skip
    check([x, i, j], outputs, (values, np.array([0, 3]), np.array([[1, 0], [2, -1]])))


def test_changes_at_indices_that_come_twice() -> None:
    x, i, y = pt.matrix("x"), pt.lvector("i"), pt.matrix("y")
    outputs = [
        pt.inc_subtensor(x[i], y), pt.inc_subtensor(x[i], 1.0), pt.inc_subtensor(x[i, i], 2.0),
        pt.inc_subtensor(x[:, i], 1.0),
        pt.set_subtensor(x[i], 5.0), pt.set_subtensor(x[i, 0], 5.0), pt.inc_subtensor(x[i, 1:], 1.0),
    ]  # fmt: skip
    check([x, i, y], outputs, (X, np.array([0, 2, 0]), SQUARE))


def test_masks() -> None:
    x, m = pt.matrix("x"), pt.matrix("m", dtype="bool")
    outputs = [x[m], pt.set_subtensor(x[m], 0.0), pt.inc_subtensor(x[m], 1.0), x[m].sum() * 2]
    check([x, m], outputs, (X, X > 0))


# ---- what stands for itself ----


def test_cumulative_sorted_and_searched() -> None:
    x, v = pt.matrix("x"), pt.vector("v")
    outputs = [
        pt.cumsum(x, axis=0), pt.cumprod(x, axis=1), pt.cumsum(x), pt.sort(x, axis=0), pt.argsort(x, axis=1),
        pt.sort(x, axis=None), pt.searchsorted(pt.sort(v), x), pt.searchsorted(pt.sort(v), x, side="right"),
        pt.diff(x), pt.repeat(x, 3, axis=1), pt.repeat(v, [1, 0, 2]), pt.fill_diagonal(x, 1.5), pt.tril(x),
        pt.triu(x, 1),
        pt.bartlett(5), *pt.unravel_index(pt.arange(6), (2, 3)), pt.extra_ops.fill_diagonal_offset(x, 2.0, 1),
        pt.linspace(0, 1, 5), pt.tensordot(x, x, axes=[[0], [0]]), pt.outer(v, v), pt.flip(x), pt.roll(x, 1, axis=0),
        pt.squeeze(x[:1]), pt.diag(v), pt.ones_like(x), pt.full((2, 3), 7.0), pt.pad(x, 1),
        pt.pad(x, 2, mode="edge"), pt.identity_like(x), pt.moveaxis(x, 0, 1), pt.flatten(x),
        pt.ravel_multi_index((pt.arange(2), pt.arange(2)), (2, 3), mode="wrap"), pt.tri(3),
    ]  # fmt: skip
    check([x, v], outputs, (X, V))


def test_einsum_and_batches() -> None:
    x, y = pt.tensor3("x"), pt.tensor3("y")
    a, b = RANDOM.normal(size=(2, 4, 3)), RANDOM.normal(size=(2, 3, 5))
    check([x, y], [pt.einsum("bij,bjk->bik", x, y), x @ y], (a, b))


@pytest.mark.filterwarnings("ignore:.axes. should not be")  # in PyTensor's own implementation
def test_transforms_and_convolutions() -> None:
    x, v, w = pt.matrix("x"), pt.vector("v"), pt.vector("w")
    check([x], pt.fft.rfft(x), (X,))
    check([x], pt.fft.irfft(pt.fft.rfft(x), is_odd=True), (X,))
    kernel = np.array([1.0, -0.5])
    for mode in ("full", "valid", "same"):
        check([v, w], pt.signal.convolve1d(v, w, mode=mode), (X[:, 0], kernel))
    y = pt.matrix("y")
    check([x, y], [pt.signal.convolve2d(x, y, mode=mode) for mode in ("full", "valid")], (X, SQUARE[:2, :2]))


def test_loops_over_scalars() -> None:
    """Derivatives of incomplete functions by their parameters are series."""
    a, b, x = pt.vectors("a", "b", "x")
    first, second = np.array([0.5, 2.0, 7.5]), np.array([3.0, 1.5, 0.7])
    check([a, x], pt.grad(pt.gammainc(a, x).sum(), a), (first, second), rtol=1e-8)
    check([a, x], pt.grad(pt.gammaincc(a, x).sum(), a), (first, second), rtol=1e-8)
    unit = np.array([0.1, 0.5, 0.9])
    check([a, b, x], pt.grad(pt.betainc(a, b, x).sum(), [a, b]), (first, second, unit), rtol=1e-8)


@pytest.mark.parametrize("layout", ["csr", "csc"])
def test_products_with_sparse_constants(layout: str) -> None:
    matrix = scipy.sparse.random(6, 4, 0.5, format=layout, random_state=0)
    sparse = pytensor.sparse.as_sparse_variable(matrix)
    x = pt.matrix("x")
    structured = pytensor.sparse.structured_dot(sparse, x)
    check([x], [structured, pytensor.sparse.dot(sparse, x)], (X,))
    check([x], pt.grad((structured**2).sum(), x), (X,))


def test_operations_on_a_sparse_input() -> None:
    x = pytensor.sparse.csr_matrix("x")
    values = scipy.sparse.random(4, 3, 0.5, format="csr", random_state=0)
    check([x], pytensor.sparse.sp_sum(x * 2, axis=0) + 1, (values,))


# ---- linear algebra ----


LINEAR: dict[str, tuple[Callable[..., Any], np.ndarray]] = {
    "cholesky": (pt.linalg.cholesky, POSITIVE),
    "cholesky_batch": (pt.linalg.cholesky, POSITIVES),
    "cholesky_upper": (lambda a: pt.linalg.cholesky(a, lower=False), POSITIVE),
    "cholesky_of_what_has_none": (pt.linalg.cholesky, -POSITIVE),
    "inv": (pt.linalg.inv, POSITIVE),
    "inv_batch": (pt.linalg.inv, BATCH),
    "det": (pt.linalg.det, BATCH),
    "slogdet": (pt.linalg.slogdet, SQUARE),
    "pinv": (pt.linalg.pinv, X),
    "eigvalsh": (pt.linalg.eigvalsh, POSITIVE),
    "eigh": (lambda a: [pt.linalg.eigh(a)[0], pt.abs(pt.linalg.eigh(a)[1])], POSITIVE),
    "svd_values": (lambda a: pt.linalg.svd(a, compute_uv=False), X),
    "svd": (lambda a: pt.linalg.svd(a, full_matrices=False)[1], X),
    "qr": (lambda a: pt.linalg.qr(a, mode="economic"), X),
    "qr_r": (lambda a: pt.linalg.qr(a, mode="r"), X),
    "lu": (pt.linalg.lu, SQUARE),
    "lu_permuted": (lambda a: pt.linalg.lu(a, permute_l=True), BATCH),
    "lu_indices": (lambda a: pt.linalg.lu(a, p_indices=True), SQUARE),
    "lu_factor": (pt.linalg.lu_factor, SQUARE),
    "pivots": (lambda a: pt.linalg.pivot_to_permutation(pt.linalg.lu_factor(a)[1]), SQUARE),
    "expm": (pt.linalg.expm, SQUARE),
    "matrix_power": (lambda a: pt.linalg.matrix_power(a, 3), SQUARE),
    "kron": (lambda a: pt.linalg.kron(a, a), SQUARE),
    "block_diag": (lambda a: pt.linalg.block_diag(a, a[:2]), SQUARE),
    "trace": (pt.trace, SQUARE),
    "norm": (pt.linalg.norm, SQUARE),
    "solve": (lambda a: pt.linalg.solve(a, pt.as_tensor(V)), SQUARE),
    "solve_columns": (lambda a: pt.linalg.solve(a, a.mT), BATCH),
    "solve_symmetric": (lambda a: pt.linalg.solve(a, pt.as_tensor(V), assume_a="sym"), POSITIVE),
    "solve_positive": (lambda a: pt.linalg.solve(a, pt.as_tensor(V), assume_a="pos"), POSITIVE),
    "solve_triangular": (lambda a: pt.linalg.solve_triangular(a, pt.as_tensor(V), lower=True), SQUARE),
    "solve_triangular_upper": (lambda a: pt.linalg.solve_triangular(a, a, lower=False), BATCH),
    "solve_triangular_unit": (lambda a: pt.linalg.solve_triangular(a, a, unit_diagonal=True), SQUARE),
    "cho_solve": (lambda a: pt.linalg.cho_solve((pt.linalg.cholesky(a), True), pt.as_tensor(V)), POSITIVE),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_algebra(name: str) -> None:
    fun, values = LINEAR[name]
    a = pt.tensor("a", shape=(None,) * values.ndim)
    check([a], fun(a), (values,), rtol=1e-9, atol=1e-9)


# ---- graphs, branches, checks ----


def test_one_branch_runs() -> None:
    x, flag = pt.vector("x"), pt.scalar("flag", dtype="bool")
    checked = pytensor.raise_op.Assert("not all positive")(x, pt.all(x > 0))
    function = pytensor.function([x, flag], ifelse(flag, pt.log(checked), x * 2), mode="WEFT")
    assert_same(function(np.array([1.0, 2.0]), True), np.log([1.0, 2.0]))
    assert_same(function(-np.ones(2), False), -2 * np.ones(2))
    with pytest.raises(AssertionError, match="not all positive"):
        function(-np.ones(2), True)


def test_branches_of_different_shapes() -> None:
    x, flag = pt.vector("x"), pt.scalar("flag", dtype="bool")
    function = pytensor.function([x, flag], ifelse(flag, x, x[1:]), mode="WEFT")
    with pytest.warns(UserWarning, match="WEFT leaves IfElse"):
        assert_same(function(V, True), V)
    assert_same(function(V, False), V[1:])


def test_a_graph_as_an_operation() -> None:
    x, y = pt.vectors("x", "y")
    op = pytensor.compile.builders.OpFromGraph([x, y], [x * 2 + y, pt.switch(x > 0, x, np.nan)])
    check([x, y], op(y, x), (V, V[::-1]))
    check([x], pt.grad(op(x, x * 3)[0].sum(), x), (V,))


def test_a_check_raises() -> None:
    x = pt.vector("x")
    checked = pytensor.raise_op.CheckAndRaise(KeyError, "too large")(x * 2, x.max() < 5)
    function, _ = both([x], checked)
    assert_same(function(V), V * 2)
    with pytest.raises(KeyError, match="too large"):
        function(V + 10)


def test_a_value_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    x = pt.vector("x")
    function = pytensor.function([x], pytensor.printing.Print("seen")(x) * 2, mode="WEFT")
    assert_same(function(np.ones(2)), 2 * np.ones(2))
    assert "seen __str__ = [1. 1.]" in capsys.readouterr().out
