"""Elementwise kernels whose last axes are short: points, colours, boxes, small matrices. Rows and columns are walked as
one long axis, as the results lie in memory, so that no vector is cut off at the end of a row.

Operands that lie in the same way are read as they are. The others (a bias, a factor for each row, a slice, a reversed
or transposed operand) are laid out like the results first, in scratch memory that stays in L1: those that are the same
in every row once, the others for some rows at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.scope import Accesses, Bases, Scope, State, assemble, reversed_lanes, splat, stored_dtype
from weft.codegen.transposes import rows_of
from weft.codegen.words import fields_of
from weft.config import config
from weft.dtypes import Dtype
from weft.graph.dims import pinned, provably_equal
from weft.lazy import lazy
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.passes.lower import Item, to_int
from weft.records import dataclass
from weft.targets.axes import Axis, product, stepping
from weft.targets.cpu.forms.base import Form, grain_of, streams
from weft.targets.cpu.forms.map import WIDE_COST, lanes_of, walk, wastes
from weft.targets.cpu.kernel import Frame
from weft.targets.nest import Nest

if TYPE_CHECKING:
    from weft.targets.cpu.matmul import machine
else:
    machine = lazy("weft.targets.cpu.matmul.machine")

FEW_COLUMNS, MOST_COLUMNS = 64, 256
"""The most elements of a row where operands are laid out again for each row, and where they are so once."""
MOST_LAID = 360
"""Bytes that are laid out for each row, of all operands, beside which masks at its end cost less (with AVX2, which has
masks for elements of four bytes and more)."""
MANY_ROWS = LANES
"""Where there are fewer rows than this, further axes are part of a row."""
FEWEST_ROWS = 4
"""Fewer rows than this are not worth it."""
TABLE = 512
"""Elements of an operand that are laid out at a time, more or less."""
WOVEN, MOST_WOVEN = 16, 3
"""The most bytes of a row that is put together with others in registers (longer ones cost less one by one), and the
most vectors that are read for one of those."""
FAR = 256
"""Bytes from one row to the next that are too many for that."""
MANY_GROUPS = 16
"""Groups of rows that are one unit of work, so that what is laid out once serves many."""
LETTERS = "cduv"
"""What the names of strides along the axes of a row begin with."""


@dataclass(frozen=True, slots=True)
class Flat(Form):
    """`n` rows, `width` of them in a unit, `group` of them at a time, of `across` elements each. A row has so many axes
    (`columns`); the last one has `last` elements, which are moved in vectors of so many `lanes`. `staging` says of each
    load how it is laid out: "" (it is read as it is), else when ("once" or "often") and how its rows are stepped
    through along the last axis ("unit", "repeat", "reverse", "stride", or "turn": jumping, where neighbouring rows are
    neighbours in memory), and "beside" if all rows but those at an end may be read past their own ends; or "woven" if
    16 rows are put together in registers, with the numbers of their `Weave`."""

    title = "flat"
    columns: int = 1
    lanes: int = LANES
    staging: tuple[str, ...] = ()
    stream: bool = False

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        loads = [Walk(load.source, load.unit) for load in nest.loads]
        stores = [Walk("memory", store.unit) for store in nest.stores]
        plan = plan_of(nest.outer, loads, stores, nest.cost())
        if plan is None:
            return None
        stream = plan.aligned and streams(nest, plan.outer, plan.whole)
        kernel = cls.of(
            nest,
            plan.outer,
            plan.whole,
            columns=len(plan.others),
            lanes=plan.lanes,
            staging=plan.staging,
            stream=stream,
        )
        grain, scratch = grain_of(plan.unit, nest.cost()), kernel.scratch(plan.together)
        launch = kernel.launch(nest, plan.outer, plan.rows, {**plan.numbers}, grain, scratch, **plan.others)
        return nest.item([launch], kernel.overwritten())

    def notes(self) -> list[str]:
        how = ", ".join(f"{k}: {staging}" for k, staging in enumerate(self.staging) if staging)
        return [f"  rows of {self.columns} axes by {self.lanes}, laid out {how}"]

    def flags(self) -> list[str]:
        return ["stream"] if self.stream else []

    def fields(self) -> list[str]:
        sizes = [f"x{letter}" for letter in LETTERS[: self.columns - 1]]
        names = fields_of(self.outer, 0, "group", "across", "last", *sizes, blocked=True)
        for k, access in enumerate(self.accesses()):
            names.append(f"p{k}" if access.source == "iota" else f"*p{k}")
            if access.source != "scalar":
                names += [f"s{k}.{axis}" for axis in range(self.outer)]
                names += [f"i{k}", *(f"{letter}{k}" for letter in LETTERS[: self.columns])]
        return names

    def scratch(self, elements: int) -> int:
        """Bytes of per-thread memory where so many elements are laid out at a time: those, and a vector behind them
        that is written past the end."""
        sizes = [load.dtype.size for load, staging in zip(self.loads, self.staging, strict=True) if staging]
        return to_int((elements + LANES) * sum(sizes))

    def overwritten(self) -> range:
        return range(len(self.stores))

    def emit(self, frame: Frame) -> None:
        b, rows = frame.b, Rows(self, frame)
        lanes = lanes_of(self, self.stream)
        group = frame["group"]
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, True)
            bases = rows.accesses.bases(frame.indices(place))
            rows.lay_out("once", bases, b.i64(0), frame.least(stop - start, group))
            with b.loop(start, stop, group) as some:
                count = frame.least(stop - some.index, group)
                here = rows.moved(bases, some.index)
                rows.lay_out("often", here, some.index, count)

                def body(j: Value, mask: Value | None, state: State, width: int, here: Bases = here) -> State:
                    given = rows.given(here, j, width, mask)
                    Scope(rows.accesses, here, j, width, mask, given).store_all(self.stream)
                    return state

                walk(b, b.i64(0), count * frame["across"], body, lanes, self)


@dataclass(frozen=True, slots=True)
class Weave:
    """16 rows of `width` elements that are put together in registers, where `pitch` elements of memory lie between rows
    and `step` between those of a row."""

    width: int
    pitch: int
    step: int

    def places(self, start: int, lanes: int) -> list[int]:
        """Where the elements from number `start` on lie."""
        elements = range(start, start + lanes)
        return [e // self.width * self.pitch + e % self.width * self.step for e in elements]

    def lanes(self, size: int) -> int:
        """Lanes of the vectors in which elements of so many bytes are read and written: at most a register, or half a
        cache line, because they begin anywhere."""
        every = self.places(0, LANES * self.width)
        most = min(max(every) + 1 - min(every), max(4, min(machine.machine(config.cpu).vector, 32) // size))
        return min(1 << most.bit_length() - 1, LANES * (self.width & -self.width))

    def vector(self, start: int, lanes: int) -> tuple[list[int], list[int]]:
        """Where the elements of a vector lie, and where those begin that they are read in: of these none reaches behind
        the last element of the 16 rows, or in front of the first."""
        every, places = self.places(0, LANES * self.width), self.places(start, lanes)
        last = max(every) + 1 - lanes
        return places, [min(at, last) for at in range(min(min(places), last), max(places) + 1, lanes)]

    def is_worth_it(self, size: int) -> bool:
        """Whether few vectors are read for each one that is written."""
        lanes = self.lanes(size)
        starts = range(0, LANES * self.width, lanes)
        return all(len(self.vector(start, lanes)[1]) <= MOST_WOVEN for start in starts)

    def __str__(self) -> str:
        return f"woven {self.width} {self.pitch} {self.step}"


class Rows:
    """Writes what lays out operands."""

    def __init__(self, kernel: Flat, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.accesses = Accesses(frame, kernel)
        self.tables: dict[int, Value] = {}
        at: Value = frame.scratch
        for k, staging in enumerate(kernel.staging):
            if staging:
                self.tables[k] = at
                size = kernel.loads[k].dtype.size
                at = self.b.gep(at, (frame["group"] * frame["across"] + LANES) * size)

    def moved(self, bases: Bases, row: Value) -> Bases:
        """Bases so many rows on."""
        result: dict[int, Value] = {}
        for k, base in bases.items():
            step = row * self.frame[f"i{k}"]
            result[k] = base + step if self._counts(k) else self.b.gep(base, step)
        return result

    def given(self, bases: Bases, j: Value, lanes: int, mask: Value | None) -> dict[int, AnyValue]:
        """The loads that do not come from memory as they are, at place `j` of the rows from here on."""
        b, found = self.b, {}
        for k, access in enumerate(self.kernel.loads):
            if k in self.tables:
                found[k] = b.load(self._place(k, j), stored_dtype(access.dtype), lanes, mask)
            elif access.source == "iota":
                found[k] = self._numbers(k, bases[k] + j * self._step(k), lanes)
        return found

    def lay_out(self, when: str, bases: Bases, first: Value, count: Value) -> None:
        """`count` rows, from number `first` on, of all operands whose time it is."""
        for k, staging in enumerate(self.kernel.staging):
            if not staging.startswith(when):
                continue
            few = count if when == "often" else self.frame.least(count, self.b.i64(LANES))
            self._lay_out(k, staging.split()[1:], bases[k], first, few)
            if when == "once":
                self._repeat(k, count)

    def _repeat(self, k: int, count: Value) -> None:
        """The first 16 rows of a table again and again, until there are `count`."""
        b, run = self.b, self.frame["across"] * LANES
        with b.loop(run, count * self.frame["across"], LANES) as place:
            b.store(b.load(self._place(k, place.index - run), self._dtype(k), LANES), self._place(k, place.index))

    # ---- one operand ----

    def _counts(self, k: int) -> bool:
        return k < self.kernel.first and self.kernel.loads[k].source == "iota"

    def _step(self, k: int) -> Value:
        """The stride along the last axis."""
        return self.frame[f"{LETTERS[self.kernel.columns - 1]}{k}"]

    def _dtype(self, k: int) -> Dtype:
        return stored_dtype(self.kernel.loads[k].dtype)

    def _place(self, k: int, j: Value) -> Value:
        return self.b.gep(self.tables[k], j * self._dtype(k).size)

    def _numbers(self, k: int, first: Value, lanes: int) -> AnyValue:
        b, step = self.b, self._step(k)
        return b.splat(first, lanes) + b.splat(step, lanes) * b.iota(first.dtype, lanes)

    def _lay_out(self, k: int, how: Sequence[str], base: Value, first: Value, count: Value) -> None:
        b, across = self.b, self.frame["across"]

        def rows(start: Value | int, stop: Value | int, how: str) -> None:
            with b.loop(start, stop, 1) as row:
                step = row.index * self.frame[f"i{k}"]
                at = base + step if self._counts(k) else b.gep(base, step)
                self._pieces(k, at, row.index * across, partial(self._piece, how=how))

        if how[0] == "woven":
            weave = Weave(*map(int, how[1:]))
            together = count & -LANES
            with b.loop(0, together, LANES) as some:
                at = b.gep(base, some.index * self.frame[f"i{k}"])
                self._weave(k, at, some.index * across, weave)
            rows(together, count, "stride")
        elif how[0] == "turn":
            together = count & -LANES
            with b.loop(0, together, LANES) as some:
                at = b.gep(base, some.index * self._dtype(k).size)
                self._turn(k, at, some.index * across)
            rows(together, count, "stride")
        elif how[1:] == ["beside"]:
            # What is written past the end of a row is written again with the next one, so they keep their order.
            begin = b.choose(first.eq(0), b.i64(1), 0)
            end = b.choose((first + count).eq(self.frame["n"]), count - 1, count)
            rows(0, begin, how[0])
            rows(begin, end, f"whole {how[0]}")
            rows(end, count, how[0])
        else:
            rows(0, count, how[0])

    def _pieces(self, k: int, start: Value, j: Value, move: Callable[..., None], axis: int = 0) -> None:
        """Each run along the last axis of a row that begins at `start`, to place `j` of the table and behind it."""
        if axis == self.kernel.columns - 1:
            move(k, start, j)
            return
        b, letter = self.b, LETTERS[axis]
        each = self.frame["last"]
        for later in LETTERS[axis + 1 : self.kernel.columns - 1]:
            each = each * self.frame[f"x{later}"]
        with b.loop(0, self.frame[f"x{letter}"], 1) as loop:
            step = loop.index * self.frame[f"{letter}{k}"]
            at = start + step if self._counts(k) else b.gep(start, step)
            self._pieces(k, at, j + loop.index * each, move, axis + 1)

    def _piece(self, k: int, start: Value, j: Value, how: str) -> None:
        """One run to place `j` of the table. What is written past its end is written again with the next one."""
        b, lanes, last = self.b, self.kernel.lanes, self.frame["last"]
        if lanes < LANES:  # the run is no longer than a vector
            b.store(self._read(k, how, start, b.i64(0)), self._place(k, j))
            return
        with b.loop(0, last, lanes) as some:
            b.store(self._read(k, how, start, some.index), self._place(k, j + some.index))

    def _read(self, k: int, how: str, start: Value, first: Value) -> AnyValue:
        """A vector of a run from its element `first` on; behind its end, any elements."""
        b, lanes, dtype, last = self.b, self.kernel.lanes, self._dtype(k), self.frame["last"]
        if self._counts(k):
            return self._numbers(k, start + self._step(k) * first, lanes)
        if how == "repeat":
            return splat(b, b.load(start, dtype, 1), lanes)
        if how == "whole unit":
            return b.load(b.gep(start, first * dtype.size), dtype, lanes)
        if how == "whole reverse":
            return reversed_lanes(b, b.load(b.gep(start, (first + (lanes - 1)) * -dtype.size), dtype, lanes))
        if how in ("unit", "reverse") and dtype.size >= 4:  # AVX2 has no masks for smaller ones
            mask = b.iota(dt.int32, lanes) < b.splat(b.cast(last - first, dt.int32), lanes)
            if how == "unit":
                return b.load(b.gep(start, first * dtype.size), dtype, lanes, mask)
            far = b.gep(start, (first + (lanes - 1)) * -dtype.size)
            return reversed_lanes(b, b.load(far, dtype, lanes, b.reverse(mask)))
        places = [self.frame.least(first + lane, last - 1) for lane in range(lanes)]
        return assemble(b, [b.load(b.gep(start, self._step(k) * place), dtype, 1) for place in places])

    def _weave(self, k: int, start: Value, j: Value, weave: Weave) -> None:
        """16 rows at once, in whole vectors of the results; each is put together from those of memory that it is in."""
        b, dtype = self.b, self._dtype(k)
        lanes = weave.lanes(dtype.size)
        for place in range(0, LANES * weave.width, lanes):
            places, loads = weave.vector(place, lanes)
            read = [b.load(b.gep(start, at * dtype.size), dtype, lanes) for at in loads]
            b.store(picked(b, read, loads, places), self._place(k, j + place))

    def _turn(self, k: int, start: Value, j: Value) -> None:
        """Runs of at most 16 elements of 16 rows that are neighbours in memory: read along the rows, interleaved."""
        b, dtype, across, end = self.b, self._dtype(k), self.frame["across"], self.frame["last"] - 1
        columns = [self.frame.least(b.i64(lane), end) for lane in range(self.kernel.lanes)]
        read = [b.load(b.gep(start, self._step(k) * column), dtype, LANES) for column in columns]
        for row, x in enumerate(rows_of(b, read)):
            b.store(x, self._place(k, j + across * row))


def picked(b: Builder, read: Sequence[AnyValue], loads: Sequence[int], places: Sequence[int]) -> AnyValue:
    """The elements of memory at these places, of vectors that were read from places `loads` on."""
    if isinstance(read[0], Complex):
        re = picked(b, [x.re for x in read if isinstance(x, Complex)], loads, places)
        im = picked(b, [x.im for x in read if isinstance(x, Complex)], loads, places)
        return Complex(re, im)  # type: ignore[arg-type]
    lanes = len(places)
    source = [next(n for n, at in enumerate(loads) if at <= place < at + lanes) for place in places]
    made = read[0]
    for number in range(1, max(2, len(read))):
        order = [
            -1 if n > number else lanes + place - loads[n] if n == number else lane if number > 1 else place - loads[0]
            for lane, (place, n) in enumerate(zip(places, source, strict=True))
        ]
        made = b.shuffle(made, read[number] if number < len(read) else None, order)  # type: ignore[arg-type]
    return made


# ---- which loops ----


@dataclass(frozen=True, slots=True)
class Walk:
    """Where the elements of an operand come from, and what lies between neighbours."""

    source: str
    unit: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Loops over rows of a few elements: outer axes, rows, and the axes of a row by the letters of their strides."""

    outer: list[Axis]
    rows: Axis
    others: dict[str, Axis]
    lanes: int
    staging: tuple[str, ...]
    numbers: dict[str, int]
    aligned: bool
    """Whether results begin at whole cache lines in every group of rows."""

    @property
    def whole(self) -> Axis:
        """Rows and columns as one axis."""
        last = self.others[LETTERS[len(self.others) - 1]]
        return Axis(self.rows.size * self.numbers["across"], last.strides)

    @property
    def together(self) -> int:
        """Elements that are laid out at a time."""
        return self.numbers["group"] * self.numbers["across"]

    @property
    def unit(self) -> int:
        """Elements of a unit of work."""
        return self.numbers["width"] * self.numbers["across"]


def plan_of(axes: Sequence[Axis], loads: Sequence[Walk], stores: Sequence[Walk], cost: int = 0) -> Plan | None:
    """How these loops are walked with rows laid out, or None if that does not pay."""
    # What does not depend on sizes comes first: an answer about a size is one about all sizes on its side.
    if len(axes) < 2 or not all(is_flat(axes[-2:], k, store) for k, store in enumerate(stores, len(loads))):
        return None
    split = _split(axes)
    if split is None:
        return None
    *outer, rows = axes[:-split]
    columns = axes[-split:]
    inner = [rows, *columns]
    if not all(is_flat(inner, k, store) for k, store in enumerate(stores, len(loads))):
        return None
    staging = staging_of(inner, loads)
    if not any(staging) or not pays(staging, columns, cost) or _is_much(staging, columns, loads, stores):
        return None
    width, last = product(columns), columns[-1].size
    lanes, staging = pieces_of(inner, loads, staging)
    group = LANES if width > LANES else TABLE // lanes
    unit = MANY_GROUPS * group
    chunks = -(-rows.size // unit)
    numbers = {"units": product(outer) * chunks, "width": unit, "chunks": chunks, "group": group}
    numbers |= {"across": width, "last": last}
    others = dict(zip(LETTERS, columns, strict=False))
    numbers |= {f"x{letter}": axis.size for letter, axis in others.items()}
    aligned = all(group * store.unit % 64 == 0 for store in stores)
    return Plan(list(outer), rows, others, lanes, staging, numbers, aligned)


def _split(axes: Sequence[Axis]) -> int | None:
    """How many of the last axes are a row: as few as leave many rows, if any do."""
    width = 1
    if len(axes) == 2 and not axes[0].size >= FEWEST_ROWS:
        return None
    for count, axis in enumerate(reversed(axes), 1):
        if count == len(axes) or count > len(LETTERS):
            return None
        width *= axis.size
        if not 0 < width <= MOST_COLUMNS:
            return None
        if axes[-count - 1].size >= (FEWEST_ROWS if count == len(axes) - 1 else MANY_ROWS):
            return count
    return None


def staging_of(axes: Sequence[Axis], loads: Sequence[Walk]) -> tuple[str, ...]:
    """When each operand is laid out and how, of rows (the first of these axes) and what is in them."""
    return tuple([_staged(axes, k, load) for k, load in enumerate(loads)])


def pieces_of(axes: Sequence[Axis], loads: Sequence[Walk], staging: Sequence[str]) -> tuple[int, tuple[str, ...]]:
    """The lanes of the vectors in which runs of rows are moved, which of them may be read whole, and which are put
    together from several rows at once. The axes are rows and what is in them."""
    rows, last = axes[0], axes[-1].size
    lanes = LANES if last > 8 else 8 if last > 4 else 4
    past = [-last % lanes * load.unit for load in loads]
    found = []
    for k, (how, load) in enumerate(zip(staging, loads, strict=True)):
        weave = _woven(axes, k, load) if how.startswith("often") and not how.endswith("turn") else None
        found.append(f"often {weave}" if weave else _beside(how, rows.strides[k], past[k]))
    return lanes, tuple(found)


def _woven(axes: Sequence[Axis], k: int, load: Walk) -> Weave | None:
    """How rows of a few elements are put together, if that pays: their number and all strides are part of the code."""
    rows, columns = axes[0], axes[-1]
    if len(axes) != 2 or load.source != "memory":
        return None
    width = pinned(columns.size, WOVEN // load.unit)
    pitch, step = (None if width is None else pinned(axis.strides[k], FAR) for axis in (rows, columns))
    if width is None or pitch is None or step is None or pitch % load.unit or step % load.unit:
        return None
    weave = Weave(width, pitch // load.unit, step // load.unit)
    return weave if weave.is_worth_it(load.unit) else None


def _is_much(staging: Sequence[str], columns: Sequence[Axis], loads: Sequence[Walk], stores: Sequence[Walk]) -> bool:
    """Whether so many operands are laid out anew for each row that vectors which end with the rows cost less."""
    units = [load.unit for how, load in zip(staging, loads, strict=True) if how.startswith("often")]
    if not units or machine.machine(config.cpu).vector != 32 or not columns[-1].size > LANES:
        return False
    masked = all(walk.unit >= 4 for walk in (*loads, *stores) if walk.source == "memory")
    return masked and columns[-1].size * sum(units) > MOST_LAID


def is_flat(axes: Sequence[Axis], k: int, operand: Walk) -> bool:
    """Whether an operand is walked as one axis."""
    runs = all(provably_equal(x.strides[k], y.strides[k] * y.size) for x, y in itertools.pairwise(axes))
    return runs and (operand.source == "iota" or axes[-1].strides[k] == operand.unit)


def _staged(axes: Sequence[Axis], k: int, load: Walk) -> str:
    rows, last = axes[0].strides[k], axes[-1].strides[k]
    if load.source == "scalar" or not any(axis.strides[k] for axis in axes) or is_flat(axes, k, load):
        return ""
    when, how = "once" if rows == 0 else "often", stepping(last, load.unit)
    # Of several runs in a row, the end of the last would be written over the next row, which is there already.
    if load.source == "memory" and rows == load.unit and how == "stride" and len(axes) == 2:
        how = "turn"
    return f"{when} {how}"


def _beside(how: str, row: int, past: int) -> str:
    """How rows are laid out that are so many bytes apart, where whole vectors of them reach so many bytes `past` their
    ends: into the row beside them, if that is as far away."""
    return f"{how} beside" if how in ("often unit", "often reverse") and abs(row) >= past else how


def pays(staging: Sequence[str], columns: Sequence[Axis], cost: int = 0) -> bool:
    """Whether laying out costs less than vectors that end with the rows. Each run of a row is moved by itself."""
    width, last = product(columns), columns[-1].size
    if all(how.startswith("once") for how in staging if how):
        return width <= MOST_COLUMNS
    turns = any("turn" in how for how in staging)
    if width > FEW_COLUMNS or last < LANES or (last == LANES and (turns or not _are_vectors(staging, cost))):
        return width <= FEW_COLUMNS
    return wastes(last, cost) and not turns


def _are_vectors(staging: Sequence[str], cost: int) -> bool:
    """Whether rows of 16 elements are better read as they are: not where vectors are twice as long, nor for a factor of
    each row alone where a row is several registers."""
    factors = all(how.endswith("repeat") for how in staging if how)
    return cost < WIDE_COST and not (factors and machine.machine(config.cpu).vector < 64)
