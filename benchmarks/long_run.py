"""What a process that runs for months meets: programs that never come again, Ctrl-C, and lengths that grow.

    python benchmarks/long_run.py programs --count 100000      milliseconds, memory and maps, as programs go by
    python benchmarks/long_run.py interrupts                   how long native work goes on after Ctrl-C
    python benchmarks/long_run.py growing                      caches that get longer by one at each step

Each subcommand prints a table in Markdown. Programs are compiled anew (no kernels are read from disk, or kept there),
at the level that WEFT_LLVM_LEVEL says.
"""

from __future__ import annotations

import argparse
import itertools
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
    table(kind, "ms a program", "ms of CPU time", "MB above the start", "maps")
    last, used = time.perf_counter(), time.process_time()
    for number in range(count):
        mx.eval(made(mx, kind, number, x, y))
        if (number + 1) % every == 0:
            taken, spent = time.perf_counter() - last, time.process_time() - used
            resident, maps = memory()
            row(number + 1, taken / every * 1e3, spent / every * 1e3, resident - begun, maps)
            last, used = time.perf_counter(), time.process_time()


# ---- Ctrl-C ----


def work(mx: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Native work that takes long, and the arrays that it gives; each makes its own operands."""

    def normal(*shape: int) -> Any:
        x = mx.random.normal(shape)
        mx.eval(x)
        return x

    a = normal(6000, 6000)
    yield "product of 6000 x 6000", lambda: a @ a
    a = normal(256, 200_000)
    yield "product, sums of 200,000", lambda: a @ a.T
    a = normal(250_000_000)  # 1 GB
    yield "elementwise, 1 GB", lambda: mx.tan(mx.sin(a * 0.5)) + mx.exp(mx.sin(a))
    yield "the same in place", lambda: mx.tan(mx.sin((a + 1) * 0.5) * 0.3)
    yield "sum of one row, 1 GB", lambda: mx.sum(mx.tan(mx.sin(a)))
    a = normal(20_000_000)
    yield "sort of one row", lambda: mx.sort(a)
    yield "argsort of one row", lambda: mx.argsort(a)
    whole = (a * 1e9).astype(mx.int64)
    mx.eval(whole)
    yield "sort of one row of int64", lambda: mx.sort(whole)
    yield "partition of one row", lambda: mx.partition(a, 10_000_000)
    yield "argpartition of one row", lambda: mx.argpartition(a, 10_000_000)
    yield "cumulative sum of one row", lambda: mx.cumsum(mx.sin(mx.exp(a)))
    yield "logcumsumexp of one row", lambda: mx.logcumsumexp(a)
    at = mx.random.randint(0, 20_000_000, (60_000_000,))
    mx.eval(at)
    yield "gather", lambda: mx.take(a, at)
    yield "scatter", lambda: mx.zeros((20_000_000,)).at[at].add(1.0)
    a = normal(4, 10_000_000)
    yield "argsort of rows", lambda: mx.argsort(a, axis=-1)
    yield "softmax of rows", lambda: mx.softmax(mx.sin(mx.tan(a)), axis=-1)
    a = normal(40_000_000, 2)
    yield "sum of long columns", lambda: mx.sum(mx.sin(a), axis=0)
    a, w = normal(8, 256, 256, 32), normal(64, 5, 5, 32)
    yield "convolution", lambda: mx.conv2d(a, w)
    yield "its weight gradient", lambda: mx.grad(lambda w: mx.sum(mx.conv2d(a, w)))(w)
    a = normal(1 << 25)
    yield "FFT", lambda: mx.fft.fft(a)
    yield "real FFT of rows", lambda: mx.fft.rfft(a.reshape(-1, 1024))
    a = normal(12_000, 12_000)
    yield "transposed copy", lambda: mx.contiguous(a.T)
    yield "joined", lambda: mx.concatenate([a, a], axis=1)
    q = normal(1, 1, 16_384, 64)
    yield "attention, 16,384 tokens", lambda: mx.fast.scaled_dot_product_attention(q, q, q, scale=0.1)
    packed, a = mx.quantize(normal(8192, 8192), bits=4), normal(512, 8192)
    yield "quantized product", lambda: mx.quantized_matmul(a, *packed, bits=4)
    yield "random numbers", lambda: mx.random.normal((120_000_000,))
    a = normal(64)
    yield "loop, elementwise steps", lambda: mx.fori_loop(0, 10_000_000, lambda i, c: mx.sin(c), a)
    yield "loop, sorting steps", lambda: mx.fori_loop(0, 10_000_000, lambda i, c: mx.sort(mx.sin(c)), a)
    a = normal(3000, 3000)
    yield "LAPACK, one matrix", lambda: mx.linalg.inv(a)
    a = normal(20_000, 24, 24)
    yield "LAPACK, many matrices", lambda: mx.linalg.svd(a, stream=mx.cpu)
    a = normal(1_000_000, 6, 6)
    yield "small matrices", lambda: mx.linalg.inv(a)


def compiling(mx: Any) -> Callable[[], Any]:
    """A program of many kernels, new at each call: nothing but LLVM's work."""
    numbers = itertools.count()

    def make() -> Any:
        x = mx.random.normal((8, 8))
        return [mx.softmax(expression(mx, next(numbers) * 7919 % 8**7, x, x) @ x) for _ in range(100)]

    return make


def interrupts(rounds: int, only: str) -> None:
    import weft.core as mx

    table("work", "whole, ms", "median after Ctrl-C, ms", "longest, ms")
    for name, make in itertools.chain(work(mx), [("compiling 200 kernels", compiling(mx))]):
        if only not in name:
            continue
        whole = min(_whole(mx, make) for _ in range(2))  # the first one compiles, and touches new memory
        late = [found for found in (_struck(mx, make, whole * (k + 1) / (rounds + 2)) for k in range(rounds)) if found]
        row(name, whole * 1e3, statistics.median(late) * 1e3 if late else "-", max(late, default=0.0) * 1e3)


def _whole(mx: Any, make: Callable[[], Any]) -> float:
    result = make()
    start = time.perf_counter()
    mx.eval(result)
    return time.perf_counter() - start


def _struck(mx: Any, make: Callable[[], Any], after: float) -> float | None:
    """Seconds from a Ctrl-C, `after` seconds into the work, to the moment that Python gets it; None: it came late."""
    sent: list[float] = []

    def strike() -> None:
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)

    result = make()
    timer = threading.Timer(after, strike)
    done = 0.0
    try:
        timer.start()
        mx.eval(result)
        done = time.perf_counter()
        timer.cancel()
        timer.join()
        time.sleep(0.05)
    except KeyboardInterrupt:
        done = done or time.perf_counter()
    timer.join()
    return None if not sent or sent[0] > done else done - sent[0]


# ---- lengths that grow ----

WIDTH, HEADS = 64, 4


class Clock:
    """Where the time of a step goes: seconds inside of functions, less those inside of others that are looked at."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self.calls: dict[str, int] = {}
        self._inner: list[float] = []

    def watch(self, owner: Any, name: str, label: str, weigh: Callable[..., int] = lambda *args: 1) -> None:
        """Count a function's time, and its calls by weight, under a label."""
        real = getattr(owner, name)
        self.spent.setdefault(label, 0.0)
        self.calls.setdefault(label, 0)

        def timed(*args: Any, **options: Any) -> Any:
            self.calls[label] += weigh(*args)
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return real(*args, **options)
            finally:
                whole = time.perf_counter() - start
                self.spent[label] += whole - self._inner.pop()
                if self._inner:
                    self._inner[-1] += whole

        setattr(owner, name, timed)


def watched() -> Clock:
    from weft import evaluate, targets
    from weft.llvm import engine
    from weft.runtime.program import Program
    from weft.transforms import tracing

    clock = Clock()
    clock.watch(tracing.Attempt, "run", "tracing")
    clock.watch(evaluate.programs, "new_program", "planning")
    clock.watch(targets, "compile_alike", "planning")
    clock.watch(engine, "_compile", "code generation", lambda target, jobs: len(jobs))
    clock.watch(Program, "run", "kernels")
    return clock


def attention(mx: Any, q: Any, keys: Any, values: Any) -> Any:
    return mx.softmax(q @ keys.swapaxes(-1, -2) * (WIDTH // HEADS) ** -0.5, axis=-1) @ values


def joined(mx: Any) -> Callable[[Any, Any, int], Any]:
    """A cache that each step makes longer, and its mean."""

    def step(cache: Any, x: Any, n: int) -> Any:
        cache = mx.concatenate([cache, x], axis=1)
        return cache.mean(axis=1), cache

    return step


def attended(mx: Any) -> Callable[[Any, Any, int], Any]:
    """Attention over a cache that each step makes longer."""

    def step(cache: Any, x: Any, n: int) -> Any:
        keys = mx.concatenate([cache[0], x], axis=1)
        values = mx.concatenate([cache[1], mx.sin(x)], axis=1)
        return attention(mx, x, keys, values), (keys, values)

    return step


def written(mx: Any) -> Callable[[Any, Any, int], Any]:
    """Attention over a cache that has room, and is written into."""

    def step(cache: Any, x: Any, n: int) -> Any:
        keys, values = cache
        keys[:, n : n + 1] = x
        values[:, n : n + 1] = mx.sin(x)
        return attention(mx, x, keys[:, : n + 1], values[:, : n + 1]), (keys, values)

    return step


GROWING: dict[str, Callable[[Any], Callable[[Any, Any, int], Any]]] = {
    "concatenate": joined,
    "attention": attended,
    "preallocated": written,
}


def growing(name: str, compiled: bool, count: int, every: int) -> None:
    """One step for each length. Times are microseconds of a step, medians since the row before; what is left of a step
    is Python. Memory is that of Python: buffers, in use and idle, are counted apart."""
    import weft.core as mx

    clock = watched()
    step = GROWING[name](mx)
    if compiled:
        step = mx.compile(step)
    size = WIDTH // HEADS
    x = mx.random.normal((HEADS, 1, size))
    cache = x if name == "concatenate" else (x, x)
    if name == "preallocated":
        cache = (mx.zeros((HEADS, count + 1, size)), mx.zeros((HEADS, count + 1, size)))
    mx.eval(x, cache)
    labels = [*clock.spent]
    table(f"{name}{', compiled' if compiled else ''}", "step", *labels, "kernels compiled", "MB more", "MB of buffers")
    begun, steps = memory()[0] - buffers(mx), []
    for number in range(1, count + 1):
        before, start = [clock.spent[label] for label in labels], time.perf_counter()
        y, cache = step(cache, x, number)
        mx.eval(y, cache)
        whole = time.perf_counter() - start
        steps.append([whole, *[clock.spent[label] - spent for label, spent in zip(labels, before, strict=True)]])
        if number in (10, 100) or number % every == 0:
            times = [statistics.median(column) * 1e6 for column in zip(*steps, strict=True)]
            row(number, *times, clock.calls["code generation"], memory()[0] - buffers(mx) - begun, buffers(mx))
            steps.clear()


def buffers(mx: Any) -> float:
    """Megabytes of arrays, and of memory that is kept for others."""
    return float(mx.get_active_memory() + mx.get_cache_memory()) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("programs", "interrupts", "growing", "all"))
    parser.add_argument("--kind", choices=("programs", "gradients", "compiled", "loops"), default="programs")
    parser.add_argument("--count", type=int, help="programs (100,000) or lengths (4,000)")
    parser.add_argument("--of", choices=tuple(GROWING), help="what grows (all of them, one by one)")
    parser.add_argument("--compiled", action="store_true", help="the growing step under `compile`")
    parser.add_argument("--only", default="", help="interrupt the kinds of work with this in their names")
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
        interrupts(options.rounds, options.only)
    elif options.of is None:
        for name, way in itertools.product(GROWING, ([], ["--compiled"])):
            print(flush=True)
            count = str(options.count or 4_000)
            subprocess.run([sys.executable, __file__, "growing", "--of", name, "--count", count, *way], check=True)
    else:
        growing(options.of, options.compiled, options.count or 4_000, max(1, (options.count or 4_000) // 4))


if __name__ == "__main__":
    main()
