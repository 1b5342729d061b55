"""Statistics with NumPy's names and meanings: what leaves NaN out, quantiles, histograms, covariances, interpolation.

MLX has none of them. They are compositions, so every transform works on them; halves are computed in float32 and
rounded once.
"""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.core import reducing
from weft.core._common import (
    ArrayLike,
    Axes,
    array,
    astype,
    bind,
    constant,
    kind_of,
    normalize_axes,
    reshape,
    size_node,
    to_node,
    transpose,
    whole_number,
    wrap,
)
from weft.core.elementwise import (
    ceil,
    clip,
    conjugate,
    divide,
    equal,
    floor,
    isnan,
    maximum,
    minimum,
    multiply,
    remainder,
    round,
    sqrt,
    where,
)
from weft.core.gathering import take, take_along_axis
from weft.core.joining import concatenate
from weft.core.linear import matmul
from weft.core.shaping import expand_dims, moveaxis
from weft.core.sorting import argsort, searchsorted, sort
from weft.dtypes import Dtype
from weft.graph.dims import Dim, prod
from weft.graph.node import Node
from weft.primitives.base import reduced_shape
from weft.primitives.creation import Iota
from weft.primitives.indexing import ScatterAdd

Stream = Any


def _wide(a: ArrayLike, inexact: bool = False) -> tuple[array, Dtype]:
    """An array to compute with (halves as float32), and the dtype of the result."""
    x = to_node(a)
    dtype = dt.inexact_of(x.dtype) if inexact else x.dtype
    return wrap(astype(x, dt.float32 if dtype in dt.HALVES else dtype)), dtype


def _present(x: array, axis: Axes, keepdims: bool) -> array:
    """How many elements are not NaN, in the real dtype of x."""
    ones = where(isnan(x), 0, 1).astype(dt.float64 if dt.real_of(x.dtype) is dt.float64 else dt.int32)
    return reducing.sum(ones, axis, keepdims).astype(dt.real_of(x.dtype))  # type: ignore[no-any-return]


def _without_nan(x: array, filling: float) -> array:
    return where(isnan(x), wrap(constant(filling, kind_of((), x.dtype))), x) if x.dtype.is_inexact else x


# ---- leaving NaN out ----


def nansum(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The sum over axes (all by default) of what is not NaN; 0 if there is nothing.

    >>> nansum(array([1.0, float("nan"), 2.0]))
    array(3, dtype=float32)
    """
    return reducing.sum(_without_nan(wrap(to_node(a)), 0), axis, keepdims)


def nanprod(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The product over axes (all by default) of what is not NaN; 1 if there is nothing."""
    return reducing.prod_(_without_nan(wrap(to_node(a)), 1), axis, keepdims)


def nanmean(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The mean over axes (all by default) of what is not NaN; NaN if there is nothing.

    >>> nanmean(array([[1.0, float("nan")], [3.0, 4.0]]), axis=0)
    array([2, 4], dtype=float32)
    """
    x, dtype = _wide(a, inexact=True)
    total = reducing.sum(_without_nan(x, 0), axis, keepdims)
    return (total / _present(x, axis, keepdims)).astype(dtype)  # type: ignore[no-any-return]


def _extreme(reduce: Any, a: ArrayLike, axis: Axes, keepdims: bool, filling: float) -> array:
    x = wrap(to_node(a))
    if not x.dtype.is_inexact:
        return reduce(x, axis, keepdims)  # type: ignore[no-any-return]
    found = reduce(_without_nan(x, filling), axis, keepdims)
    nothing = reducing.all(isnan(x), axis, keepdims)
    return where(nothing, wrap(constant(float("nan"), kind_of((), x.dtype))), found)


def nanmax(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The largest element over axes (all by default) that is not NaN; NaN if there is none.

    >>> nanmax(array([1.0, float("nan"), 2.0]))
    array(2, dtype=float32)
    """
    return _extreme(reducing.max, a, axis, keepdims, -np.inf)


def nanmin(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The smallest element over axes (all by default) that is not NaN; NaN if there is none."""
    return _extreme(reducing.min, a, axis, keepdims, np.inf)


def nanvar(
    a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, ddof: int = 0, *, stream: Stream = None
) -> array:
    """The variance over axes (all by default) of what is not NaN; the divisor is its count minus `ddof`. NaN where that
    is not positive.

    >>> nanvar(array([1.0, float("nan"), 3.0]))
    array(1, dtype=float32)
    """
    x, dtype = _wide(a, inexact=True)
    return _nanvar(x, axis, keepdims, ddof).astype(dt.real_of(dtype))  # type: ignore[no-any-return]


def _nanvar(x: array, axis: Axes, keepdims: bool, ddof: int) -> array:
    center = nanmean(x, axis, True)
    deviation = where(isnan(x), wrap(constant(0, kind_of((), x.dtype))), x - center)
    square = (deviation * conjugate(deviation)).real if x.dtype.is_complex else deviation * deviation
    divisor = _present(x, axis, keepdims) - ddof
    total = reducing.sum(square, axis, keepdims)
    none = divisor <= 0
    return where(none, wrap(constant(float("nan"), kind_of((), divisor.dtype))), total / where(none, 1, divisor))


def nanstd(
    a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, ddof: int = 0, *, stream: Stream = None
) -> array:
    """The standard deviation over axes (all by default) of what is not NaN: the square root of `nanvar`."""
    x, dtype = _wide(a, inexact=True)
    return sqrt(_nanvar(x, axis, keepdims, ddof)).astype(dt.real_of(dtype))  # type: ignore[no-any-return]


# ---- quantiles ----

METHODS = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(
    a: ArrayLike, q: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, method: str = "linear",
    stream: Stream = None,
) -> array:  # fmt: skip
    """The elements over axes (all by default) below which parts `q` (from 0 to 1) of all lie; NaN if any is. Between
    two elements, `method` says what: "linear" (a part of the way), "lower", "higher", "midpoint" or "nearest".

    The axes of q come first. Parts of an array that are out of range give NaN, and numbers an error.

    >>> quantile(array([1.0, 2.0, 3.0, 4.0]), array([0.5, 0.9]))
    array([2.5, 3.7], dtype=float32)
    """
    return _quantile("quantile", a, _parts("quantile", q, 1.0), axis, keepdims, method, False)


def percentile(
    a: ArrayLike, q: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, method: str = "linear",
    stream: Stream = None,
) -> array:  # fmt: skip
    """`quantile` of parts in percent: from 0 to 100.

    >>> percentile(array([1.0, 2.0, 3.0]), 50)
    array(2, dtype=float32)
    """
    return _quantile("percentile", a, _parts("percentile", q, 100.0), axis, keepdims, method, False)


def nanquantile(
    a: ArrayLike, q: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, method: str = "linear",
    stream: Stream = None,
) -> array:  # fmt: skip
    """`quantile` of what is not NaN; NaN if there is nothing.

    >>> nanquantile(array([1.0, float("nan"), 2.0]), 0.5)
    array(1.5, dtype=float32)
    """
    return _quantile("nanquantile", a, _parts("nanquantile", q, 1.0), axis, keepdims, method, True)


def nanmedian(a: ArrayLike, /, axis: Axes = None, keepdims: bool = False, *, stream: Stream = None) -> array:
    """The middle element over axes (all by default) of what is not NaN, or the mean of the two in the middle; NaN if
    there is nothing."""
    return _quantile("nanmedian", a, wrap(constant(0.5, kind_of((), dt.float64))), axis, keepdims, "midpoint", True)


def _parts(name: str, q: ArrayLike, whole: float) -> array:
    """Parts as float64; NaN for what is no part, an error if they are numbers."""
    parts = wrap(astype(_real(name, "q", q, dt.float64), dt.float64))
    if not isinstance(q, array):
        numbers = np.asarray(q, np.float64)
        if numbers.size and not ((numbers >= 0) & (numbers <= whole)).all():
            raise ValueError(f"[{name}] parts lie between 0 and {whole:g}; got {q!r}.")
    inside = (parts >= 0) & (parts <= whole)
    return where(inside, divide(parts, whole), float("nan"))


def _real(name: str, what: str, a: ArrayLike, dtype: Dtype | None = None) -> Node:
    """The node of real numbers; those that are no array yet get this dtype."""
    x = to_node(a, None if isinstance(a, array) else dtype)
    if x.dtype.is_complex:
        raise ValueError(f"[{name}] {what} must be real: complex numbers have no order of size.")
    return x


def _quantile(name: str, a: ArrayLike, q: array, axis: Axes, keepdims: bool, method: str, skip_nan: bool) -> array:
    if method not in METHODS:
        raise ValueError(f"[{name}] method is one of {', '.join(METHODS)}; got {method!r}.")
    x = _real(name, "the array", a)
    axes = normalize_axes(name, axis, x.ndim)
    if reducing.any_empty(x, axes):
        raise ValueError(f"[{name}] an axis of size 0 (shape {x.shape}) has no quantiles.")
    exact = method in ("lower", "higher", "nearest")
    dtype = dt.inexact_of(x.dtype) if not exact or x.dtype.is_bool else x.dtype
    kept = tuple(i for i in range(x.ndim) if i not in axes)
    count, shape = prod(tuple(x.shape[i] for i in axes)), tuple(x.shape[i] for i in kept)
    rows = sort(wrap(reshape(transpose(astype(x, dtype), (*kept, *axes)), (*shape, count))), -1)
    last = wrap(size_node(count if type(count) is Dim else int(count), kind_of((), dt.float64))) - 1
    if skip_nan:
        last = expand_dims(_present(rows.astype(dt.float64), -1, False), -1) - 1
    flat = wrap(reshape(q._node, (q._node.kind.size,)))
    found = _between(rows, flat, last, method, skip_nan)
    if dtype.is_inexact:
        bad = isnan(rows[..., 0:1]) if skip_nan else isnan(rows[..., -1:])
        found = where(bad | isnan(flat), wrap(constant(float("nan"), kind_of((), found.dtype))), found)
    made = moveaxis(found.astype(dtype), -1, 0)._node
    rest = reduced_shape(x.shape, axes) if keepdims else shape
    return wrap(reshape(made, (*q._node.shape, *rest)))


def _between(rows: array, q: array, last: array, method: str, skip_nan: bool) -> array:
    """What lies at parts q of sorted rows, along the last axis of the result; their last elements are number `last`."""
    place = maximum(where(isnan(q), 0.0, q) * last, 0.0)
    if method == "nearest":
        return _at(rows, round(place), skip_nan)
    low, high = _at(rows, floor(place), skip_nan), _at(rows, minimum(ceil(place), maximum(last, 0.0)), skip_nan)
    if method in ("lower", "higher"):
        return low if method == "lower" else high
    wide = dt.float32 if rows.dtype in dt.HALVES else rows.dtype
    low, high = low.astype(wide), high.astype(wide)
    if method == "midpoint":
        return low * 0.5 + high * 0.5
    part = (place - floor(place)).astype(wide)
    gap = high - low
    gap = where(low == high, 0.0, gap)  # of infinities too
    return where(part < 0.5, low + gap * part, high - gap * (1 - part))


def _at(rows: array, place: array, skip_nan: bool) -> array:
    index = place.astype(dt.int64)
    return take_along_axis(rows, index, -1) if skip_nan else take(rows, index, -1)


# ---- histograms ----


def histogram(
    a: ArrayLike, bins: int | ArrayLike = 10, range: tuple[float, float] | None = None, *, density: bool = False,
    weights: ArrayLike | None = None, stream: Stream = None,
) -> tuple[array, array]:  # fmt: skip
    """(how many elements lie in each bin, the edges of the bins). `bins` is a number of bins of one width between the
    smallest and the largest element (or over `range`), or their edges in increasing order. A bin has its lower edge,
    and the last one its upper edge too; what lies outside, and NaN, is not counted.

    `weights` are added in place of ones; `density` divides by the total and by the widths.

    >>> histogram(array([1.0, 2.0, 2.0, 4.0]), bins=3)
    (array([1, 2, 1], dtype=int32), array([1, 2, 3, 4], dtype=float32))
    """
    x = wrap(_real("histogram", "the array", a))
    x = x.reshape(-1)
    edges = _edges(x, bins, range)
    count = edges._node.shape[0] - 1
    x = x.astype(edges.dtype)
    at = searchsorted(edges, x, "right").astype(dt.int64) - 1
    at = where(x == edges[-1], count - 1, at)
    outside = (at < 0) | (at >= count) | isnan(x)
    if weights is None:
        added = wrap(constant(1, kind_of(x._node.shape, dt.int32)))
    else:
        added = wrap(to_node(weights)).reshape(-1)
        if added._node.kind.size != x._node.kind.size:
            raise ValueError(f"[histogram] weights of shape {added.shape} do not fit values of shape {x.shape}.")
    added = where(outside, wrap(constant(0, kind_of((), added.dtype))), added)
    base = constant(0, kind_of((count,), added.dtype))
    places = clip(where(outside, 0, at), 0, count - 1)
    found = wrap(bind(ScatterAdd((None,), (0,)), base, added._node, places._node))
    if not density:
        return found, edges
    share = found.astype(dt.promote(dt.inexact_of(found.dtype), edges.dtype))
    return share / reducing.sum(share) / (edges[1:] - edges[:-1]), edges


def _edges(x: array, bins: Any, bounds: tuple[float, float] | None) -> array:
    """The edges of bins, in a floating dtype."""
    dtype = dt.inexact_of(x.dtype)
    if isinstance(bins, (array, list, tuple, np.ndarray)):
        given = wrap(_real("histogram", "edges", bins, dtype))
        if given.ndim != 1 or given._node.shape[0] < 2:
            raise ValueError(f"[histogram] edges are a vector of at least two numbers; got shape {given.shape}.")
        return given.astype(dt.promote(dtype, dt.inexact_of(given.dtype)))  # type: ignore[no-any-return]
    count = whole_number("histogram", "the number of bins", bins)
    if count < 1:
        raise ValueError(f"[histogram] needs one bin at least; got {count}.")
    if bounds is None:
        if x._node.kind.size == 0:
            low, high = (wrap(constant(number, kind_of((), dtype))) for number in (0.0, 1.0))
        else:
            low, high = (reduce(x).astype(dtype) for reduce in (reducing.min, reducing.max))
    else:
        low, high = (wrap(constant(float(bound), kind_of((), dtype))) for bound in bounds)
        if not float(bounds[0]) <= float(bounds[1]):
            raise ValueError(f"[histogram] a range goes from its lower end to its upper end; got {bounds!r}.")
    same = low == high
    low, high = where(same, low - 0.5, low), where(same, high + 0.5, high)
    place = wrap(astype(bind(Iota((count + 1,))), dt.float64))
    wide = low.astype(dt.float64) + (high - low).astype(dt.float64) * (place / count)
    return where(place == count, high, wide.astype(dtype))


# ---- interpolation ----


def interp(
    x: ArrayLike, xp: ArrayLike, fp: ArrayLike, /, left: ArrayLike | None = None, right: ArrayLike | None = None,
    period: float | None = None, *, stream: Stream = None,
) -> array:  # fmt: skip
    """The piecewise linear function through the points (xp, fp), at x. Outside of the points it is `left` and `right`,
    by default the first and the last of fp; or it repeats with a `period`. `xp` is increasing, unless there is one.

    >>> interp(array([0.5, 1.5, 9.0]), array([0.0, 1.0, 2.0]), array([0.0, 10.0, 30.0]))
    array([5, 20, 30], dtype=float32)
    """
    nodes = [_real("interp", "x", x), _real("interp", "xp", xp), to_node(fp)]
    if nodes[1].ndim != 1 or nodes[2].ndim != 1 or nodes[1].shape != nodes[2].shape or nodes[1].kind.size == 0:
        shapes = f"{nodes[1].shape} and {nodes[2].shape}"
        raise ValueError(f"[interp] xp and fp are two vectors of one length, and not empty; got {shapes}.")
    result = dt.inexact_of(dt.promote(dt.promote(nodes[0].dtype, nodes[1].dtype), nodes[2].dtype))
    wide = dt.float64 if dt.real_of(result) is dt.float64 else dt.float32
    at, xs = (wrap(astype(node, wide)) for node in nodes[:2])
    ys = wrap(astype(nodes[2], dt.promote(wide, result) if result.is_complex else wide))
    if period is not None:
        at, xs, ys = _repeated(at, xs, ys, float(period))
    n = xs._node.shape[0]
    before = clip(searchsorted(xs, at, "right").astype(dt.int64) - 1, 0, n - 2 if n >= 2 else 0)
    after = minimum(before + 1, n - 1)
    x0, y0 = take(xs, before), take(ys, before)
    gap, rise = take(xs, after) - x0, take(ys, after) - y0
    flat = equal(gap, 0)
    inside = y0 + where(flat, 0.0, at - x0) / where(flat, 1.0, gap) * rise
    made = where(at == take(xs, after), take(ys, after), where(at == x0, y0, inside))
    made = where(at < xs[0], ys[0] if left is None or period is not None else left, made)
    made = where(at > xs[-1], ys[-1] if right is None or period is not None else right, made)
    return where(isnan(at), float("nan"), made).astype(result)  # type: ignore[no-any-return]


def _repeated(x: array, xs: array, ys: array, period: float) -> tuple[array, array, array]:
    """x and the points of one period, with the last point before it and the first after it."""
    if period == 0 or period != period:
        raise ValueError(f"[interp] a period is not 0; got {period}.")
    size = builtins.abs(period)
    x, xs = remainder(x, size), remainder(xs, size)
    order = argsort(xs)
    xs, ys = take(xs, order), take(ys, order)
    return x, concatenate([xs[-1:] - size, xs, xs[:1] + size]), concatenate([ys[-1:], ys, ys[:1]])


# ---- covariances ----


def cov(
    m: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None,
    fweights: ArrayLike | None = None, aweights: ArrayLike | None = None, *, stream: Stream = None,
) -> array:  # fmt: skip
    """Covariances of the rows of a matrix (of its columns if not `rowvar`) and of those of `y`. The divisor is the
    number of columns minus `ddof`, which is 1, or 0 with `bias`; columns may be counted several times (`fweights`) or
    have weights (`aweights`).

    >>> cov(array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    array([[1, -1],
           [-1, 1]], dtype=float32)
    """
    x, dtype = _observations("cov", m, rowvar)
    if y is not None:
        other, more = _observations("cov", y, rowvar)
        dtype = dt.promote(dtype, more)
        wide = dt.promote(x.dtype, other.dtype)
        x = concatenate([x.astype(wide), other.astype(wide)], axis=0)
    real = dt.real_of(x.dtype)
    n = x._node.shape[1]
    weights = _weights("cov", fweights, aweights, n, real)
    less = (0 if bias else 1) if ddof is None else ddof
    if weights is None:
        center = reducing.mean(x, 1, True)
        divisor = maximum(wrap(size_node(n if type(n) is Dim else float(n), kind_of((), real))) - less, 0)
        scaled = x - center
    else:
        total = reducing.sum(weights)
        center = reducing.sum(x * weights, 1, True) / total
        lost = (
            total
            if aweights is None
            else reducing.sum(weights * wrap(_real("cov", "aweights", aweights, real)).astype(real))
        )
        divisor = total - (less if aweights is None else less * lost / total)
        scaled = (x - center) * weights
    made = matmul(x - center, conjugate(scaled).T) / divisor
    made = made.astype(dtype)
    return made.reshape(()) if made.size == 1 else made


def _observations(name: str, m: ArrayLike, rowvar: bool) -> tuple[array, Dtype]:
    x, dtype = _wide(m, inexact=True)
    if x.ndim > 2:
        raise ValueError(f"[{name}] takes vectors and matrices; got shape {x.shape}.")
    if x.ndim < 2:
        return x.reshape((1, -1)), dtype
    return (x if rowvar or x._node.shape[0] == 1 else x.T), dtype


def _weights(name: str, often: Any, given: Any, n: Any, dtype: Dtype) -> array | None:
    found: array | None = None
    for what, weights in (("fweights", often), ("aweights", given)):
        if weights is None:
            continue
        each = wrap(_real(name, what, weights, dtype)).astype(dtype)
        if each.ndim != 1 or each._node.shape[0] != n:
            raise ValueError(f"[{name}] {what} is a vector with one weight for each of {n}; got shape {each.shape}.")
        found = each if found is None else multiply(found, each)
    return found


def corrcoef(x: ArrayLike, y: ArrayLike | None = None, rowvar: bool = True, *, stream: Stream = None) -> array:
    """Correlations of the rows of a matrix (of its columns if not `rowvar`) and of those of `y`, from -1 to 1.

    >>> corrcoef(array([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]))
    array([[1, -1],
           [-1, 1]], dtype=float32)
    """
    made = cov(_wide(x)[0], None if y is None else _wide(y)[0], rowvar)
    dtype = dt.inexact_of(dt.promote(to_node(x).dtype, to_node(x if y is None else y).dtype))
    if made.ndim == 0:
        return divide(made, made).astype(dtype)  # type: ignore[no-any-return]
    spread = sqrt(made.real.diagonal())
    found = made / expand_dims(spread, 1) / expand_dims(spread, 0)
    if not found.dtype.is_complex:
        found = clip(found, -1.0, 1.0)
    return found.astype(dtype)  # type: ignore[no-any-return]
