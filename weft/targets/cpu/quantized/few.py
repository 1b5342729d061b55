"""The kernel for a few rows of x: codes are streamed once and unpacked in registers.

x has up to `ROWS` rows of length k, the matrix `many` rows of codes as long. An element of the output is

    P(0) + P(1) + …  from the left, over chunks of `CHUNK` codes,
    P(c) = t(0) + … + t(15) by a tree: t(l) + t(l + 8), then of these l + 4, l + 2, l + 1.

Lane l has every sixteenth unit of a chunk (codes.py): its t(l) is the sum over its units, upwards, of fma(scale, s, t)
with s = … fma(x, number, s) … over the numbers of the unit, from a product on; then, for affine codes, the sum over
every sixteenth group of the chunk from its l-th on of fma(bias, sum of x over the group, t) is added to t(l). The sum
of x over a group has 16 interleaved parts and the same tree. So an element does not depend on other rows, nor on how
rows are cut into tasks.

Rows of x are turned first, so that lane l finds what belongs to its units. Words are read once, each line of the caches
as a whole: to read them from each of their bytes on saves half of the shifts, but loads of parts of two lines take
longer than those, above all where the lines come from memory. With `gathered`, rows come from several small x that go
to the same matrix, because their indices say so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.transposes import transposed
from weft.dtypes import Dtype
from weft.llvm.builder import Value
from weft.records import dataclass
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part, ProductFrame
from weft.targets.cpu.quantized.codes import Codes
from weft.targets.cpu.quantized.matrices import INDICES, Matrix, index_of, matrix_of, offsets_of

LANES: Final = 16
CHUNK: Final = 4096
"""Lanes, and codes of one partial sum. Part of the specified order: other numbers give other bits."""
ROWS: Final = 16
"""The most rows of x that a task goes through a matrix with."""

_LINE: Final = 64  # bytes of a line of the caches

_WORDS: Final = (
    "tasks", "*x", "*w", "*scales", "*biases", "*out", "rows", "many", "k", "x_row", "w_row", "scales_row",
    "biases_row", "ahead", "chunks", "block", "blocks", "long", "longs", "at_sums", "at_totals",
)  # fmt: skip
WORDS: Final = (*_WORDS, "rows_of_task", "parts")
GATHERED: Final = (*_WORDS, "members", "span", *INDICES)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a task keeps things, in bytes from the start of its scratch memory; turned rows of x come first."""

    at_sums: int
    at_totals: int
    size: int


class FewRows:
    """Writes the kernel for elements of x, a packing, and scales in memory as `scales`. `lanes`: of vectors in
    registers, a divisor of LANES. `together`: rows of codes that are read side by side, and x once for them. `single`:
    there is but one row of x."""

    def __init__(
        self,
        kind: Elements,
        codes: Codes,
        scales: Dtype,
        lanes: int,
        together: int,
        *,
        single: bool,
        gathered: bool,
    ) -> None:
        self.kind, self.codes, self.scales, self.lanes = kind, codes, scales, lanes
        self.together, self.single, self.gathered = together, single, gathered
        self.wide = el.summing(kind)
        self.size = kind.work.size
        self.affine = codes.packing.affine
        self.chunk_row = CHUNK * self.size  # bytes of a turned row of x
        groups = CHUNK // codes.packing.group
        self.sums_row = -(-groups // LANES) * LANES * self.size  # bytes of a row of sums over groups

    @property
    def name(self) -> str:
        kinds = f"{self.kind.memory.name}_{self.scales.name}"
        form = "_single" * self.single + "_gathered" * self.gathered
        return f"qmm_few_{self.codes.name}_{kinds}_{self.together}x{self.lanes}{form}"

    def scratch(self, rows: int, block: int) -> Scratch:
        """The layout of scratch memory for tasks of `block` outputs (a multiple of LANES) for each row of x."""
        at_totals = rows * (self.chunk_row + self.sums_row)
        return Scratch(rows * self.chunk_row, at_totals, at_totals + rows * block * self.size)

    def ir(self) -> str:
        words = GATHERED if self.gathered else WORDS
        self.frame = f = ProductFrame(self.name, words, 0 if self.gathered else 3 + self.affine)
        self.b = b = f.b
        with b.loop(f.begin, f.end, 1) as task:
            rest, block = f.divide(task.index, f["blocks"])
            # The first ones may be longer than the others.
            self.start = block * f["block"] + f.least(block, f["longs"]) * (f["long"] - f["block"])
            length = b.choose(block < f["longs"], f["long"], f["block"])
            self.many = f.least(f["many"] - self.start, length)
            if self.gathered:
                self._members(rest)
            else:
                self._member(rest)
        return f.module()

    # ---- which rows, which matrix ----

    def _member(self, place: Value) -> None:
        f, b = self.frame, self.b
        member, part = f.divide(place, f["parts"])
        first = part * f["rows_of_task"]
        rows = f.least(f["rows"] - first, f["rows_of_task"])
        offset, *offsets = f.offsets(member)
        x = b.gep(f["x"], offset + first * f["x_row"])
        out = (member * f["rows"] + first) * f["many"]
        self._product(rows, lambda row: b.gep(x, row * f["x_row"]), self._matrix(offsets), out)

    def _members(self, place: Value) -> None:
        """Neighbours that go to the same matrix go through it together."""
        f, b = self.frame, self.b
        first = place * f["span"]
        last = f.least(first + f["span"], f["members"])
        with b.loop(first, last, 1) as member:
            chosen = index_of(f, "rhs", member.index, "w_count")
            before = index_of(f, "rhs", b.choose(member.index.eq(first), first, member.index - 1), "w_count")
            with b.when(member.index.eq(first) | before.ne(chosen)):
                with b.loop(member.index + 1, last, 1, may_stop=True) as run:
                    run.again = index_of(f, "rhs", run.index, "w_count").eq(chosen)
                assert run.going is not None
                # It stops behind the first that differs, or at the end.
                after = b.choose(run.going, run.index, run.index - 1)
                matrix = self._matrix(offsets_of(f, self.codes.packing, chosen))
                rows, out = (after - member.index) * f["rows"], member.index * f["rows"] * f["many"]
                self._product(rows, lambda row, at=member.index: self._x_of(at, row), matrix, out)  # type: ignore[misc]

    def _x_of(self, member: Value, row: Value) -> Value:
        """Where row number `row` from a member on is: each has its own x."""
        f = self.frame
        further, inside = f.divide(row, f["rows"])
        index = index_of(f, "lhs", member + further, "x_count")
        return self.b.gep(f["x"], index * f["x_matrix"] + inside * f["x_row"])

    def _matrix(self, offsets: Sequence[Value]) -> Matrix:
        """The matrix that begins so many bytes from the first one, from the first row of the task on."""
        return matrix_of(self.frame, self.codes.packing, offsets).moved(self.frame, self.start)

    # ---- a product ----

    def _product(self, rows: Value, x_at: Callable[[Value], Value], matrix: Matrix, out: Value) -> None:
        """`out`: the first element of the output."""
        f, b, group, bits = self.frame, self.b, self.codes.packing.group, self.codes.packing.bits
        totals = b.gep(f.scratch, f["at_totals"])
        with b.loop(0, f["chunks"], 1) as chunk:
            k = chunk.index * CHUNK
            depth = f.least(f["k"] - k, CHUNK)
            with b.loop(0, rows, 1) as row:
                self._take(x_at(row.index), row.index, k, depth)
            step = chunk.index * (CHUNK // group * self.scales.size)
            part = Matrix(
                b.gep(matrix.w, chunk.index * (CHUNK * bits // 8)),
                b.gep(matrix.scales, step),
                b.gep(matrix.biases, step),
            )
            self._sums(part, rows, depth, totals, chunk.index.eq(0))
        self._finish(totals, rows, (out + self.start) * self.kind.memory.size)

    def _take(self, x: Value, row: Value, k: Value, depth: Value) -> None:
        """What is needed of a row of x, from number k on, into scratch memory."""
        f, b = self.frame, self.b
        x = b.gep(x, k * self.kind.memory.size)
        self._turn(x, b.gep(f.scratch, row * self.chunk_row), depth)
        if self.affine:
            self._sum_groups(x, b.gep(f.scratch, f["at_sums"] + row * self.sums_row), depth)

    def _turn(self, x: Value, target: Value, depth: Value) -> None:
        """A row of x for units in lanes: number j of unit l of sixteen goes to element l of vector j."""
        f, b, codes = self.frame, self.b, self.codes.codes
        turn = min(8, codes)
        units = f.divide(depth, codes)[0]
        with b.loop(0, units, LANES) as block:
            place = b.gep(target, block.index * (codes * self.size))
            for lane in range(0, LANES, turn):
                starts = [f.least(block.index + (lane + r), units - 1) * codes for r in range(turn)]
                for j in range(0, codes, turn):
                    rows = [f.load(self.kind, b.gep(x, (start + j) * self.kind.memory.size), turn) for start in starts]
                    for i, column in enumerate(transposed(b, rows), j):
                        if self.codes.raised(i):
                            column = column * 0.5 ** self.codes.raised(i)  # type: ignore[operator]
                        f.store(self.wide, column, b.gep(place, (i * LANES + lane) * self.size))

    def _sum_groups(self, x: Value, target: Value, depth: Value) -> None:
        """The sum of x over every group."""
        f, b, group, memory = self.frame, self.b, self.codes.packing.group, self.kind.memory.size
        with b.loop(0, f.divide(depth, group)[0], 1) as place:
            start = b.gep(x, place.index * (group * memory))
            total = f.load(self.kind, start, LANES)
            for i in range(LANES, group, LANES):
                total = el.add(total, f.load(self.kind, b.gep(start, i * memory), LANES))
            assert isinstance(total, Value)
            b.store(el.lane_sums(b, [total]), b.gep(target, place.index * self.size))

    def _sums(self, part: Matrix, rows: Value, depth: Value, totals: Value, first: Value) -> None:
        """The partial sums of a chunk, put or added to the totals: some rows of codes with some of x at a time."""
        f, b = self.frame, self.b
        height = 1 if self.single else 4  # rows of x that codes are unpacked for once
        together = self.together
        with b.loop(0, self.many, together) as group:
            # The last row again where there are no more.
            codes = [part.moved(f, f.least(self.many - 1, group.index + r)) for r in range(together)]

            def one(row: Value, height: int) -> None:
                sums = self._strip(codes, row, height, depth)
                for i in range(height):
                    at = b.gep(totals, ((row + i) * f["block"] + group.index) * self.size)
                    total = el.lane_sums(b, sums[i * together : (i + 1) * together])
                    before = f.load(self.wide, at, together)
                    f.store(self.wide, b.select(first, total, el.add(before, total)), at)

            whole = rows & -height
            with b.loop(0, whole, height) as strip:
                one(strip.index, height)
            for rest in range(1, height):
                with b.when((rows - whole).eq(rest)):
                    one(whole, rest)

    def _strip(self, matrices: list[Matrix], row: Value, height: int, depth: Value) -> list[Value]:
        """The sums by lanes of `height` rows of x with each row of codes."""
        b, f = self.b, self.frame
        x = [b.gep(f.scratch, (row + i) * self.chunk_row) for i in range(height)]
        pieces, each = LANES // self.lanes, height * len(matrices)
        units = f.divide(depth, self.codes.codes)[0]
        whole = units & -LANES
        sums = [b.const(self.kind.work, 0, self.lanes)] * (pieces * each)
        for begin, end, tail in ((b.i64(0), whole, False), (whole, units, True)):
            with b.loop(begin, end, LANES, *sums) as loop:
                sums = list(loop.carried)
                for piece in range(pieces):
                    mine = slice(piece * each, (piece + 1) * each)
                    sums[mine] = self._block(matrices, x, loop.index, piece, units, tail, sums[mine])
                loop.carry(*sums)
            sums = list(loop.carried)
        joined = [self._joined(sums[i::each]) for i in range(each)]
        if not self.affine:
            return joined
        return [x + y for x, y in zip(joined, self._bias_sums(matrices, row, height, depth), strict=True)]

    def _joined(self, pieces: list[Value]) -> Value:
        """The lanes of several vectors, one after the other."""
        while len(pieces) > 1:
            order = range(2 * pieces[0].lanes)
            pieces = [self.b.shuffle(x, y, order) for x, y in zip(pieces[::2], pieces[1::2], strict=True)]
        return pieces[0]

    def _block(
        self,
        matrices: list[Matrix],
        x: list[Value],
        unit: Value,
        piece: int,
        units: Value,
        tail: bool,
        sums: list[Value],
    ) -> list[Value]:
        """Sixteen units, or those lanes of them that are a piece. `units`: how many there are in all."""
        f, b, c = self.frame, self.b, self.codes
        first, part, places = self._places(matrices, unit, piece, units, tail)
        words = [c.split(b, self._words(at, part)) for at in places]
        parts = self._unit_sums(words, x, unit, piece)
        if part is not None:
            first = f.least(first, units - 1)
        scales = [self._scale(m.scales, first, part) for m in matrices] * len(x)
        after = [b.fma(scale, s, total) for scale, s, total in zip(scales, parts, sums, strict=True)]
        # Lanes past the end keep their sum: what they read is no part of the matrix.
        return after if part is None else [b.choose(part.mask, a, s) for a, s in zip(after, sums, strict=True)]

    def _unit_sums(self, words: list[list[Value]], x: list[Value], unit: Value, piece: int) -> list[Value]:
        """Sums over units of codes times x, of each row of x with each row of codes. `unit`: the first of sixteen."""
        f, b, c, lanes = self.frame, self.b, self.codes, self.lanes
        parts: list[Value] = []
        for j in range(c.codes):
            at = unit * (c.codes * self.size) + (j * LANES + piece * lanes) * self.size
            rows = [f.load(self.wide, b.gep(row, at), lanes) for row in x]
            numbers = [c.raised_number(b, w, j) for w in words]
            pairs = [(row, number) for row in rows for number in numbers]
            if j == 0:
                parts = [row * number for row, number in pairs]  # type: ignore[operator]
            else:
                parts = [b.fma(row, number, s) for (row, number), s in zip(pairs, parts, strict=True)]  # type: ignore[arg-type]
        if c.has_nan:
            wrong = [c.is_nan(b, w) for w in words] * len(x)
            parts = [b.choose(nan, float("nan"), s) for nan, s in zip(wrong, parts, strict=True)]
        return parts

    def _places(
        self, matrices: list[Matrix], unit: Value, piece: int, units: Value, tail: bool
    ) -> tuple[Value, Part | None, list[Value]]:
        """The first unit of a piece, those lanes of it that there are if there may be fewer, and where its words are in
        each row; words that come later are asked for."""
        f, b, lanes = self.frame, self.b, self.lanes
        first = unit + piece * lanes
        part = f.leading(b.intrinsic("smax", units - first, b.i64(0)), lanes) if tail else None
        places = [b.gep(m.w, first * (4 * self.codes.words)) for m in matrices]
        if part is None:
            # Rows are too short for processors to guess the next ones. A first-level cache waits for a dozen lines at
            # once, which is not what memory can send meanwhile: a second-level cache waits for more.
            size = 4 * lanes * self.codes.words
            for line in range(-piece * size % _LINE, size, _LINE):
                for at in places:
                    b.prefetch(b.gep(at, f["w_row"] * f["ahead"] + line), level=2)
        return first, part, places

    def _words(self, at: Value, part: Part | None) -> Value:
        count, mask = self.lanes * self.codes.words, None
        if part is not None:
            mask = self.frame.leading(part.count * self.codes.words, count).mask
        words = self.b.load(at, dt.uint32, count, mask)
        assert isinstance(words, Value)
        return words

    def _scale(self, scales: Value, unit: Value, part: Part | None) -> Value:
        """The scales of units in lanes."""
        b, c, lanes = self.b, self.codes, self.lanes
        count = max(1, lanes // c.units)
        at = b.gep(scales, self.frame.divide(unit, c.units)[0] * self.scales.size)
        if count == 1:
            one = b.load(at, self.scales, 1)
            assert isinstance(one, Value)
            return b.splat(c.scale(b, one), lanes)
        mask = None if part is None else self.frame.leading(self.frame.divide(part.count, c.units)[0], count).mask
        several = b.load(at, self.scales, count, mask)
        assert isinstance(several, Value)
        return b.shuffle(c.scale(b, several), None, [lane // c.units for lane in range(lanes)])

    def _bias_sums(self, matrices: list[Matrix], row: Value, height: int, depth: Value) -> list[Value]:
        """Sums of biases times sums of x over their groups, sixteen at a time."""
        f, b = self.frame, self.b
        sums = [b.const(self.kind.work, 0, LANES)] * (height * len(matrices))
        groups = f.divide(depth, self.codes.packing.group)[0]
        whole = groups & -LANES
        x = [b.gep(f.scratch, f["at_sums"] + (row + i) * self.sums_row) for i in range(height)]
        for begin, end, tail in ((b.i64(0), whole, False), (whole, groups, True)):
            with b.loop(begin, end, LANES, *sums) as loop:
                part = f.leading(groups - loop.index, LANES) if tail else None
                mask = None if part is None else part.mask
                rows = [f.load(self.wide, b.gep(at, loop.index * self.size), LANES, part) for at in x]
                for m in matrices:  # those that come with the words that are asked for
                    for at, step in ((m.scales, f["scales_row"]), (m.biases, f["biases_row"])):
                        b.prefetch(b.gep(at, step * f["ahead"] + loop.index * self.scales.size), level=2)
                biases = [
                    b.convert(b.load(b.gep(m.biases, loop.index * self.scales.size), self.scales, LANES, mask),
                              self.kind.work)
                    for m in matrices
                ]  # fmt: skip
                pairs = [(r, bias) for r in rows for bias in biases]
                after = [b.fma(r, bias, s) for (r, bias), s in zip(pairs, loop.carried, strict=True)]  # type: ignore[arg-type]
                if mask is not None:
                    after = [b.choose(mask, a, s) for a, s in zip(after, loop.carried, strict=True)]
                loop.carry(*after)
            sums = list(loop.carried)
        return sums

    def _finish(self, totals: Value, rows: Value, out: Value) -> None:
        """Totals from scratch memory to the output: the one rounding of narrow elements."""
        f, b, memory = self.frame, self.b, self.kind.memory.size
        with b.loop(0, rows, 1) as row:
            source = b.gep(totals, row.index * f["block"] * self.size)
            target = b.gep(f["out"], out + row.index * f["many"] * memory)

            def one(j: Value, part: Part | None) -> None:
                f.store(self.kind, f.load(self.wide, b.gep(source, j * self.size), LANES, part),
                        b.gep(target, j * memory), part)  # fmt: skip

            f.sweep(self.many, LANES, one)
