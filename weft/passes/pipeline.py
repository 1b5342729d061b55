"""THE pipeline: from a graph to an executable program. `eval` and `compile` both come through here, so they give the
same bits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from weft.config import config
from weft.graph.node import Graph, Node
from weft.graph.show import show
from weft.passes.cse import cse
from weft.passes.executable import Executable, assemble
from weft.passes.fuse import fuse
from weft.passes.lower import lower
from weft.passes.memory import Plan, plan_memory
from weft.passes.show import show_plan
from weft.passes.simplify import simplify
from weft.passes.verify import verify_graph, verify_plan
from weft.passes.views import Strides, compose_views

PASSES = (cse, simplify, cse)
"""Graph to graph, in order; after them views are composed, kernels formed, lowered and placed (`plan`)."""


Observer = Callable[[str, Graph], None]


def plan(graph: Graph, layouts: Mapping[Node, Strides | None] | None = None, observe: Observer | None = None) -> Plan:
    """All passes. `layouts` gives the strides of inputs that are not contiguous; `observe` sees the graph after each
    pass."""
    layouts = dict(layouts or {})

    def stage(name: str, result: Graph) -> Graph:
        if observe is not None:
            observe(name, result)
        return _checked(result)

    for step in PASSES:
        graph = stage(step.__name__, step(graph))
    graph = stage("views", cse(compose_views(graph, layouts)))
    groups = fuse(graph, layouts)
    items = lower(graph, groups, layouts)
    planned = plan_memory(graph, items)
    if config.check:
        verify_plan(planned)
    return planned


def compile_graph(graph: Graph, layouts: Mapping[Node, Strides | None] | None = None) -> Executable:
    """An executable for the graph: its kernels loaded, its memory laid out."""
    if "graph" in config.dump:
        print(show(graph), file=sys.stderr)
    planned = plan(graph, layouts)
    if config.dump & {"plan", "kernels"}:
        print(show_plan(planned, kernels="kernels" in config.dump), file=sys.stderr)
    return assemble(planned)


def _checked(graph: Graph) -> Graph:
    if config.check:
        verify_graph(graph)
    return graph
