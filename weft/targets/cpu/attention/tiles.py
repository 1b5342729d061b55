"""What the kernels of attention are made of: products of tiles in registers, powers of two, blocks turned round.

Lanes of all vectors are different queries (or, in products over queries, different features), never terms of one sum.
So the order of every sum is that of the loop that makes it, whatever the vector length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen.math.basics import at_least, at_most, format_of, from_bits, horner, pick, to_bits
from weft.codegen.math.exponential import EXP2
from weft.codegen.transposes import transposed
from weft.dtypes import Dtype
from weft.llvm.builder import Builder, Value
from weft.records import dataclass
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part, ProductFrame

QUERIES: Final = 64
"""Queries of a block: the lanes of a row of scratch memory."""
KEYS: Final = 96
"""Keys of a block, which every number of rows of a tile divides. Part of the specified order: sums over keys are made
block by block."""
LOG2_E: Final = 1.4426950408889634
LN_2: Final = 0.6931471805599453


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The vectors of a processor: `lanes` of one, and the most `vectors` side by side in a tile."""

    lanes: int
    vectors: int

    def fills(self, queries: Any) -> bool:
        """Whether so many queries are known to make blocks of tiles that are all as wide as can be."""
        return type(queries) is int and -(-(queries % QUERIES) // self.lanes) % self.vectors == 0

    def rows(self, vectors: int) -> int:
        """Rows of a tile that is so many vectors wide: enough sums to keep multipliers busy, few enough for
        registers, and for short sequences not to end in the middle of many."""
        return 12 if vectors == 1 else 6


class TileFrame(ProductFrame):
    """A kernel under construction, over elements of one kind and tiles of one shape."""

    def __init__(self, name: str, words: Sequence[str], operands: int, kind: Elements, shape: AttentionShape) -> None:
        super().__init__(name, words, operands)
        self.kind, self.shape = kind, shape
        self.wide = el.summing(kind)
        self.work, self.size = kind.work, kind.work.size
        self.row = QUERIES * self.size  # bytes of a row of scratch memory
        self.turn = min(shape.lanes, 8)

    # ---- vectors ----

    def get(self, at: Value, lanes: int | None = None) -> Value:
        found = self.b.load(at, self.work, self.shape.lanes if lanes is None else lanes)
        assert isinstance(found, Value)
        return found

    def across(self, at: Value, vector: int) -> Value:
        """The address of a vector of a row."""
        return self.b.gep(at, vector * self.shape.lanes * self.size) if vector else at

    def lanes_at(self, at: Value, vector: Value) -> Value:
        """The same for a number of a vector that is known when the kernel runs."""
        return self.b.gep(at, vector * (self.shape.lanes * self.size))

    def panels(self, vectors: Value, body: Callable[[Value, int], None], whole: bool = False) -> None:
        """`body(first, count)` for all vectors of a row: as many as there are registers for at a time, then the rest by
        powers of two. If these are known to be `whole` there is none."""
        b, count = self.b, self.shape.vectors
        with b.loop(0, vectors & -count, count) as loop:
            body(loop.index, count)
        if whole:
            return
        while count := count // 2:
            with b.when((vectors & count).ne(0)):
                body(vectors & -(2 * count), count)

    # ---- products ----

    def sums(
        self,
        rows: Sequence[Value],
        left: Value,
        left_step: Value | int,
        right: Value,
        right_step: Value | int,
        depth: Value,
        vectors: int,
        part: Part | None = None,
    ) -> list[list[Value]]:
        """For each row the vectors of sums over `depth` of an element of `left` (at the row's offset) times a vector of
        `right`, each from +0 with one fused multiply-add a term. `part` is what there is of the last vector."""
        b, lanes = self.b, self.shape.lanes
        nothing = b.const(self.work, 0, lanes)
        with b.loop(0, depth, 1, left, right, *[nothing] * (len(rows) * vectors)) as loop:
            at_left, at_right, *sums = loop.carried
            y = [
                self.load(self.wide, self.across(at_right, v), lanes, part if v == vectors - 1 else None)
                for v in range(vectors)
            ]
            for i, offset in enumerate(rows):
                x = b.splat(self.get(b.gep(at_left, offset), 1), lanes)
                for v in range(vectors):
                    total = el.multiply_add(b, x, y[v], sums[i * vectors + v])
                    assert isinstance(total, Value)
                    sums[i * vectors + v] = total
            loop.carry(b.gep(at_left, left_step), b.gep(at_right, right_step), *sums)
        flat = loop.carried[2:]
        return [list(flat[i * vectors : (i + 1) * vectors]) for i in range(len(rows))]

    def interleaved_sums(self, left: Value, right: Value, right_step: int, depth: Value, vectors: int) -> list[Value]:
        """The same for one row, whose terms are contiguous, in the order of few.py: term i joins sum i mod 16, and a
        tree adds these up."""
        b, lanes, ways = self.b, self.shape.lanes, 16
        nothing = b.const(self.work, 0, lanes)

        def added(sums: Sequence[Value], k: Value, most: Value | None) -> list[Value]:
            found = list(sums)
            for i in range(ways):
                here = k + i if most is None else self.least(k + i, most - 1)
                x = b.splat(self.get(b.gep(left, here * self.size), 1), lanes)
                for v in range(vectors):
                    y, old = self.get(self.across(b.gep(right, here * right_step), v)), found[i * vectors + v]
                    total = b.fma(x, y, old)
                    found[i * vectors + v] = total if most is None else b.choose(k + i < most, total, old)
            return found

        whole = depth & -ways
        with b.loop(0, whole, ways, *[nothing] * (ways * vectors)) as loop:
            loop.carry(*added(loop.carried, loop.index, None))
        with b.loop(whole, depth, ways, *loop.carried) as rest:  # once, or not at all
            rest.carry(*added(rest.carried, rest.index, depth))
        sums = list(rest.carried)
        while len(sums) > vectors:
            half = len(sums) // 2
            sums = [x + y for x, y in zip(sums[:half], sums[half:], strict=True)]
        return sums

    # ---- blocks that are turned round ----

    def columns_of(
        self,
        starts: Sequence[Value],
        step: Value | None,
        count: Value,
        target: Value,
        change: Callable[[Value], Value],
        kind: Elements | None = None,
    ) -> None:
        """Rows that begin at `starts` (as many as are turned at once) become lanes, their elements rows, at `target`.
        Elements are contiguous, or `step` bytes apart."""
        b, kind = self.b, self.kind if kind is None else kind

        def one(column: Value, part: Part | None) -> None:
            offset = column * (kind.memory.size if step is None else step)
            rows = [self.load(kind, b.gep(start, offset), self.turn, part, step) for start in starts]
            for c, x in enumerate(transposed(b, rows)):
                assert isinstance(x, Value)
                b.store(change(b.cast(x, self.work)), b.gep(target, (column + c) * self.row))

        self.sweep(count, self.turn, one)

    def widened(self, source: Value, row: Value, step: Value | None, rows: Value, columns: Value, to: Value) -> None:
        """A block of narrow elements as `work`, row by row without gaps."""
        b, lanes = self.b, self.shape.lanes
        with b.loop(0, rows, 1) as r:
            start, target = b.gep(source, r.index * row), b.gep(to, r.index * columns * self.size)

            def one(column: Value, part: Part | None) -> None:
                offset = column * (self.kind.memory.size if step is None else step)
                x = self.load(self.kind, b.gep(start, offset), lanes, part, step)
                self.store(self.wide, x, b.gep(target, column * self.size), part)

            self.sweep(columns, lanes, one)


def power(b: Builder, x: Value, limited: bool = True) -> Value:
    """2**x, for x that is hardly above 0 (or has no limit, if told): 0 where that is below the normal numbers."""
    fmt = format_of(x)
    x = at_least(b, x, -float(fmt.bias))
    if not limited:
        x = at_most(b, x, float(fmt.bias + 1))
    magic = fmt.rounder + fmt.bias
    shifted = x + magic
    r = x - (shifted - magic)
    # The bits of 2**k, of which there are none for the least k.
    scale = from_bits(b, to_bits(b, shifted) << fmt.shift)
    return horner(b, r, (1.0, pick(x, 0.6931472, LN_2), *EXP2.of(x))) * scale


def lowest(dtype: Dtype) -> float:
    """The score of what is masked: finite, so that a query that sees nothing gets the mean of all values."""
    return float(dt.finfo(dtype).min)


def in_bits(b: Builder, x: Value) -> Value:
    """x * log2(e); what is finite stays so."""
    least = lowest(x.dtype)
    return b.choose(b.abs(x).eq(float("inf")), x, at_most(b, at_least(b, x * LOG2_E, least), -least))
