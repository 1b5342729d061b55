"""Lowering: a fused group becomes a kernel over merged axes, with the words that its run needs.

Here, and only here, shapes and strides turn into loops: axes of size 1 vanish, neighbouring axes that every operand
walks as one are merged, the innermost axis decides how each operand is stepped through, and a transposed operand makes
the kernel tiled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from weft.codegen import cpu
from weft.codegen.kernel import BLOCK, LANES, Access, Kernel, Step, Store
from weft.codegen.launch import Choose, Launch, Layout, Lowering, Pointer, Repeat, Row, Slot
from weft.dtypes import Dtype
from weft.graph.dims import provably_equal, same_shape
from weft.graph.body import Body
from weft.graph.node import Bundle, Graph, Kind, Node, Size, Tape
from weft.passes.fuse import Group
from weft.passes.views import Strided, Strides, contiguous, is_contiguous
from weft.primitives.base import Constant, Multiple, Opaque, Pick, Reduction
from weft.primitives.control import Loop, Switch
from weft.primitives.creation import Iota
from weft.runtime.engine import Source

LONG_INNER = 1 << 14
"""An inner loop beyond this is cut into blocks that threads can share."""
STREAM_BYTES = 1 << 23
"""Results from this size on are written past the caches."""
FEW_ROWS, LONG_ROW = 16, 1 << 15
"""Fewer rows than this, each at least so long, are reduced in two stages, so that threads can share a row."""
STRIP_BYTES = 1 << 14
"""Bytes of one level of accumulators of a column kernel: half of the first-level cache."""


@dataclass(frozen=True, slots=True)
class Item:
    """One group made ready to run: launches whose pointers count `reads`, then `writes`, then `temporaries`.

    `overwritable` lists (read, write) pairs of positions for which the kernel reads each element of the operand before
    it writes the same element of the result, and nowhere else: such a result may lie on its operand.
    """

    group: Group
    launches: tuple[Launch, ...]
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    temporaries: tuple[int, ...] = ()
    overwritable: frozenset[tuple[int, int]] = frozenset()
    code: Repeat | Choose | None = None
    """In place of launches: the plans of a loop's or a branch's bodies."""

    def plans(self) -> tuple[Any, ...]:
        """The plans inside this item."""
        if self.code is None:
            return ()
        return (self.code.plan,) if isinstance(self.code, Repeat) else self.code.plans


PlanBody = Callable[[Body, Mapping[Node, "Strides | None"], Mapping[int, int]], Any]
"""Plans the body of a loop or branch: `(body, layouts of its inputs, {number of a carry among them: its result})`."""


@dataclass(slots=True)
class _Operand:
    """An access before its kernel is known: stored node, offset and strides (in elements) per domain axis."""

    node: Node
    dtype: Dtype
    offset: Size
    strides: list[Size]
    level: str
    source: str


class Lowerer:
    """Lowers the groups of one graph."""

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[Group],
        layouts: Mapping[Node, Strides | None],
        plan_body: PlanBody | None = None,
    ) -> None:
        self.layouts, self.plan_body = layouts, plan_body
        self.outputs = {o.inputs[0] if isinstance(o.op, Strided) else o for o in graph.outputs}
        self.home = {node: group for group in groups for node in group.nodes}
        self.readers: dict[Node, set[int]] = {}
        for node in graph.order():
            group = self.home.get(node)
            for operand in node.inputs if group is not None else ():
                stored = operand.inputs[0] if isinstance(operand.op, Strided) else operand
                self.readers.setdefault(stored, set()).add(id(group))

    def lower(self, group: Group) -> Item:
        if isinstance(group.nodes[0].op, Multiple):
            assert self.plan_body is not None
            return lower_bodies(self, group, self.plan_body)
        if group.form == "opaque":
            return self._opaque(group)
        return _GroupLowering(self, group).item()

    def leaves(self, group: Group, node: Node) -> bool:
        """Whether a node's value is needed outside its kernel."""
        return node in self.outputs or bool(self.readers.get(node, set()) - {id(group)})

    def place(self, operand: Node) -> tuple[Node, Strides, Size]:
        """(stored node, strides, offset) of an operand."""
        if isinstance(operand.op, Strided):
            return operand.inputs[0], operand.op.strides, operand.op.offset
        given = self.layouts.get(operand)
        return operand, contiguous(operand.shape) if given is None else given, 0

    def _opaque(self, group: Group) -> Item:
        (node,) = group.nodes
        assert isinstance(node.op, Opaque)
        reads, places, layouts = self.operands(node)
        out = Layout(_ints(node.shape), _ints(contiguous(node.shape)), node.dtype)
        lowering: Lowering = node.op.lower(layouts, out)
        launches = tuple(_renumbered(launch, places, len(reads)) for launch in lowering.launches)
        overwritable = frozenset(
            (places[k].value, 0) for k in node.op.overwrites if self.lies_like(node.kind, node.inputs, k, places)
        )
        return Item(group, launches, tuple(reads), (node,), lowering.temporaries, overwritable)

    def operands(self, node: Node) -> tuple[list[Node], list[Pointer], list[Layout]]:
        """(stored values, where among them each operand is, how it lies there)."""
        reads: list[Node] = []
        places: list[Pointer] = []
        layouts: list[Layout] = []
        for operand in node.inputs:
            stored, strides, offset = self.place(operand)
            if isinstance(stored.op, Constant):
                strides = (0,) * operand.ndim
            if stored not in reads:
                reads.append(stored)
            places.append(Pointer(reads.index(stored), _int(offset) * operand.dtype.size))
            layouts.append(Layout(_ints(operand.shape), _ints(strides), operand.dtype))
        return reads, places, layouts

    def lies_like(self, kind: Kind, operands: Sequence[Node], k: int, places: Sequence[Pointer]) -> bool:
        """Whether operand k lies in memory exactly as a result of this kind does, and no other operand reads it."""
        operand = operands[k]
        stored, strides, offset = self.place(operand)
        alone = sum(place.value == places[k].value for place in places) == 1
        return (
            alone
            and operand.kind is kind
            and not isinstance(stored.op, Constant)
            and provably_equal(offset, 0)
            and is_contiguous(operand.shape, strides)
            and stored.kind.size == kind.size
        )


ALIGNMENT = 64


def lower_bodies(lowerer: Lowerer, group: Group, plan_body: PlanBody) -> Item:
    """A loop or a branch: its bodies are planned for operands as they lie here."""
    node = group.nodes[0]
    assert isinstance(node.kind, Bundle)
    known = {pick.op.index: pick for pick in group.nodes[1:] if isinstance(pick.op, Pick)}
    writes = [known.get(i) or Node(Pick(i), (node,), part) for i, part in enumerate(node.kind.parts)]
    if isinstance(node.op, Switch):
        return _lower_switch(lowerer, group, node, writes, plan_body)
    assert isinstance(node.op, Loop)
    return _LoopLowering(lowerer, group, node.op, writes, plan_body).item()


def _lower_switch(
    lowerer: Lowerer, group: Group, node: Node, writes: Sequence[Node], plan_body: PlanBody
) -> Item:
    assert isinstance(node.op, Switch)
    reads, places, layouts = lowerer.operands(node)
    results = [Pointer(len(reads) + i) for i in range(len(writes))]
    plans, outputs = [], []
    for branch in node.op.branches:
        plan = plan_body(branch, _body_layouts(branch.inputs, layouts[1:]), {})
        plans.append(plan)
        outputs.append(tuple(results[branch_output(plan, i)] for i in range(len(plan.outputs))))
    arena = Pointer(len(reads) + len(writes))
    code = Choose(tuple(plans), places[0], tuple(places[1:]), tuple(outputs), arena)
    return Item(group, (), tuple(reads), tuple(writes), (max(plan.arena for plan in plans),), frozenset(), code)


def branch_output(plan: Any, position: int) -> int:
    """Which result of a body the plan's output number `position` is; they are stored apart."""
    return list(plan.graph.outputs).index(plan.outputs[position])


def _row_stride(rows: Layout, op: Loop) -> int:
    """Bytes from one row to the next; those of a tape lie one behind the other."""
    return (math.prod(rows.shape[1:]) if op.length is None else rows.strides[0]) * rows.dtype.size


def _body_layouts(inputs: Sequence[Node], layouts: Sequence[Layout]) -> dict[Node, Strides | None]:
    return {
        node: None if is_contiguous(layout.shape, layout.strides) else layout.strides
        for node, layout in zip(inputs, layouts, strict=True)
    }


class _LoopLowering:
    """A loop on its way to commands."""

    def __init__(
        self, lowerer: Lowerer, group: Group, op: Loop, writes: Sequence[Node], plan_body: PlanBody
    ) -> None:
        self.lowerer, self.group, self.op, self.writes = lowerer, group, op, writes
        self.node = group.nodes[0]
        self.reads, self.places, layouts = lowerer.operands(self.node)
        _, invariants, carries, rows = op.split(layouts)
        self.row_strides = [_row_stride(layout, op) for layout in rows]
        inner = [Layout(layout.shape[1:], layout.strides[1:], layout.dtype) for layout in rows]
        given = _body_layouts(op.body.inputs, [*invariants, *carries, *inner])
        first = op.invariants
        self.plan = plan_body(op.body, given, {first + k: k for k in range(op.carries)})
        self.temporaries: list[int] = []

    def _temporary(self, nbytes: int) -> Pointer:
        self.temporaries.append(nbytes)
        return Pointer(len(self.reads) + len(self.writes) + len(self.temporaries) - 1)

    def _result(self, number: int) -> Pointer:
        return Pointer(len(self.reads) + number)

    def item(self) -> Item:
        op, plan = self.op, self.plan
        arena = self._temporary(plan.arena)
        count, invariants, firsts, rows = op.split(self.places)
        inputs: list[Pointer | Row | Slot] = list(invariants)
        outputs: list[Pointer | Row | Slot] = []
        before: list[tuple[Pointer, Pointer, int]] = []
        after: list[tuple[Pointer, Slot, int]] = []
        for k, first in enumerate(firsts):
            nbytes, home = nbytes_of(self.writes[k]), self._result(k)
            if plan.places[plan.graph.inputs[op.invariants + k]].where == "output":  # updated in place
                inputs.append(home)
                outputs.append(home)
                before.append((home, first, nbytes))
                continue
            stride = -(-max(nbytes, 1) // ALIGNMENT) * ALIGNMENT
            ring = self._temporary(2 * stride)
            inputs.append(Slot(ring, 0, 2, stride))
            outputs.append(Slot(ring, 1, 2, stride))
            before.append((ring, first, nbytes))
            after.append((home, Slot(ring, 0, 2, stride), nbytes))
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
            tuple(outputs[branch_output(plan, i)] for i in range(len(plan.outputs))),
            arena,
            self._most(),
            op.reverse,
            count[0] if count else None,
            flag,
            self._result(len(self.writes) - 1) if op.reports else None,
            tuple(before),
            tuple(after),
            tuple(clears),
            op.length is None and self._most() is not None,
        )
        return Item(
            self.group, (), tuple(self.reads), tuple(self.writes), tuple(self.temporaries), self._overwritable(), code
        )

    def _most(self) -> int | None:
        op = self.op
        if op.length is not None:
            return _int(op.length)
        return TAPE_ROWS.get() if op.split_body()[1] else None

    def _overwritable(self) -> frozenset[tuple[int, int]]:
        """The last carries may lie on the first ones: those are copied before anything is written, or are it
        already."""
        start = self.op.counted + self.op.invariants
        kinds = [write.kind for write in self.writes]
        return frozenset(
            (self.places[start + k].value, k)
            for k in range(self.op.carries)
            if self.lowerer.lies_like(kinds[k], self.node.inputs, start + k, self.places)
        )


def _renumbered(launch: Launch, places: Sequence[Pointer], reads: int) -> Launch:
    """Pointers count operands of the node; a stored value may be several of them."""
    words: list[int | Pointer] = []
    for word in launch.words:
        if not isinstance(word, Pointer):
            words.append(word)
        elif word.value < len(places):
            at = places[word.value]
            words.append(Pointer(at.value, at.offset + word.offset))
        else:
            words.append(Pointer(reads + word.value - len(places), word.offset))
    return Launch(launch.source, tuple(words), launch.grain, launch.scratch, launch.call)


def nbytes_of(node: Node) -> int:
    kind = node.kind
    if isinstance(kind, Tape):
        return TAPE_ROWS.get() * _int(kind.row.size) * kind.dtype.size
    return _int(kind.size) * kind.dtype.size


TAPE_ROWS: ContextVar[int] = ContextVar("tape_rows", default=64)
"""Rows that a plan has room for on each tape. A program that finds it too few stops, and is planned again for more."""


def _int(n: Size) -> int:
    return n if type(n) is int else n.__index__()


def _ints(sizes: Sequence[Size]) -> tuple[int, ...]:
    return tuple(_int(n) for n in sizes)


class _GroupLowering:
    """One group on its way to a kernel."""

    def __init__(self, lowerer: Lowerer, group: Group) -> None:
        self.lowerer, self.group = lowerer, group
        self.axes = group.axes or ()
        self.kept = [i for i in range(len(group.domain)) if i not in self.axes]
        self.loads: list[_Operand] = []
        self.numbers: dict[Node, int] = {}
        self.load_of: dict[Node, int] = {}
        self._collect()
        self.stores = [self._store(node) for node in group.nodes if lowerer.leaves(group, node)]

    # ---- operands ----

    def _collect(self) -> None:
        """Number the loads (stored values that the group reads), then the steps."""
        inside = set(self.group.nodes)
        for node in self.group.nodes:
            for operand in node.inputs:
                stored = operand.inputs[0] if isinstance(operand.op, Strided) else operand
                if operand not in inside and stored not in inside and operand not in self.load_of:
                    self.load_of[operand] = len(self.loads)
                    self.loads.append(self._load(operand))
        for node in self.group.nodes:
            self.numbers[node] = len(self.loads) + len(self.numbers)

    def _number(self, operand: Node) -> int:
        if operand in self.numbers:
            return self.numbers[operand]
        if operand in self.load_of:
            return self.load_of[operand]
        return self.numbers[operand.inputs[0]]  # a reduced value repeated along its row

    def _level(self, shape: Sequence[Size]) -> str:
        return "full" if same_shape(tuple(shape), self.group.domain) else "reduced"

    def _spread(self, strides: Sequence[Size], level: str) -> list[Size]:
        """Strides per domain axis."""
        if level == "full":
            return list(strides)
        spread: list[Size] = [0] * len(self.group.domain)
        for axis, stride in zip(self.kept, strides, strict=True):
            spread[axis] = stride
        return spread

    def _load(self, operand: Node) -> _Operand:
        level = self._level(operand.shape)
        stored, strides, offset = self.lowerer.place(operand)
        if isinstance(stored.op, Constant):
            return _Operand(stored, operand.dtype, 0, [0] * len(self.group.domain), level, "scalar")
        source = "iota" if isinstance(stored.op, Iota) else "memory"
        return _Operand(stored, operand.dtype, offset, self._spread(strides, level), level, source)

    def _store(self, node: Node) -> _Operand:
        level = "reduced" if isinstance(node.op, Reduction) else self._level(node.shape)
        return _Operand(node, node.dtype, 0, self._spread(contiguous(node.shape), level), level, "memory")

    # ---- loops ----

    def item(self) -> Item:
        outer, reduced = self._merged()
        build = {"map": self._map, "row": self._row, "column": self._column}[self.group.form]
        reads: list[Node] = []
        for operand in self.loads:
            if operand.source != "iota" and operand.node not in reads:
                reads.append(operand.node)
        built = build(outer, reduced)
        launches = tuple(
            Launch(kernel_source(part.kernel), self._words(part, reads), part.grain, part.scratch)
            for part in built.parts
        )
        writes = tuple(s.node for s in self.stores)
        overwritable = self._overwritable(built.parts[0].kernel, reads)
        return Item(self.group, launches, tuple(reads), writes, built.temporaries, overwritable)

    def _merged(self) -> tuple[list[_Axis], list[_Axis]]:
        """(kept axes, reduced axes) with sizes of 1 dropped and neighbours merged where every operand allows."""
        operands = [*self.loads, *self.stores]
        axes: list[tuple[_Axis, bool]] = []
        for i, n in enumerate(self.group.domain):
            if type(n) is int and n == 1:
                continue
            axis = _Axis(n, [o.strides[i] for o in operands])
            reduces = i in self.axes
            if axes and axes[-1][1] == reduces and axes[-1][0].runs_into(axis):
                axes[-1] = (_Axis(axes[-1][0].size * n, axis.strides), reduces)
            else:
                axes.append((axis, reduces))
        return [a for a, reduces in axes if not reduces], [a for a, reduces in axes if reduces]

    def _map(self, outer: list[_Axis], reduced: list[_Axis]) -> _Built:
        inner = outer.pop() if outer else _Axis(1, [1] * (len(self.loads) + len(self.stores)))
        tile = self._tile_axis(outer, inner)
        if tile is not None:
            return self._tile(outer, inner, tile)
        n = _int(inner.size)
        units = _product(outer)
        blocked = n > LONG_INNER and units < 64
        kernel = self._kernel("map", outer, inner, blocked=blocked)
        if self._streams(outer, inner):
            kernel = replace(kernel, stream=True)
        numbers = {"n": n}
        cost = self._cost()
        if blocked:
            width = LONG_INNER // 2
            numbers |= {"width": width, "chunks": -(-n // width)}
            units, n = units * numbers["chunks"], width
        numbers["units"] = units
        return _Built([_Part(kernel, self._fill(numbers, outer, inner), _grain(n, cost))])

    def _streams(self, outer: list[_Axis], inner: _Axis) -> bool:
        """Whether the full-level results are so large that keeping them in the caches only drives other data out: then
        they are written past the caches, which saves reading their lines first. Every vector that is written must be
        aligned."""
        total = 0
        for k, store in enumerate(self.stores, len(self.loads)):
            if store.level != "full":
                continue
            total += nbytes_of(store.node)
            if inner.strides[k] != 1 or any(_int(a.strides[k]) * store.dtype.size % 64 for a in outer):
                return False
        return total >= STREAM_BYTES

    def _tile_axis(self, outer: list[_Axis], inner: _Axis) -> int | None:
        """The outer axis along which an operand that jumps in the inner loop lies contiguous."""
        if _int(inner.size) < LANES:
            return None
        for k, operand in enumerate(self.loads):
            if operand.source != "memory" or type(inner.strides[k]) is not int or abs(inner.strides[k]) <= 1:
                continue
            for position in range(len(outer) - 1, -1, -1):
                if outer[position].strides[k] == 1 and _int(outer[position].size) >= LANES:
                    return position
        return None

    def _tile(self, outer: list[_Axis], inner: _Axis, position: int) -> _Built:
        tile = outer.pop(position)
        m, n = _int(tile.size), _int(inner.size)
        strips = -(-m // cpu.STRIP)
        kernel = self._kernel("tile", outer, inner, tile=tile)
        if self._streams([*outer, tile], inner):
            kernel = replace(kernel, stream=True)
        numbers = {"n": n, "m": m, "strips": strips, "units": _product(outer) * strips}
        words = self._fill(numbers, outer, inner, tile=tile)
        return _Built([_Part(kernel, words, _grain(n * cpu.STRIP, self._cost()), cpu.tile_scratch(kernel))])

    def _row(self, outer: list[_Axis], reduced: list[_Axis]) -> _Built:
        inner = reduced[0] if reduced else _Axis(1, [1] * (len(self.loads) + len(self.stores)))
        n = _int(inner.size)
        kernel = self._kernel("row", outer, inner)
        units = _product(outer)
        if units < FEW_ROWS and n >= LONG_ROW and cpu.Phases(kernel).count == 1:
            return self._two_stages(kernel, outer, inner, units, n)
        words = self._fill({"n": n, "block": BLOCK, "units": units}, outer, inner)
        return _Built([_Part(kernel, words, _grain(n, self._cost()), cpu.row_scratch(kernel, n))])

    def _two_stages(self, kernel: Kernel, outer: list[_Axis], inner: _Axis, units: int, n: int) -> _Built:
        """A few long rows: their blocks are reduced side by side, then the partial results of each row; the order is
        the same."""
        chunks = -(-n // BLOCK)
        partials = tuple(cpu.state_dtypes(kernel))
        words = self._fill({"n": n, "block": BLOCK, "chunks": chunks, "units": units * chunks}, outer, inner)
        first = _Part(replace(kernel, form="partial", partials=partials), words, _grain(BLOCK, self._cost()))
        last = _Part(replace(kernel, form="final", partials=partials), {**words, "units": units}, 0)
        return _Built([first, last], tuple(units * chunks * d.size for d in partials))

    def _column(self, outer: list[_Axis], reduced: list[_Axis]) -> _Built:
        if not outer or not reduced:
            return self._row(outer, reduced)
        inner = outer.pop(self._unit_axis(outer))
        rows, n = _int(reduced[0].size), _int(inner.size)
        kernel = self._kernel("column", outer, inner)
        widest = max(d.size for d in cpu.state_dtypes(kernel))
        width = min(max(-(-n // LANES), 1) * LANES, STRIP_BYTES // (LANES * widest) // LANES * LANES)
        chunks = -(-n // width)
        numbers = {
            "n": n,
            "rows": rows,
            "block": BLOCK,
            "width": width,
            "chunks": chunks,
            "units": _product(outer) * chunks,
        }
        words = self._fill(numbers, outer, inner, rows=reduced[0])
        grain = _grain(rows * min(n, width), self._cost())
        return _Built([_Part(kernel, words, grain, cpu.column_scratch(kernel, width))])

    def _unit_axis(self, outer: list[_Axis]) -> int:
        """The kept axis that most operands walk element by element; the last of equals."""
        reads = [k for k, o in enumerate(self.loads) if o.source == "memory" and o.level == "full"]
        score = [sum(type(a.strides[k]) is int and abs(a.strides[k]) == 1 for k in reads) for a in outer]
        return max(range(len(outer)), key=lambda i: (score[i], i))

    def _cost(self) -> int:
        return sum(getattr(node.op, "cost", 1) for node in self.group.nodes)

    # ---- kernels and words ----

    def _kernel(
        self, form: str, outer: list[_Axis], inner: _Axis, tile: _Axis | None = None, blocked: bool = False
    ) -> Kernel:
        loads = tuple(
            Access(o.dtype, o.source, o.level, _stepping(o, inner.strides[k], tile.strides[k] if tile else None))
            for k, o in enumerate(self.loads)
        )
        steps = []
        for node in self.group.nodes:
            reduces = isinstance(node.op, Reduction)
            level = "reduced" if reduces else self._level(node.shape)
            op = _shapeless(node.op)
            steps.append(Step(op, tuple(self._number(o) for o in node.inputs), node.dtype, level, reduces))
        stores = []
        for k, o in enumerate(self.stores, len(self.loads)):
            stepping = "unit" if inner.strides[k] == 1 else "stride"
            stores.append(Store(self.numbers[o.node], Access(o.dtype, "memory", o.level, stepping)))
        return Kernel(form, len(outer), loads, tuple(steps), tuple(stores), blocked)

    def _fill(
        self,
        numbers: dict[str, int],
        outer: list[_Axis],
        inner: _Axis,
        rows: _Axis | None = None,
        tile: _Axis | None = None,
    ) -> dict[str, int]:
        """All words but the addresses."""
        for axis, a in enumerate(outer):
            numbers[f"e{axis}"] = _int(a.size)
        for k, o in enumerate([*self.loads, *self.stores]):
            size = 1 if o.source == "iota" else o.dtype.size
            numbers[f"i{k}"] = _int(inner.strides[k]) * size
            for axis, a in enumerate(outer):
                numbers[f"s{k}.{axis}"] = _int(a.strides[k]) * size
            if rows is not None:
                numbers[f"r{k}"] = _int(rows.strides[k]) * size
            if tile is not None:
                numbers[f"t{k}"] = _int(tile.strides[k]) * size
        return numbers

    def _words(self, part: _Part, reads: Sequence[Node]) -> tuple[int | Pointer, ...]:
        words: list[int | Pointer] = []
        operands = [*self.loads, *self.stores]
        for name in part.kernel.fields():
            if name[0] == "q":
                words.append(Pointer(len(reads) + len(self.stores) + int(name[1:])))
                continue
            if name[0] != "p":
                words.append(part.words[name])
                continue
            k = int(name[1:])
            operand = operands[k]
            if operand.source == "iota":
                words.append(_int(operand.offset))
            elif k < len(self.loads):
                words.append(Pointer(reads.index(operand.node), _int(operand.offset) * operand.dtype.size))
            else:
                words.append(Pointer(len(reads) + k - len(self.loads)))
        return tuple(words)

    def _overwritable(self, kernel: Kernel, reads: Sequence[Node]) -> frozenset[tuple[int, int]]:
        if kernel.form != "map":
            return frozenset()
        pairs = set()
        for r, node in enumerate(reads):
            accesses = [o for o in self.loads if o.node is node]
            for w, store in enumerate(self.stores):
                if all(_same_walk(o, store) for o in accesses):
                    pairs.add((r, w))
        return frozenset(pairs)


@dataclass(slots=True)
class _Part:
    """One launch of a group: the kernel, its words by name, the grain, scratch bytes per thread."""

    kernel: Kernel
    words: dict[str, int]
    grain: int
    scratch: int = 0


@dataclass(slots=True)
class _Built:
    """The launches of a group, and the sizes of the temporaries that pass between them."""

    parts: list[_Part]
    temporaries: tuple[int, ...] = ()


@dataclass(slots=True)
class _Axis:
    """One loop: its size and each operand's stride along it."""

    size: Size
    strides: list[Size]

    def runs_into(self, inner: _Axis) -> bool:
        """Whether every operand walks this axis and the inner one as a single longer one."""
        return all(provably_equal(s, t * inner.size) for s, t in zip(self.strides, inner.strides, strict=True))


def _same_walk(load: _Operand, store: _Operand) -> bool:
    return (
        load.source == "memory"
        and load.dtype.size == store.dtype.size
        and provably_equal(load.offset, 0)
        and load.level == store.level
        and all(provably_equal(s, t) for s, t in zip(load.strides, store.strides, strict=True))
    )


def _stepping(operand: _Operand, stride: Size, tile: Size | None) -> str:
    if operand.source == "scalar" or stride == 0:
        return "repeat"
    if stride == 1:
        return "unit"
    if operand.source == "memory" and tile == 1:
        return "tile"
    return "reverse" if stride == -1 and operand.source == "memory" else "stride"


def _shapeless(op: Any) -> Any:
    """Reductions keep no axes in the kernel: which loop reduces is the kernel's form."""
    return type(op)(()) if isinstance(op, Reduction) else op


def _product(axes: Sequence[_Axis]) -> int:
    total = 1
    for axis in axes:
        total *= _int(axis.size)
    return total


def _grain(elements: int, cost: int) -> int:
    """Units that are worth a thread: some microseconds of work."""
    target = max(1 << 10, (1 << 16) // (4 + cost))
    return max(1, -(-target // max(1, elements)))


_SOURCES: dict[Kernel, Source] = {}


def kernel_source(kernel: Kernel) -> Source:
    """The engine's handle for a kernel; equal kernels share one."""
    found = _SOURCES.get(kernel)
    if found is None:
        key = str(kernel)
        name = f"weft_{kernel.form}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        found = _SOURCES[kernel] = Source(key, name, lambda: cpu.emit_kernel(kernel, name))
    return found


def lower(
    graph: Graph,
    groups: Sequence[Group],
    layouts: Mapping[Node, Strides | None],
    plan_body: PlanBody | None = None,
) -> list[Item]:
    """All groups, in order."""
    lowerer = Lowerer(graph, groups, layouts, plan_body)
    return [lowerer.lower(group) for group in groups]
