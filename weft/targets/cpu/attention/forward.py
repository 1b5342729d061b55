"""The kernel of attention: a block of queries against all keys, block after block, without ever storing their scores.

A task is a block of queries, which are the lanes of all its vectors. It keeps for each query the largest score so far
("peak"), the sum of the powers of 2 of scores minus the peak ("total"), and the sum of values weighted by these powers.
Scores are in units of a bit: they have been multiplied by the scale and log2(e). For one query,

    s(j)  = fma over the features of k(j), upwards, from +0; the query has been scaled (one rounding)
    p(j)  = 2 ** (s(j) - peak), where the peak is the largest score of this block of keys and those before it
    total = fma(total, a, sum of p(j) over the block, upwards), a = 2 ** (peak before - peak)
    o     = fma(o, a, fma of p(j) v(j) over the block, upwards, from +0)

over blocks of `KEYS` keys, and o * (1 / total) at the end. Which queries share a block changes none of it, nor does the
vector length. Keys and values are read where they lie, element by element, so they may lie anywhere; narrow ones are
widened block by block.
"""

from __future__ import annotations

from typing import Final

from weft import dtypes as dt
from weft.codegen.builder import Value
from weft.records import dataclass
from weft.targets.cpu.attention.tiles import KEYS, LOG2_E, QUERIES, Shape, TileFrame, in_bits, lowest, power
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part

WORDS: Final = (
    "tasks", "*q", "*k", "*v", "*mask", "*sinks", "*out", "*peak", "*total", "scale",
    "groups", "parts", "fold", "queries", "keys", "features", "values", "blocks",
    "q_head", "q_row", "q_feature", "k_head", "k_row", "k_feature", "v_head", "v_row", "v_feature",
    "mask_head", "mask_row", "mask_key", "sinks_head", "at_q", "at_o", "at_k", "at_v",
)  # fmt: skip
"""`parts` of the heads that share keys are tasks of their own, `fold` heads in each; strides are in bytes."""
OPERANDS: Final = 5


@dataclass(frozen=True, slots=True)
class Block:
    """The queries of a task: rows [start, start + count) of some heads, counted through. `vectors` hold them."""

    start: Value
    count: Value
    vectors: Value


class Forward:
    """Writes the kernel for one kind of elements. `loose`: which of q, keys and values, and the mask have elements of a
    row apart; of wide keys and values nothing has to be known."""

    def __init__(self, kind: Elements, shape: Shape, mask: str, sinks: bool, loose: tuple[bool, bool, bool]) -> None:
        self.kind, self.shape, self.mask, self.sinks, self.loose = kind, shape, mask, sinks, loose

    @property
    def name(self) -> str:
        loose = "".join("nu"[not x] for x in self.loose)
        shape = f"{self.shape.sums}x{self.shape.vectors}x{self.shape.lanes}"
        return f"attention_{self.kind.memory.name}_{self.mask}{'_sinks' * self.sinks}_{loose}_{shape}"

    # ---- scratch memory ----

    def areas(self, features: int, values: int) -> tuple[dict[str, int], int]:
        """Where things are in scratch memory, in bytes, and the size of it."""
        size = self.kind.work.size
        row = QUERIES * size
        at_q = self._fixed()["end"]
        at_o = at_q + (features + 8) * row
        at_k = at_o + (values + 16) * row
        at_v = at_k + (KEYS * features * size if self.kind.narrow else 0)
        end = at_v + (KEYS * values * size if self.kind.narrow else 0)
        return {"at_q": at_q, "at_o": at_o, "at_k": at_k, "at_v": at_v}, end

    def _fixed(self) -> dict[str, int]:
        """What does not depend on sizes."""
        row = QUERIES * self.kind.work.size
        scores = 5 * row
        mask = scores + KEYS * row
        end = mask + ((KEYS + 8) * row if self.mask in ("truths", "numbers") else 0)
        return {"peak": 0, "next": row, "total": 2 * row, "factor": 3 * row, "limit": 4 * row, "scores": scores,
                "mask": mask, "end": end}  # fmt: skip

    # ---- tasks ----

    def ir(self) -> str:
        self.frame = f = TileFrame(self.name, WORDS, OPERANDS, self.kind, self.shape)
        self.b = f.b
        self.at = {name: f.b.gep(f.scratch, place) for name, place in self._fixed().items()}
        self.at |= {name[3:]: f.b.gep(f.scratch, f[name]) for name in ("at_q", "at_o", "at_k", "at_v")}
        with f.b.loop(f.begin, f.end, 1) as task:
            self._task(task.index)
        return f.module()

    def _task(self, task: Value) -> None:
        f, b = self.frame, self.b
        rest, number = f.divide(task, f["blocks"])
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
        start = (f["blocks"] - 1 - number) * QUERIES  # the last see most, where they do not see all
        count = f.least(rows - start, QUERIES)
        lanes = self.shape.lanes
        block = Block(start, count, (count + (lanes - 1)) >> (lanes.bit_length() - 1))
        self._begin(block)
        end = self._end(block)
        with b.loop(0, end, KEYS) as keys:
            self._keys(block, keys.index, f.least(end - keys.index, KEYS))
        first = ((member * f["groups"] + group) * f["parts"] + part) * rows + start
        self._finish(block, first)

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

    def _row(self, block: Block, lane: Value) -> tuple[Value, Value]:
        """(head, query) of a lane; lanes past the last repeat it."""
        f = self.frame
        return f.divide(f.least(block.start + lane, f["fold"] * f["queries"] - 1), f["queries"])

    def _begin(self, block: Block) -> None:
        f, b, at = self.frame, self.b, self.at
        scale = b.bitcast(f["scale"], dt.float64)
        factor = b.cast(scale, f.work)
        step = f["q_feature"] if self.loose[0] else None
        with b.loop(0, block.vectors * self.shape.lanes, f.turn) as lane:
            starts = []
            for i in range(f.turn):
                head, query = self._row(block, lane.index + i)
                starts.append(b.gep(self.q, head * f["q_head"] + query * f["q_row"]))
            target = b.gep(at["q"], lane.index * f.size)
            f.columns_of(starts, step, f["features"], target, lambda x: x * factor)
        with b.loop(0, block.vectors * self.shape.lanes, 1) as one:
            head, query = self._row(block, one.index)
            place = one.index * f.size
            first: Value | float = -float("inf")
            if self.sinks:
                sink = el.load(b, self.kind, b.gep(self.sinks_at, head * f["sinks_head"]), 1)
                assert isinstance(sink, Value)
                first = sink * LOG2_E
            b.store(first if isinstance(first, Value) else b.const(f.work, first, 1), b.gep(at["peak"], place))
            b.store(b.const(f.work, 1.0 if self.sinks else 0.0, 1), b.gep(at["total"], place))
            if self.mask == "causal":
                limit = b.cast(query + (f["keys"] - f["queries"]), dt.int32)
                b.store(limit, b.gep(at["limit"], one.index * 4))
        nothing = b.const(f.work, 0, self.shape.lanes)
        with b.loop(0, f["values"], 1) as row, b.loop(0, block.vectors, 1) as vector:
            b.store(nothing, f.lanes_at(b.gep(at["o"], row.index * f.row), vector.index))

    def _finish(self, block: Block, first: Value) -> None:
        """`first` is the number of the first query among all."""
        f, b, at, memory = self.frame, self.b, self.at, self.kind.memory.size
        out = b.gep(f["out"], first * f["values"] * memory)
        with b.loop(0, block.count, f.turn) as lane:
            place = lane.index * f.size
            inverse = 1.0 / f.get(b.gep(at["total"], place), f.turn)
            inverse = b.choose(f["keys"] > 0, inverse, 0.0)
            source = b.gep(at["o"], place)
            rows = [b.gep(out, (lane.index + i) * f["values"] * memory) for i in range(f.turn)]
            here = [lane.index + i < block.count for i in range(f.turn)]

            def one(
                column: Value, part: Part | None, source: Value = source, inverse: Value = inverse,
                rows: list[Value] = rows, here: list[Value] = here,
            ) -> None:  # fmt: skip
                columns = [f.get(b.gep(source, (column + c) * f.row), f.turn) * inverse for c in range(f.turn)]
                for row, x, wanted in zip(rows, el.turned(b, columns), here, strict=True):
                    with b.when(wanted):
                        f.store(self.kind, x, b.gep(row, column * memory), part)

            f.sweep(f["values"], f.turn, one)
        for name in ("peak", "total"):
            target = b.gep(f[name], first * f.size)

            def copy(i: Value, part: Part | None, name: str = name, target: Value = target) -> None:
                f.store(f.wide, f.get(b.gep(at[name], i * f.size)), b.gep(target, i * f.size), part)

            f.sweep(block.count, self.shape.lanes, copy)

    # ---- a block of keys ----

    def _keys(self, block: Block, first: Value, count: Value) -> None:
        f, b = self.frame, self.b
        k, v = b.gep(self.k, first * f["k_row"]), b.gep(self.v, first * f["v_row"])
        k_row, k_step, v_row, v_step = f["k_row"], f["k_feature"], f["v_row"], f["v_feature"]
        if self.kind.narrow:
            loose = self.loose[1]
            f.widened(k, k_row, k_step if loose else None, count, f["features"], self.at["k"])
            f.widened(v, v_row, v_step if loose else None, count, f["values"], self.at["v"])
            k, v, k_step, v_step = self.at["k"], self.at["v"], b.i64(f.size), b.i64(f.size)
            k_row, v_row = f["features"] * f.size, f["values"] * f.size
        if self.mask in ("truths", "numbers"):
            self._mask(block, first, count)
        f.panels(block.vectors, lambda at, n: self._scores(at, n, first, count, k, k_row, k_step))
        f.panels(block.vectors, lambda at, n: self._weights(at, n, count))
        f.panels(block.vectors, lambda at, n: self._add(at, n, count, v, v_row, v_step))

    def _mask(self, block: Block, first: Value, count: Value) -> None:
        """The mask's block as rows of lanes: 1 and 0 for truths, else what is added to scores."""
        f, b = self.frame, self.b
        truths = self.mask == "truths"
        kind = Elements(dt.uint8, dt.uint8) if truths else self.kind
        step = f["mask_key"] if self.loose[2] else None
        with b.loop(0, block.vectors * self.shape.lanes, f.turn) as lane:
            starts = []
            for i in range(f.turn):
                head, query = self._row(block, lane.index + i)
                start = head * f["mask_head"] + query * f["mask_row"] + first * f["mask_key"]
                starts.append(b.gep(self.mask_at, start))
            target = b.gep(self.at["mask"], lane.index * f.size)
            f.columns_of(starts, step, count, target, lambda x: x if truths else in_bits(b, x), kind)

    def _scores(
        self, vector: Value, vectors: int, first: Value, count: Value, k: Value, k_row: Value, k_step: Value
    ) -> None:
        """Scores of a block of keys for some vectors of queries, and the largest of them so far."""
        f, b, at = self.frame, self.b, self.at
        height = self.shape.rows(vectors)
        peak, following, scores = (f.lanes_at(at[name], vector) for name in ("peak", "next", "scores"))
        for v in range(vectors):
            b.store(f.get(f.across(peak, v)), f.across(following, v))
        with b.loop(0, count, height) as tile:
            keys = [f.least(tile.index + r, count - 1) for r in range(height)]  # past the last, it is repeated
            offsets = [key * k_row for key in keys]
            sums = f.sums(offsets, k, k_step, f.lanes_at(at["q"], vector), f.row, f["features"], vectors)
            for v in range(vectors):
                most = f.get(f.across(following, v))
                for r, key in enumerate(keys):
                    s = self._masked(sums[r][v], first, key, vector, v)
                    b.store(s, f.across(b.gep(scores, (tile.index + r) * f.row), v))
                    most = b.choose(s > most, s, most)
                b.store(most, f.across(following, v))

    def _masked(self, s: Value, first: Value, key: Value, vector: Value, v: int) -> Value:
        f, b = self.frame, self.b
        if self.mask == "none":
            return s
        if self.mask == "causal":
            lanes = self.shape.lanes
            limits = b.load(b.gep(self.at["limit"], (vector + v) * (lanes * 4)), dt.int32, lanes)
            assert isinstance(limits, Value)
            return b.choose(limits >= b.cast(first + key, dt.int32), s, lowest(f.work))
        given = f.get(f.across(f.lanes_at(b.gep(self.at["mask"], key * f.row), vector), v))
        return b.choose(given.ne(0.0), s, lowest(f.work)) if self.mask == "truths" else s + given

    def _weights(self, vector: Value, vectors: int, count: Value) -> None:
        """Scores become powers of 2 of what they are below the peak; totals and factors follow."""
        f, b = self.frame, self.b
        peak, following, total, factor, scores = (
            f.lanes_at(self.at[name], vector) for name in ("peak", "next", "total", "factor", "scores")
        )
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

    def _add(self, vector: Value, vectors: int, count: Value, values: Value, row: Value, step: Value) -> None:
        """Values, weighted, join the sums over the blocks before."""
        f, b = self.frame, self.b
        height = self.shape.rows(vectors)
        factor, scores, o = (f.lanes_at(self.at[name], vector) for name in ("factor", "scores", "o"))
        with b.loop(0, f["values"], height) as tile:
            offsets = [f.least(tile.index + r, f["values"] - 1) * step for r in range(height)]
            sums = f.sums(offsets, values, row, scores, f.row, count, vectors)
            factors = [f.get(f.across(factor, v)) for v in range(vectors)]
            for r in range(height):
                at = b.gep(o, (tile.index + r) * f.row)  # rows past the last are not read
                for v in range(vectors):
                    place = f.across(at, v)
                    b.store(b.fma(f.get(place), factors[v], sums[r][v]), place)
