"""Questions about element types: what two of them make together, and what kind of type one is."""

from __future__ import annotations

from functools import reduce
from typing import Any

from weft import dtypes as dt
from weft.core._common import array
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
    """Whether promotion leads from a dtype to another: an operation on both is done in `to`."""
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
