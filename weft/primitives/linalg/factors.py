"""Factorizations of matrices: Cholesky, QR, LU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node, Size, TupleType, bundle_of, kind_of
from weft.primitives.base import ByOperand, MultiOutput, Sample, bind, bind_many, flops_each, zeros
from weft.primitives.checks import need
from weft.primitives.elementwise import draw
from weft.primitives.linalg.matrices import (
    Matrixwise,
    adjoint,
    adjoint_of,
    below,
    beside,
    columns,
    half,
    hermitian,
    identity,
    imaginary_part,
    inverse_order,
    matmul,
    on_diagonal,
    real_part,
    relative,
    rows,
    rows_at,
    square,
    triangle,
    wide,
)
from weft.primitives.linalg.systems import SolveTriangular


def _hermitian_of(x: np.ndarray) -> np.ndarray:
    return (x + adjoint_of(x)) / 2


def _positive(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Hermitian matrices that are positive definite, and far from singular."""
    x = wide(draw(rng, dtype, shape, -1, 1))
    return (x @ adjoint_of(x) + shape[-1] * np.eye(shape[-1])).astype(dtype.np)


class Cholesky(Matrixwise):
    """The lower (or upper) triangular factor l of a Hermitian, positive definite matrix a = l l* (or l* l). Only that
    triangle of a is read. For a matrix that is not positive definite it fails, or is all NaN if it is `quiet`.
    Derivatives are those of a function of Hermitian matrices: gradients are Hermitian."""

    upper: bool
    quiet: bool = False
    tolerance = {dt.float32: 4, dt.float64: 4, dt.complex64: 8, dt.complex128: 8}
    samples = tuple(
        Sample(
            lambda rng, dtype, shape=shape: [_positive(rng, dtype, shape)],  # type: ignore[misc]
            {"upper": upper},
            name=name,
            move=_hermitian_of,
        )
        for name, shape, upper in (
            ("lower", (5, 5), False), ("upper", (5, 5), True), ("batch", (2, 3, 4, 4), False),
            ("batch_upper", (3, 2, 2), True), ("one", (1, 1), False), ("large", (70, 70), False),
            ("nothing", (0, 0), False), ("empty", (0, 3, 3), True),
        )
    )  # fmt: skip

    @property
    def is_total(self) -> bool:
        return self.quiet

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 1, f"{len(kinds)} operands")
        super().check(*kinds)
        square(kinds[0])

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return flops_each(out.dtype) * float(out.size) * float(out.shape[-1]) / 3

    def why(self, code: int) -> str:
        return (
            f"is not positive definite: its leading minor of order {code} is not positive. If it is a covariance "
            "with rounding errors, add a small multiple of the identity."
        )

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (a,) = values
        given, out = wide(a), np.empty(a.shape, wide(a).dtype)
        for element, place in enumerate(np.ndindex(*a.shape[:-2])):
            try:
                out[place] = np.linalg.cholesky(given[place], upper=self.upper)
            except np.linalg.LinAlgError:
                if not self.quiet:
                    raise self.failed(element, _first_minor(given[place], self.upper), a.shape[:-2]) from None
                out[place] = np.nan
        return out.astype(a.dtype)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        a, x = wide(values[0]), wide(results[0])
        if np.any(x != (np.triu(x) if self.upper else np.tril(x))):
            return np.inf
        read = np.triu(a) if self.upper else np.tril(a)
        product = adjoint_of(x) @ x if self.upper else x @ adjoint_of(x)
        return relative((np.triu(product) if self.upper else np.tril(product)) - read, a, dtype=values[0].dtype)

    # ---- rules ----

    def _as_lower(self, x: Node) -> Node:
        return adjoint(x) if self.upper else x

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        """l' = l phi(p), p = l⁻¹ a' l⁻*, where phi takes the lower triangle and half of the diagonal."""
        factor = self._as_lower(out)
        left = bind(SolveTriangular(upper=False), factor, hermitian(tangents[0]))
        p = bind(SolveTriangular(upper=False), factor, adjoint(left))
        return self._as_lower(matmul(factor, _phi(p)))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        """The transpose of that: l⁻* phi(l* ct) l⁻¹, made Hermitian."""
        turned = adjoint(self._as_lower(out))
        left = bind(SolveTriangular(upper=True), turned, _phi(matmul(turned, self._as_lower(cotangent))))
        return {0: hermitian(bind(SolveTriangular(upper=True), turned, adjoint(left)))}

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, *self.moved(inputs, axes, size)), 0


class Qr(MultiOutput, Matrixwise):
    """(q[..., m, k], r[..., k, n]) with a[..., m, n] = q r, where k is the smaller of m and n: the columns of q are
    orthonormal, and r is upper triangular, its diagonal real but of either sign."""

    tolerance = {dt.float32: 16, dt.float64: 16, dt.complex64: 16, dt.complex128: 16}
    samples = tuple(
        Sample(lambda rng, dtype, shape=shape: [draw(rng, dtype, shape)], name=name)  # type: ignore[misc]
        for name, shape in (
            ("square", (4, 4)), ("tall", (6, 3)), ("wide", (3, 5)), ("batch", (2, 3, 4, 2)), ("one", (1, 1)),
            ("column", (5, 1)), ("row", (1, 5)), ("large", (90, 70)), ("nothing", (0, 3)), ("no_columns", (3, 0)),
            ("empty", (0, 3, 3)),
        )
    )  # fmt: skip

    def infer(self, *kinds: ArrayType) -> TupleType:
        (a,) = kinds
        *lead, m, n = a.shape
        k = n if m >= n else m
        return bundle_of([kind_of((*lead, m, k), a.dtype), kind_of((*lead, k, n), a.dtype)])

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 1, f"{len(kinds)} operands")
        super().check(*kinds)

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        *_, m, n = map(float, kinds[0].shape)
        return 4.0 * flops_each(kinds[0].dtype) * float(kinds[0].size) * min(m, n)

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        (a,) = values
        return tuple(x.astype(a.dtype) for x in np.linalg.qr(wide(a)))

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        a, q, r = wide(values[0]), *map(wide, results)
        if np.any(r != np.triu(r)):
            return np.inf
        one, dtype = np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1])), values[0].dtype
        return max(relative(q @ r - a, a, dtype=dtype), relative(adjoint_of(q) @ q - one, one, dtype=dtype))

    # ---- rules ----
    # A wide matrix is [x y], where x = q u is square and r = [u q* y]: the rules are those of x, and of a product.

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        (a,), (q, r), moved = primals, outs, tangents[0]
        m, n = a.shape[-2:]
        if m >= n:
            return _qr_tangents(q, r, moved)
        x_moved, y_moved = columns(moved, 0, m), columns(moved, m, n)
        q_moved, u_moved = _qr_tangents(q, columns(r, 0, m), x_moved)
        rest = matmul(adjoint(q_moved), columns(a, m, n)) + matmul(adjoint(q), y_moved)
        return q_moved, beside(u_moved, rest)

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        (a,), (q, r), (q_ct, r_ct) = primals, outs, cotangents
        m, n = a.shape[-2:]
        if m >= n:
            return {0: _qr_cotangent(q, r, q_ct, r_ct)}
        u, u_ct = columns(r, 0, m), None if r_ct is None else columns(r_ct, 0, m)
        if r_ct is None:
            rest = zeros(kind_of((*a.shape[:-1], n - m), a.dtype))
        else:
            rest_ct = columns(r_ct, m, n)
            more = matmul(columns(a, m, n), adjoint(rest_ct))
            q_ct, rest = more if q_ct is None else q_ct + more, matmul(q, rest_ct)
        return {0: beside(_qr_cotangent(q, u, q_ct, u_ct), rest)}

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        return [(x, 0) for x in bind_many(self, *self.moved(inputs, axes, size))]


def _divided(x: Node, r: Node) -> Node:
    """x r⁻¹, where r is an upper triangle."""
    return adjoint(bind(SolveTriangular(upper=False), adjoint(r), adjoint(x)))


def _qr_tangents(q: Node, r: Node, moved: Node) -> tuple[Node, Node]:
    """q' = q (w - c) + a' r⁻¹ and r' = (c - w) r, where c = q* a' r⁻¹, and w is skew-Hermitian and has the lower
    triangle of c."""
    by_r = _divided(moved, r)
    c = matmul(adjoint(q), by_r)
    below = triangle(c, k=-1)
    w = on_diagonal(imaginary_part(c), below - adjoint(below))
    return matmul(q, w - c) + by_r, matmul(c - w, r)


def _qr_cotangent(q: Node, r: Node, q_ct: Node | None, r_ct: Node | None) -> Node:
    """The transpose of that: (q_ct + q s) r⁻*, where s is Hermitian and has the upper triangle of r_ct r* - q* q_ct."""
    upper = None if r_ct is None else matmul(r_ct, adjoint(r))
    if q_ct is not None:
        turned = matmul(adjoint(q), q_ct)
        upper = -turned if upper is None else upper - turned
    assert upper is not None
    above = triangle(upper, upper=True)
    total = matmul(q, on_diagonal(real_part(above), above + adjoint(above)))
    return _divided_by_adjoint(total if q_ct is None else total + q_ct, r)


def _divided_by_adjoint(x: Node, r: Node) -> Node:
    """x r⁻*."""
    return adjoint(bind(SolveTriangular(upper=True), r, adjoint(x)))


class Lu(MultiOutput, Matrixwise):
    """(lu[..., m, n], pivots[..., k], order[..., m]) of a[..., m, n], k the smaller of m and n: rows i and pivots[i]
    were exchanged, one pair after the other, so that a[order] = l u, where l is unit lower triangular and u is upper
    triangular. `lu` has both, without the diagonal of l."""

    tolerance = {dt.float32: 16, dt.float64: 16, dt.complex64: 16, dt.complex128: 16}
    samples = tuple(
        Sample(lambda rng, dtype, shape=shape: [draw(rng, dtype, shape)], name=name)  # type: ignore[misc]
        for name, shape in (
            ("square", (4, 4)), ("tall", (5, 3)), ("wide", (3, 5)), ("batch", (2, 3, 3, 2)), ("one", (1, 1)),
            ("column", (5, 1)), ("row", (1, 5)), ("large", (70, 90)), ("nothing", (0, 3)), ("no_columns", (3, 0)),
            ("empty", (0, 3, 3)),
        )
    )  # fmt: skip

    def infer(self, *kinds: ArrayType) -> TupleType:
        (a,) = kinds
        *lead, m, n = a.shape
        k = n if m >= n else m
        return bundle_of([a, kind_of((*lead, k), dt.uint32), kind_of((*lead, m), dt.uint32)])

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 1, f"{len(kinds)} operands")
        super().check(*kinds)

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        *_, m, n = map(float, kinds[0].shape)
        return flops_each(kinds[0].dtype) * float(kinds[0].size) * min(m, n) * 2 / 3

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        (a,) = values
        *lead, m, n = a.shape
        lu, pivots = wide(a), np.empty((*lead, min(m, n)), np.uint32)
        order = np.broadcast_to(np.arange(m, dtype=np.uint32), (*lead, m)).copy()
        for place in np.ndindex(*lead):
            _eliminate(lu[place], pivots[place], order[place])
        return lu.astype(a.dtype), pivots, order

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        a, (lu, pivots, order) = wide(values[0]), results
        k = pivots.shape[-1]
        low, up = np.tril(wide(lu)[..., :, :k], -1), np.triu(wide(lu)[..., :k, :])
        low = low + np.eye(*low.shape[-2:])
        exchanged = np.take_along_axis(a, order[..., None].astype(np.int64), -2)
        if not np.array_equal(order, _orders(pivots, a.shape[-2])) or np.any(np.abs(low) > 1.5):
            return np.inf
        return relative(low @ up - exchanged, low, up, dtype=values[0].dtype)

    # ---- rules ----
    # With l (m × m) and u (n × n) made square by ones on the diagonal, and x = l⁻¹ a'[order] u⁻¹: l' is l times what is
    # below the diagonal of x, and u' the rest of x times u.

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        lu, _, order = outs
        low, up = _square_factors(lu)
        left = bind(SolveTriangular(upper=False, unit=True), low, rows_at(tangents[0], order))
        x = _divided(left, up)
        return matmul(low, triangle(x, k=-1)) + matmul(triangle(x, upper=True), up), None, None

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        lu, _, order = outs
        ct = cotangents[0]
        if ct is None:
            return {}
        low, up = _square_factors(lu)
        x = triangle(matmul(adjoint(low), ct), k=-1) + triangle(matmul(ct, adjoint(up)), upper=True)
        left = bind(SolveTriangular(upper=True, unit=True), adjoint(low), x)
        return {0: rows_at(_divided_by_adjoint(left, up), inverse_order(order))}

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        return [(x, 0) for x in bind_many(self, *self.moved(inputs, axes, size))]


def _square_factors(lu: Node) -> tuple[Node, Node]:
    """l (m × m) and u (n × n), with ones on the diagonal where the factors have none."""
    *lead, m, n = lu.shape
    low, up = triangle(lu, k=-1), triangle(lu, upper=True)
    if m > n:
        low, up = beside(low, zeros(kind_of((*lead, m, m - n), lu.dtype))), rows(up, 0, n)
    elif m < n:
        low, up = columns(low, 0, m), below(up, rows(identity((*lead, n, n), lu.dtype), m, n))
    return low + identity(low.shape, lu.dtype), up


def _eliminate(a: np.ndarray, pivots: np.ndarray, order: np.ndarray) -> None:
    """Gaussian elimination with partial pivoting, in place; a column of zeros is left as it is."""
    for i in range(len(pivots)):
        sizes = np.abs(a[i:, i].real) + np.abs(a[i:, i].imag)
        p = pivots[i] = i + int(np.argmax(sizes))
        a[[i, p]], order[[i, p]] = a[[p, i]], order[[p, i]]
        if a[i, i] != 0:
            a[i + 1 :, i] /= a[i, i]
        a[i + 1 :, i + 1 :] -= np.outer(a[i + 1 :, i], a[i, i + 1 :])


def _orders(pivots: np.ndarray, m: int) -> np.ndarray:
    """The order of rows that the exchanges make."""
    found = np.broadcast_to(np.arange(m, dtype=np.uint32), (*pivots.shape[:-1], m)).copy()
    for place in np.ndindex(*pivots.shape[:-1]):
        for i, p in enumerate(pivots[place]):
            found[place][[i, p]] = found[place][[p, i]]
    return found


def _phi(x: Node) -> Node:
    """The lower triangle, with half of the diagonal."""
    return on_diagonal(half(x), triangle(x))


def _first_minor(a: np.ndarray, upper: bool) -> int:
    """The order of the first leading minor of a Hermitian matrix that is not positive."""
    for order in range(1, len(a)):
        try:
            np.linalg.cholesky(a[:order, :order], upper=upper)
        except np.linalg.LinAlgError:
            return order
    return len(a)
