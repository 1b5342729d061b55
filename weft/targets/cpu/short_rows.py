"""Copies of many rows of a few elements: slices of points and colours, joined rows, rows taken by number.

A row is moved as its first and its last elements, a power of two of both, which overlap where they are more than the
row has. So a row takes two loads and two stores whatever its length, no mask is needed, and nothing behind its end is
read or written. Rows of a few elements that are two powers of two go in these, since bytes that are written twice cost
some cycles. Only `moves.py`, `pads.py` and `scatters.py` come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.launch import Launch, Pointer
from weft.codegen.transposes import rows_of
from weft.codegen.words import fields_of
from weft.graph.dims import pinned
from weft.llvm.builder import Builder, Value
from weft.records import dataclass
from weft.targets.axes import Axis, grain, product, stepping, words_of
from weft.targets.cpu.kernel import Frame, NativeKernel

_KINDS: Final = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}
_VECTOR: Final = 64
"""Bytes that are moved together at most."""
_MANY: Final = 16
"""Rows that are worth it."""
_UNIT: Final = 1024
"""Rows of one unit of work."""
_WORK: Final = 1 << 13
"""Rows that are worth a thread."""


@dataclass(frozen=True, slots=True)
class Ends:
    """How a row is moved: as `lanes` elements of `size` bytes from its beginning and, unless these are the `whole` row,
    as many up to its end, or `more` behind them. `step`: how the source lies ("unit", "reverse", or "repeat": one
    element for all)."""

    size: int
    lanes: int
    whole: bool
    step: str = "unit"
    more: int = 0

    def __str__(self) -> str:
        lanes = f"{self.lanes} and {self.more}" if self.more else str(self.lanes)
        return f"{lanes} of {self.size} bytes {self.step}{' whole' if self.whole else ''}"

    def pieces(self, b: Builder, rest: Value) -> list[tuple[Value, int]]:
        """Where each piece of a row begins that is `rest` elements longer than `lanes`, and how many elements it
        has."""
        if self.whole:
            return [(b.i64(0), self.lanes)]
        second = (b.i64(self.lanes), self.more) if self.more else (rest, self.lanes)
        return [(b.i64(0), self.lanes), second]

    def move(self, b: Builder, source: Value, target: Value, rest: Value) -> None:
        """Copy a row, which is `rest` elements longer than `lanes`."""
        pieces = self.pieces(b, rest)
        read = [self.read(b, source, start, lanes) for start, lanes in pieces]
        for x, (start, _) in zip(read, pieces, strict=True):
            b.store(x, b.gep(target, start * self.size))

    def read(self, b: Builder, source: Value, start: Value, lanes: int) -> Value:
        kind, size = _KINDS[self.size], self.size
        if self.step == "repeat":
            return b.splat(b.load(source, kind, 1), lanes)  # type: ignore[arg-type]
        if self.step == "unit":
            return b.load(b.gep(source, start * size), kind, lanes)  # type: ignore[return-value]
        x = b.load(b.gep(source, (start + (lanes - 1)) * -size), kind, lanes)
        return b.reverse(x) if lanes > 1 else x  # type: ignore[arg-type, return-value]


def ends_of(count: int, stride: int, size: int) -> tuple[Ends, int] | None:
    """How rows of `count` elements of `size` bytes are moved whose elements lie `stride` bytes apart, and how many
    elements they are longer than its lanes; None if they are too long or lie otherwise."""
    step = stepping(stride, size)
    if size > 8 and step == "unit":
        count, size = count * (size // 8), 8
    if step == "stride" or size > 8:
        return None
    lanes = _VECTOR // size
    if not 0 < count <= 2 * lanes:
        return None
    while not count >= lanes:
        lanes //= 2
    return Ends(size, lanes, bool(count == lanes), step, more_than(count, lanes)), count - lanes


def more_than(count: int, lanes: int) -> int:
    """What a row of `count` elements, a few, has beside the largest power of two in it, `lanes`, if that is one, too; 0
    if not."""
    number = pinned(count, LANES)
    rest = 0 if number is None else number & (lanes - 1)
    return 0 if rest & (rest - 1) else rest


@dataclass(frozen=True, slots=True)
class ShortRows(NativeKernel):
    """target[i, j] = x[i, j] for `n` rows. Operands: x, target. `turned`: x lies column by column, up to so many of
    them, and neighbouring rows are neighbours in memory; 16 rows at a time lie in scratch in between."""

    title = "short_rows"
    ends: Ends
    outer: int
    turned: int = 0

    def __str__(self) -> str:
        return f"short_rows {self.ends} outer={self.outer}{f' turned by {self.turned}' if self.turned else ''}"

    def fields(self) -> list[str]:
        more = ("last", "column") if self.turned else ()
        return fields_of(self.outer, 2, "rest", *more, blocked=True)

    def scratch(self) -> int:
        return LANES * self.turned * self.ends.size

    def emit(self, frame: Frame) -> None:
        b = frame.b
        elsewhere = b.op(f"icmp ne ptr {frame['p0'].text}, {frame['p1'].text}", dt.bool_, 1)
        with b.when(elsewhere), b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, True)
            at = frame.indices(place)
            x, target = frame.at(0, at), frame.at(1, at)
            if self.turned:
                self._turned(frame, x, target, start, stop)
            else:
                with b.loop(start, stop, 1) as row:
                    source, to = b.gep(x, row.index * frame["i0"]), b.gep(target, row.index * frame["i1"])
                    self.ends.move(b, source, to, frame["rest"])

    def _turned(self, frame: Frame, x: Value, target: Value, start: Value, stop: Value) -> None:
        b, size, kind = frame.b, self.ends.size, _KINDS[self.ends.size]
        together = start + ((stop - start) & -LANES)
        columns = [frame.least(b.i64(lane), frame["last"]) * frame["column"] for lane in range(self.turned)]
        with b.loop(start, together, LANES) as rows:
            source = b.gep(x, rows.index * size)
            read = [b.load(b.gep(source, column), kind, LANES) for column in columns]
            for row, vector in enumerate(rows_of(b, read)):
                b.store(vector, b.gep(frame.scratch, row * self.turned * size))
            for row in range(LANES):
                to = b.gep(target, (rows.index + row) * frame["i1"])
                self.ends.move(b, b.gep(frame.scratch, row * self.turned * size), to, frame["rest"])
        with b.loop(together, stop, 1) as single, b.loop(0, frame["last"] + 1, 1) as column:
            one = b.load(b.gep(b.gep(x, single.index * size), column.index * frame["column"]), kind, 1)
            b.store(one, b.gep(b.gep(target, single.index * frame["i1"]), column.index * size))


@dataclass(frozen=True, slots=True)
class JoinedRows(NativeKernel):
    """Rows of the target are made of a short row of each part, which begins `oK` bytes behind their beginning; `n` of
    them. Operands: the parts, target. `woven`: two parts of rows of so many bytes, a power of two, without gaps, each
    forwards or backwards; `same` says of each whether its row is the same one all the time."""

    title = "joined_rows"
    parts: tuple[Ends, ...]
    outer: int
    woven: int = 0
    same: tuple[bool, ...] = ()

    def __str__(self) -> str:
        woven = f" woven {self.woven} {self.same}" if self.woven else ""
        return f"joined_rows {', '.join(map(str, self.parts))} outer={self.outer}{woven}"

    def fields(self) -> list[str]:
        more = [f"{name}{k}" for k in range(len(self.parts)) for name in ("rest", "o")]
        return fields_of(self.outer, len(self.parts) + 1, *more, blocked=True)

    def emit(self, frame: Frame) -> None:
        b, count = frame.b, len(self.parts)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, start, stop = frame.part(units.index, True)
            at = frame.indices(place)
            sources, target = [frame.at(k, at) for k in range(count)], frame.at(count, at)
            start = self._weave(frame, sources, target, start, stop) if self.woven else start
            with b.loop(start, stop, 1) as row:
                to = b.gep(target, row.index * frame[f"i{count}"])
                for k, (ends, source) in enumerate(zip(self.parts, sources, strict=True)):
                    part = b.gep(source, row.index * frame[f"i{k}"])
                    ends.move(b, part, b.gep(to, frame[f"o{k}"]), frame[f"rest{k}"])

    def _weave(self, frame: Frame, sources: Sequence[Value], target: Value, start: Value, stop: Value) -> Value:
        """Whole vectors of the rows; returns where the rest begins."""
        b, size = frame.b, self.parts[0].size
        lanes, row = _VECTOR // size, self.woven // size
        together = lanes // row
        whole = start + ((stop - start) & -together)
        order = []
        for element in range(2 * lanes):
            part = element // row % 2
            turned = self.parts[part].step == "reverse" and not self.same[part]
            within = row - 1 - element % row if turned else element % row
            order.append(part * lanes + element // (2 * row) * row + within)
        equal = [self._repeated(b, k, source) if self.same[k] else None for k, source in enumerate(sources)]
        with b.loop(start, whole, together) as rows:
            read = []
            for k, source in enumerate(sources):
                back = (row - 1) * size if self.parts[k].step == "reverse" else 0
                at = b.gep(source, rows.index * self.woven - back)
                read.append(equal[k] or b.load(at, _KINDS[size], lanes))
            for half in range(2):
                woven = b.shuffle(*read, order[half * lanes : (half + 1) * lanes])  # type: ignore[arg-type, call-arg]
                b.store(woven, b.gep(target, rows.index * (2 * self.woven) + half * _VECTOR))
        return whole

    def _repeated(self, b: Builder, k: int, source: Value) -> Value:
        """A vector of equal rows."""
        ends = self.parts[k]
        row, lanes = ends.read(b, source, b.i64(0), ends.lanes), _VECTOR // ends.size
        if row.lanes == 1:
            return b.splat(row, lanes)
        return b.shuffle(row, None, [lane % row.lanes for lane in range(lanes)])


def join_rows(
    outer: Sequence[Axis], lasts: Sequence[Axis], size: int, pointers: Sequence[Pointer] = ()
) -> Launch | None:
    """Parts one after the other in every row of the last operand. `outer` are the axes of the rows, `lasts` those of
    the elements of each part; None if there are few rows, or some part is long or lies otherwise. `pointers` are those
    of the operands, if they do not stand in this order."""
    if not outer or not outer[-1].size >= _MANY:
        return None
    *outer, rows = outer
    found = [ends_of(last.size, last.strides[0], size) for last in lasts]
    ends = [each for each in found if each is not None]
    if len(ends) < len(found):
        return None
    widths = [last.size * size for last in lasts]
    even = (
        len(lasts) == 2
        and rows.strides[-1] == 2 * widths[0]
        and all(
            part.whole
            and part.lanes * part.size == width == widths[0] <= max(_KINDS)
            and (stride == 0 or (part.step != "repeat" and stride == width))
            for (part, _), width, stride in zip(ends, widths, rows.strides, strict=False)
        )
    )
    woven, same = (int(widths[0]), tuple(bool(stride == 0) for stride in rows.strides[:2])) if even else (0, ())
    kernel = JoinedRows(tuple(part for part, _ in ends), len(outer), woven, same)
    chunks = -(-rows.size // _UNIT)
    numbers = {"units": product(outer) * chunks, "width": _UNIT, "chunks": chunks}
    for k, (_, rest) in enumerate(ends):
        numbers |= {f"rest{k}": rest, f"o{k}": sum(widths[:k])}
    given = pointers or [Pointer(k) for k in range(len(lasts) + 1)]
    words = words_of(kernel.fields(), given, outer, rows, numbers)
    return Launch(kernel.source(), words, grain(_UNIT, _WORK, numbers["units"]))


def copy_rows(axes: Sequence[Axis], size: int, from_: Pointer, to: Pointer) -> Launch | None:
    """A copy, operand 0 to operand 1, of elements of `size` bytes along these axes; None if that is not what they are
    for. Rows of the target lie apart, or those of the source do."""
    if len(axes) < 2 or axes[-1].strides[1] != size or not axes[-2].size >= _MANY:
        return None
    *outer, rows, row = axes
    turned = 0
    if stepping(row.strides[0], size) == "stride":
        if rows.strides[0] != size or not row.size <= LANES or size > 8:
            return None
        turned = LANES if row.size > 8 else 8 if row.size > 4 else 4
    found = ends_of(row.size, size if turned else row.strides[0], size)
    if found is None:
        return None
    ends, rest = found
    kernel = ShortRows(ends, len(outer), turned)
    chunks = -(-rows.size // _UNIT)
    numbers = {"units": product(outer) * chunks, "width": _UNIT, "chunks": chunks, "rest": rest}
    numbers |= {"last": row.size - 1, "column": row.strides[0]}
    words = words_of(kernel.fields(), [from_, to], outer, rows, numbers)
    return Launch(kernel.source(), words, grain(_UNIT, _WORK, numbers["units"]), kernel.scratch())
