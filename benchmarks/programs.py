"""`weft bench programs`: small programs that people run, beside torch and JAX.

Some seventy programs (`programs_texts.py`) of statistics, simulation, language models, images, signals, geometry,
derivatives, optimizers and bits, each written once for all peers. Each peer has a process of its own, and all take
turns on every program. Times are written as they come: stop it when you like, call it again and it goes on where it
was. With `--compare` results are compared with those of float64 instead.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import report
from programs_texts import PROGRAMS
from run import REQUIRED, Worker
from sweep import measured, start
from sweep_report import Sweep, geometric_mean, table

PEERS = ("torch", "inductor", "jax")
WIDE = ("numpy", "torch")
"""Who computes the float64 result: the first of them that has all words of a program."""
SCRIPT = "programs_worker.py"


def main() -> int:
    arguments = parse()
    arguments.write.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])  # the peers inherit it
    with tempfile.TemporaryDirectory(prefix="weft-programs-") as scratch:
        workers = start(arguments, Path(scratch), SCRIPT)
        try:
            return (compared if arguments.compare else timed)(arguments, workers, Path(scratch))
        finally:
            for worker in workers:
                worker.stop()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weft bench programs", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PROGRAMS)} (default: all)")
    parser.add_argument("--peers", default="torch,jax", help=f"of {', '.join(PEERS)} (default: %(default)s)")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="the Python of this peer")
    parser.add_argument("--compare", action="store_true", help="compare results instead of times")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds for all of them (default: no limit)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of a program (default: %(default)s)")
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of a turn (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds before a peer is given up on a program")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (default: all)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu on a busy machine, one thread")
    parser.add_argument("--avx2", action="store_true", help="as on a machine without AVX-512, for all peers")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--write", type=Path, default=Path("weft-programs"), metavar="FOLDER", help="for the results")
    arguments = parser.parse_args()
    chosen = [word for word in arguments.peers.split(",") if word]
    for what, given, known in (("peer", chosen, PEERS), ("program", arguments.names, tuple(PROGRAMS))):
        if unknown := [word for word in given if word not in known]:
            parser.error(f"no such {what}: {', '.join(unknown)}; there are {', '.join(known)}")
    arguments.peers = list(dict.fromkeys([REQUIRED, *chosen, *(WIDE if arguments.compare else ())]))
    arguments.names = arguments.names or list(PROGRAMS)
    arguments.pythons = dict(pair.split("=", 1) for pair in arguments.python if "=" in pair)
    return arguments


def timed(arguments: argparse.Namespace, workers: list[Worker], scratch: Path) -> int:
    """Time program after program until all are done or the budget is spent; a table of what was measured so far."""
    kept, end = arguments.write / "programs.json", time.monotonic() + arguments.budget
    settings = {"clock": arguments.clock, "avx2": arguments.avx2} | report.machine(arguments.threads)
    found = Sweep.load(kept) if kept.is_file() and not arguments.again else Sweep(settings)
    found.versions |= {worker.peer: worker.version for worker in workers}
    try:
        for name in arguments.names:
            if name not in found.cells and time.monotonic() < end:
                found.cells[name] = measured(arguments, workers, name)
                found.save(kept)
    except KeyboardInterrupt:
        print("stopped; what was measured so far:", file=sys.stderr)
    text = first_calls(found) + "\n\n" + table(found)
    (arguments.write / "programs.txt").write_text(text)
    print(text, end="")
    return 0 if found.cells else 1


def first_calls(found: Sweep) -> str:
    """Seconds to the first results: the geometric mean of the fastest other peer's over Weft's, and the worst."""
    ratios = {
        name: min(others) / cell.first[REQUIRED]
        for name, cell in found.cells.items()
        if REQUIRED in cell.first and (others := [t for peer, t in cell.first.items() if peer in ("jax", "inductor")])
    }
    if not ratios:
        return "first calls: none beside a peer that compiles"
    worst = sorted(ratios, key=ratios.__getitem__)[:8]
    named = ", ".join(f"{name} {ratios[name]:.2f}" for name in worst)
    return f"first calls, of peers that compile: geometric mean {geometric_mean(ratios.values()):.2f}, worst {named}"


def compared(arguments: argparse.Namespace, workers: list[Worker], scratch: Path) -> int:
    """How far each peer's results are from the same program's in float64."""
    peers = [worker for worker in workers if worker.peer != WIDE[0]]
    wide = [worker for name in WIDE for worker in workers if worker.peer == name]
    width = max(map(len, arguments.names))
    print(f"{'program':{width}} " + "".join(f"{worker.peer:>10}" for worker in peers))
    behind = 0
    for name in arguments.names:
        bound = PROGRAMS[name].error
        if bound is None:
            continue
        exact = next((found for worker in wide if (found := results(arguments, worker, name, scratch, True))), None)
        if exact is None:
            print(f"{name:{width}} nobody computes it in float64")
            continue
        errors = [error_of(results(arguments, worker, name, scratch), exact) for worker in peers]
        behind += not errors[0] <= bound
        marked = "" if errors[0] <= bound else f"  above {bound:.0e}"
        print(f"{name:{width}} " + "".join(f"{error:10.1e}" for error in errors) + marked, flush=True)
    return 1 if behind else 0


def results(
    arguments: argparse.Namespace, worker: Worker, name: str, scratch: Path, wide: bool = False
) -> list[np.ndarray] | None:
    """What a program returns on a peer, or None where the peer lacks a word of it."""
    path = scratch / f"{worker.peer}.npz"
    answer = worker.ask({"do": "result", "with": {"name": name, "path": str(path), "wide": wide}}, arguments.timeout)
    if "error" in answer:
        print(f"{name}, {worker.peer}: {answer['error']}", file=sys.stderr)
    if "written" not in answer:
        return None
    with np.load(path) as file:
        return [file[f"arr_{i}"].astype(np.float64) for i in range(len(file.files))]


def error_of(found: list[np.ndarray] | None, exact: list[np.ndarray]) -> float:
    """The largest distance of a result, relative to it, in the 2-norm; NaN where there is none."""
    if found is None or [x.shape for x in found] != [x.shape for x in exact]:
        return math.nan
    pairs = zip(found, exact, strict=True)
    return max(float(np.linalg.norm(x - y) / max(float(np.linalg.norm(y)), 1e-30)) for x, y in pairs)


if __name__ == "__main__":
    sys.exit(main())
