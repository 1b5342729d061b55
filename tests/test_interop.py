"""The border with NumPy, DLPack and the buffer protocol: values, dtypes, sharing and lifetimes, errors."""

from __future__ import annotations

import array as array_module
import ctypes
import enum
import gc
import hashlib
import io
import math
import subprocess
import sys
import textwrap
import weakref
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import dtypes, interop
from weft.dtypes import (
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint64,
)
from weft.interop import as_numpy, borrow, cast, export_dlpack, import_dlpack, install_buffer_protocol, to_list, unnest
from weft.runtime.cpython import getbuffer

INF, NAN = math.inf, math.nan


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """The same dtype, shape and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


class Ours:
    """Stands for Weft's array: states a Dtype, and answers `__array__`."""

    def __init__(self, values, dtype):
        self.values, self.dtype = np.array(values, dtype.np), dtype

    def __array__(self, dtype=None, copy=None):
        return self.values


class Shared:
    """Offers a NumPy array through DLPack, as another library would; `old` ones know no keywords."""

    def __init__(self, values, dtype=None, old=False, device=(1, 0)):
        self.values, self.elements, self.old, self.device = (
            values,
            dtype or dtypes.from_numpy(values.dtype),
            old,
            device,
        )

    def __dlpack__(self, **keywords):
        if self.old and keywords:
            raise TypeError("unexpected keyword")
        return export_dlpack(self.values, self.elements, **keywords)

    def __dlpack_device__(self):
        return self.device


class Color(enum.IntEnum):
    RED = 3


# ---------------------------------------------------------------------------------------------------------------------
# Python numbers.

SCALARS = [
    (True, bool_), (False, bool_), (3, int32), (2**31 - 1, int32), (2**31, int64), (-(2**31), int32),
    (-(2**31) - 1, int64), (2**63 - 1, int64), (-(2**63), int64), (3.0, float32), (-0.0, float32), (1e300, float32),
    (-1e300, float32), (1e-50, float32), (INF, float32), (NAN, float32), (3j, complex64), (1 + 1e300j, complex64),
]  # fmt: skip


@pytest.mark.parametrize(("value", "dtype"), SCALARS, ids=repr)
def test_scalars(value, dtype):
    values, found = as_numpy(value)
    assert found is dtype
    assert values.shape == ()
    with np.errstate(over="ignore"):
        assert same(values, np.array(value, dtype.np))


def test_scalars_as_mlx():
    mx = pytest.importorskip("mlx.core")
    for value, _ in SCALARS:
        theirs = mx.array(value)
        values, dtype = as_numpy(value)
        assert str(theirs.dtype) == f"mlx.core.{dtype.name}"
        assert same(values, np.array(theirs))


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d is not complex128], ids=lambda d: d.name)
def test_scalars_with_a_dtype_as_mlx(dtype):
    mx = pytest.importorskip("mlx.core")
    whole = [True, 0, 3, -3, 300, 70000, -70000, 2**31, 2**40, -(2**40) + 5, 2**63 - 1, -(2**63)]
    parts = [3.7, -3.7, 300.5, -1.5, 0.0, -0.0, 1e-9, 2 + 3j]
    for value in whole + (parts if dtype.is_integer else [*parts, 0.1, 1e10, -1e20, 1e300, NAN, INF, -INF]):
        theirs = mx.array(value, mx.bool_ if dtype.is_bool else getattr(mx, dtype.name))
        values, found = as_numpy(value, dtype)
        assert found is dtype
        assert values.shape == ()
        assert repr(to_list(values, dtype)) == repr(theirs.item())


def test_ints_wrap():
    assert as_numpy([2**40 + 3, -1, 300], uint8)[0].tolist() == [3, 255, 44]
    assert as_numpy(2**40 + 3, uint8)[0] == 3
    assert as_numpy([2**40, 0], bool_)[0].tolist() == [True, False]


def test_ints_that_need_more_than_int64():
    assert as_numpy(2**64 - 1, uint64)[0] == np.uint64(2**64 - 1)
    assert as_numpy([2**63, -1], uint64)[0].tolist() == [2**63, 2**64 - 1]
    assert as_numpy([2**64 - 1], int8)[0].tolist() == [-1]
    assert as_numpy(2**70, float32)[0] == np.float32(2**70)
    assert as_numpy(10**400, bool_)[0] == np.True_
    assert as_numpy([2**70, 1.0])[0].tolist() == [2.0**70, 1.0]
    for value in (2**63, 2**64, -(2**63) - 1):
        with pytest.raises(OverflowError, match=rf"\[array\] {value} does not fit in int64"):
            as_numpy(value)
        with pytest.raises(OverflowError, match=f"{value} does not fit in int64"):
            as_numpy([[1], [value]])
    for value in (2**64, -(2**63) - 1):
        with pytest.raises(OverflowError, match=f"{value} does not fit in 64 bits; it cannot become uint64"):
            as_numpy(value, uint64)
    for dtype in (None, float32):
        with pytest.raises(OverflowError, match="too large for a float"):
            as_numpy([1.5, 10**400], dtype)


def test_subclasses_of_numbers():
    assert as_numpy(Color.RED)[1] is int32
    assert as_numpy([Color.RED, 4])[0].tolist() == [3, 4]
    assert as_numpy(np.float64(2.5))[1] is float32
    assert as_numpy(np.complex128(2j))[1] is complex64


# ---------------------------------------------------------------------------------------------------------------------
# Lists.

LISTS = [
    [], (), [[]], [[], []], [[[]]], [1, 2, 3], (1, 2), [1, 2.0], [True, 2], [True, 2.5], [True, 1j], [1, 1j],
    [True, False], [2**31], [1, 2**31], [1, 2**40, 2.0], [(1, 2), [3, 4]], [[True], [2]], [[True], [2.0]], [NAN, INF],
    [[[1, 2], [3, 4]], [[5, 6], [7, 8.5]]], [1e300, -1e300], [[1j, 2]],
]  # fmt: skip


def comparable(value, name):
    """Whether MLX has an answer of its own making to a list and a dtype."""
    flat = unnest(value)[1]
    if name in ("int64", "uint8") and any(not abs(v) < 1e18 for v in flat):
        return False  # floats out of range: it leaves them to the processor
    if name in ("uint8", "bool_") and any(type(v) is int and v >= 2**31 for v in flat):
        return False  # refused in a list, though taken alone
    return name != "bool_" or 1j not in flat  # the imaginary part is dropped here, though not in astype


NAMES = [None, "float16", "bfloat16", "float64", "complex64", "int64", "uint8", "bool_"]


@pytest.mark.parametrize(("value", "name"), [(v, n) for v in LISTS for n in NAMES if comparable(v, n)], ids=repr)
def test_lists_as_mlx(value, name):
    mx = pytest.importorskip("mlx.core")
    theirs = mx.array(value) if name is None else mx.array(value, getattr(mx, name))
    values, dtype = as_numpy(value, None if name is None else dtypes.by_name(name))
    assert str(theirs.dtype) == f"mlx.core.{dtype.name}"
    assert values.shape == theirs.shape
    assert repr(to_list(values, dtype)) == repr(theirs.tolist())
    assert values.flags.c_contiguous
    assert values.flags.writeable


def test_lists_of_arrays_as_mlx():
    mx = pytest.importorskip("mlx.core")
    names = ["bool", "int8", "uint8", "uint64", "int32", "float16", "bfloat16", "float32", "float64", "complex64"]
    others = [True, 2, 2**40, 2.5, 1j]
    theirs_of = {"complex128": "complex64"}  # MLX has no complex128, and puts up with the loss
    for name in names:
        dtype = dtypes.by_name(name)
        theirs = mx.array(1, getattr(mx, "bool_" if dtype.is_bool else name))
        for other in others:
            for ours, real in (
                ([Ours(1, dtype), other], [theirs, other]),
                ([[other], Ours([1], dtype)], [[other], theirs[None]]),
            ):
                values, found = as_numpy(ours)
                assert str(mx.array(real).dtype) == f"mlx.core.{theirs_of.get(found.name, found.name)}"
                assert to_list(values, found) == mx.array(real).tolist()
        for second in names:
            other_dtype = dtypes.by_name(second)
            real = mx.array([theirs, mx.array(0, getattr(mx, "bool_" if other_dtype.is_bool else second))])
            found = as_numpy([Ours(1, dtype), Ours(0, other_dtype)])[1]
            assert str(real.dtype) == f"mlx.core.{theirs_of.get(found.name, found.name)}"


def test_lists_of_numpy_things():
    assert same(as_numpy([np.arange(3), np.arange(3)])[0], np.stack([np.arange(3)] * 2))
    assert as_numpy([np.arange(3), np.arange(3.0)])[1] is float32
    assert as_numpy([np.float64(1), np.float32(2)])[1] is float32
    assert as_numpy([np.int8(1), np.int8(2)])[1] is int8
    assert as_numpy([np.int8(1), 2])[1] is int32
    assert as_numpy([[np.zeros((2, 3), np.float16)], [np.ones((2, 3), np.float16)]])[0].shape == (2, 1, 2, 3)
    assert as_numpy([[1, 2], np.array([3, 4], np.int64)])[0].tolist() == [[1, 2], [3, 4]]
    assert as_numpy([memoryview(b"ab"), b"cd"])[0].tolist() == [[97, 98], [99, 100]]
    assert as_numpy([Shared(np.arange(2.0)), [3.5, 4]])[0].tolist() == [[0, 1], [3.5, 4]]
    assert same(as_numpy([Ours([1.5], bfloat16)], bfloat16)[0], np.array([[1.5]], bfloat16.np))
    assert as_numpy([0.1, np.float64(0.1)], float64)[0].tolist() == [0.1, 0.1]
    assert as_numpy([np.zeros((0, 2)), np.zeros((0, 2))])[0].shape == (2, 0, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3]], r"row 2 has 3 elements, row 0 has 4; lists at the same depth"),
        ([[], [1]], r"row 1 has 1 elements, row 0 has 0"),
        ([[[1], [2]], [[3], [4, 5]]], r"\[1\]\[1\] has 2 elements, \[0\]\[0\] has 1"),
        ([[1, 2], 3], r"element \[1\] has shape \(\), element \[0\] has shape \(2,\); all must have the same shape"),
        ([1, [2, 3]], r"element \[1\] has shape \(2,\), element \[0\] has shape \(\)"),
        ([[1, [2]], [3, 4]], r"element \[0\]\[1\] has shape \(1,\), element \[0\]\[0\] has shape \(\)"),
        ([np.zeros(2), np.zeros(3)], r"element \[1\] has shape \(3,\), element \[0\] has shape \(2,\)"),
        ([1, None], r"cannot make an array of element \[1\] of type NoneType"),
        ([[1], ["a"]], r"element \[1\]\[0\] of type str"),
        ([{}], "type dict"),
        ([object()], "type object"),
    ],
)  # fmt: skip
def test_bad_lists(value, message):
    for dtype in (None, float32):
        with pytest.raises(ValueError, match=rf"\[array\] .*{message}"):
            as_numpy(value, dtype)


def test_lists_that_contain_themselves():
    loop: list = []
    loop.append(loop)
    crooked: list = [1]
    crooked.append(crooked)
    for value in (loop, crooked):
        with pytest.raises(ValueError, match="does one contain itself"):
            as_numpy(value)


def test_unnest():
    one, two = Ours([1], int32), Ours([2], int32)
    assert unnest([[one, two], (two, one)]) == ((2, 2), [one, two, two, one])
    assert unnest([[1, 2], one]) == ((2,), [[1, 2], one])
    assert unnest(((), ())) == ((2, 0), [])


@pytest.mark.parametrize("value", [(i for i in range(3)), range(3), {1, 2}, iter([1])], ids=lambda v: type(v).__name__)
def test_iterables_are_refused_with_advice(value):
    with pytest.raises(ValueError, match=rf"type {type(value).__name__}.*Pass a list"):
        as_numpy(value)


def test_other_things_are_refused():
    for value in ("text", {1: 2}, object(), len):
        with pytest.raises(ValueError, match=rf"cannot make an array of type {type(value).__name__}"):
            as_numpy(value)
    with pytest.raises(TypeError, match="NoneType"):
        as_numpy(None)
    for bad in (np.float32, "float32", float):
        with pytest.raises(TypeError, match="dtype must be a Dtype"):
            as_numpy([1], bad)


# ---------------------------------------------------------------------------------------------------------------------
# NumPy arrays and other holders of memory.


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
def test_numpy_arrays(dtype):
    expected = {float64: float32, complex128: complex64}.get(dtype, dtype)
    base = np.arange(24).reshape(2, 3, 4).astype(dtype.np)
    views = [base, base.T, base[::-1, ::2, ::-2], base[0, 0, 0], base[:, :0], np.broadcast_to(base[0], (2, 3, 4))]
    for values in [*views, base[0, 0, 1].reshape(()), base.astype(dtype.np.newbyteorder(">"))]:
        got, found = as_numpy(values)
        assert found is expected
        assert same(got, np.ascontiguousarray(values).reshape(values.shape).astype(expected.np))
        assert got.flags.c_contiguous
        assert got.flags.writeable
        assert not np.shares_memory(got, base)
        kept, found = as_numpy(values, dtype)
        assert found is dtype
        assert same(kept, np.ascontiguousarray(values).reshape(values.shape).astype(dtype.np))


def test_numpy_arrays_as_mlx():
    mx = pytest.importorskip("mlx.core")
    rng = np.random.default_rng(0)
    for code in "?bBhHiIlLqQefdFD":
        values = (rng.normal(size=(3, 4)) * 50).astype(code)
        for part in (values, values.T, values[:, ::2], values[1, 1], values[:0]):
            got, dtype = as_numpy(part)
            assert str(mx.array(part).dtype) == f"mlx.core.{dtype.name}"
            assert same(got, np.array(mx.array(part)))


def test_numbers_numpy_has_and_we_have_not():
    assert as_numpy(np.array([1.5], np.longdouble))[1] is float32
    assert as_numpy(np.array([1.5], np.clongdouble))[1] is complex64
    small = np.array([0.5, -2, 4], ml_dtypes.float8_e4m3fn)
    with pytest.raises(TypeError, match=r"\[array\] NumPy dtype float8_e4m3fn has no counterpart"):
        as_numpy(small)
    assert as_numpy(small, float16)[0].tolist() == [0.5, -2, 4]
    assert as_numpy(np.array([-3, 7], ml_dtypes.int4), int8)[0].tolist() == [-3, 7]


@pytest.mark.parametrize("code", ["O", "S3", "U3", "M8[s]", "m8[s]", "V4", "i4,f4"])
def test_what_is_not_numbers(code):
    for dtype in (None, float32):
        with pytest.raises(TypeError, match=r"\[array\] NumPy dtype"):
            as_numpy(np.zeros(2, code), dtype)


def test_subclasses_of_ndarray_are_read_as_their_data():
    assert type(as_numpy(np.ma.masked_array([1, 2], [0, 1]))[0]) is np.ndarray
    assert as_numpy(np.ma.masked_array([1, 2], [0, 1]))[0].tolist() == [1, 2]


def test_buffers():
    for value in (b"abc", bytearray(b"abc"), memoryview(b"abc")):
        values, dtype = as_numpy(value)
        assert (values.tolist(), dtype) == ([97, 98, 99], uint8)
    for code, dtype in (("d", float32), ("f", float32), ("i", int32), ("q", int64), ("Q", uint64), ("b", int8)):
        values, found = as_numpy(array_module.array(code, [1, 2]))
        assert (values.tolist(), found) == ([1, 2], dtype)
    assert as_numpy(memoryview(np.arange(6, dtype=np.int16))[::-2])[0].tolist() == [5, 3, 1]
    assert as_numpy(memoryview(np.arange(6, dtype=np.int16)))[1] is int16
    assert as_numpy(b"")[0].shape == (0,)
    for text in (memoryview(np.array(["a", "b"])), (ctypes.c_wchar * 2)("a", "b")):  # formats w and u
        with pytest.raises(TypeError, match=r"\[array\]"):
            as_numpy(text)


def test_objects_with_array_methods():
    class Method:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3.0)

    class Interface:
        kept = np.arange(3, dtype=np.int16)
        __array_interface__ = kept.__array_interface__

    class Wrapper:
        def __mlx_array__(self):
            return Ours([1, 2], float64)

    assert as_numpy(Method())[1] is float32
    assert same(as_numpy(Interface())[0], Interface.kept)
    assert as_numpy(Wrapper())[1] is float64
    assert as_numpy([Wrapper(), Wrapper()])[0].shape == (2, 2)


def test_our_arrays_keep_their_dtype():
    for dtype in dtypes.ALL:
        assert as_numpy(Ours([1, 0], dtype))[1] is dtype
    bits = Ours([1.5, 2], bfloat16)
    bits.values = bits.values.view(np.uint16)  # an array whose __array__ knows no bfloat16
    assert same(as_numpy(bits)[0], np.array([1.5, 2], bfloat16.np))


def test_as_numpy_copies_and_borrow_shares():
    values = np.arange(6, dtype=np.float32)
    copied, _ = as_numpy(values)
    shared, dtype, owner = borrow(values[::-2])
    values[:] = 7
    assert copied.tolist() == [0, 1, 2, 3, 4, 5]
    assert shared.tolist() == [7, 7, 7]
    assert dtype is float32
    assert owner is not None
    for value in (1, [1, 2], values.astype(np.float64), values.astype(">f4")):
        assert borrow(value)[2] is None
    assert borrow(values, float16)[2] is None
    frozen = np.arange(3)
    frozen.flags.writeable = False
    assert not borrow(frozen)[0].flags.writeable
    assert as_numpy(frozen)[0].flags.writeable


def test_borrowed_memory_lives_as_long_as_it_is_used():
    data = bytearray(b"abcd")
    values = borrow(data)[0]
    with pytest.raises(BufferError):
        data.extend(b"x")  # exported
    del values
    data.extend(b"x")


def test_unaligned_memory_is_copied():
    values = np.frombuffer(b"\0" + np.arange(3, dtype=np.int32).tobytes(), np.uint8)[1:].view(np.int32)
    assert not values.flags.aligned
    got, _, owner = borrow(values)
    assert owner is None
    assert got.flags.aligned
    assert got.tolist() == [0, 1, 2]


def test_bools_from_outside_are_zero_or_one():
    odd = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    assert as_numpy(odd)[0].view(np.uint8).tolist() == [0, 1, 1, 1]
    assert borrow(odd[:2])[2] is not None


# ---------------------------------------------------------------------------------------------------------------------
# Conversion.


def truncated(value: float, dtype: dtypes.Dtype) -> int:
    """The rule of `cast` for one float, in exact arithmetic."""
    if math.isnan(value):
        return 0
    if dtype is uint64:
        low, high = (-(2**63), 2**64 - 1)
    else:
        bits = 32 if dtype.size < 4 or dtype is int32 else 64
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    whole = low if value < low else high if value > high else math.trunc(value)
    wrapped = whole % 2**dtype.bits
    return wrapped - 2**dtype.bits if dtype.kind == "i" and wrapped >= 2 ** (dtype.bits - 1) else wrapped


LIMITS = sorted(
    {s * (2.0**p + d) for p in (0, 7, 8, 15, 16, 31, 32, 53, 63, 64, 100) for d in (-1, 0, 0.5) for s in (-1, 1)}
)


@pytest.mark.parametrize("dtype", dtypes.INTEGERS, ids=lambda d: d.name)
@pytest.mark.parametrize("source", [*dtypes.FLOATS, complex64, complex128], ids=lambda d: d.name)
def test_floats_to_integers(source, dtype):
    with np.errstate(over="ignore"):
        values = np.array([*LIMITS, 3.7, -3.7, 300.5, -0.0, NAN, INF, -INF, 1e30, -1e30]).astype(source.np)
    got = cast(values, dtype)
    assert got.dtype == dtype.np
    real = cast(values, float64).tolist()
    assert got.tolist() == [truncated(value, dtype) for value in real]
    assert [cast(value.reshape(()), dtype).item() for value in values] == got.tolist()


def test_floats_to_integers_as_mlx_where_it_is_defined():
    mx = pytest.importorskip("mlx.core")
    values = np.array(
        [3.7, -3.7, 0.5, -0.5, 127.9, 255.5, 300.5, -1.0, 65535.5, 70000, -70000, 2147483520.0], np.float32
    )
    for dtype in dtypes.INTEGERS:
        assert same(cast(values, dtype), np.array(mx.array(values).astype(getattr(mx, dtype.name))))


def test_other_conversions():
    assert cast(np.array([0.0, -0.0, NAN, 1e-300, 1j]), bool_).tolist() == [False, False, True, True, True]
    assert cast(np.array([1 + 2j, 3j]), float32).tolist() == [1, 0]
    assert cast(np.array([-1, 2**40 + 3, 300]), uint8).tolist() == [255, 3, 44]
    assert cast(np.array([70000, -1]), float16).tolist() == [INF, -1]
    assert cast(np.array([1e300, -1e300]), bfloat16).tolist() == [INF, -INF]
    assert cast(np.array([True, False]), complex64).tolist() == [1, 0]
    assert cast(np.array([2**64 - 1], np.uint64), int64).tolist() == [-1]
    values = np.arange(3, dtype=np.float32)
    assert cast(values, float32) is values


@pytest.mark.parametrize("source", dtypes.ALL, ids=lambda d: d.name)
def test_the_result_is_an_array_whatever_its_shape(source):
    for dtype in dtypes.ALL:
        for shape in ((), (1,), (2, 0), (2, 1, 2)):
            values = np.ones(shape, source.np)
            for got in (cast(values, dtype), as_numpy(values, dtype)[0], as_numpy(values.tolist(), dtype)[0]):
                assert type(got) is np.ndarray
                assert same(got, np.ones(shape, dtype.np))
    assert type(as_numpy(np.array(2, np.uint8).view(np.bool_))[0]) is np.ndarray


def nearest_bfloat16(value: Fraction) -> float:
    """Round to nearest even, in exact arithmetic."""
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = max(math.floor(math.log2(size)), -126)
    exponent -= size < Fraction(2) ** exponent and exponent > -126
    exponent += size >= Fraction(2) ** (exponent + 1)
    unit = Fraction(2) ** (exponent - 7)
    rounded = round(size / unit) * unit  # round() of a Fraction goes to even
    return math.copysign(INF if rounded >= 2**128 else float(rounded), value)


def test_bfloat16_is_rounded_once():
    rng = np.random.default_rng(1)
    ties = rng.normal(size=300).astype(bfloat16.np).astype(np.float64)
    half = np.ldexp(1.0, np.frexp(ties)[1] - 9)
    values = np.concatenate([
        ties + half, ties + half * (1 + 2.0**-40), ties + half * (1 - 2.0**-40), rng.normal(size=300),
        [3.39e38, 3.3961775292304957e38, 3.396177529230496e38, 3.4e38, 3.5e38, 1e-40, 1e-41, 4.6e-41, 1e-60, 0.1],
    ])  # fmt: skip
    values = np.concatenate([values, -values])
    expected = [nearest_bfloat16(Fraction(value)) for value in values.tolist()]
    assert to_list(cast(values, bfloat16), bfloat16) == expected
    assert [float(as_numpy(value, bfloat16)[0]) for value in values.tolist()] == expected
    assert math.copysign(1, as_numpy(-0.0, bfloat16)[0]) == -1
    assert [np.isnan(as_numpy(v, bfloat16)[0]) for v in (NAN, -NAN, INF, -INF)] == [True, True, False, False]


def test_large_integers_become_bfloat16_in_one_rounding():
    near = [(2**p + 2 ** (p - 8) + d) * s for p in (30, 52, 55, 60, 62) for d in (-1, 0, 1) for s in (1, -1)]
    expected = [nearest_bfloat16(Fraction(value)) for value in near]
    assert to_list(cast(np.array(near), bfloat16), bfloat16) == expected
    assert [float(as_numpy(value, bfloat16)[0]) for value in near] == expected
    unsigned = [2**63 + 2**55 + d for d in (-1, 0, 1)] + [2**64 - 1]
    expected = [nearest_bfloat16(Fraction(value)) for value in unsigned]
    assert to_list(cast(np.array(unsigned, np.uint64), bfloat16), bfloat16) == expected


@given(st.floats(allow_subnormal=True), st.sampled_from(dtypes.FLOATS))
def test_a_number_and_a_list_of_it_agree(value, dtype):
    assert same(as_numpy(value, dtype)[0].reshape(1), as_numpy([value], dtype)[0]) or value != value
    assert same(as_numpy(value)[0].reshape(1), as_numpy([value])[0]) or value != value


@given(st.integers(-(2**63), 2**64 - 1), st.sampled_from(dtypes.ALL))
def test_an_int_and_a_list_of_it_agree(value, dtype):
    assert same(as_numpy(value, dtype)[0].reshape(1), as_numpy([value], dtype)[0])


def test_to_list():
    assert to_list(np.array([[1.5, 2]], bfloat16.np), bfloat16) == [[1.5, 2.0]]
    assert type(to_list(np.array([1.5], bfloat16.np), bfloat16)[0]) is float
    assert type(to_list(np.array(1.5, float16.np), float16)) is float
    assert to_list(np.array(True), bool_) is True
    assert to_list(np.zeros((2, 0), np.int32), int32) == [[], []]


# ---------------------------------------------------------------------------------------------------------------------
# DLPack.


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("old", [False, True], ids=["versioned", "legacy"])
def test_dlpack_round_trip(dtype, old):
    base = np.arange(24).reshape(2, 3, 4).astype(dtype.np)
    for values in (base, base.T, base[:, ::2], base[1, 1, 1:2].reshape(()), base[:, :0], base[:1, None, 1]):
        got, found, _ = import_dlpack(Shared(values, dtype, old))
        assert found is dtype
        assert same(got, values)
        assert got.strides == values.strides or 0 in got.shape or 1 in got.shape
        assert values.size == 0 or np.shares_memory(got, base)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d is not bfloat16], ids=lambda d: d.name)
def test_numpy_reads_our_capsules(dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype.np)
    got = np.from_dlpack(Shared(values, dtype))
    assert same(got, values)
    assert np.shares_memory(got, values)
    assert got.flags.writeable


def test_a_capsule_of_bfloat16_says_so():
    for version in (None, (1, 0)):
        capsule = export_dlpack(np.zeros((2, 3), bfloat16.np), bfloat16, max_version=version)
        tensor = interop._tensor_of(capsule)
        assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim) == (4, 16, 1, 2)


def test_mlx_and_dlpack():
    mx = pytest.importorskip("mlx.core")
    theirs = mx.array([[1.5, -2], [3, 0.1]], mx.bfloat16)
    values, dtype, _ = import_dlpack(theirs)
    assert dtype is bfloat16
    assert to_list(values, dtype) == theirs.tolist()
    assert same(as_numpy(theirs)[0], values)
    back = mx.array(Shared(values, bfloat16))
    assert back.dtype == mx.bfloat16
    assert mx.array_equal(back, theirs).item()


def test_exports_keep_the_memory_alive_and_no_longer():
    for dtype in (float32, bfloat16):
        for version in (None, (1, 0)):
            values = np.zeros(1000, dtype.np)
            gone = weakref.ref(values)
            capsule = export_dlpack(values, dtype, max_version=version)
            del values
            assert gone() is not None
            del capsule  # never consumed
            assert gone() is None


def test_imports_keep_the_memory_alive_and_no_longer():
    for dtype in (float32, bfloat16):
        for old in (False, True):
            values = np.full(1000, 3, dtype.np)
            gone = weakref.ref(values)
            got, _, owner = import_dlpack(Shared(values, dtype, old))
            part = got[::2]
            del values, got, owner
            gc.collect()
            assert gone() is not None
            assert to_list(part, dtype) == [3.0] * 500
            del part
            assert gone() is None


def test_read_only_memory():
    values = np.arange(4, dtype=np.float32)
    values.flags.writeable = False
    got = import_dlpack(Shared(values))[0]
    assert not got.flags.writeable
    assert np.shares_memory(got, values)
    legacy = import_dlpack(Shared(values, old=True))[0]  # that version cannot say "read-only"
    assert not np.shares_memory(legacy, values)
    assert legacy.tolist() == values.tolist()
    with pytest.raises(BufferError, match="copy=False"):
        export_dlpack(values, float32, copy=False)
    assert export_dlpack(values, float32, copy=False, max_version=(1, 0)) is not None


def test_export_keywords():
    values = np.arange(4, dtype=np.float32)
    copied = np.from_dlpack(interop._Carrier(export_dlpack(values, float32, copy=True), (1, 0)))
    assert not np.shares_memory(copied, values)
    reverse = np.from_dlpack(interop._Carrier(export_dlpack(values[::-1], float32), (1, 0)))
    assert reverse.tolist() == [3, 2, 1, 0]
    assert reverse.strides == (4,)
    with pytest.raises(BufferError, match="copy=False"):
        export_dlpack(values[::-1], float32, copy=False)
    with pytest.raises(BufferError, match=r"cannot export to device \(2, 0\)"):
        export_dlpack(values, float32, dl_device=(2, 0))
    with pytest.raises(BufferError, match="stream"):
        export_dlpack(values, float32, stream=1)
    assert export_dlpack(values, float32, dl_device=interop.dlpack_device()) is not None
    assert interop.dlpack_device() == (1, 0)


def test_imports_that_cannot_be():
    values = np.zeros(3, np.float32)
    with pytest.raises(BufferError, match=r"on a CUDA device; move it to the CPU first"):
        import_dlpack(Shared(values, device=(2, 0)))
    with pytest.raises(BufferError, match="DLPack type 99"):
        as_numpy(Shared(values, device=(99, 0)))
    with pytest.raises(TypeError, match="list has no __dlpack__"):
        import_dlpack([1])

    class Strange(Shared):
        def __dlpack__(self, **keywords):
            capsule = super().__dlpack__(**keywords)
            interop._tensor_of(capsule).code = 10  # one of the 8-bit floats
            return capsule

    with pytest.raises(TypeError, match="DLPack type code 10 with 32 bits"):
        import_dlpack(Strange(values))

    class Used(Shared):
        def __dlpack__(self, **keywords):
            capsule = super().__dlpack__(**keywords)
            self.taken = np.from_dlpack(interop._Carrier(capsule, (1, 0)))
            return capsule

    with pytest.raises(BufferError, match="no unused DLPack capsule"):
        import_dlpack(Used(values))

    class Wrong(Shared):
        def __dlpack__(self, **keywords):
            return 5

    with pytest.raises(BufferError, match="5"):
        import_dlpack(Wrong(values))


TORCH_TYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "complex64",
    "complex128",
]  # fmt: skip


@pytest.mark.parametrize("name", TORCH_TYPES)
def test_torch_tensors(name):
    torch = pytest.importorskip("torch")
    dtype = dtypes.by_name(name)
    base = torch.arange(24).reshape(2, 3, 4).to(getattr(torch, name))
    for tensor in (base, base.permute(2, 0, 1), base[:, ::2], base[1, 1, 1], base[:, :0], base[:1].expand(5, 3, 4)):
        values, found, _ = import_dlpack(tensor)
        assert found is dtype
        assert values.shape == tuple(tensor.shape)
        assert to_list(values, dtype) == tensor.tolist()
        back = torch.from_dlpack(Shared(values, dtype))
        assert back.dtype == tensor.dtype
        assert torch.equal(back, tensor)
        copied, found = as_numpy(tensor)
        assert found is {float64: float32, complex128: complex64}.get(dtype, dtype)
        assert to_list(copied, found) == tensor.tolist()


def test_torch_shares_memory_both_ways():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4, dtype=torch.bfloat16)
    values = import_dlpack(tensor)[0]
    tensor[1] = 2.5
    assert to_list(values, bfloat16) == [0, 2.5, 0, 0]
    back = torch.from_dlpack(Shared(values, bfloat16))
    back[2] = 1
    assert tensor.tolist() == [0, 2.5, 1, 0]
    del tensor, back
    gc.collect()
    assert to_list(values, bfloat16) == [0, 2.5, 1, 0]


def test_torch_tensors_that_cannot_be():
    torch = pytest.importorskip("torch")
    with pytest.raises(BufferError, match="gradient"):
        as_numpy(torch.zeros(3, requires_grad=True))
    with pytest.raises(TypeError, match="convert them first"):
        as_numpy(torch.zeros(3, dtype=torch.float8_e4m3fn))
    assert as_numpy([torch.ones(2), torch.zeros(2)])[0].tolist() == [[1, 1], [0, 0]]
    assert torch.from_dlpack(Shared(np.arange(3)[::-1])).tolist() == [2, 1, 0]


# ---------------------------------------------------------------------------------------------------------------------
# The buffer protocol.


class Holder:
    """A class written in Python that holds an array; an exception in its place is raised when somebody looks."""

    def __init__(self, values):
        self.values = values

    def look(self):
        if isinstance(self.values, BaseException):
            raise self.values
        return self.values

    def __array__(self, dtype=None, copy=None):
        return self.look()


class Early(Holder):
    pass


install_buffer_protocol(Holder, Holder.look, getbuffer)


class Late(Holder):
    __slots__ = ()


@pytest.mark.parametrize("cls", [Holder, Early, Late])
def test_consumers_of_buffers(cls):
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    held = cls(values)
    view = memoryview(held)
    assert (view.format, view.shape, view.strides, view.readonly) == ("i", (2, 3), (12, 4), False)
    assert view.tolist() == values.tolist()
    assert np.shares_memory(np.asarray(held), values)
    assert np.frombuffer(held, np.int32).tolist() == list(range(6))
    assert bytes(held) == values.tobytes()
    assert bytearray(held) == values.tobytes()
    assert hashlib.sha256(held).digest() == hashlib.sha256(values).digest()
    file = io.BytesIO()
    file.write(held)
    assert file.getvalue() == values.tobytes()
    view[1, 2] = 50
    assert values[1, 2] == 50


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d is not bfloat16], ids=lambda d: d.name)
def test_formats_as_mlx(dtype):
    values = np.array([[1, 0], [1, 1]], dtype.np)
    view = memoryview(Holder(values))
    assert view.nbytes == values.nbytes
    assert np.asarray(view).dtype == dtype.np
    if dtype is not complex128:
        mx = pytest.importorskip("mlx.core")
        theirs = memoryview(mx.array(values, mx.bool_ if dtype.is_bool else getattr(mx, dtype.name)))
        known = {"l": "q", "L": "Q"}  # two names of the same type
        assert known.get(view.format, view.format) == theirs.format
        assert (view.shape, view.strides, view.itemsize) == (theirs.shape, theirs.strides, theirs.itemsize)


def test_bfloat16_has_bytes_but_no_format():
    values = np.array([1.5, 2], bfloat16.np)
    held = Holder(values)
    with pytest.raises(BufferError, match="bfloat16 has no buffer format"):
        memoryview(held)
    assert same(np.asarray(held), values)  # through __array__
    assert same(np.array(held), values)
    assert bytes(held) == values.tobytes()
    assert same(np.frombuffer(held, bfloat16.np), values)


def test_layouts():
    values = np.arange(12.0).reshape(3, 4)
    for part in (values.T, values[::-1, ::2], values[1, 1], values[:0], np.broadcast_to(values[0], (2, 4))):
        view = memoryview(Holder(np.asarray(part)))
        assert view.tolist() == np.asarray(part).tolist()
        assert bytes(Holder(np.asarray(part))) == np.asarray(part).tobytes()
    with pytest.raises(BufferError, match="contiguous"):
        np.frombuffer(Holder(values.T))
    values.flags.writeable = False
    assert memoryview(Holder(values)).readonly
    with pytest.raises(TypeError, match=r"read-only|read-write|readonly"):
        io.BytesIO(b"x" * 96).readinto(Holder(values))


def test_exceptions_pass_through():
    for error in (ValueError("no"), KeyboardInterrupt(), MemoryError(), BufferError("b")):
        with pytest.raises(type(error)):
            memoryview(Holder(error))
        with pytest.raises(type(error)):
            hashlib.sha256(Holder(error))


@pytest.mark.parametrize("answer", [None, 5, "text", [1, 2]])
def test_subclasses_may_answer_for_themselves(answer):
    class Own(Holder):
        def __buffer__(self, flags):
            return memoryview(b"own") if self.values is None else answer

    assert bytes(memoryview(Own(None))) == b"own"
    with pytest.raises(TypeError):
        memoryview(Own(1))


def test_references_are_balanced():
    values = np.arange(1000.0)
    held = Holder(values)
    before = sys.getrefcount(values), sys.getrefcount(held)
    for _ in range(100):
        memoryview(held)
        np.frombuffer(held)
        with pytest.raises(BufferError):
            memoryview(Holder(values.astype(bfloat16.np)))
    assert (sys.getrefcount(values), sys.getrefcount(held)) == before
    view = memoryview(held)
    gone = weakref.ref(values)
    del values, held
    gc.collect()
    assert gone() is not None
    assert view[999] == 999
    del view
    gc.collect()
    assert gone() is None


def test_only_classes_written_in_python():
    with pytest.raises(TypeError):
        install_buffer_protocol(int, lambda x: np.zeros(1), getbuffer)


def test_an_own_bytes_method_stays():
    class Text:
        def __bytes__(self):
            return b"mine"

    install_buffer_protocol(Text, lambda _: np.zeros(2, np.uint8), getbuffer)
    assert bytes(Text()) == b"mine"
    assert memoryview(Text()).tobytes() == b"\0\0"


STRESS = """
    import gc, hashlib, threading
    import numpy as np
    from weft import interop
    from weft.dtypes import bfloat16, float32
    from weft.runtime.cpython import getbuffer

    class Holder:
        def __init__(self, values): self.values = values
    def look(self):
        if self.values is None: raise ValueError("nothing")
        return self.values
    interop.install_buffer_protocol(Holder, look, getbuffer)

    class Shared:
        def __init__(self, values): self.values = values
        def __dlpack__(self, **keywords): return interop.export_dlpack(self.values, bfloat16, **keywords)
        def __dlpack_device__(self): return (1, 0)

    def work(seed):
        rng, kept = np.random.default_rng(seed), []
        for step in range(3000):
            size = int(rng.integers(0, 3000))
            kind = type("Made", (Holder,), {}) if step % 50 == 0 else Holder
            view = memoryview(kind(np.full(size, seed, np.int32)))
            assert view.nbytes == 4 * size and (size == 0 or view[size - 1] == seed)
            kept.append(view)
            try:
                memoryview(Holder(None))
            except ValueError as error:
                assert error.args == ("nothing",)
            else:
                raise AssertionError
            hashlib.md5(Holder(np.zeros(size, np.uint8)))
            values = interop.import_dlpack(Shared(np.full(size, seed, bfloat16.np)))[0]
            assert size == 0 or float(values[-1]) == seed
            kept.append(values)
            if len(kept) > 40: del kept[: int(rng.integers(1, 40))]
            if step % 500 == 0: gc.collect()
        left_over.append(kept)  # for the interpreter's last moments

    left_over = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    assert len(left_over) == 3

    class Last:
        def __del__(self, memoryview=memoryview, holder=Holder(np.arange(3)), print=print):
            print("last words", memoryview(holder).tolist())
    import builtins
    builtins.last = Last()
"""


def test_many_allocations_threads_and_the_end_of_the_process():
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n{textwrap.dedent(STRESS)}"
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "last words [0, 1, 2]\n"
    assert done.stderr == ""
