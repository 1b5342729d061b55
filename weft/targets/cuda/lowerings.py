"""Operations with kernels of their own on a GPU: products, and those that only move elements. The host computes the
others (targets/spread.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from weft import dtypes as dt
from weft.codegen.kernel import Access, Store
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.primitives.base import Primitive
from weft.primitives.bits import Reinterpret
from weft.primitives.contraction import Matmul
from weft.primitives.custom import Barrier
from weft.primitives.joins import Concatenate
from weft.primitives.views import Contiguous, SliceUpdate
from weft.targets import copying
from weft.targets.axes import Axis, axes_of, merged, scaled, stepping, words_of
from weft.targets.cuda import products
from weft.targets.cuda.builder import THREADS
from weft.targets.cuda.forms import CudaMap
from weft.targets.cuda.kernel import blocks_for

Operands = Sequence[Layout]

_BITS = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}
"""What elements are moved as; larger ones as what they are."""


def copy(x: Layout, y: Layout, source: Pointer, target: Pointer) -> list[Launch]:
    """y[...] = x[...], of any strides: a map without steps."""
    count = math.prod(x.shape)
    if count == 0:
        return []
    unit = _BITS.get(x.dtype.size, x.dtype)
    *outer, inner = merged(axes_of(x.shape, scaled(x), scaled(y))) or [Axis(1, (unit.size, unit.size))]
    read = Access(unit, "memory", "full", stepping(inner.strides[0], unit.size))
    write = Access(unit, "memory", "full", "unit" if inner.strides[1] == unit.size else "stride")
    kernel = CudaMap(len(outer), (read,), (), (Store(0, write),))
    numbers = {"units": blocks_for(count, THREADS), "count": count}
    return [Launch(kernel.source(), words_of(kernel.fields(), [source, target], outer, inner, {**numbers}))]


def _matmul(op: Matmul, operands: Operands, out: Layout) -> Lowering:
    return products.lower(operands[0], operands[1], out)


def _copied(op: Barrier | Contiguous, operands: Operands, out: Layout) -> Lowering:
    return Lowering(tuple(copy(operands[0], out, Pointer(0), Pointer(len(operands)))))


def _concatenate(op: Concatenate, operands: Operands, out: Layout) -> Lowering:
    return copying.concatenate(copy, operands, out, op.axis)


def _reinterpret(op: Reinterpret, operands: Operands, out: Layout) -> Lowering:
    return copying.reinterpret(copy, operands[0], out)


def _slice_update(op: SliceUpdate, operands: Operands, out: Layout) -> Lowering:
    return copying.slice_update(copy, operands[0], operands[1], out, op.starts, op.steps)  # type: ignore[arg-type]


LOWERINGS: Mapping[type[Primitive], Callable[..., Lowering]] = {
    Matmul: _matmul,
    Barrier: _copied,
    Contiguous: _copied,
    Concatenate: _concatenate,
    Reinterpret: _reinterpret,
    SliceUpdate: _slice_update,
}
