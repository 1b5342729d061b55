"""What an evaluation has to compute, in order: the nodes without a value behind those that were asked for.

Slices of computed data are found on the way, without a program that knows where they begin.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from weft.graph.node import Node, Tape
from weft.graph.trace import OPEN, keeps_inputs, traced_elsewhere
from weft.lazy import lazy
from weft.primitives.base import DATA, Bundled, GetResult
from weft.primitives.views import Slice, SliceUpdate
from weft.runtime.data import Buffer
from weft.runtime.objects import MAKERS

if TYPE_CHECKING:
    from weft.passes import views
else:
    views = lazy("weft.passes.views")


WINDOW = 1024
"""Nodes planned together. A deeper graph is evaluated in windows, which share programs where they look alike."""

_by_id = attrgetter("id")


def reached(pending: set[Node]) -> tuple[list[Node], bool, bool]:
    """What has no value yet and is to be computed for these nodes, themselves included, in order; whether there are
    slice updates, and tapes. Results that should be computed now although nobody asked for them join the pending
    ones."""
    seen = pending.copy()
    order = list(pending)
    bundles: list[Node] = []
    updates = _reach(order, seen, bundles)
    for whole in bundles:
        needed = _needed_elsewhere(whole, seen)  # type: ignore[arg-type]
        pending.update(needed)
        order += needed
    order.sort(key=_by_id)
    return order, updates, bool(bundles) and any(node.kind.__class__ is Tape for node in order)


def _reach_by_python(found: list[Node], seen: set[Node], bundles: list[Node]) -> bool:
    """Add to `found` all operands of its items, and theirs, that have no value and are not in `seen`; and to `bundles`
    the items that have several results. Whether there are slice updates."""
    updates = False
    see, add = seen.add, found.append
    for current in found:  # which grows meanwhile
        if current.__class__ is Bundled:
            bundles.append(current)
        elif current.op.__class__ is SliceUpdate:
            updates = True
        for node in current.inputs:
            if node not in seen:
                see(node)
                if node.value is None and not (node.op.__class__ is Slice and slice_data(node)):
                    add(node)
    return updates


def _needed_elsewhere(whole: Bundled, seen: set[Node]) -> list[Node]:
    """Results of an operation with several that this evaluation does not ask for, but somebody still can: computing
    them now saves running a loop twice."""
    found = [pick() for pick in whole.picks]
    return [pick for pick in found if pick is not None and _is_needed(pick, seen)]


def _is_needed(pick: Node, seen: set[Node]) -> bool:
    return pick.value is None and pick not in seen and pick.kind.__class__ is not Tape


def in_windows(order: Sequence[Node], wanted: Container[Node]) -> list[tuple[list[Node], set[Node]]]:
    """The pieces of a deep graph, the first one last, with their results: what is asked for, and what later pieces
    read."""
    pieces: list[list[Node]] = [[]]
    last: dict[Node, int] = {}
    for node in sorted([node for node in order if node.value is None], key=_with_bundle):
        if len(pieces[-1]) >= WINDOW and node.op.__class__ is not GetResult:
            pieces.append([])
        pieces[-1].append(node)
        for operand in node.inputs:
            last[operand] = len(pieces) - 1
    found = [(piece, {n for n in piece if n in wanted or last.get(n, -1) > at}) for at, piece in enumerate(pieces)]
    return found[::-1]


def _with_bundle(node: Node) -> tuple[int, int]:
    """Order of ids, but results of an operation with several right behind it."""
    return (node.inputs[0].id, node.id) if node.op.__class__ is GetResult else (node.id, 0)


def without_value(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that have no value yet, in order."""
    for node in nodes:
        if node.value is None and node.op.__class__ is Slice:
            slice_data(node)
    return sorted([node for node in nodes if node.value is None], key=_by_id)


_SLICES: dict[tuple[Any, ...], tuple[Any, Any]] = {}

_MOST_SLICES = 4096


def slice_data(node: Node) -> bool:
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


_reach = MAKERS.reach(_reach_by_python, Slice, SliceUpdate, Bundled, slice_data)
