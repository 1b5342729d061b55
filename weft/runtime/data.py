"""Where an array's elements are: a `Buffer` is a part of a `Storage` seen with strides; NumPy can look at it and fill
it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.dtypes import Dtype
from weft.runtime.buffer import Storage, allocate


class Buffer:
    """Elements at `address` (that of index (0, …, 0)) in a storage that it keeps alive. `strides` count elements; None
    means row-major."""

    __slots__ = ("address", "storage", "strides")

    def __init__(self, storage: Storage, address: int, strides: tuple[int, ...] | None = None) -> None:
        self.storage, self.address, self.strides = storage, address, strides


class _Exported:
    """What NumPy reads a view's memory from, and what keeps that memory alive."""

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, buffer: Buffer, interface: dict[str, Any]) -> None:
        self.buffer, self.__array_interface__ = buffer, interface


def numpy_view(buffer: Buffer, shape: Sequence[int], dtype: Dtype) -> np.ndarray:
    """The elements as NumPy sees them, without a copy; the view keeps the storage alive."""
    if 0 in shape:
        return np.empty(tuple(shape), dtype.np)
    plain = np.dtype(f"u{dtype.size}") if dtype.np.kind == "V" else dtype.np  # NumPy does not know bfloat16 by name
    interface = {
        "version": 3,
        "shape": tuple(shape),
        "typestr": plain.str,
        "data": (buffer.address, False),
        "strides": None if buffer.strides is None else tuple(s * dtype.size for s in buffer.strides),
    }
    return np.asarray(_Exported(buffer, interface)).view(dtype.np)


def to_buffer(values: np.ndarray) -> Buffer:
    """A copy of the elements, in memory of ours, row-major."""
    flat = np.ascontiguousarray(values)
    storage = allocate(flat.nbytes)
    ctypes.memmove(storage.address, flat.ctypes.data, flat.nbytes)
    return Buffer(storage, storage.address)
