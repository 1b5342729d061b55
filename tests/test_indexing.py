"""Reading and writing with arrays of indices, against NumPy; derivatives, batches, and the same bits on any number of
threads."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import LAYOUTS, place, same_bits, values_of
from tests.contract import assert_values as same
from tests.gradients import check_batch, check_derivatives
from weft import dtypes as dt
from weft.array import array
from weft.dtypes import Dtype
from weft.passes import families
from weft.primitives.elementwise import draw as draw_values
from weft.targets.cpu import scatters

DTYPES = (dt.bool_, dt.uint8, dt.int16, dt.bfloat16, dt.float32, dt.int64, dt.float64, dt.complex64, dt.complex128)
PLAIN = ("contiguous", "shifted", "reversed", "transposed", "spaced", "cut")


def numbers(shape: tuple[int, ...], dtype: Dtype = dt.float32, seed: int = 0) -> np.ndarray:
    return draw_values(np.random.default_rng(seed), dtype, shape, -50.0, 50.0)


def laid_out(values: np.ndarray, layout: str) -> array:
    arrange, shift = LAYOUTS[layout]
    return place(arrange(values), shift)


# ---- keys ----


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A NumPy key with an index array or more, and integers, slices, None, Ellipsis; arrays broadcast together."""
    used = draw(st.integers(1, len(shape)))
    together = draw(st.sampled_from([(), (1,), (3,), (2, 3), (0,)]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    items: list[Any] = []
    for axis in range(used):
        n = shape[axis]
        kind = draw(st.sampled_from(["array", "array", "integer", "slice", "full"]))
        if kind == "array":
            part = draw(st.sampled_from([together, together[-1:], tuple(1 for _ in together)]))
            dtype = draw(st.sampled_from([np.int32, np.int64, np.int8, np.uint8, np.uint32]))
            low = 0 if np.dtype(dtype).kind == "u" else -n
            items.append(rng.integers(low, n, part).astype(dtype))
        elif kind == "integer":
            items.append(draw(st.integers(-n, n - 1)))
        elif kind == "slice":
            bounds = [draw(st.none() | st.integers(-n - 1, n + 1)) for _ in range(2)]
            items.append(slice(*bounds, draw(st.sampled_from([None, 1, 2, -1, -3]))))
        else:
            items.append(slice(None))
    assume(any(isinstance(item, np.ndarray) for item in items))
    for extra in draw(st.lists(st.just(None), max_size=2)):
        items.insert(draw(st.integers(0, len(items))), extra)
    if draw(st.booleans()):
        items.insert(len(items), ...)
    return tuple(items)


SHAPE = (5, 7, 6)


def ours(key: Any) -> Any:
    """The key with Weft's arrays in place of NumPy's."""
    return tuple(mx.array(item) if isinstance(item, np.ndarray) else item for item in key)


@given(key=keys(SHAPE), layout=st.sampled_from(PLAIN), dtype=st.sampled_from(DTYPES))
def test_reading_is_numpy(key: Any, layout: str, dtype: Dtype) -> None:
    x = numbers(SHAPE, dtype)
    same(laid_out(x, layout)[ours(key)], x[key])


@given(key=keys(SHAPE), layout=st.sampled_from(PLAIN), dtype=st.sampled_from(DTYPES), whole=st.booleans())
def test_writing_is_numpy(key: Any, layout: str, dtype: Dtype, whole: bool) -> None:
    """Of several values for one place the last stays: NumPy does not promise it, so it is asked one value at a time."""
    x, target = numbers(SHAPE, dtype), laid_out(numbers(SHAPE, dtype), layout)
    shape = x[key].shape
    values = numbers(shape if whole else shape[-1:], dtype, 1)
    target[ours(key)] = mx.array(values, dtype=dtype)
    positions = np.arange(x.size).reshape(SHAPE)[key].reshape(-1)
    flat = x.reshape(-1)
    for position, value in zip(positions, np.broadcast_to(values, shape).reshape(-1), strict=True):
        flat[position] = value
    same(target, x)


def test_lists_and_numpy_arrays_are_indices_too() -> None:
    x = numbers((4, 3))
    same(mx.array(x)[[0, -1, 2]], x[[0, -1, 2]])
    same(mx.array(x)[[[0, 1], [2, 3]]], x[[[0, 1], [2, 3]]])
    same(mx.array(x)[np.array([1, 1]), [0, 2]], x[[1, 1], [0, 2]])
    same(mx.array(x)[[]], x[:0])
    same(mx.array(x)[np.int64(2)], x[2])


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d.is_integer], ids=str)
def test_indices_of_every_integer_type(dtype: Dtype) -> None:
    x = numbers((100, 3))
    index = np.array([0, 99, 50, 7, 7], dtype.np)
    same(mx.take(mx.array(x), mx.array(index, dtype=dtype), axis=0), x[index.astype(np.int64)])


@pytest.mark.parametrize(
    ("dtype", "index", "place_"),
    [
        (np.int32, [5, 99, -5, -6, -99, 2**31 - 1, -(2**31)], [4, 4, 0, 0, 0, 4, 0]),
        (np.int64, [2**63 - 1, -(2**63), 4, -1], [4, 0, 4, 4]),
        (np.uint64, [2**64 - 1, 2**63, 0], [4, 4, 0]),
        (np.uint8, [255, 128, 4], [4, 4, 4]),
        (np.int8, [127, -128, -1], [4, 0, 4]),
    ],
    ids=str,
)
def test_indices_out_of_range_are_moved_to_the_nearest_end(dtype: Any, index: list[int], place_: list[int]) -> None:
    x = numbers((5, 20))
    at = mx.array(np.array(index, dtype))
    same(mx.take(mx.array(x), at, axis=0), x[place_])
    same(mx.take(mx.array(x.T), at, axis=1), x.T[:, place_])
    expected = np.zeros(5, np.int32)
    np.add.at(expected, place_, 1)
    same(mx.zeros((5,), dtype=mx.int32).at[at].add(1), expected)


# ---- named functions ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", PLAIN)
def test_take(dtype: Dtype, layout: str) -> None:
    x, rng = numbers((6, 35, 4), dtype), np.random.default_rng(1)
    a = laid_out(x, layout)
    for axis, shape in itertools.product(range(3), [(), (5,), (3, 20)]):
        index = rng.integers(-x.shape[axis], x.shape[axis], shape)
        same(mx.take(a, mx.array(index), axis=axis), np.take(x, index, axis))
    index = rng.integers(0, x.size, (40,))
    same(mx.take(a, mx.array(index)), np.take(x, index))
    same(mx.take(a, 3, axis=1), x[:, 3])
    same(mx.take(a, -1), x.reshape(-1)[-1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_take_and_put_along_axis(dtype: Dtype, axis: int | None) -> None:
    x, rng = numbers((5, 18, 3), dtype), np.random.default_rng(2)
    shape = (40,) if axis is None else tuple(11 if i == axis else n for i, n in enumerate(x.shape))
    n = x.size if axis is None else x.shape[axis]
    index = rng.integers(-n, n, shape)
    for layout in PLAIN:
        same(mx.take_along_axis(laid_out(x, layout), mx.array(index), axis=axis), np.take_along_axis(x, index, axis))
    distinct = np.argsort(rng.random(x.shape if axis is not None else (x.size,)), axis=-1 if axis is None else axis)
    distinct = np.take(distinct, range(min(3, n)), 0 if axis is None else axis)
    values = numbers(distinct.shape, dtype, 3)
    expected = x.copy()
    np.put_along_axis(expected, distinct, values, axis)
    same(
        mx.put_along_axis(mx.array(x, dtype=dtype), mx.array(distinct), mx.array(values, dtype=dtype), axis=axis),
        expected,
    )


def test_indices_along_an_axis_broadcast() -> None:
    x = numbers((4, 5))
    same(mx.take_along_axis(mx.array(x), mx.array([[2, 0, 1]]), axis=1), x[:, [2, 0, 1]])
    same(mx.take_along_axis(mx.array(x[:1]), mx.array([[1], [3]]), axis=1), x[:1, [1, 3]].T)
    expected = x.copy()
    expected[:, [2, 0]] = 7
    same(mx.put_along_axis(mx.array(x), mx.array([[2, 0]]), mx.array(7), axis=1), expected)


@pytest.mark.parametrize(("starts", "begins"), [([1, 2], (1, 2)), ([9, -3], (2, 3)), ([-99, 0], (0, 0))])
def test_slices_at_computed_places(starts: list[int], begins: tuple[int, int]) -> None:
    x = numbers((4, 3, 6))
    part = (slice(begins[0], begins[0] + 2), slice(None), slice(begins[1], begins[1] + 3))
    same(mx.slice(mx.array(x), mx.array(starts), (0, 2), (2, 3, 3)), x[part])
    update = numbers((2, 3, 3), seed=1)
    expected = x.copy()
    expected[part] = update
    same(mx.slice_update(mx.array(x), mx.array(update), mx.array(starts), (0, 2)), expected)
    corner = x.copy()
    corner[part[0], :1, part[2]] = 5  # along the axis that starts at 0 the update has one element
    same(mx.slice_update(mx.array(x), mx.array([[[5.0, 5, 5]]] * 2), mx.array(starts), (0, 2)), corner)


def test_axes_that_an_update_lacks_are_whole() -> None:
    x = numbers((4, 3, 6))
    expected = x.copy()
    expected[:, 1] = 7
    same(mx.slice_update(mx.array(x), mx.array([7.0] * 6), mx.array([1]), (1,)), expected)
    expected = x.copy()
    expected[2] = 8
    same(mx.slice_update(mx.array(x), mx.array(8.0), mx.array([2]), (0,)), expected)


# ---- masks ----


@given(
    shape=st.sampled_from([(5,), (4, 6), (2, 3, 4)]),
    depth=st.integers(0, 3),
    seed=st.integers(0, 99),
    each=st.booleans(),
)
def test_assignment_through_a_mask(shape: tuple[int, ...], depth: int, seed: int, each: bool) -> None:
    x, rng = numbers(shape), np.random.default_rng(seed)
    mask = rng.random(shape[: min(depth, len(shape))]) < 0.5
    rest = shape[mask.ndim :]
    values = numbers((int(mask.sum()), *rest) if each and mask.ndim else rest, seed=seed + 1)
    a = mx.array(x)
    a[mx.array(mask)] = mx.array(values)
    x[mask] = values
    same(a, x)


def test_masks_may_be_lists_and_numbers_fill_them() -> None:
    a = mx.array([1, 2, 3])
    a[[True, False, True]] = 9
    assert a.tolist() == [9, 2, 9]
    a[np.array([False, True, False])] = 1.7
    assert a.tolist() == [9, 1, 9]
    a[True] = 0
    assert a.tolist() == [0, 0, 0]
    assert mx.array([1, 2, 3]).at[mx.array([True, False, True])].add(5).tolist() == [6, 2, 8]


# ---- updates ----

UPDATES = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum, "minimum": np.minimum}


@pytest.mark.parametrize("dtype", [d for d in DTYPES if not d.is_complex and not d.is_bool], ids=str)
@pytest.mark.parametrize("name", UPDATES)
def test_updates_are_applied_one_after_the_other(name: str, dtype: Dtype) -> None:
    rng = np.random.default_rng(4)
    wide = np.float32 if dtype is dt.bfloat16 else dtype.np
    cases: list[tuple[tuple[int, ...], Any]] = [
        ((7, 50), (rng.integers(-7, 7, 60),)),
        ((50, 7), (slice(None), rng.integers(-7, 7, (3, 20)))),
        ((7, 5, 20), (rng.integers(-7, 7, (4, 1)), rng.integers(-5, 5, 30))),
        ((40,), (rng.integers(-40, 40, 500),)),
        ((6, 5, 20), (slice(1, 4), rng.integers(-5, 5, 30), slice(None, None, -2))),
    ]
    for shape, key in cases:
        x = draw_values(rng, dtype, shape, 0.5, 1.5)
        values = draw_values(rng, dtype, x[key].shape, 0.5, 1.5)
        expected = x.astype(wide)
        UPDATES[name].at(expected, key, values.astype(wide))
        got = getattr(mx.array(x, dtype=dtype).at[ours(key)], name)(mx.array(values, dtype=dtype))
        same(got, expected.astype(dtype.np))


def test_updates_of_slices_and_their_arithmetic() -> None:
    x = numbers((4, 6))
    a = mx.array(x)
    for name, function in {**UPDATES, "subtract": np.subtract, "divide": np.divide}.items():
        expected = x.copy()
        expected[1:3, ::2] = function(x[1:3, ::2], np.float32(3))
        same(getattr(a.at[1:3, ::2], name)(3), expected)
    same(a, x)
    assert mx.array([8, 9]).at[mx.array([0, 0, 1])].divide(2).tolist() == [2, 4]
    assert mx.array([8.0, 9.0]).at[mx.array([0, 0, 1])].subtract(2).tolist() == [4.0, 7.0]
    assert mx.array([8, 9]).at[0].add(2.9).tolist() == [10, 9]


def test_in_place_operators_go_through_indices() -> None:
    a, same_array = mx.array([1, 2, 3, 4]), None
    same_array = a
    a[mx.array([1, 1, 2])] += 5
    a[::2] *= 2
    a[-1] -= 1
    assert a.tolist() == same_array.tolist() == [2, 7, 16, 3]


@pytest.mark.parametrize("dtype", [dt.float32, dt.bfloat16, dt.float64], ids=str)
def test_sums_have_the_same_bits_on_any_number_of_threads(dtype: Dtype, team: Callable[[int], None]) -> None:
    rng = np.random.default_rng(5)
    x, index = draw_values(rng, dtype, (50, 700)), mx.array(rng.integers(0, 50, 400))
    values = mx.array(draw_values(rng, dtype, (400, 700)), dtype=dtype)
    flat, where = mx.array(x.reshape(-1), dtype=dtype), mx.array(rng.integers(0, x.size, 20000))
    found = []
    for n in (1, 2, 3):
        team(n)
        rows = mx.array(x, dtype=dtype).at[index].add(values)
        found.append((values_of(rows), values_of(flat.at[where].add(1.1)), values_of(mx.take(values, index, axis=0))))
    for later in found[1:]:
        for a, b in zip(found[0], later, strict=True):
            assert same_bits(a, b)


_SPLIT_CASES = {
    "elements": ((1013,), (1013,), (slice(None),)),
    "few places": ((5,), (709,), (slice(None),)),
    "rows": ((301, 6), (719, 6), (slice(None),)),
    "points": ((31, 43), (727,), (slice(None), slice(None))),
    "every second": ((1019,), (1021,), (slice(None, None, 2),)),
    "backwards": ((1019,), (1031,), (slice(None, None, -1),)),
    "one place": ((1009,), (733,), (slice(0, 1),)),
}
"""name: (shape of the array, shape of the updates, which of twice as many indices are taken for each indexed axis)"""


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum", "set"])
@pytest.mark.parametrize("case", _SPLIT_CASES)
@pytest.mark.parametrize(
    ("dtype", "index"),
    [(dt.float32, dt.int32), (dt.bfloat16, dt.int64), (dt.complex64, dt.uint8), (dt.int8, dt.int16)],
    ids=str,
)
def test_ranges_of_a_target_give_the_bits_of_the_whole(
    name: str, case: str, dtype: Dtype, index: Dtype, team: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many updates are shared out by where they go: duplicates, and indices that count from the end or are moved into
    range, among them."""
    shape, updates, taken = _SPLIT_CASES[case]
    if dtype.is_complex and name in ("maximum", "minimum"):
        return
    rng = np.random.default_rng(7)
    values = mx.array(draw_values(rng, dtype, updates, 0.5, 1.5), dtype=dtype)
    low, high = (0, 99) if index is dt.uint8 else (-max(shape) - 3, max(shape) + 3)
    places = []
    for which in taken:
        given = mx.array(rng.integers(low, high, 2 * updates[0]).astype(index.np))[which]
        places.append(mx.broadcast_to(given, updates[:1]) if given.size == 1 else given[: updates[0]])
    found, ranges = [], []
    decide = scatters._ranges
    monkeypatch.setattr(scatters, "_ranges", lambda *args: (ranges.append(decide(*args)[0]), decide(*args))[1])
    for threads in (1, 2, 3, 20):
        team(threads)
        monkeypatch.setattr(scatters, "config", dataclasses.replace(scatters.config, threads=threads))
        monkeypatch.setattr(scatters, "SPLIT", 500)
        monkeypatch.setattr(scatters, "LEAST_SHARED", 0)
        monkeypatch.setattr(families, "FAMILIES", {})  # a plan of theirs holds for the threads that it was made for
        moved = mx.ones((threads, *shape), dtype=dtype)[threads - 1]  # another program for each number of threads
        if name == "set":
            moved[tuple(places)] = values
            found.append(values_of(moved))
        else:
            found.append(values_of(getattr(moved.at[tuple(places)], name)(values)))
    assert ranges == [2, 3, 8 if max(shape) >= 8 else 1]
    for later in found[1:]:
        assert same_bits(found[0], later)


# ---- errors ----


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (7, IndexError, "out of range for axis 0"), (-4, IndexError, "out of range"), ([0, 3], IndexError, "3 is out"),
        ((0, [0, 9]), IndexError, "axis 1"), ((0, 0, 0), IndexError, "too many"), ((..., ...), IndexError, "Ellipsis"),
        (np.array([-4]), IndexError, "-4 is out of range"), (1.0, ValueError, "float"), ("a", ValueError, "str"),
        (slice(0.5), ValueError, "integers"), (slice(None, None, 0), ValueError, "step"),
        ([0.5], ValueError, "integers"),
        ((slice(None), [True, False]), ValueError, "only index"), (([0, 1], [0, 1, 2]), ValueError, "broadcast"),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_keys(key: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mx.zeros((3, 4))[key]


def test_wrong_values() -> None:
    a = mx.zeros((3, 4))
    with pytest.raises(ValueError, match="broadcast"):
        a[mx.array([0, 1])] = mx.ones((3, 4))
    with pytest.raises(ValueError, match="must match the first axes"):
        a[mx.array([True, False])] = 1
    with pytest.raises(ValueError, match="integers"):
        mx.take(a, mx.array([0.5]))
    with pytest.raises(ValueError, match="empty"):
        mx.take(mx.zeros((0, 3)), mx.array([0]), axis=0)
    with pytest.raises(IndexError, match="size 0"):
        mx.zeros((0, 3))[mx.array([0])]
    assert mx.take(mx.zeros((0, 3)), mx.array([], dtype=mx.int32), axis=0).shape == (0, 3)
    with pytest.raises(ValueError, match="axes"):
        mx.take_along_axis(a, mx.array([0]), axis=0)
    with pytest.raises(ValueError, match="twice"):
        mx.slice_update(a, mx.ones((1, 1)), mx.array([0, 0]), (0, 0))
    with pytest.raises(ValueError, match="start indices"):
        mx.slice(a, mx.array([0, 0]), (0,), (1, 4))
    with pytest.raises(ValueError, match="bool"):
        mx.zeros((3,), dtype=mx.bool_).at[0].subtract(True)


@pytest.mark.parametrize("dtype", dt.INTEGERS, ids=lambda d: d.name)
def test_elements_of_index_arrays_out_of_range_mean_the_nearest_end(dtype: Dtype) -> None:
    """What is computed cannot raise: places are moved inside, wherever they are used."""
    info = np.iinfo(dtype.np)
    x = mx.arange(10)
    far = mx.array([info.max, 100], dtype)
    low = mx.array([info.min, -100], dtype) if info.min else None
    for index, end in ((far, 9), (low, 0)):
        if index is None:
            continue
        assert x[index].tolist() == mx.take(x, index).tolist() == mx.take_along_axis(x, index, 0).tolist() == [end] * 2
        y = mx.zeros((10,), mx.int32)
        y[index] = 5
        expected = [5 if i == end else 0 for i in range(10)]
        assert y.tolist() == expected
        assert mx.zeros((10,), mx.int32).at[index[:1]].add(5).tolist() == expected
        start = 7 if end else 0
        for f in (mx.slice, mx.compile(lambda x, i, axes, size: mx.slice(x, i, axes, size))):
            assert f(x, index[:1], (0,), (3,)).tolist() == [start, start + 1, start + 2]
        updated = mx.slice_update(mx.zeros((10,), mx.int32), mx.ones((3,), mx.int32), index[:1], (0,))
        assert updated.tolist() == [1 if start <= i < start + 3 else 0 for i in range(10)]


# ---- derivatives and batches ----

INDEX = np.array([[2, -1, 0], [2, 2, 1]], np.int32)


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "minimum"])
def test_derivatives_of_updates(name: str) -> None:
    rng = np.random.default_rng(6)
    x, values = rng.uniform(0.5, 2.0, (4, 3)), rng.uniform(0.5, 2.0, (2, 3, 3))
    check_derivatives(lambda a, v: getattr(a.at[mx.array(INDEX)], name)(v), x, values)
    check_derivatives(lambda a, v: getattr(a.at[1:3], name)(v), x, values[0, :2])


def test_products_with_zeros_have_derivatives() -> None:
    index = np.array([0, 0, 1, 1, 1, 2], np.int32)
    values = np.array([0.0, 3.0, 0.0, 0.0, 2.0, 5.0])
    check_derivatives(lambda a, v: a.at[mx.array(index)].multiply(v), np.array([2.0, 3.0, 0.0, 7.0]), values)


def test_ties_share_the_gradient() -> None:
    index, one = mx.array([0, 0, 1]), mx.array([1.0, 1.0])
    pair = mx.vjp(lambda a, v: a.at[index].maximum(v), [mx.array([5.0, 1.0]), mx.array([5.0, 5.0, 1.0])], [one])[1]
    np.testing.assert_array_equal(np.array(pair[0]), np.array([1 / 3, 0.5], np.float32))
    np.testing.assert_array_equal(np.array(pair[1]), np.array([1 / 3, 1 / 3, 0.5], np.float32))


def _assigned(a: Any, key: Any, values: Any) -> Any:
    result = mx.array(a)
    result[key] = values
    return result


def test_derivatives_of_assignments_and_reads() -> None:
    rng = np.random.default_rng(8)
    x, values = rng.normal(size=(4, 3)), rng.normal(size=(2, 3, 3))
    at = mx.array(INDEX)
    check_derivatives(lambda a, v: _assigned(a, at, v), x, values)
    check_derivatives(lambda a, v: _assigned(a, (slice(1, 3), at[0]), v), x, values[0, :2])
    check_derivatives(lambda a, v: _assigned(a, (at, mx.array([[1, 1, 2]])), v), x, values[0, :1])
    check_derivatives(lambda a, v: _assigned(a, mx.array([True, False, True, True]), v), x, values[0])
    check_derivatives(lambda a: a[at], x)
    check_derivatives(lambda a: a[1:, at], x)
    check_derivatives(lambda a: mx.take_along_axis(a, mx.array([[0, 2], [1, 1]] * 2), axis=1), x)
    check_derivatives(
        lambda a, v: mx.put_along_axis(a, mx.array([[0, 2], [1, 1]] * 2), v, axis=1), x, rng.normal(size=(4, 2))
    )
    check_derivatives(lambda a, v: mx.slice_update(a, v, mx.array([1, 1]), (0, 1)), x, values[0, :, :2])


def test_only_the_last_assignment_to_a_place_has_a_gradient() -> None:
    _, (found,) = mx.vjp(
        lambda v: _assigned(mx.zeros((3,)), mx.array([1, 1, 0]), v), [mx.array([1.0, 2.0, 3.0])], [mx.ones((3,))]
    )
    assert found.tolist() == [0.0, 1.0, 1.0]


def test_batches_of_any_operand() -> None:
    rng = np.random.default_rng(9)
    x, index, values = rng.normal(size=(2, 4, 3)), rng.integers(-4, 4, (2, 5)), rng.normal(size=(2, 5, 3))
    one = (x[0], index[0], values[0])
    for mapped in itertools.product([True, False], repeat=3):
        if not any(mapped):
            continue
        axes = tuple(0 if m else None for m in mapped)
        given_ = [v if m else o for v, m, o in zip((x, index, values), mapped, one, strict=True)]
        check_batch(lambda a, i, v: a.at[i].add(v), axes, *given_)
        check_batch(lambda a, i, v: _assigned(a, i, v), axes, *given_)
        if any(mapped[:2]):
            check_batch(lambda a, i: mx.take(a, i, axis=0), axes[:2], *given_[:2])
            check_batch(lambda a, i: mx.take(a, i, axis=1), axes[:2], *given_[:2])
    check_batch(lambda a, i: mx.take_along_axis(a, i, axis=0), (1, 2), x.swapaxes(0, 1), rng.integers(0, 4, (5, 3, 2)))


def test_second_derivatives_of_an_embedding() -> None:
    index = mx.array([0, 2, 2, 1])

    def loss(w: Any) -> Any:
        return (w[index] * w[index] * w[index]).sum()

    def gradient(w: Any) -> Any:
        return mx.grad(loss)(w)

    check_derivatives(gradient, np.random.default_rng(3).normal(size=(3, 2)))


def test_at_needs_an_index() -> None:
    x = mx.array([1.0, 2.0])
    assert isinstance(x.at, mx.ArrayAt)
    assert isinstance(x.at[0], mx.ArrayAt)
    assert x.at[0][1].add(1).tolist() == [1.0, 3.0], "the last index counts, as in MLX"
    for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
        with pytest.raises(ValueError, match=r"a\.at\[0\]"):
            getattr(x.at, name)(1)


@pytest.mark.parametrize("kind", [ValueError, IndexError])
def test_a_bad_axis_is_both_kinds_of_error(kind: type[Exception]) -> None:
    x = mx.ones((2, 2))
    for call in (
        lambda: mx.sum(x, 2), lambda: x.transpose(0, 2), lambda: mx.concatenate([x, x], -3), lambda: mx.sort(x, 5),
        lambda: mx.vmap(lambda x: x, in_axes=3)(x), lambda: mx.vmap(lambda x: x, out_axes=3)(x),
        lambda: mx.linalg.norm(x, axis=2), lambda: mx.random.categorical(x, axis=2), lambda: mx.expand_dims(x, 4),
    ):  # fmt: skip
        with pytest.raises(kind, match=r"axis|axes"):
            call()


def test_floats_are_no_indices() -> None:
    x = mx.array([1.0, 2.0])
    with pytest.raises(TypeError, match="must be an integer"):
        mx.take(x, 1.0)
    for key in (1.0, mx.array(1.0), [1.0], np.array([1.0])):
        with pytest.raises(ValueError, match="index"):
            x[key]


@pytest.mark.parametrize("index", [dt.int8, dt.int32, dt.int64, dt.uint8, dt.uint64], ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", [dt.uint8, dt.float32, dt.float64, dt.complex128], ids=lambda d: d.name)
@pytest.mark.parametrize("wrong", [(), (3,), (16, 17, 40), (47,)], ids=str)
def test_long_index_arrays(index: Dtype, dtype: Dtype, wrong: tuple[int, ...]) -> None:
    """Sixteen indices are looked at together: some of them are places as they stand, others count from the end, others
    lie outside of the axis."""
    rng = np.random.default_rng(len(wrong))
    places = rng.integers(0, 7, 50)
    for number, at in enumerate(wrong):
        places[at] = 9 + number if index.kind == "u" or number == 1 else -3 - 9 * number
    given = mx.array(places.astype(index.np))
    meant = np.clip(np.where(places < 0, places + 7, places), 0, 6)
    x, updates = numbers((7,), dtype, 1), numbers((50,), dtype, 2)
    same(place(x)[given], x[meant])
    expected = x.copy()
    np.add.at(expected, meant, updates)
    same(place(x).at[given].add(place(updates)), expected)
    rows = numbers((7, 3), dtype, 3)
    columns = np.arange(50) % 3
    same(place(rows)[given, mx.array(columns)], rows[meant, columns])
    spread = rows.copy()
    np.add.at(spread, (meant, columns), updates)
    same(place(rows).at[given, mx.array(columns)].add(place(updates)), spread)


def test_slices_that_come_again() -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    keys = (
        slice(None),
        slice(0, 2),
        slice(None, None, -1),
        slice(1, None),
        slice(5, 9),
        slice(-2, None),
        slice(3, 0, -2),
    )
    strange = (slice(True, None), slice(np.int64(1), None), slice(None, np.int8(2)))
    for part in (values, values[:2], values.astype(np.int8)):
        x = mx.array(part)
        for _ in range(3):
            for key in (*keys, *strange):
                assert np.array(x[key]).tolist() == part[key].tolist()
                assert x[key].dtype == x.dtype
        for _ in range(2):
            with pytest.raises(ValueError, match="step cannot be 0"):
                x[::0]
            with pytest.raises(IndexError):
                mx.array(3)[::2]
    gradient = mx.grad(lambda a: mx.sum(a[::2] * a[::2]))(mx.array([1.0, 2.0, 3.0]))
    assert gradient.tolist() == [2.0, 0.0, 6.0]
