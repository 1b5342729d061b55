"""How a transform of some length is taken apart, and the roots of unity that it multiplies by.

What stands here is a function of the length and the dtype alone, never of the machine, of a layout or of a batch: it
fixes the order of all arithmetic, and so the bits (docs/numerics.md).
"""

from __future__ import annotations

import functools

import numpy as np

from weft.records import dataclass

PRIMES = (2, 3, 5, 7, 11, 13)
"""The primes that have butterflies. A length with another one is a convolution (Bluestein)."""
SINGLE = 64
"""Shorter transforms are not split in two."""
LONG = 1 << 15
"""Longer ones are made in two kernels, and the factors between their halves are products of two roots."""


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
    for prime in PRIMES:
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
    weigh = {2: 3, 3: 4, 4: 4, 5: 7, 7: 10, 8: 6, 11: 17, 13: 22}
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


# ---- roots of unity ----


def roots(n: int, powers: np.ndarray) -> np.ndarray:
    """exp(-2 pi i k / n) for integers k, to (almost always) the last bit of any dtype that it is then rounded to."""
    k = powers.astype(np.int64) % n
    turns = (8 * k + n) // (2 * n)  # to the nearest quarter
    rest = (4 * k - turns * n).astype(np.longdouble)
    angle = rest * (2 * np.arctan(np.longdouble(1))) / n
    c, s = np.cos(angle), np.sin(angle)
    quarter = turns % 4
    re = np.choose(quarter, [c, -s, -c, s])
    im = np.choose(quarter, [s, c, -s, -c])
    found = np.empty(k.shape, np.clongdouble)
    found.real, found.imag = re, -im
    return found


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
