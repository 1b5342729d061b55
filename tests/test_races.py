"""Python threads, signal handlers and forks that come at the worst moment: each test forces one interleaving, by
running the other party's code in the middle of ours."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.array
import weft.core as mx
from tests.processes import in_threads, run_alone
from weft import evaluate, reference
from weft.array import array
from weft.config import config
from weft.core import looping
from weft.evaluate import entry, programs, running
from weft.graph import lines
from weft.graph.body import body_of
from weft.graph.node import Node, kind_of
from weft.llvm import engine
from weft.passes.executable import Executable
from weft.primitives.base import Constant, ConstantValue, Parameter
from weft.primitives.elementwise import Add
from weft.transforms import arguments, drawing, tracing, variant
from weft.transforms import compile as compiling

N = evaluate.overwriting.LEAST_DONATED // 4
"""Elements of a float32 array that is worth donating."""


def ones(n: int = 8) -> array:
    return mx.array(np.ones(n, np.float32))


def same(x: array, expected: Any) -> None:
    np.testing.assert_array_equal(np.array(x), np.asarray(expected, np.float32))


def first(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, before: Callable[[], object]) -> None:
    """Let the first call of a function be preceded by something else."""
    original, calls = getattr(owner, name), [0]

    def replaced(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            before()
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, replaced)


class Other:
    """Another thread, and what it returned or raised."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._answer: list[Any] = []
        self._error: list[BaseException] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._answer.append(self._work())
        except BaseException as error:
            self._error.append(error)

    def comes_in(self) -> bool:
        """Whether it gets to its end, given some time, while we stand here."""
        self.thread.join(0.1)
        return not self.thread.is_alive()

    def answer(self) -> Any:
        self.thread.join(50)
        assert not self.thread.is_alive(), "waits for ever"
        if self._error:
            raise self._error[0]
        return self._answer[0]


# ---- arrays ----


@pytest.mark.parametrize("value", [0, 1, 2.5])
def test_constants_never_change(value: float) -> None:
    """Rules, arrays and threads share them: whoever reads operation and number one after the other must find a pair."""
    x = mx.full((3,), value)
    node = x._node
    assert isinstance(node.op, Constant)
    same(x, [value] * 3)
    mx.eval(x, x + 1)
    assert isinstance(node.op, Constant)
    assert isinstance(node.value, ConstantValue)
    same(x, [value] * 3)


def test_an_array_that_is_overwritten_while_it_is_evaluated_shows_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ones() + 1
    first(monkeypatch, weft.array, "evaluated", lambda: x._overwrite(mx.array(np.zeros((50, 50), np.float32))))
    same(x, [2] * 8)
    assert x.shape == (50, 50)


def test_writing_out_a_constant_does_not_undo_what_another_thread_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.full((8,), 3.0)
    first(monkeypatch, weft.array, "to_buffer", lambda: x.__iadd__(1))
    same(x, [3] * 8)
    same(x, [4] * 8)


def test_making_an_argument_contiguous_does_not_undo_what_another_thread_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.array(np.arange(6, dtype=np.float32))[::-1]
    mx.eval(x)
    double = mx.compile(lambda x: x * 2, shapeless=True)
    double(ones(6))
    first(monkeypatch, compiling, "_contiguous", lambda: x.__iadd__(1))
    same(double(x), np.arange(6)[::-1] * 2)
    same(x, np.arange(6)[::-1] + 1)


# ---- evaluation ----


def test_who_is_first_gives_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody may look at the memory of what was there first."""
    x = mx.sin(ones()) + 1
    seen: list[np.ndarray] = []
    first(monkeypatch, evaluate.Recipe, "run", lambda: seen.append(np.array(x, copy=False)))
    mx.eval(x)
    assert np.array(x, copy=False).ctypes.data == seen[0].ctypes.data


BUILT: dict[str, Callable[[array], array]] = {
    "one operation": lambda x: x + 1,
    "several": lambda x: mx.sin(x + 1) * 2,
    "a slice update": lambda x: mx.slice_update(x, mx.array([5.0]), mx.array([3]), (0,)),
}


@pytest.mark.parametrize("size", [64, N], ids=["small", "donated"])
@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("moment", ["structure", "close", "donated_by", "donated_to", "in_place"])
def test_a_signals_handler_may_evaluate_the_same(
    moment: str, name: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the thread that prepares it, and has the lock: neither the value nor the program that is kept may suffer."""
    monkeypatch.setattr(evaluate.programs, "PROGRAMS", {})
    build, start = BUILT[name], np.linspace(0, 1, size, dtype=np.float32)
    with config_of(backend="reference"):
        expected = np.array(build(mx.array(start)))
    x = build(mx.array(start))
    with monkeypatch.context() as patch:
        users = [module for module in (entry, programs, running) if hasattr(module, moment)]
        assert users
        for module in users:
            first(patch, module, moment, lambda: mx.eval(x))
        mx.eval(x)
    np.testing.assert_allclose(np.array(x), expected, rtol=1e-6)
    for _ in range(2):
        again = build(mx.array(start))
        mx.eval(again)
        np.testing.assert_allclose(np.array(again), expected, rtol=1e-6)


class config_of:
    """Settings for the time of a `with` block."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings

    def __enter__(self) -> None:
        self.before = {name: getattr(config, name) for name in self.settings}
        for name, value in self.settings.items():
            setattr(config, name, value)

    def __exit__(self, *error: object) -> None:
        for name, value in self.before.items():
            setattr(config, name, value)


def test_the_reference_does_not_see_what_other_threads_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    with config_of(backend="reference"):
        x = ones()
        y = x + 1
        z = y * 3
        first(monkeypatch, reference, "evaluate_reference", lambda: mx.eval(y, z))
        same(z, [6] * 8)


def test_ctrl_c_between_claim_and_run_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = mx.array(np.ones(N, np.float32)) + 1

    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "run_over", strike)
        with pytest.raises(KeyboardInterrupt):
            mx.eval(x)
    same(Other(lambda: x * 1).answer(), np.full(N, 2))
    same(x, np.full(N, 2))


class Struck(BaseException):
    """What a signal's handler raises."""


def test_signals_wait_for_llvm() -> None:
    """A module that outlives its context, because of what a handler raised in between, crashes the process."""

    def strike(*_: Any) -> None:
        raise Struck

    main, steps = threading.main_thread().ident, []
    assert main is not None

    def work() -> None:
        assert threading.get_ident() != main
        steps.append("begun")
        signal.pthread_kill(main, signal.SIGUSR1)
        time.sleep(0.05)
        steps.append("done")

    before = signal.signal(signal.SIGUSR1, strike)
    try:
        with pytest.raises(Struck):
            engine._undisturbed(work)
        assert steps == ["begun", "done"]
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ZeroDivisionError):
        engine._undisturbed(lambda: 1 // 0)
    assert Other(lambda: engine._undisturbed(threading.get_ident)).answer() != main


def test_what_is_put_back_is_put_back_in_spite_of_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    w = ones()
    f = mx.compile(lambda x: x * w)

    def strike() -> None:
        raise Struck

    with monkeypatch.context() as patch:
        first(patch, tracing.Snapshot, "restore", strike)
        with pytest.raises(Struck):
            f(ones())
    same(w, [1] * 8)
    same(f(ones()), [1] * 8)


def test_containers_are_put_back_in_spite_of_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {"w": ones()}
    original = weights["w"]

    def strike(*_: Any) -> None:
        raise Struck

    with monkeypatch.context() as patch:
        patch.setattr(arguments.FilledArguments, "__exit__", strike)
        with contextlib.suppress(Struck):  # nobody keeps what was raised, and with it the frames
            mx.grad(lambda p: p["w"].sum())(weights)
    gc.collect()
    assert weights["w"] is original
    assert arguments._OWNERS == {}


# ---- graphs ----


def test_a_body_is_closed_before_others_evaluate_what_it_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view that is evaluated loses its operand, and would be data inside of the body."""
    base = mx.array(np.arange(12, dtype=np.float32).reshape(3, 4)) + 0
    view = base.T
    others: list[Other] = []
    first(monkeypatch, looping, "body_of", lambda: others.append(Other(lambda: np.array(view))) or others[0].comes_in())
    total, _ = mx.scan(lambda c, x: (c + view[0] * x, None), mx.zeros((3,)), mx.array([1.0, 2.0]))
    same(total, np.array([0, 4, 8]) * 3)
    np.testing.assert_array_equal(others[0].answer(), np.arange(12).reshape(3, 4).T)


def test_what_a_body_remembers_is_one_object() -> None:
    kind = kind_of((7, 3), mx.float32)
    x = Node(Parameter(0), (), kind)
    body = body_of([x], [Node(Add(), (x, x), kind)])
    made: list[object] = []

    def overtaken() -> object:
        made.append(body.once("thing", object))
        return object()

    assert body.once("thing", overtaken) is made[0]
    assert body.once("thing", object) is made[0]


def test_passes_tell_only_those_who_follow_them_on_their_thread() -> None:
    kind = kind_of((2,), mx.float32)
    x = Node(Parameter(0), (), kind)
    with lines.followed() as mine:
        Other(lambda: lines.inherit({x: x})).answer()
        with lines.followed() as inner:
            pass
        lines.inherit({x: x})
    assert inner == []
    assert mine == [{x: x}]


# ---- arguments of transforms ----


def test_threads_that_differentiate_by_one_dict_take_turns() -> None:
    weights = {"w": ones(), "more": [ones()]}
    originals = (weights["w"], weights["more"][0])  # type: ignore[index]
    inside, go_on = threading.Event(), threading.Event()

    def slow(p: Any) -> array:
        inside.set()
        assert go_on.wait(50)
        return (p["w"] * p["more"][0] * 3).sum()

    other = Other(lambda: mx.grad(slow)(weights))
    assert inside.wait(50)
    second = Other(lambda: mx.grad(lambda p: (p["w"] * 5).sum())(weights))
    assert not second.comes_in()
    go_on.set()
    same(other.answer()["w"], [3] * 8)
    same(second.answer()["w"], [5] * 8)
    assert weights["w"] is originals[0]
    assert weights["more"][0] is originals[1]  # type: ignore[index]
    assert arguments._OWNERS == {}


def test_threads_that_differentiate_by_two_dicts_in_another_order() -> None:
    a, b = {"w": ones()}, {"w": ones()}
    originals = (a["w"], b["w"])

    def product(p: Any, q: Any) -> array:
        return (p["w"] * q["w"] * 2).sum()

    def work(number: int) -> None:
        for _ in range(50):
            for found in mx.grad(product, argnums=(0, 1))(*((a, b) if number % 2 else (b, a))):
                same(found["w"], [2] * 8)

    in_threads(4, work)
    assert a["w"] is originals[0]
    assert b["w"] is originals[1]
    assert arguments._OWNERS == {}


def test_one_thread_may_differentiate_twice_by_one_dict() -> None:
    weights = {"w": ones()}
    twice = mx.grad(lambda p: mx.grad(lambda q: (q["w"] ** 3).sum())(p)["w"].sum())(weights)
    same(twice["w"], [6] * 8)
    with pytest.raises(ZeroDivisionError):
        mx.grad(lambda p: 1 // 0)(weights)
    assert arguments._OWNERS == {}


STEPS: dict[str, Callable[[array], array]] = {
    "operations": lambda x: mx.sin(x * 2) + 1,
    "one operation": lambda x: x * x,
    "a slice": lambda x: x[2:5],
    "a slice update": lambda x: mx.slice_update(x, mx.array([5.0]), mx.array([3]), (0,)) * 1,
    "a loop": lambda x: mx.fori_loop(0, 3, lambda i, c: c * x, x),
}


@pytest.mark.parametrize("size", [8, N], ids=["small", "large"])
@pytest.mark.parametrize("name", STEPS)
def test_values_inside_grad_that_another_thread_evaluates(name: str, size: int) -> None:
    """They keep their inputs, like those that the thread itself evaluates."""
    step = STEPS[name]

    def loss(x: array, look: Callable[[array], object]) -> array:
        y = step(x)
        look(y)
        z = step(y) if name != "a slice" else y * 3
        look(z)
        return (z * z).sum()

    x = mx.array(np.linspace(0.1, 1.0, size, dtype=np.float32))
    expected = np.array(mx.grad(loss)(x, lambda y: None))
    assert np.any(expected)
    found = mx.grad(loss)(x, lambda y: Other(lambda: np.array(y)).answer())
    np.testing.assert_array_equal(np.array(found), expected)
    found = mx.grad(loss)(x, lambda y: Other(lambda: np.array(mx.grad(lambda t: (t * y).sum())(x[: y.size]))).answer())
    np.testing.assert_array_equal(np.array(found), expected)


def test_traces_of_others_do_not_keep_what_is_not_theirs() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(x: array) -> array:
        inside.set()
        assert go_on.wait(50)
        return x.sum()

    other = Other(lambda: mx.grad(slow)(ones()))
    assert inside.wait(50)
    x = ones() + 1
    y = mx.sin(x) * 2
    mx.eval(x, y, y[2:4])
    assert x._node.inputs == y._node.inputs == ()
    go_on.set()
    same(other.answer(), [1] * 8)


# ---- compile ----


def test_what_the_function_overwrites_is_its_doing_still() -> None:
    w = ones()

    @mx.compile
    def f(x: array) -> array:
        w[...] = w + x
        return w * 2

    for count in range(1, 4):
        same(f(ones()), [2 * (1 + count)] * 8)
        same(w, [1 + count] * 8)


def test_many_threads_call_a_shapeless_function_with_more_sizes_than_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variant, "MOST_SIZES", 4)
    f = mx.compile(lambda x: x * 2 + x.shape[0], shapeless=True)

    def work(number: int) -> None:
        for n in range(2, 40):
            n = n * 7 % 41 + 2 + number
            same(f(ones(n)), [2 + n] * n)

    in_threads(4, work)


# ---- random numbers ----


def plain_draws(count: int) -> list[list[int]]:
    mx.random.seed(11)
    return [mx.random.bits((2,)).tolist() for _ in range(count)]


def test_a_compiled_call_draws_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who draws while its program runs gets other numbers."""
    expected = plain_draws(4)
    draw = mx.compile(lambda: mx.random.bits((2,)))
    draw()
    mx.random.seed(11)
    found = []
    with monkeypatch.context() as patch:
        first(patch, Executable, "run", lambda: found.append(mx.random.bits((2,)).tolist()))
        found.append(draw().tolist())
    found += [draw().tolist(), mx.random.bits((2,)).tolist()]
    assert found == expected


def test_who_draws_before_the_trace_does_not_become_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain_draws(4)
    mx.random.seed(11)
    draw = mx.compile(lambda: mx.random.bits((2,)))
    found = []
    with monkeypatch.context() as patch:
        first(patch, compiling.Compiled, "_miss", lambda: found.append(mx.random.bits((2,)).tolist()))
        found += [draw().tolist() for _ in range(3)]
    assert found == expected


def test_loops_and_branches_draw_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps() -> array:
        return mx.scan(lambda c, x: (c, mx.random.bits((2,))), mx.array(0), length=2)[1]

    def branch() -> array:
        return mx.cond(mx.array(True), lambda: mx.random.bits((2,)), lambda: mx.random.bits((2,)))

    for draw in (steps, branch):
        mx.random.seed(5)
        alone = [draw().tolist(), mx.random.bits((2,)).tolist()]
        mx.random.seed(5)
        others: list[Other] = []

        def come(others: list[Other] = others) -> None:
            others.append(Other(lambda: mx.random.bits((2,)).tolist()))
            assert not others[0].comes_in()

        with monkeypatch.context() as patch:
            first(patch, looping, "bind_many", come)
            found = draw()
        assert [found.tolist(), others[0].answer()] == alone


def test_threads_never_draw_the_same_numbers() -> None:
    draw = mx.compile(lambda: mx.random.bits((4,)))
    drawn: list[tuple[int, ...]] = []

    def work(number: int) -> None:
        for _ in range(40):
            drawn.append(tuple((draw() if number % 2 else mx.random.bits((4,))).tolist()))

    in_threads(4, work)
    assert len(set(drawn)) == len(drawn) == 160


# ---- forks ----


def child_says_yes(body: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        code = 1
        try:
            code = 0 if body() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def everything() -> bool:
    """What takes all locks that there are."""
    weights = {"w": ones()}
    same(mx.sin(ones(5) * 0) + 3, [3] * 5)
    same(mx.compile(lambda x: x * 2 + weights["w"][0])(ones()), [3] * 8)
    same(mx.grad(lambda p: (p["w"] * 3).sum())(weights)["w"], [3] * 8)
    mx.random.uniform(shape=(3,)).tolist()
    return bool(mx.scan(lambda c, x: (c + x, None), mx.array(0.0), ones())[0].item() == 8)


def held(lock: Any) -> Callable[[], None]:
    """Another thread has this lock, and is in no hurry; gives a function that waits for its end."""
    inside = threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            time.sleep(0.3)

    other = Other(hold)
    assert inside.wait(50)
    return lambda: void(other.answer())


def void(_: object) -> None:
    return None


def scenario_locks() -> None:
    from weft import interning
    from weft.passes import growing

    assert everything()
    for lock in (evaluate.LOCK, drawing.DRAWING, compiling._BOOKS, interning._lock, growing._lock, arguments._ends):
        wait = held(lock)
        assert child_says_yes(everything), lock
        wait()
        assert everything()


def test_a_child_is_not_born_with_locks_of_others() -> None:
    run_alone(__file__, "scenario_locks")


def scenario_overwriting() -> None:
    from weft.runtime.program import Progress

    x = mx.array(np.ones(N, np.float32)) + 1
    inside, go_on = threading.Event(), threading.Event()
    follow = Progress.follow

    def slow(self: Progress, *args: Any) -> int:
        inside.set()
        assert go_on.wait(50)
        return follow(self, *args)

    Progress.follow = slow  # type: ignore[method-assign]
    other = Other(lambda: mx.eval(x))
    assert inside.wait(50)

    def refused() -> bool:
        try:
            mx.eval(x)
        except RuntimeError as error:
            return "cannot be computed any more" in str(error)
        return False

    assert child_says_yes(refused)
    go_on.set()
    other.answer()
    same(x, np.full(N, 2))


def test_a_child_does_not_wait_for_threads_that_it_has_not() -> None:
    run_alone(__file__, "scenario_overwriting")


# ---- the end ----


def scenario_end() -> None:
    """Threads that nobody waits for are in the middle of something when Python ends."""
    w = mx.array(np.ones(1 << 18, np.float32))
    started = threading.Semaphore(0)
    jobs: list[Callable[[int], Any]] = [
        lambda k: mx.eval(mx.sin(w) + k),
        lambda k: mx.compile(lambda x: mx.exp(x) * k + w[0])(w[:9]).tolist(),
        lambda k: mx.eval(mx.fori_loop(0, 500, lambda i, c: c * 1.0001 + k, w[:5000])),
        lambda k: mx.random.normal((1000 + k,)).tolist(),
    ]

    def work(job: Callable[[int], Any]) -> None:
        for k in range(1_000_000):
            job(k)
            started.release()

    for job in jobs:
        threading.Thread(target=work, args=(job,), daemon=True).start()
    for _ in range(12):
        assert started.acquire(timeout=50)


def test_python_may_end_in_the_middle_of_it() -> None:
    for _ in range(3):
        run_alone(__file__, "scenario_end", WEFT_THREADS="2")
