"""State that compiled functions update in place, when something happens in the middle of a call: Ctrl-C, no memory, the
handler of a signal, another thread. Each sees the state before the call or after it."""

from __future__ import annotations

import ctypes
import gc
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.processes import in_threads
from tests.updating import WAYS, N, Plain, an_attribute, at, fresh, large, over, same, stepped
from weft.array import array
from weft.runtime.buffer import get_active_memory
from weft.runtime.program import ProgramError, Progress
from weft.transforms import state, updating

# ---- failures ----

FOLLOW = Progress.follow


def after_finishing(self: Progress, execute: Any, arguments: Any) -> int:
    """Ctrl-C during the run: raised the moment that it is over."""
    FOLLOW(self, execute, arguments)  # type: ignore[arg-type]
    raise KeyboardInterrupt


def before_starting(self: Progress, execute: Any, arguments: Any) -> int:
    raise KeyboardInterrupt


def out_of_memory(self: Progress, execute: Any, arguments: Any) -> int:
    raise MemoryError


@pytest.mark.parametrize("interrupted", [after_finishing, before_starting, out_of_memory])
@pytest.mark.parametrize("name", WAYS)
def test_an_interrupted_call_has_happened_or_not(name: str, interrupted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    way = WAYS[name](fresh())
    way.call()
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "follow", interrupted)
        with pytest.raises((KeyboardInterrupt, MemoryError)):
            way.call()
    calls = 2 if interrupted is after_finishing else 1
    same(way.read(), stepped(large(), calls))
    place = at(way.read())
    way.call()
    assert at(way.read()) == place
    same(way.read(), stepped(large(), calls + 1))


def test_no_memory_for_what_else_is_computed() -> None:
    state = {"k": fresh()}

    @mx.compile
    def step(x: array) -> array:
        state["k"] = state["k"] * 0.5 + 1
        return mx.broadcast_to(x, (64, N)) + 1

    x = fresh(1)
    limit = mx.set_memory_limit(get_active_memory() + 4 * N)
    try:
        for _ in range(2):
            with pytest.raises(MemoryError):
                step(x)
    finally:
        mx.set_memory_limit(limit)
    same(state["k"], large())
    step(x)
    same(state["k"], stepped(large()))


def test_all_changes_are_made_when_a_call_is_interrupted_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies elsewhere too: a state must not be half of one step and half of another."""
    state: dict[str, Any] = {"k": fresh(), "count": mx.array(0), "log": []}

    @mx.compile
    def step() -> None:
        state["k"] = state["k"] * 0.5 + 1
        state["count"] = state["count"] + 1

    step()
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "follow", after_finishing)
        with pytest.raises(KeyboardInterrupt):
            step()
    assert state["count"].item() == 2
    same(state["k"], stepped(large(), 2))


def failing(self: Progress, execute: Any, arguments: Any) -> int:
    """As a program whose first command fails."""
    ctypes.c_int64.from_address(arguments[1]).value = 0
    self._statuses.append(7)
    return 7


def test_a_program_that_failed_has_changed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs overwrite nothing before the last step that can fail."""
    state = {"k": fresh()}

    @mx.compile
    def step() -> None:
        state["k"] = state["k"] * 0.5 + 1

    step()
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "follow", failing)
        with pytest.raises(ProgramError):
            step()
    same(state["k"], stepped(large()))
    step()
    same(state["k"], stepped(large(), 2))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_a_handler_that_looks_at_the_state_in_the_middle_of_a_call(
    name: str, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler that writes a checkpoint: before the program runs it finds the old state, and afterwards the
    new one. What it holds of the old one is not overwritten."""
    way = WAYS[name](fresh())
    way.call()
    seen: list[np.ndarray] = []
    held: list[Any] = []

    def look() -> None:
        held.append(np.array(way.read(), copy=False))
        seen.append(np.array(way.read()))

    def nosy(self: Any, execute: Any, arguments: Any) -> int:
        if late:
            status = FOLLOW(self, execute, arguments)
            look()
            return status
        look()
        return FOLLOW(self, execute, arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "follow", nosy)
        way.call()
    same(way.read(), stepped(large(), 2))
    np.testing.assert_array_equal(seen[0], stepped(large(), 1 + late))
    np.testing.assert_array_equal(held[0], stepped(large(), 1 + late))
    held.clear()
    way.call()
    same(way.read(), stepped(large(), 3))


@pytest.mark.parametrize("finished", [False, True])
def test_ctrl_c_where_nobody_can_catch_it(finished: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It strikes in the very code that gives the arrays their values back: other threads do not wait for ever."""
    way = an_attribute(fresh())
    way.call()
    real = updating.UpdateClaim.end
    struck = []

    def end(self: Any) -> Any:
        if not struck:
            struck.append(True)
            raise KeyboardInterrupt
        return real(self)

    with monkeypatch.context() as patch:
        patch.setattr(updating.UpdateClaim, "end", end)
        if not finished:
            patch.setattr(Progress, "follow", before_starting)
        with pytest.raises(KeyboardInterrupt):
            way.call()
    gc.collect()
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.append(np.array(way.read())), daemon=True)
    thread.start()
    thread.join(30)
    np.testing.assert_array_equal(found[0], stepped(large(), 1 + finished))


class Struck(BaseException):
    """What the timer raises."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of signals that strike in finalizers
@pytest.mark.parametrize("name", ["an argument that is overwritten", "an attribute", "a tree that is made anew"])
def test_real_signals_never_show_half_a_step(name: str) -> None:
    """A timer interrupts calls at all moments: after each the state is that before the call, or that after it."""
    start = np.linspace(0.1, 0.2, 1 << 20, dtype=np.float32)
    x = mx.array(start)
    mx.eval(x)
    way = WAYS[name](x)
    del x
    armed = False

    def strike(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Struck

    way.call()
    expected = stepped(start)
    before = signal.signal(signal.SIGALRM, strike)
    struck = 0
    try:
        for trial in range(80):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 4e-5 * (1 + trial % 40))
                way.call()
                time.sleep(0.002)
                armed = False
            except Struck:
                struck += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            found = np.array(way.read())
            if found.tobytes() != expected.tobytes():
                expected = stepped(expected)
            assert found.tobytes() == expected.tobytes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert struck


class Looking:
    """Looks at a dict when it goes."""

    def __init__(self, place: dict[Any, Any], seen: list[Any]) -> None:
        self.place, self.seen = place, seen

    def __del__(self) -> None:
        self.seen.append(list(self.place))


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_a_dict_is_changed_in_one_step(kind: Any) -> None:
    """Who looks at it meanwhile (a finalizer, another thread, the handler of a signal) finds what stays in it."""
    place, seen = kind(a=1, c=3), []
    place["b"] = Looking(place, seen)
    state.write(place, {"a": 2, "c": 3, "b": 4})
    assert seen == [["a", "c", "b"]]
    assert list(place.items()) == [("a", 2), ("c", 3), ("b", 4)]
    for contents in (
        {"b": 1, "a": 2},
        {"a": 1, "b": 2, "d": 3},
        {True: 1, "a": 0},
        {1: 5, "a": 0},
        {1.0: 5},
        {},
        {"x": 1},
    ):
        state.write(place, contents)
        assert [(k, type(k), v) for k, v in place.items()] == [(k, type(k), v) for k, v in contents.items()]


# ---- threads ----


def test_threads_with_states_of_their_own_and_one_function() -> None:
    @mx.compile
    def step(state: Any, x: array) -> None:
        state["k"] = state["k"] * 0.5 + x
        x *= 1.0

    def work(me: int) -> None:
        state, x, expected = {"k": fresh(me)}, fresh(7), large(me)
        for _ in range(30):
            step(state, x)
            expected = expected * np.float32(0.5) + large(7)
        same(state["k"], expected)

    in_threads(4, work)
    assert over(step)


def test_threads_that_read_what_one_updates() -> None:
    """Each reader sees the state before a call or after it, however it reads."""
    x = fresh()
    possible = {}
    expected = large()
    for i in range(61):
        possible[expected.tobytes()] = i
        expected = stepped(expected)

    @mx.compile
    def step(x: array) -> None:
        x *= 0.5
        x += 1

    look = mx.compile(lambda x: x * 1.0)
    step(fresh())  # traced before others read: meanwhile they may see the new state, and then the old one again
    look(fresh())
    reads: list[Callable[[], np.ndarray]] = [
        lambda: np.array(x),
        lambda: np.array(x * 1.0),
        lambda: np.array(look(x)),
        lambda: np.array(mx.array(x)),
        lambda: np.array(mx.grad(lambda y: mx.sum(y * y) * 0.5)(x)),
    ]
    done = threading.Event()

    def work(me: int) -> None:
        if me == 0:
            try:
                for _ in range(60):
                    step(x)
                    time.sleep(1e-4)
            finally:
                done.set()
            return
        last = 0
        while not done.is_set():
            for read in reads:
                found = read().tobytes()
                assert found in possible
                assert possible[found] >= last
                last = possible[found]

    in_threads(3, work)
    same(x, stepped(large(), 60))


def test_threads_that_read_what_one_replaces() -> None:
    cache = Plain()
    cache.keys = fresh()
    possible = set()
    expected = large()
    for _ in range(61):
        possible.add(expected.tobytes())
        expected = stepped(expected)

    @mx.compile
    def step() -> None:
        cache.keys = cache.keys * 0.5 + 1

    done = threading.Event()

    def work(me: int) -> None:
        if me == 0:
            try:
                for _ in range(60):
                    step()
                    time.sleep(1e-4)
            finally:
                done.set()
            return
        while not done.is_set():
            for found in (np.array(cache.keys), np.array(cache.keys * 1.0)):
                assert found.tobytes() in possible

    in_threads(3, work)
    same(cache.keys, stepped(large(), 60))


def test_threads_that_update_one_state() -> None:
    """Calls at once may lose updates, as any such calls may, but none is torn."""
    x = fresh()

    @mx.compile
    def step(x: array) -> None:
        x *= 0.5
        x += 1

    possible = set()
    expected = large()
    for _ in range(81):
        possible.add(expected.tobytes())
        expected = stepped(expected)

    def work(me: int) -> None:
        for _ in range(20):
            step(x)
            assert np.array(x).tobytes() in possible

    in_threads(4, work)


def test_threads_that_draw_random_numbers_and_update_in_place() -> None:
    """A call that finds that another thread has drawn looks again, before it has overwritten anything."""

    @mx.compile
    def step(state: Any) -> None:
        state["k"] = state["k"] + mx.random.randint(1, 2, shape=(N,)).astype(mx.float32)

    def work(me: int) -> None:
        state = {"k": fresh(me)}
        for _ in range(20):
            step(state)
        expected = large(me)
        for _ in range(20):
            expected = expected + np.float32(1)
        same(state["k"], expected)

    in_threads(4, work)
    assert over(step)


def test_a_handler_that_looks_at_the_state_in_the_middle_of_a_loop() -> None:
    """The program will overwrite the state behind the loop: it is called off, and what the handler holds stays."""
    state = {"k": fresh()}

    @mx.compile
    def step(x: array, steps: array) -> array:
        y = mx.fori_loop(0, steps, lambda i, c: mx.sin(c), x)
        state["k"] = state["k"] * 0.5 + 1
        return y

    x = mx.array(np.linspace(0, 1, 64, dtype=np.float32))
    step(x, mx.array(3))
    place = at(state["k"])
    steps = mx.array(3_000_000)
    held: list[Any] = []
    before = signal.signal(signal.SIGALRM, lambda *_: held.append(np.array(state["k"], copy=False)))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        step(x, steps)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert at(state["k"]) != place, "the handler came too late"
    np.testing.assert_array_equal(held[0], stepped(large()))
    same(state["k"], stepped(large(), 2))


def test_ctrl_c_in_a_loop_leaves_what_would_be_overwritten_behind_it() -> None:
    state = {"k": fresh()}

    @mx.compile
    def step(x: array, steps: array) -> array:
        y = mx.fori_loop(0, steps, lambda i, c: mx.sin(c), x)
        state["k"] = state["k"] * 0.5 + 1
        return y

    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    x = mx.array(np.linspace(0, 1, 64, dtype=np.float32))
    step(x, mx.array(3))
    steps = mx.array(1 << 40)
    before = signal.signal(signal.SIGALRM, strike)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            step(x, steps)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    same(state["k"], stepped(large()))
    place = at(state["k"])
    step(x, mx.array(3))
    assert at(state["k"]) == place
    same(state["k"], stepped(large(), 2))
