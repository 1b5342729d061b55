"""Real transforms as complex ones of half the length: what is done to the spectrum after it, or before.

Two neighbouring reals are the parts of a complex number. The transform of these numbers is, at k and h - k, all that is
needed for the spectrum of the reals at both; and the other way round. A real transform of odd length has no halves: its
spectrum is extended by its mirror image.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import numpy as np

from weft import dtypes as dt
from weft.codegen.launch import Launch, Pointer
from weft.dtypes import Dtype
from weft.llvm.builder import Builder, Complex, Value
from weft.records import dataclass
from weft.targets.cpu.fft import factors
from weft.targets.cpu.fft.butterflies import times
from weft.targets.cpu.fft.steps import Address, table_address
from weft.targets.cpu.kernel import Frame, NativeKernel, vector_loop
from weft.targets.cpu.moves import weigh

_CHUNK: Final = 2048
"""Elements along the axis that are a unit of work."""


@dataclass(frozen=True, slots=True)
class Fold(NativeKernel):
    """`what`: "untangle" makes the spectrum of 2 h reals (at 0 to h) of the transform of h pairs, "tangle" is its
    inverse but for a factor 2, "extend" makes a whole spectrum of odd length from its first half. Operand and result
    are contiguous; `inner` says that something lies behind the axis, which lanes then run along."""

    title = "fft_fold"
    what: str
    dtype: Dtype
    lanes: int
    inner: bool
    outer = 0

    def __str__(self) -> str:
        return f"fft {self.what} {self.dtype.name} x {self.lanes}{' inner' if self.inner else ''}"

    def fields(self) -> list[str]:
        return ["units", "h", "width", "chunks", "*table", "*p0", "next0", "*p1", "next1"]

    def as_written(self) -> bool:
        return True

    def emit(self, frame: Frame) -> None:
        b = frame.b
        with b.loop(frame.begin, frame.end, 1) as units:
            row, chunk = frame.divide(units.index, frame["chunks"])
            x, y = b.gep(frame["p0"], row * frame["next0"]), b.gep(frame["p1"], row * frame["next1"])
            if self.inner:
                self._rows(frame, x, y, chunk)
            else:
                self._chunk(frame, x, y, chunk)

    # ---- one element ----

    def _result(self, b: Builder, x: Complex, mirrored: Complex, w: Complex | None) -> Complex:
        """What stands at k: x from k, the other from h - k, and exp(-pi i k / h)."""
        if w is None:
            return x
        if self.what == "untangle":
            even = Complex((x.re + mirrored.re) * 0.5, (x.im - mirrored.im) * 0.5)
            odd = Complex((x.im + mirrored.im) * 0.5, (mirrored.re - x.re) * 0.5)
            return even + times(b, odd, w)
        even = Complex(x.re + mirrored.re, x.im - mirrored.im)
        odd = times(b, Complex(x.re - mirrored.re, x.im + mirrored.im), Complex(w.re, -w.im))
        return Complex(even.re - odd.im, even.im + odd.re)

    @property
    def _real_ends(self) -> bool:
        """Whether the imaginary parts of what is read at the ends of the spectrum count as zeros."""
        return self.what != "untangle"

    # ---- lanes along what lies behind the axis ----

    def _rows(self, frame: Frame, x: Value, y: Value, k: Value) -> None:
        """Row k of the result."""
        b, size, h, width = frame.b, self.dtype.size, frame["h"], frame["width"]
        is_first = k.eq(0)
        if self.what == "untangle":
            at, other = b.choose(k.eq(h), 0, k), b.choose(is_first, 0, h - k)
        elif self.what == "tangle":
            at, other = k, h - k
        else:
            at = other = b.choose(k > ((h - 1) >> 1), h - k, k)
        turn = k > ((h - 1) >> 1)
        w = self._scalar_root(frame, k) if self.what != "extend" else None
        row, mirror = (b.gep(x, i * width * size) for i in (at, other))
        target = b.gep(y, k * width * size)

        def each(j: Value, mask: Value | None, state: tuple[()]) -> tuple[()]:
            given = [b.load(b.gep(p, j * size), self.dtype, self.lanes, mask) for p in (row, mirror)]
            if self._real_ends:
                given = [Complex(z.re, b.choose(is_first, 0.0, z.im)) for z in given]  # type: ignore[union-attr]
            value = self._result(b, given[0], given[1], w)  # type: ignore[arg-type]
            if self.what == "extend":
                value = Complex(value.re, b.choose(turn, -value.im, value.im))
            b.store(value, b.gep(target, j * size), mask)
            return state

        vector_loop(b, b.i64(0), width, each, lanes=self.lanes)  # type: ignore[arg-type]

    def _scalar_root(self, frame: Frame, k: Value) -> Complex:
        b = frame.b
        w = b.load(b.gep(frame["table"], k * self.dtype.size), self.dtype, 1)
        assert isinstance(w, Complex)
        return Complex(b.splat(w.re, self.lanes), b.splat(w.im, self.lanes))

    # ---- lanes along the axis ----

    def _chunk(self, frame: Frame, x: Value, y: Value, chunk: Value) -> None:
        """Elements of the result from chunk * _CHUNK + 1 on. The first chunk also has the ends."""
        b, h = frame.b, frame["h"]
        last = h - 1 if self.what != "extend" else (h - 1) >> 1
        start = chunk * _CHUNK + 1
        stop = b.intrinsic("smin", start + _CHUNK, last + 1)
        with b.when(chunk.eq(0)):
            self._ends(frame, x, y)
        lanes, size = self.lanes, self.dtype.size
        each: Callable[..., tuple[()]]

        def folded(k: Value, mask: Value | None, state: tuple[()]) -> tuple[()]:
            there = b.load(b.gep(x, k * size), self.dtype, lanes, mask)
            back = b.load(b.gep(x, (h - k - (lanes - 1)) * size), self.dtype, lanes, _reversed(b, mask))
            w = b.load(b.gep(frame["table"], k * size), self.dtype, lanes, mask)
            assert isinstance(there, Complex)
            assert isinstance(back, Complex)
            assert isinstance(w, Complex)
            mirrored = Complex(b.reverse(back.re), b.reverse(back.im))
            b.store(self._result(b, there, mirrored, w), b.gep(y, k * size), mask)
            return state

        def extended(k: Value, mask: Value | None, state: tuple[()]) -> tuple[()]:
            z = b.load(b.gep(x, k * size), self.dtype, lanes, mask)
            assert isinstance(z, Complex)
            b.store(z, b.gep(y, k * size), mask)
            back = Complex(b.reverse(z.re), b.reverse(-z.im))
            b.store(back, b.gep(y, (h - k - (lanes - 1)) * size), _reversed(b, mask))
            return state

        each = extended if self.what == "extend" else folded
        vector_loop(b, start, b.intrinsic("smax", start, stop), each, lanes=lanes)  # type: ignore[arg-type]

    def _ends(self, frame: Frame, x: Value, y: Value) -> None:
        """What stands at 0, and at h where that is another place."""
        b, h, size, part = frame.b, frame["h"], self.dtype.size, dt.real_of(self.dtype)
        first = b.load(x, self.dtype, 1)
        assert isinstance(first, Complex)
        zero = b.const(part, 0, 1)
        if self.what == "extend":
            return b.store(Complex(first.re, zero), y)
        if self.what == "tangle":
            last = b.load(b.gep(x, h * size), self.dtype, 1)
            assert isinstance(last, Complex)
            w = Complex(b.const(part, 1, 1), zero)
            return b.store(self._result(b, Complex(first.re, zero), Complex(last.re, zero), w), y)
        for k in (b.i64(0), h):
            w = b.load(b.gep(frame["table"], k * size), self.dtype, 1)  # type: ignore[assignment]
            b.store(self._result(b, first, first, w), b.gep(y, k * size))
        return None


def _reversed(b: Builder, mask: Value | None) -> Value | None:
    return None if mask is None else b.reverse(mask)


@functools.lru_cache(64)
def _roots(h: int, dtype: Dtype) -> Address:
    """exp(-pi i k / h) for k from 0 to h."""
    exact = factors.roots(2 * h, np.arange(h + 1))
    return table_address(exact.astype(dtype.np))


def fold(
    kernel: Fold, h: int, rows: int, inner: int, lengths: tuple[int, int], from_: Pointer, to: Pointer
) -> Launch:  # fmt: skip
    """The launch of a kernel over `rows` of contiguous arrays [length, inner] on both sides. For "extend", h is the
    length of the whole spectrum."""
    size, width = kernel.dtype.size, inner
    chunks = lengths[1] if inner != 1 else -(-h // _CHUNK)
    units = rows * chunks
    words: dict[str, int | Pointer] = {
        "units": units, "h": h, "width": width, "chunks": chunks,
        "table": 0 if kernel.what == "extend" else _roots(h, kernel.dtype),
        "p0": from_, "next0": lengths[0] * width * size, "p1": to, "next1": lengths[1] * width * size,
    }  # fmt: skip
    each = (width if inner != 1 else min(h, _CHUNK)) * size
    return Launch(kernel.source(), tuple(words[name.lstrip("*")] for name in kernel.fields()), weigh(units, each, 4))
