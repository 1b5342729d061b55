"""Convolutions: sums of products over windows, and their derivatives. The bits depend on operand values, shapes and
dtypes only: terms are summed in the order of tiled products (docs/numerics.md), over the places of the window and then
the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft import dtypes as dt
from weft.graph.node import Kind, Node, Shape, Size, kind_of
from weft.primitives.base import Multilinear, Opaque, Sample, bind, move_batch_to_front, zeros
from weft.primitives.checks import equal_shapes, need
from weft.primitives.elementwise import draw
from weft.primitives.views import Slice, SliceUpdate, transpose


class Window(NamedTuple):
    """How a window goes along one axis: `step` from place to place, `gap` between its elements, beginning with `low`
    zeros before the first element."""

    step: int
    gap: int
    low: int


Windows = tuple[Window, ...]


def _spatial(x: Kind | Node, windows: Windows) -> range:
    """The axes that windows go along: before the last."""
    return range(x.ndim - 1 - len(windows), x.ndim - 1)


def _windows_of(x: np.ndarray, places: Sequence[int], kernel: Sequence[int], windows: Windows) -> np.ndarray:
    """(N, places…, kernel…, C): what each window sees of (N, S…, C)."""
    index: list[np.ndarray] = []
    sizes = zip(places, kernel, windows, x.shape[1:-1], strict=True)
    wide = [(0, 0)]
    for p, k, (step, gap, low), n in sizes:
        last = (p - 1) * step + (k - 1) * gap - low
        wide.append((low, max(0, last - n + 1)))
        index.append(step * np.arange(p)[:, None] + gap * np.arange(k)[None])
    x = np.pad(x, [*wide, (0, 0)])
    for axis, where in enumerate(index):
        x = np.take(x, where, axis=1 + 2 * axis)  # (N, p1, k1, …, C)
    d = len(windows)
    order = [0, *(1 + 2 * axis for axis in range(d)), *(2 + 2 * axis for axis in range(d)), 2 * d + 1]
    return x.transpose(order)


def _dilated(x: Node, windows: Windows, sizes: Shape) -> Node:
    """An array with zeros between its neighbours along the spatial axes, which are then `step` apart."""
    spatial = _spatial(x, windows)
    shape = [*x.shape]
    for axis, n in zip(spatial, sizes, strict=True):
        shape[axis] = n
    if tuple(shape) == x.shape:
        return x
    steps = tuple([windows[axis - spatial[0]].step if axis in spatial else 1 for axis in range(x.ndim)])
    return bind(SliceUpdate((0,) * x.ndim, steps), zeros(kind_of(tuple(shape), x.dtype)), x)


class _Convolution(Multilinear, Opaque):
    """What both have: windows (for each axis a step, a gap, and zeros before the first element), leading axes that are
    equal and go together, and their dtypes."""

    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    lows: tuple[int, ...]
    linear = (0, 1)
    dtypes = (dt.float32, dt.float16, dt.bfloat16, dt.float64)
    tolerance = {dt.float32: 32, dt.float64: 32, dt.float16: 1, dt.bfloat16: 1}

    @property
    def windows(self) -> Windows:
        return tuple([Window(*window) for window in zip(self.steps, self.gaps, self.lows, strict=True)])

    def check(self, x: Kind, y: Kind) -> None:
        self.check_dtypes(x, y)
        d = len(self.windows)
        need(d >= 1 and all(w.step >= 1 and w.gap >= 1 and w.low >= 0 for w in self.windows), f"windows {self.windows}")
        need(x.ndim == y.ndim >= d + 2, f"operands {x} and {y}")
        need(equal_shapes(x.shape[: -d - 2], y.shape[: -d - 2]), f"operands {x} and {y}")

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        x, y = (move_batch_to_front(operand, axis, size) for operand, axis in zip(inputs, axes, strict=True))
        return bind(self, x, y), 0


def parts_of(windows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The steps, gaps and lows of windows: the first parameters of both."""
    return tuple([window[0] for window in windows]), tuple([w[1] for w in windows]), tuple([w[2] for w in windows])


def _sample(x: tuple[int, ...], y: tuple[int, ...], windows: Sequence[Sequence[int]], **params: object) -> Sample:
    steps, gaps, lows = parts_of(windows)
    return Sample(
        lambda rng, dtype: [draw(rng, dtype, x), draw(rng, dtype, y)],
        {"steps": steps, "gaps": gaps, "lows": lows, **params},
    )


class Convolve(_Convolution):
    """out[…, i, p, o] = the sum over k and c of x[…, i, p * step + k * gap - low, c] * w[…, o, k, c], where p and k
    have an index for each spatial axis; `places` is how many p there are. Elements of x that do not exist are 0."""

    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    lows: tuple[int, ...]
    places: Shape
    samples = (
        _sample((2, 9, 3), (4, 3, 3), windows=[(1, 1, 0)], places=(7,)),
        _sample((2, 9, 8, 16), (5, 3, 1, 16), windows=[(2, 1, 1), (1, 2, 0)], places=(5, 8)),
        _sample((2, 9, 4, 17), (37, 3, 1, 17), windows=[(1, 1, 1), (3, 2, 2)], places=(9, 2)),
        _sample((2, 6, 7, 32), (16, 2, 1, 32), windows=[(1, 1, 1), (1, 1, 1)], places=(7, 9)),
        _sample((3, 1, 6, 5, 4, 2), (3, 4, 2, 3, 1, 2), windows=[(1, 2, 0), (2, 1, 3), (3, 1, 0)], places=(4, 4, 2)),
        _sample((1, 20, 8), (40, 8, 8), windows=[(1, 1, 0)], places=(13,)),
        _sample((0, 4, 3), (2, 2, 3), windows=[(1, 1, 0)], places=(3,)),
        _sample((2, 4, 0), (2, 2, 0), windows=[(1, 1, 0)], places=(3,)),
        _sample((1, 3, 2), (2, 5, 2), windows=[(1, 1, 4)], places=(7,)),
    )

    def infer(self, *kinds: Kind) -> Kind:
        x, w = kinds
        d = len(self.windows)
        return kind_of((*x.shape[: -d - 1], *self.places, w.shape[-d - 2]), x.dtype)

    def check(self, x: Kind, y: Kind) -> None:
        super().check(x, y)
        need(len(self.places) == len(self.windows), f"places {self.places}")
        need(x.shape[-1] == y.shape[-1], f"operands {x} and {y}")

    def flops(self, out: Kind, *kinds: Kind) -> float:
        return 2.0 * float(out.size) * float(kind_of(kinds[1].shape[-len(self.windows) - 1 :], dt.float32).size)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, w = (v.astype(np.float64) for v in values)
        d = len(self.windows)
        places = [int(n) for n in self.places]
        out = np.zeros((*x.shape[: -d - 1], *places, w.shape[-d - 2]))
        for member in np.ndindex(*x.shape[: -d - 2]):
            seen = _windows_of(x[member], places, w.shape[-d - 1 : -1], self.windows)
            out[member] = np.tensordot(seen, w[member], (range(d + 1, 2 * d + 2), range(1, d + 2)))
        return out.astype(values[0].dtype)

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        x, w = primals
        if position == 0:
            return _to_input(self.windows, w, cotangent, x.shape)
        spatial = _spatial(w, self.windows)
        kernel = tuple([w.shape[axis] for axis in spatial])
        found = bind(ConvolveWeights(self.steps, self.gaps, self.lows, kernel), x, cotangent)  # (…, kernel…, C, O)
        batch = w.ndim - len(spatial) - 2
        return transpose(found, (*range(batch), w.ndim - 1, *range(batch, w.ndim - 2), w.ndim - 2))


class ConvolveWeights(_Convolution):
    """The derivative of a convolution with respect to its weights: out[…, k, c, o] = the sum over i and p of
    x[…, i, p * step + k * gap - low, c] * y[…, i, p, o]; `kernel` is how many k there are."""

    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    lows: tuple[int, ...]
    kernel: Shape
    samples = (
        _sample((2, 9, 3), (2, 7, 4), windows=[(1, 1, 0)], kernel=(3,)),
        _sample((2, 9, 3, 16), (2, 5, 4, 5), windows=[(2, 1, 1), (1, 2, 1)], kernel=(3, 2)),
        _sample((2, 6, 3, 8), (2, 6, 3, 17), windows=[(1, 1, 1), (1, 1, 1)], kernel=(3, 3)),
        _sample((3, 2, 6, 5), (3, 2, 4, 3), windows=[(1, 2, 0)], kernel=(2,)),
        _sample((0, 4, 3), (0, 3, 2), windows=[(1, 1, 0)], kernel=(2,)),
    )

    def infer(self, *kinds: Kind) -> Kind:
        x, y = kinds
        d = len(self.windows)
        return kind_of((*x.shape[: -d - 2], *self.kernel, x.shape[-1], y.shape[-1]), x.dtype)

    def check(self, x: Kind, y: Kind) -> None:
        super().check(x, y)
        need(len(self.kernel) == len(self.windows), f"kernel {self.kernel}")
        d = len(self.windows)
        need(x.shape[-d - 2] == y.shape[-d - 2], f"operands {x} and {y}")

    def flops(self, out: Kind, *kinds: Kind) -> float:
        return 2.0 * float(out.size) * float(kind_of(kinds[1].shape[-len(self.windows) - 2 : -1], dt.float32).size)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, y = (v.astype(np.float64) for v in values)
        d = len(self.windows)
        kernel = [int(n) for n in self.kernel]
        out = np.zeros((*x.shape[: -d - 2], *kernel, x.shape[-1], y.shape[-1]))
        for member in np.ndindex(*x.shape[: -d - 2]):
            seen = _windows_of(x[member], y.shape[-d - 1 : -1], kernel, self.windows)
            out[member] = np.tensordot(seen, y[member], (range(d + 1), range(d + 1)))
        return out.astype(values[0].dtype)

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        x, y = primals
        d = len(self.windows)
        batch = cotangent.ndim - d - 2
        # (…, kernel…, C, O) as weights are: (…, O, kernel…, C)
        order = (*range(batch), cotangent.ndim - 1, *range(batch, batch + d), cotangent.ndim - 2)
        weights = transpose(cotangent, order)
        if position == 0:
            return _to_input(self.windows, weights, y, x.shape)
        places = tuple([y.shape[axis] for axis in _spatial(y, self.windows)])
        return bind(Convolve(self.steps, self.gaps, self.lows, places), x, weights)


def _to_input(windows: Windows, w: Node, cotangent: Node, shape: Shape) -> Node:
    """The derivative of a convolution with respect to its input: a convolution of the cotangent, with zeros where
    windows step over elements, with the weights turned round."""
    spatial = _spatial(w, windows)
    kernel = [int(w.shape[axis]) for axis in spatial]
    places = [cotangent.shape[axis] for axis in spatial]
    sizes = tuple([(p - 1) * window.step + 1 for p, window in zip(places, windows, strict=True)])
    spread = _dilated(cotangent, windows, sizes)
    starts = tuple([w.shape[axis] - 1 if axis in spatial else 0 for axis in range(w.ndim)])
    turned = bind(Slice(starts, w.shape, tuple([-1 if axis in spatial else 1 for axis in range(w.ndim)])), w)
    batch = w.ndim - len(windows) - 2
    turned = transpose(turned, (*range(batch), w.ndim - 1, *spatial, batch))
    back: list[Window] = []
    cuts: list[int] = []
    for k, window in zip(kernel, windows, strict=True):
        low = window.gap * (k - 1) - window.low
        cuts.append(max(0, -low))  # windows that see nothing but zeros
        back.append(Window(1, window.gap, max(0, low)))
    if any(cuts):
        first = tuple([cuts[axis - spatial[0]] if axis in spatial else 0 for axis in range(w.ndim)])
        sizes = tuple([n - c for n, c in zip(spread.shape, first, strict=True)])
        spread = bind(Slice(first, sizes, (1,) * w.ndim), spread)
    return bind(Convolve(*parts_of(back), tuple([shape[axis] for axis in spatial])), spread, turned)
