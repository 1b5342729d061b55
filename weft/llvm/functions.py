"""Functions that call each other, written with the builder: what a kernel has no need of.

A function is a Python function under `native`, which says of which types its parameters and its result are. Calling it
from another one writes a call, and brings it into the module. Addresses have types too (`Typed`), whose attributes and
methods write what reads the memory behind them. Control flow is that of Python: `when`, `loop`, `repeat`, and `ret`
anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Final, Generic, Self, TypeVar

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.llvm.builder import PTR, Builder, Operand, Value, llvm_type
from weft.llvm.features import Features

PLAIN: Final = Features(lanes=1, half_conversions=False, prefetch=False)
"""What code knows of the machine that has numbers and addresses in it, and no arithmetic of arrays."""


class Typed(Value):
    """A value whose class says what it is: a number of a dtype, or an address of something."""

    __slots__ = ()
    held_as: ClassVar[Dtype] = PTR

    @classmethod
    def of(cls, value: Value) -> Self:
        """The same value as one of this type."""
        assert value.dtype is cls.held_as, f"{cls.__name__} is no {value!r}"
        return cls(value.b, value.text, value.dtype, 1)

    def is_null(self) -> Value:
        return self.eq(Value(self.b, "null", PTR, 1))

    def exists(self) -> Value:
        return self.ne(Value(self.b, "null", PTR, 1))


class Address(Typed):
    """Of anything."""

    __slots__ = ()


class Integers(Typed):
    """The address of int64 numbers that lie one behind the other."""

    __slots__ = ()

    def __getitem__(self, index: Operand) -> Value:
        return _number(self.past(index))

    def __setitem__(self, index: Operand, value: Value) -> None:
        self.b.store(value, self.past(index))

    def past(self, count: Operand) -> Self:
        """The address of the one so many places on."""
        return type(self).of(_word_at(self, count))


class Void(Typed):
    """The result of a function that has none."""

    __slots__ = ()


class Truth(Typed):
    """A condition."""

    __slots__ = ()
    held_as = dt.bool_


class Int(Typed):
    """C's int."""

    __slots__ = ()
    held_as = dt.int32


class Long(Typed):
    """An int64."""

    __slots__ = ()
    held_as = dt.int64


class Double(Typed):
    """A float64."""

    __slots__ = ()
    held_as = dt.float64


def _word_at(base: Value, index: Operand) -> Value:
    """The address of a word of 8 bytes."""
    return base.b.gep(base, index << 3 if isinstance(index, Value) else 8 * int(index))


def _number(address: Value) -> Value:
    found = address.b.load(address, dt.int64, 1)
    assert isinstance(found, Value)
    return found


T = TypeVar("T", bound=Typed)


class Addresses(Typed, Generic[T]):
    """The address of addresses that lie one behind the other; a class of them says what those are of."""

    __slots__ = ()
    items: ClassVar[type[Typed]] = Address

    def __getitem__(self, index: Operand) -> T:
        found = self.b.load(self.past(index), PTR, 1)
        assert isinstance(found, Value)
        return self.items.of(found)  # type: ignore[return-value]

    def __setitem__(self, index: Operand, value: Value) -> None:
        self.b.store(value, self.past(index))

    def past(self, count: Operand) -> Self:
        """The address of the one so many places on."""
        return type(self).of(_word_at(self, count))


class Record(Typed):
    """The address of words that have names: its fields."""

    __slots__ = ()
    words: ClassVar[Mapping[str, int]]


class Field(Generic[T]):
    """A word of a record. Threads tell each other things by such words, so each is read and written at once, which is
    what the machine does anyway."""

    def __init__(self, kind: type[T]) -> None:
        self.kind = kind

    def __set_name__(self, owner: type[Record], name: str) -> None:
        self.at = 8 * owner.words[name]

    def __get__(self, owner: Record, cls: type | None = None) -> T:
        kind, b = self.kind, owner.b
        address = b.gep(owner, self.at)
        return kind.of(b.op(f"load atomic {llvm_type(kind.held_as)}, {address!r} monotonic, align 8", kind.held_as, 1))

    def __set__(self, owner: Record, value: Operand) -> None:
        b = owner.b
        held = value if isinstance(value, Value) else b.const(self.kind.held_as, value, 1)
        b.raw(f"store atomic {held!r}, {b.gep(owner, self.at)!r} monotonic, align 8")


class Shared(Typed):
    """The address of an int64 that several threads change; orders are LLVM's."""

    __slots__ = ()

    def read(self, order: str = "monotonic") -> Value:
        return self.b.op(f"load atomic i64, {self!r} {order}, align 8", dt.int64, 1)

    def write(self, number: Value | int, order: str = "monotonic") -> None:
        held = number if isinstance(number, Value) else self.b.i64(number)
        self.b.raw(f"store atomic {held!r}, {self!r} {order}, align 8")

    def add(self, number: Value | int, order: str = "monotonic") -> Value:
        """What it was before."""
        by = number if isinstance(number, Value) else self.b.i64(number)
        return self.b.op(f"atomicrmw add {self!r}, {by!r} {order}", dt.int64, 1)

    def exchange(self, number: int) -> Value:
        """What it was before."""
        return self.b.op(f"atomicrmw xchg {self!r}, i64 {number} monotonic", dt.int64, 1)

    def replace(self, expected: Value, number: Value) -> Value:
        """Put a number in place of the expected one, and take over what was written before that was: whether it was
        the expected one."""
        pair = self.b.fresh()
        self.b.raw(f"{pair} = cmpxchg {self!r}, {expected!r}, {number!r} acquire monotonic")
        return self.b.op(f"extractvalue {{ i64, i1 }} {pair}, 1", dt.bool_, 1)


class Place:
    """A word of a record of which the address is wanted, because several threads change it."""

    def __set_name__(self, owner: type[Record], name: str) -> None:
        self.at = 8 * owner.words[name]

    def __get__(self, owner: Record, cls: type | None = None) -> Shared:
        return Shared.of(owner.b.gep(owner, self.at))


class Repeat:
    """A loop under construction that ends where it is told to; afterwards `carried` is what it was there."""

    def __init__(self, function: Function, tag: str, carried: tuple[Value, ...]) -> None:
        self._function, self._tag = function, tag
        self.carried = self.next = carried
        self.rounds: list[tuple[Sequence[Value], str]] = []
        """What further rounds begin with, and the blocks that they come from."""

    def again(self, *values: Value) -> None:
        """Begin the next round here, with these values."""
        self.rounds.append((values, self._function.block))
        self._function.leave(f"{self._tag}.head")

    def stop_when(self, condition: Value) -> None:
        """Leave the loop where the condition holds."""
        following = self._function.label("on")
        self._function.raw(f"br i1 {condition.text}, label %{self._tag}.exit, label %{following}")
        self._function.start_block(following)

    def carry(self, *values: Value) -> None:
        self.next = values


class Cases:
    """Ways to go on under construction, of which a number chooses one."""

    def __init__(self, function: Function, tag: str) -> None:
        self._function, self._tag = function, tag
        self.numbers: list[int] = []
        self.default = self.end = f"{tag}.end"

    def case(self, number: int) -> AbstractContextManager[None]:
        """The block for a number; what does not leave it goes on behind all cases."""
        self.numbers.append(number)
        return self._way(self.label(number))

    def otherwise(self) -> AbstractContextManager[None]:
        """The block for all numbers that have no case."""
        self.default = f"{self._tag}.otherwise"
        return self._way(self.default)

    def label(self, number: int) -> str:
        return f"{self._tag}.case{number}"

    @contextmanager
    def _way(self, label: str) -> Iterator[None]:
        self._function.start_block(label)
        yield
        self._function.leave(self.end)


class Function(Builder):
    """Writes one function of a module. A block of code may end with `ret`."""

    def __init__(self, module: Module, name: str, params: Mapping[str, type[Typed]], result: type[Typed]) -> None:
        given = [(param, kind.held_as) for param, kind in params.items()]
        super().__init__(name, given, PLAIN, 1, None if result is Void else result.held_as)
        self.home, self.declarations = module, module.declarations
        self.given = tuple(kind.of(value) for kind, value in zip(params.values(), self.params, strict=True))
        self._has_ended = False

    def text(self, linkage: str) -> str:
        body = "\n".join(self.lines)
        return f"define {linkage}{self._result} @{self.name}({self._params}) {{\nentry:\n{body}\n}}\n"

    def label(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    @property
    def null(self) -> Address:
        return Address(self, "null", PTR, 1)

    def ret(self, value: Value | None = None) -> None:
        super().ret(value)
        self._has_ended = True

    def leave(self, label: str) -> None:
        """Go on in another block, unless this one has come to its end."""
        if not self._has_ended:
            self.raw(f"br label %{label}")
            self._has_ended = True

    def start_block(self, label: str) -> None:
        super().start_block(label)
        self._has_ended = False

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the block only where the scalar condition holds."""
        then, end = self.label("then"), self.label("end")
        self.raw(f"br i1 {condition.text}, label %{then}, label %{end}")
        self.start_block(then)
        yield
        self.leave(end)
        self.start_block(end)

    @contextmanager
    def switch(self, number: Value) -> Iterator[Cases]:
        """One of several blocks.

        with c.switch(kind) as cases:
            with cases.case(1):
                ...
        """
        cases, at = Cases(self, self.label("switch")), len(self.lines)
        self.lines.append("")
        yield cases
        ways = " ".join(f"{number.type} {n}, label %{cases.label(n)}" for n in cases.numbers)
        self.lines[at] = f"  switch {number!r}, label %{cases.default} [ {ways} ]"
        self.start_block(cases.end)

    @contextmanager
    def repeat(self, *first: Value) -> Iterator[Repeat]:
        """The block over and over, with values that it carries, until `stop_when` says so.

        with c.repeat(start) as loop:
            (i,) = loop.carried
            loop.stop_when(i >= size)
            loop.carry(i + 1)
        """
        tag, before = self.label("repeat"), self.block
        self.raw(f"br label %{tag}.head")
        self.start_block(f"{tag}.head")
        phis = tuple(Value(self, self.fresh(), x.dtype, 1) for x in first)
        at = len(self.lines)
        self.lines.extend("" for _ in phis)
        loop = Repeat(self, tag, phis)
        yield loop
        if not self._has_ended:
            loop.again(*loop.next)
        for k, phi in enumerate(phis):
            ways = ", ".join(f"[ {values[k].text}, %{block} ]" for values, block in [(first, before), *loop.rounds])
            self.lines[at + k] = f"  {phi.text} = phi {phi.type} {ways}"
        self.start_block(f"{tag}.exit")

    def room(self, kind: type[T], words: Operand) -> T:
        """Room for so many words of 8 bytes, until the function returns."""
        count = words if isinstance(words, Value) else self.i64(int(words))
        return kind.of(self.op(f"alloca i64, i64 {count.text}, align 8", PTR, 1))

    def copy(self, target: Value, source: Value, words: Value) -> None:
        """So many words of 8 bytes from one place to another."""
        self.call_void("llvm.memcpy.p0.p0.i64", target, source, words << 3, "i1 false")

    def address_of(self, function: Native[Any]) -> Address:
        """The address of a function of this module."""
        self.home.need(function)
        return Address(self, f"@{function.name}", PTR, 1)

    def invoke(
        self, callee: str, result: type[T], params: tuple[type[Typed], ...], arguments: tuple[Operand, ...]
    ) -> T:
        """Call what has this name or address."""
        assert len(params) == len(arguments), f"{callee} takes {len(params)} arguments, not {len(arguments)}"
        given = []
        for kind, argument in zip(params, arguments, strict=True):
            value = argument if isinstance(argument, Value) else self.const(kind.held_as, argument, 1)
            assert value.dtype is kind.held_as, f"{callee} takes a {kind.__name__}, not {value!r}"
            given.append(repr(value))
        call = f"{callee}({', '.join(given)})"
        if result is Void:
            self.raw(f"call void {call}")
            return result(self, "", PTR, 1)
        return result.of(self.op(f"call {llvm_type(result.held_as)} {call}", result.held_as, 1))


Frame = TypeVar("Frame", bound=Function)


class Native(Generic[T]):
    """A function of a module's own: its signature, and what writes it."""

    def __init__(self, write: Callable[..., None], result: type[T], params: Mapping[str, type[Typed]]) -> None:
        self.name: str = write.__name__
        self.write, self.result, self.params = write, result, params

    def __call__(self, c: Function, *arguments: Operand) -> T:
        c.home.need(self)
        return c.invoke(f"@{self.name}", self.result, tuple(self.params.values()), arguments)


def native(result: type[T], **params: type[Typed]) -> Callable[[Callable[..., None]], Native[T]]:
    """What is written by a Python function with such parameters, and returns such a result."""
    return lambda write: Native(write, result, params)


class Module(Generic[Frame]):
    """Functions, each written in a `frame`; `head` is what stands before them."""

    def __init__(self, frame: Callable[..., Frame], head: str = "") -> None:
        self.declarations: dict[str, str] = {}
        self._frame, self._head = frame, head
        self._functions: dict[str, tuple[Native[Any], str]] = {}

    def need(self, function: Native[Any], linkage: str = "internal ") -> None:
        """Write a function, and all that it calls, unless that has been done."""
        if function.name in self._functions:
            assert self._functions[function.name][0] is function, f"there are two functions {function.name}"
            return
        self._functions[function.name] = function, ""  # it may call itself
        c = self._frame(self, function.name, function.params, function.result)
        function.write(c, *c.given)
        if not c._has_ended:
            c.ret()
        self._functions[function.name] = function, c.text(linkage)

    def export(self, function: Native[Any]) -> str:
        """The whole module as text, of which one function can be called from outside."""
        self.need(function, linkage="")
        declared = "".join(line + "\n" for line in self.declarations.values())
        return "\n".join([self._head, declared, *[text for _, text in self._functions.values()]])
