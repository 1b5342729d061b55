"""A bounded store of compiled objects on disk, shared by all processes of one user.

An entry is one file, named by the digest of its key and written to a temporary name before it is renamed, so a reader
sees a whole entry or none, whoever is killed and whenever. A header binds the content to its name; an entry that fails
the check is a miss and is removed. Nothing here raises for the state of the disk: a directory that is missing, full,
read-only or not a directory means that nothing is found and nothing is kept. The engine alone comes in.

The bound costs no directory scan per store. A journal file grows by one byte per 4 KiB block stored; when it says that
a quarter of the limit has been stored, one process sweeps: the least recently used entries go until three quarters of
the limit are left. An entry's modification time is the time of its last use. Entries hold machine code, so only files
of our own user (or root) that nobody else may write are believed.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import struct
import time
from contextlib import suppress
from typing import Final, NamedTuple

from weft.llvm.digest import digest

BLOCK: Final = 4096  # what a small file takes on most file systems; sizes are counted in it

_MAGIC: Final = b"WEFTOBJ2"
_HEADER: Final = struct.Struct("<8s32s")  # magic, digest of name and content
_ENTRY_NAME: Final = re.compile(r"[0-9a-f]{64}\.o")
_TEMPORARY_NAME: Final = re.compile(r"[0-9a-f]{16}\.tmp")
_JOURNAL: Final = "journal"
_ABANDONED: Final = 3600.0  # seconds after which a temporary file's writer is taken for dead

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a planted FIFO must not block us
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_APPEND: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Usage(NamedTuple):
    """What a store holds: the number of entries and the bytes of the blocks they take."""

    entries: int
    size: int


class ObjectCache:
    """The store in `directory` (made on the first `put`), bounded to about `limit` bytes."""

    __slots__ = ("directory", "limit")

    def __init__(self, directory: str, limit: int) -> None:
        self.directory, self.limit = directory, limit

    def get(self, key: str) -> bytes | None:
        """The content stored under `key`, or None."""
        name = _entry_name(key)
        path = os.path.join(self.directory, name)
        try:
            file = os.open(path, _READ)
        except OSError:
            return None
        try:
            status = os.fstat(file)
            if not _believable(status):
                return None
            raw = os.read(file, status.st_size)
            content = _unwrap(name, raw)
            if content is not None:
                with suppress(OSError):  # a read-only store is still a store
                    os.utime(file)
                return content
        except OSError:
            return None
        finally:
            os.close(file)
        with suppress(OSError):
            os.unlink(path)
        return None

    def put(self, key: str, content: bytes) -> None:
        """Keep `content` under `key`, if the disk allows and it is not too big a part of the whole store."""
        name = _entry_name(key)
        entry = _wrap(name, content)
        if _blocks(len(entry)) * BLOCK > self.limit // 4:
            return
        with suppress(OSError):
            # Counted first: a writer that is killed leaves the count too high, never too low.
            full = self._count(_blocks(len(entry)))
            self._write(name, entry)
            if full:
                self._sweep()

    def usage(self) -> Usage:
        """What the store holds now; scans the directory."""
        entries = self._entries()
        return Usage(len(entries), sum(size for _, size, _ in entries))

    # ---- writing ----

    def _write(self, name: str, entry: bytes) -> None:
        temporary = os.path.join(self.directory, os.urandom(8).hex() + ".tmp")
        file = os.open(temporary, _CREATE, 0o600)
        try:
            try:
                written = os.write(file, entry)
            finally:
                os.close(file)
            if written != len(entry):
                raise OSError("disk full")
            os.rename(temporary, os.path.join(self.directory, name))
        except BaseException:  # an interrupt too must not leave litter
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def _count(self, blocks: int) -> bool:
        """Note in the journal that `blocks` more will be stored; True when it is time to sweep."""
        journal = os.path.join(self.directory, _JOURNAL)
        try:
            file = os.open(journal, _APPEND, 0o600)
        except FileNotFoundError:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            file = os.open(journal, _APPEND, 0o600)
        except PermissionError:  # left by another user, root most likely; the directory may still be ours
            os.unlink(journal)
            file = os.open(journal, _APPEND, 0o600)
        try:
            os.write(file, bytes(blocks))
            return self._due(file)
        finally:
            os.close(file)

    def _due(self, journal: int) -> bool:
        return os.fstat(journal).st_size * BLOCK > self.limit // 4

    # ---- evicting ----

    def _sweep(self) -> None:
        """Remove the least recently used entries, unless another process is at it or has just been."""
        file = os.open(os.path.join(self.directory, _JOURNAL), _APPEND, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            except OSError:
                pass  # a file system without locks: two sweeps at once do no harm
            while self._due(file):
                counted = os.fstat(file).st_size
                self._evict()
                # Afterwards, so that a sweep cut short is done again; what others stored meanwhile stays counted.
                os.ftruncate(file, max(0, os.fstat(file).st_size - counted))
        finally:
            os.close(file)

    def _evict(self) -> None:
        entries = sorted(self._entries())
        excess = sum(size for _, size, _ in entries) - (self.limit - self.limit // 4)
        for _, size, path in entries:
            if excess <= 0:
                return
            with suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size

    def _entries(self) -> list[tuple[int, int, str]]:
        """(last use in ns, size in bytes of blocks, path) of every entry; removes what dead writers left behind."""
        found = []
        abandoned = time.time() - _ABANDONED
        with suppress(OSError), os.scandir(self.directory) as listing:
            for item in listing:
                entry, temporary = _ENTRY_NAME.fullmatch(item.name), _TEMPORARY_NAME.fullmatch(item.name)
                if not (entry or temporary):
                    continue  # not ours to count or to remove
                with suppress(OSError):  # gone since it was listed
                    status = item.stat(follow_symlinks=False)
                    if entry:
                        found.append((status.st_mtime_ns, _blocks(status.st_size) * BLOCK, item.path))
                    elif status.st_mtime < abandoned:
                        os.unlink(item.path)
        return found


# ---- entries ----


def _entry_name(key: str) -> str:
    return digest(key.encode()).hexdigest() + ".o"


def _blocks(size: int) -> int:
    return -(-size // BLOCK)


def _digest(name: str, content: bytes) -> bytes:
    return digest(name.encode() + content).digest()


def _wrap(name: str, content: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, _digest(name, content)) + content


def _unwrap(name: str, raw: bytes) -> bytes | None:
    """The content of the entry `name`, or None when `raw` is not what was written under that name."""
    if len(raw) < _HEADER.size:
        return None
    magic, digest = _HEADER.unpack_from(raw)
    content = raw[_HEADER.size :]
    return content if magic == _MAGIC and digest == _digest(name, content) else None


def _believable(status: os.stat_result) -> bool:
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_uid in (os.geteuid(), 0)
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )
