"""Calling a program with memory of NumPy on both sides.

What a call of a small function costs is looking things up. So everything is looked up once, for inputs of certain
shapes: the machine code, and where its operands lie. Small inputs are copied into memory that stays where it is, small
results out of it; large ones are read and written where NumPy has them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontends.pytensor.generators import generator_of
from weft.graph.node import kind_of
from weft.graph.placement import USED
from weft.passes.executable import Executable
from weft.program import Program
from weft.runtime.buffer import ALIGNMENT
from weft.runtime.data import numpy_view, to_buffer
from weft.runtime.ndarrays import plain_address
from weft.runtime.program import ProgramError

SMALL = 1 << 13
"""Bytes up to which an array is copied: finding out where it lies takes as long."""


def _nothing(addresses: Sequence[int]) -> None:
    """What runs if there is nothing to compute."""


def _is_small(shape: tuple[int, ...], dtype: np.dtype) -> bool:
    return math.prod(shape) * dtype.itemsize <= SMALL


def _memory(shape: tuple[int, ...], dtype: np.dtype) -> Callable[[], tuple[np.ndarray, int]]:
    """A function that gives new arrays with their addresses, which are those of cache lines: whole vectors are written
    to one line each then."""
    nbytes, address_of = math.prod(shape) * dtype.itemsize, plain_address()

    def new() -> tuple[np.ndarray, int]:
        room = np.empty(nbytes + ALIGNMENT, _BYTES)
        address = address_of(room)
        offset = -address % ALIGNMENT
        return np.ndarray(shape, dtype, room, offset), address + offset

    return new


_BYTES = np.dtype(np.uint8)


class Note:
    """What is done with the results of a program: how many of them are the caller's, which have fewer rows than they
    have room for (and where their number stands), which are keys, and what is done with those behind all these."""

    def __init__(
        self,
        results: int,
        partial: Sequence[tuple[int, int]],
        keys: Sequence[int],
        acts: Sequence[Callable[[Any], None]],
    ) -> None:
        self.results, self.partial, self.keys, self.acts = results, partial, keys, acts
        self.first_act = results + len(partial)
        self.is_empty = not (partial or keys or acts)


class Notes:
    """One for each graph of a program."""

    def __init__(self) -> None:
        self.last: Note | None = None
        self._of: dict[Any, Note] = {}

    def of(self, instance: Any) -> Note:
        if instance not in self._of:
            assert self.last is not None
            self._of[instance] = self.last
        return self._of[instance]


class Prepared:
    """A program for inputs of certain shapes."""

    def __init__(self, program: Program, shapes: Sequence[tuple[int, ...]], notes: Notes) -> None:
        kinds = [kind_of(shape, wanted.dtype) for shape, wanted in zip(shapes, program.inputs, strict=True)]
        ready = program.ready(kinds)
        self._executable, self._words = ready.executable, ready.words
        self._sources: list[Any] = list(ready.sources)
        self._kinds = kinds
        self._note = notes.of(ready.instance)
        self._finishes = not self._note.is_empty
        self._lock = threading.Lock()
        self._lay_out()

    def _lay_out(self) -> None:
        """Where operands and results lie in a call that copies."""
        executable = self._executable
        self._simple = executable.simple and type(executable) is Executable
        self._shapes = [(tuple(map(int, k.shape)), k.dtype.np) for k in executable.kinds]
        shapes = [(tuple(map(int, k.shape)), k.dtype.np) for k in self._kinds]
        places = {source: at for at, source in enumerate(self._sources) if source.__class__ is int}
        inputs = [np.empty(shape if _is_small(shape, dtype) else (0,), dtype) for shape, dtype in shapes]
        self._outputs = [np.empty(shape if _is_small(shape, dtype) else (0,), dtype) for shape, dtype in self._shapes]
        self._addresses = [
            inputs[source].ctypes.data if source.__class__ is int else source.address for source in self._sources
        ]
        first = len(self._addresses)
        self._addresses += [x.ctypes.data for x in self._outputs]
        self._addresses += self._words
        small = [i for i in places if _is_small(*shapes[i])]
        self._small_in = [(i, inputs[i]) for i in small]
        self._large_in = [(i, places[i], shapes[i][1]) for i in places if i not in small]
        self._large_out = [
            (i, first + i, _memory(shape, dtype)) for i, (shape, dtype) in enumerate(self._shapes)
            if not _is_small(shape, dtype)
        ]  # fmt: skip
        program = executable.program
        self._run: Any = _nothing if program is None else program.run
        self._run_again: Callable[[], None] | None = None
        """The same for the addresses of small arrays, if there are no others."""
        if not (self._large_in or self._large_out or program is None or not self._simple):
            self._run_again = program.bound(self._addresses)

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        if not self._simple or USED or not self._lock.acquire(False):
            return self._finish(self._plainly(given))
        try:
            for i, to in self._small_in:
                to[...] = given[i]
            if self._run_again is None:
                made = self._with_large(given)
            else:
                self._run_again()
                made = [x.copy() for x in self._outputs]
        except ProgramError as error:
            raise self._executable.failure(error) from None
        finally:
            self._lock.release()
        return self._finish(made) if self._finishes else made

    def _with_large(self, given: Sequence[Any]) -> list[np.ndarray]:
        addresses, address_of = self._addresses.copy(), plain_address()
        held = []
        for i, place, dtype in self._large_in:
            x = given[i]
            address = address_of(x) if x.__class__ is np.ndarray and x.dtype is dtype else 0
            if address == 0:
                x = np.require(x, dtype, ["C", "A"])
                held.append(x)
                address = x.ctypes.data
            addresses[place] = address
        large = {}
        for i, place, memory in self._large_out:
            large[i], addresses[place] = memory()
        self._run(addresses)
        return [large[i] if i in large else x.copy() for i, x in enumerate(self._outputs)]

    def _plainly(self, given: Sequence[Any]) -> list[np.ndarray]:
        """The same through Weft's own buffers, for results that are views and for calls at the same time."""
        buffers = [to_buffer(np.asarray(x, kind.dtype.np)) for x, kind in zip(given, self._kinds, strict=True)]
        operands = [buffers[i] if i.__class__ is int else i for i in self._sources]
        results = self._executable.run(operands, self._words)
        return [
            np.array(numpy_view(made, shape, kind.dtype))
            for made, kind, (shape, _) in zip(results, self._executable.kinds, self._shapes, strict=True)
        ]

    def _finish(self, made: list[np.ndarray]) -> Sequence[Any]:
        return finished(self._note, made)


class Computed:
    """A program some of whose sizes depend on data: each call finds out which parts of it run."""

    def __init__(self, program: Program, notes: Notes) -> None:
        self._program, self._notes = program, notes

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        wanted = [x.dtype.np for x in self._program.inputs]
        ready, made = self._program.run_known([np.asarray(x, dtype) for x, dtype in zip(given, wanted, strict=True)])
        return finished(self._notes.of(ready.instance), [np.array(x) for x in made])


def finished(note: Note, made: list[np.ndarray]) -> Sequence[Any]:
    """Raise what checks found, cut rows that were not made, and turn keys into generators."""
    for value, act in zip(made[note.first_act :], note.acts, strict=True):
        act(value)
    results: list[Any] = [*made[: note.results]]
    for at, count in note.partial:
        results[at] = results[at][: int(made[count])]
    for at in note.keys:
        results[at] = generator_of(results[at])
    return results
