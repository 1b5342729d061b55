"""The specified order of reductions (docs/numerics.md) in vectors of 16 lanes.

Element i of a block of 4096 goes to lane i mod 16, lanes are merged by a fixed tree, block k's result goes to lane k
mod 16 of a second level, merged by the same tree at the end.
"""

from __future__ import annotations

from weft import dtypes as dt
from weft.codegen.kernel import LANES, Kernel
from weft.codegen.scope import Scope, State, splat
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.targets.reductions import Reductions


class VectorReductions(Reductions):
    """Those of a kernel of vectors."""

    def take_vector(self, scope: Scope, j: Value, mask: Value | None, state: State) -> State:
        """The same for as many neighbours as a scope has along the reduced loop, from number `j` on."""
        lanes = scope.lanes
        return self.take(scope, self.b.splat(j, lanes) + self.b.iota(dt.int64, lanes), mask, state)

    def join(self, top: State, partial: State, here: Value) -> State:
        """A block's result joins lane `here` of the second level."""
        return self.merge(top, tuple([splat(self.b, x, LANES) for x in partial]), here)

    def tree(self, state: State) -> State:
        """16 lanes to one: halves are merged, 8 with 8, 4 with 4, 2 with 2, 1 with 1. There may be more of what gives
        the same bits in every order."""
        b = self.b
        whole: list[AnyValue] = []
        for _, op, part in self.parts(state):
            lanes = part[0].lanes
            while lanes > 1:
                lanes //= 2
                low = [_lanes(b, x, range(lanes)) for x in part]
                high = [_lanes(b, x, range(lanes, 2 * lanes)) for x in part]
                part = op.merge(b, low, high)
            whole.extend(part)
        return tuple(whole)


def _lanes(b: Builder, x: AnyValue, order: range) -> AnyValue:
    if isinstance(x, Complex):
        return Complex(_lanes(b, x.re, order), _lanes(b, x.im, order))  # type: ignore[arg-type]
    return b.extract(x, order[0]) if len(order) == 1 else b.shuffle(x, None, list(order))


class Slots:
    """Partial results of 16 columns in scratch, at most one for each lane of the specified order: where no more than 16
    elements are reduced, each is a partial result of its own."""

    def __init__(self, scratch: Value, reductions: VectorReductions) -> None:
        self.b, self.scratch, self.reductions = reductions.b, scratch, reductions

    @staticmethod
    def size(kernel: Kernel) -> int:
        """Bytes that they take."""
        return sum(LANES * LANES * d.size for d in kernel.state_dtypes())

    def _address(self, component: int, slot: Value) -> Value:
        dtypes = self.reductions.dtypes
        before = sum(LANES * LANES * d.size for d in dtypes[:component])
        return self.b.gep(self.b.gep(self.scratch, before), slot * (LANES * dtypes[component].size))

    def read(self, slot: Value) -> State:
        return tuple([self.b.load(self._address(c, slot), d) for c, d in enumerate(self.reductions.dtypes)])

    def write(self, slot: Value, state: State) -> None:
        for c, x in enumerate(state):
            self.b.store(x, self._address(c, slot))

    def merged(self, count: Value) -> State:
        """The first `count` slots merged by the tree of 16 lanes; those that are not there are left out, which is exact
        where merging an identity changes nothing (`Kernel.is_neutral`)."""
        b, half = self.b, LANES
        while half > 1:
            half //= 2
            pairs = b.choose(count - half < half, count - half, half)
            with b.loop(0, pairs, 1) as low:
                self.write(low.index, self.reductions.merge(self.read(low.index), self.read(low.index + half)))
            count = b.choose(count < half, count, half)
        return self.read(b.i64(0))
