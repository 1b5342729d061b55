"""Elements of matrix products: how they lie in memory, how they are multiplied and summed, and how a tile is turned.

The kernels of this package are written once for all dtypes; what differs between real, narrow, complex and integer
elements is here.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.records import dataclass

_SIGNED = {1: dt.int8, 2: dt.int16, 4: dt.int32, 8: dt.int64}


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements that memory holds as `memory` and that are multiplied and summed as `work`."""

    memory: Dtype
    work: Dtype

    @property
    def narrow(self) -> bool:
        """Whether a sum has to be rounded or cut before it is stored."""
        return self.memory is not self.work

    @property
    def parts(self) -> int:
        return 2 if self.work.is_complex else 1

    @property
    def part(self) -> Dtype:
        return dt.real_of(self.work)


def elements_of(dtype: Dtype) -> Elements:
    """Halves are summed in float32. Integers wrap, so signs do not matter, and short ones may be cut at the end."""
    if dtype in dt.HALVES:
        return Elements(dtype, dt.float32)
    if dtype.is_integer:
        signed = _SIGNED[dtype.size]
        return Elements(signed, signed if signed.size >= 4 else dt.int32)
    return Elements(dtype, dtype)


def summing(kind: Elements) -> Elements:
    """The elements of partial sums: in memory as they are in flight."""
    return Elements(kind.work, kind.work)


# ---- in flight ----


def load(b: Builder, kind: Elements, pointer: Value, lanes: int, mask: Value | None = None) -> AnyValue:
    """Consecutive elements, as `work`."""
    return b.convert(b.load(pointer, kind.memory, lanes, mask), kind.work)


def store(b: Builder, kind: Elements, x: AnyValue, pointer: Value, mask: Value | None = None) -> None:
    """Sums to memory, rounded or cut to what memory holds."""
    b.store(b.convert(x, kind.memory), pointer, mask)


def zero(b: Builder, kind: Elements, lanes: int) -> AnyValue:
    nothing = b.const(kind.part, 0, lanes)
    return Complex(nothing, nothing) if kind.parts == 2 else nothing


def spread(b: Builder, x: AnyValue, lanes: int) -> AnyValue:
    if isinstance(x, Complex):
        return Complex(b.splat(x.re, lanes), b.splat(x.im, lanes))
    return b.splat(x, lanes)


def add(x: AnyValue, y: AnyValue) -> AnyValue:
    if isinstance(x, Complex) and isinstance(y, Complex):
        return x + y
    assert isinstance(x, Value)
    assert isinstance(y, Value)
    return x + y


def multiply_add(b: Builder, x: AnyValue, y: AnyValue, total: AnyValue) -> AnyValue:
    """total + x * y; floats with one rounding, the parts of complex numbers with two, in the order written here."""
    if isinstance(total, Complex):
        assert isinstance(x, Complex)
        assert isinstance(y, Complex)
        re = b.fma(-x.im, y.im, b.fma(x.re, y.re, total.re))
        im = b.fma(x.im, y.re, b.fma(x.re, y.im, total.im))
        return Complex(re, im)
    assert isinstance(x, Value)
    assert isinstance(y, Value)
    return b.fma(x, y, total) if total.dtype.is_float else total + x * y


def flat(values: Sequence[AnyValue]) -> list[Value]:
    """The parts of all values, as a loop carries them."""
    return [part for x in values for part in ((x.re, x.im) if isinstance(x, Complex) else (x,))]


def unflat(kind: Elements, parts: Sequence[Value]) -> list[AnyValue]:
    if kind.parts == 1:
        return list(parts)
    return [Complex(re, im) for re, im in zip(parts[::2], parts[1::2], strict=True)]


def lane_sums(b: Builder, vectors: list[Value]) -> Value:
    """The sum over the lanes of each of several vectors, together as one vector: lane i and lane i + n / 2 of n, then
    the same of these sums."""
    whole = width = vectors[0].lanes  # lanes that belong to one sum
    while width > 1:
        alone = width == whole or len(vectors) == 1
        pairs = [(x, None) for x in vectors] if alone else list(zip(vectors[::2], vectors[1::2], strict=True))
        low = [i for i in range(vectors[0].lanes * (1 if alone else 2)) if i % width < width // 2]
        high = [i + width // 2 for i in low]
        if len(low) == 1:  # builders know no vectors of one element
            return b.extract(vectors[0], 0) + b.extract(vectors[0], 1)
        vectors = [b.shuffle(x, y, low) + b.shuffle(x, y, high) for x, y in pairs]
        width //= 2
    return vectors[0]
