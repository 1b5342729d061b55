"""x * y + z with one rounding on processors without an instruction for it: to the bit what the C library gives."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import same_bits
from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.dtypes import Dtype
from weft.llvm import engine
from weft.llvm.builder import PTR, Builder, Value
from weft.llvm.code import Code
from weft.llvm.features import Features

WITHOUT = Features(LANES, half_conversions=False, fma=False)
FLOATS = (dt.float32, dt.float64)


@functools.cache
def kernel(dtype: Dtype, lanes: int) -> Code:
    """memory: how many vectors, then where x, y, z and the result lie."""
    b = Builder("fused", [("memory", PTR)], WITHOUT, lanes)
    (memory,) = b.params
    *operands, result = (b.word(memory, i, PTR) for i in range(1, 5))
    with b.loop(0, b.word(memory, 0), 1) as loop:
        offset = loop.index * (lanes * dtype.size)
        x, y, z = (b.load(b.gep(at, offset), dtype, lanes) for at in operands)
        assert isinstance(x, Value)
        assert isinstance(y, Value)
        assert isinstance(z, Value)
        b.store(b.fma(x, y, z), b.gep(result, offset))
    b.ret()
    (code,) = engine.load([engine.Source(f"test: {b.module()}", b.name, b.module)])
    return code


def emulated(x: np.ndarray, y: np.ndarray, z: np.ndarray, lanes: int = 16) -> np.ndarray:
    dtype, size = dt.from_numpy(x.dtype), x.size
    padded = [np.resize(v, -(-size // lanes) * lanes) for v in (x, y, z)]
    result = np.empty_like(padded[0])
    words = (ctypes.c_int64 * 5)(result.size // lanes, *(v.ctypes.data for v in (*padded, result)))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(kernel(dtype, lanes).address)(ctypes.addressof(words))
    return result[:size]


@functools.cache
def library(name: str) -> Callable[[float, float, float], float]:
    kind = ctypes.c_float if name == "fmaf" else ctypes.c_double
    function = ctypes.CDLL("libm.so.6")[name]
    function.argtypes, function.restype = [kind] * 3, kind
    return function


def expected(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    function = library("fmaf" if x.dtype == np.float32 else "fma")
    return np.array(list(map(function, x.tolist(), y.tolist(), z.tolist())), x.dtype)


def check(x: np.ndarray, y: np.ndarray, z: np.ndarray, lanes: int = 16) -> None:
    found, wanted = emulated(x, y, z, lanes), expected(x, y, z)
    if not same_bits(found, wanted):
        wrong = np.flatnonzero((found != wanted) & ~(np.isnan(found) & np.isnan(wanted)))[:4]
        triples = [(x[i].hex(), y[i].hex(), z[i].hex(), found[i].hex(), wanted[i].hex()) for i in wrong]
        raise AssertionError(f"x, y, z, found, wanted: {triples or 'zeros of the other sign'}")


def random_bits(rng: np.random.Generator, dtype: Dtype, count: int) -> np.ndarray:
    """Every exponent is as likely as any other."""
    return rng.integers(0, 2**dtype.bits, count, np.uint64).astype(f"u{dtype.size}").view(dtype.np)


def few_bits(rng: np.random.Generator, dtype: Dtype, count: int) -> np.ndarray:
    """Numbers with long runs of 0 or 1, whose products lie exactly between two numbers, or just beside."""
    ends = rng.choice([-1.0, 0.0, 1.0], (2, count)) * 2.0 ** -rng.integers(1, 54, (2, count))
    return (rng.choice([-1.0, 1.0], count) * (1.0 + ends[0] + ends[1])).astype(dtype.np)


@pytest.mark.parametrize("lanes", [1, 2, 4, 16])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_random_numbers(dtype: Dtype, lanes: int) -> None:
    rng = np.random.default_rng(lanes)
    count = 4000
    x, y = (rng.standard_normal(count).astype(dtype.np) for _ in range(2))
    scales = 2.0 ** rng.integers(-60, 60, count)
    check(x, y, (rng.standard_normal(count) * scales).astype(dtype.np), lanes)
    with np.errstate(all="ignore"):
        for p, q in ((x, y), (few_bits(rng, dtype, count), few_bits(rng, dtype, count))):
            rounded = -(p * q)
            for z in (rounded, np.nextafter(rounded, dtype.np.type(0)), rounded * dtype.np.type(2.0)):
                check(p, q, z, lanes)  # what is left is the rounding error of the product, or little more
            check(p, q, few_bits(rng, dtype, count), lanes)
            tiny = np.ldexp(few_bits(rng, dtype, count), rng.integers(-130, -20, count)).astype(dtype.np)
            check(p, q, tiny, lanes)  # far below the last bit: decides what lies between two numbers
        check(*(random_bits(rng, dtype, count) for _ in range(3)), lanes)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_small_and_large_products(dtype: Dtype) -> None:
    """Around the ends of the range, and one by one: a vector takes the way of its worst lane."""
    rng = np.random.default_rng(9)
    count, info = 4000, np.finfo(dtype.np)
    for middle in (info.minexp - info.nmant, info.minexp, info.minexp + 2 * info.nmant, info.maxexp - 1):
        first = rng.integers(info.minexp // 2, info.maxexp // 2, count)
        second = middle - first + rng.integers(-60, 60, count)
        third = middle + rng.integers(-60, 60, count)
        with np.errstate(all="ignore"):
            x, y, z = (
                np.ldexp(rng.choice([-1, 1], count) * rng.uniform(1, 2, count), e).astype(dtype.np)
                for e in (first, second, third)
            )
            check(x, y, z, 1)
            check(x, y, -(x * y), 1)


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_special_values(dtype: Dtype, lanes: int) -> None:
    """Zeros of both signs, subnormals, the ends of the range, infinities and NaN, in all combinations."""
    info = np.finfo(dtype.np)
    sizes = [0.0, info.smallest_subnormal, 3 * info.smallest_subnormal, info.smallest_normal, info.eps, 0.5, 1.0]
    sizes += [1.0 + info.eps, 3.0, 2.0 ** (info.maxexp // 2), 2.0 ** (info.minexp // 2), info.max, np.inf]
    values = np.array([*sizes, *(-size for size in map(float, sizes)), np.nan], dtype.np)
    triples = np.array(list(itertools.product(values, repeat=3)), dtype.np)
    check(*(np.ascontiguousarray(v) for v in triples.T), lanes)


def numbers(dtype: Dtype) -> Any:
    return st.floats(width=dtype.bits)


@given(st.data())
def test_any_numbers(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(FLOATS))
    triples = data.draw(st.lists(st.tuples(*[numbers(dtype)] * 3), min_size=1, max_size=40))
    check(*(np.array(v, dtype.np) for v in zip(*triples, strict=True)))


@given(x=st.floats(allow_nan=False, allow_infinity=False), y=st.floats(-8, 8), shift=st.integers(-110, 110))
@example(x=1.0 + 2.0**-52, y=1.0 - 2.0**-53, shift=-107)
def test_against_rational_numbers(x: float, y: float, shift: int) -> None:
    """The library is not the only judge."""
    z = float(np.ldexp(x, shift))
    exact = Fraction(x) * Fraction(y) + Fraction(z) if np.isfinite(z) else None
    if exact is None or abs(exact) >= Fraction(2) ** 1024:
        return
    (found,) = emulated(*(np.array([v]) for v in (x, y, z)))
    if np.isfinite(found):
        assert found == float(exact)  # which rounds once


@pytest.mark.parametrize("shape", [(5, 40), (200, 8), (3, 100_000), (70, 1)], ids=str)
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.int32])
def test_a_reduction_of_what_a_reduction_gave(shape: tuple[int, int], axis: int, dtype: Any) -> None:
    """A row's own result, repeated along the row, is reduced again in the same kernel."""
    x = mx.array(np.random.default_rng(0).integers(-3, 4, shape)).astype(dtype)

    def program(x: mx.array) -> mx.array:
        return mx.broadcast_to(mx.abs(x.max(axis, keepdims=True)), x.shape).sum(axis)

    got, eager = mx.compile(program)(x), program(x)
    expected = np.abs(np.asarray(x.astype(mx.float64)).max(axis)) * shape[axis]
    assert np.asarray(got).tobytes() == np.asarray(eager).tobytes()
    if dtype != mx.float16 or shape[axis] < 1000:
        assert np.asarray(got.astype(mx.float64)).tolist() == expected.tolist()
