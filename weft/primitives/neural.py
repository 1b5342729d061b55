"""Composites of neural networks: norms over the last axis, and the rotation of pairs by angles.

Halves are computed in float32 and rounded once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.dims import Dim, same_shape
from weft.graph.node import ArrayType, Node, Shape, Size, kind_of
from weft.primitives.base import Composite, Elementwise, Sample, bind, constant, reduced_shape
from weft.primitives.checks import equal_shapes, need
from weft.primitives.creation import Extent
from weft.primitives.elementwise import Add, Multiply, Rsqrt, Square, astype, draw
from weft.primitives.joins import Concatenate
from weft.primitives.reductions import sum_over
from weft.primitives.views import Broadcast, Slice, reshape

Shift = Callable[[Node], Node]
"""Adds something small to a variance."""


def _wide(dtype: Dtype) -> Dtype:
    """What a dtype is computed in."""
    return dt.float32 if dtype in dt.HALVES or dtype.kind != "f" else dtype


def _held(*xs: Node) -> Dtype:
    """The dtype that holds those of all."""
    return functools.reduce(dt.promote, [x.dtype for x in xs])


def _repeated(x: Node, shape: Shape) -> Node:
    """x in a shape, repeated along new axes and axes of size 1."""
    first = len(shape) - x.ndim
    return x if same_shape(x.shape, shape) else bind(Broadcast(shape, tuple(range(first, len(shape)))), x)


def _mean(x: Node) -> Node:
    """The mean over the last axis, which is then 1."""
    last = x.ndim - 1
    total = reshape(sum_over(x, (last,)), reduced_shape(x.shape, (last,)))
    n = x.shape[last]
    if type(n) is not Dim:
        return total / constant(float(n), total.kind)
    return total / bind(Broadcast(total.shape, ()), astype(bind(Extent(n)), total.dtype))


def _with(op: type[Elementwise], x: Node, y: Node) -> Node:
    """An operation on x and a vector for its last axis, in the dtype that holds both."""
    dtype = dt.promote(x.dtype, y.dtype)
    return bind(op(), astype(x, dtype), _repeated(astype(y, dtype), x.shape))


def _unit(x: Node, shift: Shift) -> Node:
    """x over the root of the mean of its squares, to which `shift` adds something."""
    return x * _repeated(bind(Rsqrt(), shift(_mean(bind(Square(), x)))), x.shape)


def rms_normed(x: Node, weights: Sequence[Node], shift: Shift) -> Node:
    """x / sqrt(shift(mean(x²))) over the last axis, times a weight if there is one."""
    dtype = _held(x, *weights)
    if not x.kind.size:
        return astype(x, dtype)
    made = _unit(astype(x, _wide(x.dtype)), shift)
    for weight in weights:
        made = _with(Multiply, made, weight)
    return astype(made, dtype)


def layer_normed(x: Node, weights: Sequence[Node], biases: Sequence[Node], shift: Shift) -> Node:
    """(x - mean) / sqrt(shift(variance)) over the last axis, times a weight, plus a bias, if there are."""
    dtype = _held(x, *weights, *biases)
    if not x.kind.size:
        return astype(x, dtype)
    wide = astype(x, _wide(x.dtype))
    made = _unit(wide - _repeated(_mean(wide), wide.shape), shift)
    for weight in weights:
        made = _with(Multiply, made, weight)
    for bias in biases:
        made = _with(Add, made, bias)
    return astype(made, dtype)


def adding(eps: float) -> Shift:
    """Adds a number."""
    return lambda x: x + constant(eps, x.kind)


class _Norm(Composite):
    """A norm over the last axis of the first operand; the others are vectors for it."""

    eps: float
    dtypes = dt.FLOATS

    def check_vectors(self, x: ArrayType, vectors: Sequence[ArrayType], most: int) -> None:
        need(x.ndim > 0, "an operand without axes")
        need(len(vectors) <= most, f"{1 + len(vectors)} operands")
        need(all(kind.dtype in dt.FLOATS for kind in (x, *vectors)), f"operands {x}, {vectors}")
        need(all(equal_shapes(kind.shape, x.shape[-1:]) for kind in vectors), f"operands {x}, {vectors}")


def _norm_samples(vectors: Sequence[int], **params: Any) -> tuple[Sample, ...]:
    def make(shape: tuple[int, ...], count: int) -> Any:
        return lambda rng, dtype: [
            draw(rng, dtype, shape, -2, 3), *[draw(rng, dtype, shape[-1:], 0.5, 2) for _ in range(count)],
        ]  # fmt: skip

    shapes = {"rows": (3, 37), "vector": (64,), "deep": (2, 2, 8), "one": (4, 1), "empty": (0, 5)}
    return tuple(
        Sample(make(shape, count), {"eps": 1e-5, **params}, name=f"{name} {count}")
        for count in vectors
        for name, shape in shapes.items()
    )


class RmsNorm(_Norm):
    """x / sqrt(mean(x²) + eps) over the last axis, times a weight for it if there is a second operand. The dtype is the
    one that holds those of both."""

    samples = _norm_samples((0, 1))
    tolerance = {dt.float16: 1, dt.bfloat16: 1, dt.float32: 6, dt.float64: 6}

    def check(self, x: ArrayType, *weight: ArrayType) -> None:
        self.check_vectors(x, weight, 1)

    def decompose(self, *xs: Node) -> Node:
        return rms_normed(xs[0], xs[1:], adding(self.eps))

    def reference(self, x: np.ndarray, *weight: np.ndarray) -> np.ndarray:
        wide = x.astype(np.float64)
        made = wide / np.sqrt(np.mean(np.square(wide), -1, keepdims=True) + self.eps) if x.size else wide
        for w in weight:
            made = made * w.astype(np.float64)
        return made


class LayerNorm(_Norm):
    """(x - mean) / sqrt(variance + eps) over the last axis, times a weight and plus a bias for it, as far as there are
    such operands. The dtype is the one that holds those of all."""

    weight: bool = False
    bias: bool = False
    samples = (
        *_norm_samples((0,)), *_norm_samples((1,), weight=True), *_norm_samples((1,), bias=True),
        *_norm_samples((2,), weight=True, bias=True),
    )  # fmt: skip
    tolerance = {dt.float16: 2, dt.bfloat16: 2, dt.float32: 8, dt.float64: 8}

    def check(self, x: ArrayType, *vectors: ArrayType) -> None:
        self.check_vectors(x, vectors, 2)
        need(len(vectors) == self.weight + self.bias, f"{1 + len(vectors)} operands")

    def decompose(self, *xs: Node) -> Node:
        last = 1 + self.weight
        return layer_normed(xs[0], xs[1:last], xs[last:], adding(self.eps))

    def _terms(self, x: np.ndarray, *vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(the result, the magnitudes of what it is a sum of), in float64."""
        wide = x.astype(np.float64)
        if not x.size:
            return wide, wide
        mean = np.mean(wide, -1, keepdims=True)
        scale = 1 / np.sqrt(np.mean(np.square(wide - mean), -1, keepdims=True) + self.eps)
        made, size = (wide - mean) * scale, (np.abs(wide) + np.mean(np.abs(wide), -1, keepdims=True)) * scale
        given = [v.astype(np.float64) for v in vectors]
        if self.weight:
            made, size = made * given[0], size * np.abs(given[0])
        return (made + given[-1], size + np.abs(given[-1])) if self.bias else (made, size)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return self._terms(*values)[0]

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        """In units of the magnitudes that are subtracted: where an element is near the mean, they cancel. The scale is
        as far off, in the same units, as the differences that it is made of."""
        return _error(results[0], *self._terms(*values))


def _error(result: np.ndarray, exact: np.ndarray, size: np.ndarray) -> float:
    """The largest error, in units of epsilon times a size; rows share the error of what was summed along them."""
    if not result.size:
        return 0.0
    unit = float(dt.finfo(dt.from_numpy(result.dtype)).eps) * np.max(size, -1, keepdims=True)
    error = np.abs(result.astype(np.float64) - exact)
    return float(np.max(np.where(error == 0, 0, error / np.where(unit == 0, 1, unit))))


# ---- rotations ----


def _cut(x: Node, start: Size, size: Size, step: int = 1) -> Node:
    """`size` elements along the last axis."""
    *lead, _ = x.shape
    return bind(Slice((*[0] * len(lead), start), (*lead, size), (*[1] * len(lead), step)), x)


class Rotate(Composite):
    """Pairs among the first `dims` features (the last axis) turned by angles whose cosines and sines are the other
    operands, which are repeated to fit. Pairs are neighbours if `traditional`, else features i and i + dims / 2. It is
    computed in float32."""

    dims: int
    traditional: bool
    dtypes = dt.FLOATS
    tolerance = dict.fromkeys(dt.FLOATS, 2)
    samples = tuple(
        Sample(
            lambda rng, dtype, shape=shape, angles=angles: [  # type: ignore[misc]
                draw(rng, dtype, shape, -2, 2), *[draw(rng, dt.float32, angles, -1, 1) for _ in range(2)],
            ],
            {"dims": dims, "traditional": traditional},
            smooth=False,  # differences of float32 say little
            name=f"{name} {'neighbours' if traditional else 'halves'}",
        )
        for traditional in (False, True)
        for name, dims, shape, angles in (
            ("all", 8, (2, 3, 5, 8), (5, 4)), ("some", 6, (2, 4, 9), (4, 3)), ("apart", 4, (2, 3, 2, 4), (2, 1, 2, 2)),
            ("one", 2, (1, 1, 2), (1, 1)), ("empty", 4, (2, 0, 4), (0, 2)),
        )
    )  # fmt: skip

    def check(self, a: ArrayType, cosines: ArrayType, sines: ArrayType) -> None:
        need(self.dims > 0 and self.dims % 2 == 0, f"{self.dims} features in pairs")
        need(a.ndim > 0 and self.dims <= a.shape[-1], f"{self.dims} features of {a}")
        need(a.dtype in dt.FLOATS and cosines.dtype is sines.dtype is dt.float32, f"operands {a}, {cosines}, {sines}")
        need(equal_shapes(cosines.shape, sines.shape) and 0 < cosines.ndim <= a.ndim, f"angles {cosines}, {sines}")
        turned = (*a.shape[:-1], self.dims // 2)[a.ndim - cosines.ndim :]
        fits = all(m == n or m == 1 for m, n in zip(cosines.shape, turned, strict=True))
        need(fits and cosines.shape[-1] == self.dims // 2, f"angles {cosines} for {a}")

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(kinds[0].shape, kinds[0].dtype)

    def decompose(self, *xs: Node) -> Node:
        a, cosines, sines = xs
        half, width = self.dims // 2, a.shape[-1]
        whole = same_shape((width,), (self.dims,))
        turned = astype(a if whole else _cut(a, 0, self.dims), dt.float32)
        step, second = (2, 1) if self.traditional else (1, half)
        x, y = _cut(turned, 0, half, step), _cut(turned, second, half, step)
        c, s = _repeated(cosines, x.shape), _repeated(sines, x.shape)
        parts = [astype(x * c - y * s, a.dtype), astype(x * s + y * c, a.dtype)]
        last = a.ndim - 1
        if self.traditional:
            pairs = bind(Concatenate(last + 1), *[reshape(part, (*part.shape, 1)) for part in parts])
            made = reshape(pairs, (*a.shape[:-1], self.dims))
        else:
            made = bind(Concatenate(last), *parts)
        return made if whole else bind(Concatenate(last), made, _cut(a, self.dims, width - self.dims))

    def _turned(self, sign: float, a: np.ndarray, c: np.ndarray, s: np.ndarray) -> np.ndarray:
        """The result in float64, or with a sign of 1, the magnitudes of what it is a sum of."""
        made, half = a.astype(np.float64), self.dims // 2
        first, second = (
            (np.s_[..., 0 : self.dims : 2], np.s_[..., 1 : self.dims : 2])
            if self.traditional
            else (np.s_[..., :half], np.s_[..., half : self.dims])
        )
        x, y = made[first].copy(), made[second].copy()
        made[first], made[second] = x * c + sign * y * s, x * s + y * c
        return made

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return self._turned(-1.0, *values)

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        """In units of the magnitudes that are added, in the dtype that it is computed in."""
        size = self._turned(1.0, *[np.abs(v) for v in values])
        kind = dt.from_numpy(results[0].dtype)
        coarse = max(float(dt.finfo(kind).eps), float(dt.finfo(dt.float32).eps))
        return _error(results[0], self.reference(*values), size) * float(dt.finfo(kind).eps) / coarse
