"""Work in another Python thread, for callers that can do without it.

`threading.Thread.start` waits until the new thread says that it runs. One that finds no memory for its first call dies
without a word, and the wait is endless. Here nothing waits for a thread that has not begun.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable


class Beside:
    """A thread that does this work, unless the caller ends it before it has begun."""

    __slots__ = ("_turn", "_work")

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._turn = work, _thread.allocate_lock()
        _thread.start_new_thread(self._run, ())

    def _run(self) -> None:
        if self._turn.acquire(blocking=False):
            try:
                self._work()
            finally:
                self._turn.release()

    def end(self) -> None:
        """Wait until the work is done. If it has not begun, it never will."""
        self._turn.acquire()


def start(work: Callable[[], None], count: int = 1) -> list[Beside]:
    """Threads that do this work: fewer of them, or none, where Python starts no more: without memory, or in functions
    that run at its exit since 3.12."""
    started: list[Beside] = []
    try:
        for _ in range(count):
            started.append(Beside(work))
    except (RuntimeError, MemoryError):
        pass
    return started
