"""What the bits of a number are: another type, an infinity, the parts of a complex number.

All of it moves bits and computes nothing. (A signalling NaN of float16 becomes a quiet one when it is loaded.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.codegen.builder import Builder, Complex, Value
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives.base import Elementwise, Sample, bind, full_like
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
    dtypes = tuple(d for d in dt.ALL if d.size in UNSIGNED)
    samples = tuple(_bitcast_sample(to) for to in dt.ALL if to.size in UNSIGNED)

    def result(self, *dtypes: Dtype) -> Dtype:
        return self.dtype

    def reference(self, x: np.ndarray) -> np.ndarray:
        raw = np.array(x, order="C")
        return raw.view(np.uint8) != 0 if self.dtype.is_bool else raw.view(self.dtype.np)

    def emit(self, b: Builder, x: Any) -> Any:
        if x.dtype is self.dtype:
            return x
        return _from_bits(b, _to_bits(b, x), self.dtype)


def _to_bits(b: Builder, x: Value | Complex) -> Value:
    """The bits of x in memory, as an unsigned integer."""
    if not isinstance(x, Complex):
        return b.memory_bits(x)
    low, high = (b.cast(b.memory_bits(part), dt.uint64) for part in (x.re, x.im))
    return low | (high << 32)


def _from_bits(b: Builder, bits: Value, dtype: Dtype) -> Value | Complex:
    if not dtype.is_complex:
        return b.from_memory_bits(bits, dtype)
    low, high = (b.cast(part, dt.uint32) for part in (bits, bits >> 32))
    return Complex(b.bitcast(low, dt.float32), b.bitcast(high, dt.float32))


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

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: Any) -> Node | None:
        return bind(self, *(tangents.get(i, full_like(x, 0)) for i, x in enumerate(primals)))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> Any:
        parts = {0: lambda: real(cotangent), 1: lambda: bind(Imag(), cotangent)}
        return {position: parts[position]() for position in sorted(wanted)}

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return Complex(x, y)
