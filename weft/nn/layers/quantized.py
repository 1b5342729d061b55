"""Layers whose weights are small integers with a scale for each group of neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import weft.core as mx
from weft.nn.layers.base import Module
from weft.utils import tree_map_with_path

_DEFAULTS = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}
"""(group size, bits) of each mode."""


def _options(mode: str, group_size: int | None, bits: int | None) -> tuple[int, int]:
    if mode not in _DEFAULTS:
        raise ValueError(f"Invalid quantization mode '{mode}'. Valid modes are: {', '.join(_DEFAULTS)}.")
    usual = _DEFAULTS[mode]
    return group_size or usual[0], bits or usual[1]


def quantize(
    model: Module,
    group_size: int | None = None,
    bits: int | None = None,
    *,
    mode: str = "affine",
    quantize_input: bool = False,
    class_predicate: Callable[[str, Module], bool | dict[str, Any]] | None = None,
) -> None:
    """Replace the layers of a model that can be quantized, or those that `class_predicate(path, layer)` chooses, with
    True or with the options of its `to_quantized`."""

    def replaced(path: str, layer: Module) -> Module:
        able = hasattr(layer, "to_quantized")
        chosen = able if class_predicate is None else class_predicate(path, layer)
        if not chosen:
            return layer
        if not able:
            raise ValueError(f"Unable to quantize model of type {type(layer)}")
        if isinstance(chosen, dict):
            options = {key: value for key, value in chosen.items() if key != "quantize_input" or value}
        elif isinstance(chosen, bool):
            options = {"group_size": group_size, "bits": bits, "mode": mode}
            options |= {"quantize_input": True} if quantize_input else {}
        else:
            raise ValueError(
                "``class_predicate`` must return a bool or a dict of parameters to pass to ``to_quantized``"
            )
        return layer.to_quantized(**options)

    model.update_modules(tree_map_with_path(replaced, model.leaf_modules(), is_leaf=Module.is_module))


class _Quantized(Module):
    """A matrix of quantized rows: `weight`, `scales` and, in affine mode, `biases`."""

    def _set_options(self, mode: str, group_size: int | None, bits: int | None) -> None:
        self.group_size, self.bits = _options(mode, group_size, bits)
        self.mode = mode

    def _set_weight(self, weight: mx.array) -> None:
        self.weight, self.scales, *biases = mx.quantize(weight, self.group_size, self.bits, mode=self.mode)
        self.biases = biases[0] if biases else None

    def _packing(self) -> dict[str, Any]:
        return {"group_size": self.group_size, "bits": self.bits, "mode": self.mode}

    def _product(self, x: mx.array) -> mx.array:
        return mx.quantized_matmul(
            x, self["weight"], self["scales"], self.get("biases"), True, self.group_size, self.bits, self.mode
        )

    def _described(self) -> str:
        return f"group_size={self.group_size}, bits={self.bits}, mode={self.mode}"


class QuantizedEmbedding(_Quantized):
    """`Embedding` with quantized vectors. It is frozen."""

    def __init__(
        self, num_embeddings: int, dims: int, group_size: int | None = None, bits: int | None = None,
        mode: str = "affine",
    ) -> None:  # fmt: skip
        super().__init__()
        self._set_options(mode, group_size, bits)
        self._set_weight(mx.random.normal((num_embeddings, dims), scale=math.sqrt(1 / dims)))
        self.num_embeddings, self.dims = num_embeddings, dims
        self.freeze()

    def _extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.dims}, {self._described()}"

    def __call__(self, x: mx.array) -> mx.array:
        biases = self.get("biases")
        return mx.dequantize(
            self["weight"][x], scales=self["scales"][x], biases=None if biases is None else biases[x],
            **self._packing(),
        )  # fmt: skip

    def as_linear(self, x: mx.array) -> mx.array:
        """The scores of all tokens."""
        return self._product(x)

    @classmethod
    def from_embedding(
        cls, embedding_layer: Module, group_size: int | None = None, bits: int | None = None, mode: str = "affine"
    ) -> QuantizedEmbedding:
        """The quantized form of an `Embedding`."""
        count, dims = embedding_layer.weight.shape
        made = cls(count, dims, group_size, bits, mode=mode)
        made._set_weight(embedding_layer.weight)
        return made


class QuantizedLinear(_Quantized):
    """`Linear` with quantized weights. It is frozen."""

    def __init__(
        self, input_dims: int, output_dims: int, bias: bool = True, group_size: int | None = None,
        bits: int | None = None, mode: str = "affine",
    ) -> None:  # fmt: skip
        super().__init__()
        self._set_options(mode, group_size, bits)
        scale = math.sqrt(1 / input_dims)
        self._set_weight(mx.random.uniform(-scale, scale, (output_dims, input_dims)))
        if bias:
            self.bias = mx.zeros((output_dims,))
        self.freeze()

    def _extra_repr(self) -> str:
        outputs, packed = self.weight.shape
        inputs = packed * 32 // self.bits
        return f"input_dims={inputs}, output_dims={outputs}, bias={'bias' in self}, {self._described()}"

    def __call__(self, x: mx.array) -> mx.array:
        made = self._product(x)
        return made + self["bias"] if "bias" in self else made

    @classmethod
    def from_linear(
        cls, linear_layer: Module, group_size: int | None = None, bits: int | None = None, mode: str = "affine"
    ) -> QuantizedLinear:
        """The quantized form of a `Linear`."""
        outputs, inputs = linear_layer.weight.shape
        made = cls(inputs, outputs, False, group_size, bits, mode=mode)
        made._set_weight(linear_layer.weight)
        if "bias" in linear_layer:
            made.bias = linear_layer.bias
        return made


class QQLinear(Module):
    """A linear map, without bias, of quantized weights and inputs that are quantized on the way. While it is trained
    its weights are plain numbers."""

    def __init__(
        self, input_dims: int, output_dims: int, group_size: int | None = None, bits: int | None = None,
        mode: str = "nvfp4",
    ) -> None:  # fmt: skip
        super().__init__()
        self.group_size, self.bits = _options(mode, group_size, bits)
        self.mode = mode
        scale = math.sqrt(1 / input_dims)
        self.weight = mx.random.uniform(-scale, scale, (output_dims, input_dims))
        self._quantized = False

    def _extra_repr(self) -> str:
        outputs, inputs = self.weight.shape
        inputs = inputs * 32 // self.bits if self.weight.dtype == mx.uint32 else inputs
        return (
            f"input_dims={inputs}, output_dims={outputs}, group_size={self.group_size}, bits={self.bits}, "
            f"mode={self.mode}"
        )

    def quantize(self) -> None:
        """Quantize the weights, if they are not."""
        if not self._quantized:
            self.weight, self.scales = mx.quantize(self.weight, self.group_size, self.bits, mode=self.mode)
            self._quantized = True

    def dequantize(self) -> None:
        """Turn quantized weights into plain numbers."""
        if self._quantized:
            self.weight = mx.dequantize(
                self.weight, scales=self.scales, group_size=self.group_size, bits=self.bits, mode=self.mode
            )
            del self.scales
            self._quantized = False

    def _set_training_mode(self, mode: bool) -> None:
        super()._set_training_mode(mode)
        if mode:
            self.dequantize()
        else:
            self.quantize()

    def __call__(self, x: mx.array) -> mx.array:
        return mx.qqmm(
            x, self["weight"], scales=self.get("scales"), group_size=self.group_size, bits=self.bits, mode=self.mode
        )

    @classmethod
    def from_linear(
        cls, linear_layer: Module, group_size: int | None = None, bits: int | None = None, mode: str = "nvfp4"
    ) -> QQLinear:
        """The quantized form of a `Linear` without bias."""
        if linear_layer.get("bias") is not None:
            raise NotImplementedError("QQLinear does not support bias yet.")
        outputs, inputs = linear_layer.weight.shape
        made = cls(inputs, outputs, group_size, bits, mode=mode)
        made.weight = linear_layer.weight
        made.train(linear_layer.training)
        return made
