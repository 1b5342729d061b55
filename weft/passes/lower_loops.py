"""Lowering of loops and branches: their bodies are planned for operands as they lie here, and become commands,
unless the target has one kernel for a whole loop.

A carry is updated in place if the body's plan proves that it may be; else it lives in two places in turn. Rows are read
and written where they lie in their operands and results. Nothing is allocated and nothing copied from step to step.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.codegen.launch import Choose, Layout, Pointer, Repeat, Row, Slot
from weft.graph.body import Body, body_of
from weft.graph.dims import dim_max
from weft.graph.node import Node
from weft.passes.fuse import Group
from weft.passes.lower import TAPE_ROWS, Item, Lowerer, nbytes_of, results_of, to_int
from weft.passes.views import Strides, is_contiguous
from weft.primitives.base import GetResult, KernelOperation, Parameter
from weft.primitives.control import Loop, Switch

PlanBody = Callable[[Body, Mapping[Node, Strides | None], Mapping[int, int]], Any]
"""Plans the body of a loop or branch: `(body, layouts of its inputs, {number of a carry among them: its result})`."""

ALIGNMENT = 64


def lower_bodies(lowerer: Lowerer, group: Group, plan_body: PlanBody) -> Item:
    """A loop or a branch: its bodies are planned for operands as they lie here."""
    node = group.nodes[0]
    writes = results_of(group)
    if isinstance(node.op, Switch):
        return _lower_switch(lowerer, group, node, writes, plan_body)
    assert isinstance(node.op, Loop)
    return LoopLowering(lowerer, group, node.op, writes, plan_body).item()


def _lower_switch(lowerer: Lowerer, group: Group, node: Node, writes: Sequence[Node], plan_body: PlanBody) -> Item:
    assert isinstance(node.op, Switch)
    reads, places, layouts = lowerer.operands(node)
    results = [Pointer(len(reads) + i) for i in range(len(writes))]
    bodies = [(branch, _body_layouts(branch.inputs, layouts[1:])) for branch in node.op.branches]
    pairs = _updated(node.op, layouts[1:])
    branches = [_Branch(body, inputs, pairs, plan_body) for body, inputs in bodies]
    if not all(branch.in_place for branch in branches):
        pairs = {}
        branches = [_Branch(body, inputs, pairs, plan_body) for body, inputs in bodies]
    inputs = [results[pairs[j]] if j in pairs else place for j, place in enumerate(places[1:])]
    outputs = tuple(tuple(results[i] for i in branch.outputs) for branch in branches)
    before = tuple((results[i], places[1 + j], nbytes_of(writes[i])) for j, i in pairs.items())
    arena = Pointer(len(reads) + len(writes))
    code = Choose(tuple(branch.plan for branch in branches), places[0], tuple(inputs), outputs, arena, before)
    room = functools.reduce(dim_max, [branch.plan.arena for branch in branches])
    over = lowerer.lying_alike(node, {1 + j: (i, writes[i].kind) for j, i in pairs.items()}, places)
    return Item(group, (), tuple(reads), tuple(writes), (room,), over, code)


class _Branch:
    """The plan of one of several bodies, some of whose operands are updated in place: `{operand: result}`. A branch
    that only hands one on has nothing to do for it."""

    def __init__(
        self, body: Body, layouts: Mapping[Node, Strides | None], pairs: Mapping[int, int], plan_body: PlanBody
    ) -> None:
        handed_on = {i for j, i in pairs.items() if body.outputs[i] is body.inputs[j]}
        computed = [i for i in range(len(body.outputs)) if i not in handed_on]
        if handed_on:
            whole, key = body, ("computed", tuple(computed))
            body = whole.once(key, lambda: body_of(whole.inputs, [whole.outputs[i] for i in computed]))
            layouts = dict(zip(body.inputs, (layouts[x] for x in whole.inputs), strict=True))
        number = {i: at for at, i in enumerate(computed)}
        carried = {j: number[i] for j, i in pairs.items() if i not in handed_on}
        self.plan = plan = plan_body(body, layouts, carried)
        self.in_place = all(plan.places[plan.graph.inputs[j]].where == "output" for j in carried)
        self.outputs = [computed[i] for i in _numbers_of_outputs(plan)]


def _updated(op: Switch, layouts: Sequence[Layout]) -> dict[int, int]:
    """Operands of which every branch makes a result by writing into it, or hands it on: to compute that result is to
    copy the operand first, unless it may be overwritten."""
    found: dict[int, int] = {}
    for i in range(len(op.branches[0].outputs)):
        bases = {_written_to(branch.outputs[i]) for branch in op.branches}
        base = bases.pop()
        if bases or base is None or base in found or not is_contiguous(layouts[base].shape, layouts[base].strides):
            continue
        if all(branch.outputs[i].kind is branch.inputs[base].kind for branch in op.branches):
            found[base] = i
    return found


def _written_to(node: Node) -> int | None:
    """The parameter that a value consists of, but for what was written over; None if it is something new."""
    while True:
        op = node.op
        if isinstance(op, Parameter):
            return op.index
        if isinstance(op, GetResult):
            whole = node.inputs[0]
            if isinstance(whole.op, Loop) and op.index < whole.op.carries:
                node = whole.inputs[whole.op.counted + whole.op.invariants + op.index]
                continue
            if isinstance(whole.op, Switch):
                bases = {_written_to(branch.outputs[op.index]) for branch in whole.op.branches}
                base = bases.pop()
                if bases or base is None:
                    return None
                node = whole.inputs[1 + base]
                continue
            return None
        if not isinstance(op, KernelOperation) or not op.overwrites:
            return None
        node = node.inputs[op.overwrites[0]]


def _numbers_of_outputs(plan: Any) -> list[int]:
    """Which result of a body each output of its plan is; they are stored apart."""
    number = {node: i for i, node in enumerate(plan.graph.outputs)}
    return [number[node] for node in plan.outputs]


def _row_stride(rows: Layout, op: Loop) -> int:
    """Bytes from one row to the next; those of a tape lie one behind the other."""
    return (math.prod(rows.shape[1:]) if op.length is None else rows.strides[0]) * rows.dtype.size


def _body_layouts(inputs: Sequence[Node], layouts: Sequence[Layout]) -> dict[Node, Strides | None]:
    return {
        node: None if is_contiguous(layout.shape, layout.strides) else layout.strides
        for node, layout in zip(inputs, layouts, strict=True)
    }


class LoopLowering:
    """A loop on its way to commands."""

    def __init__(self, lowerer: Lowerer, group: Group, op: Loop, writes: Sequence[Node], plan_body: PlanBody) -> None:
        self.lowerer, self.group, self.op, self.writes = lowerer, group, op, writes
        self.node = group.nodes[0]
        self.reads, self.places, layouts = lowerer.operands(self.node)
        _, invariants, carries, rows = op.split(layouts)
        self.row_strides = [_row_stride(layout, op) for layout in rows]
        inner = [Layout(layout.shape[1:], layout.strides[1:], layout.dtype) for layout in rows]
        given = _body_layouts(op.body.inputs, [*invariants, *carries, *inner])
        first = op.invariants
        self.layouts, self.plan_body = given, plan_body
        self.plan = plan_body(op.body, given, {first + k: k for k in range(op.carries)})
        self.temporaries: list[int] = []

    def _temporary(self, nbytes: int) -> Pointer:
        self.temporaries.append(nbytes)
        return Pointer(len(self.reads) + len(self.writes) + len(self.temporaries) - 1)

    def _result(self, number: int) -> Pointer:
        return Pointer(len(self.reads) + number)

    def item(self) -> Item:
        return self.lowerer.target.lower_loop(self) or self._as_commands()

    def _as_commands(self) -> Item:
        """The body's commands, step after step."""
        op = self.op
        delays = _Delays(op)
        plan = self.plan if not delays.next_of else self._without(delays)
        arena = self._temporary(plan.arena)
        count, invariants, firsts, rows = op.split(self.places)
        inputs: list[Pointer | Row | Slot] = list(invariants)
        outputs: list[Pointer | Row | Slot] = []
        before: list[tuple[Pointer, Pointer, int]] = []
        after: list[tuple[Pointer, Slot, int]] = []
        rings: dict[int, Pointer] = {}
        for k, first in enumerate(firsts):
            nbytes, home = nbytes_of(self.writes[k]), self._result(k)
            if plan.places[plan.graph.inputs[op.invariants + k]].where == "output":  # updated in place
                inputs.append(home)
                outputs.append(home)
                before.append((home, first, nbytes))
                continue
            ring, slot, slots = delays.places.get(k, (k, 0, 2))
            stride = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
            if ring not in rings:
                rings[ring] = self._temporary(slots * stride)
            now = Slot(rings[ring], slot, slots, stride)
            inputs.append(now)
            if k not in delays.next_of:
                outputs.append(Slot(rings[ring], slots - 1, slots, stride))
            before.append((Pointer(rings[ring].value, slot * stride), first, nbytes))
            after.append((home, now, nbytes))
        inputs += [Row(place, stride) for place, stride in zip(rows, self.row_strides, strict=True)]
        made_rows, go_on = op.split_body()[1:]
        clears = []
        for number, row in enumerate(made_rows, op.carries):
            outputs.append(Row(self._result(number), nbytes_of(row)))
            if op.reports and op.length is not None:
                clears.append((self._result(number), nbytes_of(self.writes[number])))
        flag = None
        if go_on is not None:
            flag = self._temporary(1)
            outputs.append(flag)
        code = Repeat(
            plan,
            tuple(inputs),
            tuple(outputs[i] for i in _numbers_of_outputs(plan)),
            arena,
            self.most(),
            op.reverse,
            count[0] if count else None,
            flag,
            self._result(len(self.writes) - 1) if op.reports else None,
            tuple(before),
            tuple(after),
            tuple(clears),
            op.length is None and self.most() is not None,
            op.progress,
        )
        return Item(
            self.group, (), tuple(self.reads), tuple(self.writes), tuple(self.temporaries), self.overwritable(), code
        )

    def _without(self, delays: _Delays) -> Any:
        """The plan of the body without the carries that only pass on another one."""
        body = self.op.body
        computed = [i for i in range(len(body.outputs)) if i not in delays.next_of]
        smaller = body.once("computed", lambda: body_of(body.inputs, [body.outputs[i] for i in computed]))
        layouts = dict(zip(smaller.inputs, (self.layouts[x] for x in body.inputs), strict=True))
        first = self.op.invariants
        number = {i: at for at, i in enumerate(computed)}
        alone = {first + k: number[k] for k in range(self.op.carries) if k not in delays.places}
        return self.plan_body(smaller, layouts, alone)

    def elementwise_body(self) -> Lowerer | None:
        """The body as a single elementwise kernel, if it is one: then a target may make the whole loop one."""
        op, plan = self.op, self.plan
        if len(plan.items) != 1 or plan.items[0].group.form != "map" or (self.most() is None and not op.reports):
            return None
        if op.length is None and op.split_body()[1]:
            return None  # a tape may turn out to be too short
        body = dict(zip(plan.graph.inputs, (self.layouts.get(x) for x in op.body.inputs), strict=True))
        return Lowerer(plan.graph, [plan.items[0].group], body, self.lowerer.target)

    def most(self) -> int | None:
        """Steps at most, as far as that is known (None: any number)."""
        op = self.op
        if op.length is not None:
            return to_int(op.length)
        return TAPE_ROWS.get() if op.split_body()[1] else None

    def overwritable(self) -> frozenset[tuple[int, int]]:
        """The last carries may lie on the first ones: those are copied before anything is written, or are it
        already."""
        start = self.op.counted + self.op.invariants
        results = {start + k: (k, self.writes[k].kind) for k in range(self.op.carries)}
        return self.lowerer.lying_alike(self.node, results, self.places)


class _Delays:
    """Carries that are what another carry was a step before: several past values of one recurrence. They share a ring
    of places, in which each keeps what it has while its name moves on, so nothing is copied."""

    def __init__(self, op: Loop) -> None:
        first = op.invariants
        params = {param: k for k, param in enumerate(op.body.inputs[first : first + op.carries])}
        self.next_of: dict[int, int] = {}
        """The carry whose value each one takes over at the next step."""
        readers: dict[int, int] = {}
        for k, after in enumerate(op.split_body()[0]):
            source = params.get(after)
            if source is not None and source != k and source not in readers:
                self.next_of[k], readers[source] = source, k
        self.places: dict[int, tuple[int, int, int]] = {}
        """(ring, place in it at step 0, number of places) of each carry in a ring."""
        for newest in range(op.carries):
            if newest not in self.next_of and newest in readers:
                self._chain(newest, readers, 1)
        for k in self.next_of:
            if k not in self.places:  # carries that only change places among each other
                self._chain(k, readers, 0)

    def _chain(self, newest: int, readers: dict[int, int], spare: int) -> None:
        """A ring for a value and its past; `spare` is a place for the next one."""
        chain = [newest]
        while readers.get(chain[-1], newest) != newest:
            chain.append(readers[chain[-1]])
        for age, k in enumerate(chain):
            self.places[k] = (newest, len(chain) - 1 - age, len(chain) + spare)
