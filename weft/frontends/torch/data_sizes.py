"""Sizes that depend on data: which nodes bring them, what they are while a graph is traced, and what torch makes sure
of about them.

torch has a symbol for such a size, without a number, and says where in the value of a node it is (`unbacked_bindings`).
Here it is a size that the program computes (docs/program.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

import weft.core as mx
from weft.graph.dims import Dim
from weft.transforms.computed import computed_size

ITEM = "aten._local_scalar_dense.default"
CHECKS = frozenset({
    "aten._assert_scalar.default", "aten.sym_constrain_range_for_size.default", "aten.sym_constrain_range.default",
})  # fmt: skip
"""Nodes that make sure of something about sizes."""
ITEM_GUESS = 2


class CheckFailed(RuntimeError, ValueError):
    """What torch makes sure of does not hold, as torch says it; of the values of a call, or of guesses for them."""


Place = tuple[int | None, int | None]
"""Where a symbol stands in the value of a node: the number of the result (None if there is one only), and the axis
(None if it is the value itself)."""


def brings_sizes(node: fx.Node) -> bool:
    """Whether a node brings sizes that depend on data."""
    return bool(node.meta.get("unbacked_bindings"))


def symbols(node: fx.Node) -> dict[Any, Place]:
    """The symbols of sizes that depend on data which stand in the value of a node, and where. What a node brings may
    have had another name when torch recorded that."""
    bindings = (node.meta.get("unbacked_bindings") or {}).items()
    found = {symbol: place for symbol, path in bindings if (place := _place(path)) is not None}
    value = node.meta.get("val")
    if is_unbacked(value) and value.node.expr.is_Symbol:
        found.setdefault(value.node.expr, (None, None))
    for number, part in enumerate(value) if isinstance(value, (tuple, list)) else [(None, value)]:
        if isinstance(part, torch.Tensor):
            for axis, n in enumerate(part.shape):
                if is_unbacked(n) and n.node.expr.is_Symbol:
                    found.setdefault(n.node.expr, (number, axis))
    return found


def bound(node: fx.Node, made: Any, known: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    """Those symbols that are not known yet, with what they are for what a rule made of the node."""
    for symbol, (number, axis) in symbols(node).items():
        if symbol in known:
            continue
        array = made if number is None else made[number]
        if axis is not None:
            yield symbol, array.shape[axis]
        elif isinstance(array, mx.array):
            # A number that is no size stays an array.
            yield symbol, computed_size("item", array._node, ITEM_GUESS) if array.dtype.is_integer else array


def _place(path: Sequence[Any]) -> Place | None:
    """From the way that torch records: (result,) size, axis. None for what is no size: an offset in memory."""
    numbers = [key.idx for key in path if hasattr(key, "idx")]
    if not path:
        return None, None
    if any(getattr(key, "name", "size") != "size" for key in path) or not numbers:
        return None
    return (numbers[0], numbers[1]) if len(numbers) > 1 else (None, numbers[0])


def is_unbacked(size: Any) -> bool:
    """Whether torch has no number for a symbol."""
    return isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)) and size.node.hint is None


def has_unbacked(value: Any) -> bool:
    """Whether a size of a tensor depends on data."""
    return isinstance(value, torch.Tensor) and any(map(is_unbacked, (*value.shape, *value.stride())))


def confirm(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise an error if what a check makes sure of does not hold: a condition and a message, or a size and its least
    and largest value."""
    if name == "aten._assert_scalar.default":
        if not args[0]:
            raise CheckFailed(str(args[1]))
        return
    size, low, high = args[0], kwargs.get("min"), kwargs.get("max")
    if (low is not None and size < low) or (high is not None and size > high):
        shown = int(size) if isinstance(size, Dim) else size
        raise CheckFailed(f"Invalid value range for {shown} between [{low}, {high}].")
