"""Eigenvalues and singular values.

Vectors are determined up to a factor of modulus one (a sign, for real ones), and where values are equal, up to a
rotation among theirs. Derivatives are those of vectors that turn no more than they have to, which is right for
functions that do not depend on the choice. Where values are equal, derivatives of vectors are infinite or NaN; those of
the values alone are not. Matrices with infinities or NaNs have NaNs for results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.dims import is_now
from weft.graph.node import ArrayType, Node, Size, TupleType, bundle_of, kind_of
from weft.primitives.base import ByOperand, MultiOutput, Sample, bind, bind_many, constant, flops_each, zeros
from weft.primitives.checks import need
from weft.primitives.elementwise import Absolute, astype, conjugate, draw, real
from weft.primitives.indexing import Gather
from weft.primitives.linalg.implicit import factored, solve
from weft.primitives.linalg.matrices import (
    Matrixwise,
    across_columns,
    across_rows,
    adjoint,
    adjoint_of,
    beside,
    columns,
    diagonal,
    half,
    hermitian,
    imaginary_part,
    matmul,
    norms,
    on_diagonal,
    relative,
    rows,
    square,
    transposed,
    wide,
)
from weft.primitives.reductions import ArgMax, Sum


class _Spectral(Matrixwise):
    """What has no answer if an iteration does not come to its end."""

    is_total = False  # type: ignore[assignment]
    tolerance = {dt.float32: 64, dt.float64: 64, dt.complex64: 64, dt.complex128: 64}

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 1, f"{len(kinds)} operands")
        super().check(*kinds)

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        *_, m, n = map(float, kinds[0].shape)
        return 9.0 * flops_each(kinds[0].dtype) * float(kinds[0].size) * min(m, n)

    def why(self, code: int) -> str:
        return f"has no result: the iteration left {code} values that it did not find."


class _WithVectors(MultiOutput, _Spectral):
    """Values and vectors."""

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        return [(x, 0) for x in bind_many(self, *self.moved(inputs, axes, size))]


class _ValuesOnly(_Spectral):
    """The values without their vectors."""

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, *self.moved(inputs, axes, size)), 0


def _each(
    a: np.ndarray, compute: Callable[[np.ndarray], Sequence[np.ndarray]], like: Sequence[tuple[int, ...]]
) -> list[np.ndarray]:
    """Results for every matrix, of these shapes; NaNs for one that is not finite."""
    found = [np.full((*a.shape[:-2], *shape), np.nan, np.complex128) for shape in like]
    for place in np.ndindex(*a.shape[:-2]):
        if np.isfinite(a[place]).all():
            for result, part in zip(found, compute(a[place]), strict=True):
                result[place] = part
    return found


def _narrow(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return (x if dtype.kind == "c" else x.real).astype(dtype)


def inverse_differences(values: Node) -> Node:
    """1 / (w[j] - w[i]) at row i and column j, and 0 on the diagonal."""
    shape = (*values.shape, values.shape[-1])
    apart = across_columns(values, shape) - across_rows(values, shape)
    one = constant(1, apart.kind)
    return on_diagonal(zeros(apart.kind), one / on_diagonal(one, apart))


# ---- Hermitian matrices ----


def _hermitian(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Hermitian matrices whose eigenvalues are apart."""
    x = wide(draw(rng, dtype, shape, -1, 1))
    return ((x + adjoint_of(x)) / 2 + 3 * np.diag(np.arange(shape[-1]))).astype(dtype.np)


def _hermitian_part(x: np.ndarray) -> np.ndarray:
    return (x + adjoint_of(x)) / 2


def _of_reals(dtype: Dtype) -> bool:
    """Signs of real vectors do not change with small changes of a matrix; complex phases may."""
    return not dtype.is_complex


def _hermitian_samples(smooth: bool | Callable[[Dtype], bool]) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            lambda rng, dtype, shape=shape: [_hermitian(rng, dtype, shape)],  # type: ignore[misc]
            {"upper": upper},
            smooth,
            name,
            _hermitian_part,
        )
        for name, shape, upper in (
            ("lower", (4, 4), False), ("upper", (4, 4), True), ("batch", (2, 2, 3, 3), False), ("one", (1, 1), False),
            ("large", (40, 40), False), ("nothing", (0, 0), False), ("empty", (0, 3, 3), True),
        )
    )  # fmt: skip


def _whole(a: np.ndarray, upper: bool) -> np.ndarray:
    """The Hermitian matrix that a triangle stands for."""
    strict = np.triu(wide(a), 1) if upper else np.tril(wide(a), -1)
    return strict + adjoint_of(strict) + np.eye(a.shape[-1]) * wide(a).real


class Eigh(_WithVectors):
    """(w[..., n], v[..., n, n]): the eigenvalues of a Hermitian matrix a[..., n, n] in ascending order, and in the
    columns of v the eigenvectors, which are orthonormal. Only the lower (or upper) triangle of a is read; gradients are
    Hermitian."""

    upper: bool
    samples = _hermitian_samples(_of_reals)

    def infer(self, *kinds: ArrayType) -> TupleType:
        (a,) = kinds
        return bundle_of([kind_of(a.shape[:-1], dt.real_of(a.dtype)), a])

    def check(self, *kinds: ArrayType) -> None:
        super().check(*kinds)
        square(kinds[0])

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        (a,) = values
        n = a.shape[-1]
        w, v = _each(_whole(a, self.upper), np.linalg.eigh, [(n,), (n, n)])
        return _narrow(w, a.real.dtype), _narrow(v, a.dtype)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        a, (w, v) = _whole(values[0], self.upper), map(wide, results)
        if np.any(np.diff(w) < 0):
            return np.inf
        dtype = values[0].dtype
        return max(relative((v * w[..., None, :]) @ adjoint_of(v) - a, a, dtype=dtype), _not_orthonormal(v, dtype))

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        """With p = v* a' v: w' is its diagonal, and v' = v (p / (w[j] - w[i]))."""
        w, v = outs
        p = matmul(adjoint(v), matmul(hermitian(tangents[0]), v))
        return real(diagonal(p)), matmul(v, astype(inverse_differences(w), v.dtype) * p)

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        (w, v), (w_ct, v_ct) = outs, cotangents
        turned = _scaled(v, w_ct) if w_ct is not None else None
        if v_ct is not None:
            rest = matmul(v, astype(inverse_differences(w), v.dtype) * matmul(adjoint(v), v_ct))
            turned = rest if turned is None else turned + rest
        return {} if turned is None else {0: hermitian(matmul(turned, adjoint(v)))}


class HermitianEigenvalues(_ValuesOnly):
    """w[..., n]: the eigenvalues of a Hermitian matrix a[..., n, n] in ascending order. Only the lower (or upper)
    triangle of a is read; gradients are Hermitian."""

    upper: bool
    samples = _hermitian_samples(True)

    def infer(self, *kinds: ArrayType) -> ArrayType:
        (a,) = kinds
        return kind_of(a.shape[:-1], dt.real_of(a.dtype))

    def check(self, *kinds: ArrayType) -> None:
        super().check(*kinds)
        square(kinds[0])

    @property
    def title(self) -> str:
        return "eigvalsh"

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (a,) = values
        (w,) = _each(_whole(a, self.upper), lambda x: [np.linalg.eigvalsh(x)], [(a.shape[-1],)])
        return _narrow(w, a.real.dtype)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        return _off(results[0], np.linalg.eigvalsh(_whole(values[0], self.upper)), values[0])

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        _, v = bind_many(Eigh(self.upper), *primals)
        return real(diagonal(matmul(adjoint(v), matmul(hermitian(tangents[0]), v))))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        _, v = bind_many(Eigh(self.upper), *primals)
        return {0: hermitian(matmul(_scaled(v, cotangent), adjoint(v)))}


def _scaled(x: Node, factors: Node) -> Node:
    """Columns times a number each."""
    return x * across_columns(astype(factors, x.dtype), x.shape)


def _not_orthonormal(v: np.ndarray, dtype: np.dtype) -> float:
    one = np.broadcast_to(np.eye(v.shape[-1]), (*v.shape[:-2], v.shape[-1], v.shape[-1]))
    return relative(adjoint_of(v) @ v - one, one, dtype=dtype)


def _off(found: np.ndarray, expected: np.ndarray, a: np.ndarray) -> float:
    """Differences of values that change no more than their matrix does, in units of its norm."""
    size = norms(wide(a))[..., None] * float(np.finfo(a.dtype).eps)
    with np.errstate(all="ignore"):
        error = np.where(found == expected, 0.0, np.abs(wide(found) - expected) / size)
    return float(np.max(error, initial=0.0))


# ---- singular values ----

_SHAPES = (
    ("square", (4, 4)), ("tall", (5, 3)), ("wide", (3, 5)), ("batch", (2, 2, 3, 2)), ("one", (1, 1)),
    ("column", (4, 1)), ("row", (1, 4)), ("large", (40, 30)), ("nothing", (0, 3)), ("no_columns", (3, 0)),
    ("empty", (0, 2, 3)),
)  # fmt: skip


def _apart(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Matrices whose singular values (and eigenvalues) are apart."""
    k = np.arange(1, min(shape[-2:]) + 1)
    big = np.zeros(shape[-2:])
    big[k - 1, k - 1] = 3 * k
    return (wide(draw(rng, dtype, shape, -1, 1)) + big).astype(dtype.np)


class Svd(_WithVectors):
    """(u[..., m, k], s[..., k], vh[..., k, n]) with a[..., m, n] = u diag(s) vh, k the smaller of m and n: the columns
    of u and the rows of vh are orthonormal, and s are the singular values in descending order. If `full`, u (m × m) and
    vh (n × n) are completed to square matrices."""

    full: bool
    samples = (
        *(
            Sample(
                lambda rng, dtype, shape=shape: [_apart(rng, dtype, shape)],  # type: ignore[misc]
                {"full": False},
                _of_reals,
                name,
            )
            for name, shape in _SHAPES
        ),
        *(
            Sample(
                lambda rng, dtype, shape=shape: [_apart(rng, dtype, shape)],  # type: ignore[misc]
                {"full": True},
                False,
                f"{name}_full",
            )
            for name, shape in _SHAPES
        ),
    )

    def infer(self, *kinds: ArrayType) -> TupleType:
        (a,) = kinds
        *lead, m, n = a.shape
        k = n if m >= n else m
        left, right = (m, n) if self.full else (k, k)
        return bundle_of(
            [
                kind_of((*lead, m, left), a.dtype),
                kind_of((*lead, k), dt.real_of(a.dtype)),
                kind_of((*lead, right, n), a.dtype),
            ]
        )

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        (a,) = values
        m, n = a.shape[-2:]
        k = min(m, n)
        shapes: list[tuple[int, ...]] = [(m, m if self.full else k), (k,), (n if self.full else k, n)]
        u, s, vh = _each(wide(a), lambda x: np.linalg.svd(x, self.full), shapes)
        return _narrow(u, a.dtype), _narrow(s, a.real.dtype), _narrow(vh, a.dtype)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        a, (u, s, vh) = wide(values[0]), map(wide, results)
        k, dtype = s.shape[-1], values[0].dtype
        if np.any(np.diff(s) > 0) or np.any(s < 0):
            return np.inf
        product = (u[..., :k] * s[..., None, :]) @ vh[..., :k, :]
        return max(
            relative(product - a, a, dtype=dtype), _not_orthonormal(u, dtype), _not_orthonormal(adjoint_of(vh), dtype)
        )

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        return self._tangents(outs, tangents[0])

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        found = transposed(lambda moved: self._tangents(outs, moved), primals[0].kind, cotangents)
        return {} if found is None else {0: found}

    def _tangents(self, outs: Sequence[Node], moved: Node) -> Sequence[Node]:
        """With p = u* a' v: s' is the diagonal of p, u' = u x + what a' adds to the space of u, v' likewise, where x
        is skew-Hermitian."""
        u, s, vh = outs
        (m, n), k = moved.shape[-2:], s.shape[-1]
        left, right = (columns(u, 0, k), adjoint(rows(vh, 0, k))) if self.full else (u, adjoint(vh))
        p = matmul(adjoint(left), matmul(moved, right))
        sizes = astype(s, u.dtype)
        across, down = across_columns(sizes, p.shape), across_rows(sizes, p.shape)
        apart = astype(inverse_differences(s * s), u.dtype)
        phases = half(imaginary_part(p) / across)
        turned_left = on_diagonal(phases, apart * (p * across + down * adjoint(p)))
        turned_right = on_diagonal(-phases, apart * (down * p + adjoint(p) * across))
        u_moved = _vectors_moved(left, turned_left, matmul(moved, right), sizes, m > k)
        v_moved = _vectors_moved(right, turned_right, matmul(adjoint(moved), left), sizes, n > k)
        if self.full and m > k:
            u_moved = beside(u_moved, _others_moved(left, u_moved, columns(u, k, m)))
        if self.full and n > k:
            v_moved = beside(v_moved, _others_moved(right, v_moved, adjoint(rows(vh, k, n))))
        return u_moved, real(diagonal(p)), adjoint(v_moved)


def _vectors_moved(vectors: Node, turned: Node, images: Node, sizes: Node, leave: bool) -> Node:
    """How singular vectors move: within their space, and out of it where there is room."""
    within = matmul(vectors, turned)
    if not leave:
        return within
    out = images - matmul(vectors, matmul(adjoint(vectors), images))
    return within + out / across_columns(sizes, out.shape)


def _others_moved(vectors: Node, moved: Node, others: Node) -> Node:
    """How those that complete them move: they stay orthogonal to them, and do nothing else."""
    return -matmul(vectors, matmul(adjoint(moved), others))


class SingularValues(_ValuesOnly):
    """s[..., k]: the singular values of a[..., m, n] in descending order, k the smaller of m and n."""

    samples = tuple(
        Sample(lambda rng, dtype, shape=shape: [_apart(rng, dtype, shape)], name=name)  # type: ignore[misc]
        for name, shape in _SHAPES
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        (a,) = kinds
        *lead, m, n = a.shape
        return kind_of((*lead, n if m >= n else m), dt.real_of(a.dtype))

    @property
    def title(self) -> str:
        return "svd"

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (a,) = values
        (s,) = _each(wide(a), lambda x: [np.linalg.svd(x, compute_uv=False)], [(min(a.shape[-2:]),)])
        return _narrow(s, a.real.dtype)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        return _off(results[0], np.linalg.svd(wide(values[0]), compute_uv=False), values[0])

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        u, _, vh = bind_many(Svd(full=False), *primals)
        return real(diagonal(matmul(adjoint(u), matmul(tangents[0], adjoint(vh)))))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        u, _, vh = bind_many(Svd(full=False), *primals)
        return {0: matmul(_scaled(u, cotangent), vh)}


# ---- eigenvalues of any matrix ----

_SQUARES = tuple(
    Sample(lambda rng, dtype, shape=shape: [_apart(rng, dtype, shape)], smooth=shape[-1] < 10, name=name)  # type: ignore[misc]
    for name, shape in (  # signs of many vectors may change with small changes of a matrix
        ("square", (4, 4)), ("batch", (2, 2, 3, 3)), ("one", (1, 1)), ("large", (30, 30)), ("nothing", (0, 0)),
        ("empty", (0, 3, 3)),
    )
)  # fmt: skip


class Eig(_WithVectors):
    """(w[..., n], v[..., n, n]), both complex: the eigenvalues of a[..., n, n], and in the columns of v eigenvectors of
    norm 1, of which the largest element is real."""

    samples = _SQUARES

    def infer(self, *kinds: ArrayType) -> TupleType:
        (a,) = kinds
        dtype = dt.complex_of(a.dtype)
        return bundle_of([kind_of(a.shape[:-1], dtype), kind_of(a.shape, dtype)])

    def check(self, *kinds: ArrayType) -> None:
        super().check(*kinds)
        square(kinds[0])

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        (a,) = values
        n, dtype = a.shape[-1], dt.complex_of(dt.from_numpy(a.dtype)).np
        w, v = _each(wide(a), np.linalg.eig, [(n,), (n, n)])
        return w.astype(dtype), v.astype(dtype)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        a, (w, v) = wide(values[0]), map(wide, results)
        dtype = values[0].dtype
        length = np.sqrt(np.sum(np.abs(v) ** 2, axis=-2, keepdims=True))
        return max(relative(a @ v - v * w[..., None, :], a, v, dtype=dtype), relative(length - 1, v, dtype=dtype))

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        w, v = outs
        return _eig_tangents(w, v, tangents[0])

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        w, v = outs
        found = transposed(lambda moved: _eig_tangents(w, v, moved), primals[0].kind, cotangents)
        return {} if found is None else {0: found}


def _eig_tangents(w: Node, v: Node, moved: Node) -> Sequence[Node]:
    """With p = v⁻¹ a' v: w' is its diagonal, and v' = v (p / (w[j] - w[i])), less what would change the norm of a
    vector, and make its largest element complex."""
    if is_now(w.shape[-1], 0):
        return zeros(w.kind), zeros(v.kind)
    p = _seen_from(v, moved)
    turned = matmul(v, inverse_differences(w) * p)
    along = bind(Sum((v.ndim - 2,)), conjugate(v) * turned)
    largest = bind(ArgMax((v.ndim - 2,)), bind(Absolute(), v))
    phase = imaginary_part(_at_rows(turned, largest) / _at_rows(v, largest))
    return diagonal(p), turned - _scaled(v, astype(real(along), v.dtype) + phase)


def _seen_from(v: Node, moved: Node) -> Node:
    """v⁻¹ a' v."""
    return solve(factored(v), matmul(astype(moved, v.dtype), v))


def _at_rows(x: Node, places: Node) -> Node:
    """The element of each column at a row."""
    lead = x.ndim - 2
    return bind(Gather((*range(lead), None, lead), tuple(range(lead + 1))), x, places)


class Eigenvalues(_ValuesOnly):
    """w[..., n], complex: the eigenvalues of a[..., n, n]."""

    samples = _SQUARES

    def infer(self, *kinds: ArrayType) -> ArrayType:
        (a,) = kinds
        return kind_of(a.shape[:-1], dt.complex_of(a.dtype))

    def check(self, *kinds: ArrayType) -> None:
        super().check(*kinds)
        square(kinds[0])

    @property
    def title(self) -> str:
        return "eigvals"

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (a,) = values
        (w,) = _each(wide(a), lambda x: [np.linalg.eigvals(x)], [(a.shape[-1],)])
        return w.astype(dt.complex_of(dt.from_numpy(a.dtype)).np)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        """How far a matrix is that has one of these eigenvalues; of large ones only the sum is looked at."""
        a, w = wide(values[0]), wide(results[0])
        total = _off(w.sum(-1, keepdims=True), np.trace(a, axis1=-2, axis2=-1)[..., None] + 0j, values[0])
        n = a.shape[-1]
        if n > 32 or not a.size:
            return total / max(n, 1)
        shifted = a[..., None, :, :] - w[..., None, None] * np.eye(n)
        least = np.linalg.svd(shifted, compute_uv=False)[..., -1]
        return max(total / n, _off(least, np.zeros(least.shape), values[0]))

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        _, v = bind_many(Eig(), *primals)
        return diagonal(_seen_from(v, tangents[0]))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        _, v = bind_many(Eig(), *primals)
        found = transposed(lambda moved: [diagonal(_seen_from(v, moved))], primals[0].kind, [cotangent])
        return {} if found is None else {0: found}
