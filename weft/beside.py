"""Work in another Python thread, for callers that can do without it.

`threading.Thread.start` waits until the new thread says that it runs. One that finds no memory for its first call dies
without a word, and the wait is endless. Here nothing waits for a thread that has not begun.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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


def interruptible(work: Callable[[], T]) -> T:
    """work(), in the middle of which a handler of signals may raise, as Ctrl-C does, though it runs foreign code that
    looks for none. Handlers run on the main thread, so the work is done on another one. When they raise, nothing waits
    for it any more: it goes on to its end, unseen. So it holds all that it reads and writes, and changes nothing else.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    answers: list[T | BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            answers.append(error)
        finally:
            done.release()

    try:
        thread = _thread.start_new_thread(run, ())
    except (RuntimeError, MemoryError):  # Python starts no more
        return work()
    while not done.acquire(timeout=1.0):
        if thread not in sys._current_frames() and not answers:  # it found no memory for its first call
            return work()
    answer = answers.pop()
    if isinstance(answer, BaseException):
        raise answer
    return answer
