"""Memory that is used again: results over operands that nobody else holds, and slice updates in place. What others can
still see stays what it was, whoever they are: a second handle, a view, NumPy, a pending array, another thread."""

from __future__ import annotations

import ctypes
import gc
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests.contract import settings as weft_settings
from tests.processes import in_threads
from weft import evaluate
from weft.array import array
from weft.runtime.buffer import get_active_memory, get_peak_memory, reset_peak_memory
from weft.runtime.data import Taken
from weft.runtime.program import ProgramError, Progress
from weft.targets.copies import COPIES

N = evaluate.overwriting.LEAST_DONATED // 4
"""Elements of a float32 array that is worth donating."""


@pytest.fixture(autouse=True)
def fresh_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.programs, "PROGRAMS", {})


def large(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, N).astype(np.float32)


def at(x: array) -> int:
    """Where the elements of an array lie."""
    mx.eval(x)
    address: int = x._node.value.address
    return address


def same(x: array, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(np.array(x), expected)


def added(x: np.ndarray, count: int) -> np.ndarray:
    """x + 1 + 1 …, rounded each time."""
    for _ in range(count):
        x = x + np.float32(1)
    return x


Step = Callable[[Any], Any]
STEPS: dict[str, tuple[Step, Step]] = {
    "a single operation": (lambda x: x + 1, lambda x: x + np.float32(1)),
    "an operation on one operand twice": (lambda x: x * x, lambda x: x * x),
    "a fused chain": (lambda x: (x + 1) * 0.5 + x, lambda x: (x + np.float32(1)) * np.float32(0.5) + x),
    "a second operand": (lambda x: x + mx.ones((N,)), lambda x: x + np.float32(1)),
}


# ---- who may be overwritten ----


@pytest.mark.parametrize("name", STEPS)
def test_the_last_handle_gives_its_memory(name: str) -> None:
    step, numpy = STEPS[name]
    expected = large()
    x = mx.array(expected)
    place = at(x)
    for _ in range(5):
        x = step(x)
        expected = numpy(expected)
        assert at(x) == place
    same(x, expected)


def test_a_loop_needs_no_more_memory_than_its_array() -> None:
    x = mx.array(large())
    mx.eval(x)
    gc.collect()
    before = get_active_memory()
    reset_peak_memory()
    for _ in range(5):
        x = x + 1
        mx.eval(x)
    assert get_peak_memory() - before < x.nbytes // 4
    same(x, added(large(), 5))


@pytest.mark.parametrize("window", [3, 7, 1024])
def test_a_deep_graph_needs_no_more_memory_than_its_array(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed in pieces, each in the place of the one before."""
    monkeypatch.setattr(evaluate.reach, "WINDOW", window)
    depth = 1500 if window == 1024 else 40
    x = mx.array(large())
    place = at(x)
    gc.collect()
    before = get_active_memory()
    for _ in range(depth):
        x = x + 1
    reset_peak_memory()
    assert at(x) == place
    assert get_peak_memory() - before < x.nbytes // 4
    same(x, added(large(), depth))


@pytest.mark.parametrize("window", [2, 5])
def test_what_is_held_in_the_middle_of_a_deep_graph_stays(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.reach, "WINDOW", window)
    first = mx.array(large())
    x, kept, late = first + 0, [], []
    for i in range(30):
        x = x + 1
        if i % 7 == 3:
            kept.append((i, x))
        if i % 11 == 5:
            late.append((i, x * 2))  # not asked for now
    mx.eval(x)
    same(x, added(large(), 30))
    same(first, large())
    for i, y in kept:
        same(y, added(large(), i + 1))
    for i, y in late:
        same(y, added(large(), i + 1) * 2)


def test_in_place_operators_are_in_place() -> None:
    x = mx.array(large())
    place = at(x)
    x += 1
    x *= 2
    assert at(x) == place
    same(x, (large() + np.float32(1)) * 2)


OPERATIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "one operand": (mx.negative, np.negative, 1),
    "two": (mx.subtract, np.subtract, 2),
    "three, a choice": (mx.where, np.where, 3),
    "three, one of them a number": (lambda x, y: mx.where(x, y, 2.0), lambda x, y: np.where(x, y, np.float32(2)), 2),
    "three that are joined": (lambda *xs: mx.concatenate(xs), lambda *xs: np.concatenate(xs), 3),
    "four that are joined": (lambda *xs: mx.concatenate(xs), lambda *xs: np.concatenate(xs), 4),
    "five that are joined": (lambda *xs: mx.concatenate(xs), lambda *xs: np.concatenate(xs), 5),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_single_operation_on_operands_that_nobody_else_holds(name: str) -> None:
    """As many as the short way takes, and more; each kept in turn."""
    operation, numpy, count = OPERATIONS[name]
    values = [large(seed) for seed in range(count)]
    if operation is mx.where or "number" in name:
        values[0] = values[0] > 1
    expected = numpy(*values)
    for held in (None, *range(count)):
        operands = [mx.array(x) for x in values]
        mx.eval(operands)
        kept = [] if held is None else [operands[held]]
        found = operation(*operands)
        del operands
        mx.eval(found)
        same(found, expected)
        for x in kept:
            assert held is not None
            same(x, values[held])


def test_small_arrays_are_not_asked_for_their_holders() -> None:
    x = mx.array(np.ones(8, np.float32))
    x = x + 1
    mx.eval(x)
    assert not any(recipe.large or recipe.spent for recipe in evaluate.programs.PROGRAMS.values())


HOLDERS: dict[str, Callable[[array], Any]] = {
    "another name": lambda x: x,
    "another handle": lambda x: x.__copy__(),
    "an array made of it": lambda x: mx.array(x),
    "a list": lambda x: [x],
    "a view": lambda x: x[3:9],
    "an evaluated view": lambda x: evaluated(x[3:9]),
    "a view with strides": lambda x: evaluated(x[::-2]),
    "a reshaped view": lambda x: evaluated(x.reshape(2, -1)),
    "a transposed view": lambda x: evaluated(x.reshape(2, -1).T),
    "a pending array": lambda x: mx.exp(x),
    "a pending array of a pending array": lambda x: mx.exp(mx.sin(x)) + 1,
    "NumPy": lambda x: np.array(x, copy=False),
    "a view of NumPy's": lambda x: np.array(x, copy=False)[5:],
    "the buffer protocol": lambda x: memoryview(x),
    "DLPack": lambda x: np.from_dlpack(x),
    "a capsule": lambda x: x.__dlpack__(max_version=(1, 0)),
    "an iterator": lambda x: iter(x),
    "a closure": lambda x: lambda: x,
    "a node": lambda x: x._node,
    "a buffer": lambda x: x._node.value,
    "a storage": lambda x: x._node.value.storage,
}
if np.lib.NumpyVersion(np.__version__) < "2.1.0":  # its DLPack cannot say "read-only", and so gets copies
    del HOLDERS["DLPack"], HOLDERS["a capsule"]


def evaluated(x: array) -> array:
    mx.eval(x)
    return x


def contents(holder: Any) -> Any:
    """What a holder shows of the array, if it shows anything."""
    if isinstance(holder, (array, np.ndarray)):
        return np.array(holder)
    if isinstance(holder, memoryview):
        return np.asarray(holder).copy()
    if isinstance(holder, list):
        return np.array(holder[0])
    return None


@pytest.mark.parametrize("update", [False, True], ids=["x + 1", "x[2] = 7"])
@pytest.mark.parametrize("name", HOLDERS)
def test_whoever_holds_an_array_keeps_it(name: str, update: bool) -> None:
    x = mx.array(large())
    place = at(x)
    holder = HOLDERS[name](x)
    reference = HOLDERS[name](mx.array(large()))
    expected = large()
    if update:
        x = x.__copy__()  # `x[2] = 7` is seen under every name of one array
        x[2] = 7
        expected[2] = 7
    else:
        x = x + 1
        expected = added(expected, 1)
    assert at(x) != place
    same(x, expected)
    wanted, found = contents(reference), contents(holder)
    if wanted is not None:
        np.testing.assert_array_equal(found, wanted)
    del holder, wanted, found
    place = at(x)
    x = x + 1  # nobody else now
    assert at(x) == place


def test_a_pending_reader_of_what_was_computed_between() -> None:
    """Not the leaf is held but a value on the way from it, which has no value afterwards."""
    x = mx.array(large())
    t = x * 2
    u, v = t + 1, t * 3
    del x, t
    mx.eval(u)
    same(v, large() * np.float32(2) * np.float32(3))
    same(u, added(large() * np.float32(2), 1))


def test_what_was_computed_between_is_kept_if_a_handle_is() -> None:
    x = mx.array(large())
    t = mx.exp(x)
    u = t + 1
    del x
    mx.eval(u)
    assert np.array(u).tobytes() == (np.array(t) + np.float32(1)).tobytes()


def test_foreign_memory_is_never_overwritten() -> None:
    values = large()
    x = mx.array(values)  # a copy; memory of others comes by DLPack
    y = mx.from_dlpack(values) if hasattr(mx, "from_dlpack") else x
    y = y + 1
    mx.eval(y)
    np.testing.assert_array_equal(values, large())


def test_programs_know_what_they_may_overwrite() -> None:
    """The set of donated leaves is part of the key: one more program, not one per call."""
    x, kept = mx.array(large()), mx.array(large(1))
    for _ in range(4):
        x = mx.sin(x * 0.5) + kept
        mx.eval(x)
    programs = len(evaluate.programs.PROGRAMS)
    for _ in range(4):
        x = mx.sin(x * 0.5) + kept
        mx.eval(x)
        y = mx.sin(kept * 0.5) + x
        mx.eval(y)
    assert len(evaluate.programs.PROGRAMS) <= programs + 2
    same(kept, large(1))


# ---- transforms ----


def test_evaluation_inside_grad_overwrites_nothing() -> None:
    def loss(x: array) -> array:
        y = x * 2
        z = mx.exp(y)
        assert float(mx.sum(z).item()) > 0  # evaluates, and the trace goes on needing y
        return mx.sum(z * y)

    x = mx.array(large())
    gradient = mx.grad(loss)(x + 0)
    y = large().astype(np.float64) * 2
    np.testing.assert_allclose(np.array(gradient), 2 * np.exp(y) * (y + 1), rtol=1e-5)


@pytest.mark.parametrize("more", [0, 1])
def test_what_a_derivative_will_read_is_not_overwritten(more: int) -> None:
    """Nobody but the product holds the factor, and the product has been evaluated: its derivative needs the factor."""

    def loss(x: array) -> array:
        product = mx.array(large(1)) * x
        for _ in range(more):
            product = product + 1
        mx.eval(product)
        return mx.sum(product)

    np.testing.assert_array_equal(np.array(mx.grad(loss)(mx.array(large()))), large(1))


def test_arguments_of_compiled_functions_stay() -> None:
    step = mx.compile(lambda p, g: p - 0.5 * g)
    p, g = mx.array(large()), mx.array(large(1))
    first = p
    for _ in range(3):
        p = step(p, g)
    expected = large()
    for _ in range(3):
        expected = expected - np.float32(0.5) * large(1)
    same(p, expected)
    same(first, large())


def test_captured_arrays_of_compiled_functions_stay() -> None:
    table = mx.array(large())
    f = mx.compile(lambda x: x + table)
    same(f(mx.array(large(1))), large(1) + large())
    table = table + 1
    mx.eval(table)
    same(f(mx.array(large(1))), large(1) + added(large(), 1))


# ---- failures ----


def after_finishing(self: Progress, execute: Any, arguments: Any) -> int:
    """Ctrl-C during the run: raised the moment that it is over."""
    FOLLOW(self, execute, arguments)
    raise KeyboardInterrupt


def before_starting(self: Progress, execute: Any, arguments: Any) -> int:
    raise KeyboardInterrupt


def out_of_memory(self: Progress, execute: Any, arguments: Any) -> int:
    raise MemoryError


def failing(self: Progress, execute: Any, arguments: Any) -> int:
    """As a program whose first command fails."""
    ctypes.c_int64.from_address(arguments[1]).value = 0
    self._statuses.append(7)
    return 7


FOLLOW = Progress.follow


def changed(x: array, update: bool) -> tuple[array, np.ndarray]:
    expected = large()
    if not update:
        return x + 1, added(expected, 1)
    x[5:9] = 3
    expected[5:9] = 3
    return x, expected


@pytest.mark.parametrize("update", [False, True], ids=["x + 1", "x[5:9] = 3"])
@pytest.mark.parametrize("interrupted", [after_finishing, before_starting, out_of_memory])
def test_an_interrupted_evaluation_loses_nothing(
    interrupted: Any, update: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, expected = changed(mx.array(large()), update)
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "follow", interrupted)
        with pytest.raises((KeyboardInterrupt, MemoryError)):
            mx.eval(x)
    assert (x._node.value is not None) == (interrupted is after_finishing)
    same(x, expected)
    y = x + 1
    same(y, added(expected, 1))


@pytest.mark.parametrize("update", [False, True], ids=["x + 1", "x[5:9] = 3"])
def test_a_failed_evaluation_loses_nothing(update: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs overwrite nothing before the last step that can fail."""
    x, expected = changed(mx.array(large()), update)
    y = x * 2
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "follow", failing)
        with pytest.raises(ProgramError):
            mx.eval(x)
    same(x, expected)
    same(y, expected * np.float32(2))


class Struck(BaseException):
    """What the timer raises."""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_signals_never_show_half_an_answer() -> None:
    """A timer interrupts evaluations at all moments; afterwards values are right, or refused. In a finalizer Python
    reports what a handler raises, and goes on."""
    start = np.linspace(0.1, 0.2, 1 << 20, dtype=np.float32)
    armed = False

    def strike(*_: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Struck

    def chain(x: Any) -> Any:
        for _ in range(4):
            x = mx.sin(x) + 0.25
        return x

    right = np.array(chain(mx.array(start)))
    before = signal.signal(signal.SIGALRM, strike)
    struck = kept = 0
    try:
        for trial in range(60):
            x = chain(mx.array(start))
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, 2e-4 * (1 + trial % 20))
                mx.eval(x)
                time.sleep(0.004)
                armed = False
            except Struck:
                struck += 1
            signal.setitimer(signal.ITIMER_REAL, 0)
            try:
                found = np.array(x)
            except RuntimeError:
                continue
            kept += 1
            assert found.tobytes() == right.tobytes()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert struck
    assert kept > 50, "an interrupted evaluation should lose its operands hardly ever"


# ---- threads ----


def test_threads_that_compute_the_same_wait_for_each_other() -> None:
    for update in (False, True):
        for _ in range(12):
            x, expected = changed(mx.array(large()), update)
            barrier = threading.Barrier(4)

            def work(me: int, x: array = x, expected: np.ndarray = expected, barrier: Any = barrier) -> None:
                barrier.wait(30)
                same(x if me % 2 else x * 1, expected)

            in_threads(4, work)


def test_threads_with_arrays_of_their_own_and_a_shared_one() -> None:
    shared = mx.array(large())
    mx.eval(shared)

    def work(me: int) -> None:
        x, expected = shared + me, large() + np.float32(me)
        for i in range(20):
            x = x * 0.5 + shared
            expected = expected * np.float32(0.5) + large()
            x[i : i + 3] = me
            expected[i : i + 3] = me
            mx.eval(x)
        same(x, expected)

    in_threads(4, work)
    same(shared, large())


def test_a_reader_on_another_thread_keeps_the_array() -> None:
    """A thread that waits with an array in its hands is a holder like any other."""
    x = mx.array(large())
    mx.eval(x)
    ready, go = threading.Event(), threading.Event()
    found: list[np.ndarray] = []

    def read(mine: array) -> None:
        ready.set()
        go.wait(30)
        found.append(np.array(mine))

    thread = threading.Thread(target=read, args=(x,))
    thread.start()
    ready.wait(30)
    x = x + 1
    mx.eval(x)
    go.set()
    thread.join(30)
    np.testing.assert_array_equal(found[0], large())


def test_asking_for_what_is_about_to_be_overwritten_on_the_same_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A finalizer or signal handler that looks at the result computes it; the evaluation that it interrupted begins
    anew, and finds it there."""
    x = mx.array(large()) + 1
    calls: list[str] = []

    def nosy(self: Progress, execute: Any, arguments: Any) -> int:
        calls.append("run")
        if len(calls) == 1:
            mx.eval(x)
            calls.append("seen")
        return FOLLOW(self, execute, arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "follow", nosy)
        mx.eval(x)
    assert calls == ["run", "seen"]
    same(x, added(large(), 1))


# ---- slice updates ----

SHAPE = (4, 256, 64)


def cache(seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def part(seed: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(4, 1, 64)).astype(np.float32)


WRITES: dict[str, tuple[Callable[[array, int, array], array], Callable[[Any, int, Any], None]]] = {}


def writes(name: str, numpy: Callable[[Any, int, Any], None]) -> Any:
    def keep(function: Callable[[array, int, array], array]) -> Any:
        WRITES[name] = (function, numpy)
        return function

    return keep


def _numpy_set(c: Any, i: int, v: Any) -> None:
    c[:, i : i + 1] = v


@writes("cache[:, i:i+1] = v", _numpy_set)
def _set(c: array, i: int, v: array) -> array:
    c[:, i : i + 1] = v
    return c


def _numpy_last(c: Any, i: int, v: Any) -> None:
    c[..., i : i + 1, :] = v * np.float32(2)


@writes("cache[..., i:i+1, :] = v * 2", _numpy_last)
def _last(c: array, i: int, v: array) -> array:
    c[..., i : i + 1, :] = v * 2
    return c


@writes("slice_update", _numpy_set)
def _slice_update(c: array, i: int, v: array) -> array:
    return mx.slice_update(c, v, mx.array([i]), (1,))


def _numpy_add(c: Any, i: int, v: Any) -> None:
    c[:, i : i + 1] += v


@writes("cache.at[:, i:i+1].add(v)", _numpy_add)
def _add(c: array, i: int, v: array) -> array:
    return c.at[:, i : i + 1].add(v)


@writes("cache[:, i:i+1] += v", _numpy_add)
def _in_place_add(c: array, i: int, v: array) -> array:
    c[:, i : i + 1] += v
    return c


def _numpy_row(c: Any, i: int, v: Any) -> None:
    c[2, i] = v[1, 0]


@writes("cache[2, i] = v[1, 0]", _numpy_row)
def _row(c: array, i: int, v: array) -> array:
    c[2, i] = v[1, 0]
    return c


def _numpy_number(c: Any, i: int, v: Any) -> None:
    c[1:3, i, ::-2] = 0.5


@writes("cache[1:3, i, ::-2] = 0.5", _numpy_number)
def _number(c: array, i: int, v: array) -> array:
    c[1:3, i, ::-2] = 0.5
    return c


@pytest.mark.parametrize("name", WRITES)
def test_updates_in_a_loop_are_in_place_and_planned_once(name: str) -> None:
    ours, numpy = WRITES[name]
    expected, v = cache(), mx.array(part())
    c = mx.array(expected)
    place = at(c)
    mx.eval(v)
    programs = copies = None
    for i in range(40):
        c = ours(c, i, v)
        assert at(c) == place
        numpy(expected, i, part())
        if i == 2:
            gc.collect()
            programs, copies = len(evaluate.programs.PROGRAMS), len(COPIES)
            before = get_active_memory()
            reset_peak_memory()
    assert len(evaluate.programs.PROGRAMS) == programs
    assert len(COPIES) == copies
    assert get_peak_memory() - before <= 16 * part().nbytes < c.nbytes // 8
    same(c, expected)


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("evaluated_first", [True, False])
def test_updates_of_what_somebody_holds_are_made_in_a_copy(name: str, evaluated_first: bool) -> None:
    ours, numpy = WRITES[name]
    expected, v = cache(), mx.array(part())
    c = mx.array(expected)
    if evaluated_first:
        mx.eval(c, v)
    for i in (3, 200):
        handle, view = c.__copy__(), c[1]
        old = expected.copy()
        c = ours(c, i, v)
        numpy(expected, i, part())
        mx.eval(c)
        same(handle, old)
        same(view, old[1])
        same(c, expected)


def test_a_decoding_step_updates_in_place_and_reads() -> None:
    """The cache is written and a part of it read in one evaluation that asks only for the answer."""
    expected, c = cache(), mx.array(cache())
    place = at(c)
    q = mx.array(part(9))
    for i in range(1, 30):
        c[:, i : i + 1] = q * i
        expected[:, i : i + 1] = part(9) * np.float32(i)
        answer = mx.sum(c[:, 0:1] * q + c[:, i : i + 1])
        mx.eval(answer)
        wanted = (expected[:, 0:1].astype(np.float64) * part(9) + expected[:, i : i + 1]).sum()
        assert abs(float(answer.item()) - wanted) < 1e-2
    assert at(c) == place
    same(c, expected)


def test_updates_that_depend_on_each_other() -> None:
    """Twenty updates, each of what the one before has written, in one evaluation."""
    expected = cache()
    c = mx.array(expected)
    place = at(c)
    for i in range(20):
        c[:, i + 1 : i + 2] = c[:, i : i + 1] * 0.5 + 1
        expected[:, i + 1] = expected[:, i] * np.float32(0.5) + 1
    assert at(c) == place
    same(c, expected)


def test_values_between_updates_are_computed_once() -> None:
    """A value that two updates need, in two stages, and nobody else."""
    expected, c = cache(), mx.array(cache())
    mx.eval(c)
    t = mx.exp(mx.array(part()))
    c[:, 0:1] = t
    c[:, 1:2] = t + c[:, 0:1]
    answer = c * 1
    del t
    mx.eval(answer)
    once = np.array(mx.exp(mx.array(part())))
    expected[:, 0:1] = once
    expected[:, 1:2] = once + once
    same(answer, expected)
    same(c, expected)


def test_an_update_of_itself() -> None:
    expected, x = cache(), mx.array(cache())
    mx.eval(x)
    x[:, 1:] = x[:, :-1]
    expected[:, 1:] = expected[:, :-1].copy()
    same(x, expected)
    x[:, ::-1] = x
    same(x, expected[:, ::-1])


def test_old_versions_stay_as_they_were() -> None:
    c = mx.array(cache())
    versions, expected = [], []
    now = cache()
    for i in range(6):
        versions.append(c.__copy__())
        expected.append(now.copy())
        c[:, i] = i
        now[:, i] = i
    mx.eval(c)
    for version, numbers in zip(versions, expected, strict=True):
        same(version, numbers)


def test_updates_of_views_and_other_layouts() -> None:
    """The base lies transposed, or is a part of a larger array; in place when nobody else holds it."""
    whole = mx.array(cache())
    mx.eval(whole)
    turned = evaluated(whole.transpose(2, 0, 1))
    del whole
    place = at(turned)
    turned[3, :, 5] = 1
    expected = cache().transpose(2, 0, 1).copy()
    expected[3, :, 5] = 1
    assert at(turned) == place
    same(turned, expected)
    repeated = evaluated(mx.broadcast_to(mx.array(part()), (4, 5, 64)))
    repeated[:, 2] = 7
    expected = np.broadcast_to(part(), (4, 5, 64)).copy()
    expected[:, 2] = 7
    same(repeated, expected)


def test_empty_and_whole_updates() -> None:
    x = mx.array(cache())
    mx.eval(x)
    x[:, 5:5] = 3
    same(x, cache())
    x[:] = mx.array(cache(7))
    same(x, cache(7))
    one = mx.array(3.0) + 0
    mx.eval(one)
    one[...] = 4.0
    assert one.item() == 4.0


@pytest.mark.parametrize("dtype", [mx.bool_, mx.int8, mx.float16, mx.bfloat16, mx.int64, mx.complex64])
def test_updates_of_every_size_of_element(dtype: Any) -> None:
    x = (mx.arange(240).reshape(4, 60) % 7).astype(dtype)
    mx.eval(x)
    expected = np.array(x.astype(mx.complex64))
    place = at(x)
    for i in range(3):
        x[:, i : i + 40 : 3] = x[:, 59 - i : 19 - i : -3] + x[:, i : i + 40 : 3] if dtype is not mx.bool_ else True
        turned = expected[:, 59 - i : 19 - i : -3] + expected[:, i : i + 40 : 3]
        expected[:, i : i + 40 : 3] = turned if dtype is not mx.bool_ else True
        assert at(x) == place
    found = np.array(x.astype(mx.complex64))
    np.testing.assert_array_equal(found, expected)


def test_updates_under_checks_and_by_the_reference() -> None:
    for options in ({"backend": "reference"}, {"compare": True}):
        with weft_settings(**options):
            x = mx.array(cache())
            mx.eval(x)
            x[:, 3] = 1
            x = x + 1
            expected = cache()
            expected[:, 3] = 1
            same(x, expected + np.float32(1))


# ---- anything goes ----


bounds = st.one_of(st.none(), st.integers(-7, 7))
slices = st.tuples(bounds, bounds, st.sampled_from([1, 1, 2, -1, -2])).map(lambda b: slice(*b))
keys = st.tuples(st.one_of(slices, st.integers(-6, 5)), st.one_of(slices, st.integers(-6, 5)))
moves = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "multiply", "set", "set part", "add part", "view", "turn", "copy", "export", "drop", "eval", "look"]
        ),
        st.integers(0, 3),
        st.integers(0, 3),
        keys,
        keys,
    ),
    min_size=4,
    max_size=30,
)


class World:
    """Some arrays of ours beside NumPy's, which are copied wherever ours could share."""

    def __init__(self) -> None:
        start = np.arange(36, dtype=np.float32).reshape(6, 6)
        self.ours = [mx.array(start + 100 * k) for k in range(4)]
        self.numpy = [start + 100 * k for k in range(4)]
        self.exports: list[tuple[np.ndarray, np.ndarray]] = []

    def move(self, what: str, i: int, j: int, key: Any, other: Any) -> None:
        x, expected = self.ours[i], self.numpy[i]
        if what == "add":
            self.ours[i], self.numpy[i] = x + 1, expected + 1
        elif what == "multiply":
            self.ours[i], self.numpy[i] = x * self.ours[j], expected * self.numpy[j]
        elif what == "set":
            self._set(i, key, j, j)
        elif what in ("set part", "add part"):
            self._set(i, key, self.ours[j][other], self.numpy[j][other].copy(), what == "add part")
        elif what == "view":
            self._replace(i, self.ours[j][key], self.numpy[j][key].copy())
        elif what == "turn":
            self._replace(i, self.ours[j].T, self.numpy[j].T.copy())
        elif what == "copy":
            self.ours[i], self.numpy[i] = self.ours[j].__copy__(), self.numpy[j].copy()
        elif what == "export":
            self.exports.append((np.array(x, copy=False), expected.copy()))
        elif what == "drop":
            self.exports.clear()
        elif what == "eval":
            mx.eval(x, self.ours[j])
        else:
            self.look()

    def _set(self, i: int, key: Any, ours: Any, numpy: Any, add: bool = False) -> None:
        """Where the shapes fit, which both agree about."""
        copy = self.numpy[i].copy()
        try:
            copy[key] = copy[key] + numpy if add else numpy
        except (ValueError, IndexError):
            return
        x = self.ours[i] = self.ours[i].__copy__()
        if np.ndim(numpy) > np.ndim(copy[key]):
            return
        if add:
            x[key] += ours
        else:
            x[key] = ours
        self.numpy[i] = copy

    def _replace(self, i: int, ours: array, numpy: np.ndarray) -> None:
        if numpy.shape == (6, 6):
            self.ours[i], self.numpy[i] = ours, numpy

    def look(self) -> None:
        for x, expected in zip(self.ours, self.numpy, strict=True):
            np.testing.assert_array_equal(np.array(x), expected)
        for export, expected in self.exports:
            np.testing.assert_array_equal(export, expected)


@settings(max_examples=150)
@given(moves)
def test_any_sequence_of_changes_gives_what_numpy_gives(steps: list[Any]) -> None:
    before = evaluate.overwriting.LEAST_DONATED
    evaluate.overwriting.LEAST_DONATED = 1
    evaluate.programs.PROGRAMS.clear()
    try:
        with np.errstate(all="ignore"):
            world = World()
            for step in steps:
                world.move(*step)
            world.look()
    finally:
        evaluate.overwriting.LEAST_DONATED = before
        evaluate.programs.PROGRAMS.clear()


def test_a_taken_value_is_no_value() -> None:
    taken = Taken()
    taken.end()
    for name in ("strides", "address", "storage", "words"):
        with pytest.raises(RuntimeError, match="cannot be computed any more"):
            getattr(taken, name)
