"""The program itself: traced for sizes that are symbols, called with arrays or with the memory of other libraries."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import numpy as np

from weft import tree
from weft.array import array, wrap
from weft.errors import ComputationError, NotArrayLike, at_user_line
from weft.evaluate import Recipe, evaluate
from weft.files.paths import Path_
from weft.graph.dims import hint_of
from weft.graph.node import ArrayType, Node, kind_of, next_id, reachable
from weft.graph.trace import is_tracing
from weft.passes.executable import Executable
from weft.passes.memory import Plan
from weft.primitives.base import DATA, MultiOutput, Primitive, bind, bind_many, constant
from weft.program.calls import Changes, Consumed, Given, Lent, candidates, handed_over, lent_plainly, row_major, settle
from weft.program.inputs import NAME, Input, NamedSizes, positions
from weft.program.report import MemoryReport, report
from weft.runtime.data import Buffer, numpy_view
from weft.runtime.program import Progress
from weft.transforms.bodies import trace_body
from weft.transforms.computed import CURRENT, ProgramSizes
from weft.transforms.cut import CUT, CutVariant
from weft.transforms.exporting import Export
from weft.transforms.importing import Imported, UnfitSizes, call_text, read_functions
from weft.transforms.updating import Updates
from weft.transforms.variant import Planned, ShapelessVariant, Trace, Variant

HINT = 12
"""The size that a named one has while the graph is built, unless another is given: a program that looks at it holds for
sizes that answer alike."""
MOST_INSTANCES = 64
"""Graphs that one program keeps, for sizes that its function tells apart."""
MOST_KNOWN = 1024
"""Kinds of inputs whose plan is found at once."""


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
    updates: Mapping[str, int | str] | None = None,
    name: str | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Program:
    """The program of a function that is called with one array for each input, by position, and returns arrays in any
    lists, tuples and dicts. `sizes` gives named sizes that the graph is built with. `updates` says which results are
    new values of inputs, by the input's name: a result's number, or its key in the dict that the function returns.

    >>> from weft import program
    >>> halved = program.trace(lambda x, y: {"sum": (x + y) / 2}, [
    ...     program.Input("x", ("n", 3), mx.float32), program.Input("y", (3,), mx.float32)])
    >>> halved(x=mx.ones((2, 3)), y=mx.zeros((3,)))
    {'sum': array([[0.5, 0.5, 0.5],
           [0.5, 0.5, 0.5]], dtype=float32)}
    """
    made = Program(fun, inputs, name or str(getattr(fun, "__name__", type(fun).__name__)), updates)
    with contextlib.suppress(Guessed):  # sizes that depend on data were: the first call has others
        made.instance(made.example(sizes or {}))
    return made


class Program:
    """A traced function. `trace` makes one; `load` reads one from a file."""

    def __init__(
        self,
        fun: Callable[..., Any],
        inputs: Sequence[Input],
        name: str,
        updates: Mapping[str, int | str] | None = None,
    ) -> None:
        self.fun, self.inputs, self.name = fun, tuple(inputs), name
        self.updates = dict(updates or {})
        """By name of the input: the result that is its new value."""
        self.__name__, self.__wrapped_function__ = name, fun  # what compile and explain look for
        names = [given.name for given in self.inputs]
        if len(set(names)) < len(names):
            raise ValueError(f"[{NAME}] inputs must have different names; got {', '.join(names)}.")
        self.changed = [i for i, given in enumerate(self.inputs) if given.donated or given.name in self.updates]
        """The inputs whose arrays are others after a call."""
        self._instances: list[Instance] = []
        self._known: dict[tuple[ArrayType, ...], Ready] = {}
        """What runs for inputs of kinds that have come before."""

    def __repr__(self) -> str:
        inputs = [f"{given}{' updated' if given.name in self.updates else ''}" for given in self.inputs]
        return f"Program {self.name}({'; '.join(inputs)})"

    # ---- calls ----

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the function returns, for arrays by position or name. An array that is updated is returned itself, with
        its new value."""
        given = self._arguments(args, kwargs) if kwargs or len(args) != len(self.inputs) else args
        if is_tracing():
            return self._inside(given)
        ready, results = self._run(given)
        return ready.instance.structure.unflatten(results)

    def run(self, given: Sequence[Any]) -> list[Any]:
        """The results as a list, in the order in which they stand in what the function returns."""
        if len(given) != len(self.inputs):
            given = self._arguments(tuple(given), {})
        return tree.leaves(self._inside(given)) if is_tracing() else self._run(given)[1]

    def run_known(self, given: Sequence[Any]) -> tuple[Ready, list[Any]]:
        """`run`, with what ran."""
        return self._run(given)

    def run_numpy(self, given: Sequence[Any]) -> list[Any]:
        """`run`, with results as NumPy arrays that may be written to, without a copy where their memory is in no other
        hands. What was given for an input that is updated stands in its place among them."""
        if len(given) != len(self.inputs):
            given = self._arguments(tuple(given), {})
        seen = None if self.changed else _as_they_are(given)
        ready = None if seen is None else self._known.get(seen[0])
        if ready is not None and ready.is_fresh:
            assert seen is not None
            made = zip(ready.kinds, ready.run(seen[1]), strict=True)
            return [numpy_view(buffer, kind.shape, kind.dtype, writable=True) for kind, buffer in made]  # type: ignore[arg-type]
        results = self._run(given)[1]
        theirs = {id(x) for x in given}
        return handed_over(results, [id(x) not in theirs for x in results])

    def _run(self, given: Sequence[Any]) -> tuple[Ready, list[Any]]:
        """The results, for what may be arrays that are computed and row-major, of kinds that have come before."""
        seen = _as_they_are(given)
        ready = None if seen is None else self._known.get(seen[0])
        if seen is None or ready is None or not (ready.is_fresh or all(x.__class__ is array for x in given)):
            del seen  # nothing but the call itself holds buffers that it may overwrite
            return self._run_any(given)
        if not self.changed:
            return ready, ready.results(seen[1])
        self._check_apart(given)
        return ready, ready.change(seen[1], list(given))

    def _run_any(self, given: Sequence[Any]) -> tuple[Ready, list[Any]]:
        """The results, for arrays in any state and for other libraries' memory."""
        self._check_apart(given)
        lent = self._lend(given)
        arrays = [lent[i].as_array() if i in lent else x for i, x in enumerate(given)]
        self._check(arrays)
        kinds, buffers = self._computed(arrays)
        ready = self._ready(kinds, buffers)
        if not lent:
            return ready, ready.change(buffers, arrays) if self.changed else ready.results(buffers)
        return ready, self._give_back(ready, buffers, arrays, lent)

    def _computed(self, arrays: Sequence[array]) -> tuple[tuple[ArrayType, ...], list[Buffer]]:
        """Kinds and row-major buffers of arrays. Those that a call changes have no others: what a copy was made of is
        not held any more."""
        evaluate([x._node for x in arrays])
        kinds: list[ArrayType] = []
        buffers: list[Buffer] = []
        for i, x in enumerate(arrays):
            node = x._node
            value = node.value
            while value.__class__ is not Buffer:  # another thread may be about to overwrite it
                node = x._evaluated(node)
                value = node.value
            buffers.append(row_major(value, node.kind))
            kinds.append(node.kind)
            if i in self.changed and buffers[-1] is not value:
                x._exchange(node, Node(DATA, (), node.kind, buffers[-1]))
        return tuple(kinds), buffers

    def _ready(self, kinds: tuple[ArrayType, ...], buffers: Sequence[Buffer]) -> Ready:
        """What runs for inputs of these kinds, and these values if sizes depend on them."""
        found = self._known.get(kinds)
        if found is None:
            found = self._found(kinds, buffers)
            if not found.instance.variant.is_cut:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[kinds] = found
        return found

    def _found(self, kinds: tuple[ArrayType, ...], buffers: Sequence[Buffer]) -> Ready:
        for instance in [*self._instances]:
            ready = instance.ready(kinds, buffers)
            if ready is not None:
                return ready
        made = self.instance(kinds, buffers).ready(kinds, buffers)
        assert made is not None, "a graph holds for what it was built for"
        return made

    def _inside(self, given: Sequence[Any]) -> Any:
        """What the function returns, as a part of another function that is being traced."""
        self._check_apart(given)
        self._check(given)
        returned = self.fun(*[wrap(x._node) for x in given])  # what it overwrites is its own
        if not self.updates:
            return returned
        results, structure = tree.flatten(returned)
        for i, output in positions(self.inputs, self.updates, structure).items():
            results[output] = given[i]._overwrite(results[output])
        return structure.unflatten(results)

    # ---- other libraries' memory ----

    def _lend(self, given: Sequence[Any]) -> dict[int, Lent]:
        """What is no array, by number of the input."""
        lent: dict[int, Lent] = {}
        for i, (wanted, x) in enumerate(zip(self.inputs, given, strict=True)):
            if isinstance(x, array):
                continue
            try:
                lent[i] = Lent(x)
            except (NotArrayLike, TypeError, BufferError) as error:
                raise TypeError(
                    f"[{self.name}] input {wanted.name!r} must be an array, or memory of one (NumPy, DLPack); got "
                    f"{type(x).__name__}: {error}"
                ) from None
            if wanted.name in self.updates and not lent[i].view.flags.writeable:
                raise ValueError(
                    f"[{self.name}] input {wanted.name!r} is updated, and the memory given for it is read-only: give a "
                    f"copy{at_user_line()}."
                )
        return lent

    def _give_back(
        self, ready: Ready, buffers: list[Buffer], arrays: list[array], lent: Mapping[int, Lent]
    ) -> list[Any]:
        """The results of a call on other libraries' memory: none of them lies there, but for what is written there as
        the new value of an input."""
        updates = dict(ready.instance.changes.overwritten)
        there = [*lent.values()]
        over = [i for i in lent if i in updates and lent[i].is_there and lent[i].is_apart(there)]
        results = ready.change_there(buffers, arrays, over) if self.changed else ready.results(buffers)
        new = {i: arrays[i] for i in lent if i in updates}
        for i, x in new.items():
            if x.shape != lent[i].view.shape:
                raise ValueError(
                    f"[{self.name}] the new value of input {self.inputs[i].name!r} has shape {x.shape}, and the memory "
                    f"given for it {lent[i].view.shape}{at_user_line()}."
                )
        settled = {id(x) for i, x in new.items() if lent[i].holds(x)}
        settle([x for x in [*results, *new.values()] if id(x) not in settled], there)
        for i, x in new.items():
            lent[i].write(x)
            results[updates[i]] = lent[i].value
        return results

    # ---- what is given ----

    def _arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
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
        return given

    def _check_apart(self, given: Sequence[Any]) -> None:
        """No array is given for two inputs that a call changes."""
        names: dict[int, str] = {}
        for i in self.changed:
            other = names.setdefault(id(given[i]), self.inputs[i].name)
            if other != self.inputs[i].name:
                raise ValueError(
                    f"[{self.name}] one array was given for {other!r} and {self.inputs[i].name!r}, which the program "
                    f"updates or takes: give a copy for one of them (array(x)){at_user_line()}."
                )

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

    def example(self, sizes: Mapping[str, int]) -> list[ArrayType]:
        """Kinds that the inputs can have, with these sizes."""
        return [
            kind_of(tuple(n if isinstance(n, int) else sizes.get(n, HINT) for n in wanted.shape), wanted.dtype)
            for wanted in self.inputs
        ]

    def instance(self, kinds: Sequence[ArrayType], buffers: Sequence[Buffer] | None = None) -> Instance:
        """A graph that holds for inputs of these kinds, built anew. If sizes depend on data, that is what is in the
        buffers."""
        made = Instance(self, kinds, buffers)
        self._instances.insert(0, made)
        del self._instances[MOST_INSTANCES:]
        return made

    def ready(self, kinds: Sequence[ArrayType]) -> Ready:
        """What runs for inputs of these kinds, for front ends that lay out calls themselves. `DependsOnData` if sizes
        do: then no single plan holds."""
        for instance in [*self._instances]:
            if not instance.variant.is_cut:
                found = instance.ready(kinds, ())
                if found is not None:
                    return found
        made = self.instance(kinds)
        found = None if made.variant.is_cut else made.ready(kinds, ())
        if found is None:
            raise DependsOnData(
                f"[{self.name}] sizes depend on data, so no single plan holds for these inputs: call it."
            )
        return found

    # ---- looking inside ----

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """The plan of a call with such arrays: steps, places, memory. Nothing that is given is overwritten in it."""
        return self._ready_for(args, kwargs).plan

    def memory_report(self, *args: Any, **kwargs: Any) -> MemoryReport:
        """What a call with such arrays takes, which values are computed in place, and why others are not; if nothing
        else holds the arrays that are donated or updated."""
        ready = self._ready_for(args, kwargs)
        updates = ready.instance.updates
        leaves = {c.leaf: self.inputs[c.array].name for c in updates.candidates}
        refused = {self.inputs[i].name: why for i, why in updates.refused.items()}
        changing = [leaf for leaf, i in enumerate(ready.sources) if i in self.changed]
        return report(ready.plan, ready.plan_over, leaves, changing, refused)

    def _ready_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Ready:
        given = self._arguments(args, kwargs)
        lent = self._lend(given)
        arrays = [wrap(x._node) if i not in lent else lent[i].as_array() for i, x in enumerate(given)]
        self._check(arrays)
        return self._ready(*self._computed(arrays))

    # ---- files ----

    def save(self, file: Path_ | IO[bytes]) -> None:
        """Write the graphs that there are so far, with names, what is donated and what is updated; `load` reads them,
        and `import_function` the function alone."""
        names = [wanted.name for wanted in self.inputs]

        def by_name(**given: array) -> Any:
            made = self.fun(*[given[name] for name in names])
            return made if isinstance(made, (dict, list, tuple, array)) else tree.leaves(made)

        by_name.__name__ = self.name
        symbolic = any(isinstance(n, str) for wanted in self.inputs for n in wanted.shape)
        described = {
            "inputs": [[wanted.name, list(wanted.shape), wanted.donated] for wanted in self.inputs],
            "updates": self._saved_updates(),
        }
        export = Export(by_name, symbolic, json.dumps({METADATA: described}))
        for instance in reversed(self._instances):
            zeros = {name: wrap(constant(0, kind)) for name, kind in zip(names, instance.kinds, strict=True)}
            if not (instance.variant.is_cut and export.holds((), zeros)):
                export.trace((), zeros, NamedSizes(self.inputs) if symbolic else None, instance.guesses)
        export.write(file)

    def _saved_updates(self) -> dict[str, int]:
        if not self._instances:
            raise ValueError(
                f"[{NAME}] {self.name} has no graph yet, because sizes in it depend on data: call it first."
            )
        return self._instances[-1].updated


METADATA = "weft program"


def _as_they_are(given: Sequence[Any]) -> tuple[tuple[ArrayType, ...], list[Buffer]] | None:
    """Kinds and buffers of arrays, NumPy's too, that are computed and row-major; None if something else is given. No
    variable refers to them afterwards: references are counted."""
    kinds: list[ArrayType] = []
    buffers: list[Buffer] = []
    for x in given:
        if x.__class__ is np.ndarray:
            lent = lent_plainly(x)
            if lent is None:
                return None
            kinds.append(lent[0])
            buffers.append(lent[1])
            continue
        if x.__class__ is not array:
            return None
        node = x._node
        value = node.value
        if value.__class__ is not Buffer or value.strides is not None:
            return None
        kinds.append(node.kind)
        buffers.append(value)
    return tuple(kinds), buffers


class Instance:
    """One graph of a program, for all sizes that its guards allow, and the programs for those that have come."""

    def __init__(self, program: Program, kinds: Sequence[ArrayType], buffers: Sequence[Buffer] | None = None) -> None:
        self.program, self.kinds = program, tuple(kinds)
        self._sizes = NamedSizes(program.inputs)
        placeholders = [self._sizes.kind(i, kind) for i, kind in enumerate(kinds)]
        computed, outside = ProgramSizes(self._sizes.env, kinds, buffers), CURRENT.sizes

        def fun(*given: array) -> Any:
            computed.begin([x._node for x in given])
            return program.fun(*given)

        try:
            first = next_id()
            CURRENT.sizes = computed
            traced = trace_body(NAME, fun, placeholders)
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
            roots = [*outputs, *[size.node for size in computed.found]]
            evaluate([node for node in reachable(roots) if node.id < first and node.value is None])
            order = reachable(roots)
            numbers = {id(node): i for i, node in enumerate(traced.params)}
            sources: list[int | Buffer] = []
            for node in order:
                if id(node) in numbers:
                    sources.append(numbers[id(node)])
                elif isinstance(node.value, Buffer):
                    sources.append(node.value)
            self.guesses = [hint_of(size) for size in computed.sizes()]
            """The sizes that depend on data, as they were in the call that was traced."""
            self.changes = self._changes(outputs)
            traced_ = Trace(order, roots, sources).copy()
            self.variant: Variant
            if computed.found:
                found = computed.found
                self.variant = CutVariant(traced_, self.changes, None, [], self._sizes, found, len(kinds))
                self.variant.updates = Updates((), {}, dict.fromkeys(program.changed, CUT))
            else:
                updates = candidates(self.changes, sources, placeholders, outputs)
                self.variant = ShapelessVariant(traced_, self.changes, None, [], updates, self._sizes)
        except (ValueError, LookupError, ArithmeticError) as error:
            if computed.found and buffers is None:
                raise Guessed(str(error)) from error
            raise
        finally:
            CURRENT.sizes = outside
            self._sizes.env.close()

    def _changes(self, outputs: Sequence[Node]) -> Changes:
        """What a call does to the arrays that it is given."""
        program = self.program
        updates = positions(program.inputs, program.updates, self.structure)
        for i, output in updates.items():
            if not program.inputs[i].takes(outputs[output].kind):
                raise ValueError(
                    f"[{NAME}] result {output} is to be the new value of input {program.inputs[i]}, and is "
                    f"{outputs[output].kind!r}."
                )
        gone = {i: Consumed(program.name, x.name) for i, x in enumerate(program.inputs) if x.donated}
        return Changes(updates, gone)

    @property
    def updated(self) -> dict[str, int]:
        """By name of the input: the number of the result that is its new value."""
        return {self.program.inputs[i].name: output for i, output in self.changes.overwritten}

    @property
    def updates(self) -> Updates:
        """The inputs that calls may overwrite, and why not others."""
        return self.variant.updates

    def ready(self, kinds: Sequence[ArrayType], buffers: Sequence[Buffer]) -> Ready | None:
        """What runs for inputs of these kinds and values; None if the graph is not right for them."""
        fixed = zip(self.kinds, kinds, self._sizes.fixed, strict=True)
        if not all(a.shape[axis] == b.shape[axis] for a, b, axes in fixed for axis in axes):
            return None
        recipe = self.variant.recipe_for(kinds, buffers)
        return None if recipe is None else Ready(self, recipe)


class DependsOnData(ValueError):
    """Sizes depend on data, so that there is no plan before there are data."""


class Guessed(DependsOnData):
    """A graph could not be built with guesses for sizes that depend on data."""


class Ready:
    """A graph with its plan for inputs of certain kinds. A front end that lays out calls itself gives the program of
    `executable` the addresses of what `sources` say and of the results, and then `words`."""

    __slots__ = ("_recipe", "instance", "is_fresh", "kinds", "sources", "words")

    def __init__(self, instance: Instance, recipe: Planned) -> None:
        self.instance, self._recipe = instance, recipe
        self.kinds = recipe.executable.kinds
        """Those of the results."""
        self.is_fresh = recipe.executable.simple and not instance.program.changed and not instance.variant.is_cut
        """Whether each result has memory of its own, and nothing else happens."""
        self.sources: Sequence[int | Buffer] = instance.variant.inputs
        """Where the operands come from: the number of an input, or memory that is part of the program."""
        self.words = [] if instance.variant.is_cut else _words(recipe)
        """Those of the program's constants."""

    @property
    def executable(self) -> Executable:
        return self._recipe.executable

    def over(self, operands: tuple[int, ...]) -> Executable | None:
        """What runs if it may overwrite these operands (numbers of `sources`); None if it would overwrite none."""
        found = self.instance.variant.over(self._recipe, operands)
        return None if found is None else found.executable

    @property
    def plan(self) -> Plan:
        return self._recipe.executable.plan

    def plan_over(self, leaves: tuple[int, ...]) -> Plan | None:
        """The plan that may overwrite these inputs, if it overwrites any."""
        found = self.over(leaves)
        return None if found is None else found.plan

    def _given(self, buffers: Sequence[Buffer]) -> list[Any]:
        return [buffers[i] if i.__class__ is int else i for i in self.sources]  # type: ignore[index]

    def run(self, buffers: Sequence[Buffer]) -> list[Buffer]:
        """The results, where a call changes nothing that is given."""
        try:
            return self._recipe.executable.run(self._given(buffers), self.words)
        except ComputationError as error:
            self.instance.variant.locate(error)
            raise

    def results(self, buffers: Sequence[Buffer]) -> list[array]:
        """`run`, as arrays."""
        if self.instance.variant.is_cut:
            return self.change(list(buffers), [])
        return [wrap(Node(DATA, (), kind, made)) for kind, made in zip(self.kinds, self.run(buffers), strict=True)]

    def change(self, buffers: list[Buffer], arrays: list[array]) -> list[array]:
        """The results, with changes made to the arrays: over their memory where nothing else holds their values."""
        variant = self.instance.variant
        run = variant.update if variant.updates.candidates else variant.run
        found: list[array] = run(self._recipe, (), buffers, Given(arrays))
        return found

    def change_there(self, buffers: list[Buffer], arrays: list[array], there: Sequence[int]) -> list[array]:
        """`change`, where new values of some inputs may be written to the memory that was given for them."""
        over = self._over(there)
        if over is None:
            return self.change(buffers, arrays)
        progress = Progress()
        try:
            over.executable.run_in_place(self._given(buffers), _words(over), progress)
        except ComputationError as error:
            self.instance.variant.locate(error)
            raise
        except BaseException:
            if progress.paused:  # an interrupted call has written all or nothing
                progress.hurry()
            raise
        made = zip(over.executable.kinds, progress.results, strict=True)
        results = [wrap(Node(DATA, (), kind, buffer)) for kind, buffer in made]
        changed: list[array] = self.instance.changes.change(results, Given(arrays), ())
        return changed

    def _over(self, there: Sequence[int]) -> Recipe | None:
        """The program whose results lie on these inputs, each on the one that it is the new value of."""
        heirs = {c.leaf: c.heir for c in self.instance.updates.candidates if c.array in there}
        found = self.instance.variant.over(self._recipe, tuple(sorted(heirs))) if heirs else None
        if found is None:
            return None
        for leaf, heir in heirs.items():
            result = found.executable.results[heir]
            plain = not result.from_input and result.offset == 0 and result.strides is None
            if not plain or found.executable.adopted.get(result.at) != leaf:
                return None
        return found


def _words(recipe: Recipe) -> list[int]:
    return [word for value in recipe.executable.constants for word in value.words]


def load(file: Path_ | IO[bytes]) -> Program:
    """The program that `save` wrote. It computes the same bits, and holds for the sizes that the saved one had come
    upon, and others that its graphs take for the same."""
    functions, metadata = read_functions(NAME, file)
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
                try:
                    return function.results(*found)
                except UnfitSizes:
                    continue  # the sizes that depend on its data are not those of this graph
        raise ValueError(f"[{first.name}] the file has no graph for a call with {call_text((), named)}")

    inputs, updates = _described(metadata, _inputs(functions, names))
    made = Program(fun, inputs, first.name, updates)
    for function in reversed(functions):
        if function.is_general:
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


def _described(metadata: str, found: Sequence[Input]) -> tuple[list[Input], dict[str, int]]:
    """The inputs as the file describes them, and what is updated. The graphs say what may be: only names of open sizes,
    and what a call does to its arrays, are taken from the description."""
    try:
        described = json.loads(metadata)[METADATA] if metadata else {"inputs": [], "updates": {}}
        said = {name: (shape, donated) for name, shape, donated in described["inputs"]}
        updates = {str(name): int(result) for name, result in described["updates"].items()}
        inputs = [_named(given, *said.get(given.name, (given.shape, False))) for given in found]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise RuntimeError(f"[{NAME}] the file cannot be read: what it says of its inputs makes no sense.") from error
    return inputs, updates


def _named(found: Input, shape: Sequence[int | str], donated: bool) -> Input:
    """An input with the names that its open sizes have in a file."""
    if len(shape) != len(found.shape):
        raise ValueError("another number of axes")
    sizes = [said if isinstance(said, str) else n for n, said in zip(found.shape, shape, strict=True)]
    return Input(found.name, tuple(sizes), found.dtype, donated)
