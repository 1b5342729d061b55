"""Sorting by pivots: sequences of integers in memory are divided in two until few are left, which are merged.

A part is divided from one memory into another, at the middle one of a sorted sample of it. Where that was of little
use, the next pivot is the middle of the range of the part's keys: it is halved then, so the time is bounded whatever
the keys are. Where nothing is larger than the pivot, the keys that are equal to it are put aside. Of two parts the
larger one waits on a stack, so that it is never high. What comes out depends on the keys alone.
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
from weft.targets.cpu.networks import Network, Records

_FIELDS: Final = ("first", "stop", "side", "mode", "low", "high")
"""Of a part on the stack: where it is, in which memory, how its pivot is found, and bounds of its keys."""
_ENTRY: Final = 8 * len(_FIELDS)
STACK: Final = 80 * _ENTRY
"""Bytes: parts on the stack are halves of halves, two at most of each size."""
_SAMPLED, _HALVED, _LARGEST = range(3)
"""Modes: the pivot is the middle of a sample or of the range of keys, or the largest key, and equal ones go last."""
FEW: Final = 512
"""Keys that are merged rather than divided."""
_LOOK: Final = 1 << 14
"""Keys of a part before which it is worth looking whether to stop."""
_SHARE: Final = 16
"""A pivot is of little use if it leaves less than such a part on one side."""

_SPREAD: Final = 16
"""Bits of a place within a part of the sample."""
_OFFSETS: Final = [((j + 1) * 2654435769 & 0xFFFFFFFF) >> (32 - _SPREAD) for j in range(16)]  # by the golden ratio


def pivots_for(records: Records) -> Lanes | None:
    """How records of this kind are divided; None where that is not faster than merging."""
    if len(records.words) > 1 or records.words[0].size < 4:
        return None
    lanes = lanes_of(records.words[0])
    return None if lanes.way == "single" else lanes


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of what is sorted, as it comes from the stack."""

    first: Value
    stop: Value
    side: Value
    mode: Value
    low: Value
    high: Value

    @property
    def count(self) -> Value:
        return self.stop - self.first


class Pivots:
    """Code that sorts keys of one word in memory. `finish(keys, count, result)` sorts few of them."""

    def __init__(self, frame: Frame, word: Dtype, lanes: Lanes, finish: Callable[[Value, Value, Value], None]) -> None:
        self.frame, self.b, self.word, self.lanes, self.finish = frame, frame.b, word, lanes, finish

    def sort(self, memories: tuple[Value, Value], stack: Value, count: Value) -> None:
        """Sort the keys in the first of two memories, in place; there is room for a stack elsewhere."""
        b, zero = self.b, self.b.i64(0)
        self.memories, self.stack = memories, stack
        self._push(zero, _Part(zero, count, zero, b.i64(_SAMPLED), b.const(self.word, 0, 1), b.const(self.word, -1, 1)))
        with b.loop(0, 1 << 62, 1, b.i64(1), may_stop=True) as turn:
            top = turn.carried[0] - 1
            part = self._top(top)
            few, equal = part.count <= FEW, part.low.eq(part.high)
            with b.when(equal):
                self._fill(part.first, part.stop, part.low)
            with b.when(few & ~equal):
                at = part.first * self.word.size
                self.finish(b.gep(self._memory(part.side), at), part.count, b.gep(memories[0], at))
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
        return _Part(*words[:4], *[b.cast(word, self.word) for word in words[4:]])

    def _memory(self, side: Value) -> Value:
        first, second = self.memories
        return self.b.op(f"select i1 {side.ne(0).text}, ptr {second.text}, ptr {first.text}", first.dtype, 1)

    def _fill(self, first: Value, stop: Value, key: Value) -> None:
        """Keys of the result that are all equal."""
        b, lanes = self.b, self.lanes.count
        with self.frame.long_loop(first, stop, lanes, _LOOK) as loop:
            inside = b.iota(dt.int64, lanes) < b.splat(stop - loop.index, lanes)
            b.store(b.splat(key, lanes), b.gep(self.memories[0], loop.index * self.word.size), inside)

    # ---- dividing ----

    def _divide(self, part: _Part, top: Value) -> Value:
        """Put the two parts of one on the stack; returns how many are there then."""
        b = self.b
        with b.when(part.count > _LOOK):
            self.frame.look()
        halved, largest = part.mode.eq(_HALVED), part.mode.eq(_LARGEST)
        middle = part.low + ((part.high - part.low) >> 1)
        pivot = b.choose(largest, part.high, b.choose(halved, middle, self._sampled(part)))
        place = self._walk(part, b.choose(largest, pivot - 1, pivot))
        with b.when(largest):
            self._fill(place, part.stop, pivot)
        before, behind = place - part.first, part.stop - place
        useless = b.intrinsic("smin", before, behind) * _SHARE < part.count
        mode, side = b.choose(useless, b.i64(_HALVED), b.i64(_SAMPLED)), b.i64(1) - part.side
        only = part.mode.eq(_SAMPLED) & behind.eq(0)
        low_mode = b.choose(only, b.i64(_LARGEST), b.choose(largest, b.i64(_SAMPLED), mode))
        small = _Part(part.first, place, side, low_mode, part.low, b.choose(largest, pivot - 1, pivot))
        large = _Part(place, part.stop, side, mode, pivot + 1, part.high)
        behind = b.choose(largest, b.i64(0), behind)
        swap = before > behind
        for one, other in ((small, large), (large, small)):
            chosen = _Part(*[b.choose(swap, getattr(one, name), getattr(other, name)) for name in _FIELDS])
            self._push(top, chosen)
            size = b.intrinsic("smax" if one is small else "smin", before, behind)
            top = top + b.cast(size > 0, dt.int64)
        return top

    def _sampled(self, part: _Part) -> Value:
        """The middle one of a vector of keys from all over a part."""
        b, lanes = self.b, self.lanes.count
        shift = _SPREAD + lanes.bit_length() - 1
        places = b.vector(dt.uint64, [(j << _SPREAD) + _OFFSETS[j] for j in range(lanes)])
        length = b.splat(b.cast(b.cast(part.count, dt.uint32), dt.uint64), lanes)
        index = b.cast((places * length) >> shift, dt.int64) + b.splat(part.first, lanes)
        keys = b.lookup(self._memory(part.side), index, self.word)
        return b.extract(Network(b, [[keys]]).sort()[0][0], lanes // 2 - 1)

    def _walk(self, part: _Part, pivot: Value) -> Value:
        """Divide a part, into the other memory: keys up to the pivot, then the others; returns where those begin."""
        b, lanes, size = self.b, self.lanes.count, self.word.size
        source, target = self._memory(part.side), self._memory(self.b.i64(1) - part.side)
        limit = b.splat(pivot, lanes)

        def keys_at(index: Value) -> tuple[Value, Value]:
            keys = vector_of(b.load(b.gep(source, index * size), self.word, lanes))
            return keys, keys <= limit

        whole = part.first + ((part.count - lanes) & -lanes)
        with self.frame.long_loop(part.first, whole, lanes, _LOOK, part.first, part.stop) as loop:
            loop.carry(*self.lanes.divide(b, *keys_at(loop.index), target, *loop.carried))
        with b.loop(whole, part.stop, lanes, *loop.carried) as rest:
            inside = b.iota(dt.int64, lanes) < b.splat(part.stop - rest.index, lanes)
            keys, small = keys_at(rest.index)
            rest.carry(*self.lanes.divide_some(b, keys, small, inside, target, *rest.carried))
        return rest.carried[0]
