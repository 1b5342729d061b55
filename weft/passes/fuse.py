"""Fusion: which nodes share a kernel.

A group is a loop nest over a *domain*: a shape, and the axes of it (neighbours) that its reductions run over. Nodes of
a group stand at one of two levels: `full` (the domain's shape) or `reduced` (without the reduced axes). Values pass
from full to reduced level through a reduction and back through a `Strided` read that repeats them along the reduced
axes; such reads need no memory inside a group, all others do.

Three forms: `map` (no reduction), `row` (each row of reduced elements is finished before the next, so later phases of
the row can use its reductions: softmax and norms in one kernel) and `column` (reduced elements are far apart in memory
and kept ones close: accumulators for a strip of columns). Merging never creates a cycle between groups, and stops at a
size that still compiles in milliseconds.

What a group depends on is a set of bits, one for each group. So that these stay short, a large graph is fused in pieces
one after the other: nothing in a piece reads a later one, so a cycle would lie within one piece.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator

from weft.graph.dims import is_exactly, provably_equal, same_shape, squeezed
from weft.graph.node import Graph, Node, Shape, Size
from weft.passes.views import Materialize, Strided, Strides, contiguous, walked_as_one
from weft.primitives.base import Constant, Elementwise, GetResult, Parameter, Reduction
from weft.primitives.creation import Iota
from weft.records import dataclass, field

PIECE = 1024
"""Nodes that are fused together."""
MOST_OPEN = 8
"""Groups that a further reader of the same value may join: the last ones that have room."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may share a kernel; a target has its own."""

    nodes: int = 96
    operands: int = 24
    row: int = 1 << 16
    """Rows beyond this many elements leave the caches: later phases would read memory again, so they get kernels (and
    threads) of their own."""


@dataclass(slots=True)
class Group:
    """Nodes of one kernel, in order. `axes` are the reduced axes of `domain` (None: no reduction); `form` is map, row,
    column or opaque."""

    nodes: list[Node]
    domain: Shape
    axes: tuple[int, ...] | None
    form: str
    ancestors: int = 0
    bit: int = 0
    piece: int = 0
    """Of which piece of the graph it is: bits are those of groups in one piece."""
    why: list[str] = field(default_factory=list)
    """Why neighbours are not in here; for explain."""

    @property
    def reduced(self) -> Shape:
        return without(self.domain, self.axes or ())


def without(shape: Shape, axes: Iterable[int]) -> Shape:
    gone = set(axes)
    return tuple(n for i, n in enumerate(shape) if i not in gone)


def is_stored_leaf(node: Node) -> bool:
    """A value that no kernel makes: inputs, constants, the counting leaf."""
    return isinstance(node.op, (Parameter, Constant, Iota))


def repeated_axes(node: Node) -> tuple[int, ...] | None:
    """The axes along which a Strided read merely repeats its whole (contiguous) operand, or None if it does anything
    else."""
    op = node.op
    if not isinstance(op, Strided) or not is_exactly(op.offset, 0):
        return None
    base = node.inputs[0]
    if is_stored_leaf(base):
        return None
    axes = tuple(
        i
        for i, (n, s) in enumerate(zip(op.shape, op.strides, strict=True))
        if is_exactly(s, 0) and not is_exactly(n, 1)
    )
    kept_shape = without(op.shape, axes)
    kept_strides = without(op.strides, axes)
    if not same_shape(squeezed(kept_shape), squeezed(base.shape)):
        return None
    for n, s, plain in zip(kept_shape, kept_strides, contiguous(kept_shape), strict=True):
        if not is_exactly(n, 1) and not provably_equal(s, plain):
            return None
    return axes


class Fuser:
    """Greedy merging in topological order: each node starts a group and takes in the groups it reads from where that is
    right."""

    def __init__(self, graph: Graph, layouts: dict[Node, Strides | None], limits: Limits) -> None:
        self.graph, self.layouts, self.limits = graph, layouts, limits
        self.group_of: dict[Node, Group] = {}
        self.groups: dict[int, Group] = {}
        """Those of the piece that is being fused, by identity."""
        self.piece = self.bits = 0

    def run(self) -> list[Group]:
        found: list[Group] = []
        for number, nodes in enumerate(_pieces(self.graph)):
            self.piece, self.groups, self.bits = number, {}, 0
            for node in nodes:
                if isinstance(node.op, GetResult):
                    self.group_of[node] = self.group_of[node.inputs[0]]
                    self.group_of[node].nodes.append(node)
                else:
                    self._add(node)
            self._merge_siblings()
            found.extend(self.groups.values())
        return self._scheduled(found)

    # ---- one node ----

    def _add(self, node: Node) -> None:
        group = self._single(node)
        group.piece, group.bit = self.piece, 1 << self.bits
        self.bits += 1
        self.groups[id(group)] = group
        self.group_of[node] = group
        for producer in self._producers(group):
            if producer.piece == group.piece:
                group.ancestors |= producer.ancestors | producer.bit
        changed = group.form != "opaque"
        while changed:
            changed = False
            for producer in self._producers(group):
                if producer is not group and self._may_merge(producer, group):
                    group = self._merge(producer, group)
                    changed = True
                    break

    def _single(self, node: Node) -> Group:
        op = node.op
        if isinstance(op, Elementwise):
            return Group([node], node.shape, None, "map")
        if isinstance(op, Reduction):
            return Group([node], node.inputs[0].shape, op.axes, self._form(node))
        return Group([node], node.shape, None, "opaque")

    def _form(self, node: Node) -> str:
        """row or column: by the layout of what the reduction reads, weighed by how many elements that is."""
        op = node.op
        assert isinstance(op, Reduction)
        last = op.axes[-1]
        shape = node.inputs[0].shape
        if all(is_exactly(n, 1) for i, n in enumerate(shape) if i not in op.axes):
            return "row"
        along: Size = 0
        across: Size = 0
        for strides in self._reads(node.inputs[0]):
            if is_exactly(strides[last], 0):
                continue  # the same for the whole row, wherever it lies
            pairs = list(enumerate(zip(shape, strides, strict=True)))
            kept = [s for i, (n, s) in pairs if i not in op.axes and not is_exactly(n, 1)]
            elements = math.prod(n for _, (n, s) in pairs if not is_exactly(s, 0))
            if type(strides[last]) is int and abs(strides[last]) == 1:
                along += elements
            elif kept and type(kept[-1]) is int and abs(kept[-1]) == 1:
                across += elements
        if along == across == 0:
            return "row" if last == len(shape) - 1 else "column"
        return "column" if across > along else "row"

    def _reads(self, node: Node, depth: int = 0) -> Iterator[Strides]:
        """Strides of the stored values that an elementwise expression reads."""
        if isinstance(node.op, Elementwise) and depth < 8:
            for operand in node.inputs:
                yield from self._reads(operand, depth + 1)
        elif isinstance(node.op, Strided):
            yield node.op.strides
        elif not isinstance(node.op, (Constant, Iota)):
            yield self.layouts.get(node) or contiguous(node.shape)

    def _producers(self, group: Group) -> list[Group]:
        """Groups that this one reads, most recent first."""
        found: dict[int, Group] = {}
        for node in reversed(group.nodes):
            for operand in node.inputs:
                stored = operand.inputs[0] if isinstance(operand.op, Strided) else operand
                producer = self.group_of.get(stored)
                if producer is not None and producer is not group:
                    found[id(producer)] = producer
        return list(found.values())

    # ---- merging ----

    def _may_merge(self, producer: Group, group: Group) -> bool:
        return self.obstacle(producer, group) is None

    def obstacle(self, producer: Group, group: Group) -> str | None:
        """Why a group cannot take in one that it reads from, in words for explain; None if it can."""
        if "opaque" in (producer.form, group.form):
            own = group if group.form == "opaque" else producer
            return f"{own.nodes[0].op.title} has kernels of its own"
        if producer.piece != group.piece:
            return f"they are too far apart in a program of more than {PIECE} operations"
        if len(producer.nodes) + len(group.nodes) > self.limits.nodes:
            return f"together they would have more than {self.limits.nodes} operations"
        if self._operands(producer, group) > self.limits.operands:
            return f"together they would read more than {self.limits.operands} values"
        merged = self._merged_domain(producer, group)
        if merged is None:
            return "they loop over different shapes, or reduce differently"
        if self._are_columns_apart(producer, group):
            return "they reduce columns of different values"
        if self._between(producer, group):
            return "another kernel stands between them: it reads the one and is read by the other"
        if not self._edges_fit(producer, group, *merged):
            return "values are read in another order than they are made in, or again after a row that is too long"
        return None

    def _merged_domain(self, producer: Group, group: Group) -> tuple[Shape, tuple[int, ...] | None, str] | None:
        """Domain, axes and form of the union, or None when the two loop nests do not fit."""
        if producer.axes is None and group.axes is None:
            return (group.domain, None, "map") if same_shape(producer.domain, group.domain) else None
        if producer.axes is not None and group.axes is not None:
            fits = (
                producer.axes == group.axes
                and same_shape(producer.domain, group.domain)
                and producer.form == group.form
            )
            return (group.domain, group.axes, group.form) if fits else None
        reducing, mapping = (producer, group) if producer.axes is not None else (group, producer)
        if same_shape(mapping.domain, reducing.domain) or same_shape(mapping.domain, reducing.reduced):
            return reducing.domain, reducing.axes, reducing.form
        return None

    def _are_columns_apart(self, producer: Group, group: Group) -> bool:
        """Whether both reduce across rows, and share no element of these: one kernel would have the accumulators and
        the code of both, and save no more than a row of results. Apart, look-alikes share their code."""
        if producer.form != "column" or group.form != "column":
            return False
        made = {node for node in producer.nodes if same_shape(node.shape, producer.domain)}
        return not self._memory_reads(group) & (self._memory_reads(producer) | made)

    def _edges_fit(self, producer: Group, group: Group, domain: Shape, axes: tuple[int, ...] | None, form: str) -> bool:
        """Every value that passes between the two can pass inside a kernel of this domain."""
        inside = set(producer.nodes)
        for node in group.nodes:
            for operand in node.inputs:
                if operand in inside and isinstance(operand.op, Materialize):
                    return False
                if operand in inside:
                    continue
                if not isinstance(operand.op, Strided) or operand.inputs[0] not in inside:
                    continue
                if axes is None or form != "row" or repeated_axes(operand) != axes or not self._short(domain, axes):
                    return False
                if not same_shape(operand.shape, domain) or not same_shape(
                    operand.inputs[0].shape, without(domain, axes)
                ):
                    return False
        if axes is None:
            return True
        # A full-level reader of a reduced-level value needs the repeat; a direct read of one level by the
        # other is no value flow.
        return self._levels_agree(producer, group, domain, axes)

    def _levels_agree(self, producer: Group, group: Group, domain: Shape, axes: tuple[int, ...]) -> bool:
        if same_shape(domain, without(domain, axes)):
            return False
        for node in (*producer.nodes, *group.nodes):
            shape = node.inputs[0].shape if isinstance(node.op, Reduction) else node.shape
            if not same_shape(shape, domain) and not same_shape(shape, without(domain, axes)):
                return False
        return self._rows_are_walked_as_one((*producer.nodes, *group.nodes), domain, axes)

    def _rows_are_walked_as_one(self, nodes: Iterable[Node], domain: Shape, axes: tuple[int, ...]) -> bool:
        """Everything that is read along the reduced axes can be stepped through with one stride, as the kernel does."""
        inside = set(nodes)
        for operand in {o for node in inside for o in node.inputs} - inside:
            if isinstance(operand.op, (Constant, Iota)) or not same_shape(operand.shape, domain):
                continue
            strides = operand.op.strides if isinstance(operand.op, Strided) else self.layouts.get(operand)
            if strides is not None and not walked_as_one(domain, strides, axes):
                return False
        return True

    def _short(self, domain: Shape, axes: tuple[int, ...]) -> bool:
        length: Size = 1
        for axis in axes:
            length = length * domain[axis]
        return length <= self.limits.row

    def _operands(self, *groups: Group) -> int:
        inside = {node for g in groups for node in g.nodes}
        reads = {o for node in inside for o in node.inputs if o not in inside}
        return len(reads)

    def _between(self, producer: Group, group: Group) -> bool:
        """Whether some other group reads the producer and is read (at whatever remove) by the group: merging would be a
        cycle."""
        others = [other for other in self._producers(group) if other is not producer and other.piece == group.piece]
        return any(other.ancestors & producer.bit for other in others)

    def _merge(self, producer: Group, group: Group) -> Group:
        domain, axes, form = self._merged_domain(producer, group)  # type: ignore[misc]
        nodes = sorted({*producer.nodes, *group.nodes}, key=lambda n: n.id)
        bit = producer.bit | group.bit
        union = Group(nodes, domain, axes, form, (producer.ancestors | group.ancestors) & ~bit, bit, group.piece)
        for node in nodes:
            self.group_of[node] = union
        del self.groups[id(producer)], self.groups[id(group)]
        for other in self.groups.values():
            if other.ancestors & union.bit:
                other.ancestors |= union.ancestors | union.bit
        self.groups[id(union)] = union
        return union

    def _merge_siblings(self) -> None:
        """Independent groups over one domain that read the same stored value share the pass over it: each joins the
        first one that takes it."""
        readers: dict[Node, list[Node]] = {}
        for group in self.groups.values():
            for read in self._memory_reads(group):
                readers.setdefault(read, []).append(group.nodes[0])
        for members in readers.values():
            taking: list[Node] = []
            for member in members if len(members) > 1 else ():
                if not any(self._joined(first, member) for first in taking):
                    taking.append(member)
                    del taking[:-MOST_OPEN]

    def _joined(self, first: Node, second: Node) -> bool:
        """Whether two nodes are in one group now."""
        one, other = self.group_of[first], self.group_of[second]
        if one is not other and self._are_siblings(one, other):
            self._merge(one, other)
            return True
        return one is other

    def _are_siblings(self, first: Group, second: Group) -> bool:
        if first.form != second.form or first.form == "opaque" or first.axes != second.axes:
            return False
        if not same_shape(first.domain, second.domain) or len(first.nodes) + len(second.nodes) > self.limits.nodes:
            return False
        if (
            first.ancestors & second.bit
            or second.ancestors & first.bit
            or self._operands(first, second) > self.limits.operands
        ):
            return False
        return bool(self._memory_reads(first) & self._memory_reads(second))

    @staticmethod
    def _memory_reads(group: Group) -> set[Node]:
        inside = set(group.nodes)
        reads = {o for node in group.nodes for o in node.inputs if o not in inside}
        return {o for o in reads if not isinstance(o.op, (Constant, Iota))}

    # ---- order ----

    def _scheduled(self, groups: list[Group]) -> list[Group]:
        """Groups in an order in which every one comes after those it reads. What can fail, and what that reads, comes
        first: whatever is behind it may overwrite what the program was given (passes/memory.py)."""
        done: list[Group] = []
        urgent = self._urgent(groups)
        readers: dict[int, list[Group]] = {id(g): [] for g in groups}
        missing: dict[int, int] = {}
        for group in groups:
            producers = self._producers(group)
            missing[id(group)] = len(producers)
            for producer in producers:
                readers[id(producer)].append(group)
        by_age = {group.nodes[-1].id: group for group in groups}
        ready = [(id(group) not in urgent, age) for age, group in by_age.items() if missing[id(group)] == 0]
        heapq.heapify(ready)
        while ready:
            group = by_age[heapq.heappop(ready)[1]]
            done.append(group)
            for reader in readers[id(group)]:
                missing[id(reader)] -= 1
                if missing[id(reader)] == 0:
                    heapq.heappush(ready, (id(reader) not in urgent, reader.nodes[-1].id))
        assert len(done) == len(groups), "fusion made a cycle"
        return done

    def _urgent(self, groups: Iterable[Group]) -> set[int]:
        """Groups (by identity) that can fail, and those that they depend on."""
        stack = [group for group in groups if any(node.op.can_fail for node in group.nodes)]
        found = {id(group) for group in stack}
        while stack:
            for producer in self._producers(stack.pop()):
                if id(producer) not in found:
                    found.add(id(producer))
                    stack.append(producer)
        return found


def _pieces(graph: Graph) -> Iterator[list[Node]]:
    """What kernels compute, operands first, in pieces. In a large graph every node stands right behind its operands,
    as far as others do not: what belongs together is then in one piece, however far apart it was written."""
    order = graph.order()
    if len(order) > PIECE:
        order = _depth_first(graph.outputs)
    computed = [node for node in order if not is_stored_leaf(node) and not isinstance(node.op, Strided)]
    return (computed[i : i + PIECE] for i in range(0, len(computed), PIECE))


def _depth_first(outputs: Iterable[Node]) -> list[Node]:
    """All that the outputs are computed from: for each the operands of its first operand, then those of the next."""
    done: dict[Node, None] = {}
    for output in outputs:
        stack = [output]
        while stack:
            node = stack[-1]
            waiting = [x for x in node.inputs if x not in done]
            if waiting:
                stack.extend(reversed(waiting))
            else:
                done[stack.pop()] = None
    return list(done)


def obstacles(
    graph: Graph, groups: list[Group], layouts: dict[Node, Strides | None], limits: Limits
) -> dict[tuple[int, int], str]:
    """For explain: why kernels that pass values to each other stayed apart, by their (producer's, reader's) numbers."""
    fuser = Fuser(graph, layouts, limits)
    fuser.group_of = {node: group for group in groups for node in group.nodes}
    number = {id(group): i for i, group in enumerate(groups)}
    found = {}
    for i, group in enumerate(groups):
        for producer in fuser._producers(group):
            why = fuser.obstacle(producer, group)
            found[number[id(producer)], i] = (
                why or "they could share a kernel, but the reader was merged elsewhere first"
            )
    return found


def fuse(graph: Graph, layouts: dict[Node, Strides | None] | None = None, limits: Limits | None = None) -> list[Group]:
    """Partition the compute nodes of a graph into kernels, in an order that can be run."""
    return Fuser(graph, layouts or {}, limits or Limits()).run()
