"""Devices and streams, with MLX's names. There is one device so far, the CPU, and work on it is done when `eval`
returns."""

from __future__ import annotations

import itertools
import os
import threading
from enum import Enum
from types import TracebackType
from typing import Any


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
        self.type, self.index = type, index

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DeviceType):
            return self.type is other and self.index == 0
        return isinstance(other, Device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))

    def __repr__(self) -> str:
        return f"Device({self.type.name}, {self.index})"


class Stream:
    """A queue of work on a device."""

    __slots__ = ("device", "index")

    def __init__(self, index: int, device: Device) -> None:
        self.index, self.device = index, device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.index, self.device) == (other.index, other.device)

    def __hash__(self) -> int:
        return hash((self.index, self.device))

    def __repr__(self) -> str:
        return f"Stream({self.device!r}, {self.index})"


class ThreadLocalStream:
    """A stream of its own in every thread that uses it."""

    __slots__ = ("_streams", "device", "index")

    def __init__(self, index: int, device: Device) -> None:
        self.index, self.device = index, device
        self._streams = threading.local()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThreadLocalStream) and (self.index, self.device) == (other.index, other.device)

    def __hash__(self) -> int:
        return hash((self.index, self.device))

    def __repr__(self) -> str:
        return f"ThreadLocalStream({self.device!r}, {self.index})"

    def here(self) -> Stream:
        """The stream of the calling thread."""
        if not hasattr(self._streams, "stream"):
            self._streams.stream = new_stream(self.device)
        return self._streams.stream  # type: ignore[no-any-return]


cpu, gpu = DeviceType.cpu, DeviceType.gpu
_CPU = Device(cpu)
_numbers = itertools.count()
_local_numbers = itertools.count()


class _Current(threading.local):
    def __init__(self) -> None:
        self.stream = Stream(0, _CPU)


next(_numbers)
_current = _Current()


def _device(name: str, given: Any) -> Device:
    device = Device(given) if isinstance(given, DeviceType) else given
    if not isinstance(device, Device):
        raise TypeError(f"[{name}] expected a device, for example cpu; got {given!r}.")
    if device != _CPU:
        raise ValueError(f"[{name}] {device} is not available: this build computes on the CPU.")
    return device


def default_device() -> Device:
    """The device that work goes to."""
    return _current.stream.device


def set_default_device(device: Device | DeviceType) -> None:
    """Send work to this device from now on."""
    _current.stream = Stream(0, _device("set_default_device", device))


def is_available(device: Device | DeviceType) -> bool:
    """Whether work can go to a device."""
    return (Device(device) if isinstance(device, DeviceType) else device) == _CPU


def device_count(device_type: DeviceType) -> int:
    """How many devices of a type there are."""
    return 1 if device_type is cpu else 0


def device_info(d: Device | DeviceType | None = None) -> dict[str, Any]:
    """What is known of a device, the default one if none is given."""
    _device("device_info", default_device() if d is None else d)
    return {
        "device_name": "cpu",
        "architecture": os.uname().machine,
        "memory_size": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def default_stream(device: Device | DeviceType) -> Stream:
    """The stream that work on a device goes to."""
    _device("default_stream", device)
    return _current.stream


def set_default_stream(stream: Stream) -> None:
    """Send work to this stream from now on."""
    if not isinstance(stream, Stream):
        raise TypeError(f"[set_default_stream] expected a stream, made by new_stream(device); got {stream!r}.")
    _device("set_default_stream", stream.device)
    _current.stream = stream


def new_stream(device: Device | DeviceType) -> Stream:
    """A new stream on a device."""
    return Stream(next(_numbers), _device("new_stream", device))


def new_thread_unsafe_stream(device: Device | DeviceType) -> Stream:
    """A new stream that any thread may use; all of ours are."""
    return new_stream(device)


def new_thread_local_stream(device: Device | DeviceType) -> ThreadLocalStream:
    """A stream that is another one in every thread."""
    return ThreadLocalStream(next(_local_numbers), _device("new_thread_local_stream", device))


def clear_streams() -> None:
    """Work goes to the first stream of the CPU again. Streams hold nothing that could be freed."""
    _current.stream = Stream(0, _CPU)


class StreamContext:
    """`with stream(s): …` sends the work of the block to a stream or device."""

    def __init__(self, s: Stream | ThreadLocalStream | Device | DeviceType) -> None:
        found = s.here() if isinstance(s, ThreadLocalStream) else s
        self._stream = found if isinstance(found, Stream) else Stream(0, _device("stream", found))
        self._before: list[Stream] = []

    def __enter__(self) -> StreamContext:
        self._before.append(_current.stream)
        _current.stream = self._stream
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        _current.stream = self._before.pop()


stream = StreamContext
