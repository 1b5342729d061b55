"""The global random state, and the lock of those who draw from it: to draw is to read it and to replace it."""

from __future__ import annotations

import os
import threading
from typing import Any

RANDOM_STATE: list[Any] = [[]]
"""The global random state (an array in a list), put here by weft.core.random: compiled functions draw new numbers at
each call. Threads that replace it hold the lock."""

DRAWING = threading.RLock()
"""No other thread draws from the global random state. A finalizer, or a signal's handler, may do so while this thread
has it."""

os.register_at_fork(before=DRAWING.acquire, after_in_parent=DRAWING.release, after_in_child=DRAWING.release)
