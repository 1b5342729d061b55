"""Strided loops: how kernels walk their operands, whatever they do with them.

A loop over an array is a list of `Axis`, outermost first. Here such lists are made and merged, an inner loop is
classified, cut and given a partner to tile with, work is weighed for threads, and argument words are filled in. Sizes
may be symbols (graph/dims.py): what is decided by one is a guard of the plan, so the cheap and telling questions come
first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from weft.codegen.kernel import EVERY, LANES
from weft.codegen.launch import Done, Layout, Pointer
from weft.graph.dims import ceil_div, dim_max, is_exactly, provably_equal
from weft.passes.lower import to_int
from weft.records import dataclass

FEWEST = 4
"""Elements of an axis along which blocks are turned."""
PICKED = {1: (2, 3, 4, 8), 2: (2, 3, 4), 4: (2, 3, 4)}
"""By bytes of an element (2 for others): elements to a step of which whole vectors are read and shuffled, because one
by one they take longer."""
BLOCK = 1 << 13
"""Elements of a long inner loop that are one unit of work."""
ENOUGH = 64
"""Units of work that keep all threads busy without cutting inner loops."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One loop: its size and the stride in bytes of each operand along it (of one that only counts: what it counts)."""

    size: int
    strides: tuple[int, ...]

    def runs_into(self, inner: Axis) -> bool:
        """Whether every operand walks this axis and the inner one as a single longer one."""
        return all(provably_equal(s, t * inner.size) for s, t in zip(self.strides, inner.strides, strict=True))


def axes_of(shape: Sequence[int], *strides: Sequence[int]) -> list[Axis]:
    """The loops over `shape`; `strides` are those of each operand."""
    return [Axis(n, steps) for n, *rest in zip(shape, *strides, strict=True) for steps in (tuple(rest),)]


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """As few loops as do the same in the same order: those of size 1 dropped, neighbours joined."""
    return merged_apart(axes, ())[0]


def merged_apart(axes: Iterable[Axis], apart: Sequence[int]) -> tuple[list[Axis], list[Axis]]:
    """The same in two lists: all but the axes numbered in `apart`, then those. Neighbours are joined within a list."""
    found: list[tuple[Axis, bool]] = []
    for number, axis in enumerate(axes):
        if is_exactly(axis.size, 1):
            continue
        own = number in apart
        if found and found[-1][1] == own and found[-1][0].runs_into(axis):
            found[-1] = Axis(found[-1][0].size * axis.size, axis.strides), own
        else:
            found.append((axis, own))
    return [axis for axis, own in found if not own], [axis for axis, own in found if own]


def product(axes: Iterable[Axis]) -> int:
    return math.prod([axis.size for axis in axes])


# ---- strides ----


def scaled(layout: Layout) -> tuple[int, ...]:
    """Strides in bytes."""
    return tuple(s * layout.dtype.size for s in layout.strides)


def row_major(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Strides in bytes of contiguous elements of `size` bytes."""
    strides = [size]
    for n in reversed(shape[1:]):
        strides.append(strides[-1] * n)
    return tuple(reversed(strides[: len(shape)]))


def stepping(stride: int, size: int) -> str:
    """How a loop walks an operand of `size` bytes an element: "unit", "reverse", "repeat" or "stride"."""
    return "repeat" if stride == 0 else "unit" if stride == size else "reverse" if stride == -size else "stride"


def walking(stride: int, size: int) -> str:
    """`stepping` of what is read as elements of a kernel, of which it is known if they are every second one ("every
    2"), or columns of a few (points, colours, bits of bytes)."""
    how = stepping(stride, size)
    if how != "stride":
        return how
    return next((f"{EVERY}{n}" for n in PICKED.get(size, (2,)) if stride == n * size), how)


def tile_axis(outer: Sequence[Axis], inner: Axis, operand: int, size: int) -> int | None:
    """The outer axis along which an operand that jumps in the inner loop lies contiguous: blocks over both are turned
    on the way in."""
    if abs(inner.strides[operand]) <= size:
        return None
    for position in range(len(outer) - 1, -1, -1):
        tile = outer[position]
        if tile.strides[operand] == size and tile.size >= FEWEST and inner.size >= LANES:
            return position
    return None


# ---- work ----


def cut(n: int, units: int) -> tuple[bool, dict[str, int]]:
    """Whether a long inner loop is cut into blocks that threads can share, and the words that say so."""
    if n <= 2 * BLOCK or units >= ENOUGH:
        return False, {"units": units}
    chunks = -(-n // BLOCK)
    return True, {"units": units * chunks, "width": BLOCK, "chunks": chunks}


def grain(each: int, worth: int, units: int | None = None) -> int:
    """How many units of `each` much work are worth a thread, for which it takes `worth`. Where all `units` together are
    not worth two threads it is 0, and no scratch memory is kept for others."""
    if units is not None and units * each < 2 * worth:
        return 0
    return to_int(dim_max(1, ceil_div(worth, dim_max(1, each))))


# ---- words ----

Word = int | Pointer | Done


def words_of(
    fields: Sequence[str],
    pointers: Sequence[Word],
    outer: Sequence[Axis],
    inner: Axis,
    numbers: Mapping[str, Word],
    **others: Axis,
) -> tuple[Word, ...]:
    """The words of an argument block. `others` are further loops, by the letter that begins the names of their
    strides."""
    values: dict[str, Word] = {"n": inner.size, **numbers}
    for a, axis in enumerate(outer):
        values[f"e{a}"] = axis.size
    for k, pointer in enumerate(pointers):
        values[f"p{k}"], values[f"i{k}"] = pointer, inner.strides[k]
        for a, axis in enumerate(outer):
            values[f"s{k}.{a}"] = axis.strides[k]
        for letter, axis in others.items():
            values[f"{letter}{k}"] = axis.strides[k]
    return tuple([values[name.lstrip("*")] for name in fields])
