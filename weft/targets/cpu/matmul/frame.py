"""The frame that every kernel of matrix products stands in: named argument words, batch axes, and loops with tails.

Only the kernels of this package come here. All strides in argument blocks are in bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from weft import dtypes as dt
from weft.codegen.launch import Pointer
from weft.llvm.builder import AnyValue, Value
from weft.records import dataclass
from weft.targets.cpu.kernel import Frame, Params
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements

Word = int | Pointer


@dataclass(frozen=True, slots=True)
class Part:
    """The first `count` lanes of a vector that is not full."""

    count: Value
    mask: Value


class ProductFrame(Frame):
    """A kernel under construction, with a batch table behind its argument words: a count of axes and then, from the
    innermost axis on, an extent and one stride per operand."""

    def __init__(self, name: str, words: Sequence[str], operands: int, more: Params = ()) -> None:
        super().__init__(name, words, more=more)
        self.b.as_written = True
        self._table, self._operands = len(words), operands
        self._axes = self.b.word(self.args, self._table)

    def offsets(self, member: Value) -> tuple[Value, ...]:
        """Where a member of the batch begins in each operand, in bytes."""
        b, operands = self.b, self._operands
        start = b.gep(self.args, 8 * (self._table + 1))
        with b.loop(0, self._axes, 1, member, start, *[b.i64(0)] * operands) as axis:
            rest, entry, *offsets = axis.carried
            rest, at = self.divide(rest, b.word(entry, 0))
            moved = [offset + at * b.word(entry, 1 + i) for i, offset in enumerate(offsets)]
            axis.carry(rest, b.gep(entry, 8 * (1 + operands)), *moved)
        return axis.carried[2:]

    @contextmanager
    def walk(self, start: Value, count: Value, letter: str, axes: int) -> Iterator[tuple[Value, list[Value]]]:
        """For `count` numbers from `start` on: which it is, and its index along each axis. Only the first is divided by
        their sizes."""
        b = self.b
        with b.loop(0, count, 1, *self.indices(start, letter, axes)) as loop:
            yield loop.index, list(loop.carried)
            following = list(loop.carried)
            more = b.i64(1)
            for axis in range(axes - 1, -1, -1):
                index = following[axis] + more
                if axis > 0:
                    over = index.eq(self[f"{letter}{axis}"])
                    index, more = b.choose(over, 0, index), b.cast(over, dt.int64)
                following[axis] = index
            loop.carry(*following)

    # ---- vectors ----

    def leading(self, count: Value, lanes: int) -> Part:
        """The mask is compared as 32 bits, which processors make masks from at once."""
        return Part(count, self.b.iota(dt.int32, lanes) < self.b.cast(count, dt.int32))

    def sweep(self, extent: Value, lanes: int, body: Callable[[Value, Part | None], None]) -> None:
        """`body(index, part)` for every `lanes` elements of [0, extent); the part is None where all of them are there.

        The tail is code of its own, because not every processor has masked loads of every width.
        """
        b = self.b
        whole = extent & -lanes
        with b.loop(0, whole, lanes) as loop:
            body(loop.index, None)
        rest = extent - whole
        with b.when(rest > 0):
            body(whole, self.leading(rest, lanes))

    def load(
        self, kind: Elements, at: Value, lanes: int, part: Part | None = None, stride: Value | None = None
    ) -> AnyValue:
        """`lanes` elements, consecutive or `stride` bytes apart; those outside the part read as 0."""
        if stride is None:
            return el.load(self.b, kind, at, lanes, None if part is None else part.mask)
        b = self.b
        parts = [b.poison(kind.part, lanes) for _ in range(kind.parts)]
        for lane in range(lanes):
            place = b.i64(lane) if part is None else self.least(part.count - 1, lane)
            element = el.flat([el.load(b, kind, b.gep(at, stride * place), 1)])
            parts = [b.insert(vector, one, lane) for vector, one in zip(parts, element, strict=True)]
        if part is not None:
            parts = [b.choose(part.mask, vector, 0) for vector in parts]
        return el.unflat(kind, parts)[0]

    def store(self, kind: Elements, x: AnyValue, at: Value, part: Part | None = None) -> None:
        el.store(self.b, kind, x, at, None if part is None else part.mask)

    def keep(self, part: Part | None, new: AnyValue, old: AnyValue) -> AnyValue:
        """`new` inside the part, `old` outside."""
        return new if part is None else self.b.select(part.mask, new, old)

    def prefetch(self, places: Sequence[Value]) -> None:
        """Ask for cache lines that will be read soon. They need not exist."""
        for at in places:
            self.b.prefetch(at)

    def put_apart(self, x: AnyValue, at: Value, distance: Value | int) -> None:
        """The parts of a complex value go `distance` bytes apart, so that loading them takes no shuffles."""
        for i, piece in enumerate(el.flat([x])):
            self.b.store(piece, self._apart(at, i, distance))

    def get_apart(self, kind: Elements, at: Value, lanes: int, distance: Value | int) -> AnyValue:
        pieces = [self.b.load(self._apart(at, i, distance), kind.part, lanes) for i in range(kind.parts)]
        return el.unflat(kind, el.flat(pieces))[0]

    def _apart(self, at: Value, number: int, distance: Value | int) -> Value:
        return at if number == 0 else self.b.gep(at, distance)


def block(words: Sequence[str], values: Mapping[str, Word], axes: Sequence[tuple[int, ...]]) -> tuple[Word, ...]:
    """The argument block of a kernel with that frame. `axes`: (extent, stride per operand), innermost first."""
    named = tuple(values[word.lstrip("*")] for word in words)
    return (*named, len(axes), *(number for axis in axes for number in axis))
