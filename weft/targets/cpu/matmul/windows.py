"""Convolutions as tiled products whose left operand is windows of an array.

An element of that operand lies where its row (a place of the window, say) and its column (a place inside the window and
a channel) say together: their offsets are added, and so are their coordinates along the axes where a window may reach
beyond the array, where it is 0. No window is ever copied whole: the offsets and coordinates of the rows of a block and
of the columns of a chunk are written into two tables. By these the chunk is packed, or, if its elements need not be
widened and lie together, read where it lies (`RunsInPlace`, `PlacesInPlace`); an element that does not exist is read
from a row of zeros then.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, Final, Literal

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.transposes import transposed
from weft.config import config
from weft.graph.dims import dim_max
from weft.llvm.builder import PTR, AnyValue, Value
from weft.llvm.engine import Source
from weft.primitives.convolution import Convolve, ConvolveBack, ConvolveWeights, Windows, few_in_groups
from weft.records import dataclass, replace
from weft.runtime.threads import get_threads
from weft.targets.axes import Axis, axes_of, merged, row_major, scaled
from weft.targets.cpu import moves
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul import few_outputs, gemm, groups, panels, residues
from weft.targets.cpu.matmul.combine import combined
from weft.targets.cpu.matmul.elements import Elements, elements_of
from weft.targets.cpu.matmul.frame import Part, ProductFrame, Word, block
from weft.targets.cpu.matmul.gemm import CHUNK, Chunk, Gemm, Sums, Tile
from weft.targets.cpu.matmul.lowering import largest_blocks, output_blocks
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.matmul.panels import Matrix
from weft.targets.cpu.matmul.residues import ConvolutionPart, Placed
from weft.targets.cpu.matmul.tasks import COLUMNS, equal_blocks, even_blocks, grain_of, tasks_for

Way = Literal["runs", "across", "single"]
"""What lies together: the columns of a row (in runs), several rows, or nothing."""

_RUN: Final = 16  # elements that lie together, for which finding out where is worth it at each tile
_TOGETHER: Final = 4
_WIDE: Final = 128  # columns of the right operand, more of which make packing rows that lie together worth it
_ACROSS: Final = 1.15  # how much longer a tile takes whose rows are of several runs, with an address for each
_CACHED: Final = 1 << 20  # bytes of a right operand that stay in a second-level cache
_FROM_CACHE, _FROM_MEMORY = 4, 12  # rows that take as long as fetching the columns that they are multiplied with
_SHARES, _ROWS = 16, 126  # blocks of less rows are no better, if there are so many times as many as are wanted
_EVEN: Final = 1.04  # how many times the work of others a thread may have
_CHUNKS: Final = 8  # fewer are not worth being tasks of their own
_SUM: Final = 4  # terms that take as long as writing or reading a sum
_FROM_SHARED: Final = 48  # rows that take as long as fetching columns where more than two threads ask for them
_PAYS: Final = 0.92  # of the time that it would take otherwise
_LONGEST: Final = 512  # rows of a run that are multiplied with a packed block of the right operand


@dataclass(frozen=True, slots=True)
class _Place:
    """An axis of the rows or of the columns: size, step in bytes, and the coordinate that it moves, by how much."""

    size: int
    step: int
    along: int = -1
    by: int = 0


class WindowGemm(Gemm):
    """Writes the kernel for windows. `rows` and `columns` say for each of their axes which coordinate it moves (-1:
    none), `checks` how many coordinates there are. With `way` "runs" the last axis of the columns, which is contiguous,
    is copied in one go; with "across" `span` rows are. Rows of the output that do not follow each other are `scattered`
    along so many axes."""

    title = "windows"

    def __init__(
        self,
        kind: Elements,
        tile: Tile,
        read_b: gemm.Read,
        rows: tuple[int, ...],
        columns: tuple[int, ...],
        checks: int,
        way: Way,
        span: int = 1,
        scattered: int = 0,
    ) -> None:
        super().__init__(kind, tile, "any", read_b, flipped=False, partial=False)
        self.rows, self.columns, self.checks, self.way, self.span = rows, columns, checks, way, span
        self.scattered = scattered
        words = [*gemm.WORDS, "out_row", "at_rows", "at_columns", "at_zeros", "zeros", "run", "base"]
        words += ["at_places", *(f"{name}{axis}" for axis in range(scattered) for name in ("o", "os"))]
        for letter, axes in (("r", rows), ("c", columns)):
            for axis, along in enumerate(axes):
                words += [f"{letter}{axis}", f"{letter}s{axis}", *([f"{letter}b{axis}"] if along >= 0 else [])]
        words += [f"{name}{axis}" for axis in range(checks) for name in ("first", "size")]
        self.words = tuple(words)  # type: ignore[misc]
        self.parted = False
        self._runs: Value
        """How many runs the chunk has that is being packed."""
        self._member: Value
        """Where the output of the member of the batch begins, in bytes."""

    @property
    def name(self) -> str:
        marks = "_".join("".join("x" if a < 0 else str(a) for a in axes) for axes in (self.rows, self.columns))
        more = (f"_at{self.scattered}" if self.scattered else "") + "_parted" * self.parted
        return f"{self.title}_{marks}_of{self.checks}_{self.way}{self.span}{more}_{super().name}"

    def part(self) -> None:
        """Make chunks tasks of their own, some at a time, whose sums lie apart, as they are in flight, until
        `combine.py` adds them up."""
        self.parted, self.result, self.apart = True, self.wide, False
        self.words = (*self.words, "parts", "per", "part")  # type: ignore[misc]

    @property
    def operands(self) -> int:
        return 3

    def _operands(self, member: Value) -> tuple[Value, Any]:
        f = self.frame
        offset_a, offset_b, self._member = f.offsets(member)
        return self.b.gep(f["a"], offset_a), self.b.gep(f["b"], offset_b)

    def _chunks(self, task: Value) -> tuple[Value, Value, Value]:
        f = self.frame
        if not self.parted:
            return super()._chunks(task)
        block, number = f.divide(task, f["parts"])
        begin = number * f["per"]
        return block, begin, f.least(begin + f["per"], f["chunks"])

    def _totals(self, totals: Sums, chunk: Value) -> tuple[Sums, Value]:
        if not self.parted:
            return super()._totals(totals, chunk)
        return replace(totals, at=self.b.gep(totals.at, chunk * self.frame["part"])), self.b.i64(0)

    def _output(self, member: Value, i: Value, j: Value) -> Sums:
        f, b = self.frame, self.b
        if self.parted:
            return super()._output(member, i, j)
        start = b.gep(f["out"], self._member + j * self.kind.memory.size)
        if not self.scattered:
            return Sums(b.gep(start, i * f["out_row"]), f["out_row"])
        table = b.gep(f.scratch, f["at_places"])
        with f.walk(i, f.least(f["m"] - i, f["block_m"]), "o", self.scattered) as (row, indices):
            place = b.i64(0)
            for axis, index in enumerate(indices):
                place = place + index * f[f"os{axis}"]
            b.store(place, b.gep(table, row * 8))
        return Sums(start, f["out_row"], table)

    # ---- tables ----

    @property
    def _row_entry(self) -> int:
        """Bytes of an entry of the table of rows: an offset, then coordinates."""
        return 8 * (1 + self.checks)

    @property
    def _column_entry(self) -> int:
        """Bytes of an entry of the table of columns: the same; of a run also where it goes, and its length."""
        return 8 * (1 + self.checks + 2 * (self.way == "runs"))

    def _located(
        self, indices: Sequence[Value], letter: str, axes: Sequence[int], first: Sequence[Value]
    ) -> list[Value]:
        """The offset and the coordinates of a row, or of a column."""
        f = self.frame
        offset, *coordinates = first
        for axis, (index, along) in enumerate(zip(indices, axes, strict=True)):
            offset = offset + index * f[f"{letter}s{axis}"]
            if along >= 0:
                coordinates[along] = coordinates[along] + index * f[f"{letter}b{axis}"]
        return [offset, *coordinates]

    def _put(self, at: Value, values: Sequence[Value]) -> None:
        for i, value in enumerate(values):
            self.b.store(value, self.b.gep(at, 8 * i))

    def _got(self, at: Value) -> list[Value]:
        return [self.b.word(at, i) for i in range(1 + self.checks)]

    def _from_row(self, left: Any, i: Value) -> Any:
        """Write the table of the block's rows."""
        f, b = self.frame, self.b
        first = [f["base"], *(f[f"first{axis}"] for axis in range(self.checks))]
        with f.walk(i, f.least(f["m"] - i, f["block_m"]), "r", len(self.rows)) as (row, indices):
            found = self._located(indices, "r", self.rows, first)
            self._put(b.gep(f.scratch, f["at_rows"] + row * self._row_entry), found)
        return left

    def _left_of_chunk(self, left: Any, chunk: Value) -> Any:
        """Write the table of the chunk's columns, or of their runs. What begins before the chunk or ends behind it is
        cut."""
        f, b, size = self.frame, self.b, self.kind.memory.size
        begin = chunk * CHUNK
        depth = f.least(f["k"] - begin, CHUNK)
        first = [b.i64(0)] * (1 + self.checks)
        table = b.gep(f.scratch, f["at_columns"])
        if self.way != "runs":
            with f.walk(begin, depth, "c", len(self.columns)) as (column, indices):
                found = self._located(indices, "c", self.columns, first)
                self._put(b.gep(table, column * self._column_entry), found)
            return left
        number, skip = f.divide(begin, f["run"])
        self._runs = f.divide(skip + depth + (f["run"] - 1), f["run"])[0]
        with f.walk(number, self._runs, "c", len(self.columns)) as (run, indices):
            start = run * f["run"] - skip
            before = b.choose(start < 0, -start, 0)
            to = start + before
            count = f.least(f["run"] - before, depth - to)
            offset, *coordinates = self._located(indices, "c", self.columns, first)
            entry = [offset + before * size, *coordinates, to * self.size, count]
            self._put(b.gep(table, run * self._column_entry), entry)
        return left

    # ---- packing ----

    def _exists(self, row: Sequence[Value], column: Sequence[Value]) -> Value | None:
        """Whether an element is one of the array's; None if all are."""
        f, b = self.frame, self.b
        inside: Value | None = None
        for axis in range(self.checks):
            place = b.like(column[1 + axis], row[1 + axis]) + column[1 + axis]
            # As a number without a sign one below 0 is larger than all sizes.
            size = b.like(place, f[f"size{axis}"])
            here = b.op(f"icmp ult {place.type} {place.text}, {size.text}", dt.bool_, place.lanes)
            inside = here if inside is None else inside & here
        return inside

    def _pack_left(self, chunk: Chunk) -> Value:
        f, b = self.frame, self.b
        packed = b.gep(f.scratch, f["at_a"])
        {"runs": self._pack_runs, "across": self._pack_across, "single": self._pack_single}[self.way](chunk, packed)
        return packed

    def _pack_runs(self, chunk: Chunk, packed: Value) -> None:
        f, b, lanes = self.frame, self.b, self.tile.lanes
        table = b.gep(f.scratch, f["at_columns"])
        with b.loop(0, chunk.rows, 1) as row:
            place = self._got(b.gep(f.scratch, f["at_rows"] + row.index * self._row_entry))
            target = b.gep(packed, row.index * self.a_row)
            with b.loop(0, self._runs, 1) as run:
                entry = b.gep(table, run.index * self._column_entry)
                column = self._got(entry)
                to, count = (b.word(entry, 1 + self.checks + i) for i in range(2))
                source, here = b.gep(chunk.left, place[0] + column[0]), b.gep(target, to)

                def copied(j: Value, part: Part | None, source: Value = source, here: Value = here) -> None:
                    x = f.load(self.kind, b.gep(source, j * self.kind.memory.size), lanes, part)
                    f.store(self.wide, x, b.gep(here, j * self.size), part)

                def cleared(j: Value, part: Part | None, here: Value = here) -> None:
                    f.store(self.wide, el.zero(b, self.kind, lanes), b.gep(here, j * self.size), part)

                exists = self._exists(place, column)
                if exists is None:
                    f.sweep(count, lanes, copied)
                else:
                    with b.when(exists):
                        f.sweep(count, lanes, copied)
                    with b.when(~exists):
                        f.sweep(count, lanes, cleared)

    def _read(self, base: Value, row: Sequence[Value], column: Sequence[Value], lanes: int) -> AnyValue:
        """Elements that exist, or zeros."""
        f, b = self.frame, self.b
        exists, offset = self._exists(row, column), row[0] + column[0]
        if exists is None:
            return f.load(self.kind, b.gep(base, offset), lanes)
        x = f.load(self.kind, b.gep(base, b.choose(exists, offset, 0)), lanes)
        return b.select(exists, x, el.zero(b, self.kind, lanes))

    def _pack_single(self, chunk: Chunk, packed: Value) -> None:
        f, b = self.frame, self.b
        table = b.gep(f.scratch, f["at_columns"])
        with b.loop(0, chunk.rows, 1) as row:
            place = self._got(b.gep(f.scratch, f["at_rows"] + row.index * self._row_entry))
            target = b.gep(packed, row.index * self.a_row)
            with b.loop(0, chunk.depth, 1) as k:
                column = self._got(b.gep(table, k.index * self._column_entry))
                f.store(self.wide, self._read(chunk.left, place, column, 1), b.gep(target, k.index * self.size))

    def _pack_across(self, chunk: Chunk, packed: Value) -> None:
        """In squares: `span` rows that lie together at as many columns, turned round."""
        f, b, span = self.frame, self.b, self.span
        table = b.gep(f.scratch, f["at_columns"])
        with b.loop(0, chunk.depth, span) as k:
            # What stands behind the last column of a row is not read.
            numbers = [f.least(k.index + i, chunk.depth - 1) for i in range(span)]
            columns = [self._got(b.gep(table, number * self._column_entry)) for number in numbers]
            target = b.gep(packed, k.index * self.size)
            with b.loop(0, chunk.rows, span) as row:
                place = self._got(b.gep(f.scratch, f["at_rows"] + row.index * self._row_entry))
                square = [self._read(chunk.left, place, column, span) for column in columns]
                for i, x in enumerate(transposed(b, square)):
                    f.store(self.wide, x, b.gep(target, (row.index + i) * self.a_row))


class RunsInPlace(WindowGemm):
    """Reads the runs of rows where they lie: a tile goes from run to run, and looks up where those of its rows begin.

    Where windows may reach beyond the array, that is found out once for each chunk of a block, and not for each panel
    of the right operand: `starts`, a line of addresses for each run. Elsewhere it is the sum of two offsets. While a
    tile is multiplied, the rows of the next one are asked for: `tile` bytes further, `pace` bytes at each step."""

    title = "windows_in_place"

    def __init__(
        self, kind: Elements, tile: Tile, read_b: gemm.Read, rows: Any, columns: Any, checks: int, scattered: int = 0
    ) -> None:
        super().__init__(kind, tile, read_b, rows, columns, checks, "runs", scattered=scattered)
        self.a_row = 0  # nothing is packed
        self.words = (*self.words, "at_starts", "row_line", "tile", "pace")  # type: ignore[misc]
        self._base: Value

    def _operands(self, member: Value) -> tuple[Value, Any]:
        self._base, right = super()._operands(member)
        _clear(self.frame)
        return self._base, right

    def _row_line(self, number: int) -> Value:
        """Where a line of the table of rows begins: first offsets, then coordinates along each axis."""
        f = self.frame
        return self.b.gep(f.scratch, f["at_rows"] + f["row_line"] * number)

    def _from_row(self, left: Any, i: Value) -> Any:
        f, b, last = self.frame, self.b, len(self.rows) - 1
        first = [f["base"], *(f[f"first{axis}"] for axis in range(self.checks))]
        count = f.least(f["m"] - i, f["block_m"])
        if last < 0:  # one row
            for number, value in enumerate(first):
                b.store(value, self._row_line(number))
            return left
        size = f[f"r{last}"]
        line, skip = f.divide(i, size)
        steps = [b.i64(0)] * (1 + self.checks)
        steps[0] = f[f"rs{last}"]
        if self.rows[last] >= 0:
            steps[1 + self.rows[last]] = f[f"rb{last}"]
        # Along the last axis one row is a step from the one before it.
        with f.walk(line, f.divide(skip + count + (size - 1), size)[0], "r", last) as (turn, indices):
            start = turn * size - skip
            begin, end = b.intrinsic("smax", start, b.i64(0)), f.least(start + size, count)
            found = self._located([*indices, begin - start], "r", self.rows, first)
            with b.loop(begin, end, 1, *found) as row:
                for at, value in enumerate(row.carried):
                    b.store(value, b.gep(self._row_line(at), row.index * 8))
                row.carry(*(value + step for value, step in zip(row.carried, steps, strict=True)))
        return left

    def _pack_left(self, chunk: Chunk) -> Value:
        f, b, lanes = self.frame, self.b, self.tile.turn
        if not self.checks:
            return self._row_line(0)
        starts, table = b.gep(f.scratch, f["at_starts"]), b.gep(f.scratch, f["at_columns"])
        address, nowhere = (
            b.op(f"ptrtoint ptr {at.text} to i64", dt.int64, 1) for at in (self._base, b.gep(f.scratch, f["at_zeros"]))
        )
        with b.loop(0, self._runs, 1) as run:
            column = self._got(b.gep(table, run.index * self._column_entry))
            target = b.gep(starts, run.index * f["row_line"])
            ahead = [b.splat(value, lanes) for value in (address + column[0], *column[1:])]
            with b.loop(0, chunk.rows, lanes) as row:  # there is room for rows past the last
                places = [
                    b.load(b.gep(self._row_line(n), row.index * 8), dt.int64, lanes) for n in range(1 + self.checks)
                ]
                exists = self._exists(el.flat(places), ahead)
                assert exists is not None
                at = b.choose(exists, el.flat(places)[0] + ahead[0], b.splat(nowhere, lanes))
                b.store(at, b.gep(target, row.index * 8))
        return starts

    def _below(self, left: Any, i: Value) -> Any:
        return self.b.gep(left, i * 8)

    def _products(self, chunk: Chunk, rows: gemm.Rows, columns: gemm.Columns) -> list[AnyValue]:
        f, b, kind, lanes = self.frame, self.b, self.kind, self.tile.lanes
        table = b.gep(f.scratch, f["at_columns"])
        words = [b.i64(8) * i for i in rows]
        offsets = [] if self.checks else [b.word(b.gep(chunk.left, at), 0) for at in words]
        sums = el.flat([el.zero(b, kind, lanes)] * (len(rows) * len(columns)))
        with b.loop(0, self._runs, 1, chunk.left, chunk.right, *sums) as run:
            line, *before = run.carried
            entry = b.gep(table, run.index * self._column_entry)
            count = b.word(entry, 2 + self.checks)
            if self.checks:
                starts = [b.word(b.gep(line, at), 0, PTR) for at in words]
            else:
                ahead = b.gep(self._base, b.word(entry, 0))
                starts = [b.gep(ahead, offset) for offset in offsets]
            with b.loop(0, count, 1, b.gep(starts[0], f["tile"]), *before) as k:
                coming, at_b, *carried = k.carried
                y = self._row_of_right(at_b, columns)
                f.prefetch([coming])
                here = [b.gep(start, k.index * self.size) for start in starts]
                sums = el.flat(self._added(el.unflat(kind, carried), here, y))
                k.carry(b.gep(coming, f["pace"]), b.gep(at_b, self._right_step), *sums)
            run.carry(b.gep(line, f["row_line"]), *k.carried[1:])
        return el.unflat(kind, run.carried[2:])


class PlacesInPlace(WindowGemm):
    """Reads rows that lie together where they lie, `run` of them: where they begin at each column of a chunk is written
    into a table. If `aligned`, tiles do not reach from one run into the next, so all rows of a tile lie together; nor
    from one `piece` of a run into the next."""

    title = "windows_by_place"

    def __init__(
        self,
        kind: Elements,
        tile: Tile,
        read_b: gemm.Read,
        rows: Any,
        columns: Any,
        checks: int,
        aligned: bool,
        scattered: int = 0,
    ) -> None:
        super().__init__(kind, tile, read_b, rows, columns, checks, "single", int(aligned), scattered)
        self.a_row, self.aligned = 0, aligned
        self.words = (*self.words, "piece")  # type: ignore[misc]
        self._base: Value
        self._first: Value
        """The first row of the block."""
        self._together: tuple[Value, Value]
        """The first and the last of the rows of the block, counted in runs."""

    def _operands(self, member: Value) -> tuple[Value, Any]:
        self._base, right = super()._operands(member)
        _clear(self.frame)
        return self._base, right

    def _from_row(self, left: Any, i: Value) -> Any:
        f = self.frame
        self._first = i
        last = f.least(i + f["block_m"], f["m"]) - 1
        self._together = f.divide(i, f["run"])[0], f.divide(last, f["run"])[0]
        return left

    def _left_of_chunk(self, left: Any, chunk: Value) -> Any:
        """Write where each run of the block begins at each column. First come offsets and coordinates of the columns,
        each in a line of its own, so that vectors of them are taken together."""
        f, b, lanes = self.frame, self.b, self.tile.turn
        begin, zeros = chunk * CHUNK, b.gep(f.scratch, f["at_zeros"])
        depth = f.least(f["k"] - begin, CHUNK)
        lines = [b.gep(f.scratch, f["at_rows"] + 8 * CHUNK * i) for i in range(1 + self.checks)]
        with f.walk(begin, depth, "c", len(self.columns)) as (column, indices):
            found = self._located(indices, "c", self.columns, [b.i64(0)] * (1 + self.checks))
            for line, value in zip(lines, found, strict=True):
                b.store(value, b.gep(line, column * 8))
        first = [f["base"], *(f[f"first{axis}"] for axis in range(self.checks))]
        start, last = self._together
        address = b.op(f"ptrtoint ptr {left.text} to i64", dt.int64, 1)
        nowhere = b.op(f"ptrtoint ptr {zeros.text} to i64", dt.int64, 1)
        with f.walk(start, last + 1 - start, "r", len(self.rows)) as (run, indices):
            row = self._located(indices, "r", self.rows, [address + first[0], *first[1:]])
            target = b.gep(f.scratch, f["at_columns"] + run * (8 * CHUNK))
            with b.loop(0, depth, lanes) as column:
                places = el.flat([b.load(b.gep(line, column.index * 8), dt.int64, lanes) for line in lines])
                at, exists = b.splat(row[0], lanes) + places[0], self._exists(row, places)
                at = at if exists is None else b.choose(exists, at, b.splat(nowhere, lanes))
                b.store(at, b.gep(target, column.index * 8))
        return left

    def _pack_left(self, chunk: Chunk) -> Value:
        return self.b.i64(0)

    def _below(self, left: Any, i: Value) -> Any:
        return left + i

    def _strips(self, chunk: Chunk, target: Sums, parts: gemm.Parts, first: Value) -> None:
        if not self.aligned:
            super()._strips(chunk, target, parts, first)
            return
        f, b, piece, start = self.frame, self.b, self.frame["piece"], self._first
        last = f.divide(start + chunk.rows - 1, piece)[0]
        with b.loop(f.divide(start, piece)[0], last + 1, 1) as number:
            place = number.index * piece - start
            begin, end = b.intrinsic("smax", place, b.i64(0)), f.least(place + piece, chunk.rows)
            below = replace(chunk, left=self._below(chunk.left, begin), rows=end - begin)
            super()._strips(below, target.below(begin), parts, first)

    def _products(self, chunk: Chunk, rows: gemm.Rows, columns: gemm.Columns) -> list[AnyValue]:
        f, b, kind, lanes = self.frame, self.b, self.kind, self.tile.lanes
        lines = []
        for i in rows[:1] if self.aligned else rows:
            run, inside = f.divide(self._first + chunk.left + i, f["run"])
            line = b.gep(f.scratch, f["at_columns"] + (run - self._together[0]) * (8 * CHUNK))
            lines.append((line, inside * self.size))
        sums = el.flat([el.zero(b, kind, lanes)] * (len(rows) * len(columns)))
        with b.loop(0, chunk.depth, 1, chunk.right, *sums) as k:
            at_b, *carried = k.carried
            y = self._row_of_right(at_b, columns)
            here = [b.gep(b.word(b.gep(line, k.index * 8), 0, PTR), inside) for line, inside in lines]
            if self.aligned:
                here = [b.gep(here[0], b.i64(self.size) * i) for i in rows]
            k.carry(b.gep(at_b, self._right_step), *el.flat(self._added(el.unflat(kind, carried), here, y)))
        return el.unflat(kind, k.carried[1:])


class FewColumns(PlacesInPlace):
    """The same for a right operand of so few columns that vectors of rows are better than vectors of them: `together`
    runs, some vectors of each (the tile's), with all columns. Sums are turned round when they are finished."""

    title = "windows_of_few"

    def __init__(
        self, kind: Elements, tile: Tile, columns: int, together: int, rows: Any, columns_of: Any, checks: int
    ) -> None:
        super().__init__(kind, tile, "direct", rows, columns_of, checks, aligned=True)
        self.few, self.together, self.apart = columns, together, True

    @property
    def name(self) -> str:
        return f"{super().name}_{self.few}x{self.together}"

    def scratch(self, block_m: int, block_n: int, k: int) -> gemm.Scratch:
        return gemm.Scratch(0, 0, 0, self.few * (block_m + self.tile.columns) * self.size)

    def _block(self, chunk: Chunk, totals: Sums, first: Value) -> None:
        f, b = self.frame, self.b
        start, last = self._together
        runs = last + 1 - start
        whole = runs - f.divide(runs, self.together)[1]
        with b.loop(0, whole, self.together) as run:
            self._runs_together(chunk, run.index, self.together, first)
        if self.together > 1:
            with b.loop(whole, runs, 1) as run:
                self._runs_together(chunk, run.index, 1, first)

    def _total_at(self, run: Value, column: int, row: Value) -> Value:
        """Where sums lie: those of a run together, column by column."""
        f = self.frame
        return self.b.gep(f.scratch, f["at_total"] + ((run * self.few + column) * f["run"] + row) * self.size)

    def _runs_together(self, chunk: Chunk, run: Value, count: int, first: Value) -> None:
        f, b, tile, lanes = self.frame, self.b, self.tile, self.tile.lanes
        with b.loop(0, f["run"], tile.columns) as row:
            rows = f.least(f["run"] - row.index, tile.columns)
            for vectors in range(1, tile.vectors + 1):
                last = rows - (vectors - 1) * lanes
                with b.when((last > 0) & (last <= lanes)):
                    part = f.leading(last, lanes)
                    parts = [None if v < vectors - 1 else part for v in range(vectors)]
                    self._tile_of_runs(chunk, run, row.index, count, parts, first)

    def _tile_of_runs(
        self, chunk: Chunk, run: Value, row: Value, count: int, parts: Sequence[Part | None], first: Value
    ) -> None:
        f, b, kind, lanes, few = self.frame, self.b, self.kind, self.tile.lanes, self.few
        lines = [b.gep(f.scratch, f["at_columns"] + (run + r) * (8 * CHUNK)) for r in range(count)]
        vector = lanes * self.size
        sums = el.flat([el.zero(b, kind, lanes)] * (count * len(parts) * few))
        with b.loop(0, chunk.depth, 1, chunk.right, *sums) as k:
            at, *carried = k.carried
            starts = [b.gep(b.word(b.gep(line, k.index * 8), 0, PTR), row * self.size) for line in lines]
            x = [
                f.load(kind, b.gep(start, v * vector), lanes, part) for start in starts for v, part in enumerate(parts)
            ]
            total = el.unflat(kind, carried)
            for c in range(few):
                y = el.spread(b, f.load(kind, b.gep(at, self.size * c), 1), lanes)
                for i, seen in enumerate(x):
                    total[c * len(x) + i] = el.multiply_add(b, seen, y, total[c * len(x) + i])
            k.carry(b.gep(at, f["b_k"]), *el.flat(total))
        places = [
            (b.gep(self._total_at(run + r, c, row), v * vector), part)
            for c in range(few)
            for r in range(count)
            for v, part in enumerate(parts)
        ]
        made = list(zip(el.unflat(kind, k.carried[1:]), places, strict=True))
        with b.when(first):
            for x_sum, (to, part) in made:
                f.store(self.wide, x_sum, to, part)
        with b.when(~first):
            for x_sum, (to, part) in made:
                f.store(self.wide, el.add(f.load(self.wide, to, lanes, part), x_sum), to, part)

    def _round(self, totals: Sums, out: Sums, rows: Value, columns: Value) -> None:
        f, b = self.frame, self.b
        start, last = self._together
        with b.loop(0, last + 1 - start, 1) as run, b.loop(0, f["run"], 1) as row:
            line = out.line(run.index * f["run"] + row.index)
            for c in range(self.few):
                total = f.load(self.wide, self._total_at(run.index, c, row.index), 1)
                f.store(self.kind, total, b.gep(line, c * self.kind.memory.size))


def _clear(f: ProductFrame) -> None:
    """Write the zeros that stand for elements that do not exist."""
    b = f.b
    with b.loop(0, f["zeros"], 8) as byte:
        b.store(b.i64(0), b.gep(f.scratch, f["at_zeros"] + byte.index))


# ---- lowering ----


def convolve(op: Convolve, x: Layout, w: Layout, out: Layout) -> Lowering:
    """Pointers: 0 is x, 1 is w, 2 is out, 3 a copy of w where its elements do not lie in rows."""
    if op.groups > 1 and few_in_groups(int(w.shape[-1]), int(out.shape[-1]) // op.groups):
        return groups.convolve(op, x, w, out)
    if math.prod(out.shape) == 0:
        return Lowering(())
    part = ConvolutionPart(op.windows, Placed(x, Pointer(0)), Placed(w, Pointer(1)), Placed(out, Pointer(2)))
    return (few_outputs.lower([part]) if op.groups == 1 else None) or _convolve(op.groups, part)


def convolve_back(op: ConvolveBack, x: Layout, w: Layout, out: Layout) -> Lowering:
    """The launches of all residues, each with its own places. Pointers: 0 x, 1 w, 2 out, 3 a copy of w, 4 of x."""
    if math.prod(out.shape) == 0:
        return Lowering(())
    few = op.groups > 1 and few_in_groups(int(w.shape[-1]), int(out.shape[-1]) // op.groups)
    lower = groups.convolve_part if few else _convolve
    operands = Placed(x, Pointer(0)), Placed(w, Pointer(1)), Placed(out, Pointer(2))
    parts = list(residues.parts_of(op, *operands))
    together = few_outputs.lower(parts) if op.groups == 1 else None
    if together is not None:
        return together
    apart = [lower(op.groups, part.cut()) for part in parts]
    # One is done after the other, so they share what they need.
    temporaries = [each.temporaries for each in apart if each.temporaries]
    shared = tuple([functools.reduce(dim_max, sizes) for sizes in zip(*temporaries, strict=True)])
    return Lowering(tuple([launch for each in apart for launch in each.launches]), shared)


def _convolve(groups: int, part: ConvolutionPart) -> Lowering:
    """Rows are places of the window, columns what it sees."""
    windows, x, w, out = part.windows, part.x, part.w, part.out
    d = len(windows)
    steps, sizes = scaled(x.layout), out.layout.shape[-d - 1 : -1]
    kernel = w.layout.shape[-d - 1 : -1]
    over = _over(windows, x.layout, sizes, kernel)
    images = _Place(x.layout.shape[-d - 2], steps[-d - 2])
    rows = [images, *_spatial(windows, over, sizes, [w.step for w in windows], steps[-d - 1 : -1])]
    columns = [
        *_spatial(windows, over, kernel, [w.gap for w in windows], steps[-d - 1 : -1]),
        _Place(w.layout.shape[-1], steps[-1]),
    ]
    return _lowering(windows, groups, x, w, out, over, rows, columns, slice(-d - 1, None), -d - 2)


def convolve_weights(op: ConvolveWeights, x: Layout, y: Layout, out: Layout) -> Lowering:
    """Rows are the elements of the weights, columns the places of the window. Pointers: 0 is x, 1 is y, 2 is out, 3 a
    copy of y where its places do not lie in rows."""
    if op.groups > 1 and few_in_groups(int(out.shape[-2]), int(out.shape[-1]) // op.groups):
        return groups.convolve_weights(op, x, y, out)
    if math.prod(out.shape) == 0:
        return Lowering(())
    d = len(op.windows)
    steps = scaled(x)
    places = y.shape[-d - 1 : -1]
    over = _over(op.windows, x, places, op.kernel)
    rows = [
        *_spatial(op.windows, over, op.kernel, [w.gap for w in op.windows], steps[-d - 1 : -1]),
        _Place(out.shape[-2], steps[-1]),
    ]
    columns = [
        _Place(x.shape[-d - 2], steps[-d - 2]),
        *_spatial(op.windows, over, places, [w.step for w in op.windows], steps[-d - 1 : -1]),
    ]
    operands = Placed(x, Pointer(0)), Placed(y, Pointer(1)), Placed(out, Pointer(2))
    return _lowering(op.windows, op.groups, *operands, over, rows, columns, slice(-d - 2, -1), -1)


def _lowering(
    windows: Windows, groups: int, x: Placed, right: Placed, out: Placed, over: Sequence[int], rows: list[_Place],
    columns: list[_Place], depth: slice, n: int,
) -> Lowering:  # fmt: skip
    """The launches for a right operand whose axes `depth` are summed over, and whose axis `n` remains. Of those axes
    there may be several if the columns lie together, or else it is copied first."""
    launches: list[Launch] = []
    y, at, copied = right.layout, right.pointer, 0
    if y.strides[n] != 1 and len(merged(axes_of(y.shape[depth], scaled(y)[depth]))) > 1:
        plain = _with_last(y, n)
        launches += moves.copy(y, plain, at, Pointer(3))
        y, at, copied = plain, Pointer(3), math.prod(y.shape) * y.dtype.size
    d, strides = len(windows), scaled(y)
    each, per = x.layout.shape[-1] // groups, y.shape[n] // groups
    matrix = Matrix(at, merged(axes_of(y.shape[depth], strides[depth])), per, strides[n])
    lead = [scaled(layout)[: -d - 2] for layout in (x.layout, y, out.layout)]
    batch = axes_of(x.layout.shape[: -d - 2], *lead)
    batch.append(Axis(groups, (each * scaled(x.layout)[-1], per * strides[n], per * y.dtype.size)))
    # All axes but those of members and of columns are rows of the output.
    places = merged(axes_of(out.layout.shape[-d - 2 : -1], scaled(out.layout)[-d - 2 : -1]))
    made, *more = _launches(windows, x, over, rows, columns, matrix, merged(batch), out.pointer, places)
    return Lowering((*launches, *made), (copied, *more))


def _with_last(layout: Layout, last: int) -> Layout:
    """The layout of a copy in which the elements along one axis lie together, and the others in order."""
    order = [axis for axis in range(len(layout.shape)) if axis != last % len(layout.shape)] + [last % len(layout.shape)]
    steps = row_major([layout.shape[axis] for axis in order], 1)
    return Layout(layout.shape, tuple([steps[order.index(axis)] for axis in range(len(order))]), layout.dtype)


def _over(windows: Windows, x: Layout, places: Sequence[Any], kernel: Sequence[Any]) -> list[int]:
    """The axes along which a window may reach beyond the array, by number."""
    d = len(windows)
    found = []
    for axis, (window, p, k) in enumerate(zip(windows, places, kernel, strict=True)):
        last = (p - 1) * window.step + (k - 1) * window.gap - window.low
        if window.low > 0 or last >= x.shape[axis - d - 1]:
            found.append(axis)
    return found


def _spatial(
    windows: Windows, over: Sequence[int], sizes: Sequence[Any], by: Sequence[int], steps: Sequence[int]
) -> list[_Place]:
    return [
        _Place(n, step * more, over.index(axis) if axis in over else -1, more)
        for axis, (n, more, step) in enumerate(zip(sizes, by, steps, strict=True))
    ]


def _joined(axes: Sequence[_Place]) -> list[_Place]:
    """As few axes as do the same: those of one element dropped, neighbours joined where nothing is checked."""
    found: list[_Place] = []
    for axis in axes:
        if axis.size == 1:
            continue
        before = found[-1] if found else None
        if before is not None and before.along < 0 and axis.along < 0 and before.step == axis.step * axis.size:
            found[-1] = _Place(before.size * axis.size, axis.step)
        else:
            found.append(axis)
    return found


def _launches(
    windows: Windows,
    left: Placed,
    over: Sequence[int],
    rows: list[_Place],
    columns: list[_Place],
    right: Matrix,
    members_of: Sequence[Axis],
    to: Pointer,
    places: Sequence[Axis],
) -> tuple[list[Launch], Any, int]:
    """The launch, after one that packs the right operand if that is worth it, and how many bytes that takes (of what
    pointer 4 is), and sums of parts (5)."""
    x = left.layout
    kind, size, d = elements_of(x.dtype), x.dtype.size, len(windows)
    rows, columns = _joined(rows), _joined(columns)
    m, n, k = math.prod(axis.size for axis in rows), right.n, math.prod(axis.size for axis in columns)
    if k == 0:
        columns = []
    scattered = len(places) if len(places) > 1 else 0
    batch = [(axis.size, *axis.strides) for axis in reversed(members_of)]
    members = math.prod(axis[0] for axis in batch)
    terms = members * m * n * k
    processor = machine(config.cpu)
    tile = _tile_of(processor.tile(kind, n), n)
    b_k, b_column = right.inside[0].strides[0] if right.inside else size, right.column
    read_b: gemm.Read = "rows" if b_column == size else "columns" if b_k == size else "any"
    kernel, run = _kernel(kind, tile, read_b, rows, columns, len(over), n, scattered)
    tile = kernel.tile
    step = piece = math.lcm(tile.rows, kernel.span)
    if isinstance(kernel, FewColumns):
        step = run
    elif isinstance(kernel, PlacesInPlace):
        step = piece = _piece(run, tile.rows) if kernel.aligned else tile.rows
        if kernel.aligned and all(type(number) is int for number in (members, m, n, run)):
            step = _shared(piece, members * (m // piece) * -(-n // tile.columns), 4 * tile.rows)
            low = piece % tile.rows
            kernel.tile = tile = replace(tile, low=low if low % tile.rest else 0)
    block_m, block_n = _blocks(kind, tile, members, m, n, k, step)
    if isinstance(kernel, FewColumns):
        block_n = n
    chunks = max(1, -(-k // CHUNK))
    # Where a chunk's sums would go if they were added up later: rows of the output follow each other then.
    in_rows = members == 1 and not scattered and (not places or places[0].strides[0] == n * size)
    parts = (
        None
        if not in_rows or isinstance(kernel, FewColumns)
        else _parts(kind, tile, m, n, chunks, step, (block_m, block_n))
    )
    if parts is not None:
        kernel.part()
        block_m, block_n = parts.block
    blocks_m, blocks_n = -(-m // block_m), -(-n // block_n)
    launches, packed, panel, at = [], 0, 0, right.pointer
    in_order, few = b_column == size and len(right.inside) <= 1, isinstance(kernel, FewColumns)
    packs = m > 2 * tile.rows  # it takes as long as so few rows
    if k != 1 and n % tile.columns == 0 and b_k == n * size and n <= 4 * tile.columns:
        packs = False  # it lies as packed panels do
    if in_order and not few and not kind.narrow and processor.in_place and not packs:
        kernel.read_b = "direct"
    elif k != 0 and (len(right.inside) > 1 or (b_column != size if few else blocks_m * blocks_n > 1)):
        ready = panels.packed(kind, tile, right, [(axis[0], axis[2]) for axis in batch], Pointer(4))
        launches, packed, panel, at = [ready.launch], ready.size, ready.panel, Pointer(4)
        kernel.read_b = "direct" if few else "ready"
        b_k, b_column = kernel.panel_row, panel // tile.columns
        batch = [(*axis[:2], stride, axis[3]) for axis, stride in zip(batch, ready.strides, strict=True)]
    scratch = kernel.scratch(block_m, block_n, k)
    at_rows, row_line = -(-scratch.size // 64) * 64, 8 * gemm.round_up(max(block_m, CHUNK), tile.turn)
    at_columns = at_rows + row_line * (1 + len(over))
    table = 8 * (3 + len(over)) * (CHUNK + 2)
    zeros = starts = 0
    if isinstance(kernel, RunsInPlace):
        zeros = min(run, CHUNK) * size if over else 0
        starts = row_line * (-(-(CHUNK - 1) // run) + 1) if over else 0
    elif isinstance(kernel, PlacesInPlace):
        table, zeros = (block_m // run + 2) * 8 * CHUNK, run * size if over else 0
    tasks = members * blocks_m * blocks_n * (1 if parts is None else parts.count)
    at_zeros, zeros = at_columns + table, -(-zeros // 8) * 8
    at_starts = at_zeros + zeros
    at_places = at_starts + starts
    steps = scaled(x)[-d - 1 : -1]
    ahead = rows[-1].step * tile.rows if rows else 0
    values: dict[str, Word] = {
        "tasks": tasks, "a": left.pointer, "b": at, "out": to if parts is None else Pointer(5),
        "m": m, "n": n, "k": k, "chunks": chunks, "a_row": 0, "a_k": 0, "b_k": b_k,
        "b_column": b_column, "block_m": block_m, "block_n": block_n, "blocks_m": blocks_m, "blocks_n": blocks_n,
        "panel": panel or scratch.panel, "at_a": scratch.at_a, "at_total": scratch.at_total,
        "out_row": places[0].strides[0] if places else 0, "at_places": at_places, "at_rows": at_rows,
        "at_columns": at_columns, "at_zeros": at_zeros, "zeros": zeros, "run": run, "piece": piece,
        "at_starts": at_starts, "row_line": row_line, "tile": ahead, "pace": -(-ahead // run),
        "base": -sum(window.low * step for window, step in zip(windows, steps, strict=True)),
    }  # fmt: skip
    for letter, axes in (("r", rows), ("c", columns)):
        for number, axis in enumerate(axes):
            values[f"{letter}{number}"], values[f"{letter}s{number}"] = axis.size, axis.step
            values[f"{letter}b{number}"] = axis.by
    for number, outward in enumerate(places):
        values[f"o{number}"], values[f"os{number}"] = outward.size, outward.strides[0]
    for number, spatial in enumerate(over):
        values[f"first{number}"], values[f"size{number}"] = -windows[spatial].low, x.shape[spatial - d - 1]
    sums = m * n * kind.work.size
    if parts is not None:
        values |= {"parts": parts.count, "per": parts.chunks, "part": sums}
    source = Source(f"convolve:{kernel.name}", kernel.name, kernel.ir)
    words, bytes_of = block(kernel.words, values, batch), at_places + (8 * block_m if scattered else 0)
    launches.append(Launch(source, words, grain_of(terms, tasks), bytes_of))
    if parts is None:
        return launches, packed, 0
    rest = Pointer(5, (chunks - 1) * sums)
    launches.append(combined(kind, processor.lanes(kind), 1, m * n, chunks - 1, Pointer(5), rest, to))
    return launches, packed, chunks * sums


def _blocks(kind: Elements, tile: Tile, members: int, m: int, n: int, k: int, step: int) -> tuple[int, int]:
    """Rows and columns of blocks: many, or, if there are but some, such that threads finish together."""
    terms = members * m * n * k
    wanted = tasks_for(terms)
    block_m, block_n = largest_blocks(kind, tile)
    known = all(type(number) is int for number in (members, m, n, k))
    if not known or wanted == 1:
        return output_blocks(kind, tile, members, m, n, terms, tile.columns, rows=step)
    tasks = members * -(-m // block_m) * -(-n // block_n)
    if tasks >= wanted:
        share = members * m * -(-n // block_n) // (_SHARES * wanted)
        return equal_blocks(m, min(block_m, max(share, _ROWS)), step), equal_blocks(n, block_n, tile.columns)
    extra = _FROM_MEMORY if k * n * kind.work.size > _CACHED else _FROM_CACHE
    return even_blocks(m, n, (block_m, block_n), (step, tile.columns), members, extra)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Tasks that have some of the chunks each: the blocks, how many parts all chunks make, and chunks of one."""

    block: tuple[int, int]
    count: int
    chunks: int


def _parts(kind: Elements, tile: Tile, m: int, n: int, chunks: int, step: int, whole: tuple[int, int]) -> _Parts | None:
    """The parts that many threads finish sooner than blocks of a `whole` sum. Smaller blocks read the operands more
    often; the sums of a chunk are written and read once more."""
    threads = get_threads()
    known = all(type(number) is int for number in (m, n, chunks))
    if not known or chunks < _CHUNKS or tasks_for(m * n * chunks * CHUNK) == 1:
        return None
    extra = _FROM_MEMORY if threads == 2 else _FROM_SHARED

    def of_block(block: tuple[int, int]) -> tuple[int, int]:
        """How many blocks, and how long one takes to add a term."""
        return -(-m // block[0]) * -(-n // block[1]), (min(m, block[0]) + extra) * (min(n, block[1]) + COLUMNS)

    largest = largest_blocks(kind, tile)
    block = equal_blocks(m, largest[0], step), equal_blocks(n, largest[1], tile.columns)
    blocks, time = of_block(block)
    turns, per = min((-(-blocks * -(-chunks // per) // threads) * per, per) for per in range(1, chunks + 1))
    apart = turns * CHUNK * time + 2 * _SUM * chunks * m * n // threads
    blocks, time = of_block(whole)
    pays = apart < _PAYS * -(-blocks // threads) * chunks * CHUNK * time
    return _Parts(block, -(-chunks // per), per) if pays else None


def _piece(run: int, rows: int) -> int:
    """Into how long pieces blocks cut a run: some tiles, if they fill it."""
    pieces = [run // n for n in range(-(-run // _LONGEST), run + 1) if run % n == 0]
    return min((piece for piece in pieces if piece % rows == 0 and piece >= 4 * rows), default=pieces[0])


def _shared(piece: int, pieces: int, least: int) -> int:
    """What blocks are multiples of, so that threads share out pieces evenly: halves or quarters of a few."""
    threads = get_threads()
    while -(-pieces // threads) * threads > _EVEN * pieces and piece % 2 == 0 and piece // 2 >= least:
        piece, pieces = piece // 2, 2 * pieces
    return piece


def _few_columns(n: int, run: int, lanes: int, runs: int) -> tuple[int, int]:
    """How many runs, and vectors of each, are multiplied with n columns at a time: sums for three quarters of the
    registers, from as few loads as possible."""
    most = machine(config.cpu).registers * 3 // 4 // n
    vectors = min(4, most, -(-run // lanes))
    return max(1, min(4, most // vectors, runs)), vectors


def _tile_of(tile: Tile, n: int) -> Tile:
    """The tile for so many columns: with 16 registers a narrower and taller one where the other leaves a part of a
    panel to tiles of too few sums."""
    other = Tile(6, 2, tile.lanes)
    if type(n) is not int or (tile.rows, tile.vectors) != (4, 3):
        return tile
    wide = -(-n // tile.lanes)
    times = [_cycles([each.rows], wide, each.vectors, 1) / each.rows for each in (tile, other)]
    return other if times[1] < 0.98 * times[0] else tile


def _tile_of_runs(tile: Tile, n: int, run: int) -> tuple[Tile, bool]:
    """The tile that takes least time for a run and all columns, and whether it stays in runs."""
    if type(n) is not int or type(run) is not int or run >= 4 * tile.rows:
        return tile, _piece(run, tile.rows) >= 2 * tile.rows or run % tile.rows == 0
    wide, registers = -(-n // tile.lanes), machine(config.cpu).registers
    vectors = min(wide, tile.vectors)
    best = Tile(tile.rows, vectors, tile.lanes), False
    time = _ACROSS * _cycles([tile.rows], wide, vectors, tile.rows) * run / tile.rows
    for vectors in range(1, min(4, wide) + 1):
        for rows in range(min(run, (registers - 1) // vectors - 1, registers * 3 // 4 // vectors), 0, -1):
            rest = Tile(rows, vectors, tile.lanes).rest
            rests = [rest] * -(-(run % rows) // rest)
            found = _cycles([rows] * (run // rows) + rests, wide, vectors, 1)
            if found < time:
                best, time = (Tile(rows, vectors, tile.lanes), True), found
    return best


def _cycles(heights: Sequence[int], wide: int, vectors: int, pointers: int) -> float:
    """About how many cycles a term takes in tiles of these heights. Two sums and two loads are done in one, and a sum
    waits four for the one before it."""
    widths = [vectors] * (wide // vectors) + [wide % vectors] * (wide % vectors > 0)
    return sum(max(h * w / 2, (pointers + h + w) / 2, 4) for h in heights for w in widths)


_SPANS: Final = (8, 4)


def _kernel(
    kind: Elements,
    tile: Tile,
    read_b: gemm.Read,
    rows: list[_Place],
    columns: list[_Place],
    checks: int,
    n: int,
    scattered: int,
) -> tuple[WindowGemm, int]:
    """The kernel, and how many elements lie together. The axis along which they do is taken from the rows or the
    columns."""
    size = kind.memory.size
    in_columns = bool(columns) and columns[-1].along < 0 and columns[-1].step == size
    in_rows = bool(rows) and rows[-1].along < 0 and rows[-1].step == size
    marks = [[axis.along for axis in axes] for axes in (rows, columns)]
    if in_columns and not kind.narrow and columns[-1].size >= (_RUN if checks else _TOGETHER):
        run = columns.pop().size
        return RunsInPlace(kind, tile, read_b, tuple(marks[0]), tuple(marks[1][:-1]), checks, scattered), run
    if in_columns and columns[-1].size >= _TOGETHER:
        run = columns.pop().size
        outer = tuple(marks[1][:-1])
        return WindowGemm(kind, tile, read_b, tuple(marks[0]), outer, checks, "runs", 1, scattered), run
    span = next((n for n in _SPANS if in_rows and n <= tile.turn and rows[-1].size % n == 0), 1)
    if in_rows and not kind.narrow and rows[-1].size >= _TOGETHER and (span == 1 or n <= _WIDE):
        run = rows.pop().size
        runs, inside = tuple(marks[0][:-1]), tuple(marks[1])
        if type(n) is int and 2 * n <= tile.lanes <= run and kind.parts == 1 and not scattered:
            together, vectors = _few_columns(n, run, tile.lanes, math.prod(axis.size for axis in rows))
            return FewColumns(kind, Tile(1, vectors, tile.lanes), n, together, runs, inside, checks), run
        tile, aligned = _tile_of_runs(tile, n, run)
        return PlacesInPlace(kind, tile, read_b, runs, inside, checks, aligned, scattered), run
    way: Way = "across" if span > 1 else "single"
    return WindowGemm(kind, tile, read_b, tuple(marks[0]), tuple(marks[1]), checks, way, span, scattered), 1
