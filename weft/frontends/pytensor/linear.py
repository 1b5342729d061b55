"""Products of matrices, linear algebra, and Blockwise, which repeats an operation over leading axes.

What works on matrices takes any number of leading axes here, so Blockwise of it is nothing else; of other operations it
is `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.tensor import linalg as ptl
from pytensor.tensor import math as ptm
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.linalg.decomposition.lu import PivotToPermutations

import weft.core as mx
from weft.array import array, wrap
from weft.frontends.pytensor.convert import RULES, converts, refusal, rule_of, typed
from weft.frontends.pytensor.values import Known, Value, cast, to_array
from weft.frontends.pytensor.versions import found
from weft.primitives import linalg as primitives
from weft.primitives.linalg import implicit
from weft.program import apply

Matrixwise = Callable[..., Any]
MATRIXWISE: dict[type, Matrixwise] = {}
"""Operations on matrices in the last axes, by class: functions of the operation and arrays with any leading axes."""


def matrixwise(*classes: type, refuses: Callable[[Any], str | None] = lambda op: None) -> Callable[..., Matrixwise]:
    """Say that a function translates operations on matrices, with and without leading axes."""

    def register(fun: Matrixwise) -> Matrixwise:
        def convert(op: Any, node: Apply, *given: Value) -> Any:
            return fun(op, *_of_one_dtype(given, node))

        for cls in classes:
            MATRIXWISE[cls] = fun
            converts(cls, refuses=lambda node: refuses(node.op))(convert)
        return fun

    return register


def _of_one_dtype(given: Sequence[Value], node: Apply) -> list[array]:
    """The operands in the dtype of the result; integers in that of floats."""
    arrays = [to_array(x) for x in given]
    names = [x.type.dtype for x in node.outputs if x.type.dtype.startswith(("float", "complex"))]
    if not names:
        return arrays
    return [x if x.dtype.is_inexact and x.dtype.name == names[-1] else _floating(x, names[-1]) for x in arrays]


def _floating(x: array, dtype: str) -> array:
    """An operand as floats; real ones stay real where the result is complex."""
    if dtype.startswith("complex") and not x.dtype.is_complex:
        return cast(x, "float32" if dtype == "complex64" else "float64")
    return cast(x, dtype)


# ---- products ----


@converts(ptm.Dot)
def dot(op: Any, node: Apply, x: Value, y: Value) -> array:
    """The product of two matrices, or of vectors with them."""
    dtype = node.outputs[0].type.dtype
    left, right = to_array(x, dtype), to_array(y, dtype)
    if left.shape[-1] != right.shape[-2 if right.ndim > 1 else 0]:
        raise ValueError(f"shapes {left.shape} and {right.shape} are not aligned in a dot product")
    return product(left, right)


def product(x: array, y: array) -> array:
    """matmul, also of integers."""
    if x.dtype.is_inexact:
        return mx.matmul(x, y)
    if y.ndim == 1:
        return mx.sum(x * y, axis=-1)
    return mx.sum(x[..., :, None] * (y if x.ndim == 1 else y[..., None, :, :]), axis=-2)


@converts(*found("tensor.blas", "BatchedDot", "Dot22"))
def batched_dot(op: Any, node: Apply, x: Value, y: Value) -> array:
    dtype = node.outputs[0].type.dtype
    return product(to_array(x, dtype), to_array(y, dtype))


@converts(*found("tensor.blas", "Gemv", "Gemm"))
def scaled_product(op: Any, node: Apply, y: Value, alpha: Value, x: Value, v: Value, beta: Value) -> array:
    """beta y + alpha (x v)."""
    dtype = node.outputs[0].type.dtype
    left, right = to_array(x, dtype), to_array(v, dtype)
    return to_array(beta, dtype) * to_array(y, dtype) + to_array(alpha, dtype) * product(left, right)


MATRIXWISE[ptm.Dot] = lambda op, x, y: product(x, y)


# ---- factorizations ----


@matrixwise(ptl.Cholesky)
def cholesky(op: Any, a: array) -> array:
    """The factor; NaN where there is none."""
    check_square(a)
    made: array = apply(primitives.Cholesky(not op.lower, quiet=True), a)
    return made


def check_square(a: array) -> None:
    """Say what is wrong with a matrix that is not square."""
    if a.shape[-1] != a.shape[-2]:
        raise ValueError(f"Input array is expected to be square but has the shape: {a.shape}.")


def _diagonal(a: array) -> array:
    return mx.diagonal(a, 0, -2, -1)


def _nan_where(bad: array, x: array) -> array:
    return mx.where(bad, mx.array(float("nan"), x.dtype), x)


@matrixwise(ptl.LU)
def lu(op: Any, a: array) -> Any:
    order, lower, upper = mx.linalg.lu(a)
    order = cast(order, "int64")
    if op.p_indices:
        return order, lower, upper
    n = a.shape[-2]
    permutation = cast(order[..., :, None] == mx.arange(n, dtype=mx.int64), lower.dtype.name)
    if op.permute_l:
        return mx.matmul(permutation, lower), upper
    return permutation, lower, upper


@matrixwise(ptl.LUFactor)
def lu_factor(op: Any, a: array) -> Any:
    factors, pivots = mx.linalg.lu_factor(a)
    singular = mx.any(_diagonal(factors) == mx.array(0, factors.dtype), axis=-1)
    return _nan_where(singular[..., None, None], factors), pivots


@converts(PivotToPermutations)
def permutation_of_pivots(op: Any, node: Apply, pivots: Value) -> array:
    """The order of rows that exchanges, one after the other, lead to."""
    places = to_array(pivots, "int64")

    def exchange(i: array, order: array) -> array:
        j = places[i]
        first, second = order[i], order[j]
        order[i] = second
        order[j] = first
        return order

    n = places.shape[0]
    order = mx.fori_loop(0, n, exchange, mx.arange(n, dtype=mx.int64))
    return order if op.inverse else mx.argsort(order)


@matrixwise(ptl.SVD)
def svd(op: Any, a: array) -> Any:
    if not op.compute_uv:
        return apply(primitives.SingularValues(), a)
    return apply(primitives.Svd(op.full_matrices), a)


@matrixwise(ptl.Eigh)
def eigh(op: Any, a: array, *b: array) -> Any:
    if not b:
        return mx.linalg.eigh(a, "L" if _is_lower(op) else "U")
    factor, reduced = _reduced(a, b[0], _is_lower(op))
    w, v = mx.linalg.eigh(reduced)
    return w, _triangular(mx.conjugate(mx.swapaxes(factor, -1, -2)), v, lower=False)


def _reduced(a: array, b: array, lower: bool) -> tuple[array, array]:
    """For `a v = b v w`: the lower factor l of b, and l⁻¹ a l⁻ᴴ, whose eigenvalues are the same. That b is not positive
    definite is an error."""
    a, b = (_from_triangle(x, lower, x.dtype.is_complex) for x in (a, b))
    factor: array = apply(primitives.Cholesky(False), b)
    half = _triangular(factor, a, lower=True)
    made = _triangular(factor, mx.conjugate(mx.swapaxes(half, -1, -2)), lower=True)
    return factor, made


def _is_lower(op: Any) -> bool:
    return bool(op.lower) if hasattr(op, "lower") else getattr(op, "UPLO", "L") == "L"


@matrixwise(ptl.Eigvalsh)
def eigvalsh(op: Any, a: array, *b: array) -> Any:
    if b:
        return mx.linalg.eigvalsh(_reduced(a, b[0], _is_lower(op))[1])
    return mx.linalg.eigvalsh(a, "L" if _is_lower(op) else "U")


@matrixwise(ptl.Eig)
def eig(op: Any, a: array) -> Any:
    return mx.linalg.eig(a)


# ---- systems ----


def _columns(op: Any, b: array) -> array:
    return b[..., None] if op.b_ndim == 1 else b


def _triangular(t: array, b: array, lower: bool, unit: bool = False) -> array:
    lead = mx.broadcast_shapes(t.shape[:-2], b.shape[:-2])
    wide_t = mx.broadcast_to(t, (*lead, *t.shape[-2:]))
    made: array = apply(primitives.SolveTriangular(not lower, unit), wide_t, mx.broadcast_to(b, (*lead, *b.shape[-2:])))
    return made


@matrixwise(ptl.SolveTriangular)
def solve_triangular(op: Any, t: array, b: array) -> array:
    """The solution; NaN if the matrix is singular."""
    _fits(t, b, op)
    x = _triangular(t, _columns(op, b), op.lower, op.unit_diagonal)
    if not op.unit_diagonal:
        singular = mx.any(_diagonal(t) == mx.array(0, t.dtype), axis=-1)
        x = _nan_where(singular[..., None, None], x)
    return x[..., 0] if op.b_ndim == 1 else x


def _fits(a: array, b: array, op: Any) -> None:
    if a.shape[-1] != a.shape[-2]:
        raise ValueError("expected square matrix")
    if b.shape[-op.b_ndim] != a.shape[-1]:
        raise ValueError(f"shapes of a {a.shape} and b {b.shape} are incompatible")


@matrixwise(ptl.CholeskySolve)
def cholesky_solve(op: Any, factor: array, b: array) -> array:
    _fits(factor, b, op)
    x = _with_factor(factor, _columns(op, b), op.lower)
    return x[..., 0] if op.b_ndim == 1 else x


def _with_factor(factor: array, b: array, lower: bool) -> array:
    turned = mx.conjugate(mx.swapaxes(factor, -1, -2))
    first, second = (factor, turned) if lower else (turned, factor)
    return _triangular(second, _triangular(first, b, lower=True), lower=False)


@matrixwise(ptl.Solve)
def solve(op: Any, a: array, b: array) -> array:
    _fits(a, b, op)
    right = _columns(op, b)
    lead = mx.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    a = mx.broadcast_to(a, (*lead, *a.shape[-2:]))
    right = mx.broadcast_to(right, (*lead, *right.shape[-2:]))
    if op.assume_a == "pos":
        factor: array = apply(primitives.Cholesky(not op.lower, quiet=True), a)
        x = _with_factor(factor, right, op.lower)
    else:
        if op.assume_a in ("sym", "her"):
            a = _from_triangle(a, op.lower, op.assume_a == "her")
        x = wrap(implicit.solve(implicit.factored(a._node), right._node))
    return x[..., 0] if op.b_ndim == 1 else x


def _from_triangle(a: array, lower: bool, hermitian: bool) -> array:
    """A symmetric matrix of which one triangle counts."""
    part = mx.tril(a, -1) if lower else mx.triu(a, 1)
    other = mx.swapaxes(part, -1, -2)
    n = a.shape[-1]
    on_diagonal = mx.where(mx.eye(n, dtype=mx.bool_), a, mx.array(0, a.dtype))
    return part + on_diagonal + (mx.conjugate(other) if hermitian else other)


@matrixwise(ptl.MatrixInverse)
def inverse(op: Any, a: array) -> array:
    return mx.linalg.inv(a)


@matrixwise(ptl.MatrixPinv)
def pseudo_inverse(op: Any, a: array) -> array:
    return mx.linalg.pinv(a)


@matrixwise(ptl.Det)
def determinant(op: Any, a: array) -> array:
    return mx.linalg.det(a)


@matrixwise(ptl.SLogDet)
def log_determinant(op: Any, a: array) -> Any:
    return mx.linalg.slogdet(a)


@matrixwise(ptl.Expm)
def exponential(op: Any, a: array) -> array:
    return mx.linalg.expm(a)


@matrixwise(ptl.BlockDiagonal)
def block_diagonal(op: Any, *blocks: array) -> array:
    """Matrices along the diagonal of a larger one."""
    width = sum(x.shape[-1] for x in blocks)
    rows, left = [], 0
    for x in blocks:
        lead, (m, n) = x.shape[:-2], x.shape[-2:]
        before = mx.zeros((*lead, m, left), x.dtype)
        after = mx.zeros((*lead, m, width - left - n), x.dtype)
        rows.append(mx.concatenate([before, x, after], axis=-1))
        left = left + n
    return mx.concatenate(rows, axis=-2)


# ---- Blockwise ----


def _core(node: Apply) -> Apply:
    """The node that a Blockwise repeats."""
    found = getattr(node.tag, "weft_core", None)
    if found is None:
        found = node.tag.weft_core = node.op._create_dummy_core_node(node.inputs)
    return found


def _refuses_blockwise(node: Apply) -> str | None:
    return refusal(_core(node))


def _known_of_blockwise(node: Apply) -> Iterable[int]:
    rule = rule_of(node.op.core_op)
    return () if rule is None else rule.known(_core(node))


@converts(Blockwise, known=_known_of_blockwise, refuses=_refuses_blockwise)
def blockwise(op: Any, node: Apply, *given: Value) -> Any:
    """An operation repeated over leading axes, of which those that PyTensor knows to be 1 are repeated."""
    core = _core(node)
    count = node.outputs[0].type.ndim - len(op.outputs_sig[0])
    batch = _batch_shape(node, given, count)
    fun = next((MATRIXWISE[cls] for cls in type(op.core_op).__mro__ if cls in MATRIXWISE), None)
    if fun is not None:
        arrays = _of_one_dtype(given, core)
        wide = [mx.broadcast_to(x, (*batch, *x.shape[count:])) for x in arrays]
        return fun(op.core_op, *wide)
    return _mapped(op, core, given, count, batch)


def _batch_shape(node: Apply, given: Sequence[Value], count: int) -> tuple[Any, ...]:
    """The leading axes of the result."""
    shape: list[Any] = [1] * count
    for x, variable in zip(given, node.inputs, strict=True):
        if isinstance(x, Known) and x.value is None:
            continue
        sizes = to_array(x).shape
        for axis in range(count):
            if variable.type.shape[axis] == 1:
                continue
            if shape[axis] != 1 and sizes[axis] != shape[axis]:
                raise ValueError(
                    f"Incompatible Blockwise batch input shapes: {shape[axis]} and {sizes[axis]} along axis {axis}"
                )
            shape[axis] = sizes[axis]
    return tuple(shape)


def _mapped(op: Any, core: Apply, given: Sequence[Value], count: int, batch: tuple[Any, ...]) -> list[array]:
    """The core operation of each element of the leading axes, by `vmap`."""
    total = 1
    for n in batch:
        total = total * n
    rule = RULES[next(cls for cls in type(op.core_op).__mro__ if cls in RULES)]
    needed = set(rule.known(core))
    fixed: dict[int, Value] = {}
    mapped: list[tuple[int, array]] = []
    for i, x in enumerate(given):
        if i in needed:
            fixed[i] = Known(x.value.reshape(x.value.shape[count:])) if isinstance(x, Known) else x
            continue
        wide = to_array(x)
        rest = wide.shape[count:]
        mapped.append((i, mx.broadcast_to(wide, (*batch, *rest)).reshape((total, *rest))))

    def each(*arrays: array) -> list[array]:
        values = {**fixed, **{i: x for (i, _), x in zip(mapped, arrays, strict=True)}}
        made = rule.convert(op.core_op, core, *[values[i] for i in range(len(given))])
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        return [to_array(typed(x, out)) for x, out in zip(results, core.outputs, strict=True)]

    found = mx.vmap(each)(*[x for _, x in mapped])
    return [x.reshape((*batch, *x.shape[1:])) for x in found]
