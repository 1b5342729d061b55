"""Determinants. Their values are products of the diagonal of an LU factorization; derivatives go by definitions."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node, Shape, kind_of
from weft.primitives.base import ByOperand, Sample, bind, bind_many, constant, zeros
from weft.primitives.checks import equal_kinds, need
from weft.primitives.creation import Iota
from weft.primitives.elementwise import Absolute, Log, NotEqual, Select, Sign, astype, conjugate, real
from weft.primitives.linalg.factors import Lu
from weft.primitives.linalg.implicit import Implicit, OfFactors, factored, factors_of, matrix_of, regular, solve
from weft.primitives.linalg.matrices import (
    DTYPES,
    across_columns,
    adjoint,
    diagonal,
    identity,
    imaginary_part,
    matmul,
    on_diagonal,
    square,
    transposed,
    wide,
)
from weft.primitives.linalg.spectral import Svd
from weft.primitives.reductions import Prod, Sum
from weft.primitives.scans import CumProd
from weft.primitives.views import Broadcast


def det(a: Node) -> Node:
    """det a."""
    return bind(Determinant(), a, _product(*bind_many(Lu(), a)))


def slogdet(a: Node) -> tuple[Node, Node]:
    """(det a / |det a|, log |det a|); (0, -inf) for a singular matrix."""
    lu, pivots, order = bind_many(Lu(), a)
    pivot = diagonal(lu)
    size, last = bind(Absolute(), pivot), pivot.ndim - 1
    sign = bind(Prod((last,)), bind(Sign(), pivot)) * _parity(pivots, a.dtype)
    return bind(DetSign(), a, lu, order, sign), bind(LogAbsDet(), a, lu, order, bind(Sum((last,)), bind(Log(), size)))


def _product(lu: Node, pivots: Node, order: Node) -> Node:
    return bind(Prod((lu.ndim - 2,)), diagonal(lu)) * _parity(pivots, lu.dtype)


def _parity(pivots: Node, dtype: Dtype) -> Node:
    """1 or -1: the sign of a permutation that is made by these exchanges."""
    last = pivots.ndim - 1
    at_home = bind(Broadcast(pivots.shape, (last,)), astype(bind(Iota((pivots.shape[-1],))), pivots.dtype))
    kind = kind_of(pivots.shape, dtype)
    signs = bind(Select(), bind(NotEqual(), pivots, at_home), constant(-1, kind), constant(1, kind))
    return bind(Prod((last,)), signs)


def trace(x: Node) -> Node:
    """The sum of the diagonal."""
    zero = constant(0, x.kind)
    return bind(Sum((x.ndim - 2, x.ndim - 1)), on_diagonal(x, zero))


def spread(x: Node, shape: Shape) -> Node:
    """A number for each matrix, in every element of it."""
    return bind(Broadcast(shape, tuple(range(x.ndim))), x)


def _samples(cls: Any) -> tuple[Sample, ...]:
    """For a class of `_OfDeterminant`."""
    shapes = (("one", (4, 4)), ("batch", (2, 3, 3)), ("nothing", (0, 0)), ("empty", (0, 2, 2)))
    return tuple(
        Sample(lambda rng, dtype, shape=shape: cls().completed(regular(rng, dtype, shape)), name=name)  # type: ignore[misc]
        for name, shape in shapes
    )


class _OfDeterminant(OfFactors):
    """A number for each matrix; operands are a[..., n, n], its factors and the order of its rows, and the value."""

    def value_dtype(self, dtype: Dtype) -> Dtype:
        return dtype

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 4, f"{len(kinds)} operands")
        a, lu, order, value = kinds
        self.check_factors(a, lu, order)
        need(equal_kinds(value, kind_of(a.shape[:-2], self.value_dtype(a.dtype))), f"a value {value} of {a}")

    def completed(self, a: np.ndarray) -> list[np.ndarray]:
        """The operands for such an a."""
        return [a, *factors_of(a), self.reference(a)]


class LogAbsDet(_OfDeterminant):
    """log |det a|; operands are a[..., n, n], its factors and the order of its rows, and the value, which is real."""

    def value_dtype(self, dtype: Dtype) -> Dtype:
        return dt.real_of(dtype)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.slogdet(wide(values[0]))[1]).astype(values[0].real.dtype)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return real(trace(solve(matrix_of(primals), tangents[0]))) if 0 in tangents else None

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        return {0: _scaled_inverse(primals, cotangent)} if 0 in wanted else {}


def _scaled_inverse(primals: tuple[Node, ...], factor: Node) -> Node:
    """The adjoint of the inverse of a matrix, times a number for each."""
    a = primals[0]
    inverse = solve(matrix_of(primals), identity(a.shape, a.dtype), transposed=True)
    return inverse * spread(astype(factor, a.dtype), a.shape)


class DetSign(_OfDeterminant):
    """det a / |det a|; operands are a[..., n, n], its factors and the order of its rows, and the value. Real signs do
    not change with a."""

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.slogdet(wide(values[0]))[0]).astype(values[0].dtype)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        if 0 not in tangents or not out.dtype.is_complex:
            return None
        return out * imaginary_part(trace(solve(matrix_of(primals), tangents[0])))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        if 0 not in wanted or not out.dtype.is_complex:
            return {}
        return {0: _scaled_inverse(primals, imaginary_part(conjugate(out) * cotangent))}


# ---- the determinant itself ----


class Determinant(Implicit):
    """det a; operands are a[..., n, n] and the value. Also a singular matrix has a gradient, the cofactors."""

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 2, f"{len(kinds)} operands")
        a, value = kinds
        need(a.dtype in DTYPES and a.ndim >= 2, f"a matrix {a}")
        square(a)
        need(equal_kinds(value, kind_of(a.shape[:-2], a.dtype)), f"a value {value} of {a}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.asarray(np.linalg.det(wide(values[0]))).astype(values[0].dtype)

    def completed(self, a: np.ndarray) -> list[np.ndarray]:
        """The operands for such an a."""
        return [a, self.reference(a)]

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return trace(matmul(adjugate(primals[0]), tangents[0])) if 0 in tangents else None

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        a = primals[0]
        return {0: adjoint(adjugate(a)) * spread(cotangent, a.shape)} if 0 in wanted else {}


def adjugate(a: Node) -> Node:
    """The transpose of the cofactors: det(a) a⁻¹, which exists for a singular matrix too."""
    u, s, vh = bind_many(Svd(full=False), a)
    last = s.ndim - 1
    others = bind(CumProd(last, False, True), s) * bind(CumProd(last, True, True), s)
    phase = _product(*bind_many(Lu(), u)) * _product(*bind_many(Lu(), vh))
    scaled = adjoint(vh) * across_columns(astype(others, a.dtype), a.shape)
    return bind(Adjugate(), a, matmul(scaled, adjoint(u)) * spread(phase, a.shape))


class Adjugate(Implicit):
    """The matrix x with a x = det(a) 1, the derivative of the determinant; operands are a[..., n, n] and x. Its own
    derivatives are those of regular matrices."""

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 2, f"{len(kinds)} operands")
        a, value = kinds
        need(a.dtype in DTYPES and a.ndim >= 2, f"a matrix {a}")
        square(a)
        need(equal_kinds(value, a), f"a value {value} of {a}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        a = wide(values[0])
        found = np.empty_like(a)
        n = a.shape[-1]
        for i, j in np.ndindex(n, n):
            minor = np.delete(np.delete(a, j, -2), i, -1)
            found[..., i, j] = (-1) ** (i + j) * np.linalg.det(minor)
        return found.astype(values[0].dtype)

    def completed(self, a: np.ndarray) -> list[np.ndarray]:
        """The operands for such an a."""
        return [a, self.reference(a)]

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return self._tangent(primals[0], tangents[0]) if 0 in tangents else None

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        if 0 not in wanted:
            return {}
        found = transposed(lambda moved: [self._tangent(primals[0], moved)], primals[0].kind, [cotangent])
        return {} if found is None else {0: found}

    def _tangent(self, a: Node, moved: Node) -> Node:
        n, one = a.shape[-1], identity(a.shape, a.dtype)
        if n <= 1:
            return zeros(a.kind)
        if n <= 2:
            return spread(trace(moved), a.shape) * one - moved
        inverse = solve(factored(a), one)
        change = matmul(inverse, moved)
        return (spread(trace(change), a.shape) * inverse - matmul(change, inverse)) * spread(det(a), a.shape)


LogAbsDet.samples, DetSign.samples = _samples(LogAbsDet), _samples(DetSign)
Determinant.samples, Adjugate.samples = _samples(Determinant), _samples(Adjugate)
