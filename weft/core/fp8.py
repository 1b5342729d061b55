"""Numbers of eight bits, 4 of exponent and 3 of mantissa (E4M3, without infinities), held as uint8: conversions."""

from __future__ import annotations

from typing import Any

from weft import dtypes as dt
from weft.core._common import ArrayLike, array, astype, bind, scalar_node, to_node, wrap
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.primitives import elementwise as e
from weft.primitives.bits import Bitcast

Stream = Any

LARGEST, NAN, LOWEST_EXPONENT, BIAS, MANTISSA = 448.0, 0x7F, -6, 7, 3


def _number(like: Node, value: float) -> Node:
    return scalar_node(value, like.kind)


def _shifted(op: type[Any], x: Node, count: int) -> Node:
    return bind(op(), x, _number(x, count))


def to_fp8(x: ArrayLike, *, stream: Stream = None) -> array:
    """The nearest eight-bit numbers, ties to even. What is too large becomes the largest (448), NaN stays NaN.

    >>> to_fp8(array([1.0, -1.0, 1000.0]))
    array([56, 184, 126], dtype=uint8)
    """
    given = to_node(x)
    if not given.dtype.is_float:
        raise ValueError(f"[to_fp8] needs an array of floats; got {given.dtype.name}. Convert it with astype.")
    wide = dt.promote(given.dtype, dt.float32)
    bits, counts, shift, bias = (
        (dt.uint64, dt.int64, 52, 1023) if wide is dt.float64 else (dt.uint32, dt.int32, 23, 127)
    )
    value = astype(given, wide)
    size = bind(e.Absolute(), value)
    size = bind(e.Minimum(), size, _number(size, LARGEST))
    exponent = astype(_shifted(e.RightShift, bind(Bitcast(bits), size), shift), counts)
    exponent = exponent - _number(exponent, bias)
    exponent = bind(e.Maximum(), exponent, _number(exponent, LOWEST_EXPONENT))
    up = astype(_number(exponent, bias + MANTISSA) - exponent, bits)
    steps = astype(bind(e.Rint(), size * bind(Bitcast(wide), _shifted(e.LeftShift, up, shift))), counts)
    code = _shifted(e.LeftShift, exponent + _number(exponent, BIAS), MANTISSA) + steps - _number(steps, 1 << MANTISSA)
    code = e.select(bind(e.IsNan(), value), _number(code, NAN), code)
    sign = _shifted(e.RightShift, bind(Bitcast(bits), value), wide.bits - 1)
    return wrap(bind(e.BitwiseOr(), astype(code, dt.uint8), _shifted(e.LeftShift, astype(sign, dt.uint8), 7)))


def from_fp8(x: ArrayLike, dtype: Dtype = dt.bfloat16, *, stream: Stream = None) -> array:
    """The floats that eight-bit numbers (uint8) stand for, exactly.

    >>> from_fp8(array([56, 126], uint8))
    array([1, 448], dtype=bfloat16)
    """
    code = to_node(x)
    if code.dtype is not dt.uint8:
        raise ValueError(f"[from_fp8] needs an array of uint8; got {code.dtype.name}.")
    if not isinstance(dtype, Dtype) or not dtype.is_float:
        raise ValueError(f"[from_fp8] dtype is a float such as bfloat16; got {dtype!r}.")
    wide = astype(code, dt.uint16)
    sign = _shifted(e.LeftShift, bind(e.BitwiseAnd(), wide, _number(wide, 0x80)), 8)
    rest = bind(e.BitwiseAnd(), wide, _number(wide, NAN))
    # The same exponent and mantissa as float16, whose bias is larger by 8.
    half = bind(Bitcast(dt.float16), bind(e.BitwiseOr(), sign, _shifted(e.LeftShift, rest, 7)))
    value = astype(half, dt.float32)
    value = value * _number(value, 256.0)
    value = e.select(e.equal(rest, _number(rest, NAN)), _number(value, float("nan")), value)
    return wrap(astype(value, dtype))
