"""The kernel of transforms: it runs a list of steps, which is data, over vectors of complex numbers.

One piece of machine code serves every length that needs the same radices: lengths, strides and tables of factors stand
in the steps (`steps.py` writes them). Between a first step, which loads, and a last, which stores, the numbers lie in
scratch memory as *cells*: a vector of real parts, then one of imaginary parts. What the lanes of a cell are is the
kernel's form:

along    neighbouring elements of one transform, whose axis is contiguous. A transform of n1 * n2 begins with cells of
         n2 columns, and ends with cells of n1; in between squares are turned in registers.
columns  the first half of a long transform: a unit is a block of its columns, which it leaves turned in memory
strides  the first stages of a second half that is long itself: a unit is the cells of a column that lie some number
         apart from a few neighbours, which it leaves where they were
rows     the second half: a unit is one column of cells of what the first half left, or those of it that lie next to
         each other and that no stage joins with others any more
across   one element each of neighbouring transforms

Stages, and the exchange of lanes and rows, are functions that all kernels share (`cells.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from weft import dtypes as dt
from weft.codegen.words import fields_of
from weft.dtypes import Dtype
from weft.llvm.builder import PTR, AnyValue, Complex, Value
from weft.llvm.engine import Source
from weft.records import dataclass
from weft.targets.cpu.fft.butterflies import times
from weft.targets.cpu.fft.cells import Cells, Shared, Stage, StrideStage, SummedStage, Turn, TurnBy
from weft.targets.cpu.kernel import Frame, NativeKernel


class TransformCode(IntEnum):
    """What a step does; a stage of radix r has the number STAGE + r."""

    LOAD = 1
    STORE = 2
    MULTIPLY = 3  # by a table of cells
    SPREAD = 4  # by a table of numbers, each for all lanes of a cell; cells may be exchanged meanwhile
    TURN = 5  # by a table of cells, and squares of cells exchange lanes and rows
    TURN_LONG = 6  # the same by products of two tables
    PICK = 7  # elements in the order of a table, from memory to scratch memory, for LOAD
    PUT = 8  # elements in the order of a table, from where STORE left them to memory
    CENTER = 9  # adds the first element of a prime's transform to the convolution of the others
    SUMMED = 10  # a stage of any odd prime
    STAGE = 16


WORDS: Final = 12
"""Words of a step: its code, the scratch memory that it reads and writes, and what its code needs."""


@dataclass(frozen=True, slots=True)
class Transform(NativeKernel):
    """`part` is the dtype of the parts of the numbers. `load` and `store` say what memory holds: "complex" numbers,
    "real" ones, or "pairs" of reals along the axis that are the parts of a complex number (along it, where these are
    picked one by one). `lies` says of a kernel
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

    def shared(self) -> dict[int, Shared]:
        """The functions that stand for steps, by their codes, and that which turns squares, as 0."""
        part, lanes = self.part, self.lanes
        stage = StrideStage if self.form == "strides" else Stage
        found: dict[int, Shared] = {TransformCode.STAGE + r: stage(part, lanes, r) for r in self.radices}
        if TransformCode.SUMMED in self.codes:
            found[TransformCode.SUMMED] = SummedStage(part, lanes)
        for code in {TransformCode.TURN, TransformCode.TURN_LONG} & set(self.codes):
            found[code] = TurnBy(part, lanes, code is TransformCode.TURN_LONG)
        if "turned" in self.lies:
            found[0] = Turn(part, lanes)
        return found

    def calls(self) -> tuple[Source, ...]:
        return tuple(function.source() for function in self.shared().values())

    def as_written(self) -> bool:
        return True

    def emit(self, frame: Frame) -> None:
        _Writer(self, frame).write()


class _Writer:
    """Writes the code of a kernel. `step` reads a word of the step that is being run."""

    def __init__(self, kernel: Transform, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.cells = Cells(frame.b, kernel.part, kernel.lanes)
        self.shared = kernel.shared()
        self.size, self.cell = self.cells.size, self.cells.nbytes
        self.at = frame.b.params[0]
        self.bases: tuple[Value, Value] = (self.at, self.at)
        self.block = self.left = self.piece = self.column = frame.b.i64(0)

    def write(self) -> None:
        b, frame = self.b, self.frame
        codes: dict[int, Callable[[], None]] = {}
        for code in (*self.kernel.codes, *(code for code in self.shared if code > TransformCode.STAGE)):
            named = getattr(self, f"_{TransformCode(code).name.lower()}", None) if code < TransformCode.STAGE else None
            codes[code] = named or functools.partial(self._stage, code)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, self.block = frame.divide(units.index, frame["blocks"])
            indices = frame.indices(place)
            first = self.block * frame["chunk"]
            self.bases = (frame.at(0, indices), frame.at(1, indices))
            if self.kernel.form == "across":
                self.bases = tuple(b.gep(x, first * frame[f"i{k}"]) for k, x in enumerate(self.bases))  # type: ignore[assignment]
                self.left = frame.least(frame["n"] - first, self.kernel.lanes)
            elif self.kernel.form == "rows":
                self.piece, self.column = frame.divide(self.block, frame["j1"])
            elif self.kernel.form == "strides":
                self.column, self.piece = frame.divide(self.block, frame["j1"])
            with b.loop(0, frame["count"], 1) as steps:
                self.at = b.gep(frame["steps"], steps.index * (8 * WORDS))
                found = self.step(0)
                for code, emit in codes.items():
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

    def _stage(self, code: int) -> None:
        b, source, target = self.b, self.source, self.target
        if self.kernel.form == "strides":
            before = self.piece * self.step(11)
            given = b.gep(self._given(), before * self.cell)
            source, target = b.choose(self.step(7).ne(0), given, source), b.choose(self.step(10).ne(0), given, target)
            return b.call_void(self.shared[code].name, self.at, source, target, before)
        if self.kernel.form == "rows":
            source = b.choose(self.step(7).ne(0), b.gep(self._given(), self.piece * self.step(7)), source)
        return b.call_void(self.shared[code].name, self.at, source, target)

    def _given(self) -> Value:
        """Where the column of cells lies that the first half of a long transform left for this unit."""
        return self.b.gep(self.bases[0], self.column * self.frame["j0"])

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
                value = self.cells.load(b.gep(x, v), *swap_in)
                self.cells.store(times(b, value, self.cells.load(b.gep(factors, v))), b.gep(y, v), *swap_out)

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
                value = self.cells.load(b.gep(x, j * cell), *swap_in)
                result = times(b, value, self.cells.number(b.gep(factors, j * (2 * self.size))))
                self.cells.store(result, b.gep(y, j * by_column), *swap_out)

    def _turn(self) -> None:
        self.b.call_void(self.shared[TransformCode.TURN].name, self.at, self.source, self.target, self.b.i64(0))

    def _turn_long(self) -> None:
        target = self.b.gep(self.bases[1], self.block * self.frame["chunk"] * self.step(9))
        before = self.block * self.step(4)
        self.b.call_void(self.shared[TransformCode.TURN_LONG].name, self.at, self.source, target, before)

    def _turned(self, source: Value, from_: Value, target: Value, to: Value) -> None:
        """Both parts of a square of cells, rows and columns exchanged."""
        b, imag = self.b, self.cells.imag
        for part in (0, imag):
            b.call_void(self.shared[0].name, b.gep(source, part), from_, b.gep(target, part), to)

    def _center(self) -> None:
        """A prime's first element is added to its spectrum at 0 (word 4), and that (word 3) to the element (word 5):
        so it is part of every result, and all elements are of the first one."""
        b, cells = self.b, self.cells
        total, middle, first = (b.gep(self.frame.scratch, self.step(i)) for i in (3, 4, 5))
        lanes = self.kernel.lanes if self.kernel.form == "across" else 1
        x = cells.load(first, lanes=lanes)
        cells.store(cells.load(middle, lanes=lanes) + x, middle)
        cells.store(x + cells.load(total, lanes=lanes), first)

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
        empty mask. Along one transform only the last have a mask at all: what another one writes behind the end of its
        row is written again, with the next row."""
        if self.kernel.form == "rows":
            return self._over_rows_of_a_cell(each)
        b, lanes = self.b, self.kernel.lanes
        rows, pitch, width, first, columns = self._pieces()
        total, zero = self.step(6), b.i64(0)
        with b.loop(0, rows, 1) as loop:
            start = loop.index * pitch + first
            here = b.intrinsic("smax", self.frame.least(total - start, columns), zero)
            behind = b.intrinsic("smax", total - start, zero) if self.kernel.form == "along" else here
            whole = self.frame.least(behind >> (lanes.bit_length() - 1), width)
            with b.loop(0, whole, 1) as full:
                each(loop.index * width + full.index, start + full.index * lanes, None)
            with b.loop(whole, width, 1) as rest:
                left = b.intrinsic("smax", here - rest.index * lanes, zero)
                mask = b.iota(dt.int32, lanes) < b.splat(b.cast(left, dt.int32), lanes)
                each(loop.index * width + rest.index, start + rest.index * lanes, mask)
        return None

    def _over_rows_of_a_cell(self, each: Callable[[Value, Value, Value | None], None]) -> None:
        """The same for rows of one cell, a column of a result whose rows (word 7 elements) are shared out to pieces."""
        b, frame, lanes = self.b, self.frame, self.kernel.lanes
        rows, pitch, total, length = (self.step(word) for word in (3, 4, 6, 7))
        before, zero = self.column * lanes, b.i64(0)
        first, columns = self.piece * length + before, length - before
        room = total - first - lanes
        fits = (columns >= lanes) & (room >= 0)
        count, _ = frame.divide(b.choose(fits, room, 0), pitch)
        whole = b.choose(fits, frame.least(count + 1, rows), 0)
        with b.loop(0, whole, 1) as full:
            each(full.index, first + full.index * pitch, None)
        with b.loop(whole, rows, 1) as rest:
            start = first + rest.index * pitch
            left = b.intrinsic("smax", frame.least(total - start, columns), zero)
            mask = b.iota(dt.int32, lanes) < b.splat(b.cast(frame.least(left, lanes), dt.int32), lanes)
            each(rest.index, start, mask)

    def _has(self, code: TransformCode) -> bool:
        return code in self.kernel.codes

    def _load_along(self) -> None:
        b, kernel, frame = self.b, self.kernel, self.frame
        base, target = self.source if self._has(TransformCode.PICK) else self.bases[0], self.target
        real_in, imag_in = frame["real_in"], frame["imag_in"]

        def given(element: Value, lanes: int, mask: Value | None) -> Complex:
            if kernel.load == "real":
                real = b.load(b.gep(base, element * self.size), kernel.part, lanes, mask)
                return Complex(real, b.const(kernel.part, 0, lanes))  # type: ignore[arg-type]
            value = b.load(b.gep(base, element * (2 * self.size)), _complex(kernel.part), lanes, mask)
            assert isinstance(value, Complex)
            return value

        def each(cell: Value, element: Value, mask: Value | None) -> None:
            value = given(element, kernel.lanes, mask)
            self.cells.store(value, b.gep(target, cell * self.cell), real_in, imag_in)

        self._over_rows(each)
        if self._has(TransformCode.CENTER):
            first = b.gep(frame.scratch, self.step(7))
            self.cells.store(given(self.step(6), 1, None), first, real_in, imag_in)

    def _store_along(self) -> None:
        b, kernel, frame = self.b, self.kernel, self.frame
        base, source = self.target if self._has(TransformCode.PUT) else self.bases[1], self.source
        scale = self._scale()
        real_out, imag_out = frame["real_out"], frame["imag_out"]

        def put(value: Complex, element: Value, mask: Value | None) -> None:
            by = scale if value.re.lanes > 1 else b.extract(scale, 0)
            if kernel.store == "real":
                return b.store(value.re * by, b.gep(base, element * self.size), mask)
            return b.store(Complex(value.re * by, value.im * by), b.gep(base, element * (2 * self.size)), mask)

        def each(cell: Value, element: Value, mask: Value | None) -> None:
            put(self.cells.load(b.gep(source, cell * self.cell), real_out, imag_out), element, mask)

        self._over_rows(each)
        if self._has(TransformCode.CENTER):
            first = b.gep(frame.scratch, self.step(7))
            put(self.cells.load(first, real_out, imag_out, lanes=1), self.step(6), None)

    def _pick(self) -> None:
        """Element i of what is loaded is element table[i] of the operand, or that real number of it."""
        b, base, target, table = self.b, self.bases[0], self.target, self.pointer(4)
        dtype, lanes = self._moved(self.kernel.load)
        nbytes, stride = dtype.size * lanes, self.frame["j0"]

        def each(i: Value) -> None:
            at = b.load(b.gep(table, i * 8), dt.int64, 1)
            x = b.load(b.gep(base, at * stride), dtype, lanes)  # type: ignore[operator]
            b.store(x, b.gep(target, i * nbytes))

        self._in_fours(self.step(3), each)

    def _put(self) -> None:
        """Element k of the result is element table[k] of what was stored."""
        b, base, source, table = self.b, self.bases[1], self.source, self.pointer(4)
        dtype, lanes = self._moved(self.kernel.store)
        nbytes, stride = dtype.size * lanes, self.frame["j1"]

        def each(k: Value) -> None:
            at = b.load(b.gep(table, k * 8), dt.int64, 1)
            x = b.load(b.gep(source, at * nbytes), dtype, lanes)  # type: ignore[operator]
            b.store(x, b.gep(base, k * stride))

        self._in_fours(self.step(3), each)

    def _moved(self, what: str) -> tuple[Dtype, int]:
        """As what a number is moved that is one element of memory."""
        if what == "complex":
            return dt.int64, self.size // 4
        return (dt.int32 if self.size == 4 else dt.int64), 1

    def _in_fours(self, count: Value, each: Callable[[Value], None]) -> None:
        b = self.b
        whole = (count >> 2) << 2
        with b.loop(0, whole, 4) as loop:
            for i in range(4):
                each(loop.index + i)
        with b.loop(whole, count, 1) as rest:
            each(rest.index)

    def _scale(self) -> Value:
        b = self.b
        number = b.bitcast(self.frame["scale"], dt.float64)
        return b.splat(b.cast(number, self.kernel.part), self.kernel.lanes)

    def _cell(self, element: Value) -> Value:
        """Where the cell of an element lies that a kernel across transforms loads or stores, by a table."""
        b = self.b
        offset = b.load(b.gep(self.pointer(4), element * 8), dt.int64, 1)
        assert isinstance(offset, Value)
        return b.gep(self.frame.scratch, offset)

    def _load_across(self) -> None:
        """Element j of each transform; those from the last on are zeros."""
        b, kernel, frame = self.b, self.kernel, self.frame
        points, total = self.step(3), self.step(6)
        stride, near = frame["j0"], kernel.lies[0] == "near"
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
            self.cells.store(value, self._cell(j), real_in, imag_in)

        if kernel.lies[0] == "turned":
            self._load_turned(total)
        else:
            self._masked(total, each)
        with b.loop(total, points, 1) as loop:
            self.cells.store(Complex(zero, zero), self._cell(loop.index))

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
        """Elements from the last (word 6) on are left out."""
        b, kernel, frame, total = self.b, self.kernel, self.frame, self.step(6)
        if kernel.lies[1] == "turned":
            return self._store_turned(total)
        stride, near, scale = frame["j1"], kernel.lies[1] == "near", self._scale()
        real_out, imag_out = frame["real_out"], frame["imag_out"]

        def each(k: Value, mask: Value | None) -> None:
            value = self.cells.load(self._cell(k), real_out, imag_out)
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

        return self._masked(total, each)

    def _squares(self, total: Value, each: Callable[[Value, Value | None], None]) -> None:
        """each(j, mask) for squares of as many elements as there are lanes. The last one reaches back where they do not
        come out even, so only one that is all there is has a mask: machines without masks take long for these."""
        b, lanes = self.b, self.kernel.lanes
        with b.loop(0, b.choose(total < lanes, 0, total), lanes) as loop:
            each(b.intrinsic("smin", loop.index, total - lanes), None)
        with b.when(total < lanes):
            each(b.i64(0), b.iota(dt.int32, lanes) < b.splat(b.cast(total, dt.int32), lanes))

    def _load_turned(self, total: Value) -> None:
        """What is past the end of a row is zeros, and rows past the last one are that one again. Word 5 is the square's
        place, word 7 the offsets of its rows."""
        b, kernel, frame, lanes = self.b, self.kernel, self.frame, self.kernel.lanes
        square, rows, last = b.gep(frame.scratch, self.step(5)), self.pointer(7), self.left - 1

        def turn(j: Value, mask: Value | None) -> None:
            with b.loop(0, lanes, 1) as loop:
                row = b.gep(self.bases[0], b.intrinsic("smin", loop.index, last) * frame["i0"])
                if kernel.load == "real":
                    zero = b.const(kernel.part, 0, lanes)
                    value: AnyValue = Complex(self._reals(b.gep(row, j * self.size), True, mask), zero)
                else:
                    value = b.load(b.gep(row, j * (2 * self.size)), _complex(kernel.part), lanes, mask)
                assert isinstance(value, Complex)
                at = b.gep(square, loop.index * self.cell)
                self.cells.store(value, at, frame["real_in"], frame["imag_in"])
            self._turned(square, rows, frame.scratch, b.gep(self.pointer(4), j * 8))

        self._squares(total, turn)

    def _store_turned(self, total: Value) -> None:
        """The same the other way round."""
        b, kernel, frame = self.b, self.kernel, self.frame
        square, rows, scale = b.gep(frame.scratch, self.step(5)), self.pointer(7), self._scale()
        size = self.size if kernel.store == "real" else 2 * self.size

        def put(row: Value, k: Value, mask: Value | None) -> None:
            x = self.cells.load(b.gep(square, row * self.cell), frame["real_out"], frame["imag_out"])
            at = b.gep(self.bases[1], row * frame["i1"] + k * size)
            b.store(x.re * scale if kernel.store == "real" else Complex(x.re * scale, x.im * scale), at, mask)

        def turn(k: Value, mask: Value | None) -> None:
            self._turned(frame.scratch, b.gep(self.pointer(4), k * 8), square, rows)
            whole = self.left if mask is None else self._rows_with_more_behind(total, size)
            with b.loop(0, whole, 1) as loop:
                put(loop.index, k, None)
            if mask is not None:
                with b.loop(whole, self.left, 1) as loop:
                    put(loop.index, k, mask)

        self._squares(total, turn)

    def _rows_with_more_behind(self, total: Value, size: int) -> Value:
        """Rows of fewer elements than a vector has that may be written as whole vectors in their order, because what
        they write behind their end is other rows of the same unit, which come after them."""
        b, step = self.b, self.frame["i1"]
        room = self.left * step - self.kernel.lanes * size
        fits = step.eq(total * size) & (room >= 0)
        count, _ = self.frame.divide(b.choose(fits, room, 0), b.choose(fits, step, 1))
        return b.choose(fits, count + 1, 0)

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
