"""Rows of a few elements, sixteen at a time: lanes go across rows, where a row kernel would leave most of them idle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.codegen.kernel import LANES
from weft.codegen.phases import Phases
from weft.codegen.scope import Accesses, Bases, Scope, State, stored_dtype
from weft.llvm.builder import AnyValue, Value
from weft.passes.lower import Item
from weft.records import dataclass
from weft.targets.axes import product
from weft.targets.cpu.forms.base import Form, grain_of
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.cpu.reductions import Slots, VectorReductions
from weft.targets.nest import Nest

LONGEST = LANES
"""The most elements of a row: one for each partial result."""
MANY_ROWS, GROUP = 64, 256
"""So many neighbouring rows are worth lanes across rows; so many of them are one task."""


@dataclass(frozen=True, slots=True)
class Short(Form):
    """Passes over the elements of rows like those of a row kernel, but each vector holds one element of each of 16
    neighbouring rows, so what is a scalar of a row there is a vector here. Rows are at most 16 elements long: each is a
    partial result of its own in the specified order (`Slots`).

    The inner loop goes over `n` rows, `width` of them in a unit; `rows` is the length of each."""

    title = "short"
    further = "r"

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        if not nest.outer or not _fits(nest.reduced[0].size if nest.reduced else 1, nest.outer[-1].size):
            return None
        *outer, inner = nest.outer
        row = nest.reduced[0] if nest.reduced else nest.single()
        kernel = cls.of(nest, outer, inner)
        if not kernel.is_neutral:
            return None
        chunks = -(-inner.size // GROUP)
        numbers = {"units": product(outer) * chunks, "rows": row.size, "width": GROUP, "chunks": chunks}
        grain = grain_of(row.size * GROUP, nest.cost())
        launch = kernel.launch(nest, outer, inner, {**numbers}, grain, kernel.scratch(), r=row)
        return nest.item([launch], kernel.overwritten())

    def sizes(self) -> list[str]:
        return ["rows", "width", "chunks"]

    def scratch(self) -> int:
        """Bytes of per-thread memory: partial results, and the values that are kept for later passes."""
        return Slots.size(self) + sum(LONGEST * LANES * self.dtype(v).size for v in Phases(self).kept)

    def overwritten(self) -> list[int]:
        """As in a row kernel."""
        return Phases(self).written_last()

    def emit(self, frame: Frame) -> None:
        b = frame.b
        rows = _Rows(self, frame)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, True)
            bases = rows.accesses.bases(frame.indices(place))

            def body(j: Value, mask: Value | None, state: State) -> State:
                rows.emit(bases, j, mask)
                return state

            vector_loop(b, start, stop, body)


def _fits(n: int, rows: int) -> bool:
    """Whether rows of n elements are so short and so many that lanes go across them. A number is asked before a
    symbol."""
    if type(n) is int:
        return 0 < n <= LONGEST and rows >= MANY_ROWS
    return rows >= MANY_ROWS and 0 < n <= LONGEST


class _Rows:
    """Writes the passes over 16 rows."""

    def __init__(self, kernel: Short, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.phases, self.accesses = Phases(kernel), Accesses(frame, kernel)
        self._homes: dict[int, int] = {}
        at = Slots.size(kernel)
        for number in self.phases.kept:
            self._homes[number] = at
            at += LONGEST * LANES * kernel.dtype(number).size

    def home(self, number: int, row: Value) -> Value:
        """Where a kept value of element `row` of the 16 rows lies."""
        size = self.kernel.dtype(number).size
        return self.b.gep(self.b.gep(self.frame.scratch, self._homes[number]), row * (LANES * size))

    def emit(self, bases: Bases, j: Value, mask: Value | None) -> None:
        phases = self.phases
        scalars = Scope(self.accesses, bases, j, LANES, mask)
        for phase in range(phases.count):
            given = {v: scalars.shared(v) for v in phases.scalars(phase)}
            self._pass(phase, bases, j, mask, given, scalars)
        scalars.store_level("reduced")

    def _pass(
        self, phase: int, bases: Bases, j: Value, mask: Value | None, given: Mapping[int, AnyValue], scalars: Scope
    ) -> None:
        """One pass over the elements: what it reduces ends up among the scalars of the rows."""
        b, kernel, phases, rows = self.b, self.kernel, self.phases, self.frame["rows"]
        reductions = VectorReductions(b, kernel, phases.reductions(phase))
        slots = Slots(self.frame.scratch, reductions)
        with b.loop(0, rows, 1) as row:
            at = self.accesses.moved(bases, row.index)
            scope = _ElementScope(self.accesses, at, j, LANES, mask, given, rows=self, phase=phase, row=row.index)
            reductions.read(scope)
            for v in phases.kept:
                if phases.known[v] == phase:
                    b.store(scope.stored(v), self.home(v, row.index))
            scope.store_some(phases.stores(phase))
            slots.write(row.index, reductions.take(scope, b.splat(row.index), None, reductions.start()))
        if reductions:
            scalars.values.update(reductions.finish(slots.merged(rows)))


class _ElementScope(Scope):
    """A scope at one element of the rows: kept values of earlier passes are read back, not computed again."""

    def __init__(self, *args: Any, rows: _Rows, phase: int, row: Value) -> None:
        super().__init__(*args)
        self.rows, self.phase, self.row = rows, phase, row

    def value(self, number: int) -> AnyValue:
        self._recall(number)
        return super().value(number)

    def stored(self, number: int) -> AnyValue:
        self._recall(number)
        return super().stored(number)

    def _recall(self, number: int) -> None:
        phases = self.rows.phases
        if number in self.values or number in self.moved or number not in phases.kept:
            return
        if phases.known[number] < self.phase:
            dtype = stored_dtype(self.kernel.dtype(number))
            self.give(number, self.b.load(self.rows.home(number, self.row), dtype))
