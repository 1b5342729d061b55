"""The error function and its inverse."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.codegen.builder import Builder, Operand, Value
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
from weft.codegen.math.exponential import EXP2, LN2_HI, power_of_two
from weft.codegen.math.logarithm import log_pair

# erf(x) / x - 1 as a polynomial in x², for |x| <= 1 and |x| <= 0.94; relative errors 2**-29.4, 2**-56.3.
ERF_NEAR = Coefficients(
    (0.12837917, -0.3761263, 0.11283615, -0.02685492, 0.0051902346, -0.00080257, 7.901964e-05),
    (
        0.1283791670955126, -0.3761263890318383, 0.11283791670955912, -0.026866170644987485, 0.005223977622026192,
        -0.0008548326728693491, 0.00012055318834331697, -1.4925227421823283e-05, 1.6453902183864914e-06,
        -1.6261693008678974e-07, 1.3967358851575727e-08, -8.29261265361077e-10,
    ),
)  # fmt: skip

# -log2(erfc(a)) / a on [1, 3.93], weighted by erfc(a): error of erf 2**-28.6.
ERF_FAR32 = (1.6280526, 0.91731083, 0.1516506, -0.032891233, 0.004597783, -0.00030389184)

# -log2(erfc(a)) - a² log2(e) on [0.94, 5.95], weighted by erfc(a): error of erf 2**-56.1.
ERF_FAR64 = (
    4.837410188938753e-07, 1.6279019863449755, -0.5242224473989918, 0.14819680297570917, -0.027447520763890166,
    -0.0005234345081957751, 0.002692663667011565, -0.0010544760506450855, 0.0001587848214790356, 4.7111241869373376e-05,
    -3.991024433105277e-05, 1.464325471468223e-05, -3.5883588993363935e-06, 6.297197065462773e-07, -7.896584687889169e-08,
    6.7641116229974005e-09, -3.5584727260162515e-10, 8.687259546092435e-12,
)  # fmt: skip
LOG2_E = (1.4426950408889634, 2.0355273740931033e-17)


def erf(b: Builder, x: Value) -> Value:
    """x + x P(x²) near 0, else 1 - 2**-Q(|x|)."""
    fmt = format_of(x)
    a = b.abs(x)
    square = x * x
    c0, c1, *others = ERF_NEAR.of(x)
    even, odd = split(b, square, others)
    near = b.fma(horner(b, square, (c0, c1, b.fma(odd, square, even))), x, x)
    q = pick(x, _exponent32, _exponent64)(b, at_most(b, a, pick(x, 3.93, 5.95)))
    magic = fmt.rounder + fmt.bias
    shifted = magic - q.hi
    r = ((magic - shifted) - q.hi) - q.lo
    even, odd = split(b, r, EXP2.of(x))
    rise = b.fma(r * r, b.fma(odd, r, even), r * LN2_HI.of(x))
    s = power_of_two(b, to_bits(b, shifted))
    far = b.fma(-s, rise, 1.0 - s)
    return b.choose(a < pick(x, 1.0, 0.94), near, b.copysign(far, x))


def _exponent32(b: Builder, a: Value) -> Pair:
    """-log2(erfc(a))."""
    return exact_product(b, a, horner(b, a, ERF_FAR32))


def _exponent64(b: Builder, a: Value) -> Pair:
    """-log2(erfc(a)), a² apart."""
    square = exact_product(b, a, a)
    hi = square.hi * LOG2_E[0]
    lo = b.fma(square.lo, LOG2_E[0], b.fma(square.hi, LOG2_E[0], -hi))
    even, odd = split(b, a, ERF_FAR64)
    total = fast_sum(hi, b.fma(odd, a, even))
    return Pair(total.hi, total.lo + lo)


# With w = -log(1 - x²), erfinv(x) / x = c + c' + m P(t), in ranges of √w: in the first, m = w and t = w - middle; in the others
# m = t = √w - middle. Below: where the range starts, middle, c and c', P. Relative errors 2**-26.3, 2**-27.3 for float32 and
# 2**-55.2, 2**-55.8, 2**-57.4 for float64.
Range = tuple[float, float, tuple[float, float], tuple[float, ...]]
ERFINV32: tuple[Range, ...] = (
    (0.0, 2.5, (0.88622695, -2.66232e-08), (
        0.24607296, 0.00022692433, -0.0017616876, 0.00020359055, 5.876482e-06, -4.3434884e-06, 3.5811883e-07, 4.490818e-08,
        -9.102407e-09,
    )),
    (2.236, 3.0, (2.8329768, -2.2554389e-08), (
        1.0016751, 0.009445701, -0.0076399017, 0.005683009, -0.0035851803, 0.0014962942, -7.926863e-05, -0.00031906372,
        0.00013031969,
    )),
)  # fmt: skip
ERFINV64: tuple[Range, ...] = (
    (0.0, 3.125, (0.886226925452758, -3.8332932499128993e-17), (
        0.2455768439137103, -0.0017339716761990327, -0.0013759037424729106, 0.00020326438666200074, -5.2896571649251976e-06,
        -2.74971719380108e-06, 4.429593641106452e-07, -6.233774430392935e-09, -7.307715462686451e-09, 1.0224170939693899e-09,
        9.216757239394847e-12, -2.0274907548018084e-11, 2.335250969991075e-12, 9.442568320231625e-14, -5.617412872062315e-14,
        5.18061950939178e-15, 4.505962503662171e-16, -1.5812412287777153e-16, 9.125427719165687e-18, 2.1403760114517123e-18,
        -3.2439858278464722e-19, -1.1385756579368147e-20, 3.4222135351279276e-21,
    )),
    (2.5, 3.25, (3.0838856104922208, -1.3148134174711063e-16), (
        1.0052589676941657, 0.005370914553570525, -0.003751208508259619, 0.002491442097034557, -0.001688275534312156,
        0.0009532893628168316, -0.00035503783027496423, 2.4031265234471902e-05, 6.828724592363731e-05,
        -4.731902535309067e-05, 1.2464442018500747e-05, 2.9258512867621483e-06, -3.984093561975551e-06,
        1.4985016408934115e-06, -3.024926046727966e-08, -2.7114716708373337e-07, 1.3393433137651983e-07,
        6.195677902142977e-10, -1.6186551454349112e-08,
    )),
    (4.0, 5.0, (4.849906401408584, -7.604722884658855e-17), (
        1.0103004648645453, -0.00013871931838076726, -0.00021503011982517477, 7.599527811248964e-05, -1.968177073328139e-05,
        4.526052372588452e-06, -9.930292051342401e-07, 2.2905357052773425e-07, -6.75566832201041e-08, 2.9016571066495795e-08,
        -1.5254384335283797e-08, 7.824805344556616e-09, -3.4718020633926528e-09, 1.3128189183257531e-09,
        -4.3743773148446677e-10, 7.11703134377788e-11, 4.287140183830387e-11, -2.0725415435331248e-11,
    )),
)  # fmt: skip


def erfinv(b: Builder, x: Value) -> Value:
    """x (c + m P(t)); the polynomials for |x| close to 1 are left out unless some lane needs them."""
    near, *tails = pick(x, ERFINV32, ERFINV64)
    logarithm = log_pair(b, b.fma(-x, x, 1.0))
    w = Pair(-logarithm.hi, -logarithm.lo)
    _, middle, c, p = near
    factor = _line(b, (w.hi - middle) + w.lo, w, c, p)
    beyond = w.hi >= tails[0][0] ** 2

    def tail() -> list[Value]:
        other = _tail_factor(b, w, tails)
        return [b.choose(beyond, o, n) for o, n in zip(other, factor, strict=True)]

    hi, lo = b.rarely(b.any(beyond), factor, tail)
    y = exact_product(b, x, hi)
    result = b.copysign(y.hi + b.fma(x, lo, y.lo), x)
    a = b.abs(x)
    return b.choose(a < 1.0, result, b.choose(a > 1.0, b.like(x, math.nan), x * math.inf))


def _tail_factor(b: Builder, w: Pair, tails: Sequence[Range]) -> Pair:
    """erfinv(x) / x from √w; the coefficients differ from lane to lane."""
    root = root_pair(b, w.hi, w.lo)

    def of_range(choices: Sequence[float]) -> Value:
        chosen = b.like(root.hi, choices[0])
        for (start, *_), choice in zip(tails[1:], choices[1:], strict=True):
            chosen = b.choose(root.hi >= start, choice, chosen)
        return chosen

    _, middles, constants, polynomials = zip(*tails, strict=True)
    terms = max(len(p) for p in polynomials)
    padded = [p + (0.0,) * (terms - len(p)) for p in polynomials]
    t = (root.hi - of_range(middles)) + root.lo
    c = [of_range(choices) for choices in zip(*constants, strict=True)]
    return _line(b, t, Pair(t, b.like(t, 0.0)), c, [of_range(choices) for choices in zip(*padded, strict=True)])


def _line(b: Builder, t: Value, m: Pair, c: Sequence[Operand], p: Sequence[Operand]) -> Pair:
    """c[0] + c[1] + m P(t)."""
    first, second, *others = p
    even, odd = split(b, t, others)
    slope = horner(b, t, (first, second, b.fma(odd, t, even)))
    start = b.like(t, c[0])
    hi = b.fma(m.hi, slope, start)
    return Pair(hi, b.fma(m.hi, slope, start - hi) + b.fma(m.lo, slope, c[1]))
