"""Programs for the devices that their operations are meant for: one program, or one for each part of a graph.

Where operations are meant for several devices, parts are run one after the other, and what passes from one device to
another is copied: every program takes its operands from wherever they lie. No result depends on where it is computed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft.graph.lines import inherit
from weft.graph.node import Graph, Node
from weft.graph.placement import USED, device_of
from weft.passes import families, pipeline
from weft.passes.executable import Executable
from weft.passes.growing import holds_tapes
from weft.passes.views import Strides
from weft.primitives.base import Constant, ConstantValue, GetResult, Parameter, RunTimeConstant
from weft.records import dataclass
from weft.runtime.data import Buffer
from weft.runtime.device import Device
from weft.targets.cpu.target import CPU
from weft.targets.devices import target_of

Layouts = Mapping[Node, Strides | None]


def compile_graph(graph: Graph, layouts: Layouts | None = None, donated: Collection[int] = ()) -> Executable:
    """An executable for the graph (`pipeline.compile_graph`) on the devices that its nodes are meant for."""
    if not USED:
        return pipeline.compile_graph(graph, CPU, layouts, donated)
    devices = _devices(graph)
    places = set(devices.values())
    if len(places) <= 1:
        return pipeline.compile_graph(graph, target_of(places.pop() if places else None), layouts, donated)
    return Spread(graph, layouts or {}, devices)


def compile_alike(
    graph: Graph,
    layouts: Layouts,
    donated: tuple[int, ...] = (),
    found: tuple[families.Family, families.Sizes] | None = None,
) -> Executable:
    """`compile_graph`, where others of the same form and other sizes may have come before: on the host such a program
    is filled in (passes/families.py). `found` is its family, where that is known."""
    if USED and any(device_of(node) is not None for node in graph.order()):
        return compile_graph(graph, layouts, donated)
    return families.compiled(graph, CPU, layouts, donated, found)


def _devices(graph: Graph) -> dict[Node, Device | None]:
    """What every node but the leaves is computed on. Results of one operation, and loops that hand rows to each other,
    belong together. What the target of a device does not take is computed on the host."""
    order = [node for node in graph.order() if not isinstance(node.op, (Parameter, Constant))]

    def place(node: Node) -> Device | None:
        device = device_of(node)
        return device if target_of(device).takes(node.op) else None

    if holds_tapes(graph):
        first = device_of(order[0])
        return dict.fromkeys(order, first if all(target_of(first).takes(node.op) for node in order) else None)
    found: dict[Node, Device | None] = {}
    for node in order:
        found[node] = found[node.inputs[0]] if isinstance(node.op, GetResult) else place(node)
        for operand in node.inputs:
            if operand in found and not operand.inputs:
                found[operand] = found[node]  # what counts is made where it is read
    return found


@dataclass(slots=True)
class _Part:
    """A part of the graph: which values of the whole it reads and makes, by number."""

    executable: Executable
    reads: list[int]
    writes: list[int]
    last: list[int]
    """Values that no later part reads."""


class Spread(Executable):
    """An executable in parts. It overwrites nothing that it is given, and has no plan of the whole."""

    __slots__ = ("_outputs", "_parts")
    in_parts = True

    def __init__(self, graph: Graph, layouts: Layouts, devices: Mapping[Node, Device | None]) -> None:
        self.program, self.sizes, self.results, self.simple = None, [], [], False
        self.adopted, self.spent, self.largest = {}, [], 0
        self.given = [node.kind for node in graph.inputs]
        self.kinds = [node.kind for node in graph.outputs]
        numbers = {node: i for i, node in enumerate(graph.inputs)}
        lies = dict(layouts)
        pieces = _pieces(graph, devices)
        needed = _needed_by(graph, pieces)
        self._parts: list[_Part] = []
        constants: dict[int, ConstantValue] = {}
        for piece in pieces:
            outputs = [node for node in piece if node in needed]
            closed, reads = _closed(piece, outputs)
            strides = {param: lies.get(node) for param, node in zip(closed.inputs, reads, strict=True)}
            made = pipeline.compile_graph(closed, target_of(devices.get(piece[0])), strides)
            for node, result in zip(outputs, made.results, strict=True):
                numbers[node] = len(numbers)
                lies[node] = lies.get(reads[result.at]) if result.as_is else result.strides
            constants.update({id(value): value for value in made.constants})
            writes = [numbers[node] for node in outputs]
            self._parts.append(_Part(made, [numbers[node] for node in reads], writes, []))
        self.constants = list(constants.values())
        self._outputs = [numbers[node] for node in graph.outputs]
        done = set(self._outputs)
        for part in reversed(self._parts):
            part.last = [number for number in dict.fromkeys(part.reads) if number not in done]
            done.update(part.reads)

    @property
    def commands(self) -> int:
        return sum([part.executable.commands for part in self._parts])

    def forget_plan(self) -> None:
        for part in self._parts:
            part.executable.forget_plan()

    def run(self, inputs: Sequence[Buffer], words: Sequence[int]) -> list[Buffer]:
        given = self._words(words)
        values: dict[int, Buffer] = dict(enumerate(inputs))
        for part in self._parts:
            numbers = [word for value in part.executable.constants for word in given[id(value)]]
            made = part.executable.run([values[number] for number in part.reads], numbers)
            values.update(zip(part.writes, made, strict=True))
            for number in part.last:
                del values[number]
        return [values[number] for number in self._outputs]

    def _words(self, words: Sequence[int]) -> dict[int, Sequence[int]]:
        """The words of each constant."""
        given: dict[int, Sequence[int]] = {}
        at = 0
        for value in self.constants:
            count = -(-value.dtype.size // 8) if isinstance(value, RunTimeConstant) else len(value.words)
            given[id(value)] = words[at : at + count]
            at += count
        return given


def _pieces(graph: Graph, devices: Mapping[Node, Device | None]) -> list[list[Node]]:
    """The nodes that are computed, in pieces that can run one after the other, each on one device: as many as values
    change places in a row. Constants that are results are written out on the host."""
    stage: dict[Node, int] = {}
    pieces: dict[tuple[int, Device | None], list[Node]] = {}
    for node, here in devices.items():
        operands = [x for x in node.inputs if x in stage]
        stage[node] = max([stage[x] + (devices[x] != here) for x in operands], default=0)
        pieces.setdefault((stage[node], here), []).append(node)
    numbers = [node for node in dict.fromkeys(graph.outputs) if isinstance(node.op, Constant)]
    return [*([numbers] if numbers else []), *[pieces[key] for key in sorted(pieces, key=lambda key: key[0])]]


def _needed_by(graph: Graph, pieces: Sequence[Sequence[Node]]) -> set[Node]:
    """What a piece leaves for others, or for the caller."""
    home = {node: number for number, piece in enumerate(pieces) for node in piece}
    read = {x for node, number in home.items() for x in node.inputs if home.get(x, number) != number}
    return read | set(graph.outputs)


def _closed(piece: Sequence[Node], outputs: Sequence[Node]) -> tuple[Graph, list[Node]]:
    """(a graph of its own, what its parameters are) for a piece."""
    new: dict[Node, Node] = {}
    reads: list[Node] = []
    inside = set(piece)
    for node in piece:
        for operand in node.inputs:
            if operand in new or operand in inside:
                continue
            if isinstance(operand.op, Constant):
                new[operand] = operand
                continue
            new[operand] = Node(Parameter(len(reads)), (), operand.kind)
            reads.append(operand)
        new[node] = node.again(tuple([new[x] for x in node.inputs]), new)
    inherit(new)
    return Graph([new[x] for x in reads], [new[x] for x in outputs]), reads
