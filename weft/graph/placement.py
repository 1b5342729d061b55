"""Where operations are computed: the device that a node is meant for, which is the one that was current when it was
made.

There is a default for the process, and each thread may choose another one for a while. As long as nothing was ever sent
to another device than the host's CPU, `USED` is empty, nodes have no device, and nobody asks.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from weft.runtime.device import HOST, Device
from weft.runtime.objects import MAKERS

USED: Final[list[Device]] = []
"""The devices, beside the host's CPU, that work was sent to."""

_DEFAULT: list[Device | None] = [None]


class _Chosen(threading.local):
    def __init__(self) -> None:
        self.devices: list[Device | None] = []


_CHOSEN = _Chosen()


def current() -> Device | None:
    """The device that this thread's operations are meant for."""
    chosen = _CHOSEN.devices
    return chosen[-1] if chosen else _DEFAULT[0]


def set_default(device: Device | None) -> None:
    """Send the work of all threads to a device, but for those that have chosen one."""
    _use(device)
    _DEFAULT[0] = device
    MAKERS.place(device)


def enter(device: Device | None) -> None:
    """This thread chooses a device. Machine code knows the default only, so nodes are made by Python meanwhile."""
    _use(device)
    MAKERS.watch(True)
    _CHOSEN.devices.append(device)


def leave() -> None:
    """This thread goes back to what it had chosen before."""
    _CHOSEN.devices.pop()
    MAKERS.watch(False)


def _use(device: Device | None) -> None:
    if device is not None and device not in USED:
        USED.append(device)


def placed(device: Device) -> Device | None:
    """A device as nodes and buffers have it."""
    return None if device == HOST else device


def device_of(node: Any) -> Device | None:
    """The device that a node is meant for."""
    return getattr(node, "device", None)
