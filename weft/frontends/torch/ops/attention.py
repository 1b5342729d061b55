"""Scaled dot-product attention: one kernel that never stores the scores, and its gradient."""

from __future__ import annotations

import math
from typing import Any

import weft.core as mx
from weft.frontends.torch.ops.table import Out, Table, iota, to
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
) -> mx.array:  # fmt: skip
    """Operands have any number of axes in front of (heads, positions, features), and may lack the heads."""
    if dropout_p:
        raise NotImplementedError("attention with dropout")
    q, k, v = (_of_four_axes(x) for x in (query, key, value))
    q, k, v = _same_batch(q, k, v, enable_gqa)
    mask = None if attn_mask is None else _mask_of_four_axes(attn_mask, query.ndim)
    kind, masks = _masked(q, k, mask, is_causal)
    made = apply(Attention(_scale(query, scale), kind), q, k, v, *masks)[0]
    sees = _sees(mask)
    if sees is not None:
        made = mx.where(sees, made, to(0, made.dtype))
    return mx.reshape(made, out.shape)


def _of_four_axes(x: mx.array) -> mx.array:
    if x.ndim <= 4:
        return mx.reshape(x, (*(1,) * (4 - x.ndim), *x.shape))
    lead: Any = 1
    for n in x.shape[:-3]:
        lead = lead * n
    return mx.reshape(x, (lead, *x.shape[-3:]))


def _mask_of_four_axes(mask: mx.array, ndim: int) -> mx.array:
    if ndim > 4:
        raise NotImplementedError("a mask over more than four axes")
    return mx.reshape(mask, (*(1,) * (4 - mask.ndim), *mask.shape)) if mask.ndim < 4 else mask


def _same_batch(q: mx.array, k: mx.array, v: mx.array, grouped: bool) -> tuple[mx.array, mx.array, mx.array]:
    """Operands with the same sizes in front: those that lack them are repeated. Groups of heads are the kernel's."""
    lead = mx.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])
    heads = k.shape[1:2] if grouped else mx.broadcast_shapes(q.shape[1:2], k.shape[1:2], v.shape[1:2])
    wanted = [(*lead, *(q.shape[1:2] if grouped else heads)), (*lead, *heads), (*lead, *heads)]
    return tuple(mx.broadcast_to(x, (*w, *x.shape[2:])) for x, w in zip((q, k, v), wanted, strict=True))  # type: ignore[return-value]


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
