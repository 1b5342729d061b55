"""Symbolic sizes: a `Dim` acts as an int in the user's code and is an exact expression to us.

A `Dim` is a polynomial with integer coefficients over *atoms* of its `DimEnv`: symbols, floor quotients, and positive parts (`max(e, 0)`).
Remainder, `max`, `min` and `abs` are written in those, so equal expressions meet in one normal form and are one object. Arithmetic stays
symbolic; every way of reading the number records a guard, which a later call must satisfy. Shape rules and passes may ask anything here; what
they ask with the functions of this module (`provably_equal`, `same_shape`, `shape_key`, ...) never records a guard.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np

from weft.errors import at_user_line, user_line

Mono: TypeAlias = tuple[int, ...]
"""A product of atoms, by their ids in ascending order, repeated for powers; () is 1."""
Poly: TypeAlias = tuple[tuple[Mono, int], ...]
"""Terms (product, non-zero coefficient) in ascending order of product: the constant comes first, and () is 0."""
Interval: TypeAlias = tuple[int | None, int | None]
"""Smallest and largest possible value; None where there is no bound."""

ONE: Final[Poly] = (((), 1),)
_LARGEST_POWER: Final = 8  # `d ** 9` is more likely a number to read than a size
_MOST_COMPOSITE: Final = 6  # atoms a proof takes apart; each may double its work


class UnknownSizeError(ValueError):
    """The number of a size that depends on data was asked for while tracing."""


# ---- polynomials ----


def _constant(n: int) -> Poly:
    return (((), n),) if n else ()


def _shift(p: Poly, n: int) -> Poly:
    """p + n."""
    if not n:
        return p
    if not p or p[0][0]:
        return (((), n), *p)
    n += p[0][1]
    return (((), n), *p[1:]) if n else p[1:]


def _plus(p: Poly, q: Poly, scale: int = 1) -> Poly:
    """p + scale * q, for scale != 0."""
    total = dict(p)
    for mono, c in q:
        c = total.get(mono, 0) + scale * c
        if c:
            total[mono] = c
        else:
            del total[mono]
    return tuple(sorted(total.items()))


def _scaled(p: Poly, n: int) -> Poly:
    """n * p."""
    return tuple([(mono, n * c) for mono, c in p]) if n else ()


def _times(p: Poly, q: Poly) -> Poly:
    total: dict[Mono, int] = {}
    for m1, c1 in p:
        for m2, c2 in q:
            mono = tuple(sorted(m1 + m2)) if m1 and m2 else m1 or m2
            total[mono] = total.get(mono, 0) + c1 * c2
    return tuple(sorted([term for term in total.items() if term[1]]))


def _graded(mono: Mono) -> tuple[int, Mono]:
    """An order that multiplying both sides preserves, as long division needs."""
    return len(mono), mono


def _over(mono: Mono, divisor: Mono) -> Mono | None:
    """mono / divisor, or None where it does not divide."""
    rest = list(mono)
    for i in divisor:
        if i not in rest:
            return None
        rest.remove(i)
    return tuple(rest)


def _divide(p: Poly, q: Poly) -> tuple[Poly, Poly]:
    """(t, r) with p = q * t + r: long division, coefficients rounded down."""
    lead, c_lead = max(q, key=lambda term: _graded(term[0]))
    rest, quotient, remainder = dict(p), {}, {}
    while rest:
        mono = max(rest, key=_graded)
        c = rest.pop(mono)
        factor = _over(mono, lead)
        t, r = (0, c) if factor is None else divmod(c, c_lead)
        if r:
            remainder[mono] = r
        if not t:
            continue
        assert factor is not None
        quotient[factor] = t
        lower = _times(((factor, t),), tuple(term for term in q if term[0] != lead))
        rest = dict(_plus(tuple(rest.items()), lower, -1))
    return tuple(sorted(quotient.items())), tuple(sorted(remainder.items()))


def _as_int(p: Poly) -> int | None:
    """The number that p is, or None."""
    if not p:
        return 0
    return p[0][1] if len(p) == 1 and not p[0][0] else None


def _normal(p: Poly) -> tuple[Poly, int, int]:
    """(x, factor, constant) with p = factor * x + constant, x without constant or common factor and led by a positive term."""
    constant, rest = (p[0][1], p[1:]) if not p[0][0] else (0, p)
    factor = math.gcd(*[c for _, c in rest])
    if rest[0][1] < 0:
        factor = -factor
    return tuple([(mono, c // factor) for mono, c in rest]), factor, constant


def _split(p: Poly, atom: int) -> tuple[Poly, Poly] | None:
    """(a, b) with p = a + b * atom, or None where the atom stands in a higher power."""
    without, factor = [], []
    for mono, c in p:
        match mono.count(atom):
            case 0:
                without.append((mono, c))
            case 1:
                at = mono.index(atom)
                factor.append((mono[:at] + mono[at + 1 :], c))
            case _:
                return None
    return tuple(without), tuple(sorted(factor))


# ---- atoms ----


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A size that is not known until a call: of an input axis (`hint` is its size in this trace), or of data (no hint)."""

    name: str
    hint: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Quotient:
    """floor(num / den)."""

    num: Poly
    den: Poly
    hint: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Positive:
    """max(arg, 0)."""

    arg: Poly
    hint: int | None


Atom: TypeAlias = Symbol | Quotient | Positive


# ---- proofs ----


def _best(*lows: int | None) -> int | None:
    return max((low for low in lows if low is not None), default=None)


def _worst(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else min(a, b)


class _Bounds:
    """Bounds of polynomials that follow from known bounds of a few. All of them are proved; not all that hold are found."""

    __slots__ = ("atoms", "facts", "intervals", "lows")

    def __init__(self, atoms: list[Atom]) -> None:
        self.atoms = atoms
        self.facts: dict[Poly, Interval] = {}  # by normal form, see _normal
        self.lows: dict[Poly, int | None] = {}
        self.intervals: dict[int, Interval] = {}

    def learn(self, p: Poly, low: int | None, high: int | None) -> None:
        """low <= p <= high, for p in normal form."""
        known_low, known_high = self.facts.get(p, (None, None))
        low = _best(low, known_low)
        if high is None or (known_high is not None and known_high < high):
            high = known_high
        self.facts[p] = low, high
        self.lows.clear()
        self.intervals.clear()

    def low(self, p: Poly) -> int | None:
        """The largest proved lower bound of p."""
        if p in self.lows:
            return self.lows[p]
        number = _as_int(p)
        low = number if number is not None else _best(self._stated(p), self._by_intervals(p), self._by_definition(p))
        self.lows[p] = low
        return low

    def high(self, p: Poly) -> int | None:
        """The smallest proved upper bound of p."""
        low = self.low(_scaled(p, -1))
        return None if low is None else -low

    def _stated(self, p: Poly) -> int | None:
        x, factor, constant = _normal(p)
        low, high = self.facts.get(x, (None, None))
        end = low if factor > 0 else high
        return None if end is None else factor * end + constant

    def interval(self, atom: int) -> Interval:
        found = self.intervals.get(atom)
        if found is None:
            unit: Poly = (((atom,), 1),)
            low, high = self._defined_interval(self.atoms[atom])
            stated_low, stated_high = self.facts.get(unit, (None, None))
            if high is None or (stated_high is not None and stated_high < high):
                high = stated_high
            found = self.intervals[atom] = _best(low, stated_low), high
        return found

    def _defined_interval(self, atom: Atom) -> Interval:
        match atom:
            case Positive(arg):
                high = self.high(arg)
                return max(0, self.low(arg) or 0), None if high is None else max(0, high)
            case Quotient(num, den) if (least := self.low(den)) is not None and least > 0:
                low, high, most = self.low(num), self.high(num), self.high(den)
                if low is not None:  # a positive value shrinks most under the largest divisor, a negative one grows least
                    low = low // least if low < 0 else low // most if most is not None else 0
                if high is not None:
                    high = high // least if high >= 0 else high // most if most is not None else -1
                return low, high
            case _:
                return None, None

    def _by_intervals(self, p: Poly) -> int | None:
        """Write every atom as an end of its interval plus or minus something >= 0: then each term has a sign of its own."""
        anchored: Poly = ()
        for mono, c in p:
            term = _constant(c)
            for atom in mono:
                low, high = self.interval(atom)
                if low is None and high is None:
                    return None
                end: Poly = _constant(low) if low is not None else _constant(high or 0)
                term = _times(term, (*end, ((atom,), 1 if low is not None else -1)))
            anchored = _plus(anchored, term)
        total = 0
        for mono, c in anchored:
            if mono and c > 0:
                continue
            for atom in mono:
                low, high = self.interval(atom)
                if low is None or high is None:
                    return None
                c *= high - low
            total += c
        return total

    def _by_definition(self, p: Poly) -> int | None:
        """Replace the youngest composite atom by what bounds it. Its definition holds older atoms only, so this ends."""
        composite = {atom for mono, _ in p for atom in mono if type(self.atoms[atom]) is not Symbol}
        if not composite or len(composite) > _MOST_COMPOSITE:
            return None
        youngest = max(composite)
        parts = _split(p, youngest)
        if parts is None:
            return None
        match self.atoms[youngest]:
            case Positive(arg):
                return self._through_positive(*parts, arg)
            case Quotient(num, den):
                return self._through_quotient(*parts, num, den)
        return None

    def _through_positive(self, a: Poly, b: Poly, arg: Poly) -> int | None:
        """a + b * max(arg, 0) is one of a and a + b * arg; the larger one if b >= 0."""
        lows = self.low(a), self.low(_plus(a, _times(b, arg)))
        least = self.low(b)
        return _best(*lows) if least is not None and least >= 0 else _worst(*lows)

    def _through_quotient(self, a: Poly, b: Poly, num: Poly, den: Poly) -> int | None:
        """a + b * (num // den), with num - den + 1 <= den * (num // den) <= num for den > 0."""
        scale = _as_int(den)
        factor, rest = (b, ()) if scale is not None else _divide(b, den)
        positive = self.low(den)
        if rest or positive is None or positive <= 0:
            return None
        low, high = self.low(factor), self.high(factor)
        if low is not None and low >= 0:
            product = _times(factor, _plus(_shift(num, 1), den, -1))
        elif high is not None and high <= 0:
            product = _times(factor, num)
        else:
            return None
        # a + factor * (...) where den is symbolic; den times that where it is a number, and then round up.
        scale = 1 if scale is None else scale
        bound = self.low(_plus(_scaled(a, scale), product))
        return None if bound is None else -(-bound // scale)


# ---- guards ----

_HOLDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Guard:
    """`expression relation value` held while tracing, and the program is right only where it does. `line` is the user's that asked."""

    expression: Dim
    relation: str  # one of == != <= >=
    value: int
    line: tuple[str, int] | None = None

    def holds(self, values: Mapping[str, int]) -> bool:
        return _HOLDS[self.relation](self.expression.env.evaluate(self.expression, values), self.value)

    @property
    def text(self) -> str:
        """`n >= 17`, `n == m`, `n % 4 == 0`: negative terms stand on the right."""
        terms = _Text(self.expression.env.atoms).terms(self.expression.terms)
        right = [(-c, factors) for c, factors in terms if c < 0]
        if self.value or not right:
            right = [*right, (self.value, ())]
        left = [(c, factors) for c, factors in terms if c > 0]
        return f"{_sum_text(left)} {self.relation} {_sum_text(right)}"

    def __repr__(self) -> str:
        return f"{self.text} (at {self.line[0]}:{self.line[1]})" if self.line else self.text


def _canonical(p: Poly, relation: str) -> tuple[Poly, str, int] | bool:
    """`p relation 0` for == != <= >= as `x relation value` with x in normal form; a bool where that needs no thought."""
    number = _as_int(p)
    if number is not None:
        return _HOLDS[relation](number, 0)
    x, factor, constant = _normal(p)
    if relation in ("==", "!="):
        return (relation == "!=") if constant % factor else (x, relation, -constant // factor)
    if (relation == "<=") == (factor > 0):
        return x, "<=", -constant // factor
    return x, ">=", -(constant // factor)


# ---- the environment of a trace ----


class DimEnv:
    """The symbols of one trace, what is assumed about them, and the guards that reading them recorded."""

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.guards: list[Guard] = []
        self.assumptions: list[Guard] = []  # sizes 0 and 1 are never symbols: checked like guards
        self.closed = False
        self._ids: dict[str, int] = {}
        self._composite: dict[tuple[Poly, Poly | None], int] = {}
        self._dims: dict[Poly, Dim] = {}
        self._quotients: dict[tuple[Poly, Poly], Poly] = {}
        # Normal forms may depend on assumptions only, so that they do not change while tracing; answers use guards as well.
        self._assumed = _Bounds(self.atoms)
        self._known = _Bounds(self.atoms)
        self._apart: set[tuple[Poly, int]] = set()
        self._solved: dict[int, Poly] = {}
        self._proofs: dict[tuple[Poly, str], bool | None] = {}

    # -- symbols --

    def symbol(self, name: str, hint: int) -> Dim:
        """A new symbol: an input's size, `hint` in this trace."""
        if type(hint) is not int or hint < 2:
            raise ValueError(f"[DimEnv.symbol] {name} needs a size of at least 2 in this trace, got {hint}; sizes 0 and 1 stay numbers.")
        made = self._new_symbol(name, hint, 2)
        self.assumptions.append(Guard(made, ">=", 2))
        return made

    def unbacked(self, name: str, low: int = 0) -> Dim:
        """A new symbol for a size that depends on data, at least `low`: it has no number while tracing."""
        return self._new_symbol(name, None, low)

    def _new_symbol(self, name: str, hint: int | None, low: int) -> Dim:
        if name in self._ids:
            raise ValueError(f"[DimEnv] there is already a symbol {name!r} in this trace.")
        self._ids[name] = atom = len(self.atoms)
        self.atoms.append(Symbol(name, hint))
        unit: Poly = (((atom,), 1),)
        self._assumed.learn(unit, low, None)
        self._known.learn(unit, low, None)
        self._proofs.clear()
        made = self.size(unit)
        assert type(made) is Dim
        return made

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbols that stand for sizes of inputs, in order: the arguments of `compiled_check`."""
        return tuple(name for name, atom in self._ids.items() if self.atoms[atom].hint is not None)

    def close(self) -> None:
        """The trace is over: from here on expressions may be built and proved things about, but no number can be read."""
        self.closed = True

    # -- expressions --

    def size(self, p: Poly) -> int | Dim:
        """p as a size: the one Dim for it, or a plain int."""
        found = self._dims.get(p)
        if found is not None:
            return found
        number = _as_int(p)
        if number is not None:
            return number
        made = self._dims[p] = Dim(self, p)
        return made

    def hint(self, p: Poly) -> int | None:
        """The value of p in this trace; None if it depends on data."""
        total = 0
        for mono, c in p:
            for atom in mono:
                hint = self.atoms[atom].hint
                if hint is None:
                    return None
                c *= hint
            total += c
        return total

    def quotient(self, p: Poly, q: Poly) -> Poly:
        """floor(p / q), for q that is not 0."""
        key = p, q
        found = self._quotients.get(key)
        if found is None:
            k = _as_int(q)
            if k == 0:
                raise ZeroDivisionError("integer division or modulo by zero")
            found = self._quotients[key] = self._over_size(p, q) if k is None else self._over_int(p, k)
        return found

    def remainder(self, p: Poly, q: Poly) -> Poly:
        return _plus(p, _times(q, self.quotient(p, q)), -1)

    def positive(self, p: Poly) -> Poly:
        """max(p, 0)."""
        low, high = self._assumed.low(p), self._assumed.high(p)
        if low is not None and low >= 0:
            return p
        if high is not None and high <= 0:
            return ()
        x, factor, constant = _normal(p)
        if factor < 0:  # max(p, 0) - max(-p, 0) = p: one of the two is enough
            return _plus(p, self.positive(_scaled(p, -1)))
        common = math.gcd(factor, constant)
        arg = _shift(_scaled(x, factor // common), constant // common)
        return _scaled(self._atom(arg, None), common)

    def _over_int(self, p: Poly, k: int) -> Poly:
        if k < 0:
            p, k = _scaled(p, -1), -k
        low, high = self._assumed.low(p), self._assumed.high(p)
        if low is not None and high is not None and low // k == high // k:
            return _constant(low // k)
        whole = tuple([(mono, c // k) for mono, c in p if c // k])
        part = tuple([(mono, c % k) for mono, c in p if c % k])
        return _plus(whole, self._fraction(part, k))

    def _fraction(self, part: Poly, k: int) -> Poly:
        """floor(part / k) where all coefficients are in [0, k)."""
        constant, rest = (part[0][1], part[1:]) if part and not part[0][0] else (0, part)
        if not rest:
            return ()
        common = math.gcd(k, *[c for _, c in rest])
        if common > 1:
            fewer = tuple([(mono, c // common) for mono, c in rest])
            return self.quotient(_shift(fewer, constant // common), _constant(k // common))
        # floor(-p / k) = -floor((p + k - 1) / k): of p and -p, keep the one whose first coefficient is nearer to 0.
        first = next((c for _, c in rest if 2 * c != k), 0)
        if 2 * first > k:
            return _scaled(self.quotient(_shift(_scaled(part, -1), k - 1), _constant(k)), -1)
        if k == 2 and constant:  # rounded up, a half is what rounding down leaves over
            return _plus(rest, self.quotient(rest, _constant(2)), -1)
        inner = self._lone_quotient(rest)
        if inner is not None:
            return self.quotient(_plus(inner.num, _scaled(inner.den, constant)) if constant else inner.num, _scaled(inner.den, k))
        return self._atom(part, _constant(k))

    def _lone_quotient(self, p: Poly) -> Quotient | None:
        """The quotient that p is, if that is all it is and its divisor is positive: (a // b) // c is a // (b * c)."""
        if len(p) != 1 or p[0][1] != 1 or len(p[0][0]) != 1:
            return None
        atom = self.atoms[p[0][0][0]]
        if type(atom) is not Quotient:
            return None
        low = self._assumed.low(atom.den)
        return atom if low is not None and low > 0 else None

    def _over_size(self, p: Poly, q: Poly) -> Poly:
        low, high = self._assumed.low(q), self._assumed.high(q)
        if high is not None and high < 0:
            return self.quotient(_scaled(p, -1), _scaled(q, -1))
        whole, rest = _divide(p, q)
        if len(q) > 1 and len(rest) >= len(p):  # long division by a sum may leave more than there was
            whole, rest = (), p
        if not rest:
            return whole
        fewer, divisor = self._cancelled(rest, q)
        if divisor != q:
            return _plus(whole, self.quotient(fewer, divisor))
        if low is None or low <= 0:
            return _plus(whole, self._atom(rest, q))
        if self._at_least(rest, 0) and self._at_least(_plus(q, rest, -1), 1):
            return whole
        if self._at_least(_scaled(rest, -1), 1) and self._at_least(_plus(q, rest), 0):
            return _shift(whole, -1)
        inner = self._lone_quotient(rest)
        if inner is not None:
            return _plus(whole, self.quotient(inner.num, _times(inner.den, q)))
        return _plus(whole, self._atom(rest, q))

    def _at_least(self, p: Poly, n: int) -> bool:
        low = self._assumed.low(p)
        return low is not None and low >= n

    def _cancelled(self, p: Poly, q: Poly) -> tuple[Poly, Poly]:
        """p and q without what they have in common: a number, and atoms that cannot be 0."""
        number = math.gcd(*[c for _, c in (*p, *q)])
        common: list[int] = []
        for atom in q[-1][0]:
            low = self._assumed.interval(atom)[0]
            shared = tuple(sorted((*common, atom)))
            if low is not None and low > 0 and all(_over(mono, shared) is not None for mono, _ in (*p, *q)):
                common.append(atom)
        if number == 1 and not common:
            return p, q
        factor = tuple(common)
        fewer = [tuple(sorted((_over(mono, factor) or (), c // number) for mono, c in terms)) for terms in (p, q)]
        return fewer[0], fewer[1]

    def _atom(self, p: Poly, den: Poly | None) -> Poly:
        """The atom floor(p / den), or max(p, 0) where den is None."""
        key = p, den
        found = self._composite.get(key)
        if found is None:
            hint = self.hint(p)
            made: Atom
            if den is None:
                made = Positive(p, None if hint is None else max(hint, 0))
            else:
                below = self.hint(den)
                made = Quotient(p, den, None if hint is None or not below else hint // below)
            found = self._composite[key] = len(self.atoms)
            self.atoms.append(made)
        return (((found,), 1),)

    # -- values --

    def evaluate(self, dim: int | Dim, values: Mapping[str, int]) -> int:
        """The number that `dim` is where the symbols are `values`."""
        number = substitute(dim, values)
        if type(number) is Dim:
            missing = ", ".join(n for n in _names(self.atoms, number.terms) if n not in values)
            raise KeyError(f"[DimEnv.evaluate] no value for {missing}, which {text_of(dim)} depends on")
        return int(number)

    def check(self, values: Mapping[str, int]) -> Guard | None:
        """The first guard that does not hold where the symbols are `values`, if one does not."""
        return next((g for g in (*self.assumptions, *self.guards) if not g.holds(values)), None)

    def compiled_check(self) -> Callable[..., bool]:
        """A function of the values of `symbols`, in that order: whether all guards hold."""
        source = _Source(self.atoms, self.symbols)
        for guard in (*self.assumptions, *self.guards):
            expression = source.expression(guard.expression.terms)
            source.lines.append(f"if not {expression} {guard.relation} {guard.value}: return False")
        source.lines.append("return True")
        function: Callable[..., bool] = source.function("check")
        return function

    # -- questions --

    def prove(self, p: Poly, relation: str) -> bool | None:
        """Whether `p relation 0` (== != <= >=) follows from assumptions and guards; None where neither it nor its opposite does."""
        key = p, relation
        if key not in self._proofs:
            self._proofs[key] = self._proved(_canonical(self._resolved(p), relation), self._known)
        return self._proofs[key]

    def _proved(self, question: tuple[Poly, str, int] | bool, bounds: _Bounds) -> bool | None:
        if isinstance(question, bool):
            return question
        x, relation, value = question
        low, high = bounds.low(x), bounds.high(x)
        above = low is not None and low > value
        below = high is not None and high < value
        if relation == "<=":
            return False if above else True if high is not None and high <= value else None
        if relation == ">=":
            return False if below else True if low is not None and low >= value else None
        if above or below or (bounds is self._known and (x, value) in self._apart):
            return relation == "!="
        return relation == "==" if low == high == value else None

    def decide(self, p: Poly, relation: str) -> bool:
        """Whether `p relation 0`: proved, or as it is in this trace, and then a guard says so."""
        if not self.closed:
            proved = self.prove(p, relation)
        else:  # what guards say is true of the call that was traced, not of whoever still holds the size
            proved = self._proved(_canonical(p, relation), self._assumed)
        if proved is not None:
            return proved
        question = _canonical(p, relation)
        assert not isinstance(question, bool)
        x, relation, value = question
        expression = self.size(x)
        assert type(expression) is Dim
        hint = self.hint_to_read(expression)
        holds = _HOLDS[relation](hint, value)
        if not holds:
            relation, value = {
                "==": ("!=", value),
                "!=": ("==", value),
                "<=": (">=", value + 1),
                ">=": ("<=", value - 1),
            }[relation]
        self.guards.append(Guard(expression, relation, value, user_line()))
        self._learn(_shift(x, -value), relation)
        return holds

    def hint_to_read(self, dim: Dim) -> int:
        """The number of `dim` in this trace, where there is one and it may still be asked for."""
        if self.closed:
            raise RuntimeError(
                f"[shapeless] the size {dim.text} was read after the function that it belongs to had been traced: it has no value outside. "
                f"({_of_symbols(self.atoms, dim.terms)}) Return an array and read its shape, or compute with sizes inside the function{at_user_line()}."
            )
        hint = dim.hint
        if hint is None:
            raise UnknownSizeError(
                f"[shapeless] the size {dim.text} depends on data, so it has no number while the function is traced: `if`, `range`, "
                f"comparisons and printing cannot use it. ({_of_symbols(self.atoms, dim.terms)}) Keep all elements and select with `where` or a mask, give "
                f"a fixed size, or take this step outside of the compiled function{at_user_line()}."
            )
        return hint

    # -- what guards teach --

    def _learn(self, p: Poly, relation: str) -> None:
        """`p relation 0` holds from now on."""
        question = _canonical(self._resolved(p), relation)
        self._proofs.clear()
        if isinstance(question, bool):
            return
        x, relation, value = question
        if relation == "!=":
            self._apart.add((x, value))
            low, high = self._known.low(x), self._known.high(x)
            self._known.learn(x, value + 1 if low == value else None, value - 1 if high == value else None)
            return
        self._known.learn(x, value if relation != "<=" else None, value if relation != ">=" else None)
        if relation == "==":
            self._solve(x, value)

    def _solve(self, x: Poly, value: int) -> None:
        """x == value gives one symbol in terms of the others, if it stands there plainly and nowhere else."""
        for mono, c in reversed(x):
            if len(mono) != 1 or abs(c) != 1 or type(self.atoms[mono[0]]) is not Symbol:
                continue
            rest = tuple(term for term in x if term[0] != mono)
            if mono[0] in _symbol_ids(self.atoms, rest):
                continue
            self._solved[mono[0]] = _scaled(_shift(rest, -value), -c)
            break
        else:
            return
        self._solved = {atom: self._resolved(p) for atom, p in self._solved.items()}
        known, self._known = self._known, _Bounds(self.atoms)
        self._known.facts = dict(self._assumed.facts)
        for fact, (low, high) in known.facts.items():
            for p, relation in ((_shift(fact, -(low or 0)), ">="), (_shift(fact, -(high or 0)), "<=")):
                question = _canonical(self._resolved(p), relation)
                if not isinstance(question, bool) and (low if relation == ">=" else high) is not None:
                    y, relation, end = question
                    self._known.learn(y, end if relation == ">=" else None, end if relation == "<=" else None)

    def _resolved(self, p: Poly) -> Poly:
        """p with the symbols replaced that guards have solved for."""
        if not self._solved or _symbol_ids(self.atoms, p).isdisjoint(self._solved):
            return p
        return _rebuilt(self.atoms, p, self._solved, self)


def _symbol_ids(atoms: Sequence[Atom], p: Poly) -> set[int]:
    """All symbols that p depends on."""
    found: set[int] = set()
    for atom in {atom for mono, _ in p for atom in mono}:
        match atoms[atom]:
            case Symbol():
                found.add(atom)
            case Quotient(num, den):
                found |= _symbol_ids(atoms, num) | _symbol_ids(atoms, den)
            case Positive(arg):
                found |= _symbol_ids(atoms, arg)
    return found


def _names(atoms: Sequence[Atom], p: Poly) -> list[str]:
    return [atom.name for i in sorted(_symbol_ids(atoms, p)) if isinstance(atom := atoms[i], Symbol)]


def _of_symbols(atoms: Sequence[Atom], p: Poly) -> str:
    names = _names(atoms, p)
    return f"Symbol{'s' if len(names) > 1 else ''}: {', '.join(names)}."


def _rebuilt(atoms: Sequence[Atom], p: Poly, images: Mapping[int, Poly], env: DimEnv) -> Poly:
    """p, of the world that `atoms` belongs to, with symbols replaced by polynomials of `env`. Symbols without image stay."""
    total: Poly = ()
    for mono, c in p:
        term = _constant(c)
        for atom in mono:
            term = _times(term, _rebuilt_atom(atoms, atom, images, env))
        total = _plus(total, term)
    return total


def _rebuilt_atom(atoms: Sequence[Atom], atom: int, images: Mapping[int, Poly], env: DimEnv) -> Poly:
    match atoms[atom]:
        case Quotient(num, den):
            return env.quotient(_rebuilt(atoms, num, images, env), _rebuilt(atoms, den, images, env))
        case Positive(arg):
            return env.positive(_rebuilt(atoms, arg, images, env))
        case _:
            return images[atom] if atom in images else (((atom,), 1),)


# ---- text and generated code ----


Factors: TypeAlias = tuple[tuple[str, bool], ...]
"""Texts of a product, and whether each needs no parentheses there."""


def _sum_text(terms: Iterable[tuple[int, Factors]]) -> str:
    """`2*n + 1`: what is added comes first, then higher powers, then the alphabet."""
    text = ""
    for c, factors in sorted(terms, key=lambda term: (term[0] < 0, -len(term[1]), term[1])):
        bare = abs(c) == 1 and len(factors) == 1 and (text or c > 0)
        if bare:
            product = factors[0][0]
        else:
            parts = [t if atomic else f"({t})" for t, atomic in factors]
            product = "*".join(parts if abs(c) == 1 and parts else [str(abs(c)), *parts])
        sign = ("- " if c < 0 else "+ ") if text else ("-" if c < 0 else "")
        text = f"{text} {sign}{product}" if text else sign + product
    return text or "0"


class _Text:
    """Expressions as a person would write them: `n % 4`, `(n + 1)//2` and `max(n, m)` are read off the normal form again."""

    def __init__(self, atoms: Sequence[Atom]) -> None:
        self.atoms = atoms

    def text(self, p: Poly) -> str:
        return _sum_text(self.terms(p))

    def terms(self, p: Poly) -> list[tuple[int, Factors]]:
        """p as a sum of (coefficient, factors)."""
        folded: list[tuple[int, Factors]] = []
        for atom in sorted({atom for mono, _ in p for atom in mono}, reverse=True):
            for form, factor in self._forms(atom):
                times = self._times_in(p, form, atom)
                rest = _plus(p, form, -times) if times else p
                if len(rest) < len(p) and all(atom not in mono for mono, _ in rest):
                    folded.append((times, (factor,)))
                    p = rest
                    break
        return [*folded, *((c, tuple(sorted(self._factor(atom) for atom in mono))) for mono, c in p)]

    @staticmethod
    def _times_in(p: Poly, form: Poly, atom: int) -> int:
        """How many times `form` would have to be in p for the atom to come from it alone; 0 if that is not whole."""
        mono, c = next(term for term in form if atom in term[0])
        times, rest = divmod(dict(p).get(mono, 0), c)
        return 0 if rest else times

    def _forms(self, atom: int) -> list[tuple[Poly, tuple[str, bool]]]:
        """Sums around an atom that have a name: (sum, text)."""
        unit: Poly = (((atom,), 1),)
        match self.atoms[atom]:
            case Quotient(num, den):
                forms = [(_plus(num, _times(den, unit), -1), (f"{self._operand(num)} % {self._operand(den)}", False))]
                if _as_int(den) == 2:
                    forms.append((_plus(num, unit, -1), (f"{self._operand(_shift(num, 1))}//2", False)))
                return forms
            case Positive(arg):
                larger = tuple(term for term in arg if term[1] > 0)
                smaller = tuple((mono, -c) for mono, c in arg if c < 0)
                both = ", ".join(sorted((self.text(larger), self.text(smaller)), key=lambda t: (t.isdigit(), t)))
                return [(_plus(unit, smaller), (f"max({both})", True)), (_plus(larger, unit, -1), (f"min({both})", True))]
            case _:
                return []

    def _factor(self, atom: int) -> tuple[str, bool]:
        match self.atoms[atom]:
            case Symbol(name):
                return name, True
            case Positive(arg):
                return f"max({self.text(arg)}, 0)", True
            case Quotient(num, den):
                return f"{self._operand(num)}//{self._operand(den)}", False

    def _operand(self, p: Poly) -> str:
        """p as an operand of // or %."""
        terms = self.terms(p)
        lone = len(terms) == 1 and terms[0][0] >= 0
        plain = lone and (not terms[0][1] or (terms[0][0] == 1 and len(terms[0][1]) == 1 and terms[0][1][0][1]))
        text = _sum_text(terms)
        return text if plain else f"({text})"


class _Source:
    """The lines of a generated function of the values of symbols; composite atoms become variables."""

    def __init__(self, atoms: Sequence[Atom], symbols: Sequence[str]) -> None:
        self.atoms = atoms
        self.lines: list[str] = []
        self.arguments = [f"s{i}" for i in range(len(symbols))]
        self._by_name = dict(zip(symbols, self.arguments, strict=True))
        self._variables: dict[int, str] = {}

    def expression(self, p: Poly) -> str:
        terms = []
        for mono, c in p:
            factors = [self._variable(atom) for atom in mono]
            terms.append("*".join(factors if c == 1 and factors else [str(c), *factors]))
        return " + ".join(terms) or "0"

    def _variable(self, atom: int) -> str:
        found = self._variables.get(atom)
        if found is None:
            found = self._variables[atom] = self._defined(atom)
        return found

    def _defined(self, atom: int) -> str:
        name = f"a{atom}"
        match self.atoms[atom]:
            case Symbol(symbol):
                if symbol not in self._by_name:
                    raise ValueError(f"[compile_sizes] an expression depends on {symbol}, which is not among the symbols given.")
                return self._by_name[symbol]
            case Quotient(num, den):
                self.lines.append(f"{name} = ({self.expression(num)})//({self.expression(den)})")
            case Positive(arg):
                self.lines += [f"{name} = {self.expression(arg)}", f"if {name} < 0: {name} = 0"]
        return name

    def function(self, name: str) -> Any:
        body = "\n".join(f"    {line}" for line in self.lines)
        namespace: dict[str, Any] = {}
        exec(compile(f"def {name}({', '.join(self.arguments)}):\n{body}\n", f"<weft {name}>", "exec"), {}, namespace)
        return namespace[name]


# ---- the size ----


class Dim:
    """A size that is a symbolic expression. Acts as an int: arithmetic stays symbolic, reading the number records a guard.

    `terms` (canonical within `env`), `key`, `text` and `hint` say what it is without recording anything.
    """

    __slots__ = ("_hint", "_text", "env", "terms")

    def __init__(self, env: DimEnv, terms: Poly) -> None:  # by DimEnv.size only: one object per expression
        self.env, self.terms = env, terms
        self._text: str | None = None
        self._hint: int | None = None

    # -- without guards --

    @property
    def key(self) -> tuple[str, DimEnv, Poly]:
        """Hashable, equal for the same expression of the same trace."""
        return "dim", self.env, self.terms

    @property
    def text(self) -> str:
        """`2*n + 1`, `(n + 3)//4`; the same for the same expression of another trace."""
        if self._text is None:
            self._text = _Text(self.env.atoms).text(self.terms)
        return self._text

    @property
    def hint(self) -> int | None:
        """The number in this trace; None if it depends on data."""
        if self._hint is None:
            self._hint = self.env.hint(self.terms)
        return self._hint

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        return int

    # -- reading the number --

    def __index__(self) -> int:
        hint = self.env.hint_to_read(self)
        self.env.decide(_shift(self.terms, -hint), "==")
        return hint

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __complex__(self) -> complex:
        return complex(self.__index__())

    def __hash__(self) -> int:
        return hash(self.__index__())

    def __repr__(self) -> str:
        return repr(self.__index__())

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.__index__(), spec)

    def __bool__(self) -> bool:
        return self.env.decide(self.terms, "!=")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.__index__(), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        exact = _UFUNCS.get(ufunc.__name__) if method == "__call__" and not options else None
        if exact and all(type(x) is Dim or isinstance(x, (int, np.integer)) for x in inputs):
            return exact(*[x if type(x) is Dim else int(x) for x in inputs])
        numbers_only = [x.__index__() if type(x) is Dim else x for x in inputs]
        return getattr(ufunc, method)(*numbers_only, **options)

    def __getattr__(self, name: str) -> Any:
        """Other methods of int (`bit_length`, `to_bytes`, ...) read the number."""
        if name.startswith("__") or not hasattr(int, name):
            raise AttributeError(f"'int' object has no attribute {name!r}")
        return getattr(self.__index__(), name)

    def __reduce__(self) -> Any:
        return int, (self.__index__(),)

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: object) -> Dim:
        return self

    # -- comparing --

    def _compare(self, other: Any, relation: str) -> Any:
        terms = self._terms_of(other)
        if terms is None:
            return self._compare_foreign(other, relation)
        difference = _plus(self.terms, terms, -1)
        if relation == "<":
            return self.env.decide(_shift(difference, 1), "<=")
        if relation == ">":
            return self.env.decide(_shift(difference, -1), ">=")
        return self.env.decide(difference, relation)

    def _compare_foreign(self, other: Any, relation: str) -> Any:
        if not isinstance(other, numbers.Number):
            return NotImplemented
        if not isinstance(other, float):
            return _HOLDS[relation](self.__index__(), other)
        if not math.isfinite(other):
            return _HOLDS[relation](0, other)
        if other.is_integer():
            return self._compare(int(other), relation)
        if relation in ("==", "!="):
            return relation == "!="
        return self._compare(math.floor(other), "<=") if relation in ("<", "<=") else self._compare(math.ceil(other), ">=")

    def __eq__(self, other: object) -> bool:
        return self is other or self._compare(other, "==")

    def __ne__(self, other: object) -> bool:
        return self is not other and self._compare(other, "!=")

    def __lt__(self, other: int | Dim) -> bool:
        return self._compare(other, "<")

    def __le__(self, other: int | Dim) -> bool:
        return self._compare(other, "<=")

    def __gt__(self, other: int | Dim) -> bool:
        return self._compare(other, ">")

    def __ge__(self, other: int | Dim) -> bool:
        return self._compare(other, ">=")

    # -- arithmetic --

    def _terms_of(self, other: Any) -> Poly | None:
        """An integer operand as a polynomial of this environment; None for anything else."""
        if type(other) is int:
            return (((), other),) if other else ()
        if type(other) is Dim:
            if other.env is not self.env:
                _refuse_mixing(self, other)
            return other.terms
        return _constant(int(other)) if isinstance(other, (int, np.integer)) else None

    def _read_with(self, op: Callable[[Any, Any], Any], other: Any, reflected: bool = False) -> Any:
        """An operation that needs the number: with other kinds of numbers, or without a symbolic form."""
        if not isinstance(other, numbers.Number):
            return NotImplemented
        number, other = self.__index__(), other.__index__() if type(other) is Dim else other
        return op(other, number) if reflected else op(number, other)

    def __add__(self, other: int | Dim) -> int | Dim:
        if type(other) is int:
            return self.env.size(_shift(self.terms, other))
        terms = self._terms_of(other)
        if terms is None:
            return self._read_with(operator.add, other)
        return self.env.size(_plus(self.terms, terms))

    __radd__ = __add__

    def __sub__(self, other: int | Dim) -> int | Dim:
        if type(other) is int:
            return self.env.size(_shift(self.terms, -other))
        terms = self._terms_of(other)
        if terms is None:
            return self._read_with(operator.sub, other)
        return self.env.size(_plus(self.terms, terms, -1))

    def __rsub__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._read_with(operator.sub, other, reflected=True)
        return self.env.size(_plus(terms, self.terms, -1))

    def __mul__(self, other: int | Dim) -> int | Dim:
        if type(other) is int:
            return self.env.size(_scaled(self.terms, other))
        terms = self._terms_of(other)
        if terms is None:
            return self._read_with(operator.mul, other)
        return self.env.size(_times(self.terms, terms))

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._read_with(operator.floordiv, other)
        return self.env.size(self.env.quotient(self.terms, _nonzero(self.env, terms)))

    def __rfloordiv__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._read_with(operator.floordiv, other, reflected=True)
        return self.env.size(self.env.quotient(terms, _nonzero(self.env, self.terms)))

    def __mod__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._read_with(operator.mod, other)
        return self.env.size(self.env.remainder(self.terms, _nonzero(self.env, terms)))

    def __rmod__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._read_with(operator.mod, other, reflected=True)
        return self.env.size(self.env.remainder(terms, _nonzero(self.env, self.terms)))

    def __divmod__(self, other: int | Dim) -> tuple[int | Dim, int | Dim]:
        return self // other, self % other

    def __rdivmod__(self, other: int | Dim) -> tuple[int | Dim, int | Dim]:
        return other // self, other % self

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if type(other) is not int or not 0 <= other <= _LARGEST_POWER or modulus is not None:
            number = other.__index__() if type(other) is Dim else other
            return NotImplemented if not isinstance(number, numbers.Number) else pow(self.__index__(), number, modulus)
        terms = ONE
        for _ in range(other):
            terms = _times(terms, self.terms)
        return self.env.size(terms)

    def __rpow__(self, other: Any) -> Any:
        return self._read_with(operator.pow, other, reflected=True)

    def __truediv__(self, other: Any) -> Any:
        return self._read_with(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._read_with(operator.truediv, other, reflected=True)

    def __lshift__(self, other: int) -> int | Dim:
        return self * (1 << other) if type(other) is int else self._read_with(operator.lshift, other)

    def __rshift__(self, other: int) -> int | Dim:
        return self // (1 << other) if type(other) is int else self._read_with(operator.rshift, other)

    def __rlshift__(self, other: int) -> Any:
        return self._read_with(operator.lshift, other, reflected=True)

    def __rrshift__(self, other: int) -> Any:
        return self._read_with(operator.rshift, other, reflected=True)

    def __and__(self, other: Any) -> Any:
        return self._read_with(operator.and_, other)

    def __or__(self, other: Any) -> Any:
        return self._read_with(operator.or_, other)

    def __xor__(self, other: Any) -> Any:
        return self._read_with(operator.xor, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __neg__(self) -> int | Dim:
        return self.env.size(_scaled(self.terms, -1))

    def __invert__(self) -> int | Dim:
        return -self - 1

    def __abs__(self) -> int | Dim:
        """max(d, 0) + max(-d, 0)."""
        return self.env.size(_plus(_scaled(self.env.positive(self.terms), 2), self.terms, -1))

    def __pos__(self) -> Dim:
        return self

    __trunc__ = __floor__ = __ceil__ = conjugate = __pos__
    real = numerator = property(__pos__)
    imag = property(lambda self: 0)
    denominator = property(lambda self: 1)

    def __round__(self, digits: int | None = None) -> int | Dim:
        return self if digits is None or (type(digits) is int and digits >= 0) else round(self.__index__(), digits)


_UFUNCS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "negative": operator.neg,
}
"""What NumPy's integer scalars may do with a size without reading it."""


def _nonzero(env: DimEnv, divisor: Poly) -> Poly:
    if not divisor or not env.decide(divisor, "!="):
        raise ZeroDivisionError("integer division or modulo by zero")
    return divisor


def _refuse_mixing(a: Dim, b: Dim) -> NoReturn:
    for dim in (a, b):
        if dim.env.closed:
            dim.env.hint_to_read(dim)
    raise ValueError(f"[shapeless] sizes {a.text} and {b.text} belong to two different traces and cannot be combined{at_user_line()}.")


# ---- what shape rules and passes ask ----


def is_symbolic(x: object) -> bool:
    """Whether x is a symbolic size."""
    return type(x) is Dim


def prod(shape: Iterable[int | Dim]) -> int | Dim:
    """Number of elements."""
    return math.prod(shape)  # type: ignore[arg-type]


def shape_key(shape: tuple[int | Dim, ...]) -> tuple[Any, ...]:
    """A hashable stand-in for a shape, equal for equal shapes: the shape itself where it is all numbers."""
    for n in shape:
        if type(n) is Dim:
            return tuple([n.key if type(n) is Dim else n for n in shape])
    return shape


def key_of(value: Any) -> Any:
    """`value` with every Dim in it, however deep in tuples, replaced by its key: what may be hashed and compared without a guard."""
    if type(value) is Dim:
        return value.key
    if type(value) is not tuple:
        return value
    keys = tuple([v if type(v) is int else key_of(v) for v in value])
    return value if all(map(operator.is_, keys, value)) else keys


def text_of(size: object) -> str:
    """A size for our own messages and listings."""
    return size.text if type(size) is Dim else str(size)


def shape_text(shape: Iterable[int | Dim]) -> str:
    """`(n, 2*n + 1, 4)`, written as Python writes a tuple."""
    parts = [text_of(n) for n in shape]
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def provably_equal(a: int | Dim, b: int | Dim) -> bool:
    """Whether a == b for every call that the guards so far let through."""
    if type(a) is int and type(b) is int:
        return a == b
    if a is b:
        return True
    env = _common_env(a, b)
    return env is not None and bool(env.prove(_difference(env, a, b), "=="))


def provably_at_most(a: int | Dim, b: int | Dim) -> bool:
    """Whether a <= b for every call that the guards so far let through."""
    if type(a) is int and type(b) is int:
        return a <= b
    if a is b:
        return True
    env = _common_env(a, b)
    return env is not None and bool(env.prove(_difference(env, a, b), "<="))


def same_shape(a: Sequence[int | Dim], b: Sequence[int | Dim]) -> bool:
    """Whether two shapes are provably equal."""
    return len(a) == len(b) and all(map(provably_equal, a, b))


def _common_env(a: int | Dim, b: int | Dim) -> DimEnv | None:
    """Where a and b, not both plain ints, can be compared; None if they come from two traces."""
    if type(a) is Dim:
        return None if type(b) is Dim and b.env is not a.env else a.env
    return b.env if type(b) is Dim else DimEnv()


def _difference(env: DimEnv, a: int | Dim, b: int | Dim) -> Poly:
    p, q = (x.terms if type(x) is Dim else _constant(int(x)) for x in (a, b))
    return _plus(p, q, -1)


def broadcast_dims(a: int | Dim, b: int | Dim) -> int | Dim:
    """The size of an axis that sizes a and b broadcast to. Guards that they are equal, where that is what makes it work."""
    if type(a) is int and type(b) is int:
        if a == b or b == 1:
            return a
        if a == 1:
            return b
    elif provably_equal(a, b) or provably_equal(b, 1):
        return b if type(b) is int and b != 1 else a
    elif provably_equal(a, 1):
        return b
    elif a == b:
        return b if type(b) is int else a
    elif b == 1:
        return a
    elif a == 1:
        return b
    raise ValueError(f"[broadcast_shapes] sizes {_with_hint(a)} and {_with_hint(b)} differ and neither is 1.")


def _with_hint(size: int | Dim) -> str:
    return f"{size.text} (here {size.hint})" if type(size) is Dim else str(size)


def ceil_div(a: int | Dim, b: int | Dim) -> int | Dim:
    """a / b, rounded up."""
    return -(-a // b)


def dim_max(a: int | Dim, b: int | Dim) -> int | Dim:
    """The larger one, without reading either (Python's own `max` compares, and records a guard)."""
    if type(a) is not Dim and type(b) is not Dim:
        return max(a, b)
    difference = a - b
    return b + difference.env.size(difference.env.positive(difference.terms)) if type(difference) is Dim else b + max(0, difference)


def dim_min(a: int | Dim, b: int | Dim) -> int | Dim:
    """The smaller one, without reading either."""
    if type(a) is not Dim and type(b) is not Dim:
        return min(a, b)
    return a + b - dim_max(a, b)


def substitute(expr: int | Dim, mapping: Mapping[str, int | Dim]) -> int | Dim:
    """`expr` with symbols replaced by name, by numbers or by sizes of this or another trace. Records no guard."""
    if type(expr) is not Dim:
        return expr
    source, target = expr.env, None
    images: dict[int, Poly] = {}
    for atom in _symbol_ids(source.atoms, expr.terms):
        symbol = source.atoms[atom]
        assert isinstance(symbol, Symbol)
        image = mapping.get(symbol.name)
        if image is not None:
            images[atom] = image.terms if type(image) is Dim else _constant(int(image))
        env = source if image is None else image.env if type(image) is Dim else None
        if target is not None and env is not None and env is not target:
            raise ValueError(f"[substitute] {expr.text} would mix sizes of two traces; give a replacement for {symbol.name} as well.")
        target = target or env
    target = target or source
    return target.size(_rebuilt(source.atoms, expr.terms, images, target))


def compile_sizes(exprs: Iterable[int | Dim], symbols: Sequence[str]) -> Callable[..., tuple[int, ...]]:
    """A function of the values of `symbols`, in that order, that gives the values of `exprs`."""
    exprs = tuple(exprs)
    envs = {id(e.env): e.env for e in exprs if type(e) is Dim}
    if len(envs) > 1:
        raise ValueError("[compile_sizes] the expressions belong to different traces.")
    source = _Source(next(iter(envs.values())).atoms if envs else (), symbols)
    results = [source.expression(e.terms) if type(e) is Dim else repr(int(e)) for e in exprs]
    source.lines.append(f"return ({''.join(f'{r}, ' for r in results)})")
    function: Callable[..., tuple[int, ...]] = source.function("sizes")
    return function
