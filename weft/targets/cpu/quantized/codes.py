"""Codes in registers: how packed words become numbers, and what is read of scales.

A *unit* is the shortest run of codes that fills whole words (`Packing.unit`): eight 4-bit codes in one word, 32 3-bit
codes in three. Where lanes are units, code number j of all of them is one shift and one mask away; where lanes are
neighbouring codes, each lane shifts by its own count. The numbers are those of `numbers_of` of weft/primitives, up to a
power of two that the scales make good.
"""

from __future__ import annotations

from typing import Final

from weft import dtypes as dt
from weft.codegen.builder import Builder, Value, literal
from weft.dtypes import Dtype
from weft.primitives.quantized import FP4, Packing

_TWICE_FP4: Final = sum(int(2 * number) << 4 * code for code, number in enumerate(FP4))
"""The 4-bit floats, doubled, in four bits each."""


class Codes:
    """Writes the code for one packing, whose numbers are wanted as `work`. `tables`: the processor looks sixteen
    numbers up in a register (AVX-512)."""

    def __init__(self, packing: Packing, work: Dtype, *, tables: bool = False) -> None:
        self.packing, self.work, self.tables = packing, work, tables
        self.words, self.codes = packing.unit
        self.units = packing.group // self.codes  # of a group

    @property
    def name(self) -> str:
        p = self.packing
        return f"{p.mode}_{p.group}_{p.bits}"

    # ---- lanes are units ----

    def split(self, b: Builder, loaded: Value) -> list[Value]:
        """The words of units that stand one after the other, word by word."""
        if self.words == 1:
            return [loaded]
        return [b.shuffle(loaded, None, range(i, loaded.lanes, self.words)) for i in range(self.words)]

    def number(self, b: Builder, words: list[Value], j: int) -> Value:
        """Number j of every unit."""
        bits = self.packing.bits
        first, shift = divmod(j * bits, 32)
        code = words[first] >> shift if shift else words[first]
        if shift + bits > 32:
            code = code | (words[first + 1] << (32 - shift))
        if self.tables and bits <= 4 and code.lanes == 16 and self.work is dt.float32:
            return self._looked_up(b, code)
        if shift + bits != 32:
            code = code & ((1 << bits) - 1)
        return self._number(b, code)

    def _looked_up(self, b: Builder, code: Value) -> Value:
        """The numbers of codes with more bits above them: the instruction sees the lowest four, and those that belong
        to another code do not change what stands in the table."""
        mask = (1 << self.packing.bits) - 1
        small = [float(i) for i in range(16)] if self.packing.affine else [2 * x for x in (*FP4, *(-v for v in FP4))]
        numbers = ", ".join(f"float {literal(dt.float32, small[i & mask])}" for i in range(16))
        table = Value(b, f"<{numbers}>", dt.float32, 16)
        return b.call("llvm.x86.avx512.permvar.sf.512", dt.float32, 16, table, code)

    # ---- lanes are codes ----

    def run(self, b: Builder, words: Value, start: int, lanes: int) -> Value:
        """Numbers `start` to `start + lanes` of one unit, whose words are given."""
        bits = self.packing.bits
        places = [divmod((start + lane) * bits, 32) for lane in range(lanes)]
        code = self._picked(b, words, [first for first, _ in places]) >> _lanes(b, [shift for _, shift in places])
        if any(shift + bits > 32 for _, shift in places):
            after = self._picked(b, words, [min(first + 1, self.words - 1) for first, _ in places])
            # What is not in the next word is masked away: 31 leaves one bit of it, which is too high to matter.
            left = [32 - shift if shift + bits > 32 else 31 for _, shift in places]
            code = code | (after << _lanes(b, left))
        return self._number(b, code & ((1 << bits) - 1))

    def _picked(self, b: Builder, words: Value, order: list[int]) -> Value:
        return b.splat(words, len(order)) if words.lanes == 1 else b.shuffle(words, None, order)

    # ---- numbers ----

    def _number(self, b: Builder, code: Value) -> Value:
        if self.packing.affine:
            return b.cast(b.cast(code, dt.int32), self.work)  # small: signs do not matter, and signed ones are faster
        return b.cast(_fp8(b, code) if self.packing.bits == 8 else _twice_fp4(b, code), self.work)

    def scale(self, b: Builder, loaded: Value) -> Value:
        """What a number is to be multiplied with, of scales as they are in memory."""
        if self.packing.affine:
            return b.cast(loaded, self.work)
        wide = b.cast(loaded, dt.uint32)
        if self.packing.mode == "nvfp4":
            step = _fp8(b, wide)
        else:
            # Powers of two by their exponents; the smallest is subnormal.
            step = b.bitcast(b.choose(wide.eq(0), 1 << 22, wide << 23), dt.float32)
        return b.cast(step if self.packing.bits == 8 else step * 0.5, self.work)


def _lanes(b: Builder, numbers: list[int]) -> Value:
    return Value(b, "<" + ", ".join(f"i32 {n}" for n in numbers) + ">", dt.uint32, len(numbers))


def _fp8(b: Builder, code: Value) -> Value:
    """E4M3 codes as float32: exponent and mantissa moved to their places, and the exponent's offset made good."""
    size, sign = code & 0x7F, (code & 0x80) << 24
    number = b.bitcast((size << 20) | sign, dt.float32) * 2.0**120
    return b.choose(size.eq(0x7F), float("nan"), number)


def _twice_fp4(b: Builder, code: Value) -> Value:
    """E2M1 codes as float32, doubled, which makes integers of them."""
    table = b.const(dt.uint32, _TWICE_FP4, code.lanes)
    size = b.cast(b.cast((table >> ((code & 7) << 2)) & 15, dt.int32), dt.float32)
    return b.bitcast(b.bitcast(size, dt.uint32) | ((code & 8) << 28), dt.float32)
