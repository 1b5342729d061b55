"""Numbers in place of symbolic sizes, and symbols in place of numbers: in kinds, in parameters of primitives, and in
the bodies among these."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

from weft.graph.body import Body, body_of, filled
from weft.graph.dims import Dim
from weft.graph.node import ArrayType, Node, Size, Tape, TupleType, bundle_of, kind_of, tape_of
from weft.primitives.base import Constant, Parameter, Primitive, bind
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


def fill_kind(kind: ArrayType, number: Number) -> ArrayType:
    if not kind.symbolic:
        return kind
    if isinstance(kind, Tape):
        return tape_of(fill_kind(kind.row, number))
    if isinstance(kind, TupleType):
        return bundle_of([fill_kind(part, number) for part in kind.parts])
    return kind_of(fill(kind.shape, number), kind.dtype)


def fill_primitive(op: Primitive, number: Number) -> Primitive:
    """The primitive with numbers for the symbols in its parameters."""
    parameters = tuple([getattr(op, f.name) for f in fields(op)])  # type: ignore[arg-type]
    new = fill(parameters, number)
    return op if new is parameters else type(op)(*new)


# ---- and the other way round ----
#
# What may be a symbol in a primitive is what its parameters are declared to be: `Size`, `Shape`, and what holds these.
# All other parameters (axes, dtypes, flags) are part of what the primitive is.

Form = Any
"""A primitive without its sizes; may be hashed and compared."""


def without_sizes(op: Primitive) -> tuple[Form, tuple[int, ...]]:
    """What an operation is, and the sizes in it, those in its bodies included. Equal forms hold as many sizes."""
    roles = _roles(type(op))
    if not roles:
        return op, ()
    form: list[Any] = [type(op)]
    sizes: list[int] = []
    for name, role in roles:
        value = getattr(op, name)
        if role is Size:
            parts = value if type(value) is tuple else () if value is None else (value,)
            form.append((type(value), len(parts)))
            sizes.extend(parts)
        elif role is Body:
            for body in value if type(value) is tuple else (value,):
                inner, more = body.once("without sizes", functools.partial(_body_without_sizes, body))
                form.append(inner)
                sizes.extend(more)
        else:
            form.append(value)
    if any(type(n) is not int for n in sizes):  # those of a trace, which nobody may read
        return op, ()
    return tuple(form), tuple(sizes)


def with_sizes(op: Primitive, sizes: Iterator[Size]) -> Primitive:
    """The operation with others in place of its sizes, in the order in which `without_sizes` gives them."""
    roles = _roles(type(op))
    if not roles:
        return op
    parameters = [_with_sizes(getattr(op, name), role, sizes) for name, role in roles]
    made: Primitive = type(op)(*parameters)
    return made


def _with_sizes(value: Any, role: Any, sizes: Iterator[Size]) -> Any:
    if role is None or value is None:
        return value
    if type(value) is tuple:
        return tuple([_with_sizes(v, role, sizes) for v in value])
    return next(sizes) if role is Size else _body_with_sizes(value, sizes)


@functools.cache
def _roles(cls: type[Primitive]) -> tuple[tuple[str, Any], ...]:
    """The parameters of a primitive, each with what it holds: `Size`, `Body`, or None for anything else. Nothing if it
    has neither sizes nor bodies."""
    found = tuple([(f.name, _role(str(f.type))) for f in fields(cls)])  # type: ignore[arg-type]
    return found if any(role is not None for _, role in found) else ()


def _role(declared: str) -> Any:
    words = set(re.findall(r"\w+", declared))
    return Body if "Body" in words else Size if words & {"Size", "Shape", "Strides"} else None


def _body_without_sizes(body: Body) -> tuple[Form, tuple[int, ...]]:
    form: list[Any] = [len(body.inputs)]
    sizes: list[int] = []
    number: dict[Node, int] = {}
    for node in body.graph.order():
        number[node] = len(number)
        if isinstance(node.op, LEAVES):
            form.append((node.op, type(node.kind), node.dtype, node.ndim, getattr(node.value, "words", None)))
            sizes.extend(node.shape)  # type: ignore[arg-type]
        else:
            inner, more = without_sizes(node.op)
            form.append((inner, *[number[x] for x in node.inputs]))
            sizes.extend(more)
    form.append(tuple([number[node] for node in body.outputs]))
    return tuple(form), tuple(sizes)


def _body_with_sizes(body: Body, sizes: Iterator[Size]) -> Body:
    new: dict[Node, Node] = {}
    for node in body.graph.order():
        if isinstance(node.op, LEAVES):
            kind = kind_of(tuple(itertools.islice(sizes, node.ndim)), node.dtype)
            new[node] = Node(node.op, (), kind, node.value)
        else:
            new[node] = bind(with_sizes(node.op, sizes), *[new[x] for x in node.inputs])
    return body_of([new[x] for x in body.inputs], [new[x] for x in body.outputs])


LEAVES = (Parameter, Constant)
"""Nodes whose kinds nothing else says; those of others follow from their operands."""
