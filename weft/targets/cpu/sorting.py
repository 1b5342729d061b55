"""Kernels that sort, and that search in what is sorted.

Elements become *records*: tuples of unsigned integers whose order is the order of the elements, perhaps with the
element's place as the least significant part, which makes a sort stable whatever the kernel does. Records are sorted by
networks of exchanges between the lanes of a few vectors, and the runs that come out of them are merged, vectors at a
time, until one is left. No branch of that depends on the data, and no result on the number of lanes or threads.

The sorted axis is the last one in here, its elements one after the other; `lower` brings other layouts into that form
and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.words import fields_of
from weft.dtypes import Dtype
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.records import dataclass, replace
from weft.runtime.threads import get_threads
from weft.targets.axes import Axis, axes_of, merged, product, row_major, scaled, words_of
from weft.targets.cpu import short_sorts
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.lanes import Lanes
from weft.targets.cpu.moves import bits_of, copy, weigh
from weft.targets.cpu.networks import (
    Network,
    Record,
    Records,
    from_key,
    is_nan,
    lanes_for,
    less,
    order_key,
    records_of,
    sign_of,
    sort_vectors,
)
from weft.targets.cpu.pivots import NETWORK, SCRATCH, Elements, Pivots, pivots_for

CACHED: Final = 1 << 17
"""Bytes of records that are sorted to the end before others are touched: with their copy, a part of a second-level
cache."""
BLOCK: Final = 1 << 14
"""Records that one unit of work merges or writes, where threads share a row; of longer ones, steps between two looks
whether to stop."""
AHEAD: Final = 1 << 11
"""Bytes ahead of a short row that are asked for: the processor is so deep in a network that it does not see the next
rows."""
COST: Final = 16
"""What sorting costs beside copying."""

# ---- sequences of records in memory ----


@dataclass(frozen=True, slots=True)
class Sequences:
    """Code over records in memory: word k of all records lies `capacity` times the size of the words before it from the
    start."""

    b: Builder
    records: Records
    lanes: int
    vectors: int
    """Of a network. A merge goes by some of them."""
    capacity: Value

    @property
    def step(self) -> int:
        """Records that one step of a merge takes and gives."""
        return max(1, min(4, self.vectors) // 2) * self.lanes

    def at(self, base: Value, word: int, index: Value) -> Value:
        """The address of a word of a record."""
        before = sum(w.size for w in self.records.words[:word])
        start = self.b.gep(base, self.capacity * before) if before else base
        return self.b.gep(start, index * self.records.words[word].size)

    def load(self, base: Value, index: Value, lanes: int) -> Record:
        words = self.records.words
        return [self.b.load(self.at(base, k, index), word, lanes) for k, word in enumerate(words)]  # type: ignore[misc]

    def store(self, x: Record, base: Value, index: Value) -> None:
        for k, word in enumerate(x):
            self.b.store(word, self.at(base, k, index))

    def take(self, base: Value, index: Value, stop: Value) -> list[Record]:
        """The next records of a run that ends at `stop`, as vectors; after its end, records that come last of all."""
        b, found = self.b, []
        left = b.splat(b.cast(b.intrinsic("smin", stop - index, b.i64(self.step)), dt.int32), self.lanes)
        for k in range(self.step // self.lanes):
            inside = b.iota(dt.int32, self.lanes) + k * self.lanes < left
            found.append([b.choose(inside, word, -1) for word in self.load(base, index + k * self.lanes, self.lanes)])
        return found

    def merge(
        self,
        source: Value,
        first: tuple[Value, Value],
        second: tuple[Value, Value],
        target: Value,
        at: Value,
        look: Callable[[], None] | None = None,
    ) -> None:
        """Two sorted runs (from, to) become one, from record `at` of the target on. Whole steps are written, so up to a
        step minus one more.

        The step that is taken next is that of the run whose next record is smaller: the half that has then been merged
        and goes out is smaller than everything which is still to come.
        """
        b = self.b
        (x, x_end), (y, y_end) = first, second
        total = (x_end - x) + (y_end - y)
        held = self.take(source, x, x_end)
        flat = [word for vector in held for word in vector]
        with b.loop(0, total, self.step, x + self.step, y, *flat) as loop:
            x, y, *flat = loop.carried
            from_x = (x < x_end) & ((y >= y_end) | ~less(self.load(source, y, 1), self.load(source, x, 1)))
            new = self.take(source, b.choose(from_x, x, y), b.choose(from_x, x_end, y_end))
            both = Network(b, [*self._vectors(flat), *new]).merge()
            half = len(both) // 2
            for k, vector in enumerate(both[:half]):
                self.store(vector, target, at + loop.index + k * self.lanes)
            x, y = b.choose(from_x, x + self.step, x), b.choose(from_x, y, y + self.step)
            if look is not None:
                with b.when(b.unlikely((loop.index & (BLOCK - 1)).eq(BLOCK - self.step))):
                    look()
            loop.carry(x, y, *(word for vector in both[half:] for word in vector))

    def _vectors(self, flat: Sequence[Value]) -> list[Record]:
        count = len(self.records.words)
        return [list(flat[k : k + count]) for k in range(0, len(flat), count)]

    def merge_levels(
        self,
        source: Value,
        target: Value,
        start: Value,
        stop: Value,
        width: Value,
        levels: Value,
        look: Callable[[], None] | None = None,
    ) -> Value:
        """Runs of `width` records in [start, stop) are merged two by two, `levels` times, from one memory into the
        other and back, with a look whether to stop now and then.

        Returns the one with the result.
        """
        b = self.b
        with b.loop(0, levels, 1, source, target, width) as level:
            source, target, width = level.carried
            with b.loop(start, stop, width + width) as pair:
                middle = b.intrinsic("smin", pair.index + width, stop)
                end = b.intrinsic("smin", middle + width, stop)
                self.merge(source, (pair.index, middle), (middle, end), target, pair.index, look)
            level.carry(target, source, width + width)
        return level.carried[0]


def bisect(b: Builder, n: Value, rounds: Value, holds: Callable[[Value], Value]) -> Value:
    """The length of the part of [0, n) at whose indices a condition holds, which is its beginning.

    n is smaller than 2 ** rounds. It may be a vector: each lane is a search of its own.
    """
    with b.loop(0, rounds, 1, b.const(dt.int64, 0, n.lanes)) as loop:
        (found,) = loop.carried
        further = found + b.splat(b.i64(1) << (rounds - 1 - loop.index), n.lanes)
        last = b.intrinsic("smax", b.intrinsic("smin", further, n) - 1, b.const(dt.int64, 0, n.lanes))
        longer = (further <= n) & holds(last)
        loop.carry(b.choose(longer, further, found))
    return loop.carried[0]


# ---- kernels ----


@dataclass(frozen=True, slots=True)
class SortRows(NativeKernel):
    """Every unit is a row, or a part of `width` elements of one if `parts` are sorted on their own. Operands: x, the
    result.

    result: "values" or "places", or "records" (at `row` records from row to row). A row is sorted in pieces of `width`
    (of `inner` levels of merging each, from what a network gives), and those are merged (`levels`). `rounds` is the
    number of bits of the length.
    """

    title = "sort"
    records: Records
    result: str
    lanes: int
    vectors: int
    outer: int
    parts: bool = False
    merges: bool = True
    """False where a network takes a whole row."""
    pivots: Lanes | None = None
    """How rows are divided instead, if they are."""

    def __str__(self) -> str:
        form = f"{'parts' if self.parts else 'rows'}{' merged' if self.merges else ''} {self.records} -> {self.result}"
        way = f" pivots {self.pivots}" if self.pivots else ""
        return f"sort {form} lanes={self.lanes} vectors={self.vectors} outer={self.outer}{way}"

    def as_written(self) -> bool:
        return True

    def fields(self) -> list[str]:
        return fields_of(self.outer, 2, "width", "inner", "levels", "capacity", "rounds", "chunks", "row", "all")

    def emit(self, frame: Frame) -> None:
        b, n = frame.b, frame["n"]
        with b.loop(frame.begin, frame.end, 1) as units:
            row, start, count = units.index, b.i64(0), n
            if self.parts:
                row, part = frame.divide(units.index, frame["chunks"])
                start = part * frame["width"]
                count = b.intrinsic("smin", frame["width"], n - start)
            x = frame.at(0, frame.indices(row))
            if not self.merges:
                for line in range(0, self.vectors * self.lanes * self.records.dtype.size, 64):
                    b.prefetch(b.gep(x, AHEAD + line))
            if self.pivots is not None:
                self._divided(frame, self.pivots, row, x, start, count)
            else:
                self._merged(frame, row, x, start, count)

    def _merged(self, frame: Frame, row: Value, x: Value, start: Value, count: Value) -> None:
        """Sort elements in scratch memory, and write the result."""
        b = frame.b
        memory = Sequences(b, self.records, self.lanes, self.vectors, frame["capacity"])
        other = b.gep(frame.scratch, frame["capacity"] * self.records.size)
        found = self._sorted(frame, memory, other, x, start, count)
        if self.result == "records":
            everything = Sequences(b, self.records, self.lanes, self.vectors, frame["all"])
            _copy_records(frame, memory, found, everything, row * frame["row"] + start, count)
        else:
            self._finish(frame, memory, found, x, frame.at(1, frame.indices(row)))

    def _finish(self, frame: Frame, memory: Sequences, found: Value, x: Value, out: Value) -> None:
        b, finish = frame.b, Finish(self.records, self.result, self.lanes, self.outer)
        unclear = finish.write(frame, memory, found, x, out, b.i64(0), frame["n"])
        if finish.settles:
            with b.when(unclear):
                finish.settle(frame, x, out)

    def _sorted(self, frame: Frame, memory: Sequences, other: Value, x: Value, start: Value, count: Value) -> Value:
        """Where `count` elements of the row x from `start` on lie sorted.

        Piece after piece is read and merged in itself; one more turn of the same loop, so that its code is there once,
        merges the pieces.
        """
        b, width = frame.b, frame["width"]
        if not self.merges:
            self._networks(frame, memory, x, start, b.i64(0), count, count)
            return frame.scratch
        pieces = frame.divide(count + width - 1, width)[0]
        odd = (frame["inner"] & 1).ne(0)
        with b.loop(0, pieces + 1, 1, frame.scratch) as turn:
            with b.when(turn.index.ne(0)):
                frame.look()
            last = turn.index.eq(pieces)
            low = b.choose(last, 0, turn.index * width)
            high = b.choose(last, count, b.intrinsic("smin", low + width, count))
            self._networks(frame, memory, x, start, low, b.choose(last, low, high), count)
            here, there = (_choose(b, last & odd, *both) for both in ((other, frame.scratch), (frame.scratch, other)))
            runs = b.choose(last, width, b.i64(self.vectors * self.lanes))
            levels = b.choose(last, frame["levels"], frame["inner"])
            turn.carry(memory.merge_levels(here, there, low, high, runs, levels, frame.look))
        return turn.carried[0]

    def _divided(self, frame: Frame, lanes: Lanes, row: Value, x: Value, start: Value, count: Value) -> None:
        """Sort elements by pivots into the result, and in its memory if records are as large as what is there."""
        b, records, (word,) = frame.b, self.records, self.records.words
        finish = Finish(records, self.result, self.lanes, self.outer)
        if self.result == "records":
            out = b.gep(frame["p1"], (row * frame["row"] + start) * word.size)
        else:
            out = frame.at(1, frame.indices(row))
        own = self.result == "records" or finish.size == word.size
        memory = out if own else b.gep(frame.scratch, SCRATCH)

        def read(index: Value, left: Value) -> Value:
            at = start + index
            return records.load(b, b.gep(x, at * records.dtype.size), at, left, self.lanes)[0]

        def gather(places: Value) -> Value:
            at = places + b.splat(start, self.lanes)
            return records.of(b, b.lookup(x, at, bits_of(records.dtype)), at)[0]

        def write(index: Value, keys: Value, inside: Value) -> None:
            element = keys if self.result == "records" else finish.element(b, [keys])
            b.store(element, b.gep(out, index * element.dtype.size), inside)

        Pivots(frame, word, lanes, Elements(read, gather, write), memory, frame.scratch).sort(count)
        if finish.settles:
            finish.settle(frame, x, out)

    def _networks(
        self, frame: Frame, memory: Sequences, x: Value, start: Value, low: Value, high: Value, count: Value
    ) -> None:
        """Elements low to high of what is sorted become short sorted runs of records."""
        b, lanes, size = frame.b, self.lanes, self.records.dtype.size
        with b.loop(low, high, self.vectors * lanes) as loop:
            vectors = []
            for k in range(self.vectors):
                at = loop.index + k * lanes
                left = b.intrinsic("smax", count - at, b.i64(0))
                vectors.append(self.records.load(b, b.gep(x, (start + at) * size), start + at, left, lanes))
            for k, vector in enumerate(sort_vectors(b, vectors)):
                memory.store(vector, frame.scratch, loop.index + k * lanes)


def _choose(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    """`choose` of addresses."""
    return b.op(f"select i1 {condition.text}, ptr {x.text}, ptr {y.text}", x.dtype, 1)


def _copy_records(frame: Frame, memory: Sequences, source: Value, into: Sequences, at: Value, count: Value) -> None:
    """Records become those of the result from `at` on."""
    with frame.long_loop(0, count, memory.lanes, BLOCK) as loop:
        into.store(memory.load(source, loop.index, memory.lanes), frame["p1"], at + loop.index)


@dataclass(frozen=True, slots=True)
class MergeRows(NativeKernel):
    """One level of merging of long rows. A unit is a block of a row of the result; `run` records are sorted already.
    Operands: records before, after."""

    title = "sort"
    records: Records
    lanes: int
    vectors: int
    outer: ClassVar[int] = 0  # type: ignore[misc]

    def __str__(self) -> str:
        return f"sort merge {self.records} lanes={self.lanes} vectors={self.vectors}"

    def as_written(self) -> bool:
        return True

    def fields(self) -> list[str]:
        return fields_of(0, 2, "run", "width", "chunks", "row", "all", "rounds")

    def emit(self, frame: Frame) -> None:
        b, n, run, width = frame.b, frame["n"], frame["run"], frame["width"]
        memory = Sequences(b, self.records, self.lanes, self.vectors, frame["all"])
        with b.loop(frame.begin, frame.end, 1) as units:
            row, block = frame.divide(units.index, frame["chunks"])
            base, at = row * frame["row"], block * width
            pair = frame.divide(at, run + run)[0] * (run + run)
            middle = b.intrinsic("smin", pair + run, n)
            end = b.intrinsic("smin", middle + run, n)
            runs = (base + pair, base + middle), (base + middle, base + end)
            low = self._split(frame, memory, runs, at - pair)
            high = self._split(frame, memory, runs, b.intrinsic("smin", at + width, end) - pair)
            first, second = zip(low, high, strict=True)
            memory.merge(frame["p0"], first, second, frame["p1"], base + at)

    def _split(
        self, frame: Frame, memory: Sequences, runs: tuple[tuple[Value, Value], ...], count: Value
    ) -> tuple[Value, Value]:
        """Where the `count` smallest records of two runs end in each of them; of equal ones, those of the first run are
        smaller."""
        b, before = frame.b, frame["p0"]
        (x, x_end), (y, y_end) = runs
        least = b.intrinsic("smax", count - (y_end - y), b.i64(0))
        most = b.intrinsic("smin", count, x_end - x)

        def among(index: Value) -> Value:
            """Whether record least + index of the first run is one of them: not larger than the record of the second
            that would have its place."""
            i = least + index
            return ~less(memory.load(before, y + (count - 1 - i), 1), memory.load(before, x + i, 1))

        found = least + bisect(b, most - least, frame["rounds"], among)
        return x + found, y + (count - found)


@dataclass(frozen=True, slots=True)
class Finish(NativeKernel):
    """Sorted records become the result. A unit is a block of a row, or, where equal elements are `settled`, a row.
    Operands: x, records, result."""

    title = "sort"
    records: Records
    result: str
    lanes: int
    outer: int
    settled: bool = False

    def __str__(self) -> str:
        form = "settle" if self.settled else "finish"
        return f"sort {form} {self.records} -> {self.result} lanes={self.lanes} outer={self.outer}"

    def as_written(self) -> bool:
        return True

    def fields(self) -> list[str]:
        return fields_of(self.outer, 3, "width", "chunks", "row", "all", "rounds", blocked=False)

    def emit(self, frame: Frame) -> None:
        b = frame.b
        memory = Sequences(b, self.records, self.lanes, 1, frame["all"])
        with b.loop(frame.begin, frame.end, 1) as units:
            row, start = units.index, b.i64(0)
            if not self.settled:
                row, block = frame.divide(units.index, frame["chunks"])
                start = block * frame["width"]
            at = frame.indices(row)
            x, out, first = frame.at(0, at), frame.at(2, at), row * frame["row"]
            if self.settled:
                self.settle(frame, x, out)
            else:
                count = b.intrinsic("smin", frame["width"], frame["n"] - start)
                self.write(frame, memory, frame["p1"], x, b.gep(out, start * self.size), first + start, count)

    @property
    def size(self) -> int:
        """Bytes of an element of the result."""
        return 4 if self.result == "places" else self.records.dtype.size

    def write(
        self, frame: Frame, memory: Sequences, base: Value, x: Value, out: Value, first: Value, count: Value
    ) -> Value:
        """`count` elements of the result from records `first` and on. Returns whether zeros or NaNs are among them, of
        which keys do not tell all."""
        b, dtype = frame.b, self.records.dtype
        if self.result == "values" and self.records.indexed:
            self._pick(frame, memory, base, x, out, first, count)
            return b.const(dt.bool_, False, 1)

        def body(index: Value, mask: Value | None, found: Value) -> Value:
            words = memory.load(base, first + index, self.lanes)
            b.store(self.element(b, words), b.gep(out, index * self.size), mask)
            if not self.settles:
                return found
            unclear = (words[0] - (sign_of(dtype) - 1) <= 1) | words[0].eq(-1)
            return found | (unclear if mask is None else unclear & mask)

        whole = count & -self.lanes
        with frame.long_loop(0, whole, self.lanes, BLOCK, b.const(dt.bool_, False, self.lanes)) as loop:
            loop.carry(body(loop.index, None, loop.carried[0]))
        with b.loop(whole, count, self.lanes, *loop.carried) as rest:
            inside = b.iota(dt.int32, self.lanes) < b.cast(count - rest.index, dt.int32)
            rest.carry(body(rest.index, inside, rest.carried[0]))
        return b.any(rest.carried[0])

    def element(self, b: Builder, words: Record) -> Value:
        """Of the result, from records."""
        if self.result == "places":
            return self.records.place(b, words)
        return from_key(b, words[0], self.records.dtype)

    @property
    def settles(self) -> bool:
        """Whether the order of equal elements has to be looked up in the row."""
        return self.result == "values" and self.records.dtype.is_float

    def _pick(
        self, frame: Frame, memory: Sequences, base: Value, x: Value, out: Value, first: Value, count: Value
    ) -> None:
        """Elements of x from their places, one by one."""
        b, kind = frame.b, bits_of(self.records.dtype)
        last = len(self.records.words) - 1
        with frame.long_loop(0, count, 1, BLOCK) as loop:
            place = b.load(memory.at(base, last, first + loop.index), dt.uint32, 1)
            element = b.load(b.gep(x, b.cast(place, dt.int64) * kind.size), kind, 1)  # type: ignore[arg-type]
            b.store(element, b.gep(out, loop.index * kind.size))

    def settle(self, frame: Frame, x: Value, out: Value) -> None:
        """Zeros of both signs, and NaNs, in the order in which they stand in the row: keys alone do not tell. Seldom
        needed."""
        b, dtype, n, rounds = frame.b, self.records.dtype, frame["n"], frame["rounds"]
        kind, zero, ones = bits_of(dtype), sign_of(dtype), (1 << dtype.bits) - 1
        word = b.const(kind, zero, 1)

        def key_at(index: Value) -> Value:
            element = b.load(b.gep(out, index * kind.size), kind, 1)
            assert isinstance(element, Value)
            return order_key(b, element, dtype, canonical=False)

        def count_below(key: int) -> Value:
            return bisect(b, n, rounds, lambda index: key_at(index) < b.const(kind, key, 1))

        negative = count_below(zero)
        last = b.intrinsic("smax", negative - 1, b.i64(0))
        following = b.intrinsic("smin", negative, n - 1)
        mixed = key_at(last).eq(word - 1) & key_at(following).eq(word)
        with b.when(mixed | key_at(n - 1).eq(-1)):
            self._rewrite(frame, x, out, count_below(zero - 1), count_below(ones))

    def _rewrite(self, frame: Frame, x: Value, out: Value, zeros: Value, nans: Value) -> None:
        """The zeros and NaNs of a row, one after the other."""
        b, kind, dtype = frame.b, bits_of(self.records.dtype), self.records.dtype
        with frame.long_loop(0, frame["n"], 1, BLOCK, zeros, nans) as loop:
            zeros, nans = loop.carried
            element = b.load(b.gep(x, loop.index * kind.size), kind, 1)
            assert isinstance(element, Value)
            zero, nan = (element << 1).eq(0), is_nan(element, dtype)
            with b.when(zero | nan):
                b.store(element, b.gep(out, b.choose(zero, zeros, nans) * kind.size))
            loop.carry(zeros + b.cast(zero, dt.int64), nans + b.cast(nan, dt.int64))


# ---- lowerings ----


def lower(x: Layout, out: Layout, axis: int, places: bool) -> Lowering:
    """out = x sorted along an axis, or the places that sort it. Pointers: 0 x, 1 out."""
    records = records_of(x.dtype, places or x.dtype.is_complex, x.shape[axis])
    result = "places" if places else "values"

    def rows(outer: Sequence[Axis], read: Pointer, write: Pointer, temporaries: list[int]) -> list[Launch]:
        return _Rows(records, result, x.shape[axis], tuple(outer), read, write).launches(temporaries)

    return by_rows(x, out, axis, rows)


def by_rows(
    x: Layout, out: Layout, axis: int, rows: Callable[[Sequence[Axis], Pointer, Pointer, list[int]], list[Launch]]
) -> Lowering:
    """What `rows(outer axes, operand, result, temporaries)` launches where the elements of x and out along an axis lie
    one after the other. Those that do not are copied into that form, and back. Pointers: 0 x, 1 out."""
    if 0 in out.shape:
        return Lowering(())
    moved = (*(a for a in range(len(x.shape)) if a != axis), axis)
    before, after = _arranged(x, moved), _arranged(out, moved)
    launches: list[Launch] = []
    temporaries: list[int] = []

    def temporary(layout: Layout) -> tuple[Layout, Pointer]:
        temporaries.append(_bytes(layout))
        return row_major_of(layout), Pointer(1 + len(temporaries))

    read, write = (before, Pointer(0)), (after, Pointer(1))
    if before.shape[-1] > 1 and before.strides[-1] != 1:
        read = temporary(before)
        launches += copy(before, read[0], Pointer(0), read[1])
    if after.shape[-1] > 1 and after.strides[-1] != 1:
        write = temporary(after)
    outer = merged(axes_of(before.shape[:-1], scaled(read[0])[:-1], scaled(write[0])[:-1]))
    launches += rows(outer, read[1], write[1], temporaries)
    if write[1] != Pointer(1):
        launches += copy(_arranged(write[0], [moved.index(a) for a in range(len(moved))]), out, write[1], Pointer(1))
    return Lowering(tuple(launches), tuple(temporaries))


def _arranged(x: Layout, axes: Sequence[int]) -> Layout:
    return Layout(tuple(x.shape[a] for a in axes), tuple(x.strides[a] for a in axes), x.dtype)


def _bytes(x: Layout) -> int:
    return math.prod(x.shape) * x.dtype.size


def row_major_of(x: Layout) -> Layout:
    """The same elements, row-major."""
    return Layout(x.shape, tuple(s // x.dtype.size for s in row_major(x.shape, x.dtype.size)), x.dtype)


def _width(n: int, records: Records, network: int) -> int:
    """Records that are sorted to the end before others are touched: a network's, doubled some times."""
    width = network
    while width < n and 2 * width * records.size <= CACHED:
        width *= 2
    return width


def _levels(n: int, width: int) -> int:
    """How often runs of `width` must be merged two by two until there is one of n."""
    return max(0, (-(-n // width) - 1).bit_length())


def _padded(n: int, network: int) -> int:
    """Records that a memory for n must hold: networks are written whole, and merges read up to two steps past a run."""
    return (-(-n // network) + 2) * network


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of n elements, along which operand (`from_`) and result (`to`) lie one after the other. `outer` are their
    other axes."""

    records: Records
    result: str
    n: int
    outer: tuple[Axis, ...]
    from_: Pointer
    to: Pointer

    def launches(self, temporaries: list[int]) -> list[Launch]:
        """What sorts them; memory that it needs beside the scratch is added to the temporaries."""
        places = self.result == "places"
        short = short_sorts.launch(self.records.dtype, places, self.n, self.outer, self.from_, self.to)
        if short is not None:
            return [short]
        lanes = lanes_for(self.records)
        most = 4 if len(self.records.words) > 1 else NETWORK
        vectors = next((v for v in (1, 2, 4, 8) if self.n <= v * lanes and v < most), most)
        width, threads = _width(self.n, self.records, lanes * vectors), get_threads()
        if self._pivots() is not None:  # which do not need pieces for the caches, only some for every thread
            while 2 * threads * width < self.n:
                width *= 2
        if self.n > 2 * width and threads > 1 and self.count < 2 * threads:
            memories = [Pointer(2 + len(temporaries) + k) for k in range(2)]
            temporaries += [self.count * self._padded_row(lanes * vectors) * self.records.size] * 2
            return self._shared(lanes, vectors, width, memories)
        return [self._alone(lanes, vectors, width)]

    @property
    def count(self) -> int:
        return product(self.outer)

    def _pivots(self) -> Lanes | None:
        """How long rows are divided; None if they are merged."""
        return pivots_for(self.records, self.n)

    def _padded_row(self, network: int) -> int:
        return _padded(self.n, max(network, 64))

    def _alone(self, lanes: int, vectors: int, width: int) -> Launch:
        """Each row by one thread, in its scratch memory."""
        network = lanes * vectors
        kernel = SortRows(
            self.records, self.result, lanes, vectors, len(self.outer), False, self.n > network, self._pivots()
        )
        capacity = _padded(self.n, network)
        numbers = {"width": width, "inner": _levels(width, network), "levels": _levels(self.n, width)}
        numbers |= {"capacity": capacity, "chunks": 1, "row": 0, "all": 0}
        return self._launch(kernel, self.count, [self.from_, self.to], COST, numbers, self._scratch(capacity))

    def _scratch(self, capacity: int) -> int:
        """Bytes: two memories of records, or, where rows are divided, one if records are larger than the result."""
        size = self.records.size
        if self._pivots() is None:
            return 2 * capacity * size
        return SCRATCH + (capacity * size if size != Finish(self.records, self.result, 1, 0).size else 0)

    def _shared(self, lanes: int, vectors: int, width: int, memories: list[Pointer]) -> list[Launch]:
        """Few long rows: threads sort parts of them, then merge blocks of two runs at a time, then write blocks of the
        result."""
        records, n, rows, network = self.records, self.n, self.count, lanes * vectors
        row = self._padded_row(network)
        common = {"row": row, "all": rows * row}
        parts, capacity = -(-n // width), _padded(width, network)
        numbers = common | {"width": width, "inner": _levels(width, network), "levels": 0, "capacity": capacity}
        sort = SortRows(records, "records", lanes, vectors, len(self.outer), True, True, self._pivots())
        pointers = [self.from_, memories[0]]
        scratch = SCRATCH if self._pivots() else self._scratch(capacity)
        launches = [self._launch(sort, rows * parts, pointers, COST, numbers | {"chunks": parts}, scratch)]

        block = min(BLOCK, width)
        blocks = -(-n // block)
        numbers = common | {"width": block, "chunks": blocks}
        merge, run = MergeRows(records, lanes, vectors), width
        while run < n:
            launches.append(self._launch(merge, rows * blocks, memories, 2, numbers | {"run": run}))
            memories, run = memories[::-1], 2 * run

        pointers = [self.from_, memories[0], self.to]
        finish = Finish(records, self.result, lanes, len(self.outer))
        launches.append(self._launch(finish, rows * blocks, pointers, 1, numbers))
        if finish.settles:
            launches.append(self._launch(replace(finish, settled=True), rows, pointers, 1, numbers))
        return launches

    def _launch(
        self, kernel: SortRows | MergeRows | Finish, units: int, pointers: Sequence[Pointer], cost: int,
        numbers: dict[str, int], scratch: int = 0,
    ) -> Launch:  # fmt: skip
        """Operands are the rows, records in temporary memory (whose places are numbered), and the result."""
        steps = {self.from_: 0, self.to: 1}
        axes = [
            Axis(a.size, tuple(a.strides[steps[p]] if p in steps else 0 for p in pointers))
            for a in self.outer[: kernel.outer]
        ]
        numbers = numbers | {"units": units, "rounds": self.n.bit_length()}
        words = words_of(kernel.fields(), pointers, axes, Axis(self.n, (0,) * len(pointers)), numbers)
        each = self.records.dtype.size * self.n * self.count // units
        return Launch(kernel.source(), words, weigh(units, each, cost), scratch)


# ---- searching ----


@dataclass(frozen=True, slots=True)
class SearchRows(NativeKernel):
    """How many elements of a sorted row come before each value (or, `right`, are equal to it as well). Operands: rows,
    values, result.

    `length` is that of the sorted row. A unit is a block of the values that go with one row.
    """

    title = "search"
    dtype: Dtype
    right: bool
    lanes: int
    outer: int

    def __str__(self) -> str:
        return f"search {self.dtype.name}{' right' if self.right else ''} lanes={self.lanes} outer={self.outer}"

    def fields(self) -> list[str]:
        return fields_of(self.outer, 3, "length", "rounds", blocked=True)

    def emit(self, frame: Frame) -> None:
        b = frame.b
        with b.loop(frame.begin, frame.end, 1) as units:
            row, start, stop = frame.part(units.index, blocked=True)
            at = frame.indices(row)
            rows, values, out = (frame.at(k, at) for k in range(3))
            with b.loop(start, stop, self.lanes) as loop:
                inside = b.iota(dt.int32, self.lanes) < b.cast(
                    b.intrinsic("smin", stop - loop.index, b.i64(self.lanes)), dt.int32
                )
                found = self._search(frame, rows, b.gep(values, loop.index * self.dtype.size), inside)
                b.store(b.cast(found, dt.uint32), b.gep(out, loop.index * 4), inside)

    def _search(self, frame: Frame, rows: Value, values: Value, inside: Value) -> Value:
        b, records = frame.b, Records(self.dtype, indexed=False)
        kind = self.dtype if self.dtype.is_complex else bits_of(self.dtype)
        wanted = records.keys(b, b.load(values, kind, self.lanes, inside), canonical=True)

        def before(index: Value) -> Value:
            found = records.keys(b, self._element(b, rows, index), canonical=True)
            return ~less(wanted, found) if self.right else less(found, wanted)

        return bisect(b, b.splat(frame["length"], self.lanes), frame["rounds"], before)

    def _element(self, b: Builder, rows: Value, index: Value) -> AnyValue:
        """Elements of a row, one for each lane."""
        if not self.dtype.is_complex:
            return b.lookup(rows, index, bits_of(self.dtype))
        part = dt.real_of(self.dtype)
        return Complex(b.lookup(rows, index + index, part), b.lookup(rows, index + index + 1, part))


def search(rows: Layout, values: Layout, out: Layout, right: bool) -> Lowering:
    """For every value, its place in the row that goes with it: rows[*lead, n], values[*lead, ...]. Pointers: 0 rows, 1
    values, 2 out."""
    if 0 in out.shape:
        return Lowering(())
    lead = len(rows.shape) - 1
    n = math.prod(values.shape[lead:])
    launches: list[Launch] = []
    temporaries: list[int] = []
    operands = []
    for k, (x, plain) in enumerate(
        ((rows, rows.strides[-1] == 1 or rows.shape[-1] <= 1), (values, _is_packed(values, lead)))
    ):
        if plain:
            operands.append((x, Pointer(k)))
            continue
        packed = row_major_of(x)
        operands.append((packed, Pointer(3 + len(temporaries))))
        temporaries.append(_bytes(x))
        launches += copy(x, packed, Pointer(k), operands[-1][1])
    layouts = [layout for layout, _ in operands]
    outer = merged(axes_of(out.shape[:lead], *(scaled(x)[:lead] for x in (*layouts, out))))
    kernel = SearchRows(rows.dtype, right, lanes_for(Records(rows.dtype, False)), len(outer))
    width = min(n, BLOCK)
    units = product(outer) * -(-n // width)
    length = rows.shape[-1]
    numbers = {
        "units": units,
        "width": width,
        "chunks": -(-n // width),
        "length": length,
        "rounds": length.bit_length(),
    }
    words = words_of(
        kernel.fields(), [pointer for _, pointer in operands] + [Pointer(2)], outer, Axis(n, (0, 0, 0)), numbers
    )
    cost = 2 * length.bit_length()
    launches.append(Launch(kernel.source(), words, weigh(units, width * rows.dtype.size, max(1, cost))))
    return Lowering(tuple(launches), tuple(temporaries))


def _is_packed(x: Layout, lead: int) -> bool:
    """Whether the elements of the axes after the first `lead` lie one after the other."""
    return all(axis.strides == (1,) for axis in merged(axes_of(x.shape[lead:], x.strides[lead:])))
