"""Functions as files: a function is traced once, and its graph, with the arrays that it captures, becomes a header and
tensors (docs/export.md).

What is written is what the function computes. Rules of its own (custom_function, checkpoint) are Python and stay
behind; the random state is captured as it is. importing.py reads it again, and does so here too, before anything is
written: what cannot be read back is not written.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import numpy as np

from weft import tree
from weft.array import array
from weft.dtypes import Dtype
from weft.evaluate import evaluate
from weft.graph.body import Body
from weft.graph.dims import Dim
from weft.graph.node import ArrayType, Node, Tape, TupleType, kind_of, next_id, reachable_by
from weft.graph.size_algebra import Poly, Positive, Quotient
from weft.primitives.base import ConstantValue
from weft.primitives.custom import Called
from weft.records import fields
from weft.runtime.data import Buffer, numpy_view
from weft.transforms import state
from weft.transforms.bodies import random_state, trace_body
from weft.transforms.capture import Walk
from weft.transforms.computed import CURRENT, ChosenSizes
from weft.transforms.exportfile import DamagedFile, write
from weft.transforms.importing import FORMAT, Imported, Reader, call_text, spread
from weft.transforms.variant import SymbolicSizes
from weft.version import __version__

NAME = "export_function"
Json = Any
MOST_WAYS = 27
"""Traces of one call: each size that depends on data may be 0, 1 or a symbol."""


# ---- trees ----

_DICTS = (dict, OrderedDict, defaultdict)


def encode_tree(value: Any, what: str) -> Json:
    """The containers of a tree of arrays; "*" stands for an array."""
    if isinstance(value, array):
        return "*"
    if value is None:
        return None
    if type(value) in (list, tuple):
        return {type(value).__name__: [encode_tree(item, what) for item in value]}
    if isinstance(value, dict) and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, encode_tree(item, what)] for key, item in value.items()]}
    inside = "a dict with keys that are no strings" if isinstance(value, _DICTS) else f"a {type(value).__name__}"
    raise ValueError(
        f"[{NAME}] {what} must be arrays, in lists, tuples and dicts with strings for keys if need be; got {inside}."
    )


# ---- one trace ----


class ExportedTrace:
    """A function that was run on placeholders: the nodes, and what is said of them in a file."""

    def __init__(
        self,
        fun: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        shapeless: bool,
        sizes: SymbolicSizes | None = None,
        computed: ChosenSizes | None = None,
    ) -> None:
        """`computed` takes the sizes that depend on data; None: there must be none."""
        self.name = getattr(fun, "__name__", type(fun).__name__)
        self.inputs = encode_tree((args, kwargs), "the arguments")
        self.names = _parameter_names(fun, len(args))
        leaves, structure = tree.flatten((args, kwargs))
        self.kinds = [leaf._node.kind for leaf in leaves]
        self.sizes = SymbolicSizes() if sizes is None else sizes
        if shapeless:
            symbolic = [self.sizes.kind(i, kind) for i, kind in enumerate(self.kinds)]
        else:
            symbolic = self.kinds
        self.shapeless = shapeless
        returned: list[Any] = []

        def flat(*arrays: array) -> Any:
            if computed is not None:
                computed.begin([x._node for x in arrays])
            given, named = structure.unflatten(arrays)
            returned.append(fun(*given, **named))
            return tree.leaves(returned[0])

        self.first = next_id()
        drawn_from = random_state()[0]._node
        kept = _Kept(fun)
        around = CURRENT.sizes
        try:
            CURRENT.sizes = around if computed is None else computed
            traced = trace_body(NAME, flat, symbolic)
        finally:
            CURRENT.sizes = around
            self.sizes.env.close()
            changed = kept.put_back(self.first)
        if changed:
            raise ValueError(
                f"[{NAME}] {self.name} keeps arrays that it computes in objects that it captures, which an imported "
                "function cannot do: return them instead."
            )
        self.outputs = _outputs(returned[0])
        results = [leaf._node for leaf in traced.leaves]
        self.params = traced.params
        self.computed = [] if computed is None else computed.found
        roots = [*results, *[size.node for size in self.computed]]
        self.order, behind = self._behind(roots, {traced.random_param: drawn_from})
        self.results, self.found = behind[: len(results)], behind[len(results) :]
        if traced.random is not None and drawn_from in self.order:
            warnings.warn(
                f"[{NAME}] {self.name} draws from the global random state, which becomes part of the file as it is "
                "now: every call will draw the same numbers. Make a key one of its arguments instead.",
                stacklevel=_user_level(),
            )

    def _behind(self, results: Sequence[Node], given: Mapping[Node, Node]) -> tuple[list[Node], list[Node]]:
        """(nodes that the results are computed from, in order; the results), both without what only says how something
        was made. What was computed before the trace, or evaluated in it, is data."""
        self._given = given
        seen = {self.real(node) for node in results}
        stack = list(seen)
        outside: list[Node] = []
        params = set(self.params)
        while stack:
            node = stack.pop()
            if node in params:
                continue
            if node.id < self.first and node.value is None:
                outside.append(node)
                continue
            for x in self.operands(node):
                if x not in seen:
                    seen.add(x)
                    stack.append(x)
        evaluate(outside)
        ordered = sorted(seen - params, key=lambda node: node.id)
        return ordered, [self.real(node) for node in results]

    def real(self, node: Node) -> Node:
        """What a node is in a file: results of functions with rules are what the functions compute."""
        while type(node) is Called:
            node = node.inputs[0]
        return self._given.get(node, node)

    def operands(self, node: Node) -> list[Node]:
        return [] if node.value is not None else [self.real(x) for x in node.inputs]


class _Kept:
    """What a function can reach beside its arguments, to be put back where it kept arrays of a trace there."""

    def __init__(self, fun: Callable[..., Any]) -> None:
        walk = Walk()
        walk.visit(getattr(fun, "__wrapped_function__", fun))
        self._places = [(place, state.read(place)) for place in walk.containers]

    def put_back(self, first: int) -> bool:
        """Whether there was anything to put back: arrays that are newer than `first`."""
        changed = False
        for place, before in self._places:
            now = state.read(place)
            if state.same(before, now):
                continue
            found = tree.leaves(now if isinstance(now, dict) else [*now])
            if any(isinstance(x, array) and x._node.id >= first for x in found):
                state.write(place, before)
                changed = True
        return changed


def _outputs(value: Any) -> Json:
    """What was returned: an array, or several; anything else that a tree can be."""
    if not isinstance(value, (array, list, tuple, dict)):
        raise ValueError(
            f"[{NAME}] Outputs can be either a single array, a tuple, or a list of arrays (or nested ones); got "
            f"{type(value).__name__}."
        )
    return encode_tree(value, "the outputs")


def _parameter_names(fun: Callable[..., Any], count: int) -> list[str | None]:
    """The names by which positional arguments could have been given."""
    try:
        parameters = list(inspect.signature(fun).parameters.values())
    except (TypeError, ValueError):
        return [None] * count
    names: list[str | None] = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if any(p.kind is inspect.Parameter.POSITIONAL_ONLY for p in parameters):
        names = []
    return (names + [None] * count)[:count]


def _user_level() -> int:
    """The `stacklevel` of a warning that points at the user's call."""
    level, frame = 2, inspect.currentframe()
    frame = frame.f_back if frame else None
    while frame is not None and frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] != "weft":
            return level - 1
        level, frame = level + 1, frame.f_back
    return level


# ---- the header ----


class Tensors:
    """The arrays of a file, each once, however many traces hold it."""

    def __init__(self) -> None:
        self.values: list[tuple[Dtype, np.ndarray]] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def place(self, node: Node) -> int:
        buffer = node.value
        assert isinstance(buffer, Buffer)
        shape = tuple(map(int, node.shape))
        key = (buffer.address, buffer.strides, node.kind)
        if key not in self._places:
            # The view keeps the memory alive, so that no other array can come to lie at this address.
            self._places[key] = len(self.values)
            self.values.append((node.dtype, numpy_view(buffer, shape, node.dtype)))
        return self._places[key]


class Writer:
    """One trace as JSON."""

    def __init__(self, traced: ExportedTrace, tensors: Tensors) -> None:
        self.traced, self.tensors = traced, tensors
        self._kinds: dict[ArrayType, int] = {}
        self._bodies: dict[Body, int] = {}
        self._atoms: dict[int, int] = {}
        self.kinds: list[Json] = []
        self.bodies: list[Json] = []
        self.atoms: list[Json] = []

    def function(self) -> Json:
        traced = self.traced
        env = traced.sizes.env
        graph = self._graph(traced.params, traced.order, [*traced.results, *traced.found], traced.operands)
        found = graph["outputs"][len(traced.results) :]
        del graph["outputs"][len(traced.results) :]
        guards = [
            [self._poly(guard.expression.terms), guard.relation, guard.value, guard.text]
            for guard in (*env.assumptions, *env.guards)
        ]
        made = {
            "name": traced.name,
            "inputs": traced.inputs,
            "names": traced.names,
            "outputs": traced.outputs,
            "sizes": self.atoms,
            "guards": guards,
            "kinds": self.kinds,
            "bodies": self.bodies,
            "graph": graph,
        }
        if found:
            made["computed"] = [[at, size.number] for at, size in zip(found, traced.computed, strict=True)]
        return made

    # ---- graphs ----

    def _graph(
        self,
        inputs: Sequence[Node],
        order: Sequence[Node],
        outputs: Sequence[Node],
        operands: Callable[[Node], Sequence[Node]],
    ) -> Json:
        number = {node: i for i, node in enumerate(inputs)}
        nodes: list[Json] = []

        def put(node: Node) -> int:
            if node not in number:
                row = self._node(node, [put(x) for x in operands(node)])
                number[node] = len(number)
                nodes.append(row)
            return number[node]

        # Leaves are written where they are first used: when they were made is a matter of chance.
        for node in order:
            if operands(node):
                put(node)
        results = [put(node) for node in outputs]
        return {
            "inputs": [self._kind(node.kind) for node in inputs],
            "nodes": nodes,
            "outputs": results,
        }

    def _node(self, node: Node, operands: list[int]) -> Json:
        """[operation, kind, operands, parameters]"""
        kind = self._kind(node.kind)
        value = node.value
        if isinstance(value, Buffer):
            return ["tensor", kind, [], {"index": self.tensors.place(node)}]
        if isinstance(value, ConstantValue):
            return ["constant", kind, [], {"bits": np.asarray(value.number, node.dtype.np).tobytes().hex()}]
        op = node.op
        params = {f.name: self._param(getattr(op, f.name)) for f in fields(op)}  # type: ignore[arg-type]
        return [type(op).name(), kind, operands, params]

    def _body(self, body: Body) -> int:
        found = self._bodies.get(body)
        if found is None:
            made = self._graph(*_body_parts(body))
            found = self._bodies[body] = len(self.bodies)
            self.bodies.append(made)
        return found

    def _kind(self, kind: ArrayType) -> int:
        found = self._kinds.get(kind)
        if found is None:
            made: Json
            if isinstance(kind, TupleType):
                made = ["bundle", [self._kind(part) for part in kind.parts]]
            elif isinstance(kind, Tape):
                made = ["tape", self._kind(kind.row)]
            else:
                made = [kind.dtype.name, [self._param(n) for n in kind.shape]]
            found = self._kinds[kind] = len(self.kinds)
            self.kinds.append(made)
        return found

    def _param(self, value: Any) -> Json:
        """A parameter of a primitive. Symbolic sizes, dtypes, bodies and floats are objects; there are no others."""
        if type(value) is Dim:
            return {"size": self._poly(value.terms)}
        if type(value) is tuple:
            return [self._param(item) for item in value]
        if isinstance(value, Dtype):
            return {"dtype": value.name}
        if type(value) is Body:
            return {"body": self._body(value)}
        if type(value) is float:
            return {"number": value.hex()}
        if value is None or type(value) in (bool, int, str):
            return value
        raise ValueError(f"[{NAME}] a parameter of type {type(value).__name__} has no form in a file.")

    # ---- sizes ----

    def _poly(self, poly: Poly) -> Json:
        """A sum of products: [coefficient, size, size, ...] each."""
        return [[c, *[self._atom(atom) for atom in mono]] for mono, c in poly]

    def _atom(self, atom: int) -> int:
        """The place in the table of a symbol, a floor quotient or a positive part."""
        found = self._atoms.get(atom)
        if found is None:
            env = self.traced.sizes.env
            made: Json
            match env.algebra.atoms[atom]:
                case Quotient(num, den):
                    made = {"floor": [self._poly(num), self._poly(den)]}
                case Positive(arg):
                    made = {"positive": self._poly(arg)}
                case symbol:
                    made = {**self._origin(env.symbols.index(symbol.name)), "name": symbol.name, "hint": symbol.hint}
            found = self._atoms[atom] = len(self.atoms)
            self.atoms.append(made)
        return found

    def _origin(self, symbol: int) -> Json:
        """Where a call finds the number of a symbol."""
        places = self.traced.sizes.places
        if symbol < len(places):
            position, axis = places[symbol]
            return {"input": position, "axis": axis}
        open_ = [i for i, size in enumerate(self.traced.computed) if size.number is None]
        return {"computed": open_[symbol - len(places)]}


def _body_parts(
    body: Body,
) -> tuple[Sequence[Node], Sequence[Node], Sequence[Node], Callable[[Node], Sequence[Node]]]:
    """(inputs, other nodes in order, outputs, operands of a node), without functions' own rules."""

    def real(node: Node) -> Node:
        while type(node) is Called:
            node = node.inputs[0]
        return node

    def operands(node: Node) -> list[Node]:
        return [real(x) for x in node.inputs]

    inputs = set(body.inputs)
    outputs = [real(node) for node in body.outputs]
    order = [node for node in reachable_by(outputs, operands) if node not in inputs]
    return body.inputs, order, outputs, operands


# ---- what users call ----


class Export:
    """Traces of one function, on their way to a file."""

    def __init__(self, fun: Callable[..., Any], shapeless: bool, metadata: str | None) -> None:
        self.fun, self.shapeless = fun, shapeless
        self.metadata = metadata or ""
        self._tensors = Tensors()
        self._functions: list[Json] = []
        self._known: list[Imported] = []

    def traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[ExportedTrace, list[tuple[str, int]]]:
        """The trace of a call, and which inputs are keywords; it is not added."""
        args, kwargs = spread(args, kwargs)
        check_arrays(args, kwargs)
        first = len(tree.leaves(args))
        owners = [name for name, value in kwargs.items() for _ in tree.leaves(value)]
        return ExportedTrace(self.fun, args, kwargs, self.shapeless), [
            (name, first + i) for i, name in enumerate(owners)
        ]

    def trace(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        sizes: SymbolicSizes | None = None,
        guesses: Sequence[int] = (),
    ) -> None:
        """Add the trace of a call; several, if sizes in it depend on data, for which there may be `guesses`. `sizes`
        says which of a shapeless one's sizes are symbols, if not all are."""
        args, kwargs = spread(args, kwargs)
        check_arrays(args, kwargs)
        if self.holds(args, kwargs):
            raise RuntimeError(
                f"[{NAME}] Attempting to export a function twice with the same signature is not allowed: there is "
                f"a trace for {call_text(args, kwargs)}"
            )
        samples = [leaf._node for leaf in tree.leaves((args, kwargs))]
        ways: list[list[int]] = [[]]
        failure: Exception | None = None
        for _ in range(MOST_WAYS):
            if not ways:
                break
            own = SymbolicSizes() if sizes is None else sizes.anew()
            computed = ChosenSizes(own.env, samples, ways.pop(0), guesses)
            try:
                self._add(ExportedTrace(self.fun, args, kwargs, self.shapeless, own, computed))
            except Exception as error:  # the function is not for such sizes: neither is the file
                failure = failure or error
            ways += computed.others()
        if failure is not None and not self.holds(args, kwargs):
            raise failure

    def holds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether there is a trace for such a call, whatever sizes depend on its data."""
        return any(known.matches(args, kwargs) is not None for known in self._known)

    def _add(self, traced: ExportedTrace) -> None:
        made = Writer(traced, self._tensors).function()
        kinds = [kind_of(values.shape, dtype) for dtype, values in self._tensors.values]
        try:
            self._known.append(Reader(kinds, None).function(made))
        except DamagedFile as error:
            raise ValueError(f"[{NAME}] {traced.name} cannot be written, because {error}.") from error
        self._functions.append(made)

    def write(self, file: str | os.PathLike[str] | IO[bytes]) -> None:
        header = {
            "format": FORMAT,
            "weft": __version__,
            "metadata": self.metadata,
            "functions": self._functions,
        }
        write(file, header, self._tensors.values)


def check_arrays(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """All leaves of the arguments are arrays."""
    for leaf in tree.leaves((args, kwargs)):
        if not isinstance(leaf, array):
            raise ValueError(
                f"[{NAME}] Inputs can either be a variable number of positional and keyword arrays (or lists, tuples "
                f"and dicts of them) or a single tuple and/or dictionary of arrays; got a {type(leaf).__name__}: make "
                "it an array, or let the function capture it."
            )
