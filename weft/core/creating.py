"""Arrays from nothing: constants, ranges, identity matrices."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any

from weft import dtypes as dt
from weft.core._common import ArrayLike, apply, array, astype, bind, broadcast_node, broadcast_shapes, kind_of, scalar_node, to_node, wrap
from weft.core._common import constant as constant_node
from weft.core._common import default_dtype
from weft.dtypes import Dtype
from weft.graph.node import Node, Shape
from weft.primitives import elementwise as e
from weft.primitives.creation import Iota

Stream = Any


def _shape(name: str, shape: int | Sequence[int]) -> Shape:
    sizes = tuple(shape) if isinstance(shape, (list, tuple)) else (shape,)
    for n in sizes:
        if not isinstance(n, int) or isinstance(n, bool):
            raise TypeError(f"[{name}] a shape is an integer or a sequence of integers; got {shape!r}.")
        if type(n) is int and n < 0:
            raise ValueError(f"[{name}] sizes cannot be negative; got {sizes}.")
    return sizes  # type: ignore[return-value]


def full(shape: int | Sequence[int], vals: ArrayLike, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """An array of `shape` filled with `vals` (a number, or an array that is broadcast)."""
    sizes = _shape("full", shape)
    if isinstance(vals, (bool, int, float, complex)):
        return wrap(constant_node(vals, kind_of(sizes, dtype or default_dtype(vals))))
    x = to_node(vals)
    if broadcast_shapes("full", x.shape, sizes) != sizes:
        raise ValueError(f"[full] values of shape {x.shape} do not fit shape {sizes}.")
    return wrap(broadcast_node(astype(x, dtype or x.dtype), sizes))


def zeros(shape: int | Sequence[int], dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """An array of zeros."""
    return wrap(constant_node(0, kind_of(_shape("zeros", shape), dtype or dt.float32)))


def ones(shape: int | Sequence[int], dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """An array of ones."""
    return wrap(constant_node(1, kind_of(_shape("ones", shape), dtype or dt.float32)))


def zeros_like(a: ArrayLike, /, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """Zeros in the shape (and dtype) of another array."""
    x = to_node(a)
    return wrap(constant_node(0, kind_of(x.shape, dtype or x.dtype)))


def ones_like(a: ArrayLike, /, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """Ones in the shape (and dtype) of another array."""
    x = to_node(a)
    return wrap(constant_node(1, kind_of(x.shape, dtype or x.dtype)))


def arange(*bounds: Any, start: Any = None, stop: Any = None, step: Any = None, dtype: Dtype | None = None, stream: Stream = None) -> array:
    """arange(stop), arange(start, stop) or arange(start, stop, step): start, start + step, … below stop."""
    if builtins.len(bounds) > 3:
        raise TypeError(f"[arange] takes at most start, stop and step; got {builtins.len(bounds)} numbers.")
    if builtins.len(bounds) == 1 and stop is None:
        stop = bounds[0]
    else:
        given = list(bounds) + [None] * (3 - builtins.len(bounds))
        start, stop, step = (a if a is not None else b for a, b in zip(given, (start, stop, step), strict=True))
    start, step = 0 if start is None else start, 1 if step is None else step
    for number in (start, stop, step):
        if not isinstance(number, (int, float)):
            raise TypeError(f"[arange] start, stop and step are numbers; got {number!r}.")
    if step == 0 or any(n != n for n in (start, stop, step)) or any(math.isinf(n) for n in (start, stop)):
        raise ValueError(f"[arange] start={start}, stop={stop}, step={step} is no finite range.")
    whole = builtins.all(isinstance(n, int) for n in (start, stop, step))
    dtype = dtype or (dt.int32 if whole else dt.float32)
    size = builtins.max(0, -((start - stop) // step) if whole else math.ceil((stop - start) / step))
    return wrap(_ramp(size, start, step, dtype))


def _ramp(size: Any, start: Any, step: Any, dtype: Dtype) -> Node:
    """start + i * step, computed in float64 or int64 and rounded once."""
    count = bind(Iota((size,)))
    wide = dt.float64 if isinstance(start, float) or isinstance(step, float) else dt.int64
    x = astype(count, wide)
    if step != 1:
        x = x * scalar_node(step, x.kind)
    if start != 0:
        x = x + scalar_node(start, x.kind)
    return astype(x, dtype)


def linspace(start: Any, stop: Any, num: int = 50, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """`num` evenly spaced numbers from start to stop, both included."""
    if num < 0:
        raise ValueError(f"[linspace] num cannot be negative; got {num}.")
    if num == 1:
        return full((1,), float(start), dtype or dt.float32)
    step = (float(stop) - float(start)) / (num - 1) if num else 0.0
    count = bind(Iota((num,)))
    x = astype(count, dt.float64) * scalar_node(step, kind_of((num,), dt.float64)) + scalar_node(float(start), kind_of((num,), dt.float64))
    last = bind(e.Equal(), count, scalar_node(num - 1, count.kind))
    return wrap(astype(e.select(last, scalar_node(float(stop), x.kind), x), dtype or dt.float32))


def _grid(n: int, m: int) -> tuple[Node, Node]:
    """Row and column numbers of an n × m matrix."""
    rows, columns = bind(Iota((n, 1))), bind(Iota((m,)))
    return broadcast_node(rows, (n, m)), broadcast_node(columns, (n, m))


def eye(n: int, m: int | None = None, k: int = 0, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """Ones on the k-th diagonal, zeros elsewhere."""
    rows, columns = _grid(*_shape("eye", (n, n if m is None else m)))  # type: ignore[arg-type]
    return wrap(astype(bind(e.Equal(), rows + scalar_node(k, rows.kind), columns), dtype or dt.float32))


def identity(n: int, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """The n × n identity matrix."""
    return eye(n, dtype=dtype)


def tri(n: int, m: int | None = None, k: int = 0, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """Ones at and below the k-th diagonal."""
    rows, columns = _grid(*_shape("tri", (n, n if m is None else m)))  # type: ignore[arg-type]
    return wrap(astype(bind(e.GreaterEqual(), rows + scalar_node(k, rows.kind), columns), dtype or dt.float32))


def _triangle(name: str, x: Node, k: int, lower: bool) -> array:
    if x.ndim < 2:
        raise ValueError(f"[{name}] needs a matrix (or a stack of them); got shape {x.shape}.")
    rows, columns = _grid(x.shape[-2], x.shape[-1])  # type: ignore[arg-type]
    below = bind(e.GreaterEqual() if lower else e.LessEqual(), rows + scalar_node(k, rows.kind), columns)
    return apply(e.Select(), broadcast_node(below, x.shape), x, constant_node(0, x.kind))


def tril(a: ArrayLike, /, k: int = 0, *, stream: Stream = None) -> array:
    """The elements at and below the k-th diagonal, zeros above."""
    return _triangle("tril", to_node(a), k, lower=True)


def triu(a: ArrayLike, /, k: int = 0, *, stream: Stream = None) -> array:
    """The elements at and above the k-th diagonal, zeros below."""
    return _triangle("triu", to_node(a), k, lower=False)
