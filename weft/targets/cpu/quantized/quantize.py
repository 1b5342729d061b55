"""Numbers to packed codes in one pass: what the numbers of a group have in common, and then their codes.

Sixteen groups are taken together. Their smallest and largest numbers are found group by group; scales and biases are
computed with a lane for each group; codes with a lane for each number, as bytes, which are packed at the end. All of
that stays in a first-level cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.math import log2
from weft.dtypes import Dtype
from weft.llvm.builder import Builder, Value
from weft.primitives.quantized import FP4, FP4_MAX, FP8_MAX, Packing, Quantize
from weft.records import dataclass
from weft.targets.cpu import moves
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.quantized.codes import Codes
from weft.targets.cpu.quantized.packing import Repack, in_order

_LANES: Final = 16
_ROW: Final = 4 * _LANES  # bytes of a number for each group
_LOW, _HIGH, _BIAS, _STEP, _INVERSE, _CODES = (i * _ROW for i in range(6))
"""Where things are in scratch memory."""

_LINE: Final = 64  # bytes of a line of the caches

_SAFE: Final = 100
"""Numbers from 2 ** -100 to 2 ** 100 are divided by with their reciprocals: nothing on the way leaves the range."""
_LARGE: Final = 2.0**20
"""Quotients from here on are as good as infinite."""


@dataclass(frozen=True, slots=True)
class Quantizer(NativeKernel):
    """Writes the kernel for one packing and one dtype of numbers. All operands are contiguous; a unit is 16 groups."""

    title = "quantize"
    packing: Packing
    dtype: Dtype
    outer = 0

    def __str__(self) -> str:
        p = self.packing
        return f"quantize {p.mode} {p.group} {p.bits} {self.dtype.name}"

    def fields(self) -> list[str]:
        return ["units", "*x", "*words", "*scales", "*biases", "count"]

    @property
    def scratch(self) -> int:
        """Bytes of scratch memory."""
        return _CODES + _LANES * self.packing.group

    def emit(self, frame: Frame) -> None:
        f, b = frame, frame.b
        with b.loop(f.begin, f.end, 1) as unit:
            first = unit.index * _LANES
            whole = first + _LANES <= f["count"]
            with b.when(whole):
                self._groups(f, first, _LANES)
            with b.when(~whole), b.loop(first, f["count"], 1) as group:
                self._groups(f, group.index, 1)

    def _groups(self, f: Frame, first: Value, count: int) -> None:
        """Some groups from one on."""
        b, p = f.b, self.packing
        x = b.gep(f["x"], first * (p.group * self.dtype.size))
        words = b.gep(f["words"], first * (p.group * p.bits // 8))
        codes = words if p.bits == 8 else b.gep(f.scratch, _CODES)
        with b.loop(0, count, 1) as group:
            self._find_range(f, b.gep(x, group.index * (p.group * self.dtype.size)), group.index * 4)
        (self._find_affine if p.affine else self._find_scales)(f, first, count)
        with b.loop(0, count, 1) as group:
            here = b.gep(x, group.index * (p.group * self.dtype.size))
            for line in range(0, p.group * self.dtype.size, _LINE):  # of the next groups, while these are computed
                b.prefetch(b.gep(here, _LANES * p.group * self.dtype.size + line))
            self._encode(f, here, group.index * 4, b.gep(codes, group.index * p.group))
        if p.bits != 8:
            self._pack(b, codes, words, count)

    def _pack(self, b: Builder, codes: Value, words: Value, count: int) -> None:
        kernel = Repack(self.packing.bits, packs=True)
        made, fields = kernel.unit
        units = count * self.packing.group // (4 * fields)
        lanes = math.gcd(units, _LANES) if count > 1 else 1
        with b.loop(0, units, lanes) as unit:
            kernel.write(b, b.gep(codes, unit.index * (4 * fields)), b.gep(words, unit.index * (4 * made)), lanes)

    # ---- what groups have in common ----

    def _numbers(self, b: Builder, x: Value) -> list[Value]:
        """The numbers of a group, vector by vector."""
        found = []
        for run in range(0, self.packing.group, _LANES):
            loaded = b.load(b.gep(x, run * self.dtype.size), self.dtype, _LANES)
            assert isinstance(loaded, Value)
            found.append(b.cast(loaded, dt.float32))
        return found

    def _find_range(self, f: Frame, x: Value, at: Value) -> None:
        """The smallest and the largest number of a group, or the largest magnitude; NaN if there is one."""
        b = f.b
        numbers = self._numbers(b, x)
        nan = b.isnan(numbers[0])
        for number in numbers[1:]:
            nan = nan | b.isnan(number)
        spoiled = b.any(nan)

        def put(found: Value, place: int) -> None:
            b.store(b.choose(spoiled, math.nan, found), b.gep(f.scratch, at + place))

        def larger(x: Value, y: Value) -> Value:
            return b.choose(x > y, x, y)

        if self.packing.affine:
            put(_across(b, numbers, lambda x, y: b.choose(x < y, x, y)), _LOW)
            put(_across(b, numbers, larger), _HIGH)
        else:
            put(_across(b, [b.abs(number) for number in numbers], larger), _HIGH)

    def _got(self, f: Frame, place: int, lanes: int) -> Value:
        found = f.b.load(f.b.gep(f.scratch, place), dt.float32, lanes)
        assert isinstance(found, Value)
        return found

    def _find_affine(self, f: Frame, first: Value, lanes: int) -> None:
        """Scales and biases, as `_affine` of weft/core/quantizing.py defines them."""
        b, bits = f.b, self.packing.bits
        low, high = self._got(f, _LOW, lanes), self._got(f, _HIGH, lanes)
        step = (high - low) / float((1 << bits) - 1)
        step = b.choose(step < 1e-7, 1e-7, step)  # NaN stays
        scale, bias = step, low
        if bits > 1:
            below = b.abs(low) > b.abs(high)
            step, edge = b.choose(below, step, -step), b.choose(below, low, high)
            count = b.rint(edge / step)
            exact = count.eq(0.0)
            scale = b.choose(exact, step, edge / b.choose(exact, 1.0, count))
            bias = b.choose(exact, 0.0, edge)
        for made, name, place in ((scale, "scales", _STEP), (bias, "biases", _BIAS)):
            b.store(b.cast(made, self.dtype), b.gep(f[name], first * self.dtype.size))
            b.store(made, b.gep(f.scratch, place))
        b.store(1.0 / scale, b.gep(f.scratch, _INVERSE))

    def _find_scales(self, f: Frame, first: Value, lanes: int) -> None:
        """Scales of small floats: powers of two, or small floats themselves."""
        b, p = f.b, self.packing
        top = self._got(f, _HIGH, lanes)
        if p.mode == "nvfp4":
            made = b.cast(_to_fp8(b, top / FP4_MAX), dt.uint8)
        else:
            exponent = -b.floor(-log2(b, top / (FP4_MAX if p.bits == 4 else FP8_MAX)))
            exponent = b.choose(exponent < -127.0, -127.0, b.choose(exponent > 127.0, 127.0, exponent))
            made = b.cast(b.choose(top.eq(0.0), 0.0, exponent) + 127.0, dt.uint8)
        b.store(made, b.gep(f["scales"], first))
        step = Codes(p, dt.float32).scale(b, made)
        step = step * 2.0 if p.bits == 4 else step  # which that has for codes that are doubled
        b.store(step, b.gep(f.scratch, _STEP))
        b.store(1.0 / step, b.gep(f.scratch, _INVERSE))

    # ---- codes ----

    def _encode(self, f: Frame, x: Value, at: Value, codes: Value) -> None:
        """The codes of a group, as bytes."""
        b, p = f.b, self.packing
        step, inverse, bias = (b.splat(self._got_at(f, place, at), _LANES) for place in (_STEP, _INVERSE, _BIAS))
        if not p.affine and p.mode != "nvfp4":  # powers of two: a product is exactly the quotient
            self._put(b, [number * inverse for number in self._numbers(b, x)], codes)
            return
        size = b.abs(self._got_at(f, _STEP, at))
        safe = (size >= 2.0**-_SAFE) & (size <= 2.0**_SAFE)

        def numbers() -> list[Value]:
            return [number - bias if p.affine else number for number in self._numbers(b, x)]

        with b.when(safe):
            self._put(b, [_quotient(b, number, step, inverse) for number in numbers()], codes)
        with b.when(~safe):
            made = [number / step for number in numbers()]
            self._put(b, made if p.affine else [b.choose(step.eq(0.0), 0.0, x) for x in made], codes)

    def _got_at(self, f: Frame, place: int, at: Value) -> Value:
        found = f.b.load(f.b.gep(f.scratch, at + place), dt.float32, 1)
        assert isinstance(found, Value)
        return found

    def _put(self, b: Builder, scaled: Sequence[Value], codes: Value) -> None:
        p = self.packing
        code = self._affine if p.affine else _to_fp8 if p.bits == 8 else _to_fp4
        for run, x in enumerate(scaled):
            b.store(b.cast(code(b, x), dt.uint8), b.gep(codes, run * _LANES))

    def _affine(self, b: Builder, x: Value) -> Value:
        """The nearest integer that is a code; that of NaN is 0. Next to 2 ** 23 numbers are integers, so adding that
        rounds, and leaves the integer in the low bits."""
        most = float((1 << self.packing.bits) - 1)
        near = b.choose(x > 0.0, x, 0.0)
        near = b.choose(near < most, near, most)
        return b.bitcast(near + 2.0**23, dt.uint32)


def _across(b: Builder, vectors: Sequence[Value], pick: Callable[[Value, Value], Value]) -> Value:
    """One element out of all: pairs of vectors first, then halves of the one that is left."""
    found = list(vectors)
    while len(found) > 1:
        found = [pick(x, y) for x, y in zip(found[::2], found[1::2], strict=True)]
    (x,) = found
    while x.lanes > 2:
        half = x.lanes // 2
        x = pick(b.shuffle(x, None, range(half)), b.shuffle(x, None, range(half, 2 * half)))
    return pick(b.extract(x, 0), b.extract(x, 1))


def _quotient(b: Builder, x: Value, y: Value, inverse: Value) -> Value:
    """x / y, correctly rounded, by the correctly rounded 1 / y: the first correction leaves an error below one unit in
    the last place, and so the remainder of the second is exact (Markstein). Quotients that are tiny have an absolute
    error that is."""
    near = x * inverse
    found = near
    for _ in range(2):
        found = b.fma(b.fma(-found, y, x), inverse, found)
    return b.choose(b.abs(near) < _LARGE, found, near)


def _to_fp4(b: Builder, x: Value) -> Value:
    """The nearest E2M1, of two the smaller one; that of NaN is 0, and so is that of what is too small."""
    size = b.abs(x)
    code = b.const(dt.uint32, 0, x.lanes)
    for number, (low, high) in enumerate(itertools.pairwise(FP4), 1):
        code = b.choose(size > (low + high) / 2, number, code)
    return b.choose((x < 0.0) & code.ne(0), code | 8, code)


def _to_fp8(b: Builder, x: Value) -> Value:
    """The nearest E4M3, ties to even; what is too large becomes the largest, NaN stays NaN. Steps between
    neighbours are counted, up to 16 of them."""
    bits = b.bitcast(x, dt.uint32)
    size = b.abs(x)
    size = b.choose(size < FP8_MAX, size, FP8_MAX)
    exponent = b.bitcast(size, dt.uint32) >> 23
    exponent = b.choose(exponent > 121, exponent, 121)
    steps = b.bitcast(size * b.bitcast((257 - exponent) << 23, dt.float32) + 2.0**23, dt.uint32) & 31
    # The steps of a normal number begin at 8, for its leading one: so exponents are counted from the subnormal one.
    code = b.choose(b.isnan(x), 127, ((exponent - 121) << 3) + steps)
    return code | ((bits >> 31) << 7)


def lower(op: Quantize, operands: Sequence[Layout], *results: Layout) -> Lowering:
    """Pointers: x, the results, a copy of x if it is not contiguous."""
    (x,) = operands
    count = math.prod(results[1].shape)
    if count == 0:
        return Lowering(())
    launches: list[Launch] = []
    temporaries: list[int] = []
    at = in_order(x, Pointer(0), 1 + len(results), launches, temporaries)
    kernel = Quantizer(op.packing, x.dtype)
    units = -(-count // _LANES)
    words = (units, at, Pointer(1), Pointer(2), Pointer(len(results)), count)
    nbytes = _LANES * op.group * x.dtype.size
    launches.append(Launch(kernel.source(), words, moves.weigh(units, nbytes), kernel.scratch))
    return Lowering(tuple(launches), tuple(temporaries))
