"""One object for each key: what `is` compares must exist once, for all threads, while anything refers to it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


_lock = threading.RLock()  # for all tables; a finalizer may run, and ask, while this thread holds it


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


class Interned(Generic[K, V]):
    """The objects by their keys. All live ones are known; those asked for lately are also in `recent`, a plain dict
    that is several times quicker to ask, and that keeps them alive until they are asked for again.

    >>> class Word:
    ...     def __init__(self, text): self.text = text
    >>> words = Interned(most=1000)
    >>> words.get("a", lambda: Word("a")) is words.get("a", lambda: Word("a"))
    True
    """

    __slots__ = ("_all", "_most", "recent")

    def __init__(self, most: int) -> None:
        self.recent: Final[dict[K, V]] = {}
        self._most = most
        self._all: WeakValueDictionary[K, V] = WeakValueDictionary()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The object of this key, made if there is none. `make` may run in vain: another thread was first."""
        found = self.recent.get(key)
        if found is None:
            found = self.find(key)
            if found is None:
                found = self.add(key, make())
            self.keep(key, found)
        return found

    def find(self, key: K) -> V | None:
        """The live object of this key, if there is one, however long ago it was asked for."""
        with _lock:
            return self._all.get(key)

    def add(self, key: K, made: V) -> V:
        """The object of this key from now on: `made`, unless there is another already."""
        with _lock:
            return self._all.setdefault(key, made)

    def keep(self, key: K, found: V) -> None:
        """Keeps this one alive, and at hand. Forgetting costs time later, never a second object of a live one's key."""
        if len(self.recent) >= self._most:
            self.recent.clear()
        self.recent[key] = found
