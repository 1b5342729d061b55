"""Sequences, images and volumes at another resolution, (N, …, C).

Every axis is resampled on its own: an output position falls between inputs, and is the sum of some of them (taps) with
weights that depend on the distance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.nn.layers.base import Module

Taps = list[tuple[mx.array, mx.array]]
"""(positions in the input, weights) of one tap each, for all positions of the output."""


def _positions(n: int, scale: float, align_corners: bool) -> mx.array:
    """Where the output positions lie in an input of n."""
    m = int(scale * n)
    places = mx.arange(m, dtype=mx.float32)
    if align_corners:
        return places * ((n - 1) / max(m - 1, 1))
    step = 1 / scale
    return places * step - ((m - 1) * step - n + 1) / 2


def _nearest(n: int, scale: float) -> mx.array:
    m = int(scale * n)
    places = mx.arange(m, dtype=mx.float32)
    found = mx.round((places + 0.5) * (n / m) - 0.5) if m > n else places * (n / m)
    return found.astype(mx.uint32)


def _within(places: mx.array, n: int) -> mx.array:
    return mx.clip(places, 0, n - 1).astype(mx.uint32)


def _linear_taps(n: int, scale: float, align_corners: bool) -> Taps:
    at = mx.clip(_positions(n, scale, align_corners), 0, n - 1)
    low = mx.floor(at)
    part = at - low
    return [(low.astype(mx.uint32), 1 - part), (mx.ceil(at).astype(mx.uint32), part)]


def _cubic(distance: mx.array, a: float) -> tuple[mx.array, mx.array]:
    """The cubic kernel of parameter a: (its values up to a distance of 1, its values from there to 2)."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return near, far


def _cubic_taps(n: int, scale: float, align_corners: bool) -> Taps:
    at = _positions(n, scale, align_corners)
    low = mx.floor(at)
    taps: Taps = []
    for shift in (0, 1, -1, 2):
        near, far = _cubic(mx.abs(at - (low + shift)), -0.75)
        taps.append((_within(low + shift, n), near if shift in (0, 1) else far))
    return taps


def _triangle(distance: mx.array) -> mx.array:
    return mx.maximum(1 - distance, 0.0)


def _wide_cubic(distance: mx.array) -> mx.array:
    near, far = _cubic(distance, -0.5)
    return mx.where(distance <= 1, near, mx.where(distance <= 2, far, 0.0))


def _smoothed_taps(n: int, scale: float, kernel: Callable[[mx.array], mx.array], radius: float) -> Taps:
    """Taps of a kernel that grows with the step between outputs, so that nothing between them is skipped."""
    at = _positions(n, scale, False)
    stretch = max(1 / scale, 1.0)
    reach = math.ceil(radius * stretch)
    found: Taps = []
    for shift in range(-reach, reach + 1):
        place = mx.floor(at) + shift
        weight = kernel(mx.abs(at - place) / stretch)
        found.append((place, mx.where((place >= 0) & (place < n), weight, 0.0)))
    total = sum((weight for _, weight in found), start=mx.zeros_like(at))
    total = mx.where(total > 0, total, 1.0)
    return [(_within(place, n), weight / total) for place, weight in found]


def _resampled(x: mx.array, scales: tuple[float, ...], taps: Callable[[int, float], Taps]) -> mx.array:
    """Axis by axis, the sum of taps times their weights."""
    for axis, scale in enumerate(scales, 1):
        shape = (-1, *(1,) * (x.ndim - 1 - axis))
        parts = [mx.take(x, at, axis=axis) * weight.reshape(shape) for at, weight in taps(x.shape[axis], scale)]
        x = sum(parts[1:], start=parts[0])
    return x


def _check(x: mx.array, scale_factor: tuple[float, ...]) -> None:
    if x.ndim - 2 != len(scale_factor):
        raise ValueError("A scale needs to be provided for each spatial dimension")


def _check_corners(align_corners: bool, antialias: bool) -> None:
    if antialias and align_corners:
        raise ValueError(
            "[Upsample] antialias=True with align_corners=True is not supported. Use align_corners=False for "
            "antialiased interpolation."
        )


def upsample_nearest(x: mx.array, scale_factor: tuple[float, ...]) -> mx.array:
    """The nearest input for each output."""
    _check(x, scale_factor)
    for axis, scale in enumerate(scale_factor, 1):
        if int(scale) == scale:
            x = mx.repeat(x, int(scale), axis=axis)
        else:
            x = mx.take(x, _nearest(x.shape[axis], scale), axis=axis)
    return x


def upsample_linear(
    x: mx.array, scale_factor: tuple[float, ...], align_corners: bool = False, antialias: bool = False
) -> mx.array:
    """Straight lines between neighbours."""
    _check(x, scale_factor)
    _check_corners(align_corners, antialias)
    if antialias:
        return _resampled(x, scale_factor, lambda n, scale: _smoothed_taps(n, scale, _triangle, 1.0))
    return _resampled(x, scale_factor, lambda n, scale: _linear_taps(n, scale, align_corners))


def upsample_cubic(
    x: mx.array, scale_factor: tuple[float, ...], align_corners: bool = False, antialias: bool = False
) -> mx.array:
    """Cubic curves through neighbours."""
    _check(x, scale_factor)
    _check_corners(align_corners, antialias)
    if antialias:
        return _resampled(x, scale_factor, lambda n, scale: _smoothed_taps(n, scale, _wide_cubic, 2.0))
    return _resampled(x, scale_factor, lambda n, scale: _cubic_taps(n, scale, align_corners))


class Upsample(Module):
    """An input (N, …, C) scaled by a factor, or by one for each axis; "nearest", "linear" or "cubic".

    >>> nn.Upsample(2)(mx.array([[[1.0], [2.0]]])).flatten()
    array([1, 1, 2, 2], dtype=float32)
    """

    def __init__(
        self, scale_factor: Any, mode: str = "nearest", align_corners: bool = False, antialias: bool = False
    ) -> None:
        super().__init__()
        if mode not in ("nearest", "linear", "cubic"):
            raise ValueError(f"[Upsample] Got unsupported upsampling algorithm: {mode}")
        if antialias and mode == "nearest":
            raise ValueError("[Upsample] Antialiasing is not supported for nearest neighbor upsampling")
        _check_corners(align_corners, antialias)
        several = isinstance(scale_factor, (list, tuple))
        self.scale_factor = tuple(map(float, scale_factor)) if several else float(scale_factor)
        self.mode, self.align_corners, self.antialias = mode, align_corners, antialias

    def _extra_repr(self) -> str:
        smooth = ", antialias=True" if self.antialias else ""
        return f"scale_factor={self.scale_factor}, mode={self.mode!r}, align_corners={self.align_corners}{smooth}"

    def __call__(self, x: mx.array) -> mx.array:
        axes = x.ndim - 2
        if axes <= 0:
            raise ValueError(
                "[Upsample] The input should have at least 1 spatial dimension which means it should be at least 3D "
                f"but {x.ndim}D was provided"
            )
        scales = self.scale_factor if isinstance(self.scale_factor, tuple) else (self.scale_factor,) * axes
        if len(scales) != axes:
            raise ValueError(
                f"[Upsample] One scale per spatial dimension is required but scale_factor={scales} and the number of "
                f"spatial dimensions were {axes}"
            )
        if self.mode == "nearest":
            return upsample_nearest(x, scales)
        resample = upsample_linear if self.mode == "linear" else upsample_cubic
        return resample(x, scales, self.align_corners, self.antialias)
