"""Rows of a few elements, sixteen at a time: lanes go across rows, where a row kernel would leave most of them idle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from weft import dtypes as dt
from weft.codegen.kernel import LANES, Access
from weft.codegen.phases import Phases
from weft.codegen.scope import Accesses, Bases, KeptScope, Scope, flatten, stored_dtype, unflatten
from weft.codegen.transposes import columns_of, rows_of
from weft.config import config
from weft.lazy import lazy
from weft.llvm.builder import AnyValue, Value
from weft.llvm.engine import Source
from weft.passes.lower import Item
from weft.records import dataclass
from weft.targets.axes import Axis, product
from weft.targets.cpu.forms.base import Form, grain_of
from weft.targets.cpu.kernel import Frame
from weft.targets.cpu.reductions import Slots, VectorReductions
from weft.targets.cpu.turns import from_square, to_square
from weft.targets.nest import Nest

if TYPE_CHECKING:
    from weft.targets.cpu.matmul import machine
else:
    machine = lazy("weft.targets.cpu.matmul.machine")

SHORT, LONGEST = LANES, 4 * LANES
"""Rows of up to so many elements have a partial result for each; the most elements of a row that is not walked in
another form."""
TURNED_COST = 3
"""Instructions for each element of a longer row that are worth to turn it, and once more to turn it back."""
MANY_ROWS, GROUP = 64, 256
"""So many neighbouring rows are worth lanes across rows; so many of them are one task."""


@dataclass(frozen=True, slots=True)
class Short(Form):
    """Passes over the elements of rows like those of a row kernel, but each vector holds one element of each of 16
    neighbouring rows, so what is a scalar of a row there is a vector here. An element of a row of at most 16 is a
    partial result of its own in the specified order (`Slots`); of those that are `longer` every sixteenth joins the
    same one.

    The inner loop goes over `n` rows, `width` of them in a unit; `rows` is the length of each.

    Operands and results whose rows lie one after the other are read and written row by row, in vectors of so many
    `lanes`, and transposed in registers: the elements of 16 rows lie in scratch in between (squares). `tiles` are the
    results for which that is done; loads say so themselves. Of longer rows that is done in blocks of columns, of which
    the last one begins earlier, over the end of the one before it."""

    title = "short"
    further = "r"
    lanes: int = LANES
    tiles: tuple[int, ...] = ()
    longer: bool = False

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        if not nest.outer or not _fits(nest.reduced[0].size if nest.reduced else 1, nest.outer[-1].size):
            return None
        *outer, inner = nest.outer
        row = nest.reduced[0] if nest.reduced else nest.single()
        longer = row.size > SHORT
        lanes = _lanes(nest) if longer else LANES if row.size > 8 else 8 if row.size > 4 else 4
        if longer and not _lies_well(nest, inner, row):
            return None
        turns = _turns(nest, inner, row, lanes) and not _are_picked(nest, inner, row, lanes)
        tiles = _tiles(nest, inner, row) if turns or longer else ()
        kernel = cls.of(
            nest,
            outer,
            inner,
            row if turns else None,
            lanes=lanes if turns or tiles else LANES,
            tiles=tiles,
            longer=longer,
        )
        if not kernel.is_neutral or (longer and not kernel.is_worth_turning(row.size)):
            return None
        chunks = -(-inner.size // GROUP)
        numbers = {"units": product(outer) * chunks, "rows": row.size, "width": GROUP, "chunks": chunks}
        grain = grain_of(row.size * GROUP, nest.cost())
        launch = kernel.launch(nest, outer, inner, {**numbers}, grain, kernel.scratch(), r=row)
        return nest.item([launch], kernel.overwritten())

    def notes(self) -> list[str]:
        return [f"  rows by {self.lanes}, turned {' '.join(map(str, self.squares()))}"] if self.squares() else []

    def flags(self) -> list[str]:
        return ["longer"] if self.longer else []

    def sizes(self) -> list[str]:
        return ["rows", "width", "chunks"]

    def is_worth_turning(self, n: int) -> bool:
        """Whether turning longer rows, of n elements, costs less than the parts of vectors at their ends and the trees
        over 16 lanes that it saves. What is reduced in any order stays in registers, which always pays."""
        if self.are_exact(self.reductions()):
            return True
        cost = sum(1 if step.reduces else step.op.cost for step in self.steps if step.level == "full" or step.reduces)
        if cost < TURNED_COST:
            return False
        if not n >= 2 * LANES:
            return True
        sizes = [access.dtype.size for access in self.accesses() if access.level == "full"]
        stored = any(store.access.level == "full" for store in self.stores)
        return max(sizes, default=4) <= 4 and cost >= (2 if stored else 1) * TURNED_COST

    @property
    def longest(self) -> int:
        """The most elements of a row."""
        return LONGEST if self.longer else SHORT

    def squares(self) -> list[int]:
        """The accesses that are transposed on their way."""
        return [*(k for k, load in enumerate(self.loads) if load.inner == "tile"), *self.tiles]

    def scratch(self) -> int:
        """Bytes of per-thread memory: partial results, the values that are kept for later passes, and squares."""
        sizes = [self.dtype(v).size for v in Phases(self).kept]
        sizes += [self.accesses()[k].dtype.size for k in self.squares()]
        return Slots.size(self) + self.longest * LANES * sum(sizes)

    def overwritten(self) -> list[int]:
        """As in a row kernel."""
        return Phases(self).written_last()

    def calls(self) -> tuple[Source, ...]:
        """Longer rows are turned by functions."""
        if not self.longer:
            return ()
        read = [load.dtype for load in self.loads if load.inner == "tile"]
        written = [self.accesses()[k].dtype for k in self.tiles]
        found = [to_square(dtype, self.lanes, some) for dtype in read for some in (False, True)]
        found += [from_square(dtype, self.lanes, some) for dtype in written for some in (False, True)]
        return tuple(dict.fromkeys(found))

    def as_written(self) -> bool:
        """Those that turn rows once and add them up go by strides."""
        return Phases(self).count > 1

    def emit(self, frame: Frame) -> None:
        b = frame.b
        rows = _Rows(self, frame)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, True)
            bases = rows.accesses.bases(frame.indices(place))

            # Rows that another one follows may be read past their ends; longer ones are not.
            before = frame.least(stop, frame["n"] - 1) if self.squares() and not self.longer else stop
            whole = start + ((before - start) & -LANES)
            with b.loop(start, whole, LANES) as loop:
                rows.emit(bases, loop.index, None)
            with b.loop(whole, stop, LANES) as rest:
                left = b.cast(stop - rest.index, dt.int32)
                rows.count = stop - rest.index
                rows.emit(bases, rest.index, b.iota(dt.int32) < b.splat(left))


def _lanes(nest: Nest) -> int:
    """Columns of the blocks in which longer rows are turned: a vector register of each row."""
    sizes = [operand.dtype.size for operand in nest.operands if operand.level == "full"]
    return max(4, min(LANES, machine.machine(config.cpu).vector // max(sizes, default=4)))


def _lies_well(nest: Nest, inner: Axis, row: Axis) -> bool:
    """Whether everything of longer rows is read and written in whole vectors: elements of 16 rows that are neighbours,
    or of a row, and then turned."""
    first = len(nest.loads)
    return all(
        row.strides[k] == operand.unit or inner.strides[k] == operand.unit or (k < first and inner.strides[k] == 0)
        for k, operand in enumerate(nest.operands)
        if operand.source == "memory" and operand.level == "full"
    )


def _turns(nest: Nest, inner: Axis, row: Axis, lanes: int) -> bool:
    """Whether vectors of so many lanes may be read from all rows but the last of operands whose elements lie one after
    the other, if there are any: what lies behind such a row is the next one."""
    found = False
    for k, load in enumerate(nest.loads):
        if load.source == "memory" and load.level == "full" and row.strides[k] == load.unit:
            if inner.strides[k] == 0 or inner.strides[k] == load.unit:
                continue
            if not inner.strides[k] >= (lanes - row.size) * load.unit:
                return False
            found = True
    return found


def _are_picked(nest: Nest, inner: Axis, row: Axis, lanes: int) -> bool:
    """Whether it costs less to pick the elements of 16 rows than to turn the rows: every second one of rows of two
    comes from two vectors, and vectors of eight bytes hold few, some of them for nothing. Where results are stored row
    by row, or rows are read more than once, they are turned."""
    if any(store.level == "full" for store in nest.stores):
        return False
    loads = [(k, load) for k, load in enumerate(nest.loads) if load.source == "memory" and load.level == "full"]
    if lanes == 4 and row.size == 2:
        return all(inner.strides[k] == 2 * load.unit for k, load in loads)
    if any(load.dtype.size != 8 or load.dtype.is_complex for _, load in loads):
        return False
    kernel = Short.of(nest, nest.outer[:-1], inner)
    pays = kernel.are_exact(kernel.reductions()) if lanes > 8 else 4 * row.size <= 3 * lanes
    return pays and row.size <= SHORT and Phases(kernel).count == 1


def _tiles(nest: Nest, inner: Axis, row: Axis) -> tuple[int, ...]:
    """The results whose rows lie one after the other, with nothing between them where they are written past their
    ends."""
    if not row.size > 1:
        return ()
    stores = enumerate(nest.stores, len(nest.loads))
    whole = [(k, store) for k, store in stores if store.level == "full" and row.strides[k] == store.unit]
    return tuple([k for k, store in whole if inner.strides[k] == row.size * store.unit])


def _fits(n: int, rows: int) -> bool:
    """Whether rows of n elements are so short and so many that lanes go across them. A number is asked before a
    symbol."""
    if type(n) is int:
        return 0 < n <= LONGEST and rows >= MANY_ROWS
    return rows >= MANY_ROWS and 0 < n <= LONGEST


class _Rows:
    """Writes the passes over 16 rows."""

    def __init__(self, kernel: Short, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.phases, self.accesses = Phases(kernel), Accesses(frame, kernel)
        self.count: Value | None = None
        """How many rows there are, if they may be fewer than 16."""
        self._homes: dict[int, int] = {}
        at = Slots.size(kernel)
        for number in self.phases.kept:
            self._homes[number] = at
            at += kernel.longest * LANES * kernel.dtype(number).size
        self._squares: dict[int, int] = {}
        for k in kernel.squares():
            self._squares[k] = at
            at += kernel.longest * LANES * kernel.accesses()[k].dtype.size

    def turns(self, mask: Value | None) -> bool:
        """Whether rows are transposed, all of them or those of a mask: fewer than 16 only if none is read past its
        end."""
        return mask is None or self.kernel.longer

    def square(self, k: int, row: Value | int) -> Value:
        """Where element `row` of the 16 rows of a transposed access lies."""
        step = row * (LANES * self.kernel.accesses()[k].dtype.size)
        return self.b.gep(self.b.gep(self.frame.scratch, self._squares[k]), step)

    def home(self, number: int, row: Value) -> Value:
        """Where a kept value of element `row` of the 16 rows lies."""
        size = self.kernel.dtype(number).size
        return self.b.gep(self.b.gep(self.frame.scratch, self._homes[number]), row * (LANES * size))

    def emit(self, bases: Bases, j: Value, mask: Value | None) -> None:
        phases = self.phases
        scalars = Scope(self.accesses, bases, j, LANES, mask)
        if self.turns(mask):
            self._read(bases, j)
        for phase in range(phases.count):
            given = {v: scalars.shared(v) for v in phases.scalars(phase)}
            self._pass(phase, bases, j, mask, given, scalars)
        scalars.store_level("reduced")

    def _read(self, bases: Bases, j: Value) -> None:
        """Transposed operands of 16 rows from `j` on, to their squares."""
        b, lanes = self.b, self.kernel.lanes
        for k, access in enumerate(self.kernel.loads):
            if access.inner != "tile":
                continue
            dtype, step = stored_dtype(access.dtype), self.frame[f"i{k}"]
            corner = b.gep(bases[k], j * step)
            if self.kernel.longer:
                self._turn(to_square(access.dtype, lanes, self.count is not None), corner, step, k)
                continue
            rows = [b.load(b.gep(corner, step * i), dtype, lanes) for i in range(LANES)]
            for i, x in enumerate(columns_of(b, rows)):
                b.store(x, self.square(k, i))

    def _turn(self, way: Source, corner: Value, step: Value, k: int) -> None:
        """Longer rows to the square of an access, or from there."""
        b, count = self.b, self.b.i64(LANES) if self.count is None else self.count
        b.call_void(way.name, corner, step, count, self.frame["rows"], self.square(k, 0))

    def _write(self, k: int, base: Value, j: Value) -> None:
        """16 rows of a transposed result from `j` on. What is written past the end of a row is written again with the
        next one; there is nothing behind the last one that may be written."""
        b, lanes, access = self.b, self.kernel.lanes, self.kernel.accesses()[k]
        dtype, step = stored_dtype(access.dtype), self.frame[f"i{k}"]
        start = b.gep(base, j * step)
        if self.kernel.longer:
            self._turn(from_square(access.dtype, lanes, self.count is not None), start, step, k)
            return
        rows = rows_of(b, [b.load(self.square(k, i), dtype) for i in range(lanes)])
        for i, x in enumerate(rows[:-1]):
            b.store(x, b.gep(start, step * i))
        last = b.gep(start, step * (LANES - 1))
        with b.loop(0, self.frame["rows"], 1) as element:
            x = b.load(b.gep(self.square(k, element.index), (LANES - 1) * dtype.size), dtype, 1)
            b.store(x, b.gep(last, element.index * dtype.size))

    def _pass(
        self, phase: int, bases: Bases, j: Value, mask: Value | None, given: Mapping[int, AnyValue], scalars: Scope
    ) -> None:
        """One pass over the elements: what it reduces ends up among the scalars of the rows."""
        b, kernel, phases, rows = self.b, self.kernel, self.phases, self.frame["rows"]
        reductions = VectorReductions(b, kernel, phases.reductions(phase))
        slots = Slots(self.frame.scratch, reductions)
        # Where the order makes no difference, what is reduced stays in registers.
        start = reductions.start() if kernel.are_exact(reductions.numbers) else ()
        joins = kernel.longer and not start
        if joins:
            for number in range(LANES):
                slots.write(b.i64(number), reductions.start())
        stores = phases.stores(phase)
        turned = [i for i in stores if self.turns(mask) and kernel.first + i in kernel.tiles]
        with b.loops_as_written(False), b.loop(0, rows, 1, *flatten(start)) as row:
            at = self.accesses.moved(bases, row.index)
            scope = _ElementScope(self.accesses, at, j, LANES, mask, given, rows=self, phase=phase, row=row.index)
            reductions.read(scope)
            for v in phases.kept:
                if phases.made[v] == phase:
                    b.store(scope.stored(v), self.home(v, row.index))
            scope.store_some([i for i in stores if i not in turned])
            for i in turned:
                b.store(scope.spread(scope.stored(kernel.stores[i].value)), self.square(kernel.first + i, row.index))
            slot = row.index & (LANES - 1)
            before = slots.read(slot) if joins else unflatten(start, row.carried) if start else reductions.start()
            after = reductions.take(scope, b.splat(row.index), None, before)
            if start:
                row.carry(*flatten(after))
            else:
                slots.write(slot, after)
        for i in turned:
            self._write(kernel.first + i, bases[kernel.first + i], j)
        if reductions:
            count = b.i64(LANES) if joins else rows
            scalars.values.update(reductions.finish(unflatten(start, row.carried) if start else slots.merged(count)))


class _ElementScope(KeptScope):
    """A scope at one element of the rows: kept values of earlier passes are read back, not computed again, and
    transposed operands come from their squares."""

    def __init__(self, *args: Any, rows: _Rows, phase: int, row: Value) -> None:
        super().__init__(*args)
        self.rows, self.phase, self.row = rows, phase, row

    def load(self, k: int, access: Access) -> AnyValue:
        if access.inner == "tile" and self.rows.turns(self.mask):
            return self.b.load(self.rows.square(k, self.row), stored_dtype(access.dtype))
        return super().load(k, access)

    def read_back(self, number: int) -> AnyValue | None:
        phases = self.rows.phases
        if number not in phases.kept or phases.made[number] >= self.phase:
            return None
        return self.b.load(self.rows.home(number, self.row), stored_dtype(self.kernel.dtype(number)))
