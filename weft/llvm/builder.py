"""The builder: typed SSA values that write LLVM IR as text.

A `Value` knows its Weft dtype and its number of lanes, and its operators emit instructions, so an operation's `emit`
and the vector math library read like arithmetic: `return x * y + 1.0`. The same code gives 16-lane vectors on a CPU and
scalars (lanes = 1) on a GPU thread. Text is used, rather than a tree of instruction objects, because it is several
times faster to make and is what a reader wants to see anyway.

Representation of values in flight: bool is i1; float16 and bfloat16 travel as the float32 that equals them (rounded
after every operation); complex numbers are pairs (`Complex`). Memory holds bool as one byte, of which any but 0 is
true and every operation writes 1, and complex interleaved.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.llvm.features import Features
from weft.llvm.fused import fused
from weft.llvm.versions import aligned_pointers

PTR = Dtype("ptr", "p", 8, np.uint64, dt.generic, -1)
"""The type of addresses; exists in kernels only."""

_LLVM = {
    dt.bool_: "i1", dt.uint8: "i8", dt.uint16: "i16", dt.uint32: "i32", dt.uint64: "i64",
    dt.int8: "i8", dt.int16: "i16", dt.int32: "i32", dt.int64: "i64",
    dt.float16: "float", dt.bfloat16: "float", dt.float32: "float", dt.float64: "double", PTR: "ptr",
}  # fmt: skip
_SUFFIX = {
    "i1": "i1",
    "i8": "i8",
    "i16": "i16",
    "i32": "i32",
    "i64": "i64",
    "float": "f32",
    "double": "f64",
    "half": "f16",
}
_UNSIGNED = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}
STORED: Final = {dt.bool_: dt.uint8, dt.float16: dt.uint16}
"""The dtypes whose values in flight are not the bits that memory holds, and the integers that are. Converting there and
back may change bits (a signalling NaN, a byte that is neither 0 nor 1), so what is only moved is not converted."""


def llvm_type(dtype: Dtype, lanes: int = 1) -> str:
    """LLVM's name for `lanes` values of `dtype` in flight."""
    return _LLVM[dtype] if lanes == 1 else f"<{lanes} x {_LLVM[dtype]}>"


def literal(dtype: Dtype, value: Any) -> str:
    """A scalar constant as LLVM text; every bit pattern survives (floats are written as hexadecimal bits)."""
    kind = _LLVM[dtype]
    if kind == "i1":
        return "true" if value else "false"
    if kind in ("float", "double"):
        number = float(np.float32(value)) if kind == "float" else float(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
    return str(int(value))


class Value:
    """One SSA value: `lanes` elements of `dtype`."""

    __slots__ = ("b", "dtype", "lanes", "text")

    def __init__(self, b: Builder, text: str, dtype: Dtype, lanes: int) -> None:
        self.b, self.text, self.dtype, self.lanes = b, text, dtype, lanes

    @property
    def type(self) -> str:
        return llvm_type(self.dtype, self.lanes)

    def __repr__(self) -> str:
        return f"{self.type} {self.text}"

    def __add__(self, other: Operand) -> Value:
        return self.b.arith("fadd", "add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.b.arith("fsub", "sub", self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.b.arith("fmul", "mul", self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self.b.arith("fdiv", "", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.b.like(self, other) + self

    def __rsub__(self, other: Operand) -> Value:
        return self.b.like(self, other) - self

    def __rmul__(self, other: Operand) -> Value:
        return self.b.like(self, other) * self

    def __rtruediv__(self, other: Operand) -> Value:
        return self.b.like(self, other) / self

    def __neg__(self) -> Value:
        if self.dtype.is_float:
            return self.b.op(f"fneg {self.type} {self.text}", self.dtype, self.lanes)
        return self.b.like(self, 0) - self

    def __and__(self, other: Operand) -> Value:
        return self.b.arith("", "and", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.b.arith("", "or", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.b.arith("", "xor", self, other)

    def __invert__(self) -> Value:
        return self ^ (1 if self.dtype.is_bool else -1)

    def __lshift__(self, other: Operand) -> Value:
        return self.b.arith("", "shl", self, other)

    def __rshift__(self, other: Operand) -> Value:
        """Arithmetic for signed, logical for unsigned integers. The count must be below the width."""
        return self.b.arith("", "ashr" if self.dtype.kind == "i" else "lshr", self, other)

    def __lt__(self, other: Operand) -> Value:
        return self.b.compare("lt", self, other)

    def __le__(self, other: Operand) -> Value:
        return self.b.compare("le", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.b.compare("gt", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.b.compare("ge", self, other)

    def eq(self, other: Operand) -> Value:
        """Equality; a method, so that Python's == keeps its meaning on values."""
        return self.b.compare("eq", self, other)

    def ne(self, other: Operand) -> Value:
        return self.b.compare("ne", self, other)


class Complex:
    """A complex value in flight: two real values of one dtype."""

    __slots__ = ("b", "dtype", "im", "lanes", "re")

    def __init__(self, re: Value, im: Value) -> None:
        self.re, self.im = re, im
        self.b, self.lanes = re.b, re.lanes
        self.dtype = dt.complex128 if re.dtype is dt.float64 else dt.complex64

    def __add__(self, other: Complex) -> Complex:
        return Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.re - other.re, self.im - other.im)

    def __mul__(self, other: Complex) -> Complex:
        return Complex(self.re * other.re - self.im * other.im, self.re * other.im + self.im * other.re)

    def __neg__(self) -> Complex:
        return Complex(-self.re, -self.im)

    def eq(self, other: Complex) -> Value:
        return self.re.eq(other.re) & self.im.eq(other.im)

    def ne(self, other: Complex) -> Value:
        return self.re.ne(other.re) | self.im.ne(other.im)


Operand = Value | int | float | bool
AnyValue = Value | Complex


class Loop:
    """A counted loop under construction: `index`, `carried` values, and `carry(...)` to set the next ones.

    After the `with` block `carried` holds the final values.
    """

    __slots__ = ("again", "carried", "going", "index", "next")

    def __init__(self, index: Value, carried: tuple[Value, ...]) -> None:
        self.index, self.carried, self.next = index, carried, carried
        self.again: Value | None = None
        """Set inside a loop that `may_stop`: whether there shall be another step."""
        self.going: Value | None = None
        """After such a loop: what it was last."""

    def carry(self, *values: Value) -> None:
        self.next = values


_NAME: Final = re.compile(r"%[\w.]+")
_NEUTRAL_ON_THE_RIGHT: Final = frozenset(("add", "sub", "mul", "shl", "or"))
_RARE_LINES: Final = 24
"""Seldom needed code of at least so many lines is a function of its own."""


class Builder:
    """Writes one native function for a machine with these features. `lanes` is the vector length of the kernel, that
    of the machine unless told."""

    def __init__(
        self,
        name: str,
        params: Sequence[tuple[str, Dtype]],
        features: Features,
        lanes: int | None = None,
        result: Dtype | None = None,
    ) -> None:
        self.name, self.features = name, features
        self.lanes = features.lanes if lanes is None else lanes
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.metadata: dict[str, str] = {}
        self._rare: dict[str, str] = {}
        """Functions of this module's own, by what stands between their braces."""
        self._shared: dict[str, str] = {}
        """Others, by their names."""
        self._types: dict[str, str] = {}
        self.as_written = False
        """Whether loops compute addresses from their index as it is written, and LLVM looks for no cheaper way, which
        takes up to half of its time. That costs nothing where vectors lie side by side, since processors add a base and
        an index for nothing; it does where short loops multiply by strides."""
        self.block = "entry"
        self._names = 0
        self._params = ", ".join(f"{_LLVM[dtype]} %{param}" for param, dtype in params)
        self._result = _LLVM[result] if result is not None else "void"
        self.params = tuple(Value(self, f"%{param}", dtype, 1) for param, dtype in params)
        self._consts: dict[tuple[Dtype, str, int], Value] = {}

    # ---- writing ----

    def fresh(self, prefix: str = "") -> str:
        self._names += 1
        return f"%{prefix}v{self._names}"

    def op(self, text: str, dtype: Dtype, lanes: int) -> Value:
        """Emit `%new = text`."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        self._types[name] = llvm_type(dtype, lanes)
        return Value(self, name, dtype, lanes)

    def raw(self, line: str) -> None:
        self.lines.append("  " + line)

    def module(self) -> str:
        """The whole module as text."""
        body = "\n".join(self.lines)
        declared = "".join(line + "\n" for line in self.declarations.values())
        metadata = "".join(f"{name} = {text}\n" for name, text in self.metadata.items())
        own = "".join(f"\n{text}\n" for text in (*self._rare.values(), *self._shared.values()))
        whole = f"{declared}\ndefine {self._result} @{self.name}({self._params}) {{\nentry:\n{body}\n}}\n"
        return f"{whole}{own}{metadata}"

    def ret(self, value: Value | None = None) -> None:
        self.raw(f"ret {value.type} {value.text}" if value is not None else "ret void")

    def call(self, name: str, dtype: Dtype, lanes: int, *args: Value | str, types: Sequence[str] = ()) -> Value:
        """Call an intrinsic, declared with the full signature that the arguments imply."""
        self._declare(
            name, llvm_type(dtype, lanes), [a.type if isinstance(a, Value) else a.split(" ")[0] for a in args]
        )
        rendered = ", ".join(f"{a.type} {a.text}" if isinstance(a, Value) else a for a in args)
        return self.op(f"call {llvm_type(dtype, lanes)} @{name}({rendered})", dtype, lanes)

    def call_void(self, name: str, *args: Value | str) -> None:
        self._declare(name, "void", [a.type if isinstance(a, Value) else a.split(" ")[0] for a in args])
        self.raw(f"call void @{name}({', '.join(f'{a.type} {a.text}' if isinstance(a, Value) else a for a in args)})")

    def _declare(self, name: str, result: str, types: list[str]) -> None:
        if name not in self.declarations:
            self.declarations[name] = f"declare {result} @{name}({', '.join(types)})"

    # ---- constants ----

    def const(self, dtype: Dtype, value: Any, lanes: int | None = None) -> Value:
        """A constant of `dtype` in every lane (of a vector as long as the kernel's, unless told)."""
        lanes = self.lanes if lanes is None else lanes
        text = literal(dtype, value)
        return Value(self, text if lanes == 1 else f"splat ({_LLVM[dtype]} {text})", dtype, lanes)

    def i64(self, value: int) -> Value:
        return Value(self, str(value), dt.int64, 1)

    def like(self, model: Value, value: Operand) -> Value:
        """`value` as dtype and lanes of `model`: constants become literals, scalars are spread."""
        if not isinstance(value, Value):
            return self.const(model.dtype, value, model.lanes)
        return self.splat(value, model.lanes) if value.lanes != model.lanes else value

    def bits(self, dtype: Dtype, pattern: int, lanes: int | None = None) -> Value:
        """A float constant given by its bit pattern."""
        return self.bitcast(self.const(_UNSIGNED[dtype.size], pattern, lanes), dtype)

    def iota(self, dtype: Dtype, lanes: int | None = None) -> Value:
        """0, 1, 2, … across the lanes."""
        return self.vector(dtype, range(self.lanes if lanes is None else lanes))

    def vector(self, dtype: Dtype, values: Sequence[Any]) -> Value:
        """Constants, one for each lane."""
        if len(values) == 1:
            return self.const(dtype, values[0], 1)
        lanes = ", ".join(f"{_LLVM[dtype]} {literal(dtype, value)}" for value in values)
        return Value(self, f"<{lanes}>", dtype, len(values))

    # ---- lanes ----

    def splat(self, x: Value, lanes: int | None = None) -> Value:
        """The scalar `x` in every lane."""
        lanes = self.lanes if lanes is None else lanes
        if lanes == x.lanes:
            return x
        if not x.text.startswith("%"):  # a literal: no instruction needed
            return Value(self, f"splat ({x.type} {x.text})", x.dtype, lanes)
        first = self.op(f"insertelement {llvm_type(x.dtype, lanes)} poison, {x.type} {x.text}, i32 0", x.dtype, lanes)
        return self.op(
            f"shufflevector {first.type} {first.text}, {first.type} poison, <{lanes} x i32> zeroinitializer",
            x.dtype,
            lanes,
        )

    def shuffle(self, x: Value, y: Value | None, order: Sequence[int]) -> Value:
        """Lanes of `x` followed by `y`, picked by `order` (-1: any value)."""
        mask = ", ".join(f"i32 {i}" if i >= 0 else "i32 poison" for i in order)
        second = y.text if y is not None else "poison"
        return self.op(
            f"shufflevector {x.type} {x.text}, {x.type} {second}, <{len(order)} x i32> <{mask}>", x.dtype, len(order)
        )

    def reverse(self, x: Value) -> Value:
        return self.shuffle(x, None, range(x.lanes - 1, -1, -1))

    def extract(self, x: Value, lane: int) -> Value:
        return self.op(f"extractelement {x.type} {x.text}, i32 {lane}", x.dtype, 1)

    def insert(self, x: Value, element: Value, lane: int) -> Value:
        return self.op(f"insertelement {x.type} {x.text}, {element.type} {element.text}, i32 {lane}", x.dtype, x.lanes)

    def any(self, condition: Value) -> Value:
        """Whether the condition holds in some lane."""
        if condition.lanes == 1:
            return condition
        return self.call(f"llvm.vector.reduce.or.v{condition.lanes}i1", dt.bool_, 1, condition)

    def poison(self, dtype: Dtype, lanes: int) -> Value:
        return Value(self, "poison", dtype, lanes)

    # ---- arithmetic ----

    def arith(self, float_op: str, int_op: str, a: Value, b: Operand) -> Value:
        """A binary instruction; a scalar meets a vector by being spread."""
        if a.dtype is dt.int64 and a.lanes == 1 and isinstance(b, int):  # places, most of which begin at 0
            if b == (1 if int_op == "mul" else 0) and int_op in _NEUTRAL_ON_THE_RIGHT:
                return a
            if b == 0 and int_op == "mul":
                return self.i64(0)
        b = self.like(a, b)
        if b.lanes != a.lanes:
            a = self.splat(a, b.lanes)
        op = float_op if a.dtype.is_float else int_op
        return self.op(f"{op} {a.type} {a.text}, {b.text}", a.dtype, a.lanes)

    def compare(self, relation: str, a: Value, b: Operand) -> Value:
        """An ordered comparison (`ne` is unordered: NaN differs from everything), giving bool lanes."""
        b = self.like(a, b)
        if b.lanes != a.lanes:
            a = self.splat(a, b.lanes)
        if a.dtype.is_float:
            predicate = "une" if relation == "ne" else "o" + relation
            return self.op(f"fcmp {predicate} {a.type} {a.text}, {b.text}", dt.bool_, a.lanes)
        sign = "" if relation in ("eq", "ne") else "s" if a.dtype.kind == "i" else "u"
        return self.op(f"icmp {sign}{relation} {a.type} {a.text}, {b.text}", dt.bool_, a.lanes)

    def isnan(self, x: Value) -> Value:
        return self.op(f"fcmp uno {x.type} {x.text}, {x.text}", dt.bool_, x.lanes)

    def select(self, condition: Value, a: AnyValue, b: AnyValue) -> AnyValue:
        """Per lane: a where the condition holds, else b."""
        if isinstance(a, Complex) or isinstance(b, Complex):
            assert isinstance(a, Complex)
            assert isinstance(b, Complex)
            return Complex(self.select(condition, a.re, b.re), self.select(condition, a.im, b.im))  # type: ignore[arg-type]
        lanes = max(condition.lanes, a.lanes, b.lanes)
        a, b = self.splat(a, lanes), self.splat(b, lanes)
        return self.op(
            f"select {condition.type} {condition.text}, {a.type} {a.text}, {b.type} {b.text}", a.dtype, lanes
        )

    def choose(self, condition: Value, a: Operand, b: Operand) -> Value:
        """`select` of real operands, one of which may be a Python number."""
        model = a if isinstance(a, Value) else b
        assert isinstance(model, Value)
        chosen = self.select(condition, self.like(model, a), self.like(model, b))
        assert isinstance(chosen, Value)
        return chosen

    def compress(self, x: Value, mask: Value) -> Value:
        """The lanes for which the mask holds, moved to the front; what follows them is not defined."""
        if x.lanes == 1:
            return x
        suffix = f"v{x.lanes}{_SUFFIX[_LLVM[x.dtype]]}"
        return self.call(
            f"llvm.experimental.vector.compress.{suffix}", x.dtype, x.lanes, x, mask, self.poison(x.dtype, x.lanes)
        )

    def count(self, mask: Value) -> Value:
        """How many lanes of a mask hold, as an int64."""
        return self.intrinsic("ctpop", self.bits_of_mask(mask))

    def bits_of_mask(self, mask: Value) -> Value:
        """The lanes of a mask, up to 64, as bits of an int64: the first is the lowest."""
        if mask.lanes == 1:
            return self.cast(mask, dt.int64)
        bits = self.fresh()
        self._types[bits] = f"i{mask.lanes}"
        self.raw(f"{bits} = bitcast {mask.type} {mask.text} to i{mask.lanes}")
        if mask.lanes == 64:
            return Value(self, bits, dt.int64, 1)
        return self.op(f"zext i{mask.lanes} {bits} to i64", dt.int64, 1)

    def intrinsic(self, name: str, *args: Value) -> Value:
        """`llvm.NAME` overloaded on the type of the first argument (sqrt, fma, fabs, floor, ctpop, umax, …)."""
        x = args[0]
        lanes = max(a.lanes for a in args)
        spread = [self.splat(a, lanes) for a in args]
        suffix = _SUFFIX[_LLVM[x.dtype]]
        return self.call(f"llvm.{name}.{suffix if lanes == 1 else f'v{lanes}{suffix}'}", x.dtype, lanes, *spread)

    def fma(self, a: Value, b: Operand, c: Operand) -> Value:
        """a * b + c with one rounding. Used inside math functions only: user operations round each time."""
        factor, term = self.like(a, b), self.like(a, c)
        if self.features.fma:
            return self.intrinsic("fma", a, factor, term)
        lanes = max(a.lanes, factor.lanes, term.lanes)
        kind = dt.float64 if a.dtype is dt.float64 else dt.float32  # which halves travel as
        return self.bitcast(
            fused(self, *(self.bitcast(self.splat(x, lanes), kind) for x in (a, factor, term))), a.dtype
        )

    def sqrt(self, x: Value) -> Value:
        return self.intrinsic("sqrt", x)

    def abs(self, x: Value) -> Value:
        """|x|; the smallest integer wraps to itself."""
        if x.dtype.is_float:
            return self.intrinsic("fabs", x)
        return self.choose(x < 0, -x, x) if x.dtype.kind == "i" else x

    def copysign(self, magnitude: Value, sign: Operand) -> Value:
        return self.intrinsic("copysign", magnitude, self.like(magnitude, sign))

    def floor(self, x: Value) -> Value:
        return self.intrinsic("floor", x)

    def ceil(self, x: Value) -> Value:
        return self.intrinsic("ceil", x)

    def trunc(self, x: Value) -> Value:
        return self.intrinsic("trunc", x)

    def rint(self, x: Value) -> Value:
        """To the nearest integer, ties to even."""
        return self.intrinsic("roundeven", x)

    def int_divide(self, a: Value, b: Value, *, remainder: bool = False) -> Value:
        """C's quotient or remainder, without its traps: x / 0 and x % 0 are 0, min / -1 wraps to min."""
        zero = b.eq(0)
        divisor = self.choose(zero, 1, b)
        signed = a.dtype.kind == "i"
        overflow = None
        if signed:
            overflow = divisor.eq(-1)
            divisor = self.choose(overflow, 1, divisor)
        name = ("srem" if remainder else "sdiv") if signed else ("urem" if remainder else "udiv")
        result = self.op(f"{name} {a.type} {a.text}, {divisor.text}", a.dtype, a.lanes)
        if overflow is not None and not remainder:
            result = self.choose(overflow, -a, result)
        if overflow is not None and remainder:
            result = self.choose(overflow, 0, result)
        return self.choose(zero, 0, result)

    # ---- conversions ----

    def bitcast(self, x: Value, dtype: Dtype) -> Value:
        """The same bits read as another type of the same width."""
        if _LLVM[x.dtype] == _LLVM[dtype]:
            return Value(self, x.text, dtype, x.lanes)
        return self.op(f"bitcast {x.type} {x.text} to {llvm_type(dtype, x.lanes)}", dtype, x.lanes)

    def _cast(self, instruction: str, x: Value, dtype: Dtype) -> Value:
        return self.op(f"{instruction} {x.type} {x.text} to {llvm_type(dtype, x.lanes)}", dtype, x.lanes)

    def convert(self, x: AnyValue, dtype: Dtype) -> AnyValue:
        """`x` as another dtype: one rounding to nearest; float to integer as `_float_to_int` says."""
        if x.dtype is dtype:
            return x
        if dtype.is_complex:
            part = dt.real_of(dtype)
            if isinstance(x, Complex):
                return Complex(self.cast(x.re, part), self.cast(x.im, part))
            real = self.cast(x, part)
            return Complex(real, self.const(part, 0, real.lanes))
        if isinstance(x, Complex):
            return x.re.ne(0.0) | x.im.ne(0.0) if dtype.is_bool else self.cast(x.re, dtype)
        return self.cast(x, dtype)

    def cast(self, x: Value, dtype: Dtype) -> Value:
        """`convert` between real types."""
        source = x.dtype
        if source is dtype:
            return x
        if dtype.is_bool:
            return x.ne(0)
        if source.is_float and dtype.is_float:
            return self._float_to_float(x, dtype)
        if source.is_float:
            return self._float_to_int(x, dtype)
        if dtype.is_float:
            wide = dt.float64 if dtype is dt.float64 else dt.float32
            number = self._cast("sitofp" if source.kind == "i" else "uitofp", x, wide)
            return self._float_to_float(number, dtype)
        if source.is_bool:
            return self._cast("zext", x, dtype)
        if source.size == dtype.size:
            return Value(self, x.text, dtype, x.lanes)
        instruction = "trunc" if dtype.size < source.size else "sext" if source.kind == "i" else "zext"
        return self._cast(instruction, x, dtype)

    def _float_to_int(self, x: Value, dtype: Dtype) -> Value:
        """Truncates; out of range saturates int32 (int64 for uint32 and wider), narrower types take the low bits; NaN
        gives 0."""
        if dtype is dt.uint64:
            return self.choose(x < 0.0, self.cast(self._saturating(x, dt.int64), dtype), self._saturating(x, dtype))
        return self.cast(self._saturating(x, dt.int64 if dtype.bits == 64 or dtype is dt.uint32 else dt.int32), dtype)

    def _saturating(self, x: Value, dtype: Dtype) -> Value:
        """Truncation of what is in range, the nearest integer that there is for the rest, 0 for NaN. (LLVM has an
        intrinsic that does the same, element by element.)"""
        signed = dtype.kind == "i"
        bottom = -(2.0 ** (dtype.bits - 1)) if signed else 0.0
        most = (1 << (dtype.bits - signed)) - 1
        number = np.float64 if x.dtype is dt.float64 else np.float32
        top = number(most)  # rounds up to the power of two where not all digits of `most` fit
        inside = top if int(top) == most else np.nextafter(top, number(0))
        clear = self.choose(self.isnan(x), 0.0, x)
        near = self.choose(clear < bottom, bottom, self.choose(clear > float(inside), float(inside), clear))
        whole = self._cast("fptosi" if signed else "fptoui", near, dtype)
        return whole if inside == top else self.choose(clear >= float(top), most, whole)

    def truncated(self, x: Value, dtype: Dtype) -> Value:
        """A float that is in the range of a signed integer type, as that."""
        return self._cast("fptosi", x, dtype)

    def _float_to_float(self, x: Value, dtype: Dtype) -> Value:
        if x.dtype is dtype:
            return x
        if dtype is dt.float64:
            return self._cast("fpext", x, dtype)
        if dtype is dt.float32:
            if x.dtype is dt.float64:
                return self._cast("fptrunc", x, dtype)
            return Value(self, x.text, dtype, x.lanes)  # halves travel as float32
        if x.dtype is dt.float64:
            x = self._round_to_odd(x)
        return self.round_half(x) if dtype is dt.float16 else self.round_bfloat(x)

    def _round_to_odd(self, x: Value) -> Value:
        """float64 to float32 with the sticky bit kept, so that the next rounding is the only one that counts."""
        near = self._cast("fptrunc", x, dt.float32)
        back = self._cast("fpext", near, dt.float64)
        bits = self.bitcast(near, dt.int32)
        # Nearest went past x in magnitude: step back towards zero, then set the last bit to mark inexactness.
        past = self.abs(back) > self.abs(x)
        bits = self.choose(past, bits - 1, bits)
        inexact = back.ne(x) & ~self.isnan(x)
        return self.bitcast(self.choose(inexact, bits | 1, bits), dt.float32)

    def round_half(self, x: Value) -> Value:
        """float32 rounded to float16, still travelling as float32."""
        if not self.features.half_conversions:
            bits = self._half_to_bits(Value(self, x.text, dt.float32, x.lanes))
            return Value(self, self._half_from_bits(bits).text, dt.float16, x.lanes)
        half = self.op(f"fptrunc {x.type} {x.text} to {self._half(x.lanes)}", dt.float16, x.lanes)
        return self.op(f"fpext {self._half(x.lanes)} {half.text} to {x.type}", dt.float16, x.lanes)

    @staticmethod
    def _half(lanes: int) -> str:
        return "half" if lanes == 1 else f"<{lanes} x half>"

    def _half_to_bits(self, x: Value) -> Value:
        """float32 to the bits of the nearest float16 (in uint32 lanes) by integer code, for CPUs without the
        instruction."""
        bits = self.bitcast(x, dt.uint32)
        size = bits & 0x7FFFFFFF
        # Normal results: rebias the exponent and round to nearest even; what overflows becomes infinity.
        odd = (size >> 13) & 1
        normal = (size + (0xFFF - 0x38000000) + odd) >> 13
        # Subnormal results: adding 0.5 lets the float addition round at the right bit.
        shifted = self.bitcast(self.bitcast(size, dt.float32) + 0.5, dt.uint32) - 0x3F000000
        result = self.choose(size < 0x38800000, shifted, normal)
        result = self.choose(size >= 0x477FF000, 0x7C00, result)
        result = self.choose(size > 0x7F800000, ((size >> 13) & 0x1FF) | 0x7E00, result)
        return result | ((bits >> 16) & 0x8000)

    def _half_from_bits(self, bits: Value) -> Value:
        """The float32 that equals a float16 given by its bits (in uint32 lanes)."""
        size, sign = bits & 0x7FFF, (bits & 0x8000) << 16
        normal = (size << 13) + 0x38000000
        extreme = (size << 13) | 0x7F800000
        tiny = self.bitcast(self.cast(self.bitcast(size, dt.int32), dt.float32) * 2.0**-24, dt.uint32)
        value = self.choose(size < 0x400, tiny, self.choose(size >= 0x7C00, extreme, normal))
        return self.bitcast(value | sign, dt.float32)

    def round_bfloat(self, x: Value) -> Value:
        """float32 rounded to bfloat16 by integer code (hardware conversions flush subnormals on some CPUs)."""
        bits = self.bitcast(x, dt.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        quiet = (bits | 0x400000) & 0xFFFF0000
        return Value(
            self, self.bitcast(self.choose(self.isnan(x), quiet, rounded), dt.float32).text, dt.bfloat16, x.lanes
        )

    # ---- memory ----

    def gep(self, pointer: Value, offset: Value | int) -> Value:
        """pointer + offset bytes."""
        if offset == 0 and isinstance(offset, int):
            return pointer
        text = offset.text if isinstance(offset, Value) else str(offset)
        return self.op(f"getelementptr i8, ptr {pointer.text}, i64 {text}", PTR, 1)

    def word(self, args: Value, index: int, dtype: Dtype = dt.int64) -> Value:
        """The i64 (or pointer) at args[index]; read once at the top of a kernel."""
        return self.op(f"load {_LLVM[dtype]}, ptr {self.gep(args, 8 * index).text}, align 8", dtype, 1)

    def load(self, pointer: Value, dtype: Dtype, lanes: int | None = None, mask: Value | None = None) -> AnyValue:
        """`lanes` consecutive elements from memory; masked-off lanes are not touched and read as 0."""
        lanes = self.lanes if lanes is None else lanes
        if dtype.is_complex:
            part = dt.real_of(dtype)
            wide_mask = None if mask is None else self.shuffle(mask, None, [i // 2 for i in range(2 * lanes)])
            both = self.load(pointer, part, 2 * lanes, wide_mask)
            assert isinstance(both, Value)
            if lanes == 1:
                return Complex(self.extract(both, 0), self.extract(both, 1))
            evens, odds = range(0, 2 * lanes, 2), range(1, 2 * lanes, 2)
            return Complex(self.shuffle(both, None, evens), self.shuffle(both, None, odds))
        kind = _memory_type(dtype)
        shape = kind if lanes == 1 else f"<{lanes} x {kind}>"
        if mask is None:
            raw = self.fresh()
            self.raw(f"{raw} = load {shape}, ptr {pointer.text}, align {dtype.size}")
        else:
            raw = self._masked_load(pointer, kind, shape, lanes, mask, dtype.size)
        self._types[raw] = shape
        return self._from_memory(raw, shape, dtype, lanes)

    def _masked_load(self, pointer: Value, kind: str, shape: str, lanes: int, mask: Value, align: int) -> str:
        name = f"llvm.masked.load.v{lanes}{_SUFFIX[kind]}.p0"
        declared, place = aligned_pointers("ptr", pointer.text, align)
        self._declare(name, shape, [*declared, mask.type, shape])
        raw = self.fresh()
        self.raw(f"{raw} = call {shape} @{name}({place}, {mask.type} {mask.text}, {shape} zeroinitializer)")
        return raw

    def _from_memory(self, raw: str, shape: str, dtype: Dtype, lanes: int) -> Value:
        if dtype.is_bool:
            return self.op(f"icmp ne {shape} {raw}, {'0' if lanes == 1 else 'zeroinitializer'}", dtype, lanes)
        if dtype is dt.float16:
            if not self.features.half_conversions:
                bits = self.bitcast_memory(raw, shape, dt.uint16, lanes)
                return Value(self, self._half_from_bits(self.cast(bits, dt.uint32)).text, dtype, lanes)
            return self.op(f"fpext {shape} {raw} to {llvm_type(dtype, lanes)}", dtype, lanes)
        if dtype is dt.bfloat16:
            wide = self.cast(Value(self, raw, dt.uint16, lanes), dt.uint32) << 16
            return Value(self, self.bitcast(wide, dt.float32).text, dtype, lanes)
        return Value(self, raw, dtype, lanes)

    def bitcast_memory(self, raw: str, shape: str, dtype: Dtype, lanes: int) -> Value:
        """Loaded bits as an integer type."""
        return self.op(f"bitcast {shape} {raw} to {llvm_type(dtype, lanes)}", dtype, lanes)

    def _to_memory(self, x: Value) -> tuple[str, str]:
        """(type, text) of `x` as memory holds it; exact, since values in flight are already rounded."""
        lanes, kind = x.lanes, _memory_type(x.dtype)
        shape = kind if lanes == 1 else f"<{lanes} x {kind}>"
        if x.dtype.is_bool:
            return shape, self.op(f"zext {x.type} {x.text} to {shape}", dt.uint8, lanes).text
        if x.dtype is dt.float16:
            if not self.features.half_conversions:
                bits = self.cast(self._half_to_bits(Value(self, x.text, dt.float32, lanes)), dt.uint16)
                return shape, self.op(f"bitcast {bits.type} {bits.text} to {shape}", dt.float16, lanes).text
            return shape, self.op(f"fptrunc {x.type} {x.text} to {shape}", dt.float16, lanes).text
        if x.dtype is dt.bfloat16:
            top = self.bitcast(Value(self, x.text, dt.float32, lanes), dt.uint32) >> 16
            return shape, self.cast(top, dt.uint16).text
        return shape, x.text

    def memory_bits(self, x: Value) -> Value:
        """The bits that memory holds for `x`, as an unsigned integer of its size."""
        unsigned = _UNSIGNED[x.dtype.size]
        shape, text = self._to_memory(x)
        wanted = llvm_type(unsigned, x.lanes)
        if shape == wanted:
            return Value(self, text, unsigned, x.lanes)
        return self.op(f"bitcast {shape} {text} to {wanted}", unsigned, x.lanes)

    def from_memory_bits(self, bits: Value, dtype: Dtype) -> Value:
        """The value of a real dtype that memory holds as these bits (an unsigned integer of its size)."""
        kind = _memory_type(dtype)
        shape = kind if bits.lanes == 1 else f"<{bits.lanes} x {kind}>"
        raw = (
            bits.text
            if shape == bits.type
            else self.op(f"bitcast {bits.type} {bits.text} to {shape}", dtype, bits.lanes).text
        )
        return self._from_memory(raw, shape, dtype, bits.lanes)

    def table(self, name: str, dtype: Dtype, values: Sequence[Any]) -> Value:
        """The address of a constant array in the module; the same name is the same array."""
        kind = _memory_type(dtype)
        elements = ", ".join(f"{kind} {literal(dtype, value)}" for value in values)
        self.declarations[name] = (
            f"@{name} = private unnamed_addr constant [{len(values)} x {kind}] [{elements}], align 64"
        )
        return Value(self, f"@{name}", PTR, 1)

    def lookup(self, table: Value, index: Value, dtype: Dtype) -> Value:
        """table[index] in every lane, for integers and for floats of 32 or 64 bits; the index must be in range."""
        lanes, kind, shape = index.lanes, _LLVM[dtype], llvm_type(dtype, index.lanes)
        places = self.fresh()
        self.raw(f"{places} = getelementptr {kind}, ptr {table.text}, {index.type} {index.text}")
        if lanes == 1:
            return self.op(f"load {kind}, ptr {places}, align {dtype.size}", dtype, 1)
        name = f"llvm.masked.gather.v{lanes}{_SUFFIX[kind]}.v{lanes}p0"
        declared, given = aligned_pointers(f"<{lanes} x ptr>", places, dtype.size)
        self._declare(name, shape, [*declared, f"<{lanes} x i1>", shape])
        everywhere = f"<{lanes} x i1> splat (i1 true)"
        return self.op(f"call {shape} @{name}({given}, {everywhere}, {shape} poison)", dtype, lanes)

    def gather(self, pointer: Value, offsets: Value, dtype: Dtype, mask: Value | None = None) -> Value:
        """Floats of 32 or 64 bits, so many bytes behind the pointer each; masked-off lanes are not touched and read as
        0."""
        lanes, kind, shape = offsets.lanes, _LLVM[dtype], llvm_type(dtype, offsets.lanes)
        declared, places = self._places(pointer, offsets, dtype)
        name = f"llvm.masked.gather.v{lanes}{_SUFFIX[kind]}.v{lanes}p0"
        self._declare(name, shape, [*declared, f"<{lanes} x i1>", shape])
        return self.op(f"call {shape} @{name}({places}, {_lanes(mask, lanes)}, {shape} zeroinitializer)", dtype, lanes)

    def scatter(self, x: Value, pointer: Value, offsets: Value, mask: Value | None = None) -> None:
        """The inverse of `gather`."""
        lanes = offsets.lanes
        declared, places = self._places(pointer, offsets, x.dtype)
        name = f"llvm.masked.scatter.v{lanes}{_SUFFIX[_LLVM[x.dtype]]}.v{lanes}p0"
        self._declare(name, "void", [x.type, *declared, f"<{lanes} x i1>"])
        self.raw(f"call void @{name}({x!r}, {places}, {_lanes(mask, lanes)})")

    def _places(self, pointer: Value, offsets: Value, dtype: Dtype) -> tuple[list[str], str]:
        places = self.fresh()
        self.raw(f"{places} = getelementptr i8, ptr {pointer.text}, {offsets!r}")
        return aligned_pointers(f"<{offsets.lanes} x ptr>", places, dtype.size)

    def store(self, x: AnyValue, pointer: Value, mask: Value | None = None, stream: bool = False) -> None:
        """Consecutive elements to memory; masked-off lanes are not touched. `stream` writes past the caches where the
        address is aligned to the whole vector, or to 64 bytes if that is longer."""
        if isinstance(x, Complex):
            if x.lanes == 1:
                pair = self.insert(self.insert(self.poison(x.re.dtype, 2), x.re, 0), x.im, 1)
                return self.store(pair, pointer)
            order = [i // 2 + (i % 2) * x.lanes for i in range(2 * x.lanes)]
            wide_mask = None if mask is None else self.shuffle(mask, None, [i // 2 for i in range(2 * x.lanes)])
            return self.store(self.shuffle(x.re, x.im, order), pointer, wide_mask, stream)
        shape, text = self._to_memory(x)
        if stream and mask is None:
            self.metadata["!0"] = "!{i32 1}"
            vector = min(64, x.lanes * x.dtype.size)
            apart = self.op(f"ptrtoint ptr {pointer.text} to i64", dt.int64, 1) & (vector - 1)
            with self.when(apart.eq(0)):
                self.raw(f"store {shape} {text}, ptr {pointer.text}, align {vector}, !nontemporal !0")
            with self.when(apart.ne(0)):
                self.raw(f"store {shape} {text}, ptr {pointer.text}, align {x.dtype.size}")
            return None
        if mask is None:
            return self.raw(f"store {shape} {text}, ptr {pointer.text}, align {x.dtype.size}")
        name = f"llvm.masked.store.v{x.lanes}{_SUFFIX[_memory_type(x.dtype)]}.p0"
        declared, place = aligned_pointers("ptr", pointer.text, x.dtype.size)
        self._declare(name, "void", [shape, *declared, mask.type])
        self.raw(f"call void @{name}({shape} {text}, {place}, {mask.type} {mask.text})")
        return None

    def prefetch(self, pointer: Value, level: int = 1) -> None:
        """Ask for a cache line that will be read soon, in the first-level cache or a later one; it need not exist."""
        if not self.features.prefetch:
            return
        self.call_void("llvm.prefetch.p0", pointer, "i32 0", f"i32 {4 - level}", "i32 1")

    # ---- control ----

    def start_block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label

    @contextmanager
    def loops_as_written(self, written: bool) -> Iterator[None]:
        """The loops in here are `as_written`, or are not."""
        before, self.as_written = self.as_written, written
        yield
        self.as_written = before

    @contextmanager
    def loop(
        self, start: Value | int, stop: Value | int, step: Value | int, *carried: Value, may_stop: bool = False
    ) -> Iterator[Loop]:
        """for index in range(start, stop, step), with loop-carried values. After one that `may_stop`, `index` is where
        it stopped.

            with b.loop(0, n, 1, total) as loop:
                loop.carry(loop.carried[0] + term)
        """
        self._names += 1
        tag = f"loop{self._names}"
        lo, hi, by = (v if isinstance(v, Value) else self.i64(v) for v in (start, stop, step))
        entry = self.block
        self.raw(f"br label %{tag}.head")
        self.start_block(f"{tag}.head")
        phis = [Value(self, self.fresh(), c.dtype, c.lanes) for c in (lo, *carried)]
        going = Value(self, self.fresh(), dt.bool_, 1)
        at = len(self.lines)
        self.lines.extend("" for _ in range(len(phis) + may_stop))
        index, *values = map(self._unknown, phis) if self.as_written else phis
        more = self.op(f"icmp slt i64 {index.text}, {hi.text}", dt.bool_, 1)
        if may_stop:
            more = more & going
        self.raw(f"br i1 {more.text}, label %{tag}.body, label %{tag}.exit")
        self.start_block(f"{tag}.body")
        loop = Loop(index, tuple(values))
        loop.going = going if may_stop else None
        yield loop
        following = self.op(f"add nsw i64 {index.text}, {by.text}", dt.int64, 1)
        latch = self.block
        self.raw(f"br label %{tag}.head")
        for k, (phi, first, then) in enumerate(zip(phis, (lo, *carried), (following, *loop.next), strict=True)):
            self.lines[at + k] = (
                f"  {phi.text} = phi {phi.type} [ {first.text}, %{entry} ], [ {self.like(phi, then).text}, %{latch} ]"
            )
        if may_stop:
            assert loop.again is not None
            self.lines[at + len(phis)] = f"  {going.text} = phi i1 [ true, %{entry} ], [ {loop.again.text}, %{latch} ]"
        self.start_block(f"{tag}.exit")

    def _unknown(self, x: Value) -> Value:
        """The same number or address, of which LLVM does not know that it is until it selects instructions."""
        if x.lanes != 1 or x.dtype not in (dt.int64, PTR):
            return x
        if x.dtype is PTR:
            return self.call("llvm.launder.invariant.group.p0", PTR, 1, x)
        return self.call("llvm.expect.i64", dt.int64, 1, x, self.i64(0))

    def rarely(
        self, condition: Value, values: Sequence[Value], correct: Callable[[], Sequence[Value]], apart: bool = True
    ) -> tuple[Value, ...]:
        """`values`, or what `correct()` makes of them if the scalar condition holds: a branch around seldom needed
        code, which may stand `apart` in a function of its own if it is long."""
        self._names += 1
        tag, before = f"rare{self._names}", self.block
        self.raw(f"br i1 {condition.text}, label %{tag}.then, label %{tag}.end")
        self.start_block(f"{tag}.then")
        outer, self.lines = self.lines, []
        corrected = correct()
        inner, self.lines = self.lines, outer
        if apart and self.block == f"{tag}.then" and len(inner) >= _RARE_LINES:
            corrected = self._by_function(inner, corrected)
        else:
            self.lines += inner
        after = self.block
        self.raw(f"br label %{tag}.end")
        self.start_block(f"{tag}.end")
        return tuple(
            self.op(f"phi {old.type} [ {old.text}, %{before} ], [ {new.text}, %{after} ]", old.dtype, old.lanes)
            for old, new in zip(values, corrected, strict=True)
        )

    def _by_function(self, lines: Sequence[str], results: Sequence[Value]) -> Sequence[Value]:
        """The results of straight code by a call of a function, which equal pieces of code share: LLVM takes as long
        for what runs once in a blue moon as for the rest, and a kernel may have it a dozen times."""
        made = {line.split(" = ", 1)[0].strip() for line in lines if " = " in line}
        names = dict.fromkeys(_NAME.findall("\n".join(lines)))
        given = [name for name in names if name not in made]
        if any(name not in self._types for name in given):  # an index of a loop, say
            self.lines += lines
            return results
        new = {name: f"%a{i}" for i, name in enumerate(given)}
        new.update({name: f"%t{i}" for i, name in enumerate([name for name in names if name in made])})
        body = [_NAME.sub(lambda match: new[match[0]], line) for line in lines]
        wanted = list({x.text: x for x in results if x.text in made}.values())
        kind = wanted[0].type if len(wanted) == 1 else f"{{ {', '.join(x.type for x in wanted)} }}"
        last = new[wanted[0].text] if len(wanted) == 1 else "poison"
        for i, x in enumerate(wanted if len(wanted) > 1 else ()):
            body.append(f"  %r{i} = insertvalue {kind} {last}, {x.type} {new[x.text]}, {i}")
            last = f"%r{i}"
        params = ", ".join(f"{self._types[name]} {new[name]}" for name in given)
        code = f"({params}) noinline cold nounwind {{\n" + "\n".join([*body, f"  ret {kind} {last}", "}"])
        if code not in self._rare:
            self._rare[code] = f"define internal {kind} @rare{len(self._rare)}{code}"
        name = self._rare[code].split("@", 1)[1].split("(", 1)[0]
        called = self.fresh()
        self.raw(f"{called} = call {kind} @{name}({', '.join(f'{self._types[n]} {n}' for n in given)})")
        parts = {
            x.text: self.op(f"extractvalue {kind} {called}, {i}", x.dtype, x.lanes)
            if len(wanted) > 1
            else Value(self, called, x.dtype, x.lanes)
            for i, x in enumerate(wanted)
        }
        return [parts.get(x.text, x) for x in results]

    def shared(self, name: str, write: Callable[..., Value], *arguments: Value) -> Value:
        """write(builder, *arguments), of the type of the first one, as a function of this module's own. A name stands
        for one function and one set of types."""
        first = arguments[0]
        if name not in self._shared:
            inner = Builder(name, (), self.features, first.lanes)
            inner.declarations = self.declarations
            given = [Value(inner, f"%p{i}", x.dtype, x.lanes) for i, x in enumerate(arguments)]
            inner.ret(write(inner, *given))
            assert not inner._rare, "what a function needs seldom stands in it"
            head = f"define internal {first.type} @{name}({', '.join(map(repr, given))}) noinline {{"
            self._shared[name] = "\n".join([head, "entry:", *inner.lines, "}"])
        return self.op(f"call {first.type} @{name}({', '.join(map(repr, arguments))})", first.dtype, first.lanes)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the block only where the scalar condition holds."""
        self._names += 1
        tag = f"if{self._names}"
        self.raw(f"br i1 {condition.text}, label %{tag}.then, label %{tag}.end")
        self.start_block(f"{tag}.then")
        yield
        self.raw(f"br label %{tag}.end")
        self.start_block(f"{tag}.end")

    def leave_when(self, condition: Value) -> None:
        """Return from the function where the scalar condition holds, which is not likely."""
        self._names += 1
        tag = f"leave{self._names}"
        condition = self.unlikely(condition)
        self.raw(f"br i1 {condition.text}, label %{tag}.then, label %{tag}.end")
        self.start_block(f"{tag}.then")
        self.ret()
        self.start_block(f"{tag}.end")

    def unlikely(self, condition: Value) -> Value:
        """A scalar condition that LLVM expects not to hold: the way where it does is laid out aside."""
        return self.call("llvm.expect.i1", dt.bool_, 1, condition, "i1 false")


def _lanes(mask: Value | None, lanes: int) -> str:
    """A mask, or one that holds everywhere, as an argument."""
    return f"<{lanes} x i1> splat (i1 true)" if mask is None else repr(mask)


def _memory_type(dtype: Dtype) -> str:
    if dtype.is_bool:
        return "i8"
    if dtype is dt.float16:
        return "half"
    return "i16" if dtype is dt.bfloat16 else _LLVM[dtype]
