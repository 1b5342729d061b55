"""Products of chosen matrices: gather_mm."""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.core._common import array, constant, kind_of, wrap
from weft.core.elementwise import equal, where
from weft.core.gathering import take
from weft.core.linear import matmul
from weft.core.looping import scan
from weft.core.shaping import expand_dims
from weft.graph.dims import prod
from weft.primitives.base import bind
from weft.primitives.creation import Iota
from weft.primitives.views import reshape

Stream = Any


def gather_mm(
    a: array,
    b: array,
    /,
    lhs_indices: array | None = None,
    rhs_indices: array | None = None,
    *,
    sorted_indices: bool = False,
    stream: Stream = None,
) -> array:
    """Products of chosen matrices: a's number lhs_indices[i] times b's number rhs_indices[i], matrices being counted
    along all axes before the last two. Without indices they are all taken, in order.

    >>> gather_mm(ones((1, 2, 3)), stack([zeros((3, 2)), ones((3, 2))]), rhs_indices=array([1]))
    array([[[3, 3],
            [3, 3]]], dtype=float32)
    """
    for given in (a, b, lhs_indices, rhs_indices):
        if given is not None and not isinstance(given, array):
            raise TypeError(f"[gather_mm] operands and indices must be arrays; got {type(given).__name__}.")
    if lhs_indices is None and rhs_indices is None:
        return matmul(a, b)
    if a.ndim < 2 or b.ndim < 2:
        raise ValueError(f"[gather_mm] chooses among matrices; got shapes {a.shape} and {b.shape}.")
    x, y = a, b
    dtype = dt.promote(x.dtype, y.dtype)
    if dtype.kind != "f":
        raise ValueError(
            f"[gather_mm] Only real floating point types are supported but {a.dtype.name} and {b.dtype.name} were "
            f"provided which results in {dtype.name}, which is not a real floating point type."
        )
    if x._node.shape[-1] != y._node.shape[-2]:
        raise ValueError(
            f"[gather_mm] Last dimension of first input with shape {a.shape} must match second to last dimension of "
            f"second input with shape {b.shape}."
        )
    for given in (lhs_indices, rhs_indices):
        if given is not None and not given.dtype.is_integer:
            raise ValueError("[gather_mm] Got indices with invalid dtype. Indices must be integral.")
    left, right = _chosen(x.astype(dtype), lhs_indices), y.astype(dtype)
    count = prod(right._node.shape[:-2])
    if rhs_indices is not None and rhs_indices._node.kind.size > count:
        return _by_matrix(left, right, rhs_indices, count)
    return matmul(left, _chosen(right, rhs_indices))


def _chosen(x: array, indices: array | None) -> array:
    """Matrices by their numbers; all of them if there are none."""
    if indices is None:
        return x
    shape = x._node.shape
    flat = wrap(reshape(x._node, (prod(shape[:-2]), *shape[-2:])))
    return take(flat, indices, axis=0)


def _by_matrix(x: array, y: array, indices: array, count: Any) -> array:
    """`x @ y[indices]` with more indices than there are matrices: each matrix is multiplied with all of x and goes
    where it was chosen, in a loop over the matrices, so that none of them is copied."""
    matrices = wrap(reshape(y._node, (count, *y._node.shape[-2:])))
    numbers = wrap(bind(Iota((count,))))
    first = matmul(x, matrices[0])
    at = expand_dims(indices, (-1, -2))
    shape = where(equal(at, 0), first, first)._node.shape
    start = wrap(constant(0, kind_of(shape, x.dtype)))

    def step(made: array, now: list[array]) -> tuple[array, None]:
        matrix, number = now
        return where(equal(at, number), matmul(x, matrix), made), None

    return scan(step, start, [matrices, numbers])[0]
