"""Linear algebra. Operators with `info` among their results come with a check of it: a program raises where that would,
so the rules are for graphs in which nothing else reads it (`CHECKED`)."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, iota, to
from weft.primitives.linalg.factors import Lu, Qr
from weft.primitives.linalg.spectral import Eigh, HermitianEigenvalues, SingularValues, Svd
from weft.program import apply

aten = Table()

CHECKED = {
    "aten.linalg_cholesky_ex.default": 1, "aten.linalg_inv_ex.default": 1, "aten._linalg_solve_ex.default": 3,
}  # fmt: skip
"""Operators whose failures raise, and the number of the result that says so in torch."""
BY_ROWS = {"aten._linalg_det.default": 1, "aten._linalg_slogdet.default": 2}
"""Operators that keep other factors of real matrices which do not lie row by row, and the number of these."""


def _adjoint(x: mx.array) -> mx.array:
    turned = mx.swapaxes(x, -1, -2)
    return mx.conjugate(turned) if x.dtype.is_complex else turned


def _no_failure(out: Any) -> mx.array:
    return mx.zeros(out.shape, out.dtype)


# ---- factors ----


@aten("linalg_cholesky_ex")
def cholesky_ex(out: Any, x: mx.array, *, upper: bool = False, check_errors: bool = False) -> tuple[mx.array, mx.array]:
    return mx.linalg.cholesky(x, upper), _no_failure(out[1])


@aten("cholesky")
def cholesky(out: Out, x: mx.array, upper: bool = False) -> mx.array:
    return mx.linalg.cholesky(x, upper)


@aten("linalg_qr")
def qr(out: Any, x: mx.array, mode: str = "reduced") -> tuple[mx.array, mx.array]:
    m, n = x.shape[-2:]
    if mode == "complete" and m > n:
        raise ValueError("a complete basis")
    q, r = apply(Qr(), x)
    return (mx.zeros(out[0].shape, x.dtype) if mode == "r" else q), r


def _factors(x: mx.array) -> tuple[mx.array, mx.array]:
    """LU, and the rows that were exchanged, counted from 1."""
    lu, pivots, _ = apply(Lu(), x)
    return lu, to(pivots, mx.int32) + 1


@aten("linalg_lu_factor_ex")
def lu_factor_ex(
    out: Any, x: mx.array, *, pivot: bool = True, check_errors: bool = False
) -> tuple[mx.array, mx.array, mx.array]:
    """`info` is the first zero on the diagonal of U, counted from 1."""
    _refuse_without_pivots(pivot)
    lu, pivots = _factors(x)
    is_zero = mx.diagonal(lu, axis1=-2, axis2=-1) == 0
    if not is_zero.shape[-1]:
        return lu, pivots, _no_failure(out[2])
    info = mx.where(mx.any(is_zero, axis=-1), to(mx.argmax(is_zero, axis=-1), mx.int32) + 1, to(0, mx.int32))
    return lu, pivots, info


@aten("linalg_lu")
def lu(out: Any, x: mx.array, *, pivot: bool = True) -> tuple[mx.array, mx.array, mx.array]:
    _refuse_without_pivots(pivot)
    places, lower, upper = mx.linalg.lu(x)
    return to(mx.expand_dims(to(places, mx.int64), -1) == iota(x.shape[-2]), x.dtype), lower, upper


def _refuse_without_pivots(pivot: bool) -> None:
    if not pivot:
        raise ValueError("factors without exchanges of rows")


@aten("lu_unpack")
def lu_unpack(
    out: Any, lu: mx.array, pivots: mx.array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[mx.array, mx.array, mx.array]:
    m, n = lu.shape[-2:]
    k = min(m, n)
    p, lower, upper = (mx.zeros(made.shape, made.dtype) for made in out)
    if unpack_pivots:
        p = to(mx.expand_dims(_order(pivots, m), -2) == mx.expand_dims(iota(m), -1), lu.dtype)
    if unpack_data:
        lower, upper = mx.tril(lu[..., :, :k], -1) + mx.eye(m, k, dtype=lu.dtype), mx.triu(lu[..., :k, :])
    return p, lower, upper


def _order(pivots: mx.array, m: int) -> mx.array:
    """The order in which a matrix of m rows has the factors LU, by the exchanges of its rows, counted from 1."""
    numbers = iota(m)

    def exchange(order: mx.array, step: Any) -> tuple[mx.array, None]:
        i, other = step
        j = mx.expand_dims(to(other, mx.int64) - 1, -1)
        one = mx.take_along_axis(order, mx.broadcast_to(i, j.shape), axis=-1)
        two = mx.take_along_axis(order, j, axis=-1)
        return mx.where(numbers == i, two, mx.where(numbers == j, one, order)), None

    start = mx.broadcast_to(numbers, (*pivots.shape[:-1], m))
    return mx.scan(exchange, start, (iota(pivots.shape[-1]), mx.moveaxis(pivots, -1, 0)))[0]


# ---- systems ----


def _triangular(a: mx.array, b: mx.array, upper: bool, unit: bool = False) -> mx.array:
    if unit:
        a = mx.where(mx.eye(a.shape[-1]) != 0, to(1, a.dtype), a)
    return mx.linalg.solve_triangular(a, b, upper=upper)


@aten("linalg_solve_triangular")
def solve_triangular(
    out: Out, a: mx.array, b: mx.array, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> mx.array:
    if left:
        return _triangular(a, b, upper, unitriangular)
    turned = _triangular(mx.swapaxes(a, -1, -2), mx.swapaxes(b, -1, -2), not upper, unitriangular)
    return mx.swapaxes(turned, -1, -2)


@aten("triangular_solve")
def triangular_solve(
    out: Any, b: mx.array, a: mx.array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[mx.array, mx.array]:
    whole = mx.broadcast_to(a, out[1].shape)
    if transpose:
        return _triangular(mx.swapaxes(a, -1, -2), b, not upper, unitriangular), whole
    return _triangular(a, b, upper, unitriangular), whole


@aten("cholesky_solve")
def cholesky_solve(out: Out, b: mx.array, factor: mx.array, upper: bool = False) -> mx.array:
    if upper:
        return _triangular(factor, _triangular(_adjoint(factor), b, False), True)
    return _triangular(_adjoint(factor), _triangular(factor, b, False), True)


@aten("cholesky_inverse")
def cholesky_inverse(out: Out, factor: mx.array, upper: bool = False) -> mx.array:
    return mx.linalg.cholesky_inv(mx.triu(factor) if upper else mx.tril(factor), upper)


@aten("linalg_inv_ex")
def inv_ex(out: Any, x: mx.array, *, check_errors: bool = False) -> tuple[mx.array, mx.array]:
    return mx.linalg.inv(x), _no_failure(out[1])


@aten("_linalg_solve_ex")
def solve_ex(
    out: Any, a: mx.array, b: mx.array, *, left: bool = True, check_errors: bool = False
) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    is_vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    given = mx.expand_dims(b, -1) if is_vector else b
    if left:
        found = mx.linalg.solve(a, given)
    else:
        found = mx.swapaxes(mx.linalg.solve(mx.swapaxes(a, -1, -2), mx.swapaxes(given, -1, -2)), -1, -2)
    lu, pivots = _factors(a)
    return (mx.squeeze(found, -1) if is_vector else found), lu, pivots, _no_failure(out[3])


@aten("linalg_lu_solve")
def lu_solve(
    out: Out, lu: mx.array, pivots: mx.array, b: mx.array, *, left: bool = True, adjoint: bool = False
) -> mx.array:
    """Where the unknown stands at the left of the matrix, both sides are turned."""
    given = b if left else _adjoint(b)
    lead = out.shape[:-2]
    order = _order(pivots, lu.shape[-1])
    if adjoint != left:
        there = mx.take_along_axis(
            mx.broadcast_to(given, (*lead, *given.shape[-2:])), _each(order, (*lead, *given.shape[-2:])), axis=-2
        )
        found = _triangular(lu, _triangular(lu, there, False, True), True)
    else:
        turned = _adjoint(lu)
        inner = _triangular(turned, _triangular(turned, given, False), True, True)
        back = mx.argsort(order, axis=-1)
        found = mx.take_along_axis(inner, _each(back, inner.shape), axis=-2)
    return found if left else _adjoint(found)


def _each(order: mx.array, shape: Any) -> mx.array:
    """The order of rows, for each column."""
    return mx.broadcast_to(mx.expand_dims(to(order, mx.int64), -1), shape)


@aten("linalg_pinv.atol_rtol_tensor")
def pinv(
    out: Out, x: mx.array, *, atol: mx.array | None = None, rtol: mx.array | None = None, hermitian: bool = False
) -> mx.array:
    u, s, vh = apply(Svd(full=False), x)
    if not all(x.shape[-2:]):
        return mx.zeros(out.shape, out.dtype)
    default = to(float(np.finfo(s.dtype.name).eps) * max(x.shape[-2:]), s.dtype)
    least = to(0 if atol is None else atol, s.dtype)
    if rtol is None:
        rtol = default if atol is None else mx.where(least > 0, to(0, s.dtype), default)
    cut = mx.maximum(mx.expand_dims(least, -1), mx.expand_dims(to(rtol, s.dtype), -1) * s[..., :1])
    scale = mx.where(s > cut, 1 / mx.where(s > cut, s, to(1, s.dtype)), to(0, s.dtype))
    return mx.matmul(_adjoint(vh) * to(mx.expand_dims(scale, -2), x.dtype), _adjoint(u))


# ---- determinants ----


def _factors_for_gradient(x: mx.array) -> tuple[mx.array, mx.array]:
    """torch keeps those of the transpose, but of complex matrices and of those that lie otherwise (`BY_ROWS`)."""
    return _factors(x if x.dtype.is_complex else mx.swapaxes(x, -1, -2))


@aten("_linalg_det")
def det(out: Any, x: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    return mx.linalg.det(x), *_factors_for_gradient(x)


@aten("_linalg_slogdet")
def slogdet(out: Any, x: mx.array) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    return *mx.linalg.slogdet(x), *_factors_for_gradient(x)


# ---- eigenvalues and singular values ----


@aten("_linalg_eigh")
def eigh(out: Any, x: mx.array, UPLO: str = "L", compute_v: bool = True) -> tuple[mx.array, mx.array]:
    upper = UPLO.upper() == "U"
    if compute_v:
        values, vectors = apply(Eigh(upper), x)
        return values, vectors
    return apply(HermitianEigenvalues(upper), x), mx.zeros(out[1].shape, x.dtype)


@aten("linalg_eig")
def eig(out: Any, x: mx.array) -> tuple[mx.array, mx.array]:
    return mx.linalg.eig(x)


@aten("linalg_eigvals")
def eigvals(out: Any, x: mx.array) -> mx.array:
    return mx.linalg.eigvals(x)


@aten("_linalg_svd")
def svd(
    out: Any, x: mx.array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[mx.array, mx.array, mx.array]:
    if not compute_uv:
        none = [mx.zeros(out[i].shape, x.dtype) for i in (0, 2)]
        return none[0], apply(SingularValues(), x), none[1]
    u, s, vh = apply(Svd(full=full_matrices), x)
    return u, s, vh


@aten("linalg_matrix_exp")
def matrix_exp(out: Out, x: mx.array) -> mx.array:
    return mx.linalg.expm(x)
