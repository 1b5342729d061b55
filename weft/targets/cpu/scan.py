"""Kernels of scans along an axis: running sums and the like, in the order that docs/numerics.md specifies.

The primitives of scans come here with the layouts of their operands; strides in argument blocks are in bytes. Lanes of
a vector are different rows, never steps of one row, so the order of a row does not depend on the vector length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.scope import assemble, extract, flatten, reversed_lanes, splat, unflatten
from weft.codegen.transposes import columns_of, joined, rows_of, transposed
from weft.codegen.words import fields_of
from weft.dtypes import Dtype
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.records import dataclass
from weft.targets.axes import Axis, axes_of, merged, product, scaled, words_of
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.moves import weigh
from weft.targets.cpu.short_sorts import store_rows, stores_well

STEPS: Final = 1 << 14
"""Steps between two looks whether to stop."""
COSTLY: Final = 8
"""What a step costs that is not taken for lanes that are not there."""
GROUP: Final = 16 * LANES
"""Short rows of a unit."""
MANY_ROWS: Final = 64
"""So many short rows are worth lanes across them."""


@dataclass(frozen=True, slots=True)
class ScanKernel(NativeKernel):
    """y[j] = combine(y[j - 1], x[j], ...) along one axis, one rounding a step; `op` is the primitive.

    Operands: the inputs, then out; `jK` is the stride of operand K along the scanned axis. form: "across" if lanes are
    neighbours on a kept axis in out and in most inputs; "tile" if lanes are rows, of which some operands lie along the
    scanned axis: those are turned in registers; "short" if those are rows of at most `columns` elements; "single" for
    one row at a time. `modes` say for each operand how lanes
    read it: "direct" (neighbours), "turn" and "back" (it lies along the scanned axis, forwards or backwards), "repeat"
    or "any" (element by element). `inner` says that the lanes of a tile run along the inner axis, not over all rows.
    """

    title = "scan"
    op: Any
    dtype: Dtype
    result: Dtype
    form: str
    modes: tuple[str, ...]
    outer: int
    reverse: bool
    exclusive: bool
    inner: bool = False
    vectors: int = 1
    columns: int = 0
    dense: bool = False
    """Whether rows of so many columns lie one after the other."""
    written: int = 0
    """Elements of a row of the result, where 16 rows are written as whole vectors."""

    def __str__(self) -> str:
        flags = [name for name in ("reverse", "exclusive", "inner", "dense") if getattr(self, name)]
        what = f"{self.op.title} {self.dtype.name} -> {self.result.name}"
        sizes = f"outer={self.outer} vectors={self.vectors} columns={self.columns} written={self.written}"
        return " ".join(["scan", self.form, what, sizes, *flags, *self.modes])

    @property
    def lanes(self) -> int:
        """Rows of a tile: as many as one vector register of its elements, so that a tile stays in registers."""
        return 8 if dt.real_of(self.dtype).size == 8 and self.form != "short" else LANES

    @property
    def is_exact(self) -> bool:
        """Whether it has the same bits in every order."""
        return bool(self.dtype.is_integer and self.op.associates)

    @property
    def inputs(self) -> range:
        return range(len(self.modes) - 1)

    def fields(self) -> list[str]:
        more = {"across": ["chunks"], "tile": ["chunks", "rows"], "short": ["chunks", "rows"], "single": []}[self.form]
        strides = [f"j{k}" for k in range(len(self.modes))]
        return fields_of(self.outer, len(self.modes), "length", *more, *strides)

    def as_written(self) -> bool:
        return self.form != "across"  # which goes from row to row by strides

    def emit(self, frame: Frame) -> None:
        {"across": self._across, "tile": self._tiles, "short": self._short, "single": self._single}[self.form](frame)

    def scratch(self) -> int:
        """Bytes of per-thread memory: a row of results."""
        return self.columns * self.result.size

    # ---- one step ----

    def _start(self, b: Builder, lanes: int) -> AnyValue:
        """What stands before the first element."""
        kind = self.op.accumulator(self.dtype)
        first = self.op.identity(kind, self.exclusive)
        if kind.is_complex:
            part = dt.real_of(kind)
            return Complex(b.const(part, first.real, lanes), b.const(part, first.imag, lanes))
        return b.const(kind, first, lanes)

    def _step(self, b: Builder, carry: AnyValue, inputs: Sequence[AnyValue]) -> tuple[AnyValue, AnyValue]:
        """(next carry, element of the result)."""
        following = self.op.combine(b, carry, *(b.convert(x, carry.dtype) for x in inputs))
        return following, b.convert(carry if self.exclusive else following, self.result)

    def _position(self, frame: Frame, j: Value) -> Value:
        return frame["length"] - 1 - j if self.reverse else j

    # ---- lanes along a kept axis ----

    def _across(self, frame: Frame) -> None:
        """A unit is a strip of columns. A whole one keeps all carries in registers, the last goes vector by vector."""
        b, full = frame.b, self.vectors * LANES
        with b.loop(frame.begin, frame.end, 1) as units:
            place, strip = frame.divide(units.index, frame["chunks"])
            at = frame.indices(place)
            bases = [frame.at(k, at) for k in range(len(self.modes))]
            start = strip * full
            rest = b.intrinsic("smin", frame["n"] - start, b.i64(full))
            with b.when(rest.eq(full)):
                self._strip(frame, bases, start, self.vectors, None)
            with b.when(rest < full), b.loop(0, rest, LANES) as column:
                mask = b.iota(dt.int64) < b.splat(rest - column.index)
                self._strip(frame, bases, start + column.index, 1, mask)

    def _strip(self, frame: Frame, bases: Sequence[Value], column: Value, vectors: int, mask: Value | None) -> None:
        b = frame.b
        starts = [self._start(b, LANES) for _ in range(vectors)]
        with frame.long_loop(0, frame["length"], 1, STEPS, *flatten(starts)) as loop:
            carries = unflatten(starts, loop.carried)
            j = self._position(frame, loop.index)
            rows = [b.gep(base, j * frame[f"j{k}"]) for k, base in enumerate(bases)]
            results, following = [], []
            for v, carry in enumerate(carries):
                at = column + v * LANES
                carry, result = self._step(b, carry, [self._load(frame, k, rows[k], at, mask) for k in self.inputs])
                following.append(carry)
                results.append((at, result))
            for at, result in results:
                b.store(result, b.gep(rows[-1], at * self.result.size), mask)
            loop.carry(*flatten(following))

    def _load(self, frame: Frame, k: int, row: Value, at: Value, mask: Value | None) -> AnyValue:
        b, stride = frame.b, frame[f"i{k}"]
        if self.modes[k] == "direct":
            return b.load(b.gep(row, at * self.dtype.size), self.dtype, LANES, mask)
        if self.modes[k] == "repeat":
            return splat(b, b.load(row, self.dtype, 1), LANES)
        places = [at + lane for lane in range(LANES)]
        if mask is not None:  # lanes past the end read the first element again
            places = [b.choose(b.extract(mask, lane), place, at) for lane, place in enumerate(places)]
        return assemble(b, [b.load(b.gep(row, place * stride), self.dtype, 1) for place in places])

    # ---- lanes are rows ----

    def _tiles(self, frame: Frame) -> None:
        """A unit is a block of rows. Rows past the last one are the last one again: they write what it writes."""
        b, lanes, last = frame.b, self.lanes, frame["rows"] - 1
        with b.loop(frame.begin, frame.end, 1) as units:
            place, strip = frame.divide(units.index, frame["chunks"]) if self.inner else (units.index, units.index)
            first = strip * lanes
            numbers = [b.intrinsic("smin", first + lane, last) for lane in range(lanes)]
            if self.inner:
                at = frame.indices(place)
                bases = [frame.at(k, at) for k in range(len(self.modes))]
                rows = [[b.gep(x, i * frame[f"i{k}"]) for k, x in enumerate(bases)] for i in numbers]
            else:
                places = [frame.indices(i) for i in numbers]
                rows = [[frame.at(k, at) for k in range(len(self.modes))] for at in places]
            self._block(frame, rows, first + lanes <= last + 1)

    def _block(self, frame: Frame, rows: Sequence[Sequence[Value]], full: Value) -> None:
        """Squares of as many steps as rows while there are any, then step by step.

        A vector of neighbouring rows is only there if the block is full.
        """
        b, lanes, length = frame.b, self.lanes, frame["length"]
        whole = b.i64(0)
        if not {"any", "repeat"} & set(self.modes):
            whole = length & -lanes
        if "direct" in self.modes:
            whole = b.choose(full, whole, 0) if whole.text != "0" else whole
        start = self._start(b, lanes)
        with frame.long_loop(0, whole, lanes, STEPS // lanes, *flatten([start])) as tiles:
            (carry,) = unflatten([start], tiles.carried)
            tiles.carry(*flatten([self._tile(frame, rows, tiles.index, carry)]))
        with frame.long_loop(whole, length, 1, STEPS // lanes, *tiles.carried) as columns:
            (carry,) = unflatten([start], columns.carried)
            columns.carry(*flatten([self._column(frame, rows, self._position(frame, columns.index), carry)]))

    def _tile(self, frame: Frame, rows: Sequence[Sequence[Value]], j: Value, carry: AnyValue) -> AnyValue:
        b, lanes = frame.b, self.lanes
        first = frame["length"] - lanes - j if self.reverse else j
        tiles = [self._square(frame, k, rows, first) for k in self.inputs]
        results: list[AnyValue] = [carry] * lanes
        for step in range(lanes):
            column = lanes - 1 - step if self.reverse else step
            carry, results[column] = self._step(b, carry, [tile[column] for tile in tiles])
        if self.modes[-1] == "direct":
            for column, result in enumerate(results):
                b.store(result, b.gep(rows[0][-1], (first + column) * frame[f"j{len(self.inputs)}"]))
        else:
            for row, result in zip(rows, transposed(b, results), strict=True):
                b.store(result, b.gep(row[-1], first * self.result.size))
        return carry

    def _square(self, frame: Frame, k: int, rows: Sequence[Sequence[Value]], first: Value) -> list[AnyValue]:
        """One vector (a lane for each row) for each of as many steps, from step `first` on."""
        b, lanes, size = frame.b, self.lanes, self.dtype.size
        if self.modes[k] == "direct":
            places = [b.gep(rows[0][k], (first + step) * frame[f"j{k}"]) for step in range(lanes)]
            return [b.load(place, self.dtype, lanes) for place in places]
        offset = first * size if self.modes[k] == "turn" else (first + (lanes - 1)) * -size
        square = transposed(b, [b.load(b.gep(row[k], offset), self.dtype, lanes) for row in rows])
        return square if self.modes[k] == "turn" else square[::-1]

    def _column(self, frame: Frame, rows: Sequence[Sequence[Value]], j: Value, carry: AnyValue) -> AnyValue:
        b = frame.b
        offsets = [j * frame[f"j{k}"] for k in range(len(self.modes))]
        inputs = []
        for k in self.inputs:
            inputs.append(assemble(b, [b.load(b.gep(row[k], offsets[k]), self.dtype, 1) for row in rows]))
        carry, result = self._step(b, carry, inputs)
        for lane, row in enumerate(rows):
            b.store(extract(b, result, lane), b.gep(row[-1], offsets[-1]))
        return carry

    # ---- rows of a few elements ----

    def _short(self, frame: Frame) -> None:
        """A unit is some blocks of rows. Whole vectors reach into the rows beside theirs, so those at the ends go one
        by one."""
        b, rows = frame.b, frame["rows"]
        with b.loop(frame.begin, frame.end, 1) as units:
            place, chunk = frame.divide(units.index, frame["chunks"])
            at, start = frame.indices(place), chunk * GROUP
            bases = [frame.at(k, at) for k in range(len(self.modes))]
            with b.loop(start, frame.least(start + GROUP, rows), LANES) as block:
                first = block.index
                beside = (first > 0) & (first + LANES < rows)
                with b.when(beside):
                    self._between(frame, [b.gep(base, first * frame[f"i{k}"]) for k, base in enumerate(bases)])
                with b.when(~beside), b.loop(first, frame.least(first + LANES, rows), 1) as row:
                    here = [b.gep(base, row.index * frame[f"i{k}"]) for k, base in enumerate(bases)]
                    self._row(frame, here, self._start(b, 1), b.i64(0))

    def _between(self, frame: Frame, bases: Sequence[Value]) -> None:
        """16 rows with others beside them. What is written past the end of a row is written again with the next one."""
        b = frame.b
        inputs = [self._columns(frame, k, bases[k]) for k in self.inputs]
        carry, results = self._start(b, LANES), []
        for column in range(self.written or self.columns):
            carry, result = self._step(b, carry, [operand[column] for operand in inputs])
            results.append(result)
        if self.written:
            store_rows(b, results[::-1] if self.reverse else results, bases[-1])  # type: ignore[arg-type]
            return
        places, upwards = self._ends(frame, len(self.inputs), bases[-1])
        rows = rows_of(b, results if upwards else results[::-1])
        if self.dense and isinstance(carry, Value):
            self._whole(b, rows, bases[-1])  # type: ignore[arg-type]
            return
        last, size = self.columns - 1, self.result.size
        found = list(zip(rows, places, strict=True))
        *others, (row, place) = found if upwards else found[::-1]
        for x, at in others:
            b.store(x, at if upwards else b.gep(at, -last * size))
        b.store(row, frame.scratch)
        with b.loop(0, frame["length"], 1) as step:
            at = step.index if upwards else last - step.index
            x = b.load(b.gep(frame.scratch, at * size), self.result, 1)
            b.store(x, b.gep(place, step.index * (size if upwards else -size)))

    def _whole(self, b: Builder, rows: Sequence[Value], base: Value) -> None:
        """Write 16 rows that have no gaps between them, in vectors of 16 elements."""
        together = LANES // self.columns
        for first in range(0, LANES, together):
            at = b.gep(base, first * self.columns * self.result.size)
            b.store(joined(b, rows[first : first + together]), at)

    def _ends(self, frame: Frame, k: int, base: Value) -> tuple[list[Value], bool]:
        """Where the first steps of 16 rows of an operand are, and whether its further ones lie behind them."""
        b = frame.b
        start = b.gep(base, self._position(frame, b.i64(0)) * frame[f"j{k}"])
        size = (self.result if k == len(self.inputs) else self.dtype).size
        apart = b.i64(self.columns * size) if self.dense else frame[f"i{k}"]
        return [b.gep(start, apart * row) for row in range(LANES)], (self.modes[k] == "turn") != self.reverse

    def _columns(self, frame: Frame, k: int, base: Value) -> list[AnyValue]:
        """The elements of 16 rows, a vector for each step; behind the last one, any elements."""
        b, last = frame.b, frame["length"] - 1
        if self.modes[k] == "direct":
            steps = [self._position(frame, frame.least(b.i64(step), last)) for step in range(self.columns)]
            return [b.load(b.gep(base, step * frame[f"j{k}"]), self.dtype, LANES) for step in steps]
        rows, upwards = self._ends(frame, k, base)
        back = 0 if upwards else (self.columns - 1) * self.dtype.size
        columns = columns_of(b, [b.load(b.gep(row, -back), self.dtype, self.columns) for row in rows])
        return columns if upwards else columns[::-1]

    # ---- one row ----

    def _single(self, frame: Frame) -> None:
        b = frame.b
        with b.loop(frame.begin, frame.end, 1) as units:
            at = frame.indices(units.index)
            bases = [frame.at(k, at) for k in range(len(self.modes))]
            start, whole = self._start(b, 1), b.i64(0)
            run = self._sums_of_run if self.is_exact else self._run if self.dtype in dt.HALVES else None
            if run is not None and set(self.modes) <= {"turn", "back"}:
                whole = frame["length"] & -LANES
                with frame.long_loop(0, whole, LANES, STEPS // LANES, *flatten([start])) as runs:
                    (carry,) = unflatten([start], runs.carried)
                    runs.carry(*flatten([run(frame, bases, runs.index, carry)]))
                (start,) = unflatten([start], runs.carried)
            self._row(frame, bases, start, whole)

    def _row(self, frame: Frame, bases: Sequence[Value], start: AnyValue, first: Value) -> None:
        """The steps of a row from `first` on, one by one."""
        b = frame.b
        with frame.long_loop(first, frame["length"], 1, STEPS, *flatten([start])) as loop:
            (carry,) = unflatten([start], loop.carried)
            j = self._position(frame, loop.index)
            places = [b.gep(base, j * frame[f"j{k}"]) for k, base in enumerate(bases)]
            carry, result = self._step(b, carry, [b.load(place, self.dtype, 1) for place in places[:-1]])
            b.store(result, places[-1])
            loop.carry(*flatten([carry]))

    def _run(self, frame: Frame, bases: Sequence[Value], j: Value, carry: AnyValue) -> AnyValue:
        """16 steps of a row. Halves are converted together: one alone waits for the one before it on some machines."""
        b = frame.b
        first = frame["length"] - LANES - j if self.reverse else j
        inputs = [b.convert(self._along(b, k, bases[k], first), carry.dtype) for k in self.inputs]
        results: list[AnyValue] = [carry] * LANES
        for step in range(LANES):
            column = LANES - 1 - step if self.reverse else step
            following = self.op.combine(b, carry, *(extract(b, x, column) for x in inputs))
            results[column] = carry if self.exclusive else following
            carry = following
        out = b.gep(bases[-1], first * self.result.size)
        b.store(b.convert(assemble(b, results), self.result), out)
        return carry

    def _sums_of_run(self, frame: Frame, bases: Sequence[Value], j: Value, carry: AnyValue) -> AnyValue:
        """16 steps of a row of integers, which have the same bits in every order: each lane takes in the one before it,
        then the one two before it, and so on, and all of them what was carried."""
        b = frame.b
        first = frame["length"] - LANES - j if self.reverse else j
        (sums,) = (b.convert(self._along(b, k, bases[k], first), carry.dtype) for k in self.inputs)
        nothing, step = self._start(b, LANES), 1
        while step < LANES:
            sums = self.op.combine(b, self._behind(b, nothing, sums, step), sums)
            step *= 2
        before = splat(b, carry, LANES)
        results = self.op.combine(b, before, sums)
        if self.exclusive:
            results = self._behind(b, before, results, 1)
        b.store(b.convert(results, self.result), b.gep(bases[-1], first * self.result.size))
        following: AnyValue = self.op.combine(b, carry, extract(b, sums, 0 if self.reverse else LANES - 1))
        return following

    def _behind(self, b: Builder, before: Any, x: Any, steps: int) -> Value:
        """The lanes of x so many steps further along the scan, behind those of what comes before."""
        if self.reverse:
            return b.shuffle(x, before, range(steps, LANES + steps))
        return b.shuffle(before, x, range(LANES - steps, 2 * LANES - steps))

    def _along(self, b: Builder, k: int, base: Value, first: Value) -> AnyValue:
        """16 elements of an operand that lies along the scanned axis."""
        if self.modes[k] == "turn":
            return b.load(b.gep(base, first * self.dtype.size), self.dtype, LANES)
        return reversed_lanes(b, b.load(b.gep(base, (first + (LANES - 1)) * -self.dtype.size), self.dtype, LANES))


def scan(
    op: Any, operands: Sequence[Layout], out: Layout, axis: int, reverse: bool, exclusive: bool, cost: int = 1
) -> Lowering:
    """A scan along an axis. Pointers: operands, then out."""
    if 0 in out.shape:
        return Lowering(())
    layouts = (*operands, out)
    axes = axes_of(out.shape, *map(scaled, layouts))
    along = axes.pop(axis)
    outer = merged(axes)
    kinds = (operands[0].dtype, out.dtype)
    lane_axis = _lane_axis(along, outer, *kinds)
    short = cost <= COSTLY and _short_rows(along, outer, lane_axis, *kinds)
    if short:
        lane_axis = len(outer) - 1 if lane_axis is None else lane_axis
    inner = outer.pop(lane_axis) if lane_axis is not None else Axis(1, (0,) * len(layouts))
    modes = tuple(_mode(along, inner, k, kinds[k == len(operands)].size) for k in range(len(layouts)))
    rows = product(outer) if lane_axis is None else inner.size
    form = "single" if lane_axis is None and rows < 4 else "tile"
    if lane_axis is not None and modes[-1] == "direct" and not {"turn", "back"} & set(modes):
        form = "across"
    columns, is_dense, written = 0, False, 0
    if short:
        form, columns = "short", max(2, 1 << (int(along.size) - 1).bit_length())
        is_dense = all(
            mode == "direct" or bool(stride == columns * kinds[k == len(operands)].size)
            for k, (mode, stride) in enumerate(zip(modes, inner.strides, strict=True))
        )
        few = type(along.size) is int and along.size < 8 and not out.dtype.is_complex
        if few and not is_dense and stores_well(along.size, out.dtype.size):
            written = along.size
    vectors = 1 if cost > COSTLY or form != "across" else 4 if out.dtype.size > 4 else 8
    is_inner = lane_axis is not None
    kernel = ScanKernel(
        op,
        *kinds,
        form,
        modes,
        len(outer),
        reverse,
        exclusive,
        is_inner,
        vectors,
        columns,
        dense=is_dense,
        written=written,
    )
    lanes = {"across": LANES * vectors, "tile": kernel.lanes, "short": GROUP, "single": 1}[form]
    chunks = -(-rows // lanes)
    units = product(outer) * chunks if lane_axis is not None else chunks
    numbers = {"units": units, "length": along.size, "chunks": chunks, "rows": rows}
    numbers |= {f"j{k}": stride for k, stride in enumerate(along.strides)}
    words = words_of(kernel.fields(), [Pointer(k) for k in range(len(layouts))], outer, inner, numbers)
    work = weigh(units, along.size * out.dtype.size * min(rows, lanes), cost)
    return Lowering((Launch(kernel.source(), words, work, kernel.scratch()),))


def _short_rows(along: Axis, outer: Sequence[Axis], lane_axis: int | None, kind: Dtype, result: Dtype) -> bool:
    """Whether rows are so short that lanes go across them, and lie beside each other. Those of operands may lie apart;
    or else neighbouring rows of an operand are neighbours in memory."""
    if not outer or not 2 <= along.size <= LANES or along.strides[-1] != result.size:
        return False
    rows = outer[-1 if lane_axis is None else lane_axis]
    if not rows.size >= MANY_ROWS or rows.strides[-1] != along.size * result.size:
        return False
    pairs = list(zip(along.strides[:-1], rows.strides[:-1], strict=True))
    return all(y == kind.size or (abs(x) == kind.size and abs(y) >= along.size * kind.size) for x, y in pairs)


def _lane_axis(along: Axis, outer: Sequence[Axis], kind: Dtype, result: Dtype) -> int | None:
    """The kept axis that lanes run along: where out lies along it, or else an input that does not lie along the scan.

    None: all rows, whatever axes they come from, are turned.
    """
    sizes = [kind.size] * (len(along.strides) - 1) + [result.size]
    for k in range(len(sizes) - 1, -1, -1):
        if abs(along.strides[k]) == sizes[k]:
            continue
        for a in range(len(outer) - 1, -1, -1):
            if outer[a].strides[k] == sizes[k] and outer[a].size >= 4:
                return a
    return None


def _mode(along: Axis, inner: Axis, k: int, size: int) -> str:
    """How lanes read operand k."""
    if inner.size > 1 and inner.strides[k] == size:
        return "direct"
    if along.strides[k] == size:
        return "turn"
    if along.strides[k] == -size:
        return "back"
    return "repeat" if inner.size > 1 and inner.strides[k] == 0 else "any"
