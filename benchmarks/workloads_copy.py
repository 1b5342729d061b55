"""The yardstick of memory-bound workloads: copying as many bytes as the workload has to move, on as many threads.

No array library is involved: each thread calls the C library's memmove on its share of two buffers. A run repeats the
copy, so that starting the threads does not count. Past some size the C library turns to stores that bypass the caches,
which is faster on some machines and slower on others; so the copy is tried whole and in pieces, and the better one stands.
"""

import ctypes
import threading
import time

from catalog import MB, TRAFFIC

REPEATS = 16


def make(threads):
    """One workload for each entry of TRAFFIC."""
    return {name: lambda total=total: fastest(total // 2, threads) for name, total in TRAFFIC.items()}


def fastest(size, threads):
    source, target = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    ctypes.memset(source, 1, size)  # a page that was never written is shared, and reading it is unfairly fast
    return min((copy(source, target, threads, piece) for piece in (size, 4 * MB, MB)), key=seconds)


def copy(source, target, threads, piece):
    """A run that copies `source` to `target`, each thread its share, in calls of at most `piece` bytes."""
    size = len(source)
    share = -(-size // threads)

    def work(start):
        a, b = ctypes.addressof(source), ctypes.addressof(target)
        end = min(start + share, size)
        calls = [(b + at, a + at, min(piece, end - at)) for at in range(start, end, piece)]
        for _ in range(REPEATS):
            for call in calls:
                ctypes.memmove(*call)

    def run():
        helpers = [threading.Thread(target=work, args=(start,)) for start in range(share, size, share)]
        for helper in helpers:
            helper.start()
        work(0)
        for helper in helpers:
            helper.join()

    run.repeats = REPEATS
    return run


def seconds(run):
    """The best of three runs, after one that brings the pages in."""
    run()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
