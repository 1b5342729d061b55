"""Eager torch, inductor and Weft on the same models in one process: the program behind `weft bench torch`.

For each model there is a call without gradients and a step of training (loss and gradients of all parameters), each in
a process of its own. The first call counts from torch.compile on, with empty caches on disk, after torch has traced the
model once without a compiler (what it imports and remembers for that helps whichever comes next) and after garbage of
the one before is collected. Later calls are timed in turns, so that a slow minute of the machine meets all three, and
the best counts. With one thread all of that is the time of the processor, which other programs on the machine do not
count into; of first calls also that of the compilers which inductor runs, one after the other then.

    weft bench torch                    all of them
    weft bench torch gpt2 chain         some of them
    weft bench torch --threads 1        on one thread
"""

from __future__ import annotations

import argparse
import compileall
import gc
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import weft

BACKENDS = ("eager", "inductor", "weft")
ROUNDS, SECONDS = 7, 0.3
CHAINS = {"chain": 4_000_000, "short_chain": 64}
NAMES = ("gpt2", "llama", "bert", "vit", "resnet18", "mobilenet_v3", "lstm", "unet", "mixture", "mlp", *CHAINS)

Work = Callable[[str], Callable[[], Any]]
"""Gives what is timed, for a backend."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="weft bench torch", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="models; all of them if none is named")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--mode", choices=["inference", "training", "both"], default="both")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        print(f"weft bench torch: there is no {unknown[0]!r}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    # As pip leaves an installed package, torch among them: no module is parsed while a first call is timed.
    compileall.compile_dir(Path(weft.__file__).parent, quiet=2)
    print(f"{options.threads} threads; first call in s, later calls in ms; ratios are to inductor")
    print(f"{'':24}" + "".join(f"{b + ' ' + what:>18}" for what in ("first", "later") for b in BACKENDS) + "   ratios")
    for name in options.names or NAMES:
        for kind in ("inference",) if name in CHAINS else ("inference", "training"):
            if options.mode in (kind, "both"):
                sys.stdout.flush()
                apart = multiprocessing.get_context("spawn").Process(target=measure, args=(name, kind, options.threads))
                apart.start()
                apart.join()
    return 0


def measure(name: str, kind: str, threads: int) -> None:
    """Print the row of one workload."""
    with tempfile.TemporaryDirectory() as caches:
        # Before torch and Weft are imported: they read these once.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(caches) / "inductor")
        os.environ["WEFT_CACHE_DIR"] = str(Path(caches) / "weft")
        os.environ["WEFT_THREADS"] = str(threads)
        if threads == 1:
            os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        import torch  # an optional dependency, and slow to import

        torch.set_num_threads(threads)
        for backend in BACKENDS[1:]:  # what a backend needs once is no part of a model's first call
            torch.compile(lambda x: x + 1, backend=backend)(torch.ones(3))
        print(row(f"{name} {kind}", workloads()[name][kind]), flush=True)


def row(name: str, work: Work) -> str:
    import torch  # an optional dependency

    alone = torch.get_num_threads() == 1
    work("aot_eager")()
    torch._dynamo.reset()
    first, runs = {}, {}
    clock = all_processor_time if alone else time.perf_counter
    for backend in BACKENDS:
        torch.manual_seed(0)
        run = work(backend)
        gc.collect()  # what others left behind is not this one's to look through
        start = clock()
        run()
        first[backend] = clock() - start
        runs[backend] = run
    later = steady(runs, time.thread_time if alone else time.perf_counter)
    torch._dynamo.reset()
    ratios = f"{first['weft'] / first['inductor']:8.2f}{later['weft'] / later['inductor']:8.2f}"
    numbers = [f"{first[b]:18.3f}" for b in BACKENDS] + [f"{later[b] * 1e3:18.4f}" for b in BACKENDS]
    return f"{name:24}{''.join(numbers)}{ratios}"


def all_processor_time() -> float:
    """Seconds that this process has computed for, and programs that it has run."""
    return sum(os.times()[:4])


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
    return found | {name: {"inference": chain(n)} for name, n in CHAINS.items()}


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
