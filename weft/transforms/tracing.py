"""Tracing a function for compile: it runs once on placeholders for arrays and stand-ins for numbers, and what it did
becomes a variant.

Arrays are left alone: what stands for their nodes is in an overlay that only this thread sees (graph/overlay.py), as is
the random state. Containers are the caller's own, because the function changes them itself; whatever happens, they are
as before when the trace is over.
"""

from __future__ import annotations

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import tree
from weft.array import array, wrap
from weft.evaluate import LOCK, TraceInput
from weft.graph.dims import hint_of
from weft.graph.node import ArrayType, Node, next_id, reachable
from weft.graph.overlay import HERE, Overlay, Running
from weft.graph.scalars import Scalars
from weft.graph.trace import finishing, trace
from weft.lazy import lazy
from weft.primitives.filling import fill_kind
from weft.runtime.data import Buffer
from weft.transforms import state
from weft.transforms.bodies import OWN
from weft.transforms.capture import Walk
from weft.transforms.computed import CURRENT, CallSizes, Computed
from weft.transforms.drawing import DRAWING, RANDOM_STATE
from weft.transforms.replay import Recorder
from weft.transforms.updating import Search, Updates
from weft.transforms.variant import Effects, ShapelessVariant, SymbolicSizes, Trace, Variant, closed, fixed_program

if TYPE_CHECKING:
    from weft.transforms import cut
else:
    cut = lazy("weft.transforms.cut")

DRAWS = "the global random state"
"""Why there is no trace of a function that draws random numbers, if that could not be seen."""

THREADS = "a thread that it starts"
"""Why there is no trace of a function that starts a thread: that one sees arrays as they are."""


class Snapshot:
    """What the caller's places hold before a trace, to be put back after it; and which places those are, for other
    threads."""

    __slots__ = ("done", "owners", "places", "running", "stand_ins", "started", "thread")

    def __init__(self, walk: Walk) -> None:
        self.done = False
        self.thread = threading.get_ident()
        self.owners = owners_of(walk.containers)
        drawn = None if walk.reaches_random else RANDOM_STATE[0]
        self.places = [(place, state.read(place)) for place in walk.containers if place is not drawn]
        self.stand_ins: StandIns | None = None
        self.running = Running(self.replaced)
        self.started = False
        """Whether the function has started a thread, which sees no trace."""

    def stored(self) -> list[array]:
        """The arrays in places that do not hold what they held."""
        places = [(before, state.read(place)) for place, before in self.places]
        changed = [now for before, now in places if not state.same(before, now)]
        return [x for now in changed for x in tree.leaves(now) if isinstance(x, array)]

    def replaced(self) -> list[tuple[array, Node]]:
        """The arrays that stand where others of the same kind stood, with the nodes of the others."""
        found: list[tuple[array, Node]] = []
        for place, before in self.places:
            now = state.read(place)
            for name, old in before.items() if isinstance(before, dict) else enumerate(before):
                new = _at(now, name)
                if new is not old and isinstance(new, array) and isinstance(old, array):
                    kind, there = new._node.kind, old._node
                    if fill_kind(kind, hint_of) is there.kind:
                        found.append((new, there))
        return found

    def restore(self) -> None:
        """Put all back, once. A place that refuses, or a signal's handler that raises, keeps no other from it."""
        if not self.done:
            steps = [self.running.keep]
            if self.stand_ins is not None:
                steps.append(self.stand_ins.remove)
            each([*steps, *[functools.partial(_restore, place, before) for place, before in self.places]])
            self.done, self.stand_ins, self.places = True, None, []  # all of which hold the caller's arrays

    def __del__(self) -> None:
        if not getattr(self, "done", True):  # Ctrl-C has struck where nothing else could do it
            self.restore()


def owners_of(containers: Iterable[Any]) -> set[Any]:
    """What a trace changes if it changes these places, as keys: two places may look at one object."""
    found: set[Any] = set()
    for place in containers:
        if place is RANDOM_STATE[0]:
            continue
        if isinstance(place, state.Globals):
            found.update([(id(place.scope), name) for name in place.names])
        else:
            found.add(id(place.target) if isinstance(place, state.Appended) else id(state.owner_of(place)))
    return found


def _at(contents: Any, name: Any) -> Any:
    if isinstance(contents, dict):
        return contents.get(name)
    return contents[name] if isinstance(contents, list) and name < len(contents) else None


def _restore(place: Any, before: Any) -> None:
    if not state.same(before, state.read(place)):
        state.write(place, before)


def each(steps: Iterable[Callable[[], None]]) -> None:
    """Take all steps, each of which can be taken twice, whatever they raise; the first error is raised at the end."""
    raised: BaseException | None = None
    for step in steps:
        for _ in range(2):
            try:
                step()
                break
            except BaseException as error:
                raised = raised or error
    if raised is not None:
        raise raised


# ---- traces in other threads ----

_lock = threading.Lock()
TRACES: list[Snapshot] = []
"""The traces that run now, in all threads."""


def is_traced_elsewhere(walk: Walk) -> bool:
    """Whether another thread traces a function that may change what a call sees."""
    seen, mine = owners_of(walk.containers), threading.get_ident()
    return any(not other.owners.isdisjoint(seen) for other in [*TRACES] if other.thread != mine)


def _opened(walk: Walk) -> Snapshot | None:
    """The caller's places, for a trace that may change them; None while another thread has some of them."""
    with _lock:
        if is_traced_elsewhere(walk):
            return None
        snapshot = Snapshot(walk)
        TRACES.append(snapshot)
        _watch_threads()
        return snapshot


def _closed(snapshot: Snapshot) -> None:
    try:
        snapshot.restore()
    finally:
        with _lock:
            TRACES[:] = [other for other in TRACES if other is not snapshot]
            _watch_threads()


_start: list[Any] = [None]
"""What starts a thread, while we have ours there."""


def _watch_threads() -> None:
    """While there are traces, it is noted whether a function that is traced starts a thread, be it in a package that
    nothing else is known of."""
    if TRACES and threading.Thread.start is not _noted_start:
        _start[0], threading.Thread.start = threading.Thread.start, _noted_start  # type: ignore[assignment, method-assign]
    elif not TRACES and threading.Thread.start is _noted_start:
        threading.Thread.start = _start[0]  # type: ignore[method-assign]


def _noted_start(thread: threading.Thread) -> None:
    """Start a thread. (Those of ours run no code of the function's.)"""
    for snapshot in [*TRACES]:
        if snapshot.thread == threading.get_ident() and not thread.name.startswith("weft "):
            snapshot.started = True
    _start[0](thread)


def _after_fork() -> None:
    """A child has none of the other threads: what those were about to put back is put back here."""
    global _lock
    _lock = threading.Lock()
    for snapshot in [*TRACES]:
        if snapshot.thread != threading.get_ident():
            _closed(snapshot)
    _watch_threads()


os.register_at_fork(after_in_child=_after_fork)


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


class RandomState:
    """The random state of a trace: a list of its own, which stands for the global one. A function that reaches the
    global list itself has that; no other thread draws meanwhile."""

    __slots__ = ("number", "own", "param", "place", "state")

    def __init__(self, walk: Walk, running: Running) -> None:
        self.place = next((i for i, place in enumerate(walk.containers) if place is RANDOM_STATE[0]), None)
        """Its number among the places of the walk, if that has come to it."""
        self.number = walk.seen.get(id(walk.random[0])) if self.place is not None and walk.random else None
        """The number of its array."""
        self.own, self.param = [], None
        if walk.random:
            origin = walk.random[0]._node
            self.param = TraceInput(running, origin, origin.kind)
            self.own = [wrap(self.param)]
        self.state: list[array] | None = None if walk.reaches_random else self.own

    def was_drawn(self) -> bool:
        """Whether the function has drawn from the list of its own."""
        return self.state is not None and [x._node for x in self.own] != ([] if self.param is None else [self.param])


class Attempt:
    """One call of a function, to be traced."""

    def __init__(
        self, fun: Callable[..., Any], walk: Walk, buffers: Sequence[Buffer], kinds: Sequence[ArrayType], symbolic: int
    ) -> None:
        self.fun, self.walk, self.buffers = fun, walk, buffers
        self.name = _named(fun)
        self.kinds, self.symbolic = kinds, symbolic

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], fixed: set[int]
    ) -> tuple[Variant | str, Sequence[int]] | None:
        """The trace (or why there is none), and the numbers that it holds for as they are. Those in `fixed` are plain
        numbers from the start. None while another thread traces a function that may change what this one sees."""
        if self.walk.reaches_random:
            with DRAWING:
                return self._run(args, kwargs, fixed)
        return self._run(args, kwargs, fixed)

    def _run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], fixed: set[int]
    ) -> tuple[Variant | str, Sequence[int]] | None:
        snapshot = _opened(self.walk)
        if snapshot is None:
            return None
        running = snapshot.running
        scalars, sizes = Scalars(self.walk.scalars, running), SymbolicSizes()
        computed = CallSizes(sizes.env)
        try:
            with trace():
                recorded = self._recorded(args, kwargs, fixed, snapshot, running, scalars, sizes, computed)
                if snapshot.started:
                    recorded = THREADS
                made = recorded if isinstance(recorded, str) else recorded()
            return made, sorted({*fixed, *scalars.by_value})
        finally:
            try:  # while sizes may still be read: they may be keys of dicts
                _closed(snapshot)
            finally:
                running.over = scalars.closed = True
                sizes.env.close()

    def _recorded(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        fixed: set[int],
        snapshot: Snapshot,
        running: Running,
        scalars: Scalars,
        sizes: SymbolicSizes,
        computed: CallSizes,
    ) -> Callable[[], Variant] | str:
        """Run the function and record what it did; the rest of the work is left for when the caller's places have been
        put back."""
        walk = self.walk
        kinds = [sizes.kind(i, kind) if i < self.symbolic else kind for i, kind in enumerate(self.kinds)]
        inputs: list[Node] = [TraceInput(running, node, kind) for node, kind in zip(walk.nodes, kinds, strict=True)]
        overlay, random = Overlay(walk.arrays, inputs), RandomState(walk, running)
        leaves = [None if i in fixed else scalar for i, scalar in enumerate(scalars.leaves)]
        outer, around, outside = HERE.overlay, OWN.state, CURRENT.sizes
        try:
            stand_ins = snapshot.stand_ins = StandIns(walk, leaves, args, kwargs)
            before = [state.read(place) for place in walk.containers]
            first = next_id()
            HERE.overlay, OWN.state, CURRENT.sizes = overlay, random.state, computed
            with finishing("compile"):
                value = self.fun(*stand_ins.args, **stand_ins.kwargs)
            recorder = Recorder(self.name, walk, scalars, first, stand_ins.tuples_seen(walk))
            return self._record(value, before, inputs, overlay, random, recorder, sizes, computed.found)
        finally:
            HERE.overlay = outer
            OWN.state = around
            CURRENT.sizes = outside
            overlay.close()
            snapshot.restore()

    def _record(
        self,
        value: Any,
        before: Sequence[Any],
        inputs: list[Node],
        overlay: Overlay,
        random: RandomState,
        recorder: Recorder,
        sizes: SymbolicSizes,
        computed: Sequence[Computed],
    ) -> Callable[[], Variant] | str:
        """What the traced function returned and changed, and what is left to do to make a variant of it."""
        walk = self.walk
        if random.was_drawn() and random.number is None:
            return DRAWS
        result = recorder.template(value)
        overwritten = [
            (i, recorder.output(a._node))
            for i, (a, node) in enumerate(zip(walk.arrays, inputs, strict=True))
            if a._node is not node
        ]
        changed = self._changed(before, random)
        places = [(i, recorder.contents(after)) for i, after in changed]
        effects = Effects(result, overwritten, places, recorder.all_new)
        numbered = {id(node): i for i, node in enumerate(inputs)}
        if random.number is not None:
            numbered[id(random.param)] = random.number
        with LOCK:  # another thread that evaluates what the trace has reached would make it data behind our back
            outputs = [*recorder.outputs, *[size.node for size in computed]]
            order = reachable(outputs)
            sources: list[int | Buffer] = []
            for node in order:
                if id(node) in numbered:
                    sources.append(numbered[id(node)])
                elif isinstance(node.value, Buffer):
                    if node.id < recorder.first:
                        return "an array in a way that compile cannot follow"
                    sources.append(node.value)
            if overlay.strangers:
                return "an array in a way that compile cannot follow"
            updates = Search(walk, [node.kind for node in inputs], recorder).run(before, changed, overwritten, sources)
            traced = Trace(order, outputs, sources)
            if computed:
                return functools.partial(self._cut, traced.copy(), effects, recorder.scalars, sizes, computed)
            graph = traced.copy() if sizes.places else closed(traced, self.buffers, numbered)
        open_ = sizes if sizes.places else None
        return functools.partial(self._variant, traced, graph, effects, recorder.scalars, open_, updates)

    def _cut(
        self, graph: Trace, effects: Effects, scalars: Scalars, sizes: SymbolicSizes, computed: Sequence[Computed]
    ) -> Variant:
        """A trace that computes sizes."""
        wants = [(scalars.want(c.scalar), c.dtype) for c in graph.constants]
        numbers = scalars.compiled() if scalars.leaves else None
        made = cut.CutVariant(graph, effects, numbers, wants, sizes, computed, len(self.kinds))
        given = () if numbers is None else numbers(*self.walk.scalars)
        made.recipe_for(self.kinds, self.buffers, given or ())
        return made

    def _variant(
        self,
        traced: Trace,
        graph: Any,
        effects: Effects,
        scalars: Scalars,
        sizes: SymbolicSizes | None,
        updates: Updates,
    ) -> Variant:
        """The program is made while the trace is open: whoever reads a number there makes it part of the trace."""
        wants = [(scalars.want(c.scalar), c.dtype) for c in traced.constants]
        numbers = scalars.compiled() if scalars.leaves else None
        if sizes is None:
            program = fixed_program(traced, *graph)
            return Variant(traced, effects, numbers, wants, updates).program(program)
        made = ShapelessVariant(graph, effects, numbers, wants, updates, sizes)
        made.recipe_for(self.kinds)
        return made

    def _changed(self, before: Sequence[Any], random: RandomState) -> list[tuple[int, Any]]:
        """(number, contents) of places that do not hold what they held."""
        places = self.walk.containers
        whole = {id(place) for place in places}
        found = []
        for i, (place, old) in enumerate(zip(places, before, strict=True)):
            if isinstance(place, state.Appended) and id(place.target) in whole:
                continue  # another place is all of this list
            if i == random.place and random.state is not None:
                now = random.own if random.was_drawn() else old
            else:
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
