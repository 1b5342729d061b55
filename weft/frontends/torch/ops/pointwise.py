"""Operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import weft.core as mx
from weft.dtypes import Dtype
from weft.frontends.torch.ops.table import Out, Table, cartesian, common_dtype, to, wide

aten = Table()

# ---- one operand, results of its dtype (or the default float for integers) ----

_UNARY: dict[str, Callable[[mx.array], mx.array]] = {
    "acos": mx.arccos,
    "acosh": mx.arccosh,
    "asin": mx.arcsin,
    "asinh": mx.arcsinh,
    "atan": mx.arctan,
    "atanh": mx.arctanh,
    "cos": mx.cos,
    "cosh": mx.cosh,
    "digamma": mx.digamma,
    "erf": mx.erf,
    "erfc": mx.erfc,
    "erfinv": mx.erfinv,
    "exp": mx.exp,
    "lgamma": mx.gammaln,
    "log": mx.log,
    "log10": mx.log10,
    "log1p": mx.log1p,
    "log2": mx.log2,
    "reciprocal": mx.reciprocal,
    "rsqrt": mx.rsqrt,
    "sin": mx.sin,
    "sinh": mx.sinh,
    "sqrt": mx.sqrt,
    "tan": mx.tan,
    "tanh": mx.tanh,
    "special_i0": mx.i0,
    "special_i0e": mx.i0e,
    "special_i1": mx.i1,
    "special_i1e": mx.i1e,
    "i0": mx.i0,
}


def _unary(name: str, function: Callable[[mx.array], mx.array]) -> None:
    @aten(name)
    def rule(out: Out, x: mx.array) -> mx.array:
        return function(to(x, out.dtype))


for _name, _function in _UNARY.items():
    _unary(_name, _function)


@aten("expm1")
def expm1(out: Out, x: mx.array) -> mx.array:
    if not out.dtype.is_complex:
        return mx.expm1(to(x, out.dtype))
    a, b = mx.real(x), mx.imag(x)
    half = mx.sin(b * 0.5)
    return cartesian(mx.expm1(a) * mx.cos(b) - 2 * half * half, mx.exp(a) * mx.sin(b))


@aten("sigmoid")
def sigmoid(out: Out, x: mx.array) -> mx.array:
    return 1 / (1 + mx.exp(-x)) if out.dtype.is_complex else mx.sigmoid(to(x, out.dtype))


_KEEP_INTEGERS: dict[str, Callable[[mx.array], mx.array]] = {
    "ceil": mx.ceil,
    "floor": mx.floor,
    "trunc": mx.trunc,
    "round": mx.round,
}


def _rounding(name: str, function: Callable[[mx.array], mx.array]) -> None:
    @aten(name)
    def rule(out: Out, x: mx.array) -> mx.array:
        return to(x if out.dtype.is_integer else function(x), out.dtype)


for _name, _function in _KEEP_INTEGERS.items():
    _rounding(_name, _function)


@aten("round.decimals")
def round_decimals(out: Out, x: mx.array, *, decimals: int) -> mx.array:
    if out.dtype.is_integer:
        return x
    scale = 10.0 ** abs(decimals)
    inner = to(x, wide(out.dtype))
    made = mx.round(inner * scale) / scale if decimals >= 0 else mx.round(inner / scale) * scale
    return to(made, out.dtype)


@aten("abs")
def abs_(out: Out, x: mx.array) -> mx.array:
    return to(mx.abs(x), out.dtype)


@aten("neg")
def neg(out: Out, x: mx.array) -> mx.array:
    return mx.negative(x)


@aten("sign", "sgn")
def sign(out: Out, x: mx.array) -> mx.array:
    """NaN has sign 0."""
    if out.dtype.is_complex:
        size = mx.abs(x)
        return mx.where(size == 0, to(0, out.dtype), to(x / to(size, out.dtype), out.dtype))
    if out.dtype.is_bool:
        return x
    return to(x > 0, out.dtype) - to(x < 0, out.dtype)


@aten("square")
def square(out: Out, x: mx.array) -> mx.array:
    return mx.square(to(x, out.dtype))


@aten("isnan")
def isnan(out: Out, x: mx.array) -> mx.array:
    return mx.isnan(x)


@aten("isinf")
def isinf(out: Out, x: mx.array) -> mx.array:
    return mx.isinf(x)


@aten("isfinite")
def isfinite(out: Out, x: mx.array) -> mx.array:
    return mx.isfinite(x)


@aten("signbit")
def signbit(out: Out, x: mx.array) -> mx.array:
    if x.dtype.kind != "f":
        return x < 0 if not x.dtype.is_bool else mx.zeros_like(x)
    whole = {2: mx.int16, 4: mx.int32, 8: mx.int64}[x.dtype.size]
    return mx.view(x, whole) < 0


@aten("nan_to_num")
def nan_to_num(
    out: Out, x: mx.array, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> mx.array:
    if out.dtype.kind != "f":
        return x
    info = mx.finfo(out.dtype)
    high, low = float(info.max), float(info.min)
    x = mx.where(mx.isnan(x), to(nan or 0.0, out.dtype), x)
    x = mx.where(x == math.inf, to(high if posinf is None else posinf, out.dtype), x)
    return mx.where(x == -math.inf, to(low if neginf is None else neginf, out.dtype), x)


# ---- activations: computed in float32 for halves, rounded once ----


def _activation(*names: str) -> Callable[[Callable[..., mx.array]], Callable[..., mx.array]]:
    """A rule that gets its operand, and gives its result, in the dtype that torch computes in."""

    def register(function: Callable[..., mx.array]) -> Callable[..., mx.array]:
        @aten(*names)
        def rule(out: Out, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
            inner = wide(out.dtype)
            wide_args = [to(a, inner) if isinstance(a, mx.array) else a for a in args]
            return to(function(to(x, inner), *wide_args, **kwargs), out.dtype)

        return function

    return register


@aten("relu")
def relu(out: Out, x: mx.array) -> mx.array:
    return mx.maximum(x, to(0, out.dtype))


@_activation("relu6")
def relu6(x: mx.array) -> mx.array:
    return mx.minimum(mx.maximum(x, 0), 6)


_SQRT_HALF = math.sqrt(0.5)
_TANH_SCALE = math.sqrt(2 / math.pi)


@_activation("gelu")
def gelu(x: mx.array, *, approximate: str = "none") -> mx.array:
    if approximate == "tanh":
        return 0.5 * x * (1 + mx.tanh(_TANH_SCALE * (x + 0.044715 * x * x * x)))
    return x * 0.5 * (1 + mx.erf(x * _SQRT_HALF))


@_activation("gelu_backward")
def gelu_backward(grad: mx.array, x: mx.array, *, approximate: str = "none") -> mx.array:
    if approximate == "tanh":
        t = mx.tanh(_TANH_SCALE * (x + 0.044715 * x * x * x))
        inner = _TANH_SCALE * (1 + 3 * 0.044715 * x * x)
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * inner)
    density = mx.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return grad * (0.5 * (1 + mx.erf(x * _SQRT_HALF)) + x * density)


@_activation("silu")
def silu(x: mx.array) -> mx.array:
    return x / (1 + mx.exp(-x)) if x.dtype.is_complex else x * mx.sigmoid(x)


@_activation("silu_backward")
def silu_backward(grad: mx.array, x: mx.array) -> mx.array:
    s = mx.sigmoid(x)
    return grad * s * (1 + x * (1 - s))


@_activation("elu")
def elu(x: mx.array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> mx.array:
    return mx.where(x > 0, x * scale, mx.expm1(x * input_scale) * (alpha * scale))


@_activation("leaky_relu")
def leaky_relu(x: mx.array, negative_slope: float = 0.01) -> mx.array:
    return mx.where(x > 0, x, x * negative_slope)


@_activation("leaky_relu_backward")
def leaky_relu_backward(grad: mx.array, x: mx.array, negative_slope: float, self_is_result: bool) -> mx.array:
    return mx.where(x > 0, grad, grad * negative_slope)


@_activation("softplus")
def softplus(x: mx.array, beta: float = 1, threshold: float = 20) -> mx.array:
    scaled = x * beta
    return mx.where(scaled > threshold, x, mx.log1p(mx.exp(mx.minimum(scaled, threshold))) / beta)


@_activation("hardswish")
def hardswish(x: mx.array) -> mx.array:
    return x * mx.minimum(mx.maximum(x + 3, 0), 6) / 6


@_activation("hardsigmoid")
def hardsigmoid(x: mx.array) -> mx.array:
    return mx.minimum(mx.maximum(x + 3, 0), 6) / 6


@_activation("mish")
def mish(x: mx.array) -> mx.array:
    return x * mx.tanh(mx.logaddexp(x, mx.zeros_like(x)))


@aten("log_sigmoid_forward")
def log_sigmoid(out: Any, x: mx.array) -> tuple[mx.array, mx.array]:
    """(result, what torch keeps for the gradient: nothing, on some machines)."""
    wide_x = to(x, wide(x.dtype))
    made = mx.minimum(wide_x, 0) - mx.log1p(mx.exp(-mx.abs(wide_x)))
    kept = to(mx.exp(-mx.abs(wide_x)), out[1].dtype)
    return to(made, out[0].dtype), kept if kept.shape == out[1].shape else mx.zeros(out[1].shape, out[1].dtype)


@aten("hardtanh")
def hardtanh(out: Out, x: mx.array, min_val: float = -1, max_val: float = 1) -> mx.array:
    return clamp(out, x, min_val, max_val)


@_activation("logit")
def logit(x: mx.array, eps: float | None = None) -> mx.array:
    if eps is not None:
        x = mx.minimum(mx.maximum(x, eps), 1 - eps)
    return mx.log(x / (1 - x))


@aten("tanh_backward")
def tanh_backward(out: Out, grad: mx.array, y: mx.array) -> mx.array:
    inner = wide(out.dtype)
    g, t = to(grad, inner), to(y, inner)
    return to(g * (1 - t * t), out.dtype)


@aten("sigmoid_backward")
def sigmoid_backward(out: Out, grad: mx.array, y: mx.array) -> mx.array:
    inner = wide(out.dtype)
    g, s = to(grad, inner), to(y, inner)
    return to(g * (1 - s) * s, out.dtype)


@aten("threshold_backward")
def threshold_backward(out: Out, grad: mx.array, x: mx.array, threshold: float) -> mx.array:
    return mx.where(x <= to(threshold, x.dtype), to(0, out.dtype), to(grad, out.dtype))


# ---- arithmetic ----


def _pair(out: Out, x: Any, y: Any) -> tuple[mx.array, mx.array]:
    return to(x, out.dtype), to(y, out.dtype)


def _scaled(x: Any, y: Any, alpha: Any, dtype: Dtype, combine: Callable[..., mx.array]) -> mx.array:
    """x and alpha * y combined, rounded once."""
    if not isinstance(alpha, mx.array) and alpha == 1:
        return combine(to(x, dtype), to(y, dtype))
    inner = wide(dtype)
    return to(combine(to(x, inner), to(y, inner) * to(alpha, inner)), dtype)


@aten("add.Tensor", "add.Scalar")
def add(out: Out, x: Any, y: Any, alpha: Any = 1) -> mx.array:
    return _scaled(x, y, alpha, out.dtype, mx.add)


@aten("sub.Tensor", "sub.Scalar")
def sub(out: Out, x: Any, y: Any, alpha: Any = 1) -> mx.array:
    return _scaled(x, y, alpha, out.dtype, mx.subtract)


@aten("rsub.Tensor", "rsub.Scalar")
def rsub(out: Out, x: Any, y: Any, alpha: Any = 1) -> mx.array:
    return _scaled(y, x, alpha, out.dtype, mx.subtract)


@aten("mul.Tensor", "mul.Scalar")
def mul(out: Out, x: Any, y: Any) -> mx.array:
    a, b = _pair(out, x, y)
    return mx.logical_and(a, b) if out.dtype.is_bool else a * b


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor")
def div(out: Out, x: Any, y: Any) -> mx.array:
    return mx.divide(*_pair(out, x, y))


@aten("div.Tensor_mode", "div.Scalar_mode")
def div_mode(out: Out, x: Any, y: Any, *, rounding_mode: str | None) -> mx.array:
    if rounding_mode is None:
        return div(out, x, y)
    if rounding_mode == "floor":
        return floor_divide(out, x, y)
    inner = _inner_of_quotient(out, y)
    a, b = to(x, inner), to(y, inner)
    if out.dtype.is_integer:
        quotient = mx.floor_divide(a, b)
        inexact = mx.logical_and(quotient * b != a, (a < 0) != (b < 0))
        return quotient + to(inexact, out.dtype)
    return to(mx.trunc(a / b), out.dtype)


def _inner_of_quotient(out: Out, y: Any) -> Dtype:
    """Quotients of halves are rounded before they are cut off, but for those by one number."""
    return out.dtype if isinstance(y, mx.array) and y.ndim else wide(out.dtype)


@aten("floor_divide", "floor_divide.Scalar")
def floor_divide(out: Out, x: Any, y: Any) -> mx.array:
    """Of floats, the quotient without its remainder is rounded: floor(x / y) may be one more than it is."""
    inner = _inner_of_quotient(out, y)
    a, b = to(x, inner), to(y, inner)
    if out.dtype.is_integer:
        return mx.floor_divide(a, b)
    mod = _fmod(a, b)
    quotient = (a - mod) / b
    quotient = mx.where(mx.logical_and(mod != 0, (b < 0) != (mod < 0)), quotient - 1, quotient)
    floor = mx.floor(quotient)
    floor = mx.where(quotient - floor > 0.5, floor + 1, floor)
    zero = mx.zeros_like(floor) * (a / b)  # of the sign of the quotient
    made = mx.where(quotient != 0, floor, mx.where(mx.isfinite(zero), zero, floor))
    return to(mx.where(b == 0, a / b, made), out.dtype)


def _fmod(a: mx.array, b: mx.array) -> mx.array:
    """The remainder with the sign of `a`, exactly."""
    size = mx.remainder(mx.abs(a), mx.abs(b))
    size = mx.where(mx.isinf(b), mx.where(mx.isinf(a), to(math.nan, a.dtype), mx.abs(a)), size)
    return mx.where(a < 0, -size, size)


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(out: Out, x: Any, y: Any) -> mx.array:
    inner = wide(out.dtype)
    a, b = to(x, inner), to(y, inner)
    if out.dtype.is_integer:
        if not out.dtype.is_signed:
            return mx.remainder(a, b)
        rest = mx.remainder(a, b)
        return mx.where(mx.logical_and(rest != 0, (a < 0) != (b < 0)), rest - b, rest)
    return to(_fmod(a, b), out.dtype)


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")
def remainder(out: Out, x: Any, y: Any) -> mx.array:
    inner = wide(out.dtype)
    a, b = to(x, inner), to(y, inner)
    if out.dtype.kind != "f":
        return mx.remainder(a, b)
    mod = _fmod(a, b)
    return to(mx.where(mx.logical_and(mod != 0, (b < 0) != (mod < 0)), mod + b, mod), out.dtype)


@aten("pow.Tensor_Tensor", "pow.Scalar")
def pow_(out: Out, x: Any, y: Any) -> mx.array:
    a, b = _pair(out, x, y)
    return mx.power(a, b)


@aten("pow.Tensor_Scalar")
def pow_scalar(out: Out, x: Any, exponent: Any) -> mx.array:
    """Small exponents are products, as they are in torch."""
    base = to(x, out.dtype)
    if isinstance(exponent, (bool, int, float)):
        if exponent == 1:
            return base
        if exponent == 2:
            return base * base
        if exponent == 3:
            return base * base * base
        if out.dtype.is_inexact and exponent == 0.5:
            return mx.sqrt(base)
        if out.dtype.kind == "f" and exponent == -0.5:
            return mx.rsqrt(base)
        if out.dtype.is_inexact and exponent == -1:
            return mx.reciprocal(base)
        if out.dtype.kind == "f" and exponent == -2:
            return mx.reciprocal(base * base)
    return mx.power(base, to(exponent, out.dtype))


@aten("atan2")
def atan2(out: Out, x: Any, y: Any) -> mx.array:
    return mx.arctan2(*_pair(out, x, y))


@aten("maximum", "max.other")
def maximum(out: Out, x: Any, y: Any) -> mx.array:
    return mx.maximum(*_pair(out, x, y))


@aten("minimum", "min.other")
def minimum(out: Out, x: Any, y: Any) -> mx.array:
    return mx.minimum(*_pair(out, x, y))


@aten("fmax")
def fmax(out: Out, x: Any, y: Any) -> mx.array:
    a, b = _pair(out, x, y)
    return mx.where(mx.isnan(a), b, mx.where(mx.isnan(b), a, mx.maximum(a, b)))


@aten("fmin")
def fmin(out: Out, x: Any, y: Any) -> mx.array:
    a, b = _pair(out, x, y)
    return mx.where(mx.isnan(a), b, mx.where(mx.isnan(b), a, mx.minimum(a, b)))


@aten("clamp", "clamp.Tensor")
def clamp(out: Out, x: mx.array, min: Any = None, max: Any = None) -> mx.array:
    made = to(x, out.dtype)
    if min is not None:
        made = mx.maximum(made, to(min, out.dtype))
    return made if max is None else mx.minimum(made, to(max, out.dtype))


@aten("clamp_min", "clamp_min.Tensor")
def clamp_min(out: Out, x: mx.array, min: Any) -> mx.array:
    return clamp(out, x, min)


@aten("clamp_max", "clamp_max.Tensor")
def clamp_max(out: Out, x: mx.array, max: Any) -> mx.array:
    return clamp(out, x, None, max)


@aten("hypot")
def hypot(out: Out, x: Any, y: Any) -> mx.array:
    a, b = (mx.abs(to(v, wide(out.dtype))) for v in (x, y))
    large, small = mx.maximum(a, b), mx.minimum(a, b)
    ratio = mx.where(large == 0, to(0, large.dtype), small / large)
    return to(mx.where(mx.isinf(large), large, large * mx.sqrt(1 + ratio * ratio)), out.dtype)


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(out: Out, x: Any, y: Any) -> mx.array:
    a, b = _pair(out, x, y)
    size = mx.abs(a)
    return mx.where(signbit(out, b), -size, size)


@aten("xlogy.Tensor", "xlogy.Scalar_Other", "xlogy.Scalar_Self")
def xlogy(out: Out, x: Any, y: Any) -> mx.array:
    return mx.xlogy(*_pair(out, x, y))


@aten("logaddexp")
def logaddexp(out: Out, x: Any, y: Any) -> mx.array:
    return mx.logaddexp(*_pair(out, x, y))


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(out: Out, x: mx.array, end: mx.array, weight: Any) -> mx.array:
    inner = wide(out.dtype)
    a, b, w = to(x, inner), to(end, inner), to(weight, inner)
    return to(mx.where(mx.abs(w) < 0.5, a + w * (b - a), b - (b - a) * (1 - w)), out.dtype)


@aten("addcmul")
def addcmul(out: Out, x: mx.array, a: mx.array, b: mx.array, *, value: Any = 1) -> mx.array:
    inner = wide(out.dtype)
    return to(to(x, inner) + to(value, inner) * to(a, inner) * to(b, inner), out.dtype)


@aten("addcdiv")
def addcdiv(out: Out, x: mx.array, a: mx.array, b: mx.array, *, value: Any = 1) -> mx.array:
    inner = wide(out.dtype)
    return to(to(x, inner) + to(value, inner) * to(a, inner) / to(b, inner), out.dtype)


# ---- comparisons ----

_COMPARISONS: dict[str, Callable[..., mx.array]] = {
    "eq": mx.equal,
    "ne": mx.not_equal,
    "lt": mx.less,
    "le": mx.less_equal,
    "gt": mx.greater,
    "ge": mx.greater_equal,
}


def _comparison(name: str, function: Callable[..., mx.array]) -> None:
    @aten(f"{name}.Tensor", f"{name}.Scalar")
    def rule(out: Out, x: Any, y: Any) -> mx.array:
        dtype = common_dtype(x, y)
        return function(to(x, dtype), to(y, dtype))


for _name, _function in _COMPARISONS.items():
    _comparison(_name, _function)

# ---- logic and bits ----

_LOGIC: dict[str, Callable[..., mx.array]] = {
    "logical_and": mx.logical_and,
    "logical_or": mx.logical_or,
    "logical_xor": mx.logical_xor,
}


def _logic(name: str, function: Callable[..., mx.array]) -> None:
    @aten(name)
    def rule(out: Out, x: mx.array, y: mx.array) -> mx.array:
        return function(x != 0, y != 0)


for _name, _function in _LOGIC.items():
    _logic(_name, _function)


@aten("logical_not")
def logical_not(out: Out, x: mx.array) -> mx.array:
    return x == to(0, x.dtype)


_BITWISE: dict[str, Callable[..., mx.array]] = {
    "bitwise_and": mx.bitwise_and,
    "bitwise_or": mx.bitwise_or,
    "bitwise_xor": mx.bitwise_xor,
    "bitwise_left_shift": mx.left_shift,
    "bitwise_right_shift": mx.right_shift,
}


def _bitwise(name: str, function: Callable[..., mx.array]) -> None:
    @aten(f"{name}.Tensor", f"{name}.Scalar", f"{name}.Tensor_Scalar", f"{name}.Scalar_Tensor")
    def rule(out: Out, x: Any, y: Any) -> mx.array:
        return function(*_pair(out, x, y))


for _name, _function in _BITWISE.items():
    _bitwise(_name, _function)


@aten("bitwise_not")
def bitwise_not(out: Out, x: mx.array) -> mx.array:
    return mx.logical_not(x) if out.dtype.is_bool else mx.bitwise_invert(x)


# ---- choosing, converting ----


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(out: Out, condition: mx.array, x: Any, y: Any) -> mx.array:
    return mx.where(condition != 0, *_pair(out, x, y))


@aten("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(out: Out, x: mx.array, mask: mx.array, value: Any) -> mx.array:
    return mx.where(mask, to(value, out.dtype), x)


@aten("_to_copy", "prims::convert_element_type", "to.dtype", "type_as", "dim_order_ops::_to_dim_order_copy")
def convert(out: Out, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
    if x.dtype.is_complex and not out.dtype.is_complex and not out.dtype.is_bool:
        x = mx.real(x)
    return x != 0 if out.dtype.is_bool and not x.dtype.is_bool else to(x, out.dtype)


@aten("real")
def real(out: Out, x: mx.array) -> mx.array:
    return mx.real(x) if x.dtype.is_complex else x


@aten("imag")
def imag(out: Out, x: mx.array) -> mx.array:
    return mx.imag(x)


@aten("_conj", "_conj_copy", "_conj_physical", "conj_physical")
def conj(out: Out, x: mx.array) -> mx.array:
    return mx.conjugate(x)


@aten("complex")
def complex_(out: Out, x: mx.array, y: mx.array) -> mx.array:
    return cartesian(x, y)


@aten("polar")
def polar(out: Out, size: mx.array, angle: mx.array) -> mx.array:
    return cartesian(size * mx.cos(angle), size * mx.sin(angle))


@aten("angle")
def angle(out: Out, x: mx.array) -> mx.array:
    if x.dtype.is_complex:
        return mx.arctan2(mx.imag(x), mx.real(x))
    real_ = to(x, out.dtype)
    return mx.where(mx.isnan(real_), real_, mx.where(real_ < 0, to(math.pi, out.dtype), to(0, out.dtype)))


# ---- whole numbers, and the parts of floats ----


@aten("gcd")
def gcd(out: Out, x: mx.array, y: mx.array) -> mx.array:
    """Euclid's: for all elements together, until all rests are 0."""
    a, b = mx.broadcast_arrays(mx.abs(to(x, out.dtype)), mx.abs(to(y, out.dtype)))

    def step(pair: Any) -> Any:
        a, b = pair
        rest = mx.remainder(a, mx.where(b == 0, to(1, b.dtype), b))
        return mx.where(b == 0, a, b), mx.where(b == 0, b, rest)

    return mx.while_loop(lambda pair: mx.any(pair[1] != 0), step, (a, b))[0]


@aten("lcm")
def lcm(out: Out, x: mx.array, y: mx.array) -> mx.array:
    a, b = _pair(out, x, y)
    shared = gcd(out, x, y)
    return mx.abs(mx.floor_divide(a, mx.where(shared == 0, to(1, out.dtype), shared)) * b)


_BITS = {mx.float32: (mx.int32, 23, 127), mx.float64: (mx.int64, 52, 1023)}
"""Of a float: the whole numbers of its size, the digits of its fraction, and what is added to its exponent."""


@aten("frexp.Tensor")
def frexp(out: Any, x: mx.array) -> tuple[mx.array, mx.array]:
    """(a fraction from 0.5 to 1, the exponent of 2 that goes with it)."""
    inner = to(x, wide(x.dtype))
    whole, digits, bias = _BITS[inner.dtype]
    small = mx.abs(inner) < float(mx.finfo(inner.dtype).smallest_normal)
    bits = mx.view(mx.where(small, inner * 2.0**digits, inner), whole)
    exponent = mx.bitwise_and(mx.right_shift(bits, to(digits, whole)), to(2 * bias + 1, whole))
    fraction = mx.bitwise_or(
        mx.bitwise_and(bits, to(~((2 * bias + 1) << digits), whole)), to((bias - 1) << digits, whole)
    )
    has_none = mx.logical_or(inner == 0, mx.logical_not(mx.isfinite(inner)))
    made = mx.where(has_none, inner, mx.view(fraction, inner.dtype))
    power = exponent - (bias - 1) - mx.where(small, to(digits, whole), to(0, whole))
    return to(made, x.dtype), to(mx.where(has_none, to(0, whole), power), out[1].dtype)


@aten("ldexp.Tensor")
def ldexp(out: Out, x: mx.array, exponent: mx.array) -> mx.array:
    return to(x, out.dtype) * mx.power(to(2, out.dtype), to(exponent, out.dtype))


@aten("nextafter")
def nextafter(out: Out, x: mx.array, y: mx.array) -> mx.array:
    """The bits of a float count upwards, away from zero."""
    if out.dtype not in _BITS:
        raise ValueError(f"neighbours of {out.dtype.name}")
    whole = _BITS[out.dtype][0]
    a, b = mx.broadcast_arrays(*_pair(out, x, y))
    least = mx.view(mx.where(b > 0, to(1, whole), to(mx.iinfo(whole).min + 1, whole)), out.dtype)
    away = (a < b) == (a > 0)
    bits = mx.view(a, whole)
    moved = mx.view(bits + mx.where(away, to(1, whole), to(-1, whole)), out.dtype)
    made = mx.where(a == b, b, mx.where(a == 0, least, moved))
    return mx.where(mx.logical_or(mx.isnan(a), mx.isnan(b)), a + b, made)


# ---- special functions ----


@aten("exp2")
def exp2(out: Out, x: mx.array) -> mx.array:
    inner = to(x, wide(out.dtype))
    if out.dtype.is_complex:
        return mx.exp(inner * math.log(2))
    return to(mx.power(to(2, inner.dtype), inner), out.dtype)


@aten("polygamma")
def polygamma(out: Out, n: int, x: mx.array) -> mx.array:
    inner = to(x, wide(out.dtype))
    if n == 0:
        return to(mx.digamma(inner), out.dtype)
    # Below 0 by reflection, with the derivative of that order of pi * cot(pi * x), a polynomial of the cotangent.
    exact = to(inner, mx.float64)
    cot = mx.cos(math.pi * exact) / mx.sin(math.pi * exact)
    terms = np.polynomial.Polynomial([0.0, math.pi])
    for _ in range(n):
        terms = terms.deriv() * np.polynomial.Polynomial([-math.pi, 0.0, -math.pi])
    slope = mx.zeros_like(cot)
    for factor in reversed(terms.coef.tolist()):
        slope = slope * cot + factor
    below = (-1.0) ** n * mx.polygamma(n, 1 - exact) - slope
    return to(mx.where(inner < 0, to(below, inner.dtype), mx.polygamma(n, inner)), out.dtype)


@_activation("special_erfcx")
def erfcx(x: mx.array) -> mx.array:
    return mx.erfcx(x)


@_activation("special_modified_bessel_i0")
def bessel_i0(x: mx.array) -> mx.array:
    return mx.i0(x)


@_activation("special_modified_bessel_i1")
def bessel_i1(x: mx.array) -> mx.array:
    return mx.i1(x)


@aten("igamma")
def igamma(out: Out, a: mx.array, x: mx.array) -> mx.array:
    inner = wide(out.dtype)
    return to(mx.gammainc(to(a, inner), to(x, inner)), out.dtype)


@aten("igammac")
def igammac(out: Out, a: mx.array, x: mx.array) -> mx.array:
    inner = wide(out.dtype)
    return to(mx.gammaincc(to(a, inner), to(x, inner)), out.dtype)
