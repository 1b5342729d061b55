"""`weft.program`: what front ends come through."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
import weft.core as mx
from weft import program
from weft.graph.node import kind_of
from weft.primitives.elementwise import Add
from weft.program import Input

W = mx.array(np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32))


def build(x: mx.array, y: mx.array) -> Any:
    h = mx.tanh(x @ W)
    last, rows = mx.scan(lambda c, r: (c * 0.5 + r, c), mx.zeros((4,)), h)
    return {"h": h + y, "t": (last, [mx.flip(rows, 0)])}


INPUTS = [Input("x", ("n", 3), mx.float32), Input("y", ("n", 1), mx.float32)]


def arrays(n: int) -> tuple[mx.array, mx.array]:
    rng = np.random.default_rng(n)
    return mx.array(rng.normal(size=(n, 3)).astype(np.float32)), mx.array(rng.normal(size=(n, 1)).astype(np.float32))


def bits(value: Any) -> list[tuple[tuple[int, ...], bytes]]:
    flat = [value["h"], value["t"][0], value["t"][1][0]]
    return [(x.shape, np.asarray(x).tobytes()) for x in flat]


def test_a_program_is_its_function_for_all_sizes() -> None:
    made = program.trace(build, INPUTS)
    for n in (12, 5, 7, 1, 0, 2, 30, 1):
        x, y = arrays(n)
        assert bits(made(x, y=y)) == bits(build(x, y)), n
        assert [x.shape for x in made.run([x, y])] == [(n, 4), (4,), (n, 4)]
    assert len(made._instances) == 3  # of any size, of 1 and of 0
    assert repr(made) == "Program build(x: float32 (n, 3); y: float32 (n, 1))"


def test_the_function_runs_once_for_all_sizes_that_it_does_not_tell_apart() -> None:
    calls: list[int] = []

    def looked(x: mx.array) -> mx.array:
        calls.append(1)
        return x * 2 if x.shape[0] > 8 else x * 3

    made = program.trace(looked, [Input("x", ("n",), mx.float32)])
    for n in range(2, 20):
        assert made(mx.ones((n,))).tolist() == [2.0 if n > 8 else 3.0] * n
    assert len(calls) == 2


def test_strided_lazy_and_constant_inputs() -> None:
    made = program.trace(lambda x: mx.cumsum(x, axis=1), [Input("x", ("n", "m"), mx.float32)])
    x = mx.arange(12, dtype=mx.float32).reshape(3, 4)
    for given_ in (x.T, x[::-1], x[:, ::2], mx.broadcast_to(x[:1], (5, 4)), x * 2 + 1, mx.ones((3, 4))):
        assert made(given_).tolist() == mx.cumsum(given_, axis=1).tolist()


def test_files() -> None:
    made = program.trace(build, INPUTS, name="two")
    x, y = arrays(1)
    made(x, y)
    file = io.BytesIO()
    made.save(file)
    again = program.load(io.BytesIO(file.getvalue()))
    assert (again.name, [i.name for i in again.inputs]) == ("two", ["x", "y"])
    assert again.inputs[0].shape[1] == 3
    for n in (1, 6, 17):
        x, y = arrays(n)
        assert bits(again(x, y)) == bits(build(x, y))
    other = mx.import_function(io.BytesIO(file.getvalue()))
    assert bits(other(x=x, y=y)) == bits(build(x, y))
    with pytest.raises(ValueError, match="no graph for a call"):
        again(*arrays(0))
    plain = io.BytesIO()
    mx.export_function(plain, lambda x: x + 1, mx.ones(3))
    plain.seek(0)
    with pytest.raises(ValueError, match="read it with import_function"):
        program.load(plain)
    with pytest.raises(RuntimeError, match="cannot be read"):
        program.load(io.BytesIO(file.getvalue()[:-3]))


def test_programs_without_named_sizes_are_saved_too() -> None:
    made = program.trace(lambda x: x + 1, [Input("x", (2,), mx.int32)])
    file = io.BytesIO()
    made.save(file)
    file.seek(0)
    assert program.load(file)(mx.array([1, 2])).tolist() == [2, 3]


def test_inside_other_functions() -> None:
    made = program.trace(lambda x: mx.sum(mx.sin(x)), [Input("x", ("n",), mx.float32)])
    x = mx.array([0.5, 1.0, 2.0])
    assert mx.grad(made)(x).tolist() == mx.grad(lambda x: mx.sum(mx.sin(x)))(x).tolist()
    assert mx.compile(lambda x: made(x) * 2)(x).item() == (made(x) * 2).item()
    assert mx.vmap(made)(mx.stack([x, x])).shape == (2,)
    assert "sin" in str(weft.explain(made, x, measure=False))


def test_primitives() -> None:
    made = program.trace(lambda x, y: program.apply(Add(), x, y), [Input(n, ("n",), mx.int32) for n in "ab"])
    assert made(mx.array([1, 2]), mx.array([10, 20])).tolist() == [11, 22]


def test_memory_report() -> None:
    made = program.trace(lambda x: mx.exp(mx.sort(x)) + 1, [Input("x", ("n",), mx.float32)])
    found = made.memory_report(mx.ones((1000,)))
    assert found.results == 4000
    assert found.steps == len(made.plan(mx.ones((1000,))).items)
    assert str(found).startswith(f"{found.steps} steps")


@pytest.mark.parametrize(
    ("call", "error", "problem"),
    [
        (lambda p, x, y: p(x), TypeError, "input 'y' is missing"),
        (lambda p, x, y: p(x, y, x), TypeError, "takes 2 arrays; got 3"),
        (lambda p, x, y: p(x, y=y, z=y), TypeError, "has no input 'z'"),
        (lambda p, x, y: p(x, y[:2]), ValueError, "size 'n' is 4 in input 'x' and 2 in 'y'"),
        (lambda p, x, y: p(x[:, :2], y), ValueError, r"input x: float32 \(n, 3\); got shape \(4, 2\)"),
        (lambda p, x, y: p(x.astype(mx.int32), y), ValueError, "input x: float32"),
        (lambda p, x, y: p(x[0], y), ValueError, "input x: float32"),
        (lambda p, x, y: p(x, 3), TypeError, "input 'y' must be an array"),
    ],
)
def test_errors_of_calls(call: Callable[..., Any], error: type[Exception], problem: str) -> None:
    made = program.trace(build, INPUTS)
    with pytest.raises(error, match=problem):
        call(made, *arrays(4))


def test_errors_of_programs() -> None:
    x = Input("x", ("n",), mx.float32)
    for make, problem in (
        (lambda: program.trace(lambda x, y: x, [x, x]), "different names"),
        (lambda: Input("a b", (), mx.float32), "a name that a keyword can have"),
        (lambda: Input("a", (-1,), mx.float32), "a number or a name"),
        (lambda: program.trace(lambda x: 3, [x]), "must return arrays"),
        (lambda: program.trace(lambda x: x + mx.random.normal((3,))[0], [x]), "global random state"),
        (lambda: program.trace(lambda x: x[0].item(), [x]), "no value while"),
    ):
        with pytest.raises(ValueError, match=problem):
            make()
    with pytest.raises(TypeError, match="must be a Weft dtype"):
        Input("a", (), "float32")  # type: ignore[arg-type]
    kept: list[Any] = []
    program.trace(lambda x: kept.append(x) or x, [x])
    with pytest.raises(ValueError, match="means nothing outside"):
        kept[0].tolist()


STEPS: list[Callable[[mx.array], mx.array]] = [
    lambda x: x * 2 + 1, lambda x: x[::-1], lambda x: mx.cumsum(x), lambda x: mx.concatenate([x, x]),
    lambda x: x.reshape(-1, 1).T[0], lambda x: mx.pad(x, 1), lambda x: x - mx.max(x), lambda x: mx.sort(x),
    lambda x: mx.softmax(x), lambda x: x * x.shape[0],
]  # fmt: skip


@settings(max_examples=25)
@given(
    chosen=st.lists(st.integers(0, len(STEPS) - 1), min_size=1, max_size=5),
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4),
)
def test_random_programs(chosen: list[int], sizes: list[int]) -> None:
    def f(x: mx.array) -> mx.array:
        for number in chosen:
            x = STEPS[number](x)
        return x

    def outcome(g: Callable[[mx.array], mx.array], x: mx.array) -> Any:
        try:
            return np.asarray(g(x)).tobytes()
        except ValueError as error:
            return type(error)

    made = program.trace(f, [Input("x", ("n",), mx.float32)])
    for n in sizes:
        x = mx.array(np.random.default_rng(n).normal(size=n).astype(np.float32))
        assert outcome(made, x) == outcome(f, x), n


def test_a_front_end_may_lay_out_calls_itself() -> None:
    weights = mx.array([2.0, 3.0, 4.0])
    mx.eval(weights)
    inputs = [Input("x", ("n", 3), mx.float32), Input("y", ("n", 3), mx.float32)]
    made = program.trace(lambda x, y: [y * weights + x * 0.25], inputs)
    for n in (5, 2, 5):
        x, y = (np.arange(3 * n, dtype=np.float32).reshape(n, 3) + k for k in (0, 1))
        ready = made.ready([kind_of((n, 3), mx.float32)] * 2)
        result = np.empty((n, 3), np.float32)
        given = [(x, y)[s].ctypes.data if isinstance(s, int) else s.address for s in ready.sources]
        ready.executable.program.run([*given, result.ctypes.data, *ready.words])
        assert ready.is_fresh
        assert [kind.shape for kind in ready.kinds] == [(n, 3)]
        assert (result == np.array(made.run([mx.array(x), mx.array(y)])[0])).all()


def test_no_single_plan_holds_where_sizes_depend_on_data() -> None:
    made = program.trace(lambda x: [x[x > 0]], [Input("x", ("n",), mx.float32)])
    with pytest.raises(ValueError, match="sizes depend on data"):
        made.ready([kind_of((4,), mx.float32)])
