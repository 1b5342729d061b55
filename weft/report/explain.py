"""explain: what the compiler makes of a function, as text and as a page to look at.

A `Report` holds the facts (weft/report/facts.py) of one program or several; printing it gives the text
(weft/report/text.py), `html()` and `save()` the page (weft/report/page.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.array import array
from weft.graph import lines
from weft.graph.lines import Line
from weft.graph.node import Graph
from weft.passes.executable import Executable
from weft.passes.growing import Growing, holds_tapes
from weft.passes.memory import Plan
from weft.passes.pipeline import Layouts, plan
from weft.report import page, text
from weft.report.facts import Facts, gather
from weft.report.limits import Limits, limits, time_kernels
from weft.report.retraces import traces_of
from weft.report.updates import updates_of
from weft.transforms.compile import Compiled, graph_of

BEYOND = 1.15
"""A kernel that is so much faster than the machine's limit shows that the limit was measured at a bad moment."""


@dataclass(frozen=True)
class Explained:
    """One program: its name, the facts, where it was asked for, how often it ran, and the traces of the compiled
    function that it belongs to."""

    name: str
    facts: Facts
    line: Line | None = None
    calls: int = 0
    seconds: float = 0.0
    traces: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    """Of a compiled function: the state that a call replaces, in place or not."""


@dataclass(frozen=True)
class Report:
    """What `explain` found: print it, or `save("page.html")` and look at it in a browser."""

    title: str
    programs: tuple[Explained, ...]
    limits: Limits | None
    llvm: bool = field(default=False, repr=False)
    asm: bool = field(default=False, repr=False)

    @property
    def facts(self) -> Facts:
        """Those of the first program."""
        return self.programs[0].facts

    def __str__(self) -> str:
        return text.render(self, self.llvm, self.asm)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """A notebook shows the page in a frame."""
        return page.framed(self.html())

    def html(self) -> str:
        """One page that needs nothing else: no network, no other file."""
        return page.render(self)

    def save(self, path: str | Path) -> Path:
        """Write the page to a file; the path of it."""
        written = Path(path)
        written.write_text(self.html(), encoding="utf-8")
        return written


def explain(
    fun: Callable[..., Any], *args: Any, llvm: bool = False, asm: bool = False, measure: bool = True, **kwargs: Any
) -> Report:
    """What the compiler makes of `fun(*args)`: trace, passes, kernels, memory, the time that each kernel takes; with
    `llvm` and `asm` the text has their code (the page always has).

    The function is traced, not called: nothing that it changes is changed. With `measure` its program runs on the
    arguments some times and the results are thrown away.

    >>> report = explain(lambda x: mx.softmax(x * 0.5, axis=-1), mx.zeros((64, 100)))
    >>> print(report)
    weft explain: ...
    >>> report.save("softmax.html")
    PosixPath('softmax.html')
    """
    if not callable(fun):
        raise TypeError(f"[explain] the first argument must be a function; got {type(fun).__name__}.")
    if hasattr(fun, "__explain__"):  # of a front end: the program behind it, and arrays of the kinds that it takes
        fun, args = fun.__explain__(*args, **kwargs)
        kwargs = {}
    updated = updates_of(fun, args, kwargs)  # first: what is found below holds arrays
    with lines.recording():
        traced = graph_of(fun, *args, **kwargs)
        found = gather(traced.graph, traced.layouts, input_names(fun, args, kwargs, traced.arrays))
    times = known = None
    if measure:
        executable = _executable(traced.graph, traced.layouts, found.plan)
        words = [word for value in executable.constants for word in value.words]
        times, known = time_kernels(executable, traced.buffers, words), limits()
    traces = tuple(traces_of(fun, args, kwargs)) if isinstance(fun, Compiled) else ()
    name = getattr(fun, "__name__", type(fun).__name__)
    facts = found.facts(times, known)
    if any((kernel.share_of_limit or 0.0) > BEYOND for kernel in facts.kernels):
        known = limits(again=True)
        facts = found.facts(times, known)
    state = () if updated is None else tuple(updated.lines(input_names(fun, args, kwargs, updated.arrays)))
    return Report(name, (Explained(name, facts, _defined(fun), traces=traces, updates=state),), known, llvm, asm)


def _executable(graph: Graph, layouts: Layouts, made: Plan) -> Executable:
    """What would run, without what check or a watch put around it."""
    if holds_tapes(graph):
        return Growing(made, lambda: plan(graph, made.target, layouts))
    return made.target.assemble(made)


def _defined(fun: Any) -> Line | None:
    code = getattr(inspect.unwrap(getattr(fun, "__wrapped_function__", fun)), "__code__", None)
    return Line(code.co_filename, code.co_firstlineno, code.co_name) if code is not None else None


def input_names(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], arrays: Sequence[array | None]
) -> list[str]:
    """What to call the inputs of a graph: the arguments that they are, or stand in."""
    names: dict[int, str] = {}
    try:
        parameters = list(inspect.signature(getattr(fun, "__wrapped_function__", fun)).parameters)
    except (TypeError, ValueError):
        parameters = []
    for i, value in enumerate(args):
        _name(value, parameters[i] if i < len(parameters) else f"args[{i}]", names, 0)
    for key, value in kwargs.items():
        _name(value, key, names, 0)
    return [names.get(id(a), "captured") if a is not None else "made while tracing" for a in arrays]


def _name(value: Any, name: str, names: dict[int, str], depth: int) -> None:
    if isinstance(value, array):
        names.setdefault(id(value), name)
    elif depth > 8:
        return
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            _name(item, f"{name}[{i}]", names, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            _name(item, f"{name}[{key!r}]", names, depth + 1)
