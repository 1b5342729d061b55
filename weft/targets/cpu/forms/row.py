"""Reductions along rows, and what uses their results in the same row: softmax and norms in one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft import dtypes as dt
from weft.codegen.kernel import BLOCK, LANES
from weft.codegen.phases import Phases
from weft.codegen.scope import Accesses, Bases, KeptScope, Scope, State, flatten, splat, unflatten
from weft.llvm.builder import AnyValue, Value
from weft.passes.lower import Item
from weft.records import dataclass
from weft.targets.axes import product
from weft.targets.cpu.forms.base import Form, grain_of
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.cpu.reductions import VectorReductions
from weft.targets.nest import Nest


@dataclass(frozen=True, slots=True)
class Row(Form):
    """Each row in phases: passes over the row that reduce, keep and store, with per-row scalars between them. `block`
    elements are reduced before their result joins the others."""

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
        """Bytes of per-thread memory for rows of n elements: what later passes need and is not stored anyway."""
        stored = {s.value for s in self.stores if s.access.level == "full" and s.access.inner == "unit"}
        padded = -(-n // LANES) * LANES
        return sum(-(-padded * self.dtype(v).size // 64) * 64 for v in Phases(self).kept if v not in stored)

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
        with b.loop(frame.begin, frame.end, 1) as units:
            bases = self.accesses.bases(frame.indices(units.index))
            scalars = Scope(self.accesses, bases, b.i64(0), 1)
            homes = self._homes(bases)
            for phase in range(phases.count):
                given = {v: splat(b, scalars.shared(v), LANES) for v in phases.scalars(phase)}
                kept = {v: home for v, home in homes.items() if phases.known[v] < phase}
                self._pass(phase, bases, given, homes, kept, scalars)
            scalars.store_level("reduced")

    def _homes(self, bases: Bases) -> dict[int, Value]:
        """Where kept values lie: in the output row if they are stored anyway, else in scratch."""
        b, frame, kernel, kept = self.b, self.frame, self.kernel, self.phases.kept
        homes: dict[int, Value] = {}
        for k, store in enumerate(kernel.stores, kernel.first):
            if store.value in kept and store.access.level == "full" and store.access.inner == "unit":
                homes.setdefault(store.value, bases[k])
        offset = b.i64(0)
        padded = ((frame["n"] + (LANES - 1)) >> 4) << 4
        for number in kept:
            if number not in homes:
                homes[number] = b.gep(frame.scratch, offset)
                offset = offset + (((padded * kernel.dtype(number).size + 63) >> 6) << 6)
        return homes

    def _pass(
        self, phase: int, bases: Bases, given: Mapping[int, AnyValue], homes: Mapping[int, Value],
        kept: Mapping[int, Value], scalars: Scope,
    ) -> None:  # fmt: skip
        """One pass over the row: its reductions end up as per-row scalars."""
        b, kernel, phases = self.b, self.kernel, self.phases
        reductions, stores = VectorReductions(b, kernel, phases.reductions(phase)), phases.stores(phase)
        at_home = {kernel.stores[i].value for i in stores if kernel.stores[i].access.inner == "unit"}
        keeping = [v for v in phases.kept if phases.known[v] == phase and v not in at_home]

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
        with b.loop(0, n, block, b.i64(0), *flatten(start), *flatten(one)) as blocks:
            turn, top = blocks.carried[0], unflatten(start, blocks.carried[1 : 1 + width])
            stop = b.choose(blocks.index + block < n, blocks.index + block, n)
            partial = reductions.tree(vector_loop(b, blocks.index, stop, body, start))
            top = reductions.join(top, partial, b.iota(dt.int64).eq(b.splat(turn & (LANES - 1))))
            blocks.carry(turn + 1, *flatten(top), *flatten(partial))
        top, last = unflatten(start, blocks.carried[1 : 1 + width]), unflatten(one, blocks.carried[1 + width :])

        def merged() -> list[Value]:
            return flatten(reductions.tree(top))

        # A single block is the result: the tree over it and fifteen identities would only take time.
        final = b.rarely(n > block, flatten(last), merged) if self.kernel.is_neutral else merged()
        return unflatten(one, final)
