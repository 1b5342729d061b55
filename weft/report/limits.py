"""What this machine can do and what kernels take: measured, because data sheets do not know the neighbours.

The limits are the bandwidth of a threaded copy at three sizes (first caches, last cache, memory) and the rate of a
matrix product. They are measured once in some tenths of a second and kept with the compiled kernels.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from weft import dtypes as dt
from weft.config import config
from weft.dtypes import Dtype
from weft.graph.node import Graph, Node, kind_of
from weft.llvm import engine
from weft.llvm.cache import ObjectCache
from weft.passes.executable import Executable, commands_of
from weft.passes.lower import Item
from weft.passes.memory import Plan
from weft.passes.pipeline import plan
from weft.primitives.base import Parameter, bind
from weft.primitives.contraction import Matmul
from weft.primitives.elementwise import Negative
from weft.runtime.buffer import allocate
from weft.runtime.data import Buffer, to_buffer
from weft.targets import CPU
from weft.version import __version__

COPIES = (1 << 16, 1 << 20, 1 << 25)
"""Bytes that are copied to measure bandwidth; twice as many are moved."""
REPEATS = 4
SIDE = 384
"""Rows and columns of the matrices of the product."""


@dataclass(frozen=True)
class Limits:
    """Bytes per second by the bytes that are in use, and floating-point operations per second by dtype."""

    bandwidth: tuple[tuple[int, float], ...]
    flops: dict[str, float]
    threads: int
    cpu: str

    def bytes_per_second(self, nbytes: int) -> float:
        """For a kernel that reads and writes so much."""
        return next((rate for size, rate in self.bandwidth if nbytes <= size), self.bandwidth[-1][1])

    def flops_per_second(self, dtype: Dtype) -> float:
        return self.flops["float64" if dtype.size >= 8 and dtype is not dt.complex64 else "float32"]

    def least_seconds(self, nbytes: int, flops: float, dtype: Dtype) -> tuple[float, str]:
        """The time that moving and computing so much takes at best, and which of the two it is."""
        moving, computing = nbytes / self.bytes_per_second(nbytes), flops / self.flops_per_second(dtype)
        return (moving, "memory") if moving >= computing else (computing, "compute")


_known: dict[str, Limits] = {}


def limits(again: bool = False) -> Limits:
    """The limits of this machine with the threads that programs may use now. `again` measures once more and keeps the
    better figures: whoever shares the machine can only make them worse."""
    name = engine.cpu_name()
    key = f"limits 1 {__version__} {name} {config.cpu} {config.threads} {config.llvm_level}"
    if key not in _known or again:
        store = ObjectCache(config.cache_dir, config.cache_limit) if config.cache_dir else None
        kept = store.get(key) if store is not None else None
        found = _read(kept) if kept is not None else None
        if found is None or again:
            found = _better(measure(name), found)
            if store is not None:
                store.put(key, json.dumps(asdict(found)).encode())
        _known[key] = found
    return _known[key]


def _better(new: Limits, old: Limits | None) -> Limits:
    if old is None:
        return new
    bandwidth = tuple(
        (size, max(rate, was)) for (size, rate), (_, was) in zip(new.bandwidth, old.bandwidth, strict=True)
    )
    return Limits(bandwidth, {k: max(v, old.flops[k]) for k, v in new.flops.items()}, new.threads, new.cpu)


def _read(kept: bytes) -> Limits | None:
    try:
        raw = json.loads(kept)
        rates = tuple((int(size), float(rate)) for size, rate in raw["bandwidth"])
        return Limits(rates, {k: float(v) for k, v in raw["flops"].items()}, int(raw["threads"]), str(raw["cpu"]))
    except (ValueError, KeyError, TypeError):
        return None


def measure(cpu: str) -> Limits:
    """Measure now."""
    bandwidth = []
    for nbytes in COPIES:
        x = Node(Parameter(0), (), kind_of((nbytes // 4,), dt.float32))
        copy = CPU.assemble(plan(Graph([x], [bind(Negative(), x)]), CPU))
        seconds = _best(copy, [to_buffer(np.ones(nbytes // 4, np.float32))], budget=0.02)
        bandwidth.append((2 * nbytes, 2 * nbytes / seconds))
    flops = {}
    for dtype in (dt.float32, dt.float64):
        kind = kind_of((SIDE, SIDE), dtype)
        x, y = Node(Parameter(0), (), kind), Node(Parameter(1), (), kind)
        product = CPU.assemble(plan(Graph([x, y], [bind(Matmul(), x, y)]), CPU))
        ones = to_buffer(np.ones((SIDE, SIDE), dtype.np))
        flops[dtype.name] = 2 * SIDE**3 / _best(product, [ones, ones], budget=0.02)
    return Limits(tuple(bandwidth), flops, config.threads, cpu)


def _best(executable: Executable, inputs: Sequence[Buffer], budget: float) -> float:
    outputs = [allocate(size) for size in executable.sizes]
    addresses = [b.address for b in inputs] + [o.address for o in outputs]
    assert executable.program is not None
    executable.program.run(addresses)
    best, end = float("inf"), time.perf_counter() + budget
    while time.perf_counter() < end:
        start = time.perf_counter()
        executable.program.run(addresses)
        best = min(best, time.perf_counter() - start)
    return best


@dataclass(frozen=True)
class Times:
    """Seconds of one run: of the whole program, and of each of its kernels (None: they cannot be run alone)."""

    total: float
    kernels: tuple[float | None, ...]


def time_kernels(executable: Executable, inputs: Sequence[Buffer], words: Sequence[int], budget: float = 0.2) -> Times:
    """Run the program over and over, whole and kernel by kernel, and take the shortest time of each.

    A kernel is timed in its turn, on the values that the ones before it have made, and several times in a row unless it
    overwrites what it reads: the first run finds its table of commands cold. What a call costs that does nothing is
    taken off.
    """
    program = executable.program
    if program is None:
        return Times(0.0, ())
    if type(executable) is not Executable:  # whose loops may have to be laid out anew while they run
        return Times(_best_of_runs(executable, inputs, words), (None,) * len(executable.plan.items))
    outputs = [allocate(size) for size in executable.sizes]
    addresses = [*(b.address for b in inputs), *(o.address for o in outputs), *words]
    turns = [(program, 2)]
    for item, (first, end) in zip(executable.plan.items, commands_of(executable.plan), strict=True):
        turns.append((program.only(first, end), 1 if _is_in_place(executable.plan, item) else REPEATS))
    turns.append((program.only(0, 0), REPEATS))
    best = [float("inf")] * len(turns)
    stop = time.perf_counter() + budget
    rounds = 0
    while rounds < 3 or time.perf_counter() < stop:
        for i, (part, repeats) in enumerate(turns):
            for _ in range(repeats):
                start = time.perf_counter()
                part.run(addresses)
                best[i] = min(best[i], time.perf_counter() - start)
        rounds += 1
    overhead = best[-1]  # of the part that does nothing
    return Times(best[0], tuple(max(seconds - overhead, 1e-9) for seconds in best[1:-1]))


def _best_of_runs(executable: Executable, inputs: Sequence[Buffer], words: Sequence[int]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        executable.run(inputs, words)
        best = min(best, time.perf_counter() - start)
    return best


def _is_in_place(made: Plan, item: Item) -> bool:
    def place(node: Node) -> tuple[str, int]:
        return made.places[node].where, made.places[node].at

    stored = [node for node in item.reads if node in made.places]
    return not {place(node) for node in stored}.isdisjoint(place(node) for node in item.writes)
