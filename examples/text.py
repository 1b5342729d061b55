"""A transformer learns to write, letter by letter: `weft run examples/text.py --help` (or `python`, on MLX itself).

It reads what this project says of itself (docs/*.md), some hundred thousand letters of English and tables, and is
trained until it needs less than 1.5 nats a letter (guessing needs 4.4). Then it goes on from the words it is given,
with a cache of what it has read already.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.optimizers as optim
import numpy as np
from show import CONSOLE, Bar, curve, write_curves

DOCS = Path(__file__).resolve().parents[1] / "docs"
CONTEXT = 64
Cache = tuple[mx.array, mx.array]


class Block(nn.Module):
    """Attention over what came before, then a layer of its own for each letter."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.RMSNorm(width), nn.RMSNorm(width)
        self.queries, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.rope = nn.RoPE(width // heads)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: mx.array, cache: Cache | None, before: int) -> tuple[mx.array, Cache]:
        parts = mx.split(self.queries(self.norms[0](x)), 3, axis=-1)
        q, k, v = (part.reshape(*x.shape[:2], self.heads, -1).transpose(0, 2, 1, 3) for part in parts)
        q, k = self.rope(q, offset=before), self.rope(k, offset=before)
        if cache is not None:
            k, v = mx.concatenate([cache[0], k], axis=2), mx.concatenate([cache[1], v], axis=2)
        mask = "causal" if x.shape[1] > 1 else None
        seen = mx.fast.scaled_dot_product_attention(q, k, v, scale=q.shape[-1] ** -0.5, mask=mask)
        x = x + self.out(seen.transpose(0, 2, 1, 3).reshape(x.shape))
        return x + self.narrow(nn.gelu(self.wide(self.norms[1](x)))), (k, v)


class Writer(nn.Module):
    def __init__(self, letters: int, width: int, layers: int, heads: int = 4) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(letters, width), nn.RMSNorm(width)
        self.blocks = [Block(width, heads) for _ in range(layers)]

    def __call__(
        self, letters: mx.array, caches: list[Cache] | None = None, before: int = 0
    ) -> tuple[mx.array, list[Cache]]:
        """The scores of what may come next, and what to give back with the letters after these; `before` counts those
        that came before them."""
        x, found = self.embedding(letters), []
        for i, block in enumerate(self.blocks):
            x, cache = block(x, None if caches is None else caches[i], before)
            found.append(cache)
        return self.embedding.as_linear(self.norm(x)), found


def read(folder: Path) -> tuple[np.ndarray, str]:
    """All that is written there as numbers of letters, and the letters."""
    text = "\n\n".join(file.read_text() for file in sorted(folder.glob("*.md")))
    common = [letter for letter in sorted(set(text)) if text.count(letter) > 20]
    number = {letter: i for i, letter in enumerate(common)}
    return np.array([number[letter] for letter in text if letter in number]), "".join(common)


def write(model: Writer, letters: str, words: str, count: int, temperature: float) -> str:
    """Go on from some words, a letter at a time."""
    scores, caches = model(mx.array([[letters.index(letter) for letter in words]]))
    written = []
    for position in range(len(words), len(words) + count):
        letter = mx.random.categorical(scores[:, -1] / temperature)
        written.append(letter.item())
        recent = [(k[:, :, 1 - CONTEXT :], v[:, :, 1 - CONTEXT :]) for k, v in caches]
        scores, caches = model(letter[:, None], recent, position)
    return words + "".join(letters[i] for i in written)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train and write; the losses, what is lost on pages it has not read, and what it wrote."""
    parser = argparse.ArgumentParser(description="Train a transformer on the documentation, and let it write.")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--words", default="A function ", help="what it goes on from")
    parser.add_argument("--count", type=int, default=300, help="letters to write")
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the picture of the curve")
    options = parser.parse_args(arguments)
    mx.random.seed(0)
    rng, begin = np.random.default_rng(0), time.perf_counter()
    text, letters = read(DOCS)
    kept, unread = text[: -len(text) // 20], text[-len(text) // 20 :]
    model = Writer(len(letters), options.width, options.layers)
    optimizer = optim.AdamW(optim.join_schedules(
        [optim.linear_schedule(1e-4, 4e-3, 50), optim.cosine_decay(4e-3, options.steps - 50, 2e-4)], [50]
    ))  # fmt: skip
    CONSOLE.print(f"{len(kept):,} letters to read, {len(letters)} different ones")

    def loss(model: Writer, rows: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(rows[:, :-1])[0], rows[:, 1:], reduction="mean")

    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def step(rows: mx.array) -> mx.array:
        value, slopes = nn.value_and_grad(model, loss)(model, rows)
        slopes, _ = optim.clip_grad_norm(slopes, 1.0)
        optimizer.update(model, slopes)
        return value

    def rows_of(text: np.ndarray, starts: np.ndarray) -> mx.array:
        return mx.array(text[starts[:, None] + np.arange(CONTEXT + 1)])

    bar = Bar("reading", options.steps)
    for _ in bar:
        value = step(rows_of(kept, rng.integers(0, len(kept) - CONTEXT - 1, 16)))
        mx.eval(state, value)
        bar.loss(value.item())
    CONSOLE.print(curve("nats a letter", bar.losses))
    rest = loss(model, rows_of(unread, np.arange(0, len(unread) - CONTEXT - 1, CONTEXT))).item()
    written = write(model, letters, options.words, options.count, options.temperature)
    CONSOLE.print(written, style="cyan", markup=False)
    CONSOLE.print(f"{np.mean(bar.losses[-50:]):.2f} nats a letter in the end, {rest:.2f} on pages it has not read")
    CONSOLE.print(f"wrote {write_curves(options.out / 'text.png', bar.losses)}")
    CONSOLE.print(f"{time.perf_counter() - begin:.1f} s in all")
    return {"losses": bar.losses, "unread": rest, "written": written}


if __name__ == "__main__":
    main()
