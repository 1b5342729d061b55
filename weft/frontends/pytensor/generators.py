"""PyTensor's random generators and Weft's keys.

A generator of NumPy is what PyTensor keeps, copies, seeds and stores. A program of Weft draws from a key. So a
generator that comes in is taken for its key, and the key that comes out is a generator again: one that the other back
ends can go on with.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np


def generator_of(key: np.ndarray) -> np.random.Generator:
    """A generator that stands for a key."""
    return np.random.Generator(np.random.Philox(key=int(key[0]) | int(key[1]) << 32))


def key_of(generator: Any) -> np.ndarray:
    """The key that a generator stands for: its own, or two words that depend on all of its state."""
    if isinstance(generator, np.ndarray):
        return generator
    state = generator.bit_generator.state
    if state["bit_generator"] == "Philox" and _is_fresh(state):
        word = int(state["state"]["key"][0])
        return np.array([word & 0xFFFFFFFF, word >> 32], np.uint32)
    text = repr(_plain(state))
    return np.frombuffer(hashlib.blake2b(text.encode(), digest_size=8).digest(), np.uint32).copy()


def _is_fresh(state: Any) -> bool:
    """Whether nothing was drawn yet, and the key is of 64 bits."""
    return (
        not state["state"]["counter"].any()
        and not state["state"]["key"][1]
        and state["buffer_pos"] == 4
        and not state["has_uint32"]
    )


def _plain(state: Any) -> Any:
    """A state as numbers and texts, which look alike if they are alike."""
    if isinstance(state, dict):
        return [(name, _plain(value)) for name, value in sorted(state.items())]
    return state.tolist() if isinstance(state, np.ndarray) else state
