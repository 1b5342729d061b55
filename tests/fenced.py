"""Memory between pages that must not be touched: a kernel that reads or writes past the end of an array where its
memory ends, too, ends the process. Bytes at the other end, up to the next page, are compared with what they were.

For a process of its own (`tests.processes.run_alone`), before anything is computed.
"""

from __future__ import annotations

import ctypes
from typing import Any

from tests import contract
from weft.runtime import buffer, data
from weft.targets.cpu.target import Cpu

PAGE = 4096
FILL = 0x5A
SIDES = ("before", "behind")
"""On which side of an array its memory ends."""
_PRIVATE_ANONYMOUS = 0x22
_READ_WRITE = 3

_libc = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class FencedStorage(buffer.Storage):
    """Memory of an array, in pages of its own between two that nobody may touch."""

    __slots__ = ("pages", "start")

    def __init__(self, nbytes: int, side: str) -> None:
        self.pages = max(1, -(-nbytes // PAGE)) * PAGE
        fence = _libc.mmap(None, self.pages + 2 * PAGE, 0, _PRIVATE_ANONYMOUS, -1, 0)
        self.start = fence + PAGE
        assert _libc.mprotect(self.start, self.pages, _READ_WRITE) == 0
        ctypes.memset(self.start, FILL, self.pages)
        self.address = self.start if side == "before" else self.start + self.pages - nbytes
        self.nbytes = self.capacity = nbytes

    def __del__(self) -> None:
        end = self.address + self.nbytes
        rest = ctypes.string_at(self.start, self.address - self.start)
        rest += ctypes.string_at(end, self.start + self.pages - end)
        if rest.strip(bytes([FILL])):
            TOUCHED.append(self.nbytes)
        _libc.munmap(self.start - PAGE, self.pages + 2 * PAGE)


TOUCHED: list[int] = []
"""The sizes of arrays beside which something was written."""
_side = [SIDES[0]]


def _allocate(nbytes: int) -> FencedStorage:
    return FencedStorage(nbytes, _side[0])


def fence(side: str) -> None:
    """From now on the memory of operands and results ends on that side of them."""
    _side[0] = side
    places: tuple[Any, ...] = (contract, data, Cpu)
    for place in places:
        place.allocate = staticmethod(_allocate) if place is Cpu else _allocate
