"""Sums of products over the steps of a loop, made at once when it has ended.

The cotangent of a matrix that a loop's body multiplies with is a sum over all steps of products a @ b: of a few rows
only, whose sum goes through all of the matrix at every step. One product over the rows of all steps is the same sum,
at the speed of a large product. It needs the rows: those of `a` are mostly there already, those of `b` are stacked.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.graph.node import Node, Size
from weft.primitives.base import bind
from weft.primitives.contraction import Matmul, swap_last
from weft.primitives.elementwise import Add
from weft.primitives.views import Reshape, Transpose, reshape
from weft.records import dataclass

MOST_STACKED = 1 << 24
"""Bytes of the rows of one operand."""

FEW = 8
"""How many times smaller than the matrix rows must be: then adding their product to it costs more than the product."""


@dataclass(frozen=True)
class Product:
    """A term `views(swap(a) @ b)` of a sum over steps. `a` and `b` are rows of a loop, in any shape of (rows, k) and
    (rows, n)."""

    a: Node
    b: Node
    sizes: tuple[Size, Size, Size]
    views: tuple[Reshape | Transpose, ...]

    def total(self, a: Node, b: Node, steps: Size) -> Node:
        """The sum over all steps, of stacked rows."""
        rows, k, n = self.sizes
        whole = bind(Matmul(), swap_last(reshape(a, (steps * rows, k))), reshape(b, (steps * rows, n)))
        for view in reversed(self.views):
            whole = bind(view, whole)
        return whole


def split_sum(x: Node, steps: int | None, varies: Callable[[Node], bool]) -> tuple[list[Product], list[Node]]:
    """The terms of a sum: products whose rows may be stacked, and all others."""
    products: list[Product] = []
    others: list[Node] = []
    pending = [x]
    while pending:
        term = pending.pop()
        if isinstance(term.op, Add):
            pending.extend(term.inputs[::-1])
            continue
        found = _product(term, steps) if steps is not None and steps > 1 else None
        if found is not None and varies(found.a) and varies(found.b):
            products.append(found)
        else:
            others.append(term)
    return products, others


def _product(term: Node, steps: int) -> Product | None:
    """A term as a product of rows, if it is one, and its rows are small."""
    views: list[Reshape | Transpose] = []
    while isinstance(term.op, (Reshape, Transpose)):
        views.append(term.op)
        term = term.inputs[0]
    if not isinstance(term.op, Matmul) or term.ndim != 2 or term.kind.symbolic or not term.dtype.is_inexact:
        return None
    first, second = term.inputs
    (k, rows), n = first.shape, second.shape[1]
    if first.kind.symbolic or not 0 < rows * FEW <= min(k, n):
        return None
    if steps * math.prod((rows, max(k, n))) * term.dtype.size > MOST_STACKED:
        return None
    a = first.inputs[0] if isinstance(first.op, Transpose) else swap_last(first)
    return Product(_without_reshapes(a), _without_reshapes(second), (rows, k, n), tuple(views))


def _without_reshapes(x: Node) -> Node:
    """The same elements in the same order, in whatever shape they came."""
    while isinstance(x.op, Reshape):
        x = x.inputs[0]
    return x
