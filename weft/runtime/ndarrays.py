"""Where the elements of an array of NumPy's lie. NumPy tells in a microsecond, which is more than many a program takes;
machine code reads it from the object. Where an object has it is found by looking at some, so no layout is assumed."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np

from weft.errors import CompileError, ConfigError
from weft.llvm import engine
from weft.runtime.cpython import builtin

Find = Callable[[np.ndarray], int]

PLAIN: Final = 0x101
"""The flags of an array that is row-major and aligned, in NumPy's numbers."""

_TEXT: Final = r"""
declare ptr @PyLong_FromLongLong(i64)

define ptr @weft_plain_address(ptr %bound, ptr %arguments, i64 %count) {{
  %object = load ptr, ptr %arguments
  %place = getelementptr i8, ptr %object, i64 {data}
  %address = load i64, ptr %place
  %about = getelementptr i8, ptr %object, i64 {flags}
  %flags = load i32, ptr %about
  %kept = and i32 %flags, {plain}
  %is_plain = icmp eq i32 %kept, {plain}
  %found = select i1 %is_plain, i64 %address, i64 0
  %result = call ptr @PyLong_FromLongLong(i64 %found)
  ret ptr %result
}}
"""


def _slowly(values: np.ndarray) -> int:
    flags = values.flags
    return values.ctypes.data if flags.c_contiguous and flags.aligned else 0


def _offset(kind: Any, samples: list[tuple[np.ndarray, int]]) -> int | None:
    """Where all these objects have these words."""
    size = ctypes.sizeof(kind)
    for offset in range(object.__basicsize__, np.ndarray.__basicsize__ - size + 1, size):
        if all(kind.from_address(id(x) + offset).value == word for x, word in samples):
            return offset
    return None


class Layout(NamedTuple):
    """Where an array has what machine code reads, in bytes from its beginning."""

    data: int
    axes: int
    sizes: int
    dtype: int
    flags: int


@functools.cache
def layout() -> Layout | None:
    """That of `numpy.ndarray`; None if it is another than the one that NumPy has published."""
    if sys.implementation.name != "cpython":
        return None
    room = np.zeros((4, 6))
    fixed = np.ones(3, np.int8)
    fixed.flags.writeable = False
    odd = np.zeros(33, np.int8)[1:].view(np.float64)
    samples: list[np.ndarray] = [room, room[1:], room.T, room[:, ::2], fixed, odd, np.asfortranarray(room)]
    samples += [np.zeros(()), np.zeros((2, 1, 3), np.float32)]
    data = _offset(ctypes.c_int64, [(x, x.ctypes.data) for x in samples])
    axes = _offset(ctypes.c_int32, [(x, x.ndim) for x in samples])
    dtype = _offset(ctypes.c_int64, [(x, id(x.dtype)) for x in samples])
    flags = _offset(ctypes.c_int32, [(x, x.flags.num) for x in samples])
    if data is None or (axes, dtype, flags) != (data + 8, data + 40, data + 48):
        return None
    return Layout(data, data + 8, data + 16, data + 40, data + 48)


@functools.cache
def plain_address() -> Find:
    """A function of an array, of `numpy.ndarray` itself and of no subclass: the address of its first element, or 0 if
    the array is not row-major or not aligned."""
    found = layout()
    if found is None:
        return _slowly
    text = _TEXT.format(data=found.data, flags=found.flags, plain=PLAIN)
    source = engine.Source(f"runtime:plain_address {found.data} {found.flags}", "weft_plain_address", lambda: text)
    try:
        return builtin("plain_address", engine.load_for_good(source))
    except (CompileError, ConfigError, OSError):
        return _slowly
