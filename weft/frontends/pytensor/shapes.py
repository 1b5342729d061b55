"""Shapes, and arrays that are made or put together: Alloc, Reshape, Join, Split, ARange, Eye, diagonals."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from pytensor.compile.ops import DeepCopyOp, TypeCastingOp
from pytensor.graph.basic import Apply
from pytensor.tensor import basic as ptb
from pytensor.tensor.shape import Reshape, Shape, Shape_i, SpecifyShape

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.convert import converts
from weft.frontends.pytensor.values import (
    Known,
    NotConverted,
    Value,
    cast,
    known_size,
    known_sizes,
    number_of,
    size,
    sizes,
    to_array,
    vector,
    weft_dtype,
)


def _all(node: Apply) -> Iterable[int]:
    return range(len(node.inputs))


def _rest(node: Apply) -> Iterable[int]:
    return range(1, len(node.inputs))


def _shape_of(x: Value) -> tuple[Any, ...]:
    return np.shape(x.value) if isinstance(x, Known) else x.shape


@converts(Shape)
def shape(op: Any, node: Apply, x: Value) -> Known:
    return known_sizes(_shape_of(x))


@converts(Shape_i)
def shape_i(op: Any, node: Apply, x: Value) -> Known:
    return known_size(_shape_of(x)[op.i])


@converts(DeepCopyOp, TypeCastingOp, lists=True)
def same(op: Any, node: Apply, x: Value) -> Value:
    """Values do not change in place here, so a copy is the value itself."""
    return x


@converts(SpecifyShape, known=_rest)
def specify_shape(op: Any, node: Apply, x: Value, *wanted: Value) -> Value:
    """The array itself; an error if it has another shape."""
    for axis, (n, given) in enumerate(zip(_shape_of(x), wanted, strict=True)):
        if isinstance(given, Known) and given.value is None:
            continue
        if n != size(given):
            raise AssertionError(f"SpecifyShape: dim {axis} of input has shape {n}, expected {size(given)}.")
    return x


@converts(Reshape, known=lambda node: (1,))
def reshape(op: Any, node: Apply, x: Value, wanted: Value) -> array:
    x, new = to_array(x), list(vector(wanted))
    if sum(1 for n in new if n == -1) == 1:
        rest = math.prod([n for n in new if n != -1])
        total = math.prod(x.shape)
        new[new.index(-1)] = total // rest if rest != 0 else 0
    return x.reshape(new)


@converts(ptb.Alloc, known=_rest)
def alloc(op: Any, node: Apply, x: Value, *wanted: Value) -> array:
    """A value in all elements of a new array. Only axes that PyTensor knows to have length 1 are repeated."""
    x, new = to_array(x), sizes(wanted)
    first = len(new) - x.ndim
    for axis, n in enumerate(x.shape):
        is_one = node.inputs[0].type.shape[axis] == 1
        if not is_one and n == 1 and new[first + axis] != 1:
            raise ValueError(
                "Runtime broadcasting not allowed. Alloc's value has a dimension of length 1 that was not marked as "
                "broadcastable."
            )
    return mx.broadcast_to(x, new)


@converts(ptb.AllocEmpty, known=_all)
def alloc_empty(op: Any, node: Apply, *wanted: Value) -> array:
    return mx.zeros(sizes(wanted), weft_dtype(op.dtype))


@converts(ptb.MakeVector)
def make_vector(op: Any, node: Apply, *values: Value) -> array:
    if not values:
        return mx.zeros((0,), weft_dtype(op.dtype))
    return mx.stack([to_array(x, op.dtype).reshape(()) for x in values])


@converts(ptb.TensorFromScalar, ptb.ScalarFromTensor)
def between(op: Any, node: Apply, x: Value) -> Value:
    """A scalar is an array without axes."""
    return to_array(x).reshape(())


def _known_of_join(node: Apply) -> Iterable[int]:
    return () if hasattr(node.op, "axis") else (0,)


@converts(ptb.Join, known=_known_of_join)
def join(op: Any, node: Apply, *given: Value) -> array:
    axis = op.axis if hasattr(op, "axis") else size(given[0])
    parts = given if hasattr(op, "axis") else given[1:]
    dtype = node.outputs[0].type.dtype
    return mx.concatenate([to_array(x, dtype) for x in parts], axis=int(axis))


def _known_of_split(node: Apply) -> Iterable[int]:
    return _rest(node)


@converts(ptb.Split, known=_known_of_split)
def split(op: Any, node: Apply, x: Value, *how: Value) -> list[array]:
    x = to_array(x)
    axis = int(op.axis) if hasattr(op, "axis") else int(size(how[0]))
    lengths = vector(how[-1])
    total = x.shape[axis]
    if len(lengths) != op.len_splits:
        raise ValueError("Length of splits is not equal to n_splits")
    if any(n < 0 for n in lengths):
        raise ValueError("Split sizes cannot be negative")
    if sum(lengths) != total:
        raise ValueError(f"Split sizes do not sum to the input length on the axis: {total}")
    made: list[array] = []
    start: Any = 0
    for n in lengths:
        made.append(x[(slice(None),) * (axis % x.ndim) + (slice(start, start + n),)])
        start = start + n
    return made


def _refuses_arange(node: Apply) -> str | None:
    return None


@converts(ptb.ARange, known=_all, refuses=_refuses_arange)
def arange(op: Any, node: Apply, start: Value, stop: Value, step: Value) -> array:
    """Numbers at equal distances: start + i * step, as NumPy computes them."""
    if np.dtype(op.dtype).kind == "f":
        numbers = [np.asarray(to_known(x).numbers()).item() for x in (start, stop, step)]
        return to_array(Known(np.arange(*numbers, dtype=op.dtype)))
    first, last, by = size(start), size(stop), size(step)
    by = int(by)
    if by == 0:
        raise ZeroDivisionError("Maximum allowed size exceeded")
    count = (last - first + (by - (1 if by > 0 else -1))) // by
    if count < 0:
        count = 0
    numbers_ = mx.arange(count, dtype=mx.int64)
    return cast(numbers_ * mx.array(by, mx.int64) + number_of(first), op.dtype)


def to_known(x: Value) -> Known:
    if not isinstance(x, Known):
        raise NotConverted("a number that depends on data")
    return x


@converts(ptb.Eye, known=_all)
def eye(op: Any, node: Apply, rows: Value, columns: Value, offset: Value) -> array:
    n, m, k = size(rows), size(columns), int(size(offset))
    across = mx.arange(m, dtype=mx.int64)[None, :]
    down = mx.arange(n, dtype=mx.int64)[:, None]
    return cast(across - down == mx.array(k, mx.int64), op.dtype)


@converts(ptb.ExtractDiag)
def extract_diag(op: Any, node: Apply, x: Value) -> array:
    return mx.diagonal(to_array(x), offset=op.offset, axis1=op.axis1, axis2=op.axis2)
