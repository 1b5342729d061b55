"""Memory: 64-byte aligned blocks, handed out by `allocate` and taken back when their `Storage` dies.

Blocks come in size classes, and a dropped block waits in its class for the next taker, so the memory of a training step
costs no system call and no page fault after the first. The counters behind MLX's memory functions (`get_active_memory`
and its friends) live here too. Everything that computes may come in; nothing here knows of arrays or dtypes.

Thread safety rests on three facts: a deque's `append`, `pop` and `popleft` are atomic; CPython never switches threads
between the read and the write of `x += n`; and there is no lock, so a `Storage.__del__` that strikes in the middle of
any function here, or a fork in another thread, has nothing to deadlock on.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import operator
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

from weft.config import config
from weft.runtime.device import Device
from weft.runtime.object_table import COUNTERS, MOST_SHELVED

ALIGNMENT: Final = 64
_HUGE: Final = 2 << 20  # blocks from here on are mapped on their own, on huge pages where the system has them
_MEDIUM: Final = 1 << 16  # blocks from here on share huge pages
_REGION: Final = 16 * _HUGE  # what is mapped for them at a time; it takes memory when it is first written to
_SMALL: Final = 1024  # up to here classes are 64 bytes apart; above, eight to a doubling

_PROT_READ_WRITE: Final = 3
_MAP_PRIVATE_ANONYMOUS: Final = 0x22
_MADV_DONTNEED: Final = 4
_MADV_HUGEPAGE: Final = 14
_MAP_FAILED: Final = 2**64 - 1

# The quick calls keep the interpreter lock (releasing it would cost more than they do); mapping memory can take long.
_libc_quick = ctypes.PyDLL(None)
_libc = ctypes.CDLL(None)
_aligned_alloc = _libc_quick.aligned_alloc
_aligned_alloc.restype = ctypes.c_void_p
_aligned_alloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_free = _libc_quick.free
_free.restype = None
_free.argtypes = [ctypes.c_void_p]
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
_munmap = _libc.munmap
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_madvise = _libc.madvise
_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


# ---------------------------------------------------------------------------------------------------------------------
# Blocks from the operating system
# ---------------------------------------------------------------------------------------------------------------------


def block_size(nbytes: int) -> int:
    """The size of the block that serves `nbytes`: at most an eighth (or 64 bytes) more than was asked for."""
    if nbytes <= _SMALL:
        if nbytes < 0:
            raise ValueError(f"[allocate] the size of a buffer must not be negative; got {nbytes}.")
        return (nbytes + 63) & -64 or 64
    shift = (nbytes - 1).bit_length() - 4
    return (((nbytes - 1) >> shift) + 1) << shift


def _map(size: int) -> int | None:
    """A fresh mapping that starts on a huge page, or None when the system refuses."""
    base = _mmap(None, size + _HUGE, _PROT_READ_WRITE, _MAP_PRIVATE_ANONYMOUS, -1, 0)
    if base is None or base == _MAP_FAILED:
        return None
    address = (base + _HUGE - 1) & -_HUGE
    if address > base:
        _munmap(base, address - base)
    if base + _HUGE > address:
        _munmap(address + size, base + _HUGE - address)
    _madvise(address, size, _MADV_HUGEPAGE)  # advice: a kernel without huge pages is no reason to fail
    return address


_open: deque[tuple[int, int]] = deque()
"""What is left of regions for blocks of a medium size, from where to where."""
_vacant: dict[int, deque[int]] = {}
"""By size: addresses of such blocks that were given back. There is no memory at them until they are written to."""


def _cut(size: int) -> int | None:
    """A block out of a region. Reading a matrix of a megabyte on huge pages takes up to a fifth less time."""
    try:
        return _vacant[size].pop()
    except (KeyError, IndexError):
        pass
    try:
        start, end = _open.pop()
    except IndexError:  # the first one, or another thread is here
        start = end = 0
    if end - start < size:
        region = _map(_REGION)
        if region is None:
            return _map(size)
        start, end = region, region + _REGION
    _open.append((start + size, end))
    return start


def _acquire(size: int) -> int | None:
    if size < _MEDIUM:
        return _aligned_alloc(ALIGNMENT, size)
    return _cut(size) if size < _HUGE else _map(size)


def _release(address: int, size: int) -> None:
    if size < _MEDIUM:
        _free(address)
    elif size < _HUGE:
        _madvise(address, size, _MADV_DONTNEED)
        _vacant.setdefault(size, deque()).append(address)
    else:
        _munmap(address, size)


# ---------------------------------------------------------------------------------------------------------------------
# How much there is
# ---------------------------------------------------------------------------------------------------------------------


def cgroup_limits(root: str) -> Iterator[int]:
    """Memory limits of the control groups that hold this process, with all their parents (both versions of cgroups)."""
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as file:
            groups = file.read().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            mount, name = os.path.join(root, "sys/fs/cgroup"), "memory.max"
        elif "memory" in controllers.split(","):
            mount, name = os.path.join(root, "sys/fs/cgroup/memory"), "memory.limit_in_bytes"
        else:
            continue
        parts = [part for part in path.split("/") if part]
        for depth in range(len(parts), -1, -1):
            # No such file in this group, or the word "max".
            with contextlib.suppress(OSError, ValueError), open(os.path.join(mount, *parts[:depth], name)) as file:
                yield int(file.read())


def default_limit() -> int:
    """Nine tenths of what this process may use: an exception here is kinder than being killed by the system."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *cgroup_limits("/")]) * 9 // 10


def _show(nbytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.2f} {unit}"
    return f"{nbytes} bytes"


# ---------------------------------------------------------------------------------------------------------------------
# The pool
# ---------------------------------------------------------------------------------------------------------------------


_MOST: Final = 1 << 62
"""The largest limit: sums of it and of sizes are 64-bit integers still."""


def _no_shelf(idle: dict[int, deque[int]]) -> None:
    """Where there is no machine code there is nothing on a shelf."""


class Pool(ctypes.Structure):
    """Idle blocks by size, and the counters. The system gave us `held` bytes: `active` are in use, the others idle.

    Two derived marks keep the usual path to one comparison each: beyond `high` an allocation has to look at the peak
    and at the limit, and below `low` a drop has to look at the cache limit. The usual path itself is written out where
    it is walked, in `allocate`, `Storage.__del__` and `Program.run`: calls would be most of its cost, and calls are
    where Ctrl-C strikes. Where there is machine code for it (running_code.py), that walks it instead: it has the
    counters in machine words, and keeps some small blocks on a shelf of its own.
    """

    _fields_ = tuple((name, ctypes.c_int64) for name in COUNTERS)
    active: int
    high: int
    low: int

    def __init__(self, limit: int) -> None:
        super().__init__()
        limit = min(limit, _MOST)
        self.idle: dict[int, deque[int]] = {}
        self.active = self.held = self.peak = self.last_peak = self.high = 0
        self.limit = limit
        # MLX lets the cache grow to the memory limit. On a machine that others use as well, a quarter is enough to
        # keep a working set warm.
        self.cache_limit = limit // 4
        self.low = -self.cache_limit
        self.wired_limit = 0
        self.unshelve: Callable[[dict[int, deque[int]]], object] = _no_shelf

    def blocks(self, size: int) -> deque[int]:
        """The idle blocks of `size` bytes, which is one of the sizes that `block_size` gives."""
        return self.idle.setdefault(size, deque())

    def trim(self, target: int) -> None:
        """Give idle blocks back to the system until at most `target` bytes idle; the fullest size class gives first."""
        self.unshelve(self.idle)
        while self.held - self.active > target:
            classes = list(self.idle.items())  # another thread may add one
            size, blocks = max(classes, key=lambda entry: entry[0] * len(entry[1]), default=(0, deque()))
            if not blocks:
                return
            for _ in range(len(blocks) // 2 + 1):
                try:
                    address = blocks.popleft()
                except IndexError:  # another thread took it
                    break
                self._hold(-size)
                _release(address, size)
                if self.held - self.active <= target:
                    return

    def trim_cache(self) -> None:
        """Bring the cache below its limit, with some slack: otherwise every later drop would come here again."""
        self.trim(self.cache_limit - self.cache_limit // 8)

    def set_limits(self, limit: int, cache_limit: int) -> None:
        self.limit, self.cache_limit = limit, cache_limit
        self.high = min(self.peak, limit)
        self._hold(0)
        self.trim(cache_limit)

    def _hold(self, change: int) -> None:
        self.held += change
        self.low = self.held - self.cache_limit

    def admit(self, size: int, asked: int) -> None:
        """Record a new peak, or undo the reservation and raise when it is beyond the limit."""
        if self.active > self.limit:
            gc.collect()  # arrays in unreachable cycles count as active until somebody looks
        if self.active > self.limit:
            self.active -= size
            self.trim(0)
            raise MemoryError(self._refusal(asked, "which is more than the limit allows"))
        self.last_peak, self.peak = self.peak, max(self.peak, self.active)
        self.high = min(self.peak, self.limit)

    def fresh(self, size: int, asked: int) -> int:
        """A block from the system, or from the shelf; `size` is already counted as active."""
        if size <= MOST_SHELVED:
            self.unshelve(self.idle)
            with contextlib.suppress(KeyError, IndexError):
                return self.idle[size].pop()
        self._hold(size)
        if self.held > self.limit:
            self.trim(max(0, self.limit - self.active))
        address = _acquire(size)
        if address is None:
            gc.collect()
            self.trim(0)
            address = _acquire(size)
        if address is None:
            if self.peak == self.active:  # a peak that was never reached
                self.peak = self.last_peak
                self.high = min(self.peak, self.limit)
            self._hold(-size)
            self.active -= size
            raise MemoryError(self._refusal(asked, "and the operating system refused"))
        return address

    def _refusal(self, asked: int, reason: str) -> str:
        return (
            f"[allocate] {_show(asked)} asked for, {reason}: {_show(self.active)} in use, limit {_show(self.limit)}. "
            "Drop arrays that are not needed, compute in smaller pieces, or raise the limit with set_memory_limit()."
        )


pool = Pool(default_limit() if config.memory_limit is None else config.memory_limit)
_idle = pool.idle


class Storage:
    """One block of our own: `nbytes` usable bytes at `address`. Its end of life gives the block back to the pool.

    `capacity` is the size of the block behind it. Only `allocate` makes one.
    """

    __slots__ = ("__weakref__", "address", "capacity", "nbytes")

    # Read like the fields of `ForeignStorage`, but cost no time at construction.
    foreign: ClassVar[bool] = False
    device: Any = None  # the host's memory
    owner: Any = None

    address: int
    nbytes: int
    capacity: int

    def __del__(self) -> None:
        # With `allocate`, this is the price of every temporary: 0.4 µs (machine code, which takes its place where there
        # is some: 0.1). A `weakref.finalize` would add 0.7 µs to it, a weak reference with a callback 0.2 µs.
        try:
            size = self.capacity
            pool.active -= size
            _idle[size].append(self.address)
        except (AttributeError, TypeError):  # `allocate` raised, or Python is ending and our globals are gone
            return
        if pool.active < pool.low:
            pool.trim_cache()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.nbytes} bytes at {self.address:#x}>"


class ForeignStorage(Storage):
    """Memory of somebody else (NumPy, torch, DLPack), kept alive through `owner`; never pooled, never donated."""

    __slots__ = ("owner",)
    foreign: ClassVar[bool] = True

    def __init__(self, owner: object, address: int, nbytes: int) -> None:
        self.owner = owner
        self.address = address
        self.nbytes = nbytes
        self.capacity = 0

    def __del__(self) -> None:
        """Nothing of ours to give back."""


class DeviceStorage(Storage):
    """Memory of a device that the host cannot reach: what lies there has to be copied. A target has a class of its own,
    which also gives the memory back at the end of its life."""

    __slots__ = ("device",)

    def __init__(self, device: Device, address: int, nbytes: int) -> None:
        self.device, self.address, self.nbytes, self.capacity = device, address, nbytes, nbytes

    def __del__(self) -> None:
        raise NotImplementedError

    def read(self, address: int, to: int, nbytes: int) -> None:
        """Copy bytes from an address of the device to one of the host."""
        raise NotImplementedError

    def write(self, address: int, source: int, nbytes: int) -> None:
        """Copy bytes from an address of the host to one of the device."""
        raise NotImplementedError


def allocate(nbytes: int) -> Storage:
    """A block of at least `nbytes` bytes, its contents undefined."""
    size = block_size(nbytes)
    storage = Storage()
    pool.active += size
    if pool.active > pool.high:
        pool.admit(size, nbytes)
    try:
        storage.address = _idle[size].pop()
    except KeyError:
        pool.blocks(size)
        storage.address = pool.fresh(size, nbytes)
    except IndexError:
        storage.address = pool.fresh(size, nbytes)
    storage.nbytes = nbytes
    storage.capacity = size
    return storage


def take_block(size: int) -> int:
    """The address of a block whose size is one that `block_size` gives. Who takes it gives it back."""
    pool.active += size
    if pool.active > pool.high:
        pool.admit(size, size)
    try:
        return pool.blocks(size).pop()
    except IndexError:
        return pool.fresh(size, size)


def foreign(owner: object, address: int, nbytes: int) -> Storage:
    """Memory that somebody else allocated; `owner` stays alive as long as the result does."""
    return ForeignStorage(owner, address, nbytes)


# ---------------------------------------------------------------------------------------------------------------------
# MLX's memory functions
# ---------------------------------------------------------------------------------------------------------------------


def get_active_memory() -> int:
    """Bytes in use by arrays and running programs; blocks that wait for reuse do not count."""
    return pool.active


def get_peak_memory() -> int:
    """The most bytes in use at one time, since the start or since `reset_peak_memory`."""
    return pool.peak


def reset_peak_memory() -> None:
    """Start a new measurement: `get_peak_memory` is 0 until the next allocation."""
    pool.peak = pool.high = 0


def get_cache_memory() -> int:
    """Bytes that are not in use but have not been given back to the system."""
    return max(0, pool.held - pool.active)  # a thread in the middle of an allocation has counted it as active only


def clear_cache() -> None:
    """Give all memory that is not in use back to the system."""
    pool.trim(0)


def get_memory_limit() -> int:
    """The number of active bytes that an allocation must not exceed."""
    return pool.limit


def set_memory_limit(limit: int) -> int:
    """Set the number of bytes that may be active; the previous limit is returned. Active memory is not touched."""
    previous = pool.limit
    pool.set_limits(_checked("set_memory_limit", limit), pool.cache_limit)
    return previous


def set_cache_limit(limit: int) -> int:
    """Set the number of bytes that may wait for reuse (0: none at all); the previous limit is returned."""
    previous = pool.cache_limit
    pool.set_limits(pool.limit, _checked("set_cache_limit", limit))
    return previous


def set_wired_limit(limit: int) -> int:
    """Remember `limit` and return the one before. Ordinary memory needs no wiring; only Apple's GPUs do."""
    previous = pool.wired_limit
    pool.wired_limit = _checked("set_wired_limit", limit)
    return previous


def _checked(name: str, limit: int) -> int:
    """A limit as the counters take it, which are 64 bits wide: what is beyond them does not limit anything."""
    try:
        found = operator.index(limit)
    except TypeError:
        raise TypeError(f"[{name}] a limit is a number of bytes; got {limit!r}.") from None
    if found < 0:
        raise TypeError(f"[{name}] a limit is a number of bytes, 0 or more; got {found}.")
    return min(found, _MOST)
