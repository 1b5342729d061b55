"""`mx.fast`: operations of neural networks under one name each.

All but attention are compositions: fusion makes one kernel of a norm or a rotation, and every transform works on them.
Halves are computed in float32 and rounded once.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from weft import dtypes as dt
from weft.core._common import (
    array,
    astype,
    bind,
    broadcast_node,
    broadcast_shapes,
    composed,
    in_parts,
    scalar_node,
    to_node,
    whole_number,
    wrap,
)
from weft.core._remember import remembered_all
from weft.core.elementwise import cos, sin, subtract, where
from weft.core.gathering import take_along_axis
from weft.core.kernels import cuda_kernel as cuda_kernel
from weft.core.kernels import kernel as kernel
from weft.core.kernels import metal_kernel as metal_kernel
from weft.core.kernels import precompiled_cuda_kernel as precompiled_cuda_kernel
from weft.core.looping import scan
from weft.core.reducing import logsumexp
from weft.core.reducing import sum as sum_
from weft.core.shaping import expand_dims, squeeze, swapaxes
from weft.dtypes import Dtype
from weft.graph.dims import shape_text
from weft.graph.node import Node, Shape
from weft.graph.placement import current
from weft.graph.trace import is_tracing
from weft.primitives.attention import ScaledDotProductAttention
from weft.primitives.creation import Iota
from weft.primitives.neural import LayerNorm, RmsNorm, Rotate, Shift, layer_normed, rms_normed
from weft.primitives.views import reshape

Stream = Any


def _floating(function: str, dtype: Dtype) -> Dtype:
    if dtype.kind != "f":
        raise ValueError(f"[{function}] Received unsupported type {dtype.name}.")
    return dtype


def _agree(a: Shape, b: Shape) -> bool:
    """Whether shapes are equal; for sizes that are symbols that is a guard."""
    return len(a) == len(b) and all(m == n for m, n in zip(a, b, strict=True))


def _wide(x: array) -> array:
    return x.astype(dt.float32) if x.dtype in dt.HALVES else x


def _vector(function: str, name: str, given: array, like: array) -> array:
    """A weight or bias for the last axis."""
    if given.ndim != 1:
        raise ValueError(f"[{function}] {name} must have 1 dimension but has {given.ndim} dimensions.")
    if not _agree(given._node.shape, like._node.shape[-1:]):
        raise ValueError(
            f"[{function}] {name} must have the same size as the last dimension of x ({like._node.shape[-1]}) but has "
            f"{given._node.shape[0]} elements."
        )
    return given


def _array(function: str, name: str, given: Any) -> array:
    if not isinstance(given, array):
        raise TypeError(f"[{function}] {name} must be an array; got {type(given).__name__}.")
    return given


def _normed(function: str, x: array, weight: array | None, bias: array | None) -> Dtype:
    """The dtype of a norm, its operands checked."""
    if _array(function, "x", x).ndim == 0:
        raise ValueError(f"[{function}] Input must have at least 1 dimension but got input with 0 dimensions.")
    dtype = x.dtype
    for name, given in (("weight", weight), ("bias", bias)):
        if given is not None:
            dtype = dt.promote(dtype, _vector(function, name, _array(function, name, given), x).dtype)
    return _floating(function, dtype)


def _shift(function: str, eps: Any) -> Shift:
    """Adds what is no plain number: an array, or what stands for a number in a trace."""
    if eps is None or isinstance(eps, (str, complex)):
        raise TypeError(f"[{function}] eps must be a number; got {eps!r}.")
    return lambda x: (wrap(x) + eps)._node


@remembered_all(2)
def _rms_norm(x: array, weight: array | None, eps: float, parts: bool) -> array:
    _normed("rms_norm", x, weight, None)
    weights = [] if weight is None else [weight._node]
    if type(eps) not in (float, int):
        return wrap(rms_normed(x._node, weights, _shift("rms_norm", eps)))
    return composed(RmsNorm(float(eps)), parts, x._node, *weights)


def rms_norm(x: array, weight: array | None, eps: float, *, stream: Stream = None) -> array:
    """x / sqrt(mean(x²) + eps) over the last axis, times `weight` if that is given.

    >>> rms_norm(array([3.0, 4.0]), None, 0.0)
    array([0.848528, 1.13137], dtype=float32)
    """
    return _rms_norm(x, weight, eps, in_parts())


@remembered_all(3)
def _layer_norm(x: array, weight: array | None, bias: array | None, eps: float, parts: bool) -> array:
    _normed("layer_norm", x, weight, bias)
    weights, biases = [[] if v is None else [v._node] for v in (weight, bias)]
    if type(eps) not in (float, int):
        return wrap(layer_normed(x._node, weights, biases, _shift("layer_norm", eps)))
    return composed(LayerNorm(float(eps), bool(weights), bool(biases)), parts, x._node, *weights, *biases)


def layer_norm(x: array, weight: array | None, bias: array | None, eps: float, *, stream: Stream = None) -> array:
    """(x - mean) / sqrt(variance + eps) over the last axis, times `weight`, plus `bias`, where these are given.

    >>> layer_norm(array([1.0, 3.0]), None, array([0.5, 0.5]), 0.0)
    array([-0.5, 1.5], dtype=float32)
    """
    return _layer_norm(x, weight, bias, eps, in_parts())


# ---- rotary positions ----


def rope(
    a: array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | array,
    freqs: array | None = None,
    stream: Stream = None,
) -> array:
    """Rotary positions: the first `dims` features of (B, …, T, D) are pairs, turned by an angle that grows with the
    position along T.

    Pairs are neighbours if `traditional`, else feature i and i + dims/2. Angles are (position + offset) * scale / freq,
    with freq = base^(2i/dims) unless `freqs` gives them; `offset` is a number, or an array of one or of one for each
    element of the batch. They are computed in float32.
    """
    dims = whole_number("rope", "dims", dims)
    if a.__class__ is not array or (a._node.kind, dims, base is None, freqs is None) not in _CHECKED:
        _check_rope(a, dims, base, freqs)
    c, s = _angles(a, dims // 2, base, scale, offset, freqs)
    return _turned(a, c, s, dims, bool(traditional), in_parts())


_CHECKED: set[tuple[Any, ...]] = set()
"""Arguments of `rope` that were found right: a kind, `dims`, and whether there is no base and no `freqs`."""
_MOST_CHECKED = 1024


def _check_rope(a: array, dims: int, base: float | None, freqs: array | None) -> None:
    shape = _array("rope", "a", a)._node.shape
    if a.ndim < 3:
        raise ValueError(f"[rope] Input must have at least 3 dimensions but got input with {a.ndim} dimensions.")
    if a.dtype.kind != "f":
        raise ValueError(f"[rope] Input must be a floating type but got {a.dtype.name}.")
    if dims <= 0:
        raise ValueError(f"[rope] dims must be positive but got {dims}.")
    if dims % 2:
        raise ValueError(f"[rope] dims must be even but got {dims}.")
    if dims > shape[-1]:
        raise ValueError(f"[rope] dims must not exceed the input's last dimension ({shape[-1]}) but got {dims}.")
    if base is None and freqs is None:
        raise ValueError("[rope] Neither base nor freqs has a value.")
    if base is not None and freqs is not None:
        raise ValueError("[rope] Only one of base or freqs can have a value.")
    if not a._node.kind.symbolic:
        if len(_CHECKED) >= _MOST_CHECKED:
            _CHECKED.clear()
        _CHECKED.add((a._node.kind, dims, base is None, freqs is None))


class _Recent(threading.local):
    """The last angles that a thread asked for: queries and keys of all layers are turned by the same."""

    def __init__(self) -> None:
        self.key: tuple[Any, ...] | None = None
        self.made: tuple[array, array] | None = None


_RECENT = _Recent()
_PLAIN = frozenset({int, float})


def _angles(
    a: array, half: int, base: float | None, scale: float, offset: int | array, freqs: array | None
) -> tuple[array, array]:
    """Cosines and sines of the angles."""
    length = a._node.shape[-2]
    # Arrays may be overwritten, and 0.0 and -0.0 are one key.
    plain = type(offset) is type(length) is int and _PLAIN.issuperset((type(base), type(scale))) and scale
    key = (length, half, base, scale, offset, current()) if plain and not is_tracing() else None
    if key is not None and key == _RECENT.key and _RECENT.made is not None:
        return _RECENT.made
    numbers: tuple[tuple[str, Any], ...] = ("offset", offset), ("scale", scale)
    for what, given in numbers:
        if given is None or isinstance(given, str):
            raise TypeError(f"[rope] {what} must be a number or an array; got {given!r}.")
    angles = expand_dims(_positions(a, offset) * scale, -1) * _inverse_frequencies(half, base, freqs)
    made = cos(angles), sin(angles)
    if key is not None:
        _RECENT.key, _RECENT.made = key, made
    return made


@remembered_all(3)
def _turned(a: array, c: array, s: array, dims: int, traditional: bool, parts: bool) -> array:
    """Pairs among the first features turned by angles."""
    return composed(Rotate(dims, traditional), parts, a._node, c._node, s._node)


def _inverse_frequencies(half: int, base: float | None, freqs: array | None) -> array:
    if freqs is None:
        if not base or not base > 0:
            raise ValueError(f"[rope] base must be positive but got {base}.")
        steps = wrap(astype(bind(Iota((half,))), dt.float32))
        return (steps * (-math.log(base) / half)).exp()
    if _array("rope", "freqs", freqs).shape != (half,):
        raise ValueError(
            f"[rope] freqs must be one dimensional with size {half} but got shape {shape_text(freqs._node.shape)}."
        )
    return freqs.astype(dt.float32).reciprocal()


def _positions(a: array, offset: int | array) -> array:
    """Positions along T, as float32, in a shape that broadcasts against a without its last axis."""
    steps = wrap(astype(bind(Iota((a._node.shape[-2],))), dt.float32))
    if not isinstance(offset, array):
        if isinstance(offset, float):
            raise ValueError("[rope] offset must be an integer but got type float32.")
        return steps + offset
    if not (offset.dtype.is_integer or offset.dtype.is_bool):
        raise ValueError(f"[rope] offset must be an integer but got type {offset.dtype.name}.")
    if offset.ndim > 1:
        raise ValueError(f"[rope] offset must have at most one dimension but has shape {offset.shape}.")
    batch = a._node.shape[0]
    if offset.ndim == 1 and offset.shape != (1,) and not _agree(offset._node.shape, (batch,)):
        raise ValueError(
            f"[rope] offset must be a scalar or vector with {batch} elements but has shape {offset.shape}."
        )
    first = offset.astype(dt.float32)
    if offset.ndim == 0:
        return steps + first
    return wrap(reshape(first._node, (first._node.shape[0], *(1,) * (a.ndim - 2)))) + steps


# ---- attention ----


def scaled_dot_product_attention(
    q: array,
    k: array,
    v: array,
    *,
    scale: float,
    mask: str | array | None = None,
    sinks: array | None = None,
    force_fused: bool = False,
    stream: Stream = None,
) -> array:
    """softmax(scale * q @ k.T + mask) @ v over heads: q is (B, N_q, T_q, D), k and v are (B, N_kv, T_kv, D).

    N_q is a multiple of N_kv: that many queries share a head of keys and values. The mask is "causal" (a query sees the
    keys up to its own position, counted from the end), truths (where to look), or numbers that are added to the scores.
    `sinks` has one more score for each head of queries, for which there is no value. Scores and softmax are float32 at
    least.
    """
    factor: Any = scale
    if isinstance(factor, array):
        dtype = _check_attention(q, k, v)
        made = scaled_dot_product_attention(_wide(q) * factor, _wide(k), _wide(v), scale=1.0, mask=mask, sinks=sinks)
        return made.astype(dtype)
    if isinstance(mask, array):
        return _attention(q, k, v, mask, sinks, float(factor), None, in_parts())
    return _attention(q, k, v, None, sinks, float(factor), mask, in_parts())


@remembered_all(5)
def _attention(
    q: array, k: array, v: array, given: array | None, sinks: array | None, scale: float, mask: str | None, parts: bool
) -> array:
    dtype = _check_attention(q, k, v)
    full = (*q._node.shape[:3], k._node.shape[2])
    kind, more = _mask(given, mask, dtype, full)
    if sinks is not None:
        more.append(_sinks(sinks, dtype, full[:2]))
    operands = [astype(x._node, dtype) for x in (q, k, v)]
    return composed(ScaledDotProductAttention(scale, kind, sinks is not None), parts, *operands, *more)


def _check_attention(q: array, k: array, v: array) -> Dtype:
    name = "[scaled_dot_product_attention]"
    for given in (q, k, v):
        if _array("scaled_dot_product_attention", "an operand", given).ndim != 4:
            raise ValueError(f"{name} input with shape {given.shape} expected to be rank 4.")
        if not _agree(given._node.shape[:1], q._node.shape[:1]):
            raise ValueError(f"{name} mismatching batch dimension for input with shape {given.shape}.")
    if not _agree(q._node.shape[-1:], k._node.shape[-1:]):
        raise ValueError(
            f"{name} query, keys expected to have matching last dimension; found query shape {q.shape} for keys shape "
            f"{k.shape}."
        )
    if not _agree(k._node.shape[1:3], v._node.shape[1:3]):
        raise ValueError(f"{name} keys, values expected to have matching heads and lengths; got {k.shape}, {v.shape}.")
    if k._node.shape[1] == 0 or q._node.shape[1] % k._node.shape[1] != 0:
        raise ValueError(
            f"{name} n_heads must be a multiple of n_kv_heads, found n_heads {q._node.shape[1]} for n_kv_heads "
            f"{k._node.shape[1]}."
        )
    return _floating("scaled_dot_product_attention", dt.promote(dt.promote(q.dtype, k.dtype), v.dtype))


def _mask(given: array | None, mask: str | None, dtype: Dtype, full: Shape) -> tuple[str, list[Node]]:
    """What kind of mask there is, and its node; `full` is (batch, heads, queries, keys)."""
    if given is None:
        if mask is None:
            return "none", []
        if not isinstance(mask, str) or mask != "causal":
            raise ValueError(
                f"[scaled_dot_product_attention] invalid mask option '{mask}'. Must be 'causal', or an array."
            )
        return "causal", []
    if given.ndim > 4:
        raise ValueError(
            f"[scaled_dot_product_attention] the mask with shape {given.shape} expected to have at most rank 4."
        )
    if dt.promote(given.dtype, dtype) is not dtype:
        raise ValueError(f"[scaled_dot_product_attention] Mask type must promote to output type {dtype.name}.")
    if not _agree(broadcast_shapes("scaled_dot_product_attention", given._node.shape, full), full):
        raise ValueError(
            f"[scaled_dot_product_attention] the mask of shape {given.shape} cannot be broadcast to {full}."
        )
    if given.dtype.is_bool:
        return "truths", [broadcast_node(given._node, full)]
    return "numbers", [broadcast_node(astype(given._node, dtype), full)]


def _sinks(sinks: array, dtype: Dtype, full: Shape) -> Node:
    if _array("scaled_dot_product_attention", "sinks", sinks).ndim != 1 or not _agree(sinks._node.shape, full[1:]):
        raise ValueError(f"[scaled_dot_product_attention] Received invalid shape for sinks {sinks.shape}.")
    if dt.promote(sinks.dtype, dtype) is not dtype:
        raise ValueError(f"[scaled_dot_product_attention] Type of sinks must promote to output type {dtype.name}.")
    return broadcast_node(astype(sinks._node, dtype), full)


# ---- losses and recurrences ----


def cross_entropy(logits: array, targets: array, *, stream: Stream = None) -> array:
    """logsumexp(logits) - logits[target] over the last axis, in float32.

    >>> cross_entropy(array([[0.0, 0.0]]), array([1]))
    array([0.693147], dtype=float32)
    """
    _array("cross_entropy", "logits", logits)
    _array("cross_entropy", "targets", targets)
    if logits.ndim == 0:
        raise ValueError("[cross_entropy] logits must have at least 1 dimension but got input with 0 dimensions.")
    if logits.dtype.kind != "f":
        raise ValueError(f"[cross_entropy] Received unsupported logits type {logits.dtype.name}.")
    if not (targets.dtype.is_integer or targets.dtype.is_bool):
        raise ValueError(f"[cross_entropy] targets must be integer class indices but got {targets.dtype.name}.")
    if not _agree(targets._node.shape, logits._node.shape[:-1]):
        raise ValueError(
            f"[cross_entropy] targets shape {targets.shape} does not match logits shape {logits.shape} with the last "
            "axis removed."
        )
    wide = _wide(logits)
    chosen = squeeze(take_along_axis(wide, expand_dims(targets, -1), axis=-1), -1)
    return subtract(logsumexp(wide, axis=-1), chosen).astype(dt.float32)


def gated_delta_update(
    q: array,
    k: array,
    v: array,
    gamma: array,
    beta: array,
    initial_state: array | None = None,
    mask: array | None = None,
    stream: Stream = None,
) -> list[array]:
    """The gated delta rule over time: outputs (B, T, Hv, Dv) and the last state (B, Hv, Dv, Dk), in float32.

    q and k are (B, T, Hk, Dk), v is (B, T, Hv, Dv) with Hv a multiple of Hk, `gamma` and `beta` (B, T, Hv); gamma may
    have one decay for each of Dk. At each step the state decays by gamma, then moves by beta from what it holds
    for the key to v. Steps where `mask` (B, T) is false leave the state and give zeros. A native loop over T.
    """
    _check_recurrence(q, k, v, gamma, beta)
    batch, _, _, width = q._node.shape
    groups, size = v._node.shape[2], v._node.shape[3]
    parts = [_repeated(x.astype(dt.float32), groups) for x in (q, k)]
    wide = gamma.astype(dt.float32)
    decay = expand_dims(wide, (-1, -2)) if gamma.ndim == 3 else expand_dims(wide, -2)
    steps = [*parts, v.astype(dt.float32), decay, beta.astype(dt.float32)]
    if mask is not None:
        steps.append(mask.astype(dt.bool_))
    state = wrap(broadcast_node(scalar_node(0.0, to_node(0.0, dt.float32).kind), (batch, groups, size, width)))
    if initial_state is not None:
        state = initial_state.astype(dt.float32)

    def step(state: array, now: list[array]) -> tuple[array, array]:
        q, k, v, decay, beta, *masks = now
        decayed = state * decay
        key = expand_dims(k, -2)
        change = (v - sum_(decayed * key, axis=-1)) * expand_dims(beta, -1)
        moved = decayed + key * expand_dims(change, -1)
        out = sum_(moved * expand_dims(q, -2), axis=-1)
        if masks:
            counts = expand_dims(masks[0], (-1, -2, -3))
            moved, out = where(counts, moved, state), where(squeeze(counts, -1), out, 0.0)
        return moved, out

    last, outputs = scan(step, state, [swapaxes(x, 0, 1) for x in steps])
    return [swapaxes(outputs, 0, 1).astype(v.dtype), last]


def _check_recurrence(q: array, k: array, v: array, gamma: array, beta: array) -> None:
    name = "[gated_delta_update]"
    if q.ndim != 4 or v.ndim != 4 or not _agree(q._node.shape, k._node.shape):
        raise ValueError(
            f"{name} q and k must be (B, T, Hk, Dk) and v (B, T, Hv, Dv); got {q.shape}, {k.shape}, {v.shape}."
        )
    if gamma.ndim not in (3, 4) or not all(_agree(x._node.shape[:2], q._node.shape[:2]) for x in (v, gamma, beta)):
        raise ValueError(f"{name} all operands must have the batch and the steps of q, {q.shape[:2]}.")
    if not all(_agree(x._node.shape[2:3], v._node.shape[2:3]) for x in (gamma, beta)):
        raise ValueError(f"{name} gamma and beta must have the heads of v ({v._node.shape[2]}).")
    if v._node.shape[2] % q._node.shape[2] != 0:
        raise ValueError(
            f"{name} heads of values ({v._node.shape[2]}) must be a multiple of those of keys ({q._node.shape[2]})."
        )


def _repeated(x: array, groups: Any) -> array:
    """(B, T, Hk, D) as (B, T, groups, D): each head several times in a row."""
    batch, steps, heads, width = x._node.shape
    spread = broadcast_node(
        reshape(x._node, (batch, steps, heads, 1, width)), (batch, steps, heads, groups // heads, width)
    )
    return wrap(reshape(spread, (batch, steps, groups, width)))
