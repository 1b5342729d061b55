"""compile: a function traced once, then run as a program. It gives what the plain function gives, or traces again, or
runs plain.

A call walks its arguments and captured state (capture.py). Equal keys mean that the trace holds: its program runs on
the arrays as they are now, changes that the function made to arrays and containers are made again, and the results are
put together as the function returned them.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from weft import tree
from weft.array import array, evaluate_nodes, wrap
from weft.evaluate import Recipe, close
from weft.graph.dims import Dim, DimEnv, key_of
from weft.graph.node import Graph, Kind, Node, Size, kind_of, reachable
from weft.graph.trace import is_tracing, trace
from weft.passes.pipeline import compile_graph
from weft.primitives.base import DATA, Constant, Parameter, Placeholder, Primitive, bind
from weft.runtime.data import Buffer, numpy_view, to_buffer
from weft.transforms.capture import Snapshot, Walk, put_back

MOST_VARIANTS = 256
MANY_VARIANTS = 32


class _Array:
    """In a recorded result: the array made of output `index`."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class _Known:
    """In a recorded result: the array number `index` of the walk itself."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


class Variant:
    """One trace: the program, where its inputs come from (a position in the walk, or a buffer made while tracing), and
    what to do with its outputs."""

    __slots__ = ("containers", "inputs", "overwritten", "recipe", "result", "single", "structure", "words")

    def __init__(self, recipe: Recipe | None, inputs: list[int | Buffer]) -> None:
        self.recipe, self.inputs = recipe, inputs
        self.words: Sequence[int] = recipe.words([]) if recipe is not None else ()
        self.result: list[Any] = []
        self.structure: tree.Structure | None = None
        self.single = False
        self.overwritten: list[tuple[int, int]] = []
        self.containers: list[tuple[int, Any]] = []

    def recipe_for(self, arrays: Sequence[array]) -> Recipe | None:
        """The program for these arrays; None if the trace does not hold for them."""
        return self.recipe

    def run(self, recipe: Recipe, arrays: Sequence[array], walk: Walk) -> Any:
        buffers: list[Buffer] = []
        for i in self.inputs:
            buffers.append(arrays[i]._node.value if i.__class__ is int else i)  # type: ignore[index, arg-type]
        executable = recipe.executable
        results = executable.run(buffers, self.words if recipe is self.recipe else recipe.words([]))
        kinds = executable.plan.graph.outputs
        if self.single:
            return wrap(Node(DATA, (), kinds[0].kind, results[0]))
        made = [wrap(Node(DATA, (), output.kind, buffer)) for output, buffer in zip(kinds, results, strict=True)]
        answer = self.structure.unflatten([_rebuilt(x, made, arrays) for x in self.result]) if self.structure else None
        for place, output in self.overwritten:
            arrays[place]._overwrite(made[output])
        for place, contents in self.containers:
            put_back(walk.containers[place], _rebuilt_contents(contents, made, arrays))
        return answer


def _rebuilt(x: Any, made: Sequence[array], arrays: Sequence[array]) -> Any:
    if x.__class__ is _Array:
        return made[x.index]
    return arrays[x.index] if x.__class__ is _Known else x


def _rebuilt_contents(contents: Any, made: Sequence[array], arrays: Sequence[array]) -> Any:
    if isinstance(contents, dict):
        return {k: _rebuilt_tree(v, made, arrays) for k, v in contents.items()}
    return [_rebuilt_tree(v, made, arrays) for v in contents]


def _rebuilt_tree(value: Any, made: Sequence[array], arrays: Sequence[array]) -> Any:
    leaves, structure = value
    return structure.unflatten([_rebuilt(x, made, arrays) for x in leaves])


class Compiled:
    """A function that `compile` was given. Call it as the function itself."""

    def __init__(self, fun: Callable[..., Any], inputs: Any, outputs: Any, shapeless: bool) -> None:
        functools.update_wrapper(self, fun, updated=())
        self.__wrapped_function__ = fun
        self._roots = (fun, inputs, outputs)
        self._shapeless = shapeless
        self._variants: dict[tuple[Any, ...], list[Variant | str]] = {}
        self._simple = is_closed(fun) and inputs is None and outputs is None
        self._warned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() or DISABLED[0]:
            return self.__wrapped_function__(*args, **kwargs)
        walk = Walk(self._shapeless)
        visit = walk.visit
        for argument in args:
            visit(argument)
        if kwargs:
            walk.key.append(tuple(kwargs))
            for argument in kwargs.values():
                visit(argument)
        symbolic, walk.shapeless = len(walk.arrays) if self._shapeless else 0, False
        if not self._simple:
            for root in self._roots:
                visit(root)
            visit(RANDOM_STATE[0])
        if walk.opaque is not None:
            return self._plain(walk.opaque, args, kwargs)
        for a in walk.arrays:
            value = a._node.value
            if value.__class__ is not Buffer:
                evaluate_nodes([a._node])
                value = a._node.value
            if value.strides is not None:
                if self._shapeless:
                    a._node = _contiguous(a._node)
                else:
                    walk.key.append((a._node.kind, value.strides))
        key = tuple(walk.key)
        for variant in self._variants.get(key, ()):
            if isinstance(variant, str):
                return self._plain(variant, args, kwargs)
            recipe = variant.recipe_for(walk.arrays)
            if recipe is not None:
                return variant.run(recipe, walk.arrays, walk)
        made = self._trace(key, walk, symbolic, args, kwargs)
        if isinstance(made, str):
            return self._plain(made, args, kwargs)
        recipe = made.recipe_for(walk.arrays)
        assert recipe is not None, "a trace holds for the call it was made for"
        return made.run(recipe, walk.arrays, walk)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: bound like the function."""
        return self if instance is None else functools.partial(self, instance)

    def __reduce__(self) -> Any:
        return Compiled, (*self._roots, self._shapeless)

    def _plain(self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._warned:
            self._warned = True
            name = getattr(self.__wrapped_function__, "__name__", "function")
            warnings.warn(f"[compile] {name} runs uncompiled: it captures {why}.", stacklevel=3)
        return self.__wrapped_function__(*args, **kwargs)

    def _trace(
        self, key: tuple[Any, ...], walk: Walk, symbolic: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Variant | str:
        variant = trace_call(self.__wrapped_function__, walk, symbolic, args, kwargs)
        if len(self._variants) >= MOST_VARIANTS:
            del self._variants[next(iter(self._variants))]
        known = self._variants.setdefault(key, [])
        known.insert(0, variant)
        del known[MOST_VARIANTS:]
        if max(len(self._variants), len(known)) == MANY_VARIANTS:
            name = getattr(self.__wrapped_function__, "__name__", "function")
            warnings.warn(
                f"[compile] {name} has been traced for {MANY_VARIANTS} different signatures; arguments or captured "
                "values that change at every call should be arrays.",
                stacklevel=4,
            )
        return variant


def is_closed(fun: Callable[..., Any]) -> bool:
    """Whether a plain function sees nothing but its arguments (and modules), so that a call need not look at captured
    state."""
    walk = Walk()
    walk.visit(fun)
    if walk.opaque is not None or walk.arrays or walk.containers or getattr(fun, "__closure__", None):
        return False
    return (
        hasattr(fun, "__code__")
        and not any(
            name in fun.__globals__ and not isinstance(fun.__globals__[name], type(functools))
            for name in fun.__code__.co_names
        )
        and not _uses_random(fun.__code__)
    )


def _uses_random(code: Any) -> bool:
    return "random" in code.co_names or any(_uses_random(c) for c in code.co_consts if hasattr(c, "co_names"))


def trace_call(
    fun: Callable[..., Any], walk: Walk, symbolic: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Variant | str:
    """Run the function on placeholders and make a program of what it did; the caller's state is as before
    afterwards. Sizes of the first `symbolic` arrays are symbols."""
    snapshot = Snapshot(walk)
    sizes = SymbolicSizes()
    kinds = [sizes.kind(i, a._node.kind) if i < symbolic else a._node.kind for i, a in enumerate(walk.arrays)]
    inputs = [Node(Placeholder("compile"), (), kind) for kind in kinds]
    first = inputs[0].id if inputs else Node(DATA, (), None).id  # type: ignore[arg-type]
    try:
        for a, node in zip(walk.arrays, inputs, strict=True):
            a._node = node
        with trace():
            value = fun(*args, **kwargs)
            return _record(value, walk, snapshot, inputs, first, sizes if sizes.places else None)
    finally:
        sizes.env.close()
        snapshot.restore()


def _record(
    value: Any, walk: Walk, snapshot: Snapshot, inputs: list[Node], first: int, sizes: SymbolicSizes | None
) -> Variant | str:
    """What the traced function returned and changed, as a variant."""
    known = {id(a): i for i, a in enumerate(walk.arrays)}
    outputs: list[Node] = []
    output_of: dict[int, int] = {}

    def output(node: Node) -> int:
        place = output_of.get(id(node))
        if place is None:
            place = output_of[id(node)] = len(outputs)
            outputs.append(node)
        return place

    def described(x: Any) -> Any:
        if isinstance(x, array):
            return _Known(known[id(x)]) if id(x) in known else _Array(output(x._node))
        return int(x) if type(x) is Dim else x  # a size that leaves as a number is guarded

    leaves, structure = tree.flatten(value)
    result = [described(x) for x in leaves]
    overwritten = [
        (i, output(a._node)) for i, (a, node) in enumerate(zip(walk.arrays, inputs, strict=True)) if a._node is not node
    ]
    containers = []
    for place, contents in snapshot.changed_containers():
        containers.append((place, _described_contents(contents, described)))
    numbers = {id(node): i for i, node in enumerate(inputs)}
    order = reachable(outputs)
    sources: list[int | Buffer] = []
    for node in order:
        if id(node) in numbers:
            sources.append(numbers[id(node)])
        elif isinstance(node.value, Buffer):
            if node.id < first:
                return "an array in a way that compile cannot follow"
            sources.append(node.value)
    variant: Variant
    if sizes is None:
        variant = Variant(_program(order, outputs, snapshot, inputs), sources)
    else:
        variant = ShapelessVariant(order, outputs, sizes, sources)
    variant.result, variant.structure = result, structure
    variant.overwritten, variant.containers = overwritten, containers
    variant.single = (
        isinstance(value, array)
        and len(outputs) == 1
        and not overwritten
        and not containers
        and result[0].__class__ is _Array
    )
    return variant


def _described_contents(contents: Any, described: Callable[[Any], Any]) -> Any:
    def one(value: Any) -> Any:
        leaves, structure = tree.flatten(value)
        return [described(x) for x in leaves], structure

    return {k: one(v) for k, v in contents.items()} if isinstance(contents, dict) else [one(v) for v in contents]


def _contiguous(node: Node) -> Node:
    """The same values, row-major."""
    made = Node(DATA, (), node.kind, to_buffer(numpy_view(node.value, tuple(map(int, node.shape)), node.dtype)))
    made.handle = node.handle
    return made


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

    def read(self, arrays: Sequence[array]) -> tuple[int, ...]:
        return tuple(arrays[i]._node.kind.shape[axis] for i, axis in self.places)  # type: ignore[misc]


class ShapelessVariant(Variant):
    """One trace for all sizes that satisfy its guards. A new size fills in the numbers and plans; machine code is the
    same."""

    __slots__ = ("check", "order", "outputs", "recipes", "sizes")

    def __init__(
        self, order: list[Node], outputs: list[Node], sizes: SymbolicSizes, inputs: list[int | Buffer]
    ) -> None:
        super().__init__(None, inputs)
        self.order, self.outputs, self.sizes = order, outputs, sizes
        self.check = sizes.env.compiled_check()
        self.recipes: dict[tuple[int, ...], Recipe] = {}

    def recipe_for(self, arrays: Sequence[array]) -> Recipe | None:
        numbers = self.sizes.read(arrays)
        recipe = self.recipes.get(numbers)
        if recipe is None and self.check(*numbers):
            if len(self.recipes) >= MOST_VARIANTS:
                self.recipes.clear()
            recipe = self.recipes[numbers] = Recipe(compile_graph(self._concrete(numbers)), [])
        return recipe

    def _concrete(self, numbers: tuple[int, ...]) -> Graph:
        """The graph with numbers for symbols."""
        env = self.sizes.env
        values = dict(zip(env.symbols, numbers, strict=True))
        new: dict[Node, Node] = {}
        inputs: list[Node] = []
        for node in self.order:
            kind = kind_of(tuple(env.evaluate(n, values) for n in node.shape), node.dtype)
            if isinstance(node.op, Constant):
                new[node] = Node(node.op, (), kind, node.value)
            elif isinstance(node.op, Placeholder) or node.value is not None:
                new[node] = Node(Parameter(len(inputs)), (), kind)
                inputs.append(new[node])
            else:
                new[node] = bind(_filled(node.op, env, values), *[new[i] for i in node.inputs])
        return Graph(inputs, [new[o] for o in self.outputs])


def _filled(op: Primitive, env: DimEnv, values: dict[str, int]) -> Primitive:
    """The primitive with numbers for the symbols in its parameters."""
    parameters = tuple(getattr(op, f.name) for f in dataclasses.fields(op))  # type: ignore[arg-type]
    return op if key_of(parameters) is parameters else type(op)(*_fill(parameters, env, values))


def _fill(value: Any, env: DimEnv, values: dict[str, int]) -> Any:
    if type(value) is Dim:
        return env.evaluate(value, values)
    return tuple(_fill(v, env, values) for v in value) if type(value) is tuple else value


def _program(order: list[Node], outputs: list[Node], snapshot: Snapshot, inputs: list[Node]) -> Recipe:
    return Recipe(compile_graph(*_closed(order, outputs, snapshot, inputs)), [])


def _closed(
    order: list[Node], outputs: list[Node], snapshot: Snapshot, inputs: list[Node]
) -> tuple[Graph, dict[Node, tuple[int, ...] | None]]:
    """The graph. Placeholders become parameters with the layouts that the arrays have now."""
    layouts_now = {id(node): before.value.strides for node, (_, before) in zip(inputs, snapshot.nodes, strict=True)}
    for node in order:
        if id(node) in layouts_now:
            node.value = _Layout(layouts_now[id(node)])
    try:
        return close(order, outputs)
    finally:
        for node in order:
            if id(node) in layouts_now:
                node.value = None


def graph_of(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Graph, dict[Node, tuple[int, ...] | None]]:
    """The graph that a call of the function computes, and the layouts of its inputs; nothing is run or changed."""
    walk = Walk()
    for root in (*args, kwargs, getattr(fun, "__wrapped_function__", fun), RANDOM_STATE[0]):
        walk.visit(root)
    evaluate_nodes([a._node for a in walk.arrays])
    snapshot = Snapshot(walk)
    inputs = [Node(Placeholder("explain"), (), a._node.kind) for a in walk.arrays]
    try:
        for a, node in zip(walk.arrays, inputs, strict=True):
            a._node = node
        with trace():
            leaves = tree.leaves(fun(*args, **kwargs))
            outputs = list(dict.fromkeys(x._node for x in leaves if isinstance(x, array)))
            return _closed(reachable(outputs), outputs, snapshot, inputs)
    finally:
        snapshot.restore()


class _Layout:
    """Stands in for a buffer while a graph is closed: only its strides are looked at."""

    __slots__ = ("strides",)

    def __init__(self, strides: tuple[int, ...] | None) -> None:
        self.strides = strides


DISABLED = [False]
RANDOM_STATE: list[Any] = [None]
"""The global random state (an array in a list), put here by weft.core.random: compiled functions draw new numbers at
each call."""


def compile(
    fun: Callable[..., Any], inputs: Any = None, outputs: Any = None, shapeless: bool = False
) -> Callable[..., Any]:
    """A function that gives what `fun` gives, to the bit, from a program made at the first call.

    Arrays that the function reaches (arguments, closures, globals, objects, `inputs`) are read anew at each call,
    changes that it makes to them and to containers (`outputs`) are made at each call. A Python value that changed, or
    another shape or dtype, causes a new trace.

    >>> f = compile(lambda x: exp(x) * 2)
    >>> f(array(0.0))
    array(2, dtype=float32)
    """
    if not callable(fun):
        raise TypeError(f"[compile] the first argument must be a function; got {type(fun).__name__}.")
    return Compiled(fun, inputs, outputs, shapeless)


def disable_compile() -> None:
    """Compiled functions run plain from now on."""
    DISABLED[0] = True


def enable_compile() -> None:
    """Compiled functions run compiled from now on."""
    DISABLED[0] = False
