"""Compiled functions that work on objects of all kinds: numbers and strings of the user's own classes, descriptors,
metaclasses, sets, functions that installed packages made; and what cannot be followed at all."""

from __future__ import annotations

import abc
import contextlib
import datetime
import enum
import functools
import json
import operator
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import weft.core as mx
from weft.array import array

X = mx.array([1.0, 2.0, 3.0])
Step = Callable[[], Any]


def bits(value: Any) -> Any:
    """A value in which equal means equal to the bit, and of the same types."""
    if isinstance(value, array):
        return value.dtype, value.shape, np.array(value).tobytes()
    if isinstance(value, dict):
        return type(value).__name__, [(repr(k), bits(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [bits(v) for v in value]
    return type(value).__name__, repr(value)


def same(make: Callable[[Callable[..., Any]], Iterator[Any]]) -> list[Any]:
    """What a program yields must not depend on whether the functions in it are compiled, shapeless or not. Gives those
    compiled functions."""
    expected = [bits(value) for value in make(lambda fun: fun)]
    made = []
    for shapeless in (False, True):

        def compiled(fun: Callable[..., Any], shapeless: bool = shapeless) -> Any:
            made.append(mx.compile(fun, shapeless=shapeless))
            return made[-1]

        for i, value in enumerate(make(compiled)):
            assert bits(value) == expected[i], f"value {i}, shapeless: {shapeless}"
    return made


class Whole(int):
    pass


class Real(float):
    pass


class Text(str):
    pass


class Pair(NamedTuple):
    x: Any
    k: float

    def scaled(self) -> Any:
        return self.x * self.k * RATE[0]


RATE = [2.0]


class Kinds(tuple):  # type: ignore[type-arg]
    """A tuple with attributes."""


# ---- values of the user's own classes ----


def test_numbers_and_strings_of_other_classes() -> None:
    def captured(compile: Any) -> Iterator[Any]:
        k: Any = Whole(2)
        a: Any = Real(1.5)
        s: Any = Text("a")
        f = compile(lambda x: (x * k + a, len(s), s))
        yield f(X)
        k = Whole(3)
        yield f(X)
        a = Real(2.5)
        yield f(X)
        s = Text("abc")
        yield f(X)

    def given(compile: Any) -> Iterator[Any]:
        f = compile(lambda x, v: x * v)
        for value in (Whole(2), Whole(3), Real(0.5), Real(-0.0), Real(0.0), 2, 2.0):
            yield f(X, value)

    same(captured)
    same(given)


def test_methods_and_attributes_of_tuples() -> None:
    def named(compile: Any) -> Iterator[Any]:
        RATE[0] = 2.0
        f = compile(lambda pair: pair.scaled())
        for rate in (2.0, 3.0, 4.0):
            RATE[0] = rate
            yield f(Pair(X, 1.5))

    def attributes(compile: Any) -> Iterator[Any]:
        kinds: Any = Kinds((1.0, X))
        kinds.tag = 1.0
        f = compile(lambda kinds: kinds[1] * kinds[0] * kinds.tag)
        yield f(kinds)
        kinds.tag = 5.0
        yield f(kinds)

    same(named)
    same(attributes)


def test_tuples_are_returned_and_kept_themselves() -> None:
    def program(compile: Any) -> Iterator[Any]:
        kept = types.SimpleNamespace(size=(2, 3))
        given = (1, 2.0, X)

        def fun(x: Any, t: Any) -> Any:
            kept.last = kept.size
            return t, x * kept.size[0]

        f = compile(fun)
        for i in range(4):
            if i == 2:
                kept.size = (4, 3)
            returned, value = f(X, given)
            yield value
            yield returned is given, kept.last is kept.size

    same(program)


# ---- classes ----


class Constant:
    """A descriptor with a value of its own."""

    def __init__(self, value: float) -> None:
        self.value = value

    def __get__(self, instance: Any, owner: Any = None) -> float:
        return self.value


def test_descriptors_metaclasses_and_classes_inside_classes() -> None:
    def descriptors(compile: Any) -> Iterator[Any]:
        rate = Constant(2.0)
        owner = type("Owner", (), {"rate": rate})()
        f = compile(lambda x: x * owner.rate)
        yield f(X)
        rate.value = 3.0
        yield f(X)

    def metaclasses(compile: Any) -> Iterator[Any]:
        class Meta(type):
            base = 2.0

            @property
            def rate(cls) -> float:
                return Meta.base

            def __getattr__(cls, name: str) -> float:
                return Meta.base * 10

        class Owner(metaclass=Meta):
            pass

        f = compile(lambda x: x * Owner.rate + Owner.anything)  # type: ignore[attr-defined]
        yield f(X)
        Meta.base = 3.0
        yield f(X)

    def nested(compile: Any) -> Iterator[Any]:
        class Config:
            class optimizer:
                rate = 0.5

        f = compile(lambda x: x * Config.optimizer.rate)
        yield f(X)
        Config.optimizer.rate = 0.25
        yield f(X)
        Config.optimizer = type("optimizer", (), {"rate": 2.0})  # type: ignore[assignment, misc]
        yield f(X)

    def compiled_static_method(compile: Any) -> Iterator[Any]:
        k = 1.0

        class Owner:
            @staticmethod
            @compile
            def scaled(x: Any) -> Any:
                return x * k

        f = compile(lambda x: Owner.scaled(x))
        yield f(X)
        k = 2.0
        yield f(X)

    for program in (descriptors, metaclasses, nested, compiled_static_method):
        same(program)


class Strict:
    """An object that knows its own attributes only, and says so in its own way."""

    __slots__ = ("held", "never")

    def __init__(self) -> None:
        self.held = {"w": 2.0}

    def __getattr__(self, name: str) -> Any:
        return self.held[name]


def test_getattr_is_asked_by_the_function_only() -> None:
    def program(compile: Any) -> Iterator[Any]:
        strict = Strict()
        f = compile(lambda x: x * strict.w)
        for w in (2.0, 3.0, 4.0):
            strict.held["w"] = w
            yield f(X)

    same(program)


def test_objects_are_made_anew_whatever_their_class_does_in_new() -> None:
    class Bag:
        def __new__(cls, *args: Any) -> Any:
            return super().__new__(cls)

        def __init__(self) -> None:
            self.items: list[Any] = []

    f = mx.compile(lambda x: (Bag(), types.SimpleNamespace(x=x)))
    f(X)[0].items.append(1)
    bag, namespace = f(X + 1)
    assert bag.items == []
    assert bits(namespace.x) == bits(X + 1)


def test_classes_with_flags_and_factories_are_followed() -> None:
    import dataclasses

    class Mode(enum.Flag):
        A = 1
        B = 2

    @dataclasses.dataclass
    class Held:
        w: Any
        items: list[Any] = dataclasses.field(default_factory=list)

    f = mx.compile(lambda x, mode: (x * (2 if Mode.B in mode else 3), Held(x)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bits(f(X, Mode.A)[0]) == bits(X * 3)
        assert bits(f(X, Mode.A | Mode.B)[0]) == bits(X * 2)
    assert f.traces == 2


# ---- sets ----


def test_sets_are_what_they_hold_in_their_order() -> None:
    def order(compile: Any) -> Iterator[Any]:
        f = compile(lambda x, s: functools.reduce(lambda total, item: total * 2 + item, s, x))
        for numbers in ({0, 8}, {8, 0}, frozenset([0, 8]), frozenset([8, 0]), {0, 8.0}):
            yield f(X, numbers)

    def objects(compile: Any) -> Iterator[Any]:
        class Rate:
            def __init__(self, value: float) -> None:
                self.value = value

            def __repr__(self) -> str:
                return "a rate"

        rate = Rate(2.0)
        for kind in (set, frozenset):
            rates = kind([rate])
            f = compile(lambda x, rates=rates: x * sum(rate.value for rate in rates))
            yield f(X)
            rate.value += 1
            yield f(X)

    def functions(compile: Any) -> Iterator[Any]:
        k = 1.0

        def scaled(x: Any) -> Any:
            return x * k

        known = {scaled}
        f = compile(lambda x: [g(x) for g in known])
        yield f(X)
        k = 2.0
        yield f(X)

    for program in (order, objects, functions):
        same(program)


# ---- functions of installed packages, made around the user's ----


def test_functions_that_python_made_around_the_users() -> None:
    def context_managers(compile: Any) -> Iterator[Any]:
        k = 1.0

        @contextlib.contextmanager
        def rate() -> Iterator[float]:
            yield k

        def fun(x: Any) -> Any:
            with rate() as a:
                return x * a

        f = compile(fun)
        for k in (1.0, 2.0, 3.0):  # noqa: B007
            yield f(X)

    def dispatch(compile: Any) -> Iterator[Any]:
        @functools.singledispatch
        def weight(value: Any) -> float:
            return 1.0

        f = compile(lambda x, v: x * weight(v))
        yield f(X, "a")
        weight.register(str, lambda value: 5.0)
        yield f(X, "a")
        yield f(X, 1)

    same(context_managers)
    same(dispatch)


def test_abstract_classes_and_the_subclasses_that_are_registered() -> None:
    def program(compile: Any) -> Iterator[Any]:
        class Rate(abc.ABC):
            scale = 2.0

            @abc.abstractmethod
            def of(self, x: Any) -> Any: ...

        class Times(Rate):
            def of(self, x: Any) -> Any:
                return x * self.scale

        class Other:
            pass

        rate, other = Times(), Other()
        f = compile(lambda x: rate.of(x) if isinstance(other, Rate) else -rate.of(x))
        yield f(X)
        Rate.scale = 3.0
        yield f(X)
        Rate.register(Other)
        yield f(X)

    assert all(f.traces > 0 for f in same(program))


# ---- objects of installed packages ----


def test_objects_of_installed_packages_are_followed() -> None:
    """Those of classes written in Python: the configuration of a model, say."""

    def read(compile: Any) -> Iterator[Any]:
        line = np.polynomial.Polynomial([1.0, 2.0])
        f = compile(lambda x: x * line.coef[1])
        yield f(X)
        line.coef = np.array([1.0, 5.0])
        yield f(X)
        line.coef[1] = 7.0
        yield f(X)

    def written(compile: Any) -> Iterator[Any]:
        line = np.polynomial.Polynomial([1.0, 2.0])

        def fun(x: Any) -> Any:
            line.seen = line.seen + mx.sum(x)
            line.count += 1
            return x * line.seen

        line.seen, line.count = mx.array(0.0), 0
        f = compile(fun)
        for _ in range(4):
            yield f(X), line.seen, line.count

    def shared(compile: Any) -> Iterator[Any]:
        line, most = np.polynomial.Polynomial([1.0]), np.polynomial.Polynomial.maxpower
        f = compile(lambda x: x * line.maxpower)
        yield f(X)
        np.polynomial.Polynomial.maxpower = 5
        yield f(X)
        np.polynomial.Polynomial.maxpower = most

    for program in (read, written, shared):
        assert all(f.traces > 0 for f in same(program))


def test_objects_of_installed_packages_that_are_not_written_in_python_run_plain() -> None:
    steps = np.nditer(np.arange(3.0))
    f = mx.compile(lambda x: x * float(steps.value))
    with pytest.warns(UserWarning, match=r"runs uncompiled.*numpy.nditer"):
        assert bits(f(X)) == bits(X * 0.0)
    steps.iternext()
    assert bits(f(X)) == bits(X * 1.0)
    assert f.traces == 0


def test_caches_of_python_run_plain_also_as_methods() -> None:
    class Tables:
        rate = 2.0

        @functools.cache  # noqa: B019
        def table(self, n: int) -> Any:
            return mx.arange(n) * self.rate

    tables = Tables()
    f = mx.compile(lambda x: x * tables.table(3))
    with pytest.warns(UserWarning, match="runs uncompiled.*lru_cache"):
        assert bits(f(X)) == bits(X * tables.table(3))
    assert bits(tables.table(3)) == bits(mx.arange(3) * 2.0)


def test_properties_made_of_operators_and_methods_that_dispatch() -> None:
    class Owner:
        def __init__(self) -> None:
            self.held = {"w": 2.0}
            self.k = 1.0

        same = property(operator.attrgetter("k"))

        @functools.singledispatchmethod
        def weight(self, value: Any) -> float:
            return 1.0

    def program(compile: Any) -> Iterator[Any]:
        owner = Owner()
        f = compile(lambda x, v: x * owner.same * owner.weight(v))
        for k in (1.0, 2.0, 3.0):
            owner.k = k
            yield f(X, "a")
        Owner.weight.register(str, lambda self, value: 5.0 * self.k)
        yield f(X, "a")
        Owner.weight.register(str, lambda self, value: 1.0)

    assert all(f.traces > 0 for f in same(program))


def test_modules_with_a_getattr_of_their_own() -> None:
    module = types.ModuleType("hunted_lazily")
    exec("RATES = {'slow': 2.0}\ndef __getattr__(name): return RATES[name]", vars(module))
    f = mx.compile(eval("lambda x: x * module.slow", {"module": module}))
    for rate in (2.0, 3.0, 4.0):
        module.RATES["slow"] = rate
        assert bits(f(X)) == bits(X * rate)
    assert f.traces > 0


def test_modules_imported_in_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "hunted"
    package.mkdir()
    (package / "__init__.py").write_text("K = 1.0\n")
    (package / "settings.py").write_text("RATE = 2.0\n")
    (package / "model.py").write_text(
        "def relative(x):\n    from .settings import RATE\n    return x * RATE\n"
        "def dotted(x):\n    import hunted.settings\n    return x * hunted.K\n"
        "def alias(x):\n    import hunted as h\n    return x * h.settings.RATE\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import hunted  # type: ignore[import-not-found]
    import hunted.model  # type: ignore[import-not-found]
    import hunted.settings  # type: ignore[import-not-found]

    for fun in (hunted.model.relative, hunted.model.dotted, hunted.model.alias):
        f = mx.compile(fun)
        for value in (1.0, 2.0, 3.0):
            hunted.K = hunted.settings.RATE = value
            assert bits(f(X)) == bits(fun(X))
        assert f.traces > 0
    for name in ("hunted", "hunted.model", "hunted.settings"):
        del sys.modules[name]


# ---- what cannot be followed ----

SETTING = 1.0


def test_what_sees_more_than_compile_runs_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rate.txt"
    getenv, clock = os.getenv, datetime.datetime

    def from_file(x: Any) -> Any:
        with open(file) as held:
            return x * float(held.read())

    functions = [
        lambda x: x * globals()["SETTING"],
        lambda x: x * eval("SETTING"),
        lambda x: x * sys.modules[__name__].SETTING,
        lambda x: x * float(os.environ["HUNTED"]),
        lambda x: x * float(getenv("HUNTED", "0")),
        from_file,
    ]
    for fun in functions:
        f = mx.compile(fun)
        for value in (1.0, 2.0):
            monkeypatch.setitem(globals(), "SETTING", value)
            monkeypatch.setenv("HUNTED", str(value))
            file.write_text(str(value))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                assert bits(f(X)) == bits(X * value)
        assert f.traces == 0
    for fun in (lambda x: datetime.datetime.now(), lambda x: clock.now()):
        f = mx.compile(fun)
        with pytest.warns(UserWarning, match="runs uncompiled.*datetime"):
            first = f(X)
        assert f(X) > first


def test_errors_about_values_cannot_be_caught_away() -> None:
    def by_value(x: Any) -> Any:
        try:
            return x * mx.sum(x).item()
        except ValueError:
            return x

    def by_branch(x: Any) -> Any:
        with contextlib.suppress(Exception):
            if mx.sum(x) > 0:
                return -x
        return x

    for fun in (by_value, by_branch):
        for shapeless in (False, True):
            with pytest.raises(ValueError, match=rf"no value while compile traces.*at .*{Path(__file__).name}:\d+"):
                mx.compile(fun, shapeless=shapeless)(X)
    with pytest.raises(ValueError, match="no value while scan traces"):
        mx.scan(lambda c, x: (by_value(c), x), X, mx.ones((2, 3)))
    assert bits(mx.compile(lambda x: x * 2)(X)) == bits(X * 2)


def test_stand_ins_are_not_found_out_by_type_or_type_errors() -> None:
    def text(x: Any, a: Any) -> Any:
        try:
            return x * len(json.dumps([a, x.shape[0]]))
        except TypeError:
            return -x

    def every(x: Any, a: Any) -> Any:
        try:
            return x * len(json.dumps([a, x.shape[0]]))
        except:  # noqa: E722
            return -x

    def groups(x: Any, a: Any) -> Any:
        try:
            x = x * len(json.dumps([a, x.shape[0]]))
        except* TypeError:
            x = -x
        return x

    def types_(x: Any, a: Any) -> Any:
        return x * (type(a) is float) * (type(x.shape[0]) is int)

    def program(compile: Any) -> Iterator[Any]:
        for fun in (text, every, groups, types_):
            f = compile(fun)
            for x in (X, mx.ones((12,)), X):
                for a in (0.5, 0.25, 3):
                    yield f(x, a)

    same(program)


def test_types_of_self_and_errors_of_other_kinds_leave_numbers_free() -> None:
    class Model:
        def __call__(self, x: Any, a: float) -> Any:
            try:
                return x * a * len(type(self).__name__)
            except (KeyError, ZeroDivisionError):
                raise TypeError("no number") from None

    f = mx.compile(Model())
    for i in range(10):
        f(X, float(i))
    assert f.traces == 1


# ---- results ----


def test_several_arrays_of_one_value_are_several() -> None:
    def program(compile: Any) -> Iterator[Any]:
        def fun(x: Any) -> Any:
            y = x + 1
            return y, y[:], y.reshape(y.shape), y, x[:], x.astype(mx.float32)

        f = compile(fun)
        for _ in range(2):
            x = mx.array(X)
            found = f(x)
            yield [[a is b for a in found] for b in found]
            found[0][0] = 10.0
            found[4][1] = 20.0
            x += 100
            yield found

    def kept(compile: Any) -> Iterator[Any]:
        held: dict[str, Any] = {}

        def fun(x: Any) -> Any:
            y = x * 2
            held["y"], held["again"], held["view"] = y, y, y[:]
            return y

        f = compile(fun)
        for _ in range(2):
            y = f(X)
            yield held["y"] is y, held["again"] is y, held["view"] is y
            y += 1
            yield held

    same(program)
    same(kept)


def test_sizes_in_slices_and_as_keys() -> None:
    def slices(compile: Any) -> Iterator[Any]:
        f = compile(lambda x: slice(0, x.shape[0]))
        for n in (3, 4, 3):
            yield f(mx.ones((n,)))

    def memo(compile: Any) -> Iterator[Any]:
        tables: dict[int, Any] = {}

        def fun(x: Any) -> Any:
            n = x.shape[0]
            if n not in tables:
                tables[n] = mx.cos(mx.arange(n))
            return x * tables[n]

        f = compile(fun)
        for n in (3, 4, 3, 5, 4):
            yield f(mx.ones((n,)))
            yield tables

    same(slices)
    same(memo)


def test_what_holds_itself_is_refused() -> None:
    def fun(x: Any) -> Any:
        found: list[Any] = [x * 2]
        found.append(found)
        return found

    with pytest.raises(ValueError, match=r"fun \(at .*\) returns or keeps an object of type list that holds itself"):
        mx.compile(fun)(X)
