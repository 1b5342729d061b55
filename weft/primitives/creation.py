"""Values made from nothing: the counting primitive, from which ranges, triangles and random streams are built by
fusion."""

from __future__ import annotations

import numpy as np

from weft import dtypes as dt
from weft.graph.node import ArrayType, Node, Shape, Size, kind_of
from weft.primitives.base import Discrete, Sample, bind
from weft.primitives.checks import check_shape, need


class Iota(Discrete):
    """0, 1, 2, … in row-major order (int64). Costs no memory: kernels compute it from their loop indices, through any
    view."""

    shape: Shape
    dtypes = (dt.int64,)
    samples = (
        Sample(lambda rng, dtype: [], {"shape": (37,)}, False, "vector"),
        Sample(lambda rng, dtype: [], {"shape": (3, 5)}, False, "matrix"),
        Sample(lambda rng, dtype: [], {"shape": ()}, False, "scalar"),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of(self.shape, dt.int64)

    def check(self) -> None:
        check_shape(self.shape)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.arange(int(np.prod(self.shape, dtype=np.int64)), dtype=np.int64).reshape(self.shape)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self), None


class Extent(Discrete):
    """A size as a value (int64, 0-d). Only traces with symbolic sizes hold it: with a number for its symbol it is a
    constant."""

    size: Size
    dtypes = (dt.int64,)
    samples = (Sample(lambda rng, dtype: [], {"size": 5}, False, "five"),)

    def infer(self, *kinds: ArrayType) -> ArrayType:
        return kind_of((), dt.int64)

    def check(self) -> None:
        need(self.size >= 0, "a negative size")

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.asarray(int(self.size), np.int64)

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self), None
