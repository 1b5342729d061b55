"""Where bytes come from and go to: paths and open files.

What is written to a path is complete or not there: it goes to a new file beside the old one, which it then replaces.
Arrays that are mapped from the old one keep their contents.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn, TypeGuard

import numpy as np

from weft.dtypes import Dtype
from weft.errors import FileError
from weft.lazy import lazy
from weft.records import dataclass
from weft.runtime.buffer import foreign
from weft.runtime.data import Buffer, to_buffer

if TYPE_CHECKING:
    import pathlib
else:
    pathlib = lazy("pathlib")

Path_ = str | os.PathLike[str]
File = Path_ | IO[bytes]

MOST_AXES: Final = 64
LARGEST: Final = 1 << 62
"""No size and no number of bytes in a file reaches this."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An array from a file."""

    buffer: Buffer
    shape: tuple[int, ...]
    dtype: Dtype


def is_path(file: object) -> TypeGuard[Path_]:
    return isinstance(file, (str, os.PathLike))


def with_suffix(file: File, suffix: str) -> File:
    """The path that a file is saved at: with its suffix, which need not be given."""
    if not is_path(file):
        return file
    name = os.fspath(file)
    return name if name.endswith(suffix) else name + suffix


def nbytes_of(shape: tuple[int, ...], dtype: Dtype) -> int:
    total = dtype.size
    for n in shape:
        total *= n
    return total


def is_shape(shape: Any) -> bool:
    """Whether something that was read is a list of sizes."""
    if not isinstance(shape, (list, tuple)) or len(shape) > MOST_AXES:
        return False
    return all(type(n) is int and 0 <= n < LARGEST for n in shape)


# ---- writing ----


@contextmanager
def writing(function: str, file: File, error: type[RuntimeError] = FileError) -> Iterator[IO[bytes]]:
    """A file to write to. One that was given open is written where it stands, and stays open. `error` is raised if
    there is no way to write it."""
    if not isinstance(file, (str, os.PathLike)):
        if not hasattr(file, "write"):
            raise ValueError(f"[{function}] writes to a path or a file that is open for writing; got {file!r}.")
        yield file
        return
    path = pathlib.Path(file)
    number, name = _open_beside(function, path, error)
    try:
        with os.fdopen(number, "wb") as out:
            yield out
        os.replace(name, path)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise


def check_writable(function: str, file: Path_) -> None:
    """Raise RuntimeError if there is no way to write this file."""
    number, name = _open_beside(function, pathlib.Path(file), RuntimeError)
    os.close(number)
    pathlib.Path(name).unlink()


def _open_beside(function: str, path: pathlib.Path, raised: type[RuntimeError]) -> tuple[int, str]:
    """A new file in the same directory: (descriptor, name)."""
    name = str(path.parent / f".{path.name}.{os.urandom(4).hex()}")
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), name
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error  # the name in the error is not the user's
        raise raised(f"[{function}] Failed to open file {path}: {problem}.") from error


def bytes_of(values: np.ndarray) -> memoryview:
    """The elements in row-major order, as they lie in a file."""
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return memoryview(flat)  # type: ignore[arg-type]


# ---- reading ----


@contextmanager
def opened(function: str, file: File) -> Iterator[IO[bytes]]:
    """A file to read from; one that was given open stays so."""
    if not isinstance(file, (str, os.PathLike)):
        if not hasattr(file, "read"):
            raise FileError(f"[{function}] reads from a path or a file that is open in binary mode; got {file!r}.")
        yield file
        return
    try:
        found = open(file, "rb")  # noqa: SIM115 -- closed below
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise FileError(f"[{function}] Failed to open file {os.fspath(file)}: {problem}.") from error
    with found:
        yield found


class Contents:
    """All bytes of a file from where it stands. Those of a file on disk are mapped: what is not looked at is not read,
    and several processes share the memory. Writes would reach neither the file nor other processes."""

    def __init__(self, function: str, file: File) -> None:
        self.function = function
        with opened(function, file) as source:
            mapped = _mapped(source)
            contents = bytearray(_binary(function, source.read())) if mapped is None else b""
        self.bytes = np.frombuffer(contents, np.uint8) if mapped is None else mapped
        self.size = self.bytes.size
        self._storage = foreign(self.bytes, self.bytes.ctypes.data, self.size)

    def take(self, start: int, count: int, what: str) -> bytes:
        """Some bytes, for reading what they say."""
        if count > self.size - start:
            self.damaged(f"{what} at byte {start} goes on beyond its end at byte {self.size}")
        return self.bytes[start : start + count].tobytes()

    def array(self, start: int, shape: tuple[int, ...], dtype: Dtype) -> Loaded:
        """An array that lies in the file, which was checked to reach so far; where possible without a copy."""
        count = nbytes_of(shape, dtype)
        address = self._storage.address + start
        part = self.bytes[start : start + count]
        if dtype.is_bool:
            return Loaded(to_buffer(part != 0), shape, dtype)
        if address % dtype.size or not count:
            return Loaded(to_buffer(part), shape, dtype)
        return Loaded(Buffer(self._storage, address), shape, dtype)

    def damaged(self, problem: str) -> NoReturn:
        raise FileError(f"[{self.function}] the file is damaged: {problem}.")


def _mapped(source: IO[bytes]) -> np.ndarray | None:
    """The rest of a file on disk, or None if this is none."""
    try:
        number, start = source.fileno(), source.tell()
        size = os.fstat(number).st_size
        if size <= start:
            return None
        return np.frombuffer(mmap.mmap(number, 0, access=mmap.ACCESS_COPY), np.uint8)[start:]
    except (AttributeError, OSError, ValueError):
        return None


def _binary(function: str, contents: object) -> bytes:
    if not isinstance(contents, (bytes, bytearray, memoryview)):
        raise FileError(f"[{function}] the file must be open in binary mode ('rb').")
    return bytes(contents)
