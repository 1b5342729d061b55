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
from weft.config import config
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


def run(b: Builder, source: Value, target: Value, count: Value, size: int, stream: bool = False) -> None:
    """Copy `count` consecutive elements of `size` bytes: four vectors at a time, then one, then the rest by halves."""
    kind = _BITS[min(size, 8)]
    parts = size // kind.size
    lanes, count = 64 // kind.size, count * parts

    def move(at: Value, many: int, vectors: int = 1) -> None:
        places = [at * kind.size + v * many * kind.size for v in range(vectors)]
        held = [b.load(b.gep(source, place), kind, many) for place in places]
        for place, x in zip(places, held, strict=True):
            b.store(x, b.gep(target, place), stream=stream and many == lanes)

    whole = count & -(4 * lanes)
    with b.loop(0, whole, 4 * lanes) as loop:
        move(loop.index, lanes, 4)
    with b.loop(whole, count & -lanes, lanes) as loop:
        move(loop.index, lanes)
    half = lanes // 2
    while half:
        with b.when((count & half).ne(0)):
            move(count & (-2 * half), half)
        half //= 2


def steps_through(b: Builder, source: Value, target: Value, count: Value, kind: Dtype, strides: tuple[Value, Value]) -> None:
    """Copy `count` elements that lie `strides` bytes apart, one by one."""
    with b.loop(0, count, 1) as loop:
        x = b.load(b.gep(source, loop.index * strides[0]), kind, 1)
        b.store(x, b.gep(target, loop.index * strides[1]))


# ---- gathers ----


@dataclass(frozen=True, slots=True)
class Index:
    """An array of indices as a kernel sees it: its dtype and how the inner loop steps through it."""

    dtype: Dtype
    step: str

    def __str__(self) -> str:
        return f"{self.dtype.name} {self.step}"


def resolve(b: Builder, index: Value, size: Value) -> Value:
    """The place that an index means on an axis of `size` elements: negative ones count from the end, and none is outside."""
    last = size - 1
    if index.dtype.kind == "u":
        wide = b.cast(index, dt.uint64)
        return b.bitcast(b.intrinsic("umin", wide, b.like(wide, b.bitcast(last, dt.uint64))), dt.int64)
    wide = b.cast(index, dt.int64)
    wrapped = b.choose(wide < 0, wide + size, wide)
    return b.intrinsic("smin", b.intrinsic("smax", wrapped, b.like(wrapped, 0)), b.like(wrapped, last))


@dataclass(frozen=True, slots=True)
class Gather:
    """out[r] = x[place of r], where the places of some axes come from index arrays. Operands: x, the index arrays, out.

    form: "run" if the inner loop walks x at one place of the index arrays, "lanes" if each element has a place of its own.
    """

    size: int
    form: str
    step: str
    indices: tuple[Index, ...]
    outer: int
    blocked: bool
    stream: bool

    def __str__(self) -> str:
        flags = f"{' blocked' if self.blocked else ''}{' stream' if self.stream else ''}"
        return f"gather {self.form} {self.size} bytes {self.step} outer={self.outer}{flags} [{', '.join(map(str, self.indices))}]"

    def fields(self) -> list[str]:
        more = [f"{name}{j}" for j in range(len(self.indices)) for name in ("size", "jump")]
        return fields_of(self.outer, len(self.indices) + 2, *more, blocked=self.blocked)

    def emit(self, name: str) -> str:
        frame = Frame(name, self.fields(), self.outer)
        b, count = frame.b, len(self.indices)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, self.blocked)
            at = frame.indices(place)
            x, out = frame.at(0, at), frame.at(count + 1, at)
            places = [frame.at(1 + j, at) for j in range(count)]
            if self.form == "run":
                self._run(frame, x, out, places, start, stop)
            else:
                self._lanes(frame, x, out, places, start, stop)
        return frame.module()

    def _run(self, frame: Frame, x: Value, out: Value, places: Sequence[Value], start: Value, stop: Value) -> None:
        b = frame.b
        for j, (index, place) in enumerate(zip(self.indices, places, strict=True)):
            found = b.load(place, index.dtype, 1)
            assert isinstance(found, Value)
            x = b.gep(x, resolve(b, found, frame[f"size{j}"]) * frame[f"jump{j}"])
        x, out = b.gep(x, start * frame["i0"]), b.gep(out, start * self.size)
        if self.step == "unit":
            run(b, x, out, stop - start, self.size, self.stream)
        else:
            steps_through(b, x, out, stop - start, _BITS[self.size], (frame["i0"], b.i64(self.size)))

    def _lanes(self, frame: Frame, x: Value, out: Value, places: Sequence[Value], start: Value, stop: Value) -> None:
        """Places are worked out 16 at a time and left in scratch; elements are then moved one by one, which beats gather instructions."""
        b, kind = frame.b, _BITS[self.size]
        whole = start + ((stop - start) & -LANES)
        with b.loop(start, whole, LANES) as loop:
            b.store(self._jumps(frame, places, loop.index, LANES), frame.scratch)
            base, to = b.gep(x, loop.index * frame["i0"]), b.gep(out, loop.index * self.size)
            for lane in range(LANES):
                jump = b.load(b.gep(frame.scratch, 8 * lane), dt.int64, 1)
                b.store(b.load(b.gep(base, jump), kind, 1), b.gep(to, lane * self.size))  # type: ignore[arg-type]
        with b.loop(whole, stop, 1) as loop:
            jump = self._jumps(frame, places, loop.index, 1)
            b.store(b.load(b.gep(b.gep(x, loop.index * frame["i0"]), jump), kind, 1), b.gep(out, loop.index * self.size))

    def _jumps(self, frame: Frame, places: Sequence[Value], at: Value, lanes: int) -> Value:
        """How far from the address of x at `at` each of `lanes` elements lies, in bytes."""
        b = frame.b
        total = b.iota(dt.int64, lanes) * frame["i0"] if self.step != "repeat" else None
        for j, index in enumerate(self.indices):
            stride = frame[f"i{1 + j}"]
            found = index_vector(b, index, b.gep(places[j], at * stride), stride, lanes)
            jump = resolve(b, found, frame[f"size{j}"]) * frame[f"jump{j}"]
            total = jump if total is None else total + jump
        assert total is not None
        return total


def index_vector(b: Builder, index: Index, address: Value, stride: Value, lanes: int) -> Value:
    """`lanes` indices from an address on."""
    if lanes == 1 or index.step == "repeat":
        return b.splat(b.load(address, index.dtype, 1), lanes)  # type: ignore[arg-type]
    if index.step == "unit":
        return b.load(address, index.dtype, lanes)  # type: ignore[return-value]
    found = b.poison(index.dtype, lanes)
    for lane in range(lanes):
        found = b.insert(found, b.load(b.gep(address, stride * lane), index.dtype, 1), lane)  # type: ignore[arg-type]
    return found


def gather(x: Layout, indices: Sequence[Layout], out: Layout, where: Sequence[int | None], axes: Sequence[int]) -> Lowering:
    """out[r] = x[...], where axis k of x is walked along axis where[k] of the result, or by the next index array if that is None.

    `axes` are the result's axes along which the index arrays run. Pointers: 0 x, then the index arrays, then out.
    """
    if 0 in out.shape:
        return Lowering(())
    walk, jumps, sizes = along_result(x, len(out.shape), where)
    size = x.dtype.size
    places = [spread(i, len(out.shape), axes) for i in indices]
    outer = merged(axes_of(out.shape, walk, *places, scaled(out)))
    inner = outer.pop() if outer else Axis(1, (0,) * (len(indices) + 1) + (size,))
    form = "lanes" if any(inner.strides[1:-1]) else "run"
    blocked, numbers = cut(inner.size, product(outer))
    units, each = numbers["units"], (BLOCK if blocked else inner.size) * size
    steps = tuple(Index(i.dtype, stepping(s, i.dtype.size)) for i, s in zip(indices, inner.strides[1:-1], strict=True))
    stream = form == "run" and inner.size * size % 64 == 0 and math.prod(out.shape) * size >= STREAM
    kernel = Gather(size, form, stepping(inner.strides[0], size), steps, len(outer), blocked, stream)
    for j, (jump, n) in enumerate(zip(jumps, sizes, strict=True)):
        numbers |= {f"jump{j}": jump, f"size{j}": n}
    words = words_of(kernel.fields(), [Pointer(k) for k in range(len(indices) + 2)], outer, inner, numbers)
    work, scratch = (1, 0) if form == "run" else (4, 8 * LANES)
    return Lowering((Launch(source(str(kernel), "gather", kernel.emit), words, grain(units, each, work), scratch),))


def along_result(x: Layout, ndim: int, where: Sequence[int | None]) -> tuple[list[int], list[int], list[int]]:
    """(strides of x along the result's axes, strides along its indexed axes, sizes of those), strides in bytes."""
    walk, jumps, sizes = [0] * ndim, [], []
    for axis, stride, n in zip(where, scaled(x), x.shape, strict=True):
        if axis is None:
            jumps.append(stride)
            sizes.append(n)
        else:
            walk[axis] += stride
    return walk, jumps, sizes


def spread(index: Layout, ndim: int, axes: Sequence[int]) -> list[int]:
    """Strides in bytes of an index array along all axes of the result."""
    strides = [0] * ndim
    for axis, stride in zip(axes, scaled(index), strict=True):
        strides[axis] = stride
    return strides


# ---- scatters ----


@dataclass(frozen=True, slots=True)
class Scatter:
    """target[place of r] = combine(target[place of r], updates[r]). Operands: updates, the index arrays, target.

    Units of work write disjoint parts of the target; within one, updates come in increasing order of their position. `op` is the elementwise
    primitive that combines (None: the update replaces). form: "run" if the inner loop writes neighbours at one place of the index arrays, "each" if
    every element has a place of its own, "one" if there is but one. `fA` and `gK.A` are sizes, and strides of operand K, of the axes that units do not share.
    """

    op: Any
    update: Dtype
    target: Dtype
    form: str
    step: str
    indices: tuple[Dtype, ...]
    outer: int
    free: int

    def __str__(self) -> str:
        how = "set" if self.op is None else self.op.title
        what = f"{how} {self.update.name} {self.step} {self.target.name}"
        return f"scatter {self.form} {what} outer={self.outer} free={self.free} [{', '.join(d.name for d in self.indices)}]"

    def fields(self) -> list[str]:
        count = len(self.indices)
        more = ["count", *(f"f{a}" for a in range(self.free))]
        more += [f"g{k}.{a}" for k in range(count + 1) for a in range(self.free)]
        more += [f"{name}{j}" for j in range(count) for name in ("size", "jump")]
        return fields_of(self.outer, count + 2, *more, blocked=True)

    def emit(self, name: str) -> str:
        frame = Frame(name, self.fields(), self.outer)
        b, count = frame.b, len(self.indices)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, blocked=True)
            at = frame.indices(place)
            bases = [frame.at(k, at) for k in range(count + 2)]
            with b.loop(0, frame["count"], 1) as turns:
                free = self._free_indices(frame, turns.index)
                here = [self._moved(frame, k, base, free) for k, base in enumerate(bases[:-1])]
                if self.form == "run":
                    self._run(frame, here, bases[-1], start, stop)
                elif self.form == "one":
                    self._one(frame, here, bases[-1], b.i64(0))
                else:
                    with b.loop(start, stop, 1) as inner:
                        self._one(frame, here, bases[-1], inner.index)
        return frame.module()

    def _free_indices(self, frame: Frame, turn: Value) -> list[Value]:
        found: list[Value] = []
        for axis in range(self.free - 1, 0, -1):
            turn, index = frame.divide(turn, frame[f"f{axis}"])
            found.append(index)
        return [turn, *reversed(found)] if self.free else []

    def _moved(self, frame: Frame, k: int, base: Value, free: Sequence[Value]) -> Value:
        for axis, index in enumerate(free):
            base = frame.b.gep(base, index * frame[f"g{k}.{axis}"])
        return base

    def _target(self, frame: Frame, here: Sequence[Value], target: Value, inner: Value) -> Value:
        """Where the updates at `inner` go."""
        b = frame.b
        target = b.gep(target, inner * frame[f"i{len(self.indices) + 1}"])
        for j, dtype in enumerate(self.indices):
            index = b.load(b.gep(here[1 + j], inner * frame[f"i{1 + j}"]), dtype, 1)
            assert isinstance(index, Value)
            target = b.gep(target, resolve(b, index, frame[f"size{j}"]) * frame[f"jump{j}"])
        return target

    def _combined(self, b: Builder, old: AnyValue, new: AnyValue) -> AnyValue:
        wide = dt.float32 if self.target in dt.HALVES else self.target
        combined: AnyValue = self.op.emit(b, b.convert(old, wide), b.convert(new, wide))
        return b.convert(combined, self.target)

    def _one(self, frame: Frame, here: Sequence[Value], target: Value, inner: Value) -> None:
        b = frame.b
        place = self._target(frame, here, target, inner)
        x = b.load(b.gep(here[0], inner * frame["i0"]), self.update, 1)
        b.store(x if self.op is None else self._combined(b, b.load(place, self.target, 1), x), place)

    def _run(self, frame: Frame, here: Sequence[Value], target: Value, start: Value, stop: Value) -> None:
        b = frame.b
        update, place = b.gep(here[0], start * frame["i0"]), self._target(frame, here, target, start)
        if self.op is None and self.step == "unit":
            return run(b, update, place, stop - start, self.target.size)

        def body(at: Value, lanes: int) -> None:
            x = self._updates(frame, update, at, lanes)
            to = b.gep(place, at * self.target.size)
            b.store(x if self.op is None else self._combined(b, b.load(to, self.target, lanes), x), to)

        whole = (stop - start) & -LANES
        with b.loop(0, whole, LANES) as loop:
            body(loop.index, LANES)
        with b.loop(whole, stop - start, 1) as loop:
            body(loop.index, 1)
        return None

    def _updates(self, frame: Frame, update: Value, at: Value, lanes: int) -> AnyValue:
        b, stride = frame.b, frame["i0"]
        if self.step == "unit":
            return b.load(b.gep(update, at * self.update.size), self.update, lanes)
        if self.step == "repeat":
            return splat(b, b.load(update, self.update, 1), lanes)
        places = [b.gep(update, (at + lane) * stride) for lane in range(lanes)]
        parts = [b.load(place, self.update, 1) for place in places]
        return parts[0] if lanes == 1 else assemble(b, parts)


def scatter(
    op: Any, base: Layout, updates: Layout, indices: Sequence[Layout], out: Layout, where: Sequence[int | None], axes: Sequence[int],
    widen: Any = None, narrow: Any = None,
) -> Lowering:  # fmt: skip
    """out = base with updates combined into it; `where` and `axes` as for `gather`. Pointers: 0 base, 1 updates, the index arrays, out.

    `widen` and `narrow` are the conversions to and from the dtype in which halves are accumulated, in a temporary.
    """
    count = len(indices)
    last = Pointer(count + 2)
    if widen is None:
        return Lowering((*copy(base, out, Pointer(0), last), *_scatter(op, updates, indices, out, where, axes, last)))
    wide, temporary = replace(out, dtype=widen.dtype), Pointer(count + 3)
    first = copy(base, wide, Pointer(0), temporary, widen)
    then = _scatter(op, updates, indices, wide, where, axes, temporary)
    return Lowering((*first, *then, *copy(wide, out, temporary, last, narrow)), (math.prod(out.shape) * wide.dtype.size,))


def _scatter(
    op: Any, updates: Layout, indices: Sequence[Layout], target: Layout, where: Sequence[int | None], axes: Sequence[int], to: Pointer
) -> list[Launch]:
    if 0 in updates.shape:
        return []
    walk, jumps, sizes = along_result(target, len(updates.shape), where)
    loops = axes_of(updates.shape, scaled(updates), *(spread(i, len(updates.shape), axes) for i in indices), walk)
    shared = set(axis for axis in where if axis is not None)
    outer = merged([loop for r, loop in enumerate(loops) if r in shared])
    free = merged([loop for r, loop in enumerate(loops) if r not in shared])
    inner = _inner_axis(outer, free, target.dtype.size, len(indices) + 2)
    bits = bits_of(target.dtype) if op is None else None
    kinds = (bits, bits) if bits is not None else (updates.dtype, target.dtype)
    form = "run" if is_run(inner, target.dtype.size) else "one" if inner.size == 1 else "each"
    step = stepping(inner.strides[0], updates.dtype.size) if form == "run" else "any"
    kernel = Scatter(op, *kinds, form, step, tuple(i.dtype for i in indices), len(outer), len(free))
    turns, units = product(free), product(outer)
    width = _strip_width(inner.size, target.dtype.size, units)
    chunks = -(-inner.size // width)
    numbers = {"units": units * chunks, "width": width, "chunks": chunks, "count": turns}
    for a, axis in enumerate(free):
        numbers[f"f{a}"] = axis.size
        numbers |= {f"g{k}.{a}": stride for k, stride in enumerate(axis.strides[:-1])}
    for j, (jump, n) in enumerate(zip(jumps, sizes, strict=True)):
        numbers |= {f"jump{j}": jump, f"size{j}": n}
    pointers = [*(Pointer(1 + k) for k in range(len(indices) + 1)), to]
    words = words_of(kernel.fields(), pointers, outer, inner, numbers)
    work = grain(units * chunks, turns * width * target.dtype.size, 2)
    return [Launch(source(str(kernel), "scatter", kernel.emit), words, work)]


def _inner_axis(outer: list[Axis], free: Sequence[Axis], size: int, operands: int) -> Axis:
    """The shared axis that the inner loop walks, taken out of `outer`: one that walks neighbours of the target, or one along which updates and
    indices lie closer than along the free axes."""
    blank = Axis(1, (0,) * operands)
    if not outer:
        return blank
    nearest = min(range(len(outer)), key=lambda a: (abs(outer[a].strides[-1]), sum(map(abs, outer[a].strides))))
    if is_run(outer[nearest], size) or all(_distance(outer[nearest]) <= _distance(f) for f in free):
        return outer.pop(nearest)
    return blank


def _distance(axis: Axis) -> int:
    return sum(map(abs, axis.strides[:-1]))


def is_run(axis: Axis, size: int) -> bool:
    """Whether a loop writes neighbours of the target at one place of the index arrays."""
    return axis.strides[-1] == size and not any(axis.strides[1:-1])


def _strip_width(n: int, size: int, units: int) -> int:
    """Elements of the inner loop that one unit takes: all if there are units for all threads, else a strip (rows read in pieces come slower)."""
    strips = -(-config.threads // units)
    return min(n, max(512 // size, -(-n // strips)))


# ---- scans ----


@dataclass(frozen=True, slots=True)
class Scan:
    """y[j] = combine(y[j - 1], x[j], ...) along one axis, one rounding a step; `op` is the primitive.

    Operands: the inputs, then out; `jK` is the stride of operand K along the scanned axis. form: "across" if lanes are
    neighbours on a kept axis in out and in most inputs; "tile" if lanes are rows, of which some operands lie along the
    scanned axis: those are turned in registers; "single" for one row at a time. `modes` say for each operand how lanes
    read it: "direct" (neighbours), "turn" and "back" (it lies along the scanned axis, forwards or backwards), "repeat" or
    "any" (element by element). `inner` says that the lanes of a tile run along the inner axis, not over all rows.
    """

    op: Any
    dtype: Dtype
    result: Dtype
    form: str
    modes: tuple[str, ...]
    outer: int
    reverse: bool
    exclusive: bool
    inner: bool = False
    vectors: int = 1

    def __str__(self) -> str:
        flags = [name for name in ("reverse", "exclusive", "inner") if getattr(self, name)]
        what = f"{self.op.title} {self.dtype.name} -> {self.result.name}"
        return " ".join(["scan", self.form, what, f"outer={self.outer} vectors={self.vectors}", *flags, *self.modes])

    @property
    def lanes(self) -> int:
        """Rows of a tile: as many as one vector register of its elements, so that a tile stays in registers."""
        return 8 if dt.real_of(self.dtype).size == 8 else 16

    @property
    def inputs(self) -> range:
        return range(len(self.modes) - 1)

    def fields(self) -> list[str]:
        more = {"across": ["chunks"], "tile": ["chunks", "rows"], "single": []}[self.form]
        strides = [f"j{k}" for k in range(len(self.modes))]
        return fields_of(self.outer, len(self.modes), "length", *more, *strides)

    def emit(self, name: str) -> str:
        frame = Frame(name, self.fields(), self.outer)
        {"across": self._across, "tile": self._tiles, "single": self._single}[self.form](frame)
        return frame.module()

    # ---- one step ----

    def _start(self, b: Builder, lanes: int) -> AnyValue:
        """What stands before the first element."""
        kind = self.op.accumulator(self.dtype)
        first = self.op.identity(kind, self.exclusive)
        if kind.is_complex:
            part = dt.real_of(kind)
            return Complex(b.const(part, first.real, lanes), b.const(part, first.imag, lanes))
        return b.const(kind, first, lanes)

    def _step(self, b: Builder, carry: AnyValue, inputs: Sequence[AnyValue]) -> tuple[AnyValue, AnyValue]:
        """(next carry, element of the result)."""
        following = self.op.combine(b, carry, *(b.convert(x, carry.dtype) for x in inputs))
        return following, b.convert(carry if self.exclusive else following, self.result)

    def _position(self, frame: Frame, j: Value) -> Value:
        return frame["length"] - 1 - j if self.reverse else j

    # ---- lanes along a kept axis ----

    def _across(self, frame: Frame) -> None:
        """A unit is a strip of columns; a whole one keeps all its carries in registers, the last goes vector by vector."""
        b, full = frame.b, self.vectors * LANES
        with b.loop(frame.begin, frame.end, 1) as units:
            place, strip = frame.divide(units.index, frame["chunks"])
            at = frame.indices(place)
            bases = [frame.at(k, at) for k in range(len(self.modes))]
            start = strip * full
            rest = b.intrinsic("smin", frame["n"] - start, b.i64(full))
            with b.when(rest.eq(full)):
                self._strip(frame, bases, start, self.vectors, None)
            with b.when(rest < full), b.loop(0, rest, LANES) as column:
                mask = b.iota(dt.int64) < b.splat(rest - column.index)
                self._strip(frame, bases, start + column.index, 1, mask)

    def _strip(self, frame: Frame, bases: Sequence[Value], column: Value, vectors: int, mask: Value | None) -> None:
        b = frame.b
        starts = [self._start(b, LANES) for _ in range(vectors)]
        with b.loop(0, frame["length"], 1, *flat(starts)) as loop:
            carries = unflat(starts, loop.carried)
            j = self._position(frame, loop.index)
            rows = [b.gep(base, j * frame[f"j{k}"]) for k, base in enumerate(bases)]
            results, following = [], []
            for v, carry in enumerate(carries):
                at = column + v * LANES
                carry, result = self._step(b, carry, [self._load(frame, k, rows[k], at, mask) for k in self.inputs])
                following.append(carry)
                results.append((at, result))
            for at, result in results:
                b.store(result, b.gep(rows[-1], at * self.result.size), mask)
            loop.carry(*flat(following))

    def _load(self, frame: Frame, k: int, row: Value, at: Value, mask: Value | None) -> AnyValue:
        b, stride = frame.b, frame[f"i{k}"]
        if self.modes[k] == "direct":
            return b.load(b.gep(row, at * self.dtype.size), self.dtype, LANES, mask)
        if self.modes[k] == "repeat":
            return splat(b, b.load(row, self.dtype, 1), LANES)
        places = [at + lane for lane in range(LANES)]
        if mask is not None:  # lanes past the end read the first element again
            places = [b.choose(b.extract(mask, lane), place, at) for lane, place in enumerate(places)]
        return assemble(b, [b.load(b.gep(row, place * stride), self.dtype, 1) for place in places])

    # ---- lanes are rows ----

    def _tiles(self, frame: Frame) -> None:
        """A unit is a block of rows. Rows past the last one are the last one again: they write what it writes."""
        b, lanes, last = frame.b, self.lanes, frame["rows"] - 1
        with b.loop(frame.begin, frame.end, 1) as units:
            place, strip = frame.divide(units.index, frame["chunks"]) if self.inner else (units.index, units.index)
            first = strip * lanes
            numbers = [b.intrinsic("smin", first + lane, last) for lane in range(lanes)]
            if self.inner:
                at = frame.indices(place)
                bases = [frame.at(k, at) for k in range(len(self.modes))]
                rows = [[b.gep(x, i * frame[f"i{k}"]) for k, x in enumerate(bases)] for i in numbers]
            else:
                places = [frame.indices(i) for i in numbers]
                rows = [[frame.at(k, at) for k in range(len(self.modes))] for at in places]
            self._block(frame, rows, first + lanes <= last + 1)

    def _block(self, frame: Frame, rows: Sequence[Sequence[Value]], full: Value) -> None:
        """Squares of as many steps as rows while there are any, then step by step.

        A vector of neighbouring rows is only there if the block is full.
        """
        b, lanes, length = frame.b, self.lanes, frame["length"]
        whole = b.i64(0)
        if not {"any", "repeat"} & set(self.modes):
            whole = length & -lanes
        if "direct" in self.modes:
            whole = b.choose(full, whole, 0) if whole.text != "0" else whole
        start = self._start(b, lanes)
        with b.loop(0, whole, lanes, *flat([start])) as tiles:
            (carry,) = unflat([start], tiles.carried)
            tiles.carry(*flat([self._tile(frame, rows, tiles.index, carry)]))
        with b.loop(whole, length, 1, *tiles.carried) as columns:
            (carry,) = unflat([start], columns.carried)
            columns.carry(*flat([self._column(frame, rows, self._position(frame, columns.index), carry)]))

    def _tile(self, frame: Frame, rows: Sequence[Sequence[Value]], j: Value, carry: AnyValue) -> AnyValue:
        b, lanes = frame.b, self.lanes
        first = frame["length"] - lanes - j if self.reverse else j
        tiles = [self._square(frame, k, rows, first) for k in self.inputs]
        results: list[AnyValue] = [carry] * lanes
        for step in range(lanes):
            column = lanes - 1 - step if self.reverse else step
            carry, results[column] = self._step(b, carry, [tile[column] for tile in tiles])
        if self.modes[-1] == "direct":
            for column, result in enumerate(results):
                b.store(result, b.gep(rows[0][-1], (first + column) * frame[f"j{len(self.inputs)}"]))
        else:
            for row, result in zip(rows, turned(b, results), strict=True):
                b.store(result, b.gep(row[-1], first * self.result.size))
        return carry

    def _square(self, frame: Frame, k: int, rows: Sequence[Sequence[Value]], first: Value) -> list[AnyValue]:
        """One vector (a lane for each row) for each of as many steps, from step `first` on."""
        b, lanes, size = frame.b, self.lanes, self.dtype.size
        if self.modes[k] == "direct":
            places = [b.gep(rows[0][k], (first + step) * frame[f"j{k}"]) for step in range(lanes)]
            return [b.load(place, self.dtype, lanes) for place in places]
        offset = first * size if self.modes[k] == "turn" else (first + (lanes - 1)) * -size
        square = turned(b, [b.load(b.gep(row[k], offset), self.dtype, lanes) for row in rows])
        return square if self.modes[k] == "turn" else square[::-1]

    def _column(self, frame: Frame, rows: Sequence[Sequence[Value]], j: Value, carry: AnyValue) -> AnyValue:
        b = frame.b
        offsets = [j * frame[f"j{k}"] for k in range(len(self.modes))]
        inputs = []
        for k in self.inputs:
            inputs.append(assemble(b, [b.load(b.gep(row[k], offsets[k]), self.dtype, 1) for row in rows]))
        carry, result = self._step(b, carry, inputs)
        for lane, row in enumerate(rows):
            b.store(extract(b, result, lane), b.gep(row[-1], offsets[-1]))
        return carry

    # ---- one row ----

    def _single(self, frame: Frame) -> None:
        b = frame.b
        with b.loop(frame.begin, frame.end, 1) as units:
            at = frame.indices(units.index)
            bases = [frame.at(k, at) for k in range(len(self.modes))]
            start = self._start(b, 1)
            with b.loop(0, frame["length"], 1, *flat([start])) as loop:
                (carry,) = unflat([start], loop.carried)
                j = self._position(frame, loop.index)
                places = [b.gep(base, j * frame[f"j{k}"]) for k, base in enumerate(bases)]
                carry, result = self._step(b, carry, [b.load(place, self.dtype, 1) for place in places[:-1]])
                b.store(result, places[-1])
                loop.carry(*flat([carry]))


def scan(
    op: Any, operands: Sequence[Layout], out: Layout, axis: int, reverse: bool, exclusive: bool, cost: int = 1
) -> Lowering:
    """A scan along an axis. Pointers: operands, then out."""
    if 0 in out.shape:
        return Lowering(())
    layouts = (*operands, out)
    axes = axes_of(out.shape, *map(scaled, layouts))
    along = axes.pop(axis)
    outer = merged(axes)
    kinds = (operands[0].dtype, out.dtype)
    lane_axis = _lane_axis(along, outer, *kinds)
    inner = outer.pop(lane_axis) if lane_axis is not None else Axis(1, (0,) * len(layouts))
    modes = tuple(_mode(along, inner, k, kinds[k == len(operands)].size) for k in range(len(layouts)))
    rows = product(outer) if lane_axis is None else inner.size
    form = "single" if lane_axis is None and rows < 4 else "tile"
    if lane_axis is not None and modes[-1] == "direct" and not {"turn", "back"} & set(modes):
        form = "across"
    vectors = 1 if cost > 8 or form != "across" else 4 if out.dtype.size > 4 else 8
    kernel = Scan(op, *kinds, form, modes, len(outer), reverse, exclusive, lane_axis is not None, vectors)
    lanes = {"across": LANES * vectors, "tile": kernel.lanes, "single": 1}[form]
    chunks = -(-rows // lanes)
    units = product(outer) * chunks if lane_axis is not None else chunks
    numbers = {"units": units, "length": along.size, "chunks": chunks, "rows": rows}
    numbers |= {f"j{k}": stride for k, stride in enumerate(along.strides)}
    words = words_of(kernel.fields(), [Pointer(k) for k in range(len(layouts))], outer, inner, numbers)
    work = grain(units, along.size * out.dtype.size * min(rows, lanes), cost)
    return Lowering((Launch(source(str(kernel), "scan", kernel.emit), words, work),))


def _lane_axis(along: Axis, outer: Sequence[Axis], kind: Dtype, result: Dtype) -> int | None:
    """The kept axis that lanes run along: where out lies along it, or else an input that does not lie along the scan.

    None: all rows, whatever axes they come from, are turned.
    """
    sizes = [kind.size] * (len(along.strides) - 1) + [result.size]
    for k in range(len(sizes) - 1, -1, -1):
        if abs(along.strides[k]) == sizes[k]:
            continue
        for a in range(len(outer) - 1, -1, -1):
            if outer[a].strides[k] == sizes[k] and outer[a].size >= 4:
                return a
    return None


def _mode(along: Axis, inner: Axis, k: int, size: int) -> str:
    """How lanes read operand k."""
    if inner.size > 1 and inner.strides[k] == size:
        return "direct"
    if along.strides[k] == size:
        return "turn"
    if along.strides[k] == -size:
        return "back"
    return "repeat" if inner.size > 1 and inner.strides[k] == 0 else "any"


# ---- vectors of any kind ----


def flat(values: Sequence[AnyValue]) -> list[Value]:
    """Complex values as their parts, for loops to carry."""
    return [part for x in values for part in ((x.re, x.im) if isinstance(x, Complex) else (x,))]


def unflat(model: Sequence[AnyValue], parts: Sequence[Value]) -> list[AnyValue]:
    """The inverse of `flat`."""
    rest = iter(parts)
    return [Complex(next(rest), next(rest)) if isinstance(x, Complex) else next(rest) for x in model]


def splat(b: Builder, x: AnyValue, lanes: int) -> AnyValue:
    return Complex(b.splat(x.re, lanes), b.splat(x.im, lanes)) if isinstance(x, Complex) else b.splat(x, lanes)


def extract(b: Builder, x: AnyValue, lane: int) -> AnyValue:
    return Complex(b.extract(x.re, lane), b.extract(x.im, lane)) if isinstance(x, Complex) else b.extract(x, lane)


def assemble(b: Builder, parts: Sequence[AnyValue]) -> AnyValue:
    """Scalars as the lanes of one vector."""
    if isinstance(parts[0], Complex):
        real = assemble(b, [p.re for p in parts])  # type: ignore[union-attr]
        imag = assemble(b, [p.im for p in parts])  # type: ignore[union-attr]
        return Complex(real, imag)  # type: ignore[arg-type]
    vector = b.poison(parts[0].dtype, len(parts))
    for lane, part in enumerate(parts):
        vector = b.insert(vector, part, lane)  # type: ignore[arg-type]
    return vector


def turned(b: Builder, rows: Sequence[AnyValue]) -> list[AnyValue]:
    """As many vectors as they have lanes, rows and columns exchanged, by rounds of pairwise interleaving."""
    if isinstance(rows[0], Complex):
        real = turned(b, [r.re for r in rows])  # type: ignore[union-attr]
        imag = turned(b, [r.im for r in rows])  # type: ignore[union-attr]
        return [Complex(x, y) for x, y in zip(real, imag, strict=True)]  # type: ignore[arg-type]
    lanes = len(rows)
    half = lanes // 2
    low = [i // 2 + (i % 2) * lanes for i in range(lanes)]
    high = [i // 2 + half + (i % 2) * lanes for i in range(lanes)]
    for _ in range(lanes.bit_length() - 1):
        rows = [b.shuffle(rows[i], rows[i + half], order) for i in range(half) for order in (low, high)]  # type: ignore[arg-type]
    return list(rows)
