"""How products are cut into tasks for threads."""

from __future__ import annotations

from typing import Final

from weft.runtime.threads import get_threads

# Work is counted in real multiply-adds, of which a core does some 50 in a nanosecond; an element that comes from memory
# takes as long as STREAM of them.
STREAM: Final = 8
PARALLEL: Final = 1 << 20  # less work than this stays on one thread
_PER_THREAD: Final = 4  # tasks: threads take them as they come, and cores are not equally fast
_TASK: Final = 1 << 17  # the least that is worth handing to a thread
COLUMNS: Final = 4  # columns of an output that take as long as what a task does for its rows alone
_LEVEL: Final = 1.02  # how much longer does not matter


def tasks_for(work: int) -> int:
    """How many tasks there should be."""
    return 1 if get_threads() == 1 or work < PARALLEL else _PER_THREAD * get_threads()


def grain_of(work: int, tasks: int) -> int:
    """How many tasks are worth a thread; 0 keeps them on one."""
    return 0 if work < PARALLEL or tasks == 1 else -(-_TASK * tasks // work)


def equal_blocks(extent: int, largest: int, step: int) -> int:
    """The length, a multiple of `step`, of blocks that are equal but for the last and hardly longer than `largest`."""
    each = -(-extent // -(-extent // largest))
    return -(-each // step) * step


def even_blocks(
    m: int, n: int, largest: tuple[int, int], step: tuple[int, int], members: int, extra: int
) -> tuple[int, int]:
    """Blocks of an output of m by n, multiples of `step` and hardly larger than `largest`, with which threads finish
    together. What a task does for its columns alone takes as long as `extra` rows: where that matters tasks are few,
    and else as many as threads may share out."""
    threads = get_threads()

    def sizes(extent: int, most: int, by: int) -> list[int]:
        least = -(-extent // most)
        return [-(-extent // (count * by)) * by for count in range(least, least + _PER_THREAD * threads)]

    def time(block: tuple[int, int]) -> int:
        return -(-tasks(block) // threads) * (min(m, block[0]) + extra) * (min(n, block[1]) + COLUMNS)

    def tasks(block: tuple[int, int]) -> int:
        return members * -(-m // block[0]) * -(-n // block[1])

    found = [(i, j) for i in sizes(m, largest[0], step[0]) for j in dict.fromkeys(sizes(n, largest[1], step[1]))]
    best = min(time(block) for block in found)
    good = [block for block in found if time(block) <= best * _LEVEL]
    return min(good, key=lambda block: abs(tasks(block) - _PER_THREAD * threads))
