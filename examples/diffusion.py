"""Pictures out of noise: `weft run examples/diffusion.py --help` (or `python`, on MLX itself).

A network learns to tell pictures of digits from the noise that was added to them, at sixty strengths of it. Then it
starts from noise alone and takes away what is noise, step by step: new digits, written to `out/diffusion.png`. The last
row shows one of them on its way.
"""

from __future__ import annotations

import argparse
import math
import time
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from digits import load_digits
from show import CONSOLE, Bar, as_text, curve, sheet, write_curves, write_png

LEVELS = 60
"""From almost no noise to nothing else."""


class Denoiser(nn.Module):
    """(noisy pictures, level, digit) -> the pictures without the noise."""

    def __init__(self, pixels: int, width: int = 256, blocks: int = 2) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(pixels, width), nn.Linear(width, pixels)
        self.level, self.digit = nn.Linear(32, width), nn.Embedding(10, width)
        self.norms = [nn.LayerNorm(width) for _ in range(blocks)]
        self.blocks = [nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
                       for _ in range(blocks)]  # fmt: skip

    def __call__(self, noisy: mx.array, level: mx.array, digit: mx.array) -> mx.array:
        angles = level[:, None] * mx.exp(mx.arange(16) * (-math.log(1000.0) / 16))
        about = self.level(mx.concatenate([mx.sin(angles), mx.cos(angles)], axis=-1)) + self.digit(digit)
        x = self.enter(noisy)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x + about))
        return self.leave(x)


def schedule() -> tuple[mx.array, mx.array]:
    """For each level: how much noise is added in that step, and what is left of the picture after all of them."""
    left = np.cos((np.arange(LEVELS + 1) / LEVELS + 0.01) / 1.01 * np.pi / 2) ** 2
    added = (1 - left[1:] / left[:-1]).clip(1e-4, 0.98)
    return mx.array(added.astype(np.float32)), mx.array(np.cumprod(1 - added).astype(np.float32))


def sample(model: Denoiser, digits: mx.array, pixels: int) -> list[mx.array]:
    """Pictures of these digits, from noise, at each level on the way."""
    added, left = schedule()

    @mx.compile
    def take_away(x: mx.array, level: mx.array, fresh: mx.array) -> mx.array:
        seen = mx.clip(model(x, mx.broadcast_to(level, digits.shape).astype(mx.float32), digits), -1, 1)
        before = mx.where(level > 0, left[mx.maximum(level - 1, 0)], 1.0)
        mean = mx.sqrt(before) * added[level] * seen + mx.sqrt(1 - added[level]) * (1 - before) * x
        spread = mx.sqrt(added[level] * (1 - before) / (1 - left[level]))
        return mean / (1 - left[level]) + spread * fresh

    x = mx.random.normal((digits.size, pixels))
    way = [x]
    for level in reversed(range(LEVELS)):
        x = take_away(x, mx.array(level), mx.random.normal(x.shape))
        mx.eval(x)
        way.append(x)
    return way


def main(arguments: list[str] | None = None) -> np.ndarray:
    """Train, and draw ten digits eight times; the pictures, (80, side, side)."""
    parser = argparse.ArgumentParser(description="Learn to draw digits, from noise.")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--drawn", action="store_true", help="learn from drawn digits, even if there are written ones")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the pictures")
    options = parser.parse_args(arguments)
    mx.random.seed(0)
    rng, begin = np.random.default_rng(0), time.perf_counter()
    images, labels, origin = load_digits(options.drawn, 4000)
    side = images.shape[1]
    clean = (1.5 * images - 0.3).clip(0, 1)  # without the grain of the paper
    data, digits = mx.array(2 * clean.reshape(len(images), -1) - 1), mx.array(labels)
    model = Denoiser(side**2)
    optimizer = optim.AdamW(optim.cosine_decay(1e-3, options.steps), weight_decay=0.0)
    _, left = schedule()
    CONSOLE.print(f"{len(images)} digits {origin}, {side} x {side} pixels")

    def loss(model: nn.Module, pictures: mx.array, digits: mx.array, levels: mx.array) -> mx.array:
        noise, rest = mx.random.normal(pictures.shape), left[levels][:, None]
        noisy = mx.sqrt(rest) * pictures + mx.sqrt(1 - rest) * noise
        return nn.losses.mse_loss(model(noisy, levels.astype(mx.float32), digits), pictures)

    state = [model.state, optimizer.state, mx.random.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(picked: mx.array) -> mx.array:
        levels = mx.random.randint(0, LEVELS, picked.shape)
        value, slopes = nn.value_and_grad(model, loss)(model, data[picked], digits[picked], levels)
        optimizer.update(model, slopes)
        return value

    bar = Bar("training", options.steps)
    for _ in bar:
        value = step(mx.array(rng.integers(0, len(images), options.batch)))
        mx.eval(state, value)
        bar.loss(value.item())
    way = [
        np.array(x).reshape(-1, side, side).clip(-1, 1) / 2 + 0.5 for x in sample(model, mx.arange(80) % 10, side**2)
    ]
    CONSOLE.print(curve("loss", bar.losses))
    for row in (0, 5):
        for lines in zip(*(as_text(image) for image in way[-1][row : row + 5]), strict=True):
            CONSOLE.print("  ".join(lines))
    shown = np.concatenate([way[-1], np.stack([x[3] for x in way[:: LEVELS // 9]])[:10]])
    CONSOLE.print(f"wrote {write_png(options.out / 'diffusion.png', sheet(shown, 10))}")
    CONSOLE.print(f"wrote {write_curves(options.out / 'diffusion_loss.png', bar.losses)}")
    CONSOLE.print(f"{time.perf_counter() - begin:.1f} s in all")
    return way[-1]


if __name__ == "__main__":
    main()
