"""Programs that are called with arrays of NumPy: one call of machine code looks at the arrays, takes their addresses
and runs. What a small program takes is mostly what stands around it, so nothing is left for Python to do here."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from weft.runtime.buffer import allocate
from weft.runtime.interpreter import ARRAYS, OTHERS, PAUSED, interpreter
from weft.runtime.ndarrays import PLAIN, layout
from weft.runtime.objects import is_known_interpreter
from weft.runtime.program import NOTHING_RAN, Program
from weft.runtime.threads import RUN_BYTES


class Operand(NamedTuple):
    """An array of a call: the number of its address (None: it is looked at, and nothing else), its dtype and shape."""

    place: int | None
    dtype: np.dtype
    shape: tuple[int, ...]


class ArrayCall:
    """A program with a workspace of its own, for row-major arrays of certain dtypes and shapes. `addresses` are those
    of a run, with anything in place of the arrays'."""

    __slots__ = ("_addresses", "_execute", "_operands", "_program", "_record", "_record_at", "_storage", "_table")

    def __init__(self, program: Program, addresses: Sequence[int], operands: Sequence[Operand]) -> None:
        count = program.given  # none that the program does not know of is written anywhere
        self._program, self._addresses = program, list(addresses)[:count]
        self._operands = [x if x.place is None or x.place < count else x._replace(place=None) for x in operands]
        self._prepare()

    def _prepare(self) -> None:
        found = layout()
        assert found is not None
        self._table, size, _ = self._program.layout
        self._storage = allocate(size)
        buffers = (ctypes.c_int64 * (1 + len(self._addresses))).from_address(self._storage.address + RUN_BYTES)
        for at, address in enumerate(self._addresses, 1):  # the first is the workspace's
            buffers[at] = address
        words = {
            "program": self._table, "workspace": self._storage.address, "busy": 0, "class": id(np.ndarray),
            "at_data": found.data, "at_axes": found.axes, "at_sizes": found.sizes, "at_dtype": found.dtype,
            "at_flags": found.flags, "flags": PLAIN, "count": len(self._operands),
        }  # fmt: skip
        entries: list[int] = []
        for place, dtype, shape in self._operands:
            entries += [0 if place is None else 1 + place, id(dtype), len(shape), *shape]
        self._record = np.array([*(words[name] for name in ARRAYS), *entries], np.int64)
        self._record_at = self._record.ctypes.data
        self._execute = interpreter().execute_arrays

    def __call__(self, *arrays: Any) -> bool:
        """Run. False if the arrays are not what the call is for, or another is running: then nothing has happened."""
        status = self._execute(self._record_at, *arrays)
        return True if status == 0 else self._go_on(status)

    def _go_on(self, status: int) -> bool:
        if status == OTHERS:
            return False
        if status in NOTHING_RAN:  # there are more threads than there were
            self._program.lay_out_again()
            self._prepare()
            return False
        while status == PAUSED:  # Python runs the handlers of signals here
            status = interpreter().proceed(self._table, self._storage.address)
        self._record[ARRAYS["busy"]] = 0
        if status != 0:
            raise self._program.failed(self._storage.address, status)
        return True


def are_possible() -> bool:
    """Whether arrays and the interpreter are such that machine code can look at them."""
    return is_known_interpreter() and layout() is not None
