"""Calling a program with memory of NumPy on both sides.

What a call of a small function costs is looking things up. So everything is looked up once, for inputs of certain
shapes: the machine code, and where its operands lie. Small inputs are copied into memory that stays where it is, small
results out of it; large ones are read and written where NumPy has them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontends.pytensor.generators import generator_of
from weft.graph.node import kind_of
from weft.graph.placement import USED
from weft.passes.executable import Executable
from weft.program import Program
from weft.runtime.data import numpy_view, to_buffer
from weft.runtime.program import ProgramError

SMALL = 1 << 13
"""Bytes up to which an array is copied: finding out where it lies takes as long."""


def _nothing(addresses: Sequence[int]) -> None:
    """What runs if there is nothing to compute."""


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
        outputs = [(tuple(map(int, k.shape)), k.dtype.np) for k in executable.kinds]
        self._outputs = [np.empty(shape, dtype) for shape, dtype in outputs]
        self._inputs = [np.empty(tuple(map(int, k.shape)), k.dtype.np) for k in self._kinds]
        self._large_in = [i for i, x in enumerate(self._inputs) if x.nbytes > SMALL]
        self._large_out = [i for i, x in enumerate(self._outputs) if x.nbytes > SMALL]
        for i in self._large_in:
            self._inputs[i] = np.empty((0,), self._inputs[i].dtype)
        for i in self._large_out:
            self._outputs[i] = np.empty((0,), self._outputs[i].dtype)
        self._shapes = outputs
        self._places = {source: at for at, source in enumerate(self._sources) if source.__class__ is int}
        self._addresses = [
            self._inputs[source].ctypes.data if source.__class__ is int else source.address for source in self._sources
        ]
        self._first_output = len(self._addresses)
        self._addresses += [x.ctypes.data for x in self._outputs]
        self._addresses += self._words
        self._small_in = [
            (i, x) for i, x in enumerate(self._inputs) if i not in self._large_in and i in self._places
        ]  # fmt: skip
        self._run = _nothing if executable.program is None else executable.program.run
        self._has_large = bool(self._large_in or self._large_out)

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        if not self._simple or USED or not self._lock.acquire(False):
            return self._finish(self._plainly(given))
        try:
            for i, to in self._small_in:
                to[...] = given[i]
            if self._has_large:
                made = self._with_large(given)
            else:
                self._run(self._addresses)
                made = [x.copy() for x in self._outputs]
        except ProgramError as error:
            raise self._executable.failure(error) from None
        finally:
            self._lock.release()
        return self._finish(made) if self._finishes else made

    def _with_large(self, given: Sequence[Any]) -> list[np.ndarray]:
        addresses = self._addresses.copy()
        held = []
        for i in self._large_in:
            if i in self._places:
                x = np.require(given[i], self._kinds[i].dtype.np, ["C", "A"])
                held.append(x)
                addresses[self._places[i]] = x.ctypes.data
        made: list[Any] = [None] * len(self._outputs)
        for i in self._large_out:
            shape, dtype = self._shapes[i]
            made[i] = np.empty(shape, dtype)
            addresses[self._first_output + i] = made[i].ctypes.data
        self._run(addresses)
        return [x.copy() if new is None else new for x, new in zip(self._outputs, made, strict=True)]

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
        """Raise what checks found, cut rows that were not made, and turn keys into generators."""
        note = self._note
        for value, act in zip(made[note.first_act :], note.acts, strict=True):
            act(value)
        results: list[Any] = [*made[: note.results]]
        for at, count in note.partial:
            results[at] = results[at][: int(made[count])]
        for at in note.keys:
            results[at] = generator_of(results[at])
        return results
