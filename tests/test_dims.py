"""Symbolic sizes: they act as ints, they are exact for every size, and every reading of a number leaves a guard."""

from __future__ import annotations

import copy
import decimal
import fractions
import itertools
import math
import numbers
import operator
import pickle
import random
import re
import string
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from weft.graph.dims import (
    Dim,
    DimEnv,
    Guard,
    UnknownSizeError,
    broadcast_dims,
    ceil_div,
    compile_sizes,
    dim_max,
    dim_min,
    is_symbolic,
    key_of,
    pinned,
    prod,
    provably_at_most,
    provably_equal,
    same_shape,
    shape_key,
    shape_text,
    substitute,
    text_of,
)

NAMES = ("n", "m", "k")


def make(n: int = 12, m: int = 7) -> tuple[DimEnv, Dim, Dim]:
    env = DimEnv()
    return env, env.symbol("n", n), env.symbol("m", m)


def texts(env: DimEnv) -> list[str]:
    return [guard.text for guard in env.guards]


# ---- random expressions, as functions of any kind of integer ----

Expression = tuple[Any, ...]

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": dim_max,
    "min": dim_min,
    "ceil": ceil_div,
    "<<": lambda a, b: a << 1,
    ">>": lambda a, b: a >> 2,
    "square": lambda a, b: a**2,
    "abs": lambda a, b: abs(a),
    "neg": lambda a, b: -a,
    "invert": lambda a, b: ~a,
    "quotient": lambda a, b: divmod(a, b)[0],
}

leaves = st.one_of(st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(-9, 9))
expressions = st.recursive(leaves, lambda inner: st.tuples(st.sampled_from(sorted(BINARY)), inner, inner), max_leaves=7)
sizes = st.tuples(*[st.integers(2, 30)] * len(NAMES))
RELATIONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
GRID = [*itertools.product((2, 3, 4, 7), repeat=3), *itertools.product((8, 15), repeat=3), (64, 5, 1000), (3, 97, 16)]


def run(tree: Any, values: dict[str, Any]) -> Any:
    if isinstance(tree, str):
        return values[tree]
    if isinstance(tree, int):
        return tree
    op, a, b = tree
    return BINARY[op](run(a, values), run(b, values))


def named(values: tuple[int, ...]) -> dict[str, int]:
    return dict(zip(NAMES, values, strict=True))


def traced(tree: Any, hints: tuple[int, ...]) -> tuple[DimEnv, Any]:
    """The expression on symbols; such that divide by 0 at the hints are left out."""
    env = DimEnv()
    symbols = {name: env.symbol(name, hint) for name, hint in zip(NAMES, hints, strict=True)}
    try:
        return env, run(tree, symbols)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            run(tree, named(hints))
        assume(False)
        raise AssertionError from None


def admitted(env: DimEnv) -> list[dict[str, int]]:
    """Values for which the guards hold."""
    return [values for values in map(named, GRID) if env.check(values) is None]


@given(expressions, sizes)
@example(("//", ("//", "n", 2), 3), (12, 7, 5))
@example(("%", ("*", "n", "m"), ("+", "m", 1)), (12, 7, 5))
@example(("//", ("*", "n", "m"), ("+", "n", "m")), (12, 7, 5))
@example(("-", ("neg", ("//", ("neg", "n", 0), 2), 0), ("//", "n", 2)), (12, 7, 5))
def test_arithmetic_is_exact_for_every_size(tree: Any, hints: tuple[int, ...]) -> None:
    env, size = traced(tree, hints)
    assert type(size) in (int, Dim)
    assert env.check(named(hints)) is None
    for values in (named(hints), *admitted(env)):
        assert env.evaluate(size, values) == run(tree, values)


@given(expressions, sizes)
def test_only_divisors_that_may_be_zero_are_guarded(tree: Any, hints: tuple[int, ...]) -> None:
    env, _ = traced(tree, hints)
    assert all(guard.relation in ("!=", ">=", "<=") for guard in env.guards)
    if "//" not in str(tree) and not any(op in str(tree) for op in ("%", "ceil", "quotient")):
        assert env.guards == []


@given(expressions, sizes)
def test_hint_is_the_value_in_this_trace(tree: Any, hints: tuple[int, ...]) -> None:
    env, size = traced(tree, hints)
    before = len(env.guards)
    number = size.hint if type(size) is Dim else size
    assert number == run(tree, named(hints))
    assert len(env.guards) == before


@given(expressions, sizes)
def test_text_is_python_for_the_same_number(tree: Any, hints: tuple[int, ...]) -> None:
    env, size = traced(tree, hints)
    before = len(env.guards)
    code = compile(text_of(size), "text", "eval")
    assert len(env.guards) == before
    for values in admitted(env):
        assert eval(code, {"max": max, "min": min, **values}) == run(tree, values)


@given(st.lists(expressions, max_size=4), sizes)
def test_compiled_sizes_are_the_evaluated_ones(trees: list[Any], hints: tuple[int, ...]) -> None:
    env = DimEnv()
    symbols = {name: env.symbol(name, hint) for name, hint in zip(NAMES, hints, strict=True)}
    exprs = []
    for tree in trees:
        try:
            exprs.append(run(tree, symbols))
        except ZeroDivisionError:
            assume(False)
    function = compile_sizes(exprs, NAMES)
    for values in admitted(env):
        result = function(*values.values())
        assert result == tuple(run(tree, values) for tree in trees)
        assert all(type(n) is int for n in result)


comparisons = st.tuples(st.sampled_from(sorted(RELATIONS)), expressions, expressions)


@given(st.lists(comparisons, min_size=1, max_size=5), sizes)
@example([("==", "n", "m"), ("==", ("//", "n", 2), ("//", "m", 2)), ("<", "m", 9), ("<", "n", 9)], (6, 6, 6))
@example([("==", ("+", "n", "m"), 12), (">", "n", 4), ("==", ("*", "n", "m"), 35)], (5, 7, 3))
@example([("==", ("%", "n", 4), 0), ("==", ("*", ("//", "n", 4), 4), "n")], (8, 7, 3))
def test_comparisons_answer_as_ints_and_their_guards_say_when(questions: list[Any], hints: tuple[int, ...]) -> None:
    """The whole contract of guards: whoever passes them gets the answers that were traced."""
    env = DimEnv()
    symbols = {name: env.symbol(name, hint) for name, hint in zip(NAMES, hints, strict=True)}
    try:
        answers = [RELATIONS[relation](run(a, symbols), run(b, symbols)) for relation, a, b in questions]
        again = [RELATIONS[relation](run(a, symbols), run(b, symbols)) for relation, a, b in questions]
    except ZeroDivisionError:
        assume(False)
    recorded = texts(env)
    assert answers == again == [RELATIONS[r](run(a, named(hints)), run(b, named(hints))) for r, a, b in questions]
    assert len(set(recorded)) == len(recorded)
    assert env.check(named(hints)) is None
    for values in admitted(env):
        assert answers == [RELATIONS[r](run(a, values), run(b, values)) for r, a, b in questions]


@given(st.lists(comparisons, min_size=1, max_size=4), sizes)
def test_asking_again_records_nothing(questions: list[Any], hints: tuple[int, ...]) -> None:
    env = DimEnv()
    symbols = {name: env.symbol(name, hint) for name, hint in zip(NAMES, hints, strict=True)}
    for relation, a, b in questions:
        try:
            left, right = run(a, symbols), run(b, symbols)
        except ZeroDivisionError:
            assume(False)
        RELATIONS[relation](left, right)
        before = len(env.guards)
        RELATIONS[relation](left, right)
        assert len(env.guards) == before


@given(st.lists(comparisons, max_size=3), expressions, expressions, sizes)
def test_what_is_proved_is_true(facts: list[Any], a: Any, b: Any, hints: tuple[int, ...]) -> None:
    env = DimEnv()
    symbols = {name: env.symbol(name, hint) for name, hint in zip(NAMES, hints, strict=True)}
    try:
        for relation, left, right in facts:
            RELATIONS[relation](run(left, symbols), run(right, symbols))
        x, y = run(a, symbols), run(b, symbols)
    except ZeroDivisionError:
        assume(False)
    before = len(env.guards)
    equal, at_most = provably_equal(x, y), provably_at_most(x, y)
    assert len(env.guards) == before
    for values in admitted(env):
        assert not equal or run(a, values) == run(b, values)
        assert not at_most or run(a, values) <= run(b, values)


@given(st.lists(comparisons, min_size=1, max_size=5), sizes)
def test_compiled_check_is_the_direct_one(questions: list[Any], hints: tuple[int, ...]) -> None:
    env = DimEnv()
    symbols = {name: env.symbol(name, hint) for name, hint in zip(NAMES, hints, strict=True)}
    for relation, a, b in questions:
        try:
            RELATIONS[relation](run(a, symbols), run(b, symbols))
        except ZeroDivisionError:
            assume(False)
    check = env.compiled_check()
    for values in (*GRID, hints, (1, 5, 5), (5, 0, 5)):
        assert check(*values) is (env.check(named(values)) is None)


@given(expressions, expressions, sizes)
def test_substituting_commutes_with_evaluating(tree: Any, image: Any, hints: tuple[int, ...]) -> None:
    env, size = traced(tree, hints)
    _, other = traced(image, hints)
    for values in admitted(env)[::5]:
        try:
            value = run(image, values)
        except ZeroDivisionError:
            continue
        inner, here = {**values, "n": value}, {**values, "n": run(image, named(hints))}
        if env.check(inner) is not None or env.check(here) is not None:
            continue
        replaced = substitute(size, {"n": other, "m": values["m"], "k": values["k"]})
        assert substitute(replaced, values) == run(tree, inner)


# ---- collapse ----


def test_what_is_constant_is_a_plain_int() -> None:
    env, n, m = make()
    for result, number in [
        (n - n, 0),
        (n * 0, 0),
        (n * 3 % 3, 0),
        ((n * 4 + 1) % 4, 1),
        (n**0, 1),
        (n // n, 1),
        (n % n, 0),
        (n // (n + 1), 0),
        ((n * m) % m, 0),
        ((n % 4) // 4, 0),
        (n + m - m - n + 5, 5),
        (1 // n, 0),
        (-1 // n, -1),
        (dim_max(n, m) + dim_min(n, m) - n - m, 0),
        ((n // 4) * 4 + n % 4 - n, 0),
        (dim_min(n, 1), 1),
        (dim_max(-n, 0), 0),
    ]:
        assert type(result) is int
        assert result == number
    assert env.guards == []


def test_equal_expressions_are_one_object() -> None:
    env, n, m = make()
    for a, b in [
        ((2 * n) // 2, n),
        (n + 0, n),
        (+n, n),
        (n * m, m * n),
        ((n + m) * (n - m), n**2 - m**2),
        ((n * m) // n, m),
        ((n * m + n) // (m + 1), n),
        ((6 * n) // 4, (3 * n) // 2),
        (n // 2 // 3, n // 6),
        (-(-n // 4), (n + 3) // 4),
        (-(-n // 2), (n + 1) // 2),
        ((n - 1) // 4 + 1, (n + 3) // 4),
        (n - n // 2, (n + 1) // 2),
        (ceil_div(n, 8), (n + 7) // 8),
        (dim_max(n, m), dim_max(m, n)),
        (dim_min(n + 1, m + 1), dim_min(m, n) + 1),
        (abs(n - m), abs(m - n)),
        (abs(n), n),
        (n // 4 * 4 + n % 4, n),
        (n << 3, n * 8),
        (n >> 1, n // 2),
        (~n, -n - 1),
        (n // -2, -n // 2),
        (divmod(n, 4)[1], n % 4),
        (math.prod((2, n, m)), prod((m, n, 2))),
        (sum((n, n, 3)), 2 * n + 3),
    ]:
        assert a is b
    assert env.guards == []


def test_text() -> None:
    env, n, m = make()
    for size, text in [
        (n, "n"),
        (2 * n + 1, "2*n + 1"),
        ((n + 3) // 4, "(n + 3)//4"),
        (1 - n, "1 - n"),
        (-n, "-n"),
        (-(n // 4), "-(n//4)"),
        (n - m, "n - m"),
        (n * m, "m*n"),
        (n**2 - 1, "n*n - 1"),
        (n % 4, "n % 4"),
        (3 * (n % 4), "3*(n % 4)"),
        ((n + 1) % m, "(n + 1) % m"),
        ((n + 1) // 2, "(n + 1)//2"),
        (3 * n // 4, "(3*n)//4"),
        (ceil_div(n, 4) * 4, "4*((n + 3)//4)"),
        (dim_max(n, m), "max(m, n)"),
        (dim_min(n, 5) + 1, "min(n, 5) + 1"),
        (dim_max(n - 5, 0), "max(n - 5, 0)"),
    ]:
        assert text_of(size) == text
    assert shape_text((n, 2 * n + 1, 4)) == "(n, 2*n + 1, 4)"
    assert shape_text((n,)) == "(n,)"
    assert shape_text(()) == "()"
    assert env.guards == []


# ---- an int to the user's code ----


def test_passes_for_an_int() -> None:
    env, n, _ = make()
    assert isinstance(n, int)
    assert isinstance(n, numbers.Integral)
    assert not isinstance(n, (float, bool, str))
    assert n.__class__ is int
    assert type(n) is Dim
    assert not issubclass(Dim, int)
    assert isinstance(n, Dim)
    match n:
        case int():
            pass
        case _:
            raise AssertionError
    assert env.guards == []


STAYS_SYMBOLIC: list[Callable[[Any], Any]] = [
    lambda n: n + 1,
    lambda n: 1 - n,
    lambda n: True + n,
    lambda n: n * np.int64(3),
    lambda n: np.int64(3) * n,
    lambda n: np.int32(40) - n,
    lambda n: np.uint8(100) // n,
    lambda n: n // np.int64(5),
    lambda n: np.int64(100) % n,
    lambda n: n**3,
    lambda n: 100 // n,
    lambda n: 100 % n,
    lambda n: divmod(n, 5),
    lambda n: divmod(100, n),
    lambda n: math.floor(n),
    lambda n: math.ceil(n),
    lambda n: math.trunc(n),
    lambda n: round(n),
    lambda n: math.prod((2, n)),
    lambda n: sum([n, 2, n]),
    lambda n: abs(n - 20),
    lambda n: n.real,
    lambda n: n.imag,
    lambda n: n.numerator,
    lambda n: n.denominator,
    lambda n: n.conjugate(),
    lambda n: copy.copy(n),
    lambda n: copy.deepcopy([n])[0],
]

READS: list[Callable[[Any], Any]] = [
    int,
    float,
    complex,
    hash,
    str,
    repr,
    operator.index,
    hex,
    bin,
    oct,
    chr,
    "{:>6}".format,
    "{}".format,
    lambda n: f"{n:05d}",
    lambda n: f"{n}",
    lambda n: f"{n!r}",
    lambda n: "%d %s %x" % (n, n, n),  # noqa: UP031
    lambda n: string.Template("$n").substitute(n=n),
    lambda n: list(range(n)),
    lambda n: list(range(0, 40, n)),
    lambda n: [0] * n,
    lambda n: n * (1, 2),
    lambda n: "ab" * n,
    lambda n: list(range(30))[n],
    lambda n: list(range(30))[:n],
    lambda n: bytes(n),
    lambda n: {12: "a", 5: "b"}.get(n),
    lambda n: {n: 1} == {12: 1},
    lambda n: n in {12, 13},
    lambda n: np.zeros(n).shape,
    lambda n: np.arange(n).sum(),
    lambda n: np.asarray(n).dtype,
    lambda n: np.array((n, 2)).tolist(),
    lambda n: np.prod((n, 2)),
    lambda n: np.sqrt(n),
    lambda n: (np.ones(3, np.float32) * n).dtype,
    lambda n: (n * np.ones(3, np.float32)).dtype,
    lambda n: (n == np.arange(20)).sum(),
    lambda n: np.add.reduce(np.ones(3)) + np.float32(n),
    lambda n: n / 2,
    lambda n: 2 / n,
    lambda n: n / n,
    lambda n: n * 1.5,
    lambda n: 1.5 - n,
    lambda n: n // 2.0,
    lambda n: n % 2.5,
    lambda n: 7.5 % n,
    lambda n: 7.5 // n,
    lambda n: divmod(n, 2.5),
    lambda n: n**0.5,
    lambda n: n**-1,
    lambda n: n**20,
    lambda n: 2**n,
    lambda n: n**n,
    lambda n: pow(n, 3, 7),
    lambda n: n + 2j,
    lambda n: n + fractions.Fraction(1, 3),
    lambda n: decimal.Decimal(2) * n,
    lambda n: n & 6,
    lambda n: 6 & n,
    lambda n: n | 1,
    lambda n: 1 | n,
    lambda n: n ^ n // 2,
    lambda n: 1 ^ n,
    lambda n: 1 << n,
    lambda n: 1000000 >> n,
    lambda n: n << n,
    lambda n: n.bit_count(),
    lambda n: n.to_bytes(2, "big"),
    lambda n: n.as_integer_ratio(),
    lambda n: round(n, -1),
    lambda n: math.sqrt(n),
    lambda n: math.gcd(n, 18),
    lambda n: math.comb(n, 2),
    lambda n: math.log2(n),
    lambda n: random.Random(0).randrange(n),
    lambda n: next(itertools.islice(itertools.count(), n, None)),
    lambda n: slice(0, n).indices(50),
    lambda n: pickle.loads(pickle.dumps(n)),
    lambda n: n == fractions.Fraction(12),
    lambda n: n < decimal.Decimal("12.5"),
]


def plain(value: Any) -> Any:
    if type(value) is Dim:
        return value.hint
    return tuple(map(plain, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("index", range(len(STAYS_SYMBOLIC)))
def test_symbolic_operations(index: int) -> None:
    env, n, _ = make()
    assert plain(STAYS_SYMBOLIC[index](n)) == STAYS_SYMBOLIC[index](12)
    assert env.guards == []


@pytest.mark.parametrize("index", range(len(READS)))
def test_reading_the_number(index: int) -> None:
    env, n, _ = make()
    result, expected = READS[index](n), READS[index](12)
    assert not is_symbolic(result)
    assert np.all(result == expected)
    assert type(result) is type(expected)
    assert texts(env) == ["n == 12"]
    assert env.check({"n": 12, "m": 9}) is None
    assert env.check({"n": 13, "m": 7}) is env.guards[0]


def test_a_bit_length_holds_between_powers_of_two() -> None:
    env, n, _ = make()
    assert n.bit_length() == 4
    assert texts(env) == ["n >= 8", "n <= 15"]


def test_another_environment_knows_the_guards_and_records_its_own() -> None:
    env, n, _ = make()
    assert n > 5
    assert n % 2 == 0
    other, symbols = env.again({"n": 20, "m": 3})
    assert (symbols["n"].hint, symbols["m"].hint) == (20, 3)
    assert symbols["n"] > 4
    assert symbols["n"] % 2 == 0
    assert other.guards == []
    assert symbols["n"] > 16
    assert texts(other) == ["n >= 17"]
    assert texts(env) == ["n >= 6", "n % 2 == 0"]
    assert other.compiled_check()(18, 2)
    assert not other.compiled_check()(16, 2)


def test_another_environment_has_no_symbols_that_guards_determine() -> None:
    """So what is equal in all calls is one expression there, and one kind."""
    env, n, m = make()
    k = env.symbol("k", 5)
    assert n == m + 5
    assert k == 5
    assert texts(env) == ["n == m + 5", "k == 5"]
    other, symbols = env.again({"n": 9, "m": 4, "k": 5})
    assert type(symbols["k"]) is int
    assert symbols["n"].key == (symbols["m"] + 5).key
    assert other.symbols == ("n", "m", "k")
    assert other.guards == []


def test_a_guard_knows_the_line_that_asked() -> None:
    env, n, _ = make()
    assert n > 5
    before = test_a_guard_knows_the_line_that_asked.__code__.co_firstlineno
    assert env.guards[0].line == (__file__, before + 2)
    assert str(env.guards[0]) == f"n >= 6 (at {__file__}:{before + 2})"


def test_attributes_that_int_has_not() -> None:
    env, n, _ = make()
    with pytest.raises(AttributeError, match="'int' object has no attribute 'shape'"):
        _ = n.shape  # type: ignore[attr-defined]
    assert not hasattr(n, "__len__")
    assert env.guards == []


def test_operands_that_are_no_numbers() -> None:
    class Array:
        def __radd__(self, other: Any) -> Any:
            return "array", other

        def __rtruediv__(self, other: Any) -> Any:
            return "array", other

        def __eq__(self, other: object) -> Any:
            return "array", other

        __hash__ = None  # type: ignore[assignment]

    env, n, _ = make()
    for result in (n + Array(), n / Array(), n == Array()):  # type: ignore[operator]
        assert result[0] == "array"
        assert result[1] is n
    assert (n == None) is False  # noqa: E711
    assert n != "n"
    for wrong in (lambda: n + "a", lambda: n < "a", lambda: n - [1], lambda: n // None):
        with pytest.raises(TypeError):
            wrong()
    assert env.guards == []


# ---- guards ----


def test_provable_comparisons_record_nothing() -> None:
    env, n, m = make()
    for true in [
        n == n,
        n != n + 1,
        n < n + 1,
        n + 1 > n,
        n > 1,
        n >= 2,
        n != 0,
        n != 1,
        operator.le(2, n),
        operator.lt(1, n),
        bool(n),
        bool(n + 3),
        n * m > n,
        n * m >= 4,
        2 * n != 2 * m + 1,
        n // 2 >= 1,
        n // 2 < n,
        n - n // 2 >= 1,
        n % 4 < 4,
        n % 4 >= 0,
        n % m < m,
        n % m >= 0,
        n // 4 * 4 <= n,
        dim_min(n, m) <= n,
        dim_min(n, m) <= m,
        dim_max(n, m) >= m,
        dim_max(n, m) < n + m,
        (n + 1) // 2 + n // 2 == n,
        n > 1.5,
        n != 2.5,
        n < math.inf,
        n != math.nan,
        n is not None,
        n not in (0, 1, None, "n"),
        n**2 >= 2 * n,
    ]:
        assert true is True
    for false in [n < n, n != n, n == n - 1, n <= 1, n < 2, n == 0, n == 1.5, n < math.nan, n == math.inf, not n]:
        assert false is False
    assert env.guards == []


@pytest.mark.parametrize(
    ("ask", "answer", "guard"),
    [
        (lambda n, m: n == 12, True, "n == 12"),
        (lambda n, m: n == 13, False, "n != 13"),
        (lambda n, m: n != 12, False, "n == 12"),
        (lambda n, m: n > 16, False, "n <= 16"),
        (lambda n, m: n >= 4, True, "n >= 4"),
        (lambda n, m: operator.lt(4, n), True, "n >= 5"),
        (lambda n, m: n < 4, False, "n >= 4"),
        (lambda n, m: 2 * n + 1 > 8, True, "n >= 4"),
        (lambda n, m: -n > -40, True, "n <= 39"),
        (lambda n, m: n == m, False, "n != m"),
        (lambda n, m: m < n, True, "n >= m + 1"),
        (lambda n, m: n < m, False, "n >= m"),
        (lambda n, m: n % 4 == 0, True, "n % 4 == 0"),
        (lambda n, m: n % m == 5, True, "n % m == 5"),
        (lambda n, m: n // 4 > 2, True, "n//4 >= 3"),
        (lambda n, m: bool(n - 12), False, "n == 12"),
        (lambda n, m: bool(n - 5), True, "n != 5"),
        (lambda n, m: n > 4.5, True, "n >= 5"),
        (lambda n, m: n <= 12.0, True, "n <= 12"),
        (lambda n, m: n == np.int64(12), True, "n == 12"),
        (lambda n, m: max(n, m), 12, "n >= m"),
        (lambda n, m: n in (5, 12), True, "n != 5"),
    ],
)
def test_a_branch_records_its_outcome(ask: Callable[[Dim, Dim], Any], answer: object, guard: str) -> None:
    env, n, m = make()
    result = ask(n, m)
    assert plain(result) == answer
    assert guard in texts(env)


def test_guards_are_facts_from_then_on() -> None:
    env, n, m = make(12, 12)
    assert n == m
    assert 2 * n + 1 == m + n + 1
    assert provably_equal(n // 2, m // 2)
    assert n > 8
    assert m > 7
    assert m >= 9
    assert n % 4 == 0
    assert m // 4 * 4 == m
    assert texts(env) == ["n == m", "n >= 9", "n % 4 == 0"]
    assert int(m) == 12
    assert n + 1 == 13
    assert list(range(n // 4)) == [0, 1, 2]
    assert len(env.guards) == 4
    assert env.check({"n": 16, "m": 16}) is env.guards[3]


def test_excluding_an_end_moves_it() -> None:
    env, n, _ = make()
    assert n != 2
    assert n >= 3
    assert texts(env) == ["n != 2"]


def test_check_names_the_first_violated_guard() -> None:
    env, n, m = make()
    assert n > 4
    assert n != m
    assert env.check({"n": 5, "m": 3}) is None
    assert env.check({"n": 3, "m": 3}) is env.guards[0]
    assert env.check({"n": 9, "m": 9}) is env.guards[1]
    too_small = env.check({"n": 9, "m": 1})
    assert isinstance(too_small, Guard)
    assert too_small.text == "m >= 2"
    assert env.compiled_check()(9, 1) is False
    assert env.symbols == ("n", "m")


def test_a_divisor_that_may_be_zero_is_guarded() -> None:
    env, n, m = make(7, 5)
    quotient = n // (m - 3)
    assert texts(env) == ["m != 3"]
    assert env.evaluate(quotient, {"n": 9, "m": 7}) == 2
    assert env.check({"n": 9, "m": 3}) is env.guards[0]
    assert env.compiled_check()(9, 3) is False
    _ = quotient == 3
    assert env.compiled_check()(9, 3) is False
    for divide in (lambda: n // 0, lambda: n % 0, lambda: n // (m - 5), lambda: 3 % (m - 5), lambda: divmod(n, 0)):
        with pytest.raises(ZeroDivisionError):
            divide()


def test_symbols() -> None:
    env, *_ = make()
    for hint in (1, 0, -3, True):
        with pytest.raises(ValueError, match="at least 2"):
            env.symbol("a", hint)
    with pytest.raises(ValueError, match="'n'"):
        env.symbol("n", 5)
    with pytest.raises(KeyError, match="m"):
        env.evaluate(env.symbol("p", 3) * 0 + next(iter(make()[1:])), {})
    assert env.evaluate(7, {}) == 7


# ---- sizes that depend on data ----


def test_unbacked_sizes_compute_but_cannot_be_read() -> None:
    env, n, _ = make()
    u = env.unbacked("found")
    assert (u + n).hint is None
    assert text_of(2 * u + n) == "2*found + n"
    assert u - u == 0
    assert u >= 0
    assert u < u + 1
    assert u * 2 // 2 is u
    assert provably_at_most(dim_min(u, n), n)
    assert env.evaluate(ceil_div(u, 4) * n, {"found": 9, "n": 5}) == 15
    reads: list[Callable[[], Any]] = [
        lambda: int(u),
        lambda: float(u),
        lambda: str(u),
        lambda: repr(u),
        lambda: f"{u}",
        lambda: hash(u),
        lambda: bool(u),
        lambda: range(u),
        lambda: u == 5,
        lambda: u > n,
        lambda: u / 2,
        lambda: n // u,
        lambda: u.bit_length(),
        lambda: int(u + n),
        lambda: broadcast_dims(u, n),
        lambda: broadcast_dims(u, 3),
    ]
    for read in reads:
        with pytest.raises(UnknownSizeError, match=r"found.*depends on data.*where"):
            read()
    assert env.guards == []
    assert env.symbols == ("n", "m")
    assert bool(env.unbacked("some", low=1)) is True


@given(expressions, st.integers(2, 30))
def test_unbacked_arithmetic_is_exact_from_zero_on(tree: Any, hint: int) -> None:
    env = DimEnv()
    symbols = {"n": env.symbol("n", hint), "m": env.unbacked("m"), "k": env.unbacked("k", low=1)}
    try:
        size = run(tree, symbols)
    except (ZeroDivisionError, UnknownSizeError):  # a divisor that is 0, or may be
        assume(False)
    for values in itertools.product((2, 3, 9), (0, 1, 2, 7), (1, 2, 5)):
        if env.check({"n": values[0]}) is None:
            assert env.evaluate(size, named(values)) == run(tree, named(values))


# ---- a size that left its trace ----


def test_an_escaped_size_says_so() -> None:
    env, n, m = make()
    assert m == 7
    env.close()
    size = 2 * n + m
    for read in (int, str, repr, hash, float, range, lambda d: d == 31, lambda d: d < 40, lambda d: d / 2):
        with pytest.raises(RuntimeError, match=r"2\*n \+ m \(of n, m\)|of n, m"):
            read(size)
    with pytest.raises(RuntimeError, match=r"of n\)"):
        bool(n - 5)
    with pytest.raises(RuntimeError, match=rf"m \(of m\).*{re.escape(__file__)}"):
        int(m)
    with pytest.raises(RuntimeError):
        assert m == 7  # true of the call that was traced, unknown outside
    assert len(env.guards) == 1
    assert env.check({"n": 3, "m": 7}) is None


def test_a_closed_trace_still_computes_and_proves() -> None:
    env, n, m = make()
    assert m == 7
    env.close()
    assert text_of(n * 2 - n) == "n"
    assert provably_equal(m, 7)
    assert n + 1 > n
    assert env.evaluate(n * m, {"n": 2, "m": 7}) == 14


def test_two_traces_do_not_mix() -> None:
    _, n, _ = make()
    env, other, _ = make()
    for mix in (lambda: n + other, lambda: n == other, lambda: n < other, lambda: dim_max(n, other)):
        with pytest.raises(ValueError, match="two traces"):
            mix()
    assert not provably_equal(n, other)
    assert not provably_at_most(n, other)
    with pytest.raises(ValueError, match="different traces"):
        compile_sizes((n, other), ("n",))
    env.close()
    with pytest.raises(RuntimeError, match="after its function was traced"):
        _ = n + other


# ---- what shape rules and passes ask ----


def test_keys() -> None:
    env, n, m = make()
    assert n.key == (n + m - m).key
    assert n.key != m.key
    assert hash(n.key) == hash((n + 0).key)
    assert make()[1].key != n.key
    shape = (2, 3)
    assert shape_key(shape) is shape
    assert shape_key((n, 3)) == shape_key((n * 2 // 2, 3)) != shape_key((12, 3))
    assert {shape_key((n, 3)): 1}[shape_key((n, 3))] == 1
    params = ((2, 3), "x", (1, (None, 4.0)))
    assert key_of(params) is params
    assert key_of(((n, 3), "x")) == key_of(((n, 3), "x")) != key_of(((m, 3), "x"))
    assert key_of(n) == n.key
    assert env.guards == []


def test_provable_questions_about_numbers_and_shapes() -> None:
    env, n, m = make()
    assert provably_equal(3, 3)
    assert not provably_equal(3, 4)
    assert provably_equal(np.int64(3), 3)  # type: ignore[arg-type]
    assert not provably_equal(n, 12)
    assert not provably_equal(12, n)
    assert not provably_equal(n, m)
    assert provably_at_most(3, 3)
    assert not provably_at_most(4, 3)
    assert provably_at_most(2, n)
    assert not provably_at_most(n, m)
    assert same_shape((n, 2, m * n), (n, 2, n * m))
    assert not same_shape((n, 2), (n,))
    assert not same_shape((n, 2), (m, 2))
    assert is_symbolic(n)
    assert not is_symbolic(3)
    assert prod(()) == 1
    assert prod((n, 0)) == 0
    assert ceil_div(7, 2) == 4
    assert (dim_max(3, 4), dim_min(3, 4)) == (4, 3)
    assert env.guards == []


@pytest.mark.parametrize("flip", [False, True])
def test_broadcasting(flip: bool) -> None:
    def both(a: Any, b: Any) -> Any:
        return broadcast_dims(b, a) if flip else broadcast_dims(a, b)

    assert (both(3, 3), both(3, 1), both(0, 1)) == (3, 3, 0)
    with pytest.raises(ValueError, match=r"sizes (3 and 4|4 and 3) differ"):
        both(3, 4)
    env, n, m = make(12, 12)
    assert both(n, 1) is n
    assert both(n, n + 1 - 1) is n
    u = env.unbacked("u")
    assert both(u, 1) is u
    assert both(u, u) is u
    assert env.guards == []
    assert both(n, m) in (n, m)
    assert texts(env) == ["n == m"]
    assert both(n, 12) == 12
    assert type(both(n, 12)) is int
    assert texts(env) == ["n == m", "n == 12"]
    with pytest.raises(ValueError, match=r"n \(12 here\)"):
        both(n, 5)


def test_broadcasting_an_expression_that_is_one_here() -> None:
    env, n, m = make(2, 7)
    assert broadcast_dims(n - 1, m) is m
    assert texts(env) == ["n == 2"]
    env, n, m = make(2, 2)
    assert broadcast_dims(m - 1, n - 1) == m - 1
    assert texts(env) == ["n == 2"]


def test_substituting() -> None:
    env, n, m = make()
    other = DimEnv()
    p = other.symbol("p", 5)
    assert substitute(n * m + 1, {"n": 3, "m": 4}) == 13
    assert substitute(n * m, {"n": 3}) is 3 * m
    assert substitute((n + 3) // 4, {"n": p * 4 + 1}) is p + 1
    assert substitute(dim_max(n, m), {"n": p, "m": p}) is p
    assert substitute(n % m, {"n": m * 2}) == 0
    assert substitute(5, {"n": 3}) == 5
    with pytest.raises(ValueError, match="two traces"):
        substitute(n * m, {"n": p})
    assert env.guards == []
    assert other.guards == []


def test_compiled_sizes() -> None:
    _, n, m = make()
    function = compile_sizes((n * 2, 7, (n + m) // 4, dim_max(n - m, 0)), ("m", "n"))
    assert function(3, 10) == (20, 7, 3, 7)
    assert compile_sizes((), ())() == ()
    assert compile_sizes((4,), ("n",))(9) == (4,)
    with pytest.raises(ValueError, match="depends on m"):
        compile_sizes((n + m,), ("n",))


def test_a_small_size_is_pinned_to_its_number() -> None:
    env = DimEnv()
    n, m = env.symbol("n", 5), env.symbol("m", 100)
    assert pinned(7, 16) == 7
    assert pinned(17, 16) is None
    assert pinned(m, 16) is None
    assert pinned(n, 16) == 5
    assert env.guards[-1].text == "n == 5"
    assert pinned(env.unbacked("k"), 16) is None
