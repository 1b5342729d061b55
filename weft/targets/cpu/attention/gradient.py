"""The kernel of attention's gradient: blocks of queries against blocks of keys, their scores computed again.

For queries that are lanes, and with what the forward kernel left of each (peak, total) and the mean of the cotangents
of its weights (delta),

    p  = 2 ** (score - peak) * (1 / total)         score as in the forward kernels, to the bit
    ds = p * (ct · v - delta)                      0 where the score is masked
    dv = sum over queries of p ct,   dk = scale * sum over queries of ds q,   dq = scale * sum over keys of ds k

Sums over the pairs of a block of queries and a block of keys are chains of fused multiply-adds, upwards, from +0. Those
of blocks are added up from the left: over blocks of keys, or over blocks of queries, head by head.

A task either has some keys, against which it takes all queries ("keys"), or a block of queries, against which it takes
all keys ("queries"), or all of both: then dq is summed up in memory while tasks go through the keys, and scores are
computed once, not twice ("all"). The order of no sum depends on which.
"""

from __future__ import annotations

from typing import Final, Literal

from weft import dtypes as dt
from weft.llvm.builder import Value
from weft.records import dataclass
from weft.targets.cpu.attention.pairs import Block, Pairs
from weft.targets.cpu.attention.tiles import KEYS, QUERIES, AttentionShape, power
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part

Half = Literal["all", "keys", "queries"]

WORDS: Final = (
    "tasks", "*q", "*k", "*v", "*mask", "*peak", "*total", "*delta", "*ct", "*dq", "*dk", "*dv", "*sums",
    "scale", "factor", "groups", "shared", "fold", "queries", "keys", "features", "values", "pieces", "per", "span",
    "q_head", "q_row", "q_feature", "k_head", "k_row", "k_feature", "v_head", "v_row", "v_feature",
    "mask_head", "mask_row", "mask_key", "peak_head", "peak_row", "total_head", "total_row",
    "delta_head", "delta_row", "ct_head", "ct_row", "ct_value",
    "wide_k", "wide_v", "at_ct", "at_q_rows", "at_ct_rows", "at_row", "at_sums", "at_keys", "key_v", "key_dk", "key_dv",
    "key_size",
)  # fmt: skip
"""`pieces` tasks share a group, each with `per` spans of `span` blocks of keys; strides are in bytes."""


@dataclass(frozen=True, slots=True)
class _Keys:
    """A block of keys, and where in scratch memory it, its values and their cotangents are."""

    first: Value
    count: Value
    k: Value
    v: Value
    dk: Value
    dv: Value


class Gradient(Pairs):
    """Writes the kernel for one `half`, or for all. `few`: scores are in the order of few.py, as they were before."""

    words = WORDS
    operands = 8  # q, k, v, mask, peak, total, delta, ct

    def __init__(
        self, kind: Elements, shape: AttentionShape, mask: str, loose: tuple[bool, bool, bool], whole: bool,
        loose_ct: bool, half: Half, few: bool,
    ) -> None:  # fmt: skip
        super().__init__(kind, shape, mask, loose, whole)
        self.half, self.loose_ct, self.few = half, loose_ct, few

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"attention_gradient_{self.half}{'_loose' * self.loose_ct}{'_few' * self.few}"

    # ---- scratch memory ----

    def fixed(self) -> dict[str, int]:
        p = 4 * self.row
        mask = p + 2 * KEYS * self.row
        names = {name: i * self.row for i, name in enumerate(("peak", "inverse", "delta", "limit"))}
        return {**names, "p": p, "ds": p + KEYS * self.row, "mask": mask, "q": mask + self.mask_size}

    def areas(self, features: int, values: int, span: int) -> tuple[dict[str, int], int]:
        """Where things are in scratch memory, in bytes, and the size of it. Rows of features are whole vectors; what
        belongs to no row goes to one of its own."""
        lanes = self.shape.lanes
        wide_k, wide_v = (-(-n // lanes) * lanes * self.size for n in (features, values))
        at_ct = self.fixed()["q"] + (features + 8) * self.row
        at_q_rows = at_ct + (values + 8) * self.row
        at_ct_rows = at_q_rows + QUERIES * wide_k
        at_row = at_ct_rows + QUERIES * wide_v
        at_sums = at_row + max(wide_k, wide_v)
        at_keys = at_sums + (QUERIES * wide_k if self.half == "queries" else 0)
        key_v = KEYS * wide_k
        key_dk = key_v + KEYS * wide_v
        key_dv = key_dk + KEYS * wide_k
        key_size = key_dv + KEYS * wide_v
        words = {
            "wide_k": wide_k, "wide_v": wide_v, "at_ct": at_ct, "at_q_rows": at_q_rows, "at_ct_rows": at_ct_rows,
            "at_row": at_row, "at_sums": at_sums, "at_keys": at_keys, "key_v": key_v, "key_dk": key_dk,
            "key_dv": key_dv, "key_size": key_size,
        }  # fmt: skip
        return words, at_keys + span * key_size

    def _keys_at(self, number: Value, place: Value) -> _Keys:
        """Block `number` of keys, which is the one at this place of a span."""
        f, b = self.frame, self.b
        first = number * KEYS
        at = b.gep(f.scratch, f["at_keys"] + place * f["key_size"])
        count = f.least(f["keys"] - first, KEYS)
        return _Keys(first, count, at, *(b.gep(at, f[name]) for name in ("key_v", "key_dk", "key_dv")))

    def _queries_at(self, number: Value) -> Block:
        f = self.frame
        start = number * QUERIES
        count = f.least(f["queries"] - start, QUERIES)
        return Block(start, count, self.vectors_of(count), self.at["limit"])

    # ---- tasks ----

    def task(self, task: Value) -> None:
        f, b = self.frame, self.b
        for name in ("ct", "q_rows", "ct_rows", "row", "sums"):
            self.at[name] = b.gep(f.scratch, f[f"at_{name}"])
        self.blocks, _ = f.divide(f["queries"] + (QUERIES - 1), QUERIES)
        if self.half == "queries":
            rest, number = f.divide(task, self.blocks)
            rest, head = f.divide(rest, f["shared"])
            self.member, self.group = f.divide(rest, f["groups"])
            self.offsets = f.offsets(self.member)
            self._one_block(head, self.blocks - 1 - number)
            return
        rest, piece = f.divide(task, f["pieces"])
        self.member, self.group = f.divide(rest, f["groups"])
        self.offsets = f.offsets(self.member)
        spans, _ = f.divide(f["keys"] + (f["span"] * KEYS - 1), f["span"] * KEYS)
        first = self._first_row(b.i64(0))
        if self.half == "all":
            self._clear(b.gep(f["sums"], first * f["features"] * f.size), f["shared"] * f["queries"])
        with b.loop(piece * f["per"], f.least((piece + 1) * f["per"], spans), 1) as span:
            self._span(span.index * f["span"])
        if self.half == "all":
            rows = f["shared"] * f["queries"]
            self._put_rows(f["sums"], f["features"] * f.size, f["dq"], first, rows, f["features"], f["factor"], first)

    def _first_row(self, head: Value) -> Value:
        """The number of the first query of a head of the group among all."""
        f = self.frame
        return ((self.member * f["groups"] + self.group) * f["shared"] + head) * f["queries"]

    def _begin(self, head: Value) -> None:
        """Operands of one of the heads that share a group."""
        f, b = self.frame, self.b
        q, k, v, mask, peak, total, delta, ct = self.offsets
        number = self.group * f["shared"] + head
        self.place(self.group, number, q, k, v, mask)
        self.left = {
            name: b.gep(f[name], offset + number * f[f"{name}_head"])
            for name, offset in (("peak", peak), ("total", total), ("delta", delta), ("ct", ct))
        }

    def _span(self, number: Value) -> None:
        """Some blocks of keys against all queries of all heads that share them."""
        f, b = self.frame, self.b
        blocks, _ = f.divide(f["keys"] + (KEYS - 1), KEYS)
        count = f.least(blocks - number, f["span"])
        self._begin(b.i64(0))
        with b.loop(0, count, 1) as place:
            keys = self._keys_at(number + place.index, place.index)
            self._pack_keys(keys)
            self._clear_keys(keys)
        with b.loop(0, f["shared"], 1) as head, b.loop(0, self.blocks, 1) as loop:
            self._begin(head.index)
            block = self._queries_at(loop.index)
            end = self.end_of(block.start, block.count)
            with b.when(end > number * KEYS):
                self._pack_queries(block)
                with b.loop(0, count, 1) as place:
                    keys = self._keys_at(number + place.index, place.index)
                    left = f.least(end - keys.first, keys.count)
                    with b.when(left > 0):
                        self._pair(block, keys, left)
                        self._add_to_keys(block, keys, left)
                        if self.half == "all":
                            row = (self._first_row(head.index) + block.start) * f["features"]
                            self._add_to_queries(block, keys, left, b.gep(f["sums"], row * f.size))
        with b.loop(0, count, 1) as place:
            keys = self._keys_at(number + place.index, place.index)
            first = (self.member * f["groups"] + self.group) * f["keys"] + keys.first
            zero = b.i64(0)
            self._put_rows(keys.dk, f["wide_k"], f["dk"], first, keys.count, f["features"], f["factor"], zero)
            self._put_rows(keys.dv, f["wide_v"], f["dv"], first, keys.count, f["values"], None, zero)

    def _one_block(self, head: Value, number: Value) -> None:
        """A block of queries against all keys that it sees."""
        f, b = self.frame, self.b
        self._begin(head)
        block = self._queries_at(number)
        self._pack_queries(block)
        sums = self.at["sums"]
        self._clear(sums, block.count)
        end = self.end_of(block.start, block.count)
        with b.loop(0, end, KEYS) as loop:
            keys = self._keys_at(f.divide(loop.index, KEYS)[0], b.i64(0))
            self._pack_keys(keys)
            left = f.least(end - keys.first, keys.count)
            self._pair(block, keys, left)
            self._add_to_queries(block, keys, left, sums)
        first, zero = self._first_row(head) + block.start, b.i64(0)
        self._put_rows(sums, f["features"] * f.size, f["dq"], first, block.count, f["features"], f["factor"], zero)

    # ---- packing ----

    def _pack_queries(self, block: Block) -> None:
        """Queries and cotangents as lanes and as rows, and what the forward kernel left."""
        f, b, at = self.frame, self.b, self.at
        self.turn_queries(block, at["q"])
        ct = self.left["ct"]
        step = f["ct_value"] if self.loose_ct else None
        with self.lanes(block, f.turn) as (lane, rows):
            starts = [b.gep(ct, query * f["ct_row"]) for _, query in rows]
            f.columns_of(starts, step, f["values"], b.gep(at["ct"], lane * f.size), lambda x: x)
        q = b.gep(self.q, block.start * f["q_row"])
        self._rows(q, f["q_row"], f["q_feature"] if self.loose[0] else None, block.count, "features", at["q_rows"])
        ct = b.gep(ct, block.start * f["ct_row"])
        self._rows(ct, f["ct_row"], step, block.count, "values", at["ct_rows"])
        with self.lanes(block, 1) as (lane, ((_, query),)):
            self.put_limit(block, lane, query)
            for name in ("peak", "total", "delta"):
                x = f.get(b.gep(self.left[name], query * f[f"{name}_row"]), 1)
                if name == "total":
                    x = 1.0 / x
                b.store(x, b.gep(at["inverse" if name == "total" else name], lane * f.size))

    def _pack_keys(self, keys: _Keys) -> None:
        f, b = self.frame, self.b
        for base, name, width, to in ((self.k, "k", "features", keys.k), (self.v, "v", "values", keys.v)):
            row, step = f[f"{name}_row"], f[f"{name}_feature"] if self.loose[1] else None
            source = b.gep(base, keys.first * row)
            self._rows(source, row, step, keys.count, width, to)

    def _rows(self, source: Value, row: Value, step: Value | None, count: Value, width: str, to: Value) -> None:
        """Rows as whole vectors of `work`, zeros behind their ends."""
        f, b, lanes = self.frame, self.b, self.shape.lanes
        wide = f["wide_k" if width == "features" else "wide_v"]
        with b.loop(0, count, 1) as r:
            start, target = b.gep(source, r.index * row), b.gep(to, r.index * wide)

            def one(column: Value, part: Part | None) -> None:
                offset = column * (self.kind.memory.size if step is None else step)
                x = f.load(self.kind, b.gep(start, offset), lanes, part, step)
                f.store(f.wide, x, b.gep(target, column * f.size))

            f.sweep(f[width], lanes, one)

    def _clear(self, at: Value, rows: Value) -> None:
        """Rows of features without gaps."""
        f, b, lanes = self.frame, self.b, self.shape.lanes
        nothing = b.const(f.work, 0, lanes)
        f.sweep(rows * f["features"], lanes, lambda i, part: f.store(f.wide, nothing, b.gep(at, i * f.size), part))

    def _clear_keys(self, keys: _Keys) -> None:
        f, b, lanes = self.frame, self.b, self.shape.lanes
        nothing = b.const(f.work, 0, lanes)
        with b.loop(0, (f["wide_k"] + f["wide_v"]) * KEYS, lanes * f.size) as at:
            b.store(nothing, b.gep(keys.dk, at.index))

    def _put_rows(
        self, source: Value, step: Value, out: Value, first: Value, rows: Value, width: Value, factor: Value | None,
        skipped: Value,
    ) -> None:  # fmt: skip
        """Sums to a result, whose rows have no gaps, from row `first` on; the sums begin `skipped` rows after their
        address."""
        f, b, lanes = self.frame, self.b, self.shape.lanes
        scale = None if factor is None else b.cast(b.bitcast(factor, dt.float64), f.work)
        with b.loop(0, rows, 1) as row:
            at = b.gep(source, (skipped + row.index) * step)
            target = b.gep(out, (first + row.index) * width * self.kind.memory.size)

            def one(column: Value, part: Part | None) -> None:
                x = f.load(f.wide, b.gep(at, column * f.size), lanes, part)
                assert isinstance(x, Value)
                x = x if scale is None else x * scale
                f.store(self.kind, x, b.gep(target, column * self.kind.memory.size), part)

            f.sweep(width, lanes, one)

    # ---- pairs ----

    def _pair(self, block: Block, keys: _Keys, count: Value) -> None:
        """p and ds of a block of queries and a block of keys."""
        self.turn_mask(block, keys.first, count)
        self.panels(block, lambda at, n: self._weights(block, keys, count, at, n))
        self.panels(block, lambda at, n: self._changes(block, keys, count, at, n))

    def _weights(self, block: Block, keys: _Keys, count: Value, vector: Value, vectors: int) -> None:
        f, b, at = self.frame, self.b, self.at
        height = 1 if self.few else self.shape.rows(vectors)
        peaks, inverses = ([f.get(f.across(f.lanes_at(at[x], vector), v)) for v in range(vectors)]
                           for x in ("peak", "inverse"))  # fmt: skip
        p, q = f.lanes_at(at["p"], vector), f.lanes_at(at["q"], vector)
        with b.loop(0, count, height) as tile:
            numbers = [f.least(tile.index + r, count - 1) for r in range(height)]
            offsets = [number * f["wide_k"] for number in numbers]
            if self.few:
                sums = [f.interleaved_sums(b.gep(keys.k, offsets[0]), q, f.row, f["features"], vectors)]
            else:
                sums = f.sums(offsets, keys.k, f.size, q, f.row, f["features"], vectors)
            for r, key in enumerate(numbers):
                for v in range(vectors):
                    s = self.masked(block, sums[r][v], keys.first, key, vector + v)
                    x = power(b, s - peaks[v], limited=False) * inverses[v]
                    b.store(x, f.across(b.gep(p, (tile.index + r) * f.row), v))

    def _changes(self, block: Block, keys: _Keys, count: Value, vector: Value, vectors: int) -> None:
        f, b, at = self.frame, self.b, self.at
        height = self.shape.rows(vectors)
        deltas = [f.get(f.across(f.lanes_at(at["delta"], vector), v)) for v in range(vectors)]
        p, ds, ct = (f.lanes_at(at[name], vector) for name in ("p", "ds", "ct"))
        with b.loop(0, count, height) as tile:
            numbers = [f.least(tile.index + r, count - 1) for r in range(height)]
            sums = f.sums([n * f["wide_v"] for n in numbers], keys.v, f.size, ct, f.row, f["values"], vectors)
            for r, key in enumerate(numbers):
                below = (tile.index + r) * f.row
                for v in range(vectors):
                    x = f.get(f.across(b.gep(p, below), v)) * (sums[r][v] - deltas[v])
                    seen = self.visible(block, keys.first, key, vector + v)
                    x = x if seen is None else b.choose(seen, x, 0.0)
                    b.store(x, f.across(b.gep(ds, below), v))

    def _add_to_keys(self, block: Block, keys: _Keys, count: Value) -> None:
        """dv and dk: lanes are features, and sums go over queries."""
        f, b = self.frame, self.b
        bits = (self.shape.lanes * f.size).bit_length() - 1
        with b.loop(0, 2, 1) as result:  # written once for both: most of a kernel's code is products
            first = result.index.eq(0)
            left, right = (
                b.choose(first, self.at["p"], self.at["ds"]),
                b.choose(first, self.at["ct_rows"], self.at["q_rows"]),
            )
            wide, out = b.choose(first, f["wide_v"], f["wide_k"]), b.choose(first, keys.dv, keys.dk)

            def one(vector: Value, vectors: int) -> None:
                height = self.shape.rows(vectors)
                with b.loop(0, count, height) as tile:
                    rows = [f.least(tile.index + r, count - 1) * f.row for r in range(height)]
                    sums = f.sums(rows, left, f.size, f.lanes_at(right, vector), wide, block.count, vectors)
                    for r in range(height):
                        here = tile.index + r < count
                        at = b.choose(here, b.gep(out, (tile.index + r) * wide), self.at["row"])
                        at = f.lanes_at(at, vector)
                        for v in range(vectors):
                            place = f.across(at, v)
                            b.store(f.get(place) + sums[r][v], place)

            f.panels(wide >> bits, one)

    def _add_to_queries(self, block: Block, keys: _Keys, count: Value, out: Value) -> None:
        """dq, whose rows of features lie at `out` without gaps: lanes are features, and sums go over keys."""
        f, b, lanes = self.frame, self.b, self.shape.lanes
        whole, rest = f.divide(f["features"], lanes)
        row = f["features"] * f.size

        def panel(vector: Value, vectors: int, part: Part | None) -> None:
            height = self.shape.rows(vectors)
            with b.loop(0, block.count, height) as tile:
                offsets = [f.least(tile.index + r, block.count - 1) * f.size for r in range(height)]
                ds, k = self.at["ds"], f.lanes_at(keys.k, vector)
                sums = f.sums(offsets, ds, f.row, k, f["wide_k"], count, vectors)
                for r in range(height):
                    here = tile.index + r < block.count
                    at = b.choose(here, b.gep(out, (tile.index + r) * row), self.at["row"])
                    for v in range(vectors):
                        place = f.across(f.lanes_at(at, vector), v)
                        before = f.load(f.wide, place, lanes, part)
                        f.store(f.wide, el.add(before, sums[r][v]), place, part)

        f.panels(whole, lambda vector, vectors: panel(vector, vectors, None))
        with b.when(rest > 0):
            panel(whole, 1, f.leading(rest, lanes))
