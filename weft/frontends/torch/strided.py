"""Operators that look at memory by strides: `as_strided` and its like. A program has arrays, not memory; but what lies
in memory without gaps is an array whose axes are put in that order and made one."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import fx

from weft.frontends.torch.aliasing import root_of
from weft.frontends.torch.layouts import Order, memory_order, number

SCATTER = "aten.as_strided_scatter.default"
STRIDED = frozenset({"aten.as_strided.default", "aten.as_strided_copy.default", SCATTER})


class Look(NamedTuple):
    """What such a node looks at: the memory that `owner` has, whose axes lie in `order`, from `offset` on."""

    owner: fx.Node
    order: Order
    size: Any
    strides: Any
    offset: Any


def look_of(node: fx.Node) -> Look | str:
    """What a node looks at, or why a program cannot."""
    schema: Any = node.target._schema  # type: ignore[union-attr]
    given = {**dict(zip([x.name for x in schema.arguments], node.args, strict=False)), **node.kwargs}
    base: Any = given["self"]
    owner = base if str(node.target) == SCATTER else root_of(base)
    value, memory = _value(base), _value(owner)
    order = memory_order(memory)
    if order is None:
        return f"{node.target} of what has gaps in memory"
    if memory.dtype != value.dtype:
        return f"{node.target} of a tensor seen as another dtype"
    size, strides = ([_value(n) for n in given[name]] for name in ("size", "stride"))
    offset = _value(given.get("storage_offset"))
    offset = (value.storage_offset() if offset is None else offset) - memory.storage_offset()
    first, sizes = number(offset), [number(n) for n in size]
    last = first + sum((n - 1) * number(step) for n, step in zip(sizes, strides, strict=True))
    if 0 not in sizes and not 0 <= first <= last < number(memory.numel()):
        return f"{node.target} beyond the memory of its operand"
    return Look(owner, order, size, strides, offset)


def _value(x: Any) -> Any:
    return x.meta["val"] if isinstance(x, fx.Node) else x
