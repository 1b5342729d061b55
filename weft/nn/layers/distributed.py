"""Layers whose weights are split over the processes of a group. In a group of one they are the plain layers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.nn.layers.base import Module
from weft.nn.layers.linear import Linear
from weft.nn.layers.quantized import QuantizedLinear
from weft.utils import tree_flatten, tree_map_with_path, tree_unflatten

Group = mx.distributed.Group
Segments = int | list[Any]
_SHARDINGS = ("all-to-sharded", "sharded-to-all")


@functools.lru_cache
def sum_gradients(group: Group) -> Callable[[mx.array], mx.array]:
    """The identity, whose gradient is summed over the group."""
    if group.size() == 1:
        return lambda x: x

    @mx.custom_function
    def identity(x: mx.array) -> mx.array:
        return x

    @identity.vjp
    def summed(x: mx.array, cotangent: mx.array, _: mx.array) -> mx.array:
        return mx.distributed.all_sum(cotangent, group=group)

    return identity


def _parts(weight: mx.array, segments: Segments, axis: int) -> list[mx.array]:
    """A weight cut into a number of equal parts, at indices, or at fractions of its size."""
    if isinstance(segments, int) or isinstance(segments[0], int):
        return mx.split(weight, segments, axis=axis)
    return mx.split(weight, [int(fraction * weight.shape[axis]) for fraction in segments], axis=axis)


def _shard(parameters: Any, predicate: Callable[[str, mx.array], Any], group: Group | None) -> Any:
    """The part of each parameter that this process holds: of each segment along the axis that the predicate says."""
    alone = group or mx.distributed.init()

    def own(path: str, weight: Any) -> Any:
        found = predicate(path, weight) if isinstance(weight, mx.array) else None
        if found is None:
            return weight
        if not isinstance(found, (int, tuple)):
            raise ValueError("The sharding function should return int or tuple[int, list]")
        axis, segments = found if isinstance(found, tuple) else (found, 1)
        kept = [_parts(part, alone.size(), axis)[alone.rank()] for part in _parts(weight, segments, axis)]
        return mx.contiguous(mx.concatenate(kept, axis=axis))

    return tree_map_with_path(own, parameters)


def _outputs_split(segments: Segments) -> Callable[[str, mx.array], Any]:
    def place(path: str, weight: mx.array) -> Any:
        return (-1 if path.endswith("bias") else max(weight.ndim - 2, 0)), segments

    return place


def _inputs_split(segments: Segments) -> Callable[[str, mx.array], Any]:
    def place(path: str, weight: mx.array) -> Any:
        return None if path.endswith("bias") else (-1, segments)

    return place


def _predicate(sharding: str, segments: Segments) -> Callable[[str, mx.array], Any]:
    if sharding not in _SHARDINGS:
        raise ValueError(
            f"Sharding type sharding={sharding!r} not supported, choose one of 'all-to-sharded' or 'sharded-to-all'"
        )
    return _outputs_split(segments) if sharding == "all-to-sharded" else _inputs_split(segments)


def shard_inplace(
    module: Module,
    sharding: str | Callable[[str, mx.array], Any],
    *,
    segments: Segments = 1,
    group: Group | None = None,
) -> None:
    """Keep only this process's part of a module's parameters."""
    predicate = _predicate(sharding, segments) if isinstance(sharding, str) else sharding
    module.update(_shard(module.parameters(), predicate, group))


def shard_linear(module: Module, sharding: str, *, segments: Segments = 1, group: Group | None = None) -> Module:
    """The sharded form of a linear layer, quantized or not."""
    _predicate(sharding, segments)
    plain = isinstance(module, Linear)
    if sharding == "all-to-sharded":
        cls: Any = AllToShardedLinear if plain else QuantizedAllToShardedLinear
    else:
        cls = ShardedToAllLinear if plain else QuantizedShardedToAllLinear
    made: Module = (cls.from_linear if plain else cls.from_quantized_linear)(module, segments=segments, group=group)
    return made


class _Sharded(Module):
    """A part of a linear layer: of its outputs, or of its inputs."""

    _splits_outputs: bool

    def _sizes(self, input_dims: int, output_dims: int, group: Group | None) -> tuple[int, int]:
        """(inputs, outputs) of this process's part."""
        self.group = group or mx.distributed.init()
        count = self.group.size()
        size = output_dims if self._splits_outputs else input_dims
        if size % count:
            raise ValueError(
                f"Cannot shard the output of size {size} across {count} devices."
                if self._splits_outputs
                else f"The input of size {size} cannot be sharded across {count} devices."
            )
        return (input_dims, size // count) if self._splits_outputs else (size // count, output_dims)

    def _whole(self, inputs: int, outputs: int) -> str:
        count = self.group.size()
        inputs, outputs = (inputs, outputs * count) if self._splits_outputs else (inputs * count, outputs)
        return f"input_dims={inputs}, output_dims={outputs}, bias={'bias' in self}"

    def _combined(self, x: mx.array, product: Callable[[mx.array], mx.array]) -> mx.array:
        if self._splits_outputs:
            made = product(sum_gradients(self.group)(x))
        else:
            made = mx.distributed.all_sum(product(x), group=self.group)
        return made + self["bias"] if "bias" in self else made


class _ShardedLinear(_Sharded):
    def __init__(self, input_dims: int, output_dims: int, bias: bool = True, group: Group | None = None) -> None:
        super().__init__()
        scale = math.sqrt(1.0 / input_dims)
        inputs, outputs = self._sizes(input_dims, output_dims, group)
        self.weight = mx.random.uniform(-scale, scale, (outputs, inputs))
        if bias:
            self.bias = mx.random.uniform(-scale, scale, (outputs,))

    def _extra_repr(self) -> str:
        return self._whole(self.weight.shape[1], self.weight.shape[0])

    def __call__(self, x: mx.array) -> mx.array:
        return self._combined(x, lambda x: x @ self["weight"].T)

    @classmethod
    def from_linear(cls, linear_layer: Module, *, segments: Segments = 1, group: Group | None = None) -> Any:
        """The part of a linear layer that this process holds."""
        outputs, inputs = linear_layer.weight.shape
        made = cls(inputs, outputs, "bias" in linear_layer, group)
        split = _outputs_split(segments) if cls._splits_outputs else _inputs_split(segments)
        made.update(_shard(linear_layer.parameters(), split, group))
        return made


class AllToShardedLinear(_ShardedLinear):
    """Every process gets all inputs and computes its part of the outputs."""

    _splits_outputs = True


class ShardedToAllLinear(_ShardedLinear):
    """Every process gets its part of the inputs; the outputs are summed over all."""

    _splits_outputs = False


class _QuantizedSharded(_Sharded):
    def __init__(
        self, input_dims: int, output_dims: int, bias: bool = True, group_size: int = 64, bits: int = 4,
        mode: str = "affine", group: Group | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        inputs, outputs = self._sizes(input_dims, output_dims, group)
        self.group_size, self.bits, self.mode = group_size, bits, mode
        made = QuantizedLinear(inputs, outputs, bias, group_size, bits, mode)
        self.weight, self.scales, self.biases = made.weight, made.scales, made.get("biases")
        if bias:
            self.bias = made.bias
        self.freeze()

    def unfreeze(self, *args: Any, **kwargs: Any) -> Module:
        """Undo `freeze` in modules inside; quantized weights stay frozen."""
        super().unfreeze(*args, **kwargs)
        return self.freeze(recurse=False)

    def _extra_repr(self) -> str:
        whole = self._whole(self.weight.shape[1] * 32 // self.bits, self.weight.shape[0])
        return f"{whole}, group_size={self.group_size}, bits={self.bits}, mode={self.mode}"

    def __call__(self, x: mx.array) -> mx.array:
        def product(x: mx.array) -> mx.array:
            return mx.quantized_matmul(
                x, self["weight"], scales=self["scales"], biases=self.get("biases"), transpose=True,
                group_size=self.group_size, bits=self.bits, mode=self.mode,
            )  # fmt: skip

        return self._combined(x, product)

    @classmethod
    def from_quantized_linear(
        cls, quantized_linear_layer: Module, *, segments: Segments = 1, group: Group | None = None
    ) -> Any:
        """The part of a quantized linear layer that this process holds."""
        layer = quantized_linear_layer
        outputs, packed = layer.weight.shape
        made = cls(
            packed * 32 // layer.bits, outputs, "bias" in layer, group_size=layer.group_size, bits=layer.bits,
            mode=getattr(layer, "mode", "affine"), group=group,
        )  # fmt: skip
        split = _outputs_split(segments) if cls._splits_outputs else _inputs_split(segments)
        made.update(_shard(layer.parameters(), split, group))
        return made


class QuantizedAllToShardedLinear(_QuantizedSharded):
    """`AllToShardedLinear` with quantized weights."""

    _splits_outputs = True


class QuantizedShardedToAllLinear(_QuantizedSharded):
    """`ShardedToAllLinear` with quantized weights."""

    _splits_outputs = False


def _own_parameters(module: Module, key: str, value: Any) -> bool:
    return not isinstance(value, FullyShardedModule) and Module.valid_parameter_filter(module, key, value)


class FullyShardedModule(Module):
    """A module of whose parameters each process holds a part, along the first axis; they are gathered for each call."""

    def __init__(self, module: Module, group: Group | None = None, compute_dtype: mx.Dtype | None = None) -> None:
        super().__init__()
        alone = group or mx.distributed.init()
        count = alone.size()
        whole = module.filter_and_map(_own_parameters)
        flat = tree_flatten(whole)
        for path, x in flat:
            if x.ndim == 0:
                raise ValueError(f"Cannot shard parameter '{path}' because it is a scalar.")
            if x.shape[0] % count:
                raise ValueError(
                    f"Cannot shard parameter '{path}' with shape {x.shape} across {count} devices: axis 0 must be "
                    f"divisible by {count}."
                )
        object.__setattr__(self, "_paths", [path for path, _ in flat])
        module.update(_shard(whole, lambda path, weight: 0, alone))
        self.module = module
        self._gather = _gathering(alone, [x.shape for _, x in flat], compute_dtype)

    def _extra_repr(self) -> str:
        return f"num_sharded_params={len(self._paths)}"

    def _called(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        own = self.module.filter_and_map(_own_parameters)
        whole = self._gather([x for _, x in tree_flatten(own)])
        self.module.update(tree_unflatten(list(zip(self._paths, whole, strict=True))))
        try:
            return function(*args, **kwargs)
        finally:
            self.module.update(own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(self.module, *args, **kwargs)

    def as_linear(self, *args: Any, **kwargs: Any) -> Any:
        """`as_linear` of the module inside."""
        return self._called(self.module.as_linear, *args, **kwargs)


def _gathering(
    group: Group, shapes: list[tuple[int, ...]], dtype: mx.Dtype | None
) -> Callable[[list[mx.array]], list[mx.array]]:
    """The function from this process's parts to whole parameters, all in one exchange; its gradient is averaged."""
    count = group.size()
    sizes = [math.prod(shape) // count for shape in shapes]
    cuts = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]

    @mx.custom_function
    def gather(parts: list[mx.array]) -> list[mx.array]:
        rows = [part.reshape(1, -1) if dtype is None else part.reshape(1, -1).astype(dtype) for part in parts]
        whole = mx.distributed.all_gather(mx.concatenate(rows, axis=1), group=group)
        pieces = mx.split(whole, cuts, axis=1)
        return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]

    @gather.vjp
    def scatter(parts: list[mx.array], cotangents: list[mx.array], _: Any) -> list[mx.array]:
        rows = mx.concatenate([cotangent.reshape(count, -1) for cotangent in cotangents], axis=1)
        own = mx.distributed.sum_scatter(rows, group=group) / count
        pieces = mx.split(own, cuts, axis=1)
        return [piece.reshape(part.shape).astype(part.dtype) for piece, part in zip(pieces, parts, strict=True)]

    return gather


def fully_shard(module: Module, *, group: Group | None = None, compute_dtype: mx.Dtype | None = None) -> Module:
    """A module whose parameters are spread over a group; the module itself if there is nothing to spread."""
    alone = group or mx.distributed.init()
    if alone.size() == 1 or isinstance(module, FullyShardedModule):
        return module
    made = FullyShardedModule(module, group=alone, compute_dtype=compute_dtype)
    return made if made._paths else module
