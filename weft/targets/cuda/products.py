"""Matrix products on a GPU: plain kernels that sum in the order of the CPU's (docs/numerics.md)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Final

from weft.codegen.kernel import LANES
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.codegen.words import fields_of
from weft.llvm.builder import AnyValue, Value
from weft.records import dataclass
from weft.targets.axes import Axis, merged, scaled, words_of
from weft.targets.cpu.matmul import dot, gemm
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import Elements, elements_of
from weft.targets.cpu.matmul.lowering import for_all, is_skinny
from weft.targets.cuda.builder import THREADS, Exchange, ThreadFrame
from weft.targets.cuda.kernel import CudaKernel, blocks_for

TILE: Final = 16
"""Rows and columns of the output that a block of threads computes, and terms that it reads at a time."""

_MORE: Final = ("m", "k", "columns", "a_row", "a_k", "b_k", "b_column")


def lower(a: Layout, b: Layout, out: Layout) -> Lowering:
    """out[..., m, n] = a[..., m, k] @ b[..., k, n]; one dtype, equal batch axes or none of b, `out` contiguous."""
    if math.prod(out.shape) == 0:
        return Lowering(())
    (m, k), n = a.shape[-2:], b.shape[-1]
    skinny = is_skinny(a, b)
    b = for_all(b, a)
    left, right, result = scaled(a), scaled(b), scaled(out)
    whole = [Axis(size, strides) for size, *strides in zip(a.shape[:-2], left, right, result, strict=False)]  # type: ignore[arg-type]
    outer = merged([Axis(axis.size, tuple(axis.strides)) for axis in whole])
    kernel = ProductKernel(len(outer), elements_of(a.dtype), skinny)
    members = math.prod([axis.size for axis in outer])
    tiles = blocks_for(m * n, TILE) if skinny else blocks_for(m, TILE) * blocks_for(n, TILE)
    numbers = {
        "units": members * tiles, "m": m, "k": k, "columns": n,
        "a_row": left[-2], "a_k": left[-1], "b_k": right[-2], "b_column": right[-1],
    }  # fmt: skip
    pointers = [Pointer(0), Pointer(1), Pointer(2)]
    words = words_of(kernel.fields(), pointers, outer, Axis(tiles, (0, 0, 0)), {**numbers})
    return Lowering((Launch(kernel.source(), words),))


@dataclass(frozen=True, slots=True)
class ProductKernel(CudaKernel):
    """A batch of products; `n` counts the pieces of each that blocks of threads compute. `skinny`: long sums of few
    elements, with 16 threads for each element; else a thread has an element, and a block of them a square."""

    title = "product"
    outer: int
    kind: Elements
    skinny: bool

    def __str__(self) -> str:
        order = "skinny" if self.skinny else "tiled"
        return f"product outer={self.outer} {order} {self.kind.memory.name} in {self.kind.work.name}"

    def fields(self) -> list[str]:
        return fields_of(self.outer, 3, *_MORE)

    def emit(self, frame: ThreadFrame) -> None:
        (_Skinny if self.skinny else _Tiled)(self, frame).emit()


class _Sums(ABC):
    """What both kernels have."""

    def __init__(self, kernel: ProductKernel, frame: ThreadFrame) -> None:
        self.kind, self.frame, self.b = kernel.kind, frame, frame.b
        member, self.piece = frame.divide(frame.block, frame["n"])
        indices = frame.indices(member)
        self.left, self.right, self.out = (frame.at(operand, indices) for operand in range(3))
        self.memory = self.kind.memory.size

    @abstractmethod
    def emit(self) -> None:
        """The code of the kernel."""

    def chunks(self, size: int) -> Value:
        """How many chunks of k there are: one at least."""
        count = self.frame.divide(self.frame["k"] + (size - 1), size)[0]
        return self.b.intrinsic("smax", count, self.b.i64(1))

    def a(self, row: Value, k: Value) -> AnyValue:
        f, b = self.frame, self.b
        return el.load(b, self.kind, b.gep(self.left, row * f["a_row"] + k * f["a_k"]), 1)

    def y(self, k: Value, column: Value) -> AnyValue:
        f, b = self.frame, self.b
        return el.load(b, self.kind, b.gep(self.right, k * f["b_k"] + column * f["b_column"]), 1)

    def total(self, before: AnyValue, partial: AnyValue, first: Value) -> AnyValue:
        """Partial sums are added from the left; the first one is not added to anything."""
        return self.b.select(first, partial, el.add(before, partial))

    def store(self, x: AnyValue, row: Value, column: Value) -> None:
        f, b = self.frame, self.b
        el.store(b, self.kind, x, b.gep(self.out, (row * f["columns"] + column) * self.memory))

    def clamped(self, index: Value, count: Value) -> Value:
        """An index that there is."""
        return self.frame.least(index, count - 1)


class _Tiled(_Sums):
    """Squares of both operands are read by the threads together, and shared."""

    def emit(self) -> None:
        f, b, kind = self.frame, self.b, self.kind
        wide, high = f.divide(f["columns"] + (TILE - 1), TILE)[0], f.thread >> 4
        low = f.thread & (TILE - 1)
        tile_i, tile_j = f.divide(self.piece, wide)
        i, j = tile_i * TILE + high, tile_j * TILE + low
        row, column = self.clamped(i, f["m"]), self.clamped(j, f["columns"])
        exchange, zero = Exchange(f, [kind.work, kind.work]), el.zero(b, kind, 1)
        chunks = self.chunks(gemm.CHUNK)
        with b.loop(0, chunks, 1, *el.flat([zero])) as chunk:
            begin = chunk.index * gemm.CHUNK
            end = f.least(begin + gemm.CHUNK, f["k"])
            with b.loop(begin, end, TILE, *el.flat([zero])) as step:
                k, depth = step.index, f.least(end - step.index, TILE)
                exchange.give([self.a(row, self.clamped(k + low, end)), self.y(self.clamped(k + high, end), column)])
                with b.loop(0, depth, 1, *step.carried) as term:
                    x, _ = exchange.take(high * TILE + term.index)
                    _, y = exchange.take(term.index * TILE + low)
                    (total,) = el.unflat(kind, term.carried)
                    term.carry(*el.flat([el.multiply_add(b, x, y, total)]))
                b.barrier()
                step.carry(*term.carried)
            (before,), (partial,) = el.unflat(kind, chunk.carried), el.unflat(kind, step.carried)
            chunk.carry(*el.flat([self.total(before, partial, chunk.index.eq(0))]))
        with b.when((i < f["m"]) & (j < f["columns"])):
            self.store(el.unflat(kind, chunk.carried)[0], i, j)


class _Skinny(_Sums):
    """16 interleaved sums for each element, then the tree over them."""

    def emit(self) -> None:
        f, b, kind = self.frame, self.b, self.kind
        lane, number = f.thread & (LANES - 1), self.piece * (THREADS // LANES) + (f.thread >> 4)
        count = f["m"] * f["columns"]
        row, column = f.divide(self.clamped(number, count), f["columns"])
        exchange, zero = Exchange(f, [kind.work]), el.zero(b, kind, 1)
        with b.loop(0, self.chunks(dot.CHUNK), 1, *el.flat([zero])) as chunk:
            begin = chunk.index * dot.CHUNK
            end = f.least(begin + dot.CHUNK, f["k"])
            with b.loop(begin + lane, end, LANES, *el.flat([zero])) as term:
                (total,) = el.unflat(kind, term.carried)
                x, y = self.a(row, term.index), self.y(term.index, column)
                term.carry(*el.flat([el.multiply_add(b, x, y, total)]))
            (partial,) = el.unflat(kind, term.carried)
            half = LANES
            while half > 1:
                half //= 2
                exchange.give([partial])
                (other,) = exchange.take((f.thread + half) & (THREADS - 1))
                partial = el.add(partial, other)  # only the row's first thread has a use for it in the end
                b.barrier()
            (before,) = el.unflat(kind, chunk.carried)
            chunk.carry(*el.flat([self.total(before, partial, chunk.index.eq(0))]))
        with b.when((number < count) & lane.eq(0)):
            self.store(el.unflat(kind, chunk.carried)[0], row, column)
