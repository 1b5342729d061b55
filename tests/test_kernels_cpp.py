"""The C++ of custom kernels, construct by construct: values against NumPy, and machine code against the interpreter."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.kernel_texts import run, values
from weft.kernels import encoding
from weft.kernels.syntax import KernelError

AT = "uint i = thread_position_in_grid.x;\n"
N = 37
X = values(N)
INDEX = np.arange(N)


# ---- the preprocessor ----


def test_macros_with_and_without_parameters() -> None:
    header = """
    #define SCALE 3
    #define SQUARE(x) ((x) * (x))
    #define JOIN(a, b) a##b
    #define BOTH(f, ...) f(__VA_ARGS__)
    #define LONG(x) do { \\
        total += (x);    \\
    } while (0)
    #define SELF SELF + 1
    inline float JOIN(sq, uare)(float v) { return SQUARE(v + 1); }
    """
    source = AT + "float total = SCALE; LONG(BOTH(max, x[i], 0.0f)); out[i] = square(x[i]) + total;"
    want = (X + 1) * (X + 1) + (np.float32(3) + np.maximum(X, 0))
    np.testing.assert_array_equal(run(source, {"x": X}, (N,), header=header), want)


def test_conditions_of_the_preprocessor() -> None:
    header = """
    #define WIDTH 16
    #if defined(WIDTH) && WIDTH * 2 == 0x20 && !defined(OTHER)
    #  ifdef __METAL_VERSION__
    constant float A = 1;
    #  else
    constant float A = 2;
    #  endif
    #elif WIDTH == 16
    constant float A = 3;
    #else
    #error never
    #endif
    #ifndef WIDTH
    this is not C++
    #endif
    #undef WIDTH
    #if WIDTH
    nor is this
    #endif
    """
    source = AT + "#if 0\nnothing @ all\n#endif\nout[i] = x[i] + A;"
    np.testing.assert_array_equal(run(source.replace("@", "at"), {"x": X}, (N,), header=header), X + np.float32(1))


# ---- structs ----


def test_structs_of_numbers_vectors_and_arrays() -> None:
    header = """
    struct Inner { float2 pair; int count = 2; };
    struct Outer { float first; Inner inner; float rest[3]; };
    Outer made(float v) { Outer o; o.first = v; o.inner.pair = float2(v, 2 * v); o.rest[1] = v + 1; return o; }
    void twice(thread Outer& o) { o.first *= 2; o.inner.pair.y += 1; for (int k = 0; k < 3; ++k) o.rest[k] += k; }
    """
    source = (
        AT
        + """
        Outer a = made(x[i]);
        Outer b = a;
        twice(b);
        thread Outer* p = &a;
        p->first += 10;
        Inner single = {float2(1.0f), 7};
        out[i] = a.first + b.first * 100 + b.inner.pair.y + b.inner.count + single.count + b.rest[1] + b.rest[2]
            + a.rest[1];
    """
    )
    v = X.astype(np.float64)
    want = (v + 10) + 200 * v + (2 * v + 1) + 2 + 7 + (v + 1 + 1) + 2 + (v + 1)
    np.testing.assert_allclose(run(source, {"x": X}, (N,), header=header), want, rtol=1e-5)


def test_structs_with_template_parameters_methods_and_operators() -> None:
    header = """
    template <typename T, int N = 4>
    struct Sum {
        static constant constexpr int size = N;
        T parts[N];
        T total;
        Sum(T start) : total(start) { for (int k = 0; k < N; ++k) parts[k] = T(k); }
        void add(T v) { parts[0] += v; total += v * N; }
        T whole() const { T s = total; for (int k = 0; k < N; ++k) s += parts[k]; return s; }
        T operator()(T a, T b) const { return a * b + total; }
    };
    struct Complex { float re, im; };
    Complex operator*(Complex a, Complex b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
    struct Point { float x; Point operator+(Point o) const { Point r = {x + o.x}; return r; } };
    template <typename T, int N> T all(Sum<T, N> s) { return s.whole() + N; }
    """
    source = (
        AT
        + """
        Sum<float> s(1.0f);
        s.add(x[i]);
        Sum<T, 2> small = Sum<T, 2>(T(0));
        Complex c = Complex{x[i], 1.0f} * Complex{2.0f, 3.0f};
        Point p = Point{1.0f} + Point{x[i]};
        out[i] = all(s) + s(2.0f, 3.0f) + Sum<float, 3>::size + small.whole() + c.re + c.im * 1000 + p.x;
    """
    )
    v = X.astype(np.float64)
    total = 1 + 4 * v
    whole = total + (0 + v) + 1 + 2 + 3
    want = whole + 4 + 6 + total + 3 + 1 + (2 * v - 3) + 1000 * (3 * v + 2) + (1 + v)
    got = run(source, {"x": X}, (N,), header=header, template=[("T", mx.float32)])
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_arrays_of_structs_in_memory_of_threads_and_threadgroups() -> None:
    header = "struct Best { float value; int index; half2 extra; };"
    source = """
        threadgroup Best shared[32];
        Best own[2];
        uint i = thread_position_in_grid.x, lane = thread_position_in_threadgroup.x;
        own[lane % 2] = {x[i], int(i), half2(1.0h, 2.0h)};
        shared[lane] = own[lane % 2];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint step = 16; step > 0; step /= 2) {
            if (lane < step && shared[lane + step].value > shared[lane].value) { shared[lane] = shared[lane + step]; }
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        threadgroup Best* top = shared;
        out[i] = top->index + shared[0].extra.y + (lane < 31 ? (top + lane + 1)->extra.x : 0.0h);
    """
    x = values(64)
    want = np.repeat([x[:32].argmax(), 32 + x[32:].argmax()], 32) + 2 + (np.arange(64) % 32 < 31)
    np.testing.assert_array_equal(run(source, {"x": x}, (64,), header=header, threadgroup=(32, 1, 1)), want)


def test_structs_laid_over_an_input() -> None:
    header = "struct Block { half scale; uchar codes[4]; ushort more; };"
    source = (
        AT
        + """
        const device Block* blocks = reinterpret_cast<const device Block*>(x);
        Block b = blocks[i];
        float total = 0;
        for (int k = 0; k < 4; ++k) total += blocks[i].codes[k] * (k + 1);
        out[i] = float(b.scale) * total + b.more + sizeof(Block) * 1000;
    """
    )
    rng = np.random.default_rng(0)
    raw = np.zeros(9, np.dtype([("scale", "f2"), ("codes", "u1", 4), ("more", "u2")]))
    raw["scale"], raw["codes"], raw["more"] = rng.normal(size=9), rng.integers(0, 255, (9, 4)), rng.integers(0, 9, 9)
    want = raw["scale"].astype(np.float64) * (raw["codes"] @ np.arange(1, 5)) + raw["more"] + 8000
    for dtype in (np.uint8, np.uint16, np.uint32):
        got = run(source, {"x": raw.view(dtype)}, (9,), header=header)
        np.testing.assert_allclose(got, want, rtol=1e-5)


# ---- vectors ----


def test_arrays_of_vectors_swizzles_and_indices() -> None:
    source = (
        AT
        + """
        float4 acc[3];
        for (int k = 0; k < 3; ++k) acc[k] = float4(x[i], k, 0.0f, 1.0f);
        acc[1].zw = acc[2].yx;
        acc[0] += acc[1] * 2;
        acc[i % 3].w = 5.0f;
        float4 v = acc[0].wzyx;
        v.rg = v.gr;
        int place = i % 4;
        v[place] += 100.0f;
        out[i] = v[(i + 1) % 4] + dot(acc[i % 3], float4(1, 10, 100, 1000)) + v.x * 2 + length(float2(3, 4));
    """
    )
    want = []
    for i, x in enumerate(X.astype(np.float64)):
        acc = np.array([[x, k, 0, 1] for k in range(3)])
        acc[1, 2:] = acc[2, 1], acc[2, 0]
        acc[0] += acc[1] * 2
        acc[i % 3, 3] = 5
        v = acc[0, ::-1].copy()
        v[:2] = v[1], v[0]
        v[i % 4] += 100
        want.append(v[(i + 1) % 4] + acc[i % 3] @ [1, 10, 100, 1000] + 2 * v[0] + 5)
    np.testing.assert_allclose(run(source, {"x": X}, (N,)), want, rtol=1e-5)


def test_pointers_to_vectors_over_inputs_outputs_and_threadgroup_memory() -> None:
    source = """
        threadgroup float flat[64];
        uint i = thread_position_in_grid.x, lane = thread_position_in_threadgroup.x;
        const device float4* from = (const device float4*)(x + 4);
        device float4* to = reinterpret_cast<device float4*>(out);
        threadgroup float2* pairs = (threadgroup float2*)flat;
        float4 v = from[i] * 2.0f;
        pairs[2 * lane] = v.xy;
        pairs[2 * lane + 1] = v.zw;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        v.x = flat[(4 * lane + 4) % 64];
        to[i] = v;
        to[i].w += 1.0f;
        (to + i)->z -= 1.0f;
    """
    x = values(4 * 17)
    v = (x[4:] * 2).reshape(16, 4)
    want = v.copy()
    want[:, 0] = v.ravel()[(4 * np.arange(16) + 4) % 64]
    want[:, 3] += 1
    want[:, 2] -= 1
    got = run(source, {"x": x}, (16, 4), grid=(16, 1, 1), threadgroup=(16, 1, 1))
    np.testing.assert_array_equal(got, want)


def test_vectors_of_three_lie_as_the_language_says() -> None:
    source = AT + "out[i] = float(sizeof(%s)) + ((const device %s*)x)[i].y;"
    x = values(40)
    for kind, step in (("float3", 4), ("packed_float3", 3)):
        got = run(source % (kind, kind), {"x": x}, (10,))
        np.testing.assert_allclose(got, 4 * step + x[1::step][:10], rtol=1e-6)
    cuda = "uint i = threadIdx.x; if (i < 10) out[i] = sizeof(float3) + ((const float3*)x)[i].y;"
    got = run(cuda, {"x": x}, (10,), make=mx.fast.cuda_kernel)
    np.testing.assert_allclose(got, 12 + x[1::3][:10], rtol=1e-6)


def test_bits_of_vectors() -> None:
    source = (
        AT
        + """
        uint word = x[i];
        uchar4 bytes = as_type<uchar4>(word);
        half2 halves = as_type<half2>(word);
        ushort2 shorts = ushort2(bytes.x, bytes.w);
        uint again = as_type<uint>(uchar4(bytes.wzyx));
        out[i] = again ^ as_type<uint>(shorts) ^ as_type<uint>(halves) ^ uint(bytes.y + bytes.z);
    """
    )
    x = np.random.default_rng(0).integers(0, 1 << 32, N, dtype=np.uint32)
    x[(x & 0x7C00) == 0x7C00] = 5  # NaNs have no bits of their own
    x[(x & 0x7C000000) == 0x7C000000] = 6
    b = x.view(np.uint8).reshape(-1, 4).astype(np.uint32)
    # Bytes of vectors stay bytes; numbers that are taken out of them are ints.
    want = x.byteswap() ^ (b[:, 0] | b[:, 3] << 16) ^ x ^ (b[:, 1] + b[:, 2])
    np.testing.assert_array_equal(run(source, {"x": x}, (N,), dtype=mx.uint32), want)


def test_numbers_beside_vectors_take_their_type() -> None:
    source = (
        AT + "half2 v = half2(x[i]) * 1.1f; uchar2 u = uchar2(200, 100) + uchar2(i, 200); out[i] = v.x + half(u.x);"
    )
    x = X.astype(np.float16)
    want = x * np.float16(1.1) + (np.uint8(200) + INDEX.astype(np.uint8)).astype(np.float16)
    np.testing.assert_array_equal(run(source, {"x": x}, (N,), dtype=mx.float16), want)


# ---- statements ----


@pytest.mark.parametrize("tested", ["x[i]", "K"])
def test_switch(tested: str) -> None:
    source = (
        AT
        + f"""
        int total = 0;
        for (int k = 0; k < 3; ++k) {{
            switch ({tested}) {{
                case 0: total += 1; break;
                case 1:
                case 2: {{ total += 10; break; }}
                case 3: if (i % 2) break; total += 100;
                case 4: total += 1000; break;
                case 5: continue;
                case -6: out[i] = -1; return;
                default: total += 5;
            }}
            total += 100000;
        }}
        out[i] = total;
    """
    )

    def one(value: int, i: int) -> int:
        total = 0
        for _ in range(3):
            if value == 5:
                continue
            if value == -6:
                return -1
            if value == 0:
                total += 1
            elif value in (1, 2):
                total += 10
            elif value == 3:
                total += 0 if i % 2 else 1100
            else:
                total += 1000 if value == 4 else 5
            total += 100000
        return total

    x = (INDEX % 9).astype(np.int32)
    x[x == 8] = -6
    for k in range(-6, 8) if tested == "K" else (0,):
        given = x if tested != "K" else np.full(N, k)
        got = run(source, {"x": x}, (N,), dtype=mx.int32, template=[("K", k)])
        np.testing.assert_array_equal(got, [one(int(v), i) for i, v in enumerate(given)])


def test_switch_without_fall_through_in_functions() -> None:
    header = """
    enum Kind { RELU, SILU = 4, OTHER };
    float act(float v, int kind) {
        switch (kind) {
            default: return v;
            case RELU: return max(v, 0.0f);
            case SILU: { float e = exp(-v); return v / (1 + e); }
        }
    }
    """
    source = AT + "out[i] = act(x[i], i % 3 * 2) + (OTHER == 5);"
    want = np.select([INDEX % 3 == 0, INDEX % 3 == 2], [np.maximum(X, 0), X / (1 + np.exp(-X))], X) + 1
    np.testing.assert_allclose(run(source, {"x": X}, (N,), header=header, close=1e-6), want, rtol=1e-5)


def test_references_and_pointers_to_what_is_there() -> None:
    header = """
    void bump(thread float& v) { v += 1; }
    void swap(thread float* a, thread float* b) { float t = *a; *a = *b; *b = t; }
    float first(const thread float (&v)[3]) { return v[0]; }
    const device float* skip(const device float* p, int n) { return p + n; }
    float walk(const device float* p, int n) { float s = 0; while (n-- > 0) s += *p++; return s; }
    """
    source = (
        AT
        + """
        float a[3] = {x[i], 2.0f};
        thread float& r = a[i % 3];
        int k = i % 3;
        thread float& same = a[k];
        k = 0;
        r += 10; same += 100;
        bump(a[1]);
        float b = 5, c = 7;
        swap(&b, &c);
        auto& cc = c;
        cc += 0.5f;
        const device float* p = skip(x, 1);
        p += 1;
        int n = 0, m = n++ + 3;
        out[i] = first(a) + a[1] * 2 + a[2] * 3 + b * 1000 + c + *p + walk(x + 3, 4) + (p - x) + (p > x) + m;
    """
    )
    want = []
    for i, v in enumerate(X.astype(np.float64)):
        a = [v, 2.0, 0.0]
        a[i % 3] += 110
        a[1] += 1
        want.append(a[0] + 2 * a[1] + 3 * a[2] + 7000 + 5.5 + X[2] + X[3:7].sum() + 2 + 1 + 3)
    np.testing.assert_allclose(run(source, {"x": X}, (N,), header=header), want, rtol=1e-5)


def test_the_order_of_effects() -> None:
    source = (
        AT
        + """
        float a[6] = {0, 1, 2, 3, 4, 5};
        int n = 1;
        a[n++] = n * 10.0f;
        a[n] = a[n++ + 1];
        float2 v = float2(1, 2);
        v = v.yx + (v.x = 5.0f);
        float t = a[n] + (a[n] = 7.0f);
        int k = 1;
        k += (k = 3) + 1;
        a[k - 7] += k++;
        out[i] = a[1] + 100 * a[2] + 1000 * n + v.x * 10 + v.y + t + 10000 * k + 0.5f * a[0];
    """
    )
    got = run(source, {}, (3,))
    # The right side of an assignment comes first; of `a[n++] = n` the 1.
    a = [0, 10, 2, 3, 4, 5]
    a[3] = a[3]  # a[2 + 1] with n = 2, which is 3 then
    k = 3 + 4  # what is added is computed before the variable is read
    a[k + 1 - 7] += k
    want = a[1] + 100 * a[2] + 3000 + (2 + 5) * 10 + (1 + 5) + (3 + 7) + 10000 * (k + 1)
    np.testing.assert_array_equal(got, [want] * 3)


def test_lambdas_overloads_and_defaults() -> None:
    header = """
    float f(float v) { return v; }
    float f(float2 v) { return v.x * 10; }
    int f(int v) { return v * 100; }
    template <typename T> T f(thread T* v, int n = 2) { T s = 0; for (int k = 0; k < n; ++k) s += v[k]; return s; }
    template <int N> float power(float v) { if constexpr (N == 0) { return 1; } else { return v * power<N - 1>(v); } }
    namespace mine { constexpr constant float HALF = 0.5f; float h(float v) { return v * HALF; } }
    using namespace mine;
    typedef float real;
    """
    source = (
        AT
        + """
        real base = x[i];
        auto add = [&](float a, float b = 1.0f) -> float { base += 1; return a + b; };
        float two[3] = {1, 2, 3};
        static_assert(sizeof(real) == 4, "four");
        float first = add(2.0f);
        out[i] = first + add(3.0f, 4.0f) + base + f(x[i]) + f(float2(1, 2)) + f(3) + f(two) + f(two, 3)
            + power<3>(2.0f) + mine::h(8.0f);
    """
    )
    want = 3 + 7 + (X + 2) + X + 10 + 300 + 3 + 6 + 8 + 4
    np.testing.assert_allclose(run(source, {"x": X}, (N,), header=header), want, rtol=1e-6)


def test_tables_and_constants_of_the_header() -> None:
    header = """
    constant float TABLE[] = {0.5f, 1.5f, 2.5f, 3.5f};
    constant constexpr int COUNT = sizeof(TABLE) / sizeof(TABLE[0]);
    MLX_MTL_CONST int SHIFT = 1;
    inline float look(uint k) { return TABLE[k % COUNT]; }
    """
    source = AT + "MLX_MTL_PRAGMA_UNROLL\nfor (int k = 0; k < 1; ++k) out[i] = look(i + SHIFT);"
    np.testing.assert_array_equal(run(source, {}, (N,), header=header), 0.5 + (INDEX + 1) % 4)


def test_views_of_other_types() -> None:
    source = (
        AT
        + """
        const device uint8_t* bytes = (const device uint8_t*)x + 1;
        const device half* halves = (const device half*)(x);
        const device uint64_t* wide = (const device uint64_t*)(x + 2 * (i % 4));
        device ushort* shorts = (device ushort*)out;
        shorts[2 * i] = bytes[4 * i] + ushort(halves[2 * i] != 0.0h);
        shorts[2 * i + 1] = ushort(*wide >> 32);
    """
    )
    x = np.random.default_rng(0).integers(0, 1 << 30, N, dtype=np.uint32)
    low = x.view(np.uint8)[1::4].astype(np.uint32) + (x.view(np.float16)[::2] != 0)
    want = low | ((x[2 * (INDEX % 4) + 1] & 0xFFFF) << 16)
    np.testing.assert_array_equal(run(source, {"x": x}, (N,), dtype=mx.uint32), want)
    with pytest.raises(IndexError, match="between two elements"):
        run(AT + "out[i] = *(const device uint64_t*)(x + i);", {"x": x}, (3,), dtype=mx.uint32)
    with pytest.raises(IndexError, match=f"index {4 * N}.*{4 * N} elements"):
        run(AT + f"out[i] = ((const device uchar*)x)[{4 * N} + i];", {"x": x}, (1,), dtype=mx.uint32)


# ---- threads together ----


def test_more_of_what_simdgroups_do() -> None:
    source = (
        AT
        + """
        uint lane = thread_index_in_simdgroup;
        int v = x[i];
        int a = quad_sum(v) + quad_broadcast(v, 2) * 3 + quad_shuffle_xor(v, 1) * 5 + quad_max(v) * 7;
        int b = simd_shuffle_rotate_down(v, 3) + simd_shuffle_rotate_up(v, 1) * 11;
        int c = simd_shuffle_and_fill_down(v, v * 100, 2) + simd_shuffle_and_fill_up(v, -1, 1) * 13;
        int2 d = simd_sum(int2(v, 1));
        ulong e = (ulong)simd_ballot(v > 0);
        int f = simd_prefix_inclusive_product(lane < 3 ? v : 1) + simd_prefix_exclusive_product(2);
        out[i] = a + b * 17 + c * 19 + d.x + d.y + int(e) + f + (simd_is_first() ? 1 : 0);
    """
    )
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, 64).astype(np.int32)
    want = []
    lane = np.arange(32)
    for v in x.astype(np.int64).reshape(2, 32):
        four = v.reshape(8, 4)
        a = four.sum(1).repeat(4) + four[:, 2].repeat(4) * 3 + v[lane ^ 1] * 5 + four.max(1).repeat(4) * 7
        b = np.roll(v, -3) + np.roll(v, 1) * 11
        c = np.concatenate([v[2:], v[:2] * 100]) + np.concatenate([[-1], v[:-1]]) * 13
        ballot = sum(1 << k for k in range(32) if v[k] > 0)
        f = np.cumprod(np.where(lane < 3, v, 1)) + 2**lane
        want.append(a + b * 17 + c * 19 + v.sum() + 32 + ballot + f + (lane == 0))
    want = np.concatenate(want).astype(np.int32)
    np.testing.assert_array_equal(run(source, {"x": x}, (64,), dtype=mx.int32, threadgroup=(64, 1, 1)), want)


@pytest.mark.parametrize("width", [1, 2, 8, 16, 32])
def test_shuffles_of_a_width(width: int) -> None:
    source = """
        int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
        out[i] = __shfl_down_sync(0xffffffffu, v, 3, WIDTH) + 100 * __shfl_up_sync(-1, v, 2, WIDTH)
            + 10000 * __shfl_sync(-1, v, 5, WIDTH) + 1000000 * __shfl_xor_sync(-1, v, 6, WIDTH);
    """
    x = np.random.default_rng(0).integers(0, 90, 64).astype(np.int32)
    lane = np.arange(64) % 32
    start, inside, base = lane // width * width, lane % width, np.arange(64) - lane
    down = np.where(inside + 3 < width, lane + 3, lane)
    up = np.where(inside - 2 >= 0, lane - 2, lane)
    xor = np.where((lane ^ 6) < start + width, lane ^ 6, lane)
    want = x[base + down] + 100 * x[base + up] + 10000 * x[base + start + 5 % width] + 1000000 * x[base + xor]
    got = run(source, {"x": x}, (64,), dtype=mx.int32, make=mx.fast.cuda_kernel, template=[("WIDTH", width)])
    np.testing.assert_array_equal(got, want)


def test_exchanges_under_a_condition() -> None:
    source = (
        AT
        + """
        device atomic_int* place = (device atomic_int*)out;
        int expected = atomic_load_explicit(place + x[i] % 4, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(
            place + x[i] % 4, &expected, max(expected, x[i]), memory_order_relaxed, memory_order_relaxed)) {}
    """
    )
    x = np.random.default_rng(0).integers(0, 100, 50).astype(np.int32)
    want = np.zeros(4, np.int64)
    for v in x:
        want[v % 4] = max(want[v % 4], v)
    got = run(source, {"x": x}, (4,), dtype=mx.int32, grid=(50, 1, 1), init_value=0)
    np.testing.assert_array_equal(got, want)
    cuda = """
        int i = threadIdx.x;
        int old = out[0], assumed;
        do { assumed = old; old = atomicCAS(&out[0], assumed, assumed + x[i]); } while (assumed != old);
    """
    got = run(
        cuda, {"x": x}, (1,), dtype=mx.int32, grid=(50, 1, 1), threadgroup=(50, 1, 1), init_value=0,
        make=mx.fast.cuda_kernel,
    )  # fmt: skip
    np.testing.assert_array_equal(got, [x.sum()])


def test_threadgroup_variables_and_shared_structs() -> None:
    header = "struct Stats { float total; int count; };"
    source = """
        threadgroup float total;
        threadgroup Stats stats;
        threadgroup atomic_int counter;
        uint lane = thread_position_in_threadgroup.x, i = thread_position_in_grid.x;
        if (lane == 0) { total = 5.0f; stats.total = x[i]; stats.count = 3; }
        atomic_fetch_add_explicit(&counter, 2, memory_order_relaxed);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[i] = total + stats.total * stats.count + atomic_load_explicit(&counter, memory_order_relaxed);
    """
    x = values(32)
    want = 5 + np.repeat(x[::16], 16) * 3 + 32
    np.testing.assert_allclose(run(source, {"x": x}, (32,), header=header, threadgroup=(16, 1, 1)), want, rtol=1e-6)


# ---- functions ----

UNARY = {
    "metal::fast::exp(v)": np.exp,
    "precise::tanh(v)": np.tanh,
    "sign(v)": np.sign,
    "fract(v)": lambda v: v - np.floor(v),
    "saturate(v)": lambda v: np.clip(v, 0, 1),
    "step(0.25f, v)": lambda v: (v >= 0.25) * 1.0,
    "smoothstep(0.0f, 1.0f, v)": lambda v: (lambda t: t * t * (3 - 2 * t))(np.clip(v, 0, 1)),
    "clamp(v, -0.5f, 0.5f)": lambda v: np.clip(v, -0.5, 0.5),
    "mix(v, 2.0f, 0.25f)": lambda v: v + (2 - v) * 0.25,
    "median3(v, 0.0f, 1.0f)": lambda v: np.clip(v, 0, 1),
    "fma(v, v, 1.0f)": lambda v: v * v + 1,
    "float(signbit(v)) + isnan(v) + isnormal(v)": lambda v: (v < 0) + 1.0,
    "fmod(v, 0.3f)": lambda v: np.fmod(v, np.float32(0.3)),
    "length(float3(v, 1.0f, 2.0f))": lambda v: np.sqrt(v * v + 5),
    "normalize(float2(v, 1.0f)).y": lambda v: 1 / np.sqrt(v * v + 1),
    "cross(float3(v, 0, 1), float3(1, 2, 3)).z": lambda v: 2 * v,
    "distance(float2(v, 0), float2(0, 1))": lambda v: np.hypot(v, 1),
    "float(any(float2(v, 0) > 0.0f)) + all(float2(v, 1) > 0.0f)": lambda v: 2.0 * (v > 0),
    "select(v, 7.0f, v > 0)": lambda v: np.where(v > 0, 7, v),
    "divide(v, 4.0f)": lambda v: v / 4,
    "ldexp(v, 3)": lambda v: v * 8,
    "powr(abs(v), 1.5f)": lambda v: np.abs(v) ** 1.5,
    "degrees(v)": np.degrees,
    "fdim(v, 0.1f)": lambda v: np.maximum(v - np.float32(0.1), 0),
    "numeric_limits<float>::epsilon() + v": lambda v: v,
    "Limits<int>::max == 2147483647 ? v : 0": lambda v: v,
    "hypot(v, 1.0f)": lambda v: np.hypot(v, 1),
    "v > Limits<float>::min ? v : 0": lambda v: v,
}


@pytest.mark.parametrize("text", list(UNARY))
def test_functions_of_metal(text: str) -> None:
    got = run(AT + f"float v = x[i]; out[i] = {text};", {"x": X}, (N,), close=1e-6)
    np.testing.assert_allclose(got, UNARY[text](X.astype(np.float64)), rtol=2e-6, atol=2e-6)


BITWISE = {
    "rotate(v, 5u)": lambda v: (v << 5 | v >> 27) & 0xFFFFFFFF,
    "popcount(v)": lambda v: np.array([int(n).bit_count() for n in v]),
    "mulhi(v, 3000000000u)": lambda v: v * 3000000000 >> 32,
    "extract_bits(v, 4, 8)": lambda v: v >> 4 & 255,
    "clz(v)": lambda v: np.array([32 - int(n).bit_length() for n in v]),
    "absdiff(v, 1000u)": lambda v: np.abs(v.astype(np.int64) - 1000),
    "mad24(v & 255, 3u, 1u)": lambda v: (v & 255) * 3 + 1,
    "max3(v, 5u, 7u)": lambda v: np.maximum(v, 7),
    "uint('a') + (v & 1)": lambda v: 97 + (v & 1),
    "v & 0b101 | 017u": lambda v: v & 5 | 15,
}


@pytest.mark.parametrize("text", list(BITWISE))
def test_functions_of_integers(text: str) -> None:
    x = np.random.default_rng(0).integers(0, 1 << 32, N, dtype=np.uint32)
    got = run(AT + f"uint v = x[i]; out[i] = {text};", {"x": x}, (N,), dtype=mx.uint32)
    np.testing.assert_array_equal(got, BITWISE[text](x.astype(np.uint64)))


def test_cuda_vectors_halves_and_bits() -> None:
    header = """
    __device__ __forceinline__ float warp_sum(float v) {
        #pragma unroll
        for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
        return v;
    }
    """
    source = """
        const int i = blockIdx.x * blockDim.x + threadIdx.x;
        float4 v = make_float4(x[i], 1.0f, 2.0f, 3.0f);
        __half h = __float2half(v.x);
        __nv_bfloat16 b = __float2bfloat16(v.x);
        int bits = __float_as_int(v.x);
        float back = __int_as_float(bits);
        float s = warp_sum(v.y);
        out[i] = back + __half2float(__hadd(h, h)) + __bfloat162float(b) + s + __ldg(&x[i]) + __fmul_rn(v.w, v.z)
            + (gridDim.x == 2 && blockDim.x == 32 ? 1.0f : 0.0f) + __popc(threadIdx.x);
    """
    x = values(64)
    half = x.astype(np.float16)
    brain = np.array(mx.array(x).astype(mx.bfloat16).astype(mx.float32))
    pops = np.array([int(k % 32).bit_count() for k in range(64)])
    want = x + (half + half).astype(np.float64) + brain + 32 + x + 6 + 1 + pops
    got = run(source, {"x": x}, (64,), header=header, threadgroup=(32, 1, 1), make=mx.fast.cuda_kernel)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_template_parameters_of_every_kind() -> None:
    header = "template <typename U, bool B> U half_of(U v) { return B ? v / 2 : v; }"
    source = (
        AT
        + """
        T v = (T)x[i];
        T zero = (T)-1 + T(1);
        T* p = 0 + &v;
        T w = *p;
        out[i] = half_of<T, FLAG>(v) * K + zero + (w - v);
    """.replace("T* p = 0 + &v;\n        T w = *p;", "thread T& r = v; T w = r;")
    )
    x = np.arange(-9, 9).astype(np.int32)
    for dtype, flag in ((mx.int32, True), (mx.float32, True), (mx.int16, False)):
        template = [("T", dtype), ("FLAG", flag), ("K", -3)]
        got = run(source, {"x": x}, (18,), dtype=dtype, header=header, template=template)
        halved = x if not flag else np.trunc(x / 2) if dtype is mx.int32 else x / 2
        np.testing.assert_array_equal(got, halved * -3)


# ---- errors ----


@pytest.mark.parametrize(
    ("source", "what", "where"),
    [
        ("union U { int a; };", "unions are not supported", "1:1"),
        ("int a = 0;\n  class C {};", "classes are not supported", "2:3"),
        ("simdgroup_matrix m;", "matrices", "1:1"),
        ("float4x4 m;", "matrices .`float4x4`.", "1:1"),
        ("texture2d t;", "textures", "1:1"),
        ("int* p = new int;", "`new`", "1:10"),
        ("asm(x);", "assembly", "1:1"),
        ("device float** p = x;", "pointers to pointers", "1:14"),
        ("for (auto v : x) {}", "loops over ranges", "1:13"),
        ("struct A : B { };", "inherit", "1:10"),
        ("struct A { float* p; };\nA a;", "pointer", "1:19"),
        ("struct A { A a; };\nA a;", "holds itself", "1:14"),
        ("struct A { int x; };\nA a = {1, 2};", "has 1 fields, and is given 2", "2:7"),
        ("struct A { int x; };\nA a; a.y = 1;", "no field `y`", "2:8"),
        ("struct A { int x; };\nA a, b; a = a + b;", r"no operator `\+`", "2:15"),
        ("float4 v; v.xx = float2(1);", "each of its numbers assigned once", "1:16"),
        ("float2 v; v.z = 1;", "has no `z`", "1:13"),
        ("int i = 0; switch (i) { case 0: int j; default: ; default: ; }", "one `default`", "1:12"),
        ("switch (1.5f) { }", "an integer is needed", "1:9"),
        ("int i = 0; switch (i) { i = 2; }", "`case` or `default` is missing", "1:25"),
        ("case 1: ;", "stands in no `switch`", "1:1"),
        ("#define F(a) a\nout[0] = F(1, 2);", "takes 1 arguments; got 2", "2:10"),
        ("#define F(a) a\nout[0] = F(1;", "`\\)` is missing behind the arguments", "2:10"),
        ("#error bad day", "bad day", "1:1"),
        ("#frob", "`#frob` is not supported", "1:1"),
        ("#else", "without `#if`", "1:1"),
        ("#if 1 +\n#endif", "not complete", "1:1"),
        ("#if 1 / 0\n#endif", "division by 0", "1:1"),
        ("#define S(x) #x", "texts", "1:14"),
        ("enum class E { A };", "enum class", "1:1"),
        ('static_assert(1 == 2, "no");', "does not hold: no", "1:1"),
        ("float* p = nullptr;", "nullptr", "1:12"),
        ('auto t = "text";', "texts", "1:10"),
        ("template <typename T> T f(T x) { return x; }", "in the header", "1:1"),
        ("out[0] = unknown::f(1);", "namespace `unknown`", "1:10"),
        ("threadgroup float a[2] = {1, 2};", "not initialized", "1:19"),
        ("float a[4]; auto p = (thread int*)a;", "array of a thread", "1:22"),
        ("float a = 1; thread int& r = a;", "reference to another type", "1:26"),
        ("out[0] = __shfl_down_sync(0, 1.0f, 1, 3);", "power of two", "1:39"),
        ("double d = 1;", "`double` is no type", "1:1"),
        ("printf(1);", "`printf` is no function", "1:1"),
    ],
)
def test_what_is_not_taken_is_named_with_its_line_and_column(source: str, what: str, where: str) -> None:
    with pytest.raises(KernelError, match=rf"\[test\] at <test>:{where}: .*({what})"):
        run(source, {"x": X}, (4,))


def test_errors_in_headers_and_templates() -> None:
    for header, what in (
        ("template <> float f<float>(float x) { return x; }", "specializations"),
        ("template <typename... T> float f(T x) { return 1; }", "any number of parameters"),
        ("template <template <typename> class T> float f() { return 1; }", "templates of templates"),
        ("struct A { ~A() {} };", "destructors"),
        ("struct A { struct B {}; };", "types inside of structs"),
        ("namespace a { float f() { return 1; }", "is missing for this namespace"),
        ("float f(float x) { return f(x); }\nfloat g() { return f(1); }", "calls itself"),
        ("template <int N> float f() { return f<N + 1>(); }\nfloat g() { return f<0>(); }", "calls itself"),
        ("template <typename T> T f() { return 1; }\nfloat g() { return f(); }", "is not told"),
        (
            "float f(float2 a) { return 1; } float f(float3 a) { return 1; }\nfloat g() { return f(1.0f); }",
            "no `f` takes",
        ),
    ):
        with pytest.raises(KernelError, match=what):
            run("out[0] = g();", {}, (1,), header=header)


def test_a_kernel_with_views_is_written_to_a_file(tmp_path: Any) -> None:
    source = (
        AT
        + """
        threadgroup float shared[64];
        threadgroup uint* bits = (threadgroup uint*)shared;
        uint lane = thread_position_in_threadgroup.x;
        shared[lane] = ((const device half*)x)[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        out[i] = bits[lane];
    """
    )
    kernel = mx.fast.metal_kernel("views", ["x"], ["out"], source)

    def call(x: mx.array) -> mx.array:
        return kernel(
            inputs=[x], grid=(64, 1, 1), threadgroup=(64, 1, 1), output_shapes=[(64,)], output_dtypes=[mx.uint32]
        )[0]

    x = values(64).astype(np.float16)
    path = str(tmp_path / "views.mlxfn")
    mx.export_function(path, call, mx.array(x.view(np.uint32)))
    (loaded,) = mx.import_function(path)(mx.array(x.view(np.uint32)))
    np.testing.assert_array_equal(np.array(loaded), x.astype(np.float32).view(np.uint32))


@pytest.mark.parametrize(
    "change",
    [
        {"of": 9}, {"of": -1}, {"of": "x"}, {"of": 2, "space": "output"}, {"of": 0}, {"size": 1 << 40}, {"size": -4},
        {"space": "heap"}, {"size": 65},
    ],
)  # fmt: skip
def test_storages_from_files_are_checked(change: dict[str, Any]) -> None:
    """Machine code relies on them."""
    source = "threadgroup uint s[64]; threadgroup float* f = (threadgroup float*)s; out[0] = f[0];"
    kernel = mx.fast.metal_kernel("file", ["x"], ["out"], source)
    node = kernel(
        inputs=[mx.ones(1)], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(1,)], output_dtypes=[mx.float32]
    )[0]._node.inputs[0]
    text = node.op.program.partition(":")[2]
    assert encoding.decoded(text).storages[3].of == 2
    whole = json.loads(text)
    name, dtype, space, ndim, size, of = whole["storages"][3]
    fields = {"name": name, "dtype": dtype, "space": space, "ndim": ndim, "size": size, "of": of} | change
    whole["storages"][3] = list(fields.values())
    with pytest.raises(ValueError, match="custom_kernel"):
        encoding.decoded(json.dumps(whole))
