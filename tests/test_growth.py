"""What a program costs to make grows as the program does: every function of every stage does in proportion to the
number of outputs, inputs, or operations, whatever it does.

Counted are lines that Python runs, function by function, at two sizes: a stage that looks at all of a program for each
part of it is found, however little it does each time.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import weft
import weft.core as mx
from weft import evaluate, tree
from weft.passes import families, fuse, memory

HERE = weft.__file__.rpartition("/")[0]
MOST = 6.5
"""How often as many lines a function may run where there is four times as much: that, a logarithm, and some room."""
FEW = 1000
"""Lines that do not matter."""


def lines_run(work: Callable[[], Any]) -> Counter[CodeType]:
    """How many lines of each function of ours run."""
    found: Counter[CodeType] = Counter()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        return count if frame.f_code.co_filename.startswith(HERE) else None

    def count(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line":
            found[frame.f_code] += 1
        return count

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return found


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done in pieces of some hundreds is done in small ones, so that there are several."""
    monkeypatch.setattr(fuse, "PIECE", 8)
    monkeypatch.setattr(fuse, "MOST_OPEN", 2)
    monkeypatch.setattr(memory, "MOST_NEIGHBOURS", 2)
    monkeypatch.setattr(evaluate.reach, "WINDOW", 16)


def vectors(n: int, *shape: int) -> list[mx.array]:
    return [mx.array(np.full(shape, 0.01 * i, np.float32)) for i in range(n)]


def chain(x: mx.array, n: int, all_of_it: bool) -> Any:
    found = []
    for _ in range(n):
        x = mx.sin(x) + 1.0
        found.append(x)
    return found if all_of_it else x


def residual(x: mx.array, w: mx.array, n: int) -> mx.array:
    for _ in range(n):
        x = x + (x / mx.mean(x * x, axis=-1, keepdims=True)) @ w
    return x


def turned(x: mx.array, n: int) -> mx.array:
    for _ in range(n):
        x = mx.exp(x).T
    return x


def written(x: mx.array, n: int) -> mx.array:
    for i in range(n):
        x[i] = x[i] + 1.0
    return x


def momentum(ps: list[mx.array], ms: list[mx.array], gs: list[mx.array]) -> Any:
    ms = [0.9 * m + g for m, g in zip(ms, gs, strict=True)]
    return [p - 0.1 * m for p, m in zip(ps, ms, strict=True)], ms


def loss(ps: list[mx.array]) -> mx.array:
    total = mx.array(0.0)
    for p in ps:
        total = total + mx.sum(p * p)
    return total


new = itertools.count(2.5).__next__
"""A number that no loop before had in it: plans are kept with the bodies that they are of."""

Made = tuple[Callable[..., Any], tuple[Any, ...]]


def carries(n: int) -> Made:
    k = new()
    return lambda xs: mx.scan(lambda cs, _: ([c @ c * k for c in cs], None), xs, None, 3)[0], (vectors(n, 4, 4),)


def rows(n: int) -> Made:
    k = new()

    def body(c: mx.array, rows: list[mx.array]) -> Any:
        return c + rows[0], [row * k for row in rows]

    return lambda xs: mx.scan(body, mx.zeros(4), xs), (vectors(n, 3, 4),)


def invariants(n: int) -> Made:
    k = new()
    return lambda xs: mx.fori_loop(0, 3, lambda i, c: sum(xs, c) * k, mx.zeros(4)), (vectors(n, 4),)


def loops(n: int) -> Made:
    k = new()
    return lambda xs: [mx.fori_loop(0, 3, lambda i, c: c * k, x) for x in xs], (vectors(n // 4, 4),)


def loops_over_the_same(n: int) -> Made:
    k = new()

    def filtered(x: mx.array, i: int) -> Any:
        return mx.scan(lambda c, row: (c * (k + i / n) + row, c), mx.zeros(4), x)

    return lambda x: [filtered(x, i) for i in range(n // 4)], (mx.ones((3, 4)),)


def branches(n: int) -> Made:
    k = new()
    return lambda xs: [mx.cond(x[0] > 0, lambda y: y * k, lambda y: y - k, x) for x in xs], (vectors(n // 4, 4),)


def one_branch(n: int) -> Made:
    k = new()

    def more(*ys: mx.array) -> Any:
        return [y * k for y in ys]

    def less(*ys: mx.array) -> Any:
        return [y - k for y in ys]

    return lambda xs: mx.cond(xs[0][0] > 0, more, less, *xs), (vectors(n, 4),)


PROGRAMS: dict[str, Callable[[int], Made]] = {
    "outputs apart": lambda n: (lambda xs: [mx.exp(x) + 1.0 for x in xs], (vectors(n, 4),)),
    "outputs of one chain": lambda n: (lambda x: chain(x, n, True), (vectors(1, 4)[0],)),
    "a deep chain": lambda n: (lambda x: chain(x, n, False), (vectors(1, 4)[0],)),
    "outputs of one input": lambda n: (lambda x: [x * (i + 2.5) + 2.0 for i in range(n)], (vectors(1, 4)[0],)),
    "an optimizer's step": lambda n: (momentum, (vectors(n, 3, 2), vectors(n, 3, 2), vectors(n, 3, 2))),
    "a gradient": lambda n: (mx.grad(loss), (vectors(n, 4),)),
    "many inputs": lambda n: (lambda xs: sum(xs[1:], xs[0]), (vectors(n, 4),)),
    "one operation on many inputs": lambda n: (mx.concatenate, (vectors(n, 4),)),
    "products": lambda n: (lambda xs: [x @ x for x in xs], (vectors(n, 4, 4),)),
    "products alive together": lambda n: (lambda xs: mx.stack([(x @ x) @ x for x in xs]), (vectors(n, 4, 4),)),
    "rows": lambda n: (lambda xs: [mx.softmax(x, axis=-1) for x in xs], (vectors(n, 4, 5),)),
    "slices": lambda n: (lambda x: [x[i] for i in range(n)], (mx.ones((n, 4)),)),
    "slices in use": lambda n: (lambda x: [x[i] * 2.0 for i in range(n)], (mx.ones((n, 4)),)),
    "updates": lambda n: (lambda x: written(x * 1.0, n), (mx.ones((n, 4)),)),
    "residuals": lambda n: (lambda x, w: residual(x, w, n // 4), (mx.ones((4, 8)), mx.ones((8, 8)))),
    "views of views": lambda n: (lambda x: turned(x, n), (mx.ones((4, 8)),)),
    "carries": carries,
    "rows of a loop": rows,
    "what a loop reads": invariants,
    "loops": loops,
    "loops over the same": loops_over_the_same,
    "branches": branches,
    "what a branch reads": one_branch,
}


def grown(measure: Callable[[int], Counter[CodeType]], first: int = 24) -> list[str]:
    """The functions that run too many lines where a program is four times as large. What is made once in a process,
    kinds of that size say, is made before."""
    measure(4 * first)
    small, large = measure(first), measure(4 * first)
    return [
        f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno} {code.co_qualname}: {small[code]} lines, then {n}"
        for code, n in large.most_common()
        if n > MOST * small[code] + FEW
    ]


def made(name: str, n: int) -> Made:
    fun, args = PROGRAMS[name](n)
    mx.eval(args)
    return fun, args


@pytest.mark.parametrize("name", PROGRAMS)
def test_planning_grows_with_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "PATIENCE", 1 << 60)  # every program is planned for itself

    def measure(n: int) -> Counter[CodeType]:
        fun, args = made(name, n)
        mx.eval(fun(*args))  # whose kernels are compiled now
        monkeypatch.setattr(evaluate.programs, "PROGRAMS", {})
        fun, args = made(name, n)
        return lines_run(lambda: mx.eval(fun(*args)))

    assert grown(measure) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_compiling_grows_with_the_program(name: str) -> None:
    def measure(n: int) -> Counter[CodeType]:
        fun, args = made(name, n)
        mx.eval(mx.compile(fun)(*args))
        fun, args = made(name, n)
        compiled = mx.compile(fun)

        def work() -> None:
            for _ in range(3):  # traced, planned to write over what it may, and found
                mx.eval(compiled(*args))

        return lines_run(work)

    assert grown(measure) == []


SIZES = ["outputs apart", "outputs of one input", "an optimizer's step", "a gradient", "rows"]


def at_sizes(name: str, n: int, count: int) -> tuple[Callable[..., Any], list[Any]]:
    """A program, and arguments of some sizes."""

    def larger(times: int, x: mx.array) -> mx.array:
        return mx.concatenate([x] * times)

    fun, args = made(name, n)
    given = [tree.map(partial(larger, times + 1), args) for times in range(count)]
    mx.eval(given)
    return fun, given


@pytest.mark.parametrize("name", SIZES)
def test_a_family_grows_with_the_program(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that differ in sizes, planned together."""
    monkeypatch.setattr(evaluate.reach, "WINDOW", 1024)  # or the smaller ones are in one piece, and others are not

    def measure(n: int) -> Counter[CodeType]:
        fun, given = at_sizes(name, n, 5)

        def work() -> None:
            monkeypatch.setattr(evaluate.programs, "PROGRAMS", {})
            monkeypatch.setattr(families, "FAMILIES", {})
            for some in given:
                mx.eval(fun(*some))

        work()  # all kernels are compiled now
        return lines_run(work)

    assert grown(measure, 8) == []


@pytest.mark.parametrize("name", SIZES)
def test_filling_in_grows_with_the_program(name: str) -> None:
    """One plan for all sizes, and programs made from it."""

    def measure(n: int) -> Counter[CodeType]:
        fun, given = at_sizes(name, n, 4)
        compiled = mx.compile(fun, shapeless=True)
        mx.eval(compiled(*given[0]), compiled(*given[1]))  # whose kernels are compiled now
        compiled = mx.compile(fun, shapeless=True)

        def work() -> None:
            for some in given:
                mx.eval(compiled(*some))

        return lines_run(work)

    assert grown(measure, 8) == []
