"""Calls of custom kernels: any size, grid, threadgroup, template and layout, under every transform."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import weft.core as mx
from weft.config import config

DTYPES = {mx.float32: np.float32, mx.float16: np.float16, mx.int32: np.int32, mx.uint8: np.uint8}


def integers(*shape: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).integers(0, 9, shape).astype(dtype)


# ---- guards that threads go past, or not ----

GUARDS = {
    "if (i < n) { out[i] = 1; }": lambda i, n: i < n,
    "if (i >= n) return; out[i] = 1;": lambda i, n: i < n,
    "if (i >= n || i < 3) return; out[i] = 1;": lambda i, n: (i < n) & (i >= 3),
    "if (i > 2 && i + 1 <= n) { out[i] = 1; }": lambda i, n: (i > 2) & (i + 1 <= n),
    "if (!(i < n)) return; out[i] = 1;": lambda i, n: i < n,
    # Differences of unsigned numbers wrap.
    "if (i - 5 < n) { out[i] = 1; }": lambda i, n: ((i - 5) % (1 << 32)) < n,
    "if (i - 5 >= n) return; out[i] = 1;": lambda i, n: ((i - 5) % (1 << 32)) < n,
    "if ((ulong)(i - 5) < n) { out[i] = 1; }": lambda i, n: ((i - 5) % (1 << 32)) < n,
    "if (100 - i > n) { out[i] = 1; }": lambda i, n: ((100 - i) % (1 << 32)) > n,
    "if (int(i) - 40 < int(n) - 50) { out[i] = 1; }": lambda i, n: i - 40 < n - 50,
    "for (int k = 0; k < 3; ++k) { if (i >= n) continue; out[i] += 1; }": lambda i, n: (i < n) * 3,
    "for (int k = 0; k < 3; ++k) { if (i + k >= n) break; out[i] += 1; }": lambda i, n: np.clip(n - i, 0, 3),
}


@pytest.mark.parametrize("text", list(GUARDS))
def test_guards_of_threads(text: str) -> None:
    kernel = mx.fast.metal_kernel("guard", ["size"], ["out"], f"uint i = thread_position_in_grid.x, n = size; {text}")
    i = np.arange(150)
    for n in (0, 3, 16, 33, 64, 149, 200):
        (out,) = kernel(
            inputs=[mx.array(n, mx.uint32)],
            grid=(150, 1, 1),
            threadgroup=(64, 1, 1),
            output_shapes=[(150,)],
            output_dtypes=[mx.int32],
            init_value=0,
        )
        np.testing.assert_array_equal(np.array(out), GUARDS[text](i, n) * 1)


@pytest.mark.parametrize("width", [16, 32, 48, 64, 96])
def test_short_rows_of_any_width(width: int) -> None:
    """Rows of threads that read neighbouring elements may run as wide vectors."""
    source = """
        uint c = thread_position_in_grid.x, r = thread_position_in_grid.y, w = threads_per_grid.x;
        float total = 0;
        for (int k = 0; k < 3; ++k) { if (r + k < threads_per_grid.y) total += x[(r + k) * w + c] * (k + 1); }
        out[r * w + c] = total;
    """
    x = integers(40, width)
    want = x + 2 * np.pad(x[1:], ((0, 1), (0, 0))) + 3 * np.pad(x[2:], ((0, 2), (0, 0)))
    kernel = mx.fast.metal_kernel("rows", ["x"], ["out"], source)
    (out,) = kernel(
        inputs=[mx.array(x)],
        grid=(width, 40, 1),
        threadgroup=(8, 8, 1),
        output_shapes=[x.shape],
        output_dtypes=[mx.float32],
    )
    np.testing.assert_array_equal(np.array(out), want)


# ---- sizes, grids, templates ----

BLOCKS = """
    // Sums of neighbouring elements of a threadgroup, scaled by a template parameter.
    threadgroup T shared[64];
    uint lane = thread_index_in_threadgroup;
    uint3 p = thread_position_in_grid;
    uint i = (p.z * threads_per_grid.y + p.y) * threads_per_grid.x + p.x;
    shared[lane] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint count = threads_per_threadgroup.x * threads_per_threadgroup.y * threads_per_threadgroup.z;
    T next = shared[(lane + 1) % count];
    out[i] = FLAG ? T(shared[lane] * T(K) + next) : next;
"""


def blocks(x: np.ndarray, group: tuple[int, ...], k: int, flag: bool) -> np.ndarray:
    out = np.zeros_like(x)
    for place in np.ndindex(*(-(-n // g) for n, g in zip(x.shape, group[::-1], strict=True))):
        cut = tuple(slice(p * g, (p + 1) * g) for p, g in zip(place, group[::-1], strict=True))
        part = x[cut].ravel()
        following = np.roll(part, -1)
        made = (part * x.dtype.type(k) + following).astype(x.dtype) if flag else following
        out[cut] = made.reshape(x[cut].shape)
    return out


@settings(max_examples=40, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 70)),
    group=st.sampled_from([(16, 1, 1), (5, 3, 2), (32, 2, 1), (64, 1, 1), (1, 4, 4), (7, 9, 1)]),
    dtype=st.sampled_from(list(DTYPES)),
    k=st.integers(0, 3),
    flag=st.booleans(),
)
def test_grids_that_threadgroups_do_not_divide(
    shape: tuple[int, ...], group: tuple[int, int, int], dtype: Any, k: int, flag: bool
) -> None:
    x = integers(*shape, dtype=DTYPES[dtype])
    kernel = mx.fast.metal_kernel("blocks", ["x"], ["out"], BLOCKS)
    (out,) = kernel(
        inputs=[mx.array(x)],
        template=[("T", dtype), ("K", k), ("FLAG", flag)],
        grid=shape[::-1],
        threadgroup=group,
        output_shapes=[shape],
        output_dtypes=[dtype],
    )
    np.testing.assert_array_equal(np.array(out), blocks(x, group, k, flag))


STRIDED = """
    uint elem = thread_position_in_grid.x;
    int64_t at = 0;
    uint left = elem;
    for (int axis = int(x_ndim) - 1; axis >= 0; --axis) {
        at += int64_t(left % uint(x_shape[axis])) * x_strides[axis];
        left /= uint(x_shape[axis]);
    }
    out[elem] = x[at] * 2 + x[elem_to_loc(elem, x_shape, x_strides, x_ndim)];
"""


@st.composite
def views(draw: Any) -> tuple[np.ndarray, Any]:
    """An array of NumPy and the same view of one of Weft."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    whole = integers(*shape)
    theirs, ours = whole, mx.array(whole)
    for _ in range(draw(st.integers(0, 3))):
        change = draw(st.sampled_from(["transpose", "slice", "reverse", "broadcast"]))
        if change == "transpose":
            order = draw(st.permutations(range(theirs.ndim)))
            theirs, ours = theirs.transpose(order), ours.transpose(order)
        elif change == "slice":
            theirs, ours = theirs[::2], ours[::2]
        elif change == "reverse":
            theirs, ours = theirs[..., ::-1], ours[..., ::-1]
        else:
            theirs = np.broadcast_to(theirs[:1], (3, *theirs.shape[1:]))
            ours = mx.broadcast_to(ours[:1], theirs.shape)
    return theirs, ours


@settings(max_examples=40, deadline=None)
@given(view=views(), contiguous=st.booleans())
def test_strides_of_any_view(view: tuple[np.ndarray, Any], contiguous: bool) -> None:
    theirs, ours = view
    kernel = mx.fast.metal_kernel("strided", ["x"], ["out"], STRIDED, ensure_row_contiguous=contiguous)

    def call(x: mx.array) -> mx.array:
        return kernel(
            inputs=[x], grid=(x.size, 1, 1), threadgroup=(16, 1, 1), output_shapes=[x.shape], output_dtypes=[x.dtype]
        )[0]

    np.testing.assert_array_equal(np.array(call(ours)), theirs * 3)
    np.testing.assert_array_equal(np.array(mx.vmap(call)(ours)) if theirs.ndim > 1 else theirs * 3, theirs * 3)


# ---- under transforms ----

SCALE = mx.fast.kernel(
    "scale",
    ["x", "k"],
    ["out", "count"],
    "def scale(x, k, out, count):\n    i = thread_position_in_grid.x\n    if i < x.size:\n        out[i] = x[i] * k\n"
    "        atomic_add(count, 0, 1)\n",
)


@SCALE.vjp
def _vjp(primals: Any, cotangents: Any, outputs: Any) -> Any:
    x, k = primals
    return cotangents[0] * k, (cotangents[0] * x).sum()


@SCALE.jvp
def _jvp(primals: Any, tangents: Any) -> Any:
    x, k = primals
    parts = [t * other for t, other in zip(tangents, (k, x), strict=True) if t is not None]
    return [sum(parts), mx.zeros(1, mx.int32)]


def scaled(x: mx.array, k: mx.array) -> mx.array:
    return SCALE(
        inputs=[x, k],
        grid=(x.shape[0], 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=lambda x, k: [x, (1,)],
        output_dtypes=[x.dtype, mx.int32],
        init_value=0,
    )[0]


@settings(max_examples=15, deadline=None)
@given(sizes=st.lists(st.integers(0, 90), min_size=3, max_size=6))
@example(sizes=[45, 55, 88, 66, 57, 49])  # enough of a family to have a template
def test_shapeless_functions_follow_larger_and_smaller_sizes(sizes: list[int]) -> None:
    compiled = mx.compile(lambda x: scaled(x, mx.array(3.0)) + 1, shapeless=True)
    for n in (*sizes, *reversed(sizes)):
        x = integers(n)
        np.testing.assert_array_equal(np.array(compiled(mx.array(x))), x * 3 + 1)
    assert compiled.traces <= 1 + len({n for n in sizes if n < 2})


@pytest.mark.parametrize("wrap", [lambda f: f, mx.compile, lambda f: mx.compile(f, shapeless=True)])
def test_rules_and_batches_together(wrap: Any) -> None:
    x = integers(4, 37)
    k = mx.array(2.0)
    grad = wrap(mx.grad(lambda v: (scaled(v, k) ** 2).sum()))
    np.testing.assert_array_equal(np.array(grad(mx.array(x[0]))), 8 * x[0])
    batched = wrap(mx.vmap(lambda v: scaled(v, k)))
    np.testing.assert_array_equal(np.array(batched(mx.array(x))), 2 * x)
    both = mx.vmap(mx.grad(lambda v: (scaled(v, k) ** 2).sum()))
    np.testing.assert_array_equal(np.array(both(mx.array(x))), 8 * x)
    _, (tangent,) = mx.jvp(lambda v: scaled(v, k), [mx.array(x[0])], [mx.ones(37)])
    np.testing.assert_array_equal(np.array(tangent), np.full(37, 2))

    def step(carry: mx.array, row: mx.array) -> Any:
        carry = mx.cond(row.sum() > 100, lambda c: scaled(c, mx.array(0.5)), lambda c: scaled(c, k) + row, carry)
        return carry, carry[0]

    last, firsts = mx.scan(step, mx.zeros(37), mx.array(x))
    want, seen = np.zeros(37, np.float32), []
    for row in x:
        want = want * 0.5 if row.sum() > 100 else want * 2 + row
        seen.append(want[0])
    np.testing.assert_array_equal(np.array(last), want)
    np.testing.assert_array_equal(np.array(firsts), seen)


def test_verbose_says_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    kernel = mx.fast.metal_kernel("loud", ["x"], ["out"], "out[thread_position_in_grid.x] = x[0];")
    kernel(
        inputs=[mx.ones(1)],
        grid=(2, 1, 1),
        threadgroup=(1, 1, 1),
        output_shapes=[(2,)],
        output_dtypes=[mx.float32],
        verbose=True,
    )
    assert "loud" in capsys.readouterr().out


@pytest.mark.parametrize("value", [0, 1, -3, 2.5, float("inf"), True])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.int32, mx.bool_])
def test_init_value_is_what_no_thread_writes(value: float, dtype: Any) -> None:
    if value == float("inf") and not mx.issubdtype(dtype, mx.floating):
        return
    kernel = mx.fast.metal_kernel("half", ["x"], ["out"], "out[2 * thread_position_in_grid.x] = x[0];")

    def go() -> np.ndarray:
        (out,) = kernel(
            inputs=[mx.array(1, dtype)],
            grid=(20, 1, 1),
            threadgroup=(8, 1, 1),
            output_shapes=[(40,)],
            output_dtypes=[dtype],
            init_value=value,
        )
        return np.array(out.astype(mx.float32))

    got = go()
    np.testing.assert_array_equal(got[::2], 1)
    np.testing.assert_array_equal(got[1::2], float(np.array(mx.array(value).astype(dtype).astype(mx.float32))))
    config.backend = "reference"
    try:
        np.testing.assert_array_equal(go(), got)
    finally:
        config.backend = "native"


FACTOR = 2


def test_calls_that_come_again_are_known_and_never_mixed() -> None:
    """A call is looked up by all that it says, and by the numbers around the function."""
    global FACTOR

    def times(x: Any, out: Any) -> None:
        i = thread_position_in_grid.x  # type: ignore[name-defined] # noqa: F821
        out[i] = x[i] * FACTOR + K  # type: ignore[name-defined] # noqa: F821

    kernel = mx.fast.kernel("times", ["x"], ["out"], times)
    before = FACTOR
    try:
        for _ in range(2):
            for FACTOR in (2, 3):
                for k, dtype, n in ((1, mx.float32, 5), (True, mx.float32, 5), (1, mx.int32, 5), (1, mx.float32, 6)):
                    x = integers(n)
                    (out,) = kernel(
                        inputs=[mx.array(x)],
                        template=[("K", k)],
                        grid=(n, 1, 1),
                        threadgroup=(4, 1, 1),
                        output_shapes=[(n,)],
                        output_dtypes=[dtype],
                    )
                    assert out.dtype is dtype
                    np.testing.assert_array_equal(np.array(out), x * FACTOR + k)
    finally:
        FACTOR = before
    grown = mx.fast.kernel("grown", ["x"], ["out"], "def grown(x, out):\n    out[thread_position_in_grid.x] = x[0]\n")
    call = {
        "inputs": [mx.ones(1)], "grid": (3, 1, 1), "threadgroup": (1, 1, 1), "output_shapes": [(6,)],
        "output_dtypes": [mx.float32],
    }  # fmt: skip
    for initial in (0, 1, 0.5, None, 1, -0.0):
        (out,) = grown(**call, init_value=initial)
        if initial is not None:
            np.testing.assert_array_equal(np.array(out)[3:], initial)
    for bad in ({"grid": (3, 1)}, {"output_dtypes": [3]}, {"template": [("K",)]}, {"template": [("K", [])]}):
        with pytest.raises((ValueError, TypeError), match=r"\[grown\]"):
            grown(**{**call, **bad})
