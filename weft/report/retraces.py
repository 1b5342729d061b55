"""Why a compiled function was traced again: what its calls could see that differed."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from weft.array import array
from weft.dtypes import Dtype
from weft.graph.node import Kind
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
    spans = _spans(fun, args, kwargs or {})
    lines = []
    for number, key in enumerate(keys):
        variants = fun._variants[key]
        if number == 0:
            lines.append("first call")
        else:
            nearest = min(keys[:number], key=lambda other: _distance(key, other))
            lines.append(_cause(nearest, key, spans))
        again = sum(1 for _ in variants) - 1
        if again > 0:
            lines.extend(["numbers or sizes that break an assumption of the trace (a branch on one)"] * again)
        sizes = sum(len(v.recipes) for v in variants if isinstance(v, ShapelessVariant))
        if sizes > 1:
            lines[-1] += f"; planned for {sizes} sets of sizes, one machine code"
    if fun.plain_because is not None:
        lines.append(f"runs plain, because it captures {fun.plain_because}")
    return lines


def _distance(a: tuple[Any, ...], b: tuple[Any, ...]) -> int:
    return abs(len(a) - len(b)) * 1000 + sum(not _same(x, y) for x, y in zip(a, b, strict=False))


def _same(x: Any, y: Any) -> bool:
    return type(x) is type(y) and bool(x == y)


def _spans(fun: Compiled, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[int, str]]:
    """(where its part of a key ends, name) of each argument."""
    walk = Walk(fun._shapeless)
    walk.live = True
    spans = []
    for name, value in zip(_names(fun, len(args)), args, strict=True):
        walk.visit(value, args, name)
        spans.append((len(walk.key), name))
    if kwargs:
        walk.key.append(tuple(kwargs))
        for name, value in kwargs.items():
            walk.visit(value, kwargs, name)
            spans.append((len(walk.key), name))
    return spans


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
        before = old[position - 1] if position else None
        if isinstance(before, type) and isinstance(x, tuple) and x and x[0] is before:
            before = None
        return f"{owner}: {_words(x)} became {_words(y)}"
    return "a container has another number of elements" if len(old) != len(new) else "an equal key was dropped"


def _words(part: Any) -> str:
    if isinstance(part, Kind):
        return show_kind(part)
    if isinstance(part, Names):
        return repr(part)
    if part is array:
        return "an array"
    if isinstance(part, type):
        return f"a value of type {part.__name__}"
    if isinstance(part, tuple) and len(part) == 2:
        first, second = part
        if isinstance(first, Kind):
            return f"{show_kind(first)} with strides {second}"
        if isinstance(first, Dtype):
            return f"{first.name} of {len(second)} axes"
        if isinstance(first, type):
            return f"a {first.__name__} of {second}"
    return str(part) if not isinstance(part, str) else part if part[:1].isdigit() or part[:1] == "-" else repr(part)
