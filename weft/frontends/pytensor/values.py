"""What stands for the value of a PyTensor variable while a graph is translated: an array of Weft, or something that is
known before anything runs.

Constants are known, and so are sizes and what is computed from them: PyTensor's graphs compute with shapes as with any
other integers, and Weft needs sizes as numbers (or as symbols that stand for them) when an array is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor.tensor.type import DenseTensorType
from pytensor.typed_list.type import TypedListType

import weft.core as mx
from weft import dtypes
from weft.array import array, wrap
from weft.dtypes import Dtype
from weft.graph.dims import Dim
from weft.graph.node import Size, kind_of
from weft.primitives.base import constant as number_node


def is_sparse(x: Any) -> bool:
    """Whether a variable of PyTensor stands for sparse matrices."""
    return hasattr(x.type, "format") and hasattr(x.type, "dtype")


def is_list(x: Any) -> bool:
    """Whether a variable of PyTensor stands for lists of arrays, or of such lists."""
    kind = x.type
    while isinstance(kind, TypedListType):
        kind = kind.ttype
    return kind is not x.type and isinstance(kind, DenseTensorType)


class NotConverted(Exception):
    """A node for which there is no translation: PyTensor's own implementation runs it."""


class Known:
    """A value that is known while the graph is translated. Integers may be symbols for sizes, in arrays of objects."""

    __slots__ = ("_arrays", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._arrays: dict[str | None, array] = {}

    @property
    def is_symbolic(self) -> bool:
        return isinstance(self.value, np.ndarray) and self.value.dtype == object

    def array(self, dtype: str | None = None) -> array:
        """The same elements as an array of Weft, converted to a dtype of PyTensor's if one is named."""
        if self.is_symbolic:
            made = _sizes_array(self.value)
            return made if dtype is None else cast(made, dtype)
        if dtype not in self._arrays:
            values = np.asarray(self.value)
            with np.errstate(all="ignore"):
                self._arrays[dtype] = constant(values if dtype is None else values.astype(dtype, copy=False))
        return self._arrays[dtype]

    def numbers(self) -> np.ndarray:
        """The elements as numbers of NumPy; a symbol is taken for the number that it has in this call, and the
        translation then holds for that number only."""
        if not self.is_symbolic:
            return np.asarray(self.value)
        return np.array([int(n) for n in self.value.ravel()], np.int64).reshape(self.value.shape)


class Partial:
    """Rows of which only the first `count` were made: a number that is known when the program has run."""

    __slots__ = ("count", "rows")

    def __init__(self, rows: array, count: array) -> None:
        self.rows, self.count = rows, count

    def row(self, index: int) -> array:
        """One row, from the beginning or from the end of those that were made."""
        if index >= 0:
            return self.rows[index]
        return self.rows[self.count + mx.array(index, mx.int64)]


Value = array | Known


def constant(values: np.ndarray) -> array:
    """An array of Weft with these elements. One number, also if it is repeated, is a number to the compiler, and not
    memory."""
    dtype = dtypes.from_numpy(values.dtype)
    if values.dtype.kind in "biuf" and values.dtype.itemsize <= 8 and values.size and _is_one_number(values):
        number = number_in(values.flat[0].item(), dtype)
        return number if values.ndim == 0 else mx.broadcast_to(number, values.shape)
    return mx.array(np.asarray(values, order="C"), dtype)


def number_in(value: float, dtype: Dtype) -> array:
    """A number that a kernel gets with its call, so that equal ones are one value and 0 and 1 are known."""
    return wrap(number_node(value, kind_of((), dtype)))


def _is_one_number(values: np.ndarray) -> bool:
    """Whether all elements have the same bits."""
    if values.size == 1:
        return True
    flat = np.ascontiguousarray(values).reshape(-1)
    bits = flat.view(np.uint8).reshape(flat.size, flat.itemsize)
    return bool((bits == bits[0]).all())


def _sizes_array(sizes: np.ndarray) -> array:
    if sizes.ndim == 0:
        return number_of(sizes.item())
    return mx.stack([number_of(n) for n in sizes.ravel().tolist()]).reshape(sizes.shape)


def number_of(n: Size) -> array:
    """A size as an array: a symbol stays one, for whatever it is in a later call."""
    return mx.zeros((), mx.int64) + n if isinstance(n, Dim) else mx.array(n, mx.int64)


def objects(values: Sequence[Any]) -> np.ndarray:
    """A vector of sizes. One by one, because NumPy would ask symbols for their numbers."""
    made = np.empty(len(values), object)
    for i, value in enumerate(values):
        made[i] = value
    return made


def weft_dtype(name: str) -> Dtype:
    """The dtype that PyTensor calls by this name."""
    return dtypes.from_numpy(np.dtype(name))


def to_array(value: Value, dtype: str | None = None) -> array:
    """A value as an array of Weft, of PyTensor's dtype if one is named."""
    if isinstance(value, Known):
        return value.array(dtype)
    return value if dtype is None else cast(value, dtype)


def cast(x: array, dtype: str) -> array:
    """The conversion that PyTensor's Cast makes. It knows no complex numbers that become real."""
    wanted = weft_dtype(dtype)
    return x if x.dtype is wanted else x.astype(wanted)


def sizes(values: Sequence[Value]) -> tuple[Any, ...]:
    """Scalars that are known, as sizes."""
    return tuple(size(value) for value in values)


def size(value: Value) -> Any:
    """A scalar that is known, as a number or a symbol."""
    if not isinstance(value, Known):
        raise NotConverted("a size that depends on data")
    n = np.asarray(value.value).reshape(()).item() if not isinstance(value.value, Dim) else value.value
    return n if isinstance(n, Dim) else int(n)


def vector(value: Value) -> tuple[Any, ...]:
    """A vector that is known, as sizes."""
    if not isinstance(value, Known):
        raise NotConverted("a shape that depends on data")
    return tuple(n if isinstance(n, Dim) else int(n) for n in np.asarray(value.value).ravel().tolist())


def known_sizes(values: Sequence[Size]) -> Known:
    """A vector of sizes."""
    if any(isinstance(n, Dim) for n in values):
        return Known(objects(values))
    return Known(np.array(values, np.int64))


def known_size(n: Size) -> Known:
    if isinstance(n, Dim):
        made = np.empty((), object)
        made[()] = n
        return Known(made)
    return Known(np.array(n, np.int64))
