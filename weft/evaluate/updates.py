"""Slice updates of computed data, written without a program that knows where they begin: `cache[i] = v` costs what
`v` costs. Evaluations that have some are cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weft.config import config
from weft.evaluate import reach
from weft.evaluate.overwriting import claimed, run_over
from weft.evaluate.reach import without_value
from weft.evaluate.running import Prepared, prepare, run_program, run_windows
from weft.evaluate.turns import LOCK, enter, still
from weft.graph.node import Node
from weft.graph.trace import keeps_inputs
from weft.lazy import lazy
from weft.primitives.base import DATA
from weft.primitives.views import SliceUpdate
from weft.runtime.data import Buffer, Taken, moved
from weft.runtime.holders import BASE, COUNTED, free
from weft.runtime.program import Progress

if TYPE_CHECKING:
    from weft import targets
    from weft.passes import views
    from weft.targets import copies
else:
    targets, views, copies = lazy("weft.targets"), lazy("weft.passes.views"), lazy("weft.targets.copies")


def may_write() -> bool:
    """Whether slice updates may be written on their own: nobody needs to know later how they came about, or wants to
    see them in a program."""
    return keeps_inputs() is None and config.backend != "reference" and not config.compare


def is_plain_update(node: Node) -> bool:
    """Whether a slice update is one of computed data by computed data."""
    if node.kind.symbolic or not may_write():
        return False
    base, part = node.inputs
    return base.value.__class__ is Buffer and part.value is not None


def in_stages(order: list[Node], wanted: set[Node]) -> Stages | None:
    """The evaluation cut at slice updates of computed data, if there are any and they may be written on their own."""
    if not may_write():
        return None
    written: set[Node] = set()
    for node in order:
        if node.value is None and node.op.__class__ is SliceUpdate:
            base = node.inputs[0]
            if (base.value.__class__ is Buffer or base in written) and not node.kind.symbolic:
                written.add(node)
    return Stages(order, written, wanted) if written else None


class Stages:
    """An evaluation in stages: in each, one program computes what needs no further update, then updates are written one
    by one. Every node is held in one place only, and until its turn: what an update is based on must be seen to be
    free."""

    def __init__(self, order: list[Node], written: set[Node], wanted: set[Node]) -> None:
        self.results = set(wanted)
        self.stages: list[tuple[list[Node], list[Node]]] = []
        stage: dict[Node, int] = {}
        stage_of = stage.get
        for node in order:
            update = node in written
            at = 0
            for x in node.inputs:
                after = stage_of(x)
                if after is not None:  # it has no value
                    at = max(at, after + (x in written and not update))
            stage[node] = at
            while len(self.stages) <= at:
                self.stages.append(([], []))
            self.stages[at][update].append(node)
            if update or at:
                waiting = [x for x in node.inputs if x in stage and x not in written]
                self.results.update([x for x in waiting if update or stage[x] < at])
        for _, updates in self.stages:
            updates.reverse()
        self.stages.reverse()
        order.clear()

    def run(self) -> None:
        while self.stages:
            nodes, updates = self.stages.pop()
            if nodes:
                self._compute(nodes)
            while updates:
                write_update(updates.pop())

    def _compute(self, nodes: list[Node]) -> None:
        with LOCK:
            mine = enter()
            try:
                prepared = self._prepared(nodes, mine)
            except Exception:
                still(mine)
                raise
            still(mine)
        return None if prepared is None else run_program(*prepared)

    def _prepared(self, nodes: list[Node], mine: int) -> Prepared | None:
        order = without_value(nodes)
        nodes.clear()
        if not order:
            return None
        if len(order) <= reach.WINDOW:
            return prepare(order, self.results, mine)
        run_windows(order, self.results, mine)
        return None


def write_update(node: Node) -> None:
    """Write a slice of computed data over: in its place if nobody else holds it, else in a copy."""
    with LOCK:
        if node.value is not None:
            return None  # another thread was faster
        mine = enter()
        try:
            is_free = COUNTED and _is_base_free(node)  # before there are variables for it
            base, part = node.inputs
            old, new = base.value, part.value
            for value in (old, new):
                if isinstance(value, Taken):
                    value.refuse()
            if 0 in part.shape:
                node.value, node.inputs, node.op = old, (), DATA
                return None
            is_free = is_free and not old.storage.foreign and copies.lies_apart(base.shape, old.strides)
            target = old if is_free else copies.room_for(node.kind, old.device)
            if new.__class__ is Buffer and new.device is not old.device:
                shape = tuple(map(int, part.shape))
                new = moved(new, shape, part.dtype.size, old.device, targets.target_of(old.device).allocate)
            place = _part_of(node, target)
            claim = claimed([base] if is_free else [], mine)
        except Exception:
            still(mine)
            raise
    if not is_free and part.shape != node.shape:
        copies.copy(node.kind, old, target)

    def run(progress: Progress) -> None:
        progress.results = [Buffer(target.storage, target.address, target.strides)]
        progress.keep.append(new)
        copies.copy(part.kind, new, place, progress)

    return run_over(claim, [node], run)


def _is_base_free(node: Node) -> bool:
    """Whether nothing but an update holds what it updates."""
    if node.inputs[0].value.__class__ is not Buffer:
        return False
    found = free(
        BASE,
        (node.inputs, node.inputs[0], node.inputs[0].value, node.inputs[0].value.storage),
        (1, 1, 1, 1),
        lambda: [{id(node)}, {id(node.inputs)}, {id(node.inputs[0])}, {id(node.inputs[0].value)}],
    )
    return all(found)


def _part_of(node: Node, target: Buffer) -> Buffer:
    """Where the slice that an update writes lies in `target`."""
    steps: Sequence[Any] = views.contiguous(node.shape) if target.strides is None else target.strides
    op: Any = node.op
    offset = sum([start * step for start, step in zip(op.starts, steps, strict=True)])
    strides = tuple([by * step for by, step in zip(op.steps, steps, strict=True)])
    return Buffer(target.storage, target.address + offset * node.dtype.size, strides)
