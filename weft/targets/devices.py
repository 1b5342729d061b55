"""The targets by their devices, and data on its way from one to another."""

from __future__ import annotations

from weft.graph.node import Kind
from weft.passes.target import Target
from weft.runtime.buffer import DeviceStorage
from weft.runtime.data import Buffer, extent, on_host
from weft.runtime.device import HOST, Device
from weft.targets.cpu.target import CPU

TARGETS: dict[Device, Target] = {HOST: CPU}


def find(device: Device) -> Target | None:
    """The target of a device; None if there is no such device."""
    return TARGETS.get(device)


def target_of(device: Device | None) -> Target:
    """The target of a device that there is; None is the host's CPU."""
    return CPU if device is None else TARGETS[device]


def moved(buffer: Buffer, kind: Kind, device: Device | None) -> Buffer:
    """The same elements on a device: where they lie if they are there already, else in a copy."""
    if buffer.device == device:
        return buffer
    shape = [int(n) for n in kind.shape]
    here = on_host(buffer, shape, kind.dtype.size)
    if device is None:
        return here
    low, nbytes = extent(shape, here.strides, kind.dtype.size)
    storage = target_of(device).allocate(nbytes)
    assert isinstance(storage, DeviceStorage)
    storage.write(storage.address, here.address + low, nbytes)
    return Buffer(storage, storage.address - low, here.strides)
