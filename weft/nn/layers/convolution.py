"""Convolutions over sequences (N, L, C), images (N, H, W, C) and volumes (N, D, H, W, C)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

import weft.core as mx
from weft.nn.layers.base import Module

Sizes = int | tuple[int, ...]


class _Convolution(Module):
    """What convolutions of all ranks share; `_apply` is the name of the function in `mx`."""

    _rank: ClassVar[int]
    _apply: ClassVar[str]

    def _build(self, inputs: int, outputs: int, kernel_size: Sizes, groups: int, bias: bool) -> None:
        if inputs % groups:
            raise ValueError(
                f"The number of input channels ({inputs}) must be divisible by the number of groups ({groups})"
            )
        kernel = (kernel_size,) * self._rank if isinstance(kernel_size, (int, np.integer)) else tuple(kernel_size)
        scale = math.sqrt(1 / (inputs // groups * math.prod(kernel)))
        self.weight = mx.random.uniform(-scale, scale, (outputs, *kernel, inputs // groups))
        if bias:
            self.bias = mx.zeros((outputs,))

    def _spread(self, size: Sizes) -> Sizes:
        """One size for each axis; sequences have a single one."""
        return (size,) * self._rank if self._rank > 1 and isinstance(size, (int, np.integer)) else size

    def _kernel(self) -> Any:
        sizes = self.weight.shape[1:-1]
        return sizes[0] if self._rank == 1 else sizes

    def _described(self, *names: str) -> str:
        inputs = self.weight.shape[-1] * getattr(self, "groups", 1)
        options = "".join(f", {name}={getattr(self, name)}" for name in names)
        return f"{inputs}, {self.weight.shape[0]}, kernel_size={self._kernel()}{options}, bias={'bias' in self}"

    def _convolved(self, x: mx.array, *options: Any) -> mx.array:
        function: Callable[..., mx.array] = getattr(mx, self._apply)
        made = function(x, self.weight, *options)
        return made + self.bias if "bias" in self else made


class _Grouped(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._build(in_channels, out_channels, kernel_size, groups, bias)
        self.padding, self.stride = self._spread(padding), self._spread(stride)
        self.dilation, self.groups = dilation, groups

    def _extra_repr(self) -> str:
        return self._described("stride", "padding", "dilation", "groups")

    def __call__(self, x: mx.array) -> mx.array:
        return self._convolved(x, self.stride, self.padding, self.dilation, self.groups)


class Conv1d(_Grouped):
    """A convolution over (N, L, C)."""

    _rank, _apply = 1, "conv1d"


class Conv2d(_Grouped):
    """A convolution over (N, H, W, C)."""

    _rank, _apply = 2, "conv2d"


class Conv3d(_Convolution):
    """A convolution over (N, D, H, W, C)."""

    _rank, _apply = 3, "conv3d"

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._build(in_channels, out_channels, kernel_size, 1, bias)
        self.padding, self.stride, self.dilation = self._spread(padding), self._spread(stride), dilation

    def _extra_repr(self) -> str:
        return self._described("stride", "padding", "dilation")

    def __call__(self, x: mx.array) -> mx.array:
        return self._convolved(x, self.stride, self.padding, self.dilation)
