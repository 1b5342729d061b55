"""What an evaluation has to compute, in order: the nodes without a value behind those that were asked for.

Slices of computed data are found on the way, without a program that knows where they begin.
"""

from __future__ import annotations

import bisect
from collections.abc import Container, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from weft.graph.node import Node, Tape
from weft.graph.trace import OPEN, keeps_inputs, traced_elsewhere
from weft.lazy import lazy
from weft.primitives.base import DATA, Bundled, GetResult
from weft.primitives.views import Slice, SliceUpdate
from weft.runtime.data import Buffer
from weft.runtime.object_table import READ, TAPED
from weft.runtime.objects import MAKERS

if TYPE_CHECKING:
    from weft.passes import views
else:
    views = lazy("weft.passes.views")


WINDOW = 1024
"""Nodes planned together. A deeper graph is evaluated in windows, which share programs where they look alike."""

_by_id = attrgetter("id")


def reached(pending: set[Node]) -> tuple[list[Node], list[Node], int]:
    """What has no value yet and is to be computed for these nodes, themselves included, in order; slice updates among
    it; and what `READ` and `TAPED` say of it. Results that should be computed now although nobody asked for them join
    the pending ones."""
    order: list[Node] = []
    bundles: list[Bundled] = []
    updates: list[Node] = []
    found = _sweep([*pending], order, bundles, updates)
    if bundles:
        needed = [pick for whole in bundles for pick in _needed_elsewhere(whole, order)]
        if needed:
            pending.update(needed)
            order += needed
            order.sort(key=_by_id)
    return order, updates, found


def _sweep_by_python(roots: list[Node], order: list[Node], bundles: list[Node], updates: list[Node]) -> int:
    """Fill `order` with these nodes and all operands of what is there that have no value, from the oldest on; `bundles`
    with those that have several results, and `updates` with slice updates. `READ` if one of these is an operand of
    something, `TAPED` if there are tapes, or both."""
    found = 0
    seen = set(roots)
    order[:] = roots
    for current in order:  # which grows meanwhile
        for node in current.inputs:
            if node.value is None and node.op.__class__ is SliceUpdate:
                found |= READ
            if node not in seen:
                seen.add(node)
                if node.value is None and not (node.op.__class__ is Slice and slice_data(node)):
                    order.append(node)
    order.sort(key=_by_id)
    bundles[:] = [node for node in reversed(order) if node.__class__ is Bundled]
    updates[:] = [node for node in reversed(order) if node.op.__class__ is SliceUpdate]
    return found | (TAPED if any(node.kind.__class__ is Tape for node in order) else 0)


def _needed_elsewhere(whole: Bundled, order: Sequence[Node]) -> list[Node]:
    """Results of an operation with several that this evaluation does not ask for, but somebody still can: computing
    them now saves running a loop twice."""
    found = [pick() for pick in whole.picks]
    return [pick for pick in found if pick is not None and _is_needed(pick, order)]


def _is_needed(pick: Node, order: Sequence[Node]) -> bool:
    if pick.value is not None or pick.kind.__class__ is Tape:
        return False
    place = bisect.bisect_left(order, pick.id, key=_by_id)
    return place == len(order) or order[place] is not pick


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


_sweep = MAKERS.sweep(_sweep_by_python, Slice, SliceUpdate, Bundled, Tape, slice_data)
