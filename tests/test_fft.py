"""Fourier transforms: errors by their bound, the same bits in every way that they are computed, and what is around.

The bound: relative to the result, in the 2-norm, epsilon times 1 + log2 n. References are NumPy's in extended
precision.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests import contract
from tests.contract import place, same_bits, values_of
from weft import dtypes as dt
from weft.array import array
from weft.dtypes import Dtype
from weft.errors import ConfigError
from weft.llvm import engine
from weft.runtime import threads
from weft.targets.cpu.fft import factors, folding, steps

COMPLEX = (dt.complex64, dt.complex128)
LENGTHS = (
    *range(1, 18), 22, 26, 31, 49, 60, 61, 64, 67, 74, 81, 83, 97, 121, 128, 143, 169, 183, 210, 257, 289, 343, 360,
    514, 1001,
)  # fmt: skip
LONGER = (1009, 1024, 2310, 3127, 4099, 10007, 17497, 19683, 32768)
LONGEST = (36000, 40009, 65536)
"""Of two kernels; and those of a prime's convolution."""


def numbers(*shape: int, dtype: Dtype = dt.complex64) -> np.ndarray:
    rng = np.random.default_rng(shape)
    values = rng.standard_normal(shape)
    return (values + 1j * rng.standard_normal(shape) if dtype.is_complex else values).astype(dtype.np)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def check(found: array, exact: np.ndarray, n: int, axis: int, dtype: Dtype) -> None:
    """A result of this dtype, near to the exact one."""
    values = values_of(found)
    assert found.dtype is dtype
    assert values.shape == exact.shape
    error, size = (np.sqrt(np.sum(np.abs(x) ** 2, axis=axis)) for x in (values - exact, exact))
    allowed = float(np.finfo(dtype.np).eps) * (1 + math.log2(n))
    assert np.all(error <= allowed * size), float(np.max(error / size)) / allowed


def check_all(x: np.ndarray, n: int, axis: int, dtype: Dtype) -> None:
    """The four transforms of length n along an axis."""
    real = dt.real_of(dtype)
    z, r = place(x), place(np.ascontiguousarray(x.real))
    check(mx.fft.fft(z, axis=axis), np.fft.fft(wide(x), axis=axis), n, axis, dtype)
    check(mx.fft.ifft(z, axis=axis, norm="ortho"), np.fft.ifft(wide(x), axis=axis, norm="ortho"), n, axis, dtype)
    check(mx.fft.rfft(r, axis=axis), np.fft.rfft(wide(x.real), axis=axis), n, axis, dtype)
    half = np.ascontiguousarray(np.take(x, range(n // 2 + 1), axis))
    exact = np.fft.irfft(wide(half), n, axis=axis, norm="forward")
    check(mx.fft.irfft(place(half), n, axis, "forward"), exact, n, axis, real)


# ---- values ----


@pytest.mark.parametrize("dtype", COMPLEX, ids=lambda d: d.name)
def test_short(dtype: Dtype) -> None:
    for n in LENGTHS:
        check_all(numbers(3, n, dtype=dtype), n, 1, dtype)
    for n in LENGTHS[::3]:
        check_all(numbers(n, 5, dtype=dtype), n, 0, dtype)


@pytest.mark.parametrize("dtype", COMPLEX, ids=lambda d: d.name)
@pytest.mark.parametrize("n", LONGER)
def test_longer(n: int, dtype: Dtype) -> None:
    check_all(numbers(n, dtype=dtype), n, 0, dtype)


@pytest.mark.parametrize("dtype", COMPLEX, ids=lambda d: d.name)
@pytest.mark.parametrize("n", LONGEST)
def test_longest(n: int, dtype: Dtype) -> None:
    check_all(numbers(2, n, dtype=dtype), n, 1, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1 << 20, 10**6, 1000003, 3**12])
def test_very_long(n: int) -> None:
    check_all(numbers(n), n, 0, dt.complex64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", COMPLEX, ids=lambda d: d.name)
def test_every_length(dtype: Dtype) -> None:
    for n in range(1, 600):
        check_all(numbers(2, n, dtype=dtype), n, 1, dtype)


def test_roots_are_rounded_once() -> None:
    """Against the same angles in higher precision; axes and diagonals are exact."""
    for n in (8, 12, 1000, 4099):
        k = np.arange(-3, 2 * n, max(1, n // 100))
        angle = (k % n).astype(np.longdouble) * (8 * np.arctan(np.longdouble(1)) / n)
        exact = np.cos(angle) - 1j * np.sin(angle)
        assert np.abs(factors.roots(n, k) - exact).max() < 1e-17
        assert np.abs(factors.roots(n, k).astype(np.complex128) - exact).max() < 1.2e-16
    quarters = factors.roots(8, np.arange(8)).astype(np.complex64)
    assert quarters[[0, 2, 4, 6]].tolist() == [1, -1j, -1, 1j]
    assert abs(quarters[1].real) == abs(quarters[1].imag) == np.float32(math.sqrt(0.5))


def test_impulses_are_exact() -> None:
    """One 1 gives roots of unity, each the product of few."""
    for n in (8, 60, 1024, 257):
        x = np.zeros(n, np.complex64)
        x[0] = 1
        found = values_of(mx.fft.fft(mx.array(x)))
        assert np.abs(found - 1).max() <= (0 if factors.prime_factors(n) else 4e-7)


def test_factors() -> None:
    for n in range(1, 5000):
        for size in (4, 8):
            plan = factors.split(n, size)
            assert (plan is None) == (factors.prime_factors(n) is None)
            way = factors.plan(n, size)
            if plan is None:
                plan = factors.convolution_length(n, size) if way.way == "wave" else way.split
                assert plan.n >= 2 * n - 1 if way.way == "wave" else plan.n == n - 1
                assert plan.n2 > 1
            else:
                assert way == factors.Plan("stages", plan)
                assert plan.n == n
            assert math.prod(plan.first) == plan.n1
            assert math.prod(plan.second) == plan.n2


def test_powers_of_a_generator() -> None:
    """Each number below a prime comes once; the results of Rader's convolution are where its operands were."""
    for p in (67, 97, 257, 1009, 17497):
        powers = factors.powers(p)
        assert sorted(powers.tolist()) == list(range(1, p))
        assert powers[1] * powers[-1] % p == 1
        assert factors.plan(p, 4).way == "powers"
    assert factors.plan(83, 4).way == factors.plan(514, 4).way == factors.plan(65537, 4).way == "wave"


def test_rows_that_are_not_next_to_each_other() -> None:
    """Vectors that are written behind the end of a row must not touch what lies between it and the next one."""
    for n in (3, 5, 7, 12, 37):
        x = numbers(4, 50, n)
        expected = values_of(mx.fft.fft(place(np.ascontiguousarray(x[1]))))
        assert same_bits(np.ascontiguousarray(values_of(mx.fft.fft(place(x), axis=2))[1]), expected)
        moved = mx.fft.fft(place(np.ascontiguousarray(x.swapaxes(0, 1))), axis=2)
        assert same_bits(np.ascontiguousarray(values_of(moved)[:, 1]), expected)


# ---- the same bits ----

WAYS: dict[str, Callable[[np.ndarray], array]] = {
    "row": lambda x: mx.stack([mx.fft.fft(place(row)) for row in x]),
    "column": lambda x: mx.fft.fft(place(np.ascontiguousarray(x.T)), axis=0).T,
    "transposed": lambda x: mx.fft.fft(place(np.asfortranarray(x))),
    "strided": lambda x: mx.fft.fft(place(np.repeat(x, 2, 1)[:, ::2])),
    "reversed": lambda x: mx.fft.fft(place(x[:, ::-1].copy()[:, ::-1])),
    "shifted": lambda x: mx.fft.fft(place(x, 1)),
    "few columns": lambda x: mx.fft.fft(place(np.ascontiguousarray(x.T[:, :2])), axis=0).T,
    "middle": lambda x: (
        mx.fft.fft(place(np.ascontiguousarray(x.reshape(2, -1, x.shape[1]).swapaxes(1, 2))), axis=1)
        .swapaxes(1, 2)
        .reshape(x.shape)
    ),
    "batch": lambda x: mx.fft.fft(place(np.concatenate([x] * 5)))[len(x) : 2 * len(x)],
    "padded": lambda x: mx.fft.fft(place(np.pad(x, [(0, 0), (0, 3)])), n=x.shape[1]),
}


@pytest.mark.parametrize("dtype", COMPLEX, ids=lambda d: d.name)
@pytest.mark.parametrize("n", [5, 16, 64, 72, 17, 74, 83, 143, 257, 1009, 1024, 3127, 36000])
def test_same_bits_in_every_layout(n: int, dtype: Dtype) -> None:
    x = numbers(20 if n < 5000 else 4, n, dtype=dtype)
    expected = values_of(mx.fft.fft(place(x)))
    for name, way in WAYS.items():
        found = values_of(way(x))
        assert same_bits(found, expected[: len(found)]), name


@pytest.mark.parametrize("n", [6, 15, 74, 101, 128, 130, 514, 1001, 2000])
def test_same_bits_of_real_transforms_in_every_layout(n: int) -> None:
    x, z = numbers(20, n, dtype=dt.float32), numbers(20, n // 2 + 1)
    spectrum, reals = values_of(mx.fft.rfft(place(x))), values_of(mx.fft.irfft(place(z), n))
    for columns in (1, 2, 20):
        down, down_z = (np.ascontiguousarray(v.T[:, :columns]) for v in (x, z))
        assert same_bits(values_of(mx.fft.rfft(place(down), axis=0)), np.ascontiguousarray(spectrum.T[:, :columns]))
        assert same_bits(values_of(mx.fft.irfft(place(down_z), n, 0)), np.ascontiguousarray(reals.T[:, :columns]))
    assert same_bits(values_of(mx.fft.rfft(place(np.asfortranarray(x)))), spectrum)
    assert same_bits(values_of(mx.fft.irfft(place(np.asfortranarray(z)), n)), reals)


@pytest.fixture
def some_threads() -> Any:
    before = threads.get_threads()
    yield threads.set_threads
    threads.set_threads(before)


def test_same_bits_on_any_number_of_threads(some_threads: Callable[[int], None]) -> None:
    operands = [numbers(50, 360), numbers(300, 70), numbers(100, 257), numbers(1 << 17)]
    results = []
    for count in (1, 2, 5):
        some_threads(count)
        results.append([values_of(mx.fft.fft(place(x), axis=axis)) for x in operands for axis in range(x.ndim)])
    for others in results[1:]:
        assert all(same_bits(x, y) for x, y in zip(results[0], others, strict=True))


@pytest.mark.parametrize("n", [36000, 1 << 16, 1 << 17, 17 * 6000, 3**11, 100003, 1 << 19, 10**6])
def test_same_bits_of_one_long_transform_on_any_number_of_threads(n: int, some_threads: Callable[[int], None]) -> None:
    """It is shared out in pieces."""
    x = numbers(2, n)
    x[1, : n // 2] = -0.0  # its sign would tell of a factor of one
    results = []
    for count in (1, 2, 3, 7):
        some_threads(count)
        one, two, reals = place(x[1]), place(x), place(x.real.copy())
        results.append([
            *map(values_of, (mx.fft.fft(one), mx.fft.ifft(one), mx.fft.fft(two), mx.fft.rfft(reals))),
            values_of(mx.fft.irfft(one, n)), values_of(mx.fft.fft(one, n - n // 4)),
        ])  # fmt: skip
    for others in results[1:]:
        assert all(same_bits(x, y) for x, y in zip(results[0], others, strict=True))


@pytest.mark.parametrize("n", [1 << 16, 1 << 17, 3**11, 100003])
def test_same_bits_of_long_transforms_in_pieces(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of the stages are a kernel of their own."""
    x = numbers(n)
    x[: n // 2] = -0.0
    plan = factors.plan(n, 4).split
    results = []
    for count in range(4):
        monkeypatch.setattr(steps, "_stages_between", lambda radices, cell, count=count: min(count, len(radices) - 1))
        steps.halves.cache_clear()
        assert (steps.halves(plan, 4, 8, n, n, alone=True).between is None) == (count == 0)
        # Each has a program of its own: another constant is part of it.
        f = mx.compile(lambda x, count=count: (mx.fft.fft(x), mx.fft.rfft(x.real), x + float(count)))
        found = f(place(x))
        results.append([values_of(found[0]), values_of(found[1])])
    steps.halves.cache_clear()
    for others in results[1:]:
        assert all(same_bits(x, y) for x, y in zip(results[0], others, strict=True))


def test_same_bits_for_every_instruction_set() -> None:
    def computed() -> list[np.ndarray]:
        found = []
        for n in (12, 37, 64, 1001, 257, 36000, 1 << 16):
            x = numbers(3, n)
            found += [values_of(mx.fft.fft(place(x))), values_of(mx.fft.rfft(place(x.real.copy())))]
            found.append(values_of(mx.fft.fft(place(np.ascontiguousarray(x.T)), axis=0)))
        return found

    expected = computed()
    for cpu in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        with contract.settings(cpu=cpu):
            try:
                engine.cpu_name()
            except ConfigError:
                continue
            mx.eval(mx.zeros(1))
            for x, y in zip(computed(), expected, strict=True):
                assert same_bits(x, y), cpu


def test_what_is_not_finite_stays_in_its_transform() -> None:
    for n in (12, 37, 64, 83, 257, 1024):
        x = numbers(40, n)
        x[3, 1], x[17, n // 2] = np.nan, np.inf
        others = [i for i in range(40) if i not in (3, 17)]
        expected = values_of(mx.fft.fft(place(x[others])))
        for found in (mx.fft.fft(place(x)), mx.fft.fft(place(np.ascontiguousarray(x.T)), axis=0).T):
            values = values_of(found)
            assert same_bits(np.ascontiguousarray(values[others]), expected)
            assert not np.isfinite(values[[3, 17]]).any()


# ---- what surrounds them ----


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_shape_and_axes(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    axes = data.draw(st.permutations(range(len(shape))).flatmap(lambda p: st.integers(1, len(p)).map(lambda k: p[:k])))
    s = data.draw(st.none() | st.tuples(*(st.integers(1, 12) for _ in axes)))
    norm = data.draw(st.sampled_from(["backward", "ortho", "forward"]))
    name = data.draw(st.sampled_from(["fftn", "ifftn", "rfftn", "irfftn"]))
    x = numbers(*shape)
    if name == "irfftn" and s is None and shape[axes[-1]] == 1:
        return
    given = x.real.copy() if name == "rfftn" else x
    found = values_of(getattr(mx.fft, name)(place(given), s, axes, norm))
    exact = getattr(np.fft, name)(given.astype(np.complex128 if name != "rfftn" else np.float64), s, axes, norm)
    assert found.shape == exact.shape
    assert np.linalg.norm(found - exact) <= 2e-6 * max(np.linalg.norm(exact), 1e-3)


def test_transforms_under_transforms() -> None:
    x = mx.array(numbers(4, 12, dtype=dt.float32))

    def energy(x: array) -> array:
        spectrum = mx.fft.rfft(x) * mx.array(np.arange(7, dtype=np.float32))
        return mx.sum(mx.square(mx.abs(spectrum))) + mx.sum(mx.fft.irfft(spectrum, 11) * x[:, :11])

    value, gradient = mx.value_and_grad(energy)(x)
    step = 1e-2
    direction = numbers(12, dtype=dt.float32)
    moved = [energy(x + sign * step * mx.array(direction)).item() for sign in (1, -1)]
    expected = float(np.sum(values_of(gradient) * direction))
    assert (moved[0] - moved[1]) / (2 * step) == pytest.approx(expected, rel=2e-3)
    assert mx.compile(energy)(x).item() == value.item()
    each = mx.vmap(mx.fft.rfft)(x)
    assert same_bits(values_of(each), values_of(mx.fft.rfft(x)))
    down = mx.vmap(mx.fft.fft, in_axes=1, out_axes=1)(x)
    assert same_bits(values_of(down), values_of(mx.fft.fft(x, axis=0)))


def test_compiled_for_any_size() -> None:
    """Lengths are planned one by one; batches by one plan."""
    both = mx.compile(lambda x: (mx.fft.rfft(x * 2), mx.fft.fft(x, axis=0), mx.fft.irfft(x.astype(mx.complex64))),
                      shapeless=True)  # fmt: skip
    for shape in ((3, 8), (5, 8), (7, 8), (40, 8), (5, 9), (64, 70), (65, 70), (2, 131), (9, 131), (11, 131)):
        x = place(numbers(*shape, dtype=dt.float32))
        expected = (mx.fft.rfft(x * 2), mx.fft.fft(x, axis=0), mx.fft.irfft(x.astype(mx.complex64)))
        for found, value in zip(both(x), expected, strict=True):
            assert same_bits(values_of(found), values_of(value)), shape


def test_compiled_with_a_length_of_the_call() -> None:
    f = mx.compile(lambda x, n: mx.fft.fft(x, n=n))
    x = place(numbers(3, 10))
    for n in (10, 4, 16, 10):
        assert same_bits(values_of(f(x, n)), values_of(mx.fft.fft(x, n)))


def test_exported(tmp_path: Path) -> None:
    x = place(numbers(3, 10, dtype=dt.float32))
    mx.export_function(tmp_path / "f", lambda x: mx.fft.irfft2(mx.fft.rfft2(x) * 2), x)
    (found,) = mx.import_function(tmp_path / "f")(x)
    assert same_bits(values_of(found), values_of(mx.fft.irfft2(mx.fft.rfft2(x) * 2)))


def test_programs_keep_their_tables() -> None:
    x = place(numbers(3, 1000, dtype=dt.float32))
    shapeless = mx.compile(mx.fft.rfft, shapeless=True)
    expected = values_of(mx.fft.rfft(x))
    for rows in (3, 2, 3):
        shapeless(x[:rows])
    table = weakref.ref(folding._roots(500, dt.complex64).table)
    for made in (steps.along, steps.across, steps.halves, folding._roots):
        made.cache_clear()
    gc.collect()
    assert table() is not None
    assert same_bits(values_of(mx.fft.rfft(x)), expected)
    assert same_bits(values_of(shapeless(x)), expected)


def test_dtypes() -> None:
    for dtype in dt.ALL:
        x = mx.zeros((4,), dtype)
        precise = dtype in (dt.float64, dt.complex128)
        assert mx.fft.fft(x).dtype is mx.fft.rfft(x).dtype is (dt.complex128 if precise else dt.complex64)
        assert mx.fft.irfft(x).dtype is (dt.float64 if precise else dt.float32)
        assert mx.fft.fftshift(x).dtype is dtype


def test_nothing() -> None:
    assert mx.fft.fft(mx.zeros((0, 4))).shape == (0, 4)
    assert mx.fft.rfft(mx.zeros((3, 0, 4))).shape == (3, 0, 3)
    assert mx.fft.irfft(mx.zeros((0, 4))).shape == (0, 6)
    assert mx.fft.fft(mx.zeros((0,)), n=3).tolist() == [0, 0, 0]


def test_frequencies() -> None:
    for n in (1, 2, 5, 8):
        for d in (1.0, 0.1):
            assert mx.fft.fftfreq(n, d).tolist() == np.fft.fftfreq(n, d).astype(np.float32).tolist()
            assert mx.fft.rfftfreq(n, d).tolist() == np.fft.rfftfreq(n, d).astype(np.float32).tolist()
    x = np.arange(30).reshape(5, 6)
    for axes in (None, 0, (1,), (0, 1), (-1, 0)):
        assert np.array_equal(values_of(mx.fft.fftshift(mx.array(x), axes)), np.fft.fftshift(x, axes))
        assert np.array_equal(values_of(mx.fft.ifftshift(mx.array(x), axes)), np.fft.ifftshift(x, axes))


ERRORS: dict[str, tuple[Callable[[array], Any], type[Exception], str]] = {
    "no elements": (lambda x: mx.fft.fft(x[:, :0]), ValueError, r"\[fft\] Invalid FFT output size requested \(0\)"),
    "length 0": (lambda x: mx.fft.ifft(x, n=0), ValueError, r"\[ifft\] Invalid FFT output size requested \(0\)"),
    "negative": (lambda x: mx.fft.rfft(x, n=-2), ValueError, r"\[rfft\] Invalid FFT output size requested \(-2\)"),
    "one of a spectrum": (lambda x: mx.fft.irfft(x[:, :1]), ValueError, r"\[irfft\] Invalid FFT output size"),
    "no integer": (lambda x: mx.fft.fft(x, n=2.0), TypeError, r"\[fft\] n must be an integer"),
    "axis": (lambda x: mx.fft.fft(x, axis=2), IndexError, r"\[fft\] axis 2"),
    "scalar": (lambda x: mx.fft.fft(mx.array(1.0)), IndexError, r"\[fft\] axis -1"),
    "scalar n": (lambda x: mx.fft.fftn(mx.array(1.0)), ValueError, r"\[fftn\] Requires array with at least one"),
    "norm": (lambda x: mx.fft.fft(x, norm="both"), ValueError, r"\[fft\] Invalid norm.*'both'"),
    "axes twice": (lambda x: mx.fft.fftn(x, axes=(0, -2)), ValueError, r"\[fftn\] Duplicated axis"),
    "sizes without axes": (lambda x: mx.fft.rfftn(x, s=(2, 3)), ValueError, r"\[rfftn\] `axes` should not be"),
    "sizes": (lambda x: mx.fft.fft2(x, s=(2,)), ValueError, r"\[fft2\] Shape and axes have different sizes"),
    "axes of one": (lambda x: mx.fft.fft2(x[0]), IndexError, r"\[fft2\] axis -2"),
    "frequencies": (lambda x: mx.fft.fftfreq(0), ValueError, r"\[fftfreq\] `n` must be greater than 0"),
    "spacing": (lambda x: mx.fft.rfftfreq(3, 0.0), ValueError, r"\[rfftfreq\] `d` must be non-zero"),
    "shift": (lambda x: mx.fft.fftshift(x, 5), IndexError, r"\[fftshift\] axis 5"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    call, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        call(mx.zeros((4, 6)))


def test_short_time_transforms_come_back() -> None:
    window = mx.array(np.hanning(18)[1:-1], mx.float64)
    x = mx.array(numbers(2, 3, 200, dtype=dt.float64), mx.float64)
    spectrum = mx.fft.stft(x, 16, window=window)
    assert spectrum.dtype is dt.complex128
    assert spectrum.shape == (2, 3, 9, 51)
    assert np.abs(values_of(mx.fft.istft(spectrum, window=window) - x)).max() < 1e-14
    gradient = mx.grad(lambda x: mx.sum(mx.square(mx.fft.istft(mx.fft.stft(x, 16, window=window), window=window))))(x)
    assert np.abs(values_of(gradient - 2 * x)).max() < 1e-13
    each = mx.vmap(lambda x: mx.fft.stft(x, 16))(x[0])
    assert same_bits(values_of(each), values_of(mx.fft.stft(x[0], 16)))
    both = mx.compile(lambda x: mx.fft.istft(mx.fft.stft(x, 16)), shapeless=True)
    for count in (200, 100, 64):
        part = x[..., :count]
        assert same_bits(values_of(both(part)), values_of(mx.fft.istft(mx.fft.stft(part, 16))))
    with pytest.raises(ValueError, match=r"\[istft\] length must not be negative"):
        mx.fft.istft(spectrum, length=-1)
