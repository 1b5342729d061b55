"""From two layouts to launches: which kernel computes a product, how it reads its operands, and what its tasks are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.config import config
from weft.graph.dims import is_symbolic
from weft.llvm.engine import Source
from weft.records import dataclass, replace
from weft.targets.axes import row_major
from weft.targets.copying import Copy
from weft.targets.cpu.matmul import dot, gemm, paired, weighted
from weft.targets.cpu.matmul.combine import combined
from weft.targets.cpu.matmul.dot import Dot
from weft.targets.cpu.matmul.elements import Elements, elements_of
from weft.targets.cpu.matmul.frame import Word, block
from weft.targets.cpu.matmul.gemm import Gemm, MatrixGemm, Tile
from weft.targets.cpu.matmul.machine import ProductMachine, machine
from weft.targets.cpu.matmul.paired import PairedGemm
from weft.targets.cpu.matmul.tasks import PARALLEL, STREAM, equal_blocks, grain_of, tasks_for
from weft.targets.cpu.matmul.tiny import Shared, Tiny
from weft.targets.cpu.matmul.weighted import Weighted

if TYPE_CHECKING:
    from weft.targets.cpu.matmul.epilogue import Fused

_SPLIT: Final = 8  # chunks of k that are worth being tasks of their own

_BLOCK_N: Final = 1536  # bytes of a packed row of b: with 256 of them, a third to a half of a second-level cache
_MANY: Final = 64  # rows or columns that make packing the other operand worth it
_NARROW: Final = 8  # columns that are too few for the lanes of a vector
_HELD: Final = {16: 48 << 10, 32: 128 << 10}  # by registers: bytes of w that may be read in short pieces of rows
_FEW: Final = 32  # rows of x that the skinny kernel takes together
_LARGE: Final = 1 << 18  # multiply-adds of a member of a batch, beside which what stands around them is nothing
_TINY: Final = 8  # rows, columns and terms of products that share vectors with their neighbours
_TINY_TERMS: Final = 256  # multiply-adds of such a product: all of them are written out, which LLVM takes its time for
_TINY_MANY: Final = 64  # such products that are worth a kernel of their own
_TINY_TASK: Final = 1024  # and that are a task


def lower(copy: Copy, a: Layout, b: Layout, out: Layout) -> Lowering:
    """out[..., m, n] = a[..., m, k] @ b[..., k, n]; one dtype, equal batch axes or none of b, `out` contiguous.

    Pointers: 0 is a, 1 is b, 2 is out.
    """
    if math.prod(out.shape) == 0:
        return Lowering(())
    product = _product(a, b)
    if is_skinny(a, b):
        return _skinny(product)
    if _is_tiny(rows := _rows_as_members(product)):
        return Lowering((_tiny(rows),))
    if _is_weighted(whole := product.with_rows_of_batch()):
        return Lowering((_weighted(whole),))
    return _packed_first(copy, a, b) or _tiled(_product(a, b))


def is_skinny(a: Layout, b: Layout) -> bool:
    """Whether a product is summed in the order of dot.py. It decides the bits, so only shapes may have a say in it."""
    (m, k), n = a.shape[-2:], b.shape[-1]
    if len(b.shape) < len(a.shape):
        m *= math.prod(a.shape[:-2])
    return k >= 64 if m == 1 or n == 1 else (m <= 8 or n <= 8) and k >= 128


def for_all(b: Layout, a: Layout) -> Layout:
    """A right operand that has the batch axes of the left one, repeated if it is one matrix."""
    missing = len(a.shape) - len(b.shape)
    return replace(b, shape=(*a.shape[:missing], *b.shape), strides=(*(0,) * missing, *b.strides))


# ---- products ----

Axes = tuple[tuple[int, int, int], ...]
"""Batch axes, innermost first: extent, stride of a, stride of b."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A matrix in memory; strides in bytes."""

    pointer: Pointer
    row: int
    column: int

    @property
    def transposed(self) -> _Operand:
        return _Operand(self.pointer, self.column, self.row)

    def from_column(self, last: int) -> _Operand:
        """The same matrix with its columns from the last one on."""
        start = Pointer(self.pointer.value, self.pointer.offset + last * self.column)
        return _Operand(start, self.row, -self.column)


@dataclass(frozen=True, slots=True)
class _Product:
    """A batch of products, whose results lie one after the other. `flipped`: seen with its operands exchanged."""

    kind: Elements
    m: int
    n: int
    k: int
    a: _Operand
    b: _Operand
    out: _Operand
    axes: Axes
    flipped: bool = False

    @property
    def members(self) -> int:
        return math.prod(extent for extent, _, _ in self.axes)

    @property
    def terms(self) -> int:
        """Real multiply-adds of the whole batch."""
        return self.members * self.m * self.n * self.k * self.kind.parts**2

    @property
    def transposed(self) -> _Product:
        """The same product, seen as out.T = b.T @ a.T."""
        axes = tuple((extent, b, a) for extent, a, b in self.axes)
        a, b, out = self.b.transposed, self.a.transposed, self.out.transposed
        return replace(self, m=self.n, n=self.m, a=a, b=b, out=out, axes=axes, flipped=not self.flipped)

    def with_columns_backwards(self) -> _Product:
        """The same product with its columns from the last one on."""
        last = self.n - 1
        return replace(self, b=self.b.from_column(last), out=self.out.from_column(last))

    def with_rows_of_batch(self, most: int | None = None) -> _Product:
        """The members along the innermost batch axis as rows of one taller a, if b is the same for all of them."""
        if not self.axes:
            return self
        (extent, stride, same), *outer = self.axes
        if same != 0 or (most is not None and extent * self.m > most):
            return self
        row = stride if self.m == 1 else self.a.row
        if stride != self.m * row:
            return self
        out = replace(self.out, row=self.n * self.out.column) if self.m == 1 else self.out
        return replace(self, m=extent * self.m, a=replace(self.a, row=row), out=out, axes=tuple(outer))


def _product(a: Layout, b: Layout) -> _Product:
    kind, size = elements_of(a.dtype), a.dtype.size
    (m, k), n = a.shape[-2:], b.shape[-1]
    b = for_all(b, a)
    axes = [(e, s * size, t * size) for e, s, t in zip(a.shape[:-2], a.strides[:-2], b.strides[:-2], strict=True)]
    left = _Operand(Pointer(0), a.strides[-2] * size, a.strides[-1] * size)
    right = _Operand(Pointer(1), b.strides[-2] * size, b.strides[-1] * size)
    return _Product(kind, m, n, k, left, right, _Operand(Pointer(2), n * size, size), _merged(axes))


def _merged(axes: Sequence[tuple[int, int, int]]) -> Axes:
    """Batch axes (outermost first) as few as possible, innermost first."""
    merged: list[tuple[int, int, int]] = []
    for extent, a, b in reversed(axes):
        if extent == 1:
            continue
        if merged and (a, b) == (merged[-1][0] * merged[-1][1], merged[-1][0] * merged[-1][2]):
            merged[-1] = (extent * merged[-1][0], *merged[-1][1:])
        else:
            merged.append((extent, a, b))
    return tuple(merged)


def _launch(kernel: Gemm | Dot | Tiny | Weighted, words: tuple[Word, ...], work: int, scratch: int = 0) -> Launch:
    tasks = words[0]
    assert isinstance(tasks, int)
    then = getattr(kernel, "epilogue", None)
    key = f"matmul:{kernel.name}" if then is None else f"matmul:{kernel.name}\n{then}"
    source = Source(key, kernel.name, kernel.ir, getattr(kernel, "calls", ()), getattr(kernel, "cold", False))
    return Launch(source, words, grain_of(work, tasks), scratch)


# ---- epilogues ----


def with_epilogue(a: Layout, b: Layout, left: Pointer, right: Pointer, fused: Fused) -> Launch | None:
    """A product whose result goes through a map, in one launch; None where that takes several, or the result is not
    written row by row."""
    p = _product(a, b)
    if math.prod(a.shape[:-1]) * p.n == 0:
        return None
    p = replace(
        p,
        a=replace(p.a, pointer=left),
        b=replace(p.b, pointer=right),
        out=replace(p.out, pointer=fused.home),
    )
    if is_skinny(a, b):
        if p.m > p.n:
            return None
        p = p.with_rows_of_batch(most=_FEW) if p.m == 1 else p
        whole = _dot(p, fused=fused)
        return None if _streamed(p) >= 4 * PARALLEL and 2 * _count(whole) <= tasks_for(_streamed(p)) else whole
    if p.n == 1 or _is_tiny(p) or _is_small_batch(a, b):
        return None
    p = p.with_rows_of_batch()
    packed = _reads(p, machine(config.cpu))[1] != "direct"
    if packed and fused.kernel.home is None and not p.kind.narrow:
        return None  # sums of their own make blocks smaller, and what is packed is packed more often
    whole = _gemm(p, fused=fused)
    return None if _is_split(p, whole) else whole


# ---- tiled ----


def _tiled(product: _Product) -> Lowering:
    p = product.transposed if product.n == 1 else product
    p = p.with_rows_of_batch()
    whole = _gemm(p)
    if _is_split(p, whole):
        return _split(p, gemm.CHUNK, _gemm) or Lowering((whole,))
    return Lowering((whole,))


def _is_split(p: _Product, whole: Launch) -> bool:
    """Whether chunks of k should be tasks of their own. Partial results that take more memory than the operands they
    are made from would not pay."""
    pays = p.terms >= 4 * PARALLEL and 4 * p.m * p.n <= (p.m + p.n) * gemm.CHUNK
    return pays and 2 * _count(whole) <= tasks_for(p.terms)


def _count(launch: Launch) -> int:
    tasks = launch.words[0]
    assert isinstance(tasks, int)
    return tasks


def _gemm(p: _Product, partial: bool = False, fused: Fused | None = None) -> Launch:
    processor = machine(config.cpu)
    tile = processor.tile(p.kind, p.n)
    then, more = (None, 0) if fused is None else (fused.kernel, fused.work)
    reads = _reads(p, processor)
    options: dict[str, Any] = {
        "flipped": p.flipped,
        "partial": partial,
        "epilogue": then,
        "cut": gemm.cut_of(tile, p.kind, p.n),
    }
    back = not is_symbolic(p.a.column) and p.a.column == -p.kind.memory.size
    if processor.paired and paired.takes(p.kind, *reads, back=back):
        k = p.k if type(p.k) is int else None
        kernel: MatrixGemm = PairedGemm(p.kind, tile, *reads, k=k, back=back, **options)
    else:
        kernel = MatrixGemm(p.kind, tile, *reads, **options)
    kernel.alone = then is None and not kernel.apart and (not p.axes or p.m * p.n * p.k >= _LARGE)
    # Finished blocks should be in the second-level cache still; smaller ones cost nothing where b is not packed.
    small = kernel.apart or (then is not None and kernel.read_b == "direct")
    blocks = output_blocks(p.kind, tile, p.members, p.m, p.n, p.terms + more, tile.columns, small)
    block_m, block_n = blocks
    blocks_m, blocks_n = -(-p.m // block_m), -(-p.n // block_n)
    scratch = kernel.scratch(block_m, block_n, p.k)
    values: dict[str, Word] = {
        "tasks": p.members * blocks_m * blocks_n, "a": p.a.pointer, "b": p.b.pointer, "out": p.out.pointer,
        "m": p.m, "n": p.n, "k": p.k, "chunks": max(1, -(-p.k // gemm.CHUNK)),
        "a_row": p.a.row, "a_k": p.a.column, "b_k": p.b.row, "b_column": p.b.column,
        "block_m": block_m, "block_n": block_n, "blocks_m": blocks_m, "blocks_n": blocks_n,
        "panel": scratch.panel, "at_a": scratch.at_a, "at_total": scratch.at_total,
        "at_flags": getattr(scratch, "at_flags", 0), **({} if fused is None else fused.words),
    }  # fmt: skip
    return _launch(kernel, block(kernel.words, values, p.axes), p.terms + more, scratch.size)


def largest_blocks(kind: Elements, tile: Tile, apart: bool = False) -> tuple[int, int]:
    """Rows and columns of a block that stays in the caches."""
    block_m, block_n = machine(config.cpu).block, max(_BLOCK_N // kind.work.size, tile.columns)
    if kind.narrow or apart:  # their sums and a wide copy of a need room in the cache too
        block_m //= 4
    return block_m, block_n


def output_blocks(
    kind: Elements, tile: Tile, members: int, m: int, n: int, terms: int, step: int, apart: bool = False, rows: int = 0
) -> tuple[int, int]:
    """Rows (a multiple of `rows`, or of the tile's) and columns (one of `step`) of the blocks of the output that are
    tasks. Sums may be kept `apart`."""
    block_m, block_n = largest_blocks(kind, tile, apart)
    while members * -(-m // block_m) * -(-n // block_n) < tasks_for(terms):
        if block_m * 4 > block_n and block_m > 4 * tile.rows:
            block_m //= 2
        elif block_n > 2 * step:
            block_n //= 2
        else:
            break
    return equal_blocks(m, block_m, rows or tile.rows), equal_blocks(n, block_n, step)


def read_left(kind: Elements, m: int, n: int, k: int, row: int, column: int) -> gemm.Read:
    """How the tiled kernel reads a. It takes elements one by one, so these may lie anywhere, but should not have to be
    widened again and again, nor come one from each page."""
    size = kind.memory.size
    if kind.narrow:
        return "rows" if column == size or k == 1 else "columns" if row == size else "any"
    return "columns" if row == size and column >= 1024 and m >= _MANY and n >= _MANY else "direct"


def _reads(p: _Product, processor: ProductMachine) -> tuple[gemm.Read, gemm.Read]:
    """How the tiled kernel reads a and b."""
    size, in_place = p.kind.memory.size, processor.in_place
    read_a = read_left(p.kind, p.m, p.n, p.k, p.a.row, p.a.column)
    if read_a == "direct" and processor.registers < 32 and p.a.column == size and p.m >= _MANY and p.n >= 4 * _MANY:
        read_a = "rows"  # rows far apart would share few places of the first-level cache with a panel of b
    if p.b.column != size:
        return read_a, "columns" if p.b.row == size or p.k == 1 else "any"
    if in_place and not p.kind.narrow and (p.m < _MANY or p.k * p.n * size <= in_place):
        return read_a, "direct"
    return read_a, "rows"


# ---- tiny ----


def _rows_as_members(p: _Product) -> _Product:
    """Rows that are multiplied with one matrix of a few elements as a batch of rows; other products as they are."""
    whole = p.with_rows_of_batch()
    if whole.axes or whole.n > _TINY or whole.k > _TINY:
        return p
    return replace(whole, m=1, axes=((whole.m, whole.a.row, 0),))


def _is_tiny(p: _Product) -> bool:
    """Whether it is a batch of products of a few elements whose operands lie one after the other, or share one of
    them."""
    if p.m > _TINY or p.n > _TINY or p.k > _TINY or len(p.axes) != 1:
        return False
    ((members, a, b),) = p.axes
    size = p.kind.memory.size
    return (
        (a, b) in ((p.m * p.k * size, p.k * p.n * size), (p.m * p.k * size, 0), (0, p.k * p.n * size))
        and _packing(p.a, p.m, p.k, size) is not None
        and _packing(p.b, p.k, p.n, size) is not None
        and members >= _TINY_MANY
        and p.m * p.n * p.k * p.kind.parts**2 <= _TINY_TERMS
    )


def _is_small_batch(a: Layout, b: Layout) -> bool:
    """Whether these are many products of a few elements, each of matrices of its own, however they lie."""
    if len(a.shape) < 3 or len(a.shape) != len(b.shape):
        return False
    (m, k), n = a.shape[-2:], b.shape[-1]
    if m > _TINY or n > _TINY or k > _TINY or m * n * k * elements_of(a.dtype).parts ** 2 > _TINY_TERMS:
        return False
    return all(x.strides[0] != 0 for x in (a, b)) and math.prod(a.shape[:-2]) >= _TINY_MANY


def _are_small_rows(a: Layout, b: Layout) -> bool:
    """Whether these are many rows of a few elements that are multiplied with one small matrix. Where rows are
    neighbours in memory, vectors go across them as they are."""
    k, n = b.shape[-2:]
    if len(b.shape) > 2 or n > _TINY or k > _TINY or a.strides[-2] == 1:
        return False
    return math.prod(a.shape[:-1]) >= _TINY_MANY


def _packed_first(copy: Copy, a: Layout, b: Layout) -> Lowering | None:
    """A product of few elements whose operands do not lie one after the other: they are copied, which costs less than
    vectors of its own for each member."""
    if not _is_small_batch(a, b) and not _are_small_rows(a, b):
        return None
    launches: list[Launch] = []
    temporaries: list[int] = []
    layouts, pointers = [a, b], [Pointer(0), Pointer(1)]
    for number, x in enumerate((a, b)):
        packed = Layout(x.shape, row_major(x.shape, 1), x.dtype)
        if any(n != 1 and step != wanted for n, step, wanted in zip(x.shape, x.strides, packed.strides, strict=True)):
            to = Pointer(3 + len(temporaries))
            launches += copy(x, packed, Pointer(number), to)
            layouts[number], pointers[number] = packed, to
            temporaries.append(math.prod(x.shape) * x.dtype.size)
    p = _product(*layouts)
    p = _rows_as_members(replace(p, a=replace(p.a, pointer=pointers[0]), b=replace(p.b, pointer=pointers[1])))
    return Lowering((*launches, _tiny(p)), tuple(temporaries)) if _is_tiny(p) else None


def _packing(x: _Operand, rows: int, columns: int, size: int) -> bool | None:
    """Whether a packed matrix lies column by column; None if it is not packed."""
    if (rows == 1 or x.row == columns * size) and (columns == 1 or x.column == size):
        return False
    return True if (rows == 1 or x.row == size) and (columns == 1 or x.column == rows * size) else None


def _is_weighted(p: _Product) -> bool:
    """Whether it is many rows times one vector, of elements of a row, or of neighbouring ones, that lie one after the
    other, forwards or backwards."""
    if p.axes or p.n != 1 or p.kind.parts != 1 or not p.m >= _TINY_MANY:
        return False
    return _are_neighbours(p.a.row, p.kind) or _has_whole_rows(p)


def _are_neighbours(stride: int, kind: Elements) -> bool:
    """Whether elements that lie so far apart have nothing between them."""
    return stride in (kind.memory.size, -kind.memory.size)


def _has_whole_rows(p: _Product) -> bool:
    """Whether rows are worth turning. A number of terms that changes would make a kernel each time."""
    if is_symbolic(p.k) or not _are_neighbours(p.a.column, p.kind):
        return False
    return p.k >= weighted.FEWEST or (p.k > 1 and p.kind.memory.size >= 4)


def _weighted(p: _Product) -> Launch:
    values: dict[str, Word] = {
        "tasks": -(-p.m // _TINY_TASK), "a": p.a.pointer, "b": p.b.pointer, "out": p.out.pointer,
        "rows": p.m, "block": _TINY_TASK, "k": p.k, "a_row": p.a.row, "a_column": p.a.column, "b_k": p.b.row,
    }  # fmt: skip
    across = _are_neighbours(p.a.row, p.kind)
    kernel = Weighted(p.kind, None if across else int(p.k), (p.a.row if across else p.a.column) < 0)
    return _launch(kernel, block(kernel.words, values, ()), STREAM * p.m * p.k)


def _tiny(p: _Product) -> Launch:
    size, members, m, n, k = p.kind.memory.size, p.members, int(p.m), int(p.n), int(p.k)
    ((_, a, b),) = p.axes
    shared: Shared = "right" if b == 0 else "left" if a == 0 else ""
    kernel = Tiny(p.kind, m, n, k, bool(_packing(p.a, m, k, size)), bool(_packing(p.b, k, n, size)), shared)
    values: dict[str, Word] = {
        "tasks": -(-members // _TINY_TASK), "a": p.a.pointer, "b": p.b.pointer, "out": p.out.pointer,
        "members": members, "block": _TINY_TASK,
    }  # fmt: skip
    work = STREAM * members * (m * k + k * n + m * n)
    return _launch(kernel, block(kernel.words, values, ()), work)


# ---- skinny ----


def _skinny(product: _Product) -> Lowering:
    p = product if product.m <= product.n else product.transposed
    if p.m == 1:
        p = p.with_rows_of_batch(most=_FEW)
    if p.b.column == -p.kind.memory.size:
        p = p.with_columns_backwards()
    whole = _dot(p)
    if _streamed(p) >= 4 * PARALLEL and 2 * _count(whole) <= tasks_for(_streamed(p)):
        return _split(p, dot.CHUNK, _dot) or Lowering((whole,))
    return Lowering((whole,))


def _streamed(p: _Product) -> int:
    """The work of a skinny product: its terms, or reading its large operand if that takes longer."""
    return max(STREAM * p.members * p.n * p.k, p.terms)


def _dot(p: _Product, partial: bool = False, fused: Fused | None = None) -> Launch:
    size, work = p.kind.memory.size, _streamed(p) + (0 if fused is None else fused.work)
    few, lanes = 1 if p.m == 1 else 4, machine(config.cpu).lanes(p.kind)
    held = _held(p)
    read: dot.Read = "rows" if p.b.row == size else "back" if p.b.row == -size else "any"
    if p.b.column == size and (p.n > _NARROW or held):
        read = "columns"
    # As many rows of w as there are sums in registers for: more streams come faster than few.
    rows = 1 if p.n == 1 else 8 if few == 1 and p.kind.work.size <= 4 and read in ("rows", "back") else 4
    then = None if fused is None else fused.kernel
    together = max(1, machine(config.cpu).registers // (2 * p.kind.parts * few))
    kernel = Dot(p.kind, few, rows, read, lanes, p.flipped, partial, then, held, together, _known(p, lanes))
    # Long pieces of rows come faster than short ones, and a task may have to copy all of x first.
    tasks = -(-tasks_for(work) // 2) if read == "columns" else tasks_for(work)
    wanted = max(16 * p.m, -(-p.n * p.members // tasks))
    length = equal_blocks(p.n, min(wanted, kernel.longest), dot.LANES)
    blocks = -(-p.n // length)
    scratch = kernel.scratch(p.m, length, copies=p.kind.narrow or p.a.column != size)
    values: dict[str, Word] = {
        "tasks": p.members * blocks, "x": p.a.pointer, "w": p.b.pointer, "out": p.out.pointer,
        "few": p.m, "many": p.n, "k": p.k, "chunks": max(1, -(-p.k // dot.CHUNK)),
        "x_row": p.a.row, "x_k": p.a.column, "w_row": p.b.column, "w_k": p.b.row,
        "out_few": p.out.row, "out_many": p.out.column, "block": length, "blocks": blocks,
        "at_sums": scratch.at_sums, "at_total": scratch.at_total,
        **({} if fused is None else fused.words),
    }  # fmt: skip
    return _launch(kernel, block(kernel.words, values, p.axes), work, scratch.size)


def _known(p: _Product, lanes: int) -> dot.Known:
    """What every call of a kernel for this product has in common. Symbols stand for any number."""
    size = p.kind.memory.size
    whole, part = not is_symbolic(p.n) and p.n % lanes == 0, not is_symbolic(p.n) and p.n < lanes
    return dot.Known(
        depth=not is_symbolic(p.k) and p.k % dot.TURNS == 0,
        many="whole" if whole else "part" if part else "any",
        near=not is_symbolic(p.a.column) and p.a.column == size,
        out=not is_symbolic(p.out.column) and p.out.column == size,
    )


def _held(p: _Product) -> int:
    """Vectors of outputs whose sums stay in registers, while pieces of rows of w are read from the caches again and
    again; 0 where they are read once and sums are in memory."""
    size, registers = p.kind.memory.size, machine(config.cpu).registers
    if p.b.column != size or p.b.row == size:
        return 0
    if p.m == 1:
        held = p.n > _NARROW and p.k * p.n * size <= _HELD[registers]
        return (2 if p.n >= 2 * machine(config.cpu).lanes(p.kind) else 1) if held else 0
    return int(p.n <= _NARROW and not p.kind.narrow)


# ---- long sums of few elements ----


def _split(p: _Product, chunk: int, one: Callable[[_Product, bool], Launch]) -> Lowering | None:
    """Every chunk of k a member of a larger batch, so that threads share them, and then the sum of their results."""
    count = (p.k - 1) // chunk  # the last chunk, which may be shorter, goes on its own
    if count < _SPLIT:
        return None
    elements, wide = p.m * p.n, p.kind.work.size
    ratio = wide // p.kind.memory.size

    def partial(number: int, first: int, k: int, axes: Axes) -> Launch:
        a = replace(p.a, pointer=Pointer(p.a.pointer.value, p.a.pointer.offset + first * p.a.column))
        b = replace(p.b, pointer=Pointer(p.b.pointer.value, p.b.pointer.offset + first * p.b.row))
        out = _Operand(Pointer(number, p.out.pointer.offset * ratio), p.out.row * ratio, p.out.column * ratio)
        return one(replace(p, k=k, a=a, b=b, out=out, axes=axes), True)

    parts = partial(3, 0, chunk, ((count, chunk * p.a.column, chunk * p.b.row), *p.axes))
    rest = partial(4, count * chunk, p.k - count * chunk, p.axes)
    lanes = machine(config.cpu).lanes(p.kind)
    total = combined(p.kind, lanes, p.members, elements, count, Pointer(3), Pointer(4), Pointer(2))
    each = p.members * elements * wide
    return Lowering((parts, rest, total), (count * each, each))
