"""The memory plan: where each stored value lies, which results take a dying operand's place, and the proof that no
value is overwritten early.

The plan is made from the schedule alone: the last read of every value is computed once, over all readers, as operand or
through any view, and by the program's own outputs. A result may lie on an operand if that operand is ours (a temporary,
or an input that nobody else holds), nothing reads it (or anything else in its place) later, and the kernel reads each
element before it writes the same one (`Item.overwritable`). Other temporaries share one arena, packed by lifetime.

A program that ends early must have changed nothing: an input is overwritten only after the last step that can fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.graph.dims import Dim, provably_equal
from weft.graph.node import Graph, Node
from weft.passes.lower import Item, nbytes_of
from weft.passes.target import Target
from weft.passes.views import Strided
from weft.primitives.base import Parameter

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """`where` is "input", "output" or "arena"; `at` the position of the operand, or the byte offset in the arena."""

    where: str
    at: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of the arena, in use from step `first` to step `last`."""

    nbytes: int
    first: int
    last: int
    at: int


@dataclass(slots=True)
class Plan:
    """A schedule with a place for every stored value."""

    graph: Graph
    target: Target
    items: list[Item]
    places: dict[Node, Place]
    outputs: list[Node]
    """Stored values that become buffers of their own, in the order of the program's output addresses."""
    temporaries: list[list[int]]
    """Arena offsets of each item's own temporaries."""
    arena: int
    reuse: list[str] = field(default_factory=list)
    """What took whose place, for explain."""
    pieces: list[Piece] = field(default_factory=list)
    """What the arena consists of."""
    free: dict[int, Node | None] = field(default_factory=dict)
    """Inputs that may be overwritten: by any step behind the last that can fail (None), or, a loop's carry, by this
    result only."""

    @property
    def adopted(self) -> dict[int, int]:
        """The outputs that lie on an input, by number: that input's."""
        places = [self.places[node] for node in self.graph.inputs]
        return {place.at: i for i, place in enumerate(places) if place.where == "output"}

    @property
    def spent(self) -> list[int]:
        """The inputs that do not survive a run."""
        if not self.free:
            return []
        places = [self.places[node] for item in self.items for node in item.writes]
        written = {(place.where, place.at) for place in places if place.where != "arena"}
        inputs = [self.places[node] for node in self.graph.inputs]
        return [i for i, place in enumerate(inputs) if (place.where, place.at) in written]

    @property
    def is_symbolic(self) -> bool:
        """Whether sizes are expressions in here, and offsets in the arena symbols of their own."""
        return any(node.kind.symbolic for node in self.places)

    @property
    def lower_bound(self) -> int:
        """Bytes of the largest set of temporaries that are alive at once: no arena can be smaller."""
        changes: dict[int, int] = {}
        for piece in self.pieces:
            changes[piece.first] = changes.get(piece.first, 0) + piece.nbytes
            changes[piece.last + 1] = changes.get(piece.last + 1, 0) - piece.nbytes
        return max(itertools.accumulate(changes[step] for step in sorted(changes)), default=0)

    @property
    def peak(self) -> int:
        """Bytes that a run allocates: for temporaries, and for results that do not lie on inputs."""
        return self.arena + sum(nbytes_of(node) for k, node in enumerate(self.outputs) if k not in self.adopted)


@dataclass(slots=True)
class _Home:
    """A piece of memory that one value after another lives in."""

    nodes: list[Node]
    nbytes: int
    first: int
    last: int
    output: int | None = None
    given: int | None = None
    """The number of the input whose memory this is."""
    heirs: set[Node] | None = None
    """The only values that may take the place of a loop's carry: its next value, and what that is made in."""
    since: int = 0
    """The first step that may overwrite it: behind the last that can fail, if it is an input of the program. A loop's
    carry is a copy."""


def base_of(output: Node) -> Node:
    """The stored value that a node is, or is a view of."""
    return output.inputs[0] if isinstance(output.op, Strided) else output


def last_reads(items: Sequence[Item]) -> dict[Node, int]:
    """The last step at which each value is read."""
    last: dict[Node, int] = {}
    for step, item in enumerate(items):
        for node in item.reads:
            last[node] = step
    return last


def plan_memory(
    graph: Graph,
    items: list[Item],
    target: Target,
    carried: Mapping[int, int] | None = None,
    donated: Collection[int] = (),
) -> Plan:
    """Places for all values. `carried` gives, for inputs that are a loop's carries, the number of the output that is
    their next value: it may take their place. `donated` are inputs that nobody wants to see again."""
    end = len(items)
    last = last_reads(items)
    outputs: list[Node] = []
    for output in graph.outputs:
        base = base_of(output)
        last[base] = end
        if not isinstance(base.op, Parameter) and base not in outputs:
            outputs.append(base)
    free = _free_inputs(graph, carried or {}, donated)
    homes, reuse = _homes(items, last, outputs, {graph.inputs[i]: (i, heir) for i, heir in free.items()})
    temporaries = _temporary_homes(items)
    places = {node: Place("input", i, nbytes_of(node)) for i, node in enumerate(graph.inputs)}
    own = [h for h in homes if h.output is None and h.given is None]
    together = own + [t for step in temporaries for t in step]
    arena = _pack(together)
    pieces = [Piece(h.nbytes, h.first, h.last, arena.offsets[id(h)]) for h in together]
    for home in homes:
        for node in home.nodes:
            if home.output is not None:
                places[node] = Place("output", home.output, nbytes_of(node))
            elif home.given is not None:
                places[node] = Place("input", home.given, nbytes_of(node))
            else:
                places[node] = Place("arena", arena.offsets[id(home)], nbytes_of(node))
    offsets = [[arena.offsets[id(t)] for t in step] for step in temporaries]
    return Plan(graph, target, items, places, outputs, offsets, arena.size, reuse, pieces, free)


def _free_inputs(graph: Graph, carried: Mapping[int, int], donated: Collection[int]) -> dict[int, Node | None]:
    """The inputs that may be overwritten, with the only result that may do so (None: any)."""
    carries = {i: base_of(graph.outputs[k]) for i, k in carried.items()}
    return {**carries, **dict.fromkeys(donated)}


def last_failure(items: Sequence[Item]) -> int:
    """The last step that can fail; -1 if none can."""
    return max((step for step, item in enumerate(items) if item.can_fail), default=-1)


def _homes(
    items: Sequence[Item],
    last: dict[Node, int],
    outputs: Sequence[Node],
    free: Mapping[Node, tuple[int, Node | None]],
) -> tuple[list[_Home], list[str]]:
    """Each written value in a home of its own, or in that of an operand that dies there. `free`: the numbers of inputs
    that may be overwritten, with the only result that may do so."""
    home_of: dict[Node, _Home] = {}
    homes: list[_Home] = []
    sure = last_failure(items) + 1
    for node, (number, heir) in free.items():
        heirs, since = (None, sure) if heir is None else (_heirs(node, heir, items, last), 0)
        home_of[node] = _Home([node], nbytes_of(node), -1, last.get(node, -1), None, number, heirs, since)
    reuse: list[str] = []
    for step, item in enumerate(items):
        taken: set[int] = set()
        for w, node in enumerate(item.writes):
            home = _dying_operand(item, w, step, home_of, taken, node in outputs)
            if home is not None:
                reuse.append(f"{node.op} takes the place of {home.nodes[-1].op}")
                if len(home.nodes) == 1 and home.given is not None:
                    homes.append(home)
                home.nodes.append(node)
            else:
                home = _Home([node], nbytes_of(node), step, step)
                homes.append(home)
            taken.add(id(home))
            home.last = max(last.get(node, step), step)
            if node in outputs:
                home.output = outputs.index(node)
            home_of[node] = home
    return homes, reuse


def _dying_operand(
    item: Item, w: int, step: int, home_of: dict[Node, _Home], taken: set[int], lasts: bool
) -> _Home | None:
    """The home of an operand that this result may overwrite; every operand is tried. A result that `lasts` would rather
    lie on an input, which is there already, than make a temporary last."""
    found: _Home | None = None
    for r, operand in enumerate(item.reads):
        home = home_of.get(operand)
        if home is None or (r, w) not in item.overwritable or id(home) in taken:
            continue
        if (
            home.last == step
            and home.output is None
            and (home.heirs is None or item.writes[w] in home.heirs)
            and step >= home.since
            and home.nodes[-1] is operand
            and provably_equal(home.nbytes, nbytes_of(item.writes[w]))
        ):
            if home.given is not None and (lasts or home.heirs is not None):
                return home
            found = found or home
    return found


def _heirs(node: Node, heir: Node, items: Sequence[Item], last: Mapping[Node, int]) -> set[Node]:
    """The results that may lie one after the other where an input does, the last of which is its heir; the heir alone
    if there is no such way to it."""
    found: list[Node] = []
    here = node
    while here is not heir and 0 <= last.get(here, -1) < len(items):
        item = items[last[here]]
        over = [item.writes[w] for r, w in item.overwritable if item.reads[r] is here]
        over = [x for x in over if x is heir] or over
        if len(over) != 1 or not provably_equal(nbytes_of(over[0]), nbytes_of(node)):
            return {heir}
        here = over[0]
        found.append(here)
    return {*found, heir} if here is heir else {heir}


def _temporary_homes(items: Sequence[Item]) -> list[list[_Home]]:
    return [[_Home([], nbytes, step, step) for nbytes in item.temporaries] for step, item in enumerate(items)]


@dataclass(slots=True)
class _Packed:
    offsets: dict[int, int]
    size: int


def _pack(homes: Sequence[_Home]) -> _Packed:
    """Offsets for homes. Where a size is a symbol, the offsets are symbols too: numbers for all of them come later."""
    packing = Packing([(home.first, home.last) for home in homes])
    sizes: list[Any] = [home.nbytes for home in homes]
    offsets: list[Any]
    size: Any
    known = next((n for n in sizes if type(n) is Dim), None)
    if known is None:
        offsets, size = packing.offsets(sizes)
    else:
        offsets, size = [known.env.unknown() for _ in homes], known.env.unknown()
    return _Packed({id(home): at for home, at in zip(homes, offsets, strict=True)}, size)


class Packing:
    """How pieces that live from one step to another share an arena; made once for pieces of any size."""

    def __init__(self, lives: Sequence[tuple[int, int]]) -> None:
        self.count = len(lives)
        self._order = sorted(range(self.count), key=lambda i: lives[i][0])
        self._beside = [
            [j for j, (first, last) in enumerate(lives) if j != i and first <= end and start <= last]
            for i, (start, end) in enumerate(lives)
        ]

    def offsets(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """(offset of each piece, size of the arena) such that pieces alive at the same time do not overlap: largest
        first, at the lowest place that is free."""
        offsets, ends = [0] * self.count, [0] * self.count
        for i in sorted(self._order, key=sizes.__getitem__, reverse=True):  # of equals, the earliest first
            need = -(-sizes[i] // ALIGNMENT) * ALIGNMENT or ALIGNMENT
            at = 0
            taken = [(offsets[j], ends[j]) for j in self._beside[i] if ends[j]]
            taken.sort()
            for start, stop in taken:
                if at + need <= start:
                    break
                if stop > at:
                    at = stop
            offsets[i], ends[i] = at, at + need
        return offsets, max(ends, default=0)
