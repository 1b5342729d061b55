"""Evaluation: the nodes behind the user's arrays become a graph, the graph a program (looked up by its structure), the
program values.

The structural key holds operations, kinds, which node reads which, the layout of the leaves and which nodes are
results. It holds no numbers: constants are run-time words. A node is a result if it was asked for or if a live array of
the user's still refers to it, so nothing is computed twice and nothing else is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Sequence
from operator import attrgetter
from typing import Any

from weft.config import config
from weft.graph.lines import inherit
from weft.graph.node import Graph, Node, Tape, has_handle
from weft.graph.trace import keeps_inputs, unknown_value
from weft.passes.executable import Executable
from weft.passes.pipeline import compile_graph
from weft.passes.views import contiguous, is_contiguous, map_strides
from weft.primitives.base import DATA, Bundled, Constant, ConstantValue, Parameter, Pick, Placeholder
from weft.primitives.views import Slice
from weft.reference import evaluate_reference
from weft.runtime.data import Buffer

if config.compare:
    import weft.checking  # which puts itself around all programs; others need not wait for it

WINDOW = 1024
"""Nodes planned together. A deeper graph is evaluated in windows, which share programs where they look alike."""
MOST_PROGRAMS = 4096

_by_id = attrgetter("id")
_lock = threading.RLock()


class Recipe:
    """An executable for one structure, and where its constants come from: the position among the structure's constants,
    or fixed words."""

    __slots__ = ("executable", "in_order", "sources")

    def __init__(self, executable: Executable, given: Sequence[ConstantValue]) -> None:
        position = {id(value): i for i, value in enumerate(given)}
        self.executable = executable
        self.sources: list[tuple[int | None, tuple[int, ...]]] = [
            (position[id(value)], ()) if id(value) in position else (None, value.words)
            for value in executable.constants
        ]
        self.in_order = [at for at, _ in self.sources] == list(range(len(given)))
        """Whether the program reads all of the structure's constants, in their order: the usual case, and the fast
        one."""

    def run(self, leaves: Sequence[Buffer], constants: Sequence[ConstantValue]) -> list[Buffer]:
        return self.executable.run(leaves, self.words(constants) if self.sources else ())

    def words(self, given: Sequence[ConstantValue]) -> list[int]:
        if self.in_order:
            return [word for value in given for word in value.words]
        words: list[int] = []
        for position, fixed in self.sources:
            words.extend(fixed if position is None else given[position].words)
        return words


class ReferenceRecipe(Recipe):
    """The same nodes by the reference back end."""

    __slots__ = ("order", "results")

    def __init__(self, order: list[Node], results: list[Node]) -> None:
        self.order, self.results = order, results

    def run(self, leaves: Sequence[Buffer], constants: Sequence[ConstantValue]) -> list[Buffer]:
        return evaluate_reference(self.order, self.results)


PROGRAMS: dict[tuple[Any, ...], Recipe] = {}


def evaluate(roots: Sequence[Node]) -> None:
    """Give every root a value."""
    with _lock:
        pending = {node for node in roots if node.value is None}
        if not pending:
            return None
        seen = pending.copy()
        stack = list(pending)
        bundles: list[Node] = []
        pop, push, see = stack.pop, stack.append, seen.add
        while stack:
            current = pop()
            if current.__class__ is Bundled:
                bundles.append(current)
            for node in current.inputs:
                if node not in seen:
                    see(node)
                    if node.value is None and not (node.op.__class__ is Slice and _slice_data(node)):
                        push(node)
        for whole in bundles:
            pending.update(_needed_elsewhere(whole, seen))  # type: ignore[arg-type]
            seen |= pending
        order = sorted(seen, key=_by_id)
        if len(order) <= WINDOW or any(node.kind.__class__ is Tape for node in order):
            prepared = _prepare(order, pending)
        else:
            return _run_windows(order, pending)
    return _run(*prepared)


def _needed_elsewhere(whole: Bundled, seen: set[Node]) -> list[Node]:
    """Results of an operation with several that this evaluation does not ask for, but somebody still can: computing
    them now saves running a loop twice."""
    found = [pick() for pick in whole.picks]
    return [pick for pick in found if pick is not None and _is_needed(pick, seen)]


def _is_needed(pick: Node, seen: set[Node]) -> bool:
    return pick.value is None and pick not in seen and pick.kind.__class__ is not Tape


def _run_windows(order: list[Node], wanted: set[Node]) -> None:
    """A deep graph piece by piece: what later pieces read is a result of this one."""
    pieces: list[list[Node]] = [[]]
    last: dict[Node, int] = {}
    for node in sorted([node for node in order if node.value is None], key=_with_bundle):
        if len(pieces[-1]) >= WINDOW and node.op.__class__ is not Pick:
            pieces.append([])
        pieces[-1].append(node)
        for operand in node.inputs:
            last[operand] = len(pieces) - 1
    for current, piece in enumerate(pieces):
        results = {n for n in piece if n in wanted or last.get(n, -1) > current}
        leaves = {operand for node in piece for operand in node.inputs if operand.value is not None}
        _run(*_prepare(sorted(leaves.union(piece), key=_by_id), results))


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
        strides = buffer.strides if buffer.strides is not None else contiguous(source.shape)
        moved, offset = map_strides(node.op.index_map(source.kind), strides, node.ndim)  # type: ignore[attr-defined]
        if len(_SLICES) >= _MOST_SLICES:
            _SLICES.clear()
        place: tuple[Any, Any] = (offset * node.dtype.size, None if is_contiguous(node.shape, moved) else moved)
        found = _SLICES[key] = place
    node.value = Buffer(buffer.storage, buffer.address + found[0], found[1])
    keep = keeps_inputs()
    if keep is None or node.id < keep:
        node.inputs, node.op = (), DATA
    return True


SHORT = "single operation"
"""Begins the keys of single operations, which are quicker to make than structural ones."""


def evaluate_one(node: Node) -> None:
    """`evaluate([node])`, with a short path for the everyday case: one operation on operands that have values."""
    with _lock:
        if node.value is not None:
            return None
        inputs = node.inputs
        values: tuple[Any, ...]
        key: tuple[Any, ...]
        if len(inputs) == 2:
            first, second = inputs
            if first.id > second.id:
                first, second = second, first
            x, y = first.value, second.value
            if x is None or y is None or first is second or config.backend == "reference":
                return evaluate((node,))
            values, order = (x, y), [first, second, node]
            key = (SHORT, node.op, node.kind, first is inputs[0], *_leaf_key(first, x), *_leaf_key(second, y))
        elif len(inputs) == 1 and inputs[0].value is not None and config.backend != "reference":
            values, order = (inputs[0].value,), [inputs[0], node]
            key = (SHORT, node.op, node.kind, *_leaf_key(inputs[0], inputs[0].value))
        else:
            return evaluate((node,))
        recipe = PROGRAMS.get(key)
        if recipe is None:
            recipe = PROGRAMS[key] = _prepare(order, (node,))[0]
    leaves = [value for value in values if value.__class__ is Buffer]
    constants = [value for value in values if value.__class__ is not Buffer] if len(leaves) < len(values) else ()
    return _run(recipe, [node], leaves, constants)


def _leaf_key(node: Node, value: Any) -> tuple[Any, Any, Any]:
    if value.__class__ is Buffer:
        return DATA, node.kind, value.strides
    return node.op, node.kind, None


Prepared = tuple[Recipe, list[Node], list[Buffer], list[ConstantValue]]


def _prepare(order: list[Node], wanted: Container[Node]) -> Prepared:
    """The program for a topologically ordered piece whose leaves have values, and what it is run on. Called with the
    lock held: another thread that evaluates the same nodes must not cut them from their inputs meanwhile."""
    index: dict[Node, int] = {}
    key: list[Any] = []
    add = key.append
    leaves: list[Buffer] = []
    constants: list[ConstantValue] = []
    results: list[Node] = []
    for number, node in enumerate(order):
        index[node] = number
        value = node.value
        if value is None:
            add(node.op)
            add(node.kind)
            for operand in node.inputs:
                add(index[operand])
            if node in wanted or (node.handle is not None and has_handle(node)):
                add(-1)
                results.append(node)
        elif isinstance(value, ConstantValue):
            add(node.op)
            add(node.kind)
            constants.append(value)
        else:
            add(DATA)
            add(node.kind)
            if value.strides is not None:
                add(value.strides)
            leaves.append(value)
    if config.backend == "reference":
        return ReferenceRecipe(order, results), results, leaves, constants
    found = tuple(key)
    recipe = PROGRAMS.get(found)
    if recipe is None:
        recipe = _compile(found, order, results, constants)
    return recipe, results, leaves, constants


def _run(recipe: Recipe, results: Sequence[Node], leaves: Sequence[Buffer], constants: Sequence[ConstantValue]) -> None:
    """Run a program, without the lock, and hand out its results."""
    buffers = recipe.run(leaves, constants)
    keep = keeps_inputs()
    with _lock:
        for node, buffer in zip(results, buffers):  # noqa: B905  (as many by construction, and this is the hot path)
            node.value = buffer
            if keep is None or node.id < keep:
                node.inputs, node.op = (), DATA


def _compile(key: tuple[Any, ...], order: list[Node], results: list[Node], constants: list[ConstantValue]) -> Recipe:
    graph, layouts = close(order, results)
    recipe = Recipe(compile_graph(graph, layouts), constants)
    if len(PROGRAMS) >= MOST_PROGRAMS:
        for old in list(PROGRAMS)[: MOST_PROGRAMS // 2]:
            del PROGRAMS[old]
    PROGRAMS[key] = recipe
    return recipe


def close(order: Sequence[Node], results: Sequence[Node]) -> tuple[Graph, dict[Node, tuple[int, ...] | None]]:
    """A graph of its own from nodes of the user's: leaves become parameters, constants keep their value objects."""
    new: dict[Node, Node] = {}
    inputs: list[Node] = []
    layouts: dict[Node, tuple[int, ...] | None] = {}
    for node in order:
        value = node.value
        if value is None:
            if isinstance(node.op, Placeholder):
                raise unknown_value(node.op.transform)
            new[node] = Node(node.op, tuple(new[i] for i in node.inputs), node.kind)
        elif isinstance(node.op, Constant):
            new[node] = Node(node.op, (), node.kind, value)
        else:
            made = new[node] = Node(Parameter(len(inputs)), (), node.kind)
            layouts[made] = value.strides
            inputs.append(made)
    inherit(new)
    return Graph(inputs, [new[n] for n in results]), layouts
