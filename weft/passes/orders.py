"""Results in the order in which their operands lie: the last step of composing views (`views.py`).

What is elementwise, or only moves whole axes, gives the same elements in whichever order axes are walked. Where all
that results are computed from lies in another order than row by row (all of it transposed, say), they are computed and
stored in that order, and what the caller gets is a view: nothing has to be turned. Only for what is read by nothing
else in the program; a reader may want rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from weft.graph.dims import is_exactly, provably_at_most
from weft.graph.lines import inherit
from weft.graph.node import Graph, Node, Shape, Size
from weft.passes.views import Resolver, Strided, Strides
from weft.primitives.base import Constant, Primitive
from weft.primitives.views import Transpose

Order = tuple[int, ...]
"""Axis i of what is stored is axis order[i] of what is seen, as in a transpose."""


def keep_orders(graph: Graph, layouts: Mapping[Node, Strides | None], rows: Collection[Node] = ()) -> Graph:
    """The pass. `layouts` gives the strides of inputs that are not contiguous; `rows` are values that the program wants
    row by row."""
    resolver = Resolver(layouts)
    orders = _orders(graph, resolver, rows)
    if not orders:
        return graph
    stored: dict[Node, Node] = {}
    new: dict[Node, Node] = {}
    for node in graph.order():
        order = orders.get(node)
        if order is None:
            new[node] = node  # nothing that stands on other nodes reads them
            continue
        operands = [stored[x] if x in orders else resolver.apply(x, (Transpose(order),)) for x in node.inputs]
        op = _reordered(node, order)
        assert op is not None
        stored[node] = node.on(tuple(operands), op, op.infer(*[x.kind for x in operands]))
        new[node] = resolver.apply(stored[node], (Transpose(_inverse(order)),))
    inherit(new)
    return Graph(graph.inputs, [new[o] for o in graph.outputs])


def _orders(graph: Graph, resolver: Resolver, rows: Collection[Node]) -> dict[Node, Order]:
    """The order of each node that is computed in another one than row by row."""
    if not any(resolver.layouts.values()) and not any(isinstance(node.op, Strided) for node in graph.order()):
        return {}
    users, outputs = graph.users(), set(graph.outputs)
    found: dict[Node, Order | None] = {}
    for output in outputs:
        if output not in found and _may_move(output):
            members = _connected(output, users)
            others = [x for node in members for x in node.inputs if x not in members]
            is_read = any(not _may_move(user) for node in members for user in users[node])
            order = None if is_read or not members.isdisjoint(rows) else _shared(resolver, others)
            if order is not None and not all(_reordered(node, order) for node in members):
                order = None
            found |= dict.fromkeys(members, order)
    return {node: order for node, order in found.items() if order is not None}


def _connected(start: Node, users: Mapping[Node, Sequence[Node]]) -> set[Node]:
    """All that may move, and that reads or is read by such nodes."""
    members, waiting = {start}, [start]
    while waiting:
        node = waiting.pop()
        beside = {x for x in (*node.inputs, *users[node]) if _may_move(x)} - members
        members |= beside
        waiting += beside
    return members


def _may_move(node: Node) -> bool:
    return node.ndim > 1 and bool(node.inputs) and _reordered(node, tuple(range(node.ndim))) is not None


def _reordered(node: Node, order: Order) -> Primitive | None:
    return node.op.reordered(order)


def _inverse(order: Order) -> Order:
    return tuple(order.index(axis) for axis in range(len(order)))


def _shared(resolver: Resolver, operands: Iterable[Node]) -> Order | None:
    """The order in which all of these lie; None if that is row by row, or not the same for all."""
    lying = [(x.shape, resolver.layout(x)[1]) for x in operands if not isinstance(x.op, Constant)]
    for order in [_order_of(shape, strides) for shape, strides in lying]:
        if order is not None and order != tuple(range(len(order))):
            return order if all(_lies_in(order, shape, strides) for shape, strides in lying) else None
    return None


def _order_of(shape: Shape, strides: Strides) -> Order | None:
    """The order of the axes from the largest stride to the smallest; None if it repeats elements, or nobody knows."""
    axes = [axis for axis, n in enumerate(shape) if not is_exactly(n, 1)]
    if any(is_exactly(strides[axis], 0) for axis in axes):
        return None
    sorted_axes: list[int] = []
    for axis in axes:
        place = len(sorted_axes)
        while place and not _at_most(strides[axis], strides[sorted_axes[place - 1]]):
            place -= 1
        sorted_axes.insert(place, axis)
    walked = iter(sorted_axes)
    order = tuple(next(walked) if axis in sorted_axes else axis for axis in range(len(shape)))
    return order if _lies_in(order, shape, strides) else None


def _lies_in(order: Order, shape: Shape, strides: Strides) -> bool:
    """Whether strides get smaller along these axes, those that repeat an element left out."""
    steps = [strides[axis] for axis in order if not is_exactly(shape[axis], 1) and not is_exactly(strides[axis], 0)]
    return all(_at_most(after, before) for before, after in itertools.pairwise(steps))


def _at_most(a: Size, b: Size) -> bool:
    """Whether a stride is known to be no longer than another one."""
    if type(a) is int and type(b) is int:
        return abs(a) <= abs(b)
    return provably_at_most(0, a) and provably_at_most(a, b)
