"""Activation functions, and a module for each.

They are plain functions: evaluation fuses them with what stands around them, so there is nothing to compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.nn.layers.base import Module


def sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + exp(-x))."""
    return mx.sigmoid(x)


def relu(x: mx.array) -> mx.array:
    """max(x, 0).

    >>> nn.relu(mx.array([-1.0, 2.0]))
    array([0, 2], dtype=float32)
    """
    return mx.maximum(x, 0)


def relu2(x: mx.array) -> mx.array:
    """max(x, 0)²."""
    return mx.square(mx.maximum(x, 0))


def relu6(x: mx.array) -> mx.array:
    """min(max(x, 0), 6)."""
    return mx.minimum(mx.maximum(x, 0), 6.0)


def leaky_relu(x: mx.array, negative_slope: float = 0.01) -> mx.array:
    """max(negative_slope * x, x)."""
    return mx.maximum(negative_slope * x, x)


def log_softmax(x: mx.array, axis: int = -1) -> mx.array:
    """log(softmax(x)) along an axis."""
    return x - mx.logsumexp(x, axis=axis, keepdims=True)


def elu(x: mx.array, alpha: float = 1.0) -> mx.array:
    """x where it is positive, alpha * (exp(x) - 1) elsewhere."""
    return mx.where(x > 0, x, alpha * (mx.exp(x) - 1))


def softmax(x: mx.array, axis: int = -1) -> mx.array:
    """exp(x) / sum(exp(x)) along an axis."""
    return mx.softmax(x, axis=axis)


def softplus(x: mx.array) -> mx.array:
    """log(1 + exp(x))."""
    return mx.logaddexp(x, 0)


def softsign(x: mx.array) -> mx.array:
    """x / (1 + |x|)."""
    return x / (1 + mx.abs(x))


def softshrink(x: mx.array, lambd: float = 0.5) -> mx.array:
    """x moved by lambd towards 0, and 0 where that is reached."""
    return mx.where(mx.abs(x) > lambd, x - mx.sign(x) * lambd, 0)


def celu(x: mx.array, alpha: float = 1.0) -> mx.array:
    """max(x, 0) + alpha * (exp(min(x, 0) / alpha) - 1)."""
    return mx.maximum(x, 0.0) + alpha * (mx.exp(mx.minimum(x, 0.0) / alpha) - 1)


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x)."""
    return x * mx.sigmoid(x)


def log_sigmoid(x: mx.array) -> mx.array:
    """log(sigmoid(x))."""
    return -softplus(-x)


def gelu(x: mx.array) -> mx.array:
    """x times the probability that a normal number is below x."""
    return x * (1 + mx.erf(x / math.sqrt(2))) / 2


def gelu_approx(x: mx.array) -> mx.array:
    """`gelu` by a tanh, to about 0.0005."""
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_fast_approx(x: mx.array) -> mx.array:
    """`gelu` by a sigmoid, to about 0.015."""
    return x * mx.sigmoid(1.702 * x)


def glu(x: mx.array, axis: int = -1) -> mx.array:
    """The first half of x along an axis, times the sigmoid of the second."""
    value, gate = mx.split(x, 2, axis=axis)
    return value * mx.sigmoid(gate)


def step(x: mx.array, threshold: float = 0.0) -> mx.array:
    """1 from the threshold on, 0 below it."""
    return mx.where(x >= threshold, 1, 0)


def selu(x: mx.array) -> mx.array:
    """`elu` with the constants that keep mean 0 and variance 1."""
    return elu(x, 1.67326) * 1.0507


def prelu(x: mx.array, alpha: mx.array) -> mx.array:
    """max(0, x) + alpha * min(0, x)."""
    return mx.maximum(0, x) + alpha * mx.minimum(0, x)


def mish(x: mx.array) -> mx.array:
    """x * tanh(softplus(x))."""
    return x * mx.tanh(softplus(x))


def hardswish(x: mx.array) -> mx.array:
    """x * min(max(x + 3, 0), 6) / 6."""
    return x * mx.minimum(mx.maximum(x + 3, 0), 6) / 6


def hard_tanh(x: mx.array, min_val: float = -1.0, max_val: float = 1.0) -> mx.array:
    """x, no less than min_val and no more than max_val."""
    return mx.minimum(mx.maximum(x, min_val), max_val)


def hard_shrink(x: mx.array, lambd: float = 0.5) -> mx.array:
    """x where it is more than lambd away from 0, else 0."""
    return mx.where(mx.abs(x) > lambd, x, 0)


def softmin(x: mx.array, axis: int = -1) -> mx.array:
    """`softmax` of -x."""
    return mx.softmax(-x, axis=axis)


def tanh(x: mx.array) -> mx.array:
    """The hyperbolic tangent."""
    return mx.tanh(x)


def _module(name: str, function: Callable[..., mx.array]) -> type[Module]:
    """The module that applies a function, with its defaults."""

    def call(self: Module, x: mx.array) -> mx.array:
        return function(x)

    return type(name, (Module,), {"__call__": call, "__doc__": function.__doc__, "__module__": __name__})


Sigmoid = _module("Sigmoid", sigmoid)
Mish = _module("Mish", mish)
ReLU = _module("ReLU", relu)
ReLU2 = _module("ReLU2", relu2)
ReLU6 = _module("ReLU6", relu6)
Softmax = _module("Softmax", softmax)
Softplus = _module("Softplus", softplus)
Softsign = _module("Softsign", softsign)
SiLU = _module("SiLU", silu)
LogSoftmax = _module("LogSoftmax", log_softmax)
LogSigmoid = _module("LogSigmoid", log_sigmoid)
Tanh = _module("Tanh", tanh)
Hardswish = _module("Hardswish", hardswish)
SELU = _module("SELU", selu)
HardTanh = _module("HardTanh", hard_tanh)
Softmin = _module("Softmin", softmin)


class GLU(Module):
    """`glu` along an axis."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def __call__(self, x: mx.array) -> mx.array:
        return glu(x, self.axis)


class LeakyReLU(Module):
    """`leaky_relu`."""

    def __init__(self, negative_slope: float = 0.01) -> None:
        super().__init__()
        self._negative_slope = negative_slope

    def __call__(self, x: mx.array) -> mx.array:
        return leaky_relu(x, self._negative_slope)


class ELU(Module):
    """`elu`."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self._alpha = alpha

    def __call__(self, x: mx.array) -> mx.array:
        return elu(x, self._alpha)


class CELU(Module):
    """`celu`."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self._alpha = alpha

    def __call__(self, x: mx.array) -> mx.array:
        return celu(x, self._alpha)


class Softshrink(Module):
    """`softshrink`."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def __call__(self, x: mx.array) -> mx.array:
        return softshrink(x, self.lambd)


class HardShrink(Module):
    """`hard_shrink`."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def __call__(self, x: mx.array) -> mx.array:
        return hard_shrink(x, self.lambd)


class Step(Module):
    """`step`."""

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__()
        self.threshold = threshold

    def __call__(self, x: mx.array) -> mx.array:
        return step(x, self.threshold)


class PReLU(Module):
    """`prelu`, with a slope that is learnt: one for all, or one for each of `num_parameters` features."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.weight = mx.full((num_parameters,), init)

    def __call__(self, x: mx.array) -> mx.array:
        return prelu(x, self.weight)


_GELUS: dict[str, Callable[[mx.array], mx.array]] = {
    "none": gelu, "precise": gelu_approx, "tanh": gelu_approx, "fast": gelu_fast_approx,
}  # fmt: skip


class GELU(Module):
    """`gelu`, exact ("none") or approximated ("precise" or "tanh", "fast")."""

    def __init__(self, approx: str = "none") -> None:
        super().__init__()
        if approx not in _GELUS:
            raise ValueError(f"The approximation should be in {[*_GELUS]} but '{approx}' was given")
        self._approx = approx

    def __call__(self, x: mx.array) -> Any:
        return _GELUS[self._approx](x)
