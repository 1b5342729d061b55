"""Quantized matrices: small codes, packed into uint32, with a scale (and an offset) for each group of neighbours.

Four modes, whose bits are MLX's: "affine" (integers; weight = scale * code + bias), "mxfp4" and "mxfp8" (small floats
with a power of two for 32 of them), "nvfp4" (4-bit floats with an 8-bit float for 16). They are compositions: codes are
unpacked by shifts, which fusion puts into the kernels around them; products are those of the dequantized matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from weft import dtypes as dt
from weft.array import array, wrap
from weft.core.creating import arange
from weft.core.elementwise import (
    abs as abs_,
)
from weft.core.elementwise import (
    clip,
    equal,
    floor,
    greater,
    left_shift,
    less,
    log2,
    maximum,
    negative,
    power,
    right_shift,
    where,
)
from weft.core.elementwise import (
    round as round_,
)
from weft.core.fp8 import from_fp8, to_fp8
from weft.core.gathering import take
from weft.core.joining import stack
from weft.core.linear import matmul
from weft.core.products import gather_mm
from weft.core.reducing import max as max_
from weft.core.reducing import min as min_
from weft.core.reducing import sum as sum_
from weft.core.shaping import expand_dims, swapaxes
from weft.dtypes import Dtype
from weft.graph.node import Shape
from weft.primitives.views import reshape

Stream = Any
_FP8_MAX, _FP4_MAX = 448.0, 6.0


@dataclass(frozen=True)
class _Packing:
    """How numbers are stored: the mode, how many share a scale, and how many bits one takes."""

    mode: str
    group: int
    bits: int


_FIXED = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
"""(group size, bits) of the modes that have one only."""


def _packing(name: str, mode: str, group_size: int | None, bits: int | None) -> _Packing:
    if mode in _FIXED:
        group, width = _FIXED[mode]
        if group_size not in (None, group):
            raise ValueError(f"[{name}] {mode} quantization requires group size {group} but got {group_size}.")
        if bits not in (None, width):
            raise ValueError(f"[{name}] {mode} quantization requires bits to be {width} but got {bits}.")
        return _Packing(mode, group, width)
    if mode != "affine":
        raise ValueError(f"[{name}] Invalid quantization mode '{mode}'.")
    group, width = group_size or 64, bits or 4
    if group not in (32, 64, 128):
        raise ValueError(
            f"[{name}] The requested group size {group} is not supported. The supported group sizes are 32, 64, and "
            "128."
        )
    if width not in (1, 2, 3, 4, 5, 6, 8):
        raise ValueError(
            f"[{name}] The requested number of bits {width} is not supported. The supported bits are 1, 2, 3, 4, 5, 6 "
            "and 8."
        )
    return _Packing(mode, group, width)


def _reshaped(x: array, *shape: Any) -> array:
    return wrap(reshape(x._node, shape))


def _arrays(name: str, *given: Any) -> None:
    """Raise TypeError for what is neither an array nor None."""
    for x in given:
        if x is not None and not isinstance(x, array):
            raise TypeError(f"[{name}] operands must be arrays; got {type(x).__name__}.")


def _agree(a: Shape, b: Shape) -> bool:
    """Whether shapes are equal; for sizes that are symbols that is a guard."""
    return len(a) == len(b) and all(m == n for m, n in zip(a, b, strict=True))


# ---- codes and words ----


def _packed(codes: array, bits: int) -> array:
    """Codes (…, n) as a stream of bits in uint32 (…, n * bits / 32), the first one lowest."""
    *lead, n = codes._node.shape
    words = _reshaped(codes.astype(dt.uint32), *lead, n // 32, 32)
    made: list[array] = []
    for word in range(bits):
        parts = []
        for i in range(32):
            shift = i * bits - 32 * word
            if -bits < shift < 32:
                code = words[..., i]
                parts.append(left_shift(code, shift) if shift >= 0 else right_shift(code, -shift))
        total = parts[0]
        for part in parts[1:]:
            total = total + part  # bits that do not meet
        made.append(total)
    return _reshaped(stack(made, axis=-1), *lead, n * bits // 32)


def _codes(packed: array, bits: int) -> array:
    """The codes (…, n) of a stream of bits, as uint32."""
    *lead, count = packed._node.shape
    mask = (1 << bits) - 1
    if 32 % bits == 0:
        each = 32 // bits
        shifts = arange(0, 32, bits, dtype=dt.uint32)
        return _reshaped(right_shift(expand_dims(packed, -1), shifts) & mask, *lead, count * each)
    words = _reshaped(packed, *lead, count // bits, bits)
    first = [i * bits // 32 for i in range(32)]
    shift = [i * bits % 32 for i in range(32)]
    low = right_shift(take(words, array(first), axis=-1), array(shift, dt.uint32))
    after = [min(i + 1, bits - 1) for i in first]
    rest = [32 - s if s + bits > 32 else 32 for s in shift]  # shifting by 32 leaves nothing
    high = left_shift(take(words, array(after), axis=-1), array(rest, dt.uint32))
    return _reshaped((low | high) & mask, *lead, count // bits * 32)


# ---- 4-bit floats ----


def _to_fp4(x: array) -> array:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 as a code with its sign in bit 3; of two the smaller one."""
    size = abs_(x)
    code = sum_(stack([greater(size, bound) for bound in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)]).astype(dt.uint32), 0)
    return where(less(x, 0) & greater(code, 0), code + 8, code).astype(dt.uint32)


def _from_fp4(codes: array) -> array:
    values = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    return take(array([*values, *[-v for v in values]], dt.float32), codes.astype(dt.int32), axis=0)


# ---- quantize, dequantize ----


def quantize(
    w: array, /, group_size: int | None = None, bits: int | None = None, mode: str = "affine", *,
    global_scale: array | None = None, stream: Stream = None,
) -> tuple[array, ...]:  # fmt: skip
    """(packed codes, scales, biases) of a matrix, or of several; the other modes than "affine" have no biases.

    >>> packed, scales, biases = quantize(ones((2, 64)), bits=4)
    >>> packed.shape, scales.shape
    ((2, 8), (2, 1))
    """
    packing = _packing("quantize", mode, group_size, bits)
    _arrays("quantize", w, global_scale)
    if w.dtype.kind != "f":
        raise ValueError(f"[quantize] Only real floating types can be quantized but w has type {w.dtype.name}.")
    if w.ndim < 2:
        raise ValueError(
            f"[quantize] The matrix to be quantized must have at least 2 dimension but it has only {w.ndim}."
        )
    *lead, n = w._node.shape
    if n % packing.group != 0:
        raise ValueError(
            "[quantize] The last dimension of the matrix needs to be divisible by the quantization group size "
            f"{packing.group}. However the provided  matrix has shape {w.shape}."
        )
    groups = _reshaped(w.astype(dt.float32), *lead, n // packing.group, packing.group)
    if mode == "affine":
        codes, scales, biases = _affine(groups, packing.bits)
        packed = _packed(_reshaped(codes, *lead, n), packing.bits)
        return packed, scales.astype(w.dtype), biases.astype(w.dtype)
    top = max_(abs_(groups), axis=-1, keepdims=True)
    if mode == "nvfp4":
        whole = 1.0 if global_scale is None else _FP8_MAX * _FP4_MAX / global_scale.astype(dt.float32)
        scales = to_fp8(top / _FP4_MAX * whole)
        step = from_fp8(scales, dt.float32) / whole
        codes = _to_fp4(where(equal(step, 0), 0.0, groups / step))
    else:
        largest = _FP4_MAX if mode == "mxfp4" else _FP8_MAX
        exponent = negative(floor(negative(log2(top / largest))))
        exponent = where(equal(top, 0), 0.0, clip(exponent, -127, 127))
        scales = (exponent + 127).astype(dt.uint8)
        scaled = groups / power(2.0, exponent)
        codes = _to_fp4(scaled) if mode == "mxfp4" else to_fp8(scaled)
    return _packed(_reshaped(codes, *lead, n), packing.bits), _reshaped(scales, *lead, n // packing.group)


def _affine(groups: array, bits: int) -> tuple[array, array, array]:
    """Codes, and a scale and a bias for each group. The end of the range that is farther from 0 is a multiple of the
    scale, so that 0 is a code."""
    low, high = min_(groups, axis=-1, keepdims=True), max_(groups, axis=-1, keepdims=True)
    most = float((1 << bits) - 1)
    step = maximum((high - low) / most, 1e-7)
    if bits == 1:
        scale, bias = step, low
    else:
        below = greater(abs_(low), abs_(high))
        step, edge = where(below, step, negative(step)), where(below, low, high)
        count = round_(edge / step)
        exact = equal(count, 0)
        scale = where(exact, step, edge / where(exact, 1.0, count))
        bias = where(exact, 0.0, edge)
    codes = clip(round_((groups - bias) / scale), 0, most).astype(dt.uint32)
    shape = groups._node.shape[:-1]
    return codes, _reshaped(scale, *shape), _reshaped(bias, *shape)


def dequantize(
    w: array, /, scales: array, biases: array | None = None, group_size: int | None = None, bits: int | None = None,
    mode: str = "affine", global_scale: array | None = None, dtype: Dtype | None = None, *, stream: Stream = None,
) -> array:  # fmt: skip
    """The numbers of a quantized matrix: in the dtype of its scales ("affine"), else in bfloat16, unless one is given.

    >>> dequantize(*quantize(ones((1, 64)) * 3))[0, :3]
    array([3, 3, 3], dtype=float32)
    """
    made = _dequantized("dequantize", w, scales, biases, _packing("dequantize", mode, group_size, bits), global_scale)
    return made.astype(dtype or (scales.dtype if mode == "affine" else dt.bfloat16))


def _dequantized(
    name: str, w: array, scales: array, biases: array | None, packing: _Packing, global_scale: array | None = None
) -> array:
    """The numbers of a quantized matrix, in float32 or float64."""
    _arrays(name, w, scales, biases, global_scale)
    if w.dtype is not dt.uint32:
        raise ValueError(f"[{name}] The matrix should be given as a uint32.")
    if packing.mode == "affine" and biases is None:
        raise ValueError(f"[{name}] Biases must be provided for affine quantization.")
    if packing.mode != "affine" and biases is not None:
        raise ValueError(f"[{name}] Biases must be null for quantization mode '{packing.mode}'.")
    *lead, count = w._node.shape
    n = count * 32 // packing.bits
    shape = (*lead, n // packing.group)
    for given in (scales, biases):
        if given is not None and (
            given.ndim != len(shape) or any(a != b for a, b in zip(given._node.shape, shape, strict=True))
        ):
            raise ValueError(
                f"[{name}] Shape of scales and biases does not match the matrix given the quantization parameters. "
                f"Provided matrix of shape {w.shape} and scales/biases of shape {given.shape} with group_size="
                f"{packing.group} and bits={packing.bits}."
            )
    codes = _reshaped(_codes(w, packing.bits), *shape, packing.group)
    if packing.mode == "affine":
        assert biases is not None
        wide = dt.float64 if scales.dtype is dt.float64 else dt.float32
        made = codes.astype(wide) * expand_dims(scales.astype(wide), -1) + expand_dims(biases.astype(wide), -1)
        return _reshaped(made, *lead, n)
    if packing.mode == "nvfp4":
        step = from_fp8(scales, dt.float32)
        step = step if global_scale is None else step * (global_scale.astype(dt.float32) / (_FP8_MAX * _FP4_MAX))
    else:
        step = power(2.0, scales.astype(dt.float32) - 127)
    values = from_fp8(codes.astype(dt.uint8), dt.float32) if packing.mode == "mxfp8" else _from_fp4(codes)
    return _reshaped(values * expand_dims(step, -1), *lead, n)


# ---- products ----


def _operands(
    name: str, x: array, w: array, scales: array, biases: array | None, transpose: bool, packing: _Packing
) -> tuple[array, array, Dtype]:
    """Operands of a product in float32 or float64, and the dtype of the result."""
    _arrays(name, x)
    matrix = _dequantized(name, w, scales, biases, packing)
    inner = matrix._node.shape[-1 if transpose else -2]
    if x._node.shape[-1] != inner:
        rows, columns = matrix._node.shape[-2:]
        expanded = (columns, rows) if transpose else (rows, columns)
        raise ValueError(
            f"[{name}] Last dimension of first input with shape (..., {x._node.shape[-1]}) does not match the expanded "
            f"quantized matrix {expanded} computed from shape {w.shape} with group_size={packing.group}, bits="
            f"{packing.bits} and transpose={str(transpose).lower()}."
        )
    dtype = dt.promote(x.dtype, scales.dtype) if packing.mode == "affine" else x.dtype
    if dtype.kind != "f":
        raise ValueError(
            f"[{name}] Only real floating types are supported; got {x.dtype.name} and {scales.dtype.name}."
        )
    wide = dt.float64 if dtype is dt.float64 else dt.float32
    matrix = matrix.astype(wide)
    return x.astype(wide), swapaxes(matrix, -1, -2) if transpose else matrix, dtype


def quantized_matmul(
    x: array, w: array, /, scales: array, biases: array | None = None, transpose: bool = True,
    group_size: int | None = None, bits: int | None = None, mode: str = "affine", *, stream: Stream = None,
) -> array:  # fmt: skip
    """x times a quantized matrix, transposed unless `transpose` is False.

    >>> quantized_matmul(ones((1, 64)), *quantize(ones((2, 64))))
    array([[64, 64]], dtype=float32)
    """
    packing = _packing("quantized_matmul", mode, group_size, bits)
    left, right, dtype = _operands("quantized_matmul", x, w, scales, biases, transpose, packing)
    return matmul(left, right).astype(dtype)


def gather_qmm(
    x: array, w: array, /, scales: array, biases: array | None = None, lhs_indices: array | None = None,
    rhs_indices: array | None = None, transpose: bool = True, group_size: int | None = None, bits: int | None = None,
    mode: str = "affine", global_scale: array | None = None, *, sorted_indices: bool = False, stream: Stream = None,
) -> array:  # fmt: skip
    """`gather_mm` with quantized matrices on the right."""
    packing = _packing("gather_qmm", mode, group_size, bits)
    left, right, dtype = _operands("gather_qmm", x, w, scales, biases, transpose, packing)
    return gather_mm(left, right, lhs_indices, rhs_indices, sorted_indices=sorted_indices).astype(dtype)


def _both_quantized(
    name: str, x: array, w: array, scales: array | None, packing: _Packing, whole_x: array | None, whole_w: array | None
) -> tuple[array, array]:
    """(x rounded as it would be quantized, the matrix transposed), in float32."""
    _arrays(name, x, w, scales, whole_x, whole_w)
    if packing.mode not in ("nvfp4", "mxfp8"):
        raise ValueError(
            f"[{name}] Only 'nvfp4' and 'mxfp8' quantization modes are supported but got '{packing.mode}'."
        )
    options: dict[str, Any] = {"mode": packing.mode}
    codes, steps = quantize(x, global_scale=whole_x, **options)
    rounded = _dequantized(name, codes, steps, None, packing, whole_x)
    if scales is None:
        w, scales = quantize(w, global_scale=whole_w, **options)
    return rounded, swapaxes(_dequantized(name, w, scales, None, packing, whole_w), -1, -2)


def qqmm(
    x: array, w: array, scales: array | None = None, group_size: int | None = None, bits: int | None = None,
    mode: str = "nvfp4", global_scale_x: array | None = None, global_scale_w: array | None = None, *,
    stream: Stream = None,
) -> array:  # fmt: skip
    """x @ w.T with both quantized: x on the way, and w too if it is given without scales."""
    packing = _packing("qqmm", mode, group_size, bits)
    left, right = _both_quantized("qqmm", x, w, scales, packing, global_scale_x, global_scale_w)
    return matmul(left, right).astype(x.dtype)


def gather_qqmm(
    x: array, w: array, /, scales: array | None = None, lhs_indices: array | None = None,
    rhs_indices: array | None = None, group_size: int | None = None, bits: int | None = None, mode: str = "nvfp4",
    global_scale_x: array | None = None, global_scale_w: array | None = None, *, sorted_indices: bool = False,
    stream: Stream = None,
) -> array:  # fmt: skip
    """`qqmm` of chosen matrices, as `gather_mm` chooses them."""
    packing = _packing("gather_qqmm", mode, group_size, bits)
    left, right = _both_quantized("gather_qqmm", x, w, scales, packing, global_scale_x, global_scale_w)
    return gather_mm(left, right, lhs_indices, rhs_indices, sorted_indices=sorted_indices).astype(x.dtype)
