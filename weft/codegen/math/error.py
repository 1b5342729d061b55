"""The error function, its complement and its inverse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from weft.codegen.math.basics import (
    Coefficients,
    Pair,
    at_most,
    exact_product,
    fast_sum,
    format_of,
    horner,
    pick,
    root_pair,
    split,
    to_bits,
)
from weft.codegen.math.exponential import EXP2, LN2_HI, power_of_two, times_exp
from weft.codegen.math.logarithm import log_pair
from weft.llvm.builder import Builder, Operand, Value

# erf(x) / x - 1 as a polynomial in x², |x| <= 0.94; relative errors 2**-30.1, 2**-56.3.
ERF_NEAR = Coefficients(
    (0.12837917, -0.37612632, 0.11283674, -0.02685832, 0.005198473, -0.000811439, 8.252599e-05),
    (
        0.1283791670955126, -0.3761263890318383, 0.11283791670955912, -0.026866170644987485, 0.005223977622026192,
        -0.0008548326728693491, 0.00012055318834331697, -1.4925227421823283e-05, 1.6453902183864914e-06,
        -1.6261693008678974e-07, 1.3967358851575727e-08, -8.29261265361077e-10,
    ),
)  # fmt: skip

# -log2(erfc(a)) / a on [0.94, 3.93], weighted by erfc(a): error of erf 2**-28.4.
ERF_FAR32 = (1.6280924, 0.9171801, 0.15181822, -0.0329961, 0.004629767, -0.00030769446)

# (-log2(erfc(a)) - a² log2(e)) / a on [0.94, 5.95], weighted by erfc(a): error of erf 2**-57.3.
ERF_FAR64 = (
    1.6279070020945996, -0.5242466662937737, 0.1482691455286721, -0.02759728470005804, -0.0002952964675733058,
    0.0024276971957431968, -0.0008146080104566218, -1.277258543630976e-05, 0.00014476462830742928,
    -8.425037526847202e-05, 3.0663905544087104e-05, -8.160129702457945e-06, 1.6461441494544596e-06,
    -2.511523478866758e-07, 2.8210941579446532e-08, -2.2055257645925614e-09, 1.0726477543074505e-10,
    -2.443513383406393e-12,
)  # fmt: skip
LOG2_E = (1.4426950408889634, 2.0355273740931033e-17)


def erf(b: Builder, x: Value) -> Value:
    """x + x P(x²) near 0, else 1 - 2**-Q(|x|)."""
    fmt = format_of(x)
    a = b.abs(x)
    near = _erf_near(b, x)
    q = pick(x, _exponent32, _exponent64)(b, at_most(b, a, pick(x, 3.93, 5.95)))
    magic = fmt.rounder + fmt.bias
    shifted = magic - q.hi
    r = ((magic - shifted) - q.hi) - q.lo
    even, odd = split(b, r, EXP2.of(x))
    rise = b.fma(r * r, b.fma(odd, r, even), r * LN2_HI.of(x))
    s = power_of_two(b, to_bits(b, shifted))
    far = b.fma(-s, rise, 1.0 - s)
    return b.choose(a < 0.94, near, b.copysign(far, x))


def _erf_near(b: Builder, x: Value) -> Value:
    """x + x P(x²), for |x| < 0.94."""
    square = x * x
    c0, c1, *others = ERF_NEAR.of(x)
    even, odd = split(b, square, others)
    return b.fma(horner(b, square, (c0, c1, b.fma(odd, square, even))), x, x)


def _exponent32(b: Builder, a: Value) -> Pair:
    """-log2(erfc(a))."""
    return exact_product(b, a, horner(b, a, ERF_FAR32))


def _exponent64(b: Builder, a: Value) -> Pair:
    """-log2(erfc(a)), a² apart."""
    square = exact_product(b, a, a)
    hi = square.hi * LOG2_E[0]
    lo = b.fma(square.lo, LOG2_E[0], b.fma(square.hi, LOG2_E[0], -hi))
    even, odd = split(b, a, ERF_FAR64)
    other = exact_product(b, a, b.fma(odd, a, even))
    total = fast_sum(hi, other.hi)
    return Pair(total.hi, total.lo + (lo + other.lo))


# erfcx(a) (1 + 2 a) - 1 as a polynomial in t = (a - c) / (a + c), a >= 0, with c = 3 and c = 4; errors relative to
# erfcx 2**-26.6, 2**-56.5.
ERFCX = Coefficients(
    (
        0.25300807, -0.1356211, -0.0475626, 0.12964468, -0.11927214, 0.068313986, -0.02377174, 0.0025038396,
        0.0018839886, -0.0007301763, -9.599832e-05, 7.835736e-05,
    ),
    (
        0.2329951186255525, -0.13962111684056247, 0.015379652102620421, 0.06809705425467989, -0.10103906603631821,
        0.09373283499887261, -0.06633036581203011, 0.03716751552880277, -0.01619773406036464, 0.00503197005450247,
        -0.0007577732616956016, -0.00019925709833806208, 0.00015062150033364052, -2.439786224555639e-05,
        -1.1221328069164374e-05, 5.70678900336355e-06, 2.920591748439035e-07, -8.212876558873773e-07,
        7.736230731038942e-08, 1.0646727300773805e-07, -2.0479340727872733e-08, -1.239592196246495e-08,
        3.135375409599914e-09, 9.393461197610794e-10, -2.5978938434647726e-10,
    ),
)  # fmt: skip


def erfcx(b: Builder, x: Value) -> Value:
    """e**(x²) erfc(x); for x < 0, 2 e**(x²) less that of -x."""
    a = b.abs(x)
    right = _erfcx(b, a)
    left = x < 0.0

    def reflect() -> list[Value]:
        bounded = at_most(b, a, pick(x, 10.5, 28.0))  # from there on infinite
        square = exact_product(b, bounded, bounded)
        (grown,) = times_exp(b, square.hi, b.fma(square.lo, 2.0, 2.0))
        return [b.choose(left, grown - right, right)]

    (result,) = b.rarely(b.any(left), (right,), reflect)
    return result


def _erfcx(b: Builder, a: Value) -> Value:
    c = pick(a, 3.0, 4.0)
    bounded = at_most(b, a, 2.0**60)
    t = (bounded - c) / (bounded + c)
    even, odd = split(b, t, ERFCX.of(a))
    return 0.5 * (1.0 + b.fma(odd, t, even)) / (a + 0.5)


def erfc(b: Builder, x: Value) -> Value:
    """1 - erf(x) near 0, else e**(-x²) erfcx(x), or 2 less that of -x."""
    a = at_most(b, b.abs(x), pick(x, 10.5, 28.0))
    square = exact_product(b, a, a)
    scaled = _erfcx(b, a)
    (right,) = times_exp(b, -square.hi, b.fma(-square.lo, scaled, scaled))
    far = b.choose(x < 0.0, 2.0 - right, right)
    return b.choose(b.abs(x) < 0.5, 1.0 - _erf_near(b, x), far)


class Range(NamedTuple):
    """With w = -log(1 - x²), erfinv(x) / x = base + m (slope + t P(t)), from √w = start on: in the first range, m = w
    and t = w - middle; in the others m = t = √w - middle. Base and slope are sums of two."""

    start: float
    middle: float
    base: tuple[float, float]
    slope: tuple[float, float]
    others: tuple[float, ...]


# Relative errors 2**-27.4 and 2**-27.3.
ERFINV32 = (
    Range(0.0, 2.5, (0.88622695, -2.66232e-08), (0.24607298, -4.16647e-09), (
        0.0002269247, -0.0017617252, 0.00020359414, 5.900698e-06, -4.346195e-06, 3.5321773e-07, 4.532637e-08,
        -8.820838e-09,
    )),
    Range(2.236, 3.0, (2.8329768, -2.2554389e-08), (1.0016751, 0.0), (
        0.009445701, -0.0076399017, 0.005683009, -0.0035851803, 0.0014962942, -7.926863e-05, -0.00031906372,
        0.00013031969,
    )),
)  # fmt: skip

# Relative errors 2**-58.1, 2**-55.8 and 2**-57.4.
ERFINV64 = (
    Range(0.0, 3.125, (0.886226925452758, -3.8332932499128993e-17), (0.24557684391371032, -1.3645122014808808e-17), (
        -0.0017339716761990312, -0.001375903742472951, 0.0002032643866618869, -5.28965716522408e-06,
        -2.7497171932709634e-06, 4.4295936510183873e-07, -6.233775355058371e-09, -7.307716632237178e-09,
        1.022417917576776e-09, 9.21747537661866e-12, -2.0275335447758625e-11, 2.3349907082943992e-12,
        9.456424961913512e-14, -5.6115462711403904e-14, 5.151825586892086e-15, 4.4227898798421613e-16,
        -1.542856179606938e-16, 9.84662269707916e-18, 1.823171206727672e-18, -3.5933487084455795e-19,
        3.3993736159213655e-21, 4.14642551926545e-21, -2.9698985039324604e-22,
    )),
    Range(2.5, 3.25, (3.0838856104922208, -1.3148134174711063e-16), (1.0052589676941657, 0.0), (
        0.005370914553570525, -0.003751208508259619, 0.002491442097034557, -0.001688275534312156, 0.0009532893628168316,
        -0.00035503783027496423, 2.4031265234471902e-05, 6.828724592363731e-05, -4.731902535309067e-05,
        1.2464442018500747e-05, 2.9258512867621483e-06, -3.984093561975551e-06, 1.4985016408934115e-06,
        -3.024926046727966e-08, -2.7114716708373337e-07, 1.3393433137651983e-07, 6.195677902142977e-10,
        -1.6186551454349112e-08,
    )),
    Range(4.0, 5.0, (4.849906401408584, -7.604722884658855e-17), (1.0103004648645453, 0.0), (
        -0.00013871931838076726, -0.00021503011982517477, 7.599527811248964e-05, -1.968177073328139e-05,
        4.526052372588452e-06, -9.930292051342401e-07, 2.2905357052773425e-07, -6.75566832201041e-08,
        2.9016571066495795e-08, -1.5254384335283797e-08, 7.824805344556616e-09, -3.4718020633926528e-09,
        1.3128189183257531e-09, -4.3743773148446677e-10, 7.11703134377788e-11, 4.287140183830387e-11,
        -2.0725415435331248e-11,
    )),
)  # fmt: skip


def erfinv(b: Builder, x: Value) -> Value:
    """x times a polynomial; those for |x| close to 1 are left out unless some lane needs them."""
    near, *tails = pick(x, ERFINV32, ERFINV64)
    w = _minus(pick(x, _log_rest32, _log_rest64)(b, x))
    factor = _factor(b, (w.hi - near.middle) + w.lo, w, near.base, near.slope, near.others)
    beyond = w.hi >= tails[0].start ** 2

    def tail() -> list[Value]:
        other = _tail_factor(b, w, tails)
        return [b.choose(beyond, o, n) for o, n in zip(other, factor, strict=True)]

    hi, lo = b.rarely(b.any(beyond), factor, tail)
    y = exact_product(b, x, hi)
    result = b.copysign(y.hi + b.fma(x, lo, y.lo), x)
    a = b.abs(x)
    return b.choose(a < 1.0, result, b.choose(a > 1.0, b.like(x, math.nan), x * math.inf))


def _log_rest32(b: Builder, x: Value) -> Pair:
    """log(1 - x²)."""
    return log_pair(b, b.fma(-x, x, 1.0))


def _log_rest64(b: Builder, x: Value) -> Pair:
    """log(1 - x²), with 1 - x² to twice the digits: that keeps erfinv within an ulp or so, for a sixth of the time."""
    square = exact_product(b, x, x)
    rest = fast_sum(b.like(x, 1.0), -square.hi)
    return log_pair(b, *fast_sum(rest.hi, rest.lo - square.lo))


def _minus(x: Pair) -> Pair:
    return Pair(-x.hi, -x.lo)


def _tail_factor(b: Builder, w: Pair, tails: Sequence[Range]) -> Pair:
    """erfinv(x) / x from √w; the coefficients differ from lane to lane."""
    root = root_pair(b, w.hi, w.lo)

    def of_range(choices: Sequence[float]) -> Value:
        chosen = b.like(root.hi, choices[0])
        for tail, choice in zip(tails[1:], choices[1:], strict=True):
            chosen = b.choose(root.hi >= tail.start, choice, chosen)
        return chosen

    t = (root.hi - of_range([tail.middle for tail in tails])) + root.lo
    base = [of_range(parts) for parts in zip(*(tail.base for tail in tails), strict=True)]
    slope = [of_range(parts) for parts in zip(*(tail.slope for tail in tails), strict=True)]
    others = [of_range(parts) for parts in zip_longest(*(tail.others for tail in tails), fillvalue=0.0)]
    return _factor(b, t, Pair(t, b.like(t, 0.0)), base, slope, others)


def _factor(
    b: Builder, t: Value, m: Pair, base: Sequence[Operand], slope: Sequence[Operand], others: Sequence[Operand]
) -> Pair:
    """base + m (slope + t P(t))."""
    even, odd = split(b, t, others[1:])
    p = horner(b, t, (others[0], b.fma(odd, t, even)))
    incline = b.fma(t, p, slope[0])
    incline_lo = b.fma(t, p, b.like(t, slope[0]) - incline) + slope[1]
    start = b.like(t, base[0])
    hi = b.fma(m.hi, incline, start)
    lo = b.fma(m.hi, incline, start - hi) + b.fma(m.hi, incline_lo, b.fma(m.lo, incline, base[1]))
    return Pair(hi, lo)
