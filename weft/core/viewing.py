"""`view`: the bytes of an array read as another dtype, the lowest byte of an element first.

A dtype of the same size is one primitive; another size changes the last axis, and is shifts that fuse with what stands
around them.
"""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.core._common import ArrayLike, array, astype, bind, broadcast_node, reshape, scalar_node, to_node, wrap
from weft.core.shaping import slice_axis
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives import elementwise as e
from weft.primitives.bits import UNSIGNED, Bitcast, Cartesian
from weft.primitives.creation import Iota

Stream = Any


def view(a: ArrayLike, dtype: Dtype, stream: Stream = None) -> array:
    """The bytes of a read as another dtype. A dtype of another size changes the size of the last axis.

    >>> view(array([1.0, 2.0]), uint32)
    array([1065353216, 1073741824], dtype=uint32)
    """
    if not isinstance(dtype, Dtype):
        raise TypeError(f"[view] dtype must be a Weft dtype such as float32; got {dtype!r}.")
    return wrap(_view(to_node(a), dtype))


def _view(x: Node, dtype: Dtype) -> Node:
    old, new = x.dtype.size, dtype.size
    if old == new:
        return x if x.dtype is dtype else bind(Bitcast(dtype), x)
    if x.ndim == 0:
        raise ValueError(
            f"[view] a 0-d array of {x.dtype.name} has {old} bytes and cannot be read as {dtype.name}, which has {new}."
        )
    if old > new:
        return _split(x, dtype)
    n = x.shape[-1]
    if n % (new // old) != 0:
        raise ValueError(
            f"[view] {n} elements of {old} bytes along the last axis are no whole number of {dtype.name}, "
            f"which has {new} bytes."
        )
    return _join(x, dtype)


def _split(x: Node, dtype: Dtype) -> Node:
    """Each element as several smaller ones, lowest bytes first."""
    if x.dtype is dt.complex128:
        return _view(_parts(x), dtype)
    whole, part = UNSIGNED[x.dtype.size], UNSIGNED[dtype.size]
    count = x.dtype.size // dtype.size
    wide = (*x.shape, count)
    words = broadcast_node(reshape(_view(x, whole), (*x.shape, 1)), wide)
    place = astype(bind(Iota((count,))), whole)
    shifts = broadcast_node(place * scalar_node(dtype.bits, place.kind), wide)
    return _view(_flat(astype(bind(e.RightShift(), words, shifts), part)), dtype)


def _parts(x: Node) -> Node:
    """Complex numbers as real and imaginary parts, one after the other."""
    wide = (*x.shape, 2)
    column = reshape(x, (*x.shape, 1))
    second = broadcast_node(astype(bind(Iota((2,))), dt.bool_), wide)
    return _flat(e.select(second, broadcast_node(bind(e.Imag(), column), wide), broadcast_node(e.real(column), wide)))


def _flat(x: Node) -> Node:
    """The last two axes as one."""
    return reshape(x, (*x.shape[:-2], x.shape[-2] * x.shape[-1]))


def _join(x: Node, dtype: Dtype) -> Node:
    """Several elements as one larger one, the first in its lowest bytes."""
    if dtype is dt.complex128:
        return bind(Cartesian(), *_every(_view(x, dt.float64), 2))
    whole, part = UNSIGNED[dtype.size], UNSIGNED[x.dtype.size]
    words = None
    for k, piece in enumerate(_every(_view(x, part), dtype.size // x.dtype.size)):
        word = astype(piece, whole)
        word = bind(e.LeftShift(), word, scalar_node(k * part.bits, word.kind))
        words = word if words is None else bind(e.BitwiseOr(), words, word)
    assert words is not None
    return _view(words, dtype)


def _every(x: Node, step: int) -> list[Node]:
    """Elements 0, step, 2 step, … of the last axis, then those that follow each, and so on."""
    size: Any = x.shape[-1] // step
    return [slice_axis(x, x.ndim - 1, k, size, step) for k in range(step)]
