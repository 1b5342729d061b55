"""Programs for front ends: a graph of operations with named, typed inputs, compiled once and called many times.

Another array language reaches Weft through here. It says what the inputs are (`Input`: name, shape, dtype; a size may
be a name, and is then known at a call only) and gives a function that builds the graph from arrays: with the functions
of `weft.core`, or with primitives (`apply`). `trace` runs it once on arrays without values. The `Program` is called
with arrays by position or name, gives what the function returned, explains itself, and can be saved (docs/program.md).

Unlike `compile` nothing is watched: what the function captures is part of the program, for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from weft import tree
from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.errors import at_user_line
from weft.evaluate import evaluate
from weft.files.paths import Path_
from weft.graph.node import Kind, Node, Size, kind_of, next_id, reachable
from weft.graph.trace import is_tracing
from weft.passes.lower import nbytes_of
from weft.passes.memory import Plan
from weft.primitives.base import DATA, MultiOutput, Primitive, bind, bind_many, constant
from weft.records import dataclass
from weft.runtime.data import Buffer, numpy_view, on_host, to_buffer
from weft.transforms.bodies import trace_body
from weft.transforms.exporting import Export
from weft.transforms.importing import Imported, call_text, read_functions
from weft.transforms.updating import Updates
from weft.transforms.variant import Effects, ShapelessVariant, SymbolicSizes, Trace

NAME = "program"
HINT = 12
"""The size that a named one has while the graph is built, unless another is given: a program that looks at it holds for
sizes that answer alike."""
MOST_INSTANCES = 64
"""Graphs that one program keeps, for sizes that its function tells apart."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a program. A size that is a string is known at a call only, and is the same in all inputs that name
    it."""

    name: str
    shape: tuple[int | str, ...]
    dtype: Dtype

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise ValueError(f"[{NAME}] an input has a name that a keyword can have; got {self.name!r}.")
        if not isinstance(self.dtype, Dtype):
            raise TypeError(f"[{NAME}] dtype of input {self.name!r} must be a Weft dtype; got {self.dtype!r}.")
        for n in self.shape:
            if not (isinstance(n, str) or (type(n) is int and n >= 0)):
                raise ValueError(f"[{NAME}] a size is a number or a name; input {self.name!r} has {n!r}.")

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape)) + ("," if len(self.shape) == 1 else "")
        return f"{self.name}: {self.dtype.name} ({sizes})"


def apply(op: Primitive, *operands: array) -> Any:
    """An operation of `weft.primitives` on arrays whose shapes and dtypes it takes as they are: an array, or a list of
    them for an operation with several results."""
    nodes = [x._node for x in operands]
    if isinstance(op, MultiOutput):
        return [wrap(node) for node in bind_many(op, *nodes)]
    return wrap(bind(op, *nodes))


def trace(
    fun: Callable[..., Any],
    inputs: Sequence[Input],
    *,
    name: str | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Program:
    """The program of a function that is called with one array for each input, by position, and returns arrays in any
    lists, tuples and dicts. `sizes` gives named sizes that the graph is built with.

    >>> from weft import program
    >>> halved = program.trace(lambda x, y: {"sum": (x + y) / 2}, [
    ...     program.Input("x", ("n", 3), mx.float32), program.Input("y", (3,), mx.float32)])
    >>> halved(x=mx.ones((2, 3)), y=mx.zeros((3,)))
    {'sum': array([[0.5, 0.5, 0.5],
           [0.5, 0.5, 0.5]], dtype=float32)}
    """
    made = Program(fun, inputs, name or str(getattr(fun, "__name__", type(fun).__name__)))
    made.instance(made.example(sizes or {}))
    return made


class Program:
    """A traced function. `trace` makes one; `load` reads one from a file."""

    def __init__(self, fun: Callable[..., Any], inputs: Sequence[Input], name: str) -> None:
        self.fun, self.inputs, self.name = fun, tuple(inputs), name
        self.__name__, self.__wrapped_function__ = name, fun  # what compile and explain look for
        names = [given.name for given in self.inputs]
        if len(set(names)) < len(names):
            raise ValueError(f"[{NAME}] inputs must have different names; got {', '.join(names)}.")
        self._instances: list[Instance] = []

    def __repr__(self) -> str:
        return f"Program {self.name}({'; '.join(map(str, self.inputs))})"

    # ---- calls ----

    def __call__(self, *args: array, **kwargs: array) -> Any:
        """What the function returns, for arrays by position or name."""
        given = self._arguments(args, kwargs)
        if is_tracing():
            return self.fun(*given)
        instance, results = self._run(given)
        return instance.structure.unflatten(results)

    def run(self, given: Sequence[array]) -> list[array]:
        """The results as a list, in the order in which they stand in what the function returns."""
        return self._run(self._arguments(tuple(given), {}))[1]

    def _run(self, given: list[array]) -> tuple[Instance, list[array]]:
        nodes = [x._node for x in given]
        evaluate(nodes)
        kinds: list[Kind] = []
        buffers: list[Buffer] = []
        for x in given:
            node = x._evaluated(x._node)
            kinds.append(node.kind)
            buffers.append(_row_major(node))
        instance = self._instance_for(kinds)
        return instance, instance.run(kinds, buffers)

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[array]:
        """The arrays of a call, in the order of the inputs."""
        if len(args) > len(self.inputs):
            raise TypeError(f"[{self.name}] takes {len(self.inputs)} arrays; got {len(args)}{at_user_line()}.")
        rest = dict(kwargs)
        given = list(args)
        for wanted in self.inputs[len(args) :]:
            if wanted.name not in rest:
                raise TypeError(f"[{self.name}] input {wanted.name!r} is missing{at_user_line()}.")
            given.append(rest.pop(wanted.name))
        if rest:
            raise TypeError(f"[{self.name}] has no input {min(rest)!r}; it takes {self!r}{at_user_line()}.")
        self._check(given)
        return given

    def _check(self, given: Sequence[Any]) -> None:
        """Arrays are what the inputs say, and sizes of one name are equal."""
        known: dict[str, tuple[Any, str]] = {}
        for wanted, x in zip(self.inputs, given, strict=True):
            if not isinstance(x, array):
                raise TypeError(f"[{self.name}] input {wanted.name!r} must be an array; got {type(x).__name__}.")
            if x.dtype is not wanted.dtype or x.ndim != len(wanted.shape):
                raise ValueError(
                    f"[{self.name}] input {wanted}; got {x.dtype.name} of shape {x.shape}{at_user_line()}."
                )
            for size, n in zip(wanted.shape, x._node.shape, strict=True):
                if isinstance(size, int):
                    if n != size:
                        raise ValueError(f"[{self.name}] input {wanted}; got shape {x.shape}{at_user_line()}.")
                elif size not in known:
                    known[size] = (n, wanted.name)
                elif n != known[size][0]:
                    raise ValueError(
                        f"[{self.name}] size {size!r} is {known[size][0]} in input {known[size][1]!r} and {n} in "
                        f"{wanted.name!r}{at_user_line()}."
                    )

    # ---- graphs ----

    def example(self, sizes: Mapping[str, int]) -> list[Kind]:
        """Kinds that the inputs can have, with these sizes."""
        return [
            kind_of(tuple(n if isinstance(n, int) else sizes.get(n, HINT) for n in wanted.shape), wanted.dtype)
            for wanted in self.inputs
        ]

    def instance(self, kinds: Sequence[Kind]) -> Instance:
        """A graph that holds for inputs of these kinds, built anew."""
        made = Instance(self, kinds)
        self._instances.insert(0, made)
        del self._instances[MOST_INSTANCES:]
        return made

    def _instance_for(self, kinds: Sequence[Kind]) -> Instance:
        for found in [*self._instances]:
            if found.holds_for(kinds):
                return found
        return self.instance(kinds)

    # ---- looking inside ----

    def plan(self, *args: array, **kwargs: array) -> Plan:
        """The plan of a call with such arrays: steps, places, memory."""
        kinds = [x._node.kind for x in self._arguments(args, kwargs)]
        return self._instance_for(kinds).plan(kinds)

    def memory_report(self, *args: array, **kwargs: array) -> MemoryReport:
        """What a call with such arrays takes, and which results take the place of what they are computed from."""
        kinds = [x._node.kind for x in self._arguments(args, kwargs)]
        planned = self._instance_for(kinds).plan(kinds)
        return MemoryReport(
            len(planned.items),
            int(planned.arena),
            sum(int(nbytes_of(node)) for node in planned.outputs),
            tuple(planned.reuse),
        )

    # ---- files ----

    def save(self, file: Path_ | IO[bytes]) -> None:
        """Write the graphs that there are so far; `load` and `import_function` read them."""
        names = [wanted.name for wanted in self.inputs]

        def by_name(**given: array) -> Any:
            made = self.fun(*[given[name] for name in names])
            return made if isinstance(made, (dict, list, tuple, array)) else tree.leaves(made)

        by_name.__name__ = self.name
        symbolic = any(isinstance(n, str) for wanted in self.inputs for n in wanted.shape)
        export = Export(by_name, symbolic, None)
        for instance in reversed(self._instances):
            zeros = {name: wrap(constant(0, kind)) for name, kind in zip(names, instance.kinds, strict=True)}
            export.trace((), zeros, NamedSizes(self.inputs) if symbolic else None)
        export.write(file)


@dataclass(frozen=True)
class MemoryReport:
    """What a call takes: steps (kernels; a loop counts once), bytes of temporaries and of results, and which values lie
    where an operand of theirs lay."""

    steps: int
    temporaries: int
    results: int
    in_place: tuple[str, ...]

    def __str__(self) -> str:
        head = f"{self.steps} steps, {self.temporaries} bytes of temporaries, {self.results} bytes of results"
        return "\n".join([head, *self.in_place])


class Instance:
    """One graph of a program, for all sizes that its guards allow, and the programs for those that have come."""

    def __init__(self, program: Program, kinds: Sequence[Kind]) -> None:
        self.program, self.kinds = program, tuple(kinds)
        self._sizes = NamedSizes(program.inputs)
        placeholders = [self._sizes.kind(i, kind) for i, kind in enumerate(kinds)]
        try:
            first = next_id()
            traced = trace_body(NAME, program.fun, placeholders)
            if traced.random is not None:
                raise ValueError(
                    f"[{NAME}] {program.name} draws from the global random state, which a program has no part in: give "
                    "it a key as an input, and split that."
                )
            for leaf in traced.leaves:
                if not isinstance(leaf, array):
                    raise ValueError(f"[{NAME}] {program.name} must return arrays; got a {type(leaf).__name__}.")
            assert traced.structure is not None
            self.structure = traced.structure
            outputs = [leaf._node for leaf in traced.leaves]
            evaluate([node for node in reachable(outputs) if node.id < first and node.value is None])
            order = reachable(outputs)
            numbers = {id(node): i for i, node in enumerate(traced.params)}
            sources: list[int | Buffer] = []
            for node in order:
                if id(node) in numbers:
                    sources.append(numbers[id(node)])
                elif isinstance(node.value, Buffer):
                    sources.append(node.value)
            # A program has no effects, and the numbers in it are constants.
            effects, updates = Effects(None, [], [], True), Updates((), {}, {})  # type: ignore[arg-type]
            traced_ = Trace(order, outputs, sources).copy()
            self._variant = ShapelessVariant(traced_, effects, None, [], updates, self._sizes)
        finally:
            self._sizes.env.close()

    def holds_for(self, kinds: Sequence[Kind]) -> bool:
        """Whether the graph is right for inputs of these kinds."""
        fixed = zip(self.kinds, kinds, self._sizes.fixed, strict=True)
        if not all(a.shape[axis] == b.shape[axis] for a, b, axes in fixed for axis in axes):
            return False
        return self._variant.recipe_for(kinds) is not None

    def run(self, kinds: Sequence[Kind], buffers: Sequence[Buffer]) -> list[array]:
        recipe = self._variant.recipe_for(kinds)
        assert recipe is not None
        given: list[Any] = [buffers[i] if i.__class__ is int else i for i in self._variant.inputs]  # type: ignore[index]
        executable = recipe.executable
        words = [word for value in executable.constants for word in value.words]
        results = executable.run(given, words)
        return [wrap(Node(DATA, (), kind, made)) for kind, made in zip(executable.kinds, results, strict=True)]

    def plan(self, kinds: Sequence[Kind]) -> Plan:
        recipe = self._variant.recipe_for(kinds)
        assert recipe is not None
        return recipe.executable.plan


class NamedSizes(SymbolicSizes):
    """Symbols for the sizes that have names. Each axis has one of its own, as files want it; those of one name are
    guarded to be equal. A size that is 0 or 1 stays what it is, and so does one that is given as a number."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        super().__init__()
        self._inputs = inputs
        self.fixed: list[list[int]] = []
        """For each input: the axes whose sizes are part of the graph."""
        self._known: dict[str, Size] = {}

    def kind(self, position: int, kind: Kind) -> Kind:
        """The kind of an input with symbols for its named sizes."""
        shape: list[Size] = []
        fixed: list[int] = []
        for axis, (size, n) in enumerate(zip(self._inputs[position].shape, kind.shape, strict=True)):
            if isinstance(size, int) or n < 2:
                fixed.append(axis)
                shape.append(n)
                continue
            self.places.append((position, axis))
            symbol = self.env.symbol(f"n{len(self.places) - 1}", int(n))
            same = self._known.setdefault(size, symbol) == symbol  # what asks for equality guards it
            assert same, "sizes of one name were compared before"
            shape.append(symbol)
        self.fixed.append(fixed)
        return kind_of(tuple(shape), kind.dtype)


def _row_major(node: Node) -> Buffer:
    """The elements of a computed node, in row-major order in the host's memory."""
    buffer = node.value
    assert isinstance(buffer, Buffer)
    shape = tuple(map(int, node.shape))
    if buffer.strides is None:
        return on_host(buffer, shape, node.dtype.size)
    return to_buffer(numpy_view(buffer, shape, node.dtype))


def load(file: Path_ | IO[bytes]) -> Program:
    """The program that `save` wrote. It computes the same bits, and holds for the sizes that the saved one had come
    upon, and others that its graphs take for the same."""
    functions, _ = read_functions(NAME, file)
    if not functions:
        raise ValueError(f"[{NAME}] the file holds no function.")
    first = functions[0]
    args, kwargs = first.inputs.unflatten(range(first.inputs.num_leaves))
    if args or not all(isinstance(number, int) for number in kwargs.values()):
        raise ValueError(f"[{NAME}] the file holds no program, but a function; read it with import_function.")
    names = list(kwargs)

    def fun(*given: array) -> Any:
        named = dict(zip(names, given, strict=True))
        for function in functions:
            found = function.matches((), named)
            if found is not None:
                return function.results(*found)
        raise ValueError(f"[{first.name}] the file has no graph for a call with {call_text((), named)}")

    made = Program(fun, _inputs(functions, names), first.name)
    for function in reversed(functions):
        made.instance([kind for kind, _ in function.traced_kinds()])
    return made


def _inputs(functions: Sequence[Imported], names: Sequence[str]) -> list[Input]:
    """The inputs of a program in a file: a size that is open in one of its graphs, or differs between two, is named."""
    found = [function.traced_kinds() for function in functions]
    made: list[Input] = []
    for position, name in enumerate(names):
        same = [kinds[position] for kinds in found]
        shape: list[int | str] = []
        for axis, n in enumerate(same[0][0].shape):
            is_open = any(free[axis] or kind.shape[axis] != n for kind, free in same)
            shape.append(f"{name}{axis}" if is_open else int(n))
        made.append(Input(name, tuple(shape), same[0][0].dtype))
    return made
