"""Reductions along rows, and what uses their results in the same row: softmax and norms in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft import dtypes as dt
from weft.codegen.kernel import BLOCK, LANES
from weft.codegen.phases import Phases
from weft.codegen.scope import Accesses, Bases, KeptScope, Scope, State, flatten, splat, unflatten
from weft.graph.dims import dim_max
from weft.llvm.builder import AnyValue, Value
from weft.passes.lower import Item, to_int
from weft.records import dataclass
from weft.targets.axes import product
from weft.targets.cpu.forms.base import Form, grain_of
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.cpu.reductions import VectorReductions
from weft.targets.nest import Nest

TOGETHER, ENOUGH = 8, 1024
"""The most rows that go through a phase one after the other, and how many elements they have: while the sum of one
row is put together, divided and rooted, that of the next is on its way."""
NEAR = 24 << 10
"""Bytes of these rows that the next phase shall find in the first cache."""
PADDED, SLOT = 64, 16
"""Kept rows have a multiple of so many elements; bytes of a scalar that is kept."""


@dataclass(frozen=True, slots=True)
class Row(Form):
    """Each row in phases: passes over the row that reduce, keep and store, with per-row scalars between them. `block`
    elements are reduced before their result joins the others. Some rows go through each phase before the next one
    begins; what they hand on to it lies in scratch: a record of scalars for each, then the values that are kept."""

    title = "row"

    @classmethod
    def schedule(cls, nest: Nest) -> Item:
        outer, inner = nest.outer, nest.reduced[0] if nest.reduced else nest.single()
        kernel = cls.of(nest, outer, inner)
        grain = grain_of(inner.size, nest.cost())
        numbers = {"units": product(outer), "block": BLOCK}
        launch = kernel.launch(nest, outer, inner, {**numbers}, grain, kernel.scratch(inner.size))
        return nest.item([launch], kernel.overwritten())

    def sizes(self) -> list[str]:
        return ["block"]

    def scratch(self, n: int) -> int:
        """Bytes of per-thread memory for rows of n elements."""
        phases = Phases(self)
        sizes = [self.dtype(v).size for v in self.unstored(phases)]
        near = NEAR + TOGETHER * PADDED * sum(sizes)
        kept = to_int(dim_max(-(-n // PADDED) * PADDED * sum(sizes), near)) if sizes else 0
        return TOGETHER * self.record(phases) + kept

    def unstored(self, phases: Phases) -> list[int]:
        """What later phases need and is not stored anyway."""
        stored = {s.value for s in self.stores if s.access.level == "full" and s.access.inner == "unit"}
        return [v for v in phases.kept if v not in stored]

    def record(self, phases: Phases) -> int:
        """Bytes of the scalars that a row hands on."""
        return -(-SLOT * len(phases.handed) // 64) * 64

    def held(self, phases: Phases) -> int:
        """Bytes of an element that later phases may read."""
        loads = [a for a in self.loads if a.source == "memory" and a.level == "full" and a.inner != "repeat"]
        return max(1, sum(a.dtype.size for a in loads) + sum(self.dtype(v).size for v in phases.kept))

    def overwritten(self) -> list[int]:
        """A row may be passed over several times: only what the last pass alone writes cannot be read again."""
        return Phases(self).written_last()

    def as_written(self) -> bool:
        return self.in_whole_vectors()

    def emit(self, frame: Frame) -> None:
        _Rows(self, frame).emit()


class _Rows:
    """Writes the code of a row kernel."""

    def __init__(self, kernel: Row, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.phases, self.accesses = Phases(kernel), Accesses(frame, kernel)

    def emit(self) -> None:
        b, frame, phases = self.b, self.frame, self.phases
        if phases.count < 2:
            with b.loop(frame.begin, frame.end, 1) as units:
                self._row(0, units.index, b.i64(0))
            return
        together = self._together()
        with b.loop(frame.begin, frame.end, together) as rows:
            stop = frame.least(rows.index + together, frame.end)
            for phase in range(phases.count):
                with b.loop(rows.index, stop, 1) as units:
                    self._row(phase, units.index, units.index - rows.index)

    def _together(self) -> Value:
        """How many rows go through each phase together."""
        b, frame = self.b, self.frame
        n = b.intrinsic("smax", frame["n"], b.i64(1))
        near, _ = frame.divide(b.i64(NEAR), n * self.kernel.held(self.phases))
        enough, _ = frame.divide(b.i64(ENOUGH), n)
        wanted = frame.least(b.intrinsic("smax", enough, b.i64(2)), TOGETHER)
        return b.intrinsic("smax", b.intrinsic("smin", near, wanted), b.i64(1))

    def _row(self, phase: int, unit: Value, place: Value) -> None:
        """One phase of a row, which is number `place` of those that go together."""
        b, phases = self.b, self.phases
        bases = self.accesses.bases(self.frame.indices(unit), self._wanted(phase))
        record = b.gep(self.frame.scratch, place * self.kernel.record(phases))
        slots = {v: b.gep(record, SLOT * k) for k, v in enumerate(phases.handed)}
        earlier = {v: slot for v, slot in slots.items() if phases.passed(v) < phase}
        scalars = KeptScope(self.accesses, bases, b.i64(0), 1, kept=earlier)
        read = [v for v in phases.scalars(phase) if v in phases.reads[phase]]
        given = {v: splat(b, scalars.shared(v), LANES) for v in read}
        self._pass(phase, bases, given, self._homes(phase, bases, place), scalars)
        for v, slot in slots.items():
            if phases.passed(v) == phase:
                b.store(scalars.stored(v), slot)
        if phase >= phases.count - 1:
            scalars.store_level("reduced")

    def _wanted(self, phase: int) -> set[int]:
        """The accesses of a phase, and those of the row as a whole."""
        kernel, read = self.kernel, self.phases.reads[phase]
        values = [*range(kernel.first), *(s.value for s in kernel.stores)]
        return {k for k, a in enumerate(kernel.accesses()) if a.level != "full" or values[k] in read}

    def _homes(self, phase: int, bases: Bases, place: Value) -> dict[int, Value]:
        """Where kept values of a phase lie: in the output row if they are stored anyway, else in scratch."""
        b, frame, kernel, phases = self.b, self.frame, self.kernel, self.phases
        homes: dict[int, Value] = {}
        kept = [v for v in phases.kept if v in phases.reads[phase]]
        for k, store in enumerate(kernel.stores, kernel.first):
            if store.value in kept and store.access.level == "full" and store.access.inner == "unit":
                homes.setdefault(store.value, bases[k])
        unstored = kernel.unstored(phases)
        if not any(v in unstored for v in kept):
            return homes
        sizes = [kernel.dtype(v).size for v in unstored]
        padded = (frame["n"] + (PADDED - 1)) & -PADDED
        address = b.gep(frame.scratch, place * (padded * sum(sizes)) + TOGETHER * kernel.record(phases))
        for v, size in zip(unstored, sizes, strict=True):
            homes[v], address = address, b.gep(address, padded * size)
        return homes

    def _pass(
        self,
        phase: int,
        bases: Bases,
        given: Mapping[int, AnyValue],
        homes: Mapping[int, Value],
        scalars: Scope,
    ) -> None:
        """One pass over the row: its reductions end up as per-row scalars."""
        b, kernel, phases = self.b, self.kernel, self.phases
        reductions, stores = VectorReductions(b, kernel, phases.reductions(phase)), phases.stores(phase)
        at_home = {kernel.stores[i].value for i in stores if kernel.stores[i].access.inner == "unit"}
        keeping = [v for v in phases.kept if phases.made[v] == phase and v not in at_home]
        kept = {v: home for v, home in homes.items() if phases.made[v] < phase}

        def body(j: Value, mask: Value | None, state: State) -> State:
            scope = KeptScope(self.accesses, bases, j, LANES, mask, given, kept=kept)
            reductions.read(scope)
            for v in keeping:
                b.store(scope.stored(v), b.gep(homes[v], j * kernel.dtype(v).size), mask)
            scope.store_some(stores)
            return reductions.take_vector(scope, j, mask, state)

        if reductions:
            scalars.values.update(reductions.finish(self._reduced(reductions, body)))
        else:
            vector_loop(b, b.i64(0), self.frame["n"], body)

    def _reduced(self, reductions: VectorReductions, body: Any) -> State:
        """The row's state: its blocks, each merged by the tree, on a second level."""
        b, n, block = self.b, self.frame["n"], self.frame["block"]
        start, one = reductions.start(), reductions.start(1)
        width = len(flatten(start))

        def unless_single(values: Sequence[Value], several: Callable[[], list[Value]]) -> Sequence[Value]:
            """A single block is the result: the tree over it and fifteen identities would only take time."""
            return b.rarely(n > block, values, several) if self.kernel.is_neutral else several()

        with b.loop(0, n, block, b.i64(0), *flatten(start), *flatten(one)) as blocks:
            turn, top = blocks.carried[0], unflatten(start, blocks.carried[1 : 1 + width])
            stop = b.choose(blocks.index + block < n, blocks.index + block, n)
            partial = reductions.tree(vector_loop(b, blocks.index, stop, body, start))

            def joined() -> list[Value]:
                return flatten(reductions.join(top, partial, b.iota(dt.int64).eq(b.splat(turn & (LANES - 1)))))

            blocks.carry(turn + 1, *unless_single(flatten(top), joined), *flatten(partial))
        top, last = unflatten(start, blocks.carried[1 : 1 + width]), unflatten(one, blocks.carried[1 + width :])
        return unflatten(one, unless_single(flatten(last), lambda: flatten(reductions.tree(top))))
