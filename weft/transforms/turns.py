"""One trace at a time. A function that compile traces sees, and changes, the caller's own objects, so until it is done
no other thread traces, calls of compiled functions wait, and so does whoever draws from the global random state.

A fork waits too: a child that is born in the middle of another thread's trace would have placeholders for its arrays,
and nobody to put them back. Ctrl-C may strike between any two calls, but not inside `with lock:`, nor between a line
without calls and the `try:` behind it: that is why things are written here as they are.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from weft.evaluate import PATIENCE

EPOCH = [0]
"""Odd while a function is traced, on any thread. A call that walked over what it sees meanwhile walks again."""

RANDOM_STATE: list[Any] = [[]]
"""The global random state (an array in a list), put here by weft.core.random: compiled functions draw new numbers at
each call. It is replaced by threads that have the turn."""

T = TypeVar("T")

_lock = threading.RLock()  # a finalizer, or a signal's handler, may draw random numbers while this thread has the turn
_tracer = [0]
"""The thread that traces a function, while one does."""


def turn() -> AbstractContextManager[Any]:
    """While open (`with turn():`), no other thread traces a function, or draws from the global random state."""
    wait()
    return _lock


def wait() -> None:
    """Until no other thread traces a function."""
    if not EPOCH[0] & 1 or _tracer[0] == threading.get_ident():
        return
    end = time.monotonic() + PATIENCE
    while EPOCH[0] & 1:
        if time.monotonic() > end:
            raise RuntimeError(
                f"[compile] another thread has been tracing a function for {PATIENCE:.0f} seconds; a function that is "
                "being compiled must not wait for threads that call compiled functions or draw random numbers."
            )
        time.sleep(1e-4)


def traced(work: Callable[[], T]) -> T:
    """work(), which traces a function."""
    with turn():
        me, outermost = threading.get_ident(), not EPOCH[0] & 1  # explain may be called by a function that is traced
        _tracer[0] = me
        EPOCH[0] += outermost
        try:
            return work()
        finally:
            EPOCH[0] += outermost


def surely(work: Callable[[], None]) -> None:
    """work(), which puts things back, and can be done again: as long as it is interrupted."""
    raised: BaseException | None = None
    for _ in range(4):
        try:
            work()
        except BaseException as error:
            raised = error
        else:
            break
    if raised is not None:
        raise raised


class _Forking(threading.local):
    """Whether this thread, which forks, got its turn: after too long a wait it forks without."""

    waited = False


_forking = _Forking()


def _before_fork() -> None:
    _forking.waited = _lock.acquire(timeout=PATIENCE)


def _after_fork() -> None:
    if _forking.waited:
        _lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
