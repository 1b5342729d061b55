"""Custom kernels written in Python: values against NumPy, under every transform, and what goes wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft.config import config
from weft.primitives import kernel_functions

# ruff: noqa: F821 - names of kernels are no names of Python's


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(dtype)


def saxpy(a, x, y, out):  # type: ignore[no-untyped-def]
    i = thread_position_in_grid.x  # type: ignore[name-defined]
    if i < x.size:
        out[i] = a * x[i] + y[i]


SAXPY = mx.fast.kernel("saxpy", ["a", "x", "y"], ["out"], saxpy)


def call_saxpy(x: mx.array, y: mx.array) -> mx.array:
    (out,) = SAXPY(
        inputs=[2.5, x, y],
        grid=(x.shape[0], 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[x.dtype],
    )
    return out


def expected(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.float32(2.5) * x + y


@pytest.mark.parametrize("n", [0, 1, 5, 16, 37, 1000, 5000])
def test_a_kernel_computes_what_it_says(n: int) -> None:
    x, y = values(n), values(n, seed=1)
    np.testing.assert_array_equal(np.array(call_saxpy(mx.array(x), mx.array(y))), expected(x, y))


def test_threads_behind_the_end_do_nothing() -> None:
    x = mx.array(values(37))
    (out,) = SAXPY(
        inputs=[2.5, x, x], grid=(100, 1, 1), threadgroup=(16, 1, 1), output_shapes=[(37,)], output_dtypes=[mx.float32]
    )
    np.testing.assert_array_equal(np.array(out), expected(np.array(x), np.array(x)))


def test_compiled_and_shapeless_follow_the_size() -> None:
    for function in (mx.compile(call_saxpy), mx.compile(call_saxpy, shapeless=True)):
        for n in (37, 50, 1000, 4097, 64, 3, 1, 0):
            x, y = values(n), values(n, seed=1)
            np.testing.assert_array_equal(np.array(function(mx.array(x), mx.array(y))), expected(x, y))


def test_vmap_grows_the_grid() -> None:
    x, y = values(4, 37), values(37, 4)
    out = mx.vmap(call_saxpy, in_axes=(0, 1))(mx.array(x), mx.array(y))
    np.testing.assert_array_equal(np.array(out), expected(x, y.T))
    twice = mx.vmap(mx.vmap(call_saxpy, in_axes=(0, None)), in_axes=(None, 1))(mx.array(x), mx.array(y))
    np.testing.assert_array_equal(np.array(twice), expected(x[None], y.T[:, None]))


def test_in_loops_and_branches() -> None:
    x = values(5, 37)

    def step(carry: mx.array, row: mx.array) -> Any:
        return call_saxpy(carry, row), carry

    last, _ = mx.scan(step, mx.zeros(37), mx.array(x))
    want = np.zeros(37, np.float32)
    for row in x:
        want = expected(want, row)
    np.testing.assert_array_equal(np.array(last), want)
    chosen = mx.cond(mx.array(True), lambda a: call_saxpy(a, a), lambda a: a, mx.array(x[0]))
    np.testing.assert_array_equal(np.array(chosen), expected(x[0], x[0]))


def test_vmap_of_strided_operands_and_of_branches() -> None:
    text = (
        "def copy(x, out):\n    i, j = thread_position_in_grid.x, thread_position_in_grid.y\n    out[j, i] = x[j, i]\n"
    )
    kernel = mx.fast.kernel("copy", ["x"], ["out"], text, ensure_row_contiguous=False)

    def copied(x: mx.array) -> mx.array:
        return kernel(
            inputs=[x],
            grid=(x.shape[1], x.shape[0], 1),
            threadgroup=(32, 1, 1),
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
        )[0]

    x = values(3, 4, 5)
    for axis in range(3):
        np.testing.assert_array_equal(np.array(mx.vmap(copied, in_axes=axis)(mx.array(x))), np.moveaxis(x, axis, 0))
    np.testing.assert_array_equal(np.array(mx.vmap(lambda v: copied(v.T))(mx.array(x))), x.transpose(0, 2, 1))
    some = np.array([True, False, True])
    chosen = mx.vmap(lambda p, v: mx.cond(p, copied, lambda u: u - 1, v))(mx.array(some), mx.array(x))
    np.testing.assert_array_equal(np.array(chosen), np.where(some[:, None, None], x, x - 1))


def test_arrays_that_are_too_large_are_errors() -> None:
    text = """def huge(x, out):
    a = thread_memory(float32, 1 << 17)
    i = thread_position_in_threadgroup.x
    a[i] = x[0]
    threadgroup_barrier()
    out[i] = a[i]
"""
    kernel = mx.fast.kernel("huge", ["x"], ["out"], text)
    with pytest.raises(ValueError, match=r"\[huge\] a threadgroup of 1024 threads needs"):
        mx.eval(
            kernel(
                inputs=[mx.ones(1)],
                grid=(1024, 1, 1),
                threadgroup=(1024, 1, 1),
                output_shapes=[(1024,)],
                output_dtypes=[mx.float32],
            )
        )


def test_an_index_out_of_range_is_an_error_that_says_where() -> None:
    def shifted(x, out):  # type: ignore[no-untyped-def]
        i = thread_position_in_grid.x  # type: ignore[name-defined]
        out[i] = x[i + 1]

    kernel = mx.fast.kernel("shifted", ["x"], ["out"], shifted)
    line = shifted.__code__.co_firstlineno + 2
    x = mx.array(values(5000))
    for n in (5000, 37):
        with pytest.raises(
            IndexError, match=rf"\[shifted\] at .*test_kernels.py:{line}:18: index {n}.*`x`.*{n} elements"
        ):
            mx.eval(
                kernel(
                    inputs=[x[:n]],
                    grid=(n, 1, 1),
                    threadgroup=(32, 1, 1),
                    output_shapes=[(n,)],
                    output_dtypes=[mx.float32],
                )
            )
    np.testing.assert_array_equal(np.array(x), values(5000))


def test_without_a_rule_a_derivative_says_how_to_add_one() -> None:
    with pytest.raises(ValueError, match=r"(?s)\[saxpy\].*no vjp rule.*@kernel.vjp"):
        mx.grad(lambda x: call_saxpy(x, x).sum())(mx.array(values(5)))


def test_derivatives_are_those_of_the_rules() -> None:
    def scale(x, out):  # type: ignore[no-untyped-def]
        i = thread_position_in_grid.x  # type: ignore[name-defined]
        out[i] = 3 * x[i]

    kernel = mx.fast.kernel("scale", ["x"], ["out"], scale)

    @kernel.vjp
    def rule(x: mx.array, cotangents: list[mx.array], outputs: list[mx.array]) -> mx.array:
        return cotangents[0] * 100

    def f(x: mx.array) -> mx.array:
        return kernel(
            inputs=[x], grid=(x.size, 1, 1), threadgroup=(32, 1, 1), output_shapes=[x.shape], output_dtypes=[x.dtype]
        )[0].sum()

    np.testing.assert_array_equal(np.array(mx.grad(f)(mx.ones(4))), np.full(4, 100, np.float32))


def test_a_constant_grid_traces_anew_for_another_size() -> None:
    def f(x: mx.array) -> mx.array:
        return SAXPY(
            inputs=[2.5, x, x], grid=(64, 1, 1), threadgroup=(64, 1, 1), output_shapes=[(64,)], output_dtypes=[x.dtype]
        )[0]

    def guards(x: mx.array) -> mx.array:
        return SAXPY(
            inputs=[2.5, x, x],
            grid=lambda a, x, y: (x[0], 1, 1),
            threadgroup=(64, 1, 1),
            output_shapes=lambda a, x, y: [x],
            output_dtypes=[x.dtype],
        )[0]

    for function in (mx.compile(f, shapeless=True), mx.compile(guards, shapeless=True)):
        for n in (64, 70, 80):
            assert np.array(function(mx.ones(n)))[:64].tolist() == [3.5] * 64
    assert function(mx.ones(90)).shape == (90,)


def test_machine_code_is_the_reference() -> None:
    x, y = mx.array(values(50)), mx.array(values(50, seed=3))
    found = np.array(call_saxpy(x, y))
    before = config.backend
    config.backend = "reference"
    try:
        np.testing.assert_array_equal(np.array(call_saxpy(x, y)), found)
    finally:
        config.backend = before


def test_the_reference_takes_all_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does for a large grid is in proportion to the kernel, not to its threads."""
    applied, operations = kernel_functions.apply, 0

    def counted(*given: Any) -> Any:
        nonlocal operations
        operations += 1
        return applied(*given)

    monkeypatch.setattr(kernel_functions, "apply", counted)
    monkeypatch.setattr(config, "backend", "reference")
    counts = []
    for n in (1 << 10, 1 << 16):
        x = values(n)
        np.testing.assert_array_equal(np.array(call_saxpy(mx.array(x), mx.array(x))), expected(x, x))
        counts.append(operations)
    assert 0 < counts[0] == counts[1] - counts[0]


def test_a_function_with_a_kernel_is_written_to_a_file(tmp_path: Any) -> None:
    x = mx.array(values(37))
    path = str(tmp_path / "saxpy.mlxfn")
    mx.export_function(path, lambda x: call_saxpy(x, x) + 1, x)
    (loaded,) = mx.import_function(path)(x)
    np.testing.assert_array_equal(np.array(loaded), np.array(call_saxpy(x, x) + 1))
    unchecked = mx.fast.kernel("saxpy", ["a", "x", "y"], ["out"], saxpy, unchecked=True)

    def f(x: mx.array) -> mx.array:
        return unchecked(
            inputs=[2.5, x, x],
            grid=(37, 1, 1),
            threadgroup=(64, 1, 1),
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
        )[0]

    with pytest.raises(ValueError, match="not checked"):
        mx.export_function(path, f, x)


STATE = """
    uint n = thread_position_in_grid.z, dv = thread_position_in_grid.y, dk = thread_position_in_threadgroup.x;
    auto from = state + (n * D + dv) * 32;
    float decayed = from[dk] * 0.5f + k[n * 32 + dk] * v[n * D + dv];
    after[(n * D + dv) * 32 + dk] = decayed;
    float total = simd_sum(decayed * q[n * 32 + dk]);
    if (thread_index_in_simdgroup == 0) y[n * D + dv] = total;
"""


def test_a_decoding_step_is_compiled_once_for_all_lengths() -> None:
    """A recurrence as a kernel beside attention over a cache that grows."""
    kernel = mx.fast.metal_kernel("state", ["q", "k", "v", "state"], ["y", "after"], STATE)

    def step(x: mx.array, state: mx.array, cache: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        batch = x.shape[0]
        y, after = kernel(
            inputs=[x, mx.sin(x), x[:, :8], state],
            template=[("D", 8)],
            grid=(32, 8, batch),
            threadgroup=(32, 4, 1),
            output_shapes=[(batch, 8), state.shape],
            output_dtypes=[x.dtype, x.dtype],
        )
        grown = mx.concatenate([cache, x[:, None, None]], axis=2)
        seen = mx.fast.scaled_dot_product_attention(x[:, None, None], grown, grown, scale=0.2)[:, 0, 0]
        return seen + mx.pad(y, [(0, 0), (0, 24)]), after, grown

    compiled = mx.compile(step, shapeless=True)
    for batch in (2, 5):
        held = (mx.array(values(batch, 32)), mx.array(values(batch, 8, 32)), mx.array(values(batch, 1, 3, 32)))
        for _ in range(5):
            plain, after = step(*held), compiled(*held)
            for got, want in zip(after, plain, strict=True):
                np.testing.assert_array_equal(np.array(got), np.array(want))
            held = after
    assert compiled.traces == 1
