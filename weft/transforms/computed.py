"""Sizes that depend on data: how many elements a mask selects, how many values are distinct.

Where values are known such a size is a number, found out at once. While a function is traced for calls with other
values (`compile`, `weft.program`) it becomes a symbol, like the sizes of a shapeless function, which a program computes
before anything can be planned that depends on it (cut.py). Bodies of loops and functions under `vmap` have no such
sizes: there it would have to be another one for each step, or for each element of a batch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from weft.evaluate import evaluated
from weft.evaluate.beside import TraceInput, beside
from weft.graph.dims import Dim, DimEnv, hint_of, symbols_of
from weft.graph.node import ArrayType, Node, reachable_by
from weft.graph.trace import refused
from weft.primitives.base import DATA, ConstantValue, Placeholder, RunTimeConstant
from weft.primitives.filling import fill_kind, fill_primitive
from weft.runtime.data import Buffer, numpy_view


class Computed(NamedTuple):
    """A size that a trace computes."""

    node: Node
    """An integer without axes."""
    number: int | None
    """What it must be for the trace to hold; None if it is a symbol, of which guards say what they must."""


class ComputedSizes:
    """The sizes that one trace computes, in the order in which it came upon them."""

    def __init__(self, env: DimEnv) -> None:
        self._env = env
        self.found: list[Computed] = []
        self._sizes: dict[int, int | Dim] = {}
        """By number of the node, as below."""
        self._numbers: dict[Any, int] = {}
        """Numbers for nodes, by what they are: nodes that compute the same have the same one."""
        self._known: dict[Node, int] = {}
        """Nodes that have one. Some of them get a value while the trace goes on, and stay what they were."""

    def owns(self, unknown: Node) -> bool:
        """Whether a node without a value is an input of this trace."""
        raise NotImplementedError

    def _value(self, node: Node, guess: int) -> int:
        """What a node is in the call that is traced; a guess if there is no such call."""
        raise NotImplementedError

    def size(self, node: Node, guess: int) -> int | Dim:
        """The size that a node computes. 0 and 1 are never symbols."""
        number = self._number(node)
        known = self._sizes.get(number)
        if known is None:
            value = self._value(node, guess)
            known = self._env.symbol(f"c{len(self.found)}", value) if value >= 2 else value
            self.found.append(Computed(node, None if type(known) is Dim else value))
            self._sizes[number] = known
        return known

    def sizes(self) -> list[int | Dim]:
        """What has been found, as the trace sees it."""
        return [self._sizes[self._number(size.node)] for size in self.found]

    def _number(self, root: Node) -> int:
        """A number that all nodes have which compute the same."""
        numbers = self._known
        for node in _unvalued([root]):
            if node not in numbers:
                numbers[node] = self._numbers.setdefault(self._key(node, numbers), len(self._numbers))
        return numbers[root]

    def _key(self, node: Node, numbers: dict[Node, int]) -> Any:
        if node.value.__class__ is ConstantValue:
            return node.op, node.kind, node.value.words
        if node.value is None and node.inputs:
            return node.op, node.kind, *[numbers[x] for x in node.inputs]
        return id(node)  # which stays its own, because the node is kept


class CallSizes(ComputedSizes):
    """Those of a call that `compile` traces: arrays have values, which other threads see too."""

    def __init__(self, env: DimEnv) -> None:
        super().__init__(env)
        self._copies: dict[Node, Node] = {}

    def owns(self, unknown: Node) -> bool:
        return isinstance(unknown, TraceInput) and not unknown.running.is_elsewhere()

    def _value(self, node: Node, guess: int) -> int:
        return _evaluated_copy(node, self._copies)


class ProgramSizes(ComputedSizes):
    """Those of a program. `buffers` are the values that its inputs have in a call, if there is one."""

    def __init__(self, env: DimEnv, kinds: Sequence[ArrayType], buffers: Sequence[Buffer] | None) -> None:
        super().__init__(env)
        self._kinds, self._buffers = kinds, buffers
        self._copies: dict[Node, Node] = {}
        self._inputs: set[Node] = set()

    def begin(self, inputs: Sequence[Node]) -> None:
        """These are the inputs of the trace."""
        self._inputs.update(inputs)
        for node, kind, buffer in zip(inputs, self._kinds, self._buffers or (), strict=self._buffers is not None):
            self._copies[node] = Node(DATA, (), kind, buffer)

    def owns(self, unknown: Node) -> bool:
        return unknown in self._inputs

    def _value(self, node: Node, guess: int) -> int:
        return guess if self._buffers is None else _evaluated_copy(node, self._copies)


class ChosenSizes(ProgramSizes):
    """Those of a function that is exported with `samples` of its arguments: the first ones are `chosen`; others are
    what they are for the samples, or `guesses`, but neither 0 nor 1."""

    def __init__(
        self, env: DimEnv, samples: Sequence[Node], chosen: Sequence[int] = (), guesses: Sequence[int] = ()
    ) -> None:
        super().__init__(env, (), None)
        self._samples, self._chosen, self._guesses = samples, chosen, guesses
        self._values: list[int] = []

    def begin(self, inputs: Sequence[Node]) -> None:
        self._inputs.update(inputs)
        self._copies.update(zip(inputs, self._samples, strict=True))

    def _value(self, node: Node, guess: int) -> int:
        self._values.append(self._found(len(self.found), node, guess))
        return self._values[-1]

    def _found(self, number: int, node: Node, guess: int) -> int:
        if number < len(self._chosen):
            return self._chosen[number]
        if number < len(self._guesses):
            found = self._guesses[number]
        elif any(map(_is_unknown, self._samples)):
            found = guess
        else:
            found = _evaluated_copy(node, self._copies)
        return max(found, 2)

    def others(self) -> list[list[int]]:
        """What else to choose, so that all ways on from what was not are taken: 0 and 1 are never symbols."""
        open_ = range(len(self._chosen), len(self.found))
        return [[*self._values[:k], number] for k in open_ for number in (0, 1)]


class KnownSizes(ProgramSizes):
    """Those of a function that is looked at for one call: they are the numbers that they are there."""

    def size(self, node: Node, guess: int) -> int | Dim:
        return self._value(node, guess)


def _evaluated_copy(root: Node, copies: dict[Node, Node]) -> int:
    """What a node of a trace is with the values of the call."""
    for node in _unvalued([root]):
        if node not in copies:  # what has been computed is that, whatever it was computed from
            copies[node] = node if node.value is not None and node.inputs else beside(node, copies)
    return number_of(copies[root])


def number_of(node: Node) -> int:
    """The value of an integer without axes, computed now."""
    node = evaluated(node)
    return int(numpy_view(node.value, (), node.dtype)[()])


def _unvalued(roots: Sequence[Node]) -> list[Node]:
    """What is to be computed for these nodes, and the values that it begins from."""
    return reachable_by(roots, lambda node: node.inputs if node.value is None else ())


class _Current(threading.local):
    sizes: ComputedSizes | None = None


CURRENT = _Current()
"""The trace that this thread makes, if sizes may be computed in it."""


def computed_size(name: str, node: Node, guess: int = 2) -> int | Dim:
    """The size that an integer without axes says, for a function of this name."""
    unknown = [x for x in _unvalued([node]) if _is_unknown(x)]
    if not unknown:
        return number_of(node)
    sizes = CURRENT.sizes
    for x in unknown:
        if isinstance(x.op, Placeholder) and (sizes is None or not sizes.owns(x)):
            raise refused(
                x.op.transform,
                f"[{name}] the size of the result depends on data, which has no value while {x.op.transform} traces a "
                "function: give size=..., keep all elements and select with where(...), or do this outside of it",
            )
    if sizes is None:
        return number_of(node)  # which says why it cannot be computed here
    return sizes.size(node, guess)


def _is_unknown(node: Node) -> bool:
    """Whether a node makes the values that depend on it others in other calls of the traced function."""
    if node.value is not None:
        return isinstance(node.value, RunTimeConstant)
    return isinstance(node.op, Placeholder) or node.kind.symbolic


def symbols_in(node: Node) -> set[str]:
    """The names of the symbols that the kind of a node, or its operation, depends on."""
    found: set[str] = set()

    def note(size: Any) -> Any:
        found.update(symbols_of(size))
        return hint_of(size)

    fill_kind(node.kind, note)
    fill_primitive(node.op, note)
    return found
