"""Where an array's elements are: a `Buffer` is a part of a `Storage` seen with strides; NumPy can look at it and fill
it.

Memory that one holder only can reach may be overwritten by what is computed from it (holders.py).
"""

from __future__ import annotations

import ctypes
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol
from weakref import ref

import numpy as np

from weft.dtypes import Dtype
from weft.runtime.buffer import DeviceStorage, Storage, allocate
from weft.runtime.device import Device


class Buffer:
    """Elements at `address` (that of index (0, …, 0)) in a storage that it keeps alive. `strides` count elements; None
    means row-major."""

    __slots__ = ("address", "storage", "strides")

    def __init__(self, storage: Storage, address: int, strides: tuple[int, ...] | None = None) -> None:
        self.storage, self.address, self.strides = storage, address, strides

    @property
    def device(self) -> Device | None:
        """Where it lies; None is the host's memory."""
        return self.storage.device  # type: ignore[no-any-return]


def extent(shape: Sequence[int], strides: Sequence[int] | None, size: int) -> tuple[int, int]:
    """(offset of the first byte, number of bytes) that elements of `size` bytes take, from the address of the first
    element on."""
    if 0 in shape:
        return 0, 0
    if strides is None:
        return 0, math.prod(shape) * size
    reach = [step * (n - 1) * size for n, step in zip(shape, strides, strict=True)]
    low = sum([by for by in reach if by < 0])
    return low, sum([by for by in reach if by > 0]) - low + size


def on_host(buffer: Buffer, shape: Sequence[int], size: int) -> Buffer:
    """The same elements in the host's memory."""
    device = buffer.storage
    if not isinstance(device, DeviceStorage):
        return buffer
    low, nbytes = extent(shape, buffer.strides, size)
    storage = allocate(nbytes)
    device.read(buffer.address + low, storage.address, nbytes)
    return Buffer(storage, storage.address - low, buffer.strides)


def moved(
    buffer: Buffer, shape: Sequence[int], size: int, device: Device | None, allocate: Callable[[int], Storage]
) -> Buffer:
    """The same elements on a device, whose memory `allocate` gives: where they lie if they are there already, else in a
    copy."""
    if buffer.storage.device is device:
        return buffer
    here = on_host(buffer, shape, size)
    if device is None:
        return here
    low, nbytes = extent(shape, here.strides, size)
    storage = allocate(nbytes)
    assert isinstance(storage, DeviceStorage)
    storage.write(storage.address, here.address + low, nbytes)
    return Buffer(storage, storage.address - low, here.strides)


def is_whole(buffer: Buffer) -> bool:
    """Whether a buffer is all of a storage of ours, row-major."""
    storage = buffer.storage
    return buffer.strides is None and buffer.address == storage.address and not storage.foreign


class Busy(Exception):
    """A value was asked for that another thread is overwriting: what replaces it will be there soon."""

    def __init__(self, taken: Taken) -> None:
        super().__init__("a value is being overwritten")
        self.taken = taken


_FORKS = [0]
"""How many forks there are between the first process and this one."""


def _after_fork() -> None:
    _FORKS[0] += 1


os.register_at_fork(after_in_child=_after_fork)


class Overwriting(Protocol):
    """What is about to overwrite values, or is at it."""

    def hurry(self) -> None:
        """See to it that there are values again: by the thread that overwrites them, which a signal's handler or a
        finalizer has interrupted, or by any thread if that is paused."""


class Taken:
    """Stands in for the buffer of a node that a running program may overwrite. Only nodes that the program computes can
    lead to it, so it is seen by those who evaluate the same at the same time, and after a failure. Whoever looks at it
    or ends it holds the lock of evaluation."""

    __slots__ = ("_by", "_done", "_ended", "_paused", "_process", "_thread")

    def __init__(self, by: Overwriting | None = None) -> None:
        self._by = None if by is None else ref(by)
        self._paused: Overwriting | None = None
        self._done: threading.Lock | None = None
        self._ended = False
        self._process, self._thread = _FORKS[0], threading.get_ident()

    def hand_to(self, thread: int) -> None:
        """Another thread is to run the program."""
        self._thread = thread

    def pause(self, by: Overwriting) -> None:
        """The program was interrupted, and can be carried on by whoever needs a value."""
        self._paused = by
        self._release()

    def end(self) -> None:
        """The program has ended, in whatever way."""
        if not self._ended:
            self._release()
        self._ended, self._paused = True, None

    def _release(self) -> None:
        done, self._done = self._done, None
        if done is not None:
            done.release()

    @property
    def is_paused(self) -> bool:
        """Whether the program can be carried on by whoever needs a value."""
        return self._paused is not None

    def wait(self) -> None:
        """Until there is a value, or somebody else is to see to it that there is."""
        by = self._paused
        if by is None and self._by is not None and self.is_mine():
            by = self._by()
        if by is not None:
            return by.hurry()
        done = self._done
        if done is not None:
            with done:
                pass
        return None

    def refuse(self) -> NoReturn:
        """What everybody gets who wants a buffer: an error, or Busy if there will be a value soon."""
        if self.is_over():
            raise RuntimeError(
                "[eval] this array cannot be computed any more: an evaluation that was to overwrite one of its "
                "operands failed midway. Make it again from arrays that are still there."
            )
        if self.is_paused or self.is_mine():
            raise Busy(self)
        if self._done is None:
            self._done = threading.Lock()
            self._done.acquire()
        raise Busy(self)

    def is_over(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self._ended or (self._process != _FORKS[0] and not self.is_paused)  # a child has no other threads

    def is_mine(self) -> bool:
        """Whether this thread runs the program."""
        return self._thread == threading.get_ident()

    def _no_buffer(self) -> NoReturn:
        self.refuse()

    strides = property(_no_buffer)
    address = property(_no_buffer)
    storage = property(_no_buffer)
    words = property(_no_buffer)


class _Exported:
    """What NumPy reads a view's memory from, and what keeps that memory alive."""

    __slots__ = ("__array_interface__", "buffer")

    def __init__(self, buffer: Buffer, interface: dict[str, Any]) -> None:
        self.buffer, self.__array_interface__ = buffer, interface


def numpy_view(buffer: Buffer, shape: Sequence[int], dtype: Dtype, writable: bool = False) -> np.ndarray:
    """The elements as NumPy sees them, without a copy if they lie in the host's memory; the view keeps the storage
    alive. It cannot be written through, unless the caller knows that nothing else lies there: other arrays may lie in
    the same memory, and pending operations may read it later."""
    if 0 in shape:
        nothing = np.empty(tuple(shape), dtype.np)
        nothing.flags.writeable = writable
        return nothing
    if buffer.storage.device is not None:
        buffer = on_host(buffer, shape, dtype.size)
    plain = np.dtype(f"u{dtype.size}") if dtype.np.kind == "V" else dtype.np  # NumPy does not know bfloat16 by name
    interface = {
        "version": 3,
        "shape": tuple(shape),
        "typestr": plain.str,
        "data": (buffer.address, not writable),
        "strides": None if buffer.strides is None else tuple(s * dtype.size for s in buffer.strides),
    }
    return np.asarray(_Exported(buffer, interface)).view(dtype.np)


def to_buffer(values: np.ndarray) -> Buffer:
    """A copy of the elements, in memory of ours, row-major."""
    flat = np.ascontiguousarray(values)
    storage = allocate(flat.nbytes)
    ctypes.memmove(storage.address, flat.ctypes.data, flat.nbytes)
    return Buffer(storage, storage.address)
