"""How tensors lie in memory. Weft's programs read and write row-major arrays; a tensor whose elements lie without gaps,
in whatever order of its axes (channels last, transposed), is one that has its axes in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Order = tuple[int, ...]
SOME_SIZE = 1_000_003
"""Stands for a size that depends on data where only the order of strides counts."""


def number(n: Any) -> int:
    """A size, or the one that torch traced with if it is a symbol; some large one if that depends on data."""
    if type(n) is int:
        return n
    hint = n.node.hint
    if hint is not None:
        return int(hint)
    return int(n.node.expr.subs(dict.fromkeys(n.node.expr.free_symbols, SOME_SIZE)))


def memory_order(tensor: Any) -> Order | None:
    """The axes of a (fake) tensor in the order in which they lie in memory, the outermost first; None if there are gaps
    or elements are shared."""
    sizes = [number(n) for n in tensor.shape]
    strides = [number(n) for n in tensor.stride()]
    if 0 in sizes or is_row_major(sizes, strides):
        return tuple(range(len(sizes)))
    order = sorted(range(len(sizes)), key=lambda axis: (-strides[axis], sizes[axis] == 1))
    expected = 1
    for axis in reversed(order):
        if sizes[axis] == 1:
            continue
        if strides[axis] != expected:
            return None
        expected *= sizes[axis]
    return tuple(order)


def is_row_major(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for n, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True


def is_identity(order: Order) -> bool:
    return order == tuple(range(len(order)))


def inverse(order: Order) -> Order:
    return tuple(order.index(axis) for axis in range(len(order)))


def dense_strides(sizes: Sequence[int], order: Order) -> tuple[int, ...]:
    """The strides of a tensor of these sizes that lies in this order without gaps. Size 1 counts as torch has it."""
    strides = [0] * len(sizes)
    step = 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(sizes[axis], 1)
    return tuple(strides)


def laid_out(tensor: torch.Tensor, order: Order) -> torch.Tensor:
    """A tensor whose elements lie in this order: itself if they do."""
    if is_identity(order):
        return tensor.contiguous()
    moved = tensor.permute(order)
    return tensor if moved.is_contiguous() else moved.contiguous().permute(inverse(order))
