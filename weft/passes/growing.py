"""Programs whose loops leave tapes: planned for some number of rows, and planned again when that is not enough.

A program that stops for lack of room has changed nothing of what it was given, so it is simply run again. How much room
it needed is remembered: the next call finds it there.
"""

from __future__ import annotations

import contextvars
import functools
import os
import threading
from collections.abc import Callable, Sequence

from weft.graph.node import Graph, Tape
from weft.passes.executable import Executable
from weft.passes.lower import TAPE_ROWS
from weft.passes.memory import Plan
from weft.primitives.base import RunTimeConstant
from weft.runtime.data import Buffer
from weft.runtime.program import FULL, ProgramError, Progress

GROWTH = 4

_lock = threading.RLock()  # of all that grow: that is planning, which does not get faster on several threads
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def holds_tapes(graph: Graph) -> bool:
    """Whether some loop in here, or in a body, leaves a tape."""
    for node in graph.order():
        if isinstance(node.kind, Tape):
            return True
        if any(body.once("tapes", functools.partial(holds_tapes, body.graph)) for body in node.op.bodies()):
            return True
    return False


class Growing(Executable):
    """An executable that grows."""

    __slots__ = ("_again", "_now", "rows")

    def __init__(self, first: Plan, again: Callable[[], Plan]) -> None:
        made = first.target.assemble(first)
        super().__init__(made.plan, made.program, made.constants, made.results, made.calls)
        self._now, self._again = made, again
        self.rows = TAPE_ROWS.get()
        """For how many rows there is room on each tape."""

    def run(self, inputs: Sequence[Buffer], words: Sequence[int]) -> list[Buffer]:
        return self._run(words, lambda now, given: now.run(inputs, given))

    def run_in_place(self, inputs: Sequence[Buffer], words: Sequence[int], progress: Progress) -> list[Buffer]:
        return self._run(words, lambda now, given: now.run_in_place(inputs, given, progress))

    def _run(self, words: Sequence[int], run: Callable[[Executable, Sequence[int]], list[Buffer]]) -> list[Buffer]:
        while True:
            now = self._now
            try:
                return run(now, words if now.constants is self.constants else self._words(now, words))
            except ProgramError as error:
                if error.status != FULL:
                    raise
            self._grow(now)

    def forget_plan(self) -> None:
        super().forget_plan()
        self._now.forget_plan()

    def _words(self, now: Executable, words: Sequence[int]) -> list[int]:
        """The words of constants in the order in which another plan of the same graph reads them."""
        given: dict[int, Sequence[int]] = {}
        at = 0
        for value in self.constants:
            count = -(-value.dtype.size // 8) if isinstance(value, RunTimeConstant) else len(value.words)
            given[id(value)] = words[at : at + count]
            at += count
        return [word for value in now.constants for word in (given.get(id(value)) or value.words)]

    def _grow(self, full: Executable) -> None:
        with _lock:
            if self._now is not full:
                return  # another thread was quicker
            self.rows *= GROWTH

            def planned() -> Plan:
                TAPE_ROWS.set(self.rows)
                return self._again()

            made = contextvars.copy_context().run(planned)
            self._now = made.target.assemble(made)
