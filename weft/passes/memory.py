"""The memory plan: where each stored value lies, which results take a dying operand's place, and the proof that no
value is overwritten early.

The plan is made from the schedule alone: the last read of every value is computed once, over all readers, as operand or
through any view, and by the program's own outputs. A result may lie on an operand if that operand is ours (a temporary,
or an input that nobody else holds), nothing reads it (or anything else in its place) later, and the kernel reads each
element before it writes the same one (`Item.overwritable`). Other temporaries share one arena, packed by lifetime.

A program that ends early must have changed nothing: an input is overwritten only after the last step that can fail.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from weft.graph.dims import Dim, is_symbolic, key_of, provably_equal
from weft.graph.node import Graph, Node
from weft.passes.lower import Item, nbytes_of
from weft.passes.target import Target
from weft.passes.views import Strided
from weft.primitives.base import Parameter
from weft.records import dataclass, field

ALIGNMENT = 64
MOST_NEIGHBOURS = 64
"""How many pieces of an arena may on average live at the same time as one of them, for each to be placed with a view to
all of those. Where there are more, pieces are placed one after the other."""


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
    def commit(self) -> int:
        """The first step that overwrites an input."""
        spent = {(place.where, place.at) for place in [self.places[self.graph.inputs[i]] for i in self.spent]}
        for step, item in enumerate(self.items if spent else ()):
            places = [self.places[node] for node in item.writes]
            if any(place.where != "arena" and (place.where, place.at) in spent for place in places):
                return step
        return len(self.items)

    def writes_over(self, step: int) -> bool:
        """Whether a step overwrites what it reads."""
        item = self.items[step]
        read = {key_of((place.where, place.at)) for place in [self.places[x] for x in item.reads if x in self.places]}
        return any(key_of((place.where, place.at)) in read for place in [self.places[x] for x in item.writes])

    @property
    def is_symbolic(self) -> bool:
        """Whether sizes are expressions in here, and offsets in the arena symbols of their own."""
        return is_symbolic(self.arena) or any(node.kind.symbolic for node in self.places)

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
        adopted = self.adopted
        return self.arena + sum(nbytes_of(node) for k, node in enumerate(self.outputs) if k not in adopted)


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
    outputs: dict[Node, int] = {}
    for output in graph.outputs:
        base = base_of(output)
        last[base] = end
        if not isinstance(base.op, Parameter):
            outputs.setdefault(base, len(outputs))
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
    return Plan(graph, target, items, places, list(outputs), offsets, arena.size, reuse, pieces, free)


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
    outputs: Mapping[Node, int],
    free: Mapping[Node, tuple[int, Node | None]],
) -> tuple[list[_Home], list[str]]:
    """Each written value in a home of its own, or in that of an operand that dies there. `free`: the numbers of inputs
    that may be overwritten, with the only result that may do so."""
    home_of: dict[Node, _Home] = {}
    homes: list[_Home] = []
    sure = last_failure(items) + 1
    heirs_of = _Heirs(items, last) if any(heir is not None for _, heir in free.values()) else None
    for node, (number, heir) in free.items():
        heirs, since = (None, sure) if heir is None or heirs_of is None else (heirs_of.find(node, heir), 0)
        home_of[node] = _Home([node], nbytes_of(node), -1, last.get(node, -1), None, number, heirs, since)
    reuse: list[str] = []
    for step, item in enumerate(items):
        taken: set[int] = set()
        below: dict[int, list[int]] = {}
        for r, w in item.taking_places():
            below.setdefault(w, []).append(r)
        for w, node in enumerate(item.writes):
            home = _dying_operand(item, w, below.get(w, ()), step, home_of, taken, node in outputs)
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
                home.output = outputs[node]
            home_of[node] = home
    return homes, reuse


def _dying_operand(
    item: Item,
    w: int,
    below: Sequence[int],
    step: int,
    home_of: dict[Node, _Home],
    taken: set[int],
    lasts: bool,
) -> _Home | None:
    """The home of an operand that this result may overwrite; every operand that the kernel allows is tried (`below`). A
    result that `lasts` would rather lie on an input, which is there already, than make a temporary last."""
    found: _Home | None = None
    for r in below:
        operand = item.reads[r]
        home = home_of.get(operand)
        if home is None or id(home) in taken:
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


class _Heirs:
    """Which results may lie one after the other where an input does."""

    def __init__(self, items: Sequence[Item], last: Mapping[Node, int]) -> None:
        self._last, self._end = last, len(items)
        self._over: dict[tuple[int, Node], list[Node]] = {}
        """By step and operand: the results that may lie on it."""
        for step, item in enumerate(items):
            for r, w in item.taking_places():
                self._over.setdefault((step, item.reads[r]), []).append(item.writes[w])

    def find(self, node: Node, heir: Node) -> set[Node]:
        """Those that lead from an input to its heir; the heir alone if there is no such way."""
        found: list[Node] = []
        here = node
        while here is not heir and 0 <= self._last.get(here, -1) < self._end:
            over = self._over.get((self._last[here], here), [])
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


class _Layout(NamedTuple):
    """How pieces of these sizes lie."""

    sizes: Sequence[int]
    order: Sequence[int]
    """In which they were placed, the largest first, and which place each has in that; none where the earliest came
    first."""
    ranks: Mapping[int, int]
    offsets: list[int]
    ends: list[int]


def _room(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT or ALIGNMENT


def _lowest(need: int, taken: list[tuple[int, int]]) -> int:
    """The lowest place with so much room between those that are taken, (start, end) each."""
    at = 0
    taken.sort()
    for start, stop in taken:
        if at + need <= start:
            break
        if stop > at:
            at = stop
    return at


class Packing:
    """How pieces that live from one step to another share an arena; made once for pieces of any size."""

    def __init__(self, lives: Sequence[tuple[int, int]]) -> None:
        self._lives = lives
        self._order = sorted(range(len(lives)), key=lambda i: lives[i][0])
        self._age = {i: place for place, i in enumerate(self._order)}
        self._beside = self._neighbours()
        self._last: _Layout | None = None
        """The answer that was given last: sizes that grow step by step are mostly laid out as before."""

    def _neighbours(self) -> list[list[int]] | None:
        """For each piece those that live at the same time; None if these are too many to look at."""
        beside: list[list[int]] = [[] for _ in self._lives]
        alive: list[int] = []
        left = MOST_NEIGHBOURS * len(self._lives)
        for i in self._order:
            first = self._lives[i][0]
            alive = [j for j in alive if self._lives[j][1] >= first]
            left -= len(alive)
            if left < 0:
                return None
            beside[i].extend(alive)
            for j in alive:
                beside[j].append(i)
            alive.append(i)
        return beside

    def offsets(self, sizes: Sequence[int]) -> tuple[list[int], int]:
        """(offset of each piece, size of the arena) such that pieces alive at the same time do not overlap."""
        layout = self._last  # another thread may set it meanwhile
        changed = (
            None if layout is None else [i for i, (n, m) in enumerate(zip(sizes, layout.sizes, strict=True)) if n != m]
        )
        if layout is None or changed is None or (changed and not self._is_in_order(changed, sizes, layout)):
            self._last = layout = self._laid_out(sizes)
        elif changed:
            self._last = layout = self._laid_out_again(changed, sizes, layout)
        return layout.offsets, max(layout.ends, default=0)

    def _laid_out(self, sizes: Sequence[int]) -> _Layout:
        rooms = [_room(size) for size in sizes]
        if self._beside is None:
            offsets = self._in_order(rooms)
            return _Layout(sizes, (), {}, offsets, [at + room for at, room in zip(offsets, rooms, strict=True)])
        order = sorted(self._order, key=sizes.__getitem__, reverse=True)  # of equals, the earliest first
        ranks = {i: rank for rank, i in enumerate(order)}
        offsets, ends = [0] * len(rooms), [0] * len(rooms)
        for i in order:
            offsets[i] = at = _lowest(rooms[i], [(offsets[j], ends[j]) for j in self._beside[i] if ends[j]])
            ends[i] = at + rooms[i]
        return _Layout(sizes, order, ranks, offsets, ends)

    def _is_in_order(self, changed: Sequence[int], sizes: Sequence[int], layout: _Layout) -> bool:
        """Whether pieces are placed in the same order as before, of which these have another size."""
        order, ranks, age = layout.order, layout.ranks, self._age
        if not order:
            return False
        for i in changed:
            rank = ranks[i]
            for first in (rank - 1, rank):
                if 0 <= first < len(order) - 1:
                    x, y = order[first], order[first + 1]
                    if (-sizes[x], age[x]) > (-sizes[y], age[y]):
                        return False
        return True

    def _laid_out_again(self, changed: Sequence[int], sizes: Sequence[int], layout: _Layout) -> _Layout:
        """The same as `_laid_out`, where pieces are placed in the same order: only those are looked at that have
        another size, or beside which another one moved."""
        assert self._beside is not None
        order, ranks = layout.order, layout.ranks
        offsets, ends = list(layout.offsets), list(layout.ends)
        waiting = [ranks[i] for i in changed]
        heapq.heapify(waiting)
        queued = set(waiting)
        while waiting:
            rank = heapq.heappop(waiting)
            i, room = order[rank], _room(sizes[order[rank]])
            at = _lowest(room, [(offsets[j], ends[j]) for j in self._beside[i] if ranks[j] < rank])
            if at == offsets[i] and at + room == ends[i]:
                continue
            offsets[i], ends[i] = at, at + room
            for j in self._beside[i]:
                if ranks[j] > rank and ranks[j] not in queued:
                    queued.add(ranks[j])
                    heapq.heappush(waiting, ranks[j])
        return _Layout(sizes, order, ranks, offsets, ends)

    def _in_order(self, rooms: Sequence[int]) -> list[int]:
        """The earliest first, in the smallest hole that is large enough."""
        offsets = [0] * len(rooms)
        alive: list[tuple[int, int]] = []
        holes = _Holes()
        for i in self._order:
            first, last = self._lives[i]
            while alive and alive[0][0] < first:
                gone = heapq.heappop(alive)[1]
                holes.give(offsets[gone], rooms[gone])
            offsets[i] = holes.take(rooms[i])
            heapq.heappush(alive, (last, i))
        return offsets


class _Holes:
    """What is free of an arena that grows as needed."""

    def __init__(self) -> None:
        self.end = 0
        self._by_size: list[tuple[int, int]] = []
        """(bytes, offset), sorted."""
        self._ends: dict[int, int] = {}
        """The end of each hole by its offset."""
        self._starts: dict[int, int] = {}
        """And the other way."""

    def take(self, nbytes: int) -> int:
        """The place of so many bytes."""
        found = bisect.bisect_left(self._by_size, (nbytes, 0))
        if found < len(self._by_size):
            size, at = self._by_size[found]
        else:  # none is large enough: the last one may be made so
            at = self._starts.get(self.end, self.end)
            size, self.end = nbytes, at + nbytes
        if at in self._ends:
            self._remove(at)
        if size > nbytes:
            self._add(at + nbytes, at + size)
        return at

    def give(self, at: int, nbytes: int) -> None:
        """These bytes are free again."""
        start, stop = at, at + nbytes
        if start in self._starts:
            start = self._starts[start]
            self._remove(start)
        if stop in self._ends:
            after = stop
            stop = self._ends[after]
            self._remove(after)
        self._add(start, stop)

    def _add(self, start: int, stop: int) -> None:
        self._ends[start], self._starts[stop] = stop, start
        bisect.insort(self._by_size, (stop - start, start))

    def _remove(self, start: int) -> None:
        stop = self._ends.pop(start)
        del self._starts[stop]
        del self._by_size[bisect.bisect_left(self._by_size, (stop - start, start))]
