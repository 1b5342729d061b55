"""A recurrent network that learns to remember: `python examples/rnn.py --help`.

It reads a row of random letters, then a row of dots, and must say the letters again while it reads the dots. The
network runs over time by `mx.scan`: one operation in the graph however long the sequence is, forwards and backwards.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import weft.core as mx

LETTERS = "abcdefgh"
DOT = len(LETTERS)
Weights = dict[str, Any]


def new_weights(hidden: int) -> Weights:
    """A gated recurrent unit: update and reset gates and candidates, side by side in one matrix."""
    symbols = DOT + 1
    return {
        "in": mx.random.normal((symbols, 3 * hidden)) * symbols**-0.5,
        "recurrent": mx.random.normal((hidden, 3 * hidden)) * hidden**-0.5,
        "bias": mx.zeros((3 * hidden,)),
        "out": mx.random.normal((hidden, symbols)) * hidden**-0.5,
    }


def logits(weights: Weights, symbols: Any) -> Any:
    """What the network thinks comes out at each time: (batch, time) symbols -> (time, batch, symbols)."""
    hidden = weights["out"].shape[0]
    # What the inputs add to the gates does not depend on the past: one product for all times.
    given = weights["in"][symbols.T] + weights["bias"]

    def step(state: Any, x: Any) -> Any:
        past = state @ weights["recurrent"]
        gates = mx.sigmoid(x[:, : 2 * hidden] + past[:, : 2 * hidden])
        keep, reset = gates[:, :hidden], gates[:, hidden:]
        candidate = mx.tanh(x[:, 2 * hidden :] + reset * past[:, 2 * hidden :])
        state = keep * state + (1 - keep) * candidate
        return state, state

    _, states = mx.scan(step, mx.zeros((symbols.shape[0], hidden)), given)
    return states @ weights["out"]


def loss(weights: Weights, symbols: Any, wanted: Any) -> Any:
    scores = logits(weights, symbols)
    picked = mx.take_along_axis(scores, wanted.T[..., None], axis=-1)[..., 0]
    return mx.mean(mx.logsumexp(scores, axis=-1) - picked)


def sequences(rng: np.random.Generator, batch: int, length: int) -> tuple[Any, Any]:
    """`abca....` and what is wanted for it: `....abca`."""
    word = rng.integers(0, DOT, (batch, length))
    dots = np.full((batch, length), DOT)
    return mx.array(np.hstack([word, dots])), mx.array(np.hstack([dots, word]))


def training_step(rate: float) -> Any:
    """One step of Adam, compiled: (weights, moments, number of the step, symbols, wanted) -> the same after it."""

    def step(weights: Weights, moments: Any, number: Any, symbols: Any, wanted: Any) -> Any:
        value, slopes = mx.value_and_grad(loss)(weights, symbols, wanted)
        size = mx.sqrt(sum(mx.sum(g * g) for g in slopes.values()))
        shrink = mx.minimum(1.0, 1.0 / size)  # a long way back through time can make gradients explode
        for name, slope in slopes.items():
            mean, square = moments[name]
            mean, square = 0.9 * mean + 0.1 * shrink * slope, 0.99 * square + 0.01 * mx.square(shrink * slope)
            moments[name] = mean, square
            towards = (mean / (1 - 0.9**number)) / (mx.sqrt(square / (1 - 0.99**number)) + 1e-8)
            weights[name] = weights[name] - rate * towards
        return value, weights, moments

    return mx.compile(step)


def shown(symbols: np.ndarray) -> str:
    return "".join((LETTERS + ".")[i] for i in symbols)


def main(arguments: list[str] | None = None) -> float:
    """Train; the share of letters that are remembered in the end."""
    parser = argparse.ArgumentParser(description="Train a recurrent network to remember letters.")
    parser.add_argument("--length", type=int, default=5, help="how many letters to remember")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args(arguments)
    mx.random.seed(0)
    rng = np.random.default_rng(0)
    weights = new_weights(options.hidden)
    moments = {name: (mx.zeros_like(w), mx.zeros_like(w)) for name, w in weights.items()}
    step, begin = training_step(5e-3), time.perf_counter()
    for number in range(1, options.steps + 1):
        batch = sequences(rng, options.batch, options.length)
        value, weights, moments = step(weights, moments, mx.array(float(number)), *batch)
        if number % max(options.steps // 10, 1) == 0:
            ms = 1e3 * (time.perf_counter() - begin) / number
            print(f"step {number:5d}   loss {value.item():.4f}   {ms:.2f} ms per step")
    symbols, wanted = sequences(rng, 256, options.length)
    guesses = np.array(mx.argmax(logits(weights, symbols), axis=-1)).T
    right = (guesses == np.array(wanted))[:, options.length :]
    for row in range(3):
        print(f"read {shown(np.array(symbols)[row])}   said {shown(guesses[row])}")
    print(f"letters remembered, in rows it has never seen: {right.mean():.1%}")
    return float(right.mean())


if __name__ == "__main__":
    main()
