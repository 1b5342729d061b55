"""Places of extremes in long rows: the largest key of each block first, in vectors without places, then the place in
the first block that has it. The keys of all other blocks are looked at once."""

from __future__ import annotations

from weft import dtypes as dt
from weft.codegen.kernel import Kernel
from weft.codegen.phases import Phases
from weft.codegen.scope import Accesses, Bases, Scope, State
from weft.llvm.builder import Builder, Value
from weft.targets.cpu.kernel import vector_loop

CHEAP = 8
"""Keys of what costs more are not computed a second time."""
BYTES = 128
"""Of keys in a turn of the loop."""


class Search:
    """The search for the one reduction of a kernel."""

    def __init__(self, b: Builder, kernel: Kernel, accesses: Accesses) -> None:
        self.b, self.kernel, self.accesses = b, kernel, accesses
        (self.number,) = kernel.reductions()
        self.op, self.dtype = kernel.step(self.number).op, kernel.operand_dtype(self.number)
        self.lanes = BYTES // self.op.accumulator(self.dtype).size

    @staticmethod
    def fits(kernel: Kernel) -> bool:
        """Whether a kernel does nothing with all elements but look for an extreme one, and they are cheap."""
        reductions = kernel.reductions()
        if len(reductions) != 1 or any(store.access.level == "full" for store in kernel.stores):
            return False
        step = kernel.step(reductions[0])
        operand = step.operands[0]
        return step.op.is_place(kernel.dtype(operand)) and Phases(kernel).cost(operand) <= CHEAP

    def largest(self, bases: Bases, start: Value, stop: Value) -> State:
        """The largest key of a block, and where the block starts."""
        b = self.b
        least: Value = self.op.start(b, self.dtype, self.lanes)[0]

        def body(j: Value, mask: Value | None, state: State) -> State:
            keys = self._keys(bases, j, mask)
            if mask is not None:
                keys = b.choose(mask, keys, least)
            (best,) = state
            assert isinstance(best, Value)
            return (b.choose(keys > best, keys, best),)

        (best,) = vector_loop(b, start, stop, body, (least,), lanes=self.lanes)
        assert isinstance(best, Value)
        return self._across(best, larger=True), b.cast(start, dt.uint32)

    def place(self, bases: Bases, best: Value, start: Value, stop: Value) -> Value:
        """Where in a block the largest key stands first."""
        b = self.b
        nowhere = b.const(dt.uint32, (1 << 32) - 1, self.lanes)
        wanted = b.splat(best, self.lanes)

        def body(j: Value, mask: Value | None, state: State) -> State:
            here = self._keys(bases, j, mask).eq(wanted)
            if mask is not None:
                here = here & mask
            index = b.splat(b.cast(j, dt.uint32), self.lanes) + b.iota(dt.uint32, self.lanes)
            (first,) = state
            assert isinstance(first, Value)
            found = b.choose(here, index, nowhere)
            return (b.choose(found < first, found, first),)

        (first,) = vector_loop(b, start, stop, body, (nowhere,), lanes=self.lanes)
        assert isinstance(first, Value)
        return self._across(first, larger=False)

    def _keys(self, bases: Bases, j: Value, mask: Value | None) -> Value:
        scope = Scope(self.accesses, bases, j, self.lanes, mask)
        keys: Value = self.op.key(self.b, scope.operand(self.number))
        return keys

    def _across(self, x: Value, larger: bool) -> Value:
        """The largest or the smallest of all lanes."""
        b, lanes = self.b, x.lanes
        while lanes > 1:
            lanes //= 2
            if lanes == 1:
                low, high = b.extract(x, 0), b.extract(x, 1)
            else:
                low, high = b.shuffle(x, None, range(lanes)), b.shuffle(x, None, range(lanes, 2 * lanes))
            x = b.choose(high > low if larger else high < low, high, low)
        return x
