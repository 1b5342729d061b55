"""THE pipeline: from a graph to an executable program. `eval` and `compile` both come through here, so they give the
same bits."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from weft import room
from weft.config import config
from weft.graph.body import Body
from weft.graph.dims import key_of
from weft.graph.node import Graph, Node
from weft.graph.show import show
from weft.lazy import lazy
from weft.passes.conversions import convert_again
from weft.passes.cse import cse
from weft.passes.decompose import decompose
from weft.passes.executable import Executable
from weft.passes.fuse import Group, fuse
from weft.passes.growing import Growing, holds_tapes
from weft.passes.loops import loops
from weft.passes.lower import TAPE_ROWS, Item, Lowerer, lower
from weft.passes.memory import Plan, plan_memory
from weft.passes.orders import keep_orders
from weft.passes.simplify import simplify
from weft.passes.target import Target
from weft.passes.views import Strides, compose_views, stored_apart

if TYPE_CHECKING:
    from weft.passes import lower_loops, verify
    from weft.passes import show as showing
else:
    lower_loops, verify = lazy("weft.passes.lower_loops"), lazy("weft.passes.verify")
    showing = lazy("weft.passes.show")

PASSES = (decompose, cse, simplify, loops, cse)
"""Graph to graph, in order; after them views are composed, kernels formed, lowered and placed (`plan`)."""


Observer = Callable[[str, Graph], None]
Layouts = Mapping[Node, Strides | None]
Wrapper = Callable[[Executable, Graph, Layouts], Executable]

WRAPPERS: list[Wrapper] = []
"""What check and explain put around new executables of the host, with the graph that each was made of; empty unless
they are on."""


def plan(
    graph: Graph,
    target: Target,
    layouts: Mapping[Node, Strides | None] | None = None,
    observe: Observer | None = None,
    carried: Mapping[int, int] | None = None,
    donated: Collection[int] = (),
) -> Plan:
    """All passes, for the machine that `target` is. `layouts` gives the strides of inputs that are not contiguous;
    `observe` sees the graph after each pass. The body of a loop or branch says what is `carried` (plan_memory), and has
    its results stored apart. The `donated` inputs may be overwritten."""
    layouts = dict(layouts or {})

    def stage(name: str, result: Graph) -> Graph:
        if observe is not None:
            observe(name, result)
        return _checked(result)

    for step in PASSES:
        graph = stage(step.__name__, step(graph))
    rows: set[Node] = set()
    graph = compose_views(graph, layouts, rows, apart=carried is not None)
    if carried is None:
        graph = keep_orders(graph, layouts, rows)
    graph = stage("views", cse(graph))
    if carried is not None:
        graph = stage("results apart", stored_apart(graph))
    groups = fuse(graph, layouts, target.fusion)
    alone = convert_again(graph, groups)
    if alone is not graph:
        graph = stage("conversions", alone)
        groups = fuse(graph, layouts, target.fusion)

    def bodies(lowerer: Lowerer, group: Group) -> Item:
        return lower_loops.lower_bodies(lowerer, group, functools.partial(plan_body, target))

    items = lower(graph, groups, layouts, target, bodies)
    planned = plan_memory(graph, items, target, carried, donated)
    if config.check and not planned.is_symbolic:
        verify.verify_plan(planned, carried or {}, donated)
    return planned


def plan_over(made: Plan, donated: Collection[int]) -> Plan:
    """A plan of the same steps that may overwrite the `donated` inputs."""
    planned = plan_memory(made.graph, made.items, made.target, None, donated)
    if config.check and not planned.is_symbolic:
        verify.verify_plan(planned, {}, donated)
    return planned


def plan_body(target: Target, body: Body, layouts: Mapping[Node, Strides | None], carried: Mapping[int, int]) -> Plan:
    """The plan of a loop's or branch's body; made once for operands that lie alike."""
    strides = key_of(tuple([layouts.get(node) for node in body.inputs]))
    key = ("plan", target, strides, tuple(carried.items()), TAPE_ROWS.get())
    found: Plan = body.once(key, lambda: plan(body.graph, target, layouts, carried=carried))
    return found


def compile_graph(
    graph: Graph,
    target: Target,
    layouts: Mapping[Node, Strides | None] | None = None,
    donated: Collection[int] = (),
) -> Executable:
    """An executable for the graph: its kernels loaded, its memory laid out. The `donated` inputs are the program's
    own: it may use their memory, and its plan says which it has."""
    room.ensure_for_python("planning a program")
    if "graph" in config.dump:
        print(show(graph), file=sys.stderr)
    planned = plan(graph, target, layouts, donated=donated)
    if config.dump & {"plan", "kernels"}:
        print(showing.show_plan(planned, kernels="kernels" in config.dump), file=sys.stderr)
    if holds_tapes(graph):  # what the first plan overwrites, and no more, has been claimed for every run
        made: Executable = Growing(planned, lambda: plan(graph, target, layouts, donated=planned.spent))
    else:
        made = target.assemble(planned)
    return wrapped(made, graph, layouts or {})


def wrapped(made: Executable, graph: Graph, layouts: Layouts) -> Executable:
    """A new executable with what check and explain put around it. They look at memory, and so at the host's alone."""
    if not made.plan.target.host_memory:
        return made
    for wrapper in WRAPPERS:
        made = wrapper(made, graph, layouts)
    return made


def _checked(graph: Graph) -> Graph:
    if config.check:
        verify.verify_graph(graph)
    return graph
