"""Matrix products. The bits of a product depend on operand values, shapes and dtypes only (docs/numerics.md)."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from weft import dtypes as dt
from weft.graph.dims import prod
from weft.graph.node import ArrayType, Node, Size, kind_of
from weft.primitives.base import KernelOperation, Multilinear, Sample, bind, flops_each, move_batch_to_front
from weft.primitives.checks import equal_shapes, need
from weft.primitives.elementwise import NUMBERS, conjugate, draw
from weft.primitives.views import reshape, transpose

FEW_ROWS: Final = 8
MANY_ROWS: Final = 64
SMALL_MATRIX: Final = 1 << 21
"""Bytes of a matrix that stays in the caches from one product to the next."""


class Matmul(Multilinear, KernelOperation):
    """x[..., m, k] @ y[..., k, n]; leading axes are equal and go together. Or y[k, n] for all of them: then the product
    is that of all rows of x, and so are the bits."""

    linear = (0, 1)
    dtypes = NUMBERS
    tolerance = {dt.float32: 16, dt.float64: 16, dt.complex64: 32, dt.complex128: 32, dt.float16: 1, dt.bfloat16: 1}
    samples = tuple(
        Sample(lambda rng, dtype, a=a, b=b: [draw(rng, dtype, a), draw(rng, dtype, b)], name=name)  # type: ignore[misc]
        for name, a, b in (
            ("small", (3, 5), (5, 4)), ("row", (1, 37), (37, 9)), ("column", (9, 37), (37, 1)),
            ("batch", (2, 3, 4, 5), (2, 3, 5, 6)), ("empty", (3, 0), (0, 4)), ("blas", (70, 80), (80, 90)),
            ("rows", (3, 2, 4, 5), (5, 6)), ("no_rows", (0, 4, 5), (5, 6)), ("long_rows", (5, 3, 130), (130, 9)),
        )
    )  # fmt: skip

    def infer(self, *kinds: ArrayType) -> ArrayType:
        x, y = kinds
        return kind_of((*x.shape[:-1], y.shape[-1]), x.dtype)

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return 2.0 * flops_each(out.dtype) * float(out.size) * float(kinds[0].shape[-1])

    def laid_out_once(self, *kinds: ArrayType) -> tuple[int, ...]:
        x, y = kinds
        sizes = (*x.shape, *y.shape)
        if any(type(n) is not int for n in sizes):
            return ()
        # Fewer rows are summed along columns of y as they lie; for more, copying y is a small part of the work.
        some = FEW_ROWS < math.prod(sizes[: x.ndim - 1]) < MANY_ROWS
        return (1,) if y.ndim == 2 and some and y.size * y.dtype.size <= SMALL_MATRIX else ()

    def check(self, x: ArrayType, y: ArrayType) -> None:
        self.check_dtypes(x, y)
        need(x.ndim >= y.ndim >= 2, f"operands {x} and {y}")
        together = y.ndim == 2 or equal_shapes(x.shape[:-2], y.shape[:-2])
        need(together and x.shape[-1] == y.shape[-2], f"operands {x} and {y}")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, y = values
        kind = dt.from_numpy(x.dtype)
        wide = {"f": np.float64, "c": np.complex128}.get(kind.kind, kind.np)
        return np.matmul(x.astype(wide), y.astype(wide)).astype(x.dtype)

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        x, y = primals
        if position == 0:
            return bind(self, cotangent, conjugate(swap_last(y)))
        if x.ndim > y.ndim:
            x, cotangent = all_rows(x), all_rows(cotangent)
        return bind(self, conjugate(swap_last(x)), cotangent)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        x, y = inputs
        if axes[1] is None and y.ndim == 2:
            return bind(self, move_batch_to_front(x, axes[0], size), y), 0
        many = x.ndim - (axes[0] is not None) > y.ndim - (axes[1] is not None)
        if many:  # each member of the batch has a matrix of its own, for all of its rows
            outer = move_batch_to_front(x, axes[0], size)
            inner = reshape(outer, (size, prod(outer.shape[1:-1]), outer.shape[-1]))
            product = bind(self, inner, move_batch_to_front(y, axes[1], size))
            return reshape(product, (*outer.shape[:-1], product.shape[-1])), 0
        x, y = (move_batch_to_front(operand, axis, size) for operand, axis in zip(inputs, axes, strict=True))
        return bind(self, x, y), 0


def all_rows(x: Node) -> Node:
    """The rows of all matrices, one after the other, as one matrix."""
    return reshape(x, (prod(x.shape[:-1]), x.shape[-1]))


def swap_last(x: Node) -> Node:
    """The last two axes exchanged."""
    order = tuple(range(x.ndim))
    return transpose(x, (*order[:-2], order[-1], order[-2]))
