"""Rows of a few elements, sixteen at a time: lanes go across rows, where the row kernel would leave most of them idle.

A kernel of this form passes over the elements of its rows like a row kernel (`cpu.Phases`), but each vector holds one
element of each of 16 neighbouring rows, so what is a scalar of a row there is a vector here. The order of reductions is
the specified one: rows have at most 16 elements, each is a partial result of its own, and the tree over these leaves
out those that do not exist. That is exact where merging an identity changes nothing (`cpu.is_neutral`).
"""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.codegen.builder import PTR, AnyValue, Builder, Value
from weft.codegen.kernel import LANES, Kernel
from weft.codegen.scope import Frame, Scope, stored_dtype
from weft.targets.cpu.kernels import (
    Phases,
    Slots,
    State,
    operand_dtype,
    per_reduction,
    start_of,
    state_dtypes,
    used_by_full,
    vector_loop,
)

LONGEST = LANES
"""The most elements of a row: one for each partial result."""


def emit_kernel(kernel: Kernel, name: str) -> str:
    """LLVM IR of `void name(ptr args, i64 begin, i64 end, ptr scratch)`."""
    params = [("args", PTR), ("begin", dt.int64), ("end", dt.int64), ("scratch", PTR)]
    b = Builder(name, params, lanes=LANES)
    _emit(Frame(b, kernel))
    b.ret()
    return b.module()


def scratch(kernel: Kernel) -> int:
    """Bytes of per-thread memory: partial results, and the values that are kept for later passes."""
    kept = [kernel.steps[v - len(kernel.loads)].dtype for v in Phases(kernel).kept]
    return sum(LONGEST * LANES * d.size for d in (*state_dtypes(kernel), *kept))


def _emit(frame: Frame) -> None:
    b = frame.b
    n, width, chunks = frame["n"], frame["width"], frame["chunks"]
    group = _Group(frame)
    with b.loop(frame.begin, frame.end, 1) as units:
        place = b.op(f"sdiv i64 {units.index.text}, {chunks.text}", dt.int64, 1)
        start = (units.index - place * chunks) * width
        stop = b.choose(start + width < n, start + width, n)
        bases = frame.bases(frame.indices(place))

        def body(j: Value, mask: Value | None, state: State) -> State:
            group.emit(bases, j, mask)
            return state

        vector_loop(b, start, stop, body)


class _Group:
    """Writes the passes over 16 rows."""

    def __init__(self, frame: Frame) -> None:
        self.frame, self.b, self.kernel = frame, frame.b, frame.kernel
        self.phases = Phases(frame.kernel)
        self.homes: dict[int, int] = {}
        at = sum(LONGEST * LANES * d.size for d in state_dtypes(frame.kernel))
        for number in self.phases.kept:
            self.homes[number] = at
            at += LONGEST * LANES * self._dtype(number).size

    def _dtype(self, number: int) -> dt.Dtype:
        return self.kernel.steps[number - len(self.kernel.loads)].dtype

    def home(self, number: int, row: Value) -> Value:
        """Where a kept value of element `row` of the 16 rows lies."""
        size = self._dtype(number).size
        return self.b.gep(self.b.gep(self.frame.scratch, self.homes[number]), row * (LANES * size))

    def emit(self, bases: dict[int, Value], j: Value, mask: Value | None) -> None:
        kernel, phases = self.kernel, self.phases
        loads = len(kernel.loads)
        scalars = Scope(self.frame, bases, j, LANES, mask, {})
        for phase in range(phases.count):
            given: dict[int, AnyValue] = {}
            for number in range(loads + len(kernel.steps)):
                if not phases.is_full(number) and phases.known[number] <= phase and used_by_full(kernel, number):
                    given[number] = scalars.shared(number)
            self._pass(phase, bases, j, mask, given, scalars)
        for k, store in enumerate(kernel.stores, loads):
            if store.access.level == "reduced":
                scalars.store(k, store.access, scalars.stored(store.value))

    def _pass(
        self, phase: int, bases: dict[int, Value], j: Value, mask: Value | None, given: dict[int, AnyValue],
        scalars: Scope,
    ) -> None:  # fmt: skip
        """One pass over the elements: what it reduces ends up among the scalars of the rows."""
        b, kernel, phases, rows = self.b, self.kernel, self.phases, self.frame["rows"]
        loads = len(kernel.loads)
        reductions, stores = phases.reductions(phase), phases.stores(phase)
        slots = Slots(self.frame, [d for n in reductions for d in self._state_of(n)])
        with b.loop(0, rows, 1) as row:
            at = self.frame.moved(bases, "r", row.index)
            scope = _ElementScope(self.frame, at, j, LANES, mask, given, group=self, phase=phase, row=row.index)
            for v in phases.kept:
                if phases.known[v] == phase:
                    b.store(scope.stored(v), self.home(v, row.index))
            for i in stores:
                scope.store(loads + i, kernel.stores[i].access, scope.stored(kernel.stores[i].value))
            state: list[AnyValue] = []
            for number, part in per_reduction(kernel, reductions, start_of(b, kernel, reductions)):
                step = kernel.steps[number - loads]
                x = scope.spread(scope.value(step.operands[0]))
                state.extend(step.op.step(b, part, x, b.splat(row.index)))
            slots.write(row.index, tuple(state))
        if not reductions:
            return
        for number, part in per_reduction(kernel, reductions, slots.merged(kernel, reductions, rows)):
            step = kernel.steps[number - loads]
            scalars.values[number] = step.op.finish(b, part, operand_dtype(kernel, step))

    def _state_of(self, number: int) -> tuple[dt.Dtype, ...]:
        step = self.kernel.steps[number - len(self.kernel.loads)]
        found: tuple[dt.Dtype, ...] = step.op.state_dtypes(operand_dtype(self.kernel, step))
        return found


class _ElementScope(Scope):
    """A scope at one element of the rows: kept values of earlier passes are read back, not computed again."""

    def __init__(self, *args: Any, group: _Group, phase: int, row: Value) -> None:
        super().__init__(*args)
        self.group, self.phase, self.row = group, phase, row

    def value(self, number: int) -> AnyValue:
        self._recall(number)
        return super().value(number)

    def stored(self, number: int) -> AnyValue:
        self._recall(number)
        return super().stored(number)

    def _recall(self, number: int) -> None:
        phases = self.group.phases
        if number in self.values or number in self.moved or number not in phases.kept:
            return
        if phases.known[number] < self.phase:
            self.give(number, self.b.load(self.group.home(number, self.row), stored_dtype(self.dtype(number))))
