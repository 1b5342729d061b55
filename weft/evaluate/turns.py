"""Who evaluates: the lock, and how an evaluation finds out that it was disturbed by another one of its own thread."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Final

PATIENCE = 60.0
"""Seconds that a thread waits for another one that differentiates by the same container."""

LOCK = threading.RLock()
"""Held while nodes are looked at to be evaluated, and while they get values. A thread that has it may come in again: by
a signal's handler or a finalizer that evaluates something (`Disturbed`)."""

os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)

ENTRIES: Final = (ctypes.c_int64 * 1)()
"""How often an evaluation has been prepared, in a word that machine code counts too. It changes under the feet of those
who hold the lock only if they are disturbed."""


class Disturbed(Exception):
    """While an evaluation was being prepared, this thread made another one, by a signal's handler or a finalizer: what
    has been found so far may not hold any more."""


def enter() -> int:
    """The number of the evaluation that begins here, with the lock held."""
    ENTRIES[0] += 1
    return ENTRIES[0]


def still(mine: int) -> None:
    """Go on only if nobody has disturbed this evaluation."""
    if ENTRIES[0] != mine:
        raise Disturbed
