"""Calling a program with memory of NumPy on both sides.

What a call of a small function costs is looking things up. So everything is looked up once, for inputs of certain
dtypes and shapes, and machine code looks at the arrays of a call. Inputs are read where they are if they are row-major.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.frontends.pytensor.generators import generator_of
from weft.graph.node import kind_of
from weft.graph.placement import USED
from weft.passes.executable import Executable
from weft.program import Program
from weft.runtime.array_calls import ArrayCall, Operand, are_possible
from weft.runtime.buffer import ALIGNMENT
from weft.runtime.data import numpy_view, to_buffer
from weft.runtime.ndarrays import plain_address
from weft.runtime.program import ProgramError

SMALL = 1 << 13
"""Bytes up to which where a result lies does not matter."""
MOST_OWN = 1 << 20
"""Bytes of temporaries up to which the calls for some shapes have memory of their own for them."""

Call = Callable[[Sequence[Any]], Sequence[Any]]
MaybeCall = Callable[[Sequence[Any]], Sequence[Any] | None]


def never(given: Sequence[Any]) -> None:
    """A call that serves nothing."""


def _memory(shape: tuple[int, ...], dtype: np.dtype, needed: int) -> Callable[[], np.ndarray]:
    """A function that gives new arrays, with so many bytes behind their addresses: a result may be the beginning of
    what a program writes. Large ones have addresses which are those of cache lines: whole vectors are written to one
    line each then."""
    address_of = plain_address()
    if needed <= SMALL and needed == math.prod(shape) * dtype.itemsize:
        return functools.partial(np.empty, shape, dtype)

    def new() -> np.ndarray:
        room = np.empty(needed + ALIGNMENT, _BYTES)
        return np.ndarray(shape, dtype, room, -address_of(room) % ALIGNMENT)

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
        self.executable, self._words = ready.executable, ready.words
        self._sources: list[Any] = list(ready.sources)
        self._note = notes.of(ready.instance)
        self._given = [(tuple(map(int, k.shape)), k.dtype.np) for k in kinds]
        self._made = [(tuple(map(int, k.shape)), k.dtype.np) for k in self.executable.kinds]
        self._memory = [
            _memory(shape, dtype, nbytes)
            for (shape, dtype), nbytes in zip(
                self._made, self.executable.sizes, strict=False
            )  # one each, if it is simple
        ]
        self.quick: MaybeCall = self._quickly()
        """Takes the inputs, and gives the results; None if they have other shapes, dtypes or layouts."""

    def call(self, given: Sequence[Any]) -> Sequence[Any]:
        """The results for inputs of the shapes that this is for."""
        made = self.quick(given)
        if made is not None:
            return made
        return finished(self._note, self._at_addresses(given) if self._is_simple() else self._plainly(given))

    def _is_simple(self) -> bool:
        """Whether a call is nothing but a run of the program, which Ctrl-C may not leave behind."""
        executable = self.executable
        return executable.simple and not executable.lasting and type(executable).run is Executable.run and not USED

    def _addresses(self) -> list[int]:
        """Those of a run, with 0 for those of inputs and results."""
        operands = [0 if source.__class__ is int else source.address for source in self._sources]
        return [*operands, *[0] * len(self._made), *self._words]

    def _quickly(self) -> MaybeCall:
        """A call that is one of machine code, where there is such a one. All is a variable here, because looking things
        up takes longer than many a program."""
        executable, program = self.executable, self.executable.program
        if program is None or program.counters or program.workspace_bytes > MOST_OWN:
            return never
        if not (self._is_simple() and are_possible()):
            return never
        places = {source: at for at, source in enumerate(self._sources) if source.__class__ is int}
        operands = [Operand(places.get(i), dtype, shape) for i, (shape, dtype) in enumerate(self._given)]
        first = len(self._sources)
        operands += [Operand(first + i, dtype, shape) for i, (shape, dtype) in enumerate(self._made)]
        run, memory = ArrayCall(program, self._addresses(), operands), self._memory
        note, finishes = self._note, not self._note.is_empty

        def quick(given: Sequence[Any]) -> Sequence[Any] | None:
            made = [new() for new in memory]
            try:
                if USED or not run(*given, *made):
                    return None
            except ProgramError as error:
                raise executable.failure(error) from None
            return finished(note, made) if finishes else made

        return quick

    def _at_addresses(self, given: Sequence[Any]) -> list[np.ndarray]:
        """A run over memory of NumPy's."""
        words, address_of, held = self._addresses(), plain_address(), []
        for place, source in enumerate(self._sources):
            if source.__class__ is int:
                x = np.asarray(given[source], self._given[source][1])
                if x.__class__ is not np.ndarray or address_of(x) == 0:
                    x = np.array(x, order="C", subok=False)
                held.append(x)
                words[place] = address_of(x)
        made = [new() for new in self._memory]
        for place, x in enumerate(made, len(self._sources)):
            words[place] = address_of(x)
        try:
            if self.executable.program is not None:
                self.executable.program.run(words)
        except ProgramError as error:
            raise self.executable.failure(error) from None
        return made

    def _plainly(self, given: Sequence[Any]) -> list[np.ndarray]:
        """The same through Weft's own buffers, for results that are views."""
        buffers = [to_buffer(np.asarray(x, dtype)) for x, (_, dtype) in zip(given, self._given, strict=True)]
        operands = [buffers[i] if i.__class__ is int else i for i in self._sources]
        results = self.executable.run(operands, self._words)
        return [
            np.array(numpy_view(made, shape, kind.dtype))
            for made, kind, (shape, _) in zip(results, self.executable.kinds, self._made, strict=True)
        ]


class Computed:
    """A program some of whose sizes depend on data: each call finds out which parts of it run."""

    def __init__(self, program: Program, notes: Notes) -> None:
        self._program, self._notes, self.quick = program, notes, never

    def call(self, given: Sequence[Any]) -> Sequence[Any]:
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
