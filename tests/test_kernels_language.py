"""The language of custom kernels in Python: every feature by value, random kernels against the interpreter, and sources
that are no kernels, which are errors and never a crash."""

from __future__ import annotations

import _thread
import contextlib
import math
import random
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests import kernel_interpreter
from tests.kernel_programs import Programs
from weft.config import config
from weft.kernels.syntax import KernelError
from weft.primitives import custom_kernel

# ruff: noqa: F821 - names of kernels are no names of Python's
# mypy: ignore-errors


def run(
    source: Any,
    inputs: dict[str, Any],
    shape: tuple[int, ...],
    dtype: Any = mx.float32,
    grid: tuple[int, int, int] | None = None,
    threadgroup: tuple[int, int, int] = (64, 1, 1),
    template: Any = None,
    init_value: float | None = None,
    **options: Any,
) -> np.ndarray:
    kernel = mx.fast.kernel("test", list(inputs), ["out"], source, **options)
    (out,) = kernel(
        inputs=[mx.array(x, dtype=mx.float64) if x.dtype == np.float64 else mx.array(x) for x in inputs.values()],
        grid=grid or (max(1, math.prod(shape)), 1, 1),
        threadgroup=threadgroup,
        output_shapes=[shape],
        output_dtypes=[dtype],
        template=template,
        init_value=init_value,
    )
    return np.array(out)


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(dtype)


FUNCTIONS = {
    "exp": np.exp, "expm1": np.expm1, "log1p": np.log1p, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "rint": np.rint, "abs": np.abs, "log": np.log, "log2": np.log2, "log10": np.log10, "arctan": np.arctan,
    "arcsinh": np.arcsinh, "sign": np.sign, "rsqrt": lambda x: 1 / np.sqrt(x), "exp2": np.exp2,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": np.vectorize(math.erf), "lgamma": np.vectorize(math.lgamma),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.float16])
def test_functions_of_the_library(dtype: Any) -> None:
    names = list(FUNCTIONS)
    lines = [f"    out[i * {len(names)} + {k}] = {name}(x[i])" for k, name in enumerate(names)]
    text = "\n".join(["def kernel(x, out):", "    i = thread_position_in_grid.x", *lines])
    x = np.random.default_rng(0).uniform(0.1, 3, 20)
    given_x = mx.array(x).astype(dtype)
    kernel = mx.fast.kernel("functions", ["x"], ["out"], text)
    (out,) = kernel(
        inputs=[given_x],
        grid=(20, 1, 1),
        threadgroup=(20, 1, 1),
        output_shapes=[(20, len(names))],
        output_dtypes=[dtype],
    )
    wide = np.array(given_x.astype(mx.float64))
    want = np.stack([FUNCTIONS[name](wide) for name in names], -1)
    eps = {mx.float32: 2e-6, mx.float64: 1e-14, mx.float16: 1e-3}[dtype]
    np.testing.assert_allclose(np.array(out.astype(mx.float64)), want, rtol=eps, atol=eps)


def test_control_flow() -> None:
    def collatz(x, out):
        i = thread_position_in_grid.x
        n = x[i]
        steps = 0
        while n != 1:
            if n % 2 == 0:
                n = n // 2
            else:
                n = 3 * n + 1
            steps += 1
            if steps > 40:
                steps = -1
                break
        for k in range(10, 0, -3):
            if k == 4:
                continue
            steps += 100 * k
        out[i] = steps

    def one(n: int) -> int:
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
            if steps > 40:
                steps = -1
                break
        return steps + 100 * (10 + 7 + 1)

    x = np.arange(1, 60, dtype=np.int32)
    np.testing.assert_array_equal(run(collatz, {"x": x}, (59,), mx.int32), [one(int(n)) for n in x])


OFFSET = 7


def doubled(v):
    return v * 2


def early(v, limit):
    if v > limit:
        return limit
    total = 0.0
    for _k in range(3):
        total += v
        if total > limit:
            return total
    return -total


def test_functions_closures_and_globals() -> None:
    inside = 0.5

    def kernel(x, out):
        i = thread_position_in_grid.x
        out[i] = doubled(x[i]) + OFFSET + inside * math.pi + early(x[i], 0.25)

    def one(v: np.float32) -> float:
        if v > 0.25:
            return 0.25
        total = 0.0
        for _ in range(3):
            total += float(v)
            if total > 0.25:
                return total
        return -total

    x = values(40)
    want = [2 * float(v) + 7 + 0.5 * math.pi + one(v) for v in x]
    np.testing.assert_allclose(run(kernel, {"x": x}, (40,)), want, rtol=1e-5, atol=1e-6)


def test_axes_and_three_dimensional_grids() -> None:
    def transposed(x, out):
        i, j, k = thread_position_in_grid.x, thread_position_in_grid.y, thread_position_in_grid.z
        out[k, i, j] = x[i, j, k] + x.shape[2] * 100 + out.ndim

    x = values(5, 6, 7)
    for group in ((5, 1, 1), (2, 3, 4), (16, 2, 1), (1, 1, 1)):
        got = run(transposed, {"x": x}, (7, 5, 6), grid=(5, 6, 7), threadgroup=group)
        np.testing.assert_array_equal(got, (x + np.float32(700) + np.float32(3)).transpose(2, 0, 1))

    def outside(x, out):
        out[0] = x[0, thread_position_in_grid.x, 0]

    with pytest.raises(IndexError, match="outside of an axis"):
        run(outside, {"x": x}, (1,), grid=(7, 1, 1))


def test_types_are_those_of_what_is_given() -> None:
    def kernel(x, y, out):
        i = thread_position_in_grid.x
        small = x[i] + 1  # stays uint8
        total = 0
        total += small
        total += y[i]  # becomes float16
        wide: mx.float32 = y[i]
        out[i] = total + wide + T(x[i] / 2) + int32(1.75) + float32(True)

    x = np.array([0, 1, 254, 255], np.uint8)
    y = values(4).astype(np.float16)
    half = (x + np.uint8(1)).astype(np.float16)
    total = (half + y).astype(np.float16)
    want = total.astype(np.float32) + y.astype(np.float32) + (x / np.float32(2)) + 1 + 1
    np.testing.assert_array_equal(run(kernel, {"x": x, "y": y}, (4,), template={"T": mx.float32}), want)


def test_integers_divide_as_those_of_python() -> None:
    def kernel(x, y, out):
        i = thread_position_in_grid.x
        out[i] = (x[i] // y[i]) * 1000 + x[i] % y[i]

    pairs = [(a, b) for a in range(-7, 8) for b in (-3, -1, 1, 2, 5)]
    x, y = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    np.testing.assert_array_equal(run(kernel, {"x": x, "y": y}, (len(x),), mx.int32), x // y * 1000 + x % y)
    zeros = run(kernel, {"x": x, "y": np.zeros_like(y)}, (len(x),), mx.int32)
    np.testing.assert_array_equal(zeros, 0)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 200), st.sampled_from([1, 3, 16, 32, 50, 64]), st.integers(0, 3))
def test_sums_of_threadgroups_of_any_size(n: int, size: int, seed: int) -> None:
    def kernel(x, out):
        shared = threadgroup_memory(float32, 64)
        lane = thread_position_in_threadgroup.x
        i = thread_position_in_grid.x
        shared[lane] = x[i]
        threadgroup_barrier()
        if lane == 0:
            total = 0.0
            for k in range(threads_per_threadgroup.x):
                total += shared[k]
            shared[0] = total
        threadgroup_barrier()
        out[i] = shared[0] / threads_per_threadgroup.x

    x = np.random.default_rng(seed).integers(-9, 9, n).astype(np.float32)
    want = np.concatenate([np.full(len(p), p.sum() / np.float32(len(p))) for p in np.split(x, range(size, n, size))])
    np.testing.assert_array_equal(run(kernel, {"x": x}, (n,), threadgroup=(size, 1, 1)), want.astype(np.float32))


def test_simdgroups() -> None:
    def kernel(x, out):
        i = thread_position_in_grid.x
        lane = thread_index_in_simdgroup
        v = x[i]
        total = simd_sum(v) + simd_max(v) * 1000
        if lane % 2 == 0:
            total += simd_min(v) * 100000  # of the even ones
        out[i] = total + simd_shuffle_down(v, 1) * 7 + simd_prefix_exclusive_sum(v) * 11 + simd_broadcast(v, 3)

    n = 96
    x = np.random.default_rng(0).integers(-50, 50, n).astype(np.int32)
    want = np.zeros(n, np.int64)
    for first in range(0, n, 32):
        v = x[first : first + 32].astype(np.int64)
        total = v.sum() + v.max() * 1000 + np.where(np.arange(32) % 2 == 0, v[::2].min() * 100000, 0)
        down = np.append(v[1:], v[31])
        want[first : first + 32] = total + down * 7 + (np.cumsum(v) - v) * 11 + v[3]
    for group in ((32, 1, 1), (64, 1, 1), (96, 1, 1)):
        np.testing.assert_array_equal(run(kernel, {"x": x}, (n,), mx.int32, threadgroup=group), want)


def test_atomics() -> None:
    def kernel(x, out):
        i = thread_position_in_grid.x
        slot = atomic_add(out, 0, 1)  # each thread gets another one, in order
        out[1 + slot] = x[i] * 2
        atomic_max(out, 101, x[i])

    x = np.random.default_rng(0).integers(-50, 50, 100).astype(np.int32)
    want = [100, *(2 * x), max(0, x.max())]
    np.testing.assert_array_equal(run(kernel, {"x": x}, (102,), mx.int32, (100, 1, 1), init_value=0), want)

    def floats(x, out):
        atomic_add(out, thread_position_in_grid.x % 3, x[thread_position_in_grid.x])

    y = values(999)
    want = np.zeros(3, np.float32)
    for k, v in enumerate(y):
        want[k % 3] += v
    np.testing.assert_array_equal(run(floats, {"x": y}, (3,), mx.float32, (999, 1, 1), init_value=0), want)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int32, np.uint64, np.float16, np.float64])
def test_elements_anywhere_of_any_size(dtype: Any) -> None:
    """Gathers and scatters, masked too, for all sizes of elements."""

    def kernel(x, place, out):
        i = thread_position_in_grid.x
        if i % 3 != 1:
            out[place[i]] = x[place[i]]

    n = 50
    x = (np.random.default_rng(0).normal(size=n) * 50).astype(dtype)
    place = np.random.default_rng(1).permutation(n).astype(np.int32)
    want = np.zeros(n, dtype)
    kept = place[np.arange(n) % 3 != 1]
    want[kept] = x[kept]
    got = run(
        kernel, {"x": x, "place": place}, (n,), mx.float64 if dtype is np.float64 else mx.array(x).dtype, init_value=0
    )
    np.testing.assert_array_equal(got, want)


def test_unchecked_kernels_are_the_same_kernels() -> None:
    def kernel(x, out):
        i = thread_position_in_grid.x
        if i < x.size - 1:
            out[i] = x[i] + x[i + 1]
        else:
            out[i] = x[i]

    x = values(77)
    want = x + np.append(x[1:], np.float32(0))
    for unchecked in (False, True):
        np.testing.assert_array_equal(run(kernel, {"x": x}, (77,), unchecked=unchecked), want)


@pytest.mark.parametrize("seed", range(24))
def test_random_kernels_are_what_both_interpreters_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machine code, the reference (all threads at once), and threads one by one."""
    chosen = random.Random(seed)
    kernel = mx.fast.kernel("random", ["x", "y"], ["a", "b"], Programs(seed).text())
    gx, gy = chosen.choice([(1, 1), (7, 3), (40, 1), (33, 2), (64, 1), (100, 1), (3, 20), (17, 5)])
    group = chosen.choice([(16, 1, 1), (32, 1, 1), (8, 4, 1), (64, 1, 1), (5, 3, 1), (32, 2, 1), (256, 1, 1)])
    rng = np.random.default_rng(seed)
    x = mx.array(rng.integers(-20, 20, chosen.choice([1, 5, 16, 33, 50])).astype(np.int32))
    y = mx.array((rng.integers(-40, 40, chosen.choice([2, 7, 40])) / 4).astype(np.float32))

    def go() -> list[np.ndarray]:
        outs = kernel(
            inputs=[x, y],
            grid=(gx, gy, 1),
            threadgroup=group,
            output_shapes=[(gx * gy,)] * 2,
            output_dtypes=[mx.int32, mx.float32],
            init_value=0,
        )
        return [np.array(out) for out in outs]

    native = go()
    monkeypatch.setattr(config, "backend", "reference")
    reference = go()
    monkeypatch.setattr(custom_kernel, "interpreter", kernel_interpreter)
    one_by_one = go()
    for got, want, slow in zip(native, reference, one_by_one, strict=True):
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(want, slow)


def mutated(text: str, rng: random.Random) -> str:
    """A source with a few pieces gone, doubled, exchanged, or put elsewhere."""
    pieces = text.replace("(", " ( ").replace(")", " ) ").replace("[", " [ ").replace("]", " ] ").split(" ")
    for _ in range(rng.randrange(1, 4)):
        k, j = rng.randrange(len(pieces)), rng.randrange(len(pieces))
        change = rng.randrange(4)
        if change == 0:
            pieces[k] = ""
        elif change == 1:
            pieces[k] = pieces[j]
        elif change == 2:
            pieces.insert(k, pieces[j])
        else:
            pieces[k], pieces[j] = pieces[j], pieces[k]
    return " ".join(pieces)


METAL = """
    threadgroup float shared[32];
    uint i = thread_position_in_grid.x;
    float total = 0.0f;
    for (int k = 0; k < 4; ++k) { total += x[(i + k) % 16] * float(k); if (total > 3.0f) { continue; } }
    shared[i % 32] = simd_sum(total);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    auto p = out + 2;
    out[i] = shared[(i + 1) % 32] > 0 ? p[0] : static_cast<float>(i);
"""
PYTHON = """def kernel(x, out):
    shared = threadgroup_memory ( float32, 32 )
    i = thread_position_in_grid.x
    total = 0.0
    for k in range(4):
        total += x[(i + k) % 16] * k
        if total > 3:
            continue
    shared[i % 32] = simd_sum(total)
    threadgroup_barrier()
    out[i] = shared[(i + 1) % 32] if i > 3 else float32(i)
"""


@pytest.mark.parametrize("language", ["metal", "python"])
def test_broken_sources_are_errors_and_nothing_worse(language: str) -> None:
    rng = random.Random(1)
    taken = 0
    for _ in range(120):
        text = mutated(METAL if language == "metal" else PYTHON, rng)
        if "while" in text:
            continue
        make = mx.fast.metal_kernel if language == "metal" else mx.fast.kernel
        kernel = make("broken", ["x"], ["out"], text)
        try:
            outs = kernel(
                inputs=[mx.ones(16)],
                grid=(64, 1, 1),
                threadgroup=(32, 1, 1),
                output_shapes=[(64,)],
                output_dtypes=[mx.float32],
                init_value=0,
            )
        except KernelError:
            continue
        taken += 1
        if taken <= 12:  # those that are kernels still run, or fail as kernels do
            with contextlib.suppress(IndexError):
                mx.eval(outs)
    assert taken


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("def f(x, out):\n    out[0] = y\n", "`y` is not known"),
        ("def f(x, out):\n    x[0] = 1\n", "`x` is an input"),
        ("def f(x, out):\n    out[0] = [1, 2]\n", "no `list`"),
        ("def f(x, out):\n    with x: pass\n", "no `with`"),
        ("def f(x, out):\n    out[0] = x[0.5]\n", "an integer is needed"),
        ("def f(x, out):\n    out[0] = 'a'\n", "no `constant`"),
        ("def f(x):\n    pass\n", r"takes \(x\)"),
        ("def f(x, out):\n    return 3\n", "returns nothing"),
        ("def f(x, out):\n    out = 3\n", "is an array"),
        ("x = 3", "one function"),
        ("def f(x, out:\n", "not Python"),
        ("def f(x, out):\n    for i in x: pass\n", "no `for`"),
        ("def f(x, out):\n    for i in range(3):\n        i = 2\n", "counts a loop"),
        ("def f(x, out):\n    out[0, 0] = 2\n", "1 axes"),
        ("def f(x, out):\n    out[0] = 1000000000000000000000\n", "too large"),
        ("def f(x, out):\n    a = thread_memory(float32, x.size)\n", "known when the kernel is compiled"),
        ("def f(x, out):\n    out[0] = exp(x)\n", "an array"),
        ("def f(x, out):\n    out[0] = exp(1, 2)\n", "does not take"),
    ],
)
def test_errors_say_what_and_where(text: str, what: str) -> None:
    with pytest.raises(KernelError, match=what):
        run(text, {"x": values(4)}, (4,))


def test_calls_are_checked() -> None:
    def kernel(x, out):
        out[0] = x[0]

    good = mx.fast.kernel("k", ["x"], ["out"], kernel)
    call = {
        "inputs": [mx.ones(3)], "grid": (1, 1, 1), "threadgroup": (1, 1, 1), "output_shapes": [(1,)],
        "output_dtypes": [mx.float32],
    }  # fmt: skip
    for change, error in (
        ({"inputs": []}, ValueError), ({"grid": (1, 1)}, ValueError), ({"grid": (-1, 1, 1)}, ValueError),
        ({"threadgroup": (0, 1, 1)}, ValueError), ({"grid": (1.5, 1, 1)}, TypeError),
        ({"output_shapes": []}, ValueError), ({"output_shapes": [(-1,)]}, ValueError),
        ({"output_dtypes": [mx.complex64]}, ValueError), ({"template": [("T", "x")]}, TypeError),
        ({"template": [("x", 1)]}, ValueError), ({"init_value": "a"}, TypeError),
        ({"threadgroup": (1 << 20, 1, 1)}, ValueError),
    ):  # fmt: skip
        with pytest.raises(error, match=r"\[k\]"):
            good(**{**call, **change})
    assert np.array(good(**call)[0]).tolist() == [1]


def while_positive(x, out):
    k = 0
    while x[0] > 0:
        k += 1
    out[0] = k


def while_true(x, out):
    while True:
        pass


def while_true_writing(x, out):
    i = thread_position_in_grid.x
    while True:
        out[i] = 1


@pytest.mark.parametrize("endless", [while_positive, while_true, while_true_writing])
def test_an_endless_loop_can_be_interrupted(endless: Any) -> None:
    kernel = mx.fast.kernel("endless", ["x"], ["out"], endless)
    outs = kernel(
        inputs=[mx.ones(1)], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(1,)], output_dtypes=[mx.int32]
    )
    timer = threading.Timer(0.3, _thread.interrupt_main)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            mx.eval(outs)
    finally:
        timer.cancel()


def test_numbers_are_rounded_to_what_they_meet() -> None:
    """A number of the source has no type of its own: beside a float64 it is one, whatever was made of it before."""

    def numbers(x, out):
        i = thread_position_in_grid.x
        y = x[i] * 0.1
        z = TENTH * x[i] + 2.0 * TENTH * x[i]
        small = x[i] * 0.0 + 1e-200
        start = 0.1
        for _ in range(2):
            start = start + x[i]
        out[4 * i] = y
        out[4 * i + 1] = z
        out[4 * i + 2] = small
        out[4 * i + 3] = start + (mx.float32(0.1) - 0.1)

    kernel = mx.fast.kernel("numbers", ["x"], ["out"], numbers)
    for dtype in (mx.float64, mx.float32):
        x = mx.array([3.0], dtype)
        (made,) = kernel(inputs=[x], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(4,)], output_dtypes=[dtype])
        kind = np.float64 if dtype is mx.float64 else np.float32
        tenth, three = kind(0.1), kind(3.0)
        expected = [three * tenth, tenth * three + kind(0.2) * three, kind(1e-200), kind(0.1) + three + three]
        assert made.tolist()[:3] == [float(value) for value in expected[:3]]
        assert made.tolist()[3] == pytest.approx(float(expected[3]), rel=1e-7)


TENTH = 0.1
