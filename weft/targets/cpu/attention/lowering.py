"""From layouts to launches: how attention is cut into tasks, and the words of its kernels."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Sequence
from typing import Final

from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.config import config
from weft.dtypes import Dtype
from weft.llvm.engine import Source
from weft.primitives.attention import Attention, AttentionGradient, wide_of
from weft.runtime.threads import get_threads
from weft.targets.cpu.attention import few, forward, gradient
from weft.targets.cpu.attention.few import Combine, FewQueries
from weft.targets.cpu.attention.forward import Forward
from weft.targets.cpu.attention.gradient import Gradient, Half
from weft.targets.cpu.attention.tiles import KEYS, LOG2_E, QUERIES, AttentionShape
from weft.targets.cpu.matmul.elements import elements_of
from weft.targets.cpu.matmul.frame import Word, block
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.matmul.tasks import PARALLEL, STREAM, grain_of

_SPAN: Final = 4  # blocks of queries that share what was copied of keys and values
_WIDE: Final = 256  # features of keys and values up to which two blocks of them stay in the cache
_FEW: Final = 8  # queries, of all heads that share keys, up to which lanes are features. It decides the bits.
_FOLDED: Final = 32  # queries of a head up to which heads that share keys are taken together


def _shape(dtype: Dtype) -> AttentionShape:
    processor = machine(config.cpu)
    return AttentionShape(processor.lanes(elements_of(dtype)), 4 if processor.registers == 32 else 2)


def _bits(number: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", number))[0])


def _strides(x: Layout) -> list[int]:
    return [stride * x.dtype.size for stride in x.strides]


def _span(units: int, blocks: int, work: int) -> int:
    """Blocks of queries of a task: several, for which keys and values are copied once, where threads have enough to do
    with these."""
    threads = get_threads()
    if blocks == 1:
        return 1
    if threads > 1 and work >= PARALLEL and units * blocks < 4 * _SPAN * threads:
        return 1 if units * blocks < 8 * threads else 2
    return _SPAN


def lower(op: Attention, operands: Sequence[Layout], *results: Layout) -> Lowering:
    """Pointers: q, k, v, the mask, the sinks (where there are any), then out, peaks, totals."""
    q, k, v, mask, sinks = _named(op, operands)
    *lead, heads, queries, features = q.shape
    groups, keys, values = k.shape[-3], k.shape[-2], v.shape[-1]
    members = math.prod(lead)
    if members * heads * queries == 0:
        return Lowering(())
    kind = elements_of(q.dtype)
    shared = heads // groups
    if queries <= _FEW:
        return _few(op, operands)
    fold = shared if queries <= _FOLDED else 1
    parts = shared // fold
    blocks = -(-fold * queries // QUERIES)
    loose = (
        q.strides[-1] != 1,
        k.strides[-1] != 1 or v.strides[-1] != 1,
        mask is not None and mask.strides[-1] != 1,
    )
    shape = _shape(q.dtype)
    kernel = Forward(kind, shape, op.mask, sinks is not None, loose, shape.fills(fold * queries))
    work = members * heads * queries * keys * (features + values + 8)
    span = _span(members * groups * parts, blocks, work)
    spans = -(-blocks // span)
    areas, scratch = kernel.areas(features, values, span)
    nothing = Layout((0,) * (len(lead) + 3), (0,) * (len(lead) + 3), q.dtype)
    given = [q, k, v, mask or nothing, sinks or nothing]
    steps = [_strides(x) for x in given]
    numbers = {name: Pointer(i) for i, name in enumerate(_names(op))}
    (*_, q_head, q_row, q_feature), (*_, k_head, k_row, k_feature), (*_, v_head, v_row, v_feature) = steps[:3]
    mask_head, mask_row, mask_key = steps[3][len(lead) :]
    tasks = members * groups * parts * spans
    words: dict[str, Word] = {
        "tasks": tasks, "q": numbers["q"], "k": numbers["k"], "v": numbers["v"],
        "mask": numbers.get("mask", numbers["q"]), "sinks": numbers.get("sinks", numbers["q"]),
        "out": numbers["out"], "peak": numbers["peak"], "total": numbers["total"], "scale": _bits(op.scale * LOG2_E),
        "groups": groups, "parts": parts, "fold": fold, "queries": queries, "keys": keys, "features": features,
        "values": values, "spans": spans, "span": span, "q_head": q_head, "q_row": q_row, "q_feature": q_feature,
        "k_head": k_head, "k_row": k_row, "k_feature": k_feature,
        "v_head": v_head, "v_row": v_row, "v_feature": v_feature,
        "mask_head": mask_head, "mask_row": mask_row, "mask_key": mask_key, "sinks_head": steps[4][len(lead)], **areas,
    }  # fmt: skip
    axes = [(extent, *(s[i] for s in steps)) for i, extent in enumerate(lead) if extent != 1]
    source = Source(f"attention:{kernel.name}", kernel.name, kernel.ir)
    return Lowering((Launch(source, block(forward.WORDS, words, axes[::-1]), grain_of(work, tasks), scratch),))


def _names(op: Attention) -> list[str]:
    more = ["mask"] * op.has_mask + ["sinks"] * op.sinks
    return ["q", "k", "v", *more, "out", "peak", "total"]


def _named(op: Attention, operands: Sequence[Layout]) -> tuple[Layout, Layout, Layout, Layout | None, Layout | None]:
    q, k, v, *more = operands
    return q, k, v, more[0] if op.has_mask else None, more[-1] if op.sinks else None


# ---- few queries ----


def _few(op: Attention, operands: Sequence[Layout]) -> Lowering:
    """The same for a few queries: chunks of keys are tasks, and what becomes of them is put together."""
    q, k, v, mask, sinks = _named(op, operands)
    *lead, heads, _, features = q.shape
    queries = operator.index(q.shape[-2])
    groups, keys, values = k.shape[-3], k.shape[-2], v.shape[-1]
    members, kind, shape, size = math.prod(lead), elements_of(q.dtype), _shape(q.dtype), wide_of(q.dtype).size
    shared = operator.index(heads // groups)
    fold = next(n for n in range(max(1, min(shared, _FEW // queries)), 0, -1) if shared % n == 0)
    parts, rows, chunks = shared // fold, fold * queries, -(-keys // few.CHUNK)
    units = members * groups * parts
    processor = machine(config.cpu)
    registers = processor.registers * processor.vector // (2 * few.LANES * size)
    loose = (
        q.strides[-1] != 1,
        k.strides[-1] != 1 or v.strides[-1] != 1,
        mask is not None and mask.strides[-1] != 1,
    )
    kernel = FewQueries(kind, shape, op.mask, loose, 1 << (rows - 1).bit_length(), registers)
    areas, scratch = kernel.areas(features)
    given = [q, k, v, mask]
    steps = [[0] * (len(lead) + 3) if x is None else _strides(x) for x in given]
    numbers = {name: Pointer(i) for i, name in enumerate((*_names(op), "o", "peaks", "totals"))}
    words: dict[str, Word] = {
        "tasks": units * chunks, "q": numbers["q"], "k": numbers["k"], "v": numbers["v"],
        "mask": numbers.get("mask", numbers["q"]), "o": numbers["o"], "peak": numbers["peaks"],
        "total": numbers["totals"], "scale": _bits(op.scale * LOG2_E), "groups": groups, "parts": parts, "fold": fold,
        "queries": queries, "keys": keys, "features": features, "values": values, "chunks": chunks, **areas,
    }  # fmt: skip
    for name, strides, last in zip(
        ("q", "k", "v", "mask"), steps, ("feature", "feature", "feature", "key"), strict=True
    ):
        words |= zip((f"{name}_head", f"{name}_row", f"{name}_{last}"), strides[len(lead) :], strict=True)
    table = [(extent, *(s[i] for s in steps)) for i, extent in enumerate(lead) if extent != 1][::-1]
    work = STREAM * units * keys * (features + values)
    source = Source(f"attention:{kernel.name}", kernel.name, kernel.ir)
    first = Launch(source, block(few.WORDS, words, table), grain_of(work, units * chunks), scratch)
    combine = Combine(kind, shape, op.sinks)
    sink_steps = _strides(sinks) if sinks is not None else [0] * (len(lead) + 1)
    words = {
        "tasks": units * rows, "o": numbers["o"], "peaks": numbers["peaks"], "totals": numbers["totals"],
        "sinks": numbers.get("sinks", numbers["q"]), "out": numbers["out"], "peak": numbers["peak"],
        "total": numbers["total"], "keys": keys, "values": values, "chunks": chunks, "rows": rows, "queries": queries,
        "heads": heads, "sinks_head": sink_steps[-1],
    }  # fmt: skip
    sink_table = [(extent, step) for extent, step in zip(lead, sink_steps, strict=False) if extent != 1][::-1]
    source = Source(f"attention:{combine.name}", combine.name, combine.ir)
    work = STREAM * units * rows * chunks * values
    second = Launch(source, block(few.COMBINED, words, sink_table), grain_of(work, units * rows))
    partial = units * chunks * rows * size
    return Lowering((first, second) if keys != 0 else (second,), (partial * values, partial, partial))


# ---- gradients ----


def lower_gradient(op: AttentionGradient, operands: Sequence[Layout], *results: Layout) -> Lowering:
    """Pointers: q, k, v, the mask (if there is one), peak, total, delta, the cotangent, then dq, dk, dv."""
    q, k, v, *masks = operands[: 3 + op.has_mask]
    *lead, heads, queries, features = q.shape
    groups, keys, values = k.shape[-3], k.shape[-2], v.shape[-1]
    members, kind, shared = math.prod(lead), elements_of(q.dtype), heads // groups
    units = members * groups
    if units == 0:
        return Lowering(())
    given = [q, k, v, masks[0] if masks else None, *operands[3 + op.has_mask :]]
    steps = [[0] * (len(lead) + 3) if x is None else _strides(x) for x in given]
    names = ("q", "k", "v", "mask", "peak", "total", "delta", "ct")
    numbers = iter(range(len(operands)))
    words: dict[str, Word] = {
        name: Pointer(0 if x is None else next(numbers)) for name, x in zip(names, given, strict=True)
    }
    after = ("head", "row", "feature"), ("head", "row", "feature"), ("head", "row", "feature")
    for name, strides, axes in zip(
        names, steps, (*after, ("head", "row", "key"), *[("head", "row")] * 3, ("head", "row", "value")), strict=True
    ):
        words |= {f"{name}_{axis}": stride for axis, stride in zip(axes, strides[len(lead) :], strict=True)}
    count = len(operands)
    words |= {
        "dq": Pointer(count), "dk": Pointer(count + 1), "dv": Pointer(count + 2),
        "sums": Pointer(count),
        "scale": _bits(op.scale * LOG2_E), "factor": _bits(op.scale), "groups": groups, "shared": shared, "fold": 1,
        "queries": queries, "keys": keys, "features": features, "values": values,
    }  # fmt: skip
    loose = (q.strides[-1] != 1, k.strides[-1] != 1 or v.strides[-1] != 1, bool(masks) and masks[0].strides[-1] != 1)
    table = [(extent, *(s[i] for s in steps)) for i, extent in enumerate(lead) if extent != 1][::-1]
    work = members * heads * queries * keys * (features + values)
    shape = _shape(q.dtype)
    span = 2 if features + values <= _WIDE else 1
    spans = -(-keys // (span * KEYS))

    def launch(half: Half, tasks: int, pieces: int, per: int, share: int) -> Launch:
        loose_ct = operands[-1].strides[-1] != 1
        kernel = Gradient(kind, shape, op.mask, loose, shape.fills(queries), loose_ct, half, queries <= _FEW)
        areas, scratch = kernel.areas(features, values, span)
        named = {**words, **areas, "tasks": tasks, "pieces": pieces, "per": per, "span": span}
        source = Source(f"attention:{kernel.name}", kernel.name, kernel.ir)
        return Launch(source, block(gradient.WORDS, named, table), grain_of(share * work, tasks), scratch)

    threads = get_threads()
    if threads == 1 or units >= 3 * threads or units % threads == 0:
        if not kind.narrow:
            return Lowering((launch("all", units, 1, spans, 3),))
        words["sums"] = Pointer(count + 3)
        sums = members * heads * queries * features * kind.work.size
        return Lowering((launch("all", units, 1, spans, 3),), (sums,))
    both = (
        launch("queries", units * shared * -(-queries // QUERIES), 1, 1, 2),
        launch("keys", units * spans, spans, 1, 2),
    )
    return Lowering(tuple(one for one in both if one.words[0] != 0))
