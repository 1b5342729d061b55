"""The machine code behind `weft.runtime.objects`: nodes, arrays, and functions of one and two arrays.

Each is a builtin function of CPython's, which gets what it was made with (`self`) and its arguments. Wherever it meets
something that it does not know, it calls Python's form of itself with the same arguments. `weft.runtime.tracing_code`
has what transforms do, `weft.runtime.evaluating_code` what evaluation does. All are loaded when their object is not in
the cache.
"""

from __future__ import annotations

from typing import Final

from weft.dtypes import int64
from weft.llvm.builder import Value
from weft.llvm.functions import Native, native
from weft.runtime.object_table import OPERATORS
from weft.runtime.object_values import (
    Array,
    Code,
    Dict,
    Needed,
    Node,
    Object,
    Objects,
    Tuple,
    double,
    entry,
    exception,
    is_subtype,
    next_of,
    unless,
    weak_reference,
)
from weft.runtime.recycling_code import MAKE, called

_MINUS_ZERO = -(1 << 63)


@native(Node, op=Object, inputs=Tuple, kind=Object)
def new_node(c: Code, op: Object, inputs: Tuple, kind: Object) -> None:
    """A new node. Takes over the references to inputs and kind; null if there is no memory."""
    node = Node.of(MAKE["node"](c))
    with c.when(node.is_null()):
        inputs.release()
        kind.release()
        c.fail()
    number = next_of(c, c.object("counter"))
    with c.when(number.is_null()):
        node.release()
        inputs.release()
        kind.release()
        c.fail()
    node.op, node.inputs, node.kind, node.id = op.hold(), inputs, kind, number
    node.value, node.handle = c.none.hold(), c.none.hold()
    device = c.object("device")  # null: the host
    with c.when(device.exists()):
        node.device = device.hold()
    c.ret(node)


@native(Array, node=Node)
def new_array(c: Code, node: Node) -> None:
    """A new array for a node that has none. Takes over the reference to it; null if it is null, or memory is out."""
    with c.when(node.is_null()):
        c.fail()
    array = Array.of(MAKE["array"](c))
    with c.when(array.is_null()):
        node.release()
        c.fail()
    array.node = node
    reference = weak_reference(c, array, c.null)
    with c.when(reference.is_null()):
        array.release()
        c.fail()
    old = node.handle
    node.handle = reference
    old.release()
    c.ret(array)


@entry
def wrap(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """wrap(node): an array. `self` is Python's form, for what is no node, or has an array already."""
    needed = unless(c, arguments, count, lambda: self)
    needed(count.eq(1))
    node, node_type = Node.of(arguments[0]), c.object("node_type")
    with c.when(node.cls.ne(node_type)):
        needed(is_subtype(c, node.cls, node_type).ne(0))
    needed(node.handle.eq(c.none))
    c.ret(new_array(c, node.hold()))


def _is_array(c: Code, thing: Object) -> Value:
    """Whether it is an array whose node may be read: not while lines are recorded, nor while a thread may see another
    node."""
    return (c.state("watched") | c.state("overlaid")).eq(0) & thing.cls.eq(c.object("array_type"))


def node_of(thing: Object, needed: Needed) -> Node:
    """The node of an array."""
    needed(_is_array(thing.b, thing))
    node = Array.of(thing).node
    needed(node.exists())  # an array that was never filled has none
    return node


def _number(c: Code, bound: Tuple, kind: Object, number: Object, needed: Needed) -> tuple[Node, Object]:
    """The node of a number beside an operand of this kind, and the kind of the result. `bound` is (op, kinds, instead,
    kinds of results with floats, with ints, nodes of floats by kind, of ints)."""
    is_float = number.cls.eq(c.object("float_type"))
    needed(is_float | number.cls.eq(c.object("int_type")))
    with c.when(is_float):  # -0.0 equals 0.0 as a key, but is another number
        needed(c.bitcast(double(c, number), int64).ne(_MINUS_ZERO))
    place = c.choose(is_float, c.i64(3), c.i64(4))
    result = _known(bound, place, kind, needed)
    nodes = _known(bound, place + 2, kind, needed)
    node = Dict.of(nodes).find(number)
    needed(node.exists())
    return Node.of(node), result


def _known(bound: Tuple, place: Value | int, key: Object, needed: Needed) -> Object:
    """What the dict at a place of `bound` has under a key."""
    found = Dict.of(bound.item(place)).find(key)
    needed(found.exists())
    return found


def _array_of(c: Code, op: Object, kind: Object, *operands: Node) -> None:
    """Return an array of `op` of these, of this kind."""

    def failing() -> None:
        kind.release()
        c.fail()

    kind.hold()
    inputs = Tuple.filled(c, *operands, failing=failing)
    c.ret(new_array(c, new_node(c, op, inputs, kind)))


@native(Array, op=Object, kind=Object, x=Node, y=Node)
def array_of_two(c: Code, op: Object, kind: Object, x: Node, y: Node) -> None:
    """An array of op(x, y), of this kind."""
    _array_of(c, op, kind, x, y)


@native(Array, bound=Tuple, a=Object, b=Object)
def array_of_operands(c: Code, bound: Tuple, a: Object, b: Object) -> None:
    """An array of op(a, b) for arrays of one kind, or an array and a number on either side, where the kind of the
    result is known; else null, with an exception if something failed."""

    def needed(condition: Value) -> None:
        with c.when(~condition):
            c.fail()

    with c.when(_is_array(c, a)):
        x = Array.of(a).node
        needed(x.exists())
        with c.when(b.cls.eq(c.object("array_type"))):
            y = Array.of(b).node
            needed(y.exists())
            needed(x.kind.eq(y.kind))
            c.ret(array_of_two(c, bound.item(0), _known(bound, 1, x.kind, needed), x, y))
        number, kind = _number(c, bound, x.kind, b, needed)
        c.ret(array_of_two(c, bound.item(0), kind, x, number))
    y = node_of(b, needed)
    number, kind = _number(c, bound, y.kind, a, needed)
    c.ret(array_of_two(c, bound.item(0), kind, number, y))


@native(Object, forward=Object, reflected=Object, a=Object, b=Object)
def by_method(c: Code, forward: Object, reflected: Object, a: Object, b: Object) -> None:
    """What the methods of the class of arrays give for two operands, of which one is an array."""
    array_type = c.object("array_type")
    with c.when(a.cls.eq(array_type)):
        made = called(c, forward, a, b)
        with c.when(made.ne(c.object("not_implemented")) | b.cls.eq(array_type)):
            c.ret(made)
        made.release()
    with c.when(b.cls.eq(array_type)):
        c.ret(called(c, reflected, b, a))
    c.ret(c.object("not_implemented").hold())


def _operator(name: str) -> Native[Object]:
    def operator(c: Code, a: Object, b: Object) -> None:
        made = array_of_operands(c, Tuple.of(c.object(f"known_{name}")), a, b)
        with c.when(made.exists()):
            c.ret(made)
        with c.when(exception(c).exists()):
            c.fail()
        c.ret(by_method(c, c.object(f"forward_{name}"), c.object(f"reflected_{name}"), a, b))

    operator.__name__ = f"operator_{name}"
    return Native(operator, Object, {"a": Object, "b": Object})


OPERATORS_OF_ARRAYS: Final = tuple(_operator(name) for name in OPERATORS)
"""What CPython calls for an operator of which one operand is an array: op(a, b), or what the methods give."""


@entry
def unary(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """unary(a): an array of op(a) where the kind of the result is known. `self` is (op, kinds, instead)."""
    bound = Tuple.of(self)
    needed = unless(c, arguments, count, lambda: bound.item(2))
    needed(count.eq(1))
    x = node_of(arguments[0], needed)
    kind = _known(bound, 1, x.kind, needed)
    _array_of(c, bound.item(0), kind, x)


@entry
def binary(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """binary(a, b): an array of op(a, b) for arrays of one kind, or an array and a number, where that of the result is
    known. `self` is as `_number` says."""
    bound = Tuple.of(self)
    needed = unless(c, arguments, count, lambda: bound.item(2))
    needed(count.eq(2))
    x, b = node_of(arguments[0], needed), arguments[1]
    with c.when(~_is_array(c, b)):
        number, kind = _number(c, bound, x.kind, b, needed)
        c.ret(array_of_two(c, bound.item(0), kind, x, number))
    y = Array.of(b).node
    needed(y.exists())
    needed(x.kind.eq(y.kind))
    kind = _known(bound, 1, x.kind, needed)
    c.ret(array_of_two(c, bound.item(0), kind, x, y))


@entry
def reflected(c: Code, self: Object, arguments: Objects, count: Value) -> None:
    """reflected(a, b): an array of op(b, a) for an array and a number. `self` is as `_number` says."""
    bound = Tuple.of(self)
    needed = unless(c, arguments, count, lambda: bound.item(2))
    needed(count.eq(2))
    x = node_of(arguments[0], needed)
    number, kind = _number(c, bound, x.kind, arguments[1], needed)
    c.ret(array_of_two(c, bound.item(0), kind, number, x))
