"""The forms of loop-nest kernels on a GPU, and the choice between them.

A map has a thread for each element. In a reduction 16 threads share a row, one for each of the interleaved partial
results of the specified order (docs/numerics.md), and a block of threads has 16 rows: so the bits are those of the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft.codegen.kernel import BLOCK, LANES, Kernel
from weft.codegen.launch import Launch
from weft.codegen.phases import Phases
from weft.codegen.scope import Accesses, Bases, Scope, State, flatten, unflatten
from weft.dtypes import Dtype
from weft.llvm.builder import Value
from weft.passes.fuse import Group
from weft.passes.lower import Item, Lowerer
from weft.records import dataclass
from weft.targets.axes import Axis, Word, product, words_of
from weft.targets.cuda.builder import THREADS, Exchange, ThreadFrame
from weft.targets.cuda.kernel import CudaKernel, blocks_for
from weft.targets.nest import Nest
from weft.targets.reductions import Reductions

ROWS: Final = THREADS // LANES
"""Rows that a block of threads reduces."""
FEW_ROWS: Final = 4096
"""Fewer rows than this would leave most of a GPU idle: their blocks of elements are reduced side by side."""


@dataclass(frozen=True, slots=True)
class CudaForm(Kernel, CudaKernel):
    """A loop-nest kernel of a GPU."""

    def launch(self, nest: Nest, outer: Sequence[Axis], inner: Axis, numbers: dict[str, Word]) -> Launch:
        """A launch over these loops; `numbers` are the words that only this form has."""
        return Launch(self.source(), words_of(self.fields(), nest.pointers(), outer, inner, numbers))


@dataclass(frozen=True, slots=True)
class CudaMap(CudaForm):
    """Elementwise: a thread for each of `count` elements."""

    title = "map"

    @classmethod
    def schedule(cls, nest: Nest) -> Item:
        *outer, inner = nest.outer or [nest.single()]
        kernel = cls(len(outer), *nest.body(inner))
        count = product(outer) * inner.size
        launch = kernel.launch(nest, outer, inner, {"units": blocks_for(count, THREADS), "count": count})
        return nest.item([launch], range(len(kernel.stores)))

    def sizes(self) -> list[str]:
        return ["count"]

    def emit(self, frame: ThreadFrame) -> None:
        b, accesses = frame.b, Accesses(frame, self)
        element = frame.block * THREADS + frame.thread
        with b.when(element < frame["count"]):
            place, j = frame.divide(element, frame["n"]) if self.outer else (b.i64(0), element)
            Scope(accesses, accesses.bases(frame.indices(place)), j, 1).store_all()


class _Team:
    """The threads of a block while they reduce 16 rows (or parts of rows): 16 threads a row. Threads with neighbouring
    numbers have neighbouring elements of a row, or, `across`, neighbouring rows."""

    def __init__(self, frame: ThreadFrame, across: bool) -> None:
        b, thread = frame.b, frame.thread
        self.frame, self.b = frame, b
        low, high = thread & (LANES - 1), thread >> 4
        self.lane, row = (high, low) if across else (low, high)
        self._apart = ROWS if across else 1
        self.first = thread - self.lane * self._apart
        """The thread of the row's first lane."""
        self.place = frame.block * ROWS + row

    def tree(self, exchange: Exchange, reductions: Reductions, state: State) -> State:
        """The states of the 16 threads of a row merged by the fixed tree; all of them get the result."""
        b, half = self.b, LANES
        while half > 1:
            half //= 2
            exchange.give(state)
            other = exchange.take((self.frame.thread + half * self._apart) & (THREADS - 1))
            state = reductions.merge(state, tuple(other), self.lane < half)
            b.barrier()
        exchange.give(state)
        state = tuple(exchange.take(self.first))
        b.barrier()
        return state


@dataclass(frozen=True, slots=True)
class CudaRow(CudaForm):
    """Each row in phases: passes over the row that reduce and store, with values of the whole row between them.
    `across`: rows lie beside each other, and their elements far apart."""

    title = "row"
    across: bool = False

    @classmethod
    def schedule(cls, nest: Nest) -> Item:
        outer, inner = nest.outer, nest.reduced[0] if nest.reduced else nest.single()
        kernel = cls(len(outer), *nest.body(inner), across=nest.group.form == "column")
        rows = product(outer)
        launch = kernel.launch(nest, outer, inner, {"units": blocks_for(rows, ROWS), "rows": rows, "block": BLOCK})
        return nest.item([launch], Phases(kernel).written_last())

    def flags(self) -> list[str]:
        return ["across"] if self.across else []

    def sizes(self) -> list[str]:
        return ["rows", "block"]

    def emit(self, frame: ThreadFrame) -> None:
        _Rows(self, frame).emit()


class _Rows:
    """Writes the code of a row kernel. All threads take part in all steps, because they wait for each other: those
    beyond the last row work on it again, and write nothing."""

    def __init__(self, kernel: CudaRow, frame: ThreadFrame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.phases, self.accesses = Phases(kernel), Accesses(frame, kernel)
        self.team = _Team(frame, kernel.across)

    def emit(self) -> None:
        b, frame, phases, team = self.b, self.frame, self.phases, self.team
        inside = team.place < frame["rows"]
        place = b.choose(inside, team.place, frame["rows"] - 1)
        bases = self.accesses.bases(frame.indices(place))
        scalars = Scope(self.accesses, bases, b.i64(0), 1)
        for phase in range(phases.count):
            for number in phases.scalars(phase):
                scalars.shared(number)
            self._pass(phase, bases, scalars, inside)
        stored = [(k, s) for k, s in enumerate(self.kernel.stores, self.kernel.first) if s.access.level == "reduced"]
        values = [scalars.stored(store.value) for _, store in stored]
        with b.when(inside & team.lane.eq(0)):
            for (k, store), x in zip(stored, values, strict=True):
                scalars.store(k, store.access, x)

    def _pass(self, phase: int, bases: Bases, scalars: Scope, inside: Value) -> None:
        """One pass over the row: its reductions end up as values of the whole row."""
        b, kernel, n = self.b, self.kernel, self.frame["n"]
        given = {v: scalars.shared(v) for v in self.phases.scalars(phase)}
        reductions, stores = Reductions(b, kernel, self.phases.reductions(phase)), self.phases.stores(phase)

        def body(j: Value, state: State) -> State:
            scope = Scope(self.accesses, bases, j, 1, None, given)
            reductions.read(scope)
            values = [scope.stored(kernel.stores[i].value) for i in stores]
            if stores:
                with b.when(inside):
                    for i, x in zip(stores, values, strict=True):
                        scope.store(kernel.first + i, kernel.stores[i].access, x)
            return reductions.take(scope, j, None, state)

        if not reductions:
            with b.loop(self.team.lane, n, LANES) as loop:
                body(loop.index, ())
            return
        exchange, block = Exchange(self.frame, reductions.dtypes), self.frame["block"]
        start = reductions.start()
        with b.loop(0, n, block, b.i64(0), *flatten(start)) as blocks:
            turn, top = blocks.carried[0], unflatten(start, blocks.carried[1:])
            stop = self.frame.least(blocks.index + block, n)
            with b.loop(blocks.index + self.team.lane, stop, LANES, *flatten(start)) as loop:
                loop.carry(*flatten(body(loop.index, unflatten(start, loop.carried))))
            partial = self.team.tree(exchange, reductions, unflatten(start, loop.carried))
            top = reductions.merge(top, partial, self.team.lane.eq(turn & (LANES - 1)))
            blocks.carry(turn + 1, *flatten(top))
        final = self.team.tree(exchange, reductions, unflatten(start, blocks.carried[1:]))
        scalars.values.update(reductions.finish(final))


@dataclass(frozen=True, slots=True)
class _Stage(CudaForm):
    """One of two stages: a row has `chunks` blocks, whose partial results, of these dtypes, lie in arrays `qK`."""

    partials: tuple[Dtype, ...] = ()

    def sizes(self) -> list[str]:
        return ["rows", "block", "chunks", *(f"*q{c}" for c, _ in enumerate(self.partials))]


@dataclass(frozen=True, slots=True)
class CudaPartial(_Stage):
    """First half, for few long rows: every block of 4096 elements to its partial result."""

    title = "partial"

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        """Both halves."""
        outer, inner = nest.outer, nest.reduced[0] if nest.reduced else nest.single()
        n, rows = inner.size, product(outer)
        if not (n > 2 * BLOCK and rows < FEW_ROWS):
            return None
        first = cls(len(outer), *nest.body(inner))
        if Phases(first).count != 1:
            return None
        dtypes, chunks = tuple(first.state_dtypes()), blocks_for(n, BLOCK)
        numbers: dict[str, Word] = {"rows": rows, "block": BLOCK, "chunks": chunks}
        numbers |= {f"q{c}": nest.temporary(c) for c, _ in enumerate(dtypes)}
        first = cls(len(outer), *nest.body(inner), partials=dtypes)
        last = CudaFinal(len(outer), *nest.body(inner), partials=dtypes)
        launches = [
            first.launch(nest, outer, inner, {**numbers, "units": blocks_for(rows * chunks, ROWS)}),
            last.launch(nest, outer, inner, {**numbers, "units": blocks_for(rows, ROWS)}),
        ]
        return nest.item(launches, Phases(first).written_last(), [rows * chunks * d.size for d in dtypes])

    def emit(self, frame: ThreadFrame) -> None:
        b, accesses, team = frame.b, Accesses(frame, self), _Team(frame, across=False)
        reductions = Reductions(b, self, self.reductions())
        count = frame["rows"] * frame["chunks"]
        inside = team.place < count
        unit = b.choose(inside, team.place, count - 1)
        place, begin, end = frame.part(unit, True, "block")
        bases, start = accesses.bases(frame.indices(place)), reductions.start()
        full = [(k, s) for k, s in enumerate(self.stores, self.first) if s.access.level == "full"]
        with b.loop(begin + team.lane, end, LANES, *flatten(start)) as loop:
            scope = Scope(accesses, bases, loop.index, 1)
            reductions.read(scope)
            values = [scope.stored(store.value) for _, store in full]
            if full:
                with b.when(inside):
                    for (k, store), x in zip(full, values, strict=True):
                        scope.store(k, store.access, x)
            loop.carry(*flatten(reductions.take(scope, loop.index, None, unflatten(start, loop.carried))))
        partial = team.tree(Exchange(frame, self.partials), reductions, unflatten(start, loop.carried))
        with b.when(inside & team.lane.eq(0)):
            for c, x in enumerate(partial):
                b.store(x, b.gep(frame[f"q{c}"], unit * self.partials[c].size))


@dataclass(frozen=True, slots=True)
class CudaFinal(_Stage):
    """Second half: partial results to lanes, lanes to one, and what follows it."""

    title = "final"

    def emit(self, frame: ThreadFrame) -> None:
        b, accesses, team = frame.b, Accesses(frame, self), _Team(frame, across=False)
        reductions, chunks = Reductions(b, self, self.reductions()), frame["chunks"]
        inside = team.place < frame["rows"]
        row = b.choose(inside, team.place, frame["rows"] - 1)
        start = reductions.start()
        with b.loop(team.lane, chunks, LANES, *flatten(start)) as loop:
            parts = [
                b.load(b.gep(frame[f"q{c}"], (row * chunks + loop.index) * d.size), d, 1)
                for c, d in enumerate(self.partials)
            ]
            loop.carry(*flatten(reductions.merge(unflatten(start, loop.carried), tuple(parts))))
        final = team.tree(Exchange(frame, self.partials), reductions, unflatten(start, loop.carried))
        with b.when(inside & team.lane.eq(0)):
            bases = accesses.bases(frame.indices(row))
            Scope(accesses, bases, b.i64(0), 1, None, reductions.finish(final)).store_level("reduced")


def schedule(lowerer: Lowerer, group: Group) -> Item:
    """A fused group made ready to run."""
    nest = Nest(lowerer, group)
    if group.form == "map":
        return CudaMap.schedule(nest)
    return CudaPartial.schedule(nest) or CudaRow.schedule(nest)
