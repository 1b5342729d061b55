"""explain: what the compiler makes of a function, as text. The graph before and after each pass, kernels with their
nodes, memory, and code on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.graph.node import Graph, Node
from weft.graph.show import show, show_kind
from weft.passes.lower import Item, nbytes_of
from weft.passes.memory import Plan
from weft.passes.pipeline import plan
from weft.primitives.base import Constant
from weft.runtime import engine
from weft.transforms.compile import graph_of


@dataclass(frozen=True)
class Report:
    """What `explain` found. Print it, or look at `stages` (pass name, graph) and `plan`."""

    stages: tuple[tuple[str, Graph], ...]
    plan: Plan
    llvm: bool = False
    asm: bool = False

    def __str__(self) -> str:
        parts = [*_stages(self.stages), *_kernels(self.plan), *_memory(self.plan)]
        for item in self.plan.items:
            for launch in item.launches:
                if self.llvm:
                    parts.append(f"== LLVM IR of {launch.source.name}\n{engine.llvm_text(launch.source)}")
                if self.asm:
                    parts.append(f"== assembly of {launch.source.name}\n{engine.assembly(launch.source)}")
        return "\n\n".join(parts)

    __repr__ = __str__


def explain(fun: Callable[..., Any], *args: Any, llvm: bool = False, asm: bool = False, **kwargs: Any) -> Report:
    """What the compiler makes of `fun(*args)`: trace, passes, kernels, memory; with `llvm` and `asm` also the code.

    >>> print(weft.explain(lambda x: mx.softmax(x * 0.5, axis=-1), x))
    """
    graph, layouts = graph_of(fun, *args, **kwargs)
    stages = [("traced", graph)]
    planned = plan(graph, layouts, lambda name, after: stages.append((name, after)))
    return Report(tuple(stages), planned, llvm, asm)


def _stages(stages: Sequence[tuple[str, Graph]]) -> list[str]:
    """Each pass that changed something, with the graph it left."""
    parts, before = [], ""
    for name, graph in stages:
        text = show(graph)
        count = len(graph.order()) - len(graph.inputs)
        parts.append(f"== {name}: no change" if text == before else f"== {name}: {count} nodes\n{text}")
        before = text
    return parts


def _kernels(planned: Plan) -> list[str]:
    lines = [f"== kernels: {len(planned.items)}"]
    for number, item in enumerate(planned.items):
        operations = " ".join(node.op.title for node in item.group.nodes)
        read, written = _bytes(item.reads), _bytes(item.writes)
        results = ", ".join(show_kind(node.kind) for node in item.writes)
        lines.append(f"  {number}: {item.group.form} [{operations}] -> {results}")
        lines.append(f"     reads {_size(read)}, writes {_size(written)}{_launches(item)}")
    return ["\n".join(lines)]


def _launches(item: Item) -> str:
    forms = [launch.source.key.split(" ", 1)[0].splitlines()[0] for launch in item.launches]
    grain = item.launches[0].grain
    shared = "one thread" if grain == 0 else f"threads share it from {2 * grain} units on"
    return (
        f", as {' then '.join(forms)}, {shared}" if item.group.form != "opaque" else f", {len(item.launches)} launches"
    )


def _memory(planned: Plan) -> list[str]:
    lines = [
        f"== memory: {_size(planned.arena)} of temporaries (at least {_size(planned.lower_bound)} are alive at once)"
    ]
    lines.extend(f"  {line}" for line in planned.reuse)
    return ["\n".join(lines)]


def _bytes(nodes: Sequence[Node]) -> int:
    return sum(nbytes_of(node) for node in nodes if not isinstance(node.op, Constant))


def _size(nbytes: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.4g} {unit}"
        nbytes /= 1024  # type: ignore[assignment]
    return f"{nbytes:.4g} GiB"
