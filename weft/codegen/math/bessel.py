"""The modified Bessel functions i0 and i1, and i0e and i1e, which are those times e**-|x|."""

from __future__ import annotations

import math

from weft.codegen.math.basics import Coefficients, at_most, exact_product, pick, rough_inverse, split
from weft.codegen.math.exponential import times_exp
from weft.llvm.builder import Builder, Value

# i0(x) as a polynomial in x², |x| <= 8 and |x| <= 12; relative errors 2**-26.6, 2**-59.3.
I0_NEAR = Coefficients(
    (
        1.0, 0.25000003, 0.015624964, 0.00043404082, 6.7796173e-06, 6.798825e-08, 4.6287862e-10, 2.624735e-12,
        5.9054197e-15, 5.681101e-17,
    ),
    (
        1.0, 0.25, 0.015625000000000003, 0.0004340277777777742, 6.781684027779134e-06, 6.781684027751538e-08,
        4.709502797371583e-10, 2.402807547231176e-12, 9.385967109700355e-15, 2.8969029478544337e-17,
        7.242270589840521e-20, 1.496309842954453e-22, 2.598175916343994e-25, 3.8386521605315035e-28,
        4.937687551546731e-31, 5.223492053789324e-34, 6.288917551168329e-37, 1.8213667956812606e-40,
        8.062552960301684e-43,
    ),
)  # fmt: skip

# i0e(x) √x as a polynomial in 1/x from there on; relative errors 2**-25.1, 2**-53.8.
I0_FAR = Coefficients(
    (
        0.3989423, 0.049867116, 0.02801231, 0.031667612, 0.0033381165, 0.33750165,
    ),
    (
        0.3989422804014327, 0.049867785050122924, 0.028050629127455647, 0.029219394445184014, 0.044743938587928724,
        0.09044741876199303, 0.23564051417166698, 0.6745304740395982, -18.703664495756406, 1534.7106842968137,
        -61285.08353293902, 1644419.9156663262, -30821213.704753898, 406771015.5622026, -3705495750.9429255,
        22150506377.87669, -77936917612.19356, 121867664811.83594,
    ),
)  # fmt: skip

# i1(x) / x and i1e(x) √x, in the same way; relative errors 2**-28.4, 2**-61.9 and 2**-25.1, 2**-53.8.
I1_NEAR = Coefficients(
    (
        0.5, 0.0625, 0.0026041656, 5.4253996e-05, 6.7807747e-07, 5.659167e-09, 3.327168e-11, 1.6024442e-13,
        3.6460147e-16, 2.6968789e-18,
    ),
    (
        0.5, 0.0625, 0.002604166666666667, 5.425347222222198e-05, 6.781684027778546e-07, 5.651403356468426e-09,
        3.3639305694701736e-11, 1.5017547175132025e-13, 5.214426151075042e-16, 1.448451538054008e-18,
        3.2919397387081027e-21, 6.234648297294143e-24, 9.99268726928741e-27, 1.3712201992651263e-29,
        1.6440638214568443e-32, 1.6410555917998512e-35, 1.8218713503394686e-38, 5.593065569660562e-42,
        2.075191407546005e-44,
    ),
)  # fmt: skip
I1_FAR = Coefficients(
    (
        0.3989423, -0.1496065, -0.046532277, -0.046902284, 0.015372585, -0.46829045,
    ),
    (
        0.3989422804014327, -0.14960335515060355, -0.04675104843159006, -0.04090718744294574, -0.057521348589939965,
        -0.11134407289430336, -0.21203112119606624, -4.735752864506955, 194.0800140796109, -7349.794981190597,
        205977.48980342865, -4358404.807993899, 68949686.94015294, -801576178.0456353, 6627107284.697534,
        -36758393487.71488, 122110910834.13103, -182823011583.2619,
    ),
)  # fmt: skip


def _parts(b: Builder, x: Value, near: Coefficients, far: Coefficients) -> tuple[Value, Value, Value]:
    """Whether |x| is large, and the two polynomials; the second without its √|x|."""
    a = b.abs(x)
    end = pick(x, 8.0, 12.0)
    bounded = at_most(b, a, end)
    square = exact_product(b, bounded, bounded)
    even, odd = split(b, square.hi, near.of(x))
    value = b.fma(odd, square.hi, even)
    # The error of the square counts a/2 times: both functions grow about like e**a, by 1 / (2 a) of themselves.
    value = b.fma(value, 0.5 * square.lo * rough_inverse(b, bounded), value)
    inverse = 1.0 / b.choose(a > end, a, end)
    far_even, far_odd = split(b, inverse, far.of(x))
    return a > end, value, b.fma(far_odd, inverse, far_even) / b.sqrt(a)


def i0(b: Builder, x: Value) -> Value:
    large, near, far = _parts(b, x, I0_NEAR, I0_FAR)
    (grown,) = times_exp(b, b.abs(x), far)
    return b.choose(b.abs(x).eq(math.inf), math.inf, b.choose(large, grown, near))


def i0e(b: Builder, x: Value) -> Value:
    large, near, far = _parts(b, x, I0_NEAR, I0_FAR)
    (shrunk,) = times_exp(b, -b.abs(x), near)
    return b.choose(large, far, shrunk)


def i1(b: Builder, x: Value) -> Value:
    large, near, far = _parts(b, x, I1_NEAR, I1_FAR)
    (grown,) = times_exp(b, b.abs(x), far)
    grown = b.copysign(b.choose(b.abs(x).eq(math.inf), math.inf, grown), x)
    return b.choose(large, grown, x * near)


def i1e(b: Builder, x: Value) -> Value:
    large, near, far = _parts(b, x, I1_NEAR, I1_FAR)
    (shrunk,) = times_exp(b, -b.abs(x), x * near)
    return b.choose(large, b.copysign(far, x), shrunk)
