"""Structural keys: what tells the program for some nodes from others.

A key holds operations, kinds, which node reads which, the layout of the leaves, which nodes are results, and which are
for another device than the host's CPU. It holds no numbers: constants are run-time words. A node is a result if it was
asked for or if a live array of the user's still refers to it, so nothing is computed twice and nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any, NoReturn
from weakref import ref

from weft.graph.node import Node, has_handle
from weft.graph.placement import USED, device_of
from weft.primitives.base import DATA, ConstantValue
from weft.runtime.data import Buffer, Taken
from weft.runtime.object_table import NO_NUMBER
from weft.runtime.objects import MAKERS

ELSEWHERE = "elsewhere"
"""Begins the part of a key that says what is not for the host."""

SHORT = "single operation"
"""Begins the keys of single operations, which are quicker to make than structural ones."""


def structure(
    order: list[Node], wanted: Container[Node]
) -> tuple[tuple[Any, ...], list[Node], list[Buffer], list[ConstantValue]]:
    """(key, results, leaves, constants) of a topologically ordered piece. What has a value comes to stand before what
    reads it first: its age, which is another one at each step of a program, says nothing about the piece."""
    index: dict[Node, int] = {}
    key: list[Any] = []
    leaves: list[Buffer] = []
    constants: list[ConstantValue] = []
    results: list[Node] = []
    _describe(order, wanted, index, key, leaves, constants, results)
    order[:] = index
    return (*key, *places(order)) if USED else tuple(key), results, leaves, constants


def _describe_by_python(
    order: list[Node],
    wanted: Container[Node],
    index: dict[Node, int],
    key: list[Any],
    leaves: list[Buffer],
    constants: list[ConstantValue],
    results: list[Node],
) -> None:
    """Add to `key` what tells these nodes from others, to `index` their numbers in it and those of their operands, and
    what has a value, is a constant or is a result to the other three."""
    add, number_of = key.append, index.get
    for node in order:
        if node.value is not None:
            continue
        for operand in node.inputs:
            number = number_of(operand)
            if number is not None:
                add(number)
                continue
            index[operand] = len(index)
            value = operand.value
            if value.__class__ is Buffer:
                add(DATA)
                add(operand.kind)
                if value.strides is not None:
                    add(value.strides)
                leaves.append(value)
            elif isinstance(value, ConstantValue):
                add(operand.op)
                add(operand.kind)
                constants.append(value)
            else:
                _refuse(value)
        add(node.op)
        add(node.kind)
        index[node] = len(index)
        if node in wanted or (node.handle is not None and has_handle(node)):
            add(-1)
            results.append(node)


def _refuse(value: Any) -> NoReturn:
    """Raise for what is neither a buffer nor a constant: it is taken."""
    value.refuse()
    raise AssertionError(f"{value} is no value")


_KNOWN = (Buffer, ConstantValue, ref, has_handle, DATA, -1, _refuse)
_describe = MAKERS.describe(_describe_by_python, *_KNOWN)


Found = tuple[dict[Node, int], list[Node], list[Buffer], list[ConstantValue], list[Node], list[Any]]
"""(numbers of leaves, nodes, leaves, constants, results, changes), filled in by a comparison."""


def resembling(order: list[Node], wanted: Container[Node], parts: tuple[Any, ...], numbers: bytes) -> Found | None:
    """What `structure` finds, if the key of these nodes is as long as another one, `parts`, and has the same numbers at
    the same places; None if not. The changes are other parts that are not the same objects as there: the place of each,
    and the part. `numbers` are those among the parts, `NO_NUMBER` elsewhere, as int64. `order` is left as it is."""
    found: Found = ({}, [], [], [], [], [])
    return found if _resembles(order, wanted, parts, numbers, found) else None


def _resembles_by_python(
    order: list[Node], wanted: Container[Node], parts: tuple[Any, ...], numbers: bytes, found: Found
) -> bool:
    index: dict[Node, int] = {}
    key: list[Any] = []
    numbered, nodes, leaves, constants, results, changes = found
    _describe_by_python(order, wanted, index, key, leaves, constants, results)
    for node, number in index.items():
        if node.value is not None:
            numbered[node] = number
    nodes.extend(index)
    expected = memoryview(numbers).cast("q")
    if len(key) != len(parts):
        return False
    for at, (part, number) in enumerate(zip(key, expected, strict=True)):
        if (part if part.__class__ is int else NO_NUMBER) != number:
            return False
        if number == NO_NUMBER and part is not parts[at]:
            changes += (at, part)
    return True


_resembles = MAKERS.resembles(_resembles_by_python, *_KNOWN)


def leaf_key(node: Node, value: Any) -> tuple[Any, Any, Any]:
    if value.__class__ is Buffer:
        return DATA, node.kind, value.strides
    if isinstance(value, Taken):
        value.refuse()
    return node.op, node.kind, None


def places(order: Sequence[Node]) -> list[Any]:
    """The numbers and devices of nodes that are not for the host. Where leaves lie does not matter: programs take them
    from anywhere."""
    devices = enumerate([None if node.value is not None else device_of(node) for node in order])
    found: list[Any] = [x for number, device in devices if device is not None for x in (number, device)]
    return [ELSEWHERE, *found] if found else found
