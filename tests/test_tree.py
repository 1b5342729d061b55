"""Nested containers: what goes in comes out, structures are unique, and errors say where."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import threading
import weakref
from collections import OrderedDict, defaultdict, namedtuple
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft import tree

Point = namedtuple("Point", ["x", "y"])


class Typed(NamedTuple):
    weight: Any
    bias: Any = None


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    a: Any
    b: Any = dataclasses.field(init=False, default=7)


@dataclasses.dataclass
class Picky:
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.size, int):
            raise TypeError("size")


class Module(dict):
    pass


class Rows(list):
    pass


CONTAINERS = [
    [], (), {}, None, [1], (1,), {"a": 1}, [1, (2, [3, {"k": 4}])], Point(1, [2]), Typed(1), Layer(1, {"b": 2}),
    Frozen([1, 2]), OrderedDict(b=1, a=2), defaultdict(list, a=[1]), {1: 2, (3, "x"): [4]}, [[], [[]], ()],
    {"layers": [Layer(1, None), Layer((2, 3), Point(4, 5))]},
]  # fmt: skip


@pytest.mark.parametrize("value", CONTAINERS, ids=repr)
def test_round_trip(value):
    leaves, structure = tree.flatten(value)
    back = structure.unflatten(leaves)
    assert type(back) is type(value)
    assert back == value
    assert structure.num_leaves == len(leaves) == len(structure.paths())
    assert tree.flatten(back)[1] is structure


def test_leaves_are_everything_else():
    for leaf in (1, 2.5, "text", b"x", {1, 2}, range(3), object(), Layer, int, iter([])):
        assert tree.flatten(leaf) == ([leaf], tree.LEAF)
    assert tree.flatten(None)[0] == []


def test_order_is_left_to_right():
    assert tree.leaves([1, {"z": 2, "a": (3, Layer(4, 5))}, Point(6, None), 7]) == [1, 2, 3, 4, 5, 6, 7]


nested = st.recursive(
    st.integers() | st.none() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=4)
        | st.builds(Point, inner, inner)
        | st.builds(Layer, inner, inner)
    ),
    max_leaves=20,
)


@given(nested)
def test_round_trip_of_anything(value):
    leaves, structure = tree.flatten(value)
    assert structure.unflatten(leaves) == value
    assert tree.flatten(structure.unflatten(list(range(len(leaves)))))[1] is structure
    assert [leaf for _, leaf in tree.leaves_with_paths(value)] == leaves
    assert all(eval(f"root{path}", {"root": value}) == leaf for path, leaf in tree.leaves_with_paths(value))


@given(nested, nested)
def test_structures_are_the_same_object_exactly_when_they_show_the_same(a, b):
    one, two = tree.flatten(a)[1], tree.flatten(b)[1]
    assert (one is two) == (repr(one) == repr(two))
    assert (one == two) == (one is two)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1], (1,)), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1: 0}, {True: 0}), ({1: 0}, {1.0: 0}),
        ({0.0: 0}, {-0.0: 0}), ({(1,): 0}, {(True,): 0}), (Point(1, 2), (1, 2)), ({"a": 1}, OrderedDict(a=1)),
        ({"a": 1}, defaultdict(list, a=1)), (defaultdict(list, a=1), defaultdict(int, a=1)), ([None], [[]]),
        ([1, 2], [1]), (Layer(1, 2), Typed(1, 2)), ([], ()), ([None], [1]),
    ],
    ids=repr,
)  # fmt: skip
def test_what_a_function_could_see_is_in_the_structure(a, b):
    assert tree.flatten(a)[1] is not tree.flatten(b)[1]
    assert tree.flatten(a)[1] is tree.flatten(copy.deepcopy(a))[1]


class Pair(tuple):
    """Checks what it is made of, which stand-ins would not pass."""

    __slots__ = ()

    def __new__(cls, items):
        assert all(isinstance(item, int) for item in items)
        return super().__new__(cls, items)


def test_subclasses_come_back_as_themselves():
    for value in (Module(a=1), Rows([1]), Pair((1,)), type("Counts", (defaultdict,), {})(int, a=1)):
        leaves, structure = tree.flatten(value)
        back = structure.unflatten(leaves)
        assert type(back) is type(value)
        assert back == value
        assert structure is not tree.flatten(value.__class__.__base__(value) if type(value) is Rows else [])[1]
    assert type(tree.flatten(Pair((1,)))[1].unflatten(["a stand-in"])) is Pair
    assert tree.map(lambda a, b: a + b, Rows([1]), [2]) == Rows([3]), "a subclass and its base may meet"


def test_subclasses_with_an_init_come_back_as_their_base():
    class Named(dict):
        def __init__(self, name):
            super().__init__(a=1)
            self.name = name

    leaves, structure = tree.flatten(Named("x"))
    assert type(structure.unflatten(leaves)) is dict
    assert structure is tree.flatten({"a": 1})[1]


def test_defaultdict_keeps_its_factory():
    leaves, structure = tree.flatten(defaultdict(list, a=1))
    assert structure.unflatten(leaves)["new"] == []


def test_dataclasses_are_rebuilt_without_running_their_code():
    leaves, structure = tree.flatten(Picky(3))
    assert structure.unflatten(["a stand-in"]).size == "a stand-in"
    frozen = tree.flatten(Frozen(1))[1].unflatten([10, 20])
    assert (frozen.a, frozen.b) == (10, 20)
    assert leaves == [3]


def test_unflatten_counts_the_leaves():
    with pytest.raises(ValueError, match=r"\[unflatten\] \{'a': \*, 'b': \[\*\]\} has 2 leaves, got 3"):
        tree.flatten({"a": 1, "b": [2]})[1].unflatten([1, 2, 3])


def test_is_leaf_stops_at_containers():
    leaves, structure = tree.flatten([(1, 2), [3, None]], lambda node: isinstance(node, tuple) or node is None)
    assert leaves == [(1, 2), 3, None]
    assert repr(structure) == "[*, [*, *]]"
    assert tree.flatten((1, 2), lambda node: isinstance(node, tuple)) == ([(1, 2)], tree.LEAF)


def test_repr():
    value = {"a": [1, (2,)], "b": Point(None, Layer(1, ())), 3: OrderedDict(x=1)}
    expected = "{'a': [*, (*,)], 'b': Point(x=None, y=Layer(weight=*, bias=())), 3: OrderedDict({'x': *})}"
    assert repr(tree.flatten(value)[1]) == expected
    assert repr(tree.LEAF) == "*"


def test_structures_copy_and_pickle_to_themselves():
    for value in CONTAINERS:
        structure = tree.flatten(value)[1]
        assert copy.copy(structure) is structure
        assert copy.deepcopy(structure) is structure
        assert pickle.loads(pickle.dumps(structure)) is structure
    assert pickle.loads(pickle.dumps(tree.LEAF)) is tree.LEAF


def test_paths():
    value = {"layers": [0, 1, 2, Layer(10, Point(11, 12))], 5: (13,)}
    found = {f"tree{path}": leaf for path, leaf in tree.leaves_with_paths(value)}
    assert found["tree['layers'][3].weight"] == 10
    assert found["tree['layers'][3].bias.y"] == 12
    assert found["tree[5][0]"] == 13
    path = tree.leaves_with_paths(value)[3][0]
    assert [step.value for step in path] == ["layers", 3, "weight"]
    assert [step.kind for step in path] == ["key", "index", "field"]
    assert tree.leaves_with_paths(1) == [(tree.Path(), 1)]


def test_map():
    assert tree.map(lambda x: -x, {"a": [1, None], "b": Point(2, ())}) == {"a": [-1, None], "b": Point(-2, ())}
    assert tree.map(lambda x, y, z: x + y + z, [1, (2,)], [10, (20,)], [100, (200,)]) == [111, (222,)]
    assert tree.map(lambda x, y: (x, y), {"a": 1, "b": 2}, {"b": [3], "a": None}) == {"a": (1, None), "b": (2, [3])}
    assert tree.map(lambda x, y: x + y, OrderedDict(a=1), {"a": 2}) == OrderedDict(a=3)
    assert tree.map(len, [(1, 2), (3,)], is_leaf=lambda node: isinstance(node, tuple)) == [2, 1]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"layers": [0, 1, 2, Layer([1, 2], 0)]}, {"layers": [0, 1, 2, Layer([1], 0)]},
         r"differ at tree\['layers'\]\[3\]\.weight: tree has a list of 2 there, rest\[0\] a list of 1\."),
        ([1, 2], (1, 2), r"differ at tree: tree has a list of 2 there, rest\[0\] a tuple of 2\."),
        ({"a": 1, "b": 2}, {"a": 1}, r"at tree: tree has a dict with keys 'a', 'b' there, rest\[0\] a dict with"),
        ({"a": {}}, {"a": {"k": 1}}, r"at tree\['a'\]: tree has an empty dict there, rest\[0\] a dict with keys 'k'"),
        ([None], [1], r"at tree\[0\]: tree has None there, rest\[0\] a leaf of type int\."),
        (Point(1, (2,)), Point(1, 2.5), r"at tree\.y: tree has a tuple of 1 there, rest\[0\] a leaf of type float\."),
        ([Layer(1, 2)], [Typed(1, 2)], r"at tree\[0\]: tree has a Layer there, rest\[0\] a Typed\."),
    ],
)  # fmt: skip
def test_map_says_where_trees_differ(first, second, message):
    with pytest.raises(ValueError, match=message):
        tree.map(lambda x, y: x, first, second)


def test_broadcast_prefix():
    value = ({"x": 1, "y": (2, 3)}, [4, None], 5)
    assert tree.broadcast_prefix(0, value) == [0, 0, 0, 0, 0]
    assert tree.broadcast_prefix((0, None, 2), value) == [0, 0, 0, None, 2]
    assert tree.broadcast_prefix(({"y": (1, None), "x": 0}, [2, None], 3), value) == [0, 1, None, 2, 3]
    assert tree.broadcast_prefix(None, 1) == [None]
    assert tree.broadcast_prefix(None, None) == []
    with pytest.raises(
        ValueError, match=r"differ at in_axes\[1\]: in_axes has a list of 1 there, the arguments a list of 2"
    ):
        tree.broadcast_prefix((0, [0], 0), value, what="in_axes", other="the arguments")
    with pytest.raises(ValueError, match=r"differ at prefix\[0\]\['x'\]: prefix has a tuple of 1 there, tree a leaf"):
        tree.broadcast_prefix(({"x": (0,), "y": 0}, 0, 0), value)


def test_deep_trees():
    value: Any = 1
    for depth in range(3000):
        value = [value] if depth % 2 else {"k": value}
    leaves, structure = tree.flatten(value)
    back = structure.unflatten(leaves)
    assert tree.flatten(back)[1] is structure
    assert tree.leaves(tree.map(lambda x, y: x + y, value, back)) == [2]
    assert len(structure.paths()[0]) == 3000
    assert len(repr(structure)) == 1500 * len("[]") + 1500 * len("{'k': }") + 1


def test_a_container_that_contains_itself():
    loop: list[Any] = [1]
    loop.append(loop)
    with pytest.raises(ValueError, match="contain itself"):
        tree.flatten(loop)


def test_unused_structures_are_forgotten():
    structure = tree.flatten({"only here": (1, [2])})[1]
    gone = weakref.ref(structure)
    del structure
    for i in range(tree._RECENT_LIMIT + 1):
        tree.flatten({i: 1})
    gc.collect()
    assert gone() is None


def test_live_structures_stay_unique_while_others_are_forgotten():
    value = {"kept": (1, [2], Point(1, 2))}
    structure = tree.flatten(value)[1]
    for i in range(tree._RECENT_LIMIT + 1):
        tree.flatten({i: 1})
    assert tree.flatten(value)[1] is structure


def test_classes_made_on_the_fly_do_not_disturb():
    structure = tree.flatten(Layer(1, Point(2, 3)))[1]
    for _ in range(tree._Kinds.LIMIT + 1):
        tree.flatten(type("Leaf", (), {})())
    assert len(tree._kinds) <= tree._Kinds.LIMIT
    assert tree.flatten(Layer(1, Point(2, 3)))[1] is structure


def test_threads_agree_on_structures():
    found: list[list[tree.Structure]] = [[] for _ in range(4)]
    start = threading.Barrier(len(found))

    def work(out: list[tree.Structure]) -> None:
        start.wait()
        out.extend(tree.flatten({f"thread{i}": [1, (i,)]})[1] for i in range(500))

    threads = [threading.Thread(target=work, args=(out,)) for out in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(a is b is c is d for a, b, c, d in zip(*found, strict=True))
