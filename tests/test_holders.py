"""Reference counts decide whether memory may be overwritten. For each rule: somebody else who holds an object is seen,
and a count that misses him is caught by the check, which looks at the garbage collector's view."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft import evaluate
from weft.array import array
from weft.config import config
from weft.program import calls
from weft.runtime import holders
from weft.runtime.holders import BASE, COUNTED, LEAF, OPERAND, PIECE, REPLACED, RESULT, STATE, CountError

pytestmark = pytest.mark.skipif(not COUNTED, reason="reference counts say nothing here")

N = evaluate.overwriting.LEAST_DONATED // 4
"""Elements of a float32 array that is worth donating."""


class Case:
    """Something that may be computed in place; and what somebody else holds of it, in a list, as anyone might."""

    def __init__(self, held: str) -> None:
        self.held = held
        self.keep: list[Any] = []

    def hold(self, node: Any, operands: Any = None) -> None:
        found = {"node": node, "operands": operands, "buffer": node.value}
        self.keep.append(node.value.storage if self.held == "storage" else found[self.held])


def ones() -> array:
    made = mx.array(np.ones(N, np.float32)) + 0.0
    mx.eval(made)
    return made


def operand(case: Case) -> Callable[[], Any]:
    result = _of_temporary(case, lambda a: a * 2.0)
    return lambda: mx.eval(result)


def piece(case: Case) -> Callable[[], Any]:
    result = _of_temporary(case, lambda a: mx.sin(a * 2.0))
    return lambda: mx.eval(result)


def _of_temporary(case: Case, build: Callable[[array], array]) -> array:
    a = ones()
    made = build(a)
    first = made._node if made._node.inputs[0] is a._node else made._node.inputs[0]
    case.hold(a._node, first.inputs)
    return made


def base(case: Case) -> Callable[[], Any]:
    w = ones()
    old = w._node
    w[3] = 5.0
    case.hold(old, w._node.inputs)
    return lambda: mx.eval(w)


def overwritten(case: Case) -> Callable[[], Any]:
    w = ones()

    def step(x: array) -> None:
        w[...] = w * x + 1.0

    call, factor = mx.compile(step), mx.array(2.0)
    call(factor)
    case.hold(w._node)
    return lambda: call(factor)


def replaced(case: Case) -> Callable[[], Any]:
    state = {"w": ones()}

    def step(x: array) -> None:
        state["w"] = state["w"] * x + 1.0

    call, factor = mx.compile(step), mx.array(2.0)
    call(factor)
    case.keep.append(state["w"])
    return lambda: call(factor)


def handed_over(case: Case) -> Callable[[], Any]:
    made = ones()
    case.hold(made._node)

    def work() -> None:
        (seen,) = calls.handed_over([made], [True])
        seen[...] = 3.0

    return work


CASES = [
    (OPERAND, operand, "node"),
    (OPERAND, operand, "operands"),
    (OPERAND, operand, "buffer"),
    (OPERAND, operand, "storage"),
    (PIECE, piece, "node"),
    (PIECE, piece, "operands"),
    (LEAF, piece, "buffer"),
    (LEAF, piece, "storage"),
    (BASE, base, "node"),
    (BASE, base, "operands"),
    (BASE, base, "buffer"),
    (BASE, base, "storage"),
    (STATE, overwritten, "node"),
    (STATE, overwritten, "buffer"),
    (STATE, overwritten, "storage"),
    (REPLACED, replaced, "array"),
    (RESULT, handed_over, "node"),
    (RESULT, handed_over, "buffer"),
    (RESULT, handed_over, "storage"),
]


@pytest.fixture
def checked() -> Iterator[None]:
    before, config.check = config.check, True
    yield
    config.check = before


def held_value(kept: Any) -> np.ndarray:
    """The elements behind what is held."""
    if isinstance(kept, array):
        return np.array(kept)
    if isinstance(kept, tuple):
        kept = kept[0]
    value = getattr(kept, "value", kept)
    storage = getattr(value, "storage", value)
    return np.array((ctypes.c_float * N).from_address(storage.address))


def miss(missed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Count one reference too few to this object."""
    counted = holders.owners

    def one_less(objects: Any) -> list[int]:
        return [count - (id(x) == missed) for count, x in zip(counted(objects), objects, strict=True)]

    monkeypatch.setattr(holders, "owners", one_less)


@pytest.mark.parametrize(("rule", "prepare", "held"), CASES)
def test_what_somebody_else_holds_is_not_overwritten(rule: str, prepare: Any, held: str, checked: None) -> None:
    case = Case(held)
    work = prepare(case)
    before = held_value(case.keep[0])
    work()
    np.testing.assert_array_equal(held_value(case.keep[0]), before)


@pytest.mark.parametrize(("rule", "prepare", "held"), CASES)
def test_a_count_that_misses_a_holder_is_caught(
    rule: str, prepare: Any, held: str, checked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(held)
    work = prepare(case)
    miss(id(case.keep[0]), monkeypatch)
    with pytest.raises(CountError, match=f"{rule} was counted as free, but is held by an object of type list"):
        work()


@pytest.mark.parametrize(("rule", "prepare", "held"), [case for case in CASES if case[2] == "storage"])
def test_without_the_check_such_a_count_overwrites_what_is_held(
    rule: str, prepare: Any, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the check is what catches it."""
    case = Case(held)
    work = prepare(case)
    before = held_value(case.keep[0])
    miss(id(case.keep[0]), monkeypatch)
    monkeypatch.setattr(config, "check", False)
    work()
    assert not np.array_equal(held_value(case.keep[0]), before)


def test_a_right_count_is_free_and_a_wrong_one_is_not(checked: None) -> None:
    objects: list[Any] = [[1], [2]]
    other = {"holds": objects[1]}
    assert holders.free("one of two", objects, [0, 1], lambda: [set(), {id(other)}]) == [True, True]
    assert holders.free("one of two", objects, [0, 0], lambda: [set(), set()]) == [True, False]
    with pytest.raises(CountError, match="one of two was counted as free, but is held by an object of type dict"):
        holders.free("one of two", objects, [0, 1], lambda: [set(), set()])
