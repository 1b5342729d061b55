"""Kernels that combine elements with those at places that index arrays say: scatters.

`lowerings.py` comes here with the layouts of operands, as for gathers (`moves.py`). All strides in argument blocks are
in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.scope import assemble, splat
from weft.codegen.words import fields_of
from weft.config import config
from weft.dtypes import Dtype
from weft.llvm.builder import AnyValue, Builder, Value
from weft.records import dataclass, replace
from weft.targets.axes import Axis, axes_of, merged, product, scaled, stepping, words_of
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.lanes import lanes_of
from weft.targets.cpu.moves import (
    Index,
    along_result,
    are_inside,
    bits_of,
    copy,
    index_vector,
    plain_jump,
    resolve,
    run,
    spread,
    weigh,
)
from weft.targets.cpu.short_rows import Ends, more_than

SPLIT: Final = 1 << 14
"""Updates from which on it pays that several threads look at all of them."""
LEAST_SHARED: Final = 64
"""Bytes of an update to targets in the caches of which that goes: to look whether an update is one's own takes longer
than to make a smaller one."""
MOST_RANGES: Final = 8
"""Looking at an update that is not one's own costs some of the time of making it."""
SIFT: Final = 1024
"""Updates that a thread looks at before it makes its own, and before it looks whether to stop."""
AHEAD: Final = 2 * LANES
"""How many updates ahead their places are asked for."""
FAR: Final = 1 << 21
"""Bytes of targets for which that is done."""
_ENTRIES: Final = 4 * (SIFT + LANES)
"""Bytes of a list of so many numbers, and of what is written behind its last one."""


@dataclass(frozen=True, slots=True)
class ScatterKernel(NativeKernel):
    """target[place of r] = combine(target[place of r], updates[r]). Operands: updates, the index arrays, target.

    Units of work write disjoint parts of the target; within one, updates come in increasing order of their position.
    `op` is the elementwise primitive that combines (None: the update replaces). form: "run" if the inner loop writes
    neighbours at one place of the index arrays, "each" if every element has its own place, "one" if there is but one.
    `fA` and `gK.A` are the sizes, and the strides of operand K, of the axes that units do not share.

    Where index arrays alone say what is written, the updates cannot be shared out to units. The target is, if there is
    a `split`: (number of an index array, how a loop over the one free axis walks each of them). The axis of the target
    that this array indexes is cut into `ranges`, and the unit of a range looks at all updates and makes those that
    belong to it.

    `plain`: all index arrays lie as the loop over the one free axis walks them, so that 16 indices are looked at
    together. `dense`: the elements along the first axis with an index array are neighbours.

    `ends`: a run is combined as two pieces, its first and its last elements. Both are computed before one is written,
    so it does not matter that they may overlap.
    """

    title = "scatter"
    op: Any
    update: Dtype
    target: Dtype
    form: str
    step: str
    indices: tuple[Dtype, ...]
    outer: int
    free: int
    split: tuple[int, tuple[str, ...]] | None = None
    plain: bool = False
    dense: bool = False
    ends: Ends | None = None
    far: bool = False
    """Whether the target leaves the caches near the processor, so that its lines are asked for some updates ahead."""

    def __str__(self) -> str:
        how = "set" if self.op is None else self.op.title
        what = f"{how} {self.update.name} {self.step} {self.target.name}"
        indices = ", ".join(d.name for d in self.indices)
        split = "" if self.split is None else f" split={self.split[0]} {' '.join(self.split[1])}"
        split += f"{' plain' if self.plain else ''}{' dense' if self.dense else ''}{' far' if self.far else ''}"
        split += "" if self.ends is None else f" rows {self.ends}"
        return f"scatter {self.form} {what} outer={self.outer} free={self.free}{split} [{indices}]"

    def fields(self) -> list[str]:
        count = len(self.indices)
        more = ["count", *(f"f{a}" for a in range(self.free))]
        more += [f"g{k}.{a}" for k in range(count + 1) for a in range(self.free)]
        more += [f"{name}{j}" for j in range(count) for name in ("size", "jump")]
        more += [] if self.split is None else ["ranges"]
        return fields_of(self.outer, count + 2, *more, blocked=True)

    def emit(self, frame: Frame) -> None:
        b, count = frame.b, len(self.indices)
        with b.loop(frame.begin, frame.end, 1) as units:
            unit, part = (units.index, None) if self.split is None else frame.divide(units.index, frame["ranges"])
            place, start, stop = frame.part(unit, blocked=True)
            at = frame.indices(place)
            bases = [frame.at(k, at) for k in range(count + 2)]
            if part is None:
                begin = self._plainly(frame, bases, stop) if self.plain else b.i64(0)
                with frame.long_loop(begin, frame["count"], 1, SIFT) as turns:
                    self._turn(frame, bases, turns.index, start, stop)
            else:
                self._sifted(frame, bases, part, start, stop)

    def _plainly(self, frame: Frame, bases: Sequence[Value], stop: Value) -> Value:
        """The first updates (elements, or rows up to `stop`), 16 at a time: nearly always their indices are places as
        they stand. How many they are."""
        b = frame.b
        whole = frame["count"] & -LANES
        sizes = [frame[f"size{j}"] for j in range(len(self.indices))]
        with frame.long_loop(0, whole, LANES, SIFT // LANES) as turns:
            here = [self._moved(frame, k, base, [turns.index]) for k, base in enumerate(bases[:-1])]
            if self.far:
                ahead = frame.least(turns.index + AHEAD, whole - LANES)
                later = [self._moved(frame, 1 + j, base, [ahead]) for j, base in enumerate(bases[1:-1])]
                for lane in range(LANES):
                    b.prefetch(self._plain_place(frame, later, bases[-1], lane))
            found = [b.load(place, dtype, LANES) for place, dtype in zip(here[1:], self.indices, strict=True)]
            inside = are_inside(b, found, sizes)  # type: ignore[arg-type]
            with b.when(inside):
                for lane in range(LANES):
                    target = self._plain_place(frame, here[1:], bases[-1], lane)
                    self._make(frame, b.gep(here[0], frame["g0.0"] * lane), target, stop)
            with b.when(~inside), b.loop(turns.index, turns.index + LANES, 1) as each:
                self._turn(frame, bases, each.index, b.i64(0), stop)
        return whole

    def _plain_place(self, frame: Frame, indices: Sequence[Value], target: Value, lane: int) -> Value:
        """Where one of 16 updates goes whose indices are places as they stand."""
        b = frame.b
        for j, (place, dtype) in enumerate(zip(indices, self.indices, strict=True)):
            size = self.target.size if self.dense and j == 0 else frame[f"jump{j}"]
            target = b.gep(target, plain_jump(b, Index(dtype, "unit"), b.gep(place, lane * dtype.size), size))
        return target

    def _turn(self, frame: Frame, bases: Sequence[Value], turn: Value, start: Value, stop: Value) -> None:
        """The updates at one place of the free axes."""
        b = frame.b
        free = frame.indices(turn, "f", self.free)
        here = [self._moved(frame, k, base, free) for k, base in enumerate(bases[:-1])]
        first = b.i64(0) if self.form == "one" else start
        if self.form != "each":
            update = b.gep(here[0], first * frame["i0"])
            self._make(frame, update, self._target(frame, here, bases[-1], first), stop - start)
            return
        with b.loop(start, stop, 1) as inner:
            update = b.gep(here[0], inner.index * frame["i0"])
            self._one(b, update, self._target(frame, here, bases[-1], inner.index))

    def _sifted(self, frame: Frame, bases: Sequence[Value], part: Value, start: Value, stop: Value) -> None:
        """The updates of one range, block by block: which ones belong to it and where they go is left in scratch, then
        they are made. No processor can guess which ones do, so there is no branch on it."""
        b, packer = frame.b, lanes_of(dt.int32)
        assert self.split is not None
        size = frame[f"size{self.split[0]}"]
        span = tuple(frame.divide(size * k, frame["ranges"])[0] for k in (part, part + 1))
        base = b.gep(bases[-1], start * frame[f"i{len(self.indices) + 1}"])
        with b.loop(0, frame["count"], SIFT) as blocks:
            with b.when(blocks.index.ne(0)):
                frame.look()
            end = b.intrinsic("smin", blocks.index + SIFT, frame["count"])
            whole = blocks.index + ((end - blocks.index) & -packer.count)
            updates = b.gep(b.gep(bases[0], start * frame["i0"]), blocks.index * frame["g0.0"])
            found = b.i64(0)
            for begin, last, lanes in ((blocks.index, whole, packer.count), (whole, end, 1)):
                with b.loop(begin, last, lanes, found) as loop:
                    (found,) = loop.carried
                    numbers = b.iota(dt.int32, lanes) + b.cast(loop.index - blocks.index, dt.int32)
                    jumps, inside = self._jumps(frame, bases, loop.index, lanes, span)
                    for x, at in ((numbers, 0), (jumps, _ENTRIES)):
                        entries = b.gep(frame.scratch, at)
                        if lanes == 1:
                            b.store(x, b.gep(entries, found * 4))
                        else:
                            packer.append(b, x, inside, entries, found)
                    loop.carry(found + b.count(inside))
            with b.loop(0, found, 1) as loop:
                entry = b.gep(frame.scratch, loop.index * 4)
                number, jump = (b.load(b.gep(entry, at), dt.int32, 1) for at in (0, _ENTRIES))
                assert isinstance(number, Value)
                assert isinstance(jump, Value)
                update = b.gep(updates, b.cast(number, dt.int64) * frame["g0.0"])
                self._make(frame, update, b.gep(base, b.cast(jump, dt.int64)), stop - start)

    def _jumps(
        self, frame: Frame, bases: Sequence[Value], turn: Value, lanes: int, span: Sequence[Value]
    ) -> tuple[Value, Value]:
        """How far into the target `lanes` updates from a turn on go, in bytes, and whether that is in the range."""
        b, total, inside = frame.b, None, None
        assert self.split is not None
        for j, (dtype, step) in enumerate(zip(self.indices, self.split[1], strict=True)):
            stride = frame[f"g{1 + j}.0"]
            found = index_vector(b, Index(dtype, step), b.gep(bases[1 + j], turn * stride), stride, lanes)
            place = resolve(b, found, frame[f"size{j}"])
            if j == self.split[0]:
                inside = (place >= span[0]) & (place < span[1])
            jump = b.cast(place, dt.int32) * b.cast(frame[f"jump{j}"], dt.int32)
            total = jump if total is None else total + jump
        assert total is not None
        assert inside is not None
        return total, inside

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

    def _make(self, frame: Frame, update: Value, place: Value, count: Value) -> None:
        """One update, or a run of them."""
        if self.form == "run":
            self._run(frame, update, place, count)
        else:
            self._one(frame.b, update, place)

    def _one(self, b: Builder, update: Value, place: Value) -> None:
        x = b.load(update, self.update, 1)
        b.store(x if self.op is None else self._combined(b, b.load(place, self.target, 1), x), place)

    def _run(self, frame: Frame, update: Value, place: Value, count: Value) -> None:
        b = frame.b
        if self.op is None and self.step == "unit":
            run(b, update, place, count, self.target.size)
            return

        def made(at: Value, lanes: int) -> tuple[AnyValue, Value]:
            x = self._updates(frame, update, at, lanes)
            to = b.gep(place, at * self.target.size)
            return x if self.op is None else self._combined(b, b.load(to, self.target, lanes), x), to

        def body(at: Value, lanes: int) -> None:
            b.store(*made(at, lanes))

        if self.ends is not None:
            for x, to in [made(*piece) for piece in self.ends.pieces(b, count - self.ends.lanes)]:
                b.store(x, to)
            return
        whole = count & -LANES
        with b.loop(0, whole, LANES) as loop:
            body(loop.index, LANES)
        with b.loop(whole, count, 1) as loop:
            body(loop.index, 1)

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
    op: Any,
    base: Layout,
    updates: Layout,
    indices: Sequence[Layout],
    out: Layout,
    where: Sequence[int | None],
    axes: Sequence[int],
    widen: Any = None,
    narrow: Any = None,
) -> Lowering:
    """out = base with updates combined into it; `where` and `axes` as for `gather`. Pointers: 0 base, 1 updates, the
    index arrays, out.

    `widen` and `narrow` are the conversions to and from the dtype in which halves are accumulated, in a temporary.
    """
    count = len(indices)
    last = Pointer(count + 2)
    if widen is None:
        return Lowering((*copy(base, out, Pointer(0), last), *_scatter(op, updates, indices, out, where, axes, last)))
    wide, temporary = replace(out, dtype=widen.dtype), Pointer(count + 3)
    first = copy(base, wide, Pointer(0), temporary, widen)
    then = _scatter(op, updates, indices, wide, where, axes, temporary)
    return Lowering(
        (*first, *then, *copy(wide, out, temporary, last, narrow)), (math.prod(out.shape) * wide.dtype.size,)
    )


def _scatter(
    op: Any,
    updates: Layout,
    indices: Sequence[Layout],
    target: Layout,
    where: Sequence[int | None],
    axes: Sequence[int],
    to: Pointer,
) -> list[Launch]:
    if 0 in updates.shape:
        return []
    walk, jumps, sizes = along_result(target, len(updates.shape), where)
    loops = axes_of(updates.shape, scaled(updates), *(spread(i, len(updates.shape), axes) for i in indices), walk)
    shared = {axis for axis in where if axis is not None}
    outer = merged([loop for r, loop in enumerate(loops) if r in shared])
    free = merged([loop for r, loop in enumerate(loops) if r not in shared])
    inner = _inner_axis(outer, free, target.dtype.size, len(indices) + 2)
    bits = bits_of(target.dtype) if op is None else None
    kinds = (bits, bits) if bits is not None else (updates.dtype, target.dtype)
    form = "run" if is_run(inner, target.dtype.size) else "one" if inner.size == 1 else "each"
    step = stepping(inner.strides[0], updates.dtype.size) if form == "run" else "any"
    turns, units = product(free), product(outer)
    width = _strip_width(inner.size, target.dtype.size, units)
    chunks = -(-inner.size // width)
    dtypes = tuple(i.dtype for i in indices)
    ends = None
    if op is not None and form == "run" and step != "stride" and chunks == 1 and inner.size <= 2 * LANES:
        lanes = max(lanes for lanes in (1, 2, 4, 8, 16) if inner.size >= lanes)
        more = more_than(inner.size, lanes)
        ends = Ends(target.dtype.size, lanes, bool(inner.size == lanes), step, more)
    plain = (form == "one" or ends is not None) and len(free) == 1 and turns >= 2 * LANES
    plain = plain and all(s == i.dtype.size for s, i in zip(free[0].strides[1:-1], indices, strict=True))
    ranges, split = 1, None
    if len(free) == 1 and form != "each" and turns * inner.size >= SPLIT and units * chunks < config.threads:
        light = plain and inner.size * target.dtype.size < LEAST_SHARED
        if not light or math.prod(target.shape) * target.dtype.size >= FAR:
            ranges, split = _ranges(target, sizes, free[0], indices)
    plain = plain and split is None
    dense = plain and jumps[0] == target.dtype.size
    far = plain and bool(math.prod(target.shape) * target.dtype.size >= FAR)
    kernel = ScatterKernel(op, *kinds, form, step, dtypes, len(outer), len(free), split, plain, dense, ends, far)
    units *= ranges
    numbers = {"units": units * chunks, "width": width, "chunks": chunks, "count": turns, "ranges": ranges}
    for a, axis in enumerate(free):
        numbers[f"f{a}"] = axis.size
        numbers |= {f"g{k}.{a}": stride for k, stride in enumerate(axis.strides[:-1])}
    for j, (jump, n) in enumerate(zip(jumps, sizes, strict=True)):
        numbers |= {f"jump{j}": jump, f"size{j}": n}
    pointers = [*(Pointer(1 + k) for k in range(len(indices) + 1)), to]
    words = words_of(kernel.fields(), pointers, outer, inner, numbers)
    work = weigh(units * chunks, turns * width * target.dtype.size, 2)
    scratch = 0 if split is None else 2 * _ENTRIES
    return [Launch(kernel.source(), words, work, scratch)]


def _ranges(
    target: Layout, sizes: Sequence[int], free: Axis, indices: Sequence[Layout]
) -> tuple[int, tuple[int, tuple[str, ...]] | None]:
    """Into how many ranges an axis of the target (the longest that is indexed) is cut, and `Scatter.split`."""
    longest = max(range(len(sizes)), key=lambda j: sizes[j])
    ranges = min(config.threads, MOST_RANGES)
    if ranges == 1 or sizes[longest] < ranges or math.prod(target.shape) * target.dtype.size >= 1 << 31:
        return 1, None
    steps = tuple(stepping(s, i.dtype.size) for s, i in zip(free.strides[1:-1], indices, strict=True))
    return ranges, (longest, steps)


def _inner_axis(outer: list[Axis], free: Sequence[Axis], size: int, operands: int) -> Axis:
    """The shared axis that the inner loop walks, taken out of `outer`: one that walks neighbours of the target, or one
    along which updates and indices lie closer than along the free axes."""
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
    """Elements of the inner loop that one unit takes: all if there are units for all threads, else a strip (rows read
    in pieces come slower)."""
    strips = -(-config.threads // units)
    return min(n, max(512 // size, -(-n // strips)))
