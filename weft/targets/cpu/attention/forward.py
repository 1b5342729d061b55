"""The kernel of attention: a block of queries against all keys, block after block, without ever storing their scores.

A task has some blocks of queries, which are the lanes of its vectors. It keeps for each query the largest score so far
("peak"), the sum of the powers of 2 of scores minus the peak ("total"), and the sum of values weighted by these powers.
Scores are in units of a bit: they have been multiplied by the scale and log2(e). For one query,

    s(j)  = fma over the features of k(j), upwards, from +0; the query has been scaled (one rounding)
    p(j)  = 2 ** (s(j) - peak), where the peak is the largest score of this block of keys and those before it
    total = fma(total, a, sum of p(j) over the block, upwards), a = 2 ** (peak before - peak)
    o     = fma(o, a, fma of p(j) v(j) over the block, upwards, from +0)

over blocks of `KEYS` keys, and o * (1 / total) at the end. Which queries share a block changes none of it, nor does the
vector length. Blocks of keys and values that have gaps, or are narrow, are copied.
"""

from __future__ import annotations

from typing import Final

from weft.codegen.transposes import transposed
from weft.llvm.builder import Value
from weft.records import dataclass
from weft.targets.cpu.attention.pairs import Block, Pairs
from weft.targets.cpu.attention.tiles import KEYS, QUERIES, AttentionShape, in_bits, power
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part

WORDS: Final = (
    "tasks", "*q", "*k", "*v", "*mask", "*sinks", "*out", "*peak", "*total", "scale",
    "groups", "parts", "fold", "queries", "keys", "features", "values", "spans", "span",
    "q_head", "q_row", "q_feature", "k_head", "k_row", "k_feature", "v_head", "v_row", "v_feature",
    "mask_head", "mask_row", "mask_key", "sinks_head", "at_v", "at_blocks", "block_o", "block_size",
)  # fmt: skip
"""`parts` of the heads that share keys are tasks of their own, `fold` heads in each; a task has `span` blocks of
queries; strides are in bytes."""


@dataclass(frozen=True, slots=True)
class Attended(Block):
    """A block of queries, and where in scratch memory they and what is known of them are."""

    peak: Value
    total: Value
    q: Value
    o: Value


class Forward(Pairs):
    """Writes the kernel; `sinks` says whether there are any."""

    title = "attention"
    words = WORDS
    operands = 5  # q, k, v, mask, sinks

    def __init__(
        self, kind: Elements, shape: AttentionShape, mask: str, sinks: bool, loose: tuple[bool, bool, bool], whole: bool
    ) -> None:
        super().__init__(kind, shape, mask, loose, whole)
        self.sinks = sinks

    @property
    def name(self) -> str:
        return f"{super().name}{'_sinks' * self.sinks}"

    # ---- scratch memory ----

    def areas(self, features: int, values: int, span: int) -> tuple[dict[str, int], int]:
        """Where things are in scratch memory, in bytes, and the size of it. What belongs to a block of queries is in
        one piece."""
        at_v = self.fixed()["k"] + KEYS * features * self.size
        at_blocks = at_v + KEYS * values * self.size
        block_o = (3 + features + 8) * self.row
        block_size = block_o + (values + 16) * self.row
        words = {"at_v": at_v, "at_blocks": at_blocks, "block_o": block_o, "block_size": block_size}
        return words, at_blocks + span * block_size

    def fixed(self) -> dict[str, int]:
        mask = (2 + KEYS) * self.row
        return {"next": 0, "factor": self.row, "scores": 2 * self.row, "mask": mask, "k": mask + self.mask_size}

    def _block(self, number: Value, place: Value) -> Attended:
        """A block of queries, which is the one at this place of a task."""
        f, b = self.frame, self.b
        start = number * QUERIES
        count = f.least(f["fold"] * f["queries"] - start, QUERIES)
        at = b.gep(f.scratch, f["at_blocks"] + place * f["block_size"])
        peak, total, limit, q = (b.gep(at, i * f.row) for i in range(4))
        return Attended(start, count, self.vectors_of(count), limit, peak, total, q, b.gep(at, f["block_o"]))

    # ---- tasks ----

    def task(self, task: Value) -> None:
        f, b = self.frame, self.b
        self.at["v"] = b.gep(f.scratch, f["at_v"])
        rest, number = f.divide(task, f["spans"])
        rest, part = f.divide(rest, f["parts"])
        member, group = f.divide(rest, f["groups"])
        *offsets, sinks = f.offsets(member)
        head = (group * f["parts"] + part) * f["fold"]
        self.place(group, head, *offsets)
        self.sinks_at = b.gep(f["sinks"], sinks + head * f["sinks_head"])
        rows = f["fold"] * f["queries"]
        blocks, _ = f.divide(rows + (QUERIES - 1), QUERIES)
        first = (f["spans"] - 1 - number) * f["span"]  # the last see most, where they do not see all
        span = f.least(blocks - first, f["span"])
        with b.loop(0, span, 1, b.i64(0)) as loop:
            block = self._block(first + loop.index, loop.index)
            self._begin(block)
            loop.carry(b.intrinsic("smax", loop.carried[0], self.end_of(block.start, block.count)))
        end = loop.carried[0]
        with b.loop(0, end, KEYS) as keys:
            self._keys(first, span, keys.index, f.least(end - keys.index, KEYS))
        place = ((member * f["groups"] + group) * f["parts"] + part) * rows
        with b.loop(0, span, 1) as loop:
            block = self._block(first + loop.index, loop.index)
            self._finish(block, place + block.start)

    def _begin(self, block: Attended) -> None:
        f, b = self.frame, self.b
        self.turn_queries(block, block.q)
        total = b.const(f.work, 1.0 if self.sinks else 0.0, 1)
        with self.lanes(block, 1) as (lane, ((head, query),)):
            first = b.const(f.work, -float("inf"), 1)
            if self.sinks:
                sink = el.load(b, self.kind, b.gep(self.sinks_at, head * f["sinks_head"]), 1)
                assert isinstance(sink, Value)
                first = in_bits(b, sink)
            b.store(first, b.gep(block.peak, lane * f.size))
            b.store(total, b.gep(block.total, lane * f.size))
            self.put_limit(block, lane, query)
        with b.when(f["keys"].eq(0)), b.loop(0, f["values"] * f.row, f.row) as row, b.loop(0, f.row, f.size) as lane_at:
            b.store(b.const(f.work, 0, 1), b.gep(block.o, row.index + lane_at.index))

    def _finish(self, block: Attended, first: Value) -> None:
        """`first` is the number of the first query among all."""
        f, b, memory = self.frame, self.b, self.kind.memory.size
        out = b.gep(f["out"], first * f["values"] * memory)
        with b.loop(0, block.count, f.turn) as lane:
            place = lane.index * f.size
            inverse = 1.0 / f.get(b.gep(block.total, place), f.turn)
            inverse = b.choose(f["keys"] > 0, inverse, 0.0)
            source = b.gep(block.o, place)
            rows = [b.gep(out, (lane.index + i) * f["values"] * memory) for i in range(f.turn)]
            here = [lane.index + i < block.count for i in range(f.turn)]

            def one(
                column: Value, part: Part | None, source: Value = source, inverse: Value = inverse,
                rows: list[Value] = rows, here: list[Value] = here,
            ) -> None:  # fmt: skip
                columns = [f.get(b.gep(source, (column + c) * f.row), f.turn) * inverse for c in range(f.turn)]
                for row, x, wanted in zip(rows, transposed(b, columns), here, strict=True):
                    with b.when(wanted):
                        f.store(self.kind, x, b.gep(row, column * memory), part)

            f.sweep(f["values"], f.turn, one)
        for at, name in ((block.peak, "peak"), (block.total, "total")):
            target = b.gep(f[name], first * f.size)

            def copy(i: Value, part: Part | None, at: Value = at, target: Value = target) -> None:
                f.store(f.wide, f.get(b.gep(at, i * f.size)), b.gep(target, i * f.size), part)

            f.sweep(block.count, self.shape.lanes, copy)

    # ---- a block of keys ----

    def _keys(self, number: Value, span: Value, first: Value, count: Value) -> None:
        f, b = self.frame, self.b
        k = self._packed(b.gep(self.k, first * f["k_row"]), "k", count, f["features"], span)
        v = self._packed(b.gep(self.v, first * f["v_row"]), "v", count, f["values"], span)
        with b.loop(0, span, 1) as loop:
            block = self._block(number + loop.index, loop.index)
            left = f.least(self.end_of(block.start, block.count) - first, count)
            with b.when(left > 0):
                self.turn_mask(block, first, left)
                self.panels(block, lambda at, n: self._scores(block, at, n, first, left, *k))
                self.panels(block, lambda at, n: self._weights(block, at, n, left))
                self.panels(block, lambda at, n: self._add(block, at, n, first, left, *v))

    def _packed(self, source: Value, name: str, count: Value, width: Value, uses: Value) -> tuple[Value, Value]:
        """A block of keys or values, and the bytes from row to row: where it lies, or copied without gaps, if that is
        worth it. Rows that are far apart come one from each page, and share few places in the caches."""
        f, b = self.frame, self.b
        row, step = f[f"{name}_row"], f[f"{name}_feature"]
        if self.kind.narrow or self.loose[1]:
            f.widened(source, row, step if self.loose[1] else None, count, width, self.at[name])
            return self.at[name], width * f.size
        there = row.eq(width * f.size) | uses.eq(1)
        with b.when(~there):
            f.widened(source, row, None, count, width, self.at[name])
        return b.choose(there, source, self.at[name]), b.choose(there, row, width * f.size)

    def _scores(
        self, block: Attended, vector: Value, vectors: int, first: Value, count: Value, k: Value, k_row: Value
    ) -> None:
        """Scores of a block of keys for some vectors of queries, and the largest of them so far."""
        f, b, at = self.frame, self.b, self.at
        height = self.shape.rows(vectors)
        peak, following, scores = (f.lanes_at(x, vector) for x in (block.peak, at["next"], at["scores"]))
        for v in range(vectors):
            b.store(f.get(f.across(peak, v)), f.across(following, v))
        with b.loop(0, count, height) as tile:
            keys = [f.least(tile.index + r, count - 1) for r in range(height)]  # past the last, it is repeated
            offsets = [key * k_row for key in keys]
            sums = f.sums(offsets, k, f.size, f.lanes_at(block.q, vector), f.row, f["features"], vectors)
            for v in range(vectors):
                most = f.get(f.across(following, v))
                for r, key in enumerate(keys):
                    s = self.masked(block, sums[r][v], first, key, vector + v)
                    b.store(s, f.across(b.gep(scores, (tile.index + r) * f.row), v))
                    most = b.choose(s > most, s, most)
                b.store(most, f.across(following, v))

    def _weights(self, block: Attended, vector: Value, vectors: int, count: Value) -> None:
        """Scores become powers of 2 of what they are below the peak; totals and factors follow."""
        f, b, at = self.frame, self.b, self.at
        places = (block.peak, at["next"], block.total, at["factor"], at["scores"])
        peak, following, total, factor, scores = (f.lanes_at(x, vector) for x in places)
        peaks = []
        for v in range(vectors):
            most = f.get(f.across(following, v))
            least = b.choose(most.eq(-float("inf")), 0.0, most)  # no score was above it yet
            b.store(power(b, f.get(f.across(peak, v)) - least), f.across(factor, v))
            b.store(most, f.across(peak, v))
            peaks.append(least)
        nothing = b.const(f.work, 0, self.shape.lanes)
        with b.loop(0, count, 1, scores, *[nothing] * vectors) as loop:
            row, *sums = loop.carried
            for v in range(vectors):
                place = f.across(row, v)
                p = power(b, f.get(place) - peaks[v])
                b.store(p, place)
                sums[v] = sums[v] + p
            loop.carry(b.gep(row, f.row), *sums)
        for v, more in enumerate(loop.carried[1:]):
            place = f.across(total, v)
            b.store(b.fma(f.get(place), f.get(f.across(factor, v)), more), place)

    def _add(
        self, block: Attended, vector: Value, vectors: int, first: Value, count: Value, values: Value, row: Value
    ) -> None:
        """Values, weighted, join the sums over the blocks before."""
        f, b = self.frame, self.b
        height = self.shape.rows(vectors)
        factor, scores, o = (f.lanes_at(x, vector) for x in (self.at["factor"], self.at["scores"], block.o))
        with b.loop(0, f["values"], height) as tile:
            offsets = [f.least(tile.index + r, f["values"] - 1) * f.size for r in range(height)]
            sums = f.sums(offsets, values, row, scores, f.row, count, vectors)
            factors = [f.get(f.across(factor, v)) for v in range(vectors)]
            for r in range(height):
                at = b.gep(o, (tile.index + r) * f.row)  # rows past the last are not read
                for v in range(vectors):
                    place, new = f.across(at, v), sums[r][v]
                    b.store(b.choose(first.eq(0), new, b.fma(f.get(place), factors[v], new)), place)
