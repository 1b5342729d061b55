"""Reductions, scans, joins, indexing and products: the shapes, dtypes, values and errors of MLX, for arrays of every
dtype, shape and layout.

Sums are compared loosely, because the order of additions differs; everything else exactly. Where Weft differs on
purpose, a test at the end says how.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import weft.core as wx
from tests.parity.oracle import COMMON, FULL, LAYOUTS, REALS, both, operands
from weft import dtypes as dt
from weft.dtypes import Dtype

mx = pytest.importorskip("mlx.core")

NO_DOUBLES = tuple(d for d in COMMON if d is not dt.float64)
Operand = tuple[np.ndarray, str]


def axes_for(ndim: int) -> st.SearchStrategy[Any]:
    """All axes, one, or several; some that are not there."""
    one = st.integers(-ndim, ndim - 1) if ndim else st.nothing()
    several = st.lists(one, min_size=1, max_size=ndim, unique_by=lambda a: a % max(1, ndim))
    return st.none() | one | several | st.sampled_from([ndim, -ndim - 1])


# ---- names ----


def test_names_are_there() -> None:
    assert {name for name in dir(mx) if not name.startswith("_")} <= set(dir(wx))


# ---- reductions ----
#
# Of arrays that have axes and elements: MLX leaves the dtype of a 0-d array alone (the sum of True is True), and reads
# foreign memory where there are no elements.

INEXACT = (*dt.FLOATS, dt.complex64)
FOLDS = dict.fromkeys(
    ("sum", "prod", "max", "min", "all", "any", "mean", "var", "std", "count_nonzero", "minmax"), COMMON
) | {"logsumexp": INEXACT}  # which MLX computes in the dtype of integers


def given_operand(dtypes: Any, low: float = -math.inf, high: float = math.inf) -> st.SearchStrategy[list[Operand]]:
    return operands(1, dtypes, low, high, shapes=FULL)


@pytest.mark.parametrize("name", FOLDS)
@settings(max_examples=40)
@given(data=st.data(), keepdims=st.booleans())
def test_reductions(name: str, data: st.DataObject, keepdims: bool) -> None:
    (x,) = data.draw(given_operand(FOLDS[name], -3, 3))
    axis = data.draw(axes_for(x[0].ndim))
    both(lambda m, a: getattr(m, name)(a, axis=axis, keepdims=keepdims), x, loose=True)


@pytest.mark.parametrize("name", ["max", "min"])
@settings(max_examples=40)
@given(data=st.data(), keepdims=st.booleans())
def test_extremes(name: str, data: st.DataObject, keepdims: bool) -> None:
    """NaN and infinities among the elements."""
    (x,) = data.draw(given_operand(REALS))
    axis = data.draw(axes_for(x[0].ndim))
    both(lambda m, a: getattr(m, name)(a, axis=axis, keepdims=keepdims), x)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
@settings(max_examples=40)
@given(data=st.data(), keepdims=st.booleans())
def test_places_of_extremes(name: str, data: st.DataObject, keepdims: bool) -> None:
    (x,) = data.draw(given_operand(COMMON))
    axis = data.draw(st.none() | st.integers(-x[0].ndim - 1, x[0].ndim))
    both(lambda m, a: getattr(m, name)(a, axis=axis, keepdims=keepdims), x)


@settings(max_examples=60)
@given(data=st.data(), precise=st.booleans())
def test_softmax(data: st.DataObject, precise: bool) -> None:
    """Of floats: MLX gives integers back where it goes over other axes than the last one."""
    (x,) = data.draw(given_operand(INEXACT, -3, 3))
    axis = data.draw(axes_for(x[0].ndim))
    both(lambda m, a: m.softmax(a, axis=axis, precise=precise), x, loose=True)


@settings(max_examples=40)
@given(data=st.data(), ddof=st.integers(0, 3))
def test_degrees_of_freedom(data: st.DataObject, ddof: int) -> None:
    (x,) = data.draw(given_operand((dt.int32, dt.float32, dt.float16, dt.complex64), -3, 3))
    axis = data.draw(axes_for(x[0].ndim))
    for name in ("var", "std"):
        both(lambda m, a, name=name: getattr(m, name)(a, axis, ddof=ddof), x, loose=True)
        both(lambda m, a, name=name: getattr(m, name)(a, axis, ddof=7, correction=ddof), x, loose=True)
        both(lambda m, a, name=name: getattr(a, name)(axis, correction=ddof), x, loose=True)


@settings(max_examples=60)
@given(data=st.data(), keepdims=st.booleans())
def test_methods(data: st.DataObject, keepdims: bool) -> None:
    (x,) = data.draw(given_operand(INEXACT, -3, 3))
    axis = data.draw(axes_for(x[0].ndim))
    for name in ("sum", "prod", "max", "min", "all", "any", "mean", "var", "std", "logsumexp"):
        both(lambda m, a, name=name: getattr(a, name)(axis, keepdims), x, loose=True)


@pytest.mark.parametrize("name", FOLDS)
def test_over_no_axes(name: str) -> None:
    """Narrow integers aside, of which MLX makes wide ones only where it adds them up."""
    for dtype in (np.int32, np.float32, np.float16):
        x = np.array([[1, 2, 3], [-4, 0, 6]], dtype)
        if name == "logsumexp" and dtype is np.int32:
            continue
        both(lambda m, a: getattr(m, name)(a, axis=[]), x)
        both(lambda m, a: getattr(m, name)(a, axis=(), keepdims=True), x)


# ---- scans ----

SCANS = {"cumsum": COMMON, "cumprod": COMMON, "cummax": COMMON, "cummin": COMMON, "logcumsumexp": COMMON}


@pytest.mark.parametrize("name", SCANS)
@settings(max_examples=40)
@given(data=st.data(), reverse=st.booleans(), inclusive=st.booleans())
def test_scans(name: str, data: st.DataObject, reverse: bool, inclusive: bool) -> None:
    (x,) = data.draw(operands(1, SCANS[name], -3, 3))
    axis = data.draw(st.none() | st.integers(-x[0].ndim - 1, x[0].ndim))
    both(lambda m, a: getattr(m, name)(a, axis, reverse=reverse, inclusive=inclusive), x, loose=True)
    both(lambda m, a: getattr(a, name)(axis, reverse=reverse, inclusive=inclusive), x, loose=True)


@settings(max_examples=40)
@given(data=st.data(), to=st.sampled_from(["int8", "int32", "float32", "float16", "complex64"]))
def test_sums_in_other_dtypes(data: st.DataObject, to: str) -> None:
    (x,) = data.draw(operands(1, NO_DOUBLES, -3, 3))
    for name in ("cumsum", "cumprod", "cumulative_sum", "cumulative_prod"):
        both(lambda m, a, name=name: getattr(m, name)(a, dtype=getattr(m, to)), x, loose=True)


# ---- joins ----


@settings(max_examples=80)
@given(data=st.data(), axis=st.none() | st.integers(-3, 3))
def test_concatenate(data: st.DataObject, axis: int | None) -> None:
    """Arrays that agree along all other axes, and some that do not."""
    shape = data.draw(st.sampled_from([(3,), (2, 3), (2, 3, 4), (0, 3)]))
    parts = []
    there = axis is None or -len(shape) <= axis < len(shape)
    for _ in range(data.draw(st.integers(1 if there else 2, 3))):  # MLX does not look at the axis of a single one
        sizes = list(shape)
        if axis is not None and there:
            sizes[axis] = data.draw(st.integers(0, 3))
        if data.draw(st.integers(0, 9)) == 0:
            sizes = [*sizes[1:], 5]
        parts += data.draw(operands(1, NO_DOUBLES, shapes=[tuple(sizes)]))
    parts = [(np.broadcast_to(x, x.shape), layout) for x, layout in parts]
    both(lambda m, *xs: m.concatenate(list(xs), axis), *parts)
    both(lambda m, *xs: m.concat(list(xs), axis=axis), *parts)


@settings(max_examples=60)
@given(data=st.data(), axis=st.integers(-4, 3))
def test_stack_and_unstack(data: st.DataObject, axis: int) -> None:
    xs = data.draw(operands(data.draw(st.integers(1, 3)), NO_DOUBLES, mixed=True))
    both(lambda m, *xs: m.stack(list(xs), axis), *xs)
    both(lambda m, a: m.unstack(a, axis=axis), xs[0])


WIDTHS = st.integers(-1, 3)


@settings(max_examples=120)
@given(
    data=st.data(),
    mode=st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"]),
    value=st.sampled_from([0, 1, 2.5, True, "array"]),
)
def test_pad(data: st.DataObject, mode: str, value: Any) -> None:
    (x,) = data.draw(operands(1, NO_DOUBLES))
    ndim = x[0].ndim
    several = st.lists(st.tuples(WIDTHS, WIDTHS), min_size=ndim, max_size=ndim)
    widths = data.draw(WIDTHS | st.tuples(WIDTHS) | st.tuples(WIDTHS, WIDTHS) | several)
    if mode in ("edge", "reflect", "symmetric") and x[0].size == 0:
        return  # MLX reads foreign memory
    both(lambda m, a: m.pad(a, widths, mode, m.array(3) if value == "array" else value), x)


@settings(max_examples=80)
@given(data=st.data(), count=st.integers(-1, 18), axis=st.none() | st.integers(-4, 3))
def test_repeat(data: st.DataObject, count: int, axis: int | None) -> None:
    (x,) = data.draw(operands(1, COMMON))
    both(lambda m, a: m.repeat(a, count, axis), x)


@settings(max_examples=60)
@given(data=st.data(), reps=st.integers(-1, 3) | st.lists(st.integers(0, 3), max_size=4))
def test_tile(data: st.DataObject, reps: Any) -> None:
    (x,) = data.draw(operands(1, NO_DOUBLES))
    both(lambda m, a: m.tile(a, reps), x)


@settings(max_examples=100)
@given(data=st.data(), shift=st.integers(-9, 9) | st.lists(st.integers(-3, 3), min_size=1, max_size=3).map(tuple))
def test_roll(data: st.DataObject, shift: Any) -> None:
    (x,) = data.draw(operands(1, NO_DOUBLES))
    one = st.integers(-x[0].ndim - 1, x[0].ndim)
    axis = data.draw(st.none() | one | st.lists(one, min_size=1, max_size=3).map(tuple))
    if x[0].size == 0 or (isinstance(shift, tuple) and isinstance(axis, tuple) and len(shift) != len(axis)):
        return  # MLX forgets shifts; ours are broadcast, as NumPy's are
    both(lambda m, a: m.roll(a, shift, axis), x)


@settings(max_examples=60)
@given(data=st.data(), first=st.integers(-3, 2), second=st.integers(-3, 2), offset=st.integers(-1, 2))
def test_diagonals(data: st.DataObject, first: int, second: int, offset: int) -> None:
    """Offsets within the matrix: beyond it MLX reads on without end."""
    (x,) = data.draw(operands(1, NO_DOUBLES, -20, 20, shapes=[(3, 4), (3, 4, 5), (4, 3, 5)]))
    both(lambda m, a: m.diagonal(a, offset, first, second), x)
    both(lambda m, a: m.trace(a, offset, first, second), x, loose=True)
    both(lambda m, a: m.diag(a if a.ndim == 2 else a[0], offset), x)
    both(lambda m, a: m.diag(a.reshape(-1)[:4], offset), x)


@settings(max_examples=40)
@given(data=st.data(), parts=st.integers(0, 4) | st.lists(st.integers(-1, 6), max_size=3), axis=st.integers(-3, 2))
def test_split(data: st.DataObject, parts: Any, axis: int) -> None:
    (x,) = data.draw(operands(1, NO_DOUBLES, shapes=[(4,), (6, 4), (2, 4, 3)]))
    both(lambda m, a: m.split(a, parts, axis), x)
    both(lambda m, a: a.split(parts, axis), x)


# ---- products ----


@settings(max_examples=120)
@given(data=st.data())
def test_matmul(data: st.DataObject) -> None:
    """All forms and layouts, some that do not fit together, and operands of two dtypes."""
    n = st.sampled_from([0, 1, 2, 3, 17])
    batch = data.draw(st.sampled_from([(), (2,), (3, 2), (1, 2)]))
    i, j, k = data.draw(n), data.draw(n), data.draw(n)
    first = data.draw(st.sampled_from([(k,), (i, k), (*batch, i, k), ()]))
    second = data.draw(st.sampled_from([(k,), (k, j), (*batch, k, j), (k + 1, j), (5, k, j)]))
    (x,) = data.draw(operands(1, INEXACT, -3, 3, shapes=[first]))
    (y,) = data.draw(operands(1, INEXACT, -3, 3, shapes=[second]))
    if {x[0].dtype, y[0].dtype} == {np.dtype(np.float64), np.dtype(np.complex64)}:
        return  # complex128: MLX has none
    both(lambda m, a, b: m.matmul(a, b), x, y, loose=True)
    both(lambda m, a, b: a @ b, x, y, loose=True)


@settings(max_examples=60)
@given(data=st.data(), alpha=st.sampled_from([1.0, 0.0, 2.5, -1]), beta=st.sampled_from([1.0, 0.0, 0.5]))
def test_addmm(data: st.DataObject, alpha: float, beta: float) -> None:
    i, j, k = (data.draw(st.sampled_from([1, 2, 5, 17])) for _ in range(3))
    dtype = data.draw(st.sampled_from([dt.float32, dt.float16]))
    forms = [
        [(i, j), (i, k), (k, j)], [(j,), (i, k), (k, j)], [(), (i, k), (k,)], [(2, i, j), (2, i, k), (k, j)],
        [(j,), (k,), (k, j)], [(3, j), (i, k), (k, j)],
    ]  # fmt: skip
    shapes = data.draw(st.sampled_from(forms))
    c, a, b = (data.draw(operands(1, (dtype,), -3, 3, shapes=[shape]))[0] for shape in shapes)
    both(lambda m, c, a, b: m.addmm(c, a, b, alpha, beta), c, a, b, loose=True)


def test_paths_of_einsum() -> None:
    x = np.ones((2, 3), np.float32)
    for text, count in (("ij,jk", 0), ("ij->ji", 1), ("ij,ij->i", 2)):
        path = [m.einsum_path(text, *[m.array(x)] * count)[0] if count else None for m in (mx, wx)]
        assert path[0] == path[1]


# ---- indexing ----
#
# MLX refuses some indices that NumPy takes (None beside arrays in updates, arrays of dtypes that promote to floats);
# what is compared here is what it answers. Against NumPy: tests/test_indexing.py.

SHAPE = (4, 5, 6)
INDEX_DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def slices(n: int) -> st.SearchStrategy[slice]:
    """Slices with bounds in and out of range and steps of both signs."""
    bound = st.none() | st.integers(-n - 2, n + 2)
    return st.builds(slice, bound, bound, st.sampled_from([None, 1, 2, 3, -1, -2, -3]))


@st.composite
def keys(draw: st.DrawFn, arrays: bool = True) -> tuple[Any, ...]:
    """An index of integers, slices, None, Ellipsis and arrays of integers that broadcast together."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    together = draw(st.sampled_from([(), (3,), (2, 3), (0,)]))
    used = draw(st.integers(0, 3))
    items: list[Any] = []
    skipped = draw(st.integers(0, used)) if draw(st.booleans()) else None
    for place in range(used):
        n = SHAPE[place] if skipped is None or place < skipped else SHAPE[place - used]
        kind = draw(st.sampled_from(["integer", "slice", *(["array"] if arrays else [])]))
        if kind == "array":
            dtype = draw(st.sampled_from(INDEX_DTYPES))
            shape = draw(st.sampled_from([together, together, together[1:]]))
            items.append(rng.integers(0 if dtype[0] == "u" else -n, n, shape).astype(dtype))
        else:
            items.append(draw(st.integers(-n, n - 1) if kind == "integer" else slices(n)))
    if skipped is not None:
        items.insert(skipped, Ellipsis)
    for _ in range(draw(st.integers(0, 2))):
        items.insert(draw(st.integers(0, len(items))), None)
    return tuple(items)


def converted(library: Any, key: Any) -> Any:
    return tuple(library.array(item) if isinstance(item, np.ndarray) else item for item in key)


def numbers(shape: tuple[int, ...], dtype: Dtype, seed: int = 0) -> np.ndarray:
    low = 0 if dtype.is_bool or dtype.kind == "u" else -9
    return np.random.default_rng(seed).integers(low, 9, shape).astype(dtype.np)


@settings(max_examples=150)
@given(key=keys(), dtype=st.sampled_from(NO_DOUBLES), layout=st.sampled_from(LAYOUTS))
def test_reading(key: Any, dtype: Dtype, layout: str) -> None:
    both(lambda m, x: x[converted(m, key)], (numbers(SHAPE, dtype), layout), answers=True)


def written(m: Any, x: Any, key: Any, value: Any) -> Any:
    x[converted(m, key)] = value
    return x


@settings(max_examples=150)
@given(key=keys(), dtype=st.sampled_from(NO_DOUBLES), layout=st.sampled_from(LAYOUTS), data=st.data())
def test_writing(key: Any, dtype: Dtype, layout: str, data: st.DataObject) -> None:
    """Numbers, and arrays of the shape of what is written over, or of one that is broadcast to it. Of several values
    for one place NumPy's last one stays; MLX does not say which, so all are the same for a place."""
    x = numbers(SHAPE, dtype)
    assume(x[key].size)  # MLX dies of nothing to write to
    shape = x[key].shape
    duplicates = any(isinstance(item, np.ndarray) for item in key)
    number = data.draw(st.sampled_from([0, 1, True, 3]))
    both(lambda m, a: written(m, a, key, number), (x, layout), answers=True)
    if duplicates:
        return
    smaller = data.draw(st.sampled_from([shape, shape[1:], (1, *shape), tuple(1 for _ in shape), (7,)]))
    values = numbers(smaller, data.draw(st.sampled_from([dtype, dt.int32])), 1)
    both(lambda m, a, v: written(m, a, key, v), (x, layout), values, answers=True)


UPDATES = ("add", "subtract", "multiply", "maximum", "minimum")


@pytest.mark.parametrize("name", UPDATES)
@settings(max_examples=60)
@given(key=keys(), dtype=st.sampled_from(NO_DOUBLES), layout=st.sampled_from(LAYOUTS), data=st.data())
def test_updates(name: str, key: Any, dtype: Dtype, layout: str, data: st.DataObject) -> None:
    """Duplicate indices among them: all updates are applied."""
    x = numbers(SHAPE, dtype)
    assume(x[key].size)
    shape = x[key].shape
    smaller = data.draw(st.sampled_from([shape, shape[1:], ()]))
    values = numbers(smaller, dtype, 1)
    both(lambda m, a, v: getattr(a.at[converted(m, key)], name)(v), (x, layout), values, loose=True, answers=True)


@settings(max_examples=100)
@given(key=keys(arrays=False), layout=st.sampled_from(LAYOUTS), operator=st.sampled_from(["+", "-", "*", "/"]))
def test_operators_in_place(key: Any, layout: str, operator: str) -> None:
    """Parts that overlap the array they come from, read in another direction."""
    x = numbers(SHAPE, dt.float32)
    part = x[key]

    def update(m: Any, a: Any, v: Any) -> Any:
        if operator == "+":
            a[key] += v + m.flip(a[key])
        elif operator == "-":
            a[key] -= v
        elif operator == "*":
            a[key] *= v
        else:
            a[key] /= v + 10
        return a

    both(update, (x, layout), numbers(part.shape, dt.float32, 2), loose=True, answers=True)


@settings(max_examples=60)
@given(data=st.data(), axis=st.none() | st.integers(-4, 3), dtype=st.sampled_from(INDEX_DTYPES))
def test_take(data: st.DataObject, axis: int | None, dtype: str) -> None:
    (x,) = data.draw(operands(1, NO_DOUBLES, shapes=[(5,), (3, 4), (2, 3, 4)]))
    size = x[0].size if axis is None else x[0].shape[axis] if -x[0].ndim <= axis < x[0].ndim else 1
    shape = data.draw(st.sampled_from([(), (3,), (2, 2), (0,)]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    index = rng.integers(0 if dtype[0] == "u" else -size, size, shape).astype(dtype)
    both(lambda m, a, i: m.take(a, i, axis), x, index)
    both(lambda m, a: m.take(a, int(index.reshape(-1)[0]) if index.size else 0, axis), x, answers=True)


@settings(max_examples=60)
@given(data=st.data(), axis=st.none() | st.integers(-4, 3))
def test_along_an_axis(data: st.DataObject, axis: int | None) -> None:
    (x,) = data.draw(operands(1, NO_DOUBLES, shapes=[(5,), (3, 4), (2, 3, 4)]))
    shape = (x[0].size,) if axis is None else x[0].shape
    at = 0 if axis is None else axis % len(shape)
    places = np.argsort(np.random.default_rng(data.draw(st.integers(0, 99))).random(shape), at)  # no place twice
    index = places.take(range(data.draw(st.integers(1, shape[at]))), at).astype(np.int32)
    index -= data.draw(st.sampled_from([0, shape[at]]))
    both(lambda m, a, i: m.take_along_axis(a, i, axis), x, index)
    values = data.draw(st.sampled_from([index.shape, ()]))
    both(lambda m, a, i, v: m.put_along_axis(a, i, v, axis), x, index, numbers(values, dt.int32, 3).astype(x[0].dtype))


@settings(max_examples=80)
@given(data=st.data())
def test_slices_that_start_at_arrays(data: st.DataObject) -> None:
    """Starts that leave room: MLX reads and writes foreign memory elsewhere."""
    (x,) = data.draw(operands(1, NO_DOUBLES, shapes=[(4, 5, 6)]))
    axes = data.draw(st.lists(st.integers(-3, 2), min_size=1, max_size=3, unique_by=lambda a: a % 3))
    sizes = [data.draw(st.integers(1, n)) for n in SHAPE]
    kind = data.draw(st.sampled_from([np.int32, np.uint32, np.int64]))
    start = np.array([data.draw(st.integers(0, SHAPE[a] - sizes[a])) for a in axes], kind)
    both(lambda m, a, s: m.slice(a, s, axes, sizes), x, start)
    values = numbers(tuple(sizes), dt.int32, 4).astype(x[0].dtype)
    both(lambda m, a, v, s: m.slice_update(a, v, s, axes), x, values, start)


# ---- what differs on purpose ----


def test_sums_over_no_axes_have_the_dtype_of_sums() -> None:
    assert wx.sum(wx.array(True)).dtype is wx.int32
    assert mx.sum(mx.array(True)).dtype == mx.bool_
    assert wx.sum(wx.array([1, 2], wx.int8), axis=[]).dtype is wx.int32
    assert mx.sum(mx.array([1, 2], mx.int8), axis=[]).dtype == mx.int8


def test_softmax_of_integers_is_one_of_floats_over_every_axis() -> None:
    x = [[1, 1], [1, 1]]
    assert wx.softmax(wx.array(x), axis=0).tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert mx.softmax(mx.array(x), axis=0).tolist() == [[0, 0], [0, 0]]


def test_running_extremes_of_complex_numbers_keep_nan() -> None:
    x = np.array([1, complex(math.nan, 1), 5], np.complex64)
    assert np.isnan(np.array(wx.cummax(wx.array(x)))).tolist() == [False, True, True]
    assert np.isnan(np.array(mx.cummax(mx.array(x)))).tolist() == [False, True, False]


def test_the_extreme_of_one_number_has_a_place() -> None:
    assert wx.argmax(wx.array(3.0), keepdims=True).item() == 0
    with pytest.raises(ValueError, match="max_size"):
        mx.argmax(mx.array(3.0), keepdims=True).item()
