"""Compiled functions that call helpers and read settings of the user's modules: calls take the short way, in which
nothing is walked over, as long as everything is what it was, and the answers are the plain function's in any case."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import pytest

import weft.core as mx

X = mx.array([0.5, 1.0, 2.0])
SOURCE = """
EPS = 1
SHAPE = (3, 1)
def inner(x, scale=2.0):
    return x * scale + EPS
def outer(x):
    return mx.reshape(inner(x) * math.sqrt(2 / math.pi), SHAPE)
def recursive(x, depth=3):
    return x if depth == 0 else recursive(x + 1, depth - 1)
def through_module(x):
    return tools.inner(x) + tools.EPS
"""


def module() -> types.ModuleType:
    made = types.ModuleType("users_tools")
    vars(made).update(mx=mx, math=math, tools=made)
    exec(SOURCE, vars(made))
    return made


def is_quick(f: Any) -> bool:
    """Whether the next call on X would be answered without a walk."""
    return bool(f._quick) and f._bindings.hold()


def same(f: Any, plain: Callable[..., Any]) -> None:
    for _ in range(2):
        got, wanted = f(X), plain(X)
        assert (got.dtype, got.shape, got.tolist()) == (wanted.dtype, wanted.shape, wanted.tolist())


@pytest.mark.parametrize("name", ["inner", "outer", "recursive", "through_module"])
def test_helpers_and_settings_take_the_short_way(name: str) -> None:
    plain = vars(module())[name]
    f = mx.compile(plain)
    same(f, plain)
    assert is_quick(f)
    assert f.traces == 1


def test_closures_take_the_short_way() -> None:
    def make(function: Callable[[mx.array], mx.array], power: float) -> Callable[[mx.array], mx.array]:
        return lambda x: function(x) * power

    plain = make(module().outer, 2.5)
    f = mx.compile(plain)
    same(f, plain)
    assert is_quick(f)


def set_attribute(made: types.ModuleType, name: str, value: Any) -> Callable[[], None]:
    return lambda: setattr(made, name, value)


CHANGES: dict[str, Callable[[types.ModuleType], Callable[[], None]]] = {
    "a number": lambda made: set_attribute(made, "EPS", 2),
    "a number of another type": lambda made: set_attribute(made, "EPS", 1.0),
    "a number that is equal": lambda made: set_attribute(made, "EPS", True),
    "a tuple": lambda made: set_attribute(made, "SHAPE", (1, 3)),
    "a helper": lambda made: set_attribute(made, "inner", lambda x: x - 1),
    "the code of a helper": lambda made: set_attribute(made.inner, "__code__", (lambda x, scale: x - scale).__code__),
    "the defaults of a helper": lambda made: set_attribute(made.inner, "__defaults__", (5.0,)),
    "an array instead of a number": lambda made: set_attribute(made, "EPS", mx.array(7.0)),
    "a module": lambda made: set_attribute(made, "math", types.SimpleNamespace(sqrt=lambda x: 3.0, pi=2.0)),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_is_seen(what: str) -> None:
    made = module()
    f = mx.compile(made.outer)
    same(f, made.outer)
    CHANGES[what](made)()
    assert not is_quick(f)
    same(f, made.outer)


def test_attributes_of_helpers_are_seen() -> None:
    made = module()
    exec("def outer(x):\n    g = inner\n    return x * getattr(g, 'factor', 1.0)", vars(made))
    f = mx.compile(made.outer)
    same(f, made.outer)
    made.inner.factor = 3.0
    same(f, made.outer)
    made.inner.factor = 4.0
    same(f, made.outer)


def test_variables_of_enclosing_functions_are_seen() -> None:
    scale: Any = 1

    def plain(x: mx.array) -> mx.array:
        return x * scale

    f = mx.compile(plain)
    for scale in (1, 2.0, True, mx.array(3.0), 2.0):  # noqa: B007 (which plain reads)
        same(f, plain)


def test_a_number_that_keeps_changing_becomes_an_input() -> None:
    made = module()
    f = mx.compile(made.inner)
    for value in range(2, 12):
        made.EPS = value
        same(f, made.inner)
    assert f.traces <= 3


def test_containers_stay_on_the_long_way() -> None:
    made = module()
    exec("STATE = {'a': 1.0}\ndef outer(x):\n    return x * STATE['a']", vars(made))
    f = mx.compile(made.outer)
    same(f, made.outer)
    assert not f._quick
    made.STATE["a"] = 2.0
    same(f, made.outer)
