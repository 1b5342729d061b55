"""What comes back from a rule is checked where it comes back, so a wrong rule fails by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.graph.node import ArrayType, Node
from weft.primitives.base import Primitive


def checked(found: Node, kind: ArrayType, op: Primitive, rule: str) -> Node:
    """`found`, if it has the kind that a tangent or cotangent of `kind` has."""
    if not _fits(found, kind):
        raise AssertionError(f"the {rule} rule of {op} gave {found.kind} where {kind} belongs")
    return found


def checked_result(found: Node, kind: ArrayType) -> Node:
    """The same for a function's own rule, whose author is told in the words of the public function before it comes to
    this."""
    if not _fits(found, kind):
        raise AssertionError(f"a function's own rule gave {found.kind} where {kind} belongs")
    return found


def checked_results(found: Mapping[int, Node], xs: Sequence[Node], wanted: frozenset[int]) -> dict[int, Node]:
    """Those of the cotangents that are wanted, each of the kind of its operand."""
    return {i: checked_result(ct, xs[i].kind) for i, ct in found.items() if i in wanted}


def _fits(found: Node, kind: ArrayType) -> bool:
    return found.kind is kind or (found.shape == kind.shape and found.dtype is kind.dtype)
