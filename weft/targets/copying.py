"""Copies as programs and as parts of other operations, written over what a machine has to copy between two layouts.

A `copy_program` writes a value to where part of another one lies: what a slice update of computed data needs, wherever
the slice begins. Joins, slice updates and reinterpretations of bits are copies too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.graph.node import ArrayType
from weft.passes.views import Strides, contiguous
from weft.runtime.program import INLINE, Command, CommandKind, Reloc

Copy = Callable[[Layout, Layout, Pointer, Pointer], Sequence[Launch]]
"""(layout, layout to copy to, where the first begins, where the second begins) -> launches."""

_SOURCE, _TARGET, _WORDS = 0, 1, 2
"""What a call of a copying program gives: two addresses, then the words of a constant."""


class Parts(NamedTuple):
    """What a program is made of."""

    commands: list[Command]
    words: list[int]
    relocations: list[Reloc]
    addresses: int
    """How many a call gives."""


def copy_program(
    copy: Copy,
    load: Callable[[Sequence[Launch]], Sequence[Any]],
    kind: ArrayType,
    source: Strides | None,
    target: Strides | None,
    is_constant: bool,
) -> Parts:
    """See `Target.copy_program`."""
    shape = tuple(int(n) for n in kind.shape)
    plain = tuple(int(s) for s in contiguous(shape))
    given = (0,) * len(shape) if is_constant else plain if source is None else source
    x = Layout(shape, tuple(int(s) for s in given), kind.dtype)
    y = Layout(shape, plain if target is None else tuple(int(s) for s in target), kind.dtype)
    parts = Parts([], [], [], _WORDS + (-(-kind.dtype.size // 8) if is_constant else 0))
    launches = copy(x, y, Pointer(_SOURCE), Pointer(_TARGET))
    for function, launch in zip(load(launches), launches, strict=True):
        first = len(parts.words)
        parts.commands.append(Command(CommandKind.KERNEL, function, first, launch.grain, launch.scratch))
        for word in launch.words:
            if isinstance(word, Pointer):
                parts.relocations.append(_relocation(len(parts.words), word, is_constant))
            parts.words.append(word if isinstance(word, int) else 0)
    return parts


def _relocation(word: int, pointer: Pointer, is_constant: bool) -> Reloc:
    if is_constant and pointer.value == _SOURCE:
        return Reloc(word, INLINE, 8 * _WORDS + pointer.offset)
    return Reloc(word, 1 + pointer.value, pointer.offset)


# ---- operations that are copies ----


def slice_update(
    copy: Copy, base: Layout, part: Layout, out: Layout, starts: Sequence[int], steps: Sequence[int]
) -> Lowering:
    """out = base with `part` written over a slice. Pointers: 0 base, 1 part, 2 out."""
    offset = sum(start * stride for start, stride in zip(starts, out.strides, strict=True)) * out.dtype.size
    place = Layout(part.shape, tuple(step * stride for step, stride in zip(steps, out.strides, strict=True)), out.dtype)
    first = [] if part.shape == out.shape else copy(base, out, Pointer(0), Pointer(2))
    return Lowering((*first, *copy(part, place, Pointer(1), Pointer(2, offset))))


def concatenate(copy: Copy, operands: Sequence[Layout], out: Layout, axis: int) -> Lowering:
    """out = the operands one after the other along an axis. Pointers: operands, then out."""
    launches: list[Launch] = []
    at = 0
    for k, x in enumerate(operands):
        place = Layout(x.shape, out.strides, out.dtype)
        launches += copy(x, place, Pointer(k), Pointer(len(operands), at * out.strides[axis] * out.dtype.size))
        at += x.shape[axis]
    return Lowering(tuple(launches))


def reinterpret(copy: Copy, x: Layout, out: Layout) -> Lowering:
    """The bits of x as another dtype: one copy, in units of the smaller of the two elements."""
    pieces = max(1, x.dtype.size // out.dtype.size)
    unit = out.dtype if pieces > 1 else x.dtype
    shape, strides = x.shape, x.strides
    if pieces > 1:
        shape, strides = (*shape, pieces), (*(pieces * stride for stride in strides), 1)
    row_major = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    source, target = Layout(shape, strides, unit), Layout(shape, row_major, unit)
    return Lowering(tuple(copy(source, target, Pointer(0), Pointer(1))))
