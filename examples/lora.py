"""A small model is taught another manner with LoRA: `weft run examples/lora.py --help` (or `python`, on MLX itself).

Needs mlx-lm (`pip install mlx-lm`), which runs unchanged. A Qwen3 of two layers first learns to count up, all of its
weights. Then those are frozen and quantized to 8 bits, and low-rank adapters teach it to count down; without them it
counts up again.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step
from mlx_lm.models import qwen3
from mlx_lm.tuner.utils import linear_to_lora_layers, remove_lora_layers
from show import CONSOLE, Bar, curve

NUMBERS, LENGTH = 50, 12


def new_model() -> qwen3.Model:
    return qwen3.Model(
        qwen3.ModelArgs(
            model_type="qwen3", hidden_size=64, num_hidden_layers=2, intermediate_size=128, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, vocab_size=64, rms_norm_eps=1e-6, rope_theta=1e4,
            max_position_embeddings=64, tie_word_embeddings=True,
        )
    )  # fmt: skip


def train(label: str, model: nn.Module, direction: int, steps: int, rate: float) -> list[float]:
    """Teach what may be taught of a model to count in a direction; the losses."""
    optimizer, rng = optim.Adam(optim.cosine_decay(rate, steps)), np.random.default_rng(0)

    def loss(model: nn.Module, rows: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(rows[:, :-1]), rows[:, 1:], reduction="mean")

    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(rows: mx.array) -> mx.array:
        value, slopes = nn.value_and_grad(model, loss)(model, rows)
        optimizer.update(model, slopes)
        return value

    bar = Bar(label, steps)
    for _ in bar:
        starts = rng.integers(0, NUMBERS, (32, 1))
        value = step(mx.array((starts + direction * np.arange(LENGTH)) % NUMBERS))
        mx.eval(state, value)
        bar.loss(value.item())
    return bar.losses


def count(model: nn.Module, *numbers: int) -> list[int]:
    """What it says after these numbers."""
    return [int(token) for token, _ in generate_step(mx.array(numbers), model, max_tokens=8)]


def size(parameters: Any) -> int:
    return sum(value.size for _, value in tree_flatten(parameters))


def main(arguments: list[str] | None = None) -> dict[str, list[int]]:
    """Teach; what the model says after 20 and 21, 21 and 20: before, with adapters, and without them again."""
    parser = argparse.ArgumentParser(description="Teach a small model another manner with low-rank adapters.")
    parser.add_argument("--steps", type=int, default=400, help="steps of each part")
    parser.add_argument("--rank", type=int, default=8)
    options = parser.parse_args(arguments)
    mx.random.seed(0)
    begin, model = time.perf_counter(), new_model()
    train("counting up  ", model, +1, options.steps, 3e-3)
    model.freeze()
    nn.quantize(model, group_size=32, bits=8)
    said = {"before": count(model, 20, 21)}
    linear_to_lora_layers(model, 2, {"rank": options.rank, "scale": 10.0, "dropout": 0.0})
    adapters, all_of_it = size(model.trainable_parameters()), size(new_model().parameters())
    CONSOLE.print(f"{adapters:,} numbers in the adapters; {all_of_it:,} in the model, frozen, in 8 bits")
    losses = train("counting down", model, -1, options.steps, 4e-3)
    said["with adapters"] = count(model, 21, 20)
    remove_lora_layers(model)
    said["without them"] = count(model, 20, 21)
    CONSOLE.print(curve("loss of the adapters", losses, height=5))
    for when, numbers in said.items():
        given = "21, 20" if when == "with adapters" else "20, 21"
        CONSOLE.print(f"{when:>14}: {given} → {', '.join(map(str, numbers))}")
    CONSOLE.print(f"{time.perf_counter() - begin:.1f} s in all")
    return said


if __name__ == "__main__":
    main()
