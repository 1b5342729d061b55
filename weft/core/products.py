"""Products of chosen matrices (gather_mm), of masked ones (block_masked_mm), and in segments (segmented_mm)."""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.core._common import array, broadcast_shapes, constant, kind_of, normalize_axis, wrap
from weft.core._common import to_int64 as int64_node
from weft.core.creating import zeros
from weft.core.elementwise import clip, equal, less, where
from weft.core.gathering import slice_, take
from weft.core.linear import matmul
from weft.core.looping import fori_loop, map, scan
from weft.core.shaping import broadcast_to, expand_dims
from weft.dtypes import Dtype
from weft.graph.dims import prod, same_shape
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
    _refuse_others("gather_mm", a, b, lhs_indices, rhs_indices)
    if lhs_indices is None and rhs_indices is None:
        return matmul(a, b)
    if a.ndim < 2 or b.ndim < 2:
        raise ValueError(f"[gather_mm] chooses among matrices; got shapes {a.shape} and {b.shape}.")
    x, y = a, b
    dtype = _float_of("gather_mm", x, y)
    _refuse_mismatch("gather_mm", x, y)
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


def _refuse_others(name: str, a: Any, b: Any, *optional: Any) -> None:
    for value in (a, b, *(value for value in optional if value is not None)):
        if not isinstance(value, array):
            raise TypeError(f"[{name}] operands must be arrays; got {type(value).__name__}.")


def _float_of(name: str, a: array, b: array) -> Dtype:
    """The common dtype of operands, which has to be real and floating."""
    dtype = dt.promote(a.dtype, b.dtype)
    if dtype.kind != "f":
        raise ValueError(
            f"[{name}] Only real floating point types are supported but {a.dtype.name} and {b.dtype.name} were "
            f"provided which results in {dtype.name}, which is not a real floating point type."
        )
    return dtype


def _refuse_mismatch(name: str, a: array, b: array) -> None:
    if a._node.shape[-1] != b._node.shape[-2]:
        raise ValueError(
            f"[{name}] Last dimension of first input with shape {a.shape} must match second to last dimension of "
            f"second input with shape {b.shape}."
        )


# ---- blocks ----


def block_masked_mm(
    a: array,
    b: array,
    /,
    block_size: int = 64,
    mask_out: array | None = None,
    mask_lhs: array | None = None,
    mask_rhs: array | None = None,
    *,
    stream: Stream = None,
) -> array:
    """The matrix product with blocks of `block_size` rows and columns of the result, of a, and of b masked: a block is
    taken for 0 where a mask of bools is False, and multiplied by the element of any other mask.

    >>> block_masked_mm(ones((2, 4)), ones((4, 2)), 2, mask_lhs=array([[True, False]]))
    array([[2, 2],
           [2, 2]], dtype=float32)
    """
    name = "block_masked_mm"
    _refuse_others(name, a, b, mask_out, mask_lhs, mask_rhs)
    if a.ndim == 0 or b.ndim == 0:
        raise ValueError(f"[{name}] Got 0 dimension input. Inputs must have at least one dimension.")
    if block_size.__class__ is not int or block_size < 1:
        raise ValueError(f"[{name}] block_size is a positive number of rows and columns; got {block_size!r}.")
    dtype = _float_of(name, a, b)
    x, y = a[None] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
    _refuse_mismatch(name, x, y)
    product = matmul(
        _masked(x.astype(dtype), mask_lhs, block_size, "mask_lhs"),
        _masked(y.astype(dtype), mask_rhs, block_size, "mask_rhs"),
    )
    made = _masked(product, mask_out, block_size, "mask_out")
    if a.ndim == 1:
        made = made[..., 0, :]
    return made[..., 0] if b.ndim == 1 else made


def _masked(x: array, mask: array | None, block: int, what: str) -> array:
    """x with its blocks masked."""
    if mask is None:
        return x
    *lead, m, n = x._node.shape
    blocks = (*lead, -(-m // block), -(-n // block))
    if not same_shape(broadcast_shapes(f"block_masked_mm: {what}", mask._node.shape, blocks), blocks):
        raise ValueError(f"[block_masked_mm] {what} of shape {mask.shape} does not fit blocks of shape {blocks}.")
    each = broadcast_to(mask, blocks)  # type: ignore[arg-type]
    for axis, size in ((-2, m), (-1, n)):
        places = wrap(bind(Iota((size,)))) // block
        each = take(each, places, normalize_axis("block_masked_mm", axis, each.ndim))
    return where(each, x, zeros((), x.dtype)) if mask.dtype.is_bool else x * each.astype(x.dtype)


# ---- segments ----

_SEGMENT_BLOCK = 256
"""Columns of a that one step of a segment multiplies."""


def segmented_mm(a: array, b: array, /, segments: array, *, stream: Stream = None) -> array:
    """One product for each segment [start, stop) of the axis that a product sums over: a[:, start:stop] @
    b[start:stop]. Starts and stops are pairs along the last axis of `segments`, moved into range.

    >>> segmented_mm(ones((1, 4)), ones((4, 1)), array([[0, 1], [1, 4]]))
    array([[[1]],
           [[3]]], dtype=float32)
    """
    name = "segmented_mm"
    _refuse_others(name, a, b)
    _refuse_others(name, a, segments)
    if a.ndim != 2 or b.ndim != 2:
        raise ValueError(f"[{name}] multiplies two matrices; got shapes {a.shape} and {b.shape}.")
    dtype = _float_of(name, a, b)
    _refuse_mismatch(name, a, b)
    if segments.ndim == 0 or segments._node.shape[-1] != 2:
        raise ValueError(f"[{name}] The segments should have shape (..., 2) but {segments.shape} was provided.")
    if not segments.dtype.is_integer:
        raise ValueError(f"[{name}] Got segments with invalid dtype. Segments must be integral.")
    (m, k), n = a._node.shape, b._node.shape[-1]
    lead = segments._node.shape[:-1]
    wide = dt.float32 if dtype in dt.HALVES else dtype  # halves are rounded once, not after every step
    start = wrap(constant(0, kind_of((m, n), wide)))
    width = _SEGMENT_BLOCK if k > _SEGMENT_BLOCK else k
    if k == 0 or prod(lead) == 0:
        return wrap(constant(0, kind_of((*lead, m, n), dtype)))
    x, y = a.astype(wide), b.astype(wide)
    places = wrap(bind(Iota((width,))))

    def product(segment: array) -> array:
        first, last = segment[0], segment[1]

        def step(i: array, total: array) -> array:
            wanted = first + i * width
            at = clip(wanted, 0, k - width)  # what is taken lies inside; what was taken before is left out
            inside = (at + places >= wanted) & less(at + places, last)
            left = slice_(x, at, (1,), (m, width))  # type: ignore[arg-type]
            right = slice_(y, at, (0,), (width, n))  # type: ignore[arg-type]
            zero = zeros((), wide)
            return total + matmul(where(inside, left, zero), where(inside[:, None], right, zero))

        return fori_loop(0, (last - first + (width - 1)) // width, step, start)

    pairs = clip(wrap(int64_node(segments._node)), 0, k)
    made = map(product, wrap(reshape(pairs._node, (prod(lead), 2))))
    return wrap(reshape(made._node, (*lead, m, n))).astype(dtype)  # type: ignore[no-any-return]
