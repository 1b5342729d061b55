"""What a process that runs for months meets: programs that never come again, Ctrl-C, and lengths that grow.

    python benchmarks/long_run.py programs --count 100000      milliseconds, memory and maps, as programs go by
    python benchmarks/long_run.py interrupts                   how long native work goes on after Ctrl-C
    python benchmarks/long_run.py growing                      a sequence that gets longer by one at each step

Each subcommand prints a table in Markdown. Programs are compiled anew (no kernels are read from disk, or kept there),
at the level that WEFT_LLVM_LEVEL says.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

OPERATIONS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "abs": lambda mx, x, y: mx.abs(x),
    "negative": lambda mx, x, y: -x,
    "square": lambda mx, x, y: mx.square(x),
    "rsqrt": lambda mx, x, y: mx.rsqrt(mx.abs(x) + 1),
    "add": lambda mx, x, y: x + y,
    "multiply": lambda mx, x, y: x * y,
    "maximum": lambda mx, x, y: mx.maximum(x, y),
    "divide": lambda mx, x, y: x / (mx.abs(y) + 2),
}


def memory() -> tuple[float, int]:
    """Megabytes that this process has in memory, and its memory maps."""
    with open("/proc/self/statm") as sizes:
        resident = int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    with open("/proc/self/maps") as maps:
        return resident, sum(1 for _ in maps)


def table(*names: str) -> None:
    print("| " + " | ".join(names) + " |\n|" + " ---: |" * len(names), flush=True)


def row(*values: object) -> None:
    cells = [f"{value:,.2f}" if isinstance(value, float) else str(value) for value in values]
    print("| " + " | ".join(cells) + " |", flush=True)


# ---- programs that never come again ----


def expression(mx: Any, number: int, x: Any, y: Any, length: int = 7) -> Any:
    """The operations that the digits of a number name: another kernel for each number below 8 ** length."""
    functions = list(OPERATIONS.values())
    for _ in range(length):
        number, digit = divmod(number, len(functions))
        x = functions[digit](mx, x, y)
    return x


def made(mx: Any, kind: str, number: int, x: Any, y: Any) -> Any:
    """What program number so much computes."""
    number = number * 7919 % 8**7  # neighbours differ in most operations
    if kind == "gradients":
        return mx.grad(lambda x: expression(mx, number, x, y).sum())(x)
    if kind == "compiled":
        return mx.compile(lambda x, y: expression(mx, number, x, y))(x, y)
    if kind == "loops":
        return mx.scan(lambda c, _: (expression(mx, number, c, y), None), x, None, length=3)[0]
    return expression(mx, number, x, y)


def programs(kind: str, count: int, every: int) -> None:
    import weft.core as mx

    x, y = mx.array([0.5] * 8), mx.array([1.5] * 8)
    mx.eval(made(mx, kind, 8**7 - 1, x, y))
    begun, _ = memory()
    table(kind, "ms a program", "MB above the start", "maps")
    last = time.perf_counter()
    for number in range(count):
        mx.eval(made(mx, kind, number, x, y))
        if (number + 1) % every == 0:
            resident, maps = memory()
            row(number + 1, (time.perf_counter() - last) / every * 1e3, resident - begun, maps)
            last = time.perf_counter()


# ---- Ctrl-C ----


def work(mx: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Native work that takes a second or more, and the arrays that it gives."""
    n = 3000
    a, b = mx.random.normal((n, n)), mx.random.normal((n, n))
    big = mx.random.normal((40_000_000,))
    wide = mx.random.normal((4, 10_000_000))
    at = mx.random.randint(0, 40_000_000, (60_000_000,))
    mx.eval(a, b, big, wide, at)
    yield "product", lambda: a @ b @ a
    yield "elementwise", lambda: mx.tan(mx.sin(mx.exp(mx.sin(mx.tan(mx.sin(big))))))
    yield "sum of one row", lambda: mx.sum(mx.sin(mx.tan(mx.sin(mx.exp(mx.sin(big))))))
    yield "softmax of rows", lambda: mx.softmax(mx.sin(mx.tan(wide)), axis=-1)
    yield "sort of one row", lambda: mx.sort(big)
    yield "argsort of rows", lambda: mx.argsort(wide, axis=-1)
    yield "cumulative sum", lambda: mx.cumsum(mx.sin(mx.exp(big)))
    yield "gather", lambda: mx.take(big, at)
    yield "random numbers", lambda: mx.random.normal((120_000_000,))
    yield "loop", lambda: mx.fori_loop(0, 10_000_000, lambda i, c: mx.sin(c), big[:64])


def interrupts(rounds: int) -> None:
    import weft.core as mx

    table("work", "whole, ms", "median after Ctrl-C, ms", "longest, ms")
    for name, make in work(mx):
        result = make()
        start = time.perf_counter()
        mx.eval(result)
        whole = time.perf_counter() - start
        late = [found for found in (_struck(mx, make, whole * (k + 1) / (rounds + 2)) for k in range(rounds)) if found]
        row(name, whole * 1e3, statistics.median(late) * 1e3 if late else "-", max(late, default=0.0) * 1e3)


def _struck(mx: Any, make: Callable[[], Any], after: float) -> float | None:
    """Seconds from a Ctrl-C, `after` seconds into the work, to the moment that Python gets it; None: it came late."""
    sent: list[float] = []

    def strike() -> None:
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    result = make()
    timer = threading.Timer(after, strike)
    timer.start()
    try:
        mx.eval(result)
        done = time.perf_counter()
        timer.cancel()
        timer.join()
    except KeyboardInterrupt:
        return time.perf_counter() - sent[0]
    with contextlib.suppress(KeyboardInterrupt):
        time.sleep(0.05)
    return None if not sent or sent[0] > done else done - sent[0]


# ---- lengths that grow ----


def growing(count: int, every: int) -> None:
    import weft.core as mx

    row_of = mx.ones((1, 64))
    cache = mx.ones((1, 64))
    mx.eval(row_of, cache)
    begun, _ = memory()
    table("length", "ms a step", "MB above the start", "maps")
    last = time.perf_counter()
    for number in range(count):
        cache = mx.concatenate([cache, row_of])
        mx.eval(cache, mx.softmax(cache.sum(axis=1)) @ cache)
        if (number + 1) % every == 0:
            resident, maps = memory()
            row(number + 1, (time.perf_counter() - last) / every * 1e3, resident - begun, maps)
            last = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("programs", "interrupts", "growing", "all"))
    parser.add_argument("--kind", choices=("programs", "gradients", "compiled", "loops"), default="programs")
    parser.add_argument("--count", type=int, help="programs (100,000) or lengths (4,000)")
    parser.add_argument("--rounds", type=int, default=10, help="interrupts of each kind of work")
    options = parser.parse_args()
    os.environ["WEFT_CACHE_DIR"] = ""
    if options.what == "all":  # each in a process of its own: what one leaves is not the others'
        for what in ("programs", "interrupts", "growing"):
            print(f"\n## {what}\n", flush=True)
            subprocess.run([sys.executable, __file__, what, "--rounds", str(options.rounds)], check=True)
    elif options.what == "programs":
        count = options.count or 100_000
        programs(options.kind, count, max(1, count // 10))
    elif options.what == "interrupts":
        interrupts(options.rounds)
    else:
        count = options.count or 4_000
        growing(count, max(1, count // 8))


if __name__ == "__main__":
    main()
