"""State that a compiled function updates in place: which of its inputs a call may overwrite, and who must not notice.

A trace knows what the function changes. An array that it overwrites (`x[i] = v`, `x += 1`), or that stood in places
that it gives another value (`cache.keys = ...`, `state["k"] = ...`), is a *candidate*: its old value dies with the call
if nobody else holds it. Who does is counted at each call, as evaluation counts for arrays that it donates. Candidates
of which every reference is explained are *claimed* and the program runs over their memory. Other threads that come upon
a claimed array wait until it has its new value; a signal's handler or a finalizer that strikes in the middle of the
call gets the value that there is: the new one, or the old one, and then the call makes a copy.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

from weft.array import array
from weft.evaluate import LOCK, is_large
from weft.graph.node import Kind, Node
from weft.passes.memory import Plan
from weft.passes.pipeline import plan_over
from weft.runtime.data import COUNTED, Buffer, Busy, Taken, owners
from weft.runtime.program import Progress
from weft.transforms import state
from weft.transforms.capture import Walk
from weft.transforms.replay import Recorder

MOST_SETS = 8
"""Sets of inputs to overwrite that one program is planned for; with others it overwrites nothing."""

# ---- what a trace may overwrite ----


class Slot(NamedTuple):
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


class Updates(NamedTuple):
    """What a trace found."""

    candidates: tuple[Candidate, ...]
    slots: dict[int, list[Slot]]
    """By number in the walk, arrays and (with ~) objects: the slots in which they stood, all of which are replaced."""
    refused: dict[int, str]
    """By number of the array: why inputs are not candidates."""


NOTHING = Updates((), {}, {})


class Search:
    """Looks for candidates in what a traced function did."""

    def __init__(self, walk: Walk, kinds: Sequence[Kind], recorder: Recorder) -> None:
        self.walk, self.kinds, self.recorder = walk, kinds, recorder
        self.slots: dict[int, list[Slot]] = {}
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
            replaced = heir is None
            if heir is None:
                heir = self.recorder.output(self.heirs[number]._node)  # type: ignore[union-attr]
            found.append(Candidate(number, leaf, heir, replaced))
        return Updates(tuple(found), self.slots, refused)

    def _follow(self, holder: int, name: Any, old: Any, new: Any) -> None:
        """Something that a slot held and does not hold now. A container of Python's own that was in it goes with it,
        unless it stands elsewhere, and with it what it holds."""
        number = self.recorder.seen.get(id(old))
        if number is None or old is new:
            return
        first = number not in self.slots
        if old.__class__ is array:
            self.slots.setdefault(number, []).append(Slot(holder, name))
            if self.heirs.get(number) is None:
                self.heirs[number] = new if new.__class__ is array and id(new) not in self.recorder.seen else None
        elif old.__class__ in (tuple, list, dict) and number not in self.recorder.kept:
            if id(old) in self._changed:
                return  # what it holds is written anew in any case
            self.slots.setdefault(number, []).append(Slot(holder, name))
            if first:
                for inner, value in _named(old, old):
                    self._follow(number, inner, value, _counterpart(new, inner))

    def _why_not(self, number: int, output: int | None) -> str | None:
        """Why an input is no candidate."""
        if output is not None:
            heir = self.recorder.outputs[output]
        elif number not in self.slots:
            return "the function does not replace it"
        elif number in self.recorder.kept:
            return "the function returns its old value, or keeps it elsewhere"
        elif (made := self.heirs[number]) is None:
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


LOOPS = "the program has a loop, which can be interrupted midway"


def worth_while(updates: Updates, made: Plan) -> Updates:
    """The candidates that the program would overwrite if it may. One that can fail or stop midway overwrites
    nothing."""
    if not updates.candidates or not COUNTED:
        return updates._replace(candidates=())
    if any(item.code is not None or any(launch.call for launch in item.launches) for item in made.items):
        refused = dict.fromkeys([c.array for c in updates.candidates], LOOPS)
        return updates._replace(candidates=(), refused={**updates.refused, **refused})
    spent = set(plan_over(made, [c.leaf for c in updates.candidates]).spent)
    useless = [c.array for c in updates.candidates if c.leaf not in spent]
    why = "it is read after, or in another order than, anything of its size is written"
    return updates._replace(
        candidates=tuple([c for c in updates.candidates if c.leaf in spent]),
        refused={**updates.refused, **dict.fromkeys(useless, why)},
    )


# ---- who holds an old value at a call ----


class Census:
    """Counts the holders of what a call is about to replace."""

    def __init__(self, slots: dict[int, list[Slot]], walk: Walk) -> None:
        self.slots, self.walk = slots, walk
        for ours in (walk.tuples, walk.places, walk.repeats, walk.nodes):  # for a trace only, and they hold objects
            ours.clear()  # type: ignore[attr-defined]
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
        value = walk.arrays[number] if number >= 0 else walk.objects[~number]
        found = set()
        for holder, name in self.slots[number]:
            if holder < 0 and not self.goes(holder):
                continue
            place = walk.containers[holder] if holder >= 0 else walk.objects[~holder]
            if state.get_item(place, name) is value:
                found.add((id(state.owner_of(place)), name))
        # Beside the variable here, a list of the walk holds it; lists and dicts are among its containers too.
        ours = 3 if value.__class__ in (list, dict) else 2
        return owners((value,)) == [len(found) + ours]


class _Cancelled(Exception):
    """Somebody asked for the old values before the program began."""


class _Progress(Progress):
    """How far a run came, which can be called off until it begins."""

    __slots__ = ("_given", "cancelled")

    def __init__(self) -> None:
        super().__init__()
        self._given: list[tuple[int, ...]] = []
        self.cancelled = False

    def follow(self, execute: Callable[..., int], arguments: tuple[int, ...]) -> int:
        self._given.append(arguments)
        if self.cancelled:
            raise _Cancelled
        self._statuses.extend(itertools.starmap(execute, self._given))  # one step of Python's: `cancel` comes before it
        self._given.clear()
        if not self._statuses:
            raise _Cancelled
        return self._statuses[-1]

    def cancel(self) -> None:
        self.cancelled = True
        self._given.clear()


class Claim(Taken):
    """The arrays that a call is about to overwrite. Their nodes hold this in place of a buffer until the call has new
    values for them."""

    __slots__ = ("_held", "progress")

    def __init__(self, held: list[tuple[Node, Buffer, int]]) -> None:
        super().__init__()
        self._held = held
        """Nodes, what they held, and the outputs that take their place."""
        self.progress = _Progress()

    def take(self) -> None:
        """From now on nobody gets hold of the buffers."""
        for node, buffer, _ in self._held:
            if node.value is buffer:
                node.value = self

    def give_back(self, which: Sequence[int]) -> None:
        """Some of them are not free."""
        for i in sorted(which, reverse=True):
            node, buffer, _ = self._held.pop(i)
            if node.value is self:
                node.value = buffer

    def unexplained(self) -> list[str | None]:
        """For each of them: who else holds it."""
        nodes = owners([node for node, _, _ in self._held])
        buffers = owners([buffer for _, buffer, _ in self._held])
        storages = owners([buffer.storage for _, buffer, _ in self._held])
        found: list[str | None] = []
        for (node, _, _), of_node, of_buffer, of_storage in zip(self._held, nodes, buffers, storages, strict=True):
            if node.value is not self:
                found.append("another call is about to overwrite it")
            elif of_node != 2:  # its array's, and ours
                found.append("another array has the same value, or something that is not computed yet reads it")
            elif of_buffer != 2:  # the call's, and ours
                found.append("somebody else looks at its memory (NumPy, DLPack, another call or evaluation)")
            else:
                found.append(None if of_storage == 1 else "a view shares its memory")
        return found

    def refuse(self) -> NoReturn:
        """Whoever asks for a value here waits (`wait`), and gets one, unless the program failed midway."""
        if self._ended:
            super().refuse()
        if self._done is None:
            self._done = _closed_lock()
        raise Busy(self)

    def wait(self) -> None:
        if not self.is_mine():
            super().wait()
            return
        # A signal's handler, a finalizer: the call goes on when they are done, and may not wait for it.
        if not self.progress.started:
            self.progress.cancel()
        with LOCK:
            self._hand_out()

    def end(self) -> None:
        """The call has what it needs, or nothing has happened."""
        with LOCK:
            self._hand_out()
            super().end()

    def _hand_out(self) -> None:
        progress = self.progress
        if progress.started and not progress.finished:
            return  # lost
        for node, buffer, heir in self._held:
            if node.value is self:
                node.value = progress.results[heir] if progress.finished else buffer


def claimed(updates: Updates, buffers: Sequence[Buffer], walk: Walk) -> tuple[Claim, list[Candidate]]:
    """The candidates of a call that are large, not taken yet."""
    chosen = [c for c in updates.candidates if is_large(buffers[c.array])]
    walk.nodes.clear()
    return Claim([(walk.arrays[c.array]._node, buffers[c.array], c.heir) for c in chosen]), chosen
