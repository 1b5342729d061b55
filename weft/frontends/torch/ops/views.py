"""Operators that only look at their operand differently, that put arrays together, and that make new ones.

Whether a result shares memory with an operand is no matter of theirs: values are what counts here, and aliasing.py
knows what a caller of torch sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, axes_of, axis_of, cartesian, iota, to

aten = Table()

# ---- the same elements ----


@aten(
    "alias", "clone", "detach", "lift_fresh_copy", "lift_fresh", "contiguous", "lift", "alias_copy", "detach_copy",
    "prims::device_put", "dim_order_ops::_clone_dim_order",
)  # fmt: skip
def alias(out: Out, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
    return x


@aten("copy")
def copy(out: Out, x: mx.array, source: mx.array, non_blocking: bool = False) -> mx.array:
    if source.dtype.is_complex and not out.dtype.is_complex:
        source = mx.real(source)
    return mx.broadcast_to(to(source, out.dtype), x.shape)


@aten("view", "reshape", "_unsafe_view", "view_copy", "_reshape_alias", "_reshape_alias_copy", "_reshape_copy")
def view(out: Out, x: mx.array, size: Sequence[Any], *args: Any) -> mx.array:
    return mx.reshape(x, tuple(size)) if -1 not in [n for n in size if type(n) is int] else mx.reshape(x, out.shape)


@aten("view.dtype", "view_copy.dtype")
def view_dtype(out: Out, x: mx.array, dtype: Any) -> mx.array:
    return mx.view(x, out.dtype)


@aten("view_as_real", "view_as_real_copy")
def view_as_real(out: Out, x: mx.array) -> mx.array:
    return mx.stack([mx.real(x), mx.imag(x)], axis=-1)


@aten("view_as_complex", "view_as_complex_copy")
def view_as_complex(out: Out, x: mx.array) -> mx.array:
    real, imag = (mx.squeeze(part, -1) for part in mx.split(x, 2, axis=-1))
    return cartesian(real, imag)


@aten("permute", "permute_copy")
def permute(out: Out, x: mx.array, dims: Sequence[int]) -> mx.array:
    return mx.transpose(x, [axis_of(d, x.ndim) for d in dims])


@aten("t", "t_copy")
def t(out: Out, x: mx.array) -> mx.array:
    return mx.transpose(x) if x.ndim == 2 else x


@aten("transpose.int", "transpose_copy.int")
def transpose(out: Out, x: mx.array, dim0: int, dim1: int) -> mx.array:
    return mx.swapaxes(x, dim0, dim1) if x.ndim else x


@aten("unsqueeze", "unsqueeze_copy")
def unsqueeze(out: Out, x: mx.array, dim: int) -> mx.array:
    return mx.expand_dims(x, axis_of(dim, x.ndim + 1))


@aten("squeeze", "squeeze_copy")
def squeeze(out: Out, x: mx.array) -> mx.array:
    return mx.reshape(x, out.shape)


@aten("squeeze.dim", "squeeze.dims", "squeeze_copy.dim", "squeeze_copy.dims")
def squeeze_dims(out: Out, x: mx.array, dim: Any) -> mx.array:
    axes = axes_of(dim, x.ndim) if isinstance(dim, int) or len(dim) else ()
    return mx.squeeze(x, [axis for axis in axes if type(x.shape[axis]) is int and x.shape[axis] == 1])


@aten("expand", "expand_copy")
def expand(out: Out, x: mx.array, size: Sequence[Any], *, implicit: bool = False) -> mx.array:
    """A size of -1 is the operand's."""
    lead = len(size) - x.ndim
    wanted = [x.shape[i - lead] if type(n) is int and n == -1 else n for i, n in enumerate(size)]
    return mx.broadcast_to(x, tuple(wanted))


@aten("unfold", "unfold_copy")
def unfold(out: Out, x: mx.array, dimension: int, size: int, step: int) -> mx.array:
    axis = axis_of(dimension, x.ndim)
    if not x.ndim:
        return mx.reshape(x, out.shape)
    windows = out.shape[axis]
    places = mx.expand_dims(iota(windows) * step, 1) + iota(size)
    return mx.moveaxis(mx.take(x, places, axis=axis), axis + 1, -1)


@aten("diagonal", "diagonal_copy")
def diagonal(out: Out, x: mx.array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> mx.array:
    return mx.diagonal(x, offset, axis_of(dim1, x.ndim), axis_of(dim2, x.ndim))


def _bounded(place: Any, n: Any, default: Any) -> Any:
    """A start or end of a slice, from 0 to n. Sizes are compared only where that is needed."""
    if place is None:
        return default
    if type(place) is int and place == 0:
        return 0
    if type(place) is int and place >= 2**31:
        return n
    if place is n:
        return n
    if place < 0:
        place = place + n
        return 0 if place < 0 else place
    return n if place > n else place


def bounds(n: Any, start: Any, end: Any) -> tuple[Any, Any]:
    first = _bounded(start, n, 0)
    last = _bounded(end, n, n)
    return first, first if last is not n and last < first else last


def part(ndim: int, axis: int, piece: slice) -> tuple[slice, ...]:
    """The key of a part along one axis."""
    return (*(slice(None),) * axis, piece)


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(out: Out, x: mx.array, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> mx.array:
    axis = axis_of(dim, x.ndim)
    first, last = bounds(x.shape[axis], start, end)
    if type(first) is int and first == 0 and last is x.shape[axis] and step == 1:
        return x
    return x[part(x.ndim, axis, slice(first, last, step))]


@aten("select.int", "select_copy.int")
def select(out: Out, x: mx.array, dim: int, index: Any) -> mx.array:
    axis = axis_of(dim, x.ndim)
    place = index + x.shape[axis] if index < 0 else index
    return mx.squeeze(x[part(x.ndim, axis, slice(place, place + 1))], axis)


@aten("narrow", "narrow_copy")
def narrow(out: Out, x: mx.array, dim: int, start: Any, length: Any) -> mx.array:
    axis = axis_of(dim, x.ndim)
    first = start + x.shape[axis] if start < 0 else start
    return x[part(x.ndim, axis, slice(first, first + length))]


@aten("split_with_sizes", "split_with_sizes_copy", "unsafe_split_with_sizes")
def split_with_sizes(out: Any, x: mx.array, split_sizes: Sequence[Any], dim: int = 0) -> list[mx.array]:
    axis = axis_of(dim, x.ndim)
    made, start = [], 0
    for size in split_sizes:
        made.append(x[part(x.ndim, axis, slice(start, start + size))])
        start = start + size
    return made


@aten("split.Tensor", "split_copy.Tensor", "unsafe_split.Tensor")
def split(out: Any, x: mx.array, split_size: Any, dim: int = 0) -> list[mx.array]:
    axis = axis_of(dim, x.ndim)
    return split_with_sizes(out, x, [made.shape[axis] for made in out], axis)


@aten("unbind.int", "unbind_copy.int")
def unbind(out: Any, x: mx.array, dim: int = 0) -> list[mx.array]:
    axis = axis_of(dim, x.ndim)
    return [mx.squeeze(x[part(x.ndim, axis, slice(i, i + 1))], axis) for i in range(len(out))]


@aten("as_strided", "as_strided_copy")
def as_strided(out: Out, memory: mx.array, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> mx.array:
    """Of what lies in memory as it is (strided.py)."""
    return mx.as_strided(memory, tuple(size), tuple(stride), offset)


# ---- a part replaced ----


def with_part(x: mx.array, key: tuple[Any, ...], values: mx.array) -> mx.array:
    made = mx.array(x)
    made[key] = values
    return made


@aten("slice_scatter")
def slice_scatter(
    out: Out, x: mx.array, src: mx.array, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> mx.array:
    axis = axis_of(dim, x.ndim)
    first, last = bounds(x.shape[axis], start, end)
    return with_part(x, part(x.ndim, axis, slice(first, last, step)), to(src, x.dtype))


@aten("as_strided_scatter")
def as_strided_scatter(
    out: Out, memory: mx.array, src: mx.array, size: Sequence[Any], stride: Sequence[Any], offset: Any,
    order: Sequence[int],
) -> mx.array:  # fmt: skip
    """With its axes in another order, `memory` is the operand (strided.py)."""
    flat = mx.reshape(memory, (memory.size,))
    places = mx.as_strided(iota(memory.size), tuple(size), tuple(stride), offset)
    made = mx.reshape(with_part(flat, (places,), to(src, memory.dtype)), memory.shape)
    return mx.transpose(made, tuple(order))


@aten("select_scatter")
def select_scatter(out: Out, x: mx.array, src: mx.array, dim: int, index: Any) -> mx.array:
    axis = axis_of(dim, x.ndim)
    place = index + x.shape[axis] if index < 0 else index
    values = mx.expand_dims(to(src, x.dtype), axis)
    return with_part(x, part(x.ndim, axis, slice(place, place + 1)), values)


@aten("diagonal_scatter")
def diagonal_scatter(out: Out, x: mx.array, src: mx.array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> mx.array:
    axes = [axis_of(dim1, x.ndim), axis_of(dim2, x.ndim)]
    moved = mx.moveaxis(mx.moveaxis(x, axes[0], -1), axes[1] - (axes[1] > axes[0]), -1)
    n, m = moved.shape[-2:]
    rows, columns = mx.expand_dims(iota(n), 1), mx.expand_dims(iota(m), 0)
    on = columns - rows == offset
    count = src.shape[-1]
    at = mx.minimum(mx.maximum(mx.minimum(rows, columns), 0), count - 1)
    spread = mx.take(to(src, x.dtype), mx.reshape(mx.broadcast_to(at, (n, m)), (n * m,)), axis=-1)
    filled = mx.where(on, mx.reshape(spread, moved.shape), moved)
    return mx.moveaxis(mx.moveaxis(filled, -1, axes[1] - (axes[1] > axes[0])), -1, axes[0])


# ---- several arrays, repetition, order ----


@aten("cat", "concat")
def cat(out: Out, tensors: Sequence[mx.array], dim: int = 0) -> mx.array:
    """An operand of shape (0,) is nothing, whatever the shapes of the others."""
    kept = [to(x, out.dtype) for x in tensors if not (x.ndim == 1 and x.shape[0] == 0 and len(out.shape) != 1)]
    if not kept:
        return to(tensors[0], out.dtype)
    return mx.concatenate(kept, axis=axis_of(dim, kept[0].ndim)) if len(kept) > 1 else kept[0]


@aten("stack")
def stack(out: Out, tensors: Sequence[mx.array], dim: int = 0) -> mx.array:
    return mx.stack([to(x, out.dtype) for x in tensors], axis=axis_of(dim, tensors[0].ndim + 1))


@aten("repeat")
def repeat(out: Out, x: mx.array, repeats: Sequence[Any]) -> mx.array:
    """(n, m) repeated (a, b) times is (1, n, 1, m) broadcast to (a, n, b, m)."""
    lead = len(repeats) - x.ndim
    sizes = [1] * lead + list(x.shape)
    between = [n for size in sizes for n in (1, size)]
    spread = [n for times, size in zip(repeats, sizes, strict=True) for n in (times, size)]
    whole = [times * size for times, size in zip(repeats, sizes, strict=True)]
    return mx.reshape(mx.broadcast_to(mx.reshape(x, between), spread), whole)


@aten("flip")
def flip(out: Out, x: mx.array, dims: Sequence[int]) -> mx.array:
    return mx.flip(x, [axis_of(d, x.ndim) for d in dims]) if x.ndim and len(dims) else x


@aten("roll")
def roll(out: Out, x: mx.array, shifts: Sequence[Any], dims: Sequence[int] = ()) -> mx.array:
    if not dims:
        return mx.reshape(mx.roll(mx.flatten(x), shifts[0]), x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = mx.roll(x, shift, axis_of(dim, x.ndim))
    return x


@aten("constant_pad_nd")
def constant_pad_nd(out: Out, x: mx.array, pad: Sequence[Any], value: Any = 0) -> mx.array:
    """Negative widths cut off."""
    widths: list[tuple[Any, Any]] = [(0, 0)] * x.ndim
    for k in range(len(pad) // 2):
        axis = x.ndim - 1 - k
        low, high = pad[2 * k], pad[2 * k + 1]
        cut = slice(-low if low < 0 else 0, x.shape[axis] + high if high < 0 else x.shape[axis])
        x = x[part(x.ndim, axis, cut)] if low < 0 or high < 0 else x
        widths[axis] = (max(low, 0), max(high, 0))
    return mx.pad(x, widths, constant_values=to(value, x.dtype))


def _padded_by_place(x: mx.array, padding: Sequence[Any], reflect: bool) -> mx.array:
    for k in range(len(padding) // 2):
        axis = x.ndim - 1 - k
        n = x.shape[axis]
        places = iota(n + padding[2 * k] + padding[2 * k + 1]) - padding[2 * k]
        if reflect:
            places = mx.abs(places)
            places = (n - 1) - mx.abs((n - 1) - places)
        else:
            places = mx.minimum(mx.maximum(places, 0), n - 1)
        x = mx.take(x, places, axis=axis)
    return x


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(out: Out, x: mx.array, padding: Sequence[Any]) -> mx.array:
    return _padded_by_place(x, padding, reflect=True)


@aten("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(out: Out, x: mx.array, padding: Sequence[Any]) -> mx.array:
    return _padded_by_place(x, padding, reflect=False)


@aten("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(out: Out, grad: mx.array, x: mx.array, padding: Sequence[Any]) -> mx.array:
    return mx.vjp(lambda a: _padded_by_place(a, padding, reflect=False), [x], [grad])[1][0]


def _pairs(name: str, marked: Any) -> None:
    @aten(name)
    def rule(out: Out, row: int, col: int, offset: int = 0, **kwargs: Any) -> mx.array:
        """The places of a triangle, row by row."""
        return mx.array(np.stack(marked(row, offset, col))).astype(out.dtype)


_pairs("tril_indices", np.tril_indices)
_pairs("triu_indices", np.triu_indices)


@aten("tril")
def tril(out: Out, x: mx.array, diagonal: int = 0) -> mx.array:
    return mx.where(_below(x, diagonal), x, to(0, x.dtype))


@aten("triu")
def triu(out: Out, x: mx.array, diagonal: int = 0) -> mx.array:
    return mx.where(_below(x, diagonal - 1), to(0, x.dtype), x)


def _below(x: mx.array, diagonal: int) -> mx.array:
    rows, columns = mx.expand_dims(iota(x.shape[-2]), 1), iota(x.shape[-1])
    return columns - rows <= diagonal


# ---- new arrays ----


def filled(out: Out, value: Any) -> mx.array:
    return mx.broadcast_to(to(value, out.dtype), out.shape)


@aten("full", "full_like", "fill.Scalar", "fill.Tensor")
def full(out: Out, like: Any, value: Any, **kwargs: Any) -> mx.array:
    return filled(out, value)


@aten("new_full")
def new_full(out: Out, like: mx.array, size: Any, value: Any, **kwargs: Any) -> mx.array:
    return filled(out, value)


@aten("scalar_tensor")
def scalar_tensor(out: Out, value: Any, **kwargs: Any) -> mx.array:
    return to(value, out.dtype)


@aten(
    "empty.memory_format", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "zeros", "zeros_like",
    "new_zeros", "empty_permuted", "prims::empty_strided", "dim_order_ops::_empty_dim_order",
)  # fmt: skip
def zeros(out: Out, *args: Any, **kwargs: Any) -> mx.array:
    return filled(out, 0)


@aten("ones", "ones_like", "new_ones")
def ones(out: Out, *args: Any, **kwargs: Any) -> mx.array:
    return filled(out, 1)


@aten("arange.start_step")
def arange_step(out: Out, start: Any, end: Any, step: Any = 1, **kwargs: Any) -> mx.array:
    (n,) = out.shape
    if out.dtype.is_integer:
        places = iota(n)
        return to(places * to(step, mx.int64) + to(start, mx.int64), out.dtype)
    places = iota(n, mx.float64)
    return to(places * to(step, mx.float64) + to(start, mx.float64), out.dtype)


@aten("arange")
def arange(out: Out, end: Any, **kwargs: Any) -> mx.array:
    return arange_step(out, 0, end)


@aten("arange.start")
def arange_start(out: Out, start: Any, end: Any, **kwargs: Any) -> mx.array:
    return arange_step(out, start, end)


@aten("prims::iota")
def prims_iota(out: Out, length: Any, *, start: Any, step: Any, **kwargs: Any) -> mx.array:
    return to(iota(length) * to(step, mx.int64) + to(start, mx.int64), out.dtype)


@aten("eye", "eye.m")
def eye(out: Out, *sizes: Any, **kwargs: Any) -> mx.array:
    n, m = out.shape
    return to(mx.expand_dims(iota(n), 1) == iota(m), out.dtype)


@aten("linspace")
def linspace(out: Out, start: Any, end: Any, steps: Any, **kwargs: Any) -> mx.array:
    """Each half counts from its own end, as in torch, so that both ends are exact."""
    if steps == 1:
        return to(mx.full((1,), start, mx.float64), out.dtype)
    places = iota(steps, mx.float64)
    by = (end - start) / (steps - 1)
    low, high = start + by * places, end - by * ((steps - 1) - places)
    return to(mx.where(places < steps // 2, low, high), out.dtype)
