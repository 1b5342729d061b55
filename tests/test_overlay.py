"""Functions that one thread traces, as other threads see them: not at all. Nobody waits for a trace, readers see the
values that arrays have, and what others do meanwhile is not part of it. Each test stops a trace midway (before the
function runs, or after it, when its writes have been made) and lets another thread come."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.processes import in_threads, run_alone
from tests.test_races import Other, child_says_yes, everything, first, ones, same
from weft.array import array
from weft.graph.node import Node
from weft.graph.overlay import HERE, Overlay, Running
from weft.primitives.base import Placeholder
from weft.runtime.object_table import TABLE
from weft.runtime.objects import MAKERS
from weft.transforms import tracing

MOMENTS = {"before the function": "finishing", "after the function": "Recorder"}


@pytest.fixture(params=MOMENTS)
def midway(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], list[Any]]:
    """Let another thread do something in the middle of the next trace, which waits for it; gives its answers."""

    def arrange(work: Callable[[], Any]) -> list[Any]:
        answers: list[Any] = []
        first(monkeypatch, tracing, MOMENTS[request.param], lambda: answers.append(other()))
        other = waiting(work)
        return answers

    return arrange


def waiting(work: Callable[[], Any]) -> Callable[[], Any]:
    """Another thread that is there already, and does its work when it is asked for the answer."""
    go = threading.Event()
    other = Other(lambda: (go.wait(50), work())[1])

    def answer() -> Any:
        go.set()
        return other.answer()

    return answer


def is_plain() -> bool:
    """Whether an array's node is read straight from its slot, by Python and by machine code."""
    return type(array.__dict__["_node"]) is types.MemberDescriptorType and not MAKERS._table[TABLE["overlaid"]]


# ---- arrays ----


@pytest.mark.parametrize("shapeless", [False, True], ids=["", "shapeless"])
def test_a_reader_sees_what_an_array_is(shapeless: bool, midway: Any) -> None:
    w, x = ones(), ones()

    def f(x: array) -> array:
        w[...] = w + x
        x += 5
        w[0] = 7
        return w * x

    def read() -> Any:
        assert all(type(n) is int for n in (*x.shape, *w.shape, x.size))
        return (w * 2 + 1).tolist(), w.tolist(), np.array(x).tolist(), repr(w), (x + w).sum().item()

    expected = read()
    found = midway(read)
    compiled = mx.compile(f, shapeless=shapeless)
    same(compiled(x), [42, *[12] * 7])
    assert found == [expected]
    same(w, [7, *[2] * 7])
    same(x, [6] * 8)
    same(compiled(ones() * 2), [49, *[28] * 7])
    assert compiled.traces == 1  # type: ignore[attr-defined]
    assert is_plain()


@pytest.mark.parametrize("shapeless", [False, True], ids=["", "shapeless"])
def test_what_another_thread_overwrites_is_not_the_functions_doing(shapeless: bool, midway: Any) -> None:
    w = ones()
    f = mx.compile(lambda x: x * w, shapeless=shapeless)
    midway(lambda: w.__iadd__(1) is None)
    same(f(ones()), [1] * 8)  # as if the other thread had come later
    for _ in range(3):
        same(w, [2] * 8)
        same(f(ones()), [2] * 8)
    assert f.traces == 1  # type: ignore[attr-defined]


def test_what_is_made_of_an_array_midway_is_read_later(midway: Any) -> None:
    w = ones()

    def f(x: array) -> array:
        w[...] = w + x
        return w

    found = midway(lambda: w * 10)
    mx.compile(f)(ones())
    same(found[0], [10] * 8)
    same(w, [2] * 8)


def test_an_error_leaves_arrays_alone() -> None:
    w = ones()
    node = w._node

    class Struck(BaseException):
        """What a signal's handler raises."""

    for error in (ZeroDivisionError, KeyboardInterrupt, Struck):

        def f(x: array, error: type[BaseException] = error) -> array:
            w[...] = w + x
            raise error

        with pytest.raises(error):
            mx.compile(f)(ones())
        assert w._node is node
        assert HERE.overlay is None
    assert is_plain()


def test_an_array_that_the_trace_does_not_know_is_written_for_the_trace_only() -> None:
    w, stranger, constant = ones(), ones(), mx.zeros((8,))
    mx.eval(constant)
    stand_in = Node(Placeholder("compile"), (), w._node.kind)
    overlay = Overlay([w], [stand_in])
    try:
        HERE.overlay = overlay
        assert w._node is stand_in
        assert not overlay.strangers
        mine = mx.array(np.ones(8, np.float32))
        mine += 1
        assert not overlay.strangers
        stranger += 4
        assert overlay.strangers
        same(stranger, [5] * 8)
        assert not is_plain()
    finally:
        HERE.overlay = None
    overlay.close()
    overlay.close()
    same(stranger, [1] * 8)
    same(w, [1] * 8)
    same(mine, [2] * 8)
    assert is_plain()


def test_an_overlay_that_nothing_holds_is_closed() -> None:
    made = Overlay([ones()], [ones()._node])
    assert not is_plain()
    del made
    assert is_plain()


# ---- containers ----


class Model:
    """State in an attribute, a list and a dict, and a number."""

    def __init__(self) -> None:
        self.w, self.state, self.log, self.steps = ones(), {"k": ones() * 2, "n": 3}, [ones() * 3], 0

    def step(self, x: array) -> array:
        self.w = self.w + x
        self.state["k"] = self.state["k"] * self.w
        self.log[0] = self.log[0] + self.state["k"]
        self.steps += 1
        return self.log[0]

    def seen(self) -> list[Any]:
        arrays = [self.w, self.state["k"], self.log[0]]
        return [[x.tolist(), (x * 2).sum().item(), x.shape] for x in arrays]


@pytest.mark.parametrize("shapeless", [False, True], ids=["", "shapeless"])
def test_a_reader_sees_what_containers_held(shapeless: bool, midway: Any) -> None:
    model, plain = Model(), Model()
    before = model.seen()
    found = midway(model.seen)
    step = mx.compile(model.step, shapeless=shapeless)
    for _ in range(3):
        assert step(ones()).tolist() == plain.step(ones()).tolist()
        assert model.seen() == plain.seen()
        assert model.steps == plain.steps
    assert found == [before]


def test_what_is_new_in_a_container_has_the_value_that_it_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, Any] = {"w": ones()}
    found: list[Any] = []

    def f(x: array, a: float) -> array:
        kept["new"] = kept["w"] * a + x
        kept["number"] = mx.full((2,), a)
        return kept["new"]

    def read() -> None:
        new = (kept["new"], kept["new"] - 1, kept["number"])
        found.extend([x.tolist() for x in new])
        found.extend(new)

    other = waiting(read)
    first(monkeypatch, tracing, "Recorder", other)
    compiled = mx.compile(f)
    same(compiled(ones(), 3.0), [4] * 8)
    assert found[:3] == [[4.0] * 8, [3.0] * 8, [3.0] * 2]
    for x, value in zip(found[3:], (4, 3), strict=False):  # and when the trace is over
        assert Other(lambda x=x: x.tolist()).answer() == [value] * 8
    same(compiled(ones(), 5.0), [6] * 8)
    same(kept["number"], [5] * 2)


def test_values_never_go_back() -> None:
    """A reader sees a state that only grows, though each step is traced anew."""
    held, state = mx.array([0.0]), {"k": mx.array([0.0])}

    def step() -> None:
        held[...] = held + 1
        state["k"] = state["k"] + 1

    def work(number: int) -> None:
        if number == 0:
            for _ in range(60):
                mx.compile(step)()
            return
        last = [0.0, 0.0]
        while last[0] < 60:
            now = [held.item(), state["k"].item()]
            assert now[0] >= last[0]
            assert now[1] >= last[1]
            last = now

    in_threads(3, work)
    assert (held.item(), state["k"].item()) == (60.0, 60.0)


def test_what_is_put_back_while_another_thread_looks_is_seen_as_it_was() -> None:
    x, before = ones(), ones()._node
    looks: list[str] = []

    def replaced() -> list[tuple[array, Node]]:
        looks.append("look")
        if len(looks) == 2:
            return [(x, before)]
        running.keep()  # all is put back now, before the other thread comes to x
        return []

    running = Running(replaced)
    assert running.stood_for() == {id(x): before}


# ---- calls ----


def test_functions_are_traced_side_by_side(midway: Any) -> None:
    v, w = ones(), ones() * 2

    def g(x: array) -> array:
        v[...] = v + x
        return v * w

    inner = mx.compile(g)
    found = midway(lambda: inner(ones()).tolist())
    f = mx.compile(lambda x: x * v + w)
    same(f(ones()), [3] * 8)
    assert found == [[4.0] * 8]
    assert inner.traces == f.traces == 1  # type: ignore[attr-defined]
    same(f(ones()), [4] * 8)


def test_a_function_may_wait_for_a_thread_that_calls_it(midway: Any) -> None:
    weights = {"w": ones() * 3, "rate": 0.5}
    f = mx.compile(lambda x: x * weights["w"] * weights["rate"])
    found = midway(lambda: (f(ones()).tolist(), f(ones() * 2).tolist()))
    same(f(ones()), [1.5] * 8)
    assert found == [([1.5] * 8, [3.0] * 8)]
    assert f.traces == 1  # type: ignore[attr-defined]


def test_many_threads_make_the_first_call() -> None:
    for _ in range(10):
        weights = {"w": ones() * 3, "more": [ones()]}
        f = mx.compile(lambda x, weights=weights: x * weights["w"] + weights["more"][0])
        in_threads(4, lambda number, f=f: same(f(ones() * number), [3 * number + 1] * 8))


def test_a_known_function_is_called_midway(midway: Any) -> None:
    state = {"w": ones()}
    double = mx.compile(lambda x: x * 2 + state["w"])
    same(double(ones()), [3] * 8)

    def replace(x: array) -> array:
        state["w"] = state["w"] + x
        return state["w"]

    found = midway(lambda: (double(ones()).tolist(), double(ones(3)[:1]).tolist()))
    same(mx.compile(replace)(ones()), [2] * 8)
    assert found == [([3.0] * 8, [3.0] * 8)]
    same(double(ones()), [4] * 8)


def test_a_function_that_starts_threads_runs_plain() -> None:
    """They would see arrays as they are, and what they compute would be part of the trace as it is now."""
    w = ones()

    def by_thread(x: array) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append((x * w).sum().item()))
        thread.start()
        thread.join()
        return found[0]

    def by_pool(x: array) -> Any:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda y: (y * w).tolist(), [x, x * 2]))

    start = threading.Thread.start
    for fun in (by_thread, by_pool):
        compiled = mx.compile(fun)
        with pytest.warns(UserWarning, match="runs uncompiled: it captures a thread that it starts"):
            assert compiled(ones()) == fun(ones())
        for n in range(2, 4):
            assert compiled(ones() * n) == fun(ones() * n)
        assert compiled.traces == 0  # type: ignore[attr-defined]
    assert threading.Thread.start is start


def test_threads_of_others_are_no_business_of_the_trace(midway: Any) -> None:
    start = threading.Thread.start
    midway(lambda: Other(lambda: (ones() * 3).tolist()).answer())
    f = mx.compile(lambda x: x * 2)
    same(f(ones()), [2] * 8)
    assert f.traces == 1  # type: ignore[attr-defined]
    assert threading.Thread.start is start


# ---- random numbers ----


def drawn(count: int) -> list[list[int]]:
    mx.random.seed(11)
    return [mx.random.bits((2,)).tolist() for _ in range(count)]


def test_who_draws_does_not_wait_for_a_trace(midway: Any) -> None:
    expected = drawn(3)
    mx.random.seed(11)
    draw = mx.compile(lambda: mx.random.bits((2,)))
    found = midway(lambda: mx.random.bits((2,)).tolist())
    mine = draw().tolist()
    assert [*found, mine, mx.random.bits((2,)).tolist()] == expected
    mx.random.seed(11)
    assert [draw().tolist() for _ in range(3)] == expected
    assert draw.traces == 1  # type: ignore[attr-defined]


def test_a_function_that_draws_by_what_it_is_given() -> None:
    expected = drawn(3)
    mx.random.seed(11)
    draw = mx.compile(lambda by: by((2,)))
    assert [draw(mx.random.bits).tolist() for _ in range(3)] == expected


def test_a_function_that_reads_the_state_itself() -> None:
    def f(x: array) -> Any:
        before = mx.random.state[0] * 1
        a = mx.random.bits((2,))
        between = mx.random.state[0] * 1
        mx.random.state[0] = mx.random.key(5)
        return x, before, a, between, mx.random.bits((2,)), mx.random.state[0] * 1

    mx.random.seed(11)
    expected = [[x.tolist() for x in f(ones())] for _ in range(2)]
    mx.random.seed(11)
    compiled = mx.compile(f)
    assert [[x.tolist() for x in compiled(ones())] for _ in range(2)] == expected
    mx.random.seed(11)
    assert [x.tolist() for x in compiled(ones())] == expected[0]


# ---- forks ----


def scenario_forks() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for moment in MOMENTS.values():
            w, state, numbers = ones(), {"w": ones() * 2, "n": 3}, [1.5, 2.5]

            def f(x: array, numbers: list[Any], w: array = w, state: Any = state) -> array:
                w[...] = w + x
                state["w"] = state["w"] + w
                state["n"] += 1
                numbers.pop()
                return state["w"] * numbers[0]

            def child(w: array = w, state: Any = state, numbers: Any = numbers) -> bool:
                same(w, [1] * 8)
                same(state["w"], [2] * 8)
                assert (state["n"], numbers) == (3, [1.5, 2.5])
                assert (type(state["n"]), type(numbers[0])) == (int, float)
                assert is_plain()
                return everything()

            answers: list[bool] = []

            other = waiting(lambda child=child: child_says_yes(child))
            with patch.context() as inner:
                first(inner, tracing, moment, lambda answers=answers, other=other: answers.append(other()))
                same(mx.compile(f)(ones(), numbers), [6] * 8)
            assert answers == [True]
            assert numbers == [1.5]
            assert state["n"] == 4
            assert is_plain()


def test_a_child_that_is_born_in_the_middle_of_a_trace_knows_nothing_of_it() -> None:
    run_alone(__file__, "scenario_forks")
