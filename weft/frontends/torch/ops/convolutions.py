"""Convolutions, and what else moves a window over images: pooling and resampling. ATen has channels second, Weft's
convolution has them last."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, iota, to, wide

aten = Table()
Sizes = Sequence[Any]


def _each(given: Any, axes: int) -> list[Any]:
    found = [given] if isinstance(given, int) else list(given)
    return found * axes if len(found) == 1 else found


def _convolved(
    x: mx.array, weight: mx.array, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool,
    output_padding: Sizes, groups: int,
) -> mx.array:  # fmt: skip
    axes = x.ndim - 2
    stride, padding, dilation, extra = (_each(n, axes) for n in (stride, padding, dilation, output_padding))
    # Copies of their own are made faster than a convolution reads what lies in another order.
    last = mx.contiguous(mx.moveaxis(x, 1, -1))
    if not transposed:
        made = mx.conv_general(
            last,
            mx.contiguous(mx.moveaxis(weight, 1, -1)),
            stride=stride,
            padding=padding,
            kernel_dilation=dilation,
            groups=groups,
        )
        return mx.moveaxis(made, -1, 1)
    kernel = weight.shape[2:]
    low = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    high = [n + e for n, e in zip(low, extra, strict=True)]
    inputs, outputs = weight.shape[0], weight.shape[1]
    # (inputs, outputs / groups, …) to (outputs, …, inputs / groups)
    apart = mx.reshape(weight, (groups, inputs // groups, outputs, *kernel))
    turned = mx.flip(mx.moveaxis(mx.moveaxis(apart, 2, 1), 2, -1), list(range(2, 2 + axes)))
    made = mx.conv_general(
        last, mx.contiguous(mx.reshape(turned, (groups * outputs, *kernel, inputs // groups))), padding=(low, high),
        kernel_dilation=dilation, input_dilation=stride, groups=groups,
    )  # fmt: skip
    return mx.moveaxis(made, -1, 1)


@aten("convolution")
def convolution(
    out: Out, x: mx.array, weight: mx.array, bias: mx.array | None, stride: Sizes, padding: Sizes, dilation: Sizes,
    transposed: bool, output_padding: Sizes, groups: int,
) -> mx.array:  # fmt: skip
    made = _convolved(x, weight, stride, padding, dilation, transposed, output_padding, groups)
    if bias is None:
        return made
    return made + mx.reshape(bias, (bias.shape[0], *(1,) * (x.ndim - 2)))


def _towards_input(
    grad: mx.array, sizes: Sizes, weight: mx.array, stride: Sizes, padding: Sizes, dilation: Sizes, transposed: bool,
    groups: int,
) -> mx.array:  # fmt: skip
    """The gradient of the input is a convolution in the other direction, with the same weights."""
    axes = len(sizes)
    zeros = [0] * axes
    if transposed:
        made = _convolved(grad, weight, stride, padding, dilation, False, zeros, groups)
        # Padding of the output by a stride or more, as dilation allows it, is room for further steps.
        return made[(slice(None), slice(None), *(slice(0, n) for n in sizes))]
    parts = zip(
        sizes, grad.shape[2:], weight.shape[2:], _each(stride, axes), _each(padding, axes), _each(dilation, axes),
        strict=True,
    )  # fmt: skip
    rest = [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, k, s, p, d in parts]
    return _convolved(grad, weight, stride, padding, dilation, True, rest, groups)


@aten("convolution_backward")
def convolution_backward(
    out: Any, grad: mx.array, x: mx.array, weight: mx.array, bias_sizes: Any, stride: Sizes, padding: Sizes,
    dilation: Sizes, transposed: bool, output_padding: Sizes, groups: int, output_mask: Sequence[bool],
) -> tuple[mx.array | None, ...]:  # fmt: skip
    def forward(a: mx.array, b: mx.array) -> mx.array:
        return _convolved(a, b, stride, padding, dilation, transposed, output_padding, groups)

    _, (dx, dw) = mx.vjp(forward, [x, weight], [grad])
    if all(type(n) is int for n in (*x.shape[2:], *grad.shape[2:])):
        dx = _towards_input(grad, x.shape[2:], weight, stride, padding, dilation, transposed, groups)
    others = [axis for axis in range(grad.ndim) if axis != 1]
    db = to(mx.sum(to(grad, wide(grad.dtype)), axis=others), grad.dtype) if output_mask[2] else None
    return dx if output_mask[0] else None, dw if output_mask[1] else None, db


# ---- windows ----


class Windows:
    """The places of a window that moves over the last axes of an array: how much lies beyond the array, and the part of
    it that each place of the window sees."""

    def __init__(
        self, shape: Sizes, made: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
    ) -> None:
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.shape, self.made = list(shape), list(made)
        self.axes = len(kernel)
        reach = [(m - 1) * s + d * (k - 1) + 1 for m, s, d, k in zip(made, stride, dilation, kernel, strict=True)]
        self.high = [max(r - n - p, 0) for r, n, p in zip(reach, shape, padding, strict=True)]

    def near(self) -> Windows:
        """Without the places that are beyond the image wherever the window is."""
        parts = zip(self.kernel, self.shape, self.padding, self.dilation, strict=True)
        kernel = [min(k, -(-(n + p) // d)) if type(n) is int else k for k, n, p, d in parts]
        return Windows(self.shape, self.made, kernel, self.stride, self.padding, self.dilation)

    def padded(self, x: mx.array, value: Any) -> mx.array:
        if not any(self.padding) and not any(self.high):
            return x
        widths = [(0, 0)] * (x.ndim - self.axes) + list(zip(self.padding, self.high, strict=True))
        return mx.pad(x, widths, constant_values=to(value, x.dtype))

    def places(self) -> Any:
        return itertools.product(*(range(k) for k in self.kernel))

    def seen(self, x: mx.array, place: Sequence[int]) -> mx.array:
        """What a place of the window sees of a padded array, as it moves."""
        key = tuple(
            slice(d * i, d * i + (m - 1) * s + 1, s)
            for d, i, m, s in zip(self.dilation, place, self.made, self.stride, strict=True)
        )
        return x[(slice(None),) * (x.ndim - self.axes) + key]

    def numbers(self, place: Sequence[int]) -> mx.array:
        """The number of the element (of the array as it was, in row-major order) that a place sees."""
        found = mx.zeros((1,) * self.axes, mx.int64)
        for k in range(self.axes):
            along = iota(self.made[k]) * self.stride[k] + (place[k] * self.dilation[k] - self.padding[k])
            found = found * self.shape[k] + mx.reshape(along, (-1,) + (1,) * (self.axes - 1 - k))
        return found


def _windows(x: mx.array, made: Sizes, kernel: Any, stride: Any, padding: Any, dilation: Any, axes: int) -> Windows:
    size = _each(kernel, axes)
    step = _each(stride, axes) if not isinstance(stride, (list, tuple)) or len(stride) else size
    return Windows(x.shape[-axes:], made[-axes:], size, step, _each(padding, axes), _each(dilation, axes))


def _lowest(dtype: Any) -> Any:
    return float("-inf") if dtype.kind == "f" else mx.iinfo(dtype).min


def _max_pool(axes: int) -> Any:
    def rule(
        out: Any, x: mx.array, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[mx.array, mx.array]:  # fmt: skip
        """The largest of each window, or its first NaN, and the place of that in the image."""
        windows = _windows(x, out[0].shape, kernel, stride, padding, dilation, axes)
        whole = windows.padded(x, _lowest(x.dtype))
        best = at = None
        for place in windows.places():
            seen, number = windows.seen(whole, place), windows.numbers(place)
            if best is None or at is None:
                best, at = seen, mx.broadcast_to(number, seen.shape)
                inside = _inside(windows, place)
                at = at if inside is None else mx.where(inside, at, -1)
                continue
            better = mx.logical_or(seen > best, mx.isnan(seen)) if x.dtype.kind == "f" else seen > best
            better = mx.logical_or(better, mx.logical_and(at < 0, _within(windows, place)))
            best, at = mx.where(better, seen, best), mx.where(better, number, at)
        assert best is not None
        assert at is not None
        return best, at

    return rule


def _inside(windows: Windows, place: Sequence[int]) -> mx.array | None:
    """Where a place of the window lies in the image; None if always."""
    return None if not any(windows.padding) and not any(windows.high) else _within(windows, place)


def _within(windows: Windows, place: Sequence[int]) -> mx.array:
    found = mx.ones((1,) * windows.axes, mx.bool_)
    for k in range(windows.axes):
        along = iota(windows.made[k]) * windows.stride[k] + (place[k] * windows.dilation[k] - windows.padding[k])
        along = mx.reshape(along, (-1,) + (1,) * (windows.axes - 1 - k))
        found = mx.logical_and(found, mx.logical_and(along >= 0, along < windows.shape[k]))
    return found


aten["aten.max_pool2d_with_indices.default"] = _max_pool(2)
aten["aten.max_pool3d_with_indices.default"] = _max_pool(3)


@aten("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(
    out: Out, grad: mx.array, x: mx.array, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
    indices: mx.array,
) -> mx.array:  # fmt: skip
    axes = len(kernel)
    lead, image = x.shape[:-axes], x.shape[-axes:]
    many: Any = 1
    for n in lead:
        many = many * n
    flat = mx.zeros((many, int(np.prod([int(n) for n in image]))), grad.dtype)
    rows = mx.expand_dims(iota(many), 1)
    made = flat.at[rows, mx.reshape(indices, (many, -1))].add(mx.reshape(grad, (many, -1)))
    return mx.reshape(made, x.shape)


def _average(
    x: mx.array, made: Sizes, kernel: Any, stride: Any, padding: Any, count_include_pad: bool, divisor: Any, axes: int
) -> mx.array:
    windows = _windows(x, made, kernel, stride, padding, 1, axes)
    near = windows.near()
    whole = near.padded(to(x, wide(x.dtype)), 0)
    total = None
    for place in near.places():
        seen = near.seen(whole, place)
        total = seen if total is None else total + seen
    assert total is not None
    return to(total / to(_counts(windows, count_include_pad, divisor), total.dtype), x.dtype)


def _counts(windows: Windows, count_include_pad: bool, divisor: Any) -> mx.array:
    """How many elements a window counts: those inside, with the zeros around them or without, but never what only
    `ceil_mode` adds."""
    if divisor:
        return mx.array(divisor, mx.int64)
    found = mx.ones((1,) * windows.axes, mx.int64)
    for k in range(windows.axes):
        n, pad = windows.shape[k], windows.padding[k]
        start = iota(windows.made[k]) * windows.stride[k] - pad
        end = mx.minimum(start + windows.kernel[k], n + pad)
        if not count_include_pad:
            start, end = mx.maximum(start, 0), mx.minimum(end, n)
        found = found * mx.reshape(end - start, (-1,) + (1,) * (windows.axes - 1 - k))
    return found


def _average_rules(axes: int) -> None:
    @aten(f"avg_pool{axes}d")
    def forward(
        out: Out, x: mx.array, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> mx.array:  # fmt: skip
        return _average(x, out.shape, kernel, stride, padding, count_include_pad, divisor_override, axes)

    @aten(f"avg_pool{axes}d_backward")
    def backward(
        out: Out, grad: mx.array, x: mx.array, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
        count_include_pad: bool, divisor_override: Any,
    ) -> mx.array:  # fmt: skip
        def fun(a: mx.array) -> mx.array:
            return _average(a, grad.shape, kernel, stride, padding, count_include_pad, divisor_override, axes)

        return mx.vjp(fun, [x], [grad])[1][0]


for _axes in (1, 2, 3):
    _average_rules(_axes)


def _adaptive(x: mx.array, sizes: Sizes) -> mx.array:
    """Means over windows that share an axis out evenly: one matrix product an axis."""
    inner = to(x, wide(x.dtype))
    axes = len(sizes)
    for k, m in enumerate(sizes):
        axis = x.ndim - axes + k
        n = x.shape[axis]
        if type(m) is int and m == 1:
            inner = mx.mean(inner, axis=axis, keepdims=True)
            continue
        if m is n or m == n:
            continue
        number = iota(m)
        start = mx.floor_divide(number * n, m)
        end = mx.floor_divide((number + 1) * n + (m - 1), m)
        column = mx.expand_dims(iota(n), 1)
        weight = mx.logical_and(column >= start, column < end)
        shares = to(weight, inner.dtype) / to(end - start, inner.dtype)
        inner = mx.moveaxis(mx.matmul(mx.moveaxis(inner, axis, -1), shares), -1, axis)
    return to(inner, x.dtype)


@aten("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d")
def adaptive_avg_pool(out: Out, x: mx.array, output_size: Sizes) -> mx.array:
    return _adaptive(x, output_size)


def _adaptive_backward(axes: int) -> None:
    @aten(f"_adaptive_avg_pool{axes}d_backward")
    def rule(out: Out, grad: mx.array, x: mx.array) -> mx.array:
        return mx.vjp(lambda a: _adaptive(a, grad.shape[-axes:]), [x], [grad])[1][0]


for _axes in (2, 3):
    _adaptive_backward(_axes)


def _adaptive_windows(n: int, m: int) -> np.ndarray:
    """The places along an axis of n elements that each of m windows covers; shorter ones have their last one again."""
    first, end = (np.arange(m) * n) // m, -((-(np.arange(m) + 1) * n) // m)
    return np.minimum(first[:, None] + np.arange(np.max(end - first, initial=1)), end[:, None] - 1)


@aten("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(out: Any, x: mx.array, output_size: Sizes) -> tuple[mx.array, mx.array]:
    """The largest elements of windows, and their places in the image."""
    axes = len(output_size)
    image = x.shape[-axes:]
    lead = x.ndim - axes
    seen, places = x, np.zeros((1,) * (2 * axes), np.int64)
    for k, (n, m) in enumerate(zip(image, output_size, strict=True)):
        windows = _adaptive_windows(int(n), int(m))
        axis = lead + 2 * k
        seen = mx.take(seen, mx.array(windows.reshape(-1)), axis=axis)
        seen = mx.reshape(seen, (*seen.shape[:axis], *windows.shape, *seen.shape[axis + 1 :]))
        places = places * n + windows.reshape([1] * 2 * k + [*windows.shape] + [1] * 2 * (axes - 1 - k))
    order = [*range(0, 2 * axes, 2), *range(1, 2 * axes, 2)]
    made = tuple(output_size)
    numbers = mx.array(np.transpose(places, order).reshape(*made, -1))
    seen = mx.reshape(mx.transpose(seen, [*range(lead), *(lead + k for k in order)]), (*x.shape[:lead], *made, -1))
    best = mx.argmax(seen, axis=-1, keepdims=True)
    found = mx.take_along_axis(mx.broadcast_to(numbers, seen.shape), best, axis=-1)
    return mx.squeeze(mx.take_along_axis(seen, best, axis=-1), -1), mx.squeeze(found, -1)


def _adaptive_max_backward(axes: int) -> None:
    @aten(f"adaptive_max_pool{axes}d_backward")
    def rule(out: Out, grad: mx.array, x: mx.array, indices: mx.array) -> mx.array:
        return max_pool_backward(out, grad, x, [0] * axes, None, None, None, False, indices)


for _axes in (2, 3):
    _adaptive_max_backward(_axes)


@aten("col2im")
def col2im(
    out: Out, x: mx.array, output_size: Sizes, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> mx.array:
    """The transpose of im2col: windows added up where they overlap."""
    batched = x if x.ndim == 3 else mx.expand_dims(x, 0)
    made = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(output_size, padding, dilation, kernel, stride, strict=True)
    ]
    windows = Windows(output_size, made, kernel, stride, padding, dilation)
    n, rows = batched.shape[0], batched.shape[1]
    image = mx.zeros((n, rows // (kernel[0] * kernel[1]), *output_size), x.dtype)

    def columns(a: mx.array) -> mx.array:
        whole = windows.padded(a, 0)
        seen = mx.stack([windows.seen(whole, place) for place in windows.places()], axis=2)
        return mx.reshape(seen, batched.shape)

    folded = mx.vjp(columns, [image], [batched])[1][0]
    return folded if x.ndim == 3 else mx.squeeze(folded, 0)


@aten("im2col")
def im2col(out: Out, x: mx.array, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> mx.array:
    batched = x if x.ndim == 4 else mx.expand_dims(x, 0)
    shape = batched.shape[-2:]
    made = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(shape, padding, dilation, kernel, stride, strict=True)
    ]
    windows = Windows(shape, made, kernel, stride, padding, dilation)
    whole = windows.padded(batched, 0)
    seen = mx.stack([windows.seen(whole, place) for place in windows.places()], axis=2)
    return mx.reshape(seen, out.shape)


# ---- resampling ----


def _scale(n: Any, m: Any, factor: float | None) -> Any:
    """How far the source moves with each element made."""
    return 1.0 / factor if factor else n / m


def _nearest(x: mx.array, sizes: Sizes, factors: Sequence[float | None], exact: bool = False) -> mx.array:
    axes = len(sizes)
    for k, (m, factor) in enumerate(zip(sizes, factors, strict=True)):
        axis = x.ndim - axes + k
        n = x.shape[axis]
        by = to(_scale(n, m, factor), mx.float32)
        places = (iota(m, mx.float32) + (0.5 if exact else 0.0)) * by
        x = mx.take(x, mx.minimum(to(mx.floor(places), mx.int64), n - 1), axis=axis)
    return x


def _linear(x: mx.array, sizes: Sizes, factors: Sequence[float | None], align_corners: bool) -> mx.array:
    axes = len(sizes)
    inner = to(x, wide(x.dtype))
    for k, (m, factor) in enumerate(zip(sizes, factors, strict=True)):
        axis = x.ndim - axes + k
        n = x.shape[axis]
        count = iota(m, inner.dtype)
        if align_corners:
            source = count * to((n - 1) / (m - 1) if m > 1 else 0.0, inner.dtype)
        else:
            source = mx.maximum((count + 0.5) * to(_scale(n, m, factor), inner.dtype) - 0.5, 0)
        low = mx.minimum(to(mx.floor(source), mx.int64), n - 1)
        high = mx.minimum(low + 1, n - 1)
        shape = (-1,) + (1,) * (axes - 1 - k)
        weight = mx.reshape(mx.minimum(mx.maximum(source - to(low, inner.dtype), 0), 1), shape)
        inner = mx.take(inner, low, axis=axis) * (1 - weight) + mx.take(inner, high, axis=axis) * weight
    return to(inner, x.dtype)


def _factors(scales: Sequence[float | None], axes: int) -> list[float | None]:
    return list(scales)[:axes] if scales else [None] * axes


def _resampling(axes: int) -> None:
    @aten(f"upsample_nearest{axes}d.vec")
    def nearest_vec(out: Out, x: mx.array, output_size: Any, scale_factors: Any) -> mx.array:
        return _nearest(x, out.shape[-axes:], _factors(scale_factors, axes))

    @aten(f"upsample_nearest{axes}d")
    def nearest(out: Out, x: mx.array, output_size: Any, *scales: float | None) -> mx.array:
        return _nearest(x, output_size, _factors(scales, axes))

    @aten(f"upsample_nearest{axes}d_backward")
    def nearest_backward(
        out: Out, grad: mx.array, output_size: Any, input_size: Any, *scales: float | None
    ) -> mx.array:
        zeros = mx.zeros(tuple(input_size), grad.dtype)
        return mx.vjp(lambda a: _nearest(a, output_size, _factors(scales, axes)), [zeros], [grad])[1][0]


for _axes in (1, 2, 3):
    _resampling(_axes)


@aten("upsample_bilinear2d.vec", "upsample_trilinear3d.vec", "upsample_linear1d.vec")
def linear_vec(out: Out, x: mx.array, output_size: Any, align_corners: bool, scale_factors: Any) -> mx.array:
    axes = x.ndim - 2
    return _linear(x, out.shape[-axes:], _factors(scale_factors, axes), align_corners)


@aten("upsample_bilinear2d", "upsample_trilinear3d", "upsample_linear1d")
def linear(out: Out, x: mx.array, output_size: Any, align_corners: bool, *scales: float | None) -> mx.array:
    return _linear(x, output_size, _factors(scales, x.ndim - 2), align_corners)


@aten("upsample_bilinear2d_backward", "upsample_trilinear3d_backward", "upsample_linear1d_backward")
def linear_backward(
    out: Out, grad: mx.array, output_size: Any, input_size: Any, align_corners: bool, *scales: float | None
) -> mx.array:
    zeros = mx.zeros(tuple(input_size), grad.dtype)
    factors = _factors(scales, grad.ndim - 2)
    return mx.vjp(lambda a: _linear(a, output_size, factors, align_corners), [zeros], [grad])[1][0]


# ---- resampling by four rows, or by as many as a smaller image has ----


def _cubic_weight(distance: np.ndarray, a: float) -> np.ndarray:
    s = np.abs(distance)
    near, far = ((a + 2) * s - (a + 3)) * s * s + 1, ((a * s - 5 * a) * s + 8 * a) * s - 4 * a
    return np.where(s <= 1, near, np.where(s < 2, far, 0))


def _cubic_matrix(n: int, m: int, align_corners: bool, factor: float | None) -> np.ndarray:
    """What m elements take from n: four neighbours each, of which those outside are the last ones inside."""
    if align_corners:
        source = np.arange(m) * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        source = (np.arange(m) + 0.5) * _scale(n, m, factor) - 0.5
    made = np.zeros((m, n))
    for k in range(-1, 3):
        place = np.floor(source).astype(int) + k
        np.add.at(made, (np.arange(m), np.clip(place, 0, n - 1)), _cubic_weight(source - place, -0.75))
    return made


def _smooth_matrix(n: int, m: int, align_corners: bool, factor: float | None, is_cubic: bool) -> np.ndarray:
    """The same for a smaller image without false patterns: what an element takes reaches as far as it does."""
    if align_corners:
        scale = (n - 1) / (m - 1) if m > 1 else 0.0
    else:
        scale = _scale(n, m, factor)
    wide_by = max(scale, 1.0)
    reach = (2.0 if is_cubic else 1.0) * wide_by
    center = scale * (np.arange(m) + 0.5)
    first = np.maximum((center - reach + 0.5).astype(int), 0)
    end = np.minimum((center + reach + 0.5).astype(int), n)
    place = np.arange(n)
    distance = (place - center[:, None] + 0.5) / wide_by
    weight = _cubic_weight(distance, -0.5) if is_cubic else np.maximum(1 - np.abs(distance), 0)
    weight = np.where((place >= first[:, None]) & (place < end[:, None]), weight, 0)
    total = weight.sum(axis=1, keepdims=True)
    return weight / np.where(total == 0, 1, total)


def _by_matrices(x: mx.array, rows: np.ndarray, columns: np.ndarray) -> mx.array:
    inner = to(x, wide(x.dtype))
    down, across = (mx.array(a).astype(inner.dtype) for a in (rows, columns))
    return to(mx.matmul(down, mx.matmul(inner, mx.transpose(across))), x.dtype)


def _images(name: str, matrix: Callable[..., np.ndarray]) -> None:
    """The rules of a resampling that takes so much from each row, and from each column; and of its gradient."""

    def matrices(image: Sizes, made: Sizes, align_corners: bool, scales: Sequence[float | None]) -> list[np.ndarray]:
        factors = _factors(scales, 2)
        return [matrix(int(n), int(m), align_corners, f) for n, m, f in zip(image, made, factors, strict=True)]

    @aten(name)
    def there(out: Out, x: mx.array, output_size: Any, align_corners: bool, *scales: float | None) -> mx.array:
        return _by_matrices(x, *matrices(x.shape[-2:], output_size, align_corners, scales))

    @aten(f"{name}.vec")
    def there_by_factors(out: Out, x: mx.array, output_size: Any, align_corners: bool, scale_factors: Any) -> mx.array:
        return _by_matrices(x, *matrices(x.shape[-2:], out.shape[-2:], align_corners, scale_factors or ()))

    @aten(f"{name}_backward")
    def back(
        out: Out, grad: mx.array, output_size: Any, input_size: Any, align_corners: bool, *scales: float | None
    ) -> mx.array:
        rows, columns = matrices(input_size[-2:], output_size, align_corners, scales)
        return _by_matrices(grad, rows.T, columns.T)


_images("upsample_bicubic2d", _cubic_matrix)
_images("_upsample_bilinear2d_aa", partial(_smooth_matrix, is_cubic=False))
_images("_upsample_bicubic2d_aa", partial(_smooth_matrix, is_cubic=True))


# ---- sampling at places that are data ----

_BILINEAR, _NEAREST = 0, 1
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


@aten("grid_sampler_2d")
def grid_sampler_2d(
    out: Out, x: mx.array, grid: mx.array, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> mx.array:
    """Bilinear or nearest; bicubic is a sum of four rows of four."""
    return _sampled(x, grid, interpolation_mode, padding_mode, align_corners)


@aten("grid_sampler_2d_backward")
def grid_sampler_2d_backward(
    out: Any, grad: mx.array, x: mx.array, grid: mx.array, interpolation_mode: int, padding_mode: int,
    align_corners: bool, output_mask: Sequence[bool],
) -> tuple[mx.array | None, ...]:  # fmt: skip
    def sampled(x: mx.array, grid: mx.array) -> mx.array:
        return _sampled(x, grid, interpolation_mode, padding_mode, align_corners)

    made = mx.vjp(sampled, [x, grid], [grad])[1]
    return tuple(gradient if wanted else None for gradient, wanted in zip(made, output_mask, strict=True))


def _pixels(place: mx.array, n: Any, align_corners: bool) -> mx.array:
    """A place in [-1, 1] in pixels."""
    return (place + 1) * ((n - 1) / 2) if align_corners else ((place + 1) * n - 1) * 0.5


def _reflected(place: mx.array, n: Any, align_corners: bool) -> mx.array:
    low, span = (0.0, n - 1.0) if align_corners else (-0.5, float(n))
    if span <= 0:
        return mx.zeros_like(place)
    away = mx.abs(place - low)
    rest = mx.remainder(away, to(span, place.dtype))
    odd = mx.remainder(mx.floor(away / span), to(2, place.dtype)) == 1
    return mx.where(odd, span - rest, rest) + low


def _sampled(x: mx.array, grid: mx.array, mode: int, padding: int, align_corners: bool) -> mx.array:
    batch, channels, height, width = x.shape
    columns, rows = (mx.squeeze(p, -1) for p in mx.split(grid, 2, axis=-1))
    across, down = _pixels(columns, width, align_corners), _pixels(rows, height, align_corners)

    def bounded(place: mx.array, n: Any) -> mx.array:
        if padding == _REFLECTION:
            place = _reflected(place, n, align_corners)
        return mx.minimum(mx.maximum(place, 0), n - 1) if padding != _ZEROS else place

    flat = mx.reshape(x, (batch, channels, height * width))

    def at(row: mx.array, column: mx.array) -> mx.array:
        """The elements at whole places; 0 outside."""
        inside = mx.logical_and(
            mx.logical_and(row >= 0, row <= height - 1), mx.logical_and(column >= 0, column <= width - 1)
        )
        r = to(mx.minimum(mx.maximum(row, 0), height - 1), mx.int64)
        c = to(mx.minimum(mx.maximum(column, 0), width - 1), mx.int64)
        number = mx.reshape(r * width + c, (batch, 1, -1))
        number = mx.broadcast_to(number, (batch, channels, number.shape[-1]))
        found = mx.reshape(mx.take_along_axis(flat, number, axis=2), (batch, channels, *row.shape[1:]))
        return mx.where(mx.expand_dims(inside, 1), found, to(0, x.dtype))

    if mode == _NEAREST:
        return at(mx.round(bounded(down, height)), mx.round(bounded(across, width)))
    if mode == _BILINEAR:
        down, across = bounded(down, height), bounded(across, width)
        top, left = mx.floor(down), mx.floor(across)
        v, h = (mx.expand_dims(p, 1) for p in (down - top, across - left))
        upper = at(top, left) * (1 - h) + at(top, left + 1) * h
        lower = at(top + 1, left) * (1 - h) + at(top + 1, left + 1) * h
        return upper * (1 - v) + lower * v
    top, left = mx.floor(down), mx.floor(across)
    down_weights, across_weights = (_cubic(mx.expand_dims(p, 1)) for p in (down - top, across - left))
    total = None
    for i in range(4):
        row = bounded(top + (i - 1), height)
        line = None
        for j in range(4):
            term = at(row, bounded(left + (j - 1), width)) * across_weights[j]
            line = term if line is None else line + term
        assert line is not None
        weighted = line * down_weights[i]
        total = weighted if total is None else total + weighted
    assert total is not None
    return total


def _cubic(t: mx.array) -> list[mx.array]:
    """Weights of four neighbours, for a place t after the second."""
    a = -0.75

    def near(s: mx.array) -> mx.array:
        return ((a + 2) * s - (a + 3)) * s * s + 1

    def far(s: mx.array) -> mx.array:
        return ((a * s - 5 * a) * s + 8 * a) * s - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]
