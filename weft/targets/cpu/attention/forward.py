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

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from weft import dtypes as dt
from weft.codegen.builder import Value
from weft.records import dataclass
from weft.targets.cpu.attention.tiles import KEYS, QUERIES, Shape, TileFrame, in_bits, lowest, power
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
OPERANDS: Final = 5


@dataclass(frozen=True, slots=True)
class Block:
    """Queries that are the lanes of vectors: rows [start, start + count) of some heads, counted through, and where in
    scratch memory they and what is known of them are."""

    start: Value
    count: Value
    vectors: Value
    peak: Value
    total: Value
    limit: Value
    q: Value
    o: Value


class Forward:
    """Writes the kernel for one kind of elements. `loose`: which of q, keys and values, and the mask have elements of a
    row apart."""

    def __init__(self, kind: Elements, shape: Shape, mask: str, sinks: bool, loose: tuple[bool, bool, bool]) -> None:
        self.kind, self.shape, self.mask, self.sinks, self.loose = kind, shape, mask, sinks, loose

    @property
    def name(self) -> str:
        loose = "".join("nu"[not x] for x in self.loose)
        shape = f"{self.shape.sums}x{self.shape.vectors}x{self.shape.lanes}"
        return f"attention_{self.kind.memory.name}_{self.mask}{'_sinks' * self.sinks}_{loose}_{shape}"

    # ---- scratch memory ----

    def areas(self, features: int, values: int, span: int) -> tuple[dict[str, int], int]:
        """Where things are in scratch memory, in bytes, and the size of it. What belongs to a block of queries is in
        one piece."""
        size = self.kind.work.size
        row = QUERIES * size
        at_v = self._fixed()["k"] + KEYS * features * size
        at_blocks = at_v + KEYS * values * size
        block_o = (3 + features + 8) * row
        block_size = block_o + (values + 16) * row
        words = {"at_v": at_v, "at_blocks": at_blocks, "block_o": block_o, "block_size": block_size}
        return words, at_blocks + span * block_size

    def _fixed(self) -> dict[str, int]:
        """What does not depend on sizes."""
        row = QUERIES * self.kind.work.size
        mask = (2 + KEYS) * row
        k = mask + ((KEYS + 8) * row if self.mask in ("truths", "numbers") else 0)
        return {"next": 0, "factor": row, "scores": 2 * row, "mask": mask, "k": k}

    def _block(self, number: Value, place: Value) -> Block:
        """A block of queries, which is the one at this place of a task."""
        f, b, lanes = self.frame, self.b, self.shape.lanes
        start = number * QUERIES
        count = f.least(f["fold"] * f["queries"] - start, QUERIES)
        at = b.gep(f.scratch, f["at_blocks"] + place * f["block_size"])
        rows = [b.gep(at, i * f.row) for i in range(4)]
        vectors = (count + (lanes - 1)) >> (lanes.bit_length() - 1)
        peak, total, limit, q = rows
        return Block(start, count, vectors, peak, total, limit, q, b.gep(at, f["block_o"]))

    # ---- tasks ----

    def ir(self) -> str:
        self.frame = f = TileFrame(self.name, WORDS, OPERANDS, self.kind, self.shape)
        self.b = f.b
        self.at = {name: f.b.gep(f.scratch, place) for name, place in self._fixed().items()}
        self.at["v"] = f.b.gep(f.scratch, f["at_v"])
        with f.b.loop(f.begin, f.end, 1) as task:
            self._task(task.index)
        return f.module()

    def _task(self, task: Value) -> None:
        f, b = self.frame, self.b
        rest, number = f.divide(task, f["spans"])
        rest, part = f.divide(rest, f["parts"])
        member, group = f.divide(rest, f["groups"])
        q, k, v, mask, sinks = f.offsets(member)
        head = (group * f["parts"] + part) * f["fold"]
        self.q = b.gep(f["q"], q + head * f["q_head"])
        self.k = b.gep(f["k"], k + group * f["k_head"])
        self.v = b.gep(f["v"], v + group * f["v_head"])
        self.mask_at = b.gep(f["mask"], mask + head * f["mask_head"])
        self.sinks_at = b.gep(f["sinks"], sinks + head * f["sinks_head"])
        rows = f["fold"] * f["queries"]
        blocks, _ = f.divide(rows + (QUERIES - 1), QUERIES)
        first = (f["spans"] - 1 - number) * f["span"]  # the last see most, where they do not see all
        span = f.least(blocks - first, f["span"])
        with b.loop(0, span, 1, b.i64(0)) as loop:
            block = self._block(first + loop.index, loop.index)
            self._begin(block)
            loop.carry(b.intrinsic("smax", loop.carried[0], self._end(block)))
        end = loop.carried[0]
        with b.loop(0, end, KEYS) as keys:
            self._keys(first, span, keys.index, f.least(end - keys.index, KEYS))
        place = ((member * f["groups"] + group) * f["parts"] + part) * rows
        with b.loop(0, span, 1) as loop:
            block = self._block(first + loop.index, loop.index)
            self._finish(block, place + block.start)

    def _end(self, block: Block) -> Value:
        """How many keys the block sees. One with a query that sees nothing, and so the mean, sees all."""
        f, b = self.frame, self.b
        if self.mask != "causal":
            return f["keys"]
        behind = f["keys"] - f["queries"]
        last = block.start + block.count + behind
        whole = (block.start + behind < 0) | (f["fold"] > 1)
        return b.choose(whole, f["keys"], f.least(last, f["keys"]))

    # ---- before and after ----

    @contextmanager
    def _lanes(self, block: Block, step: int) -> Iterator[tuple[Value, list[tuple[Value, Value]]]]:
        """A loop over the lanes of a block, some at a time: the first of them, and (head, query) of each. Those past
        the last repeat it."""
        f, b = self.frame, self.b
        last = f["fold"] * f["queries"] - 1
        with b.loop(0, block.vectors * self.shape.lanes, step, *f.divide(block.start, f["queries"])) as loop:
            head, query = loop.carried
            found = []
            for i in range(step):
                found.append((head, query))
                more = block.start + loop.index + i < last
                wraps = (query + 1).eq(f["queries"])
                head = b.choose(more & wraps, head + 1, head)
                query = b.choose(more, b.choose(wraps, 0, query + 1), query)
            loop.carry(head, query)
            yield loop.index, found

    def _begin(self, block: Block) -> None:
        f, b = self.frame, self.b
        factor = b.cast(b.bitcast(f["scale"], dt.float64), f.work)
        step = f["q_feature"] if self.loose[0] else None
        with self._lanes(block, f.turn) as (lane, rows):
            starts = [b.gep(self.q, head * f["q_head"] + query * f["q_row"]) for head, query in rows]
            f.columns_of(starts, step, f["features"], b.gep(block.q, lane * f.size), lambda x: x * factor)
        total = b.const(f.work, 1.0 if self.sinks else 0.0, 1)
        with self._lanes(block, 1) as (lane, ((head, query),)):
            place = lane * f.size
            first = b.const(f.work, -float("inf"), 1)
            if self.sinks:
                sink = el.load(b, self.kind, b.gep(self.sinks_at, head * f["sinks_head"]), 1)
                assert isinstance(sink, Value)
                first = in_bits(b, sink)
            b.store(first, b.gep(block.peak, place))
            b.store(total, b.gep(block.total, place))
            if self.mask == "causal":
                limit = b.cast(query + (f["keys"] - f["queries"]), dt.int32)
                b.store(limit, b.gep(block.limit, lane * 4))

    def _finish(self, block: Block, first: Value) -> None:
        """`first` is the number of the first query among all."""
        f, b, memory = self.frame, self.b, self.kind.memory.size
        out = b.gep(f["out"], first * f["values"] * memory)
        with b.loop(0, block.count, f.turn) as lane:
            place = lane.index * f.size
            inverse = 1.0 / f.get(b.gep(block.total, place), f.turn)
            source = b.gep(block.o, place)
            rows = [b.gep(out, (lane.index + i) * f["values"] * memory) for i in range(f.turn)]
            here = [lane.index + i < block.count for i in range(f.turn)]

            def one(
                column: Value, part: Part | None, source: Value = source, inverse: Value = inverse,
                rows: list[Value] = rows, here: list[Value] = here,
            ) -> None:  # fmt: skip
                columns = [f.get(b.gep(source, (column + c) * f.row), f.turn) * inverse for c in range(f.turn)]
                columns = [b.choose(f["keys"] > 0, x, 0.0) for x in columns]
                for row, x, wanted in zip(rows, el.turned(b, columns), here, strict=True):
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
        k = self._packed(b.gep(self.k, first * f["k_row"]), "k", count, f["features"])
        v = self._packed(b.gep(self.v, first * f["v_row"]), "v", count, f["values"])
        with b.loop(0, span, 1) as loop:
            block = self._block(number + loop.index, loop.index)
            left = f.least(self._end(block) - first, count)
            with b.when(left > 0):
                if self.mask in ("truths", "numbers"):
                    self._mask(block, first, left)
                f.panels(block.vectors, lambda at, n: self._scores(block, at, n, first, left, k))
                f.panels(block.vectors, lambda at, n: self._weights(block, at, n, left))
                f.panels(block.vectors, lambda at, n: self._add(block, at, n, first, left, v))

    def _packed(self, source: Value, name: str, count: Value, width: Value) -> Value:
        """A block of keys or values without gaps: where it lies, or copied. Rows that are far apart come one from each
        page, and share few places in the caches."""
        f, b = self.frame, self.b
        row, step = f[f"{name}_row"], f[f"{name}_feature"]
        if self.kind.narrow or self.loose[1]:
            f.widened(source, row, step if self.loose[1] else None, count, width, self.at[name])
            return self.at[name]
        compact = row.eq(width * f.size)
        with b.when(~compact):
            f.widened(source, row, None, count, width, self.at[name])
        return b.choose(compact, source, self.at[name])

    def _mask(self, block: Block, first: Value, count: Value) -> None:
        """The mask's block as rows of lanes: 1 and 0 for truths, else what is added to scores."""
        f, b = self.frame, self.b
        truths = self.mask == "truths"
        kind = Elements(dt.uint8, dt.uint8) if truths else self.kind
        step = f["mask_key"] if self.loose[2] else None
        with self._lanes(block, f.turn) as (lane, rows):
            offsets = [head * f["mask_head"] + query * f["mask_row"] + first * f["mask_key"] for head, query in rows]
            starts = [b.gep(self.mask_at, offset) for offset in offsets]
            target = b.gep(self.at["mask"], lane * f.size)
            f.columns_of(starts, step, count, target, lambda x: x if truths else in_bits(b, x), kind)

    def _scores(self, block: Block, vector: Value, vectors: int, first: Value, count: Value, k: Value) -> None:
        """Scores of a block of keys for some vectors of queries, and the largest of them so far."""
        f, b, at = self.frame, self.b, self.at
        height = self.shape.rows(vectors)
        peak, following, scores = (f.lanes_at(x, vector) for x in (block.peak, at["next"], at["scores"]))
        for v in range(vectors):
            b.store(f.get(f.across(peak, v)), f.across(following, v))
        with b.loop(0, count, height) as tile:
            keys = [f.least(tile.index + r, count - 1) for r in range(height)]  # past the last, it is repeated
            offsets = [key * f["features"] * f.size for key in keys]
            sums = f.sums(offsets, k, f.size, f.lanes_at(block.q, vector), f.row, f["features"], vectors)
            for v in range(vectors):
                most = f.get(f.across(following, v))
                for r, key in enumerate(keys):
                    s = self._masked(block, sums[r][v], first, key, vector, v)
                    b.store(s, f.across(b.gep(scores, (tile.index + r) * f.row), v))
                    most = b.choose(s > most, s, most)
                b.store(most, f.across(following, v))

    def _masked(self, block: Block, s: Value, first: Value, key: Value, vector: Value, v: int) -> Value:
        f, b = self.frame, self.b
        if self.mask == "none":
            return s
        if self.mask == "causal":
            lanes = self.shape.lanes
            limits = b.load(b.gep(block.limit, (vector + v) * (lanes * 4)), dt.int32, lanes)
            assert isinstance(limits, Value)
            return b.choose(limits >= b.cast(first + key, dt.int32), s, lowest(f.work))
        given = f.get(f.across(f.lanes_at(b.gep(self.at["mask"], key * f.row), vector), v))
        return b.choose(given.ne(0.0), s, lowest(f.work)) if self.mask == "truths" else s + given

    def _weights(self, block: Block, vector: Value, vectors: int, count: Value) -> None:
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

    def _add(self, block: Block, vector: Value, vectors: int, first: Value, count: Value, values: Value) -> None:
        """Values, weighted, join the sums over the blocks before."""
        f, b = self.frame, self.b
        height = self.shape.rows(vectors)
        factor, scores, o = (f.lanes_at(x, vector) for x in (self.at["factor"], self.at["scores"], block.o))
        with b.loop(0, f["values"], height) as tile:
            offsets = [f.least(tile.index + r, f["values"] - 1) * f.size for r in range(height)]
            sums = f.sums(offsets, values, f["values"] * f.size, scores, f.row, count, vectors)
            factors = [f.get(f.across(factor, v)) for v in range(vectors)]
            for r in range(height):
                at = b.gep(o, (tile.index + r) * f.row)  # rows past the last are not read
                for v in range(vectors):
                    place, new = f.across(at, v), sums[r][v]
                    b.store(b.choose(first.eq(0), new, b.fma(f.get(place), factors[v], new)), place)
