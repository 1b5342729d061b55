"""Bodies of loops and branches: closed graphs as parameters of primitives.

A `Body` is interned by its structure, so two traces of one function give one body, and a primitive that holds it is
interned in turn. Numbers are part of the structure: a constant inside a body is the same at every run.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from weft.graph.lines import on_behalf_of
from weft.graph.node import ArrayType, Graph, Node, node_of
from weft.interning import Interned


class Body:
    """A closed graph whose inputs are parameters in order. `derived` remembers what was made of it (its derivative,
    say), under a key of the maker's."""

    __slots__ = ("__weakref__", "derived", "graph", "key")

    def __init__(self, graph: Graph, key: tuple[Any, ...]) -> None:
        self.graph, self.key = graph, key
        self.derived: dict[Any, Any] = {}

    @property
    def inputs(self) -> tuple[Node, ...]:
        return self.graph.inputs

    @property
    def outputs(self) -> tuple[Node, ...]:
        return self.graph.outputs

    @property
    def is_symbolic(self) -> bool:
        """Whether some size in here is a symbol."""

        def found() -> bool:
            return any(node.kind.symbolic or node.op.is_symbolic() for node in self.graph.order())

        return bool(self.once("symbolic", found))

    def kinds(self) -> tuple[ArrayType, ...]:
        """The kinds of the results."""
        return tuple([node.kind for node in self.graph.outputs])

    def apply(self, operands: Sequence[Node]) -> list[Node]:
        """The results for these operands, as nodes of the caller's graph."""
        return rebuilt(self.graph.order(), self.graph.outputs, dict(zip(self.inputs, operands, strict=True)))

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, made once; in vain if another thread was first."""
        found = self.derived.get(key, _UNKNOWN)
        return self.derived.setdefault(key, make()) if found is _UNKNOWN else found

    def __repr__(self) -> str:
        return f"body {len(self.inputs)} -> {len(self.outputs)}"


@on_behalf_of("node")
def rebuilt(order: Sequence[Node], outputs: Sequence[Node], new: dict[Node, Node]) -> list[Node]:
    """The outputs computed from what `new` gives in place of some nodes; it learns of all others."""
    memo: dict[Any, Any] = {}
    for node in order:
        if node not in new:
            new[node] = node if not node.inputs else node.again(tuple([new[i] for i in node.inputs]), memo)
    return [new[node] for node in outputs]


_UNKNOWN = object()
_BODIES: Interned[tuple[Any, ...], Body] = Interned(0)

Parameters = Callable[[int], Any]
PARAMETER: list[Parameters] = []
"""The primitive of parameter number i; put here by weft.primitives, which this module knows nothing of."""


@on_behalf_of("node")
def body_of(inputs: Sequence[Node], outputs: Sequence[Node]) -> Body:
    """The body that computes `outputs` from `inputs`. Every leaf must be an input or a constant."""
    parameter = PARAMETER[0]
    number: dict[Node, int] = {}
    key: list[Any] = [len(inputs)]
    new: dict[Node, Node] = {}
    for position, node in enumerate(inputs):
        number[node] = position
        key.append(node.kind)
        new[node] = Node(parameter(position), (), node.kind)
    parameters = list(new.values())
    order = _behind(outputs, new)
    for node in order:
        number[node] = len(number)
        key.append((node.identity, node.kind, *[number[i] for i in node.inputs]))
        if not node.inputs:
            constant = getattr(node.value, "key", None)
            if constant is None and node.value is not None:
                raise AssertionError(f"{node} is computed data inside a body")
            key.append(constant)
    key.append(tuple([number[node] for node in outputs]))
    found = _BODIES.find(tuple(key))
    if found is None:
        memo: dict[Any, Any] = {}
        for node in order:
            new[node] = node.again(tuple([new[i] for i in node.inputs]), memo)
        found = _BODIES.add(tuple(key), Body(Graph(parameters, [new[node] for node in outputs]), tuple(key)))
    return found


def _behind(outputs: Sequence[Node], inputs: Container[Node]) -> list[Node]:
    """What the outputs are computed from, in topological order, as far as the inputs.

    A leaf stands before what reads it first: a constant is shared, so its age says nothing about this body.
    """
    seen = {node for node in outputs if node not in inputs}
    stack = list(seen)
    while stack:
        for node in stack.pop().inputs:
            if node not in seen and node not in inputs:
                seen.add(node)
                stack.append(node)
    order: dict[Node, None] = {}
    for node in sorted([node for node in seen if node.inputs], key=lambda node: node.id):
        order.update(dict.fromkeys([x for x in node.inputs if not x.inputs and x in seen]))
        order[node] = None
    order.update(dict.fromkeys([node for node in outputs if node in seen]))
    return list(order)


def filled(body: Body, fill: Callable[[Node], ArrayType], primitive: Callable[[Any], Any]) -> Body:
    """The same body with other kinds and primitives: numbers in place of symbolic sizes."""
    new: dict[Node, Node] = {}
    for node in body.graph.order():
        new[node] = node_of(primitive(node.op), tuple([new[i] for i in node.inputs]), fill(node), node.value)
    return body_of([new[i] for i in body.inputs], [new[o] for o in body.outputs])
