"""Random bits: a counter-based generator, so a random array is an elementwise function of positions and a key, and
fuses like any other."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.llvm.builder import Builder
from weft.primitives.base import Elementwise, Sample

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _rotate(x: Any, by: int) -> Any:
    return (x << by) | (x >> (32 - by))


def threefry(key: tuple[Any, Any], count: tuple[Any, Any], number: Any) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds on anything with wrapping 32-bit arithmetic; `number` makes its constants."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ number(0x1BD11BDA))
    x, y = count[0] + keys[0], count[1] + keys[1]
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            x = x + y
            y = _rotate(y, rotation) ^ x
        x = x + keys[(block + 1) % 3]
        y = y + keys[(block + 2) % 3] + number(block + 1)
    return x, y


def _sample(name: str, shape: tuple[int, ...]) -> Sample:
    def operands(rng: np.random.Generator, dtype: Dtype) -> list[np.ndarray]:
        total = rng.integers(1, 10, shape, dtype=np.uint32)
        keys = [rng.integers(0, 1 << 32, shape, dtype=np.uint32) for _ in range(2)]
        return [*keys, rng.integers(0, total, dtype=np.uint32), total]

    return Sample(operands, smooth=False, name=name)


class Threefry(Elementwise):
    """Word number `place` of the stream of `total` random words of a key. Operands: the two words of the key, place,
    total.

    The first half of the stream are the first words that the generator gives for the counters (i, i + half), the second
    half are the second ones. The word in the middle of an odd stream is the first one for (half, 0).
    """

    dtypes = (dt.uint32,)
    cost = 100
    samples = (_sample("matrix", (3, 37)), _sample("scalar", ()))

    def result(self, *dtypes: Dtype) -> Dtype:
        return dt.uint32

    def reference(self, *values: np.ndarray) -> np.ndarray:
        k0, k1, place, total = values
        half = total >> np.uint32(1)
        apart = total - half
        second = place >= apart
        low = np.where(second, place - apart, place)
        high = np.where(low >= half, np.uint32(0), low + apart)
        return np.where(second, *threefry((k0, k1), (low, high), np.uint32)[::-1])

    def partials(self, out: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (None,) * len(xs)

    def emit(self, b: Builder, *xs: Any) -> Any:
        k0, k1, place, total = xs
        half = total >> 1
        apart = total - half
        second = place >= apart
        low = b.choose(second, place - apart, place)
        high = b.choose(low >= half, 0, low + apart)
        first, other = threefry((k0, k1), (low, high), lambda n: b.like(k0, n))
        return b.select(second, other, first)
