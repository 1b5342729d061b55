"""Logarithms to the bases 2 and 10 (the natural one lives in elementwise.py, which needs it for its own rules)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.codegen import math as vecmath
from weft.codegen.builder import Builder, Complex
from weft.graph.node import Node
from weft.primitives.base import full_like
from weft.primitives.elementwise import Partials, Smooth, samples


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
