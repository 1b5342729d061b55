"""Calls the custom kernels of mlx-lm and compares each with NumPy, in a process in which `mlx` is Weft.

Metal is said to be there while the modules are imported, because they make no kernels otherwise.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable
from typing import Any

import numpy as np

import weft.core as mx
from weft.frontends.mlx import install

install()
mx.metal.is_available = lambda: True

RNG = np.random.default_rng(0)
TOLERANCE = 5e-6


def module(name: str) -> Any:
    return importlib.import_module(f"mlx_lm.{name}")


def draw(*shape: int) -> mx.array:
    return mx.array(RNG.normal(size=shape).astype(np.float32) * 0.3)


def wide(x: mx.array) -> np.ndarray:
    return np.array(x.astype(mx.float32)).astype(np.float64)


def close(got: mx.array, want: np.ndarray | mx.array, tolerance: float = TOLERANCE) -> None:
    expected = want if isinstance(want, np.ndarray) else wide(want)
    np.testing.assert_allclose(wide(got), expected, rtol=tolerance, atol=tolerance)


def same(got: mx.array, want: mx.array) -> None:
    np.testing.assert_array_equal(wide(got), wide(want))


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def gated_delta() -> None:
    m = module("models.gated_delta")
    b, t, hk, hv, dv = 2, 3, 2, 4, 16
    for dk in (64, 128):
        q, k, v = draw(b, t, hk, dk), draw(b, t, hk, dk), draw(b, t, hv, dv)
        g, beta, state = mx.sigmoid(draw(b, t, hv)), mx.sigmoid(draw(b, t, hv)), draw(b, hv, dv, dk)
        want = m.gated_delta_ops(q, k, v, g, beta, state)
        plain = m.gated_delta_kernel_unpacked(q, k, v, g, beta, state)
        tree = m.gated_delta_kernel_xtree(q, k, v, g, beta, state)
        packed = m.gated_delta_kernel(q, k, v, g, beta, state)
        for one in range(2):
            close(plain[one], want[one])
            same(tree[one], plain[one])  # a sum of a simdgroup is that butterfly
            same(packed[one], plain[one])
        mask = mx.array(RNG.random((b, t)) > 0.4)
        for gate in (g, mx.sigmoid(draw(b, t, hv, dk))):
            y, after = m.gated_delta_kernel(q, k, v, gate, beta, state, mask)
            y2, after2 = m.gated_delta_ops(q, k, v, gate, beta, state, mask)
            here = np.array(mask)
            np.testing.assert_allclose(wide(y)[here], wide(y2)[here], rtol=TOLERANCE, atol=TOLERANCE)
            close(after, after2)


def state_space() -> None:
    m = module("models.ssm")
    n, h, d, groups, size = 2, 4, 16, 2, 64
    x, a, skip, dt, bias = draw(n, 1, h, d), draw(h), draw(h), draw(n, 1, h), draw(h)
    b, c, state = draw(n, 1, groups, size), draw(n, 1, groups, size), draw(n, h, d, size)
    out, after = m.ssm_update_kernel(x, a, b, c, skip, dt, bias, state, (0.0, 10.0))
    step = wide(m.compute_dt(dt, bias, (0.0, 10.0)))[:, 0]
    decay = np.exp(-np.exp(wide(a)) * step)[..., None, None]
    inputs, outputs = (np.repeat(wide(v)[:, 0], h // groups, 1)[:, :, None, :] for v in (b, c))
    want = decay * wide(state) + wide(x)[:, 0][..., None] * step[..., None, None] * inputs
    close(after, want)
    close(out[:, 0], (want * outputs).sum(-1) + wide(x)[:, 0] * wide(skip)[:, None])


def bit_linear() -> None:
    m = module("models.bitlinear_layers")
    layer = m.BitLinear(128, 64, bias=False)
    weights = RNG.integers(0, 3, (64, 128)).astype(np.uint8)
    packed = np.zeros((16, 128), np.uint8)
    for part in range(4):
        packed |= weights[part * 16 : part * 16 + 16] << np.uint8(2 * part)
    layer.weight = mx.array(packed)
    x = draw(3, 128)
    close(layer(x), wide(x) @ (weights.astype(np.float64) - 1).T, 1e-5)


def rwkv() -> None:
    m = module("models.rwkv7")
    b, t, h, d = 2, 3, 2, 64
    r, w, k, v, a, kk = (draw(b, t, h, d) for _ in range(6))
    state = draw(b, h, d, d)
    y, after = m.wkv7_kernel(r, w, k, v, a, kk, state)
    now, ys = wide(state), []
    for i in range(t):
        r_, w_, k_, v_, a_, b_ = (wide(x)[:, i] for x in (r, w, k, v, a, kk))
        now = now * w_[:, :, None, :] + v_[..., None] @ k_[..., None, :] + (now @ a_[..., None]) @ b_[..., None, :]
        ys.append((now @ r_[..., None])[..., 0])
    close(y, np.stack(ys, 1))
    close(after, now)


def residual_attention() -> None:
    m = module("models.kimi_k3")
    raw, inverse, partial, weight = draw(3, 2, 5, 96), draw(3, 2, 5), draw(2, 5, 96), draw(96)
    (out,) = m._attn_res_kernel(
        inputs=[raw, inverse, partial, weight, mx.array([1e-5]), 10],
        template=[("InT", mx.float32), ("K", 3), ("D", 96), ("THREADS", 512)],
        grid=(512, 10, 1),
        threadgroup=(512, 1, 1),
        output_shapes=[partial.shape],
        output_dtypes=[mx.float32],
    )
    close(out, m._attn_res_combine(raw, inverse, partial, weight, 1e-5))


def sinkhorn() -> None:
    m = module("models.deepseek_v41")
    matrix = mx.exp(draw(7, 4, 4))
    (out,) = m._sinkhorn_kernel(
        inputs=[matrix, mx.array([1e-6])],
        template=[("HC", 4), ("ITERS", 5)],
        grid=(7, 1, 1),
        threadgroup=(7, 1, 1),
        output_shapes=[matrix.shape],
        output_dtypes=[mx.float32],
    )
    want = wide(matrix)
    want /= want.sum(-2, keepdims=True) + 1e-6
    for _ in range(4):
        want /= want.sum(-1, keepdims=True) + 1e-6
        want /= want.sum(-2, keepdims=True) + 1e-6
    close(out, want)


def norms_of_heads() -> None:
    qk = draw(2, 3, 2 * (4 + 2) * 48)
    sizes = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 48, "eps": 1e-5, "query_scale": 0.5}
    q, k = module("kernels.qk_norm").qk_norm(qk, **sizes)
    want = rms(wide(qk)[..., : 4 * 48].reshape(2, 3, 4, 48), 1e-5) * 0.5
    close(q, want)
    close(k, rms(wide(qk)[..., 4 * 48 : 6 * 48].reshape(2, 3, 2, 48), 1e-5))
    q, _ = module("kernels.qk_norm_rope").qk_norm_rope(qk, **sizes, rope_base=10000.0, offset=7)
    heads = mx.array(want.astype(np.float32)).transpose(0, 2, 1, 3)
    turned = mx.fast.rope(heads, 48, traditional=True, base=10000.0, scale=1.0, offset=7)
    close(q, turned.transpose(0, 2, 1, 3))


def routing() -> None:
    logits, bias = draw(5, 40) * 5, draw(40)
    chosen, weights = module("kernels.expert_routing").expert_routing(
        logits, bias, top_k=4, multiplier=1.3, score_eps=1e-6, route_scale=2.0
    )
    score = 1 / (1 + np.exp(-wide(logits) * 1.3))
    order = np.argsort(-(score + wide(bias)), -1, kind="stable")[:, :4]
    np.testing.assert_array_equal(np.array(chosen), order)
    picked = np.take_along_axis(score, order, -1)
    close(weights, picked / (picked.sum(-1, keepdims=True) + 1e-6) * 2)


def norms_and_sums() -> None:
    m, size = module("kernels.norm_add_norm"), 300
    branch, stream, alpha, beta, after, before = draw(4, size), draw(4, size), *(draw(size) for _ in range(4))
    norm = types.SimpleNamespace(weight=before, eps=1e-5)
    total, normed = m.norm_add_norm(
        branch, stream, alpha=alpha, beta=beta, post_weight=after, post_eps=1e-6, next_norm=norm
    )
    want = wide(alpha) * wide(stream) + wide(beta) * rms(wide(after) * wide(branch), 1e-6)
    close(total, want)
    close(normed, rms(want, 1e-5) * wide(before))
    same(m.pre_norm(total, norm, dtype=mx.float32), normed)
    experts, weights, weight = draw(2, 3, 4, 200), draw(2, 3, 4), draw(200)
    out = module("kernels.post_expert_norm_combine").post_expert_norm_combine(
        experts, weights, norm_weight=weight, eps=1e-5
    )
    close(out, (rms(wide(experts) * wide(weight), 1e-5) * wide(weights)[..., None]).sum(-2))


def gate() -> None:
    x, given = draw(2, 5, 3, 40).transpose(0, 2, 1, 3), draw(2, 5, 120)
    out = module("kernels.rms_norm_sigmoid_gate").rms_norm_sigmoid_gate(x, given, eps=1e-5)
    close(out, rms(wide(x), 1e-5).transpose(0, 2, 1, 3).reshape(2, 5, 120) / (1 + np.exp(-wide(given))))


def divergence() -> None:
    m, size = module("tuner.losses"), 5000
    m.can_run_metal = lambda: True
    q, p = draw(3, size) * 5, draw(3, size) * 5
    (out,) = m._make_kl_forward_kernel()(
        inputs=[q, p],
        template=[("T", mx.float32), ("V", size)],
        grid=(1024, 3, 1),
        threadgroup=(1024, 1, 1),
        output_shapes=[(3,)],
        output_dtypes=[mx.float32],
    )
    lq, lp = (wide(x) - np.log(np.exp(wide(x)).sum(-1, keepdims=True)) for x in (q, p))
    close(out, (np.exp(lp) * (lp - lq)).sum(-1), 1e-5)


KERNELS: tuple[Callable[[], None], ...] = (
    gated_delta, state_space, bit_linear, rwkv, residual_attention, sinkhorn, norms_of_heads, routing, norms_and_sums,
    gate, divergence,
)  # fmt: skip

if __name__ == "__main__":
    for check in KERNELS:
        check()
        print(check.__name__)
    print("all kernels")
