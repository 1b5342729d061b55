"""The CPU's schedules: a fused group becomes a kernel over merged axes, with the words that its run needs.

Here shapes and strides turn into loops: axes of size 1 vanish, neighbouring axes that every operand
walks as one are merged, the innermost axis decides how each operand is stepped through, and a transposed operand makes
the kernel tiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from weft.codegen.kernel import BLOCK, LANES, Access, Kernel, Step, Store
from weft.codegen.launch import Launch, Pointer
from weft.config import config
from weft.dtypes import Dtype
from weft.graph.dims import ceil_div, dim_max, provably_equal, same_shape
from weft.graph.node import Node, Size
from weft.passes.fuse import Group
from weft.passes.lower import Item, Lowerer, nbytes_of, to_int
from weft.passes.views import Strided, contiguous
from weft.primitives.base import Constant, Reduction
from weft.primitives.creation import Iota
from weft.runtime.engine import Source
from weft.targets.cpu import kernels as cpu
from weft.targets.cpu import short

LONG_INNER = 1 << 14
"""An inner loop beyond this is cut into blocks that threads can share."""
STREAM_BYTES = 1 << 23
"""Results from this size on are written past the caches."""
FEW_ROWS, LONG_ROW = 16, 1 << 15
"""Fewer rows than this, each at least so long, are reduced in two stages, so that threads can share a row."""
MANY_ROWS, GROUP = 64, 256
"""So many neighbouring rows of a few elements are worth lanes across rows; so many of them are one task."""
STRIP_BYTES = 1 << 14
"""Bytes of one level of accumulators of a column kernel: half of the first-level cache."""


@dataclass(slots=True)
class Operand:
    """An access before its kernel is known: stored node, offset and strides (in elements) per domain axis."""

    node: Node
    dtype: Dtype
    offset: Size
    strides: list[Size]
    level: str
    source: str


class GroupLowering:
    """One group on its way to a kernel."""

    def __init__(self, lowerer: Lowerer, group: Group) -> None:
        self.lowerer, self.group = lowerer, group
        self.axes = group.axes or ()
        self.kept = [i for i in range(len(group.domain)) if i not in self.axes]
        self.loads: list[Operand] = []
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

    def _load(self, operand: Node) -> Operand:
        level = self._level(operand.shape)
        stored, strides, offset = self.lowerer.place(operand)
        if isinstance(stored.op, Constant):
            return Operand(stored, operand.dtype, 0, [0] * len(self.group.domain), level, "scalar")
        source = "iota" if isinstance(stored.op, Iota) else "memory"
        return Operand(stored, operand.dtype, offset, self._spread(strides, level), level, source)

    def _store(self, node: Node) -> Operand:
        level = "reduced" if isinstance(node.op, Reduction) else self._level(node.shape)
        return Operand(node, node.dtype, 0, self._spread(contiguous(node.shape), level), level, "memory")

    # ---- loops ----

    def item(self) -> Item:
        outer, reduced = self.merged()
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

    def merged(self) -> tuple[list[Axis], list[Axis]]:
        """(kept axes, reduced axes) with sizes of 1 dropped and neighbours merged where every operand allows."""
        operands = [*self.loads, *self.stores]
        axes: list[tuple[Axis, bool]] = []
        for i, n in enumerate(self.group.domain):
            if type(n) is int and n == 1:
                continue
            axis = Axis(n, [o.strides[i] for o in operands])
            reduces = i in self.axes
            if axes and axes[-1][1] == reduces and axes[-1][0].runs_into(axis):
                axes[-1] = (Axis(axes[-1][0].size * n, axis.strides), reduces)
            else:
                axes.append((axis, reduces))
        return [a for a, reduces in axes if not reduces], [a for a, reduces in axes if reduces]

    def _map(self, outer: list[Axis], reduced: list[Axis]) -> _Built:
        inner = outer.pop() if outer else Axis(1, [1] * (len(self.loads) + len(self.stores)))
        tile = self.tile_axis(outer, inner)
        if tile is not None:
            return self._tile(outer, inner, tile)
        n = to_int(inner.size)
        units = product(outer)
        blocked = n > LONG_INNER and units < 64
        kernel = self.kernel("map", outer, inner, blocked=blocked)
        if self._streams(outer, inner):
            kernel = replace(kernel, stream=True)
        numbers = {"n": n}
        cost = self.cost()
        if blocked:
            width = LONG_INNER // 2
            numbers |= {"width": width, "chunks": -(-n // width)}
            units, n = units * numbers["chunks"], width
        numbers["units"] = units
        return _Built([_Part(kernel, self.fill(numbers, outer, inner), grain_of(n, cost))])

    def _streams(self, outer: list[Axis], inner: Axis) -> bool:
        """Whether the full-level results are so large that keeping them in the caches only drives other data out: then
        they are written past the caches, which saves reading their lines first. Every vector that is written must be
        aligned."""
        full = [(k, store) for k, store in enumerate(self.stores, len(self.loads)) if store.level == "full"]
        if sum(nbytes_of(store.node) for _, store in full) < STREAM_BYTES:
            return False
        return all(
            inner.strides[k] == 1 and not any(to_int(a.strides[k]) * store.dtype.size % 64 for a in outer)
            for k, store in full
        )

    def tile_axis(self, outer: list[Axis], inner: Axis) -> int | None:
        """The outer axis along which an operand that jumps in the inner loop lies contiguous."""
        for k, operand in enumerate(self.loads):
            if operand.source != "memory" or abs(inner.strides[k]) <= 1:
                continue
            for position in range(len(outer) - 1, -1, -1):
                tile = outer[position]
                if tile.strides[k] == 1 and to_int(tile.size) >= LANES and to_int(inner.size) >= LANES:
                    return position
        return None

    def _tile(self, outer: list[Axis], inner: Axis, position: int) -> _Built:
        tile = outer.pop(position)
        m, n = to_int(tile.size), to_int(inner.size)
        strips = -(-m // cpu.STRIP)
        kernel = self.kernel("tile", outer, inner, tile=tile)
        if self._streams([*outer, tile], inner):
            kernel = replace(kernel, stream=True)
        numbers = {"n": n, "m": m, "strips": strips, "units": product(outer) * strips}
        words = self.fill(numbers, outer, inner, tile=tile)
        return _Built([_Part(kernel, words, grain_of(n * cpu.STRIP, self.cost()), cpu.tile_scratch(kernel))])

    def _row(self, outer: list[Axis], reduced: list[Axis]) -> _Built:
        inner = reduced[0] if reduced else Axis(1, [1] * (len(self.loads) + len(self.stores)))
        n = to_int(inner.size)
        kernel = self.kernel("row", outer, inner)
        units = product(outer)
        if n >= LONG_ROW and units < FEW_ROWS and cpu.Phases(kernel).count == 1:
            return self._two_stages(kernel, outer, inner, units, n)
        if outer and _is_short(inner.size, outer[-1].size) and cpu.is_neutral(kernel):
            return self._short(outer, inner)
        words = self.fill({"n": n, "block": BLOCK, "units": units}, outer, inner)
        return _Built([_Part(kernel, words, grain_of(n, self.cost()), cpu.row_scratch(kernel, n))])

    def _short(self, outer: list[Axis], row: Axis) -> _Built:
        """Many rows of a few elements: lanes go across rows."""
        across = outer.pop()
        rows, n = to_int(row.size), to_int(across.size)
        kernel = self.kernel("short", outer, across)
        chunks = -(-n // GROUP)
        numbers = {"n": n, "rows": rows, "width": GROUP, "chunks": chunks, "units": product(outer) * chunks}
        words = self.fill(numbers, outer, across, rows=row)
        return _Built([_Part(kernel, words, grain_of(rows * GROUP, self.cost()), short.scratch(kernel))])

    def _two_stages(self, kernel: Kernel, outer: list[Axis], inner: Axis, units: int, n: int) -> _Built:
        """A few long rows: their blocks are reduced side by side, then the partial results of each row; the order is
        the same."""
        chunks = -(-n // BLOCK)
        partials = tuple(cpu.state_dtypes(kernel))
        words = self.fill({"n": n, "block": BLOCK, "chunks": chunks, "units": units * chunks}, outer, inner)
        first = _Part(replace(kernel, form="partial", partials=partials), words, grain_of(BLOCK, self.cost()))
        last = _Part(replace(kernel, form="final", partials=partials), {**words, "units": units}, 0)
        return _Built([first, last], tuple(units * chunks * d.size for d in partials))

    def _column(self, outer: list[Axis], reduced: list[Axis]) -> _Built:
        if not outer or not reduced:
            return self._row(outer, reduced)
        inner = outer.pop(self._unit_axis(outer))
        rows, n = to_int(reduced[0].size), to_int(inner.size)
        kernel = self.kernel("column", outer, inner)
        widest = max(d.size for d in cpu.state_dtypes(kernel))
        width = min(max(-(-n // LANES), 1) * LANES, STRIP_BYTES // (LANES * widest) // LANES * LANES)
        chunks = -(-n // width)
        numbers = {
            "n": n,
            "rows": rows,
            "block": BLOCK,
            "width": width,
            "chunks": chunks,
            "units": product(outer) * chunks,
        }
        words = self.fill(numbers, outer, inner, rows=reduced[0])
        grain = grain_of(rows * min(n, width), self.cost())
        return _Built([_Part(kernel, words, grain, cpu.column_scratch(kernel, width))])

    def _unit_axis(self, outer: list[Axis]) -> int:
        """The kept axis that most operands walk element by element; the last of equals."""
        reads = [k for k, o in enumerate(self.loads) if o.source == "memory" and o.level == "full"]
        score = [sum(type(a.strides[k]) is int and abs(a.strides[k]) == 1 for k in reads) for a in outer]
        return max(range(len(outer)), key=lambda i: (score[i], i))

    def cost(self) -> int:
        return sum(getattr(node.op, "cost", 1) for node in self.group.nodes)

    # ---- kernels and words ----

    def kernel(
        self, form: str, outer: list[Axis], inner: Axis, tile: Axis | None = None, blocked: bool = False
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

    def fill(
        self,
        numbers: dict[str, int],
        outer: list[Axis],
        inner: Axis,
        rows: Axis | None = None,
        tile: Axis | None = None,
    ) -> dict[str, int]:
        """All words but the addresses."""
        for axis, a in enumerate(outer):
            numbers[f"e{axis}"] = to_int(a.size)
        for k, o in enumerate([*self.loads, *self.stores]):
            size = 1 if o.source == "iota" else o.dtype.size
            numbers[f"i{k}"] = to_int(inner.strides[k]) * size
            for axis, a in enumerate(outer):
                numbers[f"s{k}.{axis}"] = to_int(a.strides[k]) * size
            if rows is not None:
                numbers[f"r{k}"] = to_int(rows.strides[k]) * size
            if tile is not None:
                numbers[f"t{k}"] = to_int(tile.strides[k]) * size
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
                words.append(to_int(operand.offset))
            elif k < len(self.loads):
                words.append(Pointer(reads.index(operand.node), to_int(operand.offset) * operand.dtype.size))
            else:
                words.append(Pointer(len(reads) + k - len(self.loads)))
        return tuple(words)

    def _overwritable(self, kernel: Kernel, reads: Sequence[Node]) -> frozenset[tuple[int, int]]:
        """Maps compute all values of an element before they write one. A row is passed over several times: only what
        the last pass alone writes cannot be read again."""
        if kernel.form not in ("map", "row", "short"):
            return frozenset()
        written = range(len(self.stores)) if kernel.form == "map" else cpu.Phases(kernel).written_last()
        pairs = set()
        for r, node in enumerate(reads):
            accesses = [o for o in self.loads if o.node is node]
            for w in written:
                if all(same_walk(o, self.stores[w]) for o in accesses):
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
class Axis:
    """One loop: its size and each operand's stride along it."""

    size: Size
    strides: list[Size]

    def runs_into(self, inner: Axis) -> bool:
        """Whether every operand walks this axis and the inner one as a single longer one."""
        return all(provably_equal(s, t * inner.size) for s, t in zip(self.strides, inner.strides, strict=True))


def same_walk(load: Operand, store: Operand) -> bool:
    return (
        load.source == "memory"
        and load.dtype.size == store.dtype.size
        and provably_equal(load.offset, 0)
        and load.level == store.level
        and all(provably_equal(s, t) for s, t in zip(load.strides, store.strides, strict=True))
    )


def _stepping(operand: Operand, stride: Size, tile: Size | None) -> str:
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


def _is_short(n: Size, rows: Size) -> bool:
    """Whether rows of n elements are so short and so many that lanes go across them. A number is asked before a
    symbol."""
    if type(n) is int:
        return 0 < n <= short.LONGEST and rows >= MANY_ROWS
    return rows >= MANY_ROWS and 0 < n <= short.LONGEST


def product(axes: Sequence[Axis]) -> int:
    total = 1
    for axis in axes:
        total *= to_int(axis.size)
    return total


def grain_of(elements: int, cost: int) -> int:
    """Units that are worth a thread: some microseconds of work."""
    target = max(1 << 10, (1 << 16) // (4 + cost))
    return to_int(dim_max(1, ceil_div(target, dim_max(1, elements))))


_SOURCES: dict[Kernel, Source] = {}


def kernel_source(kernel: Kernel) -> Source:
    """The engine's handle for a kernel; equal kernels share one."""
    found = _SOURCES.get(kernel)
    if found is None:
        key = str(kernel)
        name = f"weft_{kernel.form}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
        emit = short.emit_kernel if kernel.form == "short" else cpu.emit_kernel
        if len(_SOURCES) >= config.programs:
            _SOURCES.clear()
        found = _SOURCES[kernel] = Source(key, name, lambda: emit(kernel, name))
    return found
