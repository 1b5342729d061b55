"""Elementwise kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft import dtypes as dt
from weft.codegen.kernel import LANES, Kernel
from weft.codegen.scope import Accesses, Bases, KeptScope, Scope, State
from weft.config import config
from weft.lazy import lazy
from weft.llvm.builder import Builder, Value
from weft.passes.lower import Item
from weft.records import dataclass
from weft.targets.axes import BLOCK, cut, product
from weft.targets.cpu.forms.base import Form, grain_of, streams
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.cpu.stages import STRIP, Stages
from weft.targets.nest import Nest

if TYPE_CHECKING:
    from weft.targets.cpu.matmul import machine
else:
    machine = lazy("weft.targets.cpu.matmul.machine")

WIDE_COST = 16
"""Maps that cost more than this run on vectors of twice the length."""
LONG_COST = 150
"""But not those that cost more than this, for which LLVM would take tens of milliseconds longer."""
LINE = 64
"""Bytes of a line of the caches."""
ONCE_COST = 80
"""Beside so much work a mask costs nothing, and LLVM has half the code to work on."""


def lanes_of(kernel: Kernel, stream: bool = False, lines: bool = False) -> int:
    """The length of vectors: long chains of dependent instructions leave the units idle; twice the lanes give them a
    second chain to work on. Where a register has 16 bytes, there are four chains already, and registers are few. A
    `stream` of results is written past the caches in whole `lines` of them, because pieces of a line are slow; small
    elements may go so, too."""
    cost = kernel.cost()
    if cost > LONG_COST:
        return LANES
    wide = cost >= WIDE_COST and machine.machine(config.cpu).vector > 16
    lanes = 2 * LANES if wide else LANES
    if stream:
        lanes = max(lanes, *[LINE // store.access.dtype.size for store in kernel.stores])
    if lines and cost < WIDE_COST and all(access.inner in ("unit", "repeat") for access in kernel.accesses()):
        lanes = max(lanes, LINE // max(_sizes(kernel)))
    return lanes


def _sizes(kernel: Kernel) -> list[int]:
    """Bytes of all that a kernel holds in vectors."""
    dtypes = [access.dtype for access in kernel.accesses()] + [step.dtype for step in kernel.steps]
    return [4 if dtype in dt.HALVES and kernel.steps else dtype.size for dtype in dtypes]


def walk(
    b: Builder, start: Value, stop: Value, body: Callable[[Value, Value | None, State, int], State], lanes: int,
    kernel: Kernel,
) -> None:  # fmt: skip
    """`body(j, mask, state, lanes)` for whole vectors and a masked rest. Between long vectors and that come vectors of
    16, unless they are much code."""
    if lanes > LANES and kernel.cost() < WIDE_COST:
        whole = start + ((stop - start) & -lanes)
        with b.loop(start, whole, lanes) as loop:
            body(loop.index, None, (), lanes)
        start, lanes = whole, LANES

    def each(j: Value, mask: Value | None, state: State) -> State:
        return body(j, mask, state, lanes if mask is None else mask.lanes)

    vector_loop(b, start, stop, each, lanes=lanes, once=masks_all(kernel), rest=LANES)


def stages_of(kernel: Kernel) -> Stages | None:
    """How a kernel is cut into stages, if that pays. Registers of 16 bytes make four chains of each vector already."""
    stages = Stages(kernel)
    return stages if stages.pays and machine.machine(config.cpu).vector > 16 else None


def masks_all(kernel: Kernel) -> bool:
    """Whether whole vectors are masked too, so that there is only one loop."""
    return kernel.cost() >= ONCE_COST and all(access.dtype.size >= 4 for access in kernel.accesses())


def wastes(n: int, cost: int) -> bool:
    """Whether vectors that end with rows of n elements cost more than to lay out operands, so that they need not: a
    part of a vector costs as much as a whole one, and more where there are no registers for masks."""
    if machine.machine(config.cpu).vector < 64:
        return n % LANES != 0
    return cost >= WIDE_COST and 5 * n <= 4 * (n + -n % (2 * LANES))


@dataclass(frozen=True, slots=True)
class Map(Form):
    """Elementwise over all axes; the outer dimension is the outer axes, and, if `blocked`, blocks of a long inner one.
    `stream`: results are too large for the caches and are written past them."""

    title = "map"
    blocked: bool = False
    stream: bool = False

    @classmethod
    def schedule(cls, nest: Nest) -> Item:
        *outer, inner = nest.outer or [nest.single()]
        blocked, numbers = cut(inner.size, product(outer))
        kernel = cls.of(nest, outer, inner, blocked=blocked, stream=streams(nest, outer, inner))
        grain = grain_of(BLOCK if blocked else inner.size, nest.cost())
        scratch = stages.scratch if (stages := stages_of(kernel)) else 0
        return nest.item([kernel.launch(nest, outer, inner, {**numbers}, grain, scratch)], kernel.overwritten())

    def flags(self) -> list[str]:
        return [name for name in ("blocked", "stream") if getattr(self, name)]

    def sizes(self) -> list[str]:
        return ["width", "chunks"] if self.blocked else []

    def overwritten(self) -> range:
        return range(len(self.stores))

    def as_written(self) -> bool:
        return self.outer == 0 and self.in_whole_vectors()

    def emit(self, frame: Frame) -> None:
        b, accesses, stages = frame.b, Accesses(frame, self), stages_of(self)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, self.blocked)
            bases = accesses.bases(frame.indices(place))
            # LLVM does not know that no result lies on what is the same for a whole row: it would read it each time.
            row = Scope(accesses, bases, start, 1)
            same = [k for k, load in enumerate(self.loads) if load.source == "memory" and load.inner == "repeat"]
            given = {k: row.shared(k) for k in same}

            def body(j: Value, mask: Value | None, state: State, lanes: int) -> State:
                Scope(accesses, bases, j, lanes, mask, given).store_all(self.stream)
                return state

            if stages is None:
                walk(b, start, stop, body, lanes_of(self, self.stream, lines=True), self)
            else:
                with b.loop(start, stop, STRIP) as strip:
                    self._strip(frame, stages, accesses, bases, strip.index, frame.least(strip.index + STRIP, stop))

    def _pass(self, b: Builder, start: Value, stop: Value, body: Callable[[Value, Value | None, State], State]) -> None:
        vector_loop(b, start, stop, body, lanes=lanes_of(self), once=masks_all(self), rest=LANES)

    def _strip(self, frame: Frame, stages: Stages, accesses: Accesses, bases: Bases, start: Value, stop: Value) -> None:
        """A strip of elements, stage by stage."""
        b, homes, offset = frame.b, dict[int, Value](), 0
        for number in stages.kept:
            size = self.dtype(number).size
            homes[number] = b.gep(b.gep(frame.scratch, offset), start * -size)
            offset += STRIP * size

        def made(stage: int, j: Value, mask: Value | None) -> None:
            kept = {v: home for v, home in homes.items() if stages.known[v] < stage}
            scope = KeptScope(accesses, bases, j, lanes_of(self) if mask is None else mask.lanes, mask, kept=kept)
            for v in stages.kept:
                if stages.known[v] == stage:
                    b.store(scope.spread(scope.stored(v)), b.gep(homes[v], j * self.dtype(v).size), mask)
            if stage == stages.count - 1:
                scope.store_all(self.stream)

        for stage in range(stages.count):

            def body(j: Value, mask: Value | None, state: State, stage: int = stage) -> State:
                made(stage, j, mask)
                return state

            self._pass(b, start, stop, body)
