"""Quantized matrices: small codes, packed into uint32, with a scale (and an offset) for each group of neighbours.

Four modes, whose bits are MLX's: "affine" (integers; weight = scale * code + bias), "mxfp4" and "mxfp8" (small floats
with a power of two for 32 of them), "nvfp4" (4-bit floats with an 8-bit float for 16). Quantizing, dequantizing and
products are primitives (weft/primitives/quantized.py), whose kernels read and write the codes as they are.
"""

from __future__ import annotations

import functools
from typing import Any

from weft import dtypes as dt
from weft.array import array, wrap
from weft.core._common import broadcast_node, broadcast_shapes, composed, in_parts, whole_number
from weft.core._remember import remembered_all
from weft.core.elementwise import (
    abs as abs_,
)
from weft.core.elementwise import (
    bitwise_and,
    equal,
    greater,
    left_shift,
    less,
    maximum,
    minimum,
    negative,
    right_shift,
    where,
)
from weft.core.elementwise import (
    round as round_,
)
from weft.core.fp8 import from_fp8, to_fp8
from weft.core.reducing import max as max_
from weft.core.reducing import min as min_
from weft.core.shaping import contiguous, expand_dims
from weft.core.transforming import jvp, vjp
from weft.dtypes import Dtype
from weft.graph.dims import prod, provably_equal
from weft.graph.node import Node, Shape
from weft.primitives.base import bind, bind_many
from weft.primitives.creation import Iota
from weft.primitives.elementwise import astype
from weft.primitives.quantized import (
    BITS,
    FIXED,
    FP4_MAX,
    FP8_MAX,
    GROUPS,
    Dequantize,
    GatherQuantizedMatmul,
    Pack,
    Packing,
    Quantize,
    QuantizedLinear,
    QuantizedMatmul,
)
from weft.primitives.quantized import codes as unpacked_codes
from weft.primitives.views import reshape
from weft.transforms.custom import custom_function

Stream = Any


def _packing(name: str, mode: str, group_size: int | None, bits: int | None) -> Packing:
    group_size = None if group_size is None else whole_number(name, "group_size", group_size)
    bits = None if bits is None else whole_number(name, "bits", bits)
    if mode in FIXED:
        group, width = FIXED[mode]
        if group_size not in (None, group):
            raise ValueError(f"[{name}] {mode} quantization requires group size {group} but got {group_size}.")
        if bits not in (None, width):
            raise ValueError(f"[{name}] {mode} quantization requires bits to be {width} but got {bits}.")
        return Packing(mode, group, width)
    if mode != "affine":
        raise ValueError(f"[{name}] Invalid quantization mode '{mode}'.")
    group, width = 64 if group_size is None else group_size, 4 if bits is None else bits
    if group not in GROUPS:
        raise ValueError(
            f"[{name}] The requested group size {group} is not supported. The supported group sizes are 32, 64, and "
            "128."
        )
    if width not in BITS:
        raise ValueError(
            f"[{name}] The requested number of bits {width} is not supported. The supported bits are 1, 2, 3, 4, 5, 6 "
            "and 8."
        )
    return Packing(mode, group, width)


def _reshaped(x: array, *shape: Any) -> array:
    return wrap(reshape(x._node, shape))


def _arrays(name: str, *given: Any) -> None:
    """Raise TypeError for what is neither an array nor None."""
    for x in given:
        if x is not None and not isinstance(x, array):
            raise TypeError(f"[{name}] operands must be arrays; got {type(x).__name__}.")


# ---- codes and words ----


def _packed(codes: array, bits: int) -> array:
    """Codes (…, groups, group) of uint8 as a stream of bits in uint32 (…, words), the first one lowest. They are
    packed group by group: in another shape what all codes of a group share would have to be written out first."""
    *lead, groups, size = codes._node.shape
    return _reshaped(wrap(bind(Pack(bits), codes._node)), *lead, groups * size * bits // 32)


# ---- small floats ----


def _to_fp4(x: array) -> array:
    """The nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6 as a code with its sign in bit 3; of two the smaller one."""
    size = abs_(x)
    code = greater(size, 0.25).astype(dt.uint8)
    for bound in (0.75, 1.25, 1.75, 2.5, 3.5, 5.0):
        code = code + greater(size, bound).astype(dt.uint8)
    return where(less(x, 0) & greater(code, 0), code + 8, code).astype(dt.uint8)


def _from_fp4(codes: array) -> array:
    """The doubles of 4-bit floats are integers of four bits."""
    wide = codes.astype(dt.uint32)
    twice = bitwise_and(right_shift(array(0xC8643210, dt.uint32), left_shift(bitwise_and(wide, 7), 2)), 15)
    size = twice.astype(dt.float32) * 0.5
    return where(equal(bitwise_and(wide, 8), 0), size, negative(size))


# ---- quantize, dequantize ----


def quantize(
    w: array, /, group_size: int | None = None, bits: int | None = None, mode: str = "affine", *,
    global_scale: array | None = None, stream: Stream = None,
) -> list[array]:  # fmt: skip
    """[packed codes, scales, biases] of a matrix, or of several; the other modes than "affine" have no biases.

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
    if w._node.shape[-1] % packing.group != 0:
        raise ValueError(
            "[quantize] The last dimension of the matrix needs to be divisible by the quantization group size "
            f"{packing.group}. However the provided  matrix has shape {w.shape}."
        )
    if mode == "nvfp4" and global_scale is not None:
        return list(_with_global_scale(w, global_scale))
    return list(_quantized(packing)(w))


@functools.cache
def _quantized(packing: Packing) -> custom_function:
    """The results of `quantize`. Scales and biases are numbers, and have the derivatives of how they are defined."""

    def run(w: array) -> list[array]:
        op = Quantize(packing.mode, packing.group, packing.bits)
        return [wrap(node) for node in bind_many(op, w._node)]

    def forward(w: array, tangent: array) -> list[array | None]:
        return [None, *jvp(lambda w: _affine(w, packing), [w], [tangent])[1]]

    def backward(w: array, cotangents: list[array], outputs: list[array]) -> array:
        found: array = vjp(lambda w: _affine(w, packing), [w], cotangents[1:])[1][0]
        return found

    made = custom_function(run)
    return made.jvp(forward).vjp(backward) if packing.affine else made


def _affine(w: array, packing: Packing) -> list[array]:
    """A scale and a bias for each group. The end of the range that is farther from 0 is a multiple of the scale, so
    that 0 is a code. Codes are round((w - bias) / scale), as far as there are any."""
    *lead, n = w._node.shape
    groups = _reshaped(w.astype(dt.float32), *lead, n // packing.group, packing.group)
    low, high = min_(groups, axis=-1), max_(groups, axis=-1)
    step = maximum((high - low) / float((1 << packing.bits) - 1), 1e-7)
    scale, bias = step, low
    if packing.bits > 1:
        below = greater(abs_(low), abs_(high))
        step, edge = where(below, step, negative(step)), where(below, low, high)
        count = round_(edge / step)
        exact = equal(count, 0)
        scale = where(exact, step, edge / where(exact, 1.0, count))
        bias = where(exact, 0.0, edge)
    return [scale.astype(w.dtype), bias.astype(w.dtype)]


def _with_global_scale(w: array, global_scale: array) -> tuple[array, ...]:
    """ "nvfp4" with a scale for all of the matrix."""
    group, bits = FIXED["nvfp4"]
    *lead, n = w._node.shape
    groups = _reshaped(w.astype(dt.float32), *lead, n // group, group)
    whole = FP8_MAX * FP4_MAX / global_scale.astype(dt.float32)
    scales = contiguous(to_fp8(max_(abs_(groups), axis=-1, keepdims=True) / FP4_MAX * whole))
    step = contiguous(from_fp8(scales, dt.float32) / whole)
    codes = _to_fp4(where(equal(step, 0), 0.0, groups / step))
    return _packed(codes, bits), _reshaped(scales, *lead, n // group)


def dequantize(
    w: array, /, scales: array, biases: array | None = None, group_size: int | None = None, bits: int | None = None,
    mode: str = "affine", global_scale: array | None = None, dtype: Dtype | None = None, *, stream: Stream = None,
) -> array:  # fmt: skip
    """The numbers of a quantized matrix: in the dtype of its scales ("affine"), else in bfloat16, unless one is given.

    >>> dequantize(*quantize(ones((1, 64)) * 3))[0, :3]
    array([3, 3, 3], dtype=float32)
    """
    if global_scale is None and dtype is None:
        return _unpacked(w, scales, biases, mode, group_size, bits)
    packing = _packing("dequantize", mode, group_size, bits)
    wanted = dtype or (scales.dtype if mode == "affine" else dt.bfloat16)
    return _dequantized("dequantize", w, scales, biases, packing, global_scale, wanted)


@remembered_all(3)
def _unpacked(
    w: array, scales: array, biases: array | None, mode: str, group_size: int | None, bits: int | None
) -> array:
    """What is looked up for every token."""
    made = _dequantized("dequantize", w, scales, biases, _packing("dequantize", mode, group_size, bits), None)
    return made.astype(scales.dtype if mode == "affine" else dt.bfloat16)


def _check_matrix(name: str, w: array, scales: array, biases: array | None, packing: Packing) -> None:
    """Raise what MLX raises for operands that are no quantized matrix."""
    _arrays(name, w, scales, biases)
    if w.dtype is not dt.uint32:
        raise ValueError(f"[{name}] The matrix should be given as a uint32.")
    if packing.mode == "affine" and biases is None:
        raise ValueError(f"[{name}] Biases must be provided for affine quantization.")
    if packing.mode != "affine" and biases is not None:
        raise ValueError(f"[{name}] Biases must be null for quantization mode '{packing.mode}'.")
    for given in (scales, biases):
        if given is not None and not _fits(w._node.shape, given._node.shape, packing):
            raise ValueError(
                f"[{name}] Shape of scales and biases does not match the matrix given the quantization parameters. "
                f"Provided matrix of shape {w.shape} and scales/biases of shape {given.shape} with group_size="
                f"{packing.group} and bits={packing.bits}."
            )


def _fits(w: Shape, scales: Shape, packing: Packing) -> bool:
    """Whether there is a scale for each group of codes; for sizes that are symbols that is a guard."""
    if not 0 < len(w) == len(scales) or w[-1] * 32 != scales[-1] * packing.group * packing.bits:
        return False
    return all(m == n for m, n in zip(w[:-1], scales[:-1], strict=True))


def _dequantized(
    name: str, w: array, scales: array, biases: array | None, packing: Packing, global_scale: array | None = None,
    dtype: Dtype = dt.float32,
) -> array:  # fmt: skip
    """The numbers of a quantized matrix."""
    _check_matrix(name, w, scales, biases, packing)
    _arrays(name, global_scale)
    if packing.mode != "nvfp4" or global_scale is None:
        op = Dequantize(packing.mode, packing.group, packing.bits, dtype if dtype in dt.FLOATS else None)
        matrix = [w._node, scales._node]
        if biases is not None:
            wider = dt.promote(scales.dtype, biases.dtype)
            matrix = [w._node, astype(scales._node, wider), astype(biases._node, wider)]
        return wrap(bind(op, *matrix)).astype(dtype)
    *lead, count = w._node.shape
    codes = _reshaped(wrap(unpacked_codes(w._node, packing.bits)), *scales._node.shape, packing.group)
    step = from_fp8(scales, dt.float32) * (global_scale.astype(dt.float32) / (FP8_MAX * FP4_MAX))
    return _reshaped(_from_fp4(codes) * expand_dims(step, -1), *lead, count * 32 // packing.bits).astype(dtype)


# ---- products ----


def _operands(
    name: str, x: array, w: array, scales: array, biases: array | None, transpose: bool, packing: Packing
) -> list[Node]:
    """Operands of a product; x has the dtype of the result."""
    _arrays(name, x)
    _check_matrix(name, w, scales, biases, packing)
    if w.ndim < 2:
        raise ValueError(f"[{name}] needs a quantized matrix; got w of shape {w.shape}.")
    rows, columns = w._node.shape[-2], scales._node.shape[-1] * packing.group
    if x.ndim == 0 or x._node.shape[-1] != (columns if transpose else rows):
        expanded = (columns, rows) if transpose else (rows, columns)
        raise ValueError(
            f"[{name}] Last dimension of first input with shape (..., {x._node.shape[-1] if x.ndim else ''}) does not "
            f"match the expanded quantized matrix {expanded} computed from shape {w.shape} with group_size="
            f"{packing.group}, bits={packing.bits} and transpose={str(transpose).lower()}."
        )
    dtype = dt.promote(x.dtype, scales.dtype) if packing.affine else x.dtype
    if dtype.kind != "f":
        raise ValueError(
            f"[{name}] Only real floating types are supported; got {x.dtype.name} and {scales.dtype.name}."
        )
    if biases is not None and biases.dtype.is_complex:
        raise TypeError(f"[{name}] biases must be real, as scales are; got {biases.dtype.name}.")
    found = [astype(x._node, dtype), w._node, scales._node]
    return found if biases is None else [*found, astype(biases._node, scales.dtype)]


def quantized_matmul(
    x: array, w: array, /, scales: array, biases: array | None = None, transpose: bool = True,
    group_size: int | None = None, bits: int | None = None, mode: str = "affine", *, stream: Stream = None,
) -> array:  # fmt: skip
    """x times a quantized matrix, transposed unless `transpose` is False.

    >>> quantized_matmul(ones((1, 64)), *quantize(ones((2, 64))))
    array([[64, 64]], dtype=float32)
    """
    return _product(x, w, scales, biases, transpose, group_size, bits, mode, in_parts())


@remembered_all(4)
def _product(
    x: array, w: array, scales: array, biases: array | None, transpose: bool, group_size: int | None, bits: int | None,
    mode: str, parts: bool,
) -> array:  # fmt: skip
    packing = _packing("quantized_matmul", mode, group_size, bits)
    left, *matrix = _operands("quantized_matmul", x, w, scales, biases, transpose, packing)
    options = (bool(transpose), packing.mode, packing.group, packing.bits)
    if w.ndim == 2:
        return composed(QuantizedLinear(*options), parts or left.ndim == 2, left, *matrix)
    op = QuantizedMatmul(*options)
    shared = _shared_axes(left.shape[:-2], w._node.shape[:-2])
    first = max(0, left.ndim - 2 - shared)
    outer, rows = left.shape[:first], left.shape[first:-1]
    left = reshape(left, (*outer, prod(rows), left.shape[-1]))
    kept = max(0, w.ndim - 2 - shared)
    matrix = [reshape(part, (*part.shape[:kept], *part.shape[-2:])) for part in matrix]
    lead = broadcast_shapes("quantized_matmul", outer, w._node.shape[:kept])
    made = bind(op, *[broadcast_node(part, (*lead, *part.shape[-2:])) for part in (left, *matrix)])
    return wrap(reshape(made, (*lead, *rows, made.shape[-1])))


def _shared_axes(x: Shape, w: Shape) -> int:
    """How many batch axes of x, the last ones, meet one and the same matrix: they are rows of one product."""
    count = 0
    while count < len(x) and (count >= len(w) or provably_equal(w[-1 - count], 1)):
        count += 1
    return count


def gather_qmm(
    x: array, w: array, /, scales: array, biases: array | None = None, lhs_indices: array | None = None,
    rhs_indices: array | None = None, transpose: bool = True, group_size: int | None = None, bits: int | None = None,
    mode: str = "affine", global_scale: array | None = None, *, sorted_indices: bool = False, stream: Stream = None,
) -> array:  # fmt: skip
    """`gather_mm` with quantized matrices on the right."""
    if lhs_indices is None and rhs_indices is None and global_scale is None:
        return quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode)
    return _chosen_products(
        x, w, scales, biases, lhs_indices, rhs_indices, global_scale, transpose, group_size, bits, mode
    )


@remembered_all(7)
def _chosen_products(
    x: array, w: array, scales: array, biases: array | None, lhs_indices: array | None, rhs_indices: array | None,
    global_scale: array | None, transpose: bool, group_size: int | None, bits: int | None, mode: str,
) -> array:  # fmt: skip
    packing = _packing("gather_qmm", mode, group_size, bits)
    _arrays("gather_qmm", lhs_indices, rhs_indices, global_scale)
    left, *matrix = _operands("gather_qmm", x, w, scales, biases, transpose, packing)
    if x.ndim < 2:
        raise ValueError(f"[gather_qmm] chooses among matrices; got x of shape {x.shape}.")
    indices = [_indices(given, operand.shape[:-2]) for given, operand in ((lhs_indices, left), (rhs_indices, w._node))]
    shape = broadcast_shapes("gather_qmm", *[i.shape for i in indices])
    op = GatherQuantizedMatmul(bool(transpose), packing.mode, packing.group, packing.bits)
    whole = None if packing.mode != "nvfp4" else global_scale
    dtype = left.dtype
    if whole is not None:  # what is left to multiply is not rounded before
        left = astype(left, dt.promote(dtype, dt.float32))
    matrices = [reshape(part, (prod(part.shape[:-2]), *part.shape[-2:])) for part in (left, *matrix)]
    chosen = [reshape(broadcast_node(i, shape), (prod(shape),)) for i in indices]
    product = bind(op, *matrices, *chosen)
    made = wrap(reshape(product, (*shape, *product.shape[1:])))
    return made if whole is None else (made * (whole.astype(dt.float32) / (FP8_MAX * FP4_MAX))).astype(dtype)


def _indices(given: array | None, lead: Shape) -> Node:
    """Numbers of matrices, as int32: those given, or all of them in order."""
    if given is None:
        return astype(bind(Iota(lead)), dt.int32)
    if not given.dtype.is_integer:
        raise ValueError("[gather_qmm] Got indices with invalid dtype. Indices must be integral.")
    if given.dtype.kind == "u" and given.dtype.size >= 4:
        given = minimum(given, (1 << 31) - 1)
    return astype(given._node, dt.int32)


def _both_quantized(
    name: str, x: array, w: array, scales: array | None, packing: Packing, whole_x: array | None, whole_w: array | None
) -> tuple[array, array, array]:
    """(x rounded as it would be quantized, in float32; codes and scales of the matrix)."""
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
    return rounded, w, scales


def qqmm(
    x: array, w: array, scales: array | None = None, group_size: int | None = None, bits: int | None = None,
    mode: str = "nvfp4", global_scale_x: array | None = None, global_scale_w: array | None = None, *,
    stream: Stream = None,
) -> array:  # fmt: skip
    """x @ w.T with both quantized: x on the way, and w too if it is given without scales."""
    packing = _packing("qqmm", mode, group_size, bits)
    left, codes, steps = _both_quantized("qqmm", x, w, scales, packing, global_scale_x, global_scale_w)
    made = quantized_matmul(left, codes, steps, mode=mode)
    if mode == "nvfp4" and global_scale_w is not None:
        made = made * (global_scale_w.astype(dt.float32) / (FP8_MAX * FP4_MAX))
    return made.astype(x.dtype)


def gather_qqmm(
    x: array, w: array, /, scales: array | None = None, lhs_indices: array | None = None,
    rhs_indices: array | None = None, group_size: int | None = None, bits: int | None = None, mode: str = "nvfp4",
    global_scale_x: array | None = None, global_scale_w: array | None = None, *, sorted_indices: bool = False,
    stream: Stream = None,
) -> array:  # fmt: skip
    """`qqmm` of chosen matrices, as `gather_mm` chooses them."""
    packing = _packing("gather_qqmm", mode, group_size, bits)
    left, codes, steps = _both_quantized("gather_qqmm", x, w, scales, packing, global_scale_x, global_scale_w)
    made = gather_qmm(
        left, codes, steps, None, lhs_indices, rhs_indices, mode=mode, global_scale=global_scale_w,
        sorted_indices=sorted_indices,
    )  # fmt: skip
    return made.astype(x.dtype)
