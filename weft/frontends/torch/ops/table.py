"""What the rules of ATen's operators share: the table that they stand in, dtypes, and numbers that become arrays.

A rule is a function of what the operator is called with. Tensors come as Weft arrays and sizes as numbers or symbols;
in front comes an `Out` (a tuple of them if there are several results): dtype and shape as torch worked them out, which
the rule keeps to. Where ATen knows several overloads of one idea, one rule has all their names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import weft.core as mx
from weft.array import wrap
from weft.dtypes import Dtype
from weft.graph.node import kind_of
from weft.primitives.base import constant
from weft.primitives.bits import Cartesian
from weft.primitives.indexing import BoundsCheck
from weft.program import apply

DTYPES: dict[Any, Dtype] = {
    torch.bool: mx.bool_,
    torch.uint8: mx.uint8,
    torch.uint16: mx.uint16,
    torch.uint32: mx.uint32,
    torch.uint64: mx.uint64,
    torch.int8: mx.int8,
    torch.int16: mx.int16,
    torch.int32: mx.int32,
    torch.int64: mx.int64,
    torch.float16: mx.float16,
    torch.bfloat16: mx.bfloat16,
    torch.float32: mx.float32,
    torch.float64: mx.float64,
    torch.complex64: mx.complex64,
    torch.complex128: mx.complex128,
}
"""The dtypes that both have."""
TORCH_DTYPES = {ours: theirs for theirs, ours in DTYPES.items()}
HALVES = (mx.float16, mx.bfloat16)

Rule = Callable[..., Any]
Number = (bool, int, float, complex)


class Out:
    """What torch says of a result: its dtype, and its shape, which is worked out when a rule asks for it; and which
    operator it is the result of, with the line of the model (`site`)."""

    __slots__ = ("_sizes", "dtype", "site")

    def __init__(self, dtype: Dtype, sizes: Callable[[], tuple[Any, ...]], site: str = "aten") -> None:
        self.dtype, self._sizes, self.site = dtype, sizes, site

    @property
    def shape(self) -> tuple[Any, ...]:
        return self._sizes()


class Table(dict[str, Rule]):
    """Rules by the names of overloads: "add.Tensor", or "relu" for the default one."""

    def __call__(self, *names: str) -> Callable[[Rule], Rule]:
        def register(rule: Rule) -> Rule:
            for name in names:
                self[full_name(name)] = rule
            return rule

        return register


def full_name(name: str) -> str:
    """The name that str() of an overload gives."""
    space, _, rest = name.rpartition("::")
    return f"{space or 'aten'}.{rest if '.' in rest else rest + '.default'}"


# ---- dtypes ----


def wide(dtype: Dtype) -> Dtype:
    """The dtype that torch computes in where the operands are halves: what is computed is rounded once."""
    return mx.float32 if dtype in HALVES else dtype


def to(x: Any, dtype: Dtype) -> mx.array:
    """An array of this dtype, from an array or a number."""
    if isinstance(x, mx.array):
        return x if x.dtype is dtype else x.astype(dtype)
    if isinstance(x, Number):
        return wrap(constant(_fitting(x, dtype), kind_of((), dtype)))
    return mx.full((), x, dtype)  # a size that is a symbol


def cartesian(x: mx.array, y: mx.array) -> mx.array:
    """x + iy, with the infinities, NaNs and zeros of each part in that part alone."""
    made: mx.array = apply(Cartesian(), *mx.broadcast_arrays(x, y))
    return made


def _fitting(number: Any, dtype: Dtype) -> Any:
    if dtype.is_bool:
        return bool(number)
    return int(number) if dtype.is_integer else number


def common_dtype(*operands: Any) -> Dtype:
    """The dtype in which torch compares these: arrays with axes count before those without, and those before
    numbers."""
    ranked: list[list[Dtype]] = [[], [], []]
    for x in operands:
        if isinstance(x, mx.array):
            ranked[0 if x.ndim else 1].append(x.dtype)
        else:
            ranked[2].append(_dtype_of_number(x))
    found: Dtype | None = None
    for dtypes in ranked:
        for dtype in dtypes:
            if found is None:
                found = dtype
            elif dtypes is ranked[0] or _category(dtype) > _category(found):
                found = _promoted(found, dtype) if dtypes is not ranked[2] else _of_category(found, dtype)
            elif _category(dtype) == _category(found) and dtypes is _first(ranked):
                found = _promoted(found, dtype)
    assert found is not None
    return found


def _first(ranked: Sequence[list[Dtype]]) -> list[Dtype]:
    return next(dtypes for dtypes in ranked if dtypes)


def _promoted(a: Dtype, b: Dtype) -> Dtype:
    return DTYPES[torch.promote_types(TORCH_DTYPES[a], TORCH_DTYPES[b])]


def _category(dtype: Dtype) -> int:
    return 0 if dtype.is_bool else 1 if dtype.is_integer else 3 if dtype.is_complex else 2


def _dtype_of_number(x: Any) -> Dtype:
    if isinstance(x, bool):
        return mx.bool_
    if isinstance(x, complex):
        return mx.complex64 if torch.get_default_dtype() is not torch.float64 else mx.complex128
    return DTYPES[torch.get_default_dtype()] if isinstance(x, float) else mx.int64


def _of_category(array: Dtype, number: Dtype) -> Dtype:
    """The dtype of an array and a number of a higher category."""
    if number.is_complex and array.kind == "f":
        return mx.complex128 if array is mx.float64 else mx.complex64
    return number


# ---- axes ----


def axis_of(axis: int, ndim: int) -> int:
    return axis + ndim if axis < 0 else axis


def axes_of(axes: int | Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """Axes that count from the front; all of them if none are named."""
    if axes is None or (not isinstance(axes, int) and len(axes) == 0):
        return tuple(range(ndim))
    named = (axes,) if isinstance(axes, int) else axes
    return tuple(axis_of(axis, ndim) for axis in named) if ndim else ()


def in_bounds(out: Out, index: mx.array, size: Any, *, count_back: bool = False) -> mx.array:
    """Indices of an axis of so many elements. A call fails where one is out of range, as torch does; Weft's own
    operations would take the nearest."""
    checked: mx.array = apply(BoundsCheck(size, count_back, out.site), index)
    return checked


def iota(n: Any, dtype: Dtype = mx.int64) -> mx.array:
    """0, 1, …, n - 1."""
    return mx.arange(n, dtype=dtype)
