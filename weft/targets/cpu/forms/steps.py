"""Whole loops as one kernel, if their steps are elementwise: carries stay in registers, and nothing is interpreted
between two steps."""

from __future__ import annotations

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.launch import Done, Launch, Pointer, Steps
from weft.codegen.scope import Accesses, Bases, Scope, State, flatten, unflatten
from weft.config import config
from weft.graph.dims import is_exactly
from weft.llvm.builder import Value
from weft.passes.lower import Item, Lowerer, nbytes_of
from weft.passes.lower_loops import LoopLowering
from weft.primitives.base import Parameter
from weft.records import dataclass, replace
from weft.runtime.threads import get_threads
from weft.targets.axes import Word, product, words_of
from weft.targets.cpu.forms.base import Form, grain_of
from weft.targets.cpu.forms.map import LONG_COST, WIDE_COST
from weft.targets.cpu.forms.tile import position_of
from weft.targets.cpu.kernel import Frame
from weft.targets.cpu.matmul.machine import machine
from weft.targets.nest import Nest, Operand

FOURFOLD_COST = 64
"""Steps that cost more than this have two registers of elements side by side, not four."""


AHEAD, LINE = 8, 64
"""Steps whose rows are asked for before they are needed, and bytes of a cache line."""
FEWEST = 4
"""Lanes for few elements: shorter vectors are no faster."""


@dataclass(frozen=True, slots=True)
class LoopSteps(Form):
    """A loop inside a kernel: each vector of elements goes through all steps before the next one does. The outer
    dimension is the outer axes and pieces of the inner one, a vector each.

    A call makes `share` steps at most, from step `done` on, so that long loops can be interrupted; it leaves at `qflag`
    whether there are more. At most `most` steps are made in all, and no more than the number at `qcount` if `counted`;
    how many they were is left at `qmade` if that is asked for. `stop` is the number of the value that says whether to
    go on: then there is only one element.
    """

    title = "steps"

    carries: tuple[tuple[int, int], ...]
    """(load, store) of each carry: the store's place is where it begins and ends."""
    rows: tuple[int, ...]
    """The accesses that move on with the steps."""
    reverse: bool
    counted: bool
    reports: bool
    stop: int | None
    lanes: int

    def notes(self) -> list[str]:
        carries = " ".join(f"{load}:{store}" for load, store in self.carries)
        flags = " ".join([name for name in ("reverse", "counted", "reports") if getattr(self, name)])
        return [f"  steps of {self.lanes} lanes, carries {carries}, rows {self.rows}, stop {self.stop} {flags}"]

    def sizes(self) -> list[str]:
        names = ["width", "chunks", "most", "done", "share", "*qflag"]
        names += ["*qcount"] if self.counted else []
        names += ["*qmade"] if self.reports else []
        return [*names, *(f"w{k}" for k in self.rows)]

    def emit(self, frame: Frame) -> None:
        b, accesses = frame.b, Accesses(frame, self)
        steps = frame["most"] if not self.counted else frame.least(frame["most"], self._count(frame))
        here = frame.least(steps - frame["done"], frame["share"])
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, _ = frame.part(units.index, True)
            bases = accesses.bases(frame.indices(place))
            mask = None
            if self.lanes > 1:
                mask = b.iota(dt.int64, self.lanes) < b.splat(frame["n"] - start, self.lanes)
            made, again = self._all_steps(accesses, bases, start, mask, steps, here)
            with b.when(units.index.eq(0)):
                more = made + frame["done"] < steps
                b.store(more if again is None else more & again, frame["qflag"])
                if self.reports:
                    b.store(made + frame["done"], frame["qmade"])

    def _count(self, frame: Frame) -> Value:
        """The number of steps that is asked for, not negative."""
        b = frame.b
        asked = b.load(frame["qcount"], dt.int64, 1)
        assert isinstance(asked, Value)
        return b.choose(asked < 0, 0, asked)

    def _all_steps(
        self, accesses: Accesses, bases: Bases, j: Value, mask: Value | None, steps: Value, here: Value
    ) -> tuple[Value, Value | None]:
        """The steps of one vector; how many were made, and whether it wants more (None: always)."""
        b, words, first = accesses.b, accesses.words, self.first
        outside = Scope(accesses, bases, j, self.lanes, mask)
        state: State = tuple([outside.load(store, self.stores[store - first].access) for _, store in self.carries])
        with b.loop(0, here, 1, *flatten(state), may_stop=self.stop is not None) as step:
            at = words["done"] + step.index
            if self.reverse:
                at = steps - 1 - at
            moved = {**bases, **{k: b.gep(bases[k], at * words[f"w{k}"]) for k in self.rows}}
            self._ask_ahead(accesses, moved, j)
            carried = zip(self.carries, unflatten(state, step.carried), strict=True)
            scope = Scope(accesses, moved, j, self.lanes, mask, {load: x for (load, _), x in carried if load >= 0})
            values = [scope.spread(scope.stored(store.value)) for store in self.stores]
            if self.stop is not None:
                again = scope.value(self.stop)
                assert isinstance(again, Value)
                step.again = again
            ends = {store for _, store in self.carries}
            for k, (row, x) in enumerate(zip(self.stores, values, strict=True), first):
                if k not in ends:
                    scope.store(k, row.access, x)
            step.carry(*flatten([values[store - first] for _, store in self.carries]))
        for (_, store), x in zip(self.carries, unflatten(state, step.carried), strict=True):
            outside.store(store, self.stores[store - first].access, x)
        return step.index, step.going

    def _ask_ahead(self, accesses: Accesses, moved: Bases, j: Value) -> None:
        """Ask for what later steps read and write: rows are far apart, so the processor does not guess them."""
        b, words = accesses.b, accesses.words
        for k in self.rows:
            access = self.accesses()[k]
            if access.source != "memory" or access.inner != "unit":
                continue
            step = words[f"w{k}"] * (-AHEAD if self.reverse else AHEAD)
            place = b.gep(b.gep(moved[k], step), j * access.dtype.size)
            for line in range(0, self.lanes * access.dtype.size, LINE):
                b.prefetch(b.gep(place, line))


def lower_loop(loop: LoopLowering) -> Item | None:
    """A loop as one kernel, if its body is one whose elements do not see each other's carries."""
    body = loop.elementwise_body()
    return None if body is None else _StepsLowering(loop, body).item()


class _StepsLowering:
    """A loop that is one kernel."""

    def __init__(self, loop: LoopLowering, lowerer: Lowerer) -> None:
        self.loop, self.op, self.plan = loop, loop.op, loop.plan
        self.reads = list(loop.reads)
        outputs = list(loop.plan.graph.outputs)
        self.go_on = outputs.pop() if self.op.stops else None
        self.nest = Nest(lowerer, loop.plan.items[0].group, () if self.go_on is None else (self.go_on,))
        self.outputs = outputs

    def item(self) -> Item | None:
        op, nest = self.op, self.nest
        carries = self._carries()
        *outer, inner = nest.outer or [nest.single()]
        n, places = inner.size, product(outer)
        if carries is None or position_of(nest, outer, inner) is not None or n * places == 0:
            return None
        if op.stops and n * places != 1:
            return None
        lanes = self._lanes(n, places)
        rows = self._rows()
        stop = None if self.go_on is None else nest.numbers[self.go_on]
        kernel = LoopSteps(
            len(outer), *nest.body(inner), carries, tuple(rows), op.reverse, op.counted, op.reports, stop, lanes
        )
        most = self.loop.most()
        limit = (1 << 62) if most is None else most
        share = max(64, min(1 << 20, (1 << 24) // (n * places * (4 + nest.cost()))))
        chunks = -(-n // lanes)
        numbers: dict[str, Word] = {"units": places * chunks, "width": lanes, "chunks": chunks}
        numbers |= {"most": limit, "done": Done(share), "share": share}
        numbers |= {f"w{k}": stride for k, stride in rows.items()}
        loads = [self._pointer(load) for load in nest.loads]  # before `_places`: it may add to what is read
        pointers = [*loads, *(self._result(self.outputs.index(store.node)) for store in nest.stores)]
        words = words_of(kernel.fields(), pointers, outer, inner, {**numbers, **self._places()})
        return self._item(Launch(kernel.source(), words, grain_of(lanes * min(share, limit), nest.cost())), share)

    def _lanes(self, n: int, places: int) -> int:
        """Elements that go through the steps side by side. Each waits for its own last step, so four registers or more
        of them keep the arithmetic units busy; where steps cost much, fewer do, and more take LLVM long."""
        cost = self.nest.cost()
        if n * places == 1 and (self.op.stops or cost < WIDE_COST):
            return 1
        if cost < WIDE_COST:
            lanes = (4 if machine(config.cpu).vector > 16 else 2) * LANES
            return lanes if n >= lanes else LANES
        registers = 4 if cost <= FOURFOLD_COST else 2 if cost <= LONG_COST else 1
        size = max(operand.dtype.size for operand in self.nest.operands)
        lanes = max(LANES, registers * machine(config.cpu).vector // max(4, size))
        while (lanes > LANES and places * -(-n // lanes) < get_threads()) or (lanes > FEWEST and 2 * n <= lanes):
            lanes //= 2
        return lanes

    def _role(self, operand: Operand) -> int | None:
        """The number of the body's input that a load reads."""
        return operand.node.op.index if isinstance(operand.node.op, Parameter) else None

    def _carries(self) -> tuple[tuple[int, int], ...] | None:
        """(load, store) of each carry; None if some carry is read in another order than it is written in."""
        op, nest = self.op, self.nest
        pairs = []
        nodes = [store.node for store in nest.stores]
        for k in range(op.carries):
            store = nodes.index(self.outputs[k])
            loads = [i for i, load in enumerate(nest.loads) if self._role(load) == op.invariants + k]
            if len(loads) > 1 or not all(self._walks_like(nest.loads[i], nest.stores[store]) for i in loads):
                return None
            pairs.append((loads[0] if loads else -1, len(nest.loads) + store))
        return tuple(pairs)

    def _walks_like(self, load: Operand, store: Operand) -> bool:
        """Whether a carry is read in the order in which it is written; there is none along an axis of one element."""
        walked = zip(self.nest.group.domain, load.strides, store.strides, strict=True)
        return replace(load, strides=tuple([t if is_exactly(n, 1) else s for n, s, t in walked])).walks_like(store)

    def _rows(self) -> dict[int, int]:
        """The accesses that move with the steps, and the bytes that they move by."""
        op, nest = self.op, self.nest
        first = op.invariants + op.carries
        found = {}
        for k, load in enumerate(nest.loads):
            role = self._role(load)
            if role is not None and role >= first:
                found[k] = self.loop.row_strides[role - first]
        for k, store in enumerate(nest.stores, len(nest.loads)):
            if self.outputs.index(store.node) >= op.carries:
                found[k] = nbytes_of(store.node)
        return found

    def _pointer(self, operand: Operand) -> Word:
        """Where a load begins."""
        if operand.source == "iota":
            return operand.offset
        role = self._role(operand)
        if role is None:  # a constant of the body
            if operand.node not in self.reads:
                self.reads.append(operand.node)
            return Pointer(self.reads.index(operand.node), operand.offset)
        place = self.loop.places[self.op.counted + role]
        return Pointer(place.value, place.offset + operand.offset)

    def _result(self, number: int) -> Pointer:
        return Pointer(len(self.reads) + number)

    def _places(self) -> dict[str, Word]:
        """Where the loop's flag and numbers of steps lie."""
        last = len(self.loop.writes)
        found: dict[str, Word] = {"qflag": self._result(last)}
        if self.op.counted:
            found["qcount"] = self.loop.places[0]
        if self.op.reports:
            found["qmade"] = self._result(last - 1)
        return found

    def _item(self, launch: Launch, share: int) -> Item:
        op, loop = self.op, self.loop
        firsts = op.split(loop.places)[2]
        before = [(self._result(k), place, nbytes_of(loop.writes[k])) for k, place in enumerate(firsts)]
        clears = []
        if op.reports:
            clears = [(self._result(k), nbytes_of(loop.writes[k])) for k in range(op.carries, len(loop.writes) - 1)]
        flag = self._result(len(loop.writes))
        code = Steps(launch, flag, tuple(before), tuple(clears), share, loop.most(), op.progress)
        return Item(loop.group, (), tuple(self.reads), tuple(loop.writes), (8,), loop.overwritable(), code)
