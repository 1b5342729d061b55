"""Run a function of the vector math library over NumPy arrays: what its tests and the accuracy table do, without the
rest of Weft."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.dtypes import Dtype
from weft.llvm.builder import PTR, Builder
from weft.llvm.engine import Source, load
from weft.targets.cpu.features import features

_KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def evaluate(function: Callable[..., Any], *arrays: np.ndarray, lanes: int = LANES) -> np.ndarray:
    """`function` of arrays of one shape and dtype, with `lanes` elements at a time."""
    dtype = dt.from_numpy(arrays[0].dtype)
    size = -(-arrays[0].size // lanes) * lanes
    operands = [np.zeros(size, dtype.np) for _ in range(len(arrays) + 1)]
    for operand, array in zip(operands, arrays, strict=False):
        operand[: array.size] = array.ravel()
    words = (ctypes.c_int64 * len(operands))(*(operand.ctypes.data for operand in operands))
    (code,) = load([source_of(function, dtype, len(arrays), lanes)])
    _KERNEL(code.address)(words, 0, size, None)
    return operands[-1][: arrays[0].size].reshape(arrays[0].shape)


def source_of(function: Callable[..., Any], dtype: Dtype, arity: int, lanes: int) -> Source:
    """The kernel that applies `function` to `arity` arrays; args: their addresses, then that of the result."""
    name = f"math_{function.__name__}"
    key = f"{function.__module__}.{function.__name__} {dtype.name} {arity} {lanes}"
    return Source(key, name, lambda: _text(name, function, dtype, arity, lanes))


def _text(name: str, function: Callable[..., Any], dtype: Dtype, arity: int, lanes: int) -> str:
    params = [("args", PTR), ("begin", dt.int64), ("end", dt.int64), ("scratch", PTR)]
    b = Builder(name, params, features(), lanes)
    args, begin, end, _ = b.params
    *operands, result = (b.word(args, i, PTR) for i in range(arity + 1))
    with b.loop(begin, end, lanes) as loop:
        offset = loop.index * dtype.size
        inputs = [b.load(b.gep(operand, offset), dtype) for operand in operands]
        b.store(function(b, *inputs), b.gep(result, offset))
    b.ret()
    return b.module()
