"""Numbers in place of symbolic sizes: in kinds, in parameters of primitives, and in the bodies among these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.graph.body import Body, filled
from weft.graph.dims import Dim
from weft.graph.node import Bundle, Kind, Tape, bundle_of, kind_of, tape_of
from weft.primitives.base import Primitive
from weft.records import fields

Number = Callable[[Any], int]
"""The number that a symbolic size stands for."""


def fill(value: Any, number: Number) -> Any:
    """A parameter with numbers for its symbols; itself if it has none."""
    if type(value) is Dim:
        return number(value)
    if type(value) is tuple:
        new = tuple([fill(v, number) for v in value])
        return value if all(x is y for x, y in zip(new, value, strict=True)) else new
    if type(value) is Body and value.is_symbolic:
        return filled(value, lambda node: fill_kind(node.kind, number), lambda op: fill_primitive(op, number))
    return value


def fill_kind(kind: Kind, number: Number) -> Kind:
    if not kind.symbolic:
        return kind
    if isinstance(kind, Tape):
        return tape_of(fill_kind(kind.row, number))
    if isinstance(kind, Bundle):
        return bundle_of([fill_kind(part, number) for part in kind.parts])
    return kind_of(fill(kind.shape, number), kind.dtype)


def fill_primitive(op: Primitive, number: Number) -> Primitive:
    """The primitive with numbers for the symbols in its parameters."""
    parameters = tuple([getattr(op, f.name) for f in fields(op)])  # type: ignore[arg-type]
    new = fill(parameters, number)
    return op if new is parameters else type(op)(*new)
