"""Elements of a kernel's arrays: addresses, checks of indices, and what lanes read and write at once.

Lanes that use neighbouring elements load and store a vector; others gather and scatter, or go one by one through a
buffer on the stack. An array of each thread lies lane by lane: element i of all lanes, then element i + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import tree
from weft.llvm.builder import PTR, Builder, Value
from weft.targets.cpu.custom.values import Affine, operate
from weft.targets.cpu.kernel import Frame

if TYPE_CHECKING:
    from weft.targets.cpu.custom.emit import Emitter

_GATHERED: Final = {4: dt.float32, 8: dt.float64}
_BITS: Final = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}
_ATOMIC: Final = {"add": "add", "sub": "sub", "and": "and", "or": "or", "xor": "xor", "set": "xchg"}


class Place:
    """Where lanes find their elements: at one place (a scalar), at neighbouring ones from `first` on, or anywhere (a
    vector). `narrow` is an integer of 32 bits that grows from lane to lane, still to be added; it may wrap."""

    __slots__ = ("base", "narrow", "stride", "vector")

    def __init__(
        self, base: Value | None, stride: int = 0, vector: Value | None = None, narrow: Affine | None = None
    ) -> None:
        self.base, self.stride, self.vector, self.narrow = base, stride, vector, narrow


class Memory:
    """The arrays of one kernel."""

    def __init__(
        self,
        frame: Frame,
        program: tree.Program,
        lanes: int,
        checked: bool,
        private: Mapping[tree.Storage, int],
        alone: bool,
    ) -> None:
        self.frame, self.b, self.lanes, self.checked, self.private, self.alone = (
            frame, frame.b, lanes, checked, private, alone,
        )  # fmt: skip
        self.sites = {id(x): k for k, x in enumerate(tree.sites(program))}
        self.pointers: dict[tree.Storage, Value] = {}
        """Where the arrays of this threadgroup, or vector, begin."""
        self.unit: Value = frame.begin
        self.gathered: frozenset[tree.Storage] = frozenset()
        """Results of which each thread has its own copy, to be combined at the end."""
        self.numbers: dict[tree.Storage, Value] = {}
        """Operands without axes, read once for each threadgroup."""
        self._ranges = {x: self._given(program, x) for x in program.storages if x.space in ("input", "output")}
        """(how many elements there are, the index of the first one if that is not 0)."""
        self._limits = {
            x: frame.b.intrinsic("smax", count - (lanes - 1), frame.b.i64(0)) for x, (count, _) in self._ranges.items()
        }
        """How many vectors of neighbouring elements there are in an array."""
        self.streamed: frozenset[tree.Storage] = frozenset()
        """Large results that are written once: past the caches."""
        self._entry: list[str] = []
        self._buffers: dict[str, Value] = {}

    # ---- sizes ----

    def size(self, e: Emitter, x: tree.Size) -> Value:
        frame, k = self.frame, x.storage.place
        if x.what == "size":
            total = self.b.i64(1)
            for axis in range(x.storage.ndim):
                total = total * frame[f"d{k}.{axis}"]
            return total
        letter = {"shape": "d", "strides": "s", "rows": "r"}[x.what]
        assert x.axis is not None
        if isinstance(x.axis, tree.Constant):
            return frame[f"{letter}{k}.{int(x.axis.value)}"]
        place = e.plain(e.value(x.axis))
        self._check(e, place, self.b.i64(x.storage.ndim), self.sites[id(x)], None)
        found = self.b.const(dt.int64, 0, place.lanes)
        for a in range(x.storage.ndim):
            found = self.b.choose(place.eq(a), self.b.splat(frame[f"{letter}{k}.{a}"], place.lanes), found)
        return found

    def _given(self, program: tree.Program, storage: tree.Storage) -> tuple[Value, Value | None]:
        """How many elements an operand has, and the first one. Of a view, those that lie wholly in the operand."""
        frame = self.frame
        root = storage if storage.of is None else program.storages[storage.of]
        count = frame[f"n{root.place}"]
        low = frame[f"lo{root.place}"] if f"lo{root.place}" in frame._words else None
        old, new = root.dtype.size, storage.dtype.size
        if old >= new:
            return count * (old // new), None if low is None else low * (old // new)
        bits = (new // old).bit_length() - 1
        if low is None:
            return count >> bits, None
        first = (low + (new // old - 1)) >> bits
        return ((low + count) >> bits) - first, first

    def _range(self, storage: tree.Storage) -> tuple[Value, Value | None]:
        """(how many elements there are, the index of the first one if that is not 0)."""
        found = self._ranges.get(storage)
        return (self.b.i64(storage.size), None) if found is None else found

    # ---- places ----

    def place(self, e: Emitter, index: tree.Expression) -> Place:
        """An index, with what is known of how it goes from lane to lane."""
        level = e.levels.level(index)
        if level is not None:
            found = e.value(index)
            if isinstance(found, Affine):
                return Place(found.base, found.stride)
            return Place(found)
        match index:
            case tree.Cast(dtype, inner, False) if (
                dtype is dt.int64 and e.levels.level(inner) and inner.dtype.size == 4
            ):
                narrow = e.value(inner)
                assert isinstance(narrow, Affine)
                return Place(self.b.i64(0), narrow.stride, None, narrow)
            case tree.Operation(_, "add" | "sub" as name, (x, y)):
                first = self.place(e, x)
                second = self.place(e, y)
                joined = self._sum(name, first, second)
                if joined is not None:
                    return joined
                return Place(None, 0, operate(self.b, name, dt.int64, [self.spread(first), self.spread(second)]))
        return Place(None, 0, e.vector(e.value(index)))

    def _sum(self, name: str, x: Place, y: Place) -> Place | None:
        if x.base is None or y.base is None or (x.narrow is not None and y.narrow is not None):
            return None
        if name == "sub" and y.narrow is not None:
            return None
        base = operate(self.b, name, dt.int64, [x.base, y.base])
        stride = x.stride + y.stride if name == "add" else x.stride - y.stride
        if (x.narrow or y.narrow) is not None and (x.stride and y.stride):
            return None
        return Place(base, stride, None, x.narrow or y.narrow)

    def spread(self, place: Place) -> Value:
        """The indices of all lanes."""
        b = self.b
        if place.vector is not None:
            return b.splat(place.vector, self.lanes)
        assert place.base is not None
        if place.narrow is not None:
            return b.splat(place.base, self.lanes) + b.cast(place.narrow.spread(self.lanes), dt.int64)
        return Affine(place.base, place.stride).spread(self.lanes) if place.stride else b.splat(place.base, self.lanes)

    def _first(self, place: Place) -> tuple[Value, Value | None]:
        """(the index of the first lane, whether the 32 bits wrap between it and the last)."""
        b = self.b
        assert place.base is not None
        if place.narrow is None:
            return place.base, None
        low = place.narrow.base
        last = low + place.narrow.stride * (self.lanes - 1)
        wraps = last < low if place.narrow.stride > 0 else last > low
        return place.base + b.cast(low, dt.int64), wraps

    # ---- checks ----

    def _check(self, e: Emitter, index: Value, size: Value, site: int, low: Value | None) -> None:
        """Fail where an index, of one or of all lanes that are active, is out of range."""
        if not self.checked:
            return
        b = self.b
        shifted = index if low is None else index - low
        outside = b.cast(shifted, dt.uint64) >= b.cast(b.splat(size, index.lanes), dt.uint64)
        if index.lanes > 1 and e.active is not None:
            outside = outside & e.active
        found = b.unlikely(b.any(outside))
        bad, good = e.label("outside"), e.label("inside")
        e.branch(found, bad, good)
        b.start_block(bad)
        self._fail(index, outside, size, site)
        b.start_block(good)

    def _fail(self, index: Value, outside: Value, size: Value, site: int) -> None:
        """Leave what is wrong in the status record, and the kernel."""
        b = self.b
        if index.lanes > 1:
            bits = b.op(
                f"bitcast {outside.type} {outside.text} to i{index.lanes}",
                dt.uint32 if index.lanes == 32 else dt.uint16,
                1,
            )
            lane = b.call(f"llvm.cttz.i{index.lanes}", bits.dtype, 1, bits, "i1 true")
            index = b.op(f"extractelement {index.type} {index.text}, {lane.type} {lane.text}", dt.int64, 1)
        fail(b, self.frame["status"], self.unit, site, index, size)
        b.ret()

    def _within(self, place: Place, storage: tree.Storage) -> tuple[Value, Value]:
        """(index of the first lane, whether all lanes from there on are neighbours within the array)."""
        b = self.b
        first, wraps = self._first(place)
        if not self.checked:
            return first, b.const(dt.bool_, True, 1) if wraps is None else ~wraps
        count, low = self._range(storage)
        start = first if low is None else first - low
        if place.stride == 1 and storage in self._limits:
            inside = b.cast(start, dt.uint64) < b.cast(self._limits[storage], dt.uint64)
        elif place.stride == 1:
            inside = (start >= 0) & (start <= count - self.lanes)
        else:
            last = start + place.stride * (self.lanes - 1)
            inside = (b.cast(start, dt.uint64) < b.cast(count, dt.uint64)) & (
                b.cast(last, dt.uint64) < b.cast(count, dt.uint64)
            )
        return first, inside if wraps is None else inside & ~wraps

    # ---- loads ----

    def address(self, storage: tree.Storage, index: Value) -> Value:
        pointer = self.pointers[storage]
        size = storage.dtype.size
        return self.b.gep(pointer, index * size if size > 1 else index)

    def load(self, e: Emitter, x: tree.Load) -> Value:
        storage, site = x.storage, self.sites[id(x)]
        if storage in self.numbers and isinstance(x.index, tree.Constant) and x.index.value == 0:
            return self.numbers[storage]
        place = self.place(e, x.index)
        if storage.space == "thread":
            return self._load_own(e, storage, place, site)
        if place.base is not None and not place.stride:
            first, _ = self._first(place)
            count, low = self._range(storage)
            self._check(e, first, count, site, low)
            return _value(self.b.load(self.address(storage, first), storage.dtype, 1))
        if place.base is not None and place.stride == 1:
            return self._together(
                e, storage, place, site,
                lambda at: _value(self.b.load(at, storage.dtype, self.lanes, e.active)),
                lambda where: self.gather(e, storage, where),
            )  # fmt: skip
        where = self._checked_spread(e, storage, place, site)
        return self.gather(e, storage, where)

    def _checked_spread(self, e: Emitter, storage: tree.Storage, place: Place, site: int) -> Value:
        """The indices of all lanes, those that are active within the array."""
        where = self.spread(place)
        count, low = self._range(storage)
        if place.base is None or not self.checked:
            self._check(e, where, count, site, low)
            return where
        _, inside = self._within(place, storage)
        b = self.b
        doubt, fine = e.label("doubt"), e.label("fine")
        e.branch(inside, fine, doubt)
        b.start_block(doubt)
        self._check(e, where, count, site, low)
        b.raw(f"br label %{fine}")
        b.start_block(fine)
        return where

    def _together(
        self,
        e: Emitter,
        storage: tree.Storage,
        place: Place,
        site: int,
        neighbours: Callable[[Value], Value],
        apart: Callable[[Value], Value],
    ) -> Value:
        """Lanes at neighbouring elements: at once, if they are what they seem; else with a look at each."""
        b = self.b
        first, inside = self._within(place, storage)
        if inside.text == "true":
            return neighbours(self.address(storage, first))
        count, low = self._range(storage)
        if e.active is None and self.checked:  # all lanes are there: one of them is outside, or all are within
            bad, good = e.label("outside"), e.label("inside")
            e.branch(b.unlikely(~inside), bad, good)
            b.start_block(bad)
            where = self.spread(place)
            shifted = where if low is None else where - low
            outside = b.cast(shifted, dt.uint64) >= b.cast(b.splat(count, self.lanes), dt.uint64)
            self._fail(where, outside, count, site)
            b.start_block(good)
            return neighbours(self.address(storage, first))
        near, far, end = e.label("near"), e.label("far"), e.label("both")
        e.branch(inside, near, far)
        b.start_block(near)
        one = neighbours(self.address(storage, first))
        here = b.block
        b.raw(f"br label %{end}")
        b.start_block(far)
        where = self.spread(place)
        self._check(e, where, count, site, low)
        if place.narrow is None:  # neighbours still: masked lanes are not touched
            other = neighbours(self.address(storage, first))
        else:
            other = apart(where)
        there = b.block
        b.raw(f"br label %{end}")
        b.start_block(end)
        return _value(e.phi([(here, one), (there, other)]))

    def gather(self, e: Emitter, storage: tree.Storage, where: Value) -> Value:
        """Elements anywhere; lanes that are not active read 0."""
        b, dtype = self.b, storage.dtype
        wide = _GATHERED.get(dtype.size)
        if wide is not None and not dtype.is_bool:
            found = b.gather(self.pointers[storage], where * dtype.size, wide, e.active)
            return found if dtype is wide else b.bitcast(found, dtype)
        bits = _BITS[dtype.size]
        indices, elements = self._buffer(dt.int64), self._buffer(bits)
        b.store(where, indices)
        b.store(b.const(bits, 0, self.lanes), elements)

        def one(lane: Value) -> None:
            index = _value(b.load(b.gep(indices, lane * 8), dt.int64, 1))
            element = _value(b.load(self.address(storage, index), bits, 1))
            b.store(element, b.gep(elements, lane * bits.size))

        self._each(e, one)
        return (
            b.from_memory_bits(_value(b.load(elements, bits, self.lanes)), dtype)
            if not dtype.is_bool
            else _value(b.load(elements, dtype, self.lanes))
        )

    def _each(self, e: Emitter, one: Callable[[Value], None]) -> None:
        """For every lane that is active, in order."""
        b = self.b
        flags = None
        if e.active is not None:
            flags = self._buffer(dt.bool_)
            b.store(e.active, flags)
        with b.loop(0, self.lanes, 1) as loop:
            if flags is None:
                one(loop.index)
            else:
                with b.when(_value(b.load(b.gep(flags, loop.index), dt.bool_, 1))):
                    one(loop.index)

    def _buffer(self, dtype: Dtype, what: str = "lanes") -> Value:
        """Room for a vector on the stack."""
        name = f"{what}.{dtype.name}"
        if name not in self._buffers:
            nbytes = self.lanes * dtype.size
            self.entry(f"%{name} = alloca [{nbytes} x i8], align 64")
            self._buffers[name] = Value(self.b, f"%{name}", PTR, 1)
        return self._buffers[name]

    def entry(self, line: str) -> None:
        """A line for the top of the function."""
        self._entry.append("  " + line)

    def finish(self) -> None:
        self.b.lines[:0] = self._entry

    # ---- stores ----

    def store(self, e: Emitter, x: tree.Store) -> None:
        storage, site = x.storage, self.sites[id(x)]
        b = self.b
        value = e.plain(e.value(x.value))
        place = self.place(e, x.index)
        if storage.space == "thread":
            self._store_own(e, storage, place, value, site)
            return
        if place.base is not None and not place.stride:
            self._store_at(e, storage, place, value, site)
            return
        spread = b.splat(value, self.lanes)
        if place.base is not None and place.stride == 1:

            def neighbours(at: Value) -> Value:
                b.store(spread, at, e.active, stream=storage in self.streamed)
                return b.i64(0)

            def apart(where: Value) -> Value:
                self.scatter(e, storage, where, spread)
                return b.i64(0)

            self._together(e, storage, place, site, neighbours, apart)
            return
        self.scatter(e, storage, self._checked_spread(e, storage, place, site), spread)

    def _store_at(self, e: Emitter, storage: tree.Storage, place: Place, value: Value, site: int) -> None:
        """All lanes to one place: the last one that is active has it."""
        b = self.b
        first, _ = self._first(place)
        count, low = self._range(storage)
        self._check(e, first, count, site, low)
        if value.lanes > 1:
            value = self.last(e, value)
        b.store(value, self.address(storage, first))

    def last(self, e: Emitter, value: Value) -> Value:
        """What the last lane that is active has."""
        b = self.b
        if e.active is None:
            return b.extract(value, self.lanes - 1)
        kind = dt.uint32 if self.lanes == 32 else dt.uint16
        bits = b.op(f"bitcast {e.active.type} {e.active.text} to i{self.lanes}", kind, 1)
        zeros = b.call(f"llvm.ctlz.i{self.lanes}", kind, 1, bits, "i1 false")
        lane = b.choose(zeros > self.lanes - 1, self.lanes - 1, zeros)
        lane = b.const(kind, self.lanes - 1, 1) - lane
        return b.op(f"extractelement {value.type} {value.text}, {lane.type} {lane.text}", value.dtype, 1)

    def scatter(self, e: Emitter, storage: tree.Storage, where: Value, value: Value) -> None:
        """Elements to anywhere; of lanes with one place the last wins."""
        b, dtype = self.b, storage.dtype
        wide = _GATHERED.get(dtype.size)
        if wide is not None and not dtype.is_bool:
            bits = value if dtype is wide else b.bitcast(value, wide)
            b.scatter(bits, self.pointers[storage], where * dtype.size, e.active)
            return
        kind = _BITS[dtype.size]
        indices, elements = self._buffer(dt.int64), self._buffer(kind)
        b.store(where, indices)
        b.store(value, elements)

        def one(lane: Value) -> None:
            index = _value(b.load(b.gep(indices, lane * 8), dt.int64, 1))
            element = _value(b.load(b.gep(elements, lane * kind.size), kind, 1))
            b.store(element, self.address(storage, index))

        self._each(e, one)

    # ---- arrays of threads ----

    def clear(self, e: Emitter, storage: tree.Storage) -> None:
        b = self.b
        zero = b.const(_BITS[storage.dtype.size], 0, self.lanes)
        row = self.lanes * storage.dtype.size
        if e.active is None or storage.size == 0:
            b.call_void("llvm.memset.p0.i64", self.pointers[storage], "i8 0", b.i64(storage.size * row), "i1 false")
            return
        with b.loop(0, storage.size, 1) as loop:
            b.store(zero, b.gep(self.pointers[storage], loop.index * row), e.active)

    def _own(self, storage: tree.Storage, index: Value) -> Value:
        return self.b.gep(self.pointers[storage], index * (self.lanes * storage.dtype.size))

    def _load_own(self, e: Emitter, storage: tree.Storage, place: Place, site: int) -> Value:
        b = self.b
        if place.base is not None and not place.stride:
            first, _ = self._first(place)
            self._check_own(e, first, storage, site)
            return _value(b.load(self._own(storage, first), storage.dtype, self.lanes))
        where = self.spread(place)
        self._check(e, where, b.i64(storage.size), site, None)
        return self.gather(e, storage, where * self.lanes + b.iota(dt.int64, self.lanes))

    def _check_own(self, e: Emitter, index: Value, storage: tree.Storage, site: int) -> None:
        if not index.text.startswith("%") and 0 <= int(index.text) < storage.size:
            return
        self._check(e, index, self.b.i64(storage.size), site, None)

    def _store_own(self, e: Emitter, storage: tree.Storage, place: Place, value: Value, site: int) -> None:
        b = self.b
        spread = b.splat(value, self.lanes)
        if place.base is not None and not place.stride:
            first, _ = self._first(place)
            self._check_own(e, first, storage, site)
            b.store(spread, self._own(storage, first), e.active)
            return
        where = self.spread(place)
        self._check(e, where, b.i64(storage.size), site, None)
        self.scatter(e, storage, where * self.lanes + b.iota(dt.int64, self.lanes), spread)

    # ---- atomic operations ----

    def atomic(self, e: Emitter, x: tree.Atomic) -> None:
        """One lane after the other."""
        b, storage, dtype = self.b, x.storage, x.storage.dtype
        value = b.splat(e.plain(e.value(x.value)), self.lanes)
        where = self._checked_spread(e, storage, self.place(e, x.index), self.sites[id(x)])
        if x.expected is not None:
            self._exchange(e, x, where, value, b.splat(e.plain(e.value(x.expected)), self.lanes))
            return
        if x.result is None and e.active is None and not dtype.is_float:
            for lane in range(self.lanes):
                self._combine(x, storage, b.extract(where, lane), b.extract(value, lane))
            return
        bits = _BITS[dtype.size]
        indices, elements = self._buffer(dt.int64), self._buffer(bits)
        b.store(where, indices)
        b.store(value, elements)

        def one(lane: Value) -> None:
            index = _value(b.load(b.gep(indices, lane * 8), dt.int64, 1))
            at = b.gep(elements, lane * bits.size)
            old = self._combine(x, storage, index, _value(b.load(at, dtype, 1)))
            b.store(old, at)

        self._each(e, one)
        if x.result is not None:
            e.assign(x.result, _value(b.load(elements, dtype, self.lanes)), False)

    def _exchange(self, e: Emitter, x: tree.Atomic, where: Value, value: Value, expected: Value) -> None:
        """One lane after the other exchanges what is there, if it has the bits that it expects."""
        b, bits = self.b, _BITS[x.storage.dtype.size]
        indices, elements = self._buffer(dt.int64), self._buffer(bits)
        wanted = self._buffer(bits, "expected")
        b.store(where, indices)
        b.store(value, elements)
        b.store(expected, wanted)

        def one(lane: Value) -> None:
            at = self.address(x.storage, _value(b.load(b.gep(indices, lane * 8), dt.int64, 1)))
            new, like = b.gep(elements, lane * bits.size), b.gep(wanted, lane * bits.size)
            old = _value(b.load(at, bits, 1))
            same = old.eq(_value(b.load(like, bits, 1)))
            b.store(b.choose(same, _value(b.load(new, bits, 1)), old), at)
            b.store(old, new)

        self._each(e, one)
        if x.result is not None:
            e.assign(x.result, _value(b.load(elements, x.storage.dtype, self.lanes)), False)

    def _combine(self, x: tree.Atomic, storage: tree.Storage, index: Value, value: Value) -> Value:
        """storage[index] op= value; gives what was there. What one thread alone can see is not locked."""
        b, dtype = self.b, storage.dtype
        at = self.address(storage, index)
        if not self.alone and storage.space == "output" and storage not in self.gathered and not dtype.is_float:
            return self.locked(x.op, at, value)
        old = _value(b.load(at, dtype, 1))
        new = value if x.op == "set" else operate(b, x.op, dtype, [old, value])
        b.store(new, at)
        return old

    def locked(self, op: str, at: Value, value: Value) -> Value:
        """An atomic operation that other threads see; gives what was there."""
        name = _ATOMIC.get(op) or (op if value.dtype.kind == "i" else f"u{op}")
        return self.b.op(f"atomicrmw {name} ptr {at.text}, {value!r} monotonic", value.dtype, 1)


def _value(x: object) -> Value:
    assert isinstance(x, Value)
    return x


def fail(b: Builder, status: Value, unit: Value, site: int, index: Value, size: Value) -> None:
    """Note an index that is out of range, unless one of an earlier unit is noted already."""
    name = "note_failure"
    if name not in b.declarations:
        b.declarations[name] = _note(name, b)
    given = ", ".join(map(repr, (status, unit, b.i64(site), index, size)))
    b.raw(f"call void @{name}({given})")


def _note(name: str, outer: Builder) -> str:
    """The record is (noted, unit, site, index, size, lock)."""
    params = [("status", PTR), ("unit", dt.int64), ("site", dt.int64), ("index", dt.int64), ("size", dt.int64)]
    b = Builder(name, params, outer.features, lanes=1)
    status, unit, site, index, size = b.params
    lock = b.gep(status, 40)
    with b.loop(0, 1 << 62, 1, may_stop=True) as loop:
        pair = b.fresh()
        b.raw(f"{pair} = cmpxchg ptr {lock.text}, i64 0, i64 1 acquire monotonic")
        loop.again = ~b.op(f"extractvalue {{ i64, i1 }} {pair}, 1", dt.bool_, 1)
    noted = _value(b.load(status, dt.int64, 1))
    before = _value(b.load(b.gep(status, 8), dt.int64, 1))
    with b.when(noted.eq(0) | (unit < before)):
        for k, word in enumerate((b.i64(1), unit, site, index, size)):
            b.store(word, b.gep(status, 8 * k))
    b.raw(f"store atomic i64 0, ptr {lock.text} release, align 8")
    b.ret()
    text = b.module().strip()
    return text.replace("define void", "define internal void", 1).replace("{\nentry", "noinline cold {\nentry", 1)
