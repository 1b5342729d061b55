"""Arrays from nothing or from other objects: constants, ranges, grids, identity matrices, windows."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Sequence
from typing import Any

from weft import dtypes as dt
from weft.core._common import (
    ArrayLike,
    apply,
    array,
    astype,
    bind,
    broadcast_node,
    broadcast_shapes,
    default_dtype,
    is_sequence,
    kind_of,
    plain,
    refuse_overflow,
    reshape,
    scalar_node,
    to_node,
    wrap,
)  # fmt: skip
from weft.core._common import constant as constant_node
from weft.dtypes import Dtype
from weft.graph.dims import Dim
from weft.graph.node import Node, Shape
from weft.primitives import elementwise as e
from weft.primitives.creation import Iota

Stream = Any


def sizes_of(name: str, shape: int | Sequence[int]) -> Shape:
    """A shape that a user gave, or the one size of a vector."""
    return tuple(_size(name, n) for n in (shape if is_sequence(shape) else (shape,)))  # type: ignore[union-attr]


def _size(name: str, n: Any) -> Any:
    """A size that is not negative; NumPy's integers are integers, and so are arrays of one, whose value is taken."""
    if type(n) is Dim:
        return n
    try:
        found = n.__index__()
    except (AttributeError, TypeError):
        raise TypeError(f"[{name}] a size is an integer; got {n!r}.") from None
    if found < 0:
        raise ValueError(f"[{name}] a size cannot be negative; got {n}.")
    return found


def dtype_of(name: str, given: Any, default: Dtype) -> Dtype:
    if given is None:
        return default
    if not isinstance(given, Dtype):
        raise TypeError(f"[{name}] dtype must be a Weft dtype such as float32; got {given!r}.")
    return given


def full(shape: int | Sequence[int], vals: ArrayLike, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """An array of `shape` filled with `vals` (a number, or an array that is broadcast).

    >>> full((2, 2), 7)
    array([[7, 7],
           [7, 7]], dtype=int32)
    """
    sizes = sizes_of("full", shape)
    vals = plain(vals)
    if isinstance(vals, (bool, int, float, complex)):
        dtype = dtype_of("full", dtype, default_dtype(vals))
        refuse_overflow("full", vals, dtype)
        return wrap(constant_node(vals, kind_of(sizes, dtype)))
    x = to_node(vals)
    if broadcast_shapes("full", x.shape, sizes) != sizes:
        raise ValueError(f"[full] values of shape {x.shape} do not fit shape {sizes}.")
    return wrap(broadcast_node(astype(x, dtype_of("full", dtype, x.dtype)), sizes))


def zeros(shape: int | Sequence[int], dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """An array of zeros."""
    return wrap(constant_node(0, kind_of(sizes_of("zeros", shape), dtype_of("zeros", dtype, dt.float32))))


def ones(shape: int | Sequence[int], dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """An array of ones."""
    return wrap(constant_node(1, kind_of(sizes_of("ones", shape), dtype_of("ones", dtype, dt.float32))))


def zeros_like(a: ArrayLike, /, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """Zeros in the shape (and dtype) of another array."""
    x = to_node(a)
    return wrap(constant_node(0, kind_of(x.shape, dtype_of("zeros_like", dtype, x.dtype))))


def ones_like(a: ArrayLike, /, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """Ones in the shape (and dtype) of another array."""
    x = to_node(a)
    return wrap(constant_node(1, kind_of(x.shape, dtype_of("ones_like", dtype, x.dtype))))


def full_like(a: ArrayLike, vals: ArrayLike, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """`vals` (a number, or an array that is broadcast) in the shape and dtype of another array.

    >>> full_like(array([1, 2]), 7)
    array([7, 7], dtype=int32)
    """
    x = to_node(a)
    return full(x.shape, vals, dtype_of("full_like", dtype, x.dtype))  # type: ignore[arg-type]


def empty(shape: int | Sequence[int], dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """An array of no particular values, which are zeros."""
    return zeros(shape, dtype)


def empty_like(a: ArrayLike, /, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """An array of no particular values in the shape (and dtype) of another one; they are zeros."""
    return zeros_like(a, dtype)


def asarray(a: Any, dtype: Dtype | None = None, *, copy: bool | None = None) -> array:
    """An array from a number, nested lists or an array of any library; `copy=False` refuses to copy elements."""
    if copy is False and (not isinstance(a, array) or dtype not in (None, a.dtype)):
        raise ValueError(
            "[asarray] elements must be copied from another object or to another dtype; leave out copy=False."
        )
    return array(a, dtype)


def from_dlpack(x: Any, /, *, copy: bool | None = None) -> array:
    """An array with the elements of an object that has `__dlpack__`; NumPy's float64 becomes float32. `copy=False`
    refuses to copy elements."""
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"[from_dlpack] needs an object with __dlpack__; got {type(x).__name__}.")
    if copy is False and not isinstance(x, array):
        raise ValueError("[from_dlpack] elements must be copied from another object; leave out copy=False.")
    return array(x)


# ---- ranges ----


def arange(
    *bounds: Any,
    start: Any = None,
    stop: Any = None,
    step: Any = None,
    dtype: Dtype | None = None,
    stream: Stream = None,
) -> array:
    """arange(stop), arange(start, stop) or arange(start, stop, step): start, start + step, … below stop.

    A dtype may follow the numbers.

    >>> arange(1, 7, 2)
    array([1, 3, 5], dtype=int32)
    """
    if bounds and isinstance(bounds[-1], Dtype):
        *numbers, dtype = bounds
        bounds = (0, *numbers) if builtins.len(numbers) == 2 else tuple(numbers)  # MLX's arange(stop, step, dtype)
    if builtins.len(bounds) > 3:
        raise TypeError(f"[arange] takes at most start, stop and step; got {builtins.len(bounds)} numbers.")
    given = [*bounds, *(None,) * (3 - builtins.len(bounds))]
    start, stop, step = (a if a is not None else b for a, b in zip(given, (start, stop, step), strict=True))
    if stop is None:
        start, stop = None, start
    start, stop, step = 0 if start is None else plain(start), plain(stop), 1 if step is None else plain(step)
    whole = _refuse_no_range(start, stop, step)
    if dtype is None:
        dtype = (dt.int32 if builtins.all(map(_fits_int32, (start, stop, step))) else dt.int64) if whole else dt.float32
    if dtype_of("arange", dtype, dt.int32).is_bool:
        raise ValueError("[arange] a range of bools is not defined; compare a range of integers instead.")
    return wrap(_ramp(_count(start, stop, step, whole), start, step, dtype))


def _refuse_no_range(start: Any, stop: Any, step: Any) -> bool:
    """Raise for what is no range; whether all three are integers."""
    if stop is None:
        raise TypeError("[arange] needs to know where to stop: arange(stop) or arange(start, stop).")
    for number in (start, stop, step):
        if isinstance(number, bool):
            raise ValueError(f"[arange] start, stop and step are integers or floats; got {number!r}.")
        if not isinstance(number, (int, float)):
            raise TypeError(f"[arange] start, stop and step are numbers; got {number!r}.")
    if step == 0:
        raise ValueError("[arange] step cannot be 0.")
    floats = [n for n in (start, stop, step) if isinstance(n, float)]
    if builtins.any(n != n for n in floats) or builtins.any(
        math.isinf(n) for n in (start, stop) if isinstance(n, float)
    ):
        raise ValueError(f"[arange] start={start}, stop={stop}, step={step} is no finite range.")
    return not floats


def _fits_int32(n: Any) -> bool:
    return type(n) is not int or -(1 << 31) <= n < 1 << 31  # asking a symbolic size would make it a number


def _count(start: Any, stop: Any, step: Any, whole: bool) -> Any:
    """How many numbers a range has."""
    if whole:
        return builtins.max(0, -((start - stop) // step))
    if math.isinf(step):
        return 1 if (stop - start) * step > 0 else 0
    return builtins.max(0, math.ceil((stop - start) / step))


def _ramp(size: Any, start: Any, step: Any, dtype: Dtype) -> Node:
    """start + i * step, computed in float64 or int64 and rounded once; integers go on as their first two do."""
    count = bind(Iota((size,)))
    if dtype.is_integer and (isinstance(start, float) or isinstance(step, float)):
        start, step = int(start), int(start + step) - int(start) if not math.isinf(step) else 1
    wide = dt.float64 if isinstance(start, float) or isinstance(step, float) else dt.int64
    x = astype(count, wide)
    if step != 1 and not (isinstance(step, float) and math.isinf(step)):  # one element has no second
        x = x * scalar_node(step, x.kind)
    if start != 0:
        x = x + scalar_node(start, x.kind)
    return astype(x, dtype)


def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Dtype | None = None, stream: Stream = None
) -> array:
    """`num` evenly spaced numbers from start to stop, which is the last of them unless `endpoint` is False.

    >>> linspace(0, 1, 5)
    array([0, 0.25, 0.5, 0.75, 1], dtype=float32)
    """
    num, dtype = _size("linspace", num), dtype_of("linspace", dtype, dt.float32)
    first, last = _real("linspace", start), _real("linspace", stop)
    if num == 1:
        return wrap(astype(constant_node(first, kind_of((1,), dt.float64)), dtype))
    gaps = num - 1 if endpoint else num
    count = bind(Iota((num,)))
    x = astype(count, dt.float64)
    x = x * scalar_node((last - first) / gaps if num else 0.0, x.kind) + scalar_node(first, x.kind)
    if endpoint:
        x = e.select(bind(e.Equal(), count, scalar_node(gaps, count.kind)), scalar_node(last, x.kind), x)
    return wrap(astype(x, dtype))


def _real(name: str, number: Any) -> float:
    if isinstance(number, (complex, str)):
        raise TypeError(f"[{name}] start and stop are real numbers; got {number!r}.")
    return float(number)


def meshgrid(
    *arrays: ArrayLike, sparse: bool = False, indexing: str = "xy", stream: Stream = None
) -> tuple[array, ...]:
    """Coordinates of a grid: array i along axis i, repeated along the others; "xy" exchanges the first two axes.

    >>> [a.tolist() for a in meshgrid(array([1, 2]), array([3, 4]), sparse=True)]
    [[[1, 2]], [[3], [4]]]
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"[meshgrid] indexing is 'xy' or 'ij'; got {indexing!r}.")
    nodes = [to_node(a) for a in arrays]
    axes = list(range(builtins.len(nodes)))
    if indexing == "xy" and builtins.len(nodes) > 1:
        axes[:2] = 1, 0
    sizes = [x.kind.size for x in nodes]
    grids = [
        reshape(x, tuple(n if i == axis else 1 for i, n in enumerate(sizes[j] for j in axes)))
        for x, axis in zip(nodes, axes, strict=True)
    ]
    if sparse:
        return tuple(map(wrap, grids))
    shape = broadcast_shapes("meshgrid", *(x.shape for x in grids))
    return tuple(wrap(broadcast_node(x, shape)) for x in grids)


# ---- windows ----


def _window(name: str, m: Any, weight: Callable[[Node], Node]) -> array:
    """weight(t) at m points t from -1 to 1, computed in float64."""
    if not hasattr(m, "__index__"):
        raise TypeError(f"[{name}] the number of points is an integer; got {m!r}.")
    size = builtins.max(0, m.__index__())
    if size == 1:
        return ones(1)
    places = astype(bind(Iota((size,))), dt.float64)
    twice = places + places - scalar_node(float(size - 1), places.kind)
    return wrap(astype(weight(twice / scalar_node(float(builtins.max(1, size - 1)), places.kind)), dt.float32))


def _cosines(*weights: float) -> Callable[[Node], Node]:
    """weights[0] + weights[1] cos(pi t) + weights[2] cos(2 pi t) + …"""

    def weight(t: Node) -> Node:
        total = scalar_node(weights[0], t.kind)
        for k, factor in enumerate(weights[1:], 1):
            total = total + scalar_node(factor, t.kind) * e.cos(scalar_node(k * math.pi, t.kind) * t)
        return total

    return weight


def hanning(M: int, *, stream: Stream = None) -> array:
    """The Hann window of M points."""
    return _window("hanning", M, _cosines(0.5, 0.5))


def hamming(M: int, *, stream: Stream = None) -> array:
    """The Hamming window of M points."""
    return _window("hamming", M, _cosines(0.54, 0.46))


def blackman(M: int, *, stream: Stream = None) -> array:
    """The Blackman window of M points."""
    return _window("blackman", M, _cosines(0.42, 0.5, 0.08))


def bartlett(M: int, *, stream: Stream = None) -> array:
    """The Bartlett (triangular) window of M points."""
    return _window("bartlett", M, lambda t: scalar_node(1.0, t.kind) - bind(e.Absolute(), t))


# ---- matrices ----


def _grid(n: int, m: int) -> tuple[Node, Node]:
    """Row and column numbers of an n × m matrix."""
    rows, columns = bind(Iota((n, 1))), bind(Iota((m,)))
    return broadcast_node(rows, (n, m)), broadcast_node(columns, (n, m))


def eye(n: int, m: int | None = None, k: int = 0, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """Ones on the k-th diagonal, zeros elsewhere.

    >>> eye(2, 3, k=1)
    array([[0, 1, 0],
           [0, 0, 1]], dtype=float32)
    """
    rows, columns = _grid(*sizes_of("eye", (n, n if m is None else m)))  # type: ignore[arg-type]
    on = bind(e.Equal(), rows + scalar_node(k, rows.kind), columns)
    return wrap(astype(on, dtype_of("eye", dtype, dt.float32)))


def identity(n: int, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """The n × n identity matrix."""
    return eye(n, dtype=dtype)


def tri(n: int, m: int | None = None, k: int = 0, dtype: Dtype | None = None, *, stream: Stream = None) -> array:
    """Ones at and below the k-th diagonal."""
    rows, columns = _grid(*sizes_of("tri", (n, n if m is None else m)))  # type: ignore[arg-type]
    below = bind(e.GreaterEqual(), rows + scalar_node(k, rows.kind), columns)
    return wrap(astype(below, dtype_of("tri", dtype, dt.float32)))


def _triangle(name: str, x: Node, k: int, lower: bool) -> array:
    if x.ndim < 2:
        raise ValueError(f"[{name}] needs a matrix (or a stack of them); got shape {x.shape}.")
    rows, columns = _grid(x.shape[-2], x.shape[-1])  # type: ignore[arg-type]
    below = bind(e.GreaterEqual() if lower else e.LessEqual(), rows + scalar_node(k, rows.kind), columns)
    return apply(e.Select(), broadcast_node(below, x.shape), x, constant_node(0, x.kind))


def tril(x: ArrayLike, k: int = 0, *, stream: Stream = None) -> array:
    """The elements at and below the k-th diagonal, zeros above.

    >>> tril(array([[1, 2], [3, 4]]))
    array([[1, 0],
           [3, 4]], dtype=int32)
    """
    return _triangle("tril", to_node(x), k, lower=True)


def triu(x: ArrayLike, k: int = 0, *, stream: Stream = None) -> array:
    """The elements at and above the k-th diagonal, zeros below.

    >>> triu(array([[1, 2], [3, 4]]))
    array([[1, 2],
           [0, 4]], dtype=int32)
    """
    return _triangle("triu", to_node(x), k, lower=False)
