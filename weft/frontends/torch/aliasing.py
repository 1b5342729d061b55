"""What a caller of torch sees of a graph's outputs: which of them are arguments, which look at the memory of others,
with what strides, and which arguments change.

A program computes values. An output that torch says is a view (of an argument, or of another output) is made by torch
from the tensor that it views; all others have memory of their own.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from weft.frontends.torch.data_sizes import has_unbacked, is_unbacked, symbols
from weft.frontends.torch.layouts import memory_order
from weft.frontends.torch.signature import Argument, Output, Own, Seen, Size, Update, Value

COPY = "aten.copy_.default"
LIES = "lies"
"""Under this name the metadata of an argument have a tensor that lies as it does, where torch traced another order."""


UNSAFE = frozenset({"aten.unsafe_split.Tensor", "aten.unsafe_split_with_sizes.default"})
"""Operators whose results look at the first operand, although torch does not keep account of it."""


def viewed(node: fx.Node) -> fx.Node | None:
    """What a node is a view of; None if it is none."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        source = node.args[0]
        return viewed(source) if isinstance(source, fx.Node) else None
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    info = schema.arguments[0].alias_info
    is_view = str(node.target) in UNSAFE or (info is not None and not info.is_write)
    return node.args[0] if is_view else None


def root_of(node: fx.Node) -> fx.Node:
    """The node whose memory a node looks at: itself if it is no view."""
    base = viewed(node)
    while base is not None:
        node, base = base, viewed(base)
    return node


def is_seen(view: fx.Node, root: fx.Node) -> bool:
    """Whether torch can make one from the other with sizes and strides alone."""
    a, b = view.meta["val"], root.meta["val"]
    if LIES in root.meta or a.dtype != b.dtype or a.is_conj() or a.is_neg():
        return False
    return memory_order(b) is not None or (root.op == "placeholder" and _are_told(b.stride(), root.graph))


def _are_told(sizes: Sequence[Any], graph: fx.Graph) -> bool:
    """Whether arguments tell what these are: a program stores without gaps, but what it is given may have some."""
    values = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    given = [n for x in values for n in (x.shape if isinstance(x, torch.Tensor) else [x])]
    known = {n.node.expr for n in given if isinstance(n, torch.SymInt)}
    return all(n.node.expr.free_symbols <= known for n in sizes if isinstance(n, torch.SymInt))


def begins_at_data(view: fx.Node) -> bool:
    """Whether a view of an argument begins at a place of its memory that depends on data, and that no program tells."""
    value = view.meta.get("val")
    if not isinstance(value, torch.Tensor) or not is_unbacked(value.storage_offset()):
        return False
    known = {symbol for node in view.graph.nodes for symbol in symbols(node)}
    return root_of(view).op == "placeholder" and not value.storage_offset().node.expr.free_symbols <= known


def is_update(node: fx.Node) -> bool:
    """Whether a node gives an argument a new value, as AOTAutograd writes it at the end of a graph."""
    target = node.args[0] if node.op == "call_function" and str(node.target) == COPY else None
    return isinstance(target, fx.Node) and target.op == "placeholder"


class Outputs:
    """The outputs of a graph, each by where it comes from, the arguments that change, and the nodes that the program
    computes for them all (`results`)."""

    def __init__(
        self,
        module: fx.GraphModule,
        wanted: Sequence[Any],
        changes: Sequence[tuple[fx.Node, fx.Node]],
        expression: Callable[[Any], Size],
        share: bool = True,
    ) -> None:
        """`changes` are pairs of an argument and its new value. Outputs that look at one value share its memory, also
        where that is no output, if they are to `share` it."""
        self.arguments = {
            node: i for i, node in enumerate(node for node in module.graph.nodes if node.op == "placeholder")
        }
        self._expression = expression
        copies = [(n.args[0], n.args[1]) for n in module.graph.nodes if is_update(n)]
        self._written: dict[fx.Node, fx.Node] = {new: argument for argument, new in changes}
        self._written |= {n: n.args[0] for n in module.graph.nodes if is_update(n)}  # type: ignore[misc]
        changes = [*changes, *copies]  # type: ignore[list-item]
        self.results: list[fx.Node] = []
        self._numbers: dict[fx.Node, int] = {}
        self._given = {x for x in wanted if isinstance(x, fx.Node) and isinstance(x.meta.get("val"), torch.Tensor)}
        roots = Counter(root for x in self._given if (root := root_of(x)) is not x)
        self._shared = {root for root, views in roots.items() if views > 1 and share}
        self.outputs = tuple([self._output(x) for x in wanted])
        # Last: what reads an argument is then computed before its new value is.
        self.updates = [Update(self.arguments[a], self.own(b)) for a, b in changes if a is not b]

    def _output(self, x: Any) -> Output:
        if x not in self._given:
            return Value(self._expression(x.meta["val"] if isinstance(x, fx.Node) else x))
        x = self._written.get(x, x)
        if x in self.arguments:
            return Argument(self.arguments[x])
        root = root_of(x)
        if root is x or has_unbacked(root.meta["val"]) or not is_seen(x, root) or begins_at_data(x):
            return Own(self.own(x))
        root = self._written.get(root, root)
        if root in self.arguments:
            return self._seen(x, root, self.arguments[root], own=False)
        if root in self._given or root in self._shared or memory_order(x.meta["val"]) is None:
            return self._seen(x, root, self.own(root), own=True)
        return Own(self.own(x))

    def _seen(self, x: fx.Node, root: fx.Node, number: int, own: bool) -> Seen:
        view, base = x.meta["val"], root.meta["val"]
        offset = view.storage_offset() - base.storage_offset()
        sizes = (view.shape, view.stride(), base.stride())
        shape, strides, under = (tuple(map(self._expression, x)) for x in sizes)
        return Seen(number, own, shape, strides, self._expression(offset), under)

    def own(self, node: fx.Node) -> int:
        """The number of the result that a node is."""
        if node not in self._numbers:
            self._numbers[node] = len(self.results)
            self.results.append(node)
        return self._numbers[node]
