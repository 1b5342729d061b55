"""What stands in the statements of a kernel's source: their parts, the names in them, what they assign."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from weft.kernels import syntax as s
from weft.records import fields


def parts(x: object) -> Iterator[object]:
    """All expressions and statements in one, itself included."""
    todo = [x]
    while todo:
        y = todo.pop()
        if isinstance(y, tuple):
            todo += y
        elif isinstance(y, s.Function):
            todo.append(y.body)
        elif isinstance(y, s.Expression | s.Statement):
            yield y
            todo += [getattr(y, field.name) for field in fields(y)]


def size(x: object) -> int:
    return sum(1 for _ in parts(x))


def leaves(x: object) -> bool:
    """Whether a body may leave the loop that it is of, or begin it anew."""
    if isinstance(x, s.For | s.Range):
        return any(isinstance(y, s.Return) for y in parts(x))
    if isinstance(x, s.Break | s.Continue | s.Return):
        return True
    if isinstance(x, s.Block):
        return any(leaves(y) for y in x.body)
    if isinstance(x, s.Switch):
        return any(isinstance(y, s.Return | s.Continue) for y in parts(x))
    return isinstance(x, s.If) and (leaves(x.then) or leaves(x.other))


def names(x: object) -> set[str]:
    """The names in an expression or a statement."""
    found = {y.name for y in parts(x) if isinstance(y, s.Name)}
    return found | {y.name for y in parts(x) if isinstance(y, s.Call)}


def assigns(x: object, functions: Mapping[str, Sequence[s.Function]]) -> set[str]:
    """The names that a statement assigns, or declares; `functions` are those that may take them by reference, or that
    see names around them."""
    found: set[str] = set()
    for y in parts(x):
        if isinstance(y, s.Assignment | s.Step):
            found |= names(y.target)
        elif isinstance(y, s.Declare):
            found.add(y.name)
            if y.type is not None and (y.type.reference or y.type.pointer):
                found |= names(y.value)  # another name for it may be assigned
        elif isinstance(y, s.Range):
            found.add(y.name)
        elif isinstance(y, s.Unary) and y.op == "&":
            found |= names(y.x)
        elif isinstance(y, s.Call):
            if y.name in functions or y.method_of is not None or y.name in CHANGING:
                found |= names(y.arguments) | names(y.method_of)
            for function in functions.get(y.name, ()):
                if function.name.startswith("lambda"):
                    found |= assigns(function.body, {k: v for k, v in functions.items() if k != y.name})
    return found


CHANGING = frozenset(("sincos", "modf", "frexp"))
"""Functions of the library that give a second result through an argument."""
