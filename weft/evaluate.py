"""Evaluation: the nodes behind the user's arrays become a graph, the graph a program (looked up by its structure), the
program values.

The structural key holds operations, kinds, which node reads which, the layout of the leaves, which nodes are results,
and which are for another device than the host's CPU. It holds no numbers: constants are run-time words. A node is a
result if it was asked for or if a live array of the user's still refers to it, so nothing is computed twice and nothing
else is kept.

Memory is used again where nobody can tell. A leaf whose only holders are nodes that this evaluation computes is
*donated*: the program may overwrite it (which leaves are is part of the key). Slices of computed data are found, and
slice updates of it written, without a program that knows where they begin: `cache[i] = v` costs what `v` costs.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from weft.config import config
from weft.errors import ComputationError
from weft.graph.dims import hint_of
from weft.graph.kept import kept_elsewhere
from weft.graph.lines import inherit, locate, marked
from weft.graph.node import Graph, Kind, Node, Tape, handles, has_handle, node_of, reachable
from weft.graph.overlay import Foreign, Running
from weft.graph.placement import USED, device_of
from weft.graph.trace import OPEN, following, keeps_inputs, traced_elsewhere, unknown_value
from weft.lazy import lazy
from weft.primitives.base import (
    DATA,
    Bundled,
    Constant,
    ConstantValue,
    Parameter,
    Pick,
    Placeholder,
    RunTimeConstant,
    bind,
    constant,
)
from weft.primitives.filling import fill_kind, fill_primitive
from weft.primitives.views import Slice, SliceUpdate
from weft.runtime.data import Buffer, Busy, Taken, is_whole, moved
from weft.runtime.holders import BASE, COUNTED, LEAF, OPERAND, free
from weft.runtime.program import Cancelled, Progress

if TYPE_CHECKING:
    from weft import reference, targets
    from weft.passes import families, pipeline, template, views
    from weft.passes.executable import Executable
    from weft.passes.families import Family
    from weft.targets import copies
else:
    reference, targets, copies = lazy("weft.reference"), lazy("weft.targets"), lazy("weft.targets.copies")
    families, pipeline = lazy("weft.passes.families"), lazy("weft.passes.pipeline")
    template, views = lazy("weft.passes.template"), lazy("weft.passes.views")

if config.compare:
    import weft.checking  # noqa: F401  (it puts itself around all programs; others need not wait for it)

WINDOW = 1024
"""Nodes planned together. A deeper graph is evaluated in windows, which share programs where they look alike."""
LEAST_DONATED = 1 << 18
"""Bytes of a leaf that is worth asking who holds it, which takes some microseconds. Smaller results get a block of the
pool's that is in the caches already."""

PATIENCE = 60.0
"""Seconds that a thread waits for another one that differentiates by the same container."""

_by_id = attrgetter("id")
LOCK = threading.RLock()
"""Held while nodes are looked at to be evaluated, and while they get values. A thread that has it may come in again: by
a signal's handler or a finalizer that evaluates something (`_Disturbed`)."""
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)


class Recipe:
    """An executable for one structure, and where its constants come from: the position among the structure's constants,
    or fixed words."""

    __slots__ = ("executable", "in_order", "large", "sources", "spent")

    def __init__(self, executable: Executable, given: Sequence[ConstantValue]) -> None:
        position = {id(value): i for i, value in enumerate(given)}
        self.executable = executable
        self.large = COUNTED and executable.largest >= LEAST_DONATED
        """Whether some leaf is worth donating."""
        self.spent: Sequence[int] = executable.spent
        """The leaves that a run overwrites."""
        self.sources: list[tuple[int | None, tuple[int, ...]]] = [
            (value.position, ())
            if isinstance(value, template.Given)
            else (position[id(value)], ())
            if id(value) in position
            else (None, value.words)
            for value in executable.constants
        ]
        self.in_order = [at for at, _ in self.sources] == list(range(len(given)))
        """Whether the program reads all of the structure's constants, in their order: the usual case, and the fast
        one."""

    def run(self, leaves: Sequence[Buffer], constants: Sequence[ConstantValue]) -> list[Buffer]:
        return self.executable.run(leaves, self.words(constants) if self.sources else ())

    def run_in_place(
        self, leaves: Sequence[Buffer], constants: Sequence[ConstantValue], progress: Progress
    ) -> list[Buffer]:
        return self.executable.run_in_place(leaves, self.words(constants), progress)

    def words(self, given: Sequence[ConstantValue]) -> list[int]:
        if self.in_order:
            return [word for value in given for word in value.words]
        words: list[int] = []
        for position, fixed in self.sources:
            words.extend(fixed if position is None else given[position].words)
        return words


class ReferenceRecipe(Recipe):
    """The same nodes by the reference back end. It has a graph of its own, because other threads may evaluate the nodes
    meanwhile, and cut them from their inputs."""

    __slots__ = ("graph",)

    def __init__(self, order: list[Node], results: list[Node]) -> None:
        self.graph, _ = close(order, results)
        self.large, self.spent = False, ()

    def run(self, leaves: Sequence[Buffer], constants: Sequence[ConstantValue]) -> list[Buffer]:
        return reference.evaluate_reference(self.graph, leaves)


PROGRAMS: dict[tuple[Any, ...], Recipe] = {}
_COMMANDS = [0]
"""How many commands the programs there have, or more."""
_USUAL = 8
"""Commands of a program, on average, for which `config.programs` is meant."""


def evaluate(roots: Sequence[Node]) -> dict[Node, Node]:
    """Give every root a value; or, where other threads trace the functions that made them, others that have it. Those
    are what it returns."""
    while True:
        try:
            _evaluate(roots)
            return {}
        except _Disturbed:
            continue
        except Foreign:
            return _evaluate_beside(roots)
        except _Elsewhere as trace:
            with following(trace.first):
                return evaluate(roots)
        except Busy as busy:  # another thread computes the same, over what it is computed from
            busy.taken.wait()


def evaluated(node: Node) -> Node:
    """A node with a value: this one, unless it belongs to a function that another thread is tracing."""
    return evaluate((node,)).get(node, node)


class TraceInput(Node):
    """What stands for an array's node in a trace of compile's. To the thread that traces it is a placeholder; to others
    it is what that array has."""

    __slots__ = ("origin", "running")

    def __init__(self, running: Running, origin: Node, kind: Kind) -> None:
        super().__init__(Placeholder("compile"), (), kind)
        self.running, self.origin = running, origin


def _running(node: Node) -> Running | None:
    """The trace of another thread that a node stands for an array or a number of."""
    found = node.running if isinstance(node, TraceInput) else None
    if isinstance(node.value, RunTimeConstant):
        found = node.value.scalar.env.running
    return found if found is not None and found.is_elsewhere() else None


def evaluated_beside(constant: Node) -> Node | None:
    """What a number of another thread's trace is to this one; None for any other constant."""
    return None if _running(constant) is None else _beside(constant, {})


def _evaluate_beside(roots: Sequence[Node]) -> dict[Node, Node]:
    """Evaluate copies of nodes: those of a trace are to stay as they are. What the function has put into a container is
    seen as what was there before, its other values as they will be."""
    with LOCK:
        order = reachable(roots)
        traces = {running for running in map(_running, order) if running is not None}
        new: dict[Node, Node] = {}
        stood_for: dict[int, Node] = {}
        for running in traces:
            new.update(running.copies)
            stood_for.update(running.stood_for())
        for node in order:
            if node not in new:
                found = [stood_for[id(a)] for a in handles(node) if id(a) in stood_for]
                new[node] = found[0] if found else _beside(node, new)
    copies = {root: new[root] for root in roots if new[root] is not root}
    evaluate(list(copies.values()))
    with LOCK:
        over = all(running.over for running in traces)
        for running in traces:
            running.copies.update({} if over else copies)
        for node, copy in copies.items():
            if over and node.value is None:
                node.value, node.inputs, node.op = copy.value, (), DATA
    return copies


def _beside(node: Node, new: dict[Node, Node]) -> Node:
    """What other threads have in place of a node."""
    if isinstance(node, TraceInput):
        return node.origin
    if isinstance(node.value, RunTimeConstant):
        return constant(node.value.scalar.hint, fill_kind(node.kind, hint_of))
    if isinstance(node.op, Constant):
        return Node(node.op, (), fill_kind(node.kind, hint_of), node.value)
    inputs, op = tuple([new[x] for x in node.inputs]), fill_primitive(node.op, hint_of)
    if op is not node.op or node.kind.symbolic:
        return bind(op, *inputs)
    return node if inputs == node.inputs else node.again(inputs, new)  # type: ignore[arg-type]


class _Elsewhere(Exception):
    """What is evaluated belongs to a trace of another thread, which opened at the node `first`."""

    def __init__(self, first: int) -> None:
        super().__init__("another thread differentiates this")
        self.first = first


def _follow_others(order: Sequence[Node]) -> None:
    """Make sure that what other threads differentiate keeps its inputs."""
    firsts = [first for first in map(traced_elsewhere, order) if first is not None]
    keep = keeps_inputs()
    if firsts and (keep is None or min(firsts) < keep):
        raise _Elsewhere(min(firsts))


class _Disturbed(Exception):
    """While an evaluation was being prepared, this thread made another one, by a signal's handler or a finalizer: what
    has been found so far may not hold any more."""


_ENTRIES = [0]
"""How often an evaluation has been prepared. It changes under the feet of those who hold the lock only if they are
disturbed."""


def _enter() -> int:
    """The number of the evaluation that begins here, with the lock held."""
    _ENTRIES[0] += 1
    return _ENTRIES[0]


def _still(mine: int) -> None:
    """Go on only if nobody has disturbed this evaluation."""
    if _ENTRIES[0] != mine:
        raise _Disturbed


def _evaluate(roots: Sequence[Node]) -> None:
    with LOCK:
        mine = _enter()
        try:
            pending = {node for node in roots if node.value is None}
            for node in roots:
                if isinstance(node.value, Taken):  # a compiled function is about to give it another value
                    node.value.refuse()
            if not pending:
                return None
            order, updates = _reached(pending)
            if OPEN:
                _follow_others([x for node in order for x in (node, *node.inputs)])
            taped = any(x.kind.__class__ is Tape for x in order) if updates or len(order) > WINDOW else False
            stages = _in_stages(order, pending) if updates and not taped else None
            if stages is None:
                if len(order) > WINDOW and not taped:
                    return _run_windows(order, pending, mine)
                prepared = _prepare(order, pending, mine)
        except Exception:
            _still(mine)
            raise
        _still(mine)
    if stages is not None:
        return stages.run()
    return _run(*prepared)


def _reached(pending: set[Node]) -> tuple[list[Node], bool]:
    """What has no value yet and is to be computed for these nodes, themselves included, in order, and whether there are
    slice updates. Results that should be computed now although nobody asked for them join the pending ones."""
    seen = pending.copy()
    stack = list(pending)
    order: list[Node] = []
    bundles: list[Node] = []
    updates = False
    pop, push, see, reach = stack.pop, stack.append, seen.add, order.append
    while stack:
        current = pop()
        reach(current)
        if current.__class__ is Bundled:
            bundles.append(current)
        elif current.op.__class__ is SliceUpdate:
            updates = True
        for node in current.inputs:
            if node not in seen:
                see(node)
                if node.value is None and not (node.op.__class__ is Slice and _slice_data(node)):
                    push(node)
    for whole in bundles:
        needed = _needed_elsewhere(whole, seen)  # type: ignore[arg-type]
        pending.update(needed)
        order += needed
    order.sort(key=_by_id)
    return order, updates


def _needed_elsewhere(whole: Bundled, seen: set[Node]) -> list[Node]:
    """Results of an operation with several that this evaluation does not ask for, but somebody still can: computing
    them now saves running a loop twice."""
    found = [pick() for pick in whole.picks]
    return [pick for pick in found if pick is not None and _is_needed(pick, seen)]


def _is_needed(pick: Node, seen: set[Node]) -> bool:
    return pick.value is None and pick not in seen and pick.kind.__class__ is not Tape


def _run_windows(order: list[Node], wanted: set[Node], mine: int) -> None:
    """A deep graph piece by piece. Every node is held in one place only, and until its turn: what a piece computes for
    the next one, and nobody else sees, is donated to it like any other leaf."""
    windows = _windows(order, wanted)
    order.clear()
    while windows:
        piece, results = windows.pop()
        piece[:] = _without_value(piece)
        _run(*_prepare(piece, results, mine))


def _windows(order: Sequence[Node], wanted: Container[Node]) -> list[tuple[list[Node], set[Node]]]:
    """The pieces of a deep graph, the first one last, with their results: what is asked for, and what later pieces
    read."""
    pieces: list[list[Node]] = [[]]
    last: dict[Node, int] = {}
    for node in sorted([node for node in order if node.value is None], key=_with_bundle):
        if len(pieces[-1]) >= WINDOW and node.op.__class__ is not Pick:
            pieces.append([])
        pieces[-1].append(node)
        for operand in node.inputs:
            last[operand] = len(pieces) - 1
    found = [(piece, {n for n in piece if n in wanted or last.get(n, -1) > at}) for at, piece in enumerate(pieces)]
    return found[::-1]


def _with_bundle(node: Node) -> tuple[int, int]:
    """Order of ids, but results of an operation with several right behind it."""
    return (node.inputs[0].id, node.id) if node.op.__class__ is Pick else (node.id, 0)


_SLICES: dict[tuple[Any, ...], tuple[Any, Any]] = {}
_MOST_SLICES = 4096


def _slice_data(node: Node) -> bool:
    """A slice of computed data is only another way to look at it, found without a program: so the place of a slice is
    not part of a program's structure, and a loop over slices plans once. Whether that was possible."""
    (source,) = node.inputs
    buffer = source.value
    if buffer.__class__ is not Buffer:
        return False
    key = (node.op, source.kind, buffer.strides)
    found: tuple[Any, Any] | None = _SLICES.get(key)
    if found is None:
        strides = buffer.strides if buffer.strides is not None else views.contiguous(source.shape)
        moved, offset = views.map_strides(node.op.index_map(source.kind), strides, node.ndim)  # type: ignore[attr-defined]
        if len(_SLICES) >= _MOST_SLICES:
            _SLICES.clear()
        place: tuple[Any, Any] = (offset * node.dtype.size, None if views.is_contiguous(node.shape, moved) else moved)
        found = _SLICES[key] = place
    node.value = Buffer(buffer.storage, buffer.address + found[0], found[1])
    keep = keeps_inputs()
    if (keep is None or node.id < keep) and (not OPEN or traced_elsewhere(source) is None):
        node.inputs, node.op = (), DATA
    return True


ELSEWHERE = "elsewhere"
"""Begins the part of a key that says what is not for the host."""
SHORT = "single operation"
"""Begins the keys of single operations, which are quicker to make than structural ones."""


def evaluate_one(node: Node) -> Callable[[], object] | None:
    """`evaluate([node])`, with a short path for the everyday case: one operation on operands that have values. What is
    left to do in other cases, and for operands whose memory may be used again, is for the caller to call: the variables
    here would be taken for holders of them."""
    updates = large = False
    if OPEN and (len(OPEN) > 1 or keeps_inputs() is None):  # some other thread traces, and may need what is cut here
        return partial(evaluate, (node,))
    try:
        with LOCK:
            mine = _ENTRIES[0] = _ENTRIES[0] + 1
            if node.value is not None:
                return None
            inputs = node.inputs if node.op.__class__ is not SliceUpdate else ()  # those are written, see `_update`
            recipe: Recipe | None = None
            order: list[Node] = []
            key: tuple[Any, ...]
            values: tuple[Any, ...]
            if len(inputs) == 2:
                first, second = inputs
                x, y = first.value, second.value
                if x is not None and y is not None and first is not second:
                    values, order = (x, y), [first, second, node]
                    key = (SHORT, node.op, node.kind, *_leaf_key(first, x), *_leaf_key(second, y))
            elif len(inputs) == 1 and inputs[0].value is not None:
                values, order = (inputs[0].value,), [inputs[0], node]
                key = (SHORT, node.op, node.kind, *_leaf_key(inputs[0], values[0]))
            if order and config.backend != "reference":
                if USED:
                    key = (*key, *_places(order))
                recipe = PROGRAMS.get(key)
                if recipe is None:
                    recipe = _plain_recipe(key, order, node, mine)
                leaves = [value for value in values if value.__class__ is Buffer]
                constants: Sequence[ConstantValue] = ()
                if len(leaves) < len(values):
                    constants = [value for value in values if value.__class__ is not Buffer]
                large = recipe.large and _some_have_no_array(order)
            updates = node.op.__class__ is SliceUpdate and _is_plain_update(node)
            if _ENTRIES[0] != mine:
                raise _Disturbed
    except (Busy, _Disturbed, Foreign):
        return partial(evaluate, (node,))
    except Exception:
        if _ENTRIES[0] == mine:
            raise
        return partial(evaluate, (node,))
    if recipe is None:
        return partial(_update_one if updates else evaluate, (node,))
    if large:
        return partial(_evaluate_large, node, recipe, key, order, leaves, constants, mine)
    _run(recipe, [node], leaves, constants)
    return None


def _some_have_no_array(order: Sequence[Node]) -> bool:
    """Whether there are leaves that no array of the user's refers to."""
    return any(node.value.__class__ is Buffer and not has_handle(node) for node in order)


def _update_one(nodes: tuple[Node]) -> None:
    try:
        _update(nodes[0])
    except (Busy, _Disturbed):
        evaluate(nodes)


def _evaluate_large(
    node: Node,
    recipe: Recipe,
    key: tuple[Any, ...],
    order: list[Node],
    leaves: list[Buffer],
    constants: Sequence[ConstantValue],
    mine: int,
) -> None:
    """One operation, over the memory of an operand where that is free."""
    try:
        with LOCK:
            _still(mine)
            claim = None
            donated = _donated_to(node, order, leaves)
            if donated:
                recipe, claim = _in_place((key, donated), order, [node], constants, donated, mine)
            _still(mine)
    except Exception as error:
        if _ENTRIES[0] == mine and not isinstance(error, (Busy, _Disturbed)):
            raise
        order.clear()
        leaves.clear()
        evaluate((node,))
        return
    try:
        _run(recipe, [node], leaves, constants, claim)
    except _Disturbed:
        evaluate((node,))


def _leaf_key(node: Node, value: Any) -> tuple[Any, Any, Any]:
    if value.__class__ is Buffer:
        return DATA, node.kind, value.strides
    if isinstance(value, Taken):
        value.refuse()
    return node.op, node.kind, None


def _plain_recipe(short: tuple[Any, ...], order: list[Node], node: Node, mine: int) -> Recipe:
    """The program for one operation that overwrites nothing, found under its short key from now on if it is kept."""
    key, results, _, constants = _structure(order, (node,))
    recipe = PROGRAMS.get(key) or _compile(key, order, results, constants, mine)
    _still(mine)  # or this is the program of something else
    return _remembered(short, recipe) if key in PROGRAMS else recipe


class Claim:
    """Leaves that a program is about to overwrite, with what they held. From now on, and until the program has run,
    nobody sees that.

    If the program has run to its end its results are there, whatever was raised since. If it has overwritten something
    it is paused: those who need its results carry it on. Else the leaves have their values again.
    """

    __slots__ = ("__weakref__", "held", "progress", "results", "taken")

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.progress, self.taken = Progress(), Taken(self)
        self.results: Sequence[Node] = ()
        self.held = [(node, node.value) for node in nodes]
        for node in nodes:
            node.value = self.taken

    def settle(self) -> None:
        """The program will not run, any more."""
        with LOCK:
            progress = self.progress
            if progress.paused:
                return self.taken.pause(self)
            if progress.finished:
                for node, buffer in zip(self.results, progress.results, strict=False):  # no results the second time
                    if node.value is None:
                        node.value = buffer
                    node.inputs, node.op = (), DATA
            else:
                for node, buffer in self.held:
                    if node.value is self.taken:
                        node.value = buffer
            self.results = ()
            self.held.clear()
            return self.taken.end()

    def hurry(self) -> None:
        """There must be values: the new ones, or the old ones if nothing has been overwritten."""
        self.progress.hurry()
        self.settle()

    def __del__(self) -> None:
        if (getattr(self, "held", None) or getattr(self, "results", None)) and not self.taken.is_paused:  # Ctrl-C
            self.settle()


Prepared = tuple[Recipe, list[Node], list[Buffer], list[ConstantValue], Claim | None]


def _prepare(order: list[Node], wanted: Container[Node], mine: int) -> Prepared:
    """The program for a topologically ordered piece whose leaves have values, and what it is run on. Called with the
    lock held: another thread that evaluates the same nodes must not cut them from their inputs meanwhile."""
    key, results, leaves, constants = _structure(order, wanted)
    if config.backend == "reference":
        return ReferenceRecipe(order, results), results, leaves, constants, None
    recipe = PROGRAMS.get(key)
    if recipe is None or recipe.large:
        donated = _donated(order, results, leaves)
        if donated:
            recipe, claim = _in_place((key, donated), order, results, constants, donated, mine)
            return recipe, results, leaves, constants, claim
        if recipe is None:
            recipe = _compile(key, order, results, constants, mine)
    return recipe, results, leaves, constants, None


def _structure(
    order: list[Node], wanted: Container[Node]
) -> tuple[tuple[Any, ...], list[Node], list[Buffer], list[ConstantValue]]:
    """(key, results, leaves, constants) of a topologically ordered piece. What has a value comes to stand before what
    reads it first: its age, which is another one at each step of a program, says nothing about the piece."""
    index: dict[Node, int] = {}
    key: list[Any] = []
    add, number_of = key.append, index.get
    leaves: list[Buffer] = []
    constants: list[ConstantValue] = []
    results: list[Node] = []
    for node in order:
        if node.value is not None:
            continue
        for operand in node.inputs:
            number = number_of(operand)
            if number is not None:
                add(number)
                continue
            index[operand] = len(index)
            value = operand.value
            if value.__class__ is Buffer:
                add(DATA)
                add(operand.kind)
                if value.strides is not None:
                    add(value.strides)
                leaves.append(value)
            elif isinstance(value, ConstantValue):
                add(operand.op)
                add(operand.kind)
                constants.append(value)
            else:
                value.refuse()  # it is taken
        add(node.op)
        add(node.kind)
        index[node] = len(index)
        if node in wanted or (node.handle is not None and has_handle(node)):
            add(-1)
            results.append(node)
    order[:] = index
    return (*key, *_places(order)) if USED else tuple(key), results, leaves, constants


def _places(order: Sequence[Node]) -> list[Any]:
    """The numbers and devices of nodes that are not for the host. Where leaves lie does not matter: programs take them
    from anywhere."""
    devices = enumerate([None if node.value is not None else device_of(node) for node in order])
    found: list[Any] = [x for number, device in devices if device is not None for x in (number, device)]
    return [ELSEWHERE, *found] if found else found


def _run(
    recipe: Recipe,
    results: Sequence[Node],
    leaves: Sequence[Buffer],
    constants: Sequence[ConstantValue],
    claim: Claim | None = None,
) -> None:
    """Run a program, without the lock, and hand out its results."""
    if claim is not None:
        return _run_over(claim, results, lambda progress: recipe.run_in_place(leaves, constants, progress))
    try:
        buffers = recipe.run(leaves, constants)
    except ComputationError as error:
        locate(error, marked(reachable(results)))
        raise
    keep = keeps_inputs()
    with LOCK:
        for node, buffer in zip(results, buffers):  # noqa: B905  (as many by construction, and this is the hot path)
            if node.value is None:  # another thread may have been first, and somebody may look at what it found
                node.value = buffer
            if keep is None or node.id < keep:
                node.inputs, node.op = (), DATA
    return None


# ---- memory that is used again ----


def _in_place(
    key: tuple[Any, ...],
    order: list[Node],
    results: list[Node],
    constants: Sequence[ConstantValue],
    donated: tuple[int, ...],
    mine: int,
) -> tuple[Recipe, Claim | None]:
    """The program that may overwrite the donated leaves, and those that it does overwrite."""
    recipe = PROGRAMS.get(key)
    if recipe is None:
        recipe = _compile(key, order, results, constants, mine, donated)
    if not recipe.spent:
        return recipe, None
    nodes = [node for node in order if node.value.__class__ is Buffer]
    return recipe, _claimed([nodes[i] for i in recipe.spent], mine)


def _claimed(nodes: Sequence[Node], mine: int) -> Claim:
    """A claim that nobody was in time for."""
    claim = Claim(nodes)
    if _ENTRIES[0] != mine:  # who came before the claim may have computed the same, over the same memory
        claim.settle()
        raise _Disturbed
    return claim


def _run_over(claim: Claim, results: Sequence[Node], run: Callable[[Progress], Any]) -> None:
    """Run a program that overwrites leaves."""
    claim.results = results
    try:
        run(claim.progress)
    except Cancelled:  # a signal's handler or a finalizer wanted to see what was to be overwritten
        raise _Disturbed from None
    except ComputationError as error:
        locate(error, marked(reachable(results)))
        raise
    finally:
        claim.settle()


def _donated_to(node: Node, order: list[Node], leaves: list[Buffer]) -> tuple[int, ...]:
    """`_donated` for a single operation, whose node is the last of `order`."""
    if keeps_inputs() is not None:
        return ()
    places = [at for at, x in enumerate(order) if x.value.__class__ is Buffer]
    count, first = len(leaves), 1 + len(order)
    found = free(
        OPERAND,
        (node.inputs, *order, *leaves, *[x.storage for x in leaves]),
        _COUNTS[len(order), count],
        partial(_holders_of_operands, node, order, leaves, places),
    )
    if not found[0]:
        return ()
    return tuple(
        [
            i
            for i, at in enumerate(places)
            if found[1 + at] and found[first + i] and found[first + count + i] and is_large(leaves[i])
        ]
    )


_COUNTS = {(n, m): [1, *[2] * (n - 1), -1, *[2] * m, *[1] * m] for n in (2, 3) for m in range(n)}
"""By how many nodes there are (the last is the operation), and how many leaves: how many references are known, to the
tuple of operands, the nodes, the buffers of leaves, and their storages."""


def _holders_of_operands(
    node: Node, order: Sequence[Node], leaves: Sequence[Buffer], places: Sequence[int]
) -> list[set[int]]:
    operands = [{id(node.inputs), id(order)}] * len(order)
    buffers = [{id(order[at]), id(leaves)} for at in places]
    return [{id(node)}, *operands, *buffers, *[{id(leaf)} for leaf in leaves]]


def is_large(buffer: Buffer) -> bool:
    """Whether memory is worth using again, and fit for it."""
    return buffer.storage.nbytes >= LEAST_DONATED and is_whole(buffer)


def _donated(order: list[Node], results: Sequence[Node], leaves: list[Buffer]) -> tuple[int, ...]:
    """The numbers of the leaves that nobody will miss: all their holders are nodes of this evaluation, which will have
    values when it ends, or will be gone. Every reference that is not explained here is somebody else's. So the caller
    holds nodes in `order` (and results), buffers in `leaves`, and nowhere else."""
    large = [i for i, x in enumerate(leaves) if is_large(x)]
    if not large or not COUNTED or keeps_inputs() is not None:
        return ()
    places = [at for at, node in enumerate(order) if node.value.__class__ is Buffer]
    count = len(leaves)
    found = free(
        LEAF,
        [*leaves, *[x.storage for x in leaves]],
        [*[2] * count, *[1] * count],
        lambda: [*[{id(order[at]), id(leaves)} for at in places], *[{id(leaf)} for leaf in leaves]],
    )
    buffers, storages = found[:count], found[count:]
    large = [i for i in large if buffers[i] and storages[i] and not has_handle(order[places[i]])]
    if not large:
        return ()
    shared = kept_elsewhere(order, results)
    return tuple([i for i in large if id(order[places[i]]) not in shared])


# ---- slice updates of computed data ----


def _may_write() -> bool:
    """Whether slice updates may be written on their own: nobody needs to know later how they came about, or wants to
    see them in a program."""
    return keeps_inputs() is None and config.backend != "reference" and not config.compare


def _is_plain_update(node: Node) -> bool:
    """Whether a slice update is one of computed data by computed data."""
    if node.kind.symbolic or not _may_write():
        return False
    base, part = node.inputs
    return base.value.__class__ is Buffer and part.value is not None


def _in_stages(order: list[Node], wanted: set[Node]) -> _Stages | None:
    """The evaluation cut at slice updates of computed data, if there are any and they may be written on their own."""
    if not _may_write():
        return None
    written: set[Node] = set()
    for node in order:
        if node.value is None and node.op.__class__ is SliceUpdate:
            base = node.inputs[0]
            if (base.value.__class__ is Buffer or base in written) and not node.kind.symbolic:
                written.add(node)
    return _Stages(order, written, wanted) if written else None


class _Stages:
    """An evaluation in stages: in each, one program computes what needs no further update, then updates are written one
    by one. Every node is held in one place only, and until its turn: what an update is based on must be seen to be
    free."""

    def __init__(self, order: list[Node], written: set[Node], wanted: set[Node]) -> None:
        self.results = set(wanted)
        self.stages: list[tuple[list[Node], list[Node]]] = []
        stage: dict[Node, int] = {}
        stage_of = stage.get
        for node in order:
            update = node in written
            at = 0
            for x in node.inputs:
                after = stage_of(x)
                if after is not None:  # it has no value
                    at = max(at, after + (x in written and not update))
            stage[node] = at
            while len(self.stages) <= at:
                self.stages.append(([], []))
            self.stages[at][update].append(node)
            if update or at:
                waiting = [x for x in node.inputs if x in stage and x not in written]
                self.results.update([x for x in waiting if update or stage[x] < at])
        for _, updates in self.stages:
            updates.reverse()
        self.stages.reverse()
        order.clear()

    def run(self) -> None:
        while self.stages:
            nodes, updates = self.stages.pop()
            if nodes:
                self._compute(nodes)
            while updates:
                _update(updates.pop())

    def _compute(self, nodes: list[Node]) -> None:
        with LOCK:
            mine = _enter()
            try:
                prepared = self._prepared(nodes, mine)
            except Exception:
                _still(mine)
                raise
            _still(mine)
        return None if prepared is None else _run(*prepared)

    def _prepared(self, nodes: list[Node], mine: int) -> Prepared | None:
        order = _without_value(nodes)
        nodes.clear()
        if not order:
            return None
        if len(order) <= WINDOW:
            return _prepare(order, self.results, mine)
        _run_windows(order, self.results, mine)
        return None


def _without_value(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that have no value yet, in order."""
    for node in nodes:
        if node.value is None and node.op.__class__ is Slice:
            _slice_data(node)
    return sorted([node for node in nodes if node.value is None], key=_by_id)


def _update(node: Node) -> None:
    """Write a slice of computed data over: in its place if nobody else holds it, else in a copy."""
    with LOCK:
        if node.value is not None:
            return None  # another thread was faster
        mine = _enter()
        try:
            is_free = COUNTED and _is_base_free(node)  # before there are variables for it
            base, part = node.inputs
            old, new = base.value, part.value
            for value in (old, new):
                if isinstance(value, Taken):
                    value.refuse()
            if 0 in part.shape:
                node.value, node.inputs, node.op = old, (), DATA
                return None
            is_free = is_free and not old.storage.foreign and copies.lies_apart(base.shape, old.strides)
            target = old if is_free else copies.room_for(node.kind, old.device)
            if new.__class__ is Buffer and new.device is not old.device:
                shape = tuple(map(int, part.shape))
                new = moved(new, shape, part.dtype.size, old.device, targets.target_of(old.device).allocate)
            place = _part_of(node, target)
            claim = _claimed([base] if is_free else [], mine)
        except Exception:
            _still(mine)
            raise
    if not is_free and part.shape != node.shape:
        copies.copy(node.kind, old, target)

    def run(progress: Progress) -> None:
        progress.results = [Buffer(target.storage, target.address, target.strides)]
        progress.keep.append(new)
        copies.copy(part.kind, new, place, progress)

    return _run_over(claim, [node], run)


def _is_base_free(node: Node) -> bool:
    """Whether nothing but an update holds what it updates."""
    if node.inputs[0].value.__class__ is not Buffer:
        return False
    found = free(
        BASE,
        (node.inputs, node.inputs[0], node.inputs[0].value, node.inputs[0].value.storage),
        (1, 1, 1, 1),
        lambda: [{id(node)}, {id(node.inputs)}, {id(node.inputs[0])}, {id(node.inputs[0].value)}],
    )
    return all(found)


def _part_of(node: Node, target: Buffer) -> Buffer:
    """Where the slice that an update writes lies in `target`."""
    steps: Sequence[Any] = views.contiguous(node.shape) if target.strides is None else target.strides
    op: Any = node.op
    offset = sum([start * step for start, step in zip(op.starts, steps, strict=True)])
    strides = tuple([by * step for by, step in zip(op.steps, steps, strict=True)])
    return Buffer(target.storage, target.address + offset * node.dtype.size, strides)


def _compile(
    key: tuple[Any, ...],
    order: list[Node],
    results: list[Node],
    constants: Sequence[ConstantValue],
    mine: int,
    donated: tuple[int, ...] = (),
) -> Recipe:
    """A new program. One whose sizes keep changing is filled in (passes/families.py), and kept if they come again."""
    found = _family(key, order, results, donated, mine)
    if found is not None:
        family, sizes = found
        recipe: Recipe | None = family.recent(sizes)
        if recipe is not None:
            return _remembered(key, recipe)
        made = family.executable(sizes)
        if made is not None:
            families.check(made, donated)
            return family.keep(sizes, Recipe(made, constants))
    graph, layouts = close(order, results)
    _still(mine)  # or the graph is another one than the key says
    executable = targets.compile_alike(graph, layouts, donated, found)
    if not pipeline.WRAPPERS:  # those look at plans
        executable.forget_plan()
    return _remembered(key, Recipe(executable, families.constants_of(graph)))


def _family(
    key: tuple[Any, ...], order: list[Node], results: list[Node], donated: tuple[int, ...], mine: int
) -> tuple[Family, tuple[int, ...]] | None:
    """The family of a program, and its sizes; None if it is planned for itself."""
    if pipeline.WRAPPERS or config.dump or (USED and _places(order)):
        return None
    if donated:  # the key may be a short one
        key = _structure(order, results)[0]
        _still(mine)
    return families.family_of(key, targets.CPU, donated)


def _remembered(key: tuple[Any, ...], recipe: Recipe) -> Recipe:
    """A recipe that is kept for the next time. When there are too many, or too long ones, the older half goes, and with
    it the kernels that nothing else runs."""
    _COMMANDS[0] += recipe.executable.commands
    if len(PROGRAMS) >= config.programs or _COMMANDS[0] > config.programs * _USUAL:
        known = list(PROGRAMS.items())
        _COMMANDS[0] = recipe.executable.commands + sum(other.executable.commands for _, other in known)
        for old, gone in known:
            if len(PROGRAMS) <= config.programs // 2 and _COMMANDS[0] <= config.programs * _USUAL // 2:
                break
            PROGRAMS.pop(old, None)
            _COMMANDS[0] -= gone.executable.commands
    PROGRAMS[key] = recipe
    return recipe


def close(order: Sequence[Node], results: Sequence[Node]) -> tuple[Graph, dict[Node, tuple[int, ...] | None]]:
    """A graph of its own from nodes of the user's: leaves become parameters, constants keep their value objects, but
    for those that share one."""
    new: dict[Node, Node] = {}
    inputs: list[Node] = []
    held: set[int] = set()
    layouts: dict[Node, tuple[int, ...] | None] = {}
    with LOCK:  # who closes a graph for compile has not got it yet
        for node in order:
            value = node.value
            if value is None:
                if isinstance(node.op, Placeholder):
                    raise Foreign if _running(node) is not None else unknown_value(node.op.transform)
                new[node] = node.beside(node_of(node.op, tuple(new[i] for i in node.inputs), node.kind))
            elif isinstance(node.op, Constant):
                if value.__class__ is ConstantValue and id(value) in held:  # a program tells constants apart by these
                    value = ConstantValue(value.number, value.words)
                held.add(id(value))
                new[node] = Node(node.op, (), node.kind, value)
            else:
                made = new[node] = Node(Parameter(len(inputs)), (), node.kind)
                layouts[made] = value.strides
                inputs.append(made)
    inherit(new)
    return Graph(inputs, [new[n] for n in results]), layouts
