"""One trace of a compiled function: the program, where its inputs come from, for which numbers and sizes it holds, and
what to do with its outputs."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from weft.array import array, wrap
from weft.config import config
from weft.dtypes import Dtype, float32
from weft.evaluate import Recipe, close
from weft.graph.dims import DimEnv
from weft.graph.lines import inherit
from weft.graph.node import Graph, Kind, Node, Size, kind_of
from weft.passes.executable import Executable, assemble
from weft.passes.pipeline import WRAPPERS, compile_graph, wrapped
from weft.passes.template import Templates
from weft.passes.verify import verify_plan
from weft.primitives.base import DATA, Constant, Parameter, Placeholder, RunTimeConstant, bind, words_of
from weft.primitives.filling import fill_kind, fill_primitive
from weft.runtime.data import Buffer
from weft.transforms import state
from weft.transforms.capture import Walk
from weft.transforms.replay import Call, Made, Template

MOST_SIZES = 1024

Numbers = Callable[..., Sequence[Any] | None]


class Effects:
    """What a call does beside computing: what it returns, arrays and places that it changes."""

    __slots__ = ("alone", "overwritten", "places", "result", "single")

    def __init__(
        self, result: Template, overwritten: list[tuple[int, int]], places: list[tuple[int, Template]], new: bool
    ) -> None:
        self.result, self.overwritten, self.places = result, overwritten, places
        self.alone = new and not overwritten and not places
        """Whether all it does is to return what it made (`new`): nothing that it got, no changes."""
        self.single = self.alone and isinstance(result, Made) and result.value == 0
        """Whether all it does is to return the array that the program computes."""

    def carry_out(self, made: Sequence[array], walk: Walk | None, numbers: Sequence[Any]) -> Any:
        if walk is None:
            return self.result.build(Call(made, (), (), numbers))
        call = Call(made, walk.arrays, walk.objects, numbers)
        answer = self.result.build(call)
        for place, output in self.overwritten:
            walk.arrays[place]._overwrite(made[output])
        for place, contents in self.places:
            state.write(walk.containers[place], contents.build(call))
        return answer


class Trace:
    """The nodes of a trace, before there is a program: everything that outputs are computed from, in order."""

    __slots__ = ("constants", "inputs", "order", "outputs")

    def __init__(self, order: list[Node], outputs: list[Node], inputs: list[int | Buffer]) -> None:
        self.order, self.outputs, self.inputs = order, outputs, inputs
        self.constants: list[RunTimeConstant] = list(
            {id(n.value): n.value for n in order if isinstance(n.value, RunTimeConstant)}.values()
        )


class Variant:
    """A trace that holds for arrays of given shapes."""

    __slots__ = ("_words", "conversions", "effects", "inputs", "numbers", "recipe")

    def __init__(
        self, traced: Trace, effects: Effects, numbers: Numbers | None, wants: list[tuple[int, Dtype]]
    ) -> None:
        self.inputs, self.effects, self.numbers = traced.inputs, effects, numbers
        self.conversions = wants
        """Of each run-time constant: which number it is, in which dtype."""
        self.recipe: Any = None
        self._words: Sequence[int] = ()

    def program(self, recipe: Recipe) -> Variant:
        """Set the program."""
        self.recipe = recipe
        if not self.conversions:
            self._words = self.words(recipe, ())
        return self

    def recipe_for(self, kinds: Sequence[Kind]) -> Recipe | None:
        """The program for arrays of these kinds; None if the trace does not hold for them."""
        return self.recipe

    def words(self, recipe: Recipe, numbers: Sequence[Any]) -> list[int]:
        """The words of the program's constants in a call with these numbers."""
        given = [_convert(numbers[at], dtype) for at, dtype in self.conversions]
        words: list[int] = []
        for position, fixed in recipe.sources:
            words.extend(fixed if position is None else given[position])
        return words

    def run(self, recipe: Recipe, numbers: Sequence[Any], buffers: Sequence[Buffer], walk: Walk | None) -> Any:
        given: list[Buffer] = []
        for i in self.inputs:
            given.append(buffers[i] if i.__class__ is int else i)  # type: ignore[index, arg-type]
        executable = recipe.executable
        words = self._words if recipe is self.recipe and not self.conversions else self.words(recipe, numbers)
        results = executable.run(given, words)
        kinds = executable.kinds
        if self.effects.single:
            return wrap(Node(DATA, (), kinds[0], results[0]))
        made = [wrap(Node(DATA, (), kind, buffer)) for kind, buffer in zip(kinds, results, strict=True)]
        return self.effects.carry_out(made, walk, numbers)


_F32, _U32 = struct.Struct("<f"), struct.Struct("<I")


def _convert(number: Any, dtype: Dtype) -> tuple[int, ...]:
    """`words_of`, with a short way for the usual case (and not for NaN, nor for what is too large)."""
    if dtype is float32 and number.__class__ is float and -3e38 < number < 3e38:
        return _U32.unpack(_F32.pack(number))
    return words_of(number, dtype)


def fixed_program(traced: Trace, layouts: Sequence[Buffer], places: dict[int, int]) -> Recipe:
    """The program for the shapes and layouts of this trace. `places`: the number of the array behind a placeholder."""
    for node in traced.order:
        if id(node) in places:
            node.value = layouts[places[id(node)]]
    try:
        graph, strides = close(traced.order, traced.outputs)
    finally:
        for node in traced.order:
            if id(node) in places:
                node.value = None
    return Recipe(compile_graph(graph, strides), traced.constants)


# ---- symbolic sizes ----


class SymbolicSizes:
    """The symbols of a shapeless trace: which axis of which array each one is."""

    def __init__(self) -> None:
        self.env = DimEnv()
        self.places: list[tuple[int, int]] = []

    def kind(self, position: int, kind: Kind) -> Kind:
        """The kind of array number `position` with symbols for its sizes; 0 and 1 stay numbers."""
        shape: list[Size] = []
        for axis, n in enumerate(kind.shape):
            if n < 2:
                shape.append(n)
                continue
            self.places.append((position, axis))
            shape.append(self.env.symbol(f"n{len(self.places) - 1}", int(n)))
        return kind_of(tuple(shape), kind.dtype)

    def read(self, kinds: Sequence[Kind]) -> tuple[int, ...]:
        return tuple(kinds[i].shape[axis] for i, axis in self.places)  # type: ignore[misc]


class ShapelessVariant(Variant):
    """One trace for all sizes that satisfy its guards. Machine code is the same for all of them; the plan of a new size
    is filled in from that of others (passes/template.py) where one fits, and made anew where none does."""

    __slots__ = ("_check", "_sizes", "_traced", "recipes", "templates")

    def __init__(
        self, traced: Trace, effects: Effects, numbers: Numbers | None, wants: list[tuple[int, Dtype]],
        sizes: SymbolicSizes,
    ) -> None:  # fmt: skip
        super().__init__(traced, effects, numbers, wants)
        self._traced, self._sizes = traced, sizes
        self._check = sizes.env.compiled_check()
        self.recipes: dict[tuple[int, ...], Recipe] = {}
        self.templates = Templates(sizes.env, self._graph)

    def recipe_for(self, kinds: Sequence[Kind]) -> Recipe | None:
        sizes = self._sizes.read(kinds)
        recipe = self.recipes.get(sizes)
        if recipe is None and self._check(*sizes):
            if len(self.recipes) >= MOST_SIZES:
                del self.recipes[next(iter(self.recipes))]
            recipe = self.recipes[sizes] = Recipe(self._executable(sizes), self._traced.constants)
        return recipe

    def _executable(self, sizes: tuple[int, ...]) -> Executable:
        # Many functions only ever see one size: the first is planned as it is.
        template = self.templates.find(sizes) if self.recipes and not config.dump else None
        if template is None:
            return compile_graph(self._concrete(sizes))
        if WRAPPERS:
            return wrapped(assemble(template.plan_for(sizes)), self._concrete(sizes), {})
        try:
            made = template.executable(sizes)
        except OverflowError:  # something is larger than memory can be: planning says what
            return compile_graph(self._concrete(sizes))
        if config.check:
            verify_plan(made.plan)
        return made

    def _concrete(self, sizes: tuple[int, ...]) -> Graph:
        """The graph with numbers for symbols."""
        env = self._sizes.env
        values = dict(zip(env.symbols, sizes, strict=True))
        return self._graph(lambda n: env.evaluate(n, values))

    def _graph(self, number: Callable[[Any], Any]) -> Graph:
        """The graph with something in place of symbols."""
        new: dict[Node, Node] = {}
        inputs: list[Node] = []
        for node in self._traced.order:
            kind = fill_kind(node.kind, number)
            if isinstance(node.op, Constant):
                new[node] = Node(node.op, (), kind, node.value)
            elif isinstance(node.op, Placeholder) or node.value is not None:
                new[node] = Node(Parameter(len(inputs)), (), kind)
                inputs.append(new[node])
            else:
                new[node] = bind(fill_primitive(node.op, number), *[new[i] for i in node.inputs])
        inherit(new)
        return Graph(inputs, [new[o] for o in self._traced.outputs])
