"""Dropout: while a module is being trained, elements (or whole feature maps) are zeroed at random."""

from __future__ import annotations

from typing import ClassVar

import weft.core as mx
from weft.nn.layers.base import Module


class Dropout(Module):
    """Zeroes each element with probability p, and scales the others by 1 / (1 - p)."""

    _ranks: ClassVar[tuple[int, ...]] = ()
    """The numbers of axes that inputs may have; any, if none is given."""
    _shared: ClassVar[int] = 0
    """How many axes before the last one are zeroed together."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"The dropout probability {p} is not in [0, 1)")
        self._p_1 = 1 - p

    def _extra_repr(self) -> str:
        return f"p={1 - self._p_1}"

    def __call__(self, x: mx.array) -> mx.array:
        if self._ranks and x.ndim not in self._ranks:
            wanted = " or ".join(map(str, self._ranks))
            raise ValueError(f"Received input with {x.ndim} dimensions. Expected {wanted} dimensions.")
        if self._p_1 == 1 or not self.training:
            return x
        first = x.ndim - 1 - self._shared
        shape = (*x.shape[:first], *(1,) * self._shared, *x.shape[x.ndim - 1 :]) if self._shared else x.shape
        return mx.random.bernoulli(self._p_1, shape) * x * (1 / self._p_1)


class Dropout2d(Dropout):
    """Zeroes whole channels of (N, H, W, C) or (H, W, C)."""

    _ranks, _shared = (3, 4), 2


class Dropout3d(Dropout):
    """Zeroes whole channels of (N, D, H, W, C) or (D, H, W, C)."""

    _ranks, _shared = (4, 5), 3
