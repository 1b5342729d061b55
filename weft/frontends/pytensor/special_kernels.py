"""Special functions as kernels: each is written for one element, with the loops that it needs. All is float64.

Bessel functions of any order come from continued fractions (Steed's for x >= 2) and from Temme's series below that,
started at an order between -1/2 and 1/2 and carried to the wanted one by recurrence; from the expansions for large x
where those hold. The hypergeometric function is its power series, continued towards 1 by Taylor series of solutions of
its differential equation, each of which halves the distance. Owen's function is a quadrature of the Gaussian part.
"""

# mypy: disable-error-code="name-defined, no-untyped-def"
# ruff: noqa: F821, ANN
# What a kernel is made of (positions of threads, elementary functions) has no names in Python.

from __future__ import annotations

import math

import numpy as np

EPS = 1.1e-16
TINY = 1e-290
BIG = 1e100
PI = math.pi
MOST = 100_000
"""Steps that no series or fraction needs."""

# 1 / gamma(1 + z) = sum of these times z**k.
E0, E1, E2, E3, E4, E5, E6, E7, E8, E9, E10, E11, E12, E13 = (
    1.0, -0.6558780715202539, 0.16653861138229148, -0.009621971527876973, -0.0011651675918590652,
    0.0001280502823881162, -1.2504934821426706e-06, -2.056338416977607e-07, 5.002007644469223e-09,
    1.0434267116911005e-10, -3.696805618642206e-12, -2.0583260535665066e-14, 1.2267786282382608e-15,
    1.1866922547516004e-18,
)  # fmt: skip
O0, O1, O2, O3, O4, O5, O6, O7, O8, O9, O10, O11, O12 = (
    0.5772156649015329, -0.04200263503409524, -0.04219773455554433, 0.0072189432466631, -0.00021524167411495098,
    -2.013485478078824e-05, 1.133027231981696e-06, 6.116095104481416e-09, -1.18127457048702e-09,
    7.782263439905071e-12, 5.100370287454476e-13, -5.348122539423018e-15, -1.1812593016974588e-16,
)  # fmt: skip


def even_part(s):
    """The mean of 1 / gamma(1 - m) and 1 / gamma(1 + m), by s = m * m."""
    high = E7 + s * (E8 + s * (E9 + s * (E10 + s * (E11 + s * (E12 + s * E13)))))
    return E0 + s * (E1 + s * (E2 + s * (E3 + s * (E4 + s * (E5 + s * (E6 + s * high))))))


def odd_part(s):
    """Half their difference over m, by s = m * m."""
    high = O6 + s * (O7 + s * (O8 + s * (O9 + s * (O10 + s * (O11 + s * O12)))))
    return -(O0 + s * (O1 + s * (O2 + s * (O3 + s * (O4 + s * (O5 + s * high))))))


def away_from_zero(x):
    return TINY if abs(x) < TINY else x


def sin_over(x):
    """sin(x) / x."""
    return 1.0 if abs(x) < 1e-9 else sin(x) / x


def sinh_over(x):
    """sinh(x) / x."""
    return 1.0 if abs(x) < 1e-9 else sinh(x) / x


def temme(m, x, sign, r, sums):
    """Temme's series for the orders m and m + 1, where x < 2 and |m| <= 1/2: K for the sign 1 and r = 0, and for the
    sign -1 what Y is -2 / pi times, where r is 2 sin(pi m / 2)**2 / m. The second sum lacks a factor 2 / x."""
    zero = x * 0.0
    half = 0.5 * x
    s = m * m
    gam1 = odd_part(s)
    gam2 = even_part(s)
    d = -log(half)
    e = m * d
    power = exp(e)
    f = (gam1 * cosh(e) + gam2 * sinh_over(e) * d) / sin_over(PI * m)
    p = 0.5 * power / (gam2 - m * gam1)
    q = 0.5 / (power * (gam2 + m * gam1))
    c = zero + 1.0
    total = f + r * q
    total1 = p
    k = zero + 1.0
    while k < 500.0:
        f = (k * f + p + q) / (k * k - s)
        c = c * sign * (half * half) / k
        p = p / (k - m)
        q = q / (k + m)
        term = c * (f + r * q)
        total = total + term
        total1 = total1 + c * p - k * term
        if abs(term) < abs(total) * EPS:
            break
        k = k + 1.0
    sums[0] = total
    sums[1] = total1


def bessel_jy(order, at, first, second):
    """J and Y of an order >= 0 at x > 0."""
    i = thread_position_in_grid.x
    v = order[i]
    x = at[i]
    zero = x * 0.0
    j = zero
    y = zero
    if x > 25.0 and x > 0.25 * v * v:
        # Hankel's expansion.
        p = zero + 1.0
        q = zero
        term = zero + 1.0
        k = zero + 1.0
        turn = 1
        while k < 200.0:
            new = term * (4.0 * v * v - (2.0 * k - 1.0) * (2.0 * k - 1.0)) / (8.0 * k * x)
            if abs(new) < EPS or (abs(new) > abs(term) and k > v):
                break
            term = new
            if turn == 1:
                q = q + term
            elif turn == 2:
                p = p - term
            elif turn == 3:
                q = q - term
            else:
                p = p + term
            turn = turn % 4 + 1
            k = k + 1.0
        half = 0.5 * v + 0.25
        part = PI * (half - 2.0 * floor(0.5 * half))
        c = cos(x) * cos(part) + sin(x) * sin(part)
        s = sin(x) * cos(part) - cos(x) * sin(part)
        scale = sqrt(2.0 / (PI * x))
        j = scale * (p * c - q * s)
        y = scale * (p * s + q * c)
    else:
        steps = floor(v + 0.5) if x < 2.0 else max(0.0, floor(v - x + 1.5))
        m = v - steps
        inverse = 1.0 / x
        twice = 2.0 * inverse
        # J' / J at the order v, by its continued fraction, with the sign of J.
        sign = zero + 1.0
        ratio = max(v * inverse, TINY)
        b = twice * v
        d = zero
        c = ratio
        n = 0
        while n < MOST:
            b = b + twice
            d = 1.0 / away_from_zero(b - d)
            c = away_from_zero(b - 1.0 / c)
            change = c * d
            ratio = ratio * change
            if d < 0.0:
                sign = -sign
            if abs(change - 1.0) < EPS:
                break
            n = n + 1
        # Down to the order m.
        here = sign * 1e-200
        there = here
        slope = ratio * here
        left = steps
        while left > 0.0:
            next_ = (m + left) * inverse * here + slope
            slope = (m + left - 1.0) * inverse * next_ - here
            here = next_
            if abs(here) > BIG:
                here = here / BIG
                slope = slope / BIG
                there = there / BIG
            left = left - 1.0
        if here == 0.0:
            here = zero + 1e-300
        f = slope / here
        first_j = zero
        first_y = zero
        next_y = zero
        if x < 2.0:
            near = sin_over(0.5 * PI * m)
            sums = thread_memory(np.float64, 2)
            temme(m, x, zero - 1.0, PI * (0.5 * PI * m) * near * near, sums)
            total = 2.0 / PI * sums[0]
            total1 = 2.0 / PI * sums[1]
            first_y = -total
            next_y = -total1 * twice
            first_j = twice / PI / ((m * inverse * first_y - next_y) - f * first_y)
        else:
            # Steed's second fraction, p + iq.
            a = 0.25 - m * m
            p = -0.5 * inverse
            q = zero + 1.0
            br = 2.0 * x
            bi = zero + 2.0
            factor = a * inverse / (p * p + q * q)
            cr = br + q * factor
            ci = bi + p * factor
            den = br * br + bi * bi
            dr = br / den
            di = -bi / den
            re = cr * dr - ci * di
            im = cr * di + ci * dr
            old = p
            p = p * re - q * im
            q = old * im + q * re
            k = zero + 2.0
            while k < MOST:
                a = a + 2.0 * (k - 1.0)
                bi = bi + 2.0
                dr = a * dr + br
                di = a * di + bi
                if abs(dr) + abs(di) < TINY:
                    dr = zero + TINY
                factor = a / (cr * cr + ci * ci)
                cr = br + cr * factor
                ci = bi - ci * factor
                if abs(cr) + abs(ci) < TINY:
                    cr = zero + TINY
                den = dr * dr + di * di
                dr = dr / den
                di = -di / den
                re = cr * dr - ci * di
                im = cr * di + ci * dr
                old = p
                p = p * re - q * im
                q = old * im + q * re
                if abs(re - 1.0) + abs(im) < EPS:
                    break
                k = k + 1.0
            gamma = (p - f) / q
            first_j = sqrt(twice / PI / ((p - f) * gamma + q))
            if here < 0.0:
                first_j = -first_j
            first_y = first_j * gamma
            next_y = m * inverse * first_y - (first_y * p + first_j * q)
        j = first_j * (there / here)
        # Up to the order v.
        k = zero + 1.0
        while k <= steps:
            new = (m + k) * twice * next_y - first_y
            first_y = next_y
            next_y = new
            k = k + 1.0
        y = first_y
        if x * x < 1e-8 * (v + 1.0) or (v > 60.0 and x * x < v + 1.0):
            total = zero + 1.0
            term = zero + 1.0
            k = zero + 1.0
            while abs(term) > EPS * total:
                term = term * (-0.25 * x * x) / (k * (v + k))
                total = total + term
                k = k + 1.0
            j = total * exp(v * log(0.5 * x) - lgamma(v + 1.0)) if v > 0.0 else total
    first[i] = j
    second[i] = y


def bessel_ik(order, at, first, second):
    """I times e**-x and K times e**x, of an order >= 0 at x > 0."""
    i = thread_position_in_grid.x
    v = order[i]
    x = at[i]
    zero = x * 0.0
    grown = zero
    shrunk = zero
    if x > 30.0 and x > v * v:
        down = zero + 1.0
        up = zero + 1.0
        term = zero + 1.0
        k = zero + 1.0
        sign = zero - 1.0
        while k < 200.0:
            term = term * (4.0 * v * v - (2.0 * k - 1.0) * (2.0 * k - 1.0)) / (8.0 * k * x)
            if abs(term) < EPS:
                break
            down = down + sign * term
            up = up + term
            sign = -sign
            k = k + 1.0
        grown = down / sqrt(2.0 * PI * x)
        shrunk = up * sqrt(PI / (2.0 * x))
    else:
        steps = floor(v + 0.5)
        m = v - steps
        inverse = 1.0 / x
        twice = 2.0 * inverse
        # I' / I at the order v.
        ratio = max(v * inverse, TINY)
        b = twice * v
        d = zero
        c = ratio
        n = 0
        while n < MOST:
            b = b + twice
            d = 1.0 / (b + d)
            c = b + 1.0 / c
            change = c * d
            ratio = ratio * change
            if abs(change - 1.0) < EPS:
                break
            n = n + 1
        here = zero + 1e-200
        there = here
        slope = ratio * here
        left = steps
        while left > 0.0:
            next_ = (m + left) * inverse * here + slope
            slope = (m + left - 1.0) * inverse * next_ + here
            here = next_
            if here > BIG:
                here = here / BIG
                slope = slope / BIG
                there = there / BIG
            left = left - 1.0
        f = slope / here
        k0 = zero
        k1 = zero
        if x < 2.0:
            sums = thread_memory(np.float64, 2)
            temme(m, x, zero + 1.0, zero, sums)
            scale = exp(x)
            k0 = sums[0] * scale
            k1 = sums[1] * twice * scale
        else:
            b = 2.0 * (1.0 + x)
            d = 1.0 / b
            h = d
            change = d
            q1 = zero
            q2 = zero + 1.0
            start = 0.25 - m * m
            c = start
            q = start
            a = -start
            total = 1.0 + q * change
            k = zero + 2.0
            while k < MOST:
                a = a - 2.0 * (k - 1.0)
                c = -a * c / k
                new = (q1 - b * q2) / a
                q1 = q2
                q2 = new
                q = q + c * new
                b = b + 2.0
                d = 1.0 / (b + a * d)
                change = (b * d - 1.0) * change
                h = h + change
                term = q * change
                total = total + term
                if abs(term) < abs(total) * EPS:
                    break
                k = k + 1.0
            k0 = sqrt(PI / (2.0 * x)) / total
            k1 = k0 * (m + x + 0.5 - start * h) * inverse
        grown = inverse / (f * k0 - (m * inverse * k0 - k1)) * (there / here)
        k = zero + 1.0
        while k <= steps:
            new = (m + k) * twice * k1 + k0
            k0 = k1
            k1 = new
            k = k + 1.0
        shrunk = k0
        if x * x < 1e-8 * (v + 1.0) or (v > 60.0 and x * x < v + 1.0):
            total = zero + 1.0
            term = zero + 1.0
            k = zero + 1.0
            while term > EPS * total:
                term = term * (0.25 * x * x) / (k * (v + k))
                total = total + term
                k = k + 1.0
            grown = total * exp(v * log(0.5 * x) - lgamma(v + 1.0) - x) if v > 0.0 else total * exp(-x)
    first[i] = grown
    second[i] = shrunk


def hypergeometric(first, second, third, at, out):
    """2F1(a, b; c; z) for 0 <= z < 1, and for polynomials at any z."""
    i = thread_position_in_grid.x
    a = first[i]
    b = second[i]
    c = third[i]
    z = at[i]
    zero = z * 0.0
    polynomial = (a <= 0.0 and a == floor(a)) or (b <= 0.0 and b == floor(b))
    start = z if polynomial or z < 0.8 else zero + 0.7
    value = zero + 1.0
    slope = a * b / c
    term = zero + 1.0
    change = slope
    k = zero
    while k < MOST:
        term = term * (a + k) * (b + k) / ((c + k) * (k + 1.0)) * start
        value = value + term
        k = k + 1.0
        change = change * (a + k) * (b + k) / ((c + k) * k) * start
        slope = slope + change
        if term == 0.0 or (abs(term) < EPS * abs(value) and abs(change) < EPS * abs(slope)):
            break
    n = 0
    while start < z and n < 2000:
        # The solution's Taylor series about `start`: t**k times u_k, two of which are known.
        step = min(z - start, 0.4 * (1.0 - start))
        near = start * (1.0 - start)
        past = 1.0 - 2.0 * start
        u0 = value
        u1 = slope * step
        value = u0 + u1
        rise = u1
        k = zero
        small = 0
        while k < 2000.0:
            new = (
                (a + k) * (b + k) * u0 * step * step - (k + 1.0) * (past * k + c - (a + b + 1.0) * start) * u1 * step
            ) / (near * (k + 1.0) * (k + 2.0))
            u0 = u1
            u1 = new
            value = value + new
            rise = rise + (k + 2.0) * new
            k = k + 1.0
            small = small + 1 if (k + 2.0) * abs(new) < EPS * abs(rise) and abs(new) < EPS * abs(value) else 0
            if small > 2:
                break
        slope = rise / step
        start = z if z - start <= step else start + step
        n = n + 1
    out[i] = value


def owen(height, at, places, weights, out):
    """T(h, a) for h >= 0 and 0 <= a <= 1."""
    i = thread_position_in_grid.x
    h = height[i]
    a = at[i]
    zero = a * 0.0
    end = min(a, 9.0 / h) if h > 0.0 else a
    total = zero
    for k in range(NODES):
        t = end * places[k]
        total = total + weights[k] * exp(-0.5 * h * h * t * t) / (1.0 + t * t)
    out[i] = total * end * exp(-0.5 * h * h) / (2.0 * PI)


NODES = 40
_PLACES, _WEIGHTS = np.polynomial.legendre.leggauss(NODES)
PLACES, WEIGHTS = 0.5 * (_PLACES + 1.0), 0.5 * _WEIGHTS
