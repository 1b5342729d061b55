"""Reading and writing at places that are data: gathers, scatters.

An index on an axis of n elements counts from the end if it is negative, and is then moved into [0, n): no index reads or writes foreign memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft import dtypes as dt
from weft.codegen import moves
from weft.codegen.launch import Layout, Lowering
from weft.graph.node import Kind, Node, Shape, Size, kind_of
from weft.primitives.base import Linear, Opaque, Sample, bind, move_batch_to_front
from weft.primitives.elementwise import draw

Where = tuple[int | None, ...]


def result_shape(where: Where, axes: Sequence[int], x: Shape, index: Shape) -> Shape:
    """The shape of a gather: index sizes along `axes`, sizes of x elsewhere."""
    sizes: dict[int, Size] = {axis: n for axis, n in zip(where, x, strict=True) if axis is not None}
    sizes.update(zip(axes, index, strict=True))
    return tuple(sizes[axis] for axis in range(len(sizes)))


def places(where: Where, axes: Sequence[int], x: Sequence[int], indices: Sequence[np.ndarray], shape: Sequence[int]) -> tuple[np.ndarray, ...]:
    """The index of every result element in x, one array per axis of x, in NumPy."""
    found: list[np.ndarray] = []
    arrays = iter(indices)
    grid = np.ogrid[tuple(slice(n) for n in shape)]
    for axis, n in zip(where, x, strict=True):
        if axis is not None:
            found.append(np.asarray(grid[axis]))
            continue
        index = next(arrays)
        wide = index.astype(object) if index.dtype == np.uint64 else index.astype(np.int64)
        wide = np.clip(np.where(wide < 0, wide + n, wide), 0, n - 1).astype(np.int64)
        sizes = [1] * len(shape)
        for k, a in enumerate(axes):
            sizes[a] = index.shape[k]
        found.append(wide.reshape(sizes))
    return tuple(np.broadcast_arrays(*found)) if found else ()


class Gather(Linear, Opaque):
    """Elements of x at places that index arrays give.

    Axis k of x is walked along axis where[k] of the result, or, where that is None, by the next of the index arrays, which all have one shape and run
    along `axes` of the result. An axis of the result that is in both walks x and the index arrays together.
    """

    where: Where
    axes: tuple[int, ...]

    def infer(self, *kinds: Kind) -> Kind:
        return kind_of(result_shape(self.where, self.axes, kinds[0].shape, kinds[1].shape), kinds[0].dtype)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, *indices = values
        shape = result_shape(self.where, self.axes, x.shape, indices[0].shape)
        return x[places(self.where, self.axes, x.shape, indices, shape)].reshape(shape)

    def lower(self, operands: Sequence[Layout], out: Layout) -> Lowering:
        return moves.gather(operands[0], operands[1:], out, self.where, self.axes)
