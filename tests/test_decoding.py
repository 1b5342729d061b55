"""What a decoder does for every token: the same evaluation with other sizes, which writes into caches, and is asked for
before the one before has ended. One program, in place, and the same bits as in stages."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import weft.core as mx
from tests import contract
from tests.processes import in_threads, run_alone
from tests.test_families import NEVER, decoded_in_place, normal
from tests.test_fusion_property import Program, built, operands, programs, results
from weft import evaluate
from weft.config import config
from weft.evaluate import later, reach, running, together
from weft.evaluate import structure as structures
from weft.graph.node import Node, Tape
from weft.graph.overlay import Overlay
from weft.passes import families
from weft.passes.executable import Executable
from weft.primitives.base import DATA, Bundled
from weft.primitives.views import Slice, SliceUpdate
from weft.runtime.object_table import PLACES
from weft.runtime.objects import MAKERS

native = pytest.mark.skipif(not MAKERS._has_nodes, reason="this interpreter's objects are laid out in another way")


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate.programs, "PROGRAMS", {})
    monkeypatch.setattr(families, "FAMILIES", {})
    monkeypatch.setattr(together, "_OUTLINES", {})
    monkeypatch.setattr(together, "_LAST", [])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Executable]:
    """The programs that are run."""
    found: list[Executable] = []
    for name in ("run", "run_in_place"):
        real = getattr(Executable, name)
        monkeypatch.setattr(Executable, name, lambda self, *a, real=real: [found.append(self), real(self, *a)][1])
    return found


def in_stages(work: Callable[[], Any]) -> Any:
    """What `work` gives where no evaluation with updates is one program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(together, "prepare_together", lambda *_: None)
        patch.setattr(evaluate.entry, "prepare_together", lambda *_: None)
        patch.setattr(families, "PATIENCE", NEVER)
        patch.setattr(families, "FAMILIES", {})
        patch.setattr(evaluate.programs, "PROGRAMS", {})
        return work()


class Decoder:
    """A layer with caches that it writes into."""

    def __init__(self) -> None:
        self.keys, self.values = normal(2, 64, 8), normal(2, 64, 8, seed=1)

    def step(self, n: int) -> mx.array:
        y, self.keys, self.values = decoded_in_place(normal(1, 16, seed=n), self.keys, self.values, n)
        return y

    def places(self) -> tuple[int, int]:
        return self.keys._node.value.address, self.values._node.value.address


def decoded(places: list[int], hold: Callable[[int], bool] = lambda n: False) -> list[bytes]:
    decoder, found, held = Decoder(), [], []
    for n in places:
        y = decoder.step(n)
        mx.eval(y)
        found.append(contract.values_of(y).tobytes())
        if hold(n):
            held.append((decoder.keys[:, 1:], decoder.keys[:, 1:] + 0.0))
            mx.eval(held[-1])
    found += [contract.values_of(x).tobytes() for x in (decoder.keys, decoder.values)]
    assert all(contract.same_bits(contract.values_of(x), contract.values_of(y)) for x, y in held)
    return found


# ---- one program ----


def test_a_step_that_comes_again_is_one_program(runs: list[Executable]) -> None:
    decoder = Decoder()
    for n in range(10, 40):
        x = normal(1, 16, seed=n)
        before, count = decoder.places(), len(runs)
        y, decoder.keys, decoder.values = decoded_in_place(x, decoder.keys, decoder.values, n)
        mx.eval(y)
        assert decoder.places() == before
        if n >= 10 + families.PATIENCE:
            assert len(runs) == count + 1
            assert len(runs[-1].spent) == 2


def test_its_bits_are_those_of_stages() -> None:
    places = [*range(10, 40)]
    assert decoded(places) == in_stages(lambda: decoded(places))


def test_caches_that_are_held_stay_as_they_are() -> None:
    places = [*range(10, 40)]
    assert decoded(places, lambda n: n % 3 == 0) == in_stages(lambda: decoded(places))


@examples(max_examples=max(examples.default.max_examples // 8, 4))
@given(st.lists(st.integers(0, 63), min_size=8, max_size=16))
def test_places_in_any_order(places: list[int]) -> None:
    families.FAMILIES.clear()
    assert decoded(places) == in_stages(lambda: decoded(places))


def test_places_that_follow_no_rule_are_not_planned_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    real = families.Family.learn
    monkeypatch.setattr(families.Family, "learn", lambda self, *a: [made.append(1), real(self, *a)][1])
    rng = np.random.default_rng(0)

    def step(x: mx.array, i: int, j: int) -> mx.array:
        x[i : i + 3, j : j + 2] = x[:3, :2] * 2.0
        return mx.sum(x[i:, :j])

    x = normal(64, 64)
    for _ in range(40):
        mx.eval(step(x, int(rng.integers(4, 60)), int(rng.integers(4, 60))))
    assert len(made) <= 2 * families.MOST_MISSES


def test_an_old_cache_that_is_read_too_is_copied() -> None:
    def run() -> list[bytes]:
        cache, found = normal(32, 8), []
        for n in range(4, 24):
            old = cache + 0.0
            before = cache
            cache = mx.array(cache)
            cache[n : n + 1] = mx.sum(old, axis=0)
            y = mx.sum(cache[: n + 1], axis=0) - mx.sum(before, axis=0)
            mx.eval(y, cache)
            found += [contract.values_of(y).tobytes(), contract.values_of(before).tobytes()]
        return found

    assert run() == in_stages(run)


def test_only_what_lies_between_steps_has_other_sizes() -> None:
    """No value that is stored grows, but the memory that a kernel needs does."""

    def run() -> list[bytes]:
        keys, values, found = normal(1, 2, 512, 16), normal(1, 2, 512, 16, seed=1), []
        for n in range(300, 312):
            q = normal(1, 4, 1, 16, seed=n)
            keys[:, :, n : n + 1], values[:, :, n : n + 1] = q[:, :2] * 2.0, q[:, 2:] * 0.5
            y = mx.fast.scaled_dot_product_attention(q, keys[:, :, : n + 1], values[:, :, : n + 1], scale=0.25)
            mx.eval(y)
            found.append(contract.values_of(y).tobytes())
        return found

    assert run() == in_stages(run)


# ---- machine code and Python ----


def walked(sweep: Any, describe: Any, divide: Any, roots: list[Node], wanted: Any) -> list[Any]:
    """What three functions find out about the nodes behind some."""
    swept: tuple[list[Node], ...] = ([], [], [])
    found = sweep(list(roots), *swept)
    order = list(swept[0])
    index: dict[Node, int] = {}
    lists: tuple[list[Any], ...] = ([], [], [], [])
    describe(order, wanted, index, *lists)
    form: list[int] = []
    sizes: list[Any] = []
    divided = divide(tuple(lists[0]), form, sizes)
    return [found, *swept, order, list(index.items()), *lists, divided, form, sizes]


def both_ways(arrays: list[mx.array], wanted: Any = None) -> None:
    roots = list(dict.fromkeys([x._node for x in arrays if x._node.value is None]))
    by_python = (reach._sweep_by_python, structures._describe_by_python, families._divide_by_python)
    by_machine = (reach._sweep, structures._describe, families._divide)
    wanted = set(roots) if wanted is None else wanted
    assert walked(*by_machine, roots, wanted) == walked(*by_python, roots, wanted)


@native
@given(programs())
def test_machine_code_finds_what_python_finds(program: Program) -> None:
    values = built(program, operands(program))
    asked = results(program, values)
    both_ways(asked)
    del values
    both_ways(asked)


@native
def test_machine_code_sees_updates_bundles_slices_and_handles() -> None:
    x = normal(8, 8)
    y = x[2:4] * 2.0
    x[1:3] = y
    carry, rows = mx.scan(lambda c, row: (c + row, c * row), mx.zeros((8,)), x)
    z = carry + mx.sum(rows[::2] + mx.array(3.0), axis=0)
    twice = mx.zeros(())
    twice._overwrite(y)  # two arrays, one node
    both_ways([z, x])
    both_ways([z], ())
    both_ways([z], [z._node])
    overlay = Overlay([y], [normal(2, 8)._node])
    try:
        both_ways([z, x])
    finally:
        overlay.close()


# ---- evaluations that resemble each other ----


def pending(program: Program) -> tuple[list[Node], set[Node], list[mx.array]]:
    """What is to be computed for a program, for which nodes, and the arrays that hold them."""
    asked = results(program, built(program, operands(program)))
    wanted = {x._node for x in asked if x._node.value is None}
    order = reach.reached(wanted)[0] if wanted else []
    return order, wanted, asked


@given(programs(), programs(), st.integers(0, 3), st.booleans())
def test_what_resembles_an_outline_has_its_form(program: Program, other: Program, mix: int, by_python: bool) -> None:
    """And what does not has another one: comparing part by part is as good as describing and dividing as a whole."""
    kinds = [
        program,
        replace(program, inputs=other.inputs),
        replace(program, kept=other.kept),
        replace(program, steps=(*program.steps[:-2], *other.steps[-2:])),
    ]
    order, wanted, held = pending(program)
    key = structures.structure([*order], wanted)[0]
    divided = families.divided(key)
    assert divided is not None
    outline = families.Outline(key, divided[1])
    order, wanted, held = pending(kinds[mix])
    found: structures.Found = ({}, [], [], [], [], [])
    resembles = structures._resembles_by_python if by_python else structures._resembles
    alike = resembles(order, wanted, outline.parts, outline.numbers, found)
    sizes = outline.sizes_with(found[-1]) if alike else None
    described = [*order]
    key, *others = structures.structure(described, wanted)
    form = families.divided(key)
    assert form is not None
    assert sizes == (form[1] if form[0] == divided[0] else None)
    if sizes is not None:
        assert found[1] == described
        assert [found[4], found[2], found[3]] == others
    del held


def test_tokens_are_found_by_their_outline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Describing them as a whole is needed for the first ones, and where something else is held."""
    described: list[int] = []
    real = together.structure
    monkeypatch.setattr(config, "check", False)
    monkeypatch.setattr(together, "structure", lambda *a: [described.append(1), real(*a)][1])
    decoder = Decoder()
    for n in range(10, 10 + families.PATIENCE + 1):
        mx.eval(decoder.step(n))
    described.clear()
    for n in range(20, 30):
        mx.eval(decoder.step(n))
    assert not described
    held = decoder.keys  # it is not free to be overwritten, but read
    mx.eval(held + 1.0)
    before = contract.values_of(held).tobytes()
    old, decoder.keys = decoder.keys, mx.array(decoder.keys)
    mx.eval(decoder.step(30))
    assert contract.values_of(old).tobytes() == before


def test_the_next_token_is_filled_in_while_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If its sizes go on as before. If they do not, nothing is lost, and the bits are those of stages."""
    monkeypatch.setattr(later, "LEAST_COMMANDS", 1)
    monkeypatch.setattr(later, "is_worth_it", lambda prepared: True)
    filled: list[int] = []
    real = families.Family.executable
    monkeypatch.setattr(families.Family, "executable", lambda self, *a: [filled.append(1), real(self, *a)][1])
    places = [*range(10, 30), 5, 6, 7, 8, 9, 10, *range(30, 20, -1), *range(40, 60, 2)]

    def run() -> tuple[list[bytes], int]:
        decoder, found, before = Decoder(), [], []
        for n in places:
            y = decoder.step(n)
            mx.async_eval(y)
            before.append(len(filled))
            found.append(contract.values_of(y).tobytes())
        found += [contract.values_of(x).tobytes() for x in (decoder.keys, decoder.values)]
        return found, before[19] - before[9]

    found, asked = run()
    assert asked == 0
    assert found == in_stages(lambda: run()[0])


def test_the_check_finds_an_evaluation_that_is_taken_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "check", True)
    decoder = Decoder()
    for n in range(10, 10 + families.PATIENCE + 1):
        mx.eval(decoder.step(n))
    monkeypatch.setattr(families.Outline, "sizes_with", lambda self, changes: self._sizes)
    with pytest.raises(AssertionError, match="resembles"):
        mx.eval(decoder.step(30))


@native
def test_nodes_that_are_too_old_for_machine_code() -> None:
    """What is put off for long, and what was made lately, in one evaluation."""
    x = normal(8)
    old = x[2:4] * 2.0
    for _ in range(PLACES // 2 + 2):
        Node(DATA, (), x._node.kind)
    between = old + 1.0
    both_ways([between])
    for _ in range(PLACES // 2 + 2):
        Node(DATA, (), x._node.kind)
    new = between * old
    both_ways([new])
    both_ways([old, new])
    mx.eval(new, old)
    assert new.tolist() == (np.array(old) * (np.array(old) + 1)).tolist()


@native
def test_a_sweep_that_is_interrupted_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an exception, and by another one in the midst of it."""
    x = normal(8)
    y = (x[2:4] * 2.0)[1:] + x[:1]
    roots = [y._node]

    def fail(node: Node) -> bool:
        raise KeyError(str(node))

    def again(node: Node) -> bool:
        both_ways([y + 1.0])
        return reach.slice_data(node)

    for instead in (fail, again):
        sweep = MAKERS.sweep(reach._sweep_by_python, Slice, SliceUpdate, Bundled, Tape, instead)
        lists: tuple[list[Node], ...] = ([], [], [])
        with pytest.raises(KeyError) if instead is fail else contextlib.nullcontext():
            sweep(roots, *lists)
        both_ways([y])
    expected = contract.values_of(x)[3:4] * 2 + contract.values_of(x)[:1]
    assert contract.values_of(y).tolist() == expected.tolist()


@native
def test_machine_code_is_used() -> None:
    for function in (reach._sweep, structures._describe, structures._resembles, families._divide):
        assert type(function).__name__ == "builtin_function_or_method"


def test_forms_tell_parameters_apart_that_are_no_sizes() -> None:
    """And sizes of 0, 1 and -1, which rules treat in ways of their own; others not."""

    def form(x: mx.array) -> Any:
        graph, layouts = contract.closed(x)
        divided = families.divided(families.structure_of(graph.order(), graph.outputs, layouts))
        assert divided is not None
        return divided[0]

    x = normal(9, 7)
    assert form(mx.sum(x[2:5], axis=0)) == form(mx.sum(x[3:8], axis=0))
    others = [mx.sum(x[2:5], axis=1), mx.sum(x[1:5], axis=0), mx.sum(x[2:3], axis=0), mx.sum(x[0:5], axis=0)]
    others += [mx.max(x[2:5], axis=0), mx.sum(x[2:5].astype(mx.float16), axis=0)]
    assert len({form(y) for y in [*others, mx.sum(x[2:5], axis=0)]}) == len(others) + 1


def test_forms_are_right_when_their_numbers_were_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_MOST_NUMBERS", 4)
    places = [*range(10, 20)]
    assert decoded(places) == in_stages(lambda: decoded(places))


# ---- while the caller goes on ----


@pytest.fixture
def always_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(later, "is_worth_it", lambda prepared: True)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What runs later waits for this before it begins."""
    found, real = threading.Event(), running.run_program

    def run(*args: Any) -> None:
        assert found.wait(60)
        real(*args)

    monkeypatch.setattr(later, "run_program", run)
    return found


def test_async_eval_does_not_wait(always_later: None, gate: threading.Event) -> None:
    x = mx.exp(normal(4)) + 1.0
    mx.async_eval(x)
    assert x._node.value is None
    gate.set()
    mx.synchronize()
    assert x._node.value is not None


@pytest.mark.parametrize(
    "look",
    [
        np.array, mx.eval, lambda x: x.tolist(), lambda x: memoryview(x)[0], repr, lambda x: mx.eval(x * 2.0),
        lambda x: mx.compile(lambda y: y + 1.0)(x), lambda x: mx.grad(lambda y: mx.sum(y * x))(x), mx.async_eval,
    ],
)  # fmt: skip
def test_who_looks_at_it_waits(look: Any, always_later: None, gate: threading.Event) -> None:
    x = mx.exp(normal(4)) + 1.0
    mx.async_eval(x)
    threading.Timer(0.05, gate.set).start()
    look(x)
    mx.synchronize()
    np.testing.assert_array_equal(np.array(x), np.array(mx.exp(normal(4)) + 1.0))


def test_a_decoder_that_goes_on_writes_in_place(always_later: None, runs: list[Executable]) -> None:
    """What the other thread held is gone when the next step looks for holders."""

    def run() -> list[bytes]:
        decoder, found = Decoder(), []
        waiting: list[mx.array] = []
        for n in range(10, 40):
            waiting.append(decoder.step(n))
            mx.async_eval(waiting[-1])
            found += [contract.values_of(waiting.pop(0)).tobytes() for _ in range(len(waiting) - 1)]
        return [*found, *[contract.values_of(x).tobytes() for x in (*waiting, decoder.keys, decoder.values)]]

    expected = in_stages(run)
    runs.clear()
    assert run() == expected
    spent = [len(made.spent) for made in runs[-20:]]
    assert spent == [2] * 20


def test_an_error_comes_to_those_who_look(always_later: None) -> None:
    x = mx.linalg.cholesky(-mx.eye(3) + normal(3, 3) * 0.0)
    mx.async_eval(x)
    for _ in range(2):
        with pytest.raises(ValueError, match="cholesky"):
            mx.eval(x)


def test_many_threads(always_later: None) -> None:
    expected = [np.array(mx.exp(normal(16, seed=i)) * 2.0) for i in range(4)]

    def work(i: int) -> None:
        for _ in range(20):
            x = mx.exp(normal(16, seed=i)) * 2.0
            mx.async_eval(x)
            y = x + 0.0
            mx.async_eval(y)
            np.testing.assert_array_equal(np.array(x), expected[i])
            np.testing.assert_array_equal(np.array(y), expected[i])

    in_threads(4, work)


def test_a_finalizer_on_the_other_thread_may_evaluate(always_later: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[float]] = []
    real = running.run_program

    def run(*args: Any) -> None:
        seen.append((mx.array([1.0]) + 1.0).tolist())
        real(*args)

    monkeypatch.setattr(later, "run_program", run)
    x = mx.exp(normal(4)) + 1.0
    mx.async_eval(x)
    waiting = threading.Thread(target=mx.synchronize, daemon=True)
    waiting.start()
    waiting.join(60)
    assert not waiting.is_alive(), "it waits for itself"
    assert seen == [[2.0]]
    np.testing.assert_array_equal(np.array(x), np.array(mx.exp(normal(4)) + 1.0))


def test_ctrl_c_while_it_is_handed_over(always_later: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a signal's handler raises, nothing waits in vain, and the values come."""

    def strike(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("__init__", "wait_for_begin", "wait"):
        x = mx.exp(normal(64)) + 1.0
        with monkeypatch.context() as patch:
            patch.setattr(later._Job, name, strike)
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012  (whichever of the two comes to it)
                mx.async_eval(x)
                mx.eval(x)
                raise KeyboardInterrupt  # it had ended
        waiting = threading.Thread(target=mx.eval, args=(x,), daemon=True)
        waiting.start()
        waiting.join(60)
        assert not waiting.is_alive(), name
        np.testing.assert_array_equal(np.array(x), np.array(mx.exp(normal(64)) + 1.0))


def test_inside_grad_it_is_computed_at_once(always_later: None) -> None:
    def loss(x: mx.array) -> mx.array:
        y = mx.exp(x)
        mx.async_eval(y)
        return mx.sum(y * y)

    x = normal(4)
    np.testing.assert_allclose(np.array(mx.grad(loss)(x)), 2 * np.exp(2 * np.array(x)), rtol=1e-5)


def test_a_fork_waits() -> None:
    assert run_alone(__file__, "fork_while_under_way").split() == ["child", "parent"]


def fork_while_under_way() -> None:
    later.is_worth_it = lambda prepared: True
    expected = np.array(mx.exp(normal(64)) + 1.0)
    x = mx.exp(normal(64)) + 1.0
    mx.async_eval(x)
    child = os.fork()
    np.testing.assert_array_equal(np.array(x), expected)
    y = mx.exp(normal(64)) * 2.0
    mx.async_eval(y)
    np.testing.assert_array_equal(np.array(y), np.array(mx.exp(normal(64))) * 2)
    if child == 0:
        print("child", flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("parent", flush=True)


def test_the_end_of_the_process_waits() -> None:
    assert run_alone(__file__, "end_while_under_way").split() == ["ended"]


def end_while_under_way() -> None:
    later.is_worth_it = lambda prepared: True
    mx.async_eval(mx.exp(normal(1 << 20)) + 1.0)
    print("ended", flush=True)


# ---- a processor for the caller that goes on ----


class Clock:
    """Time as `later` sees it: it passes where a test says so, and the caller is busy for a part of it."""

    def __init__(self) -> None:
        self.wall = self.used = 10**9

    def pass_by(self, wall: int, used: int) -> None:
        self.wall, self.used = self.wall + wall, self.used + used

    def monotonic_ns(self) -> int:
        return self.wall

    def thread_time_ns(self) -> int:
        return self.used


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Until when kernels were told to do without a thread, each time."""
    found: list[int] = []
    monkeypatch.setattr(later.threads, "leave_one", found.append)
    return found


def test_a_busy_caller_gets_a_processor(monkeypatch: pytest.MonkeyPatch, left: list[int]) -> None:
    clock, sharing = Clock(), later._Sharing()
    monkeypatch.setattr(later, "time", clock)
    monkeypatch.setattr(later, "usable_cpus", lambda: 1)  # as many as there are threads, or fewer
    sharing.hand_over()
    assert left == []  # it is not known yet what the caller does
    clock.pass_by(3_000_000, 2_900_000)
    sharing.come_back()
    sharing.hand_over()
    assert left == [0, clock.wall + 6_000_000]
    clock.pass_by(30_000_000, 29_000_000)
    sharing.come_back()
    sharing.hand_over()
    assert left[2:] == [0, clock.wall + later._LONGEST_BUSY]
    clock.pass_by(30_000_000, 1_000_000)  # it waited for something else
    sharing.come_back()
    sharing.hand_over()
    assert left[4:] == [0]


def test_processors_that_kernels_do_not_take_are_for_the_caller(
    monkeypatch: pytest.MonkeyPatch, left: list[int]
) -> None:
    sharing = later._Sharing()
    monkeypatch.setattr(later, "usable_cpus", lambda: later.threads.get_threads() + 1)
    for _ in range(3):
        sharing.hand_over()
        assert sharing.caller == 0
    assert left == []


def test_another_thread_that_waits_does_not_speak_for_the_caller(
    monkeypatch: pytest.MonkeyPatch, left: list[int]
) -> None:
    sharing = later._Sharing()
    monkeypatch.setattr(later, "usable_cpus", lambda: 1)
    sharing.hand_over()
    other = threading.Thread(target=sharing.come_back)
    other.start()
    other.join()
    assert left == []
    sharing.come_back()
    assert left == [0]
