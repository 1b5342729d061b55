"""What a gradient costs before anything is computed: microseconds an operation for tracing `value_and_grad` of small
programs, Weft and MLX in turns in one process.

    python benchmarks/tracing.py                  a table
    python benchmarks/tracing.py --operations 100 --rounds 50

Four figures for each program: the function alone, its `jvp` and `value_and_grad` of it (nothing evaluated), and
`value_and_grad` with the result evaluated. Arrays have six elements, so time is overhead. The best of the rounds
counts, and rounds alternate between the two, so that a slow moment of the machine meets both.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import weft.core as weft

try:
    import mlx.core as mlx
except ImportError:  # the table then has one column
    mlx = None

Function = Callable[[Any], Any]


def chain(mx: Any, operations: int) -> Function:
    """Unary and binary operations, and one with a number, over and over."""

    def function(x: Any) -> Any:
        y = x
        for _ in range(operations // 4):
            y = mx.tanh(mx.sin(y) * x + 0.5)
        return mx.sum(y)

    return function


def layers(mx: Any, operations: int) -> Function:
    """Small layers: a product with a matrix, a bias, a nonlinearity, a residual."""
    weight = mx.ones((3, 3)) * 0.1
    bias = mx.ones((3,)) * 0.01

    def function(x: Any) -> Any:
        y = x
        for _ in range(operations // 4):
            y = mx.maximum(y @ weight + bias, 0.0) + y
        return mx.sum(y)

    return function


def reductions(mx: Any, operations: int) -> Function:
    """Normalised values: reductions, and what broadcasts against them."""

    def function(x: Any) -> Any:
        y = x
        for _ in range(operations // 4):
            y = (y - mx.mean(y)) * 2.0 + x
        return mx.sum(y)

    return function


def numbers(mx: Any, operations: int) -> Function:
    """Numbers beside arrays, on their left."""

    def function(x: Any) -> Any:
        y = x
        for _ in range(operations // 4):
            y = 1.0 / (2.0 + (1.0 - (0.5 * y)))
        return mx.sum(y)

    return function


PROGRAMS = {"chain": chain, "layers": layers, "reductions": reductions, "numbers": numbers}


def evaluated(mx: Any, function: Function) -> Function:
    def call(x: Any) -> Any:
        result = function(x)
        mx.eval(result)
        return result

    return call


def seconds(function: Function, x: Any) -> float:
    start = time.perf_counter()
    result = function(x)
    taken = time.perf_counter() - start
    del result
    return taken


def measure(program: str, operations: int, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds an operation: by figure, then by library."""
    libraries = {"weft": weft} | ({"mlx": mlx} if mlx is not None else {})
    calls: dict[tuple[str, str], tuple[Function, Any]] = {}
    for name, mx in libraries.items():
        function = PROGRAMS[program](mx, operations)
        gradient = mx.value_and_grad(function)
        x = mx.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
        calls["function", name] = (function, x)
        calls["jvp", name] = (lambda x, mx=mx, function=function: mx.jvp(function, [x], [x]), x)
        calls["value_and_grad", name] = (gradient, x)
        calls["value_and_grad, evaluated", name] = (evaluated(mx, gradient), x)
    best: dict[str, dict[str, float]] = {}
    for number in range(rounds + 2):
        for (figure, name), (call, x) in calls.items():
            taken = seconds(call, x) / operations * 1e6
            if number >= 2:  # the first two compile
                row = best.setdefault(figure, {})
                row[name] = min(row.get(name, taken), taken)

    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--operations", type=int, default=100, help="operations of each program (default: 100)")
    parser.add_argument("--rounds", type=int, default=50, help="rounds, of which the best counts (default: 50)")
    options = parser.parse_args()
    print(f"{'us an operation':42}{'weft':>8}{'mlx':>8}{'ratio':>8}")
    for program in PROGRAMS:
        for figure, row in measure(program, options.operations, options.rounds).items():
            ours, theirs = row["weft"], row.get("mlx")
            rest = f"{theirs:8.2f}{ours / theirs:8.2f}" if theirs is not None else f"{'-':>8}{'-':>8}"
            print(f"{program + ': ' + figure:42}{ours:8.2f}{rest}")


if __name__ == "__main__":
    main()
