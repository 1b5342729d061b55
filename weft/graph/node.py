"""The graph: `Node`s made by binding a primitive to other nodes, and the interned `ArrayType` (shape and dtype) that is
the kind of each.

This is the one form that a program has in Weft: arrays hold nodes, transforms map nodes to nodes, passes map graphs to
graphs. A node is never changed once made, except that evaluation gives it a `value` (and may then forget its inputs).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import ref

from weft.dtypes import Dtype, bool_
from weft.graph.dims import Dim, exact, prod, shape_key, text_of
from weft.graph.placement import USED, current
from weft.interning import Interned
from weft.runtime.device import Device
from weft.runtime.objects import MAKERS

if TYPE_CHECKING:
    from weft.primitives.base import Primitive

Size = int | Dim
Shape = tuple[Size, ...]


class ArrayType:
    """Shape and dtype of a node; interned by `kind_of`, so `is` compares and hashing is by identity."""

    __slots__ = ("__weakref__", "dtype", "ndim", "shape", "size", "symbolic")

    def __init__(self, shape: Shape, dtype: Dtype) -> None:
        self.shape, self.dtype = shape, dtype
        self.ndim, self.size = len(shape), prod(shape)
        self.symbolic = any(type(n) is not int for n in shape)
        if type(self.size) is int and self.size * dtype.size >= 1 << 62:
            raise ValueError(f"[array] shape {shape} has more elements than memory has addresses.")

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(text_of, self.shape))}]"


_MOST_KINDS = 1 << 13
_KINDS: Interned[tuple[Any, Dtype], ArrayType] = Interned(_MOST_KINDS)
_RECENT = _KINDS.recent


def kind_of(shape: Shape, dtype: Dtype) -> ArrayType:
    """The one `ArrayType` for this shape and dtype."""
    key: tuple[Any, Dtype] = (shape, dtype)
    for n in shape:
        if type(n) is not int:
            shape = exact(shape)
            key = (shape_key(shape), dtype)
            break
    found = _RECENT.get(key)
    return _KINDS.get(key, lambda: ArrayType(shape, dtype)) if found is None else found


class TupleType(ArrayType):
    """The kind of a node with several results: `parts` are theirs. Such a node has no value of its own; the nodes that
    pick one part of it have."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[ArrayType, ...]) -> None:
        super().__init__((), bool_)
        self.parts = parts
        self.symbolic = any(part.symbolic for part in parts)

    def __repr__(self) -> str:
        return f"({', '.join(map(repr, self.parts))})"


class Tape(ArrayType):
    """The kind of rows that one loop leaves for another, as many as it takes: `row` is the kind of each. Nothing but
    loops reads them, so their number is part of no shape."""

    __slots__ = ("row",)

    def __init__(self, row: ArrayType) -> None:
        super().__init__((0, *row.shape), row.dtype)
        self.row, self.symbolic = row, row.symbolic

    def __repr__(self) -> str:
        return f"tape of {self.row!r}"


_TAPES: Interned[ArrayType, Tape] = Interned(_MOST_KINDS)


def tape_of(row: ArrayType) -> Tape:
    """The one `Tape` of such rows."""
    return _TAPES.get(row, lambda: Tape(row))


_BUNDLES: Interned[tuple[ArrayType, ...], TupleType] = Interned(_MOST_KINDS)


def bundle_of(parts: Sequence[ArrayType]) -> TupleType:
    """The one `TupleType` of these kinds."""
    key = tuple(parts)
    return _BUNDLES.get(key, lambda: TupleType(key))


_ids = itertools.count()
next_id = _ids.__next__


class Node:
    """One value of a program: `op` applied to `inputs`. Ids grow, so sorting by id is a topological order.

    `value` is the computed data (or the words of a constant), `handle` refers weakly to the user's array(s) for it.
    """

    __slots__ = ("device", "handle", "id", "inputs", "kind", "line", "op", "value")

    def __init__(self, op: Primitive, inputs: tuple[Node, ...], kind: ArrayType, value: Any = None) -> None:
        self.op = op  # one by one: five together would be a tuple first, and this is the cost of a trace
        self.inputs = inputs
        self.kind = kind
        self.value = value
        if USED and inputs:
            self.device = current()
        self.handle: ref[Any] | tuple[ref[Any], ...] | None = None
        self.id = next_id()

    device: Device | None
    """What it is computed on (`placement.device_of`): only there once another device than the host's CPU is used."""
    line: Any
    """Where the user's program made it: only there while weft.graph.lines records."""

    if TYPE_CHECKING:  # given by weft.primitives, which knows the operations

        def __add__(self, other: Node) -> Node: ...
        def __sub__(self, other: Node) -> Node: ...
        def __mul__(self, other: Node) -> Node: ...
        def __truediv__(self, other: Node) -> Node: ...
        def __neg__(self) -> Node: ...

    @property
    def shape(self) -> Shape:
        return self.kind.shape

    @property
    def dtype(self) -> Dtype:
        return self.kind.dtype

    @property
    def ndim(self) -> int:
        return self.kind.ndim

    def again(self, inputs: tuple[Node, ...], memo: dict[Any, Any]) -> Node:
        """The same operation on other operands. `memo` belongs to one rebuilding of a graph: nodes that belong together
        find each other there."""
        return self.beside(node_of(self.op, inputs, self.kind, None if inputs else self.value))

    def beside(self, new: Node) -> Node:
        """A new node, computed where this one is."""
        if USED:
            new.device = getattr(self, "device", None)
        return new

    def on(self, inputs: tuple[Node, ...], op: Primitive | None = None, kind: ArrayType | None = None) -> Node:
        """The node that a pass puts in the place of this one: on other operands, or another operation, or of another
        kind; itself where nothing changes."""
        op, kind = self.op if op is None else op, self.kind if kind is None else kind
        if inputs == self.inputs and op is self.op and kind is self.kind:
            return self
        return self.beside(node_of(op, inputs, kind, None if inputs else self.value))

    @property
    def identity(self) -> Any:
        """What tells this operation from another, beside its operands."""
        return self.op

    def __repr__(self) -> str:
        return f"%{self.id} = {self.op} : {self.kind}"


def node_of(op: Primitive, inputs: tuple[Node, ...], kind: ArrayType, value: Any = None) -> Node:
    """A node of the class that its operation has. Whatever makes nodes of operations that it does not know makes them
    here: of one with several results, and of a node that picks one of them, the class says how transforms treat it."""
    return op.node_class(op, inputs, kind, value)


MAKERS.nodes(Node, _ids)


def has_handle(node: Node) -> bool:
    """Whether a live array of the user's still refers to this node (and has not been overwritten since)."""
    handle = node.handle
    if handle is None:
        return False
    for reference in handle if isinstance(handle, tuple) else (handle,):
        user = reference()
        if user is not None and user._node is node:
            return True
    return False


def handles(node: Node) -> list[Any]:
    """The live arrays that refer to this node."""
    handle = node.handle
    references = () if handle is None else handle if isinstance(handle, tuple) else (handle,)
    return [user for user in [reference() for reference in references] if user is not None and user._node is node]


def reachable(roots: Iterable[Node]) -> list[Node]:
    """All nodes that the roots are computed from, themselves included, in topological order. Evaluated nodes keep their
    inputs."""
    seen = set(roots)
    stack = list(seen)
    while stack:
        for node in stack.pop().inputs:
            if node not in seen:
                seen.add(node)
                stack.append(node)
    return sorted(seen, key=_by_id)


def reachable_by(roots: Iterable[Node], operands: Callable[[Node], Iterable[Node]]) -> list[Node]:
    """The same, where `operands` says what a node is computed from."""
    seen = set(roots)
    stack = list(seen)
    while stack:
        for node in operands(stack.pop()):
            if node not in seen:
                seen.add(node)
                stack.append(node)
    return sorted(seen, key=_by_id)


_by_id = attrgetter("id")


class Graph:
    """A closed program: `inputs` are its parameters (leaf nodes), `outputs` its results; everything between is
    reachable from them."""

    __slots__ = ("inputs", "outputs")

    def __init__(self, inputs: Sequence[Node], outputs: Sequence[Node]) -> None:
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    def order(self) -> list[Node]:
        """All nodes, operands before users, unused inputs included."""
        return reachable((*self.inputs, *self.outputs))

    def users(self) -> dict[Node, list[Node]]:
        """For every node the nodes that read it (twice if it stands in two operands)."""
        users: dict[Node, list[Node]] = {node: [] for node in self.order()}
        for node in users:
            for operand in node.inputs:
                users[operand].append(node)
        return users
