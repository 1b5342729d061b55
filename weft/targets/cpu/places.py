"""Kernels that find the places which sort rows of 64-bit elements.

Key and place do not fit into one word, but what a row needs of them mostly does: the range of its keys is known after
a walk over it, and records of 64 bits hold a key's distance from the smallest one, less some low bits, and its place.
These are sorted like integers. Where bits were left out, records that agree in the others are a *group*: it is sorted
by those bits and the places, which fit into one word, unless it is in order already. So a row is sorted twice at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.words import fields_of
from weft.dtypes import Dtype
from weft.llvm.builder import Value
from weft.records import dataclass
from weft.runtime.threads import get_threads
from weft.targets.axes import Axis, product, words_of
from weft.targets.cpu import short_sorts
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.lanes import Lanes, vector_of
from weft.targets.cpu.moves import bits_of, weigh
from weft.targets.cpu.networks import Records, lanes_for, sort_vectors
from weft.targets.cpu.pivots import NETWORK, SCRATCH, Elements, Pivots, pivots_for
from weft.targets.cpu.sorting import COST, Sequences, by_rows

WORD: Final = dt.uint64
_RECORDS: Final = Records(WORD, indexed=False)
GAIN: Final = 4
"""How much faster this is than merging records of two words."""
_LOOK: Final = 1 << 14
"""Vectors between two looks whether to stop."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """How keys of a row become records: the smallest of them, how many low bits are left out, and those of a place."""

    low: Value
    dropped: Value
    bits: Value

    def record(self, keys: Value, places: Value) -> Value:
        return (((keys - self.low) >> self.dropped) << self.bits) | places

    def rest(self, key: Value, place: Value) -> Value:
        """The record of what was left out."""
        return (((key - self.low) & ((self._one(key) << self.dropped) - 1)) << self.bits) | place

    def place(self, records: Value) -> Value:
        return records & ((self._one(records) << self.bits) - 1)

    def _one(self, like: Value) -> Value:
        return like.b.const(WORD, 1, 1)


@dataclass(frozen=True, slots=True)
class PlaceRows(NativeKernel):
    """Every unit is a row. Operands: x, the places (uint32) that sort it. `bits` are those of a place. The scratch has
    memories of `capacity` records: before and after sorting, and two for merges if rows are not divided."""

    title = "argsort"
    dtype: Dtype
    lanes: int
    vectors: int
    pivots: Lanes | None
    outer: int

    def __str__(self) -> str:
        way = "merged" if self.pivots is None else f"pivots {self.pivots}"
        return f"argsort {self.dtype.name} lanes={self.lanes} vectors={self.vectors} outer={self.outer} {way}"

    def as_written(self) -> bool:
        return True

    def fields(self) -> list[str]:
        return fields_of(self.outer, 2, "bits", "capacity", "levels")

    @property
    def memories(self) -> int:
        return 4 if self.pivots is None else 2

    def emit(self, frame: Frame) -> None:
        b = frame.b
        with b.loop(frame.begin, frame.end, 1) as units:
            at = frame.indices(units.index)
            x, out = frame.at(0, at), frame.at(1, at)
            cut = self._cut(frame, x)
            self._make(frame, x, cut)
            first, count = b.i64(0), frame["n"]
            with b.loop(0, 1 << 62, 1, first, count, may_stop=True) as turn:
                first, count = turn.carried
                with b.when(count > 0):
                    self._sort(frame, first, count)
                start = b.choose(turn.index.eq(0), 0, first + count)
                group = self._next_group(frame, x, cut, b.choose(cut.dropped.eq(0), frame["n"], start))
                turn.again = group[0] < frame["n"]
                turn.carry(*group)
            self._write(frame, cut, out)

    # ---- records ----

    def _memory(self, frame: Frame, number: int, index: Value | int = 0) -> Value:
        """The address of a record in one of the memories."""
        b = frame.b
        return b.gep(b.gep(frame.scratch, frame["capacity"] * (8 * number)), index * 8)

    def _inside(self, frame: Frame, left: Value) -> Value:
        """The lanes before number `left`, which may be negative."""
        b = frame.b
        return b.iota(dt.int64, self.lanes) < b.splat(left, self.lanes)

    def _keys(self, frame: Frame, x: Value, index: Value, inside: Value | None) -> Value:
        b, kind = frame.b, self.dtype if self.dtype.is_complex else bits_of(self.dtype)
        elements = b.load(b.gep(x, index * 8), kind, 1 if inside is None else self.lanes, inside)
        (keys,) = Records(self.dtype, indexed=False).keys(b, elements, canonical=True)
        return keys

    def _cut(self, frame: Frame, x: Value) -> _Cut:
        """By the range of a row's keys."""
        b, lanes = frame.b, self.lanes
        extremes = b.const(WORD, -1, lanes), b.const(WORD, 0, lanes)
        with frame.long_loop(0, frame["n"], lanes, _LOOK, *extremes) as loop:
            inside = self._inside(frame, frame["n"] - loop.index)
            keys = self._keys(frame, x, loop.index, inside)
            small, large = b.choose(inside, keys, -1), b.choose(inside, keys, 0)
            loop.carry(b.intrinsic("umin", loop.carried[0], small), b.intrinsic("umax", loop.carried[1], large))
        low, high = (
            b.call(f"llvm.vector.reduce.{way}.v{lanes}i64", WORD, 1, found) if lanes > 1 else found
            for way, found in zip(("umin", "umax"), loop.carried, strict=True)
        )
        free = b.call("llvm.ctlz.i64", dt.int64, 1, b.cast(high - low, dt.int64), "i1 false")
        dropped = b.intrinsic("smax", frame["bits"] - free, b.i64(0))
        return _Cut(low, b.cast(dropped, WORD), b.cast(frame["bits"], WORD))

    def _make(self, frame: Frame, x: Value, cut: _Cut) -> None:
        """The records of a row."""
        b, lanes = frame.b, self.lanes
        with frame.long_loop(0, frame["n"], lanes, _LOOK) as loop:
            keys = self._keys(frame, x, loop.index, self._inside(frame, frame["n"] - loop.index))
            places = b.splat(b.cast(loop.index, WORD), lanes) + b.iota(WORD, lanes)
            b.store(cut.record(keys, places), self._memory(frame, 0, loop.index))

    def _write(self, frame: Frame, cut: _Cut, out: Value) -> None:
        b, lanes = frame.b, self.lanes
        with frame.long_loop(0, frame["n"], lanes, _LOOK) as loop:
            records = vector_of(b.load(self._memory(frame, 1, loop.index), WORD, lanes))
            inside = self._inside(frame, frame["n"] - loop.index)
            b.store(b.cast(cut.place(records), dt.uint32), b.gep(out, loop.index * 4), inside)

    # ---- sorting ----

    def _sort(self, frame: Frame, first: Value, count: Value) -> None:
        """Sort some records from the first memory into the second."""
        if self.pivots is None:
            self._merge(frame, first, count)
            return
        b, lanes = frame.b, self.lanes
        before, after = self._memory(frame, 0, first), self._memory(frame, 1, first)

        def read(index: Value, left: Value) -> Value:
            return vector_of(b.load(b.gep(before, index * 8), WORD, lanes))

        def gather(places: Value) -> Value:
            return b.lookup(before, places, WORD)

        def write(index: Value, records: Value, inside: Value) -> None:
            b.store(records, b.gep(after, index * 8), inside)

        stack = self._memory(frame, self.memories)
        Pivots(frame, WORD, self.pivots, Elements(read, gather, write), after, stack).sort(count)

    def _merge(self, frame: Frame, first: Value, count: Value) -> None:
        """By networks, and merges of what they give."""
        b, lanes, network = frame.b, self.lanes, self.lanes * self.vectors
        memory = Sequences(b, _RECORDS, lanes, self.vectors, frame["capacity"])
        here, there = self._memory(frame, 2), self._memory(frame, 3)
        with b.loop(0, count, network) as loop:
            vectors = []
            for k in range(self.vectors):
                at = loop.index + k * lanes
                inside = self._inside(frame, count - at)
                vectors.append([
                    b.choose(inside, word, -1) for word in memory.load(self._memory(frame, 0, first), at, lanes)
                ])  # fmt: skip
            for k, vector in enumerate(sort_vectors(b, vectors)):
                memory.store(vector, here, loop.index + k * lanes)
        found = memory.merge_levels(here, there, b.i64(0), count, b.i64(network), frame["levels"], frame.look)
        with frame.long_loop(0, count, lanes, _LOOK) as copied:
            inside = self._inside(frame, count - copied.index)
            (records,) = memory.load(found, copied.index, lanes)
            b.store(records, self._memory(frame, 1, first + copied.index), inside)

    # ---- groups ----

    def _next_group(self, frame: Frame, x: Value, cut: _Cut, start: Value) -> tuple[Value, Value]:
        """Where the first group from `start` on begins, at n if there is none, and its length; 0 if it is in order.
        Records of what was left out of its keys are in the first memory then."""
        b, n = frame.b, frame["n"]
        first = self._first_pair(frame, cut, start)
        wanted = self._record(frame, first) >> cut.bits
        model = first, b.const(WORD, 0, 1), b.const(dt.bool_, True, 1)
        limit = b.choose(first < n, n, first)
        with b.loop(first, limit, 1, *model, may_stop=True) as loop:
            _, before, in_order = loop.carried
            record = self._record(frame, loop.index)
            belongs = (record >> cut.bits).eq(wanted)
            place = cut.place(record)
            key = self._keys(frame, b.gep(x, b.cast(place, dt.int64) * 8), b.i64(0), None)
            rest = cut.rest(key, place)
            with b.when(belongs):
                b.store(rest, self._memory(frame, 0, loop.index))
            stop = b.choose(belongs, loop.index + 1, loop.carried[0])
            loop.again = belongs
            loop.carry(stop, b.choose(belongs, rest, before), in_order & (~belongs | (rest >= before)))
        stop, _, in_order = loop.carried
        # A group in order is left as it is: the next search begins with its last record, which is no group's first one.
        return b.choose(in_order & (first < n), stop - 1, first), b.choose(in_order, b.i64(0), stop - first)

    def _record(self, frame: Frame, index: Value) -> Value:
        return vector_of(frame.b.load(self._memory(frame, 1, index), WORD, 1))

    def _first_pair(self, frame: Frame, cut: _Cut, start: Value) -> Value:
        """The place from `start` on of the first two records side by side that are of one group; n if there is none."""
        b, lanes, n = frame.b, self.lanes, frame["n"]
        with b.loop(start, n, lanes, b.i64(0), may_stop=True) as loop:
            one, other = (
                vector_of(b.load(self._memory(frame, 1, loop.index + k), WORD, lanes)) >> cut.bits for k in range(2)
            )
            found = b.bits_of_mask(one.eq(other) & self._inside(frame, n - 1 - loop.index))
            loop.again = found.eq(0)
            loop.carry(found)
        (found,) = loop.carried
        lane = b.call("llvm.cttz.i64", dt.int64, 1, found, "i1 false")
        return b.choose(found.eq(0), n, loop.index - lanes + lane)


def fits(x: Layout, axis: int) -> bool:
    """Whether rows are sorted in here: not if they are so few that several threads do better together."""
    return x.dtype.size == 8 and math.prod(x.shape) * GAIN >= get_threads() * x.shape[axis]


def lower(x: Layout, out: Layout, axis: int) -> Lowering:
    """out = the places that sort x, of 64-bit elements, along an axis. Pointers: 0 x, 1 out."""
    n = x.shape[axis]

    def rows(outer: Sequence[Axis], read: Pointer, write: Pointer, temporaries: list[int]) -> list[Launch]:
        short = short_sorts.launch(x.dtype, True, n, outer, read, write)
        if short is not None:
            return [short]
        lanes = lanes_for(_RECORDS)
        vectors = next((v for v in (1, 2, 4, 8) if n <= v * lanes), NETWORK)
        network = lanes * vectors
        kernel = PlaceRows(x.dtype, lanes, vectors, pivots_for(_RECORDS, n), len(outer))
        capacity = (-(-n // network) + 2) * network
        units = product(outer)
        numbers = {"units": units, "bits": (n - 1).bit_length(), "capacity": capacity}
        numbers["levels"] = max(0, (-(-n // network) - 1).bit_length())
        words = words_of(kernel.fields(), [read, write], outer, Axis(n, (0, 0)), numbers)
        scratch = 8 * capacity * kernel.memories + (SCRATCH if kernel.pivots else 0)
        return [Launch(kernel.source(), words, weigh(units, 8 * n, COST), scratch)]

    return by_rows(x, out, axis, rows)
