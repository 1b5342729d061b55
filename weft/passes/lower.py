"""Lowering: fused groups and operations with kernels of their own become launches, with the words that their runs need.

What launches there are is the target's business (passes/target.py); here is what it may ask about a group: where its
operands lie, which of its values are needed elsewhere, and what an operand's place may be used for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from weft.codegen.launch import Choose, Done, Launch, Layout, Pointer, Repeat, Steps
from weft.graph.dims import Dim, provably_equal, same_shape
from weft.graph.node import ArrayType, Graph, Node, Size, Tape, TupleType
from weft.passes.fuse import Group
from weft.passes.target import Target
from weft.passes.views import Strided, Strides, contiguous, is_contiguous
from weft.primitives.base import Constant, ControlFlow, GetResult, KernelOperation, bind
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Item:
    """One group made ready to run: launches whose pointers count `reads`, then `writes`, then `temporaries`.

    `overwritable` lists (read, write) pairs of positions for which the kernel reads each element of the operand before
    it writes the same element of the result, and nowhere else: such a result may lie on its operand.
    """

    group: Group
    launches: tuple[Launch, ...]
    reads: tuple[Node, ...]
    writes: tuple[Node, ...]
    temporaries: tuple[int, ...] = ()
    overwritable: frozenset[tuple[int, int]] = frozenset()
    """What the kernel allows; `taking_places` is what the operations allow too."""
    code: Repeat | Steps | Choose | None = None
    """In place of launches: the plans of a loop's or a branch's bodies."""

    @property
    def can_fail(self) -> bool:
        """Whether the program may end here: a call says so, or a loop, which can be interrupted and whose tapes have
        an end."""
        if isinstance(self.code, (Repeat, Steps)) or any(launch.call for launch in self.launches):
            return True
        return any(item.can_fail for plan in self.plans() for item in plan.items)

    def taking_places(self) -> list[tuple[int, int]]:
        """The pairs of `overwritable`, but for results that are to have memory of their own."""
        return [(r, w) for r, w in sorted(self.overwritable) if self.writes[w].op.may_alias]

    def plans(self) -> tuple[Any, ...]:
        """The plans inside this item."""
        if self.code is None or isinstance(self.code, Steps):
            return ()
        return (self.code.plan,) if isinstance(self.code, Repeat) else self.code.plans


class Lowerer:
    """Lowers the groups of one graph."""

    def __init__(
        self,
        graph: Graph,
        groups: Sequence[Group],
        layouts: Mapping[Node, Strides | None],
        target: Target,
        bodies: Callable[[Lowerer, Group], Item] | None = None,
    ) -> None:
        self.layouts, self.target, self.bodies = layouts, target, bodies
        self.outputs = {o.inputs[0] if isinstance(o.op, Strided) else o for o in graph.outputs}
        self.home = {node: group for group in groups for node in group.nodes}
        self.readers: dict[Node, set[int]] = {}
        for node in graph.order():
            group = self.home.get(node)
            for operand in node.inputs if group is not None else ():
                stored = operand.inputs[0] if isinstance(operand.op, Strided) else operand
                self.readers.setdefault(stored, set()).add(id(group))

    def lower(self, group: Group) -> Item:
        if group.form != "opaque":
            return self.target.schedule(self, group)
        if not isinstance(group.nodes[0].op, ControlFlow):
            return self._own_kernels(group)
        assert self.bodies is not None
        return self.bodies(self, group)

    def leaves(self, group: Group, node: Node) -> bool:
        """Whether a node's value is needed outside its kernel."""
        return node in self.outputs or bool(self.readers.get(node, set()) - {id(group)})

    def only_read_by(self, group: Group) -> list[Group]:
        """The operations with kernels of their own, with one result of the shape of a group, that this group alone
        reads, and element by element; the last ones first."""
        found: list[Group] = []
        seen = {operand for node in group.nodes for operand in node.inputs}
        for node in sorted(seen, key=lambda node: -node.id):
            own = self.home.get(node)
            if own is None or own.form != "opaque" or len(own.nodes) > 1 or isinstance(node.op, ControlFlow):
                continue
            alone = self.readers.get(node) == {id(group)} and node not in self.outputs
            viewed = any(isinstance(x.op, Strided) and x.inputs[0] is node for x in seen)
            if alone and not viewed and same_shape(node.shape, group.domain):
                found.append(own)
        return found

    def place(self, operand: Node) -> tuple[Node, Strides, Size]:
        """(stored node, strides, offset) of an operand."""
        if isinstance(operand.op, Strided):
            return operand.inputs[0], operand.op.strides, operand.op.offset
        given = self.layouts.get(operand)
        return operand, contiguous(operand.shape) if given is None else given, 0

    def _own_kernels(self, group: Group) -> Item:
        """An operation that the target has kernels for, with one result or several."""
        node = group.nodes[0]
        writes = results_of(group)
        reads, places, layouts = self.operands(node)
        results = [Layout(_ints(x.shape), _ints(contiguous(x.shape)), x.dtype) for x in writes]
        lowering = self.target.lower(node.op, layouts, results)
        launches = tuple(_renumbered(launch, places, len(reads)) for launch in lowering.launches)
        over = node.op.overwrites if isinstance(node.op, KernelOperation) else ()
        overwritable = self.lying_alike(node, dict.fromkeys(over, (0, writes[0].kind)), places)
        return Item(group, launches, tuple(reads), writes, lowering.temporaries, overwritable)

    def operands(self, node: Node) -> tuple[list[Node], list[Pointer], list[Layout]]:
        """(stored values, where among them each operand is, how it lies there)."""
        numbers: dict[Node, int] = {}
        places: list[Pointer] = []
        layouts: list[Layout] = []
        for operand in node.inputs:
            stored, strides, offset = self.place(operand)
            if isinstance(stored.op, Constant):
                strides = (0,) * operand.ndim
            number = numbers.setdefault(stored, len(numbers))
            places.append(Pointer(number, to_int(offset) * operand.dtype.size))
            layouts.append(Layout(_ints(operand.shape), _ints(strides), operand.dtype))
        return list(numbers), places, layouts

    def lying_alike(
        self, node: Node, results: Mapping[int, tuple[int, ArrayType]], places: Sequence[Pointer]
    ) -> frozenset[tuple[int, int]]:
        """(stored value, result) for those operands that lie in memory exactly as a result does, and that no other
        operand reads: `results` gives by operand the number and the kind of a result."""
        readers = Counter([place.value for place in places])
        alone = {k: result for k, result in results.items() if readers[places[k].value] == 1}
        return frozenset(
            [(places[k].value, w) for k, (w, kind) in alone.items() if self._lies_plainly(node.inputs[k], kind)]
        )

    def _lies_plainly(self, operand: Node, kind: ArrayType) -> bool:
        """Whether an operand is a stored value, all of it, as a result of this kind is."""
        stored, strides, offset = self.place(operand)
        return (
            operand.kind is kind
            and not isinstance(stored.op, Constant)
            and provably_equal(offset, 0)
            and is_contiguous(operand.shape, strides)
            and stored.kind.size == kind.size
        )


def results_of(group: Group) -> tuple[Node, ...]:
    """The results of the operation that a group is, those that nobody reads included."""
    node = group.nodes[0]
    if not isinstance(node.kind, TupleType):
        return (node,)
    known = {pick.op.index: pick for pick in group.nodes[1:] if isinstance(pick.op, GetResult)}
    return tuple([known.get(i) or bind(GetResult(i), node) for i in range(len(node.kind.parts))])


def _renumbered(launch: Launch, places: Sequence[Pointer], reads: int) -> Launch:
    """Pointers count operands of the node; a stored value may be several of them."""
    words: list[int | Pointer | Done] = []
    for word in launch.words:
        if not isinstance(word, Pointer):
            words.append(word)
        elif word.value < len(places):
            at = places[word.value]
            words.append(Pointer(at.value, at.offset + word.offset))
        else:
            words.append(Pointer(reads + word.value - len(places), word.offset))
    return Launch(launch.source, tuple(words), launch.grain, launch.scratch, launch.call)


def nbytes_of(node: Node) -> int:
    kind = node.kind
    if isinstance(kind, Tape):
        return TAPE_ROWS.get() * to_int(kind.row.size) * kind.dtype.size
    return to_int(kind.size) * kind.dtype.size


TAPE_ROWS: ContextVar[int] = ContextVar("tape_rows", default=64)
"""Rows that a plan has room for on each tape. A program that finds it too few stops, and is planned again for more."""


def to_int(n: Size) -> int:
    """A plain number. A symbolic size stays what it is (passes/template.py): it acts as one, and whatever is decided by
    it is a guard of the plan."""
    return n if type(n) is int or type(n) is Dim else n.__index__()  # type: ignore[return-value]


def _ints(sizes: Sequence[Size]) -> tuple[int, ...]:
    return tuple(to_int(n) for n in sizes)


def lower(
    graph: Graph,
    groups: Sequence[Group],
    layouts: Mapping[Node, Strides | None],
    target: Target,
    bodies: Callable[[Lowerer, Group], Item] | None = None,
) -> list[Item]:
    """All groups, in order. `bodies` lowers those that are loops and branches (lower_loops.py)."""
    lowerer = Lowerer(graph, groups, layouts, target, bodies)
    together = _with_epilogues(lowerer, groups)
    made: list[Item] = []
    for group in groups:
        if id(group) in together:
            item = together[id(group)]
            made += [] if item is None else [item]
        else:
            made.append(lowerer.lower(group))
    return made


def _with_epilogues(lowerer: Lowerer, groups: Sequence[Group]) -> dict[int, Item | None]:
    """By group: what a map and the operation become whose result it is of, where the target makes one of them. It
    stands in the place of the map, and None in that of the operation."""
    found: dict[int, Item | None] = {}
    for group in groups:
        if group.form != "map":
            continue
        for producer in lowerer.only_read_by(group):
            item = lowerer.target.lower_with_epilogue(lowerer, producer, group)
            if item is not None:
                found[id(producer)], found[id(group)] = None, item
                break
    return found
