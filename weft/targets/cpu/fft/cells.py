"""Cells, and the functions over them that all kernels of transforms call: each is compiled once.

A cell is a vector of real parts, then one of imaginary parts, of as many complex numbers as there are lanes. What the
lanes are is the kernel's affair (`kernel.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from weft import dtypes as dt
from weft.codegen.transposes import transposed
from weft.dtypes import Dtype
from weft.llvm.builder import PTR, AnyValue, Builder, Complex, Value
from weft.llvm.engine import Source
from weft.records import dataclass
from weft.targets.cpu.features import features
from weft.targets.cpu.fft.butterflies import butterfly, times

_REGISTERS: Final = 64
"""Bytes of a vector on machines that have 32 of them."""


class Cells:
    """Loads and stores of cells, for a kernel under construction."""

    def __init__(self, b: Builder, part: Dtype, lanes: int) -> None:
        self.b, self.part, self.lanes = b, part, lanes
        self.size, self.imag, self.nbytes = part.size, lanes * part.size, 2 * lanes * part.size

    def load(self, at: Value, re: Value | int = 0, im: Value | int | None = None, lanes: int | None = None) -> Complex:
        """A cell, or its first lanes; its parts lie at `re` and `im`."""
        b, lanes = self.b, self.lanes if lanes is None else lanes
        places = (b.gep(at, re), b.gep(at, self.imag if im is None else im))
        return Complex(*(b.load(place, self.part, lanes) for place in places))  # type: ignore[arg-type]

    def store(self, x: Complex, at: Value, re: Value | int = 0, im: Value | int | None = None) -> None:
        b = self.b
        b.store(x.re, b.gep(at, re))
        b.store(x.im, b.gep(at, self.imag if im is None else im))

    def number(self, at: Value) -> Complex:
        """A complex number of a table, for all lanes."""
        b = self.b
        re, im = b.load(at, self.part, 1), b.load(b.gep(at, self.size), self.part, 1)
        assert isinstance(re, Value)
        assert isinstance(im, Value)
        return Complex(b.splat(re, self.lanes), b.splat(im, self.lanes))


@dataclass(frozen=True, slots=True)
class Shared(ABC):
    """A function that kernels of transforms call."""

    part: Dtype
    lanes: int
    params: ClassVar[Sequence[tuple[str, Dtype]]]

    @property
    @abstractmethod
    def title(self) -> str:
        """What sets it apart from others over the same cells."""

    @abstractmethod
    def emit(self, b: Builder) -> None:
        """Its code, but for the return."""

    @property
    def name(self) -> str:
        return f"fft_{self.title}_{self.part.name}x{self.lanes}"

    def source(self) -> Source:
        return Source(f"fft:{self.name}", self.name, self._ir)

    def _ir(self) -> str:
        b = Builder(self.name, self.params, features())
        b.as_written = True
        self.emit(b)
        b.ret()
        return b.module()


@dataclass(frozen=True, slots=True)
class Turn(Shared):
    """One part of as many cells as there are lanes, rows and columns exchanged: from `source` plus each offset of a
    table to `target` plus those of another."""

    params = [("source", PTR), ("from", PTR), ("target", PTR), ("to", PTR)]

    @property
    def title(self) -> str:
        return "turn"

    def emit(self, b: Builder) -> None:
        source, from_, target, to = b.params
        places = [b.gep(source, b.word(from_, i)) for i in range(self.lanes)]
        rows = [b.load(place, self.part, self.lanes) for place in places]
        for i, column in enumerate(transposed(b, rows)):
            b.store(column, b.gep(target, b.word(to, i)))


@dataclass(frozen=True, slots=True)
class TurnBy(Shared):
    """Rows of cells times factors, to columns: lane i of cell v of row k becomes lane k of a cell of row v * lanes + i.
    Words 3, 4, 9 and 10 of the step are rows, width, and the bytes from a row or a block of lanes of the result to the
    next. Factors are a table (word 6), or, if that `is_long`, products: of one for a block of columns (words 6 and 8,
    their number) and one for the column in the block (word 7). Blocks are as long on every machine; `before` cells of a
    row come before these."""

    is_long: bool
    params = [("step", PTR), ("source", PTR), ("target", PTR), ("before", dt.int64)]

    @property
    def title(self) -> str:
        return "turn_long" if self.is_long else "turn_by"

    def emit(self, b: Builder) -> None:
        """Rows past the last one are that one again."""
        step, source, target, before = b.params
        cells, lanes = Cells(b, self.part, self.lanes), self.lanes
        rows, width, by_row, by_block = (b.word(step, i) for i in (3, 4, 9, 10))
        factor = self._product(cells, step, before) if self.is_long else self._factor(cells, step, width)
        blocks = (rows + (lanes - 1)) >> (lanes.bit_length() - 1)
        with b.loop(0, blocks, 1) as squares, b.loop(0, width, 1) as inner:
            v, first = inner.index, squares.index * lanes
            found: list[AnyValue] = []
            for lane in range(lanes):
                row = b.intrinsic("smin", first + lane, rows - 1)
                x = cells.load(b.gep(source, (row * width + v) * cells.nbytes))
                found.append(times(b, x, factor(row, v)))
            at = b.gep(target, v * lanes * by_row + squares.index * by_block)
            for lane, column in enumerate(transposed(b, found)):
                assert isinstance(column, Complex)
                cells.store(column, b.gep(at, by_row * lane))

    def _factor(self, cells: Cells, step: Value, width: Value) -> Callable[[Value, Value], Complex]:
        b = cells.b
        table = b.word(step, 6, PTR)
        return lambda row, v: cells.load(b.gep(table, (row * width + v) * cells.nbytes))

    def _product(self, cells: Cells, step: Value, before: Value) -> Callable[[Value, Value], Complex]:
        b, parts, number = cells.b, 64 // cells.size // self.lanes, 2 * cells.size
        bits = parts.bit_length() - 1
        blocks, columns, pitch = b.word(step, 6, PTR), b.word(step, 7, PTR), b.word(step, 8)

        def factor(row: Value, v: Value) -> Complex:
            column = v + before
            block = column >> bits
            whole = cells.number(b.gep(blocks, (row * pitch + block) * number))
            rest = column - (block << bits)
            return times(b, cells.load(b.gep(columns, (row * parts + rest) * cells.nbytes)), whole)

        return factor


_STEP: Final = [("step", PTR), ("source", PTR), ("target", PTR)]


@dataclass(frozen=True, slots=True)
class Stage(Shared):
    """A stage of a radix that has a butterfly: result k of butterfly p of source[q + s (p + k m)] is
    target[q + s (r p + k)], for every q below s; `count` times over. Words 3 to 6 of the step are m, s, count and the
    factors of the butterflies."""

    radix: int
    params = _STEP

    @property
    def title(self) -> str:
        return f"stage_{self.radix}"

    def emit(self, b: Builder) -> None:
        step, source, target = b.params
        cells, radix = Cells(b, self.part, self.lanes), self.radix
        m, s, count, table = b.word(step, 3), b.word(step, 4), b.word(step, 5), b.word(step, 6, PTR)
        leg_in, leg_out, number = m * s * cells.nbytes, s * cells.nbytes, 2 * cells.size
        with b.loop(0, count, 1) as blocks:
            begin = blocks.index * (leg_in * radix)
            x, y = b.gep(source, begin), b.gep(target, begin)
            self._butterflies(cells, x, y, leg_in, leg_out, ())
            with b.loop(1, m, 1) as loop:
                p = loop.index
                at = b.gep(table, p * (number * (radix - 1)))
                factors = [cells.number(b.gep(at, number * k)) for k in range(radix - 1)]
                here, there = b.gep(x, p * leg_out), b.gep(y, p * (leg_out * radix))
                self._butterflies(cells, here, there, leg_in, leg_out, factors)

    def _butterflies(
        self, cells: Cells, x: Value, y: Value, leg_in: Value, leg_out: Value, factors: Sequence[Complex]
    ) -> None:
        b = cells.b
        with b.loop(0, leg_out, cells.nbytes) as loop:
            given = [cells.load(at) for at in _legs(b.gep(x, loop.index), leg_in, self.radix)]
            found = butterfly(b, given)
            for k, at in enumerate(_legs(b.gep(y, loop.index), leg_out, self.radix)):
                cells.store(times(b, found[k], factors[k - 1]) if factors and k else found[k], at)


@dataclass(frozen=True, slots=True)
class StrideStage(Shared):
    """One of the first stages of a transform, for those of its elements that lie `apart` from each other, the first of
    them behind `before` others: they make a transform of their own but for their factors. It does `together` of these,
    neighbours, or those that are left. Words 3 to 6 of the step are m, s, the bytes from an element that is read to the
    next, and the factors of all butterflies of the whole transform; word 8 is the bytes from a result to the next, 9
    and 11 are how far elements lie apart and how many are done together. Words 7 and 10 say whether elements are read
    and written where neighbours are next to each other; else each of these transforms has memory of its own."""

    radix: int
    params = [*_STEP, ("before", dt.int64)]

    @property
    def title(self) -> str:
        return f"stride_{self.radix}"

    def emit(self, b: Builder) -> None:
        step, source, target, before = b.params
        cells, radix = Cells(b, self.part, self.lanes), self.radix
        m, s, table, apart = b.word(step, 3), b.word(step, 4), b.word(step, 6, PTR), b.word(step, 9)
        read, write, number = b.word(step, 5), b.word(step, 8), 2 * cells.size
        own, near = m * s * (radix * cells.nbytes), b.i64(cells.nbytes)
        next_read, next_write = (b.choose(b.word(step, i).ne(0), near, own) for i in (7, 10))

        def butterflies(x: Value, y: Value, p: Value, factors: Sequence[Complex]) -> None:
            x, y = b.gep(x, p * s * read), b.gep(y, p * s * radix * write)
            with b.loop(0, s, 1) as loop:
                given = [cells.load(at) for at in _legs(b.gep(x, loop.index * read), m * s * read, radix)]
                found = butterfly(b, given)
                for k, at in enumerate(_legs(b.gep(y, loop.index * write), s * write, radix)):
                    cells.store(times(b, found[k], factors[k - 1]) if factors and k else found[k], at)

        together = b.intrinsic("smin", b.word(step, 11), apart - before)
        with b.loop(0, together, 1) as neighbours:
            x, y = b.gep(source, neighbours.index * next_read), b.gep(target, neighbours.index * next_write)
            place = before + neighbours.index
            is_first = place.eq(0)
            with b.when(is_first):
                butterflies(x, y, b.i64(0), ())
            with b.loop(b.choose(is_first, b.i64(1), b.i64(0)), m, 1) as loop:
                at = b.gep(table, (place + loop.index * apart) * (number * (radix - 1)))
                butterflies(x, y, loop.index, [cells.number(b.gep(at, number * k)) for k in range(radix - 1)])


def _legs(first: Value, step: Value, count: int) -> list[Value]:
    """Addresses one step apart, each from the one before it: few registers."""
    found = [first]
    while len(found) < count:
        found.append(first.b.gep(found[-1], step))
    return found


@dataclass(frozen=True, slots=True)
class SummedStage(Shared):
    """The same for any odd prime, which is word 8, by sums of products with the roots of word 9. Sums and differences
    of pairs take the place of what was given."""

    params = _STEP

    @property
    def title(self) -> str:
        return "stage_summed"

    def emit(self, b: Builder) -> None:
        step, source, target = b.params
        cells = Cells(b, self.part, self.lanes)
        m, s, count, table = b.word(step, 3), b.word(step, 4), b.word(step, 5), b.word(step, 6, PTR)
        radix, roots = b.word(step, 8), b.word(step, 9, PTR)
        leg_in, leg_out = m * s * cells.nbytes, s * cells.nbytes
        with b.loop(0, count, 1) as blocks, b.loop(0, m, 1) as loop, b.loop(0, leg_out, cells.nbytes) as columns:
            begin, p = blocks.index * (leg_in * radix) + columns.index, loop.index
            x, y = b.gep(source, begin + p * leg_out), b.gep(target, begin + p * (leg_out * radix))
            factors = b.gep(table, p * ((radix - 1) * (2 * cells.size)))
            self._pairs(cells, x, y, leg_in, radix)
            self._sums(cells, x, y, (leg_in, leg_out), radix, roots, factors)

    def _pairs(self, cells: Cells, x: Value, y: Value, leg: Value, radix: Value) -> None:
        """Sums and differences in place, and the sum of all, which is the first result."""
        b, first = cells.b, cells.load(x)
        with b.loop(1, (radix + 1) >> 1, 1, first.re, first.im) as loop:
            low, high = b.gep(x, loop.index * leg), b.gep(x, (radix - loop.index) * leg)
            a, c = cells.load(low), cells.load(high)
            cells.store(a + c, low)
            cells.store(a - c, high)
            total = Complex(*loop.carried) + (a + c)
            loop.carry(total.re, total.im)
        cells.store(Complex(*loop.carried), y)

    def _sums(
        self, cells: Cells, x: Value, y: Value, legs: tuple[Value, Value], radix: Value, roots: Value, factors: Value
    ) -> None:
        """Some results at a time, each with its mirror image; the last of them may be made twice."""
        b, number, (leg_in, leg_out) = cells.b, 2 * cells.size, legs
        group = 4 if cells.imag == _REGISTERS else 2
        half, first, zero = (radix - 1) >> 1, cells.load(x), b.const(cells.part, 0, cells.lanes)
        with b.loop(0, half, group) as loop:
            start = b.intrinsic("smin", loop.index, half - group)
            at_once = (first.re, first.im, zero, zero) * group
            with b.loops_as_written(False), b.loop(0, half, 1, *at_once) as terms:
                k = terms.index + 1
                s, d = cells.load(b.gep(x, k * leg_in)), cells.load(b.gep(x, (radix - k) * leg_in))
                sums: list[Value] = []
                for i in range(group):
                    re, im, u, v = terms.carried[4 * i : 4 * i + 4]
                    w = cells.number(b.gep(roots, ((start + i) * half + terms.index) * number))
                    sums += [b.fma(s.re, w.re, re), b.fma(s.im, w.re, im), b.fma(d.re, w.im, u), b.fma(d.im, w.im, v)]
                terms.carry(*sums)
            for i in range(group):
                re, im, u, v = terms.carried[4 * i : 4 * i + 4]
                low, high = start + (i + 1), radix - (start + (i + 1))
                for q, value in ((low, Complex(re + v, im - u)), (high, Complex(re - v, im + u))):
                    factor = cells.number(b.gep(factors, (q - 1) * number))
                    cells.store(times(b, value, factor), b.gep(y, q * leg_out))
