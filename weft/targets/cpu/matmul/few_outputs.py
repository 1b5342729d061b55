"""Convolutions with fewer outputs than half a vector has lanes (decoders to colours, the input gradient of a first
layer): lanes are places along the last axis.

A task is a block of places of the output. What its windows see is written into scratch memory once, channel by channel
(with the zeros around an array), so that neighbouring places lie together; every vector of them is multiplied with the
weights of all outputs. The order of sums is that of tiled products (gemm.py), and so are the bits.

Several convolutions of the same array are `phases` of one launch: those of all residues of an input gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.transposes import transposed
from weft.config import config
from weft.llvm.builder import PTR, AnyValue, Value
from weft.llvm.engine import Source
from weft.primitives.elementwise import AsType
from weft.targets.axes import axes_of, merged, row_major, scaled
from weft.targets.cpu import moves
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements, elements_of
from weft.targets.cpu.matmul.frame import Part, ProductFrame, Word, block
from weft.targets.cpu.matmul.gemm import CHUNK, Read, round_up
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.matmul.residues import ConvolutionPart
from weft.targets.cpu.matmul.tasks import equal_blocks, grain_of, tasks_for

_AXES: Final = 3  # spatial axes of the kernel: missing ones have one element
_BUDGET: Final = 1 << 14  # bytes of what a task's windows see, for each byte of a vector and register
_MOST: Final = 8  # vectors of places that are summed together
_WORDS: Final = (
    "tasks", "*x", "*weights", "images", "image", "out_image", "channels", "channel", "line", "row", "lines",
    "block_y", "block_x", "places_z", "blocks_y", "blocks_x", "totals_row", "at_totals", "at_table", "phases",
)  # fmt: skip
_ENTRY: Final = 17  # words of a phase


class _Phase(NamedTuple):
    """A convolution, in words: where its weights and its output begin; along each axis the elements of its windows,
    where these begin in what is packed, the gap between them, and the places and their strides in the output."""

    weights: int
    out: Pointer
    taps: tuple[int, ...]
    starts: tuple[int, ...]
    gaps: tuple[int, ...]
    places: tuple[int, ...]
    strides: tuple[int, ...]

    def words(self) -> tuple[Word, ...]:
        return (self.weights, self.out, *self.taps, *self.starts, *self.gaps, *self.places, *self.strides)


class FewOutputs:
    """Writes the kernel for so many outputs, `vectors` of places at a time, an array whose channels (`columns`) or
    places (`rows`) lie together, or neither, and so many phases."""

    def __init__(self, kind: Elements, outputs: int, vectors: int, lanes: int, read: Read, phases: int) -> None:
        self.kind, self.outputs, self.vectors, self.lanes, self.read = kind, outputs, vectors, lanes, read
        self.wide, self.size = el.summing(kind), kind.work.size
        self.turn = min(lanes, 8)
        axes = [f"{name}{axis}" for axis in range(_AXES) for name in ("n", "s", "step", "low", "extent")]
        self.entries = len(_WORDS) + len(axes)
        self.words = (*_WORDS, *axes, *(f"phase{i}" for i in range(phases * _ENTRY)))
        marks = f"{kind.memory.name}_{kind.work.name}_{outputs}x{vectors}x{lanes}_{read}_{phases}"
        self.name = f"few_outputs_{marks}"

    def ir(self) -> str:
        self.frame = f = ProductFrame(self.name, self.words, 3)
        self.b = f.b
        with f.b.loop(f.begin, f.end, 1) as task:
            self._task(task.index)
        return f.module()

    def _task(self, task: Value) -> None:
        f, b = self.frame, self.b
        rest, block_x = f.divide(task, f["blocks_x"])
        rest, block_y = f.divide(rest, f["blocks_y"])
        rest, z = f.divide(rest, f["places_z"])
        member, image = f.divide(rest, f["images"])
        at_x, at_w, at_out = f.offsets(member)
        first = [z, block_y * f["block_y"], block_x * f["block_x"]]
        self._pack(b.gep(f["x"], at_x + image * f["image"]), first)
        with b.loop(0, f["phases"], 1) as phase:
            f.look()
            entry = b.gep(f.args, (phase.index * _ENTRY + self.entries) * 8)
            weights = b.gep(f["weights"], at_w + b.word(entry, 0))
            self._phase(entry, weights, b.gep(b.word(entry, 1, PTR), at_out + image * f["out_image"]), first)

    # ---- what windows see ----

    def _pack(self, x: Value, first: Sequence[Value]) -> None:
        """The lines that the block's windows see, one after the other, each channel by channel."""
        f, b = self.frame, self.b
        start = [place * f[f"step{axis}"] - f[f"low{axis}"] for axis, place in enumerate(first)]
        width = f["block_x"] + f["extent2"]
        begin = b.intrinsic("smax", -start[2], b.i64(0))
        begin = f.least(begin, width)
        end = b.intrinsic("smax", f.least(width, f["n2"] - start[2]), begin)
        whole = begin.eq(0) & end.eq(width)
        with b.loop(0, f["extent0"] + 1, 1) as dz, b.loop(0, f["lines"], 1) as dy:
            to = b.gep(f.scratch, (dz.index * f["lines"] + dy.index) * f["line"])
            z, y = start[0] + dz.index, start[1] + dy.index
            exists = (z >= 0) & (z < f["n0"]) & (y >= 0) & (y < f["n1"])
            with b.when(~(exists & whole)), b.loop(0, f["line"], self.lanes * self.kind.part.size) as at:
                b.store(b.const(self.kind.work, 0, self.lanes), b.gep(to, at.index))
            with b.when(exists):
                source = b.gep(x, z * f["s0"] + y * f["s1"] + (start[2] + begin) * f["s2"])
                self._line(source, b.gep(to, begin * self.size), end - begin)

    def _line(self, source: Value, to: Value, count: Value) -> None:
        f, b = self.frame, self.b
        if self.read == "columns":
            self._turned(source, to, count)
            return
        stride = None if self.read == "rows" else f["s2"]
        with b.loop(0, f["channels"], 1) as c:
            line, target = b.gep(source, c.index * f["channel"]), b.gep(to, c.index * f["row"])

            def one(i: Value, part: Part | None) -> None:
                at = b.gep(line, i * (self.kind.memory.size if stride is None else stride))
                f.store(self.wide, f.load(self.kind, at, self.lanes, part, stride), b.gep(target, i * self.size), part)

            f.sweep(count, self.lanes, one)

    def _turned(self, source: Value, to: Value, count: Value) -> None:
        """Squares of neighbouring places and channels. There is room for channels past the last."""
        f, b, turn = self.frame, self.b, self.turn

        def strip(i: Value, places: Part | None) -> None:
            last = count - 1
            starts = [b.gep(source, f.least(i + r, last) * f["s2"]) for r in range(turn)]

            def one(c: Value, part: Part | None) -> None:
                square = [f.load(self.kind, b.gep(at, c * self.kind.memory.size), turn, part) for at in starts]
                target = b.gep(to, c * f["row"] + i * self.size)
                for channel, x in enumerate(transposed(b, square)):
                    f.store(self.wide, x, b.gep(target, f["row"] * channel), places)

            f.sweep(f["channels"], turn, one)

        f.sweep(count, turn, strip)

    # ---- sums ----

    def _phase(self, entry: Value, weights: Value, out: Value, first: Sequence[Value]) -> None:
        f, b = self.frame, self.b
        taps, starts, gaps, places, strides = ([b.word(entry, 2 + 3 * i + a) for a in range(_AXES)] for i in range(5))
        rows = f.least(places[1] - first[1], f["block_y"])
        columns = f.least(places[2] - first[2], f["block_x"])
        terms = taps[0] * taps[1] * taps[2] * f["channels"]
        chunks = b.intrinsic("smax", f.divide(terms + (CHUNK - 1), CHUNK)[0], b.i64(1))
        with b.when((first[0] < places[0]) & (rows > 0) & (columns > 0)):
            with b.loop(0, chunks, 1) as chunk:
                runs = self._runs(chunk.index, terms, taps, starts, gaps)
                ready = b.gep(weights, chunk.index * (CHUNK * self.outputs * self.size))
                with b.loop(0, rows, 1) as y:
                    seen = b.gep(f.scratch, y.index * f["step1"] * f["line"])
                    self._places(seen, ready, runs, y.index, columns, chunk.index.eq(0))
            offset = first[0] * strides[0] + first[1] * strides[1] + first[2] * strides[2]
            self._written(b.gep(out, offset), rows, columns, strides)

    def _runs(
        self, chunk: Value, terms: Value, taps: Sequence[Value], starts: Sequence[Value], gaps: Sequence[Value]
    ) -> Value:
        """Write where the channels of each element of the window begin, of those in a chunk, and how many there are."""
        f, b = self.frame, self.b
        begin = chunk * CHUNK
        depth = f.least(terms - begin, CHUNK)
        count = b.intrinsic("smax", f["channels"], b.i64(1))
        number, skip = f.divide(begin, count)
        runs = f.divide(skip + depth + (count - 1), count)[0]
        with b.loop(0, runs, 1) as run:
            start = run.index * count - skip
            before = b.choose(start < 0, -start, 0)
            rest, x = f.divide(number + run.index, taps[2])
            z, y = f.divide(rest, taps[1])
            z, y, x = (s + i * g for s, i, g in zip(starts, (z, y, x), gaps, strict=True))
            offset = (z * f["lines"] + y) * f["line"] + before * f["row"] + x * self.size
            at = b.gep(f.scratch, f["at_table"] + run.index * 16)
            b.store(offset, at)
            b.store(f.least(count - before, depth - (start + before)), b.gep(at, 8))
        return runs

    def _places(self, seen: Value, weights: Value, runs: Value, y: Value, columns: Value, first: Value) -> None:
        """The sums of a line's places, several vectors at a time. Lanes past the last place hold anything."""
        f, b, lanes = self.frame, self.b, self.lanes
        vectors = f.divide(columns + (lanes - 1), lanes)[0]
        whole = vectors - f.divide(vectors, self.vectors)[1]
        totals = b.gep(f.scratch, f["at_totals"] + y * f["totals_row"] * self.outputs)

        def tile(at: Value, count: int) -> None:
            place = at * (lanes * self.size)
            sums = self._sums(b.gep(seen, place), weights, runs, count)
            places = [
                b.gep(totals, f["totals_row"] * o + place + v * lanes * self.size)
                for o in range(self.outputs)
                for v in range(count)
            ]
            with b.when(first):
                for x, to in zip(sums, places, strict=True):
                    f.store(self.wide, x, to)
            with b.when(~first):
                for x, to in zip(sums, places, strict=True):
                    f.store(self.wide, el.add(f.load(self.wide, to, lanes), x), to)

        with b.loop(0, whole, self.vectors) as v:
            tile(v.index, self.vectors)
        count = 1 << (self.vectors - 1).bit_length()
        rest = vectors - whole
        while count := count // 2:
            with b.when((rest & count).ne(0)):
                tile(whole + (rest & -(2 * count)), count)

    def _sums(self, seen: Value, weights: Value, runs: Value, vectors: int) -> list[AnyValue]:
        f, b, kind, lanes, n = self.frame, self.b, self.kind, self.lanes, self.outputs
        sums = el.flat([el.zero(b, kind, lanes)] * (n * vectors))
        with b.loop(0, runs, 1, weights, *sums) as run:
            entry = b.gep(f.scratch, f["at_table"] + run.index * 16)
            start, count = b.gep(seen, b.word(entry, 0)), b.word(entry, 1)
            with b.loop(0, count, 1, start, *run.carried) as k:
                at, at_w, *carried = k.carried
                total = el.unflat(kind, carried)
                x = [f.load(self.wide, b.gep(at, v * lanes * self.size), lanes) for v in range(vectors)]
                for o in range(n):
                    w = el.spread(b, f.load(self.wide, b.gep(at_w, o * self.size), 1), lanes)
                    for v in range(vectors):
                        total[o * vectors + v] = el.multiply_add(b, x[v], w, total[o * vectors + v])
                k.carry(b.gep(at, f["row"]), b.gep(at_w, n * self.size), *el.flat(total))
            run.carry(*k.carried[1:])
        return el.unflat(kind, run.carried[1:])

    def _written(self, out: Value, rows: Value, columns: Value, strides: Sequence[Value]) -> None:
        """Totals to their places in the output: outputs lie together there."""
        f, b, memory = self.frame, self.b, self.kind.memory.size
        with b.loop(0, rows, 1) as y:
            totals = b.gep(f.scratch, f["at_totals"] + y.index * f["totals_row"] * self.outputs)
            line = b.gep(out, y.index * strides[1])
            with b.loop(0, columns, 1) as x:
                at, to = b.gep(totals, x.index * self.size), b.gep(line, x.index * strides[2])
                for o in range(self.outputs):
                    total = f.load(self.wide, b.gep(at, f["totals_row"] * o), 1)
                    f.store(self.kind, total, b.gep(to, o * memory))


# ---- lowering ----


class _Blocks(NamedTuple):
    """Places of a block along the last two axes, and vectors of them that are summed together."""

    y: int
    x: int
    vectors: int


def lower(parts: Sequence[ConvolutionPart]) -> Lowering | None:
    """The launches of convolutions of one array with few outputs; None where another kernel is better. Pointer 3 is the
    weights of all of them."""
    x, w = parts[0].x.layout, parts[0].w.layout
    d = len(parts[0].windows)
    kind, processor = elements_of(x.dtype), machine(config.cpu)
    lanes, outputs, channels = processor.lanes(kind), w.shape[-d - 2], x.shape[-1]
    known = all(
        type(n) is int for part in parts for n in (*part.x.layout.shape[-d - 1 :], *part.out.layout.shape[-d - 1 :])
    )
    if not known or 2 * outputs > lanes or parts[0].windows[-1].step != 1:
        return None
    places = [max(part.out.layout.shape[axis] for part in parts) for axis in range(-d - 1, -1)]
    if places[-1] < lanes:
        return None
    lows = [max(part.windows[axis].low for part in parts) for axis in range(d)]
    starts = [[low - window.low for low, window in zip(lows, part.windows, strict=True)] for part in parts]
    extents = [
        max(
            s[axis] + max(0, part.w.layout.shape[axis - d - 1] - 1) * part.windows[axis].gap
            for s, part in zip(starts, parts, strict=True)
        )
        for axis in range(d)
    ]
    missing = _AXES - d
    steps = [1] * missing + [window.step for window in parts[0].windows]
    places, lows, extents = [1] * missing + places, [0] * missing + lows, [0] * missing + extents
    turn = min(lanes, 8)
    deep, size = round_up(channels, turn), kind.work.size
    budget = _BUDGET * processor.registers * processor.vector // 64
    terms = math.prod(parts[0].out.layout.shape[: -d - 1]) * sum(
        math.prod(part.out.layout.shape[-d - 1 :]) * math.prod(part.w.layout.shape[-d - 1 :]) for part in parts
    )
    # Blocks along the other axes are tasks already.
    others = math.prod(x.shape[: -d - 1]) * places[0]
    blocks = _blocks(
        places, extents, steps, deep * size, lanes, processor.registers, outputs, budget, -(-tasks_for(terms) // others)
    )
    width = blocks.x + extents[2]
    lines = (blocks.y - 1) * steps[1] + extents[1] + 1
    line = deep * width * size
    if (extents[0] + 1) * lines * line > 8 * budget:
        return None
    read: Read = "rows" if x.strides[-2] == 1 else "columns" if x.strides[-1] == 1 else "any"
    kernel = FewOutputs(kind, outputs, blocks.vectors, lanes, read, len(parts))
    launches, phases, weights = _phases(parts, starts, missing, kind)
    strides = [0] * missing + list(scaled(x)[-d - 1 : -1])
    at_totals = round_up((extents[0] + 1) * lines * line + (blocks.vectors + 1) * lanes * size, 64)
    totals_row = round_up(blocks.x, lanes) * size
    at_table = at_totals + blocks.y * outputs * totals_row
    blocks_y, blocks_x = -(-places[1] // blocks.y), -(-places[2] // blocks.x)
    tasks = others * blocks_y * blocks_x
    out = parts[0].out.layout
    values: dict[str, Word] = {
        "tasks": tasks, "x": parts[0].x.pointer, "weights": Pointer(3), "images": x.shape[-d - 2],
        "image": scaled(x)[-d - 2], "out_image": scaled(out)[-d - 2], "channels": channels, "channel": scaled(x)[-1],
        "line": line, "row": width * size, "lines": lines, "block_y": blocks.y, "block_x": blocks.x,
        "places_z": places[0], "blocks_y": blocks_y, "blocks_x": blocks_x, "totals_row": totals_row,
        "at_totals": at_totals, "at_table": at_table, "phases": len(parts),
    }  # fmt: skip
    sizes = [1] * missing + list(x.shape[-d - 1 : -1])
    for axis in range(_AXES):
        values |= {f"n{axis}": sizes[axis], f"s{axis}": strides[axis], f"step{axis}": steps[axis]}
        values |= {f"low{axis}": lows[axis], f"extent{axis}": extents[axis]}
    for number, word in enumerate(word for phase in phases for word in phase.words()):
        values[f"phase{number}"] = word
    lead = [scaled(layout)[: -d - 2] for layout in (x, out)]
    each = row_major((*w.shape[: -d - 2], weights), size)[:-1]
    batch = merged(axes_of(x.shape[: -d - 2], lead[0], each, lead[1]))
    table = [(axis.size, *axis.strides) for axis in reversed(batch)]
    launch = Launch(
        Source(f"convolve:{kernel.name}", kernel.name, kernel.ir),
        block(kernel.words, values, table),
        grain_of(terms, tasks),
        at_table + 16 * (CHUNK + 2),
    )
    return Lowering((*launches, launch), (math.prod(w.shape[: -d - 2]) * weights * size,))


def _blocks(
    places: Sequence[int],
    extents: Sequence[int],
    steps: Sequence[int],
    deep: int,
    lanes: int,
    registers: int,
    outputs: int,
    budget: int,
    wanted: int,
) -> _Blocks:
    """As many places as can be summed from what fits into the budget, so that hardly any of it is seen by two tasks;
    and so few that there are as many blocks as are wanted."""
    most = min(_MOST, (registers - 1) // (outputs + 1))
    vectors = equal_blocks(-(-places[2] // lanes), most, 1)
    step = vectors * lanes
    x = round_up(places[2], step)
    deep *= extents[0] + 1
    while x > step and budget // (deep * (x + extents[2])) < 3 * (extents[1] + 1):
        x = round_up(-(-x // 2), step)
    lines = budget // (deep * (x + extents[2]))
    y = min(places[1], max(1, (lines - extents[1] - 1) // steps[1] + 1))
    while y > 1 and -(-places[1] // y) * -(-places[2] // x) < wanted:
        y = -(-y // 2)
    return _Blocks(equal_blocks(places[1], y, 1), x, vectors)


def _phases(
    parts: Sequence[ConvolutionPart], starts: Sequence[Sequence[int]], missing: int, kind: Elements
) -> tuple[list[Launch], list[_Phase], int]:
    """The phases, what copies their weights (elements of windows and channels first, then outputs; those of all phases
    for each member of the batch), and how many of them a member has."""
    d, size = _AXES - missing, kind.work.size
    shapes = [(*part.w.layout.shape[-d - 1 :], part.w.layout.shape[-d - 2]) for part in parts]
    total = sum(math.prod(shape) for shape in shapes)
    launches: list[Launch] = []
    phases = []
    at = 0
    for part, shape, start in zip(parts, shapes, starts, strict=True):
        w, out = part.w.layout, part.out
        batch = w.shape[: -d - 2]
        order = (*range(len(batch)), *range(len(batch) + 1, len(w.shape)), len(batch))
        turned = Layout(tuple([w.shape[i] for i in order]), tuple([w.strides[i] for i in order]), w.dtype)
        lead = [stride // size for stride in row_major((*batch, total), size)[:-1]]
        inner = [stride // size for stride in row_major(shape, size)]
        plain = Layout(turned.shape, (*lead, *inner), kind.work)
        convert = AsType(kind.work) if kind.narrow else None
        launches += moves.copy(turned, plain, part.w.pointer, Pointer(3, at * size), convert)
        ones, none = (1,) * missing, (0,) * missing
        phases.append(
            _Phase(
                at * size,
                out.pointer,
                (*ones, *w.shape[-d - 1 : -1]),
                (*none, *start),
                (*ones, *(window.gap for window in part.windows)),
                (*ones, *out.layout.shape[-d - 1 : -1]),
                (*none, *scaled(out.layout)[-d - 1 : -1]),
            )
        )
        at += math.prod(shape)
    return launches, phases, total
