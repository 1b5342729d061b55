"""Pooling: the largest number, or the mean, of each window of a sequence, an image or a volume (N, …, C)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

import weft.core as mx
from weft.nn.layers.base import Module

Sizes = int | tuple[int, ...]


def _windows(x: mx.array, window: list[int], strides: list[int]) -> mx.array:
    """(N, places…, window…, C): a view where windows do not overlap, else a slice of x for each place in a window."""
    if x.ndim != len(window) + 2:
        raise ValueError(
            f"To extract sliding windows the signal must have {len(window)} spatial dimensions, {len(window) + 2} in "
            f"all, but it has {x.ndim}."
        )
    sizes = x.shape[1:-1]
    if all(w == s and n % w == 0 for n, w, s in zip(sizes, window, strides, strict=True)):
        split = [part for n, w in zip(sizes, window, strict=True) for part in (n // w, w)]
        axes = range(1, 2 * len(window) + 1)
        return x.reshape(x.shape[0], *split, x.shape[-1]).transpose(
            0, *axes[::2], *axes[1::2], x.ndim + len(window) - 1
        )
    for axis, (n, w, s) in enumerate(zip(sizes, window, strides, strict=True), 1):
        places = (n - w) // s + 1
        if places <= 0:
            raise ValueError(f"A window of {w} does not fit into an axis of {n}.")
        lead = (slice(None),) * axis
        parts = [x[(*lead, slice(i, i + (places - 1) * s + 1, s))] for i in range(w)]
        # The place in the window goes behind all places and windows so far, before the channels.
        x = mx.stack(parts, axis=-2)
    return x


class _Pool(Module):
    _rank: ClassVar[int]
    _reduce: ClassVar[Callable[..., mx.array]]
    _outside: ClassVar[float]

    def __init__(self, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        super().__init__()
        self._kernel_size = self._sizes("kernel_size", kernel_size)
        self._stride = self._kernel_size if stride is None else self._sizes("stride", stride)
        self._padding = [(n, n) for n in self._sizes("padding", padding)]
        name = type(self).__name__
        for what, values in (("kernel_size", self._kernel_size), ("stride", self._stride)):
            if min(values) <= 0:
                raise ValueError(f"[{name}] '{what}' must be positive but got {tuple(values)}.")
        if min(self._padding)[0] < 0:
            raise ValueError(f"[{name}] 'padding' must be non-negative but got {tuple(n for n, _ in self._padding)}.")

    def _sizes(self, what: str, given: Any) -> list[int]:
        """One size for each axis."""
        sizes = list(given) if isinstance(given, (list, tuple)) else [given] * self._rank
        if len(sizes) != self._rank or not all(isinstance(n, (int, np.integer)) for n in sizes):
            plural = "" if self._rank == 1 else "s"
            raise ValueError(
                f"[{type(self).__name__}] '{what}' must be an integer or a tuple containing {self._rank} "
                f"integer{plural}"
            )
        return sizes

    def _extra_repr(self) -> str:
        padding = tuple(n for n, _ in self._padding)
        return f"kernel_size={tuple(self._kernel_size)}, stride={tuple(self._stride)}, padding={padding}"

    def __call__(self, x: mx.array) -> mx.array:
        if max(self._padding)[0]:
            x = mx.pad(x, [(0, 0), *self._padding, (0, 0)], constant_values=self._outside)
        axes = tuple(range(-self._rank - 1, -1))
        return type(self)._reduce(_windows(x, self._kernel_size, self._stride), axes)


class MaxPool1d(_Pool):
    """The largest number of each window along a sequence (N, L, C)."""

    _rank, _reduce, _outside = 1, mx.max, -math.inf


class MaxPool2d(_Pool):
    """The largest number of each window of an image (N, H, W, C).

    >>> nn.MaxPool2d(2)(mx.arange(16.0).reshape(1, 4, 4, 1)).flatten()
    array([5, 7, 13, 15], dtype=float32)
    """

    _rank, _reduce, _outside = 2, mx.max, -math.inf


class MaxPool3d(_Pool):
    """The largest number of each window of a volume (N, D, H, W, C)."""

    _rank, _reduce, _outside = 3, mx.max, -math.inf


class AvgPool1d(_Pool):
    """The mean of each window along a sequence (N, L, C)."""

    _rank, _reduce, _outside = 1, mx.mean, 0


class AvgPool2d(_Pool):
    """The mean of each window of an image (N, H, W, C)."""

    _rank, _reduce, _outside = 2, mx.mean, 0


class AvgPool3d(_Pool):
    """The mean of each window of a volume (N, D, H, W, C)."""

    _rank, _reduce, _outside = 3, mx.mean, 0
