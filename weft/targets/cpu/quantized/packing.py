"""Codes to words and back: between bytes, or numbers, and streams of bits.

Lanes are units (codes.py), and four codes, which are the bytes of a 32-bit number, are moved together: as a *field* of
four times as many bits as a code has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.dtypes import Dtype
from weft.llvm.builder import Builder, Value
from weft.primitives.quantized import Dequantize, Pack, Packing, Unpack
from weft.records import dataclass
from weft.targets.axes import row_major
from weft.targets.cpu import moves
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.quantized.codes import Codes

_LANES: Final = 16
_BLOCK: Final = 1024  # units that are worked on as one


@dataclass(frozen=True, slots=True)
class Repack(NativeKernel):
    """Packs codes of so many bits, or unpacks them. Both operands are contiguous."""

    title = "pack"
    bits: int
    packs: bool
    outer = 0

    def __str__(self) -> str:
        return f"{'pack' if self.packs else 'unpack'} {self.bits} bits"

    def fields(self) -> list[str]:
        return ["units", "*x", "*out", "count"]

    @property
    def unit(self) -> tuple[int, int]:
        """Words, and fields."""
        words, codes = Packing("affine", 32, self.bits).unit
        return words, codes // 4

    def emit(self, frame: Frame) -> None:
        b = frame.b
        with b.loop(frame.begin, frame.end, 1) as block:
            start = block.index * _BLOCK
            stop = frame.least(start + _BLOCK, frame["count"])
            whole = start + ((stop - start) & -_LANES)
            for lanes, first, end in ((_LANES, start, whole), (1, whole, stop)):
                with b.loop(first, end, lanes) as at:
                    self._units(frame, at.index, lanes)

    def _units(self, f: Frame, at: Value, lanes: int) -> None:
        """Some units from one on."""
        b, (words, fields) = f.b, self.unit
        given, made = (fields, words) if self.packs else (words, fields)
        self.write(b, b.gep(f["x"], at * (4 * given)), b.gep(f["out"], at * (4 * made)), lanes)

    def write(self, b: Builder, source: Value, target: Value, lanes: int) -> None:
        """The code for `lanes` units, from one place to another."""
        words, fields = self.unit
        found = _apart(b, source, fields if self.packs else words, lanes)
        _together(b, self._packed(b, found) if self.packs else self._unpacked(b, found), target)

    def _packed(self, b: Builder, given: list[Value]) -> list[Value]:
        """Words of fields of bytes."""
        bits, width = self.bits, 4 * self.bits
        mask = (1 << bits) - 1
        narrow = []
        for x in given:
            field = x & mask
            for j in range(1, 4):
                field = field | ((x >> (8 - bits) * j if bits < 8 else x) & (mask << bits * j))
            narrow.append(field)
        words: list[Value | None] = [None] * self.unit[0]
        for i, field in enumerate(narrow):
            for word in range(i * width // 32, ((i + 1) * width - 1) // 32 + 1):
                shift = i * width - 32 * word
                part = field << shift if shift > 0 else field >> -shift if shift < 0 else field
                before = words[word]
                words[word] = part if before is None else before | part
        return [word for word in words if word is not None]

    def _unpacked(self, b: Builder, words: list[Value]) -> list[Value]:
        """Bytes of the fields of words."""
        bits, width = self.bits, 4 * self.bits
        mask = (1 << bits) - 1
        made = []
        for i in range(self.unit[1]):
            word, shift = divmod(i * width, 32)
            field = words[word] >> shift if shift else words[word]
            if shift + width > 32:
                field = field | (words[word + 1] << 32 - shift)
            wide = field & mask
            for j in range(1, 4):
                wide = wide | ((field << (8 - bits) * j if bits < 8 else field) & (mask << 8 * j))
            made.append(wide)
        return made


def _apart(b: Builder, at: Value, count: int, lanes: int) -> list[Value]:
    """Numbers i, i + count, … of what lies at a place, for every i below `count`."""
    if lanes == 1:
        loaded = [b.load(b.gep(at, 4 * i), dt.uint32, 1) for i in range(count)]
        return [x for x in loaded if isinstance(x, Value)]
    whole = b.load(at, dt.uint32, lanes * count)
    assert isinstance(whole, Value)
    return [whole] if count == 1 else [b.shuffle(whole, None, range(i, lanes * count, count)) for i in range(count)]


def _together(b: Builder, vectors: Sequence[Value], at: Value) -> None:
    """Store vectors element by element: the first of each, then the second of each."""
    lanes, count = vectors[0].lanes, len(vectors)
    if lanes == 1:
        for i, x in enumerate(vectors):
            b.store(x, b.gep(at, 4 * i))
        return
    joined = list(vectors)
    while len(joined) > 1:
        joined += [b.poison(dt.uint32, joined[0].lanes)] * (len(joined) % 2)
        joined = [b.shuffle(x, y, range(2 * x.lanes)) for x, y in zip(joined[::2], joined[1::2], strict=True)]
    order = [i % count * lanes + i // count for i in range(lanes * count)]
    b.store(joined[0] if count == 1 else b.shuffle(joined[0], None, order), at)


def lower(op: Pack | Unpack, operands: Sequence[Layout], out: Layout) -> Lowering:
    """Pointers: 0 is x, 1 is out, 2 a copy of x if it is not contiguous."""
    if math.prod(out.shape) == 0:
        return Lowering(())
    (x,), packs = operands, isinstance(op, Pack)
    launches: list[Launch] = []
    temporaries: list[int] = []
    at = in_order(x, Pointer(0), 2, launches, temporaries)
    kernel = Repack(op.bits, packs)
    words = math.prod((out if packs else x).shape)
    count = words // kernel.unit[0]
    blocks = -(-count // _BLOCK)
    nbytes = _BLOCK * 4 * sum(kernel.unit)
    launches.append(Launch(kernel.source(), (blocks, at, Pointer(1), count), moves.weigh(blocks, nbytes)))
    return Lowering(tuple(launches), tuple(temporaries))


def in_order(x: Layout, at: Pointer, operands: int, launches: list[Launch], temporaries: list[int]) -> Pointer:
    """Where an operand lies contiguous: as it is, or copied first, behind so many operands and results."""
    plain = Layout(x.shape, tuple(row_major(x.shape, 1)), x.dtype)
    if all(n == 1 or s == t for n, s, t in zip(x.shape, x.strides, plain.strides, strict=True)):
        return at
    copied = Pointer(operands + len(temporaries))
    temporaries.append(math.prod(x.shape) * x.dtype.size)
    launches += moves.copy(x, plain, at, copied)
    return copied


# ---- numbers ----


@dataclass(frozen=True, slots=True)
class Numbers(NativeKernel):
    """The numbers of groups of codes, of which all operands are contiguous. A unit is some groups."""

    title = "dequantize"
    packing: Packing
    scales: Dtype
    result: Dtype
    outer = 0

    def __str__(self) -> str:
        p = self.packing
        return f"dequantize {p.mode} {p.group} {p.bits} {self.scales.name} {self.result.name}"

    def fields(self) -> list[str]:
        return ["units", "*w", "*scales", "*biases", "*out", "count", "each"]

    def emit(self, frame: Frame) -> None:
        f, b, p = frame, frame.b, self.packing
        wide = Dequantize.wide(self.scales)
        codes = Codes(p, wide)
        with b.loop(f.begin, f.end, 1) as part:
            start = part.index * f["each"]
            with b.loop(start, f.least(start + f["each"], f["count"]), 1) as group:
                at, out = (
                    b.gep(f["w"], group.index * (p.group * p.bits // 8)),
                    b.gep(f["out"], group.index * (p.group * self.result.size)),
                )
                here = group.index * self.scales.size
                scale = b.splat(codes.scale(b, self._one(b, b.gep(f["scales"], here))), _LANES)
                bias = None
                if p.affine:
                    bias = b.splat(b.cast(self._one(b, b.gep(f["biases"], here)), wide), _LANES)
                for run in range(p.group // _LANES):
                    x = self._run(b, codes, at, run) * scale
                    x = x if bias is None else x + bias
                    b.store(b.cast(x, self.result), b.gep(out, run * _LANES * self.result.size))

    def _one(self, b: Builder, at: Value) -> Value:
        x = b.load(at, self.scales, 1)
        assert isinstance(x, Value)
        return x

    def _run(self, b: Builder, codes: Codes, at: Value, run: int) -> Value:
        """The numbers of 16 codes that follow each other; a unit of more is loaded as a whole."""
        words, each = codes.words, codes.codes
        if each >= _LANES:
            unit, inside = divmod(run * _LANES, each)
            first, count = unit * words, words
        else:
            first, count, inside = run * _LANES // each * words, _LANES // each * words, 0
        loaded = b.load(b.gep(at, 4 * first), dt.uint32, count)
        assert isinstance(loaded, Value)
        return codes.run(b, loaded, inside, _LANES)


def dequantize(op: Dequantize, operands: Sequence[Layout], out: Layout) -> Lowering:
    """Pointers: operands, the result, copies of operands that are not contiguous."""
    if math.prod(out.shape) == 0:
        return Lowering(())
    launches: list[Launch] = []
    temporaries: list[int] = []
    last = len(operands)
    places = [in_order(x, Pointer(i), last + 1, launches, temporaries) for i, x in enumerate(operands)]
    kernel = Numbers(op.packing, operands[1].dtype, out.dtype)
    count = math.prod(operands[1].shape)
    each = _BLOCK // op.group * 8
    units = -(-count // each)
    words = (units, places[0], places[1], places[-1], Pointer(last), count, each)
    launches.append(Launch(kernel.source(), words, moves.weigh(units, each * op.group * out.dtype.size)))
    return Lowering(tuple(launches), tuple(temporaries))
