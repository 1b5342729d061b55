"""The stable text form of graphs: what golden tests compare, `WEFT_DUMP=graph` prints and `explain` shows."""

from __future__ import annotations

from weft.graph.dims import text_of
from weft.graph.node import ArrayType, Graph, Node

_SHORT = {"bool": "bool", "bfloat16": "bf16"}


def show_kind(kind: ArrayType) -> str:
    """`f32[4, 8]`."""
    name = kind.dtype.name
    short = _SHORT.get(name) or name[0] + name.lstrip("uintfloacmpex")
    if name.startswith("uint"):
        short = "u" + name[4:]
    return f"{short}[{', '.join(map(text_of, kind.shape))}]"


def show_op(node: Node) -> str:
    """`sum(axes=(1,))`: the primitive with its parameters."""
    return str(node.op)


def show(graph: Graph) -> str:
    """The whole graph, one node a line, numbered in topological order.

    graph(%0: f32[4, 8]) {
      %1 = exp %0 : f32[4, 8]
      return %1
    }
    """
    names: dict[Node, str] = {}
    for node in (*graph.inputs, *graph.order()):
        names.setdefault(node, f"%{len(names)}")
    params = ", ".join(f"{names[n]}: {show_kind(n.kind)}" for n in graph.inputs)
    lines = [f"graph({params}) {{"]
    inputs = set(graph.inputs)
    for node in graph.order():
        if node in inputs:
            continue
        operands = ", ".join(names[i] for i in node.inputs)
        lines.append(f"  {names[node]} = {show_op(node)}{' ' + operands if operands else ''} : {show_kind(node.kind)}")
    lines.append(f"  return {', '.join(names[o] for o in graph.outputs)}")
    return "\n".join([*lines, "}"])
