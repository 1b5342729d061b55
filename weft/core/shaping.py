"""Functions that rearrange elements without computing: reshape, transpose, broadcast and friends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from weft import dtypes as dt
from weft.core._common import (
    ArrayLike,
    Axes,
    apply,
    array,
    bind,
    broadcast_node,
    constant,
    is_sequence,
    kind_of,
    normalize_axes,
    normalize_axis,
    scalar_node,
    to_node,
    whole_number,
    wrap,
)  # fmt: skip
from weft.core._common import broadcast_shapes as _broadcast_shapes
from weft.core._common import (
    reshape as node_reshape,
)
from weft.core._common import (
    transpose as node_transpose,
)
from weft.core._remember import remembered
from weft.graph.dims import is_negative, is_now, prod, provably_equal
from weft.graph.node import Node, Shape, Size
from weft.primitives.creation import Iota
from weft.primitives.indexing import Gather
from weft.primitives.views import Contiguous, Slice

Stream = Any


def _sizes(name: str, shape: Any) -> tuple[Any, ...]:
    """A shape as it was given, refused if it is no sequence of integers."""
    if not is_sequence(shape) or any(not hasattr(n, "__index__") for n in shape):
        raise TypeError(f"[{name}] a shape is a sequence of integers; got {shape!r}.")
    return tuple([n if n.__class__ is int else whole_number(name, "a size", n) for n in shape])


@remembered(1)
def reshape(a: ArrayLike, /, shape: Sequence[int], *, stream: Stream = None) -> array:
    """The elements in row-major order in another shape; one size may be -1.

    >>> reshape(array([1, 2, 3, 4]), (2, -1)).shape
    (2, 2)
    """
    x = to_node(a)
    return wrap(node_reshape(x, _resolved("reshape", x.kind.size, _sizes("reshape", shape))))


def _resolved(name: str, size: Any, shape: Shape) -> Shape:
    """`shape` for so many elements, with its -1 worked out."""
    negative = [i for i, n in enumerate(shape) if is_negative(n)]
    unknown = [i for i in negative if is_now(shape[i], -1)]
    if len(unknown) < len(negative) or len(unknown) > 1:
        raise ValueError(f"[{name}] {shape} is no shape: sizes are not negative, and at most one is -1.")
    full = shape
    if unknown:
        rest = prod(tuple(n for i, n in enumerate(shape) if i != unknown[0]))
        if rest == 0 or size % rest != 0:
            raise ValueError(f"[{name}] {size} elements do not fit shape {shape}.")
        full = tuple(size // rest if i == unknown[0] else n for i, n in enumerate(shape))
    if not provably_equal(prod(full), size) and prod(full) != size:
        raise ValueError(f"[{name}] {size} elements do not fit shape {shape}.")
    return full


@remembered(1)
def flatten(a: ArrayLike, /, start_axis: int = 0, end_axis: int = -1, *, stream: Stream = None) -> array:
    """Axes start_axis to end_axis (included) as one; axes beyond the ends mean the ends.

    >>> flatten(zeros((2, 3, 4)), start_axis=1).shape
    (2, 12)
    """
    x = to_node(a)
    if x.ndim == 0:
        return wrap(node_reshape(x, (1,)))
    first = max(0, start_axis + x.ndim if start_axis < 0 else start_axis)
    last = min(x.ndim - 1, end_axis + x.ndim if end_axis < 0 else end_axis)
    if first > last:
        raise ValueError(
            f"[flatten] start_axis {start_axis} comes after end_axis {end_axis} in an array with {x.ndim} axes."
        )
    return wrap(node_reshape(x, (*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :])))


def unflatten(a: ArrayLike, /, axis: int, shape: Sequence[int], *, stream: Stream = None) -> array:
    """One axis as several of this shape, of which one size may be -1.

    >>> unflatten(zeros((2, 12)), 1, (3, -1)).shape
    (2, 3, 4)
    """
    x, sizes = to_node(a), _sizes("unflatten", shape)
    if not sizes:
        raise ValueError("[unflatten] an axis cannot become no axis; squeeze removes axes of size 1.")
    axis = normalize_axis("unflatten", axis, x.ndim)
    return wrap(node_reshape(x, (*x.shape[:axis], *_resolved("unflatten", x.shape[axis], sizes), *x.shape[axis + 1 :])))


@remembered(1)
def transpose(a: ArrayLike, /, axes: Sequence[int] | None = None, *, stream: Stream = None) -> array:
    """Axes in another order; reversed by default.

    >>> transpose(zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = to_node(a)
    if axes is None:
        return wrap(node_transpose(x, tuple(range(x.ndim - 1, -1, -1))))
    if len(axes) != x.ndim:
        raise ValueError(f"[transpose] {len(axes)} axes were given for an array with {x.ndim}.")
    order = tuple(normalize_axis("transpose", i, x.ndim) for i in axes)
    if len(set(order)) != x.ndim:
        raise ValueError(f"[transpose] axes {tuple(axes)} name an axis twice.")
    return wrap(node_transpose(x, order))


permute_dims = transpose


def matrix_transpose(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """The last two axes exchanged."""
    x = to_node(a)
    if x.ndim < 2:
        raise ValueError(f"[matrix_transpose] needs a matrix (or a stack of them); got shape {x.shape}.")
    return wrap(node_transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)))


@remembered(1)
def swapaxes(a: ArrayLike, /, axis1: int, axis2: int, *, stream: Stream = None) -> array:
    """Two axes exchanged.

    >>> swapaxes(zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = to_node(a)
    i, j = normalize_axis("swapaxes", axis1, x.ndim), normalize_axis("swapaxes", axis2, x.ndim)
    order = list(range(x.ndim))
    order[i], order[j] = j, i
    return wrap(node_transpose(x, tuple(order)))


@remembered(1)
def moveaxis(a: ArrayLike, /, source: int, destination: int, *, stream: Stream = None) -> array:
    """One axis moved to another place, the others in order.

    >>> moveaxis(zeros((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = to_node(a)
    i, j = normalize_axis("moveaxis", source, x.ndim), normalize_axis("moveaxis", destination, x.ndim)
    order = [k for k in range(x.ndim) if k != i]
    order.insert(j, i)
    return wrap(node_transpose(x, tuple(order)))


@remembered(1)
def expand_dims(a: ArrayLike, /, axis: int | Sequence[int], *, stream: Stream = None) -> array:
    """New axes of size 1 at these places of the result.

    >>> expand_dims(zeros((2, 3)), (0, -1)).shape
    (1, 2, 3, 1)
    """
    x = to_node(a)
    new: Any = tuple(axis) if is_sequence(axis) else (axis,)  # type: ignore[arg-type]
    count = len(new)
    places = set(normalize_axes("expand_dims", new, x.ndim + count))
    old = iter(x.shape)
    return wrap(node_reshape(x, tuple(1 if i in places else next(old) for i in range(x.ndim + count))))


@remembered(1)
def squeeze(a: ArrayLike, /, axis: Axes = None, *, stream: Stream = None) -> array:
    """Axes of size 1 removed: all of them, or those given.

    >>> squeeze(zeros((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    x = to_node(a)
    if axis is None:
        return wrap(node_reshape(x, tuple(n for n in x.shape if not is_now(n, 1))))
    gone = normalize_axes("squeeze", axis, x.ndim)
    for i in gone:
        if x.shape[i] != 1:
            raise ValueError(f"[squeeze] axis {i} has size {x.shape[i]}, not 1 (shape {x.shape}).")
    return wrap(node_reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone)))


def broadcast_to(a: ArrayLike, /, shape: Sequence[int], *, stream: Stream = None) -> array:
    """a repeated to `shape` along new axes and axes of size 1.

    >>> broadcast_to(array([1, 2]), (2, 2))
    array([[1, 2],
           [1, 2]], dtype=int32)
    """
    x, shape = to_node(a), _sizes("broadcast_to", shape)
    if any(map(is_negative, shape)):
        raise ValueError(f"[broadcast_to] sizes cannot be negative; got {shape}.")
    together = _broadcast_shapes("broadcast_to", x.shape, shape)
    if len(together) != len(shape) or any(not provably_equal(m, n) for m, n in zip(together, shape, strict=True)):
        raise ValueError(f"[broadcast_to] shape {x.shape} cannot be broadcast to {shape}.")
    return wrap(broadcast_node(x, shape))


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that arrays of these shapes have together.

    >>> broadcast_shapes((3, 1), (4,))
    (3, 4)
    """
    if not shapes:
        raise ValueError("[broadcast_shapes] needs at least one shape.")
    return _broadcast_shapes("broadcast_shapes", *(tuple(s) for s in shapes))  # type: ignore[return-value]


def broadcast_arrays(*arrays: ArrayLike, stream: Stream = None) -> list[array]:
    """All arrays in the shape that they have together.

    >>> [x.shape for x in broadcast_arrays(zeros((3, 1)), zeros((4,)))]
    [(3, 4), (3, 4)]
    """
    nodes = [to_node(a) for a in arrays]
    shape = _broadcast_shapes("broadcast_arrays", *(n.shape for n in nodes))
    return [wrap(broadcast_node(n, shape)) for n in nodes]


def _at_least(name: str, ndim: int, arrays: tuple[ArrayLike, ...]) -> Any:
    made = []
    for a in arrays:
        if isinstance(a, (list, tuple)):
            raise TypeError(f"[{name}] takes arrays one by one; got a {type(a).__name__}: write {name}(*arrays).")
        x = to_node(a)
        front = 1 if x.ndim == 1 and ndim > 1 else 0  # a vector becomes a row, as in NumPy
        made.append(wrap(node_reshape(x, (*(1,) * front, *x.shape, *(1,) * (ndim - front - x.ndim)))))
    return made[0] if len(made) == 1 else made


def atleast_1d(*arys: ArrayLike, stream: Stream = None) -> array | list[array]:
    """Each array with at least one axis."""
    return _at_least("atleast_1d", 1, arys)  # type: ignore[no-any-return]


def atleast_2d(*arys: ArrayLike, stream: Stream = None) -> array | list[array]:
    """Each array with at least two axes; a vector becomes a row.

    >>> atleast_2d(array([1, 2, 3])).shape
    (1, 3)
    """
    return _at_least("atleast_2d", 2, arys)  # type: ignore[no-any-return]


def atleast_3d(*arys: ArrayLike, stream: Stream = None) -> array | list[array]:
    """Each array with at least three axes: (n,) becomes (1, n, 1), (m, n) becomes (m, n, 1)."""
    return _at_least("atleast_3d", 3, arys)  # type: ignore[no-any-return]


def contiguous(a: ArrayLike, /, allow_col_major: bool = False, *, stream: Stream = None) -> array:
    """a with its elements in memory in row-major order: a copy, unless they lie so already. With `allow_col_major`,
    column-major order will do. Operations take every order; libraries that read the memory of an array may not.

    >>> memoryview(contiguous(array([[1, 2], [3, 4]]).T)).c_contiguous
    True
    """
    return apply(Contiguous(bool(allow_col_major)), to_node(a))


def as_strided(
    a: ArrayLike,
    /,
    shape: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    offset: int = 0,
    *,
    stream: Stream = None,
) -> array:
    """The elements at offset + i * strides[0] + j * strides[1] + … of the array in row-major order, which must exist.

    >>> as_strided(array([1, 2, 3, 4]), (3, 2), (1, 1))
    array([[1, 2],
           [2, 3],
           [3, 4]], dtype=int32)
    """
    x = to_node(a)
    sizes = tuple(n.__index__() for n in (x.shape if shape is None else _sizes("as_strided", shape)))
    if any(n < 0 for n in sizes):
        raise ValueError(f"[as_strided] sizes cannot be negative; got {sizes}.")
    steps = _row_major(sizes) if strides is None else tuple(strides)
    if len(steps) != len(sizes):
        raise ValueError(f"[as_strided] shape {sizes} and strides {steps} differ in length.")
    if 0 in sizes:
        return wrap(constant(0, kind_of(sizes, x.dtype)))
    reach = [(n - 1) * step for n, step in zip(sizes, steps, strict=True)]
    low, high = offset + sum(min(0, r) for r in reach), offset + sum(max(0, r) for r in reach)
    if low < 0 or high >= x.kind.size:
        raise ValueError(
            f"[as_strided] shape {sizes}, strides {steps} and offset {offset} reach elements {low} to {high} "
            f"of an array that has {x.kind.size}."
        )
    flat = node_reshape(x, (x.kind.size,))
    if steps == _row_major(sizes):
        return wrap(node_reshape(slice_axis(flat, 0, offset, high - low + 1), sizes))
    return apply(Gather((None,), tuple(range(len(sizes)))), flat, _positions(sizes, steps, offset))


def _row_major(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of elements that follow each other."""
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def _positions(sizes: tuple[int, ...], steps: tuple[int, ...], offset: int) -> Node:
    """offset + i * steps[0] + j * steps[1] + … for every index."""
    total = scalar_node(offset, kind_of(sizes, dt.int64))
    for axis, (n, step) in enumerate(zip(sizes, steps, strict=True)):
        along = bind(Iota((n, *(1,) * (len(sizes) - axis - 1))))
        along = along * scalar_node(step, along.kind)
        total = total + broadcast_node(along, sizes)
    return total


def flip(a: ArrayLike, /, axis: Axes = None, *, stream: Stream = None) -> array:
    """Elements in reverse order along the axes (all by default).

    >>> flip(array([[1, 2], [3, 4]]), axis=1)
    array([[2, 1],
           [4, 3]], dtype=int32)
    """
    x = to_node(a)
    axes = normalize_axes("flip", axis, x.ndim)
    starts = tuple(n - 1 if i in axes else 0 for i, n in enumerate(x.shape))
    steps = tuple(-1 if i in axes else 1 for i in range(x.ndim))
    return apply(Slice(starts, x.shape, steps), x) if x.kind.size else wrap(x)


def slice_axis(x: Node, axis: int, start: Size, size: Size, step: Size = 1) -> Node:
    """`size` elements along one axis, everything along the others."""
    starts = tuple(start if i == axis else 0 for i in range(x.ndim))
    sizes = tuple(size if i == axis else n for i, n in enumerate(x.shape))
    steps = tuple(step if i == axis else 1 for i in range(x.ndim))
    return bind(Slice(starts, sizes, steps), x)


def split(
    a: ArrayLike, /, indices_or_sections: int | Sequence[int], axis: int = 0, *, stream: Stream = None
) -> list[array]:
    """The array in pieces along an axis: so many equal ones, or cut at these indices.

    >>> split(array([1, 2, 3, 4, 5]), [2, 3])
    [array([1, 2], dtype=int32), array([3], dtype=int32), array([4, 5], dtype=int32)]
    """
    x = to_node(a)
    axis = normalize_axis("split", axis, x.ndim)
    n = x.shape[axis]
    if not is_sequence(indices_or_sections):
        sections = whole_number("split", "the number of parts", indices_or_sections)
        if sections <= 0 or n % sections != 0:
            raise ValueError(f"[split] {n} elements along axis {axis} cannot be cut into {sections} equal parts.")
        step = n // sections
        cuts = [i * step for i in range(sections + 1)]
    else:
        places = [whole_number("split", "a place to cut at", i) for i in indices_or_sections]  # type: ignore[union-attr]
        cuts = [0, *(max(0, min(n, i + n if i < 0 else i)) for i in places), n]
    return [wrap(slice_axis(x, axis, low, max(0, high - low))) for low, high in pairwise(cuts)]
