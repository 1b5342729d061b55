"""Kernels that move elements: strided copies and gathers.

Lowerings here are called by primitives with the layouts of their operands. All strides in argument blocks are in
bytes. Elements that are only moved are seen as unsigned integers of their size, so every bit survives and all dtypes
of one size share a kernel.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen.kernel import LANES, Access, Step, Store
from weft.codegen.launch import FAILURE_WORD, Launch, Layout, Lowering, Pointer
from weft.codegen.scope import reversed_lanes
from weft.codegen.words import fields_of
from weft.dtypes import Dtype
from weft.llvm.builder import PTR, AnyValue, Builder, Complex, Value
from weft.llvm.engine import Source
from weft.records import dataclass, replace
from weft.targets.axes import (
    BLOCK,
    Axis,
    axes_of,
    cut,
    grain,
    merged,
    product,
    row_major,
    scaled,
    stepping,
    tile_axis,
    walking,
    words_of,
)
from weft.targets.cpu.features import features
from weft.targets.cpu.forms.flat import Flat, Walk, plan_of
from weft.targets.cpu.forms.map import Map
from weft.targets.cpu.forms.tile import STRIP, Tile, height_of, strips
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.short_rows import Ends, copy_rows, ends_of, join_rows

WORK: Final = 1 << 14
"""Bytes that are worth a thread."""
STREAM: Final = 1 << 23
"""Results from this many bytes on are written past the caches."""
FAR: Final = 1 << 22
"""Bytes of an array that leaves the caches near the processor."""
TURNED: Final = 1 << 12
"""Elements from which on a second step takes less time than to pick them up one by one."""

_BITS: Final = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64, 16: dt.complex128}


def weigh(units: int, nbytes: int, cost: int = 1) -> int:
    """The grain of units that move so many bytes each, at so much a byte."""
    return grain(nbytes * cost, WORK, units)


def bits_of(dtype: Dtype) -> Dtype:
    """The dtype as which elements of `dtype` are moved."""
    return _BITS[dtype.size]


# ---- copies ----


def copy(x: Layout, target: Layout, from_: Pointer, to: Pointer, convert: Any = None) -> list[Launch]:
    """target[...] = x of the same shape; `convert` is the elementwise primitive between their dtypes if they differ."""
    if 0 in x.shape:
        return []
    kinds = (x.dtype, target.dtype) if convert is not None else (bits_of(x.dtype), bits_of(x.dtype))
    from_, to, axes = _upwards(from_, to, axes_of(x.shape, scaled(x), scaled(target)))
    axes = merged(_as_written(axes))
    rows = None if convert is not None else copy_rows(axes, x.dtype.size, from_, to)
    if rows is not None:
        return [rows]
    if axes and abs(axes[-1].strides[0]) > kinds[0].size:
        lies_backwards = [axis.strides[0] == -kinds[0].size for axis in axes]
        from_, to, axes = _flipped(from_, to, axes, lies_backwards)
        rows = copy_rows(axes, x.dtype.size, from_, to) if convert is None and any(lies_backwards) else None
        if rows is not None:
            return [rows]
    *outer, inner = axes or [Axis(1, (kinds[0].size, kinds[1].size))]
    store = Access(kinds[1], "memory", "full", "unit" if inner.strides[1] == kinds[1].size else "stride")
    position = None if store.inner != "unit" else tile_axis(outer, inner, 0, kinds[0].size)
    steps = () if convert is None else (Step(convert, (0,), kinds[1], "full"),)
    ends = steps, (Store(len(steps), store),)
    others: dict[str, Axis] = {}
    nest: Map | Tile | Flat
    short = plan_of([*outer, inner], [Walk("memory", kinds[0].size)], [Walk("memory", kinds[1].size)])
    if position is None and short is not None:
        load = Access(kinds[0], "memory", "full", "unit")
        nest = Flat(len(short.outer), (load,), *ends, len(short.others), short.lanes, short.staging)
        outer, inner, others, numbers = short.outer, short.rows, short.others, short.numbers
        elements, scratch = short.unit, nest.scratch(short.together)
    elif position is None:
        load = Access(kinds[0], "memory", "full", walking(inner.strides[0], kinds[0].size))
        blocked, numbers = cut(inner.size, product(outer))
        nest, elements, scratch = Map(len(outer), (load,), *ends, blocked), BLOCK if blocked else inner.size, 0
    else:
        others["t"] = tile = outer.pop(position)
        load = Access(kinds[0], "memory", "full", "tile")
        numbers = strips(tile, outer, inner)
        elements = numbers["width"] * STRIP
        nest = Tile(len(outer), (load,), *ends, height=height_of([kinds[0]], tile.size))
        scratch = nest.scratch()
    kernel = Copy(nest)
    words = words_of(kernel.fields(), [from_, to], outer, inner, numbers, **others)
    return [Launch(kernel.source(), words, weigh(numbers["units"], elements * kinds[1].size), scratch)]


def contiguous(x: Layout, out: Layout, from_: Pointer, to: Pointer, temporary: Pointer) -> Lowering:
    """out[...] = x of the same shape. Where rows of the result are short and far apart in x, whose own rows lie along
    another axis than the next one, blocks of both could not be turned: the short axis is put last in a second step."""
    size = x.dtype.size
    axes = merged(axes_of(x.shape, scaled(x), scaled(out)))
    if not _turns_twice(axes, size):
        return Lowering(tuple(copy(x, out, from_, to)))
    axes = [*axes[:-2], axes[-1], axes[-2]]
    shape = tuple(axis.size for axis in axes)
    given, made = (Layout(shape, tuple(axis.strides[k] // size for axis in axes), x.dtype) for k in (0, 1))
    between = Layout(shape, tuple(step // size for step in row_major(shape, size)), x.dtype)
    first, then = copy(given, between, from_, temporary), copy(between, made, temporary, to)
    return Lowering((*first, *then), (product(axes) * size,))


def _turns_twice(axes: Sequence[Axis], size: int) -> bool:
    if len(axes) < 3:
        return False
    *outer, middle, inner = axes
    if inner.strides[1] != size or abs(inner.strides[0]) <= size or middle.strides[0] == size:
        return False
    lies_along = any(axis.strides[0] == size and axis.size >= LANES for axis in outer)
    return lies_along and inner.size < LANES and middle.size >= LANES and product(axes) >= TURNED


@dataclass(frozen=True, slots=True)
class Copy(NativeKernel):
    """A loop nest that does nothing when the target is the operand itself: a result may take its operand's place."""

    title = "copy"
    nest: Map | Tile | Flat

    def __str__(self) -> str:
        return f"copy\n{self.nest}"

    @property
    def outer(self) -> int:  # type: ignore[override]
        return self.nest.outer

    def fields(self) -> list[str]:
        return self.nest.fields()

    def emit(self, frame: Frame) -> None:
        b = frame.b
        elsewhere = b.op(f"icmp ne ptr {frame['p0'].text}, {frame['p1'].text}", dt.bool_, 1)
        with b.when(elsewhere):
            self.nest.emit(frame)


def _upwards(from_: Pointer, to: Pointer, axes: Sequence[Axis]) -> tuple[Pointer, Pointer, list[Axis]]:
    """The same copy with no axis of the target walked backwards: what is written in vectors is written upwards."""
    return _flipped(from_, to, axes, [axis.strides[1] < 0 for axis in axes])


def _as_written(axes: list[Axis]) -> list[Axis]:
    """The axes in the order in which the target's elements lie: neighbours are written together."""
    return sorted(axes, key=lambda axis: axis.strides[1], reverse=True)


def _flipped(
    from_: Pointer, to: Pointer, axes: Sequence[Axis], chosen: Sequence[bool]
) -> tuple[Pointer, Pointer, list[Axis]]:
    """The same copy with some axes walked from their other ends."""
    result = []
    for axis, is_chosen in zip(axes, chosen, strict=True):
        if is_chosen:
            from_ = Pointer(from_.value, from_.offset + (axis.size - 1) * axis.strides[0])
            to = Pointer(to.value, to.offset + (axis.size - 1) * axis.strides[1])
            axis = Axis(axis.size, (-axis.strides[0], -axis.strides[1]))
        result.append(axis)
    return from_, to, result


@dataclass(frozen=True, slots=True)
class RepeatKernel(NativeKernel):
    """out[..., i * count + j] = x[..., i] for all j < count. Operands: x, out; the inner loop goes over i.

    A vector of x becomes `count` vectors of out.
    """

    title = "repeat"
    size: int
    count: int
    outer: int
    blocked: bool

    def __str__(self) -> str:
        return f"repeat {self.size} bytes count={self.count} outer={self.outer}{' blocked' if self.blocked else ''}"

    def fields(self) -> list[str]:
        return fields_of(self.outer, 2, blocked=self.blocked)

    def emit(self, frame: Frame) -> None:
        b, kind, many = frame.b, _BITS[self.size], max(4, 64 // self.size)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, self.blocked)
            at = frame.indices(place)
            x, out = frame.at(0, at), frame.at(1, at)
            whole = start + ((stop - start) & -many)
            for first, last, lanes in ((start, whole, many), (whole, stop, 1)):
                with b.loop(first, last, lanes) as loop:
                    found = b.load(b.gep(x, loop.index * self.size), kind, lanes)
                    to = b.gep(out, loop.index * (self.count * self.size))
                    for v in range(self.count):
                        order = [(v * lanes + lane) // self.count for lane in range(lanes)]
                        b.store(_reordered(b, found, order), b.gep(to, v * lanes * self.size))


def _reordered(b: Builder, x: AnyValue, order: Sequence[int]) -> AnyValue:
    """Lanes of a vector in another order; a scalar is what it is."""
    if len(order) == 1:
        return x
    if isinstance(x, Complex):
        return Complex(b.shuffle(x.re, None, order), b.shuffle(x.im, None, order))
    return b.shuffle(x, None, order)


def repeat(x: Layout, out: Layout, count: int) -> Lowering:
    """out = x with every element of the last axis `count` times in a row; out is contiguous. Pointers: 0 x, 1 out."""
    if 0 in out.shape:
        return Lowering(())
    count = operator.index(count)  # part of the kernel, and so a plain number
    launches: list[Launch] = []
    temporaries: tuple[int, ...] = ()
    size, from_, steps = x.dtype.size, Pointer(0), scaled(x)
    if x.strides[-1] != 1 and x.shape[-1] > 1:
        steps, from_ = row_major(x.shape, size), Pointer(2)
        temporaries = (math.prod(x.shape) * size,)
        launches += copy(x, Layout(x.shape, tuple(s // size for s in steps), x.dtype), Pointer(0), from_)
    else:
        steps = (*steps[:-1], size)
    target = (*scaled(out)[:-1], count * size)
    *outer, inner = merged(axes_of(x.shape, steps, target)) or [Axis(1, (size, count * size))]
    if inner.strides[0] != size:  # the last axis has one element: the next one is not a run
        outer, inner = [*outer, inner], Axis(1, (size, count * size))
    blocked, numbers = cut(inner.size, product(outer))
    kernel = RepeatKernel(size, count, len(outer), blocked)
    words = words_of(kernel.fields(), [from_, Pointer(1)], outer, inner, numbers)
    work = weigh(numbers["units"], (BLOCK if blocked else inner.size) * size * count)
    launches.append(Launch(kernel.source(), words, work))
    return Lowering(tuple(launches), temporaries)


@dataclass(frozen=True, slots=True)
class JoinRuns(NativeKernel):
    """Rows made of one run of each operand: `c0`, `c1`... elements. Operands: the parts, then the result."""

    title = "join"
    size: int
    parts: int
    outer: int

    def __str__(self) -> str:
        return f"join {self.parts} of {self.size} bytes outer={self.outer}"

    def fields(self) -> list[str]:
        return fields_of(self.outer, self.parts + 1, *(f"c{k}" for k in range(self.parts)))

    def emit(self, frame: Frame) -> None:
        b = frame.b
        with b.loop(frame.begin, frame.end, 1) as units:
            at = frame.indices(units.index)
            out = frame.at(self.parts, at)
            for k in range(self.parts):
                run(b, frame.at(k, at), out, frame[f"c{k}"], self.size)
                out = b.gep(out, frame[f"c{k}"] * self.size)


JOINED: Final = 1 << 13
"""Bytes of results that a launch for each part would take longer for than the copies."""
PARTS: Final = 4
"""Parts of them at most: each is code of its own."""


def join(operands: Sequence[Layout], out: Layout, axis: int) -> Lowering | None:
    """The operands one after the other along an axis in one launch; None where they are large and not short rows, many,
    or not runs of elements. Pointers: operands, then out."""
    size = out.dtype.size
    if not 1 < len(operands) <= PARTS or any(0 in x.shape for x in operands):
        return None
    lasts = [merged(axes_of(x.shape[axis:], scaled(x)[axis:])) or [Axis(1, (size,))] for x in (*operands, out)]
    if any(len(axes) != 1 for axes in lasts) or lasts[-1][0].strides != (size,):
        return None
    outer = merged(axes_of(out.shape[:axis], *[scaled(x)[:axis] for x in (*operands, out)]))
    rows = join_rows(outer, [axes[0] for axes in lasts[:-1]], size)
    if rows is not None:
        return Lowering((rows,))
    if not math.prod(out.shape) * size <= JOINED or any(axes[0].strides != (size,) for axes in lasts):
        return None
    kernel = JoinRuns(size, len(operands), len(outer))
    units, n = product(outer), lasts[-1][0].size
    numbers = {"units": units, **{f"c{k}": axes[0].size for k, axes in enumerate(lasts[:-1])}}
    pointers = [Pointer(k) for k in range(len(operands) + 1)]
    words = words_of(kernel.fields(), pointers, outer, Axis(n, (0,) * len(pointers)), numbers)
    return Lowering((Launch(kernel.source(), words, weigh(units, n * size)),))


def run(
    b: Builder, source: Value, target: Value, count: Value, size: int, stream: bool = False, backwards: bool = False
) -> None:
    """Copy `count` consecutive elements of `size` bytes (of 8 at most, if the source goes `backwards`): four vectors at
    a time, then one, then the rest by halves."""
    kind = _BITS[min(size, 8)]
    parts = size // kind.size
    lanes, count = 64 // kind.size, count * parts

    def read(at: Value, many: int) -> AnyValue:
        if not backwards:
            return b.load(b.gep(source, at * kind.size), kind, many)
        found = b.load(b.gep(source, (at + (many - 1)) * -kind.size), kind, many)
        return reversed_lanes(b, found) if many > 1 else found

    def move(at: Value, many: int, vectors: int = 1) -> None:
        places = [at + v * many for v in range(vectors)]
        held = [read(place, many) for place in places]
        for place, x in zip(places, held, strict=True):
            b.store(x, b.gep(target, place * kind.size), stream=stream and many == lanes)

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


def steps_through(
    b: Builder, source: Value, target: Value, count: Value, kind: Dtype, strides: tuple[Value, Value]
) -> None:
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
    """The place that an index means on an axis: negative ones count from the end, and none is outside."""
    last = size - 1
    if index.dtype.kind == "u":
        wide = b.cast(index, dt.uint64)
        return b.bitcast(b.intrinsic("umin", wide, b.like(wide, b.bitcast(last, dt.uint64))), dt.int64)
    wide = b.cast(index, dt.int64)
    wrapped = b.choose(wide < 0, wide + size, wide)
    return b.intrinsic("smin", b.intrinsic("smax", wrapped, b.like(wrapped, 0)), b.like(wrapped, last))


def are_inside(b: Builder, indices: Sequence[Value], sizes: Sequence[Value]) -> Value:
    """Whether all indices are places as they stand: from 0 on, and below the sizes of their axes."""
    outside = None
    for index, size in zip(indices, sizes, strict=True):
        wide = b.bitcast(b.cast(index, dt.int64), dt.uint64) if index.dtype.kind == "i" else b.cast(index, dt.uint64)
        wrong = b.any(wide >= b.like(wide, b.bitcast(size, dt.uint64)))
        outside = wrong if outside is None else outside | wrong
    assert outside is not None
    return ~b.unlikely(outside)


def plain_jump(b: Builder, index: Index, address: Value, jump: Value | int) -> Value:
    """How far an index that is a place as it stands leads, in bytes."""
    found = b.load(address, index.dtype, 1)
    assert isinstance(found, Value)
    return b.cast(found, dt.int64) * jump


@dataclass(frozen=True, slots=True)
class GatherKernel(NativeKernel):
    """out[r] = x[place of r], where the places of some axes come from index arrays. Operands: x, the index arrays, out.

    form: "run" if the inner loop walks x at one place of the index arrays, "lanes" if each element has its own place,
    or each row of a few elements (`ends` says how one is moved).
    `dense`: the elements along the first axis with an index array are neighbours.
    """

    title = "gather"
    size: int
    form: str
    step: str
    indices: tuple[Index, ...]
    outer: int
    blocked: bool
    stream: bool
    dense: bool
    ends: Ends | None = None

    def __str__(self) -> str:
        flags = (
            f"{' blocked' if self.blocked else ''}{' stream' if self.stream else ''}{' dense' if self.dense else ''}"
            f"{'' if self.ends is None else f' rows {self.ends}'}"
        )
        what = f"gather {self.form} {self.size} bytes {self.step} outer={self.outer}{flags}"
        return f"{what} [{', '.join(map(str, self.indices))}]"

    def fields(self) -> list[str]:
        more = [f"{name}{j}" for j in range(len(self.indices)) for name in ("size", "jump")]
        more += [] if self.ends is None else ["rest"]
        return fields_of(self.outer, len(self.indices) + 2, *more, blocked=self.blocked)

    def emit(self, frame: Frame) -> None:
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

    def _run(self, frame: Frame, x: Value, out: Value, places: Sequence[Value], start: Value, stop: Value) -> None:
        b = frame.b
        for j, (index, place) in enumerate(zip(self.indices, places, strict=True)):
            found = b.load(place, index.dtype, 1)
            assert isinstance(found, Value)
            x = b.gep(x, resolve(b, found, frame[f"size{j}"]) * frame[f"jump{j}"])
        x, out = b.gep(x, start * frame["i0"]), b.gep(out, start * self.size)
        if self.step == "unit":
            run(b, x, out, stop - start, self.size, self.stream)
        elif self.step == "reverse" and self.size <= 8:
            run(b, x, out, stop - start, self.size, self.stream, backwards=True)
        else:
            steps_through(b, x, out, stop - start, _BITS[self.size], (frame["i0"], b.i64(self.size)))

    def _lanes(self, frame: Frame, x: Value, out: Value, places: Sequence[Value], start: Value, stop: Value) -> None:
        """Elements are moved one by one, which beats gather instructions on most machines. 16 indices at a time are
        looked at first: nearly always they are places as they stand. Otherwise places are worked out, and left in
        scratch."""
        b = frame.b
        whole = start + ((stop - start) & -LANES)
        sizes = [frame[f"size{j}"] for j in range(len(self.indices))]
        with b.loop(start, whole, LANES) as loop:
            base, to = b.gep(x, loop.index * frame["i0"]), b.gep(out, loop.index * self._apart(frame))
            found = [self._found(frame, j, place, loop.index, LANES) for j, place in enumerate(places)]
            inside = are_inside(b, found, sizes)
            with b.when(inside):
                for lane in range(LANES):
                    self._move(frame, base, to, lane, self._plain_jump(frame, places, loop.index + lane, lane))
            with b.when(~inside):
                b.store(self._jumps(frame, places, loop.index, LANES), frame.scratch)
                for lane in range(LANES):
                    self._move(frame, base, to, lane, b.load(b.gep(frame.scratch, 8 * lane), dt.int64, 1))
        with b.loop(whole, stop, 1) as loop:
            base, to = b.gep(x, loop.index * frame["i0"]), b.gep(out, loop.index * self._apart(frame))
            self._move(frame, base, to, 0, self._jumps(frame, places, loop.index, 1))

    def _move(self, frame: Frame, base: Value, to: Value, lane: int, jump: Any) -> None:
        b, to = frame.b, frame.b.gep(to, self._apart(frame) * lane)
        if self.ends is not None:
            self.ends.move(b, b.gep(base, jump), to, frame["rest"])
        else:
            b.store(b.load(b.gep(base, jump), _BITS[self.size], 1), to)

    def _apart(self, frame: Frame) -> Value:
        """From one result to the next, in bytes."""
        return frame.b.i64(self.size) if self.ends is None else frame[f"i{len(self.indices) + 1}"]

    def _plain_jump(self, frame: Frame, places: Sequence[Value], at: Value, lane: int) -> Value:
        """`_jumps` of one lane, for indices that are places as they stand."""
        b = frame.b
        total = None if self.step == "repeat" else frame["i0"] * lane
        for j, index in enumerate(self.indices):
            size = self.size if self.dense and j == 0 else frame[f"jump{j}"]
            jump = plain_jump(b, index, b.gep(places[j], at * frame[f"i{1 + j}"]), size)
            total = jump if total is None else total + jump
        assert total is not None
        return total

    def _found(self, frame: Frame, j: int, place: Value, at: Value, lanes: int) -> Value:
        """`lanes` indices of an index array, from `at` on."""
        stride = frame[f"i{1 + j}"]
        return index_vector(frame.b, self.indices[j], frame.b.gep(place, at * stride), stride, lanes)

    def _jumps(self, frame: Frame, places: Sequence[Value], at: Value, lanes: int) -> Value:
        """How far from the address of x at `at` each of `lanes` elements lies, in bytes."""
        b = frame.b
        total = b.iota(dt.int64, lanes) * frame["i0"] if self.step != "repeat" else None
        for j in range(len(self.indices)):
            found = self._found(frame, j, places[j], at, lanes)
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


def gather(
    x: Layout, indices: Sequence[Layout], out: Layout, where: Sequence[int | None], axes: Sequence[int]
) -> Lowering:
    """out[r] = x[...], where axis k of x is walked along axis where[k] of the result, or by the next index array if
    that is None.

    `axes` are the result's axes along which the index arrays run. Pointers: 0 x, then the index arrays, then out.
    """
    if 0 in out.shape:
        return Lowering(())
    last = Pointer(len(indices) + 2)
    if not _jumps(x, out, where):
        return Lowering(_gather(x, Pointer(0), indices, out, where, axes))
    laid_out = replace(x, strides=tuple(s // x.dtype.size for s in row_major(x.shape, x.dtype.size)))
    first = copy(x, laid_out, Pointer(0), last)
    then = _gather(laid_out, last, indices, out, where, axes)
    return Lowering((*first, *then), (math.prod(x.shape) * x.dtype.size,))


def _jumps(x: Layout, out: Layout, where: Sequence[int | None]) -> bool:
    """Whether x is laid out row by row first. Where many rows are taken of what lies column by column, each element of
    them would come from another cache line; where rows lie apart in a large array, fewer of them fit into the
    caches."""
    lies_along = x.shape[-1] != 1 and where[-1] is not None and stepping(x.strides[-1], 1) == "stride"
    if not lies_along and not _is_far_apart(x, where):
        return False
    return bool(math.prod(x.shape) <= 2 * math.prod(out.shape))


def _is_far_apart(x: Layout, where: Sequence[int | None]) -> bool:
    """Whether the rows of a large array that are chosen among have other elements between them."""
    if len(x.shape) != 2 or where[0] is not None:
        return False
    row = x.shape[-1] if where[-1] is not None and abs(x.strides[-1]) == 1 else 1
    return bool(abs(x.strides[0]) >= 3 * row) and bool(x.shape[0] * abs(x.strides[0]) * x.dtype.size >= FAR)


def _gather(
    x: Layout, from_: Pointer, indices: Sequence[Layout], out: Layout, where: Sequence[int | None], axes: Sequence[int]
) -> tuple[Launch, ...]:
    walk, jumps, sizes = along_result(x, len(out.shape), where)
    size = x.dtype.size
    places = [spread(i, len(out.shape), axes) for i in indices]
    outer = merged(axes_of(out.shape, walk, *places, scaled(out)))
    inner = outer.pop() if outer else Axis(1, (0,) * (len(indices) + 1) + (size,))
    form, ends, row = "lanes" if any(inner.strides[1:-1]) else "run", None, 1
    if form == "run" and outer and any(outer[-1].strides[1:-1]) and inner.strides[-1] == size:
        found = ends_of(inner.size, inner.strides[0], size)
        if found is not None:
            form, (ends, rest), row, inner = "lanes", found, inner.size, outer.pop()
    blocked, numbers = cut(inner.size, product(outer))
    if ends is not None:
        numbers |= {"rest": rest}
    units, each = numbers["units"], (BLOCK if blocked else inner.size) * row * size
    steps = tuple(Index(i.dtype, stepping(s, i.dtype.size)) for i, s in zip(indices, inner.strides[1:-1], strict=True))
    stream = form == "run" and math.prod(out.shape) * size >= STREAM and inner.size * size % 64 == 0
    dense = form == "lanes" and ends is None and jumps[0] == size
    step = stepping(inner.strides[0], size)
    kernel = GatherKernel(size, form, step, steps, len(outer), blocked, stream, dense, ends)
    for j, (jump, n) in enumerate(zip(jumps, sizes, strict=True)):
        numbers |= {f"jump{j}": jump, f"size{j}": n}
    pointers = [from_, *(Pointer(1 + k) for k in range(len(indices) + 1))]
    words = words_of(kernel.fields(), pointers, outer, inner, numbers)
    work, scratch = (1, 0) if form == "run" else (4, 8 * LANES)
    return (Launch(kernel.source(), words, weigh(units, each, work), scratch),)


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


# ---- bounds ----

_BOUNDS: Final = ("count", "at", "index", "size", "lowest", "beyond")


def _bounds_code(name: str, dtype: Dtype) -> str:
    """A call that fails if some index is not in [lowest, beyond): it leaves the first such index, and `beyond`."""
    b = Builder(name, [("block", PTR), ("args", PTR), ("scratch", PTR)], features(), lanes=LANES, result=dt.int64)
    args = b.params[1]
    at = b.word(args, _BOUNDS.index("at"), PTR)
    count, lowest, beyond = (b.word(args, _BOUNDS.index(field)) for field in ("count", "lowest", "beyond"))

    def is_wrong(k: Value, lanes: int) -> tuple[Value, Value]:
        x = b.load(b.gep(at, k * dtype.size), dtype, lanes)
        assert isinstance(x, Value)
        wide = b.cast(x, dt.int64)
        return wide, (wide < b.splat(lowest, lanes)) | (wide >= b.splat(beyond, lanes))

    whole = (count >> 4) << 4
    with b.loop(0, whole, LANES, may_stop=True) as vectors:
        vectors.again = b.cast(b.any(is_wrong(vectors.index, LANES)[1]), dt.int64).eq(0)
    assert vectors.going is not None
    start = b.choose(vectors.going, vectors.index, vectors.index - LANES)  # back to the vector that holds a wrong one
    with b.loop(start, count, 1, b.i64(-1)) as loop:
        (found,) = loop.carried
        loop.carry(b.choose(is_wrong(loop.index, 1)[1] & (found < 0), loop.index, found))
    (found,) = loop.carried
    with b.when(found >= 0):
        b.store(is_wrong(found, 1)[0], b.gep(args, 8 * FAILURE_WORD))
        b.store(beyond, b.gep(args, 8 * (FAILURE_WORD + 1)))
    b.ret(b.cast(found >= 0, dt.int64))
    return b.module()


def bounds_check(x: Layout, pointer: Pointer, lowest: int, beyond: int) -> Launch:
    """A call that ends the program unless all elements of a row-major array are in [lowest, beyond)."""
    name = f"weft_bounds_{x.dtype.name}"
    source = Source(f"bounds {x.dtype.name}", name, lambda: _bounds_code(name, x.dtype))
    return Launch(source, (math.prod(x.shape), pointer, 0, 0, lowest, beyond), call=True)
