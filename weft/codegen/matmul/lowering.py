"""From two layouts to launches: which kernel computes a product, how it reads its operands, and how the output is cut into tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.matmul import combine, dot, gemm
from weft.codegen.matmul.combine import Combine
from weft.codegen.matmul.dot import Dot
from weft.codegen.matmul.elements import Elements, elements_of
from weft.codegen.matmul.frame import Word, block
from weft.codegen.matmul.gemm import Gemm
from weft.codegen.matmul.machine import machine
from weft.config import config
from weft.runtime.engine import Source

# Work is counted in real multiply-adds, of which a core does some 50 in a nanosecond; an element that comes from memory takes as long
# as _STREAM of them.
_STREAM: Final = 8
_PARALLEL: Final = 1 << 20  # less work than this stays on one thread
_TASK: Final = 1 << 17  # the least that is worth handing to a thread
_TASKS: Final = 16  # as many tasks as there should be if there is work enough: threads take them as they come

_BLOCK_M: Final = 128
_BLOCK_N: Final = 1536  # bytes of a packed row of b: with 256 of them, a third to a half of a second-level cache
_IN_PLACE: Final = 1 << 17  # bytes of b that may be read in place, row by row, however often
_FEW: Final = 32  # rows of x that the skinny kernel takes together
_SPLIT: Final = 8  # chunks of k that are worth being tasks of their own


def lower(a: Layout, b: Layout, out: Layout) -> Lowering:
    """out[..., m, n] = a[..., m, k] @ b[..., k, n], one dtype, equal batch axes; `out` is contiguous. Pointers: 0 a, 1 b, 2 out."""
    if math.prod(out.shape) == 0:
        return Lowering(())
    product = _product(a, b)
    if is_skinny(product.m, product.n, product.k):
        return _skinny(product)
    return _tiled(product)


def is_skinny(m: int, n: int, k: int) -> bool:
    """Whether a product is summed in the order of dot.py. A function of these sizes alone: the order decides the bits."""
    return k >= 64 if min(m, n) == 1 else min(m, n) <= 8 and k >= 128


@dataclass(frozen=True, slots=True)
class _Operand:
    """A matrix in memory; strides in bytes."""

    pointer: Pointer
    row: int
    column: int

    @property
    def transposed(self) -> _Operand:
        return _Operand(self.pointer, self.column, self.row)


@dataclass(frozen=True, slots=True)
class _Product:
    """A batch of products. `axes`: (extent, stride of a, stride of b), innermost first; members of `out` lie one after the other."""

    kind: Elements
    m: int
    n: int
    k: int
    a: _Operand
    b: _Operand
    out: _Operand
    axes: tuple[tuple[int, ...], ...]
    flipped: bool = False

    @property
    def members(self) -> int:
        return math.prod(extent for extent, *_ in self.axes)

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


def _product(a: Layout, b: Layout) -> _Product:
    kind, size = elements_of(a.dtype), a.dtype.size
    (m, k), n = a.shape[-2:], b.shape[-1]
    axes = [(e, s * size, t * size) for e, s, t in zip(a.shape[:-2], a.strides[:-2], b.strides[:-2], strict=True)]
    left = _Operand(Pointer(0), a.strides[-2] * size, a.strides[-1] * size)
    right = _Operand(Pointer(1), b.strides[-2] * size, b.strides[-1] * size)
    return _Product(kind, m, n, k, left, right, _Operand(Pointer(2), n * size, size), _merged(axes))


def _merged(axes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Batch axes (outermost first) as few as possible, innermost first."""
    merged: list[tuple[int, ...]] = []
    for extent, *strides in reversed(axes):
        if extent == 1:
            continue
        if merged and all(stride == merged[-1][0] * inner for stride, inner in zip(strides, merged[-1][1:], strict=True)):
            merged[-1] = (extent * merged[-1][0], *merged[-1][1:])
        else:
            merged.append((extent, *strides))
    return tuple(merged)


def _blocks(extent: int, largest: int, step: int) -> int:
    """The length, a multiple of `step`, of blocks that are equal but for the last and not longer than `largest`."""
    return _round_up(-(-extent // -(-extent // largest)), step)


def _round_up(x: int, step: int) -> int:
    return -(-x // step) * step


def _grain(work: int, tasks: int) -> int:
    """How many tasks are worth a thread; 0 keeps them on one."""
    return 0 if work < _PARALLEL or tasks == 1 else -(-_TASK * tasks // work)


def _launch(
    kernel: Gemm | Dot | Combine, words: Sequence[str], values: Mapping[str, Word], axes: Sequence[tuple[int, ...]], work: int, scratch: int
) -> Launch:
    tasks = values["tasks"]
    assert isinstance(tasks, int)
    source = Source(f"matmul:{kernel.name}", kernel.name, kernel.ir)
    return Launch(source, block(words, values, axes), _grain(work, tasks), scratch)


# ---- tiled ----


def _tiled(product: _Product) -> Lowering:
    p = product.transposed if product.n == 1 else product
    if p.axes and p.axes[0][1:] == (p.m * p.a.row, 0):  # one b for all members: they are more rows of a
        p = replace(p, m=p.m * p.axes[0][0], axes=p.axes[1:])
    whole = _gemm(p)
    # A partial result that takes more memory traffic than the operands it is made from does not pay.
    if p.terms >= 4 * _PARALLEL and whole.words[0] < _TASKS // 2 and 4 * p.m * p.n <= (p.m + p.n) * gemm.CHUNK:
        return _split(p, gemm.CHUNK, _gemm) or Lowering((whole,))
    return Lowering((whole,))


def _gemm(p: _Product, partial: bool = False) -> Launch:
    processor = machine(config.cpu)
    tile = processor.tile(p.kind)
    kernel = Gemm(p.kind, tile, *_reads(p, processor.masks), flipped=p.flipped, partial=partial)
    block_m, block_n = _BLOCK_M, max(_BLOCK_N // p.kind.work.size, tile.columns)
    while p.terms >= _PARALLEL and p.members * -(-p.m // block_m) * -(-p.n // block_n) < _TASKS:
        if block_m * 4 > block_n and block_m > 4 * tile.rows:
            block_m //= 2
        elif block_n > 2 * tile.columns:
            block_n //= 2
        else:
            break
    block_m, block_n = _blocks(p.m, block_m, tile.rows), _blocks(p.n, block_n, tile.columns)
    blocks_m, blocks_n = -(-p.m // block_m), -(-p.n // block_n)
    scratch = kernel.scratch(block_m, block_n)
    values: dict[str, Word] = {
        "tasks": p.members * blocks_m * blocks_n, "a": p.a.pointer, "b": p.b.pointer, "out": p.out.pointer, "m": p.m, "n": p.n, "k": p.k,
        "a_row": p.a.row, "a_k": p.a.column, "b_k": p.b.row, "b_column": p.b.column, "chunks": max(1, -(-p.k // gemm.CHUNK)),
        "block_m": block_m, "block_n": block_n, "blocks_m": blocks_m, "blocks_n": blocks_n,
        "at_a": scratch.at_a, "at_partial": scratch.at_partial, "at_total": scratch.at_total,
    }  # fmt: skip
    return _launch(kernel, gemm.WORDS, values, p.axes, p.terms, scratch.size)


def _reads(p: _Product, masks: bool) -> tuple[gemm.Read, gemm.Read]:
    """How the tiled kernel reads a and b. Elements of a are used one by one, so any strides will do unless they must be widened."""
    size = p.kind.memory.size
    read_a: gemm.Read = "direct"
    if p.kind.narrow:
        read_a = "rows" if p.a.column == size or p.k == 1 else "columns" if p.a.row == size else "any"
    if p.b.column == size:
        in_place = masks and not p.kind.narrow and (p.m < 64 or p.k * p.n * size <= _IN_PLACE)
        return read_a, "direct" if in_place else "rows"
    return read_a, "columns" if p.b.row == size or p.k == 1 else "any"


# ---- skinny ----


def _skinny(product: _Product) -> Lowering:
    p = product if product.m <= product.n else product.transposed
    if p.m == 1 and p.axes and p.axes[0][2] == 0 and p.axes[0][0] <= _FEW:  # one w for all members: they are more rows of x
        members, stride, _ = p.axes[0]
        rows = replace(p.a, row=stride)
        p = replace(p, m=members, a=rows, out=replace(p.out, row=p.n * p.out.column), axes=p.axes[1:])
    whole = _dot(p)
    if _streamed(p) >= 4 * _PARALLEL and whole.words[0] < _TASKS // 2:
        return _split(p, dot.CHUNK, _dot) or Lowering((whole,))
    return Lowering((whole,))


def _streamed(p: _Product) -> int:
    """The work of a skinny product: its terms, or reading its large operand if that takes longer."""
    return max(p.terms, _STREAM * p.members * p.n * p.k)


def _dot(p: _Product, partial: bool = False) -> Launch:
    size, work = p.kind.memory.size, _streamed(p)
    read: dot.Read = "rows" if p.b.row == size or p.k == 1 else "columns" if p.b.column == size or p.n == 1 else "any"
    kernel = Dot(p.kind, 1 if p.m == 1 else 4, read, machine(config.cpu).lanes(p.kind), flipped=p.flipped, partial=partial)
    # A task copies all of x first, so it should have many more rows of w.
    least = _round_up(16 * p.m, kernel.panel if read == "columns" else 16)
    wanted = -(-p.n * p.members // _TASKS) if work >= _PARALLEL else p.n
    length = _blocks(p.n, max(least, min(wanted, 4096)), kernel.panel if read == "columns" else dot.ROWS)
    blocks = -(-p.n // length)
    scratch = kernel.scratch(p.m, length)
    values: dict[str, Word] = {
        "tasks": p.members * blocks, "x": p.a.pointer, "w": p.b.pointer, "out": p.out.pointer, "few": p.m, "many": p.n, "k": p.k,
        "x_row": p.a.row, "x_k": p.a.column, "w_row": p.b.column, "w_k": p.b.row, "out_few": p.out.row, "out_many": p.out.column,
        "chunks": max(1, -(-p.k // dot.CHUNK)), "block": length, "blocks": blocks,
        "at_sums": scratch.at_sums, "at_total": scratch.at_total,
    }  # fmt: skip
    return _launch(kernel, dot.WORDS, values, p.axes, work, scratch.size)


# ---- long sums of few elements ----


def _split(p: _Product, chunk: int, one: Callable[[_Product, bool], Launch]) -> Lowering | None:
    """Every chunk of k a member of a larger batch, so that threads share them, and then the sum of their partial results."""
    count = (p.k - 1) // chunk  # the last chunk, which may be shorter, goes on its own
    if count < _SPLIT:
        return None
    elements, wide = p.m * p.n, p.kind.work.size
    ratio = wide // p.kind.memory.size

    def partial(number: int, first: int, k: int, axes: tuple[tuple[int, ...], ...]) -> Launch:
        a, b = (replace(x, pointer=Pointer(x.pointer.value, first * step)) for x, step in ((p.a, p.a.column), (p.b, p.b.row)))
        out = _Operand(Pointer(number), p.out.row * ratio, p.out.column * ratio)
        return one(replace(p, k=k, a=a, b=b, out=out, axes=axes), True)

    parts = partial(3, 0, chunk, ((count, chunk * p.a.column, chunk * p.b.row), *p.axes))
    rest = partial(4, count * chunk, p.k - count * chunk, p.axes)
    lanes = machine(config.cpu).lanes(p.kind)
    length = min(_round_up(elements, lanes), 16 * lanes)
    blocks = -(-elements // length)
    values: dict[str, Word] = {
        "tasks": p.members * blocks, "parts": Pointer(3), "rest": Pointer(4), "out": Pointer(2),
        "count": count, "elements": elements, "block": length, "blocks": blocks,
    }  # fmt: skip
    total = _launch(Combine(p.kind, lanes), combine.WORDS, values, (), _STREAM * p.members * elements * count, 0)
    each = p.members * elements * wide
    return Lowering((parts, rest, total), (count * each, each))
