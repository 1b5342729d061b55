"""compile: a function traced once, then run as a program. It gives what the plain function gives, or traces again, or
runs plain.

A call walks its arguments and captured state (capture.py). Equal keys mean that the trace holds: its program runs on
the arrays as they are now, changes that the function made to arrays and containers are made again, and the results are
put together as the function returned them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from weft import tree
from weft.array import array, evaluate_nodes, wrap
from weft.evaluate import Recipe, close
from weft.graph.node import Graph, Node, reachable
from weft.graph.trace import is_tracing, trace
from weft.passes.pipeline import compile_graph
from weft.primitives.base import DATA, Placeholder
from weft.runtime.data import Buffer
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

    def __init__(self, recipe: Recipe, inputs: list[int | Buffer]) -> None:
        self.recipe, self.inputs = recipe, inputs
        self.words: Sequence[int] = recipe.words([]) if recipe.sources else ()
        self.result: list[Any] = []
        self.structure: tree.Structure | None = None
        self.single = False
        self.overwritten: list[tuple[int, int]] = []
        self.containers: list[tuple[int, Any]] = []

    def run(self, arrays: Sequence[array], walk: Walk | None) -> Any:
        buffers: list[Buffer] = []
        for i in self.inputs:
            buffers.append(arrays[i]._node.value if i.__class__ is int else i)  # type: ignore[index, arg-type]
        executable = self.recipe.executable
        results = executable.run(buffers, self.words)
        kinds = executable.plan.graph.outputs
        if self.single:
            return wrap(Node(DATA, (), kinds[0].kind, results[0]))
        made = [wrap(Node(DATA, (), output.kind, buffer)) for output, buffer in zip(kinds, results, strict=True)]
        answer = self.structure.unflatten([_rebuilt(x, made, arrays) for x in self.result]) if self.structure else None
        for place, output in self.overwritten:
            arrays[place]._overwrite(made[output])
        for place, contents in self.containers:
            assert walk is not None
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
        self._variants: dict[tuple[Any, ...], Variant | str] = {}
        self._simple = is_closed(fun) and inputs is None and outputs is None
        self._warned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() or DISABLED[0]:
            return self.__wrapped_function__(*args, **kwargs)
        walk = Walk()
        visit = walk.visit
        for argument in args:
            visit(argument)
        if kwargs:
            walk.key.append(tuple(kwargs))
            for argument in kwargs.values():
                visit(argument)
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
                walk.key.append((a._node.kind, value.strides))
        key = tuple(walk.key)
        variant = self._variants.get(key)
        if variant is None:
            variant = self._trace(key, walk, args, kwargs)
        if variant.__class__ is str:
            return self._plain(variant, args, kwargs)  # type: ignore[arg-type]
        return variant.run(walk.arrays, walk)  # type: ignore[union-attr]

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

    def _trace(self, key: tuple[Any, ...], walk: Walk, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant | str:
        if len(self._variants) >= MOST_VARIANTS:
            del self._variants[next(iter(self._variants))]
        variant = trace_call(self.__wrapped_function__, walk, args, kwargs)
        self._variants[key] = variant
        if len(self._variants) == MANY_VARIANTS:
            name = getattr(self.__wrapped_function__, "__name__", "function")
            warnings.warn(
                f"[compile] {name} has been traced for {MANY_VARIANTS} different signatures; arguments or captured values that change "
                "at every call should be arrays.", stacklevel=4,
            )  # fmt: skip
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


def trace_call(fun: Callable[..., Any], walk: Walk, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Variant | str:
    """Run the function on placeholders and make a program of what it did; the caller's state is as before
    afterwards."""
    snapshot = Snapshot(walk)
    inputs = [Node(Placeholder("compile"), (), a._node.kind) for a in walk.arrays]
    first = inputs[0].id if inputs else Node(DATA, (), None).id  # type: ignore[arg-type]
    try:
        for a, node in zip(walk.arrays, inputs, strict=True):
            a._node = node
        with trace():
            value = fun(*args, **kwargs)
            return _record(value, walk, snapshot, inputs, first)
    finally:
        snapshot.restore()


def _record(value: Any, walk: Walk, snapshot: Snapshot, inputs: list[Node], first: int) -> Variant | str:
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
        return x

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
    variant = Variant(_program(order, outputs, snapshot, inputs), sources)
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
