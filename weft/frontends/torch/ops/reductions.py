"""Operators that make one number of many: sums, extremes, softmax, running sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, axes_of, axis_of, to, wide

aten = Table()
Axes = int | Sequence[int] | None


@aten("sum", "sum.dim_IntList")
def sum_(out: Out, x: mx.array, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> mx.array:
    made = mx.sum(to(x, wide(out.dtype)), axis=axes_of(dim, x.ndim), keepdims=keepdim)
    return to(made, out.dtype)


@aten("mean", "mean.dim")
def mean(out: Out, x: mx.array, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None) -> mx.array:
    return to(mx.mean(to(x, wide(out.dtype)), axis=axes_of(dim, x.ndim), keepdims=keepdim), out.dtype)


@aten("prod")
def prod(out: Out, x: mx.array, *, dtype: Any = None) -> mx.array:
    return to(mx.prod(to(x, wide(out.dtype))), out.dtype)


@aten("prod.dim_int")
def prod_dim(out: Out, x: mx.array, dim: int, keepdim: bool = False, *, dtype: Any = None) -> mx.array:
    if not x.ndim:
        return to(x, out.dtype)
    return to(mx.prod(to(x, wide(out.dtype)), axis=dim, keepdims=keepdim), out.dtype)


def _spread(x: mx.array, axes: tuple[int, ...], correction: Any, keepdim: bool) -> tuple[mx.array, mx.array]:
    """(variance, mean) in the dtype of x. Without enough elements the variance is NaN or infinite."""
    count: Any = 1
    for axis in axes:
        count = count * x.shape[axis]
    middle = mx.mean(x, axis=axes, keepdims=True)
    apart = x - middle
    if x.dtype.is_complex:
        squares = mx.real(apart) * mx.real(apart) + mx.imag(apart) * mx.imag(apart)
    else:
        squares = apart * apart
    total = mx.sum(squares, axis=axes, keepdims=keepdim)
    rest = count - correction
    divisor = to(rest, total.dtype)
    divisor = mx.maximum(divisor, 0)
    return total / divisor, middle if keepdim else mx.squeeze(middle, axes)


def _correction(given: Any) -> Any:
    return 1 if given is None else given


@aten("var.correction")
def var(out: Out, x: mx.array, dim: Axes = None, *, correction: Any = None, keepdim: bool = False) -> mx.array:
    made, _ = _spread(to(x, wide(x.dtype)), axes_of(dim, x.ndim), _correction(correction), keepdim)
    return to(made, out.dtype)


@aten("var.dim")
def var_dim(out: Out, x: mx.array, dim: Axes, unbiased: bool = True, keepdim: bool = False) -> mx.array:
    return var(out, x, dim, correction=int(unbiased), keepdim=keepdim)


@aten("std.correction")
def std(out: Out, x: mx.array, dim: Axes = None, *, correction: Any = None, keepdim: bool = False) -> mx.array:
    made, _ = _spread(to(x, wide(x.dtype)), axes_of(dim, x.ndim), _correction(correction), keepdim)
    return to(mx.sqrt(made), out.dtype)


@aten("std.dim")
def std_dim(out: Out, x: mx.array, dim: Axes, unbiased: bool = True, keepdim: bool = False) -> mx.array:
    return std(out, x, dim, correction=int(unbiased), keepdim=keepdim)


@aten("var_mean.correction")
def var_mean(
    out: Any, x: mx.array, dim: Axes = None, *, correction: Any = None, keepdim: bool = False
) -> tuple[mx.array, mx.array]:
    made, middle = _spread(to(x, wide(x.dtype)), axes_of(dim, x.ndim), _correction(correction), keepdim)
    return to(made, out[0].dtype), to(middle, out[1].dtype)


# ---- extremes ----


def _extreme(name: str, function: Callable[..., mx.array], place: Callable[..., mx.array]) -> None:
    @aten(f"a{name}")
    def along_axes(out: Out, x: mx.array, dim: Axes = (), keepdim: bool = False) -> mx.array:
        return function(x, axis=axes_of(dim, x.ndim), keepdims=keepdim) if x.ndim else x

    @aten(name)
    def of_all(out: Out, x: mx.array) -> mx.array:
        return function(x)

    @aten(f"{name}.dim")
    def along_axis(out: Any, x: mx.array, dim: int, keepdim: bool = False) -> tuple[mx.array, mx.array]:
        if not x.ndim:
            return x, mx.zeros((), mx.int64)
        values = function(x, axis=dim, keepdims=keepdim)
        return values, to(place(x, axis=dim, keepdims=keepdim), mx.int64)

    @aten(f"arg{name}")
    def place_of(out: Out, x: mx.array, dim: int | None = None, keepdim: bool = False) -> mx.array:
        if not x.ndim:
            return mx.zeros((), mx.int64)
        if dim is None:
            return mx.reshape(to(place(mx.flatten(x)), mx.int64), out.shape)
        return to(place(x, axis=dim, keepdims=keepdim), mx.int64)


_extreme("max", mx.max, mx.argmax)
_extreme("min", mx.min, mx.argmin)


@aten("aminmax")
def aminmax(out: Any, x: mx.array, *, dim: int | None = None, keepdim: bool = False) -> tuple[mx.array, mx.array]:
    axes = axes_of(dim, x.ndim)
    return mx.min(x, axis=axes, keepdims=keepdim), mx.max(x, axis=axes, keepdims=keepdim)


@aten("any", "any.dim", "any.dims")
def any_(out: Out, x: mx.array, dim: Axes = None, keepdim: bool = False) -> mx.array:
    return to(mx.any(x != 0, axis=axes_of(dim, x.ndim), keepdims=keepdim), out.dtype)


@aten("all", "all.dim", "all.dims")
def all_(out: Out, x: mx.array, dim: Axes = None, keepdim: bool = False) -> mx.array:
    return to(mx.all(x != 0, axis=axes_of(dim, x.ndim), keepdims=keepdim), out.dtype)


# ---- softmax ----


@aten("_softmax", "softmax.int")
def softmax(out: Out, x: mx.array, dim: int, half_to_float: Any = False) -> mx.array:
    if not x.ndim:
        return mx.ones((), out.dtype)
    return to(mx.softmax(to(x, wide(x.dtype)), axis=axis_of(dim, x.ndim)), out.dtype)


@aten("_safe_softmax")
def safe_softmax(out: Out, x: mx.array, dim: int, dtype: Any = None) -> mx.array:
    """Zeros where all scores are minus infinity."""
    axis = axis_of(dim, x.ndim)
    lost = mx.all(x == float("-inf"), axis=axis, keepdims=True)
    return mx.where(lost, to(0, out.dtype), softmax(out, x, axis))


@aten("_log_softmax", "log_softmax.int")
def log_softmax(out: Out, x: mx.array, dim: int, half_to_float: Any = False) -> mx.array:
    if not x.ndim:
        return mx.zeros((), out.dtype)
    axis = axis_of(dim, x.ndim)
    inner = to(x, wide(x.dtype))
    shifted = inner - mx.max(inner, axis=axis, keepdims=True)
    return to(shifted - mx.log(mx.sum(mx.exp(shifted), axis=axis, keepdims=True)), out.dtype)


@aten("_softmax_backward_data")
def softmax_backward(out: Out, grad: mx.array, y: mx.array, dim: int, input_dtype: Any) -> mx.array:
    if not y.ndim:
        return mx.zeros((), out.dtype)
    inner = wide(y.dtype)
    g, s = to(grad, inner), to(y, inner)
    weighted = g * s
    return to(weighted - s * mx.sum(weighted, axis=dim, keepdims=True), out.dtype)


@aten("_log_softmax_backward_data")
def log_softmax_backward(out: Out, grad: mx.array, y: mx.array, dim: int, input_dtype: Any) -> mx.array:
    if not y.ndim:
        return mx.zeros((), out.dtype)
    inner = wide(y.dtype)
    g, s = to(grad, inner), to(y, inner)
    return to(g - mx.exp(s) * mx.sum(g, axis=dim, keepdims=True), out.dtype)


@aten("logsumexp")
def logsumexp(out: Out, x: mx.array, dim: Axes, keepdim: bool = False) -> mx.array:
    axes = axes_of(dim, x.ndim)
    if not out.dtype.is_complex:
        return to(mx.logsumexp(to(x, wide(out.dtype)), axis=axes, keepdims=keepdim), out.dtype)
    highest = mx.max(mx.real(x), axis=axes, keepdims=True)  # real: the angle is that of the sum
    highest = mx.where(mx.isfinite(highest), highest, mx.zeros_like(highest))
    made = mx.log(mx.sum(mx.exp(x - to(highest, x.dtype)), axis=axes, keepdims=keepdim))
    return made + to(highest if keepdim else mx.squeeze(highest, axes), out.dtype)


# ---- running ----


@aten("cumsum")
def cumsum(out: Out, x: mx.array, dim: int, *, dtype: Any = None) -> mx.array:
    return to(mx.cumsum(to(x, wide(out.dtype)), axis=dim), out.dtype) if x.ndim else to(x, out.dtype)


@aten("cumprod")
def cumprod(out: Out, x: mx.array, dim: int, *, dtype: Any = None) -> mx.array:
    return to(mx.cumprod(to(x, wide(out.dtype)), axis=dim), out.dtype) if x.ndim else to(x, out.dtype)


@aten("logcumsumexp")
def logcumsumexp(out: Out, x: mx.array, dim: int) -> mx.array:
    return to(mx.logcumsumexp(to(x, wide(out.dtype)), axis=dim), out.dtype) if x.ndim else x


# ---- norms and distances ----


@aten("linalg_vector_norm")
def vector_norm(
    out: Out, x: mx.array, ord: float = 2, dim: Axes = None, keepdim: bool = False, *, dtype: Any = None
) -> mx.array:
    axes = axes_of(dim, x.ndim)
    size = to(mx.abs(x), wide(out.dtype))
    if ord == float("inf"):
        return to(mx.max(size, axis=axes, keepdims=keepdim), out.dtype)
    if ord == float("-inf"):
        return to(mx.min(size, axis=axes, keepdims=keepdim), out.dtype)
    if ord == 0:
        return mx.sum(to(size != 0, out.dtype), axis=axes, keepdims=keepdim)
    if ord == 1:
        return to(mx.sum(size, axis=axes, keepdims=keepdim), out.dtype)
    if ord == 2:
        return to(mx.sqrt(mx.sum(size * size, axis=axes, keepdims=keepdim)), out.dtype)
    total = mx.sum(mx.power(size, to(ord, size.dtype)), axis=axes, keepdims=keepdim)
    return to(mx.power(total, to(1 / ord, size.dtype)), out.dtype)


def _distances(apart: mx.array, p: float) -> mx.array:
    """The p-norm over the last axis."""
    size = mx.abs(apart)
    if p == 0:
        return mx.sum(to(size != 0, size.dtype), axis=-1)
    if p == float("inf"):
        return mx.max(size, axis=-1)
    if p == 1:
        return mx.sum(size, axis=-1)
    if p == 2:
        return mx.sqrt(mx.sum(size * size, axis=-1))
    return mx.power(mx.sum(mx.power(size, to(p, size.dtype)), axis=-1), to(1 / p, size.dtype))


@aten("_cdist_forward")
def cdist(out: Out, x1: mx.array, x2: mx.array, p: float, compute_mode: int | None) -> mx.array:
    return _distances(mx.expand_dims(x1, -2) - mx.expand_dims(x2, -3), p)


@aten("_cdist_backward")
def cdist_backward(out: Out, grad: mx.array, x1: mx.array, x2: mx.array, p: float, distances: mx.array) -> mx.array:
    """By x1. Points that are at no distance have none; of equal largest sizes each counts, as in torch."""
    apart = mx.expand_dims(x1, -2) - mx.expand_dims(x2, -3)
    size, far = mx.abs(apart), mx.expand_dims(distances, -1)
    if p == 0:
        slope = mx.zeros_like(apart)
    elif p == 1:
        slope = mx.sign(apart)
    elif p == float("inf"):
        slope = mx.where(size == far, mx.sign(apart), 0)
    elif p == 2:
        slope = apart / far
    else:
        slope = mx.sign(apart) * mx.power(size / far, to(p - 1, size.dtype))
    slope = mx.where(mx.logical_or(far == 0, apart == 0), 0, slope)
    return mx.sum(mx.expand_dims(grad, -1) * slope, axis=-2)


@aten("_pdist_forward")
def pdist(out: Out, x: mx.array, p: float = 2.0) -> mx.array:
    n = int(x.shape[0])
    rows = [i for i in range(n) for _ in range(i + 1, n)]
    columns = [j for i in range(n) for j in range(i + 1, n)]
    if not rows:
        return mx.zeros((0,), out.dtype)
    first, second = (mx.take(x, mx.array(places, mx.int64), axis=0) for places in (rows, columns))
    return _distances(first - second, p)


@aten("dist")
def dist(out: Out, x: mx.array, y: mx.array, p: float = 2) -> mx.array:
    return vector_norm(out, x - y, p)


# ---- extremes so far ----


def _extremes(out: Any, x: mx.array, dim: int, so_far: Any) -> tuple[mx.array, mx.array]:
    """Extremes of what stands before, and the last places where they stand; NaN counts as the most extreme."""
    if not x.ndim:
        return x, mx.zeros((), mx.int64)
    values = so_far(to(x, mx.uint8) if x.dtype.is_bool else x, axis=dim)
    values = to(values, x.dtype)
    is_one = x == values
    if x.dtype.kind == "f":
        is_one = mx.logical_or(is_one, mx.isnan(x))
    axis = axis_of(dim, x.ndim)
    places = mx.reshape(mx.arange(x.shape[axis], dtype=mx.int64), (-1,) + (1,) * (x.ndim - 1 - axis))
    return values, mx.cummax(mx.where(is_one, places, to(0, mx.int64)), axis=dim)


@aten("cummax")
def cummax(out: Any, x: mx.array, dim: int) -> tuple[mx.array, mx.array]:
    return _extremes(out, x, dim, mx.cummax)


@aten("cummin")
def cummin(out: Any, x: mx.array, dim: int) -> tuple[mx.array, mx.array]:
    return _extremes(out, x, dim, mx.cummin)


# ---- histograms ----


@aten("histc")
def histc(out: Out, x: mx.array, bins: int = 100, min: Any = 0, max: Any = 0) -> mx.array:
    """How many elements lie in each of `bins` equal parts of a range: that of the elements, if none is given."""
    flat = mx.reshape(to(x, wide(out.dtype)), (-1,))
    if not isinstance(flat.shape[0], int) or not flat.shape[0]:
        raise ValueError("a histogram of how many elements is not known")
    low, high = to(min, flat.dtype), to(max, flat.dtype)
    if min == max:
        low, high = mx.min(flat), mx.max(flat)
    same = low == high
    low, high = mx.where(same, low - 1, low), mx.where(same, high + 1, high)
    inside = mx.logical_and(flat >= low, flat <= high)
    place = to(mx.where(inside, (flat - low) / (high - low) * bins, to(0, flat.dtype)), mx.int64)
    place = mx.minimum(place, bins - 1)
    counts = mx.zeros((bins,), mx.int64).at[place].add(to(inside, mx.int64))
    return to(counts, out.dtype)
