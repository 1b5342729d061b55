"""`weft explain script.py`: every program that a script makes is watched and timed, and explained when it is done."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from weft.errors import user_line
from weft.graph import lines
from weft.graph.lines import Line
from weft.graph.node import Graph
from weft.passes import pipeline
from weft.passes.executable import Executable
from weft.report.explain import Explained, Report
from weft.report.facts import gather
from weft.report.limits import Times, limits, time_kernels
from weft.report.retraces import traces_of
from weft.runtime.data import Buffer
from weft.runtime.program import Progress
from weft.transforms.compile import Compiled

MOST_EXPLAINED = 24
"""Programs that are shown: those that took the most time."""
BUDGET = 0.03
"""Seconds that the kernels of one program are timed for, when it runs first."""


@dataclass
class Watched:
    """A program of the script: what it was made of, by whom, and its runs so far."""

    graph: Graph
    layouts: pipeline.Layouts
    line: Line | None
    compiled: Compiled | None
    calls: int = 0
    seconds: float = 0.0
    times: Times | None = None

    @property
    def name(self) -> str:
        if self.compiled is not None:
            return str(getattr(self.compiled, "__name__", "compiled function"))
        return f"evaluation at {self.line}" if self.line is not None else "evaluation"


class _Timed(Executable):
    """An executable that notes its runs."""

    __slots__ = ("made", "watched")

    def __init__(self, made: Executable, watched: Watched) -> None:
        for name in Executable.__slots__:
            setattr(self, name, getattr(made, name))
        self.made, self.watched = made, watched

    def run(self, inputs: Sequence[Buffer], words: Sequence[int]) -> list[Buffer]:
        start = time.perf_counter()
        results = self.made.run(inputs, words)
        self._note(start)
        if self.watched.times is None:
            self.watched.times = time_kernels(self.made, inputs, words, BUDGET)
        return results

    def run_in_place(self, inputs: Sequence[Buffer], words: Sequence[int], progress: Progress) -> list[Buffer]:
        start = time.perf_counter()
        results = self.made.run_in_place(inputs, words, progress)
        self._note(start)
        return results

    def _note(self, start: float) -> None:
        self.watched.seconds += time.perf_counter() - start
        self.watched.calls += 1


@dataclass
class Watch:
    """All programs so far."""

    programs: list[Watched] = field(default_factory=list)

    def wrap(self, made: Executable, graph: Graph, layouts: pipeline.Layouts) -> Executable:
        at = user_line()
        line = Line(at[0], at[1], "") if at is not None else None
        watched = Watched(graph, layouts, line, _compiling(sys._getframe(1)))
        self.programs.append(watched)
        return _Timed(made, watched)

    def report(self, title: str, llvm: bool = False, asm: bool = False) -> Report:
        """Explain the programs that took longest, the longest first."""
        chosen = sorted(self.programs, key=lambda w: -w.seconds)[:MOST_EXPLAINED]
        known = limits() if chosen else None
        explained = []
        for watched in chosen:
            with lines.recording():  # lines are handed on from pass to pass
                gathered = gather(watched.graph, watched.layouts)
            facts = gathered.facts(watched.times, known)
            traces = tuple(traces_of(watched.compiled)) if watched.compiled is not None else ()
            explained.append(Explained(watched.name, facts, watched.line, watched.calls, watched.seconds, traces))
        return Report(title, tuple(explained), known, llvm, asm)


@contextmanager
def watching() -> Iterator[Watch]:
    """Programs made inside are watched."""
    watch = Watch()
    pipeline.WRAPPERS.append(watch.wrap)
    try:
        with lines.recording():
            yield watch
    finally:
        pipeline.WRAPPERS.remove(watch.wrap)


def _compiling(frame: FrameType | None) -> Compiled | None:
    """The compiled function that the program is for, if it is for one: the outermost one on the stack, unless some
    array is only being evaluated for it."""
    found: Any = None
    while frame is not None:
        if found is None and str(frame.f_globals.get("__name__")).startswith("weft.evaluate."):
            return None
        owner = frame.f_locals.get("self")
        if isinstance(owner, Compiled):
            found = owner
        frame = frame.f_back
    return found
