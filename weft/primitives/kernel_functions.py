"""What the operations of custom kernels compute: those of the library where there is one, a few of their own.

`apply` and `convert` are for NumPy scalars and arrays (weft/kernels/interpreter.py); a target writes the same with
`emit` of the primitives in `LIBRARY` and with its own instructions for the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import numpy as np

from weft import dtypes as dt
from weft import interop
from weft.dtypes import Dtype
from weft.primitives import bits, elementwise, logarithms, rounding, special, trigonometry
from weft.primitives.base import Elementwise

LIBRARY: Final[Mapping[str, Elementwise]] = {
    "exp": elementwise.Exp(), "expm1": elementwise.Expm1(), "log": elementwise.Log(), "log1p": elementwise.Log1p(),
    "log2": logarithms.Log2(), "log10": logarithms.Log10(), "sqrt": elementwise.Sqrt(), "rsqrt": elementwise.Rsqrt(),
    "sin": elementwise.Sin(), "cos": elementwise.Cos(), "tan": trigonometry.Tan(), "asin": trigonometry.ArcSin(),
    "acos": trigonometry.ArcCos(), "atan": trigonometry.ArcTan(), "atan2": trigonometry.ArcTan2(),
    "sinh": trigonometry.Sinh(), "cosh": trigonometry.Cosh(), "tanh": elementwise.Tanh(),
    "asinh": trigonometry.ArcSinh(), "acosh": trigonometry.ArcCosh(), "atanh": trigonometry.ArcTanh(),
    "erf": elementwise.Erf(), "erfinv": elementwise.ErfInv(), "erfc": special.Erfc(),
    "sigmoid": elementwise.Sigmoid(), "lgamma": special.GammaLn(), "floor": elementwise.Floor(),
    "ceil": elementwise.Ceil(), "trunc": rounding.Trunc(), "rint": elementwise.Rint(), "pow": elementwise.Power(),
    "max": elementwise.Maximum(), "min": elementwise.Minimum(), "abs": elementwise.Absolute(),
    "sign": elementwise.Sign(), "isnan": elementwise.IsNan(), "isinf": bits.IsInf(), "isfinite": bits.IsFinite(),
    "remainder": rounding.Remainder(),
}  # fmt: skip


def _halved(name: str, dtype: Dtype, xs: Sequence[Any]) -> Any:
    """Halves are computed as float32 and rounded once."""
    wide = [x.astype(np.float32) if dt.from_numpy(x.dtype) in dt.HALVES else x for x in xs]
    return np.asarray(_apply(name, dt.float32 if dtype in dt.HALVES else dtype, wide)).astype(dtype.np)[()]


def apply(name: str, dtype: Dtype, xs: Sequence[Any]) -> Any:
    """An operation of the typed tree on NumPy scalars or arrays."""
    xs = [np.asarray(x) for x in xs]
    if dtype in dt.HALVES or any(x.dtype.itemsize == 2 and x.dtype.kind not in "iu" for x in xs):
        return _halved(name, dtype, xs)
    return np.asarray(_apply(name, dtype, xs)).astype(dtype.np)[()]


def _apply(name: str, dtype: Dtype, xs: Sequence[np.ndarray]) -> Any:
    found = LIBRARY.get(name)
    if found is not None:
        return found.reference(*xs)
    x, y = xs[0], xs[-1]
    kind = dtype.np
    match name:
        case "add":
            return x + y
        case "sub":
            return x - y
        case "mul":
            return x * y
        case "fdiv":
            return np.divide(x, y)
        case "neg":
            return np.negative(x)
        case "and" | "or" | "xor":
            return x & y if name == "and" else x | y if name == "or" else x ^ y
        case "not":
            return np.logical_not(x)
        case "invert":
            return ~x
        case "shl" | "shr":
            count = (y & (dtype.bits - 1)).astype(kind)
            return np.left_shift(x, count) if name == "shl" else np.right_shift(x, count)
        case "eq" | "ne" | "lt" | "le" | "gt" | "ge":
            return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[name]
        case "ult":
            return x.astype(np.uint64) < y.astype(np.uint64)
        case "within":
            return np.where(x, y, np.iinfo(np.int64).min)
        case "div" | "rem" | "floordiv" | "mod":
            return _divide(name, dtype, x, y)
        case "fmin" | "fmax":
            return np.fmin(x, y) if name == "fmin" else np.fmax(x, y)
        case "fmod":
            return np.copysign(LIBRARY["remainder"].reference(np.abs(x), np.abs(y)), x)
        case "copysign":
            return np.copysign(x, y)
        case "exp2" | "exp10":
            return LIBRARY["pow"].reference(np.asarray(kind.type(2 if name == "exp2" else 10)), x)
        case "round":
            whole = np.trunc(x)
            return whole + np.copysign((np.abs(x - whole) >= 0.5).astype(kind), x)
        case "fma":
            return _fused(dtype, *xs)
        case "popcount" | "clz" | "ctz" | "reverse_bits":
            return np.frompyfunc(lambda v: _bits(name, dtype, int(v)), 1, 1)(x)
    raise AssertionError(name)


def _divide(name: str, dtype: Dtype, x: np.ndarray, y: np.ndarray) -> Any:
    """Quotients and remainders: C's (div, rem) and Python's; those by zero are 0, as is a remainder by -1."""
    if dtype.is_float:
        return np.floor(np.divide(x, y)) if name == "floordiv" else LIBRARY["remainder"].reference(x, y)
    by = np.where(y == 0, dtype.np.type(1), y)
    quotient = np.floor_divide(x, by)
    rest = x - quotient * by
    if name in ("div", "rem"):
        up = (rest != 0) & ((x < 0) != (by < 0))
        quotient = quotient + up.astype(dtype.np)
        rest = rest - np.where(up, by, dtype.np.type(0))
    return np.where(y == 0, dtype.np.type(0), quotient if name in ("div", "floordiv") else rest)


def _fused(dtype: Dtype, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
    """x * y + z, rounded once."""
    return np.frompyfunc(lambda a, b, c: _fused_one(dtype, a, b, c), 3, 1)(x, y, z)


def _fused_one(dtype: Dtype, x: Any, y: Any, z: Any) -> Any:
    x, y, z = (dtype.np.type(v) for v in (x, y, z))
    if not all(np.isfinite(v) for v in (x, y, z)):
        return x * y + z
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return x * y + z
    if dtype is dt.float64:
        return np.float64(float(exact))
    near = float(exact)  # to odd, so that rounding once more is right
    if Fraction(near) != exact:
        raw = np.float64(near).view(np.int64)
        if abs(Fraction(near)) > abs(exact):
            raw = raw - 1
        near = float((raw | 1).view(np.float64))
    return np.float32(near)


def _bits(name: str, dtype: Dtype, x: int) -> int:
    x &= (1 << dtype.bits) - 1
    if name == "popcount":
        return x.bit_count()
    if name == "clz":
        return dtype.bits - x.bit_length()
    if name == "ctz":
        return dtype.bits if x == 0 else (x & -x).bit_length() - 1
    found = int(f"{x:0{dtype.bits}b}"[::-1], 2)
    return found - (1 << dtype.bits) if dtype.kind == "i" and found >> (dtype.bits - 1) else found


def convert(x: Any, dtype: Dtype, bits: bool) -> Any:
    """A number, or its bits, as another dtype."""
    if bits:
        return np.asarray(x).view(dtype.np)[()]
    return np.asarray(interop.cast(np.asarray(x), dtype))[()]
