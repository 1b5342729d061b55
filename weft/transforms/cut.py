"""A trace that computes sizes: several programs, each of which finds out a size that the next ones depend on.

The graph is cut at each computed size. A part computes it, and what later parts need of what it has computed; then the
size is a number, guards are checked, and the next part is filled in for it as that of a shapeless function is. Nothing
is changed before the last part has run, so a call for which a guard does not hold is as if it had never begun.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from weft.dtypes import Dtype
from weft.errors import ComputationError
from weft.graph.dims import hint_of
from weft.graph.lines import inherit
from weft.graph.node import ArrayType, Node, node_of, reachable_by
from weft.lazy import lazy
from weft.primitives.base import Constant, GetResult, Placeholder, View
from weft.primitives.elementwise import AsType
from weft.primitives.filling import fill_kind
from weft.runtime.data import Buffer, numpy_view, to_buffer
from weft.transforms.capture import Walk
from weft.transforms.computed import Computed, symbols_in
from weft.transforms.replay import Rebuilt
from weft.transforms.updating import Updates
from weft.transforms.variant import (
    Effects,
    Numbers,
    Planned,
    ShapelessVariant,
    SymbolicSizes,
    Trace,
    Variant,
    wrapped,
)

if TYPE_CHECKING:
    from weft import targets
    from weft.passes import lower
    from weft.passes.executable import Executable
    from weft.passes.template import Templates
else:
    targets, lower = lazy("weft.targets"), lazy("weft.passes.lower")

CUT = "the function computes sizes from data"
"""Why nothing that it is given is overwritten."""

Wants = list[tuple[int, Dtype]]


class Part(ShapelessVariant):
    """A part of a trace, for sizes that are known when it runs: those of inputs, and those that earlier parts have
    computed."""

    __slots__ = ("names",)

    def __init__(self, traced: Trace, wants: Wants, sizes: SymbolicSizes, names: tuple[str, ...]) -> None:
        nothing = Effects(Rebuilt(None), [], [], new=True)
        super().__init__(traced, nothing, None, wants, Updates((), {}, {}), sizes)
        self.names = names
        self._check = sizes.env.compiled_check(names)

    def _numbers(self, sizes: tuple[int, ...]) -> Callable[[Any], Any]:
        env = self._sizes.env
        values = dict(zip(self.names, sizes, strict=True))
        return lambda n: env.evaluate(n, values)

    def _executable(self, sizes: tuple[int, ...], templates: Templates, donated: tuple[int, ...] = ()) -> Executable:
        if len(self.names) == len(self._sizes.env.symbols):
            return super()._executable(sizes, templates, donated)
        # A template is for all symbols of a trace, of which some are not known yet.
        return targets.compile_alike(self._concrete(sizes), {}, donated)

    def results(self, recipe: Planned, table: Sequence[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
        """What the part computes of the values in a table, of which `inputs` are the numbers."""
        given: list[Any] = [table[i] if i.__class__ is int else i for i in self.inputs]  # type: ignore[index]
        try:
            return recipe.executable.run(given, self.words(recipe, numbers))
        except ComputationError as error:
            self.locate(error)
            raise


class Begun:
    """A call whose sizes are known: the program of the last part, and the values that it needs."""

    __slots__ = ("executable", "recipe", "table")

    def __init__(self, recipe: Planned, table: list[Buffer]) -> None:
        self.recipe, self.table, self.executable = recipe, table, recipe.executable


class CutVariant(Variant):
    """A trace that computes sizes: `found` are those, and the last outputs of the trace are their nodes. Calls have
    `arrays` arrays."""

    __slots__ = ("_found", "_sizes", "parts", "stages")

    is_cut: ClassVar[bool] = True

    def __init__(
        self,
        traced: Trace,
        effects: Effects,
        numbers: Numbers | None,
        wants: Wants,
        sizes: SymbolicSizes,
        found: Sequence[Computed],
        arrays: int,
    ) -> None:
        traced = _merged(traced)
        super().__init__(traced, effects, numbers, wants, Updates((), {}, {}))
        self.is_small, self._traced = False, None
        self._found, self._sizes = found, sizes
        cutter = _Cutter(
            traced, len(found), arrays, {id(c): want for c, want in zip(traced.constants, wants, strict=True)}
        )
        self.stages = cutter.stages(self._names())
        """Numbers of the sizes that each part but the last computes."""
        self.parts: list[Part] = []
        known = [*sizes.env.symbols[: len(sizes.places)]]
        for members in [*self.stages, None]:
            names = tuple([name for name in sizes.env.symbols if name in known])
            self.parts.append(Part(*cutter.part(members), sizes, names))
            known += [name for i in members or () if (name := self._names()[i]) is not None]

    def _names(self) -> list[str | None]:
        """The symbols of the computed sizes, where they are symbols."""
        symbols = iter(self._sizes.env.symbols[len(self._sizes.places) :])
        return [next(symbols) if size.number is None else None for size in self._found]

    def recipe_for(
        self, kinds: Sequence[ArrayType], buffers: Sequence[Buffer] = (), numbers: Sequence[Any] = ()
    ) -> Any:
        """Run all parts but the last; what is left to do, or None if the trace does not hold for such a call."""
        names = self._names()
        values = dict(zip(self._sizes.env.symbols, self._sizes.read(kinds), strict=False))
        table = [_row_major(buffer, kind) for buffer, kind in zip(buffers, kinds, strict=True)]
        for part, members in zip(self.parts, self.stages, strict=False):
            recipe = part.recipe_at(tuple([values[name] for name in part.names]))
            if recipe is None:
                return None
            results = part.results(recipe, table, numbers)
            for i, size in zip(members, results, strict=False):
                number = _number(size, self._found[i].node)
                name = names[i]
                if name is not None and number >= 2:
                    values[name] = number
                elif name is not None or number != self._found[i].number:
                    return None
            handed_on = zip(results, recipe.executable.kinds, strict=True)  # some are views of others
            table += [_row_major(buffer, kind) for buffer, kind in itertools.islice(handed_on, len(members), None)]
        last = self.parts[-1]
        recipe = last.recipe_at(tuple([values[name] for name in last.names]))
        return None if recipe is None else Begun(recipe, table)

    def run(self, recipe: Any, numbers: Sequence[Any], buffers: Sequence[Buffer], walk: Walk | None) -> Any:
        results = self.parts[-1].results(recipe.recipe, recipe.table, numbers)
        made = wrapped(recipe.executable.kinds, results)
        return made[0] if self.effects.single else self.effects.carry_out(made, walk, numbers)


def _row_major(buffer: Buffer, kind: ArrayType) -> Buffer:
    if buffer.strides is None:
        return buffer
    return to_buffer(numpy_view(buffer, tuple(map(int, kind.shape)), kind.dtype))


def _number(buffer: Buffer, node: Node) -> int:
    return int(numpy_view(buffer, (), node.dtype)[()])


def _merged(traced: Trace) -> Trace:
    """The same with one node for all that compute the same: what one part computes no other one does again."""
    new: dict[Node, Node] = {}
    known: dict[tuple[Any, ...], Node] = {}
    for node in traced.order:
        inputs = tuple([new[x] for x in node.inputs])
        key = (node.op, node.kind, *map(id, inputs)) if inputs and node.value is None else (id(node),)
        if key not in known:
            same = inputs == node.inputs
            known[key] = node if same else node.beside(node_of(node.op, inputs, node.kind, node.value))
        new[node] = known[key]
    inherit(new)
    return Trace([*dict.fromkeys(new.values())], [new[x] for x in traced.outputs], traced.inputs)


class _Cutter:
    """Cuts a trace into parts, one after the other."""

    def __init__(self, traced: Trace, computed: int, arrays: int, wants: dict[int, tuple[int, Dtype]]) -> None:
        self._outputs = traced.outputs[: len(traced.outputs) - computed]
        self._sizes = traced.outputs[len(traced.outputs) - computed :]
        self._wants = wants
        leaves = [node for node in traced.order if _is_given(node)]
        self._given: dict[Node, int | Buffer] = dict(zip(leaves, traced.inputs, strict=True))
        """What needs not be computed: by node, its number in the table, or where it lies."""
        self._next = arrays
        self._left = set(range(computed))

    def stages(self, names: Sequence[str | None]) -> list[list[int]]:
        """Which sizes can be computed together: none depends on another of its stage."""
        level: dict[str, int] = {}
        stages: list[list[int]] = []
        for i, (node, name) in enumerate(zip(self._sizes, names, strict=True)):
            needs = {symbol for x in self._between([node]) for symbol in symbols_in(x)}
            at = max([level[symbol] + 1 for symbol in needs if symbol in level], default=0)
            if name is not None:
                level[name] = at
            while len(stages) <= at:
                stages.append([])
            stages[at].append(i)
        return stages

    def part(self, members: Sequence[int] | None) -> tuple[Trace, Wants]:
        """The part that computes these sizes, or the outputs, and what later parts need of it."""
        self._left -= set(members or ())
        roots = self._outputs if members is None else [self._sizes[i] for i in members]
        kept = [] if members is None else self._needed_later(set(self._between(roots)))
        traced = self._copied([*roots, *kept])
        for node in kept:
            self._given[node] = self._next
            self._next += 1
        return traced, [self._wants[id(c)] for c in traced.constants]

    def _between(self, roots: Iterable[Node]) -> list[Node]:
        """What has to be computed for these nodes, themselves and what it begins from included."""
        return reachable_by(roots, lambda node: () if node in self._given else node.inputs)

    def _needed_later(self, computed: set[Node]) -> list[Node]:
        """The values of a part that later ones begin from. What is cheap to make again of something no larger is made
        again; what cannot be stored (tapes) is, too."""
        found: set[Node] = set()
        stack = [*self._outputs, *[self._sizes[i] for i in self._left]]
        seen = set(stack)
        while stack:
            node = stack.pop()
            if node in self._given:
                continue
            is_array = type(node.kind) is ArrayType
            if is_array and (node in computed or (isinstance(node.op, GetResult) and node.inputs[0] in computed)):
                found.add(self._smallest(node))
                continue
            new = [x for x in node.inputs if x not in seen]
            seen.update(new)
            stack.extend(new)
        return sorted([node for node in found if self._is_kept(node)], key=lambda node: node.id)

    def _smallest(self, node: Node) -> Node:
        while isinstance(node.op, (View, AsType)) and _nbytes(node.inputs[0]) <= _nbytes(node):
            node = node.inputs[0]
        return node

    def _is_kept(self, node: Node) -> bool:
        return node not in self._given and bool(node.inputs)

    def _copied(self, outputs: Sequence[Node]) -> Trace:
        """A trace of its own, with placeholders for what earlier parts have computed."""
        new: dict[Node, Node] = {}
        sources: list[int | Buffer] = []
        order = self._between(outputs)
        for node in order:
            if node not in self._given:
                made = node_of(node.op, tuple([new[x] for x in node.inputs]), node.kind, node.value)
                new[node] = node.beside(made)
                continue
            new[node] = node.beside(Node(Placeholder("compile"), (), node.kind))
            sources.append(self._given[node])
        inherit(new)
        return Trace([new[node] for node in order], [new[node] for node in outputs], sources)


def _is_given(node: Node) -> bool:
    return not isinstance(node.op, Constant) and (isinstance(node.op, Placeholder) or node.value is not None)


def _nbytes(node: Node) -> Any:
    return lower.nbytes_of(Node(node.op, (), fill_kind(node.kind, hint_of)))
