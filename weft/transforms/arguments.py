"""The arguments of a traced function: which arrays in them are inputs of the trace, and how the function gets to see
those.

Lists and dicts (modules among them) are filled in place and put back afterwards, so the function sees the caller's own
containers, and what it writes into them stays; tuples and other records are made anew around the inputs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import ref

from weft import tree
from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.evaluate import PATIENCE
from weft.graph.node import ArrayType, Node, kind_of
from weft.graph.trace import Input, is_tracing
from weft.primitives.base import DATA, ONE, ZERO, Constant, ConstantValue, constant
from weft.primitives.custom import IDENTITY
from weft.runtime.data import Buffer

_numbers: dict[tuple[int, Dtype], ConstantValue] = {}
_ones: dict[ArrayType, Node] = {}


def _number(number: int, dtype: Dtype) -> ConstantValue:
    found = _numbers.get((number, dtype))
    if found is None:
        found = _numbers[number, dtype] = constant(number, kind_of((), dtype)).value
    return found


def ones(kind: ArrayType) -> Node:
    """Exactly one in every element, as a constant, which may be shared."""
    found = _ones.get(kind)
    if found is None:
        found = Node(ONE, (), kind, _number(1, kind.dtype))
        if not kind.shape:
            _ones[kind] = found
    return found


def zeros(kind: ArrayType) -> Node:
    """Exactly zero in every element, as a constant."""
    return Node(ZERO, (), kind, _number(0, kind.dtype))


def handed_out(node: Node) -> array:
    """A node that a rule made, for the user. Constants of rules are shared, and evaluation writes out what it is asked
    for: the user gets a copy."""
    return wrap(node if node.inputs or not isinstance(node.op, Constant) else Node(node.op, (), node.kind, node.value))


def or_zeros(node: Node | None, kind: ArrayType) -> array:
    """What a transform found, for the user."""
    if node is not None and node.inputs:
        return wrap(node)
    return wrap(zeros(kind)) if node is None else handed_out(node)


def fresh_inputs(leaves: Sequence[array]) -> tuple[list[array], list[Node]]:
    """Inputs of a new trace: the same values, nodes of their own (which stay what they are when the function overwrites
    the arrays).

    Call it before the trace is opened. An array of a trace that is already open is reached through an identity, so that
    the outer trace can follow; a plain array is simply held once more. No input is a constant: rules may use what they
    know of a constant, and drop it.
    """
    inner = is_tracing()
    inputs: list[array] = []
    nodes: list[Node] = []
    for leaf in leaves:
        node = leaf._node
        plain = not inner and node.op is DATA and node.value.__class__ is Buffer
        new = Input(DATA, (), node.kind, node.value) if plain else Input(IDENTITY, (node,), node.kind)
        nodes.append(new)
        inputs.append(wrap(new))
    return inputs, nodes


def second_name(x: Any) -> Any:
    """An argument that the function may overwrite, if it is an array: in-place operators inside a transformed function
    are not seen outside."""
    return wrap(x._node) if x.__class__ is array else x


def second_names(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The same for all arguments."""
    return [second_name(x) for x in args], {name: second_name(x) for name, x in kwargs.items()}


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


_OWNERS: dict[int, ref[FilledArguments]] = {}
"""Who has filled the containers (by id) that are filled at the moment."""
_ends = threading.Lock()


class _Owned(Exception):
    """Another thread has filled a container that is to be filled."""

    def __init__(self, owner: FilledArguments) -> None:
        super().__init__("a container is filled by another thread")
        self.owner = owner


class FilledArguments:
    """A list of arguments with their arrays replaced by others, one for each array, in place where containers allow it.

    `value` is what to hand on. Used as a context, at whose end the originals are put back. A container is filled by one
    thread at a time: who puts back what another thread had filled in would leave it there for good.
    """

    __slots__ = ("__weakref__", "_claimed", "_end", "_me", "_over", "_thread", "_undo", "value")

    def __init__(self, arguments: Sequence[Any], replacements: Sequence[array]) -> None:
        self._undo: list[tuple[Any, Any, array, array]] = []
        self._claimed: list[Any] = []
        self._me = ref(self)
        self._thread = threading.get_ident()
        self._end: threading.Event | None = None
        while True:
            source = iter(replacements)
            self._over = False
            try:
                self.value = [self._fill(argument, source) for argument in arguments]
            except _Owned as owned:  # nothing is held while waiting, so two threads cannot wait for each other
                self._put_back()
                owner = owned.owner
            except BaseException:
                self._put_back()
                raise
            else:
                return
            owner.wait()

    def wait(self) -> None:
        """Until the originals are back."""
        with _ends:
            if self._over:
                return
            if self._end is None:
                self._end = threading.Event()
            end = self._end
        if not end.wait(PATIENCE):
            raise RuntimeError(
                f"[grad] another thread has been differentiating by the same list or dict for {PATIENCE:.0f} seconds: "
                "a function that is being differentiated must not wait for a thread that does so."
            )

    def _claim(self, container: Any) -> None:
        held = _OWNERS.setdefault(id(container), self._me)
        if held is self._me:
            self._claimed.append(container)
            return
        owner = held()
        if owner is not None and owner._thread != self._thread:
            raise _Owned(owner)

    def _fill(self, value: Any, source: Iterator[array]) -> Any:
        if isinstance(value, array):
            return next(source)
        if isinstance(value, dict):
            self._claim(value)
            for key, item in list(dict.items(value)):
                self._put(value, dict.__setitem__, key, item, source)
            return value
        if isinstance(value, list):
            self._claim(value)
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

    @property
    def in_place(self) -> bool:
        """Whether containers of the caller hold the replacements at the moment."""
        return bool(self._undo)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._put_back()

    def __del__(self) -> None:
        if getattr(self, "_undo", None) or getattr(self, "_claimed", None):  # struck by Ctrl-C in between
            self._put_back()

    def _put_back(self) -> None:
        """The originals wherever the function left the replacements."""
        try:
            self._restore()
        finally:
            for container in self._claimed:
                _OWNERS.pop(id(container), None)
            self._claimed.clear()
            self._undo.clear()
            with _ends:
                self._over, end, self._end = True, self._end, None
            if end is not None:
                end.set()

    def _restore(self) -> None:
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


def _after_fork() -> None:
    """The other threads are not there, and will not put anything back."""
    global _ends
    _ends = threading.Lock()
    _OWNERS.clear()


os.register_at_fork(after_in_child=_after_fork)


def call_filled(fun: Callable[..., Any], args: Sequence[Any], replacements: Sequence[array]) -> Any:
    """fun(*args) with other arrays, one for each in the arguments. What it returns may hold one of the containers that
    were filled, and is taken apart before the originals are put back."""
    filled = FilledArguments(args, replacements)
    with filled:
        result = fun(*filled.value)
        if not filled.in_place:
            return result
        leaves, structure = tree.flatten(result)
    return structure.unflatten(leaves)
