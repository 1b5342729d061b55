"""Calls that find out in one go that nothing changed since an earlier one (weft/transforms/guards.py): every change is
noticed, nothing is kept alive, and machine code does what Python does.

With WEFT_CHECK, which tests have on, every call that is recognized makes the walk as well, and compares.
"""

from __future__ import annotations

import functools
import gc
import math
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft.core as mx
from tests.changes import CASES, Pair, Scaled, Slotted, helper
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
