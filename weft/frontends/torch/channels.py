"""Where images lie: ATen has channels second, convolutions write them last.

A rule gives what it computes with the axes that ATen has, often as a transpose of what a convolution made. `settled`
computes what follows in the order in which that lies: transposes move through operations of single elements, through
reductions, parts and joins, until an operation needs the axes as they are. Terms of sums keep their order, so no bit
changes. What a step keeps for its way back may then lie so in memory too (`Translation`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.frontends.torch.layouts import Order, inverse, is_identity
from weft.graph.lines import inherit
from weft.graph.node import ArrayType, Node, kind_of, reachable
from weft.passes.simplify import split_reduction
from weft.primitives.base import Constant, Elementwise, bind
from weft.primitives.joins import Concatenate
from weft.primitives.reductions import Fold
from weft.primitives.views import Slice, SliceUpdate, Transpose

FEWEST_AXES = 4
"""An image with fewer is a signal, or a sequence of a transformer, whose axes change places for other reasons."""


class Lying(NamedTuple):
    """A value as it lies: axis i of the value is axis `order[i]` of `base`."""

    base: Node
    order: Order

    def value(self) -> Node:
        return bind(Transpose(self.order), self.base)


def settled(results: Sequence[Node]) -> list[Lying]:
    """The same values, computed in the order in which convolutions leave them. Those of another order than their own
    axes have are given as they lie."""
    settler = _Settler()
    for node in reachable(results):
        settler.add(node)
    inherit({node: settler.made(node) for node in reachable(results)})
    return [settler.lying(node) for node in results]


def _is_image(order: Order) -> bool:
    """Whether only channels change their place: they are second, and lie last."""
    n = len(order)
    return n >= FEWEST_AXES and order == (0, n - 1, *range(1, n - 1))


def _along(order: Order, values: Sequence[Any]) -> tuple[Any, ...]:
    """What is given for each axis of a value, for each axis of its base."""
    return tuple([values[axis] for axis in inverse(order)])


class _Settler:
    def __init__(self) -> None:
        self._lies: dict[Node, Lying] = {}
        """Values that are not computed with their own axes."""
        self._plain: dict[Node, Node] = {}
        """Values with their own axes, where they have been needed so."""

    def lying(self, node: Node) -> Lying:
        found = self._lies.get(node)
        return Lying(self._plain[node], tuple(range(node.ndim))) if found is None else found

    def made(self, node: Node) -> Node:
        """What computes a value now."""
        return self._lies[node].base if node in self._lies else self._plain[node]

    def add(self, node: Node) -> None:
        split = split_reduction(node) if isinstance(node.op, Fold) else None
        if split is not None:
            self._add_split(node, split)
            return
        found = self._moved(node)
        if found is None:
            self._plain[node] = node.on(tuple([self._of(x) for x in node.inputs])) if node.inputs else node
        elif is_identity(found.order):
            self._plain[node] = found.base
        else:
            self._lies[node] = found

    def _add_split(self, node: Node, split: Node) -> None:
        """A reduction over axes that are not neighbours, as what specifies its order: where channels are last they may
        be, and would be summed in another one."""
        chain = [split]
        while chain[-1].inputs[0] is not node.inputs[0]:
            chain.append(chain[-1].inputs[0])
        for part in reversed(chain):
            self.add(part)
        found = self.lying(split)
        if is_identity(found.order):
            self._plain[node] = found.base
        else:
            self._lies[node] = found

    def _of(self, node: Node) -> Node:
        """A value with its own axes."""
        if node not in self._plain:
            self._plain[node] = self._lies[node].value()
        return self._plain[node]

    def _in(self, order: Order, node: Node) -> Node:
        """A value with the axes of what lies in an order."""
        found = self._lies.get(node)
        if found is not None and found.order == order:
            return found.base
        if isinstance(node.op, Constant):
            return Node(node.op, (), _kind(order, node.kind), node.value)
        return bind(Transpose(inverse(order)), self._of(node))

    def _moved(self, node: Node) -> Lying | None:
        """A node computed in the order of its operands; None if it needs their axes as they are."""
        if type(node.kind) is not ArrayType or node.kind.symbolic or node.value is not None or not node.inputs:
            return None
        op = node.op
        if isinstance(op, Transpose):
            return self._transposed(op, node.inputs[0])
        order = next((self._lies[x].order for x in node.inputs if x in self._lies), None)
        if order is None:
            return None
        if isinstance(op, Elementwise):
            return Lying(node.on(tuple([self._in(order, x) for x in node.inputs]), kind=_kind(order, node.kind)), order)
        if isinstance(op, Fold):
            return self._reduced(op, node, order)
        if isinstance(op, Slice):
            starts, sizes, steps = (_along(order, given) for given in (op.starts, op.sizes, op.steps))
            return Lying(bind(Slice(starts, sizes, steps), self._in(order, node.inputs[0])), order)
        if isinstance(op, SliceUpdate):
            moved = SliceUpdate(_along(order, op.starts), _along(order, op.steps))
            return Lying(bind(moved, *[self._in(order, x) for x in node.inputs]), order)
        if isinstance(op, Concatenate) and all(x in self._lies for x in node.inputs):
            return Lying(bind(Concatenate(order[op.axis]), *[self._in(order, x) for x in node.inputs]), order)
        return None

    def _transposed(self, op: Transpose, x: Node) -> Lying | None:
        found = self.lying(x)
        order = tuple([found.order[axis] for axis in op.order])
        return Lying(found.base, order) if is_identity(order) or _is_image(order) else None

    def _reduced(self, op: Fold, node: Node, order: Order) -> Lying | None:
        """A reduction over the same elements in the same order: what goes and what stays keeps its order in both, and
        neighbours are neighbours."""
        (x,) = node.inputs
        kept = [order[axis] for axis in range(x.ndim) if axis not in op.axes]
        gone = [order[axis] for axis in op.axes]
        if not gone or kept != sorted(kept) or gone != [*range(gone[0], gone[0] + len(gone))]:
            return None
        return Lying(bind(type(op)(tuple(gone)), self._in(order, x)), tuple(range(len(kept))))


def _kind(order: Order, kind: ArrayType) -> ArrayType:
    return kind_of(_along(order, kind.shape), kind.dtype)
