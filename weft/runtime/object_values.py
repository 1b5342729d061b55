"""CPython's objects as values of the builder: typed references, their attributes, and the functions of CPython's API.

References are counted as CPython's own C code counts them, in place, and tuples, bytes, sizes and small ints are read
in place too: their layout is that of the versions in `objects.KNOWN`, without what debug builds add. "Takes over" says
that a reference passes to what is called; everything else is borrowed. An object that is about to be used is held
before memory is asked for, because that may run finalizers, and those anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import ClassVar, Final, Generic, Self, TypeVar

from weft.dtypes import int32, int64, uint32, uint64
from weft.llvm.builder import PTR, Operand, Value
from weft.llvm.functions import (
    Address,
    Addresses,
    Double,
    Field,
    Function,
    Int,
    Integers,
    Long,
    Module,
    Native,
    Record,
    Typed,
    Void,
    native,
)
from weft.runtime.object_table import COUNTERS, HEAD_WORDS, TABLE

GLOBALS: Final = "@table = internal global ptr null\n"
T = TypeVar("T", bound=Typed)


class Code(Function):
    """A function that finds the interpreter in the table."""

    def __init__(self, module: Module[Code], name: str, params: Mapping[str, type[Typed]], result: type[Typed]) -> None:
        super().__init__(module, name, params, result)
        self.known = self.op("load ptr, ptr @table, align 8", PTR, 1)

    def object(self, name: str) -> Object:
        """An object that the table holds."""
        return Object.of(self.word(self.known, TABLE[name], PTR))

    def state(self, name: str) -> Value:
        """A number of the table."""
        return self.word(self.known, TABLE[name], int64)

    def set_state(self, name: str, value: int) -> None:
        self.store(self.i64(value), self.gep(self.known, 8 * TABLE[name]))

    def change_state(self, name: str, by: int) -> None:
        self.store(self.state(name) + by, self.gep(self.known, 8 * TABLE[name]))

    def address(self, name: str, kind: type[T]) -> T:
        """A number of the table that is an address."""
        return kind.of(self.word(self.known, TABLE[name], PTR))

    def set_address(self, name: str, value: Value) -> None:
        self.store(value, self.gep(self.known, 8 * TABLE[name]))

    def places(self, kind: type[T]) -> T:
        """The places that all of evaluation shares, by which nodes are found by their ids: `PLACES` words, all 0. Who
        uses them sets the state "sweeping" meanwhile, and leaves them as they were."""
        return self.address("places", kind)

    @property
    def none(self) -> Object:
        return self.object("none")

    def fail(self) -> None:
        """Return null, which says that an exception is set."""
        self.ret(self.null)


class External(Generic[T]):
    """A function of CPython's API, at the address that the table has."""

    def __init__(self, name: str, result: type[T], *params: type[Typed]) -> None:
        self.name, self.result, self.params = name, result, params

    def __call__(self, c: Code, *arguments: Operand) -> T:
        address = c.word(c.known, TABLE[self.name], PTR)
        return c.invoke(address.text, self.result, self.params, arguments)


class Slot(Generic[T]):
    """An attribute of objects of a class with `__slots__`: where it lies stands in the table. Reading one borrows a
    reference, writing one takes it over and drops none."""

    def __init__(self, kind: type[T], prefix: str = "") -> None:
        self.kind, self.prefix = kind, prefix

    def __set_name__(self, owner: type, name: str) -> None:
        self.entry = f"at_{self.prefix}{name}"

    def __get__(self, owner: Object, cls: type | None = None) -> T:
        found = owner.b.load(self._place(owner), PTR, 1)
        assert isinstance(found, Value)
        return self.kind.of(found)

    def __set__(self, owner: Object, value: Value) -> None:
        owner.b.store(value, self._place(owner))

    def _place(self, owner: Object) -> Value:
        return owner.b.gep(owner, owner.b.word(owner.b.known, TABLE[self.entry], int64))


class Object(Typed):
    """A reference to an object."""

    __slots__ = ()
    b: Code

    @property
    def cls(self) -> Object:
        """Its class."""
        return Object.of(self.b.word(self, HEAD_WORDS - 1, PTR))

    def hold(self) -> Self:
        """Take a reference, unless it is null."""
        b = self.b
        with b.when(self.exists()):
            count = self._count()
            more = count + 1
            b.store(b.choose(count.eq(-1), count, more) if MAY_BE_IMMORTAL else more, self)
        return self

    def release(self) -> None:
        """Let go of a reference, unless it is null."""
        _let_go(self.b, self)

    def _count(self) -> Value:
        """How many references there are."""
        found = self.b.load(self, _COUNT, 1)
        assert isinstance(found, Value)
        return found


class Objects(Addresses[Object]):
    """The address of references: arguments of a call, and what a recipe has made."""

    __slots__ = ()
    items: ClassVar[type[Typed]] = Object


class Tuple(Object):
    __slots__ = ()

    @staticmethod
    def new(c: Code, count: Operand) -> Tuple:
        """One that has to be filled; null if there is no memory."""
        return _TUPLE_NEW(c, count)

    @staticmethod
    def filled(c: Code, *items: Object, failing: Callable[[], None]) -> Tuple:
        """One of these, which it holds. Where there is no memory nothing is held, and `failing` has to return."""
        for item in items:
            item.hold()
        made = Tuple.new(c, len(items))
        with c.when(made.is_null()):
            for item in items:
                item.release()
            failing()
        for place, item in enumerate(items):
            made.fill(place, item)
        return made

    def size(self) -> Value:
        return self.b.word(self, HEAD_WORDS)

    def item(self, place: Operand) -> Object:
        """One of the items that there are."""
        return self.items()[place]

    def fill(self, place: Operand, item: Value) -> None:
        """Give a new one an item that it has not got yet. Takes over the reference."""
        self.items()[place] = item

    def items(self) -> Objects:
        """Where they lie."""
        return Objects.of(self.b.gep(self, 8 * (HEAD_WORDS + 1)))


class List(Object):
    __slots__ = ()

    @staticmethod
    def new(c: Code, count: Operand) -> List:
        """One that has to be filled; null if there is no memory."""
        return _LIST_NEW(c, count)

    def fill(self, place: Operand, item: Value) -> None:
        """Takes over the reference."""
        _LIST_FILL(self.b, self, place, item)

    def size(self) -> Value:
        return self.b.word(self, HEAD_WORDS)

    def item(self, place: Operand) -> Object:
        return _LIST_ITEM(self.b, self, place)

    def items(self) -> Objects:
        """Where they lie, until the list changes."""
        return Objects.of(self.b.word(self, HEAD_WORDS + 1, PTR))

    def append(self, item: Object) -> Value:
        """0, or -1 with an exception."""
        return _LIST_APPEND(self.b, self, item)


class Dict(Object):
    __slots__ = ()

    def size(self) -> Value:
        return self.b.word(self, HEAD_WORDS)

    def find(self, key: Object) -> Object:
        """The value of a key, or null: with an exception if looking for it failed."""
        return _DICT_FIND(self.b, self, key)

    def put(self, key: Object, value: Object) -> Value:
        """0, or -1 with an exception."""
        return _DICT_PUT(self.b, self, key, value)


class Set(Object):
    __slots__ = ()

    def has(self, item: Object) -> Value:
        """1, 0, or -1 with an exception."""
        return _SET_HAS(self.b, self, item)

    def size(self) -> Value:
        return _SET_SIZE(self.b, self)

    def add(self, item: Object) -> Value:
        """0, or -1 with an exception."""
        return _SET_ADD(self.b, self, item)

    def discard(self, item: Object) -> None:
        _SET_DISCARD(self.b, self, item)


class Node(Object):
    """Weft's nodes (graph/node.py)."""

    __slots__ = ()
    op = Slot(Object)
    inputs = Slot(Tuple)
    kind = Slot(Object)
    value = Slot(Object)
    device = Slot(Object)
    handle = Slot(Object)
    id = Slot(Object)


class Array(Object):
    """Weft's arrays (array.py)."""

    __slots__ = ()
    node = Slot(Node)


class Buffer(Object):
    """The values of arrays (runtime/data.py)."""

    __slots__ = ()
    address = Slot(Object)
    storage = Slot(Object)
    strides = Slot(Object)


class Storage(Object):
    """Memory (runtime/buffer.py)."""

    __slots__ = ()
    address = Slot(Object, "storage_")
    nbytes = Slot(Object, "storage_")
    capacity = Slot(Object, "storage_")


class Pool(Record):
    """The counters of memory (runtime/buffer.py)."""

    words = {name: word for word, name in enumerate(COUNTERS)}
    active, high, low = Field(Long), Field(Long), Field(Long)


class Constant(Object):
    """The value of a constant (primitives/base.py)."""

    __slots__ = ()
    words = Slot(Tuple)


class Executable(Object):
    """A program with what a call needs to know (passes/executable.py)."""

    __slots__ = ()
    runs = Slot(Tuple)


class Recipe(Object):
    """The program of an evaluation (evaluate/programs.py)."""

    __slots__ = ()
    quick = Slot(Executable)


class Compiled(Object):
    """A function under `compile` (transforms/compile.py)."""

    __slots__ = ()
    calls = Slot(Tuple)


class Config(Object):
    """The settings (config.py)."""

    __slots__ = ()
    disable_compile = Slot(Object)
    check = Slot(Object)


class Rule(Object):
    """A derivative rule that is remembered (transforms/rules.py)."""

    __slots__ = ()
    run = Slot(Object)


MAY_BE_IMMORTAL: Final = sys.version_info >= (3, 12)
"""Whether some objects live for good, and their references are not counted: that is -1, of half a word."""
_COUNT: Final = int32 if MAY_BE_IMMORTAL else int64
_DEALLOCATE: Final = External("_Py_Dealloc", Void, Object)


@native(Void, object=Object)
def _let_go(c: Code, object: Object) -> None:
    with c.when(object.exists()):
        count = object._count()
        less = count - 1
        with c.when(count >= 0):  # it is not immortal
            c.store(less, object)
            with c.when(less.eq(0)):
                _DEALLOCATE(c, object)


_TUPLE_NEW: Final = External("PyTuple_New", Tuple, Long)
_LIST_ITEM: Final = External("PyList_GetItem", Object, List, Long)
_LIST_APPEND: Final = External("PyList_Append", Int, List, Object)
_DICT_FIND: Final = External("PyDict_GetItemWithError", Object, Dict, Object)
_DICT_PUT: Final = External("PyDict_SetItem", Int, Dict, Object, Object)
_SET_HAS: Final = External("PySet_Contains", Int, Set, Object)
_SET_SIZE: Final = External("PySet_Size", Long, Set)
_SET_ADD: Final = External("PySet_Add", Int, Set, Object)
_SET_DISCARD: Final = External("PySet_Discard", Int, Set, Object)
_LIST_NEW: Final = External("PyList_New", List, Long)
_LIST_FILL: Final = External("PyList_SetItem", Int, List, Long, Object)

allocate: Final = External("PyType_GenericAlloc", Object, Object, Long)
is_subtype: Final = External("PyType_IsSubtype", Int, Object, Object)
next_of: Final = External("PyIter_Next", Object, Object)
iterator: Final = External("PyObject_GetIter", Object, Object)
weak_reference: Final = External("PyWeakref_NewRef", Object, Object, Address)
call: Final = External("PyObject_Vectorcall", Object, Object, Objects, Long, Address)
"""call(function, arguments, their number, null)"""
call_with_dict: Final = External("PyObject_VectorcallDict", Object, Object, Objects, Long, Address)
"""call_with_dict(function, arguments, their number, those with names)"""
exception: Final = External("PyErr_Occurred", Object)
contains: Final = External("PySequence_Contains", Int, Object, Object)
is_true: Final = External("PyObject_IsTrue", Int, Object)
boolean: Final = External("PyBool_FromLong", Object, Long)
integer_of: Final = External("PyLong_AsLongLong", Long, Object)
integer_object: Final = External("PyLong_FromLongLong", Object, Long)
word_of: Final = External("PyLong_AsUnsignedLongLongMask", Long, Object)
length: Final = External("PyObject_Size", Long, Object)
double: Final = External("PyFloat_AsDouble", Double, Object)
next_item: Final = External("PyDict_Next", Int, Object, Address, Address, Address)
"""next_item(dict, place, key, value): 0 if there are no more; else the next ones are written, and borrowed"""
attribute: Final = External("PyObject_GenericGetAttr", Object, Object, Object)
"""attribute(object, name), whatever its class says of `__getattribute__`"""
is_raised: Final = External("PyErr_ExceptionMatches", Int, Object)
clear_exception: Final = External("PyErr_Clear", Void)
put_aside: Final = External("PyErr_Fetch", Void, Address, Address, Address)
put_back: Final = External("PyErr_Restore", Void, Object, Object, Object)
"""The exception that is set, if one is: its three parts are written to places, and taken from the caller again"""
tell: Final = External("PyErr_WriteUnraisable", Void, Object)
"""Tell of an exception that cannot be raised"""
track: Final = External("PyObject_GC_Track", Void, Object)
untrack: Final = External("PyObject_GC_UnTrack", Void, Object)
free: Final = External("PyObject_GC_Del", Void, Object)
clear_references: Final = External("PyObject_ClearWeakRefs", Void, Object)
"""Weak references to an object that comes to its end"""
contents: Final = External("PyCell_Get", Object, Object)
"""What a cell holds, or null, without an exception"""
compare: Final = External("PyObject_RichCompareBool", Int, Object, Object, Int)
function_code: Final = External("PyFunction_GetCode", Object, Object)
function_cells: Final = External("PyFunction_GetClosure", Object, Object)
function_defaults: Final = External("PyFunction_GetDefaults", Object, Object)
keyword_defaults: Final = External("PyFunction_GetKwDefaults", Object, Object)
"""Each borrowed, or null if there is none"""
function_attributes: Final = External("PyObject_GenericGetDict", Object, Object, Address)
"""function_attributes(function, null): the dict, made if there is none"""
function_globals: Final = External("PyFunction_GetGlobals", Object, Object)


_DIGIT: Final = 30
"""Bits of a digit of an int, which are half words behind one that says how many they are."""
_TAG_OF_ONE, _TAG_OF_TWO = (8, 16) if sys.version_info >= (3, 12) else (1, 2)
"""What that word is where a positive int has one or two digits."""


def _digit(c: Code, number: Object, place: int) -> Value:
    found = c.load(c.gep(number, 8 * (HEAD_WORDS + 1) + 4 * place), uint32, 1)
    assert isinstance(found, Value)
    return c.cast(c.cast(found, uint64), int64)


@native(Long, number=Object)
def integer(c: Code, number: Object) -> None:
    """The value of an int of 64 bits; -1 with an exception for other things."""
    with c.when(number.cls.eq(c.object("int_type"))), c.when(c.word(number, HEAD_WORDS).eq(_TAG_OF_ONE)):
        c.ret(_digit(c, number, 0))
    c.ret(integer_of(c, number))


@native(Long, number=Object)
def word(c: Code, number: Object) -> None:
    """The lowest 64 bits of an int: an address, or the word of a constant."""
    with c.when(number.cls.eq(c.object("int_type"))), c.when(c.word(number, HEAD_WORDS).eq(_TAG_OF_TWO)):
        c.ret(_digit(c, number, 0) | (_digit(c, number, 1) << _DIGIT))
    c.ret(word_of(c, number))


def bytes_of(c: Code, thing: Object) -> Integers:
    """What an object of bytes holds: behind its size and its hash."""
    return Integers.of(c.gep(thing, 8 * (HEAD_WORDS + 2)))


@native(List, item=Object)
def list_of(c: Code, item: Object) -> None:
    """A list of one item, or null."""
    made = List.new(c, 1)
    with c.when(made.exists()):
        made.fill(0, item.hold())
    c.ret(made)


@native(Int, function=Object, argument=Object)
def truth_of(c: Code, function: Object, argument: Object) -> None:
    """Whether a function says yes to its argument: 1, 0, or -1 with an exception."""
    handed = c.room(Objects, 1)
    handed[0] = argument
    answer = call(c, function, handed, 1, c.null)
    with c.when(answer.is_null()):
        c.ret(c.const(Int.held_as, -1))
    truth = is_true(c, answer)
    answer.release()
    c.ret(truth)


def entry(write: Callable[..., None]) -> Native[Object]:
    """A builtin function of CPython's: it gets what it was made with, and its arguments."""
    return Native(write, Object, {"self": Object, "arguments": Objects, "count": Long})


def method(write: Callable[..., None]) -> Native[Object]:
    """A method of CPython's: it gets its object, and its arguments; the names of the last of them, or null."""
    return Native(write, Object, {"self": Object, "arguments": Objects, "count": Long, "names": Tuple})


@native(Object, function=Object, arguments=Objects, count=Long)
def otherwise(c: Code, function: Object, arguments: Objects, count: Value) -> None:
    """What Python does with the same arguments, unless looking something up has failed with an exception."""
    with c.when(exception(c).exists()):
        c.fail()
    c.ret(call(c, function, arguments, count, c.null))


Needed = Callable[[Value], None]


def unless(c: Code, arguments: Objects, count: Value, function: Callable[[], Object]) -> Needed:
    """A function of conditions: where one does not hold, Python's form is called instead."""

    def needed(condition: Value) -> None:
        with c.when(~condition):
            c.ret(otherwise(c, function(), arguments, count))

    return needed
