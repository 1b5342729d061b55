"""Kernels that find the largest or the smallest elements of rows without sorting the rest.

A row is walked once. Records (see `sorting`) that beat the worst of those kept so far go to a buffer; when that is
full, it is sorted and all but the best are forgotten. The row is walked so that of equal elements those that win come
first: the order of records is total, and everything that is still to come has to beat the worst one by its key alone.
Of a random row of n elements about k log(n / k) ever get into the buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.words import fields_of
from weft.llvm.builder import Builder, Value
from weft.records import dataclass
from weft.targets.axes import Axis, product, words_of
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.moves import bits_of, weigh
from weft.targets.cpu.networks import Network, Record, Records, lanes_for, less, records_of
from weft.targets.cpu.sorting import Sequences, by_rows

COST: Final = 2
"""What looking at an element costs beside copying it."""


@dataclass(frozen=True, slots=True)
class SelectRows(NativeKernel):
    """A unit is a row. Operands: x, the places (uint32) of the `count` largest or smallest elements in sorted order.

    `capacity` records fit into each of two buffers, of which `limit` (whole blocks) are used; `levels` merges sort
    those. A block is `size` vectors that are looked at together: mostly nothing in them is good enough.
    """

    title = "select"
    records: Records
    largest: bool
    lanes: int
    vectors: int
    size: int
    outer: int

    def __str__(self) -> str:
        form = "largest" if self.largest else "smallest"
        sizes = f"lanes={self.lanes} vectors={self.vectors} size={self.size} outer={self.outer}"
        return f"select {form} {self.records} {sizes}"

    def as_written(self) -> bool:
        return True

    def fields(self) -> list[str]:
        return fields_of(self.outer, 2, "count", "limit", "capacity", "levels")

    @property
    def wide(self) -> int:
        """Lanes where keys alone are looked at."""
        return lanes_for(Records(self.records.dtype, indexed=False))

    @property
    def block(self) -> int:
        """Elements of a block."""
        return self.size * max(self.wide, self.lanes)

    def emit(self, frame: Frame) -> None:
        b = frame.b
        memory = Sequences(b, self.records, self.lanes, self.vectors, frame["capacity"])
        spare = b.gep(frame.scratch, frame["capacity"] * self.records.size)
        with b.loop(frame.begin, frame.end, 1) as units:
            at = frame.indices(units.index)
            x, out = frame.at(0, at), frame.at(1, at)
            self._select(frame, memory, spare, x)
            self._write(frame, memory, out)

    # ---- selection ----

    def _select(self, frame: Frame, memory: Sequences, spare: Value, x: Value) -> None:
        """The chosen records come to lie in the scratch, sorted.

        The buffer is filled first, so that the first turn sorts it. There is one more turn than there are blocks left,
        which only sorts.
        """
        b, n, limit = frame.b, frame["n"], frame["limit"]
        blocks = frame.divide(n + (self.block - 1), b.i64(self.block))[0]
        first = b.intrinsic("smin", frame.divide(limit, b.i64(self.block))[0], blocks)
        held = self._fill(frame, memory, x)
        nothing = [b.const(word, 0, 1) for word in self.records.words]
        with b.loop(first, blocks + 1, 1, held, *nothing) as turn:
            held, *worst = turn.carried
            full = (held + self.block > limit) | turn.index.eq(blocks)
            held, *worst = b.rarely(full, [held, *worst], lambda: self._shrink(frame, memory, spare, held))
            part = (x, *self._part(frame, turn.index))
            found = self._promising(b, part, worst)
            turn.carry(*b.rarely(found, [held], lambda: [self._append(frame, memory, part, held, worst)]), *worst)

    def _part(self, frame: Frame, number: Value) -> tuple[Value, Value]:
        """The elements of a block; the largest are looked for from the end of the row on."""
        b, n, before = frame.b, frame["n"], number * self.block
        if self.largest:
            stop = b.intrinsic("smax", n - before, b.i64(0))
            return b.intrinsic("smax", stop - self.block, b.i64(0)), stop
        return b.intrinsic("smin", before, n), b.intrinsic("smin", before + self.block, n)

    def _fill(self, frame: Frame, memory: Sequences, x: Value) -> Value:
        """The first blocks go to the buffer as they are; returns how many elements they have."""
        b, n, limit = frame.b, frame["n"], frame["limit"]
        count = b.intrinsic("smin", n, limit)
        start = n - count if self.largest else b.i64(0)
        with b.loop(0, count, self.lanes) as loop:
            at = start + loop.index
            address = b.gep(x, at * self.records.dtype.size)
            words = self.records.load(b, address, at, count - loop.index, self.lanes)
            memory.store(words, frame.scratch, loop.index)
        return count

    def _beats(self, x: Record, y: Record) -> Value:
        return less(y, x) if self.largest else less(x, y)

    def _promising(self, b: Builder, part: tuple[Value, Value, Value], worst: Record) -> Value:
        """Whether the key of some element of a block (row, start, stop) beats that of the worst record."""
        x, start, stop = part
        records, lanes = Records(self.records.dtype, indexed=False), self.wide
        limit = [b.splat(word, lanes) for word in self._key(b, worst)]
        kind = records.dtype if records.dtype.is_complex else bits_of(records.dtype)
        better = b.const(dt.bool_, False, lanes)
        for first in range(0, self.block, lanes):
            left = b.intrinsic("smax", stop - start - first, b.i64(0))
            inside = _first_lanes(b, left, lanes)
            elements = b.load(b.gep(x, (start + first) * records.dtype.size), kind, lanes, inside)
            better = better | (self._beats(records.keys(b, elements, canonical=True), limit) & inside)
        return b.any(better)

    def _key(self, b: Builder, record: Record) -> Record:
        """The words of a record that hold the key, as an element without a place has them."""
        if not self.records.packed:
            return record[:-1]
        (word,) = Records(self.records.dtype, indexed=False).words
        return [b.cast(record[0] >> self.records.packed, word)]

    def _append(
        self, frame: Frame, memory: Sequences, part: tuple[Value, Value, Value], held: Value, worst: Record
    ) -> Value:
        """The records of a block that are good enough follow those that are held; returns how many there are now."""
        b, lanes = frame.b, self.lanes
        x, start, stop = part
        limit = [b.splat(word, lanes) for word in worst]
        with b.loop(start, stop, lanes, held) as loop:
            left = stop - loop.index
            address = b.gep(x, loop.index * self.records.dtype.size)
            words = self.records.load(b, address, loop.index, left, lanes)
            good = self._beats(words, limit) & _first_lanes(b, left, lanes)
            held = loop.carried[0]
            loop.carry(*b.rarely(b.any(good), [held], lambda: [self._spread(memory, frame.scratch, words, good, held)]))
        return loop.carried[0]

    def _spread(self, memory: Sequences, base: Value, words: Record, good: Value, held: Value) -> Value:
        """The good lanes, one after the other; what is written for the others is overwritten by the next."""
        b = memory.b
        for lane in range(self.lanes):
            memory.store([b.extract(word, lane) for word in words], base, held)
            held = held + b.cast(b.extract(good, lane), dt.int64)
        return held

    def _shrink(self, frame: Frame, memory: Sequences, spare: Value, held: Value) -> list[Value]:
        """Sort what is held and keep the best `count`; returns how many those are, and the worst of them."""
        b, lanes, network = frame.b, self.lanes, self.lanes * self.vectors
        with b.loop(0, held, network) as loop:
            vectors = []
            for k in range(self.vectors):
                at = loop.index + k * lanes
                inside = _first_lanes(b, b.intrinsic("smax", held - at, b.i64(0)), lanes)
                vectors.append([b.choose(inside, word, -1) for word in memory.load(frame.scratch, at, lanes)])
            for k, vector in enumerate(Network(b, vectors).sort()):
                memory.store(vector, frame.scratch, loop.index + k * lanes)
        found = memory.merge_levels(frame.scratch, spare, b.i64(0), held, b.i64(network), frame["levels"])
        kept = b.intrinsic("smin", held, frame["count"])
        first = held - kept if self.largest else b.i64(0)
        with b.loop(0, kept, lanes) as loop:  # downwards or in place: nothing is overwritten before it is read
            memory.store(memory.load(found, first + loop.index, lanes), frame.scratch, loop.index)
        worst = memory.load(frame.scratch, b.i64(0) if self.largest else kept - 1, 1)
        return [kept, *worst]

    # ---- results ----

    def _write(self, frame: Frame, memory: Sequences, out: Value) -> None:
        """The places of the chosen records."""
        b, count = frame.b, frame["count"]
        with b.loop(0, count, self.lanes) as loop:
            places = self.records.place(b, memory.load(frame.scratch, loop.index, self.lanes))
            b.store(places, b.gep(out, loop.index * 4), _first_lanes(b, count - loop.index, self.lanes))


def _first_lanes(b: Builder, count: Value, lanes: int) -> Value:
    """The lanes before number `count`, which is not negative."""
    return b.iota(dt.int32, lanes) < b.cast(b.intrinsic("smin", count, b.i64(lanes)), dt.int32)


# ---- lowering ----


def select(x: Layout, out: Layout, axis: int, count: int, largest: bool) -> Lowering:
    """out = the places along an axis of the largest or smallest elements of x. Pointers: 0 x, 1 out."""

    def rows(outer: Sequence[Axis], read: Pointer, write: Pointer, temporaries: list[int]) -> list[Launch]:
        return [_rows(x, x.shape[axis], outer, (read, write), count, largest)]

    return by_rows(x, out, axis, rows)


def _rows(x: Layout, n: int, outer: Sequence[Axis], pointers: Sequence[Pointer], count: int, largest: bool) -> Launch:
    """Rows of n elements, one after the other in memory."""
    records = records_of(x.dtype, True, n)
    lanes = lanes_for(records)
    kernel = SelectRows(records, largest, lanes, 4, 2 if n < 4096 else 8, len(outer))
    block, network = kernel.block, lanes * kernel.vectors
    limit = -(-(3 * count + block) // block) * block
    networks = -(-limit // network)
    capacity = (networks + 2) * network  # merges read up to two steps past a run
    units = product(outer)
    numbers = {"units": units, "count": count, "limit": limit, "capacity": capacity}
    numbers["levels"] = (networks - 1).bit_length()
    words = words_of(kernel.fields(), pointers, outer, Axis(n, (0, 0)), numbers)
    work = weigh(units, n * x.dtype.size, COST)
    return Launch(kernel.source(), words, work, 2 * capacity * records.size)
