"""Products of matrices, Blockwise, and linear algebra."""

from __future__ import annotations

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.tensor import math as ptm

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import converts
from weft.frontends.pytensor.values import Value, to_array
from weft.frontends.pytensor.versions import found


@converts(ptm.Dot)
def dot(op: Any, node: Apply, x: Value, y: Value) -> array:
    """The product of two matrices, or of vectors with them."""
    dtype = node.outputs[0].type.dtype
    x, y = to_array(x, dtype), to_array(y, dtype)
    if x.shape[-1] != y.shape[-2 if y.ndim > 1 else 0]:
        raise ValueError(f"shapes {x.shape} and {y.shape} are not aligned: {x.shape[-1]} and {y.shape[0]} differ")
    return product(x, y)


def product(x: array, y: array) -> array:
    """matmul, also of integers."""
    if x.dtype.is_inexact:
        return mx.matmul(x, y)
    left = x[..., None] if y.ndim == 1 else x[..., :, None]
    return mx.sum(left * y if y.ndim > 1 else x * y, axis=-2 if y.ndim > 1 else -1).astype(x.dtype)


@converts(*found("tensor.blas", "BatchedDot"))
def batched_dot(op: Any, node: Apply, x: Value, y: Value) -> array:
    dtype = node.outputs[0].type.dtype
    return mx.matmul(to_array(x, dtype), to_array(y, dtype))
