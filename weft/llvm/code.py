"""Memory for machine code: whole pages of it, written and then executable, that are used again once nothing refers to
the code in them. The linker (`linking.py`) comes in, and the engine hands out what it makes.

A process maps a few large pieces and no map for each kernel, so it can load any number of kernels one after the other.
No page can be written and executed at the same time. Python's reference counts say when code is free: a `Code` is held
by the programs that run it, and a program by the thread that runs it.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import threading
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from weft import room
from weft.errors import CompileError
from weft.room import PAGE

PIECE: Final = 2 << 20
"""Bytes that are mapped at once; more for code that is longer."""


class Code:
    """Machine code in memory, from its `address` on. It stays there as long as this object does: who calls it holds the
    object meanwhile."""

    __slots__ = ("__weakref__", "_memory", "_pages", "address", "calls")

    def __init__(self, memory: CodeMemory, pages: _Pages, address: int) -> None:
        self._memory, self._pages, self.address = memory, pages, address
        self.calls: tuple[Code, ...] = ()
        """Other code that it calls, and so holds."""

    def __index__(self) -> int:
        return self.address

    def __repr__(self) -> str:
        return f"Code({self.address:#x})"

    def __del__(self) -> None:
        self._memory.free(self._pages)


class _Pages:
    """Neighbouring pages of a piece."""

    __slots__ = ("count", "first", "piece")

    def __init__(self, piece: _Piece, first: int, count: int) -> None:
        self.piece, self.first, self.count = piece, first, count

    @property
    def address(self) -> int:
        return self.piece.address + self.first * PAGE

    @property
    def nbytes(self) -> int:
        return self.count * PAGE


class _Piece:
    """A piece of mapped memory, and its free pages as (first, count), in order."""

    __slots__ = ("address", "count", "free")

    def __init__(self, nbytes: int) -> None:
        self.address, self.count = _map(nbytes), nbytes // PAGE
        self.free = [(0, self.count)]

    def take(self, count: int) -> _Pages | None:
        for number, (first, length) in enumerate(self.free):
            if length >= count:
                self.free[number : number + 1] = [(first + count, length - count)] if length > count else []
                return _Pages(self, first, count)
        return None

    def give(self, pages: _Pages) -> None:
        insort(self.free, (pages.first, pages.count))
        merged: list[tuple[int, int]] = []
        for first, count in self.free:
            if merged and sum(merged[-1]) == first:
                merged[-1] = (merged[-1][0], merged[-1][1] + count)
            else:
                merged.append((first, count))
        self.free = merged

    @property
    def used(self) -> int:
        """Bytes in use."""
        return (self.count - sum(count for _, count in self.free)) * PAGE


class CodeMemory:
    """All machine code of a process. Every thread may come in, and so may finalizers and handlers of signals, in the
    middle of anything."""

    def __init__(self) -> None:
        self._pieces: list[_Piece] = []
        self._freed: deque[_Pages] = deque()
        """What finalizers have left here. They run anywhere, so they do nothing but this, which is one step."""
        self._lock = threading.RLock()
        self._entered = False
        """Whether a thread is between two steps that belong together."""
        os.register_at_fork(
            before=self._lock.acquire, after_in_parent=self._lock.release, after_in_child=self._lock.release
        )

    def place(self, nbytes: int, writable: int, fill: Callable[[int, int], tuple[bytes, int]]) -> Code:
        """Code of so many bytes, and on pages of their own behind it `writable` ones, which stay so. `fill` gets the
        addresses of both, and gives the contents of all pages and the address at which the code is entered."""
        count = -(-nbytes // PAGE)
        with self._lock:
            pages = self._take(count - -writable // PAGE)
            try:
                contents, entry = fill(pages.address, pages.address + count * PAGE)
                _protect(pages.address, pages.nbytes, room.WRITE)
                ctypes.memmove(pages.address, contents, len(contents))
                _protect(pages.address, count * PAGE, room.EXECUTE)
                _forget_instructions(pages.address, count * PAGE)
                return Code(self, pages, entry)
            except BaseException:
                self.free(pages)
                raise

    def free(self, pages: _Pages) -> None:
        """Nothing uses these pages any more."""
        self._freed.append(pages)

    @property
    def used(self) -> int:
        """Bytes of code in memory."""
        with self._lock:
            if not self._entered:
                self._collect()
            return sum(piece.used for piece in self._pieces)

    def _take(self, count: int) -> _Pages:
        if self._entered:  # a handler or a finalizer, in the middle of what stands below: it gets a piece of its own
            return self._new(count * PAGE, count)
        try:
            self._entered = True
            self._collect()
            for piece in self._pieces:
                found = piece.take(count)
                if found is not None:
                    return found
            found = self._new(max(PIECE, count * PAGE), count)
            self._pieces.append(found.piece)
            return found
        finally:
            self._entered = False

    @staticmethod
    def _new(nbytes: int, count: int) -> _Pages:
        found = _Piece(nbytes).take(count)
        assert found is not None, "a piece is at least as long as what it was made for"
        return found

    def _collect(self) -> None:
        """Take back what is not used any more. The system gets the memory itself, and so what comes to lie there next
        lies on fresh pages, of which no processor knows instructions."""
        while self._freed:
            pages = self._freed.popleft()
            room.empty(pages.address, pages.nbytes)
            piece = pages.piece
            piece.give(pages)
            if not piece.used and self._pieces != [piece]:
                if piece in self._pieces:
                    self._pieces.remove(piece)
                room.unmap_memory(piece.address, piece.count * PAGE)


MEMORY: Final = CodeMemory()


def _map(nbytes: int) -> int:
    """Fresh memory that can be executed. It was writable once: the system counts it so, and keeps it one map."""
    try:
        address = room.map_memory(nbytes)
    except OSError as error:
        raise _refused(nbytes, error) from None
    try:
        _protect(address, nbytes, room.EXECUTE)
    except BaseException:
        room.unmap_memory(address, nbytes)
        raise
    return address


def _protect(address: int, nbytes: int, how: int) -> None:
    try:
        room.protect(address, nbytes, how)
    except OSError as error:
        raise _refused(nbytes, error) from None


def _refused(nbytes: int, error: OSError) -> Exception:
    if room.is_refusal(error):
        return CompileError(
            "this system lets no process execute what it has written (SELinux has a setting execmem, for one), so no "
            "kernel can run: allow it for this program, or set WEFT_BACKEND=reference."
        )
    return MemoryError(f"[compile] the operating system refused {nbytes} bytes for machine code: {error.strerror}.")


def _forget_instructions(address: int, nbytes: int) -> None:
    clear = _clear_cache()
    if clear is not None:
        clear(address, address + nbytes)


@functools.cache
def _clear_cache() -> Any:
    """What tells processors that instructions have changed, where they do not see that by themselves."""
    if platform.machine() == "x86_64":
        return None
    try:
        clear = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
    except (AttributeError, OSError):  # Linux does it whenever a fresh page becomes executable, and all of ours are
        return None
    clear.argtypes, clear.restype = [ctypes.c_void_p, ctypes.c_void_p], None
    return clear
