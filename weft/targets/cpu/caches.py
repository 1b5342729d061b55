"""The caches of the processor, as the system describes them. They decide speed only."""

from __future__ import annotations

import functools
import os
from typing import Final

_PLACES: Final = "/sys/devices/system/cpu/cpu0/cache"
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@functools.cache
def cache_bytes(level: int) -> int:
    """The bytes that the cache of a level has for data, as the first core sees it; 0 if the system does not say."""
    try:
        for index in sorted(name for name in os.listdir(_PLACES) if name.startswith("index")):
            found, kind, size = (_read(index, name) for name in ("level", "type", "size"))
            if found == str(level) and kind != "Instruction":
                return int(size[:-1]) * _UNITS[size[-1]] if size[-1:] in _UNITS else int(size)
    except (OSError, ValueError):
        pass
    return 0


def _read(index: str, name: str) -> str:
    with open(f"{_PLACES}/{index}/{name}") as file:
        return file.read().strip()
