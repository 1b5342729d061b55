"""Special functions: gamma, error and Bessel functions, logarithms of differences, for statistics and SciPy users."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from weft import dtypes as dt
from weft.graph.node import ArrayType, Node
from weft.lazy import lazy
from weft.llvm.builder import Builder, Value
from weft.primitives.base import Sample, bind, full_like
from weft.primitives.checks import need
from weft.primitives.elementwise import Expm1, Partials, Smooth, draw, equal, exp, log, samples, select, sign

if TYPE_CHECKING:
    from weft.codegen import math as vecmath
else:
    vecmath = lazy("weft.codegen.math")

_ROOT = 2 / math.sqrt(math.pi)


class Special(Smooth):
    """A function whose reference is SciPy's of the same name."""

    dtypes = dt.FLOATS
    cost = 60
    tolerance = {dt.float32: 16, dt.float64: 64, dt.float16: 1, dt.bfloat16: 1}
    scipy: ClassVar[str] = ""

    def reference(self, *values: np.ndarray) -> np.ndarray:
        import scipy.special  # only the reference needs it, and it takes longer to import than all of Weft

        found = getattr(scipy.special, self.scipy)(*[x.astype(np.float64) for x in values])
        return np.asarray(found).astype(values[0].dtype)


class GammaLn(Special):
    """log|gamma(x)|."""

    samples = samples((0.5, 6.0))
    scipy = "gammaln"

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        tiny = np.abs(x) < 1e-20  # SciPy overflows where 1 / x does
        near = -np.log(np.where(tiny & (x != 0), np.abs(x), 1).astype(np.float64))
        found = np.where(tiny & (x != 0), near, super().reference(x))
        for root, slope in (
            (1.0, -np.euler_gamma),
            (2.0, 1 - np.euler_gamma),
        ):  # near its roots SciPy's is only absolutely right
            away = x.astype(np.float64) - root
            found = np.where(np.abs(away) < 1e-9, slope * away + 0.0, found)
        return np.where(np.isneginf(x), np.inf, found).astype(x.dtype)  # as C has it

    def partials(self, out: Node, x: Node) -> Partials:
        return (bind(Digamma(), x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.gammaln(b, x)


class Digamma(Special):
    """The derivative of gammaln."""

    samples = samples((2.0, 6.0))
    scipy = "digamma"

    def partials(self, out: Node, x: Node) -> Partials:
        return (bind(Polygamma(1), x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return b.choose(b.abs(x) < 1e-20, -1.0 / x, vecmath.digamma(b, x))  # 1 / x alone, which may overflow, near 0


_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_TERMS = 12
MOST_DERIVATIVES = 128
"""The factorials of higher orders are near the end of float64."""


class Polygamma(Special):
    """The `order`-th derivative of digamma (order >= 1), for x > 0; NaN below."""

    order: int
    cost = 200
    samples = tuple(
        Sample(lambda rng, dtype: [draw(rng, dtype, (3, 37), 0.5, 6.0)], {"order": order}, name=f"order {order}")
        for order in (1, 2)
    )

    def check(self, *kinds: ArrayType) -> None:
        super().check(*kinds)
        need(1 <= self.order <= MOST_DERIVATIVES, f"order {self.order}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        from scipy.special import polygamma  # see Special

        (x,) = values
        return np.where(x < 0, np.nan, polygamma(self.order, np.abs(x).astype(np.float64))).astype(x.dtype)

    def partials(self, out: Node, x: Node) -> Partials:
        return (bind(Polygamma(self.order + 1), x),)

    def emit(self, b: Builder, x: Any) -> Any:
        """n! times the sum of (x + k) ** -(n + 1): the first terms one by one, the rest by Euler and Maclaurin, all in
        float64."""
        n, y = self.order, b.cast(x, dt.float64)
        y = b.choose(y.eq(0.0), 0.0, y)  # both zeros are the pole from above
        total = b.like(y, 0.0)
        for k in range(_TERMS):
            total = total + _power(1.0 / (y + float(k)), n + 1)
        inverse = 1.0 / (y + float(_TERMS))
        last = _power(inverse, n)
        tail = last * (1.0 / n) + last * inverse * 0.5
        term, factor = last * inverse * inverse, (n + 1) / 2.0
        for j, number in enumerate(_BERNOULLI, 1):
            tail = tail + term * (number * factor)
            factor *= (n + 2 * j) * (n + 2 * j + 1) / ((2 * j + 1) * (2 * j + 2))
            term = term * inverse * inverse
        result = (total + tail) * (math.factorial(n) * (1.0 if n % 2 else -1.0))
        return b.cast(b.choose(y >= 0.0, result, float("nan")), x.dtype)


def _power(x: Value, n: int) -> Value:
    result = x
    for _ in range(n - 1):
        result = result * x
    return result


class Erfc(Special):
    """1 - erf(x), accurate where erf is near 1."""

    scipy = "erfc"

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(x, -_ROOT) * exp(-(x * x)),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.erfc(b, x)


class Erfcx(Special):
    """exp(x * x) * erfc(x), without overflow."""

    scipy = "erfcx"

    def partials(self, out: Node, x: Node) -> Partials:
        return ((x + x) * out - full_like(x, _ROOT),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.erfcx(b, x)


class XLogY(Special):
    """x * log(y), 0 where x is 0."""

    samples = samples((0.5, 3.0), (0.5, 3.0))
    scipy = "xlogy"

    def partials(self, out: Node, x: Node, y: Node) -> Partials:
        zero = equal(x, full_like(x, 0))
        return log(y), select(zero, full_like(x, 0), x / y)

    def emit(self, b: Builder, x: Any, y: Any) -> Any:
        return vecmath.xlogy(b, x, y)


class Log1mExp(Special):
    """log(1 - exp(x)) for x <= 0, accurate at both ends."""

    samples = samples((-3.0, -0.25))

    def reference(self, *values: np.ndarray) -> np.ndarray:
        wide = values[0].astype(np.float64)
        return np.where(wide > -math.log(2), np.log(-np.expm1(wide)), np.log1p(-np.exp(wide))).astype(values[0].dtype)

    def partials(self, out: Node, x: Node) -> Partials:
        return (full_like(x, -1) / bind(Expm1(), -x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.log1mexp(b, x)


class I0(Special):
    """The modified Bessel function of the first kind, order 0."""

    scipy = "i0"

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        return np.where(np.isinf(x), np.inf, super().reference(np.where(np.isinf(x), 0, x))).astype(x.dtype)

    def partials(self, out: Node, x: Node) -> Partials:
        return (bind(I1(), x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.i0(b, x)


class I1(Special):
    """The modified Bessel function of the first kind, order 1."""

    scipy = "i1"

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        special = np.isinf(x) | (x == 0)
        return np.where(special, x, super().reference(np.where(special, 1, x))).astype(x.dtype)

    def partials(self, out: Node, x: Node) -> Partials:
        return (bind(I0(), x) - _over(out, x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.i1(b, x)


class I0e(Special):
    """exp(-|x|) * i0(x)."""

    scipy = "i0e"

    def partials(self, out: Node, x: Node) -> Partials:
        return (bind(I1e(), x) - sign(x) * out,)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.i0e(b, x)


class I1e(Special):
    """exp(-|x|) * i1(x)."""

    scipy = "i1e"

    def reference(self, *values: np.ndarray) -> np.ndarray:
        (x,) = values
        return np.where(x == 0, x, super().reference(x)).astype(x.dtype)

    def partials(self, out: Node, x: Node) -> Partials:
        return (bind(I0e(), x) - sign(x) * out - _over(out, x),)

    def emit(self, b: Builder, x: Any) -> Any:
        return vecmath.i1e(b, x)


def _over(out: Node, x: Node) -> Node:
    """i1(x) / x, which is 1/2 at 0."""
    zero = equal(x, full_like(x, 0))
    return select(zero, full_like(x, 0.5), out / select(zero, full_like(x, 1), x))
