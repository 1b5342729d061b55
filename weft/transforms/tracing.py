"""Tracing a function for compile: it runs once on placeholders for arrays and stand-ins for numbers, and what it did
becomes a variant. Whatever happens, the caller's objects are as before afterwards."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from weft import tree
from weft.array import array
from weft.evaluate import LOCK, Lent
from weft.graph.node import Kind, Node, next_id, reachable
from weft.graph.scalars import Scalars
from weft.graph.trace import changes, finishing, trace
from weft.primitives.base import Placeholder
from weft.runtime.data import Buffer
from weft.transforms import state
from weft.transforms.capture import Walk
from weft.transforms.replay import Recorder
from weft.transforms.turns import RANDOM_STATE, surely
from weft.transforms.updating import Search, Updates
from weft.transforms.variant import Effects, ShapelessVariant, SymbolicSizes, Trace, Variant, fixed_program


class Snapshot:
    """The caller's places and arrays before a trace, to be put back after it."""

    __slots__ = ("nodes", "places")

    def __init__(self, walk: Walk) -> None:
        self.places = [(place, state.read(place)) for place in walk.containers]
        self.nodes = [(a, a._node) for a in walk.arrays]

    def stored(self) -> list[array]:
        """The arrays in places that do not hold what they held (but for the global random state)."""
        places = [(place, before, state.read(place)) for place, before in self.places if place is not RANDOM_STATE[0]]
        changed = [now for _, before, now in places if not state.same(before, now)]
        return [x for now in changed for x in tree.leaves(now) if isinstance(x, array)]

    def restore(self, others: Sequence[bool] | None = None) -> None:
        """Put all back, but for the arrays that other threads have overwritten meanwhile. A place that refuses keeps
        none of the others from it."""
        for at, (a, node) in enumerate(self.nodes):
            if others is None or not others[at]:
                a._node = node
        each([functools.partial(_restore, place, before) for place, before in self.places])


def _restore(place: Any, before: Any) -> None:
    if not state.same(before, state.read(place)):
        state.write(place, before)


def each(steps: Iterable[Callable[[], None]]) -> None:
    """Take all steps, whatever one of them raises; the first error is raised at the end."""
    raised: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:
            raised = raised or error
    if raised is not None:
        raise raised


class Overwritten(Exception):
    """Another thread has overwritten an array with which a function is being traced."""


class StandIns:
    """Puts scalars where the numbers of a call stand: into the caller's own containers, and into new tuples."""

    def __init__(self, walk: Walk, scalars: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, dict(kwargs)
        self._undo: list[tuple[Any, Any, Any]] = []
        self._given = (args, kwargs)
        self._tuples: dict[int, list[Any]] = {}
        self._originals: list[tuple[Any, Any]] = []
        try:
            self._replace(walk, scalars)
        except BaseException:
            self.remove()
            raise
        if id(args) in self._tuples:
            self.args = tuple(self._tuples[id(args)])

    def _replace(self, walk: Walk, scalars: Sequence[Any]) -> None:
        for (holder, name), old, new in zip(walk.places, walk.scalars, scalars, strict=True):
            if new is not None:
                self._put(holder, name, old, new)
        repeats: dict[int, list[tuple[Any, Any]]] = {}
        for value, holder, name in walk.repeats:
            repeats.setdefault(id(value), []).append((holder, name))
        for key in reversed(walk.tuples):  # inner ones were seen after those that hold them
            if key in self._tuples:
                value, holder, name = walk.tuples[key]
                made = tuple.__new__(type(value), self._tuples[key])
                if hasattr(value, "__dict__"):
                    vars(made).update(vars(value))
                self._originals.append((made, value))
                for where, at in [(holder, name), *repeats.get(key, ())]:
                    self._put(where, at, value, made)

    def _put(self, holder: Any, name: Any, old: Any, new: Any) -> None:
        if holder is self._given[1]:
            self.kwargs[name] = new
        elif isinstance(holder, tuple):
            self._tuples.setdefault(id(holder), list(holder))[name] = new
        elif holder is not None:
            self._undo.append((holder, name, old))
            state.set_item(holder, name, new)

    def tuples_seen(self, walk: Walk) -> dict[int, int]:
        """For the tuples that stand in for others: the numbers of those others in the walk, by id."""
        return {id(made): walk.seen[id(value)] for made, value in self._originals}

    def remove(self) -> None:
        """Put the numbers back. Lists are the snapshot's: in one that the function has made shorter, what stood at a
        place stands elsewhere now, or nowhere."""
        undo = [entry for entry in reversed(self._undo) if not isinstance(entry[0], list)]
        each([functools.partial(state.set_item, *entry) for entry in undo])


class Attempt:
    """One call of a function, to be traced."""

    def __init__(
        self,
        fun: Callable[..., Any],
        walk: Walk,
        buffers: Sequence[Buffer],
        kinds: Sequence[Kind],
        symbolic: int,
        trusting: bool = False,
    ) -> None:
        self.fun, self.walk, self.buffers = fun, walk, buffers
        self.name = _named(fun)
        self.kinds, self.symbolic = kinds, symbolic
        self.trusting = trusting
        """Whether all that happens to the arrays is taken for the function's doing."""

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], fixed: set[int]
    ) -> tuple[Variant | str, Sequence[int]]:
        """The trace (or why there is none), and the numbers that it holds for as they are. Those in `fixed` are plain
        numbers from the start."""
        walk = self.walk
        snapshot = Snapshot(walk)
        scalars, sizes = Scalars(walk.scalars), SymbolicSizes()
        kinds = [sizes.kind(i, kind) if i < self.symbolic else kind for i, kind in enumerate(self.kinds)]
        over, noted = threading.Event(), changes()
        inputs: list[Node] = [Lent(node, kind, over) for (_, node), kind in zip(snapshot.nodes, kinds, strict=True)]
        stand_ins = None
        try:
            leaves = [None if i in fixed else scalar for i, scalar in enumerate(scalars.leaves)]
            stand_ins = StandIns(walk, leaves, args, kwargs)
            before = [state.read(place) for place in walk.containers]
            first = next_id()
            for a, node in zip(walk.arrays, inputs, strict=True):
                a._node = node
            with trace():
                with finishing("compile"), noted:
                    value = self.fun(*stand_ins.args, **stand_ins.kwargs)
                if any(self._overwritten_by_others(inputs, noted)):
                    raise Overwritten
                recorder = Recorder(self.name, walk, scalars, first, stand_ins.tuples_seen(walk))
                made = self._record(value, before, inputs, recorder, sizes if sizes.places else None)
            return made, sorted({*fixed, *scalars.by_value})
        finally:
            try:  # while sizes may still be read: they may be keys of dicts
                surely(lambda: self._put_back(snapshot, stand_ins, inputs, noted))
            finally:
                over.set()
                scalars.closed = True
                sizes.env.close()

    def _put_back(self, snapshot: Snapshot, stand_ins: StandIns | None, inputs: Sequence[Node], noted: changes) -> None:
        others = self._overwritten_by_others(inputs, noted)
        if any(others):
            for node in inputs:
                node.for_all()  # type: ignore[attr-defined]
        each([stand_ins.remove if stand_ins is not None else lambda: None, lambda: snapshot.restore(others)])

    def _overwritten_by_others(self, inputs: Sequence[Node], noted: changes) -> list[bool]:
        """Of each array: whether it is not what this thread, which takes note of what it overwrites, has left."""
        if self.trusting:
            return [False] * len(inputs)
        ours = {id(found()) for found, _, _ in noted.found}
        return [a._node is not node and id(a) not in ours for a, node in zip(self.walk.arrays, inputs, strict=True)]

    def _record(
        self,
        value: Any,
        before: Sequence[Any],
        inputs: list[Node],
        recorder: Recorder,
        sizes: SymbolicSizes | None,
    ) -> Variant | str:
        """What the traced function returned and changed, as a variant."""
        walk = self.walk
        result = recorder.template(value)
        overwritten = [
            (i, recorder.output(a._node))
            for i, (a, node) in enumerate(zip(walk.arrays, inputs, strict=True))
            if a._node is not node
        ]
        changed = self._changed(before)
        places = [(i, recorder.contents(after)) for i, after in changed]
        effects = Effects(result, overwritten, places, recorder.all_new)
        numbered = {id(node): i for i, node in enumerate(inputs)}
        with LOCK:  # another thread that evaluates what the trace has reached would make it data behind our back
            order = reachable(recorder.outputs)
            sources: list[int | Buffer] = []
            for node in order:
                if id(node) in numbered:
                    sources.append(numbered[id(node)])
                elif isinstance(node.value, Buffer):
                    if node.id < recorder.first:
                        return "an array in a way that compile cannot follow"
                    sources.append(node.value)
            updates = Search(walk, [node.kind for node in inputs], recorder).run(before, changed, overwritten, sources)
            traced = Trace(order, recorder.outputs, sources)
            return self._variant(traced, effects, numbered, recorder.scalars, sizes, updates)

    def _variant(
        self,
        traced: Trace,
        effects: Effects,
        numbered: dict[int, int],
        scalars: Scalars,
        sizes: SymbolicSizes | None,
        updates: Updates,
    ) -> Variant:
        """The program is made while the trace is open: whoever reads a number there makes it part of the trace."""
        wants = [(scalars.want(c.scalar), c.dtype) for c in traced.constants]
        numbers = scalars.compiled() if scalars.leaves else None
        if sizes is None:
            program = fixed_program(traced, self.buffers, numbered)
            return Variant(traced, effects, numbers, wants, updates).program(program)
        made = ShapelessVariant(traced, effects, numbers, wants, updates, sizes)
        made.recipe_for(self.kinds)
        return made

    def _changed(self, before: Sequence[Any]) -> list[tuple[int, Any]]:
        """(number, contents) of places that do not hold what they held."""
        places = self.walk.containers
        whole = {id(place) for place in places}
        found = []
        for i, (place, old) in enumerate(zip(places, before, strict=True)):
            if isinstance(place, state.Appended) and id(place.target) in whole:
                continue  # somebody else looks at all of this list
            now = state.read(place)
            if state.same(old, now):
                continue
            if isinstance(place, np.ndarray):
                raise ValueError(
                    f"[compile] {self.name} writes into a NumPy array, which a compiled function could not do again at "
                    "each call: use an array of Weft, or do this outside."
                )
            found.append((i, now))
        return found


def _named(fun: Callable[..., Any]) -> str:
    """A function in an error: what it is called, and where it is."""
    name = getattr(fun, "__name__", "the function")
    code = getattr(inspect.unwrap(fun), "__code__", None)
    return name if code is None else f"{name} (at {code.co_filename}:{code.co_firstlineno})"


def placeholders(walk: Walk, transform: str) -> list[Node]:
    """Make the arrays of a walk placeholders of a transform."""
    inputs = [Node(Placeholder(transform), (), a._node.kind) for a in walk.arrays]
    for a, node in zip(walk.arrays, inputs, strict=True):
        a._node = node
    return inputs
