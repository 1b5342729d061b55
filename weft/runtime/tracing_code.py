"""The machine code of what transforms do for every node: find the way between inputs and outputs, and build what
derivative rules and calls have built before. See `weft.runtime.object_code`."""

from __future__ import annotations

from typing import Final

from weft.dtypes import int64, uint64
from weft.llvm.builder import Value
from weft.llvm.functions import Int, Integers, Long, Void, native
from weft.runtime.object_code import new_node, node_of
from weft.runtime.object_table import MOST_ARRAYS
from weft.runtime.object_values import (
    Code,
    Dict,
    List,
    Needed,
    Node,
    Object,
    Objects,
    Rule,
    Set,
    Tuple,
    bytes_of,
    call,
    double,
    entry,
    exception,
    integer,
    integer_object,
    list_of,
    otherwise,
    unless,
)

_MOST_OPERANDS: Final = 8
"""Of a node whose cotangent is handed on here."""


# ---- recipes ----


@native(Void, values=Objects, count=Long)
def hold(c: Code, values: Objects, count: Value) -> None:
    """Hold so many values."""
    with c.loop(0, count, 1) as loop:
        values[loop.index].hold()


@native(Void, values=Objects, first=Long, count=Long)
def release(c: Code, values: Objects, first: Value, count: Value) -> None:
    """Let go of so many values, from `first` on."""
    with c.loop(first, first + count, 1) as loop:
        values[loop.index].release()


@native(Long, code=Integers, objects=Tuple, values=Objects, first=Long, steps=Long)
def cook(c: Code, code: Integers, objects: Tuple, values: Objects, first: Value, steps: Value) -> None:
    """Make the nodes of a recipe: for each step the number of operands and their places among `values` stand in the
    code, (op, kind) in `objects`; an op of None is a node to be used as it is. Holds what it puts into `values`, from
    `first` on. 0, or 1 if memory ran out, and then it holds nothing."""

    def give_up(done: Value) -> None:
        release(c, values, first, done)
        c.ret(c.i64(1))

    with c.loop(0, steps, 1, code) as loop:
        step, here = loop.index, Integers.of(loop.carried[0])
        op, kind = objects.item(step << 1), objects.item((step << 1) | 1)
        arity, place = here[0], first + step
        values[place] = kind.hold()
        with c.when(op.ne(c.none)):
            inputs = Tuple.new(c, arity)
            with c.when(inputs.is_null()):
                kind.release()
                give_up(step)
            with c.loop(0, arity, 1) as operands:
                inputs.fill(operands.index, values[here[operands.index + 1]].hold())
            node = new_node(c, op, inputs, kind)
            with c.when(node.is_null()):
                give_up(step)
            values[place] = node
        loop.carry(here.past(arity + 1))
    c.ret(c.i64(0))


@native(Int, gathered=Dict, x=Node, cotangent=Object, add=Object)
def give(c: Code, gathered: Dict, x: Node, cotangent: Object, add: Object) -> None:
    """gathered[x] becomes the cotangent, or the sum with what is there, add(there, cotangent). 0, or -1 with an
    exception."""

    def failing() -> None:
        c.ret(c.const(Int.held_as, -1))

    held = gathered.find(x)
    with c.when(held.is_null()):
        with c.when(exception(c).exists()):
            failing()
        c.ret(gathered.put(x, cotangent))
    inputs = Tuple.filled(c, held, cotangent, failing=failing)
    total = new_node(c, add, inputs, x.kind.hold())
    with c.when(total.is_null()):
        failing()
    status = gathered.put(x, total)
    total.release()
    c.ret(status)


@entry
def forward(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """forward(*given): the node that a recipe makes of others. `self` is (code, objects, instead); the code begins with
    the number of nodes given, of steps, and the place of the result."""
    bound = Tuple.of(self)
    code = bytes_of(c, bound.item(0))
    given, steps = code[0], code[1]
    needed = unless(c, arguments, count, lambda: bound.item(2))
    needed(given.eq(count) & c.state("watched").eq(0))
    values = c.room(Objects, given + steps)
    c.copy(values, arguments, given)
    with c.when(cook(c, code.past(3), Tuple.of(bound.item(1)), values, given, steps).ne(0)):
        c.fail()
    result = values[code[2]].hold()
    release(c, values, given, steps)
    c.ret(result)


@entry
def backward(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """backward(gathered, *given): gives nodes the cotangents that a recipe makes. `self` is (code, objects, instead, op
    that adds); the code begins with the number of nodes given, of steps, of results, then (receiver, place) of each."""
    bound = Tuple.of(self)
    code = bytes_of(c, bound.item(0))
    given, steps, results = code[0], code[1], code[2]
    needed = unless(c, arguments, count, lambda: bound.item(2))
    needed((given + 1).eq(count) & c.state("watched").eq(0))
    values = c.room(Objects, given + steps)
    c.copy(values, arguments.past(1), given)
    pairs = code.past(3)
    recipe = pairs.past(results << 1)
    with c.when(cook(c, recipe, Tuple.of(bound.item(1)), values, given, steps).ne(0)):
        c.fail()
    gathered, add = Dict.of(arguments[0]), bound.item(3)
    with c.loop(0, results, 1) as loop:
        pair = pairs.past(loop.index << 1)
        receiver, cotangent = Node.of(values[pair[0]]), values[pair[1]]
        with c.when(give(c, gathered, receiver, cotangent, add).ne(0)):
            release(c, values, given, steps)
            c.fail()
    release(c, values, given, steps)
    c.ret(c.none.hold())


# ---- paths ----


@entry
def spread(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """spread(found, seen, oldest, start): adds to `found`, from its item `start` on, the operands of its items that are
    not in `seen` and not older than `oldest`; stops at an item that is no plain node. The number of items done. `self`
    is Python's form."""
    unless(c, arguments, count, lambda: self)(count.eq(4) & c.state("watched").eq(0))
    found, seen = List.of(arguments[0]), Set.of(arguments[1])
    oldest, start = integer(c, arguments[2]), integer(c, arguments[3])
    with c.repeat(start) as loop:
        (i,) = loop.carried
        loop.stop_when(i >= found.size())
        node = Node.of(found.item(i))
        loop.stop_when(node.cls.ne(c.object("node_type")))
        inputs = node.inputs
        with c.loop(0, inputs.size(), 1) as operands:
            x = Node.of(inputs.item(operands.index))
            with c.when(seen.has(x).eq(0)), c.when(integer(c, x.id) >= oldest):
                status = seen.add(x) | found.append(x)
                with c.when(status.ne(0)):
                    c.fail()
        loop.carry(i + 1)
    c.ret(integer_object(c, i))


@entry
def follow(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """follow(found, seen, path, start): adds to `path` the items of `found`, from `start` on, that have an operand in
    `seen`, and takes the others out of it; stops at an item that is no plain node. The number of items done. `self` is
    Python's form."""
    unless(c, arguments, count, lambda: self)(count.eq(4) & c.state("watched").eq(0))
    found, seen, path = List.of(arguments[0]), Set.of(arguments[1]), List.of(arguments[2])
    with c.repeat(integer(c, arguments[3])) as loop:
        (i,) = loop.carried
        loop.stop_when(i >= found.size())
        node = Node.of(found.item(i))
        loop.stop_when(node.cls.ne(c.object("node_type")))
        inputs = node.inputs
        arity = inputs.size()
        with c.repeat(c.i64(0)) as operands:
            (k,) = operands.carried
            operands.stop_when(k >= arity)
            operands.stop_when(seen.has(inputs.item(k)).eq(1))
            operands.carry(k + 1)
        with c.when(k >= arity):  # no operand is in `seen`
            seen.discard(node)
        with c.when(k < arity), c.when(path.append(node).ne(0)):
            c.fail()
        loop.carry(i + 1)
    c.ret(integer_object(c, i))


_MOVES: Final = 16
"""For each node, before a list of them is left to Python to sort."""


@entry
def by_age(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """by_age(found): sorts nodes by their ids, which fall if they are a chain. `self` is Python's form. What is done
    here runs no code of Python's, so the list stays as it is."""
    needed = unless(c, arguments, count, lambda: self)
    needed(count.eq(1))
    found = List.of(arguments[0])
    size, nodes = found.size(), found.items()
    with c.repeat(c.i64(0), size - 1) as ends:
        low, high = ends.carried
        ends.stop_when(low >= high)
        first, last = nodes[low], nodes[high]
        nodes[low], nodes[high] = last, first
        ends.carry(low + 1, high - 1)
    with c.repeat(c.i64(1), size * _MOVES) as loop:
        place, left = loop.carried
        loop.stop_when((place >= size) | (left < 0))
        node = nodes[place]
        number = integer(c, Node.of(node).id)
        with c.repeat(place, left) as moves:
            to, rest = moves.carried
            moves.stop_when(to.eq(0))
            before = nodes[to - 1]
            moves.stop_when(integer(c, Node.of(before).id) <= number)
            nodes[to] = before
            moves.carry(to - 1, rest - 1)
        nodes[moves.carried[0]] = node
        loop.carry(place + 1, moves.carried[1])
    needed(loop.carried[0] >= size)
    c.ret(c.none.hold())


# ---- cotangents ----


@native(Object, bound=Tuple, node=Node, cotangent=Node, gathered=Dict, active=Set)
def hand_on(c: Code, bound: Tuple, node: Node, cotangent: Node, gathered: Dict, active: Set) -> None:
    """Hand a node's cotangent on by the rule that is known for its kinds of operands, or as Python does; null with an
    exception. `bound` is as `pull` says."""
    handed = c.room(Objects, _MOST_OPERANDS + 3)
    inputs = node.inputs
    arity = inputs.size()
    with c.when(c.cast(arity, uint64) > _MOST_OPERANDS):
        c.ret(by_python(c, bound, node, gathered, active))
    key = Tuple.new(c, arity + 2)
    with c.when(key.is_null()):
        c.fail()
    is_one = c.cast(cotangent.op.eq(bound.item(1)), int64)
    with c.loop(0, arity, 1, is_one) as operands:
        k, mask = operands.index, operands.carried[0]
        x = Node.of(inputs.item(k))
        handed[k + 3] = x
        key.fill(k + 2, x.kind.hold())
        operands.carry(mask | (c.cast(active.has(x).eq(1), int64) << (k + 1)))
    key.fill(0, node.op.hold())
    described = integer_object(c, operands.carried[0])
    with c.when(described.is_null()):
        key.release()
        c.fail()
    key.fill(1, described)
    rule = Rule.of(Dict.of(bound.item(0)).find(key))
    key.release()
    with c.when(rule.is_null()):
        with c.when(exception(c).exists()):
            c.fail()
        c.ret(by_python(c, bound, node, gathered, active))
    run = rule.run.hold()
    handed[0], handed[1], handed[2] = gathered, cotangent, node
    outcome = call(c, run, handed, arity + 3, c.null)
    run.release()
    c.ret(outcome)


@native(Object, bound=Tuple, node=Node, gathered=Dict, active=Set)
def by_python(c: Code, bound: Tuple, node: Node, gathered: Dict, active: Set) -> None:
    """What Python's form of `pull` does for a path of this node alone."""
    handed = c.room(Objects, 3)
    path = list_of(c, node)
    with c.when(path.is_null()):
        c.fail()
    handed[0], handed[1], handed[2] = path, gathered, active
    outcome = call(c, bound.item(2), handed, 3, c.null)
    path.release()
    c.ret(outcome)


@entry
def pull(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """pull(path, gathered, active): from the last node of the path to the first, what has a cotangent hands it on.
    `self` is (rules, the op of a cotangent of one, Python's form)."""
    bound = Tuple.of(self)
    unless(c, arguments, count, lambda: bound.item(2))(count.eq(3) & c.state("watched").eq(0))
    path, gathered, active = List.of(arguments[0]), Dict.of(arguments[1]), Set.of(arguments[2])
    last = path.size() - 1
    with c.loop(0, last + 1, 1) as loop:
        node = Node.of(path.item(last - loop.index))
        cotangent = Node.of(gathered.find(node))
        with c.when(cotangent.exists()):
            cotangent.hold()
            outcome = hand_on(c, bound, node, cotangent, gathered, active)
            cotangent.release()
            with c.when(outcome.is_null()):
                c.fail()
            outcome.release()
    c.ret(c.none.hold())


# ---- calls ----


@entry
def recall(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """recall(*arguments): an array of what a call built before, for arrays of the same kinds and the same other
    arguments. `self` is (known, function, arrays, wrap, instead): the first `arrays` arguments are arrays or None, the
    others plain numbers, strings and None; `known` has what was built by (function, *kinds, *classes, *others)."""
    bound = Tuple.of(self)
    nodes = c.room(Objects, MOST_ARRAYS)
    arrays = integer(c, bound.item(2))
    unless(c, arguments, count, lambda: bound.item(4))(count >= arrays)
    others = count - arrays
    key = Tuple.new(c, count + others + 1)
    with c.when(key.is_null()):
        c.fail()

    def needed(condition: Value) -> None:
        with c.when(~condition):
            key.release()
            c.ret(otherwise(c, bound.item(4), arguments, count))

    key.fill(0, bound.item(1).hold())
    with c.loop(0, arrays, 1, c.i64(0)) as loop:
        place, given = loop.index + 1, loop.carried[0]
        argument = arguments[loop.index]
        is_given = argument.ne(c.none)
        with c.when(~is_given):
            key.fill(place, argument.hold())
        with c.when(is_given):
            node = node_of(argument, needed)
            nodes[given] = node
            key.fill(place, node.kind.hold())
        loop.carry(given + c.cast(is_given, int64))
    given = loop.carried[0]
    with c.loop(arrays, count, 1) as loop:
        place, value = loop.index + 1, arguments[loop.index]
        _need_plain(c, value, needed)
        key.fill(place, value.cls.hold())
        key.fill(place + others, value.hold())
    hold(c, nodes, given)
    steps = Rule.of(Dict.of(bound.item(0)).find(key))
    with c.when(steps.is_null()):
        release(c, nodes, 0, given)
        key.release()
        c.ret(otherwise(c, bound.item(4), arguments, count))
    run = steps.run.hold()
    made = call(c, run, nodes, given, c.null)
    run.release()
    release(c, nodes, 0, given)
    key.release()
    with c.when(made.is_null()):
        c.fail()
    nodes[0] = made
    result = call(c, bound.item(3), nodes, 1, c.null)
    made.release()
    c.ret(result)


def _need_plain(c: Code, value: Object, needed: Needed) -> None:
    """It has to be a number, a string or None, and no zero of floats: 0.0 and -0.0 are equal as keys, but different
    numbers."""
    cls = value.cls
    is_float = cls.eq(c.object("float_type"))
    is_number = is_float | cls.eq(c.object("int_type")) | cls.eq(c.object("bool_type"))
    needed(is_number | cls.eq(c.object("str_type")) | value.eq(c.none))
    with c.when(is_float):
        needed(double(c, value).ne(0.0))
