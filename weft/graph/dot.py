"""Graphs as GraphViz text, for people who would rather look: `dot -Tsvg graph.dot`.

Operations are boxes, arrays ovals; bodies of loops and branches are clusters, with a dashed line to what runs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weft.graph.body import Body
from weft.graph.node import Node, TupleType, reachable_by
from weft.graph.show import show_kind
from weft.records import fields


def letters() -> Iterator[str]:
    """A, B, ..., Z, AA, AB, ..."""
    for length in itertools.count(1):
        for name in itertools.product("ABCDEFGHIJKLMNOPQRSTUVWXYZ", repeat=length):
            yield "".join(name)


def _quoted(*rows: str) -> str:
    text = "\n".join(rows)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


class _Dot:
    def __init__(self, names: Mapping[Node, str], operands: Callable[[Node], Sequence[Node]]) -> None:
        self.lines = ["digraph {", "  node [fontname=Helvetica];"]
        self._names, self._operands = names, operands
        taken = set(names.values())
        self._free = (name for name in letters() if name not in taken)
        self._ids: dict[Node, str] = {}
        self._bodies: dict[Body, str] = {}

    def name(self, node: Node) -> str:
        """The user's name for an array, or a letter."""
        return self._names.get(node) or next(self._free)

    def add(self, node: Node, parameter: str = "", indent: str = "  ") -> str:
        """Draw a node; its id."""
        made = self._ids[node] = f"n{len(self._ids)}"
        operands = self._operands(node)
        kind = repr(node.kind) if isinstance(node.kind, TupleType) else show_kind(node.kind)
        if operands or (node.value is None and not parameter):
            name = f"{self._names[node]} = " if node in self._names else ""
            title = f"{name}{_title(node)}"
            self.lines.append(f"{indent}{made} [label={_quoted(title, kind)}, shape=rectangle];")
        else:
            number = getattr(node.value, "number", None)
            title = self._names.get(node) or parameter or (self.name(node) if number is None else str(number))
            self.lines.append(f"{indent}{made} [label={_quoted(title, kind)}, shape=ellipse];")
        for x in operands:
            self.lines.append(f"{indent}{self._ids[x]} -> {made};")
        return made

    def bodies(self, node: Node, indent: str) -> None:
        """The bodies that a node runs, each as a cluster the first time that it is met."""
        for field in fields(node.op):
            value = getattr(node.op, field.name)
            for number, body in enumerate(value if isinstance(value, tuple) else (value,)):
                if not isinstance(body, Body):
                    continue
                label = f"{field.name} {number}" if isinstance(value, tuple) else field.name
                if body not in self._bodies:
                    self._bodies[body] = self._cluster(body, f"{label} of {type(node.op).name()}", indent)
                self.lines.append(
                    f"{indent}{self._bodies[body]} -> {self._ids[node]} [style=dashed, label={_quoted(label)}];"
                )

    def _cluster(self, body: Body, label: str, indent: str) -> str:
        number = len(self._bodies)
        self.lines.append(f"{indent}subgraph cluster_{number} {{")
        inner = indent + "  "
        self.lines.append(f"{inner}label={_quoted(label)}; style=rounded;")
        for i, node in enumerate(body.inputs):
            self.add(node, f"parameter {i}", inner)
        for node in body.graph.order():
            if node not in self._ids:
                self.add(node, "", inner)
                self.bodies(node, inner)
        for i, node in enumerate(body.outputs):
            self.lines.append(f"{inner}b{number}_{i} [label={_quoted(f'result {i}')}, shape=ellipse];")
            self.lines.append(f"{inner}{self._ids[node]} -> b{number}_{i};")
        self.lines.append(f"{indent}}}")
        return f"b{number}_0" if body.outputs else self._ids[body.inputs[0]] if body.inputs else f"b{number}"


def _title(node: Node) -> str:
    """The operation with its parameters, but for bodies, which are drawn."""
    shown = [f for f in fields(node.op) if not _holds_body(getattr(node.op, f.name))]
    if len(shown) == len(fields(node.op)):
        return str(node.op)
    return f"{node.op.title}({', '.join([f'{f.name}={getattr(node.op, f.name)}' for f in shown])})"


def _holds_body(value: Any) -> bool:
    return isinstance(value, Body) or (isinstance(value, tuple) and any(isinstance(part, Body) for part in value))


def dot(outputs: Sequence[Node], names: Mapping[Node, str]) -> str:
    """The graph of what has yet to be computed for the outputs. `names` are those of arrays in it."""

    def operands(node: Node) -> Sequence[Node]:
        return () if node.value is not None else node.inputs

    drawing = _Dot(names, operands)
    for node in reachable_by(outputs, operands):
        drawing.add(node)
        drawing.bodies(node, "  ")
    sinks = []
    for i, node in enumerate(outputs):
        label = _quoted(names.get(node) or f"output {i}", show_kind(node.kind))
        drawing.lines.append(f"  out{i} [label={label}, shape=ellipse, peripheries=2];")
        drawing.lines.append(f"  {drawing._ids[node]} -> out{i};")
        sinks.append(f"out{i};")
    if sinks:
        drawing.lines.append(f"  {{ rank=sink; {' '.join(sinks)} }}")
    return "\n".join([*drawing.lines, "}", ""])
