"""Kernels that put one element of each row into its sorted place, smaller ones before it and larger ones behind it.

First the key (see `sorting`) of the wanted rank is found. A sorted sample of the row gives two bounds between which it
nearly certainly lies; one walk over the row counts the keys below them and keeps those between them, a quarter or so,
and the same is done with these until a network sorts the rest. Where the sample misled, the side where the key has to
be is walked over, and sampled in its turn; where a sample did not help, as with few distinct keys, the range of keys is
halved. So a row is walked over a few times whatever is in it, and what a sample says is never part of the result.

Then the row is divided: all elements before the one that was looked for, in the order of the row, and all behind it,
in that order. Lanes that go the same way are moved together (`Lanes`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.words import fields_of
from weft.dtypes import Dtype
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.records import dataclass
from weft.targets.axes import Axis, product, words_of
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.lanes import WORDS, Lanes, lanes_of, vector_of
from weft.targets.cpu.moves import bits_of, weigh
from weft.targets.cpu.networks import Record, Records, less, sort_vectors
from weft.targets.cpu.sorting import by_rows

COST: Final = 4
"""What dividing a row costs beside copying it."""
SAMPLE: Final = 64
"""Elements of a row that bounds are taken from; not more are sorted at once."""
PATIENCE: Final = 8
"""Turns after which the range of keys is halved even where that between the given bounds has not been sampled yet: rows
made to mislead samples take some walks for each bit of a key at most."""
LOOKS: Final = 4096
"""Vectors between two looks whether to stop."""

_PLACES: Final = [(j << 16) + (j * 40503 & 0xFFFF) for j in range(SAMPLE)]  # 2 ** 16 times the golden ratio: spread
"""Where a row is sampled: these, in units of its length / (SAMPLE << 16). One place in each part of the row, so that
neither sorted nor periodic rows mislead."""


# ---- the kernel ----


@dataclass(frozen=True, slots=True)
class PartitionRows(NativeKernel):
    """A unit is a row. Operands: x, the result: "values", or "places" (uint32) of them in x.

    `rank` is that of the element which comes to its sorted place. A row is `short` if a network takes it. The scratch
    has two parts: a row of keys or of the result (`capacity` bytes), and the sample.
    """

    title = "partition"
    dtype: Dtype
    result: str
    lanes: Lanes
    vectors: int
    short: bool
    outer: int

    def __str__(self) -> str:
        form = f"{'short' if self.short else 'long'} {self.dtype.name} -> {self.result}"
        return f"partition {form} lanes={self.lanes} vectors={self.vectors} outer={self.outer}"

    def as_written(self) -> bool:
        return True

    def fields(self) -> list[str]:
        return fields_of(self.outer, 2, "rank", "capacity")

    def emit(self, frame: Frame) -> None:
        b = frame.b
        with b.loop(frame.begin, frame.end, 1) as units:
            at = frame.indices(units.index)
            x, out = frame.at(0, at), frame.at(1, at)
            key, before = self._find_short(frame, x) if self.short else self._find(frame, x)
            place = self._place(frame, x, key, before)
            self._divide(frame, x, out, key, place)

    # ---- keys ----

    @property
    def words(self) -> tuple[Dtype, ...]:
        """Those of a key in here: not less than 32 bits each."""
        return (WORDS[self.lanes.size],) * (2 if self.dtype.size == 16 else 1)

    @property
    def network(self) -> int:
        """Keys that are sorted at once."""
        return self.vectors * self.lanes.count

    def _keys(self, b: Builder, x: AnyValue) -> Record:
        found = Records(self.dtype, indexed=False).keys(b, x, canonical=True)
        return [b.cast(key, word) for key, word in zip(found, self.words, strict=True)]

    def _load(self, b: Builder, x: Value, index: Value, mask: Value | None = None) -> AnyValue:
        kind = self.dtype if self.dtype.is_complex else bits_of(self.dtype)
        return b.load(b.gep(x, index * self.dtype.size), kind, self.lanes.count, mask)

    def _buffer(self, frame: Frame, base: Value, word: int) -> Value:
        """The first key's word of so many, one array for each word."""
        return base if word == 0 else frame.b.gep(base, frame.divide(frame["capacity"], 2)[0])

    def _spread(self, b: Builder, record: Record) -> Record:
        return [b.splat(word, self.lanes.count) for word in record]

    def _walk(
        self, frame: Frame, start: Value, stop: Value, *carried: Value,
        body: Callable[[Value, Value | None, tuple[Value, ...]], tuple[Value, ...]],
    ) -> tuple[Value, ...]:  # fmt: skip
        """body(first element, lanes that count, carried) over elements [start, stop) of a row: whole vectors, then the
        rest. The vector of that ends where the row does, if it would go beyond: it holds elements from before."""
        b, count = frame.b, self.lanes.count
        whole = start + ((stop - start) & -count)
        with frame.long_loop(start, whole, count, LOOKS, *carried) as loop:
            loop.carry(*body(loop.index, None, loop.carried))
        with b.loop(whole, stop, count, *loop.carried) as rest:
            first = rest.index if self.short else b.intrinsic("smin", rest.index, frame["n"] - count)
            number = b.iota(dt.uint32, count) - b.splat(b.cast(rest.index - first, dt.uint32), count)
            inside = number < b.splat(b.cast(stop - rest.index, dt.uint32), count)
            rest.carry(*body(first, inside, rest.carried))
        return rest.carried

    def _row(self, b: Builder, x: Value, index: Value, inside: Value | None) -> AnyValue:
        """Elements of a row; only those of a short one may lie past its end."""
        return self._load(b, x, index, inside if self.short else None)

    # ---- finding the key of a rank ----

    def _find_short(self, frame: Frame, x: Value) -> tuple[Record, Value]:
        """The key of the wanted rank, and how many equal ones come before it."""
        b, count = frame.b, self.lanes.count
        vectors = []
        for k in range(self.vectors):
            left = b.intrinsic("smax", frame["n"] - k * count, b.i64(0))
            inside = b.iota(dt.int64, count) < b.splat(left, count)
            keys = self._keys(b, self._load(b, x, b.i64(k * count), inside))
            vectors.append([b.choose(inside, word, -1) for word in keys])
        self._keep_sample(frame, vectors)
        return self._rank(frame, frame["rank"])

    def _rank(self, frame: Frame, rank: Value) -> tuple[Record, Value]:
        """The key of a rank of the sample, and how many equal ones come before it."""
        b = frame.b
        self._sort_sample(frame)
        key = self._sampled(frame, rank)
        limit, below = self._spread(b, key), b.i64(0)
        for vector in self._vectors(b, self._sample(frame)):
            below = below + b.count(less(vector, limit))
        return key, rank - below

    def _sort_sample(self, frame: Frame) -> None:
        """A function of its own, because two places need it."""
        frame.b.shared("sort_sample", self._sorted, self._sample(frame))

    def _sorted(self, b: Builder, sample: Value) -> Value:
        self._keep(b, sample, sort_vectors(b, self._vectors(b, sample)))
        return sample

    def _vectors(self, b: Builder, sample: Value) -> list[Record]:
        return [
            [vector_of(b.load(b.gep(sample, at), word, self.lanes.count)) for at, word in self._places(k)]
            for k in range(self.vectors)
        ]

    def _places(self, vector: int) -> list[tuple[int, Dtype]]:
        """Where the words of a vector of the sample are."""
        size, first = self.lanes.size, vector * self.lanes.count
        return [((k * self.network + first) * size, word) for k, word in enumerate(self.words)]

    def _keep(self, b: Builder, sample: Value, vectors: Sequence[Record]) -> None:
        for number, vector in enumerate(vectors):
            for (at, _), keys in zip(self._places(number), vector, strict=True):
                b.store(keys, b.gep(sample, at))

    def _keep_sample(self, frame: Frame, vectors: Sequence[Record]) -> None:
        self._keep(frame.b, self._sample(frame), vectors)

    def _sample(self, frame: Frame) -> Value:
        return frame.b.gep(frame.scratch, frame["capacity"])

    def _sampled(self, frame: Frame, place: Value) -> Record:
        b, size = frame.b, self.lanes.size
        at = b.gep(self._sample(frame), place * size)
        return [vector_of(b.load(b.gep(at, k * self.network * size), word, 1)) for k, word in enumerate(self.words)]

    def _find(self, frame: Frame, x: Value) -> tuple[Record, Value]:
        """The key of the wanted rank, and how many equal ones come before it.

        In every turn `count` keys are left, those between two bounds; `base` keys of the row are below them. They lie
        in the scratch, but for the first turn, and after one that found the key outside of its bounds: then the whole
        row is walked over (`from_row`). `narrowed` says that the bounds shall be used as they are, `halved` that their
        range is to be halved.
        """
        b, n, rank, size = frame.b, frame["n"], frame["rank"], len(self.words)
        lowest = [b.const(word, 0, 1) for word in self.words]
        highest = [b.const(word, -1, 1) for word in self.words]
        yes, no = b.const(dt.bool_, True, 1), b.const(dt.bool_, False, 1)
        with b.loop(0, 1 << 62, 1, n, b.i64(0), yes, no, no, *lowest, *highest, may_stop=True) as turn:
            count, base, from_row, narrowed, halved, *bounds = turn.carried
            low, high = bounds[:size], bounds[size:]
            first, last = self._bounds(frame, x, (count, rank - base, from_row), low, high, narrowed, halved)
            below, kept = self._filter(frame, x, from_row, count, base, first, last)
            found = (rank >= below) & (rank < below + kept)
            smaller = rank < below
            inside = [b.choose(found, new, old) for new, old in zip((*first, *last), bounds, strict=True)]
            before, after = self._before(b, first), self._after(b, last)
            low = [b.choose(found | smaller, x, y) for x, y in zip(inside[:size], after, strict=True)]
            high = [b.choose(found | ~smaller, x, y) for x, y in zip(inside[size:], before, strict=True)]
            one = _equal(low, high)
            turn.again = ~(found & ((kept <= self.network) | one))
            sampled = ~narrowed | (turn.index >= PATIENCE)
            halved = found & ~halved & sampled & (kept + kept > count)
            turn.carry(b.choose(found, kept, n), b.choose(found, below, base), ~found, ~found, halved, *low, *high)
            frame.look()
        count, base, *_ = turn.carried
        low = list(turn.carried[5 : 5 + size])
        one = _equal(low, list(turn.carried[5 + size :]))
        return self._last(frame, count, rank - base, low, one)

    def _last(self, frame: Frame, count: Value, rank: Value, low: Record, one: Value) -> tuple[Record, Value]:
        """The key of a rank of the few that are left in the scratch, unless there is only `one` key."""
        b = frame.b

        def from_network() -> list[Value]:
            vectors = []
            for k in range(self.vectors):
                number = b.iota(dt.int64, self.lanes.count) + k * self.lanes.count
                inside = number < b.splat(count, self.lanes.count)
                words = self._kept(frame, b.i64(k * self.lanes.count))
                vectors.append([b.choose(inside, word, -1) for word in words])
            self._keep_sample(frame, vectors)
            key, before = self._rank(frame, rank)
            return [*key, before]

        *key, before = b.rarely(~one, [*low, rank], from_network)
        return key, before

    def _kept(self, frame: Frame, index: Value) -> Record:
        """Keys from the scratch."""
        b, size = frame.b, self.lanes.size
        return [
            vector_of(b.load(b.gep(self._buffer(frame, frame.scratch, k), index * size), word, self.lanes.count))
            for k, word in enumerate(self.words)
        ]

    def _before(self, b: Builder, key: Record) -> Record:
        """The largest key that is smaller: that of a number with so many words as digits."""
        if len(key) == 1:
            return [key[0] - 1]
        return [b.choose(key[1].eq(0), key[0] - 1, key[0]), key[1] - 1]

    def _after(self, b: Builder, key: Record) -> Record:
        """The smallest key that is larger."""
        if len(key) == 1:
            return [key[0] + 1]
        return [b.choose(key[1].eq(-1), key[0] + 1, key[0]), key[1] + 1]

    def _middle(self, b: Builder, low: Record, high: Record) -> Record:
        """The last key of the lower half of a range."""
        middle = low[0] + ((high[0] - low[0]) >> 1)
        if len(low) == 1:
            return [middle]
        same = low[0].eq(high[0])
        return [middle, b.choose(same, low[1] + ((high[1] - low[1]) >> 1), -1)]

    def _bounds(
        self, frame: Frame, x: Value, source: tuple[Value, Value, Value], low: Record, high: Record, narrowed: Value,
        halved: Value,
    ) -> tuple[Record, Record]:  # fmt: skip
        """Two keys between which, both included, the key of the wanted rank may be expected."""
        b, (count, rank, from_row) = frame.b, source
        self._draw(frame, x, count, from_row)
        place = frame.divide(rank * self.network, count)[0]
        first, last = place - self.network // 8, place + self.network // 8
        inner = b.intrinsic("smax", first, b.i64(0)), b.intrinsic("smin", last, b.i64(self.network - 1))
        lower = [b.choose(first < 0, *both) for both in zip(low, self._sampled(frame, inner[0]), strict=True)]
        upper = [
            b.choose(last >= self.network, *both) for both in zip(high, self._sampled(frame, inner[1]), strict=True)
        ]
        useless = _equal(lower, low) & _equal(upper, high)
        key = self._sampled(frame, place)
        lower = [b.choose(useless, *both) for both in zip(key, lower, strict=True)]
        upper = [b.choose(useless, *both) for both in zip(key, upper, strict=True)]
        as_given = narrowed | halved
        lower = [b.choose(as_given, *both) for both in zip(low, lower, strict=True)]
        upper = [b.choose(as_given, *both) for both in zip(high, upper, strict=True)]
        middle = self._middle(b, low, high)
        return lower, [b.choose(halved, *both) for both in zip(middle, upper, strict=True)]

    def _draw(self, frame: Frame, x: Value, count: Value, from_row: Value) -> None:
        """A sorted sample of the keys that are left comes to lie in the scratch."""
        b, lanes = frame.b, self.lanes.count
        step = SAMPLE // self.network
        length = b.splat(b.cast(b.cast(count, dt.uint32), dt.uint64), lanes)
        indices = []
        for k in range(0, self.network, lanes):
            places = b.vector(dt.uint64, [_PLACES[j * step] for j in range(k, k + lanes)])
            indices.append(b.cast((places * length) >> (SAMPLE << 16).bit_length() - 1, dt.int64))
        with b.when(from_row):
            self._keep_sample(frame, [self._keys(b, self._at(b, x, index)) for index in indices])
        with b.when(~from_row):
            bases = [self._buffer(frame, frame.scratch, k) for k in range(len(self.words))]
            both = list(zip(bases, self.words, strict=True))
            self._keep_sample(frame, [[b.lookup(base, i, word) for base, word in both] for i in indices])
        self._sort_sample(frame)

    def _at(self, b: Builder, x: Value, index: Value) -> AnyValue:
        """Elements of a row, one for each lane."""
        if not self.dtype.is_complex:
            return b.lookup(x, index, bits_of(self.dtype))
        part = dt.real_of(self.dtype)
        return Complex(b.lookup(x, index + index, part), b.lookup(x, index + index + 1, part))

    def _filter(
        self, frame: Frame, x: Value, from_row: Value, count: Value, base: Value, first: Record, last: Record
    ) -> tuple[Value, Value]:
        """The keys between two bounds come to lie in the scratch, which they may come from. Returns how many keys of
        the row are smaller, and how many those are."""
        b = frame.b
        lower, upper = self._spread(b, first), self._spread(b, last)
        none = b.i64(0)

        def keep(keys: Record, inside: Value | None, below: Value, kept: Value) -> tuple[Value, Value]:
            small = less(keys, lower)
            chosen = ~(small | less(upper, keys))
            if inside is not None:
                small, chosen = small & inside, chosen & inside
            for k, word in enumerate(keys):
                end = self.lanes.append(b, word, chosen, self._buffer(frame, frame.scratch, k), kept)
            return below + b.count(small), end

        def row(index: Value, inside: Value | None, carried: tuple[Value, ...]) -> tuple[Value, ...]:
            return keep(self._keys(b, self._row(b, x, index, inside)), inside, *carried)

        n = b.choose(from_row, frame["n"], none)
        below, kept = self._walk(frame, none, n, b.choose(from_row, none, base), none, body=row)
        count = b.choose(from_row, none, count)
        with frame.long_loop(0, count, self.lanes.count, LOOKS, below, kept) as loop:
            inside = b.iota(dt.int64, self.lanes.count) < b.splat(count - loop.index, self.lanes.count)
            loop.carry(*keep(self._kept(frame, loop.index), inside, *loop.carried))
        below, kept = loop.carried
        return below, kept

    # ---- dividing a row ----

    def _place(self, frame: Frame, x: Value, key: Record, before: Value) -> Value:
        """Where the element with this key is that comes after so many others with it."""
        b, n, count = frame.b, frame["n"], self.lanes.count
        wanted = self._spread(b, key)

        def look(index: Value, inside: Value | None, seen: Value) -> tuple[Value, Value]:
            """How many were seen with these, and which of these are meant (none if the element is not among them)."""
            same = _equal(self._keys(b, self._row(b, x, index, inside)), wanted)
            bits = b.bits_of_mask(same if inside is None else same & inside)
            total = seen + b.intrinsic("ctpop", bits)
            found = total > before
            return b.choose(found, seen, total), b.choose(found, bits, 0)

        whole, none = n & -count, b.i64(0)
        with b.loop(0, whole, count, none, none, may_stop=True) as loop:
            seen, bits = look(loop.index, None, loop.carried[0])
            loop.again = bits.eq(0)
            loop.carry(seen, bits)
        seen, bits = loop.carried
        start = b.choose(bits.eq(0), whole, n)
        with b.loop(start, n, count, seen, bits, loop.index - count) as rest:
            first = rest.index if self.short else n - count
            number = b.iota(dt.uint32, count) - b.splat(b.cast(rest.index - first, dt.uint32), count)
            inside = number < b.splat(b.cast(n - rest.index, dt.uint32), count)
            rest.carry(*look(first, inside, rest.carried[0]), first)
        seen, bits, first = rest.carried
        with b.loop(seen, before, 1, bits) as skipped:
            (bits,) = skipped.carried
            skipped.carry(bits & (bits - 1))
        lane = b.call("llvm.cttz.i64", dt.int64, 1, skipped.carried[0], "i1 false")
        return first + lane

    def _divide(self, frame: Frame, x: Value, out: Value, key: Record, place: Value) -> None:
        """The elements before `place` that are not larger and those behind it that are smaller, in order; that at
        `place`; all others. The latter wait in the scratch, because whole vectors are written of the former."""
        b, n, rank = frame.b, frame["n"], frame["rank"]
        limit = self._spread(b, key)
        size = 4 if self.result == "places" else self.dtype.size
        with b.loop(0, 2, 1, b.i64(0), b.i64(0)) as half:
            first = half.index.eq(0)
            with_equal = b.splat(first, self.lanes.count)

            def move(index: Value, inside: Value | None, carried: tuple[Value, ...]) -> tuple[Value, ...]:
                element = self._row(b, x, index, inside)
                keys = self._keys(b, element)
                small = less(keys, limit) | (_equal(keys, limit) & with_equal)
                large = ~small
                if inside is not None:
                    small, large = small & inside, large & inside
                return self._put(frame, element, index, (small, large), out, carried, inside is None)

            start, stop = b.choose(first, b.i64(0), place + 1), b.choose(first, place, n)
            half.carry(*self._walk(frame, start, stop, *half.carried, body=move))
        behind = b.gep(out, (rank + 1) * size)
        b.call_void("llvm.memcpy.p0.p0.i64", behind, frame.scratch, (n - 1 - rank) * size, "i1 false")
        if self.result == "places":
            b.store(b.cast(place, dt.uint32), b.gep(out, rank * 4))
        else:
            kind = bits_of(self.dtype)
            b.store(b.load(b.gep(x, place * size), kind, 1), b.gep(out, rank * size))

    def _put(
        self, frame: Frame, element: AnyValue, index: Value, ways: tuple[Value, Value], out: Value,
        places: tuple[Value, ...], whole: bool,
    ) -> tuple[Value, Value]:  # fmt: skip
        """Small lanes to the result, large ones to the scratch. A whole vector fits into what is left of a row."""
        b, (small, large), (left, right) = frame.b, ways, places
        moved = self._moved(b, element, index)
        append = self.lanes.append if whole else self.lanes.append_singly
        return append(b, moved, small, out, left), self.lanes.append(b, moved, large, frame.scratch, right)

    def _moved(self, b: Builder, element: AnyValue, index: Value) -> AnyValue:
        """What is written of elements: their places, or their bits."""
        if self.result == "places":
            return b.iota(dt.uint32, self.lanes.count) + b.splat(b.cast(index, dt.uint32), self.lanes.count)
        if isinstance(element, Value) or self.dtype.size == 16:
            return element
        real, imaginary = (b.cast(b.bitcast(part, dt.uint32), dt.uint64) for part in (element.re, element.im))
        return real | (imaginary << 32)


def _equal(x: Record, y: Record) -> Value:
    """Whether two records are the same, word by word."""
    found = x[0].eq(y[0])
    for one, other in zip(x[1:], y[1:], strict=True):
        found = found & one.eq(other)
    return found


# ---- lowering ----


def partition(x: Layout, out: Layout, axis: int, rank: int, places: bool) -> Lowering:
    """out = x (or the places of its elements) with the element of a rank in its place. Pointers: 0 x, 1 out."""
    n = x.shape[axis]
    lanes = lanes_of(x.dtype)
    vectors = min(8, SAMPLE // lanes.count)
    result = "places" if places else "values"

    def rows(outer: Sequence[Axis], read: Pointer, write: Pointer, temporaries: list[int]) -> list[Launch]:
        network = lanes.count * vectors
        kernel = PartitionRows(x.dtype, result, lanes, vectors, n <= network, len(outer))
        capacity = (n + 2 * lanes.count) * max(4, x.dtype.size)
        units = product(outer)
        numbers = {"units": units, "rank": rank, "capacity": capacity}
        words = words_of(kernel.fields(), [read, write], outer, Axis(n, (0, 0)), numbers)
        sample = network * lanes.size * len(kernel.words)
        return [Launch(kernel.source(), words, weigh(units, n * x.dtype.size, COST), capacity + sample)]

    return by_rows(x, out, axis, rows)
