"""`mx.cuda`: whether work can go to a GPU of NVIDIA's."""

from __future__ import annotations

from weft.core.devices import gpu
from weft.core.devices import is_available as _available


def is_available() -> bool:
    """Whether there is a GPU that work can go to."""
    return _available(gpu)
