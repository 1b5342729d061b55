"""What names of a kernel stand for while it is given types, and the scopes that they stand in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.kernels import rules, tree
from weft.kernels import syntax as s
from weft.kernels.rules import Value
from weft.kernels.syntax import At, KernelError
from weft.records import dataclass

MOST_DEPTH: Final = 64
MOST_STATEMENTS: Final = 20_000
MOST_MEMORY: Final = 1 << 20
"""Bytes of one array of a thread or a threadgroup."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand or a result of a kernel, as a call gives it."""

    name: str
    dtype: Dtype
    ndim: int


@dataclass(frozen=True, slots=True)
class Address:
    """A place in a storage. `sizes` are those of the axes that are left to index, for arrays of the kernel's own."""

    storage: tree.Storage
    index: tree.Expression
    sizes: tuple[int, ...] = ()
    variable: tree.Variable | None = None
    """What holds the index, if it is a variable."""
    whole: bool = False
    """Whether it is an operand or result itself, which may be indexed along its axes."""


@dataclass(frozen=True, slots=True)
class Tuple:
    """A vector of a few numbers, such as a position: one value each."""

    parts: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Sizes:
    """`x.shape`, `x_strides`: sizes of an operand."""

    storage: tree.Storage
    what: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A variable that a name stands for. `guessed` is where its type is noted, if that is found out."""

    variable: tree.Variable
    guessed: Any = None
    constant: bool = False


@dataclass(frozen=True, slots=True)
class KeptTuple:
    variables: tuple[tree.Variable, ...]


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a struct: of a type, or an array of `sizes` of it."""

    name: str
    type: Any
    sizes: tuple[int, ...]
    default: s.Expression | None


@dataclass(frozen=True, slots=True, eq=False)
class StructType:
    """A struct, its template parameters known: `scope` has them."""

    name: str
    fields: tuple[Field, ...]
    source: s.Struct
    scope: dict[str, Any]

    def place(self, name: str) -> int:
        """Which field has a name; -1 if none has."""
        return next((k for k, field in enumerate(self.fields) if field.name == name), -1)


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where the numbers of one kind in vectors, or structs, lie: `base`, and `step` more for each that follows."""

    storage: tree.Storage
    base: tree.Expression
    step: int


@dataclass(frozen=True, slots=True)
class Elements:
    """Vectors or structs in memory: an array or a pointer, or, if `one`, the element there. There is a leaf for all
    numbers of a vector, and for each field of a struct."""

    type: Any
    leaves: tuple[Any, ...]
    index: tree.Expression
    sizes: tuple[int, ...] = ()
    variable: tree.Variable | None = None
    one: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """A struct as a value: what its fields are."""

    type: StructType
    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """A variable that is a struct: a place for each field."""

    type: StructType
    places: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Some numbers of a vector that can be assigned: `v.xz`."""

    parts: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """One number of a vector, whose place in it is known when the kernel runs."""

    of: KeptTuple
    index: tree.Expression


@dataclass(frozen=True, slots=True)
class Alias:
    """A reference: its name is a place."""

    place: Any


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of a variable."""

    place: Any


@dataclass(frozen=True, slots=True)
class Closure:
    """A function without a name, and the names that it sees."""

    function: s.Function
    scopes: tuple[dict[str, Any], ...]


Meaning = Any
"""Value, Address, Tuple, Sizes, Kept, KeptTuple, Elements, Record, KeptRecord, Alias, Pointer, Closure, a type, or a
function."""


class Again(Exception):
    """The type of a variable turned out to be another than assumed."""


def int64(value: int) -> tree.Constant:
    return tree.Constant(dt.int64, value)


class Names:
    """The names that are known at a place of a kernel, and the statements that were written so far."""

    def __init__(
        self,
        source: s.Source,
        inputs: Sequence[Operand],
        outputs: Sequence[Operand],
        template: Mapping[str, Any],
        guesses: dict[Any, Dtype],
    ) -> None:
        self.source, self.guesses = source, guesses
        self.rules = rules.RULES[source.language]
        self.storages: list[tree.Storage] = []
        self.count = 0
        self.scopes: list[dict[str, Meaning]] = [{}]
        self.out: list[tree.Statement] = []
        self.written = 0
        self.calls: list[Any] = []
        """The functions that are being written out."""
        self.loops = 0
        self.switches: list[tree.Variable | None] = []
        """The loops (None) and switches around a place; a switch in a loop has what says that the loop goes on."""
        self.closures: dict[str, list[s.Function]] = {}
        self.functions: dict[str, list[s.Function]] = {}
        for function in source.functions:
            self.functions.setdefault(function.name, []).append(function)
        self.structs = {struct.name: struct for struct in source.structs}
        self._struct_types: dict[Any, StructType] = {}
        self._inside: list[str] = []
        """The structs whose fields are being found."""
        self._views: dict[tuple[tree.Storage, Dtype], tree.Storage] = {}
        self._constants(source.constants)
        for name, value in template.items():
            self._bind_template(name, value)
        for k, operand in enumerate((*inputs, *outputs)):
            self._bind_operand(k, operand, "input" if k < len(inputs) else "output")

    # ---- names ----

    def _constants(self, constants: Sequence[tuple[str, Any]]) -> None:
        for name, value in constants:
            self.scopes[0][name] = value if isinstance(value, Dtype) else self.rules.literal(value, "")

    def _bind_template(self, name: str, value: Any) -> None:
        if isinstance(value, Dtype):
            self.scopes[0][name] = value
        elif isinstance(value, bool):
            self.scopes[0][name] = Value(tree.Constant(dt.bool_, value))
        else:
            self.scopes[0][name] = self.rules.literal(value, "")

    def _bind_operand(self, k: int, operand: Operand, space: str) -> None:
        name = operand.name
        storage = tree.Storage(name, operand.dtype, space, k, operand.ndim)
        self.storages.append(storage)
        start = Address(storage, int64(0), whole=True)
        if operand.ndim == 0 and space == "input":
            start = Address(storage, int64(0), ())  # its name is its only element
        if ("moves", name) in self.guesses:
            kept = self.variable(name, dt.int64)
            self.write(tree.Assign(kept, int64(0), first=True))
            start = Address(storage, tree.Read(dt.int64, kept), (), kept)
        self.scopes[0][name] = start
        self.scopes[0].setdefault(f"{name}_shape", Sizes(storage, "shape"))
        self.scopes[0].setdefault(f"{name}_strides", Sizes(storage, "strides"))
        self.scopes[0].setdefault(f"{name}_ndim", self.rules.literal(operand.ndim, ""))

    def error(self, at: At | None, message: str) -> NoReturn:
        raise KernelError(self.source.name, at, message)

    def find(self, name: str, at: At) -> Meaning:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        if name in self.functions:
            return self.functions[name][0]
        if name in ("threads_per_simdgroup", "simd_size", "warpSize"):
            return self.rules.literal(tree.SIMD_WIDTH, "")
        position = self.rules.positions.get(name)
        if position is not None:
            return self._position(position)
        number = self.rules.numbers.get(name)
        if number is not None:
            return self.rules.literal(number, "f" if self.source.language != "python" else "")
        found = self.rules.types.get(name)
        if found is not None:
            return found
        return self.error(at, f"`{name}` is not known here.")

    def _position(self, name: str) -> Meaning:
        def one(axis: int) -> Value:
            return Value(tree.Position(self.rules.position, name, axis))

        if name in ("thread_index_in_threadgroup", *tree.OF_SIMDGROUPS):
            return one(0)
        return Tuple((one(0), one(1), one(2)))

    def bind(self, name: str, meaning: Meaning, at: At) -> None:
        self.scopes[-1][name] = meaning

    def variable(self, name: str, dtype: Dtype) -> tree.Variable:
        self.count += 1
        return tree.Variable(name, dtype, self.count)

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.scopes.append({})
        try:
            yield
        finally:
            self.scopes.pop()

    @contextmanager
    def collected(self) -> Iterator[list[tree.Statement]]:
        """Statements that are written inside go to a list of their own."""
        outer, self.out = self.out, []
        try:
            yield self.out
        finally:
            self.out = outer

    def write(self, statement: tree.Statement) -> None:
        self.written += 1
        if self.written > MOST_STATEMENTS:
            self.error(
                self.source.body.at, f"it has more than {MOST_STATEMENTS} statements, its functions written out."
            )
        self.out.append(statement)

    # ---- types ----

    def joined(self, guessed: Any, number: Value) -> Dtype:
        """The type of a variable of Python's: that of all that it is given. Another than was assumed so far means to
        begin again."""
        kind = self.rules.strong(number).dtype
        known = self.guesses.get(guessed)
        joined = kind if known is None else self.rules.joined(known, kind)
        if known is not None and joined is not known:
            self.guesses[guessed] = joined
            raise Again
        self.guesses[guessed] = joined
        return joined

    def type(self, x: s.TypeName) -> Any:
        """A dtype, a type of vectors, or a struct."""
        for scope in reversed(self.scopes):
            found = scope.get(x.name)
            if isinstance(found, Dtype | rules.VectorType | StructType):
                return found
        if x.name.endswith(".dtype"):
            whose = self.find(x.name.removesuffix(".dtype"), x.at)
            if isinstance(whose, Address):
                return whose.storage.dtype
        known = self.rules.types.get(x.name)
        if known is not None:
            return known
        if x.name in self.structs:
            return self.struct_type(x)
        if x.name == "vec":
            return self._vector_type(x)
        if x.name in ("atomic", "_atomic") and len(x.parameters) == 1 and isinstance(x.parameters[0], s.TypeName):
            return self.type(x.parameters[0])
        vector = rules.vector_type(x.name, self.rules.types)
        if vector is not None:
            return vector
        if _MATRICES.fullmatch(x.name):
            self.error(x.at, f"matrices (`{x.name}`) are not supported in kernels.")
        if _TEXTURES.fullmatch(x.name):
            self.error(x.at, f"textures and samplers (`{x.name}`) are not supported in kernels.")
        return self.error(x.at, f"`{x.name}` is no type that kernels know.")

    def _vector_type(self, x: s.TypeName) -> rules.VectorType:
        """vec<T, 4>"""
        given = x.parameters
        if len(given) != 2 or not isinstance(given[0], s.TypeName):
            self.error(x.at, "`vec` takes a type and a number: `vec<float, 4>`.")
        size = given[1] if isinstance(given[1], s.Expression) else s.Name(given[1].at, given[1].name)
        dtype, number = self.type(given[0]), self.constant_integer(size, "the size of a vector")
        if not isinstance(dtype, Dtype) or not 2 <= number <= 4:
            self.error(x.at, "vectors have 2 to 4 numbers.")
        return rules.vector_of(dtype, number, packed=False)

    def struct_type(self, x: s.TypeName) -> StructType:
        raise NotImplementedError

    def constant_integer(self, x: s.Expression, what: str) -> int:
        raise NotImplementedError

    # ---- memory ----

    def storage(self, name: str, dtype: Dtype, space: str, size: int) -> tree.Storage:
        """Memory of a thread or of a threadgroup."""
        made = tree.Storage(name, dtype, space, len(self.storages), 1, size)
        self.storages.append(made)
        return made

    def view(self, storage: tree.Storage, dtype: Dtype, at: At) -> tree.Storage:
        """The same memory as elements of another dtype."""
        root = storage if storage.of is None else self.storages[storage.of]
        if dtype is root.dtype:
            return root
        if root.space == "thread":
            self.error(
                at,
                f"`{root.name}` is an array of a thread, of {root.dtype.name}: its memory is not read as "
                f"{dtype.name}. Convert elements (`as_type`).",
            )
        if dt.bool_ in (dtype, root.dtype):
            self.error(at, f"memory of {root.dtype.name} is not read as {dtype.name}; convert elements instead.")
        found = self._views.get((root, dtype))
        if found is None:
            size = root.size * root.dtype.size // dtype.size
            found = tree.Storage(root.name, dtype, root.space, len(self.storages), root.ndim, size, root.place)
            self.storages.append(found)
            self._views[root, dtype] = found
        return found


_MATRICES = re.compile(r"(simdgroup_)?(float|half|bfloat|double)\dx\d|simdgroup_matrix")
_TEXTURES = re.compile(r"(texture|depth)(1d|2d|3d|cube|2d_array|_buffer).*|sampler|cudaTextureObject_t")
