"""Symbolic sizes: a `Dim` acts as an int in the user's code and is an exact expression to us.

`x.shape[0]` is one while a shapeless function is traced, and shape rules compute with it. Arithmetic stays symbolic;
every way of reading the number records a guard in the `DimEnv` of the trace, which later calls must satisfy. Guards are
also facts: what follows from them and the algebra is answered without a new one. Our own code asks with the functions
at the end (`provably_equal`, `same_shape`, `shape_key`, `text_of`, ...), which record nothing; it tells a size from a
number by `type(n) is int`.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from weft.errors import at_user_line, user_line
from weft.graph.size_algebra import (
    ONE,
    Algebra,
    Bounds,
    Generated,
    Poly,
    Symbol,
    Text,
    as_int,
    constant,
    normal,
    plus,
    scaled,
    shift,
    sum_text,
    times,
)
from weft.records import dataclass

_LARGEST_POWER: Final = 8  # beyond that, `d ** k` is more likely a number to read than a size

_HOLDS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


class UnknownSizeError(ValueError):
    """The number of a size that depends on data was asked for while tracing."""


# ---- guards ----


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Guard:
    """`expression relation value` held while tracing; the program is right only where it does. `line` is the user's."""

    expression: Dim
    relation: str  # one of == != <= >=
    value: int
    line: tuple[str, int] | None = None

    def holds(self, values: Mapping[str, int]) -> bool:
        """Whether it holds where the symbols are `values`."""
        return _HOLDS[self.relation](self.expression.env.evaluate(self.expression, values), self.value)

    @property
    def text(self) -> str:
        """`n >= 17`, `n == m`, `n % 4 == 0`: what is subtracted stands on the right."""
        terms = Text(self.expression.env.algebra.atoms).terms(self.expression.terms)
        left = [term for term in terms if term[0] > 0]
        right = [(-c, factors) for c, factors in terms if c < 0]
        if self.value or not right:
            right.append((self.value, ()))
        return f"{sum_text(left)} {self.relation} {sum_text(right)}"

    def __repr__(self) -> str:
        return self.text if self.line is None else f"{self.text} (at {self.line[0]}:{self.line[1]})"


Question = tuple[Poly, str, int]
"""`x relation value`, with x in normal form and one of == != <= >=."""

_OPPOSITE: Final = {"==": ("!=", 0), "!=": ("==", 0), "<=": (">=", 1), ">=": ("<=", -1)}
"""Of x <= v: x >= v + 1; and so on."""


def _question(p: Poly, relation: str) -> Question | bool:
    """Whether `p relation 0`, in normal form; a bool where that is plain."""
    number = as_int(p)
    if number is not None:
        return _HOLDS[relation](number, 0)
    x, factor, c = normal(p)
    if relation in ("==", "!="):
        return (relation == "!=") if c % factor else (x, relation, -c // factor)
    if (relation == "<=") == (factor > 0):
        return x, "<=", -c // factor
    return x, ">=", -(c // factor)


# ---- the environment of a trace ----


class DimEnv:
    """The symbols of one trace, what is assumed about them, and the guards that reading sizes has recorded."""

    def __init__(self) -> None:
        self.algebra = Algebra()
        self.guards: list[Guard] = []
        self.assumptions: list[Guard] = []  # sizes 0 and 1 are never symbols; checked as guards are
        self.closed = False
        self._names: dict[str, bool] = {}  # whether the symbol has a hint
        self._dims: dict[Poly, Dim] = {}
        # What guards have taught: bounds, values that expressions do not have, and symbols that others determine.
        self._known = Bounds(self.algebra.atoms)
        self._apart: set[tuple[Poly, int]] = set()
        self._solved: dict[int, Poly] = {}
        self._about: dict[int, list[tuple[Poly, int | None] | int]] = {}
        """By symbol, what is said with it: (x, None) is bounded, (x, value) apart, and a symbol is solved."""
        self._proofs: dict[tuple[Poly, str], bool | None] = {}

    # -- symbols --

    def symbol(self, name: str, hint: int) -> Dim:
        """A new symbol for the size of an input axis, which is `hint` in this trace."""
        if type(hint) is not int or hint < 2:
            raise ValueError(
                f"[DimEnv.symbol] {name} = {text_of(hint)}: a symbol is at least 2; keep 0 and 1 as numbers."
            )
        made = self._new_symbol(name, hint, 2)
        self.assumptions.append(Guard(made, ">=", 2))
        return made

    def unbacked(self, name: str, low: int = 0) -> Dim:
        """A new symbol for a size that depends on data and is at least `low`: it has no number while tracing."""
        return self._new_symbol(name, None, low)

    def unknown(self) -> Dim:
        """A new symbol for a number >= 0 that is found out later, and may be read by nobody: where things lie in
        memory."""
        return self._new_symbol(f"u{len(self._names)}", None, 0)

    def _new_symbol(self, name: str, hint: int | None, low: int) -> Dim:
        if name in self._names:
            raise ValueError(f"[DimEnv] there is a symbol {name!r} in this trace already.")
        self._names[name] = hint is not None
        unit = self.algebra.symbol(name, hint, low)
        self._bound(unit, low, None)
        made = self._dims[unit] = Dim(self, unit)
        return made

    def again(self, values: Mapping[str, int]) -> tuple[DimEnv, dict[str, int | Dim]]:
        """Another environment with symbols of the same names, which are `values` there, and those symbols: where guards
        determine one by others, what it is of these. What is assumed and guarded here is known there; only what is
        decided there becomes a guard of that one."""
        env = DimEnv()
        symbols = {name: env.symbol(name, values[name]) for name in self.symbols}
        for guard in self.guards:
            difference = substitute(guard.expression, symbols) - guard.value
            if type(difference) is Dim:
                env._learn(difference.terms, guard.relation)
        env.assumptions.clear()
        return env, {name: env.size(env._resolved(symbol.terms)) for name, symbol in symbols.items()}

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the sizes of inputs, in the order in which they were made: the arguments of `compiled_check`."""
        return tuple([name for name, backed in self._names.items() if backed])

    def close(self) -> None:
        """The trace is over: expressions can still be built and proved equal, but no number can be read any more."""
        self.closed = True

    def size(self, p: Poly) -> int | Dim:
        """p as a size: the one Dim for it, or a plain int."""
        found = self._dims.get(p)
        if found is not None:
            return found
        number = as_int(p)
        if number is not None:
            return number
        made = self._dims[p] = Dim(self, p)
        return made

    # -- values --

    def evaluate(self, dim: int | Dim, values: Mapping[str, int]) -> int:
        """The number that `dim` is where the symbols are `values`."""
        number = substitute(dim, values)
        if type(number) is Dim:
            raise KeyError(f"[DimEnv.evaluate] {text_of(dim)} needs values for {_symbol_names(number)}")
        return int(number)

    def check(self, values: Mapping[str, int]) -> Guard | None:
        """The first guard that does not hold where the symbols are `values`, if there is one."""
        return next((guard for guard in (*self.assumptions, *self.guards) if not guard.holds(values)), None)

    def compiled_check(self, known: Sequence[str] | None = None) -> Callable[..., bool]:
        """The same, fast: a function of the values of `symbols`, in their order, that says whether all guards hold. Or
        of the `known` ones, and of what is guarded of those alone."""
        names = self.symbols if known is None else known
        source = Generated(self.algebra.atoms, names)
        for guard in (*self.assumptions, *self.guards):  # in order: a divisor is guarded before it divides
            if known is not None and not set(symbols_of(guard.expression)) <= set(known):
                continue
            expression = source.expression(guard.expression.terms)
            source.lines.append(f"if not {expression} {guard.relation} {guard.value}: return False")
        source.lines.append("return True")
        function: Callable[..., bool] = source.function("check")
        return function

    # -- questions --

    def prove(self, p: Poly, relation: str) -> bool | None:
        """Whether `p relation 0` (== != <= >=) for all calls that pass the guards; None where we cannot say."""
        key = p, relation
        if key not in self._proofs:
            self._proofs[key] = self._proved(_question(self._resolved(p), relation), self._known)
        return self._proofs[key]

    def _proved(self, question: Question | bool, bounds: Bounds) -> bool | None:
        if isinstance(question, bool):
            return question
        x, relation, value = question
        if relation == "<=":
            return True if bounds.at_most(x, value) else False if bounds.at_least(x, value + 1) else None
        if relation == ">=":
            return True if bounds.at_least(x, value) else False if bounds.at_most(x, value - 1) else None
        low, high = bounds.low(x), bounds.high(x)
        if low == high == value:
            return relation == "=="
        outside = (low is not None and low > value) or (high is not None and high < value)
        return relation == "!=" if outside or (bounds is self._known and (x, value) in self._apart) else None

    def decide(self, p: Poly, relation: str) -> bool:
        """Whether `p relation 0`: proved, or as it is in this trace, and then a guard is recorded."""
        if not self.closed:
            proved = self.prove(p, relation)
        else:  # what guards say is true of the calls that pass them, not of whoever holds the size after the trace
            proved = self._proved(_question(p, relation), self.algebra.bounds)
        if proved is not None:
            return proved
        question = _question(p, relation)
        assert not isinstance(question, bool)
        x, relation, value = question
        expression = self.size(x)
        assert type(expression) is Dim
        holds = _HOLDS[relation](self.number(expression), value)
        if not holds:
            relation, step = _OPPOSITE[relation]
            value += step
        self.guards.append(Guard(expression, relation, value, user_line()))
        self._learn(shift(x, -value), relation)
        return holds

    def number(self, dim: Dim) -> int:
        """The number of `dim` in this trace, if it has one and may still be read. The caller records that."""
        if self.closed:
            raise RuntimeError(
                f"[shapeless] the size {dim.text} (of {_symbol_names(dim)}) was read after its function was traced; "
                f"it has no value outside. Return an array and read its shape instead{at_user_line()}."
            )
        hint = dim.hint
        if hint is None:
            raise UnknownSizeError(
                f"[shapeless] the size {dim.text} (of {_symbol_names(dim)}) depends on data, so it has no number while "
                "the function is traced: `if`, `range`, comparisons and printing cannot use it. Keep all elements and "
                "select with `where` or a mask, give a fixed size, or do this outside the compiled function"
                f"{at_user_line()}."
            )
        return hint

    # -- what guards teach --

    def _learn(self, p: Poly, relation: str) -> None:
        """`p relation 0` from now on."""
        question = _question(self._resolved(p), relation)
        self._proofs.clear()
        if isinstance(question, bool):
            return
        x, relation, value = question
        if relation == "!=":
            self._keep_apart(x, value)
            low, high = self._known.low(x), self._known.high(x)
            self._bound(x, value + 1 if low == value else None, value - 1 if high == value else None)
            return
        self._bound(x, value if relation != "<=" else None, value if relation != ">=" else None)
        if relation == "==":
            solved = self._solve(x, value)
            if solved is not None:
                self._restate(solved)

    def _bound(self, x: Poly, low: int | None, high: int | None) -> None:
        self._known.learn(x, low, high)
        self._note(x, (x, None))

    def _keep_apart(self, x: Poly, value: int) -> None:
        self._apart.add((x, value))
        self._note(x, (x, value))

    def _note(self, p: Poly, said: tuple[Poly, int | None] | int) -> None:
        for atom in self.algebra.symbols_of(p):
            self._about.setdefault(atom, []).append(said)

    def _solve(self, x: Poly, value: int) -> int | None:
        """The symbol that x == value gives in terms of the others: it stands there plainly and nowhere else."""
        algebra = self.algebra
        for mono, c in reversed(x):
            if len(mono) != 1 or abs(c) != 1 or type(algebra.atoms[mono[0]]) is not Symbol:
                continue
            rest = tuple([term for term in x if term[0] != mono])
            if mono[0] not in algebra.symbols_of(rest):
                self._solve_for(mono[0], scaled(shift(rest, -value), -c))
                return mono[0]
        return None

    def _solve_for(self, atom: int, p: Poly) -> None:
        self._solved[atom] = p
        self._note(p, atom)

    def _restate(self, solved: int) -> None:
        """Writes what is known of a symbol in the symbols that are left."""
        for said in self._about.pop(solved):
            if isinstance(said, int):
                self._solve_for(said, self._resolved(self._solved[said]))
                continue
            x, value = said
            if value is not None:
                if said in self._apart:
                    self._apart.remove((x, value))
                    self._state(shift(x, -value), "!=")
                continue
            low, high = self._known.facts.get(x, (None, None))
            if x not in self.algebra.bounds.facts:
                self._known.facts.pop(x, None)
            if low is not None:
                self._state(shift(x, -low), ">=")
            if high is not None:
                self._state(shift(x, -high), "<=")

    def _state(self, p: Poly, relation: str) -> None:
        question = _question(self._resolved(p), relation)
        if not isinstance(question, bool):
            x, relation, value = question
            if relation == "!=":
                self._keep_apart(x, value)
            else:
                self._bound(x, value if relation == ">=" else None, value if relation == "<=" else None)

    def _resolved(self, p: Poly) -> Poly:
        """p without the symbols that guards determine."""
        if not self._solved or self._solved.keys().isdisjoint(self.algebra.symbols_of(p)):
            return p
        return self.algebra.rebuilt(p, self.algebra, self._solved)


def hint_of(n: Any) -> Any:
    """A size as the number that it is in its trace, if it has one; anything else as it is. Nothing is recorded."""
    return n if type(n) is not Dim or n.hint is None else n.hint


def symbols_of(dim: Dim) -> list[str]:
    """The names of the symbols that a size depends on."""
    algebra = dim.env.algebra
    return [algebra.name(atom) for atom in sorted(algebra.symbols_of(dim.terms))]


def _symbol_names(dim: Dim) -> str:
    return ", ".join(symbols_of(dim))


# ---- the size ----


class Dim:
    """A size that is an expression of symbols, and acts as an int.

    Arithmetic stays symbolic, reading the number records a guard. `key`, `text`, `hint` and `terms` record nothing.
    """

    __slots__ = ("_hint", "_text", "env", "terms")

    def __init__(self, env: DimEnv, terms: Poly) -> None:  # called by DimEnv only: there is one object per expression
        self.env, self.terms = env, terms
        self._text: str | None = None
        self._hint: int | None = None

    # -- without guards --

    @property
    def key(self) -> tuple[str, DimEnv, Poly]:
        """Hashable; equal for the same expression of the same trace."""
        return "dim", self.env, self.terms

    @property
    def text(self) -> str:
        """`2*n + 1`, `(n + 3)//4`."""
        if self._text is None:
            self._text = Text(self.env.algebra.atoms).text(self.terms)
        return self._text

    @property
    def hint(self) -> int | None:
        """The number in this trace; None if it depends on data."""
        if self._hint is None:
            self._hint = self.env.algebra.hint(self.terms)
        return self._hint

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        return int

    # -- reading the number --

    def __index__(self) -> int:
        number = self.env.number(self)
        self.env.decide(shift(self.terms, -number), "==")
        return number

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __complex__(self) -> complex:
        return complex(self.__index__())

    def __hash__(self) -> int:
        return hash(self.__index__())  # sizes and numbers compare equal, so they must hash alike

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
        if exact is not None and all(isinstance(x, (int, np.integer)) for x in inputs):
            return exact(*[x if type(x) is Dim else int(x) for x in inputs])
        return getattr(ufunc, method)(*[x.__index__() if type(x) is Dim else x for x in inputs], **options)

    def bit_length(self) -> int:
        """As of an int. It is the same between two powers of 2, and that is the guard."""
        length = self.env.number(self).bit_length()
        if length and self >= 1 << (length - 1) and self < 1 << length:
            return length
        return self.__index__().bit_length()

    def __getattr__(self, name: str) -> Any:
        """The other methods of int (`bit_count`, `to_bytes`, ...) read the number."""
        if name.startswith("__") or not hasattr(int, name):
            raise AttributeError(f"'int' object has no attribute {name!r}")
        return getattr(self.__index__(), name)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (self.__index__(),)

    def __copy__(self) -> Dim:
        return self

    def __deepcopy__(self, memo: object) -> Dim:
        return self

    # -- comparing --

    def _compare(self, other: Any, relation: str) -> bool:
        terms = self._terms_of(other)
        if terms is None:
            return self._compare_foreign(other, relation)
        difference = plus(self.terms, terms, -1)
        if relation == "<":
            return self.env.decide(shift(difference, 1), "<=")
        if relation == ">":
            return self.env.decide(shift(difference, -1), ">=")
        return self.env.decide(difference, relation)

    def _compare_foreign(self, other: object, relation: str) -> bool:
        if not isinstance(other, numbers.Number):
            return NotImplemented  # type: ignore[no-any-return]
        if not isinstance(other, float):
            return _HOLDS[relation](self.__index__(), other)
        if not math.isfinite(other):
            return _HOLDS[relation](0, other)
        if other.is_integer():
            return self._compare(int(other), relation)
        if relation in ("==", "!="):
            return relation == "!="
        if relation in ("<", "<="):
            return self._compare(math.floor(other), "<=")
        return self._compare(math.ceil(other), ">=")

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

    # -- exact arithmetic --

    def _terms_of(self, other: Any) -> Poly | None:
        """An integer operand as a polynomial over the same atoms; None for anything else."""
        if type(other) is int:
            return (((), other),) if other else ()
        if type(other) is Dim:
            if other.env is not self.env:
                _refuse_mixing(self, other)
            return other.terms
        return constant(int(other)) if isinstance(other, (int, np.integer)) else None

    def __add__(self, other: int | Dim) -> int | Dim:
        if type(other) is int:
            return self.env.size(shift(self.terms, other))
        terms = self._terms_of(other)
        if terms is None:
            return self._with_number(operator.add, other)
        return self.env.size(plus(self.terms, terms))

    __radd__ = __add__

    def __sub__(self, other: int | Dim) -> int | Dim:
        if type(other) is int:
            return self.env.size(shift(self.terms, -other))
        terms = self._terms_of(other)
        if terms is None:
            return self._with_number(operator.sub, other)
        return self.env.size(plus(self.terms, terms, -1))

    def __rsub__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._with_number(operator.sub, other, reflected=True)
        return self.env.size(plus(terms, self.terms, -1))

    def __mul__(self, other: int | Dim) -> int | Dim:
        if type(other) is int:
            return self.env.size(scaled(self.terms, other))
        terms = self._terms_of(other)
        if terms is None:
            return self._with_number(operator.mul, other)
        return self.env.size(times(self.terms, terms))

    __rmul__ = __mul__

    def __floordiv__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._with_number(operator.floordiv, other)
        return self.env.size(self.env.algebra.quotient(self.terms, self._nonzero(terms)))

    def __rfloordiv__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._with_number(operator.floordiv, other, reflected=True)
        return self.env.size(self.env.algebra.quotient(terms, self._nonzero(self.terms)))

    def __mod__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._with_number(operator.mod, other)
        return self.env.size(self.env.algebra.remainder(self.terms, self._nonzero(terms)))

    def __rmod__(self, other: int | Dim) -> int | Dim:
        terms = self._terms_of(other)
        if terms is None:
            return self._with_number(operator.mod, other, reflected=True)
        return self.env.size(self.env.algebra.remainder(terms, self._nonzero(self.terms)))

    def _nonzero(self, divisor: Poly) -> Poly:
        number = as_int(divisor)
        if number == 0 or (number is None and not self.env.decide(divisor, "!=")):
            raise ZeroDivisionError("integer division or modulo by zero")
        return divisor

    def __divmod__(self, other: int | Dim) -> tuple[int | Dim, int | Dim]:
        return self // other, self % other

    def __rdivmod__(self, other: int | Dim) -> tuple[int | Dim, int | Dim]:
        return other // self, other % self

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is not None:
            return pow(self.__index__(), other, modulus)
        if type(other) is not int or not 0 <= other <= _LARGEST_POWER:
            return self._with_number(operator.pow, other)
        terms = ONE
        for _ in range(other):
            terms = times(terms, self.terms)
        return self.env.size(terms)

    def __lshift__(self, other: Any) -> int | Dim:
        return self * (1 << other) if type(other) is int else self._with_number(operator.lshift, other)

    def __rshift__(self, other: Any) -> int | Dim:
        return self // (1 << other) if type(other) is int else self._with_number(operator.rshift, other)

    def __neg__(self) -> int | Dim:
        return self.env.size(scaled(self.terms, -1))

    def __invert__(self) -> int | Dim:
        return -self - 1

    def __abs__(self) -> int | Dim:
        return self.env.size(plus(scaled(self.env.algebra.positive(self.terms), 2), self.terms, -1))

    def __pos__(self) -> Dim:
        return self

    __trunc__ = __floor__ = __ceil__ = conjugate = __pos__
    real = numerator = property(__pos__)
    imag = property(lambda self: 0)
    denominator = property(lambda self: 1)

    def __round__(self, digits: int | None = None) -> int | Dim:
        return self if digits is None else round(self.__index__(), digits)

    # -- arithmetic that needs the number --

    def _with_number(self, op: Callable[[Any, Any], Any], other: Any, reflected: bool = False) -> int | Dim:
        """With other kinds of numbers, or without a symbolic form. What is no number may know how to do it itself."""
        if not isinstance(other, numbers.Number):
            return NotImplemented  # type: ignore[no-any-return]
        number = self.__index__()
        other = operator.index(other) if isinstance(other, int) else other
        result: int | Dim = op(other, number) if reflected else op(number, other)  # or whatever kind `other` is
        return result

    def __truediv__(self, other: Any) -> Any:
        return self._with_number(operator.truediv, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with_number(operator.truediv, other, reflected=True)

    def __rpow__(self, other: Any) -> Any:
        return self._with_number(operator.pow, other, reflected=True)

    def __rlshift__(self, other: Any) -> Any:
        return self._with_number(operator.lshift, other, reflected=True)

    def __rrshift__(self, other: Any) -> Any:
        return self._with_number(operator.rshift, other, reflected=True)

    def __and__(self, other: Any) -> Any:
        return self._with_number(operator.and_, other)

    def __or__(self, other: Any) -> Any:
        return self._with_number(operator.or_, other)

    def __xor__(self, other: Any) -> Any:
        return self._with_number(operator.xor, other)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__


_UFUNCS: Final[Mapping[str, Callable[..., Any]]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "negative": operator.neg,
}
"""What integer scalars of NumPy may do with a size without reading it."""


def _refuse_mixing(a: Dim, b: Dim) -> NoReturn:
    for dim in (a, b):
        if dim.env.closed:
            dim.env.number(dim)  # says that this one has left its trace
    raise ValueError(f"[shapeless] sizes {a.text} and {b.text} belong to two traces: they do not mix{at_user_line()}.")


# ---- what shape rules and passes ask: no guards, except by `broadcast_dims` and by dividing by what may be 0 ----


def is_symbolic(x: object) -> bool:
    """Whether x is a symbolic size."""
    return type(x) is Dim


def prod(shape: Iterable[int | Dim]) -> int | Dim:
    """Number of elements."""
    return math.prod(shape)


def shape_key(shape: tuple[int | Dim, ...]) -> tuple[Any, ...]:
    """What may be hashed and compared in place of a shape: the shape itself where it is all numbers."""
    for n in shape:
        if type(n) is not int:
            return tuple([n.key if type(n) is Dim else n for n in shape])
    return shape


def exact(value: Any) -> Any:
    """A size, or what holds sizes, with Python's own integers for all that count as such: True and `np.int64(1)` are
    equal to 1, and so is a number of a trace once it is read, so that what is found by its sizes would have theirs from
    then on. Symbols, which say that they are ints, are not read."""
    if type(value) is Dim:
        return value
    if type(value) is tuple:
        return tuple([n if type(n) is int else exact(n) for n in value])
    return int(value) if isinstance(value, (int, np.integer)) else value


def key_of(value: Any) -> Any:
    """The same for any parameter: `value` with every Dim in it, however deep in tuples, replaced by its key."""
    if type(value) is Dim:
        return value.key
    if type(value) is not tuple:
        return value
    for v in value:  # nearly always there is none, and nothing is built
        if type(v) is not int and key_of(v) is not v:
            return tuple([key_of(v) for v in value])
    return value


def text_of(size: object) -> str:
    """A size, for our own messages and listings."""
    return size.text if type(size) is Dim else str(size)


def shape_text(shape: Iterable[int | Dim]) -> str:
    """`(n, 2*n + 1, 4)`, as Python writes a tuple."""
    parts = [text_of(n) for n in shape]
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def provably_equal(a: int | Dim, b: int | Dim) -> bool:
    """Whether a == b in every call that passes the guards."""
    if type(a) is int and type(b) is int:
        return a == b
    return a is b or _provable(a, "==", b)


def provably_at_most(a: int | Dim, b: int | Dim) -> bool:
    """Whether a <= b in every call that passes the guards."""
    if type(a) is int and type(b) is int:
        return a <= b
    return a is b or _provable(a, "<=", b)


def same_shape(a: Sequence[int | Dim], b: Sequence[int | Dim]) -> bool:
    """Whether two shapes are provably equal."""
    return len(a) == len(b) and all(map(provably_equal, a, b))


def is_exactly(size: int | Dim, number: int) -> bool:
    """Whether a size is this number, and no symbol: 0 and 1, which rules treat in ways of their own, never are."""
    return type(size) is int and size == number


def is_now(size: int | Dim, number: int) -> bool:
    """Whether a size is this number; a guard where it may be, or not. What depends on data is taken not to be."""
    if type(size) is not Dim:
        return size == number
    if size.env.closed or size.hint is None:
        return provably_equal(size, number)
    return size == number


def pinned(size: int | Dim, most: int) -> int | None:
    """A size as a plain number if it is at most `most`, for code that is written for one number: a guard says that it
    is that number. None if it is larger, or depends on data."""
    if type(size) is Dim and (size.env.closed or size.hint is None):
        return None
    return operator.index(size) if size <= most else None


def is_negative(size: int | Dim) -> bool:
    """Whether a size that the user computed is none; a guard, as `is_now`."""
    if type(size) is not Dim:
        return size < 0
    return not size.env.closed and size.hint is not None and size < 0


def squeezed(shape: Iterable[int | Dim]) -> tuple[int | Dim, ...]:
    """A shape without its axes of size 1."""
    return tuple([n for n in shape if not is_exactly(n, 1)])


def _provable(a: int | Dim, relation: str, b: int | Dim) -> bool:
    dim = a if type(a) is Dim else b
    if type(dim) is not Dim:  # other kinds of integers
        return _HOLDS[relation](a, b)
    if type(a) is Dim and type(b) is Dim and a.env is not b.env:
        return False
    p, q = (x.terms if type(x) is Dim else constant(int(x)) for x in (a, b))
    return dim.env.prove(plus(p, q, -1), relation) is True


def broadcast_dims(a: int | Dim, b: int | Dim) -> int | Dim:
    """The size that axes of sizes a and b broadcast to. Guards that they are equal, where it depends on that."""
    if type(a) is int and type(b) is int:
        if a == b or b == 1:
            return a
        if a == 1:
            return b
    elif provably_equal(a, b):
        return b if type(b) is int else a
    elif _is_one(b):
        return a
    elif _is_one(a):
        return b
    elif a == b:
        return b if type(b) is int else a
    assert a != 1  # these are guards, for whoever catches the error
    assert b != 1
    raise ValueError(f"[broadcast_shapes] sizes {_with_hint(a)} and {_with_hint(b)} differ and neither is 1.")


def _is_one(size: int | Dim) -> bool:
    """Whether the size is 1 here; a guard if that is not always so, none if it is not so here."""
    if type(size) is Dim:
        return provably_equal(size, 1) or (size.hint == 1 and size == 1)
    return size == 1


def _with_hint(size: int | Dim) -> str:
    return f"{size.text} ({size.hint} here)" if type(size) is Dim else str(size)


def ceil_div(a: int | Dim, b: int | Dim) -> int | Dim:
    """a / b, rounded up."""
    return -(-a // b)


def dim_max(a: int | Dim, b: int | Dim) -> int | Dim:
    """The larger one, symbolic where it may be either (Python's `max` compares, and records a guard)."""
    difference = a - b
    if type(difference) is not Dim:
        return a if difference > 0 else b
    return b + difference.env.size(difference.env.algebra.positive(difference.terms))


def dim_min(a: int | Dim, b: int | Dim) -> int | Dim:
    """The smaller one, symbolic where it may be either."""
    return a + b - dim_max(a, b)


def substitute(expr: int | Dim, mapping: Mapping[str, int | Dim]) -> int | Dim:
    """`expr` with symbols replaced by name: by numbers, or by sizes of this or another trace.

    What replaces the size of an input must be as that is assumed to be: at least 2, and such that the guards hold.
    """
    if type(expr) is not Dim:
        return expr
    algebra, envs, images = expr.env.algebra, set(), {}
    for atom in algebra.symbols_of(expr.terms):
        image = mapping.get(algebra.name(atom))
        if image is None:
            envs.add(expr.env)
        elif type(image) is Dim:
            envs.add(image.env)
            images[atom] = image.terms
        else:
            images[atom] = constant(int(image))
    if len(envs) > 1:
        raise ValueError(f"[substitute] {expr.text} would mix two traces; replace all of {_symbol_names(expr)}.")
    env = envs.pop() if envs else expr.env
    return env.size(env.algebra.rebuilt(expr.terms, algebra, images))


def compile_sizes(exprs: Iterable[int | Dim], symbols: Sequence[str]) -> Callable[..., tuple[int, ...]]:
    """A function of the values of `symbols`, in that order, that gives the values of `exprs`."""
    exprs = tuple(exprs)
    envs = {expr.env for expr in exprs if type(expr) is Dim}
    if len(envs) > 1:
        raise ValueError("[compile_sizes] the expressions belong to different traces.")
    source = Generated(envs.pop().algebra.atoms if envs else (), symbols)
    results = [source.expression(expr.terms) if type(expr) is Dim else str(expr) for expr in exprs]
    source.lines.append(f"return ({''.join(f'{result}, ' for result in results)})")
    function: Callable[..., tuple[int, ...]] = source.function("sizes")
    return function
