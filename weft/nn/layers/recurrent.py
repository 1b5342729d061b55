"""Recurrent layers over the second-to-last axis: (…, steps, features). Each is one native loop (`mx.scan`), but a call
with one step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.nn.layers.activations import tanh
from weft.nn.layers.base import Module


def _uniform(scale: float, *shape: int) -> mx.array:
    return mx.random.uniform(-scale, scale, shape)


class _Recurrent(Module):
    def _start(self, given: mx.array | None, x: mx.array) -> mx.array:
        """The state before the first step: zeros, if none is given."""
        shape = (*x.shape[:-2], self.hidden_size)
        return mx.zeros(shape, x.dtype) if given is None else mx.broadcast_to(given, shape).astype(x.dtype)

    @staticmethod
    def _along(step: Callable[[Any, mx.array], tuple[Any, Any]], start: Any, x: mx.array) -> Any:
        """What the steps give, along the first axis."""
        if x.shape[-2] == 1:  # a decoder's step: making a loop takes longer than what is in it
            _, made = step(start, x.squeeze(-2))
            return [y[None] for y in made] if isinstance(made, list) else made[None]
        _, made = mx.scan(step, start, mx.moveaxis(x, -2, 0))
        return made


def _projected(x: mx.array, weight: mx.array, bias: mx.array | None) -> mx.array:
    return x @ weight.T if bias is None else mx.addmm(bias, x, weight.T)


class RNN(_Recurrent):
    """h = nonlinearity(Wxh x + Whh h + bias); gives h of every step."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: Callable[..., Any] | None = None
    ) -> None:
        super().__init__()
        self.nonlinearity = tanh if nonlinearity is None else nonlinearity
        if not callable(self.nonlinearity):
            raise ValueError(f"Nonlinearity must be callable. Current value: {nonlinearity}.")
        scale = 1.0 / math.sqrt(hidden_size)
        self.hidden_size = hidden_size
        self.Wxh = _uniform(scale, hidden_size, input_size)
        self.Whh = _uniform(scale, hidden_size, hidden_size)
        self.bias = _uniform(scale, hidden_size) if bias else None

    def _extra_repr(self) -> str:
        return (
            f"input_dims={self.Wxh.shape[1]}, hidden_size={self.hidden_size}, nonlinearity={self.nonlinearity}, "
            f"bias={self.bias is not None}"
        )

    def __call__(self, x: mx.array, hidden: mx.array | None = None) -> mx.array:
        weight = self.Whh.T
        inputs = _projected(x, self.Wxh, self.bias)

        def step(hidden: mx.array, now: mx.array) -> tuple[mx.array, mx.array]:
            new = self.nonlinearity(mx.addmm(now, hidden, weight))
            return new, new

        return mx.moveaxis(self._along(step, self._start(hidden, inputs), inputs), 0, -2)


class GRU(_Recurrent):
    """Gated recurrent units: gives h of every step."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        scale = 1.0 / math.sqrt(hidden_size)
        self.Wx = _uniform(scale, 3 * hidden_size, input_size)
        self.Wh = _uniform(scale, 3 * hidden_size, hidden_size)
        self.b = _uniform(scale, 3 * hidden_size) if bias else None
        self.bhn = _uniform(scale, hidden_size) if bias else None

    def _extra_repr(self) -> str:
        return f"input_dims={self.Wx.shape[1]}, hidden_size={self.hidden_size}, bias={self.b is not None}"

    def __call__(self, x: mx.array, hidden: mx.array | None = None) -> mx.array:
        n, weight = self.hidden_size, self.Wh.T
        inputs = _projected(x, self.Wx, self.b)

        def step(hidden: mx.array, now: mx.array) -> tuple[mx.array, mx.array]:
            seen = hidden @ weight
            reset, update = mx.split(mx.sigmoid(now[..., : 2 * n] + seen[..., : 2 * n]), 2, axis=-1)
            own = seen[..., 2 * n :] if self.bhn is None else seen[..., 2 * n :] + self.bhn
            new = mx.tanh(now[..., 2 * n :] + reset * own)
            new = (1 - update) * new + update * hidden
            return new, new

        return mx.moveaxis(self._along(step, self._start(hidden, inputs), inputs), 0, -2)


class LSTM(_Recurrent):
    """Long short-term memory: gives h and c of every step.

    >>> hidden, cell = nn.LSTM(4, 8)(mx.ones((2, 5, 4)))
    >>> hidden.shape, cell.shape
    ((2, 5, 8), (2, 5, 8))
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        scale = 1.0 / math.sqrt(hidden_size)
        self.Wx = _uniform(scale, 4 * hidden_size, input_size)
        self.Wh = _uniform(scale, 4 * hidden_size, hidden_size)
        self.bias = _uniform(scale, 4 * hidden_size) if bias else None

    def _extra_repr(self) -> str:
        return f"input_dims={self.Wx.shape[1]}, hidden_size={self.hidden_size}, bias={self.bias is not None}"

    def __call__(
        self, x: mx.array, hidden: mx.array | None = None, cell: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        weight = self.Wh.T
        inputs = _projected(x, self.Wx, self.bias)

        def step(state: list[mx.array], now: mx.array) -> tuple[list[mx.array], list[mx.array]]:
            hidden, cell = state
            gates = mx.addmm(now, hidden, weight)
            keep_in, forget, candidate, out = mx.split(gates, 4, axis=-1)
            cell = mx.sigmoid(forget) * cell + mx.sigmoid(keep_in) * mx.tanh(candidate)
            hidden = mx.sigmoid(out) * mx.tanh(cell)
            return [hidden, cell], [hidden, cell]

        start = [self._start(hidden, inputs), self._start(cell, inputs)]
        hiddens, cells = self._along(step, start, inputs)
        return mx.moveaxis(hiddens, 0, -2), mx.moveaxis(cells, 0, -2)
