"""What a kernel's source says, before its types are known: what both parsers make of it, and `typing` takes apart."""

from __future__ import annotations

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class At:
    """A place in a source: lines count from 1, columns too."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class KernelError(ValueError):
    """A kernel's source says something that Weft does not take. The message names the place."""

    def __init__(self, kernel: str, at: At | None, message: str) -> None:
        where = f" at {at}" if at is not None else ""
        super().__init__(f"[{kernel}]{where}: {message}")


# ---- expressions ----


@dataclass(frozen=True, slots=True)
class Expression:
    at: At


@dataclass(frozen=True, slots=True)
class Number(Expression):
    """A literal; `suffix` is what C writes behind it (f, h, u, ...)."""

    value: int | float | bool
    suffix: str = ""


@dataclass(frozen=True, slots=True)
class Name(Expression):
    name: str


@dataclass(frozen=True, slots=True)
class Unary(Expression):
    """- + ! ~, and * and & of addresses."""

    op: str
    x: Expression


@dataclass(frozen=True, slots=True)
class Binary(Expression):
    """Arithmetic, comparisons and logic, by C's names; // and ** are Python's."""

    op: str
    x: Expression
    y: Expression


@dataclass(frozen=True, slots=True)
class Choice(Expression):
    test: Expression
    x: Expression
    y: Expression


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """A function by its name, without its namespaces; `parameters` are those in angle brackets."""

    name: str
    arguments: tuple[Expression, ...]
    parameters: tuple[Expression | TypeName, ...] = ()
    method_of: Expression | None = None


@dataclass(frozen=True, slots=True)
class Member(Expression):
    x: Expression
    name: str


@dataclass(frozen=True, slots=True)
class Index(Expression):
    x: Expression
    indices: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Convert(Expression):
    """An explicit conversion; of the bits, if `bits`."""

    type: TypeName
    arguments: tuple[Expression, ...]
    bits: bool = False


@dataclass(frozen=True, slots=True)
class Assignment(Expression):
    """target = value, or with an operator between. Its value is what the target holds then."""

    target: Expression
    op: str
    value: Expression


@dataclass(frozen=True, slots=True)
class Step(Expression):
    """++ and --; `after` if its value is that before."""

    target: Expression
    op: str
    after: bool


@dataclass(frozen=True, slots=True)
class Braces(Expression):
    """The elements of an array, or the fields of a struct."""

    items: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class TypeValue(Expression):
    """A type where a value may stand: before `::`, or as an argument of `sizeof`."""

    type: TypeName


@dataclass(frozen=True, slots=True)
class SizeOf(Expression):
    """The bytes of a type, or of what an expression is of."""

    x: Expression


@dataclass(frozen=True, slots=True)
class Lambda(Expression):
    """A function without a name: `[&](float x) { return x; }`. It sees the names around it."""

    function: Function


# ---- statements ----


@dataclass(frozen=True, slots=True)
class TypeName:
    """A type as written: `auto` is that of the value. `pointer` and `reference` follow the name; `parameters` are those
    in angle brackets."""

    at: At
    name: str
    pointer: bool = False
    reference: bool = False
    space: str = "thread"
    parameters: tuple[TypeName | Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Statement:
    at: At


@dataclass(frozen=True, slots=True)
class Evaluate(Statement):
    x: Expression


@dataclass(frozen=True, slots=True)
class Declare(Statement):
    """A variable, or an array of `sizes`. Without a type it is of that of all that is assigned to it (Python)."""

    type: TypeName | None
    name: str
    sizes: tuple[Expression, ...]
    value: Expression | None
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Block(Statement):
    """Statements with names of their own, unless it is not a `scope`."""

    body: tuple[Statement, ...]
    scope: bool = True


@dataclass(frozen=True, slots=True)
class If(Statement):
    test: Expression
    then: Statement
    other: Statement | None


@dataclass(frozen=True, slots=True)
class For(Statement):
    """C's loops: while without `first` and `step`; do ... while if `late`."""

    first: Statement | None
    test: Expression | None
    step: Expression | None
    body: Statement
    late: bool = False


@dataclass(frozen=True, slots=True)
class Case(Statement):
    """Statements of a `switch`, and the numbers that lead to them (None: `default`). Those of the next case follow."""

    labels: tuple[Expression | None, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Switch(Statement):
    value: Expression
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Assertion(Statement):
    """`static_assert`: a condition that is known when the kernel is compiled."""

    test: Expression
    text: str


@dataclass(frozen=True, slots=True)
class Range(Statement):
    """Python's `for name in range(start, stop, step)`."""

    name: str
    start: Expression
    stop: Expression
    step: Expression
    body: Statement


@dataclass(frozen=True, slots=True)
class Break(Statement):
    pass


@dataclass(frozen=True, slots=True)
class Continue(Statement):
    pass


@dataclass(frozen=True, slots=True)
class Return(Statement):
    value: Expression | None


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: TypeName | None
    default: Expression | None = None
    sizes: tuple[Expression, ...] = ()
    """Those of an array behind its first axis."""


@dataclass(frozen=True, slots=True)
class Generic:
    """A template parameter: a type, or a number."""

    name: str
    is_type: bool
    default: Expression | TypeName | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """A function that kernels call. `generics` are its template parameters. `begins` are fields that a constructor
    gives a value before its body."""

    at: At
    name: str
    parameters: tuple[Parameter, ...]
    body: Block
    result: TypeName | None = None
    generics: tuple[Generic, ...] = ()
    begins: tuple[tuple[str, tuple[Expression, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Struct:
    """A struct: its fields, its functions (constructors have its name), its static constants."""

    at: At
    name: str
    fields: tuple[Declare, ...]
    functions: tuple[Function, ...] = ()
    constants: tuple[Declare, ...] = ()
    generics: tuple[Generic, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel as it was written: its body, the functions that it calls, numbers and dtypes that its names stand for.

    `text` says all that the tree says; it is part of the key of the kernel's code."""

    name: str
    language: str
    body: Block
    functions: tuple[Function, ...]
    constants: tuple[tuple[str, object], ...]
    text: str
    structs: tuple[Struct, ...] = ()
    header: tuple[Statement, ...] = ()
    """Constants that its functions see, too."""
