"""Rows of halves as fixed-point numbers, and the products of these with codes, whose sums are exact.

A group of x is 16-bit integers times a power of two, its *step*, which makes at least 2**14 of the largest number. So
numbers of float16 within 2**-4 of that, and of bfloat16 within 2**-7, are as they were; others are off by 2**-15 of it
at most. A group that has a number which is not finite has a step that is NaN.

An integer multiplies two pairs at once where a float multiplies one, and takes codes as they are, without a conversion.
Sums of a group stay below 2**31: it has 128 codes of eight bits at most. They are exact, so it does not matter in which
order they are added up.

A row is its integers, then the steps of its groups, then the sums of x over them; in every unit of codes (codes.py) in
pairs: number i and number i + n / 2 of n. Bytes of a row: `row_size`.
"""

from __future__ import annotations

import math
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Pointer
from weft.llvm.builder import Builder, Value
from weft.llvm.engine import Source
from weft.primitives.quantized import Packing
from weft.records import dataclass
from weft.targets.axes import row_major
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import ProductFrame, Word, block
from weft.targets.cpu.matmul.tasks import STREAM, grain_of, tasks_for
from weft.targets.cpu.quantized.codes import Codes
from weft.targets.cpu.quantized.matrices import merged

NUMBER: Final = 2
"""Bytes of a number."""

_LANES: Final = 16
_TOP: Final = 14  # the exponent of the largest number of a group
_ONE: Final = 1 << 23  # of the exponent of a float32
_WORDS: Final = ("tasks", "*x", "*out", "rows", "k", "x_row", "out_row", "rows_of_task", "parts")


def row_size(k: Any, packing: Packing) -> Any:
    """The bytes of a row of k numbers."""
    return k * NUMBER + k // packing.group * (2 * dt.float32.size)


@dataclass(frozen=True, slots=True)
class FixedRow:
    """Where a row, or a part of one, lies."""

    numbers: Value
    steps: Value
    sums: Value

    def moved(self, offset: Value) -> FixedRow:
        """So many bytes further on, which is where another row is."""
        b = offset.b
        return FixedRow(*(b.gep(at, offset) for at in (self.numbers, self.steps, self.sums)))

    def along(self, f: ProductFrame, k: Value, group: int) -> FixedRow:
        """From number k on, which begins a group."""
        b, step = f.b, f.divide(k, group)[0] * dt.float32.size
        return FixedRow(b.gep(self.numbers, k * NUMBER), b.gep(self.steps, step), b.gep(self.sums, step))


def row_at(f: ProductFrame, at: Value, k: Value, group: int) -> FixedRow:
    """A row of k numbers that lies at a place."""
    b = f.b
    steps = b.gep(at, k * NUMBER)
    return FixedRow(at, steps, b.gep(steps, f.divide(k, group)[0] * dt.float32.size))


class FixedRows:
    """Writes the kernel that makes them."""

    def __init__(self, kind: Elements, codes: Codes) -> None:
        self.kind, self.group, self.codes = kind, codes.packing.group, codes.codes

    @property
    def name(self) -> str:
        return f"fixed_rows_{self.kind.memory.name}_{self.group}_{self.codes}"

    def ir(self) -> str:
        f = ProductFrame(self.name, _WORDS, 1)
        b = f.b
        with b.loop(f.begin, f.end, 1) as task:
            member, part = f.divide(task.index, f["parts"])
            (offset,) = f.offsets(member)
            first = part * f["rows_of_task"]
            with b.loop(first, f.least(f["rows"], first + f["rows_of_task"]), 1) as row:
                x = b.gep(f["x"], offset + row.index * f["x_row"])
                out = row_at(f, b.gep(f["out"], (member * f["rows"] + row.index) * f["out_row"]), f["k"], self.group)
                with b.loop(0, f.divide(f["k"], self.group)[0], 1) as group:
                    start = group.index * self.group
                    self._group(f, b.gep(x, start * self.kind.memory.size), out.along(f, start, self.group))
        return f.module()

    def _group(self, f: ProductFrame, x: Value, out: FixedRow) -> None:
        b, size = f.b, self.kind.memory.size
        numbers = [f.load(self.kind, b.gep(x, i * size), _LANES) for i in range(0, self.group, _LANES)]
        exponent = self._exponent(b, [v for v in numbers if isinstance(v, Value)])
        wrong = exponent.eq(255 * _ONE)
        # The smallest steps are those that have a reciprocal.
        exponent = b.intrinsic("umax", exponent, b.const(dt.uint32, (_TOP + 1) * _ONE, 1))
        step = b.bitcast(exponent - _TOP * _ONE, dt.float32)
        factor = b.splat(b.bitcast(b.const(dt.uint32, (254 + _TOP) * _ONE, 1) - exponent, dt.float32), _LANES)
        whole = [
            b.truncated(b.choose(b.splat(wrong, _LANES), 0.0, b.rint(v * factor)), dt.int32)  # type: ignore[operator]
            for v in numbers
        ]
        total = whole[0]
        for v in whole[1:]:
            total = total + v
        total = b.call(f"llvm.vector.reduce.add.v{_LANES}i32", dt.int32, 1, total)
        step = b.choose(wrong, float("nan"), step)
        b.store(step, out.steps)
        b.store(b.cast(total, dt.float32) * step, out.sums)
        for i, v in enumerate(self._in_pairs(b, whole)):
            b.store(b.cast(v, dt.int16), b.gep(out.numbers, i * _LANES * NUMBER))

    def _exponent(self, b: Builder, numbers: list[Value]) -> Value:
        """That of the largest number, as it stands in a float32."""
        most = b.const(dt.uint32, 0, _LANES)
        for v in numbers:
            most = b.intrinsic("umax", most, b.bitcast(v, dt.uint32) & 0x7FFFFFFF)
        return b.call(f"llvm.vector.reduce.umax.v{_LANES}i32", dt.uint32, 1, most) & (255 * _ONE)

    def _in_pairs(self, b: Builder, numbers: list[Value]) -> list[Value]:
        half = self.codes // 2
        order = [i // 2 + i % 2 * half for i in range(self.codes)]
        if self.codes <= _LANES:
            units = [u + i for u in range(0, _LANES, self.codes) for i in order]
            return [b.shuffle(v, None, units) for v in numbers]
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return [b.shuffle(x, y, order[i : i + _LANES]) for x, y in pairs for i in (0, _LANES)]


def fixed_rows(kind: Elements, codes: Codes, x: Layout, at: Pointer, out: Pointer) -> tuple[Launch, Layout]:
    """The launch that makes fixed-point rows of x, whose rows are contiguous, and how these lie."""
    *batch, m, k = x.shape
    row = row_size(k, codes.packing)
    kernel, size = FixedRows(kind, codes), x.dtype.size
    members = math.prod(batch)
    axes = merged([(n, s * size) for n, s in zip(batch, x.strides, strict=False)])
    work = STREAM * members * m * k
    each = max(1, m // tasks_for(work))
    parts = -(-m // each)
    values: dict[str, Word] = {
        "tasks": members * parts, "x": at, "out": out, "rows": m, "k": k, "x_row": x.strides[-2] * size,
        "out_row": row, "rows_of_task": each, "parts": parts,
    }  # fmt: skip
    words = block(_WORDS, values, axes)
    source = Source(f"quantized:{kernel.name}", kernel.name, kernel.ir)
    shape = (*x.shape[:-1], row)
    made = Layout(shape, tuple(row_major(shape, 1)), dt.uint8)
    return Launch(source, words, grain_of(work, members * parts)), made


# ---- products ----


def pairs_added(b: Builder, total: Value | None, x: Value, y: Value, instruction: str) -> Value:
    """total + the product of the low halves of x and y + that of the high ones, in every 32 bits."""
    lanes = x.lanes
    if instruction == "dot" and total is not None:
        return b.call(f"llvm.x86.avx512.vpdpwssd.{32 * lanes}", dt.int32, lanes, total, x, y)
    if instruction in _MULTIPLY and lanes in _MULTIPLY_OF:
        halves = [b.op(f"bitcast {v.type} {v.text} to <{2 * lanes} x i16>", dt.int16, 2 * lanes) for v in (x, y)]
        sums = b.call(f"llvm.x86.{_MULTIPLY_OF[lanes]}", dt.int32, lanes, *halves)
    else:
        low = ((x << 16) >> 16) * ((y << 16) >> 16)
        sums = low + (x >> 16) * (y >> 16)
    return sums if total is None else total + sums


_MULTIPLY: Final = ("dot", "multiply")
_MULTIPLY_OF: Final = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
