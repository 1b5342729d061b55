"""Codes in registers: how packed words become numbers, and what is read of scales.

A *unit* is the shortest run of codes that fills whole words (`Packing.unit`): eight 4-bit codes in one word, 32 3-bit
codes in three. Where lanes are units, code number j of all of them is one shift and one mask away; where lanes are
neighbouring codes, each lane shifts by its own count. The numbers are those of `numbers_of` of weft/primitives, up to a
power of two that the scales make good.
"""

from __future__ import annotations

from typing import Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.llvm.builder import Builder, Value, literal
from weft.primitives.quantized import FP4, Packing

_HALF: Final = 16  # bits of a word that codes are taken from without shifts
_TWICE_FP4: Final = sum(int(2 * number) << 4 * code for code, number in enumerate(FP4))
"""The 4-bit floats, doubled, in four bits each."""


class Codes:
    """Writes the code for one packing, whose numbers are wanted as `work`. `tables`: the processor looks numbers up in
    a register, eight of them or sixteen (AVX2, AVX-512)."""

    def __init__(self, packing: Packing, work: Dtype, *, tables: bool = False) -> None:
        self.packing, self.work, self.tables = packing, work, tables
        self.words, self.codes = packing.unit
        self.units = packing.group // self.codes  # of a group
        self.has_nan = packing.mode == "mxfp8"

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

    def number(self, b: Builder, words: list[Value], j: int, *, exact: bool = False) -> Value:
        """Number j of every unit; for one that is NaN any number, unless it shall be exact (or is asked for by
        `is_nan`)."""
        bits = self.packing.bits
        first, shift = divmod(j * bits, 32)
        if bits == 8 and not self.packing.affine and not exact:
            return b.cast(_fp8_at(b, words[0], shift), self.work)
        code = words[first] >> shift if shift else words[first]
        if shift + bits > 32:
            code = code | (words[first + 1] << (32 - shift))
        if self.tables and bits <= 4 and self.work is dt.float32 and code.lanes in (8, 16):
            if bits == 4 and code.lanes == 16 and self.packing.affine and shift in (0, 28):
                # A mask or a shift alone leaves it, and is converted: more units of a processor do that than look up.
                return self._number(b, code & 15 if shift == 0 else code)
            if bits < 4 or code.lanes == 16:
                return self._looked_up(b, code)
            if not self.packing.affine:
                return _with_sign(b, self._looked_up(b, code), words[first], shift + 3)
        if shift + bits != 32:
            code = code & ((1 << bits) - 1)
        return self._number(b, code)

    def raised(self, j: int) -> int:
        """The power of two that `raised_number` multiplies code j by: x is divided by it once, instead of each code
        being shifted to its place. No more than 15, so that nothing but numbers below 2**-111 loses digits. (Bytes are
        taken out of words as fast.)"""
        return j * self.packing.bits % _HALF if self._raises else 0

    @property
    def _raises(self) -> bool:
        return self.packing.affine and self.words == 1 and self.packing.bits < 8

    def raised_number(self, b: Builder, words: list[Value], j: int) -> Value:
        """Number j of every unit times two to the power of `raised(j)`."""
        bits = self.packing.bits
        if not self._raises:
            return self.number(b, words, j)
        word = words[0] if j * bits < _HALF else words[0] >> _HALF
        return self._number(b, word & ((1 << bits) - 1) << self.raised(j))

    def pair(self, b: Builder, words: list[Value], i: int) -> Value:
        """Code i of every unit, and code i + n / 2 of n, in the low and the high half of 32 bits."""
        bits, half = self.packing.bits, self.codes // 2
        if half * bits == _HALF:
            code = words[0] >> i * bits if i else words[0]
            return code & ((1 << bits) - 1) * 0x10001
        return self._placed(b, words, i, 0) | self._placed(b, words, i + half, 16)

    def _placed(self, b: Builder, words: list[Value], j: int, at: int) -> Value:
        """Code j of every unit, from bit `at` on."""
        bits = self.packing.bits
        first, shift = divmod(j * bits, 32)
        code = words[first]
        code = code >> shift - at if shift > at else code << at - shift if shift < at else code
        if shift + bits > 32:
            code = code | (words[first + 1] << 32 - shift + at)
        return code & ((1 << bits) - 1) << at

    def is_nan(self, b: Builder, words: list[Value]) -> Value:
        """Whether a unit has a NaN among its codes."""
        (word,) = words
        # Of a byte that is 0x7F or 0xFF, and of no other, seven bits overflow.
        return (((word & 0x7F7F7F7F) + 0x01010101) & 0x80808080).ne(0)

    def _looked_up(self, b: Builder, code: Value) -> Value:
        """The numbers of codes with more bits above them: the instruction sees as many as it has entries for, and those
        that belong to another code do not change what stands in the table."""
        entries = code.lanes
        mask = (1 << self.packing.bits) - 1
        small = [float(i) for i in range(16)] if self.packing.affine else [2 * x for x in (*FP4, *(-v for v in FP4))]
        numbers = ", ".join(f"float {literal(dt.float32, small[i & mask])}" for i in range(entries))
        table = Value(b, f"<{numbers}>", dt.float32, entries)
        name = "llvm.x86.avx512.permvar.sf.512" if entries == 16 else "llvm.x86.avx2.permps"
        return b.call(name, dt.float32, entries, table, code)

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
            return b.cast(_fp8(b, wide) * 0.5, self.work)
        # Powers of two by their exponents, of which the smallest are subnormal.
        if self.packing.bits == 8:
            step = b.choose(wide.eq(0), 1 << 22, wide << 23)
        else:
            step = b.choose(wide < 2, b.const(dt.uint32, 1 << 21, wide.lanes) << wide, (wide - 1) << 23)
        return b.cast(b.bitcast(step, dt.float32), self.work)


def _lanes(b: Builder, numbers: list[int]) -> Value:
    return Value(b, "<" + ", ".join(f"i32 {n}" for n in numbers) + ">", dt.uint32, len(numbers))


def _fp8_at(b: Builder, word: Value, shift: int) -> Value:
    """E4M3 codes that begin at a bit of words, as float32, but for NaN: the sign to the top, exponent and mantissa to
    their places, and the exponent's offset made good."""
    top = b.cast(word << (24 - shift) if shift != 24 else word, dt.int32)
    bits = b.cast(top >> 4, dt.uint32) & 0x87F00000
    return b.bitcast(bits, dt.float32) * 2.0**120


def _fp8(b: Builder, code: Value) -> Value:
    """E4M3 codes as float32."""
    return b.choose((code & 0x7F).eq(0x7F), float("nan"), _fp8_at(b, code, 0))


def _twice_fp4(b: Builder, code: Value) -> Value:
    """E2M1 codes as float32, doubled, which makes integers of them."""
    table = b.const(dt.uint32, _TWICE_FP4, code.lanes)
    size = b.cast(b.cast((table >> ((code & 7) << 2)) & 15, dt.int32), dt.float32)
    return _with_sign(b, size, code, 3)


def _with_sign(b: Builder, size: Value, word: Value, bit: int) -> Value:
    """Numbers that are not negative, with signs that stand at a bit of words."""
    sign = (word << (31 - bit) if bit != 31 else word) & 0x80000000
    return b.bitcast(b.bitcast(size, dt.uint32) | sign, dt.float32)
