"""Objects that machine code ends and makes again of the same memory: nothing of the earlier ones is left in them, and
memory is counted as Python counts it."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests.processes import in_threads
from weft.graph.node import Node
from weft.runtime.buffer import ForeignStorage, Storage, allocate, pool
from weft.runtime.data import Buffer
from weft.runtime.object_table import MOST_RECYCLED, MOST_SHELVED, RECYCLED, SHELF_ROW, TABLE
from weft.runtime.objects import MAKERS

mx.eval(mx.array([1.0]) + 1)  # loads what runs programs
native = pytest.mark.skipif(not MAKERS.runs, reason="this interpreter's objects are laid out in another way")


def room(name: str) -> int:
    return MAKERS._table[TABLE[f"room_{name}"]]


@native
def test_no_more_memory_is_kept_than_there_is_room_for() -> None:
    held = [mx.array([float(i)]) + 1 for i in range(3 * MOST_RECYCLED)]
    mx.eval(held)
    held.clear()
    assert all(0 <= room(name) <= MOST_RECYCLED for name in RECYCLED)
    assert room("array") == 0
    again = [mx.sin(mx.array([0.5])) for _ in range(2 * MOST_RECYCLED)]
    assert room("node") == MOST_RECYCLED
    assert all(x.item() == again[0].item() for x in again)


@native
def test_an_object_begins_without_attributes() -> None:
    x = mx.array([1.0, 2.0])
    mx.eval(x + 1)
    for _ in range(3):
        y = x + 1
        node = y._node
        assert node.value is None
        assert not hasattr(node, "device")
        assert not hasattr(node, "line")
        assert weakref.getweakrefcount(y) == 1
        assert gc.is_tracked(node)
        assert gc.is_tracked(y)
        mx.eval(y)
        assert gc.is_tracked(node.value)
        assert weakref.getweakrefcount(node.value.storage) == 0
        del y, node


@native
def test_weak_references_are_told() -> None:
    gone: list[Any] = []
    for _ in range(3):
        x = mx.sin(mx.array([1.0]))
        mx.eval(x)
        storage = x._node.value.storage
        references = [weakref.ref(x, gone.append), weakref.ref(x, gone.append), weakref.ref(storage, gone.append)]
        del storage, x
        assert [reference() for reference in references] == [None] * 3
    assert len(gone) == 9


@native
def test_classes_that_inherit_end_as_they_say() -> None:
    ended: list[str] = []

    class Mine(mx.array):
        def __del__(self) -> None:
            ended.append(self.name)

    class Slotted(mx.array):
        __slots__ = ("more",)

    before = sys.getrefcount(Mine), sys.getrefcount(Slotted)
    for _ in range(5):
        x = Mine([1.0, 2.0])
        x.name = "mine"
        y = Slotted([3.0])
        y.more = [y]
        assert (mx.array(x) + y).tolist() == [4.0, 5.0]
        reference = weakref.ref(x)
        del x, y
        assert reference() is None
    gc.collect()
    assert ended == ["mine"] * 5
    assert (sys.getrefcount(Mine), sys.getrefcount(Slotted)) == before
    owner = np.zeros(4)
    counted = sys.getrefcount(owner)
    for _ in range(5):
        ForeignStorage(owner, owner.ctypes.data, owner.nbytes)
    assert sys.getrefcount(owner) == counted


@native
def test_an_array_that_a_finalizer_brings_back_keeps_its_memory() -> None:
    """Whatever is in a cycle is told that it ends before it is known that it does not."""
    kept: list[mx.array] = []

    class Cycle:
        def __init__(self) -> None:
            self.me, self.x = self, mx.array(np.arange(200, dtype=np.float32)) + 1
            mx.eval(self.x)

        def __del__(self) -> None:
            kept.append(self.x)

    active = pool.active
    for _ in range(5):
        Cycle()
    gc.collect()
    others = [mx.zeros((200,)) * float(i) for i in range(20)]
    mx.eval(others)
    assert [x.tolist() for x in kept] == [np.arange(1.0, 201.0).tolist()] * 5
    del others
    kept.clear()
    assert pool.active == active


@native
def test_cycles_are_collected() -> None:
    class Holder:
        pass

    active = pool.active
    for _ in range(20):
        holder = Holder()
        holder.array = mx.array(np.ones(100, np.float32)) * 2  # type: ignore[attr-defined]
        mx.eval(holder.array)  # type: ignore[attr-defined]
        holder.me = holder  # type: ignore[attr-defined]
    del holder
    gc.collect()
    assert pool.active == active
    for size in (100, 1 << 20):
        cycle: list[Any] = [allocate(size), mx.array(np.ones(size // 4, np.float32)) * 2]
        mx.eval(cycle[1])
        cycle.append(cycle)
        del cycle
        gc.collect()
        assert pool.active == active


@native
def test_deep_graphs_end() -> None:
    for _ in range(2):
        x = mx.array([1.0])
        for _ in range(200_000):
            x = x + 1.0
        del x
    assert (mx.array([1.0]) + 1).item() == 2.0


@native
def test_what_is_raised_while_objects_end_stays_raised() -> None:
    def fail() -> None:
        x = mx.array(np.ones(1 << 12, np.float32)) + 1
        mx.eval(x)
        y = mx.array([1.0]) + 1
        mx.eval(y)
        raise KeyError(len(x))

    limit = mx.set_cache_limit(0)
    try:
        for _ in range(5):
            with pytest.raises(KeyError, match="4096"):
                fail()
    finally:
        mx.set_cache_limit(limit)


# ---- the shelf ----


@native
def test_blocks_of_the_shelf_are_idle_as_others_are() -> None:
    mx.clear_cache()
    active, sizes = pool.active, (64, 128, 1024, 2048, MOST_SHELVED, MOST_SHELVED + 512)
    for count in (3, SHELF_ROW - 1, 3 * SHELF_ROW):
        held = [allocate(size) for size in sizes for _ in range(count)]
        assert len({storage.address for storage in held}) == len(held)
        assert pool.active == active + count * sum(sizes)
        most = mx.get_peak_memory()
        del held
        assert pool.active == active
        assert mx.get_cache_memory() >= count * sum(sizes)
        held = [allocate(size) for size in sizes for _ in range(count)]
        assert mx.get_peak_memory() == most
        assert pool.held == pool.active + mx.get_cache_memory()
        del held
    mx.clear_cache()
    assert mx.get_cache_memory() == 0
    assert (mx.array([1.0, 2.0]) + 1).tolist() == [2.0, 3.0]


@native
def test_no_cache_is_no_shelf() -> None:
    x = mx.array([1.0, 2.0])
    limit = mx.set_cache_limit(0)
    try:
        for _ in range(10):
            y = x * 2
            mx.eval(y)
            del y
            assert mx.get_cache_memory() == 0
    finally:
        mx.set_cache_limit(limit)


@native
def test_threads_share_the_shelf() -> None:
    x = mx.array(np.arange(40, dtype=np.float32))
    mx.eval(x)
    compiled = mx.compile(lambda a: a * 2 + 1)
    expected, active = compiled(x).tolist(), pool.active
    wrong: list[int] = []

    def work(number: int) -> None:
        kept: list[Any] = []
        for i in range(500):
            kept.append(compiled(x))
            kept.append(allocate(160))
            if i % 7 == number:
                wrong.extend(i for y in kept if type(y) is mx.array and y.tolist() != expected)
                kept.clear()
            if i % 100 == number:
                mx.clear_cache()

    in_threads(4, work, interval=1e-6)
    gc.collect()
    assert not wrong
    assert pool.active == active


@native
def test_types_are_what_they_were() -> None:
    assert [cls.__name__ for cls in (Node, mx.array, Buffer, Storage)] == ["Node", "array", "Buffer", "Storage"]
    with pytest.raises(AttributeError):
        Storage().address  # noqa: B018
    with pytest.raises(AttributeError):
        mx.array.__new__(mx.array).shape  # noqa: B018
