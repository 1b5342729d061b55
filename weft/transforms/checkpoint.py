"""checkpoint: the backward pass of a function starts from its operands and computes what it needs once more, instead of
keeping it.

What the function computed inside is built again behind barriers: copies of operands that are made only when the
cotangents have arrived. So nothing of it is merged with the first computation, whose values die as soon as the
function's results are known. The function is not called again: the numbers it drew are the same, and what it captured
has its gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft import tree
from weft.array import array, wrap
from weft.graph.node import Node, next_id
from weft.graph.trace import is_tracing
from weft.primitives.base import Constant, View, bind
from weft.primitives.custom import IDENTITY, Barrier, Batch, Batched, Called, called
from weft.transforms.arguments import second_names
from weft.transforms.paths import between, rebuild
from weft.transforms.vjp import pull_back

Function = Callable[..., Any]


def checkpoint(fun: Function) -> Function:
    """fun, with less memory and more work for its gradient: inner values are computed again in the backward pass.

    >>> grad(checkpoint(lambda x: sum(exp(sin(x)))))(array([0.0]))
    array([1], dtype=float32)
    """
    if not callable(fun):
        raise TypeError(f"[checkpoint] the first argument must be a function; got {type(fun).__name__}.")

    @functools.wraps(fun, ("__name__", "__qualname__", "__doc__"), ())
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        inside = second_names(args, kwargs)
        if not is_tracing():
            return fun(*inside[0], **inside[1])
        first = next_id()
        given = [leaf._node for leaf in tree.leaves((args, kwargs)) if isinstance(leaf, array)]
        leaves, structure = tree.flatten(fun(*inside[0], **inside[1]))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, array)]
        ys = [leaves[i]._node for i in places]
        for place, node in zip(places, called(RECOMPUTE, _operands(given, ys, first), ys), strict=True):
            leaves[place] = wrap(node)
        return structure.unflatten(leaves)

    return wrapper


def _operands(given: Sequence[Node], ys: Sequence[Node], first: int) -> list[Node]:
    """What a function reads: its arguments, and nodes older than the call that it captured."""
    found = dict.fromkeys(given)
    seen = set(ys)
    stack = list(seen)
    while stack:
        node = stack.pop()
        if node.id < first:
            if not isinstance(node.op, Constant):
                found[node] = None
            continue
        for operand in node.inputs:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return list(found)


class Recompute:
    """The rules of a checkpointed function: reverse mode starts from its operands, other transforms look inside."""

    def has(self, rule: str) -> bool:
        return rule == "vjp"

    def vjp(
        self, xs: Sequence[Node], outs: Sequence[Node], cotangents: Sequence[Node | None], wanted: frozenset[int]
    ) -> Mapping[int, Node]:
        out = next(out for out in outs if isinstance(out, Called))
        ys = out.ys
        after = [ct for ct in cotangents if ct is not None and not isinstance(ct.op, Constant)] or list(ys)
        apart = _to_copy(xs, ys)
        again = {
            x: bind(Barrier(), x, *dict.fromkeys(after)) if x in apart else Node(IDENTITY, (x,), x.kind) for x in xs
        }
        order = sorted(wanted)
        inputs = [again[xs[i]] for i in order]
        found = pull_back(inputs, rebuild(ys, again), cotangents)
        return {i: ct for i, ct in zip(order, found, strict=True) if ct is not None}

    def jvp(self, xs: Sequence[Node], outs: Sequence[Node], tangents: Mapping[int, Node]) -> Sequence[Node | None]:
        raise AssertionError("forward mode looks inside a checkpointed function")

    def batch(self, xs: Sequence[Batched], around: Batch) -> Sequence[Batched]:
        raise AssertionError("vmap looks inside a checkpointed function")

    def batched(self, axes: Sequence[int | None], around: Batch) -> Recompute:
        return self


RECOMPUTE = Recompute()


def _to_copy(xs: Sequence[Node], ys: Sequence[Node]) -> set[Node]:
    """Operands to put behind barriers: few and small ones, such that every inner computation depends on at least one of
    them.

    Usually that is the activation that enters a block, while its weights stay where they are.
    """
    path, _ = between(xs, ys)
    depends = {x: 1 << i for i, x in enumerate(xs)}
    masks: list[int] = []
    for node in path:
        mask = 0
        for operand in node.inputs:
            mask |= depends.get(operand, 0)
        depends[node] = mask
        if not isinstance(node.op, View):
            masks.append(mask)
    chosen: set[Node] = set()
    while masks:
        counts = {x: sum(mask >> i & 1 for mask in masks) for i, x in enumerate(xs)}
        best = max(counts, key=lambda x: (counts[x], -_elements(x)))
        chosen.add(best)
        bit = depends[best]
        masks = [mask for mask in masks if not mask & bit]
    return chosen


def _elements(x: Node) -> int:
    return x.kind.size if type(x.kind.size) is int else 0
