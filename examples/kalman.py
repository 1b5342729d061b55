"""How a pendulum swings, from noisy measurements: `python examples/kalman.py --help`.

A Kalman filter goes over the measurements and says how likely they are, given the pendulum's frequency, its damping and
the noise. The filter is one `mx.scan`; the gradient of the likelihood runs it backwards, and gradient ascent finds the
parameters that the data were made with.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

import weft.core as mx

STEP = 0.1  # seconds between measurements
TRUTH = {"frequency": 2.0, "damping": 0.15, "push": 0.3, "noise": 0.4}


def motion(frequency: Any, damping: Any) -> Any:
    """The matrix that moves (place, speed) on by one step: exactly, as the oscillator's equation has a closed form."""
    swing = mx.sqrt(frequency * frequency - damping * damping)
    fade, cos, sin = mx.exp(-damping * STEP), mx.cos(swing * STEP), mx.sin(swing * STEP)
    rows = [
        [cos + damping / swing * sin, sin / swing],
        [-frequency * frequency / swing * sin, cos - damping / swing * sin],
    ]
    return fade * mx.stack([mx.stack(row) for row in rows])


def log_likelihood(parameters: dict[str, Any], measured: Any) -> tuple[Any, Any]:
    """(log of the density of all measurements, the filtered places)."""
    real = {name: mx.exp(value) for name, value in parameters.items()}  # all are positive: their logarithms are free
    move = motion(real["frequency"], real["damping"])
    pushes = mx.diag(mx.array([0.0, 1.0], dtype=measured.dtype)) * real["push"] ** 2 * STEP
    variance = real["noise"] ** 2

    def step(belief: Any, z: Any) -> Any:
        mean, spread = belief
        mean, spread = move @ mean, move @ spread @ move.T + pushes  # predict
        surprise, width = z - mean[0], spread[0, 0] + variance
        gain = spread[:, 0] / width
        score = -0.5 * (mx.log(2 * math.pi * width) + surprise * surprise / width)
        mean, spread = mean + gain * surprise, spread - mx.outer(gain, spread[0])  # correct
        return (mean, spread), (score, mean[0])

    start = mx.zeros((2,), measured.dtype), mx.eye(2, dtype=measured.dtype) * 4.0
    _, (scores, places) = mx.scan(step, start, measured)
    return mx.sum(scores), places


def swing(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """True places and measurements of them."""
    rng = np.random.default_rng(seed)
    move = np.array(motion(mx.array(TRUTH["frequency"]), mx.array(TRUTH["damping"])), np.float64)
    state, places = np.array([1.5, 0.0]), []
    for _ in range(count):
        state = move @ state + [0.0, TRUTH["push"] * STEP**0.5 * rng.normal()]
        places.append(state[0])
    return np.array(places), np.array(places) + TRUTH["noise"] * rng.normal(size=count)


def fit(measured: Any, rounds: int) -> tuple[dict[str, Any], list[float]]:
    """Parameters (logarithms) of the largest likelihood, by gradient ascent with Adam's step sizes."""

    def loss(parameters: dict[str, Any]) -> Any:
        return -log_likelihood(parameters, measured)[0] / measured.size

    def better(parameters: Any, means: Any, squares: Any, number: Any) -> Any:
        value, slopes = mx.value_and_grad(loss)(parameters)
        for name, slope in slopes.items():
            means[name] = 0.9 * means[name] + 0.1 * slope
            squares[name] = 0.99 * squares[name] + 0.01 * slope * slope
            size = mx.sqrt(squares[name] / (1 - 0.99**number)) + 1e-8
            parameters[name] = parameters[name] - 0.05 * means[name] / (1 - 0.9**number) / size
        return value, parameters, means, squares

    better = mx.compile(better)
    guess = {"frequency": 1.0, "damping": 0.5, "push": 1.0, "noise": 1.0}
    parameters = {name: mx.array(math.log(value), dtype=mx.float64) for name, value in guess.items()}
    means, squares = ({name: mx.zeros_like(p) for name, p in parameters.items()} for _ in range(2))
    history = []
    for number in range(1, rounds + 1):
        now = mx.array(float(number), dtype=mx.float64)
        value, parameters, means, squares = better(parameters, means, squares, now)
        history.append(value.item())
        if number % max(rounds // 8, 1) == 0:
            print(f"round {number:4d}   log-likelihood per measurement {-history[-1]:.4f}")
    return parameters, history


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Make data, fit, compare; the parameters that were found."""
    parser = argparse.ArgumentParser(description="Find the parameters of a pendulum with a Kalman filter.")
    parser.add_argument("--measurements", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args(arguments)
    places, noisy = swing(options.measurements, seed=1)
    measured = mx.array(noisy, dtype=mx.float64)
    parameters, _ = fit(measured, options.rounds)
    found = {name: math.exp(value.item()) for name, value in parameters.items()}
    print("\n            true   found")
    for name, value in TRUTH.items():
        print(f"{name:10s} {value:5.2f}   {found[name]:5.2f}")
    filtered = np.array(log_likelihood(parameters, measured)[1])
    errors = [float(np.sqrt(np.mean((x - places) ** 2))) for x in (noisy, filtered)]
    print(f"\nerror of the measurements {errors[0]:.3f}, of the filtered places {errors[1]:.3f}")
    return {**found, "measured error": errors[0], "filtered error": errors[1]}


if __name__ == "__main__":
    main()
