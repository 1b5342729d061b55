"""Devices and streams, with MLX's names: operations go to the device that is current when they are made, wherever their
operands lie. Work is done when `eval` returns, so streams of one device differ in name only."""

from __future__ import annotations

import itertools
import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from weft.config import config
from weft.errors import ConfigError
from weft.graph import placement
from weft.lazy import lazy
from weft.llvm.host import cpu_name
from weft.runtime.device import HOST, Device, DeviceType

if TYPE_CHECKING:
    from weft import targets
else:
    targets = lazy("weft.targets")


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
_numbers = itertools.count(1)
_local_numbers = itertools.count()


class _Current(threading.local):
    def __init__(self) -> None:
        self.streams: dict[Device, Stream] = {}

    def of(self, device: Device) -> Stream:
        """This thread's stream on a device."""
        return self.streams.setdefault(device, Stream(0, device))


_current = _Current()


def _device(name: str, given: Any) -> Device:
    """The device that is meant, if there is one."""
    device = Device(given) if isinstance(given, DeviceType) else given
    if not isinstance(device, Device):
        raise TypeError(f"[{name}] expected a device, for example cpu; got {given!r}.")
    found = targets.find(device)
    if found is None:
        there = ", ".join(map(repr, targets.TARGETS))
        raise ValueError(f"[{name}] {device} is not available; this machine has {there}.")
    return found.device


def default_device() -> Device:
    """The device that work goes to."""
    return placement.current() or HOST


def set_default_device(device: Device | DeviceType) -> None:
    """Send work to this device from now on."""
    placement.set_default(placement.placed(_device("set_default_device", device)))


def is_available(device: Device | DeviceType) -> bool:
    """Whether work can go to a device."""
    meant = Device(device) if isinstance(device, DeviceType) else device
    if not isinstance(meant, Device):
        raise TypeError(f"[is_available] expected a device, for example gpu; got {type(device).__name__}.")
    return targets.find(meant) is not None


def device_count(device_type: DeviceType) -> int:
    """How many devices of a type there are."""
    if device_type is gpu:
        targets.look_for_gpus()
    return sum(device.type is device_type for device in targets.TARGETS)


def device_info(d: Device | DeviceType | None = None) -> dict[str, Any]:
    """What is known of a device, the default one if none is given; nothing of one that is not there."""
    device = default_device() if d is None else Device(d) if isinstance(d, DeviceType) else d
    if isinstance(device, Device) and targets.find(device) is None:
        return {}
    device = _device("device_info", device)
    if device != HOST:
        target = targets.TARGETS[device]
        return {"device_name": target.name, **target.facts()}
    return {
        "device_name": cpu_name(),
        "architecture": os.uname().machine,
        "memory_size": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def default_stream(device: Device | DeviceType) -> Stream:
    """The stream that work on a device goes to."""
    return _current.of(_device("default_stream", device))


def set_default_stream(stream: Stream) -> None:
    """Let this be the stream of its device, for this thread."""
    if not isinstance(stream, Stream):
        raise TypeError(f"[set_default_stream] expected a stream, made by new_stream(device); got {stream!r}.")
    _current.streams[_device("set_default_stream", stream.device)] = stream


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
    """Work goes to the first streams again. Streams hold nothing that could be freed."""
    _current.streams.clear()


class StreamContext:
    """`with stream(s): …` sends the work of the block to a stream or device."""

    def __init__(self, s: Stream | ThreadLocalStream | Device | DeviceType) -> None:
        found = s.here() if isinstance(s, ThreadLocalStream) else s
        self._stream = found if isinstance(found, Stream) else None
        self._device = _device("stream", found.device if isinstance(found, Stream) else found)
        self._before: list[tuple[Stream, bool]] = []

    def __enter__(self) -> StreamContext:
        place = placement.placed(self._device)
        chooses = place != placement.current() or bool(placement.USED)
        self._before.append((_current.of(self._device), chooses))
        if self._stream is not None:
            _current.streams[self._device] = self._stream
        if chooses:
            placement.enter(place)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        stream, chooses = self._before.pop()
        if chooses:
            placement.leave()
        _current.streams[self._device] = stream


stream = StreamContext

if config.device == "gpu":
    if not is_available(gpu):
        raise ConfigError("WEFT_DEVICE is 'gpu'; this machine has no GPU that Weft can use (see docs/gpu.md).")
    set_default_device(gpu)
