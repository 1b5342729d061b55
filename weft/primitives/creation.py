"""Values made from nothing: the counting primitive, from which ranges, triangles and random streams are built by
fusion."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.graph.node import Kind, Node, Shape, Size, kind_of
from weft.primitives.base import Primitive, Sample, bind


class Iota(Primitive):
    """0, 1, 2, … in row-major order (int64). Costs no memory: kernels compute it from their loop indices, through any
    view."""

    shape: Shape
    dtypes = (dt.int64,)
    samples = (
        Sample(lambda rng, dtype: [], {"shape": (37,)}, False, "vector"),
        Sample(lambda rng, dtype: [], {"shape": (3, 5)}, False, "matrix"),
        Sample(lambda rng, dtype: [], {"shape": ()}, False, "scalar"),
    )

    def infer(self, *kinds: Kind) -> Kind:
        return kind_of(self.shape, dt.int64)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.arange(int(np.prod(self.shape, dtype=np.int64)), dtype=np.int64).reshape(self.shape)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: Any) -> Node | None:
        return None

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> Any:
        return {}

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self), None


class Extent(Primitive):
    """A size as a value (int64, 0-d). Only traces with symbolic sizes hold it: with a number for its symbol it is a
    constant."""

    size: Size
    dtypes = (dt.int64,)
    samples = (Sample(lambda rng, dtype: [], {"size": 5}, False, "five"),)

    def infer(self, *kinds: Kind) -> Kind:
        return kind_of((), dt.int64)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        return np.asarray(int(self.size), np.int64)

    def jvp(self, out: Node, primals: tuple[Node, ...], tangents: Any) -> Node | None:
        return None

    def vjp(self, out: Node, primals: tuple[Node, ...], cotangent: Node, wanted: frozenset[int]) -> Any:
        return {}

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        return bind(self), None
