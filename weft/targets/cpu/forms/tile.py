"""Elementwise kernels some of whose operands lie transposed: blocks of them are turned on the way in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from weft.codegen.kernel import LANES
from weft.codegen.scope import Accesses, Bases, Scope, stored_dtype
from weft.codegen.transposes import columns_of
from weft.config import config
from weft.dtypes import Dtype
from weft.lazy import lazy
from weft.llvm.builder import AnyValue, Value
from weft.passes.lower import Item
from weft.records import dataclass, replace
from weft.targets.axes import BLOCK, FEWEST, Axis, product, tile_axis
from weft.targets.cpu.forms.base import Form, grain_of, streams
from weft.targets.cpu.kernel import Frame
from weft.targets.nest import Nest

if TYPE_CHECKING:
    from weft.targets.cpu.matmul import machine
else:
    machine = lazy("weft.targets.cpu.matmul.machine")

STRIP = 64
"""Rows of a strip: blocks side by side read neighbouring cache lines of each row of a turned operand."""
AHEAD = 64
"""Elements of a row that are asked for before they are needed: a strip's rows are so many short pieces to the
processor, of which it does not guess the next ones."""
ENOUGH = 16
"""Strips that are enough for all threads."""
DIRECT = 1
"""Steps of kernels that are written once for each row of a block, so that what was turned stays in registers."""


@dataclass(frozen=True, slots=True)
class Tile(Form):
    """Strips of 64 rows, cut into blocks of `height` × 16. The rows are the `m` places of the tile axis, along which
    turned operands lie contiguous; results do along the inner one. There are whole blocks alone: the last ones of a
    strip and of a row begin earlier, over the end of those before them."""

    title = "tile"
    further = "t"
    stream: bool = False
    height: int = LANES

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        *outer, inner = nest.outer or [nest.single()]
        position = position_of(nest, outer, inner)
        if position is None:
            return None
        tile = outer.pop(position)
        stream = streams(nest, [*outer, tile], inner)
        kernel = cls.of(nest, outer, inner, tile, stream=stream)
        dtypes = [load.dtype for load in kernel.loads if load.inner == "tile"]
        kernel = replace(kernel, height=height_of(dtypes, tile.size))
        numbers = strips(tile, outer, inner)
        grain = grain_of(numbers["width"] * STRIP, nest.cost())
        launch = kernel.launch(nest, outer, inner, {**numbers}, grain, kernel.scratch(), t=tile)
        return nest.item([launch], kernel.overwritten())

    def flags(self) -> list[str]:
        return [f"height={self.height}", *(["stream"] if self.stream else [])]

    def sizes(self) -> list[str]:
        return ["m", "strips", "width", "chunks"]

    @property
    def is_direct(self) -> bool:
        """Whether blocks go from registers to the results."""
        return len(self.steps) <= DIRECT and sum(load.inner == "tile" for load in self.loads) == 1

    def scratch(self) -> int:
        """Bytes of per-thread memory: a block for each turned operand."""
        if self.is_direct:
            return 0
        return sum(self.height * LANES * a.dtype.size for a in self.loads if a.inner == "tile")

    def emit(self, frame: Frame) -> None:
        b, accesses = frame.b, Accesses(frame, self)
        with b.loop(frame.begin, frame.end, 1) as units:
            unit, chunk = frame.divide(units.index, frame["chunks"])
            place, strip = frame.divide(unit, frame["strips"])
            first, start = strip * STRIP, chunk * frame["width"]
            last, stop = frame.least(first + STRIP, frame["m"]), frame.least(start + frame["width"], frame["n"])
            bases = accesses.bases(frame.indices(place))
            with b.loop(start, stop, LANES) as columns, b.loop(first, last, self.height) as rows:
                top = frame.least(rows.index, frame["m"] - self.height)
                self._block(accesses, frame.scratch, bases, top, frame.least(columns.index, frame["n"] - LANES))

    def _block(self, accesses: Accesses, scratch: Value, bases: Bases, top: Value, j: Value) -> None:
        """The rows from `top` on, 16 columns from `j`."""
        turned = {k: self._turned(accesses, k, bases, top, j) for k, a in enumerate(self.loads) if a.inner == "tile"}
        if self.is_direct:
            for number in range(self.height):
                self._row(accesses, bases, top + number, j, {k: columns[number] for k, columns in turned.items()})
            return
        b, at = accesses.b, scratch
        places: dict[int, tuple[Value, Dtype]] = {}
        for k, columns in turned.items():
            dtype = stored_dtype(self.loads[k].dtype)
            places[k] = at, dtype
            for number, column in enumerate(columns):
                b.store(column, b.gep(at, number * LANES * dtype.size))
            at = b.gep(at, self.height * LANES * dtype.size)
        with b.loop(0, self.height, 1) as row:
            given = {k: b.load(b.gep(x, row.index * (LANES * dtype.size)), dtype) for k, (x, dtype) in places.items()}
            self._row(accesses, bases, top + row.index, j, given)

    def _turned(self, accesses: Accesses, k: int, bases: Bases, top: Value, j: Value) -> list[AnyValue]:
        """A block read along its memory: a vector of 16 lanes for each row."""
        b, words, dtype = accesses.b, accesses.words, stored_dtype(self.loads[k].dtype)
        corner = b.gep(bases[k], top * words[f"t{k}"])
        rows = []
        for lane in range(LANES):
            at = (j + lane) * words[f"i{k}"]
            rows.append(b.load(b.gep(corner, at), dtype, self.height))
            b.prefetch(b.gep(corner, at + LANES * words[f"i{k}"]))
        return columns_of(b, rows)

    def _row(self, accesses: Accesses, bases: Bases, row: Value, j: Value, given: dict[int, AnyValue]) -> None:
        """16 elements of a row of the results."""
        b, at = accesses.b, accesses.moved(bases, row)
        for k, access in enumerate(self.loads):
            if access.source == "memory" and access.inner == "unit":
                b.prefetch(b.gep(at[k], (j + AHEAD) * access.dtype.size))
        Scope(accesses, at, j, LANES, None, given).store_all(self.stream)


def height_of(dtypes: Sequence[Dtype], rows: int) -> int:
    """Rows of a block of turned operands: a vector register of each of them, and not more than there are."""
    height = machine.machine(config.cpu).vector // max(dtype.size for dtype in dtypes)
    height = max(FEWEST, min(LANES, height))
    while not rows >= height:
        height //= 2
    return height


def position_of(nest: Nest, outer: list[Axis], inner: Axis) -> int | None:
    """The outer axis that makes squares with the inner one, if some operand needs it."""
    for k, operand in enumerate(nest.loads):
        if operand.source == "memory":
            position = tile_axis(outer, inner, k, operand.unit)
            if position is not None:
                return position
    return None


def strips(tile: Axis, outer: list[Axis], inner: Axis) -> dict[str, int]:
    """The words that say how rows are cut, and, where there are few of them, columns."""
    count = -(-tile.size // STRIP)
    width = inner.size if tile.size > ENOUGH * STRIP else BLOCK
    chunks = -(-inner.size // width)
    return {"units": product(outer) * count * chunks, "m": tile.size, "strips": count, "width": width, "chunks": chunks}
