"""What operands each primitive takes: the part of the contract that `weft.core` keeps by construction, written down.

Graphs that were built by Weft need none of this. One that comes from a file does: kernels trust shapes, axes and bounds
blindly, so everything that they trust is checked here before a node of a stranger's graph is made. A rule reads sizes
by plain comparisons only, so on symbolic sizes it records guards, and holds for all calls that pass them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence

import numpy as np

from weft import dtypes as dt
from weft.graph.node import Bundle, Kind, Node, Shape, Size, Tape, kind_of
from weft.interop import MAX_DIMS
from weft.primitives.base import Elementwise, Pick, Primitive, Reduction
from weft.primitives.bits import Bitcast, Reinterpret
from weft.primitives.contraction import Matmul
from weft.primitives.control import COUNT, Loop, Switch
from weft.primitives.creation import Extent, Iota
from weft.primitives.custom import Barrier
from weft.primitives.elementwise import Select
from weft.primitives.indexing import Gather, Indexed, Scatter, gathered_shape
from weft.primitives.joins import Concatenate, Repeat
from weft.primitives.reductions import ArgExtremum
from weft.primitives.scans import Recurrence, Scan
from weft.primitives.sorting import ArgSelect, SearchSorted, Sorting
from weft.primitives.special import Polygamma
from weft.primitives.views import Broadcast, Reshape, Slice, SliceUpdate, Transpose

LARGEST = 1 << 62
"""No parameter, size or number of bytes reaches this: sums and products of a few stay within what kernels count in."""
MOST_DERIVATIVES = 128
FLAG = kind_of((), dt.bool_)
INDEX = kind_of((), dt.int32)


def need(holds: bool, problem: str) -> None:
    """Raise ValueError unless it holds."""
    if not holds:
        raise ValueError(problem)


def check_shape(shape: Sequence[Size]) -> None:
    """Sizes are not negative, and there are not more of them than arrays can have."""
    need(len(shape) <= MAX_DIMS, f"{len(shape)} axes, and an array has {MAX_DIMS} at most")
    for n in shape:
        need(n >= 0, "a size is negative")


def same(a: Shape, b: Shape) -> bool:
    return len(a) == len(b) and all(m == n for m, n in zip(a, b, strict=True))


# ---- elementwise operations, views, reductions ----


@functools.cache
def arity(cls: type[Primitive]) -> int:
    """How many operands an elementwise operation has, as its samples show."""
    sample = cls.samples[0]
    return len(sample.make(np.random.default_rng(0), cls.dtypes[-1]))


def _elementwise(op: Elementwise, *kinds: Kind) -> None:
    count = arity(type(op))
    need(len(kinds) == count, f"{len(kinds)} operands, and it has {count}")
    need(all(same(kinds[0].shape, kind.shape) for kind in kinds[1:]), f"operands of different shapes, {kinds}")
    rest = kinds
    if isinstance(op, Select):
        need(kinds[0].dtype is dt.bool_, f"a condition that is {kinds[0].dtype.name}")
        rest = kinds[1:]
    _one_dtype(op, *rest)
    if isinstance(op, Bitcast):
        need(op.dtype in type(op).dtypes and op.dtype.size == rest[0].dtype.size, "another size of elements")
    if isinstance(op, Polygamma):
        need(1 <= op.order <= MOST_DERIVATIVES, f"order {op.order}")


def _one_dtype(op: Primitive, *kinds: Kind) -> None:
    """Operands have one dtype, which is one of those that the primitive is made for."""
    dtype = kinds[0].dtype
    need(all(kind.dtype is dtype for kind in kinds), f"operands of different dtypes, {kinds}")
    need(dtype in type(op).dtypes, f"{dtype.name} operands")


def _axis(axis: int, ndim: int) -> None:
    need(0 <= axis < ndim, f"axis {axis} of {ndim}")


def _distinct(axes: Sequence[int], ndim: int) -> None:
    for axis in axes:
        _axis(axis, ndim)
    need(len(set(axes)) == len(axes), f"axes {tuple(axes)}, of which some are the same")


def _transpose(op: Transpose, x: Kind) -> None:
    need(sorted(op.order) == list(range(x.ndim)), f"order {op.order} of {x.ndim} axes")


def _steps(shape: Shape, starts: Sequence[Size], sizes: Shape, steps: Sequence[Size]) -> None:
    """All elements of a slice are elements of the array."""
    need(len(starts) == len(sizes) == len(steps) == len(shape), "as many starts, sizes and steps as there are axes")
    check_shape(sizes)
    for n, start, size, step in zip(shape, starts, sizes, steps, strict=True):
        need(step != 0, "a step of 0")
        if size > 0:
            last = start + step * (size - 1)
            need(start >= 0 and start < n and last >= 0 and last < n, "a slice that reaches out of the array")


def _slice(op: Slice, x: Kind) -> None:
    _steps(x.shape, op.starts, op.sizes, op.steps)


def _slice_update(op: SliceUpdate, x: Kind, part: Kind) -> None:
    _one_dtype(op, x, part)
    _steps(x.shape, op.starts, part.shape, op.steps)


def _broadcast(op: Broadcast, x: Kind) -> None:
    check_shape(op.shape)
    need(len(op.axes) == x.ndim, f"{len(op.axes)} axes for the {x.ndim} of its operand")
    _distinct(op.axes, len(op.shape))
    for n, axis in zip(x.shape, op.axes, strict=True):
        one = type(n) is int and n == 1
        need(one or n == op.shape[axis], f"{x} does not fit the shape that it is repeated in")


def _reshape(op: Reshape, x: Kind) -> None:
    check_shape(op.shape)
    need(kind_of(op.shape, x.dtype).size == x.size, f"{x} has another number of elements")


def _reduction(op: Reduction, x: Kind) -> None:
    _one_dtype(op, x)
    _distinct(op.axes, x.ndim)
    need(list(op.axes) == sorted(op.axes), f"axes {op.axes} out of order")
    need(not isinstance(op, ArgExtremum) or len(op.axes) == 1, f"{len(op.axes)} axes, and it looks along one")


def _scan(op: Scan, *kinds: Kind) -> None:
    count = 2 if isinstance(op, Recurrence) else 1
    need(len(kinds) == count, f"{len(kinds)} operands, and it has {count}")
    _one_dtype(op, *kinds)
    need(all(same(kinds[0].shape, kind.shape) for kind in kinds), "operands of different shapes")
    _axis(op.axis, kinds[0].ndim)


# ---- the rest ----


def _places(op: Indexed, x: Kind, indices: Sequence[Kind]) -> Shape:
    """The shape of what is gathered or scattered."""
    need(len(op.where) == x.ndim, f"{len(op.where)} places for the {x.ndim} axes of its operand")
    need(1 <= len(indices) == op.where.count(None), "an index for each axis that is indexed")
    first = indices[0]
    need(all(kind.dtype.is_integer for kind in indices), "an index that is no integer")
    need(all(same(first.shape, kind.shape) for kind in indices), "indices of different shapes")
    need(len(op.axes) == first.ndim, "an axis of the result for each axis of the indices")
    walked = [axis for axis in op.where if axis is not None]
    together = {*walked, *op.axes}
    _distinct(walked, len(together))
    _distinct(op.axes, len(together))
    for axis, n in zip(op.where, x.shape, strict=True):
        if axis in op.axes:
            need(n == first.shape[op.axes.index(axis)], "indices that go along an axis of another size")
    shape = gathered_shape(op.where, op.axes, x.shape, first.shape)
    check_shape(shape)
    return shape


def _gather(op: Gather, x: Kind, *indices: Kind) -> None:
    _one_dtype(op, x)
    _places(op, x, indices)


def _scatter(op: Scatter, x: Kind, updates: Kind, *indices: Kind) -> None:
    _one_dtype(op, x, updates)
    need(same(_places(op, x, indices), updates.shape), f"updates {updates} of another shape than their places")


def _sorting(op: Sorting, x: Kind) -> None:
    _one_dtype(op, x)
    _axis(op.axis, x.ndim)
    if isinstance(op, ArgSelect):
        need(op.count >= 1 and op.count <= x.shape[op.axis], f"{op.count} elements of an axis that has fewer")


def _search(op: SearchSorted, rows: Kind, values: Kind) -> None:
    _one_dtype(op, rows, values)
    need(rows.ndim >= 1, "rows without an axis")
    need(
        same(rows.shape[:-1], values.shape[: rows.ndim - 1]), f"rows {rows} and values {values} that do not go together"
    )


def _concatenate(op: Concatenate, *kinds: Kind) -> None:
    need(len(kinds) >= 1, "no operands")
    _one_dtype(op, *kinds)
    _axis(op.axis, kinds[0].ndim)

    def others(kind: Kind) -> Shape:
        return (*kind.shape[: op.axis], *kind.shape[op.axis + 1 :])

    need(all(kind.ndim == kinds[0].ndim for kind in kinds), "operands of different numbers of axes")
    need(all(same(others(kinds[0]), others(kind)) for kind in kinds), "operands that differ along other axes")


def _repeat(op: Repeat, x: Kind) -> None:
    _one_dtype(op, x)
    need(x.ndim >= 1 and op.count >= 1, f"{op.count} repetitions of {x}")


def _iota(op: Iota) -> None:
    check_shape(op.shape)


def _extent(op: Extent) -> None:
    need(op.size >= 0, "a negative size")


def _matmul(op: Matmul, x: Kind, y: Kind) -> None:
    _one_dtype(op, x, y)
    need(x.ndim == y.ndim >= 2, f"operands {x} and {y}")
    need(same(x.shape[:-2], y.shape[:-2]) and x.shape[-1] == y.shape[-2], f"operands {x} and {y}")


def _barrier(op: Barrier, x: Kind, *after: Kind) -> None:
    _one_dtype(op, x)


def _reinterpret(op: Reinterpret, x: Kind) -> None:
    _one_dtype(op, x)
    old, new = x.dtype.size, op.dtype.size
    need(not op.dtype.is_bool, "bits as bool")
    need(old == new or (x.ndim >= 1 and x.shape[-1] * old % new == 0), f"{x} as {op.dtype.name}")


# ---- loops and branches ----


def equal(a: Kind, b: Kind) -> bool:
    """Whether two arrays are of one kind. Other kinds (bundles, tapes) are equal to nothing."""
    return a is b or (type(a) is Kind and type(b) is Kind and a.dtype is b.dtype and same(a.shape, b.shape))


def _loop(op: Loop, *kinds: Kind) -> None:
    need(op.invariants >= 0 and op.carries >= 0, "a negative number of operands")
    need(len(kinds) == op.counted + len(op.body.inputs), f"{len(kinds)} operands")
    need(op.invariants + op.carries <= len(op.body.inputs), "a body with fewer parameters than it has operands")
    need(len(op.body.outputs) >= op.carries + op.stops, "a body with fewer results than carries")
    need(op.length is not None or op.counted or op.stops, "no end")
    need(op.length is not None or op.counted or not op.reverse, "steps from an end that it does not have")
    need(op.length is None or op.length >= 0, "a negative number of steps")
    count, invariants, carries, rows = op.split(kinds)
    params = [param.kind for param in op.body.inputs]
    first = op.invariants + op.carries
    need(all(equal(kind, COUNT) for kind in count), "a number of steps that is no int64")
    for kind, param in zip([*invariants, *carries], params[:first], strict=True):
        need(type(kind) is Kind and equal(kind, param), f"an operand {kind}, where its body takes {param}")
    after, made, go_on = op.split_body()
    for kind, result in zip(carries, after, strict=True):
        need(equal(result.kind, kind), f"a carry that is {kind} at first, and {result.kind} after a step")
    need(all(type(row.kind) is Kind for row in made), "rows that are no arrays")
    need(go_on is None or equal(go_on.kind, FLAG), "a body that does not say whether to go on")
    for kind, param in zip(rows, params[first:], strict=True):
        _rows(op, kind, param)


def _rows(op: Loop, kind: Kind, param: Kind) -> None:
    """The rows of an operand are as many as there are steps, and what the body takes. How many there are on a tape is
    known only when it is read: `tapes_of` says what bounds the steps then."""
    if op.length is None:
        need(isinstance(kind, Tape) and equal(kind.row, param), f"rows of {kind}, where its body takes {param}")
        need(op.counted, "a tape that is read without counting")
        return
    need(type(kind) is Kind and kind.ndim >= 1, f"rows of {kind}")
    need(equal(kind_of(kind.shape[1:], kind.dtype), param), f"rows of {kind}, where its body takes {param}")
    need(kind.shape[0] == op.length, f"rows of {kind} for another number of steps")


def tapes_of(op: Loop, operands: Sequence[Node]) -> list[Node]:
    """The loops whose tapes a loop reads: it must not make more steps than each of them."""
    return list(dict.fromkeys([x.inputs[0] for x in operands if isinstance(x.kind, Tape)]))


def _switch(op: Switch, *kinds: Kind) -> None:
    need(len(op.branches) >= 1, "no branches")
    need(len(kinds) >= 1 and equal(kinds[0], INDEX), "a choice that is no int32")
    first = op.branches[0]
    for branch in op.branches:
        need(len(branch.inputs) == len(kinds) - 1, f"a branch with {len(branch.inputs)} parameters")
        for kind, param in zip(kinds[1:], branch.inputs, strict=True):
            need(equal(kind, param.kind), f"an operand {kind}, where a branch takes {param.kind}")
        need(len(branch.outputs) == len(first.outputs), "branches with different results")
        for kind, other in zip(first.kinds(), branch.kinds(), strict=True):
            need(equal(kind, other), "branches with different results")
    need(all(type(kind) is Kind for kind in first.kinds()), "results that are no arrays")


# ---- all of them ----

Rule = Callable[..., None]
RULES: tuple[tuple[type[Primitive], Rule], ...] = (
    (Elementwise, _elementwise), (Transpose, _transpose), (Slice, _slice), (Broadcast, _broadcast),
    (Reshape, _reshape), (SliceUpdate, _slice_update), (Reduction, _reduction), (Scan, _scan), (Gather, _gather),
    (Scatter, _scatter), (Sorting, _sorting), (SearchSorted, _search), (Concatenate, _concatenate), (Repeat, _repeat),
    (Iota, _iota), (Extent, _extent), (Matmul, _matmul), (Barrier, _barrier), (Reinterpret, _reinterpret),
    (Loop, _loop), (Switch, _switch),
)  # fmt: skip
"""The rule of each family, or of a primitive that is its own family. It takes the primitive and its operands' kinds."""


@functools.cache
def _signature(rule: Rule) -> inspect.Signature:
    return inspect.signature(rule)


@functools.cache
def rule_of(cls: type[Primitive]) -> Rule:
    """The rule of a primitive."""
    for family, rule in RULES:
        if issubclass(cls, family):
            return rule
    raise ValueError(f"there is no rule for operands of {cls.name()}")


def check_operands(op: Primitive, operands: Sequence[Node]) -> None:
    """Raise ValueError if a primitive does not take such operands."""
    kinds = [x.kind for x in operands]
    if isinstance(op, Pick):
        need(len(kinds) == 1 and isinstance(kinds[0], Bundle), "it picks from what has one result")
        assert isinstance(kinds[0], Bundle)
        need(0 <= op.index < len(kinds[0].parts), f"result {op.index} of {len(kinds[0].parts)}")
        return
    need(isinstance(op, Loop) or all(type(kind) is Kind for kind in kinds), "operands that are no arrays")
    rule = rule_of(type(op))
    try:
        _signature(rule).bind(op, *kinds)
    except TypeError:
        raise ValueError(f"{len(kinds)} operands") from None
    rule(op, *kinds)
