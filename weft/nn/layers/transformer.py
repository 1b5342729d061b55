"""Attention, and the blocks of transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.nn.layers.activations import relu
from weft.nn.layers.base import Module
from weft.nn.layers.dropout import Dropout
from weft.nn.layers.linear import Linear
from weft.nn.layers.normalization import LayerNorm
from weft.nn.utils import checkpoint as checkpointed

Activation = Callable[[Any], Any]


class MultiHeadAttention(Module):
    """Attention of `num_heads` heads over (N, T, dims), with learnt projections before and after."""

    def __init__(
        self,
        dims: int,
        num_heads: int,
        query_input_dims: int | None = None,
        key_input_dims: int | None = None,
        value_input_dims: int | None = None,
        value_dims: int | None = None,
        value_output_dims: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if dims % num_heads:
            raise ValueError(
                f"The input feature dimensions should be divisible by the number of heads ({dims} % {num_heads}) != 0"
            )
        keys, values = key_input_dims or dims, value_dims or dims
        self.num_heads = num_heads
        self.query_proj = Linear(query_input_dims or dims, dims, bias=bias)
        self.key_proj = Linear(keys, dims, bias=bias)
        self.value_proj = Linear(value_input_dims or keys, values, bias=bias)
        self.out_proj = Linear(values, value_output_dims or dims, bias=bias)

    def _heads(self, x: mx.array) -> mx.array:
        return mx.unflatten(x, -1, (self.num_heads, -1)).swapaxes(1, 2)

    def __call__(self, queries: mx.array, keys: mx.array, values: mx.array, mask: Any = None) -> mx.array:
        q, k = self._heads(self.query_proj(queries)), self._heads(self.key_proj(keys))
        v = self._heads(self.value_proj(values))
        seen = mx.fast.scaled_dot_product_attention(q, k, v, scale=math.sqrt(1 / q.shape[-1]), mask=mask)
        return self.out_proj(seen.swapaxes(1, 2).flatten(-2, -1))

    @staticmethod
    def create_additive_causal_mask(N: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        """(N, N): 0 up to the diagonal, the smallest number of the dtype above it."""
        place = mx.arange(N)
        return (mx.expand_dims(place, -1) < place).astype(dtype) * mx.finfo(dtype).min


class _Layer(Module):
    """Sublayers with residuals; normed before each of them, or after."""

    def _residual(self, x: mx.array, norm: Module, sublayer: Callable[[mx.array], mx.array]) -> mx.array:
        return x + sublayer(norm(x)) if self.norm_first else norm(x + sublayer(x))

    def _mlp(self, x: mx.array, dropout: Module) -> mx.array:
        return self.linear2(dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention, then a network of two layers for each position."""

    def __init__(
        self,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Activation = relu,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        width = mlp_dims or dims * 4
        self.attention = MultiHeadAttention(dims, num_heads)
        self.ln1, self.ln2 = LayerNorm(dims), LayerNorm(dims)
        self.linear1, self.linear2 = Linear(dims, width), Linear(width, dims)
        self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout)
        self.activation, self.norm_first = activation, norm_first

    def __call__(self, x: mx.array, mask: Any) -> mx.array:
        x = self._residual(x, self.ln1, lambda y: self.dropout1(self.attention(y, y, y, mask)))
        return self._residual(x, self.ln2, lambda y: self._mlp(y, self.dropout2))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to the `memory` of an encoder, then a network of two layers for each position."""

    def __init__(
        self,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Activation = relu,
        norm_first: bool = True,
    ) -> None:
        super().__init__()
        width = mlp_dims or dims * 4
        self.self_attention = MultiHeadAttention(dims, num_heads)
        self.cross_attention = MultiHeadAttention(dims, num_heads)
        self.ln1, self.ln2, self.ln3 = LayerNorm(dims), LayerNorm(dims), LayerNorm(dims)
        self.linear1, self.linear2 = Linear(dims, width), Linear(width, dims)
        self.dropout1, self.dropout2, self.dropout3 = Dropout(dropout), Dropout(dropout), Dropout(dropout)
        self.activation, self.norm_first = activation, norm_first

    def __call__(self, x: mx.array, memory: mx.array, x_mask: Any, memory_mask: Any) -> mx.array:
        x = self._residual(x, self.ln1, lambda y: self.dropout1(self.self_attention(y, y, y, x_mask)))
        x = self._residual(x, self.ln2, lambda y: self.dropout2(self.cross_attention(y, memory, memory, memory_mask)))
        return self._residual(x, self.ln3, lambda y: self._mlp(y, self.dropout3))


class _Stack(Module):
    def _through(self, x: mx.array, *rest: Any) -> mx.array:
        for layer in self.layers:
            x = (checkpointed(layer) if self.checkpoint else layer)(x, *rest)
        return self.ln(x)


class TransformerEncoder(_Stack):
    """Encoder layers, one after the other, and a norm."""

    def __init__(
        self,
        num_layers: int,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Activation = relu,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.layers = [
            TransformerEncoderLayer(dims, num_heads, mlp_dims, dropout, activation, norm_first)
            for _ in range(num_layers)
        ]
        self.ln = LayerNorm(dims)
        self.checkpoint = checkpoint

    def __call__(self, x: mx.array, mask: Any) -> mx.array:
        return self._through(x, mask)


class TransformerDecoder(_Stack):
    """Decoder layers, one after the other, and a norm."""

    def __init__(
        self,
        num_layers: int,
        dims: int,
        num_heads: int,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Activation = relu,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.layers = [
            TransformerDecoderLayer(dims, num_heads, mlp_dims, dropout, activation, norm_first)
            for _ in range(num_layers)
        ]
        self.ln = LayerNorm(dims)
        self.checkpoint = checkpoint

    def __call__(self, x: mx.array, memory: mx.array, x_mask: Any, memory_mask: Any) -> mx.array:
        return self._through(x, memory, x_mask, memory_mask)


class Transformer(Module):
    """An encoder and a decoder."""

    def __init__(
        self,
        dims: int = 512,
        num_heads: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        mlp_dims: int | None = None,
        dropout: float = 0.0,
        activation: Activation = relu,
        custom_encoder: Any | None = None,
        custom_decoder: Any | None = None,
        norm_first: bool = True,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        options = (dims, num_heads, mlp_dims, dropout, activation, norm_first, checkpoint)
        self.encoder = TransformerEncoder(num_encoder_layers, *options) if custom_encoder is None else custom_encoder
        self.decoder = TransformerDecoder(num_decoder_layers, *options) if custom_decoder is None else custom_decoder

    def __call__(self, src: mx.array, tgt: mx.array, src_mask: Any, tgt_mask: Any, memory_mask: Any) -> mx.array:
        return self.decoder(tgt, self.encoder(src, src_mask), tgt_mask, memory_mask)
