"""Values of a kernel's threads in flight, and how operations of the typed tree become instructions of the builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.llvm.builder import Builder, Value
from weft.primitives.kernel_functions import LIBRARY

COMPARE: Final = {"eq": Value.eq, "ne": Value.ne, "lt": Value.__lt__, "le": Value.__le__, "gt": Value.__gt__,
                  "ge": Value.__ge__}  # fmt: skip


class Affine:
    """An integer that grows by `stride` from lane to lane, which is `base` in the first."""

    __slots__ = ("base", "stride")

    def __init__(self, base: Value, stride: int) -> None:
        self.base, self.stride = base, stride

    def spread(self, lanes: int) -> Value:
        """As a vector."""
        b, dtype = self.base.b, self.base.dtype
        steps = b.iota(dtype, lanes)
        if self.stride != 1:
            steps = steps * self.stride
        return b.splat(self.base, lanes) + steps


AnyLane = Value | Affine


def halves_widened(b: Builder, xs: Sequence[Value]) -> list[Value]:
    """Halves travel as float32: the same values, under that name."""
    return [Value(b, x.text, dt.float32, x.lanes) if x.dtype in dt.HALVES else x for x in xs]


def operate(b: Builder, name: str, dtype: Dtype, xs: Sequence[Value]) -> Value:
    """An operation; halves are computed as float32 and rounded once."""
    lanes = max(x.lanes for x in xs)
    xs = [b.splat(x, lanes) for x in xs]
    if name in COMPARE:
        return COMPARE[name](*halves_widened(b, xs))
    if dtype in dt.HALVES or (dtype.is_bool and xs[0].dtype in dt.HALVES):
        found = _operate(b, name, dt.float32 if dtype in dt.HALVES else dtype, halves_widened(b, xs))
        return b.cast(found, dtype)
    return _operate(b, name, dtype, xs)


def _operate(b: Builder, name: str, dtype: Dtype, xs: Sequence[Value]) -> Value:
    x, y = xs[0], xs[-1]
    found: Any
    match name:
        case "add":
            return x + y
        case "sub":
            return x - y
        case "mul":
            return x * y
        case "fdiv":
            return x / y
        case "neg":
            return -x
        case "and" | "or" | "xor":
            return x & y if name == "and" else x | y if name == "or" else x ^ y
        case "not" | "invert":
            return ~x
        case "shl" | "shr":
            count = y & (dtype.bits - 1)
            return x << count if name == "shl" else x >> count
        case "ult":
            return b.cast(x, dt.uint64) < b.cast(y, dt.uint64)
        case "within":
            return b.choose(x, y, -(1 << 63))
        case "div" | "rem":
            return b.int_divide(x, y, remainder=name == "rem")
        case "floordiv" | "mod":
            return _floor_divide(b, name, dtype, x, y)
        case "fmin" | "fmax":
            less = x < y if name == "fmin" else x > y
            return b.choose(less | b.isnan(y), x, y)
        case "fmod":
            found = LIBRARY["remainder"].emit(b, b.abs(x), b.abs(y))
            return b.copysign(found, x)
        case "copysign":
            return b.copysign(x, y)
        case "exp2" | "exp10":
            found = LIBRARY["pow"].emit(b, b.const(dtype, 2 if name == "exp2" else 10, x.lanes), x)
            return found  # type: ignore[no-any-return]
        case "round":
            whole = b.trunc(x)
            up = b.choose(b.abs(x - whole) >= 0.5, b.const(dtype, 1, x.lanes), 0)
            return whole + b.copysign(up, x)
        case "fma":
            return b.fma(xs[0], xs[1], xs[2])
        case "popcount":
            return b.intrinsic("ctpop", x)
        case "clz" | "ctz":
            suffix = f"i{dtype.bits}" if x.lanes == 1 else f"v{x.lanes}i{dtype.bits}"
            kind = "ctlz" if name == "clz" else "cttz"
            return b.call(f"llvm.{kind}.{suffix}", dtype, x.lanes, x, "i1 false")
        case "reverse_bits":
            return b.intrinsic("bitreverse", x)
    found = LIBRARY[name].emit(b, *xs)
    return found  # type: ignore[no-any-return]


def _floor_divide(b: Builder, name: str, dtype: Dtype, x: Value, y: Value) -> Value:
    """Python's // and %: towards minus infinity; 0 for a divisor of 0."""
    if dtype.is_float:
        found: Any = b.floor(x / y) if name == "floordiv" else LIBRARY["remainder"].emit(b, x, y)
        return found  # type: ignore[no-any-return]
    rest = b.int_divide(x, y, remainder=True)
    if dtype.kind == "u":
        return rest if name == "mod" else b.int_divide(x, y)
    apart = rest.ne(0) & ((rest < 0) ^ (y < 0))
    if name == "mod":
        return rest + b.choose(apart, y, 0)
    return b.int_divide(x, y) - b.cast(apart, dtype)


def identity(b: Builder, op: str, dtype: Dtype, lanes: int) -> Value:
    """What changes nothing when a simdgroup combines it."""
    if op == "product":
        return b.const(dtype, 1, lanes)
    if op in ("min", "max"):
        if dtype.is_float:
            return b.const(dtype, float("inf") if op == "min" else -float("inf"), lanes)
        top, low = (1 << (dtype.bits - (dtype.kind == "i"))) - 1, -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
        return b.const(dtype, top if op == "min" else low, lanes)
    return b.const(
        dtype, -1 if op == "and" and dtype.kind == "i" else (1 << dtype.bits) - 1 if op == "and" else 0, lanes
    )
