"""The yardstick of memory-bound workloads: copying as many bytes as the workload has to move, on as many threads.

No array library is involved: each thread calls the C library's memmove on its share of two buffers. A run repeats the
copy, so that starting the threads does not count. Past some size the C library turns to stores that bypass the caches,
which is faster on some machines and slower on others; so the copy is tried whole and in pieces, and the better stands.
"""

import ctypes
import mmap
import threading
import time

from catalog import MB, TRAFFIC

REPEATS = 8
LARGE_PAGE = 2 * MB


def make(threads):
    """One workload for each entry of TRAFFIC."""
    return {name: lambda total=total: fastest(total // 2, threads) for name, total in TRAFFIC.items()}


def fastest(size, threads):
    # Half a page apart: where both ends lie at the same place of a page, some processors copy far more slowly.
    source, target = memory(size, 0), memory(size, 2048)
    return min((copy(source, target, threads, piece) for piece in (size, MB, MB // 4)), key=seconds)


def memory(size, offset):
    """Bytes as an array library would have them: in large pages where there are any."""
    pages = mmap.mmap(-1, size + 2 * LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(pages)) % LARGE_PAGE + offset
    buffer = (ctypes.c_char * size).from_buffer(pages, start)
    ctypes.memset(buffer, 1, size)  # a page that was never written is shared, and reading it is unfairly fast
    return buffer


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
