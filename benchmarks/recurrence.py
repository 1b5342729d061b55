"""A scalar recurrence of a million steps: Weft's loop beside the same loop compiled by Numba, and the compile times of
loops of different lengths.

    python benchmarks/recurrence.py --numba path/to/a/python/that/has/numba
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

STEPS = 1_000_000
ROUNDS = 20


def best(run: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    run()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def by_numba() -> float:
    import numba
    import numpy

    @numba.njit
    def recurrence(x, a, b):  # type: ignore[no-untyped-def]
        for _ in range(STEPS):
            x = x * a + b
        return x

    x, a, b = numpy.float32(1), numpy.float32(0.999), numpy.float32(0.01)
    return best(lambda: recurrence(x, a, b))


def by_weft() -> float:
    import weft.core as mx

    x, a, b = mx.array(1.0), mx.array(0.999), mx.array(0.01)
    recurrence = mx.compile(lambda x: mx.fori_loop(0, STEPS, lambda i, x: x * a + b, x))
    return best(lambda: mx.eval(recurrence(x)))


def compiling(steps: int) -> float:
    """Seconds that the first gradient of a recurrent network takes more than the next one, in a process of its own."""
    code = f"""
import time
import weft.core as mx
w, h, xs = mx.random.normal((64, 64)), mx.zeros((8, 64)), mx.random.normal(({steps}, 8, 64))
mx.eval(w, h, xs, mx.exp(h))
def network(f):
    return mx.compile(mx.grad(lambda w: mx.scan(lambda h, x: (f(x + h @ w), None), h, xs)[0].sum()))
mx.eval(network(mx.sigmoid)(w))  # memory that was never touched is slow, and no matter of compiling
gradient, times = network(mx.tanh), []
for _ in range(5):
    start = time.perf_counter()
    mx.eval(gradient(w))
    times.append(time.perf_counter() - start)
print(times[0] - min(times))
"""
    command = [sys.executable, "-c", code]
    return min(float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numba", metavar="PYTHON", help="an interpreter that has Numba")
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.as_peer:
        print(by_numba())
        return
    ours = by_weft()
    print(f"weft   {STEPS} steps in {ours * 1e3:.3f} ms")
    if arguments.numba:
        command = [arguments.numba, __file__, "--as-peer"]
        theirs = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        print(f"numba  {STEPS} steps in {theirs * 1e3:.3f} ms; ratio {ours / theirs:.2f}")
    for steps in (10, 10_000):
        print(f"making the gradient of a network over {steps} steps ready takes {compiling(steps) * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
