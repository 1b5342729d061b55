"""What a call of a program does beside computing: it gives the caller's arrays their new values, takes the value of
those that were donated, and reads and writes the memory of other libraries where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from weft import dtypes, interop
from weft.array import array, wrap
from weft.graph.dims import provably_equal
from weft.graph.node import ArrayType, Node, kind_of
from weft.primitives.base import DATA
from weft.runtime.buffer import foreign
from weft.runtime.data import Buffer, Taken, numpy_view, on_host, to_buffer
from weft.runtime.holders import COUNTED, RESULT, free
from weft.runtime.ndarrays import plain_address
from weft.transforms.capture import Walk
from weft.transforms.replay import Rebuilt
from weft.transforms.updating import Candidate, Updates
from weft.transforms.variant import Effects


class Consumed(Taken):
    """Stands in for the value of an array that was donated, and says so to all that ask for it."""

    __slots__ = ("_input", "_program")

    def __init__(self, program: str, name: str) -> None:
        super().__init__()
        self._program, self._input = program, name

    def refuse(self) -> NoReturn:
        raise ValueError(
            f"[{self._program}] this array was donated to input {self._input!r} of a program, which may have written "
            "its results into that memory: give a copy (array(x)) to keep it, or make the input one that is updated."
        )

    def is_over(self) -> bool:
        return True


class Changes(Effects):
    """The results of a call, with arrays of the caller in the places of their new values."""

    __slots__ = ("consumed",)

    def __init__(self, updates: dict[int, int], consumed: dict[int, Consumed]) -> None:
        super().__init__(Rebuilt(None), [*updates.items()], [], new=True)
        self.consumed = consumed
        self.alone, self.single = self.alone and not consumed, False

    def carry_out(self, made: Sequence[array], walk: Walk | None, numbers: Sequence[Any]) -> list[array]:
        found: list[array] = [*made] if walk is None else self.change(made, walk, numbers)
        return found

    def _change(self, made: Sequence[array], walk: Any, numbers: Sequence[Any]) -> list[array]:
        answer = list(made)
        for at, output in self.overwritten:
            given = walk.arrays[at]
            answer[output] = given._overwrite(made[output])
        for at, gone in self.consumed.items():
            given = walk.arrays[at]
            given._overwrite(wrap(Node(DATA, (), given._node.kind, gone)))
        return answer


class Given(Walk):
    """The arrays of a call, as a compiled function's call has them: nothing else is seen, and nothing else changes."""

    nodes: ClassVar[list[Any]] = []  # type: ignore[misc]
    places: ClassVar[list[Any]] = []  # type: ignore[misc]
    containers: ClassVar[list[Any]] = []  # type: ignore[misc]
    objects: ClassVar[list[Any]] = []  # type: ignore[misc]
    repeats: ClassVar[list[Any]] = []  # type: ignore[misc]
    tuples: ClassVar[dict[int, Any]] = {}  # type: ignore[misc]

    def __init__(self, arrays: list[array]) -> None:
        self.arrays = arrays


def candidates(
    effects: Changes, sources: Sequence[Any], kinds: Sequence[ArrayType], results: Sequence[Node]
) -> Updates:
    """The inputs that a call may overwrite if nothing else holds them. `sources` says where the leaves of the graph
    come from, by number of the input."""
    leaves = {source: leaf for leaf, source in enumerate(sources) if source.__class__ is int}
    found: list[Candidate] = []
    refused: dict[int, str] = {}
    for at, output in effects.overwritten:
        if at not in leaves:
            refused[at] = "the program does not read it"
        elif not _is_alike(results[output].kind, kinds[at]):
            refused[at] = f"its new value is of another kind, {results[output].kind!r}"
        else:
            found.append(Candidate(at, leaves[at], output, replaced=False))
    for at, gone in effects.consumed.items():
        if at not in leaves:
            refused[at] = "the program does not read it"
        else:
            found.append(Candidate(at, leaves[at], 0, replaced=False, gone=gone))
    return Updates(tuple(found), {}, refused)


def _is_alike(new: ArrayType, old: ArrayType) -> bool:
    """Whether a value is of the same kind whatever the sizes are."""
    same = new.dtype is old.dtype and new.ndim == old.ndim
    return same and all(provably_equal(n, m) for n, m in zip(new.shape, old.shape, strict=True))


# ---- memory of other libraries ----


def lent_plainly(values: np.ndarray) -> tuple[ArrayType, Buffer] | None:
    """The kind and the memory of an array of NumPy's that a program can read as it is; None if a closer look is
    needed."""
    dtype = _PLAIN.get(values.dtype)
    address = plain_address()(values)
    if dtype is None or address == 0:
        return None
    return kind_of(values.shape, dtype), Buffer(foreign(values, address, values.nbytes), address)


_PLAIN = {dtype.np: dtype for dtype in dtypes.ALL if not (dtype.is_bool or dtype is dtypes.bfloat16)}


class Lent:
    """Memory of another library, given for an input: read where it lies if it is row-major, else in a copy."""

    __slots__ = ("buffer", "kind", "value", "view")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.view, dtype = interop.memory_of(value)
        self.kind = kind_of(self.view.shape, dtype)
        plain = self.view.flags.c_contiguous and self.view.flags.aligned and self.view.dtype.isnative
        if plain and not (dtype.is_bool and interop.truths(self.view) is not self.view):
            address = self.view.ctypes.data
            self.buffer = Buffer(foreign(self.view, address, self.view.nbytes), address)
        else:
            self.buffer = to_buffer(interop.cast(interop.truths(self.view) if dtype.is_bool else self.view, dtype))

    def as_array(self) -> array:
        """An array of the same memory, for the time of a call."""
        return wrap(Node(DATA, (), self.kind, self.buffer))

    @property
    def is_there(self) -> bool:
        """Whether a program reads this very memory."""
        return self.buffer.storage.foreign

    def is_apart(self, others: Sequence[Lent]) -> bool:
        """Whether no other memory overlaps this, so that writing here changes nothing that is read there."""
        return not any(x is not self and np.may_share_memory(x.view, self.view) for x in others)

    def holds(self, x: array) -> bool:
        """Whether the value of an array is what lies here."""
        buffer = x._node.value
        return self.is_there and buffer.storage is self.buffer.storage and buffer.strides is None

    def write(self, new: array) -> None:
        """Give this memory the value of an array."""
        if not self.holds(new):
            np.copyto(self.view, new._view())


def settle(made: Sequence[array], lent: Sequence[Lent]) -> None:
    """Give arrays that lie in another library's memory memory of their own."""
    theirs = {id(x.buffer.storage) for x in lent}
    for x in made:
        node = x._node
        if id(node.value.storage) in theirs:
            shape = tuple(map(int, node.shape))
            x._overwrite(wrap(Node(DATA, (), node.kind, to_buffer(numpy_view(node.value, shape, node.dtype)))))


def handed_over(results: Sequence[Any], new: Sequence[bool]) -> list[Any]:
    """The results of a call as NumPy arrays that may be written to, but for those that are not `new`: in their own
    memory if nothing else holds that, else in a copy."""
    made = [x for x, is_new in zip(results, new, strict=True) if is_new]
    alone = iter(_held_alone(made))
    return [_as_numpy(x._node, next(alone)) if is_new else x for x, is_new in zip(results, new, strict=True)]


def _held_alone(results: Sequence[array]) -> list[bool]:
    """Whether nothing but its array holds the memory of each result."""
    count = len(results)
    found = free(
        RESULT,
        [*[x._node for x in results], *[x._node.value for x in results], *[x._node.value.storage for x in results]],
        [1] * (3 * count),
        lambda: [
            *[{id(x)} for x in results],
            *[{id(x._node)} for x in results],
            *[{id(x._node.value)} for x in results],
        ],
    )
    parts = zip(found[:count], found[count : 2 * count], found[2 * count :], strict=True)
    return [COUNTED and all(part) for part in parts]


def _as_numpy(node: Node, alone: bool) -> np.ndarray:
    """A computed value as an array of NumPy's: in its own memory if it is alone there."""
    shape = tuple(map(int, node.shape))
    alone = alone and not node.value.storage.foreign
    view = numpy_view(node.value, shape, node.dtype, writable=alone)
    return view if alone else view.copy()


def row_major(buffer: Buffer, kind: ArrayType) -> Buffer:
    """The same elements, in row-major order in the host's memory."""
    shape = tuple(map(int, kind.shape))
    if buffer.strides is None:
        return on_host(buffer, shape, kind.dtype.size)
    return to_buffer(numpy_view(buffer, shape, kind.dtype))
