"""Calls and evaluations that machine code makes: the same as Python's forms give, counted right, given up where
something is not as it was. With WEFT_CHECK, which tests run with, each is also compared with what Python finds."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft import evaluate, tree
from weft.config import config
from weft.passes.executable import Executable
from weft.runtime import threads
from weft.runtime.buffer import Storage, pool
from weft.runtime.objects import MAKERS
from weft.transforms.compile import Compiled

mx.eval(mx.array([1.0]) + 1)  # loads what runs programs
native = pytest.mark.skipif(not MAKERS.runs, reason="this interpreter's objects are laid out in another way")


@pytest.fixture
def by_python(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The executables that Python's form runs."""
    found: list[Any] = []
    plain = Executable._run_by_python

    def run(self: Executable, *args: Any) -> Any:
        found.append(self)
        return plain(self, *args)

    monkeypatch.setattr(Executable, "_run_by_python", run)
    return found


def watched(fun: Callable[[], Any]) -> Any:
    """What Python's forms give."""
    MAKERS.watch(True)
    try:
        return fun()
    finally:
        MAKERS.watch(False)


def arrays(count: int = 2, shape: tuple[int, ...] = (3, 4)) -> list[mx.array]:
    rng = np.random.default_rng(0)
    made = [mx.array(rng.standard_normal(shape).astype(np.float32)) for _ in range(count)]
    mx.eval(made)
    return made


OPERATIONS: dict[str, Callable[[mx.array, mx.array], mx.array]] = {
    "one operand": lambda x, y: mx.exp(x),
    "two": lambda x, y: x + y,
    "twice the same": lambda x, y: x * x,
    "three": lambda x, y: mx.where(x > 0, x, y),
    "a number": lambda x, y: x * 0.3,
    "a number first": lambda x, y: 2 - x,
    "a reduction": lambda x, y: mx.sum(x, axis=0),
    "a view": lambda x, y: x.T,
    "a view that is moved": lambda x, y: x[1:, ::2],
    "a cast": lambda x, y: x.astype(mx.int8),
    "a product": lambda x, y: x @ y.T,
    "nothing to compute": lambda x, y: x.reshape(2, 6),
    "of a strided operand": lambda x, y: x[::-1] + y,
    "complex": lambda x, y: x.astype(mx.complex64) * (1 + 2j),
}


@native
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_what_python_gives(name: str, by_python: list[Any]) -> None:
    x, y = arrays()
    fun = OPERATIONS[name]

    def steps(eval: bool) -> np.ndarray:
        made = fun(x, y)
        if eval:
            mx.eval(made)
        return np.array(made)

    expected = watched(lambda: steps(True))
    for _ in range(3):
        got = steps(True)
    by_python.clear()
    got = steps(True)
    assert not by_python
    assert (got.dtype, got.shape, got.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@native
def test_an_operation_on_a_slice_is_one_operation(by_python: list[Any]) -> None:
    (x,) = arrays(1)
    sources = (lambda: x[::2], lambda: x[1:, ::-1], lambda: x[2:])
    for fun in (lambda a: a + 1, lambda a: a * a, lambda a: mx.exp(a), lambda a: mx.sum(a, axis=0)):
        for source in sources:
            expected = watched(lambda fun=fun, source=source: np.array(fun(source())).tolist())
            for _ in range(3):
                made = fun(source())
                mx.eval(made)
            by_python.clear()
            part = source()
            made = fun(part)
            mx.eval(made)
            assert not by_python
            assert np.array(made).tolist() == expected
            assert part._node.value is not None
            assert part.tolist() == source().tolist()


CALLS: dict[str, Callable[..., Any]] = {
    "one": lambda x, y: mx.sin(x) * y,
    "a tuple": lambda x, y: (x + y, x - y),
    "a list": lambda x, y: [x + y, x - y],
    "a dict": lambda x, y: {"sum": x + y, "difference": (x - y,)},
    "the same twice": lambda x, y: (s := x + y, s),
    "other order": lambda x, y: ((x + y) * 2, x + y),
    "a view of an argument": lambda x, y: (x[1:], y + 1),
    "an argument unread": lambda x, y: x + 1,
    "a captured array": lambda x, y: x + mx.array([1.0, 2.0, 3.0, 4.0]) + y,
    "nothing but numbers": lambda x, y: mx.full((2,), 3.5),
}


@native
@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_the_function_gives(name: str, by_python: list[Any]) -> None:
    x, y = arrays()
    fun = CALLS[name]
    compiled = mx.compile(fun)
    expected = fun(x, y)
    for _ in range(3):
        compiled(x, y)
    by_python.clear()
    got = compiled(x, y)
    assert not by_python
    flat, structure = tree.leaves(got), tree.leaves(expected)
    assert type(got) is type(expected)
    assert [a.tolist() for a in flat] == [a.tolist() for a in structure]


@native
def test_layouts_are_told_apart(by_python: list[Any]) -> None:
    (x,) = arrays(1, (4, 4))
    compiled = mx.compile(lambda a: a * 2 + 1)
    turned, backwards = x.T, x[::-1]
    mx.eval(turned, backwards)
    for _ in range(3):
        for a in (x, turned, backwards):
            assert compiled(a).tolist() == (np.array(a) * 2 + 1).tolist()
    by_python.clear()
    for a in (x, turned, backwards):
        compiled(a)
    assert not by_python


FACTOR = 2.0


@native
def test_what_the_function_is_bound_to_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    x = arrays(1)[0]
    factor = 3.0

    def inner(a: mx.array, by: float = 5.0) -> mx.array:
        return a * by

    def plain(a: mx.array) -> mx.array:
        return inner(a) * FACTOR + factor + abs(1)

    compiled = mx.compile(plain)

    def same() -> None:
        for _ in range(3):
            assert compiled(x).tolist() == plain(x).tolist()

    same()
    assert compiled._calls is not None
    monkeypatch.setitem(globals(), "FACTOR", 7.0)
    same()
    factor = 11.0
    same()
    inner.__defaults__ = (13.0,)
    same()
    inner.__code__ = (lambda a, by=0.0: a - by).__code__
    same()
    monkeypatch.setitem(globals(), "abs", lambda n: 100)  # a name that was absent, and is a builtin's
    same()
    inner.marked = True  # type: ignore[attr-defined]
    same()
    monkeypatch.setattr(mx, "sin", mx.cos)
    same()


@native
def test_one_array_in_two_places_is_another_call() -> None:
    x, y = arrays()
    compiled = mx.compile(lambda a, b: a + 1 if a is b else a - b)
    for _ in range(3):
        assert compiled(x, y).tolist() == (np.array(x) - np.array(y)).tolist()
        assert compiled(x, x).tolist() == (np.array(x) + 1).tolist()


@native
def test_settings_and_keywords_are_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = arrays()
    ran = []

    def plain(a: mx.array, b: mx.array | None = None) -> mx.array:
        return a * 2 if b is None else a * b

    compiled = mx.compile(plain)
    for _ in range(3):
        assert compiled(x, b=y).tolist() == compiled(x, y).tolist() == plain(x, y).tolist()
        assert compiled(x).tolist() == plain(x).tolist()
    with pytest.raises(TypeError, match="argument"):
        compiled()
    with pytest.raises(TypeError, match="argument"):
        compiled(x, y, x)
    seen = mx.compile(lambda a: ran.append(1) or a + 1)
    monkeypatch.setattr(config, "disable_compile", True)
    for _ in range(3):
        compiled(x)
        seen(x)
    assert len(ran) == 3


@native
def test_inside_of_other_transforms_the_function_is_traced() -> None:
    (x,) = arrays(1)
    square = mx.compile(lambda a: a * a)
    for _ in range(3):
        square(x)
    assert mx.grad(lambda a: mx.sum(square(a)))(x).tolist() == (2 * np.array(x)).tolist()
    assert mx.vmap(square)(x).tolist() == (np.array(x) ** 2).tolist()
    outer = mx.compile(lambda a: square(a) + 1)
    for _ in range(3):
        assert outer(x).tolist() == (np.array(x) ** 2 + 1).tolist()


@native
def test_nothing_is_held_and_all_memory_comes_back() -> None:
    x, y = arrays()
    compiled = mx.compile(lambda a, b: (a + b, a * b))

    def steps() -> None:
        for _ in range(50):
            compiled(x, y)
            mx.eval(x + y)
            mx.eval(x.T)
            mx.eval(x * 0.5)

    steps()
    gc.collect()
    held = [sys.getrefcount(o) for o in (x, y, x._node, x._node.value, x._node.kind, x._node.value.storage)]
    active, objects = pool.active, len(gc.get_objects())
    steps()
    gc.collect()
    assert [sys.getrefcount(o) for o in (x, y, x._node, x._node.value, x._node.kind, x._node.value.storage)] == held
    assert pool.active == active
    assert len(gc.get_objects()) - objects < 20


@native
def test_results_that_are_kept_have_memory_of_their_own() -> None:
    x, y = arrays()
    compiled = mx.compile(lambda a, b: a + b)
    kept = [compiled(x, y) for _ in range(200)]
    kept += [x + y for _ in range(200)]
    for a in kept[200:]:
        mx.eval(a)
    assert len({a._node.value.address for a in kept}) == 400
    expected = (np.array(x) + np.array(y)).tolist()
    assert all(a.tolist() == expected for a in kept)


@native
def test_storages_count_as_python_counts() -> None:
    assert "__del__" not in Storage.__dict__
    before = pool.active
    x = mx.zeros((1000,)) + 1
    mx.eval(x)
    capacity = x._node.value.storage.capacity
    assert pool.active == before + capacity
    del x
    assert pool.active == before
    Storage()  # one that `allocate` gave no memory
    assert pool.active == before


@native
def test_a_limit_of_memory_is_kept() -> None:
    x = mx.array(np.zeros(1 << 14, np.float32))
    compiled = mx.compile(lambda a: a + 1)
    for _ in range(3):
        compiled(x)
    limit = mx.set_memory_limit(pool.active + (1 << 12))
    try:
        for _ in range(2):
            with pytest.raises(MemoryError, match="limit"):
                compiled(x)
            with pytest.raises(MemoryError, match="limit"):
                mx.eval(x + 1)
    finally:
        mx.set_memory_limit(limit)
    assert compiled(x).tolist() == [1.0] * (1 << 14)


@native
def test_more_threads_than_before() -> None:
    x = mx.array(np.arange(1 << 16, dtype=np.float32).reshape(256, 256))
    mx.eval(x)
    compiled = mx.compile(lambda a: mx.softmax(a, axis=0) + a.T)
    expected = compiled(x).tolist()
    before = threads.get_threads()
    try:
        for count in (before + 3, before, before + 5):
            threads.set_threads(count)
            for _ in range(3):
                assert compiled(x).tolist() == expected
    finally:
        threads.set_threads(before)


@native
def test_many_threads_call_and_evaluate_at_once() -> None:
    x, y = arrays()
    compiled = mx.compile(lambda a, b: mx.sin(a) * b)
    expected, total = compiled(x, y).tolist(), (np.array(x) + np.array(y)).tolist()
    shared = [x + y for _ in range(300)]
    wrong: list[Any] = []

    def work() -> None:
        for i in range(300):
            mx.eval(shared[i])
            if compiled(x, y).tolist() != expected or shared[i].tolist() != total:
                wrong.append(i)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@native
def test_a_finalizer_that_evaluates_the_same() -> None:
    """Memory that is asked for may run finalizers: the node may be computed, and cut from its operands, meanwhile."""
    x, y = arrays()
    mx.eval(x + y)
    pending: list[mx.array] = []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            if pending:
                mx.eval(pending[-1])

    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Cycle()
            pending.append(x + y)
            mx.eval(pending[-1])
    finally:
        gc.set_threshold(*threshold)
    expected = (np.array(x) + np.array(y)).tolist()
    assert all(a.tolist() == expected for a in pending)


@native
def test_the_check_finds_a_call_that_is_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = arrays()
    monkeypatch.setattr(config, "check", True)
    compiled, other = mx.compile(lambda a, b: a + b), mx.compile(lambda a, b: a - b)
    for _ in range(3):
        compiled(x, y)
        other(x, y)
    compiled._calls[1].update(other._calls[1])
    compiled._calls[2][:] = (), None
    with pytest.raises(AssertionError, match="taken for another one"):
        compiled(x, y)


@native
def test_the_check_finds_an_operation_that_is_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = arrays()
    monkeypatch.setattr(config, "check", True)
    mx.eval(x * y)
    mx.eval(x * y)
    monkeypatch.setattr(evaluate.entry, "_describe_one", lambda node: (("another",), []))
    evaluate.programs.PROGRAMS["another",] = None  # type: ignore[assignment]
    try:
        with pytest.raises(AssertionError, match="taken for another operation"):
            mx.eval(x * y)
    finally:
        del evaluate.programs.PROGRAMS["another",]


@native
def test_strange_arguments_are_pythons() -> None:
    (x,) = arrays(1)
    compiled = mx.compile(lambda a: a + 1)
    for _ in range(3):
        compiled(x)
    for strange in (None, "text", object(), mx.array.__new__(mx.array)):
        with pytest.raises(Exception):  # noqa: B017  (whatever it is, the process lives)
            compiled(strange)
    fresh = Compiled.__new__(Compiled)
    with pytest.raises(AttributeError):
        fresh(x)
    with pytest.raises(TypeError):
        Compiled.__call__(x)
