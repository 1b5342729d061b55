"""The skinny kernel: long sums of which one side has only a few rows, so that streaming the other is what takes time.

`x` is the operand with few rows, `w` the one with many; both are seen as rows of length k. An element of the output is

    P(0) + P(1) + …  from the left,
    P(c) = p(0) + … + p(15) by a tree: p(l) + p(l + 8), then of these l + 4, l + 2, l + 1,
    p(l) = … fma(x[k], w[k], +0) …  over every sixteenth k of chunk c from its l-th on, upwards.

Either layout of `w` is read in the order in which it lies. Where k is contiguous, the interleaved sums p are the lanes
of one vector; where it is not, they are vectors in scratch memory whose lanes are neighbouring elements of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from weft.codegen.scope import reversed_lanes
from weft.llvm.builder import AnyValue, Value
from weft.records import dataclass
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part, ProductFrame

if TYPE_CHECKING:
    from weft.targets.cpu.matmul.epilogue import Epilogue

LANES: Final = 16
CHUNK: Final = 2048
"""Interleaved sums, and terms of one partial sum. Part of the specified order: other numbers give other bits."""

_STEPS: Final = 4  # terms of an interleaved sum that are added between reading and writing it, where it is in memory
TURNS: Final = LANES * _STEPS
"""Terms after which all interleaved sums have got as many as go together."""

Read = Literal["rows", "back", "columns", "any"]
"""How `w` lies: k contiguous, forwards or backwards, rows contiguous, or neither."""

WORDS: Final = (
    "tasks", "*x", "*w", "*out", "few", "many", "k", "x_row", "x_k", "w_row", "w_k", "out_few", "out_many", "chunks",
    "block", "blocks", "at_sums", "at_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of all calls of a kernel, and so need not be written for other cases: LLVM takes its time for
    each. `depth`: chunks have whole turns of interleaved sums. `many`: there are whole vectors of outputs, or only
    part of one. `near`: k is contiguous in x. `out`: outputs are written row by row."""

    depth: bool = False
    many: Literal["any", "whole", "part"] = "any"
    near: bool = False
    out: bool = False

    def __str__(self) -> str:
        many = "" if self.many == "any" else f"_{self.many}"
        return f"{'_turns' * self.depth}{many}{'_near' * self.near}{'_out' * self.out}"


_NOTHING: Final = Known()


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a task keeps things, in bytes from the start of its scratch memory; a copy of x comes first."""

    at_sums: int
    at_total: int
    size: int


class Dot:
    """Writes the skinny kernel for one kind of elements, with `few` rows of x and `rows` of w (where k is contiguous)
    going together.

    `lanes`: of vectors that lie across outputs. `flipped`: x is the right operand of the product, so complex factors
    change places. `partial`: the output holds sums as they are in flight, because others will be added to them. `held`:
    one row of x, whose interleaved sums stay in registers for so many vectors of outputs, `together` vectors at once,
    because `w`, whose rows are contiguous, is in the caches and need not be read in long pieces.
    """

    def __init__(
        self,
        kind: Elements,
        few: int,
        rows: int,
        read: Read,
        lanes: int,
        flipped: bool,
        partial: bool,
        epilogue: Epilogue | None = None,
        held: int = 0,
        together: int = 0,
        known: Known = _NOTHING,
    ) -> None:
        self.epilogue, self.held, self.together, self.known = epilogue, held, together, known
        self.words = WORDS if epilogue is None else (*WORDS, *epilogue.words())
        self.kind, self.few, self.rows, self.read, self.lanes = kind, few, rows, read, lanes
        self.flipped = flipped and kind.parts == 2
        self.wide = el.summing(kind)
        self.result = self.wide if partial else kind
        self.size = kind.work.size

    @property
    def name(self) -> str:
        kinds = f"{self.kind.memory.name}_{self.result.memory.name}"
        then = "" if self.epilogue is None else f"_{self.epilogue.name}"
        held = f"_held{self.held}of{self.together}" if self.held else ""
        form = f"{self.read}_{self.few}x{self.rows}x{self.lanes}{held}{self.known}"
        return f"dot_{kinds}_{form}{'_flipped' * self.flipped}{then}"

    @property
    def longest(self) -> int:
        """The most outputs in a task. Interleaved sums in memory should stay in the second-level cache, but it is long
        pieces of rows that processors fetch ahead of time."""
        return 4096 if self.read != "columns" else (16384 if self.few == 1 else 1024) // self.size

    def scratch(self, few: int, block: int, copies: bool) -> Scratch:
        """The layout of scratch memory for tasks of `block` outputs (a multiple of LANES) per row of x."""
        rows = -(-few // self.few) * self.few
        at_sums = few * CHUNK * self.size if copies else 0
        at_total = at_sums
        if self.read == "columns" and not self.held:
            at_total += LANES * rows * block * self.size
        elif self.held and self.few > 1:
            at_total += LANES * self.few * self.lanes * self.size
        return Scratch(at_sums, at_total, at_total + rows * block * self.size)

    def ir(self) -> str:
        self.frame = f = ProductFrame(self.name, self.words, 2)
        self.b = f.b
        if self.epilogue is not None:
            self._ready = self.epilogue.ready(f)
        with f.b.loop(f.begin, f.end, 1) as task:
            self._task(task.index)
        return f.module()

    def _task(self, task: Value) -> None:
        f, b = self.frame, self.b
        member, block = f.divide(task, f["blocks"])
        offset_x, offset_w = f.offsets(member)
        start = block * f["block"]
        many = f.least(f["many"] - start, f["block"])
        x, w = b.gep(f["x"], offset_x), b.gep(f["w"], offset_w + start * f["w_row"])
        totals = b.gep(f.scratch, f["at_total"])
        self.padded = (f["few"] + (self.few - 1)) & -self.few
        with b.loop(0, f["chunks"], 1) as chunk:
            k = chunk.index * CHUNK
            depth = f.least(f["k"] - k, CHUNK)
            if self.held and self.few > 1 and not self.kind.narrow:
                self.x, self.x_row, self.x_step = b.gep(x, k * f["x_k"]), f["x_row"], f["x_k"]
            else:
                self._prepare(b.gep(x, k * f["x_k"]), depth)
                self.x_step = b.i64(self.size)
            at, first = b.gep(w, k * f["w_k"]), chunk.index.eq(0)
            if self.held:
                self._across_held(at, many, depth, totals, first)
            elif self.read == "columns":
                self._across(at, many, depth, totals, first)
            else:
                self._along(at, many, depth, totals, first)
        if self.epilogue is not None:
            self._follow(totals, member * f["few"], start, many)
            return
        out = member * f["few"] * f["many"] * self.result.memory.size + start * f["out_many"]
        self._finish(totals, b.gep(f["out"], out), many)

    def _prepare(self, x: Value, depth: Value) -> None:
        """A chunk of x, contiguous and ready to be multiplied: where it lies or copied to scratch memory."""
        f, b, size = self.frame, self.b, self.kind.memory.size
        if self.known.near and not self.kind.narrow:
            self.x, self.x_row = x, f["x_row"]
            return
        contiguous = f["x_k"].eq(size)
        packed_row = CHUNK * self.size

        def copy(stride: Value | None) -> None:
            with b.loop(0, f["few"], 1) as row:
                source, target = b.gep(x, row.index * f["x_row"]), b.gep(f.scratch, row.index * packed_row)

                def one(k: Value, part: Part | None) -> None:
                    at = b.gep(source, k * (size if stride is None else stride))
                    f.store(self.wide, f.load(self.kind, at, LANES, part, stride), b.gep(target, k * self.size))

                f.sweep(depth, LANES, one)

        if self.known.near:
            copy(None)
        else:
            with b.when(~contiguous):
                copy(f["x_k"])
        if self.kind.narrow:
            if not self.known.near:
                with b.when(contiguous):
                    copy(None)
            self.x, self.x_row = f.scratch, b.i64(packed_row)
        else:
            self.x, self.x_row = b.choose(contiguous, x, f.scratch), b.choose(contiguous, f["x_row"], packed_row)

    def _x_at(self, row: Value, k: Value) -> Value:
        """Where x[row, k] stands; rows past the last repeat it."""
        f, b = self.frame, self.b
        return b.gep(self.x, f.least(f["few"] - 1, row) * self.x_row + k * self.x_step)

    def _product(self, x: AnyValue, w: AnyValue, total: AnyValue) -> AnyValue:
        return el.multiply_add(self.b, *((w, x) if self.flipped else (x, w)), total)

    def _add_total(self, partial: AnyValue, at: Value, first: Value) -> None:
        """A partial sum to its place: put there after the first chunk, added to what is there after the others."""
        before = self.frame.load(self.wide, at, partial.lanes)
        self.frame.store(self.wide, self.b.select(first, partial, el.add(before, partial)), at)

    def _turns(self, depth: Value) -> list[tuple[Value, Value, bool]]:
        """Whole turns of the interleaved sums, and what is left of one: (begin, end, whether it is that)."""
        b, whole = self.b, depth & -LANES
        if self.known.depth:
            return [(b.i64(0), depth, False)]
        return [(b.i64(0), whole, False), (whole, depth, True)]  # the second runs once, or not at all

    def _sweep(self, many: Value, body: Callable[[Value, Part | None], None]) -> None:
        """`body` for every vector of outputs, and for the part of one that may be left."""
        f, b = self.frame, self.b
        if self.known.many == "any":
            f.sweep(many, self.lanes, body)
        elif self.known.many == "part":
            body(b.i64(0), f.leading(many, self.lanes))
        else:
            with b.loop(0, many, self.lanes) as loop:
                body(loop.index, None)

    # ---- k contiguous: lanes are interleaved sums ----

    def _along(self, w: Value, many: Value, depth: Value, totals: Value, first: Value) -> None:
        f, b = self.frame, self.b
        with b.loop(0, many, self.rows) as group:
            rows = [b.gep(w, f.least(many - 1, group.index + r) * f["w_row"]) for r in range(self.rows)]
            with b.loop(0, self.padded, self.few) as few:
                x = [self._x_at(few.index + i, b.i64(0)) for i in range(self.few)]
                sums = self._long_sums(rows, x, depth)
                for i in range(self.few):
                    place = b.gep(totals, ((few.index + i) * f["block"] + group.index) * self.size)
                    self._add_total(self._tree(sums[i * self.rows : (i + 1) * self.rows]), place, first)

    def _long_sums(self, rows: list[Value], x: list[Value], depth: Value) -> list[AnyValue]:
        """The interleaved sums of every row of x with every row of w."""
        f, b = self.frame, self.b
        stride = None if self.read == "rows" else f["w_k"]
        sums = [el.zero(b, self.kind, LANES)] * (len(x) * self.rows)
        for begin, end, tail in self._turns(depth):
            with b.loop(begin, end, LANES, *el.flat(sums)) as loop:
                k, sums = loop.index, el.unflat(self.kind, loop.carried)
                part = f.leading(depth - k, LANES) if tail else None
                offset = k * (self.kind.memory.size if stride is None else stride)
                right = [self._load_row(b.gep(row, offset), part, stride) for row in rows]
                for i, row in enumerate(x):
                    left = f.load(self.wide, b.gep(row, k * self.size), LANES, part)
                    for r in range(self.rows):
                        old = sums[i * self.rows + r]
                        # Lanes past the end keep their sum: adding 0 would turn -0 into +0.
                        sums[i * self.rows + r] = f.keep(part, self._product(left, right[r], old), old)
                loop.carry(*el.flat(sums))
            sums = el.unflat(self.kind, loop.carried)
        return sums

    def _load_row(self, at: Value, part: Part | None, stride: Value | None) -> AnyValue:
        """Elements of a row of w, from the one that lies here on."""
        f, b, size = self.frame, self.b, self.kind.memory.size
        if self.read == "back" and part is None:
            return reversed_lanes(b, f.load(self.kind, b.gep(at, -(LANES - 1) * size), LANES))
        return f.load(self.kind, at, LANES, part, stride)

    def _tree(self, sums: list[AnyValue]) -> AnyValue:
        """The sum over the lanes of each of several vectors, together as one vector."""
        parts = zip(*(el.flat([x]) for x in sums), strict=True)
        return el.unflat(self.kind, [el.lane_sums(self.b, list(part)) for part in parts])[0]

    # ---- rows contiguous: lanes are outputs ----

    def _across(self, w: Value, many: Value, depth: Value, totals: Value, first: Value) -> None:
        f, b = self.frame, self.b
        sums, nothing = b.gep(f.scratch, f["at_sums"]), b.const(self.kind.part, 0, self.lanes)
        with b.loop(0, self.padded * f["block"] * (LANES * self.size), self.lanes * self.kind.part.size) as at:
            b.store(nothing, b.gep(sums, at.index))
        whole = depth & -TURNS
        with b.loop(0, whole, TURNS) as group, b.loop(0, LANES, 1) as lane:
            self._add_rows(w, many, group.index + lane.index, lane.index, _STEPS)
        if not self.known.depth:
            with b.loop(whole, depth, 1) as row:
                self._add_rows(w, many, row.index, row.index & (LANES - 1), 1)
        with b.loop(0, f["few"], 1) as few:
            self._add_sums(few.index, many, b.gep(totals, few.index * f["block"] * self.size), first)

    def _sums_at(self, lane: Value | int, row: Value) -> Value:
        """Where the interleaved sums number `lane` of a row of x begin; complex parts stand `_apart` bytes apart."""
        f, b = self.frame, self.b
        return b.gep(b.gep(f.scratch, f["at_sums"]), (self.padded * lane + row) * f["block"] * self.size)

    @property
    def _apart(self) -> Value:
        return self.frame["block"] * self.kind.part.size

    def _add_rows(self, w: Value, many: Value, k: Value, lane: Value, steps: int) -> None:
        """The terms k, k + LANES, … (`steps` of them) to the interleaved sums number `lane`."""
        f, b, lanes, memory = self.frame, self.b, self.lanes, self.kind.memory.size
        rows = [b.gep(w, (k + LANES * s) * f["w_k"]) for s in range(steps)]
        apart = self._apart
        with b.loop(0, self.padded, self.few) as few:
            starts = [self._x_at(few.index + i, k) for i in range(self.few)]
            x = [[self._spread(b.gep(start, LANES * s * self.size)) for s in range(steps)] for start in starts]
            sums = [self._sums_at(lane, few.index + i) for i in range(self.few)]

            def one(j: Value, part: Part | None) -> None:
                terms = [f.load(self.kind, b.gep(row, j * memory), lanes, part) for row in rows]
                if steps > 1 and self.few > 1:  # short pieces of rows: the processor cannot guess the next ones
                    f.prefetch([b.gep(row, f["w_k"] + j * memory) for row in rows])
                for i, at in enumerate(sums):
                    place = b.gep(at, j * self.kind.part.size)
                    total = f.get_apart(self.kind, place, lanes, apart)
                    for s in range(steps):
                        total = self._product(x[i][s], terms[s], total)
                    f.put_apart(total, place, apart)

            self._sweep(many, one)

    def _spread(self, at: Value) -> AnyValue:
        return el.spread(self.b, self.frame.load(self.wide, at, 1), self.lanes)

    def _add_sums(self, row: Value, many: Value, totals: Value, first: Value) -> None:
        """The tree over the interleaved sums of one row of x."""
        f, b, lanes, apart = self.frame, self.b, self.lanes, self._apart
        starts = [self._sums_at(lane, row) for lane in range(LANES)]
        with b.loop(0, many, lanes) as loop:
            place = loop.index * self.kind.part.size
            sums = [f.get_apart(self.kind, b.gep(at, place), lanes, apart) for at in starts]
            while len(sums) > 1:
                half = len(sums) // 2
                sums = [el.add(low, high) for low, high in zip(sums[:half], sums[half:], strict=True)]
            self._add_total(sums[0], b.gep(totals, loop.index * self.size), first)

    # ---- rows contiguous, and short ----

    def _across_held(self, w: Value, many: Value, depth: Value, totals: Value, first: Value) -> None:
        if self.few == 1:
            return self._row_held(self.b.i64(0), w, many, depth, totals, first)
        with self.b.loop(0, self.padded, self.few) as few:
            self._row_held(few.index, w, many, depth, totals, first)
        return None

    def _row_held(self, row: Value, w: Value, many: Value, depth: Value, totals: Value, first: Value) -> None:
        """All outputs of some rows of x."""
        b, step = self.b, self.held * self.lanes
        whole = b.i64(0)
        if self.held > 1:
            whole = many & -step
            with b.loop(0, whole, step) as loop:
                self._held_sums(row, w, loop.index, self.held, None, depth, totals, first)
        self._sweep(many - whole, lambda j, part: self._held_sums(row, w, whole + j, 1, part, depth, totals, first))

    def _held_sums(
        self,
        row: Value,
        w: Value,
        j: Value,
        vectors: int,
        part: Part | None,
        depth: Value,
        totals: Value,
        first: Value,
    ) -> None:
        """The sums of some rows of x for some vectors of outputs from number j on."""
        b = self.b
        at = b.gep(w, j * self.kind.memory.size)
        together = self.together // vectors

        def sums_of(lane: int, period: int) -> list[AnyValue]:
            """Sums number `lane` and on, so many as go together, of the level of the tree that has `period`."""
            if period == LANES:
                return self._interleaved(row, at, vectors, part, depth, b.i64(lane), together)
            low, high = sums_of(lane, 2 * period), sums_of(lane + period, 2 * period)
            return [el.add(x, y) for x, y in zip(low, high, strict=True)]

        if self.few > 1:
            return self._sums_of_rows(row, at, j, part, depth, totals, first)
        for v, total in enumerate(self._halved(sums_of(0, together), vectors)):
            self._add_total(total, b.gep(totals, (j + v * self.lanes) * self.size), first)
        return None

    def _halved(self, sums: list[AnyValue], left: int) -> list[AnyValue]:
        """The last levels of the tree."""
        while len(sums) > left:
            half = len(sums) // 2
            sums = [el.add(low, high) for low, high in zip(sums[:half], sums[half:], strict=True)]
        return sums

    def _sums_of_rows(
        self, row: Value, w: Value, j: Value, part: Part | None, depth: Value, totals: Value, first: Value
    ) -> None:
        """The sums of several rows of x for one vector of outputs: interleaved ones meet in memory, since what is
        written out for each of their numbers would be LLVM's work."""
        f, b = self.frame, self.b
        memory, step, apart = b.gep(f.scratch, f["at_sums"]), self.lanes * self.size, self.lanes * self.kind.part.size
        with b.loop(0, LANES, self.together) as lane:
            sums = self._interleaved(row, w, 1, part, depth, lane.index, self.together)
            at = b.gep(memory, lane.index * (self.few * step))
            for number, total in enumerate(sums):
                f.put_apart(total, b.gep(at, number * step), apart)
        with b.loop(0, self.few, 1) as i:
            at = b.gep(memory, i.index * step)
            places = [b.gep(at, lane * self.few * step) for lane in range(LANES)]
            (total,) = self._halved([f.get_apart(self.kind, place, self.lanes, apart) for place in places], 1)
            self._add_total(total, b.gep(totals, ((row + i.index) * f["block"] + j) * self.size), first)

    def _interleaved(
        self, row: Value, w: Value, vectors: int, part: Part | None, depth: Value, lane: Value, together: int
    ) -> list[AnyValue]:
        """The interleaved sums number `lane` and on: of each, those of all rows of x, for each vector of outputs."""
        f, b, lanes = self.frame, self.b, self.lanes
        sums: list[AnyValue] = [el.zero(b, self.kind, lanes)] * (together * self.few * vectors)
        for begin, end, tail in self._turns(depth):
            with b.loop(begin, end, LANES, *el.flat(sums)) as loop:
                sums = el.unflat(self.kind, loop.carried)
                for i in range(together):
                    k = loop.index + lane + i
                    inside = k < depth
                    k = f.least(k, depth - 1) if tail else k
                    at = b.gep(w, k * f["w_k"])
                    pieces = [b.gep(at, v * lanes * self.kind.memory.size) for v in range(vectors)]
                    terms = [f.load(self.kind, piece, lanes, part) for piece in pieces]
                    for r in range(self.few):
                        x = self._spread(self._x_at(row + r, k))
                        for v in range(vectors):
                            place = (i * self.few + r) * vectors + v
                            new = self._product(x, terms[v], sums[place])
                            sums[place] = b.select(inside, new, sums[place]) if tail else new
                loop.carry(*el.flat(sums))
            sums = el.unflat(self.kind, loop.carried)
        return sums

    # ---- the end ----

    def _follow(self, totals: Value, place: Value, start: Value, many: Value) -> None:
        """The epilogue of finished totals, of which the first row is at a place of all rows of the output."""
        f, b = self.frame, self.b
        with b.loop(0, f["few"], 1) as few:
            source = b.gep(totals, few.index * f["block"] * self.size)

            def load(c: Value, lanes: int, mask: Value | None) -> AnyValue:
                return b.convert(el.load(b, self.wide, b.gep(source, c * self.size), lanes, mask), self.kind.memory)

            self._ready.apply(place + few.index, start, many, load)

    def _finish(self, totals: Value, out: Value, many: Value) -> None:
        """Totals from scratch memory to the output."""
        f, b, size, memory = self.frame, self.b, self.size, self.result.memory.size
        contiguous = f["out_many"].eq(memory)
        with b.loop(0, f["few"], 1) as few:
            source, target = b.gep(totals, few.index * f["block"] * size), b.gep(out, few.index * f["out_few"])

            def several(j: Value, part: Part | None) -> None:
                x = f.load(self.wide, b.gep(source, j * size), self.lanes, part)
                f.store(self.result, x, b.gep(target, j * memory), part)

            if self.known.out:
                self._sweep(many, several)
            else:
                with b.when(contiguous):
                    self._sweep(many, several)
                with b.when(~contiguous), b.loop(0, many, 1) as j:
                    x = f.load(self.wide, b.gep(source, j.index * size), 1)
                    f.store(self.result, x, b.gep(target, j.index * f["out_many"]))
