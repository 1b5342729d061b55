"""Sorting by pivots: a sequence of integers is divided in two until few are left, which a network sorts in registers.

The first walk reads the elements and divides their keys into the memory where they are sorted; that of the result,
where keys are as large. All others divide a part in place. Vectors are read from both ends, always from the one with
less room behind it, and written at both, small keys at the left end and the others at the right one. Some vectors of
each end are put aside first, so there is room for those that are under way.

A pivot is the middle of a sorted sample. Where that was of little use, the next one is the middle of the range of the
part's keys: it is halved then, so the time is bounded whatever the keys are. Where nothing is larger than the pivot,
the keys that are equal to it are put aside. Of two parts the larger one waits on a stack, so that it is never high.
What comes out depends on the keys alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.llvm.builder import Value
from weft.records import dataclass
from weft.targets.cpu.kernel import Frame
from weft.targets.cpu.lanes import Lanes, lanes_of, vector_of
from weft.targets.cpu.networks import Columns, Network, Records

_FIELDS: Final = ("first", "stop", "mode", "low", "high")
"""Of a part on the stack: where it is, how its pivot is found, and bounds of its keys."""
_ENTRY: Final = 8 * len(_FIELDS)
_STACK: Final = 80 * _ENTRY
"""Bytes: parts on the stack are halves of halves, two at most of each size."""
_SAMPLED, _HALVED, _LARGEST = range(3)
"""Modes: the pivot is the middle of a sample or of the range of keys, or the largest key, and equal ones go last."""
NETWORK: Final = 16
"""Vectors that a network sorts: half of the registers, or all of them, and then some exchanges are made in memory."""
_AHEAD: Final = NETWORK // 4
"""Vectors that are read at a time from one end. A part that is divided has more than those of four times."""
SCRATCH: Final = _STACK + (3 * _AHEAD + 1) * 64
"""Bytes of the stack and of the vectors that are put aside."""
_LOOK: Final = 1 << 18
"""Keys after which it is worth looking whether to stop."""
_SHARE: Final = 16
"""A pivot is of little use if it leaves less than such a part on one side."""

_SPREAD: Final = 16
"""Bits of a place within a part of the sample."""


def pivots_for(records: Records, n: int) -> Lanes | None:
    """How rows of n records are divided; None where that is not faster than merging what networks sort, which of many
    lanes are long."""
    if len(records.words) > 1 or records.words[0].size < 4:
        return None
    lanes = lanes_of(records.words[0])
    longest = {16: 1024, 8: 128 if lanes.size == 4 else 256, 4: 64}[lanes.count] if lanes.way != "single" else 0
    return lanes if longest and n > longest else None


@dataclass(frozen=True, slots=True)
class Elements:
    """What is sorted, as code. `read(index, count)` gives keys of elements from an index on, of which `count` are
    there, `gather(places)` those at some places; `write(index, keys, mask)` puts sorted ones into the result."""

    read: Callable[[Value, Value], Value]
    gather: Callable[[Value], Value]
    write: Callable[[Value, Value, Value], None]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of what is sorted, as it comes from the stack."""

    first: Value
    stop: Value
    mode: Value
    low: Value
    high: Value

    @property
    def count(self) -> Value:
        return self.stop - self.first


class Pivots:
    """Code that sorts keys of one word in `memory`, with scratch memory for itself."""

    def __init__(self, frame: Frame, word: Dtype, lanes: Lanes, elements: Elements, memory: Value, own: Value) -> None:
        self.frame, self.b, self.word, self.lanes, self.elements = frame, frame.b, word, lanes, elements
        self.memory, self.stack, self.aside = memory, own, frame.b.gep(own, _STACK)
        self.few = NETWORK * lanes.count

    def sort(self, count: Value) -> None:
        """Sort all elements."""
        b, zero = self.b, self.b.i64(0)
        everything = _Part(zero, count, b.i64(_SAMPLED), b.const(self.word, 0, 1), b.const(self.word, -1, 1))
        pivot = self._middle(self.elements.gather, everything)
        place = self._divide_elements(count, pivot)
        top = self._push_both(everything, pivot, place, zero)
        with b.loop(0, 1 << 62, 1, top, may_stop=True) as turn:
            top = turn.carried[0] - 1
            part = self._top(top)
            few, equal = part.count <= self.few, part.low.eq(part.high)
            with b.when(equal):
                self._fill(part.first, part.stop, part.low)
            with b.when(few & ~equal):
                self._network(part.first, part.count)
            (top,) = b.rarely(~(few | equal), [top], lambda: [self._divide(part, top)])
            turn.again = top > 0
            turn.carry(top)

    # ---- parts ----

    def _push(self, top: Value, part: _Part) -> None:
        b, at = self.b, top * _ENTRY
        for k, name in enumerate(_FIELDS):
            value = getattr(part, name)
            b.store(value if value.dtype is dt.int64 else b.cast(value, dt.int64), b.gep(self.stack, at + 8 * k))

    def _top(self, top: Value) -> _Part:
        b, at = self.b, top * _ENTRY
        words = [vector_of(b.load(b.gep(self.stack, at + 8 * k), dt.int64, 1)) for k in range(len(_FIELDS))]
        return _Part(*words[:3], *[b.cast(word, self.word) for word in words[3:]])

    def _fill(self, first: Value, stop: Value, key: Value) -> None:
        """Keys of the result that are all equal."""
        b, lanes = self.b, self.lanes.count
        with self.frame.long_loop(first, stop, lanes, _LOOK // lanes) as loop:
            self.elements.write(loop.index, b.splat(key, lanes), self._inside(stop - loop.index))

    def _inside(self, count: Value) -> Value:
        """Which lanes are among the next `count`, which may be less than none."""
        b, lanes = self.b, self.lanes.count
        return b.iota(dt.int64, lanes) < b.splat(count, lanes)

    # ---- few ----

    def _network(self, first: Value, count: Value) -> None:
        """Sort a part in registers, in as many vectors as it takes."""
        b, vectors = self.b, NETWORK
        with b.when(count > self.few // 2):
            self._columns(first, count, vectors)
        with b.when((count <= self.few // 2) & (count > self.few // 4)):
            self._columns(first, count, vectors // 2)
        with b.when(count <= self.few // 4):
            self._columns(first, count, vectors // 4)

    def _columns(self, first: Value, count: Value, vectors: int) -> None:
        b, lanes, size = self.b, self.lanes.count, self.word.size
        found, masks = [], []
        for k in range(vectors):
            inside = self._inside(count - k * lanes)
            place = b.gep(self.memory, (first + k * lanes) * size)
            keys = vector_of(b.load(place, self.word, lanes, inside))
            masks.append(inside)
            found.append([b.choose(inside, keys, -1)])
        for k, (keys,) in enumerate(Columns(b, found).sort()):
            self.elements.write(first + k * lanes, keys, masks[k])

    # ---- dividing ----

    def _divide(self, part: _Part, top: Value) -> Value:
        """Put the two parts of one on the stack; returns how many are there then."""
        b = self.b
        with b.when(part.count > _LOOK >> 4):
            self.frame.look()
        halved, largest = part.mode.eq(_HALVED), part.mode.eq(_LARGEST)
        middle = part.low + ((part.high - part.low) >> 1)
        sampled = self._middle(lambda places: b.lookup(self.memory, places, self.word), part)
        pivot = b.choose(largest, part.high - 1, b.choose(halved, middle, sampled))
        place = self._walk(part, pivot)
        with b.when(largest):
            self._fill(place, part.stop, part.high)
        return self._push_both(part, pivot, place, top)

    def _push_both(self, part: _Part, pivot: Value, place: Value, top: Value) -> Value:
        """Put the keys up to a pivot, which end at a place, and the others on the stack."""
        b, largest = self.b, part.mode.eq(_LARGEST)
        before, behind = place - part.first, part.stop - place
        useless = b.intrinsic("smin", before, behind) * _SHARE < part.count
        mode = b.choose(useless, b.i64(_HALVED), b.i64(_SAMPLED))
        only = part.mode.eq(_SAMPLED) & behind.eq(0)
        low_mode = b.choose(only, b.i64(_LARGEST), b.choose(largest, b.i64(_SAMPLED), mode))
        small = _Part(part.first, place, low_mode, part.low, pivot)
        large = _Part(place, part.stop, mode, pivot + 1, part.high)
        behind = b.choose(largest, b.i64(0), behind)
        swap = before > behind
        for one, other in ((small, large), (large, small)):
            chosen = _Part(*[b.choose(swap, getattr(one, name), getattr(other, name)) for name in _FIELDS])
            self._push(top, chosen)
            size = b.intrinsic("smax" if one is small else "smin", before, behind)
            top = top + b.cast(size > 0, dt.int64)
        return top

    def _middle(self, gather: Callable[[Value], Value], part: _Part) -> Value:
        """The middle one of some keys from all over a part: of three vectors the middle one in each lane, where a
        vector has few, and of those the middle one."""
        b, lanes = self.b, self.lanes.count
        samples = 1 if lanes == 16 else 3
        count = samples * lanes
        length = b.splat(b.cast(b.cast(part.count, dt.uint32), dt.uint64), lanes)
        found = []
        for k in range(samples):
            numbers = range(k, count, samples)
            spread = [((j + 1) * 2654435769 & 0xFFFFFFFF) >> (32 - _SPREAD) for j in numbers]  # by the golden ratio
            within = [((j << _SPREAD) + at) * 64 // count for j, at in zip(numbers, spread, strict=True)]
            places = (b.vector(dt.uint64, within) * length) >> (_SPREAD + 6)
            found.append(gather(b.cast(places, dt.int64) + b.splat(part.first, lanes)))
        keys = found[0]
        if samples == 3:
            small, large = (b.intrinsic(way, *found[:2]) for way in ("umin", "umax"))
            keys = b.intrinsic("umax", small, b.intrinsic("umin", large, found[2]))
        return b.extract(Network(b, [[keys]]).sort()[0][0], lanes // 2 - 1)

    def _divide_elements(self, count: Value, pivot: Value) -> Value:
        """Divide all elements into the memory; returns where those that are larger than the pivot begin."""
        return self._divide_from(self.elements.read, count, pivot, self.b.i64(0), count)[0]

    def _divide_from(
        self, read: Callable[[Value, Value], Value], count: Value, pivot: Value, left: Value, right: Value
    ) -> tuple[Value, Value]:
        """Divide keys that are elsewhere into the room between two places, which is as large as they are."""
        b, lanes = self.b, self.lanes.count
        limit = b.splat(pivot, lanes)
        whole = b.intrinsic("smax", count - lanes, b.i64(0)) & -lanes
        with self.frame.long_loop(0, whole, lanes, _LOOK // lanes, left, right) as loop:
            keys = read(loop.index, b.i64(lanes))
            loop.carry(*self.lanes.divide(b, keys, keys <= limit, self.memory, *loop.carried))
        with b.loop(whole, count, lanes, *loop.carried) as rest:
            keys = read(rest.index, count - rest.index)
            inside = self._inside(count - rest.index)
            rest.carry(*self.lanes.divide_some(b, keys, keys <= limit, inside, self.memory, *rest.carried))
        return rest.carried[0], rest.carried[1]

    def _walk(self, part: _Part, pivot: Value) -> Value:
        """Divide a part in place: keys up to the pivot, then the others; returns where those begin.

        There is room for three turns of vectors: one of each end, put aside, and the one that was read last. So there
        is room for a turn on each side after the next one has been read from the side that had less.
        """
        b, lanes = self.b, self.lanes.count
        turn = _AHEAD * lanes
        limit = b.splat(pivot, lanes)
        rest = part.count & (turn - 1)
        self._put_aside(part.first, b.i64(0), b.i64(turn))
        self._put_aside(part.stop - (rest + turn), b.i64(turn), rest + turn)
        first, stop = part.first + turn, part.stop - (rest + turn)
        flying = self._turn_at(first)
        state = part.first, part.stop, first + turn, stop
        with self.frame.long_loop(first + turn, stop, turn, _LOOK // turn, *state, *flying) as loop:
            left, right, low, high, *flying = loop.carried
            from_left = low - left <= right - high
            following = self._turn_at(b.choose(from_left, low, high - turn))
            low, high = b.choose(from_left, low + turn, low), b.choose(from_left, high, high - turn)
            left, right = self._write(flying, limit, left, right)
            loop.carry(left, right, low, high, *following)
        left, right, _, _, *flying = loop.carried
        left, right = self._write(flying, limit, left, right)

        def aside(index: Value, count: Value) -> Value:
            return vector_of(b.load(b.gep(self.aside, index * self.word.size), self.word, lanes))

        return self._divide_from(aside, rest + 2 * turn, pivot, left, right)[0]

    def _turn_at(self, index: Value) -> list[Value]:
        b, lanes, size = self.b, self.lanes.count, self.word.size
        place = b.gep(self.memory, index * size)
        return [vector_of(b.load(b.gep(place, k * lanes * size), self.word, lanes)) for k in range(_AHEAD)]

    def _write(self, turn: list[Value], limit: Value, left: Value, right: Value) -> tuple[Value, Value]:
        for keys in turn:
            left, right = self.lanes.divide(self.b, keys, keys <= limit, self.memory, left, right)
        return left, right

    def _put_aside(self, first: Value, at: Value, count: Value) -> None:
        """Copy keys out of the way: a vector at least, the last one over the end of the one before it."""
        b, lanes, size = self.b, self.lanes.count, self.word.size
        with b.loop(0, count, lanes) as loop:
            index = b.intrinsic("smin", loop.index, count - lanes)
            keys = vector_of(b.load(b.gep(self.memory, (first + index) * size), self.word, lanes))
            b.store(keys, b.gep(self.aside, (at + index) * size))
