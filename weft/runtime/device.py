"""What a device is. Wherever something may lie or be computed, None stands for the host's own CPU: nearly always the
answer, and the one that costs nothing to give."""

from __future__ import annotations

from enum import Enum
from typing import Final


class DeviceType(Enum):
    """Kinds of devices."""

    cpu = 0
    gpu = 1

    def __eq__(self, other: object) -> bool:
        return (other.type is self and other.index == 0) if isinstance(other, Device) else self is other

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return str(self)


class Device:
    """A device: its type and its number among those of that type."""

    __slots__ = ("index", "type")

    def __init__(self, type: DeviceType, index: int = 0) -> None:
        if not isinstance(type, DeviceType) or not isinstance(index, int):
            raise TypeError(f"[Device] takes a type, cpu or gpu, and a number; got {type!r} and {index!r}.")
        self.type, self.index = type, index

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DeviceType):
            return self.type is other and self.index == 0
        return isinstance(other, Device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __repr__(self) -> str:
        return f"Device({self.type.name}, {self.index})"


HOST: Final = Device(DeviceType.cpu)
