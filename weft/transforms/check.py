"""What comes back from a rule is checked where it comes back, so a wrong rule fails by name."""

from __future__ import annotations

from weft.graph.node import Kind, Node
from weft.primitives.base import Primitive


def checked(found: Node, kind: Kind, op: Primitive, rule: str) -> Node:
    """`found`, if it has the kind that a tangent or cotangent of `kind` has."""
    if found.kind is not kind and (found.shape != kind.shape or found.dtype is not kind.dtype):
        raise AssertionError(f"the {rule} rule of {op} gave {found.kind} where {kind} belongs")
    return found
