"""Which operators may run in place. Unless a user restricts that, the planner decides; the value of an operator that
may not has memory of its own (`NoAlias`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.utils import _pytree as pytree

import weft.core as mx
from weft.graph.node import Node, next_id
from weft.primitives.base import KernelOperation, View
from weft.primitives.custom import NoAlias
from weft.program import apply

InPlace = bool | Collection[str] | Callable[[str], bool]
"""Whether operators may run in place: all of them, none, those of some names, or those that a function says. Names are
those that torch prints: "aten.add.Tensor", or "aten.add" for all overloads."""


def permission(in_place: InPlace) -> Callable[[str], bool]:
    """Whether the operator of a name may run in place."""
    if callable(in_place):
        return in_place
    if isinstance(in_place, bool):
        allowed = in_place
        return lambda name: allowed
    if isinstance(in_place, str):
        in_place = (in_place,)
    names = frozenset(in_place)
    for name in names:
        _check_name(name)
    return lambda name: name in names or name.rpartition(".")[0] in names


def _check_name(name: str) -> None:
    space, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(torch.ops, space, None), packet, None) if rest else None
    if found is None or (overload and overload not in found.overloads()):
        raise ValueError(
            f"[in_place] torch has no operator {name!r}; names are those that torch prints, such as 'aten.add.Tensor', "
            "or 'aten.add' for all its overloads."
        )


def apart(rule: Callable[..., Any], out: Any, args: Any, kwargs: Any) -> Any:
    """What a rule gives, in memory of its own."""
    since = next_id()
    made = rule(out, *args, **kwargs)
    written = _overwritten(made, since)
    if written:  # on a copy it may: that is where the result lies
        args, kwargs = pytree.tree_map_only(
            mx.array, lambda x: apply(NoAlias(), x) if x._node in written else x, (args, kwargs)
        )
        return rule(out, *args, **kwargs)
    return pytree.tree_map_only(mx.array, lambda x: apply(NoAlias(), x) if _is_stored(x._node, since) else x, made)


def _overwritten(made: Any, since: int) -> set[Node]:
    """The nodes older than a rule that its operations might write their results over, leaving the rest as it is."""
    found: set[Node] = set()
    stack = [x._node for x in pytree.tree_leaves(made) if isinstance(x, mx.array)]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if node.id <= since or node.id in seen:
            continue
        seen.add(node.id)
        stack.extend(node.inputs)
        if isinstance(node.op, KernelOperation):
            found |= {base for k in node.op.overwrites if (base := _base(node.inputs[k])).id <= since}
    return found


def _base(node: Node) -> Node:
    while isinstance(node.op, View):
        node = node.inputs[0]
    return node


def _is_stored(node: Node, since: int) -> bool:
    """Whether a rule made a new value, and not a view of an old one."""
    return _base(node).id > since
