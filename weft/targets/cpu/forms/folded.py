"""Rows of some elements that are only reduced, sixteen at a time: the trees over the partial results of sixteen rows
are one, each of whose steps puts halves of two vectors side by side. A row kernel goes down a tree for each row, with
ever more idle lanes, and rows that are turned first take twice the shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.phases import Phases
from weft.codegen.scope import Accesses, Bases, Scope, State, reversed_lanes, splat, stored_dtype
from weft.codegen.transposes import joined
from weft.config import config
from weft.graph.dims import pinned
from weft.lazy import lazy
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.passes.lower import Item
from weft.records import dataclass
from weft.targets.axes import Axis, product
from weft.targets.cpu.forms.base import Form, grain_of
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.cpu.reductions import VectorReductions
from weft.targets.nest import Body, Nest

if TYPE_CHECKING:
    from weft.targets.cpu.matmul import machine
else:
    machine = lazy("weft.targets.cpu.matmul.machine")

FEWEST, MOST = 2, 16 * LANES
"""Elements of a row."""
MANY_ROWS, GROUP = 64, 256
"""So many rows are worth it; so many of them are one task."""
PLACES = 64
"""Bytes of a row of which places are looked for in this way; a quarter of that where registers are half as long, and
half as many."""
CHEAP = 3
"""Instructions for each element beside what reduces it: those of lanes behind the end of a row are for nothing."""


@dataclass(frozen=True, slots=True)
class Folded(Form):
    """`n` rows of `count` elements, `width` of them in a unit. A row has so many `lanes`, of which each takes in every
    element of its number; of a `single` vector each takes in one at most, and if that is `whole`, one. Where nothing
    lies between rows of so many elements they are `packed`, and several are read at once. What has an element for each
    row is walked along the rows, all else along a row.

    `beyond`: vectors are read past the ends of rows, into those beside them; those of the first and the last sixteen
    rows end with them."""

    title = "folded"
    further = "r"
    lanes: int = LANES
    single: bool = False
    whole: bool = False
    packed: int = 0
    beyond: bool = False

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        if not nest.outer or not nest.reduced:
            return None
        *outer, inner = nest.outer
        row = nest.reduced[0]
        if not (FEWEST <= row.size <= MOST and inner.size >= MANY_ROWS and _lies_well(nest, row)):
            return None
        lanes = LANES if row.size > 8 else 8 if row.size > 4 else 4 if row.size > 2 else 2
        single, whole = bool(row.size <= lanes), bool(row.size == lanes)
        packed = pinned(row.size, LANES) if _are_packed(nest, inner, row, lanes) else None
        if not single and not _has_registers(nest):
            return None
        beyond = not whole and (single or not _has_masks(nest))
        if beyond and not _has_room(nest, inner, row, lanes):
            return None
        if not packed and lanes <= 4 and not row.size >= 4 and _are_bytes(nest):
            return None
        body = _body(nest, inner, row)
        kernel = cls(len(outer), *body, lanes=lanes, single=single, whole=whole, packed=packed or 0, beyond=beyond)
        if not kernel.fits() or (kernel.finds_places() and not _pays(nest, row, whole)):
            return None
        chunks = -(-inner.size // GROUP)
        numbers = {"units": product(outer) * chunks, "count": row.size, "width": GROUP, "chunks": chunks}
        grain = grain_of(row.size * GROUP, nest.cost())
        return nest.item([kernel.launch(nest, outer, inner, {**numbers}, grain, kernel.scratch(), r=row)])

    def fits(self) -> bool:
        """Whether a row is passed once, and cheaply, and nothing is stored on the way."""
        if not self.is_neutral or any(store.access.level == "full" for store in self.stores):
            return False
        cost = sum(step.op.cost for step in self.steps if step.level == "full" and not step.reduces)
        return Phases(self).count == 1 and cost <= CHEAP and (not self.finds_places() or cost == 0)

    def finds_places(self) -> bool:
        """Whether it looks for places of extremes, of which each step of a tree is long."""
        return any(self.step(n).op.is_place(self.operand_dtype(n)) for n in self.reductions())

    def flags(self) -> list[str]:
        packed = [f"packed={self.packed}"] if self.packed else []
        return [
            f"lanes={self.lanes}",
            *packed,
            *(name for name in ("single", "whole", "beyond") if getattr(self, name)),
        ]

    def sizes(self) -> list[str]:
        return ["count", "width", "chunks"]

    def scratch(self) -> int:
        """Bytes of per-thread memory: the partial results of 16 rows."""
        return LANES * self.lanes * sum(d.size for d in self.state_dtypes())

    def emit(self, frame: Frame) -> None:
        b, rows = frame.b, _Rows(self, frame)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, True)
            bases = rows.accesses.bases(frame.indices(place))
            with b.loop(start, stop, LANES) as loop:
                # The last sixteen begin earlier, over the end of those before them.
                rows.emit(bases, frame.least(loop.index, frame["n"] - LANES))


def _lies_well(nest: Nest, row: Axis) -> bool:
    """Whether what has an element for each place lies along the rows."""
    return all(
        load.source == "scalar" or (load.source == "memory" and row.strides[k] in (load.unit, -load.unit, 0))
        for k, load in enumerate(nest.loads)
        if load.level == "full"
    )


def _has_registers(nest: Nest) -> bool:
    """Whether the parts of sixteen lanes of complex numbers are not most of the registers."""
    return machine.machine(config.cpu).vector >= 64 or not any(load.dtype.is_complex for load in nest.loads)


def _has_masks(nest: Nest) -> bool:
    """Whether parts of vectors are read at once."""
    return machine.machine(config.cpu).vector >= 64 or all(load.dtype.size >= 4 for load in nest.loads)


def _has_room(nest: Nest, inner: Axis, row: Axis, lanes: int) -> bool:
    """Whether vectors that are read past the end of a row, or before the beginning of one that is walked backwards, end
    in the row beside it."""
    return all(
        inner.strides[k] >= -row.size % lanes * load.unit
        for k, load in enumerate(nest.loads)
        if load.source == "memory" and load.level == "full" and row.strides[k]
    )


def _are_bytes(nest: Nest) -> bool:
    """Whether elements are so small that rows of two or three are a part of a word."""
    return all(load.dtype.size == 1 for load in nest.loads if load.level == "full")


def _are_packed(nest: Nest, inner: Axis, row: Axis, lanes: int) -> bool:
    """Whether rows that are shorter than a vector lie one after the other with nothing between them. Those that are
    shorter than their lanes have to be put there: one instruction, where there are some for all lanes of a register and
    a vector is one."""
    if not lanes < LANES:
        return False
    loads = [(k, load) for k, load in enumerate(nest.loads) if load.source == "memory" and load.level == "full"]
    if not row.size >= lanes and not (
        machine.machine(config.cpu).vector >= 64 and all(load.dtype.size <= 4 for _, load in loads)
    ):
        return False
    return all(inner.strides[k] == row.size * load.unit for k, load in loads if row.strides[k])


def _pays(nest: Nest, row: Axis, whole: bool) -> bool:
    """Whether places of extremes are found in less time than where rows are turned: those of integers, which are
    compared as they are."""
    if not row.size <= 4 * LANES:
        return True
    loads = [load.dtype for load in nest.loads if load.level == "full"]
    if not whole or any(dtype.is_inexact for dtype in loads):
        return False
    most = PLACES if machine.machine(config.cpu).vector >= 64 else PLACES // 4
    return row.size * max(dtype.size for dtype in loads) <= most


def _body(nest: Nest, inner: Axis, row: Axis) -> Body:
    """What has an element for each place, as it is walked along a row; what has one for each row, along the rows."""
    across, along = nest.body(inner), nest.body(row)
    loads = [y if y.level == "full" else x for x, y in zip(across[0], along[0], strict=True)]
    return tuple(loads), across[1], across[2]


class _Rows:
    """Writes what is done with sixteen rows."""

    def __init__(self, kernel: Folded, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.accesses = Accesses(frame, kernel)
        self.reductions = VectorReductions(frame.b, kernel, kernel.reductions())
        self.lanes = kernel.lanes

    def emit(self, bases: Bases, first: Value) -> None:
        b, frame, kernel = self.b, self.frame, self.kernel
        if not kernel.beyond:
            self._some(bases, first, masked=True)
            return
        hows = {load.inner for load in kernel.loads if load.source == "memory" and load.level == "full"}
        at_an_end = first < 0
        if kernel.packed:  # a vector that is read for some rows ends in the second one behind them, or before
            at_an_end = first + (LANES + 1) >= frame["n"]
        elif "unit" in hows:
            at_an_end = first + LANES >= frame["n"]
        if "reverse" in hows and not kernel.packed:
            at_an_end = at_an_end | first.eq(0)
        with b.when(at_an_end):
            self._some(bases, first, masked=True)
        with b.when(~at_an_end):
            self._some(bases, first, masked=False)

    def _some(self, bases: Bases, first: Value, masked: bool) -> None:
        """Sixteen rows from number `first` on. `masked`: vectors end with the rows."""
        kernel, b = self.kernel, self.b
        if kernel.single and (kernel.whole or not masked):
            states = [self._joined(bases, first, vector) for vector in range(self.lanes)]
        else:
            with b.loop(0, LANES, 1) as row:
                state = self._row(self._at(bases, first + row.index), masked)
                for c, x in enumerate(state):
                    b.store(x, self._address(c, row.index * self.lanes))
            dtypes = list(enumerate(self.reductions.dtypes))
            states = [
                tuple([b.load(self._address(c, b.i64(vector * LANES)), d) for c, d in dtypes])
                for vector in range(self.lanes)
            ]
        found = {v: _in_order(b, x, self.lanes) for v, x in self.reductions.finish(self._folded(states)).items()}
        Scope(self.accesses, bases, first, LANES, None, found).store_level("reduced")

    def _address(self, component: int, element: Value) -> Value:
        dtypes = self.reductions.dtypes
        before = sum(LANES * self.lanes * d.size for d in dtypes[:component])
        return self.b.gep(self.b.gep(self.frame.scratch, before), element * dtypes[component].size)

    def _at(self, bases: Bases, row: Value) -> Bases:
        """Bases of a row."""
        found: dict[int, Value] = {}
        for k, base in bases.items():
            step = row * self.frame[f"i{k}"]
            counts = k < self.kernel.first and self.kernel.loads[k].source == "iota"
            found[k] = base + step if counts else self.b.gep(base, step)
        return found

    def _given(self, at: Bases, full: bool) -> dict[int, AnyValue]:
        """What a row has one element of, and, if asked for in `full`, a vector of each of those that it has many of."""
        b, lanes, found = self.b, self.lanes, dict[int, AnyValue]()
        for k, access in enumerate(self.kernel.loads):
            dtype = stored_dtype(access.dtype)
            if access.source == "scalar":
                continue
            if access.source == "iota":
                found[k] = b.splat(at[k], lanes)
            elif access.level != "full" or access.inner == "repeat":
                found[k] = splat(b, b.load(at[k], dtype, 1), lanes)
            elif not full:
                continue
            elif access.inner == "unit":
                found[k] = b.load(at[k], dtype, lanes)
            else:
                found[k] = reversed_lanes(b, b.load(b.gep(at[k], (lanes - 1) * -dtype.size), dtype, lanes))
        return found

    def _row(self, at: Bases, masked: bool) -> State:
        """The partial results of one row."""
        b, count, lanes = self.b, self.frame["count"], self.lanes
        given = self._given(at, full=False)

        def body(j: Value, mask: Value | None, state: State) -> State:
            scope = Scope(self.accesses, at, j, lanes, mask if masked else None, given)
            return self.reductions.take_vector(scope, j, mask, state)

        return vector_loop(b, b.i64(0), count, body, self.reductions.start(lanes), lanes, once=self.kernel.single)

    def _joined(self, bases: Bases, first: Value, vector: int) -> State:
        """The partial results of as many rows as have room in vector `vector` of those that are folded."""
        b, lanes, many = self.b, self.lanes, LANES // self.lanes
        parts = [
            self._given(self._at(bases, first + (vector * many + row)), not self.kernel.packed) for row in range(many)
        ]
        given = {k: _joined(b, [part[k] for part in parts]) for k in parts[0]}
        if self.kernel.packed:
            given |= self._packed(self._at(bases, first + vector * many))
        scope = Scope(self.accesses, bases, first, LANES, None, given)
        index = b.vector(dt.int64, [lane % lanes for lane in range(LANES)])
        mask = None if self.kernel.whole else index < b.splat(self.frame["count"])
        return self.reductions.take(scope, index, mask, self.reductions.start())

    def _packed(self, at: Bases) -> dict[int, AnyValue]:
        """A vector of elements of rows one after the other, at the lanes of these rows."""
        b, found, lanes, width = self.b, dict[int, AnyValue](), self.lanes, self.kernel.packed
        for k, access in enumerate(self.kernel.loads):
            if access.source != "memory" or access.level != "full" or access.inner == "repeat":
                continue
            dtype, turned = stored_dtype(access.dtype), access.inner == "reverse"
            x = b.load(b.gep(at[k], (width - 1) * -dtype.size) if turned else at[k], dtype, LANES)
            order = []
            for lane in range(LANES):
                row, element = divmod(lane, lanes)
                order.append(row * width + (width - 1 - element if turned else element) if element < width else -1)
            found[k] = x if order == list(range(LANES)) else _picked(b, x, x, order)
        return found

    def _folded(self, states: Sequence[State]) -> State:
        """The trees of sixteen rows as one."""
        for orders in _orders(self.lanes):
            states = [self._halved(x, y, orders) for x, y in zip(states[::2], states[1::2], strict=True)]
        return states[0]

    def _halved(self, x: State, y: State, orders: Sequence[Sequence[int]]) -> State:
        low, high = ([_picked(self.b, p, q, order) for p, q in zip(x, y, strict=True)] for order in orders)
        return self.reductions.merge(tuple(low), tuple(high))


_HALVES: Final = {
    16: ((0, 1, 4, 5), (2, 3, 6, 7)),
    8: ((0, 2, 4, 6), (1, 3, 5, 7)),
    4: ((0, 1, 4, 5), (2, 3, 6, 7)),
    2: ((0, 2, 4, 6), (1, 3, 5, 7)),
}
"""Where rows have so many lanes, the lower and the upper halves of all of them, in two vectors: quarters, or elements
of each quarter, of which those of the second vector are numbered from 4 on."""


def _orders(lanes: int) -> list[list[list[int]]]:
    """The elements of two vectors that are the lower and the upper halves, at each step of the tree."""
    found = []
    while lanes > 1:
        found.append([_order(lanes, chosen) for chosen in _HALVES[lanes]])
        lanes //= 2
    return found


def _order(lanes: int, chosen: Sequence[int]) -> list[int]:
    if lanes > 4:
        return [4 * quarter + element for quarter in chosen for element in range(4)]
    return [quarter + (i if i < 4 else LANES + i - 4) for quarter in range(0, LANES, 4) for i in chosen]


def _in_order(b: Builder, x: AnyValue, lanes: int) -> AnyValue:
    """The results in the order of the rows: where each row of vectors of so many lanes ends up."""
    rows = [[(vector * LANES + lane) // lanes for lane in range(LANES)] for vector in range(lanes)]
    for low, _ in _orders(lanes):
        rows = [[(*x, *y)[place] for place in low] for x, y in zip(rows[::2], rows[1::2], strict=True)]
    return _picked(b, x, x, [rows[0].index(row) for row in range(LANES)])


def _picked(b: Builder, x: AnyValue, y: AnyValue, order: Sequence[int]) -> AnyValue:
    if isinstance(x, Complex) and isinstance(y, Complex):
        return Complex(b.shuffle(x.re, y.re, order), b.shuffle(x.im, y.im, order))
    return b.shuffle(x, y, order)  # type: ignore[arg-type]


def _joined(b: Builder, parts: Sequence[AnyValue]) -> AnyValue:
    if isinstance(parts[0], Complex):
        re, im = (joined(b, [getattr(x, part) for x in parts]) for part in ("re", "im"))
        return Complex(re, im)
    return joined(b, parts)  # type: ignore[arg-type]
