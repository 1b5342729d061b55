"""What compiled functions see and change beside their arguments: it is read anew at each call, and changed at each
call, as the plain function would do it."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import random
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NewType, ParamSpec, TypeVar, TypeVarTuple, cast

import numpy as np
import pytest

import weft.core as mx
from weft.array import array

X = mx.array(np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4))
Array = mx.array | np.ndarray


def bits(value: Any) -> Any:
    """A value in which equal means equal to the bit, and of the same types."""
    if isinstance(value, array):
        return value.dtype, value.shape, np.asarray(value).tobytes()
    if isinstance(value, dict):
        return type(value), [(bits(k), bits(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [bits(v) for v in value]
    if dataclasses.is_dataclass(value):
        return type(value).__name__, bits(vars(value))
    return type(value), repr(value)


Program = tuple[Callable[[Any], Any], Callable[[int], Any], Callable[[], Any]]
"""A function, what happens between its calls, and the state that it works on."""


def same(make: Callable[[], Program], calls: int = 8, traces: int | None = None) -> Any:
    """Run two copies of a program side by side, one of them compiled."""
    plain, plain_turn, plain_state = make()
    fun, turn, state = make()
    f = mx.compile(fun)
    for i in range(calls):
        plain_turn(i)
        turn(i)
        assert bits(f(X * float(i))) == bits(plain(X * float(i))), f"call {i}"
        assert bits(state()) == bits(plain_state()), f"state after call {i}"
    assert traces is None or f.traces == traces
    return f


def nothing(i: int) -> None:
    pass


def in_module(text: str, **names: Any) -> dict[str, Any]:
    scope: dict[str, Any] = {"mx": mx, "__name__": "generated", **names}
    exec(text, scope)
    return scope


# ---- reading ----


def test_a_global_that_comes_after_the_function() -> None:
    def make() -> Program:
        scope = in_module("def f(x): return mx.exp(x) * LATER")
        return scope["f"], lambda i: scope.update(LATER=2.0 + i), lambda: ()

    same(make, traces=2)


def test_a_global_that_hides_a_builtin_or_a_module() -> None:
    def make() -> Program:
        scope = in_module("def f(x): return mx.exp(x) * abs(-2.0)")
        other = types.SimpleNamespace(exp=mx.sin)

        def turn(i: int) -> None:
            if i == 3:
                scope["abs"] = lambda v: 7.0
            if i == 5:
                scope["mx"] = other

        return scope["f"], turn, lambda: ()

    same(make)


def test_methods_properties_and_class_attributes() -> None:
    def make() -> Program:
        scope = in_module(
            "class Model:\n"
            "    gain = 1.0\n"
            "    def __init__(self): self.w = mx.array(2.0)\n"
            "    def __call__(self, x): return self.inner(x) * self.scale + self.shift(x)\n"
            "    def inner(self, x): return x * self.w * OUTER * self.gain\n"
            "    @property\n"
            "    def scale(self): return SCALE\n"
            "    @staticmethod\n"
            "    def shift(x): return x - SHIFT\n",
            OUTER=1.0, SCALE=2.0, SHIFT=mx.array(3.0),
        )  # fmt: skip
        model = scope["Model"]()

        def turn(i: int) -> None:
            scope.update(OUTER=1.0 + i % 3, SCALE=2.0 * (i % 2), SHIFT=mx.array(float(i)))
            scope["Model"].gain = i * 0.5
            model.w = model.w + 1.0

        return model, turn, lambda: ()

    same(make, 12)


def test_attributes_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings_of_test.py").write_text(
        "rate = 0.5\ntable = {'k': 1.0}\ndef helper(x): return x * rate\nclass inner: depth = 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    module = __import__("settings_of_test")

    def make() -> Program:
        scope = in_module(
            "import settings_of_test\n"
            "def f(x): return settings_of_test.helper(x) * settings_of_test.table['k'] + settings_of_test.inner.depth"
        )

        def turn(i: int) -> None:
            module.rate, module.inner.depth = 0.5 * i, i
            module.table["k"] = float(i)

        return scope["f"], turn, lambda: ()

    same(make)
    inside = in_module("def f(x):\n    import settings_of_test as s\n    return x * s.rate")["f"]
    f = mx.compile(inside)
    for module.rate in (1.0, 2.0, 3.0):
        assert bits(f(X)) == bits(inside(X))
    del sys.modules["settings_of_test"]


def test_defaults_and_code_of_a_function() -> None:
    def make() -> Program:
        def fun(x: Any, k: float = 2.0, *, o: Any = {"z": 1.0}) -> Any:  # noqa: B006
            return x * k + o["z"]

        def turn(i: int) -> None:
            fun.__defaults__ = (float(i),)
            fun.__kwdefaults__["o"]["z"] = float(-i)

        return fun, turn, lambda: ()

    same(make)
    scope = in_module("def f(x, k=2.0): return mx.exp(x) * k\ndef g(x, k=2.0): return mx.sin(x) + k")
    f = mx.compile(scope["f"])
    assert bits(f(X)) == bits(mx.exp(X) * 2.0)
    scope["f"].__defaults__ = (3.0,)
    assert bits(f(X)) == bits(mx.exp(X) * 3.0)
    scope["f"].__code__ = scope["g"].__code__
    assert bits(f(X)) == bits(mx.sin(X) + 3.0)


def test_type_hints_are_no_state() -> None:
    T, P, Ts = TypeVar("T"), ParamSpec("P"), TypeVarTuple("Ts")
    Rows, Row = list[T], NewType("Row", mx.array)

    def fun(x: Any) -> Any:
        apply = cast(Callable[P, T], mx.sin)
        rows = cast(Rows, [cast(Annotated[T, [Literal[2]]], x) * 2.0, cast(tuple[*Ts], x)])
        return apply(rows[0]) + Row(rows[1]) if isinstance(x, Array) else x

    f = mx.compile(fun)
    assert [bits(f(X)) for _ in range(3)] == [bits(fun(X))] * 3
    assert f.traces == 1


def test_classes_with_arguments_are_followed() -> None:
    T = TypeVar("T")

    def make() -> Program:
        class Box(Generic[T]):
            rate = 2.0

            def __init__(self, value: T) -> None:
                self.value = value

        def turn(i: int) -> None:
            Box.rate = float(i // 2)

        Numbers = Box[float]
        return (lambda x: Numbers(3.0).value * x * Numbers.rate), turn, (lambda: Box.rate)

    same(make)


GENERIC = """
type Pair[V] = tuple[V, V]

class Box[T]:
    rate = 2.0

    def __init__(self, value):
        self.value = value

    def __call__[U](self, x: U) -> U:
        type Both = tuple[T, U]
        mine: Both = (self.value, x)

        def inner[V](y: V) -> V:
            again: Pair[T] = (y, y)
            return again[0] * again[1]

        return inner(mine[0]) * mine[1] * self.rate
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters in brackets are new in Python 3.12")
def test_generic_functions_and_classes_of_python_3_12() -> None:
    scope: dict[str, Any] = {"__name__": __name__}
    exec(compile(GENERIC, __file__, "exec", dont_inherit=True), scope)  # annotations, too, capture what they name
    box = scope["Box"](X)
    f = mx.compile(lambda x: box(x))
    for rate in (2.0, 2.0, 3.0, 4.0, 5.0):
        scope["Box"].rate = rate
        box.value = X * rate
        assert bits(f(X)) == bits(box(X))
    assert f.traces == 2


def test_small_numpy_arrays_are_compared() -> None:
    def make() -> Program:
        table = np.ones(3, np.float32)

        def turn(i: int) -> None:
            table[:] = i

        return lambda x: x * float(table[0]) + mx.array(table)[1], turn, lambda: ()

    f = same(make)
    assert f.plain_because is None


@pytest.mark.filterwarnings("ignore:.*runs uncompiled")
def test_what_gives_something_else_each_time_runs_plain() -> None:
    rng, generator = random.Random(1), np.random.default_rng(1)
    functions: list[Any] = [
        lambda x: x * rng.random(),
        lambda x: x * random.random(),
        lambda x: x * float(np.random.rand()),  # noqa: NPY002
        lambda x: x * generator.normal(),
    ]
    for fun in functions:
        f = mx.compile(fun)
        assert bits(f(X)) != bits(f(X))
        assert f.plain_because is not None


# ---- changing ----


def test_variables_of_enclosing_functions() -> None:
    def make() -> Program:
        n, total = 0, mx.array(0.0)

        def fun(x: Any) -> Any:
            nonlocal n, total
            n += 1
            total = total + mx.sum(x)
            return x * n

        def turn(i: int) -> None:
            nonlocal n
            if i % 3 == 0:
                n = 0

        return fun, turn, lambda: (n, total)

    same(make, 10)


def test_globals_that_a_function_sets() -> None:
    def make() -> Program:
        scope = in_module("G = 0\ndef f(x):\n    global G, H\n    G += 1\n    H = x * 2\n    return x * G")
        return scope["f"], nothing, lambda: (scope["G"], scope["H"])

    same(make, 10)


def test_a_list_that_is_only_appended_to_is_traced_once() -> None:
    def make() -> Program:
        log: list[Any] = []

        def fun(x: Any) -> Any:
            log.append(mx.sum(x))
            log.append(3)
            return x + 1.0

        return fun, nothing, lambda: log

    same(make, 10, traces=1)


def test_a_list_that_is_also_read_or_known_by_another_name() -> None:
    def make_read() -> Program:
        log: list[Any] = []

        def fun(x: Any) -> Any:
            log.append(mx.sum(x))
            return x * len(log)

        return fun, nothing, lambda: log

    def make_alias() -> Program:
        log: list[Any] = []
        other = {"same": log}

        def fun(x: Any) -> Any:
            log.append(mx.sum(x))
            return x * len(other["same"])

        return fun, nothing, lambda: log

    same(make_read)
    same(make_alias)


def test_a_list_whose_end_is_read_is_traced_a_few_times() -> None:
    def make_sum() -> Program:
        log: list[Any] = []

        def fun(x: Any) -> Any:
            log.append(x * 2)
            return sum(log[-2:])

        return fun, nothing, lambda: log

    def make_last() -> Program:
        log: list[Any] = []

        def last() -> Any:
            return log[-1] if log else 0.0

        def fun(x: Any) -> Any:
            before = last()
            log.append(x)
            log.append(before + x)
            log[-1][0] = 7.0
            return log[-3:-1], before

        return fun, lambda i: log.append(i) if i == 4 else None, lambda: log

    def make_from_the_front() -> Program:
        log: list[Any] = []

        def fun(x: Any) -> Any:
            log.append(x)
            return log[-2:1], log[-3::2]

        return fun, nothing, lambda: log

    same(make_sum, 10, traces=3)
    same(make_last, 10)
    same(make_from_the_front)


def test_methods_of_containers() -> None:
    def make() -> Program:
        log: list[Any] = []
        table = {"k": 1.0}
        append, get = log.append, table.get

        def fun(x: Any) -> Any:
            append(mx.sum(x))
            return x * get("k", 0.0)

        def turn(i: int) -> None:
            table["k"] = float(i)

        return fun, turn, lambda: log

    same(make, traces=2)


def test_attributes_of_functions() -> None:
    def make() -> Program:
        def fun(x: Any) -> Any:
            fun.calls += 1  # type: ignore[attr-defined]
            return x * fun.calls * helper(x)  # type: ignore[attr-defined]

        def helper(x: Any) -> Any:
            return helper.gain  # type: ignore[attr-defined]

        def turn(i: int) -> None:
            helper.gain = i * 0.5  # type: ignore[attr-defined]

        fun.calls = 0  # type: ignore[attr-defined]
        return fun, turn, lambda: fun.calls  # type: ignore[attr-defined]

    same(make, traces=2)


def test_compiled_methods_called_from_a_compiled_function() -> None:
    def make() -> Program:
        scope = in_module(
            "class Model:\n"
            "    @mx.compile\n"
            "    def inner(self, x): return x * GAIN\n"
            "    def _get(self): return self._w\n"
            "    def _set(self, w): self._w = w * GAIN\n"
            "    w = property(_get, _set)\n"
            "model = Model()\n"
            "def f(x):\n"
            "    model.w = x\n"
            "    return model.inner(x)\n",
            GAIN=1.0,
        )
        return scope["f"], lambda i: scope.update(GAIN=float(i)), lambda: scope["model"].w

    same(make)


@pytest.mark.filterwarnings("ignore:.*runs uncompiled")
def test_iterators_run_plain() -> None:
    numbers, step = iter(range(10)), iter(range(10)).__next__
    f = mx.compile(lambda x: x * next(numbers) + step())
    for i in range(3):
        assert bits(f(X)) == bits(X * i + i)


class Slotted:
    __slots__ = ("a", "b", "c")


@dataclasses.dataclass
class Box:
    value: Any
    rest: Any


def test_objects_of_all_kinds() -> None:
    def slots() -> Program:
        s = Slotted()
        s.a, s.b = 1.0, mx.array(1.0)

        def fun(x: Any) -> Any:
            s.b = s.b + 1
            s.a += 1
            s.c = x * 2
            return x * s.a * s.b

        return fun, nothing, lambda: (s.a, s.b, s.c)

    def namespace() -> Program:
        n = types.SimpleNamespace(k=1.0, w=mx.array(2.0))

        def fun(x: Any) -> Any:
            n.k, n.w = n.k * 2, n.w * x[0, 1]
            n.new = [x]
            return x * n.k

        return fun, nothing, lambda: vars(n)

    def boxes() -> Program:
        held: Any = None

        def fun(x: Any) -> Any:
            nonlocal held
            held = Box(x * 2, [x, Box(1.5, x + 1)])
            return held, held

        return fun, nothing, lambda: held

    def ordered() -> Program:
        d: Any = collections.OrderedDict(a=mx.array(1.0), b=2.0)

        def fun(x: Any) -> Any:
            d.move_to_end("a")
            d["c"] = mx.sum(x)
            d["b"] = d["b"] * 2
            return x * d["b"]

        return fun, nothing, lambda: list(d.items())

    def sets() -> Program:
        s = {1}

        def fun(x: Any) -> Any:
            s.add(len(s) % 3 + 1)
            return x * len(s)

        return fun, nothing, lambda: sorted(s)

    def class_attribute() -> Program:
        class Counter:
            total = 0

            @classmethod
            def add(cls, x: Any) -> Any:
                cls.total += 1
                return x * cls.total

        return Counter.add, nothing, lambda: Counter.total

    for make in (slots, namespace, boxes, ordered, sets, class_attribute):
        same(make)


def test_identity_of_what_is_returned() -> None:
    given = [mx.array(1.0)]
    f = mx.compile(lambda v: (v, v[0], [v]))
    for _ in range(2):
        whole, first, outer = f(given)
        assert whole is given
        assert first is given[0]
        assert outer[0] is given
    empty = mx.compile(lambda x: [])
    empty(X).append(1)
    assert empty(X) == []
    twice = mx.compile(lambda x: (lambda made: (made, made))([x * 2.0]))
    for _ in range(2):
        a, b = twice(X)
        assert a is b
    color = enum.Enum("color", "red green")
    assert mx.compile(lambda x: color.green)(X) is color.green


def test_bound_methods_are_returned_bound_to_what_this_call_has() -> None:
    class Thing:
        def __init__(self, w: float) -> None:
            self.w = mx.array(w)

        def get(self) -> mx.array:
            return self.w

    f = mx.compile(lambda thing: thing.get)
    for w in (1.0, 2.0):
        assert f(Thing(w))().item() == w


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: lambda: x * 2,
        lambda x: lambda y=x * 2: y,
        lambda x: (y for y in [x * 2]),
        lambda x: map(mx.exp, [x]),
        lambda x: functools.partial(mx.add, x),
        lambda x: collections.deque([x * 2]),
    ],
    ids=["closure", "default", "generator", "map", "partial", "deque"],
)
def test_what_would_hold_arrays_of_the_trace_is_refused(fun: Any) -> None:
    where = rf"\(at .*{Path(__file__).name}:\d+\)"
    with pytest.raises(ValueError, match=rf"\[compile\] <lambda> {where} returns or keeps an object of type"):
        mx.compile(fun)(X)


def test_writing_into_a_numpy_array_is_refused_and_undone() -> None:
    table = np.zeros(3)

    def fun(x: mx.array) -> mx.array:
        table[0] += 1
        return x

    with pytest.raises(ValueError, match="writes into a NumPy array"):
        mx.compile(fun)(X)
    assert table[0] == 0


# ---- all together ----


class Layer(dict[str, Any]):
    """A module as MLX has them: a dict of parameters that can be called."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(w=mx.random.normal((rows, columns)) * 0.1, b=mx.zeros((columns,)))

    def __call__(self, x: mx.array) -> mx.array:
        return x @ self["w"] + self["b"]  # type: ignore[no-any-return]


class Momentum:
    def __init__(self, rate: float) -> None:
        self.state: dict[str, Any] = {"step": mx.array(0)}
        self.rate = rate
        self.calls = 0

    def update(self, model: Layer, gradients: Layer) -> None:
        self.calls += 1
        self.state["step"] = self.state["step"] + 1
        for name in model:
            before = self.state.setdefault(name, mx.zeros_like(model[name]))
            self.state[name] = 0.9 * before + gradients[name]
            model[name] = model[name] - self.rate * self.state[name]


@pytest.mark.parametrize("how", ["captured", "inputs and outputs"])
def test_a_training_step(how: str) -> None:
    def train(compiled: bool) -> Any:
        mx.random.seed(3)
        model, optimizer = Layer(4, 2), Momentum(0.1)
        x, y = mx.random.normal((8, 4)), mx.random.normal((8, 2))

        def loss(model: Layer, x: mx.array, y: mx.array) -> mx.array:
            return mx.mean(mx.square(model(x) - y)) + mx.mean(mx.random.uniform(shape=(3,)))

        def step(x: mx.array, y: mx.array) -> mx.array:
            value, gradients = mx.value_and_grad(loss)(model, x, y)
            optimizer.update(model, gradients)
            return value

        if compiled:
            state = [model, optimizer.state, mx.random.state] if how != "captured" else None
            step = mx.compile(step, inputs=state, outputs=state)
        losses = []
        for _ in range(8):
            optimizer.rate *= 0.95
            losses.append(bits(step(x, y)))
        assert not compiled or step.traces == 2
        return losses, bits([model, vars(optimizer), mx.random.state])

    assert train(True) == train(False)


def test_functions_of_weft_s_own_are_no_state() -> None:
    """What they remember for themselves is not the user's: it is neither looked at nor put back."""

    def around(function: Callable[[mx.array], mx.array]) -> Callable[[mx.array], mx.array]:
        return lambda x: function(x) * x

    x = mx.array([1.0, 2.0])
    for function in (mx.sigmoid, mx.softmax, mx.logsumexp, mx.sum):
        f = mx.compile(around(function))
        for _ in range(3):
            np.testing.assert_array_equal(np.array(f(x)), np.array(function(x) * x))
        assert f.traces == 1
