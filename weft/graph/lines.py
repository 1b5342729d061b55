"""Where nodes come from: the line of the user's program that made each one, and what the passes made of it.

Only `explain` and `check` want to know of all nodes, and nobody else pays: while nothing records, nodes are made by
`Node.__init__` itself, and `start` puts another function in its place. Transforms say on whose behalf they make nodes
(`on_behalf_of`), so a derivative has the line of what it is the derivative of. Passes say what became of every node
(`inherit`).

Operations that may fail, and loops and branches, always know their line (`mark`): an error names it (`locate`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

from weft.errors import ComputationError
from weft.graph.node import Node
from weft.runtime.objects import MAKERS

F = TypeVar("F", bound=Callable[..., Any])


class Line(NamedTuple):
    """A line of the user's program and the function that it stands in."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


Trail = list[Mapping[Node, Node]]
"""What passes have said so far: for each, the new node of every old one."""


class _Trails(threading.local):
    """Those that are being followed on this thread."""

    def __init__(self) -> None:
        self.open: list[Trail] = []


_plain = Node.__init__
_recorders = 0
_trails = _Trails()
_behalf: dict[CodeType, str] = {}


def line_of(node: Node) -> Line | None:
    """The line that made a node, if it is known."""
    found: Line | None = getattr(node, "line", None)
    return found


def start() -> None:
    """Record lines from now on; each `start` wants its `stop`."""
    global _recorders
    _recorders += 1
    MAKERS.watch(True)
    Node.__init__ = _recorded  # type: ignore[assignment, method-assign]


def stop() -> None:
    """Record no longer, unless somebody else still does."""
    global _recorders
    _recorders -= 1
    MAKERS.watch(False)
    if _recorders == 0:
        Node.__init__ = _plain  # type: ignore[method-assign]


# ---- errors ----


def mark(node: Node) -> None:
    """Remember the line that makes this node now."""
    if line_of(node) is None:
        line = _line_here()
        if line is not None:
            node.line = line


def hand_on(line: Line | None, results: Iterable[Node], since: int) -> None:
    """Give a line to nodes that are newer than the id `since`: those that a transform made of a node with that line."""
    pending = [node for node in results if node.id > since]
    while pending and line is not None:
        node = pending.pop()
        if line_of(node) is None:
            node.line = line
            pending.extend([x for x in node.inputs if x.id > since])


Marked = tuple[tuple[Any, Line], ...]
"""Operations with the lines that made them."""


def marked(nodes: Iterable[Node]) -> Marked:
    """Those among some nodes that may fail, and know their lines."""
    found = [(node.op, line_of(node)) for node in nodes if not node.op.is_total]
    return tuple([(op, line) for op, line in found if line is not None])


def locate(error: ComputationError, operations: Marked) -> None:
    """Add to an error the line (or lines) that made the operation which failed, or the loop or branch it stands in."""
    failed = error.operation
    if failed is None:
        return
    lines = [line for op, line in operations if op is failed] or [line for op, line in operations if op.holds(failed)]
    if lines:
        error.operation = None
        where = " or ".join(dict.fromkeys(map(str, lines)))
        error.args = (f"{str(error).removesuffix('.')} (at {where}).",)


@contextmanager
def recording() -> Iterator[None]:
    """Lines are recorded inside."""
    start()
    try:
        yield
    finally:
        stop()


@contextmanager
def followed() -> Iterator[Trail]:
    """What passes make of nodes inside, in the order in which they say it."""
    trail: Trail = []
    _trails.open.append(trail)
    try:
        yield trail
    finally:
        _trails.open.pop()


def on_behalf_of(variable: str) -> Callable[[F], F]:
    """Marks a function: nodes that are made while it runs stand for the node in its local `variable`, and have its
    line. The function itself is not touched."""

    def mark(function: F) -> F:
        _behalf[function.__code__] = variable
        return function

    return mark


def inherit(new: Mapping[Node, Node]) -> None:
    """Hand lines on from old nodes to those that replace them, and to what was made on the way. Passes call it."""
    for trail in _trails.open:
        trail.append(dict(new))
    if _recorders == 0:
        return
    named = set(new.values())
    for old, fresh in new.items():
        line = line_of(old)
        if line is None:
            continue
        pending = [fresh] if line_of(fresh) is None else []
        while pending:
            node = pending.pop()
            node.line = line
            pending.extend(i for i in node.inputs if line_of(i) is None and i not in named)


def _recorded(node: Node, *args: Any, **kwargs: Any) -> None:
    _plain(node, *args, **kwargs)
    line = _line_here()
    if line is not None:
        node.line = line


def _line_here() -> Line | None:
    """The innermost line that is neither Weft's nor the standard library's; None for what passes make."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module is None:  # functions that are written at run time: dataclasses' and ours
            frame = frame.f_back
            continue
        variable = _behalf.get(frame.f_code)
        if variable is not None:
            found = line_of(frame.f_locals[variable]) if variable in frame.f_locals else None
            if found is not None:
                return found
        package = module.partition(".")[0]
        if package == "weft":
            if module.startswith(("weft.passes.", "weft.evaluate.")):
                return None
        elif package not in sys.stdlib_module_names or package == "__main__":
            return Line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None
