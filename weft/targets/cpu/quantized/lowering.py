"""From layouts to launches: which kernel computes a product with quantized matrices, and what its tasks are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.config import config
from weft.graph.dims import dim_max, dim_min
from weft.llvm.engine import Source
from weft.passes.lower import to_int
from weft.primitives.quantized import GatherQuantizedMatmul, Quantized
from weft.records import dataclass, replace
from weft.runtime.threads import get_threads
from weft.targets.axes import row_major
from weft.targets.cpu import moves
from weft.targets.cpu.matmul import gemm
from weft.targets.cpu.matmul.elements import Elements, elements_of
from weft.targets.cpu.matmul.frame import Word, block
from weft.targets.cpu.matmul.gemm import Tile
from weft.targets.cpu.matmul.lowering import largest_blocks, output_blocks, read_left
from weft.targets.cpu.matmul.machine import machine
from weft.targets.cpu.matmul.tasks import PARALLEL, STREAM, equal_blocks, even_blocks, grain_of, tasks_for
from weft.targets.cpu.quantized import few
from weft.targets.cpu.quantized.codes import Codes
from weft.targets.cpu.quantized.few import FewRows
from weft.targets.cpu.quantized.fixed import fixed_rows
from weft.targets.cpu.quantized.fixed_few import FixedFewRows
from weft.targets.cpu.quantized.fixed_tiled import FixedTiled
from weft.targets.cpu.quantized.matrices import merged, names_of
from weft.targets.cpu.quantized.tiled import Tiled

_LONGEST: Final = 4096  # outputs of a task
_LONG: Final = 3  # times others: the blocks that threads begin with
_AHEAD: Final = 32768  # bytes: enough for memory to answer, and little of a second-level cache

_UNPACKED: Final = 8  # rows of x that are multiplied in the time that codes are unpacked in

FEW: Final = 16
"""The most rows of x that are summed in the order of few.py."""

Axes = tuple[tuple[int, ...], ...]
"""Batch axes, innermost first: extent, and the strides of x, words, scales and biases in bytes."""


@dataclass(frozen=True, slots=True)
class _Product:
    """Products whose results lie one after the other. Strides in bytes; by the names of operands: where they are, from
    one row to the next, and, where matrices are chosen, from one matrix to the next and how many there are."""

    op: Quantized
    kind: Elements
    scales: Layout
    m: int
    n: int
    k: int
    members: int
    axes: Axes
    x_k: int
    at: Mapping[str, Pointer]
    rows: Mapping[str, int]
    matrices: Mapping[str, int]
    counts: Mapping[str, int]
    fixed: bool

    @property
    def gathered(self) -> bool:
        return bool(self.matrices)

    @property
    def terms(self) -> int:
        return self.members * self.m * self.n * self.k

    @property
    def words(self) -> dict[str, Word]:
        """The argument words that say where things are."""
        found: dict[str, Word] = {"biases": self.at["scales"], "biases_row": 0, **self.at}
        found |= {f"{name}_row": stride for name, stride in self.rows.items()}
        if self.gathered:
            found |= {"biases_matrix": 0, **{f"{name}_matrix": stride for name, stride in self.matrices.items()}}
            found |= {f"{name}_count": count for name, count in self.counts.items()}
        return found

    def with_rows_of_batch(self) -> _Product:
        """The members along the innermost batch axis as rows of one taller x, if the matrix is the same for all."""
        if self.gathered or not self.axes:
            return self
        (extent, stride, *same), *outer = self.axes
        row = stride if self.m == 1 else self.rows["x"]
        if any(step != 0 for step in same) or stride != self.m * row:
            return self
        rows = {**self.rows, "x": row}
        return replace(self, m=extent * self.m, members=self.members // extent, rows=rows, axes=tuple(outer))


def lower(op: Quantized, operands: Sequence[Layout], out: Layout) -> Lowering:
    """Pointers: operands, then the result, then copies of operands whose rows are not contiguous."""
    if math.prod(out.shape) == 0:
        return Lowering(())
    is_few = op.transposed and out.shape[-2] <= FEW
    kind = elements_of(out.dtype)
    is_fixed = op.transposed and op.packing.affine and kind.narrow
    gathered = isinstance(op, GatherQuantizedMatmul)
    places, layouts = [Pointer(i) for i in range(len(operands))], list(operands)
    copies: list[Launch] = []
    sizes: list[int] = []
    for i, layout in enumerate(operands):
        if (i == 0 and not is_few and not is_fixed) or _has_plain_rows(layout):
            continue
        layouts[i] = Layout(layout.shape, tuple(row_major(layout.shape, 1)), layout.dtype)
        places[i] = Pointer(len(operands) + 1 + len(sizes))
        sizes.append(math.prod(layout.shape) * layout.dtype.size)
        copies += moves.copy(layout, layouts[i], Pointer(i), places[i])
    if is_fixed:
        fixed = Pointer(len(operands) + 1 + len(sizes))
        codes = Codes(op.packing, kind.work)
        made, layouts[0] = fixed_rows(kind, codes, layouts[0], places[0], fixed)
        copies.append(made)
        places[0] = fixed
        sizes.append(math.prod(layouts[0].shape))
    product = _product(op, layouts, places, out, operands[0].shape[-1], gathered, is_fixed)
    launch = _few(product) if is_few else _tiled(product)
    return Lowering((*copies, launch), tuple(sizes))


def _has_plain_rows(layout: Layout) -> bool:
    """Whether elements along the last axis are neighbours."""
    return not layout.shape or layout.strides[-1] == 1 or layout.shape[-1] == 1


def _product(
    op: Quantized,
    operands: Sequence[Layout],
    places: Sequence[Pointer],
    out: Layout,
    k: int,
    gathered: bool,
    fixed: bool,
) -> _Product:
    names = ("x", *names_of(op.packing))
    arrays = dict(zip(names, operands, strict=False))
    at = {**dict(zip(names, places, strict=False)), "out": Pointer(len(operands))}
    steps = {name: [s * x.dtype.size for s in x.strides] for name, x in arrays.items()}
    rows = {name: step[-2] for name, step in steps.items()}
    m, n = out.shape[-2:]
    kind, scales = elements_of(out.dtype), arrays["scales"]
    matrices: dict[str, int] = {}
    counts: dict[str, int] = {}
    axes: Axes = ()
    if gathered:
        at["lhs"], at["rhs"] = places[-2:]
        matrices = {name: step[0] for name, step in steps.items()}
        counts = {"x": arrays["x"].shape[0], "w": arrays["w"].shape[0]}
    else:
        axes = merged(list(zip(out.shape[:-2], *(step[:-2] for step in steps.values()), strict=True)))
    members = math.prod(out.shape[:-2])
    x_k = steps["x"][-1]
    return _Product(op, kind, scales, m, n, k, members, axes, x_k, at, rows, matrices, counts, fixed)


def _launch(kernel: FewRows | Tiled, words: tuple[Word, ...], work: int, scratch: int) -> Launch:
    tasks = words[0]
    assert isinstance(tasks, int)
    return Launch(Source(f"quantized:{kernel.name}", kernel.name, kernel.ir), words, grain_of(work, tasks), scratch)


# ---- few rows ----


def _few(product: _Product) -> Launch:
    p = product.with_rows_of_batch()
    processor = machine(config.cpu)
    codes = Codes(p.op.packing, p.kind.work, tables=processor.vector >= 32)
    lanes = min(few.LANES, processor.lanes(p.kind))
    single = not p.gathered and p.m == 1
    together = 4 if processor.registers == 32 or (single and lanes >= 8) else 2
    options = {"single": single, "gathered": p.gathered}
    if p.fixed:
        kernel: FewRows = FixedFewRows(p.kind, codes, p.scales.dtype, lanes, together, processor.pairs, **options)
    else:
        kernel = FewRows(p.kind, codes, p.scales.dtype, lanes, together, **options)
    if p.gathered:
        span = max(1, few.ROWS // p.m)
        rows, parts = span * p.m, -(-p.members // span)
        numbers = {"members": p.members, "span": span}
    else:
        rows = p.m if p.m <= few.ROWS else few.ROWS
        each = -(-p.m // rows)
        parts = p.members * each
        numbers = {"rows_of_task": rows, "parts": each}
    # Unpacking a code takes some instructions, however many rows of x there are.
    work = max(STREAM * parts * p.n * p.k // 2, p.terms)
    wanted = max(16 * rows, -(-p.n * parts // tasks_for(work)))
    length = long = equal_blocks(p.n, min(wanted, _LONGEST), few.LANES)
    longs = 0
    # A thread asks for codes that come next in memory, and loses time where it goes on elsewhere: so it begins with
    # most of its part, and only the rest is shared out.
    if parts == 1 and tasks_for(work) > 1 and _LONG * length <= min(_LONGEST, p.n // get_threads()):
        long, longs = _LONG * length, get_threads()
    blocks = longs + -(-(p.n - longs * long) // length)
    scratch = kernel.scratch(rows, long)
    values: dict[str, Word] = {
        "tasks": parts * blocks, "rows": p.m, "many": p.n, "k": p.k, "chunks": max(1, -(-p.k // few.CHUNK)),
        "ahead": together * _ahead(together * to_int(dim_min(p.k, few.CHUNK)) * p.op.bits // 8),
        "block": length, "blocks": blocks, "long": long, "longs": longs,
        "at_sums": scratch.at_sums, "at_totals": scratch.at_totals,
        **p.words, **numbers,
    }  # fmt: skip
    words = block(few.GATHERED if p.gathered else few.WORDS, values, p.axes)
    return _launch(kernel, words, work, scratch.size)


def _ahead(size: int) -> int:
    """How many groups of rows, of so many bytes, there are between what is asked for and what is used."""
    return 1 if size >= _AHEAD else to_int(_AHEAD // dim_max(size, 64))


# ---- many rows ----


def _blocks(p: _Product, tile: Tile, work: int, step: int) -> tuple[int, int]:
    """Rows and columns of blocks. To unpack codes for a block takes as long as some rows of it do in fixed point, so
    these are not cut for the sake of more blocks."""
    known = all(type(number) is int for number in (p.members, p.m, p.n, p.k))
    if not p.fixed or not known or tasks_for(work) == 1:
        return output_blocks(p.kind, tile, p.members, p.m, p.n, work, step)
    return even_blocks(p.m, p.n, largest_blocks(p.kind, tile), (tile.rows, step), p.members, _UNPACKED)


def _tiled(product: _Product) -> Launch:
    p = product.with_rows_of_batch()
    processor = machine(config.cpu)
    codes = Codes(p.op.packing, p.kind.work, tables=processor.vector >= 32)
    if p.fixed:
        tile = processor.tile_of_pairs(p.n)
        kernel: Tiled = FixedTiled(p.kind, tile, codes, p.scales.dtype, processor.pairs, gathered=p.gathered)
    else:
        tile = processor.tile(p.kind)
        read = read_left(p.kind, p.m, p.n, p.k, p.rows["x"], p.x_k)
        kernel = Tiled(p.kind, tile, read, codes, p.scales.dtype, turned=p.op.transposed, gathered=p.gathered)
    work = max(p.terms, PARALLEL if p.members * p.n * p.k * STREAM >= PARALLEL else 0)
    block_m, block_n = _blocks(p, tile, work, kernel.step)
    blocks_m, blocks_n = -(-p.m // block_m), -(-p.n // block_n)
    scratch = kernel.scratch(block_m, block_n, p.k)
    values: dict[str, Word] = {
        **p.words, "tasks": p.members * blocks_m * blocks_n, "a": p.at["x"], "m": p.m, "n": p.n, "k": p.k,
        "chunks": max(1, -(-p.k // gemm.CHUNK)), "a_row": p.rows["x"], "a_k": p.x_k,
        "block_m": block_m, "block_n": block_n, "blocks_m": blocks_m, "blocks_n": blocks_n,
        "panel": scratch.panel, "at_a": scratch.at_a, "at_total": scratch.at_total, "at_words": scratch.at_words,
    }  # fmt: skip
    if isinstance(kernel, FixedTiled):
        values["at_steps"] = kernel.at_steps(scratch, block_n)
    return _launch(kernel, block(kernel.words, values, p.axes), work, scratch.size)
