"""compile gives what the plain function gives: for every kind of argument, captured state and side effect; or it
retraces; or it raises."""

from __future__ import annotations

import dataclasses
import functools
import gc
import math
import pickle
import re
import threading
import warnings
import weakref
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft.core as mx
from weft import tree
from weft.transforms.compile import Compiled


def bits(x: Any) -> Any:
    """A value in which equal means equal to the bit."""
    leaves, structure = tree.flatten(x)
    return structure, [(v.dtype, v.shape, np.asarray(v).tobytes()) if isinstance(v, mx.array) else v for v in leaves]


def traces(f: Any) -> int:
    assert isinstance(f, Compiled)
    return f.traces


X = mx.array(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4))


def module_level(x: mx.array) -> mx.array:
    return mx.exp(x) * 2.0


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: x + 1.0,
        lambda x: mx.softmax(x * 0.125, axis=-1),
        lambda x: (x, mx.sum(x), [x * 2, {"a": x.T}]),
        lambda x: x[::-1, 1:].T * 0.5,
        lambda x: mx.where(x > 0, x, float("nan")),
        lambda x: None,
        lambda x: 3,
        lambda x: (),
        lambda x: x,
        lambda x: [x, x],
        lambda x: mx.zeros((2, 2)),
        lambda x: mx.arange(3),
        module_level,
        mx.grad(lambda x: mx.sum(mx.tanh(x) * x)),
        mx.value_and_grad(lambda x: mx.mean(x * x)),
        mx.vmap(lambda row: mx.sum(row * row)),
        mx.compile(lambda x: x * 3.0),
        functools.partial(mx.sum, axis=0),
        mx.tanh,
    ],
)
def test_same_as_plain(fun: Any) -> None:
    f = mx.compile(fun)
    for x in (X, X * 2, X.T, X[::-1]):
        assert bits(f(x)) == bits(fun(x))
        assert bits(f(x)) == bits(fun(x))


def test_python_runs_once_for_one_signature(capsys: pytest.CaptureFixture[str]) -> None:
    def fun(x: mx.array) -> mx.array:
        print("traced")
        return x * 2.0

    f = mx.compile(fun)
    for _ in range(5):
        f(X)
    assert traces(f) == 1
    assert capsys.readouterr().out == "traced\n"


def test_new_shapes_and_dtypes_retrace() -> None:
    f = mx.compile(lambda x: mx.sum(x, axis=0) * x.shape[0])
    for x in (X, X[:2], X.astype(mx.float16), X[0], X.reshape(2, 6), X[0, 0][None]):
        assert bits(f(x)) == bits(mx.sum(x, axis=0) * x.shape[0])
    assert traces(f) == 6


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (True, 1),
        (1, 1.0),
        (0.0, -0.0),
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (float("nan"), 0.0),
        ("x", "y"),
        (None, 0),
    ],
)
def test_python_arguments_are_told_apart(a: Any, b: Any) -> None:
    f = mx.compile(lambda x, v: (x * 2.0, repr(v)))
    for v in (a, b, a):
        assert f(X, v)[1] == repr(v)


def test_nan_arguments_do_not_retrace() -> None:
    f = mx.compile(lambda x, v: x * v)
    f(X, float("nan"))
    f(X, float("nan"))
    assert traces(f) == 1


def test_keyword_arguments() -> None:
    f = mx.compile(lambda x, *, scale=1.0, shift=0.0: x * scale + shift)
    assert bits(f(X, scale=2.0)) == bits(X * 2.0 + 0.0)
    assert bits(f(X, shift=2.0)) == bits(X * 1.0 + 2.0)
    assert bits(f(X, shift=X, scale=X)) == bits(X * X + X)


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Box:
    value: Any
    name: str


def test_containers_in_and_out() -> None:
    def fun(p: Any) -> Any:
        return {"sum": p[0].a + p[1]["k"][0].value, "pair": Pair(p[0].b, (p[1]["n"],))}

    args = (Pair(X, X * 2), {"k": [Box(X, "x")], "n": 7})
    assert bits(mx.compile(fun)(args)) == bits(fun(args))


# ---- captured state ----

SCALE = 2.0


def test_globals_and_closures_are_read_anew() -> None:
    global SCALE
    offset, weights = 1.0, mx.array(3.0)

    def fun(x: mx.array) -> mx.array:
        return x * SCALE + offset * weights

    f = mx.compile(fun)
    assert bits(f(X)) == bits(fun(X))
    SCALE = 5.0
    assert bits(f(X)) == bits(fun(X))
    offset = 7.0
    assert bits(f(X)) == bits(fun(X))
    weights = mx.array(11.0)
    assert bits(f(X)) == bits(fun(X))
    before = traces(f)
    weights = mx.array(13.0)
    assert bits(f(X)) == bits(fun(X))
    assert traces(f) == before, "a new array of the same kind is a new input, not a new trace"
    SCALE = 2.0


def test_objects_lists_and_dicts_are_read_anew() -> None:
    class Model:
        def __init__(self) -> None:
            self.w = mx.array(2.0)
            self.layers = [{"b": mx.array(1.0)}, {"b": mx.array(2.0)}]
            self.flag = True

        def __call__(self, x: mx.array) -> mx.array:
            for layer in self.layers:
                x = x * self.w + layer["b"]
            return x if self.flag else -x

    model = Model()
    f = mx.compile(model)
    for change in (
        lambda: None,
        lambda: setattr(model, "w", mx.array(5.0)),
        lambda: model.layers[1].update(b=mx.array(7.0)),
        lambda: model.layers.append({"b": X}),
        lambda: setattr(model, "flag", False),
        lambda: model.layers.pop(),
    ):
        change()
        assert bits(f(X)) == bits(model(X))


def test_defaults_and_methods() -> None:
    class Counter:
        step = 3.0

        def __init__(self) -> None:
            self.total = mx.array(0.0)

        def add(self, x: mx.array, k: float = 2.0) -> mx.array:
            return x * k + self.total + self.step

    c = Counter()
    f = mx.compile(c.add)
    assert bits(f(X)) == bits(c.add(X))
    c.total = mx.array(4.0)
    assert bits(f(X)) == bits(c.add(X))
    Counter.step = 8.0
    assert bits(f(X)) == bits(c.add(X))


def test_decorated_method() -> None:
    class Thing:
        def __init__(self) -> None:
            self.w = mx.array(2.0)

        @mx.compile
        def forward(self, x: mx.array) -> mx.array:
            return x * self.w

    thing = Thing()
    assert bits(thing.forward(X)) == bits(X * 2.0)
    thing.w = mx.array(3.0)
    assert bits(thing.forward(X)) == bits(X * 3.0)


def test_helper_functions_are_followed() -> None:
    table = {"k": 1.0}

    def inner(x: mx.array) -> mx.array:
        return x * table["k"]

    f = mx.compile(lambda x: inner(x) + 1.0)
    f(X)
    table["k"] = 9.0
    assert bits(f(X)) == bits(X * 9.0 + 1.0)


# ---- effects ----


def test_writes_are_replayed() -> None:
    state: dict[str, Any] = {"count": mx.array(0), "log": []}

    def fun(x: mx.array, out: list[Any]) -> mx.array:
        state["count"] = state["count"] + 1
        state["last"] = x * 2.0
        out.append(x + 1.0)
        return state["count"] * x

    f = mx.compile(fun)
    compiled_out: list[Any] = []
    results = []
    for i in range(3):
        out: list[Any] = []
        results.append(bits((f(X * i, out), out, state["count"], state["last"])))
        compiled_out.extend(out)
    state = {"count": mx.array(0), "log": []}
    for i in range(3):
        out = []
        assert results[i] == bits((fun(X * i, out), out, state["count"], state["last"]))


def test_item_assignment_on_an_argument_is_replayed() -> None:
    def fun(a: mx.array) -> mx.array:
        a[0] = 1.0
        a += 2.0
        return a * 3.0

    f = mx.compile(fun)
    for _ in range(2):
        a, b = mx.array(X), mx.array(X)
        alias = a
        assert bits((f(a), a)) == bits((fun(b), b))
        assert alias is a


def test_attributes_are_replayed() -> None:
    class Optimizer:
        def __init__(self) -> None:
            self.step = mx.array(0)
            self.moments = [mx.zeros((3, 4))]

        def update(self, g: mx.array) -> mx.array:
            self.step = self.step + 1
            self.moments[0] = 0.9 * self.moments[0] + g
            return self.moments[0] / self.step

    a, b = Optimizer(), Optimizer()
    f = mx.compile(a.update)
    for i in range(4):
        assert bits(f(X * i)) == bits(b.update(X * i))
    assert bits(a.moments) == bits(b.moments)


def test_inputs_and_outputs_as_in_mlx() -> None:
    state = [mx.array(1.0), {"w": mx.array([1.0, 2.0])}]

    @functools.partial(mx.compile, inputs=state, outputs=state)
    def step(x: mx.array) -> mx.array:
        state[1]["w"] = state[1]["w"] * x
        state[0] = state[0] + mx.sum(state[1]["w"])
        return state[0]

    for x, expect in ((2.0, 7.0), (2.0, 19.0)):
        assert step(mx.array(x)).item() == expect
    assert bits(state) == bits([mx.array(19.0), {"w": mx.array([4.0, 8.0])}])


def test_random_numbers_are_new_at_each_call_and_those_of_the_plain_function() -> None:
    def fun(x: mx.array) -> mx.array:
        return x + mx.random.uniform(shape=(3, 4))

    f = mx.compile(fun)
    mx.random.seed(7)
    compiled = [bits(f(X)) for _ in range(3)]
    mx.random.seed(7)
    assert compiled == [bits(fun(X)) for _ in range(3)]
    assert compiled[0] != compiled[1]


def test_a_failed_trace_leaves_nothing_behind() -> None:
    state = {"w": mx.array(1.0)}

    def fun(x: mx.array) -> mx.array:
        state["w"] = state["w"] + 1.0
        if mx.sum(x) > 0:
            return x
        return -x

    f = mx.compile(fun)
    with pytest.raises(ValueError, match=r"\[compile\].*where.*test_compile.py"):
        f(X)
    assert state["w"].item() == 1.0
    assert bits(fun(X)) == bits(-X if mx.sum(X).item() <= 0 else X)


def test_what_cannot_be_followed_runs_plain_and_says_so() -> None:
    table = np.ones(100_000, np.float32)

    def fun(x: mx.array) -> mx.array:
        return x * float(table[0])

    f = mx.compile(fun)
    with pytest.warns(UserWarning, match="runs uncompiled.*numpy.ndarray"):
        assert bits(f(X)) == bits(fun(X))
    table[0] = 5.0
    assert bits(f(X)) == bits(fun(X))


# ---- around it ----


def test_compile_inside_other_transforms() -> None:
    f = mx.compile(lambda x: mx.sum(mx.exp(x) * x))
    plain = f.__wrapped_function__
    assert bits(mx.grad(f)(X)) == bits(mx.grad(plain)(X))
    assert bits(mx.vmap(f)(X)) == bits(mx.vmap(plain)(X))
    assert bits(mx.compile(mx.grad(f))(X)) == bits(mx.grad(plain)(X))
    assert bits(mx.jvp(f, [X], [X])) == bits(mx.jvp(plain, [X], [X]))


def test_recursion() -> None:
    @mx.compile
    def power(x: mx.array, n: int) -> mx.array:
        return x if n == 1 else x * power(x, n - 1)

    assert bits(power(X, 5)) == bits(X * (X * (X * (X * X))))


def test_threads() -> None:
    f = mx.compile(lambda x, k: mx.softmax(x * k, axis=-1))
    expected = [bits(mx.softmax(X * mx.array(float(k)), axis=-1)) for k in range(8)]
    found: list[Any] = [None] * 8

    def work(k: int) -> None:
        for _ in range(20):
            found[k] = bits(f(X, mx.array(float(k))))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert found == expected


def test_pickling() -> None:
    f = pickle.loads(pickle.dumps(mx.compile(module_level)))
    assert bits(f(X)) == bits(module_level(X))


def test_disable() -> None:
    f = mx.compile(lambda x: x * 2.0)
    mx.disable_compile()
    try:
        assert bits(f(X)) == bits(X * 2.0)
        assert traces(f) == 0
    finally:
        mx.enable_compile()
    f(X)
    assert traces(f) == 1


def test_many_signatures_warn_and_the_cache_is_bounded() -> None:
    f = mx.compile(lambda x, n: x * len(range(n)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in range(300):
            assert bits(f(X, n)) == bits(X * n)
    (warning,) = [str(w.message) for w in caught]
    assert re.search(r"keeps retracing.*read as such.*was 30 and is 31", warning)
    assert traces(f) == 300


def test_constants_of_every_kind_survive() -> None:
    for value in (math.nan, math.inf, -math.inf, -0.0, 1e-45, 3.4e38):
        f = mx.compile(lambda x, value=value: x * 0.0 + value)
        assert bits(f(X)) == bits(X * 0.0 + value)


def test_views_of_inputs_share_no_fate_with_them() -> None:
    f = mx.compile(lambda x: (x[::-1], x.T, x * 1.0))
    a = mx.array(X)
    outs = f(a)
    before = bits(outs)
    a += 100.0
    assert bits(outs) == before


def test_unevaluated_arguments() -> None:
    f = mx.compile(lambda x: x + 1.0)
    lazy = mx.exp(X) * 2.0
    assert bits(f(lazy)) == bits(lazy + 1.0)


def test_not_a_function() -> None:
    with pytest.raises(TypeError, match=r"\[compile\]"):
        mx.compile(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("shapeless", [False, True], ids=["", "shapeless"])
@pytest.mark.parametrize("operations", [1, 100])
def test_a_trace_keeps_none_of_its_arguments(operations: int, shapeless: bool) -> None:
    def fun(x: mx.array) -> mx.array:
        for _ in range(operations):
            x = mx.tanh(x) + 1
        return x

    compiled = mx.compile(fun, shapeless=shapeless)
    for n in (8, 9):
        x = mx.zeros((n, 64)) + 1
        mx.eval(x)
        held = weakref.ref(x._node.value.storage)
        y = compiled(x)
        mx.eval(y)
        del x
        gc.collect()
        assert held() is None
