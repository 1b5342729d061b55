"""Calling compiled functions: which trace is taken, how long that takes, from how many threads, and what is said when
it cannot be done."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft.config import config
from weft.frontends import mlx
from weft.transforms import compile as compiling
from weft.transforms import variant as variants

X = mx.array(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4))


def data(x: Any) -> Any:
    return np.asarray(x).tobytes()


@mx.compile
def decorated(x: mx.array) -> mx.array:
    """Doc."""
    return mx.exp(x) * 2.0


class Holder:
    @mx.compile
    def method(self, x: mx.array) -> mx.array:
        return x * 2.0


# ---- the key ----


def test_layouts_are_told_apart_by_the_argument_that_has_them() -> None:
    a, b = (mx.array(np.arange(9, dtype=np.float32).reshape(3, 3) * k) for k in (1, 10))
    f = mx.compile(lambda a, b: a - b * 2.0)
    for first, second in ((a.T, b), (a, b.T), (a.T, b.T), (a, b), (a[::-1], b)):
        assert data(f(first, second)) == data(first - second * 2.0)


def test_the_same_array_twice_is_another_signature() -> None:
    def fun(a: mx.array, b: mx.array) -> mx.array:
        return a * 2.0 if a is b else a + b

    f = mx.compile(fun)
    other = mx.array(X)
    for a, b in ((X, other), (X, X), (other, other), (X, other)):
        assert data(f(a, b)) == data(fun(a, b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1.0], (1.0,)),
        (slice(1, 2), slice(True, 2)),
        (slice(0, 3), slice(0, 3, 1)),
        (range(3), range(0, 3, 1)),
        ({1: "a"}, {True: "a"}),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (0j, -0j),
        (b"a", "a"),
        (mx.float32, mx.float16),
        (np.float32(1), np.float64(1)),
        (None, Ellipsis),
        ((), []),
        ({1}, frozenset({1})),
    ],
)
def test_what_looks_alike_is_told_apart(a: Any, b: Any) -> None:
    f = mx.compile(lambda x, v: (x * 2.0, repr(v), v))
    for value in (a, b, a):
        assert f(X, value)[1] == repr(value)
        assert type(f(X, value)[2]) is type(value)


def test_order_of_keywords() -> None:
    f = mx.compile(lambda x, **kw: list(kw))
    assert f(X, a=1, b=2) == ["a", "b"]
    assert f(X, b=2, a=1) == ["b", "a"]


def test_weak_and_strong_numbers() -> None:
    f = mx.compile(lambda x, v: x * v)
    x = X.astype(mx.float16)
    for v in (2.0, mx.array(2.0), np.float32(2.0), 2, mx.array(2)):
        assert f(x, v).dtype == (x * v).dtype


# ---- time ----


def best(fun: Callable[[], Any], count: int = 300, rounds: int = 9) -> float:
    """Seconds of one call, at best."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(count):
            fun()
        times.append(time.perf_counter() - start)
    return min(times) / count


def test_a_thousand_signatures_cost_nothing_to_look_up() -> None:
    xs = [mx.array(np.ones(n, np.float32)) for n in range(1, 1001)]
    few, many = mx.compile(lambda x: x * 2.0), mx.compile(lambda x: x * 2.0)
    numbers = mx.compile(lambda x, n: x * len(range(n)))
    few(xs[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n, x in enumerate(xs):
            many(x)
            numbers(xs[0], n)
    assert many.traces == numbers.traces == 1000
    one, thousand = best(lambda: few(xs[0])), best(lambda: many(xs[500]))
    assert thousand < one * 2, (one, thousand)
    assert best(lambda: numbers(xs[0], 500)) < best(lambda: numbers(xs[0], 0)) * 2


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "MOST_VARIANTS", 10)
    for fun, args in (
        (lambda x, n: x * 2.0, [(mx.zeros((n + 1,)), 1) for n in range(30)]),
        (lambda x, n: x * len(range(n)), [(X, n) for n in range(30)]),
    ):
        f = mx.compile(fun)
        for pair in (*args, *args[::-1]):
            assert data(f(*pair)) == data(fun(*pair))
        assert sum(1 for entry in f._variants.values() for _ in entry) <= 10


# ---- around it ----


def test_functions_without_arrays() -> None:
    f = mx.compile(lambda: mx.array([1.0, 2.0]) * 3.0)
    assert f().tolist() == f().tolist() == [3.0, 6.0]
    g = mx.compile(lambda a, b=2: (a + b, [a] * 2, None))
    assert g(1) == (3, [1, 1], None)
    assert g(5, b=4) == (9, [5, 5], None)
    assert g.traces == 2


def test_recursion_and_nesting() -> None:
    inner = mx.compile(lambda x, a: mx.sum(mx.tanh(x * a)))
    outer = mx.compile(mx.grad(mx.compile(lambda x, a: inner(x, a) * a)))
    for a in (0.5, 1.5):
        assert data(outer(X, a)) == data(mx.grad(lambda x, a=a: mx.sum(mx.tanh(x * a)) * a)(X))
    assert outer.traces == 1

    @mx.compile
    def power(x: mx.array, n: int) -> mx.array:
        return x if n == 0 else x * power(x, n - 1)

    for n in (0, 1, 5):
        assert data(power(X, n)) == data(X * X**n if n == 0 else power.__wrapped_function__(X, n)) or n == 0


def test_pickling_by_name_and_as_a_method() -> None:
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert decorated.__doc__ == "Doc."
    bound = pickle.loads(pickle.dumps(Holder().method))
    assert data(bound(X)) == data(X * 2.0)


def test_threads_that_call_one_function_while_it_is_traced() -> None:
    weights, shared = mx.array(np.eye(4, dtype=np.float32) * 2), [X * float(i) for i in range(3)]

    def fun(x: mx.array, a: float, n: int) -> mx.array:
        y = x @ weights * a
        for i in range(n):
            y = y + mx.sin(y) * i
        return y

    for shapeless in (False, True):
        f, found, failed = mx.compile(fun, shapeless=shapeless), [], []

        def work(k: int, f: Any = f, found: Any = found, failed: Any = failed) -> None:
            try:
                for i in range(12):
                    call = (shared[(i + k) % 3], float(k + i), i * k % 5)
                    found.append((call, data(f(*call))))
            except Exception as error:  # to be seen by the test, not by the thread
                failed.append(error)

        workers = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not failed
        assert len(found) == 72
        for call, value in found:
            assert value == data(fun(*call))
        assert f.traces == 5


def test_a_function_that_keeps_retracing_is_named_with_the_cause() -> None:
    log: list[Any] = []

    def grows(x: mx.array) -> mx.array:
        log.append(x)
        return x * len(log)

    f = mx.compile(grows)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(40):
            f(X)
    (warning,) = caught
    assert "[compile] grows keeps retracing" in str(warning.message)
    assert "a list of 30 became a list of 31" in str(warning.message)
    assert warning.filename == __file__


def test_a_function_that_retraces_for_every_size_is_told_how_not_to() -> None:
    sizes = range(2, 42)
    f = mx.compile(lambda x: x * 2)
    with pytest.warns(UserWarning, match=r"float32\[32\] became an array float32\[33\].*shapeless=True"):
        mx.eval([f(mx.ones((n,))) for n in sizes])
    f = mx.compile(lambda x: x * 2, shapeless=True)
    mx.eval([f(mx.ones((n,))) for n in sizes])
    assert f.traces == 1


# ---- what a trace cannot hold ----


def branch(x: mx.array) -> mx.array:
    return x if mx.sum(x) > 0 else -x


def evaluate(x: mx.array) -> mx.array:
    y = x * 2.0
    mx.eval(y)
    return y


def item(x: mx.array) -> Any:
    return x[0, 0].item()


def loop(x: mx.array) -> mx.array:
    while mx.max(x) < 10:
        x = x * 2
    return x


def to_list(x: mx.array) -> Any:
    return x.tolist()


def show(x: mx.array) -> Any:
    return str(x)


def to_numpy(x: mx.array) -> Any:
    return np.asarray(x)


@pytest.mark.parametrize("shapeless", [False, True])
@pytest.mark.parametrize("fun", [branch, evaluate, item, loop, to_list, show, to_numpy])
def test_a_value_that_is_asked_for_is_an_error_at_the_users_line(fun: Any, shapeless: bool) -> None:
    state = {"w": mx.array(1.0), "n": 1}

    def outer(x: mx.array) -> Any:
        state["w"] = state["w"] + 1.0
        state["n"] += 1
        state["new"] = x
        return fun(x)

    f = mx.compile(outer, shapeless=shapeless)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"\[compile\].*where.*cond.*while_loop") as caught:
            f(X)
        line = f"{__file__}:{fun.__code__.co_firstlineno}"
        first = fun.__code__.co_firstlineno
        assert any(f"{__file__}:{first + k})" in str(caught.value) for k in range(4)), (line, caught.value)
    assert list(state) == ["w", "n"]
    assert state["n"] == 1
    assert state["w"].item() == 1.0
    assert data(X * 1.0) == data(X)


def test_values_that_depend_on_nothing_can_be_asked_for() -> None:
    f = mx.compile(lambda x: x * mx.arange(3).tolist()[2] + mx.array([1.0, 2.0]).sum().item())
    for _ in range(2):
        assert data(f(X)) == data(X * 2 + 3.0)


# ---- switches ----


def test_the_environment_switches_compile_off() -> None:
    script = (
        "import weft.core as mx\n"
        "f = mx.compile(lambda x: x * 2.0)\n"
        "f(mx.array(1.0)); before = f.traces\n"
        "mx.enable_compile(); f(mx.array(1.0))\n"
        "print(before, f.traces)\n"
    )
    environment = {**os.environ, "WEFT_DISABLE_COMPILE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1"], done.stderr


def test_programs_for_mlx_obey_its_own_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "disable_compile", False)
    monkeypatch.setattr(mlx, "sys", types.SimpleNamespace(meta_path=[], modules={}))
    mlx.install()
    assert not config.disable_compile
    mlx.uninstall()
    monkeypatch.setattr(config, "mlx_disable_compile", True)
    mlx.install()
    f = mx.compile(lambda x: x * 2.0)
    f(X)
    assert f.traces == 0


# ---- arrays that are not computed yet ----


def is_pending(x: mx.array) -> bool:
    return x._node.value is None


@pytest.mark.parametrize("shapeless", [False, True])
def test_a_small_function_does_not_wait_for_its_arguments(shapeless: bool) -> None:
    """It becomes part of what is computed with them, and its Python code does not run again."""
    calls: list[int] = []
    body = gate if shapeless else gate_and_half
    counted = mx.compile(body, shapeless=shapeless)
    x, y = mx.array([1.0, -2.0, 3.0]), mx.array([0.5, 0.25, 4.0])
    first = counted(x, y)  # traced on what is computed
    calls.append(counted.traces)
    pending = x * 2.0
    made = counted(pending, y)
    assert is_pending(pending)
    assert all(is_pending(z) for z in (made if isinstance(made, tuple) else (made,)))
    assert counted.traces == calls[0]
    for got, wanted in zip(leaves(made), leaves(body(x * 2.0, y)), strict=True):
        assert np.array(got).tobytes() == np.array(wanted).tobytes()
    assert np.array(leaves(first)[0]).tobytes() == np.array(leaves(body(x, y))[0]).tobytes()


def gate(x: mx.array, y: mx.array) -> mx.array:
    return x * mx.sigmoid(x) * y


def gate_and_half(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
    return x * mx.sigmoid(x) * y, (x - 0.5).sum(keepdims=True)


def leaves(made: Any) -> list[mx.array]:
    return list(made) if isinstance(made, tuple | list) else [made]


def by_size(x: mx.array) -> mx.array:
    return x[1:] * x.shape[0] if x.shape[0] > 4 else mx.reshape(x, (1, -1)) - 1.0


def test_what_a_small_function_decides_by_sizes_is_decided_for_pending_arrays_too() -> None:
    compiled = mx.compile(by_size, shapeless=True)
    for n in (3, 6, 4, 5, 9, 2, 7):
        x = mx.array(np.arange(n, dtype=np.float32))
        for given in (x, x + 1.0):
            expected = by_size(mx.array(np.array(given + 0.0)))
            got = compiled(given * 1.0)
            assert got.shape == expected.shape
            assert np.array(got).tobytes() == np.array(expected * 1.0).tobytes()


def test_one_pending_array_in_two_places() -> None:
    """The function may tell by `is`: it is not the trace for two arrays."""
    compiled = mx.compile(same)
    x, y = mx.array([1.0]), mx.array([2.0])
    assert compiled(x, y).item() == 3.0
    pending = x + 1.0
    assert compiled(pending, pending).item() == 0.0
    assert compiled(x + 1.0, y + 1.0).item() == 5.0


def same(x: mx.array, y: mx.array) -> mx.array:
    return x * 0.0 if x is y else x + y


def constant_too(x: mx.array, y: mx.array) -> tuple[mx.array, mx.array]:
    return mx.full(x.shape, 2.5), x * mx.full(x.shape, 2.5) + y


def twice_the_same(x: mx.array, y: mx.array) -> list[mx.array]:
    both = x - y
    return [both, both]


def sum_by_size(x: mx.array, y: mx.array) -> mx.array:
    return (x[1:] * y.shape[0]).sum() if x.shape[0] > 4 else mx.reshape(x - y, (1, -1)).astype(mx.float16)


def sorted_parts(x: mx.array, y: mx.array) -> mx.array:
    return mx.concatenate(mx.split(mx.sort(x), [1]), axis=0) + mx.fast.rms_norm(y, None, 1e-5)


@pytest.mark.parametrize("shapeless", [False, True])
@pytest.mark.parametrize("body", [gate, gate_and_half, constant_too, twice_the_same, sum_by_size, sorted_parts, same])
def test_what_is_made_of_pending_arrays_is_remembered_by_their_kinds(
    body: Callable[..., Any], shapeless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes come again, dtypes change, some come too often to be remembered: bits are those of the plain function."""
    monkeypatch.setattr(variants, "MOST_KINDS", 4)
    compiled = mx.compile(body, shapeless=shapeless)
    random = np.random.default_rng(3)
    for n in (3, 5, 3, 3, 3, 6, 5, 5, 7, 8, 9, 10, 5, 5, 5, 3, 3, 2, 1, 1, 1, 3):
        for dtype in (mx.float32, mx.bfloat16):
            x, y = (mx.array(random.standard_normal(n), dtype) for _ in range(2))
            compiled(x + 0.0, y)  # the first of a kind is traced, on what is computed
            made = leaves(compiled(x * 2.0, y))
            expected = leaves(body(x * 2.0, y))
            assert [(a.shape, a.dtype) for a in made] == [(a.shape, a.dtype) for a in expected]
            assert [data(a.astype(mx.float32)) for a in made] == [data(a.astype(mx.float32)) for a in expected]


def test_constants_that_a_small_function_returns_are_new_ones() -> None:
    compiled = mx.compile(constant_too)
    x, y = mx.array([1.0, -2.0, 3.0]), mx.array([0.5, 0.25, 4.0])
    made = [compiled(x * 2.0, y)[0] for _ in range(5)]
    assert len({id(a._node) for a in made}) == 5
    made[-1][0] = 1.0
    assert [a.tolist() for a in made] == [[2.5, 2.5, 2.5]] * 4 + [[1.0, 2.5, 2.5]]


def test_a_small_function_is_not_walked_through_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = mx.compile(gate, shapeless=True)
    x, y = mx.array([1.0, -2.0, 3.0]), mx.array([0.5, 0.25, 4.0])
    for _ in range(4):
        mx.eval(compiled(x * 2.0, y))
    monkeypatch.setattr(variants.Trace, "made_again", None)
    assert data(compiled(x * 2.0, y)) == data(gate(x * 2.0, y))
