"""Whole loops as one kernel, if their steps are elementwise: carries stay in registers, and nothing is interpreted
between two steps."""

from __future__ import annotations

from dataclasses import replace

from weft import dtypes as dt
from weft.codegen.builder import AnyValue, Value
from weft.codegen.kernel import LANES, Kernel, Recurrence
from weft.codegen.launch import Done, Launch, Pointer, Steps
from weft.codegen.scope import Frame, Scope
from weft.passes.lower import Item, Lowerer, nbytes_of, to_int
from weft.passes.lower_loops import LoopLowering
from weft.primitives.base import Parameter
from weft.targets.cpu.kernels import FORMS, WIDE_COST, State, flatten, unflatten
from weft.targets.cpu.schedule import Axis, GroupLowering, Operand, grain_of, kernel_source, product, same_walk


def emit_steps(frame: Frame) -> None:
    """The outer dimension is the outer axes and pieces of the inner one, a vector each (`Recurrence`)."""
    b, kernel = frame.b, frame.kernel
    loop = kernel.recurrence
    assert loop is not None
    steps = _least(frame, frame["most"], _count(frame, loop))
    left = steps - frame["done"]
    here = _least(frame, left, frame["share"])
    with b.loop(frame.begin, frame.end, 1) as units:
        chunks = frame["chunks"]
        place = b.op(f"sdiv i64 {units.index.text}, {chunks.text}", dt.int64, 1) if kernel.outer else b.i64(0)
        chunk = units.index - place * chunks if kernel.outer else units.index
        start = chunk * frame["width"]
        bases = frame.bases(frame.indices(place))
        mask = None
        if loop.lanes > 1:
            mask = b.iota(dt.int64, loop.lanes) < b.splat(frame["n"] - start, loop.lanes)
        made, again = _all_steps(frame, loop, bases, start, mask, steps, here)
        with b.when(units.index.eq(0)):
            more = made + frame["done"] < steps
            b.store(more if again is None else more & again, frame["qflag"])
            if loop.reports:
                b.store(made + frame["done"], frame["qmade"])


def _count(frame: Frame, loop: Recurrence) -> Value | None:
    """The number of steps that is asked for, not negative."""
    b = frame.b
    if not loop.counted:
        return None
    asked = b.load(frame["qcount"], dt.int64, 1)
    assert isinstance(asked, Value)
    return b.choose(asked < 0, 0, asked)


def _least(frame: Frame, x: Value, y: Value | None) -> Value:
    return x if y is None else frame.b.choose(x < y, x, y)


def _all_steps(
    frame: Frame, loop: Recurrence, bases: dict[int, Value], j: Value, mask: Value | None, steps: Value, here: Value
) -> tuple[Value, Value | None]:
    """The steps of one vector; how many were made, and whether it wants more (None: always)."""
    b, kernel = frame.b, frame.kernel
    loads = len(kernel.loads)
    first: list[AnyValue] = []
    for _, store in loop.carries:
        first.append(Scope(frame, bases, j, loop.lanes, mask, {}).load(store, kernel.stores[store - loads].access))
    state: State = tuple(first)
    stops = loop.stop is not None
    with b.loop(0, here, 1, *flatten(state), may_stop=stops) as step:
        carried = unflatten(state, step.carried)
        at = frame["done"] + step.index
        if loop.reverse:
            at = steps - 1 - at
        moved = dict(bases)
        for k in loop.rows:
            by = at * frame[f"w{k}"]
            moved[k] = b.gep(bases[k], by)
        given = {load: x for (load, _), x in zip(loop.carries, carried, strict=True) if load >= 0}
        scope = Scope(frame, moved, j, loop.lanes, mask, given)
        values = [scope.spread(scope.stored(store.value)) for store in kernel.stores]
        if loop.stop is not None:
            again = scope.value(loop.stop)
            assert isinstance(again, Value)
            step.again = again
        ends = {store for _, store in loop.carries}
        for k, (row, x) in enumerate(zip(kernel.stores, values, strict=True), loads):
            if k not in ends:
                scope.store(k, row.access, x)
        step.carry(*flatten([values[store - loads] for _, store in loop.carries]))
    last = unflatten(state, step.carried)
    scope = Scope(frame, bases, j, loop.lanes, mask, {})
    for (_, store), x in zip(loop.carries, last, strict=True):
        scope.store(store, kernel.stores[store - loads].access, x)
    return step.index, step.going


FORMS["steps"] = emit_steps


def lower_loop(loop: LoopLowering) -> Item | None:
    """A loop as one kernel, if its body is one whose elements do not see each other's carries."""
    body = loop.elementwise_body()
    return None if body is None else _StepsLowering(loop, body).item()


class _StepsLowering:
    """A loop that is one kernel."""

    def __init__(self, loop: LoopLowering, lowerer: Lowerer) -> None:
        self.loop, self.op, self.plan = loop, loop.op, loop.plan
        self.reads = list(loop.reads)
        self.group = GroupLowering(lowerer, loop.plan.items[0].group)
        outputs = list(loop.plan.graph.outputs)
        self.go_on = outputs.pop() if self.op.stops else None
        self.group.stores = [s for s in self.group.stores if s.node is not self.go_on]
        self.outputs = outputs

    def item(self) -> Item | None:
        op, group = self.op, self.group
        carries = self._carries()
        outer, _ = group.merged()
        inner = outer.pop() if outer else Axis(1, [1] * (len(group.loads) + len(group.stores)))
        n, places = to_int(inner.size), product(outer)
        if carries is None or group.tile_axis(outer, inner) is not None or n * places == 0:
            return None
        if op.stops and n * places != 1:
            return None
        # Elements of a recurrence wait for their own last step: several vectors side by side keep the units busy.
        lanes = 1 if n * places == 1 else 4 * LANES if n >= 4 * LANES and group.cost() < WIDE_COST else LANES
        rows = self._rows()
        stop = None if self.go_on is None else group.numbers[self.go_on]
        recurrence = Recurrence(carries, tuple(rows), op.reverse, op.counted, op.reports, stop, lanes)
        kernel = replace(group.kernel("map", outer, inner), form="steps", recurrence=recurrence)
        most = self.loop.most()
        share = max(64, min(1 << 20, (1 << 24) // (n * places * (4 + group.cost()))))
        chunks = -(-n // lanes)
        numbers = {"n": n, "width": lanes, "chunks": chunks, "units": places * chunks, "share": share}
        numbers["most"] = (1 << 62) if most is None else most
        numbers |= {f"w{k}": stride for k, stride in rows.items()}
        words = group.fill(numbers, outer, inner)
        grain = grain_of(lanes * min(share, numbers["most"]), group.cost())
        return self._item(kernel, words, share, grain)

    def _role(self, operand: Operand) -> int | None:
        """The number of the body's input that a load reads."""
        return operand.node.op.index if isinstance(operand.node.op, Parameter) else None

    def _carries(self) -> tuple[tuple[int, int], ...] | None:
        """(load, store) of each carry; None if some carry is read in another order than it is written in."""
        op, group = self.op, self.group
        pairs = []
        nodes = [store.node for store in group.stores]
        for k in range(op.carries):
            store = nodes.index(self.outputs[k])
            loads = [i for i, load in enumerate(group.loads) if self._role(load) == op.invariants + k]
            if len(loads) > 1 or not all(same_walk(group.loads[i], group.stores[store]) for i in loads):
                return None
            pairs.append((loads[0] if loads else -1, len(group.loads) + store))
        return tuple(pairs)

    def _rows(self) -> dict[int, int]:
        """The accesses that move with the steps, and the bytes that they move by."""
        op, group = self.op, self.group
        first = op.invariants + op.carries
        found = {}
        for k, load in enumerate(group.loads):
            role = self._role(load)
            if role is not None and role >= first:
                found[k] = self.loop.row_strides[role - first]
        for k, store in enumerate(group.stores, len(group.loads)):
            if self.outputs.index(store.node) >= op.carries:
                found[k] = nbytes_of(store.node)
        return found

    def _pointer(self, operand: Operand) -> int | Pointer:
        """Where a load begins."""
        if operand.source == "iota":
            return to_int(operand.offset)
        role, offset = self._role(operand), to_int(operand.offset) * operand.dtype.size
        if role is None:  # a constant of the body
            if operand.node not in self.reads:
                self.reads.append(operand.node)
            return Pointer(self.reads.index(operand.node), offset)
        place = self.loop.places[self.op.counted + role]
        return Pointer(place.value, place.offset + offset)

    def _item(self, kernel: Kernel, numbers: dict[str, int], share: int, grain: int) -> Item:
        op, group, loop = self.op, self.group, self.loop
        loads = [self._pointer(load) for load in group.loads]
        first = len(self.reads)
        flag = Pointer(first + len(loop.writes))
        stores = [Pointer(first + self.outputs.index(store.node)) for store in group.stores]
        words: list[int | Pointer | Done] = []
        for name in kernel.fields():
            if name == "qflag":
                words.append(flag)
            elif name == "qcount":
                words.append(loop.places[0])
            elif name == "qmade":
                words.append(Pointer(first + len(loop.writes) - 1))
            elif name == "done":
                words.append(Done(share))
            elif name[0] == "p":
                words.append([*loads, *stores][int(name[1:])])
            else:
                words.append(numbers[name])
        firsts = op.split(loop.places)[2]
        before = [(Pointer(first + k), place, nbytes_of(loop.writes[k])) for k, place in enumerate(firsts)]
        clears = []
        if op.reports:
            clears = [(Pointer(first + k), nbytes_of(loop.writes[k])) for k in range(op.carries, len(loop.writes) - 1)]
        code = Steps(
            Launch(kernel_source(kernel), tuple(words), grain),
            flag,
            tuple(before),
            tuple(clears),
            share,
            self.loop.most(),
            op.progress,
        )
        return Item(
            loop.group, (), tuple(self.reads), tuple(loop.writes), (8,), loop.overwritable(), code
        )  # fmt: skip
