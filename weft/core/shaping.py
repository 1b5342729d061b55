"""Functions that rearrange elements without computing: reshape, transpose, broadcast and friends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.core._common import (
    ArrayLike, Axes, apply, array, broadcast_node, bind, normalize_axes, normalize_axis, reshape as node_reshape, to_node,
    transpose as node_transpose, wrap,
)  # fmt: skip
from weft.core._common import broadcast_shapes as _broadcast_shapes
from weft.graph.dims import prod, provably_equal
from weft.graph.node import Node, Shape, Size
from weft.primitives.views import Slice

Stream = Any


def reshape(a: ArrayLike, /, shape: Sequence[int], *, stream: Stream = None) -> array:
    """The elements in row-major order in another shape; one size may be -1.

    >>> reshape(array([1, 2, 3, 4]), (2, -1)).shape
    (2, 2)
    """
    x = to_node(a)
    return wrap(node_reshape(x, _resolved("reshape", x, tuple(shape))))


def _resolved(name: str, x: Node, shape: Shape) -> Shape:
    """`shape` with its -1 worked out."""
    if any(type(n) is not int and not hasattr(n, "__index__") for n in shape):
        raise TypeError(f"[{name}] a shape is a sequence of integers; got {shape!r}.")
    unknown = [i for i, n in enumerate(shape) if type(n) is int and n == -1]
    if any(type(n) is int and n < -1 for n in shape) or len(unknown) > 1:
        raise ValueError(f"[{name}] {shape} is no shape: sizes are not negative, and at most one is -1.")
    if unknown:
        rest = prod(tuple(n for i, n in enumerate(shape) if i != unknown[0]))
        if rest == 0 or x.kind.size % rest != 0:
            raise ValueError(f"[{name}] {x.kind.size} elements (shape {x.shape}) do not fit shape {shape}.")
        shape = tuple(x.kind.size // rest if i == unknown[0] else n for i, n in enumerate(shape))
    if not provably_equal(prod(shape), x.kind.size) and prod(shape) != x.kind.size:
        raise ValueError(f"[{name}] {x.kind.size} elements (shape {x.shape}) do not fit shape {shape}.")
    return shape


def flatten(a: ArrayLike, /, start_axis: int = 0, end_axis: int = -1, *, stream: Stream = None) -> array:
    """Axes start_axis to end_axis (included) as one."""
    x = to_node(a)
    if x.ndim == 0:
        return wrap(node_reshape(x, (1,)))
    first, last = normalize_axis("flatten", start_axis, x.ndim), normalize_axis("flatten", end_axis, x.ndim)
    if first > last:
        raise ValueError(f"[flatten] start_axis {start_axis} comes after end_axis {end_axis}.")
    return wrap(node_reshape(x, (*x.shape[:first], prod(x.shape[first : last + 1]), *x.shape[last + 1 :])))


def transpose(a: ArrayLike, /, axes: Sequence[int] | None = None, *, stream: Stream = None) -> array:
    """Axes in another order; reversed by default."""
    x = to_node(a)
    if axes is None:
        return wrap(node_transpose(x, tuple(range(x.ndim - 1, -1, -1))))
    order = tuple(normalize_axis("transpose", i, x.ndim) for i in axes)
    if sorted(order) != list(range(x.ndim)):
        raise ValueError(f"[transpose] axes {tuple(axes)} are not a permutation of the {x.ndim} axes of the array.")
    return wrap(node_transpose(x, order))


permute_dims = transpose


def swapaxes(a: ArrayLike, /, axis1: int, axis2: int, *, stream: Stream = None) -> array:
    """Two axes exchanged."""
    x = to_node(a)
    i, j = normalize_axis("swapaxes", axis1, x.ndim), normalize_axis("swapaxes", axis2, x.ndim)
    order = list(range(x.ndim))
    order[i], order[j] = j, i
    return wrap(node_transpose(x, tuple(order)))


def moveaxis(a: ArrayLike, /, source: int, destination: int, *, stream: Stream = None) -> array:
    """One axis moved to another place, the others in order."""
    x = to_node(a)
    i, j = normalize_axis("moveaxis", source, x.ndim), normalize_axis("moveaxis", destination, x.ndim)
    order = [k for k in range(x.ndim) if k != i]
    order.insert(j, i)
    return wrap(node_transpose(x, tuple(order)))


def expand_dims(a: ArrayLike, /, axis: int | Sequence[int], *, stream: Stream = None) -> array:
    """New axes of size 1 at these places of the result."""
    x = to_node(a)
    count = len(axis) if isinstance(axis, (list, tuple)) else 1
    places = set(normalize_axes("expand_dims", axis, x.ndim + count))
    old = iter(x.shape)
    return wrap(node_reshape(x, tuple(1 if i in places else next(old) for i in range(x.ndim + count))))


def squeeze(a: ArrayLike, /, axis: Axes = None, *, stream: Stream = None) -> array:
    """Axes of size 1 removed: all of them, or those given."""
    x = to_node(a)
    if axis is None:
        return wrap(node_reshape(x, tuple(n for n in x.shape if not (type(n) is int and n == 1))))
    gone = normalize_axes("squeeze", axis, x.ndim)
    for i in gone:
        if x.shape[i] != 1:
            raise ValueError(f"[squeeze] axis {i} has size {x.shape[i]}, not 1 (shape {x.shape}).")
    return wrap(node_reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone)))


def broadcast_to(a: ArrayLike, /, shape: Sequence[int], *, stream: Stream = None) -> array:
    """a repeated to `shape` along new axes and axes of size 1."""
    x, shape = to_node(a), tuple(shape)
    together = _broadcast_shapes("broadcast_to", x.shape, shape)
    if len(together) != len(shape) or any(not provably_equal(m, n) for m, n in zip(together, shape, strict=True)):
        raise ValueError(f"[broadcast_to] shape {x.shape} cannot be broadcast to {shape}.")
    return wrap(broadcast_node(x, shape))


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that arrays of these shapes have together."""
    return _broadcast_shapes("broadcast_shapes", *(tuple(s) for s in shapes))  # type: ignore[return-value]


def broadcast_arrays(*arrays: ArrayLike, stream: Stream = None) -> list[array]:
    """All arrays in the shape that they have together."""
    nodes = [to_node(a) for a in arrays]
    shape = _broadcast_shapes("broadcast_arrays", *(n.shape for n in nodes))
    return [wrap(broadcast_node(n, shape)) for n in nodes]


def flip(a: ArrayLike, /, axis: Axes = None, *, stream: Stream = None) -> array:
    """Elements in reverse order along the axes (all by default)."""
    x = to_node(a)
    axes = normalize_axes("flip", axis, x.ndim)
    starts = tuple(n - 1 if i in axes else 0 for i, n in enumerate(x.shape))
    steps = tuple(-1 if i in axes else 1 for i in range(x.ndim))
    return apply(Slice(starts, x.shape, steps), x) if x.kind.size else wrap(x)


def slice_axis(x: Node, axis: int, start: Size, size: Size, step: int = 1) -> Node:
    """`size` elements along one axis, everything along the others."""
    starts = tuple(start if i == axis else 0 for i in range(x.ndim))
    sizes = tuple(size if i == axis else n for i, n in enumerate(x.shape))
    steps = tuple(step if i == axis else 1 for i in range(x.ndim))
    return bind(Slice(starts, sizes, steps), x)


def split(a: ArrayLike, /, indices_or_sections: int | Sequence[int], axis: int = 0, *, stream: Stream = None) -> list[array]:
    """The array in pieces along an axis: so many equal ones, or cut at these indices."""
    x = to_node(a)
    axis = normalize_axis("split", axis, x.ndim)
    n = x.shape[axis]
    if isinstance(indices_or_sections, int):
        if indices_or_sections <= 0 or n % indices_or_sections != 0:
            raise ValueError(f"[split] {n} elements along axis {axis} cannot be cut into {indices_or_sections} equal parts.")
        step = n // indices_or_sections
        cuts = [i * step for i in range(indices_or_sections + 1)]
    else:
        cuts = [0, *(max(0, min(n, i + n if i < 0 else i)) for i in indices_or_sections), n]
    return [wrap(slice_axis(x, axis, low, max(0, high - low))) for low, high in zip(cuts, cuts[1:], strict=False)]
