"""Runs the typed tree of a kernel thread by thread on NumPy scalars: a second reference, which shares nothing with the
first but what describes operands and the operations of numbers.

A thread is a generator, which stops where it meets others: at a barrier, and where a simdgroup does something together.
Of the threads of a threadgroup those that stand first in the program go on together; the others wait for them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from weft.kernels import tree
from weft.kernels.interpreter import Apply, Array, Cast, Grid, OutOfRange, identity
from weft.kernels.syntax import At


def run(program: tree.Program, arrays: Sequence[Array], grid: Grid, apply: Apply, cast: Cast) -> None:
    """All threads; results are written to their arrays."""
    groups = [-(-n // g) for n, g in zip(grid.threads, grid.group, strict=True)]
    with np.errstate(all="ignore"):
        for z, y, x in product(*(range(n) for n in reversed(groups))):
            _Group(program, arrays, grid, (x, y, z), apply, cast).run()


def viewed(elements: np.ndarray, storage: tree.Storage) -> np.ndarray:
    """The same memory as elements of a view's dtype: those that lie wholly in it."""
    whole = elements.nbytes // storage.dtype.size * storage.dtype.size
    return elements.view(np.uint8)[:whole].view(storage.dtype.np)


class _Group:
    def __init__(
        self,
        program: tree.Program,
        arrays: Sequence[Array],
        grid: Grid,
        place: tuple[int, ...],
        apply: Apply,
        cast: Cast,
    ) -> None:
        self.program, self.arrays, self.grid, self.place = program, arrays, grid, place
        self.apply, self.cast = apply, cast
        self.size = tuple(min(g, n - p * g) for n, g, p in zip(grid.threads, grid.group, place, strict=True))
        self.shared: dict[tree.Storage, np.ndarray] = {}
        for x in program.storages:
            if x.space == "threadgroup" and x.of is None:
                self.shared[x] = np.zeros(x.size, x.dtype.np)
            elif x.space == "threadgroup":
                self.shared[x] = viewed(self.shared[program.storages[x.of or 0]], x)

    def run(self) -> None:
        ex, ey, ez = self.size
        threads = [
            _Thread(self, (x, y, z), x + ex * (y + ey * z)) for z, y, x in product(range(ez), range(ey), range(ex))
        ]
        for thread in threads:
            thread.begin()
        while any(thread.waits for thread in threads):
            if not self._step(threads):
                for thread in threads:
                    if thread.waits is not None:
                        thread.advance(None)

    def _step(self, threads: Sequence[_Thread]) -> bool:
        """What the simdgroups that are first in the program do together; False if all threads are at a barrier."""
        here = [thread for thread in threads if isinstance(thread.waits, tree.Together)]
        if not here:
            return False
        first = min(thread.at for thread in here)
        simdgroups: dict[int, list[_Thread]] = {}
        for thread in here:
            if thread.at == first:
                simdgroups.setdefault(thread.index // tree.SIMD_WIDTH, []).append(thread)
        results = []
        for together in simdgroups.values():
            statement = together[0].waits
            assert isinstance(statement, tree.Together)
            found = self._together(statement, {thread.lane: thread.given for thread in together})
            results += [(thread, found[thread.lane]) for thread in together]
        for thread, result in results:
            thread.advance(result)
        return True

    def _together(self, x: tree.Together, given: Mapping[int, Any]) -> dict[int, Any]:
        """What each of the threads that are here gets."""
        dtype = x.value.dtype
        values = {lane: value for lane, (value, _) in given.items()}
        if x.op in ("any", "all"):
            found = any(values.values()) if x.op == "any" else all(values.values())
            return dict.fromkeys(given, np.bool_(found))
        if x.op == "first":
            return dict.fromkeys(given, values[min(given)])
        if x.op.startswith("shuffle"):
            zero = dtype.np.type(0)
            return {
                lane: values.get(_partner(x.op, lane, int(a)), zero)
                if _partner(x.op, lane, int(a)) != lane
                else values[lane]
                for lane, (_, a) in given.items()
            }
        name = {"sum": "add", "product": "mul"}.get(x.op, x.op)
        if x.op.startswith("scan"):
            return self._scan(x, values)
        lanes = [values.get(i, identity(x.op, dtype)) for i in range(tree.SIMD_WIDTH)]
        for step in (1, 2, 4, 8, 16):
            lanes = [self.apply(name, dtype, [lanes[i], lanes[i ^ step]]) for i in range(tree.SIMD_WIDTH)]
        return {lane: lanes[lane] for lane in given}

    def _scan(self, x: tree.Together, values: Mapping[int, Any]) -> dict[int, Any]:
        """Each thread's sum, or product, with those before it, by doubling distances."""
        dtype, product = x.value.dtype, "product" in x.op
        nothing = dtype.np.type(int(product))
        lanes = [values.get(i, nothing) for i in range(tree.SIMD_WIDTH)]
        for step in (1, 2, 4, 8, 16):
            lanes = [
                self.apply("mul" if product else "add", dtype, [lanes[i], lanes[i - step]]) if i >= step else lanes[i]
                for i in range(tree.SIMD_WIDTH)
            ]
        if not x.op.endswith("before"):
            return {lane: lanes[lane] for lane in values}
        return {lane: lanes[lane - 1] if lane else nothing for lane in values}


def _partner(op: str, lane: int, argument: int) -> int:
    """The thread whose value a shuffle gives: its own if there is no such one, for those that move."""
    if op == "shuffle":
        return argument & (tree.SIMD_WIDTH - 1)
    if op == "shuffle_xor":
        return (lane ^ argument) & (tree.SIMD_WIDTH - 1)
    other = lane - argument if op == "shuffle_up" else lane + argument
    return other if 0 <= other < tree.SIMD_WIDTH else lane


Body = Generator[Any, Any, str | None]


class _Thread:
    def __init__(self, group: _Group, place: tuple[int, ...], index: int) -> None:
        self.group, self.place, self.index = group, place, index
        self.lane = index % tree.SIMD_WIDTH
        self.values: dict[tree.Variable, Any] = {}
        self.own: dict[tree.Storage, np.ndarray] = {}
        self.path: list[int] = []
        self.waits: tree.Statement | None = None
        self.given: Any = None
        self.at: tuple[int, ...] = ()
        self.body: Body | None = None

    def begin(self) -> None:
        if self.body is None:
            self.body = self.block(self.group.program.body)
            self.advance(None)

    def advance(self, result: Any) -> None:
        assert self.body is not None
        try:
            self.waits, self.given = self.body.send(result)
            self.at = tuple(self.path)
        except StopIteration:
            self.waits = None

    # ---- statements ----

    def block(self, body: Sequence[tree.Statement], part: int = 0) -> Body:
        self.path.extend((part, 0))
        for k, statement in enumerate(body):
            self.path[-1] = k
            ended = yield from self.statement(statement)
            if ended is not None:
                del self.path[-2:]
                return ended
        del self.path[-2:]
        return None

    def statement(self, x: tree.Statement) -> Body:
        match x:
            case tree.Assign(variable, value):
                self.values[variable] = self.value(value)
            case tree.Clear(storage):
                self.own[storage] = np.zeros(storage.size, storage.dtype.np)
            case tree.Store(storage, index, value, at):
                given = self.value(value)
                elements, place = self.element(storage, index, at)
                elements[place] = given
            case tree.Atomic():
                self.atomic(x)
            case tree.If(test, then, other):
                chosen = bool(self.value(test))
                return (yield from self.block(then if chosen else other, 0 if chosen else 1))
            case tree.Loop():
                return (yield from self.loop(x))
            case tree.Called(body):
                ended = yield from self.block(body)
                return None if ended == "leave" else ended
            case tree.Break() | tree.Continue() | tree.Return() | tree.Leave():
                return type(x).__name__.lower()
            case tree.Barrier():
                yield x, None
            case tree.Together(_, result, value, argument):
                given = self.value(value), None if argument is None else self.value(argument)
                self.values[result] = yield x, given
            case _:
                raise AssertionError(x)
        return None

    def loop(self, x: tree.Loop) -> Body:
        yield from self.block(x.first)
        self.path.append(0)
        ended: str | None = None
        while True:
            yield from self.block(x.before)
            if not self.value(x.test):
                break
            ended = yield from self.block(x.body, 1)
            if ended in ("break", "return", "leave"):
                break
            yield from self.block(x.step, 2)
            self.path[-1] += 1
            ended = None
        self.path.pop()
        return ended if ended in ("return", "leave") else None

    def atomic(self, x: tree.Atomic) -> None:
        given = self.value(x.value)
        elements, place = self.element(x.storage, x.index, x.at)
        old = elements[place]
        if x.result is not None:
            self.values[x.result] = old
        if x.expected is not None:
            same = np.asarray(self.value(x.expected)).tobytes() == np.asarray(old).tobytes()
            elements[place] = given if same else old
            return
        new = given if x.op == "set" else self.group.apply(x.op, x.storage.dtype, [old, given])
        elements[place] = new

    # ---- values ----

    def element(self, storage: tree.Storage, index: tree.Expression, at: At) -> tuple[np.ndarray, int]:
        place = int(self.value(index))
        if storage.space == "thread":
            elements, low = self.own[storage], 0
        elif storage.space == "threadgroup":
            elements, low = self.group.shared[storage], 0
        elif storage.of is None:
            array = self.group.arrays[storage.place]
            elements, low = array.elements, array.first
        else:
            array = self.group.arrays[storage.of]
            elements, low = viewed(array.elements, storage), 0
        if not 0 <= place + low < len(elements):
            raise OutOfRange(storage, place, len(elements), at)
        return elements, place + low

    def value(self, x: tree.Expression) -> Any:
        kind = x.dtype.np.type
        match x:
            case tree.Constant(dtype, value):
                return kind(value)
            case tree.Read(_, variable):
                return self.values[variable]
            case tree.Position(_, name, axis):
                return kind(self.position(name, axis))
            case tree.Size():
                return kind(self.size(x))
            case tree.Load(_, storage, index, at):
                elements, place = self.element(storage, index, at)
                return elements[place]
            case tree.Select(_, test, a, b):
                return self.value(a) if self.value(test) else self.value(b)
            case tree.Cast(dtype, inner, bits):
                return self.group.cast(self.value(inner), dtype, bits)
            case tree.Operation(dtype, name, operands):
                return self.group.apply(name, dtype, [self.value(e) for e in operands])
        raise AssertionError(x)

    def size(self, x: tree.Size) -> int:
        array = self.group.arrays[x.storage.place]
        if x.what == "size":
            return int(np.prod(array.shape, dtype=np.int64))
        assert x.axis is not None
        axis = int(self.value(x.axis))
        if not 0 <= axis < len(array.shape):
            assert x.at is not None
            raise OutOfRange(x.storage, axis, len(array.shape), x.at)
        if x.what == "shape":
            return array.shape[axis]
        if x.what == "rows":
            return int(np.prod(array.shape[axis + 1 :], dtype=np.int64))
        return array.strides[axis]

    def position(self, name: str, axis: int) -> int:
        group = self.group
        match name:
            case "thread_position_in_grid":
                return group.place[axis] * group.grid.group[axis] + self.place[axis]
            case "threads_per_grid":
                return group.grid.threads[axis]
            case "thread_position_in_threadgroup":
                return self.place[axis]
            case "threads_per_threadgroup":
                return group.size[axis]
            case "dispatch_threads_per_threadgroup":
                return group.grid.group[axis]
            case "threadgroup_position_in_grid":
                return group.place[axis]
            case "threadgroups_per_grid":
                return -(-group.grid.threads[axis] // group.grid.group[axis])
            case "thread_index_in_threadgroup":
                return self.index
            case "thread_index_in_simdgroup":
                return self.lane
            case "simdgroup_index_in_threadgroup":
                return self.index // tree.SIMD_WIDTH
            case "simdgroups_per_threadgroup":
                return -(-int(np.prod(group.size)) // tree.SIMD_WIDTH)
        raise AssertionError(name)
