"""Open traces of this thread: while a function is being differentiated, evaluation must not forget how its values were
computed.

A trace opens at a node id; nodes made since then keep their inputs when they are evaluated, so `.item()` and Python
branches on values work inside `grad`.
"""

from __future__ import annotations

import threading

from weft.errors import at_user_line
from weft.graph.node import next_id


class _Traces(threading.local):
    def __init__(self) -> None:
        self.open: list[int] = []


_traces = _Traces()


def keeps_inputs() -> int | None:
    """The id from which nodes must keep their inputs, or None if no trace is open."""
    return _traces.open[0] if _traces.open else None


def is_tracing() -> bool:
    """Whether a transform is tracing a function on this thread."""
    return bool(_traces.open)


class trace:
    """While open (`with trace():`), nodes made from now on keep their inputs when they are evaluated."""

    __slots__ = ()

    def __enter__(self) -> None:
        _traces.open.append(next_id())

    def __exit__(self, *error: object) -> None:
        _traces.open.pop()


def unknown_value(transform: str) -> ValueError:
    """The error for reading an array that has no value yet because a transform is tracing the function."""
    return ValueError(
        f"[{transform}] an array has no value while {transform} traces a function: use where(...) or cond(...) in "
        "place of a Python branch on it, while_loop(...) in place of a loop, and return what you want to see"
        f"{at_user_line()}."
    )
