"""Weft compares kinds, primitives, bodies and structures by identity: there must be one of each, whatever happens."""

import threading

import weft.core as mx
from tests import processes
from weft.graph.body import body_of
from weft.graph.node import Node, bundle_of, kind_of, tape_of
from weft.interning import Interned
from weft.primitives.base import Parameter
from weft.primitives.elementwise import Add
from weft.primitives.views import Transpose
from weft.tree import flatten


class Thing:
    pass


def test_who_was_first_wins() -> None:
    """Another thread may add the same key while this one makes its object: both get the one that was added."""
    table: Interned[str, Thing] = Interned(10)
    first: list[Thing] = []

    def overtaken() -> Thing:
        first.append(table.get("a", Thing))
        return Thing()

    assert table.get("a", overtaken) is first[0]
    assert table.get("a", Thing) is first[0]


def test_what_is_alive_is_never_made_again() -> None:
    table: Interned[int, Thing] = Interned(4)
    held = table.get(-1, Thing)
    for i in range(100):
        table.get(i, Thing)
    assert len(table.recent) <= 4
    assert table.get(-1, Thing) is held


def test_a_table_holds_nothing_but_what_is_recent() -> None:
    table: Interned[int, Thing] = Interned(4)
    for i in range(100):
        table.get(i, Thing)
    assert sum(table.find(i) is not None for i in range(100)) <= 4


def test_threads_agree_on_kinds_primitives_and_bodies() -> None:
    start = threading.Barrier(4)
    made: dict[int, list[list[object]]] = {}

    def work(number: int) -> None:
        mine = made[number] = []
        for k in range(200):
            if k % 20 == 0:
                start.wait()
            kind = kind_of((k, 12345), mx.float32)
            x, y = Node(Parameter(0), (), kind), Node(Parameter(1), (), kind)
            body = body_of([x, y], [Node(Add(), (x, y), kind)])
            swap = Transpose((k % 7, *(i for i in range(7) if i != k % 7)))
            mine.append([kind, bundle_of([kind] * (k + 1)), tape_of(kind), body, swap, flatten([1] * k)[1]])

    processes.in_threads(4, work, interval=1e-6)
    assert len(made) == 4
    assert all(len(mine) == 200 for mine in made.values())
    for things in zip(*made.values(), strict=True):
        for same in zip(*things, strict=True):
            assert all(thing is same[0] for thing in same)
