"""Elementwise functions with MLX's names."""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.core._common import (
    ArrayLike, Binary, Unary, apply, array, astype as node_astype, bind, broadcast_node, broadcast_shapes, kind_of, promoted,
    scalar_node, to_node, wrap,
)  # fmt: skip
from weft.dtypes import Dtype
from weft.primitives import elementwise as p

Stream = Any


def _unary(op: Any, name: str, doc: str, inexact: bool = False) -> Any:
    compute = Unary(op, name, inexact)

    def function(a: ArrayLike, /, *, stream: Stream = None) -> array:
        return compute(a)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _binary(op: Any, name: str, doc: str, inexact: bool = False) -> Any:
    compute = Binary(op, name, inexact)

    def function(a: ArrayLike, b: ArrayLike, /, *, stream: Stream = None) -> array:
        return compute(a, b)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    function.operator = compute  # type: ignore[attr-defined]
    return function


add = _binary(p.Add(), "add", "a + b, broadcast together.")
subtract = _binary(p.Subtract(), "subtract", "a - b, broadcast together.")
multiply = _binary(p.Multiply(), "multiply", "a * b, broadcast together.")
divide = _binary(p.Divide(), "divide", "a / b, broadcast together; integers are divided as floats.", inexact=True)
power = _binary(p.Power(), "power", "a ** b, broadcast together.")
maximum = _binary(p.Maximum(), "maximum", "The larger of a and b; NaN if either is.")
minimum = _binary(p.Minimum(), "minimum", "The smaller of a and b; NaN if either is.")
logaddexp = _binary(p.LogAddExp(), "logaddexp", "log(exp(a) + exp(b)), without overflow.", inexact=True)
equal = _binary(p.Equal(), "equal", "a == b elementwise.")
not_equal = _binary(p.NotEqual(), "not_equal", "a != b elementwise.")
less = _binary(p.Less(), "less", "a < b elementwise.")
less_equal = _binary(p.LessEqual(), "less_equal", "a <= b elementwise.")
greater = _binary(p.Greater(), "greater", "a > b elementwise.")
greater_equal = _binary(p.GreaterEqual(), "greater_equal", "a >= b elementwise.")
bitwise_and = _binary(p.BitwiseAnd(), "bitwise_and", "a & b, bit by bit.")
bitwise_or = _binary(p.BitwiseOr(), "bitwise_or", "a | b, bit by bit.")
bitwise_xor = _binary(p.BitwiseXor(), "bitwise_xor", "a ^ b, bit by bit.")
left_shift = _binary(p.LeftShift(), "left_shift", "a << b; 0 where the count passes the width.")
right_shift = _binary(p.RightShift(), "right_shift", "a >> b, keeping the sign.")

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
sigmoid = _unary(p.Sigmoid(), "sigmoid", "1 / (1 + exp(-a)).", inexact=True)
conjugate = _unary(p.Conjugate(), "conjugate", "The complex conjugate.")
real = _unary(p.Real(), "real", "The real part.")
imag = _unary(p.Imag(), "imag", "The imaginary part.")
stop_gradient = _unary(p.StopGradient(), "stop_gradient", "a, seen as a constant by differentiation.")
conj = conjugate
pow = power


def _rounding(op: Any, name: str, doc: str) -> Any:
    def function(a: ArrayLike, /, *, stream: Stream = None) -> array:
        x = to_node(a)
        return apply(op, x) if x.dtype.is_float else wrap(x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


floor = _rounding(p.Floor(), "floor", "The largest integer not above a.")
ceil = _rounding(p.Ceil(), "ceil", "The smallest integer not below a.")


def round(a: ArrayLike, /, decimals: int = 0, *, stream: Stream = None) -> array:
    """The nearest multiple of 10 ** -decimals, ties to even."""
    x = to_node(a)
    if not x.dtype.is_inexact:
        return wrap(x)
    if decimals == 0:
        return apply(p.Rint(), x)
    scale = scalar_node(10.0**decimals, x.kind)
    return wrap(bind(p.Rint(), x * scale) / scale)


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


def isnan(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """Whether elements are NaN."""
    x = to_node(a)
    if not x.dtype.is_inexact:
        return wrap(scalar_node(False, kind_of(x.shape, dt.bool_)))
    return apply(p.IsNan(), x)


def isinf(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """Whether elements are infinite."""
    x = to_node(a)
    if not x.dtype.is_inexact:
        return wrap(scalar_node(False, kind_of(x.shape, dt.bool_)))
    if x.dtype.is_complex:
        return logical_or(isinf(real(wrap(x))), isinf(imag(wrap(x))))
    return equal(abs(wrap(x)), float("inf"))


def isfinite(a: ArrayLike, /, *, stream: Stream = None) -> array:
    """Whether elements are neither NaN nor infinite."""
    return logical_not(logical_or(isnan(a), isinf(a)))


def where(condition: ArrayLike, x: ArrayLike, y: ArrayLike, /, *, stream: Stream = None) -> array:
    """x where the condition holds, else y; all broadcast together.

    >>> where(array([True, False]), 1.0, array([5.0, 6.0]))
    array([1, 6], dtype=float32)
    """
    c = node_astype(to_node(condition), dt.bool_)
    a, b = promoted("where", x, y)
    shape = broadcast_shapes("where", c.shape, a.shape, b.shape)
    return apply(p.Select(), *[broadcast_node(n, shape) for n in (c, a, b)])


def clip(a: ArrayLike, /, a_min: ArrayLike | None = None, a_max: ArrayLike | None = None, *, stream: Stream = None) -> array:
    """a limited to [a_min, a_max]; either bound may be None."""
    if a_min is None and a_max is None:
        raise ValueError("[clip] at least one of a_min and a_max must be given.")
    result = a if isinstance(a, array) else wrap(to_node(a))
    if a_min is not None:
        result = maximum(result, a_min)
    return result if a_max is None else minimum(result, a_max)


def astype(a: ArrayLike, /, dtype: Dtype, *, stream: Stream = None) -> array:
    """a with its elements converted to dtype."""
    if not isinstance(dtype, Dtype):
        raise TypeError(f"[astype] dtype must be a Weft dtype such as float32; got {dtype!r}.")
    return wrap(node_astype(to_node(a), dtype))
