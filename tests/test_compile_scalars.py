"""Python numbers in compiled functions: run-time scalars where they only meet arrays, part of the trace where they are
read as numbers; in either case what the plain function gives."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft import tree
from weft.graph.scalars import SCALARS, Scalars


def bits(x: Any) -> Any:
    """A value in which equal means equal to the bit, and of the same types; all NaNs are alike (docs/numerics.md)."""
    leaves, structure = tree.flatten(x)
    return structure, [
        (v.dtype, v.shape, elements(v)) if isinstance(v, mx.array) else (type(v), repr(v)) for v in leaves
    ]


def elements(x: mx.array) -> bytes:
    values = np.array(x)
    if x.dtype in (mx.float16, mx.float32, mx.float64):
        values[np.isnan(values)] = np.nan
    return values.tobytes()


def outcome(fun: Any, *args: Any) -> Any:
    try:
        return bits(fun(*args))
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        return type(error), str(error)


X = mx.array(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4))
FLOATS = [*map(float, np.random.default_rng(0).normal(size=20)), 0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, -1.0]
FLOATS += [1e39, -1e39, 1e-46, 65504.0, 65520.0, 3.4028235e38, 3.4028236e38, 0.1]
INTS = [*range(-20, 20), 2**31 - 1, -(2**31), 2**24 + 1]


def check(fun: Any, values: list[Any], traces: int | None, shapeless: bool = False) -> None:
    f = mx.compile(fun, shapeless=shapeless)
    for value in values:
        assert outcome(f, X, value) == outcome(fun, X, value), value
    assert traces is None or f.traces == traces


ONE_TRACE: dict[str, Any] = {
    "product": lambda x, a: x * a,
    "reflected": lambda x, a: a * x + a - x / a,
    "expression": lambda x, a: x * (a * 2 + 1) - abs(a) + -a,
    "half": lambda x, a: x.astype(mx.float16) * a,
    "bfloat16": lambda x, a: x.astype(mx.bfloat16) + a,
    "double": lambda x, a: x.astype(mx.float64) * a,
    "complex": lambda x, a: x.astype(mx.complex64) * a,
    "full": lambda x, a: mx.full((2, 2), a) + x[:2, :2],
    "array": lambda x, a: mx.array(a) * x,
    "array of a dtype": lambda x, a: mx.array(a, dtype=mx.float16) + x,
    "where": lambda x, a: mx.where(x > a, x, a),
    "clip": lambda x, a: mx.clip(x, -1.0, a),
    "maximum": lambda x, a: mx.maximum(x, a),
    "returned": lambda x, a: (x * a, a, a * 2, [a, {"k": a + 1}]),
    "is a number": lambda x, a: x * a if isinstance(a, (int, float)) else x,
    "gradient": mx.grad(lambda x, a: mx.sum(x * x * a - a)),
    "size and number": lambda x, a: x * (a * x.shape[0]),
    "loop": lambda x, a: mx.fori_loop(0, 3, lambda i, c: c * a + i, x),
    "scan": lambda x, a: mx.scan(lambda c, row: (c + row * a, c - a), mx.zeros((4,)), x),
    "branch of arrays": lambda x, a: mx.cond(mx.sum(x) > a, lambda y: y * a, lambda y: y - a, x),
    "gradient of a scan": mx.grad(
        lambda x, a: mx.sum(mx.scan(lambda c, row: (c + row * row * a, c), mx.zeros((4,)), x)[0])
    ),
}


@pytest.mark.parametrize("name", ONE_TRACE)
@pytest.mark.parametrize("values", [FLOATS, INTS], ids=["floats", "ints"])
def test_numbers_that_meet_arrays_cause_one_trace(name: str, values: list[Any]) -> None:
    check(ONE_TRACE[name], values, traces=1)


def test_a_thousand_numbers() -> None:
    f = mx.compile(lambda x, a, k: x * a + k)
    for i in range(1000):
        assert bits(f(X, i / 7, i)) == bits(X * (i / 7) + i)
    assert f.traces == 1


def test_numbers_are_found_in_containers() -> None:
    def fun(x: mx.array, p: Any, *, q: Any) -> Any:
        return x * p[0] + p[1]["k"] * p[2][1] - q[0][0] + q[1], p

    f = mx.compile(fun)
    for i in range(20):
        shared = (i * 0.5,)
        p, q = (float(i), {"k": i * 0.5, "n": [i]}, (1, i * 2.0)), [shared, shared[0]]
        assert bits(f(X, p, q=q)) == bits(fun(X, p, q=q))
    assert f.traces == 1


def test_one_tuple_in_two_places() -> None:
    f = mx.compile(lambda x, p, q: x * p[0] + q[0])
    for i in range(5):
        t = (float(i),)
        assert bits(f(X, t, t)) == bits(X * t[0] + t[0])


READ: dict[str, Any] = {
    "range": lambda x, n: sum((x * i for i in range(abs(n) % 5)), x),
    "axis": lambda x, n: mx.sum(x, axis=n % 2),
    "reshape": lambda x, n: x.reshape(2 if n % 2 else 3, -1),
    "index": lambda x, n: x[n % 3],
    "slice": lambda x, n: x[: n % 3],
    "math": lambda x, a: x * math.atan(a),
    "text": lambda x, a: (x, f"{a}"),
    "hash": lambda x, a: x * {0: 1.0, 1: 2.0}.get(a, 3.0),
    "numpy": lambda x, a: x * float(np.sin(np.float64(a))),
    "numpy's operators": lambda x, a: x * float(np.float64(2.0) * a),
    "type": lambda x, a: x * a if type(a) is float else x - a,
    "evaluated": lambda x, a: mx.array(a).item() * x,
    "bits": lambda x, a: x * (a & 3 if isinstance(a, int) else 2),
    "divmod": lambda x, a: x * divmod(a, 3)[0],
    "round": lambda x, a: x * round(a, 1),
    "key": lambda x, a: x + mx.random.uniform(shape=(3, 4), key=mx.random.key(abs(int(a)))),
}


@pytest.mark.parametrize("name", READ)
def test_a_number_that_is_read_is_part_of_the_trace(name: str) -> None:
    values = INTS[:12] if name in ("range", "axis", "reshape", "index", "slice") else [0.5, 2, -1.25, 3, 0.5, 2, True]
    f = mx.compile(READ[name])
    for value in values * 2:
        assert outcome(f, X, value) == outcome(READ[name], X, value), value
    assert f.traces <= len(values)


def test_a_branch_is_traced_once_for_each_way() -> None:
    check(lambda x, a: x * a if a > 0 else x - a, FLOATS, traces=2)
    check(lambda x, a: x * a if 0 <= a <= 1 else -x, FLOATS, traces=3)
    check(lambda x, a: x * a if a else x, FLOATS, traces=2)


@pytest.mark.filterwarnings("ignore:.*keeps retracing")
def test_many_ways_through_a_function() -> None:
    def fun(x: mx.array, a: float) -> mx.array:
        k = 0
        while k < 30 and a > k:
            k += 1
        return x * k

    check(fun, [i + 0.5 for i in range(40)] * 2, traces=None)


def test_kinds_of_numbers_are_told_apart() -> None:
    f = mx.compile(lambda x, a: x * a)
    x = mx.array([1, 2, 3])
    for value in (2, 2.0, True, 2, 2.0, True):
        assert bits(f(x, value)) == bits(x * value)
    assert f.traces == 3


def test_a_number_that_does_not_fit_raises_as_it_does_without_compile() -> None:
    f = mx.compile(lambda x, a: x + a)
    x = mx.array([1, 2], dtype=mx.uint8)
    for value in (1, 255, 256, -1, 3, 300, 0):
        assert outcome(f, x, value) == outcome(lambda x, a: x + a, x, value)
    assert f.traces == 1


def test_a_number_that_does_not_fit_may_be_caught() -> None:
    def fun(x: Any, n: int) -> Any:
        try:
            return x * n
        except (ValueError, OverflowError):
            return -x

    for x in (mx.array([1, 2]), mx.array([1.0, 2.0])):
        for order in ((3, 1 << 70, 5, 10**400, 1 << 71), (10**400, 3, 10**401, 1 << 70, 4)):
            f = mx.compile(fun)
            for n in order:
                assert np.array(f(x, n)).tolist() == np.array(fun(x, n)).tolist(), n


def test_errors_of_arithmetic_are_the_plain_functions() -> None:
    def fun(x: mx.array, a: float) -> mx.array:
        try:
            b = 1 / a
        except ZeroDivisionError:
            b = 7.0
        return x * b

    check(fun, [1, 2, 0, 4, 0, 0.0, 2.5], traces=None)
    check(lambda x, a: x * (1 / a), [1, 2, 0, 3], traces=1)
    check(lambda x, a: x * (a**0.5).real, [4.0, 2.0, -1.0, 9.0], traces=None)
    check(lambda x, a: x * 2**a, [1, -1, 3, -2], traces=2)


def test_shapeless_functions_have_scalars_too() -> None:
    f = mx.compile(lambda x, a: mx.sum(x * a, axis=0) / x.shape[0], shapeless=True)
    for n in (2, 3):
        for a in (0.5, 1.5, 2.5):
            assert bits(f(X[:n], a)) == bits(mx.sum(X[:n] * a, axis=0) / n)
    assert f.traces == 1


def test_captured_numbers_that_change_become_scalars() -> None:
    rate, pair, table = 0.5, (0.9, 0.99), {"k": 1}

    def fun(x: mx.array) -> mx.array:
        return x * rate + pair[0] - table["k"] * pair[1]

    f = mx.compile(fun)
    for i in range(20):
        rate, pair = rate * 0.9, (0.9 * i, 0.99)
        table["k"] = i
        assert bits(f(X)) == bits(fun(X))
    assert f.traces == 2


def test_counters_count() -> None:
    def make() -> Any:
        state, n = {"step": 0}, 0

        def fun(x: mx.array) -> mx.array:
            nonlocal n
            n += 2
            state["step"] += 1
            return x * (n + state["step"] * 0.5)

        return fun, lambda: (n, state)

    (plain, seen), (fun, ours) = make(), make()
    f = mx.compile(fun)
    for _ in range(20):
        assert bits((f(X), ours())) == bits((plain(X), seen()))
    assert f.traces == 2


# ---- the scalar itself ----


@pytest.mark.parametrize("value", [3, -7, 0, 2.5, -0.0, math.nan, math.inf])
def test_a_scalar_acts_as_its_number(value: Any) -> None:
    def fresh() -> Any:
        return Scalars([value]).leaves[0]

    assert isinstance(fresh(), type(value))
    assert fresh().__class__ is type(value)
    assert repr(fresh()) == repr(value)
    assert f"{fresh():>8}" == f"{value:>8}"
    assert hash(fresh()) == hash(value) or value != value
    assert bool(fresh()) == bool(value)
    for other in (2, 0.5, -3, True):
        for op in ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!="):
            for text in (f"a {op} b", f"b {op} a"):
                assert _result(text, fresh(), other) == _result(text, value, other), text
    for text in ("-a", "+a", "abs(a)", "float(a)", "a == None", "a in (1, 2.5)", "max(a, 1)", "sum([a, a])"):
        assert _result(text, fresh(), 0) == _result(text, value, 0), text
    for text in (
        "int(a)",
        "a.is_integer()",
        "a.real",
        "round(a)",
        "(1, 2, 3)[a]",
        "a & 1",
        "~a",
        "a << 2",
        "a.none",
    ):
        assert _result(text, fresh(), 0) == _result(text, value, 0), text


def _result(text: str, a: Any, b: Any) -> Any:
    try:
        found = eval(text, {"a": a, "b": b})
    except Exception as error:
        return type(error)
    return repr(found.hint if type(found) in SCALARS else found), found.__class__


def test_reading_is_recorded_and_arithmetic_is_not() -> None:
    env = Scalars([2.0, 3])
    a, n = env.leaves
    made = (a * 2 + n) / 4
    assert not env.by_value
    assert made.hint == 1.75
    assert a > 1
    assert not env.by_value
    env.want(made)
    numbers = env.compiled()
    assert numbers(4.0, 5) == (3.25,)
    assert numbers(0.5, 5) is None
    float(n)
    assert list(env.by_value) == [1]
