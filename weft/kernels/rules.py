"""What arithmetic makes of types in each language, and the operations of the typed tree that come of it.

Python's rules are those of `weft.core`: arrays' dtypes promote, and numbers in the source take the dtype of what they
meet. Integers that meet nothing are int64, others float32. C's are its own, with half and bfloat as Metal has them:
two of one kind stay what they are, and with a float they become one.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import functions as f
from weft.kernels import tree
from weft.records import dataclass, field


@dataclass(frozen=True, slots=True)
class Value:
    """A number: its expression, and whether it is `weak` (a literal of Python, which takes the type of its partner)."""

    expression: tree.Expression
    weak: bool = False


@dataclass(frozen=True, slots=True)
class VectorType:
    """float4, uint2: a few numbers of one dtype. In memory one follows the other `step` numbers later."""

    dtype: Dtype
    size: int
    step: int = field(compare=False)


# ---- operations ----


def wrapped(value: int, dtype: Dtype) -> int:
    """An integer as an element of `dtype`, modulo its range."""
    if dtype.is_bool:
        return int(value != 0)
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.kind == "i" and value >> (dtype.bits - 1) else value


def operation(name: str, dtype: Dtype, *operands: tree.Expression) -> tree.Expression:
    """An operation, worked out where its operands are constant integers; nothing is added to 0 or multiplied by 1."""
    numbers = [x.value for x in operands if isinstance(x, tree.Constant) and not x.dtype.is_float]
    if len(numbers) == len(operands):
        found = _folded(name, operands[0].dtype, [int(n) for n in numbers])
        if found is not None:
            return tree.Constant(dtype, bool(found) if dtype.is_bool else wrapped(found, dtype))
    if name == "neg" and isinstance(operands[0], tree.Constant) and dtype.is_float:
        return tree.Constant(dtype, -float(operands[0].value))
    if not dtype.is_float and len(operands) == 2:
        x, y = operands
        zero = [isinstance(e, tree.Constant) and e.value == 0 for e in operands]
        one = [isinstance(e, tree.Constant) and e.value == 1 for e in operands]
        if name in ("add", "sub") and zero[1]:
            return x
        if name == "add" and zero[0]:
            return y
        if name == "mul" and (one[0] or one[1]):
            return y if one[0] else x
    return tree.Operation(dtype, name, operands)


def _folded(name: str, dtype: Dtype, numbers: Sequence[int]) -> int | bool | None:
    x, y = numbers[0], numbers[-1]
    match name:
        case "add" | "sub" | "mul":
            return x + y if name == "add" else x - y if name == "sub" else x * y
        case "div" | "rem" | "floordiv" | "mod" if y == 0:
            return 0
        case "floordiv" | "mod":
            return x // y if name == "floordiv" else x % y
        case "div" | "rem":
            quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
            return quotient if name == "div" else x - quotient * y
        case "and" | "or" | "xor":
            return x & y if name == "and" else x | y if name == "or" else x ^ y
        case "shl" | "shr":
            count = y & (dtype.bits - 1)
            return x << count if name == "shl" else x >> count
        case "neg":
            return -x
        case "invert":
            return ~x
        case "not":
            return not x
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[name]
        case "min" | "max":
            return min(x, y) if name == "min" else max(x, y)
    return None


def cast(x: tree.Expression, dtype: Dtype) -> tree.Expression:
    """A conversion, worked out for constants where that is exact."""
    if x.dtype is dtype:
        return x
    if isinstance(x, tree.Constant):
        if not x.dtype.is_float and not dtype.is_float:
            return tree.Constant(dtype, bool(x.value) if dtype.is_bool else wrapped(int(x.value), dtype))
        if dtype in (dt.float32, dt.float64) and not x.dtype.is_float and abs(int(x.value)) < 1 << 24:
            return tree.Constant(dtype, float(x.value))
        if x.dtype.is_float and dtype in (dt.float32, dt.float64):
            return tree.Constant(dtype, rounded(float(x.value), dtype))
    return tree.Cast(dtype, x)


def rounded(value: float, dtype: Dtype) -> float:
    """The number of a float type that a constant of this value is. Literals of Python have none yet: they are written
    as they are, and rounded to what they meet."""
    if dtype is not dt.float32 or not math.isfinite(value):
        return value
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]  # type: ignore[no-any-return]
    except OverflowError:
        return math.copysign(math.inf, value)


def can_fail(x: tree.Expression) -> bool:
    """Whether an expression is to be evaluated only where the source does: it reads an element."""
    return any(isinstance(y, tree.Load) for y in tree.walk(x))


# ---- languages ----

_C_TYPES: Final = {
    "bool": dt.bool_, "char": dt.int8, "uchar": dt.uint8, "short": dt.int16, "ushort": dt.uint16, "int": dt.int32,
    "uint": dt.uint32, "long": dt.int64, "ulong": dt.uint64, "size_t": dt.uint64, "ptrdiff_t": dt.int64,
    "int8_t": dt.int8, "uint8_t": dt.uint8, "int16_t": dt.int16, "uint16_t": dt.uint16, "int32_t": dt.int32,
    "uint32_t": dt.uint32, "int64_t": dt.int64, "uint64_t": dt.uint64, "half": dt.float16, "bfloat": dt.bfloat16,
    "float16_t": dt.float16, "bfloat16_t": dt.bfloat16, "float": dt.float32,
    "atomic_int": dt.int32, "atomic_uint": dt.uint32, "atomic_float": dt.float32,
    "unsigned": dt.uint32, "signed": dt.int32, "unsigned int": dt.uint32, "signed int": dt.int32,
    "unsigned char": dt.uint8, "signed char": dt.int8, "unsigned short": dt.uint16, "unsigned long": dt.uint64,
    "long long": dt.int64, "unsigned long long": dt.uint64, "long int": dt.int64, "short int": dt.int16,
    "signed short": dt.int16, "signed long": dt.int64, "long unsigned int": dt.uint64, "unsigned long int": dt.uint64,
    "long long int": dt.int64, "unsigned long long int": dt.uint64, "unsigned short int": dt.uint16,
    "short unsigned int": dt.uint16, "atomic_bool": dt.bool_, "intptr_t": dt.int64, "uintptr_t": dt.uint64,
    "atomic_ulong": dt.uint64,
}  # fmt: skip
_CUDA_TYPES: Final = {
    **_C_TYPES, "double": dt.float64, "__half": dt.float16, "__nv_bfloat16": dt.bfloat16, "nv_bfloat16": dt.bfloat16,
    "longlong": dt.int64, "ulonglong": dt.uint64, "__half_raw": dt.float16,
}  # fmt: skip
_PYTHON_TYPES: Final = {x.name: x for x in dt.ALL if not x.is_complex} | {"bool_": dt.bool_}

_POSITIONS: Final = {name: name for name in tree.POSITIONS}
_CUDA_POSITIONS: Final = {
    "threadIdx": "thread_position_in_threadgroup", "blockIdx": "threadgroup_position_in_grid",
    "blockDim": "dispatch_threads_per_threadgroup", "gridDim": "threadgroups_per_grid",
}  # fmt: skip
_NUMBERS: Final = {
    "INFINITY": math.inf, "NAN": math.nan, "M_PI_F": math.pi, "M_PI": math.pi, "M_E_F": math.e, "M_LN2_F": math.log(2),
    "M_LOG2E_F": 1 / math.log(2), "M_SQRT2_F": math.sqrt(2), "FLT_MAX": 3.4028234663852886e38,
    "FLT_MIN": 1.1754943508222875e-38, "FLT_EPSILON": 1.1920928955078125e-07, "HUGE_VALF": math.inf,
    "MAXFLOAT": 3.4028234663852886e38,
}  # fmt: skip


def vector_type(name: str, types: Mapping[str, Dtype]) -> VectorType | None:
    """`float4`, `packed_float3`: a name of a type and a number from 2 to 4."""
    found = re.fullmatch(r"(packed_)?(\w+?)([234])", name)
    dtype = types.get(found[2]) if found else None
    if found is None or dtype is None:
        return None
    return vector_of(dtype, int(found[3]), packed=found[1] is not None or "double" in types)


def vector_of(dtype: Dtype, size: int, packed: bool) -> VectorType:
    """Vectors of 3 have the room of 4, unless they are packed (in CUDA all are)."""
    return VectorType(dtype, size, 4 if size == 3 and not packed else size)


class Rules:
    """The rules of C: of Metal's, unless told otherwise."""

    types: Mapping[str, Dtype] = _C_TYPES
    positions: Mapping[str, str] = _POSITIONS
    numbers: Mapping[str, float] = _NUMBERS
    position: Dtype = dt.uint32
    sizes: Mapping[str, Dtype] = {"shape": dt.int32, "strides": dt.int64}
    real: Dtype = dt.float32
    packed = False
    """Whether vectors of 3 have the room of 3."""

    def literal(self, value: int | float | bool, suffix: str) -> Value:
        suffix = suffix.lower()
        if isinstance(value, bool):
            return Value(tree.Constant(dt.bool_, value))
        if isinstance(value, float):
            dtype = (
                dt.float16
                if suffix == "h"
                else dt.bfloat16
                if suffix == "bf"
                else dt.float32
                if suffix == "f"
                else self.real
            )
            return Value(
                cast(tree.Constant(dt.float32, rounded(value, dt.float32)), dtype)
                if dtype in dt.HALVES
                else tree.Constant(dtype, rounded(value, dtype))
            )
        kinds = (dt.uint32, dt.uint64) if "u" in suffix else (dt.int32, dt.int64, dt.uint64)
        for dtype in kinds:
            if dtype.size == 4 and "l" in suffix:
                continue
            if wrapped(value, dtype) == value:
                return Value(tree.Constant(dtype, value))
        raise OverflowError

    def strong(self, x: Value) -> tree.Expression:
        """A number with a type of its own."""
        return x.expression

    def joined(self, a: Dtype, b: Dtype) -> Dtype:
        """The type of a variable, or result, without a declared one that is given both."""
        return a if a is b else self._together(a, b)

    def _together(self, a: Dtype, b: Dtype) -> Dtype:
        if a is b and (a.is_float or a.size >= 4):
            return a
        if a.is_float or b.is_float:
            if not (a.is_float and b.is_float):
                return a if a.is_float else b
            if a.size == b.size:
                return dt.float32  # half and bfloat
            return a if a.size > b.size else b
        a, b = (dt.int32 if x.size < 4 else x for x in (a, b))
        if a.size != b.size:
            return a if a.size > b.size else b
        return a if a.kind == "u" else b

    def matched(self, a: Value, b: Value) -> tuple[tree.Expression, tree.Expression, bool]:
        """Both operands in the type that they have together."""
        x, y = a.expression, b.expression
        if x.dtype is y.dtype:
            return x, y, False
        kind = self._together(x.dtype, y.dtype)
        return cast(x, kind), cast(y, kind), False

    def promoted(self, x: Value) -> tree.Expression:
        """An operand of arithmetic: C makes ints of what is smaller."""
        e = x.expression
        return cast(e, dt.int32) if not e.dtype.is_float and e.dtype.size < 4 else e

    def unary(self, op: str, x: Value) -> Value | None:
        if op == "!":
            return Value(operation("not", dt.bool_, cast(x.expression, dt.bool_)))
        e = self.promoted(x)
        if op == "+":
            return Value(e, x.weak)
        if op == "~" and e.dtype.is_float:
            return None
        return Value(operation("neg" if op == "-" else "invert", e.dtype, e), x.weak)

    def binary(self, op: str, a: Value, b: Value) -> Value | None:
        if op in f.COMPARISONS:
            x, y, _ = self.matched(a, b)
            return Value(operation(f.COMPARISONS[op], dt.bool_, x, y))
        if op in ("<<", ">>"):
            x, y = self.promoted(a), self.promoted(b)
            if x.dtype.is_float or y.dtype.is_float:
                return None
            return Value(operation(f.ARITHMETIC[op], x.dtype, x, cast(y, x.dtype)), a.weak and b.weak)
        worked_out = _of_literals(op, a, b)
        if worked_out is not None:
            return worked_out
        x, y, weak = self.matched(a, b)
        if x.dtype.is_bool and op in "&|^":
            return Value(operation(f.ARITHMETIC[op], dt.bool_, x, y))
        if not x.dtype.is_float and x.dtype.size < 4:
            x, y = self.promoted(Value(x)), self.promoted(Value(y))
        return self.arithmetic(op, x, y, weak)

    def arithmetic(self, op: str, x: tree.Expression, y: tree.Expression, weak: bool) -> Value | None:
        if op == "/":
            return Value(operation("fdiv" if x.dtype.is_float else "div", x.dtype, x, y), weak)
        if op == "%":
            return None if x.dtype.is_float else Value(operation("rem", x.dtype, x, y), weak)
        name = f.ARITHMETIC.get(op)
        if name is None or (x.dtype.is_float and op in "&|^"):
            return None
        return Value(operation(name, x.dtype, x, y), weak)

    # ---- functions ----

    def floating(self, x: Value) -> Value:
        """An argument of a function of floating-point numbers."""
        return x if x.expression.dtype.is_float else Value(cast(x.expression, dt.float32))

    def call(self, name: str, given: Sequence[Any]) -> Value | tuple[Value, ...] | None:
        """A function of numbers, or of the numbers of vectors one by one; None if there is none for these."""
        vectors = [g for g in given if isinstance(g, tuple)]
        if vectors:
            return self._of_vectors(name, given, len(vectors[0]))
        if name in ("fast", "precise"):
            return None
        return self._of_numbers(name, list(given))

    def knows(self, name: str) -> bool:
        """Whether there is a function of a name."""
        base = _FLOAT_NAMES.get(name, name)
        tables = (f.MATH, f.BINARY_MATH, f.EXTREMES, f.TESTS, f.BITS, _ARITIES, _OF_VECTORS)
        return any(base in table for table in tables)

    def _of_vectors(self, name: str, given: Sequence[Any], size: int) -> Value | tuple[Value, ...] | None:
        if any(isinstance(g, tuple) and len(g) != size for g in given):
            return None
        if name in _OF_VECTORS:
            if len(given) != _OF_VECTORS[name] or not all(isinstance(g, tuple) for g in given):
                return None
            found: Value | tuple[Value, ...] | None = getattr(self, f"_vector_{name}")(*given)
            return found
        first = next(g for g in given if isinstance(g, tuple))
        beside = first[0].expression.dtype
        rows = [g if isinstance(g, tuple) else (self._beside(g, beside),) * size for g in given]
        columns = [self._of_numbers(name, list(column)) for column in zip(*rows, strict=True)]
        return None if any(x is None for x in columns) else tuple(columns)  # type: ignore[arg-type]

    def _beside(self, x: Value, dtype: Dtype) -> Value:
        """A number beside a vector takes the type of its numbers, as far as that is one of its kind."""
        e = x.expression
        return Value(cast(e, dtype)) if dtype.is_float or not e.dtype.is_float else x

    def _vector_dot(self, x: Sequence[Value], y: Sequence[Value]) -> Value | None:
        total: Value | None = None
        for a, b in zip(x, y, strict=True):
            term = self.binary("*", a, b)
            total = term if total is None or term is None else self.binary("+", total, term)
        return total

    def _vector_length_squared(self, x: Sequence[Value]) -> Value | None:
        return self._vector_dot(x, x)

    def _vector_length(self, x: Sequence[Value]) -> Value | None:
        square = self._vector_dot(x, x)
        return None if square is None else self._of_numbers("sqrt", [square])

    def _vector_distance(self, x: Sequence[Value], y: Sequence[Value]) -> Value | None:
        apart = [self.binary("-", a, b) for a, b in zip(x, y, strict=True)]
        return None if None in apart else self._vector_length(apart)  # type: ignore[arg-type]

    def _vector_normalize(self, x: Sequence[Value]) -> tuple[Value, ...] | None:
        square = self._vector_dot(x, x)
        scale = None if square is None else self._of_numbers("rsqrt", [square])
        if scale is None:
            return None
        return tuple(Value(self.binary("*", a, scale).expression) for a in x)  # type: ignore[union-attr]

    def _vector_cross(self, x: Sequence[Value], y: Sequence[Value]) -> tuple[Value, ...] | None:
        if len(x) != 3:
            return None
        found = []
        for i, j in ((1, 2), (2, 0), (0, 1)):
            a, b = self.binary("*", x[i], y[j]), self.binary("*", x[j], y[i])
            both = None if a is None or b is None else self.binary("-", a, b)
            if both is None:
                return None
            found.append(both)
        return tuple(found)

    def _vector_any(self, x: Sequence[Value]) -> Value:
        return self._reduced("or", x)

    def _vector_all(self, x: Sequence[Value]) -> Value:
        return self._reduced("and", x)

    def _reduced(self, name: str, x: Sequence[Value]) -> Value:
        found = cast(x[0].expression, dt.bool_)
        for y in x[1:]:
            found = operation(name, dt.bool_, found, cast(y.expression, dt.bool_))
        return Value(found)

    def _of_numbers(self, name: str, xs: list[Value]) -> Value | None:
        base = _FLOAT_NAMES.get(name, name)
        count = len(xs)
        if base in f.MATH and count == 1:
            x = self.floating(xs[0])
            return Value(tree.Operation(x.expression.dtype, f.MATH[base], (x.expression,)), x.weak)
        if base in f.BINARY_MATH and count == 2:
            first, second, weak = self.matched(*map(self.floating, xs))
            return Value(tree.Operation(first.dtype, f.BINARY_MATH[base], (first, second)), weak)
        if base in f.EXTREMES and count >= 2:
            result = xs[0]
            for x in xs[1:]:
                first, second, weak = self.matched(result, x)
                result = Value(operation(f.EXTREMES[base], first.dtype, first, second), weak)
            return result
        if base in f.TESTS and count == 1:
            x = self.floating(xs[0])
            return Value(tree.Operation(dt.bool_, f.TESTS[base], (x.expression,)))
        if base in f.BITS and count == 1 and not xs[0].expression.dtype.is_float:
            e = self.promoted(xs[0])
            return Value(tree.Operation(e.dtype, f.BITS[base], (e,)))
        special = getattr(self, f"_{base}", None)
        return special(*xs) if special is not None and count == _ARITIES.get(base) else None

    def _abs(self, x: Value) -> Value:
        e = self.promoted(x)
        return Value(tree.Operation(e.dtype, "abs", (e,)), x.weak)

    def _round(self, x: Value) -> Value:
        x = self.floating(x)
        return Value(tree.Operation(x.expression.dtype, "round", (x.expression,)))

    def _negative(self, x: Value) -> Value | None:
        return self.unary("-", x)

    def _sign(self, x: Value) -> Value:
        e = self.strong(x)
        return Value(tree.Operation(e.dtype, "sign", (e,)))

    def _clamp(self, x: Value, low: Value, high: Value) -> Value | None:
        inner = self._of_numbers("max", [x, low])
        return None if inner is None else self._of_numbers("min", [inner, high])

    _clip = _clamp

    def _saturate(self, x: Value) -> Value | None:
        return self._clamp(x, Value(tree.Constant(dt.float32, 0.0), True), Value(tree.Constant(dt.float32, 1.0), True))

    def _select(self, x: Value, y: Value, test: Value) -> Value:
        a, b, weak = self.matched(y, x)
        return Value(tree.Select(a.dtype, cast(test.expression, dt.bool_), a, b), weak)

    def _where(self, test: Value, x: Value, y: Value) -> Value:
        return self._select(y, x, test)

    def _mix(self, x: Value, y: Value, a: Value) -> Value | None:
        difference = self.binary("-", y, x)
        part = None if difference is None else self.binary("*", difference, a)
        return None if part is None else self.binary("+", x, part)

    def _fma(self, x: Value, y: Value, z: Value) -> Value | None:
        first, second, _ = self.matched(self.floating(x), self.floating(y))
        kind = self.matched(Value(first), self.floating(z))[0].dtype
        return Value(tree.Operation(kind, "fma", (cast(first, kind), cast(second, kind), cast(self.strong(z), kind))))

    def _rcp(self, x: Value) -> Value | None:
        return self.binary("/", Value(tree.Constant(dt.float32, 1.0), True), self.floating(x))

    _recip = _rcp

    def _divide(self, x: Value, y: Value) -> Value | None:
        return self.binary("/", x, y)

    def _add(self, x: Value, y: Value) -> Value | None:
        return self.binary("+", x, y)

    def _subtract(self, x: Value, y: Value) -> Value | None:
        return self.binary("-", x, y)

    def _multiply(self, x: Value, y: Value) -> Value | None:
        return self.binary("*", x, y)

    def _mad(self, x: Value, y: Value, z: Value) -> Value | None:
        product = self.binary("*", x, y)
        return None if product is None else self.binary("+", product, z)

    def _min3(self, x: Value, y: Value, z: Value) -> Value | None:
        return self._of_numbers("min", [x, y, z])

    def _max3(self, x: Value, y: Value, z: Value) -> Value | None:
        return self._of_numbers("max", [x, y, z])

    def _median3(self, x: Value, y: Value, z: Value) -> Value | None:
        low, high = self._of_numbers("min", [x, y]), self._of_numbers("max", [x, y])
        inner = None if high is None else self._of_numbers("min", [high, z])
        return None if low is None or inner is None else self._of_numbers("max", [low, inner])

    def _step(self, edge: Value, x: Value) -> Value | None:
        test = self.binary("<", x, edge)
        one, zero = (Value(cast(tree.Constant(dt.float32, n), self.floating(x).expression.dtype)) for n in (1.0, 0.0))
        return None if test is None else self._select(one, zero, test)

    def _smoothstep(self, low: Value, high: Value, x: Value) -> Value | None:
        """t * t * (3 - 2 * t), where t goes from 0 to 1 between the edges."""
        low, high, x = map(self.floating, (low, high, x))
        over, width = self.binary("-", x, low), self.binary("-", high, low)
        ratio = None if over is None or width is None else self.binary("/", over, width)
        t = None if ratio is None else self._saturate(ratio)
        if t is None:
            return None
        kind = t.expression.dtype
        two, three = (Value(cast(tree.Constant(dt.float32, n), kind)) for n in (2.0, 3.0))
        square, twice = self.binary("*", t, t), self.binary("*", two, t)
        rest = None if twice is None else self.binary("-", three, twice)
        return None if square is None or rest is None else self.binary("*", square, rest)

    def _fdim(self, x: Value, y: Value) -> Value | None:
        difference = self.binary("-", self.floating(x), self.floating(y))
        zero = Value(tree.Constant(dt.float32, 0.0), True)
        return None if difference is None else self._of_numbers("max", [difference, zero])

    def _ldexp(self, x: Value, k: Value) -> Value | None:
        power = self._of_numbers("exp2", [Value(cast(k.expression, self.floating(x).expression.dtype))])
        return None if power is None else self.binary("*", self.floating(x), power)

    def _signbit(self, x: Value) -> Value:
        """Whether the sign is there, also that of a zero or a NaN."""
        e = self.floating(x).expression
        bits = tree.Cast({2: dt.int16, 4: dt.int32, 8: dt.int64}[e.dtype.size], e, bits=True)
        return Value(operation("lt", dt.bool_, bits, tree.Constant(bits.dtype, 0)))

    def _isnormal(self, x: Value) -> Value | None:
        e = self.floating(x).expression
        finite = tree.Operation(dt.bool_, "isfinite", (e,))
        least = dt.finfo(e.dtype)
        smallest = cast(tree.Constant(dt.float32, float(getattr(least, "smallest_normal", 0.0))), e.dtype)
        large = operation("ge", dt.bool_, tree.Operation(e.dtype, "abs", (e,)), smallest)
        return Value(operation("and", dt.bool_, finite, large))

    def _rotate(self, x: Value, by: Value) -> Value | None:
        """Bits that leave at the top come in at the bottom."""
        e = x.expression
        if e.dtype.is_float or e.dtype.is_bool:
            return None
        kind = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}[e.dtype.size]
        bits, count = cast(e, kind), cast(self.strong(by), kind)
        left = operation("shl", kind, bits, count)
        right = operation("shr", kind, bits, operation("sub", kind, tree.Constant(kind, 0), count))
        return Value(cast(operation("or", kind, left, right), e.dtype))

    def _mulhi(self, x: Value, y: Value) -> Value | None:
        """The upper half of a product of 32 bits."""
        first, second, _ = self.matched(x, y)
        if first.dtype not in (dt.int32, dt.uint32):
            return None
        kind = dt.int64 if first.dtype is dt.int32 else dt.uint64
        product = operation("mul", kind, cast(first, kind), cast(second, kind))
        return Value(cast(operation("shr", kind, product, tree.Constant(kind, 32)), first.dtype))

    def _absdiff(self, x: Value, y: Value) -> Value | None:
        high, low = self._of_numbers("max", [x, y]), self._of_numbers("min", [x, y])
        return None if high is None or low is None else self.binary("-", high, low)

    def _extract_bits(self, x: Value, offset: Value, bits: Value) -> Value | None:
        """Some bits of an integer; signed ones have the sign of the highest."""
        e = x.expression
        if e.dtype.is_float or e.dtype.is_bool or e.dtype.size < 4:
            return None
        kind, whole = e.dtype, tree.Constant(e.dtype, e.dtype.bits)
        begin, count = cast(self.strong(offset), kind), cast(self.strong(bits), kind)
        gap = operation("sub", kind, whole, count)
        left = operation("shl", kind, e, operation("sub", kind, gap, begin))
        found = operation("shr", kind, left, gap)
        none = operation("eq", dt.bool_, count, tree.Constant(kind, 0))
        return Value(tree.Select(kind, none, tree.Constant(kind, 0), found))

    def _ffs(self, x: Value) -> Value | None:
        """The place of the lowest bit, from 1; 0 if there is none."""
        e = self.promoted(x)
        if e.dtype.is_float:
            return None
        place = operation("add", e.dtype, tree.Operation(e.dtype, "ctz", (e,)), tree.Constant(e.dtype, 1))
        none = operation("eq", dt.bool_, e, tree.Constant(e.dtype, 0))
        return Value(cast(tree.Select(e.dtype, none, tree.Constant(e.dtype, 0), place), dt.int32))

    def _hypot(self, x: Value, y: Value) -> Value | None:
        return self._vector_length([self.floating(x), self.floating(y)])

    def _degrees(self, x: Value) -> Value | None:
        return self.binary("*", self.floating(x), Value(tree.Constant(dt.float32, 180 / math.pi), True))

    def _radians(self, x: Value) -> Value | None:
        return self.binary("*", self.floating(x), Value(tree.Constant(dt.float32, math.pi / 180), True))

    def _fdividef(self, x: Value, y: Value) -> Value | None:
        return self.binary("/", self.floating(x), self.floating(y))

    def _ceildiv(self, x: Value, y: Value) -> Value | None:
        """MLX's: x / y, rounded up."""
        one = Value(tree.Constant(dt.int32, 1), True)
        less = self.binary("-", y, one)
        both = None if less is None else self.binary("+", x, less)
        return None if both is None else self.binary("/", both, y)

    def _fract(self, x: Value) -> Value | None:
        low = self._of_numbers("floor", [x])
        return None if low is None else self.binary("-", self.floating(x), low)


_ARITIES: Final = {
    "abs": 1, "round": 1, "sign": 1, "negative": 1, "clamp": 3, "clip": 3, "saturate": 1, "select": 3, "where": 3,
    "mix": 3, "fma": 3, "ceildiv": 2, "rcp": 1, "recip": 1, "fdividef": 2, "fract": 1, "divide": 2, "add": 2,
    "subtract": 2, "multiply": 2, "mad": 3, "min3": 3, "max3": 3, "median3": 3, "step": 2, "smoothstep": 3, "fdim": 2,
    "ldexp": 2, "signbit": 1, "isnormal": 1, "rotate": 2, "mulhi": 2, "absdiff": 2, "extract_bits": 3, "ffs": 1,
    "hypot": 2, "degrees": 1, "radians": 1,
}  # fmt: skip
_FLOAT_NAMES: Final = {
    **{name + "f": name for name in (*f.MATH, "pow", "fmin", "fmax", "fmod", "atan2", "copysign", "round", "fma")},
    **{"__" + name + "f": name for name in ("exp", "log", "sin", "cos", "tan", "pow", "exp10", "log2", "log10")},
    "fabs": "abs", "fabsf": "abs", "__fdividef": "fdividef", "__popc": "popcount", "__clz": "clz",
    **{f"__h{a}": b for a, b in (("add", "add"), ("sub", "subtract"), ("mul", "multiply"), ("div", "divide"),
                                 ("fma", "fma"), ("max", "max"), ("min", "min"), ("neg", "negative"), ("abs", "abs"))},
    **{f"h{name}": name for name in ("exp", "log", "sqrt", "rsqrt", "sin", "cos", "exp2", "log2", "floor", "ceil",
                                     "rint", "trunc", "rcp")},
    "__fmul_rn": "multiply", "__fadd_rn": "add", "__fsub_rn": "subtract", "__fdiv_rn": "divide", "__fmaf_rn": "fma",
    "__fsqrt_rn": "sqrt", "__frsqrt_rn": "rsqrt", "__saturatef": "saturate", "__popcll": "popcount", "__clzll": "clz",
    "__ffs": "ffs", "__ffsll": "ffs", "__brev": "reverse_bits", "__umulhi": "mulhi", "__mulhi": "mulhi",
    "mul24": "multiply", "__mul24": "multiply", "__umul24": "multiply", "mad24": "mad", "hypotf": "hypot",
    "__exp2f": "exp2", "__fmaf": "fma", "fdimf": "fdim", "ldexpf": "ldexp", "isnanf": "isnan", "__hisnan": "isnan",
    "fminf": "fmin", "fmaxf": "fmax", "__frcp_rn": "rcp", "gamma_ln": "lgamma", "square": "square", "absolute": "abs",
}  # fmt: skip


_OF_VECTORS: Final = {
    "dot": 2, "length": 1, "length_squared": 1, "distance": 2, "normalize": 1, "cross": 2, "any": 1, "all": 1,
}  # fmt: skip
"""Functions of whole vectors, and of how many."""


class CudaRules(Rules):
    """The rules of CUDA's C++: numbers without a suffix are double."""

    types = _CUDA_TYPES
    positions = _POSITIONS | _CUDA_POSITIONS
    real = dt.float64
    packed = True


class PythonRules(Rules):
    """Those of arrays: dtypes promote, numbers in the source are weak."""

    types = _PYTHON_TYPES
    positions = _POSITIONS
    numbers = {"inf": math.inf, "nan": math.nan, "pi": math.pi}
    position = dt.int64
    sizes = {"shape": dt.int64, "strides": dt.int64}

    def literal(self, value: int | float | bool, suffix: str) -> Value:
        if isinstance(value, bool):
            return Value(tree.Constant(dt.bool_, value))
        if isinstance(value, float):
            return Value(tree.Constant(dt.float32, value), True)
        if wrapped(value, dt.int64) != value:
            raise OverflowError
        return Value(tree.Constant(dt.int64, value), True)

    def joined(self, a: Dtype, b: Dtype) -> Dtype:
        return a if a is b else dt.promote(a, b)

    def matched(self, a: Value, b: Value) -> tuple[tree.Expression, tree.Expression, bool]:
        x, y = a.expression, b.expression
        if a.weak != b.weak:
            weak, other = (x.dtype, y.dtype) if a.weak else (y.dtype, x.dtype)
            if not other.is_bool and (other.is_float or not weak.is_float):
                return cast(x, other), cast(y, other), False
        kind = x.dtype if x.dtype is y.dtype else dt.promote(x.dtype, y.dtype)
        return cast(x, kind), cast(y, kind), a.weak and b.weak

    def promoted(self, x: Value) -> tree.Expression:
        return cast(x.expression, dt.int64) if x.expression.dtype.is_bool else x.expression

    def unary(self, op: str, x: Value) -> Value | None:
        if op == "-" and x.weak and isinstance(x.expression, tree.Constant) and x.expression.dtype.is_float:
            return Value(tree.Constant(x.expression.dtype, -float(x.expression.value)), True)
        if op == "~" and x.expression.dtype.is_bool:
            return Value(operation("not", dt.bool_, x.expression))
        return super().unary(op, x)

    def binary(self, op: str, a: Value, b: Value) -> Value | None:
        if op in ("<<", ">>"):
            x, y, weak = self.matched(Value(self.promoted(a), a.weak), Value(self.promoted(b), b.weak))
            return None if x.dtype.is_float else Value(operation(f.ARITHMETIC[op], x.dtype, x, y), weak)
        if op in f.COMPARISONS:
            return super().binary(op, a, b)
        worked_out = _of_literals(op, a, b)
        if worked_out is not None:
            return worked_out
        x, y, weak = self.matched(a, b)
        if x.dtype.is_bool and op in "&|^":
            return Value(operation(f.ARITHMETIC[op], dt.bool_, x, y))
        if x.dtype.is_bool:
            x, y = cast(x, dt.int64), cast(y, dt.int64)
        return self.arithmetic(op, x, y, weak)

    def arithmetic(self, op: str, x: tree.Expression, y: tree.Expression, weak: bool) -> Value | None:
        if op == "/":
            if not x.dtype.is_float:
                x, y = cast(x, dt.float32), cast(y, dt.float32)
            return Value(operation("fdiv", x.dtype, x, y), weak)
        if op in ("//", "%"):
            return Value(operation("floordiv" if op == "//" else "mod", x.dtype, x, y), weak)
        if op == "**":
            return Value(operation("pow", x.dtype, x, y), weak)
        return super().arithmetic(op, x, y, weak)


def _of_literals(op: str, a: Value, b: Value) -> Value | None:
    """What two numbers of a Python source make, one of which is a float: a number again, that has no type yet."""
    x, y = a.expression, b.expression
    if not (a.weak and b.weak and isinstance(x, tree.Constant) and isinstance(y, tree.Constant)):
        return None
    if op not in "+-*/" or not (x.dtype.is_float or y.dtype.is_float) or (op == "/" and y.value == 0):
        return None
    p, q = float(x.value), float(y.value)
    value = p + q if op == "+" else p - q if op == "-" else p * q if op == "*" else p / q
    return Value(tree.Constant(dt.float32, value), True)


RULES: Final[Mapping[str, Rules]] = {"metal": Rules(), "cuda": CudaRules(), "python": PythonRules()}
