"""Convolutions by residues: `ConvolveBack` is a convolution for each residue of the places of its output by the steps,
of the same operands, seen in other strides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from weft.codegen.launch import Layout, Pointer
from weft.graph.dims import dim_max
from weft.passes.lower import to_int
from weft.primitives.convolution import ConvolveBack, Residue, Window, Windows, residues
from weft.records import dataclass, replace


@dataclass(frozen=True, slots=True)
class Placed:
    """An operand: how it lies, and where its first element is."""

    layout: Layout
    pointer: Pointer

    def seen(self, axis: int, start: int, size: int, step: int) -> Placed:
        """A part of it along one axis: so many elements from one on, in steps."""
        shape, strides, dtype = list(self.layout.shape), list(self.layout.strides), self.layout.dtype
        offset = self.pointer.offset + start * strides[axis] * dtype.size
        shape[axis], strides[axis] = size, strides[axis] * step
        return Placed(Layout(tuple(shape), tuple(strides), dtype), Pointer(self.pointer.value, offset))


@dataclass(frozen=True, slots=True)
class ConvolutionPart:
    """A convolution: its windows, and its operands and output."""

    windows: Windows
    x: Placed
    w: Placed
    out: Placed

    def cut(self) -> ConvolutionPart:
        """The same without elements of x that windows begin behind: where a window's `low` is negative."""
        x = self.x
        for axis, window in enumerate(self.windows, -len(self.windows) - 1):
            if window.low < 0:
                x = x.seen(axis, -window.low, to_int(dim_max(x.layout.shape[axis] + window.low, 0)), 1)
        windows = tuple([window._replace(low=max(0, window.low)) for window in self.windows])
        return replace(self, windows=windows, x=x)


def by_axis(op: ConvolveBack, w: Layout, out: Layout) -> list[list[Residue]]:
    """The residues along each spatial axis."""
    d = len(op.windows)
    sizes = zip(op.windows, w.shape[-d - 1 : -1], out.shape[-d - 1 : -1], strict=True)
    return [residues(window, int(kernel), size) for window, kernel, size in sizes]


def parts_of(op: ConvolveBack, x: Placed, w: Placed, out: Placed) -> Iterator[ConvolutionPart]:
    """The convolutions of all residues. Some may have windows of no elements, or that begin behind the first of x."""
    for found in itertools.product(*by_axis(op, w.layout, out.layout)):
        weights, to = w, out
        windows = []
        for axis, (residue, window) in enumerate(zip(found, op.windows, strict=True), -len(found) - 1):
            first, k, stride, taps, gap, low = residue
            weights = weights.seen(axis, k + max(0, taps - 1) * stride if taps else 0, taps, -stride)
            to = to.seen(axis, first, -(-(to.layout.shape[axis] - first) // window.step), window.step)
            windows.append(Window(1, gap, low))
        yield ConvolutionPart(tuple(windows), x, weights, to)
