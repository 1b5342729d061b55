"""Special functions that `weft.core` does not have: those that PyTensor's scalar operations are called by. They take
arrays of one shape and dtype, and compute in float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor import special_kernels as kernels
from weft.frontends.pytensor.values import number_in

GROUP = 64
"""Threads of a kernel that are taken together."""


@functools.cache
def _kernel(function: Callable[..., None], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Any:
    return mx.fast.kernel(function.__name__, list(inputs), list(outputs), function, unchecked=True)


def _each(
    function: Callable[..., None], inputs: Sequence[str], outputs: Sequence[str], *given: array, tables: Any = ()
) -> list[array]:
    """The outputs of a kernel with one thread for each element."""
    shape = given[0].shape
    flat = [x.reshape([-1]) for x in given]
    size = flat[0].shape[0]
    if size == 0:
        return [given[0]] * len(outputs)
    made = _kernel(function, tuple(inputs), tuple(outputs))(
        inputs=[*flat, *tables], grid=(size, 1, 1), threadgroup=(GROUP, 1, 1), output_shapes=[(size,)] * len(outputs),
        output_dtypes=[mx.float64] * len(outputs),
    )  # fmt: skip
    return [x.reshape(shape) for x in made]


def wide(fun: Callable[..., array]) -> Callable[..., array]:
    """A function of float64 for arrays of any dtype, which its result has too."""

    @functools.wraps(fun)
    def converted(*xs: array) -> array:
        given = mx.broadcast_arrays(*[x.astype(mx.float64) for x in xs])
        return fun(*given).astype(xs[0].dtype)

    return converted


def _number(value: float) -> array:
    return number_in(value, mx.float64)


def _is_whole(x: array) -> array:
    return mx.floor(x) == x


def _is_odd(x: array) -> array:
    return mx.remainder(x, _number(2.0)) == _number(1.0)


def _sin_pi(x: array) -> array:
    """sin(pi x), right where it is 0."""
    part = x - _number(2.0) * mx.floor(x * 0.5)
    part = mx.where(part > 1.5, part - 2.0, mx.where(part > 0.5, 1.0 - part, part))
    return mx.sin(part * math.pi)


def _cos_pi(x: array) -> array:
    return _sin_pi(mx.abs(x) + 0.5)


# ---- Bessel functions ----


def _signed(v: array, x: array) -> array:
    """What a function of an order and |x| is multiplied with for x: NaN if the order is no whole number."""
    sign = mx.where(_is_odd(mx.abs(v)), _number(-1.0), _number(1.0))
    return mx.where(x < 0, mx.where(_is_whole(v), sign, _number(math.nan)), _number(1.0))


@wide
def jv(v: array, x: array) -> array:
    """The Bessel function of the first kind."""
    order, at = mx.abs(v), mx.abs(x)
    fine = (at > 0) & (at < math.inf) & (order < math.inf)
    j, y = _each(
        kernels.bessel_jy, ("order", "at"), ("first", "second"),
        mx.where(fine, order, _number(0.5)), mx.where(fine, at, _number(1.0)),
    )  # fmt: skip
    below = _cos_pi(order) * j - mx.where(_is_whole(v), _number(0.0), _sin_pi(order) * y)
    found = mx.where(v < 0, below, j)
    pole = mx.where(mx.floor(v * -1.0) % 2.0 == 0.0, _number(math.inf), _number(-math.inf))
    at_zero = mx.where(v == 0, _number(1.0), mx.where((v < 0) & ~_is_whole(v), -pole, _number(0.0)))
    found = mx.where(at == 0, at_zero, found)
    return mx.where(fine | ((at == 0) & (order < math.inf)), found, _number(math.nan)) * _signed(v, x)


def j0(x: array) -> array:
    return jv(mx.zeros_like(x), x)


def j1(x: array) -> array:
    return jv(mx.ones_like(x), x)


def _ik(order: array, at: array, fine: array) -> list[array]:
    return _each(
        kernels.bessel_ik, ("order", "at"), ("first", "second"),
        mx.where(fine, order, _number(0.5)), mx.where(fine, at, _number(1.0)),
    )  # fmt: skip


@wide
def ive(v: array, x: array) -> array:
    """The modified Bessel function of the first kind, times exp(-|x|)."""
    order, at = mx.abs(v), mx.abs(x)
    fine = (at > 0) & (at < math.inf) & (order < math.inf)
    i, k = _ik(order, at, fine)
    more = 2.0 / math.pi * _sin_pi(order) * (k * mx.exp(-2.0 * at))
    found = mx.where((v < 0) & ~_is_whole(v), i + more, i)
    at_zero = mx.where(v == 0, _number(1.0), mx.where((v < 0) & ~_is_whole(v), _number(math.inf), _number(0.0)))
    found = mx.where(at == 0, at_zero, found)
    return mx.where(fine | ((at == 0) & (order < math.inf)), found, _number(math.nan)) * _signed(v, x)


@wide
def kve(v: array, x: array) -> array:
    """The modified Bessel function of the second kind, times exp(x)."""
    order = mx.abs(v)
    fine = (x > 0) & (x < math.inf) & (order < math.inf)
    _, k = _ik(order, x, fine)
    return mx.where(fine, k, mx.where((x == 0) & (order < math.inf), _number(math.inf), _number(math.nan)))


# ---- hypergeometric ----


@wide
def hyp2f1(a: array, b: array, c: array, z: array) -> array:
    """The hypergeometric function 2F1 of real numbers, z < 1."""
    ends_a, ends_b = (a <= 0) & _is_whole(a), (b <= 0) & _is_whole(b)
    ends = ends_a | ends_b
    turned = (z < 0) & ~ends
    # (1 - z)**-a F(a, c - b; c; z / (z - 1)), with the smaller of a and b in front.
    swap = turned & (b < a)
    first, second = mx.where(swap, b, a), mx.where(swap, a, b)
    p, q = first, mx.where(turned, c - second, second)
    at = mx.where(turned, z / (z - 1.0), z)
    scale = mx.where(turned, mx.power(1.0 - z, -first), _number(1.0))
    # (1 - z)**(c - a - b) F(c - a, c - b; c; z) where the sum grows without end near 1.
    grows = (at > 0.5) & (c - p - q < 0) & ~ends
    scale = mx.where(grows, scale * mx.power(1.0 - at, c - p - q), scale)
    p, q = mx.where(grows, c - p, p), mx.where(grows, c - q, q)
    rest = c - p - q
    fine = ((at < 1) | ends) & ~mx.isinf(at)
    (value,) = _each(
        kernels.hypergeometric, ("first", "second", "third", "at"), ("out",),
        p, q, c, mx.where(fine, at, _number(0.0)),
    )  # fmt: skip
    value = value * scale
    at_one = _ratio_of_gammas(c, c - a - b, c - a, c - b)
    value = mx.where((z == 1) & ~ends, mx.where(c - a - b > 0, at_one, _number(math.inf)), value)
    value = mx.where((z > 1) & ~ends, _number(math.inf), value)
    pole = (c <= 0) & _is_whole(c) & ~(ends_a & (a >= c)) & ~(ends_b & (b >= c))
    value = mx.where(pole, _number(math.inf), value)
    value = mx.where(
        (z < 1) & (b == c), mx.power(1.0 - z, -a), mx.where((z < 1) & (a == c), mx.power(1.0 - z, -b), value)
    )
    value = mx.where((z == 0) | (a == 0) | (b == 0), _number(1.0), value)
    bad = mx.isnan(a) | mx.isnan(b) | mx.isnan(c) | mx.isnan(z) | mx.isnan(rest)
    return mx.where(bad, _number(math.nan), value)


def _sign_of_gamma(x: array) -> array:
    return mx.where((x < 0) & _is_odd(mx.floor(x)), _number(-1.0), _number(1.0))


def _ratio_of_gammas(a: array, b: array, c: array, d: array) -> array:
    """gamma(a) gamma(b) / (gamma(c) gamma(d))."""
    size = mx.exp(mx.gammaln(a) + mx.gammaln(b) - mx.gammaln(c) - mx.gammaln(d))
    size = size * (_sign_of_gamma(a) * _sign_of_gamma(b) * _sign_of_gamma(c) * _sign_of_gamma(d))
    nothing = ((c <= 0) & _is_whole(c)) | ((d <= 0) & _is_whole(d))
    return mx.where(nothing, _number(0.0), size)


# ---- normal distribution ----


def _upper(x: array) -> array:
    """What lies above x."""
    return 0.5 * mx.erfc(x * math.sqrt(0.5))


@wide
def owens_t(h: array, a: array) -> array:
    """Owen's T function."""
    height, width = mx.abs(h), mx.abs(a)
    turned = width > 1
    flat, steep = mx.where(turned, height * width, height), mx.where(turned, 1.0 / width, width)
    tables = [mx.array(kernels.PLACES, mx.float64), mx.array(kernels.WEIGHTS, mx.float64)]
    fine = flat < 60.0
    (part,) = _each(
        kernels.owen, ("height", "at", "places", "weights"), ("out",),
        mx.where(fine, flat, _number(60.0)), steep, tables=tables,
    )  # fmt: skip
    part = mx.where(fine, part, _number(0.0))
    here, there = _upper(height), _upper(flat)
    found = mx.where(turned, 0.5 * (here + there) - here * there - part, part)
    found = mx.where(turned & (height == 0), mx.arctan(width) / (2 * math.pi), found)
    found = mx.where(mx.isinf(height), _number(0.0), found)
    found = mx.where((a < 0), -found, found)
    return mx.where(mx.isnan(h) | mx.isnan(a), _number(math.nan), found)


def erfcinv_of_log(goal: array) -> array:
    """The number >= 0 whose erfc is e**goal, goal <= 0: Newton's method for the logarithm, which keeps its digits."""

    def number(value: float) -> array:
        return number_in(value, goal.dtype)

    inside = mx.exp(goal)
    near = mx.erfinv(number(1.0) - mx.maximum(inside, number(0.1)))
    y = mx.where(inside > number(0.1), near, mx.sqrt(mx.maximum(-goal, number(0.0))))
    for _ in range(6):
        scaled = mx.erfcx(y)
        y = y + (mx.log(scaled) - y * y - goal) * scaled * number(math.sqrt(math.pi) / 2)
    return y


@wide
def ndtri_exp(y: array) -> array:
    """The x whose logarithm of the normal distribution function is y."""
    above = y > -math.log(2.0)
    fine = (y > -1e300) & (y < 0)
    inside = mx.where(fine, y, _number(-1.0))
    goal = mx.where(above & fine, mx.log(-mx.expm1(mx.where(above & fine, inside, _number(-1.0)))), inside)
    size = erfcinv_of_log(mx.minimum(goal + math.log(2.0), 0.0)) * math.sqrt(2.0)
    found = mx.where(above, size, -size)
    found = mx.where(y == 0, _number(math.inf), mx.where(y <= -1e300, _number(-math.inf), found))
    return mx.where((y > 0) | mx.isnan(y), _number(math.nan), found)


# ---- inverses of incomplete functions ----


def _solved(
    log_part: Callable[[array], array], slope: Callable[[array, array], array], goal: array, start: array,
    low: float, high: float,
) -> array:  # fmt: skip
    """u with log_part(u) = goal, for a function that grows: Newton's method between bounds that close in."""

    def go_on(state: Any) -> array:
        n, _, _, _, moved = state
        return (n < 200) & mx.any(moved)

    def step(state: Any) -> Any:
        n, u, below, above, _ = state
        value = log_part(u)
        off = value - goal
        below = mx.where(off < 0, u, below)
        above = mx.where(off > 0, u, above)
        new = u - off / slope(u, value)
        inside = (new > below) & (new < above)
        new = mx.where(off == 0, u, mx.where(inside, new, 0.5 * (below + above)))
        moved = mx.abs(new - u) > 2e-16 * mx.abs(u)
        return n + 1, mx.where(moved, new, u), below, above, moved

    shape = goal.shape
    bounds = [mx.broadcast_to(_number(value), shape) for value in (low, high)]
    state = (mx.zeros((), mx.int32), mx.clip(start, low + 1e-3, high - 1e-3), *bounds, mx.ones(shape, mx.bool_))
    return mx.while_loop(go_on, step, state)[1]  # type: ignore[no-any-return]


def _gamma_inverse(a: array, p: array, upper: bool) -> array:
    """x with gammainc(a, x) = p, or gammaincc(a, x) = p: by the one of the two that is the smaller."""
    fine = (a > 0) & (a < math.inf) & (p > 0) & (p < 1)
    shape, part = mx.where(fine, a, _number(1.0)), mx.where(fine, p, _number(0.5))
    small = part <= 0.5
    other = 1.0 - part
    goal = mx.log(mx.where(small, part, other))
    by_upper = small if upper else ~small
    # Wilson and Hilferty, or the first term of the series where that is closer.
    normal = erfcinv_of_log(mx.minimum(goal + math.log(2.0), 0.0)) * math.sqrt(2.0)
    normal = mx.where(by_upper, normal, -normal)
    third = 1.0 - 1.0 / (9.0 * shape) + normal / (3.0 * mx.sqrt(shape))
    below = mx.where(by_upper, mx.log1p(-mx.exp(goal)), goal)
    series = (below + mx.gammaln(shape + 1.0)) / shape
    start = mx.where((third > 0.2) & (shape > 0.3), mx.log(shape) + 3.0 * mx.log(mx.maximum(third, 0.1)), series)

    # Both functions of u = log(x) rise: log P, and -log Q.
    def log_part(u: array) -> array:
        x = mx.exp(u)
        return mx.where(by_upper, -mx.log(mx.gammaincc(shape, x)), mx.log(mx.gammainc(shape, x)))

    def slope(u: array, value: array) -> array:
        x = mx.exp(u)
        mass = mx.where(by_upper, -value, value)
        return mx.exp(shape * u - x - mx.gammaln(shape) - mass)

    found = mx.exp(_solved(log_part, slope, mx.where(by_upper, -goal, goal), start, -745.0, 710.0))
    nothing, everything = (p == 1, p == 0) if upper else (p == 0, p == 1)
    found = mx.where(nothing, _number(0.0), mx.where(everything, _number(math.inf), found))
    return mx.where((a > 0) & (p >= 0) & (p <= 1), found, _number(math.nan))


@wide
def gammaincinv(a: array, p: array) -> array:
    return _gamma_inverse(a, p, upper=False)


@wide
def gammainccinv(a: array, p: array) -> array:
    return _gamma_inverse(a, p, upper=True)


@wide
def betaincinv(a: array, b: array, p: array) -> array:
    """x with betainc(a, b, x) = p."""
    fine = (a > 0) & (b > 0) & (a < math.inf) & (b < math.inf) & (p > 0) & (p < 1)
    first, second, part = (mx.where(fine, x, _number(y)) for x, y in ((a, 1.0), (b, 1.0), (p, 0.5)))
    lower = part <= 0.5
    goal = mx.log(mx.where(lower, part, 1.0 - part))
    log_beta = mx.gammaln(first) + mx.gammaln(second) - mx.gammaln(first + second)

    # In u = log(x / (1 - x)); log I and -log(1 - I) rise.
    def log_part(u: array) -> array:
        x, rest = mx.sigmoid(u), mx.sigmoid(-u)
        return mx.where(lower, mx.log(mx.betainc(first, second, x)), -mx.log(mx.betainc(second, first, rest)))

    def slope(u: array, value: array) -> array:
        mass = mx.where(lower, value, -value)
        return mx.exp(-first * mx.logaddexp(-u, 0.0) - second * mx.logaddexp(u, 0.0) - log_beta - mass)

    mean = mx.log(first) - mx.log(second)
    edge = mx.where(lower, (goal + log_beta + mx.log(first)) / first, -(goal + log_beta + mx.log(second)) / second)
    start = mx.where(lower, mx.minimum(mean, edge), mx.maximum(mean, edge))
    u = _solved(log_part, slope, mx.where(lower, goal, -goal), start, -745.0, 745.0)
    found = mx.where(p == 0, _number(0.0), mx.where(p == 1, _number(1.0), mx.sigmoid(u)))
    return mx.where((a > 0) & (b > 0) & (p >= 0) & (p <= 1), found, _number(math.nan))
