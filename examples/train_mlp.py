"""Train a small network on digits that this script draws itself: `make demo`, or `python examples/train_mlp.py --help`.

Everything is plain `weft.core`: the layers, the loss, Adam. The same code runs on MLX (`--backend mlx`), because the
names are the same; only the import differs.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import time
from typing import Any

import numpy as np
from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

SIDE = 20  # pixels
LAYERS = (SIDE * SIDE, 256, 128, 10)

# Each digit as strokes through points of the unit square, y pointing down.
STROKES = {
    0: [[(0.5, 0.1), (0.25, 0.25), (0.2, 0.5), (0.25, 0.75), (0.5, 0.9), (0.75, 0.75), (0.8, 0.5), (0.5, 0.1)]],
    1: [[(0.3, 0.3), (0.55, 0.1), (0.55, 0.9)]],
    2: [[(0.22, 0.3), (0.4, 0.1), (0.65, 0.12), (0.75, 0.32), (0.6, 0.55), (0.22, 0.9), (0.8, 0.9)]],
    3: [[(0.25, 0.15), (0.6, 0.1), (0.72, 0.28), (0.45, 0.48), (0.75, 0.68), (0.6, 0.9), (0.22, 0.84)]],
    4: [[(0.65, 0.9), (0.65, 0.1), (0.2, 0.65), (0.82, 0.65)]],
    5: [[(0.75, 0.1), (0.3, 0.1), (0.27, 0.45), (0.6, 0.42), (0.77, 0.65), (0.6, 0.9), (0.22, 0.85)]],
    6: [[(0.7, 0.12), (0.4, 0.25), (0.24, 0.6), (0.35, 0.88), (0.65, 0.88), (0.75, 0.65), (0.55, 0.5), (0.27, 0.6)]],
    7: [[(0.2, 0.1), (0.8, 0.1), (0.4, 0.9)], [(0.35, 0.5), (0.7, 0.5)]],
    8: [[(0.5, 0.5), (0.3, 0.3), (0.5, 0.1), (0.7, 0.3), (0.5, 0.5), (0.24, 0.7), (0.5, 0.9), (0.76, 0.7), (0.5, 0.5)]],
    9: [[(0.73, 0.4), (0.45, 0.52), (0.25, 0.32), (0.45, 0.1), (0.72, 0.2), (0.73, 0.4), (0.6, 0.9)]],
}  # fmt: skip


# ---- data ----


def draw_digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """`count` images in [0, 1], each of a digit that was turned, slanted, stretched, shifted, shaken and made noisy."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    images = np.empty((count, SIDE * SIDE), np.float32)
    for digit in range(10):
        chosen = np.flatnonzero(labels == digit)
        for few in np.array_split(chosen, len(chosen) // 64 + 1):  # few enough to stay in the cache
            images[few] = draw(STROKES[digit], len(few), random)
    images += random.normal(0.0, 0.12, images.shape).astype(np.float32)
    return images.clip(0.0, 1.0), labels.astype(np.int32)


def draw(strokes: list[list[tuple[float, float]]], count: int, random: np.random.Generator) -> np.ndarray:
    """`count` variations of one digit: a pixel is dark when it is near a segment of a stroke."""
    segments = np.array([pair for stroke in strokes for pair in itertools.pairwise(stroke)], np.float32) - 0.5
    angle, slant = random.uniform(-0.3, 0.3, (2, count))
    scale = random.uniform(0.65, 1.1, (2, count))
    linear = np.empty((count, 2, 2), np.float32)
    linear[:, 0, 0], linear[:, 0, 1] = scale[0] * np.cos(angle), scale[1] * (slant - np.sin(angle))
    linear[:, 1, 0], linear[:, 1, 1] = scale[0] * np.sin(angle), scale[1] * np.cos(angle)
    shift = random.uniform(-0.12, 0.12, (count, 1, 1, 2)).astype(np.float32)
    shake = random.normal(0.0, 0.02, (count, *segments.shape)).astype(np.float32)
    ends = np.einsum("nij,spj->nspi", linear, segments) + shift + shake  # (image, segment, end, coordinate)
    # (image, segment, pixel), one coordinate at a time: the offset from a segment's start, less the way along it.
    (x, y), (dx, dy) = np.moveaxis(ends[:, :, :1], -1, 0), np.moveaxis(ends[:, :, 1:] - ends[:, :, :1], -1, 0)
    axis = (np.arange(SIDE, dtype=np.float32) + 0.5) / SIDE - 0.5
    x, y = np.tile(axis, SIDE) - x, np.repeat(axis, SIDE) - y
    part = ((x * dx + y * dy) / (dx * dx + dy * dy + 1e-6)).clip(0.0, 1.0)
    x, y = x - part * dx, y - part * dy
    distance = np.sqrt((x * x + y * y).min(1))
    width = random.uniform(0.035, 0.065, (count, 1)).astype(np.float32)
    return 1.0 / (1.0 + np.exp(((distance - width) * 90.0).clip(-30.0, 30.0)))


# ---- model ----


def initial_layers(mx: Any) -> list[tuple[Any, Any]]:
    pairs = itertools.pairwise(LAYERS)
    return [(mx.random.normal((i, o)) * (2.0 / i) ** 0.5, mx.zeros((o,))) for i, o in pairs]


def logits(mx: Any, layers: list[tuple[Any, Any]], images: Any) -> Any:
    for weight, bias in layers[:-1]:
        images = mx.maximum(images @ weight + bias, 0.0)
    weight, bias = layers[-1]
    return images @ weight + bias


def training_step(mx: Any, rate: float) -> Any:
    """One step of Adam as one compiled function: (layers, moments, step, images, labels) -> (loss, layers, moments)."""

    def loss(layers: Any, images: Any, labels: Any) -> Any:
        scores = logits(mx, layers, images)
        logp = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
        return -mx.mean(mx.take_along_axis(logp, labels[:, None], axis=-1))

    def adam(parameter: Any, gradient: Any, moments: Any, step: Any) -> tuple[Any, Any]:
        mean = 0.9 * moments[0] + 0.1 * gradient
        square = 0.999 * moments[1] + 0.001 * gradient * gradient
        towards = (mean / (1.0 - 0.9**step)) / (mx.sqrt(square / (1.0 - 0.999**step)) + 1e-8)
        return parameter - rate * towards, (mean, square)

    def step(layers: Any, moments: Any, number: Any, images: Any, labels: Any) -> Any:
        value, gradients = mx.value_and_grad(loss)(layers, images, labels)
        new_layers, new_moments = [], []
        for parameters, slopes, history in zip(layers, gradients, moments, strict=True):
            pairs = [adam(p, g, m, number) for p, g, m in zip(parameters, slopes, history, strict=True)]
            new_layers.append(tuple(parameter for parameter, _ in pairs))
            new_moments.append(tuple(moment for _, moment in pairs))
        return value, new_layers, new_moments

    return mx.compile(step)


# ---- the show ----


class Progress:
    """What the terminal shows: a panel that changes while it trains, or a line per epoch where nothing can change."""

    def __init__(self, console: Console, title: str, epochs: int) -> None:
        self.console, self.title, self.epochs = console, title, epochs
        self.losses: list[float] = []
        self.rows: list[tuple[str, ...]] = []
        self.first = "compiling the first step"
        self.live = Live(get_renderable=self.panel, console=console, refresh_per_second=8)

    def panel(self) -> Panel:
        table = Table(box=None, padding=(0, 2), header_style="dim")
        for column in ("epoch", "loss", "test accuracy", "time per step"):
            table.add_column(column, justify="right")
        for row in self.rows:
            table.add_row(*row)
        curve = Text(f"loss  {sparkline(self.losses)}", style="cyan")
        return Panel(Group(Text(self.first), curve, table), title=self.title, width=76)

    def step(self, loss: float, milliseconds: float) -> None:
        self.losses.append(loss)
        if len(self.losses) == 1:
            self.first = f"first step, compilation included: {milliseconds:.0f} ms"
            self.say(self.first)

    def epoch(self, number: int, loss: float, accuracy: float, step_ms: float) -> None:
        self.rows.append((f"{number}/{self.epochs}", f"{loss:.4f}", f"{accuracy:.1%}", f"{step_ms:.2f} ms"))
        self.say("epoch {}  loss {}  test accuracy {}  {} per step".format(*self.rows[-1]))

    def say(self, line: str) -> None:
        """A line where there is no panel."""
        if not self.console.is_terminal:
            self.console.print(line)

    def finish(self, images: np.ndarray, labels: np.ndarray, guesses: np.ndarray) -> None:
        self.live.stop()
        self.console.print(Columns(examples(images, labels, guesses), padding=(0, 1)))
        accuracy = float((guesses == labels).mean())
        self.console.print(f"final test accuracy {accuracy:.1%} on {len(labels)} digits the network has never seen")


def sparkline(values: list[float], width: int = 60) -> str:
    """The values as a row of bars, the tallest for the largest."""
    if not values:
        return ""
    chunks = np.array_split(np.array(values), min(width, len(values)))
    heights = np.array([chunk.mean() for chunk in chunks])
    return "".join("▁▂▃▄▅▆▇█"[int(level)] for level in 7.99 * heights / max(heights.max(), 1e-12))


def picture(image: np.ndarray, caption: str) -> Text:
    """An image as text, two pixels in one character."""
    pixels = (image.reshape(SIDE // 2, 2, SIDE) > 0.45).astype(int)
    lines = ["".join(" ▀▄█"[upper + 2 * lower] for upper, lower in zip(*row, strict=True)) for row in pixels]
    return Text("\n".join([*lines, caption.center(SIDE)]))


# ---- training ----


class Trainer:
    """The network and Adam's memory of it, and the compiled step that moves both."""

    def __init__(self, mx: Any, rate: float) -> None:
        self.mx = mx
        mx.random.seed(0)
        self.layers = initial_layers(mx)
        self.moments = [tuple((mx.zeros_like(p), mx.zeros_like(p)) for p in pair) for pair in self.layers]
        self.step, self.count = training_step(mx, rate), 0

    def learn(self, images: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
        """One step on one batch; its loss and how many milliseconds it took."""
        mx, begin = self.mx, time.perf_counter()
        self.count += 1
        batch = mx.array(float(self.count)), mx.array(images), mx.array(labels)
        loss, self.layers, self.moments = self.step(self.layers, self.moments, *batch)
        mx.eval(loss, self.layers, self.moments)
        return loss.item(), 1e3 * (time.perf_counter() - begin)

    def guess(self, images: np.ndarray) -> np.ndarray:
        return np.array(self.mx.argmax(logits(self.mx, self.layers, self.mx.array(images)), axis=-1))


def train(mx: Any, arguments: argparse.Namespace, progress: Progress) -> None:
    images, labels = draw_digits(arguments.images, seed=1)
    test_images, test_labels = draw_digits(arguments.images // 5, seed=2)
    trainer, order = Trainer(mx, arguments.rate), np.random.default_rng(3)
    for epoch in range(1, arguments.epochs + 1):
        shuffled = order.permutation(len(images))
        starts = range(0, len(images) - arguments.batch + 1, arguments.batch)
        steps = []
        for batch in (shuffled[start : start + arguments.batch] for start in starts):
            steps.append(trainer.learn(images[batch], labels[batch]))
            progress.step(*steps[-1])
        guesses = trainer.guess(test_images)
        accuracy = float((guesses == test_labels).mean())
        progress.epoch(epoch, float(np.mean([loss for loss, _ in steps])), accuracy, float(np.median(steps, axis=0)[1]))
    progress.finish(test_images, test_labels, guesses)


def examples(images: np.ndarray, labels: np.ndarray, guesses: np.ndarray, count: int = 6) -> list[Text]:
    """The first few test digits, with what the network takes them for."""
    return [
        picture(image, f"{guess}" if guess == label else f"{guess}, not {label}")
        for image, label, guess in zip(images[:count], labels, guesses, strict=False)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on drawn digits.")
    parser.add_argument("--backend", choices=("weft", "mlx"), default="weft", help="whose arrays to use")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--images", type=int, default=16000, help="how many digits to draw for training")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=1e-3, help="Adam's learning rate")
    arguments = parser.parse_args()
    if min(arguments.epochs, arguments.images // 5, arguments.batch) < 1 or arguments.batch > arguments.images:
        parser.error("needs at least one epoch, five images, and no more images in a batch than there are")
    mx = importlib.import_module(f"{arguments.backend}.core")
    console = Console(highlight=False)
    title = f"{' → '.join(map(str, LAYERS))} on {mx.__name__}"
    progress = Progress(console, title, arguments.epochs)
    begin = time.perf_counter()
    if console.is_terminal:
        progress.live.start()
    progress.say(f"training {title}")
    try:
        train(mx, arguments, progress)
    finally:
        progress.live.stop()
    console.print(f"{time.perf_counter() - begin:.1f} s in all, drawing the digits included")


if __name__ == "__main__":
    main()
