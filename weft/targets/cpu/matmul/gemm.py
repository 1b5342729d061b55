"""The tiled kernel: products of which both sides are wider than a few rows, and all short sums.

A task is a block of the output. It goes through k in chunks of `CHUNK`; per chunk it copies ("packs") what it needs of
the operands into scratch memory, unless they can be read where they lie, and then runs a register tile over the block.
Each element of the output is

    P(0) + P(1) + …  from the left,
    P(c) = … fma(a[i, k + 1], b[k + 1, j], fma(a[i, k], b[k, j], +0)) …  over the k of chunk c, upwards,

whatever the tile, the block and the layouts: they only choose which elements are in flight together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from weft import dtypes as dt
from weft.codegen.transposes import transposed
from weft.graph.dims import is_symbolic
from weft.llvm.builder import PTR, AnyValue, Value
from weft.llvm.engine import Source
from weft.records import dataclass, replace
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements
from weft.targets.cpu.matmul.frame import Part, ProductFrame

if TYPE_CHECKING:
    from weft.targets.cpu.matmul.epilogue import Epilogue

CHUNK: Final = 256
"""Terms of one partial sum. Part of the specified order: another number gives other bits."""

# How early a row of b is asked for when it is read in place: its pieces are too short for processors to guess.
_AHEAD: Final = 8
_LINE: Final = 64  # bytes of a line of the caches
_MASKED: Final = 64  # bytes of vectors of which a part is loaded and stored as fast as all: those of AVX-512

Parts = Sequence[Part | None]
"""The vectors of a tile: the part of each that there is, if that is not all of it."""

Columns = Sequence[tuple[int, Part | None]]
"""The same, and where each begins, in bytes."""

Rows = Sequence[Value | int]
"""The rows of a tile; at the end of a block some are the same."""

Read = Literal["direct", "rows", "columns", "any", "ready"]
"""How an operand is read: where it lies; packed from contiguous rows, from contiguous columns, from any strides; or
in panels that were packed before (panels.py)."""

WORDS: Final = (
    "tasks", "*a", "*b", "*out", "m", "n", "k", "a_row", "a_k", "b_k", "b_column", "chunks",
    "block_m", "block_n", "blocks_m", "blocks_n", "panel", "at_a", "at_total",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    """The part of the output that is held in registers: `rows` by `vectors` of `lanes` elements. `low`: how many rows
    are left, where that is known and a tile of so many takes them."""

    rows: int
    vectors: int
    lanes: int
    low: int = 0

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def rest(self) -> int:
        """Rows of the tiles that take what is left of the rows. LLVM takes its time for each kind of tile, so low ones
        serve for that too."""
        return self.low or (self.rows if self.rows <= 4 else -(-self.rows // 2))

    @property
    def name(self) -> str:
        return f"{self.rows}x{self.vectors}x{self.lanes}" + f"_low{self.low}" * (self.low > 0)

    @property
    def turn(self) -> int:
        """Lanes of the square tiles that turn an operand round. Eight rows are few enough to stay in registers."""
        return min(self.lanes, 8)


Cut = Literal["any", "whole", "one", "two", "three", "four"]
"""Which tiles a kernel has, since LLVM takes its time for each: those of any number of columns, those of whole panels
alone, or those of so many vectors. Columns are the axis of weights, whose sizes are few; rows are that of data."""

_NARROW: Final[tuple[Cut, ...]] = ("one", "two", "three", "four")


def cut_of(tile: Tile, kind: Elements, n: Any) -> Cut:
    """The tiles that a product of so many columns asks for; a symbol stands for any number."""
    if is_symbolic(n):
        return "any"
    if n % tile.columns == 0:
        return "whole"
    return _NARROW[(n - 1) // tile.lanes] if n < tile.columns else "any"


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where a task keeps things, in bytes from the start of its scratch memory; packed panels of b come first."""

    panel: int  # bytes of one panel
    at_a: int
    at_total: int
    size: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a block's operands, ready to be multiplied. Before it is packed, `right` is what the kernel reads it
    from."""

    left: Any
    right: Any
    rows: Value
    columns: Value
    depth: Value


@dataclass(frozen=True, slots=True)
class Sums:
    """A block of sums in memory, `row` bytes from row to row; or with rows anywhere, whose places from `at` on are in a
    `table` then."""

    at: Value
    row: Value
    table: Value | None = None

    def line(self, i: Value | int) -> Value:
        """Where row i begins."""
        b = self.at.b
        if self.table is None:
            return b.gep(self.at, self.row * i)
        return b.gep(self.at, b.word(b.gep(self.table, b.i64(8) * i), 0))

    def below(self, i: Value) -> Sums:
        """From row i on."""
        b = self.at.b
        if self.table is None:
            return replace(self, at=b.gep(self.at, i * self.row))
        return replace(self, table=b.gep(self.table, i * 8))


@dataclass(frozen=True, slots=True)
class _Packed:
    """Where packed elements go: `along(column)` in the first row, `row` bytes further in each of the next; and how."""

    along: Callable[[Value], Value]
    row: int
    put: Callable[[AnyValue, Value], None]


class Gemm:
    """Writes the tiled kernel for one kind of elements, one tile and one way of reading each operand.

    `flipped`: the operands have changed places (a product with one column is computed as its transpose), so complex
    factors must too. `partial`: the output holds sums as they are in flight, because others will be added to them.

    An operand that is no matrix of plain elements has a class of its own, which says where a matrix, its rows or
    columns and its chunks begin (`_operands`, `_from_row`, `_left_of_chunk`, `_from_column`, `_of_chunk`) and how they
    are packed (`_pack_left`, `_pack_right`).
    """

    words: ClassVar[tuple[str, ...]] = WORDS

    def __init__(
        self,
        kind: Elements,
        tile: Tile,
        read_a: Read,
        read_b: Read,
        *,
        flipped: bool,
        partial: bool,
        epilogue: Epilogue | None = None,
        cut: Cut = "any",
    ) -> None:
        self.kind, self.tile, self.read_a, self.read_b, self.epilogue = kind, tile, read_a, read_b, epilogue
        self.cut = cut
        self.flipped = flipped and kind.parts == 2
        self.wide = el.summing(kind)
        self.result = self.wide if partial else kind
        self.size = kind.work.size
        self.a_row = CHUNK * self.size  # bytes of a packed row of a
        self.panel_row = tile.columns * self.size  # bytes of one k in a packed panel of b
        self.total_size = self.size  # bytes of an element of the sums in memory
        self.apart = self.result.narrow if epilogue is None else epilogue.home is None
        """Whether sums are kept in scratch memory, and not in the output, until they are finished."""
        if epilogue is not None:
            self.words = (*WORDS, *epilogue.words())  # type: ignore[misc]

    @property
    def name(self) -> str:
        t, kinds = self.tile, f"{self.kind.memory.name}_{self.result.memory.name}"
        columns = "" if self.cut == "any" else f"_{self.cut}"
        flipped = "_flipped" * self.flipped
        then = "" if self.epilogue is None else f"_{self.epilogue.name}"
        return f"gemm_{kinds}_{self.read_a}_{self.read_b}_{t.name}{columns}{flipped}{then}"

    def scratch(self, block_m: int, block_n: int, k: int) -> Scratch:
        """The layout of scratch memory for blocks of that size."""
        rows = round_up(block_m, self.tile.turn)
        panels = -(-block_n // self.tile.columns)
        panel = round_up(min(k, CHUNK), self.tile.turn) * self.panel_row
        at_a = panels * panel if self.read_b not in ("direct", "ready") else 0
        at_total = at_a + (rows * self.a_row if self.read_a != "direct" else 0)
        totals = rows * panels * self.panel_row if self.apart else 0
        return Scratch(panel, at_a, at_total, at_total + totals)

    def ir(self) -> str:
        self.frame = f = ProductFrame(self.name, self.words, self.operands)
        self.b = f.b
        if self.epilogue is not None:
            self._ready = self.epilogue.ready(f)
        with f.b.loop(f.begin, f.end, 1) as task:
            self._task(task.index)
        return f.module()

    @property
    def operands(self) -> int:
        """How many the batch table has strides of."""
        return 2

    def _operands(self, member: Value) -> tuple[Value, Any]:
        """Where the operands of a member of the batch begin."""
        f = self.frame
        offset_a, offset_b = f.offsets(member)
        return self.b.gep(f["a"], offset_a), self.b.gep(f["b"], offset_b)

    def _from_row(self, left: Any, i: Value) -> Any:
        return self.b.gep(left, i * self.frame["a_row"])

    def _left_of_chunk(self, left: Any, chunk: Value) -> Any:
        return self.b.gep(left, chunk * CHUNK * self.frame["a_k"])

    def _from_column(self, right: Any, j: Value) -> Any:
        return self.b.gep(right, j * self.frame["b_column"])

    def _of_chunk(self, right: Any, chunk: Value) -> Any:
        return self.b.gep(right, chunk * CHUNK * self.frame["b_k"])

    def _output(self, member: Value, i: Value, j: Value) -> Sums:
        """Where a block of a member's output begins."""
        f, memory = self.frame, self.result.memory.size
        return Sums(self.b.gep(f["out"], ((member * f["m"] + i) * f["n"] + j) * memory), f["n"] * memory)

    def _chunks(self, task: Value) -> tuple[Value, Value, Value]:
        """Which block a task is, and from which to which chunk."""
        return task, self.b.i64(0), self.frame["chunks"]

    def _totals(self, totals: Sums, chunk: Value) -> tuple[Sums, Value]:
        """Where the sums of a chunk go, and how many others are there already."""
        return totals, chunk

    def _task(self, task: Value) -> None:
        f, b = self.frame, self.b
        task, begin, end = self._chunks(task)
        rest, block_i = f.divide(task, f["blocks_m"])
        member, block_j = f.divide(rest, f["blocks_n"])
        left, right = self._operands(member)
        i, j = block_i * f["block_m"], block_j * f["block_n"]
        rows, columns = f.least(f["m"] - i, f["block_m"]), f.least(f["n"] - j, f["block_n"])
        left, right = self._from_row(left, i), self._from_column(right, j)
        out = self._output(member, i, j)
        totals = out
        if self.apart:
            totals = Sums(b.gep(f.scratch, f["at_total"]), f["block_n"] * self.size)
        self._out = out
        with b.loop(begin, end, 1) as loop:
            with b.when(loop.index.ne(begin)):
                f.look()
            depth = f.least(f["k"] - loop.index * CHUNK, CHUNK)
            a, y = self._left_of_chunk(left, loop.index), self._of_chunk(right, loop.index)
            self._multiply(Chunk(a, y, rows, columns, depth), *self._totals(totals, loop.index))
        if self.epilogue is not None:
            self._follow(totals, member * f["m"] + i, j, rows, columns)
        elif self.apart:
            self._round(totals, out, rows, columns)

    def _multiply(self, chunk: Chunk, totals: Sums, number: Value) -> None:
        """The sums of chunk `number` of a block."""
        self._block(self._packed(chunk), totals, number.eq(0))

    # ---- packing ----

    def _packed(self, chunk: Chunk) -> Chunk:
        """The chunk with those operands packed that are not read where they lie."""
        if self.read_a != "direct":
            chunk = replace(chunk, left=self._pack_left(chunk))
        if self.read_b not in ("direct", "ready"):
            chunk = replace(chunk, right=self._pack_right(chunk))
        return chunk

    def _pack_left(self, chunk: Chunk) -> Value:
        """Row by row, each CHUNK elements long."""
        f, b = self.frame, self.b
        packed = b.gep(f.scratch, f["at_a"])
        to = _Packed(lambda k: b.gep(packed, k * self.size), self.a_row, lambda x, at: f.store(self.wide, x, at))
        if self.read_a == "columns":
            self._turn(chunk.left, f["a_k"], chunk.depth, chunk.rows, to)
        else:
            step = f["a_k"] if self.read_a == "any" else None
            self._copy(chunk.left, f["a_row"], step, chunk.rows, chunk.depth, to)
        return packed

    def _pack_right(self, chunk: Chunk) -> Value:
        """In panels as wide as the tile, in each row by row, in these vector by vector; complex parts apart."""
        f, lanes = self.frame, self.tile.lanes
        apart = lanes * self.kind.part.size
        to = _Packed(self._in_panel, self.panel_row, lambda x, at: f.put_apart(x, at, apart))
        if self.read_b == "columns":
            whole = (chunk.columns + (lanes - 1)) & -lanes  # so that no lane of a vector holds what was there before
            self._turn(chunk.right, f["b_column"], chunk.columns, chunk.depth, to, whole)
        else:
            step = f["b_column"] if self.read_b == "any" else None
            self._copy(chunk.right, f["b_k"], step, chunk.depth, chunk.columns, to)
        return f.scratch

    def _in_panel(self, j: Value) -> Value:
        """Where column j begins in the packed panels."""
        f = self.frame
        panel, inside = f.divide(j, self.tile.columns)
        return self.b.gep(f.scratch, panel * f["panel"] + self._in_row(inside))

    def _in_row(self, j: Value) -> Value:
        """Where column j of a panel lies in each of its rows, in bytes."""
        lanes = self.tile.lanes
        if self.kind.parts == 1:
            return j * self.size
        vector, lane = self.frame.divide(j, lanes)
        return vector * (2 * lanes * self.kind.part.size) + lane * self.kind.part.size

    def _copy(self, source: Value, row: Value, step: Value | None, rows: Value, columns: Value, to: _Packed) -> None:
        """Pack a source whose rows are contiguous, or have elements `step` bytes apart."""
        f, b, lanes = self.frame, self.b, self.tile.lanes
        with b.loop(0, rows, 1) as r:
            start, below = b.gep(source, r.index * row), r.index * to.row

            def one(column: Value, part: Part | None) -> None:
                offset = column * (self.kind.memory.size if step is None else step)
                to.put(f.load(self.kind, b.gep(start, offset), lanes, part, step), b.gep(to.along(column), below))

            f.sweep(columns, lanes, one)

    def _turn(
        self, source: Value, row: Value, rows: Value, columns: Value, to: _Packed, whole: Value | None = None
    ) -> None:
        """Pack the transpose of a source whose rows are contiguous. Rows past the last (up to `whole`) repeat it."""
        f, b, turn = self.frame, self.b, self.tile.turn
        with b.loop(0, rows if whole is None else whole, turn) as strip:
            starts = [b.gep(source, f.least(strip.index + r, rows - 1) * row) for r in range(turn)]
            target = to.along(strip.index)

            def one(column: Value, part: Part | None) -> None:
                at, below = column * self.kind.memory.size, b.gep(target, column * to.row)
                tile = transposed(b, [f.load(self.kind, b.gep(start, at), turn, part) for start in starts])
                for c, x in enumerate(tile):
                    to.put(x, b.gep(below, c * to.row))

            f.sweep(columns, turn, one)

    # ---- computing ----

    def _block(self, chunk: Chunk, totals: Sums, first: Value) -> None:
        """A chunk's sums: put where the totals belong, or, after the first chunk, added to them."""
        f, b, tile = self.frame, self.b, self.tile
        if self.cut in _NARROW:
            before = _NARROW.index(self.cut)
            last = f.leading(chunk.columns - before * tile.lanes, tile.lanes)
            self._strips(chunk, totals, [*[None] * before, last], first)
            return
        whole = chunk.columns
        if self.cut == "any":
            whole = whole - f.divide(whole, tile.columns)[1]
        with b.loop(0, whole, tile.columns) as panel:
            self._strips(*self._from(chunk, totals, panel.index), [None] * tile.vectors, first)
        if self.cut == "any":  # apart: what masks are made of would take registers from the tiles above
            self._rest_of_columns(*self._from(chunk, totals, whole), chunk.columns - whole, first)

    def _from(self, chunk: Chunk, totals: Sums, j: Value) -> tuple[Chunk, Sums]:
        """A chunk and its totals from the first column of a panel on."""
        f, b = self.frame, self.b
        skip = j * self.size if self.read_b == "direct" else f.divide(j, self.tile.columns)[0] * f["panel"]
        return replace(chunk, right=b.gep(chunk.right, skip)), replace(totals, at=b.gep(totals.at, j * self.total_size))

    def _rest_of_columns(self, chunk: Chunk, totals: Sums, columns: Value, first: Value) -> None:
        """The last panel, which is not full. It is taken vector by vector if a mask costs nothing, else in tiles that
        are a vector narrower than whole ones, or more, and of which only the last vector is masked."""
        f, b, lanes = self.frame, self.b, self.tile.lanes
        most = 1 if lanes * self.kind.part.size >= _MASKED else max(1, self.tile.vectors - 1)
        with b.loop(0, columns, most * lanes) as piece:
            part = replace(chunk, right=b.gep(chunk.right, piece.index * self.size))
            below = replace(totals, at=b.gep(totals.at, piece.index * self.total_size))
            for vectors in range(1, most + 1):
                count = columns - piece.index - (vectors - 1) * lanes
                parts = [*[None] * (vectors - 1), f.leading(count, lanes)]
                with b.when((count > 0) if vectors == most else (count > 0) & (count <= lanes)):
                    self._strips(part, below, parts, first)

    def _strips(self, chunk: Chunk, target: Sums, parts: Parts, first: Value) -> None:
        """Tiles from the first row to the last; those for what is left of the rows may be smaller, and take the last
        row several times."""
        f, b, height, rest = self.frame, self.b, self.tile.rows, self.tile.rest

        def one(i: Value, rows: Rows) -> None:
            below = replace(chunk, left=self._below(chunk.left, i))
            self._tile(below, target.below(i), rows, parts, first)

        whole: Value | int = 0
        if rest < height:
            whole = chunk.rows - f.divide(chunk.rows, height)[1]
            with b.loop(0, whole, height) as strip:
                one(strip.index, range(height))
        with b.loop(whole, chunk.rows, rest) as strip:
            last = chunk.rows - strip.index - 1
            one(strip.index, [0, *(f.least(last, i) for i in range(1, rest))])

    def _below(self, left: Any, i: Value) -> Any:
        """What is ready of a, from row i of the block on."""
        return self.b.gep(left, i * (self.frame["a_row"] if self.read_a == "direct" else self.a_row))

    def _tile(self, chunk: Chunk, target: Sums, rows: Rows, parts: Parts, first: Value) -> None:
        """One register tile. After the first chunk, all totals are added to before any is stored: rows may be the
        same."""
        f, b, lanes = self.frame, self.b, self.tile.lanes
        columns = [(v * lanes * self.size, part) for v, part in enumerate(parts)]
        lines = [target.line(i) for i in rows]
        if self.read_a != "direct":  # the totals that are added to come while the sums are computed
            width = len(parts) * lanes * self.size
            f.prefetch([b.gep(line, at) for line in lines for at in range(0, width, _LINE)])
        sums = self._products(chunk, rows, columns)
        places = [(b.gep(line, column), part) for line in lines for column, part in columns]

        def added() -> list[Value]:
            totals = [f.load(self.wide, at, lanes, part) for at, part in places]
            return el.flat([el.add(total, x) for total, x in zip(totals, sums, strict=True)])

        totals = el.unflat(self.kind, b.rarely(~first, el.flat(sums), added, apart=False))
        for x, (at, part) in zip(totals, places, strict=True):
            f.store(self.wide, x, at, part)

    def _products(self, chunk: Chunk, rows: Rows, columns: Columns) -> list[AnyValue]:
        """The sums of a register tile over a chunk, row by row."""
        f, b, lanes, kind = self.frame, self.b, self.tile.lanes, self.kind
        direct = self.read_a == "direct"
        a_row, a_step = (f["a_row"], f["a_k"]) if direct else (b.i64(self.a_row), b.i64(self.size))
        offsets = [a_row * i for i in rows]
        sums = [el.zero(b, kind, lanes)] * (len(rows) * len(columns))
        with b.loop(0, chunk.depth, 1, chunk.left, chunk.right, *el.flat(sums)) as loop:
            at_a, at_b, *carried = loop.carried
            y = self._row_of_right(at_b, columns)
            sums = self._added(el.unflat(kind, carried), [b.gep(at_a, offset) for offset in offsets], y)
            loop.carry(b.gep(at_a, a_step), b.gep(at_b, self._right_step), *el.flat(sums))
        return el.unflat(kind, loop.carried[2:])

    @property
    def _right_step(self) -> Value:
        """From one k to the next, in bytes."""
        return self.frame["b_k"] if self.read_b == "direct" else self.b.i64(self.panel_row)

    def _row_of_right(self, at: Value, columns: Columns) -> list[AnyValue]:
        """The vectors of b for one k."""
        f, b = self.frame, self.b
        y = [self._load_right(b.gep(at, column), part) for column, part in columns]
        if self.read_b == "direct":
            f.prefetch([b.gep(at, self._right_step * _AHEAD + column) for column, _ in columns])
        return y

    def _added(self, sums: list[AnyValue], places: Sequence[Value], y: Sequence[AnyValue]) -> list[AnyValue]:
        """The sums with the products for one k added: of the elements of a at these places, and the vectors of b."""
        f, b, lanes, vectors = self.frame, self.b, self.tile.lanes, len(y)
        for i, at in enumerate(places):
            x = el.spread(b, f.load(self.wide, at, 1), lanes)
            for v in range(vectors):
                factors = (y[v], x) if self.flipped else (x, y[v])
                sums[i * vectors + v] = el.multiply_add(b, *factors, sums[i * vectors + v])
        return sums

    def _load_right(self, at: Value, part: Part | None) -> AnyValue:
        if self.read_b == "direct":
            return self.frame.load(self.wide, at, self.tile.lanes, part)
        return self.frame.get_apart(self.kind, at, self.tile.lanes, self.tile.lanes * self.kind.part.size)

    def _follow(self, totals: Sums, place: Value, j: Value, rows: Value, columns: Value) -> None:
        """The epilogue of a finished block, whose first row is at a place of all rows of the output."""
        b = self.b
        with b.loop(0, rows, 1) as row:
            source = b.gep(totals.at, row.index * totals.row)

            def load(c: Value, lanes: int, mask: Value | None) -> AnyValue:
                at = b.gep(source, c * self.size)
                below = b.gep(at, totals.row)  # rows are too short for processors to guess the next one
                self.frame.prefetch([b.gep(below, offset) for offset in range(0, lanes * self.size, _LINE)])
                return b.convert(el.load(b, self.wide, at, lanes, mask), self.kind.memory)

            self._ready.apply(place + row.index, j, columns, load)

    def _round(self, totals: Sums, out: Sums, rows: Value, columns: Value) -> None:
        """Totals from scratch memory to the output: the one rounding of narrow elements."""
        f, b, lanes = self.frame, self.b, self.tile.lanes
        with b.loop(0, rows, 1) as row:
            source, target = totals.line(row.index), out.line(row.index)

            def one(j: Value, part: Part | None) -> None:
                x = f.load(self.wide, b.gep(source, j * self.size), lanes, part)
                f.store(self.kind, x, b.gep(target, j * self.kind.memory.size), part)

            f.sweep(columns, lanes, one)


CHUNK_PARAMS: Final = [
    ("left", PTR), ("right", PTR), ("rows", dt.int64), ("columns", dt.int64), ("depth", dt.int64),
    ("totals", PTR), ("row", dt.int64), ("number", dt.int64),
]  # fmt: skip


class MatrixGemm(Gemm):
    """Where both operands are matrices of plain elements. What is done with a chunk is nearly all of the code, and the
    same whatever follows: so that is a function of its own, which kernels with all epilogues call. `alone`: there is no
    batch, or members are large, so what is around the function takes no time."""

    alone = False

    @property
    def name(self) -> str:
        return super().name + "_alone" * self.alone

    @property
    def cold(self) -> bool:
        return self.alone and self.epilogue is None and not self.apart

    @property
    def calls(self) -> tuple[Source, ...]:
        """The function."""
        t, columns = self.tile, "" if self.cut == "any" else f"_{self.cut}"
        reads, flipped = f"{self.read_a}_{self.read_b}", "_flipped" * self.flipped
        name = f"gemm_chunk_{self.kind.memory.name}_{reads}_{t.name}{columns}{flipped}"
        return (Source(f"matmul:{name}", name, lambda: self._chunk_ir(name)),)

    def _chunk_ir(self, name: str) -> str:
        self.frame = f = ProductFrame(name, WORDS, self.operands, CHUNK_PARAMS)
        self.b = f.b
        left, right, rows, columns, depth, totals, row, number = f.more
        super()._multiply(Chunk(left, right, rows, columns, depth), Sums(totals, row), number)
        return f.module()

    def _multiply(self, chunk: Chunk, totals: Sums, number: Value) -> None:
        more = [chunk.left, chunk.right, chunk.rows, chunk.columns, chunk.depth, totals.at, totals.row, number]
        self.b.call_void(self.calls[0].name, *self.b.params, *more)


def round_up(x: int, step: int) -> int:
    return -(-x // step) * step
