"""What several kernels need of an operand in a wider type, each converts for itself.

A variance of halves is computed in float32, in two passes over its operand. Where these are two kernels, the first one
would write the converted operand for the second: twice the bytes that are there already, and in an order in which
neither may walk. Conversions cost next to nothing beside memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.lines import inherit
from weft.graph.node import Graph, Node
from weft.passes.fuse import Group, is_stored_leaf
from weft.passes.views import Strided
from weft.primitives.elementwise import AsType


def convert_again(graph: Graph, groups: Sequence[Group]) -> Graph:
    """The graph with a conversion of its own for each kernel that would read one from memory; itself, if none does."""
    group_of = {node: group for group in groups for node in group.nodes}
    users, outputs = graph.users(), set(graph.outputs)

    def elsewhere(node: Node) -> bool:
        """Whether it is stored only for other kernels."""
        if node in outputs or not _widens(node):
            return False
        readers = [group_of.get(user) for user in users[node]]
        if any(group is None or group.form == "opaque" for group in readers):
            return False
        return any(group is not group_of[node] for group in readers)

    again = {node for node in group_of if elsewhere(node)}
    if not again:
        return graph
    new: dict[Node, Node] = {}
    copies: dict[tuple[Node, int], Node] = {}

    def operand(x: Node, reader: Node) -> Node:
        if x not in again:
            return new[x]
        key = x, id(group_of[reader])
        if key not in copies:
            copies[key] = x.again(tuple([new[i] for i in x.inputs]), {})
        return copies[key]

    for node in graph.order():
        if node in again:
            new[node] = node  # its readers have copies; this says of which lines of a program they are
        else:
            new[node] = node.on(tuple([operand(x, node) for x in node.inputs]))
    inherit(new)
    inherit({x: copy for (x, _), copy in copies.items()})
    return Graph(graph.inputs, [new[output] for output in graph.outputs])


def _widens(node: Node) -> bool:
    """Whether it is a conversion to a wider type of something that is in memory before the program begins."""
    if not isinstance(node.op, AsType):
        return False
    (x,) = node.inputs
    leaf = x.inputs[0] if isinstance(x.op, Strided) else x
    return is_stored_leaf(leaf) and x.dtype.size < node.dtype.size
