"""The tiled kernel: products of which both sides are wider than a few rows, and everything that is short.

A task is a block of the output. It goes through k in chunks of `CHUNK`; per chunk it copies ("packs") what it needs of the operands
into scratch memory, unless they can be read where they lie, and then runs a register tile over the block. Each element of the output is

    P(0) + P(1) + …  from the left,    P(c) = … fma(a[i, k+1], b[k+1, j], fma(a[i, k], b[k, j], +0)) …  over the k of chunk c

whatever the tile, the block and the layouts: they only choose which elements are in flight together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from weft.codegen.builder import AnyValue, Value
from weft.codegen.matmul import elements as el
from weft.codegen.matmul.elements import Elements
from weft.codegen.matmul.frame import Frame, Part

CHUNK: Final = 256
"""Terms of one partial sum. Part of the specified order: another number gives other bits."""

_AHEAD: Final = 8  # rows of b that are fetched early when it is read in place: their pieces are too short for processors to guess

Read = Literal["direct", "rows", "columns", "any"]
"""How a kernel reads an operand: where it lies, or packed from contiguous rows, from contiguous columns, from any strides."""

WORDS: Final = (
    "tasks", "*a", "*b", "*out", "m", "n", "k", "a_row", "a_k", "b_k", "b_column", "chunks",
    "block_m", "block_n", "blocks_m", "blocks_n", "panel", "at_a", "at_partial", "at_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of the output that is held in registers: `rows` (a power of two) by `vectors` of `lanes` elements."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def turn(self) -> int:
        """Lanes of the square tiles that turn an operand round. Eight rows are few enough to stay in registers."""
        return min(self.lanes, 8)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a task keeps things, in bytes from the start of its scratch memory; packed panels of b, `panel` bytes each, come first."""

    panel: int
    at_a: int
    at_partial: int
    at_total: int
    size: int


@dataclass(slots=True)
class _Sums:
    """A block of sums in memory, as it is written: `row` bytes from row to row."""

    at: Value
    row: Value


class Gemm:
    """Writes the tiled kernel for one kind of elements, one tile and one way of reading each operand.

    `flipped`: the operands have changed places (a product with one column is computed as its transpose), so complex factors must too.
    `partial`: the output holds sums as they are in flight, because others will be added to them.
    """

    def __init__(self, kind: Elements, tile: Tile, read_a: Read, read_b: Read, *, flipped: bool, partial: bool) -> None:
        self.kind, self.tile, self.read_a, self.read_b = kind, tile, read_a, read_b
        self.flipped = flipped and kind.parts == 2
        self.wide = el.summing(kind)
        self.result = self.wide if partial else kind
        self.size = kind.work.size
        self.a_row = CHUNK * self.size  # bytes of a packed row of a
        self.panel_row = tile.columns * self.size  # bytes of one k in a packed panel of b

    @property
    def name(self) -> str:
        t, kinds = self.tile, f"{self.kind.memory.name}_{self.result.memory.name}"
        return f"gemm_{kinds}_{self.read_a}_{self.read_b}_{t.rows}x{t.vectors}x{t.lanes}{'_flipped' * self.flipped}"

    def scratch(self, block_m: int, block_n: int, k: int) -> Scratch:
        """The layout of scratch memory for blocks of that size."""
        rows = _round_up(block_m, self.tile.turn)
        panels = -(-block_n // self.tile.columns)
        panel = _round_up(min(k, CHUNK), self.tile.turn) * self.panel_row
        at_a = panels * panel if self.read_b != "direct" else 0
        at_partial = at_a + (rows * self.a_row if self.read_a != "direct" else 0)
        at_total = at_partial + rows * self.panel_row
        totals = rows * panels * self.panel_row if self.result.narrow else 0
        return Scratch(panel, at_a, at_partial, at_total, at_total + totals)

    def ir(self) -> str:
        self.frame = f = Frame(self.name, WORDS, 2)
        self.b = f.b
        with f.b.loop(f.begin, f.end, 1) as task:
            self._task(task.index)
        return f.module()

    def _task(self, task: Value) -> None:
        f, b, memory = self.frame, self.b, self.result.memory.size
        rest, block_i = f.divide(task, f["blocks_m"])
        member, block_j = f.divide(rest, f["blocks_n"])
        offset_a, offset_b = f.offsets(member)
        i, j = block_i * f["block_m"], block_j * f["block_n"]
        rows, columns = f.least(f["m"] - i, f["block_m"]), f.least(f["n"] - j, f["block_n"])
        a = b.gep(f["a"], offset_a + i * f["a_row"])
        right = b.gep(f["b"], offset_b + j * f["b_column"])
        out = b.gep(f["out"], ((member * f["m"] + i) * f["n"] + j) * memory)
        totals = _Sums(out, f["n"] * memory)
        if self.result.narrow:
            totals = _Sums(b.gep(f.scratch, f["at_total"]), f["block_n"] * self.size)
        with b.loop(0, f["chunks"], 1) as chunk:
            k = chunk.index * CHUNK
            depth = f.least(f["k"] - k, CHUNK)
            left = self._left(b.gep(a, k * f["a_k"]), rows, depth)
            panels = self._right(b.gep(right, k * f["b_k"]), columns, depth)
            self._block(left, panels, totals, rows, columns, depth, chunk.index.eq(0))
        if self.result.narrow:
            self._round(totals, out, rows, columns)

    # ---- packing ----

    def _left(self, a: Value, rows: Value, depth: Value) -> Value:
        """A chunk of `a` where it lies, or packed row by row."""
        if self.read_a == "direct":
            return a
        f, b = self.frame, self.b
        packed = b.gep(f.scratch, f["at_a"])

        def put(i: Value, k: Value, x: AnyValue) -> None:
            f.store(self.wide, x, b.gep(packed, i * self.a_row + k * self.size))

        if self.read_a == "columns":
            self._turn(a, f["a_k"], depth, rows, put)
        else:
            self._copy(a, f["a_row"], f["a_k"] if self.read_a == "any" else None, rows, depth, put)
        return packed

    def _right(self, right: Value, columns: Value, depth: Value) -> Value:
        """A chunk of `b` where it lies, or packed into panels as wide as the tile."""
        if self.read_b == "direct":
            return right
        f, b, lanes = self.frame, self.b, self.tile.lanes

        def put(k: Value, j: Value, x: AnyValue) -> None:
            panel, inside = f.divide(j, self.tile.columns)
            place = panel * f["panel"] + k * self.panel_row
            if self.kind.parts == 2:
                vector, lane = f.divide(inside, lanes)
                place = place + vector * (lanes * self.size) + lane * self.kind.part.size
            else:
                place = place + inside * self.size
            f.put_apart(x, b.gep(f.scratch, place), lanes * self.kind.part.size)

        if self.read_b == "columns":
            whole = (columns + (lanes - 1)) & -lanes  # so that no lane of a vector holds what was there before
            self._turn(right, f["b_column"], columns, depth, put, whole)
        else:
            self._copy(right, f["b_k"], f["b_column"] if self.read_b == "any" else None, depth, columns, put)
        return f.scratch

    def _copy(
        self, source: Value, row: Value, step: Value | None, rows: Value, columns: Value, put: Callable[[Value, Value, AnyValue], None]
    ) -> None:
        """`put(row, column, vector)` for all of a source whose rows are contiguous, or have elements `step` apart."""
        f, b, lanes = self.frame, self.b, self.tile.lanes
        with b.loop(0, rows, 1) as r:
            start = b.gep(source, r.index * row)

            def one(column: Value, part: Part | None) -> None:
                offset = column * (self.kind.memory.size if step is None else step)
                put(r.index, column, f.load(self.kind, b.gep(start, offset), lanes, part, step))

            f.sweep(columns, lanes, one)

    def _turn(
        self,
        source: Value, row: Value, rows: Value, columns: Value, put: Callable[[Value, Value, AnyValue], None], whole: Value | None = None,
    ) -> None:  # fmt: skip
        """`put(column, row, vector along rows)` for all of a source whose rows are contiguous, by square tiles.

        Rows past the last one (up to `whole`) repeat it.
        """
        f, b, turn = self.frame, self.b, self.tile.turn
        with b.loop(0, rows if whole is None else whole, turn) as strip:
            starts = [b.gep(source, f.least(strip.index + r, rows - 1) * row) for r in range(turn)]

            def one(column: Value, part: Part | None) -> None:
                at = column * self.kind.memory.size
                tile = el.turned(b, [f.load(self.kind, b.gep(start, at), turn, part) for start in starts])
                for c, x in enumerate(tile):
                    put(column + c, strip.index, x)

            f.sweep(columns, turn, one)

    # ---- computing ----

    def _block(
        self, left: Value, panels: Value, totals: _Sums, rows: Value, columns: Value, depth: Value, first: Value
    ) -> None:
        """A chunk's partial sums: written where the totals belong, or, after the first chunk, beside and then added to them."""
        f, b, tile = self.frame, self.b, self.tile
        partial = _Sums(b.gep(f.scratch, f["at_partial"]), b.i64(self.panel_row))
        with b.loop(0, columns, tile.columns) as panel:
            j = panel.index
            skip = j * self.size if self.read_b == "direct" else f.divide(j, tile.columns)[0] * f["panel"]
            right = b.gep(panels, skip)
            rest = f.least(columns - j, tile.columns)
            total = _Sums(b.gep(totals.at, j * self.size), totals.row)
            target = _Sums(b.choose(first, total.at, partial.at), b.choose(first, total.row, partial.row))
            for vectors in range(1, tile.vectors + 1):
                count = rest - (vectors - 1) * tile.lanes  # columns in the last vector
                with b.when((count > 0) & (count <= tile.lanes)):
                    last = f.part(count, tile.lanes)
                    self._strips(vectors, last, left, right, target, rows, depth)
            with b.when(~first):
                self._accumulate(partial, total, rows, rest)

    def _strips(
        self, vectors: int, last: Part, left: Value, right: Value, target: _Sums, rows: Value, depth: Value
    ) -> None:
        """Tiles from the first row to the last: whole ones, then one of each smaller power of two that is left."""
        b, height = self.b, self.tile.rows
        row = self.frame["a_row"] if self.read_a == "direct" else b.i64(self.a_row)

        def one(i: Value, height: int) -> None:
            place = _Sums(b.gep(target.at, i * target.row), target.row)
            self._tile(height, vectors, last, b.gep(left, i * row), right, place, depth)

        with b.loop(0, rows & -height, height) as strip:
            one(strip.index, height)
        while height := height // 2:
            with b.when((rows & height).ne(0)):
                one(rows & -(2 * height), height)

    def _tile(self, rows: int, vectors: int, last: Part, left: Value, right: Value, target: _Sums, depth: Value) -> None:
        """One register tile over one chunk."""
        f, b, lanes, kind = self.frame, self.b, self.tile.lanes, self.kind
        if self.read_a == "direct":
            offsets, a_step = [f["a_row"] * i for i in range(rows)], f["a_k"]
        else:
            offsets, a_step = [b.i64(self.a_row * i) for i in range(rows)], b.i64(self.size)
        b_step = f["b_k"] if self.read_b == "direct" else b.i64(self.panel_row)
        parts = [*[None] * (vectors - 1), last]
        nothing = el.zero(b, kind, lanes)
        with b.loop(0, depth, 1, left, right, *el.flat([nothing] * (rows * vectors))) as loop:
            at_a, at_b, *carried = loop.carried
            sums = el.unflat(kind, carried)
            y = [self._load_right(b.gep(at_b, v * lanes * self.size), parts[v]) for v in range(vectors)]
            if self.read_b == "direct":
                f.prefetch([b.gep(at_b, b_step * _AHEAD + v * lanes * self.size) for v in range(vectors)])
            for i, offset in enumerate(offsets):
                x = el.spread(b, f.load(self.wide, b.gep(at_a, offset), 1), lanes)
                for v in range(vectors):
                    factors = (y[v], x) if self.flipped else (x, y[v])
                    sums[i * vectors + v] = el.multiply_add(b, *factors, sums[i * vectors + v])
            loop.carry(b.gep(at_a, a_step), b.gep(at_b, b_step), *el.flat(sums))
        sums = el.unflat(kind, loop.carried[2:])
        for i in range(rows):
            start = b.gep(target.at, target.row * i)
            for v in range(vectors):
                f.store(self.wide, sums[i * vectors + v], b.gep(start, v * lanes * self.size), parts[v])

    def _load_right(self, at: Value, part: Part | None) -> AnyValue:
        if self.read_b == "direct":
            return self.frame.load(self.wide, at, self.tile.lanes, part)
        return self.frame.get_apart(self.kind, at, self.tile.lanes, self.tile.lanes * self.kind.part.size)

    def _accumulate(self, partial: _Sums, totals: _Sums, rows: Value, columns: Value) -> None:
        f, b, lanes, wide = self.frame, self.b, self.tile.lanes, self.wide
        with b.loop(0, rows, 1) as row:
            more, total = b.gep(partial.at, row.index * partial.row), b.gep(totals.at, row.index * totals.row)

            def one(j: Value, part: Part | None) -> None:
                at = b.gep(total, j * self.size)
                sums = el.add(f.load(wide, at, lanes, part), f.load(wide, b.gep(more, j * self.size), lanes, part))
                f.store(wide, sums, at, part)

            f.sweep(columns, lanes, one)

    def _round(self, totals: _Sums, out: Value, rows: Value, columns: Value) -> None:
        """Totals from scratch memory to the output: the one rounding of narrow elements."""
        f, b, lanes, memory = self.frame, self.b, self.tile.lanes, self.kind.memory.size
        with b.loop(0, rows, 1) as row:
            source, target = b.gep(totals.at, row.index * totals.row), b.gep(out, row.index * f["n"] * memory)

            def one(j: Value, part: Part | None) -> None:
                x = f.load(self.wide, b.gep(source, j * self.size), lanes, part)
                f.store(self.kind, x, b.gep(target, j * memory), part)

            f.sweep(columns, lanes, one)


def _round_up(x: int, step: int) -> int:
    return -(-x // step) * step
