"""A network learns to read digits: `weft run examples/digits.py --help` (or `python`, on MLX itself).

Plain MLX: `mlx.nn` for the layers, `mlx.optimizers`, a step compiled with the state it changes. `--model cnn`
convolves, `--model mlp` does not. The digits are scikit-learn's (1,797 of 8 x 8 pixels, written by hand) where that is
installed, else train_mlp.py draws some.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from show import CONSOLE, Bar, as_text, curve, write_curves


class CNN(nn.Module):
    """Two convolutions, each halving the picture, and a layer that decides."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.pool, self.drop = nn.MaxPool2d(2, 2), nn.Dropout(0.2)
        self.decide = nn.Linear(32 * (side // 4) ** 2, 10)

    def __call__(self, images: mx.array) -> mx.array:
        x = self.pool(nn.relu(self.first(images[..., None])))
        x = self.pool(nn.relu(self.second(x)))
        return self.decide(self.drop(mx.flatten(x, 1)))


class MLP(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(side**2, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    def __call__(self, images: mx.array) -> mx.array:
        return self.layers(mx.flatten(images, 1))


MODELS = {"cnn": CNN, "mlp": MLP}


def load_digits(drawn: bool, count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """Images of 0 … 1 and their labels, shuffled, and where they are from."""
    try:
        if drawn:
            raise ImportError
        from sklearn.datasets import load_digits as written
    except ImportError:
        from train_mlp import SIDE, draw_digits

        images, labels = draw_digits(count, seed=0)
        halved = images.reshape(-1, SIDE // 2, 2, SIDE // 2, 2).mean((2, 4))
        return halved, labels, "drawn by train_mlp.py"
    found = written()
    order = np.random.default_rng(0).permutation(len(found.target))[:count]
    return (found.images[order] / 16).astype(np.float32), found.target[order], "written by hand (scikit-learn)"


def main(arguments: list[str] | None = None) -> float:
    """Train; the share of digits it reads that it has never seen."""
    parser = argparse.ArgumentParser(description="Train a network to read digits.")
    parser.add_argument("--model", choices=MODELS, default="cnn")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--images", type=int, default=6000, help="how many digits at most")
    parser.add_argument("--drawn", action="store_true", help="drawn digits, even if there are written ones")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture of the curve")
    options = parser.parse_args(arguments)
    mx.random.seed(0)
    order = np.random.default_rng(0)
    images, labels, origin = load_digits(options.drawn, options.images)
    kept = len(images) * 4 // 5
    test_images, test_labels = mx.array(images[kept:]), labels[kept:]
    model = MODELS[options.model](images.shape[1])
    optimizer = optim.AdamW(learning_rate=2e-3)
    CONSOLE.print(f"{options.model} on {kept} digits {origin}, {images.shape[1]} x {images.shape[1]} pixels")

    def loss(model: nn.Module, images: mx.array, labels: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(images), labels, reduction="mean")

    state = [model.state, optimizer.state, mx.random.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(images: mx.array, labels: mx.array) -> mx.array:
        value, slopes = nn.value_and_grad(model, loss)(model, images, labels)
        optimizer.update(model, slopes)
        return value

    batch, begin = 64, time.perf_counter()
    bar = Bar("training", options.epochs * (kept // batch))
    for number in bar:
        if number % (kept // batch) == 0:
            shuffled = order.permutation(kept)
        picked = shuffled[number % (kept // batch) * batch :][:batch]
        value = step(mx.array(images[picked]), mx.array(labels[picked]))
        mx.eval(state, value)
        bar.loss(value.item())
    model.eval()
    guesses = np.array(mx.argmax(model(test_images), axis=-1))
    right = float((guesses == test_labels).mean())
    CONSOLE.print(curve("loss", bar.losses))
    for lines in zip(*(as_text(image) for image in images[kept : kept + 7]), strict=True):
        CONSOLE.print("  ".join(lines))
    CONSOLE.print("read as " + ", ".join(map(str, guesses[:7])))
    CONSOLE.print(f"{right:.1%} of {len(test_labels)} digits that it has never seen")
    CONSOLE.print(f"{time.perf_counter() - begin:.1f} s in all")
    CONSOLE.print(f"wrote {write_curves(options.out / 'digits.png', bar.losses)}")
    return right


if __name__ == "__main__":
    main()
