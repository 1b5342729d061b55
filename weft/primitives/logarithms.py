"""Logarithms to the bases 2 and 10, and of sums (the natural one lives in elementwise.py, which needs it for its own
rules)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.graph.node import Node
from weft.lazy import lazy
from weft.llvm.builder import Builder, Complex
from weft.primitives.base import Elementwise, full_like
from weft.primitives.elementwise import (
    INEXACT,
    Exp,
    Greater,
    Log1p,
    Partials,
    Smooth,
    binary,
    exp,
    samples,
    sigmoid,
)

if TYPE_CHECKING:
    from weft.codegen import math as vecmath
else:
    vecmath = lazy("weft.codegen.math")


class Log2(Smooth):
    """The logarithm to the base 2; exact for powers of 2."""

    samples = samples((0.5, 3.0))
    reference = staticmethod(np.log2)

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(x, 1 / math.log(2.0)) / x,)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_log2(b, x) if isinstance(x, Complex) else vecmath.log2(b, x)


class Log10(Smooth):
    """The logarithm to the base 10."""

    samples = samples((0.5, 3.0))
    reference = staticmethod(np.log10)

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(x, 1 / math.log(10.0)) / x,)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_log10(b, x) if isinstance(x, Complex) else vecmath.log10(b, x)


class LogAddExp(Elementwise):
    """log(e ** x + e ** y) without overflow; of complex numbers up to a multiple of 2 pi i, the imaginary part being
    near that of the larger operand."""

    samples = binary
    dtypes = INEXACT
    cost = 40
    cancels = True  # the larger operand and a logarithm
    tolerance = {
        dt.float32: 6,
        dt.float64: 4,
        dt.float16: 1,
        dt.bfloat16: 1,
        # The exponentials of two complex numbers may cancel.
        dt.complex64: 64,
        dt.complex128: 64,
    }

    def reference(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "c":
            return np.logaddexp(x, y)
        larger, smaller = np.where(x > y, x, y), np.where(x > y, y, x)
        with np.errstate(all="ignore"):
            gap = np.where(x == y, 0, smaller - larger)
            return larger + Log1p().reference(np.exp(gap))

    def partials(self, out: Node, x: Node, y: Node) -> tuple[Node, Node]:
        """e ** x and e ** y, divided by their sum."""
        if out.dtype.is_complex:
            return exp(x - out), exp(y - out)
        return sigmoid(x - y), sigmoid(y - x)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        if not isinstance(x, Complex):
            return vecmath.logaddexp(b, x, y)
        first = Greater().emit(b, x, y)
        larger, smaller = (b.select(first, *pair) for pair in ((x, y), (y, x)))
        assert isinstance(larger, Complex)
        assert isinstance(smaller, Complex)
        zero = Complex(b.like(x.re, 0.0), b.like(x.re, 0.0))
        gap = b.select(x.eq(y), zero, smaller - larger)  # infinities may be equal, and their difference is NaN
        return larger + Log1p().emit(b, Exp().emit(b, gap))
