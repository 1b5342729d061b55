"""Linear algebra of small matrices, of which there are many: lanes are matrices of a batch.

A group of as many matrices as a vector has lanes is worked on at once, element by element, in scratch memory where the
elements at one place of all of them lie together. What a matrix gives depends on its elements only: not on the others
of its group, on the number of lanes or of threads. Which matrices are taken follows from their size and dtype alone
(`takes`); larger ones go to LAPACK (weft/targets/cpu/lapack). A group that is not full repeats its last matrix.
Eigenvalues and singular values are in small_spectra.py, those of matrices of any kind in small_general.py.

An element is a `Value`, or a `Complex`: the code is written for both, and where only real numbers make sense (a pivot
of a positive matrix, a length) it takes the real part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen.launch import Launch, Layout, Lowering, Pointer
from weft.config import config
from weft.dtypes import Dtype
from weft.graph.dims import ceil_div, dim_max
from weft.llvm.builder import AnyValue, Builder, Complex, Value
from weft.passes.lower import to_int
from weft.primitives.linalg import Cholesky, Inverse, Lu, Qr, SolveTriangular
from weft.records import dataclass, field
from weft.targets.axes import axes_of, merged, scaled
from weft.targets.cpu.kernel import Frame, NativeKernel
from weft.targets.cpu.lapack.calls import WORK, check_of
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import elements_of
from weft.targets.cpu.matmul.machine import machine

LARGEST: Final = 16
"""Rows and columns of the largest matrices that are taken. It decides the bits, with the dtype."""
DTYPES: Final = (dt.float32, dt.float64, dt.complex64, dt.complex128)
_COLUMNS: Final = 16  # right sides that are worked on together


def takes(a: Layout) -> bool:
    """Whether operations on such matrices are done here."""
    m, n = a.shape[-2:]
    return a.dtype in DTYPES and m <= LARGEST and n <= LARGEST


# ---- elements ----


def real(x: Any) -> Value:
    return x.re if isinstance(x, Complex) else x


def conjugate(x: Any) -> Any:
    return Complex(x.re, -x.im) if isinstance(x, Complex) else x


def _is_zero(x: Any) -> Value:
    return x.re.eq(0.0) & x.im.eq(0.0) if isinstance(x, Complex) else x.eq(0.0)


def _size(b: Builder, x: Any) -> Value:
    """What pivots are compared by: the sum of the parts' moduli, as LAPACK does."""
    return b.abs(x.re) + b.abs(x.im) if isinstance(x, Complex) else b.abs(x)


def squared(b: Builder, x: Any, total: Value) -> Value:
    """total + |x|^2."""
    return b.fma(x.re, x.re, b.fma(x.im, x.im, total)) if isinstance(x, Complex) else b.fma(x, x, total)


def _scaled_by(x: Any, factor: Value) -> Any:
    """x / factor, of which the factor is real."""
    return Complex(x.re / factor, x.im / factor) if isinstance(x, Complex) else x / factor


class Divisor:
    """Divides numbers by one that is not 0. Complex ones by Smith's formula, which does not overflow where squares of
    the parts would."""

    def __init__(self, b: Builder, y: Any) -> None:
        self.b, self.y = b, y
        if isinstance(y, Complex):
            self.turned = b.abs(y.re) < b.abs(y.im)
            large, small = b.choose(self.turned, y.im, y.re), b.choose(self.turned, y.re, y.im)
            self.ratio = small / large
            self.whole = b.fma(small, self.ratio, large)

    def under(self, x: Any) -> Any:
        """x divided by it."""
        if not isinstance(x, Complex):
            return x / self.y
        b, ratio = self.b, self.ratio
        near, far = b.choose(self.turned, x.im, x.re), b.choose(self.turned, x.re, x.im)
        im = b.fma(-near, ratio, far) / self.whole
        return Complex(b.fma(far, ratio, near) / self.whole, b.choose(self.turned, -im, im))


# ---- kernels ----


@dataclass(frozen=True, slots=True)
class LaneKernel(NativeKernel):
    """Works on groups of matrices: `operands` are their names and dtypes, `sizes` further words, `pieces` what is in
    scratch memory, `axes` how many axes the batch has. `each` writes what is done for a group."""

    title = "matrices"
    outer = 0
    name: str
    dtype: Dtype
    operands: tuple[tuple[str, Dtype], ...]
    sizes: tuple[str, ...]
    pieces: tuple[str, ...]
    axes: int
    lanes: int
    each: Callable[[Group], None] = field(compare=False)

    def __str__(self) -> str:
        return f"matrices {self.name} {self.dtype.name} axes={self.axes} lanes={self.lanes}"

    def fields(self) -> list[str]:
        batch = [f"e{axis}" for axis in range(self.axes)]
        places = [
            word
            for name, _ in self.operands
            for word in (f"*{name}", f"{name}.row", f"{name}.column", *(f"{name}.{axis}" for axis in range(self.axes)))
        ]
        return ["units", "count", *batch, *places, *self.sizes, *(f"at.{piece}" for piece in self.pieces)]

    def emit(self, frame: Frame) -> None:
        with frame.b.loop(frame.begin, frame.end, 1) as group:
            self.each(Group(self, frame, group.index))


class Group:
    """The code for a group of matrices: reads and writes elements of operands in all lanes, and of scratch memory."""

    def __init__(self, kernel: LaneKernel, frame: Frame, number: Value) -> None:
        self.f, self.b, self.kernel = frame, frame.b, kernel
        b, lanes = self.b, kernel.lanes
        member = b.splat(number * lanes, lanes) + b.iota(dt.int64, lanes)
        last = b.splat(frame["count"] - 1, lanes)
        member = b.choose(member > last, last, member)
        indices: list[Value] = []
        for axis in range(kernel.axes - 1, 0, -1):
            extent = b.splat(frame[f"e{axis}"], lanes)
            rest = b.op(f"udiv {member.type} {member.text}, {extent.text}", dt.int64, lanes)
            indices.insert(0, member - rest * extent)
            member = rest
        indices.insert(0, member)
        self._offsets: dict[str, Value] = {}
        for name, _ in kernel.operands:
            offset = b.const(dt.int64, 0, lanes)
            for axis, index in enumerate(indices[: kernel.axes]):
                offset = offset + index * frame[f"{name}.{axis}"]
            self._offsets[name] = offset
        self._dtypes = dict(kernel.operands)

    def __getitem__(self, name: str) -> Value:
        return self.f[name]

    def number(self, value: float) -> Value:
        """A real number in every lane."""
        return self.b.const(dt.real_of(self.kernel.dtype), value, self.kernel.lanes)

    def element(self, value: float) -> Any:
        """The same, as an element of the matrices."""
        x = self.number(value)
        if not self.kernel.dtype.is_complex:
            return x
        return Complex(x, x if math.isnan(value) else self.number(0))

    def integer(self, value: int | Value) -> Value:
        """A number below 2**31 in every lane."""
        lanes = self.kernel.lanes
        if isinstance(value, int):
            return self.b.const(dt.int32, value, lanes)
        return self.b.splat(self.b.cast(value, dt.int32), lanes)

    # ---- operands ----

    def _place(self, name: str, i: Value | int, j: Value | int) -> Value:
        b = self.b
        at = self.f[name]
        for index, stride in ((i, f"{name}.row"), (j, f"{name}.column")):
            if not isinstance(index, int) or index:
                at = b.gep(at, self.f[stride] * index)
        return at

    def read(self, name: str, i: Value | int, j: Value | int = 0) -> Any:
        """Element (i, j) of an operand."""
        b, at, offsets, dtype = self.b, self._place(name, i, j), self._offsets[name], self._dtypes[name]
        part = dt.real_of(dtype)
        x = b.gather(at, offsets, part)
        return Complex(x, b.gather(b.gep(at, part.size), offsets, part)) if dtype.is_complex else x

    def write(self, x: AnyValue, name: str, i: Value | int, j: Value | int = 0) -> None:
        at = self._place(name, i, j)
        for number, part in enumerate(el.flat([x])):
            self.b.scatter(part, self.b.gep(at, number * part.dtype.size), self._offsets[name])

    # ---- scratch memory ----

    def matrix(self, piece: str, columns: Value | int = 1, dtype: Dtype | None = None) -> Piece:
        return Piece(self, piece, columns, dtype or self.kernel.dtype)


class Piece:
    """A matrix in scratch memory, with an element for each lane at every place: parts of complex ones apart."""

    def __init__(self, group: Group, name: str, columns: Value | int, dtype: Dtype) -> None:
        b, lanes = group.b, group.kernel.lanes
        self.b, self.dtype, self.lanes = b, dtype, lanes
        self.start = b.gep(group.f.scratch, group[f"at.{name}"])
        self.row, self.column = b.i64(lanes * dtype.size) * columns, lanes * dtype.size

    def _at(self, i: Value | int, j: Value | int) -> Value:
        at = self.start
        if not isinstance(i, int) or i:
            at = self.b.gep(at, self.row * i)
        return at if isinstance(j, int) and j == 0 else self.b.gep(at, self.b.i64(self.column) * j)

    def __getitem__(self, place: tuple[Value | int, Value | int]) -> Any:
        b, at, part = self.b, self._at(*place), dt.real_of(self.dtype)
        parts = [b.load(b.gep(at, i * self.lanes * part.size), part, self.lanes) for i in range(self.parts)]
        return Complex(*el.flat(parts)) if self.parts == 2 else parts[0]

    def __setitem__(self, place: tuple[Value | int, Value | int], x: AnyValue) -> None:
        at = self._at(*place)
        for i, part in enumerate(el.flat([x])):
            self.b.store(part, self.b.gep(at, i * self.lanes * part.dtype.size))

    @property
    def parts(self) -> int:
        return 2 if self.dtype.is_complex else 1

    def subtract(self, x: Any, y: Any, i: Value | int, j: Value | int) -> None:
        """Element (i, j) minus x * y, rounded once (its parts twice)."""
        self[i, j] = el.multiply_add(self.b, -x, y, self[i, j])


# ---- factorizations ----


def _cholesky(g: Group, upper: bool, quiet: bool) -> None:
    """Column by column; what they leave of the rest of the matrix is computed at once. A matrix that has no factor is
    reported, or gets NaNs for one if `quiet`."""
    b, n, a = g.b, g["n"], g.matrix("a", g["n"])
    with b.loop(0, n, 1) as i, b.loop(0, i.index + 1, 1) as j:
        x = conjugate(g.read("a", j.index, i.index)) if upper else g.read("a", i.index, j.index)
        a[i.index, j.index] = x
    with b.loop(0, n, 1, g.integer(0)) as column:
        at, (info,) = column.index, column.carried
        minor = real(a[at, at])
        column.carry(b.choose((minor <= 0.0) & info.eq(0), g.integer(at + 1), info))
        root = b.sqrt(minor)
        a[at, at] = Complex(root, g.number(0)) if a.parts == 2 else root
        with b.loop(at + 1, n, 1) as i:
            a[i.index, at] = _scaled_by(a[i.index, at], root)
        with b.loop(at + 1, n, 1) as i:
            x = a[i.index, at]
            with b.loop(at + 1, i.index + 1, 1) as k:
                a.subtract(x, conjugate(a[k.index, at]), i.index, k.index)
    info = column.carried[0]
    if not quiet:
        g.write(info, "info", 0)

    def given(x: Any) -> AnyValue:
        return b.select(info.eq(0), x, g.element(math.nan)) if quiet else x

    with b.loop(0, n, 1) as i:
        with b.loop(0, i.index, 1) as j:
            low, high = (j.index, i.index) if upper else (i.index, j.index)
            x = a[i.index, j.index]
            g.write(given(conjugate(x) if upper else x), "out", low, high)
            g.write(given(g.element(0)), "out", high, low)
        g.write(given(a[i.index, i.index]), "out", i.index, i.index)


def _eliminated(g: Group, a: Piece, order: Piece, m: Value, n: Value, k: Value, each: _Pivot) -> Value:
    """Gaussian elimination with partial pivoting in scratch memory; `each` is given the pivot row of every column, in
    all lanes. The number of the first column without a pivot, counted from 1, or 0."""
    b = g.b
    with b.loop(0, m, 1) as i:
        order[i.index, 0] = g.integer(i.index)
    with b.loop(0, k, 1, g.integer(0)) as column:
        j, (info,) = column.index, column.carried
        with b.loop(j + 1, m, 1, _size(b, a[j, j]), g.integer(j)) as i:
            best, place = i.carried
            here = _size(b, a[i.index, j])
            i.carry(b.choose(here > best, here, best), b.choose(here > best, g.integer(i.index), place))
        place = i.carried[1]
        each(j, place)
        with b.loop(j + 1, m, 1) as i:
            chosen = place.eq(g.integer(i.index))
            with b.when(b.any(chosen)):
                _exchange(b, order, chosen, i.index, j, b.i64(1))
                _exchange(b, a, chosen, i.index, j, n)
        pivot = a[j, j]
        none = _is_zero(pivot)
        column.carry(b.choose(none & info.eq(0), g.integer(j + 1), info))
        divisor = Divisor(b, b.select(none, g.element(1), pivot))
        with b.loop(j + 1, m, 1) as i:
            x = divisor.under(a[i.index, j])
            a[i.index, j] = x
            with b.loop(j + 1, n, 1) as c:
                a.subtract(x, a[j, c.index], i.index, c.index)
    return column.carried[0]


_Pivot = Callable[[Value, Value], None]


def _exchange(b: Builder, x: Piece, where: Value, i: Value, j: Value, columns: Value) -> None:
    """Exchange two rows in some lanes."""
    with b.loop(0, columns, 1) as c:
        one, other = x[i, c.index], x[j, c.index]
        x[i, c.index], x[j, c.index] = b.select(where, other, one), b.select(where, one, other)


def _read_all(g: Group, name: str, to: Piece, m: Value, n: Value) -> None:
    with g.b.loop(0, m, 1) as i, g.b.loop(0, n, 1) as j:
        to[i.index, j.index] = g.read(name, i.index, j.index)


def _write_all(g: Group, x: Piece, name: str, m: Value, n: Value) -> None:
    with g.b.loop(0, m, 1) as i, g.b.loop(0, n, 1) as j:
        g.write(x[i.index, j.index], name, i.index, j.index)


def _lu(g: Group) -> None:
    m, n, k = g["m"], g["n"], g["k"]
    a, order = g.matrix("a", n), g.matrix("order", 1, dt.int32)
    _read_all(g, "a", a, m, n)
    _eliminated(g, a, order, m, n, k, lambda j, place: g.write(place, "pivots", j))
    _write_all(g, a, "out", m, n)
    with g.b.loop(0, m, 1) as i:
        g.write(order[i.index, 0], "order", i.index)


def _inverse(g: Group) -> None:
    """The columns of the inverse are solutions for those of the identity."""
    b, n = g.b, g["n"]
    a, x, order = g.matrix("a", n), g.matrix("x", n), g.matrix("order", 1, dt.int32)
    _read_all(g, "a", a, n, n)
    info = _eliminated(g, a, order, n, n, n, lambda j, place: None)
    g.write(info, "info", 0)
    with b.loop(0, n, 1) as i:
        place = order[i.index, 0]
        with b.loop(0, n, 1) as c:
            x[i.index, c.index] = b.select(place.eq(g.integer(c.index)), g.element(1), g.element(0))
    _substitute(g, a, x, n, n, upper=False, unit=True)
    _substitute(g, a, x, n, n, upper=True, unit=False)
    _write_all(g, x, "out", n, n)


def _qr(g: Group) -> None:
    """Householder's reflections 1 - tau v v', of which v has a 1 at the diagonal, and what is below is kept there. They
    leave real numbers on the diagonal."""
    b, m, n, k = g.b, g["m"], g["n"], g["k"]
    a, q, tau = g.matrix("a", n), g.matrix("q", k), g.matrix("tau")
    _read_all(g, "a", a, m, n)
    with b.loop(0, k, 1) as column:
        j = column.index
        tau[j, 0] = reflection(g, a, j, m)
        reflect(b, a, a, conjugate(tau[j, 0]), j, m, j + 1, n)
    with b.loop(0, m, 1) as i, b.loop(0, k, 1) as c:
        q[i.index, c.index] = b.select(g.integer(i.index).eq(g.integer(c.index)), g.element(1), g.element(0))
    with b.loop(0, k, 1) as back:
        j = k - 1 - back.index
        reflect(b, a, q, tau[j, 0], j, m, j, k)
    _write_all(g, q, "q", m, k)
    with b.loop(0, k, 1) as i:
        with b.loop(0, i.index, 1) as c:
            g.write(g.element(0), "r", i.index, c.index)
        with b.loop(i.index, n, 1) as c:
            g.write(a[i.index, c.index], "r", i.index, c.index)


def reflection(g: Group, a: Piece, j: Value, m: Value) -> Any:
    """Makes a reflection that leaves a real number and zeros of a column from its diagonal on. Sums of squares are of
    what was divided by the largest element, so that they do not overflow."""
    b = g.b

    def largest(x: Any) -> Value:
        first, *others = [b.abs(part) for part in el.flat([x])]
        return b.choose(others[0] > first, others[0], first) if others else first

    alpha = a[j, j]
    with b.loop(j + 1, m, 1, largest(alpha)) as i:
        here = largest(a[i.index, j])
        i.carry(b.choose(here > i.carried[0], here, i.carried[0]))
    large = b.choose(i.carried[0].eq(0.0), 1.0, i.carried[0])
    with b.loop(j + 1, m, 1, g.number(0)) as i:
        i.carry(squared(b, _scaled_by(a[i.index, j], large), i.carried[0]))
    (below,) = i.carried
    size = large * b.sqrt(squared(b, _scaled_by(alpha, large), below))
    beta = -b.copysign(size, real(alpha))
    none = below.eq(0.0)
    if isinstance(alpha, Complex):
        none = none & alpha.im.eq(0.0)
        left: Any = Complex(beta, g.number(0))
        tau: Any = Complex((beta - alpha.re) / beta, -alpha.im / beta)
    else:
        left, tau = beta, (beta - alpha) / beta
    divisor = Divisor(b, b.select(none, g.element(1), alpha - left))
    with b.loop(j + 1, m, 1) as i:
        a[i.index, j] = b.select(none, g.element(0), divisor.under(a[i.index, j]))
    a[j, j] = b.select(none, alpha, left)
    return b.select(none, g.element(0), tau)


def reflect(b: Builder, a: Piece, x: Piece, tau: Any, j: Value, m: Value, first: Value, end: Value) -> None:
    """Apply the reflection that is kept in column j of a to columns of x."""
    kind = elements_of(a.dtype)
    with b.loop(first, end, 1) as c:
        with b.loop(j + 1, m, 1, *el.flat([x[j, c.index]])) as i:
            total = el.unflat(kind, i.carried)[0]
            i.carry(*el.flat([el.multiply_add(b, conjugate(a[i.index, j]), x[i.index, c.index], total)]))
        w = tau * el.unflat(kind, i.carried)[0]
        x[j, c.index] = x[j, c.index] - w
        with b.loop(j + 1, m, 1) as i:
            x.subtract(a[i.index, j], w, i.index, c.index)


# ---- triangular systems ----


def _substitute(g: Group, a: Piece, x: Piece, n: Value, columns: Value, upper: bool, unit: bool) -> None:
    """Solve with a triangle of a, for some right sides at once."""
    b = g.b
    with b.loop(0, n, 1) as step:
        i = n - 1 - step.index if upper else step.index
        if not unit:
            pivot = Divisor(b, a[i, i])
            with b.loop(0, columns, 1) as c:
                x[i, c.index] = pivot.under(x[i, c.index])
        with b.loop(*((0, i) if upper else (i + 1, n)), 1) as row:  # type: ignore[arg-type]
            factor = a[row.index, i]
            with b.loop(0, columns, 1) as c:
                x.subtract(factor, x[i, c.index], row.index, c.index)


def _solve(g: Group, upper: bool, unit: bool) -> None:
    b, n = g.b, g["n"]
    a, x = g.matrix("a", n), g.matrix("x", _COLUMNS)
    with b.loop(0, n, 1) as i, b.loop(*((i.index, n) if upper else (0, i.index + 1)), 1) as j:  # type: ignore[arg-type]
        a[i.index, j.index] = g.read("a", i.index, j.index)
    with b.loop(0, g["k"], _COLUMNS) as block:
        columns = g.f.least(g["k"] - block.index, _COLUMNS)
        with b.loop(0, n, 1) as i, b.loop(0, columns, 1) as c:
            x[i.index, c.index] = g.read("b", i.index, block.index + c.index)
        _substitute(g, a, x, n, columns, upper, unit)
        with b.loop(0, n, 1) as i, b.loop(0, columns, 1) as c:
            g.write(x[i.index, c.index], "out", i.index, block.index + c.index)


def _zero_on_diagonal(g: Group) -> None:
    """The first one, counted from 1, or 0."""
    b = g.b
    with b.loop(0, g["n"], 1, g.integer(0)) as i:
        (info,) = i.carried
        i.carry(b.choose(_is_zero(g.read("a", i.index, i.index)) & info.eq(0), g.integer(i.index + 1), info))
    g.write(i.carried[0], "info", 0)


# ---- lowering ----


def cholesky(op: Cholesky, operands: Sequence[Layout], out: Layout) -> Lowering:
    n = out.shape[-1]
    work = Work(operands, [out], out.dtype)
    names = {"a": 0, "out": 1} if op.quiet else {"a": 0, "out": 1, "info": work.info()}
    work.run(
        f"cholesky upper={op.upper}{' quiet' if op.quiet else ''}", lambda g: _cholesky(g, op.upper, op.quiet), names,
        {"n": n}, {"a": n * n}, n * n * n,
    )  # fmt: skip
    return work.lowering(check=not op.quiet)


def lu(op: Lu, operands: Sequence[Layout], out: Layout, pivots: Layout, order: Layout) -> Lowering:
    m, n = out.shape[-2:]
    work = Work(operands, [out, pivots, order], out.dtype)
    sizes = {"m": m, "n": n, "k": pivots.shape[-1]}
    names = {"a": 0, "out": 1, "pivots": 2, "order": 3}
    work.run("lu", _lu, names, sizes, {"a": m * n, "order": m}, 3 * m * n * m)
    return work.lowering()


def inverse(op: Inverse, operands: Sequence[Layout], out: Layout) -> Lowering:
    n = out.shape[-1]
    work = Work(operands, [out], out.dtype)
    names, pieces = {"a": 0, "out": 1, "info": work.info()}, {"a": n * n, "x": n * n, "order": n}
    work.run("inverse", _inverse, names, {"n": n}, pieces, 4 * n * n * n)
    return work.lowering(check=True)


def qr(op: Qr, operands: Sequence[Layout], q: Layout, r: Layout) -> Lowering:
    (m, n), k = operands[0].shape[-2:], q.shape[-1]
    work = Work(operands, [q, r], q.dtype)
    pieces = {"a": m * n, "q": m * k, "tau": k}
    work.run("qr", _qr, {"a": 0, "q": 1, "r": 2}, {"m": m, "n": n, "k": k}, pieces, 8 * m * n * k)
    return work.lowering()


def solve_triangular(op: SolveTriangular, operands: Sequence[Layout], out: Layout) -> Lowering:
    """Right sides of few matrices are lanes too: what they give does not depend on their neighbours."""
    n, k = out.shape[-2:]
    work = Work(operands, [out], out.dtype)
    if not op.is_total:
        work.run("zero on the diagonal", _zero_on_diagonal, {"a": 0, "info": work.info()}, {"n": n}, {}, n)
        work.check()
    if work.batch < work.lanes <= k:
        work.spread_columns(0, k)
        k = 1
    sizes, pieces = {"n": n, "k": k}, {"a": n * n, "x": n * _COLUMNS}
    name = f"solve upper={op.upper} unit={op.unit}"
    each: _Each = lambda g: _solve(g, op.upper, op.unit)  # noqa: E731
    work.run(name, each, {"a": 0, "b": 1, "out": 2}, sizes, pieces, n * n * (k + 2))
    return work.lowering()


_Each = Callable[[Group], None]


class Work:
    """The launches of an operation on the matrices of a batch."""

    def __init__(self, operands: Sequence[Layout], results: Sequence[Layout], dtype: Dtype) -> None:
        self.layouts = [*operands, *results]
        self.lead = operands[0].shape[:-2]
        self.dtype, self.batch = dtype, math.prod(self.lead)
        self.lanes = machine(config.cpu).lanes(elements_of(dtype))
        self._info: Pointer | None = None
        self._launches: list[Launch] = []

    def info(self) -> int:
        """Room for a number that says what is wrong with each matrix; the number of the operand that it is."""
        number = len(self.layouts)
        strides = tuple(math.prod(self.lead[i + 1 :]) for i in range(len(self.lead)))
        self._info = Pointer(number)
        self.layouts.append(Layout((*self.lead, 1, 1), (*strides, 0, 0), dt.int32))
        return number

    def check(self) -> None:
        """End the program if there is such a number."""
        assert self._info is not None
        self._launches.append(check_of(self.batch, self._info))

    def spread_columns(self, same: int, k: int) -> None:
        """Make every column of the operands and results a matrix of the batch, but for one operand, which is the same
        for all of them."""
        for number, x in enumerate(self.layouts[: len(self.layouts) - (self._info is not None)]):
            step = 0 if number == same else x.strides[-1]
            shape = (*x.shape[:-2], k, *(x.shape[-2:] if number == same else (x.shape[-2], 1)))
            self.layouts[number] = Layout(shape, (*x.strides[:-2], step, *x.strides[-2:]), x.dtype)
        self.lead, self.batch = (*self.lead, k), self.batch * k

    def run(
        self, name: str, each: _Each, names: Mapping[str, int], sizes: Mapping[str, int],
        pieces: Mapping[str, int], flops: int,
    ) -> None:  # fmt: skip
        """Launch a kernel on operands and results by number. `pieces` have so many elements in scratch memory; a matrix
        takes about so many operations."""
        given = {name: self._as_matrices(number) for name, number in names.items()}
        strides = [scaled(x)[: len(self.lead)] for x in given.values()]
        batch = merged(axes_of(self.lead, *strides))
        kinds = tuple((name, x.dtype) for name, x in given.items())
        kernel = LaneKernel(name, self.dtype, kinds, tuple(sizes), tuple(pieces), len(batch), self.lanes, each)
        groups = ceil_div(self.batch, self.lanes)
        words: dict[str, int | Pointer] = {"units": to_int(groups), "count": self.batch, **sizes}
        words |= {f"e{axis}": loop.size for axis, loop in enumerate(batch)}
        for place, (operand, x) in enumerate(given.items()):
            words[operand] = Pointer(names[operand])
            words[f"{operand}.row"], words[f"{operand}.column"] = scaled(x)[-2:]
            words |= {f"{operand}.{axis}": loop.strides[place] for axis, loop in enumerate(batch)}
        end = 0
        for piece, elements in pieces.items():
            words[f"at.{piece}"], end = end, end + elements * self.lanes * self.dtype.size
        grain = to_int(dim_max(1, ceil_div(WORK, dim_max(1, flops * self.lanes))))
        if type(groups) is int and groups == 1:
            grain = 0
        arguments = tuple(words[word.lstrip("*")] for word in kernel.fields())
        self._launches.append(Launch(kernel.source(), arguments, grain, end))

    def _as_matrices(self, number: int) -> Layout:
        """An operand; a list of numbers for each matrix is one column."""
        x = self.layouts[number]
        if len(x.shape) == len(self.lead) + 2:
            return x
        return Layout((*x.shape, 1), (*x.strides, 0), x.dtype)

    def lowering(self, check: bool = False) -> Lowering:
        if check:
            self.check()
        temporaries = () if self._info is None else (4 * math.prod(self.layouts[-1].shape[:-2]),)
        return Lowering(tuple(self._launches), tuple(to_int(n) for n in temporaries))
