"""Affine maps."""

from __future__ import annotations

import math
from typing import Any

import weft.core as mx
from weft.nn.layers.base import Module
from weft.nn.layers.quantized import QQLinear, QuantizedLinear


def _uniform(scale: float, *shape: int) -> mx.array:
    return mx.random.uniform(-scale, scale, shape)


class Identity(Module):
    """Gives what it gets, whatever it is made with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __call__(self, x: Any) -> Any:
        return x


class Linear(Module):
    """x @ weight.T + bias.

    >>> nn.Linear(3, 5)(mx.ones((2, 3))).shape
    (2, 5)
    """

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True) -> None:
        super().__init__()
        scale = math.sqrt(1.0 / input_dims)
        self.weight = _uniform(scale, output_dims, input_dims)
        if bias:
            self.bias = _uniform(scale, output_dims)

    def _extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        return f"input_dims={inputs}, output_dims={outputs}, bias={'bias' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        weight = self["weight"].T
        return mx.addmm(self["bias"], x, weight) if "bias" in self else x @ weight

    def to_quantized(
        self, group_size: int | None = None, bits: int | None = None, mode: str = "affine", quantize_input: bool = False
    ) -> Module:
        """The same map with quantized weights."""
        if not quantize_input:
            return QuantizedLinear.from_linear(self, group_size, bits, mode)
        if mode not in ("nvfp4", "mxfp8"):
            raise ValueError(f"Quantized activations are only supported for 'nvfp4' and 'mxfp8' modes, got {mode}.")
        return QQLinear.from_linear(self, group_size, bits, mode)


class Bilinear(Module):
    """y[k] = sum over i, j of x2[i] * weight[k, i, j] * x1[j], plus bias[k]."""

    def __init__(self, input1_dims: int, input2_dims: int, output_dims: int, bias: bool = True) -> None:
        super().__init__()
        scale = math.sqrt(1.0 / input1_dims)
        self.weight = _uniform(scale, output_dims, input2_dims, input1_dims)
        if bias:
            self.bias = _uniform(scale, output_dims)

    def _extra_repr(self) -> str:
        outputs, second, first = self.weight.shape
        return f"input1_dims={first}, input2_dims={second}, output_dims={outputs}, bias={'bias' in self}"

    def __call__(self, x1: mx.array, x2: mx.array) -> mx.array:
        outputs, second, first = self.weight.shape
        by_first = x1 @ self.weight.reshape(outputs * second, first).T
        by_first = by_first.reshape(*x1.shape[:-1], outputs, second)
        made = (by_first @ mx.expand_dims(x2, -1)).squeeze(-1)
        return made + self.bias if "bias" in self else made
