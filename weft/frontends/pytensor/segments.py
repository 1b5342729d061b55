"""Cutting a graph where it cannot be one program.

What Weft computes is a `Segment`: a program for arrays whose shapes are known when it is traced. The graph is cut in
two where a size depends on data (the first part computes it, the second is made for it), and around a node that has no
translation, which PyTensor's own implementation runs (`Performed`). Nearly all graphs are one segment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scalar.basic import ScalarType
from pytensor.scan.op import Scan
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType, tensor

import weft.core as mx
from weft.array import array
from weft.frontends.pytensor.calls import Computed, MaybeCall, Note, Notes, Prepared, never
from weft.frontends.pytensor.convert import Graph, Refused, collecting, readers_of, refusal, rule_of
from weft.frontends.pytensor.generators import key_of
from weft.frontends.pytensor.graphs import stops_short
from weft.frontends.pytensor.lists import ListedGraph, Structure, arrays_in, leaves_of, packed, structure_of
from weft.frontends.pytensor.sizes import is_known
from weft.frontends.pytensor.sparse_values import PackedGraph
from weft.frontends.pytensor.stepped import Stepped
from weft.frontends.pytensor.values import Known, Partial, Value, is_list, is_sparse, to_array, weft_dtype
from weft.program import DependsOnData, Input, Program

MOST_CALLS = 256
"""Sets of shapes for which a segment keeps what a call needs."""


class Performed:
    """A node that PyTensor computes."""

    def __init__(self, node: Apply) -> None:
        self.node = node
        self.inputs = [x for x in dict.fromkeys(node.inputs) if not isinstance(x, Constant)]
        self.outputs = list(node.outputs)
        self._fun: Any = None

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        if self._fun is None:
            self._fun = self._function()
        return self._fun(*given)  # type: ignore[no-any-return]

    def _function(self) -> Any:
        """The node alone, made anew: those of the bodies of loops may be frozen, which a function cannot be made of."""
        fresh = {x: x.type() for x in self.inputs}
        node = Apply(self.node.op, [fresh.get(x, x) for x in self.node.inputs], [x.type() for x in self.outputs])
        mode = Mode(linker="py", optimizer="minimum_compile")
        return pytensor.function(list(fresh.values()), node.outputs, mode=mode, on_unused_input="ignore")


_WARNED: set[str] = set()


def warn_once(node: Apply, reason: str) -> None:
    """Tell, once for each class of operations, that PyTensor runs them."""
    name = type(node.op).__name__
    scalar = getattr(node.op, "scalar_op", None) or getattr(node.op, "core_op", None)
    name = f"{name} of {type(scalar).__name__}" if scalar is not None else name
    if name not in _WARNED:
        _WARNED.add(name)
        whom = "the loop of Scan to Python" if isinstance(node.op, Scan) else f"{name} to PyTensor's own implementation"
        warnings.warn(f"WEFT leaves {whom}: {reason}.", UserWarning, stacklevel=2)


class Segment:
    """Nodes that are one program for each set of shapes and of numbers that sizes are made of."""

    def __init__(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], graph: Graph, static: set[Variable]
    ) -> None:
        self.inputs, self.outputs, self.static, self.graph = list(inputs), list(outputs), static, graph
        self._at = [i for i, x in enumerate(self.inputs) if x not in static]
        self._known_at = [i for i, x in enumerate(self.inputs) if x in static]
        self._random = [i for i, x in enumerate(self.inputs) if isinstance(x.type, RandomType)]
        self._programs: dict[Any, tuple[Program, Notes]] = {}
        self.prepared: dict[Any, Prepared | Computed] = {}
        self.last: MaybeCall = never
        """The last call: most come again."""
        self.is_plain = not self._random and not self._known_at
        """Whether what is called depends on nothing but the shapes of the inputs."""

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        if self._random:
            given = list(given)
            for i in self._random:
                given[i] = key_of(given[i])
        if self._known_at:
            key: Any = (
                tuple([given[i].shape for i in self._at]),
                tuple([(given[i].dtype.str, given[i].shape, given[i].tobytes()) for i in self._known_at]),
            )
            given_arrays: Sequence[Any] = [given[i] for i in self._at]
        else:
            key = tuple([x.shape for x in given])
            given_arrays = given
        prepared = self.prepared.get(key)
        if prepared is None:
            prepared = self._prepare(key, given)
        self.last = prepared.quick
        return prepared.call(given_arrays)

    def _prepare(self, key: Any, given: Sequence[Any]) -> Prepared | Computed:
        values = key[1] if self._known_at else ()
        shapes = [given[i].shape for i in self._at]
        for i, shape in zip(self._at, shapes, strict=True):
            _check_shape(self.inputs[i], shape)
        if values not in self._programs:
            if len(self._programs) >= MOST_CALLS:
                self._programs.clear()
            self._programs[values] = self._program({i: np.array(given[i]) for i in self._known_at})
        program, notes = self._programs[values]
        if len(self.prepared) >= MOST_CALLS:
            self.prepared.clear()
        try:
            self.prepared[key] = Prepared(program, shapes, notes)
        except DependsOnData:
            self.prepared[key] = Computed(program, notes)
        return self.prepared[key]

    def _program(self, known: dict[int, np.ndarray]) -> tuple[Program, Notes]:
        wanted = [self._input(i) for i in self._at]
        notes = Notes()
        numbers = {i: Known(value) for i, value in known.items()}

        def build(*arrays: array) -> list[array]:
            values: dict[int, Value] = {**dict(zip(self._at, arrays, strict=True)), **numbers}
            with collecting() as found:
                made = self.graph(*[values[i] for i in range(len(self.inputs))])
            return _flat(made, self._leaves(), found.checks, notes)

        return Program(build, wanted, "pytensor"), notes

    def _leaves(self) -> list[Variable]:
        """What each array is that the graph gives."""
        return self.outputs

    def _input(self, i: int) -> Input:
        kind = self.inputs[i].type
        if isinstance(kind, RandomType):
            return Input(f"x{i}", (2,), mx.uint32)
        shape = getattr(kind, "shape", ())
        sizes = tuple(f"x{i}_{axis}" if n is None else n for axis, n in enumerate(shape))
        return Input(f"x{i}", sizes, weft_dtype(kind.dtype))


def _check_shape(variable: Variable, shape: tuple[int, ...]) -> None:
    """A caller that is trusted may still be wrong."""
    wanted = (2,) if isinstance(variable.type, RandomType) else getattr(variable.type, "shape", ())
    if len(shape) != len(wanted) or any(n is not None and n != m for n, m in zip(wanted, shape, strict=True)):
        raise TypeError(f"an input of type {variable.type} got an array of shape {shape}")


def _flat(made: Sequence[Any], outputs: Sequence[Variable], checks: Sequence[Any], notes: Notes) -> list[array]:
    """What a program returns: results, then how many rows of some are there, then what checks look at."""
    arrays: list[array] = []
    partial: list[tuple[int, int]] = []
    keys: list[int] = []
    counts: list[array] = []
    for i, (value, out) in enumerate(zip(made, outputs, strict=True)):
        if isinstance(value, Partial):
            partial.append((i, len(made) + len(counts)))
            counts.append(value.count)
            value = value.rows
        if isinstance(out.type, RandomType):
            keys.append(i)
        arrays.append(to_array(value))
    notes.last = Note(len(made), partial, keys, [act for _, act in checks])
    return [*arrays, *counts, *(value for value, _ in checks)]


class SparseSegment:
    """A segment with sparse matrices among its inputs or results: the program has their parts."""

    def __init__(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], nodes: Sequence[Apply], static: set[Variable]
    ) -> None:
        self.inputs, self.outputs = list(inputs), list(outputs)
        graph = PackedGraph(inputs, outputs, nodes, is_whole=True)
        parts = {x: _parts_of(x) for x in (*inputs, *outputs) if is_sparse(x)}
        shapes = {made[3] for x, made in parts.items() if x in set(inputs)}
        taken = [part for x in inputs for part in parts.get(x, [x])]
        given = [part for x in outputs for part in parts.get(x, [x])]
        self._inner = Segment(taken, given, graph, static | shapes)

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        values: list[Any] = []
        for x, value in zip(self.inputs, given, strict=True):
            values += _unpacked(x, value) if is_sparse(x) else [value]
        made = list(self._inner(values))
        results: list[Any] = []
        for x in self.outputs:
            results.append(_packed(x, [made.pop(0) for _ in range(4)]) if is_sparse(x) else made.pop(0))
        return results


def _parts_of(x: Variable) -> list[Variable]:
    """Elements, where they are, where each row or column begins, and the shape."""
    kinds = [(x.type.dtype, (None,)), ("int32", (None,)), ("int32", (None,)), ("int64", (2,))]
    return [tensor(dtype=dtype, shape=shape) for dtype, shape in kinds]


def _unpacked(x: Variable, matrix: Any) -> list[np.ndarray]:
    if matrix.format != x.type.format:
        raise TypeError(f"an input of type {x.type} got a matrix in the format {matrix.format}")
    indices, indptr = matrix.indices.astype(np.int32, copy=False), matrix.indptr.astype(np.int32, copy=False)
    return [np.asarray(matrix.data, x.type.dtype), indices, indptr, np.array(matrix.shape, np.int64)]


def _packed(x: Variable, parts: Sequence[np.ndarray]) -> Any:
    data, indices, indptr, shape = parts
    return x.type.format_cls[x.type.format]((data, indices, indptr), tuple(int(n) for n in shape), copy=False)


class _Unlisted(Segment):
    """The program of a segment with lists, for lists of certain lengths."""

    graph: ListedGraph

    def _leaves(self) -> list[Variable]:
        results = zip(self.outputs, self.graph.results, strict=True)
        return [leaf for x, structure in results for leaf in leaves_of(x.type, structure)]


class ListSegment:
    """A segment with lists among its inputs or results: programs have their elements."""

    def __init__(
        self, inputs: Sequence[Variable], outputs: Sequence[Variable], nodes: Sequence[Apply], static: set[Variable]
    ) -> None:
        self.inputs, self.outputs, self.nodes, self.static = list(inputs), list(outputs), list(nodes), static
        self._inner: dict[Any, _Unlisted] = {}

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        known = [x.tobytes() for x, v in zip(given, self.inputs, strict=True) if v in self.static]
        structures = tuple([structure_of(x) if is_list(v) else None for x, v in zip(given, self.inputs, strict=True)])
        key = (structures, tuple(known))
        if key not in self._inner:
            if len(self._inner) >= MOST_CALLS:
                self._inner.clear()
            self._inner[key] = self._made_for(structures)
        inner = self._inner[key]
        pairs = zip(given, self.inputs, strict=True)
        made = iter(inner([x for value, v in pairs for x in (arrays_in(value, v.type) if is_list(v) else [value])]))
        return [packed(structure, made) for structure in inner.graph.results]

    def _made_for(self, structures: Sequence[Structure]) -> _Unlisted:
        graph = ListedGraph(self.inputs, self.outputs, self.nodes, structures)
        pairs = zip(self.inputs, structures, strict=True)
        taken = [leaf for x, s in pairs for leaf in (leaves_of(x.type, s) if is_list(x) else [x])]
        return _Unlisted(taken, self.outputs, graph, self.static)


def segment_of(
    inputs: Sequence[Variable], outputs: Sequence[Variable], nodes: Sequence[Apply], static: set[Variable]
) -> Segment | SparseSegment | ListSegment:
    """A segment of these nodes."""
    if any(is_list(x) for x in (*inputs, *outputs)):
        return ListSegment(inputs, outputs, nodes, static)
    if any(is_sparse(x) for x in (*inputs, *outputs)):
        return SparseSegment(inputs, outputs, nodes, static)
    return Segment(inputs, outputs, Graph(inputs, outputs, nodes, is_whole=True), static)


class Plan:
    """The steps of a graph in their order, and how values get from one to the next."""

    def __init__(self, inputs: Sequence[Variable], outputs: Sequence[Variable], nodes: Sequence[Apply]) -> None:
        self.inputs, self.outputs, self.nodes = list(inputs), list(outputs), list(nodes)
        self._left = _mixed(self.nodes)
        self._cut()

    def _cut(self) -> None:
        self.steps = cut(self.inputs, self.outputs, self.nodes, self._left)
        only = self.steps[0] if len(self.steps) == 1 else None
        self.single: Segment | None = None
        self.call: Callable[[list[Any]], Sequence[Any]] = self._any
        """Takes a list of values, and gives a list."""
        if isinstance(only, Segment) and all(_is_array(x) for x in [*self.inputs, *self.outputs]):
            whole = Graph(self.inputs, self.outputs, only.graph.nodes, is_whole=True)
            only = self.single = Segment(self.inputs, self.outputs, whole, only.static)
            self.steps = [only]
            if only.is_plain:
                self.call = self._again(only)

    def __call__(self, *given: Any) -> Sequence[Any]:
        return self.call(list(given))

    def _again(self, single: Segment) -> Callable[[list[Any]], Sequence[Any]]:
        """A call, where all depends on the dtypes and shapes of the inputs: most come again."""
        whatever = self._any

        def call(given: list[Any]) -> Sequence[Any]:
            made = single.last(given)
            return whatever(given) if made is None else made

        return call

    def _any(self, given: list[Any]) -> Sequence[Any]:
        while True:
            try:
                return self._run(given)
            except Refused as error:
                self._left[error.node] = error.reason
                self._cut()

    def _run(self, given: Sequence[Any]) -> Sequence[Any]:
        if self.single is not None:
            try:
                return self.single(given)
            except AttributeError:  # numbers in place of arrays, from a caller that is trusted
                return self.single([_as_array(x, v) for x, v in zip(given, self.inputs, strict=True)])
        values: dict[Variable, Any] = {v: _as_array(x, v) for x, v in zip(given, self.inputs, strict=True)}
        for step in self.steps:
            made = step([values[x] for x in step.inputs])
            values.update(zip(step.outputs, made, strict=True))
        return [x.data if isinstance(x, Constant) else values[x] for x in self.outputs]


def _mixed(nodes: Sequence[Apply]) -> dict[Apply, str]:
    """The nodes that have lists, in a graph with sparse matrices."""
    values = {node: (*node.inputs, *node.outputs) for node in nodes}
    if not any(is_sparse(x) for found in values.values() for x in found):
        return {}
    listed = [node for node, found in values.items() if any(is_list(x) for x in found)]
    return dict.fromkeys(listed, "there are sparse matrices in the same graph")


def _is_array(x: Variable) -> bool:
    """Whether a program can have a variable for an input."""
    return isinstance(x.type, (RandomType, DenseTensorType, ScalarType))


def _as_array(value: Any, variable: Variable) -> Any:
    if isinstance(value, np.ndarray) or not hasattr(variable.type, "dtype") or not hasattr(variable.type, "shape"):
        return value
    if type(value).__module__.startswith("scipy"):
        return value
    return np.asarray(value, variable.type.dtype)


def cut(
    inputs: Sequence[Variable], outputs: Sequence[Variable], nodes: Sequence[Apply], left: dict[Apply, str]
) -> list[Any]:
    """The steps of a graph. Nodes in `left` are PyTensor's, for the reasons given."""
    born: dict[Variable, int] = dict.fromkeys(inputs, 0)
    stage: dict[Apply, int] = {}
    static: dict[int, set[Variable]] = {}
    reasons: dict[Apply, str] = {}
    readers = readers_of(nodes, outputs)
    for node in nodes:
        level = max((born.get(x, 0) for x in node.inputs), default=0)
        reason = left.get(node) or refusal(node)
        if reason is not None:
            reasons[node] = reason
            stage[node] = level
            born.update(dict.fromkeys(node.outputs, level + 1))
            continue
        level = _level_of(node, level, set(inputs), born, static)
        stage[node] = level
        late = stops_short(node, readers)
        born.update(dict.fromkeys(node.outputs, level + late))
    return _steps(outputs, nodes, stage, static, reasons)


def _level_of(
    node: Apply, level: int, inputs: set[Variable], born: dict[Variable, int], static: dict[int, set[Variable]]
) -> int:
    """The stage at which all numbers are known that a node needs before it is traced."""
    rule = rule_of(node.op)
    assert rule is not None
    operands = [node.inputs[at] for at in rule.known(node)]
    while True:
        available = {x for x in born if born[x] < level} | inputs
        given: set[Variable] = set()
        unknown = [x for x in operands if not (x in available or is_known(x, available, given))]
        if not unknown:
            given.update(x for x in operands if x in available)
            static.setdefault(level, set()).update(given)
            return level
        level += 1


def _left(node: Apply, reason: str) -> Performed | Stepped:
    """A node that is no part of a program."""
    warn_once(node, reason)
    return Stepped(node, Plan) if isinstance(node.op, Scan) else Performed(node)


def _steps(
    outputs: Sequence[Variable],
    nodes: Sequence[Apply],
    stage: dict[Apply, int],
    static: dict[int, set[Variable]],
    reasons: dict[Apply, str],
) -> list[Any]:
    steps: list[Any] = []
    read_at: dict[Variable, set[Any]] = {}
    for node in nodes:
        for x in node.inputs:
            read_at.setdefault(x, set()).add(node if node in reasons else stage[node])
    for level in range(max(stage.values(), default=-1) + 1):
        inside = [node for node in nodes if stage[node] == level and node not in reasons]
        if inside:
            made = {x for node in inside for x in node.outputs}
            wanted = [
                x
                for x in dict.fromkeys(x for node in inside for x in node.outputs)
                if x in set(outputs) or read_at.get(x, set()) - {level}
            ]
            taken = dict.fromkeys(
                x for node in inside for x in node.inputs if x not in made and not isinstance(x, Constant)
            )
            steps.append(segment_of(list(taken), wanted, inside, static.get(level, set()) & set(taken)))
        steps += [_left(node, reasons[node]) for node in nodes if stage[node] == level and node in reasons]
    return steps
