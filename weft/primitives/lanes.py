"""Lanes of a batch that go different ways: what is computed for all of them although only some of them need it.

A loop or branch whose predicate is mapped runs for every lane, and a lane that takes no part is given what the others
have: a value that it never asked for. So nothing of it may be seen. Its results are not taken, which is the caller's
part; its cotangents, which are zero, must not become NaN where a derivative is infinite; and what it computes has to
end, and must not fail. Here operands are made such that all of this holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.node import Node, Size, Tape
from weft.primitives.base import bind
from weft.primitives.elementwise import Select, StopGradient
from weft.primitives.indexing import Gather
from weft.primitives.reductions import Any_, ArgMax
from weft.primitives.views import Broadcast


def along(lanes: Node, node: Node, axis: int = 0) -> Node:
    """A flag for each lane in the shape of `node`, which has its lanes along `axis`."""
    return bind(Broadcast(node.shape, (axis,)), lanes)


def taking_part(on: Node, operands: Sequence[Node], axes: Sequence[int | None], size: Size, total: bool) -> list[Node]:
    """The operands of something that is computed for all lanes, of which only those take part that are `on`. Values of
    lanes that do are what they were.

    No cotangent flows back from the other lanes. Where one of theirs could get into a sum over lanes, because an
    operand is the same for all, or where what is computed is not `total` (`Primitive.is_total`), they compute what the
    first lane does that takes part.
    """
    if type(size) is int and size == 0:
        return list(operands)
    shared = [axis is None and x.kind.dtype.is_inexact for x, axis in zip(operands, axes, strict=True)]
    stand_in = bind(ArgMax((0,)), on) if not total or any(shared) else None
    found = []
    for x, axis, is_shared in zip(operands, axes, shared, strict=True):
        if isinstance(x.kind, Tape):
            found.append(x)
        elif axis is not None and (stand_in is not None or x.dtype.is_inexact):
            other = x if stand_in is None else _of_lane(x, axis, stand_in)
            found.append(bind(Select(), along(on, x, axis), x, bind(StopGradient(), other)))
        elif is_shared:
            some = bind(Broadcast(x.shape, ()), bind(Any_((0,)), on))
            found.append(bind(Select(), some, x, bind(StopGradient(), x)))
        else:
            found.append(x)
    return found


def _of_lane(x: Node, axis: int, lane: Node) -> Node:
    """What one lane has, for all lanes."""
    others = tuple([i for i in range(x.ndim) if i != axis])
    where = tuple([None if i == axis else others.index(i) for i in range(x.ndim)])
    return bind(Broadcast(x.shape, others), bind(Gather(where, ()), x, lane))
