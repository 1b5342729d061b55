"""Kernels that move elements: strided copies, gathers, scatters, and scans along an axis.

Lowerings here are called by primitives with the layouts of their operands. All strides in argument blocks are in bytes. Elements that are only
moved are seen as unsigned integers of their size, so every bit survives and all dtypes of one size share a kernel.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen import cpu
from weft.codegen.builder import PTR, AnyValue, Builder, Complex, Value
from weft.codegen.kernel import LANES, Access, Kernel, Step, Store
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.dtypes import Dtype
from weft.runtime.engine import Source

BLOCK: Final = 1 << 13
"""Elements of a long inner loop that are one unit of work."""
WORK: Final = 1 << 14
"""Bytes that are worth a thread."""
STREAM: Final = 1 << 23
"""Results from this many bytes on are written past the caches."""

Word = int | Pointer

_PARAMS: Final = [("args", PTR), ("begin", dt.int64), ("end", dt.int64), ("scratch", PTR)]
_BITS: Final = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64, 16: dt.complex128}


def bits_of(dtype: Dtype) -> Dtype:
    """The dtype as which elements of `dtype` are moved."""
    return _BITS[dtype.size]


# ---- loops ----


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop: its size and the stride in bytes of each operand along it."""

    size: int
    strides: tuple[int, ...]

    def runs_into(self, inner: Axis) -> bool:
        """Whether every operand walks this axis and the inner one as a single longer one."""
        return all(s == t * inner.size for s, t in zip(self.strides, inner.strides, strict=True))


def axes_of(shape: Sequence[int], *strides: Sequence[int]) -> list[Axis]:
    """The loops over `shape`; `strides` are those of each operand."""
    return [Axis(n, steps) for n, *rest in zip(shape, *strides, strict=True) for steps in (tuple(rest),)]


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """As few loops as do the same in the same order: those of size 1 dropped, neighbours joined."""
    result: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if result and result[-1].runs_into(axis):
            result[-1] = Axis(result[-1].size * axis.size, axis.strides)
        else:
            result.append(axis)
    return result


def product(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)


def scaled(layout: Layout) -> tuple[int, ...]:
    """Strides in bytes."""
    return tuple(s * layout.dtype.size for s in layout.strides)


def row_major(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Strides in bytes of contiguous elements of `size` bytes."""
    strides = [size]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides[: len(shape)]))


def stepping(stride: int, size: int) -> str:
    """How a loop walks an operand: "unit", "reverse", "repeat" or "stride"."""
    return {0: "repeat", size: "unit", -size: "reverse"}.get(stride, "stride")


def grain(units: int, nbytes: int, cost: int = 1) -> int:
    """How many units of `nbytes` bytes each are worth a thread; 0 where all together are not."""
    each = max(1, nbytes * cost)
    return 0 if units * each < 2 * WORK else max(1, WORK // each)


def source(key: str, form: str, emit: Callable[[str], str]) -> Source:
    """The engine's handle for a kernel: equal keys share one."""
    name = f"weft_{form}_{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return Source(key, name, lambda: emit(name))


class Frame:
    """A kernel under construction: its argument words by name, and addresses over them.

    `pK` is the address of operand K, `sK.A` its stride along outer axis A, `iK` along the inner loop, `eA` the size of outer axis A.
    """

    def __init__(self, name: str, fields: Sequence[str], outer: int) -> None:
        self.b = b = Builder(name, _PARAMS, lanes=LANES)
        self._args, self.begin, self.end, self.scratch = b.params
        self.outer = outer
        self._words = {f: b.word(self._args, i, PTR if f[0] == "p" else dt.int64) for i, f in enumerate(fields)}

    def __getitem__(self, name: str) -> Value:
        return self._words[name]

    def module(self) -> str:
        self.b.ret()
        return self.b.module()

    def divide(self, x: Value, y: Value) -> tuple[Value, Value]:
        """Quotient and remainder of numbers that are not negative."""
        quotient = self.b.op(f"udiv i64 {x.text}, {y.text}", dt.int64, 1)
        return quotient, x - quotient * y

    def indices(self, place: Value) -> list[Value]:
        """Index along each outer axis for a place of the flattened outer dimension."""
        found: list[Value] = []
        rest = place
        for axis in range(self.outer - 1, 0, -1):
            rest, index = self.divide(rest, self[f"e{axis}"])
            found.append(index)
        return [rest, *reversed(found)] if self.outer else []

    def at(self, operand: int, indices: Sequence[Value]) -> Value:
        """The address of an operand at these outer indices."""
        address = self[f"p{operand}"]
        for axis, index in enumerate(indices):
            address = self.b.gep(address, index * self[f"s{operand}.{axis}"])
        return address

    def part(self, unit: Value, blocked: bool) -> tuple[Value, Value, Value]:
        """(place of the outer dimension, first and last element of the inner loop) that a unit of work is."""
        b = self.b
        if not blocked:
            return unit, b.i64(0), self["n"]
        place, chunk = self.divide(unit, self["chunks"])
        start = chunk * self["width"]
        return place, start, b.intrinsic("smin", start + self["width"], self["n"])


def fields_of(outer: int, operands: int, *more: str, blocked: bool = False) -> list[str]:
    """The names of the words of a kernel's argument block, in order."""
    names = ["units", "n", *(["width", "chunks"] if blocked else []), *more, *(f"e{a}" for a in range(outer))]
    for k in range(operands):
        names += [f"p{k}", *(f"s{k}.{a}" for a in range(outer)), f"i{k}"]
    return names


def words_of(
    fields: Sequence[str], pointers: Sequence[Pointer], outer: Sequence[Axis], inner: Axis, numbers: Mapping[str, int]
) -> tuple[Word, ...]:
    """The words of an argument block."""
    values: dict[str, Word] = {"n": inner.size, **numbers}
    for a, axis in enumerate(outer):
        values[f"e{a}"] = axis.size
    for k, pointer in enumerate(pointers):
        values[f"p{k}"], values[f"i{k}"] = pointer, inner.strides[k]
        for a, axis in enumerate(outer):
            values[f"s{k}.{a}"] = axis.strides[k]
    return tuple(values[name] for name in fields)


def cut(inner: int, units: int) -> tuple[bool, dict[str, int]]:
    """Whether a long inner loop is cut into blocks that threads can share, and the words that say so."""
    if inner <= 2 * BLOCK or units >= 64:
        return False, {"units": units}
    chunks = -(-inner // BLOCK)
    return True, {"units": units * chunks, "width": BLOCK, "chunks": chunks}


# ---- copies ----


def copy(x: Layout, target: Layout, from_: Pointer = Pointer(0), to: Pointer = Pointer(1), convert: Any = None) -> list[Launch]:
    """target[...] = x of the same shape. `convert` is the elementwise primitive that makes one dtype of the other, if they differ."""
    if 0 in x.shape:
        return []
    kinds = (x.dtype, target.dtype) if convert is not None else (bits_of(x.dtype),) * 2
    from_, to, axes = _upwards(from_, to, axes_of(x.shape, scaled(x), scaled(target)))
    outer = merged(axes)
    inner = outer.pop() if outer else Axis(1, (kinds[0].size, kinds[1].size))
    steps = () if convert is None else (Step(convert, (0,), target.dtype, "full"),)
    tile = _tile_axis(outer, inner, kinds)
    form = "map" if tile is None else "tile"
    numbers: dict[str, Word] = {"n": inner.size, "i0": inner.strides[0], "i1": inner.strides[1], "p0": from_, "p1": to}
    units, work, blocked, scratch = product(outer), inner.size, False, 0
    if tile is not None:
        across = outer.pop(tile)
        strips = -(-across.size // LANES)
        units, work = product(outer) * strips, inner.size * LANES
        numbers |= {"m": across.size, "strips": strips, "t0": across.strides[0], "t1": across.strides[1]}
    else:
        blocked, cuts = cut(inner.size, units)
        numbers |= cuts
        units = cuts["units"]
        work = BLOCK if blocked else work
    load = Access(kinds[0], "memory", "full", "tile" if tile is not None else stepping(inner.strides[0], kinds[0].size))
    store = Access(kinds[1], "memory", "full", "unit" if inner.strides[1] == kinds[1].size else "stride")
    kernel = Kernel(form, len(outer), (load,), steps, (Store(len(steps), store),), blocked)
    scratch = cpu.tile_scratch(kernel) if tile is not None else 0
    for a, axis in enumerate(outer):
        numbers |= {f"e{a}": axis.size, f"s0.{a}": axis.strides[0], f"s1.{a}": axis.strides[1]}
    numbers["units"] = units
    words = tuple(numbers[name] for name in kernel.fields())
    text = f"copy\n{kernel}"
    return [Launch(source(text, "copy", lambda name: _emit_copy(kernel, name)), words, grain(units, work * kinds[1].size), scratch)]


def _upwards(from_: Pointer, to: Pointer, axes: Sequence[Axis]) -> tuple[Pointer, Pointer, list[Axis]]:
    """The same copy with no axis of the target walked backwards: what is written in vectors is written upwards."""
    result = []
    for axis in axes:
        if axis.strides[1] < 0:
            from_ = Pointer(from_.value, from_.offset + (axis.size - 1) * axis.strides[0])
            to = Pointer(to.value, to.offset + (axis.size - 1) * axis.strides[1])
            axis = Axis(axis.size, (-axis.strides[0], -axis.strides[1]))
        result.append(axis)
    return from_, to, result


def _tile_axis(outer: Sequence[Axis], inner: Axis, kinds: tuple[Dtype, Dtype]) -> int | None:
    """The outer axis along which an operand that jumps in the inner loop lies contiguous."""
    size = kinds[0].size
    if abs(inner.strides[0]) <= size or inner.size < LANES or inner.strides[1] != kinds[1].size:
        return None
    for position in range(len(outer) - 1, -1, -1):
        if outer[position].strides[0] == size and outer[position].size >= LANES:
            return position
    return None


def _emit_copy(kernel: Kernel, name: str) -> str:
    """A loop nest that does nothing when the target is the operand itself: a result may take its operand's place."""
    b = Builder(name, _PARAMS, lanes=LANES)
    frame = cpu.Frame(b, kernel)
    elsewhere = b.op(f"icmp ne ptr {frame['p0'].text}, {frame['p1'].text}", dt.bool_, 1)
    with b.when(elsewhere):
        {"map": cpu.emit_map, "tile": cpu.emit_tile}[kernel.form](frame)
    b.ret()
    return b.module()


def slice_update(base: Layout, part: Layout, out: Layout, starts: Sequence[int], steps: Sequence[int]) -> Lowering:
    """out = base with `part` written over a slice. Pointers: 0 base, 1 part, 2 out."""
    offset = sum(start * stride for start, stride in zip(starts, out.strides, strict=True)) * out.dtype.size
    place = Layout(part.shape, tuple(step * stride for step, stride in zip(steps, out.strides, strict=True)), out.dtype)
    first = [] if part.shape == out.shape else copy(base, out, Pointer(0), Pointer(2))
    return Lowering((*first, *copy(part, place, Pointer(1), Pointer(2, offset))))


def concatenate(operands: Sequence[Layout], out: Layout, axis: int) -> Lowering:
    """out = the operands one after the other along an axis. Pointers: operands, then out."""
    launches: list[Launch] = []
    at = 0
    for k, x in enumerate(operands):
        place = Layout(x.shape, out.strides, out.dtype)
        launches += copy(x, place, Pointer(k), Pointer(len(operands), at * out.strides[axis] * out.dtype.size))
        at += x.shape[axis]
    return Lowering(tuple(launches))
