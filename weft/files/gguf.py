"""GGUF: tensors, many of them quantized, with metadata of plain types (version 3 is written; 2 and 3 are read)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final, NoReturn

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.errors import FileError
from weft.files.gguf_blocks import BLOCKS, STAY_PACKED, BlockType, repack, to_half
from weft.files.paths import LARGEST, MOST_AXES, Contents, File, Loaded, bytes_of, nbytes_of, writing
from weft.runtime.data import to_buffer

MAGIC: Final = b"GGUF"
ALIGNMENT: Final = 32
MOST_ALIGNMENT: Final = 1 << 20
Value = str | list[str] | tuple[np.ndarray, Dtype]
"""Of metadata: text, texts, or numbers (an array of at most one axis)."""

_PLAIN: Final[Mapping[int, Dtype]] = {
    0: dt.float32, 1: dt.float16, 24: dt.int8, 25: dt.int16, 26: dt.int32, 27: dt.int64, 28: dt.float64,
}  # fmt: skip
"""Types of elements that are stored as they are."""
_NUMBERS: Final[Mapping[int, Dtype]] = {
    0: dt.uint8, 1: dt.int8, 2: dt.uint16, 3: dt.int16, 4: dt.uint32, 5: dt.int32, 6: dt.float32, 7: dt.bool_,
    10: dt.uint64, 11: dt.int64, 12: dt.float64,
}  # fmt: skip
"""Types of metadata."""
_STRING, _ARRAY = 8, 9


# ---- writing ----


def save(
    function: str, file: File, arrays: Mapping[str, tuple[np.ndarray, Dtype]], metadata: Mapping[str, Value]
) -> None:
    tensors: list[bytes] = []
    at = 0
    types = {dtype: number for number, dtype in _PLAIN.items()}
    for name, (values, dtype) in arrays.items():
        if dtype not in types:
            raise ValueError(
                f"[{function}] dtype {dtype.name} is not supported ({name!r}); convert it first, e.g. with "
                ".astype(float16)."
            )
        sizes = [struct.pack("<Q", n) for n in reversed(values.shape)]
        tensors += [_text(name), struct.pack("<I", len(sizes)), *sizes, struct.pack("<IQ", types[dtype], at)]
        at += -(-values.nbytes // ALIGNMENT) * ALIGNMENT
    pairs = [part for key, value in metadata.items() for part in (_text(key), _value(function, key, value))]
    head = b"".join([MAGIC, struct.pack("<IQQ", 3, len(arrays), len(metadata)), *pairs, *tensors])
    with writing(function, file) as out:
        out.write(head + bytes(-len(head) % ALIGNMENT))
        for values, _ in arrays.values():
            out.write(bytes_of(values))
            out.write(bytes(-values.nbytes % ALIGNMENT))


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(function: str, key: str, value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
    numbers, dtype = value
    types = {known: number for number, known in _NUMBERS.items()}
    if dtype not in types:
        raise ValueError(f"[{function}] array type {dtype.name} not supported for metadata ({key!r}).")
    if numbers.ndim > 1:
        raise FileError(f"[{function}] metadata {key!r} cannot be an array with more than one dimension.")
    if numbers.ndim == 0:
        return struct.pack("<I", types[dtype]) + numbers.tobytes()
    return struct.pack("<IIQ", _ARRAY, types[dtype], len(numbers)) + numbers.tobytes()


# ---- reading ----


def load(function: str, file: File) -> tuple[dict[str, Loaded], dict[str, Value]]:
    """(arrays, metadata). A matrix of blocks that stay packed is three arrays: `x.weight`, `x.scales`, `x.biases`."""
    return _Reader(Contents(function, file)).read()


class _Reader:
    """Reads a file from its beginning; `at` is the next byte."""

    def __init__(self, contents: Contents) -> None:
        self.contents, self.at = contents, 0

    def read(self) -> tuple[dict[str, Loaded], dict[str, Value]]:
        if self.contents.size < 24 or self._take(4) != MAGIC:
            raise FileError(f"[{self.contents.function}] the file does not begin as a GGUF file does.")
        version = self._number(dt.uint32)
        if version not in (2, 3):
            raise FileError(f"[{self.contents.function}] version {version} of GGUF is not known.")
        count, pairs = self._number(dt.uint64), self._number(dt.uint64)
        metadata: dict[str, Value] = {}
        for _ in range(pairs):
            key = self._text()
            if key in metadata:
                self._damaged(f"it has metadata {key!r} twice")
            metadata[key] = self._value(key, self._number(dt.uint32))
        infos = [self._info() for _ in range(count)]
        first = -(-self.at // self._alignment(metadata)) * self._alignment(metadata)
        arrays: dict[str, Loaded] = {}
        for name, shape, kind, offset in infos:
            for part, loaded in self._tensor(name, shape, kind, first + offset).items():
                if part in arrays:
                    self._damaged(f"it has a tensor {part!r} twice")
                arrays[part] = loaded
        return arrays, metadata

    def _damaged(self, problem: str) -> NoReturn:
        self.contents.damaged(problem)

    def _take(self, count: int) -> bytes:
        found = self.contents.take(self.at, count, "what should stand")
        self.at += count
        return found

    def _number(self, dtype: Dtype) -> int:
        return int.from_bytes(self._take(dtype.size), "little")

    def _text(self) -> str:
        raw = self._take(self._number(dt.uint64))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return raw.decode("latin1")

    def _value(self, key: str, kind: int) -> Value:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._numbers(key, kind, ())
        inner, count = self._number(dt.uint32), self._number(dt.uint64)
        if inner == _STRING:
            return [self._text() for _ in range(count)]  # every text takes bytes, so this ends with the file
        return self._numbers(key, inner, (count,))

    def _numbers(self, key: str, kind: int, shape: tuple[int, ...]) -> Value:
        dtype = _NUMBERS.get(kind)
        if dtype is None:
            self._damaged(f"metadata {key!r} is of the unknown type {kind}")
        raw = np.frombuffer(self._take(nbytes_of(shape, dtype)), np.uint8)
        values = (raw != 0) if dtype.is_bool else raw.view(dtype.np)
        return values.reshape(shape), dtype

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, axes = self._text(), self._number(dt.uint32)
        if axes > MOST_AXES:
            self._damaged(f"tensor {name!r} has {axes} axes")
        shape = tuple([self._number(dt.uint64) for _ in range(axes)][::-1])
        return name, shape, self._number(dt.uint32), self._number(dt.uint64)

    def _alignment(self, metadata: Mapping[str, Value]) -> int:
        given = metadata.get("general.alignment")
        if not isinstance(given, tuple):
            return ALIGNMENT
        alignment = int(given[0]) if given[0].ndim == 0 else 0
        if not 0 < alignment <= MOST_ALIGNMENT:
            self._damaged(f"its alignment is {given[0]}")
        return alignment

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, start: int) -> dict[str, Loaded]:
        plain, blocks = _PLAIN.get(kind), BLOCKS.get(kind)
        if plain is not None:
            self._within(name, start, nbytes_of(shape, plain))
            return {name: self.contents.array(start, shape, plain)}
        if blocks is None:
            raise FileError(f"[{self.contents.function}] tensor {name!r} is of type {kind}, which is not known.")
        if not shape or shape[-1] % blocks.weights:
            self._damaged(f"tensor {name!r} of shape {shape} does not consist of blocks of {blocks.weights}")
        count = nbytes_of(shape, dt.uint8) // blocks.weights
        self._within(name, start, count * blocks.nbytes)
        rows = self.contents.bytes[start : start + count * blocks.nbytes].reshape(count, blocks.nbytes)
        if blocks.name not in STAY_PACKED:
            return {name: Loaded(to_buffer(to_half(blocks, rows)), shape, dt.float16)}
        return self._packed(name, shape, blocks, rows)

    def _packed(self, name: str, shape: tuple[int, ...], blocks: BlockType, rows: np.ndarray) -> dict[str, Any]:
        weights, scales, biases = repack(blocks, rows)
        prefix = name.removesuffix(".weight")
        groups = (*shape[:-1], shape[-1] // blocks.weights)
        return {
            name: Loaded(to_buffer(weights), (*shape[:-1], groups[-1] * weights.shape[1]), dt.uint32),
            f"{prefix}.scales": Loaded(to_buffer(scales), groups, dt.float16),
            f"{prefix}.biases": Loaded(to_buffer(biases), groups, dt.float16),
        }

    def _within(self, name: str, start: int, count: int) -> None:
        if count >= LARGEST or count > self.contents.size - start:
            self._damaged(
                f"tensor {name!r} goes on beyond its end at byte {self.contents.size}; perhaps a download is incomplete"
            )
