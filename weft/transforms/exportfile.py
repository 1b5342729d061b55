"""The file of an exported function: a short prefix, a JSON header, and the bytes of tensors (docs/export.md).

Only bytes and JSON are dealt with here; what the header says is written by exporting.py and read by importing.py. A
file is data: reading one runs no code of its writer's, checks every length and checksum before it is used, and raises
RuntimeError that says what is wrong.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any, Final, NoReturn

import numpy as np

from weft.dtypes import Dtype, by_name
from weft.files.paths import Path_, bytes_of, writing
from weft.records import dataclass
from weft.runtime.buffer import allocate
from weft.runtime.data import Buffer

MAGIC: Final = b"WEFTFUN\n"
VERSION: Final = 1
ALIGNMENT: Final = 64
PREFIX: Final = struct.Struct("<8sIIQQ")  # magic, version, crc32 of the header, length of the header, of the file
MOST_HEADER: Final = 1 << 30
_PIECE: Final = 1 << 24


class DamagedFile(RuntimeError):
    """A file that is not what an export writes: cut off, changed, or made by somebody who means harm."""


def damaged(problem: str) -> NoReturn:
    raise DamagedFile(problem)


@dataclass(frozen=True)
class Tensor:
    """Where the elements of an array lie in a file; `offset` counts from the first tensor."""

    dtype: Dtype
    shape: tuple[int, ...]
    offset: int
    crc32: int

    @property
    def nbytes(self) -> int:
        total = self.dtype.size
        for n in self.shape:
            total *= n
        return total


# ---- writing ----


def _aligned(at: int) -> int:
    return -(-at // ALIGNMENT) * ALIGNMENT


def write(file: Path_ | IO[bytes], header: dict[str, Any], tensors: Sequence[tuple[Dtype, np.ndarray]]) -> None:
    """Write a file, or into an open one. A file is complete or not there: what was there before stays until then."""
    entries: list[dict[str, Any]] = []
    at = 0
    for dtype, values in tensors:
        raw = bytes_of(values)
        entries.append(
            {"dtype": dtype.name, "shape": list(values.shape), "offset": at, "crc32": zlib.crc32(raw)}
        )  # fmt: skip
        at = _aligned(at + raw.nbytes)
    text = json.dumps({**header, "tensors": entries}, separators=(",", ":"), allow_nan=False).encode()
    first = _aligned(PREFIX.size + len(text))
    end = first + (entries[-1]["offset"] + bytes_of(tensors[-1][1]).nbytes if tensors else 0)
    prefix = PREFIX.pack(MAGIC, VERSION, zlib.crc32(text), len(text), end)
    with writing("export_function", file, RuntimeError) as out:
        out.write(prefix + text)
        position = PREFIX.size + len(text)
        for entry, (_, values) in zip(entries, tensors, strict=True):
            start = first + entry["offset"]
            out.write(bytes(start - position))
            raw = bytes_of(values)
            out.write(raw)
            position = start + raw.nbytes
        out.write(bytes(end - position))


# ---- reading ----


class FileSource:
    """Reads a file from its beginning to its end, and never more than it says it has."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self.size, self.position = file, size, 0

    def take(self, count: int) -> bytes:
        parts: list[bytes] = []
        while count:
            part = self._file.read(min(count, _PIECE))
            if not part:
                damaged(f"it ends at byte {self.position}, in the middle of its contents")
            parts.append(part)
            count -= len(part)
            self.position += len(part)
        return b"".join(parts)

    def fill(self, address: int, count: int) -> int:
        """Read into memory; the checksum of what was read."""
        checksum = 0
        for at in range(0, count, _PIECE):
            piece = self.take(min(_PIECE, count - at))
            ctypes.memmove(address + at, piece, len(piece))
            checksum = zlib.crc32(piece, checksum)
        return checksum


@contextmanager
def opened(file: Path_ | IO[bytes]) -> Iterator[FileSource]:
    """A file to read from; one that was given open stays so."""
    if not isinstance(file, (str, os.PathLike)):
        contents = file.read()
        if not isinstance(contents, bytes):
            raise TypeError("[import_function] the file must be opened in binary mode ('rb').")
        yield FileSource(io.BytesIO(contents), len(contents))
        return
    try:
        found = open(file, "rb")  # noqa: SIM115 -- closed below
    except (OSError, ValueError) as error:
        raise RuntimeError(f"[import_function] Failed to open {file}: {error}.") from error
    with found:
        yield FileSource(found, os.fstat(found.fileno()).st_size)


def read_header(source: FileSource) -> tuple[dict[str, Any], list[Tensor]]:
    """The header, and the tensors that it lists."""
    magic, version, checksum, length, end = PREFIX.unpack(source.take(PREFIX.size))
    if magic != MAGIC:
        damaged("it does not begin as an exported function does")
    if version != VERSION:
        damaged(f"it has version {version} of the format, and this Weft reads version {VERSION}")
    if end != source.size:
        damaged(f"it has {source.size} bytes, and should have {end}")
    if not 2 <= length <= min(end - PREFIX.size, MOST_HEADER):
        damaged(f"its header of {length} bytes does not fit the file")
    text = source.take(length)
    if zlib.crc32(text) != checksum:
        damaged("its header has changed since it was written")
    try:
        header = json.loads(text.decode(), parse_float=_no_float, parse_constant=_no_float)
    except (ValueError, RecursionError) as error:
        damaged(f"its header is no JSON that we write ({error})")
    if not isinstance(header, dict):
        damaged("its header is no object")
    return header, _tensors(header.get("tensors"), _aligned(PREFIX.size + length), end)


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"{text} is no integer")


def _tensors(entries: Any, first: int, end: int) -> list[Tensor]:
    """The tensors, which lie one after the other between `first` and `end`."""
    if not isinstance(entries, list):
        damaged("it lists no tensors")
    found: list[Tensor] = []
    at = last = first
    for number, entry in enumerate(entries):
        tensor = _tensor(entry)
        if tensor is None:
            damaged(f"tensor {number} is not described as we do it")
        if tensor.offset != at - first or tensor.nbytes > end - at:
            damaged(f"tensor {number} does not lie in the file")
        found.append(tensor)
        last = at + tensor.nbytes
        at = _aligned(last)
    if end != last:
        damaged("its length is not that of its contents")
    return found


def _tensor(entry: Any) -> Tensor | None:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "offset", "crc32"}:
        return None
    name, shape, numbers = entry["dtype"], entry["shape"], (entry["offset"], entry["crc32"])
    if not isinstance(shape, list) or len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 62 for n in shape):
        return None
    if not isinstance(name, str) or not all(type(n) is int and 0 <= n < 1 << 62 for n in numbers):
        return None
    try:
        return Tensor(by_name(name), tuple(shape), *numbers)
    except ValueError:
        return None


def read_tensors(source: FileSource, tensors: Sequence[Tensor]) -> list[Buffer]:
    """The tensors, each in memory of its own. The header was read before."""
    found: list[Buffer] = []
    for number, tensor in enumerate(tensors):
        source.take(_aligned(source.position) - source.position)
        storage = allocate(tensor.nbytes)
        if source.fill(storage.address, tensor.nbytes) != tensor.crc32:
            damaged(f"the bytes of tensor {number} have changed since they were written")
        if tensor.dtype.is_bool and tensor.nbytes:
            flags = np.ctypeslib.as_array((ctypes.c_uint8 * tensor.nbytes).from_address(storage.address))
            if flags.max() > 1:
                damaged(f"tensor {number} holds truths other than 0 and 1")
        found.append(Buffer(storage, storage.address))
    return found
