"""Modules made of modules."""

from __future__ import annotations

from typing import Any

from weft.nn.layers.base import Module


class Sequential(Module):
    """Modules or functions, one after the other.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.relu, nn.Linear(3, 1))
    >>> model(mx.ones((2, 4))).shape
    (2, 1)
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        self.layers = list(modules)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x
