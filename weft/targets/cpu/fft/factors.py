"""How a transform of some length is taken apart, and the roots of unity that it multiplies by.

What stands here is a function of the length and the dtype alone, never of the machine, of a layout or of a batch: it
fixes the order of all arithmetic, and so the bits (docs/numerics.md).
"""

from __future__ import annotations

import functools
import math
from typing import Final

import numpy as np

from weft.records import dataclass

PRIMES = (2, 3, 5, 7, 11, 13)
"""The primes that have butterflies of their own."""
SUMMED = (17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61)
"""Those whose transforms are sums of products, one stage for all of them."""
SINGLE = 64
"""Shorter transforms are not split in two."""
_MANY: Final = 4096
LONG = 1 << 15
"""Longer ones are made in two kernels or three, and the factors between their halves are products of two roots."""


@dataclass(frozen=True, slots=True)
class Split:
    """A transform of length n1 * n2: n2 transforms of length n1 (over what lies n2 apart), factors, and n1 transforms
    of length n2. n2 is 1 for one that is made in one piece. `first` and `second` are the radices of their stages."""

    n1: int
    n2: int
    first: tuple[int, ...]
    second: tuple[int, ...]

    @property
    def n(self) -> int:
        return self.n1 * self.n2

    @property
    def swapped(self) -> Split:
        """The transform that takes its operand in the order in which this one leaves its result."""
        return Split(self.n2, self.n1, self.second, self.first)

    @property
    def is_long(self) -> bool:
        return self.n > LONG


def prime_factors(n: int) -> list[int] | None:
    """Those of a length that has only small ones."""
    found = []
    for prime in (*PRIMES, *SUMMED):
        while n % prime == 0:
            found.append(prime)
            n //= prime
    return found if n == 1 else None


def radices(n: int) -> tuple[int, ...]:
    """The stages of a transform of a length with small factors: eights and fours for twos, which take the fewest
    passes, then the other primes."""
    factors = prime_factors(n)
    assert factors is not None
    twos = factors.count(2)
    fours = 0 if twos % 3 == 0 else 1 if twos % 3 == 2 else 2 if twos > 1 else 0
    eights = (twos - 2 * fours) // 3
    rest = (2,) if twos == 1 else ()
    return (*(8,) * eights, *(4,) * fours, *rest, *(p for p in factors if p > 2))


def _cost(n1: int, n2: int, lanes: int) -> int:
    """Vectors that the stages and the exchange between the halves touch."""
    across, along = -(-n2 // lanes), -(-n1 // lanes)
    weigh = {2: 3, 3: 4, 4: 4, 5: 7, 7: 10, 8: 6, 11: 17, 13: 22, **{p: p * p // 8 for p in SUMMED}}
    halves = n1 * across * sum(weigh[r] for r in radices(n1)) + n2 * along * sum(weigh[r] for r in radices(n2))
    return halves + 6 * lanes * across * along


def _lanes(size: int) -> int:
    """Those that lengths are chosen for, whatever the machine has."""
    return 64 // size


@functools.lru_cache(1024)
def split(n: int, size: int) -> Split | None:
    """How to take apart a length, for reals of `size` bytes; None if it has a large prime factor."""
    if prime_factors(n) is None:
        return None
    if n < SINGLE:
        return Split(n, 1, radices(n), ())
    pairs = [(a, n // a) for a in range(4, int(n**0.5) + 1) if n % a == 0]
    pairs += [(b, a) for a, b in pairs]
    if not pairs:  # twice or three times a prime
        return Split(n, 1, radices(n), ())
    lanes = _lanes(size)
    n1, n2 = min(pairs, key=lambda pair: (_cost(pair[0], pair[1], lanes), pair))
    return Split(n1, n2, radices(n1), radices(n2))


@functools.lru_cache(1024)
def convolution_length(n: int, size: int) -> Split:
    """The cheapest length at which the convolution of Bluestein's algorithm for length n can be made."""
    least = max(2 * n - 1, SINGLE)
    candidates = []
    odd = [3**i * 5**j for i in range(4) for j in range(3)]
    for m in odd:
        while m < least:
            m *= 2
        candidates.append(m)
    lanes = _lanes(size)

    def cost(m: int) -> tuple[int, int]:
        found = split(m, size)
        assert found is not None
        return _cost(found.n1, found.n2, lanes), m

    chosen = split(min(candidates, key=cost), size)
    assert chosen is not None
    return chosen


@dataclass(frozen=True, slots=True)
class Plan:
    """How a length is done: "stages" of its own factors; "powers" is Rader's algorithm (a prime's elements but the
    first, in the order of the powers of a generator, are a cyclic convolution); "wave" is Bluestein's (any length is
    part of a longer convolution). `split` is that of the length itself, or of the convolution's."""

    way: str
    split: Split


@functools.lru_cache(1024)
def plan(n: int, size: int) -> Plan:
    """Stages where the length has small factors; powers for a prime that is one more than such a length."""
    found = split(n, size)
    if found is not None:
        return Plan("stages", found)
    if n <= LONG and _is_prime(n) and max(_factors(n - 1)) <= PRIMES[-1]:
        found = split(n - 1, size)
        assert found is not None
        return Plan("powers", found)
    return Plan("wave", convolution_length(n, size))


def _factors(n: int) -> list[int]:
    """The prime factors of any number from 2 on."""
    found, prime = [], 2
    while prime * prime <= n:
        while n % prime == 0:
            found.append(prime)
            n //= prime
        prime += 1
    return found + [n] * (n > 1)


def _is_prime(n: int) -> bool:
    return _factors(n) == [n]


@functools.lru_cache(64)
def powers(p: int) -> np.ndarray:
    """The powers, from 0 on, of the least generator modulo a prime."""
    odd = sorted(set(_factors(p - 1)))
    generator = next(g for g in range(2, p) if all(pow(g, (p - 1) // q, p) != 1 for q in odd))
    found = [1]
    while len(found) < p - 1:
        found.append(found[-1] * generator % p)
    return np.array(found, np.int64)


# ---- roots of unity ----


def roots(n: int, powers: np.ndarray) -> np.ndarray:
    """exp(-2 pi i k / n) for integers k, to (almost always) the last bit of any dtype that it is then rounded to."""
    k = powers.astype(np.int64) % n
    turns = (8 * k + n) // (2 * n)  # to the nearest quarter
    c, s = _cos_sin(4 * k - turns * n, n)
    quarter = turns % 4
    re = np.choose(quarter, [c, -s, -c, s])
    im = np.choose(quarter, [s, c, -s, -c])
    found = np.empty(k.shape, np.clongdouble)
    found.real, found.imag = re, -im
    return found


def _cos_sin(k: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Those of k / n quarters of a turn, for k from -n / 2 to n / 2. Of many, each is the product of two: extended
    precision has bits to spare for that, and takes long for sines."""
    if k.size < _MANY:
        angle = k.astype(np.longdouble) * (2 * np.arctan(np.longdouble(1))) / n
        return np.cos(angle), np.sin(angle)
    step = math.isqrt(n) + 1
    high, low = np.divmod(np.abs(k), step)
    (a, b), (c, d) = _cos_sin(np.arange(n // 2 // step + 1) * step, n), _cos_sin(np.arange(step), n)
    a, b, c, d = a[high], b[high], c[low], d[low]
    return a * c - b * d, np.where(k < 0, -1, 1) * (b * c + a * d)


def stage_roots(radices: tuple[int, ...]) -> list[np.ndarray]:
    """For each stage the factors [p, k - 1] of result k of butterfly p."""
    found = []
    n = int(np.prod(radices, dtype=np.int64))
    for radix in radices:
        p, k = np.arange(n // radix)[:, None], np.arange(1, radix)[None, :]
        found.append(roots(n, p * k))
        n //= radix
    return found


def middle_roots(n1: int, n2: int) -> np.ndarray:
    """The factors [k1, j2] between the halves."""
    return roots(n1 * n2, np.arange(n1, dtype=np.int64)[:, None] * np.arange(n2, dtype=np.int64)[None, :])


def chirp(n: int) -> np.ndarray:
    """exp(-pi i j² / n) for j below n."""
    j = np.arange(n, dtype=np.int64)
    return roots(2 * n, (j * j) % (2 * n))


def chirp_spectrum(n: int, m: int, size: int) -> np.ndarray:
    """What the spectrum of a convolution of length m is multiplied by, for Bluestein's algorithm."""
    wave = np.conj(chirp(n)).astype(np.complex128 if size == 4 else np.clongdouble)
    b = np.zeros(m, wave.dtype)
    b[:n] = wave
    b[m - n + 1 :] = wave[:0:-1]
    return np.fft.fft(b) / m


def power_spectrum(p: int, size: int) -> np.ndarray:
    """What the spectrum of a prime's elements in the order of `powers` is multiplied by, for Rader's algorithm: with
    it, a second transform gives the results in that order."""
    backwards = np.roll(powers(p)[::-1], 1)
    wave = roots(p, backwards).astype(np.complex128 if size == 4 else np.clongdouble)
    return np.fft.fft(wave) / (p - 1)


def sum_roots(p: int) -> np.ndarray:
    """cos + i sin of 2 pi q k / p, for q and k from 1 to half of an odd prime."""
    k = np.arange(1, p // 2 + 1, dtype=np.int64)
    return np.conj(roots(p, k[:, None] * k[None, :]))
