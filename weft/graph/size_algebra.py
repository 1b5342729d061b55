"""The algebra behind symbolic sizes: integer polynomials over atoms, their normal forms, and proofs about their bounds.

Atoms are symbols, floor quotients and positive parts `max(e, 0)`; remainder, max, min and abs are written in those, so
equal expressions meet in one form. Nothing here knows of users or guards; only `weft.graph.dims` comes in.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from weft.records import dataclass

Mono: TypeAlias = tuple[int, ...]
"""A product of atoms, by their ids in ascending order, repeated for powers; () is 1."""
Poly: TypeAlias = tuple[tuple[Mono, int], ...]
"""Terms (product, non-zero coefficient) in ascending order of product: the constant comes first, and () is 0."""
Interval: TypeAlias = tuple[int | None, int | None]
"""Smallest and largest possible value; None where there is no bound."""

ONE: Final[Poly] = (((), 1),)
_MOST_COMPOSITE: Final = 6  # composite atoms that a proof takes apart: each may double its work


# ---- polynomials ----


def constant(n: int) -> Poly:
    return (((), n),) if n else ()


def shift(p: Poly, n: int) -> Poly:
    """p + n."""
    if not n:
        return p
    if not p or p[0][0]:
        return (((), n), *p)
    n += p[0][1]
    return (((), n), *p[1:]) if n else p[1:]


def plus(p: Poly, q: Poly, scale: int = 1) -> Poly:
    """p + scale * q, for scale != 0."""
    total = dict(p)
    for mono, c in q:
        c = total.get(mono, 0) + scale * c
        if c:
            total[mono] = c
        else:
            del total[mono]
    return tuple(sorted(total.items()))


def scaled(p: Poly, n: int) -> Poly:
    """n * p."""
    return tuple([(mono, n * c) for mono, c in p]) if n else ()


def times(p: Poly, q: Poly) -> Poly:
    total: dict[Mono, int] = {}
    for m1, c1 in p:
        for m2, c2 in q:
            mono = tuple(sorted(m1 + m2)) if m1 and m2 else m1 or m2
            total[mono] = total.get(mono, 0) + c1 * c2
    return tuple(sorted([term for term in total.items() if term[1]]))


def _graded(mono: Mono) -> tuple[int, Mono]:
    """An order of products that multiplying both sides preserves, as long division needs it."""
    return len(mono), mono


def _over(mono: Mono, divisor: Mono) -> Mono | None:
    """mono / divisor, or None where it does not divide."""
    rest = list(mono)
    for i in divisor:
        if i not in rest:
            return None
        rest.remove(i)
    return tuple(rest)


def divide(p: Poly, q: Poly) -> tuple[Poly, Poly]:
    """(t, r) with p = q * t + r: long division, coefficients rounded down."""
    lead, c_lead = max(q, key=lambda term: _graded(term[0]))
    others = tuple(term for term in q if term[0] != lead)
    rest, quotient, remainder = dict(p), {}, {}
    while rest:
        mono = max(rest, key=_graded)
        c = rest.pop(mono)
        factor = _over(mono, lead)
        if factor is None:
            remainder[mono] = c
            continue
        t, r = divmod(c, c_lead)
        if r:
            remainder[mono] = r
        if t:
            quotient[factor] = t
            rest = dict(plus(tuple(rest.items()), times(((factor, t),), others), -1))
    return tuple(sorted(quotient.items())), tuple(sorted(remainder.items()))


def as_int(p: Poly) -> int | None:
    """The number that p is, or None."""
    if not p:
        return 0
    return p[0][1] if len(p) == 1 and not p[0][0] else None


def without_constant(p: Poly) -> tuple[Poly, int]:
    return (p[1:], p[0][1]) if p and not p[0][0] else (p, 0)


def normal(p: Poly) -> tuple[Poly, int, int]:
    """(x, factor, c) with p = factor * x + c; x has no constant, no common factor, and begins with a positive term."""
    rest, c0 = without_constant(p)
    factor = math.gcd(*[c for _, c in rest])
    if rest[0][1] < 0:
        factor = -factor
    return tuple([(mono, c // factor) for mono, c in rest]), factor, c0


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


def atoms_in(p: Poly) -> set[int]:
    return {atom for mono, _ in p for atom in mono}


# ---- atoms ----


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A size that is not known until a call. `hint` is its value in this trace, None if it depends on data."""

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


def _largest(*numbers: int | None) -> int | None:
    """The largest of those that are numbers."""
    return max((n for n in numbers if n is not None), default=None)


def _smallest(*numbers: int | None) -> int | None:
    return min((n for n in numbers if n is not None), default=None)


class Bounds:
    """Bounds of polynomials, from those stated for a few. What it says is proved; not all that holds is found."""

    __slots__ = ("_intervals", "_lows", "atoms", "facts")

    def __init__(self, atoms: Sequence[Atom]) -> None:
        self.atoms = atoms
        self.facts: dict[Poly, Interval] = {}  # of polynomials in normal form
        self._lows: dict[Poly, int | None] = {}
        self._intervals: dict[int, Interval] = {}

    def learn(self, x: Poly, low: int | None, high: int | None) -> None:
        """low <= x <= high, for x in normal form."""
        known_low, known_high = self.facts.get(x, (None, None))
        self.facts[x] = _largest(low, known_low), _smallest(high, known_high)
        self._lows.clear()
        self._intervals.clear()

    def low(self, p: Poly) -> int | None:
        """The largest proved lower bound of p."""
        if p in self._lows:
            return self._lows[p]
        low = as_int(p)
        if low is None:
            low = _largest(self._stated(p), self._by_intervals(p), self._by_definition(p))
        self._lows[p] = low
        return low

    def high(self, p: Poly) -> int | None:
        """The smallest proved upper bound of p."""
        low = self.low(scaled(p, -1))
        return None if low is None else -low

    def at_least(self, p: Poly, n: int) -> bool:
        low = self.low(p)
        return low is not None and low >= n

    def at_most(self, p: Poly, n: int) -> bool:
        high = self.high(p)
        return high is not None and high <= n

    def _stated(self, p: Poly) -> int | None:
        x, factor, c = normal(p)
        low, high = self.facts.get(x, (None, None))
        end = low if factor > 0 else high
        return None if end is None else factor * end + c

    def interval(self, atom: int) -> Interval:
        """Bounds of one atom, as its definition and what is stated about it say."""
        found = self._intervals.get(atom)
        if found is None:
            low, high = self._defined_interval(self.atoms[atom])
            stated_low, stated_high = self.facts.get((((atom,), 1),), (None, None))
            found = self._intervals[atom] = _largest(low, stated_low), _smallest(high, stated_high)
        return found

    def _defined_interval(self, atom: Atom) -> Interval:
        match atom:
            case Positive(arg):
                high = self.high(arg)
                return max(0, self.low(arg) or 0), None if high is None else max(0, high)
            case Quotient(num, den) if (least := self.low(den)) is not None and least > 0:
                low, high, most = self.low(num), self.high(num), self.high(den)
                # Dividing by more brings a value nearer to 0, and a negative one to -1.
                if low is not None:
                    low = low // least if low < 0 else 0 if most is None else low // most
                if high is not None:
                    high = high // least if high >= 0 else -1 if most is None else high // most
                return low, high
            case _:
                return None, None

    def _by_intervals(self, p: Poly) -> int | None:
        """Every atom is an end of its interval plus or minus something >= 0; written so, each term has a sign."""
        anchored: Poly = ()
        for mono, c in p:
            term = constant(c)
            for atom in mono:
                low, high = self.interval(atom)
                end = low if low is not None else high
                if end is None:
                    return None
                term = times(term, (*constant(end), ((atom,), 1 if low is not None else -1)))
            anchored = plus(anchored, term)
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
        """Replaces the youngest composite atom by what bounds it: definitions hold older atoms only, so this ends."""
        composite = [atom for atom in atoms_in(p) if type(self.atoms[atom]) is not Symbol]
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
        """a + b * max(arg, 0) is one of a and a + b * arg, and the larger one if b >= 0."""
        at_zero, at_arg = self.low(a), self.low(plus(a, times(b, arg)))
        if self.at_least(b, 0):
            return _largest(at_zero, at_arg)
        return None if at_zero is None or at_arg is None else min(at_zero, at_arg)

    def _through_quotient(self, a: Poly, b: Poly, num: Poly, den: Poly) -> int | None:
        """a + b * (num // den), from num - den + 1 <= den * (num // den) <= num for den > 0."""
        number = as_int(den)
        factor, rest = divide(b, den) if number is None else (b, ())
        if rest or not self.at_least(den, 1):
            return None
        if self.at_least(factor, 0):
            product = times(factor, plus(shift(num, 1), den, -1))
        elif self.at_most(factor, 0):
            product = times(factor, num)
        else:
            return None
        scale = 1 if number is None else number  # a number was not divided out of b: this is a bound of `scale` times p
        bound = self.low(plus(scaled(a, scale), product))
        return None if bound is None else -(-bound // scale)


# ---- normal forms ----


class Algebra:
    """The atoms of one trace, and the operations on polynomials over them that need to know what the atoms are.

    Normal forms depend on the bounds with which symbols are made (`bounds`), and on nothing that is learnt later.
    """

    def __init__(self) -> None:
        self.atoms: list[Atom] = []
        self.bounds = Bounds(self.atoms)
        self._composite: dict[tuple[Poly, Poly | None], Poly] = {}
        self._quotients: dict[tuple[Poly, Poly], Poly] = {}

    def symbol(self, name: str, hint: int | None, low: int) -> Poly:
        """A new symbol, whose values are at least `low`."""
        unit: Poly = (((len(self.atoms),), 1),)
        self.atoms.append(Symbol(name, hint))
        self.bounds.learn(unit, low, None)
        return unit

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

    def symbols_of(self, p: Poly) -> set[int]:
        """All symbols that p depends on."""
        found: set[int] = set()
        for atom in atoms_in(p):
            match self.atoms[atom]:
                case Symbol():
                    found.add(atom)
                case Quotient(num, den):
                    found |= self.symbols_of(num) | self.symbols_of(den)
                case Positive(arg):
                    found |= self.symbols_of(arg)
        return found

    def name(self, atom: int) -> str:
        symbol = self.atoms[atom]
        assert isinstance(symbol, Symbol)
        return symbol.name

    def positive(self, p: Poly) -> Poly:
        """max(p, 0)."""
        if self.bounds.at_least(p, 0):
            return p
        if self.bounds.at_most(p, 0):
            return ()
        _, factor, c0 = normal(p)
        if factor < 0:  # max(p, 0) - max(-p, 0) = p: one of the two is enough
            return plus(p, self.positive(scaled(p, -1)))
        common = math.gcd(factor, c0)
        return scaled(self._atom(tuple([(mono, c // common) for mono, c in p]), None), common)

    def remainder(self, p: Poly, q: Poly) -> Poly:
        """p mod q, with the sign of q, for q that is not 0."""
        return plus(p, times(q, self.quotient(p, q)), -1)

    def quotient(self, p: Poly, q: Poly) -> Poly:
        """floor(p / q), for q that is not 0."""
        found = self._quotients.get((p, q))
        if found is not None:
            return found
        number, divisor = as_int(p), as_int(q)
        if number is not None and divisor is not None:
            return constant(number // divisor)
        found = self._over_poly(p, q) if divisor is None else self._over_int(p, divisor)
        self._quotients[p, q] = found
        return found

    def _over_int(self, p: Poly, k: int) -> Poly:
        if k < 0:
            p, k = scaled(p, -1), -k
        low, high = self.bounds.low(p), self.bounds.high(p)
        if low is not None and high is not None and low // k == high // k:
            return constant(low // k)
        whole = tuple([(mono, c // k) for mono, c in p if c // k])
        part = tuple([(mono, c % k) for mono, c in p if c % k])
        return plus(whole, self._fraction(part, k))

    def _fraction(self, part: Poly, k: int) -> Poly:
        """floor(part / k) where all coefficients are in [0, k)."""
        rest, c0 = without_constant(part)
        if not rest:
            return ()
        common = math.gcd(k, *[c for _, c in rest])
        if common > 1:
            fewer = tuple([(mono, c // common) for mono, c in rest])
            return self.quotient(shift(fewer, c0 // common), constant(k // common))
        # floor(-p / k) = -floor((p + k - 1) / k): of p and -p, keep the one that begins with the smaller coefficient.
        if 2 * next((c for _, c in rest if 2 * c != k), 0) > k:
            return scaled(self.quotient(shift(scaled(part, -1), k - 1), constant(k)), -1)
        if k == 2 and c0:  # half of p rounded up is what half of p rounded down leaves of p
            return plus(rest, self.quotient(rest, constant(2)), -1)
        inner = self._lone_quotient(rest)
        if inner is not None:
            num = plus(inner.num, inner.den, c0) if c0 else inner.num
            return self.quotient(num, scaled(inner.den, k))
        return self._atom(part, constant(k))

    def _over_poly(self, p: Poly, q: Poly) -> Poly:
        if self.bounds.at_most(q, -1):
            return self.quotient(scaled(p, -1), scaled(q, -1))
        whole, rest = divide(p, q)
        if len(q) > 1 and len(rest) >= len(p):  # long division by a sum may leave more than there was
            whole, rest = (), p
        return plus(whole, self._proper(rest, q)) if rest else whole

    def _proper(self, p: Poly, q: Poly) -> Poly:
        """floor(p / q) where long division has nothing left to do."""
        fewer, divisor = self._cancelled(p, q)
        if divisor != q:
            return self.quotient(fewer, divisor)
        bounds = self.bounds
        if not bounds.at_least(q, 1):
            return self._atom(p, q)
        if bounds.at_least(p, 0) and bounds.at_least(plus(q, p, -1), 1):
            return ()
        if bounds.at_most(p, -1) and bounds.at_least(plus(q, p), 0):
            return constant(-1)
        inner = self._lone_quotient(p)
        return self._atom(p, q) if inner is None else self.quotient(inner.num, times(inner.den, q))

    def _lone_quotient(self, p: Poly) -> Quotient | None:
        """The quotient that p is, if its divisor is positive: (a // b) // c is a // (b * c) then."""
        if len(p) != 1 or p[0][1] != 1 or len(p[0][0]) != 1:
            return None
        atom = self.atoms[p[0][0][0]]
        return atom if type(atom) is Quotient and self.bounds.at_least(atom.den, 1) else None

    def _cancelled(self, p: Poly, q: Poly) -> tuple[Poly, Poly]:
        """p and q without what they have in common: a number, and atoms that are known to be positive."""
        terms = (*p, *q)
        number = math.gcd(*[c for _, c in terms])
        common: Mono = ()
        for atom in q[-1][0]:
            more = (*common, atom)
            low = self.bounds.interval(atom)[0]
            if low is not None and low > 0 and all(_over(mono, more) is not None for mono, _ in terms):
                common = more
        if number == 1 and not common:
            return p, q
        fewer = [(_over(mono, common) or (), c // number) for mono, c in terms]
        return tuple(sorted(fewer[: len(p)])), tuple(sorted(fewer[len(p) :]))

    def _atom(self, p: Poly, den: Poly | None) -> Poly:
        """The atom floor(p / den), or max(p, 0) where den is None."""
        found = self._composite.get((p, den))
        if found is not None:
            return found
        hint = self.hint(p)
        made: Atom
        if den is None:
            made = Positive(p, None if hint is None else max(hint, 0))
        else:
            below = self.hint(den)
            made = Quotient(p, den, None if hint is None or below is None else hint // below)
        found = self._composite[p, den] = (((len(self.atoms),), 1),)
        self.atoms.append(made)
        return found

    def rebuilt(self, p: Poly, source: Algebra, images: Mapping[int, Poly]) -> Poly:
        """A polynomial of `source` as one of this algebra, symbols replaced by their images; those without one stay."""
        total: Poly = ()
        for mono, c in p:
            term = constant(c)
            for atom in mono:
                term = times(term, self._rebuilt_atom(atom, source, images))
            total = plus(total, term)
        return total

    def _rebuilt_atom(self, atom: int, source: Algebra, images: Mapping[int, Poly]) -> Poly:
        match source.atoms[atom]:
            case Quotient(num, den):
                return self.quotient(self.rebuilt(num, source, images), self.rebuilt(den, source, images))
            case Positive(arg):
                return self.positive(self.rebuilt(arg, source, images))
            case _:
                return images.get(atom, (((atom,), 1),))


# ---- text and generated code ----

Factor: TypeAlias = tuple[str, bool]
"""Text of a factor, and whether it needs parentheses in a product."""
Term: TypeAlias = tuple[int, tuple[Factor, ...]]


def sum_text(terms: Iterable[Term]) -> str:
    """`2*n + 1`: what is added comes first, then higher powers, then the alphabet."""
    text = ""
    for c, factors in sorted(terms, key=lambda term: (term[0] < 0, -len(term[1]), term[1])):
        if abs(c) == 1 and len(factors) == 1 and (text or c > 0):
            product = factors[0][0]
        else:
            parts = [f"({t})" if composite else t for t, composite in factors]
            product = "*".join(parts if abs(c) == 1 and parts else [str(abs(c)), *parts])
        if text:
            text = f"{text} {'-' if c < 0 else '+'} {product}"
        else:
            text = f"-{product}" if c < 0 else product
    return text or "0"


class Text:
    """Polynomials as people write them: `n % 4`, `(n + 1)//2`, `max(n, m)` are read off the normal form again."""

    def __init__(self, atoms: Sequence[Atom]) -> None:
        self.atoms = atoms

    def text(self, p: Poly) -> str:
        return sum_text(self.terms(p))

    def terms(self, p: Poly) -> list[Term]:
        """p as a sum of coefficients and factors, with as few terms as we know how."""
        folded: list[Term] = []
        for atom in sorted(atoms_in(p), reverse=True):
            shorter: list[tuple[Poly, Term]] = []
            for form, factor in self._forms(atom):
                number = self._times_in(p, form, atom)
                rest = plus(p, form, -number) if number else p
                if len(rest) < len(p) and atom not in atoms_in(rest):
                    shorter.append((rest, (number, (factor,))))
            if shorter:
                p, term = min(shorter, key=lambda choice: len(choice[0]))
                folded.append(term)
        products = [(c, tuple(sorted([self._factor(a) for a in mono], key=lambda f: (f[1], f[0])))) for mono, c in p]
        return folded + products

    @staticmethod
    def _times_in(p: Poly, form: Poly, atom: int) -> int:
        """How often `form` has to be in p if all of the atom comes from there; 0 if that is no whole number."""
        mono, c = next(term for term in form if atom in term[0])
        number, rest = divmod(dict(p).get(mono, 0), c)
        return 0 if rest else number

    def _forms(self, atom: int) -> list[tuple[Poly, Factor]]:
        """Sums around an atom that have a text of their own."""
        unit: Poly = (((atom,), 1),)
        match self.atoms[atom]:
            case Quotient(num, den):
                forms = [(plus(num, times(den, unit), -1), (f"{self._operand(num)} % {self._operand(den)}", True))]
                k = as_int(den)
                if k is not None:  # floor((sum of (k - r) * x + k - 1) / k) = sum of x - floor(sum of r * x / k)
                    whole = tuple((mono, 1) for mono, _ in without_constant(num)[0])
                    other = shift(plus(scaled(whole, k), num, -1), k - 1)
                    forms.append((plus(whole, unit, -1), (f"{self._operand(other)}//{k}", True)))
                return forms
            case Positive(arg):
                added = tuple(term for term in arg if term[1] > 0)
                taken = tuple((mono, -c) for mono, c in arg if c < 0)
                both = ", ".join(sorted((self.text(added), self.text(taken)), key=lambda t: (t.isdigit(), t)))
                larger, smaller = plus(unit, taken), plus(added, unit, -1)
                return [(larger, (f"max({both})", False)), (smaller, (f"min({both})", False))]
            case _:
                return []

    def _factor(self, atom: int) -> Factor:
        match self.atoms[atom]:
            case Symbol(name):
                return name, False
            case Positive(arg):
                return f"max({self.text(arg)}, 0)", False
            case Quotient(num, den):
                return f"{self._operand(num)}//{self._operand(den)}", True

    def _operand(self, p: Poly) -> str:
        """p as an operand of // or %: in parentheses unless it is a number or one name."""
        terms = self.terms(p)
        text = sum_text(terms)
        match terms:
            case [] | [(1, ((_, False),))]:
                return text
            case [(c, ())] if c > 0:
                return text
            case _:
                return f"({text})"


class Generated:
    """The lines of a generated function of the values of symbols; composite atoms become variables."""

    def __init__(self, atoms: Sequence[Atom], symbols: Sequence[str]) -> None:
        self.atoms = atoms
        self.lines: list[str] = []
        self._arguments = {name: f"s{i}" for i, name in enumerate(symbols)}
        self._variables: dict[int, str] = {}

    def expression(self, p: Poly) -> str:
        """p as Python; variables that it needs are computed by lines added before."""
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
                if symbol not in self._arguments:
                    raise ValueError(
                        f"[compile_sizes] an expression depends on {symbol}, which is not among the symbols."
                    )
                return self._arguments[symbol]
            case Quotient(num, den):
                self.lines.append(f"{name} = ({self.expression(num)})//({self.expression(den)})")
            case Positive(arg):
                self.lines += [f"{name} = {self.expression(arg)}", f"if {name} < 0: {name} = 0"]
        return name

    def function(self, name: str) -> Any:
        body = "".join(f"    {line}\n" for line in self.lines)
        source = f"def {name}({', '.join(self._arguments.values())}):\n{body}"
        namespace: dict[str, Any] = {}
        exec(compile(source, f"<weft {name}>", "exec"), {}, namespace)
        return namespace[name]
