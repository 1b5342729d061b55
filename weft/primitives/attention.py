"""Attention: softmax(scale * q @ k.T + mask) @ v by operations whose kernels never store the scores.

`Attention` gives, beside the result, what is left of the softmax of each query: its largest score and the sum of the
powers of the others. `AttentionGradient` computes scores again from these. Other derivatives (tangents, cotangents of a
mask, second derivatives) are formulas of products (`_Formula`), which do store scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node, Shape, Size, TupleType, bundle_of, kind_of
from weft.primitives.base import (
    ByOperand,
    Composite,
    KernelOperation,
    MultiOutput,
    Sample,
    bind,
    bind_many,
    constant,
    full_like,
    move_batch_to_front,
    zeros,
)
from weft.primitives.bits import IsInf
from weft.primitives.checks import equal_shapes, need
from weft.primitives.contraction import Matmul, swap_last
from weft.primitives.creation import Extent, Iota
from weft.primitives.elementwise import LessEqual, Maximum, Minimum, astype, draw, equal, exp, select
from weft.primitives.reductions import Max, Sum
from weft.primitives.views import Broadcast, reshape

MASKS = ("none", "causal", "truths", "numbers")
LOG2_E = 1 / math.log(2)


def wide_of(dtype: Dtype) -> Dtype:
    """The dtype of scores."""
    return dt.float32 if dtype in dt.HALVES else dtype


def lowest(dtype: Dtype) -> float:
    """The score of what is masked: finite, so that a query that sees nothing gets the mean of all values, as in MLX."""
    return float(dt.finfo(wide_of(dtype)).min)


class Masked(KernelOperation):
    """What operations over all pairs of queries and keys share: the scores, and what is masked of them.

    Queries are (…, heads, queries, features), keys and values (…, groups, keys, features): heads are a multiple of
    groups, neighbours share one. The mask is "causal" (a query sees keys up to its own position, counted from the end),
    or an operand (…, heads, queries, keys): truths (what is seen) or numbers that are added to the scores.
    """

    scale: float
    mask: str
    dtypes = dt.FLOATS

    @property
    def has_mask(self) -> bool:
        """Whether an operand is the mask."""
        return self.mask in ("truths", "numbers")

    def check_scores(self, q: ArrayType, k: ArrayType, v: ArrayType, masks: Sequence[ArrayType]) -> None:
        self.check_dtypes(q, k, v)
        need(self.mask in MASKS, f"a mask {self.mask!r}")
        need(q.ndim == k.ndim == v.ndim >= 3, f"operands {q}, {k}, {v}")
        need(
            equal_shapes(q.shape[:-3], k.shape[:-3]) and equal_shapes(k.shape[:-1], v.shape[:-1]),
            f"operands {q}, {k}, {v}",
        )
        need(q.shape[-1] == k.shape[-1], f"features of {q} and {k}")
        need(k.shape[-3] > 0 and q.shape[-3] % k.shape[-3] == 0, f"heads of {q} and {k}")
        for mask in masks:
            need(mask.dtype is (dt.bool_ if self.mask == "truths" else q.dtype), f"a mask {mask}")
            need(equal_shapes(mask.shape, (*q.shape[:-1], k.shape[-2])), f"a mask {mask}")

    def batched(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> list[Node]:
        return [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]


class Attention(MultiOutput, Masked):
    """(out, peak, total) of (q, k, v), the mask if it is an operand, and the sinks if it has any: out is
    softmax(scale * q @ k.T, masked) @ v. Sinks (…, heads) are one more score each, for which there is no value. The
    peak is the largest score, times log2(e), and the total the sum of 2 ** (score * log2(e) - peak); both are of the
    dtype of scores, which is float32 for halves. Without keys, out is 0."""

    sinks: bool = False
    tolerance = dict.fromkeys(dt.FLOATS, 16)

    def infer(self, *kinds: ArrayType) -> TupleType:
        q, _, v = kinds[:3]
        left = kind_of(q.shape[:-1], wide_of(q.dtype))
        return bundle_of([kind_of((*q.shape[:-1], v.shape[-1]), q.dtype), left, left])

    def check(self, q: ArrayType, k: ArrayType, v: ArrayType, *more: ArrayType) -> None:
        need(len(more) == self.has_mask + self.sinks, f"{3 + len(more)} operands")
        masks, sinks = more[: self.has_mask], more[self.has_mask :]
        self.check_scores(q, k, v, masks)
        for kind in sinks:
            need(kind.dtype is q.dtype and equal_shapes(kind.shape, q.shape[:-2]), f"sinks {kind}")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        q, k, v = kinds[:3]
        pairs = float(q.size) / max(float(q.shape[-1]), 1.0) * float(k.shape[-2])
        return pairs * (2.0 * float(q.shape[-1]) + 2.0 * float(v.shape[-1]) + 12.0)

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        kind = dt.from_numpy(values[0].dtype)
        out, peak, total = _attended(self, values, values[2], lowest(kind))
        wide = wide_of(kind).np
        return out.astype(kind.np), peak.astype(wide), total.astype(wide)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        """Errors in units of what each result is a sum of: a score is off by some epsilon of the sum of magnitudes of
        its terms, and a weight by as much, relatively."""
        kind = dt.from_numpy(values[0].dtype)
        exact = _attended(self, values, values[2], lowest(kind))
        sums = _attended(self, values, np.abs(values[2]), lowest(kind))[0]
        size = _score_sizes(self, values)
        sizes = [sums * size[..., None], np.maximum(np.abs(exact[1]), size), exact[2] * size]
        count = len(results)  # those that were asked for, the first ones
        return _worst_error(results, exact[:count], sizes[:count])

    # ---- rules ----

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        f = _Formula(self, primals[:3], primals[3 : 3 + self.has_mask])
        sinks, sink_place = primals[3 + self.has_mask :], 3 + self.has_mask
        soft = f.softmax(*sinks)
        rise = f.score_tangent(tangents)
        mean = _sum(soft.weights * rise)
        peak = _sum(soft.is_peak * rise)
        if sink_place in tangents:
            sink_rise = f.by_query(tangents[sink_place])
            mean, peak = mean + soft.sink_weights * sink_rise, peak + soft.sink_is_peak * sink_rise
        moved = _matmul(soft.weights * (rise - _across(mean, rise)), f.v)
        if 2 in tangents:
            moved = moved + _matmul(soft.weights, f.spread(tangents[2]))
        out, high, total = outs
        return (
            f.heads_back(moved, out.kind),
            f.heads_back(_times(peak, LOG2_E), high.kind),
            f.heads_back((mean - peak) * soft.total, total.kind),
        )

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        sinks, sink_place = primals[3 + self.has_mask :], 3 + self.has_mask
        ct, peak_ct, total_ct = cotangents
        if peak_ct is None and total_ct is None and not (self.mask == "numbers" and 3 in wanted):
            return {} if ct is None else self._by_kernels(outs, primals, ct, wanted)
        f = _Formula(self, primals[:3], primals[3:sink_place])
        soft = f.softmax(*sinks)
        found: dict[int, Node] = {}
        # d score = weight * (d weight - mean) + power * d total + [it is the peak] * (d peak - total * d total)
        rise: Node | None = None
        sink_rise: Node | None = None
        if ct is not None:
            given = f.split(ct)
            weights_ct = _matmul(given, swap_last(f.v))
            mean = _sum(soft.weights * weights_ct)
            rise = soft.weights * (weights_ct - _across(mean, weights_ct))
            sink_rise = -(soft.sink_weights * mean) if sinks else None
            if 2 in wanted:
                found[2] = f.groups_back(_matmul(swap_last(soft.weights), given), primals[2].kind)
        if peak_ct is not None or total_ct is not None:
            most = zeros(soft.total.kind) if peak_ct is None else _times(f.by_row(peak_ct), LOG2_E)
            if total_ct is not None:
                each = f.by_row(total_ct) * soft.total
                most = most - each
                rise = _plus(rise, soft.weights * _across(each, soft.weights))
                sink_rise = _plus(sink_rise, soft.sink_weights * each) if sinks else None
            rise = _plus(rise, soft.is_peak * _across(most, soft.is_peak))
            sink_rise = _plus(sink_rise, soft.sink_is_peak * most) if sinks else None
        if rise is None:
            return {}
        found |= f.score_cotangents(f.seen(rise), wanted)
        if sink_place in wanted and sink_rise is not None:
            found[sink_place] = f.heads_back(_sum_all(sink_rise, 1), primals[sink_place].kind)
        return found

    def _by_kernels(
        self, outs: Sequence[Node], primals: tuple[Node, ...], ct: Node, wanted: frozenset[int]
    ) -> dict[int, Node]:
        """Cotangents of all but a mask, given that of `out`, without stored scores."""
        out, peak, total = outs
        place = 3 + self.has_mask
        delta = _sum(astype(ct, total.dtype) * astype(out, total.dtype))
        found: dict[int, Node] = {}
        if wanted & {0, 1, 2}:
            made = bind_many(AttentionGradient(self.scale, self.mask), *primals[:place], peak, total, delta, ct)
            found = {i: made[i] for i in (0, 1, 2) if i in wanted}
        if place in wanted:
            sink = bind(Broadcast(peak.shape, tuple(range(peak.ndim - 1))), astype(primals[place], peak.dtype))
            weights = exp(_times(_times(sink, LOG2_E) - peak, math.log(2))) / total
            found[place] = astype(-_sum(weights * delta), primals[place].dtype)
        return found

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        return [(x, 0) for x in bind_many(self, *self.batched(inputs, axes, size))]


class ScaledDotProductAttention(Composite):
    """The first result of `Attention`, whose operands it has: what a program needs that takes no derivatives."""

    scale: float
    mask: str
    sinks: bool = False
    dtypes = dt.FLOATS
    tolerance = Attention.tolerance

    @property
    def attention(self) -> Attention:
        """The operation that computes it."""
        return Attention(self.scale, self.mask, self.sinks)

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return self.attention.infer(*kinds).parts[0]

    def check(self, q: ArrayType, k: ArrayType, v: ArrayType, *more: ArrayType) -> None:
        self.attention.check(q, k, v, *more)

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return self.attention.flops(out, *kinds)

    def decompose(self, *xs: Node) -> Node:
        return bind_many(self.attention, *xs)[0]

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return self.attention.reference(*values)[0]

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        return self.attention.backward_error(values, results)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return self.attention.jvp(bind_many(self.attention, *primals), primals, tangents)[0]

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        outs = bind_many(self.attention, *primals)
        return self.attention.vjp(outs, primals, [cotangent, None, None], wanted)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, *self.attention.batched(inputs, axes, size)), 0


class AttentionGradient(MultiOutput, Masked):
    """(dq, dk, dv) of (q, k, v), the mask if it is an operand, peak, total, delta (…, heads, queries) and a cotangent
    of out. With p = 2 ** (score * log2(e) - peak) / total and ds = p * (ct @ v.T - delta), 0 where a score is masked,
    they are scale * ds @ k, scale * ds.T @ q and p.T @ ct. That is the gradient of `Attention` if peak and total are
    its results, and delta is the sum of ct * out over values."""

    tolerance = dict.fromkeys(dt.FLOATS, 16)

    def infer(self, *kinds: ArrayType) -> TupleType:
        return bundle_of(kinds[:3])

    def check(self, q: ArrayType, k: ArrayType, v: ArrayType, *more: ArrayType) -> None:
        need(len(more) == self.has_mask + 4, f"{3 + len(more)} operands")
        self.check_scores(q, k, v, more[: self.has_mask])
        left = kind_of(q.shape[:-1], wide_of(q.dtype))
        for kind in more[self.has_mask : -1]:
            need(kind.dtype is left.dtype and equal_shapes(kind.shape, left.shape), f"operands {kind} for each query")
        ct = more[-1]
        need(ct.dtype is q.dtype and equal_shapes(ct.shape, (*q.shape[:-1], v.shape[-1])), f"a cotangent {ct}")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        q, k, v = kinds[:3]
        pairs = float(q.size) / max(float(q.shape[-1]), 1.0) * float(k.shape[-2])
        return pairs * (6.0 * float(q.shape[-1]) + 4.0 * float(v.shape[-1]) + 16.0)

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(x.astype(values[0].dtype) for x in self._exact(values, np.asarray)[0])

    def _exact(self, values: Sequence[np.ndarray], part: Any) -> tuple[list[np.ndarray], np.ndarray]:
        """(dq, dk, dv) as float64, and p; `part` is np.abs where what sums are made of is wanted instead."""
        q, k, v = (x.astype(np.float64) for x in values[:3])
        peak, total, delta, ct = (x.astype(np.float64) for x in values[3 + self.has_mask :])
        heads, groups = q.shape[-3], k.shape[-3]
        scores = _scores_of(self, values, lowest(dt.from_numpy(values[0].dtype)))
        p = part(np.exp2(scores - peak[..., None]) / total[..., None])
        repeated = [_repeated_heads(part(x), heads) for x in (k, v)]
        change = p * (
            part(ct) @ np.swapaxes(repeated[1], -1, -2) - (-1 if part is np.abs else 1) * part(delta)[..., None]
        )
        ds = np.where(_visible_of(self, values), change, 0.0) * part(self.scale)

        def by_group(x: np.ndarray) -> np.ndarray:
            return x.reshape(*x.shape[:-3], groups, heads // groups, *x.shape[-2:]).sum(-3)

        dk, dv = np.swapaxes(ds, -1, -2) @ part(q), np.swapaxes(p, -1, -2) @ part(ct)
        return [ds @ repeated[0], by_group(dk), by_group(dv)], p

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        """Errors in units of the sums of magnitudes, which scores and what each is off by make larger."""
        exact, _ = self._exact(values, np.asarray)
        sums, _ = self._exact(values, np.abs)
        size = _score_sizes(self, values[: 3 + self.has_mask]).max(initial=1.0)
        peak = np.abs(values[3 + self.has_mask].astype(np.float64))
        size += np.where(peak < -lowest(dt.float32) / 4, peak, 0.0).max(initial=0.0)
        return _worst_error(results, exact, [x * size for x in sums])

    # ---- rules ----

    def _parts(self, primals: tuple[Node, ...]) -> _Gradient:
        q, k, v, *masks = primals[: 3 + self.has_mask]
        return _Gradient(_Formula(self, (q, k, v), masks), *primals[3 + self.has_mask :])

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        g, n = self._parts(primals), 3 + self.has_mask
        f, scale = g.f, self.scale
        peak, total, delta, ct = (tangents.get(n + i) for i in range(4))
        rise = f.score_tangent(tangents)
        if peak is not None:
            rise = rise - _across(_times(f.by_row(peak), math.log(2)), rise)
        if total is not None:
            rise = rise - _across(f.by_row(total) / g.total, rise)
        weights = g.weights * rise
        change = zeros(g.change.kind)
        if ct is not None:
            change = change + _matmul(f.split(ct), swap_last(f.v))
        if 2 in tangents:
            change = change + _matmul(g.ct, swap_last(f.spread(tangents[2])))
        if delta is not None:
            change = change - _across(f.by_row(delta), change)
        ds = _times(f.seen(weights * g.change + g.weights * change), scale)
        dq, dk = _matmul(ds, f.k), _matmul(swap_last(ds), f.q)
        dv = _matmul(swap_last(weights), g.ct)
        if 1 in tangents:
            dq = dq + _matmul(_times(g.ds, scale), f.spread(tangents[1]))
        if 0 in tangents:
            dk = dk + _matmul(swap_last(_times(g.ds, scale)), f.split(tangents[0]))
        if ct is not None:
            dv = dv + _matmul(swap_last(g.weights), f.split(ct))
        q_kind, k_kind, v_kind = (x.kind for x in outs)
        return f.heads_back(dq, q_kind), f.groups_back(dk, k_kind), f.groups_back(dv, v_kind)

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        g, n = self._parts(primals), 3 + self.has_mask
        f, scale = g.f, self.scale
        q_ct, k_ct, v_ct = cotangents
        if q_ct is None and k_ct is None and v_ct is None:
            return {}
        ds_ct, weights_ct = zeros(g.change.kind), zeros(g.change.kind)
        found: dict[int, Node] = {}
        ct = zeros(g.ct.kind)
        if q_ct is not None:
            given = f.split(q_ct)
            ds_ct = ds_ct + _matmul(given, swap_last(f.k))
            found[1] = f.groups_back(_matmul(swap_last(_times(g.ds, scale)), given), primals[1].kind)
        if k_ct is not None:
            given = f.spread(k_ct)
            ds_ct = ds_ct + _matmul(f.q, swap_last(given))
            found[0] = f.heads_back(_matmul(_times(g.ds, scale), given), primals[0].kind)
        if v_ct is not None:
            given = f.spread(v_ct)
            weights_ct, ct = _matmul(g.ct, swap_last(given)), _matmul(g.weights, given)
        ds_ct = _times(f.seen(ds_ct), scale)
        change_ct = ds_ct * g.weights
        moved = (weights_ct + ds_ct * g.change) * g.weights
        row = _sum(moved)
        for place, more in f.score_cotangents(f.seen(moved), wanted).items():
            found[place] = found[place] + more if place in found else more
        if 2 in wanted:
            found[2] = f.groups_back(_matmul(swap_last(change_ct), g.ct), primals[2].kind)
        rows = (
            _times(row, -math.log(2)), -(row / g.total), -_sum(change_ct), ct + _matmul(change_ct, f.v),
        )  # fmt: skip
        found |= {n + i: f.heads_back(x, primals[n + i].kind) for i, x in enumerate(rows)}
        return {place: x for place, x in found.items() if place in wanted}

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        return [(x, 0) for x in bind_many(self, *self.batched(inputs, axes, size))]


# ---- formulas ----


class _Softmax:
    """The softmax of scores as nodes; `sink_…` are those of the sinks."""

    weights: Node
    is_peak: Node
    """What a change of each score changes the largest one by: 1 for one that is it, less if there are several."""
    total: Node
    sink_weights: Node
    sink_is_peak: Node


class _Formula:
    """Scores as nodes that are stored, of operands with heads as (groups, heads of a group), in the dtype of scores."""

    def __init__(self, op: Masked, operands: Sequence[Node], masks: Sequence[Node]) -> None:
        q, k, v = operands
        *lead, heads, queries, _ = q.shape
        self.op, self.operands, self.masks = op, operands, masks
        self.wide = wide_of(q.dtype)
        self.lead: Shape = tuple(lead)
        self.groups = k.shape[-3]
        self.shared = heads // self.groups
        self.queries, self.keys = queries, k.shape[-2]
        self.q, self.k, self.v = self.split(q), self.spread(k), self.spread(v)

    # ---- heads ----

    def _wide(self, x: Node) -> Node:
        return astype(x, self.wide) if x.dtype in dt.HALVES else x

    def split(self, x: Node) -> Node:
        """(…, heads, a, b) as (…, groups, shared, a, b)."""
        return reshape(self._wide(x), (*self.lead, self.groups, self.shared, *x.shape[-2:]))

    def by_row(self, x: Node) -> Node:
        """(…, heads, a) as (…, groups, shared, a)."""
        return reshape(self._wide(x), (*self.lead, self.groups, self.shared, x.shape[-1]))

    def by_query(self, x: Node) -> Node:
        """(…, heads) for each query of a head."""
        apart = reshape(self._wide(x), (*self.lead, self.groups, self.shared))
        return bind(Broadcast((*apart.shape, self.queries), tuple(range(apart.ndim))), apart)

    def spread(self, x: Node) -> Node:
        """(…, groups, a, b) for each of the heads that share a group."""
        x, n = self._wide(x), len(self.lead)
        shape = (*self.lead, self.groups, self.shared, *x.shape[-2:])
        return bind(Broadcast(shape, (*range(n + 1), n + 2, n + 3)), x)

    def heads_back(self, x: Node, kind: ArrayType) -> Node:
        return astype(reshape(x, kind.shape), kind.dtype)

    def groups_back(self, x: Node, kind: ArrayType) -> Node:
        return astype(bind(Sum((len(self.lead) + 1,)), x), kind.dtype)

    # ---- scores ----

    def visible(self) -> Node | None:
        """What is not masked; None if that is everything."""
        shape = (*self.lead, self.groups, self.shared, self.queries, self.keys)
        if self.op.mask == "truths":
            return reshape(self.masks[0], shape)
        if self.op.mask != "causal":
            return None
        row, column = bind(Iota((self.queries,))), bind(Iota((self.keys,)))
        last, key = row + _size(self.keys, row.kind), column + _size(self.queries, column.kind)
        n = len(shape)
        return bind(LessEqual(), bind(Broadcast(shape, (n - 1,)), key), bind(Broadcast(shape, (n - 2,)), last))

    def seen(self, x: Node) -> Node:
        """What belongs to scores, 0 where they are masked."""
        visible = self.visible()
        return x if visible is None else select(visible, x, zeros(x.kind))

    def scores(self) -> Node:
        """In units of a bit."""
        found = _times(_matmul(self.q, swap_last(self.k)), self.op.scale * LOG2_E)
        if self.op.mask == "numbers":
            mask, least = self.split(self.masks[0]), lowest(self.wide)
            added = bind(Maximum(), _times(mask, LOG2_E), full_like(mask, least))
            added = bind(Minimum(), added, full_like(mask, -least))  # what is finite stays so
            found = found + select(bind(IsInf(), mask), mask, added)
        visible = self.visible()
        return found if visible is None else select(visible, found, full_like(found, lowest(self.wide)))

    def softmax(self, *sinks: Node) -> _Softmax:
        scores = self.scores()
        if self.keys == 0:  # nothing is the largest of none
            peak = constant(-math.inf, kind_of(scores.shape[:-1], self.wide))
        else:
            peak = bind(Max((scores.ndim - 1,)), scores)
        sink = _times(self.by_query(sinks[0]), LOG2_E) if sinks else None
        if sink is not None:
            peak = bind(Maximum(), peak, sink)
        powers = exp(_times(scores - _across(peak, scores), math.log(2)))
        soft, ones = _Softmax(), full_like(scores, 1)
        soft.total = _sum(powers)
        reached = select(equal(scores, _across(peak, scores)), ones, zeros(scores.kind))
        count = _sum(reached)
        if sink is not None:
            power = exp(_times(sink - peak, math.log(2)))
            met = select(equal(sink, peak), full_like(sink, 1), zeros(sink.kind))
            soft.total, count = soft.total + power, count + met
            soft.sink_weights, soft.sink_is_peak = power / soft.total, met / count
        soft.weights = powers / _across(soft.total, powers)
        soft.is_peak = reached / _across(count, reached)
        return soft

    def score_tangent(self, tangents: ByOperand) -> Node:
        """The tangent of scores (not in bits), given those of q, k and the mask."""
        total: Node | None = None
        if 0 in tangents:
            total = _matmul(self.split(tangents[0]), swap_last(self.k))
        if 1 in tangents:
            total = _plus(total, _matmul(self.q, swap_last(self.spread(tangents[1]))))
        total = None if total is None else _times(total, self.op.scale)
        if 3 in tangents and self.op.mask == "numbers":
            total = _plus(total, self.split(tangents[3]))
        if total is None:
            return zeros(kind_of((*self.lead, self.groups, self.shared, self.queries, self.keys), self.wide))
        return self.seen(total)

    def score_cotangents(self, ct: Node, wanted: frozenset[int]) -> dict[int, Node]:
        """The cotangents of q, k and the mask, given that of scores (not in bits), 0 where they are masked."""
        found: dict[int, Node] = {}
        scaled = _times(ct, self.op.scale)
        if 0 in wanted:
            found[0] = self.heads_back(_matmul(scaled, self.k), self.operands[0].kind)
        if 1 in wanted:
            found[1] = self.groups_back(_matmul(swap_last(scaled), self.q), self.operands[1].kind)
        if 3 in wanted and self.op.mask == "numbers":
            found[3] = self.heads_back(ct, self.masks[0].kind)
        return found


class _Gradient:
    """What `AttentionGradient` computes on its way, as nodes: p, ct @ v.T - delta, and ds without the scale."""

    def __init__(self, f: _Formula, peak: Node, total: Node, delta: Node, ct: Node) -> None:
        self.f, self.ct, self.total = f, f.split(ct), f.by_row(total)
        scores = f.scores()
        powers = exp(_times(scores - _across(f.by_row(peak), scores), math.log(2)))
        self.weights = powers / _across(self.total, powers)
        product = _matmul(self.ct, swap_last(f.v))
        self.change = product - _across(f.by_row(delta), product)
        self.ds = f.seen(self.weights * self.change)


def _matmul(x: Node, y: Node) -> Node:
    return bind(Matmul(), x, y)


def _plus(x: Node | None, y: Node) -> Node:
    return y if x is None else x + y


def _times(x: Node, number: float) -> Node:
    return x * constant(number, x.kind)


def _sum(x: Node) -> Node:
    return bind(Sum((x.ndim - 1,)), x)


def _sum_all(x: Node, last: int) -> Node:
    """The sum over the last axes."""
    return bind(Sum(tuple(range(x.ndim - last, x.ndim))), x)


def _across(x: Node, like: Node) -> Node:
    """What each row has, for every element of it."""
    return bind(Broadcast(like.shape, tuple(range(like.ndim - 1))), x)


def _size(n: Any, kind: ArrayType) -> Node:
    if type(n) is int:
        return constant(n, kind)
    return bind(Broadcast(kind.shape, ()), astype(bind(Extent(n)), kind.dtype))


# ---- references ----


def _worst_error(results: Sequence[np.ndarray], exact: Sequence[np.ndarray], sizes: Sequence[np.ndarray]) -> float:
    """The largest error, but for the last rounding, in units of epsilon of the dtype of scores times a size."""
    worst = 0.0
    for got, expected, size in zip(results, exact, sizes, strict=True):
        kind = dt.from_numpy(got.dtype)
        info, eps = dt.finfo(kind), float(dt.finfo(wide_of(kind)).eps)
        rounding = float(info.eps) / 2 * np.maximum(np.abs(expected), float(info.smallest_normal))
        error = np.abs(got.astype(np.float64) - expected) - rounding
        worst = max(worst, float(np.max(error / (eps * np.maximum(size, 1e-30)), initial=0.0)))
    return worst


def _repeated_heads(x: np.ndarray, heads: int) -> np.ndarray:
    return np.repeat(x, heads // x.shape[-3], axis=-3)


def _score_sizes(op: Masked, values: Sequence[np.ndarray]) -> np.ndarray:
    """For each query 1 and the largest sum of magnitudes of what a score of it is made of."""
    q, k = (np.abs(x.astype(np.float64)) for x in values[:2])
    terms = abs(op.scale) * (q @ np.swapaxes(_repeated_heads(k, q.shape[-3]), -1, -2))
    if op.mask == "numbers":
        terms = terms + np.abs(values[3].astype(np.float64))
    size = terms.max(-1, initial=0.0)
    return 1 + LOG2_E * (size + (np.abs(values[-1].astype(np.float64))[..., None] if values[-1].ndim < q.ndim else 0.0))


def _scores_of(op: Masked, values: Sequence[np.ndarray], least: float) -> np.ndarray:
    """Scores in bits, as float64; `least` is that of what is masked."""
    q, k = (x.astype(np.float64) for x in values[:2])
    scores = op.scale * (q @ np.swapaxes(_repeated_heads(k, q.shape[-3]), -1, -2))
    scores = scores * LOG2_E
    if op.mask == "numbers":
        mask = values[3].astype(np.float64)
        scores = scores + np.where(np.isinf(mask), mask, np.clip(mask * LOG2_E, least, -least))
    return np.where(_visible_of(op, values), scores, least)


def _visible_of(op: Masked, values: Sequence[np.ndarray]) -> Any:
    if op.mask == "truths":
        return values[3]
    if op.mask != "causal":
        return True
    queries, keys = values[0].shape[-2], values[1].shape[-2]
    return np.arange(keys) <= np.arange(queries)[:, None] + keys - queries


def _attended(op: Masked, values: Sequence[np.ndarray], v: np.ndarray, least: float) -> tuple[np.ndarray, ...]:
    """(out, peak, total) as float64."""
    scores, sinks = _scores_of(op, values, least), values[3 + op.has_mask :]
    peak = np.max(scores, -1, initial=-np.inf)
    if sinks:
        sink = sinks[0].astype(np.float64)[..., None] * LOG2_E
        peak = np.maximum(peak, sink)
    clear = np.where(np.isneginf(peak), 0.0, peak)
    weights = np.exp2(scores - clear[..., None])
    total = weights.sum(-1) + (np.exp2(sink - clear) if sinks else 0.0)
    summed = weights @ _repeated_heads(v.astype(np.float64), scores.shape[-3])
    return summed / total[..., None] if scores.shape[-1] else np.zeros_like(summed), peak, total


# ---- samples ----


def _sample(name: str, q: tuple[int, ...], k: tuple[int, ...], values: int, mask: str = "none", sinks: bool = False,
            smooth: bool = True) -> Sample:  # fmt: skip
    """Operands of these shapes, for scores that are neither all alike nor all but one negligible."""

    def make(rng: np.random.Generator, dtype: Dtype) -> list[np.ndarray]:
        found = [draw(rng, dtype, q, -1, 1), draw(rng, dtype, k, -1, 1), draw(rng, dtype, (*k[:-1], values))]
        if mask in ("truths", "numbers"):
            found.append(draw(rng, dt.bool_ if mask == "truths" else dtype, (*q[:-1], k[-2]), -1, 1))
        return [*found, draw(rng, dtype, q[:-2], -1, 1)] if sinks else found

    return Sample(make, {"scale": 0.7, "mask": mask, "sinks": sinks}, smooth=smooth, name=name)


Attention.samples = (
    _sample("plain", (2, 3, 4), (2, 5, 4), 3),
    _sample("causal", (1, 2, 4, 3), (1, 1, 5, 3), 2, "causal", sinks=True),
    _sample("truths", (2, 3, 4), (1, 5, 4), 3, "truths"),
    _sample("numbers", (2, 3, 4), (2, 5, 4), 3, "numbers", sinks=True),
    _sample("late", (2, 5, 3), (1, 3, 3), 2, "causal"),
    _sample("blocks", (2, 70, 17), (1, 101, 17), 9, "causal", smooth=False),
    _sample("vectors", (3, 33, 40), (1, 201, 40), 21, "numbers", True, smooth=False),
    _sample("alone", (1, 1, 1), (1, 1, 1), 1),
    _sample("no_keys", (2, 3, 4), (1, 0, 4), 2, smooth=False),
    _sample("sinks_alone", (2, 3, 4), (1, 0, 4), 2, "causal", sinks=True),
    _sample("no_queries", (2, 0, 4), (1, 3, 4), 2),
    _sample("empty", (0, 2, 3, 4), (0, 1, 5, 4), 3, "causal"),
)

ScaledDotProductAttention.samples = Attention.samples


def _gradient_sample(sample: Sample) -> Sample:
    """The operands of the gradient, for those of attention without sinks."""

    def make(rng: np.random.Generator, dtype: Dtype) -> list[np.ndarray]:
        assert sample.params is not None
        op = Attention(**sample.params)
        given = list(sample.make(rng, dtype))
        out, peak, total = _attended(op, given, given[2], lowest(dtype))
        ct = draw(rng, dtype, out.shape, -1, 1)
        left = (peak, total, (out * ct.astype(np.float64)).sum(-1))
        return [*given, *(x.astype(wide_of(dtype).np) for x in left), ct]

    params = {name: value for name, value in (sample.params or {}).items() if name != "sinks"}
    return Sample(make, params, smooth=sample.smooth, name=sample.name)


AttentionGradient.samples = tuple(
    _gradient_sample(sample)
    for sample in (
        _sample("causal", (2, 3, 2), (1, 4, 2), 3, "causal"),
        _sample("no_keys", (2, 3, 4), (1, 0, 4), 2, smooth=False),
    )
)
