"""NumPy's files: one array (npy), or several in a zip archive (npz).

bfloat16, which NumPy has no name for, is written as MLX does it: two bytes of no type.
"""

from __future__ import annotations

import ast
import ctypes
import io
import os
import zipfile
import zlib
from collections.abc import Mapping
from typing import IO, Any, Final, NoReturn

import numpy as np

from weft.dtypes import Dtype, bfloat16, from_numpy
from weft.errors import FileError
from weft.files.paths import LARGEST, File, Loaded, bytes_of, is_path, is_shape, nbytes_of, opened, writing
from weft.runtime.buffer import allocate
from weft.runtime.data import Buffer, to_buffer

MAGIC: Final = b"\x93NUMPY"
MOST_HEADER: Final = 1 << 20
_PIECE: Final = 1 << 24
_MOST_DEFLATED: Final = 1032
"""Deflate cannot make more bytes than so many from one."""


# ---- writing ----


def write_array(out: IO[bytes], values: np.ndarray, dtype: Dtype) -> None:
    """One array as npy."""
    descr = "<V2" if dtype is bfloat16 else dtype.np.str
    header = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {values.shape!r}, }}"
    length = -(-(len(MAGIC) + 4 + len(header) + 1) // 64) * 64 - len(MAGIC) - 4
    out.write(MAGIC + b"\1\0" + length.to_bytes(2, "little"))
    out.write(header.ljust(length - 1).encode("latin1") + b"\n")
    out.write(bytes_of(values))


def save_npy(function: str, file: File, values: np.ndarray, dtype: Dtype) -> None:
    with writing(function, file) as out:
        write_array(out, values, dtype)


def save_npz(function: str, file: File, arrays: Mapping[str, tuple[np.ndarray, Dtype]], compress: bool) -> None:
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    with writing(function, file) as out, zipfile.ZipFile(out, "w", method, allowZip64=True) as archive:
        for name, (values, dtype) in arrays.items():
            # A fixed date: equal arrays make equal files.
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = method
            with archive.open(entry, "w", force_zip64=True) as part:
                write_array(part, values, dtype)


# ---- reading ----


def load_npy(function: str, file: File) -> Loaded:
    with opened(function, file) as source:
        remaining = os.fstat(source.fileno()).st_size if is_path(file) else None
        return read_array(function, source, remaining)


def load_npz(function: str, file: File) -> dict[str, Loaded]:
    with opened(function, file) as source:
        try:
            with zipfile.ZipFile(source) as archive:
                return {_member_name(entry): _member(function, archive, entry) for entry in archive.infolist()}
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, UnicodeError) as error:
            raise FileError(f"[{function}] is not a zip archive that can be read: {error}.") from error


def _member_name(entry: zipfile.ZipInfo) -> str:
    return entry.filename.removesuffix(".npy")


def _member(function: str, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Loaded:
    if entry.flag_bits & 1:
        raise FileError(f"[{function}] {entry.filename} is encrypted.")
    if entry.file_size > _MOST_DEFLATED * (entry.compress_size + 1):
        raise FileError(f"[{function}] the file is damaged: {entry.filename} says that it has {entry.file_size} bytes.")
    with archive.open(entry) as part:
        return read_array(function, part, entry.file_size)


def read_array(function: str, source: IO[bytes], remaining: int | None) -> Loaded:
    """One array. `remaining` is how many bytes there can be, if that is known."""

    def damaged(problem: str) -> NoReturn:
        raise FileError(f"[{function}] the file is damaged: {problem}.")

    start = _exactly(source, 8)
    if start is None or start[:6] != MAGIC:
        raise FileError(f"[{function}] the file does not begin as an npy file does.")
    if start[6] not in (1, 2, 3):
        raise FileError(f"[{function}] version {start[6]} of the npy format is not known.")
    digits = 2 if start[6] == 1 else 4
    length = int.from_bytes(_exactly(source, digits) or b"", "little")
    header = _exactly(source, length) if 0 < length <= MOST_HEADER else None
    if header is None:
        damaged("its header is cut off")
    shape, dtype, columns = _read_header(function, header)
    loaded = from_numpy(dtype) if dtype.kind != "V" else bfloat16
    count = nbytes_of(shape, loaded)
    if count >= LARGEST or (remaining is not None and count > remaining - 8 - digits - length):
        damaged(f"an array {shape} of {loaded.name} does not fit into it")
    buffer = _filled(source, count, bounded=remaining is not None)
    if buffer is None:
        damaged(f"an array {shape} of {loaded.name} is cut off")
    buffer = _in_our_order(buffer, count, dtype, loaded)
    if columns and len(shape) > 1 and count:
        buffer = Buffer(buffer.storage, buffer.address, _column_strides(shape))
    return Loaded(buffer, shape, loaded)


def _read_header(function: str, header: bytes) -> tuple[tuple[int, ...], np.dtype, bool]:
    """(shape, dtype as it is in the file, whether columns come first)."""
    try:
        said: Any = ast.literal_eval(header.decode("utf-8", "replace").strip())
        descr, columns, shape = said["descr"], said["fortran_order"], said["shape"]
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError):
        raise FileError(f"[{function}] the file is damaged: its header makes no sense.") from None
    if not isinstance(shape, tuple) or not is_shape(shape) or type(columns) is not bool:
        raise FileError(f"[{function}] the file is damaged: its header gives no shape.")
    try:
        dtype = np.dtype(descr)
        if dtype.kind == "V" and (dtype.itemsize != 2 or dtype.names is not None):
            raise TypeError(descr)
        if dtype.kind != "V":
            from_numpy(dtype)
    except (TypeError, ValueError, SyntaxError):
        raise FileError(f"[{function}] holds elements of type {descr!r}, which an array cannot have.") from None
    return shape, dtype, columns


def _exactly(source: IO[bytes], count: int) -> bytes | None:
    """So many bytes; None if there are fewer."""
    parts = io.BytesIO()
    while count:
        part = source.read(min(count, _PIECE))
        if not isinstance(part, bytes) or not part:
            return None
        parts.write(part)
        count -= len(part)
    return parts.getvalue()


def _filled(source: IO[bytes], count: int, bounded: bool) -> Buffer | None:
    """Memory with the next bytes of a file; None if there are fewer. If nothing says that there are so many, memory is
    taken only for those that were read."""
    if not bounded:
        contents = _exactly(source, count)
        return None if contents is None else to_buffer(np.frombuffer(contents, np.uint8))
    storage = allocate(count)
    for at in range(0, count, _PIECE):
        piece = _exactly(source, min(_PIECE, count - at))
        if piece is None:
            return None
        ctypes.memmove(storage.address + at, piece, len(piece))
    return Buffer(storage, storage.address)


def _in_our_order(buffer: Buffer, count: int, dtype: np.dtype, loaded: Dtype) -> Buffer:
    """Elements in the byte order of this machine; truths that are 0 or 1."""
    if not count or (dtype.isnative and not loaded.is_bool):
        return buffer
    flat = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(buffer.address))
    if loaded.is_bool:
        np.not_equal(flat, 0, out=flat.view(np.bool_))
        return buffer
    return to_buffer(flat.view(dtype).astype(loaded.np))


def _column_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for n in shape:
        strides.append(step)
        step *= n
    return tuple(strides)
