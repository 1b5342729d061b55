"""Products with quantized matrices: small codes, packed into uint32, with a scale (and an offset) for each group of
neighbours.

A `Packing` says how the numbers of a matrix are held. Kernels read codes and scales as they are; no matrix of plain
numbers is made. Derivatives by scales and biases are compositions.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.dims import prod
from weft.graph.node import ArrayType, Node, Size, TupleType, bundle_of, kind_of
from weft.primitives.base import (
    ByOperand,
    Composite,
    Discrete,
    KernelOperation,
    MultiOutput,
    Sample,
    bind,
    bind_many,
    move_batch_to_front,
    zeros,
)
from weft.primitives.checks import equal_shapes, need
from weft.primitives.contraction import Matmul, swap_last
from weft.primitives.creation import Iota
from weft.primitives.elementwise import astype, draw
from weft.primitives.indexing import Gather, ScatterAdd, resolved
from weft.primitives.reductions import sum_over
from weft.primitives.views import reshape
from weft.records import dataclass

FIXED: Final = {"mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
"""(group size, bits) of the modes that have one only."""
GROUPS: Final = (32, 64, 128)
BITS: Final = (1, 2, 3, 4, 5, 6, 8)
"""What "affine" has."""

FP4: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The 4-bit floats without sign; the codes from 8 on are their negatives."""

FP4_MAX, FP8_MAX = 6.0, 448.0


@dataclass(frozen=True, slots=True)
class Packing:
    """How numbers are stored: the mode, how many share a scale, and how many bits one takes.

    In mode "affine" a number is scale * code + bias; in the others it is scale * a small float: E2M1 (4 bits) or E4M3
    (8 bits) times a power of two ("mxfp4", "mxfp8"), E2M1 times an E4M3 ("nvfp4").
    """

    mode: str
    group: int
    bits: int

    @property
    def affine(self) -> bool:
        return self.mode == "affine"

    @property
    def unit(self) -> tuple[int, int]:
        """(words, codes) of the shortest run of codes that fills whole words."""
        codes = next(n for n in (4, 8, 16, 32) if n * self.bits % 32 == 0)
        return codes * self.bits // 32, codes

    @property
    def known(self) -> bool:
        """Whether there is such a packing."""
        if self.affine:
            return self.group in GROUPS and self.bits in BITS
        return FIXED.get(self.mode) == (self.group, self.bits)


# ---- the numbers of codes, in NumPy ----


def unpacked(w: np.ndarray, bits: int) -> np.ndarray:
    """The codes of a stream of bits."""
    *lead, count = w.shape
    if not w.size:
        return np.zeros((*lead, count * 32 // bits), np.uint8)
    stream = np.unpackbits(np.ascontiguousarray(w).view(np.uint8), axis=-1, bitorder="little")
    return np.packbits(stream.reshape(*lead, -1, bits), axis=-1, bitorder="little")[..., 0]


@functools.cache
def fp8_numbers() -> np.ndarray:
    """The number of each E4M3 code."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    size = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return np.where(code & 0x7F == 0x7F, np.nan, np.where(code & 0x80, -size, size))


def numbers_of(packing: Packing, w: np.ndarray, scales: np.ndarray, *biases: np.ndarray) -> np.ndarray:
    """The numbers of a quantized matrix, in float64."""
    codes = unpacked(w, packing.bits).reshape(*scales.shape, packing.group)
    if packing.affine:
        made = codes * scales.astype(np.float64)[..., None] + biases[0].astype(np.float64)[..., None]
    else:
        small = fp8_numbers() if packing.mode == "mxfp8" else np.array([*FP4, *(-v for v in FP4)])
        step = fp8_numbers()[scales] if packing.mode == "nvfp4" else 2.0 ** (scales.astype(np.float64) - 127)
        made = small[codes] * step[..., None]
    return made.reshape(*scales.shape[:-1], scales.shape[-1] * packing.group)


# ---- codes and words ----


class _Bits(KernelOperation, Discrete):
    """What has `bits` for each code. No derivative."""

    bits: int
    moves = (0,)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self, move_batch_to_front(inputs[0], axes[0], size)), 0


def _of_bits(shape: tuple[int, ...], bits: int, words: bool) -> Sample:
    def make(rng: np.random.Generator, dtype: Dtype) -> list[np.ndarray]:
        if words:
            return [rng.integers(0, 1 << 32, (*shape[:-1], shape[-1] * bits // 32), np.uint32)]
        return [rng.integers(0, 256, shape).astype(np.uint8)]

    return Sample(make, {"bits": bits}, smooth=False, name=f"{bits} bits {len(shape)}")


_SHAPES: Final = ((3, 64), (2, 3, 672), (0, 32))


class Pack(_Bits):
    """Codes (…, n) as a stream of bits in words (…, n * bits / 32), the first one lowest. Only the low bits of a code
    count."""

    dtypes = (dt.uint8,)
    samples = tuple(_of_bits(shape, bits, words=False) for bits in BITS for shape in _SHAPES)

    def infer(self, *kinds: ArrayType) -> ArrayType:
        *lead, n = kinds[0].shape
        return kind_of((*lead, n * self.bits // 32), dt.uint32)

    def check(self, x: ArrayType) -> None:
        self.check_dtypes(x)
        need(self.bits in BITS, f"{self.bits} bits")
        need(x.ndim >= 1 and x.shape[-1] % Packing("affine", 32, self.bits).unit[1] == 0, f"codes {x}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return packed(values[0], self.bits)


class Unpack(_Bits):
    """The codes (…, n) of a stream of bits, as uint8."""

    dtypes = (dt.uint32,)
    samples = tuple(_of_bits(shape, bits, words=True) for bits in BITS for shape in _SHAPES)

    def infer(self, *kinds: ArrayType) -> ArrayType:
        *lead, count = kinds[0].shape
        return kind_of((*lead, count * 32 // self.bits), dt.uint8)

    def check(self, w: ArrayType) -> None:
        self.check_dtypes(w)
        need(self.bits in BITS, f"{self.bits} bits")
        need(w.ndim >= 1 and w.shape[-1] % Packing("affine", 32, self.bits).unit[0] == 0, f"words {w}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return unpacked(values[0], self.bits)


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes as a stream of bits in words."""
    *lead, n = codes.shape
    stream = np.unpackbits(np.ascontiguousarray(codes)[..., None], axis=-1, bitorder="little")[..., :bits]
    words = np.packbits(stream.reshape(*lead, n * bits), axis=-1, bitorder="little")
    return np.ascontiguousarray(words).view(np.uint32).reshape(*lead, n * bits // 32)


def codes(w: Node, bits: int) -> Node:
    """The codes (…, n) of a stream of bits, as uint8."""
    return bind(Unpack(bits), w)


# ---- samples ----


def _quantized(rng: np.random.Generator, dtype: Dtype, packing: Packing, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Words, scales and biases of matrices. Small floats are not negative: terms that cancel are bounded by what the
    operation makes of moduli, which are no rule for codes."""
    *lead, n = shape
    w = rng.integers(0, 1 << 32, (*lead, n * packing.bits // 32), np.uint32)
    groups = (*lead, n // packing.group)
    if packing.affine:
        return [w, draw(rng, dtype, groups, -0.1, 0.1), draw(rng, dtype, groups, -1, 1)]
    w &= np.uint32(0x77777777 if packing.bits == 4 else 0x6F6F6F6F)
    low, high = (0x28, 0x40) if packing.mode == "nvfp4" else (122, 126)
    return [w, rng.integers(low, high, groups).astype(np.uint8)]


_AFFINE = {"mode": "affine", "group": 64, "bits": 4}
_CASES: Final[dict[str, tuple[dict[str, Any], bool, tuple[int, ...], tuple[int, ...]]]] = {
    "row": (_AFFINE, True, (1, 128), (5, 128)),
    "rows": (_AFFINE, True, (3, 64), (37, 64)),
    "tiled": ({**_AFFINE, "group": 32}, True, (17, 64), (21, 64)),
    "plain": (_AFFINE, False, (2, 5), (5, 64)),
    "batch": ({**_AFFINE, "group": 32, "bits": 3}, True, (2, 2, 32), (2, 6, 32)),
    "empty": (_AFFINE, True, (0, 64), (5, 64)),
    "nothing": (_AFFINE, False, (3, 0), (0, 64)),
    "mxfp4": ({"mode": "mxfp4", "group": 32, "bits": 4}, True, (2, 32), (5, 32)),
    "mxfp8": ({"mode": "mxfp8", "group": 32, "bits": 8}, True, (2, 64), (3, 64)),
    "nvfp4": ({"mode": "nvfp4", "group": 16, "bits": 4}, False, (2, 3), (3, 32)),
}
"""name: (packing, transpose, shape of x, shape of the matrix)"""


def _samples() -> tuple[Sample, ...]:
    def make(options: dict[str, Any], x: tuple[int, ...], w: tuple[int, ...]) -> Any:
        return lambda rng, dtype: [draw(rng, dtype, x, -1, 1), *_quantized(rng, dtype, Packing(**options), w)]

    return tuple(
        Sample(make(options, x, w), {"transposed": turned, **options}, name=name)
        for name, (options, turned, x, w) in _CASES.items()
    )


def _gathered_samples() -> tuple[Sample, ...]:
    def make(name: str, x: int, lhs: list[int], rhs: list[int]) -> Any:
        options, _, rows, matrix = _CASES[name]
        return lambda rng, dtype: [
            draw(rng, dtype, (x, *rows), -1, 1), *_quantized(rng, dtype, Packing(**options), (3, *matrix)),
            np.array(lhs, np.int32), np.array(rhs, np.int32),
        ]  # fmt: skip

    cases = {
        "row": (4, [0, 1, 1, 3], [2, 2, 2, 0]),
        "rows": (2, [1, -1, 5], [0, -1, 9]),
        "tiled": (2, [1, 0, 1], [2, 0, 0]),
        "plain": (3, [0, 2], [1, 1]),
        "empty": (2, [0, 1], [1, 1]),
        "mxfp4": (2, [0, 1], [1, 1]),
    }
    return tuple(
        Sample(make(name, *case), {"transposed": _CASES[name][1], **_CASES[name][0]}, name=name)
        for name, case in cases.items()
    )


# ---- numbers ----


def _dequantized_samples() -> tuple[Sample, ...]:
    def make(options: dict[str, Any], shape: tuple[int, ...]) -> Any:
        return lambda rng, dtype: _quantized(rng, dtype, Packing(**options), shape)

    cases: list[tuple[dict[str, Any], tuple[int, ...]]] = [
        ({"mode": "affine", "group": group, "bits": bits}, (3, 2 * group)) for group in (32, 128) for bits in BITS
    ]
    cases += [({"mode": mode, "group": group, "bits": bits}, (2, 3, 96)) for mode, (group, bits) in FIXED.items()]
    cases.append(({"mode": "affine", "group": 64, "bits": 4}, (0, 64)))
    return tuple(
        Sample(make(options, shape), options, name=f"{options['mode']} {options['group']} {options['bits']}")
        for options, shape in cases
    )


class Dequantize(KernelOperation):
    """The numbers of a quantized matrix (words, scales, and biases in mode "affine"). They are computed in float32
    (float64, if the scales are), product and sum rounded each, and are rounded to `dtype` if it is given."""

    mode: str
    group: int
    bits: int
    dtype: Dtype | None = None
    dtypes = dt.FLOATS
    samples = _dequantized_samples()

    @property
    def packing(self) -> Packing:
        return Packing(self.mode, self.group, self.bits)

    @staticmethod
    def wide(scales: Dtype) -> Dtype:
        """What is computed with."""
        return dt.float64 if scales is dt.float64 else dt.float32

    def infer(self, *kinds: ArrayType) -> ArrayType:
        *lead, n = kinds[1].shape
        return kind_of((*lead, n * self.group), self.dtype or self.wide(kinds[1].dtype))

    def check(self, w: ArrayType, scales: ArrayType, *biases: ArrayType) -> None:
        need(self.packing.known, f"{self.mode} quantization, groups of {self.group}, {self.bits} bits")
        need(self.dtype is None or self.dtype in dt.FLOATS, f"numbers of {self.dtype}")
        _check_words(self.packing, w, scales, *biases)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        w, scales, *biases = values
        found = unpacked(w, self.bits).reshape(*scales.shape, self.group)
        kind = self.wide(dt.from_numpy(scales.dtype)).np
        with np.errstate(all="ignore"):
            if self.packing.affine:
                made = found.astype(kind) * scales.astype(kind)[..., None] + biases[0].astype(kind)[..., None]
            else:
                made = numbers_of(self.packing, w, scales).astype(kind)
            made = made.reshape(*scales.shape[:-1], scales.shape[-1] * self.group)
            return made if self.dtype is None else made.astype(self.dtype.np)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        """Linear in scales and biases together."""
        if not self.packing.affine or not (1 in tangents or 2 in tangents):
            return None
        steps = [tangents.get(p, zeros(primals[p].kind)) for p in (1, 2)]
        return bind(self, primals[0], *steps)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        if not self.packing.affine:
            return {}
        w, scales, _ = primals
        wide, shape = self.wide(scales.dtype), (*scales.shape, self.group)
        each = reshape(astype(cotangent, wide), shape)
        found = {2: each}
        if 1 in wanted:
            found[1] = each * reshape(astype(codes(w, self.bits), wide), shape)
        last = (len(shape) - 1,)
        return {p: astype(sum_over(x, last), scales.dtype) for p, x in found.items() if p in wanted}

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        moved = [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]
        return bind(self, *moved), 0


def _check_words(packing: Packing, w: ArrayType, scales: ArrayType, *biases: ArrayType) -> None:
    need(w.dtype is dt.uint32, f"words {w}")
    need(len(biases) == packing.affine, f"{2 + len(biases)} operands of a matrix")
    need(scales.dtype in dt.FLOATS if packing.affine else scales.dtype is dt.uint8, f"scales {scales}")
    need(all(b.dtype is scales.dtype and equal_shapes(b.shape, scales.shape) for b in biases), f"biases {biases}")
    need(w.ndim == scales.ndim >= 1, f"words {w} and scales {scales}")
    need(equal_shapes(w.shape[:-1], scales.shape[:-1]), f"words {w} and scales {scales}")
    need(scales.shape[-1] * packing.group * packing.bits == w.shape[-1] * 32, f"words {w} and scales {scales}")


# ---- numbers to codes ----


def _quantize_samples() -> tuple[Sample, ...]:
    packings = [("affine", GROUPS[bits % 3], bits) for bits in BITS] + [(mode, *known) for mode, known in FIXED.items()]
    found = []
    for mode, group, bits in packings:
        for shape in ((3, 6 * group), (2, 1, group)):
            found.append(
                Sample(
                    lambda rng, dtype, shape=shape: [_numbers(rng, dtype, shape)],  # type: ignore[misc]
                    {"mode": mode, "group": group, "bits": bits},
                    smooth=False,
                    name=f"{mode} {bits} {len(shape)}",
                )
            )
    empty = Sample(lambda rng, dtype: [draw(rng, dtype, (0, 64))], {"mode": "affine", "group": 64, "bits": 4}, False)
    return (*found, empty)


def _numbers(rng: np.random.Generator, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of all sizes, the first 16 of them equal, some of them 0."""
    made = draw(rng, dtype, shape, -1, 1) * 2.0 ** rng.integers(-6, 7, (*shape[:-1], 1))
    made[..., :16] = made[..., :1]
    return np.where(rng.random(shape) < 0.1, 0, made).astype(dtype.np)


class Quantize(MultiOutput, KernelOperation):
    """(words, scales, biases) of numbers (…, n), or (words, scales) where the mode is not "affine": the packed codes,
    and what the numbers of each group have in common, as weft/core/quantizing.py defines it, which has the derivatives
    of scales and biases, too: here they are taken for constants. All is computed in float32."""

    mode: str
    group: int
    bits: int
    dtypes = dt.FLOATS
    samples = _quantize_samples()

    @property
    def packing(self) -> Packing:
        return Packing(self.mode, self.group, self.bits)

    def infer(self, *kinds: ArrayType) -> TupleType:
        (x,) = kinds
        *lead, n = x.shape
        words, groups = kind_of((*lead, n * self.bits // 32), dt.uint32), (*lead, n // self.group)
        if self.packing.affine:
            return bundle_of([words, kind_of(groups, x.dtype), kind_of(groups, x.dtype)])
        return bundle_of([words, kind_of(groups, dt.uint8)])

    def check(self, x: ArrayType) -> None:
        self.check_dtypes(x)
        need(self.packing.known, f"{self.mode} quantization, groups of {self.group}, {self.bits} bits")
        need(x.ndim >= 1 and x.shape[-1] % self.group == 0, f"numbers {x} in groups of {self.group}")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return 8.0 * float(kinds[0].size)

    def reference(self, *values: np.ndarray) -> tuple[np.ndarray, ...]:
        (x,) = values
        *lead, n = x.shape
        groups = x.astype(np.float32).reshape(*lead, n // self.group, self.group)
        with np.errstate(all="ignore"):
            codes, *shared = (_affine_codes if self.packing.affine else _small_floats)(groups, self.packing)
        words = packed(codes.reshape(*lead, n), self.bits)
        return words, *(y[..., 0] if y.dtype == np.uint8 else y[..., 0].astype(x.dtype) for y in shared)

    def jvp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], tangents: ByOperand
    ) -> Sequence[Node | None]:
        return [None] * len(outs)

    def vjp(  # type: ignore[override]
        self, outs: Sequence[Node], primals: tuple[Node, ...], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> ByOperand:
        return {}

    def batch(  # type: ignore[override]
        self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size
    ) -> Sequence[tuple[Node, int | None]]:
        return [(x, 0) for x in bind_many(self, move_batch_to_front(inputs[0], axes[0], size))]


def _affine_codes(groups: np.ndarray, packing: Packing) -> list[np.ndarray]:
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    most = np.float32((1 << packing.bits) - 1)
    step = np.maximum((high - low) / most, np.float32(1e-7))
    scale, bias = step, low
    if packing.bits > 1:
        below = np.abs(low) > np.abs(high)
        step, edge = np.where(below, step, -step), np.where(below, low, high)
        count = np.rint(edge / step)
        scale = np.where(count == 0, step, edge / np.where(count == 0, np.float32(1), count))
        bias = np.where(count == 0, np.float32(0), edge)
    codes = np.clip(np.rint((groups - bias) / scale), np.float32(0), most)
    return [np.nan_to_num(codes).astype(np.uint8), scale, bias]


def _small_floats(groups: np.ndarray, packing: Packing) -> list[np.ndarray]:
    top = np.abs(groups).max(-1, keepdims=True)
    if packing.mode == "nvfp4":
        scales = _nearest_fp8(top / np.float32(FP4_MAX))
        step = fp8_numbers()[scales].astype(np.float32)
    else:
        exponent = np.ceil(np.log2(top / np.float32(FP4_MAX if packing.bits == 4 else FP8_MAX)))
        scales = (np.where(top == 0, np.float32(0), np.clip(exponent, -127, 127)) + 127).astype(np.uint8)
        step = np.float32(2) ** (scales.astype(np.float32) - 127)
    scaled = np.where(step == 0, np.float32(0), groups / step)
    if packing.bits == 8:
        return [_nearest_fp8(scaled), scales]
    bounds = np.array([(x + y) / 2 for x, y in itertools.pairwise(FP4)], np.float32)
    code = np.searchsorted(bounds, np.nan_to_num(np.abs(scaled), posinf=np.inf))  # of two the smaller one
    return [np.where((scaled < 0) & (code > 0), code + 8, code).astype(np.uint8), scales]


def _nearest_fp8(x: np.ndarray) -> np.ndarray:
    """The nearest E4M3 codes of numbers, ties to even; NaN stays NaN."""
    numbers = fp8_numbers()[:127]
    size = np.minimum(np.abs(x.astype(np.float64)), FP8_MAX)
    below = np.clip(np.searchsorted(numbers, size, "right") - 1, 0, 125)
    rest = 2 * (size - numbers[below]) - (numbers[below + 1] - numbers[below])
    code = below + ((rest > 0) | ((rest == 0) & (below % 2 == 1)))
    return (np.where(np.isnan(x), 127, code) + 128 * np.signbit(x)).astype(np.uint8)


# ---- products ----


def _without_signs(packing: Packing, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The operands of a product with codes that are positive: those of floats have signs of their own."""
    x, words, *others = values
    if not packing.affine:
        words = words & np.uint32(0x77777777 if packing.bits == 4 else 0x7F7F7F7F)
    return [x, words, *others]


class Quantized(KernelOperation):
    """What products with quantized matrices share. Operands: x, words, scales, biases (in mode "affine"), …; the
    matrices are (n, k) if they are to be transposed, else (k, n), and packed along their last axes."""

    transposed: bool
    mode: str
    group: int
    bits: int
    dtypes = dt.FLOATS
    cancels = True
    tolerance = {dt.float32: 16, dt.float64: 16, dt.float16: 1, dt.bfloat16: 1}

    @property
    def packing(self) -> Packing:
        return Packing(self.mode, self.group, self.bits)

    @property
    def matrix(self) -> int:
        """How many operands a matrix is."""
        return 3 if self.packing.affine else 2

    @property
    def turned(self) -> Any:
        """The product with the matrix turned round."""
        return type(self)(not self.transposed, self.mode, self.group, self.bits)

    def check_matrix(self, x: ArrayType, w: ArrayType, scales: ArrayType, *biases: ArrayType) -> None:
        packing = self.packing
        need(packing.known, f"{packing.mode} quantization, groups of {packing.group}, {packing.bits} bits")
        self.check_dtypes(x)
        _check_words(packing, w, scales, *biases)
        need(x.ndim == w.ndim >= 2, f"operands {x}, {w} and {scales}")
        n = scales.shape[-1] * packing.group
        need(x.shape[-1] == (n if self.transposed else w.shape[-2]), f"{x} and a matrix of words {w}")

    def columns(self, w: ArrayType, scales: ArrayType) -> Size:
        """The columns of the product."""
        return w.shape[-2] if self.transposed else scales.shape[-1] * self.group

    def exact(self, x: np.ndarray, *matrix: np.ndarray) -> np.ndarray:
        """The products in float64."""
        w = numbers_of(self.packing, *matrix)
        with np.errstate(all="ignore"):
            return np.matmul(x.astype(np.float64), np.swapaxes(w, -1, -2) if self.transposed else w)

    def magnitudes(self, *values: np.ndarray) -> np.ndarray:
        return super().magnitudes(*_without_signs(self.packing, values))

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: ByOperand) -> Node | None:
        """Linear in x, and in scales and biases together."""
        total = bind(self, tangents[0], *primals[1:]) if 0 in tangents else None
        if self.packing.affine and (2 in tangents or 3 in tangents):
            steps = [tangents.get(p, zeros(primals[p].kind)) for p in (2, 3)]
            term = bind(self, primals[0], primals[1], *steps, *primals[4:])
            total = term if total is None else total + term
        return total

    def by_groups(self, x: Node, w: Node, cotangent: Node, wanted: frozenset[int], dtype: Dtype) -> dict[int, Node]:
        """The cotangents of scales (2) and biases (3) of matrices that are each multiplied with one x."""
        wide = dt.float64 if cotangent.dtype is dt.float64 else dt.float32
        x, cotangent = astype(x, wide), astype(cotangent, wide)
        pair = (swap_last(cotangent), x) if self.transposed else (swap_last(x), cotangent)
        each = bind(Matmul(), *pair)
        *lead, n = each.shape
        shape = (*lead, n // self.group, self.group)
        last = (len(shape) - 1,)
        found = {}
        if 2 in wanted:
            terms = each * astype(codes(w, self.bits), wide)
            found[2] = astype(sum_over(reshape(terms, shape), last), dtype)
        if 3 in wanted:
            found[3] = astype(sum_over(reshape(each, shape), last), dtype)
        return found


class QuantizedMatmul(Quantized):
    """x[..., m, k] times a quantized matrix; leading axes are equal and go together."""

    samples = _samples()

    def infer(self, *kinds: ArrayType) -> ArrayType:
        x, w, scales, *_ = kinds
        return kind_of((*x.shape[:-1], self.columns(w, scales)), x.dtype)

    def check(self, x: ArrayType, w: ArrayType, scales: ArrayType, *biases: ArrayType) -> None:
        self.check_matrix(x, w, scales, *biases)
        need(equal_shapes(x.shape[:-2], w.shape[:-2]), f"operands {x} and {w}")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return 2.0 * float(out.size) * float(kinds[0].shape[-1])

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, *matrix = values
        return self.exact(x, *matrix).astype(x.dtype)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        x, w, *steps = primals
        found = {0: bind(self.turned, cotangent, w, *steps)} if 0 in wanted else {}
        if self.packing.affine and wanted & {2, 3}:
            found |= self.by_groups(x, w, cotangent, wanted, steps[0].dtype)
        return found

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        moved = [move_batch_to_front(x, axis, size) for x, axis in zip(inputs, axes, strict=True)]
        return bind(self, *moved), 0


def _rows_samples() -> tuple[Sample, ...]:
    def make(options: dict[str, Any], x: tuple[int, ...], w: tuple[int, ...]) -> Any:
        return lambda rng, dtype: [draw(rng, dtype, x, -1, 1), *_quantized(rng, dtype, Packing(**options), w)]

    lead = {"row": (2, 3), "rows": (), "plain": (2, 1), "empty": (2, 0), "mxfp8": (1, 2), "nvfp4": (2, 2)}
    return tuple(
        Sample(make(options, (*lead[name], x[-1]), w), {"transposed": turned, **options}, name=name)
        for name, (options, turned, x, w) in _CASES.items()
        if name in lead
    )


class QuantizedLinear(Composite):
    """x[..., k] times one quantized matrix: all leading axes are rows of one `QuantizedMatmul`."""

    transposed: bool
    mode: str
    group: int
    bits: int
    dtypes = dt.FLOATS
    cancels = True
    tolerance = Quantized.tolerance
    samples = _rows_samples()

    @property
    def product(self) -> QuantizedMatmul:
        """The operation on rows."""
        return QuantizedMatmul(self.transposed, self.mode, self.group, self.bits)

    def check(self, x: ArrayType, w: ArrayType, scales: ArrayType, *biases: ArrayType) -> None:
        need(x.ndim > 0, "an operand without axes")
        self.product.check(kind_of((prod(x.shape[:-1]), x.shape[-1]), x.dtype), w, scales, *biases)

    def infer(self, *kinds: ArrayType) -> ArrayType:
        x, w, scales, *_ = kinds
        return kind_of((*x.shape[:-1], self.product.columns(w, scales)), x.dtype)

    def decompose(self, *xs: Node) -> Node:
        x, *matrix = xs
        made = bind(self.product, reshape(x, (prod(x.shape[:-1]), x.shape[-1])), *matrix)
        return reshape(made, (*x.shape[:-1], made.shape[-1]))

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, *matrix = values
        return self.product.exact(x, *matrix).astype(x.dtype)

    def magnitudes(self, *values: np.ndarray) -> np.ndarray:
        return super().magnitudes(*_without_signs(self.product.packing, values))


class GatherQuantizedMatmul(Quantized):
    """x[lhs[i]] times matrix rhs[i], for every i: x[c, m, k], matrices as of `QuantizedMatmul` with one leading axis,
    and then the indices lhs[i] and rhs[i] (int32), which count as those of `Gather`."""

    samples = _gathered_samples()

    def infer(self, *kinds: ArrayType) -> ArrayType:
        x, w, scales, *_ = kinds
        return kind_of((kinds[-1].shape[0], x.shape[1], self.columns(w, scales)), x.dtype)

    def check(self, x: ArrayType, w: ArrayType, scales: ArrayType, *rest: ArrayType) -> None:
        need(len(rest) == self.matrix, f"{3 + len(rest)} operands")
        *biases, lhs, rhs = rest
        self.check_matrix(x, w, scales, *biases)
        need(x.ndim == 3 and lhs.ndim == rhs.ndim == 1, f"operands {x} and indices {lhs} and {rhs}")
        need(lhs.dtype is rhs.dtype is dt.int32 and lhs.shape[0] == rhs.shape[0], f"indices {lhs} and {rhs}")
        need(lhs.shape[0] == 0 or (x.shape[0] > 0 and w.shape[0] > 0), "no matrix that could be indexed")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return 2.0 * float(out.size) * float(kinds[0].shape[-1])

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, *matrix, lhs, rhs = values
        if not lhs.size:
            return np.zeros((0, x.shape[1], self.columns(*map(_kind, matrix[:2]))), x.dtype)
        chosen = [part[resolved(rhs, len(part))] for part in matrix]
        return self.exact(x[resolved(lhs, len(x))], *chosen).astype(x.dtype)

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> ByOperand:
        x, w, *steps, lhs, rhs = primals
        found = {}
        if 0 in wanted:
            own = astype(bind(Iota(lhs.shape)), dt.int32)
            found[0] = _added_up(x.kind, bind(self.turned, cotangent, w, *steps, own, rhs), lhs)
        if self.packing.affine and wanted & {2, 3}:
            parts = self.by_groups(_chosen(x, lhs), _chosen(w, rhs), cotangent, wanted, steps[0].dtype)
            found |= {p: _added_up(steps[0].kind, part, rhs) for p, part in parts.items()}
        return found

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        """Batches of matrices follow each other, and indices go on counting where another one begins."""
        *arrays, lhs, rhs = inputs
        *at, lhs_at, rhs_at = axes
        indices = [move_batch_to_front(i, axis, size) for i, axis in ((lhs, lhs_at), (rhs, rhs_at))]
        joined: list[Node] = []
        for number, part in enumerate((slice(0, 1), slice(1, None))):
            nodes, places = arrays[part], at[part]
            if all(axis is None for axis in places):
                joined += nodes
                continue
            moved = [move_batch_to_front(x, axis, size) for x, axis in zip(nodes, places, strict=True)]
            count = moved[0].shape[1]
            joined += [reshape(x, (size * count, *x.shape[2:])) for x in moved]
            indices[number] = _numbered(indices[number], size, count)
        n = indices[0].shape[1]
        made = bind(self, *joined, *[reshape(i, (size * n,)) for i in indices])
        return reshape(made, (size, n, *made.shape[1:])), 0


def _kind(x: np.ndarray) -> ArrayType:
    return kind_of(x.shape, dt.from_numpy(x.dtype))


def _chosen(x: Node, index: Node) -> Node:
    """x[index], of matrices."""
    return bind(Gather((None, 1, 2), (0,)), x, index)


def _added_up(kind: ArrayType, each: Node, index: Node) -> Node:
    """Matrices of this kind that are the sums of those with their number."""
    return bind(ScatterAdd((None, 1, 2), (0,)), zeros(kind), each, index)


def _numbered(index: Node, size: Size, count: Size) -> Node:
    """Indices among `count` matrices, a row for each of `size` batches, as indices among all of them."""
    numbers = astype(bind(Iota((size, count))), dt.int32)
    return bind(Gather((0, None), (0, 1)), numbers, index)
