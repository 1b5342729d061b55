"""Padding: an array of one number with another array written into the middle of it.

Everything outside the part is written once, and the part once. Seen as one run of memory, what is outside lies before
the part, behind it, and in gaps between its rows; gaps behind short rows are written together with these. Only
`lowerings.py` comes here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.dtypes import Dtype
from weft.targets.axes import Axis, axes_of, merged, scaled
from weft.targets.cpu.moves import copy
from weft.targets.cpu.short_rows import join_rows

SMALL: Final = 1 << 14
"""Bytes of results that are written twice in less time than further launches take."""
FEWEST: Final = 256
"""Bytes from one row to the next from which on gaps are written by themselves."""


def pad(base: Layout, part: Layout, out: Layout, starts: Sequence[int], steps: Sequence[int]) -> Lowering | None:
    """out = one number that `base` repeats, with `part` written over a slice; None where that is not what they are, or
    writing some of it twice takes less time. Pointers: 0 base, 1 part, 2 out."""
    dtype, size = out.dtype, out.dtype.size
    whole = math.prod(out.shape) * size
    if any(base.strides) or any(step != 1 for step in steps) or 0 in part.shape or not whole > SMALL:
        return None
    axes = merged(axes_of(part.shape, scaled(part), scaled(out)))
    if not axes or axes[-1].strides[1] != size:
        return None
    begin = sum(start * stride for start, stride in zip(starts, scaled(out), strict=True))
    rows = _rows_with_gaps(axes, dtype, begin)
    if rows is None and len(axes) > 1 and not axes[-2].strides[1] >= FEWEST:
        return None
    place = Layout(part.shape, out.strides, dtype)
    launches = list(rows or copy(part, place, Pointer(1), Pointer(2, begin)))
    end = size
    for level in range(len(axes) - 1, -1, -1):
        axis = axes[level]
        if not (rows and level == len(axes) - 2):
            fewer = [*axes[:level], Axis(axis.size - 1, axis.strides)]
            launches += _fill(fewer, axis.strides[1] - end, dtype, begin + end)
        end += (axis.size - 1) * axis.strides[1]
    return Lowering((*_fill([], begin, dtype, 0), *_fill([], whole - begin - end, dtype, begin + end), *launches))


def _fill(axes: Sequence[Axis], nbytes: int, dtype: Dtype, offset: int) -> list[Launch]:
    """The number, in runs of so many bytes along these axes of the result, of which the first begins at `offset`."""
    shape = (*[axis.size for axis in axes], nbytes // dtype.size)
    strides = (*[axis.strides[1] // dtype.size for axis in axes], 1)
    return copy(Layout(shape, (0,) * len(shape), dtype), Layout(shape, strides, dtype), Pointer(0), Pointer(2, offset))


def _rows_with_gaps(axes: Sequence[Axis], dtype: Dtype, begin: int) -> list[Launch] | None:
    """The part with the gaps behind all rows but the last ones, where these are short."""
    if len(axes) < 2:
        return None
    *outer, rows, row = axes
    gap = rows.strides[1] // dtype.size - row.size
    if not gap > 0:
        return None
    walked = [Axis(axis.size, (axis.strides[0], 0, axis.strides[1])) for axis in (*outer, rows)]
    walked[-1] = Axis(rows.size - 1, walked[-1].strides)
    lasts = [Axis(row.size, row.strides[:1]), Axis(gap, (0,))]
    joined = join_rows(walked, lasts, dtype.size, [Pointer(1), Pointer(0), Pointer(2, begin)])
    if joined is None:
        return None
    shape = tuple(axis.size for axis in (*outer, row))
    layouts = [Layout(shape, tuple(axis.strides[k] // dtype.size for axis in (*outer, row)), dtype) for k in (0, 1)]
    last = [(rows.size - 1) * stride for stride in rows.strides]
    return [joined, *copy(layouts[0], layouts[1], Pointer(1, last[0]), Pointer(2, begin + last[1]))]
