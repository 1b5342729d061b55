"""Products of matrices, vectors and tensors (sums of products by index letters live in einsum.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft import dtypes as dt
from weft.core import reducing
from weft.core._common import (
    ArrayLike,
    array,
    astype,
    bind,
    broadcast_node,
    broadcast_shapes,
    is_sequence,
    normalize_axis,
    reshape,
    to_node,
    together,
    transpose,
    whole_number,
    wrap,
)  # fmt: skip
from weft.core._remember import remembered
from weft.graph.dims import is_now, prod, same_shape
from weft.graph.node import Node
from weft.primitives.contraction import Matmul
from weft.primitives.elementwise import conjugate

Stream = Any


@remembered(2)
def matmul(a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> array:
    """The matrix product over the last two axes; vectors act as a row or a column, leading axes broadcast.

    >>> matmul(ones((2, 3)), ones((3, 4))).shape
    (2, 4)
    """
    x, y = to_node(a), to_node(b)
    if x.ndim == 0 or y.ndim == 0:
        raise ValueError("[matmul] needs arrays with at least one axis; multiply scalars with *.")
    dtype = dt.promote(x.dtype, y.dtype)
    dtype = dt.int32 if dtype.is_bool else dtype
    x, y = astype(x, dtype), astype(y, dtype)
    row, column = x.ndim == 1, y.ndim == 1
    if row:
        x = reshape(x, (1, *x.shape))
    if column:
        y = reshape(y, (*y.shape, 1))
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(
            f"[matmul] last axis of a {to_node(a).shape} and {'only' if column else 'second-to-last'} axis of b "
            f"{to_node(b).shape} differ: {x.shape[-1]} and {y.shape[-2]}; transpose one of them or reshape."
        )
    lead = broadcast_shapes("matmul", x.shape[:-2], y.shape[:-2])
    if y.ndim == 2:  # one matrix for all rows of x
        out = bind(Matmul(), x, y)
    elif x.ndim == 2 and is_now(y.shape[-1], 1):  # or for columns, as rows
        rows = bind(Matmul(), reshape(y, y.shape[:-1]), transpose(x, (1, 0)))
        out = reshape(rows, (*lead, x.shape[0], 1))
    else:
        out = bind(Matmul(), broadcast_node(x, (*lead, *x.shape[-2:])), broadcast_node(y, (*lead, *y.shape[-2:])))
    if row or column:
        kept = (*lead, *(() if row else x.shape[-2:-1]), *(() if column else y.shape[-1:]))
        out = reshape(out, kept)
    return wrap(out)


def addmm(
    c: ArrayLike, a: ArrayLike, b: ArrayLike, /, alpha: float = 1.0, beta: float = 1.0, *, stream: Stream = None
) -> array:
    """alpha * (a @ b) + beta * c, where c is broadcast to the shape of the product."""
    product, addend = matmul(a, b), c if isinstance(c, array) else wrap(to_node(c))
    if not same_shape(broadcast_shapes("addmm", product.shape, addend.shape), product.shape):
        raise ValueError(f"[addmm] c of shape {addend.shape} cannot be broadcast to the product's {product.shape}.")
    return (product if alpha == 1 else product * alpha) + (
        addend if beta == 1 else addend * beta
    )  # integers stay what they are


def outer(a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> array:
    """All products of an element of a with an element of b, both flattened.

    >>> outer(array([1, 2]), array([3, 4]))
    array([[3, 4],
           [6, 8]], dtype=int32)
    """
    x, y = to_node(a), to_node(b)
    column, row = reshape(x, (x.kind.size, 1)), reshape(y, (1, y.kind.size))
    return _product("outer", column, row)


def _product(name: str, x: Node, y: Node) -> array:
    left, right = together(name, x, y)
    return wrap(left * right)


def inner(a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> array:
    """Sums of products over the last axes of a and b; a 0-d operand multiplies.

    >>> inner(array([1, 2]), array([[3, 4], [5, 6]]))
    array([11, 17], dtype=int32)
    """
    x, y = to_node(a), to_node(b)
    if x.ndim == 0 or y.ndim == 0:
        return _product("inner", x, y)
    if x.shape[-1] != y.shape[-1]:
        raise ValueError(
            f"[inner] the last axes of a {x.shape} and b {y.shape} differ: {x.shape[-1]} and {y.shape[-1]}."
        )
    return _contract(x, y, (x.ndim - 1,), (y.ndim - 1,))


def vecdot(a: ArrayLike, b: ArrayLike, /, *, axis: int = -1, stream: Stream = None) -> array:
    """The sum of conj(a) * b over an axis; other axes broadcast.

    >>> vecdot(array([1.0, 2.0]), array([3.0, 4.0]))
    array(11, dtype=float32)
    """
    x, y = to_node(a), to_node(b)
    if x.ndim == 0 or y.ndim == 0:
        raise ValueError("[vecdot] needs arrays with at least one axis; multiply scalars with *.")
    sizes = [z.shape[normalize_axis("vecdot", axis, z.ndim)] for z in (x, y)]
    if sizes[0] != sizes[1]:
        raise ValueError(f"[vecdot] axis {axis} of a {x.shape} and of b {y.shape} differ: {sizes[0]} and {sizes[1]}.")
    return reducing.sum(_product("vecdot", conjugate(x), y), axis)


def kron(a: ArrayLike, b: ArrayLike, *, stream: Stream = None) -> array:
    """The Kronecker product: every element of a, replaced by its product with all of b.

    >>> kron(array([1, 2]), array([3, 4]))
    array([3, 4, 6, 8], dtype=int32)
    """
    x, y = to_node(a), to_node(b)
    ndim = max(x.ndim, y.ndim)
    p, q = ((*(1,) * (ndim - z.ndim), *z.shape) for z in (x, y))
    left = reshape(x, tuple(n for m in p for n in (m, 1)))
    right = reshape(y, tuple(n for m in q for n in (1, m)))
    return wrap(reshape(to_node(_product("kron", left, right)), tuple(m * n for m, n in zip(p, q, strict=True))))


def tensordot(a: ArrayLike, b: ArrayLike, /, axes: int | Sequence[Any] = 2, *, stream: Stream = None) -> array:
    """Sums of products over axes: the last so many of a with the first of b, or pairs of axes given as two lists.

    >>> tensordot(ones((2, 3, 4)), ones((4, 3, 5)), ([1, 2], [1, 0])).shape
    (2, 5)
    """
    x, y = to_node(a), to_node(b)
    p, q = _paired_axes(x, y, axes)
    for i, j in zip(p, q, strict=True):
        if x.shape[i] != y.shape[j]:
            raise ValueError(
                f"[tensordot] axis {i} of a {x.shape} and axis {j} of b {y.shape} differ: "
                f"{x.shape[i]} and {y.shape[j]}."
            )
    return _contract(x, y, p, q)


def _paired_axes(x: Node, y: Node, axes: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of x and those of y that `tensordot` sums over."""
    if not is_sequence(axes):
        axes = whole_number("tensordot", "the number of axes", axes)
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise ValueError(f"[tensordot] a {x.shape} and b {y.shape} cannot be summed over {axes} axes.")
        return tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes))
    if len(axes) != 2:
        raise TypeError(f"[tensordot] axes are a number, or those of a and those of b; got {axes!r}.")
    left, right = (list(z) if is_sequence(z) else [z] for z in axes)
    if len(left) != len(right):
        raise ValueError(f"[tensordot] {len(left)} axes of a cannot be paired with {len(right)} axes of b.")
    p = tuple(normalize_axis("tensordot", i, x.ndim) for i in left)
    q = tuple(normalize_axis("tensordot", i, y.ndim) for i in right)
    if len(set(p)) != len(p) or len(set(q)) != len(q):
        raise ValueError(f"[tensordot] axes {left} and {right} name an axis twice.")
    return p, q


def _contract(x: Node, y: Node, p: tuple[int, ...], q: tuple[int, ...]) -> array:
    """One matrix product: the axes p of x with q of y are summed over, the others follow each other."""
    rows, columns = [i for i in range(x.ndim) if i not in p], [j for j in range(y.ndim) if j not in q]
    m, n = tuple(x.shape[i] for i in rows), tuple(y.shape[j] for j in columns)
    k = prod(tuple(x.shape[i] for i in p))
    left = reshape(transpose(x, (*rows, *p)), (prod(m), k))
    right = reshape(transpose(y, (*q, *columns)), (k, prod(n)))
    return wrap(reshape(to_node(matmul(wrap(left), wrap(right))), (*m, *n)))
