"""Reductions across rows of a few columns: the mean of some million points, the gradient of a small bias.

Rows lie one after the other, so 16 of them are one run of elements, each of which has a partial result of its own in
the specified order: vectors go along that run, and no lane is idle. Operands that lie in other ways are laid out like
that first, as for maps over short rows (`flat.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes as dt
from weft.codegen.kernel import BLOCK, LANES
from weft.codegen.phases import Phases
from weft.codegen.scope import Bases, Scope, State
from weft.llvm.builder import Value
from weft.passes.lower import Item, to_int
from weft.records import dataclass
from weft.targets.axes import Axis, product
from weft.targets.cpu.forms.base import grain_of
from weft.targets.cpu.forms.column import rows_together, unit_axis
from weft.targets.cpu.forms.flat import Flat, Rows, Walk, is_flat, pays, pieces_of, staging_of
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.cpu.reductions import VectorReductions
from weft.targets.nest import Nest, Operand

WIDEST = 64
"""The most columns: with more of them, few lanes are idle in vectors that end with the rows."""
FEWEST_ROWS = 64
GROUP = 64
"""Rows that are laid out at a time, where some operand has to be."""


@dataclass(frozen=True, slots=True)
class Narrow(Flat):
    """`n` rows of `across` columns, `group` of them at a time. Partial results, 16 for each column, are in scratch, as
    the elements of 16 rows lie, on two levels: of a block of rows, and of all blocks."""

    title = "narrow"

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        if not nest.outer or not nest.reduced:
            return None
        outer, rows = list(nest.outer), nest.reduced[0]
        columns = outer.pop(unit_axis(nest))
        if not (columns.size <= WIDEST and rows.size >= FEWEST_ROWS and _fits(nest, rows, columns)):
            return None
        loads = [Walk(load.source, load.unit) for load in nest.loads]
        staging = staging_of([rows, columns], loads)
        staging = tuple([how if load.level == "full" else "" for how, load in zip(staging, nest.loads, strict=True)])
        if not pays(staging, [columns]) or (columns.size % LANES == 0 and not _is_better(columns.size, staging)):
            return None
        lanes, staging = pieces_of([rows, columns], loads, staging)
        group = GROUP if any(staging) else BLOCK
        kernel = cls.of(nest, outer, columns, lanes=lanes, staging=staging)
        numbers = {"units": product(outer), "width": rows.size, "chunks": 1, "group": group}
        numbers |= {"across": columns.size, "last": columns.size}
        grain, scratch = grain_of(rows.size * columns.size, nest.cost()), kernel.scratch(group * columns.size)
        scratch += kernel.accumulators(columns.size)
        return nest.item(
            [kernel.launch(nest, outer, rows, {**numbers}, grain, scratch, c=columns)], kernel.overwritten()
        )

    def accumulators(self, columns: int) -> int:
        """Bytes of the partial results, and a vector behind each level that is read and written past the end."""
        return to_int(2 * LANES * (columns + 1) * sum(d.size for d in self.state_dtypes()))

    def overwritten(self) -> list[int]:  # type: ignore[override]
        return Phases(self).written_last()

    def emit(self, frame: Frame) -> None:
        with frame.b.loop(frame.begin, frame.end, 1) as units:
            _Narrow(self, frame).emit(units.index)


def _is_better(columns: int, staging: Sequence[str]) -> bool:
    """Whether so many columns, which are whole vectors for other forms too, are better walked as one run: a loop over a
    single vector would be short."""
    return columns == LANES and not any(how.startswith("often") for how in staging)


def _fits(nest: Nest, rows: Axis, columns: Axis) -> bool:
    """Whether what has an element for each row and column is written row by row, and what has one for each column lies
    in a way that vectors are read and written in."""

    def lies_well(k: int, operand: Operand, is_store: bool) -> bool:
        if operand.level == "full":
            return not is_store or is_flat([rows, columns], k, Walk(operand.source, operand.unit))
        step = columns.strides[k]
        if is_store:
            return step == operand.unit
        return operand.source == "scalar" or (operand.source == "memory" and abs(step) in (0, operand.unit))

    first = len(nest.loads)
    return all(lies_well(k, operand, k >= first) for k, operand in enumerate(nest.operands))


class _Narrow:
    """Writes the code of a narrow kernel."""

    def __init__(self, kernel: Narrow, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.rows = Rows(kernel, frame)
        self.reductions = VectorReductions(frame.b, kernel, kernel.reductions())
        self.across = frame["across"]
        self.run = self.across * LANES
        self.low, self.high = self._levels()
        # e // across for the elements of a few runs, without a division
        self.inverse = self.b.cast(frame.divide(self.b.i64(1 << 16), self.across)[0] + 1, dt.uint32)

    def _levels(self) -> tuple[list[Value], list[Value]]:
        """Where the partial results of each level lie, behind the tables of operands."""
        b, at = self.b, self.frame.scratch
        for k in self.rows.tables:
            size = self.kernel.loads[k].dtype.size
            at = b.gep(at, (self.frame["group"] * self.across + LANES) * size)
        places = []
        for _ in range(2):
            for dtype in self.reductions.dtypes:
                places.append(at)
                at = b.gep(at, (self.run + LANES) * dtype.size)
        half = len(places) // 2
        return places[:half], places[half:]

    def emit(self, place: Value) -> None:
        b, frame, rows, n = self.b, self.frame, self.rows, self.frame["n"]
        bases = rows.accesses.bases(frame.indices(place))
        rows.lay_out("once", bases, b.i64(0), frame.least(n, frame["group"]))
        # A single block is the result, where merging identities with it changes nothing.
        several = n > BLOCK if self.kernel.is_neutral else n > 0
        with b.when(several):
            self._fill(self.high)
        with b.loop(0, n, BLOCK, b.i64(0)) as blocks:
            with b.when(blocks.index.ne(0)):
                frame.look()
            self._fill(self.low)
            last = frame.least(blocks.index + BLOCK, n)
            with b.loop(blocks.index, last, frame["group"]) as some:
                self._rows(bases, some.index, frame.least(last - some.index, frame["group"]))
            self._tree(self.low)
            with b.when(several):
                self._join(blocks.carried[0] & (LANES - 1))
            blocks.carry(blocks.carried[0] + 1)
        with b.when(several):
            self._tree(self.high)
        found = [b.choose(several, high, low) for low, high in zip(self.low, self.high, strict=True)]

        def finish(j: Value, mask: Value | None, state: State) -> State:
            results = self.reductions.finish(self._read(found, j))
            Scope(rows.accesses, bases, j, LANES, mask, results).store_level("reduced")
            return state

        vector_loop(b, b.i64(0), self.across, finish)

    def _rows(self, bases: Bases, first: Value, count: Value) -> None:
        """`count` rows from number `first` on join their partial results."""
        b, frame = self.b, self.frame
        here = self.rows.moved(bases, first)
        self.rows.lay_out("often", here, first, count)
        together = rows_together(self.kernel)
        whole = count & -(LANES * together)
        with b.loop(0, whole, LANES * together) as runs, b.loop(0, self.run, LANES) as loop:
            held = self._read(self.low, loop.index)
            for i in range(together):
                held = self._take(here, first, runs.index + LANES * i, loop.index, None, held)
            self._write(self.low, loop.index, held)
        with b.loop(whole, count, LANES) as run:
            stop = frame.least((count - run.index) * self.across, self.run)

            def body(j: Value, mask: Value | None, state: State) -> State:
                self._write(self.low, j, self._take(here, first, run.index, j, mask, self._read(self.low, j)))
                return state

            vector_loop(b, b.i64(0), stop, body, once=True)

    def _take(self, here: Bases, first: Value, row: Value, j: Value, mask: Value | None, held: State) -> State:
        """Partial results with elements `j` and on of the run at row `row` of those from `first` on, whose full-level
        values are stored on the way."""
        b, at = self.b, row * self.across + j
        scope = Scope(self.rows.accesses, here, at, LANES, mask, self.rows.given(here, at, LANES, mask))
        self.reductions.read(scope)
        scope.store_level("full")
        element = b.splat(b.cast(j, dt.uint32)) + b.iota(dt.uint32)
        row_of_lane = (element * b.splat(self.inverse)) >> 16
        return self.reductions.take(scope, b.splat(b.cast(first + row, dt.uint32)) + row_of_lane, mask, held)

    # ---- partial results ----

    def _read(self, level: list[Value], j: Value) -> State:
        places = zip(level, self.reductions.dtypes, strict=True)
        return tuple([self.b.load(self.b.gep(at, j * d.size), d) for at, d in places])

    def _write(self, level: list[Value], j: Value, state: State) -> None:
        for at, x in zip(level, state, strict=True):
            self.b.store(x, self.b.gep(at, j * x.dtype.size))

    def _fill(self, level: list[Value]) -> None:
        """All of a level start as the identity."""
        state = self.reductions.start()
        with self.b.loop(0, self.run, LANES) as loop:
            self._write(level, loop.index, state)

    def _tree(self, level: list[Value]) -> None:
        """Sixteen partial results of each column to one, the first; what is written past the end of a half has been
        read."""
        half = LANES
        while half > 1:
            half //= 2
            with self.b.loop(0, self.across * half, LANES) as loop:
                high = self._read(level, loop.index + self.across * half)
                self._write(level, loop.index, self.reductions.merge(self._read(level, loop.index), high))

    def _join(self, lane: Value) -> None:
        """A block's results join lane `lane` of the second level."""

        def body(j: Value, mask: Value | None, state: State) -> State:
            at = lane * self.across + j
            self._write(self.high, at, self.reductions.merge(self._read(self.high, at), self._read(self.low, j), mask))
            return state

        vector_loop(self.b, self.b.i64(0), self.across, body, once=True)
