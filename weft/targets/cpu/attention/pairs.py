"""What the kernels of attention over blocks of queries and of keys share: which lane is which query, what a block sees
of the keys, masks, and blocks of keys and values without gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

from weft import dtypes as dt
from weft.llvm.builder import Value
from weft.records import dataclass
from weft.targets.cpu.attention.tiles import KEYS, QUERIES, AttentionShape, TileFrame, in_bits, lowest
from weft.targets.cpu.matmul.elements import Elements


@dataclass(frozen=True, slots=True)
class Block:
    """Queries that are the lanes of vectors: rows [start, start + count) of some heads, counted through. `limit` is
    where the last key that each of them sees stands in scratch memory."""

    start: Value
    count: Value
    vectors: Value
    limit: Value


class Pairs:
    """Writes a kernel for one kind of elements. `loose`: which of q, keys and values, and the mask have elements of a
    row apart. `whole`: queries fill the tiles, so LLVM has those of one width to do (a half of them all)."""

    title: ClassVar[str]
    words: ClassVar[Sequence[str]]
    operands: ClassVar[int]

    def __init__(
        self, kind: Elements, shape: AttentionShape, mask: str, loose: tuple[bool, bool, bool], whole: bool
    ) -> None:
        self.kind, self.shape, self.mask, self.loose, self.whole = kind, shape, mask, loose, whole
        self.size = kind.work.size
        self.row = QUERIES * self.size

    @property
    def name(self) -> str:
        loose = "".join("nu"[not x] for x in self.loose)
        shape = f"{self.shape.vectors}x{self.shape.lanes}"
        return f"{self.title}_{self.kind.memory.name}_{self.mask}_{loose}_{shape}{'_whole' * self.whole}"

    def fixed(self) -> dict[str, int]:
        """Where things are in scratch memory that do not depend on sizes."""
        raise NotImplementedError

    @property
    def mask_size(self) -> int:
        """Bytes of a mask's block."""
        return (KEYS + 8) * self.row if self.mask in ("truths", "numbers") else 0

    def ir(self) -> str:
        self.frame = f = TileFrame(self.name, self.words, self.operands, self.kind, self.shape)
        self.b = f.b
        self.at = {name: f.b.gep(f.scratch, place) for name, place in self.fixed().items()}
        with f.b.loop(f.begin, f.end, 1) as task:
            self.task(task.index)
        return f.module()

    def task(self, task: Value) -> None:
        raise NotImplementedError

    def place(self, group: Value, head: Value, q: Value, k: Value, v: Value, mask: Value) -> None:
        """Where the operands of a head begin; `q` and so on are where those of its member of the batch do."""
        f, b = self.frame, self.b
        self.q = b.gep(f["q"], q + head * f["q_head"])
        self.k = b.gep(f["k"], k + group * f["k_head"])
        self.v = b.gep(f["v"], v + group * f["v_head"])
        self.mask_at = b.gep(f["mask"], mask + head * f["mask_head"])

    # ---- queries ----

    def panels(self, block: Block, body: Callable[[Value, int], None]) -> None:
        """`body(first, count)` for all vectors of a block."""
        self.frame.panels(block.vectors, body, self.whole)

    def vectors_of(self, count: Value) -> Value:
        lanes = self.shape.lanes
        return (count + (lanes - 1)) >> (lanes.bit_length() - 1)

    @contextmanager
    def lanes(self, block: Block, step: int) -> Iterator[tuple[Value, list[tuple[Value, Value]]]]:
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

    def turn_queries(self, block: Block, target: Value) -> None:
        """The queries as lanes, scaled so that scores are in bits."""
        f, b = self.frame, self.b
        factor = b.cast(b.bitcast(f["scale"], dt.float64), f.work)
        step = f["q_feature"] if self.loose[0] else None
        with self.lanes(block, f.turn) as (lane, rows):
            starts = [b.gep(self.q, head * f["q_head"] + query * f["q_row"]) for head, query in rows]
            f.columns_of(starts, step, f["features"], b.gep(target, lane * f.size), lambda x: x * factor)

    def end_of(self, start: Value, count: Value) -> Value:
        """How many keys a block sees. One with a query that sees nothing, and so the mean, sees all."""
        f, b = self.frame, self.b
        if self.mask != "causal":
            return f["keys"]
        behind = f["keys"] - f["queries"]
        whole = (start + behind < 0) | (f["fold"] > 1)
        return b.choose(whole, f["keys"], f.least(start + count + behind, f["keys"]))

    # ---- masks ----

    def put_limit(self, block: Block, lane: Value, query: Value) -> None:
        if self.mask == "causal":
            f, b = self.frame, self.b
            b.store(b.cast(query + (f["keys"] - f["queries"]), dt.int32), b.gep(block.limit, lane * 4))

    def turn_mask(self, block: Block, first: Value, count: Value) -> None:
        """The mask of a block of keys as rows of lanes; truths are numbers there, of which all but 0 are true."""
        if self.mask not in ("truths", "numbers"):
            return
        f, b = self.frame, self.b
        truths = self.mask == "truths"
        kind = Elements(dt.uint8, dt.uint8) if truths else self.kind
        step = f["mask_key"] if self.loose[2] else None
        with self.lanes(block, f.turn) as (lane, rows):
            offsets = [head * f["mask_head"] + query * f["mask_row"] + first * f["mask_key"] for head, query in rows]
            starts = [b.gep(self.mask_at, offset) for offset in offsets]
            target = b.gep(self.at["mask"], lane * f.size)
            f.columns_of(starts, step, count, target, lambda x: x, kind)

    def visible(self, block: Block, first: Value, key: Value, vector: Value) -> Value | None:
        """Which lanes of a vector see a key of a block; None if all do."""
        b = self.b
        if self.mask == "causal":
            lanes = self.shape.lanes
            limits = b.load(b.gep(block.limit, vector * (lanes * 4)), dt.int32, lanes)
            assert isinstance(limits, Value)
            return limits >= b.cast(first + key, dt.int32)
        return self._given(key, vector).ne(0.0) if self.mask == "truths" else None

    def masked(self, block: Block, score: Value, first: Value, key: Value, vector: Value) -> Value:
        if self.mask == "numbers":
            return score + in_bits(self.b, self._given(key, vector))
        seen = self.visible(block, first, key, vector)
        return score if seen is None else self.b.choose(seen, score, lowest(self.frame.work))

    def _given(self, key: Value, vector: Value) -> Value:
        f = self.frame
        return f.get(f.lanes_at(self.b.gep(self.at["mask"], key * f.row), vector))
