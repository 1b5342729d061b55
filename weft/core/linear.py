"""Products of matrices and vectors."""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.core._common import ArrayLike, array, astype, bind, broadcast_node, broadcast_shapes, to_node, wrap
from weft.primitives.contraction import Matmul
from weft.primitives.views import reshape

Stream = Any


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
            f"[matmul] last axis of a {to_node(a).shape} and {'only' if column else 'second-to-last'} axis of b {to_node(b).shape} "
            f"differ: {x.shape[-1]} and {y.shape[-2]}; transpose one of them or reshape."
        )
    lead = broadcast_shapes("matmul", x.shape[:-2], y.shape[:-2])
    out = bind(Matmul(), broadcast_node(x, (*lead, *x.shape[-2:])), broadcast_node(y, (*lead, *y.shape[-2:])))
    if row or column:
        kept = (*lead, *(() if row else x.shape[-2:-1]), *(() if column else y.shape[-1:]))
        out = reshape(out, kept)
    return wrap(out)


def addmm(c: ArrayLike, a: ArrayLike, b: ArrayLike, /, alpha: float = 1.0, beta: float = 1.0, *, stream: Stream = None) -> array:
    """alpha * (a @ b) + beta * c."""
    return matmul(a, b) * alpha + (c if isinstance(c, array) else wrap(to_node(c))) * beta
