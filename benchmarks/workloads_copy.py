"""The yardstick of memory-bound workloads: copying as many bytes as the workload has to move, on as many threads.

No array library is involved: each thread calls the C library's memmove on its share of two buffers. A run repeats the
copy, so that starting the threads does not count.
"""

import ctypes
import threading

from catalog import TRAFFIC

REPEATS = 16


def make(threads):
    """One workload for each entry of TRAFFIC."""
    return {name: lambda total=total: copy(total // 2, threads) for name, total in TRAFFIC.items()}


def copy(size, threads):
    source, target = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    ctypes.memset(source, 1, size)  # a page that was never written is shared, and reading it is unfairly fast
    share = -(-size // threads)
    pieces = [(offset, min(share, size - offset)) for offset in range(0, size, share)]

    def work(offset, length):
        a, b = ctypes.addressof(source) + offset, ctypes.addressof(target) + offset
        for _ in range(REPEATS):
            ctypes.memmove(b, a, length)

    def run():
        helpers = [threading.Thread(target=work, args=piece) for piece in pieces[1:]]
        for helper in helpers:
            helper.start()
        work(*pieces[0])
        for helper in helpers:
            helper.join()

    run.repeats = REPEATS
    return run
