"""The targets by their devices."""

from __future__ import annotations

from weft.passes.target import Target
from weft.runtime.device import HOST, Device
from weft.targets.cpu.target import CPU

TARGETS: dict[Device, Target] = {HOST: CPU}


def find(device: Device) -> Target | None:
    """The target of a device; None if there is no such device."""
    return TARGETS.get(device)


def target_of(device: Device | None) -> Target:
    """The target of a device that there is; None is the host's CPU."""
    return CPU if device is None else TARGETS[device]
