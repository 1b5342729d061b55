"""Trigonometric and hyperbolic functions and their inverses (sin, cos and tanh live in elementwise.py).

Complex functions have the branch cuts of C99's Annex G, as NumPy's have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft import dtypes as dt
from weft.graph.node import Node
from weft.lazy import lazy
from weft.llvm.builder import Builder, Complex
from weft.primitives.base import Elementwise, bind, full_like
from weft.primitives.elementwise import Partials, Smooth, Sqrt, samples

if TYPE_CHECKING:
    from weft.codegen import math as vecmath
else:
    vecmath = lazy("weft.codegen.math")


def _inverse(x: Node) -> Node:
    return full_like(x, 1) / x


def _root(x: Node) -> Node:
    return bind(Sqrt(), x)


def _circle(x: Node) -> Node:
    """1 - x², without cancellation near 1."""
    one = full_like(x, 1)
    return (one - x) * (one + x)


# ---- angles ----


class Tan(Smooth):
    """tan(x), x in radians."""

    samples = samples((-1.2, 1.2))
    reference = staticmethod(np.tan)

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(out, 1) + out * out,)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_tan(b, x) if isinstance(x, Complex) else vecmath.tan(b, x)


class ArcSin(Smooth):
    """The angle in [-π/2, π/2] whose sine is x."""

    samples = samples((-0.9, 0.9))
    reference = staticmethod(np.arcsin)

    def partials(self, out: Node, x: Node) -> Partials:
        return (_inverse(_root(_circle(x))),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_arcsin(b, x) if isinstance(x, Complex) else vecmath.arcsin(b, x)


class ArcCos(Smooth):
    """The angle in [0, π] whose cosine is x."""

    samples = samples((-0.9, 0.9))
    reference = staticmethod(np.arccos)

    def partials(self, out: Node, x: Node) -> Partials:
        return (-_inverse(_root(_circle(x))),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_arccos(b, x) if isinstance(x, Complex) else vecmath.arccos(b, x)


class ArcTan(Smooth):
    """The angle in [-π/2, π/2] whose tangent is x."""

    samples = samples((-0.9, 0.9))
    reference = staticmethod(np.arctan)

    def partials(self, out: Node, x: Node) -> Partials:
        return (_inverse(full_like(x, 1) + x * x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_arctan(b, x) if isinstance(x, Complex) else vecmath.arctan(b, x)


class ArcTan2(Elementwise):
    """The angle in [-π, π] of the point (x, y), from the positive x axis; the operands are y, x."""

    samples = samples((-3.0, 3.0), (0.5, 3.0))
    dtypes = dt.FLOATS
    cost = 30
    reference = staticmethod(np.arctan2)
    tolerance = {dt.float32: 4, dt.float64: 2, dt.float16: 1, dt.bfloat16: 1}

    def partials(self, out: Node, y: Node, x: Node) -> Partials:
        inverse = _inverse(x * x + y * y)
        return x * inverse, -(y * inverse)

    def emit(self, b: Builder, y: Any, x: Any) -> Any:
        return vecmath.arctan2(b, y, x)


# ---- hyperbolic functions ----


class Sinh(Smooth):
    """The hyperbolic sine."""

    reference = staticmethod(np.sinh)

    def partials(self, out: Node, x: Node) -> Partials:
        return (bind(Cosh(), x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_sinh(b, x) if isinstance(x, Complex) else vecmath.sinh(b, x)


class Cosh(Smooth):
    """The hyperbolic cosine."""

    reference = staticmethod(np.cosh)

    def partials(self, out: Node, x: Node) -> Partials:
        return (bind(Sinh(), x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_cosh(b, x) if isinstance(x, Complex) else vecmath.cosh(b, x)


class ArcSinh(Smooth):
    """The inverse of the hyperbolic sine."""

    samples = samples((-0.9, 0.9))
    reference = staticmethod(np.arcsinh)

    def partials(self, out: Node, x: Node) -> Partials:
        return (_inverse(_root(full_like(x, 1) + x * x)),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_arcsinh(b, x) if isinstance(x, Complex) else vecmath.arcsinh(b, x)


class ArcCosh(Smooth):
    """The inverse of the hyperbolic cosine: not negative, NaN below 1."""

    samples = samples((1.1, 3.0))
    reference = staticmethod(np.arccosh)

    def partials(self, out: Node, x: Node) -> Partials:
        """Two roots, not one of the product: the cut of arccosh is that of their product."""
        one = full_like(x, 1)
        return (_inverse(_root(x - one) * _root(x + one)),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_arccosh(b, x) if isinstance(x, Complex) else vecmath.arccosh(b, x)


class ArcTanh(Smooth):
    """The inverse of the hyperbolic tangent: infinite at 1 and -1, NaN beyond."""

    samples = samples((-0.9, 0.9))
    reference = staticmethod(np.arctanh)

    def partials(self, out: Node, x: Node) -> Partials:
        return (_inverse(_circle(x)),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.complex_arctanh(b, x) if isinstance(x, Complex) else vecmath.arctanh(b, x)
