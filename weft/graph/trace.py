"""Open traces: while a function is being differentiated, evaluation must not forget how its values were computed.

A trace opens at a node id; nodes that its thread made since then keep their inputs when they are evaluated, so
`.item()` and Python branches on values work inside `grad`. Other threads go on as if there were no trace, unless they
come upon values that depend on its inputs.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import ref

from weft.errors import at_user_line
from weft.graph.node import ArrayType, Node, next_id


class _Traces(threading.local):
    def __init__(self) -> None:
        self.open: list[int] = []
        self.number = 0
        """How many traces there were, but for those inside others."""
        self.changes: list[Change] | None = None
        self.tracing: list[finishing] = []


Change = tuple["ref[Any]", Any, str]
"""An array that was overwritten, the node that it had before, and where that happened in the user's program."""
_traces = _Traces()
_thread = threading.get_ident


def keeps_inputs() -> int | None:
    """The id from which nodes must keep their inputs, or None if no trace is open."""
    return _traces.open[0] if _traces.open else None


def is_tracing() -> bool:
    """Whether a transform is tracing a function on this thread."""
    return bool(_traces.open)


def is_transforming() -> bool:
    """Whether a function is traced on this thread by more than compile, which does what the plain function does."""
    compiling = bool(_traces.tracing) and _traces.tracing[0].transform == "compile"
    return len(_traces.open) > compiling


class trace:
    """While open (`with trace():`), nodes made from now on keep their inputs when they are evaluated."""

    __slots__ = ()

    def __enter__(self) -> None:
        first = next_id()
        mine = _traces.__dict__  # that of this thread, looked up once
        opened = mine["open"]
        if not opened:
            mine["number"] = number = mine["number"] + 1
            OPEN[_thread()] = (number, first)
        opened.append(first)

    def __exit__(self, *error: object) -> None:
        opened = _traces.open
        opened.pop()
        if not opened:
            OPEN.pop(_thread(), None)


OPEN: dict[int, tuple[int, int]] = {}
"""The traces that are open, by thread: their numbers there, and the ids at which they opened."""


def _after_fork() -> None:
    for thread in [*OPEN]:
        if thread != threading.get_ident():
            OPEN.pop(thread)


os.register_at_fork(after_in_child=_after_fork)


class Input(Node):
    """An input of a trace that the thread is about to open. What depends on it belongs to the trace."""

    __slots__ = ("_number", "_thread")

    def __init__(self, op: Any, inputs: tuple[Node, ...], kind: ArrayType, value: Any = None) -> None:
        Node.__init__(self, op, inputs, kind, value)
        self._thread = _thread()
        mine = _traces.__dict__
        self._number = mine["number"] + (not mine["open"])

    def traced_by(self) -> int | None:
        """The id at which its trace opened, if that is open still, and another thread's."""
        number, first = OPEN.get(self._thread, (0, 0))
        return first if number == self._number and self._thread != threading.get_ident() else None


def traced_elsewhere(node: Node) -> int | None:
    """The id at which the trace of another thread opened to which this node belongs: an input of it, or a value that
    has kept its inputs."""
    if node.__class__ is Input:
        return node.traced_by()
    if not node.inputs or node.value is None:
        return None
    mine = threading.get_ident()
    return min([first for who, (_, first) in [*OPEN.items()] if who != mine and first <= node.id], default=None)


class following:
    """While open, this thread evaluates for a trace of another one that opened at this id."""

    __slots__ = ("_first",)

    def __init__(self, first: int) -> None:
        self._first = first

    def __enter__(self) -> None:
        _traces.open.insert(0, self._first)

    def __exit__(self, *error: object) -> None:
        _traces.open.pop(0)


def note_change(array: Any) -> None:
    """An array is about to be overwritten (`x += 1`, `x[i] = v`)."""
    if _traces.changes is not None:
        _traces.changes.append((ref(array), array._node, at_user_line()))


class changes:
    """While open (`with changes() as found:`), gathers the arrays that are overwritten; an inner one does so for the
    outer ones too."""

    __slots__ = ("before", "found")

    def __init__(self) -> None:
        self.found: list[Change] = []

    def __enter__(self) -> list[Change]:
        self.before = _traces.changes
        _traces.changes = self.found
        return self.found

    def __exit__(self, *error: object) -> None:
        _traces.changes = self.before
        if self.before is not None:
            self.before.extend(self.found)


class finishing:
    """A function that runs on arrays without values (`with finishing("compile"):`). If it asked for a value and caught
    the error, it did not do what it would do with values: the error is raised at the end."""

    __slots__ = ("refused", "transform")

    def __init__(self, transform: str) -> None:
        self.transform = transform
        self.refused: ValueError | None = None

    def __enter__(self) -> None:
        _traces.tracing.append(self)

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        _traces.tracing.pop()
        if error is None and self.refused is not None:
            raise self.refused


def unknown_value(transform: str) -> ValueError:
    """The error for reading an array that has no value: because a transform is tracing the function, or has traced it
    and the array was kept."""
    if not is_tracing():
        return ValueError(
            f"[{transform}] this array was made while {transform} traced a function, and means nothing outside of it: "
            f"return it from the function instead of keeping it{at_user_line()}."
        )
    return refused(
        transform,
        f"[{transform}] an array has no value while {transform} traces a function: use where(...) or cond(...) in "
        "place of a Python branch on it, while_loop(...) in place of a loop, and return what you want to see",
    )


def refused(transform: str, message: str) -> ValueError:
    """The error for what cannot be done while a transform traces a function. To catch it does not help."""
    made = ValueError(f"{message}{at_user_line()}.")
    for running in reversed(_traces.tracing):
        if running.transform == transform:
            running.refused = running.refused or made
            break
    return made
