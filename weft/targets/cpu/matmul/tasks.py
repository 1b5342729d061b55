"""How products are cut into tasks for threads."""

from __future__ import annotations

from typing import Final

from weft.runtime.threads import get_threads

# Work is counted in real multiply-adds, of which a core does some 50 in a nanosecond; an element that comes from memory
# takes as long as STREAM of them.
STREAM: Final = 8
PARALLEL: Final = 1 << 20  # less work than this stays on one thread
_TASK: Final = 1 << 17  # the least that is worth handing to a thread


def tasks_for(work: int) -> int:
    """How many tasks there should be: threads take them as they come, and cores are not equally fast."""
    return 1 if get_threads() == 1 or work < PARALLEL else 4 * get_threads()


def grain_of(work: int, tasks: int) -> int:
    """How many tasks are worth a thread; 0 keeps them on one."""
    return 0 if work < PARALLEL or tasks == 1 else -(-_TASK * tasks // work)


def equal_blocks(extent: int, largest: int, step: int) -> int:
    """The length, a multiple of `step`, of blocks that are equal but for the last and hardly longer than `largest`."""
    each = -(-extent // -(-extent // largest))
    return -(-each // step) * step
