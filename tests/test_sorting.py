"""Sorting, searching and what is built from them: against Python's own stable sort and NumPy, to the bit, in every
dtype, layout, length and number of threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import LAYOUTS, native, place, same_bits, settings, values_of
from tests.gradients import check_batch, check_derivatives
from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.errors import ConfigError
from weft.evaluate.programs import PROGRAMS
from weft.primitives.sorting import ArgPartition, ArgSelect, ArgSort, Partition, Sort
from weft.targets.cpu import partition
from weft.targets.cpu import sorting as kernels

LEADERS = (dt.bool_, dt.int8, dt.uint16, dt.bfloat16, dt.float32, dt.int64, dt.float64, dt.complex64, dt.complex128)
"""One dtype for each form that records have."""


def name_of(dtype: Dtype) -> str:
    return dtype.name


def order_of(row: np.ndarray) -> list[int]:
    """The places that sort a row, by Python's stable sort."""

    def key(place: int) -> tuple[bool, float, float]:
        x = row[place].item()
        return (True, 0, 0) if x != x else (False, x.real, x.imag)

    return sorted(range(len(row)), key=key)


def expected(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """(sorted elements, places) along an axis."""
    rows = np.moveaxis(x, axis, -1)
    order = np.empty(rows.shape, np.uint32)
    for place_of_row in np.ndindex(rows.shape[:-1]):
        order[place_of_row] = order_of(rows[place_of_row])
    found = np.take_along_axis(rows, order.astype(np.int64), -1)
    return np.ascontiguousarray(np.moveaxis(found, -1, axis)), np.ascontiguousarray(np.moveaxis(order, -1, axis))


def numbers(seed: int, dtype: Dtype, shape: tuple[int, ...], kind: str = "any") -> np.ndarray:
    """Any bits at all, a few values with many ties, or the values that compare strangely."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.random(shape) < 0.5
    if kind == "any" or not dtype.is_inexact:
        raw = rng.integers(0, 256, (*shape, dtype.size), np.uint8)
        found = raw.view(dtype.np).reshape(shape)
        return found % 5 if kind == "few" else found
    pool = [0.0, 1.0, -2.5, 3.0] if kind == "few" else [0.0, -0.0, np.nan, -np.nan, np.inf, -np.inf, 1.0, -1.0]
    result = np.empty(shape, dtype.np)
    for part in (result.real, result.imag) if dtype.is_complex else (result,):
        part[...] = rng.choice(pool, shape).astype(part.dtype)
    return result


def check(x: Any, axis: int) -> None:
    """Both primitives, bits of NaNs included."""
    values, places = expected(values_of(x), axis)
    assert same_bits(native(Sort(axis), [x]), values, payloads=True)
    assert same_bits(native(ArgSort(axis), [x]), places)


@given(
    dtype=st.sampled_from(dt.ALL),
    shape=st.sampled_from([(37,), (3, 40), (40, 3), (2, 7, 5), (3, 2, 33), (1, 1), (4, 0), (0, 4), (90,), (5, 70)]),
    axis=st.integers(0, 2),
    layout=st.sampled_from(sorted(LAYOUTS)),
    kind=st.sampled_from(["any", "few", "special"]),
    seed=st.integers(0, 9),
)
def test_sorted_in_any_layout(
    dtype: Dtype, shape: tuple[int, ...], axis: int, layout: str, kind: str, seed: int
) -> None:
    arrange, shift = LAYOUTS[layout]
    check(place(arrange(numbers(seed, dtype, shape, kind)), shift), axis % len(shape))


@pytest.mark.parametrize("dtype", dt.ALL, ids=name_of)
@pytest.mark.parametrize("rows", [64, 83, 1111])
def test_many_short_rows(dtype: Dtype, rows: int) -> None:
    """Lanes go across rows of up to eight elements, which may lie apart."""
    for n, kind in itertools.product(range(2, 10), ("any", "few", "special")):
        x = numbers(n, dtype, (rows, n + 2), kind)
        check(place(x[:, 1:-1]), 1)
        check(place(np.ascontiguousarray(x[:, 1:-1])), 1)


def test_short_rows_in_a_batch_that_grows() -> None:
    """Sizes that keep changing are planned with symbols."""
    for rows, n in itertools.product((70, 100, 130, 64, 20), (3, 4, 6, 5, 9, 3)):
        check(place(numbers(n, dt.float32, (rows, n), "few")), 1)


@pytest.mark.parametrize("dtype", LEADERS, ids=name_of)
def test_every_length(dtype: Dtype) -> None:
    """Around the lengths of vectors, networks and merged runs."""
    for n in (*range(20), *range(30, 36), *range(62, 68), 95, 127, 128, 129, 191, 255, 256, 257, 300, 511, 515):
        for kind in ("any", "special"):
            check(place(numbers(n, dtype, (2, n), kind)), 1)


@pytest.mark.parametrize("dtype", [dt.float16, dt.float32, dt.float64], ids=name_of)
def test_zeros_and_nans_keep_their_order_and_their_bits(dtype: Dtype) -> None:
    bits = {2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.size]
    sign, quiet = 1 << (dtype.bits - 1), np.array(np.nan, dtype.np).view(bits)
    rng = np.random.default_rng(3)
    raw = rng.choice(np.array([0, sign, quiet | 1, quiet | 2 | sign, quiet | 3], bits), (3, 200))
    raw[0] = rng.choice(np.array([0, sign], bits), 200)  # no NaN
    raw[1, 100:] = np.array(-1.0, dtype.np).view(bits)
    check(place(raw.view(dtype.np)), 1)


def test_longer_rows_than_a_short_index() -> None:
    """Places beyond 16 bits take wider records."""
    for n in (65536, 65537):
        x = np.random.default_rng(n).integers(-300, 300, n).astype(np.int16)
        got = native(ArgSort(0), [place(x)])
        assert same_bits(got, np.argsort(x, kind="stable").astype(np.uint32))


@pytest.fixture
def little_cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is cut to fit a cache is cut earlier, so that short rows take the way of long ones."""
    monkeypatch.setattr(kernels, "CACHED", 1 << 11)
    monkeypatch.setattr(kernels, "BLOCK", 1 << 7)
    PROGRAMS.clear()  # they have been cut already
    yield
    PROGRAMS.clear()


@pytest.mark.usefixtures("little_cache")
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("dtype", LEADERS, ids=name_of)
def test_long_rows(dtype: Dtype, count: int, team: Callable[[int], None]) -> None:
    """Few rows are shared by threads, many are not."""
    team(count)
    for rows, n, kind in (
        (1, 2000, "any"),
        (2, 1111, "special"),
        (1, 4096, "few"),
        (9, 1030, "any"),
        (1, 4999, "special"),
    ):
        x = place(numbers(n, dtype, (rows, n), kind))
        order = np.stack([_numpy_order(row) for row in values_of(x)])
        assert same_bits(native(ArgSort(1), [x]), order.astype(np.uint32))
        assert same_bits(native(Sort(1), [x]), np.take_along_axis(values_of(x), order, 1), payloads=True)


def _numpy_order(row: np.ndarray) -> np.ndarray:
    if row.dtype.kind == "c":
        return np.array(order_of(row))
    return np.argsort(
        row.astype(np.float32) if row.dtype.itemsize == 2 and row.dtype.kind in "fV" else row, kind="stable"
    )


@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_same_at_every_level(level: int) -> None:
    for dtype in (dt.float32, dt.int64, dt.complex64):
        x = place(numbers(level, dtype, (3, 150), "special"))
        values, places = expected(values_of(x), 1)
        PROGRAMS.clear()
        with settings(llvm_level=level):
            assert same_bits(native(Sort(1), [x]), values, payloads=True)
            assert same_bits(native(ArgSort(1), [x]), places)
        PROGRAMS.clear()


@pytest.mark.parametrize("cpu", ["x86-64-v2", "x86-64-v3"])
def test_the_same_with_shorter_vectors(cpu: str) -> None:
    PROGRAMS.clear()
    try:
        with settings(cpu=cpu):
            for dtype in LEADERS:
                for n in (5, 21, 200):
                    check(place(numbers(n, dtype, (2, n), "special")), 1)
    except ConfigError as error:
        pytest.skip(str(error))
    finally:
        PROGRAMS.clear()


def test_compiled_and_fused() -> None:
    """Producers and consumers around a sort change nothing."""
    x, y = (numbers(seed, dt.float32, (5, 70), "few") for seed in (1, 2))

    def function(a: Any, b: Any) -> tuple[Any, ...]:
        total = a + b
        return mx.sort(total, axis=0) * 2, mx.argsort(total, axis=1), mx.sort(total.T, axis=0)[::-1]

    plain = [np.array(r) for r in function(mx.array(x), mx.array(y))]
    compiled = [np.array(r) for r in mx.compile(function)(mx.array(x), mx.array(y))]
    wanted = [expected(x + y, 0)[0] * 2, expected(x + y, 1)[1], expected(x + y, 1)[0].T[::-1]]
    for one, two, three in zip(plain, compiled, wanted, strict=True):
        assert same_bits(one, np.ascontiguousarray(three))
        assert same_bits(two, one)


# ---- the functions ----


def test_axes_and_shapes() -> None:
    x = mx.array([[3, 1, 2], [0, 5, 4]])
    assert mx.sort(x).tolist() == [[1, 2, 3], [0, 4, 5]]
    assert mx.sort(x, axis=0).tolist() == [[0, 1, 2], [3, 5, 4]]
    assert mx.sort(x, axis=None).tolist() == [0, 1, 2, 3, 4, 5]
    assert mx.argsort(x, axis=-2).tolist() == [[1, 0, 0], [0, 1, 1]]
    assert mx.argsort(x, axis=None).tolist() == [3, 1, 2, 0, 5, 4]
    assert mx.argsort(x).dtype is mx.uint32
    assert mx.sort(mx.array(3.0), axis=None).shape == (1,)
    with pytest.raises(IndexError, match="axis 2"):
        mx.sort(x, axis=2)
    with pytest.raises(IndexError, match=r"\[argsort\]"):
        mx.argsort(mx.array(1.0))


@given(
    shape=st.sampled_from([(9,), (4, 11), (3, 5, 6)]),
    axis=st.none() | st.integers(-1, 0),
    rank=st.integers(0, 400),
    kind=st.sampled_from(["any", "few", "special"]),
)
def test_partition_and_topk(shape: tuple[int, ...], axis: int | None, rank: int, kind: str) -> None:
    x = numbers(rank, dt.float32, shape, kind)
    flat = x.reshape(-1) if axis is None else np.moveaxis(x, axis, -1)
    n = flat.shape[-1]
    k = rank % n
    ordered = np.sort(flat, -1)
    found = np.array(mx.partition(mx.array(x), k - n if rank % 2 else k, axis=axis))
    places = np.array(mx.argpartition(mx.array(x), k, axis=axis)).astype(np.int64)
    taken = np.take_along_axis(x.reshape(-1), places, 0) if axis is None else np.take_along_axis(x, places, axis)
    for candidate in (found, taken):
        rows = candidate if axis is None else np.moveaxis(candidate, axis, -1)
        np.testing.assert_array_equal(np.sort(rows, -1), ordered)
        np.testing.assert_array_equal(rows[..., k], ordered[..., k])
        np.testing.assert_array_equal(np.sort(rows[..., :k], -1), ordered[..., :k])
    top = np.array(mx.topk(mx.array(x), k, axis=axis))
    rows = top if axis is None else np.moveaxis(top, axis, -1)
    np.testing.assert_array_equal(np.sort(rows, -1), ordered[..., n - k :])


@pytest.mark.parametrize("dtype", LEADERS, ids=name_of)
@pytest.mark.parametrize("kind", ["any", "few", "special", "rising", "falling", "equal"])
def test_selection_from_long_rows_is_that_of_a_sort(dtype: Dtype, kind: str) -> None:
    """Long enough to be selected from: the same elements, in the same order and to the bit, as a stable sort has."""
    n, shape = 3000, (3, 3000)
    x = numbers(3, dtype, shape, kind if kind in ("any", "few", "special") else "any")
    order = mx.argsort(mx.array(x, dtype))
    if kind in ("rising", "falling"):
        x = np.array(mx.take_along_axis(mx.array(x, dtype), order, -1)._view())
        x = np.ascontiguousarray(x[:, ::-1]) if kind == "falling" else x
    elif kind == "equal":
        x = np.broadcast_to(x[:, :1], shape).copy()
    a = mx.array(x, dtype)
    order = values_of(mx.argsort(a)).astype(np.int64)
    for k in (1, 7, 46):
        assert same_bits(values_of(mx.topk(a, k)), np.take_along_axis(x, order[:, n - k :], -1))
        for largest in (False, True):
            found = native(ArgSelect(1, k, largest), [a])
            np.testing.assert_array_equal(found, order[:, n - k :] if largest else order[:, :k])


@pytest.mark.parametrize("dtype", LEADERS, ids=name_of)
@pytest.mark.parametrize("kind", ["any", "few", "special", "rising", "falling", "equal", "two", "periodic", "outliers"])
def test_partition_of_middle_ranks(dtype: Dtype, kind: str) -> None:
    """Rows in which samples mislead, too: what is before and behind the element keeps the order of the row."""
    shape = (2, 1003)
    x = numbers(5, dtype, shape, kind if kind in ("any", "few", "special") else "any")
    order = values_of(mx.argsort(mx.array(x, dtype))).astype(np.int64)
    if kind in ("rising", "falling"):
        x = np.take_along_axis(x, order if kind == "rising" else order[:, ::-1], -1)
    elif kind in ("equal", "two"):
        x = np.where(np.arange(shape[1]) % 7 < (7 if kind == "equal" else 3), x[:, :1], x[:, 1:2])
    elif kind == "periodic":
        x = np.tile(x[:, :17], 59)
    elif kind == "outliers":  # nearly everything is in a small part of the range
        x = np.where(np.arange(shape[1]) % 501 == 0, x, numbers(6, dtype, shape, "few"))
    a = mx.array(x, dtype)
    order = values_of(mx.argsort(a)).astype(np.int64)
    for k in (0, 15, 250, 501, -16):
        rank = k % shape[1]
        wanted = np.concatenate(
            [np.sort(order[:, :rank], -1), order[:, rank : rank + 1], np.sort(order[:, rank + 1 :], -1)], -1
        )
        np.testing.assert_array_equal(values_of(mx.argpartition(a, k)), wanted)
        assert same_bits(values_of(mx.partition(a, k)), np.take_along_axis(x, wanted, -1))
    for k in (100, 501):
        assert same_bits(values_of(mx.topk(a, k)), np.take_along_axis(x, order[:, -k:], -1))


@given(
    n=st.integers(1, 300), rank=st.integers(0, 299), seed=st.integers(0, 9), distinct=st.sampled_from([1, 2, 9, 999])
)
def test_partition_at_every_length(n: int, rank: int, seed: int, distinct: int) -> None:
    x = np.random.default_rng(seed).integers(0, distinct, (3, n)).astype(np.float32)
    for op in (ArgPartition(1, rank % n), Partition(1, rank % n - n)):
        np.testing.assert_array_equal(native(op, [mx.array(x)]), op.reference(x))


@pytest.mark.parametrize("dtype", [np.int64, np.float32, np.uint8], ids=str)
def test_partition_where_samples_mislead(dtype: type) -> None:
    """What is sampled is larger than all else, or smaller, or all elements are near each other and some far away."""
    n = 20_000
    places = [place * n >> 22 for place in partition._PLACES]
    random = np.random.default_rng(3)
    near = random.integers(100, 110, n).astype(dtype)
    above, below, far = near.copy(), near.copy(), near.copy()
    above[places], below[places], far[:3] = 127, 0, (0, 1, 127)
    for x in (near, above, below, far):
        for rank in (0, 1, 70, n // 2, n - 70, n - 1):
            found = np.array(mx.partition(mx.array(x), rank))
            ordered = np.sort(x)
            assert found[rank] == ordered[rank]
            assert found[:rank].max(initial=0) <= ordered[rank] <= found[rank:].min()
            np.testing.assert_array_equal(np.sort(found), ordered)


def test_partition_of_any_length_when_compiled_once() -> None:
    """What is done depends on the length, not on whether that is known when the function is traced."""
    x = np.random.default_rng(0).standard_normal((2, 5000)).astype(np.float32)
    every = lambda a: (mx.partition(a, -30), mx.argpartition(a, 40), mx.median(a, axis=-1), mx.topk(a, 50))  # noqa: E731
    compiled = mx.compile(every, shapeless=True)
    for n in (100, 200, 3000, 65, 60, 5000):
        a = mx.array(x[:, :n])
        for found, wanted in zip(compiled(a), every(a), strict=True):
            assert same_bits(values_of(found), values_of(wanted))


@pytest.mark.parametrize("axis", [0, 1])
def test_partition_along_other_axes(axis: int) -> None:
    x = np.random.default_rng(0).permutation(20000).reshape(100, 200).astype(np.float32)
    views: list[Callable[[Any], Any]] = [lambda a: a, lambda a: a.T, lambda a: a[::-1], lambda a: a[:80, ::-2]]
    for view in views:
        places = ArgPartition(axis, 70).reference(view(x))
        found = np.take_along_axis(view(x), places, axis)
        np.testing.assert_array_equal(values_of(mx.argpartition(view(mx.array(x)), 70, axis=axis)), places)
        np.testing.assert_array_equal(values_of(mx.partition(view(mx.array(x)), 70, axis=axis)), found)


@pytest.mark.parametrize("dtype", [dt.int8, dt.bfloat16, dt.float32, dt.int64, dt.float64], ids=name_of)
@pytest.mark.parametrize("kind", ["any", "few", "special", "rising", "pipe", "equal", "two", "outliers"])
def test_long_rows_are_sorted_by_pivots(dtype: Dtype, kind: str) -> None:
    """Rows long enough to be divided, in which pivots are of little use, too."""
    n = 5000
    x = numbers(7, dtype, (2, n), kind if kind in ("any", "few", "special") else "any")
    if kind in ("rising", "pipe"):
        x = Sort(1).reference(x)
        x = np.concatenate([x[:, ::2], x[:, ::-2]], -1) if kind == "pipe" else x
    elif kind in ("equal", "two"):
        x = np.where(np.arange(n) % 7 < (7 if kind == "equal" else 3), x[:, :1], x[:, 1:2])
    elif kind == "outliers":
        x = np.where(np.arange(n) % 501 == 0, x, numbers(6, dtype, (2, n), "few"))
    a = mx.array(x, dtype)
    assert same_bits(values_of(mx.sort(a)), Sort(1).reference(x))
    np.testing.assert_array_equal(values_of(mx.argsort(a)), ArgSort(1).reference(x))


@pytest.mark.parametrize("dtype", [dt.int32, dt.float32, dt.uint64, dt.float64], ids=name_of)
def test_parts_of_every_length_are_divided(dtype: Dtype) -> None:
    """Whatever is left over where vectors are read from both ends, and nothing behind a row is written."""
    for n in (*range(4097, 4097 + 70, 3), 5555, 8191, 9000):
        x = np.random.default_rng(n).integers(0, 1 << (9 + n % 50), (2, n)).astype(dtype.np)
        assert same_bits(values_of(mx.sort(mx.array(x, dtype))), np.sort(x, 1))


def _crowded(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    """64-bit elements, many of which agree in the bits that fit into a word beside their places."""
    if kind == "close":  # to one another, but for one
        x = 1 + rng.integers(0, 2000, (2, n)) * 2.0**-52
        x[:, 0] = 1e300, -1e300
        return x
    if kind == "pairs":
        return np.repeat(rng.standard_normal((2, (n + 1) // 2)), 2, axis=-1)[:, :n]
    if kind == "groups":
        return rng.integers(0, n, (2, n)) + rng.integers(0, 3, (2, n)) * 2.0**-40
    if kind == "special":
        return rng.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -1.0], (2, n))
    if kind == "wide":
        return rng.integers(-(2**63), 2**63 - 1, (2, n))
    return np.where(rng.random((2, n)) < 0.3, 2**62, 0) + rng.integers(0, 50, (2, n))


@pytest.mark.parametrize("kind", ["close", "pairs", "groups", "special", "wide", "few"])
def test_places_of_64_bit_elements(kind: str) -> None:
    for n in (2, 17, 64, 100, 129, 1025, 5000):
        x = _crowded(kind, np.random.default_rng(n), n)
        found = mx.argsort(mx.array(x, mx.float64 if x.dtype.kind == "f" else mx.int64), axis=-1)
        np.testing.assert_array_equal(np.array(found), np.argsort(x, axis=-1, kind="stable"))


def test_selection_along_other_axes_and_its_derivative() -> None:
    x = np.random.default_rng(0).permutation(4000).reshape(2000, 2).astype(np.float32)
    np.testing.assert_array_equal(values_of(mx.topk(mx.array(x), 5, axis=0)), np.sort(x, 0)[-5:])
    np.testing.assert_array_equal(values_of(mx.topk(mx.array(x.T)[:, ::-1], 5)), np.sort(x.T, -1)[:, -5:])
    weights = mx.arange(1.0, 6.0)
    found = values_of(mx.grad(lambda a: (mx.topk(a, 5, axis=0) * weights[:, None]).sum())(mx.array(x)))
    wanted = np.zeros_like(x)
    np.put_along_axis(wanted, np.argsort(x, 0)[-5:], np.arange(1.0, 6.0, dtype=np.float32)[:, None], 0)
    np.testing.assert_array_equal(found, wanted)


def test_ranks_out_of_range() -> None:
    x = mx.array([3, 1, 2])
    for function in (mx.partition, mx.argpartition):
        for kth in (3, -4):
            with pytest.raises(ValueError, match="out of range for 3 elements"):
                function(x, kth)
        with pytest.raises(TypeError, match="kth"):
            function(x, 1.5)
    for k in (4, -1):
        with pytest.raises(ValueError, match=r"\[topk\]"):
            mx.topk(x, k)
    assert mx.topk(x, 0).shape == (0,)
    assert mx.topk(x, 3).tolist() == [1, 2, 3]


@given(
    dtype=st.sampled_from([d for d in dt.ALL if not d.is_complex and d is not dt.bfloat16]),
    n=st.sampled_from([0, 1, 2, 7, 16, 33, 200]),
    shape=st.sampled_from([(), (1,), (40,), (3, 17), (0, 2)]),
    side=st.sampled_from(["left", "right"]),
    kind=st.sampled_from(["any", "few", "special"]),
)
def test_searchsorted(dtype: Dtype, n: int, shape: tuple[int, ...], side: str, kind: str) -> None:
    rows, values = np.sort(numbers(n, dtype, (n,), kind)), numbers(n + 1, dtype, shape, kind)
    found = mx.searchsorted(mx.array(rows, dtype=dtype), mx.array(values, dtype=dtype), side)
    assert found.dtype is mx.uint32
    np.testing.assert_array_equal(np.array(found), np.searchsorted(rows, values, side))


def test_searchsorted_promotes_and_refuses() -> None:
    rows = mx.array([1, 2, 2, 4])
    assert mx.searchsorted(rows, mx.array([1.5, 2.5])).tolist() == [1, 3]
    assert mx.searchsorted(rows, 2).item() == 1
    assert mx.searchsorted(rows, 2, side="right").item() == 3
    assert mx.searchsorted(mx.array([1.0, 2.0], dtype=mx.float16), 1.5).item() == 1
    assert mx.searchsorted(rows.astype(mx.uint8), mx.array([-1])).tolist() == [0]
    with pytest.raises(ValueError, match="one axis"):
        mx.searchsorted(mx.array([[1, 2]]), rows)
    with pytest.raises(ValueError, match="'middle'"):
        mx.searchsorted(rows, rows, side="middle")


@given(seed=st.integers(0, 99), n=st.integers(1, 40), size=st.integers(0, 12), distinct=st.integers(1, 8))
def test_unique(seed: int, n: int, size: int, distinct: int) -> None:
    x = np.random.default_rng(seed).integers(-distinct, distinct, n).astype(np.int32)
    values, index, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    found = [np.array(r) for r in mx.unique(mx.array(x), size, True, True, True)]
    kept = min(size, len(values))
    for got, wanted in zip((found[0], found[1], found[3]), (values, index, counts), strict=True):
        assert got.shape == (size,)
        np.testing.assert_array_equal(got[:kept], wanted[:kept])
    assert np.all(found[0][kept:] == values[0])
    assert not found[3][kept:].any()
    assert found[2].shape == x.shape
    np.testing.assert_array_equal(found[2], np.minimum(inverse, max(size - 1, 0)))
    assert [r.dtype.name for r in found] == ["int32", "uint32", "uint32", "int32"]


def test_unique_of_floats() -> None:
    x = mx.array([[2.0, np.nan], [np.nan, -0.0], [0.0, 2.0]])
    values, inverse = mx.unique(x, 6, return_inverse=True, fill_value=7)
    assert (
        str(values.tolist()) == "[-0.0, 2.0, nan, nan, 7.0, 7.0]"
    )  # every NaN is another one; of equal zeros the first
    assert inverse.tolist() == [[1, 2], [3, 0], [0, 1]]
    assert mx.unique(mx.array([True, False, True]), 2).tolist() == [False, True]
    assert mx.unique(mx.zeros((0,)), 2, fill_value=3).tolist() == [3, 3]
    with pytest.raises(ValueError, match="fill_value"):
        mx.unique(mx.zeros((0,)), 2)
    with pytest.raises(ValueError, match="one element"):
        mx.unique(x, 2, fill_value=mx.array([1, 2]))
    with pytest.raises(ValueError, match="negative"):
        mx.unique(x, -1)
    with pytest.raises(TypeError, match="integer"):
        mx.unique(x, 2.0)


@given(
    shape=st.sampled_from([(1,), (2,), (7,), (8,), (3, 5), (4, 6), (2, 3, 4)]),
    axis=st.sampled_from([None, 0, -1, (0, -1), ()]),
    keepdims=st.booleans(),
    dtype=st.sampled_from([dt.float32, dt.int32, dt.bool_, dt.float64]),
)
def test_median(shape: tuple[int, ...], axis: Any, keepdims: bool, dtype: Dtype) -> None:
    if isinstance(axis, tuple) and len({a % len(shape) for a in axis}) < len(axis):
        axis = 0
    x = numbers(len(shape), dtype, shape, "few")
    found = mx.median(mx.array(x, dtype=dtype), axis=axis, keepdims=keepdims)
    wide = x.astype(np.float64)
    wanted = wide if axis == () else np.median(wide, axis=axis, keepdims=keepdims)
    assert found.dtype is (dtype if dtype.is_float else mx.float32)
    np.testing.assert_array_equal(np.array(found), wanted.astype(np.array(found).dtype))


@pytest.mark.parametrize("n", [65, 66, 999, 1000])
def test_median_of_long_rows(n: int) -> None:
    x = numbers(n, dt.float32, (7, n), "few")
    x[0, 3], x[1, :] = np.nan, -0.0
    x[2, : n // 2] = np.inf
    found, ordered = values_of(mx.median(mx.array(x), axis=1)), np.sort(x, 1, kind="stable")
    wanted = ordered[:, n // 2] if n % 2 else (ordered[:, n // 2 - 1] + ordered[:, n // 2]) * np.float32(0.5)
    assert same_bits(found[1:], wanted[1:])
    assert np.isnan(found[0])
    check_derivatives(lambda a: mx.median(a, axis=1), apart(2, n))


def test_median_of_strange_numbers() -> None:
    nan = mx.median(mx.array([[1.0, np.nan, 2.0], [3.0, 1.0, 2.0]]), axis=1)
    assert str(nan.tolist()) == "[nan, 2.0]"
    assert mx.median(mx.array([60000, 65504], dtype=mx.float16)).item() == 62752  # the sum would not be finite
    assert mx.median(mx.array([1.0, np.inf])).item() == np.inf
    with pytest.raises(ValueError, match="size 0"):
        mx.median(mx.zeros((2, 0)), axis=1)
    assert mx.median(mx.zeros((2, 0)), axis=0).shape == (0,)


def test_minmax() -> None:
    low, high = mx.minmax(mx.array([[3, 1], [2, 5]]), axis=1, keepdims=True)
    assert (low.tolist(), high.tolist()) == ([[1], [2]], [[3], [5]])


# ---- derivatives and batches ----


def apart(*shape: int) -> np.ndarray:
    """Numbers that small steps do not exchange."""
    return np.random.default_rng(sum(shape)).permutation(np.arange(np.prod(shape)) * 0.25).reshape(shape)


@pytest.mark.parametrize("axis", [0, 1, -1, None])
def test_derivatives(axis: int | None) -> None:
    x = apart(4, 5, 3)
    check_derivatives(lambda a: mx.sort(a, axis=axis), x)
    check_derivatives(lambda a: mx.topk(a, 2, axis=axis), x)
    check_derivatives(lambda a: mx.partition(a, 1, axis=axis) ** 2, x)
    check_derivatives(lambda a: mx.median(a, axis=axis), x)


def test_derivatives_of_distinct_elements() -> None:
    x = np.array([0.5, 2.0, 0.25, 2.5])
    check_derivatives(lambda a: mx.unique(a, 3) ** 2, x)
    check_derivatives(lambda a: mx.unique(a, 6, fill_value=a[1]), x)


def test_second_derivatives() -> None:
    check_derivatives(mx.grad(lambda a: (mx.sort(a, axis=0) ** 3).sum()), apart(5, 2))


def test_gradient_of_ties_follows_the_stable_order() -> None:
    x, weights = mx.array([1.0, 0.0, 1.0, 0.0]), mx.array([1.0, 2.0, 3.0, 4.0])
    _, (found,) = mx.vjp(mx.sort, [x], [weights])
    assert found.tolist() == [3.0, 1.0, 4.0, 2.0]


def test_places_have_no_gradient() -> None:
    x = mx.array([3.0, 1.0, 2.0])
    assert mx.grad(lambda a: mx.argsort(a).astype(mx.float32).sum())(x).tolist() == [0, 0, 0]
    assert mx.grad(lambda a: mx.searchsorted(a, a).astype(mx.float32).sum())(x).tolist() == [0, 0, 0]


def test_batches() -> None:
    x = apart(3, 4, 5)
    for mapped in range(3):
        for axis in (0, 1, None):
            check_batch(lambda a, axis=axis: mx.sort(a, axis=axis), (mapped,), x)
            check_batch(lambda a, axis=axis: mx.argsort(a, axis=axis), (mapped,), x)
        check_batch(lambda a: mx.median(a, axis=1), (mapped,), x)
        check_batch(lambda a: mx.unique(a, 4, return_inverse=True)[1], (mapped,), x // 2)
    rows, values = np.sort(apart(4, 7), axis=1), apart(4, 5) / 2
    check_batch(mx.searchsorted, (0, 0), rows, values)
    check_batch(mx.searchsorted, (0, None), rows, values[0])
    check_batch(mx.searchsorted, (None, 1), rows[0], values)
    two = np.stack([rows, rows + 1])
    check_batch(lambda r, v: mx.vmap(mx.searchsorted)(r, v), (None, 2), rows, np.stack([values, values + 1], 2))
    check_batch(lambda r, v: mx.vmap(mx.searchsorted)(r, v), (0, None), two, values)
