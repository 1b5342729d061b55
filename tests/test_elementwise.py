"""Elementwise functions as users call them, against NumPy and exact arithmetic: promotion, composites, edges, errors.

What single primitives compute is the business of tests/test_contract.py; MLX's answers, of tests/parity.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests import contract
from tests.contract import LAYOUTS, place, values_of
from tests.gradients import check_batch, check_derivatives
from weft import dtypes as dt
from weft import explain
from weft.dtypes import Dtype
from weft.primitives import elementwise, logarithms, rounding, trigonometry
from weft.primitives.elementwise import draw as draw_values

inf, nan = math.inf, math.nan
REALS = tuple(d for d in dt.ALL if not d.is_complex)
SHAPES = ((), (0,), (5,), (3, 37), (2, 0, 3))


@st.composite
def arrays(draw: st.DrawFn, dtype: Dtype, shape: tuple[int, ...], low: float = -30.0, high: float = 30.0) -> Any:
    """An evaluated array in some memory layout."""
    arrange, shift = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    return place(arrange(draw_values(rng, dtype, shape, low, high)), shift)


def wide(x: np.ndarray) -> np.ndarray:
    """Halves as float32, in which kernels compute them."""
    return x.astype(np.float32) if dt.from_numpy(x.dtype) in dt.HALVES else x


def exactly(got: Any, expected: Any) -> None:
    """The same shape, dtype and elements; NaNs are equal."""
    found, want = values_of(got), np.asarray(expected)
    assert found.dtype == want.dtype
    assert found.shape == want.shape
    np.testing.assert_array_equal(found, want)


# ---- functions that are one primitive ----

FUNCTIONS = {
    "log2": (logarithms.Log2, np.log2, (0.01, 30)), "log10": (logarithms.Log10, np.log10, (0.01, 30)),
    "log1p": (elementwise.Log1p, np.log1p, (-0.9, 30)), "tan": (trigonometry.Tan, np.tan, (-30, 30)),
    "arcsin": (trigonometry.ArcSin, np.arcsin, (-1, 1)), "arccos": (trigonometry.ArcCos, np.arccos, (-1, 1)),
    "arctan": (trigonometry.ArcTan, np.arctan, (-30, 30)), "sinh": (trigonometry.Sinh, np.sinh, (-30, 30)),
    "cosh": (trigonometry.Cosh, np.cosh, (-30, 30)), "arcsinh": (trigonometry.ArcSinh, np.arcsinh, (-30, 30)),
    "arccosh": (trigonometry.ArcCosh, np.arccosh, (1, 30)), "arctanh": (trigonometry.ArcTanh, np.arctanh, (-0.9, 0.9)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=12)
@given(data=st.data(), dtype=st.sampled_from(REALS), shape=st.sampled_from(SHAPES))
def test_functions_make_floats_of_integers(
    name: str, data: st.DataObject, dtype: Dtype, shape: tuple[int, ...]
) -> None:
    cls, function, (low, high) = FUNCTIONS[name]
    x = data.draw(arrays(dtype, shape, low, high))
    got = values_of(getattr(mx, name)(x))
    source = values_of(x) if dtype.is_float else values_of(x).astype(np.float32)
    with np.errstate(all="ignore"):
        expected = function(wide(source)).astype(source.dtype)
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    error = contract.errors_in_ulp(cls(), [source], got, expected)
    assert not error.size or error.max() <= cls.tolerance[dt.from_numpy(source.dtype)]


def test_aliases_are_the_same_functions() -> None:
    for short, long in {"acos": "arccos", "asin": "arcsin", "atan": "arctan", "atan2": "arctan2", "pow": "power",
                        "acosh": "arccosh", "asinh": "arcsinh", "atanh": "arctanh", "conj": "conjugate",
                        "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift"}.items():  # fmt: skip
        assert getattr(mx, short) is getattr(mx, long)


# ---- division with a whole quotient ----


@settings(max_examples=60)
@given(data=st.data(), dtype=st.sampled_from(REALS), shape=st.sampled_from(SHAPES))
def test_remainder_and_floor_divide(data: st.DataObject, dtype: Dtype, shape: tuple[int, ...]) -> None:
    x, y = data.draw(arrays(dtype, shape)), data.draw(arrays(dtype, shape))
    a, b = values_of(x), values_of(y)
    exactly(x % y, contract.reference(rounding.Remainder(), [a, b]))
    with np.errstate(all="ignore"):
        if dtype.is_float:
            quotient = (wide(a) / wide(b)).astype(dtype.np)
            exactly(x // y, np.floor(wide(quotient)).astype(dtype.np))
        else:
            exactly(x // y, contract.reference(rounding.FloorDivide(), [a, b]))
    exactly(divmod(x, y)[0], values_of(x // y))
    exactly(mx.divmod(x, y)[1], values_of(x % y))


@settings(max_examples=60)
@given(data=st.data(), dtype=st.sampled_from(dt.INTEGERS))
def test_quotient_and_remainder_make_the_dividend(data: st.DataObject, dtype: Dtype) -> None:
    """x == y * (x // y) + x % y for every pair, the smallest integer, -1 and 0 among them; else what Python says."""
    info = np.iinfo(dtype.np)
    numbers = st.integers(int(info.min), int(info.max)) | st.sampled_from([0, 1, int(info.max), int(info.min)])
    a, b = data.draw(numbers), data.draw(numbers | st.just(-1 if info.min else 1))
    x, y = mx.array(np.array([a], dtype.np)), mx.array(np.array([b], dtype.np))
    q, r = mx.divmod(x, y)
    assert ((q * y + r) == x).item()
    if b == 0:
        assert (q.item(), r.item()) == (0, a)
    elif not (a == info.min and b == -1):
        assert (q.item(), r.item()) == divmod(a, b)


def floats(dtype: Dtype) -> st.SearchStrategy[float]:
    return st.floats(width=dtype.bits, allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [dt.float32, dt.float64], ids=lambda d: d.name)
@settings(max_examples=300)
@given(data=st.data())
def test_float_remainders_are_exact(dtype: Dtype, data: st.DataObject) -> None:
    """For any two numbers, however far apart: Python's fractions know the remainder of the truncated quotient, which is
    a number of the dtype; the divisor is added to it, with one rounding, if it has the other sign."""
    a, b = data.draw(floats(dtype)), data.draw(floats(dtype).filter(bool))
    got = mx.remainder(mx.array([a], dtype), mx.array([b], dtype)).item()
    rest = Fraction(a) - Fraction(b) * math.trunc(Fraction(a) / Fraction(b))
    exact = dtype.np.type(float(rest))
    assert Fraction(float(exact)) == rest
    assert got == float(exact if rest * Fraction(b) >= 0 else exact + dtype.np.type(b))
    assert math.copysign(1.0, got) == math.copysign(1.0, b)


def test_remainders_across_the_whole_range() -> None:
    """One vector with near and far lanes, subnormal divisors and everything that is special."""
    for dtype in (dt.float32, dt.float64):
        values = np.concatenate([contract.special_values(dtype), np.logspace(-30, 30, 200).astype(dtype.np)])
        a, b = (x.reshape(-1) for x in np.meshgrid(values, values))
        with np.errstate(all="ignore"):
            expected = np.remainder(a, b)
        exactly(mx.array(a, dtype) % mx.array(b, dtype), expected)


def test_division_operators() -> None:
    x = mx.array([7, -7])
    assert (x // 2).tolist() == [3, -4]
    assert (x % 2).tolist() == [1, 1]
    assert (20 // x).tolist() == [2, -3]
    assert (20 % x).tolist() == [6, -1]
    assert [a.tolist() for a in divmod(20, x)] == [[2, -3], [6, -1]]
    assert (x // 2.0).dtype is mx.float32
    before = x
    x //= 2
    x %= 3
    assert x is before
    assert x.tolist() == [0, 2]
    assert x.dtype is mx.int32


def test_derivatives_of_the_remainder() -> None:
    check_derivatives(mx.remainder, np.array([5.3, -5.3, 0.7]), np.array([1.5, 2.2, -0.3]))


# ---- rounding ----


@settings(max_examples=60)
@given(data=st.data(), dtype=st.sampled_from(dt.INTEGERS), digits=st.integers(1, 20))
def test_rounding_integers_is_exact(data: st.DataObject, dtype: Dtype, digits: int) -> None:
    info = np.iinfo(dtype.np)
    number = data.draw(st.integers(int(info.min), int(info.max)))
    got = mx.round(mx.array(np.array([number], dtype.np)), -digits)
    expected = round(number, -digits)
    assert got.dtype is dtype
    if info.min <= expected <= info.max:
        assert got.item() == expected


@settings(max_examples=40)
@given(data=st.data(), dtype=st.sampled_from([dt.float32, dt.float64]), decimals=st.integers(-3, 5))
def test_rounding_floats(data: st.DataObject, dtype: Dtype, decimals: int) -> None:
    x = data.draw(arrays(dtype, (3, 37), -5000.0, 5000.0))
    v, scale = values_of(x), dtype.np.type(10.0 ** abs(decimals))
    exactly(mx.round(x, decimals), np.rint(v * scale) / scale if decimals > 0 else np.rint(v / scale) * scale)


def test_rounding_leaves_integers_and_refuses_complex() -> None:
    x = mx.array([1, 2], mx.int8)
    for function in (mx.floor, mx.ceil, mx.trunc, mx.round):
        assert function(x).dtype is mx.int8
    assert mx.round(mx.array([1.5 + 2.5j])).tolist() == [2 + 2j]
    for function in (mx.floor, mx.ceil, mx.trunc):
        with pytest.raises(ValueError, match=r"defined for floats, not for complex64"):
            function(mx.array([1j]))


# ---- parts, infinities, angles ----


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
def test_parts(dtype: Dtype) -> None:
    x = draw_values(np.random.default_rng(0), dtype, (3, 5))
    exactly(mx.real(mx.array(x, dtype)), x.real)
    exactly(mx.conj(mx.array(x, dtype)), np.conjugate(x) if dtype.is_complex else x)
    exactly(mx.imag(mx.array(x, dtype)), x.imag if dtype.is_complex else np.zeros_like(x))


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
def test_what_is_finite(dtype: Dtype) -> None:
    x = contract.special_values(dtype)
    if dtype.is_complex:
        x = np.array([complex(a, b) for a in (1, inf, nan) for b in (1, -inf, nan)], dtype.np)
    y, plain = place(x), wide(x)
    for name in ("isnan", "isinf", "isfinite"):
        exactly(getattr(mx, name)(y), getattr(np, name)(plain))
    if not dtype.is_complex:
        exactly(mx.isposinf(y), plain == inf)
        exactly(mx.isneginf(y), plain == -inf)


@pytest.mark.parametrize("dtype", dt.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("given_", [{}, {"nan": 2.0}, {"posinf": 7.0}, {"nan": 1.0, "posinf": 2.0, "neginf": 3.0}])
def test_nan_to_num(dtype: Dtype, given_: dict[str, float]) -> None:
    x = contract.special_values(dtype)
    if dtype.is_complex:
        x = np.array([complex(a, b) for a in (1, inf, nan) for b in (-0.0, -inf, nan)], dtype.np)
    if dtype in dt.HALVES:
        top = float(ml_dtypes.finfo(dtype.np).max)
        given_ = {"posinf": top, "neginf": -top, **given_}
    exactly(mx.nan_to_num(place(x), **given_), np.nan_to_num(wide(x), **given_).astype(dtype.np))


def test_nan_to_num_keeps_derivatives_of_numbers() -> None:
    gradient = mx.grad(lambda x: mx.nan_to_num(x).sum())(mx.array([1.0, nan, inf, -2.0]))
    assert gradient.tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("dtype", dt.FLOATS, ids=lambda d: d.name)
def test_angles(dtype: Dtype) -> None:
    x = draw_values(np.random.default_rng(1), dtype, (50,), -400.0, 400.0)
    for function, factor in ((mx.degrees, 180 / math.pi), (mx.radians, math.pi / 180)):
        rounded = np.asarray(factor).astype(dtype.np)
        exactly(function(mx.array(x, dtype)), (wide(x) * wide(rounded)).astype(dtype.np))
    assert mx.degrees(True).dtype is mx.float32


def test_logaddexp_of_complex_numbers() -> None:
    x, y = (draw_values(np.random.default_rng(i), dt.complex128, (40,)) for i in (1, 2))
    got = values_of(mx.logaddexp(mx.array(x, mx.complex128), mx.array(y, mx.complex128)))
    np.testing.assert_allclose(np.exp(got), np.exp(x) + np.exp(y), rtol=1e-13)
    same = mx.logaddexp(mx.array([1 + 1j]), mx.array([1 + 1j])).item()
    assert abs(same - (1 + math.log(2) + 1j)) < 1e-6


# ---- comparison ----


@settings(max_examples=50)
@given(data=st.data(), dtype=st.sampled_from(dt.ALL), equal_nan=st.booleans(), shape=st.sampled_from(SHAPES))
def test_closeness(data: st.DataObject, dtype: Dtype, equal_nan: bool, shape: tuple[int, ...]) -> None:
    pool = np.array([1.0, 1.0000001, 1.1, 2.0, 0.0, -3.0])
    if dtype.is_inexact:
        pool = np.concatenate([pool, [inf, -inf, nan]])
    elif dtype.kind == "u" or dtype.is_bool:
        pool = np.abs(pool)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b = (rng.choice(pool, shape).astype(dtype.np) for _ in range(2))
    rtol, atol = data.draw(st.sampled_from([(1e-5, 1e-8), (0.1, 0.0), (0.0, 0.5)]))
    x, y = mx.array(a, dtype), mx.array(b, dtype)
    p, q = (v.astype(np.float64) if not dtype.is_inexact else wide(v) for v in (a, b))
    with np.errstate(all="ignore"):
        near = (np.abs(p - q) <= p.real.dtype.type(atol) + p.real.dtype.type(rtol) * np.abs(q)) & np.isfinite(q)
    expected = near | (p == q) | (np.isnan(p) & np.isnan(q) & equal_nan)
    exactly(mx.isclose(x, y, rtol, atol, equal_nan=equal_nan), expected)
    exactly(mx.allclose(x, y, rtol, atol, equal_nan=equal_nan), np.all(expected))
    exactly(mx.array_equal(x, y, equal_nan), np.array_equal(p, q, equal_nan=equal_nan))


def test_arrays_of_other_shapes_are_not_equal() -> None:
    assert not mx.array_equal(mx.array([1, 2]), mx.array([1, 2, 3])).item()
    assert not mx.array_equal(mx.array([1]), mx.array(1)).item()
    assert mx.array_equal(mx.array([300]), mx.array([300.0])).item()
    assert not mx.array_equal(mx.array([44], mx.uint8), mx.array(300)[None]).item()


def test_unsigned_integers_are_close_in_both_directions() -> None:
    x, y = mx.array([1], mx.uint8), mx.array([2], mx.uint8)
    assert mx.isclose(x, y, atol=1.0).item()
    assert mx.isclose(y, x, atol=1.0).item()


# ---- reinterpretation ----


@settings(max_examples=120)
@given(data=st.data(), source=st.sampled_from(dt.ALL), to=st.sampled_from(dt.ALL))
def test_view_is_numpys_view(data: st.DataObject, source: Dtype, to: Dtype) -> None:
    count = max(1, to.size // source.size) * data.draw(st.sampled_from([0, 1, 3]))
    shape = data.draw(st.sampled_from([(count,), (3, count), (0, count), (2, 3, count)]))
    x = data.draw(arrays(source, shape))
    raw = np.ascontiguousarray(values_of(x))
    size = count * source.size // to.size
    expected = raw.view(to.np) if raw.size else np.zeros((*shape[:-1], size), to.np)
    seen = mx.view(x, to)
    got = values_of(seen)
    assert got.dtype == to.np
    assert got.shape == (*shape[:-1], size)
    assert got.tobytes() == expected.tobytes()  # NaNs and bools are not only alike
    assert values_of(mx.view(seen, source)).tobytes() == raw.tobytes()
    if to.is_bool and raw.size:  # any byte but 0 is true; NumPy relies on 0 and 1
        assert np.array(seen).tobytes() == (raw.view(np.uint8) != 0).tobytes()


def test_views_go_there_and_back() -> None:
    """All patterns of bits, those of signalling NaNs too."""
    words = np.random.default_rng(0).integers(0, 2**32, 2000, dtype=np.uint32)
    x = mx.array(words)
    for to in (mx.float32, mx.int8, mx.uint16, mx.float16, mx.complex64, mx.float64, mx.bfloat16, mx.complex128):
        exactly(x.view(to).view(mx.uint32), words)
    halves = mx.array(np.arange(2**16, dtype=np.uint16))
    for to in (mx.float16, mx.bfloat16):
        exactly(mx.view(mx.view(halves, to), mx.uint16), np.arange(2**16, dtype=np.uint16))
        exactly(mx.view(mx.view(halves, to)[::-3], mx.uint16), np.arange(2**16, dtype=np.uint16)[::-3])


def test_views_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"\[view\] 3 elements of 2 bytes"):
        mx.view(mx.zeros((2, 3), mx.int16), mx.int32)
    with pytest.raises(ValueError, match=r"\[view\] a 0-d array of float32"):
        mx.view(mx.array(1.0), mx.int16)
    with pytest.raises(TypeError, match=r"\[view\] dtype must be"):
        mx.view(mx.array(1.0), "int32")
    assert mx.view(mx.array(1.0), mx.int32).item() == 0x3F800000


def test_views_have_no_derivative_but_fuse() -> None:
    def by_bits(x: Any) -> Any:
        return mx.view(mx.view(x, mx.uint32) ^ 0x80000000, mx.float32) * 2.0

    x = np.linspace(-3, 3, 37, dtype=np.float32)
    exactly(mx.compile(by_bits)(mx.array(x)), -2 * x)
    assert mx.grad(lambda a: by_bits(a).sum())(mx.array(x)).tolist() == [0.0] * 37
    check_batch(lambda a: mx.view(a, mx.uint16), [1], x[:36].reshape(4, 9))


def test_eight_bit_floats() -> None:
    """All codes there and back, and every rounding as the reference implementation does it."""
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes.view(ml_dtypes.float8_e4m3fn)
    for dtype in dt.FLOATS:
        got = values_of(mx.from_fp8(mx.array(codes), dtype))
        assert contract.same_bits(got, numbers.astype(dtype.np))
        back = values_of(mx.to_fp8(mx.array(got, dtype)))
        np.testing.assert_array_equal(
            back[~np.isnan(numbers.astype(np.float32))], codes[~np.isnan(numbers.astype(np.float32))]
        )
        x = (np.random.default_rng(0).normal(size=3000) * np.logspace(-4, 3, 3000)).astype(dtype.np)
        expected = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        np.testing.assert_array_equal(values_of(mx.to_fp8(mx.array(x, dtype))), expected)
    assert mx.to_fp8(mx.array([nan, inf, -inf])).tolist() == [0x7F, 126, 254]


# ---- differences ----


@settings(max_examples=40)
@given(data=st.data(), dtype=st.sampled_from(dt.ALL), n=st.integers(0, 3), axis=st.integers(-2, 1))
def test_diff(data: st.DataObject, dtype: Dtype, n: int, axis: int) -> None:
    x = data.draw(arrays(dtype, data.draw(st.sampled_from([(4, 37), (0, 2), (3, 1)]))))
    expected = values_of(x)
    for _ in range(n):
        expected = np.diff(wide(expected), axis=axis).astype(dtype.np)
    exactly(mx.diff(x, n, axis), expected)


def test_diff_refuses() -> None:
    with pytest.raises(ValueError, match=r"\[diff\] n says how often"):
        mx.diff(mx.array([1, 2]), -1)
    with pytest.raises(IndexError, match=r"\[diff\] axis 1 is out of range"):
        mx.diff(mx.array([1, 2]), axis=1)


# ---- bools ----


def test_arithmetic_of_bools() -> None:
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    x, y = mx.array(a), mx.array(b)
    table: dict[Callable[..., Any], Any] = {
        mx.add: a | b, mx.multiply: a & b, mx.subtract: a ^ b, mx.power: a | ~b, mx.maximum: a | b, mx.minimum: a & b,
        mx.remainder: a & ~b, mx.floor_divide: a & b, mx.logical_xor: a ^ b,
    }  # fmt: skip
    for function, expected in table.items():
        exactly(function(x, y), expected)
    exactly(mx.square(x), a)
    exactly(x << y, a.astype(np.uint8) << b.astype(np.uint8))
    with pytest.raises(
        ValueError, match=r"\[negative\] is defined for integers, floats and complex numbers, not for bool"
    ):
        mx.negative(x)


def test_complex_extrema_are_ordered_by_parts() -> None:
    a = np.array([1 + 2j, 1 - 1j, complex(nan, 1), 2, 1 + 1j], np.complex64)
    b = np.array([1 + 3j, 0 + 5j, 3, complex(0, nan), 1 + 1j], np.complex64)
    exactly(mx.maximum(mx.array(a), mx.array(b)), np.maximum(a, b))
    exactly(mx.minimum(mx.array(a), mx.array(b)), np.minimum(a, b))


# ---- promotion ----


@settings(max_examples=100)
@given(
    dtype=st.sampled_from(dt.ALL),
    number=st.sampled_from([np.bool_(True), np.int8(3), np.int64(3), np.float16(0.5), np.float32(0.5), np.float64(0.5),
                            np.complex64(1j), np.complex128(1j), ml_dtypes.bfloat16(0.5)]),
    operation=st.sampled_from([operator.add, operator.mul]),
)  # fmt: skip
def test_numpy_scalars_are_numbers(dtype: Dtype, number: Any, operation: Any) -> None:
    x = mx.array(np.ones(3).astype(dtype.np), dtype)
    kinds = {"b": bool, "i": int, "f": float, "V": float, "c": complex}
    exactly(operation(x, number), values_of(operation(x, kinds[number.dtype.kind](number))))


def test_numpy_arrays_take_the_dtype_of_arrays() -> None:
    assert (mx.array([1]) + np.arange(3)).dtype is mx.int32
    assert (mx.array([1.0], mx.float16) * np.ones(3)).dtype is mx.float16
    assert (mx.array([1], mx.uint8) + np.arange(3)).dtype is mx.int64
    assert (mx.array([1]) + np.array([0.5])).dtype is mx.float32
    assert (mx.array([1.0], mx.float16) + np.arange(3)).dtype is mx.float16


@pytest.mark.parametrize("dtype", dt.INTEGERS, ids=lambda d: d.name)
def test_numbers_that_do_not_fit_are_refused(dtype: Dtype) -> None:
    info = np.iinfo(dtype.np)
    x = mx.array(np.zeros(2, dtype.np))
    for number in (int(info.max) + 1, int(info.min) - 1):
        for function in (mx.add, mx.maximum, mx.equal, mx.remainder):
            with pytest.raises(ValueError, match=rf"\[{function.__name__}\] {number} does not fit in {dtype.name}"):
                function(x, number)
        with pytest.raises(ValueError, match="does not fit"):
            mx.where(mx.array([True, False]), x, number)
        with pytest.raises(ValueError, match=r"\[full\]"):
            mx.full((2,), number, dtype)
    for number in (int(info.max), int(info.min)):
        exactly(mx.add(x, number), np.full(2, number, dtype.np))


def test_promotion_questions() -> None:
    assert mx.result_type(mx.array([1]), mx.float16, mx.uint8) is mx.float16
    assert mx.result_type(mx.float64, mx.complex64) is mx.complex128
    assert mx.can_cast(mx.int32, mx.float32)
    assert not mx.can_cast(mx.float32, mx.int32)
    assert not mx.can_cast(mx.float64, mx.complex64)
    assert mx.isdtype(mx.float32, ("bool", "real floating"))
    assert not mx.isdtype(mx.bool_, "numeric")
    with pytest.raises(ValueError, match=r"\[isdtype\] kind is"):
        mx.isdtype(mx.int32, "float")
    with pytest.raises(ValueError, match=r"\[result_type\] takes arrays and dtypes"):
        mx.result_type(mx.int32, 3)


# ---- derivatives of composites ----


@pytest.mark.parametrize("name", ["degrees", "diff", "arcsinh", "tan", "log2"])
def test_derivatives(name: str) -> None:
    check_derivatives(getattr(mx, name), np.array([[0.3, 0.7, 0.2], [0.5, 0.9, 0.1]]))
    check_batch(getattr(mx, name), [0], np.array([[0.3, 0.7], [0.5, 0.9]], np.float32))


@pytest.mark.parametrize("name", ["arctan2", "floor_divide", "maximum"])
def test_derivatives_by_both_operands(name: str) -> None:
    check_derivatives(getattr(mx, name), np.array([0.3, 0.7, -0.25]), np.array([0.5, -0.9, 0.1]))


@pytest.mark.parametrize("dtype", dt.FLOATS, ids=lambda d: d.name)
def test_powers_of_a_half_are_no_roots(dtype: dt.Dtype) -> None:
    """(-inf) ** 0.5 is inf and (-0.0) ** 0.5 is 0.0, where a root is NaN and -0.0: of both back ends."""
    x = mx.array([-np.inf, -0.0, 0.0, 4.0, -1.0, np.nan, np.inf], dtype)
    want = np.array([np.inf, 0.0, 0.0, 2.0, np.nan, np.nan, np.inf], dtype.np)
    half = mx.array(0.5, dtype)
    for backend in ("native", "reference"):
        with contract.settings(backend=backend):
            for y in (x**0.5, mx.power(x, half), mx.power(x, mx.full(x.shape, 0.5, dtype) + half - half)):
                assert contract.same_bits(values_of(y), want)
            assert contract.same_bits(values_of(x[:1] ** 0.5), want[:1])
            assert contract.same_bits(values_of(x[1] ** half), want[1])


def test_sign_keeps_nan() -> None:
    for dtype in dt.FLOATS:
        assert contract.same_bits(
            values_of(mx.sign(mx.array([np.nan, -2.0, 0.0], dtype))), np.array([np.nan, -1, 0], dtype.np)
        )


def test_polygamma_says_what_it_takes() -> None:
    for x in (mx.array([1j]), mx.array([1j], mx.complex128)):
        with pytest.raises(ValueError, match=r"\[polygamma\] is defined for floats, not for complex"):
            mx.polygamma(1, x)
    assert mx.polygamma(1, mx.array([1, 2])).dtype is mx.float32
    with pytest.raises(ValueError, match=r"\[polygamma\] orders go up to 128; got 500"):
        mx.polygamma(500, mx.array([1.0]))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.float16, mx.bfloat16, mx.int8, mx.int32, mx.uint64])
def test_powers_do_not_depend_on_their_neighbours(dtype: Any) -> None:
    """Exponents 1 and 2 are multiplications where all of a vector are; among others they give the same bits."""
    special = [0, 1, 2, 3, 100] if dtype.is_integer else [0.0, -0.0, inf, -inf, nan, 1e-30, -3.7, 1.5, 1e30]
    x = mx.array(np.array(special * 5), dtype)
    for exponent in (1, 2):
        alone = mx.power(x, mx.array(exponent, dtype))
        mixed = mx.array(np.array([exponent, 3, 0, exponent, exponent] * len(special)), dtype)
        among = mx.power(x, mixed)
        wanted = x if exponent == 1 else x * x
        picked = np.asarray(mx.equal(mixed, mx.array(exponent, dtype)))
        for got in (alone, among):
            left, right = (values_of(a).view(f"u{dtype.size}")[picked] for a in (got, wanted))
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if not d.is_bool and not d.is_complex], ids=str)
def test_the_second_power_is_a_square(dtype: Dtype) -> None:
    """Its bits and its derivatives are those of a power whose exponent is data."""
    x = mx.array(draw_values(np.random.default_rng(0), dtype, (40,), -20.0, 20.0), dtype)
    two = mx.full(x.shape, 2, dtype)
    assert mx.array_equal(x**2, x**two, equal_nan=True)
    assert (x**2).dtype is dtype
    assert mx.array_equal(mx.compile(lambda x: x**2)(x), x**two, equal_nan=True)
    if dtype.is_float:
        gradients = [mx.grad(lambda x, n=n: mx.sum(mx.sin(x**n)))(x) for n in (2, two)]
        assert mx.array_equal(*gradients, equal_nan=True)
    assert "[square]" in str(explain(lambda x: x**2, x, measure=False))
