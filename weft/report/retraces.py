"""Why a compiled function was traced again: what its calls could see that differed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from weft.array import array
from weft.dtypes import Dtype
from weft.graph.node import ArrayType
from weft.graph.show import show_kind
from weft.transforms.capture import Walk
from weft.transforms.code import Names
from weft.transforms.compile import Compiled
from weft.transforms.variant import ShapelessVariant


def traces_of(fun: Compiled, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None) -> list[str]:
    """One line for each trace of the function, oldest first; from the second on with what made it necessary.

    With the arguments of a call, differences are told by the argument that they stand in.
    """
    keys = list(fun._variants)
    spans, numbers = _spans(fun, args, kwargs or {})
    lines = []
    for position, key in enumerate(keys):
        entry = fun._variants[key]
        before: tuple[Any, ...] | None = None
        for given, variants in entry.table.items():
            if before is not None:
                cause = _changed_number(before, given, entry.by_value, numbers)
            elif position == 0:
                cause = "first call"
            else:
                cause = _cause(min(keys[:position], key=lambda other: _distance(key, other)), key, spans)
            lines.append(cause)
            lines.extend(
                ["numbers or sizes that break an assumption of the trace (a branch on one)"] * (len(variants) - 1)
            )
            before = given
        sizes = sum(len(v.recipes) for v in entry if isinstance(v, ShapelessVariant))
        if sizes > 1:
            lines[-1] += f"; planned for {sizes} sets of sizes, one machine code"
    if fun.plain_because is not None:
        lines.append(f"runs plain, because it captures {fun.plain_because}")
    return lines


def _changed_number(
    old: tuple[Any, ...], new: tuple[Any, ...], places: Sequence[int], names: Sequence[tuple[int, str]]
) -> str:
    """Which of the numbers that a trace was made for is another one now."""
    for place, x, y in zip(places, old, new, strict=False):
        if x != y:
            owner = next((name for end, name in names if place < end), "a captured number")
            return f"{owner}: {_number(x)} became {_number(y)}, and the trace depends on it"
    return "numbers that the trace depends on changed"


def _number(key: Any) -> str:
    """A number as `number_key` has it."""
    value = key[-1] if isinstance(key, tuple) else key
    return value if isinstance(value, str) else repr(value)


def _distance(a: tuple[Any, ...], b: tuple[Any, ...]) -> int:
    return abs(len(a) - len(b)) * 1000 + sum(not _same(x, y) for x, y in zip(a, b, strict=False))


def _same(x: Any, y: Any) -> bool:
    return type(x) is type(y) and bool(x == y)


def _spans(
    fun: Compiled, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """(where its part of a key ends, name) of each argument, and the same for its numbers."""
    walk = Walk(fun._shapeless)
    walk.live = True
    spans, numbers = [], []
    for name, value in zip(_names(fun, len(args)), args, strict=True):
        walk.visit(value, args, name)
        spans.append((len(walk.key), name))
        numbers.append((len(walk.scalars), name))
    if kwargs:
        walk.key.append(tuple(kwargs))
        for name, value in kwargs.items():
            walk.visit(value, kwargs, name)
            spans.append((len(walk.key), name))
            numbers.append((len(walk.scalars), name))
    return spans, numbers


def _names(fun: Compiled, count: int) -> list[str]:
    try:
        names = list(inspect.signature(fun.__wrapped_function__).parameters)
    except (TypeError, ValueError):
        names = []
    return [names[i] if i < len(names) else f"argument {i}" for i in range(count)]


def _cause(old: tuple[Any, ...], new: tuple[Any, ...], spans: Sequence[tuple[int, str]]) -> str:
    """The first difference of two keys in words."""
    for position, (x, y) in enumerate(zip(old, new, strict=False)):
        if _same(x, y):
            continue
        owner = next((name for end, name in spans if position < end), "captured state" if spans else "what it sees")
        return f"{owner}: {_words(x)} became {_words(y)}"
    return "a container has another number of elements" if len(old) != len(new) else "an equal key was dropped"


def _words(part: Any) -> str:
    if isinstance(part, ArrayType):
        return show_kind(part)
    if isinstance(part, Names):
        return repr(part)
    if part is array:
        return "an array"
    if isinstance(part, type):
        return f"a value of type {part.__name__}"
    if isinstance(part, tuple) and len(part) == 2:
        first, second = part
        if isinstance(first, ArrayType):
            return f"{show_kind(first)} with strides {second}"
        if isinstance(first, Dtype):
            return f"{first.name} of {len(second)} axes"
        if isinstance(first, type):
            return f"a {first.__name__} of {second}"
    return str(part) if not isinstance(part, str) else part if part[:1].isdigit() or part[:1] == "-" else repr(part)
