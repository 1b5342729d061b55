"""`weft.program`: inputs that are updated, donated, or lie in the memory of other libraries. Whatever else holds a
value, and however it was given, values stay what they are."""

from __future__ import annotations

import gc
import io
import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft.core as mx
from tests.updating import N, at, fresh, large
from weft import program
from weft.program import Input
from weft.targets.cpu.forms import base

Array = mx.array
Fun = Callable[..., Any]


class Case(NamedTuple):
    """A program of two inputs, and what it does to them."""

    fun: Fun
    updates: dict[str, int | str]
    donated: str
    in_place: bool
    """Whether the first input is overwritten if nothing else holds it."""


HALVED = lambda a, b: a * 0.5 + b  # noqa: E731
CASES = {
    "update": Case(HALVED, {"a": 0}, "", True),
    "update by key": Case(lambda a, b: {"sum": mx.sum(a), "a": a * 0.5 + b}, {"a": "a"}, "", True),
    "swap": Case(lambda a, b: [b, a], {"a": 0, "b": 1}, "", False),
    "both": Case(lambda a, b: [a + b, a - b], {"a": 0, "b": 1}, "", True),
    "one for both": Case(lambda a, b: a + b, {"a": 0, "b": 0}, "", True),
    "a row": Case(lambda a, b: mx.slice_update(a, b[:4], mx.array([3]), (0,)), {"a": 0}, "", True),
    "old and new": Case(lambda a, b: (a, a + 1), {"a": 1}, "", False),
    "a view of the old": Case(lambda a, b: (a[::-1], a * 2), {"a": 1}, "", False),
    "only written": Case(lambda a, b: b + 1, {"a": 0}, "", False),
    "twice the same": Case(lambda a, b: [a * 2, a * 2, b], {"a": 0}, "", True),
    "donate": Case(lambda a, b: mx.exp(-a) + b, {}, "a", True),
    "donate, returned": Case(lambda a, b: (a, b + 1), {}, "a", False),
    "donate, not read": Case(lambda a, b: b + 1, {}, "a", False),
    "donate both": Case(lambda a, b: [a + b, mx.sum(b)], {}, "ab", True),
    "donate and update": Case(lambda a, b: [a * b, a - b], {"b": 1}, "a", True),
    "read": Case(lambda a, b: [a + b, a, mx.flip(b, 0)], {}, "", False),
}


def made(case: Case, sizes: tuple[int | str, ...] = ("n",)) -> program.Program:
    inputs = [Input(name, sizes, mx.float32, donated=name in case.donated) for name in "ab"]
    return program.trace(case.fun, inputs, updates=case.updates, sizes={"n": N, "rows": N})


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [x for part in value.values() for x in leaves(part)]
    return [x for part in value for x in leaves(part)] if isinstance(value, (list, tuple)) else [value]


def bits(x: Any) -> bytes:
    return np.array(x).tobytes()


# ---- how an array is given, and what else holds its value ----


def _strided(values: np.ndarray) -> Any:
    both = mx.array(np.repeat(values, 2))
    mx.eval(both)
    x = both[::2]
    mx.eval(x)
    return x


def _slice(values: np.ndarray) -> Any:
    more = mx.array(np.concatenate([values, values]))
    x = more[: len(values)]
    mx.eval(more, x)
    return x


def _evaluated(values: np.ndarray) -> Any:
    x = mx.array(values)
    mx.eval(x)
    return x


GIVEN: dict[str, Callable[[np.ndarray], Any]] = {
    "computed": _evaluated,
    "pending": lambda values: mx.array(values) * 1.0,
    "strided": _strided,
    "slice": _slice,
    "numpy": lambda values: values.copy(),
    "numpy strided": lambda values: np.repeat(values, 2)[::2],
    "bytes": lambda values: bytearray(values.tobytes()) and memoryview(bytearray(values.tobytes())).cast("f"),
}

HELD: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: None,
    "a view": lambda x: _now(x[1:]),
    "a pending reader": lambda x: x * 2,
    "another array": lambda x: mx.array(x),
    "numpy": lambda x: np.asarray(x),
    "memoryview": lambda x: memoryview(x),
    "a part of a result": lambda x: _now(mx.stop_gradient(x)),
}


def _now(x: Any) -> Any:
    mx.eval(x)
    return x


def seen(held: Any) -> bytes:
    return b"" if held is None else np.array(held).tobytes()


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(sorted(CASES)),
    how=st.tuples(st.sampled_from(sorted(GIVEN)), st.sampled_from(sorted(GIVEN))),
    held=st.tuples(st.sampled_from(sorted(HELD)), st.sampled_from(sorted(HELD))),
    same=st.booleans(),
    calls=st.integers(1, 3),
    numpy_out=st.booleans(),
)
def test_values_are_what_the_function_says(
    name: str, how: tuple[str, str], held: tuple[str, str], same: bool, calls: int, numpy_out: bool
) -> None:
    case = CASES[name]
    step = PROGRAMS[name]
    was = [large(1), large(2)]
    given_ = [GIVEN[kind](values) for kind, values in zip(how, was, strict=True)]
    changed = {i for i, x in enumerate("ab") if x in case.donated or x in case.updates}
    if same and len(changed) < 2:
        given_[1], was[1] = given_[0], was[0]
    for _ in range(calls):
        others = [HELD[h](x) if isinstance(x, Array) else None for h, x in zip(held, given_, strict=True)]
        before = [seen(h) for h in others]
        wanted = [bits(x) for x in leaves(case.fun(mx.array(was[0]), mx.array(was[1])))]
        found = step.run_numpy(given_) if numpy_out else step.run(given_)
        assert [bits(x) for x in found] == wanted
        assert [seen(h) for h in others] == before, "another holder saw a value change"
        positions = dict(step._instances[0].changes.overwritten)
        one = given_[0] is given_[1]
        for i, letter in enumerate("ab"):
            partner = one and 1 - i in positions
            if i in positions:
                was[i] = np.frombuffer(wanted[positions[i]], np.float32)
                assert bits(given_[i]) == was[i].tobytes()
                assert found[positions[i]] is given_[i] or list(positions.values()).count(positions[i]) > 1
            elif letter in case.donated:
                if isinstance(given_[i], Array):
                    with pytest.raises(ValueError, match=f"donated to input '{letter}'"):
                        np.array(given_[i])
                given_[i] = GIVEN[how[i]](was[i])
            elif partner:
                was[i] = np.frombuffer(wanted[positions[1 - i]], np.float32)
            elif one and isinstance(given_[i], Array) and case.donated:
                given_[i] = GIVEN[how[i]](was[i])  # it was donated as the other input
            else:
                assert bits(given_[i]) == was[i].tobytes()
        if numpy_out:
            for x in found:
                if isinstance(x, np.ndarray) and not any(x is y for y in given_):
                    x[...] = -1.0  # what was handed out belongs to its holder alone
            assert [seen(h) for h in others] == before
            for i in positions:
                assert bits(given_[i]) == was[i].tobytes()


PROGRAMS = {name: made(case) for name, case in CASES.items()}


AS_THEY_ARE = ("swap", "donate, returned", "read", "old and new")
"""Programs that return what they are given."""


@pytest.mark.parametrize("name", sorted(CASES))
def test_memory_is_used_again_where_nothing_else_holds_it(name: str) -> None:
    case = CASES[name]
    step = made(case)
    for _ in range(3):
        a, b = fresh(1), fresh(2)
        where = at(a)
        results = step.run([a, b])
        assert (any(at(x) == where for x in results)) == (case.in_place or name in AS_THEY_ARE)
        del a, b, results
    report = step.memory_report(fresh(1), fresh(2))
    assert ("input a: overwritten" in report.inputs) == case.in_place


def test_a_call_allocates_nothing_for_what_it_overwrites() -> None:
    step = program.trace(HALVED, [Input("a", (N,), mx.float32), Input("b", (N,), mx.float32)], updates={"a": 0})
    a, b = fresh(1), fresh(2)
    step(a, b)
    gc.collect()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    step(a, b)
    assert mx.get_peak_memory() - before < N
    assert step.memory_report(a, b).peak == 0


def test_an_array_cannot_take_two_values() -> None:
    x = fresh()
    for name in ("both", "one for both", "donate both", "donate and update"):
        with pytest.raises(ValueError, match="one array was given for 'a' and 'b'"):
            PROGRAMS[name](x, x)
    assert bits(x) == large().tobytes()


def test_a_new_value_may_have_another_size() -> None:
    grown = program.trace(
        lambda cache, row: mx.concatenate([cache, row]),
        [Input("cache", ("n", 3), mx.float32), Input("row", (1, 3), mx.float32)],
        updates={"cache": 0},
    )
    cache = mx.zeros((2, 3))
    for n in range(3, 9):
        assert grown(cache, mx.full((1, 3), float(n))) is cache
        assert cache.shape == (n, 3)
        assert cache[-1].tolist() == [float(n)] * 3
    with pytest.raises(ValueError, match="the new value of input 'cache' has shape"):
        grown(np.zeros((2, 3), np.float32), mx.zeros((1, 3)))


# ---- other libraries' memory ----


def test_numpy_memory_is_read_and_updated_where_it_lies() -> None:
    step = PROGRAMS["update"]
    a, b = large(1), large(2)
    wanted = bits(HALVED(mx.array(a), mx.array(b)))
    where, before = a.ctypes.data, mx.get_active_memory()
    step.run([a.copy(), b])
    mx.reset_peak_memory()
    (found,) = step.run([a, b])
    assert found is a
    assert (a.ctypes.data, bits(a)) == (where, wanted)
    assert mx.get_peak_memory() - before < N  # nothing was copied


def test_memory_that_overlaps_is_read_before_it_is_written() -> None:
    step = PROGRAMS["update"]
    whole = np.concatenate([large(1), large(2)[: N // 2]])
    a, b = whole[:N], whole[N // 2 :]
    wanted = bits(HALVED(mx.array(a.copy()), mx.array(b.copy())))
    step.run([a, b])
    assert bits(a) == wanted
    swap = PROGRAMS["swap"]
    a, b = large(1), large(2)
    swap.run([a, b])
    assert (bits(a), bits(b)) == (large(2).tobytes(), large(1).tobytes())


def test_results_never_lie_in_lent_memory() -> None:
    step = program.trace(lambda x: [x, x[::-1], x.reshape(2, -1)], [Input("x", (6,), mx.float32)])
    x = np.arange(6, dtype=np.float32)
    for results in (step.run([x]), step.run_numpy([x])):
        x[:] = 7
        assert [np.array(r).reshape(-1)[0] for r in results] == [0.0, 5.0, 0.0]
        x[:] = np.arange(6)


DTYPES = ("bool_", "int8", "uint16", "int64", "float16", "bfloat16", "float64", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_dtypes_come_in_and_go_out_without_a_cast(dtype: str) -> None:
    kind = getattr(mx, dtype)
    step = program.trace(lambda x: [x[::-1], mx.where(x == x, x, x)], [Input("x", ("n",), kind)])
    values = np.array(mx.array([0, 1, 1, 0, 1], dtype=kind))
    for x in (values, values[::-1], np.repeat(values, 2)[::2], values.astype(values.dtype.newbyteorder())):
        if dtype == "bfloat16" and not x.dtype.isnative:
            continue
        (turned, same) = step.run_numpy([x])
        assert turned.dtype == values.dtype
        assert turned.tolist() == x.tolist()[::-1]
        assert same.flags.writeable


def test_bools_are_0_and_1() -> None:
    step = program.trace(lambda x: x.astype(mx.int32), [Input("x", (3,), mx.bool_)])
    strange = np.array([0, 2, 255], np.uint8).view(np.bool_)
    assert step.run([strange])[0].tolist() == [0, 1, 1]


def test_what_cannot_be_lent() -> None:
    step, read = PROGRAMS["update"], PROGRAMS["read"]
    fixed = large(1)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="input 'a' is updated, and the memory given for it is read-only"):
        step(fixed, large(2))
    read(fixed, large(2))
    for bad in (3, [1.0, 2.0], "x", None, np.zeros(3, "M8[s]"), np.array(["a"]), object()):
        with pytest.raises(TypeError, match="input 'b' must be an array"):
            read(fresh(), bad)
    for bad in (np.zeros(N), np.zeros((N, 1), np.float32)):
        with pytest.raises(ValueError, match=r"input b: float32 \(n,\); got"):
            read(fresh(), bad)


# ---- transforms, files, errors ----


def test_inside_other_functions_updates_are_assignments() -> None:
    step = PROGRAMS["update"]

    @mx.compile
    def twice(a: Array, b: Array) -> Array:
        step(a, b)
        return step(a, b) + 1

    a, b = fresh(1), fresh(2)
    wanted = HALVED(HALVED(mx.array(large(1)), b), b)
    assert bits(twice(a, b)) == bits(wanted + 1)
    assert bits(a) == bits(wanted)

    def loss(b: Array) -> Array:
        c = mx.array([1.0, 2.0])
        step(c, b)
        return mx.sum(c * c)

    assert mx.grad(loss)(mx.array([3.0, 4.0])).tolist() == [7.0, 10.0]
    assert [x.shape for x in mx.vmap(lambda b: step.run([mx.ones((2,)), b])[0])(mx.ones((3, 2)))] == [(2,)] * 3
    donated = PROGRAMS["donate"]
    a = fresh(1)
    assert bits(mx.compile(lambda a, b: donated(a, b))(a, b)) == bits(donated.fun(mx.array(large(1)), b))
    assert bits(a) == large(1).tobytes()


def test_a_function_that_overwrites_its_own_arrays_changes_none_of_the_callers() -> None:
    def fun(x: Array) -> Array:
        x += 1
        return x * 2

    step = program.trace(fun, [Input("x", ("n",), mx.float32)])
    x = mx.array([1.0, 2.0])
    assert step(x).tolist() == mx.compile(lambda x: step(x))(x).tolist() == [4.0, 6.0]
    assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("name", sorted(CASES))
def test_files_keep_names_updates_and_donation(name: str) -> None:
    case = CASES[name]
    step = made(case, ("rows",))
    file = io.BytesIO()
    step.save(file)
    again = program.load(io.BytesIO(file.getvalue()))
    assert repr(again) == repr(step)
    assert again._instances[0].updated == step._instances[0].updated
    for _ in range(2):
        a, b = fresh(1), fresh(2)
        where = at(a)
        wanted = [bits(x) for x in leaves(case.fun(mx.array(large(1)), b))]
        results = again.run([a, b])
        assert [bits(x) for x in results] == wanted
        assert (not case.in_place) or any(at(x) == where for x in results)
        assert mx.import_function(io.BytesIO(file.getvalue())) is not None


def _said(inputs: Any, updates: Any) -> str:
    return json.dumps({"weft program": {"inputs": inputs, "updates": updates}})


DAMAGED = (
    "{",
    "[]",
    "{}",
    '{"weft program": 3}',
    _said([["a"]], {}),
    _said([["a", [1, 2], False]], {}),
    _said([], {"a": "b"}),
)


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_descriptions(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.BytesIO()
    monkeypatch.setattr(
        json, "dumps", lambda value, dumps=json.dumps, **k: text if "weft program" in value else dumps(value, **k)
    )
    made(CASES["update"]).save(file)
    monkeypatch.undo()
    file.seek(0)
    with pytest.raises(RuntimeError, match="cannot be read"):
        program.load(file)


def test_errors_of_updates() -> None:
    a, b = Input("a", ("n",), mx.float32), Input("b", (4,), mx.float32)
    for updates, problem in (
        ({"c": 0}, "none named 'c'"),
        ({"a": 2}, "one of 2 results"),
        ({"a": "x"}, "got 'x'"),
        ({"a": True}, "got True"),
        ({"b": 1}, r"result 1 is to be the new value of input b: float32 \(4,\), and is"),
    ):
        with pytest.raises(ValueError, match=problem):
            program.trace(lambda a, b: [a * 2, b[:2]], [a, b], updates=updates)
    with pytest.raises(ValueError, match="'a' is donated, so no array is left"):
        program.trace(lambda a: a, [Input("a", (2,), mx.float32, donated=True)], updates={"a": 0})
    with pytest.raises(TypeError, match="donated of input 'a' is True or False"):
        Input("a", (), mx.float32, donated=1)  # type: ignore[arg-type]


def test_threads_that_update_one_array_in_turns() -> None:
    """Each call reads a value that some call has left, and none is lost or seen halfway."""
    step = program.trace(lambda a: a + 1, [Input("a", (N,), mx.float32)], updates={"a": 0})
    a = mx.zeros((N,))
    mx.eval(a)
    wrong: list[Any] = []

    def look() -> None:
        for _ in range(20):
            values = np.array(a)
            if not (values == values[0]).all():
                wrong.append(values)

    def work() -> None:
        for _ in range(20):
            step(a)

    threads = [threading.Thread(target=f) for f in (work, look, work, look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 20 <= a[0].item() <= 40


def test_what_the_memory_report_says() -> None:
    step = program.trace(
        lambda cache, x: [mx.slice_update(cache, mx.exp(x)[None], mx.array([2]), (0,)), mx.sort(x)],
        [Input("cache", (64, 4096), mx.float32), Input("x", (4096,), mx.float32)],
        updates={"cache": 0},
    )
    report = step.memory_report(mx.zeros((64, 4096)), mx.zeros((4096,)))
    assert report.inputs == ("input cache: overwritten",)
    assert len(report.in_place) + len(report.apart) == report.values
    assert report.peak < 64 * 4096 * 4
    assert report.results == 64 * 4096 * 4 + 4096 * 4
    assert any("lies on" in line for line in report.in_place)
    assert all(": " in line for line in report.apart)
    assert str(report).splitlines()[1].startswith(f"{len(report.in_place)} of {report.values} values in place")
    small = program.trace(lambda a: a + 1, [Input("a", (4,), mx.float32)], updates={"a": 0})
    assert small.memory_report(mx.zeros((4,))).inputs == ("input a: copied, because it is small",)
    kept = program.trace(
        lambda a, b: [mx.exp(a), a.T, mx.exp(b)], [Input(x, (300, 300), mx.float32, x == "a") for x in "ab"]
    )
    found = kept.memory_report(mx.zeros((300, 300)), mx.zeros((300, 300)))
    assert found.in_place == ()
    assert "is needed later" in found.apart[0]
    assert "is an input, which the caller keeps" in found.apart[1]
    assert found.inputs[0].startswith("input a: copied, because")


@pytest.mark.parametrize("first", [0, 1, 4, 15])
def test_memory_of_numpy_begins_anywhere(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where results are so large that they are written past the caches."""
    monkeypatch.setattr(base, "STREAM_BYTES", 1)
    step = made(CASES["update"])
    a = np.zeros(N + 32, np.float32)
    a = a[-a.ctypes.data % 64 // 4 + first :][:N]
    assert a.ctypes.data % 64 == 4 * first
    a[:], b = large(1), large(2)
    expected = a * np.float32(0.5) + b
    step.run([a, b])
    np.testing.assert_array_equal(a, expected)
