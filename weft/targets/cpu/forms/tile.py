"""Elementwise kernels some of whose operands lie transposed: squares of them are turned on the way in."""

from __future__ import annotations

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.scope import Accesses, Bases, Scope, State, stored_dtype
from weft.codegen.transposes import transposed
from weft.llvm.builder import Value
from weft.passes.lower import Item
from weft.records import dataclass
from weft.targets.axes import Axis, product, tile_axis
from weft.targets.cpu.forms.base import Form, grain_of, streams
from weft.targets.cpu.kernel import Frame, vector_loop
from weft.targets.nest import Nest

STRIP = 64
"""Rows of a strip: four squares side by side read four neighbouring cache lines of each row of a turned operand."""
AHEAD = 64
"""Elements of a row that are asked for before they are needed: a strip's rows are so many short pieces to the
processor, of which it does not guess the next ones."""


@dataclass(frozen=True, slots=True)
class Tile(Form):
    """Strips of 64 rows, cut into squares of 16 × 16. The rows are the `m` places of the tile axis, along which turned
    operands lie contiguous; results do along the inner one."""

    title = "tile"
    further = "t"
    stream: bool = False

    @classmethod
    def schedule(cls, nest: Nest) -> Item | None:
        *outer, inner = nest.outer or [nest.single()]
        position = position_of(nest, outer, inner)
        if position is None:
            return None
        tile = outer.pop(position)
        kernel = cls.of(nest, outer, inner, tile, stream=streams(nest, [*outer, tile], inner))
        numbers = strips(tile, outer)
        grain = grain_of(inner.size * STRIP, nest.cost())
        launch = kernel.launch(nest, outer, inner, {**numbers}, grain, kernel.scratch(), t=tile)
        return nest.item([launch], kernel.overwritten())

    def flags(self) -> list[str]:
        return ["stream"] if self.stream else []

    def sizes(self) -> list[str]:
        return ["m", "strips"]

    def scratch(self) -> int:
        """Bytes of per-thread memory: a square for each turned operand."""
        return sum(LANES * LANES * a.dtype.size for a in self.loads if a.inner == "tile")

    def emit(self, frame: Frame) -> None:
        b, accesses = frame.b, Accesses(frame, self)
        with b.loop(frame.begin, frame.end, 1) as units:
            place, strip = frame.divide(units.index, frame["strips"])
            first = strip * STRIP
            last = frame.least(first + STRIP, frame["m"])
            bases = accesses.bases(frame.indices(place))

            def squares(j: Value, mask: Value | None, state: State) -> State:
                with b.loop(first, last, LANES) as top:
                    self._square(accesses, frame.scratch, bases, top.index, last, j, mask)
                return state

            vector_loop(b, b.i64(0), frame["n"], squares)

    def _square(
        self, accesses: Accesses, scratch: Value, bases: Bases, top: Value, last: Value, j: Value, mask: Value | None
    ) -> None:
        """Up to 16 rows from `top`, 16 columns from `j`."""
        b = accesses.b
        height = b.choose(last - top < LANES, last - top, LANES)
        tiles: dict[int, Value] = {}
        for k, access in enumerate(self.loads):
            if access.inner == "tile":
                tiles[k] = scratch
                self._turn(accesses, k, scratch, bases, top, j, height, mask)
                scratch = b.gep(scratch, LANES * LANES * access.dtype.size)
        with b.loop(0, height, 1) as row:
            at = accesses.moved(bases, top + row.index)
            given = {}
            for k, tile in tiles.items():
                dtype = stored_dtype(self.loads[k].dtype)
                given[k] = b.load(b.gep(tile, row.index * (LANES * dtype.size)), dtype)
            for k, access in enumerate(self.loads):
                if access.source == "memory" and access.inner == "unit":
                    b.prefetch(b.gep(at[k], (j + AHEAD) * access.dtype.size))
            Scope(accesses, at, j, LANES, mask, given).store_all(self.stream)

    def _turn(
        self, accesses: Accesses, k: int, tile: Value, bases: Bases, top: Value, j: Value, height: Value,
        mask: Value | None,
    ) -> None:  # fmt: skip
        """A square read along its memory, written to scratch the other way round. Rows past the end read the first one
        again."""
        b, words, dtype = accesses.b, accesses.words, stored_dtype(self.loads[k].dtype)
        corner = b.gep(bases[k], top * words[f"t{k}"])
        inside = b.iota(dt.int64) < b.splat(height)
        rows = []
        for lane in range(LANES):
            index = j + lane if mask is None else b.choose(b.extract(mask, lane), j + lane, j)
            rows.append(b.load(b.gep(corner, index * words[f"i{k}"]), dtype, LANES, inside))
            b.prefetch(b.gep(corner, (index + LANES) * words[f"i{k}"]))
        for lane, row in enumerate(transposed(b, rows)):
            b.store(row, b.gep(tile, lane * LANES * dtype.size))


def position_of(nest: Nest, outer: list[Axis], inner: Axis) -> int | None:
    """The outer axis that makes squares with the inner one, if some operand needs it."""
    for k, operand in enumerate(nest.loads):
        if operand.source == "memory":
            position = tile_axis(outer, inner, k, operand.unit)
            if position is not None:
                return position
    return None


def strips(tile: Axis, outer: list[Axis]) -> dict[str, int]:
    """The words that say how the rows are cut."""
    count = -(-tile.size // STRIP)
    return {"units": product(outer) * count, "m": tile.size, "strips": count}
