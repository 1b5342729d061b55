"""What of an evaluation's nodes will still be reached when it has ended, by others than itself: the memory of those may
not be used again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weft.graph.node import Node
from weft.runtime.holders import PIECE, free


def kept_elsewhere(order: list[Node], results: Sequence[Node]) -> set[int]:
    """The nodes (by identity) that somebody else can reach when this evaluation has ended: by a reference of his own,
    or through a node that has no value then either."""
    pending = [at for at, node in enumerate(order) if node.value is None]
    uses = Counter([id(operand) for at in pending for operand in order[at].inputs])
    made = set(map(id, results))
    found = free(
        PIECE,
        [*order, *[order[at].inputs for at in pending]],
        [*[-1 if id(x) in made else 1 + uses[id(x)] for x in order], *[1] * len(pending)],
        lambda: [*_users(order, pending), *[{id(order[at])} for at in pending]],
    )
    alone, apart = found[: len(order)], dict(zip(pending, found[len(order) :], strict=True))
    shared: set[int] = set()
    for at in range(len(order) - 1, -1, -1):
        number = id(order[at])
        if number not in made and not alone[at]:
            shared.add(number)
        if at in apart and (number in shared or not apart[at]):
            shared.update(map(id, order[at].inputs))
    return shared


def _users(order: Sequence[Node], pending: Sequence[int]) -> list[set[int]]:
    """Of each node, the ids of the list and of the tuples of operands that it stands in."""
    found: dict[int, set[int]] = {id(node): {id(order)} for node in order}
    for at in pending:
        for operand in order[at].inputs:
            found[id(operand)].add(id(order[at].inputs))
    return [found[id(node)] for node in order]
