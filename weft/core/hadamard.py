"""The Walsh-Hadamard transform: products with matrices of 1 and -1 whose rows are orthogonal.

The matrix of size m * 2**k is a Kronecker product, so the transform is one product with a small matrix for each factor.
Sixteen rows are few enough that arithmetic stays cheap, and many enough that memory is walked seldom.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.core._common import ArrayLike, array, astype, reshape, scalar_node, to_node, wrap
from weft.core.linear import matmul
from weft.dtypes import Dtype
from weft.graph.dims import prod

Stream = Any

_BITS = 4
"""Factors of two that one product takes care of."""

_ROWS = {
    12: "bff 2aa ec3 896 fb0 a25 cec 989 c3b 962 f0e a58",
    20: "84336 4238b 211d5 108fa 0866d 7c139 ba29c d914e e88a7 f0653 35a0f 1ad17 8d49b c685d 6343e 49a10 a0d08 54484 "
    "2e042 93021",
    28: "818694c 41c14a6 20e2a13 1071549 0838ae4 041e532 030d299 3d019d2 1e82ca9 8e43654 c621b2a e210d95 f00a6ca "
    "7807325 5b3201e ac9900f 564c847 ab24463 d590271 6ac8178 b4640bc 66b70c0 b35b820 d8adc10 6d54e08 37a8704 9ad4382 "
    "cd6a181",
}
"""Hadamard matrices that are no powers of two, those of MLX: a bit of a row is 1 for 1 and 0 for -1."""


def hadamard_transform(a: ArrayLike, scale: float | None = None, stream: Stream = None) -> array:
    """The product of a Hadamard matrix with the last axis, times `scale` (1 / sqrt(n) by default, so that it is its own
    inverse where n is a power of two). The size n of the axis is 2**k, or 12, 20 or 28 times that.

    >>> hadamard_transform(array([1.0, 2.0, 3.0, 4.0]), scale=1.0)
    array([10, -2, -4, 0], dtype=float32)
    """
    x = to_node(a)
    x = astype(x, dt.inexact_of(x.dtype))
    if x.ndim and prod(x.shape) == 0:
        raise ValueError(f"[hadamard_transform] needs elements; got shape {x.shape}.")
    n = x.shape[-1].__index__() if x.ndim else 1
    factors = _factors(n)
    wide = dt.float32 if x.dtype in dt.HALVES else x.dtype
    made, rest = wrap(astype(x, wide)), n
    for size in factors:
        rest //= size
        made = _along(made, _matrix(size), rest, wide)
    out = reshape(made._node, x.shape)
    out = out * scalar_node(float(n**-0.5 if scale is None else scale), out.kind)
    return wrap(astype(out, x.dtype))


def _factors(n: int) -> list[int]:
    """Sizes of matrices whose Kronecker product is the one for n."""
    twos = (n & -n).bit_length() - 1
    odd = n >> twos
    first = [odd << 2] if odd << 2 in _ROWS and twos >= 2 else []
    if odd != 1 and not first:
        raise ValueError(f"[hadamard_transform] sizes are m * 2**k with m in (1, 12, 20, 28); got {n}.")
    twos -= 2 if first else 0
    while twos > 0:
        first.append(1 << min(twos, _BITS))
        twos -= _BITS
    return first


@functools.cache
def _matrix(n: int) -> np.ndarray:
    if n not in _ROWS:
        half = np.ones((1, 1)) if n == 2 else _matrix(n // 2)
        return np.kron(half, [[1.0, 1.0], [1.0, -1.0]])
    return np.array([[1.0 if bit == "1" else -1.0 for bit in f"{int(row, 16):0{n}b}"] for row in _ROWS[n].split()])


def _along(x: array, matrix: np.ndarray, rest: int, dtype: Dtype) -> array:
    """The product of a matrix with the axis of its size, of which `rest` elements are parts of later factors."""
    n = len(matrix)
    count = prod(x._node.shape) // (n * rest)
    if rest == 1:
        return matmul(wrap(reshape(x._node, (count, n))), array(matrix.T, dtype))
    return matmul(array(matrix, dtype), wrap(reshape(x._node, (count, n, rest))))
