"""Questions about element types: what two of them make together, what kind of type one is, and which there are (the
Python array API's inspection)."""

from __future__ import annotations

from functools import reduce
from typing import Any

from weft import dtypes as dt
from weft.core._common import array
from weft.core.devices import Device, cpu, default_device, device_count, gpu
from weft.dtypes import Dtype

_KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f",
    "complex floating": "c", "numeric": "iufc",
}  # fmt: skip
"""The Python array API's names of kinds, and the letters of the dtypes in them."""


def _dtype(name: str, value: Any) -> Dtype:
    if isinstance(value, array):
        return value.dtype
    if isinstance(value, Dtype):
        return value
    raise ValueError(f"[{name}] takes arrays and dtypes; got {value!r}.")


def result_type(*arrays_and_dtypes: array | Dtype) -> Dtype:
    """The dtype in which an operation on these arrays and dtypes is done.

    >>> result_type(int32, float16)
    weft.core.float16
    """
    if not arrays_and_dtypes:
        raise ValueError("[result_type] needs at least one array or dtype.")
    return reduce(dt.promote, (_dtype("result_type", value) for value in arrays_and_dtypes))


def can_cast(from_: array | Dtype, to: Dtype) -> bool:
    """Whether promotion leads from a dtype to another: an operation on both is done in `to`.

    >>> can_cast(int32, float32), can_cast(float32, int32)
    (True, False)
    """
    if not isinstance(to, Dtype):
        raise TypeError(f"[can_cast] the second argument is a dtype; got {to!r}.")
    return dt.promote(_dtype("can_cast", from_), to) is to


def isdtype(dtype: Dtype, kind: Dtype | str | tuple[Dtype | str, ...]) -> bool:
    """Whether a dtype is another, or of a kind ("bool", "integral", "real floating", "numeric", …), or any of several.

    >>> isdtype(float32, ("integral", "real floating"))
    True
    """
    if not isinstance(dtype, Dtype) or kind is None:
        raise TypeError(f"[isdtype] takes a dtype and a kind; got {dtype!r} and {kind!r}.")
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, Dtype):
        return dtype is kind
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(
            f"[isdtype] kind is a dtype, one of {', '.join(map(repr, _KINDS))}, or a tuple of them; got {kind!r}."
        )
    return dtype.kind in _KINDS[kind]


class ArrayNamespaceInfo:
    """What the Python array API asks a namespace about itself."""

    def capabilities(self) -> dict[str, bool | int]:
        """Boolean masks may be read and written; their sizes are found by evaluating them."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        return default_device()

    def devices(self) -> tuple[Device, ...]:
        return tuple(Device(kind, i) for kind in (cpu, gpu) for i in range(device_count(kind)))

    def default_dtypes(self, *, device: Device | None = None) -> dict[str, Dtype]:
        """The dtypes of Python's numbers, and of indices."""
        _check_device(device)
        return {
            "real floating": dt.float32,
            "complex floating": dt.complex64,
            "integral": dt.int32,
            "indexing": dt.int32,
        }

    def dtypes(self, *, device: Device | None = None, kind: str | tuple[str, ...] | None = None) -> dict[str, Dtype]:
        """The dtypes that the Python array API knows, by name; those of a kind (or of several) if one is given."""
        _check_device(device)
        known = [d for d in dt.ALL if d not in dt.HALVES]
        return {d.name: d for d in known if kind is None or isdtype(d, kind)}


def _check_device(device: Any) -> None:
    if device is not None and not isinstance(device, Device):
        raise TypeError(f"[__array_namespace_info__] a device is wanted; got {device!r}.")


def __array_namespace_info__() -> ArrayNamespaceInfo:
    """What the Python array API wants to know about this namespace: capabilities, devices, dtypes."""
    return ArrayNamespaceInfo()
