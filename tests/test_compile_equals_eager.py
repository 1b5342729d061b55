"""compile equals eager: generated Python programs, with control flow on numbers and sizes, containers and captured
state, run plain, compiled and shapeless. Results, state and errors are compared to the bit."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from weft.array import array

# A program is Python text, so that what it does is done by Python: frames, cells, bytecode and all. Its variables:
# x, y (arrays), a (float), n (int), p (a tuple of numbers and a list), kw (a keyword), and captured ones: W (array),
# K (float), C (int), S (dict), L (list), LOG (a list that is appended to, and whose end is read), M (an object), SET (a
# set of numbers), NP (a NumPy array), MEMO (arrays by size), FS (functions).

ARRAY_UNARY = [
    "mx.exp({})",
    "mx.sin({})",
    "-{}",
    "mx.abs({})",
    "{}[::-1]",
    "{} * {}",
    "mx.cumsum({}, axis=0)",
    "mx.sort({}, axis=0)",
]
ARRAY_SHAPED = [
    *ARRAY_UNARY,
    "mx.roll({}, n, axis=0)",
    "mx.concatenate([{}, {}[:1]])[1:]",
    "{}.reshape(-1, 3)",
    "{}.T.reshape({}.shape)",
    "mx.tile({}, (2, 1))[::2]",
    "mx.broadcast_to({}[-1:], {}.shape)",
]
NUMBERS = ["a", "n", "K", "C", "p[0]", "p[1][0]", "S['k']", "M.rate", "kw", "2", "0.5", "-1", "True", "M.double",
           "T[0]", "sum(SET)", "float(NP[0])", "len(LOG[-2:])", "(lambda v=C: v + 1)()", "Mode.SLOW",
           "Mode(C % 2)"]  # fmt: skip
SIZES = ["x.shape[0]", "y.size", "len(x)", "x.ndim", "x.shape[-1]", "x.shape[0] // 2", "(x.shape[0] % 3)",
         "min(x.shape)", "max(x.shape[0], 4)", "x.shape[0] ** 2", "math.prod(x.shape)", "int(x.shape[0] / 2)",
         "x.nbytes", "(x.shape == y.shape)", "{4: 2, 7: 3}.get(x.shape[0], 5)", "len(f'{x.shape}')",
         "(x.shape[0] in (2, 7))", "float(x.shape[0])", "sum(x.shape)"]  # fmt: skip


@st.composite
def numbers(draw: st.DrawFn, depth: int = 2) -> str:
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from(NUMBERS))
    op = draw(st.sampled_from(["({} + {})", "({} - {})", "({} * {})", "min({}, {})", "max({}, {})", "abs({} - {})"]))
    return op.format(draw(numbers(depth - 1)), draw(numbers(depth - 1)))


@st.composite
def arrays(draw: st.DrawFn, depth: int = 3) -> str:
    kind = draw(st.integers(0, 6)) if depth else 0
    if kind == 0:
        leaves = ["x", "y", "x", "W * x", "S['w'] + x", "L[0] * x", "M.w - x", "M.shifted(x)", "FS[0](x)", "FS[-1](x)",
                  "sum(LOG[-2:]) + x", "memo(x)", "T[1] * x", "x * mx.array(NP)", "rows(x)", "x[: x.shape[0]]",
                  "x * mx.arange(x.shape[0])[:, None]", "mx.where(x > 0, x, x.shape[0])", "guarded(x, y)"]  # fmt: skip
        return f"({draw(st.sampled_from(leaves))})"
    inner = draw(arrays(depth - 1))
    if kind == 1:
        return "(" + draw(st.sampled_from(ARRAY_SHAPED)).replace("{}", inner) + ")"
    if kind == 2:
        op = draw(st.sampled_from(["+", "-", "*"]))
        return f"({inner} {op} {draw(numbers())})" if draw(st.booleans()) else f"({draw(numbers())} {op} {inner})"
    if kind == 3:
        return f"({inner} + {draw(arrays(depth - 1))})"
    if kind == 4:
        return f"mx.where({inner} > {draw(numbers(1))}, {inner}, {draw(numbers(1))})"
    if kind == 5:
        return f"({inner} * {draw(st.sampled_from(SIZES))})"
    return f"({inner} / (1 + mx.sum(mx.abs({draw(arrays(depth - 1))}))))"


CONDITIONS = ["a > 0", "n % 2 == 0", "K < C", "x.shape[0] > 3", "p[1][0] == n", "S['flag']", "kw", "math.floor(a) > 1",
              "isinstance(n, int) and n > 1", "'extra' in S", "len(L) > 2", "M.mode == 'b'", "a == a", "C in SET",
              "x.shape == (4, 3)", "x.size % 2", "x is y", "hasattr(M, 'seen')", "L[0] is S['w']", "x.shape[0] in MEMO",
              "Mode.SLOW == C % 2", "callable(p[0])", "LOG", "NP[0] > 1", "type(n) is int",
              "S.get('k', 0) > 3"]  # fmt: skip
EFFECTS = [
    "LOG.append({x})",
    "S['w'] = mx.sum({x})",
    "S['k'] = S['k'] + {n}",
    "S['extra'] = [{x}, {n}]",
    "S.pop('extra', None)",
    "L[0] = mx.mean({x})",
    "L.append({n})",
    "del L[1:]",
    "M.rate = M.rate * {n}",
    "M.w = mx.mean({x}) * M.w",
    "M.bump()",
    "M.seen = {{'n': {n}, 'x': {x}}}",
    "nonlocal_set({n})",
    "x[0] = {n}",
    "x += {n}",
    "y *= {x}",
    "p[1].append({n})",
    "p[1][0] = p[1][0] + 1",
    "SET.add(C % 5)",
    "SET.discard({n})",
    "S['w'], L[0] = L[0], S['w']",
    "L.insert(1, {n})",
    "L.reverse(); L.sort(key=lambda v: isinstance(v, (int, float)))",
    "S['k'] = S.pop('k')",
    "S.update(k={n})",
    "S.setdefault('list', []).append({x})",
    "L[0] = M.w = mx.sum({x})",
    "M.w += {n}",
    "del M.seen",
    "MEMO.clear()",
    "M.rated = {n}",
    "y = x",
    "y = x[:]",
    "x = x[::-1]",
    "x[:, 0] = y[:, 1]",
    "x[-1:] += {n}",
    "LOG.append({n})",
    "FS.append(FS.pop(0))",
    "M.kept = p",
]


WHOLE = [
    "x = sum(r * (i + 1) for i, r in enumerate([x, y]))",
    "x, y = (v * 2 for v in (y, x))",
    "a, *_ = [v + 1 for v in p[1] if v > 0] + [0.5]",
    "while a > 4: a = a / 2",
    "x = mx.stack([x, y] * 2).sum(axis=0)",
    "x = functools.reduce(lambda u, v: u + v, [x] * (C % 3 + 1))",
    "with scope(M): x = x * M.depth",
    "a = dict(zip('ab', p[1]))['a']",
]


@st.composite
def statements(draw: st.DrawFn, depth: int = 2) -> list[str]:
    lines: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.integers(0, 6))
        if kind <= 1:
            lines.append(f"x = {draw(arrays())}")
        elif kind == 2:
            lines.append(f"y = {draw(arrays(2))}")
        elif kind == 3:
            effect = draw(st.sampled_from(EFFECTS))
            lines.append(effect.format(x=draw(arrays(1)), n=draw(numbers(1))))
        elif kind == 4:
            lines.append(f"a = {draw(numbers())}")
        elif kind == 5 and depth:
            body = draw(statements(depth - 1))
            other = draw(statements(depth - 1))
            lines.append(f"if {draw(st.sampled_from(CONDITIONS))}:")
            lines += ["    " + line for line in body]
            lines.append("else:")
            lines += ["    " + line for line in other]
        elif depth:
            count = draw(st.sampled_from(["3", "abs(n) % 4", "min(x.shape[0], 3)", "C % 3"]))
            lines.append(f"for i in range({count}):")
            lines += ["    " + line for line in draw(statements(depth - 1))]
        else:
            lines.append(draw(st.sampled_from(WHOLE)))
    return lines or ["pass"]


RESULTS = ["x", "(x, y)", "{{'x': x, 'a': a, 'p': p}}", "[x, [n, {n}], None]", "x, S", "a", "(y, y, M)", "x * {n}", "L",
           "Box(x, {n})", "(x, x[:], x.T)", "x.shape", "slice(n, x.shape[0])", "(p, p)", "[x] * 2", "(SET, MEMO)",
           "f'{{x.shape}}'", "LOG[-1:]", "(x, Mode(C % 2))"]  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> str:
    body = draw(statements())
    result = draw(st.sampled_from(RESULTS)).format(n=draw(numbers()))
    lines = ["def make(mx, math, W, K, C, S, L, LOG, M, SET, NP, T):", *HELPERS]
    lines += ["    def fun(x, y, a, n, p, *, kw=1.5):"]
    lines += ["        " + line for line in [*body, f"return {result}"]]
    lines += ["    def turn(i):", "        nonlocal K, C, W, T", "        K = K * 0.5 if i % 2 else K"]
    lines += [
        "        if i % 4 == 3: C += 1",
        "        if i == 4: W = W * 2",
        "        if i == 8: S['flag'] = not S['flag']",
        "        if i == 2: NP[0] += 1",
        "        if i == 5: T = (T[0] + 1, T[1])",
        "        if i == 7: SET.add(8)",
        "        if i == 9: S['w'] = L[0]",
        "        if i == 3: FS.append(lambda x: x * K)",
    ]
    lines += ["        if i == 6: M.mode = 'b'", f"    def state(): return ({STATE})"]
    lines += ["    return fun, turn, state"]
    return "\n".join(lines)


HELPERS = """
    def nonlocal_set(v):
        nonlocal K
        K = K + v
    def memo(x):
        n = x.shape[0]
        if n not in MEMO: MEMO[n] = mx.sin(mx.arange(n) * 0.5)[:, None]
        return x * MEMO[n]
    def rows(x):
        return mx.stack([r * (i + 1) for i, r in enumerate(x)]) if x.shape[0] < 5 else x
    def guarded(x, y):
        try:
            return x + y[: x.shape[0] - 1]
        except ValueError:
            return x - 1
    @contextlib.contextmanager
    def scope(m):
        m.depth += 1
        try:
            yield
        finally:
            m.depth -= 1
    MEMO = {}
    FS = [mx.tanh, lambda x: x * C]""".splitlines()[1:]
STATE = "K, C, W, S, L, LOG, vars(M), list(SET), NP, T, MEMO, len(FS)"


class Mode(enum.IntEnum):
    FAST = 0
    SLOW = 1


@dataclasses.dataclass
class Box:
    x: Any
    k: Any


class Model:
    """An object that programs capture."""

    count = 0

    def __init__(self) -> None:
        self.w = mx.array(1.5)
        self.rate = 0.25
        self.mode = "a"
        self.depth = 1

    @property
    def double(self) -> float:
        return self.rate * 2

    @property
    def rated(self) -> float:
        return self.rate

    @rated.setter
    def rated(self, value: float) -> None:
        self.rate = value + self.depth

    def shifted(self, x: Any) -> Any:
        return x + self.double * type(self).count

    def bump(self) -> None:
        self.rate += 1
        self.__class__.count += 1


def bits(value: Any) -> Any:
    """A value in which equal means equal to the bit, and of the same types. All NaNs are alike: which one an operation
    gives is not defined (docs/numerics.md)."""
    if isinstance(value, array):
        elements = np.array(value)
        if value.dtype == mx.float32:
            elements[np.isnan(elements)] = np.nan
        return value.dtype, value.shape, elements.tobytes()
    if isinstance(value, dict):
        return [(k, bits(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [bits(v) for v in value]
    if isinstance(value, np.ndarray):
        return value.dtype, value.tobytes()
    if isinstance(value, (Model, Box)):
        return type(value).__name__, bits(vars(value))
    return type(value), repr(value)


def built(text: str) -> Any:
    modules = {"contextlib": contextlib, "functools": functools, "Mode": Mode, "Box": Box}
    scope: dict[str, Any] = {"__name__": "generated", **modules}
    exec(text, scope)
    model = type("Model", (Model,), {"count": 0})()
    state = {"k": 2.0, "w": mx.array(0.5), "flag": True}
    values = (mx.array(3.0), 1.0, 2, state, [mx.array(2.0), 7], [], model, {1, 2}, np.ones(1, np.float32))
    return scope["make"](mx, math, *values, (1.5, mx.array(2.0)))


def arguments(i: int, size: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    rng = np.random.default_rng(i * 100 + size)
    x, y = (mx.array(rng.normal(size=(size, 3)).astype(np.float32)) for _ in range(2))
    number = [1, 2, -3, 5, 2, 0, 1][i % 7]
    keyword: dict[str, Any] = [{}, {}, {"kw": 0.25}, {"kw": 2.0}, {}, {"kw": True}, {}][i % 7]
    a = [0.5, 1.25, -3.0, 3.75, -0.0, math.nan, 0.0][i % 7]
    return (x, y, a, number, (a * 2, [number, 1.5])), keyword


def outcome(fun: Any, i: int, size: int) -> Any:
    """What a call returned or raised, and what it did to its arguments."""
    args, keywords = arguments(i, size)
    try:
        value = fun(*args, **keywords)
        found = bits(value)
    except (ValueError, TypeError, IndexError, KeyError, ArithmeticError, AttributeError) as error:
        return type(error)
    return found, bits(args)


CALLS = [(0, 4), (1, 4), (2, 4), (3, 4), (4, 2), (0, 4), (1, 7), (3, 4), (6, 4), (2, 4), (5, 4), (0, 4)]
"""(arguments, size): mostly what traces exist for by then."""


def check(text: str, shapeless: bool) -> None:
    plain, plain_turn, plain_state = built(text)
    original, turn, state = built(text)
    compiled = mx.compile(original, shapeless=shapeless)
    for i, (which, size) in enumerate(CALLS):
        expected = outcome(plain, which, size)
        assert outcome(compiled, which, size) == expected, f"call {i} of\n{text}"
        if isinstance(expected, type):
            return  # a failed trace undoes what the function did until then, the plain function does not
        assert bits(state()) == bits(plain_state()), f"state after call {i} of\n{text}"
        plain_turn(i)
        turn(i)


@pytest.mark.filterwarnings("ignore:.*keeps retracing")
@settings(max_examples=120, deadline=None)
@given(programs())
def test_programs_compiled(text: str) -> None:
    check(text, shapeless=False)


@pytest.mark.filterwarnings("ignore:.*keeps retracing")
@settings(max_examples=80, deadline=None)
@given(programs())
def test_programs_shapeless(text: str) -> None:
    check(text, shapeless=True)


# ---- functions that see nothing but their arguments, for which calls are short ----

CLOSED_NUMBERS = ["a", "n", "2", "0.5", "(a + n)", "(a * 2 - 1)", "abs(n)", "-a"]


@st.composite
def closed_arrays(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.integers(0, 3)) if depth else 0
    if kind == 0:
        return draw(st.sampled_from(["x", "y"]))
    if kind == 1:
        return "(" + draw(st.sampled_from(ARRAY_UNARY)).replace("{}", draw(closed_arrays(depth - 1))) + ")"
    op, left = draw(st.sampled_from("+-*")), draw(closed_arrays(depth - 1))
    right = draw(closed_arrays(depth - 1)) if kind == 2 else draw(st.sampled_from(CLOSED_NUMBERS))
    return f"({left} {op} {right})"


@st.composite
def closed_programs(draw: st.DrawFn) -> str:
    lines = ["def fun(x, y, a, n):"]
    for _ in range(draw(st.integers(1, 3))):
        condition = draw(st.sampled_from(["", "if a > 0: ", "if n % 2 == 0: ", "if x is y: ", "if n: "]))
        effect = draw(st.sampled_from(["", "", "", "x[0] = a", "y += n"]))
        lines.append(f"    {condition}{effect or 'x = ' + draw(closed_arrays())}")
    lines.append("    return " + draw(st.sampled_from(["x", "(x, y)", "x * a", "a", "[x, n, {'y': y}]", "y"])))
    return "\n".join(lines)


def closed_calls() -> list[tuple[Any, ...]]:
    rng = np.random.default_rng(5)

    def square(size: int = 3) -> mx.array:
        return mx.array(rng.normal(size=(size, size)).astype(np.float32))

    calls: list[tuple[Any, ...]] = [(square(), square(), a, n) for a in (0.5, -1.5, 0.0, -0.0) for n in (1, 2, 0)]
    calls += [(square().T, square(), 0.5, 1), (square(), square().T, 0.5, 1), (square()[::-1], square(), 0.5, 1)]
    calls += [(square(4), square(4), 2.5, 3), (square(), square(), 1, 1), (square(), square(), 1, 1.0)]
    one = square()
    return [*calls, (one, one, 0.5, 1), (square(), square(), 0.75, 1)]


@settings(max_examples=60, deadline=None)
@given(closed_programs())
def test_closed_programs(text: str) -> None:
    scope: dict[str, Any] = {"mx": mx, "__name__": "generated"}
    exec(text, scope)
    fun = scope["fun"]
    for shapeless in (False, True):
        f = mx.compile(fun, shapeless=shapeless)
        for _ in range(2):
            for ours, theirs in zip(closed_calls(), closed_calls(), strict=True):
                assert bits((f(*ours), ours)) == bits((fun(*theirs), theirs)), f"{ours[2:]}\n{text}"
