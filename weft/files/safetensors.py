"""safetensors: a JSON header with the place of each tensor, then their bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.files.paths import LARGEST, Contents, File, Loaded, bytes_of, is_shape, nbytes_of, writing

MOST_HEADER: Final = 100_000_000
"""What other readers of the format take."""

_NAMES: Final[Mapping[Dtype, str]] = {
    dt.bool_: "BOOL", dt.uint8: "U8", dt.int8: "I8", dt.uint16: "U16", dt.int16: "I16", dt.uint32: "U32",
    dt.int32: "I32", dt.uint64: "U64", dt.int64: "I64", dt.float16: "F16", dt.bfloat16: "BF16", dt.float32: "F32",
    dt.float64: "F64", dt.complex64: "C64",
}  # fmt: skip
_DTYPES: Final[Mapping[str, Dtype]] = {
    **{name: dtype for dtype, name in _NAMES.items()},
    # As MLX reads them: bits, for `from_fp8`.
    "F8_E4M3": dt.uint8, "F8_E5M2": dt.uint8, "F8_E8M0": dt.uint8,
}  # fmt: skip


def save(
    function: str, file: File, arrays: Mapping[str, tuple[np.ndarray, Dtype]], metadata: Mapping[str, str] | None
) -> None:
    """Tensors of wide elements come first, so that all of them are aligned."""
    for name, (_, dtype) in arrays.items():
        if dtype not in _NAMES:
            raise ValueError(
                f"[{function}] {name!r} is {dtype.name}, which the format has no name for; convert it first, e.g. "
                f"with .astype(complex64)."
            )
        if name == "__metadata__":
            raise ValueError(f"[{function}] no array can be called '__metadata__'; that name is the format's own.")
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    order = sorted(arrays, key=lambda name: -arrays[name][1].size)
    at = 0
    for name in order:
        values, dtype = arrays[name]
        header[name] = {"dtype": _NAMES[dtype], "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with writing(function, file) as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            out.write(bytes_of(arrays[name][0]))


def load(function: str, file: File) -> tuple[dict[str, Loaded], dict[str, str]]:
    """(arrays in the order of their names in the file, metadata)."""
    contents = Contents(function, file)
    length = int.from_bytes(contents.take(0, 8, "the length of its header"), "little")
    if length > MOST_HEADER:
        contents.damaged(f"its header should have {length} bytes")
    header = _header(contents, contents.take(8, length, "its header"))
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        contents.damaged("its metadata are not strings")
    return {name: _tensor(contents, name, entry, 8 + length) for name, entry in header.items()}, metadata


def _header(contents: Contents, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            raise ValueError("a name occurs twice")
        return made

    try:
        header = json.loads(text.decode(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        contents.damaged(f"its header cannot be read ({error})")
    if not isinstance(header, dict):
        contents.damaged("its header is no table of tensors")
    return header


def _tensor(contents: Contents, name: str, entry: Any, first: int) -> Loaded:
    if not isinstance(entry, dict):
        contents.damaged(f"{name!r} is not described")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        contents.damaged(f"{name!r} has elements of the unknown type {dtype!r}")
    if not isinstance(shape, list) or not is_shape(shape):
        contents.damaged(f"{name!r} has no shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(n) is int and n >= 0 for n in offsets):
        contents.damaged(f"{name!r} has no place")
    start, end = offsets
    count = nbytes_of(tuple(shape), _DTYPES[dtype])
    if count >= LARGEST or end - start != count:
        contents.damaged(f"{name!r} of shape {tuple(shape)} and type {dtype} cannot lie in {end - start} bytes")
    if end > contents.size - first:
        contents.damaged(f"{name!r} goes on beyond its end at byte {contents.size}; perhaps a download is incomplete")
    return contents.array(first + start, tuple(shape), _DTYPES[dtype])
