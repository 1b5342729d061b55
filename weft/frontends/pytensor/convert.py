"""From a graph of PyTensor to a function over arrays of Weft.

A rule says what the nodes of one class of `Op` are in Weft: `@converts(Alloc, known=...)` above a function of the op,
the node and the values of its inputs. Which inputs have to be known before anything runs (sizes) is part of the rule,
because the graph is cut where such a number depends on data (segments.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scalar.basic import ScalarType
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType
from pytensor.tensor.type_other import NoneTypeT, SliceType

from weft.array import array
from weft.frontends.pytensor.sizes import computed
from weft.frontends.pytensor.values import Known, NotConverted, Value, cast, is_list, is_sparse
from weft.records import dataclass

Convert = Callable[..., Any]
Positions = Callable[[Apply], Iterable[int]]
Refusal = Callable[[Apply], str | None]


@dataclass(frozen=True)
class Rule:
    """How nodes of one class of operations are translated."""

    convert: Convert
    known: Positions
    """The positions of inputs whose values must be known before anything runs."""
    refuses: Refusal
    """Why a node cannot be translated, or None."""
    sized: Callable[[Apply], bool]
    """Whether how many elements a node gives depends on data."""
    lists: bool
    """Whether its values may be lists."""


RULES: dict[type, Rule] = {}

_HELD = (DenseTensorType, ScalarType, RandomType, SliceType, NoneTypeT)


def _none(node: Apply) -> Iterable[int]:
    return ()


def _fits(node: Apply) -> str | None:
    return None


def _never(node: Apply) -> bool:
    return False


def converts(
    *classes: type,
    known: Positions = _none,
    refuses: Refusal = _fits,
    sized: Callable[[Apply], bool] = _never,
    lists: bool = False,
) -> Callable[[Convert], Convert]:
    """Say that a function translates the nodes of some classes of operations."""

    def register(convert: Convert) -> Convert:
        for cls in classes:
            RULES[cls] = Rule(convert, known, refuses, sized, lists)
        return convert

    return register


def rule_of(op: Any) -> Rule | None:
    """The rule for an operation: that of the first of its classes that has one."""
    for cls in type(op).__mro__:
        if cls in RULES:
            return RULES[cls]
    return None


def has_computed_size(node: Apply) -> bool:
    """Whether how many elements a node gives depends on data."""
    rule = rule_of(node.op)
    return rule is not None and rule.sized(node)


def refusal(node: Apply) -> str | None:
    """Why a node is left to PyTensor, or None."""
    rule = rule_of(node.op)
    if rule is None:
        return "it has no translation"
    values = (*node.inputs, *node.outputs)
    other = next((x for x in values if not (_is_held(x) or (rule.lists and is_list(x)))), None)
    if other is not None:
        return f"programs have no values of type {other.type}"
    return rule.refuses(node)


def _is_held(x: Variable) -> bool:
    """Whether a program can have the values of a variable."""
    return isinstance(x, Constant) or isinstance(x.type, _HELD) or is_sparse(x)


class Refused(Exception):
    """A node of a whole function turned out to have no translation when the shapes of its values were there."""

    def __init__(self, node: Apply, reason: str) -> None:
        super().__init__(reason)
        self.node, self.reason = node, reason


# ---- what a graph does beside computing ----


class Effects:
    """What happens besides the results: checks that raise, values that are printed. They are results of the program,
    which the caller acts on when it has run."""

    def __init__(self) -> None:
        self.checks: list[tuple[array, Callable[[Any], None]]] = []

    def add(self, value: array, act: Callable[[Any], None]) -> None:
        self.checks.append((value, act))


_OPEN = threading.local()


def effects() -> Effects:
    """Those of the body that is being translated."""
    return _OPEN.stack[-1]  # type: ignore[no-any-return]


@contextmanager
def collecting() -> Iterator[Effects]:
    """Collect the effects of what is translated meanwhile."""
    stack = _OPEN.__dict__.setdefault("stack", [])
    stack.append(Effects())
    try:
        yield stack[-1]
    finally:
        stack.pop()


def value_of(x: Variable) -> Value | None:
    """The value of a variable in the graph that is being translated, if it has one yet."""
    if isinstance(x, Constant):
        return Known(x.data if x.data is None or not np.isscalar(x.data) else np.asarray(x.data))
    values: dict[Variable, Value] | None = getattr(_OPEN, "values", None)
    return None if values is None else values.get(x)


# ---- graphs ----


class Graph:
    """Nodes of PyTensor as a function of values: what is called while Weft traces."""

    def __init__(
        self,
        inputs: Sequence[Variable],
        outputs: Sequence[Variable],
        nodes: Sequence[Apply] | None = None,
        is_whole: bool = False,
    ) -> None:
        self.inputs, self.outputs, self.is_whole = list(inputs), list(outputs), is_whole
        self.nodes = io_toposort(self.inputs, self.outputs) if nodes is None else list(nodes)
        self._constants: dict[Variable, Known] = {}
        self.lazy = branches(self.nodes, self.outputs)
        """By node of an IfElse: the nodes that only one of its branches needs, one list each."""
        self._in_branch = {node for parts in self.lazy.values() for part in parts for node in part}

    def __call__(self, *given: Value) -> list[Value]:
        values: dict[Variable, Value] = dict(zip(self.inputs, given, strict=True))
        for node in self.nodes:
            if node not in self._in_branch:
                self.run(node, values)
        return [self.value(x, values) for x in self.outputs]

    def run(self, node: Apply, values: dict[Variable, Value]) -> None:
        """Translate one node."""
        outside, _OPEN.values = getattr(_OPEN, "values", None), values
        try:
            if node in self.lazy:
                made = RULES[type(node.op)].convert(node.op, node, self, values)
            else:
                made = translate(node, [self.value(x, values) for x in node.inputs])
        except NotConverted as error:
            if not self.is_whole:
                raise
            raise Refused(node, str(error)) from None
        finally:
            _OPEN.values = outside
        values.update(zip(node.outputs, made, strict=True))

    def value(self, x: Variable, values: dict[Variable, Value]) -> Value:
        found = values.get(x)
        if found is not None:
            return found
        assert isinstance(x, Constant), f"{x} has no value"
        if x not in self._constants:
            self._constants[x] = value_of(x)  # type: ignore[assignment]
        return self._constants[x]


def translate(node: Apply, given: Sequence[Value]) -> list[Value]:
    """The values of a node's outputs."""
    if all(isinstance(x, Known) for x in given):
        found = computed(node, given)  # type: ignore[arg-type]
        if found is not None:
            return found
    rule = rule_of(node.op)
    if rule is None:
        raise NotConverted(f"{node.op} has no translation")
    made = rule.convert(node.op, node, *given)
    results = list(made) if isinstance(made, (list, tuple)) else [made]
    return [typed(x, out) for x, out in zip(results, node.outputs, strict=True)]


def typed(value: Value, variable: Variable) -> Value:
    """A value with the dtype that PyTensor says it has."""
    dtype = getattr(variable.type, "dtype", None)
    if isinstance(value, Known) or dtype is None or not isinstance(value, array):
        return value
    return cast(value, dtype)


Readers = dict[Variable, list[tuple[Apply | None, int]]]


def readers_of(nodes: Sequence[Apply], outputs: Sequence[Variable]) -> Readers:
    """By variable: the nodes that read it, and as which of their inputs; None stands for a result of the graph."""
    found: Readers = {}
    for node in nodes:
        for at, x in enumerate(node.inputs):
            found.setdefault(x, []).append((node, at))
    for x in outputs:
        found.setdefault(x, []).append((None, 0))
    return found


def branches(nodes: Sequence[Apply], outputs: Sequence[Variable]) -> dict[Apply, list[list[Apply]]]:
    """For each IfElse: the nodes that are needed by one of its branches and by nothing else."""
    conditionals = [node for node in nodes if type(node.op).__name__ == "IfElse"]
    if not conditionals:
        return {}
    clients = readers_of(nodes, outputs)
    found: dict[Apply, list[list[Apply]]] = {}
    for node in conditionals:
        count = node.op.n_outs
        found[node] = [
            _only_for(node, range(first, first + count), nodes, clients) for first in (1, 1 + count)
        ]  # fmt: skip
    return found


def _only_for(target: Apply, positions: range, nodes: Sequence[Apply], clients: Readers) -> list[Apply]:
    """The nodes whose results are read by these inputs of a node, or by others of the kind, and by nothing else."""
    inside: set[Apply] = set()

    def is_inside(reader: Apply | None, at: int) -> bool:
        return reader in inside or (reader is target and at in positions)

    for node in reversed(nodes):
        if node is target:
            continue
        readers = [reader for x in node.outputs for reader in clients.get(x, ())]
        if readers and all(is_inside(reader, at) for reader, at in readers):
            inside.add(node)
    return [node for node in nodes if node in inside]
