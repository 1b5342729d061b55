"""The typed tree of a kernel: what targets compile and the interpreter runs.

Expressions have no effects: what has (assignments, calls, atomic operations, what lanes do together) is a statement,
and its value a variable. Functions are written out where they were called. An address is a storage, which is known, and
an index, which is an int64.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.dtypes import Dtype
from weft.kernels.syntax import At
from weft.records import dataclass, field

# ---- what holds values ----


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """One number of each thread."""

    name: str
    dtype: Dtype
    number: int

    def __repr__(self) -> str:
        return f"{self.name}.{self.number}:{self.dtype.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """Elements in a row: an operand or a result of the kernel (`place` counts both), memory of a threadgroup, or of a
    thread (of `size` elements). One that is a view has the memory of another (`of`: its place), and another dtype."""

    name: str
    dtype: Dtype
    space: str  # input, output, threadgroup, thread
    place: int
    ndim: int = 1
    size: int = 0
    of: int | None = None

    def __repr__(self) -> str:
        return f"{self.space}.{self.name}.{self.place}"


# ---- expressions ----


@dataclass(frozen=True, slots=True)
class Expression:
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    value: int | float | bool


@dataclass(frozen=True, slots=True)
class Read(Expression):
    variable: Variable


@dataclass(frozen=True, slots=True)
class Position(Expression):
    """Where a thread stands, or how many there are: one of POSITIONS, along x, y or z (0, 1, 2)."""

    name: str
    axis: int


POSITIONS = (
    "thread_position_in_grid", "threads_per_grid", "thread_position_in_threadgroup", "threads_per_threadgroup",
    "dispatch_threads_per_threadgroup", "threadgroup_position_in_grid", "threadgroups_per_grid",
    "thread_index_in_threadgroup", "thread_index_in_simdgroup", "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
)  # fmt: skip
OF_SIMDGROUPS = ("thread_index_in_simdgroup", "simdgroup_index_in_threadgroup", "simdgroups_per_threadgroup")
OF_GRID = ("thread_position_in_grid", "threads_per_grid")
SIMD_WIDTH = 32


@dataclass(frozen=True, slots=True)
class Size(Expression):
    """A size of an operand or result: along an axis ("shape", "strides"), which is an int64, or of all ("size")."""

    storage: Storage
    what: str
    axis: Expression | None
    at: At | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Load(Expression):
    storage: Storage
    index: Expression
    at: At = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Operation(Expression):
    """An operation of operands of one dtype each (weft/kernels/functions.py); comparisons give bool."""

    name: str
    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Select(Expression):
    test: Expression
    x: Expression
    y: Expression


@dataclass(frozen=True, slots=True)
class Cast(Expression):
    x: Expression
    bits: bool = False


# ---- statements ----


@dataclass(frozen=True, slots=True)
class Statement:
    pass


@dataclass(frozen=True, slots=True)
class Assign(Statement):
    """variable = value; `first` where the variable comes to life. If `empty`, nothing is said of its value yet (it
    is 0 for those who look)."""

    variable: Variable
    value: Expression
    first: bool = False
    empty: bool = False


@dataclass(frozen=True, slots=True)
class Clear(Statement):
    """Zeros in memory of a thread, where it is declared."""

    storage: Storage


@dataclass(frozen=True, slots=True)
class Store(Statement):
    storage: Storage
    index: Expression
    value: Expression
    at: At = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Atomic(Statement):
    """storage[index] op= value, at once; `result` becomes what was there. op: add, sub, min, max, and, or, xor, set;
    "exchange" of `value` if `expected` is there."""

    op: str
    storage: Storage
    index: Expression
    value: Expression
    result: Variable | None
    at: At = field(compare=False, repr=False)
    expected: Expression | None = None


@dataclass(frozen=True, slots=True)
class If(Statement):
    test: Expression
    then: tuple[Statement, ...]
    other: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop(Statement):
    """`first`, then, while `test` holds: body, step. `Break` and `Continue` are about the innermost one. `before` is
    done in front of each test."""

    first: tuple[Statement, ...]
    before: tuple[Statement, ...]
    test: Expression
    body: tuple[Statement, ...]
    step: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Break(Statement):
    pass


@dataclass(frozen=True, slots=True)
class Continue(Statement):
    pass


@dataclass(frozen=True, slots=True)
class Return(Statement):
    """The thread is done."""


@dataclass(frozen=True, slots=True)
class Called(Statement):
    """The body of a function that was called: `Leave` ends the innermost one."""

    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Leave(Statement):
    pass


@dataclass(frozen=True, slots=True)
class Barrier(Statement):
    """All threads of a threadgroup come here before any goes on."""

    at: At = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Together(Statement):
    """result = what a simdgroup makes of the values of its threads that are here: sum, product, min, max, and, or, xor,
    any, all, prefix sums, or the value of another thread (shuffle..., `argument`)."""

    op: str
    result: Variable
    value: Expression
    argument: Expression | None
    at: At = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Program:
    """A kernel with types. `storages` are its operands, then its results, then memory of threadgroups and threads, and
    views."""

    name: str
    body: tuple[Statement, ...]
    storages: tuple[Storage, ...]

    @property
    def operands(self) -> list[Storage]:
        """Its operands, then its results."""
        return [x for x in self.storages if x.space in ("input", "output") and x.of is None]

    @property
    def views(self) -> list[Storage]:
        return [x for x in self.storages if x.of is not None]

    @property
    def text(self) -> str:
        """All that code is made of, without the places in the source: equal texts are equal kernels."""
        sizes = " ".join(f"{x!r}:{x.dtype.name}[{x.ndim},{x.size},{x.of}]" for x in self.storages)
        return "\n".join([sizes, *map(repr, self.body)])


def children(x: object) -> Iterator[object]:
    """The expressions and statements right in one."""
    match x:
        case Size(_, _, _, axis) if axis is not None:
            yield axis
        case Load(_, _, index):
            yield index
        case Operation(_, _, operands):
            yield from operands
        case Select(_, test, a, b):
            yield from (test, a, b)
        case Cast(_, inner):
            yield inner
        case Assign(_, value):
            yield value
        case Store(_, index, value):
            yield from (index, value)
        case Atomic():
            yield from (x.index, x.value)
            if x.expected is not None:
                yield x.expected
        case If(test, then, other):
            yield test
            yield from then
            yield from other
        case Loop(first, before, test, body, step):
            yield from first
            yield from before
            yield test
            yield from body
            yield from step
        case Called(body):
            yield from body
        case Together():
            yield x.value
            if x.argument is not None:
                yield x.argument


def walk(*roots: object) -> Iterator[object]:
    """All expressions and statements in these, themselves included, in the order of the source."""
    todo = list(reversed(roots))
    while todo:
        x = todo.pop()
        yield x
        todo.extend(reversed([*children(x)]))


def sites(program: Program) -> list[Load | Store | Atomic | Size]:
    """What may be out of range, in order: a failed launch tells the number."""
    found: dict[int, Load | Store | Atomic | Size] = {}
    for x in walk(*program.body):
        if isinstance(x, Load | Store | Atomic) or (isinstance(x, Size) and not isinstance(x.axis, Constant | None)):
            found.setdefault(id(x), x)
    return [*found.values()]
