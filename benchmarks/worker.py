"""Times the workloads of one peer, in a process of its own: `worker.py PEER THREADS [CLOCK]`.

Reads one JSON request a line, `{"name": ..., "budget": seconds}`, and answers each with one line: the time to the first
result, the best and the median of the calls after it, or the error. The first line it prints says that the peer is
there. It needs nothing but the peer, so it runs under any Python that has one.
"""

import functools
import importlib
import json
import os
import statistics
import sys
import time

from catalog import PEERS


def load(peer, threads):
    """The peer's version, and its workloads: name -> a call that prepares one."""
    if peer == "copy":
        return "", importlib.import_module("workloads_copy").make(threads)
    module = importlib.import_module(PEERS[peer][0])
    if peer == "jax":
        return module.__version__, importlib.import_module("workloads_jax").WORKLOADS
    if peer in ("torch", "torch-eager"):
        module.set_num_threads(threads)
        module.manual_seed(0)
        compiled = functools.partial(module.compile, dynamic=False) if peer == "torch" else lambda f: f
        workloads, argument = importlib.import_module("workloads_torch").WORKLOADS, compiled
    else:
        module.random.seed(0)
        workloads, argument = importlib.import_module("workloads_mlx").WORKLOADS, module
    version = getattr(module, "__version__", None) or importlib.import_module(peer).__version__
    return version, {name: functools.partial(prepare, argument) for name, prepare in workloads.items()}


def measure(run, budget, clock=time.perf_counter):
    """Seconds to the first result, then the best and the median of what follows within the budget."""
    repeats = getattr(run, "repeats", 1)
    start = clock()
    run()
    first = clock() - start
    start = clock()
    run()
    one = clock() - start
    if one < budget:  # a second warm call; the slowest peers go without
        start = clock()
        run()
        one = max(clock() - start, 1e-7)
    inner = getattr(run, "inner", max(1, int(0.02 / one)))
    times, end = [], time.perf_counter() + budget
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 200):
        start = clock()
        for _ in range(inner):
            run()
        times.append((clock() - start) / inner / repeats)
    return {"first_s": first / repeats, "best_s": min(times), "median_s": statistics.median(times)}


def answer(workloads, request, clock):
    prepare = workloads.get(request["name"])
    if prepare is None:
        return {"missing": True}
    try:
        return measure(prepare(), request["budget"], clock)
    except Exception as error:  # an operation that the peer lacks is a row of the table, not the end of it
        return {"error": f"{type(error).__name__}: {error}".strip()}


def serve(start, reply_to):
    """Answer requests, a line each: first with what `start` says of the peer, or why it is not there."""
    # Whatever the peers print must not mix with the answers.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def reply(message):
        print(json.dumps(message), file=replies, flush=True)

    try:
        reply(start())
    except Exception as error:
        return reply({"error": f"{type(error).__name__}: {error}"})
    for line in sys.stdin:
        reply(reply_to(json.loads(line)))
    return None


def main():
    peer, threads = sys.argv[1], int(sys.argv[2])
    clock = time.process_time if sys.argv[3:] == ["cpu"] else time.perf_counter
    workloads = {}

    def start():
        version, found = load(peer, threads)
        workloads.update(found)
        return {"version": version, "names": list(workloads)}

    serve(start, lambda request: answer(workloads, request, clock))


if __name__ == "__main__":
    main()
