"""Random programs (tests/adversary.py): plain, evaluated step by step, compiled, and shapeless for one size after the
other, they give the same bits, or raise the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests import contract
from tests.adversary import Program, arguments, function_of, program, shrunk
from weft import tree
from weft.array import array

pytestmark = pytest.mark.filterwarnings("ignore:.*keeps retracing")

QUICK = 60
MANY = 2000


def outcome(f: Callable[..., Any], args: Any) -> Any:
    """What a call gives, as NumPy arrays in the structure of the result, or the class of what it raises."""
    try:
        leaves, structure = tree.flatten(f(*args))
        mx.eval([leaf for leaf in leaves if isinstance(leaf, array)])
    except Exception as error:
        return type(error)
    return str(structure), [contract.values_of(leaf) if isinstance(leaf, array) else leaf for leaf in leaves]


def difference(found: Any, expected: Any) -> str:
    """How two outcomes differ; empty if they do not."""
    if isinstance(found, type) or isinstance(expected, type):
        return "" if found is expected else f"{_shown(found)} instead of {_shown(expected)}"
    if found[0] != expected[0] or len(found[1]) != len(expected[1]):
        return f"{found[0]} instead of {expected[0]}"
    for i, (x, y) in enumerate(zip(found[1], expected[1], strict=True)):
        if isinstance(x, np.ndarray) != isinstance(y, np.ndarray):
            return f"leaf {i}: {x!r} instead of {y!r}"
        if not isinstance(x, np.ndarray):
            if repr(x) != repr(y):
                return f"leaf {i}: {x!r} instead of {y!r}"
        elif x.dtype != y.dtype or x.shape != y.shape:
            return f"leaf {i}: {x.dtype}{x.shape} instead of {y.dtype}{y.shape}"
        elif not contract.same_bits(x, y):
            return f"leaf {i}: {contract.differences(x, y)}"
    return ""


def _shown(found: Any) -> str:
    return found.__name__ if isinstance(found, type) else f"{found[0]}"


def problem(given: Program) -> str:
    """What goes wrong with a program; empty if nothing does."""
    plain = function_of(given)
    compiled, shapeless = mx.compile(plain), mx.compile(plain, shapeless=True)
    for turn, sizes in enumerate(given.sizes):
        expected = outcome(plain, arguments(given, turn))
        ways = {"shapeless": shapeless} | ({"compiled": compiled} if turn < 3 else {})
        for name, way in ways.items():
            found = difference(outcome(way, arguments(given, turn)), expected)
            if found:
                return f"{name}, turn {turn}, sizes {sizes}: {found}"
    return ""


def check(seed: int) -> None:
    given = program(seed)
    if problem(given):
        given = shrunk(given, lambda other: bool(problem(other)))
        pytest.fail(f"{given}\n{problem(given)}")


@pytest.mark.parametrize("seed", range(QUICK))
def test_a_random_program_is_what_it_is_plain(seed: int) -> None:
    check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(QUICK, MANY))
def test_many_random_programs_are_what_they_are_plain(seed: int) -> None:
    check(seed)
