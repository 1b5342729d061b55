"""Calls that find out in one go that nothing changed since an earlier one (weft/transforms/guards.py): every change is
noticed, nothing is kept alive, and machine code does what Python does.

With WEFT_CHECK, which tests have on, every call that is recognized makes the walk as well, and compares.
"""

from __future__ import annotations

import abc
import functools
import gc
import math
import sys
import types
import weakref
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from weft.config import config
from weft.graph.placement import USED
from weft.runtime.data import Buffer
from weft.runtime.guard_table import NO, READY, WAITING
from weft.runtime.objects import MAKERS
from weft.transforms import guards
from weft.transforms.compile import MOST_GUARDS, MOST_VAIN_GUARDS, Compiled

X = mx.array([1.0, 2.0, 3.0])

native = pytest.mark.skipif(not MAKERS._has_arrays, reason="this interpreter's objects are laid out in another way")


@pytest.fixture(params=["machine code", "python"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "python":
        monkeypatch.setattr(MAKERS, "_has_arrays", False)
    elif not MAKERS._has_arrays:
        pytest.skip("this interpreter's objects are laid out in another way")
    return str(request.param)


@pytest.fixture(autouse=True)
def only_the_host() -> Iterator[None]:
    """With work on other devices, where arrays lie counts too, and calls are looked at as a whole."""
    used = [*USED]
    USED.clear()
    yield
    USED[:] = used


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The functions over whose state a walk was made, in order; calls that are recognized make none."""
    found: list[Any] = []
    see = Compiled._see

    def noted(self: Compiled, *arguments: Any) -> Any:
        found.append(self)
        return see(self, *arguments)

    monkeypatch.setattr(Compiled, "_see", noted)
    monkeypatch.setattr(config, "check", False)
    return found


def take_of(steps: Sequence[Any]) -> Callable[..., int]:
    """What takes these very steps."""
    return MAKERS.guards(steps, Buffer, guards._take_by_python)  # type: ignore[no-any-return]


def same(x: Any, y: Any) -> bool:
    return bool(mx.array_equal(x, y, equal_nan=True))


# ---- every change is noticed ----


class Scaled:
    """What the functions below look at."""

    factor = 2.0
    table: dict[str, float] = {"a": 1.0}

    def __init__(self) -> None:
        self.weight = mx.array([1.0, 2.0, 3.0])
        self.bias = 0.5
        self.flag = True
        self.name = "plus"
        self.parts = [mx.array(1.0), mx.array(2.0)]
        self.options = {"scale": 1.0, "shift": 0.0}

    def apply(self, x: mx.array) -> mx.array:
        return x * self.weight + self.bias

    @property
    def twice(self) -> float:
        return 2.0

    @staticmethod
    def third() -> float:
        return 3.0

    @classmethod
    def fourth(cls) -> float:
        return cls.factor


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self) -> None:
        self.a = 1.0


Pair = namedtuple("Pair", ["x", "y"])


class Number(float):
    pass


class Registered(abc.ABC):  # noqa: B024
    pass


NUMBER, LIST, DICT, HOLDER = 3.0, [1.0, 2.0], {"k": 1.0}, types.SimpleNamespace(value=1.0)


def helper(x: mx.array, by: float = 2.0, *, more: float = 1.0) -> mx.array:
    return x * by + more


def other(x: mx.array, by: float = 2.0, *, more: float = 1.0) -> mx.array:
    return x - by - more


Case = tuple[Callable[[mx.array], mx.array], Callable[[], None]]
CASES: dict[str, Callable[[pytest.MonkeyPatch], Case]] = {}


def case(make: Callable[[pytest.MonkeyPatch], Case]) -> Callable[[pytest.MonkeyPatch], Case]:
    """A function that sees something, and what changes that."""
    CASES[make.__name__] = make
    return make


def change_of(name: str, attribute: str, value: Any) -> None:
    """A case: an attribute of an object that is captured gets another value."""

    def make(patch: pytest.MonkeyPatch) -> Case:
        model = Scaled()

        def function(x: mx.array) -> mx.array:
            y = model.apply(x) * model.parts[0] * model.options["scale"] + model.factor
            return y + 1 if model.flag and model.name == "plus" else -y

        return function, lambda: setattr(model, attribute, value)

    CASES[name] = make


change_of("an_array_is_replaced", "weight", mx.array([4.0, 5.0, 6.0]))
change_of("an_array_of_another_kind", "weight", mx.array(7.0))
change_of("an_array_becomes_a_number", "weight", 2.0)
change_of("a_number_is_replaced", "bias", 1.5)
change_of("a_zero_of_another_sign", "bias", -0.0)
change_of("a_number_of_another_type", "bias", 1)
change_of("a_number_becomes_an_array", "bias", mx.array(1.0))
change_of("a_bool_is_replaced", "flag", False)
change_of("a_bool_becomes_a_number", "flag", 0)
change_of("a_string_is_replaced", "name", "minus")
change_of("a_list_is_replaced", "parts", [mx.array(3.0)])
change_of("a_list_becomes_a_tuple", "parts", (mx.array(3.0), mx.array(4.0)))
change_of("a_dict_is_replaced", "options", {"scale": 2.0})
change_of("an_attribute_of_the_class_is_hidden", "factor", 5.0)
change_of("a_method_is_hidden", "apply", lambda x: x - 1)
change_of("an_attribute_is_added", "extra", 1)


@case
def an_item_of_a_list(patch: pytest.MonkeyPatch) -> Case:
    items = [mx.array(1.0), 2.0]
    return lambda x: x * items[0] + items[1], lambda: items.__setitem__(1, 5.0)


@case
def a_list_grows(patch: pytest.MonkeyPatch) -> Case:
    items = [mx.array(1.0), 2.0]
    return lambda x: x * len(items) + items[1], lambda: items.append(1.0)


@case
def an_item_of_a_dict(patch: pytest.MonkeyPatch) -> Case:
    items = {"a": 1.0, 3: mx.array(2.0)}
    return lambda x: x * items[3] + items["a"], lambda: items.__setitem__("a", 4.0)


@case
def the_order_of_a_dict(patch: pytest.MonkeyPatch) -> Case:
    items = {"a": 1.0, "b": 2.0}
    return lambda x: x * next(iter(items.values())), lambda: items.update(a=items.pop("a"))


@case
def the_order_of_an_ordered_dict(patch: pytest.MonkeyPatch) -> Case:
    items = OrderedDict(a=1.0, b=2.0)
    return lambda x: x * next(iter(items.values())), lambda: items.move_to_end("a")


@case
def the_name_of_a_key(patch: pytest.MonkeyPatch) -> Case:
    items = {"a": 1.0}

    def change() -> None:
        items.clear()
        items["b"] = 1.0

    return lambda x: x * (2.0 if "a" in items else 3.0), change


@case
def a_key_that_is_no_string(patch: pytest.MonkeyPatch) -> Case:
    items: dict[Any, float] = {1: 1.0, 2: 2.0}

    def change() -> None:
        items[3] = items.pop(2)

    return lambda x: x * max(items), change


@case
def a_set(patch: pytest.MonkeyPatch) -> Case:
    items = {1.0}

    def change() -> None:
        items.clear()
        items.add(2.0)

    return lambda x: x * sum(items), change


@case
def an_empty_set(patch: pytest.MonkeyPatch) -> Case:
    items: set[float] = set()
    return lambda x: x + len(items), lambda: items.add(1.0)


@case
def a_frozenset(patch: pytest.MonkeyPatch) -> Case:
    held = [frozenset({1.0})]
    return lambda x: x * sum(held[0]), lambda: held.__setitem__(0, frozenset({2.0}))


@case
def a_tuple_in_a_tuple(patch: pytest.MonkeyPatch) -> Case:
    held = [(1.0, (2.0, mx.array(3.0)))]
    return lambda x: x * held[0][1][0], lambda: held.__setitem__(0, (1.0, (4.0, mx.array(3.0))))


@case
def a_named_tuple(patch: pytest.MonkeyPatch) -> Case:
    held = [Pair(1.0, mx.array(2.0))]
    return lambda x: x * held[0].x + held[0].y, lambda: held.__setitem__(0, Pair(3.0, mx.array(2.0)))


@case
def a_variable_of_an_enclosing_function(patch: pytest.MonkeyPatch) -> Case:
    factor = 1.0

    def change() -> None:
        nonlocal factor
        factor = 2.0

    return lambda x: x * factor, change


@case
def an_array_in_a_variable(patch: pytest.MonkeyPatch) -> Case:
    factor = mx.array(1.0)

    def change() -> None:
        nonlocal factor
        factor = mx.array(2.0)

    return lambda x: x * factor, change


@case
def a_function_in_a_variable(patch: pytest.MonkeyPatch) -> Case:
    used = helper

    def change() -> None:
        nonlocal used
        used = other

    return lambda x: used(x), change


@case
def a_global_number(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: x * NUMBER, lambda: patch.setitem(globals(), "NUMBER", 4.0)


@case
def a_global_that_goes(patch: pytest.MonkeyPatch) -> Case:
    patch.setitem(globals(), "abs", lambda x: x + 1)
    return lambda x: abs(x), lambda: patch.delitem(globals(), "abs")


@case
def a_global_that_hides_a_builtin(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: x * max(1, 2), lambda: patch.setitem(globals(), "max", min)


@case
def an_item_of_a_global_list(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: x * LIST[0], lambda: patch.setitem(globals(), "LIST", [7.0])


@case
def an_attribute_of_a_global_object(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: x * HOLDER.value, lambda: patch.setattr(HOLDER, "value", 3.0)


@case
def a_global_function(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: helper(x), lambda: patch.setitem(globals(), "helper", other)


@case
def the_code_of_a_function(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: helper(x), lambda: patch.setattr(helper, "__code__", other.__code__)


@case
def the_defaults_of_a_function(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: helper(x), lambda: patch.setattr(helper, "__defaults__", (5.0,))


@case
def the_defaults_of_keywords(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: helper(x), lambda: patch.setattr(helper, "__kwdefaults__", {"more": 5.0})


@case
def an_attribute_of_a_function(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: x * getattr(helper, "factor", 1.0), lambda: patch.setattr(helper, "factor", 5.0, raising=False)


@case
def an_attribute_of_a_class(patch: pytest.MonkeyPatch) -> Case:
    model = Scaled()
    return lambda x: x * model.factor, lambda: patch.setattr(Scaled, "factor", 5.0)


@case
def what_an_attribute_of_a_class_holds(patch: pytest.MonkeyPatch) -> Case:
    model = Scaled()
    return lambda x: x * model.table["a"], lambda: patch.setitem(Scaled.table, "a", 5.0)


@case
def a_method(patch: pytest.MonkeyPatch) -> Case:
    model = Scaled()
    return lambda x: model.apply(x), lambda: patch.setattr(Scaled, "apply", lambda self, x: x - self.bias)


@case
def the_default_of_a_method(patch: pytest.MonkeyPatch) -> Case:
    class Local:
        def apply(self, x: mx.array, by: float = 1.0) -> mx.array:
            return x * by

    model = Local()
    return lambda x: model.apply(x), lambda: setattr(Local.apply, "__defaults__", (3.0,))


@case
def a_property(patch: pytest.MonkeyPatch) -> Case:
    model = Scaled()
    return lambda x: x * model.twice, lambda: patch.setattr(Scaled, "twice", property(lambda self: 5.0))


@case
def a_static_method(patch: pytest.MonkeyPatch) -> Case:
    model = Scaled()
    return lambda x: x * model.third(), lambda: patch.setattr(Scaled, "third", staticmethod(lambda: 5.0))


@case
def a_class_method(patch: pytest.MonkeyPatch) -> Case:
    model = Scaled()
    return lambda x: x * model.fourth(), lambda: patch.setattr(Scaled, "fourth", classmethod(lambda cls: 5.0))


@case
def a_compiled_method(patch: pytest.MonkeyPatch) -> Case:
    class Local:
        @mx.compile
        def apply(self, x: mx.array) -> mx.array:
            return x * 2

    model = Local()
    return lambda x: model.apply(x), lambda: setattr(Local, "apply", mx.compile(lambda self, x: x * 3))


@case
def a_base(patch: pytest.MonkeyPatch) -> Case:
    class One:
        value = 1.0

    class Two:
        value = 2.0

    class Derived(One):
        pass

    held = Derived()
    return lambda x: x * held.value, lambda: setattr(Derived, "__bases__", (Two,))


@case
def a_class(patch: pytest.MonkeyPatch) -> Case:
    class One:
        value = 1.0

    class Two:
        value = 2.0

    held: Any = One()
    return lambda x: x * held.value, lambda: setattr(held, "__class__", Two)


@case
def all_attributes(patch: pytest.MonkeyPatch) -> Case:
    held = types.SimpleNamespace()

    class Plain:
        pass

    held = Plain()
    held.__dict__ = {"value": 1.0}
    return lambda x: x * held.value, lambda: setattr(held, "__dict__", {"value": 2.0})


@case
def an_attribute_that_goes(patch: pytest.MonkeyPatch) -> Case:
    model = Scaled()
    model.factor = 7.0
    return lambda x: x * model.factor, lambda: delattr(model, "factor")


@case
def a_slot(patch: pytest.MonkeyPatch) -> Case:
    held = Slotted()
    return lambda x: x * held.a, lambda: setattr(held, "a", 2.0)


@case
def a_slot_that_is_filled(patch: pytest.MonkeyPatch) -> Case:
    held = Slotted()
    return lambda x: x * getattr(held, "b", 1.0), lambda: setattr(held, "b", 2.0)


@case
def a_number_of_a_class_of_its_own(patch: pytest.MonkeyPatch) -> Case:
    held = [Number(1.0)]
    return lambda x: x * float(held[0]), lambda: held.__setitem__(0, Number(2.0))


@case
def a_complex_number(patch: pytest.MonkeyPatch) -> Case:
    held = [1 + 1j]
    return lambda x: x * held[0].real, lambda: held.__setitem__(0, 2 + 1j)


@case
def a_slice(patch: pytest.MonkeyPatch) -> Case:
    held = [slice(0, 2)]
    return lambda x: x[held[0]], lambda: held.__setitem__(0, slice(1, 2))


@case
def a_partial(patch: pytest.MonkeyPatch) -> Case:
    held = [functools.partial(helper, by=1.0)]
    return lambda x: held[0](x), lambda: held.__setitem__(0, functools.partial(helper, by=3.0))


@case
def the_object_of_a_method(patch: pytest.MonkeyPatch) -> Case:
    model = Scaled()
    held = [model.apply]
    return lambda x: held[0](x), lambda: setattr(model, "bias", 9.0)


@case
def elements_of_numpy(patch: pytest.MonkeyPatch) -> Case:
    held = np.array([1.0, 2.0], np.float32)
    return lambda x: x * float(held[0]), lambda: held.__setitem__(0, 5.0)


@case
def a_number_of_numpy(patch: pytest.MonkeyPatch) -> Case:
    held = [np.float32(1.0)]
    return lambda x: x * float(held[0]), lambda: held.__setitem__(0, np.float32(2.0))


@case
def a_registered_class(patch: pytest.MonkeyPatch) -> Case:
    class Local:
        pass

    held = Local()
    return lambda x: x * (1.0 if isinstance(held, Registered) else 2.0), lambda: Registered.register(Local) and None


@case
def a_function_of_a_module(patch: pytest.MonkeyPatch) -> Case:
    return lambda x: mx.sin(x), lambda: patch.setattr(mx, "sin", mx.cos)


@case
def a_function_of_ours_that_its_module_has_no_more(patch: pytest.MonkeyPatch) -> Case:
    used, scale = mx.softmax, mx.array(2.0)
    module = sys.modules[used.__module__]
    return lambda x: used(x, axis=0) * scale, lambda: patch.setattr(module, used.__name__, mx.cos)


@case
def a_function_of_pythons(patch: pytest.MonkeyPatch) -> Case:
    held = [mx.array(1.0)]
    return lambda x: x * math.sqrt(4.0) * held[0], lambda: patch.setattr(math, "sqrt", lambda x: 7.0)


@case
def two_arrays_become_one(patch: pytest.MonkeyPatch) -> Case:
    held = [mx.array(1.0), mx.array(1.0)]
    return lambda x: x * (1.0 if held[0] is held[1] else 2.0), lambda: held.__setitem__(0, held[1])


@case
def one_array_becomes_two(patch: pytest.MonkeyPatch) -> Case:
    one = mx.array(1.0)
    held = [one, one]
    return lambda x: x * (1.0 if held[0] is held[1] else 2.0), lambda: held.__setitem__(0, mx.array(1.0))


@case
def two_lists_become_one(patch: pytest.MonkeyPatch) -> Case:
    held: list[list[mx.array]] = [[], []]
    return lambda x: x * (1.0 if held[0] is held[1] else 2.0), lambda: held.__setitem__(0, held[1])


@case
def one_list_becomes_two(patch: pytest.MonkeyPatch) -> Case:
    one: list[mx.array] = []
    held = [one, one]
    return lambda x: x * (1.0 if held[0] is held[1] else 2.0), lambda: held.__setitem__(0, [])


@case
def the_end_of_a_list(patch: pytest.MonkeyPatch) -> Case:
    log = [1.0]
    return lambda x: x * log[-1], lambda: log.append(2.0)


@case
def a_list_whose_end_is_seen_is_that_of_another(patch: pytest.MonkeyPatch) -> Case:
    log, held = [1.0], [[1.0]]

    def change() -> None:
        nonlocal log
        log = held[0]

    return lambda x: x * log[-1] * (1.0 if held[0] is log else 2.0), change


@case
def an_unassigned_variable(patch: pytest.MonkeyPatch) -> Case:
    def function(x: mx.array) -> mx.array:
        try:
            return x * later
        except NameError:
            return x * 2.0

    def change() -> None:
        nonlocal later
        later = 5.0

    if len(CASES) < 0:
        later = 0.0
    return function, change


@case
def memory_of_an_array(patch: pytest.MonkeyPatch) -> Case:
    held = [mx.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]])]

    def change() -> None:
        held[0] = held[0].T
        mx.eval(held[0])

    return lambda x: x @ held[0], change


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_change_is_noticed(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, change = CASES[name](monkeypatch)
    compiled = mx.compile(function)
    before = function(X)
    for _ in range(4):
        assert same(compiled(X), before)
    assert compiled._guards, "so that the change is noticed by guards"
    change()
    after = function(X)
    for _ in range(4):
        assert same(compiled(X), after)
    monkeypatch.undo()
    now = function(X)
    for _ in range(3):
        assert same(compiled(X), now)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_without_a_change_there_is_no_walk(
    name: str, form: str, walks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    function, change = CASES[name](monkeypatch)
    compiled = mx.compile(function)
    for turn in (lambda: None, change):
        turn()
        compiled(X), compiled(X)
        expected = function(X)
        walks.clear()
        assert same(compiled(X), expected)
        assert not walks


# ---- arguments ----


def test_arguments_are_looked_at_in_the_same_way(form: str, walks: list[Any]) -> None:
    factor = [mx.array(2.0)]

    def function(x: mx.array, state: dict[str, Any], *rest: float, by: float = 1.0) -> Any:
        return (x + state["a"][0]) * factor[0] * by + sum(rest), {"a": [state["a"][0] + 1]}

    compiled = mx.compile(function)
    state = {"a": [mx.array([1.0, 1.0, 1.0])]}
    for number in range(6):
        walks.clear()
        expected, _ = function(X, state, 1.0, float(number), by=0.5 * number)
        found, state = compiled(X, state, 1.0, float(number), by=0.5 * number)
        assert same(found, expected)
    assert compiled.traces == 1
    assert not walks
    found, _ = compiled(X, state, 1.0)
    assert same(found, function(X, state, 1.0)[0])
    for count in (4, 5, 4, 5):
        x, inner = mx.ones((count,)), {"a": [mx.zeros((count,))]}
        assert same(compiled(x, inner, 1.0, 2.0, by=1.0)[0], function(x, inner, 1.0, 2.0, by=1.0)[0])
    assert len(compiled._guards) == 2, "one for each way to call it, whatever the sizes"


def test_arguments_that_are_not_computed_or_have_strides(form: str, walks: list[Any]) -> None:
    factor = [mx.array(2.0)]

    def function(x: mx.array) -> mx.array:
        return (x * factor[0]).sum(axis=0)

    for shapeless in (False, True):
        compiled = mx.compile(function, shapeless=shapeless)
        for count in (3, 4, 3, 4, 5):
            x = mx.arange(2.0 * count).reshape(count, 2)
            for given_ in (x, x + 1, x.T, (x + 1)[::2], mx.array(np.ones((2, count)).T)):
                mx.eval(x.T)
                assert same(compiled(given_), function(given_))
        walks.clear()
        compiled(mx.arange(8.0).reshape(4, 2) + 1)
        assert not walks


def test_one_walk_serves_all_sizes_of_a_shapeless_function(form: str, walks: list[Any]) -> None:
    factor = [mx.array(2.0)]
    compiled = mx.compile(lambda x, y: x * factor[0] + y, shapeless=True)
    for count in (2, 3, 4):
        compiled(mx.ones((count, 2)), mx.ones((count, 2)))
    walks.clear()
    for count in (5, 6, 2):
        assert same(compiled(mx.ones((count, 2)), mx.ones((count, 2))), mx.full((count, 2), 3.0))
    assert not walks
    assert same(compiled(mx.ones((1, 2)), mx.ones((1, 2))), mx.full((1, 2), 3.0))
    assert compiled.traces == 2


# ---- random state, random graphs ----

SCALARS = st.one_of(st.sampled_from([0, 1, 2, -1, 0.0, -0.0, 0.5, True, False, None, "a", "b"]), st.integers(-3, 3))
SHAPES = st.sampled_from([(3,), (1,), ()])


def leaves() -> st.SearchStrategy[Any]:
    return st.one_of(SCALARS, SHAPES.map(lambda shape: mx.ones(shape) * 2))


class Box:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


KEYS = st.sampled_from(["a", "b", "c", 1, 2])
GRAPHS = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(st.sampled_from(["p", "q"]), inner, max_size=2).map(lambda values: Box(**values)),
        st.tuples(inner).map(lambda pair: [pair[0], pair[0]]),
    ),
    max_leaves=8,
)


def digest(value: Any, x: mx.array, seen: list[int]) -> mx.array:
    """Something of x that depends on all that there is in a value: types, order, sharing."""
    known = [i for i, item in enumerate(seen) if item is value]
    if known and isinstance(value, (mx.array, list, dict, Box)):
        return x * (known[0] + 2)
    seen.append(value)
    if isinstance(value, mx.array):
        return x + value.sum()
    if isinstance(value, (bool, type(None), str)):
        return x * 3 + (len(value) if isinstance(value, str) else 5 if value else 7)
    if isinstance(value, int):
        return x * 2 + value
    if isinstance(value, float):
        return x * 2 - math.copysign(1, value) * 4 + value
    items = value.__dict__ if isinstance(value, Box) else value
    if isinstance(items, dict):
        for name, item in items.items():
            x = digest(item, x * (name if isinstance(name, int) else ord(name) / 100), seen)
        return x * (1.5 if isinstance(value, Box) else 1.25)
    for item in items:
        x = digest(item, x + 1, seen)
    return x * (0.5 if isinstance(value, list) else 0.75)


def containers(value: Any) -> list[Any]:
    """The containers in a value that can be changed."""
    inside = list(value.__dict__.values()) if isinstance(value, Box) else []
    if isinstance(value, (list, tuple)):
        inside = list(value)
    elif isinstance(value, dict):
        inside = list(value.values())
    own = [value.__dict__] if isinstance(value, Box) else [value] if isinstance(value, (list, dict)) else []
    return [*own, *[found for item in inside for found in containers(item)]]


def mutate(value: Any, which: int, how: int, new: Any) -> None:
    found = containers(value)
    target = found[which % len(found)]
    if isinstance(target, list):
        if how == 0 or not target:
            target.append(new)
        elif how == 1:
            target[which % len(target)] = new
        elif how == 2:
            target.reverse()
        else:
            target.pop()
    else:
        names = list(target)
        if how == 0 or not names:
            target["p"] = new
        elif how == 1:
            target[names[which % len(names)]] = new
        elif how == 2:
            target[names[0]] = target.pop(names[0])
        else:
            target.pop(names[-1])


@pytest.mark.filterwarnings("ignore::UserWarning")
@given(GRAPHS, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), GRAPHS), max_size=4), st.booleans())
def test_random_graphs(graph: Any, changes: list[tuple[int, int, Any]], by_machine_code: bool) -> None:
    held = [graph]

    def function(x: mx.array) -> mx.array:
        return digest(held, x, [])

    before = MAKERS._has_arrays
    MAKERS._has_arrays = before and by_machine_code
    try:
        compiled = mx.compile(function)
        for which, how, new in [(0, -1, None), *changes]:
            if how >= 0:
                mutate(held, which, how, new)
            for _ in range(3):
                assert same(compiled(X), function(X))
    finally:
        MAKERS._has_arrays = before


# ---- state that the function changes itself ----


def test_what_the_function_changes_is_expected(form: str, walks: list[Any]) -> None:
    class Counter:
        def __init__(self) -> None:
            self.total, self.steps, self.log = mx.zeros((3,)), 0, (mx.array(0.0), 0.5)

    one, two = Counter(), Counter()

    def function(counter: Counter, x: mx.array) -> mx.array:
        counter.total = counter.total + x
        counter.steps += 1
        counter.log = (counter.log[0] + 1, 0.5)
        return counter.total * counter.steps

    compiled = mx.compile(functools.partial(function, one))
    for number in range(8):
        walks.clear()
        assert same(compiled(X), function(two, X))
        assert number < 4 or not walks
    assert (one.steps, one.log[1]) == (two.steps, two.log[1])
    assert same(one.log[0], two.log[0])
    assert same(one.total, two.total)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_number_that_changes_may_come_to_stand_elsewhere(form: str) -> None:
    """In another object that looks the same; with the checks of WEFT_CHECK."""
    one, two = [types.SimpleNamespace(n=0, w=X)], [types.SimpleNamespace(n=0, w=X)]

    def function(held: list[Any], x: mx.array) -> mx.array:
        held[0].n += 1
        return x * held[0].n + held[0].w

    compiled = mx.compile(functools.partial(function, one))
    for number in range(12):
        if number % 4 == 3:
            one[0], two[0] = types.SimpleNamespace(n=number, w=X), types.SimpleNamespace(n=number, w=X)
        assert same(compiled(X), function(two, X))
        assert one[0].n == two[0].n


def test_random_numbers_are_those_of_the_plain_function(form: str, walks: list[Any]) -> None:
    scale = [mx.array(2.0)]

    def function() -> mx.array:
        return mx.random.normal((3,)) * scale[0]

    compiled = mx.compile(function)
    mx.random.seed(7)
    expected = [function() for _ in range(5)]
    mx.eval(expected)
    mx.random.seed(7)
    for number, x in enumerate(expected):
        walks.clear()
        assert same(compiled(), x)
        assert number < 2 or not walks


# ---- what is kept ----


def test_nothing_of_the_callers_is_kept(form: str) -> None:
    model = Scaled()
    held = [model]
    compiled = mx.compile(lambda x: held[0].apply(x) * held[0].parts[0])
    for _ in range(4):
        compiled(X)
    assert compiled._guards
    gone = [weakref.ref(model), weakref.ref(model.weight), weakref.ref(model.parts[0])]
    held.clear()
    del model
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_references_are_counted_right(form: str) -> None:
    """By passes that find all as it was, and by passes that end at every step."""
    model = Scaled()
    slotted, cell, empty = Slotted(), [1.0], set()
    pairs = (Pair(1.0, mx.array(2.0)), {1: "a", "b": 2}, {3}, np.float32(1.0), 1 + 2j)

    def function(x: mx.array, state: list[Any]) -> mx.array:
        return helper(model.apply(x)) + slotted.a + cell[0] + len(empty) + pairs[0].y + state[0] * state[1]

    compiled = mx.compile(function)
    state = [mx.array(1.0), 2.0]
    for _ in range(3):
        compiled(X, state)
    (_, _, made), *_ = compiled._guards
    objects: list[list[Any]] = [[] for _ in range(7)]
    assert made.take([*compiled._roots, mx.random.state, X, state], *objects) == READY
    watched = [
        *objects[0], *objects[1], *objects[3], *objects[5], *objects[6], None, guards.ABSENT, Scaled.apply, helper,
        helper.__code__, helper.__defaults__, vars(Scaled), 2.0, "weight", globals(),
    ]  # fmt: skip
    del objects

    def counts() -> list[int]:
        return [sys.getrefcount(item) for item in watched]

    def take(steps: Any) -> int:
        lists: list[list[Any]] = [[] for _ in range(7)]
        return int(steps([*compiled._roots, mx.random.state, X, state], *lists))

    shorter = [take_of(made.steps[:count]) for count in range(0, len(made.steps), 7)]
    wrong = [
        take_of((*made.steps[:at], (operation, register, count, object()), *made.steps[at + 1 :]))
        for at, (operation, register, count, expected) in enumerate(made.steps)
        if operation in (guards.SAME, guards.EQUAL, guards.OBJECT, guards.TYPE)
    ]
    for steps in (made.take, *shorter, *wrong):
        take(steps)
    gc.collect()
    before, times = counts(), 10
    for steps in (made.take, *shorter, *wrong):
        for _ in range(times):
            found = take(steps)
        assert found == (NO if steps in wrong else READY)
    gc.collect()
    after = counts()
    lost = [(item, x, y) for item, x, y in zip(watched, before, after, strict=True) if abs(x - y) >= times]
    assert lost == []  # None has some users elsewhere


def test_an_error_of_what_is_read_is_raised(form: str) -> None:
    class Hostile(set):  # type: ignore[type-arg]
        raises = False

        def __iter__(self) -> Iterator[Any]:
            if Hostile.raises:
                raise KeyError("of the user's")
            return super().__iter__()

    held, factor = Hostile({1.0}), mx.array(2.0)
    compiled = mx.compile(lambda x: x * sum(held) * factor)
    for _ in range(3):
        assert same(compiled(X), X * 2)
    Hostile.raises = True
    with pytest.raises(KeyError, match="of the user's"):
        compiled(X)
    Hostile.raises = False
    assert same(compiled(X), X * 2)


@native
def test_machine_code_leaves_strange_arguments_to_python() -> None:
    take = take_of(())
    assert type(take).__name__ == "builtin_function_or_method"
    assert take(*[[] for _ in range(8)]) == READY
    with pytest.raises(TypeError):
        take()
    with pytest.raises(TypeError):
        take(*[None] * 8)
    with pytest.raises(TypeError):
        take(*[[]] * 7)


@native
def test_both_forms_find_the_same() -> None:
    model, late, longer = Scaled(), X * 3, mx.array([1.0, 2.0, 3.0, 4.0])
    mx.eval(longer, mx.random.state)
    compiled = mx.compile(lambda x: model.apply(x) * model.parts[0])
    for _ in range(3):
        compiled(X)
    (_, _, made), *_ = compiled._guards
    for argument, expected in ((X, READY), (late, WAITING), (1.0, NO), (None, NO), (longer, READY)):
        found = []
        for take in (made.take, functools.partial(guards._take_by_python, made.steps)):
            lists: list[list[Any]] = [[*compiled._roots, mx.random.state, argument], *[[] for _ in range(7)]]
            assert take(*lists) == expected
            found.append([[id(item) for item in values] for values in lists])
        assert expected == NO or found[0] == found[1]
    assert isinstance(X._node.value, Buffer)


# ---- how many are kept ----


def test_a_function_keeps_few_walks(form: str, walks: list[Any]) -> None:
    held = [0]
    compiled = mx.compile(lambda x: x * 2 if held[0] == "a" else x * held[0])
    values = ["a", None, True, 2, "a", False]
    for value in [*values, *values]:
        held[0] = value if value is not None else 3  # type: ignore[call-overload]
        for _ in range(3):
            compiled(X)
    assert len(compiled._guards) <= MOST_GUARDS


def test_walks_that_never_come_again_are_given_up(form: str, walks: list[Any]) -> None:
    held: list[Any] = [None]
    compiled = mx.compile(lambda x: x * len(held[0]))
    made = []
    for number in range(MOST_VAIN_GUARDS + 8):
        held[0] = "a" * (number + 1)
        assert same(compiled(X), X * (number + 1))
        made.append(compiled._guards[0][2])
    assert len({id(item) for item in made}) <= MOST_VAIN_GUARDS
    assert same(compiled(X), X * len(held[0]))
