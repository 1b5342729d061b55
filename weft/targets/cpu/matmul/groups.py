"""Convolutions in groups of few channels (depthwise ones have one): lanes are outputs of several groups side by side.

A place of the output takes what its window sees of x where that lies; elements beyond the ends of x are not read, and
their terms left out. Every element of the output is one chain of fused multiply-adds

    … fma(x[k, 1], w[k, 1], fma(x[k, 0], w[k, 0], …)) …  over the places k of the window, and in these the channels,

from 0 upwards. In the derivative with respect to the weights a chain goes along the last axis of places, up to a
multiple of 256, and these are added from the left.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.config import config
from weft.llvm.builder import AnyValue, Builder, Value
from weft.llvm.engine import Source
from weft.primitives.convolution import Convolve, ConvolveWeights, Windows
from weft.records import dataclass, replace
from weft.runtime.threads import get_threads
from weft.targets.axes import axes_of, merged, row_major, scaled
from weft.targets.cpu import moves
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.combine import combined
from weft.targets.cpu.matmul.elements import Elements, elements_of
from weft.targets.cpu.matmul.frame import Part, ProductFrame, Word, block
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.matmul.residues import ConvolutionPart, Placed
from weft.targets.cpu.matmul.tasks import equal_blocks, grain_of, tasks_for

_Range = tuple[Value, Value]

LANES: Final = 16
_WRITTEN_OUT: Final = 16  # channels times elements of a window along the last axis
_TOGETHER: Final = 4  # rows of a window that are summed together
_LINE: Final = 64  # places of a line that are a task
_PIECE: Final = 256  # places of a line that are summed in one chain; another number gives other bits
_FAR: Final = 1 << 24  # bytes of operands that come from memory
_PASS: Final = 2  # turns that going over all places takes
_STREAM: Final = 4  # multiply-adds that loading what is multiplied takes as long as


@dataclass(frozen=True, slots=True)
class GroupedShape:
    """What a kernel is written for: the channels and outputs of a group, how many spatial axes there are, whether the
    last lanes are only partly used, how many vectors of sums are held in registers, and, if that is written out, how
    the window goes along the last axis: its step, its gap, its elements."""

    kind: Elements
    each: int
    per: int
    axes: int
    tail: bool
    sums: int
    last: tuple[int, int, int] | None = None
    together: int = 1
    """Rows of a window that the derivative by the weights sums together: few sums would wait for each other."""
    far: bool = False
    """Whether that derivative asks for the next lines ahead of time, because they come from memory."""

    @property
    def width(self) -> int:
        """Outputs that a vector holds: those of whole groups."""
        return LANES // self.per * self.per

    @property
    def name(self) -> str:
        k = self.kind
        marks = f"{k.memory.name}_{k.work.name}_{self.each}x{self.per}_{self.axes}_{self.sums}"
        window = "" if self.last is None else "_by" + "_".join(map(str, self.last))
        return marks + window + "_tail" * self.tail + f"_of{self.together}" * (self.together > 1) + "_far" * self.far


class _Kernel:
    """What both kernels have. A line is the places along the last axis, the others fixed."""

    title: str
    own: tuple[str, ...] = ()

    def __init__(self, shape: GroupedShape, operands: int = 2) -> None:
        self.shape, self.kind, self.operands = shape, shape.kind, operands
        self.name = f"{self.title}_{shape.name}"
        axes = [f"{name}{axis}" for axis in range(shape.axes) for name in ("p", "n", "k", "step", "gap", "low", "sx")]
        self.words = ("tasks", "*x", "*y", "*out", "images", "image", "outputs", "blocks", *axes, *self.own)
        self.size = shape.kind.memory.size

    def ir(self) -> str:
        self.frame = f = ProductFrame(self.name, self.words, self.operands)
        self.b = f.b
        with f.b.loop(f.begin, f.end, 1) as task:
            self._task(task.index)
        return f.module()

    def _task(self, task: Value) -> None:
        raise NotImplementedError

    @property
    def _last(self) -> int:
        return self.shape.axes - 1

    def _first(self, free: Value, count: Value, by: Value) -> Value:
        """The first number i up to `count` for which i * by >= free."""
        f, b = self.frame, self.b
        return f.least(f.divide(b.choose(free > 0, free, 0) + (by - 1), by)[0], count)

    def _within(self, free: Value, size: Value, count: Value, by: Value) -> _Range:
        """The numbers i below `count` for which 0 <= i * by - free < size."""
        first, end = self._first(free, count, by), self._first(free + size, count, by)
        return first, end

    def _step(self, axis: int) -> Value:
        known = self.shape.last if axis == self._last else None
        return self.frame[f"step{axis}"] if known is None else self.b.i64(known[0])

    def _gap(self, axis: int) -> Value:
        known = self.shape.last if axis == self._last else None
        return self.frame[f"gap{axis}"] if known is None else self.b.i64(known[1])

    def _taps(self, axis: int, place: Value) -> _Range:
        """The elements of the window along an axis that exist at a place."""
        f = self.frame
        free = f[f"low{axis}"] - place * self._step(axis)
        return self._within(free, f[f"n{axis}"], f[f"k{axis}"], self._gap(axis))

    def _places(self, axis: int, tap: Value) -> _Range:
        """The places along an axis where an element of the window exists."""
        f = self.frame
        free = f[f"low{axis}"] - tap * self._gap(axis)
        return self._within(free, f[f"n{axis}"], f[f"p{axis}"], self._step(axis))

    def _lanes(self, j: Value, code: Callable[[Value, Value | None], None]) -> None:
        """Code for block j of the lanes, given its first output: one for whole blocks, and one for the part that is
        left, which is given how many there are."""
        f, b, shape = self.frame, self.b, self.shape
        first = j * shape.width
        if not shape.tail:
            code(first, None)
            return
        count = f.least(f["outputs"] - first, shape.width)
        with b.when(count.eq(shape.width)):
            code(first, None)
        with b.when(count < shape.width):
            code(first, count)

    def _channel(self, first: Value) -> Value:
        """The first channel of a block of outputs."""
        return self.frame.divide(first, self.shape.per)[0] * self.shape.each

    def _part(self, count: Value | None) -> Part | None:
        """The outputs of a block."""
        f, width = self.frame, self.shape.width
        if count is not None:
            return f.leading(count, LANES)
        return None if width == LANES else f.leading(self.b.i64(width), LANES)

    def _inputs(self, at: Value, count: Value | None) -> list[Value]:
        """For each channel of a group, its element in the lanes of all outputs of the group."""
        f, b, shape = self.frame, self.b, self.shape
        total = shape.width // shape.per * shape.each
        have = None if count is None else f.divide(count, shape.per)[0] * shape.each
        pieces: list[Value] = []
        for start in range(0, total, LANES):
            length = min(LANES, total - start)
            part: Part | None = None
            if have is not None:
                part = f.leading(have - start, LANES)
            elif length < LANES:
                part = f.leading(b.i64(length), LANES)
            x = f.load(self.kind, b.gep(at, start * self.size), LANES, part)
            assert isinstance(x, Value)
            pieces.append(x)
        return [self._chosen(pieces, c) for c in range(shape.each)]

    def _chosen(self, pieces: Sequence[Value], c: int) -> Value:
        shape = self.shape
        where = [min(lane, shape.width - 1) // shape.per * shape.each + c for lane in range(LANES)]
        if where == list(range(LANES)):
            return pieces[0]
        found: Value | None = None
        for number, piece in enumerate(pieces):
            here = [w - number * LANES if w // LANES == number else -1 for w in where]
            if all(h < 0 for h in here):
                continue
            if found is None:
                found = self.b.shuffle(piece, None, here)
            else:
                found = self.b.shuffle(found, piece, [i if h < 0 else LANES + h for i, h in enumerate(here)])
        assert found is not None
        return found

    def _nested(
        self, ranges: Sequence[_Range], sums: list[Value], body: Callable[[list[Value], list[Value]], list[Value]]
    ) -> list[Value]:
        """`body(indices, sums)` over all ranges, one inside the other; it gives the new sums."""

        def level(indices: list[Value], sums: list[Value]) -> list[Value]:
            if len(indices) == len(ranges):
                return body(indices, sums)
            with self.b.loop(*ranges[len(indices)], 1, *sums) as loop:
                loop.carry(*level([*indices, loop.index], list(loop.carried)))
            return list(loop.carried)

        return level([], sums)

    def _zeros(self, count: int) -> list[Value]:
        return [self.b.const(self.kind.work, 0, LANES)] * count

    def _at_place(self, x: Value, axis: int, place: Value) -> Value:
        """Where a window at this place begins along an axis."""
        f = self.frame
        return self.b.gep(x, (place * self._step(axis) - f[f"low{axis}"]) * f[f"sx{axis}"])

    def _at_tap(self, x: Value, axis: int, tap: Value) -> Value:
        """Where an element of a window lies along an axis, from where the window begins."""
        return self.b.gep(x, tap * (self._gap(axis) * self.frame[f"sx{axis}"]))


def _fused(b: Builder, x: Value, y: AnyValue, total: Value) -> Value:
    found = el.multiply_add(b, x, y, total)
    assert isinstance(found, Value)
    return found


class Outputs(_Kernel):
    """Writes the kernel of the convolution. A task is a part of a line, for all outputs; y are the weights, which lie
    as (kernel…, channels of a group, outputs)."""

    title = "grouped"
    own: tuple[str, ...] = ("line", "lines", "out_image")

    def __init__(self, shape: GroupedShape) -> None:
        self.own = (*type(self).own, *(f"so{axis}" for axis in range(shape.axes)))
        super().__init__(shape, operands=3)

    def _task(self, task: Value) -> None:
        f, b, last = self.frame, self.b, self._last
        line, part = f.divide(task, f["lines"])
        rest = line
        places: list[Value] = []
        for axis in range(last - 1, -1, -1):
            rest, place = f.divide(rest, f[f"p{axis}"])
            places.insert(0, place)
        member, image = f.divide(rest, f["images"])
        at_x, at_w, at_out = f.offsets(member)
        x, w = b.gep(f["x"], at_x + image * f["image"]), b.gep(f["y"], at_w)
        out = b.gep(f["out"], at_out + image * f["out_image"])
        for axis, place in enumerate(places):
            out = b.gep(out, place * f[f"so{axis}"])
        ranges = [self._taps(axis, place) for axis, place in enumerate(places)]
        for axis, place in enumerate(places):
            x = self._at_place(x, axis, place)
        begin = part * f["line"]
        end = f.least(begin + f["line"], f[f"p{last}"])
        # Between `clear` and `over` windows reach beyond no end of the line.
        clear, over = self._places(last, b.i64(0))[0], self._places(last, f[f"k{last}"] - 1)[1]
        clear = f.least(b.intrinsic("smax", clear, begin), end)
        over = b.intrinsic("smax", f.least(over, end), clear)
        whole = _Line(x, w, out, None, ranges)
        start, tile = clear, self.shape.sums
        while tile > 1:
            stop = start + ((over - start) & -tile)
            with b.loop(start, stop, tile) as p:
                self._all_outputs(whole, p.index, tile)
            start, tile = stop, tile // 2
        with b.loop(0, 2, 1) as side:
            left = side.index.eq(0)
            with b.loop(b.choose(left, begin, start), b.choose(left, clear, end), 1) as p:
                self._all_outputs(whole, p.index, 1, edge=True)

    def _all_outputs(self, line: _Line, p: Value, tile: int, edge: bool = False) -> None:
        b, f = self.b, self.frame
        with b.loop(0, f["blocks"], 1) as j:

            def lanes(first: Value, count: Value | None) -> None:
                x = b.gep(line.x, self._channel(first) * self.size)
                w, out = (b.gep(at, first * self.size) for at in (line.w, line.out))
                self._tile(_Line(x, w, out, count, line.ranges), p, tile, edge)

            self._lanes(j.index, lanes)

    def _tile(self, line: _Line, p: Value, tile: int, edge: bool = False) -> None:
        """The sums of some places that follow each other in a line; at the edge, of those terms that there are."""
        f, b, last = self.frame, self.b, self._last
        row, part = f[f"so{last}"], self._part(line.count)
        here, step = self._at_place(line.x, last, p), f[f"sx{last}"] * self._step(last)
        written_out = self.shape.last is not None and not edge
        ranges = list(line.ranges)
        if not written_out:
            ranges.append(self._taps(last, p) if edge else (b.i64(0), f[f"k{last}"]))

        def terms(taps: list[Value], sums: list[Value]) -> list[Value]:
            x, number = here, b.i64(0)
            for axis, tap in enumerate(taps):
                x, number = self._at_tap(x, axis, tap), number * f[f"k{axis}"] + tap
            if written_out:
                return self._written_out(line, x, number * f[f"k{last}"], tile, sums)
            weights = self._weights(line, number)
            for t in range(tile):
                sums[t] = self._added(sums[t], self._inputs(b.gep(x, step * t), line.count), weights)
            return sums

        at = b.gep(line.out, p * row)
        for t, x in enumerate(self._nested(ranges, self._zeros(tile), terms)):
            f.store(self.kind, x, b.gep(at, row * t), part)

    def _written_out(self, line: _Line, x: Value, number: Value, tile: int, sums: list[Value]) -> list[Value]:
        """The terms of all elements of the window along the last axis. Windows of neighbours see the same elements,
        which are loaded once."""
        f, b = self.frame, self.b
        assert self.shape.last is not None
        step, gap, taps = self.shape.last
        seen: dict[int, list[Value]] = {}
        row = f["outputs"] * (self.size * self.shape.each)
        here = replace(line, w=b.gep(line.w, number * row))
        for tap in range(taps):
            weights = self._weights(replace(here, w=b.gep(here.w, row * tap)), b.i64(0))
            for t in range(tile):
                place = t * step + tap * gap
                if place not in seen:
                    seen[place] = self._inputs(b.gep(x, f[f"sx{self._last}"] * place), line.count)
                sums[t] = self._added(sums[t], seen[place], weights)
        return sums

    def _weights(self, line: _Line, number: Value) -> list[AnyValue]:
        """Those of the channels of a group at an element of the window."""
        f, b, each = self.frame, self.b, self.shape.each
        row, part = f["outputs"] * self.size, self._part(line.count)
        at = b.gep(line.w, number * row * each)
        return [f.load(self.kind, b.gep(at, row * c), LANES, part) for c in range(each)]

    def _added(self, total: Value, seen: list[Value], weights: list[AnyValue]) -> Value:
        for x, weight in zip(seen, weights, strict=True):
            total = _fused(self.b, x, weight, total)
        return total


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a block of lanes begins in the operands at a line, how many of its outputs there are (None: all), and the
    elements of the window that exist along the axes that the line does not go along."""

    x: Value
    w: Value
    out: Value
    count: Value | None
    ranges: list[_Range]


class Weights(_Kernel):
    """Writes the kernel of the derivative with respect to the weights, which lie as (kernel…, channels of a group,
    outputs); y is (images, places…, outputs), with any strides but for the last.

    A task is some blocks of lanes, and some of the elements of the window along all axes but the last. It goes through
    all places once, line by line, and keeps the sums in scratch memory. Or, if `parted`, it is some lines, and what
    each piece of one adds lies apart until `combine.py` adds it up; that is for many threads."""

    title = "grouped_weights"
    own: tuple[str, ...] = ("rows", "row_parts", "taken", "taken_parts", "pieces", "y_image")

    def __init__(self, shape: GroupedShape, parted: bool) -> None:
        more = ("lines", "image_lines", "per", "part") if parted else ()
        self.own = (*type(self).own, *(f"sy{axis}" for axis in range(shape.axes)), *more)
        super().__init__(shape)
        self.name += "_parted" * parted
        self.vector = LANES * shape.kind.work.size
        self.wide, self.parted = el.summing(shape.kind), parted

    @property
    def tile(self) -> int:
        """Elements of the window along the last axis that are summed together."""
        return max(1, self.shape.sums // self.shape.each)

    def _task(self, task: Value) -> None:
        if self.parted:
            self._some_lines(task)
        else:
            self._some_sums(task)

    def _some_lines(self, task: Value) -> None:
        f, b = self.frame, self.b
        part = _Part(f["x"], f["y"], b.i64(0), f["rows"], b.i64(0), f["blocks"])
        begin = task * f["per"]
        with b.loop(begin, f.least(begin + f["per"], f["lines"]), 1) as line:
            f.look()
            image, number = f.divide(line.index, f["image_lines"])
            indices = [image, *f.indices(number, "p", self._last)]
            with b.loop(0, f["pieces"], 1) as piece:
                to = b.gep(f["out"], (line.index * f["pieces"] + piece.index) * f["part"])
                self._line(part, indices, piece.index * _PIECE, to)

    def _some_sums(self, task: Value) -> None:
        f, b, last = self.frame, self.b, self._last
        rest, blocks = f.divide(task, f["taken_parts"])
        member, rows = f.divide(rest, f["row_parts"])
        at_x, at_y = f.offsets(member)
        count = b.i64(1)
        for axis in range(last):
            count = count * f[f"k{axis}"]
        first_row, first_block = rows * f["rows"], blocks * f["taken"]
        part = _Part(
            b.gep(f["x"], at_x), b.gep(f["y"], at_y), first_row, f.least(first_row + f["rows"], count), first_block,
            f.least(first_block + f["taken"], f["blocks"]),
        )  # fmt: skip
        each = f[f"k{last}"] * (self.shape.each * self.vector)
        with b.loop(0, (part.end_row - first_row) * (part.end_block - first_block) * each, self.vector) as clear:
            b.store(b.const(self.kind.work, 0, LANES), b.gep(f.scratch, clear.index))
        everywhere = [(b.i64(0), f["images"]), *((b.i64(0), f[f"p{axis}"]) for axis in range(last))]

        def line(indices: list[Value], _: list[Value]) -> list[Value]:
            f.look()
            with b.loop(0, f["pieces"], 1) as piece:
                self._line(part, indices, piece.index * _PIECE)
            return []

        self._nested(everywhere, [], line)
        self._rounded(part, member * count)

    def _line(self, part: _Part, indices: list[Value], begin: Value, to: Value | None = None) -> None:
        """What the places of a line from one on, up to _PIECE of them, add to all sums of a task, or are `to` begin
        with."""
        f, b, last = self.frame, self.b, self._last
        image, *places = indices
        x, y = b.gep(part.x, image * f["image"]), b.gep(part.y, image * f["y_image"])
        for axis, place in enumerate(places):
            y = b.gep(y, place * f[f"sy{axis}"])

        def seen_at(row: Value) -> tuple[Value, Value]:
            inside, at = Value(b, "true", dt.bool_, 1), x
            for axis, (place, tap) in enumerate(zip(places, f.indices(row, "k", last), strict=True)):
                seen = place * f[f"step{axis}"] + tap * f[f"gap{axis}"] - f[f"low{axis}"]
                inside, at = inside & (seen >= 0) & (seen < f[f"n{axis}"]), b.gep(at, seen * f[f"sx{axis}"])
            return inside, at

        def add(first_row: Value, starts: list[Value]) -> None:
            with b.loop(part.first_block, part.end_block, 1) as block:

                def lanes(first: Value, count: Value | None) -> None:
                    xs = [b.gep(at, self._channel(first) * self.size) for at in starts]
                    sums = [self._sums_at(part, first_row + r, block.index, first, to) for r in range(len(starts))]
                    self._window(xs, b.gep(y, first * self.size), count, sums, begin)

                self._lanes(block.index, lanes)

        def single(row: Value) -> None:
            inside, at = seen_at(row)
            with b.when(inside):
                add(row, [at])
            if to is not None:
                with b.when(~inside), b.loop(0, f["blocks"], 1) as block:
                    self._lanes(block.index, lambda first, count: nothing(row, first, count))

        def nothing(row: Value, first: Value, count: Value | None) -> None:
            at, each = self._sums_at(part, row, first, first, to), self.shape.each
            with b.loop(0, f[f"k{last}"] * each, 1) as number:
                self._add(b.gep(at, number.index * self._between), self._zeros(1), count)

        together = self.shape.together
        if together == 1:
            with b.loop(part.first_row, part.end_row, 1) as row:
                single(row.index)
            return
        with b.loop(part.first_row, part.end_row, together) as row:
            seen = [seen_at(row.index + r) for r in range(together)]
            whole = row.index + together <= part.end_row
            for inside, _ in seen:
                whole = whole & inside
            with b.when(whole):
                add(row.index, [at for _, at in seen])
            with (
                b.when(~whole),
                b.loop(row.index, f.least(row.index + together, part.end_row), 1) as alone,
            ):
                single(alone.index)

    def _window(self, xs: list[Value], y: Value, count: Value | None, sums: list[Value], start: Value) -> None:
        """Add what a piece of a line gives for all elements of the window along the last axis, in some rows."""
        f, b, known = self.frame, self.b, self.shape.last
        each = self._between * self.shape.each

        def add(tap: Value, taps: int) -> None:
            found = self._along(xs, y, count, tap, taps, start)
            length = taps * self.shape.each
            for r, row in enumerate(sums):
                self._add(b.gep(row, tap * each), found[r * length : (r + 1) * length], count)

        if known is not None:
            for tap in range(0, known[2], self.tile):
                add(b.i64(tap), min(self.tile, known[2] - tap))
            return
        with b.loop(0, f[f"k{self._last}"], self.tile) as loop:
            left = f[f"k{self._last}"] - loop.index
            for taps in range(1, self.tile + 1):
                with b.when(left >= taps if taps == self.tile else left.eq(taps)):
                    add(loop.index, taps)

    @property
    def _between(self) -> Value:
        """Bytes from the sums of one element of the window and channel to those of the next."""
        return self.frame["outputs"] * self.kind.work.size if self.parted else self.b.i64(self.vector)

    def _sums_at(
        self, part: _Part, row: Value, block: Value, first: Value | None = None, to: Value | None = None
    ) -> Value:
        """Where the sums of a block of lanes lie, for a fixed place in the window along all axes but the last: in
        scratch memory, or from `to` on."""
        f = self.frame
        if to is not None and first is not None:
            before = row * f[f"k{self._last}"] * self.shape.each * self._between
            return self.b.gep(to, before + first * self.kind.work.size)
        number = (row - part.first_row) * (part.end_block - part.first_block) + (block - part.first_block)
        return self.b.gep(f.scratch, number * f[f"k{self._last}"] * (self.shape.each * self.vector))

    def _add(self, at: Value, sums: list[Value], count: Value | None) -> None:
        f, b = self.frame, self.b
        for number, x in enumerate(sums):
            place = b.gep(at, self._between * number)
            if self.parted:
                f.store(self.wide, x, place, self._part(count))
            else:
                f.store(self.wide, el.add(f.load(self.wide, place, LANES), x), place)

    def _rounded(self, part: _Part, before: Value) -> None:
        """Sums from scratch memory to the output."""
        f, b, each, last = self.frame, self.b, self.shape.each, self._last
        with b.loop(part.first_row, part.end_row, 1) as row, b.loop(part.first_block, part.end_block, 1) as block:

            def lanes(first: Value, count: Value | None) -> None:
                sums, mask = self._sums_at(part, row.index, block.index), self._part(count)
                line = (before + row.index) * f[f"k{last}"] * each
                with b.loop(0, f[f"k{last}"] * each, 1) as number:
                    x = f.load(self.wide, b.gep(sums, number.index * self.vector), LANES)
                    place = ((line + number.index) * f["outputs"] + first) * self.size
                    f.store(self.kind, x, b.gep(f["out"], place), mask)

            self._lanes(block.index, lanes)

    def _along(
        self, xs: list[Value], y: Value, count: Value | None, begin: Value, taps: int, start: Value
    ) -> list[Value]:
        """The chains of a piece of a line, row by row of the window: over the places where some of the elements exist,
        then where all do, and so on."""
        f, b, last, each = self.frame, self.b, self._last, self.shape.each
        part = self._part(count)

        def within(place: Value) -> Value:
            return b.intrinsic("smax", f.least(place, start + _PIECE), start)

        ranges = [self._places(last, begin + t) for t in range(taps)]
        clear = ranges[0][0]
        over = b.intrinsic("smax", ranges[-1][1], clear)

        def terms(first: int, stop: int) -> Callable[[list[Value], list[Value]], list[Value]]:
            def term(indices: list[Value], sums: list[Value]) -> list[Value]:
                (p,) = indices
                place = b.gep(y, p * f[f"sy{last}"])
                factor = f.load(self.kind, place, LANES, part)
                if self.shape.far and last:  # the next line begins where processors do not guess it
                    below = f[f"sx{last - 1}"] * self._step(last - 1)
                    ahead = b.gep(self._at_tap(self._at_place(xs[-1], last, p), last, begin), below)
                    f.prefetch([b.gep(place, f[f"sy{last - 1}"]), ahead])
                at = [self._at_tap(self._at_place(x, last, p), last, begin + t) for x in xs for t in range(first, stop)]
                inputs = [seen for place in at for seen in self._inputs(place, count)]
                return [_fused(b, seen, factor, total) for seen, total in zip(inputs, sums, strict=True)]

            return term

        def run(first: Value, end: Value, sums: list[Value], at: int, stop: int) -> None:
            own = [i for i in range(len(sums)) if at * each <= i % (taps * each) < stop * each]
            made = self._nested([(within(first), within(end))], [sums[i] for i in own], terms(at, stop))
            for i, total in zip(own, made, strict=True):
                sums[i] = total

        sums = self._zeros(len(xs) * taps * each)
        for t in range(1, taps):
            run(ranges[t][0], f.least(clear, ranges[t][1]), sums, t, t + 1)
        run(clear, over, sums, 0, taps)
        for t in range(taps - 1):
            run(over, ranges[t][1], sums, t, t + 1)
        return sums


@dataclass(frozen=True, slots=True)
class _Part:
    """What a task of the derivative computes: from row to row of the window, from block to block of the lanes."""

    x: Value
    y: Value
    first_row: Value
    end_row: Value
    first_block: Value
    end_block: Value


# ---- lowering ----


def convolve(op: Convolve, x: Layout, w: Layout, out: Layout) -> Lowering:
    """Pointers: 0 is x, 1 is w, 2 is out, 3 and 4 are copies of w and x where their elements do not lie in rows."""
    operands = Placed(x, Pointer(0)), Placed(w, Pointer(1)), Placed(out, Pointer(2))
    return convolve_part(op.groups, ConvolutionPart(op.windows, *operands))


def convolve_part(groups: int, part: ConvolutionPart) -> Lowering:
    """The same for operands and an output that lie in any way. Of x there is a copy, or room for none."""
    windows, x, w, out = part.windows, part.x.layout, part.w.layout, part.out.layout
    if math.prod(out.shape) == 0:
        return Lowering(())
    d = len(windows)
    batch = len(x.shape) - d - 2
    order = (*range(batch), *range(batch + 1, len(w.shape)), batch)
    turned = Layout(tuple(w.shape[i] for i in order), tuple(w.strides[i] for i in order), w.dtype)
    launches: list[Launch] = []
    size = x.dtype.size
    plain = _plain(turned)
    temporaries = [math.prod(plain.shape) * size]
    launches += moves.copy(turned, plain, part.w.pointer, Pointer(3))
    x, at_x = _in_rows(x, part.x.pointer, Pointer(4), launches, temporaries)
    if len(temporaries) == 1:
        temporaries.append(0)
    outputs, each = int(out.shape[-1]), int(w.shape[-1])
    kernel = Outputs(_shape(windows, x, outputs, groups, each, int(w.shape[-2])))
    places = out.shape[-d - 1 : -1]
    line = equal_blocks(places[-1], _LINE, 1)
    lines = -(-places[-1] // line)
    tasks = math.prod(out.shape[: -d - 1]) * math.prod(places[:-1]) * lines
    values = _values(windows, kernel.shape, x, outputs, places, w.shape[-d - 1 : -1])
    values |= {"tasks": tasks, "x": at_x, "y": Pointer(3), "out": part.out.pointer, "line": line, "lines": lines}
    steps = scaled(out)
    values |= {"out_image": steps[-d - 2], **{f"so{axis}": steps[axis - d - 1] for axis in range(d)}}
    terms = _STREAM * math.prod(out.shape) * math.prod(w.shape[-d - 1 :])
    batch_axes = _batch(d, x, plain, out)
    return Lowering((*launches, _launch(kernel, values, batch_axes, terms, tasks)), tuple(temporaries))


def convolve_weights(op: ConvolveWeights, x: Layout, y: Layout, out: Layout) -> Lowering:
    """Pointers: 0 is x, 1 is y, 2 is out, 3 and 4 are copies of y and x where their elements do not lie in rows."""
    if math.prod(out.shape) == 0:
        return Lowering(())
    d = len(op.windows)
    launches: list[Launch] = []
    temporaries: list[int] = []
    y, at_y = _in_rows(y, Pointer(1), Pointer(3), launches, temporaries)
    if at_y == Pointer(1):
        temporaries.append(0)
    x, at_x = _in_rows(x, Pointer(0), Pointer(4), launches, temporaries)
    outputs, each = int(out.shape[-1]), int(out.shape[-2])
    shape = _shape(op.windows, x, outputs, op.groups, each, int(op.kernel[-1]), most=12)
    far = bool((math.prod(x.shape) + math.prod(y.shape)) * x.dtype.size >= _FAR)
    terms = _STREAM * math.prod(out.shape) * math.prod(y.shape[-d - 2 : -1])
    window: Sequence[Any] = op.kernel
    rows, blocks, members = math.prod(map(int, window[:-1])), -(-outputs // shape.width), math.prod(out.shape[: -d - 2])
    # Lanes are shared among threads first: those that share rows read the same, and fewer are summed together.
    wanted = -(-tasks_for(terms) // members)
    taken = -(-blocks // wanted)
    taken_parts = -(-blocks // taken)
    row_part = _share_of_rows(shape, rows, members * taken_parts, terms)
    row_parts = -(-rows // row_part)
    tasks = members * row_parts * taken_parts
    pieces, lines = -(-y.shape[-2] // _PIECE), math.prod(y.shape[-d - 2 : -2])
    sums = math.prod(out.shape)
    apart = _are_lines_apart(members, lines * pieces, sums, math.prod(x.shape) + math.prod(y.shape), terms)
    if apart:
        row_part, per = rows, -(-lines // tasks_for(terms))
        tasks = -(-lines // per)
    kernel = Weights(replace(shape, together=_together(shape, row_part), far=far), apart)
    values = _values(op.windows, kernel.shape, x, outputs, y.shape[-d - 1 : -1], window)
    steps = scaled(y)
    values |= {"tasks": tasks, "x": at_x, "y": at_y, "out": Pointer(2), "y_image": steps[-d - 2]}
    values |= {f"sy{axis}": steps[axis - d - 1] for axis in range(d)}
    values |= {"rows": row_part, "row_parts": row_parts, "taken": taken, "taken_parts": taken_parts}
    values["pieces"] = pieces
    if apart:
        wide = shape.kind.work.size
        values |= {"out": Pointer(5), "rows": rows, "per": per, "part": sums * wide}
        values |= {"lines": lines, "image_lines": math.prod(y.shape[-d - 1 : -2])}
        launches.append(_launch(kernel, values, _batch(d, x, y), terms, tasks))
        rest, lanes = Pointer(5, (lines * pieces - 1) * sums * wide), machine(config.cpu).lanes(shape.kind)
        launches.append(combined(shape.kind, lanes, 1, sums, lines * pieces - 1, Pointer(5), rest, Pointer(2)))
        temporaries += [0] * (2 - len(temporaries))
        return Lowering(tuple(launches), (*temporaries, lines * pieces * sums * wide))
    scratch = row_part * taken * window[-1] * each * kernel.vector
    launch = _launch(kernel, values, _batch(d, x, y), terms, tasks, scratch)
    return Lowering((*launches, launch), tuple(temporaries))


def _are_lines_apart(members: Any, lines: Any, sums: int, elements: Any, terms: int) -> bool:
    """Whether threads share out lines, and not lanes and rows of the window: where more than two would read the same
    again and again, and what lines add is few beside what they are made of."""
    if not all(type(number) is int for number in (members, lines, elements)) or members != 1:
        return False
    many = get_threads() > 2 and tasks_for(terms) > 1 and lines >= 2 * get_threads()
    return many and 4 * sums * lines <= elements


def _share_of_rows(shape: GroupedShape, rows: int, parts: Any, terms: int) -> int:
    """How many rows of a window a task has, if lanes make so many parts: that with which threads finish first."""
    threads, taps = get_threads(), shape.each * (1 if shape.last is None else shape.last[2])
    if type(parts) is not int or tasks_for(terms) == 1 or parts >= tasks_for(terms):
        return rows

    def turns(share: int) -> int:
        """Of loads, at a place: one is what lanes are multiplied with, and a sum waits four for the one before it."""
        together = _together(shape, share)
        several, single = (1 + max(4, count * taps) for count in (together, 1))
        return _PASS + share // together * several + share % together * single

    def time(share: int) -> int:
        busy = [0] * threads
        for task in [share] * (rows // share * parts) + [rows % share] * (parts if rows % share else 0):
            heapq.heapreplace(busy, busy[0] + turns(task))
        return max(busy)

    return min(range(rows, 0, -1), key=time)


def _together(shape: GroupedShape, rows: int) -> int:
    """How many of the rows of a window are summed together: as many as there are registers for, in equal parts."""
    if shape.last is None:
        return 1
    most = min(_TOGETHER, shape.sums // (shape.last[2] * shape.each))
    return equal_blocks(rows, most, 1) if most > 1 else 1


def _plain(layout: Layout) -> Layout:
    size = layout.dtype.size
    return Layout(layout.shape, tuple(s // size for s in row_major(layout.shape, size)), layout.dtype)


def _in_rows(
    layout: Layout, at: Pointer, copy: Pointer, launches: list[Launch], temporaries: list[int]
) -> tuple[Layout, Pointer]:
    """An operand whose last axis is contiguous: as it is, or copied first."""
    if layout.strides[-1] == 1 or layout.shape[-1] == 1:
        return layout, at
    plain = _plain(layout)
    launches += moves.copy(layout, plain, at, copy)
    temporaries.append(math.prod(layout.shape) * layout.dtype.size)
    return plain, copy


def _shape(windows: Windows, x: Layout, outputs: int, groups: int, each: int, taps: int, most: int = 8) -> GroupedShape:
    """The sums of the derivative by the weights are more than the others: nothing else is in registers for long."""
    kind, processor = elements_of(x.dtype), machine(config.cpu)
    per, window = outputs // groups, windows[-1]
    written_out = taps * each <= _WRITTEN_OUT and window.step * window.gap <= 2
    many = 2 if most > 8 and written_out else 1
    sums = processor.registers * processor.vector * most * many // (32 * LANES * kind.work.size)
    last = (window.step, window.gap, taps) if written_out else None
    tail = outputs % (LANES // per * per) != 0
    return GroupedShape(kind, each, per, len(windows), tail, max(1, min(most, sums)), last)


def _values(
    windows: Windows,
    shape: GroupedShape,
    x: Layout,
    outputs: int,
    places: Sequence[int],
    kernel: Sequence[int],
) -> dict[str, Word]:
    d, steps = shape.axes, scaled(x)
    values: dict[str, Word] = {
        "images": x.shape[-d - 2], "image": steps[-d - 2], "outputs": outputs, "blocks": -(-outputs // shape.width),
    }  # fmt: skip
    for axis, window in enumerate(windows):
        values |= {f"p{axis}": places[axis], f"n{axis}": x.shape[axis - d - 1], f"k{axis}": kernel[axis]}
        values |= {f"step{axis}": window.step, f"gap{axis}": window.gap, f"low{axis}": window.low}
        values[f"sx{axis}"] = steps[axis - d - 1]
    return values


def _batch(d: int, *operands: Layout) -> list[tuple[int, ...]]:
    axes = merged(axes_of(operands[0].shape[: -d - 2], *(scaled(x)[: -d - 2] for x in operands)))
    return [(axis.size, *axis.strides) for axis in reversed(axes)]


def _launch(
    kernel: _Kernel, values: dict[str, Word], batch: list[tuple[int, ...]], terms: int, tasks: int, scratch: int = 0
) -> Launch:
    source = Source(f"convolve:{kernel.name}", kernel.name, kernel.ir)
    return Launch(source, block(kernel.words, values, batch), grain_of(terms, tasks), scratch)
