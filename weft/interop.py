"""The border between Weft arrays and the rest of Python: values come in, and go out, as NumPy arrays with a `Dtype`.

Nothing here knows the array class; it calls these functions. `as_numpy` is what `array(value, dtype)` accepts, `borrow`
the same without a copy where that is possible, `cast` the one place where NumPy values change their dtype, and the rest
are the protocols: DLPack both ways, the buffer protocol, `tolist`. NumPy makes and takes every DLPack capsule, so that
native code keeps the lifetimes, even at shutdown; we only rename bfloat16, which NumPy does not know.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from array import array as packed
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NoReturn

import numpy as np

from weft import dtypes
from weft.dtypes import Dtype
from weft.errors import NotArrayLike
from weft.lazy import lazy

if TYPE_CHECKING:
    import ml_dtypes
else:
    ml_dtypes = lazy("ml_dtypes")

MAX_DIMS: Final = 64  # NumPy's own limit

_SCALARS: Final = frozenset({bool, int, float, complex})
_SEQUENCES: Final = frozenset({list, tuple})


# ---------------------------------------------------------------------------------------------------------------------
# Values in.


def as_numpy(value: Any, dtype: Dtype | None = None) -> tuple[np.ndarray, Dtype]:
    """What `array(value, dtype)` holds: a C-contiguous array that shares no memory with `value`, and its dtype.

    Python numbers are bool, int32 (int64 if they need it), float32 and complex64. NumPy's float64 and complex128 become
    float32 and complex64, and other types stay what they are. `dtype` overrides all that; see `cast` for how.
    """
    kind = type(value)
    direct = _DIRECT.get((kind, dtype))
    if direct is not None and direct[0] <= value <= direct[1]:
        return np.array(value, direct[2].np), direct[2]
    if (kind is list or kind is tuple) and dtype is None:  # only to be quick: `borrow` knows lists too
        return _from_nested(value, None, 0)
    array, dtype, owner = borrow(value, dtype)
    if owner is not None or not array.flags.c_contiguous:
        array = np.array(array, order="C", copy=True)
    return array, dtype


def borrow(value: Any, dtype: Dtype | None = None) -> tuple[np.ndarray, Dtype, object | None]:
    """As `as_numpy`, but without a copy where none is needed: (array, dtype, owner of the memory or None if it is new).

    A borrowed array has any strides, may be read-only, and is aligned to its elements; it keeps its owner alive.
    """
    if dtype is not None and not isinstance(dtype, Dtype):
        raise TypeError(f"[array] dtype must be a Dtype such as float32, got {dtype!r} of type {type(dtype).__name__}.")
    if isinstance(value, (np.ndarray, np.generic)):  # first, since some NumPy scalars are Python numbers as well
        source, own = np.asarray(value), None
    elif isinstance(value, (list, tuple)):
        return *_from_nested(value, dtype, 0), None
    elif isinstance(value, (int, float, complex)):
        return *_from_scalar(value, dtype), None
    else:
        source, own = _source(value)
    target = dtype or own or _default_dtype(source.dtype)
    array = cast(source, target)
    if array is not source:
        return array, target, None
    if target is dtypes.bool_ and truths(array) is not array:
        return truths(array), target, None
    if not array.flags.aligned:
        return array.copy(), target, None
    return array, target, value


def memory_of(value: Any) -> tuple[np.ndarray, Dtype]:
    """The elements of another library's array where they lie (NumPy, DLPack, the buffer protocol), and their own dtype:
    float64 stays float64. Python's numbers and lists have no such memory."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value), dtypes.from_numpy(value.dtype)
    if isinstance(value, (bool, int, float, complex, list, tuple, str)):
        _refuse(value)
    source, own = _source(value)
    return source, own or dtypes.from_numpy(source.dtype)


def truths(array: np.ndarray) -> np.ndarray:
    """The bools of any memory as bytes 0 and 1, which is what NumPy relies on: itself, if it has no others."""
    raw = array.view(np.uint8)
    strange = raw.item() > 1 if raw.size == 1 else raw.size and raw.max() > 1  # a single one is asked for often
    return np.asarray(raw != 0) if strange else array


def _direct_table() -> dict[tuple[type, Dtype | None], tuple[Any, Any, Dtype]]:
    """(type of a Python number, dtype) -> (lowest, highest, dtype): where NumPy converts it as we want."""
    table: dict[tuple[type, Dtype | None], tuple[Any, Any, Dtype]] = {}
    for dtype in dtypes.INTEGERS:
        info = np.iinfo(dtype.np)
        table[int, dtype] = (int(info.min), int(info.max), dtype)
    for dtype in (dtypes.float16, dtypes.float32, dtypes.float64):
        top = float(np.finfo(dtype.np).max)
        table[float, dtype] = (-top, top, dtype)
        exact = int(min(top, 2.0**53))  # an int passes through a double: beyond 2**53 it would be rounded twice
        table[int, dtype] = (-exact, exact, dtype)
    table[int, dtypes.bfloat16] = (-(2**24), 2**24, dtypes.bfloat16)  # and through a float here
    for dtype in dtypes.ALL:
        table[bool, dtype] = (False, True, dtype)
    for kind in (bool, int, float):
        table[kind, None] = table[kind, dtypes.default_of(kind)]
    return table


_DIRECT: Final = _direct_table()


def _from_scalar(value: Any, dtype: Dtype | None) -> tuple[np.ndarray, Dtype]:
    """A number that needs more than the direct way: a complex one, an extreme one, an instance of a subclass."""
    kind = next(base for base in (bool, int, float, complex) if isinstance(value, base))
    if kind is float and dtype is dtypes.bfloat16:
        return np.array(_bfloat16_bits(value), np.uint16).view(dtypes.bfloat16.np), dtype
    array, dtype = _from_scalars([kind(value)], {kind}, dtype)
    return array.reshape(()), dtype


def _bfloat16_bits(value: float) -> int:
    """The bfloat16 nearest to a Python float. Scalars are common, and `cast` is slow on one element."""
    try:
        image = struct.pack("f", value)
    except OverflowError:  # beyond float32: the nearest bfloat16 is infinite
        image = struct.pack("f", math.copysign(math.inf, value))
    (near,), (bits,) = struct.unpack("f", image), struct.unpack("I", image)
    if near != near:
        return bits >> 16 | 0x40  # a quiet NaN of the same sign
    if near != value and not math.isinf(near):
        bits = bits - (abs(near) > abs(value)) | 1  # to odd, so that the next rounding is the only one
    return bits + 0x7FFF + (bits >> 16 & 1) >> 16


def _source(value: Any) -> tuple[np.ndarray, Dtype | None]:
    """The memory behind an object that is neither number nor list, and its dtype if the object states one of ours."""
    own = getattr(value, "dtype", None)
    if isinstance(own, Dtype):
        array = np.asarray(value.__array__())
        return (array if array.dtype == own.np else array.view(own.np)), own
    if hasattr(value, "__mlx_array__"):
        array, own, _ = borrow(value.__mlx_array__())
        return array, own
    if hasattr(value, "__dlpack__"):
        return import_dlpack(value)[0], None
    try:
        view = memoryview(value)
    except TypeError:
        if any(hasattr(value, name) for name in ("__array__", "__array_interface__", "__array_struct__")):
            return np.asarray(value), None
        _refuse(value)
    try:
        return np.asarray(view), None
    except (ValueError, RuntimeError) as error:
        raise TypeError(f"[array] a buffer with items of format {view.format!r} holds no known numbers.") from error


def _refuse(value: Any, where: str = "") -> NoReturn:
    """Says that something cannot become an array, and what to do if it is plain."""
    name = type(value).__name__
    hint = " Pass a list: list(...)." if hasattr(value, "__iter__") and not isinstance(value, (str, dict)) else ""
    message = f"[array] cannot make an array of {where}type {name}: it is no number, list, tuple, or array.{hint}"
    raise ValueError(message) if where else NotArrayLike(message)


def _default_dtype(dtype: np.dtype) -> Dtype:
    """The dtype that elements from outside get when none is asked for."""
    found = _DEFAULTS.get(dtype)
    if found is not None:
        return found
    if dtype.kind in "fc" and dtype.itemsize >= 8:  # long double
        return dtypes.float32 if dtype.kind == "f" else dtypes.complex64
    try:
        own = dtypes.from_numpy(dtype)  # bfloat16, or another byte order
        return _DEFAULTS.get(own.np, own)
    except TypeError as error:
        raise TypeError(f"[array] {error}") from None


_DEFAULTS: Final = {d.np: d for d in dtypes.ALL if d is not dtypes.bfloat16} | {
    dtypes.float64.np: dtypes.float32,
    dtypes.complex128.np: dtypes.complex64,
}


# ---------------------------------------------------------------------------------------------------------------------
# Lists.


def unnest(value: Sequence[Any]) -> tuple[tuple[int, ...], list[Any]]:
    """Peels nested lists and tuples while each level holds nothing else: (shape of what was peeled, what is inside).

    What is inside are numbers, or items of which at least one is an array (or should not be there): those are to be
    converted one by one and stacked.

    >>> unnest([[1, 2], (3, 4)])
    ((2, 2), [1, 2, 3, 4])
    """
    shape, items, _ = _peel(value)
    return shape, list(items)


def _peel(value: Sequence[Any]) -> tuple[tuple[int, ...], Sequence[Any], set[type]]:
    """As `unnest`, with the types of the items."""
    shape, level = [len(value)], value
    while level:
        kinds = set(map(type, level))
        if not kinds <= _SEQUENCES:
            return tuple(shape), level, kinds
        lengths = set(map(len, level))
        if len(lengths) > 1:
            _ragged_lengths(level, shape)
        if len(shape) == MAX_DIMS:
            raise ValueError(f"[array] lists nest deeper than {MAX_DIMS} levels; does one contain itself?")
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    return tuple(shape), level, set()


def _from_nested(value: Sequence[Any], dtype: Dtype | None, depth: int) -> tuple[np.ndarray, Dtype]:
    """The array of a list or tuple."""
    shape, items, kinds = _peel(value)
    if not kinds <= _SCALARS:
        return _from_items(shape, items, dtype, depth + len(shape))
    array, dtype = _from_scalars(items, kinds, dtype)
    return (array if len(shape) == 1 else array.reshape(shape)), dtype


def _from_items(
    shape: tuple[int, ...], items: Sequence[Any], dtype: Dtype | None, depth: int
) -> tuple[np.ndarray, Dtype]:
    """The array of a list in which some items are arrays, or lists with arrays in them, or NumPy scalars."""
    if depth > MAX_DIMS:
        raise ValueError(f"[array] lists nest deeper than {MAX_DIMS} levels; does one contain itself?")
    parts: list[tuple[np.ndarray, Dtype]] = []
    for index, item in enumerate(items):
        part = _from_item(item, dtype, depth, shape, index)
        if parts and part[0].shape != parts[0][0].shape:
            raise ValueError(
                f"[array] element {_place(index, shape)} has shape {part[0].shape}, element {_place(0, shape)} "
                f"has shape {parts[0][0].shape}; all must have the same shape."
            )
        parts.append(part)
    common = dtype or parts[0][1]
    if dtype is None:
        for _, own in parts:
            common = dtypes.promote(common, own)
    out = np.empty((len(parts), *parts[0][0].shape), common.np)
    for index, (array, _) in enumerate(parts):
        out[index] = cast(array, common)
    return out.reshape(shape + out.shape[1:]), common


def _from_item(
    item: Any, dtype: Dtype | None, depth: int, shape: tuple[int, ...], index: int
) -> tuple[np.ndarray, Dtype]:
    if isinstance(item, (list, tuple)):
        return _from_nested(item, dtype, depth)
    if item is None or isinstance(item, str):
        _refuse(item, f"element {_place(index, shape)} of ")
    return borrow(item, dtype)[:2]


def _from_scalars(flat: Sequence[Any], kinds: set[type], dtype: Dtype | None) -> tuple[np.ndarray, Dtype]:
    """The one-dimensional array of Python numbers whose types are `kinds`."""
    if not flat:
        dtype = dtype or dtypes.float32
        return np.zeros(0, dtype.np), dtype
    try:
        if dtype is None:
            return _default_scalars(flat, kinds)
        if complex in kinds:
            return cast(np.array(flat, np.complex128), dtype), dtype
        if float in kinds:
            return cast(np.array(flat, np.float64), dtype), dtype
        return cast(_integers(flat, dtype) if int in kinds else np.array(flat, np.bool_), dtype), dtype
    except OverflowError:
        _too_large(flat, dtype)


def _default_scalars(flat: Sequence[Any], kinds: set[type]) -> tuple[np.ndarray, Dtype]:
    """As `_from_scalars`, without a dtype to go by. The array module converts as C does, and warns of nothing."""
    if complex in kinds:
        return cast(np.array(flat, np.complex128), dtypes.complex64), dtypes.complex64
    if float in kinds:
        return np.frombuffer(packed("f", flat), np.float32), dtypes.float32
    if int not in kinds:
        return np.array(flat, np.bool_), dtypes.bool_
    try:
        return np.frombuffer(packed("i", flat), np.int32), dtypes.int32
    except OverflowError:
        return np.frombuffer(packed("q", flat), np.int64), dtypes.int64


def _integers(flat: Sequence[int], dtype: Dtype) -> np.ndarray:
    """Python ints on their way to `dtype`: as int64, or what else can hold them without loss."""
    try:
        return np.frombuffer(packed("q", flat), np.int64)
    except OverflowError:
        if dtype.is_bool:
            return np.array([value != 0 for value in flat])
        if dtype.is_inexact:
            return np.array(flat, np.float64)
        if min(flat) < -(2**63) or max(flat) >= 2**64:
            raise
        return np.array([value & (2**64 - 1) for value in flat], np.uint64)  # the same modulo 2**64


def _too_large(flat: Sequence[Any], dtype: Dtype | None) -> NoReturn:
    """Names the int that does not fit."""
    if dtype is not None and dtype.is_integer:
        worst = next(v for v in flat if isinstance(v, int) and not -(2**63) <= v < 2**64)
        raise OverflowError(f"[array] {worst} does not fit in 64 bits; it cannot become {dtype.name}.") from None
    if dtype is None and not any(isinstance(v, (float, complex)) for v in flat):
        worst = next(v for v in flat if not -(2**63) <= v < 2**63)
        raise OverflowError(f"[array] {worst} does not fit in int64; pass dtype=uint64 or a float type.") from None
    raise OverflowError("[array] an int among the values is too large for a float; is infinity meant?") from None


def _place(index: int, shape: Sequence[int]) -> str:
    """Where the item with this flat index stands, as one would write it: [1][2]."""
    return "".join([f"[{int(i)}]" for i in np.unravel_index(index, tuple(shape))])


def _ragged_lengths(level: Sequence[Any], shape: Sequence[int]) -> NoReturn:
    """Points at the first list that is longer or shorter than the first of its level."""
    expected = len(level[0])
    index = next(i for i, row in enumerate(level) if len(row) != expected)
    first, odd = ("row 0", f"row {index}") if len(shape) == 1 else (_place(0, shape), _place(index, shape))
    raise ValueError(
        f"[array] {odd} has {len(level[index])} elements, {first} has {expected}; "
        f"lists at the same depth must have the same length."
    )


# ---------------------------------------------------------------------------------------------------------------------
# Conversion between dtypes.


def cast(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """`values` (any NumPy or ml_dtypes numbers) in `dtype`; `values` itself if that is what it is. Never warns.

    - To bool: whether it is not zero. From complex to real: the real part.
    - Between integers: modulo 2**bits. To floats: rounded once, to nearest even; too large is infinite.
    - From floats to integers: towards zero, as in C. Where C leaves the result open, the whole part is first saturated
      to int32 (for int32 and all 8- and 16-bit types) or int64 (for uint32 and int64), then taken modulo 2**bits, so
      that -1.0 is 255 as uint8. uint64 saturates above its range and is int64's result below zero. NaN is 0.
    """
    if values.dtype == dtype.np:
        return values
    source = _plain(values)
    if dtype.is_bool:
        return np.asarray(source != 0)
    if source.dtype.kind == "c" and not dtype.is_complex:
        source = source.real
    with np.errstate(all="ignore"):
        if source.dtype.kind == "f" and dtype.is_integer:
            return np.asarray(_truncate(source.astype(np.float64), dtype))  # NumPy makes scalars of 0-d results
        if dtype is dtypes.bfloat16:
            return np.asarray(_to_bfloat16(source))
        return source.astype(dtype.np)


def _plain(values: np.ndarray) -> np.ndarray:
    """The values in one of NumPy's own number types, exactly, in native byte order."""
    dtype = values.dtype
    if dtype.kind in "biufc":
        return values if dtype.isnative else values.astype(dtype.newbyteorder("="))
    if getattr(ml_dtypes, dtype.name, None) is dtype.type:
        return values.astype(np.int16 if "int" in dtype.name else np.float32)  # they have at most 16 bits
    raise TypeError(f"[array] NumPy dtype {dtype} holds no known numbers; convert it first, e.g. with .astype(float).")


def _truncate(values: np.ndarray, dtype: Dtype) -> np.ndarray:
    if dtype is dtypes.uint64:
        high = values >= 2.0**63
        low = _saturate(np.where(high, values - 2.0**63, values), np.int64)
        return low.view(np.uint64) + (high.astype(np.uint64) << np.uint64(63))
    wide: type = np.int32 if dtype.size < 4 or dtype is dtypes.int32 else np.int64
    return _saturate(values, wide).astype(dtype.np)


def _saturate(values: np.ndarray, wide: type) -> np.ndarray:
    """Truncates towards zero into a signed type; what does not fit becomes its nearest end, NaN zero."""
    info = np.iinfo(wide)
    below, above = float(info.min), float(info.max) + (1.0 if wide is np.int32 else 0.0)  # float(2**63 - 1) is 2**63
    if values.size and below <= values.min() and values.max() < above:  # the common case; false if there is a NaN
        return values.astype(wide)
    whole = np.trunc(values)
    fits = (whole >= below) & (whole < above)
    inside: np.ndarray = np.where(fits, whole, 0.0).astype(wide)
    ends = np.where(whole >= above, wide(info.max), wide(info.min))
    return np.where(fits | np.isnan(whole), inside, ends)


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Rounds once. ml_dtypes goes through float32, which rounds twice unless it rounds to odd the first time."""
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        low = values & 0x7FF
        cut = (values - low) | ((low != 0).astype(values.dtype) << 11)  # to odd, at 53 bits
        large = (values >= 2**53) | ((values <= -(2**53)) if values.dtype.kind == "i" else False)
        values = np.where(large, cut, values)
    if values.dtype.kind in "b" or values.dtype.itemsize <= (4 if values.dtype.kind == "f" else 2):
        return values.astype(np.float32).astype(dtypes.bfloat16.np)
    exact = values.astype(np.float64)
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    inexact = (back != exact) & ~np.isnan(exact)
    bits = near.view(np.uint32) - (inexact & (np.abs(back) > np.abs(exact)))  # towards zero ...
    return (bits | inexact).view(np.float32).astype(dtypes.bfloat16.np)  # ... and odd


def to_list(values: np.ndarray, dtype: Dtype) -> Any:
    """Nested lists of Python numbers; of a 0-d array, the number."""
    return (values.astype(np.float32) if dtype is dtypes.bfloat16 else values).tolist()


# ---------------------------------------------------------------------------------------------------------------------
# DLPack. The structures are those of dlpack.h; `code` is the kind of element.


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    )  # fmt: skip


_CPU: Final = 1
_HOST_READABLE: Final = frozenset({_CPU, 3, 11, 13})  # CPU, pinned by CUDA, pinned by ROCm, CUDA managed
_DEVICE_NAMES: Final = {2: "CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 10: "ROCm", 14: "oneAPI", 15: "WebGPU"}
_UINT, _BFLOAT = 1, 4
_CODES: Final = {0: "i", 1: "u", 2: "f", 4: "bf", 5: "c", 6: "b"}
_BITS: Final = {"i": (8, 16, 32, 64), "u": (8, 16, 32, 64), "f": (16, 32, 64), "bf": (16,), "c": (64, 128), "b": (8,)}

_capsule_is = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class _Carrier:
    """Hands a capsule to NumPy, which asks objects, not capsules."""

    def __init__(self, capsule: object, device: tuple[int, int]) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **_: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def _tensor_of(capsule: object) -> _Tensor:
    """The tensor in a capsule that nobody has consumed yet; writing to it writes to the capsule."""
    if _capsule_is(capsule, b"dltensor_versioned"):
        return _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned")).tensor
    if _capsule_is(capsule, b"dltensor"):
        return _Tensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    raise BufferError(f"[from_dlpack] __dlpack__ returned {capsule!r}, which is no unused DLPack capsule.")


def import_dlpack(obj: Any) -> tuple[np.ndarray, Dtype, object]:
    """The memory of an object with `__dlpack__`, shared: (array, dtype, what keeps the memory alive).

    The array is read-only if the producer says so (or speaks a DLPack too old to say). float64 stays float64.
    """
    if not hasattr(obj, "__dlpack__") or not hasattr(obj, "__dlpack_device__"):
        raise TypeError(f"[from_dlpack] a {type(obj).__name__} has no __dlpack__ and __dlpack_device__.")
    device_type, device_id = (int(part) for part in obj.__dlpack_device__())
    if device_type not in _HOST_READABLE:
        name = _DEVICE_NAMES.get(device_type, f"DLPack type {device_type}")
        raise BufferError(f"[from_dlpack] the data is on a {name} device; move it to the CPU first, e.g. with .cpu().")
    try:
        capsule = obj.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer from before the keyword
        capsule = obj.__dlpack__()
    tensor = _tensor_of(capsule)
    kind = _CODES.get(tensor.code, "")
    if tensor.lanes != 1 or tensor.bits not in _BITS.get(kind, ()):
        raise TypeError(
            f"[from_dlpack] elements of DLPack type code {tensor.code} with {tensor.bits} bits in {tensor.lanes} "
            f"lane(s) have no counterpart in Weft; convert them first."
        )
    if kind == "bf":
        tensor.code = _UINT
    array: np.ndarray = np.from_dlpack(_Carrier(capsule, (device_type, device_id)))
    if kind == "bf":
        array = array.view(dtypes.bfloat16.np)
    return array, dtypes.from_numpy(array.dtype), array


def export_dlpack(
    view: np.ndarray,
    dtype: Dtype,
    *,
    stream: Any = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> object:
    """A DLPack capsule of the memory behind `view`, which it keeps alive; the keywords are those of `__dlpack__`.

    With `copy=None` it copies only what consumers cannot take: negative strides, and read-only memory where the
    consumer's DLPack cannot say "read-only".
    """
    if stream is not None:
        raise BufferError(f"[__dlpack__] data in host memory has no stream; pass stream=None, not {stream!r}.")
    if dl_device is not None and tuple(int(part) for part in dl_device) != dlpack_device():
        raise BufferError(f"[__dlpack__] cannot export to device {tuple(dl_device)}; the data is on the CPU, (1, 0).")
    versioned = max_version is not None and max_version[0] >= 1 and _NUMPY_IS_VERSIONED
    unfit = min(view.strides, default=0) < 0 or (not view.flags.writeable and not versioned)
    if unfit and copy is False:
        raise BufferError("[__dlpack__] copy=False, but read-only or reversed memory must be copied for this consumer.")
    if unfit or copy:
        view = view.copy()
    plain = view.view(np.uint16) if dtype is dtypes.bfloat16 else view
    capsule = plain.__dlpack__(max_version=max_version) if versioned else plain.__dlpack__()
    if dtype is dtypes.bfloat16:
        _tensor_of(capsule).code = _BFLOAT
    return capsule


_NUMPY_IS_VERSIONED: Final = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


def dlpack_device() -> tuple[int, int]:
    """The device of everything `export_dlpack` exports: the CPU."""
    return (_CPU, 0)


# ---------------------------------------------------------------------------------------------------------------------
# The buffer protocol.

_PYBUF_WRITABLE, _PYBUF_FORMAT = 0x1, 0x4
_HEAP_TYPE: Final = 1 << 9


def install_buffer_protocol(cls: type, view: Callable[[Any], np.ndarray], native: Callable[[], int | None]) -> None:
    """Gives a Python class `__buffer__` and `__bytes__`: memoryview, np.frombuffer, file.write and so on see `view(x)`.

    Python before 3.12 does not ask `__buffer__`; `native` gives the address of a function that does, if there is one.

    bfloat16 has no buffer format. If `view` returns a bfloat16 array, consumers that do not ask for the format get the
    bytes, and those that do (`memoryview`) get a BufferError; NumPy then turns to `__array__`, which can answer with
    bfloat16, where a format of 16-bit integers would silently pass for numbers. A `view` that wants that may return
    uint16.
    """

    def __buffer__(self: Any, flags: int) -> memoryview:
        array: Any = view(self)
        if flags & _PYBUF_WRITABLE and not array.flags.writeable:
            raise BufferError(f"[buffer] the elements of this {cls.__name__} are read-only; write to a copy of them.")
        if array.dtype.kind == "V" and array.dtype == dtypes.bfloat16.np:
            if flags & _PYBUF_FORMAT:
                raise BufferError("bfloat16 has no buffer format; use .view(uint16), .astype(float32) or DLPack.")
            array = array.view(np.uint16)
        return memoryview(array)

    def __bytes__(self: Any) -> bytes:
        return view(self).tobytes()

    cls.__buffer__ = __buffer__  # type: ignore[attr-defined]
    if "__bytes__" not in vars(cls):
        cls.__bytes__ = __bytes__  # type: ignore[attr-defined]
    if sys.version_info < (3, 12):  # later Pythons ask __buffer__ by themselves
        function = native()
        if function is not None:
            _fill_buffer_slot(cls, function)


class _BufferProcs(ctypes.Structure):
    _fields_ = (("getbuffer", ctypes.c_void_p), ("releasebuffer", ctypes.c_void_p))


def _buffer_procs(cls: type) -> _BufferProcs | None:
    """The buffer functions of a class, where the interpreter keeps them: the 18th word after the object's head."""
    words_before = 17  # tp_name, tp_basicsize, ... tp_setattro
    head = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)
    word = ctypes.sizeof(ctypes.c_void_p)
    address = ctypes.c_void_p.from_address(id(cls) + head + words_before * word).value
    return None if address is None else _BufferProcs.from_address(address)


def _fill_buffer_slot(cls: type, function: int) -> None:
    """Makes instances of `cls` and of its subclasses, present and future, answer through `function`."""
    known, unknown = _buffer_procs(bytes), _buffer_procs(int)
    if sys.implementation.name != "cpython" or known is None or not known.getbuffer or unknown is not None:
        raise RuntimeError("the layout of this interpreter's types is unknown; use Python 3.12 or later.")
    procs = _buffer_procs(cls)
    if not cls.__flags__ & _HEAP_TYPE or procs is None:
        raise TypeError(f"{cls.__name__} is not a class written in Python.")
    procs.getbuffer = function
    child: type
    for child in cls.__subclasses__():  # later ones inherit by themselves
        _fill_buffer_slot(child, function)
