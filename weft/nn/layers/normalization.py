"""Normalizations."""

from __future__ import annotations

from typing import Any

import weft.core as mx
from weft.nn.layers.base import Module


def _check_eps(name: str, eps: float) -> None:
    if eps <= 0.0:
        raise ValueError(f"[{name}] 'eps' must be positive but got {eps}.")


class _Affine(Module):
    """A normalization with a weight and a bias for each feature, if it is `affine`."""

    def _with_weights(self, dims: int, affine: bool, bias: bool = True) -> None:
        if affine:
            self.weight = mx.ones((dims,))
            if bias:
                self.bias = mx.zeros((dims,))

    def _weighted(self, x: mx.array) -> mx.array:
        return self.weight * x + self.bias if "weight" in self else x


class InstanceNorm(_Affine):
    """Each channel of each element of the batch has mean 0 and variance 1 over its positions: (N, …, C)."""

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = False) -> None:
        super().__init__()
        _check_eps("InstanceNorm", eps)
        self._with_weights(dims, affine)
        self.dims, self.eps = dims, eps

    def _extra_repr(self) -> str:
        return f"{self.dims}, eps={self.eps}, affine={'weight' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        if x.ndim < 3:
            raise ValueError(
                "InstanceNorm expects inputs with at least 3 dimensions (N, ..., C) but the input has "
                f"{x.ndim} dimensions."
            )
        places = mx.moveaxis(x, -1, 1)
        flat = mx.fast.layer_norm(places.flatten(2), None, None, self.eps)
        return self._weighted(mx.moveaxis(flat.reshape(places.shape), 1, -1))


class LayerNorm(_Affine):
    """Mean 0 and variance 1 over the last axis."""

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = True, bias: bool = True) -> None:
        super().__init__()
        _check_eps("LayerNorm", eps)
        self._with_weights(dims, affine, bias)
        self.eps, self.dims = eps, dims

    def _extra_repr(self) -> str:
        return f"{self.dims}, eps={self.eps}, affine={'weight' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, self.get("weight"), self.get("bias"), self.eps)


class RMSNorm(Module):
    """The mean of squares over the last axis is 1."""

    def __init__(self, dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        _check_eps("RMSNorm", eps)
        self.weight = mx.ones((dims,))
        self.eps = eps

    def _extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self["weight"], self.eps)


class GroupNorm(_Affine):
    """Mean 0 and variance 1 over the positions and the channels of each of some groups of channels: (N, …, C).

    A group is every num_groups-th channel, or with `pytorch_compatible` neighbouring ones.
    """

    def __init__(
        self, num_groups: int, dims: int, eps: float = 1e-5, affine: bool = True, pytorch_compatible: bool = False
    ) -> None:
        super().__init__()
        _check_eps("GroupNorm", eps)
        if num_groups <= 0:
            raise ValueError(f"The number of groups ({num_groups}) must be a positive integer.")
        if dims <= 0:
            raise ValueError(f"The number of features ({dims}) must be a positive integer.")
        if dims % num_groups:
            raise ValueError(
                f"The number of features ({dims}) must be evenly divisible by the number of groups ({num_groups})."
            )
        if affine:  # in MLX's order, in which programs walk over parameters
            self.bias, self.weight = mx.zeros((dims,)), mx.ones((dims,))
        self.num_groups, self.dims, self.eps = num_groups, dims, eps
        self.pytorch_compatible = pytorch_compatible

    def _extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.dims}, eps={self.eps}, affine={'weight' in self}, "
            f"pytorch_compatible={self.pytorch_compatible}"
        )

    def __call__(self, x: mx.array) -> mx.array:
        batch, dims = x.shape[0], x.shape[-1]
        if not self.pytorch_compatible:
            grouped = x.reshape(batch, -1, self.num_groups)
            centred = grouped - mx.mean(grouped, axis=1, keepdims=True)
            scaled = centred * mx.rsqrt(mx.var(grouped, axis=1, keepdims=True) + self.eps)
            return self._weighted(scaled.reshape(x.shape))
        size = dims // self.num_groups
        grouped = x.reshape(batch, -1, self.num_groups, size).swapaxes(1, 2)
        normed = mx.fast.layer_norm(grouped.flatten(2), None, None, self.eps)
        return self._weighted(normed.reshape(grouped.shape).swapaxes(1, 2).reshape(x.shape))


class BatchNorm(_Affine):
    """Each feature has mean 0 and variance 1 over the batch and all positions: (N, C), (N, L, C) or (N, H, W, C).

    While it is trained it uses what it sees, and keeps running means of that, which it uses otherwise.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        _check_eps("BatchNorm", eps)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.track_running_stats = track_running_stats
        self._with_weights(num_features, affine)
        if track_running_stats:
            self.running_mean = mx.zeros((num_features,))
            self.running_var = mx.ones((num_features,))
            self.freeze(keys=["running_mean", "running_var"], recurse=False)

    def unfreeze(self, *args: Any, **kwargs: Any) -> Module:
        """Undo `freeze`; statistics are never trained."""
        super().unfreeze(*args, **kwargs)
        return self.freeze(keys=["running_mean", "running_var"], recurse=False)

    def _extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={'weight' in self}, "
            f"track_running_stats={self.track_running_stats}"
        )

    def __call__(self, x: mx.array) -> mx.array:
        if not 2 <= x.ndim <= 4:
            raise ValueError(f"Expected input tensor to have 2, 3 or 4 dimensions, but got {x.ndim}")
        axes = tuple(range(x.ndim - 1))
        if self.training and x.size // x.shape[-1] == 1:
            raise ValueError("BatchNorm training requires more than one value per channel.")
        if self.training or not self.track_running_stats:
            mean, var = mx.mean(x, axis=axes), mx.var(x, axis=axes)
        else:
            mean, var = self.running_mean, self.running_var
        if self.training and self.track_running_stats:
            new, unbiased = self.momentum, mx.var(x, axis=axes, ddof=1)
            self.running_mean = (1 - new) * self.running_mean + new * mean
            self.running_var = (1 - new) * self.running_var + new * unbiased
        return self._weighted((x - mean) * mx.rsqrt(var + self.eps))
