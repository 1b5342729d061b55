"""Memory that is used again where nobody can tell. A leaf whose only holders are nodes that an evaluation computes is
*donated*: the program may overwrite it (which leaves are is part of the key)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from weft.errors import ComputationError
from weft.evaluate.turns import ENTRIES, LOCK, Disturbed
from weft.graph.kept import kept_elsewhere
from weft.graph.lines import locate, marked
from weft.graph.node import Node, has_handle, reachable
from weft.graph.trace import keeps_inputs
from weft.primitives.base import DATA
from weft.runtime.data import Buffer, Taken, is_whole
from weft.runtime.holders import COUNTED, LEAF, OPERAND, free
from weft.runtime.program import Cancelled, Progress
from weft.runtime.run_layout import MOST_OPERANDS

LEAST_DONATED = 1 << 18
"""Bytes of a leaf that is worth asking who holds it, which takes some microseconds. Smaller results get a block of the
pool's that is in the caches already."""


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

    def hand_to(self, thread: int) -> None:
        """Another thread is to run the program."""
        self.progress.hand_to(thread)
        self.taken.hand_to(thread)

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


def claimed(nodes: Sequence[Node], mine: int) -> Claim:
    """A claim that nobody was in time for."""
    claim = Claim(nodes)
    if ENTRIES[0] != mine:  # who came before the claim may have computed the same, over the same memory
        claim.settle()
        raise Disturbed
    return claim


def run_over(claim: Claim, results: Sequence[Node], run: Callable[[Progress], Any]) -> None:
    """Run a program that overwrites leaves."""
    claim.results = results
    try:
        run(claim.progress)
    except Cancelled:  # a signal's handler or a finalizer wanted to see what was to be overwritten
        raise Disturbed from None
    except ComputationError as error:
        locate(error, marked(reachable(results)))
        raise
    finally:
        claim.settle()


def is_large(buffer: Buffer) -> bool:
    """Whether memory is worth using again, and fit for it."""
    return buffer.storage.nbytes >= LEAST_DONATED and is_whole(buffer)


def donated_by(order: list[Node], results: Sequence[Node], leaves: list[Buffer]) -> tuple[int, ...]:
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


def donated_to(node: Node, order: list[Node], leaves: list[Buffer]) -> tuple[int, ...]:
    """`donated_by` for a single operation, whose node is the last of `order`."""
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


_COUNTS = {(n, m): [1, *[2] * (n - 1), -1, *[2] * m, *[1] * m] for n in range(2, MOST_OPERANDS + 2) for m in range(n)}
"""By how many nodes there are (the last is the operation), and how many leaves: how many references are known, to the
tuple of operands, the nodes, the buffers of leaves, and their storages."""


def _holders_of_operands(
    node: Node, order: Sequence[Node], leaves: Sequence[Buffer], places: Sequence[int]
) -> list[set[int]]:
    operands = [{id(node.inputs), id(order)}] * len(order)
    buffers = [{id(order[at]), id(leaves)} for at in places]
    return [{id(node)}, *operands, *buffers, *[{id(leaf)} for leaf in leaves]]
