"""Quantized blocks of GGUF files, as rows of bytes: unpacked to numbers, or repacked as Weft's quantized matrices.

A block holds 32 or 256 neighbouring weights: small integers and one or more scales in float16. Blocks with one scale
for 32 weights (and perhaps one offset) are what `quantized_matmul` takes with groups of 32, so these stay packed. All
others become float16, computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class BlockType:
    """How a type of elements is stored: `nbytes` for `weights` neighbours."""

    name: str
    weights: int
    nbytes: int
    unpack: Callable[[np.ndarray], np.ndarray]
    """Rows of bytes, one for each block, to rows of float32."""


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """A float16 at a byte of each block, as a column of float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(part: np.ndarray) -> np.ndarray:
    """Low halves of all bytes, then the high ones."""
    return np.concatenate([part & 15, part >> 4], axis=1)


def _bits(part: np.ndarray, count: int) -> np.ndarray:
    """The first `count` bits of each row, the lowest of each byte first."""
    return np.unpackbits(part, axis=1, bitorder="little")[:, :count]


def _unpack_q4_0(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * (_nibbles(b[:, 2:]).astype(np.float32) - 8)


def _unpack_q4_1(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * _nibbles(b[:, 4:]).astype(np.float32) + _half(b, 2)


def _unpack_q5_0(b: np.ndarray) -> np.ndarray:
    numbers = _nibbles(b[:, 6:]) | _bits(b[:, 2:6], 32) << 4
    return _half(b, 0) * (numbers.astype(np.float32) - 16)


def _unpack_q5_1(b: np.ndarray) -> np.ndarray:
    numbers = _nibbles(b[:, 8:]) | _bits(b[:, 4:8], 32) << 4
    return _half(b, 0) * numbers.astype(np.float32) + _half(b, 2)


def _unpack_q8_0(b: np.ndarray) -> np.ndarray:
    return _half(b, 0) * np.ascontiguousarray(b[:, 2:]).view(np.int8).astype(np.float32)


def _unpack_q8_k(b: np.ndarray) -> np.ndarray:
    scale = np.ascontiguousarray(b[:, :4]).view(np.float32)
    return scale * np.ascontiguousarray(b[:, 4:260]).view(np.int8).astype(np.float32)


def _crumbs(part: np.ndarray) -> np.ndarray:
    """64 bytes of four 2-bit numbers each: in either half of 32 bytes, first the lowest ones of all, and so on."""
    halves = part.reshape(-1, 2, 1, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8).reshape(1, 1, 4, 1)
    return (halves >> shifts & 3).reshape(-1, 256)


def _unpack_q2_k(b: np.ndarray) -> np.ndarray:
    numbers = _crumbs(b[:, 16:80]).reshape(-1, 16, 16).astype(np.float32)
    scales = _half(b, 80) * (b[:, :16] & 15).astype(np.float32)
    least = _half(b, 82) * (b[:, :16] >> 4).astype(np.float32)
    return (scales[:, :, None] * numbers - least[:, :, None]).reshape(-1, 256)


def _unpack_q3_k(b: np.ndarray) -> np.ndarray:
    high = b[:, None, :32] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1
    numbers = _crumbs(b[:, 32:96]).astype(np.int8) - (4 * (1 - high.reshape(-1, 256))).astype(np.int8)
    low, top = b[:, 96:104], b[:, 104:108]
    fours = np.concatenate([low & 15, low >> 4], axis=1)
    twos = np.concatenate([top >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    scales = _half(b, 108) * ((fours | twos << 4).astype(np.float32) - 32)
    return (scales[:, :, None] * numbers.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)


def _sixes(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight scales and eight offsets of six bits each, in twelve bytes."""
    a, b, c = part[:, :4], part[:, 4:8], part[:, 8:]
    scales = np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1)
    return scales.astype(np.float32), np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1).astype(np.float32)


def _paired_nibbles(part: np.ndarray) -> np.ndarray:
    """128 bytes of two 4-bit numbers: of each 32 bytes first all low halves, then all high ones."""
    quarters = part.reshape(-1, 4, 1, 32)
    return (quarters >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15).reshape(-1, 256)


def _scaled_by_sixes(b: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    scales, least = _sixes(b[:, 4:16])
    scales, least = _half(b, 0) * scales, _half(b, 2) * least
    found = scales[:, :, None] * numbers.reshape(-1, 8, 32).astype(np.float32) - least[:, :, None]
    return found.reshape(-1, 256)


def _unpack_q4_k(b: np.ndarray) -> np.ndarray:
    return _scaled_by_sixes(b, _paired_nibbles(b[:, 16:144]))


def _unpack_q5_k(b: np.ndarray) -> np.ndarray:
    high = b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1
    return _scaled_by_sixes(b, _paired_nibbles(b[:, 48:176]) | high.reshape(-1, 256) << 4)


def _unpack_q6_k(b: np.ndarray) -> np.ndarray:
    low = b[:, :128].reshape(-1, 2, 1, 64) >> np.array([0, 4], np.uint8).reshape(1, 1, 2, 1) & 15
    high = b[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8).reshape(1, 1, 4, 1) & 3
    numbers = (low.reshape(-1, 256) | high.reshape(-1, 256) << 4).astype(np.float32) - 32
    scales = _half(b, 208) * np.ascontiguousarray(b[:, 192:208]).view(np.int8).astype(np.float32)
    return (scales[:, :, None] * numbers.reshape(-1, 16, 16)).reshape(-1, 256)


def _unpack_bfloat16(b: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(b).view(np.uint16).astype(np.uint32) << 16).view(np.float32)


BLOCKS: Final[Mapping[int, BlockType]] = {
    2: BlockType("Q4_0", 32, 18, _unpack_q4_0),
    3: BlockType("Q4_1", 32, 20, _unpack_q4_1),
    6: BlockType("Q5_0", 32, 22, _unpack_q5_0),
    7: BlockType("Q5_1", 32, 24, _unpack_q5_1),
    8: BlockType("Q8_0", 32, 34, _unpack_q8_0),
    10: BlockType("Q2_K", 256, 84, _unpack_q2_k),
    11: BlockType("Q3_K", 256, 110, _unpack_q3_k),
    12: BlockType("Q4_K", 256, 144, _unpack_q4_k),
    13: BlockType("Q5_K", 256, 176, _unpack_q5_k),
    14: BlockType("Q6_K", 256, 210, _unpack_q6_k),
    15: BlockType("Q8_K", 256, 292, _unpack_q8_k),
    30: BlockType("BF16", 1, 2, _unpack_bfloat16),
}
"""By the number of the type in a file."""

STAY_PACKED: Final = frozenset(("Q4_0", "Q4_1", "Q8_0"))


def to_half(kind: BlockType, blocks: np.ndarray) -> np.ndarray:
    """The weights in float16; what is too large becomes infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return kind.unpack(blocks).astype(np.float16)


def repack(kind: BlockType, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(packed weights, scales, biases) of groups of 32: weight = scale * number + bias. One row for each block."""
    scales = np.ascontiguousarray(blocks[:, :2]).view(np.float16)
    with np.errstate(over="ignore", invalid="ignore"):
        if kind.name == "Q8_0":
            return np.ascontiguousarray(blocks[:, 2:] ^ 128).view("<u4"), scales, scales * np.float16(-128)
        if kind.name == "Q4_0":
            numbers, biases = _nibbles(blocks[:, 2:]), scales * np.float16(-8)
        else:
            numbers, biases = _nibbles(blocks[:, 4:]), np.ascontiguousarray(blocks[:, 2:4]).view(np.float16)
    packed = numbers[:, 0::2] | numbers[:, 1::2] << 4
    return np.ascontiguousarray(packed).view("<u4"), scales, biases
