"""Which kernels make a transform, by its length and by how its operand and result lie.

Every way gives the same bits: what is added to what is fixed by the length (`factors.py`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.config import config
from weft.dtypes import Dtype
from weft.passes.lower import to_int
from weft.passes.views import contiguous
from weft.targets.axes import Axis, axes_of, merged, product, scaled, words_of
from weft.targets.cpu import moves
from weft.targets.cpu.fft import factors, steps
from weft.targets.cpu.fft.folding import Fold, fold
from weft.targets.cpu.fft.kernel import Transform
from weft.targets.cpu.fft.steps import TransformSteps
from weft.targets.cpu.matmul.machine import machine

_FEW: Final = 4
"""Neighbouring transforms of which fewer are too few for the lanes of any vector."""
_NEAR: Final = 1 << 15
"""Bytes of scratch memory that stay in the first-level cache, about, with one transform for each lane."""
_NEAR_POWERS: Final = 1 << 17
"""The same where elements of one transform would be picked one by one."""
_SHORT: Final = 128
_WASTE: Final = 1.25
"""Lanes that there are for each element of a transform which is worth turning many for."""


def complex_transform(x: Layout, out: Layout, axis: int, inverse: bool, scale: float) -> Lowering:
    """Complex to complex. Pointers: operand, result."""
    work = _Work(x, out, axis, inverse, scale)
    if 0 not in out.shape:
        work.transform(x, Pointer(0), out, Pointer(1), int(out.shape[axis]))
    return work.lowering()


def real_transform(x: Layout, out: Layout, axis: int, scale: float) -> Lowering:
    """Real to the first half of its spectrum."""
    n, work = int(x.shape[axis]), _Work(x, out, axis, False, scale)
    if 0 in out.shape:
        return work.lowering()
    if n % 2:
        work.transform(x, Pointer(0), out, Pointer(1), n, load="real", stored=n // 2 + 1)
        return work.lowering()
    middle = work.room(n // 2)
    work.transform(x, Pointer(0), *middle, n // 2, load="pairs")
    work.fold("untangle", middle, (out, Pointer(1)), n // 2)
    return work.lowering()


def real_inverse(x: Layout, out: Layout, axis: int, scale: float) -> Lowering:
    """The first half of a spectrum to reals."""
    n, work = int(out.shape[axis]), _Work(x, out, axis, True, scale)
    if 0 in out.shape:
        return work.lowering()
    given = work.compact(x, Pointer(0))
    middle = work.room(n if n % 2 else n // 2)
    work.fold("extend" if n % 2 else "tangle", given, middle, n if n % 2 else n // 2)
    if n % 2:
        work.transform(*middle, out, Pointer(1), n, store="real")
    else:
        work.transform(*middle, out, Pointer(1), n // 2, store="pairs")
    return work.lowering()


class _Work:
    """The launches of one operation and their temporaries."""

    def __init__(self, x: Layout, out: Layout, axis: int, inverse: bool, scale: float) -> None:
        self.axis, self.inverse, self.scale = axis, inverse, scale
        self.shape = out.shape
        self.part = dt.real_of(out.dtype)
        self.dtype = dt.complex128 if self.part is dt.float64 else dt.complex64
        self.lanes = machine(config.cpu).vector // self.part.size
        self._launches: list[Launch] = []
        self._temporaries: list[int] = []

    def lowering(self) -> Lowering:
        return Lowering(tuple(self._launches), tuple(self._temporaries))

    # ---- memory ----

    def _temporary(self, nbytes: int) -> Pointer:
        self._temporaries.append(to_int(nbytes))
        return Pointer(1 + len(self._temporaries))

    def _fresh(self, shape: Sequence[int], dtype: Dtype) -> tuple[Layout, Pointer]:
        layout = Layout(tuple(shape), tuple(map(to_int, contiguous(tuple(shape)))), dtype)
        return layout, self._temporary(math.prod(shape) * dtype.size)

    def room(self, n: int) -> tuple[Layout, Pointer]:
        """A temporary of complex numbers, n along the axis."""
        return self._fresh((*self.shape[: self.axis], n, *self.shape[self.axis + 1 :]), self.dtype)

    def compact(self, x: Layout, at: Pointer) -> tuple[Layout, Pointer]:
        """The operand as it is if it is contiguous, else a copy."""
        if tuple(x.strides) == tuple(contiguous(x.shape)):
            return x, at
        return self._copied(x, at)

    def _copied(self, x: Layout, at: Pointer) -> tuple[Layout, Pointer]:
        layout, to = self._fresh(x.shape, x.dtype)
        self._launches += moves.copy(x, layout, at, to)
        return layout, to

    def fold(self, what: str, given: tuple[Layout, Pointer], result: tuple[Layout, Pointer], h: int) -> None:
        (x, from_), (y, to) = given, result
        rows, inner = math.prod(x.shape[: self.axis]), math.prod(x.shape[self.axis + 1 :])
        lengths = (int(x.shape[self.axis]), int(y.shape[self.axis]))
        kernel = Fold(what, self.dtype, self.lanes, inner != 1)
        self._launches.append(fold(kernel, h, rows, inner, lengths, from_, to))

    # ---- ways ----

    def transform(
        self,
        x: Layout,
        from_: Pointer,
        out: Layout,
        to: Pointer,
        n: int,
        load: str = "complex",
        store: str = "complex",
        stored: int | None = None,
    ) -> None:
        """A transform of length n along the axis; `out` is contiguous."""
        whole = factors.plan(n, self.part.size)
        plan, count = whole.split, n if stored is None else stored
        if plan.n2 == 1 or self._is_across(x, out, whole):
            return self._across(x, from_, out, to, n, load, store, count)
        if not plan.is_long:
            return self._along(x, from_, out, to, n, load, store, count)
        if math.prod(out.shape[self.axis + 1 :]) == 1:
            if x.strides[self.axis] != 1:
                x, from_ = self._copied(x, from_)
            return self._long(plan, self._axes(x, out)[1], from_, to, n, load, store, count)
        order = [*(i for i in range(len(out.shape)) if i != self.axis), self.axis]
        turned, given = self._copied(_permuted(x, order), from_)
        result, at = self._fresh(_permuted(out, order).shape, out.dtype)
        axis, self.axis = self.axis, len(order) - 1
        self._long(plan, self._axes(turned, result)[1], given, at, n, load, store, count)
        self.axis = axis
        self._launches += moves.copy(result, _permuted(out, order), at, to)
        return None

    def _is_across(self, x: Layout, out: Layout, whole: factors.Plan) -> bool:
        """Whether lanes shall be transforms: where neighbours fill them; or where each is contiguous, many of them stay
        in the cache, and elements of one would not fill the lanes, or be in another order."""
        plan = whole.split
        if plan.is_long:
            return False
        if self._lane_axis(x, out) is not None:
            return True
        own, axes = self._axes(x, out)
        if own.strides != (x.dtype.size, out.dtype.size) or not self._is_turned(whole):
            return False
        return product(axes) >= _FEW * self.lanes

    def _is_turned(self, whole: factors.Plan) -> bool:
        plan, lanes = whole.split, self.lanes
        nbytes = 4 * plan.n * lanes * self.part.size
        if whole.way == "powers":
            return nbytes <= _NEAR_POWERS
        if self.part.size > 4 or nbytes > _NEAR:
            return False
        cells = plan.n1 * -(-plan.n2 // lanes) + plan.n2 * -(-plan.n1 // lanes)
        return plan.n < _SHORT or cells * lanes > 2 * plan.n * _WASTE

    def _axes(self, x: Layout, out: Layout) -> tuple[Axis, list[Axis]]:
        """(the strides along the axis, the other axes)."""
        shape = tuple(1 if i == self.axis else n for i, n in enumerate(out.shape))
        axes = axes_of(shape, scaled(x), scaled(out))
        own = axes.pop(self.axis)
        return own, merged(axes)

    def _lane_axis(self, x: Layout, out: Layout) -> int | None:
        """The number of the axis along which neighbours lie next to each other in operand and result."""
        _, axes = self._axes(x, out)
        sizes, least = (x.dtype.size, out.dtype.size), max(_FEW, self.lanes // 2)
        return next((i for i, axis in enumerate(axes) if axis.strides == sizes and axis.size >= least), None)

    def _across(
        self, x: Layout, from_: Pointer, out: Layout, to: Pointer, n: int, load: str, store: str, count: int
    ) -> None:
        own, outer = self._axes(x, out)
        lane = self._lane_axis(x, out)
        if lane is None and outer:
            lane = max(range(len(outer)), key=lambda i: (outer[i].size, i))
        inner = outer.pop(lane) if lane is not None else Axis(1, (x.dtype.size, out.dtype.size))
        lies = tuple(
            "near" if inner.strides[k] == size else "turned" if own.strides[k] == size else "far"
            for k, size in enumerate((x.dtype.size, out.dtype.size))
        )
        load = "complex" if lies[0] == "turned" and load == "pairs" else load
        store = "complex" if lies[1] == "turned" and store == "pairs" else store
        found = steps.across(n, self.part.size, self.lanes, count)
        blocks = -(-inner.size // self.lanes)
        kernel = self._kernel("across", found, len(outer), load, store, lies)
        numbers = {"j0": own.strides[0], "j1": own.strides[1], "chunk": self.lanes, "blocks": blocks}
        self._launch(kernel, found, [from_, to], outer, inner, numbers, n * self.lanes)

    def _along(
        self, x: Layout, from_: Pointer, out: Layout, to: Pointer, n: int, load: str, store: str, count: int
    ) -> None:
        """Elements that lie one after the other are read and written as they lie, and pairs of reals are complex
        numbers there; others are picked one by one."""
        own, outer = self._axes(x, out)
        plan = factors.plan(n, self.part.size)
        picked, put = (
            0 if stride == size else 2 if kind == "pairs" else 1
            for kind, stride, size in zip((load, store), own.strides, (x.dtype.size, out.dtype.size), strict=True)
        )
        strides = [
            own.strides[0] if picked else self.part.size * (1 + (load != "real")),
            own.strides[1] if put else self.part.size * (1 + (store != "real")),
        ]
        load, store = ("complex" if kind == "pairs" and not by else kind for kind, by in ((load, picked), (store, put)))
        found = steps.along(n, self.part.size, self.lanes, count, picked, put)
        kernel = self._kernel("along", found, len(outer), load, store)
        numbers = {"j0": strides[0], "j1": strides[1], "chunk": 0, "blocks": 1}
        return self._launch(kernel, found, [from_, to], outer, Axis(1, (0, 0)), numbers, plan.split.n)

    def _long(
        self,
        plan: factors.Split,
        outer: list[Axis],
        from_: Pointer,
        to: Pointer,
        n: int,
        load: str,
        store: str,
        count: int,
    ) -> None:
        """The axis is contiguous; pairs of reals are complex numbers there."""
        load, store = ("complex" if kind == "pairs" else kind for kind in (load, store))
        size, alone = self.part.size, product(outer) == 1
        if plan.n == n:
            halves = steps.halves(plan, size, self.lanes, n, count, alone=alone)
            return self._two(halves, outer, from_, to, load, store, True, True)
        nbytes = plan.n * self.dtype.size
        middle, first, second = self._between(outer, nbytes)
        before = steps.halves(plan, size, self.lanes, n, plan.n, n, "before", alone)
        after = steps.halves(plan.swapped, size, self.lanes, plan.n, count, n, "after", alone)
        self._two(before, first, from_, middle, load, "complex", True, False)
        return self._two(after, second, middle, to, "complex", store, False, True)

    def _between(self, outer: Sequence[Axis], nbytes: int) -> tuple[Pointer, list[Axis], list[Axis]]:
        """A temporary of so many bytes for each transform, and the axes of a kernel to it and of one from it."""
        strides = [to_int(s) * nbytes for s in contiguous(tuple(axis.size for axis in outer))]
        pairs = list(zip(outer, strides, strict=True))
        to, from_ = (
            [Axis(a.size, (a.strides[0], s)) for a, s in pairs],
            [Axis(a.size, (s, a.strides[1])) for a, s in pairs],
        )
        return self._temporary(product(outer) * nbytes), to, from_

    def _two(
        self,
        halves: steps.Halves,
        outer: Sequence[Axis],
        from_: Pointer,
        to: Pointer,
        load: str,
        store: str,
        is_first: bool,
        is_last: bool,
    ) -> None:
        """The kernels of a long transform. `is_first` and `is_last`: parts change places there if it is inverse."""
        nbytes = halves.turned * halves.stride
        middle, first, second = self._between(outer, nbytes)
        none = Axis(1, (0, 0))
        kernel = self._kernel("columns", halves.first, len(outer), load)
        numbers = {"j0": 0, "j1": 0, "chunk": halves.chunk, "blocks": halves.blocks}
        each = halves.first.scratch // 2 // self.dtype.size
        self._launch(kernel, halves.first, [from_, middle], first, none, numbers, each, is_first, False)
        if halves.between is not None:
            within = [Axis(a.size, (a.strides[0], a.strides[0])) for a in second]
            kernel = self._kernel("strides", halves.between, len(outer))
            blocks = halves.turned * halves.groups
            numbers = {"j0": halves.stride, "j1": halves.groups, "chunk": 0, "blocks": blocks}
            each = halves.between.scratch // 2 // self.dtype.size
            self._launch(kernel, halves.between, [middle, middle], within, none, numbers, each, False, False)
        kernel = self._kernel("rows", halves.second, len(outer), store=store)
        blocks = halves.turned * halves.pieces
        numbers = {"j0": halves.stride, "j1": halves.turned, "chunk": 0, "blocks": blocks}
        each = halves.second.scratch // 2 // self.dtype.size
        self._launch(kernel, halves.second, [middle, to], second, none, numbers, each, False, is_last)

    # ---- launches ----

    def _kernel(
        self,
        form: str,
        found: TransformSteps,
        outer: int,
        load: str = "complex",
        store: str = "complex",
        lies: tuple[str, ...] = ("near", "near"),
    ) -> Transform:
        return Transform(form, self.part, self.lanes, outer, found.radices, found.codes, load, store, lies)  # type: ignore[arg-type]

    def _launch(
        self,
        kernel: Transform,
        found: TransformSteps,
        pointers: Sequence[Pointer],
        outer: Sequence[Axis],
        inner: Axis,
        numbers: dict[str, int],
        elements: int,
        is_first: bool = True,
        is_last: bool = True,
    ) -> None:
        """A launch of a kernel, a unit of which takes so many elements."""
        imag = self.lanes * self.part.size
        swap_in, swap_out = self.inverse and is_first, self.inverse and is_last
        units = product(outer) * numbers["blocks"]
        scale = self.scale if is_last else 1.0
        numbers = numbers | {
            "units": units, "steps": found.address, "count": found.count,
            "scale": struct.unpack("<q", struct.pack("<d", scale))[0],
            "real_in": imag if swap_in else 0, "imag_in": 0 if swap_in else imag,
            "real_out": imag if swap_out else 0, "imag_out": 0 if swap_out else imag,
        }  # fmt: skip
        words = words_of(kernel.fields(), pointers, outer, inner, numbers)
        work = moves.weigh(units, elements * self.dtype.size, 8)
        self._launches.append(Launch(kernel.source(), words, work, found.scratch))


def _permuted(x: Layout, order: Sequence[int]) -> Layout:
    return Layout(tuple(x.shape[i] for i in order), tuple(x.strides[i] for i in order), x.dtype)
