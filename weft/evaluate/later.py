"""Evaluation while the caller goes on: what `async_eval` prepares runs on a thread of its own, and its kernels do not
hold Python's lock. A decoder builds the graph of one token while the one before is computed.

Whoever evaluates anything waits for what is under way, so nothing is computed twice, and memory is found to be free as
if the run had ended where it began. A run that fails leaves its nodes without values: they are evaluated again by those
who need them, and that says what is wrong.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Any

from weft.config import usable_cpus
from weft.evaluate.running import Prepared, run_program
from weft.evaluate.turns import LOCK
from weft.lazy import lazy
from weft.runtime import threads

if TYPE_CHECKING:
    import queue
else:
    queue = lazy("queue")

LEAST_COMMANDS = 16
"""Commands of a program that is worth waking a thread for, which takes some hundredths of a millisecond."""
_HANDOVER = 0.01
"""Seconds that the caller waits for the other thread to begin: if that takes longer, it goes on all the same."""


class _Job:
    """A run on the other thread."""

    __slots__ = ("_done", "_entered", "_prepared", "_thread")

    def __init__(self, prepared: list[Prepared], thread: int) -> None:
        self._prepared, self._thread = prepared, thread
        self._entered, self._done = threading.Lock(), threading.Lock()
        self._entered.acquire()
        self._done.acquire()
        claim = prepared[0][-1]
        if claim is not None:
            claim.hand_to(thread)

    def run(self) -> None:
        """Run the program, on that thread."""
        self._entered.release()
        try:
            self._run()
        finally:
            self._done.release()
            _over(self)

    def _run(self) -> None:
        """In a function of its own, whose variables are gone when others learn that it has ended."""
        with contextlib.suppress(Exception):  # whoever needs the results evaluates them again, and gets it
            run_program(*self._prepared.pop())

    def wait_for_begin(self) -> None:
        """Until that thread has left Python for native code: it would not come to that while the caller goes on, which
        has Python's lock."""
        self._entered.acquire(timeout=_HANDOVER)

    def wait(self) -> None:
        """Until the run has ended."""
        with self._done:
            _over(self)

    @property
    def is_mine(self) -> bool:
        """Whether this is the thread that runs it: a finalizer may evaluate something in the midst."""
        return self._thread == threading.get_ident()


UNDER_WAY: list[_Job] = []
"""Runs that have not ended."""
_WORKERS: list[tuple[queue.SimpleQueue[_Job], int]] = []
"""The thread, once there is one, and the queue that it takes from."""


def _over(job: _Job) -> None:
    with contextlib.suppress(ValueError):  # another thread was faster
        UNDER_WAY.remove(job)


def is_worth_it(prepared: Prepared) -> bool:
    """Whether a run is handed over: it is long enough, and there is more than one processor to run on."""
    return prepared[0].commands >= LEAST_COMMANDS and threads.get_threads() > 1


def run_later(prepared: list[Prepared]) -> None:
    """Run a program on the other thread. `prepared` holds it, and nothing else does."""
    if not _WORKERS:
        jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        try:
            # Not a Thread, which waits for it to begin: one that finds no memory for that is not missed here.
            thread = _thread.start_new_thread(_work, (jobs,))
        except (RuntimeError, MemoryError):  # Python starts no more threads, as at its exit
            return run_program(*prepared.pop())
        _WORKERS.append((jobs, thread))
    jobs, thread = _WORKERS[0]
    job = _Job(prepared, thread)
    _SHARING.hand_over()
    jobs.put(job)  # first: a signal's handler that raises in between leaves nothing to wait for in vain
    UNDER_WAY.append(job)
    return job.wait_for_begin()


def _work(jobs: queue.SimpleQueue[_Job]) -> None:
    while True:
        with contextlib.suppress(BaseException):  # whatever it is: the next run finds its thread
            jobs.get().run()


class _Sharing:
    """Leaves a processor to the caller of a run for as long as it will need one, where kernels would take all: for as
    long as it was busy, not waiting, beside the run before. Its first run has them all."""

    __slots__ = ("_busy", "_processors", "_used", "_wall", "caller")

    def __init__(self) -> None:
        self.caller = 0
        """The thread that has handed a run over, and has not come back; 0: none."""
        self._busy = self._used = self._wall = self._processors = 0

    def hand_over(self) -> None:
        """A run begins, and its caller goes on."""
        self._processors = self._processors or usable_cpus()
        if threads.get_threads() < self._processors:
            return
        self.caller, self._used, self._wall = threading.get_ident(), time.thread_time_ns(), time.monotonic_ns()
        if self._busy:
            threads.leave_one(self._wall + self._busy)

    def come_back(self) -> None:
        """The caller has nothing to do but wait."""
        if self.caller == threading.get_ident():
            self.caller = 0
            wall = time.monotonic_ns() - self._wall
            is_busy = 2 * (time.thread_time_ns() - self._used) > wall
            self._busy = min(2 * wall, _LONGEST_BUSY) if is_busy else 0
            threads.leave_one(0)


_LONGEST_BUSY = 20_000_000
"""Nanoseconds for which a processor is left to the caller of a run at most."""
_SHARING = _Sharing()


def wait() -> None:
    """Until nothing is under way. A thread that holds the lock of evaluation does not wait: a run may need that."""
    if _SHARING.caller:
        _SHARING.come_back()
    while UNDER_WAY and not _is_owned():
        with contextlib.suppress(IndexError):  # it has just ended
            job = UNDER_WAY[0]
            if job.is_mine:
                return
            job.wait()


_is_owned: Any = LOCK._is_owned  # type: ignore[attr-defined]
"""Whether this thread holds the lock of evaluation."""


def _after_fork() -> None:
    UNDER_WAY.clear()
    _WORKERS.clear()
    _SHARING.caller = 0


os.register_at_fork(before=wait, after_in_child=_after_fork)
atexit.register(wait)
