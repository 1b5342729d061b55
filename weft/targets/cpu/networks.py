"""Elements as records, tuples of unsigned integers in the order of the elements, and networks that sort some vectors of
them in registers. The kernels that sort, search and select are made of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.config import config
from weft.dtypes import Dtype
from weft.llvm.builder import AnyValue, Builder, Value
from weft.records import dataclass
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.moves import bits_of

_UNSIGNED: Final = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}
_INFINITY: Final = {dt.float16: 0x7C00, dt.bfloat16: 0x7F80, dt.float32: 0x7F800000, dt.float64: 0x7FF0000000000000}
"""Bits of infinity: what is larger, sign aside, is NaN."""

Record = list[Value]
"""One vector (or scalar) per word of a record."""


# ---- records ----


def order_key(b: Builder, x: Value, dtype: Dtype, canonical: bool) -> Value:
    """An unsigned integer for the bits `x` of a real number, in the order of the numbers; all bits set for every NaN.

    `canonical` gives -0.0 the key of 0.0, to which it is equal; otherwise it comes just before.
    """
    if dtype.is_bool:
        return b.cast(x.ne(0), x.dtype)
    if not dtype.is_float:
        return x ^ sign_of(dtype) if dtype.kind == "i" else x
    sign = sign_of(dtype)
    if canonical:
        x = b.choose(x.eq(sign), 0, x)
    key = b.choose(x >= sign, ~x, x ^ sign)
    return b.choose(is_nan(x, dtype), -1, key)


def from_key(b: Builder, key: Value, dtype: Dtype) -> Value:
    """The inverse of `order_key`, but that there is only one NaN."""
    sign = sign_of(dtype)
    if dtype.is_float:
        return b.choose(key >= sign, key ^ sign, ~key)
    return key ^ sign if dtype.kind == "i" else key


def sign_of(dtype: Dtype) -> int:
    return 1 << (dtype.bits - 1)


def is_nan(x: Value, dtype: Dtype) -> Value:
    return (x & (sign_of(dtype) - 1)) > _INFINITY[dtype]


def less(x: Record, y: Record) -> Value:
    """Whether x comes before y: by the first word in which they differ."""
    result = x[-1] < y[-1]
    for first, second in zip(reversed(x[:-1]), reversed(y[:-1]), strict=True):
        result = (first < second) | (first.eq(second) & result)
    return result


@dataclass(frozen=True, slots=True)
class Records:
    """How elements of a dtype are made into records: the words of the key, then, if `indexed`, that of the place.

    `packed` is the number of low bits of the only word that hold the place instead.
    """

    dtype: Dtype
    indexed: bool
    packed: int = 0

    def __str__(self) -> str:
        return f"{self.dtype.name}{' indexed' if self.indexed else ''}{f' packed {self.packed}' if self.packed else ''}"

    @property
    def words(self) -> tuple[Dtype, ...]:
        if self.packed:
            return (_UNSIGNED[(self.packed + self.dtype.bits) // 8],)
        keys = (dt.uint64,) * (self.dtype.size // 8) if self.dtype.is_complex else (_UNSIGNED[self.dtype.size],)
        return (*keys, dt.uint32) if self.indexed else keys

    @property
    def size(self) -> int:
        return sum(word.size for word in self.words)

    def load(self, b: Builder, address: Value, first: Value, count: Value, lanes: int) -> Record:
        """The records of `lanes` elements from an address on, the first of which is number `first`; those past `count`
        come last of all."""
        inside = b.iota(dt.int32, lanes) < b.cast(b.intrinsic("smin", count, b.i64(lanes)), dt.int32)
        kind = self.dtype if self.dtype.is_complex else bits_of(self.dtype)
        word = self.words[-1]
        places = b.iota(word, lanes) + b.splat(b.cast(first, word), lanes)
        words = self.of(b, b.load(address, kind, lanes, inside), places)
        return [b.choose(inside, word, -1) for word in words]

    def of(self, b: Builder, x: AnyValue, places: Value) -> Record:
        """The records of elements at some places."""
        words = self.keys(b, x, canonical=self.indexed)
        if self.packed:
            (word,) = self.words
            return [(b.cast(words[0], word) << self.packed) | b.cast(places, word)]
        return [*words, b.cast(places, dt.uint32)] if self.indexed else words

    def keys(self, b: Builder, x: AnyValue, canonical: bool) -> Record:
        """The words of the key. Complex numbers go by their real parts, then by their imaginary parts; any NaN makes
        the whole one."""
        if isinstance(x, Value):
            return [order_key(b, x, self.dtype, canonical)]
        part, bits = dt.real_of(self.dtype), _UNSIGNED[self.dtype.size // 2]
        parts = [b.bitcast(y, bits) for y in (x.re, x.im)]
        nan = is_nan(parts[0], part) | is_nan(parts[1], part)
        words = [order_key(b, y, part, canonical) for y in parts]
        if self.dtype is dt.complex64:
            high, low = (b.cast(word, dt.uint64) for word in words)
            words = [(high << 32) | low]
        return [b.choose(nan, -1, word) for word in words]

    def place(self, b: Builder, words: Record) -> Value:
        """The places of elements (uint32), from the last word of their records."""
        word = words[-1]
        return b.cast(word & ((1 << self.packed) - 1) if self.packed else word, dt.uint32)


def records_of(dtype: Dtype, indexed: bool, n: int) -> Records:
    """The smallest records for rows of n elements."""
    if not indexed or dtype.size > 4 or dtype.is_complex:
        return Records(dtype, indexed)
    rest = 32 - dtype.bits
    return Records(dtype, True, rest if n <= 1 << rest else 64 - dtype.bits)


def lanes_for(records: Records) -> int:
    """Lanes of a vector register of this processor, 16 at most."""
    return min(16, machine(config.cpu).vector // max(word.size for word in records.words))


# ---- networks ----


class Network:
    """A short sequence of records in a few vectors, sorted by exchanges. Where a record stands is known here, not in
    the vectors: a lane stays wherever the next exchange needs it, and all go to their places at the end.

    Vector k holds places k * lanes and on at first. Two vectors (a pair of consecutive ones) are rearranged together.
    """

    def __init__(self, b: Builder, vectors: Sequence[Record]) -> None:
        self.b, self.vectors = b, _signed(b, vectors)
        self.lanes = vectors[0][0].lanes
        self.block = max(1, 16 // max(word.dtype.size for word in vectors[0]))
        """Lanes in 16 bytes: what stays within them moves at once on all processors."""
        self.places = [list(range(k * self.lanes, (k + 1) * self.lanes)) for k in range(len(vectors))]

    def sort(self) -> list[Record]:
        size = 2
        while size <= len(self.vectors) * self.lanes:
            self._merge(size)
            size *= 2
        return self._restored()

    def merge(self) -> list[Record]:
        """The same if each half is sorted already."""
        self._merge(len(self.vectors) * self.lanes)
        return self._restored()

    def _merge(self, size: int) -> None:
        """Two sorted runs become one: the first exchange is with the mirror image, those after it at half the distance
        each."""
        self.exchange(size - 1)
        step = size // 4
        while step:
            self.exchange(step)
            step //= 2

    def exchange(self, mask: int) -> None:
        """The smaller of the records at places p and p ^ mask goes to the smaller place."""
        rest = set(range(len(self.vectors)))
        while rest:
            one = min(rest)
            other = self._partner(one, mask)
            rest -= {one, other}
            if one == other:
                self._within(one, mask)
            else:
                self._between(one, other, mask)

    def _partner(self, one: int, mask: int) -> int:
        """The vector that holds the other places, or else the one beside it."""
        wanted = {place ^ mask for place in self.places[one]}
        pair = self.places[one][0] // (2 * self.lanes)
        for other, places in enumerate(self.places):
            if other != one and set(places) == wanted:
                return other
        beside = [k for k, places in enumerate(self.places) if k != one and places[0] // (2 * self.lanes) == pair]
        return beside[0] if beside else one

    def _between(self, one: int, other: int, mask: int) -> None:
        small = self._small_places(one, other, mask)
        large = [place ^ mask for place in small]
        x, y = self._gathered(one, other, small), self._gathered(one, other, large)
        self.vectors[one], self.vectors[other] = _ordered(self.b, x, y)
        self.places[one], self.places[other] = small, large

    def _small_places(self, one: int, other: int, mask: int) -> list[int]:
        """The smaller place of each exchange, in an order that takes few instructions to arrange."""
        top = 1 << (mask.bit_length() - 1)
        x, y = self.places[one], self.places[other]
        count = sum(not place & top for place in x)
        if count in (0, self.lanes):
            return list(x if count else y)
        found: list[int] = []
        for first in range(0, self.lanes, self.block):
            part = slice(first, first + self.block)
            found += [place for place in (*x[part], *y[part]) if not place & top]
        whole = all(
            sum(not p & top for p in v[k : k + self.block]) == self.block // 2
            for v in (x, y)
            for k in range(0, self.lanes, self.block)
        )
        return found if whole else [place for place in (*x, *y) if not place & top]

    def _within(self, one: int, mask: int) -> None:
        """The only vector: each lane meets a copy of its partner and keeps what belongs there."""
        b, places = self.b, self.places[one]
        top = 1 << (mask.bit_length() - 1)
        x = self.vectors[one]
        y = self._gathered(one, one, [place ^ mask for place in places])
        small, large = _ordered(self.b, x, y)
        order = [lane + (self.lanes if place & top else 0) for lane, place in enumerate(places)]
        self.vectors[one] = [b.shuffle(s, t, order) for s, t in zip(small, large, strict=True)]

    def _gathered(self, one: int, other: int, places: Sequence[int]) -> Record:
        """The records of `places` in this order, from two vectors."""
        at = {place: lane for lane, place in enumerate((*self.places[one], *self.places[other]))}
        order = [at[place] for place in places]
        if order == list(range(self.lanes)):
            return self.vectors[one]
        return [self.b.shuffle(x, y, order) for x, y in zip(self.vectors[one], self.vectors[other], strict=True)]

    def _restored(self) -> list[Record]:
        result = []
        for k in range(len(self.vectors)):
            wanted = list(range(k * self.lanes, (k + 1) * self.lanes))
            holders = [v for v, places in enumerate(self.places) if set(places) & set(wanted)]
            result.append(self._gathered(holders[0], holders[-1], wanted))
        return _unsigned(self.b, result)


def _ordered(b: Builder, x: Record, y: Record) -> tuple[Record, Record]:
    """The smaller and the larger record of every lane."""
    if len(x) > 1:
        swap = less(y, x)
        both = list(zip(x, y, strict=True))
        return [b.choose(swap, v, u) for u, v in both], [b.choose(swap, u, v) for u, v in both]
    (u,), (v,) = x, y
    if u.dtype is dt.int64:
        other = (u ^ v) & b.choose(u > v, b.const(u.dtype, -1, u.lanes), b.const(u.dtype, 0, u.lanes))
        return [u ^ other], [v ^ other]
    small = b.intrinsic("umin", u, v)
    if u.dtype.size == 8:  # one port has the minimum of 64 bits, two have `vpternlogq`
        return [small], [u ^ v ^ small]
    return [small], [b.intrinsic("umax", u, v)]


def _signed(b: Builder, vectors: Sequence[Record]) -> list[Record]:
    """Records as they are compared: AVX2 knows 64-bit integers with a sign alone, and neither minimum nor maximum."""
    if len(vectors[0]) > 1 or vectors[0][0].dtype.size < 8 or machine(config.cpu).vector == 64:
        return list(vectors)
    return [[b.cast(word ^ (1 << 63), dt.int64)] for (word,) in vectors]


def _unsigned(b: Builder, vectors: Sequence[Record]) -> list[Record]:
    """The inverse of `_signed`."""
    if vectors[0][0].dtype is not dt.int64:
        return list(vectors)
    return [[b.cast(word, dt.uint64) ^ (1 << 63)] for (word,) in vectors]


class Columns:
    """Records in a power of two of vectors, sorted column by column first, without a shuffle, and then by bitonic
    merges of the columns.

    Place p of the sequence is column by column at first: its low bits number the vectors, its high ones the lanes. An
    exchange over bit t of the places is one between vectors where t is a bit that numbers vectors. Where it is not, it
    changes places with the one of those bits that is needed last, by a shuffle of each vector. Runs that a merge needs
    in falling order have their bits inverted, so that all lanes go the same way.
    """

    def __init__(self, b: Builder, vectors: Sequence[Record]) -> None:
        self.b, self.vectors, self.lanes = b, _signed(b, vectors), vectors[0][0].lanes
        self.block = max(1, 16 // max(word.dtype.size for word in vectors[0]))
        """Lanes in 16 bytes: what stays within them moves at once on all processors."""
        self.rows = len(vectors).bit_length() - 1
        self.total = self.rows + self.lanes.bit_length() - 1
        self.places = [[lane * len(vectors) + k for lane in range(self.lanes)] for k in range(len(vectors))]
        self.between = set(range(self.rows))
        """The bits of places that number vectors."""

    def sort(self) -> list[Record]:
        self._invert(1 << self.rows)
        for one, other in _odd_even_merges(len(self.vectors)):
            self._order(one, other)
        levels = [list(reversed(range(size))) for size in range(self.rows + 1, self.total + 1)]
        top = list(reversed(range(self.total - self.rows, self.total)))
        uses = [bit for level in levels for bit in level] + top
        done = 0
        for size, level in enumerate(levels, self.rows + 1):
            self._invert(1 << (size - 1) | 1 << size)
            for bit in level:
                self._need(bit, uses[done:])
                for one, other in self._pairs(bit):
                    self._order(one, other)
                done += 1
        for bit in top:
            self._need(bit, [*top, *uses])
        return self._restored()

    def _order(self, one: int, other: int) -> None:
        self.vectors[one], self.vectors[other] = _ordered(self.b, self.vectors[one], self.vectors[other])

    def _invert(self, bits: int) -> None:
        """Invert the records at whose places an odd number of some bits are set. There are no places past the end."""
        chosen = [(place & bits & ((1 << self.total) - 1)).bit_count() & 1 for place in self.places[0]]
        if any(chosen):
            for k, record in enumerate(self.vectors):
                self.vectors[k] = [w ^ self.b.vector(w.dtype, [-on for on in chosen]) for w in record]

    def _pairs(self, bit: int) -> list[tuple[int, int]]:
        """Vectors that differ in one of the bits that number them."""
        mask = sum(1 << b for b in self.between)
        at = {places[0] & mask: k for k, places in enumerate(self.places)}
        return [(k, at[number ^ 1 << bit]) for number, k in at.items() if not number >> bit & 1]

    def _need(self, bit: int, uses: Sequence[int]) -> None:
        """Make a bit one that numbers vectors."""
        if bit in self.between:
            return
        last = max(self.between, key=lambda b: uses.index(b) if b in uses else len(uses))
        for one, other in self._pairs(last):
            x, y = self.places[one], self.places[other]
            within = self._is_within(x, bit)
            parts = range(0, self.lanes, self.block if within else self.lanes)
            width = self.block if within else self.lanes
            new: list[Record] = []
            for side, at in enumerate((one, other)):
                found = [p for k in parts for p in (*x[k : k + width], *y[k : k + width]) if p >> bit & 1 == side]
                lane = {place: k for k, place in enumerate((*x, *y))}
                both = zip(self.vectors[one], self.vectors[other], strict=True)
                new.append([self.b.shuffle(u, v, [lane[p] for p in found]) for u, v in both])
                self.places[at] = found
            self.vectors[one], self.vectors[other] = new
        self.between = self.between - {last} | {bit}

    def _is_within(self, places: Sequence[int], bit: int) -> bool:
        """Whether both values of a bit come in the first 16 bytes of a vector."""
        return len({place >> bit & 1 for place in places[: self.block]}) == 2

    def _restored(self) -> list[Record]:
        order = sorted(range(len(self.vectors)), key=lambda k: min(self.places[k]))
        result = []
        for k in order:
            lane = {place: at for at, place in enumerate(self.places[k])}
            result.append([self.b.shuffle(w, None, [lane[p] for p in sorted(lane)]) for w in self.vectors[k]])
        return _unsigned(self.b, result)


def _odd_even_merges(count: int) -> list[tuple[int, int]]:
    """The exchanges of Batcher's sort of a power of two of elements."""
    found = []
    size = 1
    while size < count:
        step = size
        while step:
            for first in range(step % size, count - step, 2 * step):
                for k in range(first, min(first + step, count - step)):
                    if k // (2 * size) == (k + step) // (2 * size):
                        found.append((k, k + step))
            step //= 2
        size *= 2
    return found


def sort_vectors(b: Builder, vectors: Sequence[Record]) -> list[Record]:
    """Records in a power of two of vectors, sorted."""
    return (Columns if len(vectors) >= 4 else Network)(b, vectors).sort()
