"""One trace of a compiled function: the program, where its inputs come from, for which numbers and sizes it holds, and
what to do with its outputs."""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from weft.array import array, wrap
from weft.config import config
from weft.dtypes import Dtype, float32
from weft.errors import ComputationError
from weft.evaluate import Recipe, close
from weft.graph.dims import DimEnv
from weft.graph.lines import inherit, locate, marked
from weft.graph.node import ArrayType, Graph, Node, Size, kind_of, node_of
from weft.graph.placement import device_of
from weft.lazy import lazy
from weft.primitives.base import (
    DATA,
    Constant,
    ConstantValue,
    Parameter,
    Placeholder,
    RunTimeConstant,
    bind,
    words_of,
)
from weft.primitives.filling import fill_kind, fill_primitive
from weft.runtime.data import Buffer
from weft.runtime.program import Cancelled
from weft.transforms import state
from weft.transforms.capture import Walk
from weft.transforms.drawing import DRAWING, RANDOM_STATE
from weft.transforms.replay import Built, Made, Rebuilt, Replay
from weft.transforms.rules import Rebuilding
from weft.transforms.updating import MOST_SETS, UpdateClaim, Updates, are_all_held, large, worth_while

if TYPE_CHECKING:
    from weft import targets
    from weft.passes import growing, pipeline, template, verify
    from weft.passes.executable import Executable
    from weft.passes.pipeline import Layouts
    from weft.passes.template import Templates
    from weft.runtime import run_table
else:
    targets, pipeline = lazy("weft.targets"), lazy("weft.passes.pipeline")
    run_table = lazy("weft.runtime.run_table")  # which loads the interpreter of programs
    growing, template, verify = lazy("weft.passes.growing"), lazy("weft.passes.template"), lazy("weft.passes.verify")

MOST_SIZES = 1024
SMALL = 48
"""Nodes of a trace whose operations are rather made again than that a call waits for its arguments."""
MOST_KINDS = 64
"""Kinds of arguments for which a small trace remembers what is made of them; beyond that all are forgotten."""
STALE = object()
"""The answer of a call that has to be made again."""

Numbers = Callable[..., Sequence[Any] | None]
Source = Callable[[], "tuple[Graph, Layouts]"]


class Effects:
    """What a call does beside computing: what it returns, arrays and places that it changes."""

    __slots__ = ("alone", "overwritten", "places", "result", "single")

    def __init__(
        self, result: Rebuilt, overwritten: list[tuple[int, int]], places: list[tuple[int, Rebuilt]], new: bool
    ) -> None:
        self.result, self.overwritten, self.places = result, overwritten, places
        self.alone = new and not overwritten and not places
        """Whether all it does is to return what it made (`new`): nothing that it got, no changes."""
        self.single = self.alone and isinstance(result, Made) and result.value == 0
        """Whether all it does is to return the array that the program computes."""

    def shape(self, kinds: Sequence[ArrayType]) -> type | Callable[[list[array]], Any] | None:
        """How machine code makes the answer of results of these kinds: None if that is the first of them, `tuple` or
        `list` if it is all of them, else a function of a list of arrays."""
        if self.single:
            return None
        result = self.result
        flat = isinstance(result, Built) and result.value in (tuple, list) and not result.shared
        parts = result.parts or () if flat else ()  # type: ignore[attr-defined]
        if parts and [part.value if isinstance(part, Made) else None for part in parts] == [*range(len(kinds))]:
            return result.value  # type: ignore[no-any-return]
        return functools.partial(self.carry_out, walk=None, numbers=())

    def carry_out(self, made: Sequence[array], walk: Walk | None, numbers: Sequence[Any]) -> Any:
        """The answer of a call, with all changes made. A call that draws random numbers does so in one piece: if
        another thread has drawn some since this call looked at the state, it is STALE, and nothing is changed."""
        if walk is None:
            return self.result.build(Replay(made, (), (), numbers))
        if not self.draws(walk):
            return self.change(made, walk, numbers)
        with DRAWING:
            return self.change(made, walk, numbers) if state.same(walk.random, RANDOM_STATE[0]) else STALE

    def draws(self, walk: Walk) -> bool:
        """Whether a call draws from the global random state."""
        return any(walk.containers[place] is RANDOM_STATE[0] for place, _ in self.places)

    def change(self, made: Sequence[array], walk: Walk, numbers: Sequence[Any]) -> Any:
        """The answer, with all changes made. Ctrl-C that strikes in the middle of them is raised when they are made: to
        make one twice is to make it."""
        try:
            return self._change(made, walk, numbers)
        except BaseException:
            with contextlib.suppress(Exception):
                self._change(made, walk, numbers)
            raise

    def _change(self, made: Sequence[array], walk: Walk, numbers: Sequence[Any]) -> Any:
        call = Replay(made, walk.arrays, walk.objects, numbers)
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

    def copy(self) -> Trace:
        """The same with nodes that nobody else has, and evaluates."""
        new: dict[Node, Node] = {}
        for node in self.order:
            new[node] = node.beside(node_of(node.op, tuple([new[i] for i in node.inputs]), node.kind, node.value))
        inherit(new)
        return Trace([new[node] for node in self.order], [new[node] for node in self.outputs], self.inputs)

    def made_again(
        self, leaf: Callable[[int, ArrayType], Node], number: Callable[[Any], Any] | None = None
    ) -> list[Node]:
        """The outputs, with `leaf(i, kind)` for input i, and with numbers for symbolic sizes."""
        new: dict[Node, Node] = {}
        inputs = itertools.count()
        for node in self.order:
            kind = node.kind if number is None else fill_kind(node.kind, number)
            if isinstance(node.op, Constant):
                new[node] = Node(node.op, (), kind, node.value)
            elif isinstance(node.op, Placeholder) or node.value is not None:
                new[node] = leaf(next(inputs), kind)
            else:
                op = node.op if number is None else fill_primitive(node.op, number)
                new[node] = node.beside(bind(op, *[new[i] for i in node.inputs]))
        inherit(new)
        return [new[node] for node in self.outputs]


class Planned(Recipe):
    """A program, and the same for calls that may overwrite some of its inputs."""

    __slots__ = ("over", "source")

    def __init__(self, executable: Executable, constants: Sequence[ConstantValue], source: Source) -> None:
        super().__init__(executable, constants)
        self.source: Source | None = source
        """What it was made of, as long as that may be needed again."""
        self.over: dict[tuple[int, ...], Recipe] = {}
        """By the numbers of the inputs that may be overwritten."""


class InPlace:
    """A call that is about to overwrite arrays. Held by that call and by nobody else: when it goes, wherever Ctrl-C
    struck, all arrays have values again, and if those are new then all that the function changes is changed."""

    __slots__ = ("answer", "claim", "done", "effects", "kinds", "numbers", "walk")

    def __init__(
        self, claim: UpdateClaim, effects: Effects, kinds: Sequence[ArrayType], walk: Walk, numbers: Sequence[Any]
    ) -> None:
        self.claim, self.effects, self.kinds, self.walk, self.numbers = claim, effects, kinds, walk, numbers
        self.answer: tuple[Any] | None = None
        """The answer of the call, if its program has run."""
        self.done = False

    def finish(self) -> None:
        try:
            self._finish()
        except BaseException:
            with contextlib.suppress(Exception):
                self._finish()
            raise

    def _finish(self) -> None:
        results = self.claim.end()
        if results is not None and not self.done:
            made = wrapped(self.kinds, results)
            if results is not self.claim.progress.results:
                self.claim.promise([x._node for x in made])
            self.answer = (self.effects.change(made, self.walk, self.numbers),)
        self.done = True

    def __del__(self) -> None:
        if not getattr(self, "done", True):  # not there if Ctrl-C struck as soon as it was made
            self._finish()


class Variant:
    """A trace that holds for arrays of given shapes."""

    is_cut: ClassVar[bool] = False
    """Whether it is several programs, cut where sizes are computed."""

    __slots__ = (
        "_constants", "_marked", "_pick", "_remembered", "_traced", "_words", "conversions", "effects", "inputs",
        "is_small", "numbers", "recipe", "updates",
    )  # fmt: skip

    def __init__(
        self, traced: Trace, effects: Effects, numbers: Numbers | None, wants: list[tuple[int, Dtype]], updates: Updates
    ) -> None:
        self.inputs, self.effects, self.numbers = traced.inputs, effects, numbers
        arrays = all(i.__class__ is int for i in traced.inputs)
        places: list[Any] = [*traced.inputs] if arrays else []
        if len(places) == 1:  # a list of one, and not what is in it
            places = [slice(places[0], places[0] + 1)]
        self._pick = operator.itemgetter(*places) if places else None
        """What takes the inputs of the program from the buffers of a call, where all of them are among these."""
        self.conversions = wants
        """Of each run-time constant: which number it is, in which dtype."""
        self.recipe: Any = None
        self.updates = updates
        """What calls may overwrite, if nobody else holds it."""
        self._words: Sequence[int] = ()
        self._constants = traced.constants
        self._marked = marked(traced.order)
        self.is_small = (
            len(traced.order) <= SMALL
            and effects.alone
            and not wants
            and arrays
            and all(n.value.__class__ is ConstantValue for n in traced.order if isinstance(n.op, Constant))
        )
        """Whether it is worth making its operations again, and all that a call does."""
        self._traced = traced.copy() if self.is_small else None  # nodes of the trace hold its arguments
        self._remembered: dict[tuple[ArrayType, ...], Rebuilding | None] = {}
        """How the operations of a small trace are made again, by the kinds of arguments that came more than once."""

    def program(self, recipe: Planned) -> Variant:
        """Set the program."""
        self.recipe = recipe
        if not self.conversions:
            self._words = self.words(recipe, ())
        if self.updates.candidates:
            assert recipe.source is not None
            self.updates = self._worth_while(recipe, large(self.updates, recipe.source()[0]))
        if not self.updates.candidates:
            recipe.source = None
            if not pipeline.WRAPPERS:
                recipe.executable.forget_plan()
        return self

    def _worth_while(self, recipe: Planned, updates: Updates) -> Updates:
        """Of what calls of a program may overwrite, what they would: nothing, if it runs in parts."""
        made = recipe.executable
        if made.in_parts:
            return updates._replace(candidates=())
        if isinstance(made, template.Sized):
            return worth_while(updates, made.template.plan, lambda leaves: self._made_over(recipe, tuple(leaves)).spent)
        return worth_while(updates, made.plan, lambda leaves: pipeline.plan_over(made.plan, leaves).spent)

    def _made_over(self, recipe: Planned, donated: tuple[int, ...]) -> Recipe:
        """The program that may overwrite these inputs, from now on."""
        found = recipe.over[donated] = Recipe(self._plan_over(recipe, donated), self._constants)
        return found

    def recipe_for(
        self, kinds: Sequence[ArrayType], buffers: Sequence[Buffer] = (), numbers: Sequence[Any] = ()
    ) -> Planned | None:
        """The program for arrays of these kinds, and for what lies in them if sizes depend on that; None if the trace
        does not hold for them."""
        return self.recipe

    def again(self, nodes: Sequence[Node], kinds: tuple[ArrayType, ...]) -> Sequence[Node] | None:
        """The operations of a small trace, made for these arrays, of these kinds; None if it does not hold for them."""
        steps = self._remembered.get(kinds)
        if steps is not None:
            return steps.run(*nodes)  # type: ignore[no-any-return]
        made = self._again(nodes)
        if made is not None:
            self._remember(kinds)
        return made

    def _remember(self, kinds: tuple[ArrayType, ...]) -> None:
        """A call with arguments of these kinds has been made. One that comes again is worth remembering."""
        if len(self._remembered) >= MOST_KINDS:
            self._remembered.clear()
        elif kinds in self._remembered:
            given = [Node(Placeholder("compile"), (), kind) for kind in kinds]
            steps = Rebuilding(given, self._again(given) or ())
            self._remembered[kinds] = steps if steps.is_plain else None
            return
        self._remembered[kinds] = None

    def _again(self, nodes: Sequence[Node]) -> list[Node] | None:
        return self._made_of(nodes)

    def _made_of(self, nodes: Sequence[Node], number: Callable[[Any], Any] | None = None) -> list[Node]:
        assert self._traced is not None
        return self._traced.made_again(lambda i, kind: nodes[self.inputs[i]], number)  # type: ignore[index]

    def words(self, recipe: Recipe, numbers: Sequence[Any]) -> list[int]:
        """The words of the program's constants in a call with these numbers."""
        given = [_convert(numbers[at], dtype) for at, dtype in self.conversions]
        words: list[int] = []
        for position, fixed in recipe.sources:
            words.extend(fixed if position is None else given[position])
        return words

    def over(self, recipe: Planned, leaves: tuple[int, ...]) -> Recipe | None:
        """The program that may overwrite these inputs; None if it would overwrite none, or is one too many."""
        found = recipe.over.get(leaves)
        if found is None and not recipe.executable.in_parts and len(recipe.over) < MOST_SETS:
            found = self._made_over(recipe, leaves)
        return found if found is not None and found.spent else None

    def locate(self, error: ComputationError) -> None:
        """Say in an error which line of the function it comes from."""
        locate(error, self._marked)

    def run(self, recipe: Recipe, numbers: Sequence[Any], buffers: Sequence[Buffer], walk: Walk | None) -> Any:
        executable, pick = recipe.executable, self._pick
        given = self._given(buffers) if pick is None else pick(buffers)
        words = self._words if recipe is self.recipe and not self.conversions else self.words(recipe, numbers)
        try:
            results = executable.run(given, words)
        except ComputationError as error:
            self.locate(error)
            raise
        kinds = executable.kinds
        if self.effects.single:
            return wrap(Node(DATA, (), kinds[0], results[0]))
        return self.effects.carry_out(wrapped(kinds, results), walk, numbers)

    def call_record(self) -> tuple[Any, ...] | None:
        """What machine code needs for calls that do nothing but return what they made, and have no numbers; None if it
        cannot make them."""
        executable = self.recipe.executable.quick
        if executable is None or self.conversions:
            return None
        return run_table.call_record(
            executable, self.inputs, self._words, executable.kinds, self.effects.shape(executable.kinds)
        )

    def _given(self, buffers: Sequence[Buffer]) -> Sequence[Buffer]:
        """The inputs of the program."""
        if self._pick is not None:
            return self._pick(buffers)  # type: ignore[no-any-return]
        return [buffers[i] if i.__class__ is int else i for i in self.inputs]  # type: ignore[index, misc]

    # ---- in place ----

    def update(self, recipe: Planned, numbers: Sequence[Any], buffers: list[Buffer], walk: Walk) -> Any:
        """`run`, over the memory of inputs whose old values nobody holds when the call is over. What has been
        overwritten cannot be done again: a call that draws random numbers has its turn from the beginning."""
        if not self.effects.draws(walk):
            return self._update(recipe, numbers, buffers, walk)
        with DRAWING:
            if not state.same(walk.random, RANDOM_STATE[0]):
                return STALE
            return self._update(recipe, numbers, buffers, walk)

    def _update(self, recipe: Planned, numbers: Sequence[Any], buffers: list[Buffer], walk: Walk) -> Any:
        if are_all_held(self.updates, walk):
            return self.run(recipe, numbers, buffers, walk)
        while True:
            call = InPlace(
                UpdateClaim(self.updates, buffers, walk), self.effects, recipe.executable.kinds, walk, numbers
            )
            missing = None
            try:
                leaves = call.claim.take()
                over = recipe.over.get(leaves)
                if over is not None and over.spent:
                    self._run_over(over, numbers, buffers, call.claim)
                elif over is None and leaves and len(recipe.over) < MOST_SETS:
                    missing = leaves
            finally:
                call.finish()
            if call.answer is not None:
                return call.answer[0]
            if missing is None:
                return self.run(recipe, numbers, buffers, walk)
            self._made_over(recipe, missing)

    def _run_over(self, over: Recipe, numbers: Sequence[Any], buffers: Sequence[Buffer], claim: UpdateClaim) -> None:
        given = self._given(buffers)
        words = self.words(over, numbers) if over.sources else ()
        try:
            over.executable.run_in_place(given, words, claim.progress)
        except Cancelled:
            pass
        except ComputationError as error:
            self.locate(error)
            raise

    def _plan_over(self, recipe: Planned, donated: tuple[int, ...]) -> Executable:
        """The program that may overwrite these inputs."""
        assert recipe.source is not None
        if isinstance(recipe.executable, template.Sized):
            graph, layouts = recipe.source()
            return targets.compile_alike(graph, layouts, donated)
        known = recipe.executable.plan
        if growing.holds_tapes(known.graph):
            graph, layouts = recipe.source()
            return targets.compile_graph(graph, layouts, donated)
        planned = pipeline.plan_over(known, donated)
        made = planned.target.assemble(planned)
        return pipeline.wrapped(made, *recipe.source()) if pipeline.WRAPPERS else made


def wrapped(kinds: Sequence[ArrayType], results: Sequence[Buffer | UpdateClaim]) -> list[array]:
    """Arrays of results that a program has computed."""
    return [wrap(Node(DATA, (), kind, buffer)) for kind, buffer in zip(kinds, results, strict=True)]


_F32, _U32 = struct.Struct("<f"), struct.Struct("<I")


def _convert(number: Any, dtype: Dtype) -> tuple[int, ...]:
    """`words_of`, with a short way for the usual case (and not for NaN, nor for what is too large)."""
    if dtype is float32 and number.__class__ is float and -3e38 < number < 3e38:
        return _U32.unpack(_F32.pack(number))
    return words_of(number, dtype)


def closed(traced: Trace, layouts: Sequence[Buffer], places: dict[int, int]) -> tuple[Graph, Layouts]:
    """The graph for the shapes and layouts of this trace. `places`: the number of the array behind a placeholder."""
    for node in traced.order:
        if id(node) in places:
            node.value = layouts[places[id(node)]]
    try:
        return close(traced.order, traced.outputs)
    finally:
        for node in traced.order:
            if id(node) in places:
                node.value = None


def fixed_program(traced: Trace, graph: Graph, strides: Layouts) -> Planned:
    """The program for the shapes and layouts of a trace."""
    return Planned(targets.compile_alike(graph, strides), traced.constants, lambda: (graph, strides))


# ---- symbolic sizes ----


class SymbolicSizes:
    """The symbols of a shapeless trace: which axis of which array each one is."""

    def __init__(self) -> None:
        self.env = DimEnv()
        self.places: list[tuple[int, int]] = []

    def kind(self, position: int, kind: ArrayType) -> ArrayType:
        """The kind of array number `position` with symbols for its sizes; 0 and 1 stay numbers."""
        shape: list[Size] = []
        for axis, n in enumerate(kind.shape):
            if n < 2:
                shape.append(n)
                continue
            self.places.append((position, axis))
            shape.append(self.env.symbol(f"n{len(self.places) - 1}", int(n)))
        return kind_of(tuple(shape), kind.dtype)

    def read(self, kinds: Sequence[ArrayType]) -> tuple[int, ...]:
        return tuple(kinds[i].shape[axis] for i, axis in self.places)  # type: ignore[misc]

    def anew(self) -> SymbolicSizes:
        """The same for another trace."""
        return SymbolicSizes()


class ShapelessVariant(Variant):
    """One trace for all sizes that satisfy its guards. Machine code is the same for all of them; the plan of a new size
    is filled in from that of others (passes/template.py) where one fits, and made anew where none does."""

    __slots__ = ("_at_home", "_check", "_over", "_sizes", "recipes", "templates")

    def __init__(
        self, traced: Trace, effects: Effects, numbers: Numbers | None, wants: list[tuple[int, Dtype]],
        updates: Updates, sizes: SymbolicSizes,
    ) -> None:  # fmt: skip
        super().__init__(traced, effects, numbers, wants, updates)
        self._traced: Trace = traced
        self._sizes = sizes
        self._check = sizes.env.compiled_check()
        self.recipes: dict[tuple[int, ...], Planned] = {}
        self.templates = template.Templates(sizes.env, self._graph, targets.CPU)
        self._at_home = all(device_of(node) is None for node in traced.order)
        """Whether all of it is for the host: templates are."""
        self._over: dict[tuple[int, ...], Templates] = {}
        """Templates by the inputs that they may overwrite."""

    def _again(self, nodes: Sequence[Node]) -> list[Node] | None:
        sizes = self._sizes.read([node.kind for node in nodes])
        return self._made_of(nodes, self._numbers(sizes)) if self._check(*sizes) else None

    def recipe_for(
        self, kinds: Sequence[ArrayType], buffers: Sequence[Buffer] = (), numbers: Sequence[Any] = ()
    ) -> Planned | None:
        return self.recipe_at(self._sizes.read(kinds))

    def recipe_at(self, sizes: tuple[int, ...]) -> Planned | None:
        """The program for these sizes; None if the trace does not hold for them."""
        recipe = self.recipes.get(sizes)
        if recipe is None and self._check(*sizes):
            if len(self.recipes) >= MOST_SIZES:
                for old in [*self.recipes][: MOST_SIZES // 2]:
                    self.recipes.pop(old, None)  # another thread may be at it too
            first = not self.recipes
            made = self._executable(sizes, self.templates)
            recipe = Planned(made, self._constants, lambda: (self._concrete(sizes), {}))
            if first:
                self.updates = self._worth_while(recipe, self.updates)
            self.recipes[sizes] = recipe
        return recipe

    def _plan_over(self, recipe: Planned, donated: tuple[int, ...]) -> Executable:
        made = recipe.executable
        if isinstance(made, template.Sized) and made.template in self.templates.made:
            templates = self._over.get(donated)
            if templates is None:
                templates = self._over[donated] = template.Templates(self._sizes.env, self._graph, targets.CPU, donated)
            return self._executable(tuple(made.at), templates, donated)
        return super()._plan_over(recipe, donated)

    def _executable(self, sizes: tuple[int, ...], templates: Templates, donated: tuple[int, ...] = ()) -> Executable:
        # Many functions only ever see one size: the first is planned as it is.
        fitting = templates.find(sizes) if self.recipes and self._at_home and not config.dump else None
        if fitting is None:  # traces for other numbers may have left one
            return targets.compile_alike(self._concrete(sizes), {}, donated)
        if pipeline.WRAPPERS:
            return pipeline.wrapped(targets.CPU.assemble(fitting.plan_for(sizes)), self._concrete(sizes), {})
        try:
            made = fitting.executable(sizes)
        except OverflowError:  # something is larger than memory can be: planning says what
            return targets.compile_graph(self._concrete(sizes), donated=donated)
        if config.check:
            verify.verify_plan(made.plan, {}, donated)
        return made

    def _numbers(self, sizes: tuple[int, ...]) -> Callable[[Any], Any]:
        """What gives the numbers of sizes in which symbols stand for these."""
        env = self._sizes.env
        values = dict(zip(env.symbols, sizes, strict=True))
        return lambda n: env.evaluate(n, values)

    def _concrete(self, sizes: tuple[int, ...]) -> Graph:
        """The graph with numbers for symbols."""
        return self._graph(self._numbers(sizes))

    def _graph(self, number: Callable[[Any], Any]) -> Graph:
        """The graph with something in place of symbols."""
        inputs: list[Node] = []

        def leaf(i: int, kind: ArrayType) -> Node:
            inputs.append(Node(Parameter(i), (), kind))
            return inputs[-1]

        return Graph(inputs, self._traced.made_again(leaf, number))
