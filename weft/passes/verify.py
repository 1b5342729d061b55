"""The verifiers: graphs are well formed between passes, and a plan never reads a value that is no longer there.

The verifier of plans replays a plan on abstract memory. It knows nothing of how the planner decides: it walks the
schedule, keeps for every byte range the value that was last written there, and checks each read, each write on top of
an operand, and the outputs at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping

from weft.graph.dims import same_shape
from weft.graph.node import Bundle, Graph, Kind, Node
from weft.passes.lower import Item, nbytes_of
from weft.passes.memory import Place, Plan, base_of
from weft.passes.views import Strided, contiguous
from weft.primitives.base import Constant, Parameter, Reduction
from weft.primitives.creation import Iota

Range = tuple[str, int, int, int]
"""(kind of memory, which piece, first byte, end)"""


class VerifyError(AssertionError):
    """A pass broke the graph or the plan; always a fault of Weft, never of the user's program."""


def verify_graph(graph: Graph) -> None:
    """Every node comes after its operands and is of its operation's class, leaves are known, and every kind is what the
    primitive's rule says; and so in the bodies of loops and branches."""
    inputs = set(graph.inputs)
    for position, node in enumerate(graph.inputs):
        if not isinstance(node.op, Parameter) or node.op.index != position:
            raise VerifyError(f"input {position} is {node}, not its parameter")
    for node in graph.order():
        if not isinstance(node, node.op.node_class):
            raise VerifyError(f"{node} is a plain node, which has no rules, and not a {node.op.node_class.__name__}")
        if isinstance(node.op, Parameter):
            if node not in inputs:
                raise VerifyError(f"{node} is a parameter of another graph")
            continue
        if isinstance(node.op, Constant):
            if node.value is None:
                raise VerifyError(f"{node} has no number")
            continue
        for operand in node.inputs:
            if operand.id >= node.id:
                raise VerifyError(f"{node} comes before its operand {operand}")
        for body in node.op.bodies():
            body.once("verified", functools.partial(verify_graph, body.graph))
        kind = node.op.infer(*[i.kind for i in node.inputs])
        if not _same_kind(kind, node.kind):
            raise VerifyError(f"{node} should have kind {kind}")


def _same_kind(a: Kind, b: Kind) -> bool:
    """Whether two kinds are one in all calls that pass the guards: sizes may be different expressions of symbols."""
    if isinstance(a, Bundle) and isinstance(b, Bundle):
        return len(a.parts) == len(b.parts) and all(map(_same_kind, a.parts, b.parts))
    return a is b or (type(a) is type(b) and a.dtype is b.dtype and same_shape(a.shape, b.shape))


def verify_plan(plan: Plan, carried: Mapping[int, int] | None = None, donated: Collection[int] | None = None) -> None:
    """Raise VerifyError at the first undeclared read, read of a clobbered value, overlap, overrun or missing output.
    What the planner was given to overwrite (`plan_memory`) it may have misunderstood: said again here, it is compared
    with what the plan takes to be free."""
    if carried is not None or donated is not None:
        _check_permission(plan, carried or {}, donated or ())
    memory = _Memory()
    for number, node in enumerate(plan.graph.inputs):
        _check_input(plan, number, node)
        memory.write(_range(plan, node), node)
    for step, item in enumerate(plan.items):
        _check_declared(step, item)
        for node in item.reads:
            if not isinstance(node.op, Constant) and not memory.holds(_range(plan, node), node):
                raise VerifyError(f"step {step} reads {node}, whose place was overwritten or never written")
        scratch = [_arena(at, size) for at, size in zip(plan.temporaries[step], item.temporaries, strict=True)]
        if any(end > plan.arena for *_, end in scratch):
            raise VerifyError(f"step {step} has a temporary outside the arena")
        _check_writes(plan, step, scratch)
        for piece in scratch:
            memory.write(piece, None)
        for node in item.writes:
            memory.write(_range(plan, node), node)
        if item.can_fail:
            _check_inputs_are_left(plan, step, memory)
    for output in plan.graph.outputs:
        base = base_of(output)
        if not isinstance(base.op, Parameter) and base not in plan.outputs:
            raise VerifyError(f"output {output} is not among the plan's results")
        if isinstance(base.op, Parameter) and not memory.holds(("input", base.op.index, 0, _length(base)), base):
            raise VerifyError(f"output {output} reads an input that was overwritten")
    for node in plan.outputs:
        if plan.places[node].where != "output" or not memory.holds(_range(plan, node), node):
            raise VerifyError(f"output {node} is not in its place at the end")


def _check_permission(plan: Plan, carried: Mapping[int, int], donated: Collection[int]) -> None:
    """A plan may overwrite what it was given only."""
    for number, heir in plan.free.items():
        if number not in carried and number not in donated:
            raise VerifyError(f"input {number} counts as free, but was not given")
        if number in carried and heir is not base_of(plan.graph.outputs[carried[number]]):
            raise VerifyError(f"input {number} is carried, and its next value is not {heir}")


def _check_input(plan: Plan, number: int, node: Node) -> None:
    """An input is where the caller put it, and nothing else is, unless it may be overwritten; in the place of a loop's
    carry, the result that is its next value is what remains."""
    inside = [n for item in plan.items for n in item.writes if plan.places.get(n) == plan.places[node]]
    if plan.places[node] != Place("input", number, nbytes_of(node)) and not inside:
        raise VerifyError(f"input {node} is not where the caller put it")
    if inside and number not in plan.free:
        raise VerifyError(f"{inside[0]} is written over an input, {node}, that is not free")
    heir = plan.free.get(number)
    if heir is not None and inside and inside[-1] is not heir:
        raise VerifyError(f"{inside[-1]} is left in the place of {node}, which only {heir} may be")


def _check_inputs_are_left(plan: Plan, step: int, memory: _Memory) -> None:
    """Where the program may end early, all that it was given is what it was; a loop's carry is a copy."""
    for number, node in enumerate(plan.graph.inputs):
        carried = plan.free.get(number) is not None
        if not carried and not memory.holds(_range(plan, node), node):
            raise VerifyError(f"step {step} can fail, and input {node} has been overwritten")


def _check_declared(step: int, item: Item) -> None:
    """A kernel reads what it says it reads, directly or through views, and nothing else; it fails only if one of its
    operations says that it can."""
    if item.can_fail and not any(node.op.can_fail for node in item.group.nodes):
        raise VerifyError(f"step {step} can fail, and {item.group.nodes[0]} says that it cannot")
    inside = set(item.group.nodes)
    for operand in (operand for node in item.group.nodes for operand in node.inputs):
        stored = base_of(operand)
        if stored not in inside and stored not in item.reads and not isinstance(stored.op, (Constant, Iota)):
            raise VerifyError(f"step {step} reads {stored} without saying so")


def _check_writes(plan: Plan, step: int, scratch: list[Range]) -> None:
    """What one kernel writes may touch what it reads only where the kernel says so, and never what else it writes."""
    item = plan.items[step]
    written = [_range(plan, node) for node in item.writes]
    for w, target in enumerate(written):
        if target[0] == "input" and target[1] not in plan.free:
            raise VerifyError(f"step {step} writes {item.writes[w]} over an input")
        for other in (*written[:w], *scratch):
            if _overlap(target, other):
                raise VerifyError(f"step {step} writes two values to one place")
        for r, node in enumerate(item.reads):
            if isinstance(node.op, Constant) or not _overlap(target, _range(plan, node)):
                continue
            exact = target == _range(plan, node)
            if not exact or (r, w) not in item.overwritable or not _in_step(item, node, item.writes[w]):
                raise VerifyError(f"step {step} overwrites its operand {node} with {item.writes[w]} while reading it")
    for piece in scratch:
        for node in item.reads:
            if not isinstance(node.op, Constant) and _overlap(piece, _range(plan, node)):
                raise VerifyError(f"step {step} has a temporary on top of its operand {node}")


def _in_step(item: Item, operand: Node, result: Node) -> bool:
    """Whether a kernel reads an operand only element by element in the order in which it writes the result, and never
    again in a later pass."""
    if item.group.form == "opaque":
        return True  # the operation's own word has to do
    if not _is_last(item, result):
        return False
    for read in {read for node in item.group.nodes for read in node.inputs if base_of(read) is operand}:
        strides, offset = (
            (read.op.strides, read.op.offset) if isinstance(read.op, Strided) else (contiguous(read.shape), 0)
        )
        walks = [s for n, s in zip(read.shape, strides, strict=True) if n != 1]
        plain = [s for n, s in zip(result.shape, contiguous(result.shape), strict=True) if n != 1]
        if offset != 0 or walks != plain or operand.dtype.size != result.dtype.size:
            return False
    return True


def _is_last(item: Item, result: Node) -> bool:
    """Whether a kernel has no passes after the one that writes a result, and does nothing else in that one. A value
    that depends on n reductions, one on the other, is known in pass n; a map has one pass, and computes all before it
    writes."""
    passes: dict[Node, int] = {}
    reductions = []
    for node in item.group.nodes:
        passes[node] = max((passes.get(base_of(operand), 0) for operand in node.inputs), default=0)
        if isinstance(node.op, Reduction):
            reductions.append(passes[node])
            passes[node] += 1
    if not reductions:
        return True
    # What is computed from reductions alone is one element of a row, written when the row is done.
    others = [node for node in item.writes if node is not result and not isinstance(node.op, Reduction)]
    full = [node for node in others if node.kind.size == result.kind.size]
    return max(reductions) < passes[result] and all(passes[node] < passes[result] for node in full)


def _range(plan: Plan, node: Node) -> Range:
    place = plan.places.get(node)
    if place is None:
        raise VerifyError(f"{node} has no place")
    if place.where == "input":
        room = nbytes_of(plan.graph.inputs[place.at]) if place.at < len(plan.graph.inputs) else -1
        if nbytes_of(node) > room:
            raise VerifyError(f"{node} does not fit the input that it lies on")
    if place.where == "arena":
        if not 0 <= place.at <= plan.arena - nbytes_of(node):
            raise VerifyError(f"{node} lies outside the arena")
        return _arena(place.at, nbytes_of(node))
    if place.where == "output":
        room = nbytes_of(plan.outputs[place.at]) if place.at < len(plan.outputs) else -1
        if nbytes_of(node) > room:
            raise VerifyError(f"{node} does not fit the output that it lies in")
    return (place.where, place.at, 0, _length(node))


def _length(node: Node) -> int:
    return max(nbytes_of(node), 1)


def _arena(at: int, nbytes: int) -> Range:
    return ("arena", 0, at, at + max(nbytes, 1))


def _overlap(a: Range, b: Range) -> bool:
    return a[:2] == b[:2] and a[2] < b[3] and b[2] < a[3]


class _Memory:
    """Which value each range of bytes holds."""

    def __init__(self) -> None:
        self.contents: dict[Range, Node | None] = {}

    def write(self, place: Range, node: Node | None) -> None:
        for other in list(self._touching(place)):
            del self.contents[other]
        self.contents[place] = node

    def holds(self, place: Range, node: Node) -> bool:
        return self.contents.get(place) is node

    def _touching(self, place: Range) -> Iterator[Range]:
        return (other for other in self.contents if _overlap(place, other))
