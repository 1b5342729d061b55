"""The arguments of a traced function: which arrays in them are inputs of the trace, and how the function gets to see
those.

Lists and dicts (modules among them) are filled in place and put back afterwards, so the function sees the caller's own
containers, and what it writes into them stays; tuples and other records are made anew around the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weft import tree
from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.graph.node import Kind, Node, kind_of
from weft.graph.trace import is_tracing
from weft.primitives.base import DATA, ONE, ZERO, Constant, ConstantValue, constant
from weft.primitives.custom import IDENTITY

_numbers: dict[tuple[int, Dtype], ConstantValue] = {}


def _number(number: int, dtype: Dtype) -> ConstantValue:
    found = _numbers.get((number, dtype))
    if found is None:
        found = _numbers[number, dtype] = constant(number, kind_of((), dtype)).value
    return found


def ones(kind: Kind) -> Node:
    """Exactly one in every element, as a constant."""
    return Node(ONE, (), kind, _number(1, kind.dtype))


def zeros(kind: Kind) -> Node:
    """Exactly zero in every element, as a constant."""
    return Node(ZERO, (), kind, _number(0, kind.dtype))


def handed_out(node: Node) -> array:
    """A node that a rule made, for the user. Constants of rules are shared, and evaluation writes out what it is asked
    for: the user gets a copy."""
    return wrap(Node(node.op, (), node.kind, node.value) if isinstance(node.op, Constant) else node)


def or_zeros(node: Node | None, kind: Kind) -> array:
    """What a transform found, for the user."""
    return wrap(zeros(kind)) if node is None else handed_out(node)


def fresh_inputs(leaves: Sequence[array]) -> tuple[list[array], list[Node]]:
    """Inputs of a new trace: the same values, nodes of their own (which stay what they are when the function overwrites
    the arrays).

    Call it before the trace is opened. An array of a trace that is already open is reached through an identity, so that
    the outer trace can follow; a plain array is simply held once more. No input is a constant: rules may use what they
    know of a constant, and drop it.
    """
    inner = is_tracing()
    nodes = [_fresh(leaf._node, inner) for leaf in leaves]
    return [wrap(node) for node in nodes], nodes


def _fresh(node: Node, inner: bool) -> Node:
    if not inner and node.op is DATA:
        return Node(node.op, (), node.kind, node.value)
    return Node(IDENTITY, (node,), node.kind)


def second_names(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments whose arrays the function may overwrite: in-place operators inside a transformed function are not seen
    outside."""
    return (
        [wrap(x._node) if x.__class__ is array else x for x in args],
        {name: wrap(x._node) if x.__class__ is array else x for name, x in kwargs.items()},
    )


def array_leaves(name: str, what: str, value: Any) -> tuple[list[array], tree.Structure]:
    """The leaves of a tree of arrays; anything else in it is an error."""
    if value.__class__ is array:
        return [value], tree.LEAF
    leaves, structure = tree.flatten(value)
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, array):
            at = structure.paths()[i]
            raise ValueError(
                f"[{name}] {what}{at} is of type {type(leaf).__name__}, and only arrays can be differentiated or "
                "mapped: make it an array, "
                "or pass it as another argument."
            )
    return leaves, structure


class Filled:
    """A list of arguments with their arrays replaced by others, one for each array, in place where containers allow it.

    `value` is what to hand on. Used as a context, at whose end the originals are put back.
    """

    __slots__ = ("_undo", "value")

    def __init__(self, arguments: Sequence[Any], replacements: Sequence[array]) -> None:
        self._undo: list[tuple[Any, Any, array, array]] = []
        source = iter(replacements)
        self.value = [self._fill(argument, source) for argument in arguments]

    def _fill(self, value: Any, source: Iterator[array]) -> Any:
        if isinstance(value, array):
            return next(source)
        if isinstance(value, dict):
            for key, item in list(dict.items(value)):
                self._put(value, dict.__setitem__, key, item, source)
            return value
        if isinstance(value, list):
            for i, item in enumerate(value):
                self._put(value, list.__setitem__, i, item, source)
            return value
        children, structure = tree.flatten(value, is_leaf=lambda x: x is not value)
        if structure is tree.LEAF:
            return value
        return structure.unflatten([self._fill(child, source) for child in children])

    def _put(self, container: Any, setitem: Any, key: Any, item: Any, source: Iterator[array]) -> None:
        new = self._fill(item, source)
        if new is not item:
            setitem(container, key, new)
            self._undo.append((container, key, item, new))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        """Put the originals back wherever the function left the replacements."""
        for container, key, item, new in reversed(self._undo):
            if isinstance(container, dict):
                if dict.get(container, key) is new:
                    dict.__setitem__(container, key, item)
            elif key < len(container) and container[key] is new:
                list.__setitem__(container, key, item)
            else:  # the function moved it
                for i, held in enumerate(container):
                    if held is new:
                        list.__setitem__(container, i, item)


def call_filled(fun: Callable[..., Any], args: Sequence[Any], replacements: Sequence[array]) -> Any:
    """fun(*args) with other arrays, one for each in the arguments."""
    filled = Filled(args, replacements)
    with filled:
        return fun(*filled.value)
