"""Sorts of many rows of two to eight elements. Lanes go across rows: a vector holds one element of each of 16 rows, and
columns are exchanged with their neighbours until they are in order, which takes no shuffle. Equal elements never change
places, so the sort is stable whatever the words are that are compared. Only `sorting.py` and `places.py` come here, and
`scan.py`, whose rows are written in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.launch import Launch, Pointer
from weft.codegen.transposes import columns_of, joined, rows_of
from weft.codegen.words import fields_of
from weft.config import config
from weft.dtypes import Dtype
from weft.llvm.builder import Builder, Value
from weft.records import dataclass
from weft.targets.axes import Axis, words_of
from weft.targets.cpu.forms.flat import picked
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.moves import bits_of, weigh
from weft.targets.cpu.networks import Record, from_key, order_key, sign_of

_LONGEST: Final = 8
"""Elements of a row: the exchanges grow with the square of it."""
_MANY: Final = 64
"""Rows that are worth it."""
_UNIT: Final = 1024
"""Rows of one unit of work."""
_COST: Final = 4
"""What sorting costs beside copying."""
_SIGNED: Final = {1: dt.int8, 2: dt.int16, 4: dt.int32, 8: dt.int64}


@dataclass(frozen=True, slots=True)
class ShortSorts(NativeKernel):
    """`n` rows of `columns` elements, sorted, or the `places` that sort them. Operands: x, whose rows may lie apart
    unless they are `dense`, and the result, whose rows lie one after the other."""

    title = "sort"
    dtype: Dtype
    places: bool
    columns: int
    dense: bool
    outer: ClassVar[int] = 0  # type: ignore[misc]

    def __str__(self) -> str:
        what = f"{self.dtype.name}{' places' if self.places else ''}{' dense' if self.dense else ''}"
        return f"sort rows of {self.columns} {what} in registers of {machine(config.cpu).vector} bytes"

    def fields(self) -> list[str]:
        return fields_of(0, 2, blocked=True)

    def emit(self, frame: Frame) -> None:
        b = frame.b
        with b.loop(frame.begin, frame.end, 1) as units:
            _, start, stop = frame.part(units.index, True)
            with b.loop(start, stop, LANES) as group:
                # The last rows may have been among those before them: what is written is the same.
                first = frame.least(group.index, frame["n"] - LANES)
                x, out = (b.gep(frame[f"p{k}"], first * frame[f"i{k}"]) for k in range(2))
                records = [self._record(b, k, column) for k, column in enumerate(self._columns(frame, x))]
                self._sort(b, records)
                store_rows(b, [self._element(b, record) for record in records], out)

    # ---- columns ----

    def _columns(self, frame: Frame, x: Value) -> list[Value]:
        """One vector for each element of a row, of 16 rows."""
        b, kind, count = frame.b, bits_of(self.dtype), self.columns
        if self.dense and (_is_even(count) or _shuffles(kind.size)):
            read = [b.load(b.gep(x, k * LANES * kind.size), kind, LANES) for k in range(count)]
            if not _is_even(count):
                loads = [k * LANES for k in range(count)]
                places = [[row * count + k for row in range(LANES)] for k in range(count)]
                return [picked(b, read, loads, at) for at in places]  # type: ignore[misc]
            starts = [divmod(row * count, LANES) for row in range(LANES)]
            rows = [b.shuffle(read[k], None, range(at, at + count)) for k, at in starts]  # type: ignore[arg-type]
            return columns_of(b, rows)  # type: ignore[return-value]
        found: list[Value] = []
        lanes, pieces = _pieces(count)
        for begin in pieces:
            at = b.gep(x, begin * kind.size)
            rows = [b.load(b.gep(at, frame["i0"] * row), kind, lanes) for row in range(LANES)]  # type: ignore[misc]
            found += columns_of(b, rows)[len(found) - begin :]  # type: ignore[arg-type]
        return found

    # ---- records ----

    def _record(self, b: Builder, number: int, x: Value) -> Record:
        """What is compared, as integers with a sign, which all processors compare, and what goes with it: the place, or
        what the key does not tell of a float."""
        key = order_key(b, x, self.dtype, canonical=True)
        signed = b.cast(key ^ sign_of(key.dtype), _SIGNED[key.dtype.size])
        if self.places:
            return [signed, b.const(key.dtype, number, LANES)]
        return [signed, x] if self.dtype.is_float else [signed]

    def _element(self, b: Builder, record: Record) -> Value:
        """Of the result."""
        if self.places:
            return b.cast(record[1], dt.uint32)
        if self.dtype.is_float:
            return record[1]
        kind = bits_of(self.dtype)
        return from_key(b, b.cast(record[0], kind) ^ sign_of(kind), self.dtype)

    def _sort(self, b: Builder, records: list[Record]) -> None:
        """Exchange neighbours that are out of order, as many rounds as there are columns."""
        for turn in range(self.columns):
            for k in range(turn % 2, self.columns - 1, 2):
                x, y = records[k], records[k + 1]
                swap = y[0] < x[0]
                records[k] = [b.choose(swap, v, u) for u, v in zip(x, y, strict=True)]
                records[k + 1] = [b.choose(swap, u, v) for u, v in zip(x, y, strict=True)]


# ---- rows of a few elements ----


def store_rows(b: Builder, columns: Sequence[Value], out: Value) -> None:
    """Write 16 rows that lie one after the other, of a few elements each: a vector for each column."""
    size, count = columns[0].dtype.size, len(columns)
    if _is_even(count):
        rows: Sequence[Value] = rows_of(b, columns)  # type: ignore[assignment]
        together = LANES // count
        for first in range(0, LANES, together):
            b.store(joined(b, rows[first : first + together]), b.gep(out, first * count * size))
        return
    if _shuffles(size):
        starts = [k * LANES for k in range(count)]
        for first in starts:
            places = [e % count * LANES + e // count for e in range(first, first + LANES)]
            b.store(picked(b, columns, starts, places), b.gep(out, first * size))
        return
    lanes, pieces = _pieces(count)
    padded = [*columns, *[columns[-1]] * (2 * lanes - count)]
    for number, row in enumerate(rows_of(b, padded)):
        for begin in pieces:
            piece = b.shuffle(row, None, range(begin, begin + lanes))  # type: ignore[arg-type]
            b.store(piece, b.gep(out, (number * count + begin) * size))


def stores_well(columns: int, size: int) -> bool:
    """Whether that is faster than a vector for each row, behind whose end the next one is written: not of rows that are
    nearly as long as a register of 64 bytes."""
    return columns * size < 56 or machine(config.cpu).vector < 64


def _is_even(columns: int) -> bool:
    """Whether rows fill vectors."""
    return columns & (columns - 1) == 0


def _shuffles(size: int) -> bool:
    """Whether rows of elements of so many bytes are put together from whole vectors: where any two are shuffled by one
    instruction, or pieces of a row are no vectors."""
    return machine(config.cpu).vector == 64 or size < 4


def _pieces(columns: int) -> tuple[int, tuple[int, ...]]:
    """The largest power of two in a row, and where pieces of so many elements begin that it is read and written in."""
    lanes = 1 << columns.bit_length() - 1
    return lanes, (0,) if lanes == columns else (0, columns - lanes)


# ---- lowering ----


def launch(dtype: Dtype, places: bool, n: int, outer: Sequence[Axis], from_: Pointer, to: Pointer) -> Launch | None:
    """Rows of n elements, which lie one after the other, sorted; None if they are long, few, or lie otherwise."""
    if dtype.is_complex or not 2 <= n <= _LONGEST or len(outer) != 1:
        return None
    (rows,), n = outer, int(n)
    wide = 4 if places else dtype.size
    if not (rows.strides[1] == n * wide and rows.size >= _MANY):
        return None
    kernel = ShortSorts(dtype, places, n, bool(rows.strides[0] == n * dtype.size))
    chunks = -(-rows.size // _UNIT)
    numbers = {"units": chunks, "width": _UNIT, "chunks": chunks}
    words = words_of(kernel.fields(), [from_, to], [], rows, numbers)
    return Launch(kernel.source(), words, weigh(chunks, _UNIT * n * max(wide, dtype.size), _COST))
