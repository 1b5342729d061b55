"""Random bits: a counter-based generator, so a random array is an elementwise function of positions and a key, and fuses like any other."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft import dtypes as dt
from weft.codegen.builder import Builder
from weft.dtypes import Dtype
from weft.graph.node import Node
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


class Threefry(Elementwise):
    """One of the two words that the key (first two operands) and the counter (next two) give; the last operand picks the second word."""

    dtypes = (dt.uint32,)
    cost = 100
    samples = tuple(
        Sample(
            lambda rng, dtype, shape=shape: [  # type: ignore[misc]
                *[rng.integers(0, 1 << 32, shape, dtype=np.uint32) for _ in range(4)], rng.random(shape) < 0.5,
            ],
            smooth=False,
            name=name,
        )
        for name, shape in {"matrix": (3, 37), "scalar": ()}.items()
    )  # fmt: skip

    def result(self, *dtypes: Dtype) -> Dtype:
        return dt.uint32

    def reference(self, *values: np.ndarray) -> np.ndarray:
        k0, k1, c0, c1, second = values
        x, y = threefry((k0, k1), (c0, c1), np.uint32)
        return np.where(second, y, x)

    def partials(self, out: Node, *xs: Node) -> tuple[Node | None, ...]:
        return (None,) * len(xs)

    def emit(self, b: Builder, *xs: Any) -> Any:
        k0, k1, c0, c1, second = xs
        x, y = threefry((k0, k1), (c0, c1), lambda n: b.like(k0, n))
        return b.select(second, y, x)
