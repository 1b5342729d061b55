"""Elementwise functions with MLX's names."""

from __future__ import annotations

import builtins
import math
from typing import Any, Final, Protocol, cast, overload

from weft import dtypes as dt
from weft.core._common import (
    ArrayLike,
    Binary,
    Unary,
    apply,
    array,
    bind,
    bounded,
    broadcast_node,
    broadcast_shapes,
    constant,
    is_whole,
    kind_of,
    normalize_axis,
    promoted,
    refuse_dtype,
    scalar_node,
    to_node,
    wrap,
)  # fmt: skip
from weft.core._common import (
    astype as node_astype,
)
from weft.core.selecting import nonzero
from weft.core.shaping import slice_axis
from weft.dtypes import Dtype
from weft.graph.dims import is_now
from weft.graph.node import ArrayType, Node
from weft.primitives import bits, logarithms, rounding, special, trigonometry
from weft.primitives import elementwise as p

Stream = Any


class UnaryFunction(Protocol):
    """A function of one array."""

    def __call__(self, a: ArrayLike, /, *, stream: Stream = None) -> array: ...


class BinaryFunction(Protocol):
    """A function of two arrays."""

    operator: Binary

    def __call__(self, a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> array: ...


class Classifier(Protocol):
    """A question to every element."""

    def __call__(self, a: ArrayLike, stream: Stream = None) -> array: ...


def _unary(op: Any, name: str, doc: str, inexact: bool = False) -> UnaryFunction:
    compute = Unary(op, name, inexact).call

    def function(a: ArrayLike, /, *, stream: Stream = None) -> array:
        return compute(a)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _binary(op: Any, name: str, doc: str, inexact: bool = False) -> BinaryFunction:
    return _function(Binary(op, name, inexact), doc)


def _function(compute: Binary, doc: str) -> BinaryFunction:
    """A public function for a binary operation; operators of arrays find the operation in `operator`."""

    call = compute.call

    def function(a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> array:
        return call(a, b)

    function.__name__ = function.__qualname__ = compute.name
    function.__doc__ = doc
    function.operator = compute  # type: ignore[attr-defined]
    return cast(BinaryFunction, function)


class _FloorDivision(Binary):
    """Floor division: one primitive for integers, the floor of the (rounded) quotient for floats."""

    __slots__ = ()

    def slow(self, a: Any, b: Any) -> array:
        x, y = promoted(self.name, a, b)
        if x.dtype.is_float:
            return apply(p.Floor(), x / y)
        return super().slow(a, b)


class _Power(Binary):
    """Powers. `x ** 2`, as squares are mostly written, is `square(x)`: the same bits and derivatives, and a kernel
    without what finds the powers of other exponents."""

    __slots__ = ()

    def general(self, a: Any, b: Any) -> array:
        if b.__class__ is int and b == 2 and a.__class__ is array:
            dtype = a.dtype
            if dtype.is_float or dtype.is_integer:
                return _square(a)
        return super().general(a, b)

    def _remember_number(self, number: type, operand: ArrayType, result: ArrayType) -> None:
        if number is int:  # machine code does not ask which number it is
            bounded(self.kinds)[operand, number] = (operand, result)
        else:
            super()._remember_number(number, operand, result)


_square: Final = Unary(p.Square(), "square", False).call


def _bytes_of_bools(dtype: Dtype) -> Dtype:
    return dt.uint8 if dtype.is_bool else dtype


add = _binary(p.Add(), "add", "a + b, broadcast together.")
subtract = _binary(p.Subtract(), "subtract", "a - b, broadcast together.")
multiply = _binary(p.Multiply(), "multiply", "a * b, broadcast together.")
divide = _binary(p.Divide(), "divide", "a / b, broadcast together; integers are divided as floats.", inexact=True)
power = _function(_Power(p.Power(), "power"), "a ** b, broadcast together.")
maximum = _binary(p.Maximum(), "maximum", "The larger of a and b; NaN if either is.")
minimum = _binary(p.Minimum(), "minimum", "The smaller of a and b; NaN if either is.")
remainder = _binary(rounding.Remainder(), "remainder", "a % b with the sign of b, exact; for integers a % 0 is a.")
floor_divide = _function(
    _FloorDivision(rounding.FloorDivide(), "floor_divide"), "The quotient a / b rounded down; for integers a // 0 is 0."
)
arctan2 = _binary(trigonometry.ArcTan2(), "arctan2", "The angle of the point (b, a) in [-pi, pi].", inexact=True)
equal = _binary(p.Equal(), "equal", "a == b elementwise.")
not_equal = _binary(p.NotEqual(), "not_equal", "a != b elementwise.")
less = _binary(p.Less(), "less", "a < b elementwise.")
less_equal = _binary(p.LessEqual(), "less_equal", "a <= b elementwise.")
greater = _binary(p.Greater(), "greater", "a > b elementwise.")
greater_equal = _binary(p.GreaterEqual(), "greater_equal", "a >= b elementwise.")
bitwise_and = _binary(p.BitwiseAnd(), "bitwise_and", "a & b, bit by bit.")
bitwise_or = _binary(p.BitwiseOr(), "bitwise_or", "a | b, bit by bit.")
bitwise_xor = _binary(p.BitwiseXor(), "bitwise_xor", "a ^ b, bit by bit.")
left_shift = _function(
    Binary(p.LeftShift(), "left_shift", operand=_bytes_of_bools), "a << b; 0 where the count passes the width."
)
right_shift = _function(Binary(p.RightShift(), "right_shift", operand=_bytes_of_bools), "a >> b, keeping the sign.")

negative = _unary(p.Negative(), "negative", "-a.")
abs = _unary(p.Absolute(), "abs", "The absolute value; real for complex arrays.")
sign = _unary(p.Sign(), "sign", "-1, 0 or 1.")
square = _unary(p.Square(), "square", "a * a.")
bitwise_invert = _unary(p.BitwiseInvert(), "bitwise_invert", "~a, bit by bit.")
sqrt = _unary(p.Sqrt(), "sqrt", "The square root.", inexact=True)
rsqrt = _unary(p.Rsqrt(), "rsqrt", "1 / sqrt(a).", inexact=True)
exp = _unary(p.Exp(), "exp", "e ** a.", inexact=True)
expm1 = _unary(p.Expm1(), "expm1", "e ** a - 1, accurate near 0.", inexact=True)
log = _unary(p.Log(), "log", "The natural logarithm.", inexact=True)
log1p = _unary(p.Log1p(), "log1p", "log(1 + a), accurate near 0.", inexact=True)
tanh = _unary(p.Tanh(), "tanh", "The hyperbolic tangent.", inexact=True)
sin = _unary(p.Sin(), "sin", "The sine of radians.", inexact=True)
cos = _unary(p.Cos(), "cos", "The cosine of radians.", inexact=True)
erf = _unary(p.Erf(), "erf", "The error function.", inexact=True)
erfinv = _unary(p.ErfInv(), "erfinv", "The inverse of the error function.", inexact=True)
gammaln = _unary(special.GammaLn(), "gammaln", "log|gamma(a)|.", inexact=True)
digamma = _unary(special.Digamma(), "digamma", "The derivative of gammaln.", inexact=True)
erfc = _unary(special.Erfc(), "erfc", "1 - erf(a), accurate where erf is near 1.", inexact=True)
erfcx = _unary(special.Erfcx(), "erfcx", "exp(a * a) * erfc(a), without overflow.", inexact=True)
log1mexp = _unary(special.Log1mExp(), "log1mexp", "log(1 - exp(a)) for a <= 0.", inexact=True)
i0 = _unary(special.I0(), "i0", "The modified Bessel function of order 0.", inexact=True)
i1 = _unary(special.I1(), "i1", "The modified Bessel function of order 1.", inexact=True)
i0e = _unary(special.I0e(), "i0e", "exp(-|a|) * i0(a).", inexact=True)
i1e = _unary(special.I1e(), "i1e", "exp(-|a|) * i1(a).", inexact=True)
xlogy = _binary(special.XLogY(), "xlogy", "a * log(b), 0 where a is 0.", inexact=True)
logaddexp = _binary(
    logarithms.LogAddExp(), "logaddexp", "log(exp(a) + exp(b)), without overflow; if complex up to 2 pi i k.", True
)
sigmoid = _unary(p.Sigmoid(), "sigmoid", "1 / (1 + exp(-a)).", inexact=True)
log2 = _unary(logarithms.Log2(), "log2", "The logarithm to the base 2.", inexact=True)
log10 = _unary(logarithms.Log10(), "log10", "The logarithm to the base 10.", inexact=True)
tan = _unary(trigonometry.Tan(), "tan", "The tangent of radians.", inexact=True)
arcsin = _unary(trigonometry.ArcSin(), "arcsin", "The angle in [-pi/2, pi/2] whose sine is a.", inexact=True)
arccos = _unary(trigonometry.ArcCos(), "arccos", "The angle in [0, pi] whose cosine is a.", inexact=True)
arctan = _unary(trigonometry.ArcTan(), "arctan", "The angle in [-pi/2, pi/2] whose tangent is a.", inexact=True)
sinh = _unary(trigonometry.Sinh(), "sinh", "The hyperbolic sine.", inexact=True)
cosh = _unary(trigonometry.Cosh(), "cosh", "The hyperbolic cosine.", inexact=True)
arcsinh = _unary(trigonometry.ArcSinh(), "arcsinh", "The inverse of the hyperbolic sine.", inexact=True)
arccosh = _unary(trigonometry.ArcCosh(), "arccosh", "The inverse of the hyperbolic cosine; NaN below 1.", inexact=True)
arctanh = _unary(
    trigonometry.ArcTanh(), "arctanh", "The inverse of the hyperbolic tangent; infinite at -1 and 1.", inexact=True
)
stop_gradient = _unary(p.StopGradient(), "stop_gradient", "a, seen as a constant by differentiation.")

pow = power
asin, acos, atan, atan2, asinh, acosh, atanh = arcsin, arccos, arctan, arctan2, arcsinh, arccosh, arctanh
bitwise_left_shift, bitwise_right_shift = left_shift, right_shift


def conjugate(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """The complex conjugate; a itself if it is real."""
    return wrap(p.conjugate(to_node(a)))


conj = conjugate


def real(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """The real part; a itself if it is real."""
    return wrap(p.real(to_node(a)))


def imag(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """The imaginary part; zeros if a is real."""
    x = to_node(a)
    return apply(p.Imag(), x) if x.dtype.is_complex else wrap(constant(0, x.kind))


def divmod(a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> list[array]:
    """[a // b, a % b]: see floor_divide and remainder.

    >>> divmod(array([7, -7]), 3)
    [array([2, -3], dtype=int32), array([1, 2], dtype=int32)]
    """
    return [floor_divide(a, b), remainder(a, b)]


# ---- rounding ----


def _rounding(op: Any, name: str, doc: str) -> UnaryFunction:
    def function(a: ArrayLike, /, *, stream: Stream = None) -> array:
        x = to_node(a)
        if not x.dtype.is_inexact:
            return wrap(bind(p.StopGradient(), x))  # itself, but as constant as what is rounded
        refuse_dtype(name, op, x.dtype)
        return apply(op, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


floor = _rounding(p.Floor(), "floor", "The largest integer not above a.")
ceil = _rounding(p.Ceil(), "ceil", "The smallest integer not below a.")
trunc = _rounding(rounding.Trunc(), "trunc", "The nearest integer towards zero.")


def round(a: ArrayLike, /, decimals: int = 0, stream: Stream = None) -> array:
    """The nearest multiple of 10 ** -decimals, ties to even; complex numbers part by part.

    >>> round(array([15, 25, 31]), -1)
    array([20, 20, 30], dtype=int32)
    """
    x = to_node(a)
    if not x.dtype.is_inexact:
        as_it_is = decimals >= 0 or x.dtype.is_bool
        return wrap(bind(p.StopGradient(), x) if as_it_is else _round_integers(x, 10**-decimals))
    if decimals == 0:
        return apply(p.Rint(), x)
    scale = scalar_node(10.0 ** builtins.abs(decimals), x.kind)
    if decimals < 0:
        return wrap(bind(p.Rint(), x / scale) * scale)
    return wrap(bind(p.Rint(), x * scale) / scale)


def _round_integers(x: Node, step: int) -> Node:
    """The nearest multiple of a power of ten, ties to even, in integer arithmetic: exact, and it wraps."""
    if step >= 1 << (x.dtype.bits - (x.dtype.kind == "i")):
        return constant(0, x.kind)
    by = scalar_node(step, x.kind)
    quotient = bind(rounding.FloorDivide(), x, by)
    rest = x - quotient * by
    other = by - rest
    odd = node_astype(bind(p.BitwiseAnd(), quotient, scalar_node(1, x.kind)), dt.bool_)
    up = bind(p.BitwiseOr(), p.greater(rest, other), bind(p.BitwiseAnd(), p.equal(rest, other), odd))
    return (quotient + node_astype(up, x.dtype)) * by


def reciprocal(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """1 / a."""
    return divide(1.0, a)


def positive(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """a itself."""
    return wrap(to_node(a))


def _to_bool(a: ArrayLike) -> array:
    return wrap(node_astype(to_node(a), dt.bool_))


def logical_not(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """Whether a is zero."""
    return bitwise_invert(_to_bool(a))


def logical_and(a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> array:
    """Whether both are nonzero."""
    return bitwise_and(_to_bool(a), _to_bool(b))


def logical_or(a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> array:
    """Whether either is nonzero."""
    return bitwise_or(_to_bool(a), _to_bool(b))


def logical_xor(a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> array:
    """Whether one is nonzero and the other is zero."""
    return bitwise_xor(_to_bool(a), _to_bool(b))


# ---- infinities and NaN ----


def _classifier(op: Any, name: str, doc: str, of_integers: bool) -> Classifier:
    def function(a: ArrayLike, stream: Stream = None) -> array:
        x = to_node(a)
        return apply(op, x) if x.dtype.is_inexact else wrap(constant(of_integers, kind_of(x.shape, dt.bool_)))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


isnan = _classifier(p.IsNan(), "isnan", "Whether elements are NaN.", of_integers=False)
isinf = _classifier(bits.IsInf(), "isinf", "Whether elements are infinite.", of_integers=False)
isfinite = _classifier(bits.IsFinite(), "isfinite", "Whether elements are neither NaN nor infinite.", of_integers=True)


def _is_number(a: ArrayLike, number: float) -> array:
    x = to_node(a)
    if not x.dtype.is_inexact:
        return wrap(constant(False, kind_of(x.shape, dt.bool_)))
    return wrap(p.equal(x, scalar_node(number, x.kind)))


def isposinf(a: ArrayLike, stream: Stream = None) -> array:
    """Whether elements are positive infinity."""
    return _is_number(a, math.inf)


def isneginf(a: ArrayLike, stream: Stream = None) -> array:
    """Whether elements are negative infinity."""
    return _is_number(a, -math.inf)


def nan_to_num(
    a: ArrayLike, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None, *, stream: Stream = None
) -> array:
    """NaN and the infinities replaced by numbers: by 0 and by the ends of the dtype's range, or as given.

    >>> nan_to_num(array([float("nan"), 1.0]), nan=-1.0)
    array([-1, 1], dtype=float32)
    """
    x = to_node(a)
    if x.dtype.is_complex:
        parts = [to_node(nan_to_num(wrap(part), nan, posinf, neginf)) for part in (p.real(x), bind(p.Imag(), x))]
        return apply(bits.Cartesian(), *parts)
    if not x.dtype.is_float:
        return wrap(x)
    limits = dt.finfo(x.dtype)
    result = p.select(bind(p.IsNan(), x), scalar_node(float(nan), x.kind), x)
    for infinite, given, limit in ((math.inf, posinf, limits.max), (-math.inf, neginf, limits.min)):
        number = scalar_node(limit if given is None else float(given), x.kind)
        result = p.select(p.equal(x, scalar_node(infinite, x.kind)), number, result)
    return wrap(result)


# ---- angles and differences ----


def _times(a: ArrayLike, factor: float) -> array:
    x = to_node(a)
    x = node_astype(x, dt.inexact_of(x.dtype))
    return wrap(x * scalar_node(factor, x.kind))


def degrees(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """Radians as degrees."""
    return _times(a, 180.0 / math.pi)


def radians(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """Degrees as radians."""
    return _times(a, math.pi / 180.0)


def diff(a: ArrayLike, /, n: int = 1, axis: int = -1, *, stream: Stream = None) -> array:
    """Differences of neighbours along an axis, taken n times.

    >>> diff(array([1, 4, 9, 16]))
    array([3, 5, 7], dtype=int32)
    """
    if n < 0:
        raise ValueError(f"[diff] n says how often to take differences and cannot be negative; got {n}.")
    x = to_node(a)
    axis = normalize_axis("diff", axis, x.ndim)
    for _ in range(n):
        size = x.shape[axis]
        if is_now(size, 0):
            break
        x = slice_axis(x, axis, 1, size - 1) - slice_axis(x, axis, 0, size - 1)  # type: ignore[arg-type]
    return wrap(x)


@overload
def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /, *, stream: Stream = None) -> array: ...
@overload
def where(condition: ArrayLike, /, *, stream: Stream = None) -> tuple[array, ...]: ...
def where(
    condition: ArrayLike, x: ArrayLike | None = None, y: ArrayLike | None = None, /, *, stream: Stream = None
) -> array | tuple[array, ...]:
    """x where the condition holds, else y; all broadcast together. Of a condition alone, the indices where it holds, as
    `nonzero` gives them.

    >>> where(array([True, False]), 1.0, array([5.0, 6.0]))
    array([1, 6], dtype=float32)
    """
    if x is None or y is None:
        if x is not y:
            raise TypeError("[where] give both x and y, or none of them for the indices where the condition holds.")
        return nonzero(condition)
    c = node_astype(to_node(condition), dt.bool_)
    a, b = promoted("where", x, y)
    shape = broadcast_shapes("where", c.shape, a.shape, b.shape)
    return apply(p.Select(), *[broadcast_node(n, shape) for n in (c, a, b)])


def clip(
    a: ArrayLike, /, a_min: ArrayLike | None = None, a_max: ArrayLike | None = None, *, stream: Stream = None
) -> array:
    """a limited to [a_min, a_max]; either bound may be None.

    >>> clip(array([-2.0, 0.5, 9.0]), 0.0, 1.0)
    array([0, 0.5, 1], dtype=float32)
    """
    if a_min is None and a_max is None:
        raise ValueError("[clip] at least one of a_min and a_max must be given.")
    given = result = a if isinstance(a, array) else wrap(to_node(a))
    if a_min is not None:
        result = maximum(result, a_min)
    if a_max is None:
        return result
    if result.dtype is not given.dtype and a_max.__class__ in (bool, int, float, complex):
        # A number takes its dtype from a, whatever the other bound has made of it.
        result = astype(result, dt.promote(result.dtype, dt.promote_scalar(given.dtype, a_max.__class__)))
    return minimum(result, a_max)


def astype(a: ArrayLike, /, dtype: Dtype, stream: Stream = None) -> array:
    """a with its elements converted to dtype.

    >>> astype(array([1.7, -1.7]), int32)
    array([1, -1], dtype=int32)
    """
    if not isinstance(dtype, Dtype):
        raise TypeError(f"[astype] dtype must be a Weft dtype such as float32; got {dtype!r}.")
    return wrap(node_astype(to_node(a), dtype))


def polygamma(n: int, a: ArrayLike, /, *, stream: Stream = None) -> array:
    """The n-th derivative of digamma (digamma itself for n = 0), for a > 0."""
    if not is_whole(n) or isinstance(n, bool) or n < 0:
        raise ValueError(f"[polygamma] the order must be an integer that is not negative; got {n!r}.")
    if n > special.MOST_DERIVATIVES:
        raise ValueError(f"[polygamma] orders go up to {special.MOST_DERIVATIVES}; got {n}.")
    if n == 0:
        return digamma(a)
    given, op = to_node(a), special.Polygamma(n)
    x = node_astype(given, dt.inexact_of(given.dtype))
    refuse_dtype("polygamma", op, x.dtype)
    return apply(op, x)
