"""Elementwise primitives: one class an operation, with derivative, reference and code in one place.

`emit` works on builder values of real dtype, or on `Complex` pairs for complex dtypes; float16 and bfloat16 arrive as
float32 and are rounded after each operation by the family. `partials` work on nodes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft import interop
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node, kind_of
from weft.lazy import lazy
from weft.llvm.builder import Builder, Complex, Value
from weft.primitives.base import OPERATORS, ByOperand, Elementwise, Sample, bind, constant, full_like
from weft.primitives.checks import need

if TYPE_CHECKING:
    from weft.codegen import math as vecmath
else:
    vecmath = lazy("weft.codegen.math")

INEXACT = (*dt.FLOATS, *dt.COMPLEXES)
NUMBERS = tuple(d for d in dt.ALL if not d.is_bool)
REALS = tuple(d for d in dt.ALL if not d.is_complex)
BITS = (dt.bool_, *dt.INTEGERS)

EITHER_ZERO = dict.fromkeys(INEXACT, 0.0)
"""Equal as numbers: which of 0.0 and -0.0 is the larger is left open, as in NumPy."""

Partials = tuple[Node | None, ...]


# ---- samples: operands for the generated tests ----


def draw(
    rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...], low: float = -3.0, high: float = 3.0
) -> np.ndarray:
    """Random elements of a dtype in a range where the operation is defined."""
    if dtype.is_bool:
        return rng.random(shape) < 0.5
    if dtype.is_integer:
        least = 0 if dtype.kind == "u" else math.ceil(low)
        return rng.integers(least, max(math.floor(high), least + 1) + 1, shape).astype(dtype.np)
    if dtype.is_complex:
        return (rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape)).astype(dtype.np)
    return rng.uniform(low, high, shape).astype(dtype.np)


def samples(*ranges: tuple[float, float], smooth: bool = True) -> tuple[Sample, ...]:
    """One range per operand, tried on a matrix with a tail, on 0-d, and on nothing."""

    def maker(shape: tuple[int, ...]) -> Any:
        return lambda rng, dtype: [draw(rng, dtype, shape, low, high) for low, high in ranges]

    shapes = {"matrix": (3, 37), "scalar": (), "empty": (0, 4)}
    return tuple(Sample(maker(shape), smooth=smooth, name=name) for name, shape in shapes.items())


unary = samples((-3.0, 3.0))
binary = samples((-3.0, 3.0), (-3.0, 3.0))
rough_binary = samples((-3.0, 3.0), (-3.0, 3.0), smooth=False)


# ---- families within the family ----


class Comparison(Elementwise):
    """Gives bool; its derivative is zero everywhere."""

    samples = rough_binary

    def result(self, *dtypes: Dtype) -> Dtype:
        return dt.bool_

    def partials(self, out: Node, *xs: Node) -> Partials:
        return (None,) * len(xs)

    def zero_tangent(self, out: ArrayType, *kinds: ArrayType) -> ArrayType:
        """As in MLX, of the operands' dtype."""
        return kind_of(out.shape, kinds[0].dtype)


class Stepwise(Elementwise):
    """Constant between jumps: the derivative is zero (rounding, sign)."""

    samples = samples((-3.0, 3.0), smooth=False)

    def partials(self, out: Node, *xs: Node) -> Partials:
        return (None,) * len(xs)


class Smooth(Elementwise):
    """A function of the vector math library: real and complex floats."""

    samples = unary
    dtypes = INEXACT
    cost = 16
    tolerance = {dt.float32: 4, dt.float64: 2, dt.complex64: 16, dt.complex128: 16, dt.float16: 1, dt.bfloat16: 1}


# ---- arithmetic ----


class Add(Elementwise):
    """x + y; `or` of bools."""

    samples = binary
    reference = staticmethod(np.add)

    def partials(self, out: Node, x: Node, y: Node) -> Partials:
        one = full_like(out, 1)
        return one, one

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return x | y if x.dtype.is_bool else x + y


class Subtract(Elementwise):
    """x - y; the difference of bools is whether they differ."""

    samples = binary

    def reference(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x ^ y if x.dtype == np.bool_ else np.subtract(x, y)

    def partials(self, out: Node, x: Node, y: Node) -> Partials:
        return full_like(out, 1), full_like(out, -1)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return x ^ y if x.dtype.is_bool else x - y


class Multiply(Elementwise):
    """x * y; `and` of bools."""

    samples = binary
    reference = staticmethod(np.multiply)
    tolerance = {dt.complex64: 4, dt.complex128: 4}

    def partials(self, out: Node, x: Node, y: Node) -> Partials:
        return y, x

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return x & y if x.dtype.is_bool else x * y


class Divide(Elementwise):
    """x / y of inexact numbers."""

    samples = samples((-3.0, 3.0), (0.5, 3.0))
    dtypes = INEXACT
    cost = 8
    reference = staticmethod(np.divide)
    tolerance = {dt.complex64: 16, dt.complex128: 16}

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        by_x = tangents.get(0)
        by_y = out * tangents[1] if 1 in tangents else None
        total = by_x if by_y is None else -by_y if by_x is None else by_x - by_y
        return total / primals[1]  # type: ignore[operator]

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        by_x = cotangent / conjugate(primals[1])
        return {i: by_x if i == 0 else -(conjugate(out) * by_x) for i in sorted(wanted)}

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return vecmath.complex_divide(b, x, y) if isinstance(x, Complex) else x / y


class Power(Elementwise):
    """x ** y; integers by repeated multiplication that wraps, a negative integer exponent gives 0 (1 and -1
    excepted)."""

    samples = samples((0.5, 3.0), (-3.0, 3.0))
    cost = 40
    tolerance = {dt.float32: 4, dt.float64: 4, dt.float16: 1, dt.bfloat16: 1, dt.complex64: 64, dt.complex128: 64}

    def reference(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if x.dtype == np.bool_:
            return x | ~y
        if x.dtype.kind == "c":  # NumPy multiplies out small powers, which overflows on the way in single precision
            return np.power(x.astype(np.complex128), y.astype(np.complex128)).astype(x.dtype)
        if x.dtype.kind not in "iu":
            return np.where(
                (y == 0.5) & ((x == 0) | (x == -np.inf)), np.abs(x), np.power(x, y)
            )  # NumPy takes roots then
        plain = np.power(x, np.where(y < 0, np.zeros_like(y), y))
        inverse = (
            np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0)) if x.dtype.kind == "i" else plain
        )
        return np.where(y < 0, inverse, plain).astype(x.dtype)

    def partials(self, out: Node, x: Node, y: Node) -> Partials:
        """d/dx is exactly 0 where y is 0; d/dy is 0 where x is 0 (the limit for y > 0)."""
        zero, one = full_like(x, 0), full_like(x, 1)
        by_x = select(equal(y, zero), zero, y * power(x, y - one))
        if x.dtype.is_bool:  # whose logarithms are 0
            return by_x, None
        if x.dtype.is_integer:
            out, x = astype(out, dt.float64), astype(x, dt.float64)
            zero, one = full_like(x, 0), full_like(x, 1)
        safe = select(equal(x, zero), one, x)
        return by_x, select(equal(x, zero), zero, out * log(safe))

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        if isinstance(x, Complex):
            return vecmath.complex_power(b, x, y)
        if x.dtype.is_bool:
            return x | ~y
        return vecmath.power(b, x, y) if x.dtype.is_float else _integer_power(b, x, y)


def _integer_power(b: Builder, x: Value, y: Value) -> Value:
    """x ** y. Where all exponents are 1 or 2, that is a multiplication."""
    (result,) = b.rarely(b.any(y.ne(1) & y.ne(2)), (b.choose(y.eq(2), x * x, x),), lambda: (_any_power(b, x, y),))
    return result


def _any_power(b: Builder, x: Value, y: Value) -> Value:
    """Square and multiply over all bits of the exponent, lane by lane without branches."""
    result, square, exponent = b.like(x, 1), x, y
    for _ in range(min(x.dtype.bits, 64)):
        result = b.choose((exponent & 1).ne(0), result * square, result)
        square, exponent = square * square, _logical_shift(b, exponent)
    if x.dtype.kind != "i":
        return result
    odd = (y & 1).ne(0)
    inverse = b.choose(x.eq(1), 1, b.choose(x.eq(-1), b.choose(odd, b.like(x, -1), b.like(x, 1)), b.like(x, 0)))
    return b.choose(y < 0, inverse, result)


def _logical_shift(b: Builder, x: Value) -> Value:
    unsigned = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}[x.dtype.size]
    return b.bitcast(b.bitcast(x, unsigned) >> 1, x.dtype)


class Extremum(Elementwise):
    """One of the operands; NaN if either is NaN. Complex numbers are ordered by real part, then imaginary part."""

    samples = binary
    tolerance = EITHER_ZERO

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        """The derivative is that of the chosen operand; of y at a tie, as in MLX."""
        zero = full_like(out, 0)
        return select(bind(self.order(), *primals), tangents.get(0, zero), tangents.get(1, zero))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        first, zero = bind(self.order(), *primals), full_like(out, 0)
        return {i: select(first, *((cotangent, zero) if i == 0 else (zero, cotangent))) for i in sorted(wanted)}

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        chosen = b.select(self.order().emit(b, x, y), x, y)
        if not x.dtype.is_inexact:
            return chosen
        if isinstance(x, Complex):
            chosen = b.select(IsNan().emit(b, y), y, chosen)
        return b.select(IsNan().emit(b, x), x, chosen)

    def order(self) -> Ordering:
        """The comparison that holds where the first operand is the one."""
        raise NotImplementedError


class Maximum(Extremum):
    """The larger; NaN if either is NaN."""

    reference = staticmethod(np.maximum)

    def order(self) -> Ordering:
        return Greater()


class Minimum(Extremum):
    """The smaller; NaN if either is NaN."""

    reference = staticmethod(np.minimum)

    def order(self) -> Ordering:
        return Less()


class Negative(Elementwise):
    """-x."""

    samples = unary
    dtypes = NUMBERS
    reference = staticmethod(np.negative)

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(out, -1),)

    def emit(self, b: Builder, x: Any) -> Any:
        return -x


class Absolute(Elementwise):
    """|x|; real for complex numbers."""

    samples = samples((0.5, 3.0))
    reference = staticmethod(np.abs)
    tolerance = {dt.complex64: 2, dt.complex128: 2}

    def result(self, *dtypes: Dtype) -> Dtype:
        return dt.real_of(dtypes[0])

    def partials(self, out: Node, x: Node) -> Partials:
        if x.dtype.is_complex:
            zero = equal(out, full_like(out, 0))
            return (select(zero, full_like(x, 0), x / astype(select(zero, full_like(out, 1), out), x.dtype)),)
        return (sign(x),)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        if not primals[0].dtype.is_complex:
            return super().jvp(out, primals, tangents)
        (unit,) = self.partials(out, *primals)
        assert unit is not None
        return real(conjugate(unit) * tangents[0])

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        if not primals[0].dtype.is_complex:
            return super().vjp(out, primals, cotangent, wanted)
        (unit,) = self.partials(out, *primals)
        assert unit is not None
        return {0: astype(cotangent, unit.dtype) * unit}

    def emit(self, b: Builder, x: Any) -> Any:
        if isinstance(x, Complex):
            return vecmath.hypot(b, x.re, x.im)
        return x if x.dtype.is_bool else b.abs(x)


class Sign(Stepwise):
    """-1, 0 or 1; x / |x| for complex; NaN stays NaN."""

    tolerance = {dt.complex64: 4, dt.complex128: 4}

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x if x.dtype == np.bool_ else np.sign(x)

    def emit(self, b: Builder, x: Any) -> Any:
        if isinstance(x, Complex):
            size = vecmath.hypot(b, x.re, x.im)
            zero = size.eq(0.0)
            safe = b.choose(zero, 1.0, size)
            return Complex(b.choose(zero, 0.0, x.re / safe), b.choose(zero, 0.0, x.im / safe))
        if x.dtype.is_bool:
            return x
        unit = b.choose(x > 0, b.like(x, 1), b.choose(x < 0, b.like(x, -1 if x.dtype.is_signed else 0), b.like(x, 0)))
        return b.choose(b.isnan(x), x, unit) if x.dtype.is_float else unit


class Floor(Stepwise):
    """The largest integer not above x."""

    dtypes = dt.FLOATS
    reference = staticmethod(np.floor)

    def emit(self, b: Builder, x: Any) -> Any:
        return b.floor(x)


class Ceil(Stepwise):
    """The smallest integer not below x."""

    dtypes = dt.FLOATS
    reference = staticmethod(np.ceil)

    def emit(self, b: Builder, x: Any) -> Any:
        return b.ceil(x)


class Rint(Stepwise):
    """The nearest integer, ties to even; part by part for complex numbers."""

    dtypes = INEXACT
    reference = staticmethod(np.rint)

    def emit(self, b: Builder, x: Any) -> Any:
        return Complex(b.rint(x.re), b.rint(x.im)) if isinstance(x, Complex) else b.rint(x)


class Square(Elementwise):
    """x * x."""

    samples = unary
    tolerance = {dt.complex64: 4, dt.complex128: 4}

    def partials(self, out: Node, x: Node) -> Partials:
        return (x + x,)

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x if x.dtype == np.bool_ else np.square(x)

    def emit(self, b: Builder, x: Any) -> Any:
        return x if x.dtype.is_bool else x * x


class Sqrt(Elementwise):
    """The square root; NaN below zero."""

    samples = samples((0.5, 3.0))
    dtypes = INEXACT
    cost = 8
    reference = staticmethod(np.sqrt)
    tolerance = {dt.complex64: 8, dt.complex128: 8}

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(out, 0.5) / out,)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_sqrt(b, x) if isinstance(x, Complex) else b.sqrt(x)


class Rsqrt(Elementwise):
    """1 / sqrt(x), each rounded."""

    samples = samples((0.5, 3.0))
    dtypes = INEXACT
    cost = 12
    tolerance = {dt.float32: 1, dt.float64: 1, dt.complex64: 16, dt.complex128: 16}

    def reference(self, x: np.ndarray) -> np.ndarray:
        return (1 / np.sqrt(x)).astype(x.dtype)

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(out, -0.5) * out * out * out,)

    def emit(self, b: Builder, x: Any) -> Any:
        if isinstance(x, Complex):
            one = Complex(b.like(x.re, 1.0), b.like(x.re, 0.0))
            return vecmath.complex_divide(b, one, vecmath.complex_sqrt(b, x))
        return 1.0 / b.sqrt(x)


# ---- exponentials and friends ----


class Exp(Smooth):
    """e ** x."""

    reference = staticmethod(np.exp)

    def partials(self, out: Node, x: Node) -> Partials:
        return (out,)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_exp(b, x) if isinstance(x, Complex) else vecmath.exp(b, x)


class Expm1(Smooth):
    """e ** x - 1, accurate near 0."""

    dtypes = dt.FLOATS
    reference = staticmethod(np.expm1)

    def partials(self, out: Node, x: Node) -> Partials:
        return (exp(x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.expm1(b, x)


class Log(Smooth):
    """The natural logarithm."""

    samples = samples((0.5, 3.0))
    reference = staticmethod(np.log)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return tangents[0] / primals[0]  # type: ignore[no-any-return]

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        return {0: cotangent / conjugate(primals[0])}

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_log(b, x) if isinstance(x, Complex) else vecmath.log(b, x)


class Log1p(Smooth):
    """log(1 + x), accurate near 0."""

    samples = samples((-0.5, 3.0))

    def reference(self, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "c":
            return np.log1p(x)
        re, im = x.real.astype(np.longdouble), x.imag.astype(np.longdouble)  # NumPy's own is inaccurate near 0
        near = np.log1p(re * (2 + re) + im * im) / 2
        modulus = np.where(np.abs(x) < 0.5, near, np.log(np.hypot(1 + re, im)))
        return (modulus + 1j * np.arctan2(im, 1 + re)).astype(x.dtype)

    def partials(self, out: Node, x: Node) -> Partials:
        one = full_like(x, 1)
        return (one / (one + x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_log1p(b, x) if isinstance(x, Complex) else vecmath.log1p(b, x)


class Tanh(Smooth):
    """The hyperbolic tangent."""

    reference = staticmethod(np.tanh)

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(out, 1) - out * out,)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_tanh(b, x) if isinstance(x, Complex) else vecmath.tanh(b, x)


class Sin(Smooth):
    """sin(x), x in radians."""

    reference = staticmethod(np.sin)

    def partials(self, out: Node, x: Node) -> Partials:
        return (cos(x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_sin(b, x) if isinstance(x, Complex) else vecmath.sin(b, x)


class Cos(Smooth):
    """cos(x), x in radians."""

    reference = staticmethod(np.cos)

    def partials(self, out: Node, x: Node) -> Partials:
        return (-sin(x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_cos(b, x) if isinstance(x, Complex) else vecmath.cos(b, x)


class Erf(Smooth):
    """The error function."""

    dtypes = dt.FLOATS

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.vectorize(math.erf, otypes=[np.float64])(x).astype(x.dtype)

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(x, 2 / math.sqrt(math.pi)) * exp(-(x * x)),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.erf(b, x)


class ErfInv(Smooth):
    """The inverse of the error function on (-1, 1); infinite at its ends."""

    samples = samples((-0.9, 0.9))
    dtypes = dt.FLOATS

    def reference(self, x: np.ndarray) -> np.ndarray:
        from scipy.special import erfinv  # only the reference needs it, and it takes longer to import than all of Weft

        wide = x.astype(np.float64)
        return np.copysign(erfinv(np.abs(wide)), wide).astype(x.dtype)  # SciPy forgets the sign of -0.0

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(x, math.sqrt(math.pi) / 2) * exp(out * out),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.erfinv(b, x)


class Sigmoid(Smooth):
    """1 / (1 + e ** -x)."""

    dtypes = dt.FLOATS

    def reference(self, x: np.ndarray) -> np.ndarray:
        wide = np.exp(-np.abs(x.astype(np.float64)))
        return np.where(x >= 0, 1 / (1 + wide), wide / (1 + wide)).astype(x.dtype)

    def partials(self, out: Node, x: Node) -> Partials:
        return (out * (full_like(out, 1) - out),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.sigmoid(b, x)


# ---- comparison and logic ----


class Equal(Comparison):
    """x == y; NaN equals nothing."""

    reference = staticmethod(np.equal)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return x.eq(y)


class NotEqual(Comparison):
    """x != y."""

    reference = staticmethod(np.not_equal)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return x.ne(y)


class Ordering(Comparison):
    """Orders reals; complex numbers by real part, then imaginary part."""

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        if isinstance(x, Complex):
            return self.relate(x.re, y.re) & x.re.ne(y.re) | (x.re.eq(y.re) & self.relate(x.im, y.im))
        return self.relate(x, y)

    def relate(self, x: Value, y: Value) -> Value:
        raise NotImplementedError


class Less(Ordering):
    """x < y."""

    reference = staticmethod(np.less)

    def relate(self, x: Value, y: Value) -> Value:
        return x < y


class LessEqual(Ordering):
    """x <= y."""

    reference = staticmethod(np.less_equal)

    def relate(self, x: Value, y: Value) -> Value:
        return x <= y


class Greater(Ordering):
    """x > y."""

    reference = staticmethod(np.greater)

    def relate(self, x: Value, y: Value) -> Value:
        return x > y


class GreaterEqual(Ordering):
    """x >= y."""

    reference = staticmethod(np.greater_equal)

    def relate(self, x: Value, y: Value) -> Value:
        return x >= y


class IsNan(Comparison):
    """Whether x is NaN (in either part)."""

    samples = samples((-3.0, 3.0), smooth=False)
    dtypes = INEXACT
    reference = staticmethod(np.isnan)

    def emit(self, b: Builder, x: Any) -> Any:
        return b.isnan(x.re) | b.isnan(x.im) if isinstance(x, Complex) else b.isnan(x)


class BitwiseAnd(Stepwise):
    """Bit by bit and; logical and of bools."""

    samples = rough_binary
    dtypes = BITS
    reference = staticmethod(np.bitwise_and)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return x & y


class BitwiseOr(Stepwise):
    """Bit by bit or; logical or of bools."""

    samples = rough_binary
    dtypes = BITS
    reference = staticmethod(np.bitwise_or)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return x | y


class BitwiseXor(Stepwise):
    """Bit by bit exclusive or; difference of bools."""

    samples = rough_binary
    dtypes = BITS
    reference = staticmethod(np.bitwise_xor)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return x ^ y


class BitwiseInvert(Stepwise):
    """All bits flipped; logical not of bools."""

    dtypes = BITS
    reference = staticmethod(np.invert)

    def emit(self, b: Builder, x: Any) -> Any:
        return ~x


class LeftShift(Stepwise):
    """x << y; a count past the width (or negative) gives 0."""

    samples = samples((0, 20), (0, 7), smooth=False)
    dtypes = dt.INTEGERS

    def reference(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        past = (y < 0) | (y >= 8 * x.itemsize)
        return np.where(past, 0, np.left_shift(x, np.where(past, 0, y))).astype(x.dtype)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        past, count = _shift_count(b, x, y)
        return b.choose(past, 0, x << count)


class RightShift(Stepwise):
    """x >> y, keeping the sign of signed integers; a count past the width gives 0, or -1 for negative x."""

    samples = samples((-20, 20), (0, 7), smooth=False)
    dtypes = dt.INTEGERS

    def reference(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        past = (y < 0) | (y >= 8 * x.itemsize)
        ends = np.where(x < 0, -1, 0).astype(x.dtype)
        return np.where(past, ends, np.right_shift(x, np.where(past, 0, y).astype(y.dtype)))

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        past, count = _shift_count(b, x, y)
        ends = b.choose(x < 0, b.like(x, -1), b.like(x, 0)) if x.dtype.kind == "i" else b.like(x, 0)
        return b.choose(past, ends, x >> count)


def _shift_count(b: Builder, x: Value, y: Value) -> tuple[Value, Value]:
    """(whether the count is out of range, a count that is not)."""
    past = y >= x.dtype.bits
    if y.dtype.kind == "i":
        past = past | (y < 0)
    return past, b.choose(past, 0, y)


class Select(Elementwise):
    """x where the condition holds, else y. Neither side's NaN leaks into the other's result or gradient."""

    compute_halves = False
    moves = (1, 2)
    samples = tuple(
        Sample(
            lambda rng, dtype, shape=shape: [draw(rng, d, shape) for d in (dt.bool_, dtype, dtype)],  # type: ignore[misc]
            name=name,
        )
        for name, shape in {"matrix": (3, 37), "scalar": (), "empty": (0, 4)}.items()
    )

    def result(self, *dtypes: Dtype) -> Dtype:
        return dtypes[1]

    def check_dtypes(self, *kinds: ArrayType) -> None:
        need(kinds[0].dtype is dt.bool_, f"a condition that is {kinds[0].dtype.name}")
        super().check_dtypes(*kinds[1:])

    def reference(self, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(condition, x, y)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        condition = primals[0]
        if not (1 in tangents or 2 in tangents):
            return None
        zero = full_like(out, 0)
        return select(condition, tangents.get(1, zero), tangents.get(2, zero))

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        condition, zero = primals[0], full_like(cotangent, 0)
        both = {1: lambda: select(condition, cotangent, zero), 2: lambda: select(condition, zero, cotangent)}
        return {position: both[position]() for position in sorted(wanted) if position in both}

    def emit(self, b: Builder, condition: Any, x: Any, y: Any) -> Any:
        return b.select(condition, x, y)


# ---- conversion ----


class AsType(Elementwise):
    """Conversion: one rounding; float to integer truncates, saturates int32 or int64, then wraps to narrower types; NaN
    gives 0."""

    dtype: Dtype
    compute_halves = False
    samples = tuple(
        # Differences of a function in double precision say nothing about one that rounds to less.
        Sample(
            lambda rng, dtype: [draw(rng, dtype, (3, 37))], {"dtype": to}, to in (dt.float64, dt.complex128), to.name
        )
        for to in dt.ALL
    )

    def result(self, *dtypes: Dtype) -> Dtype:
        return self.dtype

    def reference(self, x: np.ndarray) -> np.ndarray:
        return interop.cast(x, self.dtype)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        """A conversion is the identity for differentiation, also to and from integers, as in MLX."""
        return astype(tangents[0], self.dtype)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        return {0: astype(cotangent, primals[0].dtype)}

    def emit(self, b: Builder, x: Any) -> Any:
        return b.convert(x, self.dtype)


class Identity(Elementwise):
    """x itself. Fresh inputs of a trace, and results of functions that bring their own rules: further operands say what
    x is made of."""

    compute_halves = False
    moves = (0,)
    samples = unary

    def reference(self, x: np.ndarray, *made_of: np.ndarray) -> np.ndarray:
        return x

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(out, 1),)

    def emit(self, b: Builder, x: Any) -> Any:
        return x


class StopGradient(Identity):
    """x, seen as a constant by differentiation."""

    samples = samples((-3.0, 3.0), smooth=False)

    def partials(self, out: Node, x: Node) -> Partials:
        return (None,)


class Conjugate(Elementwise):
    """The complex conjugate; x itself for reals."""

    compute_halves = False
    moves = (0,)
    samples = unary
    dtypes = INEXACT
    reference = staticmethod(np.conjugate)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return conjugate(tangents[0])

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        return {0: conjugate(cotangent)}

    def emit(self, b: Builder, x: Any) -> Any:
        return Complex(x.re, -x.im) if isinstance(x, Complex) else x


class Real(Elementwise):
    """The real part."""

    compute_halves = False
    moves = (0,)
    samples = unary
    dtypes = INEXACT
    reference = staticmethod(np.real)

    def result(self, *dtypes: Dtype) -> Dtype:
        return dt.real_of(dtypes[0])

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return real(tangents[0])

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        return {0: astype(cotangent, primals[0].dtype)}

    def emit(self, b: Builder, x: Any) -> Any:
        return x.re if isinstance(x, Complex) else x


class Imag(Elementwise):
    """The imaginary part; 0 for reals."""

    compute_halves = False
    samples = unary
    dtypes = INEXACT
    reference = staticmethod(np.imag)

    def result(self, *dtypes: Dtype) -> Dtype:
        return dt.real_of(dtypes[0])

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        return bind(Imag(), tangents[0])

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        x = primals[0]
        return {0: astype(cotangent, x.dtype) * constant(1j, x.kind)} if x.dtype.is_complex else {}

    def emit(self, b: Builder, x: Any) -> Any:
        return x.im if isinstance(x, Complex) else b.like(x, 0.0)


# ---- node functions, for rules ----


def astype(x: Node, dtype: Dtype) -> Node:
    """`x` as `dtype`; no node when it already is."""
    return x if x.dtype is dtype else bind(AsType(dtype), x)


def conjugate(x: Node) -> Node:
    return bind(Conjugate(), x) if x.dtype.is_complex else x


def real(x: Node) -> Node:
    return bind(Real(), x) if x.dtype.is_complex else x


def exp(x: Node) -> Node:
    return bind(Exp(), x)


def log(x: Node) -> Node:
    return bind(Log(), x)


def sin(x: Node) -> Node:
    return bind(Sin(), x)


def cos(x: Node) -> Node:
    return bind(Cos(), x)


def sigmoid(x: Node) -> Node:
    return bind(Sigmoid(), x)


def sign(x: Node) -> Node:
    return bind(Sign(), x)


def power(x: Node, y: Node) -> Node:
    return bind(Power(), x, y)


def equal(x: Node, y: Node) -> Node:
    return bind(Equal(), x, y)


def greater(x: Node, y: Node) -> Node:
    return bind(Greater(), x, y)


def less(x: Node, y: Node) -> Node:
    return bind(Less(), x, y)


def select(condition: Node, x: Node, y: Node) -> Node:
    return bind(Select(), condition, x, y)


def _install_operators() -> None:
    """Arithmetic on nodes, so that rules read like mathematics."""
    for name, op in {"add": Add, "sub": Subtract, "mul": Multiply, "truediv": Divide}.items():
        setattr(Node, f"__{name}__", lambda x, y, op=op: bind(op(), x, y))
    Node.__neg__ = lambda x: bind(Negative(), x)  # type: ignore[method-assign]


_install_operators()
OPERATORS["astype"] = astype
OPERATORS["conjugate"] = conjugate
