"""`mx.metal`: there is no Metal on Linux. The functions that MLX keeps here act on Weft's own memory."""

from __future__ import annotations

from typing import Any

from weft.runtime.buffer import (
    clear_cache,
    get_active_memory,
    get_cache_memory,
    get_peak_memory,
    reset_peak_memory,
    set_cache_limit,
    set_memory_limit,
    set_wired_limit,
)

__all__ = [
    "clear_cache", "device_info", "get_active_memory", "get_cache_memory", "get_peak_memory", "is_available",
    "reset_peak_memory", "set_cache_limit", "set_memory_limit", "set_wired_limit", "start_capture", "stop_capture",
]  # fmt: skip


def is_available() -> bool:
    """Whether Metal can be used: no.

    >>> metal.is_available()
    False
    """
    return False


def device_info() -> dict[str, Any]:
    """What is known of the Metal device: nothing. `mx.device_info()` tells of the device that is used."""
    return {}


def start_capture(path: str) -> None:
    """Record what Metal does; without Metal there is nothing to record (`weft explain` shows what a program does)."""


def stop_capture() -> None:
    """End what `start_capture` began."""
