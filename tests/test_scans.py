"""Running sums, products and extremes: against NumPy bit by bit, in every layout, with derivatives and on any number
of threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
import weft.core as mx
from tests.contract import LAYOUTS, place, same_bits, values_of
from tests.gradients import check_batch, check_derivatives
from weft import dtypes as dt
from weft.array import wrap
from weft.dtypes import Dtype
from weft.primitives.base import bind
from weft.primitives.elementwise import draw as draw_values
from weft.primitives.scans import Recurrence

STEPS = {
    "cumsum": np.add,
    "cumprod": np.multiply,
    "cummax": np.maximum,
    "cummin": np.minimum,
    "logcumsumexp": np.logaddexp,
}
WIDER = {dt.float32: np.dtype(np.float64), dt.complex64: np.dtype(np.complex128)}
"""What running sums are carried in, where that is not as for other scans."""
REALS = tuple(d for d in dt.ALL if not d.is_complex and not d.is_bool)


def expected(name: str, x: np.ndarray, axis: int, reverse: bool, inclusive: bool) -> np.ndarray:
    """One step after the other, in float32 for halves and sums of float32 in float64, as the specification says."""
    dtype = dt.from_numpy(x.dtype)
    wide = np.dtype(np.float32) if dtype in dt.HALVES else x.dtype
    if name == "cumsum":
        wide = WIDER.get(dtype, wide)
    rows = np.moveaxis(np.flip(x, axis) if reverse else x, axis, 0).astype(wide)
    out = np.empty_like(rows)
    lowest, highest = (-np.inf, np.inf) if dtype.is_inexact else (np.iinfo(wide).min, np.iinfo(wide).max)
    first = {"cumsum": 0, "cumprod": 1, "cummax": lowest, "cummin": highest, "logcumsumexp": -np.inf}[name]
    carry: Any = None
    with np.errstate(all="ignore"):
        for j, row in enumerate(rows):
            after = row if carry is None else STEPS[name](carry, row)
            before = np.full_like(row, first) if carry is None else carry
            out[j] = after if inclusive else before
            carry = after
    result = np.moveaxis(out, 0, axis).astype(x.dtype)
    return np.flip(result, axis) if reverse else result


@given(
    name=st.sampled_from(["cumsum", "cumprod", "cummax", "cummin"]),
    dtype=st.sampled_from(REALS),
    shape=st.sampled_from([(40,), (3, 40), (33, 17), (5, 130), (2, 6, 19), (4, 3, 5), (1, 1), (0, 3), (3, 0), (500,)]),
    axis=st.integers(-1, 2),
    layout=st.sampled_from(sorted(LAYOUTS)),
    reverse=st.booleans(),
    inclusive=st.booleans(),
)
def test_scans_go_step_by_step(
    name: str, dtype: Dtype, shape: tuple[int, ...], axis: int, layout: str, reverse: bool, inclusive: bool
) -> None:
    arrange, shift = LAYOUTS[layout]
    x = place(arrange(draw_values(np.random.default_rng(1), dtype, shape, -2.0, 2.0)), shift)
    axis = axis % len(shape)
    got = values_of(getattr(mx, name)(x, axis=axis, reverse=reverse, inclusive=inclusive))
    assert same_bits(got, np.ascontiguousarray(expected(name, values_of(x), axis, reverse, inclusive)))


@pytest.mark.parametrize("length", [2, 3, 4, 7, 8, 13, 16])
@pytest.mark.parametrize("dtype", [dt.int8, dt.float16, dt.float32, dt.int64, dt.complex64], ids=str)
def test_many_short_rows(length: int, dtype: Dtype) -> None:
    """Lanes go across them, in whole vectors that reach into the rows beside theirs."""
    for layout, reverse in itertools.product(sorted(LAYOUTS), (False, True)):
        arrange, shift = LAYOUTS[layout]
        x = place(arrange(draw_values(np.random.default_rng(1), dtype, (83, length), -2.0, 2.0)), shift)
        for inclusive in (False, True):
            got = values_of(mx.cumsum(x, axis=1, reverse=reverse, inclusive=inclusive))
            wanted = expected_sums(values_of(x), reverse, inclusive)
            assert same_bits(got, wanted), (layout, reverse, inclusive)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("dtype", [dt.int8, dt.uint32, dt.int64, dt.float16, dt.float32], ids=str)
def test_scans_of_equal_elements_are_scans(name: str, dtype: Dtype) -> None:
    """Equal rows are scanned once, equal integers are counted; the bits are those of elements that lie in memory."""
    shape = (7, 300)
    row, column = (draw_values(np.random.default_rng(3), dtype, n, -2.0, 2.0) for n in ((300,), (7, 1)))
    for x, axis, reverse, inclusive in itertools.product((row, column), (0, 1), (False, True), (False, True)):

        def scanned(x: mx.array, axis: int = axis, reverse: bool = reverse, inclusive: bool = inclusive) -> mx.array:
            return getattr(mx, name)(mx.broadcast_to(x, shape), axis=axis, reverse=reverse, inclusive=inclusive)

        with np.errstate(all="ignore"):
            wanted = expected(name, np.broadcast_to(x, shape), axis, reverse, inclusive)
        for function in (scanned, mx.compile(scanned), mx.compile(scanned, shapeless=True)):
            assert same_bits(values_of(function(mx.array(x))), np.ascontiguousarray(wanted)), (axis, reverse, inclusive)


def test_a_running_sum_of_equal_integers_is_a_map() -> None:
    x = mx.array([3], dtype=mx.int64)
    report = str(weft.explain(lambda x: mx.cumsum(mx.broadcast_to(x, (100,))), x))
    assert "cum_sum" not in report[report.index("== kernels") :]


def expected_sums(x: np.ndarray, reverse: bool, inclusive: bool) -> np.ndarray:
    """`expected`, of numbers that have no bounds too."""
    if not dt.from_numpy(x.dtype).is_complex:
        return np.ascontiguousarray(expected("cumsum", x, 1, reverse, inclusive))
    rows = np.flip(x, 1) if reverse else x
    sums = np.cumsum(rows, 1, dtype=WIDER[dt.complex64]).astype(x.dtype)
    sums = sums if inclusive else np.concatenate([np.zeros_like(sums[:, :1]), sums[:, :-1]], 1)
    return np.ascontiguousarray(np.flip(sums, 1) if reverse else sums)


def test_short_rows_of_several_axes_and_on_several_threads() -> None:
    x = draw_values(np.random.default_rng(2), dt.float32, (3, 5, 700), -2.0, 2.0)
    for view in (x.transpose(1, 2, 0), x.transpose(2, 1, 0), x[:, :, ::2].transpose(0, 2, 1)):
        for reverse in (False, True):
            got = values_of(mx.cumsum(place(view), axis=2, reverse=reverse))
            assert same_bits(got, np.ascontiguousarray(expected("cumsum", view, 2, reverse, True)))


@pytest.mark.parametrize("dtype", [dt.float16, dt.bfloat16, dt.float32, dt.float64], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
def test_logcumsumexp(dtype: Dtype, axis: int) -> None:
    x = draw_values(np.random.default_rng(2), dtype, (21, 40), -3.0, 3.0)
    got = values_of(mx.logcumsumexp(mx.array(x, dtype=dtype), axis=axis)).astype(np.float64)
    wanted = np.logaddexp.accumulate(x.astype(np.float64), axis)
    scale = np.maximum(np.abs(wanted), 1.0)
    assert np.all(np.abs(got - wanted) <= 24 * float(mx.finfo(dtype).eps) * scale)


def test_values_that_are_not_finite() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[1, nan, 3, inf], [-inf, -inf, 2, inf], [-0.0, -0.0, 0.0, -inf]], np.float32)
    for name in ("cumsum", "cumprod", "cummax", "cummin"):
        for reverse in (False, True):
            got = values_of(getattr(mx, name)(mx.array(x), axis=1, reverse=reverse))
            assert same_bits(got, np.ascontiguousarray(expected(name, x, 1, reverse, True)))
    np.testing.assert_array_equal(
        values_of(mx.logcumsumexp(mx.array([[-inf, -inf, 2, 2], [nan, 0, 0, 0]]), axis=1)),
        np.array([[-inf, -inf, 2, np.float32(2 + np.log(2))], [nan] * 4], np.float32),
    )


def test_overflow_of_integers_wraps() -> None:
    x = np.full((2, 20), 100, np.int8)
    assert same_bits(values_of(mx.cumsum(mx.array(x), axis=1)), np.cumsum(x, 1, dtype=np.int8))
    assert same_bits(values_of(mx.cumprod(mx.array(x), axis=1)), np.cumprod(x, 1, dtype=np.int8))


def test_shapes_and_dtypes() -> None:
    x = mx.array([[1, 2], [3, 4]])
    assert mx.cumsum(x).tolist() == [1, 3, 6, 10]
    assert mx.cumsum(mx.array(3.0)).shape == (1,)
    assert x.cumsum(axis=0).tolist() == [[1, 2], [4, 6]]
    assert mx.cumsum(mx.array([True, False, True])).dtype is mx.int32
    assert mx.cumprod(mx.array([True, False, True])).tolist() == [True, False, False]
    assert mx.cummax(mx.array([False, True, False])).tolist() == [False, True, True]
    assert mx.cumsum(x, dtype=mx.float32).dtype is mx.float32
    assert mx.cumprod(x, dtype=mx.int64).dtype is mx.int64
    assert mx.logcumsumexp(x).dtype is mx.float32
    assert mx.cummin(x.astype(mx.uint8)).dtype is mx.uint8
    np.testing.assert_array_equal(np.array(mx.cumsum(mx.array([1j, 2 + 1j]))), np.array([1j, 2 + 2j], np.complex64))
    with pytest.raises(IndexError, match="axis 3"):
        mx.cumsum(x, axis=3)


@pytest.mark.parametrize("dtype", [dt.complex64, dt.complex128], ids=lambda d: d.name)
@pytest.mark.parametrize("reverse", [False, True])
def test_complex_numbers_are_ordered_by_their_parts(dtype: Dtype, reverse: bool) -> None:
    rng = np.random.default_rng(5)
    x = (rng.integers(-2, 3, (4, 19)) + 1j * rng.integers(-2, 3, (4, 19))).astype(dtype.np)
    x[1, 7], x[2, 3] = complex(np.nan, 1), complex(2, np.nan)
    for axis in (0, 1):
        y = np.flip(x, axis) if reverse else x
        for name, ufunc in (("cummax", np.maximum), ("cummin", np.minimum)):
            wanted = ufunc.accumulate(y, axis)
            wanted = np.flip(wanted, axis) if reverse else wanted
            got = values_of(getattr(mx, name)(mx.array(x, dtype), axis=axis, reverse=reverse))
            np.testing.assert_array_equal(got, wanted)


def test_logcumsumexp_of_complex_numbers() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(3, 12)) + 1j * rng.normal(size=(3, 12))
    got = values_of(mx.logcumsumexp(mx.array(x, mx.complex128), axis=1))
    np.testing.assert_allclose(np.exp(got), np.cumsum(np.exp(x), 1), rtol=1e-13)
    far = mx.logcumsumexp(mx.array([1000 + 1j, 1000 + 2j, -mx.inf], mx.complex128))
    np.testing.assert_allclose(np.exp(values_of(far) - 1000), np.cumsum(np.exp([1j, 2j, -np.inf])), rtol=1e-13)


def test_many_axes_are_walked_in_place() -> None:
    x = draw_values(np.random.default_rng(3), dt.float32, (3, 4, 5, 6))
    for order in [(0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)]:
        turned = mx.array(x).transpose(order)
        for axis in range(4):
            got = values_of(mx.cumsum(turned, axis=axis))
            sums = np.cumsum(x.transpose(order), axis, dtype=np.float64)  # in which they are carried
            assert same_bits(got, np.ascontiguousarray(sums.astype(np.float32)))


def test_running_sums_of_many_ones() -> None:
    """In float32 they would stand still at 2**24."""
    n = (1 << 24) + 1000
    sums = mx.cumsum(mx.ones((n,)))
    assert [sums[k].item() for k in (0, (1 << 24) - 1, n - 1)] == [1.0, float(1 << 24), float(n)]
    both = mx.cumsum(mx.full((2, n), 1 + 1j), axis=1)
    assert both[1, -1].item() == complex(n, n)


@pytest.mark.parametrize("name", ["cumsum", "logcumsumexp"])
def test_the_same_bits_on_any_number_of_threads(name: str, team: Callable[[int], None]) -> None:
    x = mx.array(draw_values(np.random.default_rng(4), dt.float32, (130, 301)))
    found = []
    for n in (1, 2, 3):
        team(n)
        found.append([values_of(getattr(mx, name)(x, axis=axis)) for axis in (0, 1)])
    for later in found[1:]:
        assert all(same_bits(a, b) for a, b in zip(found[0], later, strict=True))


# ---- derivatives ----


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_derivatives(name: str, reverse: bool, axis: int) -> None:
    x = np.random.default_rng(5).uniform(-2.0, 2.0, (4, 5))
    scan = getattr(mx, name)
    check_derivatives(lambda a: scan(a, axis=axis, reverse=reverse), x)
    tail = (slice(None, -1) if reverse else slice(1, None), slice(None))
    key = tail if axis == 0 else tail[::-1]  # without the first result, which is the same for all x and may be infinite
    check_derivatives(lambda a: scan(a, axis=axis, reverse=reverse, inclusive=False)[key], x)


def test_products_with_zeros_have_derivatives() -> None:
    x = np.array([[2.0, 0.0, 3.0, 0.0, 5.0], [0.0, 0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0, 0.0]])
    check_derivatives(lambda a: mx.cumprod(a, axis=1), x)
    check_derivatives(lambda a: mx.cumprod(a, axis=1, reverse=True, inclusive=False), x)


def test_ties_and_nan_of_running_extremes() -> None:
    """Of equal elements the latest has the gradient; from a NaN on, the first NaN has it."""

    def gradient(x: list[float]) -> list[float]:
        return mx.vjp(lambda a: mx.cummax(a, axis=0), [mx.array(x)], [mx.ones((len(x),))])[1][0].tolist()

    assert gradient([1.0, 3.0, 3.0, 2.0]) == [1.0, 1.0, 2.0, 0.0]
    assert gradient([1.0, float("nan"), 5.0, float("nan")]) == [1.0, 3.0, 0.0, 0.0]
    assert gradient([-np.inf, -np.inf, 0.0]) == [1.0, 1.0, 1.0]


def test_masked_elements_have_no_weight() -> None:
    x = mx.array([-np.inf, 0.0, -np.inf, 0.0])
    _, (found,) = mx.vjp(lambda a: mx.logcumsumexp(a, axis=0), [x], [mx.ones((4,))])
    assert found.tolist() == [0.0, 2.5, 0.0, 0.5]


def test_second_derivatives() -> None:
    x = np.random.default_rng(6).uniform(0.5, 1.5, (3, 4))
    for name in ("cumsum", "cumprod", "logcumsumexp"):
        scan = getattr(mx, name)
        check_derivatives(mx.grad(lambda a, scan=scan: (scan(a, axis=1) ** 2).sum()), x)


@pytest.mark.parametrize("reverse", [False, True])
def test_recurrence(reverse: bool) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.normal(size=(6, 4)), rng.normal(size=(6, 4))
    op = Recurrence(0, reverse)
    check_derivatives(lambda x, y: wrap(bind(op, x._node, y._node)), a, b)
    y = np.zeros(4)
    for j in range(5, -1, -1) if reverse else range(6):
        y = a[j] * y + b[j]
    got = values_of(wrap(bind(op, mx.array(a, dtype=mx.float64)._node, mx.array(b, dtype=mx.float64)._node)))
    assert same_bits(got[0 if reverse else 5], y)


def test_batches() -> None:
    x = np.random.default_rng(8).normal(size=(3, 4, 5))
    for name in STEPS:
        for mapped, axis in [(0, 0), (1, 1), (2, 0)]:
            check_batch(lambda a, name=name, axis=axis: getattr(mx, name)(a, axis=axis), (mapped,), x)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
@pytest.mark.parametrize("scan", [mx.cumsum, mx.cumprod, mx.cummax], ids=lambda scan: scan.__name__)
def test_a_single_row_of_halves_is_like_many(dtype: Any, scan: Any) -> None:
    """Its elements are converted 16 at a time, and added one by one."""
    for n in (1, 15, 16, 17, 33, 1000):
        x = mx.array(np.random.default_rng(n).standard_normal(n).astype(np.float32)).astype(dtype)
        for view in (x, x[::-1]):
            for reverse, inclusive in itertools.product((False, True), repeat=2):
                alone = scan(view, reverse=reverse, inclusive=inclusive)
                rows = scan(mx.stack([view] * 5), axis=-1, reverse=reverse, inclusive=inclusive)
                np.testing.assert_array_equal(
                    np.array(alone.view(mx.uint16)), np.array(mx.contiguous(rows[2]).view(mx.uint16))
                )
