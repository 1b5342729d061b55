"""The machine code that takes the steps of guards: whether a call sees what an earlier one saw. See
`weft.runtime.guard_table`, and `weft.transforms.guards`, which defines what each step means."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from weft.dtypes import int64
from weft.llvm.builder import PTR, Value
from weft.llvm.functions import Int, Integers, Long, native
from weft.runtime import guard_table as steps
from weft.runtime.guard_table import HEAD, NO, READY, STEP_WORDS, WAITING
from weft.runtime.object_values import (
    Array,
    Buffer,
    Code,
    Dict,
    List,
    Object,
    Objects,
    Set,
    Tuple,
    attribute,
    bytes_of,
    call,
    clear_exception,
    compare,
    contents,
    double,
    entry,
    exception,
    function_attributes,
    function_cells,
    function_code,
    function_defaults,
    function_globals,
    integer_object,
    is_raised,
    is_true,
    iterator,
    keyword_defaults,
    next_item,
    next_of,
    otherwise,
    unless,
)

_EQ: Final = 2
"""CPython's Py_EQ."""

_FAILED: Final = -1
"""What a step gives with an exception; else 1, or 0 if something is not what it was."""


def _answer(c: Code, condition: Value) -> None:
    c.ret(c.cast(condition, Int.held_as))


def _added(c: Code, target: List, *items: Object) -> None:
    """Return, with these added to a list."""
    for item in items:
        with c.when(target.append(item).ne(0)):
            c.ret(c.const(Int.held_as, _FAILED))
    c.ret(c.const(Int.held_as, 1))


@native(Int, target=List, item=Object)
def take_over(c: Code, target: List, item: Object) -> None:
    """Add an item to a list, which takes over the reference; null is an exception."""
    with c.when(item.is_null()):
        c.ret(c.const(Int.held_as, _FAILED))
    status = target.append(item)
    item.release()
    c.ret(c.choose(status.eq(0), 1, status))


@native(Int, x=Object, y=Object)
def are_equal(c: Code, x: Object, y: Object) -> None:
    """Whether plain values of one class are equal: floats to the bit."""
    with c.when(x.eq(y)):
        c.ret(c.const(Int.held_as, 1))
    with c.when(x.cls.ne(y.cls)):
        c.ret(c.const(Int.held_as, 0))
    with c.when(x.cls.eq(c.object("float_type"))):
        bits = [c.bitcast(double(c, item), int64) for item in (x, y)]
        _answer(c, bits[0].eq(bits[1]))
    for name in ("str_type", "int_type", "bytes_type", "tuple_type"):
        with c.when(x.cls.eq(c.object(name))):
            c.ret(compare(c, x, y, _EQ))
    c.ret(c.const(Int.held_as, 0))


@native(Int, item=Object, constant=Object, varies=Object, values=List)
def take_item(c: Code, item: Object, constant: Object, varies: Object, values: List) -> None:
    """Compare an item of a container, or add it if it has a step of its own."""
    with c.when(constant.eq(varies)):
        _added(c, values, item)
    c.ret(are_equal(c, item, constant))


def _unless_taken(c: Code, item: Object, constant: Object, varies: Object, values: List) -> None:
    with c.when(item.ne(constant)):
        status = take_item(c, item, constant, varies, values)
        with c.when(status.ne(1)):
            c.ret(status)


@native(Int, value=Object, expected=Objects, varies=Object, values=List, count=Long)
def add_values(c: Code, value: Object, expected: Objects, varies: Object, values: List, count: Value) -> None:
    """The values of a dict; keys and values are expected in turn. What compares plain values runs no code of Python's,
    so the dict stays as it is."""
    with c.when(Dict.of(value).size().ne(count)):
        c.ret(c.const(Int.held_as, 0))
    place, found = c.room(Integers, 1), c.room(Objects, 2)
    c.store(c.i64(0), place)
    with c.loop(0, count, 1) as loop:
        with c.when(next_item(c, value, place, found, found.past(1)).eq(0)):
            c.ret(c.const(Int.held_as, 0))
        pair = expected.past(loop.index << 1)
        with c.when(found[0].ne(pair[0])):
            same = are_equal(c, found[0], pair[0])
            with c.when(same.ne(1)):
                c.ret(same)
        _unless_taken(c, found[1], pair[1], varies, values)
    c.ret(c.const(Int.held_as, 1))


@native(Int, value=List, expected=Objects, varies=Object, values=List, count=Long)
def add_items(c: Code, value: List, expected: Objects, varies: Object, values: List, count: Value) -> None:
    """The items of a list."""
    with c.when(value.size().ne(count)):
        c.ret(c.const(Int.held_as, 0))
    with c.loop(0, count, 1) as loop:
        _unless_taken(c, value.item(loop.index), expected[loop.index], varies, values)
    c.ret(c.const(Int.held_as, 1))


@native(Int, value=Tuple, expected=Objects, varies=Object, values=List, count=Long)
def add_parts(c: Code, value: Tuple, expected: Objects, varies: Object, values: List, count: Value) -> None:
    """The items of a tuple."""
    with c.when(value.size().ne(count)):
        c.ret(c.const(Int.held_as, 0))
    with c.loop(0, count, 1) as loop:
        _unless_taken(c, value.item(loop.index), expected[loop.index], varies, values)
    c.ret(c.const(Int.held_as, 1))


@native(Int, value=Set, expected=Objects, varies=Object, values=List, count=Long)
def add_members(c: Code, value: Set, expected: Objects, varies: Object, values: List, count: Value) -> None:
    """The items of a set, which is one itself: to go through it runs no code of Python's."""
    with c.when(value.size().ne(count)):
        c.ret(c.const(Int.held_as, 0))
    with c.when(count.eq(0)):
        c.ret(c.const(Int.held_as, 1))
    items = iterator(c, value)
    with c.when(items.is_null()):
        c.ret(c.const(Int.held_as, _FAILED))
    with c.loop(0, count, 1) as loop:
        item = next_of(c, items)
        with c.when(item.is_null()):  # a finalizer has changed the set, when memory was asked for
            items.release()
            clear_exception(c)
            c.ret(c.const(Int.held_as, 0))
        with c.when(item.ne(expected[loop.index])):
            status = take_item(c, item, expected[loop.index], varies, values)
            with c.when(status.ne(1)):
                item.release()
                items.release()
                c.ret(status)
        item.release()
    items.release()
    c.ret(c.const(Int.held_as, 1))


@native(Int, found=Tuple, values=List, count=Long)
def add_all(c: Code, found: Tuple, values: List, count: Value) -> None:
    """All items of a tuple."""
    with c.when(found.size().ne(count)):
        c.ret(c.const(Int.held_as, 0))
    with c.loop(0, count, 1) as loop, c.when(values.append(found.item(loop.index)).ne(0)):
        c.ret(c.const(Int.held_as, _FAILED))
    c.ret(c.const(Int.held_as, 1))


@native(Int, value=Object, function=Object, values=List, count=Long)
def add_read(c: Code, value: Object, function: Object, values: List, count: Value) -> None:
    """What a function gives for a value, a tuple."""
    handed = c.room(Objects, 1)
    handed[0] = value
    found = call(c, function, handed, 1, c.null)
    with c.when(found.is_null()):
        c.ret(c.const(Int.held_as, _FAILED))
    status = add_all(c, Tuple.of(found), values, count)
    found.release()
    c.ret(status)


@native(Int, value=Object, name=Object, cls=Object, values=List)
def add_state(c: Code, value: Object, name: Object, cls: Object, values: List) -> None:
    """The attributes of an object, of that class, or None."""
    found = attribute(c, value, name)
    with c.when(found.exists()):
        with c.when(found.cls.ne(cls)):
            found.release()
            c.ret(c.const(Int.held_as, 0))
        c.ret(take_over(c, values, found))
    with c.when(is_raised(c, c.object("attribute_error")).eq(0)):
        c.ret(c.const(Int.held_as, _FAILED))
    clear_exception(c)
    with c.when(c.none.cls.ne(cls)):
        c.ret(c.const(Int.held_as, 0))
    _added(c, values, c.none)


@native(Int, value=Object, values=List)
def add_function(c: Code, value: Object, values: List) -> None:
    """The parts of a function."""
    for read in (function_code, function_cells, function_defaults, keyword_defaults):
        part = read(c, value)
        with c.when(part.exists()), c.when(values.append(part).ne(0)):
            c.ret(c.const(Int.held_as, _FAILED))
        with c.when(part.is_null()), c.when(values.append(c.none).ne(0)):
            c.ret(c.const(Int.held_as, _FAILED))
    status = take_over(c, values, function_attributes(c, value, c.null))
    with c.when(status < 0):
        c.ret(status)
    _added(c, values, function_globals(c, value))


@native(Int, value=Array, arrays=List, kinds=List, buffers=List, bound=Tuple)
def add_array(c: Code, value: Array, arrays: List, kinds: List, buffers: List, bound: Tuple) -> None:
    """An array, its kind and its value. 1, or `WAITING` if the value is not a plain buffer."""
    with c.when(value.cls.ne(c.object("array_type"))):
        c.ret(c.const(Int.held_as, 0))
    node = value.node
    data = node.value
    status = arrays.append(value) | kinds.append(node.kind) | buffers.append(data)
    with c.when(status.ne(0)):
        c.ret(c.const(Int.held_as, _FAILED))
    with c.when(data.cls.eq(bound.item(_BUFFER))):
        c.ret(c.choose(Buffer.of(data).strides.eq(c.none), c.const(Int.held_as, 1), WAITING))
    c.ret(c.const(Int.held_as, WAITING))


_INSTEAD, _STEPS, _CODE, _ABSENT, _VARIES, _STATE_NAME, _BUFFER = range(7)
"""What a pass is made with: Python's form, the steps as it takes them and as words, two marks, the name of the
attributes of an object, and the class of values that lie in memory."""


@native(
    Int, bound=Tuple, code=Integers, step=Integers, values=List, arrays=List, objects=List, apart=List, places=List,
    scalars=List, kinds=List, buffers=List,
)  # fmt: skip
def take_step(
    c: Code, bound: Tuple, code: Integers, step: Integers, values: List, arrays: List, objects: List, apart: List,
    places: List, scalars: List, kinds: List, buffers: List,
) -> None:  # fmt: skip
    """One step. 1, 0 if something is not what it was, `WAITING`, or -1 with an exception."""
    operation, value, count = step[0], values.item(step[1]), step[2]
    expected = Objects.of(step)[3]

    def compared() -> tuple[Objects, Object]:
        """What items are compared with, and the mark of those that are not."""
        return Objects.of(code.past(step[4])), bound.item(_VARIES)

    @contextmanager
    def case(number: int) -> Iterator[None]:
        with c.when(operation.eq(number)):
            yield

    def unless_class() -> None:
        with c.when(value.cls.ne(expected)):
            c.ret(c.const(Int.held_as, 0))

    with case(steps.SAME):
        _answer(c, value.eq(expected))
    with case(steps.EQUAL):
        c.ret(are_equal(c, value, expected))
    with case(steps.ARRAY):
        c.ret(add_array(c, value, arrays, kinds, buffers, bound))
    with case(steps.OBJECT):
        unless_class()
        _added(c, objects, value)
    with case(steps.TYPE):
        _answer(c, value.cls.eq(expected))
    with case(steps.VALUES):
        c.ret(add_values(c, value, *compared(), values, count))
    with case(steps.PLACE):
        _added(c, places, value)
    with case(steps.STATE):
        c.ret(add_state(c, value, bound.item(_STATE_NAME), expected, values))
    with case(steps.CONSTANT):
        _added(c, values, expected)
    with case(steps.LOOK_UP):
        found = Dict.of(value).find(expected)
        with c.when(found.exists()):
            _added(c, values, found)
        with c.when(exception(c).exists()):
            c.ret(c.const(Int.held_as, _FAILED))
        _added(c, values, bound.item(_ABSENT))
    with case(steps.ITEMS):
        c.ret(add_items(c, value, *compared(), values, count))
    with case(steps.PARTS):
        c.ret(add_parts(c, value, *compared(), values, count))
    with case(steps.KNOWN):
        with c.when(count >= 0):
            _answer(c, value.eq(arrays.item(count)))
        _answer(c, value.eq(objects.item(~count)))
    with case(steps.NUMBER):
        unless_class()
        _added(c, scalars, value)
    with case(steps.MEMBERS):
        c.ret(add_members(c, value, *compared(), values, count))
    with case(steps.FUNCTION):
        c.ret(add_function(c, value, values))
    with case(steps.CONTENTS):
        found = contents(c, value)
        with c.when(found.exists()):
            c.ret(take_over(c, values, found))
        _added(c, values, bound.item(_ABSENT))
    with case(steps.FALSE):
        truth = is_true(c, value)
        c.ret(c.choose(truth < 0, truth, truth ^ 1))
    with case(steps.FIXED_PLACE):
        _added(c, places, expected)
    with case(steps.APART):
        _added(c, apart, value)
    with case(steps.MADE_PLACE):
        handed = c.room(Objects, 1)
        handed[0] = value
        c.ret(take_over(c, places, call(c, expected, handed, 1, c.null)))
    c.ret(add_read(c, value, expected, values, count))


@native(Long, seen=Integers, mask=Long, items=List)
def all_new(c: Code, seen: Integers, mask: Value, items: List) -> None:
    """Whether no item of a list is in a table of addresses, into which they are entered: 1 or 0."""
    with c.loop(0, items.size(), 1) as loop:
        address = c.op(f"ptrtoint ptr {items.item(loop.index).text} to i64", int64, 1)
        with c.repeat(((address >> 4) ^ (address >> 13)) & mask) as probe:
            (place,) = probe.carried
            there = seen[place]
            with c.when(there.eq(address)):
                c.ret(c.i64(0))
            probe.stop_when(there.eq(0))
            probe.carry((place + 1) & mask)
        c.store(address, seen.past(probe.carried[0]))
    c.ret(c.i64(1))


_LISTS: Final = 8


@entry
def take_steps(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """take_steps(values, arrays, objects, apart, places, scalars, kinds, buffers); see `instead`, which gets the steps
    first."""
    bound = Tuple.of(self)
    with c.when(count.ne(_LISTS)):
        c.ret(otherwise(c, bound.item(_INSTEAD), arguments, count))
    handed = c.room(Objects, 1 + _LISTS)
    handed[0] = bound.item(_STEPS)
    c.copy(handed.past(1), arguments, c.i64(_LISTS))
    needed = unless(c, handed, c.i64(1 + _LISTS), lambda: bound.item(_INSTEAD))
    needed(c.state("overlaid").eq(0))
    lists = [List.of(arguments[place]) for place in range(_LISTS)]
    for one in lists:
        needed(one.cls.eq(c.object("list_type")))
    code = bytes_of(c, bound.item(_CODE))
    with c.loop(0, code[0], 1, c.const(Int.held_as, READY)) as loop:
        step = code.past(loop.index * STEP_WORDS + HEAD)
        status = take_step(c, bound, code, step, *lists)
        with c.when(status < 0):
            c.fail()
        with c.when(status.eq(NO)):
            c.ret(integer_object(c, NO))
        loop.carry(loop.carried[0] | status)
    seen, mask = Integers.of(c.op(f"inttoptr i64 {code[1].text} to ptr", PTR, 1)), code[2]
    c.call_void("llvm.memset.p0.i64", seen, "i8 0", (mask + 1) << 3, "i1 false")
    for noted in lists[1:4]:  # in one go, in which no other thread needs the table
        with c.when(all_new(c, seen, mask, noted).eq(0)):
            c.ret(integer_object(c, NO))
    waiting = loop.carried[0] & WAITING
    c.ret(integer_object(c, c.choose(waiting.ne(0), c.i64(WAITING), READY)))
