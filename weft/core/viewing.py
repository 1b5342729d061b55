"""`view`: the bytes of an array read as another dtype."""

from __future__ import annotations

from typing import Any

from weft.core._common import ArrayLike, array, bind, to_node, wrap
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.bits import Bitcast, Reinterpret

Stream = Any


def view(a: ArrayLike, dtype: Dtype, stream: Stream = None) -> array:
    """The bytes of a read as another dtype. A dtype of another size changes the size of the last axis.

    >>> view(array([1.0, 2.0]), uint32)
    array([1065353216, 1073741824], dtype=uint32)
    """
    if not isinstance(dtype, Dtype):
        raise TypeError(f"[view] dtype must be a Weft dtype such as float32; got {dtype!r}.")
    x = to_node(a)
    old, new = x.dtype.size, dtype.size
    if old != new and x.ndim == 0:
        raise ValueError(
            f"[view] a 0-d array of {x.dtype.name} has {old} bytes and cannot be read as {dtype.name}, which has {new}."
        )
    if old < new and x.shape[-1] % (new // old) != 0:
        raise ValueError(
            f"[view] {x.shape[-1]} elements of {old} bytes along the last axis are no whole number of {dtype.name}, "
            f"which has {new} bytes."
        )
    return wrap(_reinterpreted(x, dtype))


def _reinterpreted(x: Node, dtype: Dtype) -> Node:
    """Elementwise, which fuses, where elements stay of one size; else a copy."""
    if x.dtype is dtype:
        return x
    return bind(Bitcast(dtype) if x.dtype.size == dtype.size else Reinterpret(dtype), x)
