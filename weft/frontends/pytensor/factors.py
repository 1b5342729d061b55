"""QR factors in all forms that LAPACK has them in, Schur's forms, and equations a x + x b = c of those.

Factors that are raw or pivoted are made by loops of reflections, the ones of LAPACK's `geqrf` and `geqp3`.
"""

from __future__ import annotations

from typing import Any

from pytensor.tensor import linalg as ptl
from pytensor.tensor.linalg.decomposition.schur import QZ, Schur
from pytensor.tensor.linalg.solvers.linear_control import TRSYL

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.linear import check_square, matrixwise
from weft.frontends.pytensor.values import cast, number_in
from weft.primitives import linalg as primitives
from weft.program import apply

# ---- QR ----


@matrixwise(ptl.QR)
def qr(op: Any, a: array) -> Any:
    m, n = a.shape[-2:]
    if op.pivoting or op.mode == "raw":
        return _reflected(op, a)
    if op.mode == "full" and m > n:
        # The reflections of columns of zeros are none: the factor is the product of those of `a`, all m columns of it.
        q, r = mx.linalg.qr(mx.concatenate([a, mx.zeros((*a.shape[:-1], m - n), a.dtype)], axis=-1))
        return q, r[..., :n]
    q, r = mx.linalg.qr(a)
    if op.mode != "r":
        return q, r
    return _with_rows(r, m)


def _with_rows(r: array, m: Any) -> array:
    """A triangle with rows of zeros below it."""
    missing = m - r.shape[-2]
    if missing == 0:
        return r
    return mx.concatenate([r, mx.zeros((*r.shape[:-2], missing, r.shape[-1]), r.dtype)], axis=-2)


def _reflected(op: Any, a: array) -> list[array]:
    """Factors by reflections: raw ones, or with columns in an order in which the diagonal of r falls."""
    m = a.shape[-2]
    packed, tau, order = _reflections(a, op.pivoting)
    k = tau.shape[-1]
    r = mx.triu(packed[..., :k, :] if op.mode in ("economic", "raw") else packed)
    if op.mode == "raw":
        found = [packed, tau, r]
    elif op.mode == "r":
        found = [r]
    else:
        found = [_product_of_reflections(packed, tau, m if op.mode == "full" else k), r]
    return [*found, order] if op.pivoting else found


def _norm(x: array, axis: int) -> array:
    """Of large numbers too, whose squares would overflow."""
    size = mx.abs(x)
    largest = mx.max(size, axis=axis, keepdims=True)
    scale = mx.where(largest > number_in(0.0, size.dtype), largest, number_in(1.0, size.dtype))
    return mx.squeeze(scale, axis) * mx.sqrt(mx.sum(mx.square(size / scale), axis=axis))


def _reflections(a: array, pivoting: bool) -> tuple[array, array, array]:
    """r and, below its diagonal, the vectors v of reflections 1 - tau v v*, whose first element is 1; tau; and where
    each column was."""
    lead, (m, n) = a.shape[:-2], a.shape[-2:]
    down, across = mx.arange(m, dtype=mx.int64), mx.arange(n, dtype=mx.int64)
    start = mx.broadcast_to(mx.arange(n, dtype=mx.int32), (*lead, n))
    if m == 0 or n == 0:
        return a, mx.zeros((*lead, 0), a.dtype), start

    def step(carry: tuple[array, array], i: array) -> Any:
        x, order = carry
        if pivoting:
            left = mx.where((down >= i)[:, None], x, mx.zeros((), x.dtype))
            lengths = _norm(left, -2)
            pivot = mx.argmax(mx.where(across >= i, lengths, number_in(-1.0, lengths.dtype)), axis=-1, keepdims=True)
            x, order = _exchanged(x, i, pivot[..., None]), _exchanged(order, i, pivot)
        column = mx.take(x, i, axis=-1)
        beta, tau, v = _reflection(column, i, down)
        projected = mx.sum(mx.conjugate(v)[..., None] * x, axis=-2)
        moved = x - (mx.conjugate(tau)[..., None] * v)[..., None] * projected[..., None, :]
        here = mx.where(down < i, column, mx.where(down == i, beta[..., None], v))
        made = mx.where(across < i, x, mx.where(across == i, here[..., None], moved))
        return (made, order), tau

    k = n if m >= n else m
    (packed, order), taus = mx.scan(step, (a, start), mx.arange(k, dtype=mx.int64))
    return packed, mx.moveaxis(taus, 0, -1), order


def _exchanged(x: array, i: array, j: array) -> array:
    """The elements i and j of the last axis exchanged, j one for each row."""
    places = mx.arange(x.shape[-1], dtype=mx.int64)
    j = j.astype(mx.int64)
    source = mx.where(places == i, j, mx.where(places == j, i, places))
    return mx.take_along_axis(x, mx.broadcast_to(source, x.shape), axis=-1)


def _reflection(x: array, i: array, places: array) -> tuple[array, array, array]:
    """What makes zeros of all elements behind element i: that element then, tau and v. Elements that are zero already
    take none."""
    first = mx.take(x, i, axis=-1)
    zero = mx.zeros((), x.dtype)
    rest = mx.where(places > i, x, zero)
    length = _norm(mx.where(places >= i, x, zero), -1)
    re = mx.real(first) if x.dtype.is_complex else first
    beta = mx.where(re < number_in(0.0, length.dtype), length, -length)
    is_done = ~mx.any(rest != zero, axis=-1)
    if x.dtype.is_complex:
        is_done = is_done & (mx.imag(first) == number_in(0.0, length.dtype))
    goal = cast(beta, x.dtype.name)
    one = cast(number_in(1.0, length.dtype), x.dtype.name)
    safe = mx.where(is_done, one, goal)
    tau = mx.where(is_done, zero, (goal - first) / safe)
    scaled = rest / mx.where(is_done, one, first - goal)[..., None]
    v = mx.where(places == i, one, mx.where(is_done[..., None], zero, scaled))
    return mx.where(is_done, first, goal), tau, v


def _product_of_reflections(packed: array, tau: array, width: Any) -> array:
    """The first columns of the product of all reflections."""
    lead, m = packed.shape[:-2], packed.shape[-2]
    down = mx.arange(m, dtype=mx.int64)
    start = mx.broadcast_to(cast(mx.eye(m, width), packed.dtype.name), (*lead, m, width))
    k = tau.shape[-1]
    if k == 0:
        return start
    one, zero = cast(number_in(1.0, mx.float32), packed.dtype.name), mx.zeros((), packed.dtype)

    def step(q: array, i: array) -> Any:
        v = mx.where(down == i, one, mx.where(down > i, mx.take(packed, i, axis=-1), zero))
        by = mx.take(tau, i, axis=-1)[..., None]
        projected = mx.sum(mx.conjugate(v)[..., None] * q, axis=-2)
        return q - (by * v)[..., None] * projected[..., None, :], ()

    found: array = mx.scan(step, start, mx.arange(k, dtype=mx.int64), reverse=True)[0]
    return found


# ---- Schur ----


def _complex(x: array) -> array:
    return x if x.dtype.is_complex else cast(x, "complex64" if x.dtype.name == "float32" else "complex128")


def _alike(*given: array) -> list[array]:
    """Complex numbers, if some are."""
    return [_complex(x) for x in given] if any(x.dtype.is_complex for x in given) else list(given)


@matrixwise(Schur)
def schur(op: Any, a: array) -> Any:
    check_square(a)
    return apply(primitives.Schur(op.sort or "", quiet=True), _complex(a) if op.output == "complex" else a)


@matrixwise(QZ)
def qz(op: Any, a: array, b: array) -> list[array]:
    check_square(a)
    check_square(b)
    given = [_complex(a), _complex(b)] if op.complex_output else _alike(a, b)
    s, t, q, z, alpha, beta = apply(primitives.GeneralizedSchur(op.sort or "", quiet=True), *given)
    return [s, t, alpha, beta, q, z] if op.return_eigenvalues else [s, t, q, z]


@matrixwise(TRSYL)
def sylvester(op: Any, a: array, b: array, c: array) -> array:
    check_square(a)
    check_square(b)
    made: array = apply(primitives.Sylvester(), *_alike(a, b, c))
    return made
