"""The operating system's memory, and whether there is enough of it for a library that cannot do without.

LLVM ends the process where it gets no memory. So the engine asks for what a piece of its work may take, and for the
memory maps, before it begins, and raises MemoryError while that is still possible. Memory for code comes from here too.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from typing import Any, Final

PAGE: Final = mmap.PAGESIZE
WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
EXECUTE: Final = mmap.PROT_READ | mmap.PROT_EXEC
_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_DONTNEED: Final = 4

_MAPS: Final = 64
"""Memory maps that a piece of work may make: of threads, their heaps and stacks, and large blocks."""
_PYTHON_BYTES: Final = 8 << 20
_MOST_ALLOCATED: Final = 256 << 20
_BLOCK: Final = 1 << 16
"""Bytes that the C library is asked for at once: less than what it would get from the system for this purpose alone."""


def _functions() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.mprotect.argtypes = libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.restype, libc.free.argtypes = None, [ctypes.c_void_p]
    return libc


_libc: Final = _functions()


def map_memory(nbytes: int) -> int:
    """The address of fresh memory that can be read and written; OSError if there is none."""
    address = _libc.mmap(None, nbytes, WRITE, _PRIVATE, -1, 0)
    if address is None or address == 2**64 - 1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(address)


def unmap_memory(address: int, nbytes: int) -> None:
    """Give memory back."""
    _libc.munmap(address, nbytes)


def protect(address: int, nbytes: int, how: int) -> None:
    """Change what may be done with memory; OSError if the system does not want to."""
    if _libc.mprotect(address, nbytes, how) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def empty(address: int, nbytes: int) -> None:
    """Let the system have the contents; the next to look finds fresh zeros."""
    _libc.madvise(address, nbytes, _DONTNEED)


def is_refusal(error: OSError) -> bool:
    """Whether a system has memory, but forbids what was to be done with it."""
    return error.errno in (errno.EACCES, errno.EPERM)


def ensure(nbytes: int, purpose: str) -> None:
    """Raise MemoryError unless this thread can have so many bytes now, and some memory maps."""
    if not (has_maps() and (has_bytes(nbytes) or _can_allocate(nbytes))):
        raise MemoryError(
            f"[compile] {purpose} may take {nbytes >> 20} MB and {_MAPS} memory maps, which are not to be had: free "
            "memory, or raise the limit (ulimit -v, vm.max_map_count)."
        )


def ensure_for_python(purpose: str) -> None:
    """Raise MemoryError unless Python can have some more objects: where it gets none, not all of it says so."""
    if not has_bytes(_PYTHON_BYTES):
        raise MemoryError(f"[compile] there is too little memory left for {purpose}: free some, or raise the limit.")


def has_bytes(nbytes: int) -> bool:
    """Whether the system has so many bytes for this process."""
    try:
        unmap_memory(map_memory(nbytes), nbytes)
    except OSError:
        return False
    return True


def has_maps() -> bool:
    """Whether the system has some more memory maps for this process."""
    try:
        base = _maps_region()
    except OSError:
        return False
    try:
        for number in range(0, _MAPS, 2):  # neighbours that are used alike are one map
            protect(base + number * PAGE, PAGE, mmap.PROT_READ)
    except OSError:
        return False
    finally:
        protect(base, _MAPS * PAGE, WRITE)  # one again
    return True


def _can_allocate(nbytes: int) -> bool:
    """Whether the C library has so many bytes for this thread: those that it holds, which the system counts already,
    and those that it can still get. It is not asked for a lot: that would be written to, here and there."""
    if nbytes > _MOST_ALLOCATED:
        return False
    taken: list[int] = []
    try:
        while nbytes > _BLOCK * len(taken):
            block = _libc.malloc(_BLOCK)
            if not block:
                return False
            taken.append(block)
    finally:
        for block in taken:
            _libc.free(block)
    return True


@functools.cache
def _maps_region() -> int:
    """Memory to try out on whether there may be more maps: the process keeps it, because it may run out of that too."""
    return map_memory(_MAPS * PAGE)
