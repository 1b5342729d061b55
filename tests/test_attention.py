"""Attention by kernels that never store scores: against float64 within bounds of magnitudes, over shapes that end in
the middle of blocks; the same bits on any number of threads, on any processor, compiled or not; no code for new sizes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import natives, place, same_bits, settings, values_of
from weft import dtypes as dt
from weft.codegen.launch import Layout
from weft.dtypes import Dtype
from weft.errors import ConfigError
from weft.evaluate.programs import PROGRAMS
from weft.llvm.engine import stats
from weft.primitives.attention import MASKS, Attention, AttentionGradient
from weft.primitives.elementwise import draw
from weft.runtime.threads import get_threads, set_threads
from weft.targets.cpu import attention as kernels
from weft.targets.cpu.attention.tiles import AttentionShape

FLOATS = [dt.float16, dt.bfloat16, dt.float32, dt.float64]


def operands(
    seed: int,
    dtype: Dtype,
    q: tuple[int, ...],
    k: tuple[int, ...],
    values: int,
    mask: str = "none",
    sinks: bool = False,
) -> list[np.ndarray]:
    """Those of `Attention`, for scores of a few units."""
    rng = np.random.default_rng(seed)
    found = [draw(rng, dtype, q, -2, 2), draw(rng, dtype, k, -2, 2), draw(rng, dtype, (*k[:-1], values))]
    if mask in ("truths", "numbers"):
        found.append(draw(rng, dt.bool_ if mask == "truths" else dtype, (*q[:-1], k[-2])))
    return [*found, draw(rng, dtype, q[:-2])] if sinks else found


def check(op: Attention | AttentionGradient, values: list[np.ndarray]) -> list[np.ndarray]:
    results = natives(op, [place(x) for x in values])
    assert [(x.shape, x.dtype) for x in results] == [(x.shape, x.dtype) for x in op.reference(*values)]
    error = op.backward_error(values, results)
    assert error <= op.tolerance[dt.from_numpy(values[0].dtype)], f"{error:.3g} epsilon"
    return results


@given(
    st.sampled_from(FLOATS), st.sampled_from(MASKS), st.booleans(), st.integers(1, 2), st.integers(1, 3),
    st.integers(1, 140), st.integers(1, 210), st.integers(1, 40), st.integers(1, 40),
)  # fmt: skip
def test_any_sizes(
    dtype: Dtype, mask: str, sinks: bool, groups: int, shared: int, queries: int, keys: int, features: int, width: int
) -> None:
    op = Attention(0.5, mask, sinks)
    check(op, operands(keys, dtype, (groups * shared, queries, features), (groups, keys, features), width, mask, sinks))


@given(
    st.sampled_from(FLOATS), st.sampled_from(MASKS), st.booleans(), st.integers(1, 12), st.integers(1, 8),
    st.integers(1, 1200), st.integers(1, 80),
)  # fmt: skip
def test_few_queries(dtype: Dtype, mask: str, sinks: bool, shared: int, queries: int, keys: int, features: int) -> None:
    """Chunks of keys by themselves, then together."""
    q, k = (2, 2 * shared, queries, features), (2, 2, keys, features)
    check(Attention(0.25, mask, sinks), operands(keys, dtype, q, k, features // 2 + 1, mask, sinks))


def of_gradient(given: list[np.ndarray], mask: str) -> list[np.ndarray]:
    """The operands of `AttentionGradient`, for those of `Attention` without sinks."""
    dtype = dt.from_numpy(given[0].dtype)
    out, peak, total = Attention(0.5, mask).reference(*given)
    ct = draw(np.random.default_rng(1), dtype, out.shape, -1, 1)
    return [*given, peak, total, (out.astype(peak.dtype) * ct.astype(peak.dtype)).sum(-1), ct]


@given(
    st.sampled_from(FLOATS), st.sampled_from(MASKS), st.integers(1, 2), st.integers(1, 3), st.integers(1, 140),
    st.integers(1, 210), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3]),
)  # fmt: skip
def test_gradients_of_any_sizes(
    dtype: Dtype, mask: str, groups: int, shared: int, queries: int, keys: int, features: int, width: int, threads: int
) -> None:
    """Also by both halves, which is how it is done where threads are more than groups."""
    given = operands(keys, dtype, (groups * shared, queries, features), (groups, keys, features), width, mask)
    before = set_threads(threads)
    try:
        check(AttentionGradient(0.5, mask), of_gradient(given, mask))
    finally:
        set_threads(before)


SHAPES = [
    ((2, 4, 70, 24), (2, 2, 130, 24), 40),
    ((1, 4, 1, 16), (1, 2, 1100, 16), 16),
    ((1, 6, 7, 5), (1, 2, 97, 5), 3),
]


def everything() -> list[np.ndarray]:
    """Results of every kernel, and gradients for one of each kind of mask."""
    found = []
    for number, (q, k, values) in enumerate(SHAPES):
        for dtype, masks in ((dt.float32, MASKS), (dt.bfloat16, ("causal", "numbers"))):
            for mask in masks:
                given = operands(number, dtype, q, k, values, mask, number == 0)
                found += natives(Attention(0.3, mask, number == 0), [place(x) for x in given])
    for dtype, mask in ((dt.float32, "causal"), (dt.bfloat16, "numbers"), (dt.float32, "truths")):
        given = of_gradient(operands(1, dtype, *SHAPES[0], mask), mask)
        found += natives(AttentionGradient(0.5, mask), [place(x) for x in given])
    return found


def test_threads_do_not_change_bits() -> None:
    before = get_threads()
    try:
        found = []
        for count in (1, 2, 5):
            set_threads(count)
            PROGRAMS.clear()
            found.append(everything())
    finally:
        set_threads(before)
        PROGRAMS.clear()
    for other in found[1:]:
        assert all(same_bits(x, y) for x, y in zip(found[0], other, strict=True))


@pytest.mark.parametrize("cpu", [pytest.param("x86-64-v2", marks=pytest.mark.slow), "x86-64-v3"])
def test_the_same_with_shorter_vectors(cpu: str) -> None:
    expected = everything()
    PROGRAMS.clear()
    try:
        with settings(cpu=cpu):
            found = everything()
    except ConfigError as error:
        pytest.skip(str(error))
    finally:
        PROGRAMS.clear()
    assert all(same_bits(x, y) for x, y in zip(found, expected, strict=True))


def heads(seed: int, *shape: int) -> mx.array:
    """(batch, heads, length, features), as a projection leaves them: transposed."""
    batch, count, length, features = shape
    x = np.random.default_rng(seed).normal(size=(batch, length, count, features)).astype(np.float32)
    return mx.transpose(mx.array(x), (0, 2, 1, 3))


def test_keys_that_grow_need_no_new_code() -> None:
    def step(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25)

    k, v = heads(1, 1, 2, 600, 16), heads(2, 1, 2, 600, 16)
    for queries in (1, 40):
        q = heads(0, 1, 4, queries, 16)
        mx.eval(step(q, k[:, :, :50], v[:, :, :50]))
        before = stats.compiled
        for keys in (51, 97, 300, 599):
            mx.eval(step(q, k[:, :, :keys], v[:, :, :keys]))
        assert stats.compiled == before


@pytest.mark.parametrize("mask", [None, "causal"])
def test_queries_that_fill_the_tiles_have_kernels_without_the_others(mask: str | None) -> None:
    """Half the code, and the same bits as among queries that do not fill them."""
    q, k, v = heads(0, 1, 2, 65, 16), heads(1, 1, 2, 65, 16), heads(2, 1, 2, 65, 16)
    filling = [n for n in range(1, 130) if AttentionShape(16, 4).fills(n)]
    assert filling == [*range(49, 65), *range(113, 129)]
    if mask is None:
        whole = mx.fast.scaled_dot_product_attention(q[:, :, :64], k, v, scale=0.3)
        found = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3)[:, :, :64]
    else:
        whole = mx.fast.scaled_dot_product_attention(q[:, :, :64], k[:, :, :64], v[:, :, :64], scale=0.3, mask=mask)
        found = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask)[:, :, :64]
    assert same_bits(np.array(whole), np.array(found))


def test_compiled_is_eager() -> None:
    q, k, v = heads(0, 2, 4, 33, 24), heads(1, 2, 2, 101, 24), heads(2, 2, 2, 101, 20)

    def f(q: mx.array, k: mx.array, v: mx.array) -> Any:
        return mx.fast.scaled_dot_product_attention(q * 2, k, v + 1, scale=0.2, mask="causal") * 3

    plain = values_of(f(q, k, v))
    assert same_bits(values_of(mx.compile(f)(q, k, v)), plain)
    shapeless = mx.compile(f, shapeless=True)
    assert same_bits(values_of(shapeless(q, k, v)), plain)
    for queries, keys in ((5, 40), (80, 200), (3, 500), (90, 91)):
        args = heads(3, 2, 4, queries, 24), heads(4, 2, 2, keys, 24), heads(5, 2, 2, keys, 20)
        assert same_bits(values_of(shapeless(*args)), values_of(f(*args)))


def test_sixteen_thousand_tokens_take_little_memory() -> None:
    """Scores would take 1 GiB."""

    def layout(*shape: int) -> Layout:
        return Layout(shape, tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape))), dt.float32)

    x, row = layout(1, 1, 16384, 128), layout(1, 1, 16384)
    lowering = kernels.lower(Attention(0.1, "causal"), [x, x, x], x, row, row)
    assert sum(lowering.temporaries) + max(launch.scratch for launch in lowering.launches) < 1 << 20


# ---- masks ----


def attend(q: Any, k: Any, v: Any, mask: Any) -> np.ndarray:
    return np.asarray(mx.fast.scaled_dot_product_attention(*map(mx.array, (q, k, v)), scale=0.5, mask=mask))


def rows(heads: int, *lengths: int) -> list[np.ndarray]:
    return [np.random.default_rng(i).normal(size=(1, heads, n, 8)).astype(np.float32) for i, n in enumerate(lengths)]


@pytest.mark.parametrize("queries", [1, 20])
def test_blocks_that_are_masked(queries: int) -> None:
    """A first block of which nothing is seen, whatever it is masked with, leaves no trace; nor does a last one."""
    q, k, v = rows(1, queries, 300, 300)
    for low, high in ((150, 250), (0, 20), (290, 300)):
        inside = (np.arange(300) >= low) & (np.arange(300) < high)
        expected = attend(q, k[:, :, low:high], v[:, :, low:high], None)
        for mask in (inside, np.where(inside, 0, -np.inf), np.where(inside, 0, np.finfo(np.float32).min)):
            given = mx.array(mask) if mask.dtype == np.bool_ else mx.array(mask.astype(np.float32))
            assert np.allclose(attend(q, k, v, given), expected, rtol=0, atol=4e-6)


@pytest.mark.parametrize("queries", [1, 70])
def test_queries_that_see_nothing(queries: int) -> None:
    """The mean of all values, as in MLX, or NaN where all scores are -inf."""
    q, k, v = rows(1, queries, 150, 150)
    mean = np.broadcast_to(v.astype(np.float64).mean(2, keepdims=True), q.shape)
    assert np.allclose(attend(q, k, v, mx.zeros((queries, 150), mx.bool_)), mean, rtol=0, atol=1e-6)
    assert np.allclose(attend(q, k, v, mx.full((150,), -3e38)), mean, rtol=0, atol=1e-6)
    assert np.isnan(attend(q, k, v, mx.full((150,), -np.inf))).all()


def test_more_queries_than_keys() -> None:
    """The first of them see nothing, and get the mean; those after them see from the first key on."""
    q, k, v = rows(1, 200, 110, 110)
    got = attend(q, k, v, "causal")
    assert np.allclose(got[:, :, :90], v.astype(np.float64).mean(2, keepdims=True), rtol=0, atol=1e-6)
    assert np.allclose(got[:, :, 90], v[:, :, 0], rtol=0, atol=1e-6)
    assert np.allclose(got[:, :, -1:], attend(q[:, :, -1:], k, v, None), rtol=0, atol=4e-6)


def test_what_is_not_a_number_stays_where_it_is_seen() -> None:
    q, k, v = rows(2, 40, 50, 50)
    q[0, 1, 3, 2] = np.nan
    got = attend(q, k, v, None)
    assert np.isnan(got[0, 1, 3]).all()
    assert np.isnan(got).sum() == 8


# ---- derivatives ----


def written_out(q: mx.array, k: mx.array, v: mx.array, mask: Any, sinks: Any) -> mx.array:
    """What a user writes by hand, for one head of keys to each of queries."""
    scores = 0.5 * q @ mx.swapaxes(k, -1, -2)
    if mask is not None:
        scores = mx.where(mask, scores, -1e30) if mask.dtype is mx.bool_ else scores + mask
    if sinks is not None:
        scores = mx.concatenate([mx.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1)), scores], axis=-1)
    weights = mx.softmax(scores, axis=-1)
    return (weights if sinks is None else weights[..., 1:]) @ v


@pytest.mark.parametrize("mask", ["none", "truths", "numbers"])
def test_derivatives_are_those_of_the_formula(mask: str) -> None:
    """By all operands, in reverse mode, in forward mode, and twice."""
    q, k, v, *more = (
        mx.array(x, dt.from_numpy(x.dtype)) for x in operands(1, dt.float64, (1, 2, 5, 4), (1, 2, 7, 4), 3, mask, True)
    )
    sinks = more[-1][0]
    args = [q, k, v, sinks, *more[:-1]]
    wanted = list(range(5 if mask == "numbers" else 4))
    weights = mx.array(np.random.default_rng(3).normal(size=(1, 2, 5, 3)), mx.float64)

    def fast(q: mx.array, k: mx.array, v: mx.array, sinks: mx.array, *masks: mx.array) -> mx.array:
        given = masks[0] if masks else None
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.5, mask=given, sinks=sinks)

    def plain(q: mx.array, k: mx.array, v: mx.array, sinks: mx.array, *masks: mx.array) -> mx.array:
        return written_out(q, k, v, masks[0] if masks else None, sinks)

    found = []
    for f in (fast, plain):
        loss = lambda *xs, f=f: (f(*xs) * weights).sum()  # noqa: E731
        gradient = mx.grad(loss, argnums=wanted)
        again = mx.grad(lambda *xs: sum((mx.sin(g) ** 2).sum() for g in gradient(*xs)), argnums=wanted)  # noqa: B023
        tangents = [mx.cos(3 * x) if i in wanted else mx.zeros_like(x) for i, x in enumerate(args)]
        pushed = mx.jvp(f, args, tangents)[1] if mask != "truths" else []
        found.append([np.asarray(x) for x in (*gradient(*args), *again(*args), *pushed)])
    for x, y in zip(*found, strict=True):
        assert np.abs(x - y).max() <= 1e-12 * max(1.0, np.abs(y).max())


def test_gradients_of_queries_that_see_nothing() -> None:
    """They weigh all values alike, whatever the scores are, and whatever they are masked with."""
    q, k, v = map(mx.array, rows(1, 20, 110, 110))

    def loss(q: mx.array, k: mx.array, v: mx.array, mask: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.5, mask=mask).sum()

    for mask in (mx.zeros((20, 110), mx.bool_), mx.full((20, 110), float(np.finfo(np.float32).min))):
        dq, dk, dv = (np.asarray(x) for x in mx.grad(loss, argnums=[0, 1, 2])(q, k, v, mask))
        assert np.allclose(dv, 20 / 110, rtol=1e-5)
        if mask.dtype is mx.bool_:
            assert not dq.any()
            assert not dk.any()


@pytest.mark.parametrize("queries", [2, 20])
def test_weights_of_gradients_add_up(queries: int) -> None:
    """Scores that are made again are those of before, to the bit, however large: else weights would not sum to 1."""
    q, k, v = mx.ones((1, 1, queries, 301)) * 3, mx.ones((1, 1, 50, 301)), mx.ones((1, 1, 50, 4))

    def loss(v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.7).sum()

    assert np.allclose(np.asarray(mx.grad(loss)(v)).sum(2), queries, rtol=1e-6)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("queries", [1, 3])
def test_room_behind_the_last_key_that_is_seen_is_not_read(dtype: Any, queries: int) -> None:
    """The same bits as with no keys there, whatever stands in it; a query that sees none gets the mean of all."""
    rng = np.random.default_rng(3)
    heads, keys, features = 4, 600, 24
    q, k, v = (
        mx.array(rng.normal(size=(1, n, m, features)).astype(np.float32)).astype(dtype)
        for n, m in ((2 * heads, queries), (heads, keys), (heads, keys))
    )
    for seen in (1, 5, 16, 100, 511):
        mask = np.arange(keys)[None] < np.minimum(seen, 1 + np.arange(queries) * 3)[:, None]
        mask[-1, :seen] = True
        used = [x[:, :, :seen] for x in (k, v)]
        room = [mx.concatenate([x, mx.full((1, heads, keys - seen, features), mx.nan, dtype)], axis=2) for x in used]
        want, got = (
            mx.fast.scaled_dot_product_attention(q, *given, scale=0.2, mask=mx.array(np.ascontiguousarray(some)))
            for given, some in ((used, mask[:, :seen]), ([x[:, :, :512] for x in room], mask[:, :512]))
        )
        assert mx.array_equal(got, want).item()
        spread = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.2, mask=mx.array(mask[:, ::-1].copy()))
        assert not mx.any(mx.isnan(spread)).item()
    mask[0] = False
    blind = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.2, mask=mx.array(mask))[:, :, 0]
    mean = np.asarray(v.astype(mx.float32)).astype(np.float64).mean(2).repeat(2, 1)
    bound = np.abs(mean).max() * 2.0**-8 if dtype is mx.bfloat16 else 1e-6
    assert np.allclose(np.asarray(blind.astype(mx.float32)), mean, rtol=0, atol=bound)
