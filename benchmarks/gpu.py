"""What a GPU does with simple kernels: `python benchmarks/gpu.py`. Bytes a second and operations a second, the best of
repeated runs; the host's time to launch; the time to make a kernel."""

from __future__ import annotations

import time
from collections.abc import Callable

import weft.core as mx
from weft.targets import find

RUNS = 10


def best(function: Callable[[], mx.array], synchronize: Callable[[], None]) -> float:
    """Seconds of the fastest of repeated runs."""
    found = []
    for _ in range(RUNS):
        synchronize()
        start = time.perf_counter()
        mx.eval(function())
        synchronize()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    target = find(mx.Device(mx.gpu))
    if target is None:
        raise SystemExit("this machine has no GPU that Weft can use (docs/gpu.md)")
    mx.set_default_device(mx.gpu)
    synchronize = target.gpu.synchronize  # type: ignore[attr-defined]
    print(mx.device_info(mx.gpu)["device_name"])
    n = 1 << 26
    x = mx.random.uniform(shape=(n,))
    square = x.reshape(8192, 8192)
    a = mx.random.uniform(shape=(2048, 2048))
    mx.eval(x, a)
    moved = {
        "x + 1": (lambda: x + 1.0, 8 * n),
        "tanh(exp(-x) * 3 + 1)": (lambda: mx.tanh(mx.exp(-x) * 3.0 + 1.0), 8 * n),
        "transpose + 1": (lambda: square.T + 1.0, 8 * n),
        "sum of all": (lambda: x.sum(), 4 * n),
        "sum of rows": (lambda: square.sum(1), 4 * n),
        "sum of columns": (lambda: square.sum(0), 4 * n),
        "softmax of rows": (lambda: mx.softmax(square, axis=-1), 8 * n),
    }
    for name, (function, nbytes) in moved.items():
        start = time.perf_counter()
        mx.eval(function())
        synchronize()
        first = time.perf_counter() - start
        print(f"{name:24} {nbytes / best(function, synchronize) / 1e9:8.0f} GB/s   first run {first * 1e3:6.1f} ms")
    seconds = best(lambda: a @ a, synchronize)
    print(f"{'2048 x 2048 product':24} {2 * 2048**3 / seconds / 1e12:8.2f} TFLOP/s")
    small = mx.ones((4,))
    mx.eval(small)

    def chain() -> mx.array:
        y = small
        for _ in range(100):
            y = y + small
            mx.eval(y)
        return y

    print(f"{'a small operation':24} {best(chain, synchronize) / 100 * 1e6:8.1f} us")


if __name__ == "__main__":
    main()
