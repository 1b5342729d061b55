"""The kernels of attention for a few queries against many keys, as when tokens are generated one by one: lanes are
features, and chunks of keys are tasks of their own.

`FewQueries` computes, for the queries of one group of heads and one chunk of `CHUNK` keys, scores in units of bits,

    s(j)  = 16 interleaved sums over features, fused multiply-adds upwards, added by a tree; the query has been scaled
    peak  = the largest s(j),   p(j) = 2 ** (s(j) - peak)
    total = 16 interleaved sums of p(j), added by the same tree
    o     = fma of p(j) v(j) over the chunk, upwards, from +0

and `Combine` puts chunks together: the peak of all, and from the left fma(o, 2 ** (peak of the chunk - peak), …) and
the same for totals; a sink is what totals begin with. Keys and values are read once, in the order in which they lie.

Of a chunk of which truths let every query see something, what lies behind the last key that one sees is left out: the
room at the end of a cache. Its weights would be 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weft import dtypes as dt
from weft.llvm.builder import Value
from weft.records import dataclass
from weft.targets.cpu.attention.tiles import AttentionShape, TileFrame, in_bits, lowest, power
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part

LANES: Final = 16
CHUNK: Final = 512
"""Interleaved sums, and keys of one partial result. Part of the specified order: other numbers give other bits."""
_AHEAD: Final = 4  # rows of keys or values that are asked for early: they may lie on a page each

WORDS: Final = (
    "tasks", "*q", "*k", "*v", "*mask", "*o", "*peak", "*total", "scale",
    "groups", "parts", "fold", "queries", "keys", "features", "values", "chunks",
    "q_head", "q_row", "q_feature", "k_head", "k_row", "k_feature", "v_head", "v_row", "v_feature",
    "mask_head", "mask_row", "mask_key", "wide", "at_scores",
)  # fmt: skip
"""`parts` of the heads that share keys are tasks of their own, `fold` heads in each; strides are in bytes."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One query: where it, its mask and its scores are, and the last key that it sees."""

    q: Value
    mask: Value
    scores: Value
    limit: Value


class FewQueries:
    """Writes the kernel for one kind of elements and `rows` queries (a power of two), of which fewer may be there.
    `sums` is how many vectors of 16 sums there are registers for. `loose` as for `Pairs`."""

    operands = 4  # q, k, v, mask

    def __init__(
        self, kind: Elements, shape: AttentionShape, mask: str, loose: tuple[bool, bool, bool], rows: int, sums: int
    ) -> None:
        self.kind, self.shape, self.mask, self.loose, self.rows = kind, shape, mask, loose, rows
        self.across = max(1, sums // rows)
        # Vectors of values that are summed side by side, the widest first: a single one waits for its own last sum.
        self.widths = sorted({self.across, min(self.across, 4), 1}, reverse=True)

    @property
    def name(self) -> str:
        loose = "".join("nu"[not x] for x in self.loose)
        return f"attention_few_{self.kind.memory.name}_{self.mask}_{loose}_{self.rows}x{self.across}"

    def areas(self, features: int) -> tuple[dict[str, int], int]:
        """Where things are in scratch memory, in bytes, and the size of it."""
        size = self.kind.work.size
        wide = -(-features // LANES) * LANES * size
        at_scores = self.rows * wide
        return {"wide": wide, "at_scores": at_scores}, at_scores + self.rows * (CHUNK + LANES) * size

    def ir(self) -> str:
        self.frame = f = TileFrame(self.name, WORDS, self.operands, self.kind, self.shape)
        self.b = f.b
        with f.b.loop(f.begin, f.end, 1) as task:
            self._task(task.index)
        return f.module()

    def _task(self, task: Value) -> None:
        f, b = self.frame, self.b
        rest, part = f.divide(task, f["parts"])
        rest, chunk = f.divide(rest, f["chunks"])
        member, group = f.divide(rest, f["groups"])
        q, k, v, mask = f.offsets(member)
        first = chunk * CHUNK
        count = f.least(f["keys"] - first, CHUNK)
        head = (group * f["parts"] + part) * f["fold"]
        rows = [self._row(r, head, first, q, mask) for r in range(self.rows)]
        if self.mask == "truths":
            count = self._seen(rows, count)
        keys = b.gep(f["k"], k + group * f["k_head"] + first * f["k_row"])
        values = b.gep(f["v"], v + group * f["v_head"] + first * f["v_row"])
        with b.loop(0, count, self.across) as group_of_keys:
            self._scores(rows, keys, group_of_keys.index, count)
        unit = ((member * f["groups"] + group) * f["parts"] + part) * f["chunks"] + chunk
        present = f["fold"] * f["queries"]
        for r, row in enumerate(rows):
            with b.when(present > r):
                self._weights(row, first, count, unit * present + r)
        out = b.gep(f["o"], unit * present * f["values"] * f.size)
        done = b.i64(0)
        for vectors in self.widths:
            columns = vectors * LANES
            whole, _ = f.divide(f["values"] - done, columns)
            with b.loop(0, whole, 1) as panel:
                self._sums(rows, values, count, out, done + panel.index * columns, vectors, None)
            done = done + whole * columns
        rest = f["values"] - done
        with b.when(rest > 0):
            self._sums(rows, values, count, out, done, 1, f.leading(rest, LANES))

    def _row(self, number: int, head: Value, first: Value, q: Value, mask: Value) -> _Row:
        """A query, scaled and copied; those past the last repeat it."""
        f, b = self.frame, self.b
        inside, query = f.divide(f.least(b.i64(number), f["fold"] * f["queries"] - 1), f["queries"])
        head = head + inside
        source = b.gep(f["q"], q + head * f["q_head"] + query * f["q_row"])
        target = b.gep(f.scratch, f["wide"] * number)
        scale = b.cast(b.bitcast(f["scale"], dt.float64), f.work)
        step = f["q_feature"] if self.loose[0] else None

        def one(i: Value, part: Part | None) -> None:
            offset = i * (self.kind.memory.size if step is None else step)
            x = f.load(self.kind, b.gep(source, offset), LANES, part, step)
            assert isinstance(x, Value)
            b.store(x * scale, b.gep(target, i * f.size))

        f.sweep(f["features"], LANES, one)
        masks = b.gep(f["mask"], mask + head * f["mask_head"] + query * f["mask_row"] + first * f["mask_key"])
        scores = b.gep(f.scratch, f["at_scores"] + number * ((CHUNK + LANES) * f.size))
        return _Row(target, masks, scores, query + (f["keys"] - f["queries"]) - first)

    def _seen(self, rows: list[_Row], count: Value) -> Value:
        """How many keys of a chunk there are up to the last that a query sees; all, if one of them sees none."""
        f, b = self.frame, self.b
        last, least = b.i64(0), count
        for row in rows:

            def latest(i: Value, part: Part | None, found: Value, row: _Row = row) -> Value:
                seen = self._truths(row, i, part).ne(0)
                here = b.cast(b.splat(i, LANES), dt.int32) + (b.iota(dt.int32, LANES) + 1)
                return b.choose(seen, here, found)

            found = self._over(count, b.const(dt.int32, 0, LANES), latest)
            mine = b.cast(b.call(f"llvm.vector.reduce.smax.v{LANES}i32", dt.int32, 1, found), dt.int64)
            last, least = b.intrinsic("smax", last, mine), f.least(least, mine)
        return b.choose(least > 0, last, count)

    def _scores(self, rows: list[_Row], keys: Value, key: Value, count: Value) -> None:
        """Those of some keys with all queries. Keys past the last repeat it: there is room behind the scores."""
        f, b, work = self.frame, self.b, self.frame.work
        step = f["k_feature"] if self.loose[1] else None
        starts = [b.gep(keys, f.least(key + i, count - 1) * f["k_row"]) for i in range(self.across)]
        ahead = key + _AHEAD * self.across
        later = [b.gep(keys, f.least(ahead + i, count - 1) * f["k_row"]) for i in range(self.across)]
        sums = [b.const(work, 0, LANES)] * (self.rows * self.across)
        whole = f["features"] & -LANES
        for begin, end, tail in ((b.i64(0), whole, False), (whole, f["features"], True)):
            with b.loop(begin, end, LANES, *sums) as loop:
                part = f.leading(end - loop.index, LANES) if tail else None
                offset = loop.index * (self.kind.memory.size if step is None else step)
                right = [f.load(self.kind, b.gep(at, offset), LANES, part, step) for at in starts]
                if not tail:
                    f.prefetch([b.gep(at, offset) for at in later])
                sums = list(loop.carried)
                for r, row in enumerate(rows):
                    left = f.get(b.gep(row.q, loop.index * f.size), LANES)
                    for i, y in enumerate(right):
                        total = el.multiply_add(b, left, y, sums[r * self.across + i])
                        assert isinstance(total, Value)
                        sums[r * self.across + i] = total
                loop.carry(*sums)
            sums = list(loop.carried)
        for r, row in enumerate(rows):
            mine = sums[r * self.across : (r + 1) * self.across]
            for i in range(0, self.across, 8):  # of so many vectors the sums are one vector
                b.store(el.lane_sums(b, mine[i : i + 8]), b.gep(row.scores, (key + i) * f.size))

    def _weights(self, row: _Row, first: Value, count: Value, number: Value) -> None:
        """Scores of a query become powers of 2; its peak and its total go to place `number`."""
        f, b, work = self.frame, self.b, self.frame.work
        low = b.const(work, -float("inf"), LANES)

        def masked(i: Value, part: Part | None, most: Value) -> Value:
            at = b.gep(row.scores, i * f.size)
            s = self._masked(row, f.get(at, LANES), i, part)
            if self.mask != "none":
                b.store(s, at)
            s = s if part is None else b.choose(part.mask, s, low)
            return b.choose(s > most, s, most)

        most = self._over(count, low, masked)
        peak = _largest(most)
        clear = b.splat(b.choose(peak.eq(-float("inf")), 0.0, peak), LANES)

        def weighed(i: Value, part: Part | None, total: Value) -> Value:
            at = b.gep(row.scores, i * f.size)
            p = power(b, f.get(at, LANES) - clear)
            b.store(p, at)
            return total + (p if part is None else b.choose(part.mask, p, 0.0))

        total = self._over(count, b.const(work, 0, LANES), weighed)
        b.store(peak, b.gep(f["peak"], number * f.size))
        b.store(el.lane_sums(b, [total]), b.gep(f["total"], number * f.size))

    def _over(self, count: Value, start: Value, body: Callable[[Value, Part | None, Value], Value]) -> Value:
        """`body(index, part, value)` over all keys of the chunk."""
        f, b = self.frame, self.b
        whole = count & -LANES
        with b.loop(0, whole, LANES, start) as loop:
            loop.carry(body(loop.index, None, loop.carried[0]))
        with b.loop(whole, count, LANES, loop.carried[0]) as rest:
            rest.carry(body(rest.index, f.leading(count - rest.index, LANES), rest.carried[0]))
        return rest.carried[0]

    def _masked(self, row: _Row, s: Value, i: Value, part: Part | None) -> Value:
        f, b = self.frame, self.b
        if self.mask == "none":
            return s
        if self.mask == "causal":
            last = b.splat(b.cast(row.limit - i, dt.int32), LANES)
            return b.choose(last >= b.iota(dt.int32, LANES), s, lowest(f.work))
        if self.mask == "truths":
            return b.choose(self._truths(row, i, part).ne(0), s, lowest(f.work))
        return s + in_bits(b, self._given(row, self.kind, i, part))

    def _truths(self, row: _Row, i: Value, part: Part | None) -> Value:
        return self._given(row, Elements(dt.uint8, dt.uint8), i, part)

    def _given(self, row: _Row, kind: Elements, i: Value, part: Part | None) -> Value:
        """Numbers of the mask of a query."""
        f, b = self.frame, self.b
        step = f["mask_key"] if self.loose[2] else None
        given = f.load(kind, b.gep(row.mask, i * (kind.memory.size if step is None else step)), LANES, part, step)
        assert isinstance(given, Value)
        return given

    def _sums(
        self, rows: list[_Row], values: Value, count: Value, out: Value, column: Value, vectors: int, part: Part | None
    ) -> None:
        """Sums of weighted values, some columns of them."""
        f, b = self.frame, self.b
        step = f["v_feature"] if self.loose[1] else None
        size = self.kind.memory.size
        start = b.gep(values, column * (size if step is None else step))
        nothing = b.const(f.work, 0, LANES)
        apart = [b.i64(v * LANES * size) if step is None else step * (v * LANES) for v in range(vectors)]
        with b.loop(0, count, 1, start, *[nothing] * (self.rows * vectors)) as loop:
            at, *sums = loop.carried
            right = [f.load(self.kind, b.gep(at, skip), LANES, part, step) for skip in apart]
            if step is None:
                f.prefetch([b.gep(b.gep(at, f["v_row"] * (2 * _AHEAD)), skip) for skip in apart])
            for r, row in enumerate(rows):
                p = b.splat(f.get(b.gep(row.scores, loop.index * f.size), 1), LANES)
                for v, y in enumerate(right):
                    total = el.multiply_add(b, p, y, sums[r * vectors + v])
                    assert isinstance(total, Value)
                    sums[r * vectors + v] = total
            loop.carry(b.gep(at, f["v_row"]), *sums)
        sums = list(loop.carried[1:])
        for r in range(self.rows):
            with b.when(f["fold"] * f["queries"] > r):
                target = b.gep(out, (f["values"] * r + column) * f.size)
                for v in range(vectors):
                    f.store(f.wide, sums[r * vectors + v], b.gep(target, v * LANES * f.size), part)


def _largest(x: Value) -> Value:
    """The largest lane of a vector without NaN."""
    b, width = x.b, x.lanes
    while width > 2:
        width //= 2
        low, high = b.shuffle(x, None, range(width)), b.shuffle(x, None, range(width, 2 * width))
        x = b.choose(low > high, low, high)
    low, high = b.extract(x, 0), b.extract(x, 1)
    return b.choose(low > high, low, high)


COMBINED: Final = (
    "tasks", "*o", "*peaks", "*totals", "*sinks", "*out", "*peak", "*total", "keys", "values", "chunks", "rows",
    "queries", "heads", "sinks_head",
)  # fmt: skip
"""`rows` queries share the chunks of a task of `FewQueries`."""


class Combine:
    """Writes the kernel that puts the chunks of each query together."""

    def __init__(self, kind: Elements, shape: AttentionShape, sinks: bool) -> None:
        self.kind, self.shape, self.sinks = kind, shape, sinks

    @property
    def name(self) -> str:
        return f"attention_combine_{self.kind.memory.name}{'_sinks' * self.sinks}"

    def ir(self) -> str:
        self.frame = f = TileFrame(self.name, COMBINED, 1, self.kind, self.shape)
        self.b = f.b
        with f.b.loop(f.begin, f.end, 1) as task:
            self._query(task.index)
        return f.module()

    def _query(self, query: Value) -> None:
        """Queries are numbered through all heads of all members."""
        f, b, work = self.frame, self.b, self.frame.work
        unit, row = f.divide(query, f["rows"])
        first = unit * f["chunks"] * f["rows"] + row  # of its partial results; the next is `rows` further

        def number(chunk: Value) -> Value:
            return first + chunk * f["rows"]

        start, begun = b.const(work, -float("inf"), 1), b.const(work, 0, 1)
        if self.sinks:
            head, _ = f.divide(query, f["queries"])
            member, head = f.divide(head, f["heads"])
            sink = el.load(b, self.kind, b.gep(f["sinks"], f.offsets(member)[0] + head * f["sinks_head"]), 1)
            assert isinstance(sink, Value)
            start = in_bits(b, sink)
        with b.loop(0, f["chunks"], 1, start) as loop:
            one = f.get(b.gep(f["peaks"], number(loop.index) * f.size), 1)
            loop.carry(b.choose(one > loop.carried[0], one, loop.carried[0]))
        peak = loop.carried[0]
        clear = b.choose(peak.eq(-float("inf")), 0.0, peak)
        if self.sinks:
            begun = power(b, start - clear)

        def factor(chunk: Value) -> Value:
            return power(b, f.get(b.gep(f["peaks"], number(chunk) * f.size), 1) - clear)

        with b.loop(0, f["chunks"], 1, begun) as loop:
            one = f.get(b.gep(f["totals"], number(loop.index) * f.size), 1)
            loop.carry(b.fma(one, factor(loop.index), loop.carried[0]))
        total = loop.carried[0]
        b.store(peak, b.gep(f["peak"], query * f.size))
        b.store(total, b.gep(f["total"], query * f.size))
        inverse = b.choose(f["keys"] > 0, 1.0 / total, 0.0)
        out = b.gep(f["out"], query * f["values"] * self.kind.memory.size)

        def some(column: Value, part: Part | None) -> None:
            with b.loop(0, f["chunks"], 1, b.const(work, 0, LANES)) as loop:
                at = b.gep(f["o"], (number(loop.index) * f["values"] + column) * f.size)
                x = f.load(f.wide, at, LANES, part)
                assert isinstance(x, Value)
                loop.carry(b.fma(x, b.splat(factor(loop.index), LANES), loop.carried[0]))
            f.store(self.kind, loop.carried[0] * inverse, b.gep(out, column * self.kind.memory.size), part)

        f.sweep(f["values"], LANES, some)
