"""Python numbers that a compiled function gets anew at each call: a `Scalar` acts as an int or a float in the user's
code and is an expression to us.

Arithmetic stays symbolic and is done again, by Python, at each call. Where a scalar meets an array it becomes a
constant whose words are filled in at each call (primitives/base.py). A comparison is decided as it is in this trace,
and later calls must decide it alike. Every other way of reading the number makes the trace one for that number
(`by_value`), so whoever does not know of scalars is right all the same. A scalar that has left its trace is simply its
number.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, Final

from weft.errors import user_line

MOST_DECISIONS: Final = 64
"""Comparisons of one trace; beyond them the numbers themselves are compared."""

Number = int | float


class Scalars:
    """The scalars of one trace: what they are now, what was computed from them, what was decided by them."""

    def __init__(self, values: Sequence[Number], running: Any = None) -> None:
        self.running = running
        """The trace, for other threads."""
        self.by_value: dict[int, tuple[str, int] | None] = {}
        """Scalars whose number was read, and the user's line that read it first."""
        self.closed = False
        self._thread = threading.get_ident()
        self._names: dict[str, Any] = {}
        self._lines: list[str] = []
        self._decisions: set[tuple[str, bool]] = set()
        self._wanted: dict[str, int] = {}
        self._count = len(values)
        self.leaves = [_scalar(self, f"s{i}", v, frozenset((i,))) for i, v in enumerate(values)]

    def is_open(self) -> bool:
        """Whether the trace still runs, here."""
        return not self.closed and threading.get_ident() == self._thread

    def is_fixed(self, scalar: Scalar) -> bool:
        """Whether the trace holds for this number only."""
        return scalar._leaves <= self.by_value.keys()

    def read(self, scalar: Scalar) -> None:
        """The trace holds for this number only, from now on."""
        if not self.is_open():
            return
        new = [i for i in scalar._leaves if i not in self.by_value]
        if new:
            line = user_line()
            self.by_value.update((i, line) for i in new)

    def name_of(self, value: Any) -> str:
        """A scalar, or a plain number, as it stands in the function that a call runs."""
        if type(value) in SCALARS:
            return value._name  # type: ignore[no-any-return]
        name = f"k{len(self._names)}"
        self._names[name] = value
        return name

    def step(self, text: str, value: Any, leaves: frozenset[int], checked: bool) -> Any:
        """The scalar that an operation makes. `checked`: other numbers may give a result of another type."""
        name = f"t{len(self._lines)}"
        self._lines.append(f"{name} = {text}")
        if checked:
            self._lines.append(f"if {name}.__class__ is not {value.__class__.__name__}: return None")
        return _scalar(self, name, value, leaves)

    def decide(self, text: str, holds: bool, *scalars: Scalar) -> bool:
        """A comparison, which later calls must decide alike."""
        if (text, holds) not in self._decisions:
            if len(self._decisions) >= MOST_DECISIONS:
                for scalar in scalars:
                    self.read(scalar)
                return holds
            self._decisions.add((text, holds))
            self._lines.append(f"if {'not ' if holds else ''}({text}): return None")
        return holds

    def want(self, scalar: Scalar) -> int:
        """The place of a scalar among the numbers that `compiled` gives."""
        return self._wanted.setdefault(scalar._name, len(self._wanted))

    def compiled(self) -> Callable[..., tuple[Any, ...] | None]:
        """A function of the numbers of a call: those that are wanted, or None if a decision would fall otherwise."""
        lines = [*self._lines, f"return ({''.join(f'{name}, ' for name in self._wanted)})"]
        head = f"def numbers({', '.join(f's{i}' for i in range(self._count))}):"
        names = dict(self._names)
        exec(_code("\n    ".join([head, *lines])), names)
        return names["numbers"]  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    """A function that is traced over and over asks for the same text each time: numbers have names in it."""
    return compile(text, "<numbers of a trace>", "exec")


class Scalar:
    """What an int and a float have in common. `number` reads; `hint` does not."""

    __slots__ = ("_leaves", "_name", "env", "hint")

    def __init__(self, env: Scalars, name: str, hint: Any, leaves: frozenset[int]) -> None:
        self.env, self._name, self.hint, self._leaves = env, name, hint, leaves

    @property
    def number(self) -> Any:
        """The number; the trace now holds for this one only."""
        self.env.read(self)
        return self.hint

    def is_small(self) -> bool:
        """Whether it is a float, or an int of 64 bits, which every dtype has a number for: a decision."""
        return type(self.hint) is float or bool(self >= -(1 << 63) and self < 1 << 64)

    # -- reading --

    def __float__(self) -> float:
        return float(self.number)

    def __int__(self) -> int:
        return int(self.number)

    def __complex__(self) -> complex:
        return complex(self.number)

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        return repr(self.number)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.number, spec)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.number, digits)

    def __trunc__(self) -> int:
        return self.number.__trunc__()  # type: ignore[no-any-return]

    def __floor__(self) -> int:
        return self.number.__floor__()  # type: ignore[no-any-return]

    def __ceil__(self) -> int:
        return self.number.__ceil__()  # type: ignore[no-any-return]

    def __reduce__(self) -> Any:
        return type(self.hint), (self.number,)

    def __copy__(self) -> Scalar:
        return self

    def __deepcopy__(self, memo: object) -> Scalar:
        return self

    def __getattr__(self, name: str) -> Any:
        """The other attributes of numbers (`bit_length`, `is_integer`, ...) read the number; it has no others."""
        if name.startswith("__") or not hasattr(type(self.hint), name):
            raise AttributeError(f"{type(self.hint).__name__!r} object has no attribute {name!r}")
        return getattr(self.number, name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np  # NumPy asks for it, so it is there; scalars themselves need no arrays

        return np.array(self.number, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return getattr(ufunc, method)(*[x.number if type(x) in SCALARS else x for x in inputs], **options)

    # -- deciding --

    def __bool__(self) -> bool:
        holds = bool(self.hint)
        return self.env.decide(self._name, holds, self) if self.env.is_open() else holds

    def _compare(self, other: Any, op: Callable[[Any, Any], bool], text: str) -> Any:
        scalars = (self, other) if type(other) in SCALARS else (self,)
        if type(other) not in _PLAIN and len(scalars) == 1:
            return op(self.number, other) if _is_number(other) else NotImplemented
        holds = op(self.hint, scalars[1].hint if len(scalars) == 2 else other)
        if not self.env.is_open():
            return holds
        return self.env.decide(f"{self._name} {text} {_literal(self.env, other)}", holds, *scalars)

    def __eq__(self, other: object) -> Any:
        return self._compare(other, operator.eq, "==")

    def __ne__(self, other: object) -> Any:
        return self._compare(other, operator.ne, "!=")

    def __lt__(self, other: Any) -> Any:
        return self._compare(other, operator.lt, "<")

    def __le__(self, other: Any) -> Any:
        return self._compare(other, operator.le, "<=")

    def __gt__(self, other: Any) -> Any:
        return self._compare(other, operator.gt, ">")

    def __ge__(self, other: Any) -> Any:
        return self._compare(other, operator.ge, ">=")


class FloatScalar(Scalar):
    """Stands for a float."""

    __slots__ = ()
    __hash__ = Scalar.__hash__

    @property  # type: ignore[misc]
    def __class__(self) -> type[float]:  # type: ignore[override]
        return float


class IntScalar(Scalar):
    """Stands for an int."""

    __slots__ = ()
    __hash__ = Scalar.__hash__

    @property  # type: ignore[misc]
    def __class__(self) -> type[int]:  # type: ignore[override]
        return int

    def __index__(self) -> int:
        return self.number  # type: ignore[no-any-return]


SCALARS: Final = frozenset({FloatScalar, IntScalar})
_PLAIN: Final = frozenset({int, float, bool})


def _scalar(env: Scalars, name: str, value: Any, leaves: frozenset[int]) -> Scalar:
    made: Scalar = (FloatScalar if type(value) is float else IntScalar)(env, name, value, leaves)
    return made


def _is_number(value: Any) -> bool:
    """Whether Python's numbers know what to do with it (sizes, complex numbers, NumPy's scalars)."""
    return isinstance(value, (int, float, complex)) or (hasattr(value, "__float__") and hasattr(value, "__add__")
                                                        and not hasattr(value, "__len__"))  # fmt: skip


def _literal(env: Scalars, value: Any) -> str:
    return repr(value) if type(value) is int else env.name_of(value)


def plain(value: Any) -> Any:
    """A scalar as its number, which is thereby read; anything else as it is."""
    return value.number if type(value) in SCALARS else value


def _unary(op: Callable[[Any], Any], text: str) -> Callable[[Scalar], Any]:
    def method(self: Scalar) -> Any:
        value = op(self.hint)
        if not self.env.is_open():
            return value
        return self.env.step(text.format(self._name), value, self._leaves, False)

    return method


def _binary(op: Callable[[Any, Any], Any], text: str, reflected: bool) -> Callable[[Scalar, Any], Any]:
    """An arithmetic operator. A result that is no plain int or float, or an error, depends on the numbers: they are
    read."""

    def method(self: Scalar, other: Any) -> Any:
        is_scalar = type(other) in SCALARS
        if not is_scalar and type(other) not in _PLAIN:
            return _with_other(self, other, op, reflected)
        a, b = (other, self) if reflected else (self, other)
        x, y = (v.hint if type(v) in SCALARS else v for v in (a, b))
        env = self.env
        try:
            value = op(x, y)
        except ArithmeticError:
            for scalar in (self, other) if is_scalar else (self,):
                env.read(scalar)
            raise
        if not env.is_open() or (is_scalar and other.env is not env):
            return value
        if type(value) not in (int, float):
            return op(plain(a), plain(b))
        leaves = self._leaves | other._leaves if is_scalar else self._leaves
        return env.step(f"{_literal(env, a)} {text} {_literal(env, b)}", value, leaves, text == "**")

    return method


def _with_other(self: Scalar, other: Any, op: Callable[[Any, Any], Any], reflected: bool) -> Any:
    """With what is no plain number: sizes and the like take the number; arrays know scalars themselves."""
    if type(other) is not complex and not isinstance(other, int):
        return NotImplemented
    return op(other, self.number) if reflected else op(self.number, other)


def _only_read(op: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Scalar, Any], Any]:
    """An operator that has no symbolic form: bits of ints, divmod."""

    def method(self: Scalar, other: Any) -> Any:
        if type(other) not in SCALARS and type(other) not in _PLAIN:
            return _with_other(self, other, op, reflected)
        a, b = self.number, plain(other)
        return op(b, a) if reflected else op(a, b)

    return method


def _give_operators() -> None:
    symbolic = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
    for name, text in symbolic.items():
        op = getattr(operator, name)
        setattr(Scalar, f"__{name}__", _binary(op, text, False))
        setattr(Scalar, f"__r{name}__", _binary(op, text, True))
    for name, text in {"neg": "-{}", "pos": "+{}", "abs": "abs({})"}.items():
        setattr(Scalar, f"__{name}__", _unary(getattr(operator, name), text))
    for name in ("lshift", "rshift", "and_", "or_", "xor"):
        op, dunder = getattr(operator, name), name.rstrip("_")
        setattr(IntScalar, f"__{dunder}__", _only_read(op, False))
        setattr(IntScalar, f"__r{dunder}__", _only_read(op, True))
    for cls, name, method in (
        (Scalar, "__divmod__", _only_read(divmod, False)),
        (Scalar, "__rdivmod__", _only_read(divmod, True)),
        (IntScalar, "__invert__", _unary(operator.invert, "~{}")),
    ):
        setattr(cls, name, method)


_give_operators()
