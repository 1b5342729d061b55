"""Transposed convolutions: what convolutions of the same options shrink, these enlarge."""

from __future__ import annotations

import weft.core as mx
from weft.nn.layers.convolution import Sizes, _Convolution


class _Transposed(_Convolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        output_padding: Sizes = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self._build(in_channels, out_channels, kernel_size, 1, bias)
        self.padding, self.stride = self._spread(padding), self._spread(stride)
        self.dilation, self.output_padding = dilation, self._spread(output_padding)

    def _extra_repr(self) -> str:
        return self._described("stride", "padding", "dilation", "output_padding")

    def __call__(self, x: mx.array) -> mx.array:
        return self._convolved(x, self.stride, self.padding, self.dilation, self.output_padding)


class ConvTranspose1d(_Transposed):
    """A transposed convolution over (N, L, C)."""

    _rank, _apply = 1, "conv_transpose1d"


class ConvTranspose2d(_Transposed):
    """A transposed convolution over (N, H, W, C)."""

    _rank, _apply = 2, "conv_transpose2d"


class ConvTranspose3d(_Transposed):
    """A transposed convolution over (N, D, H, W, C)."""

    _rank, _apply = 3, "conv_transpose3d"
