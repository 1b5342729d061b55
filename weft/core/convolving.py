"""Convolutions of (N, …, C) with weights (O, …, C / groups): conv1d, conv2d, conv3d, their transposes, conv_general,
convolve.

What is left when negative padding and dilation of the input are taken care of is one operation
(primitives/convolution.py). Windows of one place are a product.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from weft import dtypes as dt
from weft.core._common import array, is_sequence, whole_number, wrap
from weft.core.joining import pad
from weft.core.linear import matmul
from weft.core.shaping import flip as flipped
from weft.graph.dims import prod
from weft.primitives.convolution import Window, convolve_back, convolve_forward
from weft.primitives.views import reshape

Stream = Any
Sizes = int | Sequence[int]


def _each(name: str, what: str, given: Any, axes: int) -> tuple[int, ...]:
    """One number for each spatial axis."""
    sizes = tuple(given) if is_sequence(given) else (given,) * axes
    if len(sizes) == 1:
        sizes *= axes
    if len(sizes) != axes:
        raise ValueError(f"[{name}] {what} is an integer or has one for each of {axes} spatial axes; got {given!r}.")
    return tuple([whole_number(name, what, n) for n in sizes])


def _reshaped(x: array, *shape: Any) -> array:
    return wrap(reshape(x._node, shape))


def _check(x: Any, w: Any, groups: int) -> int:
    """The number of spatial axes, operands being checked. Weights may be integers, which become floats."""
    for given in (x, w):
        if not isinstance(given, array):
            raise TypeError(f"[conv] input and weight must be arrays; got {type(given).__name__}.")
        if not (given.dtype.is_float or (given is w and not given.dtype.is_complex)):
            raise ValueError(
                f"[conv] Invalid input array with type {given.dtype.name}. Convolution currently only supports "
                "floating point types."
            )
    axes = x.ndim - 2
    if not 1 <= axes <= 3:
        raise ValueError(
            "[conv] Only works for inputs with 1-3 spatial dimensions. The inputs must be in the format [N, ..., C_in]."
        )
    if w.ndim != x.ndim:
        raise ValueError(
            f"[conv] Invalid weight array with {w.ndim} dimensions for {axes}D convolution. Expected an array with "
            f"{x.ndim} dimensions following the format [C_out, ..., C_in]."
        )
    if groups < 1:
        raise ValueError(f"[conv] groups must be positive; got {groups}.")
    if x._node.shape[-1] != w._node.shape[-1] * groups:
        raise ValueError(
            "[conv] Expect the input channels in the input and weight array to match but got shapes - input: "
            f"{x.shape} and weight: {w.shape}{f' with {groups} groups' if groups > 1 else ''}."
        )
    if groups > 1 and w._node.shape[0] % groups != 0:
        raise ValueError(
            "[conv] If groups > 1, the output channels must be divisible by the number of groups. Got "
            f"{w._node.shape[0]} output channels and {groups} groups."
        )
    return axes


def _spaced(x: array, steps: tuple[int, ...]) -> array:
    """An input with steps - 1 zeros between neighbours along each axis."""
    for axis, step in enumerate(steps, 1):
        if step == 1:
            continue
        shape = x._node.shape
        apart = _reshaped(x, *shape[: axis + 1], 1, *shape[axis + 1 :])
        widths = [(0, 0)] * apart.ndim
        widths[axis + 1] = (0, step - 1)
        together = _reshaped(pad(apart, widths), *shape[:axis], shape[axis] * step, *shape[axis + 1 :])
        x = together[(slice(None),) * axis + (slice(0, (shape[axis] - 1) * step + 1),)]
    return x


def _cut(x: array, low: tuple[int, ...], high: tuple[int, ...]) -> tuple[array, tuple[int, ...], tuple[int, ...]]:
    """An input without what negative padding cuts off, and the padding that is left."""
    if any(n < 0 for n in (*low, *high)):
        cuts = [slice(max(-a, 0), n - max(-b, 0)) for a, b, n in zip(low, high, x._node.shape[1:-1], strict=True)]
        x = x[(slice(None), *cuts)]
        low, high = (tuple(max(n, 0) for n in side) for side in (low, high))
    return x, low, high


def _padded(x: array, low: tuple[int, ...], high: tuple[int, ...]) -> array:
    """An input with zeros around it."""
    return pad(x, [(0, 0), *zip(low, high, strict=True), (0, 0)]) if any((*low, *high)) else x


def conv_general(
    input: array,
    weight: array,
    /,
    stride: Sizes = 1,
    padding: Any = 0,
    kernel_dilation: Sizes = 1,
    input_dilation: Sizes = 1,
    groups: int = 1,
    flip: bool = False,
    *,
    stream: Stream = None,
) -> array:
    """The convolution of (N, …, C_in) with (C_out, …, C_in / groups) over one to three axes.

    `padding` is a number, one for each axis, or a pair of those for the low and the high ends. The input may have zeros
    between its elements (`input_dilation`), and the weights gaps between theirs (`kernel_dilation`); with `flip` they
    are taken in reverse order.

    >>> conv_general(arange(4.0).reshape(1, 4, 1), ones((1, 2, 1))).flatten()
    array([1, 3, 5], dtype=float32)
    """
    axes = _check(input, weight, groups)
    strides, spacing = _each("conv", "stride", stride, axes), _each("conv", "kernel_dilation", kernel_dilation, axes)
    between = _each("conv", "input_dilation", input_dilation, axes)
    for what, sizes in (("Stride", strides), ("Kernel dilation", spacing), ("Input dilation", between)):
        if min(sizes) < 1:
            raise ValueError(f"[conv] {what} sizes must be positive. Got {sizes}.")
    pair = isinstance(padding, (tuple, list)) and len(padding) == 2 and isinstance(padding[0], (tuple, list))
    low, high = (_each("conv", "padding", side, axes) for side in (padding if pair else (padding, padding)))
    dtype = dt.promote(input.dtype, weight.dtype)
    x, w = input.astype(dtype), weight.astype(dtype)
    back = max(between) > 1 and max(strides) == 1
    if not back:
        x, low, high = _cut(_spaced(x, between), low, high)
    if flip:
        w = flipped(w, tuple(range(1, axes + 1)))
    kernel = tuple(int(n) for n in w._node.shape[1:-1])
    extents = [(n - 1) * space + 1 if back else n for n, space in zip(x._node.shape[1:-1], between, strict=True)]
    places: list[Any] = []
    for axis, (n, k, gap, step) in enumerate(zip(extents, kernel, spacing, strides, strict=True), 1):
        reach, n = gap * (k - 1) + 1, n + low[axis - 1] + high[axis - 1]
        if n < reach:
            raise ValueError(
                "[conv] Spatial dimensions of input after padding cannot be smaller than weight spatial dimensions. "
                f"Got error at axis {axis} for input with shape {input.shape}, padding low {low}, padding high {high}, "
                f"and weight of shape {weight.shape}."
            )
        places.append((n - reach) // step + 1)
    outputs, each = w._node.shape[0], w._node.shape[-1]
    if back:
        steps = [
            Window(space, gap, gap * (k - 1) - before)
            for space, gap, k, before in zip(between, spacing, kernel, low, strict=True)
        ]
        shape = (x._node.shape[0], *places, outputs)
        turned = flipped(w, tuple(range(1, axes + 1)))
        return wrap(convolve_back(tuple(steps), groups, turned._node, x._node, shape))
    if math.prod(kernel) == 1 and groups == 1:
        seen = _padded(x, low, high)[(slice(None), *[slice(None, None, step) for step in strides])]
        made = matmul(_reshaped(seen, prod(seen._node.shape[:-1]), each), _reshaped(w, outputs, each).T)
        return _reshaped(made, *seen._node.shape[:-1], outputs)
    windows = tuple([Window(*window) for window in zip(strides, spacing, low, strict=True)])
    return wrap(convolve_forward(windows, groups, tuple(places), x._node, w._node))


def _of_rank(name: str, axes: int, input: Any, *options: Any) -> None:
    if isinstance(input, array) and input.ndim != axes + 2:
        raise ValueError(
            f"[{name}] the input must have {axes + 2} dimensions, [N, ..., C_in]; got shape {input.shape}."
        )


def conv1d(
    input: array, weight: array, /, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1, *,
    stream: Stream = None,
) -> array:  # fmt: skip
    """The convolution of (N, L, C_in) with (C_out, K, C_in / groups).

    >>> conv1d(ones((1, 5, 2)), ones((3, 2, 2)), stride=2).shape
    (1, 2, 3)
    """
    _of_rank("conv1d", 1, input)
    return conv_general(input, weight, stride, padding, dilation, 1, groups)


def conv2d(
    input: array, weight: array, /, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1, *,
    stream: Stream = None,
) -> array:  # fmt: skip
    """The convolution of (N, H, W, C_in) with (C_out, KH, KW, C_in / groups)."""
    _of_rank("conv2d", 2, input)
    return conv_general(input, weight, stride, padding, dilation, 1, groups)


def conv3d(
    input: array, weight: array, /, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1, *,
    stream: Stream = None,
) -> array:  # fmt: skip
    """The convolution of (N, D, H, W, C_in) with (C_out, KD, KH, KW, C_in / groups)."""
    _of_rank("conv3d", 3, input)
    return conv_general(input, weight, stride, padding, dilation, 1, groups)


def _transposed(
    name: str, axes: int, x: array, w: array, stride: Any, padding: Any, dilation: Any, more: Any, groups: int
) -> array:
    """The gradient of a convolution with respect to its input, as a convolution over the spaced input."""
    _of_rank(name, axes, x)
    _check(x, w, groups)
    around, gaps = _each(name, "padding", padding, axes), _each(name, "dilation", dilation, axes)
    extra = _each(name, "output_padding", more, axes)
    low = tuple(gap * (int(k) - 1) - p for k, p, gap in zip(w._node.shape[1:-1], around, gaps, strict=True))
    high = tuple(a + b for a, b in zip(low, extra, strict=True))
    return conv_general(x, w, 1, (low, high), gaps, stride, groups, True)


def conv_transpose1d(
    input: array, weight: array, /, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1,
    output_padding: Sizes = 0, groups: int = 1, *, stream: Stream = None,
) -> array:  # fmt: skip
    """The transposed convolution of (N, L, C_in) with (C_out, K, C_in / groups).

    >>> conv_transpose1d(ones((1, 3, 1)), ones((1, 2, 1)), stride=2).flatten()
    array([1, 1, 1, 1, 1, 1], dtype=float32)
    """
    return _transposed("conv_transpose1d", 1, input, weight, stride, padding, dilation, output_padding, groups)


def conv_transpose2d(
    input: array, weight: array, /, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1,
    output_padding: Sizes = 0, groups: int = 1, *, stream: Stream = None,
) -> array:  # fmt: skip
    """The transposed convolution of (N, H, W, C_in) with (C_out, KH, KW, C_in / groups)."""
    return _transposed("conv_transpose2d", 2, input, weight, stride, padding, dilation, output_padding, groups)


def conv_transpose3d(
    input: array, weight: array, /, stride: Sizes = 1, padding: Sizes = 0, dilation: Sizes = 1,
    output_padding: Sizes = 0, groups: int = 1, *, stream: Stream = None,
) -> array:  # fmt: skip
    """The transposed convolution of (N, D, H, W, C_in) with (C_out, KD, KH, KW, C_in / groups)."""
    return _transposed("conv_transpose3d", 3, input, weight, stride, padding, dilation, output_padding, groups)


def convolve(a: array, v: array, /, mode: str = "full", *, stream: Stream = None) -> array:
    """The discrete convolution of two vectors: all of it ("full"), as long as the longer one ("same"), or where they
    overlap in full ("valid").

    >>> convolve(array([1.0, 2.0, 3.0]), array([0.0, 1.0, 0.5]))
    array([0, 1, 2.5, 4, 1.5], dtype=float32)
    """
    if not isinstance(a, array) or not isinstance(v, array):
        raise TypeError("[convolve] both inputs must be arrays.")
    if a.ndim != 1 or v.ndim != 1:
        raise ValueError("[convolve] Inputs must be 1D.")
    if a._node.shape[0] == 0 or v._node.shape[0] == 0:
        raise ValueError("[convolve] Inputs cannot be empty.")
    if mode not in ("full", "same", "valid"):
        raise ValueError(f"[convolve] Invalid mode; it is 'full', 'same' or 'valid', not {mode!r}.")
    if a._node.shape[0] < v._node.shape[0]:
        a, v = v, a
    n, k = a._node.shape[0], int(v._node.shape[0])
    low, high = {"full": (k - 1, k - 1), "valid": (0, 0), "same": (k // 2, k - 1 - k // 2)}[mode]
    signal, weights = _reshaped(a, 1, n, 1), _reshaped(v, 1, k, 1)
    made = conv_general(signal, weights, 1, ((low,), (high,)), 1, 1, 1, True)
    return _reshaped(made, made._node.shape[1])
