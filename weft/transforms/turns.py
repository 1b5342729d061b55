"""One trace at a time. A function that compile traces sees, and changes, the caller's own objects, so until it is done
no other thread traces, calls of compiled functions wait, and so does whoever draws from the global random state.

A fork waits too: a child that is born in the middle of another thread's trace would have placeholders for its arrays,
and nobody to put them back.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from weft.evaluate import PATIENCE

EPOCH = [0]
"""Odd while a function is traced, on any thread. A call that walked over what it sees meanwhile walks again."""

RANDOM_STATE: list[Any] = [None]
"""The global random state (an array in a list), put here by weft.core.random: compiled functions draw new numbers at
each call. It is replaced by threads that have the turn."""

_lock = threading.RLock()  # a finalizer, or a signal's handler, may draw random numbers while this thread has the turn


class turn:
    """While open (`with turn():`), no other thread traces a function, or draws from the global random state."""

    __slots__ = ()

    def __enter__(self) -> None:
        if not _lock.acquire(timeout=PATIENCE):
            raise RuntimeError(
                f"[compile] another thread has been tracing a function for {PATIENCE:.0f} seconds; a function that is "
                "being compiled must not wait for threads that call compiled functions or draw random numbers."
            )

    def __exit__(self, *error: object) -> None:
        _lock.release()


class tracing(turn):
    """A turn in which a function is traced."""

    __slots__ = ("_outermost",)

    def __enter__(self) -> None:
        super().__enter__()
        self._outermost = not EPOCH[0] & 1  # explain may look at a function from inside one that is traced
        EPOCH[0] += self._outermost

    def __exit__(self, *error: object) -> None:
        EPOCH[0] += self._outermost
        super().__exit__()


def wait() -> None:
    """Until no other thread traces a function."""
    with turn():
        pass


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
