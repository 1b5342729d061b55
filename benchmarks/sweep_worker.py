"""Times cells of the sweep on one peer, in a process of its own: `sweep_worker.py PEER THREADS CLOCK`.

A request names a cell: `prepare` makes it ready and answers with the time to the first result; `time` answers with the
best time of a call within its budget, and comes several times, in turns with the other peers; `limit` (Weft alone)
asks `explain` what holds the cell back.
"""

import importlib
import sys
import time
import warnings

import sweep_operations
from sweep_cells import Cell
from sweep_operations import UNCOMPILED, operands, program
from worker import serve

LEAST = 1e-3
"""Seconds that a sample takes at least; shorter calls are repeated within it."""
OWN_TIME = 0.5
"""Kernels that take less than this share of a call are not what holds it back."""


class Timer:
    """One peer, and the cell that it is ready for."""

    def __init__(self, words, threads, clock):
        self.words = words
        self.words.start(threads)
        warnings.filterwarnings("ignore")  # overflows of small integers are the same for all
        self.clock = time.process_time if clock == "cpu" else time.perf_counter
        self.run = self.function = self.arguments = self.compiled = None
        self.inner = 1

    def answer(self, request):
        try:
            return getattr(self, request["do"])(**request["with"])
        except NotImplementedError as error:
            return {"missing": str(error)}
        except Exception as error:  # an operation that the peer lacks is a gap of the table, not the end of it
            return {"error": f"{type(error).__name__}: {error}".strip()[:300]}

    def load(self, name):
        """What a cell computes, its arguments, and whether it is compiled."""
        cell = Cell.named(name)
        arguments = [self.words.operand(values, dtype) for values, dtype in operands(cell)]
        return program(cell), arguments, cell.operation not in UNCOMPILED

    def prepare(self, name):
        self.run = self.function = self.arguments = None  # what the last cell held goes first
        self.function, self.arguments, self.compiled = self.load(name)
        compiled = self.words.compiled(self.function) if self.compiled else self.function
        self.run = self.words.called(compiled, self.arguments)
        first = self._timed(1)
        self.run()
        one = max(min(self._timed(1), self._timed(1)), 1e-7)
        self.inner = max(1, int(LEAST / one))
        return {"first": first}

    def time(self, budget):
        best, end, samples = float("inf"), time.perf_counter() + budget, 0
        while samples < 2 or time.perf_counter() < end:
            best, samples = min(best, self._timed(self.inner)), samples + 1
        return {"seconds": best}

    def _timed(self, count):
        run, start = self.run, self.clock()
        for _ in range(count):
            run()
        return (self.clock() - start) / count

    def limit(self, seconds):
        """Which limit a call of so many seconds meets: (name, share of it that is reached)."""
        if not self.compiled:
            return {"limit": "planning", "share": None}
        explain = importlib.import_module("weft").explain
        facts = explain(self.function, *self.arguments).facts
        kernels = [kernel for kernel in facts.kernels if kernel.seconds is not None]
        return dict(zip(("limit", "share"), name_limit(kernels, seconds), strict=True))


def name_limit(kernels, seconds):
    """Of a call and its kernels: memory, arithmetic or launch, and how much of that limit it reaches."""
    busy = sum(kernel.seconds for kernel in kernels)
    if busy < OWN_TIME * seconds:
        return "launch", busy / seconds
    longest = max(kernels, key=lambda kernel: kernel.seconds)
    least = sum(kernel.least for kernel in kernels)
    return {"compute": "arithmetic"}.get(longest.limit, longest.limit), least / seconds


def main():
    peer, threads, clock = sys.argv[1:4]
    timers = []

    def start():
        timers.append(Timer(sweep_operations.use(peer), int(threads), clock))
        return {"version": timers[0].words.VERSION, "names": []}

    serve(start, lambda request: timers[0].answer(request))


if __name__ == "__main__":
    main()
