"""The states of reductions in kernels, on every machine: how elements are taken in and states merged. The order of that
is specified (docs/numerics.md); each machine has its own way to follow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.codegen.kernel import Kernel
from weft.codegen.scope import Scope, State
from weft.llvm.builder import AnyValue, Builder, Value


class Reductions:
    """Some reductions of a kernel, which go along together: their states are one flat tuple."""

    def __init__(self, b: Builder, kernel: Kernel, numbers: Sequence[int]) -> None:
        self.b, self.kernel, self.numbers = b, kernel, list(numbers)
        self.dtypes = kernel.state_dtypes(self.numbers)

    def __bool__(self) -> bool:
        return bool(self.numbers)

    def start(self, lanes: int | None = None) -> State:
        """All identities, in as many lanes as the kernel's vectors have unless told."""
        lanes = self.b.lanes if lanes is None else lanes
        found: list[AnyValue] = []
        for number in self.numbers:
            found.extend(self.kernel.step(number).op.start(self.b, self.kernel.operand_dtype(number), lanes))
        return tuple(found)

    def parts(self, state: State) -> list[tuple[int, Any, State]]:
        """(number, operation, its part of the state) of each reduction."""
        result, at = [], 0
        for number in self.numbers:
            width = len(self.kernel.states_of(number))
            result.append((number, self.kernel.step(number).op, state[at : at + width]))
            at += width
        return result

    def read(self, scope: Scope) -> None:
        """Compute what will be taken in. Results that are written on the way may lie on operands."""
        for number in self.numbers:
            scope.operand(number)

    def take(self, scope: Scope, index: Value, mask: Value | None, state: State) -> State:
        """The state with the elements of a scope, whose places along the reduced loop are `index`."""
        b = self.b
        following: list[AnyValue] = []
        for number, op, part in self.parts(state):
            taken = op.step(b, part, scope.operand(number), index)
            following.extend(taken if mask is None else _kept(b, mask, taken, part))
        return tuple(following)

    def merge(self, x: State, y: State, mask: Value | None = None) -> State:
        """Two states, lane by lane; where a mask does not hold, the first one."""
        b = self.b
        following: list[AnyValue] = []
        for (_, op, low), (_, _, high) in zip(self.parts(x), self.parts(y), strict=True):
            joined = op.merge(b, low, high)
            following.extend(joined if mask is None else _kept(b, mask, joined, low))
        return tuple(following)

    def finish(self, state: State) -> dict[int, AnyValue]:
        """The results, by their numbers."""
        return {
            number: op.finish(self.b, part, self.kernel.operand_dtype(number)) for number, op, part in self.parts(state)
        }


def _kept(b: Builder, mask: Value, new: Sequence[AnyValue], old: Sequence[AnyValue]) -> list[AnyValue]:
    return [b.select(mask, x, y) for x, y in zip(new, old, strict=True)]
