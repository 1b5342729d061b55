"""Incomplete gamma and beta functions and `logit`, with SciPy's names and meanings.

All are computed in float64 and rounded once. A power series or a continued fraction is summed for each element until it
no longer changes, in about sqrt(a) steps where x is near a. The derivative in x is the density; those in the parameters
are the derivatives of the same series, to about ten digits: no closed form has them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from weft import dtypes as dt
from weft.core._common import ArrayLike, array, astype, broadcast_node, broadcast_shapes, plain, reshape, to_node, wrap
from weft.core.elementwise import (
    abs,
    arctanh,
    equal,
    exp,
    expm1,
    gammaln,
    isnan,
    log,
    log1p,
    maximum,
    minimum,
    sqrt,
    where,
    xlogy,
)
from weft.core.looping import while_loop
from weft.core.transforming import jvp, vmap
from weft.dtypes import Dtype
from weft.graph.dims import prod
from weft.transforms.custom import custom_function

Stream = Any
Function = Callable[..., array]

_EPS = 2.0**-56
"""Where a series stops: some digits below those of float64, because derivatives converge a little later."""
_ASIDE = 2.0**-20
"""How far beside a parameter, by the distance over which functions change, derivatives in it are taken, on both sides:
at a whole number a fraction ends early, and its derivative would too. It leaves about ten digits."""
_TINY = 1e-300
_MOST = 1 << 17
"""Steps; enough for parameters up to about 10**8."""

_LARGE = 10.0
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
"""log gamma(a) beyond Stirling's formula, in odd powers of 1 / a."""
_LOG_GAMMA = (
    -0.5772156649015329, 0.8224670334241132, -0.40068563438653143, 0.27058080842778454, -0.20738555102867398,
    0.1695571769974082, -0.14404989676884612, 0.12550966952474304, -0.11133426586956469, 0.1000994575127818,
    -0.09095401714582904, 0.08335384054610900, -0.0769325164113522, 0.07143294629536134, -0.06666870588242046,
    0.06250095514121304, -0.058823978658684585, 0.055555767627403614, -0.05263167937961666, 0.05000004769810169,
    -0.04761907033014223,
)  # fmt: skip
"""log gamma(1 + a) in powers of a, from the first on."""


# ---- operands ----


def _operands(name: str, *given: ArrayLike) -> tuple[list[array], Dtype]:
    """Real operands in one shape as float64, and the dtype of the result."""
    numbers = [plain(a) for a in given]
    nodes = [to_node(a) for a in numbers]
    dtype: Dtype | None = None
    for number, node in zip(numbers, nodes, strict=True):
        if node.dtype.is_complex:
            raise ValueError(f"[{name}] is defined for real numbers, not for {node.dtype.name}.")
        if not isinstance(number, (bool, int, float)):  # numbers take the dtype of arrays
            dtype = node.dtype if dtype is None else dt.promote(dtype, node.dtype)
    shape = broadcast_shapes(name, *(node.shape for node in nodes))
    wide = [wrap(broadcast_node(astype(node, dt.float64), shape)) for node in nodes]
    return wide, dt.inexact_of(dt.float32 if dtype is None else dtype)


def _each(function: Function, *operands: array) -> array:
    """A function of numbers, for each element; each has as many steps as it needs."""
    shape = operands[0]._node.shape
    count = prod(shape)
    flat = [wrap(reshape(x._node, (count,))) for x in operands]
    return wrap(reshape(vmap(function)(*flat)._node, shape))


def _with_density(value: Function, density: Function, sign: float = 1.0) -> custom_function:
    """`value(*parameters, x)` for arrays, with sign * `density` as its derivative in x; by each parameter, what was
    summed is differentiated."""

    def slope(position: int, primals: tuple[array, ...]) -> array:
        if position == len(primals) - 1:
            return density(*primals) * sign
        tangents = [x * 0 + (1.0 if i == position else 0.0) for i, x in enumerate(primals)]
        found = []
        for side in (-_ASIDE, _ASIDE):
            near = [x + side * minimum(x, sqrt(x)) if i == position else x for i, x in enumerate(primals)]
            found.append(jvp(lambda *xs: _each(value, *xs), near, tangents)[1][0])
        return (found[0] + found[1]) * 0.5  # type: ignore[no-any-return]

    def forward(primals: tuple[array, ...], tangents: tuple[array | None, ...]) -> array:
        parts = [slope(i, primals) * t for i, t in enumerate(tangents) if t is not None]
        return sum(parts[1:], parts[0])

    def backward(primals: tuple[array, ...], cotangent: array, out: array) -> tuple[array, ...]:
        return tuple(slope(i, primals) * cotangent for i in range(len(primals)))

    made = custom_function(lambda *xs: _each(value, *xs))
    return made.jvp(forward).vjp(backward)


# ---- gamma ----


def _stirling(a: array) -> array:
    inverse = 1.0 / (a * a)
    total = a * 0.0
    for factor in reversed(_STIRLING):
        total = total * inverse + factor
    return total / a


def _log_gamma_1(a: array) -> array:
    """log gamma(1 + a), to the last digits also for tiny a."""
    small = a < 0.125
    near = where(small, a, 0.0)
    total = near * 0.0
    for factor in reversed(_LOG_GAMMA):
        total = (total + factor) * near
    return where(small, total, gammaln(1.0 + where(small, 1.0, a)))


def _weight(a: array, x: array) -> array:
    """x**a * exp(-x) / gamma(1 + a), for finite a > 0 and x >= 0."""
    large = a > _LARGE
    few, many = where(large, 1.0, a), where(large, a, _LARGE)
    plain_form = exp(xlogy(few, x) - x - _log_gamma_1(few))
    away = (where(large, x, many) - many) / many
    around = many * (away - log1p(maximum(away, -1.0)))
    stirling = exp(-around - _stirling(many)) / sqrt(2 * math.pi * many)
    return where(large, stirling, plain_form)


def _power_series(a: array, x: array) -> array:
    """The sum of x**n / ((a + 1) ... (a + n)) over n from 0."""

    def go_on(state: Any) -> array:
        n, term, total = state
        return (term > total * _EPS) & (n < _MOST)  # type: ignore[no-any-return]

    def step(state: Any) -> Any:
        n, term, total = state
        term = term * (x / (a + n))
        return n + 1.0, term, total + term

    one = a * 0.0 + 1.0
    return while_loop(go_on, step, (one, one, one))[2]  # type: ignore[no-any-return]


def _gamma_fraction(a: array, x: array) -> array:
    """gamma(a, x) * exp(x) / x**a: the continued fraction of the upper function, by Lentz's method."""

    def go_on(state: Any) -> array:
        n, _, _, _, _, change = state
        return (abs(change - 1.0) > _EPS * 4) & (n < _MOST)  # type: ignore[no-any-return]

    def step(state: Any) -> Any:
        n, b, c, d, h, _ = state
        factor = n * (a - n)
        b = b + 2.0
        d = 1.0 / _away_from_zero(factor * d + b)
        c = _away_from_zero(b + factor / c)
        return n + 1.0, b, c, d, h * (d * c), d * c

    b = x + 1.0 - a
    d = 1.0 / _away_from_zero(b)
    one = a * 0.0 + 1.0
    return while_loop(go_on, step, (one, b, one / _TINY, d, d, one * 2.0))[4]  # type: ignore[no-any-return]


def _away_from_zero(x: array) -> array:
    return where(abs(x) < _TINY, _TINY, x)


def _small_upper(a: array, x: array) -> array:
    """The upper function for small x and smaller a, without taking a number near 1 from 1."""

    def go_on(state: Any) -> array:
        n, power, total = state
        return (abs(power) > abs(total) * _EPS) & (n < _MOST)  # type: ignore[no-any-return]

    def step(state: Any) -> Any:
        n, power, total = state
        power = power * (-x / n)
        return n + 1.0, power, total + power / (a + n)

    one = a * 0.0 + 1.0
    total = while_loop(go_on, step, (one, one, a * 0.0))[2]
    scale = a * log(x) - _log_gamma_1(a)
    return -expm1(scale) - exp(scale) * a * total


def _gamma(a: array, x: array, upper: bool) -> array:
    """One element of gammainc or gammaincc."""
    proper = (a > 0) & (x > 0) & (a < math.inf) & (x < math.inf)
    p, at = where(proper, a, 1.0), where(proper, x, 1.0)
    tail = (at > 1.1) & (at > p)
    small = (at <= 1.1) & (p < where(at < 0.5, -0.4 / log(where(at < 0.5, at, 0.5)), 0.75 * at))
    weight = _weight(p, at)
    lower = weight * _power_series(where(tail | small, 1.0, p), where(tail | small, 0.0, at))
    beyond = weight * p * _gamma_fraction(where(tail, p, 1.0), where(tail, at, 100.0))
    rest = _small_upper(where(small, p, 1.0), where(small, at, 1e-3))
    if upper:
        found = where(tail, beyond, where(small, rest, 1.0 - lower))
    else:
        found = where(tail, 1.0 - beyond, where(small, 1.0 - rest, lower))
    nothing, everything = (1.0, 0.0) if upper else (0.0, 1.0)
    at_start = equal(x, 0) | equal(a, math.inf)
    at_end = equal(a, 0) | equal(x, math.inf)
    found = where(at_start, nothing, where(at_end, everything, found))
    bad = (a < 0) | (x < 0) | isnan(a) | isnan(x) | (at_start & at_end)
    return where(bad, math.nan, found)


def _gamma_density(a: array, x: array) -> array:
    """x**(a - 1) * exp(-x) / gamma(a)."""
    large = a > _LARGE
    safe = where(x > 0, x, 1.0)
    far = where(x > 0, _weight(where(large, a, _LARGE), safe) * a / safe, 0.0)
    few = where(large, 1.0, a)
    return where(large, far, exp(xlogy(few - 1.0, x) - x - gammaln(few)))


_LOWER = _with_density(lambda a, x: _gamma(a, x, False), _gamma_density)
_UPPER = _with_density(lambda a, x: _gamma(a, x, True), _gamma_density, -1.0)


def gammainc(a: ArrayLike, x: ArrayLike, /, *, stream: Stream = None) -> array:
    """The regularized lower incomplete gamma function: the part of gamma(a) that lies below x, from 0 to 1.

    >>> gammainc(1.0, array([0.0, 1.0]))
    array([0, 0.632121], dtype=float32)
    """
    wide, dtype = _operands("gammainc", a, x)
    return _LOWER(*wide).astype(dtype)  # type: ignore[no-any-return]


def gammaincc(a: ArrayLike, x: ArrayLike, /, *, stream: Stream = None) -> array:
    """1 - gammainc(a, x), accurate where that is near 1.

    >>> gammaincc(1.0, array([0.0, 50.0]))
    array([1, 1.92875e-22], dtype=float32)
    """
    wide, dtype = _operands("gammaincc", a, x)
    return _UPPER(*wide).astype(dtype)  # type: ignore[no-any-return]


# ---- beta ----


def _log_beta(a: array, b: array) -> array:
    return gammaln(a) + gammaln(b) - gammaln(a + b)


def _beta_fraction(a: array, b: array, x: array) -> array:
    """The continued fraction of the incomplete beta function, by Lentz's method."""

    def go_on(state: Any) -> array:
        n, _, _, _, change = state
        return (abs(change - 1.0) > _EPS * 4) & (n < _MOST)  # type: ignore[no-any-return]

    def step(state: Any) -> Any:
        n, c, d, h, _ = state
        even = n * (b - n) * x / ((a + 2.0 * n - 1.0) * (a + 2.0 * n))
        d = 1.0 / _away_from_zero(1.0 + even * d)
        c = _away_from_zero(1.0 + even / c)
        h = h * (d * c)
        odd = -(a + n) * (a + b + n) * x / ((a + 2.0 * n) * (a + 2.0 * n + 1.0))
        d = 1.0 / _away_from_zero(1.0 + odd * d)
        c = _away_from_zero(1.0 + odd / c)
        return n + 1.0, c, d, h * (d * c), d * c

    one = x * 0.0 + 1.0
    d = 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    return while_loop(go_on, step, (one, one, d, d, one * 2.0))[3]  # type: ignore[no-any-return]


def _beta(a: array, b: array, x: array) -> array:
    """One element of betainc."""
    proper = (a > 0) & (b > 0) & (x > 0) & (x < 1) & (a < math.inf) & (b < math.inf)
    p, q, at = (where(proper, value, other) for value, other in ((a, 1.0), (b, 1.0), (x, 0.5)))
    turned = at > (p + 1.0) / (p + q + 2.0)
    weight = exp(p * log(at) + q * log1p(-at) - _log_beta(p, q))
    first, second, part = where(turned, q, p), where(turned, p, q), where(turned, 1.0 - at, at)
    found = weight * _beta_fraction(first, second, part) / first
    found = where(turned, 1.0 - found, found)
    found = where(proper, found, where(equal(x, 1) | equal(a, 0) | equal(b, math.inf), 1.0, 0.0))
    odd = (equal(a, 0) & equal(b, 0)) | (equal(a, math.inf) & equal(b, math.inf))
    bad = (a < 0) | (b < 0) | (x < 0) | (x > 1) | isnan(a) | isnan(b) | isnan(x) | odd
    return where(bad, math.nan, where(equal(x, 0), 0.0, where(equal(x, 1), 1.0, found)))


def _beta_density(a: array, b: array, x: array) -> array:
    return exp(xlogy(a - 1.0, x) + xlogy(b - 1.0, 1.0 - x) - _log_beta(a, b))


_BETA = _with_density(_beta, _beta_density)


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike, /, *, stream: Stream = None) -> array:
    """The regularized incomplete beta function: the part of beta(a, b) that lies below x, from 0 to 1.

    >>> betainc(2.0, 3.0, array([0.0, 0.5, 1.0]))
    array([0, 0.6875, 1], dtype=float32)
    """
    wide, dtype = _operands("betainc", a, b, x)
    return _BETA(*wide).astype(dtype)  # type: ignore[no-any-return]


# ---- logit ----


def logit(x: ArrayLike, /, *, stream: Stream = None) -> array:
    """log(x / (1 - x)), the inverse of `sigmoid`.

    >>> logit(array([0.0, 0.5, 1.0]))
    array([-inf, 0, inf], dtype=float32)
    """
    given = to_node(x)
    if given.dtype.is_complex:
        raise ValueError(f"[logit] is defined for real numbers, not for {given.dtype.name}.")
    dtype = dt.inexact_of(given.dtype)
    wide = wrap(astype(given, dt.float32 if dtype in dt.HALVES else dtype))
    middle = abs(wide - 0.5) <= 0.25  # where a quotient near 1 would lose the digits of its logarithm
    near, far = where(middle, 2.0 * wide - 1.0, 0.0), where(middle, 0.25, wide)
    return where(middle, 2.0 * arctanh(near), log(far / (1.0 - far))).astype(dtype)  # type: ignore[no-any-return]
