"""Models as their configurations make them, with random weights: what tests and benchmarks of torch on Weft run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Made = tuple[nn.Module, tuple[Any, ...]]


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.down = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride > 1 or inputs != outputs
            else nn.Identity()
        )

    def forward(self, x: Any) -> Any:
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(h)) + self.down(x))


class ResNet18(nn.Module):
    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        sizes = [width, width, width * 2, width * 4, width * 8]
        self.blocks = nn.Sequential(
            *[
                Block(sizes[k] if j == 0 else sizes[k + 1], sizes[k + 1], 2 if j == 0 and k else 1)
                for k in range(4)
                for j in range(2)
            ]
        )
        self.head = nn.Linear(width * 8, classes)

    def forward(self, x: Any) -> Any:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


class Inverted(nn.Module):
    """A block of MobileNetV3: wider, depthwise, squeezed and excited, narrower."""

    def __init__(self, inputs: int, wide: int, outputs: int, kernel: int, stride: int, squeeze: bool) -> None:
        super().__init__()
        self.around = stride == 1 and inputs == outputs
        self.expand = nn.Sequential(nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish())
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False), nn.BatchNorm2d(wide),
            nn.Hardswish(),
        )  # fmt: skip
        self.squeeze = (
            nn.Sequential(
                nn.AdaptiveAvgPool2d(1),
                nn.Conv2d(wide, wide // 4, 1),
                nn.ReLU(),
                nn.Conv2d(wide // 4, wide, 1),
                nn.Hardsigmoid(),
            )
            if squeeze
            else None
        )
        self.project = nn.Sequential(nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Any) -> Any:
        h = self.depth(self.expand(x))
        if self.squeeze is not None:
            h = h * self.squeeze(h)
        h = self.project(h)
        return x + h if self.around else h


class MobileNetV3(nn.Module):
    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish(),
            Inverted(width, width * 2, width, 3, 1, False), Inverted(width, width * 4, width * 2, 3, 2, True),
            Inverted(width * 2, width * 6, width * 2, 5, 1, True),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(width * 2, width * 8), nn.Hardswish(), nn.Linear(width * 8, classes))

    def forward(self, x: Any) -> Any:
        return self.head(self.layers(x).mean((2, 3)))


class Lstm(nn.Module):
    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))
        self.head = nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        """x is (time, batch, width)."""
        for cell in self.cells:
            h = c = x.new_zeros(x.shape[1], x.shape[2])
            outputs = []
            for step in x.unbind(0):
                h, c = cell(step, (h, c))
                outputs.append(h)
            x = torch.stack(outputs)
        return self.head(x)


class Residual(nn.Module):
    """A block of a diffusion model: group norms, convolutions, and the time."""

    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, inputs), nn.Conv2d(inputs, outputs, 3, 1, 1)
        self.norm2, self.conv2 = nn.GroupNorm(4, outputs), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.time = nn.Linear(times, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Any, time: Any) -> Any:
        h = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(h))) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width * 2), nn.SiLU(), nn.Linear(width * 2, width * 2))
        self.width = width
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.down = Residual(width, width * 2, width * 2)
        self.smaller = nn.Conv2d(width * 2, width * 2, 3, 2, 1)
        self.middle = Residual(width * 2, width * 2, width * 2)
        self.attention = nn.MultiheadAttention(width * 2, 4, batch_first=True)
        self.up = Residual(width * 4, width, width * 2)
        self.last = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 3, 1, 1))

    def forward(self, x: Any, t: Any) -> Any:
        frequencies = torch.exp(-torch.arange(self.width // 2, dtype=x.dtype) / self.width * 8)
        angles = t[:, None].to(x.dtype) * frequencies[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        high = self.down(self.first(x), time)
        low = self.middle(self.smaller(high), time)
        n, c, rows, columns = low.shape
        flat = low.flatten(2).transpose(1, 2)
        low = low + self.attention(flat, flat, flat, need_weights=False)[0].transpose(1, 2).reshape(n, c, rows, columns)
        bigger = F.interpolate(low, scale_factor=2, mode="nearest")
        return self.last(self.up(torch.cat([bigger, high], 1), time))


class Mixture(nn.Module):
    """Experts, of which each token goes to two."""

    def __init__(self, width: int = 32, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, width * 2) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, width * 2, width) * 0.1)
        self.norm = nn.RMSNorm(width)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        weights, chosen = self.gate(h).softmax(-1).topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        share = torch.zeros_like(self.gate(h)).scatter(-1, chosen, weights)
        inner = F.silu(torch.einsum("btd,edf->btef", h, self.up))
        return x + torch.einsum("btef,efd,bte->btd", inner, self.down, share)


def gpt2(width: int = 32, layers: int = 2, tokens: int = 12, batch: int = 2, vocabulary: int = 100) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel  # an optional dependency

    config = GPT2Config(
        vocab_size=vocabulary, n_positions=max(64, tokens), n_embd=width, n_layer=layers, n_head=4, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config), (torch.randint(0, vocabulary, (batch, tokens)),)


def llama(width: int = 32, layers: int = 2, tokens: int = 12, batch: int = 2, vocabulary: int = 100) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM  # an optional dependency

    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 3, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=max(64, tokens), use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config), (torch.randint(0, vocabulary, (batch, tokens)),)


def bert(width: int = 32, layers: int = 2, tokens: int = 12, batch: int = 2, vocabulary: int = 100) -> Made:
    from transformers import BertConfig, BertModel  # an optional dependency

    config = BertConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=4,
        intermediate_size=width * 4, max_position_embeddings=max(64, tokens), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertModel(config), (torch.randint(0, vocabulary, (batch, tokens)),)


def vit(width: int = 32, layers: int = 2, size: int = 32, batch: int = 2) -> Made:
    from transformers import ViTConfig, ViTForImageClassification  # an optional dependency

    config = ViTConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=width * 4,
        image_size=size, patch_size=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config), (torch.randn(batch, 3, size, size),)


SMALL: dict[str, Callable[[], Made]] = {
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
    "vit": vit,
    "resnet18": lambda: (ResNet18(8, 10), (torch.randn(2, 3, 64, 64),)),
    "mobilenet_v3": lambda: (MobileNetV3(8), (torch.randn(2, 3, 32, 32),)),
    "lstm": lambda: (Lstm(16), (torch.randn(5, 3, 16),)),
    "unet": lambda: (UNet(), (torch.randn(2, 3, 16, 16), torch.tensor([3, 500]))),
    "mixture": lambda: (Mixture(), (torch.randn(2, 7, 32),)),
}


def tensor_of(output: Any) -> Any:
    """The tensor that matters in what a model gives."""
    if isinstance(output, torch.Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        if getattr(output, name, None) is not None:
            return getattr(output, name)
    return output[0]
