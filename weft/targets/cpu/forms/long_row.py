"""A few long rows, which threads share: their blocks are reduced side by side, then the partial results of each row.
The order is the same as in a row kernel. Of places of extremes, the first half finds which block has the extreme one,
the second one where it stands there."""

from __future__ import annotations

from weft import dtypes as dt
from weft.codegen.kernel import BLOCK, LANES
from weft.codegen.phases import Phases
from weft.codegen.scope import Accesses, Scope, State
from weft.dtypes import Dtype
from weft.llvm.builder import Value
from weft.passes.lower import Item
from weft.records import dataclass
from weft.targets.axes import Word, product
from weft.targets.cpu.forms.base import Form, grain_of
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.cpu.reductions import VectorReductions
from weft.targets.cpu.searching import Search
from weft.targets.nest import Nest

FEW_ROWS, LONG_ROW = 16, 1 << 15
"""Fewer rows than this, each at least so long, are reduced in two stages."""

SEARCHED_ROW = 1 << 13
"""The same of integers that are searched, for each of which the other way keeps a place."""

VECTOR_BYTES = 64
"""Of elements that are taken in together."""


@dataclass(frozen=True, slots=True)
class _Stage(Form):
    """One of two stages: a row has `chunks` blocks, whose partial results, of these dtypes, lie in arrays `qK`."""

    partials: tuple[Dtype, ...] = ()

    def as_written(self) -> bool:
        return self.in_whole_vectors()

    def places(self) -> list[str]:
        return [f"*q{c}" for c, _ in enumerate(self.partials)]


@dataclass(frozen=True, slots=True)
class Partial(_Stage):
    """First half: every block of 4096 elements to its partial result, blocks side by side."""

    title = "partial"

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        """Both halves."""
        outer, inner = nest.outer, nest.reduced[0] if nest.reduced else nest.single()
        n, units = inner.size, product(outer)
        if not (n >= SEARCHED_ROW and units < FEW_ROWS):
            return None
        kernel = cls.of(nest, outer, inner)
        if Phases(kernel).count != 1 or not (n >= LONG_ROW or kernel.searches_integers(units)):
            return None
        chunks = -(-n // BLOCK)
        dtypes = tuple(kernel.state_dtypes())
        numbers: dict[str, Word] = {"block": BLOCK, "chunks": chunks}
        numbers |= {f"q{c}": nest.temporary(c) for c, _ in enumerate(dtypes)}
        first = cls.of(nest, outer, inner, partials=dtypes)
        last = Final.of(nest, outer, inner, partials=dtypes)
        launches = [
            first.launch(nest, outer, inner, {**numbers, "units": units * chunks}, grain_of(BLOCK, nest.cost())),
            last.launch(nest, outer, inner, {**numbers, "units": units}, 0),
        ]
        return nest.item(launches, first.overwritten(), [units * chunks * d.size for d in dtypes])

    def sizes(self) -> list[str]:
        return ["block", "chunks", *self.places()]

    def overwritten(self) -> list[int]:
        return Phases(self).written_last()

    def searches_integers(self, rows: int) -> bool:
        """Whether a search of shorter rows pays: of one, or of elements that are compared in fewer instructions."""
        if not Search.fits(self):
            return False
        dtype = self.operand_dtype(self.reductions()[0])
        return dtype.is_integer and (dtype.size < 8 or rows == 1)

    @property
    def lanes(self) -> int:
        """The length of vectors: whole registers of small elements, where the order makes no difference."""
        numbers = self.reductions()
        if not self.are_exact(numbers):
            return LANES
        return max(LANES, VECTOR_BYTES // max(self.operand_dtype(number).size for number in numbers))

    def emit(self, frame: Frame) -> None:
        b, accesses = frame.b, Accesses(frame, self)
        reductions, lanes = VectorReductions(b, self, self.reductions()), self.lanes
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, True, "block")
            bases = accesses.bases(frame.indices(place))

            def body(j: Value, mask: Value | None, state: State) -> State:
                scope = Scope(accesses, bases, j, lanes, mask)
                reductions.read(scope)
                scope.store_level("full")
                return reductions.take_vector(scope, j, mask, state)

            if Search.fits(self):
                partial = Search(b, self, accesses).largest(bases, start, stop)
            else:
                first = reductions.start(lanes)
                partial = reductions.tree(vector_loop(b, start, stop, body, first, lanes=lanes))
            for c, x in enumerate(partial):
                b.store(x, b.gep(frame[f"q{c}"], units.index * self.partials[c].size))


@dataclass(frozen=True, slots=True)
class Final(_Stage):
    """Second half: partial results to lanes, lanes to one, and what follows it."""

    title = "final"

    def sizes(self) -> list[str]:
        return ["chunks", *self.places()]

    def emit(self, frame: Frame) -> None:
        b, accesses, chunks = frame.b, Accesses(frame, self), frame["chunks"]
        reductions = VectorReductions(b, self, self.reductions())
        with b.loop(frame.begin, frame.end, 1) as units:
            bases = accesses.bases(frame.indices(units.index))

            def body(j: Value, mask: Value | None, state: State) -> State:
                parts = [
                    b.load(b.gep(frame[f"q{c}"], (units.index * chunks + j) * d.size), d, LANES, mask)
                    for c, d in enumerate(self.partials)
                ]
                return reductions.merge(state, tuple(parts), mask)

            final = reductions.tree(vector_loop(b, b.i64(0), chunks, body, reductions.start()))
            if Search.fits(self):
                best, block = final
                assert isinstance(best, Value)
                assert isinstance(block, Value)
                start = b.cast(block, dt.int64)
                stop = frame.least(start + BLOCK, frame["n"])
                final = best, Search(b, self, accesses).place(bases, best, start, stop)
            given = reductions.finish(final)
            Scope(accesses, bases, b.i64(0), 1, None, given).store_level("reduced")
