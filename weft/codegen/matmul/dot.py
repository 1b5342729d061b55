"""The skinny kernel: long sums of which one side has only a few rows, so that all that counts is to stream the other one once.

`x` is the operand with few rows, `w` the one with many; both are seen as rows of length k. Each element of the output is

    P(0) + P(1) + …  from the left,    P(c) = the sum over chunk c of k, `CHUNK` long, as
    LANES interleaved sums  p(l) = fma(x[k], w[k], …) over the k of the chunk that are l modulo LANES, upwards, from +0,
    and then p(l) + p(l + 8), of these l + 4, l + 2, l + 1.

The two layouts of `w` read it in the order in which it lies. Where k is contiguous, the interleaved sums are the lanes of one vector;
where it is not, they are LANES vectors in scratch memory, and the lanes are neighbouring elements of the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from weft.codegen.builder import AnyValue, Value
from weft.codegen.matmul import elements as el
from weft.codegen.matmul.elements import Elements
from weft.codegen.matmul.frame import Frame, Part

LANES: Final = 16
CHUNK: Final = 2048
"""Interleaved sums, and terms of one partial sum. Part of the specified order: other numbers give other bits."""

ROWS: Final = 4  # rows of w that go together where k is contiguous
import os
PF=int(os.environ.get("PF","1")); PANEL1=int(os.environ.get("PANEL1","1024")); PANEL4=int(os.environ.get("PANEL4","256"))
_STEPS: Final = int(os.environ.get("STEPS","4"))  # terms of an interleaved sum that are added between reading and writing it, where k is not contiguous

Read = Literal["rows", "columns", "any"]
"""How `w` lies: k contiguous, rows contiguous, or neither."""

WORDS: Final = (
    "tasks", "*x", "*w", "*out", "few", "many", "k", "x_row", "x_k", "w_row", "w_k", "out_few", "out_many", "chunks",
    "block", "blocks", "at_sums", "at_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a task keeps things, in bytes from the start of its scratch memory; the rows of x come first."""

    at_sums: int
    at_total: int
    size: int


class Dot:
    """Writes the skinny kernel for one kind of elements. `few`: rows of x that go together (1 or 4); `lanes` of vectors across outputs.

    `flipped`: x is the right operand of the product, so complex factors change places. `partial`: the output holds sums as they are in
    flight, because others will be added to them.
    """

    def __init__(self, kind: Elements, few: int, read: Read, lanes: int, *, flipped: bool, partial: bool) -> None:
        self.kind, self.few, self.read, self.lanes = kind, few, read, lanes
        self.flipped = flipped and kind.parts == 2
        self.wide = el.summing(kind)
        self.result = self.wide if partial else kind
        self.size = kind.work.size
        self.x_row = CHUNK * self.size

    @property
    def name(self) -> str:
        kinds = f"{self.kind.memory.name}_{self.result.memory.name}"
        return f"dot_{kinds}_{self.few}_{self.read}_{self.lanes}{'_flipped' * self.flipped}"

    @property
    def panel(self) -> int:
        """Outputs whose interleaved sums stand in scratch memory together; bounded so that they stay in the first cache."""
        return (PANEL1 if self.few == 1 else PANEL4) // self.size

    def scratch(self, few: int, block: int) -> Scratch:
        rows = -(-few // self.few) * self.few
        at_sums = rows * self.x_row
        at_total = at_sums + (LANES * rows * self.panel * self.size if self.read == "columns" else 0)
        return Scratch(at_sums, at_total, at_total + rows * block * self.size)

    def ir(self) -> str:
        self.frame = f = Frame(self.name, WORDS, 2)
        self.b = f.b
        with f.b.loop(f.begin, f.end, 1) as task:
            self._task(task.index)
        return f.module()

    def _task(self, task: Value) -> None:
        f, b = self.frame, self.b
        member, block = f.divide(task, f["blocks"])
        offset_x, offset_w = f.offsets(member)
        first_row = block * f["block"]
        many = f.least(f["many"] - first_row, f["block"])
        x, w = b.gep(f["x"], offset_x), b.gep(f["w"], offset_w + first_row * f["w_row"])
        totals = b.gep(f.scratch, f["at_total"])
        padded = (f["few"] + (self.few - 1)) & -self.few
        with b.loop(0, f["chunks"], 1) as chunk:
            k = chunk.index * CHUNK
            depth = f.least(f["k"] - k, CHUNK)
            self._pack(b.gep(x, k * f["x_k"]), padded, depth)
            at, first = b.gep(w, k * f["w_k"]), chunk.index.eq(0)
            if self.read == "columns":
                self._across(at, padded, many, depth, totals, first)
            else:
                self._along(at, padded, many, depth, totals, first)
        start = member * f["few"] * f["many"] * self.result.memory.size + first_row * f["out_many"]
        self._finish(totals, b.gep(f["out"], start), many)

    def _pack(self, x: Value, padded: Value, depth: Value) -> None:
        """A chunk of x to scratch memory; rows past the last repeat it."""
        f, b = self.frame, self.b
        contiguous = f["x_k"].eq(self.kind.memory.size)

        def copy(stride: Value | None) -> None:
            with b.loop(0, padded, 1) as row:
                source = b.gep(x, f.least(f["few"] - 1, row.index) * f["x_row"])
                target = b.gep(f.scratch, row.index * self.x_row)

                def one(k: Value, part: Part | None) -> None:
                    offset = k * (self.kind.memory.size if stride is None else stride)
                    f.store(self.wide, f.load(self.kind, b.gep(source, offset), LANES, part, stride), b.gep(target, k * self.size))

                f.sweep(depth, LANES, one)

        with b.when(contiguous):
            copy(None)
        with b.when(~contiguous):
            copy(f["x_k"])

    def _product(self, x: AnyValue, w: AnyValue, total: AnyValue) -> AnyValue:
        return el.multiply_add(self.b, *((w, x) if self.flipped else (x, w)), total)

    def _add_total(self, partial: AnyValue, at: Value, first: Value) -> None:
        """A partial sum to its place: as it is after the first chunk, added to what is there after the others."""
        before = self.frame.load(self.wide, at, partial.lanes)
        self.frame.store(self.wide, self.b.select(first, partial, el.add(before, partial)), at)

    # ---- k contiguous: lanes are interleaved sums ----

    def _along(self, w: Value, padded: Value, many: Value, depth: Value, totals: Value, first: Value) -> None:
        f, b = self.frame, self.b
        with b.loop(0, many, ROWS) as group:
            rows = [b.gep(w, f.least(many - 1, group.index + r) * f["w_row"]) for r in range(ROWS)]
            with b.loop(0, padded, self.few) as few:
                start = b.gep(f.scratch, few.index * self.x_row)
                sums = self._long_sums(rows, start, depth)
                for i in range(self.few):
                    mine = sums[i * ROWS : (i + 1) * ROWS]
                    place = b.gep(totals, ((few.index + i) * f["block"] + group.index) * self.size)
                    self._add_total(self._tree(mine), place, first)

    def _long_sums(self, rows: list[Value], x: Value, depth: Value) -> list[AnyValue]:
        """The interleaved sums of every row of x with every row of w."""
        f, b = self.frame, self.b
        stride = f["w_k"] if self.read == "any" else None
        sums = [el.zero(b, self.kind, LANES)] * (self.few * ROWS)
        whole = depth & -LANES
        for begin, end, tail in ((b.i64(0), whole, False), (whole, depth, True)):  # the second loop runs once or not at all
            with b.loop(begin, end, LANES, *el.flat(sums)) as loop:
                k, sums = loop.index, el.unflat(self.kind, loop.carried)
                part = f.part(depth - k, LANES) if tail else None
                offset = k * (self.kind.memory.size if stride is None else stride)
                right = [f.load(self.kind, b.gep(row, offset), LANES, part, stride) for row in rows]
                for i in range(self.few):
                    left = f.load(self.wide, b.gep(b.gep(x, i * self.x_row), k * self.size), LANES)
                    for r in range(ROWS):
                        old = sums[i * ROWS + r]
                        # Lanes past the end keep their sum: adding 0 would turn -0 into +0.
                        sums[i * ROWS + r] = f.keep(part, self._product(left, right[r], old), old)
                loop.carry(*el.flat(sums))
            sums = el.unflat(self.kind, loop.carried)
        return sums

    def _tree(self, sums: list[AnyValue]) -> AnyValue:
        """The sum over the lanes of each of several vectors, together as one vector."""
        parts = zip(*(el.flat([x]) for x in sums), strict=True)
        return el.unflat(self.kind, [self._part_tree(list(part)) for part in parts])[0]

    def _part_tree(self, vectors: list[Value]) -> Value:
        b, width = self.b, LANES  # lanes that belong to one sum
        while width > 1:
            pairs = [(x, None) for x in vectors] if width == LANES or len(vectors) == 1 else list(zip(vectors[::2], vectors[1::2], strict=True))
            lanes = range(vectors[0].lanes * (1 if pairs[0][1] is None else 2))
            low = [i for i in lanes if i % width < width // 2]
            high = [i + width // 2 for i in low]
            vectors = [b.shuffle(x, y, low) + b.shuffle(x, y, high) for x, y in pairs]
            width //= 2
        return vectors[0]

    # ---- rows contiguous: lanes are outputs ----

    def _across(self, w: Value, padded: Value, many: Value, depth: Value, totals: Value, first: Value) -> None:
        f, b = self.frame, self.b
        with b.loop(0, many, self.panel) as panel:
            columns = f.least(many - panel.index, self.panel)
            at = b.gep(w, panel.index * self.kind.memory.size)
            self._clear(padded)
            whole = depth & -(LANES * _STEPS)
            with b.loop(0, whole, LANES * _STEPS) as group, b.loop(0, LANES, 1) as lane:
                self._add_rows(at, padded, columns, group.index + lane.index, lane.index, _STEPS)
            with b.loop(whole, depth, 1) as row:
                self._add_rows(at, padded, columns, row.index, row.index & (LANES - 1), 1)
            with b.loop(0, padded, 1) as few:
                place = b.gep(totals, (few.index * f["block"] + panel.index) * self.size)
                self._add_sums(few.index, padded, columns, place, first)

    def _sums_at(self, lane: Value | int, row: Value, padded: Value) -> Value:
        """Where the interleaved sums number `lane` of a row of x begin; complex parts apart."""
        f, b = self.frame, self.b
        index = (padded * lane if isinstance(lane, int) else lane * padded) + row
        return b.gep(b.gep(f.scratch, f["at_sums"]), index * (self.panel * self.size))

    def _clear(self, padded: Value) -> None:
        f, b = self.frame, self.b
        start, nothing = b.gep(f.scratch, f["at_sums"]), b.const(self.kind.part, 0, self.lanes)
        with b.loop(0, padded * (LANES * self.panel * self.size), self.lanes * self.kind.part.size) as at:
            b.store(nothing, b.gep(start, at.index))

    def _add_rows(self, w: Value, padded: Value, columns: Value, k: Value, lane: Value, steps: int) -> None:
        """The terms k, k + LANES, … (`steps` of them) to the interleaved sums number `lane`."""
        f, b, lanes = self.frame, self.b, self.lanes
        rows = [b.gep(w, (k + LANES * s) * f["w_k"]) for s in range(steps)]
        apart = self.panel * self.kind.part.size
        with b.loop(0, padded, self.few) as few:
            x_at = b.gep(f.scratch, few.index * self.x_row + k * self.size)
            x = [
                [el.spread(b, f.load(self.wide, b.gep(x_at, i * self.x_row + s * LANES * self.size), 1), lanes) for s in range(steps)]
                for i in range(self.few)
            ]
            sums_at = [self._sums_at(lane, few.index + i, padded) for i in range(self.few)]

            def one(j: Value, part: Part | None) -> None:
                if PF and part is None and steps > 1:
                    for row in rows:
                        b.call_void("llvm.prefetch.p0", b.gep(b.gep(row, f["w_k"]*PF), j * self.kind.memory.size), "i32 0", "i32 3", "i32 1")
                terms = [f.load(self.kind, b.gep(row, j * self.kind.memory.size), lanes, part) for row in rows]
                for i in range(self.few):
                    at = b.gep(sums_at[i], j * self.kind.part.size)
                    total = f.get_apart(self.kind, at, lanes, apart)
                    for s in range(steps):
                        total = self._product(x[i][s], terms[s], total)
                    f.put_apart(total, at, apart)

            f.sweep(columns, lanes, one)

    def _add_sums(self, row: Value, padded: Value, columns: Value, totals: Value, first: Value) -> None:
        """The tree over the interleaved sums of one row of x."""
        f, b, lanes = self.frame, self.b, self.lanes
        starts = [self._sums_at(lane, row, padded) for lane in range(LANES)]
        with b.loop(0, columns, lanes) as loop:
            place = loop.index * self.kind.part.size
            sums = [f.get_apart(self.kind, b.gep(at, place), lanes, self.panel * self.kind.part.size) for at in starts]
            while len(sums) > 1:
                half = len(sums) // 2
                sums = [el.add(low, high) for low, high in zip(sums[:half], sums[half:], strict=True)]
            self._add_total(sums[0], b.gep(totals, loop.index * self.size), first)

    # ---- the end ----

    def _finish(self, totals: Value, out: Value, many: Value) -> None:
        """Totals from scratch memory to the output."""
        f, b, size, memory = self.frame, self.b, self.size, self.result.memory.size
        with b.loop(0, f["few"], 1) as few:
            source, target = b.gep(totals, few.index * f["block"] * size), b.gep(out, few.index * f["out_few"])

            def several(j: Value, part: Part | None) -> None:
                x = f.load(self.wide, b.gep(source, j * size), self.lanes, part)
                f.store(self.result, x, b.gep(target, j * memory), part)

            contiguous = f["out_many"].eq(memory)
            with b.when(contiguous):
                f.sweep(many, self.lanes, several)
            with b.when(~contiguous), b.loop(0, many, 1) as j:
                x = f.load(self.wide, b.gep(source, j.index * size), 1)
                f.store(self.result, x, b.gep(target, j.index * f["out_many"]))
