"""`mx.fast`, `mx.distributed`, `mx.metal`, `mx.cuda`: values against float64, transforms, sizes that change, errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft.graph.node import reachable

FLOATS = (mx.float32, mx.float16, mx.bfloat16, mx.float64)
ROUNDING = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8, mx.float64: 2.0**-53}


def draw(shape: tuple[int, ...], dtype: Any = mx.float32, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).normal(size=shape), mx.float64).astype(dtype)


def wide(x: mx.array | None) -> Any:
    return None if x is None else np.asarray(x.astype(mx.float64))


def close(got: mx.array, expected: np.ndarray, magnitude: Any, steps: float) -> None:
    """Within `steps` roundings of numbers of a magnitude; halves are float32 inside and rounded at the end."""
    inner = 2.0**-53 if got.dtype is mx.float64 else 2.0**-24
    bound = steps * inner * magnitude + 4 * ROUNDING[got.dtype] * (np.abs(expected) + magnitude * inner)
    assert got.shape == expected.shape
    assert np.all(np.abs(wide(got) - expected) <= bound)


def everywhere(f: Callable[..., Any], *args: mx.array, other: tuple[mx.array, ...] | None = None) -> None:
    """Plain, compiled and shapeless agree to the bit, also for other sizes."""
    shapeless = mx.compile(f, shapeless=True)
    for given in (args, other or args):
        expected = f(*given)
        for made in (mx.compile(f)(*given), shapeless(*given)):
            for a, b in zip(expected, made, strict=True) if isinstance(expected, list) else [(expected, made)]:
                assert a.dtype is b.dtype
                assert np.asarray(a.astype(mx.float64)).tobytes() == np.asarray(b.astype(mx.float64)).tobytes()


def directional(f: Callable[[mx.array], mx.array], x: mx.array) -> None:
    """Forward, backward and a difference quotient give one slope, in float64."""
    x = x.astype(mx.float64)
    t, w = draw(x.shape, mx.float64, 7), draw(f(x).shape, mx.float64, 8)
    (tangent,) = mx.jvp(f, [x], [t])[1]
    (cotangent,) = mx.vjp(f, [x], [w])[1]
    slope = mx.sum(tangent * w).item()
    assert abs(slope - mx.sum(cotangent * t).item()) <= 1e-10 * (1 + abs(slope))
    h = 1e-5
    quotient = mx.sum((f(x + h * t) - f(x - h * t)) * w).item() / (2 * h)
    assert abs(slope - quotient) <= 1e-6 * (1 + abs(slope))


# ---- norms ----


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(5,), (3, 1), (4, 33), (2, 3, 64), (2, 1000)], ids=str)
def test_norms(dtype: Any, shape: tuple[int, ...]) -> None:
    n = shape[-1]
    x, weight, bias = draw(shape, dtype), draw((n,), dtype, 1), draw((n,), dtype, 2)
    for w, b in itertools.product((None, weight), (None, bias)):
        v = wide(x)
        c = v - v.mean(-1, keepdims=True)
        expected = c / np.sqrt((c**2).mean(-1, keepdims=True) + 0.1)
        size = 1 + np.abs(v) + np.abs(v).mean(-1, keepdims=True)
        if w is not None:
            expected, size = expected * wide(w), size * np.abs(wide(w))
        if b is not None:
            expected, size = expected + wide(b), size + np.abs(wide(b))
        got = mx.fast.layer_norm(x, w, b, 0.1)
        assert got.dtype is dtype
        close(got, expected, size / np.sqrt(0.1), 4 + np.log2(n + 1))
        if b is None:
            expected = v / np.sqrt((v**2).mean(-1, keepdims=True) + 0.1) * (1 if w is None else wide(w))
            close(mx.fast.rms_norm(x, w, 0.1), expected, np.abs(expected), 4 + np.log2(n + 1))


def test_norms_are_transformed() -> None:
    x, w, b = draw((3, 8)), draw((8,), seed=1), draw((8,), seed=2)
    everywhere(lambda x, w: mx.fast.rms_norm(x, w, 1e-5), x, w, other=(draw((7, 12)), draw((12,))))
    everywhere(lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5), x, w, b)
    w64, b64 = w.astype(mx.float64), b.astype(mx.float64)
    directional(lambda x: mx.fast.rms_norm(x, w64, 1e-5), x)
    directional(lambda w: mx.fast.rms_norm(x.astype(mx.float64), w, 1e-5), w)
    directional(lambda x: mx.fast.layer_norm(x, w64, b64, 1e-5), x)
    mapped = mx.vmap(lambda x, w: mx.fast.rms_norm(x, w, 1e-5), in_axes=(1, None))(draw((4, 5, 8)), w)
    assert mapped.shape == (5, 4, 8)
    assert mx.array_equal(mapped[2], mx.fast.rms_norm(draw((4, 5, 8))[:, 2], w, 1e-5))


def test_dtypes_of_norms() -> None:
    half, w = draw((2, 4), mx.bfloat16), mx.ones(4)
    assert mx.fast.rms_norm(half, w, 1e-5).dtype is mx.float32
    assert mx.fast.rms_norm(half, None, 1e-5).dtype is mx.bfloat16
    assert mx.fast.layer_norm(half, w.astype(mx.bfloat16), w, 1e-5).dtype is mx.float32
    assert mx.fast.rms_norm(mx.arange(4), w, 1e-5).dtype is mx.float32
    assert mx.fast.rms_norm(mx.zeros((2, 0)), None, 1e-5).shape == (2, 0)


def test_numbers_of_remembered_calls_are_told_apart() -> None:
    x = mx.array([0.0, 2.0])
    assert mx.fast.rms_norm(x, None, 2.0).tolist() != mx.fast.rms_norm(x, None, 7.0).tolist()
    assert mx.fast.rms_norm(x, None, 2.0).tolist() == mx.fast.rms_norm(x, None, 2).tolist()
    eps = mx.array(2.0)
    assert mx.fast.rms_norm(x, None, eps).tolist() == mx.fast.rms_norm(x, None, 2.0).tolist()


# ---- rope ----


def rotated(x: np.ndarray, dims: int, traditional: bool, freqs: np.ndarray, scale: float, offset: Any) -> np.ndarray:
    steps = np.arange(x.shape[-2]) + np.asarray(offset, np.float64).reshape(-1, *(1,) * (x.ndim - 2))
    angle = (steps * scale)[..., None] / freqs
    c, s = np.cos(angle), np.sin(angle)
    out = x.copy()
    first = slice(0, dims, 2) if traditional else slice(0, dims // 2)
    second = slice(1, dims, 2) if traditional else slice(dims // 2, dims)
    a, b = x[..., first], x[..., second]
    out[..., first], out[..., second] = a * c - b * s, a * s + b * c
    return out


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(2, 5, 8), (2, 3, 5, 8), (1, 2, 3, 4, 8)], ids=str)
@pytest.mark.parametrize("traditional", [False, True])
def test_rope(dtype: Any, shape: tuple[int, ...], traditional: bool) -> None:
    x = draw(shape, dtype)
    for dims, given, offset in itertools.product((8, 4), (False, True), (0, 3, mx.array(2), mx.arange(shape[0]))):
        freqs = 100.0 ** (np.arange(dims // 2) * 2 / dims)
        made = mx.array(freqs.astype(np.float32)) if given else None
        base = None if given else 100.0
        got = mx.fast.rope(x, dims, traditional=traditional, base=base, scale=0.5, offset=offset, freqs=made)
        assert got.dtype is dtype
        where = offset if isinstance(offset, int) else np.asarray(offset)
        expected = rotated(wide(x), dims, traditional, freqs, 0.5, where)
        # Angles below 8 are off by some roundings of theirs, which is what sines and cosines are off by.
        close(got, expected, 2 * np.abs(wide(x)).max() * 8, 8)


def test_rope_is_transformed() -> None:
    x = draw((2, 3, 5, 8))

    def f(x: mx.array, offset: Any = 2) -> mx.array:
        return mx.fast.rope(x, 6, traditional=False, base=1e4, scale=1.0, offset=offset)

    everywhere(f, x, other=(draw((4, 2, 9, 8)),))
    everywhere(f, x, mx.array(3))
    # A rotation: its transpose turns back, and it is its own tangent.
    t, w = draw(x.shape, seed=3), draw(x.shape, seed=4)
    assert mx.array_equal(mx.jvp(f, [x], [t])[1][0], f(t))
    (back,) = mx.vjp(f, [x], [w])[1]
    assert abs(mx.sum(back * t).item() - mx.sum(f(t) * w).item()) <= 2.0**-20 * mx.sum(mx.abs(t)).item()
    mapped = mx.vmap(f)(draw((3, 2, 5, 8)))
    assert mx.array_equal(mapped[1], f(draw((3, 2, 5, 8))[1]))
    compiled = mx.compile(lambda x, n: f(x, n))
    for n in range(3, 6):
        assert mx.array_equal(compiled(x, n), f(x, n))


# ---- attention ----


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, mask: Any = None, sinks: np.ndarray | None = None
) -> np.ndarray:
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat(shared, 1), v.repeat(shared, 1)
    scores = scale * q @ k.swapaxes(-1, -2)
    if isinstance(mask, str):
        mask = np.tril(np.ones(scores.shape[-2:], bool), scores.shape[-1] - scores.shape[-2])
    if mask is not None:
        scores = np.where(mask, scores, -1e300) if mask.dtype == bool else scores + mask
    if sinks is not None:
        scores = np.concatenate([np.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1)), scores], -1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights[..., weights.shape[-1] - k.shape[-2] :] @ v


MASKS: dict[str, Callable[[Any], Any]] = {
    "none": lambda dtype: None,
    "causal": lambda dtype: "causal",
    "truths": lambda dtype: draw((5, 7), mx.float32, 5) > -0.5,
    "numbers": lambda dtype: draw((2, 1, 5, 7), dtype, 5),
    "truths for heads": lambda dtype: draw((1, 4, 1, 7), mx.float32, 5) > -1.0,
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_attention(mask: str, dtype: Any, heads: int) -> None:
    q, k, v = draw((2, 4, 5, 8), dtype), draw((2, heads, 7, 8), dtype, 1), draw((2, heads, 7, 6), dtype, 2)
    given = MASKS[mask](dtype)
    for sinks in (None, draw((4,), dtype, 3)):
        got = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.35, mask=given, sinks=sinks)
        expected = attention(
            wide(q), wide(k), wide(v), 0.35, wide(given) if isinstance(given, mx.array) and given.dtype is not mx.bool_
            else np.asarray(given) if isinstance(given, mx.array) else given, wide(sinks),
        )  # fmt: skip
        # Scores are sums of 8 products; the weights of halves are rounded before they meet the values.
        largest = 0.35 * 8 * np.abs(wide(q)).max() * np.abs(wide(k)).max()
        weights = ROUNDING[dtype] * 2 * np.abs(wide(v)).max()
        inner = 2.0**-53 if dtype is mx.float64 else 2.0**-24
        bound = 16 * inner * (1 + largest) * np.abs(wide(v)).max() + weights + 4 * ROUNDING[dtype] * np.abs(expected)
        assert got.dtype is dtype
        assert np.all(np.abs(wide(got) - expected) <= bound)


def test_attention_is_transformed() -> None:
    q, k, v = draw((1, 4, 3, 8)), draw((1, 2, 5, 8), seed=1), draw((1, 2, 5, 8), seed=2)

    def f(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=0.35, mask="causal")

    everywhere(f, q, k, v, other=(draw((3, 4, 6, 8)), draw((3, 2, 9, 8)), draw((3, 2, 9, 8))))
    k64, v64, q64 = (x.astype(mx.float64) for x in (k, v, q))
    directional(lambda q: f(q, k64, v64), q)
    directional(lambda k: f(q64, k, v64), k)
    directional(lambda v: f(q64, k64, v), v)
    many = draw((3, 1, 4, 3, 8))
    assert mx.array_equal(mx.vmap(f, in_axes=(0, None, None))(many, k, v)[1], f(many[1], k, v))


def test_a_query_that_sees_nothing_gets_the_mean() -> None:
    q, k, v = draw((1, 1, 2, 4)), draw((1, 1, 3, 4), seed=1), draw((1, 1, 3, 4), seed=2)
    nothing = mx.zeros((2, 3), mx.bool_)
    got = mx.fast.scaled_dot_product_attention(q, k, v, scale=1.0, mask=nothing)
    assert np.allclose(np.asarray(got)[0, 0, 0], np.asarray(v)[0, 0].mean(0), rtol=1e-6)


# ---- losses and recurrences ----


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_cross_entropy(dtype: Any) -> None:
    x, t = draw((3, 4, 9), dtype) * 5, mx.array(np.random.default_rng(1).integers(0, 9, (3, 4)))
    v = wide(x)
    expected = np.log(np.exp(v).sum(-1)) - np.take_along_axis(v, np.asarray(t)[..., None], -1)[..., 0]
    got = mx.fast.cross_entropy(x, t)
    assert got.dtype is mx.float32
    assert np.all(np.abs(wide(got) - expected) <= 8 * 2.0**-24 * (1 + 2 * np.abs(v).max()))
    everywhere(mx.fast.cross_entropy, x, t)


def test_gated_delta() -> None:
    batch, steps, heads, groups, width, size = 2, 5, 2, 4, 8, 6
    q, k = draw((batch, steps, heads, width)), draw((batch, steps, heads, width), seed=1)
    v = draw((batch, steps, groups, size), seed=2)
    gamma, beta = (mx.abs(draw((batch, steps, groups), seed=s)) * 0.3 for s in (3, 4))
    mask = draw((batch, steps), seed=5) > -0.3
    first = draw((batch, groups, size, width), seed=6)
    for per_key, given, initial in itertools.product((False, True), (None, mask), (None, first)):
        decay = mx.abs(draw((batch, steps, groups, width), seed=3)) * 0.3 if per_key else gamma
        state = np.zeros((batch, groups, size, width)) if initial is None else wide(initial)
        wq, wk = (wide(x).repeat(groups // heads, 2) for x in (q, k))
        outs = []
        for i in range(steps):
            g = wide(decay)[:, i, :, None, :] if per_key else wide(decay)[:, i, :, None, None]
            moved = state * g
            change = (wide(v)[:, i] - (moved * wk[:, i, :, None, :]).sum(-1)) * wide(beta)[:, i, :, None]
            moved = moved + wk[:, i, :, None, :] * change[..., None]
            out = (moved * wq[:, i, :, None, :]).sum(-1)
            counts = np.ones(batch, bool) if given is None else np.asarray(given)[:, i]
            state = np.where(counts[:, None, None, None], moved, state)
            outs.append(np.where(counts[:, None, None], out, 0))
        got, last = mx.fast.gated_delta_update(q, k, v, decay, beta, initial, given)
        assert np.allclose(wide(got), np.stack(outs, 1), rtol=1e-5, atol=1e-4)
        assert np.allclose(wide(last), state, rtol=1e-5, atol=1e-4)
    everywhere(lambda *a: mx.fast.gated_delta_update(*a), q, k, v, gamma, beta)
    t, w = draw(k.shape, seed=7), draw(v.shape, seed=8)

    def f(k: mx.array) -> mx.array:
        return mx.fast.gated_delta_update(q, k, v, gamma, beta)[0]

    forward, (backward,) = mx.sum(mx.jvp(f, [k], [t])[1][0] * w).item(), mx.vjp(f, [k], [w])[1]
    assert abs(forward - mx.sum(backward * t).item()) <= 1e-4 * (1 + abs(forward))
    halves = [x.astype(mx.bfloat16) for x in (q, k, v)]
    got, last = mx.fast.gated_delta_update(*halves, gamma, beta)
    assert (got.dtype, last.dtype) == (mx.bfloat16, mx.float32)


def test_angles_of_rope_follow_numbers_that_are_overwritten() -> None:
    """Angles are kept for the next call, which may have the same array with another number in it."""
    x = mx.random.normal((1, 4, 8))

    def turned(**given: Any) -> np.ndarray:
        options: dict[str, Any] = {"traditional": False, "base": 100.0, "scale": 1.0, "offset": 3, **given}
        return np.asarray(mx.fast.rope(x, 8, **options))

    for name in ("base", "scale"):
        expected = [turned(**{name: value}) for value in (2.0, 5.0)]
        for kind in (mx.array, np.array):
            number = kind(2.0)
            assert np.array_equal(turned(**{name: number}), expected[0])
            number += 3
            assert np.array_equal(turned(**{name: number}), expected[1])


# ---- errors ----

X, Q, K = mx.ones((2, 3, 8)), mx.ones((2, 4, 5, 8)), mx.ones((2, 2, 7, 8))
ROPE = {"traditional": False, "base": 1e4, "scale": 1.0, "offset": 0}


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: mx.fast.rms_norm(mx.arange(4), None, 1e-5), "unsupported type int32"),
        (lambda: mx.fast.rms_norm(mx.array(1.0), None, 1e-5), "at least 1 dimension"),
        (lambda: mx.fast.rms_norm(X, mx.ones(7), 1e-5), "same size as the last dimension of x .* 7 elements"),
        (lambda: mx.fast.rms_norm(X, mx.ones((1, 8)), 1e-5), "weight must have 1 dimension but has 2"),
        (lambda: mx.fast.layer_norm(X, None, mx.ones(3), 1e-5), "bias must have the same size"),
        (lambda: mx.fast.rope(X[0], 8, **ROPE), "at least 3 dimensions"),
        (lambda: mx.fast.rope(X, 16, **ROPE), "must not exceed"),
        (lambda: mx.fast.rope(X, 3, **ROPE), "must be even"),
        (lambda: mx.fast.rope(X, 0, **ROPE), "must be positive"),
        (lambda: mx.fast.rope(X, 8, **{**ROPE, "base": None}), "Neither base nor freqs"),
        (lambda: mx.fast.rope(X, 8, freqs=mx.ones(4), **ROPE), "Only one of"),
        (lambda: mx.fast.rope(X, 8, freqs=mx.ones(3), **{**ROPE, "base": None}), "with size 4"),
        (lambda: mx.fast.rope(X, 8, **{**ROPE, "base": 0.0}), "base must be positive"),
        (lambda: mx.fast.rope(X, 8, **{**ROPE, "offset": mx.arange(3)}), "vector with 2 elements"),
        (lambda: mx.fast.rope(X, 8, **{**ROPE, "offset": mx.array(1.5)}), "must be an integer"),
        (lambda: mx.fast.rope(X.astype(mx.int32), 8, **ROPE), "floating type"),
        (lambda: mx.fast.scaled_dot_product_attention(Q, K, K, scale=1.0, mask="foo"), "invalid mask option 'foo'"),
        (lambda: mx.fast.scaled_dot_product_attention(Q, K, K, scale=1.0, mask=mx.ones((1, 1, 1, 5, 7))), "rank 4"),
        (lambda: mx.fast.scaled_dot_product_attention(Q, K, K, scale=1.0, mask=mx.ones((3, 7))), "broadcast"),
        (lambda: mx.fast.scaled_dot_product_attention(Q[0], K, K, scale=1.0), "rank 4"),
        (lambda: mx.fast.scaled_dot_product_attention(mx.ones((2, 3, 5, 8)), K, K, scale=1.0), "multiple of n_kv"),
        (lambda: mx.fast.scaled_dot_product_attention(Q, K[:, :0], K[:, :0], scale=1.0), "multiple of n_kv"),
        (lambda: mx.fast.scaled_dot_product_attention(Q, K, K, scale=1.0, mask=np.ones((5, 7))), "invalid mask option"),
        (lambda: mx.fast.scaled_dot_product_attention(Q[:1], K, K, scale=1.0), "batch dimension"),
        (lambda: mx.fast.scaled_dot_product_attention(Q[..., :6], K, K, scale=1.0), "matching last dimension"),
        (lambda: mx.fast.scaled_dot_product_attention(Q, K, K[:, :, :3], scale=1.0), "matching heads and lengths"),
        (lambda: mx.fast.scaled_dot_product_attention(Q, K, K, scale=1.0, sinks=mx.ones(3)), "shape for sinks"),
        (lambda: mx.fast.gated_delta_update(Q, K, Q, X, X), "q and k must be"),
        (lambda: mx.fast.gated_delta_update(Q, Q, K, Q[..., 0], Q[..., 0]), "batch and the steps"),
        (lambda: mx.fast.gated_delta_update(Q, Q, Q, Q[:, :, 0], Q[..., 0]), "heads of v"),
        (lambda: mx.fast.gated_delta_update(Q, Q, Q[:, :, :3], Q[:, :, :3, 0], Q[:, :, :3, 0]), "must be a multiple"),
        (lambda: mx.fast.cross_entropy(X, mx.zeros((2,), mx.int32)), "does not match logits shape"),
        (lambda: mx.fast.cross_entropy(X, mx.zeros((2, 3))), "integer class indices"),
        (lambda: mx.fast.cross_entropy(mx.array(1.0), mx.array(0)), "at least 1 dimension"),
    ],
)  # fmt: skip
def test_errors(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        call()


def test_what_is_no_array() -> None:
    for call in (
        lambda: mx.fast.rms_norm([1.0], None, 1e-5),
        lambda: mx.fast.rope([1.0], 2, **ROPE),
        lambda: mx.fast.rope(X, 8, freqs=[1.0] * 4, **{**ROPE, "base": None}),
        lambda: mx.fast.scaled_dot_product_attention(1, 2, 3, scale=1.0),
        lambda: mx.fast.scaled_dot_product_attention(Q, K, K, scale=1.0, sinks=[1.0] * 4),
        lambda: mx.fast.cross_entropy([1.0], [0]),
    ):
        with pytest.raises(TypeError, match="must be an array"):
            call()


def test_what_is_no_number() -> None:
    for eps in (None, "small", 1j):
        with pytest.raises(TypeError, match=r"\[rms_norm\] eps must be a number"):
            mx.fast.rms_norm(X, None, eps)
        with pytest.raises(TypeError, match=r"\[layer_norm\] eps must be a number"):
            mx.fast.layer_norm(X, None, None, eps)


def test_sizes_that_are_no_integers_leave_nothing_behind() -> None:
    """6.0 is the same key as 6: a shape with it would be met again by whoever asks for one with 6."""
    w = mx.ones((96, 96))
    codes, scales, biases = mx.quantize(w, group_size=32)
    for call in (
        lambda: mx.fast.rope(mx.ones((2, 3, 22)), 22.0, **ROPE),
        lambda: mx.quantize(w, group_size=32.0),
        lambda: mx.quantize(w, group_size=32, bits=2.0),
        lambda: mx.quantized_matmul(w, codes, scales, biases, group_size=32.0),
        lambda: mx.dequantize(codes, scales, biases, group_size=32, bits=4.0),
        lambda: mx.bincount(mx.array([1]), minlength=1234.0),
        lambda: mx.slice(w, mx.array([1]), (0,), (57.0, 96)),
    ):
        with pytest.raises(TypeError, match="must be an integer"):
            call()
    assert mx.fast.rope(mx.ones((2, 3, 22)), 22, **ROPE).shape == (2, 3, 22)
    assert mx.quantize(w, group_size=np.int64(32))[1].shape == (96, 3)
    with pytest.raises(ValueError, match="group size 0 is not supported"):
        mx.quantize(w, group_size=0)


# ---- a world of one, without GPUs ----


def test_a_world_of_one() -> None:
    group = mx.distributed.init()
    assert (group.rank(), group.size()) == (0, 1)
    x = draw((3, 2))
    for name in ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter"):
        assert mx.array_equal(getattr(mx.distributed, name)(x, group=group, stream=mx.cpu), x)
    assert mx.grad(lambda x: mx.sum(mx.distributed.all_sum(x) * x))(x).tolist() == (2 * x).tolist()
    with pytest.raises(RuntimeError, match="any backend"):
        mx.distributed.init(strict=True)
    with pytest.raises(ValueError, match="'foo' was provided"):
        mx.distributed.init(backend="foo")
    with pytest.raises(RuntimeError, match="split"):
        group.split(0)
    for call in (
        lambda: mx.distributed.send(x, 0),
        lambda: mx.distributed.recv((2,), mx.float32, 0),
        lambda: mx.distributed.recv_like(x, 0),
    ):
        with pytest.raises(ValueError, match="singleton group"):
            call()
    with pytest.raises(TypeError, match="no constructor"):
        mx.distributed.Group()
    assert not mx.distributed.is_available()


def test_no_metal() -> None:
    assert not mx.metal.is_available()
    assert mx.metal.device_info() == {}
    assert mx.metal.get_active_memory() == mx.get_active_memory()
    mx.metal.start_capture("x.gputrace")
    mx.metal.stop_capture()


def test_cuda() -> None:
    assert mx.cuda.is_available() == mx.is_available(mx.gpu)


def test_what_is_recalled_has_each_operation_once() -> None:
    """Calls that come again are made of their steps, of which none is made twice."""
    x = mx.array(np.linspace(-1, 1, 48, dtype=np.float32).reshape(1, 2, 3, 8))
    made = [mx.fast.rope(x * 2.0, 8, traditional=False, base=1e4, scale=1.0, offset=3) for _ in range(4)]
    nodes = [node for node in reachable([made[-1]._node]) if node.inputs]
    assert len({(node.op, node.kind, node.inputs) for node in nodes}) == len(nodes)
    assert len({np.array(y).tobytes() for y in made}) == 1


@pytest.mark.parametrize("what", ["offset", "scale"])
@pytest.mark.parametrize("given", ["3", None])
def test_rope_says_what_is_no_number(what: str, given: Any) -> None:
    options: dict[str, Any] = {"traditional": False, "base": 100.0, "scale": 1.0, "offset": 0, what: given}
    with pytest.raises(TypeError, match=rf"\[rope\] {what} must be a number"):
        mx.fast.rope(mx.ones((1, 4, 8)), 8, **options)
