"""The text form of plans: kernels with their nodes, and where every value lies."""

from __future__ import annotations

from weft.graph.node import Node
from weft.graph.show import show_kind
from weft.passes.memory import Plan
from weft.primitives.base import Constant


def show_plan(plan: Plan, kernels: bool = False) -> str:
    """One line a launch: form, operations, operands and results with their places."""
    names: dict[Node, str] = {}

    def name(node: Node) -> str:
        return names.setdefault(node, f"%{len(names)}")

    def place(node: Node) -> str:
        if isinstance(node.op, Constant):
            return "constant"
        at = plan.places[node]
        return f"{name(node)}@{at.where}{'+' if at.where == 'arena' else ' '}{at.at}"

    lines = [f"plan: {len(plan.items)} kernels, arena {plan.arena} bytes"]
    for node in plan.graph.inputs:
        name(node)
    for item in plan.items:
        operations = " ".join(node.op.title for node in item.group.nodes)
        reads, writes = ", ".join(map(place, item.reads)), ", ".join(map(place, item.writes))
        kinds = ", ".join(show_kind(node.kind) for node in item.writes)
        lines.append(f"  {item.group.form} [{operations}] ({reads}) -> {writes} : {kinds}")
        if kernels:
            lines.extend("    " + line for launch in item.launches for line in launch.source.key.splitlines())
    lines.extend(f"  reuse: {line}" for line in plan.reuse)
    return "\n".join(lines)
