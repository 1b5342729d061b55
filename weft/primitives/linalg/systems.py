"""Systems of linear equations with triangular matrices, and inverses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node, Size
from weft.primitives.base import ByOperand, Sample, bind, flops_each
from weft.primitives.checks import equal_shapes, need
from weft.primitives.elementwise import draw
from weft.primitives.linalg.matrices import Matrixwise, adjoint, matmul, relative, square, triangle, wide
from weft.primitives.views import reshape, transpose


def _operands(rng: np.random.Generator, dtype: Dtype, a: tuple[int, ...], b: tuple[int, ...]) -> list[np.ndarray]:
    """A matrix whose triangles, both of them, are far from singular."""
    return [draw(rng, dtype, a, -1, 1) + max(4, a[-1]) * np.eye(a[-1], dtype=dtype.np), draw(rng, dtype, b)]


def _sample(name: str, a: tuple[int, ...], b: tuple[int, ...], upper: bool, unit: bool = False) -> Sample:
    params = {"upper": upper, "unit": unit}
    return Sample(lambda rng, dtype: _operands(rng, dtype, a, b), params, name=name)


class SolveTriangular(Matrixwise):
    """x with t x = b[..., n, k], where t is the lower (or upper) triangle of a[..., n, n], with ones on its diagonal if
    `unit`. Where the diagonal has a zero, x has infinities and NaNs, unless it is for a `function` of `linalg`: then it
    fails, in the name of that."""

    upper: bool
    unit: bool = False
    function: str | None = None
    tolerance = {dt.float32: 4, dt.float64: 4, dt.complex64: 8, dt.complex128: 8}
    samples = (
        _sample("lower", (5, 5), (5, 3), False),
        _sample("upper", (5, 5), (5, 3), True),
        _sample("unit", (4, 4), (4, 2), False, True),
        _sample("unit_upper", (4, 4), (4, 2), True, True),
        _sample("batch", (2, 3, 3, 3), (2, 3, 3, 1), True),
        _sample("one", (1, 1), (1, 2), False),
        _sample("large", (70, 70), (70, 40), False),
        _sample("nothing", (0, 0), (0, 3), False),
        _sample("empty", (3, 3), (3, 0), True),
    )

    @property
    def is_total(self) -> bool:
        return self.function is None

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[1]

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 2, f"{len(kinds)} operands")
        super().check(*kinds)
        a, b = kinds
        square(a)
        need(equal_shapes(a.shape[:-2], b.shape[:-2]) and a.shape[-1] == b.shape[-2], f"operands {a} and {b}")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return flops_each(out.dtype) * float(out.size) * float(kinds[0].shape[-1])

    def why(self, code: int) -> str:
        return f"is singular: element {code - 1} of its diagonal is 0."

    def reference(self, *values: np.ndarray) -> np.ndarray:
        a, b = values
        t, x = self._triangle(wide(a)), wide(b)
        n = a.shape[-1]
        if self.function is not None:
            self._refuse_singular(t)
        order = range(n - 1, -1, -1) if self.upper else range(n)
        for i in order:
            x[..., i, :] /= t[..., i, i, None]
            others = range(i) if self.upper else range(i + 1, n)
            x[..., others, :] -= t[..., others, i, None] * x[..., i, None, :]
        return x.astype(b.dtype)

    def _triangle(self, a: np.ndarray) -> np.ndarray:
        """The matrix that counts."""
        t = np.triu(a) if self.upper else np.tril(a)
        if self.unit:
            t = np.where(np.eye(a.shape[-1], dtype=bool), 1, t)
        return t

    def _refuse_singular(self, t: np.ndarray) -> None:
        for element, place in enumerate(np.ndindex(*t.shape[:-2])):
            (zero,) = np.nonzero(np.diagonal(t[place]) == 0)
            if len(zero):
                raise self.failed(element, int(zero[0]) + 1, t.shape[:-2])

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        t, b, x = self._triangle(wide(values[0])), wide(values[1]), wide(results[0])
        return relative(t @ x - b, t, x, dtype=values[0].dtype)

    # ---- rules ----

    def _solve(self, a: Node, b: Node) -> Node:
        """In a derivative, which a singular matrix has none of: no error more than that of the solution itself."""
        return bind(SolveTriangular(self.upper, self.unit), a, b)

    def _part(self, x: Node) -> Node:
        """The elements of a matrix that count."""
        return triangle(x, self.upper, (1 if self.upper else -1) if self.unit else 0)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        right = tangents.get(1)
        if 0 in tangents:
            moved = matmul(self._part(tangents[0]), out)
            right = -moved if right is None else right - moved
        return None if right is None else self._solve(primals[0], right)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        a, _ = primals
        right = bind(SolveTriangular(not self.upper, self.unit), adjoint(a), cotangent)
        found = {1: right}
        if 0 in wanted:
            found[0] = self._part(-matmul(right, adjoint(out)))
        return {i: ct for i, ct in found.items() if i in wanted}

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        a, b = inputs
        if axes[0] is not None or axes[1] is None:
            return bind(self, *self.moved(inputs, axes, size)), 0
        # One matrix for the whole batch: its right sides are columns beside each other.
        last = b.ndim - 1
        order = (*(i for i in range(b.ndim) if i != axes[1]), axes[1])
        moved = transpose(b, order)
        columns = reshape(moved, (*moved.shape[:-2], moved.shape[-2] * size))
        return reshape(bind(self, a, columns), moved.shape), last


class Inverse(Matrixwise):
    """The inverse of a[..., n, n]; it fails for a singular matrix."""

    is_total = False  # type: ignore[assignment]
    tolerance = {dt.float32: 16, dt.float64: 16, dt.complex64: 16, dt.complex128: 16}
    samples = tuple(
        Sample(lambda rng, dtype, shape=shape: _operands(rng, dtype, shape, ())[:1], name=name)  # type: ignore[misc]
        for name, shape in (
            ("square", (4, 4)), ("batch", (2, 3, 2, 2)), ("one", (1, 1)), ("large", (70, 70)), ("nothing", (0, 0)),
            ("empty", (0, 3, 3)),
        )
    )  # fmt: skip

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 1, f"{len(kinds)} operands")
        super().check(*kinds)
        square(kinds[0])

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return 2 * flops_each(out.dtype) * float(out.size) * float(out.shape[-1])

    @property
    def title(self) -> str:
        return "inv"

    def why(self, code: int) -> str:
        return "is singular: it has no inverse. `pinv` gives one that always exists."

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (a,) = values
        given, out = wide(a), np.empty(a.shape, wide(a).dtype)
        for element, place in enumerate(np.ndindex(*a.shape[:-2])):
            try:
                out[place] = np.linalg.inv(given[place])
            except np.linalg.LinAlgError:
                raise self.failed(element, 1, a.shape[:-2]) from None
        return out.astype(a.dtype)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        """Of one column at a time, which is what a solver promises; for all of them it takes the condition."""
        a, x = wide(values[0]), wide(results[0])
        residual = a @ x - np.eye(a.shape[-1])
        return relative(residual, a, x, dtype=values[0].dtype)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return -matmul(out, matmul(tangents[0], out))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        turned = adjoint(out)
        return {0: -matmul(turned, matmul(cotangent, turned))}

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, *self.moved(inputs, axes, size)), 0
