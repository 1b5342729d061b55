"""Where in a sequence something stands, as numbers."""

from __future__ import annotations

import math
from typing import Any

import weft.core as mx
from weft.nn.layers.base import Module


class RoPE(Module):
    """Rotary positions (`mx.fast.rope`)."""

    def __init__(self, dims: int, traditional: bool = False, base: float = 10000, scale: float = 1.0) -> None:
        super().__init__()
        self.dims, self.traditional, self.base, self.scale = dims, traditional, base, scale

    def _extra_repr(self) -> str:
        return f"{self.dims}, traditional={self.traditional}"

    def __call__(self, x: mx.array, offset: Any = 0) -> mx.array:
        return mx.fast.rope(x, self.dims, traditional=self.traditional, base=self.base, scale=self.scale, offset=offset)


class SinusoidalPositionalEncoding(Module):
    """Sines and cosines of positions at `dims` / 2 frequencies, spaced evenly on a logarithmic scale."""

    def __init__(
        self,
        dims: int,
        min_freq: float = 0.0001,
        max_freq: float = 1,
        scale: float | None = None,
        cos_first: bool = False,
        full_turns: bool = False,
    ) -> None:
        super().__init__()
        if dims <= 0 or dims % 2:
            raise ValueError(f"[SinusoidalPositionalEncoding] dims must be positive and even but got {dims}.")
        half, low, high = dims // 2, math.log(min_freq), math.log(max_freq)
        fraction = mx.array([1.0]) if half == 1 else 1 - mx.arange(half) / (half - 1)
        frequencies = mx.exp(fraction * (high - low) + low)
        self._sigmas = frequencies * (2 * math.pi) if full_turns else frequencies
        self.scale = math.sqrt(2 / dims) if scale is None else scale
        self.cos_first = cos_first

    def __call__(self, x: mx.array) -> mx.array:
        angles = mx.expand_dims(x, -1) * self._sigmas
        parts = [mx.sin(angles), mx.cos(angles)]
        made = mx.concatenate(parts[::-1] if self.cos_first else parts, axis=-1)
        return made if self.scale == 1 else made * self.scale


class ALiBi(Module):
    """Attention scores that fall with the distance, at a slope of its own for each head."""

    @staticmethod
    def create_alibi_matrix(
        q_sequence_length: int, k_sequence_length: int, num_heads: int, offset: int = 0, dtype: mx.Dtype = mx.float32
    ) -> mx.array:
        """What is added to scores: (1, heads, queries, keys)."""
        queries, keys = mx.arange(offset, q_sequence_length), mx.arange(k_sequence_length)
        distance = mx.abs(mx.expand_dims(queries, -1) - keys)
        return (-distance[None, None] * ALiBi.create_alibi_slope(num_heads, dtype)).astype(dtype)

    @staticmethod
    def create_alibi_slope(num_heads: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        """The slope of each head: (heads, 1, 1)."""
        return mx.array(_slopes(num_heads), dtype=dtype).reshape(num_heads, 1, 1)

    def __call__(self, attention_scores: mx.array, offset: int = 0, mask: mx.array | None = None) -> mx.array:
        heads, queries, keys = attention_scores.shape[1:]
        added = self.create_alibi_matrix(queries + offset, keys, heads, offset, attention_scores.dtype)
        return attention_scores + (added if mask is None else added + mask)


def _slopes(heads: int) -> list[float]:
    """Powers of 2^(-8 / heads); for a number of heads that is no power of two, those for the next smaller one, and
    between them every other one of those for the next larger one."""
    below = 1 << (heads.bit_length() - 1)
    first = [2 ** (-8 / below * (i + 1)) for i in range(below)]
    return first if below == heads else first + _slopes(2 * below)[::2][: heads - below]
