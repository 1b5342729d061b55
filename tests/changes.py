"""What a captured value can do between two calls of a compiled function: a table of changes, each with a function that
sees it. tests/test_guards.py goes through all of them.
"""

from __future__ import annotations

import abc
import functools
import math
import sys
import types
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx


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
