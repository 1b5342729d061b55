"""Evaluation while the caller goes on: what `async_eval` prepares runs on a thread of its own, and its kernels do not
hold Python's lock. A decoder builds the graph of one token while the one before is computed.

Whoever evaluates anything waits for what is under way, so nothing is computed twice, and memory is found to be free as
if the run had ended where it began. A run that fails leaves its nodes without values: they are evaluated again by those
who need them, and that says what is wrong.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from queue import SimpleQueue
from typing import Any

from weft.evaluate.running import Prepared, run_program
from weft.evaluate.turns import LOCK
from weft.runtime import threads

LEAST_COMMANDS = 16
"""Commands of a program that is worth waking a thread for, which takes some hundredths of a millisecond."""
_HANDOVER = 0.01
"""Seconds that the caller waits for the other thread to begin. If that takes longer, whoever needs the results runs the
program."""


class _Job:
    """A run that is under way, or about to be."""

    __slots__ = ("_begun", "_done", "_entered", "_prepared")

    def __init__(self, prepared: list[Prepared]) -> None:
        self._prepared = prepared
        self._begun, self._entered, self._done = threading.Lock(), threading.Lock(), threading.Lock()
        self._entered.acquire()
        self._done.acquire()

    def run(self) -> None:
        """Run the program, or wait for the thread that does."""
        if not self._begun.acquire(blocking=False):
            with self._done:
                return
        try:
            self._entered.release()
            self._run()
        finally:
            with contextlib.suppress(ValueError):  # a child of a fork has forgotten all
                _UNDER_WAY.remove(self)
            self._done.release()

    def _run(self) -> None:
        """In a function of its own, whose variables are gone when others learn that it has ended."""
        claim = self._prepared[0][-1]
        if claim is not None:
            claim.hand_to(threading.get_ident())
        del claim
        with contextlib.suppress(Exception):  # whoever needs the results evaluates them again, and gets it
            run_program(*self._prepared.pop())

    def wait_for_begin(self) -> None:
        """Until the other thread has left Python for native code: it would not come to that while the caller goes on,
        which has Python's lock."""
        self._entered.acquire(timeout=_HANDOVER)


_UNDER_WAY: list[_Job] = []
_JOBS: list[SimpleQueue[_Job]] = []
"""The queue that the thread takes from, once there is a thread."""


def is_worth_it(prepared: Prepared) -> bool:
    """Whether a run is handed over: it is long enough, and there is more than one processor to run on."""
    return prepared[0].commands >= LEAST_COMMANDS and threads.get_threads() > 1


def run_later(prepared: list[Prepared]) -> None:
    """Run a program on the other thread. `prepared` holds it, and nothing else does."""
    if not _JOBS:
        jobs: SimpleQueue[_Job] = SimpleQueue()
        try:
            threading.Thread(target=_work, args=(jobs,), name="weft evaluation", daemon=True).start()
        except RuntimeError:  # Python starts no more threads, as at its exit
            return run_program(*prepared.pop())
        _JOBS.append(jobs)
    job = _Job(prepared)
    _UNDER_WAY.append(job)
    _JOBS[0].put(job)
    return job.wait_for_begin()


def _work(jobs: SimpleQueue[_Job]) -> None:
    while True:
        jobs.get().run()


def wait() -> None:
    """Until nothing is under way. A thread that holds the lock of evaluation does not wait: a run may need that."""
    while _UNDER_WAY and not _is_owned():
        with contextlib.suppress(IndexError):  # it has just ended
            _UNDER_WAY[0].run()


_is_owned: Any = LOCK._is_owned  # type: ignore[attr-defined]
"""Whether this thread holds the lock of evaluation."""


def _after_fork() -> None:
    _UNDER_WAY.clear()
    _JOBS.clear()


os.register_at_fork(before=wait, after_in_child=_after_fork)
atexit.register(wait)
