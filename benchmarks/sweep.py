"""`weft bench sweep`: many operations, shapes, dtypes and layouts on Weft, NumPy, torch and JAX.

Every peer has a process of its own. A cell is made ready on all of them, then timed in turns, several rounds; the best
of the rounds counts. Cells come in an order that is representative from the start (`sweep_cells.py`), and the results
are written as they come: stop the sweep whenever you like, call it again and it goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import report
from run import REQUIRED, Worker, environment, instructions, rotated
from sweep_cells import ALL, LAYOUTS, OPERATIONS, Cell, ordered
from sweep_report import BEHIND, Measured, Sweep, figures, write

PEERS = ("weft", "numpy", "torch", "inductor", "jax")
QUICK = 60.0
SAVED_EVERY = 20.0
"""Seconds between two looks at what there is so far."""


def main() -> int:
    arguments = parse()
    arguments.write.mkdir(parents=True, exist_ok=True)
    kept = arguments.write / "sweep.json"
    settings = {"seed": arguments.seed, "clock": arguments.clock, "avx2": arguments.avx2}
    settings |= report.machine(arguments.threads)
    sweep = Sweep.load(kept) if kept.is_file() and not arguments.again else Sweep(settings)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])  # the peers inherit it
    with tempfile.TemporaryDirectory(prefix="weft-sweep-") as scratch:
        workers = start(arguments, Path(scratch))
        sweep.versions |= {worker.peer: worker.version for worker in workers}
        try:
            if workers[:1] and workers[0].peer == REQUIRED:
                run(arguments, workers, sweep)
        except KeyboardInterrupt:
            print("stopped; what was measured so far:", file=sys.stderr)
        finally:
            for worker in workers:
                worker.stop()
    written = write(sweep, arguments.write)
    print((arguments.write / "sweep.txt").read_text().rsplit("\n\n", 1)[0])
    print(f"written: {', '.join(map(str, written))}")
    print("\n".join(figures(sweep)))
    return 0 if sweep.cells else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weft bench sweep", description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", default=",".join(OPERATIONS), help=f"of {', '.join(OPERATIONS)}")
    parser.add_argument("--dtypes", default=",".join(ALL), help=f"of {', '.join(ALL)}")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help=f"of {', '.join(LAYOUTS)}")
    parser.add_argument("--cells", default="", help="names of cells, as the table has them, instead of a choice")
    parser.add_argument("--peers", default="numpy,torch,inductor,jax", help="of numpy, torch, inductor, jax")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="the Python of this peer")
    parser.add_argument("--budget", type=float, default=0.0, help="seconds for the whole sweep (default: all cells)")
    parser.add_argument("--quick", action="store_true", help=f"the same as --budget {QUICK:g}")
    parser.add_argument("--rounds", type=int, default=3, help="turns of a cell (default: %(default)s)")
    parser.add_argument("--turn", type=float, default=0.03, help="seconds of a turn (default: %(default)s)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds before a peer is given up on a cell")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (default: all)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu on a busy machine, one thread")
    parser.add_argument("--avx2", action="store_true", help="as on a machine without AVX-512, for all peers")
    parser.add_argument("--memory", type=float, default=8.0, help="GiB that all peers may take (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the cells")
    parser.add_argument("--again", action="store_true", help="forget what was measured before")
    parser.add_argument("--write", type=Path, default=Path("weft-sweep"), metavar="FOLDER", help="for the results")
    arguments = parser.parse_args()
    for name, known in (("operations", tuple(OPERATIONS)), ("dtypes", ALL), ("layouts", LAYOUTS), ("peers", PEERS)):
        chosen = [word for word in getattr(arguments, name).split(",") if word]
        if unknown := [word for word in chosen if word not in known]:
            parser.error(f"no such {name}: {', '.join(unknown)}; there are {', '.join(known)}")
        setattr(arguments, name, chosen)
    arguments.peers = [REQUIRED, *(peer for peer in arguments.peers if peer != REQUIRED)]
    arguments.cells = [Cell.named(name) for name in arguments.cells.split(",") if name]
    arguments.pythons = dict(pair.split("=", 1) for pair in arguments.python if "=" in pair)
    arguments.budget = QUICK if arguments.quick else arguments.budget
    return arguments


def start(arguments: argparse.Namespace, scratch: Path, program: str = "sweep_worker.py") -> list[Worker]:
    """A process for each peer that is there; a line for each that is not."""
    workers = []
    for peer in arguments.peers:
        variables = environment(peer, arguments.threads, scratch) | instructions(arguments)
        python = arguments.pythons.get(peer) or arguments.pythons.get({"inductor": "torch"}.get(peer, ""))
        script = (program, arguments.clock)
        worker = Worker(peer, python or sys.executable, arguments.threads, variables, scratch / f"{peer}.log", script)
        if reason := worker.start():
            print(f"{peer} stays out: {reason}", file=sys.stderr)
        else:
            workers.append(worker)
    return workers


def run(arguments: argparse.Namespace, workers: list[Worker], sweep: Sweep) -> None:
    """Measure cell after cell until all are done or the time is over."""
    end = time.monotonic() + arguments.budget if arguments.budget else float("inf")
    memory = arguments.memory * 2**30 / len(workers)
    cells = arguments.cells or ordered(
        arguments.operations, arguments.dtypes, arguments.layouts, seed=arguments.seed, memory=memory
    )
    saved = time.monotonic()
    for cell in cells:
        if time.monotonic() > end:
            return
        if cell.name in sweep.cells:
            continue
        sweep.cells[cell.name] = measured(arguments, workers, cell.name)
        if time.monotonic() > saved + SAVED_EVERY:
            write(sweep, arguments.write)
            saved = time.monotonic()


def measured(arguments: argparse.Namespace, workers: list[Worker], name: str) -> Measured:
    """One cell on all peers: made ready, then timed in turns."""
    found, ready = Measured(), []

    def ask(worker: Worker, what: str, **details: Any) -> dict[str, Any]:
        answer = worker.ask({"do": what, "with": details}, arguments.timeout)
        if "error" in answer:
            found.errors[worker.peer] = answer["error"]
        return answer

    for worker in workers:
        answer = ask(worker, "prepare", name=name)
        if "first" in answer:
            found.first[worker.peer] = answer["first"]
            ready.append(worker)
    for number in range(arguments.rounds):
        for worker in rotated(ready, number):
            for other in ready:
                other.settle()
            answer = ask(worker, "time", budget=arguments.turn)
            if "seconds" in answer:
                found.seconds[worker.peer] = min(answer["seconds"], found.seconds.get(worker.peer, float("inf")))
    if (ratio := found.ratio) is not None and ratio < BEHIND:
        answer = ask(workers[0], "limit", seconds=found.seconds[REQUIRED])
        found.limit, found.share = answer.get("limit", "unknown"), answer.get("share")
    return found


if __name__ == "__main__":
    sys.exit(main())
