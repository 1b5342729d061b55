"""The targets by their devices."""

from __future__ import annotations

import functools

from weft.passes.target import Target
from weft.runtime.device import HOST, Device, DeviceType
from weft.targets.cpu.target import CPU

TARGETS: dict[Device, Target] = {HOST: CPU}
"""Those that have been looked for: GPUs are when one is asked for the first time."""


@functools.cache
def look_for_gpus() -> None:
    """Make the GPUs of this machine known."""
    from weft.targets.cuda.target import cuda_targets  # late: most processes have no use for it

    for target in cuda_targets():
        TARGETS.setdefault(target.device, target)


def find(device: Device) -> Target | None:
    """The target of a device; None if there is no such device."""
    if device.type is DeviceType.gpu and device not in TARGETS:
        look_for_gpus()
    return TARGETS.get(device)


def target_of(device: Device | None) -> Target:
    """The target of a device that there is; None is the host's CPU."""
    return CPU if device is None else TARGETS[device]
