"""The error function and its inverse."""

from __future__ import annotations

from weft.codegen.builder import Builder, Value
from weft.codegen.math.basics import Coefficients, Pair, at_most, exact_product, fast_sum, format_of, horner, pick, split, to_bits
from weft.codegen.math.exponential import EXP2, LN2_HI, power_of_two

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
