"""Operators that read and write at places that are data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.selecting import places_of
from weft.frontends.torch.ops.table import Out, Table, axis_of, in_bounds, iota, to
from weft.frontends.torch.ops.views import with_part
from weft.primitives.indexing import Scatter, ScatterAdd, ScatterMax, ScatterMin, ScatterMultiply, ScatterSet
from weft.program import apply

aten = Table()
Indices = Sequence[mx.array | None]


def _key(indices: Indices) -> tuple[Any, ...]:
    return tuple(slice(None) if index is None else index for index in indices)


def _checked(out: Out, x: mx.array, indices: Indices) -> Indices:
    """Indices, one for each of the first axes of x, that count from the end if they are negative. A mask, which stands
    for as many axes as it has, is what it is."""
    found: list[mx.array | None] = []
    axis = 0
    for index in indices:
        is_mask = index is not None and index.dtype.is_bool
        found.append(index if index is None or is_mask else in_bounds(out, index, x.shape[axis], count_back=True))
        axis += index.ndim if index is not None and is_mask else 1
    return found


@aten("_unsafe_index.Tensor")
def unsafe_index(out: Out, x: mx.array, indices: Indices) -> mx.array:
    return x[_key(indices)]


@aten("index.Tensor")
def index(out: Out, x: mx.array, indices: Indices) -> mx.array:
    first = indices[0] if indices else None
    if len(indices) == 1 and first is not None and first.dtype.is_bool and first.ndim:
        return x[first]
    return x[_key(_checked(out, x, places_of(indices)))]


@aten("index_put")
def index_put(out: Out, x: mx.array, indices: Indices, values: mx.array, accumulate: bool = False) -> mx.array:
    return unsafe_index_put(out, x, _checked(out, x, indices), values, accumulate)


@aten("_unsafe_index_put")
def unsafe_index_put(out: Out, x: mx.array, indices: Indices, values: mx.array, accumulate: bool = False) -> mx.array:
    made = to(values, x.dtype)
    masks = [i for i in indices if i is not None and i.dtype.is_bool]
    if masks:
        return _put_masked(x, indices, made, accumulate)
    if accumulate:
        return x.at[_key(indices)].add(made)
    return with_part(x, _key(indices), made)


def _put_masked(x: mx.array, indices: Indices, values: mx.array, accumulate: bool) -> mx.array:
    """A mask over the first axes: the k-th place that it marks takes the k-th of the values, or the only one."""
    (mask,) = [i for i in indices if i is not None]
    after = x.ndim - mask.ndim
    marked = mx.reshape(mask, (*mask.shape, *(1,) * after))
    if values.ndim <= after or values.shape[0] == 1:
        new = values if values.ndim <= after else mx.reshape(values, values.shape[1:])
    elif values.shape[0] == 0:
        return x
    else:
        order = mx.cumsum(to(mx.flatten(mask), mx.int64)) - 1
        order = mx.maximum(mx.minimum(order, values.shape[0] - 1), 0)
        new = mx.reshape(mx.take(values, order, axis=0), (*mask.shape, *values.shape[1:]))
    return mx.where(marked, x + new if accumulate else new, x)


def _on_axis(out: Out, x: mx.array, dim: int, index: mx.array, *, count_back: bool = False) -> tuple[Any, ...]:
    """The key of the places along one axis that a vector of indices, or one index, names."""
    axis = axis_of(dim, x.ndim)
    places = in_bounds(out, mx.reshape(index, (index.size,)), x.shape[axis], count_back=count_back)
    return (*[slice(None)] * axis, places)


@aten("index_add")
def index_add(out: Out, x: mx.array, dim: int, index: mx.array, source: mx.array, *, alpha: Any = 1) -> mx.array:
    values = source if alpha == 1 else source * to(alpha, source.dtype)
    if not x.ndim:
        return mx.reshape(index_add(out, mx.reshape(x, (1,)), 0, index, mx.reshape(values, (-1,))), ())
    key = _on_axis(out, x, dim, index)
    return x.at[key].add(to(values, x.dtype))


@aten("index_copy")
def index_copy(out: Out, x: mx.array, dim: int, index: mx.array, source: mx.array) -> mx.array:
    if not x.ndim:
        return mx.reshape(index_copy(out, mx.reshape(x, (1,)), 0, index, mx.reshape(source, (-1,))), ())
    return with_part(x, _on_axis(out, x, dim, index), to(source, x.dtype))


@aten("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(out: Out, x: mx.array, dim: int, index: mx.array, value: Any) -> mx.array:
    if not x.ndim:
        return mx.reshape(index_fill(out, mx.reshape(x, (1,)), 0, index, value), ())
    return with_part(x, _on_axis(out, x, dim, index, count_back=True), to(value, x.dtype))


@aten("put")
def put(out: Out, x: mx.array, index: mx.array, source: mx.array, accumulate: bool = False) -> mx.array:
    flat = mx.reshape(x, (x.size,))
    places = in_bounds(out, mx.reshape(index, (index.size,)), x.size, count_back=True)
    values = mx.reshape(source, (source.size,))
    return mx.reshape(unsafe_index_put(out, flat, [places], values, accumulate), x.shape)


@aten("index_select", "index_select_copy")
def index_select(out: Out, x: mx.array, dim: int, index: mx.array) -> mx.array:
    if not x.ndim:
        index = in_bounds(out, mx.reshape(index, (index.size,)), 1)
        return mx.reshape(mx.take(mx.reshape(x, (1,)), index, axis=0), out.shape)
    axis = axis_of(dim, x.ndim)
    return mx.take(x, in_bounds(out, mx.reshape(index, (index.size,)), x.shape[axis]), axis=axis)


@aten("embedding")
def embedding(
    out: Out, weight: mx.array, indices: mx.array, padding_idx: int = -1, scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> mx.array:  # fmt: skip
    return mx.take(weight, in_bounds(out, indices, weight.shape[0]), axis=0)


@aten("embedding_dense_backward")
def embedding_dense_backward(
    out: Out, grad: mx.array, indices: mx.array, num_weights: Any, padding_idx: int, scale_grad_by_freq: bool
) -> mx.array:
    places = mx.reshape(indices, (indices.size,))
    width = grad.shape[-1]
    rows = mx.reshape(grad, (indices.size, width))
    if scale_grad_by_freq:
        counts = mx.zeros((num_weights,), grad.dtype).at[places].add(1)
        rows = rows / mx.expand_dims(mx.take(counts, places, axis=0), 1)
    if padding_idx >= 0:
        rows = mx.where(mx.expand_dims(places == padding_idx, 1), to(0, rows.dtype), rows)
    return mx.zeros((num_weights, width), out.dtype).at[places].add(rows)


_SUM, _MEAN, _MAX = 0, 1, 2


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    out: Any, weight: mx.array, indices: mx.array, offsets: mx.array, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: mx.array | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[mx.array, ...]:  # fmt: skip
    """(sums, bag of each index, size of each bag, place of each maximum). torch leaves out what a sum does not need."""
    n, bags, width = indices.shape[0], out[0].shape[0], weight.shape[1]
    starts = offsets[:bags]
    places = mx.searchsorted(starts, iota(n, starts.dtype), side="right") if n else mx.zeros((0,), mx.int64)
    bag = to(places, mx.int64) - 1
    rows = mx.take(weight, in_bounds(out[0], indices, weight.shape[0]), axis=0)
    counted = mx.ones((n,), mx.bool_) if padding_idx < 0 else indices != padding_idx
    sizes = mx.zeros((bags,), mx.int64).at[bag].add(to(counted, mx.int64))
    if per_sample_weights is not None:
        rows = rows * mx.expand_dims(per_sample_weights, 1)
    places_of = mx.zeros(out[3].shape, out[3].dtype)
    if mode == _MAX:
        lowest = mx.where(mx.expand_dims(counted, 1), rows, to(float("-inf"), rows.dtype))
        made = mx.full((bags, width), float("-inf"), rows.dtype).at[bag].maximum(lowest)
        made = mx.where(mx.expand_dims(sizes == 0, 1), to(0, made.dtype), made)
        is_most = mx.logical_and(lowest == mx.take(made, bag, axis=0), mx.expand_dims(counted, 1))
        first = mx.where(is_most, mx.expand_dims(iota(n), 1), n)
        at = mx.full((bags, width), n, mx.int64).at[bag].minimum(first)
        chosen = mx.take(indices, mx.minimum(at, n - 1), axis=0)
        places_of = to(mx.where(mx.expand_dims(sizes == 0, 1), to(0, chosen.dtype), chosen), out[3].dtype)
    else:
        kept = mx.where(mx.expand_dims(counted, 1), rows, to(0, rows.dtype))
        made = mx.zeros((bags, width), rows.dtype).at[bag].add(kept)
        if mode == _MEAN:
            made = made / to(mx.expand_dims(mx.maximum(sizes, 1), 1), made.dtype)
    if mode == _SUM:
        return made, *(mx.zeros(o.shape, o.dtype) for o in out[1:])
    more = out[2].shape[0] - bags
    whole = mx.concatenate([sizes, mx.zeros((more,), mx.int64)]) if more else sizes
    last = places_of if mode == _MAX else to(whole, out[3].dtype)
    return made, to(bag, out[1].dtype), to(whole, out[2].dtype), last


# ---- along one axis ----


def _along(x: mx.array, index: mx.array, axis: int) -> tuple[slice, ...]:
    """The part of x that an index with smaller other axes reaches."""
    return tuple(slice(None) if k == axis else slice(0, n) for k, n in enumerate(index.shape))


def _is_smaller(x: mx.array, index: mx.array, axis: int) -> bool:
    return any(k != axis and n != m for k, (n, m) in enumerate(zip(index.shape, x.shape, strict=True)))


@aten("gather")
def gather(out: Out, x: mx.array, dim: int, index: mx.array, *, sparse_grad: bool = False) -> mx.array:
    if not x.ndim or not index.ndim:
        x = mx.reshape(x, (-1,))
        index = in_bounds(out, mx.reshape(index, (-1,)), x.shape[0])
        return mx.reshape(mx.take(x, index, axis=0), out.shape)
    axis = axis_of(dim, x.ndim)
    index = in_bounds(out, index, x.shape[axis])
    if _is_smaller(x, index, axis):
        x = x[_along(x, index, axis)]
    return mx.take_along_axis(x, index, axis=axis)


def _scattered(out: Out, kind: type[Scatter], x: mx.array, dim: int, index: mx.array, src: Any) -> mx.array:
    """x with the elements of src combined into it, at places along one axis. An index (and so src) may be smaller than
    x along the others, and src larger than the index."""
    if not x.ndim or not index.ndim:
        whole = tuple(mx.reshape(v, (-1,)) if isinstance(v, mx.array) else v for v in (x, index, src))
        return mx.reshape(_scattered(out, kind, whole[0], 0, whole[1], whole[2]), x.shape)
    axis = axis_of(dim, x.ndim)
    index = in_bounds(out, index, x.shape[axis])
    values = to(src, x.dtype)
    if isinstance(src, mx.array):
        if any(n != m for n, m in zip(src.shape, index.shape, strict=True)):
            values = values[tuple(slice(0, n) for n in index.shape)]
    else:
        values = mx.broadcast_to(values, index.shape)
    op = kind(tuple(None if k == axis else k for k in range(x.ndim)), tuple(range(x.ndim)))
    if not _is_smaller(x, index, axis):
        return apply(op, x, values, index)  # type: ignore[no-any-return]
    part = _along(x, index, axis)
    return with_part(x, part, apply(op, x[part], values, index))


@aten("scatter.src", "scatter.value")
def scatter(out: Out, x: mx.array, dim: int, index: mx.array, src: Any) -> mx.array:
    return _scattered(out, ScatterSet, x, dim, index, src)


@aten("scatter_add")
def scatter_add(out: Out, x: mx.array, dim: int, index: mx.array, src: mx.array) -> mx.array:
    return _scattered(out, ScatterAdd, x, dim, index, src)


_REDUCTIONS: dict[str, tuple[type[Scatter], Any]] = {
    "sum": (ScatterAdd, 0),
    "add": (ScatterAdd, 0),
    "mean": (ScatterAdd, 0),
    "prod": (ScatterMultiply, 1),
    "multiply": (ScatterMultiply, 1),
    "amax": (ScatterMax, "lowest"),
    "amin": (ScatterMin, "highest"),
}


def _identity(name: Any, dtype: Any) -> Any:
    if not isinstance(name, str):
        return name
    if dtype.kind == "f":
        return float("-inf") if name == "lowest" else float("inf")
    if dtype.is_bool:
        return name == "highest"
    info = mx.iinfo(dtype)
    return info.min if name == "lowest" else info.max


@aten("scatter_reduce.two")
def scatter_reduce(
    out: Out, x: mx.array, dim: int, index: mx.array, src: mx.array, reduce: str, *, include_self: bool = True
) -> mx.array:
    kind, neutral = _REDUCTIONS[reduce]
    base = x
    if not include_self:
        hit = _scattered(out, ScatterSet, mx.zeros(x.shape, mx.bool_), dim, index, True)
        base = mx.where(hit, to(_identity(neutral, x.dtype), x.dtype), x)
    made = _scattered(out, kind, base, dim, index, src)
    if reduce != "mean":
        return made
    counts = _scattered(out, ScatterAdd, mx.full(x.shape, int(include_self), mx.int64), dim, index, 1)
    counts = mx.maximum(counts, 1)
    if out.dtype.is_integer:
        return mx.floor_divide(made, to(counts, out.dtype))
    return to(made / to(counts, made.dtype), out.dtype)


@aten("scatter.reduce", "scatter.value_reduce")
def scatter_with(out: Out, x: mx.array, dim: int, index: mx.array, src: Any, *, reduce: str) -> mx.array:
    return _scattered(out, _REDUCTIONS[reduce][0], x, dim, index, src)


@aten("masked_scatter")
def masked_scatter(out: Out, x: mx.array, mask: mx.array, source: mx.array) -> mx.array:
    """The k-th place that is marked takes the k-th element of the source."""
    shape = out.shape
    marked = mx.broadcast_to(mask, shape)
    if source.size == 0:
        return mx.broadcast_to(x, shape)
    order = mx.cumsum(to(mx.flatten(marked), mx.int64)) - 1
    order = mx.maximum(mx.minimum(order, source.size - 1), 0)
    values = mx.reshape(mx.take(mx.flatten(source), order, axis=0), shape)
    return mx.where(marked, to(values, x.dtype), x)


@aten("index_reduce")
def index_reduce(
    out: Out, x: mx.array, dim: int, index: mx.array, source: mx.array, reduce: str, *, include_self: bool = True
) -> mx.array:
    axis = axis_of(dim, x.ndim)
    places = mx.reshape(index, (-1,) + (1,) * (x.ndim - 1 - axis))
    every = mx.broadcast_to(places, source.shape)
    return scatter_reduce(out, x, dim, every, source, reduce, include_self=include_self)
