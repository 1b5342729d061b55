"""Reductions across rows: the reduced elements are far apart in memory, the kept ones close."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from weft.codegen.kernel import BLOCK, LANES, Kernel
from weft.codegen.phases import Phases
from weft.codegen.scope import Accesses, Bases, Scope, State, flatten, unflatten
from weft.llvm.builder import Value
from weft.passes.lower import Item
from weft.records import dataclass, replace
from weft.runtime.threads import get_threads
from weft.targets.axes import Axis, product
from weft.targets.cpu.forms.base import Form, grain_of
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.cpu.reductions import Slots, VectorReductions
from weft.targets.nest import Nest

FEW_ROWS = 4 * LANES
"""So many rows are walked for each vector of columns, whose results may stay in registers: more of them are too many
places in memory at a time. Where the order makes no difference, places of extremes wait longer for the row before."""
STRIP_BYTES = 1 << 14
"""Bytes of one level of accumulators: half of the first-level cache."""


@dataclass(frozen=True, slots=True)
class Column(Form):
    """A strip of `width` columns at a time, its 16 partial results per column in scratch (which stays in L1). Of a
    `few` rows 16 columns are finished before the next."""

    title = "column"
    further = "r"
    few: bool = False

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        if not nest.outer or not nest.reduced:
            return None
        outer, rows = list(nest.outer), nest.reduced[0]
        inner = outer.pop(unit_axis(nest))
        kernel, n, places = cls.of(nest, outer, inner), inner.size, product(outer)
        kernel = replace(kernel, few=kernel.takes_few(rows.size))
        width = _width(n, places, max(d.size for d in kernel.state_dtypes()))
        chunks = -(-n // width)
        numbers = {
            "units": places * chunks,
            "width": width,
            "chunks": chunks,
            "rows": rows.size,
            "block": BLOCK,
        }
        grain = grain_of(rows.size * min(n, width), nest.cost())
        launch = kernel.launch(nest, outer, inner, {**numbers}, grain, kernel.scratch(width), r=rows)
        return nest.item([launch], kernel.overwritten())

    def sizes(self) -> list[str]:
        return ["rows", "width", "chunks", "block"]

    def scratch(self, width: int) -> int:
        """Bytes of per-thread memory where strips are `width` columns wide (a multiple of 16)."""
        return sum(2 * LANES * width * d.size for d in self.state_dtypes())

    def overwritten(self) -> list[int]:
        return Phases(self).written_last()

    def flags(self) -> list[str]:
        return ["few"] if self.few else []

    def takes_few(self, rows: int) -> bool:
        """Whether so many rows are few."""
        if self.are_exact(self.reductions()):
            return rows <= (FEW_ROWS if len(self.state_dtypes()) == 1 else LANES)
        return self.is_neutral and rows <= FEW_ROWS and rows > 0

    def emit(self, frame: Frame) -> None:
        b = frame.b
        columns = _Columns(self, frame)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, True)
            bases = columns.accesses.bases(frame.indices(place))
            if self.are_exact(self.reductions()):
                write = columns.few_exact if self.few else columns.many_exact
            else:
                write = columns.few if self.few else columns.many
            write(bases, start, stop)


def _width(n: int, places: int, nbytes: int) -> int:
    """Columns of a strip with accumulators of so many bytes: what half of the first-level cache holds, or down to a
    quarter of that where there would be too few strips for all threads."""
    most = STRIP_BYTES // (LANES * nbytes) // LANES * LANES
    width = min(max(-(-n // LANES), 1) * LANES, most)
    strips = 2 * get_threads() // places if type(places) is int and places > 0 else 0
    if strips < 2 or get_threads() < 2:
        return width
    return min(width, max(-(-n // (LANES * strips)) * LANES, most // 4))


def unit_axis(nest: Nest) -> int:
    """The kept axis that most operands walk element by element; the last of equals."""
    reads = [(k, o.unit) for k, o in enumerate(nest.loads) if o.source == "memory" and o.level == "full"]

    def score(axis: Axis) -> int:
        return sum(type(axis.strides[k]) is int and abs(axis.strides[k]) == unit for k, unit in reads)

    return max(range(len(nest.outer)), key=lambda i: (score(nest.outer[i]), i))


def rows_together(kernel: Kernel) -> int:
    """Rows of a lane that are added to its partial results between reading and writing them."""
    return 4 if sum(step.op.cost for step in kernel.steps if not step.reduces) <= 16 else 1


class _Columns:
    """Writes the code of a column kernel."""

    def __init__(self, kernel: Column, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.accesses = Accesses(frame, kernel)
        self.reductions = VectorReductions(frame.b, kernel, kernel.reductions())

    def few(self, bases: Bases, start: Value, stop: Value) -> None:
        """Some rows, of one block: the partial results of 16 columns are all there is to keep, and these are finished
        before the next."""
        b, rows = self.b, self.frame["rows"]
        slots = Slots(self.frame.scratch, self.reductions)
        lanes = self.frame.least(rows, b.i64(LANES))

        def body(j: Value, mask: Value | None, state: State) -> State:
            def taken(row: Value, held: State) -> State:
                scope = Scope(self.accesses, self.accesses.moved(bases, row), j, LANES, mask)
                return self._take(scope, row, held)

            with b.loop(0, lanes, 1) as row:
                slots.write(row.index, taken(row.index, self.reductions.start()))
            with b.loop(lanes, rows, 1) as row:
                lane = row.index & (LANES - 1)
                slots.write(lane, taken(row.index, slots.read(lane)))
            self._finish(slots.merged(lanes), bases, j, mask)
            return state

        vector_loop(b, start, stop, body)

    def many(self, bases: Bases, start: Value, stop: Value) -> None:
        """Any number of rows, in blocks, row by row."""
        b, rows, block = self.b, self.frame["rows"], self.frame["block"]
        strip = _Strip(self.frame, self.reductions)
        strip.fill(1, stop - start)
        with b.loop(0, rows, block, b.i64(0)) as blocks:
            with b.when(blocks.index.ne(0)):
                self.frame.look()
            strip.fill(0, stop - start)
            last = b.choose(blocks.index + block < rows, blocks.index + block, rows)
            together = rows_together(self.kernel)
            whole = blocks.index + ((last - blocks.index) & -(LANES * together))
            with b.loop(blocks.index, whole, LANES * together) as group, b.loop(0, LANES, 1) as lane:
                rows_of_lane = [group.index + lane.index + LANES * i for i in range(together)]
                self._rows(strip, bases, rows_of_lane, lane.index, start, stop)
            with b.loop(whole, last, 1) as row:
                lane_of_row = (row.index - blocks.index) & (LANES - 1)
                self._rows(strip, bases, [row.index], lane_of_row, start, stop)
            strip.fold(blocks.carried[0] & (LANES - 1), stop - start)
            blocks.carry(blocks.carried[0] + 1)

        def finish(j: Value, mask: Value | None, state: State) -> State:
            self._finish(strip.tree(1, j - start), bases, j, mask)
            return state

        with self._along_columns():
            vector_loop(b, start, stop, finish, once=True)

    def few_exact(self, bases: Bases, start: Value, stop: Value) -> None:
        """Some rows of what gives the same bits in every order: a result for each column, in registers."""
        b, accesses = self.b, self.accesses

        def body(j: Value, mask: Value | None, state: State) -> State:
            first = self.reductions.start()
            with b.loop(0, self.frame["rows"], 1, *flatten(first)) as row:
                scope = Scope(accesses, accesses.moved(bases, row.index), j, LANES, mask)
                row.carry(*flatten(self._take(scope, row.index, unflatten(first, row.carried))))
            self._finish(unflatten(first, row.carried), bases, j, mask)
            return state

        vector_loop(b, start, stop, body)

    def many_exact(self, bases: Bases, start: Value, stop: Value) -> None:
        """Any number of rows of such: a result for each column of the strip."""
        b, rows = self.b, self.frame["rows"]
        strip = _Strip(self.frame, self.reductions)
        strip.fill(0, stop - start, 1)
        together = rows_together(self.kernel)
        whole = rows & -together
        with self.frame.long_loop(0, whole, together, BLOCK // together) as group:
            self._rows(strip, bases, [group.index + i for i in range(together)], b.i64(0), start, stop)
        with b.loop(whole, rows, 1) as row:
            self._rows(strip, bases, [row.index], b.i64(0), start, stop)

        def finish(j: Value, mask: Value | None, state: State) -> State:
            self._finish(strip.read(0, 0, j - start), bases, j, mask)
            return state

        with self._along_columns():
            vector_loop(b, start, stop, finish, once=True)

    def _along_columns(self) -> AbstractContextManager[None]:
        """Loops that go from vector to vector are as they are written; those from row to row go by strides."""
        return self.b.loops_as_written(self.kernel.in_whole_vectors())

    def _rows(self, strip: _Strip, bases: Bases, rows: Sequence[Value], lane: Value, start: Value, stop: Value) -> None:
        """Some rows of the strip join the lanes of their turn, one after the other."""
        places = [self.accesses.moved(bases, row) for row in rows]

        def body(j: Value, mask: Value | None, state: State) -> State:
            held = strip.read(0, lane, j - start)
            for row, at in zip(rows, places, strict=True):
                held = self._take(Scope(self.accesses, at, j, LANES, mask), row, held)
            strip.write(0, lane, j - start, held)  # columns past the end are scratch only
            return state

        with self._along_columns():
            vector_loop(self.b, start, stop, body)

    def _take(self, scope: Scope, row: Value, held: State) -> State:
        """Partial results with the elements of one row, whose full-level values are stored on the way."""
        self.reductions.read(scope)
        scope.store_level("full")
        return self.reductions.take(scope, self.b.splat(row), None, held)

    def _finish(self, state: State, bases: Bases, j: Value, mask: Value | None) -> None:
        """The results of 16 columns, and what follows them elementwise."""
        Scope(self.accesses, bases, j, LANES, mask, self.reductions.finish(state)).store_level("reduced")


class _Strip:
    """Accumulators of a strip of columns in scratch: for each state component 16 lanes × width, on two levels."""

    def __init__(self, frame: Frame, reductions: VectorReductions) -> None:
        self.b, self.scratch, self.reductions = frame.b, frame.scratch, reductions
        self.width = frame["width"]
        self._starts: list[tuple[Value, Value]] = []
        offset = self.b.i64(0)
        for dtype in reductions.dtypes:
            low = offset
            high = low + self.width * (LANES * dtype.size)
            self._starts.append((low, high))
            offset = high + self.width * (LANES * dtype.size)

    def _address(self, component: int, level: int, lane: Value | int, column: Value) -> Value:
        size = self.reductions.dtypes[component].size
        row = self.width * size * lane if isinstance(lane, Value) else self.width * (size * lane)
        start = self._starts[component][level]
        return self.b.gep(self.b.gep(self.scratch, start + row), column * size)

    def read(self, level: int, lane: Value | int, column: Value) -> State:
        dtypes = enumerate(self.reductions.dtypes)
        return tuple([self.b.load(self._address(c, level, lane, column), d) for c, d in dtypes])

    def write(self, level: int, lane: Value | int, column: Value, state: State) -> None:
        for c, x in enumerate(state):
            self.b.store(x, self._address(c, level, lane, column))

    def fill(self, level: int, columns: Value, lanes: int = LANES) -> None:
        """All lanes of one level start as the identity, or the first ones."""
        b, state = self.b, self.reductions.start()
        with b.loops_as_written(True), b.loop(0, lanes, 1) as lane, b.loop(0, columns, LANES) as column:
            self.write(level, lane.index, column.index, state)

    def tree(self, level: int, column: Value) -> State:
        """The 16 lanes of one level merged, for 16 columns."""
        lanes = [self.read(level, lane, column) for lane in range(LANES)]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [self.reductions.merge(x, y) for x, y in zip(lanes[:half], lanes[half:], strict=True)]
        return lanes[0]

    def fold(self, lane: Value, columns: Value) -> None:
        """A block's result joins the second level."""
        with self.b.loops_as_written(True), self.b.loop(0, columns, LANES) as column:
            low = self.tree(0, column.index)
            high = self.read(1, lane, column.index)
            self.write(1, lane, column.index, self.reductions.merge(high, low))
