"""PyTensor's random generators and Weft's keys.

A generator of NumPy is what PyTensor keeps, copies, seeds and stores. A program of Weft draws from a key. So a
generator that comes in is taken for its key, and the key that comes out is a generator again: one that the other back
ends can go on with.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


class KeyGenerator(np.random.Generator):
    """The generator that a key stands for."""

    key: np.ndarray

    def __init__(self, key: np.ndarray) -> None:
        words = [int(word) for word in key]
        super().__init__(np.random.Philox(key=words[0] | words[1] << 32))
        self.key = key
        self._drawn = self.bit_generator.state


def key_of(generator: Any) -> np.ndarray:
    """The key that a generator stands for: two words that depend on all of its state."""
    if isinstance(generator, np.ndarray):
        return generator
    if isinstance(generator, KeyGenerator) and _same(generator.bit_generator.state, generator._drawn):
        return generator.key
    text = repr(sorted(_plain(generator.bit_generator.state).items()))
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return np.frombuffer(digest, np.uint32).copy()


def _same(a: Any, b: Any) -> bool:
    return repr(_plain(a)) == repr(_plain(b))


def _plain(state: Any) -> Any:
    """A state as numbers and texts, which look alike if they are alike."""
    if isinstance(state, dict):
        return {name: _plain(value) for name, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state
