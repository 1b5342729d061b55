"""The verifiers: graphs are well formed between passes, and a plan never reads a value that is no longer there.

The verifier of plans replays a plan on abstract memory. It knows nothing of how the planner decides: it walks the
schedule, keeps for every byte range the value that was last written there, and checks each read, each write on top of
an operand, and the outputs at the end.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Collection, Mapping

from weft.graph.dims import same_shape
from weft.graph.node import ArrayType, Graph, Node, TupleType
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


def _same_kind(a: ArrayType, b: ArrayType) -> bool:
    """Whether two kinds are one in all calls that pass the guards: sizes may be different expressions of symbols."""
    if isinstance(a, TupleType) and isinstance(b, TupleType):
        return len(a.parts) == len(b.parts) and all(map(_same_kind, a.parts, b.parts))
    return a is b or (type(a) is type(b) and a.dtype is b.dtype and same_shape(a.shape, b.shape))


def verify_plan(plan: Plan, carried: Mapping[int, int] | None = None, donated: Collection[int] | None = None) -> None:
    """Raise VerifyError at the first undeclared read, read of a clobbered value, overlap, overrun or missing output.
    What the planner was given to overwrite (`plan_memory`) it may have misunderstood: said again here, it is compared
    with what the plan takes to be free."""
    if carried is not None or donated is not None:
        _check_permission(plan, carried or {}, donated or ())
    memory = _Memory()
    _check_inputs(plan)
    for node in plan.graph.inputs:
        memory.write(_range(plan, node), node)
    failure = max((step for step, item in enumerate(plan.items) if item.can_fail), default=-1)
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
        if step == failure:
            _check_inputs_are_left(plan, step, memory)
    results = set(plan.outputs)
    for output in plan.graph.outputs:
        base = base_of(output)
        if not isinstance(base.op, Parameter) and base not in results:
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


def _check_inputs(plan: Plan) -> None:
    """An input is where the caller put it, and nothing else is, unless it may be overwritten; in the place of a loop's
    carry, the result that is its next value is what remains."""
    written: dict[Place, list[Node]] = {}
    for item in plan.items:
        for node in item.writes:
            if node in plan.places:
                written.setdefault(plan.places[node], []).append(node)
    for number, node in enumerate(plan.graph.inputs):
        inside = written.get(plan.places[node], ())
        if plan.places[node] != Place("input", number, nbytes_of(node)) and not inside:
            raise VerifyError(f"input {node} is not where the caller put it")
        if inside and number not in plan.free:
            raise VerifyError(f"{inside[0]} is written over an input, {node}, that is not free")
        heir = plan.free.get(number)
        if heir is not None and inside and inside[-1] is not heir:
            raise VerifyError(f"{inside[-1]} is left in the place of {node}, which only {heir} may be")


def _check_inputs_are_left(plan: Plan, step: int, memory: _Memory) -> None:
    """At the last step at which the program may end early, all that it was given is what it was; a loop's carry is a
    copy."""
    for number, node in enumerate(plan.graph.inputs):
        carried = plan.free.get(number) is not None
        if not carried and not memory.holds(_range(plan, node), node):
            raise VerifyError(f"step {step} can fail, and input {node} has been overwritten")


def _check_declared(step: int, item: Item) -> None:
    """A kernel reads what it says it reads, directly or through views, and nothing else; it fails only if one of its
    operations says that it can."""
    if item.can_fail and not any(node.op.can_fail for node in item.group.nodes):
        raise VerifyError(f"step {step} can fail, and {item.group.nodes[0]} says that it cannot")
    known = {*item.group.nodes, *item.reads}
    for operand in (operand for node in item.group.nodes for operand in node.inputs):
        stored = base_of(operand)
        if stored not in known and not isinstance(stored.op, (Constant, Iota)):
            raise VerifyError(f"step {step} reads {stored} without saying so")


def _check_writes(plan: Plan, step: int, scratch: list[Range]) -> None:
    """What one kernel writes may touch what it reads only where the kernel says so, and never what else it writes."""
    item = plan.items[step]
    results, pieces = _Memory(), _Memory()
    for piece in scratch:
        pieces.write(piece, None)
    places = {node: _range(plan, node) for node in (*item.reads, *item.writes) if not isinstance(node.op, Constant)}
    number = {node: w for w, node in enumerate(item.writes)}
    for node in item.writes:
        target = places[node]
        if target[0] == "input" and target[1] not in plan.free:
            raise VerifyError(f"step {step} writes {node} over an input")
        if results.touched(target) or pieces.touched(target):
            raise VerifyError(f"step {step} writes two values to one place")
        results.write(target, node)
    for r, operand in enumerate(item.reads):
        if isinstance(operand.op, Constant):
            continue
        place = places[operand]
        if pieces.touched(place):
            raise VerifyError(f"step {step} has a temporary on top of its operand {operand}")
        for result in results.touched(place):
            assert result is not None
            exact = places[result] == place
            if not exact or (r, number[result]) not in item.overwritable or not _in_step(item, operand, result):
                raise VerifyError(f"step {step} overwrites its operand {operand} with {result} while reading it")


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
    """Whether a kernel has no passes after the one that writes a result, and does nothing else in that one, or has one
    pass. A value that depends on n reductions, one on the other, is known in pass n. Where there is one pass, all that
    concerns an element is computed before something of it is written."""
    passes: dict[Node, int] = {}
    reductions = []
    of_rows: set[Node] = set()
    reduced, whole = set(), set()
    for node in item.group.nodes:
        operands = [base_of(operand) for operand in node.inputs]
        passes[node] = max((passes.get(operand, 0) for operand in operands), default=0)
        if isinstance(node.op, Reduction):
            reductions.append(passes[node])
            passes[node] += 1
            of_rows.add(node)
            reduced.add(node.shape)
            whole.add(node.inputs[0].shape)
        elif all(operand in of_rows or isinstance(operand.op, Constant) for operand in operands):
            of_rows.add(node)
    if not reductions:
        return True
    # What is computed from reductions alone, or has their shape, is one element of a row, written when the row is done.
    of_rows.update(node for node in item.writes if node.shape in reduced - whole)
    others = [node for node in item.writes if node is not result and node not in of_rows]
    full = [node for node in others if node.kind.size == result.kind.size]
    if max(reductions) == 0 and not any(passes[node] for node in (result, *full)):
        return True
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


class _Memory:
    """Which value each range of bytes holds; no two ranges overlap."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, int], tuple[list[int], dict[int, tuple[int, Node | None]]]] = {}
        """By piece of memory: the first bytes of its ranges, sorted, and the end and the value of each."""

    def write(self, place: Range, node: Node | None) -> None:
        starts, held = self._pieces.setdefault(place[:2], ([], {}))
        low, high = _span(starts, held, place)
        for start in starts[low:high]:
            del held[start]
        starts[low:high] = [place[2]]
        held[place[2]] = (place[3], node)

    def holds(self, place: Range, node: Node) -> bool:
        _, held = self._pieces.get(place[:2], ([], {}))
        end, value = held.get(place[2], (-1, None))
        return value is node and end == place[3]

    def touched(self, place: Range) -> list[Node | None]:
        """What a range overlaps with."""
        starts, held = self._pieces.get(place[:2], ([], {}))
        low, high = _span(starts, held, place)
        return [held[start][1] for start in starts[low:high]]


def _span(starts: list[int], held: Mapping[int, tuple[int, Node | None]], place: Range) -> tuple[int, int]:
    """Which ranges, of some in order, overlap with another one."""
    *_, first, end = place
    low = bisect.bisect_right(starts, first)
    if low and held[starts[low - 1]][0] > first:
        low -= 1
    return low, bisect.bisect_left(starts, end, low)
