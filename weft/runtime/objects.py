"""Nodes and arrays, made by machine code: what a trace does most is to make one node and one array for it.

CPython calls these functions as it calls any builtin. Each does what a few lines of Python do elsewhere, which stay the
definition: they are what runs on an interpreter whose objects are laid out in another way, and while somebody watches
how nodes are made (`watch`). Where the attributes of an object lie is found by looking at one.
"""

from __future__ import annotations

import ctypes
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from weft.errors import CompileError, ConfigError
from weft.runtime import engine
from weft.runtime.cpython import builtin, keep
from weft.runtime.object_code import FUNCTIONS, HEAD_WORDS, NODE_SLOTS, TABLE, native_code


def attributes_of(cls: type, names: Iterable[str]) -> dict[str, int] | None:
    """How many bytes into an instance of a class with `__slots__` each of these attributes lies: found by giving an
    instance one object after the other. None if it is not laid out as CPython's objects are."""
    instance, mark = cls.__new__(cls), object()
    words = (ctypes.c_size_t * (cls.__basicsize__ // ctypes.sizeof(ctypes.c_size_t))).from_address(id(instance))
    if words[HEAD_WORDS - 1] != id(cls):
        return None
    places: dict[str, int] = {}
    for name in names:
        setattr(instance, name, mark)
        found = [i for i in range(HEAD_WORDS, len(words)) if words[i] == id(mark)]
        delattr(instance, name)
        if len(found) != 1:
            return None
        places[name] = found[0] * ctypes.sizeof(ctypes.c_size_t)
    return places


class Makers:
    """The functions, each in its native form once the classes are known, and in Python's as long as they are not."""

    def __init__(self) -> None:
        self._table = (ctypes.c_int64 * len(TABLE))()
        self._watchers = 0
        self._has_nodes = self._has_arrays = False

    def nodes(self, cls: type, counter: Iterator[int]) -> Callable[..., Any]:
        """`make(op, inputs, kind)` for nodes of a class: the class itself where there is no native form."""
        places = attributes_of(cls, NODE_SLOTS) if _is_usual_interpreter() and self._load() else None
        if places is None:
            return cls
        for name, place in places.items():
            self._table[TABLE[f"at_{name}"]] = place
        self._hold("node_type", cls)
        self._hold("counter", counter)
        self._has_nodes = True
        return self._function("make", cls)

    def arrays(self, cls: type, instead: Callable[..., Any]) -> Callable[..., Any]:
        """`wrap(node)` for arrays of a class, or `instead`, which does the same."""
        places = attributes_of(cls, ["_node"]) if self._has_nodes else None
        if places is None:
            return instead
        self._table[TABLE["at_node"]] = places["_node"]
        self._hold("array_type", cls)
        self._has_arrays = True
        return self._function("wrap", instead)

    def unary(self, op: Any, kinds: dict[Any, Any], instead: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one array: op of it, if `kinds` knows the kind of the result; else what `instead` gives."""
        return self._function("unary", (op, kinds, instead)) if self._has_arrays else instead

    def binary(self, op: Any, kinds: dict[Any, Any], instead: Callable[..., Any]) -> Callable[..., Any]:
        """The same for two arrays of one kind."""
        return self._function("binary", (op, kinds, instead)) if self._has_arrays else instead

    def watch(self, on: bool) -> None:
        """Somebody wants to see how nodes are made (or no longer does): Python's forms are used meanwhile."""
        self._watchers += 1 if on else -1
        self._table[TABLE["watched"]] = self._watchers

    def _load(self) -> bool:
        """Whether the machine code could be had; if not, evaluation will say why."""
        source = engine.Source(f"runtime:objects:{platform.machine()}", "weft_objects", native_code)
        try:
            for name in FUNCTIONS:
                self._table[TABLE[name]] = ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p).value or 0
            bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.load([source])[0])
        except (AttributeError, CompileError, ConfigError, OSError):
            return False
        self._hold("none", None)
        keep(self._table)
        bind(ctypes.addressof(self._table))
        return True

    def _hold(self, name: str, value: Any) -> None:
        keep(value)
        self._table[TABLE[name]] = id(value)

    def _function(self, entry: str, bound: Any) -> Callable[..., Any]:
        return builtin(entry, self._table[TABLE[entry]], bound)


def _is_usual_interpreter() -> bool:
    """CPython with one lock for all threads."""
    return sys.implementation.name == "cpython" and not sysconfig.get_config_var("Py_GIL_DISABLED")


MAKERS: Final = Makers()
