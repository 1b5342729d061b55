"""`mx.linalg`: linear algebra on the matrices in the last two axes, one by one.

Functions take float32, float64, complex64 and complex128 (MLX: the real ones), work on batches, under every transform,
and in compiled functions. A matrix that has no answer is a `LinAlgError` that names it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from weft import dtypes as dt
from weft.core import elementwise as e
from weft.core import looping, reducing
from weft.core._common import (
    ArrayLike,
    array,
    astype,
    bind,
    broadcast_node,
    broadcast_shapes,
    is_sequence,
    kind_of,
    normalize_axes,
    normalize_axis,
    reshape,
    size_node,
    to_node,
    transpose,
    wrap,
)
from weft.core.joining import pad, stack
from weft.core.linear import matmul
from weft.core.shaping import moveaxis, swapaxes
from weft.dtypes import Dtype
from weft.errors import LinAlgError
from weft.graph.dims import prod, shape_text
from weft.graph.lines import mark
from weft.graph.node import Node
from weft.primitives.base import MultiOutput, Primitive, bind_many
from weft.primitives.linalg import (
    Cholesky,
    Eig,
    Eigenvalues,
    Eigh,
    HermitianEigenvalues,
    Inverse,
    Lu,
    PseudoInverse,
    Qr,
    SingularValues,
    SolveTriangular,
    Svd,
    determinants,
    implicit,
)
from weft.primitives.linalg.matrices import DTYPES, columns, identity, inverse_order, rows, triangle

__all__ = [
    "LinAlgError", "cholesky", "cholesky_inv", "cross", "det", "eig", "eigh", "eigvals", "eigvalsh", "expm", "inv",
    "lstsq", "lu", "lu_factor", "matrix_norm", "matrix_power", "matrix_rank", "norm", "pinv", "qr", "slogdet", "solve",
    "solve_triangular", "svd", "tri_inv", "vector_norm",
]  # fmt: skip

Stream = Any


def _matrices(name: str, a: ArrayLike) -> Node:
    """An operand with matrices of floats in its last two axes."""
    x = to_node(a)
    _floats(name, x.dtype)
    return _of_two_axes(name, x)


def _of_two_axes(name: str, x: Node) -> Node:
    if x.ndim < 2:
        raise ValueError(f"[linalg.{name}] Arrays must have >= 2 dimensions. Received array with {x.ndim} dimensions.")
    return x


def _floats(name: str, dtype: Dtype) -> None:
    if dtype not in DTYPES:
        raise ValueError(
            f"[linalg.{name}] Arrays must have type float32 or float64 (or a complex one). Received array with type "
            f"{dtype.name}; convert it with astype."
        )


def _square(name: str, a: ArrayLike) -> Node:
    return _squared(name, _matrices(name, a))


def _squared(name: str, x: Node) -> Node:
    if x.shape[-1] != x.shape[-2]:
        raise ValueError(f"[linalg.{name}] is only defined for square matrices; got shape {shape_text(x.shape)}.")
    return x


def _applied(op: Primitive, *nodes: Node) -> array:
    """Bind and wrap; errors will name this line."""
    node = bind(op, *nodes)
    mark(node)
    return wrap(node)


def _results(op: MultiOutput, x: Node) -> list[array]:
    """The same, where there are several results."""
    results = bind_many(op, x)
    mark(results[0].inputs[0])
    return [wrap(node) for node in results]


# ---- factorizations ----


def cholesky(a: ArrayLike, upper: bool = False, *, stream: Stream = None) -> array:
    """The lower triangular L with L @ L.T = a (or the upper triangular U with U.T @ U = a) of symmetric, or Hermitian,
    positive definite matrices.

    Only that triangle of a is read. A matrix that is not positive definite is a LinAlgError.

    >>> linalg.cholesky(array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2, 0],
           [1, 2]], dtype=float32)
    """
    return _applied(Cholesky(bool(upper)), _square("cholesky", a))


def qr(a: ArrayLike, *, stream: Stream = None) -> tuple[array, array]:
    """(Q, R) with Q @ R = a, where the columns of Q are orthonormal and R is upper triangular. The inner size is the
    smaller of the two sizes of a.

    >>> q, r = linalg.qr(array([[3.0, 1.0], [4.0, 2.0]]))
    >>> q.shape, r[1, 0].item()
    ((2, 2), 0.0)
    """
    q, r = _results(Qr(), _matrices("qr", a))
    return q, r


def lu_factor(a: ArrayLike, *, stream: Stream = None) -> tuple[array, array]:
    """(LU, pivots): the factors of `lu` in one matrix, without the diagonal of L, and the row that each row was
    exchanged with, one after the other.

    >>> linalg.lu_factor(array([[1.0, 2.0], [2.0, 6.0]]))
    (array([[2, 6],
           [0.5, -1]], dtype=float32), array([1, 1], dtype=uint32))
    """
    factors, pivots, _ = _results(Lu(), _matrices("lu_factor", a))
    return factors, pivots


def lu(a: ArrayLike, *, stream: Stream = None) -> tuple[array, array, array]:
    """(P, L, U) with a = L[P, :] @ U, where L is unit lower triangular, U upper triangular, and P are indices. (Of a
    batch: a = take_along_axis(L, P[..., None], axis=-2) @ U.)

    >>> p, l, u = linalg.lu(array([[1.0, 2.0], [2.0, 6.0]]))
    >>> p.tolist(), (l[p, :] @ u).tolist()
    ([1, 0], [[1.0, 2.0], [2.0, 6.0]])
    """
    x = _matrices("lu", a)
    factors, _, order = bind_many(Lu(), x)
    m, n = x.shape[-2:]
    k = n if m >= n else m
    lower = columns(triangle(factors, k=-1), 0, k)
    unit = lower + identity(lower.shape, x.dtype)
    return wrap(inverse_order(order)), wrap(unit), wrap(rows(triangle(factors, upper=True), 0, k))


# ---- systems of equations ----


def solve(a: ArrayLike, b: ArrayLike, *, stream: Stream = None) -> array:
    """x with a @ x = b; b has one right side (a vector), or several in its columns. A singular matrix is a LinAlgError.

    >>> linalg.solve(array([[2.0, 1.0], [1.0, 3.0]]), array([4.0, 7.0]))
    array([1, 2], dtype=float32)
    """
    return _solved("solve", a, b, lambda x, y: implicit.solve(implicit.factored(x), y, function="solve"))


def solve_triangular(a: ArrayLike, b: ArrayLike, *, upper: bool = False, stream: Stream = None) -> array:
    """x with a @ x = b, where a is taken to be lower (or upper) triangular: the other triangle is not read. A zero on
    the diagonal is a LinAlgError.

    >>> linalg.solve_triangular(array([[2.0, 0.0], [1.0, 4.0]]), array([4.0, 10.0]))
    array([2, 2], dtype=float32)
    """
    op = SolveTriangular(bool(upper), function="solve_triangular")
    return _solved("solve_triangular", a, b, lambda x, y: bind(op, x, y))


def _solved(name: str, a: ArrayLike, b: ArrayLike, solution: Callable[[Node, Node], Node]) -> array:
    """The solution of a system with one or several right sides; leading axes broadcast."""
    given = to_node(a), to_node(b)
    dtype = dt.promote(given[0].dtype, given[1].dtype)
    _floats(name, dtype)
    x = _square(name, wrap(astype(given[0], dtype)))
    y = astype(given[1], dtype)
    if y.ndim < 1:
        raise ValueError(f"[linalg.{name}] the right side must have at least one axis.")
    vector = y.ndim == 1
    if y.shape[0 if vector else -2] != x.shape[-1]:
        which = "only" if vector else "second-to-last"
        raise ValueError(
            f"[linalg.{name}] the last axis of a {shape_text(x.shape)} and the {which} axis of b {shape_text(y.shape)} "
            "differ."
        )
    y = reshape(y, (*y.shape, 1)) if vector else y
    if x.ndim == 2 and y.ndim > 2:
        out = _by_columns(x, y, solution)
    else:
        lead = broadcast_shapes(f"linalg.{name}", x.shape[:-2], y.shape[:-2])
        out = solution(broadcast_node(x, (*lead, *x.shape[-2:])), broadcast_node(y, (*lead, *y.shape[-2:])))
        _mark_all(out)
    return wrap(reshape(out, out.shape[:-1]) if vector else out)


def _by_columns(x: Node, y: Node, solution: Callable[[Node, Node], Node]) -> Node:
    """One matrix for a batch of right sides, which are columns beside each other."""
    lead = y.ndim - 2
    columns = transpose(y, (lead, *range(lead), lead + 1))
    found = solution(x, reshape(columns, (y.shape[-2], prod((*y.shape[:-2], y.shape[-1])))))
    _mark_all(found)
    return transpose(reshape(found, columns.shape), (*range(1, lead + 1), 0, lead + 1))


def _mark_all(node: Node) -> None:
    """Errors of what was made just now will name this line."""
    pending = [node]
    while pending:
        found = pending.pop()
        if not found.op.is_total:
            mark(found)
            return
        pending.extend(found.inputs[-1:])


def inv(a: ArrayLike, *, stream: Stream = None) -> array:
    """The inverse. A singular matrix is a LinAlgError.

    >>> linalg.inv(array([[2.0, 1.0], [1.0, 1.0]]))
    array([[1, -1],
           [-1, 2]], dtype=float32)
    """
    return _applied(Inverse(), _square("inv", a))


def tri_inv(a: ArrayLike, upper: bool = False, *, stream: Stream = None) -> array:
    """The inverse of lower (or upper) triangular matrices. A zero on the diagonal is a LinAlgError.

    >>> linalg.tri_inv(array([[2.0, 0.0], [1.0, 4.0]]))
    array([[0.5, 0],
           [-0.125, 0.25]], dtype=float32)
    """
    return _triangular_inverse("tri_inv", a, upper)


def _triangular_inverse(name: str, a: ArrayLike, upper: bool) -> array:
    x = _square(name, a)
    return _applied(SolveTriangular(bool(upper), function=name), x, identity(x.shape, x.dtype))


def cholesky_inv(a: ArrayLike, upper: bool = False, *, stream: Stream = None) -> array:
    """The inverse of the matrix of which a is the lower (or upper) Cholesky factor.

    >>> linalg.cholesky_inv(array([[2.0, 0.0], [0.0, 4.0]]))
    array([[0.25, 0],
           [0, 0.0625]], dtype=float32)
    """
    inverse = _triangular_inverse("cholesky_inv", a, upper)
    turned = e.conjugate(swapaxes(inverse, -1, -2))
    return matmul(inverse, turned) if upper else matmul(turned, inverse)


def pinv(a: ArrayLike, *, stream: Stream = None) -> array:
    """The Moore-Penrose pseudo-inverse. Singular values count as zero that are not larger than the largest one times
    ten epsilon times the larger size.

    >>> linalg.pinv(array([[2.0], [0.0]]))
    array([[0.5, 0]], dtype=float32)
    """
    x = _matrices("pinv", a)
    return _pseudo_inverse(x, 10 * _cutoff(x))[0]


def _cutoff(x: Node) -> array:
    """Epsilon, times the larger size of a matrix."""
    m, n = x.shape[-2:]
    real = dt.real_of(x.dtype)
    return wrap(size_node(m if m >= n else n, kind_of((), real))) * float(dt.finfo(real).eps)


def _pseudo_inverse(x: Node, cutoff: Any) -> tuple[array, array, array]:
    """(the pseudo-inverse, which singular values count, the singular values): those that are larger than the largest
    one times the cutoff."""
    u, s, vh = _results(Svd(full=False), x)
    counts = _above(s, cutoff)
    scale = e.where(counts, 1 / e.where(counts, s, 1), 0)
    v, turned = (e.conjugate(swapaxes(y, -1, -2)) for y in (vh, u))
    value = matmul(v * scale[..., None, :].astype(x.dtype), turned)
    return wrap(bind(PseudoInverse(), x, value._node)), counts, s


def _above(s: array, cutoff: Any) -> array:
    """Which singular values, in descending order, are larger than the first one times a number."""
    return s > s[..., :1] * cutoff if s.shape[-1] != 0 else e.greater(s, s)


def lstsq(a: ArrayLike, b: ArrayLike, rcond: float | None = None, *, stream: Stream = None) -> Any:
    """(x, residuals, rank, s): the x of least norm for which a @ x is as near to b as can be, the sums of squares of
    a @ x - b (for each column of b), the rank of a, and its singular values. Those count as zero that are not larger
    than the largest one times `rcond`, by default epsilon times the larger size.

    >>> x, residuals, rank, s = linalg.lstsq(array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]), array([1.0, 3.0, 5.0]))
    >>> allclose(x, array([1.0, 2.0]), atol=1e-5).item(), rank.item()
    (True, 2)
    """
    x, y = to_node(a), to_node(b)
    dtype = dt.promote(x.dtype, y.dtype)
    _floats("lstsq", dtype)
    x, y = _of_two_axes("lstsq", astype(x, dtype)), astype(y, dtype)
    vector = y.ndim == 1
    if y.ndim < 1 or y.shape[0 if vector else -2] != x.shape[-2]:
        raise ValueError(
            f"[linalg.lstsq] a of shape {shape_text(x.shape)} and b of shape {shape_text(y.shape)} have different "
            "numbers of rows."
        )
    right = wrap(reshape(y, (*y.shape, 1)) if vector else y)
    inverse, counts, s = _pseudo_inverse(x, _cutoff(x) if rcond is None else rcond)
    found = matmul(inverse, right)
    residuals = reducing.sum(_squares(matmul(wrap(x), found) - right), -2)
    rank = reducing.sum(counts.astype(dt.int32), -1)
    return (found[..., 0], residuals[..., 0], rank, s) if vector else (found, residuals, rank, s)


def matrix_rank(a: ArrayLike, rtol: float | None = None, *, stream: Stream = None) -> array:
    """How many singular values are larger than the largest one times `rtol`, by default epsilon times the larger size.

    >>> linalg.matrix_rank(array([[1.0, 2.0], [2.0, 4.0]]))
    array(1, dtype=int32)
    """
    x = _matrices("matrix_rank", a)
    counts = _above(_applied(SingularValues(), x), _cutoff(x) if rtol is None else rtol)
    return reducing.sum(counts.astype(dt.int32), -1)


# ---- determinants ----


def _widened(name: str, a: ArrayLike) -> tuple[Node, Dtype]:
    """Square matrices in a dtype that can be computed with, and the dtype of results."""
    given = to_node(a)
    dtype = dt.inexact_of(given.dtype)
    wide = astype(given, dt.float32 if dtype in dt.HALVES else dtype)
    return _squared(name, _of_two_axes(name, wide)), dtype


def det(a: ArrayLike, *, stream: Stream = None) -> array:
    """The determinant.

    >>> linalg.det(array([[1.0, 2.0], [3.0, 4.0]]))
    array(-2, dtype=float32)
    """
    x, dtype = _widened("det", a)
    return wrap(astype(determinants.det(x), dtype))


def slogdet(a: ArrayLike, *, stream: Stream = None) -> tuple[array, array]:
    """(sign, log of the absolute value) of the determinant; (0, -inf) of a singular matrix.

    >>> linalg.slogdet(array([[1.0, 2.0], [3.0, 4.0]]))
    (array(-1, dtype=float32), array(0.693147, dtype=float32))
    """
    x, dtype = _widened("slogdet", a)
    sign, size = determinants.slogdet(x)
    return wrap(astype(sign, dtype)), wrap(astype(size, dt.real_of(dtype)))


# ---- eigenvalues and singular values ----


def _triangle_read(name: str, uplo: str) -> bool:
    """Whether it is the upper one."""
    if not isinstance(uplo, str) or uplo.upper() not in ("L", "U"):
        raise ValueError(f"[linalg.{name}] UPLO must be 'L' or 'U'; got {uplo!r}.")
    return uplo.upper() == "U"


def eigh(a: ArrayLike, UPLO: str = "L", *, stream: Stream = None) -> tuple[array, array]:
    """(eigenvalues in ascending order, eigenvectors in columns) of symmetric, or Hermitian, matrices, of which one
    triangle is read.

    >>> w, v = linalg.eigh(array([[1.0, -2.0], [-2.0, 1.0]]))
    >>> w
    array([-1, 3], dtype=float32)
    """
    w, v = _results(Eigh(_triangle_read("eigh", UPLO)), _square("eigh", a))
    return w, v


def eigvalsh(a: ArrayLike, UPLO: str = "L", *, stream: Stream = None) -> array:
    """The eigenvalues of symmetric, or Hermitian, matrices in ascending order.

    >>> linalg.eigvalsh(array([[1.0, -2.0], [-2.0, 1.0]]))
    array([-1, 3], dtype=float32)
    """
    return _applied(HermitianEigenvalues(_triangle_read("eigvalsh", UPLO)), _square("eigvalsh", a))


def eig(a: ArrayLike, *, stream: Stream = None) -> tuple[array, array]:
    """(eigenvalues, eigenvectors of norm 1 in columns), which are complex.

    >>> w, v = linalg.eig(array([[0.0, 1.0], [-1.0, 0.0]]))
    >>> w
    array([0+1j, 0-1j], dtype=complex64)
    """
    w, v = _results(Eig(), _square("eig", a))
    return w, v


def eigvals(a: ArrayLike, *, stream: Stream = None) -> array:
    """The eigenvalues, which are complex.

    >>> linalg.eigvals(array([[0.0, 1.0], [-1.0, 0.0]]))
    array([0+1j, 0-1j], dtype=complex64)
    """
    return _applied(Eigenvalues(), _square("eigvals", a))


def svd(a: ArrayLike, compute_uv: bool = True, *, stream: Stream = None) -> Any:
    """(U, S, Vt) with U[:, :k] @ diag(S) @ Vt[:k] = a, where U and Vt are square and k is the smaller size of a; or
    the singular values S alone, which descend.

    >>> linalg.svd(array([[3.0, 0.0], [0.0, 4.0]]), compute_uv=False)
    array([4, 3], dtype=float32)
    """
    x = _matrices("svd", a)
    return tuple(_results(Svd(full=True), x)) if compute_uv else _applied(SingularValues(), x)


# ---- powers ----


def matrix_power(a: ArrayLike, n: int, *, stream: Stream = None) -> array:
    """a @ a @ ... @ a, n times; of the inverse, if n is negative.

    >>> linalg.matrix_power(array([[1.0, 1.0], [0.0, 1.0]]), 5)
    array([[1, 5],
           [0, 1]], dtype=float32)
    """
    x = _squared("matrix_power", _of_two_axes("matrix_power", to_node(a)))
    exponent = operator.index(n)
    if exponent == 0:
        return wrap(identity(x.shape, x.dtype))
    factor = inv(wrap(x)) if exponent < 0 else wrap(x)
    found = None
    for bit in bin(abs(exponent))[:1:-1]:  # from the lowest one
        if bit == "1":
            found = factor if found is None else matmul(found, factor)
        exponent = abs(exponent) >> 1
        if exponent:
            factor = matmul(factor, factor)
    assert found is not None
    return found


_PADE: dict[Dtype, tuple[float, tuple[int, ...]]] = {
    dt.float32: (3.925724783138660, (17297280, 8648640, 1995840, 277200, 25200, 1512, 56, 1)),
    dt.float64: (
        5.371920351148152,
        (
            64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600,
            670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
        ),
    ),
}  # fmt: skip
"""For which norms of a matrix the quotient p(a) / p(-a) is its exponential, and the coefficients of p."""


def expm(a: ArrayLike, *, stream: Stream = None) -> array:
    """The matrix exponential, by squaring that of a small part of a as often as it takes.

    >>> linalg.expm(array([[0.0, 1.0], [0.0, 0.0]]))
    array([[1, 1],
           [0, 1]], dtype=float32)
    """
    x = _square("expm", a)
    if x.kind.size == 0:
        return wrap(x)
    limit, coefficients = _PADE[dt.real_of(x.dtype)]
    whole = wrap(x)
    size = matrix_norm(whole, ord=1)
    often = e.ceil(e.log2(e.maximum(e.stop_gradient(size) / limit, 1)))
    part = whole * e.power(0.5, often)[..., None, None].astype(x.dtype)
    square, one = matmul(part, part), wrap(identity(x.shape, x.dtype))
    even, odd = (_polynomial(square, one, coefficients[first::2]) for first in (0, 1))
    odd = matmul(part, odd)
    quotient = implicit.solve(implicit.factored((even - odd)._node), (even + odd)._node)
    most = reducing.max(e.where(e.isfinite(often), often, 0)).astype(dt.int32)

    def squared(step: array, found: array) -> array:
        return e.where((step < often)[..., None, None], matmul(found, found), found)

    return looping.fori_loop(0, most, squared, wrap(quotient))


def _polynomial(x: array, one: array, coefficients: Sequence[int]) -> array:
    """A polynomial of matrices."""
    found = one * float(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        found = matmul(found, x) + one * float(coefficient)
    return found


# ---- norms and products ----


def norm(
    a: ArrayLike,
    /,
    ord: int | float | str | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    stream: Stream = None,
) -> array:
    """The norm of vectors along one axis, or of matrices in two; without `ord` and `axis`, of all elements.

    Of vectors: the sum of |x| ** ord to the power of 1 / ord, the largest |x| (inf), the smallest (-inf), how many are
    not zero (0); 2 by default. Of matrices: "fro" (by default), "nuc", 1 and -1 (columns), inf and -inf (rows), 2 and
    -2 (singular values).

    >>> linalg.norm(array([[3.0, 4.0], [0.0, 0.0]]), axis=1)
    array([5, 0], dtype=float32)
    """
    x = wrap(to_node(a))
    x = x if x.dtype.is_inexact else x.astype(dt.float32)
    if axis is None:
        if ord is None:
            axes: tuple[int, ...] = tuple(range(x.ndim))
            return e.sqrt(reducing.sum(_squares(x), axes, keepdims))
        if x.ndim not in (1, 2):
            raise ValueError(
                f"[linalg.norm] an array of {x.ndim} axes is neither a vector nor a matrix; say along which axes."
            )
        axes = tuple(range(x.ndim))
    else:
        given: Sequence[Any] = axis if is_sequence(axis) else (axis,)  # type: ignore[assignment]
        axes = tuple(normalize_axis("linalg.norm", i, x.ndim) for i in given)
        if len(set(axes)) != len(axes) or len(axes) not in (1, 2):
            raise ValueError(f"[linalg.norm] one axis (vectors) or two (matrices) are needed; got {tuple(given)}.")
    if len(axes) == 1:
        return _vector_norm(x, 2 if ord is None else ord, axes[0], keepdims)
    return _matrix_norm(x, "fro" if ord is None else ord, axes[0], axes[1], keepdims)


def vector_norm(
    x: ArrayLike,
    /,
    *,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    ord: int | float = 2,
    stream: Stream = None,
) -> array:
    """The norm of the vectors that the elements along some axes (all by default) make.

    >>> linalg.vector_norm(array([[3.0, 0.0], [0.0, 4.0]]))
    array(5, dtype=float32)
    """
    given = wrap(to_node(x))
    axes = normalize_axes("linalg.vector_norm", axis, given.ndim)
    kept = [i for i in range(given.ndim) if i not in axes]
    shape = tuple(1 if i in axes else n for i, n in enumerate(given.shape))
    flat = given.transpose(*kept, *axes).reshape(*[given.shape[i] for i in kept], prod([given.shape[i] for i in axes]))
    found = norm(flat, ord, -1)
    return found.reshape(shape) if keepdims else found


def matrix_norm(
    x: ArrayLike, /, *, keepdims: bool = False, ord: int | float | str = "fro", stream: Stream = None
) -> array:
    """The norm of the matrices in the last two axes.

    >>> linalg.matrix_norm(array([[3.0, 0.0], [0.0, 4.0]]))
    array(5, dtype=float32)
    """
    return norm(wrap(_of_two_axes("matrix_norm", to_node(x))), ord, (-2, -1), keepdims)


def _squares(x: array) -> array:
    return e.square(e.real(x)) + e.square(e.imag(x)) if x.dtype.is_complex else e.square(x)


def _vector_norm(x: array, order: int | float | str, axis: int, keepdims: bool) -> array:
    if isinstance(order, str):
        raise ValueError(f"[linalg.norm] {order!r} is a norm of matrices; got one axis.")
    if order == 2:
        return e.sqrt(reducing.sum(_squares(x), axis, keepdims))
    sizes = e.abs(x)
    if order == math.inf:
        return reducing.max(sizes, axis, keepdims)
    if order == -math.inf:
        return reducing.min(sizes, axis, keepdims)
    if order == 0:
        return reducing.sum(e.not_equal(x, 0).astype(sizes.dtype), axis, keepdims)
    if order == 1:
        return reducing.sum(sizes, axis, keepdims)
    return e.power(reducing.sum(e.power(sizes, order), axis, keepdims), 1.0 / order)


def _matrix_norm(x: array, order: int | float | str, down: int, across: int, keepdims: bool) -> array:
    """`down` is the axis of row numbers, `across` that of column numbers."""
    if order in ("fro", "f"):
        return e.sqrt(reducing.sum(_squares(x), (down, across), keepdims))
    if order == "nuc" or order in (2, -2):
        lead = [i for i in range(x.ndim) if i not in (down, across)]
        values = _singular_values(x.transpose(*lead, down, across))
        found = {"nuc": reducing.sum, 2: reducing.max, -2: reducing.min}[order](values, -1)
        return found.reshape([1 if i in (down, across) else n for i, n in enumerate(x.shape)]) if keepdims else found
    if isinstance(order, str) or order not in (1, -1, math.inf, -math.inf):
        known = "'fro', 'nuc', 1, -1, 2, -2, inf, -inf"
        raise ValueError(f"[linalg.norm] there is no norm {order!r} of matrices; those are {known}.")
    summed, left = (down, across) if abs(order) == 1 else (across, down)
    sums = reducing.sum(e.abs(x), summed, keepdims=True)
    extreme = (reducing.max if order > 0 else reducing.min)(sums, left, keepdims=True)
    return extreme if keepdims else extreme.squeeze((down, across))


def _singular_values(x: array) -> array:
    wide = x.astype(dt.float32) if x.dtype in dt.HALVES else x
    return _applied(SingularValues(), wide._node).astype(dt.real_of(x.dtype))


def cross(a: ArrayLike, b: ArrayLike, axis: int = -1, *, stream: Stream = None) -> array:
    """The cross product of vectors along an axis, with three elements, or two and a third that is zero.

    >>> linalg.cross(array([1, 0, 0]), array([0, 1, 0]))
    array([0, 0, 1], dtype=int32)
    """
    parts = []
    for given in (wrap(to_node(a)), wrap(to_node(b))):
        place = normalize_axis("linalg.cross", axis, given.ndim)
        if given.shape[place] not in (2, 3):
            raise ValueError(f"[linalg.cross] vectors have 2 or 3 elements; got shape {shape_text(given.shape)}.")
        moved = moveaxis(given, place, -1)
        full = moved if moved.shape[-1] == 3 else pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, 1)])
        parts.append([full[..., i] for i in range(3)])
    (x, y, z), (u, v, w) = parts
    found = stack([y * w - z * v, z * u - x * w, x * v - y * u], -1)
    return moveaxis(found, -1, axis)
