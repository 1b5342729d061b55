"""Lanes of a vector that go the same way, written one after the other: rows are divided by conditions with them."""

from __future__ import annotations

from typing import Final

from weft import dtypes as dt
from weft.config import config
from weft.dtypes import Dtype
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.records import dataclass
from weft.targets.cpu.matmul.machine import machine


@dataclass(frozen=True, slots=True)
class Lanes:
    """How some lanes of a vector are written one after the other: "compress" (one instruction), "table" (a permutation
    that is looked up by the mask: with AVX2, and for eight lanes), or "single" (all are written, each where the next
    one will be)."""

    way: str
    count: int
    size: int
    """Bytes of a lane."""

    def __str__(self) -> str:
        return f"{self.way} {self.count}x{self.size}"

    def append(self, b: Builder, x: AnyValue, mask: Value, base: Value, at: Value) -> Value:
        """Write the lanes of the mask at place `at` of an array and on; up to a vector is written. Returns the place
        behind them."""
        if self.way == "single" or isinstance(x, Complex):
            return self.append_singly(b, x, mask, base, at)
        wide = b.cast(x, WORDS[self.size])
        packed = b.compress(wide, mask) if self.way == "compress" else self._permuted(b, wide, b.bits_of_mask(mask))
        b.store(b.cast(packed, x.dtype), b.gep(base, at * x.dtype.size))
        return at + b.count(mask)

    def divide(self, b: Builder, x: Value, mask: Value, base: Value, left: Value, right: Value) -> tuple[Value, Value]:
        """Write the lanes of the mask at place `left` and on, the others up to place `right`; between the two there is
        room for two vectors. Returns the places between which there is room then."""
        size, count = x.dtype.size, b.count(mask)
        if self.way == "table":
            both = self._permuted(b, x, b.bits_of_mask(mask))
            b.store(both, b.gep(base, left * size))
            b.store(both, b.gep(base, (right - self.count) * size))
            return left + count, right - (self.count - count)
        b.store(b.compress(x, mask), b.gep(base, left * size))
        end = right - (self.count - count)
        self._put(b, b.compress(x, ~mask), b.i64(self.count) - count, b.gep(base, end * size))
        return left + count, end

    def divide_some(
        self, b: Builder, x: Value, mask: Value, inside: Value, base: Value, left: Value, right: Value
    ) -> tuple[Value, Value]:
        """The same for the lanes that are inside, where there is room for them alone."""
        size, small, large = x.dtype.size, mask & inside, ~mask & inside
        for lanes, from_end in ((small, False), (large, True)):
            count = b.count(lanes)
            packed = b.compress(x, lanes) if self.way == "compress" else self._permuted(b, x, b.bits_of_mask(lanes))
            if from_end:
                right = right - count
            self._put(b, packed, count, b.gep(base, (right if from_end else left) * size))
            left = left if from_end else left + count
        return left, right

    def _put(self, b: Builder, x: Value, count: Value, place: Value) -> None:
        """The first `count` lanes."""
        if self.way == "compress":
            bits = b.cast((b.i64(1) << count) - 1, dt.uint16 if self.count == 16 else dt.uint8)
            mask = b.op(f"bitcast {bits.type} {bits.text} to <{self.count} x i1>", dt.bool_, self.count)
        else:
            mask = b.iota(dt.uint32, self.count) < b.splat(b.cast(count, dt.uint32), self.count)
        b.store(x, place, mask)

    def append_singly(self, b: Builder, x: AnyValue, mask: Value, base: Value, at: Value) -> Value:
        """The same lane by lane: nothing behind the place that is returned is written but that place itself."""
        for lane in range(self.count):
            if isinstance(x, Complex):
                element: AnyValue = Complex(b.extract(x.re, lane), b.extract(x.im, lane))
            else:
                element = b.extract(x, lane)
            b.store(element, b.gep(base, at * x.dtype.size))
            at = at + b.cast(b.extract(mask, lane), dt.int64)
        return at

    def _permuted(self, b: Builder, x: Value, bits: Value) -> Value:
        """The lanes of the mask in front, and the others behind them, by a permutation of eight parts."""
        parts = 8 // self.count
        whole = self.count * self.size == 64
        orders = []
        for mask in range(1 << self.count):
            order = sorted(range(self.count), key=lambda lane: not mask >> lane & 1)
            orders += [lane * parts + part for lane in order for part in range(parts)]
        table = b.table(f"compress{self.count}", dt.uint8, orders)
        found = b.cast(vector_of(b.load(b.gep(table, bits << 3), dt.uint8, 8)), dt.uint64 if whole else dt.uint32)
        if whole:
            return b.call("llvm.x86.avx512.permvar.di.512", x.dtype, 8, x, found)
        if parts == 1:
            return b.call("llvm.x86.avx2.permd", x.dtype, 8, x, found)
        halves = b.op(f"bitcast {x.type} {x.text} to <8 x i32>", dt.uint32, 8)
        moved = b.call("llvm.x86.avx2.permd", dt.uint32, 8, halves, found)
        return b.op(f"bitcast {moved.type} {moved.text} to {x.type}", x.dtype, x.lanes)


WORDS: Final = {4: dt.uint32, 8: dt.uint64}


def vector_of(x: AnyValue) -> Value:
    assert isinstance(x, Value)
    return x


def lanes_of(dtype: Dtype) -> Lanes:
    """The lanes of this processor for keys of a dtype: 32 or 64 bits wide."""
    vector, size = machine(config.cpu).vector, 4 if dtype.size <= 4 else 8
    way = {64: "compress" if size == 4 else "table", 32: "table"}.get(vector, "single")
    return Lanes(way, vector // size, size)
