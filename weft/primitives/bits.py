"""What the bits of a number are: another type, an infinity, the parts of a complex number.

All of it moves bits and computes nothing. There are two reinterpretations: `Bitcast` is elementwise and fuses;
`Reinterpret` copies memory, and may change the size of elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node, Size, kind_of
from weft.llvm.builder import STORED, Builder, Complex, Value
from weft.primitives.base import (
    ByOperand,
    Discrete,
    Elementwise,
    KernelOperation,
    Sample,
    bind,
    full_like,
    move_batch_to_front,
)
from weft.primitives.checks import need
from weft.primitives.elementwise import INEXACT, Comparison, Imag, Stepwise, binary, draw, real, samples

UNSIGNED = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}
"""The unsigned integers by size in bytes."""


def _bitcast_sample(to: Dtype) -> Sample:
    def make(rng: np.random.Generator, dtype: Dtype) -> list[np.ndarray]:
        source = dtype if dtype.size == to.size else UNSIGNED[to.size]
        return [draw(rng, source, (3, 37))]

    return Sample(make, {"dtype": to}, smooth=False, name=to.name)


class Bitcast(Stepwise):
    """The same bits read as another type of the same size; a byte that is not 0 is a true bool. No derivative."""

    dtype: Dtype
    compute_halves = False
    moves = (0,)
    dtypes = tuple(d for d in dt.ALL if d.size in UNSIGNED)
    samples = tuple(_bitcast_sample(to) for to in dt.ALL if to.size in UNSIGNED)

    def result(self, *dtypes: Dtype) -> Dtype:
        return self.dtype

    def check(self, *kinds: ArrayType) -> None:
        super().check(*kinds)
        need(self.dtype in type(self).dtypes and self.dtype.size == kinds[0].dtype.size, "another size of elements")

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.array(x, order="C").view(self.dtype.np)

    def emit(self, b: Builder, x: Any) -> Any:
        return _from_bits(b, _to_bits(b, x), self.dtype)


def _to_bits(b: Builder, x: Value | Complex) -> Value:
    """The bits of x in memory, as an unsigned integer."""
    if not isinstance(x, Complex):
        return b.memory_bits(x)
    low, high = (b.cast(b.memory_bits(part), dt.uint64) for part in (x.re, x.im))
    return low | (high << 32)


def _from_bits(b: Builder, bits: Value, dtype: Dtype) -> Value | Complex:
    """What these bits are as another type; a moved value of a type that memory holds in another form stays as it is."""
    if dtype in STORED:
        return bits
    if not dtype.is_complex:
        return b.from_memory_bits(bits, dtype)
    low, high = (b.cast(part, dt.uint32) for part in (bits, bits >> 32))
    return Complex(b.bitcast(low, dt.float32), b.bitcast(high, dt.float32))


class Reinterpret(KernelOperation, Discrete):
    """The bytes of the operand as elements of another type, along the last axis if the size differs. No derivative."""

    dtype: Dtype
    moves = (0,)
    samples = tuple(
        Sample(
            lambda rng, dtype, shape=shape: [draw(rng, dtype, shape)],  # type: ignore[misc]
            {"dtype": to},
            smooth=False,
            name=f"{to.name} {len(shape)}",
        )
        for to in dt.ALL
        for shape in (((48,), (3, 0)) if to is dt.uint8 else ((3, 48),))
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        (kind,) = kinds
        old, new = kind.dtype.size, self.dtype.size
        return kind_of(kind.shape if old == new else (*kind.shape[:-1], kind.shape[-1] * old // new), self.dtype)

    def check(self, x: ArrayType) -> None:
        self.check_dtypes(x)
        old, new = x.dtype.size, self.dtype.size
        need(old == new or (x.ndim >= 1 and x.shape[-1] * old % new == 0), f"{x} as {self.dtype.name}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        kind = self.infer(kind_of(x.shape, dt.from_numpy(x.dtype)))
        return np.frombuffer(np.ascontiguousarray(x).tobytes(), self.dtype.np).reshape(kind.shape)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, move_batch_to_front(inputs[0], axes[0], size)), 0


class IsInf(Comparison):
    """Whether x is infinite (in either part)."""

    samples = samples((-3.0, 3.0), smooth=False)
    dtypes = INEXACT
    reference = staticmethod(np.isinf)

    def emit(self, b: Builder, x: Any) -> Any:
        if isinstance(x, Complex):
            return b.abs(x.re).eq(np.inf) | b.abs(x.im).eq(np.inf)
        return b.abs(x).eq(np.inf)


class IsFinite(Comparison):
    """Whether x is neither infinite nor NaN (in both parts)."""

    samples = samples((-3.0, 3.0), smooth=False)
    dtypes = INEXACT
    reference = staticmethod(np.isfinite)

    def emit(self, b: Builder, x: Any) -> Any:
        if isinstance(x, Complex):
            return (b.abs(x.re) < np.inf) & (b.abs(x.im) < np.inf)
        return b.abs(x) < np.inf


class Cartesian(Elementwise):
    """The complex number x + iy of two real ones; unlike the sum it keeps infinities, NaNs and signs of zeros apart."""

    compute_halves = False
    samples = binary
    dtypes = (dt.float32, dt.float64)

    def result(self, *dtypes: Dtype) -> Dtype:
        return dt.complex_of(dtypes[0])

    def reference(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.stack([x, y], -1).view(dt.complex_of(dt.from_numpy(x.dtype)).np)[..., 0]

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return bind(self, *(tangents.get(i, full_like(x, 0)) for i, x in enumerate(primals)))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        parts = {0: lambda: real(cotangent), 1: lambda: bind(Imag(), cotangent)}
        return {position: parts[position]() for position in sorted(wanted)}

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return Complex(x, y)
