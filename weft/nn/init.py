"""Initializers: functions that make an array like another one, for `module.apply(initializer)`."""

from __future__ import annotations

import math
from collections.abc import Callable

import weft.core as mx

Initializer = Callable[..., mx.array]


def constant(value: float, dtype: mx.Dtype = mx.float32) -> Initializer:
    """One number everywhere.

    >>> nn.init.constant(0.5)(mx.zeros((2,)))
    array([0.5, 0.5], dtype=float32)
    """
    return lambda a: mx.full(a.shape, value, dtype=dtype)


def normal(mean: float = 0.0, std: float = 1.0, dtype: mx.Dtype = mx.float32) -> Initializer:
    """Normal numbers."""
    return lambda a: mx.random.normal(a.shape, dtype=dtype, loc=mean, scale=std)


def uniform(low: float = 0.0, high: float = 1.0, dtype: mx.Dtype = mx.float32) -> Initializer:
    """Numbers that are uniform between `low` and `high`."""
    return lambda a: mx.random.uniform(low, high, a.shape, dtype=dtype)


def identity(dtype: mx.Dtype = mx.float32) -> Initializer:
    """An identity matrix."""

    def initializer(a: mx.array) -> mx.array:
        if a.ndim != 2 or a.shape[0] != a.shape[1]:
            raise ValueError(f"The input array must be a square matrix but got shape {a.shape}.")
        return mx.eye(a.shape[0], dtype=dtype)

    return initializer


def _fans(a: mx.array) -> tuple[int, int]:
    """How many inputs an output has, and how many outputs an input has."""
    if a.ndim < 2:
        raise ValueError(
            f"Glorot / He initialization requires at least 2 dimensional input but input with {a.ndim} dimensions."
        )
    places = math.prod(a.shape[1:-1])
    return a.shape[-1] * places, a.shape[0] * places


def _fan(a: mx.array, mode: str) -> int:
    fans = dict(zip(("fan_in", "fan_out"), _fans(a), strict=True))
    if mode not in fans:
        raise ValueError(f"Invalid mode: {mode}. Valid modes are: fan_in, fan_out")
    return fans[mode]


def glorot_normal(dtype: mx.Dtype = mx.float32) -> Initializer:
    """Normal numbers of variance 2 / (inputs + outputs), times gain²."""

    def initializer(a: mx.array, gain: float = 1.0) -> mx.array:
        return mx.random.normal(a.shape, dtype=dtype, scale=gain * math.sqrt(2.0 / sum(_fans(a))))

    return initializer


def glorot_uniform(dtype: mx.Dtype = mx.float32) -> Initializer:
    """Uniform numbers of variance 2 / (inputs + outputs), times gain²."""

    def initializer(a: mx.array, gain: float = 1.0) -> mx.array:
        limit = gain * math.sqrt(6.0 / sum(_fans(a)))
        return mx.random.uniform(-limit, limit, a.shape, dtype=dtype)

    return initializer


def he_normal(dtype: mx.Dtype = mx.float32) -> Initializer:
    """Normal numbers of variance gain² / inputs (or outputs, with mode "fan_out")."""

    def initializer(a: mx.array, mode: str = "fan_in", gain: float = 1.0) -> mx.array:
        return mx.random.normal(a.shape, dtype=dtype, scale=gain / math.sqrt(_fan(a, mode)))

    return initializer


def he_uniform(dtype: mx.Dtype = mx.float32) -> Initializer:
    """Uniform numbers of variance gain² / inputs (or outputs, with mode "fan_out")."""

    def initializer(a: mx.array, mode: str = "fan_in", gain: float = 1.0) -> mx.array:
        limit = gain * math.sqrt(3.0 / _fan(a, mode))
        return mx.random.uniform(-limit, limit, a.shape, dtype=dtype)

    return initializer


def sparse(sparsity: float, mean: float = 0.0, std: float = 1.0, dtype: mx.Dtype = mx.float32) -> Initializer:
    """Normal numbers, of which a part (`sparsity`) of each row is zero."""

    def initializer(a: mx.array) -> mx.array:
        if a.ndim != 2:
            raise ValueError("Only tensors with 2 dimensions are supported")
        rows, columns = a.shape
        count = math.ceil(sparsity * columns)
        order = mx.argsort(mx.random.uniform(shape=a.shape), axis=1)
        made = mx.random.normal(a.shape, dtype=dtype, loc=mean, scale=std)
        made[mx.arange(rows).reshape(rows, 1), order[:, :count]] = 0
        return made

    return initializer


def orthogonal(gain: float = 1.0, dtype: mx.Dtype = mx.float32) -> Initializer:
    """A part of a random orthogonal matrix, times gain."""

    def initializer(a: mx.array) -> mx.array:
        if a.ndim != 2:
            raise ValueError(f"Orthogonal initialization requires a 2D array but got a {a.ndim}D array.")
        rows, columns = a.shape
        n = max(rows, columns)
        q, r = mx.linalg.qr(mx.random.normal((n, n)))
        return ((q * mx.sign(mx.diag(r)))[:rows, :columns] * gain).astype(dtype)

    return initializer


__all__ = [
    "constant", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "identity", "normal", "orthogonal",
    "sparse", "uniform",
]  # fmt: skip
