"""Numbers reach kernels as data, so every bit of them arrives: signed zeros, infinities, NaN with sign and payload,
subnormals, of every type."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest

import weft.core as mx
from tests import contract
from tests.contract import bits, place, same_bits, values_of
from weft import dtypes as dt
from weft import evaluate
from weft.array import array, wrap
from weft.graph.node import kind_of
from weft.primitives.base import ONE, ZERO, constant

NEGATIVE_NAN = struct.unpack("d", struct.pack("Q", 0xFFF8_0000_0000_0000))[0]
NAMES = {"ids": lambda d: d.name}


def special_bits(dtype: dt.Dtype) -> np.ndarray:
    """Elements by their bit patterns: zeros, infinities, quiet NaNs of both signs with payloads, smallest and largest
    subnormals, extremes."""
    size = 8 * dtype.size
    mantissa = {16: {dt.float16: 10}.get(dtype, 7), 32: 23, 64: 52}[size]
    sign, one = 1 << (size - 1), 1 << mantissa
    exponent = (sign - 1) & ~(one - 1)
    patterns = [
        0, 1, one - 1, one, exponent - 1, exponent, exponent | one >> 1, exponent | one >> 1 | 5, exponent | one - 1,
        (exponent >> 1) & exponent,
    ]  # fmt: skip
    whole = np.array([*patterns, *(p | sign for p in patterns)], f"u{dtype.size}")
    return whole.view(dtype.np)


def pairs(dtype: dt.Dtype) -> np.ndarray:
    """Every pair of special parts as a complex number."""
    parts = special_bits(dt.real_of(dtype))
    made = np.empty((len(parts), len(parts)), dtype.np)
    made.real, made.imag = parts[:, None], parts[None, :]
    return made.reshape(-1)


def specials(dtype: dt.Dtype) -> np.ndarray:
    return pairs(dtype) if dtype.is_complex else special_bits(dtype)


INEXACT = (*dt.FLOATS, *dt.COMPLEXES)


@pytest.mark.parametrize("dtype", INEXACT, **NAMES)
def test_arrays_keep_every_bit(dtype: dt.Dtype) -> None:
    values = specials(dtype)
    x = mx.array(values, dtype=dtype)
    assert same_bits(values_of(x), values, payloads=True)
    assert same_bits(np.asarray(x).view(dtype.np), values, payloads=True)


@pytest.mark.parametrize("dtype", INEXACT, **NAMES)
def test_data_movement_keeps_every_bit(dtype: dt.Dtype) -> None:
    """Through kernels that copy, choose, turn and repeat."""
    values = specials(dtype)
    x = place(np.stack([values, values[::-1]]))
    other = mx.zeros(x.shape, dtype=dtype)
    yes = place(np.tile(np.arange(len(values)) % 2 == 0, (2, 1)))
    chosen = mx.where(yes, x, other) if not dtype.is_complex else mx.where(yes, x, x)
    expected = (
        np.where(values_of(yes), values_of(x), np.zeros_like(values_of(x))) if not dtype.is_complex else values_of(x)
    )
    assert same_bits(values_of(chosen), expected, payloads=True)
    flat = mx.reshape(x.T, (-1,))  # no strides express it: a copy
    assert same_bits(values_of(flat), values_of(x).T.reshape(-1), payloads=True)
    turned = mx.where(mx.transpose(yes), x.T, x.T[::-1])
    assert same_bits(values_of(turned), np.where(values_of(yes).T, values_of(x).T, values_of(x).T[::-1]), payloads=True)


@pytest.mark.parametrize("dtype", INEXACT, **NAMES)
def test_constants_keep_every_bit(dtype: dt.Dtype) -> None:
    """As numbers in a graph: written out by themselves, and read as scalars by a fused kernel."""
    for value in specials(dtype):
        want = np.full(3, value, dtype.np)
        kind = kind_of((3,), dtype)
        alone = wrap(constant(value, kind))
        assert same_bits(values_of(alone), want, payloads=True), value
        yes = place(np.array([True, False, True]))
        zeros = np.zeros(3, dtype.np)
        chosen = mx.where(yes, wrap(constant(value, kind)), place(zeros))
        assert same_bits(values_of(chosen), np.where([True, False, True], want, zeros), payloads=True), value


@pytest.mark.parametrize("dtype", dt.FLOATS, **NAMES)
@pytest.mark.parametrize(
    "value", [0.0, -0.0, math.inf, -math.inf, math.nan, NEGATIVE_NAN, 1e-40, -1e-40, 5e-324, 1e-7, 70000.0, 1e39]
)
def test_python_numbers(dtype: dt.Dtype, value: float) -> None:
    """As a full array, a 0-d array, and an operand."""
    with np.errstate(all="ignore"):
        want = np.float64(value).astype(dtype.np) if dtype is not dt.bfloat16 else np.float32(value).astype(dtype.np)
    assert same_bits(values_of(mx.full((2,), value, dtype=dtype)), np.full(2, want, dtype.np)), value
    assert np.signbit(values_of(mx.full((2,), value, dtype=dtype))).tolist() == [math.copysign(1, value) < 0] * 2
    assert same_bits(values_of(mx.array(value, dtype=dtype)), np.asarray(want, dtype.np)), value
    x = np.array([1.5, -0.0, 0.0], dtype.np)
    chosen = mx.where(place(np.array([True, False, True])), place(x), value)
    assert same_bits(values_of(chosen), np.array([1.5, want, 0.0], dtype.np)), value


@pytest.mark.parametrize("dtype", dt.FLOATS, **NAMES)
def test_subnormals_are_numbers(dtype: dt.Dtype) -> None:
    """Nothing flushes them to zero, in any arithmetic, at either end."""
    values = special_bits(dtype)
    with np.errstate(all="ignore"):
        wide = values.astype(np.float32) if dtype in dt.HALVES else values
        cases = {
            "x + x": (lambda x: x + x, wide + wide),
            "x * 1.5": (lambda x: x * 1.5, wide * wide.dtype.type(1.5)),
            "x * 0.5": (lambda x: x * 0.5, wide * wide.dtype.type(0.5)),
            "-x": (lambda x: -x, -wide),
            "abs(x)": (mx.abs, np.abs(wide)),
            "x - 1e-6": (lambda x: x - 1e-6, wide - np.asarray(1e-6, dtype.np).astype(wide.dtype)),
        }
        for name, (function, expected) in cases.items():
            got = values_of(function(place(values)))
            assert same_bits(got, expected.astype(dtype.np)), (
                f"{name}: {contract.differences(got, expected.astype(dtype.np))}"
            )


def test_zeros_of_both_signs_are_different_numbers() -> None:
    """Whichever was asked for first: shared constants must not forget a sign."""
    x = place(np.array([-0.0, 0.0], np.float32))
    for first, second in ((0.0, -0.0), (-0.0, 0.0)):
        a, b = x + first, x + second
        assert np.signbit(values_of(a)).tolist() == np.signbit(np.array([-0.0, 0.0]) + first).tolist()
        assert np.signbit(values_of(b)).tolist() == np.signbit(np.array([-0.0, 0.0]) + second).tolist()
        both = mx.maximum(x * 0 + first, first) + (x + second)
        mx.eval(both)
    same_graph = [values_of(x * c) for c in (0.0, -0.0, 1.0, -1.0)]
    for got, c in zip(same_graph, (0.0, -0.0, 1.0, -1.0), strict=True):
        assert same_bits(got, np.array([-0.0, 0.0], np.float32) * np.float32(c))


@pytest.mark.parametrize(
    "number",
    [
        complex(1.0, -0.0),
        complex(1.0, 0.0),
        complex(-0.0, 1.0),
        complex(0.0, 1.0),
        complex(0.0, -0.0),
        complex(-0.0, 0.0),
    ],
)
@pytest.mark.parametrize("dtype", dt.COMPLEXES, **NAMES)
def test_complex_numbers_keep_the_signs_of_their_zeros(number: complex, dtype: dt.Dtype) -> None:
    want = np.full(2, number, dtype.np)
    assert same_bits(values_of(mx.full((2,), number, dtype=dtype)), want)
    x = place(np.full(2, complex(2.0, 3.0), dtype.np))
    yes = place(np.array([True, True]))
    assert same_bits(values_of(mx.where(yes, number, x)), want), "as an operand"


def test_equal_numbers_of_other_bits_are_not_merged() -> None:
    """1-0j equals 1, and -0.0 equals 0; only the exact patterns are told apart as special."""
    kind = kind_of((2,), dt.complex64)
    assert constant(1, kind).op is ONE
    assert constant(complex(1.0, -0.0), kind).op is not ONE
    assert constant(complex(0.0, -0.0), kind).op is not ZERO
    yes = place(np.array([True, False]))
    one, other = wrap(constant(1, kind)), wrap(constant(complex(1.0, -0.0), kind))
    got = values_of(mx.where(yes, one, other))
    assert bits(got.imag).tolist() == bits(np.array([0.0, -0.0], np.float32)).tolist()


@pytest.mark.parametrize("dtype", dt.INTEGERS, **NAMES)
def test_integers_at_the_ends_of_their_range(dtype: dt.Dtype) -> None:
    info = np.iinfo(dtype.np)
    x = place(np.array([0, 1, info.max, info.min], dtype.np))
    for number in {info.min, info.max, 0, 1, info.max - 1}:
        with np.errstate(all="ignore"):
            want = values_of(x) + np.asarray(number, dtype.np)
        assert same_bits(values_of(x + mx.array(number, dtype=dtype)), want)
        assert same_bits(values_of(mx.full((2,), number, dtype=dtype)), np.full(2, number, dtype.np))


def test_a_number_that_is_used_twice_may_be_two_numbers_the_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program is looked up by its structure, which does not say whether two constants are one."""
    monkeypatch.setattr(evaluate.programs, "PROGRAMS", {})
    x, y = mx.array([1.0, 2.0]), mx.array([10.0, 20.0])

    def combined(a: mx.array, b: mx.array) -> list[float]:
        return (a * x + b * y).tolist()  # type: ignore[no-any-return]

    three = mx.full((), 3.0)
    assert combined(three, three) == [33, 66]
    assert combined(mx.full((), 3.0), mx.full((), 5.0)) == [53, 106]
    assert combined(three, three) == [33, 66]


def test_one_program_serves_all_numbers() -> None:
    """The structure is compiled once; numbers are words of the call. 0 and 1, which have rules of their own, give the
    same answers."""
    x = np.array([1.5, -0.0, math.inf, math.nan, 1e-40], np.float32)
    for number in (2.5, 0.0, 1.0, -0.0, math.inf, math.nan, 1e-45, -1.0, 3.4e38):
        with np.errstate(all="ignore"):
            for got, want in (
                (place(x) * number, x * np.float32(number)),
                (number - place(x), np.float32(number) - x),
                (mx.sqrt(place(x) + number) / number, np.sqrt(x + np.float32(number)) / np.float32(number)),
            ):
                assert same_bits(values_of(got), want), number


@pytest.mark.parametrize("dtype", dt.FLOATS, **NAMES)
def test_captured_by_a_compiled_function(dtype: dt.Dtype) -> None:
    values = special_bits(dtype)
    fixed = mx.array(values, dtype=dtype)
    yes = place(np.arange(len(values)) % 3 == 0)
    function = mx.compile(lambda x, c: mx.where(c, x, fixed))
    got = values_of(function(place(values[::-1].copy()), yes))
    assert same_bits(got, np.where(values_of(yes), values[::-1], values), payloads=True)


def test_an_array_and_a_number_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number in the graph and the same number in memory give the same bits, through a reduction and a product too."""
    x = contract.generator("agree").uniform(-2, 2, (5, 37)).astype(np.float32)

    def program(c: array | float) -> array:
        y = mx.exp(place(x) * c) + c
        return mx.sum(y, axis=1) + mx.matmul(y, mx.ones((37,)) * c)

    for number in (0.0, 1.0, 0.3, -2.5):
        assert same_bits(values_of(program(number)), values_of(program(place(np.float32(number).reshape(())))))
