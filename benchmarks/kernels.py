"""Custom kernels beside Numba's `@njit(parallel=True)`: saxpy, a stencil, a row softmax with threadgroup reductions, a
histogram by atomics, grid sample. Both run in one process, in turns; the best of many runs counts.

    python benchmarks/kernels.py            # needs numba beside weft
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import weft.core as mx

# ruff: noqa: F821 - names of kernels are no names of Python's

SIZE = 1 << 22
ROWS, COLUMNS = 2048, 1024
BINS = 256
SAMPLES = (4, 64, 64, 32)


# ---- kernels ----


def saxpy(a, x, y, out):  # type: ignore[no-untyped-def]
    i = thread_position_in_grid.x
    out[i] = a * x[i] + y[i]


def stencil(x, out):  # type: ignore[no-untyped-def]
    i, j = thread_position_in_grid.x, thread_position_in_grid.y
    w = threads_per_grid.x
    k = j * w + i
    if i > 0 and i < w - 1 and j > 0 and j < threads_per_grid.y - 1:
        out[k] = 0.2 * (x[k] + x[k - 1] + x[k + 1] + x[k - w] + x[k + w])
    else:
        out[k] = x[k]


SOFTMAX = """
    constexpr int SG = TG / 32;
    threadgroup float shared[SG];
    uint row = threadgroup_position_in_grid.y;
    int lane = thread_position_in_threadgroup.x;
    auto from = x + row * N;
    auto to = out + row * N;
    float top = -INFINITY;
    for (int i = lane; i < N; i += TG) top = max(top, from[i]);
    top = simd_max(top);
    if (thread_index_in_simdgroup == 0) shared[simdgroup_index_in_threadgroup] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = 0; i < SG; ++i) top = max(top, shared[i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0;
    for (int i = lane; i < N; i += TG) { float e = exp(from[i] - top); to[i] = e; total += e; }
    total = simd_sum(total);
    if (thread_index_in_simdgroup == 0) shared[simdgroup_index_in_threadgroup] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0;
    for (int i = 0; i < SG; ++i) total += shared[i];
    for (int i = lane; i < N; i += TG) to[i] = to[i] / total;
"""


def histogram(x, out):  # type: ignore[no-untyped-def]
    atomic_add(out, x[thread_position_in_grid.x], 1)


def sample(x, grid, out):  # type: ignore[no-untyped-def]
    c, j, b = thread_position_in_grid.x, thread_position_in_grid.y, thread_position_in_grid.z
    h, w = x.shape[1], x.shape[2]
    channels = x.shape[3]
    at = (b * threads_per_grid.y + j) * 2
    ix = ((grid[at] + 1) * w - 1) / 2
    iy = ((grid[at + 1] + 1) * h - 1) / 2
    left, top = int32(floor(ix)), int32(floor(iy))
    fx, fy = ix - left, iy - top
    total = 0.0
    for dy in range(2):
        for dx in range(2):
            p, q = top + dy, left + dx
            if p >= 0 and p < h and q >= 0 and q < w:
                weight = (fx if dx == 1 else 1 - fx) * (fy if dy == 1 else 1 - fy)
                total += x[((b * h + p) * w + q) * channels + c] * weight
    out[(b * threads_per_grid.y + j) * channels + c] = total


def programs(data: dict[str, np.ndarray]) -> dict[str, Callable[[], Any]]:
    """A function for each that runs it on Weft."""
    given = {name: mx.array(x) for name, x in data.items()}
    saxpy_ = mx.fast.kernel("saxpy", ["a", "x", "y"], ["out"], saxpy)
    stencil_ = mx.fast.kernel("stencil", ["x"], ["out"], stencil)
    softmax_ = mx.fast.metal_kernel("softmax", ["x"], ["out"], SOFTMAX)
    histogram_ = mx.fast.kernel("histogram", ["x"], ["out"], histogram)
    sample_ = mx.fast.kernel("sample", ["x", "grid"], ["out"], sample)
    b, h, w, c = SAMPLES

    @mx.compile
    def run_saxpy(x: mx.array, y: mx.array) -> mx.array:
        return saxpy_(
            inputs=[2.5, x, y], grid=(SIZE, 1, 1), threadgroup=(256, 1, 1), output_shapes=[(SIZE,)],
            output_dtypes=[mx.float32],
        )[0]  # fmt: skip

    @mx.compile
    def run_stencil(x: mx.array) -> mx.array:
        return stencil_(
            inputs=[x], grid=(2048, 2048, 1), threadgroup=(256, 1, 1), output_shapes=[x.shape],
            output_dtypes=[mx.float32],
        )[0]  # fmt: skip

    @mx.compile
    def run_softmax(x: mx.array) -> mx.array:
        return softmax_(
            inputs=[x], template=[("N", COLUMNS), ("TG", 256)], grid=(256, ROWS, 1), threadgroup=(256, 1, 1),
            output_shapes=[x.shape], output_dtypes=[mx.float32],
        )[0]  # fmt: skip

    @mx.compile
    def run_histogram(x: mx.array) -> mx.array:
        return histogram_(
            inputs=[x], grid=(SIZE, 1, 1), threadgroup=(256, 1, 1), output_shapes=[(BINS,)], output_dtypes=[mx.int32],
            init_value=0,
        )[0]  # fmt: skip

    @mx.compile
    def run_sample(x: mx.array, grid: mx.array) -> mx.array:
        return sample_(
            inputs=[x, grid], grid=(c, h * w, b), threadgroup=(32, 8, 1), output_shapes=[(b, h, w, c)],
            output_dtypes=[mx.float32],
        )[0]  # fmt: skip

    runs: dict[str, Callable[[], mx.array]] = {
        "saxpy": lambda: run_saxpy(given["x"], given["y"]),
        "stencil": lambda: run_stencil(given["image"]),
        "row softmax": lambda: run_softmax(given["rows"]),
        "histogram": lambda: run_histogram(given["whole"]),
        "grid sample": lambda: run_sample(given["pictures"], given["grid"]),
    }

    def evaluated(run: Callable[[], mx.array]) -> Callable[[], Any]:
        def once() -> mx.array:
            out = run()
            mx.eval(out)
            return out

        return once

    return {name: evaluated(run) for name, run in runs.items()}


def numba_programs(data: dict[str, np.ndarray]) -> dict[str, Callable[[], Any]]:
    """The same by Numba, written as one does there: loops over elements, `prange` outside."""
    import numba  # the peer, which need not be installed
    from numba import njit, prange

    threads = numba.get_num_threads()

    @njit(parallel=True)
    def saxpy_(a, x, y):  # type: ignore[no-untyped-def]
        out = np.empty_like(x)
        for i in prange(x.size):
            out[i] = a * x[i] + y[i]
        return out

    @njit(parallel=True)
    def stencil_(x):  # type: ignore[no-untyped-def]
        h, w = x.shape
        out = np.empty_like(x)
        for j in prange(h):
            for i in range(w):
                if i > 0 and i < w - 1 and j > 0 and j < h - 1:
                    out[j, i] = np.float32(0.2) * (x[j, i] + x[j, i - 1] + x[j, i + 1] + x[j - 1, i] + x[j + 1, i])
                else:
                    out[j, i] = x[j, i]
        return out

    @njit(parallel=True)
    def softmax_(x):  # type: ignore[no-untyped-def]
        out = np.empty_like(x)
        rows, columns = x.shape
        for r in prange(rows):
            top = np.float32(-np.inf)
            for i in range(columns):
                top = max(top, x[r, i])
            total = np.float32(0)
            for i in range(columns):
                e = np.exp(x[r, i] - top)
                out[r, i] = e
                total += e
            for i in range(columns):
                out[r, i] /= total
        return out

    @njit(parallel=True)
    def histogram_(x):  # type: ignore[no-untyped-def]
        parts = np.zeros((threads, BINS), np.int32)
        size = (x.size + threads - 1) // threads
        for t in prange(threads):
            for i in range(t * size, min(x.size, (t + 1) * size)):
                parts[t, x[i]] += 1
        return parts.sum(0)

    @njit(parallel=True)
    def sample_(x, grid):  # type: ignore[no-untyped-def]
        b, h, w, c = x.shape
        out = np.empty((b, grid.shape[1], grid.shape[2], c), np.float32)
        one, half = np.float32(1), np.float32(0.5)
        for n in prange(b * grid.shape[1]):
            k, j = n // grid.shape[1], n % grid.shape[1]
            for i in range(grid.shape[2]):
                ix = ((grid[k, j, i, 0] + one) * np.float32(w) - one) * half
                iy = ((grid[k, j, i, 1] + one) * np.float32(h) - one) * half
                left, top = math.floor(ix), math.floor(iy)
                fx, fy = ix - np.float32(left), iy - np.float32(top)
                for ch in range(c):
                    total = np.float32(0)
                    for dy in range(2):
                        for dx in range(2):
                            p, q = top + dy, left + dx
                            if p >= 0 and p < h and q >= 0 and q < w:
                                weight = (fx if dx == 1 else one - fx) * (fy if dy == 1 else one - fy)
                                total += x[k, p, q, ch] * weight
                    out[k, j, i, ch] = total
        return out

    return {
        "saxpy": lambda: saxpy_(np.float32(2.5), data["x"], data["y"]),
        "stencil": lambda: stencil_(data["image"]),
        "row softmax": lambda: softmax_(data["rows"]),
        "histogram": lambda: histogram_(data["whole"]),
        "grid sample": lambda: sample_(data["pictures"], data["grid"]),
    }


def operands() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "x": rng.normal(size=SIZE).astype(np.float32),
        "y": rng.normal(size=SIZE).astype(np.float32),
        "image": rng.normal(size=(2048, 2048)).astype(np.float32),
        "rows": rng.normal(size=(ROWS, COLUMNS)).astype(np.float32),
        "whole": rng.integers(0, BINS, SIZE).astype(np.int32),
        "pictures": rng.normal(size=SAMPLES).astype(np.float32),
        "grid": rng.uniform(-1, 1, (*SAMPLES[:3], 2)).astype(np.float32),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads in place of elapsed time")
    options = parser.parse_args()
    clock = time.process_time if options.cpu else time.perf_counter
    data = operands()
    ours, theirs = programs(data), numba_programs(data)
    print(f"{os.cpu_count()} CPUs; best of {options.rounds}, in ms{' of CPU time' if options.cpu else ''}")
    print(f"{'':14}{'weft':>9}{'numba':>9}{'ratio':>8}")
    for name in ours:
        a, b = np.asarray(np.array(ours[name]())), np.asarray(theirs[name]())
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
        best = [math.inf, math.inf]
        for _ in range(options.rounds):
            for k, run in enumerate((ours[name], theirs[name])):
                start = clock()
                run()
                best[k] = min(best[k], clock() - start)
        print(f"{name:14}{best[0] * 1e3:9.2f}{best[1] * 1e3:9.2f}{best[1] / best[0]:8.2f}")


if __name__ == "__main__":
    main()
