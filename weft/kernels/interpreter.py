"""Runs the typed tree of a kernel on NumPy arrays, with an element for each thread: the reference.

All threads of some threadgroups take each statement together; those for which it is not meant are left out. A loop goes
on while any of them does. So what threads do together needs no care here: at a barrier all of them have come, and a
simdgroup's values lie in a row. Where the order of threads decides about results, it is one threadgroup at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from weft.dtypes import Dtype
from weft.kernels import tree
from weft.kernels.syntax import At
from weft.records import dataclass

Apply = Callable[[str, Any, Sequence[Any]], Any]
"""apply(name, dtype, operands): an operation of numbers."""
Cast = Callable[[Any, Any, bool], Any]

THREADS: Final = 1 << 16
"""Threads that are run at once, if that many are in whole threadgroups."""
MEMORY: Final = 1 << 27
"""Bytes of the arrays of threads that are run at once."""
_WIDTH: Final = tree.SIMD_WIDTH
_AT: Final = {
    "add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


class OutOfRange(Exception):
    """An index that is outside of its array."""

    def __init__(self, storage: tree.Storage, index: int, size: int, at: At) -> None:
        super().__init__(storage, index, size, at)
        self.storage, self.index, self.size, self.at = storage, index, size, at


@dataclass(slots=True)
class Array:
    """An operand or result: its elements in a row, those of the whole memory if it is strided."""

    elements: np.ndarray
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    first: int = 0


@dataclass(slots=True)
class Grid:
    """How many threads there are, and in what groups."""

    threads: tuple[int, ...]
    group: tuple[int, ...]


def run(program: tree.Program, arrays: Sequence[Array], grid: Grid, apply: Apply, cast: Cast) -> None:
    """All threads; results are written to their arrays."""
    groups = [-(-n // g) for n, g in zip(grid.threads, grid.group, strict=True)]
    total = groups[0] * groups[1] * groups[2]
    own = sum(x.size * x.dtype.size for x in program.storages if x.space == "thread")
    threads = min(THREADS, MEMORY // max(1, own))
    inside = int(np.prod([min(n, g) for n, g in zip(grid.threads, grid.group, strict=True)]))
    step = 1 if _is_ordered(program) else max(1, threads // inside)
    with np.errstate(all="ignore"):
        for first in range(0, total, step):
            _Threads(program, arrays, grid, np.arange(first, min(total, first + step)), apply, cast).run()


def viewed(elements: np.ndarray, storage: tree.Storage) -> np.ndarray:
    """The same memory as elements of a view's dtype: those that lie wholly in it."""
    whole = elements.nbytes // storage.dtype.size * storage.dtype.size
    return elements.view(np.uint8)[:whole].view(storage.dtype.np)


def _is_ordered(program: tree.Program) -> bool:
    """Whether results depend on which threadgroup comes first."""
    return any(isinstance(x, tree.Atomic) and not _commutes(x) for x in tree.walk(*program.body))


def _commutes(x: tree.Atomic) -> bool:
    return x.result is None and x.op in _AT and not x.storage.dtype.is_float


class _Leaving:
    """The threads that have left a loop or a function, and those that begin its next turn."""

    def __init__(self) -> None:
        self.left: list[np.ndarray] = []
        self.next: list[np.ndarray] = []


class _Threads:
    """Some threadgroups. Threads are numbered from 0 on; `here` are always the numbers of those that take part."""

    def __init__(
        self,
        program: tree.Program,
        arrays: Sequence[Array],
        grid: Grid,
        groups: np.ndarray,
        apply: Apply,
        cast: Cast,
    ) -> None:
        self.program, self.arrays, self.grid, self.apply, self.cast = program, arrays, grid, apply, cast
        counts = [-(-n // g) for n, g in zip(grid.threads, grid.group, strict=True)]
        self.counts = counts
        place = [groups % counts[0], groups // counts[0] % counts[1], groups // (counts[0] * counts[1])]
        size = [np.minimum(g, n - p * g) for n, g, p in zip(grid.threads, grid.group, place, strict=True)]
        inside = size[0] * size[1] * size[2]
        self.of = np.repeat(np.arange(len(groups)), inside)
        """The threadgroup of each thread."""
        self.count = len(self.of)
        self.index = np.arange(self.count) - np.repeat(np.cumsum(inside) - inside, inside)
        self.place = [p[self.of] for p in place]
        self.size = [s[self.of] for s in size]
        ex, ey = self.size[0], self.size[1]
        self.at = [self.index % ex, self.index // ex % ey, self.index // (ex * ey)]
        simdgroups = -(-inside // _WIDTH)
        starts = np.cumsum(simdgroups) - simdgroups
        self.simdgroups = int(simdgroups.sum())
        self.per_group = simdgroups
        self.lane = self.index % _WIDTH
        self.row = (starts[self.of] + self.index // _WIDTH) * _WIDTH + self.lane
        """Where the value of each thread lies, if those of a simdgroup lie in a row of 32."""
        self.values: dict[tree.Variable, np.ndarray] = {}
        self.memory: dict[tree.Storage, np.ndarray] = {}
        self.loops: list[_Leaving] = []
        self.calls: list[_Leaving] = []
        for x in program.storages:
            self._allocate(x, len(groups))

    def _allocate(self, x: tree.Storage, groups: int) -> None:
        if x.of is not None and x.space == "threadgroup":
            root = self.memory[self.program.storages[x.of]]
            self.memory[x] = root.view(np.uint8).view(x.dtype.np)
        elif x.of is not None:
            self.memory[x] = viewed(self.arrays[x.of].elements, x)
        elif x.space == "threadgroup":
            room = -(-x.size * x.dtype.size // 8) * 8 // x.dtype.size
            self.memory[x] = np.zeros((groups, room), x.dtype.np)
        elif x.space == "thread":
            self.memory[x] = np.zeros((self.count, x.size), x.dtype.np)
        else:
            self.memory[x] = self.arrays[x.place].elements

    def run(self) -> None:
        self.block(self.program.body, np.arange(self.count))

    # ---- statements ----

    def block(self, body: Sequence[tree.Statement], here: np.ndarray) -> np.ndarray:
        """Statements in order; gives the threads that come to their end."""
        for statement in body:
            if not len(here):
                break
            here = self.statement(statement, here)
        return here

    def statement(self, x: tree.Statement, here: np.ndarray) -> np.ndarray:
        match x:
            case tree.Assign(variable, value):
                self.assign(variable, self.value(value, here), here)
            case tree.Clear(storage):
                self.memory[storage][here] = 0
            case tree.Store(storage, index, value, at):
                given = self.value(value, here)
                elements, place = self.element(storage, index, at, here)
                elements[place] = given
            case tree.Atomic():
                self.atomic(x, here)
            case tree.If(test, then, other):
                chosen = np.broadcast_to(self.value(test, here), here.shape)
                return _joined(self.block(then, here[chosen]), self.block(other, here[~chosen]))
            case tree.Loop():
                return self.loop(x, here)
            case tree.Called(body):
                self.calls.append(_Leaving())
                end = self.block(body, here)
                return _joined(end, *self.calls.pop().left)
            case tree.Break() | tree.Continue():
                (self.loops[-1].left if isinstance(x, tree.Break) else self.loops[-1].next).append(here)
                return here[:0]
            case tree.Leave():
                self.calls[-1].left.append(here)
                return here[:0]
            case tree.Return():
                return here[:0]
            case tree.Together():
                self.assign(x.result, self.together(x, here), here)
            case tree.Barrier():
                pass
            case _:
                raise AssertionError(x)
        return here

    def loop(self, x: tree.Loop, here: np.ndarray) -> np.ndarray:
        here = self.block(x.first, here)
        done: list[np.ndarray] = []
        while len(here):
            here = self.block(x.before, here)
            test = np.broadcast_to(self.value(x.test, here), here.shape)
            done.append(here[~test])
            self.loops.append(_Leaving())
            here = self.block(x.body, here[test])
            frame = self.loops.pop()
            done += frame.left
            here = self.block(x.step, _joined(here, *frame.next))
        return _joined(*done)

    def assign(self, variable: tree.Variable, value: Any, here: np.ndarray) -> None:
        if len(here) == self.count:
            kept = np.empty(self.count, variable.dtype.np)
            kept[...] = value
            self.values[variable] = kept
            return
        if variable not in self.values:
            self.values[variable] = np.zeros(self.count, variable.dtype.np)
        self.values[variable][here] = value

    def atomic(self, x: tree.Atomic, here: np.ndarray) -> None:
        given = np.broadcast_to(self.value(x.value, here), here.shape)
        expected = None if x.expected is None else np.broadcast_to(self.value(x.expected, here), here.shape)
        elements, place = self.element(x.storage, x.index, x.at, here)
        if _commutes(x):
            _AT[x.op].at(elements, place, given)
            return
        found = np.zeros(here.shape, x.storage.dtype.np)
        where = place if isinstance(place, tuple) else (place,)
        for k in range(len(here)):
            one = tuple(p[k] if np.ndim(p) else p for p in where)
            old = elements[one]
            found[k] = old
            if expected is not None:
                elements[one] = given[k] if expected[k].tobytes() == old.tobytes() else old
            else:
                elements[one] = given[k] if x.op == "set" else self.apply(x.op, x.storage.dtype, [old, given[k]])
        if x.result is not None:
            self.assign(x.result, found, here)

    # ---- what threads do together ----

    def together(self, x: tree.Together, here: np.ndarray) -> Any:
        """What each of the threads that are here gets: of those of its simdgroup that are here."""
        dtype, row = x.value.dtype, self.row[here]
        given = np.broadcast_to(self.value(x.value, here), here.shape)
        there = np.zeros(self.simdgroups * _WIDTH, np.bool_)
        there[row] = True
        if x.op in ("any", "all"):
            lanes = self._rows(given, row, x.op == "all", dtype)
            return np.repeat(lanes.any(1) if x.op == "any" else lanes.all(1), _WIDTH)[row]
        if x.op == "first":
            lanes = self._rows(given, row, 0, dtype)
            first = there.reshape(-1, _WIDTH).argmax(1)
            return np.repeat(lanes[np.arange(len(lanes)), first], _WIDTH)[row]
        if x.op.startswith("shuffle"):
            assert x.argument is not None
            lanes = self._rows(given, row, 0, dtype)
            by = np.broadcast_to(self.value(x.argument, here), here.shape)
            return lanes.reshape(-1)[row - self.lane[here] + _partner(x.op, self.lane[here], by)]
        if x.op.startswith("scan"):
            return self._scanned(x, given, row)
        lanes = self._rows(given, row, identity(x.op, dtype), dtype)
        name = {"sum": "add", "product": "mul"}.get(x.op, x.op)
        for step in (1, 2, 4, 8, 16):
            lanes = self.apply(name, dtype, [lanes, lanes[:, np.arange(_WIDTH) ^ step]])
        return lanes.reshape(-1)[row]

    def _rows(self, given: np.ndarray, row: np.ndarray, nothing: Any, dtype: Dtype) -> np.ndarray:
        """The values of each simdgroup in a row; `nothing` for threads that are not here."""
        lanes = np.full(self.simdgroups * _WIDTH, nothing, dtype.np)
        lanes[row] = given
        return lanes.reshape(-1, _WIDTH)

    def _scanned(self, x: tree.Together, given: np.ndarray, row: np.ndarray) -> Any:
        """Each thread's sum, or product, with those before it, by doubling distances."""
        dtype, product = x.value.dtype, "product" in x.op
        nothing = dtype.np.type(int(product))
        lanes = self._rows(given, row, nothing, dtype)
        for step in (1, 2, 4, 8, 16):
            more = self.apply("mul" if product else "add", dtype, [lanes[:, step:], lanes[:, :-step]])
            lanes = np.concatenate([lanes[:, :step], more], axis=1)
        if x.op.endswith("before"):
            lanes = np.concatenate([np.full((len(lanes), 1), nothing, dtype.np), lanes[:, :-1]], axis=1)
        return lanes.reshape(-1)[row]

    # ---- values ----

    def element(self, storage: tree.Storage, index: tree.Expression, at: At, here: np.ndarray) -> tuple[Any, Any]:
        """(the elements of a storage, which of them the threads mean)."""
        elements = self.memory[storage]
        place = self.value(index, here)
        size, low = elements.shape[-1], 0
        if storage.space in ("thread", "threadgroup"):
            size = storage.size
        elif storage.of is None:
            low = self.arrays[storage.place].first
        outside = (place + low < 0) | (place + low >= size)
        if np.any(outside):
            first = int(np.broadcast_to(place, here.shape)[np.broadcast_to(outside, here.shape)][0])
            raise OutOfRange(storage, first, size, at)
        if storage.space == "thread":
            return elements, (here, np.broadcast_to(place, here.shape))
        if storage.space == "threadgroup":
            return elements, (self.of[here], np.broadcast_to(place, here.shape))
        return elements, np.broadcast_to(place + low, here.shape)

    def value(self, x: tree.Expression, here: np.ndarray) -> Any:
        """The value of an expression: an array of the threads that are here, or one number for all of them."""
        kind = x.dtype.np
        match x:
            case tree.Constant(_, value):
                return kind.type(value)
            case tree.Read(_, variable):
                return self.values[variable][here]
            case tree.Position(_, name, axis):
                return np.asarray(self.position(name, axis, here)).astype(kind)
            case tree.Size():
                return np.asarray(self._size(x, here)).astype(kind)
            case tree.Load(_, storage, index, at):
                elements, place = self.element(storage, index, at, here)
                return elements[place]
            case tree.Select(_, test, a, b):
                return np.where(self.value(test, here), self.value(a, here), self.value(b, here))
            case tree.Cast(dtype, inner, bits):
                return self.cast(self.value(inner, here), dtype, bits)
            case tree.Operation(dtype, name, operands):
                return self.apply(name, dtype, [self.value(e, here) for e in operands])
        raise AssertionError(x)

    def _size(self, x: tree.Size, here: np.ndarray) -> Any:
        array = self.arrays[x.storage.place if x.storage.of is None else x.storage.of]
        if x.what == "size":
            return int(np.prod(array.shape, dtype=np.int64))
        assert x.axis is not None
        axis = np.asarray(self.value(x.axis, here))
        outside = (axis < 0) | (axis >= len(array.shape))
        if outside.any():
            assert x.at is not None
            raise OutOfRange(x.storage, int(axis[outside].ravel()[0]), len(array.shape), x.at)
        sizes: Sequence[int] = array.shape if x.what == "shape" else array.strides
        if x.what == "rows":
            sizes = [int(np.prod(array.shape[a + 1 :], dtype=np.int64)) for a in range(len(array.shape))]
        return np.asarray(sizes, np.int64)[axis]

    def position(self, name: str, axis: int, here: np.ndarray) -> Any:
        match name:
            case "thread_position_in_grid":
                return self.place[axis][here] * self.grid.group[axis] + self.at[axis][here]
            case "threads_per_grid":
                return self.grid.threads[axis]
            case "thread_position_in_threadgroup":
                return self.at[axis][here]
            case "threads_per_threadgroup":
                return self.size[axis][here]
            case "dispatch_threads_per_threadgroup":
                return self.grid.group[axis]
            case "threadgroup_position_in_grid":
                return self.place[axis][here]
            case "threadgroups_per_grid":
                return self.counts[axis]
            case "thread_index_in_threadgroup":
                return self.index[here]
            case "thread_index_in_simdgroup":
                return self.lane[here]
            case "simdgroup_index_in_threadgroup":
                return self.index[here] // _WIDTH
            case "simdgroups_per_threadgroup":
                return self.per_group[self.of[here]]
        raise AssertionError(name)


def _joined(*parts: np.ndarray) -> np.ndarray:
    """Threads that come together again, in order."""
    some = [part for part in parts if len(part)]
    if len(some) == 1:
        return some[0]
    return np.sort(np.concatenate(some)) if some else np.zeros(0, np.int64)


def identity(op: str, dtype: Dtype) -> Any:
    """What changes nothing when a simdgroup combines it."""
    kind = dtype.np.type
    if op == "product":
        return kind(1)
    if op in ("min", "max"):
        if dtype.is_float:
            return kind(np.inf if op == "min" else -np.inf)
        return kind(np.iinfo(dtype.np).max if op == "min" else np.iinfo(dtype.np).min)
    if op == "and":
        return kind(np.iinfo(dtype.np).max) if dtype.kind == "u" else kind(-1)
    return kind(0)


def _partner(op: str, lane: np.ndarray, by: np.ndarray) -> np.ndarray:
    """The threads whose values a shuffle gives: their own if there is no such one, for those that move."""
    if op == "shuffle":
        return by & (_WIDTH - 1)
    if op == "shuffle_xor":
        return (lane ^ by) & (_WIDTH - 1)
    other = lane - by if op == "shuffle_up" else lane + by
    return np.where((other >= 0) & (other < _WIDTH), other, lane)
