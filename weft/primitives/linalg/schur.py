"""Triangular forms by rotations: Schur's of a matrix, that of a pair, and equations a x + x b = c of such matrices.

The form of a real matrix has blocks of two rows on its diagonal, one for each pair of complex eigenvalues. Vectors are
determined up to a factor of modulus one (a sign, for real ones). Derivatives are those of vectors that turn no more
than they have to, which is right for functions that do not depend on the choice; where eigenvalues are equal, there are
none. Matrices with infinities or NaNs have NaNs for results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.dims import is_now
from weft.graph.node import ArrayType, Node, Size, TupleType, bundle_of, kind_of
from weft.lazy import lazy
from weft.primitives.base import ByOperand, MultiOutput, Sample, bind, bind_many, constant, flops_each, zeros
from weft.primitives.checks import equal_shapes, need
from weft.primitives.contraction import swap_last
from weft.primitives.creation import Iota
from weft.primitives.elementwise import (
    BitwiseAnd,
    BitwiseOr,
    Equal,
    Greater,
    LessEqual,
    NotEqual,
    astype,
    draw,
    select,
)
from weft.primitives.linalg.implicit import factored, solve
from weft.primitives.linalg.matrices import (
    Matrixwise,
    Tangents,
    across_columns,
    across_rows,
    adjoint,
    adjoint_of,
    below,
    beside,
    diagonal,
    imaginary_part,
    matmul,
    on_diagonal,
    relative,
    rows,
    square,
    transposed,
    triangle,
    wide,
)
from weft.primitives.reductions import Sum
from weft.primitives.views import Broadcast, reshape, transpose

if TYPE_CHECKING:
    import scipy.linalg as scipy_linalg
else:
    scipy_linalg = lazy("scipy.linalg")

SORTS = ("", "lhp", "rhp", "iuc", "ouc")
"""Which eigenvalues come first: all as they are found; those left or right of the imaginary axis, those inside or
outside of the unit circle."""


class _Rotated(MultiOutput, Matrixwise):
    """A form of square matrices, and the vectors that lead to it. Where an iteration does not end, or eigenvalues that
    are to change places are too close to each other, it fails, or is all NaN if it is `quiet`."""

    sort: str = ""
    quiet: bool = False

    tolerance = {dt.float32: 64, dt.float64: 64, dt.complex64: 64, dt.complex128: 64}

    @property
    def is_total(self) -> bool:
        return self.quiet

    def why(self, code: int) -> str:
        return "has no such form: the iteration did not end, or eigenvalues that were to change places are too close."

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        n = float(kinds[0].shape[-1])
        return 25.0 * len(kinds) * flops_each(kinds[0].dtype) * float(kinds[0].size) * n

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        return [(x, 0) for x in bind_many(self, *self.moved(inputs, axes, size))]


def _of_reals(dtype: Dtype) -> bool:
    """Signs of real vectors do not change with small changes of a matrix; complex phases may."""
    return not dtype.is_complex


def _apart(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Matrices whose eigenvalues are apart."""
    signs = np.where(np.arange(shape[-1]) % 2, -1.0, 1.0)
    return (wide(draw(rng, dtype, shape, -1, 1)) + 3 * np.diag(signs * np.arange(shape[-1]))).astype(dtype.np)


def _turning(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Real matrices with pairs of complex eigenvalues, which are apart."""
    x = wide(_apart(rng, dtype, shape)) * 0.5
    for i in range(0, shape[-1] - 1, 3):
        x[..., i, i + 1], x[..., i + 1, i] = 4 + i, -3
        x[..., i + 1, i + 1] = x[..., i, i]
    return x.astype(dtype.np)


_SHAPES: tuple[tuple[str, tuple[int, ...], str], ...] = (
    ("square", (4, 4), ""), ("batch", (2, 2, 3, 3), ""), ("left", (5, 5), "lhp"), ("right", (4, 4), "rhp"),
    ("inside", (4, 4), "iuc"), ("outside", (5, 5), "ouc"), ("one", (1, 1), ""), ("large", (30, 30), ""),
    ("large_left", (30, 30), "lhp"), ("nothing", (0, 0), ""), ("empty", (0, 3, 3), ""),
)  # fmt: skip


def _samples(operands: int) -> tuple[Sample, ...]:
    """Real eigenvalues, and pairs of complex ones."""

    def sample(name: str, shape: tuple[int, ...], sort: str, first: Callable[..., np.ndarray]) -> Sample:
        def values(rng: np.random.Generator, dtype: Dtype) -> list[np.ndarray]:
            return [first(rng, dtype, shape), _regular(rng, dtype, shape)][:operands]

        # Blocks of pairs have values that are determined up to a factor, and what changes places may change its signs.
        smooth = (
            shape[-1] < 10 and not (sort and first is _turning) and not (operands == 2 and (sort or first is _turning))
        )
        return Sample(values, {"sort": sort}, _of_reals if smooth else False, name=name)

    return (
        *(sample(name, shape, sort, _apart) for name, shape, sort in _SHAPES),
        *(sample(f"{name}_pairs", shape, sort, _turning) for name, shape, sort in _SHAPES[:6]),
    )


def _regular(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    return (wide(draw(rng, dtype, shape, -0.3, 0.3)) + np.eye(shape[-1])).astype(dtype.np)


# ---- one matrix ----


class Schur(_Rotated):
    """(t[..., n, n], z[..., n, n]) with a[..., n, n] = z t z*, where z is unitary and t is upper triangular, but for
    blocks of two rows, whose diagonal elements are equal, if a is real. The eigenvalues that `sort` says come first."""

    samples = _samples(1)

    def infer(self, *kinds: ArrayType) -> TupleType:
        return bundle_of([kinds[0], kinds[0]])

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 1, f"{len(kinds)} operands")
        need(self.sort in SORTS, f"an order {self.sort!r}")
        super().check(*kinds)
        square(kinds[0])

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        (a,) = values

        def form(x: np.ndarray) -> Sequence[np.ndarray]:
            output = "complex" if x.dtype.kind == "c" else "real"
            return scipy_linalg.schur(x, output=output, sort=self.sort or None)[:2]  # type: ignore[no-any-return]

        return tuple(_each(self, [wide(a)], form, [a.shape[-2:]] * 2, [a.dtype] * 2))

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        a, (t, z) = wide(values[0]), map(wide, results)
        dtype = values[0].dtype
        if not _is_form(t) or not _is_sorted(_values_of(t), self.sort, dtype):
            return np.inf
        return max(relative(z @ t @ adjoint_of(z) - a, a, dtype=dtype), _not_unitary(z, dtype))

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        return _schur_tangents(*outs)(tangents[0])

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        found = transposed(_schur_tangents(*outs), primals[0].kind, cotangents)
        return {} if found is None else {0: found}


def _each(
    op: Matrixwise,
    given: Sequence[np.ndarray],
    compute: Callable[..., Sequence[np.ndarray]],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[np.dtype],
) -> list[np.ndarray]:
    """Results for each matrix; NaNs where one is not finite."""
    lead = given[0].shape[:-2]
    found = [np.full((*lead, *shape), np.nan, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    for element, place in enumerate(np.ndindex(*lead)):
        parts = [x[place] for x in given]
        if not given[0].shape[-1] or not all(np.isfinite(x).all() for x in parts):
            continue
        try:
            made = compute(*parts)
        except (np.linalg.LinAlgError, ValueError):
            if not op.is_total:
                raise op.failed(element, 1, lead) from None
            continue
        for result, part in zip(found, made, strict=True):
            result[place] = part
    return found


def _is_form(t: np.ndarray) -> bool:
    """Whether matrices are triangular but for blocks of two rows, in real ones."""
    under = np.diagonal(t, -1, -2, -1) != 0
    if np.any(np.tril(t, -2)) or (t.dtype.kind == "c" and under.any()):
        return False
    return not np.any(under[..., 1:] & under[..., :-1])


def _values_of(t: np.ndarray) -> np.ndarray:
    """The eigenvalues of forms in their order."""
    values = np.diagonal(t, 0, -2, -1).astype(np.complex128)
    product = np.diagonal(t, -1, -2, -1) * np.diagonal(t, 1, -2, -1)
    turned = np.sqrt(np.where(np.diagonal(t, -1, -2, -1) != 0, product, 0).astype(np.complex128))
    values[..., :-1] += turned
    values[..., 1:] -= turned
    return values


def _is_sorted(values: np.ndarray, sort: str, dtype: np.dtype) -> bool:
    """Whether eigenvalues that come first are the ones that are meant to, but for those that are on the boundary as far
    as rounding goes."""
    if not sort:
        return True
    beyond = -values.real if sort in ("lhp", "rhp") else 1 - np.abs(values)
    beyond = beyond if sort in ("lhp", "iuc") else -beyond
    near = 1e3 * np.finfo(dtype).eps * np.max(np.abs(values), initial=1.0)
    first, last = beyond > near, beyond < -near
    return not np.any(np.logical_or.accumulate(last, axis=-1) & first)


def _not_unitary(z: np.ndarray, dtype: np.dtype) -> float:
    one = np.broadcast_to(np.eye(z.shape[-1]), z.shape)
    return relative(adjoint_of(z) @ z - one, one, dtype=dtype)


# ---- derivatives of forms ----
# Vectors move as z' = z w, where w is skew-Hermitian. What is below its diagonal solves a system of linear equations:
# the form keeps its zeros, and blocks of two rows keep what they have. One equation for each element, n² × n².


class _Equations:
    """Matrices of the linear maps from w (n × n) to products with it, in axes (i, j, k, l): element (i, j) of the
    product, by element (k, l) of w, of which only what is below the diagonal counts."""

    def __init__(self, like: Node) -> None:
        self.lead, self.n, self.dtype = like.ndim - 2, like.shape[-1], like.dtype
        self.shape = (*like.shape[:-2], self.n, self.n, self.n, self.n)

    def _spread(self, x: Node, first: int, second: int) -> Node:
        """x[..., p, q] with p and q along two of the four axes."""
        if first > second:
            return self._spread(swap_last(x), second, first)
        return bind(Broadcast(self.shape, (*range(self.lead), self.lead + first, self.lead + second)), x)

    def is_same(self, first: int, second: int) -> Node:
        """1 where two of the four axes have the same place."""
        return astype(bind(Equal(), self._place(first), self._place(second)), self.dtype)

    def _place(self, axis: int) -> Node:
        return bind(Broadcast(self.shape, (self.lead + axis,)), bind(Iota((self.n,))))

    def difference(self, x: Node, y: Node, i: int = 0, j: int = 1) -> tuple[Node, Node]:
        """x w and w y at row i and column j, which may be any of the four axes."""
        right = self._spread(x, i, 2) * self.is_same(j, 3)
        left = self.is_same(i, 2) * self._spread(y, 3, j)
        return self._skew(right), self._skew(left)

    def _skew(self, m: Node) -> Node:
        """Of real matrices, what is above the diagonal of w is what is below it, with the other sign. Of complex ones
        none of that is seen: x is triangular, and only zeros below a diagonal are asked for."""
        if self.dtype.is_complex:
            return m
        order = (*range(self.lead + 2), self.lead + 3, self.lead + 2)
        return m - transpose(m, order)

    def where(self, condition: Node, x: Node, y: Node) -> Node:
        """Equations by a condition of (i, j)."""
        return select(self._spread(condition, 0, 1), x, y)

    def one(self) -> Node:
        return self.is_same(0, 2) * self.is_same(1, 3)

    def below(self, m: Node, rest: Node) -> Node:
        """The equations of what is below the diagonal, and those of the rest."""
        return select(bind(Greater(), self._place(0), self._place(1)), m, rest)

    def flat(self, m: Node) -> Node:
        return reshape(m, (*self.shape[: self.lead], self.n * self.n, self.n * self.n))

    def column(self, x: Node) -> Node:
        return reshape(x, (*self.shape[: self.lead], self.n * self.n, 1))

    def matrix(self, x: Node) -> Node:
        return reshape(x, self.shape[: self.lead + 2])


def _places(t: Node) -> tuple[Node, Node]:
    """Row and column of each element."""
    lead, numbers = t.ndim - 2, bind(Iota((t.shape[-1],)))
    return bind(Broadcast(t.shape, (lead,)), numbers), bind(Broadcast(t.shape, (lead + 1,)), numbers)


def _in_block(t: Node) -> Node:
    """Whether an element is the one under the diagonal of a block of two rows. There is none if t is complex."""
    down, across = _places(t)
    under = bind(Equal(), down, across + constant(1, across.kind))
    return bind(BitwiseAnd(), under, bind(NotEqual(), t, zeros(t.kind)))


def _kept(moved: Node, t: Node) -> Node:
    """Zeros where the form has them."""
    on = bind(BitwiseOr(), bind(LessEqual(), *_places(t)), _in_block(t))
    return select(on, moved, zeros(moved.kind))


def _skew_of(lower: Node) -> Node:
    return lower - adjoint(lower)


def _schur_tangents(t: Node, z: Node) -> Tangents:
    """With p = z* a' z: t' = p + t w - w t."""
    if is_now(t.shape[-1], 0):
        return lambda moved: (zeros(t.kind), zeros(z.kind))
    e, in_block = _Equations(t), _in_block(t)
    right, left = e.difference(t, t)
    rows_j, rows_i = e.difference(t, t, 1, 1), e.difference(t, t, 0, 0)
    level = (rows_j[0] - rows_j[1]) - (rows_i[0] - rows_i[1])  # two diagonal elements stay equal
    system = factored(e.flat(e.below(e.where(in_block, level, right - left), e.one())))

    def tangents(moved: Node) -> Sequence[Node]:
        p = matmul(adjoint(z), matmul(moved, z))
        on = diagonal(p)
        apart = across_columns(on, t.shape) - across_rows(on, t.shape)
        wanted = triangle(select(in_block, apart, p), k=-1)
        w = _skew_of(e.matrix(solve(system, -e.column(wanted))))
        return _kept(p + matmul(t, w) - matmul(w, t), t), matmul(z, w)

    return tangents


# ---- pairs ----


class GeneralizedSchur(_Rotated):
    """(s, t, q, z, alpha[..., n], beta[..., n]) with a[..., n, n] = q s z* and b[..., n, n] = q t z*, where q and z are
    unitary, t is upper triangular with a real diagonal, and s is so too but for blocks of two rows, beside which t is
    diagonal, if both are real. The eigenvalues of a x = b x w are alpha / beta; those that `sort` says come first."""

    samples = _samples(2)

    def infer(self, *kinds: ArrayType) -> TupleType:
        (a, _) = kinds
        alpha, beta = kind_of(a.shape[:-1], dt.complex_of(a.dtype)), kind_of(a.shape[:-1], a.dtype)
        return bundle_of([a, a, a, a, alpha, beta])

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 2, f"{len(kinds)} operands")
        need(self.sort in SORTS, f"an order {self.sort!r}")
        super().check(*kinds)
        square(kinds[0])
        need(equal_shapes(kinds[0].shape, kinds[1].shape), f"operands {kinds[0]} and {kinds[1]}")

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        a, b = values
        square_, vector, wider = a.shape[-2:], a.shape[-1:], dt.complex_of(dt.from_numpy(a.dtype)).np
        shapes: list[tuple[int, ...]] = [square_] * 4 + [vector] * 2
        return tuple(_each(self, [wide(a), wide(b)], self._form, shapes, [*[a.dtype] * 4, wider, a.dtype]))

    def _form(self, a: np.ndarray, b: np.ndarray) -> Sequence[np.ndarray]:
        if self.sort:
            output = "complex" if a.dtype.kind == "c" else "real"
            s, t, alpha, beta, q, z = scipy_linalg.ordqz(a, b, sort=self.sort, output=output)
            return s, t, q, z, alpha, beta
        (gges,) = scipy_linalg.get_lapack_funcs(("gges",), (a, b))
        s, t, _, *parts, q, z, _, info = gges(lambda *_: 0, a, b, sort_t=0)
        if info:
            raise np.linalg.LinAlgError("no form was found")
        alpha = parts[0] if len(parts) == 2 else parts[0] + 1j * parts[1]
        return s, t, q, z, alpha, parts[-1]

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        a, b = map(wide, values)
        s, t, q, z, alpha, beta = map(wide, results)
        dtype = values[0].dtype
        with np.errstate(all="ignore"):
            is_sorted = _is_sorted(alpha / beta, self.sort, dtype)
        if not _is_form(s) or np.any(np.tril(t, -1)) or not is_sorted:
            return np.inf
        return max(
            relative(q @ s @ adjoint_of(z) - a, a, dtype=dtype),
            relative(q @ t @ adjoint_of(z) - b, b, dtype=dtype),
            _not_unitary(q, dtype),
            _not_unitary(z, dtype),
        )

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        rule = _pair_tangents(*outs)
        return rule(*(tangents.get(i, zeros(x.kind)) for i, x in enumerate(primals)))

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        rule, nothing = _pair_tangents(*outs), zeros(primals[0].kind)
        by: dict[int, Tangents] = {0: lambda moved: rule(moved, nothing), 1: lambda moved: rule(nothing, moved)}
        found = {i: transposed(by[i], primals[i].kind, cotangents) for i in wanted}
        return {i: x for i, x in found.items() if x is not None}


def _pair_tangents(s: Node, t: Node, q: Node, z: Node, alpha: Node, beta: Node) -> Callable[[Node, Node], Any]:
    """With p = q* a' z and r = q* b' z: s' = p + s w - v s and t' = r + t w - v t, where q' = q v and z' = z w."""
    if is_now(s.shape[-1], 0):
        return lambda a, b: tuple(zeros(x.kind) for x in (s, t, q, z, alpha, beta))
    e, in_block = _Equations(s), _in_block(s)
    (s_right, s_left), (t_right, t_left) = e.difference(s, s), e.difference(t, t)
    above_right, above_left = e.difference(t, t, 1, 0)  # beside a block t is diagonal: zero above it too
    right, left = e.where(in_block, above_right, s_right), e.where(in_block, above_left, s_left)
    one, nothing = e.one(), zeros(e.one().kind)
    upper = beside(e.flat(e.below(-left, one)), e.flat(e.below(right, nothing)))
    lower = beside(e.flat(e.below(-t_left, nothing)), e.flat(e.below(t_right, one)))
    system = factored(below(upper, lower))

    def tangents(a: Node, b: Node) -> Sequence[Node]:
        p, r = (matmul(adjoint(q), matmul(x, z)) for x in (a, b))
        first = triangle(select(in_block, swap_last(r), p), k=-1)
        both = solve(system, -below(e.column(first), e.column(triangle(r, k=-1))))
        half = e.n * e.n
        v, w = (_skew_of(e.matrix(rows(both, start, start + half))) for start in (0, half))
        s_moved, t_moved = p + matmul(s, w) - matmul(v, s), r + matmul(t, w) - matmul(v, t)
        if s.dtype.is_complex:
            w, s_moved, t_moved = _turned_real(w, s, t, s_moved, t_moved)
        s_moved, t_moved = _kept(s_moved, s), triangle(t_moved, upper=True)
        values = _values_moved(s, t, alpha, beta, s_moved, t_moved)
        return s_moved, t_moved, matmul(q, v), matmul(z, w), *values

    return tangents


def _turned_real(w: Node, s: Node, t: Node, s_moved: Node, t_moved: Node) -> tuple[Node, Node, Node]:
    """The diagonal of t stays real: its columns, and those of s and z, turn by that much."""
    on, moved = diagonal(t), diagonal(imaginary_part(t_moved))
    is_zero = bind(Equal(), on, zeros(on.kind))
    turn = select(is_zero, zeros(on.kind), -moved / select(is_zero, constant(1, on.kind), on))
    by = across_columns(turn, t.shape)
    return on_diagonal(by, w), s_moved + s * by, t_moved + t * by


def _values_moved(s: Node, t: Node, alpha: Node, beta: Node, s_moved: Node, t_moved: Node) -> tuple[Node, Node]:
    """alpha and beta are diagonal elements of s and t. Of a block of two rows, with the sum x and the product y of its
    eigenvalues w = alpha / beta, w' = (w x' - y') / (2 w - x), and beta stays as it is."""
    alone, single = astype(diagonal(s_moved), alpha.dtype), diagonal(t_moved)
    if s.dtype.is_complex:
        return alone, single
    in_pair, sums = _of_blocks(s, t, s_moved, t_moved)
    x, x_moved, y_moved = (astype(v, alpha.dtype) for v in sums)
    scale, one = astype(beta, alpha.dtype), constant(1, alpha.kind)
    w = alpha / select(in_pair, scale, one)
    moved = (w * x_moved - y_moved) / select(in_pair, w + w - x, one)
    return select(in_pair, scale * moved, alone), select(in_pair, zeros(beta.kind), single)


def _of_blocks(s: Node, t: Node, s_moved: Node, t_moved: Node) -> tuple[Node, list[Node]]:
    """Whether a row belongs to a block, and of that the sum of its eigenvalues and how that and their product move."""
    in_block, on = _in_block(s), diagonal(t)
    is_zero = bind(Equal(), on, zeros(on.kind))
    by = constant(1, on.kind) / select(is_zero, constant(1, on.kind), on)
    u, rate = diagonal(s) * by, diagonal(t_moved) * by
    u_moved = diagonal(s_moved) * by - u * rate

    def one_and_other(x: Node) -> tuple[Node, Node]:
        return across_rows(x, s.shape), across_columns(x, s.shape)

    (u_i, u_j), (v_i, v_j), (by_i, by_j) = map(one_and_other, (u, u_moved, by))
    rate_i, rate_j = one_and_other(rate)
    beside_, scale = swap_last(s), by_i * by_j
    c = s * beside_ * scale
    c_moved = (s_moved * beside_ + s * swap_last(s_moved)) * scale - c * (rate_i + rate_j)

    def to_rows(x: Node) -> Node:
        """What stands at the element below the diagonal of a block, for both of its rows."""
        only = select(in_block, x, zeros(x.kind))
        return bind(Sum((x.ndim - 1,)), only) + bind(Sum((x.ndim - 2,)), only)

    found = bind(NotEqual(), to_rows(constant(1, s.kind)), zeros(on.kind))
    return found, [to_rows(u_i + u_j), to_rows(v_i + v_j), to_rows(v_i * u_j + u_i * v_j - c_moved)]


# ---- equations ----


def _sample(name: str, a: tuple[int, ...], b: tuple[int, ...], turned: bool, pairs: bool = False) -> Sample:
    def form(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Whose eigenvalues are in the right half of the plane, those of blocks too."""
        x = np.triu(wide(draw(rng, dtype, shape, -1, 1))) + np.diag(2 + np.arange(shape[-1]))
        for i in range(0, shape[-1] - 1, 3):
            if pairs and not dtype.is_complex:
                x[..., i, i + 1], x[..., i + 1, i], x[..., i + 1, i + 1] = 2, -1, x[..., i, i]
        return x.astype(dtype.np)

    def values(rng: np.random.Generator, dtype: Dtype) -> list[np.ndarray]:
        return [form(rng, dtype, a), form(rng, dtype, b), draw(rng, dtype, (*a[:-1], b[-1]))]

    def move(x: np.ndarray) -> np.ndarray:
        """A change that keeps the blocks."""
        m, n = x.shape[-2:]
        counts = np.triu(np.ones((m, n)))
        if pairs and x.dtype.kind == "f":
            counts += np.eye(m, n, k=-1) * (np.arange(n) % 3 == 0)
        return x * counts

    return Sample(values, {"turned": turned}, name=name, move=move)


def _form_in(x: np.ndarray) -> np.ndarray:
    """What counts of matrices: a triangle, and elements below the diagonal that do not follow one another."""
    x = np.triu(x, 0 if x.dtype.kind == "c" else -1)
    for i in range(2, x.shape[-1]):
        x[..., i, i - 1] = np.where(x[..., i - 1, i - 2] != 0, 0, x[..., i, i - 1])
    return x


class Sylvester(Matrixwise):
    """x[..., m, n] with a x + x b = c[..., m, n], or with a* x + x b* = c if `turned`, where a[..., m, m] and b[..., n,
    n] are forms as those of `Schur`: nothing else of them counts, and of what is below the diagonal nothing right
    behind another element that counts. Derivatives are those among forms with the same blocks. Where an eigenvalue of a
    is one of b with the other sign, there is no solution, and x is one of equations nearby."""

    turned: bool = False
    tolerance = {dt.float32: 16, dt.float64: 16, dt.complex64: 16, dt.complex128: 16}
    samples = (
        _sample("plain", (4, 4), (3, 3), False),
        _sample("turned", (4, 4), (3, 3), True),
        _sample("pairs", (5, 5), (3, 3), False, True),
        _sample("turned_pairs", (3, 3), (5, 5), True, True),
        _sample("batch", (2, 3, 2, 2), (2, 3, 4, 4), False, True),
        _sample("one", (1, 1), (1, 1), False),
        _sample("large", (40, 40), (30, 30), False, True),
        _sample("nothing", (0, 0), (3, 3), False),
        _sample("empty", (0, 3, 3), (0, 2, 2), True),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[2]

    def check(self, *kinds: ArrayType) -> None:
        need(len(kinds) == 3, f"{len(kinds)} operands")
        super().check(*kinds)
        a, b, c = kinds
        square(a)
        square(b)
        together = equal_shapes(a.shape[:-2], b.shape[:-2]) and equal_shapes(a.shape[:-2], c.shape[:-2])
        fits = a.shape[-1] == c.shape[-2] and b.shape[-1] == c.shape[-1]
        need(together and fits, f"operands {a}, {b} and {c}")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        m, n = map(float, out.shape[-2:])
        return flops_each(out.dtype) * float(out.size) * (m + n)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        a, b, c = values
        (trsyl,) = scipy_linalg.get_lapack_funcs(("trsyl",), (wide(a),))
        letter = ("C" if a.dtype.kind == "c" else "T") if self.turned else "N"

        def solution(*parts: np.ndarray) -> Sequence[np.ndarray]:
            x, scale, _ = trsyl(*parts, trana=letter, tranb=letter)
            return [x / scale]

        if not c.size:
            return np.empty_like(c)
        given = [_form_in(wide(a)), _form_in(wide(b)), wide(c)]
        (found,) = _each(self, given, solution, [c.shape[-2:]], [c.dtype])
        return found

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        a, b = (_form_in(wide(x)) for x in values[:2])
        c, x = wide(values[2]), wide(results[0])
        a, b = (adjoint_of(a), adjoint_of(b)) if self.turned else (a, b)
        dtype = values[0].dtype
        size = np.sqrt(_squares(a) + _squares(b)) * np.sqrt(_squares(x))
        with np.errstate(all="ignore"):
            off = np.sqrt(_squares(a @ x + x @ b - c)) / (size * float(np.finfo(dtype).eps))
        return float(np.max(np.where(np.isnan(off), 0.0, off), initial=0.0))

    # ---- rules ----

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        """a x' + x' b = c' - a' x - x b'."""
        a, b, _ = primals
        terms = [tangents[2]] if 2 in tangents else []
        moved = [_kept(tangents[i], x) if i in tangents else None for i, x in ((0, a), (1, b))]
        if moved[0] is not None:
            terms.append(-matmul(adjoint(moved[0]) if self.turned else moved[0], out))
        if moved[1] is not None:
            terms.append(-matmul(out, adjoint(moved[1]) if self.turned else moved[1]))
        right = terms[0]
        for term in terms[1:]:
            right = right + term
        return bind(self, a, b, right)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        a, b, _ = primals
        right = bind(Sylvester(not self.turned), a, b, cotangent)
        found = {2: right}
        if 0 in wanted:
            by_a = -matmul(right, adjoint(out))
            found[0] = _kept(adjoint(by_a) if self.turned else by_a, a)
        if 1 in wanted:
            by_b = -matmul(adjoint(out), right)
            found[1] = _kept(adjoint(by_b) if self.turned else by_b, b)
        return {i: ct for i, ct in found.items() if i in wanted}

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, *self.moved(inputs, axes, size)), 0


def _squares(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.sum(np.square(np.abs(x)), axis=(-1, -2)))
