"""Facts about one program, gathered from the compiler: stages, kernels, memory, and the reasons for what was not done.

Everything that `explain` shows is here as plain data (numbers, texts, lists), so that the text and the page tell the
same story. Nodes have a number that they keep from pass to pass, as long as they compute the same thing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.graph.body import Body
from weft.graph.lines import Line, Trail, followed, line_of
from weft.graph.node import ArrayType, Graph, Node, Tape, TupleType
from weft.graph.show import show_kind
from weft.llvm.engine import Source
from weft.passes.executable import launches_of
from weft.passes.fuse import obstacles
from weft.passes.lower import Item, nbytes_of
from weft.passes.memory import Plan, base_of, last_reads
from weft.passes.pipeline import Layouts, plan
from weft.passes.views import Strided
from weft.primitives.base import Constant, GetResult, Parameter, RunTimeConstant, View
from weft.primitives.indexing import Indexed
from weft.report.limits import Limits, Times
from weft.targets import CPU


@dataclass(frozen=True)
class Operation:
    """A node of a stage. Operands are numbers of nodes, or the text of a constant."""

    number: int
    title: str
    text: str
    kind: str
    nbytes: int
    operands: tuple[int | str, ...]
    line: Line | None
    role: str
    """"input", "output", "view", "leaf" (a constant that is a result) or ""."""
    bodies: tuple[tuple[str, str], ...] = ()
    """Graphs among its parameters (the bodies of loops and branches): name and text."""


@dataclass(frozen=True)
class Change:
    """What a pass did to a node. `what` is "merged", "replaced", "rewritten", "removed" or "added"; `to` the node that
    stands for it now."""

    number: int
    what: str
    text: str
    to: int | None = None


@dataclass(frozen=True)
class Stage:
    """The graph after a pass."""

    name: str
    says: str
    operations: tuple[Operation, ...]
    outputs: tuple[int, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class LaunchFacts:
    """A native function that a kernel runs."""

    name: str
    text: str
    shared: str
    source: Source = field(compare=False, repr=False)


@dataclass(frozen=True)
class KernelFacts:
    """One step of the program: what it computes, what it moves, what it takes."""

    number: int
    form: str
    loops: str
    nodes: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    nbytes: int
    flops: float
    launches: tuple[LaunchFacts, ...]
    seconds: float | None
    least: float | None
    limit: str
    notes: tuple[str, ...]
    """Why it stayed apart from its neighbours."""

    @property
    def share_of_limit(self) -> float | None:
        """How near to the machine's limit it runs; 1 is as fast as the machine can."""
        return None if self.seconds is None or self.least is None else self.least / self.seconds


@dataclass(frozen=True)
class Stored:
    """A value in memory: where, and from which step (-1: before the program) to which (the number of steps: after)."""

    number: int | None
    name: str
    kind: str
    nbytes: int
    where: str
    at: int
    first: int
    last: int
    over: int | None = None
    """The node whose place it takes while that dies."""
    note: str = ""
    """Why it does not take any operand's place."""


@dataclass(frozen=True)
class Memory:
    """Bytes: of temporaries, of the largest set of them that is alive at once, of inputs and of results."""

    arena: int
    lower_bound: int
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Facts:
    """All about one program."""

    stages: tuple[Stage, ...]
    kernels: tuple[KernelFacts, ...]
    stored: tuple[Stored, ...]
    memory: Memory
    total: float | None
    plan: Plan = field(compare=False, repr=False)


PASSES = {
    "traced": "what the function asked for",
    "decompose": "composites as what they are made of",
    "cse": "one node for each distinct operation",
    "simplify": "exact identities only",
    "loops": "what every step of a loop would do alike",
    "views": "every view is an offset and strides",
    "conversions": "what kernels would only hand on in a wider type, each converts",
    "kernels": "what shares a loop nest",
}
"""What each stage is, in a few words; a pass that is not here is shown without."""


def gather(graph: Graph, layouts: Layouts, names: Sequence[str] = ()) -> _Gatherer:
    """Plan the graph and keep what happens. `names` are those of the inputs."""
    made = _Gatherer(names)
    made.stage("traced", graph, [])
    with followed() as trail:
        seen = 0

        def observe(name: str, after: Graph) -> None:
            nonlocal seen
            made.stage(name, after, trail[seen:])
            seen = len(trail)

        made.layouts = dict(layouts)
        made.plan = plan(graph, CPU, layouts, observe)
    return made


class _Gatherer:
    """Numbers nodes through the stages; `facts` puts everything together once times are known."""

    plan: Plan
    layouts: dict[Node, Any]

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.number: dict[Node, int] = {}
        self.stages: list[Stage] = []
        self.graph: Graph | None = None
        self.count = 0

    # ---- stages ----

    def stage(self, name: str, graph: Graph, trail: Trail) -> None:
        before, old_number = self.graph, self.number
        self.graph, self.number = graph, {}
        order = graph.order()
        sources: dict[Node, list[Node]] = {}
        fate: dict[Node, Node] = {}
        for node in before.order() if before is not None else ():
            if node not in old_number:
                continue  # a constant
            fate[node] = _followed(node, trail)
            sources.setdefault(fate[node], []).append(node)
        taken: set[int] = set()
        for node in order:
            if not self._is_shown(node, graph):
                continue
            kept = [old_number[n] for n in sources.get(node, ()) if old_number[n] not in taken]
            same = [old_number[n] for n in sources.get(node, ()) if n.op is node.op and old_number[n] in kept]
            self.number[node] = min(same or kept, default=-1)
            if self.number[node] < 0:
                self.number[node] = self.count
                self.count += 1
            taken.add(self.number[node])
        changes = [] if before is None else self._changes(before, old_number, order, fate)
        operations = tuple(self._operation(node, graph) for node in order if self._is_shown(node, graph))
        outputs = tuple(self.number[o] for o in graph.outputs)
        self.stages.append(Stage(name, PASSES.get(name, ""), operations, outputs, tuple(changes)))

    def _changes(
        self, before: Graph, old: Mapping[Node, int], order: Sequence[Node], fate: Mapping[Node, Node]
    ) -> list[Change]:
        present = {self.number[node]: node for node in order if node in self.number}
        changes = []
        for node in before.order():
            if isinstance(node.op, (Constant, Parameter)):
                continue
            number, now = old[node], fate[node]
            if number in present:
                if present[number].op is not node.op:
                    changes.append(Change(number, "rewritten", f"{node.op} became {present[number].op}", number))
            elif now in self.number:
                what = "merged" if now.op is node.op else "replaced"
                changes.append(Change(number, what, f"{node.op}", self.number[now]))
            else:
                changes.append(Change(number, "removed", f"{node.op}"))
        known = set(old.values())
        for node in order:
            if node in self.number and self.number[node] not in known:
                changes.append(Change(self.number[node], "added", f"{node.op}", self.number[node]))
        return changes

    @staticmethod
    def _is_shown(node: Node, graph: Graph) -> bool:
        return not isinstance(node.op, Constant) or node in graph.outputs

    def _operation(self, node: Node, graph: Graph) -> Operation:
        role = ""
        title = node.op.title
        if isinstance(node.op, Parameter):
            role, title = "input", self._input_name(node)
        elif node in graph.outputs:
            role = "output"
        elif isinstance(node.op, (Strided, View)):
            role = "view"
        operands = tuple(_constant_text(i) if isinstance(i.op, Constant) else self.number[i] for i in node.inputs)
        return Operation(
            self.number[node], title, _op_text(node), kind_text(node.kind), _nbytes(node), operands, line_of(node),
            role, _bodies(node),
        )  # fmt: skip

    def _input_name(self, node: Node) -> str:
        assert isinstance(node.op, Parameter)
        return self.names[node.op.index] if node.op.index < len(self.names) else f"input {node.op.index}"

    # ---- kernels ----

    def facts(self, times: Times | None, limits: Limits | None) -> Facts:
        made = self.plan
        groups = [item.group for item in made.items]
        assert self.graph is not None
        apart = obstacles(self.graph, groups, self.layouts, made.target.fusion)
        kernels = []
        for i, item in enumerate(made.items):
            seconds = times.kernels[i] if times is not None else None
            kernels.append(self._kernel(i, item, seconds, limits, apart))
        stored = self._stored(made)
        outputs = sum(s.nbytes for s in stored if s.where == "output")
        inputs = sum(s.nbytes for s in stored if s.where == "input")
        memory = Memory(made.arena, made.lower_bound, inputs, outputs)
        total = times.total if times is not None else None
        return Facts(tuple(self.stages), tuple(kernels), tuple(stored), memory, total, made)

    def _kernel(
        self,
        number: int,
        item: Item,
        seconds: float | None,
        limits: Limits | None,
        apart: Mapping[tuple[int, int], str],
    ) -> KernelFacts:
        nbytes, flops = moved_bytes(item), sum(flops_of(node) for node in item.group.nodes)
        dtype = max((n.dtype for n in item.group.nodes), key=lambda d: d.size)
        least, limit = limits.least_seconds(nbytes, flops, dtype) if limits is not None else (None, "")
        return KernelFacts(
            number, _form(item), _loops(item), self._numbers(item.group.nodes),
            self._numbers(n for n in item.reads if not isinstance(n.op, Constant)),
            self._numbers(item.writes), nbytes, flops, _launches(self.plan, item), seconds, least, limit,
            _notes(number, apart),
        )  # fmt: skip

    def _numbers(self, nodes: Iterable[Node]) -> tuple[int, ...]:
        """Those that are nodes of the graph: a loop also writes results that nobody asked for."""
        return tuple(self.number[n] for n in nodes if n in self.number)

    # ---- memory ----

    def _stored(self, made: Plan) -> list[Stored]:
        end = len(made.items)
        last = last_reads(made.items)
        results = {base_of(o) for o in made.graph.outputs}
        born = {node: step for step, item in enumerate(made.items) for node in item.writes}
        found = []
        for node, place in made.places.items():
            first = born.get(node, -1)
            final = end if node in results or place.where == "input" else last.get(node, first)
            over, note = self._reuse(made, node, first, last, results) if first >= 0 else (None, "")
            name = self._input_name(node) if isinstance(node.op, Parameter) else node.op.title
            value = (name, kind_text(node.kind), place.nbytes, place.where, place.at)
            found.append(Stored(self.number.get(node), *value, first, final, over, note))
        for step, item in enumerate(made.items):
            for at, nbytes in zip(made.temporaries[step], item.temporaries, strict=True):
                found.append(Stored(None, "scratch", f"{nbytes} bytes", nbytes, "arena", at, step, step))
        return sorted(found, key=lambda s: (s.first, s.where, s.at))

    def _reuse(
        self, made: Plan, node: Node, step: int, last: Mapping[Node, int], results: set[Node]
    ) -> tuple[int | None, str]:
        """(the operand whose place a value takes, "") or (None, why it takes none's)."""
        item = made.items[step]
        reasons = []
        for r, operand in enumerate(item.reads):
            if isinstance(operand.op, Constant):
                continue
            here, there = made.places[node], made.places[operand]
            if (here.where, here.at) == (there.where, there.at) and here.where != "input":
                return self.number.get(operand), ""
            if nbytes_of(operand) != nbytes_of(node):
                continue  # of another size: nobody would expect it
            reasons.append(f"{self._name(operand)} {self._why_not(made, operand, node, r, step, last, results)}")
        return None, "; ".join(reasons) or "no operand has its size"

    @staticmethod
    def _why_not(
        made: Plan, operand: Node, node: Node, r: int, step: int, last: Mapping[Node, int], results: set[Node]
    ) -> str:
        item = made.items[step]
        if isinstance(operand.op, Parameter):
            return "belongs to the caller"
        if operand in results:
            return "is a result of the program"
        if last.get(operand, -1) > step:
            return f"is still read by kernel {last[operand]}"
        if not node.op.may_alias:
            return "is not overwritten by what is to have memory of its own"
        if (r, item.writes.index(node)) not in item.overwritable:
            return "is not read element by element in the order of the result"
        return "gives its place to another result"

    def _name(self, node: Node) -> str:
        if isinstance(node.op, Parameter):
            return self._input_name(node)
        return f"{node.op.title} %{self.number[node]}" if node in self.number else node.op.title


# ---- single nodes ----


def _followed(node: Node, trail: Trail) -> Node:
    for step in trail:
        node = step.get(node, node)
    return node


def _constant_text(node: Node) -> str:
    value = node.value
    number = value.scalar.hint if isinstance(value, RunTimeConstant) else value.number
    if node.dtype.is_bool:
        return str(bool(number))
    if node.dtype.is_integer:
        return str(int(number))
    return f"{complex(number):.6g}" if node.dtype.is_complex else f"{float(number):.6g}"


def _op_text(node: Node) -> str:
    if isinstance(node.op, Constant):
        return f"constant {_constant_text(node)}"
    hidden = {name for name, _ in _bodies(node)}
    if not hidden:
        return str(node.op)
    return f"{node.op.title}({', '.join(sorted(hidden))})"


def _bodies(node: Node) -> tuple[tuple[str, str], ...]:
    """Parameters that are graphs themselves, or tuples of them."""
    found = []
    for f in dataclasses.fields(node.op):  # type: ignore[arg-type]
        value = getattr(node.op, f.name)
        parts = value if isinstance(value, tuple) else (value,)
        for i, part in enumerate(parts):
            if isinstance(part, Body):
                found.append((f.name if len(parts) == 1 else f"{f.name}[{i}]", body_text(part.graph)))
    return tuple(found)


def body_text(graph: Graph) -> str:
    """A graph inside a node: one operation a line, constants where they are used."""
    names = {node: _constant_text(node) for node in graph.order() if isinstance(node.op, Constant)}
    constants = len(names)
    for node in (*graph.inputs, *graph.order()):
        names.setdefault(node, f"%{len(names) - constants}")
    lines = [f"({', '.join(f'{names[n]}: {kind_text(n.kind)}' for n in graph.inputs)})"]
    for node in graph.order():
        if node in graph.inputs or isinstance(node.op, Constant):
            continue
        operands = ", ".join(names[i] for i in node.inputs)
        lines.append(f"{names[node]} = {_op_text(node)} {operands} : {kind_text(node.kind)}")
        lines += [f"  {line}" for _, body in _bodies(node) for line in body.splitlines()]
    return "\n".join([*lines, f"return {', '.join(names[o] for o in graph.outputs)}"])


def kind_text(kind: ArrayType) -> str:
    """Shape and dtype; of an operation with several results those of all."""
    if isinstance(kind, TupleType):
        return f"({', '.join(map(kind_text, kind.parts))})"
    return f"rows of {kind_text(kind.row)}" if isinstance(kind, Tape) else show_kind(kind)


def _nbytes(node: Node) -> int:
    if isinstance(node.kind, TupleType) or node.kind.symbolic:
        return 0
    return nbytes_of(node)


def flops_of(node: Node) -> float:
    """Floating-point operations, counted as instructions."""
    return node.op.flops(node.kind, *[x.kind for x in node.inputs])


def moved_bytes(item: Item) -> int:
    """Bytes that a kernel has to read and write at least: of views only the elements that they show."""
    written = sum(nbytes_of(node) for node in item.writes)
    inside = set(item.group.nodes)
    shown: dict[Node, int] = {}
    for node in item.group.nodes:
        for position, operand in enumerate(node.inputs):
            base = base_of(operand)
            if base in inside or operand in inside or base not in item.reads or isinstance(base.op, Constant):
                continue
            nbytes = _shown_bytes(operand, base)
            if isinstance(node.op, Indexed) and position == 0:
                nbytes = min(nbytes, nbytes_of(node if len(node.inputs) < 3 else node.inputs[1]))
            shown[base] = min(shown.get(base, 0) + nbytes, nbytes_of(base))
    return written + sum(shown.values())


def _shown_bytes(operand: Node, base: Node) -> int:
    if not isinstance(operand.op, Strided):
        return nbytes_of(base)
    sizes = [int(n) for n, s in zip(operand.op.shape, operand.op.strides, strict=True) if s != 0]
    return min(math.prod(sizes) * base.dtype.size, nbytes_of(base))


def _notes(number: int, apart: Mapping[tuple[int, int], str]) -> tuple[str, ...]:
    """Why a kernel stayed apart from those that it reads and from those that read it, each reason once."""
    reasons: dict[str, list[int]] = {}
    for (producer, reader), why in apart.items():
        if number in (producer, reader):
            reasons.setdefault(why, []).append(reader if number == producer else producer)
    return tuple(
        f"apart from kernel{'s' if len(others) > 1 else ''} {', '.join(map(str, sorted(others)))}: {why}"
        for why, others in reasons.items()
    )


def _form(item: Item) -> str:
    """The shape of its loops; of an operation with kernels of its own the name says more."""
    return item.group.form if item.group.form != "opaque" else item.group.nodes[0].op.title


def _loops(item: Item) -> str:
    group = item.group
    if group.form == "opaque":
        after = [node for node in group.nodes[1:] if not isinstance(node.op, GetResult)]
        return "kernels of its own" + (f", with {len(after)} operations on each finished block" if after else "")
    domain = "×".join(str(int(n)) for n in group.domain) or "1"
    if group.axes is None:
        return f"over {domain} elements"
    axes = ", ".join(map(str, group.axes))
    return f"over {domain}, reducing axis {axes}"


def _launches(planned: Plan, item: Item) -> tuple[LaunchFacts, ...]:
    """What an item runs, with what the bodies inside it run."""
    made = []
    for launch in launches_of(dataclasses.replace(planned, items=[item])):
        shared = "one thread" if launch.grain == 0 else f"threads share it from {2 * launch.grain} units on"
        made.append(LaunchFacts(launch.source.name, launch.source.key, shared, launch.source))
    return tuple(made)
