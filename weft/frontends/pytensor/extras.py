"""Everything that stands for itself: cumulative sums, sorting, searching, repeats, diagonals, windows, transforms,
convolutions, softmax."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.tensor import basic as ptb
from pytensor.tensor import extra_ops as pte
from pytensor.tensor import fft as ptf
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.signal.conv import Convolve1d, Convolve2d
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.special import LogSoftmax, Softmax

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import converts
from weft.frontends.pytensor.values import Known, NotConverted, Value, cast, number_of, size, to_array, vector


@converts(pte.CumOp)
def cumulative(op: Any, node: Apply, x: Value) -> array:
    values = to_array(x, node.outputs[0].type.dtype)
    axis = op.axis
    if axis is None:
        values, axis = values.reshape(-1), 0
    return mx.cumsum(values, axis=axis) if op.mode == "add" else mx.cumprod(values, axis=axis)


@converts(pte.CpuContiguous)
def contiguous(op: Any, node: Apply, x: Value) -> Value:
    return x


def _axis_of(op: Any, rest: tuple[Value, ...]) -> int | None:
    """The axis of a sort, which is an input or a part of the operation."""
    if not rest:
        return int(op.axis)
    if isinstance(rest[0], Known) and rest[0].value is None:
        return None
    return int(size(rest[0]))


def _second(node: Apply) -> Iterable[int]:
    return range(1, len(node.inputs))


@converts(SortOp, known=_second)
def sort(op: Any, node: Apply, x: Value, *rest: Value) -> array:
    return mx.sort(to_array(x), axis=_axis_of(op, rest))


@converts(ArgSortOp, known=_second)
def argsort(op: Any, node: Apply, x: Value, *rest: Value) -> array:
    return mx.argsort(to_array(x), axis=_axis_of(op, rest))


@converts(pte.SearchsortedOp)
def searchsorted(op: Any, node: Apply, x: Value, values: Value, *sorter: Value) -> array:
    sequence, wanted = to_array(x), to_array(values)
    if sorter and not (isinstance(sorter[0], Known) and sorter[0].value is None):
        sequence = mx.take(sequence, to_array(sorter[0]), axis=0)
    dtype = np.result_type(sequence.dtype.np, wanted.dtype.np).name
    return mx.searchsorted(cast(sequence, dtype), cast(wanted, dtype), side=op.side)


def _known_repeats(node: Apply) -> Iterable[int]:
    return (1,)


@converts(pte.Repeat, known=_known_repeats)
def repeat(op: Any, node: Apply, x: Value, repeats: Value) -> array:
    """Each element of an axis some times, or as often as its own number says."""
    values, axis = to_array(x), op.axis
    if axis is None:
        values, axis = values.reshape(-1), 0
    assert isinstance(repeats, Known)
    counts = repeats.numbers()
    if counts.ndim == 0 or counts.size == 1:
        return mx.repeat(values, int(counts.reshape(())), axis=axis)
    places = np.repeat(np.arange(len(counts)), counts)
    return mx.take(values, to_array(Known(places)), axis=axis)


@converts(pte.Bartlett, known=lambda node: (0,))
def bartlett(op: Any, node: Apply, n: Value) -> array:
    return to_array(Known(np.bartlett(int(size(n)))))


@converts(pte.FillDiagonal)
def fill_diagonal(op: Any, node: Apply, a: Value, value: Value) -> array:
    given = to_array(a)
    number = cast(to_array(value), given.dtype.name).reshape(())
    if given.ndim == 2:
        n, m = given.shape
        return mx.where(_on_diagonal(n, m, 0), number, given)
    n = given.shape[0]
    places = mx.arange(n, dtype=mx.int64)
    made = mx.array(given)
    made[(places,) * given.ndim] = number
    return made


def _on_diagonal(n: Any, m: Any, offset: Any) -> array:
    down, across = mx.arange(n, dtype=mx.int64)[:, None], mx.arange(m, dtype=mx.int64)[None, :]
    return across - down == (offset if isinstance(offset, array) else mx.array(offset, mx.int64))


@converts(pte.FillDiagonalOffset)
def fill_diagonal_offset(op: Any, node: Apply, a: Value, value: Value, offset: Value) -> array:
    given = to_array(a)
    place = cast(to_array(offset), "int64").reshape(())
    return mx.where(
        _on_diagonal(given.shape[0], given.shape[1], place), cast(to_array(value), given.dtype.name).reshape(()), given
    )


@converts(pte.UnravelIndex, known=lambda node: (1,))
def unravel_index(op: Any, node: Apply, indices: Value, dims: Value) -> list[array]:
    rest = to_array(indices, "int64")
    sizes = list(vector(dims))
    if op.order == "C":
        sizes.reverse()
    made = []
    for n in sizes:
        width = number_of(n)
        made.append(mx.remainder(rest, width))
        rest = mx.floor_divide(rest, width)
    return made[::-1] if op.order == "C" else made


@converts(pte.RavelMultiIndex, known=lambda node: (len(node.inputs) - 1,))
def ravel_multi_index(op: Any, node: Apply, *given: Value) -> array:
    sizes = list(vector(given[-1]))
    places = [to_array(x, "int64") for x in given[:-1]]
    if op.mode == "wrap":
        places = [mx.remainder(x, number_of(n)) for x, n in zip(places, sizes, strict=True)]
    elif op.mode == "clip":
        places = [mx.clip(x, 0, n - 1) for x, n in zip(places, sizes, strict=True)]
    else:
        raise NotConverted("indices that are checked")
    if op.order == "F":
        places.reverse()
        sizes.reverse()
    total = places[0]
    for x, n in zip(places[1:], sizes[1:], strict=True):
        total = total * number_of(n) + x
    return total


@converts(JoinDims)
def join_dims(op: Any, node: Apply, x: Value) -> array:
    values = to_array(x)
    end = op.start_axis + op.n_axes
    middle = math.prod(values.shape[op.start_axis : end])
    return values.reshape((*values.shape[: op.start_axis], middle, *values.shape[end:]))


@converts(SplitDims, known=lambda node: (1,))
def split_dims(op: Any, node: Apply, x: Value, shape: Value) -> array:
    values = to_array(x)
    return values.reshape((*values.shape[: op.axis], *vector(shape), *values.shape[op.axis + 1 :]))


@converts(ptb.PermuteRowElements)
def permute_row_elements(op: Any, node: Apply, x: Value, y: Value, *rest: Value) -> array:
    values, order = to_array(x), to_array(y, "int64")
    inverse = op.inverse if hasattr(op, "inverse") else bool(size(rest[0]))
    values, order = mx.broadcast_arrays(values, order)
    return mx.take_along_axis(values, mx.argsort(order, axis=-1) if inverse else order, axis=-1)


def _soft(x: array, axis: Any) -> tuple[array, Any]:
    return x, tuple(range(x.ndim)) if axis is None else axis


@converts(Softmax)
def softmax(op: Any, node: Apply, x: Value) -> array:
    values, axis = _soft(to_array(x), op.axis)
    return mx.softmax(values, axis=axis)


@converts(LogSoftmax)
def log_softmax(op: Any, node: Apply, x: Value) -> array:
    values, axis = _soft(to_array(x), op.axis)
    shifted = values - mx.max(values, axis=axis, keepdims=True)
    return shifted - mx.log(mx.sum(mx.exp(shifted), axis=axis, keepdims=True))


# ---- transforms ----


@converts(ptf.RFFTOp, known=lambda node: (1,))
def rfft(op: Any, node: Apply, x: Value, shape: Value) -> array:
    """Real and imaginary parts beside each other, of all axes but the first."""
    lengths = vector(shape)
    values = to_array(x)
    made = mx.fft.rfftn(values, s=lengths, axes=tuple(range(values.ndim - len(lengths), values.ndim)))
    return mx.stack([mx.real(made), mx.imag(made)], axis=-1)


@converts(ptf.IRFFTOp, known=lambda node: (1,))
def irfft(op: Any, node: Apply, x: Value, shape: Value) -> array:
    """The inverse, without its factor."""
    lengths = vector(shape)
    parts = to_array(x)
    dtype = "complex64" if parts.dtype.name == "float32" else "complex128"
    values = cast(parts[..., 0], dtype) + cast(parts[..., 1], dtype) * mx.array(1j, cast(parts, dtype).dtype)
    made = mx.fft.irfftn(values, s=lengths, axes=tuple(range(values.ndim - len(lengths), values.ndim)))
    return made * mx.array(float(math.prod(int(n) for n in lengths)), made.dtype)


# ---- convolutions ----


@converts(Convolve1d, known=lambda node: (2,))
def convolve1d(op: Any, node: Apply, x: Value, y: Value, full: Value) -> array:
    dtype = node.outputs[0].type.dtype
    if np.dtype(dtype).kind != "f":
        raise NotConverted("a convolution of other numbers than floats")
    mode = "full" if size(full) else "valid"
    return mx.convolve(to_array(x, dtype), to_array(y, dtype), mode)


@converts(Convolve2d, known=lambda node: (2,))
def convolve2d(op: Any, node: Apply, x: Value, y: Value, full: Value) -> array:
    dtype = node.outputs[0].type.dtype
    if np.dtype(dtype).kind != "f":
        raise NotConverted("a convolution of other numbers than floats")
    image, kernel = to_array(x, dtype), to_array(y, dtype)
    if not size(full):
        smaller = [k <= n for n, k in zip(image.shape, kernel.shape, strict=True)]
        if not all(smaller):
            if any(smaller):
                raise ValueError("For 'valid' mode, one must be at least as large as the other in every dimension")
            image, kernel = kernel, image
    pad = [(k - 1) if size(full) else 0 for k in kernel.shape]
    made = mx.conv_general(image[None, :, :, None], kernel[None, :, :, None], 1, (pad, pad), 1, 1, 1, True)
    return made[0, :, :, 0]


# ---- distinct elements ----


@converts(pte.Unique, sized=lambda node: True)
def unique(op: Any, node: Apply, x: Value) -> list[array]:
    """The distinct elements in their order, or the distinct parts along an axis; where each comes first, which of them
    each element is, how often each comes. How many there are is known when the program has run."""
    values = to_array(x)
    rows = values.reshape(-1) if op.axis is None else mx.moveaxis(values, op.axis, 0)
    count = rows.shape[0]
    if count == 0:
        return [values if op.axis is not None else rows, *[mx.zeros((0,), mx.int64)] * (len(node.outputs) - 1)]
    sort, is_new = (_order, _differs_from_one_before) if op.axis is None else (_order_of_rows, _row_differs)
    order = sort(rows)
    ordered = mx.take(rows, order, axis=0)
    places = mx.arange(count, dtype=mx.int64)
    before = mx.take(ordered, mx.maximum(places - number_of(1), number_of(0)), axis=0)
    first = is_new(ordered, before) | (places == number_of(0))
    (starts,) = mx.nonzero(first)
    starts = cast(starts, "int64")
    made = [mx.take(ordered, starts, axis=0)]
    if op.axis is not None:
        made[0] = mx.moveaxis(made[0], 0, op.axis)
    if op.return_index:
        made.append(mx.take(order, starts, axis=0))
    if op.return_inverse:
        numbers = mx.cumsum(cast(first, "int64")) - number_of(1)
        made.append(mx.zeros((count,), mx.int64).at[order].add(numbers))
    if op.return_counts:
        made.append(mx.concatenate([starts[1:], number_of(count).reshape([1])]) - starts)
    return made


def _order(x: array) -> array:
    """Equal elements in the order in which they come."""
    return cast(mx.argsort(cast(x, "uint8") if x.dtype is mx.bool_ else x, axis=0), "int64")


def _order_of_rows(rows: array) -> array:
    """By the first element, then by the second: sorted by the last one first, and so on, which keeps the order of equal
    ones."""
    flat = _as_matrix(rows)
    width = flat.shape[1]
    start = mx.arange(rows.shape[0], dtype=mx.int64)
    if width == 0:
        return start

    def by_column(i: array, order: array) -> array:
        column = mx.take(flat, number_of(width) - number_of(1) - cast(i, "int64"), axis=1)
        return mx.take(order, _order(mx.take(column, order, axis=0)), axis=0)

    made: array = mx.fori_loop(0, width, by_column, start)
    return made


def _differs_from_one_before(x: array, before: array) -> array:
    """All that are not numbers are one."""
    if not x.dtype.is_inexact:
        return x != before
    return (x != before) & ~(mx.isnan(x) & mx.isnan(before))


def _row_differs(rows: array, before: array) -> array:
    return mx.any(_as_matrix(rows != before), axis=1)


def _as_matrix(rows: array) -> array:
    width = 1
    for n in rows.shape[1:]:
        width = width * n
    return rows.reshape([rows.shape[0], width])
