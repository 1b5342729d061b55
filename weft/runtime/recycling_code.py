"""The machine code with which objects begin and end that a call makes and drops: nodes, arrays, buffers and storages.

Each class has a list of objects that have come to their end, whose memory the next ones get. They keep the reference to
their class meanwhile. Objects of other classes that inherit from these come here at the end of their own end, as
CPython has it for base classes, and give their memory back. Chains of nodes end one after the other, not within each
other, because the tuples of operands between them see to that. A storage gives its block back to the pool. See
`weft.runtime.object_code`.
"""

from __future__ import annotations

from typing import Final

from weft.dtypes import bool_
from weft.llvm.builder import Value
from weft.llvm.functions import Integers, Long, Native, Truth, Void, native
from weft.runtime.object_table import HEAD_WORDS, MOST_SHELVED, RECYCLED, SHELF_ROW, SHELF_STEP, references_at
from weft.runtime.object_values import (
    Code,
    Dict,
    Object,
    Objects,
    Pool,
    Storage,
    allocate,
    call,
    clear_references,
    entry,
    free,
    integer,
    integer_object,
    put_aside,
    put_back,
    tell,
    track,
    untrack,
)


def called(c: Code, function: Object, *arguments: Object) -> Object:
    """What Python's function gives: a new reference, or null."""
    handed = c.room(Objects, max(len(arguments), 1))
    for place, argument in enumerate(arguments):
        handed[place] = argument
    return call(c, function, handed, len(arguments), c.null)


# ---- blocks ----


def row_of(c: Code, size: Value) -> Integers:
    """Where the shelf has blocks of a size: how many there are, then their addresses, as ints."""
    return c.address("shelf", Integers).past((size >> (SHELF_STEP.bit_length() - 1)) * SHELF_ROW)


@native(Object, size=Long)
def unshelved(c: Code, size: Value) -> None:
    """The address of a block from the shelf, or null; it is not counted yet."""
    with c.when(size <= MOST_SHELVED):
        row = row_of(c, size)
        count = row[0]
        with c.when(count > 0):
            row[0] = count - 1
            c.ret(Objects.of(row)[count])
    c.fail()


@native(Truth, size=Long, address=Object)
def shelve(c: Code, size: Value, address: Object) -> None:
    """Count a block as idle, and put it on the shelf; if there is no room, or idle blocks should be given back to the
    system, that remains to be done."""
    pool = c.address("counters", Pool)
    active = pool.active - size
    pool.active = active
    with c.when((size <= MOST_SHELVED) & (active >= pool.low)):
        row = row_of(c, size)
        count = row[0] + 1
        with c.when(count < SHELF_ROW):
            row[0] = count
            Objects.of(row)[count] = address.hold()
            c.ret(c.const(bool_, True, 1))
    c.ret(c.const(bool_, False, 1))


@native(Truth, blocks=Object, address=Object)
def put_away(c: Code, blocks: Object, address: Object) -> None:
    """Put a block that `shelve` did not take among the idle ones; false with an exception."""
    done = called(c, c.object("append"), blocks, address)
    with c.when(done.is_null()):
        c.ret(c.const(bool_, False, 1))
    done.release()
    pool = c.address("counters", Pool)
    with c.when(pool.active < pool.low):
        done = called(c, c.object("trim"))
        with c.when(done.is_null()):
            c.ret(c.const(bool_, False, 1))
        done.release()
    c.ret(c.const(bool_, True, 1))


@entry
def unshelve(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """unshelve(idle): put all blocks of the shelf where Python finds them, by their sizes."""
    with c.when(count.ne(1)):
        c.ret(c.none.hold())
    with c.loop(1, MOST_SHELVED // SHELF_STEP + 1, 1) as loop:
        size = loop.index * SHELF_STEP
        row = row_of(c, size)
        with c.when(row[0] > 0):
            number = integer_object(c, size)
            with c.when(number.is_null()):
                c.fail()
            blocks = Dict.of(arguments[0]).find(number)
            number.release()
            with c.when(blocks.exists()):
                blocks.hold()
                there = row[0]
                row[0] = c.i64(0)
                with c.loop(1, there + 1, 1) as places:  # the one that came last will be the first to go
                    address = Objects.of(row)[places.index]
                    done = called(c, c.object("append"), blocks, address)
                    address.release()
                    with c.when(done.is_null()):
                        blocks.release()
                        c.fail()
                    done.release()
                blocks.release()
    c.ret(c.none.hold())


@native(Void, size=Long, capacity=Object, address=Object)
def return_by_python(c: Code, size: Value, capacity: Object, address: Object) -> None:
    """Give back the block of a storage, of this size, that `shelve` did not take. Whatever is raised meanwhile stays
    raised."""
    kept = c.room(Objects, 3)
    put_aside(c, kept, kept.past(1), kept.past(2))
    blocks = Dict.of(c.object("idle")).find(capacity)
    with c.when(blocks.exists()), c.when(~put_away(c, blocks, address)):
        tell(c, c.none)
    put_back(c, kept[0], kept[1], kept[2])


@native(Void, storage=Storage)
def return_block(c: Code, storage: Storage) -> None:
    """Give the memory of a storage back, if `allocate` has given it some."""
    capacity, address = storage.capacity, storage.address
    with c.when(capacity.exists()), c.when(address.exists()):
        size = integer(c, capacity)
        with c.when(~shelve(c, size, address)):
            return_by_python(c, size, capacity, address)


# ---- objects ----


def _making(name: str) -> Native[Object]:
    attributes, has_references = RECYCLED[name]

    def make(c: Code) -> None:
        found = c.address(f"idle_{name}", Object)
        with c.when(found.exists()):
            c.set_address(f"idle_{name}", Objects.of(found)[HEAD_WORDS])
            c.change_state(f"room_{name}", 1)
            words = Integers.of(found)
            words[0] = c.i64(1)
            for place in range(attributes):
                words[HEAD_WORDS + place] = c.i64(0)
            if has_references:
                words[references_at(attributes)] = c.i64(0)
            if name != "storage":  # which refers to nothing that is collected
                track(c, found)
            c.ret(found)
        c.ret(allocate(c, c.object(f"{name}_type"), 0))

    make.__name__ = f"make_{name}"
    return Native(make, Object, {})


def _ending(name: str) -> Native[Void]:
    attributes, has_references = RECYCLED[name]

    def end(c: Code, self: Object) -> None:
        untrack(c, self)
        words = Objects.of(self)
        if has_references:
            with c.when(words[references_at(attributes)].exists()):
                clear_references(c, self)
        is_plain = self.cls.eq(c.object(f"{name}_type"))
        if name == "storage":
            with c.when(is_plain):
                return_block(c, Storage.of(self))
        for place in range(attributes):
            words[HEAD_WORDS + place].release()
        with c.when(is_plain & (c.state(f"room_{name}") > 0)):
            words[HEAD_WORDS] = c.address(f"idle_{name}", Object)
            c.set_address(f"idle_{name}", self)
            c.change_state(f"room_{name}", -1)
            c.ret()
        cls = self.cls
        free(c, self)
        cls.release()

    end.__name__ = f"end_{name}"
    return Native(end, Void, {"self": Object})


MAKE: Final = {name: _making(name) for name in RECYCLED}
"""Each makes an object without attributes, or gives null with an exception."""
ENDS: Final = tuple(_ending(name) for name in RECYCLED)
"""What CPython calls when nothing refers to an object any more."""
