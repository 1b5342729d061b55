"""Exported functions, read again: JSON becomes programs that make graphs, and functions that apply them.

Nothing in a header is believed. Names are looked up in the registry, parameters are read as what their primitive says
they are, and every node is checked by its primitive's own rule (`Primitive.check`) before it is made: for the sizes of
the trace when a file is read, and for other sizes when a call brings them. A call applies the graph to its arguments
node by node, so an imported function can stand in any other and be transformed with it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, Final, NamedTuple

import numpy as np

from weft import tree
from weft.array import array, wrap
from weft.dtypes import Dtype, bool_, by_name
from weft.files.paths import Path_
from weft.graph.body import Body, body_of
from weft.graph.dims import Dim, dim_max, shape_text
from weft.graph.node import ArrayType, Node, Size, TupleType, bundle_of, kind_of, tape_of
from weft.primitives import CONTROL_FLOW, REGISTRY
from weft.primitives.base import (
    CONSTANT,
    DATA,
    ONE,
    ZERO,
    ConstantValue,
    GetResult,
    Parameter,
    Placeholder,
    Primitive,
    bind,
    check_operands,
)
from weft.primitives.checks import check_shape, equal_kinds
from weft.primitives.control import Loop
from weft.primitives.elementwise import Minimum
from weft.records import MISSING, fields
from weft.runtime.data import Buffer
from weft.transforms.computed import computed_size
from weft.transforms.exportfile import DamagedFile, damaged, opened, read_header, read_tensors

FORMAT: Final = "weft function"
_CLASSES: tuple[type[Primitive], ...] = (*REGISTRY, *CONTROL_FLOW, GetResult)
PRIMITIVES: Final[Mapping[str, type[Primitive]]] = {cls.name(): cls for cls in _CLASSES}
LARGEST = 1 << 62
"""No parameter, size or number of bytes reaches this: sums and products of a few stay within what kernels count in."""
MOST_TERMS = 256
"""Terms of a size: more than any program has, fewer than it takes to keep a computer busy."""
MOST_SIZES = 64
"""Sizes for which a graph is kept."""
_RELATIONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
}
_ERRORS: Final = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError, RecursionError)
"""What reading nonsense may raise."""

Json = Any


def item(value: Json, name: str, cls: type) -> Any:
    """A part of an object, of the type that it must have."""
    if not isinstance(value, dict) or type(value.get(name)) is not cls:
        damaged(f"{name!r} is missing or is not what it should be")
    return value[name]


def whole(value: Json, what: str, below: int = LARGEST, least: int = 0) -> int:
    """A number in [least, below)."""
    if type(value) is not int or not least <= value < below:
        damaged(f"{value!r} is no {what}")
    return value


def row(value: Json, what: str, length: int | None = None) -> list[Any]:
    if type(value) is not list or (length is not None and len(value) != length):
        damaged(f"{what} is no list as it should be")
    return value


# ---- sizes ----


class Sum(NamedTuple):
    """A size that depends on those of the inputs: a sum of coefficients times products of numbered sizes."""

    terms: tuple[tuple[int, tuple[int, ...]], ...]

    def value(self, known: Sequence[Size]) -> Size:
        total: Size = 0
        for coefficient, factors in self.terms:
            product: Size = coefficient
            for factor in factors:
                product = bounded(product * known[factor])
            total = bounded(total + product)
        return total


def bounded(size: Size) -> Size:
    """A size, if it can be one."""
    if type(size) is Dim:
        if len(size.terms) > MOST_TERMS:
            raise ValueError("a size with too many terms")
    elif not -LARGEST < size < LARGEST:
        raise ValueError(f"a size of {size}")
    return size


def read_sum(value: Json, known: int) -> Sum:
    terms = []
    for term in row(value, "a size"):
        if type(term) is not list or not 1 <= len(term) <= 64:
            damaged("a size is not written as a sum")
        factors = tuple([whole(factor, "known size", known) for factor in term[1:]])
        terms.append((whole(term[0], "coefficient", least=1 - LARGEST), factors))
    if len(terms) > MOST_TERMS:
        damaged("a size has too many terms")
    return Sum(tuple(terms))


class InputSize(NamedTuple):
    """The size of an axis of an input."""

    position: int
    axis: int
    name: str
    hint: int


class ComputedSize(NamedTuple):
    """A size that depends on data, by its number."""

    number: int
    name: str
    hint: int


class Floor(NamedTuple):
    num: Sum
    den: Sum


class Positive(NamedTuple):
    arg: Sum


class Guard(NamedTuple):
    """What must be true of the sizes of a call."""

    expression: Sum
    relation: str
    value: int
    text: str


Atom = InputSize | ComputedSize | Floor | Positive


class Sizes:
    """The table of sizes of a function, and its guards. `computed` sizes depend on data: the others are known in
    stages, as these are found out one by one."""

    def __init__(self, atoms: Json, guards: Json, computed: int) -> None:
        self._computed = computed
        self.atoms: list[Atom] = []
        self.stages: list[int] = []
        """How many computed sizes it takes to know each."""
        for atom in row(atoms, "the table of sizes"):
            made = self._read(atom)
            self.stages.append(self._atom_stage(made))
            self.atoms.append(made)
        self.guards = [self._guard(guard) for guard in row(guards, "the list of guards")]

    def stage(self, size: Sum) -> int:
        return max([self.stages[factor] for _, factors in size.terms for factor in factors], default=0)

    def _atom_stage(self, atom: Atom) -> int:
        match atom:
            case ComputedSize(number):
                return number + 1
            case Floor(num, den):
                return max(self.stage(num), self.stage(den))
            case Positive(arg):
                return self.stage(arg)
        return 0

    def _read(self, atom: Json) -> Atom:
        known = len(self.atoms)
        if isinstance(atom, dict) and atom.keys() == {"floor"}:
            num, den = row(atom["floor"], "a quotient", 2)
            return Floor(read_sum(num, known), read_sum(den, known))
        if isinstance(atom, dict) and atom.keys() == {"positive"}:
            return Positive(read_sum(atom["positive"], known))
        if isinstance(atom, dict) and "computed" in atom:
            number = whole(item(atom, "computed", int), "computed size", self._computed)
            return ComputedSize(number, word(item(atom, "name", str)), whole(item(atom, "hint", int), "size", least=2))
        position, axis = (whole(item(atom, name, int), name) for name in ("input", "axis"))
        return InputSize(position, axis, word(item(atom, "name", str)), whole(item(atom, "hint", int), "size", least=2))

    def _guard(self, guard: Json) -> Guard:
        expression, relation, value, text = row(guard, "a guard", 4)
        if not isinstance(relation, str) or relation not in _RELATIONS:
            damaged(f"{relation!r} is no relation of sizes")
        return Guard(
            read_sum(expression, len(self.atoms)), relation, whole(value, "size", least=1 - LARGEST), word(text)
        )

    def values(self, shapes: Sequence[Sequence[Size]] | None, computed: Sequence[Size] = ()) -> list[Size] | None:
        """All sizes where inputs have these shapes (None: those of the trace), as far as they follow from these and
        from the computed ones that are known (others are 0); None if a guard does not hold. Guards are in an order in
        which no divisor is 0 that one of them says is not."""
        known: list[Size] = []
        stage = self._computed if shapes is None else len(computed)
        for atom, needs in zip(self.atoms, self.stages, strict=True):
            if needs > stage:
                known.append(0)
                continue
            match atom:
                case ComputedSize(number, _, hint):
                    known.append(hint if shapes is None else computed[number])
                case InputSize(position, axis, _, hint):
                    known.append(hint if shapes is None else shapes[position][axis])
                case Floor(num, den):
                    below = den.value(known)
                    known.append(0 if type(below) is int and below == 0 else bounded(num.value(known) // below))
                case Positive(arg):
                    known.append(bounded(dim_max(arg.value(known), 0)))
        for guard in self.guards:
            if self.stage(guard.expression) > stage:
                continue
            if not _RELATIONS[guard.relation](guard.expression.value(known), guard.value):
                return None
        return known


def word(text: Json) -> str:
    """Text that may be shown."""
    if not isinstance(text, str) or len(text) > 4096 or not text.isprintable():
        damaged("a name is not text that can be shown")
    return text


# ---- parameters of primitives ----

Decode = Callable[[Json, "FunctionReader"], Any]


class BodyAt(NamedTuple):
    """A body, by its number."""

    number: int


def _int(value: Json, reader: FunctionReader) -> int:
    return whole(value, "number", least=1 - LARGEST)


def _bool(value: Json, reader: FunctionReader) -> bool:
    if type(value) is not bool:
        damaged(f"{value!r} is no truth value")
    return value


def _float(value: Json, reader: FunctionReader) -> float:
    text = item(value, "number", str)
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError):
        damaged(f"{text!r} is no number")


def _size(value: Json, reader: FunctionReader) -> int | Sum:
    if isinstance(value, dict) and value.keys() == {"size"}:
        return read_sum(value["size"], len(reader.sizes.atoms))
    return _int(value, reader)


def _dtype(value: Json, reader: FunctionReader) -> Dtype:
    return read_dtype(item(value, "dtype", str))


def _body(value: Json, reader: FunctionReader) -> BodyAt:
    return BodyAt(whole(item(value, "body", int), "body", len(reader.bodies)))


def _text(value: Json, reader: FunctionReader) -> str:
    return word(value)


def _many(decode: Decode) -> Decode:
    return lambda value, reader: tuple([decode(part, reader) for part in row(value, "a parameter")])


def _or_none(decode: Decode) -> Decode:
    return lambda value, reader: None if value is None else decode(value, reader)


FIELDS: Final[Mapping[str, Decode]] = {
    "int": _int,
    "bool": _bool,
    "float": _float,
    "str": _text,
    "Dtype": _dtype,
    "Size": _size,
    "Shape": _many(_size),
    "Body": _body,
    "Where": _many(_or_none(_int)),
    "Size | None": _or_none(_size),
    "Dtype | None": _or_none(_dtype),
    "str | None": _or_none(_text),
    "tuple[int, ...]": _many(_int),
    "tuple[Size, ...]": _many(_size),
    "tuple[Body, ...]": _many(_body),
}
"""How a parameter is read, by the type that its primitive gives it."""


def read_dtype(name: Json) -> Dtype:
    try:
        return by_name(name)
    except (ValueError, TypeError):
        damaged(f"{name!r} is no dtype")


# ---- functions ----


class Step(NamedTuple):
    """One node to be made: a primitive and its parameters, or the number of a tensor, or the value of a constant."""

    what: type[Primitive] | int | ConstantValue
    params: tuple[Any, ...]
    operands: tuple[int, ...]
    kind: int


class Steps(NamedTuple):
    """A graph to be made."""

    inputs: tuple[int, ...]
    steps: tuple[Step, ...]
    outputs: tuple[int, ...]


class Instance(NamedTuple):
    """A graph for certain sizes."""

    inputs: tuple[Node, ...]
    order: tuple[Node, ...]
    outputs: tuple[Node, ...]


class Reader:
    """Reads the functions of a file. `tensors` are the kinds of its arrays, `buffers` the arrays."""

    def __init__(self, tensors: Sequence[ArrayType], buffers: Sequence[Buffer] | None) -> None:
        self.tensors, self.buffers = tensors, buffers

    def function(self, value: Json) -> Imported:
        """A function; DamagedFile if it is none."""
        try:
            return FunctionReader(value, self).function()
        except _ERRORS as error:
            raise DamagedFile(f"a function in it makes no sense: {error}") from error


class FunctionReader:
    """Reads one function."""

    def __init__(self, value: Json, file: Reader) -> None:
        self.value, self.file = value, file
        computed = row(value.get("computed", []), "the list of computed sizes")
        self.sizes = Sizes(value["sizes"], value["guards"], len(computed))
        self.kinds: list[Any] = []
        self.kind_stages: list[int] = []
        """How many computed sizes it takes to know each."""
        for kind in row(value["kinds"], "the table of kinds"):
            self.kinds.append(self._kind(kind))
            self.kind_stages.append(self._kind_stage(self.kinds[-1]))
        self.bodies: list[Steps] = []
        self.body_stages: list[int] = []
        for body in row(value["bodies"], "the list of bodies"):
            made = self._steps(body, tensors=False)
            stages = [self.stage(step) for step in made.steps] + [self.kind_stages[kind] for kind in made.inputs]
            self.bodies.append(made)
            self.body_stages.append(max(stages, default=0))
        self.computed = [self._found(size) for size in computed]

    def stage(self, step: Step) -> int:
        """How many computed sizes it takes to make a node."""
        return max(self.kind_stages[step.kind], self._params_stage(step.params))

    def _params_stage(self, value: Any) -> int:
        if type(value) is Sum:
            return self.sizes.stage(value)
        if type(value) is BodyAt:
            return self.body_stages[value.number]
        return max(map(self._params_stage, value), default=0) if type(value) is tuple else 0

    def _kind_stage(self, kind: Any) -> int:
        first, rest = kind
        if first == "tape":
            return self.kind_stages[rest]
        if first == "bundle":
            return max([self.kind_stages[part] for part in rest], default=0)
        return self._params_stage(rest)

    @staticmethod
    def _found(size: Json) -> tuple[int, int | None]:
        """(number of the node that computes a size, what it must be unless it is a symbol)"""
        node, number = row(size, "a computed size", 2)
        return whole(node, "node"), None if number is None else whole(number, "computed size", 2)

    def _check_computed(self, steps: Steps) -> None:
        """Computed sizes are integers without axes, found out before anything that depends on them."""
        kinds = [*steps.inputs, *[step.kind for step in steps.steps]]
        for node, _ in self.computed:
            dtype, shape = self.kinds[kinds[whole(node, "node", len(kinds))]]
            if not isinstance(dtype, Dtype) or not dtype.is_integer or shape:
                damaged("a computed size is no integer without axes")
        for number, step in enumerate(steps.steps, len(steps.inputs)):
            if any(node >= number for node, _ in self.computed[: self.stage(step)]):
                damaged("a size is used before it is computed")
        symbols = {atom.number for atom in self.sizes.atoms if isinstance(atom, ComputedSize)}
        if any(self.computed[number][1] is not None for number in symbols):
            damaged("a computed size is a symbol and a number")

    def function(self) -> Imported:
        value = self.value
        inputs, outputs = read_tree(value["inputs"]), read_tree(value["outputs"])
        steps = self._steps(value["graph"], tensors=True)
        self._check_computed(steps)
        if inputs.num_leaves != len(steps.inputs) or outputs.num_leaves != len(steps.outputs):
            damaged("inputs or outputs are not as many as its graph has")
        args, kwargs = inputs.unflatten([None] * inputs.num_leaves)
        if not isinstance(args, tuple) or not isinstance(kwargs, dict) or not all(isinstance(k, str) for k in kwargs):
            damaged("inputs are no arguments of a function")
        names = [None if name is None else word(name) for name in row(value["names"], "the names", len(args))]
        made = Imported(self, steps, inputs, outputs, names, word(value["name"]))
        made.check()
        return made

    def _kind(self, kind: Json) -> Any:
        """(dtype, shape), or ("tape", row), or ("bundle", parts)."""
        name, rest = row(kind, "a kind", 2)
        if name == "tape":
            return name, whole(rest, "kind", len(self.kinds))
        if name == "bundle":
            return name, tuple([whole(part, "kind", len(self.kinds)) for part in row(rest, "a kind")])
        return read_dtype(name), tuple([_size(n, self) for n in row(rest, "a shape")])

    def _steps(self, graph: Json, tensors: bool) -> Steps:
        inputs = tuple([whole(kind, "kind", len(self.kinds)) for kind in item(graph, "inputs", list)])
        steps: list[Step] = []
        for node in item(graph, "nodes", list):
            steps.append(self._step(node, len(inputs) + len(steps), tensors))
        known = len(inputs) + len(steps)
        outputs = tuple([whole(value, "node", known) for value in item(graph, "outputs", list)])
        return Steps(inputs, tuple(steps), outputs)

    def _step(self, node: Json, known: int, tensors: bool) -> Step:
        name, kind, operands, params = row(node, "a node", 4)
        kind = whole(kind, "kind", len(self.kinds))
        operands = tuple([whole(x, "node", known) for x in row(operands, "operands")])
        if name == "constant":
            return Step(self._constant(item(params, "bits", str), self.kinds[kind][0]), (), _none(operands), kind)
        if name == "tensor" and tensors:
            number = whole(item(params, "index", int), "tensor", len(self.file.tensors))
            return Step(number, (), _none(operands), kind)
        cls = PRIMITIVES.get(name) if isinstance(name, str) else None
        if cls is None:
            damaged(f"there is no primitive {name!r}; was it written by a later Weft?")
        return Step(cls, self._params(cls, params), operands, kind)

    def _params(self, cls: type[Primitive], given: Json) -> tuple[Any, ...]:
        if type(given) is not dict:
            damaged(f"{cls.name()} has no parameters")
        known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
        if not given.keys() <= known.keys():
            damaged(f"{cls.name()} has no parameter {min(given.keys() - known.keys())!r}")
        values = []
        for name, field in known.items():
            if name in given:
                values.append(FIELDS[str(field.type)](given[name], self))
            elif field.default is not MISSING:
                values.append(field.default)
            else:
                damaged(f"{cls.name()} needs a parameter {name!r}")
        return tuple(values)

    @staticmethod
    def _constant(bits: str, dtype: Any) -> ConstantValue:
        raw = bytes.fromhex(bits)
        if not isinstance(dtype, Dtype) or len(raw) != dtype.size or (dtype.is_bool and raw > b"\1"):
            damaged("a constant does not have the bits of a number")
        padded = raw + bytes(-len(raw) % 8)
        words = tuple(np.frombuffer(padded, "<i8").tolist())
        return ConstantValue(np.frombuffer(raw, dtype.np)[0], words)


def _none(operands: tuple[int, ...]) -> tuple[int, ...]:
    if operands:
        damaged("data has operands")
    return operands


def read_tree(value: Json) -> tree.Structure:
    """The structure of a tree of arrays."""
    return tree.flatten(_tree(value, 0))[1]


def _tree(value: Json, depth: int) -> Any:
    if depth > 256:
        damaged("containers nest too deep")
    if value == "*":
        return ...
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) != 1:
        damaged("a container is not described as we do it")
    ((name, parts),) = value.items()
    parts = row(parts, "a container")
    if name == "dict":
        pairs = [row(part, "an item of a dict", 2) for part in parts]
        keys = [key if type(key) is int else word(key) for key, _ in pairs]
        if len(set(keys)) != len(keys):
            damaged("a dict has a key twice")
        return {key: _tree(part, depth + 1) for key, (_, part) in zip(keys, pairs, strict=True)}
    if name not in ("list", "tuple"):
        damaged(f"{name!r} is no container")
    found = [_tree(part, depth + 1) for part in parts]
    return tuple(found) if name == "tuple" else found


# ---- graphs for certain sizes ----

_LATER, _NOTHING = kind_of((0,), bool_), Steps((), (), ())
"""What stands for a kind, and a body, that is not known yet."""


class UnfitSizes(Exception):
    """Sizes that a call computes are not those that a graph is for."""


class Builder:
    """Makes the graph of a function where sizes have certain values, and checks every node of it."""

    def __init__(self, reader: FunctionReader, known: Sequence[Size], stage: int | None = None) -> None:
        """With a stage, only what is known when so many computed sizes are."""
        self.reader, self.known = reader, known
        last = len(reader.computed) if stage is None else stage
        self.kinds: list[ArrayType] = []
        for kind, needs in zip(reader.kinds, reader.kind_stages, strict=True):
            self.kinds.append(self._kind(kind) if needs <= last else _LATER)
        self.bodies: list[Body] = []
        for steps, needs in zip(reader.bodies, reader.body_stages, strict=True):
            made = self.instance(steps if needs <= last else _NOTHING, lambda i, kind: Node(Parameter(i), (), kind))
            self.bodies.append(body_of(made.inputs, made.outputs))

    def _kind(self, kind: Any) -> ArrayType:
        first, rest = kind
        if first == "tape":
            return tape_of(self._array(rest))
        if first == "bundle":
            return bundle_of([self.kinds[part] for part in rest])
        shape = tuple([self._fill(n) for n in rest])
        check_shape(shape)
        return kind_of(shape, first)

    def _array(self, number: int) -> ArrayType:
        """A kind that must be that of an array."""
        kind = self.kinds[number]
        if type(kind) is not ArrayType:
            raise ValueError(f"{kind} where an array should be")
        return kind

    def _fill(self, value: Any) -> Any:
        """A parameter with values for its sizes and bodies."""
        if type(value) is Sum:
            return value.value(self.known)
        if type(value) is BodyAt:
            return self.bodies[value.number]
        return tuple([self._fill(part) for part in value]) if type(value) is tuple else value

    def instance(self, steps: Steps, parameter: Callable[[int, ArrayType], Node]) -> Instance:
        nodes = [parameter(i, self._array(number)) for i, number in enumerate(steps.inputs)]
        inputs = tuple(nodes)
        order: list[Node] = []
        for step in steps.steps:
            nodes.append(self.node(step, [nodes[i] for i in step.operands], order))
            order.append(nodes[-1])
        outputs = tuple([nodes[i] for i in steps.outputs])
        if any(type(node.kind) is not ArrayType for node in outputs):
            raise ValueError("a result that is no array")
        return Instance(inputs, tuple(order), outputs)

    def node(self, step: Step, operands: list[Node], order: list[Node]) -> Node:
        """The node of a step. What it takes beside its operands is added to `order`."""
        what = step.what
        if isinstance(what, int):
            return self._tensor(what, self._array(step.kind))
        if isinstance(what, ConstantValue):
            return Node(_constant_op(what), (), self._array(step.kind), what)
        op = what(*self._fill(step.params))
        try:
            check_operands(op, operands)
            if isinstance(op, Loop):
                operands = _within_tapes(op, operands, order)
            made = bind(op, *operands)
        except _ERRORS as error:
            raise ValueError(f"{what.name()} with {error}") from error
        stated = self.kinds[step.kind]
        if made.kind is not stated and not equal_kinds(made.kind, stated):
            raise ValueError(f"{what.name()} gives {made.kind}, and the file says {stated}")
        return made

    def _tensor(self, number: int, kind: ArrayType) -> Node:
        stored = self.reader.file.tensors[number]
        if not equal_kinds(stored, kind):
            raise ValueError(f"a tensor {stored} that is said to be {kind}")
        buffers = self.reader.file.buffers
        return Node(DATA, (), kind, None if buffers is None else buffers[number])


def _within_tapes(op: Loop, operands: list[Node], order: list[Node]) -> list[Node]:
    """The operands of a loop that makes no more steps than there are rows on the tapes that it reads. A loop that Weft
    has made never does; a file can say anything."""
    for writer in op.writers(operands):
        assert isinstance(writer.kind, TupleType)
        last = GetResult(len(writer.kind.parts) - 1)
        if _is_at_most(operands[0], writer, last):
            continue
        steps = bind(last, writer)
        least = bind(Minimum(), operands[0], steps)
        order += [steps, least]
        operands = [least, *operands[1:]]
    return operands


def _is_at_most(count: Node, writer: Node, last: GetResult) -> bool:
    """Whether a count is the number of steps of a loop, or was made no larger by `_within_tapes`."""
    while True:
        of_minimum = count.inputs[1:] if isinstance(count.op, Minimum) else ()
        if any(x.op is last and x.inputs[0] is writer for x in (count, *of_minimum)):
            return True
        if not of_minimum:
            return False
        count = count.inputs[0]


def _constant_op(value: ConstantValue) -> Primitive:
    """0 and 1 are told apart."""
    if not any(value.words):
        return ZERO
    return ONE if value.number.tobytes() == np.ones((), value.number.dtype).tobytes() else CONSTANT


def applied(instance: Instance, operands: Sequence[Node]) -> list[Node]:
    """The results for these operands, as new nodes. Leaves are new ones too: evaluation may write into them, and a
    trace tells what it made by its age."""
    new = dict(zip(instance.inputs, operands, strict=True))
    memo: dict[Any, Any] = {}
    for node in instance.order:
        if node.inputs:
            new[node] = node.again(tuple([new[x] for x in node.inputs]), memo)
        else:
            new[node] = Node(node.op, (), node.kind, node.value)
    return [new[node] for node in instance.outputs]


# ---- calling ----


def read_functions(name: str, file: Path_ | IO[bytes]) -> tuple[list[Imported], str]:
    """The functions of a file, and its metadata. A damaged file is a RuntimeError."""
    if not isinstance(file, (str, os.PathLike)) and not hasattr(file, "read"):
        raise TypeError(f"[{name}] the first argument is a file; got {type(file).__name__}.")
    try:
        with opened(file) as source:
            header, tensors = read_header(source)
            if item(header, "format", str) != FORMAT:
                raise DamagedFile("it holds no function")
            metadata = item(header, "metadata", str)
            buffers = read_tensors(source, tensors)
        reader = Reader([kind_of(tensor.shape, tensor.dtype) for tensor in tensors], buffers)
        return [reader.function(function) for function in item(header, "functions", list)], metadata
    except DamagedFile as error:
        where = file if isinstance(file, (str, os.PathLike)) else "this file"
        raise RuntimeError(f"[{name}] {where} cannot be read: {error}.") from error


class Imported:
    """One function of a file: which calls it is for, and what it computes."""

    def __init__(
        self,
        reader: FunctionReader,
        steps: Steps,
        inputs: tree.Structure,
        outputs: tree.Structure,
        names: Sequence[str | None],
        name: str,
    ) -> None:
        self._reader, self._steps = reader, steps
        self.inputs, self.outputs, self.names, self.name = inputs, outputs, names, name
        self._made: dict[tuple[int, ...], Instance] = {}
        self._guesses = {atom.number: atom.hint for atom in reader.sizes.atoms if isinstance(atom, ComputedSize)}
        self.is_general = all(number is None for _, number in reader.computed)
        """Whether no size that depends on data must be a certain number."""

    def check(self) -> None:
        """Make the graph for the sizes of the trace. What may change in the shape of an input is a size of its own."""
        atoms = self._reader.sizes.atoms
        symbols = {(atom.position, atom.axis): i for i, atom in enumerate(atoms) if isinstance(atom, InputSize)}
        for position, number in enumerate(self._steps.inputs):
            dtype, shape = self._reader.kinds[number]
            if not isinstance(dtype, Dtype):
                raise ValueError("an input that is no array")
            for axis, n in enumerate(shape):
                symbol = symbols.pop((position, axis), None)
                if (symbol is not None or type(n) is Sum) and n != _alone(symbol):
                    raise ValueError("an axis of an input with a size that is not its own")
        known = self._reader.sizes.values(None)
        if symbols or known is None:
            raise ValueError("it is not for the sizes that it was traced with")
        self._instance(known)

    def _instance(self, known: Sequence[Size]) -> Instance:
        plain = all(type(n) is int for n in known)
        key = tuple(known) if plain else ()
        found = self._made.get(key) if plain else None  # type: ignore[arg-type]
        if found is None:
            builder = Builder(self._reader, known)
            found = builder.instance(self._steps, lambda i, kind: Node(Placeholder("import_function"), (), kind))
            if plain:
                if len(self._made) >= MOST_SIZES:
                    self._made.pop(next(iter(self._made)), None)
                self._made[key] = found  # type: ignore[index]
        return found

    def matches(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[array], list[Size]] | None:
        """The arrays of a call, in order, and all sizes; None if the function is not for such a call."""
        bound = self._by_name(args, kwargs)
        if bound is None:
            return None
        try:
            leaves = self.inputs.flatten_up_to(bound)
        except ValueError:
            return None
        for leaf, number in zip(leaves, self._steps.inputs, strict=True):
            dtype, shape = self._reader.kinds[number]
            if not isinstance(leaf, array) or leaf.dtype is not dtype or leaf.ndim != len(shape):
                return None
            for n, m in zip(leaf._node.shape, shape, strict=True):
                if type(m) is int and n != m:
                    return None
        known = self._reader.sizes.values([leaf._node.shape for leaf in leaves])
        return None if known is None else (leaves, known)

    def _by_name(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Arguments with those in their places that were given by the names of their parameters."""
        keywords = self.inputs.children[1].meta[0] if self.inputs.children[1].kind is not None else ()
        rest = dict(kwargs)
        given = list(args)
        for name in self.names[len(given) :]:
            if name is None or name not in rest or name in keywords:
                return None
            given.append(rest.pop(name))
        return tuple(given), rest

    def traced_kinds(self) -> list[tuple[ArrayType, list[bool]]]:
        """Of each input: the kind that it was traced with, and which of its sizes may be others."""
        known = self._reader.sizes.values(None)
        assert known is not None, "checked when it was read"
        found = []
        for number in self._steps.inputs:
            dtype, shape = self._reader.kinds[number]
            sizes = [n.value(known) if type(n) is Sum else n for n in shape]
            found.append((kind_of(tuple(sizes), dtype), [type(n) is Sum for n in shape]))
        return found

    def results(self, leaves: Sequence[array], known: Sequence[Size]) -> Any:
        """What the function gives, as it returned it. UnfitSizes if sizes that depend on data are others than its."""
        operands = [leaf._node for leaf in leaves]
        found = self._in_stages(operands, known) if self._reader.computed else applied(self._instance(known), operands)
        return self.outputs.unflatten([wrap(node) for node in found])

    def _in_stages(self, operands: Sequence[Node], known: Sequence[Size]) -> list[Node]:
        """The results of a function that computes sizes, each found out as soon as its node is there."""
        reader, nodes = self._reader, [*operands]
        shapes = [node.shape for node in operands]
        builder, found, beside = Builder(reader, known, 0), list[Size](), list[Node]()
        for step in (None, *self._steps.steps):
            if step is not None:
                nodes.append(builder.node(step, [nodes[i] for i in step.operands], beside))
            while len(found) < len(reader.computed) and reader.computed[len(found)][0] < len(nodes):
                node, number = reader.computed[len(found)]
                size = computed_size("import_function", nodes[node], self._guesses.get(len(found), 2))
                if size != number if number is not None else type(size) is int and size < 2:
                    raise UnfitSizes
                found.append(size)
                now = reader.sizes.values(shapes, found)
                if now is None:
                    raise UnfitSizes
                builder = Builder(reader, now, len(found))
        return [nodes[i] for i in self._steps.outputs]

    def apply(self, leaves: Sequence[array], known: Sequence[Size]) -> Any:
        """What the function gives, as it returned it, but with a tuple for a list of results or a single one."""
        value = self.results(leaves, known)
        if isinstance(value, array):
            return (value,)
        return tuple(value) if isinstance(value, list) else value

    def text(self, number: int) -> str:
        """What calls it is for, in words."""
        args, kwargs = self.inputs.unflatten([self._leaf_text(kind) for kind in self._steps.inputs])
        lines = [f" {number}. Function with {_counts(args, kwargs)}:", *_lines(args, kwargs, "   ")]
        if self._reader.sizes.guards:
            lines.append(f"   where {', '.join([guard.text for guard in self._reader.sizes.guards])}")
        return "\n".join(lines)

    def _leaf_text(self, number: int) -> str:
        dtype, shape = self._reader.kinds[number]
        names = [str(n) if type(n) is int else self._size_text(n) for n in shape]
        return f"({', '.join(names)}{',' if len(names) == 1 else ''}) {dtype.name}"

    def _size_text(self, size: Sum) -> str:
        atom = self._reader.sizes.atoms[size.terms[0][1][0]]
        return atom.name if isinstance(atom, InputSize) else "?"


def _alone(symbol: int | None) -> Sum | None:
    """A size that is one of the table, as a sum."""
    return None if symbol is None else Sum(((1, (symbol,)),))


def _counts(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    return f"{len(args)} positional inputs and {len(kwargs)} keyword inputs"


def _lines(args: Sequence[Any], kwargs: Mapping[str, Any], before: str) -> list[str]:
    lines = [f"{before}{i}: {_shown(x)}" for i, x in enumerate(args, 1)]
    return [*lines, *(f'{before}"{name}": {_shown(x)}' for name, x in kwargs.items())]


def _shown(value: Any) -> str:
    """An argument, in words: a tree with descriptions for arrays."""
    if isinstance(value, str):
        return value
    if isinstance(value, array):
        return f"{shape_text(value._node.shape)} {value.dtype.name}"
    if isinstance(value, dict):
        return f"{{{', '.join([f'{key!r}: {_shown(x)}' for key, x in value.items()])}}}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_shown, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    return "None" if value is None else type(value).__name__


def call_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """A call, in words."""
    return "\n".join([f"{_counts(args, kwargs)}:", *_lines(args, kwargs, "  ")])


def spread(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that are meant: a single tuple and/or dict stands for all of them."""
    if not kwargs and args and len(args) <= 2:
        first, last = args[0], args[-1]
        if isinstance(first, (list, tuple)) and (len(args) == 1 or _is_keywords(last)):
            return tuple(first), dict(last) if len(args) == 2 else {}
        if len(args) == 1 and _is_keywords(first):
            return (), dict(first)
    return args, kwargs


def _is_keywords(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)
