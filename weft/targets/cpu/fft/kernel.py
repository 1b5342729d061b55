"""The kernel of transforms: it runs a list of steps, which is data, over vectors of complex numbers.

One piece of machine code serves every length that needs the same radices: lengths, strides and tables of factors stand
in the steps (`steps.py` writes them). Between the first step, which loads, and the last, which stores, the numbers lie
in scratch memory as *cells*: a vector of real parts, then one of imaginary parts. What the lanes of a cell are is the
kernel's form:

along    neighbouring elements of one transform, whose axis is contiguous. A transform of n1 * n2 begins with cells of
         n2 columns, and ends with cells of n1; in between squares are turned in registers.
columns  the first half of a long transform: a unit is a block of its columns, which it leaves turned in memory
rows     the second half: a unit is one column of cells of what the first half left
across   one element each of neighbouring transforms
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final

from weft import dtypes as dt
from weft.codegen.scope import State
from weft.codegen.transposes import transposed
from weft.codegen.words import fields_of
from weft.dtypes import Dtype
from weft.llvm.builder import PTR, AnyValue, Complex, Value
from weft.records import dataclass
from weft.targets.cpu.fft.butterflies import butterfly, times
from weft.targets.cpu.kernel import Frame, NativeKernel, vector_loop


class TransformCode(IntEnum):
    """What a step does; a stage of radix r has the number STAGE + r."""

    LOAD = 1
    STORE = 2
    MULTIPLY = 3  # by a table of cells
    SPREAD = 4  # by a table of numbers, each for all lanes of a cell; cells may be exchanged meanwhile
    TURN = 5  # by a table of cells, and squares of cells exchange lanes and rows
    TURN_LONG = 6  # the same by products of two tables
    STAGE = 16


WORDS: Final = 12
"""Words of a step: its code, the scratch memory that it reads and writes, and what its code needs."""


@dataclass(frozen=True, slots=True)
class Transform(NativeKernel):
    """`part` is the dtype of the parts of the numbers. `load` and `store` say what memory holds: "complex" numbers,
    "real" ones, or "pairs" of reals along the axis that are the parts of a complex number. `lies` says of a kernel
    across transforms how these lie in the operand and in the result: "near" (neighbours next to each other), "turned"
    (each one contiguous, so that squares are turned in registers) or "far"."""

    title = "fft"
    form: str
    part: Dtype
    lanes: int
    outer: int
    radices: tuple[int, ...]
    codes: tuple[int, ...]
    load: str = "complex"
    store: str = "complex"
    lies: tuple[str, str] = ("near", "near")

    def __str__(self) -> str:
        ends = f"{self.load} {self.lies[0]} -> {self.store} {self.lies[1]}"
        what = f"{self.form} {self.part.name} x {self.lanes} {ends} outer={self.outer}"
        return f"fft {what} radices={self.radices} codes={tuple(map(int, self.codes))}"

    def fields(self) -> list[str]:
        return fields_of(
            self.outer, 2, "*steps", "count", "scale", "real_in", "imag_in", "real_out", "imag_out", "blocks",
            "chunk", "j0", "j1",
        )  # fmt: skip

    def emit(self, frame: Frame) -> None:
        _Writer(self, frame).write()


class _Writer:
    """Writes the code of a kernel. `step` reads a word of the step that is being run."""

    def __init__(self, kernel: Transform, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.size = kernel.part.size
        self.cell = 2 * kernel.lanes * self.size
        self.at = frame.b.params[0]
        self.bases: tuple[Value, Value] = (self.at, self.at)
        self.block = self.left = frame.b.i64(0)

    def write(self) -> None:
        b, frame = self.b, self.frame
        codes: list[tuple[int, Callable[[], None]]] = []
        for code in self.kernel.codes:
            codes.append((code, getattr(self, f"_{TransformCode(code).name.lower()}")))
        for radix in self.kernel.radices:
            codes.append((TransformCode.STAGE + radix, lambda radix=radix: self._stage(radix)))  # type: ignore[misc]
        with b.loop(frame.begin, frame.end, 1) as units:
            place, self.block = frame.divide(units.index, frame["blocks"])
            indices = frame.indices(place)
            first = self.block * frame["chunk"]
            self.bases = (frame.at(0, indices), frame.at(1, indices))
            if self.kernel.form == "across":
                self.bases = tuple(b.gep(x, first * frame[f"i{k}"]) for k, x in enumerate(self.bases))  # type: ignore[assignment]
                self.left = frame.least(frame["n"] - first, self.kernel.lanes)
            with b.loop(0, frame["count"], 1) as steps:
                self.at = b.gep(frame["steps"], steps.index * (8 * WORDS))
                found = self.step(0)
                for code, emit in codes:
                    with b.when(found.eq(int(code))):
                        emit()

    # ---- parts ----

    def step(self, word: int) -> Value:
        return self.b.word(self.at, word)

    def pointer(self, word: int) -> Value:
        return self.b.word(self.at, word, PTR)

    @property
    def source(self) -> Value:
        return self.b.gep(self.frame.scratch, self.step(1))

    @property
    def target(self) -> Value:
        return self.b.gep(self.frame.scratch, self.step(2))

    def _load_cell(self, at: Value, re: Value | int = 0, im: Value | int | None = None) -> Complex:
        b, lanes, part = self.b, self.kernel.lanes, self.kernel.part
        imag = self.cell // 2 if im is None else im
        return Complex(b.load(b.gep(at, re), part, lanes), b.load(b.gep(at, imag), part, lanes))  # type: ignore[arg-type]

    def _store_cell(self, x: Complex, at: Value, re: Value | int = 0, im: Value | int | None = None) -> None:
        b = self.b
        b.store(x.re, b.gep(at, re))
        b.store(x.im, b.gep(at, self.cell // 2 if im is None else im))

    def _number(self, at: Value) -> Complex:
        """A complex number of a table, for all lanes."""
        b, part, lanes = self.b, self.kernel.part, self.kernel.lanes
        re, im = b.load(at, part, 1), b.load(b.gep(at, self.size), part, 1)
        assert isinstance(re, Value)
        assert isinstance(im, Value)
        return Complex(b.splat(re, lanes), b.splat(im, lanes))

    # ---- stages ----

    def _stage(self, radix: int) -> None:
        """Result k of butterfly p of source[q + s (p + k m)] is target[q + s (r p + k)], for every q below s; `count`
        times over."""
        b, cell = self.b, self.cell
        m, s, count, table = self.step(3), self.step(4), self.step(5), self.pointer(6)
        leg_in, leg_out = m * s * cell, s * cell
        step_out = leg_out * radix
        source, target = self.source, self.target
        if self.kernel.form == "rows":
            source = b.choose(self.step(7).ne(0), self._given(), source)
        with b.loop(0, count, 1) as blocks:
            begin = blocks.index * (leg_in * radix)
            x, y = b.gep(source, begin), b.gep(target, begin)
            self._butterflies(radix, x, y, leg_in, leg_out, s, ())
            with b.loop(1, m, 1) as loop:
                p = loop.index
                at = b.gep(table, p * (2 * self.size * (radix - 1)))
                factors = [self._number(b.gep(at, 2 * self.size * k)) for k in range(radix - 1)]
                self._butterflies(
                    radix, b.gep(x, p * leg_out), b.gep(y, p * step_out), leg_in, leg_out, s, factors
                )  # fmt: skip

    def _butterflies(
        self, radix: int, x: Value, y: Value, leg_in: Value, leg_out: Value, s: Value, factors: Sequence[Complex]
    ) -> None:
        b = self.b
        with b.loop(0, s * self.cell, self.cell) as loop:
            given = [self._load_cell(at) for at in self._legs(b.gep(x, loop.index), leg_in, radix)]
            found = butterfly(b, given)
            for k, at in enumerate(self._legs(b.gep(y, loop.index), leg_out, radix)):
                self._store_cell(times(b, found[k], factors[k - 1]) if factors and k else found[k], at)

    def _legs(self, first: Value, step: Value, count: int) -> list[Value]:
        """Addresses one step apart, each from the one before it: few registers."""
        found = [first]
        while len(found) < count:
            found.append(self.b.gep(found[-1], step))
        return found

    def _given(self) -> Value:
        """Where the cells lie that the first half of a long transform left for this unit."""
        return self.b.gep(self.bases[0], self.block * self.frame["j0"])

    # ---- factors ----

    def _multiply(self) -> None:
        """Rows of `width` cells by those of a table, which has `pitch` a row. Parts may change places before (words 7
        and 8) or after (words 9 and 10)."""
        b, cell = self.b, self.cell
        rows, width, pitch, table = self.step(3), self.step(4), self.step(5), self.pointer(6)
        swap_in, swap_out = (self.step(7), self.step(8)), (self.step(9), self.step(10))
        source, target = self.source, self.target
        with b.loop(0, rows, 1) as loop:
            row = loop.index * width
            x, y = b.gep(source, row * cell), b.gep(target, row * cell)
            factors = b.gep(table, (loop.index * pitch + self.block * width) * cell)
            with b.loop(0, width * cell, cell) as inner:
                v = inner.index
                value = self._load_cell(b.gep(x, v), *swap_in)
                self._store_cell(times(b, value, self._load_cell(b.gep(factors, v))), b.gep(y, v), *swap_out)

    def _spread(self) -> None:
        """source[i, j] by table[i, j] to target, at i times one stride and j times another."""
        b, cell = self.b, self.cell
        rows, columns, table = self.step(3), self.step(4), self.pointer(6)
        by_row, by_column = self.step(5), self.step(11)
        swap_in, swap_out = (self.step(7), self.step(8)), (self.step(9), self.step(10))
        source, target = self.source, self.target
        with b.loop(0, rows, 1) as loop:
            x = b.gep(source, loop.index * columns * cell)
            factors = b.gep(table, loop.index * columns * (2 * self.size))
            y = b.gep(target, loop.index * by_row)
            with b.loop(0, columns, 1) as inner:
                j = inner.index
                value = self._load_cell(b.gep(x, j * cell), *swap_in)
                result = times(b, value, self._number(b.gep(factors, j * (2 * self.size))))
                self._store_cell(result, b.gep(y, j * by_column), *swap_out)

    def _turn(self) -> None:
        b, width, table = self.b, self.step(4), self.pointer(6)

        def factor(row: Value, v: Value) -> Complex:
            return self._load_cell(b.gep(table, (row * width + v) * self.cell))

        self._turn_by(factor, self.target)

    def _turn_long(self) -> None:
        """A factor is the product of one for a block of columns and one for the column in the block. Blocks are as
        long on every machine."""
        b, lanes = self.b, self.kernel.lanes
        parts = 64 // self.size // lanes
        blocks, columns, pitch = self.pointer(6), self.pointer(7), self.step(8)
        before = self.block * self.step(4)

        def factor(row: Value, v: Value) -> Complex:
            column = v + before
            block, part = (column, b.i64(0)) if parts == 1 else self.frame.divide(column, parts)
            whole = self._number(b.gep(blocks, (row * pitch + block) * (2 * self.size)))
            return times(b, self._load_cell(b.gep(columns, (row * parts + part) * self.cell)), whole)

        first = self.block * self.frame["chunk"]
        self._turn_by(factor, b.gep(self.bases[1], first * self.step(9)))

    def _turn_by(self, factor: Callable[[Value, Value], Complex], target: Value) -> None:
        """Rows of cells times factors, to columns: lane i of cell v of row k is lane k of a cell of row v * lanes + i.
        Rows past the last one are that one again."""
        b, lanes, cell = self.b, self.kernel.lanes, self.cell
        rows, width, by_row, by_block = self.step(3), self.step(4), self.step(9), self.step(10)
        source = self.source
        blocks, _ = self.frame.divide(rows + (lanes - 1), lanes)
        with b.loop(0, blocks, 1) as squares, b.loop(0, width, 1) as inner:
            v, first = inner.index, squares.index * lanes
            cells: list[Complex] = []
            for lane in range(lanes):
                row = b.intrinsic("smin", first + lane, rows - 1)
                x = self._load_cell(b.gep(source, (row * width + v) * cell))
                cells.append(times(b, x, factor(row, v)))
            at = b.gep(target, v * lanes * by_row + squares.index * by_block)
            for lane, column in enumerate(transposed(b, cells)):
                assert isinstance(column, Complex)
                self._store_cell(column, b.gep(at, by_row * lane))

    # ---- memory ----

    def _load(self) -> None:
        if self.kernel.form == "across":
            self._load_across()
        else:
            self._load_along()

    def _store(self) -> None:
        if self.kernel.form == "across":
            self._store_across()
        else:
            self._store_along()

    def _pieces(self) -> tuple[Value, Value, Value, Value, Value]:
        """(rows, elements from one row to the next, width in cells, first column, columns) of what is loaded or
        stored."""
        rows, pitch, width = self.step(3), self.step(4), self.step(5)
        if self.kernel.form == "along":
            return rows, pitch, width, self.b.i64(0), pitch
        first = self.block * self.frame["chunk"]
        return rows, pitch, width, first, self.frame.least(pitch - first, self.frame["chunk"])

    def _over_rows(self, each: Callable[[Value, Value, Value | None], None]) -> None:
        """each(cell, element, mask) for the cells of all rows; those of the elements past the last (word 6) have an
        empty mask."""
        b, lanes = self.b, self.kernel.lanes
        rows, pitch, width, first, columns = self._pieces()
        total = self.step(6)
        with b.loop(0, rows, 1) as loop:
            start = loop.index * pitch + first
            here = self.b.intrinsic("smax", self.frame.least(total - start, columns), b.i64(0))
            whole, _ = self.frame.divide(here, lanes)
            with b.loop(0, whole, 1) as full:
                each(loop.index * width + full.index, start + full.index * lanes, None)
            with b.loop(whole, width, 1) as rest:
                left = b.intrinsic("smax", here - rest.index * lanes, b.i64(0))
                mask = b.iota(dt.int32, lanes) < b.splat(b.cast(left, dt.int32), lanes)
                each(loop.index * width + rest.index, start + rest.index * lanes, mask)

    def _load_along(self) -> None:
        b, kernel, frame = self.b, self.kernel, self.frame
        base, target = self.bases[0], self.target
        real_in, imag_in = frame["real_in"], frame["imag_in"]

        def each(cell: Value, element: Value, mask: Value | None) -> None:
            value: AnyValue
            if kernel.load == "real":
                real = self._reals(b.gep(base, element * self.size), True, mask)
                value = Complex(real, b.const(kernel.part, 0, kernel.lanes))
            else:
                value = b.load(b.gep(base, element * (2 * self.size)), _complex(kernel.part), kernel.lanes, mask)
            assert isinstance(value, Complex)
            self._store_cell(value, b.gep(target, cell * self.cell), real_in, imag_in)

        self._over_rows(each)

    def _store_along(self) -> None:
        b, kernel, frame = self.b, self.kernel, self.frame
        base, source = self.bases[1], self.source
        scale = self._scale()
        real_out, imag_out = frame["real_out"], frame["imag_out"]

        def each(cell: Value, element: Value, mask: Value | None) -> None:
            value = self._load_cell(b.gep(source, cell * self.cell), real_out, imag_out)
            if kernel.store == "real":
                return b.store(value.re * scale, b.gep(base, element * self.size), mask)
            scaled = Complex(value.re * scale, value.im * scale)
            return b.store(scaled, b.gep(base, element * (2 * self.size)), mask)

        self._over_rows(each)

    def _scale(self) -> Value:
        b = self.b
        number = b.bitcast(self.frame["scale"], dt.float64)
        return b.splat(b.cast(number, self.kernel.part), self.kernel.lanes)

    def _load_across(self) -> None:
        """Element j of each transform; those from the last on are zeros."""
        b, kernel, frame = self.b, self.kernel, self.frame
        points, total = self.step(3), self.step(6)
        target, stride, near = self.target, frame["j0"], kernel.lies[0] == "near"
        real_in, imag_in = frame["real_in"], frame["imag_in"]
        zero = b.const(kernel.part, 0, kernel.lanes)

        def each(j: Value, mask: Value | None) -> None:
            at = b.gep(self.bases[0], j * stride)
            value: AnyValue
            if kernel.load == "complex" and near:
                value = b.load(at, _complex(kernel.part), kernel.lanes, mask)
            elif kernel.load == "complex":
                value = Complex(self._gather(at, mask), self._gather(b.gep(at, self.size), mask))
            elif kernel.load == "real":
                value = Complex(self._reals(at, near, mask), zero)
            else:
                at = b.gep(at, j * stride)
                value = Complex(self._reals(at, near, mask), self._reals(b.gep(at, stride), near, mask))
            assert isinstance(value, Complex)
            self._store_cell(value, b.gep(target, j * self.cell), real_in, imag_in)

        if kernel.lies[0] == "turned":
            self._load_turned(total, target)
        else:
            self._masked(total, each)
        with b.loop(total, points, 1) as loop:
            self._store_cell(Complex(zero, zero), b.gep(target, loop.index * self.cell))

    def _reals(self, at: Value, near: bool, mask: Value | None) -> Value:
        if not near:
            return self._gather(at, mask)
        x = self.b.load(at, self.kernel.part, self.kernel.lanes, mask)
        assert isinstance(x, Value)
        return x

    def _masked(self, count: Value, each: Callable[[Value, Value | None], None]) -> None:
        """each(j, mask) for j below count, without a mask where all lanes are there."""
        b, lanes = self.b, self.kernel.lanes
        full = self.left.eq(lanes)
        with b.loop(0, b.choose(full, count, 0), 1) as whole:
            each(whole.index, None)
        mask = b.iota(dt.int32, lanes) < b.splat(b.cast(self.left, dt.int32), lanes)
        with b.loop(b.choose(full, count, 0), count, 1) as part:
            each(part.index, mask)

    def _store_across(self) -> None:
        """Element k1 + n1 k2 is cell k1 n2 + k2; those from the last (word 6) on are left out."""
        b, kernel, frame = self.b, self.kernel, self.frame
        n1, n2, total = self.step(3), self.step(4), self.step(6)
        if kernel.lies[1] == "turned":
            return self._store_turned(total)
        source, stride, near, scale = self.source, frame["j1"], kernel.lies[1] == "near", self._scale()
        real_out, imag_out = frame["real_out"], frame["imag_out"]

        def each(k1: Value, mask: Value | None) -> None:
            k = first + k1
            value = self._load_cell(b.gep(source, (k1 * n2 + rows.index) * self.cell), real_out, imag_out)
            value = Complex(value.re * scale, value.im * scale)
            at = b.gep(self.bases[1], k * stride)
            if kernel.store == "complex" and near:
                b.store(value, at, mask)
            elif kernel.store == "complex":
                self._scatter(value.re, at, mask)
                self._scatter(value.im, b.gep(at, self.size), mask)
            elif kernel.store == "real":
                self._put_reals(value.re, at, near, mask)
            else:
                at = b.gep(at, k * stride)
                self._put_reals(value.re, at, near, mask)
                self._put_reals(value.im, b.gep(at, stride), near, mask)

        with b.loop(0, n2, 1) as rows:
            first = rows.index * n1
            self._masked(b.intrinsic("smax", frame.least(total - first, n1), b.i64(0)), each)
        return None

    def _rows(self, operand: int) -> list[Value]:
        """Where each lane's transform begins; those past the last one are that one again."""
        b = self.b
        last, step = self.left - 1, self.frame[f"i{operand}"]
        numbers = [b.intrinsic("smin", b.i64(lane), last) for lane in range(self.kernel.lanes)]
        return [b.gep(self.bases[operand], number * step) for number in numbers]

    def _load_turned(self, total: Value, target: Value) -> None:
        """Squares of as many elements as there are lanes; what is past the end of a row is zeros."""
        b, kernel, frame, lanes = self.b, self.kernel, self.frame, self.kernel.lanes
        rows = self._rows(0)

        def square(j: Value, mask: Value | None, state: State) -> State:
            given: list[AnyValue]
            if kernel.load == "real":
                given = [self._reals(b.gep(row, j * self.size), True, mask) for row in rows]
            else:
                given = [b.load(b.gep(row, j * (2 * self.size)), _complex(kernel.part), lanes, mask) for row in rows]
            for i, x in enumerate(transposed(b, given)):
                value = x if isinstance(x, Complex) else Complex(x, b.const(kernel.part, 0, lanes))
                self._store_cell(value, b.gep(target, (j + i) * self.cell), frame["real_in"], frame["imag_in"])
            return state

        vector_loop(b, b.i64(0), total, square, lanes=lanes, once=True)

    def _store_turned(self, total: Value) -> None:
        """The same the other way round. Rows past the last one are written where that one is, before it."""
        b, kernel, frame, lanes = self.b, self.kernel, self.frame, self.kernel.lanes
        rows, source, scale = self._rows(1), self.source, self._scale()

        def square(k: Value, mask: Value | None, state: State) -> State:
            cells = [
                self._load_cell(b.gep(source, (k + i) * self.cell), frame["real_out"], frame["imag_out"])
                for i in range(lanes)
            ]
            found: list[AnyValue]
            if kernel.store == "real":
                found = transposed(b, [x.re * scale for x in cells])
            else:
                found = transposed(b, [Complex(x.re * scale, x.im * scale) for x in cells])
            size = self.size if kernel.store == "real" else 2 * self.size
            for row, x in reversed(list(zip(rows, found, strict=True))):
                b.store(x, b.gep(row, k * size), mask)
            return state

        vector_loop(b, b.i64(0), total, square, lanes=lanes, once=True)

    def _put_reals(self, x: Value, at: Value, near: bool, mask: Value | None) -> None:
        if near:
            self.b.store(x, at, mask)
        else:
            self._scatter(x, at, mask)

    def _offsets(self, operand: int) -> Value:
        """How far one element of each lane's transform is from that of the first."""
        b, lanes = self.b, self.kernel.lanes
        return b.iota(dt.int64, lanes) * b.splat(self.frame[f"i{operand}"], lanes)

    def _gather(self, at: Value, mask: Value | None) -> Value:
        return self.b.gather(at, self._offsets(0), self.kernel.part, mask)

    def _scatter(self, x: Value, at: Value, mask: Value | None) -> None:
        self.b.scatter(x, at, self._offsets(1), mask)


def _complex(part: Dtype) -> Dtype:
    return dt.complex128 if part is dt.float64 else dt.complex64
