"""The kernel of a custom kernel: a unit is a threadgroup, of one element of a batch.

How its threads become lanes is one of two ways. `rows`: the lanes of a vector differ in x alone; else they follow each
other in the order of the threadgroup, x first, and each has its own x, y and z. A kernel that knows nothing of
threadgroups gets some of the size that suits the machine (`lowering.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.dtypes import Dtype
from weft.kernels import tree
from weft.llvm.builder import Value
from weft.records import dataclass, field
from weft.targets.cpu.custom.emit import ACTIVE, GONE, TWICE, Emitter, Env, regions
from weft.targets.cpu.custom.levels import Levels, assigned, mentioned
from weft.targets.cpu.custom.memory import Memory
from weft.targets.cpu.custom.values import Affine, AnyLane, identity
from weft.targets.cpu.kernel import Frame, NativeKernel

ALIGNMENT: Final = 64


def lanes_of(program: tree.Program) -> int:
    """A simdgroup is one vector, where there are any."""
    simd = any(
        isinstance(x, tree.Together) or (isinstance(x, tree.Position) and x.name in tree.OF_SIMDGROUPS)
        for x in tree.walk(*program.body)
    )
    return tree.SIMD_WIDTH if simd else LANES


def is_even(program: tree.Program) -> bool:
    """Whether the lanes of a row go one way, and use neighbouring elements or all the same one: vectors may be wide."""
    levels = Levels(program, rows=True)
    if levels.divergent or levels.masked_return or any(x.space == "thread" for x in program.storages):
        return False
    return all(
        levels.level(x.index) is not None and not isinstance(x, tree.Atomic) and x.storage.dtype.size <= 4
        for x in tree.walk(*program.body)
        if isinstance(x, tree.Load | tree.Store | tree.Atomic)
    )


def padded(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Threadgroups(NativeKernel):
    """Runs threadgroups. `whole`: there are only whole vectors. `flat`: threadgroups have one axis. Inputs that are
    `strided` begin anywhere. `alone`: one thread runs all units, so nothing is locked. Of results that are `gathered`,
    which are small and only counted in, each call has a copy of its own, and adds it up at the end. Those `streamed`
    are written past the caches."""

    title = "custom"
    outer = 0
    key: str
    lanes: int
    rows: bool
    flat: bool
    whole: bool
    checked: bool
    lead: int
    strided: tuple[bool, ...]
    alone: bool
    gathered: tuple[int, ...]
    streamed: tuple[int, ...]
    program: tree.Program = field(compare=False)

    def __str__(self) -> str:
        flags = " ".join(name for name in ("rows", "flat", "whole", "checked", "alone") if getattr(self, name))
        results = f"gathered={self.gathered} streamed={self.streamed}"
        return f"custom {self.lanes} lanes {flags} lead={self.lead} strided={self.strided} {results}\n{self.key}"

    def operands(self) -> list[tree.Storage]:
        return self.program.operands

    def fields(self) -> list[str]:
        names = ["units", *(letter + axis for letter in "gtm" for axis in "xyz"), "*status", "vectors"]
        names += [f"copy{k}" for k in self.gathered]
        names += [f"b{a}" for a in range(self.lead)]
        for x in self.operands():
            k = x.place
            names += [f"*p{k}", f"n{k}", *(f"j{k}.{a}" for a in range(self.lead))]
            names += [f"{letter}{k}.{a}" for letter in "dsr" for a in range(x.ndim)]
            if x.space == "input" and self.strided[k]:
                names.append(f"lo{k}")
        return names

    def memory(self) -> tuple[dict[tree.Storage, int], int, dict[tree.Storage, int], int]:
        """(where memory of the threadgroup lies, its bytes, where that of a vector lies, its bytes)."""
        lanes = self.lanes
        shared: dict[tree.Storage, int] = {}
        own: dict[tree.Storage, int] = {}
        ends = [0, 0]
        for x in self.program.storages:
            if x.of is not None:
                continue
            if x.space == "threadgroup":
                shared[x] = ends[0]
                ends[0] += padded(x.size * x.dtype.size)
            elif x.space == "thread":
                own[x] = ends[1]
                ends[1] += padded(x.size * x.dtype.size * lanes)
        return shared, ends[0], own, ends[1]

    def emit(self, frame: Frame) -> None:
        _Writer(self, frame).write()

    def bytes_of(self) -> tuple[int, int]:
        """(bytes of scratch memory of a threadgroup, and of each vector of it besides)."""
        levels = Levels(self.program, self.rows)
        _, shared, _, own = self.memory()
        if not levels.has_barriers:
            return shared + own, 0
        _, slots = _slots(self.program, levels, self.lanes)
        return shared, own + slots + (self.lanes if levels.masked_return else 0)


def _slots(program: tree.Program, levels: Levels, lanes: int) -> tuple[dict[tree.Variable, int], int]:
    """Where the variables lie that live longer than a region, and the bytes of all of them."""
    places: dict[tree.Variable, int] = {}
    end = 0
    seen: dict[tree.Variable, int] = {}
    for number, region in enumerate(regions(levels, program.body)):
        begun = {x.variable for x in region if isinstance(x, tree.Assign) and x.first}
        inside = {x.variable for x in tree.walk(*region) if isinstance(x, tree.Assign) and x.first}
        for variable in sorted(mentioned(*region), key=lambda v: v.number):
            if levels.variables[variable] == 0 and variable not in inside | levels.apart:
                continue  # the threadgroup has it
            if variable in (begun | inside) and seen.get(variable, number) == number:
                seen[variable] = number
                continue
            if variable not in places:
                size = 8 if levels.variables[variable] is not None else lanes * max(variable.dtype.size, 1)
                places[variable] = end
                end += padded(size)
    return places, end


def is_written_once(program: tree.Program, x: tree.Storage) -> bool:
    """Whether a kernel does nothing with a result but to write it, outside of loops."""
    if any(view.of == x.place for view in program.views):
        return False
    todo: list[tuple[object, bool]] = [(y, False) for y in program.body]
    while todo:
        y, again = todo.pop()
        used = isinstance(y, tree.Load | tree.Store | tree.Atomic) and y.storage is x
        if used and (again or not isinstance(y, tree.Store)):
            return False
        todo += [(z, again or isinstance(y, tree.Loop)) for z in tree.children(y)]
    return True


def gathering(program: tree.Program, x: tree.Storage) -> str:
    """The one operation by which a kernel uses a result of integers, and nothing comes of what was there; "" if it does
    more with it."""
    found: set[str] = set()
    if any(view.of == x.place for view in program.views):
        return ""
    for y in tree.walk(*program.body):
        if isinstance(y, tree.Atomic) and y.storage is x:
            found.add(y.op if y.result is None else "")
        elif isinstance(y, tree.Load | tree.Store) and y.storage is x:
            return ""
    op = found.pop() if len(found) == 1 else ""
    return op if op in ("add", "min", "max", "and", "or", "xor") and not x.dtype.is_float else ""


class _Writer:
    """Writes one kernel."""

    def __init__(self, kernel: Threadgroups, frame: Frame) -> None:
        self.kernel, self.frame, self.b = kernel, frame, frame.b
        self.lanes = kernel.lanes
        self.levels = Levels(kernel.program, kernel.rows)
        self.shared, self.shared_bytes, self.own, self.own_bytes = kernel.memory()
        self.memory = Memory(frame, kernel.program, self.lanes, kernel.checked, self.own, kernel.alone)
        self.e = Emitter(frame, kernel.program, self.levels, self.memory, self.lanes)
        self.slots: dict[tree.Variable, int] = {}
        self.slot_bytes = 0
        if self.levels.has_barriers:
            self.slots, self.slot_bytes = _slots(kernel.program, self.levels, self.lanes)
        self.bits = self.lanes.bit_length() - 1

    def write(self) -> None:
        frame, b = self.frame, self.b
        self.memory.streamed = frozenset(x for x in self.kernel.operands() if x.place in self.kernel.streamed)
        self._begin_gathered()
        with b.loop(frame.begin, frame.end, 1) as units:
            self._place(units.index)
            self._pointers()
            end = self.e.joins("endunit")
            if self.levels.has_barriers:
                self._barriers(end.label)
            else:
                self._region(self.kernel.program.body, {})
                b.raw(f"br label %{end.label}")
                b.start_block(end.label)
        self._end_gathered()
        self.memory.finish()

    # ---- results that are added up ----

    def _gathered(self) -> Iterator[tuple[tree.Storage, str, Value]]:
        """(result, operation, where its copy lies)."""
        for x in self.kernel.operands():
            if x.place in self.kernel.gathered:
                yield x, gathering(self.kernel.program, x), self.b.gep(self.frame.scratch, self.frame[f"copy{x.place}"])

    def _begin_gathered(self) -> None:
        b = self.b
        self.memory.gathered = frozenset(x for x, _, _ in self._gathered())
        self.copies: dict[tree.Storage, Value] = {}
        for x, op, at in self._gathered():
            self.copies[x] = at
            nothing = identity(b, op, x.dtype, 1)
            with b.loop(0, self.frame[f"n{x.place}"], 1) as loop:
                b.store(nothing, b.gep(at, loop.index * x.dtype.size))

    def _end_gathered(self) -> None:
        b = self.b
        for x, op, _ in self._gathered():
            with b.loop(0, self.frame[f"n{x.place}"], 1) as loop:
                offset = loop.index * x.dtype.size
                found = b.load(b.gep(self.copies[x], offset), x.dtype, 1)
                assert isinstance(found, Value)
                with b.when(found.ne(identity(b, op, x.dtype, 1))):
                    self.memory.locked(op, b.gep(self.frame[f"p{x.place}"], offset), found)

    # ---- where a threadgroup stands ----

    def _place(self, unit: Value) -> None:
        frame, b = self.frame, self.b
        self.memory.unit = unit
        rest = unit
        self.group: list[Value] = []
        for axis in "xyz":
            if self.kernel.flat and self.kernel.lead == 0 and axis == "z":
                self.group.append(rest)
                continue
            rest, place = frame.divide(rest, frame[f"m{axis}"])
            self.group.append(place)
        self.batch: list[Value] = []
        for a in reversed(range(self.kernel.lead)):
            rest, place = frame.divide(rest, frame[f"b{a}"])
            self.batch.insert(0, place)
        self.corner = [place * frame[f"t{axis}"] for place, axis in zip(self.group, "xyz", strict=True)]
        self.size = [
            b.intrinsic("smin", frame[f"t{axis}"], frame[f"g{axis}"] - at)
            for at, axis in zip(self.corner, "xyz", strict=True)
        ]
        self.total = self.size[0] if self.kernel.flat else self.size[0] * self.size[1] * self.size[2]

    def _pointers(self) -> None:
        frame, b = self.frame, self.b
        for x in self.kernel.operands():
            at = frame[f"p{x.place}"]
            for a, place in enumerate(self.batch):
                at = b.gep(at, place * frame[f"j{x.place}.{a}"])
            self.memory.pointers[x] = self.copies.get(x, at)
            if x.space == "input" and x.ndim == 0:
                number = b.load(at, x.dtype, 1)
                assert isinstance(number, Value)
                self.memory.numbers[x] = number
        for x, offset in self.shared.items():
            self.memory.pointers[x] = b.gep(frame.scratch, offset)
        for x in self.kernel.program.views:
            assert x.of is not None
            self.memory.pointers[x] = self.memory.pointers[self.kernel.program.storages[x.of]]
        if self.shared:
            b.call_void("llvm.memset.p0.i64", frame.scratch, "i8 0", b.i64(self.shared_bytes), "i1 false")
        self._vector_memory(None)

    def _vector_memory(self, vector: Value | None) -> None:
        """Where the memory of a vector's threads begins."""
        b = self.b
        start = b.gep(self.frame.scratch, self.shared_bytes) if self.own or self.slots else self.frame.scratch
        if vector is not None and (self.own or self.slots):
            start = b.gep(start, vector * (self.own_bytes + self.slot_bytes))
        for x, offset in self.own.items():
            self.memory.pointers[x] = b.gep(start, offset)
        self.slot_start = b.gep(start, self.own_bytes) if self.slots else start

    # ---- regions ----

    def _barriers(self, end: str) -> None:
        e, b = self.e, self.b
        if self.levels.masked_return:
            nbytes = self.frame["vectors"] * self.lanes
            b.call_void("llvm.memset.p0.i64", self._gone(b.i64(0)), "i8 0", nbytes, "i1 false")
        e.grouped, e.region, e.env = True, self._group_region, {ACTIVE: None}
        origin = (b.i64(0), b.i64(0), b.i64(0))
        e.positions = lambda name, axis, dtype: self._position(name, axis, dtype, origin, b.i64(0))
        e.returns = e.joins("done")
        e.block(self.kernel.program.body)
        if e.env is not None:
            e.returns.jump()
        e.returns.arrive()
        b.raw(f"br label %{end}")
        b.start_block(end)

    def _group_region(self, body: Sequence[tree.Statement]) -> None:
        e = self.e
        outer = e.env
        assert outer is not None
        returns, e.returns, e.grouped = e.returns, None, False
        loops, calls, e.loops, e.calls = e.loops, e.calls, [], []
        self._region(body, outer)
        e.env, e.returns, e.grouped, e.loops, e.calls = dict(outer), returns, True, loops, calls

    def _region(self, body: Sequence[tree.Statement], outer: Env) -> None:
        """Statements for all threads of the threadgroup, vector by vector."""
        b, kernel = self.b, self.kernel
        if kernel.rows and not kernel.flat:
            self._rows(body, outer)
            return
        if kernel.whole:
            with b.loop(0, self.total >> self.bits, 1) as loop:
                self._vector(body, outer, loop.index, self._along(loop.index), None)
            return
        if sum(1 for _ in tree.walk(*body)) > TWICE:
            with b.loop(0, (self.total + (self.lanes - 1)) >> self.bits, 1) as loop:
                mask = self._mask(self.total - (loop.index << self.bits))
                self._vector(body, outer, loop.index, self._along(loop.index), mask)
            return
        full = self.total >> self.bits
        with b.loop(0, full, 1) as loop:
            self._vector(body, outer, loop.index, self._along(loop.index), None)
        rest = self.total & (self.lanes - 1)
        with b.when(rest > 0):
            self._vector(body, outer, full, self._along(full), self._mask(rest))

    def _once(
        self, body: Sequence[tree.Statement], outer: Env, along: tuple[AnyLane | Value, ...]
    ) -> tuple[Env, Sequence[tree.Statement]]:
        """(values that all vectors of a row share, computed here, and the statements that are left): variables at the
        beginning of the kernel that are the same for all threads, read from inputs only."""
        e = self.e
        if self.levels.has_barriers:
            return outer, body
        e.env = {**outer, ACTIVE: None}
        e.positions = lambda name, axis, dtype: self._position(name, axis, dtype, along, self.b.i64(0))
        left: list[tree.Statement] = []
        changed = assigned(*[x for x in body if not (isinstance(x, tree.Assign) and x.first)])
        for k, x in enumerate(body):
            if not isinstance(x, tree.Assign):
                left += body[k:]
                break
            alone = x.first and not x.empty and self.levels.variables[x.variable] == 0 and x.variable not in changed
            if alone and all(self._is_shared(y, e.env) for y in tree.walk(x.value)):
                e.statement(x)
            else:
                left.append(x)
        known = {key: value for key, value in e.env.items() if key != ACTIVE}
        return known, left

    @staticmethod
    def _is_shared(x: object, env: Env) -> bool:
        if isinstance(x, tree.Read):
            return x.variable in env
        return not isinstance(x, tree.Load) or x.storage.space == "input"

    def _rows(self, every: Sequence[tree.Statement], outer: Env) -> None:
        """The same row by row."""
        b, width = self.b, self.size[0]
        across = (width + (self.lanes - 1)) >> self.bits
        full = width >> self.bits
        with b.loop(0, self.size[1] * self.size[2], 1) as rows:
            z, y = self.frame.divide(rows.index, self.size[1])
            first = rows.index * across
            known, body = self._once(every, outer, (b.i64(0), y, z))

            def one(column: Value, mask: Value | None) -> None:
                self._vector(body, known, first + column, (column << self.bits, y, z), mask)

            if self.kernel.whole:
                with b.loop(0, full, 1) as loop:
                    one(loop.index, None)
            elif sum(1 for _ in tree.walk(*body)) > TWICE:
                with b.loop(0, across, 1) as loop:
                    one(loop.index, self._mask(width - (loop.index << self.bits)))
            else:
                with b.loop(0, full, 1) as loop:
                    one(loop.index, None)
                rest = width & (self.lanes - 1)
                with b.when(rest > 0):
                    one(full, self._mask(rest))

    def _mask(self, left: Value) -> Value:
        """The lanes before number `left`."""
        b = self.b
        few = b.cast(b.intrinsic("smin", left, b.i64(self.lanes)), dt.int32)
        return b.iota(dt.int32, self.lanes) < b.splat(few, self.lanes)

    def _along(self, vector: Value) -> tuple[AnyLane | Value, ...]:
        """x, y and z of a vector's threads in their threadgroup (x of the first, if lanes differ in x alone)."""
        b, start = self.b, vector << self.bits
        if self.kernel.rows:
            return start, b.i64(0), b.i64(0)
        row, x = self.frame.divide(start, self.size[0])
        z, y = self.frame.divide(row, self.size[1])
        lanes = b.splat(x, self.lanes) + b.iota(dt.int64, self.lanes)
        more, x_of = self._carried(lanes, self.size[0])
        more, y_of = self._carried(b.splat(y, self.lanes) + more, self.size[1])
        return x_of, y_of, b.splat(z, self.lanes) + more

    def _carried(self, places: Value, size: Value) -> tuple[Value, Value]:
        """(how often a size fits, what is left) for places before size + lanes: without a division where it fits at
        most once."""
        b = self.b
        small = size < self.lanes
        few = b.cast(b.choose(small, size, self.lanes), dt.float32)
        ratio = b.cast(b.cast(b.cast(places, dt.int32), dt.float32) / b.splat(few, self.lanes), dt.int64)
        once = b.cast(places >= b.splat(size, self.lanes), dt.int64)
        count = b.choose(b.splat(small, self.lanes), ratio, once)
        return count, places - count * b.splat(size, self.lanes)

    def _vector(
        self,
        body: Sequence[tree.Statement],
        outer: Env,
        vector: Value,
        along: tuple[AnyLane | Value, ...],
        mask: Value | None,
    ) -> None:
        """Statements for the threads of one vector."""
        e = self.e
        e.positions = lambda name, axis, dtype: self._position(name, axis, dtype, along, vector)
        e.env = {**outer, ACTIVE: mask}
        if self.levels.has_barriers:
            self._vector_memory(vector)
            self._take(body, vector)
            e.block(body)
            assert e.env is not None
            self._leave(body, vector)
            return
        if self.levels.masked_return:
            e.env[GONE] = e.none()
        e.returns = e.joins("endvector")
        e.block(body)
        if e.env is not None:
            e.returns.jump()
        e.returns.arrive()

    def _take(self, body: Sequence[tree.Statement], vector: Value) -> None:
        """What this region needs of earlier ones."""
        b, e = self.b, self.e
        assert e.env is not None
        if self.levels.masked_return:
            gone = b.load(self._gone(vector), dt.bool_, self.lanes)
            assert isinstance(gone, Value)
            e.env[GONE] = gone
            e.active = ~gone if e.active is None else e.active & ~gone
        begun = {x.variable for x in body if isinstance(x, tree.Assign) and x.first}
        for variable in sorted(mentioned(*body), key=lambda v: v.number):
            if variable not in self.slots or variable in begun:
                continue
            level, at = self.levels.variables[variable], b.gep(self.slot_start, self.slots[variable])
            found = b.load(at, variable.dtype, self.lanes if level is None else 1)
            assert isinstance(found, Value)
            e.env[variable] = Affine(found, level) if level else found

    def _leave(self, body: Sequence[tree.Statement], vector: Value) -> None:
        """What later regions need of this one."""
        b, e = self.b, self.e
        assert e.env is not None
        if self.levels.masked_return:
            b.store(e.env[GONE], self._gone(vector))
        for variable in sorted(mentioned(*body), key=lambda v: v.number):
            if variable not in self.slots or variable not in e.env:
                continue
            value = e.env[variable]
            b.store(value.base if isinstance(value, Affine) else value, b.gep(self.slot_start, self.slots[variable]))

    def _gone(self, vector: Value) -> Value:
        """Where it is kept which threads of a vector have returned: behind all else."""
        b = self.b
        behind = self.frame["vectors"] * (self.own_bytes + self.slot_bytes) + self.shared_bytes
        return b.gep(b.gep(self.frame.scratch, behind), vector * self.lanes)

    # ---- positions ----

    def _position(
        self, name: str, axis: int, dtype: Dtype, along: tuple[AnyLane | Value, ...], vector: Value
    ) -> AnyLane:
        b, frame, rows = self.b, self.frame, self.kernel.rows
        letter = "xyz"[axis]
        found: Value
        match name:
            case "thread_position_in_threadgroup" | "thread_position_in_grid":
                place = along[axis]
                assert isinstance(place, Value)
                if name == "thread_position_in_grid":
                    place = place + b.splat(self.corner[axis], place.lanes)
                place = b.cast(place, dtype)
                return Affine(place, 1) if rows and axis == 0 else place
            case "threads_per_grid":
                found = frame[f"g{letter}"]
            case "threads_per_threadgroup":
                found = self.size[axis]
            case "dispatch_threads_per_threadgroup":
                found = frame[f"t{letter}"]
            case "threadgroup_position_in_grid":
                found = self.group[axis]
            case "threadgroups_per_grid":
                found = frame[f"m{letter}"]
            case "thread_index_in_threadgroup":
                return Affine(b.cast(self._index(along, vector), dtype), 1)
            case "thread_index_in_simdgroup":
                return Affine(b.const(dtype, 0, 1), 1)
            case "simdgroup_index_in_threadgroup":
                found = self._index(along, vector) >> self.bits
            case "simdgroups_per_threadgroup":
                found = (self.total + (self.lanes - 1)) >> self.bits
            case _:
                raise AssertionError(name)
        return b.cast(found, dtype)

    def _index(self, along: tuple[AnyLane | Value, ...], vector: Value) -> Value:
        """The number of a vector's first thread in its threadgroup."""
        if not self.kernel.rows or self.kernel.flat:
            return vector << self.bits
        x, y, z = along
        assert isinstance(x, Value)
        assert isinstance(y, Value)
        assert isinstance(z, Value)
        return (z * self.size[1] + y) * self.size[0] + x
