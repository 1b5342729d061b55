"""Element types: the `Dtype` singletons, MLX's promotion table, the category tree, `finfo` and `iinfo`.

Everything in Weft speaks of element types through these objects; NumPy's dtypes appear only at the borders
(`Dtype.np`). A `Dtype` is a singleton, so `is` compares it and a dictionary hashes it by identity.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from weft.lazy import lazy

if TYPE_CHECKING:
    import ml_dtypes
else:
    ml_dtypes = lazy("ml_dtypes")

LIBRARY = ["weft.core"]
"""The module that dtypes name when they are printed; weft.frontends.mlx writes another."""


class DtypeCategory(enum.Enum):
    """A node of the type tree that `issubdtype` walks, for example `floating`."""

    complexfloating = 0
    floating = 1
    inexact = 2
    signedinteger = 3
    unsignedinteger = 4
    integer = 5
    number = 6
    generic = 7

    @property
    def parent(self) -> DtypeCategory | None:
        """The category above; None of `generic`."""
        return _ABOVE.get(self)

    def __repr__(self) -> str:
        return str(self)


generic: Final = DtypeCategory.generic
number: Final = DtypeCategory.number
integer: Final = DtypeCategory.integer
signedinteger: Final = DtypeCategory.signedinteger
unsignedinteger: Final = DtypeCategory.unsignedinteger
inexact: Final = DtypeCategory.inexact
floating: Final = DtypeCategory.floating
complexfloating: Final = DtypeCategory.complexfloating

_ABOVE: Final = {
    number: generic, integer: number, signedinteger: integer, unsignedinteger: integer, inexact: number,
    floating: inexact, complexfloating: inexact,
}  # fmt: skip


class Dtype:
    """An element type. `kind` is one letter: b(ool), u(nsigned), i(nteger), f(loat), c(omplex)."""

    __slots__ = (
        "bits", "category", "is_bool", "is_complex", "is_float", "is_inexact", "is_integer", "is_signed", "kind",
        "name", "np", "rank", "size",
    )  # fmt: skip

    def __init__(self, name: str, kind: str, size: int, scalar: Any, category: DtypeCategory, rank: int) -> None:
        self.name, self.kind, self.size, self.bits = name, kind, size, 8 * size
        if scalar is not None:
            self.np = np.dtype(scalar)
        self.category, self.rank = category, rank
        self.is_bool, self.is_complex, self.is_float = kind == "b", kind == "c", kind == "f"
        self.is_integer, self.is_inexact = kind in "ui", kind in "fc"
        self.is_signed = kind in "ifc"

    def __getattr__(self, name: str) -> Any:
        if name != "np":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        self.np = np.dtype(getattr(ml_dtypes, self.name))  # loaded now: many programs never need it
        _BY_NUMPY[self.np] = self
        return self.np

    def __repr__(self) -> str:
        return f"{LIBRARY[0]}.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (by_name, (self.name,))

    def __deepcopy__(self, memo: object) -> Dtype:
        return self

    def __copy__(self) -> Dtype:
        return self


bool_: Final = Dtype("bool", "b", 1, np.bool_, generic, 0)
uint8: Final = Dtype("uint8", "u", 1, np.uint8, unsignedinteger, 1)
uint16: Final = Dtype("uint16", "u", 2, np.uint16, unsignedinteger, 2)
uint32: Final = Dtype("uint32", "u", 4, np.uint32, unsignedinteger, 3)
uint64: Final = Dtype("uint64", "u", 8, np.uint64, unsignedinteger, 4)
int8: Final = Dtype("int8", "i", 1, np.int8, signedinteger, 5)
int16: Final = Dtype("int16", "i", 2, np.int16, signedinteger, 6)
int32: Final = Dtype("int32", "i", 4, np.int32, signedinteger, 7)
int64: Final = Dtype("int64", "i", 8, np.int64, signedinteger, 8)
float16: Final = Dtype("float16", "f", 2, np.float16, floating, 9)
bfloat16: Final = Dtype("bfloat16", "f", 2, None, floating, 10)
float32: Final = Dtype("float32", "f", 4, np.float32, floating, 11)
float64: Final = Dtype("float64", "f", 8, np.float64, floating, 12)
complex64: Final = Dtype("complex64", "c", 8, np.complex64, complexfloating, 13)
complex128: Final = Dtype("complex128", "c", 16, np.complex128, complexfloating, 14)

ALL: Final = (
    bool_, uint8, uint16, uint32, uint64, int8, int16, int32, int64,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
INTEGERS: Final = tuple(d for d in ALL if d.is_integer)
FLOATS: Final = tuple(d for d in ALL if d.is_float)
COMPLEXES: Final = (complex64, complex128)
HALVES: Final = (float16, bfloat16)

_BY_NAME = {d.name: d for d in ALL} | {"bool_": bool_}
_BY_NUMPY = {d.np: d for d in ALL if d.name != "bfloat16"}


def by_name(name: str) -> Dtype:
    """The dtype called `name`, for example "float32"."""
    found = _BY_NAME.get(name)
    if found is None:
        raise ValueError(f"[dtype] {name!r} is the name of no dtype; it should be one of {', '.join(_BY_NAME)}.")
    return found


def from_numpy(dtype: Any) -> Dtype:
    """The dtype with the same elements as a NumPy (or ml_dtypes) dtype."""
    native = np.dtype(dtype).newbyteorder("=")
    found = _BY_NUMPY.get(native)
    if found is None and native == bfloat16.np:  # which is known once it was asked for
        return bfloat16
    if found is None:
        raise TypeError(f"NumPy dtype {native} has no counterpart in Weft; convert it first, e.g. with .astype(float).")
    return found


def real_of(dtype: Dtype) -> Dtype:
    """The dtype of a complex number's parts; a real dtype is its own."""
    return {complex64: float32, complex128: float64}.get(dtype, dtype)


def complex_of(dtype: Dtype) -> Dtype:
    """The complex dtype whose parts hold `dtype`."""
    return complex128 if dtype in (float64, complex128) else complex64


def _promote(a: Dtype, b: Dtype) -> Dtype:
    """MLX's table, as rules. Where MLX has no type (complex128), the smallest type that loses nothing."""
    if a is b:
        return a
    low, high = sorted((a, b), key=lambda d: d.rank)
    if high.is_complex:
        return complex128 if low in (float64, complex128) else high
    if high.is_float:
        return float32 if (low, high) == (float16, bfloat16) else high
    if high.kind == low.kind or low.is_bool:
        return high
    if low is uint64:  # unsigned 64 with any signed integer
        return float32
    if low.size < high.size:
        return high
    return {1: int16, 2: int32, 4: int64}[low.size]


_TABLE = {(a, b): _promote(a, b) for a in ALL for b in ALL}


def promote(a: Dtype, b: Dtype) -> Dtype:
    """The dtype in which an operation on `a` and `b` is done.

    >>> promote(uint8, int8)
    weft.core.int16
    """
    return _TABLE[a, b]


_WEAK = {bool: bool_, int: int32, float: float32, complex: complex64}


def promote_scalar(dtype: Dtype, kind: type) -> Dtype:
    """The dtype in which an array of `dtype` meets a Python scalar: the scalar changes the kind, never the width."""
    if kind is bool:
        return dtype
    if kind is int:
        return int32 if dtype.is_bool else dtype
    if kind is float:
        return dtype if dtype.is_inexact else float32
    return complex_of(dtype) if not dtype.is_complex else dtype


def default_of(kind: type) -> Dtype:
    """The dtype that a Python scalar gets when it stands alone."""
    return _WEAK[kind]


def inexact_of(dtype: Dtype) -> Dtype:
    """The dtype in which exp, divide and the like of `dtype` are done: itself, or float32 for integers."""
    return dtype if dtype.is_inexact else float32


def issubdtype(a: Dtype | DtypeCategory, b: Dtype | DtypeCategory) -> bool:
    """Whether `a` stands at or below `b` in the tree of types.

    >>> issubdtype(float16, floating)
    True
    """
    for given in (a, b):
        if not isinstance(given, (Dtype, DtypeCategory)):
            raise ValueError(f"[issubdtype] compares dtypes and their categories; got {given!r}.")
    if a is b:
        return True
    if isinstance(b, Dtype):
        return False
    node: DtypeCategory | None = a.category if isinstance(a, Dtype) else a
    while node is not None and node is not b:
        node = node.parent
    return node is b


class finfo:
    """Limits of a floating-point type: `min`, `max`, `eps`, `smallest_normal`, `bits`; of complex numbers, those of
    their parts, whose dtype `dtype` is."""

    def __init__(self, dtype: Dtype) -> None:
        if not isinstance(dtype, Dtype):
            raise TypeError(f"[finfo] takes a dtype, for example float32; got {dtype!r}.")
        if not dtype.is_inexact:
            raise ValueError(f"[finfo] {dtype.name} is not a floating-point type; use iinfo for integers.")
        self.dtype = real_of(dtype)
        info = ml_dtypes.finfo(self.dtype.np)
        self.bits = int(info.bits)
        self.min, self.max, self.eps = float(info.min), float(info.max), float(info.eps)
        self.smallest_normal = float(info.smallest_normal)

    def __repr__(self) -> str:
        return f"finfo(min={self.min:g}, max={self.max:g}, dtype={self.dtype.name})"


class iinfo:
    """Limits of an integer type: `min`, `max`, `bits`."""

    def __init__(self, dtype: Dtype) -> None:
        if not isinstance(dtype, Dtype):
            raise TypeError(f"[iinfo] takes a dtype, for example int32; got {dtype!r}.")
        if not dtype.is_integer:
            raise ValueError(f"[iinfo] {dtype.name} is not an integer type; use finfo for floats.")
        info = np.iinfo(dtype.np)
        self.dtype, self.bits = dtype, int(info.bits)
        self.min, self.max = int(info.min), int(info.max)

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype.name})"
