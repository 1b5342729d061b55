"""Vectors for tokens."""

from __future__ import annotations

import math

import weft.core as mx
from weft.nn.layers.base import Module
from weft.nn.layers.quantized import QuantizedEmbedding


class Embedding(Module):
    """A learnt vector of `dims` numbers for each of `num_embeddings` tokens.

    >>> nn.Embedding(10, 4)(mx.array([[1, 2, 3]])).shape
    (1, 3, 4)
    """

    def __init__(self, num_embeddings: int, dims: int) -> None:
        super().__init__()
        self.weight = mx.random.normal((num_embeddings, dims), scale=math.sqrt(1 / dims))

    def _extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"

    def __call__(self, x: mx.array) -> mx.array:
        return self.weight[x]

    def as_linear(self, x: mx.array) -> mx.array:
        """The scores of all tokens: x times the transposed table."""
        return x @ self.weight.T

    def to_quantized(
        self, group_size: int | None = None, bits: int | None = None, mode: str = "affine", quantize_input: bool = False
    ) -> QuantizedEmbedding:
        """The same table with quantized numbers."""
        if quantize_input:
            raise ValueError("Quantized input is not supported.")
        return QuantizedEmbedding.from_embedding(self, group_size, bits, mode)
