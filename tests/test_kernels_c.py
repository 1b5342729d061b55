"""Custom kernels in Metal's C++ and in CUDA: values against NumPy versions written from their texts, and errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.kernel_texts import run, values
from weft.kernels.syntax import KernelError

FORWARD = """
    uint elem = thread_position_in_grid.x;
    int H = x_shape[1];
    int W = x_shape[2];
    int C = x_shape[3];
    int gH = grid_shape[1];
    int gW = grid_shape[2];

    int w_stride = C;
    int h_stride = W * w_stride;
    int b_stride = H * h_stride;

    uint at = elem / C * 2;
    float ix = ((grid[at] + 1) * W - 1) / 2;
    float iy = ((grid[at + 1] + 1) * H - 1) / 2;

    int left = floor(ix), top = floor(iy);
    int right = left + 1, bottom = top + 1;

    T nw = (right - ix) * (bottom - iy);
    T ne = (ix - left) * (bottom - iy);
    T sw = (right - ix) * (iy - top);
    T se = (ix - left) * (iy - top);

    int base = elem / C / gH / gW * b_stride + elem % C;

    // Reads first, and drops what was outside.
    T I_nw = x[base + top * h_stride + left * w_stride];
    T I_ne = x[base + top * h_stride + right * w_stride];
    T I_sw = x[base + bottom * h_stride + left * w_stride];
    T I_se = x[base + bottom * h_stride + right * w_stride];

    I_nw = top >= 0 && top <= H - 1 && left >= 0 && left <= W - 1 ? I_nw : 0;
    I_ne = top >= 0 && top <= H - 1 && right >= 0 && right <= W - 1 ? I_ne : 0;
    I_sw = bottom >= 0 && bottom <= H - 1 && left >= 0 && left <= W - 1 ? I_sw : 0;
    I_se = bottom >= 0 && bottom <= H - 1 && right >= 0 && right <= W - 1 ? I_se : 0;

    out[elem] = nw * I_nw + ne * I_ne + sw * I_sw + se * I_se;
"""

BACKWARD = """
    uint elem = thread_position_in_grid.x;
    int H = x_shape[1];
    int W = x_shape[2];
    int C = x_shape[3];
    // C, up to whole simdgroups
    int C_padded = ceildiv(C, threads_per_simdgroup) * threads_per_simdgroup;
    int gH = grid_shape[1];
    int gW = grid_shape[2];
    int w_stride = C;
    int h_stride = W * w_stride;
    int b_stride = H * h_stride;

    uint at = elem / C_padded * 2;
    float ix = ((grid[at] + 1) * W - 1) / 2;
    float iy = ((grid[at + 1] + 1) * H - 1) / 2;
    int left = floor(ix), top = floor(iy);
    int right = left + 1, bottom = top + 1;
    T nw = (right - ix) * (bottom - iy);
    T ne = (ix - left) * (bottom - iy);
    T sw = (right - ix) * (iy - top);
    T se = (ix - left) * (iy - top);
    int b = elem / C_padded / gH / gW * b_stride;
    int channel = elem % C_padded;
    int base = b + channel;

    T gix = T(0), giy = T(0);
    if (channel < C) {
        T cot = cotangent[elem / C_padded * C + channel];
        if (top >= 0 && top <= H - 1 && left >= 0 && left <= W - 1) {
            int offset = base + top * h_stride + left * w_stride;
            atomic_fetch_add_explicit(&x_grad[offset], nw * cot, memory_order_relaxed);
            T I = x[offset];
            gix -= I * (bottom - iy) * cot;
            giy -= I * (right - ix) * cot;
        }
        if (top >= 0 && top <= H - 1 && right >= 0 && right <= W - 1) {
            int offset = base + top * h_stride + right * w_stride;
            atomic_fetch_add_explicit(&x_grad[offset], ne * cot, memory_order_relaxed);
            T I = x[offset];
            gix += I * (bottom - iy) * cot;
            giy -= I * (ix - left) * cot;
        }
        if (bottom >= 0 && bottom <= H - 1 && left >= 0 && left <= W - 1) {
            int offset = base + bottom * h_stride + left * w_stride;
            atomic_fetch_add_explicit(&x_grad[offset], sw * cot, memory_order_relaxed);
            T I = x[offset];
            gix -= I * (iy - top) * cot;
            giy += I * (right - ix) * cot;
        }
        if (bottom >= 0 && bottom <= H - 1 && right >= 0 && right <= W - 1) {
            int offset = base + bottom * h_stride + right * w_stride;
            atomic_fetch_add_explicit(&x_grad[offset], se * cot, memory_order_relaxed);
            T I = x[offset];
            gix += I * (iy - top) * cot;
            giy += I * (ix - left) * cot;
        }
    }
    T gix_mult = W / 2;
    T giy_mult = H / 2;
    // One atomic operation for each simdgroup instead of one for each thread.
    gix = simd_sum(gix);
    giy = simd_sum(giy);
    if (thread_index_in_simdgroup == 0) {
        atomic_fetch_add_explicit(&grid_grad[at], gix * gix_mult, memory_order_relaxed);
        atomic_fetch_add_explicit(&grid_grad[at + 1], giy * giy_mult, memory_order_relaxed);
    }
"""


def sampled(x: np.ndarray, grid: np.ndarray, cotangent: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The samples and both gradients, in double precision."""
    x, grid, cotangent = (v.astype(np.float64) for v in (x, grid, cotangent))
    (batch, h, w, c), (_, gh, gw, _) = x.shape, grid.shape
    out, dx, dgrid = np.zeros((batch, gh, gw, c)), np.zeros_like(x), np.zeros_like(grid)
    for place in np.ndindex(batch, gh, gw):
        ix, iy = ((grid[place] + 1) * [w, h] - 1) / 2
        left, top = int(np.floor(ix)), int(np.floor(iy))
        for i, j in ((top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)):
            if 0 <= i < h and 0 <= j < w:
                fx = (ix - left) if j > left else (left + 1 - ix)
                fy = (iy - top) if i > top else (top + 1 - iy)
                out[place] += x[place[0], i, j] * fx * fy
                dx[place[0], i, j] += fx * fy * cotangent[place]
                dot = x[place[0], i, j] @ cotangent[place]
                dgrid[place][0] += dot * fy * (1 if j > left else -1) * (w // 2)
                dgrid[place][1] += dot * fx * (1 if i > top else -1) * (h // 2)
    return out, dx, dgrid


def test_grid_sample_forward_and_backward_with_atomics() -> None:
    x, cotangent = values(2, 8, 10, 5), values(2, 4, 6, 5)
    grid = np.random.default_rng(1).uniform(-1.4, 1.4, (2, 4, 6, 2)).astype(np.float32)
    forward = mx.fast.metal_kernel("sample", ["x", "grid"], ["out"], FORWARD)
    backward = mx.fast.metal_kernel(
        "sample_grad", ["x", "grid", "cotangent"], ["x_grad", "grid_grad"], BACKWARD, atomic_outputs=True
    )
    template = [("T", mx.float32)]
    (out,) = forward(
        inputs=[mx.array(x), mx.array(grid)],
        template=template,
        grid=(cotangent.size, 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[cotangent.shape],
        output_dtypes=[mx.float32],
    )
    dx, dgrid = backward(
        inputs=[mx.array(v) for v in (x, grid, cotangent)],
        template=template,
        grid=(2 * 4 * 6 * 32, 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[x.shape, grid.shape],
        output_dtypes=[mx.float32, mx.float32],
        init_value=0,
    )
    for got, want in zip((out, dx, dgrid), sampled(x, grid, cotangent), strict=True):
        np.testing.assert_allclose(np.array(got), want, rtol=1e-5, atol=1e-4)


SOFTMAX = """
    constexpr int TG = 64;
    threadgroup float shared[2];
    uint row = threadgroup_position_in_grid.x;
    uint lane = thread_position_in_threadgroup.x;
    uint sg = simdgroup_index_in_threadgroup;
    int n = x_shape[1];
    auto from = x + row * n;
    float top = -INFINITY;
    for (int i = lane; i < n; i += TG) top = metal::max(top, float(from[i]));
    top = simd_max(top);
    if (thread_index_in_simdgroup == 0) shared[sg] = top;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    top = max(shared[0], shared[1]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float total = 0;
    for (int i = lane; i < n; i += TG) total += metal::precise::exp(from[i] - top);
    total = simd_sum(total);
    if (thread_index_in_simdgroup == 0) shared[sg] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = shared[0] + shared[1];
    for (int i = lane; i < n; i += TG) out[row * n + i] = T(exp(from[i] - top) / total);
"""


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("n", [1, 31, 64, 200])
def test_softmax_with_threadgroup_memory(dtype: Any, n: int) -> None:
    x = mx.array(values(3, n)).astype(dtype)
    kernel = mx.fast.metal_kernel("softmax", ["x"], ["out"], SOFTMAX)
    (out,) = kernel(
        inputs=[x],
        template=[("T", dtype)],
        grid=(3 * 64, 1, 1),
        threadgroup=(64, 1, 1),
        output_shapes=[x.shape],
        output_dtypes=[dtype],
    )
    wide = np.array(x.astype(mx.float32)).astype(np.float64)
    want = np.exp(wide - wide.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    eps = {mx.float32: 1e-6, mx.float16: 1e-3, mx.bfloat16: 8e-3}[dtype]
    np.testing.assert_allclose(np.array(out.astype(mx.float32)), want, rtol=eps, atol=1e-7)


def test_functions_templates_and_references() -> None:
    header = """
    #define SCALE 2
    constant int OFFSET = 3;
    template <typename U, int N> inline U power(U x) { U y = 1; for (int i = 0; i < N; ++i) { y *= x; } return y; }
    void add(thread int& total, int by) { if (by > 4) { return; } total += by; }
    float sum3(const device float* v) { return v[0] + v[1] + v[2]; }
    """
    source = """
        uint i = thread_position_in_grid.x;
        int total = OFFSET;
        add(total, i);
        out[i] = power<float, 2>(x[i]) * SCALE + total + sum3(&x[0]);
    """
    x = values(9)
    got = run(source, {"x": x}, (9,), header=header)
    total = 3 + np.array([i if i <= 4 else 0 for i in range(9)], np.float32)
    np.testing.assert_allclose(got, x * x * 2 + total + x[:3].sum(), rtol=1e-6)


def test_integer_arithmetic_is_that_of_c() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        int a = x[i], b = y[i];
        uint c = a;
        uchar small = a;
        out[i] = (b != 0 ? a / b + a % b : 0) + (a >> 1) + int(c >> 28) + small + (a & 6)
            + (~b) + (a << 2) - -a + (a ^ b);
    """
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-100, 100, 50).astype(np.int32) for _ in range(2))
    quotient = np.where(y == 0, 0, np.trunc(x / np.where(y == 0, 1, y))).astype(np.int64)
    rest = np.where(y == 0, 0, x - quotient * y)
    high = (x.astype(np.uint32) >> 28).astype(np.int64)
    want = quotient + rest + (x >> 1) + high + x.astype(np.uint8) + (x & 6) + ~y + (x << 2) + x + (x ^ y)
    np.testing.assert_array_equal(run(source, {"x": x, "y": y}, (50,), dtype=mx.int32), want)


def test_half_arithmetic_rounds_each_time() -> None:
    source = "uint i = thread_position_in_grid.x; half s = x[i] * y[i]; s += 0.1h; out[i] = s / y[i];"
    x, y = (values(40, seed=k).astype(np.float16) for k in (1, 2))
    want = ((x * y) + np.float16(0.1)) / y
    np.testing.assert_array_equal(run(source, {"x": x, "y": y}, (40,), dtype=mx.float16), want)


def test_loops_and_jumps() -> None:
    source = """
        int i = thread_position_in_grid.x, total = 0, k = 0;
        do { if (k == 3) { ++k; continue; } total += k++; } while (k < i);
        for (;;) { if (--k < 0) break; total += 10; }
        while (true) { total -= 1; if (total < i) break; }
        out[i] = total, total = 0;
    """

    def one(i: int) -> int:
        total = k = 0
        while True:
            if k == 3:
                k += 1
            else:
                total, k = total + k, k + 1
            if k >= i:
                break
        total += 10 * k
        while True:
            total -= 1
            if total < i:
                return total

    np.testing.assert_array_equal(run(source, {}, (20,), dtype=mx.int32), [one(i) for i in range(20)])


def test_vectors_of_a_few_numbers() -> None:
    source = """
        uint3 p = thread_position_in_grid;
        float4 v = float4(x[p.x], 1.0f, float2(2.0f));
        v.y += v.x;
        float2 w = v.xy * 2.0f + float2(p.x, 0);
        out[p.x] = dot(w, v.zw) + max(v, w.x).w;
    """
    x = values(12)
    w = np.stack([x * 2 + np.arange(12, dtype=np.float32), (1 + x) * 2])
    np.testing.assert_allclose(run(source, {"x": x}, (12,)), 2 * w[0] + 2 * w[1] + np.maximum(2, w[0]), rtol=1e-6)


def test_strides_and_elem_to_loc() -> None:
    source = """
        uint elem = thread_position_in_grid.x;
        auto loc = elem_to_loc(elem, x_shape, x_strides, x_ndim);
        out[elem] = x[loc];
    """
    whole = mx.array(values(6, 8))
    for view in (whole.T, whole[::2, 1:], whole[::-1, ::-2], mx.broadcast_to(whole[:, :1], (6, 5))):
        for contiguous in (True, False):
            kernel = mx.fast.metal_kernel("copy", ["x"], ["out"], source, ensure_row_contiguous=contiguous)
            (out,) = kernel(
                inputs=[view],
                grid=(view.size, 1, 1),
                threadgroup=(16, 1, 1),
                output_shapes=[view.shape],
                output_dtypes=[mx.float32],
            )
            np.testing.assert_array_equal(np.array(out), np.array(view))


def test_cuda() -> None:
    source = """
        __shared__ float block[32];
        auto grid = 0;
        auto elem = cooperative_groups::this_grid().thread_rank();
        unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
        block[threadIdx.x] = i < x_shape[0] ? __expf(x[i]) : 0.0f;
        __syncthreads();
        for (int s = blockDim.x / 2; s > 0; s >>= 1) {
            if (threadIdx.x < s) block[threadIdx.x] += block[threadIdx.x + s];
            __syncthreads();
        }
        float v = i < x_shape[0] ? fmaxf(x[i], 0.5f) : 0.0f;
        v += __shfl_xor_sync(0xffffffff, v, 1);
        if (elem == i && i < x_shape[0]) out[i] = block[0] + v * 1.0;
    """
    x = values(70)
    padded = np.pad(np.maximum(x, np.float32(0.5)), (0, 26))
    sums = np.pad(np.exp(x.astype(np.float64)), (0, 26)).reshape(3, 32).sum(-1).repeat(32)
    pairs = padded + padded.reshape(-1, 2)[:, ::-1].ravel()
    got = run(source, {"x": x}, (70,), threadgroup=(32, 1, 1), make=mx.fast.cuda_kernel)
    np.testing.assert_allclose(got, (sums + pairs)[:70], rtol=1e-6)


def test_atomics_on_integers_do_not_depend_on_the_order() -> None:
    source = """
        uint i = thread_position_in_grid.x;
        atomic_fetch_add_explicit(&out[x[i] % 8], 1, memory_order_relaxed);
        atomic_fetch_max_explicit(out + 8, x[i], memory_order_relaxed);
        atomic_fetch_or_explicit(&out[9], x[i], memory_order_relaxed);
    """
    x = np.random.default_rng(0).integers(0, 1000, 3000).astype(np.int32)
    want = [*np.bincount(x % 8, minlength=8), x.max(), np.bitwise_or.reduce(x)]
    np.testing.assert_array_equal(run(source, {"x": x}, (10,), dtype=mx.int32, grid=(3000, 1, 1), init_value=0), want)


def test_kernels_of_one_name_do_not_mix() -> None:
    x = values(5)
    for factor in (2, 3):
        source = f"uint i = thread_position_in_grid.x; out[i] = x[i] * {factor} + N;"
        for n in (1, 4):
            np.testing.assert_allclose(run(source, {"x": x}, (5,), template=[("N", n)]), x * factor + n, rtol=1e-6)
    whole = np.arange(5, dtype=np.int32)
    got = run("uint i = thread_position_in_grid.x; out[i] = x[i] / 2;", {"x": whole}, (5,), dtype=mx.int32)
    np.testing.assert_array_equal(got, whole // 2)
    got = run("uint i = thread_position_in_grid.x; out[i] = x[i] / 2;", {"x": x}, (5,))
    np.testing.assert_array_equal(got, x / 2)


@pytest.mark.parametrize(
    ("source", "what", "line"),
    [
        ("out[0] = 1\n;goto end;", "goto", 2),
        ("int i = 0;\n\nout[0] = nothing;", "`nothing` is not known", 3),
        ("out[0] = frobnicate(1.0f);", "`frobnicate` is no function", 1),
        ("x[0] = 1.0f;", "`x` is an input", 1),
        ("int i = 0;\nif (i == 0 {", r"`\)` is missing", 2),
        ("float a[n];", "`n` is not known", 1),
        ("uint n = thread_position_in_grid.x; float a[n];", "known when the kernel is compiled", 1),
        ("out[0] = x[1.5f];", "an integer is needed", 1),
        ("float4 v = float4(1.0f);\nout[0] = v;", "a vector", 2),
        ("int x2 = 1; x2.y = 3;", "this has no `y`", 1),
        ("break;", "in no loop", 1),
        ("out[0] = 1.0f % 2.0f;", "is not for float32", 1),
        (
            "uint i = thread_position_in_grid.x;\nif (i < 3) {\n threadgroup_barrier(mem_flags::mem_threadgroup);\n}",
            "come to this barrier",
            3,
        ),
        ("/* no end", "comment has no end", 1),
        ("#if 1\n", "`#endif` is missing", 1),
    ],
)
def test_what_is_not_taken_is_named_with_its_line(source: str, what: str, line: int) -> None:
    with pytest.raises(KernelError, match=rf"\[test\] at <test>:{line}:\d+: .*{what}"):
        run(source, {"x": values(4)}, (4,))
