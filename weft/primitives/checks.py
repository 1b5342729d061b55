"""Words for saying what operands a primitive takes (`Primitive.check`): the part of the contract that `weft.core` keeps
by construction.

Graphs that were built by Weft need none of this. One that comes from a file does: kernels trust shapes, axes and bounds
blindly, so everything that they trust is checked before a node of a stranger's graph is made. Sizes are read by plain
comparisons only, so on symbolic sizes a rule records guards, and holds for all calls that pass them.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.graph.node import ArrayType, Shape, Size
from weft.interop import MAX_DIMS


def need(holds: bool, problem: str) -> None:
    """Raise ValueError unless it holds."""
    if not holds:
        raise ValueError(problem)


def check_shape(shape: Sequence[Size]) -> None:
    """Sizes are not negative, and there are not more of them than arrays can have."""
    need(len(shape) <= MAX_DIMS, f"{len(shape)} axes, and an array has {MAX_DIMS} at most")
    for n in shape:
        need(n >= 0, "a size is negative")


def check_axis(axis: int, ndim: int) -> None:
    need(0 <= axis < ndim, f"axis {axis} of {ndim}")


def check_axes(axes: Sequence[int], ndim: int) -> None:
    """Every axis is one of `ndim`, and none is named twice."""
    for axis in axes:
        check_axis(axis, ndim)
    need(len(set(axes)) == len(axes), f"axes {tuple(axes)}, of which some are the same")


def check_slice(shape: Shape, starts: Sequence[Size], sizes: Shape, steps: Sequence[Size]) -> None:
    """All elements of a slice are elements of the array."""
    need(len(starts) == len(sizes) == len(steps) == len(shape), "as many starts, sizes and steps as there are axes")
    check_shape(sizes)
    for n, start, size, step in zip(shape, starts, sizes, steps, strict=True):
        need(step != 0, "a step of 0")
        if size > 0:
            last = start + step * (size - 1)
            need(start >= 0 and start < n and last >= 0 and last < n, "a slice that reaches out of the array")


def equal_shapes(a: Shape, b: Shape) -> bool:
    """Whether sizes are equal in this call. (`same_shape` of graph/dims.py asks whether they provably always are.)"""
    return len(a) == len(b) and all(m == n for m, n in zip(a, b, strict=True))


def equal_kinds(a: ArrayType, b: ArrayType) -> bool:
    """Whether two arrays are of one kind. Other kinds (bundles, tapes) are equal to nothing but themselves."""
    return a is b or (
        type(a) is ArrayType and type(b) is ArrayType and a.dtype is b.dtype and equal_shapes(a.shape, b.shape)
    )
