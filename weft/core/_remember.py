"""What a function builds, remembered: for arrays of kinds seen before, and arguments seen before, it builds the same.

Working out axes, shapes and promotion is most of the cost of a call that only adds nodes to a graph. When a call comes
for the second time the function runs on stand-ins; after that the nodes are made again (`Steps` of
weft.transforms.rules). Many calls never come again: arrays that grow are of another kind at each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from weft.array import array, wrap
from weft.graph.node import Node
from weft.primitives.base import Composite, Placeholder
from weft.runtime.objects import MAKERS
from weft.transforms.rules import Forward

MOST = 1 << 13
"""Calls that are remembered; beyond that all are forgotten."""
KNOWN: dict[tuple[Any, ...], Forward] = {}
"""What each call built, by (function, kinds of its arrays, other arguments and their types)."""

ONCE: set[tuple[Any, ...]] = set()
"""Calls that have been made once."""

F = TypeVar("F", bound=Callable[..., Any])
_PLAIN = frozenset({int, bool, type(None)})


def _key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """What tells calls apart beside the kinds of arrays; None if an argument is anything but a plain integer (symbolic
    sizes act as integers, but are none), None, or a tuple of plain integers."""
    for value in args:
        cls = type(value)
        if cls not in _PLAIN and not (cls is tuple and all(type(n) is int for n in value)):
            return None
    if not kwargs:
        return (*args, *[type(value) for value in args])
    rest = _key(tuple(kwargs.values()), {})
    return None if rest is None else (*args, *[type(value) for value in args], *kwargs, *rest)


_ALLOWED = _PLAIN | {float, str}
_CLASSES: set[tuple[type, ...]] = set()
"""Classes of arguments, in order, that are all plain."""


def _numbers_key(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """What tells plain arguments apart: 0.0 and -0.0, 1 and 1.0 and True are different numbers. None if one is
    anything but a plain number, a string or None."""
    classes = tuple(map(type, values))
    if classes not in _CLASSES:
        if not _ALLOWED.issuperset(classes):
            return None
        _CLASSES.add(classes)
    if float in classes and 0.0 in values and any(value == 0 for value in values if type(value) is float):
        values = tuple([value.hex() if type(value) is float else value for value in values])
    return (*classes, *values)


def remembered_all(arrays: int) -> Callable[[F], F]:
    """For a function whose first `arrays` arguments are arrays or None, whose others are plain numbers, strings and
    None, and which gives one array that depends on nothing but the kinds of the arrays and the other arguments. It is
    called without names of arguments."""

    def decorate(function: F) -> F:
        def call(*args: Any) -> Any:
            nodes: list[Node] = []
            key: list[Any] = [function]
            for value in args[:arrays]:
                if value.__class__ is array:
                    nodes.append(value._node)
                    key.append(value._node.kind)
                elif value is None:
                    key.append(None)
                else:
                    return function(*args)
            others = _numbers_key(args[arrays:])
            if len(args) < arrays or others is None:
                return function(*args)
            found = (*key, *others)
            steps = KNOWN.get(found)
            if steps is not None:
                return wrap(cast(Node, steps.run(*nodes)))
            if any(node.kind.symbolic for node in nodes):
                return function(*args)
            if _comes_again(found):
                return _learnt(found, function, nodes, args, {})
            made = function(*args)
            _learn_composite(found, made._node, nodes)
            return made

        return cast(F, MAKERS.recall(KNOWN, Forward, function, arrays, wrap, call))

    return decorate


def _comes_again(key: tuple[Any, ...]) -> bool:
    """Whether a call has been made before."""
    if key in ONCE:
        return True
    if len(ONCE) >= MOST:
        ONCE.clear()
    ONCE.add(key)
    return False


def _learnt(
    key: tuple[Any, ...],
    function: Callable[..., Any],
    nodes: list[Node],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> array:
    """The second call; arrays among `args` are those of `nodes`, in their order."""
    given = [Node(Placeholder(function.__name__), (), node.kind) for node in nodes]
    left = iter(given)
    result = function(*[wrap(next(left)) if a.__class__ is array else a for a in args], **kwargs)
    return wrap(cast(Node, _keep(key, Forward(given, result._node)).run(*nodes)))


def _learn_composite(key: tuple[Any, ...], made: Node, nodes: list[Node]) -> None:
    """Remember at once a call that makes one node of its operands: there is nothing to find out about it."""
    if isinstance(made.op, Composite) and made.inputs == tuple(nodes):
        given = [Node(Placeholder("a call"), (), node.kind) for node in nodes]
        _keep(key, Forward(given, Node(made.op, tuple(given), made.kind)))


def _keep(key: tuple[Any, ...], steps: Forward) -> Forward:
    if len(KNOWN) >= MOST:
        KNOWN.clear()
    KNOWN[key] = steps
    return steps


def remembered(arrays: int) -> Callable[[F], F]:
    """For a function whose first `arrays` arguments (one or two) are arrays, and which gives one array that depends on
    nothing but their kinds and its other arguments."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def one(a: Any, /, *args: Any, **kwargs: Any) -> Any:
            if a.__class__ is array and (rest := _key(args, kwargs) if args or kwargs else ()) is not None:
                node = a._node
                key = (function, node.kind, *rest)
                steps = KNOWN.get(key)
                if steps is not None:
                    return wrap(steps.run(node))
                if not node.kind.symbolic and _comes_again(key):
                    return _learnt(key, function, [node], (a, *args), kwargs)
            return function(a, *args, **kwargs)

        @functools.wraps(function)
        def two(a: Any, b: Any, /, **kwargs: Any) -> Any:
            if a.__class__ is array and b.__class__ is array and not kwargs:
                x, y = a._node, b._node
                key = (function, x.kind, y.kind)
                steps = KNOWN.get(key)
                if steps is not None:
                    return wrap(steps.run(x, y))
                if not x.kind.symbolic and not y.kind.symbolic and _comes_again(key):
                    return _learnt(key, function, [x, y], (a, b), kwargs)
            return function(a, b, **kwargs)

        return cast(F, one if arrays == 1 else two)

    return decorate
