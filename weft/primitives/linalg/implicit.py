"""Values that are differentiated by what they solve, not by how they were computed: solutions of equations here,
determinants in determinants.py.

An `Implicit` operation has as operands what defines a value, what else helps to compute its derivatives (the factors of
a matrix beside the matrix), and last the value itself, which is its result: it costs nothing, and simplification drops
it. Derivatives go through the definition, and use the same factors again.
"""

from __future__ import annotations

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node, Size, kind_of
from weft.primitives.base import ByOperand, Primitive, Sample, bind, bind_many, move_batch_to_front
from weft.primitives.checks import equal_kinds, equal_shapes, need
from weft.primitives.elementwise import draw
from weft.primitives.linalg.factors import Lu
from weft.primitives.linalg.matrices import (
    DTYPES,
    adjoint,
    adjoint_of,
    identity,
    inverse_order,
    matmul,
    rows_at,
    square,
    transposed,
    wide,
)
from weft.primitives.linalg.systems import SolveTriangular


class Implicit(Primitive):
    """The last operand, the value of what the others define."""

    dtypes = DTYPES

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[-1]

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        moved = [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]
        return bind(self, *moved), 0


class OfFactors(Implicit):
    """What is defined by a matrix, and has its factors (`Lu`) and the order of its rows as further operands."""

    def check_factors(self, a: ArrayType, lu: ArrayType, order: ArrayType) -> None:
        need(a.dtype in DTYPES and a.ndim >= 2, f"a matrix {a}")
        square(a)
        need(equal_kinds(a, lu), f"factors {lu} of {a}")
        need(equal_kinds(order, kind_of(a.shape[:-1], dt.uint32)), f"an order {order} of the rows of {a}")


def factors_of(a: np.ndarray) -> list[np.ndarray]:
    lu, _, order = Lu().reference(a)
    return [lu, order]


def regular(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    return draw(rng, dtype, shape, -1, 1) + 3 * np.eye(shape[-1], dtype=dtype.np)


# ---- solutions ----


Factored = tuple[Node, Node, Node]
"""A matrix, its factors, and the order of its rows: a[order] = l u."""


def factored(a: Node) -> Factored:
    lu, _, order = bind_many(Lu(), a)
    return a, lu, order


def solve(matrix: Factored, b: Node, transposed: bool = False, function: str | None = None) -> Node:
    """x with a x = b (or a* x = b). In the name of a `function` of `linalg`, a singular matrix is an error."""
    a, lu, order = matrix
    if transposed:
        left = bind(SolveTriangular(upper=False, function=function), adjoint(lu), b)
        turned = bind(SolveTriangular(upper=True, unit=True), adjoint(lu), left)
        value = rows_at(turned, inverse_order(order))
    else:
        left = bind(SolveTriangular(upper=False, unit=True), lu, rows_at(b, order))
        value = bind(SolveTriangular(upper=True, function=function), lu, left)
    return bind(Solution(transposed), a, lu, order, b, value)


def matrix_of(primals: tuple[Node, ...]) -> Factored:
    a, lu, order, *_ = primals
    return a, lu, order


class Solution(OfFactors):
    """x with a x = b (or a* x = b, if `transposed`); operands are a[..., n, n], its factors and the order of its rows,
    b[..., n, k], and x."""

    transposed: bool
    samples = tuple(
        Sample(
            lambda rng, dtype, a=a, b=b, t=t: Solution(t).completed(regular(rng, dtype, a), draw(rng, dtype, b)),  # type: ignore[misc]
            {"transposed": t},
            name=name,
        )
        for name, a, b, t in (
            ("plain", (4, 4), (4, 2), False), ("transposed", (3, 3), (3, 2), True),
            ("batch", (2, 3, 3), (2, 3, 1), False), ("nothing", (0, 0), (0, 2), False), ("empty", (2, 2), (2, 0), True),
        )
    )  # fmt: skip

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 5, f"{len(kinds)} operands")
        a, lu, order, b, value = kinds
        self.check_factors(a, lu, order)
        need(b.ndim == a.ndim and equal_shapes(a.shape[:-1], b.shape[:-1]), f"operands {a} and {b}")
        need(b.dtype is a.dtype and equal_kinds(b, value), f"operands {b} and {value}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        a, b = wide(values[0]), wide(values[3])
        return np.linalg.solve(adjoint_of(a) if self.transposed else a, b).astype(values[0].dtype)

    def completed(self, a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
        """The operands for such a and b."""
        operands = [a, *factors_of(a), b]
        return [*operands, self.reference(*operands)]

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        right = tangents.get(3)
        if 0 in tangents:
            moved = matmul(adjoint(tangents[0]) if self.transposed else tangents[0], out)
            right = -moved if right is None else right - moved
        return None if right is None else solve(matrix_of(primals), right, self.transposed)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        right = solve(matrix_of(primals), cotangent, not self.transposed)
        found = {3: right}
        if 0 in wanted:
            found[0] = -(matmul(out, adjoint(right)) if self.transposed else matmul(right, adjoint(out)))
        return {i: ct for i, ct in found.items() if i in wanted}


# ---- pseudo-inverses ----


class PseudoInverse(Implicit):
    """The Moore-Penrose inverse x of a[..., m, n]; operands are a and x. Derivatives are those of matrices that keep
    their rank."""

    samples = tuple(
        Sample(lambda rng, dtype, shape=shape: _with_inverse(draw(rng, dtype, shape)), name=name)  # type: ignore[misc]
        for name, shape in (
            ("square", (3, 3)), ("tall", (4, 2)), ("wide", (2, 4)), ("batch", (2, 3, 2)), ("nothing", (0, 2)),
            ("empty", (0, 3, 2)),
        )
    )  # fmt: skip

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 2, f"{len(kinds)} operands")
        a, value = kinds
        need(a.dtype in DTYPES and a.ndim >= 2, f"a matrix {a}")
        *lead, m, n = a.shape
        need(equal_kinds(value, kind_of((*lead, n, m), a.dtype)), f"an inverse {value} of {a}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.linalg.pinv(wide(values[0])).astype(values[0].dtype)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return self._tangent(primals[0], out, tangents[0]) if 0 in tangents else None

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        if 0 not in wanted:
            return {}
        found = transposed(lambda moved: [self._tangent(primals[0], out, moved)], primals[0].kind, [cotangent])
        return {} if found is None else {0: found}

    def _tangent(self, a: Node, x: Node, moved: Node) -> Node:
        """-x a' x + x x* a'* (1 - a x) + (1 - x a) a'* x* x."""
        *lead, m, n = a.shape
        turned, moved_turned = adjoint(x), adjoint(moved)
        left = identity((*lead, m, m), a.dtype) - matmul(a, x)
        right = identity((*lead, n, n), a.dtype) - matmul(x, a)
        first = matmul(x, matmul(moved, x))
        second = matmul(matmul(x, turned), matmul(moved_turned, left))
        third = matmul(matmul(right, moved_turned), matmul(turned, x))
        return second + third - first


def _with_inverse(a: np.ndarray) -> list[np.ndarray]:
    return [a, PseudoInverse().reference(a)]
