"""Elementary functions of complex numbers, made of the real ones.

Branch cuts, infinities, NaNs and signed zeros are those of C99's Annex G, which NumPy follows. Errors are small against
the modulus of the result; each part of its own is accurate too unless the docstring says otherwise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from weft.codegen.math.basics import (
    Pair,
    exact_product,
    exact_sum,
    fast_sum,
    format_of,
    from_bits,
    is_negative,
    pick,
    quotient,
    root_pair,
    to_bits,
)
from weft.codegen.math.exponential import power_of_two, sinh_cosh, times_exp
from weft.codegen.math.inverse import arcsinh, arctan2
from weft.codegen.math.logarithm import log1p, log1p_pair, log_of_sum
from weft.codegen.math.trigonometric import sincos, tan
from weft.llvm.builder import Builder, Complex, Value

INF, NAN = math.inf, math.nan


def _choose(b: Builder, condition: Value, x: Complex, y: Complex) -> Complex:
    return Complex(b.choose(condition, x.re, y.re), b.choose(condition, x.im, y.im))


def _turned(z: Complex) -> Complex:
    """i z."""
    return Complex(-z.im, z.re)


def _turned_back(z: Complex) -> Complex:
    """-i z."""
    return Complex(z.im, -z.re)


def _infinite(b: Builder, x: Value) -> Value:
    return b.abs(x).eq(INF)


def _finite(b: Builder, x: Value) -> Value:
    return b.abs(x) < INF


def _sign_product(b: Builder, x: Value, y: Value) -> Value:
    """A number with the sign of x y."""
    return from_bits(b, to_bits(b, x) ^ to_bits(b, y))


# ---- modulus ----


class Scaled(NamedTuple):
    """Two magnitudes, the larger first, times 2**shift, so that their squares neither overflow nor underflow."""

    larger: Value
    smaller: Value
    shift: Value


def _scaled(b: Builder, x: Value, y: Value) -> Scaled:
    ax, ay = b.abs(x), b.abs(y)
    swap = ay > ax
    larger, smaller = b.choose(swap, ay, ax), b.choose(swap, ax, ay)
    low, high, step = pick(x, (2.0**-50, 2.0**60, 100.0), (2.0**-450, 2.0**500, 600.0))
    shift = b.choose(larger < low, step, b.choose(larger > high, b.like(x, -step), 0.0))
    factor = _power_of_two(b, shift)
    return Scaled(larger * factor, smaller * factor, shift)


def _power_of_two(b: Builder, exponent: Value) -> Value:
    """2**exponent for a whole number as a float, where that is normal."""
    fmt = format_of(exponent)
    return power_of_two(b, to_bits(b, exponent + (fmt.rounder + fmt.bias)))


def _unscale(b: Builder, y: Value, shift: Value) -> Value:
    """y * 2**-shift, in two steps because 2**-shift may be out of range."""
    half = _power_of_two(b, -0.5 * shift)
    return y * half * half


def _square_sum(b: Builder, x: Value, y: Value) -> Pair:
    """x² + y² for x >= y >= 0."""
    xx, yy = exact_product(b, x, x), exact_product(b, y, y)
    total = fast_sum(xx.hi, yy.hi)
    return fast_sum(total.hi, total.lo + (xx.lo + yy.lo))


def hypot(b: Builder, x: Value, y: Value) -> Value:
    """√(x² + y²), infinite if either is."""
    larger, smaller, shift = _scaled(b, x, y)
    root = root_pair(b, *_square_sum(b, larger, smaller))
    return b.choose(_infinite(b, x) | _infinite(b, y), INF, _unscale(b, root.hi + root.lo, shift))


# ---- division ----


def complex_divide(b: Builder, x: Complex, y: Complex) -> Complex:
    """x / y; dividing by zero gives infinities."""
    n, n_shift = _scaled_parts(b, x)
    d, d_shift = _scaled_parts(b, y)
    size = _products(b, d.re, d.re, d.im, d.im)
    re = _products(b, n.re, d.re, n.im, d.im) / size
    im = _products(b, n.im, d.re, -n.re, d.im) / size
    re, im = (_unscale(b, part, n_shift - d_shift) for part in (re, im))
    return _mend_quotient(b, x, y, Complex(re, im))


def _scaled_parts(b: Builder, z: Complex) -> tuple[Complex, Value]:
    larger, smaller, shift = _scaled(b, z.re, z.im)
    swap = b.abs(z.im) > b.abs(z.re)
    re, im = b.choose(swap, smaller, larger), b.choose(swap, larger, smaller)
    return Complex(b.copysign(re, z.re), b.copysign(im, z.im)), shift


def _products(b: Builder, x: Value, y: Value, u: Value, v: Value) -> Value:
    """x y + u v without cancellation of what the products round away."""
    p = u * v
    total, error = b.fma(x, y, p), b.fma(u, v, -p)
    # An error of 0 would turn -0.0 into 0.0, and an infinite product has a NaN for an error.
    return b.choose(b.abs(error) > 0.0, total + error, total)


def _mend_quotient(b: Builder, x: Complex, y: Complex, q: Complex) -> Complex:
    """Infinities for NaNs where Annex G wants them: something over zero, infinity over something, something over
    infinity."""
    lost = b.isnan(q.re) & b.isnan(q.im)

    def mend() -> tuple[Value, Value]:
        infinity = b.copysign(b.like(x.re, INF), y.re)
        zero = y.re.eq(0.0) & y.im.eq(0.0)
        mended = _choose(b, zero, Complex(infinity * x.re, infinity * x.im), q)
        over = (_infinite(b, x.re) | _infinite(b, x.im)) & _finite(b, y.re) & _finite(b, y.im)
        u = _corner(b, x)
        grown = Complex(INF * (u.re * y.re + u.im * y.im), INF * (u.im * y.re - u.re * y.im))
        mended = _choose(b, over & ~zero, grown, mended)
        under = (_infinite(b, y.re) | _infinite(b, y.im)) & _finite(b, x.re) & _finite(b, x.im)
        v = _corner(b, y)
        shrunk = Complex(0.0 * (x.re * v.re + x.im * v.im), 0.0 * (x.im * v.re - x.re * v.im))
        mended = _choose(b, under, shrunk, mended)
        return b.choose(lost, mended.re, q.re), b.choose(lost, mended.im, q.im)

    return Complex(*b.rarely(b.any(lost), (q.re, q.im), mend))


def _corner(b: Builder, z: Complex) -> Complex:
    """Infinite parts as ±1, others as ±0."""
    return Complex(*(b.copysign(b.choose(_infinite(b, part), b.like(part, 1.0), 0.0), part) for part in (z.re, z.im)))


# ---- exponential, logarithm, power, root ----


def complex_exp(b: Builder, z: Complex) -> Complex:
    """e**x (cos y + i sin y)."""
    sine, cosine = sincos(b, z.im)
    re, im = times_exp(b, z.re, cosine, sine)
    down, up = z.re.eq(-INF), z.re.eq(INF)
    strange = ~_finite(b, z.im)
    re = b.choose(strange & down, 0.0, b.choose(strange & up, INF, re))
    im = b.choose(strange & down, 0.0, im)
    real = z.im.eq(0.0)
    return Complex(re, b.choose(real, z.im, im))


def complex_log(b: Builder, z: Complex) -> Complex:
    """log |z| + i arg z, the cut along the negative real axis."""
    return Complex(_log_modulus(b, z), arctan2(b, z.im, z.re))


def _log_modulus(b: Builder, z: Complex, doubled: float = 0.0) -> Value:
    """log |z| + doubled * log 2; accurate near |z| = 1 too."""
    larger, smaller, shift = _scaled(b, z.re, z.im)
    square = _square_sum(b, larger, smaller)
    y = 0.5 * log_of_sum(b, square.hi, square.lo, b.fma(shift, -2.0, 2.0 * doubled), whole=False)
    y = b.choose(z.re.eq(0.0) & z.im.eq(0.0), -INF, y)
    y = b.choose(b.isnan(square.hi), square.hi, y)
    return b.choose(_infinite(b, z.re) | _infinite(b, z.im), INF, y)


def complex_log2(b: Builder, z: Complex) -> Complex:
    return _divided_log(b, z, math.log2(math.e))


def complex_log10(b: Builder, z: Complex) -> Complex:
    return _divided_log(b, z, math.log10(math.e))


def _divided_log(b: Builder, z: Complex, factor: float) -> Complex:
    logarithm = complex_log(b, z)
    return Complex(logarithm.re * factor, logarithm.im * factor)


def complex_log1p(b: Builder, z: Complex) -> Complex:
    """log(1 + z), accurate near 0."""
    u = Complex(z.re + 1.0, z.im)
    # Near 0, from |1 + z|² - 1 = 2 x + (x² + y²).
    ax, ay = b.abs(z.re), b.abs(z.im)
    near = (ax < 0.5) & (ay < 0.5)
    x, y = b.choose(near, z.re, 0.0), b.choose(near, z.im, 0.0)
    swap = ay > ax
    square = _square_sum(b, b.abs(b.choose(swap, y, x)), b.abs(b.choose(swap, x, y)))
    total = exact_sum(x + x, square.hi)
    excess = fast_sum(total.hi, total.lo + square.lo)
    re = b.choose(near, 0.5 * log1p_pair(b, *excess), _log_modulus(b, u))
    return Complex(b.choose(near & excess.hi.eq(0.0), z.re, re), arctan2(b, z.im, u.re))


def complex_sqrt(b: Builder, z: Complex) -> Complex:
    """The root with a real part that is not negative."""
    larger, smaller, shift = _scaled(b, z.re, z.im)
    swap = b.abs(z.im) > b.abs(z.re)
    x, y = b.choose(swap, smaller, larger), b.choose(swap, larger, smaller)
    modulus = root_pair(b, *_square_sum(b, larger, smaller))
    total = fast_sum(modulus.hi, x)
    main = root_pair(b, 0.5 * total.hi, 0.5 * (total.lo + modulus.lo))
    other = quotient(b, Pair(0.5 * y, b.like(y, 0.0)), main)
    factor = _power_of_two(b, -0.5 * shift)
    main_part, other_part = (main.hi + main.lo) * factor, other * factor
    left = is_negative(b, z.re)
    re, im = b.choose(left, other_part, main_part), b.choose(left, main_part, other_part)
    zero = z.re.eq(0.0) & z.im.eq(0.0)
    re, im = b.choose(zero, 0.0, re), b.choose(zero, 0.0, im)
    # Infinities: any number with an infinite imaginary part has the root inf ± inf i.
    strange = b.isnan(z.im)
    re = b.choose(z.re.eq(INF), INF, b.choose(z.re.eq(-INF), b.choose(strange, b.like(re, NAN), 0.0), re))
    im = b.choose(z.re.eq(INF), b.choose(strange, b.like(im, NAN), 0.0), b.choose(z.re.eq(-INF), INF, im))
    upright = _infinite(b, z.im)
    return Complex(b.choose(upright, INF, re), b.copysign(b.choose(upright, INF, im), z.im))


def complex_power(b: Builder, x: Complex, y: Complex) -> Complex:
    """e**(y log x); exact where y is 0, 1, 2 or -1. The error grows with |y log x|."""
    logarithm = complex_log(b, x)
    exponent = Complex(
        _products(b, y.re, logarithm.re, -y.im, logarithm.im), _products(b, y.re, logarithm.im, y.im, logarithm.re)
    )
    result = complex_exp(b, exponent)
    zero = x.re.eq(0.0) & x.im.eq(0.0)
    vanishes = Complex(b.choose(y.re > 0.0, b.like(x.re, 0.0), NAN), b.choose(y.re > 0.0, b.like(x.re, 0.0), NAN))
    result = _choose(b, zero, vanishes, result)
    real = y.im.eq(0.0)
    special = real & (y.re.eq(0.0) | y.re.eq(1.0) | y.re.eq(2.0) | y.re.eq(-1.0))

    def exact() -> tuple[Value, Value]:
        one = Complex(b.like(x.re, 1.0), b.like(x.re, 0.0))
        chosen = result
        for exponent, value in ((0.0, one), (1.0, x), (2.0, x * x), (-1.0, complex_divide(b, one, x))):
            chosen = _choose(b, real & y.re.eq(exponent), value, chosen)
        return chosen.re, chosen.im

    return Complex(*b.rarely(b.any(special), (result.re, result.im), exact))


# ---- hyperbolic and trigonometric functions ----


def complex_sinh(b: Builder, z: Complex) -> Complex:
    """sinh x cos y + i cosh x sin y."""
    sine, cosine = sincos(b, z.im)
    s, c = sinh_cosh(b, z.re)
    re, im = _hyperbolic_products(b, z.re, (s, cosine, z.re), (c, sine, b.like(z.re, 1.0)))
    edge = z.re.eq(0.0) | _infinite(b, z.re)
    re = b.choose(edge & ~_finite(b, z.im), z.re, re)
    return Complex(re, b.choose(z.im.eq(0.0), z.im, im))


def complex_cosh(b: Builder, z: Complex) -> Complex:
    """cosh x cos y + i sinh x sin y."""
    sine, cosine = sincos(b, z.im)
    s, c = sinh_cosh(b, z.re)
    re, im = _hyperbolic_products(b, z.re, (c, cosine, b.like(z.re, 1.0)), (s, sine, z.re))
    re = b.choose(_infinite(b, z.re) & ~_finite(b, z.im), INF, re)
    zero = b.copysign(b.like(im, 0.0), _sign_product(b, z.re, z.im))  # where one factor is 0 and the other is no number
    return Complex(re, b.choose((z.re.eq(0.0) | z.im.eq(0.0)) & b.isnan(im), zero, im))


Product = tuple[Value, Value, Value]


def _hyperbolic_products(b: Builder, x: Value, first: Product, second: Product) -> tuple[Value, ...]:
    """h * t for each (h, t, sign), h being sinh or cosh of x; where h overflows, from e**|x| / 2 with the sign of
    `sign`."""
    a = b.abs(x)
    large = a > pick(x, 80.0, 700.0)
    plain = [h * t for h, t, _ in (first, second)]

    def scaled() -> list[Value]:
        products = times_exp(b, a, *(b.copysign(b.like(x, 0.5), sign) * t for _, t, sign in (first, second)))
        return [b.choose(large, exact, usual) for exact, usual in zip(products, plain, strict=True)]

    return b.rarely(b.any(large), plain, scaled)


def complex_tanh(b: Builder, z: Complex) -> Complex:
    """Kahan's formula: with t = tan y and s = sinh x, (c s (1 + t²) + i t) / (1 + s² (1 + t²)), c = cosh x."""
    t = tan(b, z.im)
    s, c = sinh_cosh(b, z.re)
    beta = b.fma(t, t, 1.0)
    denominator = b.fma(beta * s, s, 1.0)
    plain = Complex(c * (beta * s) / denominator, t / denominator)
    # Far from the imaginary axis: ±1 and 4 sin y cos y e**(-2|x|).
    a = b.abs(z.re)
    large = a > pick(z.re, 11.0, 22.0)

    def far() -> tuple[Value, Value]:
        sine, cosine = sincos(b, z.im)
        (product,) = times_exp(b, -2.0 * a, 4.0 * sine * cosine)
        product = b.choose(_infinite(b, z.re), b.choose(_finite(b, z.im), product, 0.0), product)
        unit = b.copysign(b.like(a, 1.0), z.re)
        return b.choose(large, unit, plain.re), b.choose(large, product, plain.im)

    re, im = b.rarely(b.any(large), (plain.re, plain.im), far)
    # tan is infinite nowhere, but its square may be: there the imaginary part is small and the real part is coth x.
    re = b.choose(z.re.eq(0.0), z.re, re)
    return Complex(re, b.choose(z.im.eq(0.0), z.im, im))


def complex_sin(b: Builder, z: Complex) -> Complex:
    return _turned_back(complex_sinh(b, _turned(z)))


def complex_cos(b: Builder, z: Complex) -> Complex:
    return complex_cosh(b, _turned(z))


def complex_tan(b: Builder, z: Complex) -> Complex:
    return _turned_back(complex_tanh(b, _turned(z)))


# ---- their inverses ----


def _beyond(b: Builder, z: Complex) -> Value:
    """Where 1 is lost against z; infinities and what stands beside them included."""
    limit = pick(z.re, 2.0**30, 2.0**60)
    return (b.abs(z.re) > limit) | (b.abs(z.im) > limit)


def complex_arcsin(b: Builder, z: Complex) -> Complex:
    """Kahan's formulas, in the first quadrant; the cuts run along the real axis, outwards from ±1."""
    a = Complex(b.abs(z.re), b.abs(z.im))
    below, above = _roots(b, a)
    re = arctan2(b, a.re, _products(b, below.re, above.re, -below.im, above.im))
    im = arcsinh(b, _products(b, below.re, above.im, -below.im, above.re))
    w = _inverse_far(b, a, (a.re, a.im), Complex(b.choose(a.re.eq(0.0), 0.0, re), im))
    return Complex(b.copysign(w.re, z.re), b.copysign(w.im, z.im))


def complex_arccos(b: Builder, z: Complex) -> Complex:
    """Kahan's formulas, in the upper half plane; the cuts are those of arcsin."""
    a = Complex(z.re, b.abs(z.im))
    below, above = _roots(b, a)
    re = 2.0 * arctan2(b, below.re, above.re)
    im = arcsinh(b, _products(b, above.re, below.im, -above.im, below.re))
    w = _inverse_far(b, a, (a.im, a.re), Complex(b.choose(a.re.eq(0.0), math.pi / 2, re), im))
    return Complex(w.re, b.copysign(w.im, -z.im))


def _roots(b: Builder, z: Complex) -> tuple[Complex, Complex]:
    """√(1 - z) and √(1 + z)."""
    return complex_sqrt(b, Complex(1.0 - z.re, -z.im)), complex_sqrt(b, Complex(z.re + 1.0, z.im))


def _inverse_far(b: Builder, z: Complex, angle: tuple[Value, Value], near: Complex) -> Complex:
    """Far from 0, the angle arctan2(*angle) and log |2 z| take the place of `near`."""
    beyond = _beyond(b, z)

    def far() -> tuple[Value, Value]:
        return b.choose(beyond, arctan2(b, *angle), near.re), b.choose(beyond, _log_modulus(b, z, 1.0), near.im)

    return Complex(*b.rarely(b.any(beyond), (near.re, near.im), far))


def complex_arctanh(b: Builder, z: Complex) -> Complex:
    """log((1 + z) / (1 - z)) / 2; the cuts run along the real axis, outwards from ±1."""
    a = b.abs(z.re)
    gap = 1.0 - a
    y2 = z.im * z.im
    near_re = b.copysign(0.25 * log1p(b, 4.0 * a / b.fma(gap, gap, y2)), z.re)
    near_im = 0.5 * arctan2(b, 2.0 * z.im, b.fma(gap, a + 1.0, -y2))
    beyond = _beyond(b, z)

    def far() -> tuple[Value, Value]:
        modulus = hypot(b, z.re, z.im)
        infinite = _infinite(b, z.re) | _infinite(b, z.im)
        re = b.copysign(b.choose(infinite, 0.0, a / modulus / modulus), z.re)
        im = b.copysign(b.choose(b.isnan(z.im), z.im, math.pi / 2), z.im)
        return b.choose(beyond, re, near_re), b.choose(beyond, im, near_im)

    re, im = b.rarely(b.any(beyond), (near_re, near_im), far)
    return Complex(b.choose(z.re.eq(0.0), z.re, re), b.choose(z.im.eq(0.0) & (a <= 1.0), z.im, im))


def complex_arccosh(b: Builder, z: Complex) -> Complex:
    """±i arccos(z), the sign being the one that gives a real part that is not negative."""
    w = complex_arccos(b, z)
    return Complex(b.abs(w.im), b.copysign(w.re, z.im))


def complex_arcsinh(b: Builder, z: Complex) -> Complex:
    return _turned_back(complex_arcsin(b, _turned(z)))


def complex_arctan(b: Builder, z: Complex) -> Complex:
    return _turned_back(complex_arctanh(b, _turned(z)))
