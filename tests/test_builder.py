"""The text that the builder writes where it is more than a line for a line."""

from __future__ import annotations

import ctypes

import pytest

from weft import dtypes as dt
from weft.llvm import engine
from weft.llvm.builder import PTR, Builder, Value
from weft.targets.cpu.features import features


def chain(x: Value, first: float, length: int = 40) -> Value:
    for i in range(length):
        x = x * (first + i / 64) + 1.0
    return x


def expected(x: float, first: float, length: int = 40) -> float:
    for i in range(length):
        x = x * (first + i / 64) + 1.0
    return x


def run(b: Builder, numbers: list[float]) -> list[float]:
    memory = (ctypes.c_double * len(numbers))(*numbers)
    (code,) = engine.load([engine.Source(f"test:{b.module()}", b.name, b.module)])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address)(ctypes.addressof(memory))
    return list(memory)


def seldom(b: Builder, x: Value, first: float) -> Value:
    """x, or a chain of it where x is negative."""
    (result,) = b.rarely(x < 0.0, [x], lambda: [chain(x, first)])
    return result


@pytest.mark.parametrize("same", [True, False])
def test_seldom_needed_code_is_a_function_that_equal_pieces_share(same: bool) -> None:
    firsts = (0.5, 0.5 if same else 0.25)
    b = Builder("pieces", [("memory", PTR)], features())
    (memory,) = b.params
    for place, first in enumerate(firsts):
        at = b.gep(memory, 8 * place)
        b.store(seldom(b, b.load(at, dt.float64, 1), first), at)
    b.ret()
    assert b.module().count("define internal") == (1 if same else 2)
    assert run(b, [-2.0, -3.0]) == [expected(-2.0, firsts[0]), expected(-3.0, firsts[1])]
    assert run(b, [2.0, -3.0]) == [2.0, expected(-3.0, firsts[1])]


def test_several_results_some_of_them_as_they_were() -> None:
    b = Builder("several", [("memory", PTR)], features())
    (memory,) = b.params
    x = b.load(memory, dt.float64, 1)

    def correct() -> list[Value]:
        long = chain(x, 0.5)
        return [long, x, long + 1.0]

    y, same, z = b.rarely(x < 0.0, [x, x, x], correct)
    for place, value in enumerate((y, same, z)):
        b.store(value, b.gep(memory, 8 * place))
    b.ret()
    assert b.module().count("define internal") == 1
    long = expected(-2.0, 0.5)
    assert run(b, [-2.0, 0.0, 0.0]) == [long, -2.0, long + 1.0]
    assert run(b, [2.0, 0.0, 0.0]) == [2.0, 2.0, 2.0]


def test_a_few_lines_stay_where_they_are() -> None:
    b = Builder("few", [("memory", PTR)], features())
    (memory,) = b.params
    x = b.load(memory, dt.float64, 1)
    (y,) = b.rarely(x < 0.0, [x], lambda: [chain(x, 0.5, 3)])
    b.store(y, memory)
    b.ret()
    assert "define internal" not in b.module()
    assert run(b, [-2.0]) == [expected(-2.0, 0.5, 3)]


def test_code_in_a_loop_may_use_its_index() -> None:
    """The index is a name that nobody computed: such code is not moved away."""
    b = Builder("loop", [("memory", PTR)], features())
    (memory,) = b.params
    with b.loop(0, 3, 1) as loop:
        at = b.gep(memory, loop.index * 8)
        x = b.load(at, dt.float64, 1)
        (y,) = b.rarely(x < 0.0, [x], lambda: [chain(x, 0.5) + b.cast(loop.index, dt.float64)])
        b.store(y, at)
    b.ret()
    assert run(b, [-1.0, 1.0, -2.0]) == [expected(-1.0, 0.5), 1.0, expected(-2.0, 0.5) + 2.0]
