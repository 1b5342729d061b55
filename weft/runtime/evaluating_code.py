"""The machine code of what evaluation does for every node: find what is to be computed, and describe it. See
`weft.runtime.object_code`."""

from __future__ import annotations

from typing import Final

from weft.dtypes import int64
from weft.llvm.builder import Value
from weft.llvm.functions import Int, Integers, Long, Void, native
from weft.runtime.object_table import NO_NUMBER, PLACES, READ, TAPED
from weft.runtime.object_values import (
    Array,
    Buffer,
    Code,
    Dict,
    List,
    Node,
    Object,
    Objects,
    Tuple,
    boolean,
    bytes_of,
    call,
    contains,
    entry,
    exception,
    integer,
    integer_object,
    is_subtype,
    otherwise,
    truth_of,
    unless,
)


def _fail(c: Code) -> None:
    """Return -1, which says that an exception is set."""
    c.ret(c.const(Int.held_as, -1))


# ---- what is to be computed ----


_LEFT: Final = 0
_LOWEST: Final = 1
_FOUND: Final = 2
_STATUS: Final = 3
_CELLS: Final = 4
"""The numbers of a sweep: how many nodes it has yet to look at, the lowest place of one, what it has found, and how it
goes: 0, -1 if an exception is set, `_OTHERWISE` if Python's form has to do it."""

_OTHERWISE: Final = -2


@native(Void, node=Node, table=Objects, cells=Integers, place=Long)
def put(c: Code, node: Node, table: Objects, cells: Integers, place: Value) -> None:
    """Put a node into the table of a sweep, unless it is there."""
    with c.when(table[place].is_null()):
        table[place] = node.hold()
        cells[_LEFT] = cells[_LEFT] + 1
        with c.when(place < cells[_LOWEST]):
            cells[_LOWEST] = place


@native(Long, bound=Tuple, x=Node, table=Objects, cells=Integers, first=Long, below=Long)
def meet(c: Code, bound: Tuple, x: Node, table: Objects, cells: Integers, first: Value, below: Value) -> None:
    """Put an operand into the table of a sweep, unless it has a value or is there: 0, -1 or `_OTHERWISE`. Its place is
    its id from `first` on, which is lower than that of the node that reads it."""
    with c.when(x.value.ne(c.none)):
        c.ret(c.i64(0))
    with c.when(x.op.cls.eq(bound.item(2))):
        cells[_FOUND] = cells[_FOUND] | READ
    place = integer(c, x.id) - first
    with c.when((place < 0) | (place >= below)):
        c.ret(c.i64(_OTHERWISE))
    with c.when(table[place].exists()):
        c.ret(c.i64(0))
    with c.when(x.op.cls.eq(bound.item(1))):
        known = truth_of(c, bound.item(5), x)
        with c.when(known < 0):
            c.ret(c.i64(-1))
        with c.when(known.ne(0)):
            c.ret(c.i64(0))
    put(c, x, table, cells, place)
    c.ret(c.i64(0))


@native(Long, bound=Tuple, node=Node, table=Objects, cells=Integers, first=Long, place=Long, bundles=List, updates=List)
def look_at(
    c: Code, bound: Tuple, node: Node, table: Objects, cells: Integers, first: Value, place: Value, bundles: List,
    updates: List,
) -> None:  # fmt: skip
    """What a sweep does with the node at a place: 0, -1 or `_OTHERWISE`."""
    with c.when(node.cls.eq(bound.item(3))), c.when(bundles.append(node).ne(0)):
        c.ret(c.i64(-1))
    with c.when(node.op.cls.eq(bound.item(2))), c.when(updates.append(node).ne(0)):
        c.ret(c.i64(-1))
    with c.when(node.kind.cls.eq(bound.item(4))):
        cells[_FOUND] = cells[_FOUND] | TAPED
    inputs = node.inputs.hold()  # what is called may be interrupted, and the node evaluated
    with c.loop(0, inputs.size(), 1) as operands:
        status = meet(c, bound, Node.of(inputs.item(operands.index)), table, cells, first, place)
        with c.when(status.ne(0)):
            inputs.release()
            c.ret(status)
    inputs.release()
    c.ret(c.i64(0))


@native(Long, bound=Tuple, table=Objects, cells=Integers, first=Long, bundles=List, updates=List)
def sweep_down(
    c: Code, bound: Tuple, table: Objects, cells: Integers, first: Value, bundles: List, updates: List
) -> None:
    """Look at the nodes in the table from the last one on; each adds its operands, which are older: 0, -1 or
    `_OTHERWISE`."""
    with c.repeat(c.i64(PLACES - 1)) as loop:
        (place,) = loop.carried
        loop.stop_when(cells[_LEFT].eq(0))
        node = Node.of(table[place])
        with c.when(node.exists()):
            cells[_LEFT] = cells[_LEFT] - 1
            status = look_at(c, bound, node, table, cells, first, place, bundles, updates)
            with c.when(status.ne(0)):
                c.ret(status)
        loop.carry(place - 1)
    c.ret(c.i64(0))


@native(Void, table=Objects, cells=Integers, order=List)
def empty(c: Code, table: Objects, cells: Integers, order: List) -> None:
    """Take the nodes out of the table, and add them to `order` as long as the status is 0."""
    with c.loop(cells[_LOWEST], PLACES, 1) as loop:
        node = table[loop.index]
        with c.when(node.exists()):
            table[loop.index] = c.null
            with c.when(cells[_STATUS].eq(0)), c.when(order.append(node).ne(0)):
                cells[_STATUS] = c.i64(-1)
            node.release()


@entry
def sweep(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """sweep(roots, order, bundles, updates); see `instead`, which is the same. `self` is (instead, slice, slice update,
    bundled, tape, slice_data): four classes, and what finds the value of a slice without a program.

    Operands are older than what reads them. So nodes are put into a table by their ids, and one walk from the last to
    the first finds all, sorted. If some are too old for the table, Python's form does it."""
    bound = Tuple.of(self)
    unless(c, arguments, count, lambda: bound.item(0))(count.eq(4) & c.state("sweeping").eq(0))
    roots, order, bundles, updates = (List.of(arguments[place]) for place in range(4))
    table, cells = c.places(Objects), c.room(Integers, _CELLS)
    with c.loop(0, roots.size(), 1, c.i64(-1)) as loop:
        number = integer(c, Node.of(roots.item(loop.index)).id)
        loop.carry(c.choose(number > loop.carried[0], number, loop.carried[0]))
    first = loop.carried[0] - (PLACES - 1)
    cells[_LEFT], cells[_LOWEST], cells[_FOUND], cells[_STATUS] = c.i64(0), c.i64(PLACES), c.i64(0), c.i64(0)
    c.set_state("sweeping", 1)
    with c.loop(0, roots.size(), 1) as loop:
        root = Node.of(roots.item(loop.index))
        place = integer(c, root.id) - first
        with c.when(place < 0):
            cells[_STATUS] = c.i64(_OTHERWISE)
        with c.when((place >= 0) & cells[_STATUS].eq(0)):
            put(c, root, table, cells, place)
    with c.when(cells[_STATUS].eq(0)):
        cells[_STATUS] = sweep_down(c, bound, table, cells, first, bundles, updates)
    empty(c, table, cells, order)
    c.set_state("sweeping", 0)
    with c.when(cells[_STATUS].eq(-1)):
        c.fail()
    with c.when(cells[_STATUS].ne(0)):
        c.ret(otherwise(c, bound.item(0), arguments, count))
    c.ret(integer_object(c, cells[_FOUND]))


# ---- how it is described ----


@native(Int, index=Dict, node=Node)
def count_in(c: Code, index: Dict, node: Node) -> None:
    """index[node] becomes the number of entries so far. 0, or -1 with an exception."""
    number = integer_object(c, index.size())
    with c.when(number.is_null()):
        _fail(c)
    status = index.put(node, number)
    number.release()
    c.ret(status)


@native(Int, bound=Tuple, x=Node, index=Dict, key=List, leaves=List, constants=List)
def add_leaf(c: Code, bound: Tuple, x: Node, index: Dict, key: List, leaves: List, constants: List) -> None:
    """Count and describe a node that has a value, unless looking for it in `index` has failed. 0, or -1 with an
    exception. `bound` is as `describe` says."""
    with c.when(exception(c).exists()):
        _fail(c)
    with c.when(count_in(c, index, x).ne(0)):
        _fail(c)
    value = x.value
    with c.when(value.cls.eq(bound.item(1))):
        status = key.append(bound.item(5)) | key.append(x.kind) | leaves.append(value)
        strides = Buffer.of(value).strides
        with c.when(strides.ne(c.none)):
            c.ret(status | key.append(strides))
        c.ret(status)
    with c.when(is_subtype(c, value.cls, bound.item(2)).ne(0)):
        c.ret(key.append(x.op) | key.append(x.kind) | constants.append(value))
    truth_of(c, bound.item(7), value)  # raises
    _fail(c)


@native(Int, bound=Tuple, node=Node)
def is_held(c: Code, bound: Tuple, node: Node) -> None:
    """Whether a live array refers to a node: 1, 0, or -1 with an exception. Python answers where its handle is not a
    plain weak reference to an array, or arrays may have other nodes for some thread. `bound` is as `describe` says."""
    handle = node.handle
    with c.when(handle.eq(c.none)):
        c.ret(c.const(Int.held_as, 0))
    with c.when(handle.cls.eq(bound.item(3)) & c.state("overlaid").eq(0)):
        user = call(c, handle, c.null, 0, c.null)
        with c.when(user.is_null()):
            _fail(c)
        with c.when(user.eq(c.none)):
            user.release()
            c.ret(c.const(Int.held_as, 0))
        with c.when(user.cls.eq(c.object("array_type"))):
            refers = Array.of(user).node.eq(node)
            user.release()
            c.ret(c.cast(refers, Int.held_as))
        user.release()
    c.ret(truth_of(c, bound.item(4), node))


@native(Int, bound=Tuple, node=Node, wanted=Object)
def is_result(c: Code, bound: Tuple, node: Node, wanted: Object) -> None:
    """Whether a node is asked for, or still held by an array: 1, 0, or -1 with an exception."""
    asked_for = contains(c, wanted, node)
    with c.when(asked_for.ne(0)):
        c.ret(asked_for)
    c.ret(is_held(c, bound, node))


@entry
def describe(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """describe(order, wanted, index, key, leaves, constants, results); see `instead`, which is the same. `self` is
    (instead, buffer, constant value, weak reference, has_handle, DATA, -1, refuse): three classes, a function, two
    parts of keys, and what raises for a value that is neither."""
    bound = Tuple.of(self)
    unless(c, arguments, count, lambda: bound.item(0))(count.eq(7))
    order, wanted, index = List.of(arguments[0]), arguments[1], Dict.of(arguments[2])
    key, leaves, constants, results = (List.of(arguments[place]) for place in range(3, 7))
    with c.loop(0, order.size(), 1) as loop:
        node = Node.of(order.item(loop.index))
        with c.when(node.value.eq(c.none)):
            inputs = node.inputs.hold()
            with c.loop(0, inputs.size(), 1) as operands:
                x = Node.of(inputs.item(operands.index))
                number = index.find(x)
                with c.when(number.exists()), c.when(key.append(number).ne(0)):
                    inputs.release()
                    c.fail()
                with c.when(number.is_null()), c.when(add_leaf(c, bound, x, index, key, leaves, constants).ne(0)):
                    inputs.release()
                    c.fail()
            inputs.release()
            status = key.append(node.op) | key.append(node.kind) | count_in(c, index, node)
            with c.when(status.ne(0)):
                c.fail()
            remains = is_result(c, bound, node, wanted)
            with c.when(remains < 0):
                c.fail()
            with c.when(remains.ne(0)):
                status = key.append(bound.item(6)) | results.append(node)
                with c.when(status.ne(0)):
                    c.fail()
    c.ret(c.none.hold())


# ---- whether it is as it was before ----

_AT: Final = 0
_NODES: Final = 1
"""Numbers of a comparison: at which part of the key it is, and how many nodes it has counted."""
_NO: Final = 1
"""It is something else. 0: so far it is the same; -1: an exception is set."""


@native(Long, parts=Tuple, numbers=Integers, cells=Integers, part=Object, changes=List)
def compare_part(c: Code, parts: Tuple, numbers: Integers, cells: Integers, part: Object, changes: List) -> None:
    """Go on to the next part of a key, which is no number. One that is not the same object is added to `changes`, with
    its place in front: 0, -1 or `_NO`."""
    at = cells[_AT]
    with c.when(at >= parts.size()):
        c.ret(c.i64(_NO))
    with c.when(numbers[at].ne(NO_NUMBER)):
        c.ret(c.i64(_NO))
    cells[_AT] = at + 1
    with c.when(parts.item(at).ne(part)):
        place = integer_object(c, at)
        with c.when(place.is_null()):
            c.ret(c.i64(-1))
        status = changes.append(place) | changes.append(part)
        place.release()
        c.ret(c.cast(status, int64))
    c.ret(c.i64(0))


@native(Long, parts=Tuple, numbers=Integers, cells=Integers, number=Long)
def compare_number(c: Code, parts: Tuple, numbers: Integers, cells: Integers, number: Value) -> None:
    """Go on to the next part of a key, which is a number: 0 or `_NO`."""
    at = cells[_AT]
    with c.when(at >= parts.size()):
        c.ret(c.i64(_NO))
    cells[_AT] = at + 1
    c.ret(c.choose(numbers[at].eq(number), c.i64(0), c.i64(_NO)))


@native(Long, bound=Tuple, x=Node, parts=Tuple, numbers=Integers, cells=Integers, found=Tuple)
def compare_leaf(
    c: Code, bound: Tuple, x: Node, parts: Tuple, numbers: Integers, cells: Integers, found: Tuple
) -> None:
    """Count a node that has a value, and compare what describes it: 0, -1 or `_NO`. `found` is as `resembles` says."""
    index, nodes, leaves, constants, changes = (
        Dict.of(found.item(0)), *(List.of(found.item(place)) for place in (1, 2, 3, 5)),
    )  # fmt: skip
    number = integer_object(c, cells[_NODES])
    with c.when(number.is_null()):
        c.ret(c.i64(-1))
    status = index.put(x, number) | nodes.append(x)
    number.release()
    with c.when(status.ne(0)):
        c.ret(c.i64(-1))
    cells[_NODES] = cells[_NODES] + 1
    value = x.value
    with c.when(value.cls.eq(bound.item(1))):
        with c.when(leaves.append(value).ne(0)):
            c.ret(c.i64(-1))
        differs = compare_part(c, parts, numbers, cells, bound.item(5), changes)
        with c.when(differs.ne(0)):
            c.ret(differs)
        differs = compare_part(c, parts, numbers, cells, x.kind, changes)
        strides = Buffer.of(value).strides
        with c.when(differs.ne(0) | strides.eq(c.none)):
            c.ret(differs)
        c.ret(compare_part(c, parts, numbers, cells, strides, changes))
    with c.when(is_subtype(c, value.cls, bound.item(2)).eq(0)):
        c.ret(c.i64(_NO))  # describing it says what is wrong
    with c.when(constants.append(value).ne(0)):
        c.ret(c.i64(-1))
    differs = compare_part(c, parts, numbers, cells, x.op, changes)
    with c.when(differs.ne(0)):
        c.ret(differs)
    c.ret(compare_part(c, parts, numbers, cells, x.kind, changes))


@native(Long, bound=Tuple, x=Node, parts=Tuple, numbers=Integers, cells=Integers, found=Tuple, first=Long, last=Long)
def compare_operand(
    c: Code, bound: Tuple, x: Node, parts: Tuple, numbers: Integers, cells: Integers, found: Tuple, first: Value,
    last: Value,
) -> None:  # fmt: skip
    """Compare which node an operand is, or what describes it: 0, -1 or `_NO`."""
    with c.when(x.value.eq(c.none)):  # it is computed before, or this piece is none
        place = integer(c, x.id) - first
        with c.when((place < 0) | (place > last)):
            c.ret(c.i64(_NO))
        number = c.places(Integers)[place]
        with c.when(number.eq(0)):
            c.ret(c.i64(_NO))
        c.ret(compare_number(c, parts, numbers, cells, number - 1))
    known = Dict.of(found.item(0)).find(x)
    with c.when(known.exists()):
        c.ret(compare_number(c, parts, numbers, cells, integer(c, known)))
    with c.when(exception(c).exists()):
        c.ret(c.i64(-1))
    c.ret(compare_leaf(c, bound, x, parts, numbers, cells, found))


@native(Long, bound=Tuple, node=Node, wanted=Object, parts=Tuple, numbers=Integers, cells=Integers, found=Tuple,
        first=Long, last=Long)  # fmt: skip
def compare_node(
    c: Code, bound: Tuple, node: Node, wanted: Object, parts: Tuple, numbers: Integers, cells: Integers, found: Tuple,
    first: Value, last: Value,
) -> None:  # fmt: skip
    """Compare what describes a node that is to be computed: 0, -1 or `_NO`."""
    nodes, results, changes = (List.of(found.item(place)) for place in (1, 4, 5))
    inputs = node.inputs.hold()
    with c.loop(0, inputs.size(), 1) as operands:
        x = Node.of(inputs.item(operands.index))
        differs = compare_operand(c, bound, x, parts, numbers, cells, found, first, last)
        with c.when(differs.ne(0)):
            inputs.release()
            c.ret(differs)
    inputs.release()
    for part in (node.op, node.kind):
        differs = compare_part(c, parts, numbers, cells, part, changes)
        with c.when(differs.ne(0)):
            c.ret(differs)
    place = integer(c, node.id) - first
    with c.when((place < 0) | (place > last)):
        c.ret(c.i64(_NO))
    cells[_NODES] = cells[_NODES] + 1
    c.places(Integers)[place] = cells[_NODES]
    with c.when(nodes.append(node).ne(0)):
        c.ret(c.i64(-1))
    remains = is_result(c, bound, node, wanted)
    with c.when(remains < 0):
        c.ret(c.i64(-1))
    with c.when(remains.eq(0)):
        c.ret(c.i64(0))
    with c.when(results.append(node).ne(0)):
        c.ret(c.i64(-1))
    c.ret(compare_number(c, parts, numbers, cells, c.i64(-1)))


@native(Long, bound=Tuple, order=List, wanted=Object, parts=Tuple, numbers=Integers, cells=Integers, found=Tuple,
        first=Long, last=Long)  # fmt: skip
def compare_all(
    c: Code, bound: Tuple, order: List, wanted: Object, parts: Tuple, numbers: Integers, cells: Integers, found: Tuple,
    first: Value, last: Value,
) -> None:  # fmt: skip
    """Compare what describes some nodes with a key: 0, -1 or `_NO`."""
    with c.loop(0, order.size(), 1) as loop:
        node = Node.of(order.item(loop.index))
        with c.when(node.value.eq(c.none)):
            differs = compare_node(c, bound, node, wanted, parts, numbers, cells, found, first, last)
            with c.when(differs.ne(0)):
                c.ret(differs)
    c.ret(c.choose(cells[_AT].eq(parts.size()), c.i64(0), c.i64(_NO)))


@entry
def resembles(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """resembles(order, wanted, parts, numbers, found); see `instead`, which is the same. `found` is (index, nodes,
    leaves, constants, results, changes). `self` is what `describe` is made with."""
    bound = Tuple.of(self)
    needed = unless(c, arguments, count, lambda: bound.item(0))
    needed(count.eq(5) & c.state("sweeping").eq(0))
    order, wanted, parts, found = List.of(arguments[0]), arguments[1], Tuple.of(arguments[2]), Tuple.of(arguments[4])
    size = order.size()
    needed(size > 0)
    first = integer(c, Node.of(order.item(0)).id)
    last = integer(c, Node.of(order.item(size - 1)).id) - first
    needed((last >= 0) & (last < PLACES))
    cells = c.room(Integers, 2)
    cells[_AT], cells[_NODES] = c.i64(0), c.i64(0)
    c.set_state("sweeping", 1)
    differs = compare_all(c, bound, order, wanted, parts, bytes_of(c, arguments[3]), cells, found, first, last)
    places = c.places(Integers)
    with c.loop(0, last + 1, 1) as loop:
        places[loop.index] = c.i64(0)
    c.set_state("sweeping", 0)
    with c.when(differs < 0):
        c.fail()
    c.ret(boolean(c, c.choose(differs.eq(0), c.i64(1), c.i64(0))))


# ---- forms and sizes ----

_KIND: Final = 2
_SYMBOLIC: Final = 4
_GIVE_UP: Final = 2


@native(Long, part=Tuple, form=List, sizes=List, leaf=Long)
def add_known(c: Code, part: Tuple, form: List, sizes: List, leaf: Value) -> None:
    """Add what is known of a part, (number, sizes, role), to a form and its sizes. Takes over the reference to it.
    Whether the part behind it belongs to a leaf, 0 or 1, `_GIVE_UP`, or -1 with an exception."""
    role = integer(c, part.item(2))
    with c.when(role.eq(_SYMBOLIC)):
        part.release()
        c.ret(c.i64(_GIVE_UP))
    with c.when(role.eq(_KIND) & leaf.eq(0)):  # the kind of what is computed follows from its operands
        part.release()
        c.ret(leaf)
    status, more = form.append(part.item(0)), Tuple.of(part.item(1))
    with c.when(more.size().ne(0)), c.when(sizes.append(more).ne(0)):
        part.release()
        c.ret(c.i64(-1))
    part.release()
    with c.when(status.ne(0)):
        c.ret(c.i64(-1))
    c.ret(c.choose(role <= 1, role, leaf))


@native(Long, bound=Tuple, part=Object, form=List, sizes=List, leaf=Long)
def add_part(c: Code, bound: Tuple, part: Object, form: List, sizes: List, leaf: Value) -> None:
    """Add a part of a key to a form and its sizes; what `add_known` says. `bound` is as `divide` says."""
    handed = c.room(Objects, 1)
    with c.when(part.cls.eq(c.object("int_type"))):
        with c.when(form.append(part).ne(0)):
            c.ret(c.i64(-1))
        c.ret(leaf)
    known = Dict.of(bound.item(1)).find(part)
    with c.when(known.exists()):
        c.ret(add_known(c, known.hold(), form, sizes, leaf))
    with c.when(exception(c).exists()):
        c.ret(c.i64(-1))
    handed[0] = part
    answer = call(c, bound.item(2), handed, 1, c.null)
    with c.when(answer.is_null()):
        c.ret(c.i64(-1))
    c.ret(add_known(c, answer, form, sizes, leaf))


@entry
def divide(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """divide(key, form, sizes); see `instead`, which is the same. `self` is (instead, known, division): what is known
    of parts, and the function that finds it out and keeps it there."""
    bound = Tuple.of(self)
    unless(c, arguments, count, lambda: bound.item(0))(count.eq(3))
    key, form, sizes = Tuple.of(arguments[0]), List.of(arguments[1]), List.of(arguments[2])
    with c.loop(0, key.size(), 1, c.i64(0)) as loop:
        leaf = add_part(c, bound, key.item(loop.index), form, sizes, loop.carried[0])
        with c.when(leaf < 0):
            c.fail()
        with c.when(leaf.eq(_GIVE_UP)):
            c.ret(boolean(c, 0))
        loop.carry(leaf)
    c.ret(boolean(c, 1))
