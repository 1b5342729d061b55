"""Machine code as functions of CPython: builtin functions made of addresses, objects kept for good, and the function
through which memory of an object is asked for."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Final

from weft.errors import CompileError, ConfigError
from weft.llvm import engine

_METH_FASTCALL: Final = 0x80
_METH_KEYWORDS: Final = 0x02


class _MethodDefinition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_new = ctypes.pythonapi["PyCFunction_NewEx"]
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
_definitions: dict[tuple[str, int], _MethodDefinition] = {}
_new_method = ctypes.pythonapi["PyDescr_NewMethod"]
_new_method.restype, _new_method.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.c_void_p]


def builtin(name: str, address: int, bound: Any = None) -> Callable[..., Any]:
    """A builtin function whose machine code, `ptr (ptr bound, ptr arguments, i64 count)`, lies at this address."""
    definition = _definitions.get((name, address))
    if definition is None:
        definition = _definitions[name, address] = _MethodDefinition(name.encode(), address, _METH_FASTCALL, None)
        keep(definition)
    return _new(ctypes.addressof(definition), bound, __name__)  # type: ignore[no-any-return]


def method(cls: type, name: str, address: int) -> Any:
    """A method of a class, whose machine code is `ptr (ptr self, ptr arguments, i64 count, ptr names)`."""
    definition = _MethodDefinition(name.encode(), address, _METH_FASTCALL | _METH_KEYWORDS, None)
    keep(definition)
    return _new_method(cls, ctypes.addressof(definition))


_DEALLOCATE: Final = 48
"""Where a class says what ends its objects, in bytes."""


class _Plain:
    """A class of Python's; all of these have the same end."""

    __slots__ = ()


def ends_with(cls: type, address: int) -> bool:
    """Let `void (ptr object)` at an address end the objects of a class of Python's: whether that could be done."""
    usual, found = (ctypes.c_size_t.from_address(id(each) + _DEALLOCATE) for each in (_Plain, cls))
    if found.value != usual.value or usual.value == ctypes.c_size_t.from_address(id(object) + _DEALLOCATE).value:
        return False
    found.value = address
    return True


_CLEAR: Final = 192
"""Where a class says how the garbage collector takes its attributes from an object, in bytes."""


def keeps_attributes(cls: type) -> None:
    """Objects of a class keep their attributes, which refer to nothing else, to their end."""
    ctypes.c_size_t.from_address(id(cls) + _CLEAR).value = 0


_CALL: Final = 128
"""Where a class says what calls its objects, in bytes."""


class _Callable:
    """A class of Python's whose objects can be called; all of these are called in the same way."""

    __slots__ = ()

    def __call__(self) -> None:
        pass


def called_with(cls: type, address: int) -> None:
    """Let `ptr (ptr object, ptr tuple, ptr dict)` at an address, which does what `__call__` does, call the objects of a
    class of Python's."""
    usual, other, found = (ctypes.c_size_t.from_address(id(each) + _CALL) for each in (_Callable, _Plain, cls))
    if found.value == usual.value and not other.value:
        found.value = address


_ALWAYS_HELD: Final = ctypes.c_int64(1)


def held_count(lock: Any) -> int:
    """The address of the word in which a recursive lock counts how often it is held, 0 if it is free: found by holding
    it. If there is no such word, that of one which is never 0."""
    size = ctypes.sizeof(ctypes.c_int64)
    words = (ctypes.c_int64 * (type(lock).__basicsize__ // size)).from_address(id(lock))
    seen = [list(words)]
    for _ in range(3):
        lock.acquire()
        seen.append(list(words))
    for _ in range(3):
        lock.release()
    seen.append(list(words))
    counts = [place for place, values in enumerate(zip(*seen, strict=True)) if values == (0, 1, 2, 3, 0)]
    keep(lock)
    return id(lock) + size * counts[0] if len(counts) == 1 else ctypes.addressof(_ALWAYS_HELD)


_NUMBERS: Final = 96
"""Where a class says what its operators are, in bytes: the address of a table of functions."""


def operates_with(cls: type, place: int, address: int) -> None:
    """Let `ptr (ptr a, ptr b)` at an address be an operator of a class of Python's, which has it at a place of its
    table. It is called where one operand is of this class, and not of one that inherits from it; a method that is set
    later takes its place."""
    operators = ctypes.c_size_t.from_address(id(cls) + _NUMBERS).value
    ctypes.c_size_t.from_address(operators + ctypes.sizeof(ctypes.c_size_t) * place).value = address


def keep(value: Any) -> None:
    """Keep an object alive for good: functions outlive all modules while the interpreter shuts down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


_GETBUFFER: Final = r"""
@method = private constant [11 x i8] c"__buffer__\00"
@format = private constant [2 x i8] c"i\00"
declare ptr @PyObject_CallMethod(ptr, ptr, ptr, ...)
declare i32 @PyObject_GetBuffer(ptr, ptr, i32)
declare void @Py_DecRef(ptr)

define i32 @weft_getbuffer(ptr %self, ptr %buffer, i32 %flags) {
  %source = call ptr (ptr, ptr, ptr, ...) @PyObject_CallMethod(ptr %self, ptr @method, ptr @format, i32 %flags)
  %failed = icmp eq ptr %source, null
  br i1 %failed, label %raise, label %delegate
delegate:                                  ; the buffer itself holds a reference to its source from here on
  %status = call i32 @PyObject_GetBuffer(ptr %source, ptr %buffer, i32 %flags)
  call void @Py_DecRef(ptr %source)
  ret i32 %status
raise:                                     ; the exception is set; a failed request must leave no owner behind
  %owner = getelementptr i8, ptr %buffer, i64 8
  store ptr null, ptr %owner
  ret i32 -1
}
"""


@functools.cache
def getbuffer() -> int | None:
    """The address of a function that asks `__buffer__`, as Python 3.12 does by itself; None if there is no machine code
    to be had, as evaluation will say. It is native because a function that ctypes calls back cannot leave an exception
    for the interpreter to find."""
    try:
        return engine.load_for_good(engine.Source("runtime:getbuffer", "weft_getbuffer", lambda: _GETBUFFER))
    except (CompileError, ConfigError, OSError):
        return None
