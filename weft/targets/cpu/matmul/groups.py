"""Convolutions in groups of few channels (depthwise ones have one): lanes are outputs of several groups side by side.

A place of the output takes what its window sees of x where that lies; elements beyond the ends of x are not read, and
their terms left out. Every element of the output is one chain of fused multiply-adds

    … fma(x[k, 1], w[k, 1], fma(x[k, 0], w[k, 0], …)) …  over the places k of the window, and in these the channels,

from 0 upwards. In the derivative with respect to the weights a chain goes along the last axis of places, and the sums
of these lines are added from the left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from weft.codegen.builder import AnyValue, Builder, Value
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.config import config
from weft.primitives.convolution import Convolve, ConvolveWeights
from weft.records import dataclass
from weft.runtime.engine import Source
from weft.targets.axes import axes_of, merged, row_major, scaled
from weft.targets.cpu import moves
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements, elements_of
from weft.targets.cpu.matmul.frame import Part, ProductFrame, Word, block
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.matmul.tasks import equal_blocks, grain_of

_Range = tuple[Value, Value]

LANES: Final = 16
_LINE: Final = 64  # places of a line that are a task
_STREAM: Final = 4  # multiply-adds that loading what is multiplied takes as long as


@dataclass(frozen=True, slots=True)
class Shape:
    """What a kernel is written for: the channels and outputs of a group, how many spatial axes there are, whether the
    last lanes are only partly used, and how many vectors of sums are held in registers."""

    kind: Elements
    each: int
    per: int
    axes: int
    tail: bool
    sums: int

    @property
    def width(self) -> int:
        """Outputs that a vector holds: those of whole groups."""
        return LANES // self.per * self.per

    @property
    def name(self) -> str:
        k = self.kind
        marks = f"{k.memory.name}_{k.work.name}_{self.each}x{self.per}_{self.axes}_{self.sums}"
        return marks + "_tail" * self.tail


class _Kernel:
    """What both kernels have. A line is the places along the last axis, the others fixed."""

    title: str
    own: tuple[str, ...] = ()

    def __init__(self, shape: Shape) -> None:
        self.shape, self.kind = shape, shape.kind
        self.name = f"{self.title}_{shape.name}"
        axes = [f"{name}{axis}" for axis in range(shape.axes) for name in ("p", "n", "k", "step", "gap", "low", "sx")]
        self.words = ("tasks", "*x", "*y", "*out", "images", "image", "outputs", "blocks", *axes, *self.own)
        self.size = shape.kind.memory.size

    def ir(self) -> str:
        self.frame = f = ProductFrame(self.name, self.words, 2)
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

    def _taps(self, axis: int, place: Value) -> _Range:
        """The elements of the window along an axis that exist at a place."""
        f = self.frame
        free = f[f"low{axis}"] - place * f[f"step{axis}"]
        return self._within(free, f[f"n{axis}"], f[f"k{axis}"], f[f"gap{axis}"])

    def _places(self, axis: int, tap: Value) -> _Range:
        """The places along an axis where an element of the window exists."""
        f = self.frame
        free = f[f"low{axis}"] - tap * f[f"gap{axis}"]
        return self._within(free, f[f"n{axis}"], f[f"p{axis}"], f[f"step{axis}"])

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

    def _seen(self, x: Value, axis: int, place: Value, tap: Value) -> Value:
        """Where an element of a window lies along an axis."""
        f = self.frame
        return self.b.gep(x, (place * f[f"step{axis}"] + tap * f[f"gap{axis}"] - f[f"low{axis}"]) * f[f"sx{axis}"])


def _fused(b: Builder, x: Value, y: AnyValue, total: Value) -> Value:
    found = el.multiply_add(b, x, y, total)
    assert isinstance(found, Value)
    return found


class Outputs(_Kernel):
    """Writes the kernel of the convolution. A task is a part of a line, for all outputs; y are the weights, which lie
    as (kernel…, channels of a group, outputs)."""

    title = "grouped"
    own = ("line", "lines")

    def _task(self, task: Value) -> None:
        f, b, last = self.frame, self.b, self._last
        line, part = f.divide(task, f["lines"])
        rest = line
        places: list[Value] = []
        for axis in range(last - 1, -1, -1):
            rest, place = f.divide(rest, f[f"p{axis}"])
            places.insert(0, place)
        member, image = f.divide(rest, f["images"])
        at_x, at_w = f.offsets(member)
        x, w = b.gep(f["x"], at_x + image * f["image"]), b.gep(f["y"], at_w)
        out = b.gep(f["out"], line * f[f"p{last}"] * f["outputs"] * self.size)
        begin = part * f["line"]
        end = f.least(begin + f["line"], f[f"p{last}"])
        # Between `clear` and `over` windows reach beyond no end of the line.
        clear, over = self._places(last, b.i64(0))[0], self._places(last, f[f"k{last}"] - 1)[1]
        clear = f.least(b.intrinsic("smax", clear, begin), end)
        bounds = begin, clear, b.intrinsic("smax", f.least(over, end), clear), end
        with b.loop(0, f["blocks"], 1) as j:

            def lanes(first: Value, count: Value | None) -> None:
                at = b.gep(x, self._channel(first) * self.size)
                self._line(_Line(at, b.gep(w, first * self.size), b.gep(out, first * self.size), count, places), bounds)

            self._lanes(j.index, lanes)

    def _line(self, line: _Line, bounds: tuple[Value, Value, Value, Value]) -> None:
        b, tile = self.b, self.shape.sums
        begin, clear, over, end = bounds
        start = clear
        while tile > 1:
            stop = start + ((over - start) & -tile)
            with b.loop(start, stop, tile) as p:
                self._tile(line, p.index, tile)
            start, tile = stop, tile // 2
        with b.loop(0, 2, 1) as side:
            left = side.index.eq(0)
            with b.loop(b.choose(left, begin, start), b.choose(left, clear, end), 1) as p:
                self._tile(line, p.index, 1, edge=True)

    def _tile(self, line: _Line, p: Value, tile: int, edge: bool = False) -> None:
        """The sums of some places that follow each other in a line; at the edge, of those terms that there are."""
        f, b, last, shape = self.frame, self.b, self._last, self.shape
        step, row = f[f"sx{last}"] * f[f"step{last}"], f["outputs"] * self.size
        part = self._part(line.count)
        ranges = [self._taps(axis, place) for axis, place in enumerate(line.places)]
        ranges.append(self._taps(last, p) if edge else (b.i64(0), f[f"k{last}"]))

        def term(taps: list[Value], sums: list[Value]) -> list[Value]:
            x, number = line.x, b.i64(0)
            for axis, (place, tap) in enumerate(zip([*line.places, p], taps, strict=True)):
                x, number = self._seen(x, axis, place, tap), number * f[f"k{axis}"] + tap
            at = b.gep(line.w, number * row * shape.each)
            weights = [f.load(self.kind, b.gep(at, row * c), LANES, part) for c in range(shape.each)]
            for t in range(tile):
                for seen, weight in zip(self._inputs(b.gep(x, step * t), line.count), weights, strict=True):
                    sums[t] = _fused(b, seen, weight, sums[t])
            return sums

        for t, x in enumerate(self._nested(ranges, self._zeros(tile), term)):
            f.store(self.kind, x, b.gep(line.out, (p + t) * row), part)


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a block of lanes begins in the operands at a line, how many of its outputs there are (None: all), and the
    places along the axes that the line does not go along."""

    x: Value
    w: Value
    out: Value
    count: Value | None
    places: list[Value]


class Weights(_Kernel):
    """Writes the kernel of the derivative with respect to the weights, which lie as (kernel…, channels of a group,
    outputs); y is (images, places…, outputs), with any strides but for the last. A task is a block of lanes for some
    elements of the window along the last axis, the others fixed."""

    title = "grouped_weights"
    own = ("taps", "y_image")

    def __init__(self, shape: Shape) -> None:
        self.own = (*type(self).own, *(f"sy{axis}" for axis in range(shape.axes)))
        super().__init__(shape)

    @property
    def tile(self) -> int:
        """Elements of the window that are summed together."""
        return max(1, self.shape.sums // self.shape.each)

    def _task(self, task: Value) -> None:
        f, b, last = self.frame, self.b, self._last
        rest, j = f.divide(task, f["blocks"])
        rest, tile = f.divide(rest, f["taps"])
        fixed: list[Value] = []
        for axis in range(last - 1, -1, -1):
            rest, tap = f.divide(rest, f[f"k{axis}"])
            fixed.insert(0, tap)
        at_x, at_y = f.offsets(rest)
        x, y = b.gep(f["x"], at_x), b.gep(f["y"], at_y)
        number = rest
        for axis, tap in enumerate(fixed):
            number = number * f[f"k{axis}"] + tap
        begin = tile * self.tile
        number = number * f[f"k{last}"] + begin
        out = b.gep(f["out"], number * f["outputs"] * (self.shape.each * self.size))
        left = f.least(f[f"k{last}"] - begin, self.tile)

        def lanes(first: Value, count: Value | None) -> None:
            at = first * self.size
            line = _Line(b.gep(x, self._channel(first) * self.size), b.gep(y, at), b.gep(out, at), count, fixed)
            for taps in range(1, self.tile + 1):
                with b.when(left.eq(taps)):
                    self._sums(line, begin, taps)

        self._lanes(j, lanes)

    def _sums(self, line: _Line, begin: Value, taps: int) -> None:
        """The weights at `taps` elements of the window."""
        f, b, shape = self.frame, self.b, self.shape
        ranges = [self._places(axis, tap) for axis, tap in enumerate(line.places)]

        def one(places: list[Value], totals: list[Value]) -> list[Value]:
            x, y = b.gep(line.x, image.index * f["image"]), b.gep(line.w, image.index * f["y_image"])
            for axis, (place, tap) in enumerate(zip(places, line.places, strict=True)):
                x, y = self._seen(x, axis, place, tap), b.gep(y, place * f[f"sy{axis}"])
            sums = self._along(x, y, line.count, begin, taps)
            return [total + x for total, x in zip(totals, sums, strict=True)]

        with b.loop(0, f["images"], 1, *self._zeros(taps * shape.each)) as image:
            with b.when(image.index.ne(0)):
                f.look()
            image.carry(*self._nested(ranges, list(image.carried), one))
        row, part = f["outputs"] * self.size, self._part(line.count)
        for number, total in enumerate(image.carried):
            f.store(self.kind, total, b.gep(line.out, row * number), part)

    def _along(self, x: Value, y: Value, count: Value | None, begin: Value, taps: int) -> list[Value]:
        """The chains of a line: over the places where the first of the elements exists, but not all of them, then where
        all do, and so on."""
        f, b, last, each = self.frame, self.b, self._last, self.shape.each
        part = self._part(count)
        ranges = [self._places(last, begin + t) for t in range(taps)]
        clear = ranges[0][0]
        over = b.intrinsic("smax", ranges[-1][1], clear)

        def terms(first: int, stop: int) -> Callable[[list[Value], list[Value]], list[Value]]:
            def term(indices: list[Value], sums: list[Value]) -> list[Value]:
                (p,) = indices
                factor = f.load(self.kind, b.gep(y, p * f[f"sy{last}"]), LANES, part)
                for t in range(first, stop):
                    for c, seen in enumerate(self._inputs(self._seen(x, last, p, begin + t), count)):
                        place = (t - first) * each + c
                        sums[place] = _fused(b, seen, factor, sums[place])
                return sums

            return term

        sums = self._zeros(taps * each)
        for t in range(1, taps):
            own = slice(t * each, (t + 1) * each)
            sums[own] = self._nested([(ranges[t][0], f.least(clear, ranges[t][1]))], sums[own], terms(t, t + 1))
        sums = self._nested([(clear, over)], sums, terms(0, taps))
        for t in range(taps - 1):
            own = slice(t * each, (t + 1) * each)
            sums[own] = self._nested([(over, ranges[t][1])], sums[own], terms(t, t + 1))
        return sums


# ---- lowering ----


def convolve(op: Convolve, x: Layout, w: Layout, out: Layout) -> Lowering:
    """Pointers: 0 is x, 1 is w, 2 is out, 3 and 4 are copies of w and x where their elements do not lie in rows."""
    if math.prod(out.shape) == 0:
        return Lowering(())
    d = len(op.windows)
    batch = len(x.shape) - d - 2
    order = (*range(batch), *range(batch + 1, len(w.shape)), batch)
    turned = Layout(tuple(w.shape[i] for i in order), tuple(w.strides[i] for i in order), w.dtype)
    launches: list[Launch] = []
    size = x.dtype.size
    plain = _plain(turned)
    temporaries = [math.prod(plain.shape) * size]
    launches += moves.copy(turned, plain, Pointer(1), Pointer(3))
    x, at_x = _in_rows(x, Pointer(0), Pointer(4), launches, temporaries)
    outputs, each = int(out.shape[-1]), int(w.shape[-1])
    shape = _shape(x, outputs, op.groups, each, d)
    kernel = Outputs(shape)
    places = out.shape[-d - 1 : -1]
    line = equal_blocks(places[-1], _LINE, 1)
    lines = -(-places[-1] // line)
    tasks = math.prod(out.shape[: -d - 1]) * math.prod(places[:-1]) * lines
    values = _values(op, shape, x, outputs, places, w.shape[-d - 1 : -1])
    values |= {"tasks": tasks, "x": at_x, "y": Pointer(3), "out": Pointer(2), "line": line, "lines": lines}
    terms = _STREAM * math.prod(out.shape) * math.prod(w.shape[-d - 1 :])
    batch_axes = _batch(x, plain, d)
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
    shape = _shape(x, outputs, op.groups, each, d)
    kernel = Weights(shape)
    taps = -(-op.kernel[-1] // kernel.tile)
    tasks = math.prod(out.shape[: -d - 2]) * math.prod(op.kernel[:-1]) * taps * -(-outputs // shape.width)
    values = _values(op, shape, x, outputs, y.shape[-d - 1 : -1], op.kernel)
    steps = scaled(y)
    values |= {"tasks": tasks, "x": at_x, "y": at_y, "out": Pointer(2), "taps": taps, "y_image": steps[-d - 2]}
    values |= {f"sy{axis}": steps[axis - d - 1] for axis in range(d)}
    terms = _STREAM * math.prod(out.shape) * math.prod(y.shape[-d - 2 : -1])
    return Lowering((*launches, _launch(kernel, values, _batch(x, y, d), terms, tasks)), tuple(temporaries))


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


def _shape(x: Layout, outputs: int, groups: int, each: int, d: int) -> Shape:
    kind, processor = elements_of(x.dtype), machine(config.cpu)
    sums = processor.registers * processor.vector // (4 * LANES * kind.work.size)
    per = outputs // groups
    return Shape(kind, each, per, d, outputs % (LANES // per * per) != 0, max(1, min(8, sums)))


def _values(
    op: Convolve | ConvolveWeights, shape: Shape, x: Layout, outputs: int, places: Sequence[int], kernel: Sequence[int]
) -> dict[str, Word]:
    d, steps = shape.axes, scaled(x)
    values: dict[str, Word] = {
        "images": x.shape[-d - 2], "image": steps[-d - 2], "outputs": outputs, "blocks": -(-outputs // shape.width),
    }  # fmt: skip
    for axis, window in enumerate(op.windows):
        values |= {f"p{axis}": places[axis], f"n{axis}": x.shape[axis - d - 1], f"k{axis}": kernel[axis]}
        values |= {f"step{axis}": window.step, f"gap{axis}": window.gap, f"low{axis}": window.low}
        values[f"sx{axis}"] = steps[axis - d - 1]
    return values


def _batch(x: Layout, y: Layout, d: int) -> list[tuple[int, ...]]:
    axes = merged(axes_of(x.shape[: -d - 2], scaled(x)[: -d - 2], scaled(y)[: -d - 2]))
    return [(axis.size, *axis.strides) for axis in reversed(axes)]


def _launch(kernel: _Kernel, values: dict[str, Word], batch: list[tuple[int, ...]], terms: int, tasks: int) -> Launch:
    source = Source(f"convolve:{kernel.name}", kernel.name, kernel.ir)
    return Launch(source, block(kernel.words, values, batch), grain_of(terms, tasks))
