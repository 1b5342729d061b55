"""Scaled dot-product attention: one kernel that never stores the scores, and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, iota, to, wide
from weft.primitives.attention import LOG2_E, Attention, AttentionGradient
from weft.program import apply

aten = Table()


def _scale(query: mx.array, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)


def _masked(q: mx.array, k: mx.array, mask: mx.array | None, is_causal: bool) -> tuple[str, list[mx.array]]:
    """The kind of mask that the kernel knows, and the mask. torch counts positions of a causal mask from the first
    query and the first key, Weft from the last ones."""
    full = (*q.shape[:3], k.shape[2])
    if mask is not None:
        seen = mask if mask.dtype.is_bool else to(mask, q.dtype)
        return "truths" if mask.dtype.is_bool else "numbers", [mx.broadcast_to(seen, full)]
    if not is_causal:
        return "none", []
    if q.shape[2] is k.shape[2] or q.shape[2] == k.shape[2]:
        return "causal", []
    below = mx.expand_dims(iota(q.shape[2]), 1) >= iota(k.shape[2])
    return "truths", [mx.broadcast_to(below, full)]


def _sees(mask: mx.array | None) -> mx.array | None:
    """Which queries see any key: torch gives zeros for the others."""
    if mask is None:
        return None
    seen = mask if mask.dtype.is_bool else mask > -math.inf
    return mx.any(seen, axis=-1, keepdims=True)


@aten("scaled_dot_product_attention")
def attention(
    out: Out, query: mx.array, key: mx.array, value: mx.array, attn_mask: mx.array | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
    random: mx.array | None = None,
) -> mx.array:  # fmt: skip
    """Operands have any number of axes in front of (heads, positions, features), and may lack the heads. `random` is
    the key of dropout."""
    q, k, v, mask = _of_four_axes(query, key, value, attn_mask, enable_gqa)
    kind, masks = _masked(q, k, mask, is_causal)
    if random is not None:
        return mx.reshape(_with_dropout(q, k, v, (kind, masks), _scale(query, scale), dropout_p, random), out.shape)
    made = apply(Attention(_scale(query, scale), kind), q, k, v, *masks)[0]
    sees = _sees(mask)
    if sees is not None:
        made = mx.where(sees, made, to(0, made.dtype))
    return mx.reshape(made, out.shape)


def _of_four_axes(
    q: mx.array, k: mx.array, v: mx.array, mask: mx.array | None, grouped: bool
) -> tuple[mx.array, mx.array, mx.array, mx.array | None]:
    """Operands and mask as (all axes in front, heads, rows, columns): those that lack some are repeated. Groups of
    heads are the kernel's."""
    ndim = max(4, *[x.ndim for x in (q, k, v)])
    q, k, v = (_with_axes(x, ndim) for x in (q, k, v))
    lead = mx.broadcast_shapes(*[x.shape[:-3] for x in (q, k, v)])
    heads = k.shape[-3:-2] if grouped else mx.broadcast_shapes(*[x.shape[-3:-2] for x in (q, k, v)])
    count = _product(lead)
    made = [
        mx.reshape(mx.broadcast_to(x, (*lead, *n, *x.shape[-2:])), (count, *n, *x.shape[-2:]))
        for x, n in ((q, q.shape[-3:-2] if grouped else heads), (k, heads), (v, heads))
    ]
    if mask is not None:
        mask = _with_axes(mask, ndim)
        if ndim > 4:
            mask = mx.reshape(mx.broadcast_to(mask, (*lead, *mask.shape[-3:])), (count, *mask.shape[-3:]))
    return made[0], made[1], made[2], mask


def _with_axes(x: mx.array, ndim: int) -> mx.array:
    return mx.reshape(x, (*(1,) * (ndim - x.ndim), *x.shape)) if x.ndim < ndim else x


def _product(sizes: Sequence[Any]) -> Any:
    made: Any = 1
    for n in sizes:
        made = made * n
    return made


def _with_dropout(
    q: mx.array, k: mx.array, v: mx.array, masked: tuple[str, list[mx.array]], scale: float, p: float, key: mx.array
) -> mx.array:
    """Attention that leaves out some of the weights, which it has to store for that."""
    if k.shape[1] != q.shape[1]:
        k, v = (mx.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    wide_dtype = wide(q.dtype)
    scores = to(mx.matmul(q, mx.swapaxes(k, -1, -2)), wide_dtype) * scale
    kind, masks = masked
    if kind == "causal":
        seen: mx.array | None = mx.expand_dims(iota(q.shape[2]), 1) >= iota(k.shape[2])
    else:
        seen = masks[0] if kind == "truths" else None
    if kind == "numbers":
        scores = scores + to(masks[0], wide_dtype)
    if seen is not None:
        scores = mx.where(seen, scores, to(-math.inf, wide_dtype))
    sees = mx.max(scores, axis=-1, keepdims=True) > -math.inf
    weights = mx.where(sees, mx.softmax(scores, axis=-1), to(0, wide_dtype))
    kept = mx.random.uniform(0.0, 1.0, weights.shape, mx.float32, key=key) >= p
    weights = mx.where(kept, weights * (1.0 / (1.0 - p) if p < 1 else 0.0), to(0, wide_dtype))
    return mx.matmul(to(weights, v.dtype), v)


@aten("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(
    out: Any, query: mx.array, key: mx.array, value: mx.array, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: mx.array | None = None, scale: float | None = None,
) -> tuple[mx.array, mx.array]:  # fmt: skip
    """(result, logarithm of the sum of exponentials of each query's scores)."""
    kind, masks = _masked(query, key, attn_mask, is_causal)
    made, peak, total = apply(Attention(_scale(query, scale), kind), query, key, value, *masks)
    return made, to(peak * (1 / LOG2_E) + mx.log(total), out[1].dtype)


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_backward(
    out: Any, grad: mx.array, query: mx.array, key: mx.array, value: mx.array, result: mx.array, logsumexp: mx.array,
    dropout_p: float, is_causal: bool, *, attn_mask: mx.array | None = None, scale: float | None = None,
) -> list[mx.array]:  # fmt: skip
    kind, masks = _masked(query, key, attn_mask, is_causal)
    wide = logsumexp.dtype
    delta = mx.sum(to(grad, wide) * to(result, wide), axis=-1)
    peak, total = logsumexp * LOG2_E, mx.ones_like(logsumexp)
    op = AttentionGradient(_scale(query, scale), kind)
    return apply(op, query, key, value, *masks, peak, total, delta, to(grad, query.dtype))  # type: ignore[no-any-return]
