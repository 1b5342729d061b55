"""Eager torch, inductor and Weft on the same models in one process: the program behind `weft bench torch`.

For each model there is a call without gradients and a step of training (loss and gradients of all parameters). The
first call counts from torch.compile on, with empty caches on disk; later calls are timed in turns, so that a slow
minute of the machine meets all three, and the best counts. With one thread that is the time of the processor, which
other programs on the machine do not count into.

    weft bench torch                    all of them
    weft bench torch gpt2 chain         some of them
    weft bench torch --threads 1        on one thread
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BACKENDS = ("eager", "inductor", "weft")
ROUNDS, SECONDS = 7, 0.3

Work = Callable[[str], Callable[[], Any]]
"""Gives what is timed, for a backend."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="weft bench torch", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="models; all of them if none is named")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--mode", choices=["inference", "training", "both"], default="both")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as caches:
        # Before torch and Weft are imported: they read these once.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(caches) / "inductor")
        os.environ["WEFT_CACHE_DIR"] = str(Path(caches) / "weft")
        os.environ["WEFT_THREADS"] = str(options.threads)
        return measure(options.names, options.threads, options.mode)


def measure(names: Sequence[str], threads: int, mode: str) -> int:
    import torch  # an optional dependency, and slow to import

    torch.set_num_threads(threads)
    known = workloads()
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"weft bench torch: there is no {unknown[0]!r}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    for backend in BACKENDS[1:]:  # what a backend needs once is no part of a model's first call
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
    print(f"torch {torch.__version__}, {threads} threads; first call in s, later calls in ms; ratios are to inductor")
    print(f"{'':24}" + "".join(f"{b + ' ' + what:>18}" for what in ("first", "later") for b in BACKENDS) + "   ratios")
    for name in names or known:
        for kind, work in known[name].items():
            if mode in (kind, "both"):
                print(row(f"{name} {kind}", work), flush=True)
    return 0


def row(name: str, work: Work) -> str:
    import torch  # an optional dependency

    first, runs = {}, {}
    for backend in BACKENDS:
        torch.manual_seed(0)
        run = work(backend)
        start = time.perf_counter()
        run()
        first[backend] = time.perf_counter() - start
        runs[backend] = run
    later = steady(runs, time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)
    torch._dynamo.reset()
    ratios = f"{first['weft'] / first['inductor']:8.2f}{later['weft'] / later['inductor']:8.2f}"
    numbers = [f"{first[b]:18.3f}" for b in BACKENDS] + [f"{later[b] * 1e3:18.4f}" for b in BACKENDS]
    return f"{name:24}{''.join(numbers)}{ratios}"


def steady(runs: dict[str, Callable[[], Any]], clock: Callable[[], float]) -> dict[str, float]:
    """Seconds of a call, the best of several rounds in turns."""
    counts = {}
    for backend, run in runs.items():
        start = clock()
        run()
        counts[backend] = max(1, int(SECONDS / ROUNDS / max(clock() - start, 1e-6)))
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for backend, run in runs.items():
            start = clock()
            for _ in range(counts[backend]):
                run()
            best[backend] = min(best[backend], (clock() - start) / counts[backend])
    return best


def workloads() -> dict[str, dict[str, Work]]:
    import torch  # an optional dependency
    import torch_nets as nets  # beside this file; needs torch

    models: dict[str, Callable[[], Any]] = {
        "gpt2": lambda: nets.gpt2(256, 4, 64, 4, 1000),
        "llama": lambda: nets.llama(256, 4, 64, 4, 1000),
        "bert": lambda: nets.bert(256, 4, 64, 4, 1000),
        "vit": lambda: nets.vit(192, 4, 64, 4),
        "resnet18": lambda: (nets.ResNet18(64, 100), (torch.randn(4, 3, 64, 64),)),
        "mobilenet_v3": lambda: (nets.MobileNetV3(16), (torch.randn(4, 3, 64, 64),)),
        "lstm": lambda: (nets.Lstm(128), (torch.randn(16, 8, 128),)),
        "unet": lambda: (nets.UNet(32), (torch.randn(2, 3, 32, 32), torch.tensor([3, 500]))),
        "mixture": lambda: (nets.Mixture(128, 8), (torch.randn(4, 32, 128),)),
        "mlp": lambda: (torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)),
                        (torch.randn(32, 64),)),
    }  # fmt: skip
    found = {name: {"inference": inference(make), "training": training(make)} for name, make in models.items()}
    found["chain"] = {"inference": chain(4_000_000)}
    found["short_chain"] = {"inference": chain(64)}
    return found


def chain(n: int) -> Work:
    """Eight operations on each of n elements."""

    def work(backend: str) -> Callable[[], Any]:
        import torch  # an optional dependency

        def fun(x: Any, y: Any) -> Any:
            return (torch.tanh((x * 2 + y) * x - y).abs().sqrt().sigmoid() + 1) * y

        x, y = torch.randn(n), torch.randn(n)
        run = compiled(fun, backend)

        def once() -> Any:
            with torch.no_grad():
                return run(x, y)

        return once

    return work


def compiled(what: Any, backend: str) -> Any:
    import torch  # an optional dependency

    return what if backend == "eager" else torch.compile(what, backend=backend)


def inference(make: Callable[[], Any]) -> Work:
    def work(backend: str) -> Callable[[], Any]:
        import torch  # an optional dependency

        model, args = make()
        run = compiled(model.eval(), backend)

        def once() -> Any:
            with torch.no_grad():
                return run(*args)

        return once

    return work


def training(make: Callable[[], Any]) -> Work:
    def work(backend: str) -> Callable[[], Any]:
        import torch_nets as nets  # beside this file; needs torch

        model, args = make()
        run = compiled(model.train(), backend)

        def once() -> None:
            model.zero_grad()
            nets.tensor_of(run(*args)).square().mean().backward()

        return once

    return work


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
