"""Convolutions: sums of products over windows, and their derivatives. The bits depend on operand values, shapes and
dtypes only (docs/numerics.md): terms are summed over the places of the window and then the channels, in the order of
tiled products, or in one chain where groups have few channels (`few_in_groups`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from weft import dtypes as dt
from weft.graph.dims import dim_max, same_shape
from weft.graph.node import ArrayType, Node, Shape, Size, kind_of
from weft.primitives.base import KernelOperation, Multilinear, Sample, bind, move_batch_to_front, zeros
from weft.primitives.checks import equal_shapes, need
from weft.primitives.elementwise import draw
from weft.primitives.views import Slice, SliceUpdate, reshape, transpose


class Window(NamedTuple):
    """How a window goes along one axis: `step` from place to place, `gap` between its elements, beginning with `low`
    zeros before the first element."""

    step: int
    gap: int
    low: int


Windows = tuple[Window, ...]


def _spatial(x: ArrayType | Node, windows: Windows) -> range:
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


_FEW: Final = 8


def few_in_groups(each: int, per_group: int) -> bool:
    """Whether groups of so many channels and outputs are summed in one chain for each output, several groups side by
    side. It decides the bits, so nothing else may have a say in it."""
    return each <= _FEW and per_group <= _FEW


_PADDED: Final = 16
"""With fewer channels zeros are put around an array, so that the elements of a row of a window lie together."""


def convolve_forward(windows: Windows, groups: int, places: Shape, x: Node, w: Node) -> Node:
    """`Convolve`, of an array with the zeros around it where its channels are few."""
    channels = x.shape[-1]
    if groups == 1 and type(channels) is int and channels < _PADDED:
        x, windows = _with_zeros(windows, places, x, w), tuple([window._replace(low=0) for window in windows])
    return bind(Convolve(*parts_of(windows), groups, places), x, w)


def _with_zeros(windows: Windows, places: Shape, x: Node, w: Node) -> Node:
    """An array with the zeros that windows see around it."""
    starts, shape = [0] * x.ndim, list(x.shape)
    for axis, window, count in zip(_spatial(x, windows), windows, places, strict=True):
        after = (count - 1) * window.step + (w.shape[axis] - 1) * window.gap - window.low + 1 - x.shape[axis]
        starts[axis], shape[axis] = window.low, window.low + x.shape[axis] + dim_max(after, 0)
    if same_shape(shape, x.shape):
        return x
    return bind(SliceUpdate(tuple(starts), (1,) * x.ndim), zeros(kind_of(tuple(shape), x.dtype)), x)


class _Convolution(Multilinear, KernelOperation):
    """What both have: windows (for each axis a step, a gap, and zeros before the first element), leading axes that are
    equal and go together, and their dtypes. Channels and outputs are in `groups`: an output sees the channels of its
    own."""

    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    lows: tuple[int, ...]
    groups: int
    linear = (0, 1)
    dtypes = (dt.float32, dt.float16, dt.bfloat16, dt.float64)
    tolerance = {dt.float32: 32, dt.float64: 32, dt.float16: 1, dt.bfloat16: 1}

    @property
    def windows(self) -> Windows:
        return tuple([Window(*window) for window in zip(self.steps, self.gaps, self.lows, strict=True)])

    def check(self, x: ArrayType, y: ArrayType) -> None:
        self.check_dtypes(x, y)
        d = len(self.windows)
        need(d >= 1 and all(w.step >= 1 and w.gap >= 1 for w in self.windows), f"windows {self.windows}")
        need(x.ndim == y.ndim >= d + 2, f"operands {x} and {y}")
        need(self.groups >= 1, f"{self.groups} groups")
        need(equal_shapes(x.shape[: -d - 2], y.shape[: -d - 2]), f"operands {x} and {y}")

    def batch(self, inputs: tuple[Node, ...], axes: tuple[int | None, ...], size: Size) -> tuple[Node, int | None]:
        x, y = (move_batch_to_front(operand, axis, size) for operand, axis in zip(inputs, axes, strict=True))
        return bind(self, x, y), 0


def parts_of(windows: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The steps, gaps and lows of windows: the first parameters of both."""
    return tuple([window[0] for window in windows]), tuple([w[1] for w in windows]), tuple([w[2] for w in windows])


def _sample(
    x: tuple[int, ...], y: tuple[int, ...], windows: Sequence[Sequence[int]], groups: int = 1, **params: object
) -> Sample:
    steps, gaps, lows = parts_of(windows)
    return Sample(
        lambda rng, dtype: [draw(rng, dtype, x), draw(rng, dtype, y)],
        {"steps": steps, "gaps": gaps, "lows": lows, "groups": groups, **params},
    )


class Convolve(_Convolution):
    """out[…, i, p, o] = the sum over k and c of x[…, i, p * step + k * gap - low, c] * w[…, o, k, c], where p and k
    have an index for each spatial axis; `places` is how many p there are. Elements of x that do not exist are 0. With
    groups, c counts the channels of the output's group."""

    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    lows: tuple[int, ...]
    groups: int
    places: Shape
    samples = (
        _sample((2, 9, 3), (4, 3, 3), windows=[(1, 1, 0)], places=(7,)),
        _sample((2, 9, 8, 16), (5, 3, 1, 16), windows=[(2, 1, 1), (1, 2, 0)], places=(5, 8)),
        _sample((2, 9, 4, 17), (37, 3, 1, 17), windows=[(1, 1, 1), (3, 2, 2)], places=(9, 2)),
        _sample((2, 6, 7, 32), (16, 2, 1, 32), windows=[(1, 1, 1), (1, 1, 1)], places=(7, 9)),
        _sample((3, 1, 6, 5, 4, 2), (3, 4, 2, 3, 1, 2), windows=[(1, 2, 0), (2, 1, 3), (3, 1, 0)], places=(4, 4, 2)),
        _sample((1, 20, 8), (40, 8, 8), windows=[(1, 1, 0)], places=(13,)),
        _sample((1, 10, 16), (64, 2, 16), windows=[(1, 1, 1)], places=(11,)),
        _sample((0, 4, 3), (2, 2, 3), windows=[(1, 1, 0)], places=(3,)),
        _sample((2, 4, 0), (2, 2, 0), windows=[(1, 1, 0)], places=(3,)),
        _sample((1, 3, 2), (2, 5, 2), windows=[(1, 1, 4)], places=(7,)),
        _sample((2, 9, 12, 20), (20, 3, 3, 1), windows=[(1, 1, 1), (1, 1, 1)], groups=20, places=(9, 12)),
        _sample((2, 7, 5, 6), (12, 3, 2, 1), windows=[(2, 1, 1), (3, 2, 2)], groups=6, places=(4, 3)),
        _sample((2, 2, 25, 21), (2, 14, 2, 3), windows=[(1, 1, 1)], groups=7, places=(26,)),
        _sample((1, 3, 4, 3, 18), (6, 1, 2, 3, 9), windows=[(2, 1, 0), *[(1, 1, 1)] * 2], groups=2, places=(2, 5, 3)),
        _sample((1, 3, 4), (4, 5, 1), windows=[(1, 1, 4)], groups=4, places=(7,)),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        x, w = kinds
        d = len(self.windows)
        return kind_of((*x.shape[: -d - 1], *self.places, w.shape[-d - 2]), x.dtype)

    def check(self, x: ArrayType, y: ArrayType) -> None:
        super().check(x, y)
        need(min(self.lows) >= 0, f"windows {self.windows}")
        need(len(self.places) == len(self.windows), f"places {self.places}")
        need(x.shape[-1] == y.shape[-1] * self.groups, f"operands {x} and {y} in {self.groups} groups")
        need(y.shape[-len(self.windows) - 2] % self.groups == 0, f"operands {x} and {y} in {self.groups} groups")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return 2.0 * float(out.size) * float(kind_of(kinds[1].shape[-len(self.windows) - 1 :], dt.float32).size)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, w = (v.astype(np.float64) for v in values)
        d = len(self.windows)
        places = [int(n) for n in self.places]
        out = np.zeros((*x.shape[: -d - 1], *places, w.shape[-d - 2]))
        for member in np.ndindex(*x.shape[: -d - 2]):
            seen = _windows_of(x[member], places, w.shape[-d - 1 : -1], self.windows)
            for c, o in _parts(self.groups, x.shape[-1], w.shape[-d - 2]):
                own = np.tensordot(seen[..., c], w[member][o], (range(d + 1, 2 * d + 2), range(1, d + 2)))
                out[member][..., o] = own
        return out.astype(values[0].dtype)

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        x, w = primals
        if position == 0:
            return _to_input(self.windows, self.groups, w, cotangent, x.shape)
        spatial = _spatial(w, self.windows)
        kernel = tuple([w.shape[axis] for axis in spatial])
        op = ConvolveWeights(self.steps, self.gaps, self.lows, self.groups, kernel)
        return _as_weights(bind(op, x, cotangent), len(spatial))


class ConvolveWeights(_Convolution):
    """The derivative of a convolution with respect to its weights: out[…, k, c, o] = the sum over i and p of
    x[…, i, p * step + k * gap - low, c] * y[…, i, p, o]; `kernel` is how many k there are. With groups, c counts the
    channels of the output's group."""

    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    lows: tuple[int, ...]
    groups: int
    kernel: Shape
    samples = (
        _sample((2, 9, 3), (2, 7, 4), windows=[(1, 1, 0)], kernel=(3,)),
        _sample((2, 9, 3, 16), (2, 5, 4, 5), windows=[(2, 1, 1), (1, 2, 1)], kernel=(3, 2)),
        _sample((2, 6, 3, 8), (2, 6, 3, 17), windows=[(1, 1, 1), (1, 1, 1)], kernel=(3, 3)),
        _sample((3, 2, 6, 5), (3, 2, 4, 3), windows=[(1, 2, 0)], kernel=(2,)),
        _sample((1, 6, 16), (1, 7, 64), windows=[(1, 1, 1)], kernel=(2,)),
        _sample((0, 4, 3), (0, 3, 2), windows=[(1, 1, 0)], kernel=(2,)),
        _sample((2, 5, 12, 20), (2, 5, 12, 20), windows=[(1, 1, 1), (1, 1, 1)], groups=20, kernel=(3, 3)),
        _sample((2, 7, 5, 6), (2, 4, 3, 12), windows=[(2, 1, 1), (3, 2, 2)], groups=6, kernel=(3, 2)),
        _sample((2, 2, 25, 21), (2, 2, 26, 14), windows=[(1, 1, 1)], groups=7, kernel=(2,)),
        _sample((1, 3, 4, 3, 18), (1, 2, 5, 3, 6), windows=[(2, 1, 0), *[(1, 1, 1)] * 2], groups=2, kernel=(1, 2, 3)),
        _sample((1, 3, 4), (1, 7, 4), windows=[(1, 1, 4)], groups=4, kernel=(5,)),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        x, y = kinds
        d = len(self.windows)
        return kind_of((*x.shape[: -d - 2], *self.kernel, x.shape[-1] // self.groups, y.shape[-1]), x.dtype)

    def check(self, x: ArrayType, y: ArrayType) -> None:
        super().check(x, y)
        need(min(self.lows) >= 0, f"windows {self.windows}")
        need(len(self.kernel) == len(self.windows), f"kernel {self.kernel}")
        d = len(self.windows)
        need(x.shape[-d - 2] == y.shape[-d - 2], f"operands {x} and {y}")
        need(all(y.shape[-1] % self.groups == 0 for y in (x, y)), f"operands {x} and {y} in {self.groups} groups")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        return 2.0 * float(out.size) * float(kind_of(kinds[1].shape[-len(self.windows) - 2 : -1], dt.float32).size)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, y = (v.astype(np.float64) for v in values)
        d = len(self.windows)
        kernel = [int(n) for n in self.kernel]
        out = np.zeros((*x.shape[: -d - 2], *kernel, x.shape[-1] // self.groups, y.shape[-1]))
        for member in np.ndindex(*x.shape[: -d - 2]):
            seen = _windows_of(x[member], y.shape[-d - 1 : -1], kernel, self.windows)
            for c, o in _parts(self.groups, x.shape[-1], y.shape[-1]):
                own = np.tensordot(seen[..., c], y[member][..., o], (range(d + 1), range(d + 1)))
                out[member][..., o] = own
        return out.astype(values[0].dtype)

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        x, y = primals
        weights = _as_weights(cotangent, len(self.windows))
        if position == 0:
            return _to_input(self.windows, self.groups, weights, y, x.shape)
        places = tuple([y.shape[axis] for axis in _spatial(y, self.windows)])
        return bind(Convolve(self.steps, self.gaps, self.lows, self.groups, places), x, weights)


# ---- the derivative with respect to the input ----


class ConvolveBack(_Convolution):
    """out[…, i, q, o] = the sum over k and c of x[…, i, (q + low - k * gap) / step, c] * w[…, o, k, c], over those k
    for which that is a whole number; `sizes` is how many q there are, and a `low` may be negative. Elements of x that
    do not exist are 0. With groups, c counts the channels of the output's group.

    It is one convolution for each residue of q by the step (`residues`), and summed like these: nothing is multiplied
    with zeros between elements."""

    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    lows: tuple[int, ...]
    groups: int
    sizes: Shape
    samples = (
        _sample((2, 4, 16), (3, 3, 16), windows=[(2, 1, 1)], sizes=(8,)),
        _sample((2, 4, 3, 18), (33, 3, 2, 18), windows=[(2, 1, 1), (3, 2, 2)], sizes=(7, 6)),
        _sample((3, 1, 3, 2, 3, 2), (3, 4, 2, 3, 1, 2), windows=[(1, 2, 0), (2, 1, 3), (3, 1, 0)], sizes=(4, 2, 7)),
        _sample((1, 3, 5, 20), (3, 3, 4, 20), windows=[(2, 1, 1), (2, 1, 1)], sizes=(5, 10)),
        _sample((1, 4, 2), (2, 3, 2), windows=[(2, 4, -1)], sizes=(9,)),
        _sample((1, 2, 17, 20), (3, 5, 3, 20), windows=[(1, 1, 2), (2, 1, 1)], sizes=(2, 34)),
        _sample((2, 0, 3), (2, 2, 3), windows=[(2, 1, 0)], sizes=(3,)),
        _sample((2, 4, 6, 20), (20, 3, 3, 1), windows=[(2, 1, 1), (2, 1, 1)], groups=20, sizes=(7, 12)),
        _sample((2, 4, 3, 12), (6, 2, 2, 2), windows=[(3, 1, 0), (2, 2, 1)], groups=6, sizes=(10, 5)),
        _sample((1, 2, 5, 3, 18), (6, 1, 2, 3, 9), windows=[(2, 1, 0), *[(2, 1, 1)] * 2], groups=2, sizes=(3, 9, 5)),
    )

    def infer(self, *kinds: ArrayType) -> ArrayType:
        x, w = kinds
        d = len(self.windows)
        return kind_of((*x.shape[: -d - 1], *self.sizes, w.shape[-d - 2]), x.dtype)

    def check(self, x: ArrayType, y: ArrayType) -> None:
        super().check(x, y)
        need(len(self.sizes) == len(self.windows), f"sizes {self.sizes}")
        need(x.shape[-1] == y.shape[-1] * self.groups, f"operands {x} and {y} in {self.groups} groups")
        need(y.shape[-len(self.windows) - 2] % self.groups == 0, f"operands {x} and {y} in {self.groups} groups")

    def flops(self, out: ArrayType, *kinds: ArrayType) -> float:
        each = 2.0 * float(out.size) * float(kind_of(kinds[1].shape[-len(self.windows) - 1 :], dt.float32).size)
        return each / math.prod(self.steps)

    def reference(self, *values: np.ndarray) -> np.ndarray:
        x, w = (v.astype(np.float64) for v in values)
        d = len(self.windows)
        sizes = [int(n) for n in self.sizes]
        out = np.zeros((*x.shape[: -d - 1], *sizes, w.shape[-d - 2]))
        spatial = range(out.ndim - d - 1, out.ndim - 1)
        for tap in np.ndindex(*w.shape[-d - 1 : -1]):
            from_, to = [slice(None)] * x.ndim, [slice(None)] * x.ndim
            for axis, k, (step, gap, low) in zip(spatial, tap, self.windows, strict=True):
                first = k * gap - low  # where element 0 of x goes
                begin = max(0, -(first // step))
                count = max(0, min(x.shape[axis] - begin, -(-(out.shape[axis] - first) // step) - begin))
                from_[axis], to[axis] = slice(begin, begin + count), slice(first + begin * step, None, step)
                if count == 0:
                    break
                to[axis] = slice(first + begin * step, first + (begin + count - 1) * step + 1, step)
            else:
                seen, weights = x[tuple(from_)], w[(..., *tap, slice(None))]
                for c, o in _parts(self.groups, x.shape[-1], w.shape[-d - 2]):
                    for member in np.ndindex(*x.shape[: -d - 2]):
                        own = np.tensordot(seen[member][..., c], weights[member][o], ((d + 1,), (1,)))
                        out[member][(*tuple(to)[len(member) : -1], o)] += own
        return out.astype(values[0].dtype)

    def transpose(self, position: int, out: Node, primals: tuple[Node, ...], cotangent: Node) -> Node:
        x, w = primals
        d, spatial = len(self.windows), _spatial(x, self.windows)
        windows = tuple([window._replace(low=max(0, window.low)) for window in self.windows])
        cuts = _at(x.shape, spatial, 0, [max(0, -window.low) for window in self.windows])
        if any(cuts):  # elements of the result before all that windows see
            left = tuple([dim_max(n - cut, 0) for n, cut in zip(cotangent.shape, cuts, strict=True)])
            cotangent = bind(Slice(cuts, left, (1,) * len(cuts)), cotangent)
        if position == 0:
            places = tuple([x.shape[axis] for axis in spatial])
            return convolve_forward(windows, self.groups, places, cotangent, _exchanged(w, self.groups, d))
        kernel = tuple([w.shape[axis] for axis in spatial])
        found = bind(ConvolveWeights(*parts_of(windows), self.groups, kernel), cotangent, x)
        return _exchanged(_as_weights(found, d), self.groups, d)


class Residue(NamedTuple):
    """Along one axis, the places first, first + step, …, which meet the elements k, k + stride, … of windows alone:
    they are a convolution with these `taps` (none, if they meet nothing), turned round, and with a window that begins
    `low` before the first element of x, or behind it."""

    first: int
    k: int
    stride: int
    taps: int
    gap: int
    low: int


def residues(window: Window, kernel: int, size: Size) -> list[Residue]:
    """The parts of an axis."""
    step, gap, low = window
    common = math.gcd(step, gap)
    stride = step // common
    found = []
    for first in range(step):
        wanted = (first + low) % step
        if first >= size:
            break
        k = next((k for k in range(min(stride, kernel)) if (k * gap - wanted) % step == 0), kernel)
        taps = -(-(kernel - k) // stride)
        before = (first + low - k * gap) // step if taps else 0
        found.append(Residue(first, k, stride, taps, gap // common, max(0, taps - 1) * (gap // common) - before))
    return found


def _to_input(windows: Windows, groups: int, w: Node, cotangent: Node, shape: Shape) -> Node:
    """The derivative of a convolution with respect to its input."""
    return convolve_back(windows, groups, _exchanged(w, groups, len(windows)), cotangent, shape)


def convolve_back(windows: Windows, groups: int, w: Node, x: Node, shape: Shape) -> Node:
    """`ConvolveBack` with a result of this shape: a plain convolution where all steps are 1, and of an array with zeros
    around it where its channels are few."""
    spatial = _spatial(w, windows)
    kernel = [int(w.shape[axis]) for axis in spatial]
    sizes = tuple([shape[axis] for axis in spatial])
    axes = [residues(*axis) for axis in zip(windows, kernel, sizes, strict=True)]
    if not all(axes):
        return zeros(kind_of(shape, x.dtype))
    if all(window.step == 1 for window in windows):
        return _without_steps([part for (part,) in axes], groups, w, x, windows, shape)
    channels = x.shape[-1]
    if groups == 1 and type(channels) is int and channels < _PADDED:
        x, windows = _with_zeros_back(windows, axes, sizes, x)
    return bind(ConvolveBack(*parts_of(windows), groups, sizes), x, w)


def _with_zeros_back(windows: Windows, axes: Sequence[list[Residue]], sizes: Shape, x: Node) -> tuple[Node, Windows]:
    """An array with the zeros that the windows of all residues see around it, and where they begin in it."""
    starts, shape, moved = [0] * x.ndim, list(x.shape), []
    for axis, window, parts, size in zip(_spatial(x, windows), windows, axes, sizes, strict=True):
        low = max([0, *(part.low for part in parts)])
        after: Size = 0
        for part in parts:
            places = -(-(size - part.first) // window.step)
            last = places - 1 + max(0, part.taps - 1) * part.gap - part.low
            after = dim_max(after, last + 1 - x.shape[axis])
        starts[axis], shape[axis] = low, low + x.shape[axis] + after
        moved.append(window._replace(low=window.low + low * window.step))
    if not same_shape(shape, x.shape):
        x = bind(SliceUpdate(tuple(starts), (1,) * x.ndim), zeros(kind_of(tuple(shape), x.dtype)), x)
    return x, tuple(moved)


def _without_steps(parts: Sequence[Residue], groups: int, w: Node, x: Node, windows: Windows, shape: Shape) -> Node:
    spatial = _spatial(x, windows)
    last = [part.k + (part.taps - 1) * part.stride for part in parts]
    sizes = list(w.shape)
    for axis, part in zip(spatial, parts, strict=True):
        sizes[axis] = part.taps
    back = _at(shape, spatial, 1, [-part.stride for part in parts])
    weights = bind(Slice(_at(shape, spatial, 0, last), tuple(sizes), back), w)
    cuts = _at(shape, spatial, 0, [max(0, -part.low) for part in parts])  # windows that see nothing but zeros
    if any(cuts):
        left = tuple([n if not cut else dim_max(n - cut, 0) for n, cut in zip(x.shape, cuts, strict=True)])
        x = bind(Slice(cuts, left, (1,) * len(cuts)), x)
    places = tuple([shape[axis] for axis in spatial])
    back_windows = tuple([Window(1, part.gap, max(0, part.low)) for part in parts])
    return convolve_forward(back_windows, groups, places, x, weights)


def _at(shape: Shape, spatial: range, other: int, numbers: Sequence[int]) -> tuple[int, ...]:
    """These numbers for the spatial axes, another for the rest."""
    return tuple([numbers[axis - spatial[0]] if axis in spatial else other for axis in range(len(shape))])


def _as_weights(found: Node, d: int) -> Node:
    """(…, kernel…, C, O) as weights are: (…, O, kernel…, C)."""
    batch = found.ndim - d - 2
    return transpose(found, (*range(batch), found.ndim - 1, *range(batch, batch + d), found.ndim - 2))


def _exchanged(w: Node, groups: int, d: int) -> Node:
    """(…, O, kernel…, C of a group) as (…, C, kernel…, O of a group)."""
    batch = w.ndim - d - 2
    lead, outputs, kernel, each = w.shape[:batch], w.shape[batch], w.shape[batch + 1 : -1], w.shape[-1]
    if groups == 1:
        return transpose(w, (*range(batch), w.ndim - 1, *range(batch + 1, w.ndim - 1), batch))
    apart = reshape(w, (*lead, groups, outputs // groups, *kernel, each))
    order = (*range(batch + 1), w.ndim, *range(batch + 2, w.ndim), batch + 1)
    return reshape(transpose(apart, order), (*lead, groups * each, *kernel, outputs // groups))


def _parts(groups: int, channels: int, outputs: int) -> list[tuple[slice, slice]]:
    """The channels and the outputs of each group."""
    each, per = channels // groups, outputs // groups
    return [(slice(g * each, (g + 1) * each), slice(g * per, (g + 1) * per)) for g in range(groups)]
