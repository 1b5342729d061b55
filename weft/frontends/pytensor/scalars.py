"""Scalar operations, and what applies them to arrays: Elemwise, Composite, CAReduce, DimShuffle.

A scalar operation is a function of arrays. Unless it says otherwise its inputs are converted to the dtype of its output
first, which is what PyTensor's own code does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.loop import ScalarLoop
from pytensor.scalar.math import PolyGamma
from pytensor.tensor import math as ptm
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor import special
from weft.frontends.pytensor.convert import converts, value_of
from weft.frontends.pytensor.values import Known, NotConverted, Value, cast, number_in, to_array, weft_dtype

Fun = Callable[..., array]

# ---- tables ----

SAME: dict[str, Fun] = {}
"""By class of the scalar operation: functions whose inputs have the dtype of the output."""
OWN: dict[str, Fun] = {}
"""Functions that take (op, node, *inputs) and see to the dtypes themselves."""


def _chain(fun: Fun) -> Fun:
    return lambda *xs: functools.reduce(fun, xs)


def own(*names: str) -> Callable[[Fun], Fun]:
    def register(fun: Fun) -> Fun:
        OWN.update(dict.fromkeys(names, fun))
        return fun

    return register


def _maximum(x: array, y: array) -> array:
    return mx.maximum(x, y)


def _number(x: array, value: float) -> array:
    return number_in(value, x.dtype)


def _round_away(x: array) -> array:
    return mx.where(x < 0, -mx.floor(-x + _number(x, 0.5)), mx.floor(x + _number(x, 0.5)))


def _trunc(x: array) -> array:
    return mx.where(x < 0, mx.ceil(x), mx.floor(x))


def _softplus(x: array) -> array:
    return mx.logaddexp(x, _number(x, 0.0))


def _log1mexp(x: array) -> array:
    """log(1 - exp(x)) for x < 0, by the form that keeps its digits."""
    return mx.where(x > _number(x, -math.log(2.0)), mx.log(-mx.expm1(x)), mx.log1p(-mx.exp(x)))


def _erfcinv(x: array) -> array:
    """The number whose erfc is x."""
    below = mx.minimum(x, _number(x, 2.0) - x)
    inside = mx.maximum(below, _number(x, 1e-320 if x.dtype is mx.float64 else 1e-44))
    y = special.erfcinv_of_log(mx.log(inside))
    y = mx.where(below == 0, _number(x, math.inf), mx.where(below < 0, _number(x, math.nan), y))
    return mx.where(x > _number(x, 1.0), -y, y)


def _gamma(x: array) -> array:
    size = mx.exp(mx.gammaln(x))
    odd = mx.floor(x) % _number(x, 2.0) != _number(x, 0.0)
    signed = mx.where((x < 0) & odd, -size, size)
    pole = (x < 0) & (mx.floor(x) == x)
    return mx.where(pole, _number(x, math.nan), mx.where(x == 0, _number(x, math.inf), signed))


SAME.update({
    "Sub": mx.subtract, "TrueDiv": mx.divide, "Maximum": _maximum, "Minimum": mx.minimum,
    "Neg": mx.negative, "Sqr": mx.square, "Sqrt": mx.sqrt, "Exp": mx.exp,
    "Exp2": lambda x: mx.power(_number(x, 2.0), x), "Expm1": mx.expm1, "Log": mx.log, "Log2": mx.log2,
    "Log10": mx.log10, "Log1p": mx.log1p, "Sin": mx.sin, "Cos": mx.cos, "Tan": mx.tan, "ArcSin": mx.arcsin,
    "ArcCos": mx.arccos, "ArcTan": mx.arctan, "ArcTan2": mx.arctan2, "Sinh": mx.sinh, "Cosh": mx.cosh,
    "Tanh": mx.tanh, "ArcSinh": mx.arcsinh, "ArcCosh": mx.arccosh, "ArcTanh": mx.arctanh,
    "Reciprocal": lambda x: mx.divide(_number(x, 1.0), x), "Identity": lambda x: x,
    "Deg2Rad": lambda x: x * _number(x, math.pi / 180.0), "Rad2Deg": lambda x: x * _number(x, 180.0 / math.pi),
    "Erf": mx.erf, "Erfc": mx.erfc, "Erfcx": mx.erfcx, "Erfinv": mx.erfinv, "Erfcinv": _erfcinv,
    "GammaU": lambda k, x: mx.gammaincc(k, x) * _gamma(k), "GammaL": lambda k, x: mx.gammainc(k, x) * _gamma(k),
    "GammaLn": mx.gammaln, "Psi": mx.digamma,
    "TriGamma": lambda x: mx.polygamma(1, x), "Gamma": _gamma, "I0": mx.i0, "I1": mx.i1, "I0e": mx.i0e, "I1e": mx.i1e,
    "Sigmoid": mx.sigmoid,
    "Softplus": _softplus, "Log1mexp": _log1mexp, "GammaInc": mx.gammainc, "GammaIncC": mx.gammaincc,
    "BetaInc": mx.betainc, "Conj": mx.conjugate, "J0": special.j0, "J1": special.j1, "Jv": special.jv,
    "Ive": special.ive, "Kve": special.kve, "Hyp2F1": special.hyp2f1, "Owens_t": special.owens_t,
    "NdtriExp": special.ndtri_exp, "GammaIncInv": special.gammaincinv, "GammaIncCInv": special.gammainccinv,
    "BetaIncInv": special.betaincinv,
    "RoundHalfToEven": mx.round, "RoundHalfAwayFromZero": _round_away, "Trunc": _trunc, "Ceil": mx.ceil,
    "Floor": mx.floor, "Clip": lambda x, low, high: mx.where(x < low, low, mx.where(x > high, high, x)),
})  # fmt: skip


def _common(xs: Sequence[array]) -> list[array]:
    """Inputs of a comparison, in the dtype in which NumPy compares them."""
    dtype = np.result_type(*(x.dtype.np for x in xs)).name
    return [cast(x, dtype) for x in xs]


def _compared(fun: Fun) -> Fun:
    return lambda op, node, *xs: fun(*_common(xs))


OWN.update({
    "LT": _compared(mx.less), "GT": _compared(mx.greater), "LE": _compared(mx.less_equal),
    "GE": _compared(mx.greater_equal), "EQ": _compared(mx.equal), "NEQ": _compared(mx.not_equal),
    "IsNan": lambda op, node, x: mx.isnan(x), "IsInf": lambda op, node, x: mx.isinf(x),
    "Real": lambda op, node, x: mx.real(x), "Imag": lambda op, node, x: mx.imag(x),
    "Second": lambda op, node, x, y: mx.broadcast_arrays(cast(y, node.outputs[0].type.dtype), x)[0],
})  # fmt: skip


@own("Add", "Mul")
def _sum(op: Any, node: Apply, *xs: array) -> array:
    dtype = node.outputs[0].type.dtype
    xs = tuple(cast(x, dtype) for x in xs)
    adds = type(op).__name__ == "Add"
    if dtype == "bool":
        return _chain(mx.logical_or if adds else mx.logical_and)(*xs)
    return _chain(mx.add if adds else mx.multiply)(*xs)


@own("Switch")
def _switch(op: Any, node: Apply, condition: array, x: array, y: array) -> array:
    dtype = node.outputs[0].type.dtype
    return mx.where(cast(condition, "bool"), cast(x, dtype), cast(y, dtype))


@own("Cast")
def _cast(op: Any, node: Apply, x: array) -> array:
    return cast(x, node.outputs[0].type.dtype)


@own("Abs")
def _abs(op: Any, node: Apply, x: array) -> array:
    return mx.abs(x)


@own("Sign")
def _sign(op: Any, node: Apply, x: array) -> array:
    return mx.sign(x)


@own("OR", "AND", "XOR", "Invert")
def _bits(op: Any, node: Apply, *xs: array) -> array:
    dtype = node.outputs[0].type.dtype
    xs = tuple(cast(x, dtype) for x in xs)
    name = type(op).__name__
    if name == "Invert":
        return mx.logical_not(xs[0]) if dtype == "bool" else mx.bitwise_invert(xs[0])
    fun = {"OR": mx.bitwise_or, "AND": mx.bitwise_and, "XOR": mx.bitwise_xor}[name]
    return fun(*xs)


@own("IntDiv", "Mod")
def _divided(op: Any, node: Apply, x: array, y: array) -> array:
    dtype = node.outputs[0].type.dtype
    x, y = cast(x, dtype), cast(y, dtype)
    if type(op).__name__ == "Mod":
        return mx.remainder(x, y)
    if np.dtype(dtype).kind == "f":
        return mx.floor(x / y)
    return mx.floor_divide(x, y)


@own("Pow")
def _pow(op: Any, node: Apply, x: array, y: array) -> array:
    dtype = node.outputs[0].type.dtype
    return mx.power(cast(x, dtype), cast(y, dtype))


@own("Angle")
def _angle(op: Any, node: Apply, x: array) -> array:
    dtype = node.outputs[0].type.dtype
    return mx.arctan2(cast(mx.imag(x), dtype), cast(mx.real(x), dtype))


@own("Complex")
def _complex(op: Any, node: Apply, x: array, y: array) -> array:
    dtype = node.outputs[0].type.dtype
    return cast(x, dtype) + cast(y, dtype) * mx.array(1j, weft_dtype(dtype))


@own("ComplexFromPolar")
def _from_polar(op: Any, node: Apply, r: array, angle: array) -> array:
    return _complex(op, node, r * mx.cos(angle), r * mx.sin(angle))


@own("PolyGamma")
def _polygamma(op: Any, node: Apply, n: array, x: array) -> array:
    raise NotConverted("polygamma of an order that is not known")


# ---- application ----


def refused_class(cls: type) -> bool:
    """Whether a class of scalar operations has no translation."""
    return not (cls.__name__ in OWN or cls.__name__ in SAME or issubclass(cls, (ps.Composite, ScalarLoop)))


def refused(op: Any) -> str | None:
    """Why a scalar operation has no translation."""
    if isinstance(op, (ps.Composite, ScalarLoop)):
        reasons = [refused(node.op) for node in op.fgraph.apply_nodes]
        return next((reason for reason in reasons if reason), None)
    return f"{type(op).__name__} has no translation" if refused_class(type(op)) else None


def applied(node: Apply, xs: Sequence[array]) -> list[array]:
    """The outputs of a node of a scalar graph, or of an Elemwise with the operation of one, on arrays."""
    op = getattr(node.op, "scalar_op", node.op)
    if isinstance(op, ps.Composite):
        return composite(op, xs)
    if isinstance(op, ScalarLoop):
        return loop(op, xs)
    name = type(op).__name__
    if name in OWN:
        return [OWN[name](op, node, *xs)]
    if name not in SAME:
        raise NotConverted(f"{name} has no translation")
    dtype = node.outputs[0].type.dtype
    return [SAME[name](*[cast(x, dtype) for x in xs])]


def loop(op: Any, xs: Sequence[array]) -> list[array]:
    """A loop for each element, all of them together; one that is done keeps what it has."""
    steps, *given = mx.broadcast_arrays(*xs)
    count = len(op.fgraph.outputs) - int(op.is_while)
    constants = given[count:]
    state = [cast(x, out.type.dtype) for x, out in zip(given[:count], op.fgraph.outputs, strict=False)]

    def go_on(carry: Any) -> array:
        return mx.any((carry[0] < steps) & mx.logical_not(carry[2]))

    def again(carry: Any) -> Any:
        i, values, done, fine = carry
        made = composite(op, [*values, *constants])
        active = (i < steps) & mx.logical_not(done)
        new = [mx.where(active, x, old) for x, old in zip(made[:count], values, strict=True)]
        stops = cast(made[-1], "bool") if op.is_while else mx.zeros(done.shape, mx.bool_)
        return i + mx.array(1, i.dtype), new, done | (active & stops), mx.where(active, stops, fine)

    never = mx.zeros(steps.shape, mx.bool_)
    start = (mx.zeros(steps.shape, steps.dtype), state, never, steps <= mx.array(0, steps.dtype))
    _, values, _, fine = mx.while_loop(go_on, again, start)
    return [*values, fine] if op.is_while else values


def composite(op: Any, xs: Sequence[array]) -> list[array]:
    """A scalar graph, node by node: Weft fuses it again."""
    values: dict[Variable, array] = dict(zip(op.fgraph.inputs, xs, strict=True))

    def value(x: Variable) -> array:
        if x not in values:
            assert isinstance(x, Constant)
            values[x] = to_array(Known(np.asarray(x.data, x.type.dtype)))
        return values[x]

    for node in op.fgraph.toposort():
        made = applied(node, [value(x) for x in node.inputs])
        for out, result in zip(node.outputs, made, strict=True):
            values[out] = cast(result, out.type.dtype)
    return [value(x) for x in op.fgraph.outputs]


def _refuses_elemwise(node: Apply) -> str | None:
    return refused(node.op.scalar_op)


@converts(Elemwise, refuses=_refuses_elemwise)
def elemwise(op: Any, node: Apply, *given: Value) -> list[array]:
    """A scalar operation on each element."""
    xs = [to_array(x, _converted(node, i) if isinstance(x, Known) else None) for i, x in enumerate(given)]
    shape = common_shape(node, xs)
    simple = _with_known_number(node, given, xs)
    if simple is None:
        simple = _product(node, xs)
    made = applied(node, xs) if simple is None else [simple]
    return [x if len(xs) == 1 or x.shape == shape else mx.broadcast_to(x, shape) for x in made]


def _with_known_number(node: Apply, given: Sequence[Value], xs: Sequence[array]) -> array | None:
    """Powers whose exponent is 2 or 1/2 in all elements, and polygamma functions of one order."""
    op, dtype = node.op.scalar_op, node.outputs[0].type.dtype
    which = {ps.Pow: 1, PolyGamma: 0}.get(type(op))
    if which is None or not weft_dtype(dtype).is_float:
        return None
    known = given[which]
    if not isinstance(known, Known) or known.is_symbolic:
        return None
    numbers = np.unique(np.asarray(known.value))
    if numbers.size != 1:
        return None
    if isinstance(op, PolyGamma):
        return mx.polygamma(int(numbers[0]), cast(xs[1], dtype))
    simple = {2.0: mx.square, 0.5: mx.sqrt}.get(float(numbers[0]))
    return None if simple is None else simple(cast(xs[0], dtype))


def _product(node: Apply, xs: Sequence[array]) -> array | None:
    """A product of floats in which some factors are the same along rows: these are multiplied with each other first,
    once for each row. A division of rows by such a number is a factor too, its reciprocal, which differs in the last
    place at most and takes a fraction of the time."""
    dtype = node.outputs[0].type.dtype
    if node.outputs[0].type.ndim == 0 or not dtype.startswith("float"):
        return None
    op = node.op.scalar_op
    if isinstance(op, ps.Mul):
        factors = list(zip(xs, node.inputs, strict=True))
    elif isinstance(op, ps.TrueDiv) and _divides_rows(node):
        y = cast(xs[1], dtype)
        factors = [*_factors(node.inputs[0], xs[0], dtype), (mx.divide(_number(y, 1.0), y), node.inputs[1])]
    else:
        return None
    of_rows = [cast(x, dtype) for x, variable in factors if variable.type.shape[-1] == 1]
    others = [cast(x, dtype) for x, variable in factors if variable.type.shape[-1] != 1]
    if not others or not of_rows:
        return None
    return _chain(mx.multiply)(*others, _chain(mx.multiply)(*of_rows))


def _divides_rows(node: Apply) -> bool:
    """Whether many floats are divided by each number."""
    x, y = node.inputs
    return any(m == 1 and n != 1 for n, m in zip(x.type.shape, y.type.shape, strict=True))


def _factors(variable: Variable, x: array, dtype: str) -> list[tuple[array, Variable]]:
    """What a value is the product of, if its node is a product and its factors are at hand."""
    node = variable.owner
    if node is None or not isinstance(node.op, Elemwise) or not isinstance(node.op.scalar_op, ps.Mul):
        return [(x, variable)]
    values = [value_of(factor) for factor in node.inputs]
    if variable.type.dtype != dtype or any(value is None for value in values):
        return [(x, variable)]
    return [(to_array(value), factor) for value, factor in zip(values, node.inputs, strict=True) if value is not None]


def _converted(node: Apply, i: int) -> str | None:
    """The dtype that an input is converted to before anything else, so that a constant can be at once."""
    op = node.op.scalar_op
    name = type(op).__name__
    if name in SAME or name in ("Add", "Mul", "IntDiv", "Mod") or (name == "Switch" and i > 0):
        return node.outputs[0].type.dtype  # type: ignore[no-any-return]
    if isinstance(op, ps.LogicalComparison):
        return np.result_type(*(x.type.dtype for x in node.inputs)).name
    return None


def common_shape(node: Apply, xs: Sequence[array]) -> tuple[Any, ...]:
    """The shape of an Elemwise. Only an axis that PyTensor knows to have length 1 is repeated."""
    shape: list[Any] = []
    for axis in range(xs[0].ndim):
        n = 1
        for x, variable in zip(xs, node.inputs, strict=True):
            if variable.type.shape[axis] == 1:
                continue
            m = x.shape[axis]
            if n == 1 and not _decided(shape, axis):
                n = m
                shape.append(m)
            elif m != n:
                raise ValueError(_mismatch(axis, n, m))
        if not _decided(shape, axis):
            shape.append(1)
    return tuple(shape)


def _decided(shape: list[Any], axis: int) -> bool:
    return len(shape) > axis


def _mismatch(axis: int, n: Any, m: Any) -> str:
    if n == 1 or m == 1:
        return (
            f"Runtime broadcasting not allowed. One input had a distinct dimension length of 1 for axis {axis}, but "
            "was not marked as broadcastable.\nIf broadcasting was intended, use `specify_broadcastable` on the "
            "relevant input variable(s)."
        )
    return f"Incompatible Elemwise input shapes: {n} and {m} along axis {axis}."


@converts(ps.ScalarOp, refuses=lambda node: refused(node.op))
def scalar(op: Any, node: Apply, *given: Value) -> list[array]:
    """A scalar operation on scalars."""
    return applied(node, [to_array(x) for x in given])


@converts(DimShuffle)
def dimshuffle(op: Any, node: Apply, x: Value) -> array:
    """Axes in another order, without some of length 1, with others."""
    x = to_array(x)
    for axis in op.drop:
        if x.shape[axis] != 1:
            raise ValueError(
                f"Axis {axis} of a DimShuffle has length {x.shape[axis]}, and only axes of length 1 can be dropped."
            )
    turned = x.transpose([*op.shuffle, *op.drop])
    shape = list(turned.shape[: len(op.shuffle)])
    for axis in op.augment:
        shape.insert(axis, 1)
    return turned.reshape(shape)


# ---- reductions ----


def _refuses_reduction(node: Apply) -> str | None:
    name = type(node.op.scalar_op).__name__
    return None if name in _REDUCTIONS else f"a reduction by {name} has no translation"


@converts(CAReduce, refuses=_refuses_reduction)
def careduce(op: Any, node: Apply, x: Value) -> array:
    """A reduction over some axes: sums and products in the dtype that PyTensor accumulates in."""
    x = to_array(x)
    axes = tuple(range(x.ndim)) if op.axis is None else tuple(op.axis)
    out = node.outputs[0].type.dtype
    name = type(op.scalar_op).__name__
    wide = getattr(op, "acc_dtype", None) or out
    x = x if name in ("OR", "AND", "Maximum", "Minimum") else cast(x, wide)
    if not axes:
        return cast(x, out)
    return cast(_REDUCTIONS[name](x, axes), out)


def _extreme(fun: Fun) -> Fun:
    def reduced(x: array, axes: tuple[int, ...]) -> array:
        if any(x.shape[axis] == 0 for axis in axes):
            raise ValueError("zero-size array to reduction operation that has no identity")
        return fun(x, axis=axes)

    return reduced


def _logical(which: str) -> Fun:
    def reduced(x: array, axes: tuple[int, ...]) -> array:
        if not x.dtype.is_bool:
            raise NotConverted(f"a reduction of integers by {which}")
        return (mx.any if which == "OR" else mx.all)(x, axis=axes)

    return reduced


def _without_zeros(x: array, axes: tuple[int, ...]) -> array:
    return mx.prod(mx.where(x == 0, _number(x, 1.0), x), axis=axes)


def _multiplied(x: array, axes: tuple[int, ...]) -> array:
    return mx.all(x, axis=axes) if x.dtype.is_bool else mx.prod(x, axis=axes)


_REDUCTIONS: dict[str, Fun] = {
    "Add": lambda x, axes: mx.sum(x, axis=axes),
    "Mul": _multiplied,
    "Maximum": _extreme(mx.max),
    "Minimum": _extreme(mx.min),
    "OR": _logical("OR"),
    "AND": _logical("AND"),
    "MulWithoutZeros": _without_zeros,
}


@converts(ptm.Argmax)
def argmax(op: Any, node: Apply, x: Value) -> array:
    """The index of the largest element, over several axes as if they were one."""
    x = to_array(x)
    axes = tuple(range(x.ndim)) if op.axis is None else tuple(op.axis)
    kept = [axis for axis in range(x.ndim) if axis not in axes]
    if any(x.shape[axis] == 0 for axis in axes):
        raise ValueError("attempt to get argmax of an empty sequence")
    rows = x.transpose([*kept, *axes]).reshape([*(x.shape[axis] for axis in kept), -1])
    if not axes:
        return mx.zeros(x.shape, mx.int64)
    return mx.argmax(rows, axis=-1)
