"""Fourier transforms along one axis: of complex numbers, of reals to the half of their spectrum that says all, and back
from that half. Transforms over several axes are compositions of these.

A transform of n elements is the product with the symmetric matrix exp(-2 pi i j k / n) (inverse: its conjugate) and
with a factor that `norm` says, as in NumPy: 1 / n for the inverse ("backward"), for the other one ("forward"), or its
root for both ("ortho").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import ArrayType, Node, Size, kind_of
from weft.primitives.base import KernelOperation, Linear, Sample, bind, constant, move_batch_to_front, zeros
from weft.primitives.checks import check_axis, need
from weft.primitives.creation import Extent, Iota
from weft.primitives.elementwise import BitwiseOr, Equal, Select, astype, draw
from weft.primitives.views import Broadcast

NORMS: Final = ("backward", "ortho", "forward")
COMPLEX_OF: Final = {dt.float32: dt.complex64, dt.float64: dt.complex128}


def _samples(extra: dict[str, object], *more: tuple[str, tuple[int, ...], int, str]) -> tuple[Sample, ...]:
    cases = (
        ("eight", (8,), 0, "backward"), ("rows", (3, 12), 1, "ortho"), ("columns", (10, 5), 0, "forward"),
        ("middle", (2, 6, 3), 1, "backward"), ("one", (4, 1), 1, "ortho"), ("two", (2, 3), 0, "backward"),
        ("prime", (17,), 0, "backward"), ("halves", (2, 64), 1, "backward"), ("halves_across", (72, 5), 0, "ortho"),
        ("wave_across", (19, 6), 0, "forward"), ("few_across", (65, 2), 0, "backward"), ("odd", (3, 45), 1, "backward"),
        ("empty", (0, 4), 1, "backward"), *more,
    )  # fmt: skip
    return tuple(
        Sample(
            lambda rng, dtype, shape=shape: [draw(rng, dtype, shape, -1, 1)],  # type: ignore[misc]
            {"axis": axis, "norm": norm, **extra},
            name=name,
        )
        for name, shape, axis, norm in cases
    )


class Fourier(Linear, KernelOperation):
    """What the transforms have in common."""

    axis: int
    norm: str
    tolerance: ClassVar = {dt.float32: 8, dt.float64: 8, dt.complex64: 8, dt.complex128: 8}

    def check(self, x: ArrayType) -> None:
        self.check_dtypes(x)
        check_axis(self.axis, x.ndim)
        need(self.norm in NORMS, f"norm {self.norm!r}")

    def length(self, out: ArrayType, x: ArrayType) -> Size:
        """The number of elements, of whichever of the two has all of them."""
        return x.shape[self.axis]

    def scale_of(self, n: int, inverse: bool) -> float:
        """The factor of a transform of this length."""
        if self.norm == "ortho":
            return 1.0 / math.sqrt(n)
        return 1.0 / n if inverse == (self.norm == "backward") else 1.0

    @property
    def dual(self) -> str:
        """The norm for which the transform in the other direction has the same factor."""
        return {"backward": "forward", "forward": "backward"}.get(self.norm, self.norm)

    def resized(self, kind: ArrayType, n: Size, dtype: Dtype) -> ArrayType:
        """The kind of a result with n elements along the axis."""
        return kind_of((*kind.shape[: self.axis], n, *kind.shape[self.axis + 1 :]), dtype)

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        """5 n log2 n for complex numbers, as everywhere; half of it for reals."""
        n = float(self.length(out, kinds[0]))
        whole = float(max(out.size, kinds[0].size))
        return 5.0 * whole * math.log2(n) if n > 1 else whole

    def unbroken(self, *kinds: ArrayType) -> float:
        """One row."""
        n = float(kinds[0].shape[self.axis])
        return 5.0 * n * math.log2(n) if n > 1 else n

    def backward_error(self, values: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> float:
        """The error relative to the result, both by their 2-norms along the axis, in epsilon times log2 n."""
        got = results[0]
        wide = values[0].astype(np.clongdouble if values[0].dtype.kind == "c" else np.longdouble)
        exact = self.exact(wide)
        norm = np.sqrt(np.sum(np.abs(exact) ** 2, axis=self.axis))
        error = np.sqrt(np.sum(np.abs(got - exact) ** 2, axis=self.axis))
        if not norm.size:
            return 0.0
        n = max(got.shape[self.axis], values[0].shape[self.axis])
        unit = float(np.finfo(got.dtype).eps) * max(1.0, math.log2(n))
        worst = np.max(np.where(norm > 0, error / np.where(norm > 0, norm, 1), np.where(error > 0, np.inf, 0)))
        return float(worst) / unit

    def exact(self, x: np.ndarray) -> np.ndarray:
        """The transform in the precision of the operand."""
        raise NotImplementedError

    def reference(self, x: np.ndarray) -> np.ndarray:
        kind = np.complex128 if x.dtype.kind == "c" else np.float64
        out = self.infer(kind_of(x.shape, dt.from_numpy(x.dtype))).dtype
        return np.asarray(self.exact(x.astype(kind)), out.np)


class FourierTransform(Fourier):
    """The transform of complex numbers, or its inverse; the adjoint is the other one."""

    inverse: bool
    dtypes = (dt.complex64, dt.complex128)
    samples = (
        *_samples({"inverse": False}, ("long", (2, 3001), 1, "backward")),
        *(
            Sample(s.make, {**(s.params or {}), "inverse": True}, name=f"inverse_{s.name}")
            for s in _samples({"inverse": True})
            if s.name in ("rows", "halves", "wave_across", "prime", "columns")
        ),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kinds[0]

    def exact(self, x: np.ndarray) -> np.ndarray:
        if not x.shape[self.axis]:
            return x
        transform = np.fft.ifft if self.inverse else np.fft.fft
        return transform(x, axis=self.axis, norm=self.norm)  # type: ignore[no-any-return, arg-type]

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        return bind(FourierTransform(self.axis, self.dual, not self.inverse), cotangent)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = move_batch_to_front(inputs[0], axes[0], size)
        return bind(FourierTransform(self.axis + 1, self.norm, self.inverse), front), 0


class RealFourierTransform(Fourier):
    """The spectrum of n reals at 0 to n / 2. Linear over the reals: the adjoint takes the real part of what the other
    half of the spectrum would mirror."""

    dtypes = (dt.float32, dt.float64)
    samples = _samples({}, ("long", (2, 3000), 1, "backward"), ("long_across", (130, 20), 0, "ortho"))

    def infer(self, *kinds: ArrayType) -> ArrayType:
        (x,) = kinds
        return self.resized(x, x.shape[self.axis] // 2 + 1, COMPLEX_OF[x.dtype])

    def check(self, x: ArrayType) -> None:
        super().check(x)
        need(x.shape[self.axis] >= 1, "no elements along the axis")

    def exact(self, x: np.ndarray) -> np.ndarray:
        return np.fft.rfft(x, axis=self.axis, norm=self.norm)  # type: ignore[no-any-return, arg-type]

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        n = primals[0].shape[self.axis]
        halved = weighted(cotangent, self.axis, n, 0.5)
        return bind(RealFourierInverse(self.axis, self.dual, n), halved)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = move_batch_to_front(inputs[0], axes[0], size)
        return bind(RealFourierTransform(self.axis + 1, self.norm), front), 0


class RealFourierInverse(Fourier):
    """The n reals whose spectrum at 0 to n / 2 is given; the imaginary parts at its ends are not read."""

    n: Size
    dtypes = (dt.complex64, dt.complex128)
    samples = tuple(
        Sample(
            lambda rng, dtype, shape=shape: [draw(rng, dtype, shape, -1, 1)],  # type: ignore[misc]
            {"axis": axis, "norm": norm, "n": n},
            name=name,
        )
        for name, shape, axis, norm, n in (
            ("even", (5,), 0, "backward", 8), ("odd", (3, 5), 1, "ortho", 9), ("one", (4, 1), 1, "forward", 1),
            ("two", (2, 3), 0, "backward", 2), ("columns", (7, 5), 0, "backward", 12),
            ("wide", (7, 20), 0, "ortho", 13),
            ("halves", (2, 65), 1, "backward", 128), ("halves_across", (66, 6), 0, "forward", 130),
            ("prime", (10,), 0, "backward", 19), ("long", (2, 1501), 1, "backward", 3000),
            ("few", (70, 2), 0, "ortho", 139), ("empty", (0, 4), 1, "backward", 6),
        )
    )  # fmt: skip

    def infer(self, *kinds: ArrayType) -> ArrayType:
        (x,) = kinds
        return self.resized(x, self.n, dt.real_of(x.dtype))

    def check(self, x: ArrayType) -> None:
        super().check(x)
        need(self.n >= 1, f"a length of {self.n}")
        need(x.shape[self.axis] == self.n // 2 + 1, f"{x} for a result of {self.n} elements")

    def length(self, out: ArrayType, x: ArrayType) -> Size:
        return out.shape[self.axis]

    def exact(self, x: np.ndarray) -> np.ndarray:
        n = int(self.n)
        return np.fft.irfft(x, n, axis=self.axis, norm=self.norm)  # type: ignore[no-any-return, arg-type]

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        spectrum = bind(RealFourierTransform(self.axis, self.dual), cotangent)
        return weighted(spectrum, self.axis, self.n, 2.0)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        front = move_batch_to_front(inputs[0], axes[0], size)
        return bind(RealFourierInverse(self.axis + 1, self.norm, self.n), front), 0


def weighted(x: Node, axis: int, n: Size, weight: float) -> Node:
    """Half of a spectrum, times a number where the other half mirrors it: everywhere but at 0 and, for an even length,
    at n / 2."""
    count = x.shape[axis]
    k = bind(Iota((count,)))
    at_end = bind(Equal(), k, zeros(k.kind))
    if n % 2 == 0:
        last = bind(Broadcast((count,), ()), bind(Extent(count - 1)))
        at_end = bind(BitwiseOr(), at_end, bind(Equal(), k, last))
    real = kind_of((count,), dt.real_of(x.dtype))
    weights = astype(bind(Select(), at_end, constant(1, real), constant(weight, real)), x.dtype)
    return x * bind(Broadcast(x.shape, (axis,)), weights)
