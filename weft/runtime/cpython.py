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
