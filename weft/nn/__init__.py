"""Neural networks: the names of `mlx.nn`.

>>> import weft.core as mx
>>> import weft.nn as nn
>>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
>>> model(mx.ones((4, 2))).shape
(4, 1)
"""

from __future__ import annotations

from weft.nn import init, layers, losses
from weft.nn.layers import *  # noqa: F403  (all layers; weft/nn/layers/__init__.py is the list)
from weft.nn.layers import (
    activations,
    base,
    containers,
    convolution,
    convolution_transpose,
    distributed,
    dropout,
    embedding,
    linear,
    normalization,
    pooling,
    positional_encoding,
    quantized,
    recurrent,
    transformer,
    upsample,
)
from weft.nn.utils import average_gradients, value_and_grad

__all__ = [
    "activations", "average_gradients", "base", "containers", "convolution", "convolution_transpose", "distributed",
    "dropout", "embedding", "init", "linear", "losses", "normalization", "pooling", "positional_encoding",
    "quantized", "recurrent", "transformer", "upsample", "value_and_grad",
]  # fmt: skip
__all__ += layers.__all__
