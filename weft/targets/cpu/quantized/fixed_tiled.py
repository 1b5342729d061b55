"""The kernel for many rows of fixed-point numbers (fixed.py): tiles of exact sums over a group, and of totals in
memory.

An element of the output is, group after group from the left,

    t = fma(bias, sum of x over the group, fma(sum of codes times x * step, scale, t))

from 0 on. Rows of x lie as they are multiplied. Panels hold pairs of codes: what is a word of four bits after a shift
and a mask goes there as it is, so to unpack takes an eighth of the instructions that numbers would take.
"""

from __future__ import annotations

from typing import Any, ClassVar

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.llvm.builder import Value
from weft.records import replace
from weft.targets.cpu.matmul import gemm
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.gemm import CHUNK, Chunk, Rows, Sums, Tile, round_up
from weft.targets.cpu.quantized.codes import Codes
from weft.targets.cpu.quantized.fixed import NUMBER, FixedRow, pairs_added, row_at
from weft.targets.cpu.quantized.tiled import Scratch, Tiled

_PAIR = dt.int32.size  # bytes


class FixedTiled(Tiled):
    """Writes the kernel. `pairs`: how pairs are multiplied (`ProductMachine.pairs`)."""

    words: ClassVar[tuple[str, ...]] = (*Tiled.words, "at_steps")

    def __init__(self, kind: Elements, tile: Tile, codes: Codes, scales: Dtype, pairs: str, *, gathered: bool) -> None:
        super().__init__(kind, tile, "direct", codes, scales, turned=True, gathered=gathered)
        self.pairs = pairs
        self.groups = CHUNK // codes.packing.group  # of a chunk
        self.panel_steps = self.groups * 2 * self.panel_row  # bytes of a panel's scales and biases

    @property
    def name(self) -> str:
        return f"{super().name}_{self.pairs}"

    def scratch(self, block_m: int, block_n: int, k: int) -> Scratch:
        tile, panels = self.tile, -(-block_n // self.tile.columns)
        panel = min(round_up(k, self.codes.packing.group), CHUNK) // 2 * self.panel_row
        at_total = panels * (panel + self.panel_steps)
        # A low tile at the end has totals of rows that there are not.
        at_words = at_total + (block_m + tile.rows) * panels * self.panel_row
        words = CHUNK * self.codes.packing.bits // 32 * tile.lanes * dt.uint32.size
        return Scratch(panel, at_total, at_total, at_words + words, at_words)

    def at_steps(self, scratch: Scratch, block_n: int) -> int:
        """Where scales and biases of panels stand in scratch memory."""
        return -(-block_n // self.tile.columns) * scratch.panel

    # ---- where things are ----

    def _operands(self, member: Value) -> tuple[Any, Any]:
        at, right = super()._operands(member)
        return row_at(self.frame, at, self.frame["k"], self.codes.packing.group), right

    def _from_row(self, left: FixedRow, i: Value) -> FixedRow:
        return left.moved(i * self.frame["a_row"])

    def _below(self, left: FixedRow, i: Value) -> FixedRow:
        return self._from_row(left, i)

    def _left_of_chunk(self, left: FixedRow, chunk: Value) -> FixedRow:
        return left.along(self.frame, chunk * CHUNK, self.codes.packing.group)

    def _panel(self, j: Value) -> tuple[Value, Value]:
        """Where column j begins in the packed panels, and in their scales and biases."""
        f, b = self.frame, self.b
        panel, inside = f.divide(j, self.tile.columns)
        steps = b.gep(f.scratch, f["at_steps"] + panel * self.panel_steps + inside * self.size)
        return b.gep(f.scratch, panel * f["panel"] + inside * _PAIR), steps

    # ---- unpacking ----

    def _unpack_columns(self, chunk: Chunk) -> None:
        f, b, lanes, codes = self.frame, self.b, self.tile.lanes, self.codes
        whole = (chunk.columns + (lanes - 1)) & -lanes
        with b.loop(0, whole, lanes) as strip:
            matrices = self._strip_of(chunk, strip.index)
            target, steps = self._panel(strip.index)
            with b.loop(0, f.divide(chunk.depth, codes.codes)[0], 1) as unit:
                at = b.gep(target, unit.index * (codes.codes // 2 * self.panel_row))
                words = self._turned_words(unit.index)
                for i in range(codes.codes // 2):
                    b.store(codes.pair(b, words, i), b.gep(at, i * self.panel_row))
            with b.loop(0, f.divide(chunk.depth, codes.packing.group)[0], 1) as group:
                at = b.gep(steps, group.index * (2 * self.panel_row))
                scale, bias = self._steps(matrices, group.index)
                assert bias is not None
                b.store(scale, at)
                b.store(bias, b.gep(at, self.panel_row))

    # ---- computing ----

    def _block(self, chunk: Chunk, totals: Sums, first: Value) -> None:
        """Whole panels alone: totals have room for them."""
        b, tile = self.b, self.tile
        with b.loop(0, chunk.columns, tile.columns) as panel:
            part = replace(chunk, right=self._panel(panel.index))
            below = replace(totals, at=b.gep(totals.at, panel.index * self.size))
            self._strips(part, below, [None] * tile.vectors, first)

    def _tile(self, chunk: Chunk, target: Sums, rows: Rows, parts: gemm.Parts, first: Value) -> None:
        """Group by group. Rows that are the same have totals of their own, of which those past the end mean nothing."""
        f, b, lanes, group = self.frame, self.b, self.tile.lanes, self.codes.packing.group
        lines = [target.line(i) for i in range(len(rows))]
        left = [chunk.left.moved(f["a_row"] * i) for i in rows]
        codes, steps = chunk.right
        columns = [v * lanes * self.size for v in range(self.tile.vectors)]
        with b.when(chunk.depth.eq(0)):
            for line in lines:
                for column in columns:
                    b.store(b.const(dt.float32, 0, lanes), b.gep(line, column))
        with b.loop(0, f.divide(chunk.depth, group)[0], 1) as number:
            g = number.index
            below = b.gep(codes, g * (group // 2 * self.panel_row))
            sums = self._group_sums([b.gep(x.numbers, g * (group * NUMBER)) for x in left], below, columns)
            fresh = first & g.eq(0)
            at = b.gep(steps, g * (2 * self.panel_row))
            scales, biases = (
                [b.load(b.gep(at, skip + column), dt.float32, lanes) for column in columns]
                for skip in (0, self.panel_row)
            )
            for i, (line, x) in enumerate(zip(lines, left, strict=True)):
                step, total = (b.splat(self._one(at, g), lanes) for at in (x.steps, x.sums))
                for v, column in enumerate(columns):
                    at = b.gep(line, column)
                    before = b.choose(fresh, 0.0, b.load(at, dt.float32, lanes))  # type: ignore[arg-type]
                    exact = b.cast(sums[i * len(columns) + v], dt.float32) * step
                    b.store(b.fma(total, biases[v], b.fma(exact, scales[v], before)), at)  # type: ignore[arg-type]

    def _one(self, at: Value, number: Value) -> Value:
        one = self.b.load(self.b.gep(at, number * dt.float32.size), dt.float32, 1)
        assert isinstance(one, Value)
        return one

    def _group_sums(self, left: list[Value], right: Value, columns: list[int]) -> list[Value]:
        """The exact sums of a tile over a group, row by row."""
        b, lanes = self.b, self.tile.lanes
        zero = b.const(dt.int32, 0, lanes)
        together = 2
        with b.loop(0, self.codes.packing.group // 2, together, right, *[zero] * (len(left) * len(columns))) as loop:
            at, *sums = loop.carried
            for p in range(together):
                y = [b.load(b.gep(at, p * self.panel_row + column), dt.int32, lanes) for column in columns]
                for i, row in enumerate(left):
                    x = b.splat(b.load(b.gep(row, loop.index * _PAIR + p * _PAIR), dt.int32, 1), lanes)  # type: ignore[arg-type]
                    for v, codes in enumerate(y):
                        n = i * len(y) + v
                        sums[n] = pairs_added(b, sums[n], x, codes, self.pairs)  # type: ignore[arg-type]
            loop.carry(b.gep(at, together * self.panel_row), *sums)
        return list(loop.carried[1:])
