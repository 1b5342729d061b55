"""Compiled functions follow what a program changes behind them: functions of modules that are replaced, settings of
Python's and NumPy's. A call gives what the plain function gives, or traces again; what stays is traced once."""

from __future__ import annotations

import builtins
import functools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

import weft.core as mx

X = mx.array([0.5, 1.0, 2.0])


def same(f: Any, plain: Callable[..., Any], *args: Any) -> None:
    assert f(*args).tolist() == plain(*args).tolist()


def uses_sin(x: mx.array) -> mx.array:
    return mx.sin(x) + mx.cos(x)


def uses_sin_and_state(x: mx.array) -> mx.array:
    return mx.sin(x) * STATE["scale"]


def imports_inside(x: mx.array) -> mx.array:
    import weft.core as m  # on purpose: the module is a local variable

    return m.sin(x)


class Holder:
    def __init__(self) -> None:
        self.namespace = mx

    def __call__(self, x: mx.array) -> mx.array:
        return self.namespace.sin(x)


STATE = {"scale": mx.array(2.0)}


@pytest.mark.parametrize("plain", [uses_sin, uses_sin_and_state, imports_inside, Holder()], ids=lambda f: repr(f)[:20])
def test_functions_of_weft(plain: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    f = mx.compile(plain)
    before = mx.sin
    for _ in range(3):
        same(f, plain, X)
    assert f.traces == 1
    for other in (mx.tanh, lambda x: x * 3, functools.wraps(before)(lambda x: before(x) + 10), mx.compile(mx.exp)):
        monkeypatch.setattr(mx, "sin", other)
        for _ in range(2):
            same(f, plain, X)
    traces = f.traces
    monkeypatch.setattr(mx, "sin", before)
    for _ in range(3):
        same(f, plain, X)
    assert f.traces == traces  # what was traced at first holds again


def test_state_of_a_replacement(monkeypatch: pytest.MonkeyPatch) -> None:
    factor = [2.0, mx.array(3.0)]
    monkeypatch.setattr(mx, "sin", lambda x: x * factor[0] * factor[1])
    f = mx.compile(uses_sin)
    same(f, uses_sin, X)
    factor[0] = 5.0
    same(f, uses_sin, X)
    factor[1] = mx.array(7.0)
    same(f, uses_sin, X)

    def wrapped(x: mx.array) -> mx.array:
        return x + factor[0]

    monkeypatch.setattr(mx, "sin", functools.update_wrapper(wrapped, mx.cos))
    f = mx.compile(uses_sin)
    same(f, uses_sin, X)
    factor[0] = -1.0
    same(f, uses_sin, X)


def test_replaced_and_put_back_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is traced while a function is replaced is not what is called when it is back."""
    f = mx.compile(uses_sin)
    same(f, uses_sin, X)
    longer = mx.array([1.0, 2.0, 3.0, 4.0])
    with monkeypatch.context() as patch:
        patch.setattr(mx, "sin", mx.tanh)
        same(f, uses_sin, longer)
    same(f, uses_sin, longer)
    global other
    other = mx
    g = mx.compile(uses_other)
    same(g, uses_other, X)
    other = Fake()
    same(g, uses_other, longer)
    other = mx
    same(g, uses_other, longer)


class Fake:
    @staticmethod
    def sin(x: mx.array) -> mx.array:
        return x * 100


other: Any = mx


def uses_other(x: mx.array) -> mx.array:
    return other.sin(x)


def test_a_mock_runs_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    f = mx.compile(uses_sin)
    same(f, uses_sin, X)
    stand_in = mock.Mock(return_value=mx.array([1.0, 1.0, 1.0]))
    monkeypatch.setattr(mx, "sin", stand_in)
    with pytest.warns(UserWarning, match="mx|weft.core.sin"):
        f(X)
    f(X)
    assert stand_in.call_count == 2


def uses_others(x: mx.array) -> mx.array:
    return x * math.sqrt(2.0) + float(np.log(4.0)) + abs(-3) + np.linalg.norm([3.0, 4.0])


def test_functions_of_other_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    f = mx.compile(uses_others)
    for _ in range(2):
        same(f, uses_others, X)
    assert f.traces == 1
    for module, name, value in (
        (math, "sqrt", lambda v: v * 100), (np, "log", np.exp), (builtins, "abs", lambda v: 1000),
        (np.linalg, "norm", lambda v: 7.0),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(module, name, value)
            same(f, uses_others, X)
        same(f, uses_others, X)
    assert f.traces == 5


# ---- settings ----


@pytest.fixture
def numpy_errors() -> Iterator[None]:
    before = np.geterr()
    yield
    np.seterr(**before)


@pytest.mark.usefixtures("numpy_errors")
def test_numpy_raises_as_it_is_told() -> None:
    zero = np.float64(0.0)

    def divides(x: mx.array) -> mx.array:
        return x + float(1.0 / zero)

    def takes_logarithms(x: mx.array) -> mx.array:
        return x + float(np.log(0.0))

    for plain in (divides, takes_logarithms):
        np.seterr(divide="ignore")
        f = mx.compile(plain)
        same(f, plain, X)
        same(f, plain, X)
        assert f.traces == 1
        np.seterr(divide="raise")
        with pytest.raises(FloatingPointError):
            f(X)
        np.seterr(divide="ignore")
        same(f, plain, X)
        assert f.traces == 1


@pytest.mark.usefixtures("numpy_errors")
def test_settings_that_are_read() -> None:
    def limit(x: mx.array) -> mx.array:
        return x + sys.getrecursionlimit()

    def errors(x: mx.array) -> mx.array:
        return x + len(np.geterr()["divide"])

    for plain in (limit, errors):
        f = mx.compile(plain)
        with pytest.warns(UserWarning, match="something else at each call"):
            same(f, plain, X)
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(before + 100)
        np.seterr(divide="print")
        same(f, plain, X)
        g = mx.compile(limit)
        with pytest.warns(UserWarning, match="getrecursionlimit"):
            same(g, limit, X)
    finally:
        sys.setrecursionlimit(before)


def test_what_sys_always_says() -> None:
    def plain(x: mx.array) -> mx.array:
        return x + (1.0 if sys.maxsize > 2**32 and sys.version_info >= (3, 11) else 2.0)

    f = mx.compile(plain)
    same(f, plain, X)
    same(f, plain, X)
    assert f.traces == 1
