"""State that a compiled function updates in place: which of its inputs a call may overwrite, and who must not notice.

A trace knows what the function changes. An array that it overwrites (`x[i] = v`, `x += 1`), or that stood in places
that it gives another value (`cache.keys = ...`, `state["k"] = ...`), is a *candidate*: its old value dies with the call
if nobody else holds it. Who does is counted at each call, as evaluation counts for arrays that it donates. Candidates
of which every reference is explained are *claimed* and the program runs over their memory. Other threads that come upon
a claimed array wait until it has its new value; a signal's handler or a finalizer that strikes in the middle of the
call gets the value that there is: the new one, or the old one, and then the call makes a copy.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from weft.array import array
from weft.evaluate import LOCK, is_large, overwriting
from weft.graph.node import ArrayType, Graph, Node
from weft.lazy import lazy
from weft.runtime import holders
from weft.runtime.data import Buffer, Busy, Taken
from weft.runtime.holders import COUNTED, REPLACED, STATE, free
from weft.runtime.program import Progress
from weft.transforms import state
from weft.transforms.capture import Walk
from weft.transforms.replay import Recorder

if TYPE_CHECKING:
    from weft.passes import lower, memory
    from weft.passes.memory import Plan
else:
    lower, memory = lazy("weft.passes.lower"), lazy("weft.passes.memory")

MOST_SETS = 8
"""Sets of inputs to overwrite that one program is planned for; with others it overwrites nothing."""

ONLY_READ = "the function does not replace it"
SMALL = "it is small"
USELESS = "no kernel that writes something of its size reads it last, element by element"
KEPT_APART = "it is to have memory of its own: its operation may not run in place"
FAILS = "a step that can fail or be interrupted, as loops can, comes no earlier than the last one that reads it"

# ---- what a trace may overwrite ----


class UpdateSlot(NamedTuple):
    """Where something stands that a call replaces: the number of the place in the walk, or ~ the number of an object
    that goes itself; and the name there."""

    holder: int
    name: Any


class Candidate(NamedTuple):
    """An array whose old value a call leaves to nobody that the walk knows of."""

    array: int
    """Its number in the walk."""
    leaf: int
    """Its number among the inputs of the program."""
    heir: int
    """The output that takes its place: who held the old value meanwhile gets this one."""
    replaced: bool
    """Whether the array itself goes, and not only what it holds: the slots that it stood in have to explain all
    references to it."""
    gone: Taken | None = None
    """What stands in for the value of an array that was given away, in place of an heir."""


class Updates(NamedTuple):
    """What a trace found."""

    candidates: tuple[Candidate, ...]
    slots: dict[int, list[UpdateSlot]]
    """By number in the walk, arrays and (with ~) objects: the slots in which they stood, all of which are replaced."""
    refused: dict[int, str]
    """By number of the array: why inputs are not candidates."""


class Search:
    """Looks for candidates in what a traced function did."""

    def __init__(self, walk: Walk, kinds: Sequence[ArrayType], recorder: Recorder) -> None:
        self.walk, self.kinds, self.recorder = walk, kinds, recorder
        self.slots: dict[int, list[UpdateSlot]] = {}
        self.heirs: dict[int, array | None] = {}
        self._changed: set[int] = set()

    def run(
        self,
        before: Sequence[Any],
        changed: Sequence[tuple[int, Any]],
        overwritten: Sequence[tuple[int, int]],
        sources: Sequence[Any],
    ) -> Updates:
        """`before` is what all places held, `changed` what some of them hold now, `overwritten` are arrays with the
        outputs that they hold now, `sources` the inputs of the program."""
        self._changed = {id(state.owner_of(self.walk.containers[number])) for number, _ in changed}
        for number, after in changed:
            for name, old in _named(before[number], self.walk.containers[number]):
                self._follow(number, name, old, _counterpart(after, name))
        found: list[Candidate] = []
        refused: dict[int, str] = {}
        new = dict(overwritten)
        for leaf, number in enumerate(sources):
            if number.__class__ is not int:
                continue
            why = self._why_not(number, new.get(number))
            if why is not None:
                refused[number] = why
                continue
            heir = new.get(number)
            if heir is not None:
                found.append(Candidate(number, leaf, heir, replaced=False))
            else:
                stored: Any = self.heirs[number]
                found.append(Candidate(number, leaf, self.recorder.output(stored._node), replaced=True))
        return Updates(tuple(found), self.slots, refused)

    def _follow(self, holder: int, name: Any, old: Any, new: Any) -> None:
        """Something that a slot held and does not hold now. A container of Python's own that was in it goes with it,
        unless it stands elsewhere, and with it what it holds."""
        number = self.recorder.seen.get(id(old))
        if number is None or old is new:
            return
        first = number not in self.slots
        if old.__class__ is array:
            self.slots.setdefault(number, []).append(UpdateSlot(holder, name))
            if self.heirs.get(number) is None:
                self.heirs[number] = new if new.__class__ is array and id(new) not in self.recorder.seen else None
        elif old.__class__ in (tuple, list, dict) and number not in self.recorder.kept:
            if id(old) in self._changed:
                return  # what it holds is written anew in any case
            self.slots.setdefault(number, []).append(UpdateSlot(holder, name))
            if first:
                for inner, value in _named(old, old):
                    self._follow(number, inner, value, _counterpart(new, inner))

    def _why_not(self, number: int, output: int | None) -> str | None:
        """Why an input is no candidate."""
        if output is not None:
            heir = self.recorder.outputs[output]
        elif number not in self.slots:
            return ONLY_READ
        elif number in self.recorder.kept:
            return "the function returns its old value, or keeps it elsewhere"
        elif (made := self.heirs[number]) is None or not self.recorder.is_output(made._node):
            return "nothing new stands in its place"
        else:
            heir = made._node
        kind = self.kinds[number]
        return None if heir.kind is kind else f"its new value is of another kind, {heir.kind!r}"


def _named(contents: Any, place: Any) -> Iterator[tuple[Any, Any]]:
    """The values that a place or a tuple holds, with their names."""
    if isinstance(contents, dict):
        return iter(state.items_of(contents))
    if isinstance(contents, (list, tuple)) and not isinstance(place, (set, state.Appended)):
        return iter(enumerate(contents))
    return iter(())


def _counterpart(after: Any, name: Any) -> Any:
    """What stands under the same name in what came instead."""
    if isinstance(after, dict):
        return after.get(name)
    if isinstance(after, (list, tuple)) and isinstance(name, int) and 0 <= name < len(after):
        return after[name]
    return None


def large(updates: Updates, graph: Graph) -> Updates:
    """The candidates that are worth asking who holds them, in a graph of known sizes."""
    small = {c.array for c in updates.candidates if lower.nbytes_of(graph.inputs[c.leaf]) < overwriting.LEAST_DONATED}
    return updates._replace(
        candidates=tuple([c for c in updates.candidates if c.array not in small]),
        refused={**updates.refused, **dict.fromkeys(small, SMALL)},
    )


def worth_while(updates: Updates, made: Plan, overwritten: Callable[[Sequence[int]], Collection[int]]) -> Updates:
    """The candidates that the program of a plan would overwrite if it may: of these inputs, `overwritten` ones."""
    if not updates.candidates or not COUNTED:
        return updates._replace(candidates=())
    spent = set(overwritten([c.leaf for c in updates.candidates]))
    useless = {c.array: why_useless(made, c.leaf) for c in updates.candidates if c.leaf not in spent}
    return updates._replace(
        candidates=tuple([c for c in updates.candidates if c.leaf in spent]),
        refused={**updates.refused, **useless},
    )


def why_useless(made: Plan, leaf: int) -> str:
    """Why a program would not overwrite an input."""
    node = made.graph.inputs[leaf]
    read = memory.last_reads(made.items).get(node, -1)
    if read >= 0:
        last = made.items[read]
        if any(last.reads[r] is node and not last.writes[w].op.may_alias for r, w in last.overwritable):
            return KEPT_APART
    return USELESS if read > memory.last_failure(made.items) else FAILS


# ---- who holds an old value at a call ----


class Census:
    """Counts the holders of what a call is about to replace."""

    def __init__(self, slots: dict[int, list[UpdateSlot]], walk: Walk) -> None:
        self.slots, self.walk = slots, walk
        self._gone: dict[int, bool] = {}

    def goes(self, number: int) -> bool:
        """Whether all references to an array or object of the walk are ours, or in slots that this call replaces."""
        known = self._gone.get(number)
        if known is None:
            self._gone[number] = False  # what holds itself stays
            known = self._gone[number] = self._count(number)
        return known

    def _count(self, number: int) -> bool:
        walk = self.walk
        held: list[Any] = walk.arrays if number >= 0 else walk.objects
        at = number if number >= 0 else ~number
        slots = self.slots[number]
        if number >= 0 and len(slots) == 1 and slots[0].holder >= 0:  # the usual case: one slot, in a place
            holder, name = slots[0]
            place = walk.containers[holder]
            if state.get_item(place, name) is not held[at]:
                return False
            return free(REPLACED, held[at : at + 1], [2], lambda: [{id(held), id(state.owner_of(place))}])[0]
        found = set()
        for holder, name in slots:
            if holder < 0 and not self.goes(holder):
                continue
            place = walk.containers[holder] if holder >= 0 else walk.objects[~holder]
            if state.get_item(place, name) is held[at]:
                found.add((id(state.owner_of(place)), name))
        # Lists and dicts may be among the containers of the walk, too.
        again = sum([place is held[at] for place in walk.containers]) if number < 0 else 0
        ours = {id(held), *([id(walk.containers)] if again else []), *[owner for owner, _ in found]}
        return free(REPLACED, held[at : at + 1], [1 + again + len(found)], lambda: [ours])[0]


def are_all_held(updates: Updates, walk: Walk) -> bool:
    """Whether it is plain that a call can overwrite nothing: all that it could is replaced, and has more holders than
    the walk and the slots that it may stand in, so that a `Census` would find that it stays."""
    if not all(candidate.replaced for candidate in updates.candidates):
        return False
    counts = holders.owners([walk.arrays[candidate.array] for candidate in updates.candidates])
    slots = updates.slots
    return all(n > 1 + len(slots[c.array]) for n, c in zip(counts, updates.candidates, strict=True))


class UpdateClaim(Taken):
    """The arrays that a call is about to overwrite. Their nodes hold this in place of a buffer until the call has new
    values for them."""

    __slots__ = ("_buffers", "_end_of_call", "_held", "_promised", "_updates", "_walk", "others", "progress")

    def __init__(self, updates: Updates, buffers: Sequence[Buffer], walk: Walk) -> None:
        super().__init__()
        self._end_of_call = threading.Lock()
        self._end_of_call.acquire()
        self._updates, self._walk = updates, walk
        self._buffers = id(buffers)
        """The id of the call's list of buffers."""
        for ours in (walk.tuples, walk.places, walk.repeats, walk.nodes):  # they hold objects, and a trace needs them
            ours.clear()  # type: ignore[attr-defined]
        self._held: list[tuple[Candidate, Node, Buffer]] = [
            (c, walk.arrays[c.array]._node, buffers[c.array]) for c in updates.candidates if is_large(buffers[c.array])
        ]
        self.others: dict[int, str] = {}
        """By the numbers of arrays that somebody else holds: who."""
        self.progress = Progress()
        self._promised: Sequence[Node] = ()
        """The results of a call that is paused: they get values when it is carried on."""

    def take(self) -> tuple[int, ...]:
        """Keep everybody from the arrays, and leave those that somebody holds already. The numbers of the inputs that
        the program may overwrite."""
        if not self._held:
            return ()
        self._hide()
        self.others = self._holders()
        if self.others:
            for candidate, node, buffer in self._held:
                if candidate.array in self.others and node.value is self:
                    node.value = buffer
            self._held = [entry for entry in self._held if entry[0].array not in self.others]
        return tuple([candidate.leaf for candidate, _, _ in self._held])

    def _hide(self) -> None:
        for _, node, buffer in self._held:
            if node.value is buffer:
                node.value = self

    def _holders(self) -> dict[int, str]:
        """Who else holds an old value, by the number of the array. Beside us, its array holds a node; the call holds a
        buffer, which alone holds its storage."""
        count = len(self._held)
        alone = free(
            STATE,
            [
                *[node for _, node, _ in self._held],
                *[buffer for _, _, buffer in self._held],
                *[buffer.storage for _, _, buffer in self._held],
            ],
            [*[2] * count, *[2] * count, *[1] * count],
            self._known,
        )
        nodes, buffers, storages = alone[:count], alone[count : 2 * count], alone[2 * count :]
        census = Census(self._updates.slots, self._walk)
        found: dict[int, str] = {}
        for i, (candidate, node, _) in enumerate(self._held):
            if node.value is not self:
                found[candidate.array] = "another call is about to overwrite it"
            elif not nodes[i]:
                found[candidate.array] = "another array has its value, or something that is not computed yet reads it"
            elif not buffers[i]:
                found[candidate.array] = "somebody else looks at its memory (NumPy, DLPack, another thread)"
            elif not storages[i]:
                found[candidate.array] = "a view shares its memory"
            elif candidate.replaced and not census.goes(candidate.array):
                found[candidate.array] = "somebody else holds the array that is replaced"
        return found

    def _known(self) -> list[set[int]]:
        """The ids of the known holders of nodes, of buffers and of storages."""
        nodes = [{id(entry), id(self._walk.arrays[entry[0].array])} for entry in self._held]
        buffers = [{id(entry), self._buffers} for entry in self._held]
        return [*nodes, *buffers, *[{id(buffer)} for _, _, buffer in self._held]]

    def refuse(self) -> NoReturn:
        """Whoever asks for a value here waits (`wait`) and gets one, unless this process is a child of the one that
        runs the program."""
        if self.is_over():
            super().refuse()
        raise Busy(self)

    def wait(self) -> None:
        if not self.is_mine() and not self.is_paused:
            self._end_of_call.acquire()
            self._let_go()
            return
        # A signal's handler or a finalizer: the call goes on when they are done, and they cannot wait for it. Or the
        # call was interrupted, and this thread is the first that needs what it makes.
        self.progress.hurry()
        with LOCK:
            self._hand_out()

    def hurry(self) -> None:
        self.wait()

    def end(self) -> Sequence[Buffer | UpdateClaim] | None:  # type: ignore[override]
        """All have values again, or will have them: the new ones if the program has run, or has been interrupted in the
        midst of that. Those are its results."""
        progress = self.progress
        with LOCK:
            if progress.paused:
                self._paused = self
                self._let_go()
                return [self] * len(progress.results)
            if not self._ended:
                self._hand_out()
                self._ended = True
            self._let_go()
        return progress.results if progress.finished else None

    def promise(self, nodes: Sequence[Node]) -> None:
        """These are nodes of the results of a call that is paused."""
        with LOCK:
            self._promised = nodes
            self._hand_out()  # another thread may have carried it on meanwhile

    def _let_go(self) -> None:
        """Of those who wait, each lets the next one go. Twice is harmless: an end that is interrupted is made again."""
        with contextlib.suppress(RuntimeError):
            self._end_of_call.release()

    def _after(self, candidate: Candidate) -> Any:
        """What the old node of a candidate holds when the program has run."""
        return self.progress.results[candidate.heir] if candidate.gone is None else candidate.gone

    def _hand_out(self) -> None:
        progress = self.progress
        if progress.paused:
            return
        for candidate, node, buffer in self._held:
            if node.value is self:
                node.value = self._after(candidate) if progress.finished else buffer
        for node, buffer in zip(self._promised, progress.results, strict=False):
            if node.value is self:
                node.value = buffer
        if self._promised or self._paused is not None:
            self._promised, self._held = (), []
            self._paused, self._ended = None, True
