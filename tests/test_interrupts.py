"""Signals that strike while native code runs: it stops soon, nothing is lost, and handlers may do what they like.

Programs of kernels written here raise signals at chosen units; runs look for them between any two pieces.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.processes import run_alone
from weft import beside, evaluate
from weft.array import array
from weft.config import config
from weft.llvm import engine
from weft.llvm.code import Code
from weft.runtime import threads
from weft.runtime.buffer import get_active_memory
from weft.runtime.program import Cancelled, Command, CommandKind, Program, ProgramError, Progress, Reloc

N = evaluate.overwriting.LEAST_DONATED // 4
"""Elements of a float32 array that is worth donating."""

ADDING = """
define void @add_one(ptr %args, i64 %begin, i64 %end, ptr %scratch, ptr %run) {
entry:
  %x_at = getelementptr i64, ptr %args, i64 1
  %x = load ptr, ptr %x_at
  %strike_at = getelementptr i64, ptr %args, i64 2
  %strike = load i64, ptr %strike_at
  %kill_at = getelementptr i64, ptr %args, i64 3
  %kill = load ptr, ptr %kill_at
  %pid_at = getelementptr i64, ptr %args, i64 4
  %pid = load i64, ptr %pid_at
  %pid32 = trunc i64 %pid to i32
  br label %next
next:
  %i = phi i64 [ %begin, %entry ], [ %i1, %done ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %one, label %exit
one:
  %at = getelementptr i64, ptr %x, i64 %i
  %old = load i64, ptr %at
  %new = add i64 %old, 1
  store i64 %new, ptr %at
  %now = icmp eq i64 %i, %strike
  br i1 %now, label %signal, label %done
signal:
  %r = call i32 %kill(i32 %pid32, i32 10)
  br label %done
done:
  %i1 = add i64 %i, 1
  br label %next
exit:
  ret void
}
"""
"""Adds 1 to every element of args[1], and sends SIGUSR1 at unit args[2]."""

ASKING = """
define void @ask(ptr %args, i64 %begin, i64 %end, ptr %scratch, ptr %run) {
entry:
  %x_at = getelementptr i64, ptr %args, i64 1
  %x = load ptr, ptr %x_at
  %kill_at = getelementptr i64, ptr %args, i64 3
  %kill = load ptr, ptr %kill_at
  %pid_at = getelementptr i64, ptr %args, i64 4
  %pid = load i64, ptr %pid_at
  %pid32 = trunc i64 %pid to i32
  %turns_at = getelementptr i64, ptr %args, i64 5
  %turns = load i64, ptr %turns_at
  %strike_at = getelementptr i64, ptr %args, i64 2
  %strike = load i64, ptr %strike_at
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %go_on ]
  %more = icmp slt i64 %i, %turns
  br i1 %more, label %one, label %exit
one:
  %now = icmp eq i64 %i, %strike
  br i1 %now, label %signal, label %look
signal:
  store i64 -1, ptr %strike_at
  %r = call i32 %kill(i32 %pid32, i32 2)
  br label %look
look:
  %function_at = getelementptr i64, ptr %run, i64 LOOK
  %function = load ptr, ptr %function_at
  %stop = call i1 %function(ptr %run)
  br i1 %stop, label %exit, label %go_on
go_on:
  %i1 = add i64 %i, 1
  store i64 %i1, ptr %x
  br label %next
exit:
  ret void
}
"""
"""One long unit: args[5] turns, of which it keeps count at args[1]; looks for Ctrl-C in each, and sends it at turn
args[2], the first time."""

LONG = """
define void @long(ptr %args, i64 %begin, i64 %end, ptr %scratch, ptr %run) {
entry:
  %x_at = getelementptr i64, ptr %args, i64 1
  %x = load ptr, ptr %x_at
  %main_at = getelementptr i64, ptr %args, i64 2
  %main = load i64, ptr %main_at
  %kill_at = getelementptr i64, ptr %args, i64 3
  %kill = load ptr, ptr %kill_at
  %pid_at = getelementptr i64, ptr %args, i64 4
  %pid = load i64, ptr %pid_at
  %pid32 = trunc i64 %pid to i32
  %turns_at = getelementptr i64, ptr %args, i64 5
  %turns = load i64, ptr %turns_at
  %self_at = getelementptr i64, ptr %args, i64 6
  %who = load ptr, ptr %self_at
  %self = call i64 %who()
  %mine = icmp eq i64 %self, %main
  br i1 %mine, label %first, label %signal
first:
  %is_first = icmp eq i64 %begin, 0
  br i1 %is_first, label %exit, label %wait
wait:
  %i = phi i64 [ 0, %first ], [ %i1, %wait ]
  %i1 = add i64 %i, 1
  %there = load volatile i64, ptr %x
  %begun = icmp ne i64 %there, 0
  %late = icmp sge i64 %i1, %turns
  %enough = or i1 %begun, %late
  br i1 %enough, label %exit, label %wait
signal:
  store volatile i64 1, ptr %x
  %r = call i32 %kill(i32 %pid32, i32 2)
  br label %ask
ask:
  %j = phi i64 [ 0, %signal ], [ %j1, %go_on ]
  %j1 = add i64 %j, 1
  %function_at = getelementptr i64, ptr %run, i64 LOOK
  %function = load ptr, ptr %function_at
  %stop = call i1 %function(ptr %run)
  br i1 %stop, label %stopped, label %go_on
go_on:
  %over = icmp sge i64 %j1, %turns
  br i1 %over, label %whole, label %ask
stopped:
  store volatile i64 2, ptr %x
  br label %exit
whole:
  store volatile i64 3, ptr %x
  br label %exit
exit:
  ret void
}
"""
"""Units that take long on threads other than the main one, which waits until one has begun: it sends Ctrl-C, and leaves
2 at args[1] if it was stopped, 3 if it came to its end."""

TEXTS = {
    "add_one": ADDING,
    "ask": ASKING.replace("LOOK", str(threads.RUN["look"])),
    "long": LONG.replace("LOOK", str(threads.RUN["look"])),
}
KILL = ctypes.cast(ctypes.CDLL(None).kill, ctypes.c_void_p).value or 0


def native(name: str) -> Code:
    return engine.load([engine.Source(f"test_interrupts:{name}", name, lambda: TEXTS[name])])[0]


class Struck(BaseException):
    """What a signal's handler raises."""


@contextmanager
def handled(handler: Callable[..., Any], number: int = signal.SIGUSR1) -> Iterator[None]:
    """A signal goes to this handler, and runs pause at every piece."""
    before = signal.signal(number, handler)
    try:
        with threads.patience(0):
            yield
    finally:
        signal.signal(number, before)


def strike(*_: Any) -> None:
    raise Struck


@pytest.fixture(params=[1, 2, 3])
def any_team(request: pytest.FixtureRequest, team: Callable[[int], None]) -> int:
    team(request.param)
    return int(request.param)


def adding(*strikes: int, extent: int = 500, commit: int = 0, x: int = 1) -> Program:
    """A program that adds 1 to all elements of its operand once for each number, and sends a signal at unit so much."""
    words: list[int] = []
    commands = []
    relocations = []
    for at in strikes:
        commands.append(Command(CommandKind.KERNEL, native("add_one"), len(words), 1))
        relocations.append(Reloc(len(words) + 1, x))
        words += [extent, 0, at, KILL, os.getpid()]
    return Program(commands, words, relocations, 0, 1, commit=commit)


def run(program: Program, *arrays: np.ndarray, progress: Progress | None = None) -> None:
    program.run([x.ctypes.data for x in arrays], progress)


# ---- runs that may be given up ----


def test_a_run_stops_between_two_pieces(any_team: int) -> None:
    x = np.zeros(500, np.int64)
    with handled(strike), pytest.raises(Struck):
        run(adding(100), x)
    assert (x[:100] == 1).all()
    assert set(x) <= {0, 1}
    assert any_team > 1 or x.sum() == 101  # other threads may have done the rest before the first looked at the clock


def test_a_run_of_many_commands_stops_between_two_of_them() -> None:
    """Of which none is worth cutting into pieces."""
    x = np.zeros(1, np.int64)
    with handled(strike), pytest.raises(Struck):
        run(adding(*[-1] * 40, 0, *[-1] * 200, extent=1), x)
    assert 40 < x[0] <= 40 + 32


def test_handlers_that_raise_nothing_change_nothing(any_team: int) -> None:
    calls: list[int] = []
    x = np.zeros(500, np.int64)
    with handled(lambda *_: calls.append(1)):
        run(adding(100, -1, 300), x)
    assert (x == 3).all()
    assert 1 <= len(calls) <= 2


def test_patience_is_for_the_main_thread(any_team: int) -> None:
    """Others get no signals, and are not stopped; the signal is there for the main thread."""
    x = np.zeros(500, np.int64)
    errors: list[BaseException] = []

    done = threading.Event()

    def work() -> None:
        try:
            run(adding(100, -1), x)
        except BaseException as error:
            errors.append(error)
        done.set()

    def wait() -> None:
        threading.Thread(target=work).start()
        done.wait(30)
        time.sleep(5)

    with handled(strike), pytest.raises(Struck):
        wait()
    assert done.wait(30)
    assert errors == []
    assert (x == 2).all()


# ---- runs that overwrite something ----


def test_a_run_that_has_overwritten_something_can_be_carried_on(any_team: int) -> None:
    for at in (0, 1, 7, 250, 498, 499):
        x, progress = np.zeros(500, np.int64), Progress()
        with handled(strike), pytest.raises(Struck):
            run(adding(at, -1), x, progress=progress)
        assert not progress.finished
        assert progress.paused
        assert (x[: at + 1] >= 1).all()
        assert (x < 2).any()
        progress.hurry()
        assert (x == 2).all()
        assert progress.finished
        assert not progress.paused


def test_a_run_that_is_interrupted_again_and_again(any_team: int) -> None:
    x, progress = np.zeros(500, np.int64), Progress()
    with handled(strike), pytest.raises(Struck):
        run(adding(10, 20, 490, 0, -1), x, progress=progress)
    struck = 1
    while not progress.finished:
        try:
            with handled(strike):
                progress.hurry()
        except Struck:
            struck += 1
    assert struck >= 3
    assert (x == 5).all()


def test_a_run_may_be_given_up_until_it_overwrites_something(any_team: int) -> None:
    x, y = np.zeros(500, np.int64), np.zeros(500, np.int64)
    first, second = adding(5, 480), adding(-1, x=2)
    words = [*first._args, *second._args]
    moved = [second._commands[0]._replace(first_arg_word=10)]
    relocations = [*first._relocs, Reloc(11, 2)]
    program = Program([*first._commands, *moved], words, relocations, 0, 2, commit=2)
    progress = Progress()
    with handled(strike), pytest.raises(Struck):
        run(program, x, y, progress=progress)
    assert not progress.paused
    assert not progress.finished
    assert (y == 0).all()


def test_a_handler_that_needs_the_results(any_team: int) -> None:
    """It finds the run between two pieces, and carries it to its end."""
    x, progress = np.zeros(500, np.int64), Progress()
    seen: list[int] = []

    def look(*_: Any) -> None:
        progress.hurry()
        seen.append(int(x.sum()))

    with handled(look):
        run(adding(100, -1), x, progress=progress)
    assert seen == [1000]
    assert (x == 2).all()
    assert progress.finished


def test_a_handler_that_needs_the_results_and_raises(any_team: int) -> None:
    x, progress = np.zeros(500, np.int64), Progress()

    def look(*_: Any) -> None:
        progress.hurry()
        raise Struck

    with handled(look), pytest.raises(Struck):
        run(adding(100, -1), x, progress=progress)
    assert (x == 2).all()
    assert progress.finished
    assert not progress.paused


def test_a_handler_that_is_interrupted_while_it_needs_the_results(any_team: int) -> None:
    """It has carried the run on, though not to its end: that goes on from there."""
    x, progress = np.zeros(500, np.int64), Progress()
    depth: list[int] = []

    def look(*_: Any) -> None:
        depth.append(1)
        if len(depth) == 2:
            raise Struck
        try:
            progress.hurry()
        except Struck:
            depth.append(0)

    with handled(look):
        run(adding(100, 3, 400, -1), x, progress=progress)
    assert depth[:3] == [1, 1, 0]
    assert (x == 4).all()
    assert progress.finished


def test_a_handler_before_anything_is_overwritten_calls_the_run_off(team: Callable[[int], None]) -> None:
    team(1)
    x, progress = np.zeros(500, np.int64), Progress()
    with handled(lambda *_: progress.hurry()), pytest.raises(Cancelled):
        run(adding(100, -1, commit=1), x, progress=progress)
    assert not progress.finished
    assert set(x) <= {0, 1}


def test_another_thread_carries_a_run_on(any_team: int) -> None:
    x, progress = np.zeros(500, np.int64), Progress()
    with handled(strike), pytest.raises(Struck):
        run(adding(250, -1), x, progress=progress)
    others = [threading.Thread(target=progress.hurry) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join(30)
    assert (x == 2).all()


def test_memory_of_a_run_that_nobody_carries_on() -> None:
    active = get_active_memory()
    x, progress = np.zeros(500, np.int64), Progress()
    with handled(strike), pytest.raises(Struck):
        run(adding(250, -1), x, progress=progress)
    assert get_active_memory() > active
    del progress
    gc.collect()
    assert get_active_memory() == active


# ---- in the middle of a unit ----


def asking(turns: int, at: int, back: int = 0, units: int = 1) -> Program:
    words = [units, 0, at, KILL, os.getpid(), turns]
    return Program([Command(CommandKind.KERNEL, native("ask"), 0, 0, 0, back)], words, [Reloc(1, 1)], 0, 1)


def test_a_long_unit_stops_in_the_middle() -> None:
    x = np.zeros(1, np.int64)
    with handled(strike, signal.SIGINT), pytest.raises(Struck):
        run(asking(1000, 300), x)
    assert x[0] == 300


def test_a_long_unit_of_another_thread_stops_in_the_middle(team: Callable[[int], None]) -> None:
    """The thread that gets signals has no work left, and waits."""
    team(2)
    x = np.zeros(1, np.int64)
    own = ctypes.cast(ctypes.CDLL(None).pthread_self, ctypes.c_void_p).value or 0
    words = [1 << 20, 0, threading.get_ident(), KILL, os.getpid(), 1 << 28, own]
    program = Program([Command(CommandKind.KERNEL, native("long"), 0, 1, 0, 0)], words, [Reloc(1, 1)], 0, 1)
    with handled(strike, signal.SIGINT), pytest.raises(Struck):
        run(program, x)
    assert x[0] == 2


def test_ctrl_c_of_python_stops_a_long_unit() -> None:
    x = np.zeros(1, np.int64)
    with handled(signal.default_int_handler, signal.SIGINT), pytest.raises(KeyboardInterrupt):
        run(asking(1000, 300), x)
    assert x[0] == 300


def test_a_long_unit_that_goes_on_begins_anew() -> None:
    x, progress = np.zeros(1, np.int64), Progress()
    with handled(strike, signal.SIGINT), pytest.raises(Struck):
        run(asking(1000, 300), x, progress=progress)
    assert x[0] == 300
    assert progress.paused
    progress.hurry()
    assert x[0] == 1000


def test_an_operation_of_several_kernels_begins_anew_with_the_first() -> None:
    x, y, progress = np.zeros(1, np.int64), np.zeros(1, np.int64), Progress()
    add = Command(CommandKind.KERNEL, native("add_one"), 0)
    ask = Command(CommandKind.KERNEL, native("ask"), 5, 0, 0, 2)
    words = [1, 0, -1, KILL, os.getpid(), 1, 0, 300, KILL, os.getpid(), 1000]
    program = Program([add, add, add, ask], words, [Reloc(1, 1), Reloc(6, 2)], 0, 2, commit=1)
    with handled(strike, signal.SIGINT), pytest.raises(Struck):
        run(program, x, y, progress=progress)
    assert (x[0], y[0]) == (3, 300)
    assert progress.paused
    progress.hurry()
    assert (x[0], y[0]) == (5, 1000)


def test_a_handler_that_raises_nothing_in_the_middle_of_a_unit() -> None:
    """The unit begins anew, and the next Ctrl-C waits for its end."""
    x = np.zeros(1, np.int64)
    seen: list[int] = []

    def look(*_: Any) -> None:
        seen.append(int(x[0]))
        if len(seen) == 1:
            signal.raise_signal(signal.SIGINT)

    with handled(look, signal.SIGINT):
        run(asking(1000, 300), x)
    assert x[0] == 1000
    assert seen == [300, 300]


def test_a_unit_that_overwrites_what_it_reads_is_not_torn() -> None:
    x, progress = np.zeros(1, np.int64), Progress()
    with handled(strike, signal.SIGINT), pytest.raises(Struck):
        run(asking(1000, 300, back=-1), x, progress=progress)
    assert x[0] == 1000
    assert progress.finished


def test_a_handler_finds_a_unit_that_will_begin_anew() -> None:
    """It needs the results, and goes on with the run from there."""
    x, progress = np.zeros(1, np.int64), Progress()
    seen: list[int] = []

    def look(*_: Any) -> None:
        progress.hurry()
        seen.append(int(x[0]))

    with handled(look, signal.SIGINT):
        run(asking(1000, 300), x, progress=progress)
    assert seen == [1000]
    assert progress.finished


# ---- what handlers may do ----


def test_a_handler_may_evaluate(any_team: int) -> None:
    seen: list[float] = []
    y = mx.array(np.arange(4096, dtype=np.float32))
    mx.eval(y)

    def look(*_: Any) -> None:
        seen.append(float((mx.sin(y) * 0 + y).sum().item()))

    x = np.zeros(500, np.int64)
    with handled(look):
        run(adding(100, -1), x, progress=Progress())
        run(adding(100, -1), x)
    assert (x == 4).all()
    assert seen == [4096 * 4095 / 2] * 2


def test_a_handler_may_change_the_number_of_threads(team: Callable[[int], None]) -> None:
    team(3)
    x = np.zeros(500, np.int64)
    with handled(lambda *_: threads.set_threads(2)):
        run(adding(100, -1), x)
    assert (x == 2).all()
    assert threads.get_threads() == 2
    run(adding(-1), x)
    assert (x == 3).all()


def forking_handler() -> None:
    """A signal's handler forks in the midst of a run, which goes on in the child as in the parent."""
    for size, progress in ((1, None), (3, None), (3, Progress())):
        threads.set_threads(size)
        x = np.zeros(500, np.int64)
        parent, children = os.getpid(), []

        def fork(*_: Any, children: list[int] = children) -> None:
            children.append(os.fork())

        with handled(fork):
            run(adding(200, -1), x, progress=progress)
        right = (x == 2).all()
        if os.getpid() != parent:
            os._exit(0 if right else 1)
        assert right
        print(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))


def test_a_handler_may_fork() -> None:
    assert run_alone(__file__, "forking_handler").split() == ["0", "0", "0"]


# ---- arrays ----


MAYBE_LATE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A signal may strike in a finalizer, where Python has nobody to raise an exception in."""


@contextmanager
def timer(seconds: float, at_pauses: bool = False) -> Iterator[None]:
    """Raises Struck after some time, once: anywhere, or where a run that overwrites something pauses."""
    armed = True

    def ring(_: int, frame: Any) -> None:
        nonlocal armed
        if at_pauses and frame.f_code is not Progress._advance.__code__:
            signal.setitimer(signal.ITIMER_REAL, 2e-5)
        elif armed:
            armed = False
            raise Struck

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        with threads.patience(0):
            yield
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


LARGE = np.linspace(0.1, 0.9, 1 << 20, dtype=np.float32)
SQUARE = np.linspace(-1, 1, 300 * 300, dtype=np.float32).reshape(300, 300)


def in_place(x: array) -> array:
    """Several steps over the memory of the first operand, and a product behind them."""
    x = mx.sin(x + 1) * 0.5
    return x + (mx.softmax(x.reshape(1024, 1024) @ x.reshape(1024, 1024)[:, :8]).sum()) * 0.25


WORK: dict[str, Callable[[], array]] = {
    "elementwise": lambda: mx.tan(mx.sin(mx.array(LARGE)) * 0.3),
    "donated": lambda: in_place(mx.array(LARGE)),
    "product": lambda: mx.array(SQUARE) @ mx.array(SQUARE),
    "reductions": lambda: mx.softmax(mx.array(LARGE).reshape(64, -1), axis=-1).sum(axis=0),
    "sort": lambda: mx.sort(mx.array(LARGE[::-1].copy())[: 1 << 17]),
    "scan": lambda: mx.cumsum(mx.array(LARGE) * 0.01),
    "gather": lambda: mx.take(mx.array(LARGE), mx.array(np.arange(0, 1 << 20, 3, dtype=np.int32))),
    "updates": lambda: updates(mx.array(LARGE)),
    "loop": lambda: mx.fori_loop(0, 50, lambda i, c: mx.sin(c), mx.array(LARGE[:4096])),
}


def updates(x: array) -> array:
    x = x * 2
    mx.eval(x)
    x[5 : 1 << 19] = mx.array(LARGE[: (1 << 19) - 5]) + 1
    return x


@MAYBE_LATE
@pytest.mark.parametrize("name", WORK)
def test_what_is_interrupted_can_be_computed_later(name: str, team: Callable[[int], None]) -> None:
    make = WORK[name]
    expected = np.array(make())
    struck = 0
    for trial in range(24):
        team(1 + trial % 3)
        x = make()
        try:
            with timer(1e-4 * (1 + trial % 12) ** 2):
                mx.eval(x)
        except Struck:
            struck += 1
        np.testing.assert_array_equal(np.array(x), expected)
    assert struck


@MAYBE_LATE
def test_threads_wait_for_what_is_interrupted_and_get_it(team: Callable[[int], None]) -> None:
    """Each evaluates the same; the main thread is interrupted in the midst of it."""
    expected = np.array(in_place(mx.array(LARGE)))
    for trial in range(10):
        team(1 + trial % 3)
        x = in_place(mx.array(LARGE))
        found: list[np.ndarray] = []
        begun: list[bool] = []  # no lock: an exception in the midst of Python's own locks leaves them broken

        def read(x: array = x, found: list[np.ndarray] = found, begun: list[bool] = begun) -> None:
            while not begun:
                time.sleep(0)
            found.append(np.array(x))

        others = [threading.Thread(target=read) for _ in range(2)]
        for other in others:
            other.start()
        try:
            with timer(5e-4 * (1 + trial)):
                begun.append(True)
                mx.eval(x)
        except Struck:
            pass
        begun.append(True)
        for other in others:
            other.join(30)
        for answer in [*found, np.array(x)]:
            np.testing.assert_array_equal(answer, expected)


@MAYBE_LATE
def test_compiled_state_that_is_updated_in_place() -> None:
    """An interrupted call has happened or not: its changes are made, though their values may come later."""
    start = np.linspace(0.1, 0.2, 1 << 20, dtype=np.float32)
    state = {"x": mx.array(start), "n": mx.array(0)}

    @mx.compile
    def step() -> array:
        x = mx.sin(state["x"] * 1.5) + 0.1
        x = x * 0.9 + mx.softmax(x.reshape(1024, -1), axis=-1).reshape(-1)
        state["x"], state["n"] = x, state["n"] + 1
        return x.sum()

    def after(steps: int) -> np.ndarray:
        known = {"x": mx.array(start)}
        for _ in range(steps):
            x = mx.sin(known["x"] * 1.5) + 0.1
            known["x"] = x * 0.9 + mx.softmax(x.reshape(1024, -1), axis=-1).reshape(-1)
        return np.array(known["x"])

    step()
    struck = happened = 0
    for trial in range(30):
        before = state["n"].item()
        try:
            with timer(1e-4 * (1 + trial)):
                step()
        except Struck:
            struck += 1
            happened += state["n"].item() - before
            assert state["n"].item() - before in (0, 1)
        else:
            assert state["n"].item() == before + 1
    assert struck
    np.testing.assert_array_equal(np.array(state["x"]), after(int(state["n"].item())))


def paused_and_forked() -> None:
    """A child carries on what its parent was interrupted in; so does the parent."""
    expected = np.array(in_place(mx.array(LARGE)))
    struck = 0
    for trial in range(40):
        x = in_place(mx.array(LARGE))
        try:
            with timer(3e-4 * (1 + trial % 20)):
                mx.eval(x)
            continue
        except Struck:
            struck += 1
        pid = os.fork()
        if pid == 0:
            os._exit(0 if (np.array(x) == expected).all() else 1)
        assert os.waitpid(pid, 0)[1] == 0
        np.testing.assert_array_equal(np.array(x), expected)
        if struck == 6:
            break
    assert struck
    print("fine")


def test_a_child_carries_on_what_was_interrupted() -> None:
    assert run_alone(__file__, "paused_and_forked", WEFT_THREADS="2") == "fine\n"


@MAYBE_LATE
def test_memory_of_arrays_that_nobody_computes_after_all(team: Callable[[int], None]) -> None:
    team(1)
    mx.eval(in_place(mx.array(LARGE)))
    gc.collect()
    active = get_active_memory()
    struck = 0
    for trial in range(12):
        x = in_place(mx.array(LARGE))
        try:
            with timer(1e-3 * (1 + trial % 6), at_pauses=True):
                mx.eval(x)
        except Struck:
            struck += 1
        del x
        gc.collect()
        assert get_active_memory() == active
    assert struck


# ---- compiling ----


def test_ctrl_c_waits_for_one_kernel_and_not_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "cache_dir", "")
    monkeypatch.setattr(config, "threads", 1)
    compiled: list[str] = []
    real = engine._compile_one

    def slow(target: Any, source: Any, text: str) -> bytes:
        compiled.append(source.key)
        if len(compiled) == 2:
            os.kill(os.getpid(), signal.SIGUSR1)
        if len(compiled) >= 2:
            time.sleep(0.1)  # the main thread is told
        return real(target, source, text)

    monkeypatch.setattr(engine, "_compile_one", slow)
    text = "define void @k() {\n  ret void\n}\n"
    sources = [engine.Source(f"test interrupts {os.getpid()} {i}", "k", lambda: text) for i in range(20)]
    with handled(strike), pytest.raises(Struck):
        engine.load(sources)
    assert len(compiled) < 20
    assert len(engine.load(sources)) == 20


def test_failures_of_calls_are_as_before() -> None:
    text = "define i64 @fail(ptr %block, ptr %args, ptr %scratch) {\n  ret i64 7\n}\n"
    (code,) = engine.load([engine.Source("test_interrupts:fail", "fail", lambda: text)])
    program = Program([Command(CommandKind.CALL, code, 0)], [0], [], 0)
    progress = Progress()
    with pytest.raises(ProgramError, match="status 7"):
        program.run([], progress)
    assert not progress.finished
    assert not progress.paused
    assert threads.RUN_BYTES % 64 == 0
    assert len(threads.RUN) * 8 <= threads.RUN_BYTES


# ---- routines that look for no signals ----


def test_ctrl_c_does_not_wait_for_foreign_code() -> None:
    go, end = threading.Event(), threading.Event()

    def routine() -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        go.wait(60)
        end.set()

    with handled(strike), pytest.raises(Struck):
        beside.interruptible(routine)
    assert not end.is_set()
    go.set()
    assert end.wait(60)


def test_what_foreign_code_gives_and_raises() -> None:
    assert beside.interruptible(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        beside.interruptible(lambda: 1 / 0)
    other = []
    thread = threading.Thread(target=lambda: other.append(beside.interruptible(threading.get_ident)))
    thread.start()
    thread.join()
    assert other == [thread.ident]  # handlers never run there, so it may as well do the work itself


@pytest.mark.parametrize(("fun", "shape"), [(mx.linalg.inv, (320, 320)), (mx.fft.fft, (1 << 19,))])
def test_what_cannot_be_stopped_is_left_behind(
    fun: Callable[[array], array], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = mx.array(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    expected = np.array(fun(x))
    real, go, ends = Program.run, threading.Event(), []

    def run(self: Program, *args: Any) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)
        go.wait(60)
        real(self, *args)
        ends.append(threading.get_ident())

    y = fun(x)
    with handled(strike), monkeypatch.context() as patch:
        patch.setattr(Program, "run", run)
        with pytest.raises(Struck):
            mx.eval(y)
        assert not ends
    np.testing.assert_array_equal(np.array(y), expected)  # while the other one is still at it
    go.set()
    while not ends:
        time.sleep(0.001)
    assert ends != [threading.get_ident()]
    np.testing.assert_array_equal(np.array(y), expected)


def test_a_program_that_was_brief_and_is_not_lets_go_of_the_lock() -> None:
    """What is brief keeps the interpreter's lock. How long a user's kernel takes may depend on its data: a thread that
    waits for the lock sends Ctrl-C."""
    spin = mx.fast.metal_kernel(
        name="spin_for_so_many_steps",
        input_names=["n"],
        output_names=["out"],
        source="""
            float s = 0.0f;
            for (int i = 0; i < n[0]; i++) { for (int j = 0; j < n[0]; j++) { s = s * 0.5f + 1.0f; } }
            out[thread_position_in_grid.x] = s;
        """,
    )

    def run(steps: int) -> mx.array:
        (made,) = spin(
            inputs=[mx.array([steps], mx.int32)], grid=(1, 1, 1), threadgroup=(1, 1, 1), output_shapes=[(1,)],
            output_dtypes=[mx.float32],
        )  # fmt: skip
        return made  # type: ignore[no-any-return]

    for _ in range(4):
        mx.eval(run(2))
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        mx.eval(run(400_000))
    timer.join()
    for _ in range(3):
        assert run(2).item() == 1.875
