"""Machine code as functions of CPython: builtin functions made of addresses, and objects kept for good."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

_METH_FASTCALL: Final = 0x80


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


def builtin(name: str, address: int, bound: Any = None) -> Callable[..., Any]:
    """A builtin function whose machine code, `ptr (ptr bound, ptr arguments, i64 count)`, lies at this address."""
    definition = _definitions.get((name, address))
    if definition is None:
        definition = _definitions[name, address] = _MethodDefinition(name.encode(), address, _METH_FASTCALL, None)
        keep(definition)
    return _new(ctypes.addressof(definition), bound, __name__)  # type: ignore[no-any-return]


def keep(value: Any) -> None:
    """Keep an object alive for good: functions outlive all modules while the interpreter shuts down."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))
