"""What a trace sees in place of the nodes that arrays have: an overlay, which belongs to one thread.

While compile traces a function, the arrays that the function reaches stand for inputs, and what it writes to them is
to be done at each call, not now. So the thread that traces sees other nodes for these arrays, and writes to those. The
arrays themselves are left alone: no other thread sees the trace, or waits for it, and when it ends, in whatever way,
there is nothing to put back. Arrays that the function makes may be seen in containers (`Running`).

Outside of all traces an array's node is an attribute in a slot, and nothing else. As long as some overlay is open, in
any thread, weft.array has its accessor there (`SWITCHES`), and the machine code that reads arrays steps aside.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any
from weakref import ref

from weft.graph.node import Node, next_id
from weft.runtime.objects import MAKERS


class Foreign(Exception):
    """What is evaluated belongs to a function that another thread is tracing, or has traced."""


class Running:
    """A trace, for other threads that come upon what it makes: in containers, which are the caller's own."""

    __slots__ = ("_kept", "copies", "over", "replaced", "thread")

    def __init__(self, replaced: Callable[[], list[tuple[Any, Node]]]) -> None:
        self.thread = threading.get_ident()
        self.replaced = replaced
        """The arrays that the function has put into containers, with the nodes of those that they replaced there."""
        self._kept: dict[int, tuple[ref[Any], Node]] = {}
        self.over = False
        self.copies: dict[Node, Node] = {}
        """What other threads have evaluated meanwhile."""

    def is_elsewhere(self) -> bool:
        """Whether it is another thread's."""
        return self.thread != threading.get_ident()

    def keep(self) -> None:
        """The containers are about to be put back. Who has got an array from one still sees what it stood for."""
        for array, node in self.replaced():
            self._kept[id(array)] = ref(array, functools.partial(self._drop, id(array))), node
        self.replaced = list

    def _drop(self, number: int, gone: ref[Any]) -> None:
        self._kept.pop(number, None)

    def stood_for(self) -> dict[int, Node]:
        """By the ids of arrays: what they stand for in containers, or stood for when those were put back."""
        now = {id(array): node for array, node in self.replaced()}
        # Read second: what was put back while the containers were looked at has been kept before that.
        return now | {number: node for number, (_, node) in [*self._kept.items()]}


class _Here(threading.local):
    overlay: Overlay | None = None
    """What this thread sees. Set by plain assignments, first thing in a `finally:`, where no signal's handler can come
    in between."""


HERE = _Here()
SWITCHES: list[Callable[[bool], None]] = [MAKERS.overlay]
"""What is told whether overlays are open."""

_lock = threading.RLock()  # a finalizer may close one while this thread opens another
_open: dict[int, int] = {}
"""The thread of each open overlay, by the overlay's id."""


class Overlay:
    """Other nodes for some arrays, one for each. It is open until `close`, or until it is gone, and what the thread
    sees while it is HERE.overlay."""

    __slots__ = ("_arrays", "_nodes", "first", "strangers")

    def __init__(self, arrays: Sequence[Any], nodes: Sequence[Node]) -> None:
        self._arrays = list(arrays)  # held, so that no id is used twice
        self._nodes: dict[int, Node] = {}
        if HERE.overlay is not None:  # explain may be called by a function that is traced
            self._arrays += HERE.overlay._arrays
            self._nodes.update(HERE.overlay._nodes)
        self._nodes.update(zip(map(id, arrays), nodes, strict=True))
        self.first = min([node.id for node in nodes], default=next_id())
        """Nodes from here on are the trace's own."""
        self.strangers = False
        """Whether an array was written that is older than the overlay, and not in it."""
        _tell(self, True)

    def get(self, array: Any) -> Node | None:
        """What stands for the node of an array here; None if it is what it is."""
        return self._nodes.get(id(array))

    def put(self, array: Any, node: Node) -> None:
        """An array that has a node here is overwritten."""
        self._nodes[id(array)] = node

    def add(self, array: Any, node: Node) -> None:
        """An array that has none here, and should not be overwritten for all, is overwritten."""
        self._arrays.append(array)
        self._nodes[id(array)] = node
        self.strangers = True

    def close(self) -> None:
        """The trace is over. Twice is harmless."""
        if id(self) in _open:
            _tell(self, False)

    def __del__(self) -> None:
        self.close()


def _tell(overlay: Overlay, opens: bool) -> None:
    with _lock:
        if opens:
            _open[id(overlay)] = threading.get_ident()
        else:
            _open.pop(id(overlay), None)
        for switch in SWITCHES:
            switch(bool(_open))


def _after_fork() -> None:
    """In a child there are no other threads, and what they saw is seen by nobody."""
    global _lock
    _lock = threading.RLock()
    mine = threading.get_ident()
    for overlay, thread in [*_open.items()]:
        if thread != mine:
            del _open[overlay]
    for switch in SWITCHES:
        switch(bool(_open))


os.register_at_fork(after_in_child=_after_fork)
