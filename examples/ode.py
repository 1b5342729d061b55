"""Integrate an oscillator with steps as long as the accuracy allows: `python examples/ode.py --help`.

The method of Dormand and Prince makes two estimates in each step; their difference says how long the next step may be.
How many steps that takes is known only on the way, so it is an `mx.while_loop`, inside an `mx.scan` over the times at
which we want to know the state. Like any other function it can be mapped (every lane takes steps of its own) and
differentiated.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import weft.core as mx

NODES = (0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
STAGES = (
    (),
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
FIFTH_LESS_FOURTH = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
Slope = Callable[[Any, Any], Any]


def combined(weights: tuple[float, ...], slopes: list[Any]) -> Any:
    return sum(w * k for w, k in zip(weights, slopes, strict=True) if w)


def one_step(slope: Slope, t: Any, y: Any, h: Any) -> tuple[Any, Any]:
    """The state after a step, and how far the two estimates of it are apart."""
    slopes: list[Any] = []
    for node, weights in zip(NODES, STAGES, strict=True):
        at = y + h * combined(weights, slopes) if weights else y
        slopes.append(slope(t + node * h, at))
    return at, h * combined(FIFTH_LESS_FOURTH, slopes)


def integrate(slope: Slope, y: Any, times: Any, tolerance: float) -> tuple[Any, Any]:
    """The state at each of the times (it is `y` at the first), and how many steps were tried up to there."""

    def attempt(state: Any, end: Any) -> Any:
        t, y, h, tried = state
        h = mx.minimum(h, end - t)
        after, difference = one_step(slope, t, y, h)
        scale = tolerance * (1.0 + mx.maximum(mx.abs(y), mx.abs(after)))
        error = mx.sqrt(mx.mean(mx.square(difference / scale)))
        good = error <= 1.0
        longer = 0.9 * mx.maximum(error, 1e-10) ** -0.2  # the error of a step grows with the fifth power of its length
        next_h = mx.stop_gradient(h * mx.clip(longer, 0.2, 5.0))
        return mx.where(good, t + h, t), mx.where(good, after, y), next_h, tried + 1

    def until(state: Any, end: Any) -> Any:
        state = mx.while_loop(lambda s: s[0] < end - 1e-12, lambda s: attempt(s, end), state)
        return state, (state[1], state[3])

    start = times[0], y, mx.array(1e-3, dtype=y.dtype), mx.array(0)
    _, (states, tried) = mx.scan(until, start, times[1:])
    return states, tried


def oscillator(stiffness: Any) -> Slope:
    """x follows cos(t) and is pulled to it the harder the stiffer; the exact solution is cos(t) + (x0 - 1) exp(-st)."""
    return lambda t, x: -stiffness * (x - mx.cos(t)) - mx.sin(t)


def exact(stiffness: Any, start: float, times: Any) -> Any:
    return np.cos(times) + (start - 1.0) * np.exp(-stiffness * times)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Integrate and compare; the errors that were found."""
    parser = argparse.ArgumentParser(description="Integrate an oscillator with an adaptive Runge-Kutta method.")
    parser.add_argument("--stiffness", type=float, default=20.0)
    parser.add_argument("--tolerance", type=float, default=1e-7)
    parser.add_argument("--end", type=float, default=10.0)
    options = parser.parse_args(arguments)
    times, start = np.linspace(0.0, options.end, 21), 3.0
    x0, at = mx.array([start], dtype=mx.float64), mx.array(times, dtype=mx.float64)

    @mx.compile
    def solve(stiffness: Any) -> tuple[Any, Any]:
        states, tried = integrate(oscillator(stiffness), x0, at, options.tolerance)
        return states[:, 0], tried

    stiffness = mx.array(options.stiffness, dtype=mx.float64)
    solve(stiffness)
    begin = time.perf_counter()
    states, tried = (np.array(x) for x in solve(stiffness))
    elapsed = time.perf_counter() - begin
    truth = exact(options.stiffness, start, times[1:])
    steps = np.diff(tried, prepend=0)
    print("    t        x(t)       error    steps since the line above")
    for t, x, right, count in zip(times[1:], states, truth, steps, strict=True):
        print(f"{t:5.1f} {x:12.8f} {x - right:+10.1e}    {'▪' * int(count)}")
    print(f"{tried[-1]} steps in {1e3 * elapsed:.2f} ms, {1e6 * elapsed / tried[-1]:.1f} µs each")

    several = mx.array([1.0, 10.0, 100.0, 1000.0], dtype=mx.float64)
    print("\nfour at once (vmap), each with steps of its own: ", np.array(mx.vmap(solve)(several)[1])[:, -1])
    early = 2  # a time at which the start still shows
    slope = mx.grad(lambda s: integrate(oscillator(s), x0, at[:early] / 20, 1e-10)[0][-1, 0])(stiffness).item()
    t = times[early - 1] / 20
    right = -t * (start - 1.0) * np.exp(-options.stiffness * t)
    print(f"how x({t:.3f}) changes with the stiffness (grad): {slope:.9f}; exactly: {right:.9f}")
    return {"error": float(np.abs(states - truth).max()), "steps": int(tried[-1]), "slope error": abs(slope - right)}


if __name__ == "__main__":
    main()
