"""Times Weft beside MLX, JAX and torch: the program behind `weft bench` and `make bench`.

Each peer runs in a process of its own (`worker.py`) and, if asked, under a Python of its own. The measurements are
interleaved: one workload on all peers, then the next, and the whole in several rounds, so that a slow minute of the
machine meets everybody. A round starts new processes; all on-disk caches begin empty, so the first round shows what a
new program costs and the later ones what it costs a second process. The best of the rounds is reported.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import report
from catalog import GROUPS, PEERS
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

HERE = Path(__file__).resolve().parent
REQUIRED, EARLIER = "weft", "earlier"
START_TIMEOUT = 120.0
SETTLE_TIMEOUT = 0.5
"""Seconds that a peer gets to let its threads sleep."""
AVX2 = {
    "WEFT_CPU": "x86-64-v3",
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
    "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
}
"""What keeps all peers from wider vectors than those of AVX2."""


@dataclass
class Worker:
    """One peer's process; started on the first question, and again after it died."""

    peer: str
    python: str
    threads: int
    environment: dict[str, str]
    log: Path
    script: tuple[str, ...] = ("worker.py",)
    """The program, and what it is told after the peer and the threads."""
    process: subprocess.Popen[str] | None = None
    version: str = ""
    names: list[str] = field(default_factory=list)

    def start(self) -> str | None:
        """Start the process; the reason why the peer is not there, or None."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [self.python, str(HERE / self.script[0]), self.peer, str(self.threads), *self.script[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=self.environment,
            )
        hello = self._read(START_TIMEOUT)
        if "error" in hello:
            self.stop()
            return str(hello["error"])
        self.version, self.names = hello["version"], hello["names"]
        return None

    def ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Have something timed. A crash or a time-out is an answer too; the next question gets a new process."""
        if self.process is None and (reason := self.start()):
            return {"error": reason}
        assert self.process is not None
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it died; reading says how
        answer = self._read(timeout)
        if answer.get("died"):
            self.stop()
        return answer

    def settle(self) -> None:
        """Wait until no thread of the process runs. Pools of threads stay awake for some hundredths of a second after a
        call, on processors that the peer whose turn it is needs."""
        end = time.monotonic() + SETTLE_TIMEOUT
        while self._runs() and time.monotonic() < end:
            time.sleep(1e-3)

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.process.communicate()
        self.process = None

    def _runs(self) -> bool:
        """Whether some thread of the process is running, or could be."""
        if self.process is None:
            return False
        for state in Path(f"/proc/{self.process.pid}/task").glob("*/stat"):
            try:
                if state.read_text().rpartition(")")[2].split()[0] == "R":
                    return True
            except OSError:  # a thread that has just ended
                continue
        return False

    def _read(self, timeout: float) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                return {"error": f"no answer within {timeout:.0f} s", "died": True}
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        tail = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        return {"error": f"the process ended with status {self.process.wait()}: {' '.join(tail)}", "died": True}


def main() -> int:
    arguments = parse()
    console = Console()
    cores = sorted(os.sched_getaffinity(0))[: arguments.threads]
    os.sched_setaffinity(0, cores)  # the children inherit it, and no peer can use more than it is told to
    with tempfile.TemporaryDirectory(prefix="weft-bench-") as scratch:
        workers, absent = find_peers(arguments, len(cores), Path(scratch))
        for peer, reason in absent.items():
            console.print(f"[yellow]{peer} stays out:[/] {reason}", highlight=False)
        if REQUIRED in absent:
            return 1
        known = list(dict.fromkeys(name for worker in workers for name in worker.names))
        asked = [name for given in arguments.names for name in GROUPS.get(given, [given])]
        names = [name for name in known if not asked or name in asked]
        if unknown := [name for name in asked if name not in known]:
            console.print(f"no such workload: {', '.join(unknown)}; there are {', '.join(known)}", highlight=False)
            return 2
        results = report.Results(
            machine=report.machine(len(cores)),
            versions={worker.peer: worker.version for worker in workers if worker.peer != "copy"},
            rounds=arguments.rounds,
            budget_s=arguments.budget,
        )
        try:
            measure(arguments, workers, names, results, console)
        except KeyboardInterrupt:
            console.print("stopped; what was measured so far:")
        finally:
            for worker in workers:
                worker.stop()
    report.show(results, console)
    if arguments.json:
        arguments.json.write_text(json.dumps(results.as_dict(), indent=1) + "\n")
    if arguments.write:
        kept = report.kept_sections(arguments.write.read_text()) if arguments.write.is_file() else ""
        arguments.write.write_text(report.markdown(results) + kept)
        console.print(f"written to {arguments.write}", highlight=False)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="weft bench", description="Time Weft beside the peers that are installed.")
    parser.add_argument("names", nargs="*", help="the workloads (or groups: conv) to run; all of them if none is named")
    parser.add_argument(
        "--peers", default="mlx,jax,torch", help="of mlx, jax, torch, torch-eager (default: %(default)s)"
    )
    parser.add_argument(
        "--python", action="append", default=[], metavar="PEER=PATH", help="the Python that has this peer"
    )
    parser.add_argument(
        "--earlier", type=Path, metavar="DIR", help="another checkout of Weft, as a peer: before and after in one run"
    )
    parser.add_argument("--rounds", type=int, default=3, help="times through the list (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds per measurement (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="cores to use (default: all)")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu on a busy machine, one thread")
    parser.add_argument("--avx2", action="store_true", help="as on a machine without AVX-512, for all peers")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds before a workload is given up")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to FILE")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the tables to FILE as Markdown")
    arguments = parser.parse_args()
    arguments.peers = [REQUIRED, *(peer for peer in arguments.peers.split(",") if peer and peer != REQUIRED)]
    if arguments.earlier:
        if not (arguments.earlier / "weft" / "__init__.py").is_file():
            parser.error(f"--earlier wants a checkout of Weft; there is none in {arguments.earlier}")
        arguments.peers = list(dict.fromkeys([*arguments.peers, EARLIER]))
    elif EARLIER in arguments.peers:
        parser.error("the peer `earlier` wants --earlier DIR")
    if unknown := [peer for peer in arguments.peers if peer not in PEERS]:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(PEERS)}")
    pairs = [pair.partition("=") for pair in arguments.python]
    if any(peer not in PEERS or not path for peer, _, path in pairs):
        parser.error("--python wants PEER=PATH, for example --python jax=/opt/jax/bin/python")
    if arguments.rounds < 1 or arguments.threads < 1:
        parser.error("--rounds and --threads start at 1")
    arguments.pythons = {peer: path for peer, _, path in pairs}
    return arguments


def find_peers(arguments: argparse.Namespace, threads: int, scratch: Path) -> tuple[list[Worker], dict[str, str]]:
    """The workers that start, and why the others do not. `copy` is the yardstick, not a peer."""
    workers, absent = [], {}
    for peer in [*arguments.peers, "copy"]:
        python = arguments.pythons.get(peer, sys.executable)
        variables = environment(peer, threads, scratch, arguments.earlier if peer == EARLIER else HERE.parent)
        variables |= instructions(arguments)
        script = ("worker.py", arguments.clock)
        worker = Worker(peer, python, threads, variables, scratch / f"{peer}.log", script)
        try:
            reason = worker.start()
        except OSError as error:
            reason = f"cannot run {python}: {error.strerror}"
        if reason is None:
            workers.append(worker)
        else:
            absent[peer] = reason
    return workers, absent


def environment(peer: str, threads: int, scratch: Path, sources: Path = HERE.parent) -> dict[str, str]:
    """The variables of a worker: the same number of threads for all, and caches that begin empty. Weft comes from these
    sources, if it is there."""
    folder = scratch / peer
    folder.mkdir()
    counts = ("WEFT_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    variables = {**os.environ, **dict.fromkeys(counts, str(threads)), "TMPDIR": str(folder)}
    variables |= {"WEFT_CACHE_DIR": str(folder / "weft"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}
    variables.pop("JAX_COMPILATION_CACHE_DIR", None)
    if peer in (REQUIRED, EARLIER) and (sources / "weft" / "__init__.py").is_file():
        # As pip leaves an installed package, the peers among them: no module is parsed while a first call is timed.
        compileall.compile_dir(sources / "weft", quiet=2)
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(sources), variables.get("PYTHONPATH")]))
    return variables


def instructions(arguments: argparse.Namespace) -> dict[str, str]:
    """Variables that hold the peers to the instructions and the threads that the call asks for."""
    variables = dict(AVX2) if arguments.avx2 else {}
    if arguments.threads == 1:
        flags = variables.get("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))
        variables["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen=false {flags}".strip()
    return variables


def measure(
    arguments: argparse.Namespace,
    workers: list[Worker],
    names: list[str],
    results: report.Results,
    console: Console,
) -> None:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting")
        for number in range(arguments.rounds):
            for worker in workers:
                progress.update(task, description=f"round {number + 1}/{arguments.rounds}: import {worker.peer}")
                if worker.peer in PEERS:
                    results.imports.setdefault(worker.peer, []).append(import_seconds(worker))
            for name in names:
                for worker in rotated(workers, number):
                    for other in workers:
                        other.settle()
                    progress.update(task, description=f"round {number + 1}/{arguments.rounds}: {name} on {worker.peer}")
                    answer = worker.ask({"name": name, "budget": arguments.budget}, arguments.timeout)
                    if not answer.get("missing"):
                        results.add(name, worker.peer, number, answer)
            for worker in workers:
                worker.stop()


def rotated(workers: list[Worker], by: int) -> Iterator[Worker]:
    """The same workers, starting with another one: nobody is always the one who runs on a warm machine."""
    return (workers[(place + by) % len(workers)] for place in range(len(workers)))


def import_seconds(worker: Worker) -> float:
    """What importing the peer adds to starting Python."""
    module, _ = PEERS[worker.peer]
    return max(0.0, wall(worker, f"import {module}") - wall(worker, "pass"))


def wall(worker: Worker, code: str, tries: Iterable[int] = range(3)) -> float:
    times = []
    for _ in tries:
        start = time.perf_counter()
        subprocess.run([worker.python, "-c", code], env=worker.environment, check=True, stderr=subprocess.DEVNULL)
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    sys.exit(main())
