"""Eigenvalues and singular values of small matrices, of which there are many: lanes are matrices of a batch
(small_matrices.py). By Jacobi's method: rotations of two rows and columns at a time, each of which makes the matrix (or
the product of its columns) more diagonal, until nothing is left to rotate. Of complex matrices one of the two columns
is turned by a phase first, which makes what is to be rotated away real.

What a matrix gives depends on its elements only. A lane whose matrix is done is not touched by the rotations that
others still need. Matrices with infinities or NaNs have NaNs for results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen.launch import Layout, Lowering
from weft.codegen.math.basics import inverse_power
from weft.llvm.builder import AnyValue, Complex, Value
from weft.primitives.linalg import Eigh, HermitianEigenvalues, SingularValues, Svd
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.matmul.elements import elements_of
from weft.targets.cpu.small_matrices import DTYPES, Group, Piece, Work, conjugate, real, reflect, reflection, squared

LARGEST: Final = 8
"""Rows and columns of the largest matrices that are taken. It decides the bits, with the dtype."""

_SWEEPS: Final = 40
"""Times through all pairs. Some eight are needed, because what is left is squared by each in the end."""


def takes(a: Layout) -> bool:
    """Whether the values of such matrices are found here."""
    m, n = a.shape[-2:]
    return a.dtype in DTYPES and m <= LARGEST and n <= LARGEST


# ---- what both have ----


class _Rotation:
    """A rotation of two columns in all lanes, of which the second is turned by a phase first, if there is one; in lanes
    that do not turn, nothing changes."""

    def __init__(self, g: Group, turns: Value, halves: Value, off: Value, phase: Complex | None) -> None:
        """The one that makes 0 of `off`, where `halves` is half the difference of the diagonal."""
        b = self.b = g.b
        self.phase = phase
        tangent = halves / b.choose(turns, off, 1.0)
        size = 1.0 / (b.abs(tangent) + b.sqrt(b.fma(tangent, tangent, g.number(1))))
        self.tangent = b.copysign(size, tangent)
        self.cosine = 1.0 / b.sqrt(b.fma(self.tangent, self.tangent, g.number(1)))
        self.sine, self.turns = self.tangent * self.cosine, turns

    def of(self, x: Any, y: Any) -> tuple[Any, Any]:
        """Two elements, turned."""
        if self.phase is None:
            return self._parts(x, y, y)
        turned = y * self.phase
        pairs = [self._parts(*parts) for parts in zip(*map(el.flat, ([x], [turned], [y])), strict=True)]
        (left, right), (left_im, right_im) = pairs
        return Complex(left, left_im), Complex(right, right_im)

    def _parts(self, x: Value, y: Value, before: Value) -> tuple[Value, Value]:
        b = self.b
        left = b.fma(-self.sine, y, self.cosine * x)
        right = b.fma(self.sine, x, self.cosine * y)
        return b.choose(self.turns, left, x), b.choose(self.turns, right, before)

    def columns(self, x: Piece, rows: Value, p: Value, q: Value) -> None:
        with self.b.loop(0, rows, 1) as k:
            x[k.index, p], x[k.index, q] = self.of(x[k.index, p], x[k.index, q])


def _size_and_phase(g: Group, x: Any) -> tuple[Value, Callable[[Value], Complex | None]]:
    """What is to be rotated away, as a real number, and the phase that makes it one, given where there is any."""
    b = g.b
    if not isinstance(x, Complex):
        return x, lambda _: None
    size = b.sqrt(squared(b, x, g.number(0)))

    def phase(turns: Value) -> Complex:
        divisor = b.choose(turns, size, 1.0)
        return Complex(x.re / divisor, -x.im / divisor)

    return size, phase


def spoiled_by(x: Any, spoiled: Value) -> AnyValue:
    """x, or NaN where a lane is spoiled."""
    return Complex(x.re + spoiled, x.im + spoiled) if isinstance(x, Complex) else x + spoiled


def scaled(g: Group, a: Piece, m: Value, n: Value) -> tuple[Value, Value]:
    """Bring the elements near 1; what makes that good, and 0 in every lane, or NaN where an element is not finite."""
    b = g.b
    with b.loop(0, m, 1, g.number(0), g.number(0)) as i:
        with b.loop(0, n, 1, *i.carried) as j:
            large, spoiled = j.carried
            for x in el.flat([a[i.index, j.index]]):
                size = b.abs(x)
                large, spoiled = b.choose(size > large, size, large), spoiled + x * g.number(0)
            j.carry(large, spoiled)
        i.carry(*j.carried)
    large, spoiled = i.carried
    power = inverse_power(b, b.choose(spoiled.eq(0.0), large, 1.0))
    with b.loop(0, m, 1) as i, b.loop(0, n, 1) as j:
        parts = [x * power for x in el.flat([a[i.index, j.index]])]
        a[i.index, j.index] = Complex(*parts) if len(parts) == 2 else parts[0]
    return 1.0 / power, spoiled


def set_identity(g: Group, x: Piece, n: Value) -> None:
    with g.b.loop(0, n, 1) as i, g.b.loop(0, n, 1) as j:
        x[i.index, j.index] = g.b.select(g.integer(i.index).eq(g.integer(j.index)), g.element(1), g.element(0))


_Rotate = Callable[[Value, Value], Value]


def _sweeps(g: Group, n: Value, rotate: _Rotate) -> None:
    """`rotate(p, q)` for all pairs, again and again, until it says of no lane that it turned."""
    b, more = g.b, g.matrix("more", 1, dt.real_of(g.kernel.dtype))
    more[0, 0] = g.number(1)
    with b.loop(0, _SWEEPS, 1), b.when(b.any(more[0, 0].ne(0.0))):
        more[0, 0] = g.number(0)
        with b.loop(0, n, 1) as p, b.loop(p.index + 1, n, 1) as q:
            turned = rotate(p.index, q.index)
            more[0, 0] = b.choose(turned, 1.0, more[0, 0])


def _sort(g: Group, values: Piece, vectors: Sequence[tuple[Piece, Value]], n: Value, descending: bool) -> None:
    """Values in order, and columns with them."""
    b = g.b
    with b.loop(0, n, 1) as i, b.loop(i.index + 1, n, 1) as j:
        x, y = values[i.index, 0], values[j.index, 0]
        wrong = x < y if descending else y < x
        with b.when(b.any(wrong)):
            values[i.index, 0], values[j.index, 0] = b.choose(wrong, y, x), b.choose(wrong, x, y)
            for piece, rows in vectors:
                with b.loop(0, rows, 1) as k:
                    x, y = piece[k.index, i.index], piece[k.index, j.index]
                    piece[k.index, i.index] = b.select(wrong, y, x)
                    piece[k.index, j.index] = b.select(wrong, x, y)


# ---- symmetric and Hermitian matrices ----


def _eigh(g: Group, upper: bool, vectors: bool) -> None:
    b, n = g.b, g["n"]
    a, w, v = g.matrix("a", n), g.matrix("w", 1, dt.real_of(g.kernel.dtype)), g.matrix("v", n)
    with b.loop(0, n, 1) as i, b.loop(0, i.index + 1, 1) as j:
        x = conjugate(g.read("a", j.index, i.index)) if upper else g.read("a", i.index, j.index)
        a[i.index, j.index], a[j.index, i.index] = x, conjugate(x)
    if a.parts == 2:
        with b.loop(0, n, 1) as i:
            a[i.index, i.index] = Complex(real(a[i.index, i.index]), g.number(0))
    back, spoiled = scaled(g, a, n, n)
    if vectors:
        set_identity(g, v, n)
    # Elements are below 2: what is that small is an error of as many units of the norm.
    least = g.number(float(dt.finfo(w.dtype).eps) / 8)

    def rotate(p: Value, q: Value) -> Value:
        whole = a[p, q]
        off, phase = _size_and_phase(g, whole)
        turns = b.abs(off) > least
        with b.when(b.any(turns)):
            x, y = real(a[p, p]), real(a[q, q])
            rotation = _Rotation(g, turns, (y - x) * 0.5, off, phase(turns))
            with b.loop(0, n, 1) as k:  # what this does to the four elements of the pair is made good below
                left, right = rotation.of(a[k.index, p], a[k.index, q])
                a[k.index, p], a[p, k.index] = left, conjugate(left)
                a[k.index, q], a[q, k.index] = right, conjugate(right)
            for place, sign, before in ((p, -rotation.tangent, x), (q, rotation.tangent, y)):
                made = b.choose(turns, b.fma(sign, off, before), before)
                a[place, place] = Complex(made, g.number(0)) if a.parts == 2 else made
            left = b.select(turns, g.element(0), whole)
            a[p, q], a[q, p] = left, conjugate(left)
            if vectors:
                rotation.columns(v, n, p, q)
        return turns

    _sweeps(g, n, rotate)
    with b.loop(0, n, 1) as i:
        w[i.index, 0] = real(a[i.index, i.index])
    _sort(g, w, [(v, n)] if vectors else [], n, descending=False)
    with b.loop(0, n, 1) as i:
        g.write(b.fma(w[i.index, 0], back, spoiled), "w", i.index)
        if vectors:
            with b.loop(0, n, 1) as j:
                g.write(spoiled_by(v[i.index, j.index], spoiled), "v", i.index, j.index)


# ---- singular values ----


def _svd(g: Group, wide: bool, vectors: bool) -> None:
    """Columns are turned until they are orthogonal: their lengths are the singular values, and what turned them are
    vectors of one side. Those of the other side are the columns, divided by their lengths; some of these may be 0, so
    they are made orthonormal by reflections, which hardly change the others. A wide matrix is transposed."""
    b, m, n = g.b, g["m"], g["n"]
    kind = elements_of(g.kernel.dtype)
    a, s, v = g.matrix("a", n), g.matrix("s", 1, kind.part), g.matrix("v", n)
    with b.loop(0, m, 1) as i, b.loop(0, n, 1) as j:
        a[i.index, j.index] = g.read("a", j.index, i.index) if wide else g.read("a", i.index, j.index)
    back, spoiled = scaled(g, a, m, n)
    if vectors:
        set_identity(g, v, n)
    eps = float(dt.finfo(s.dtype).eps)
    # Lengths of columns that are this small are errors of the others; they would turn for ever.
    nothing = g.number(eps * eps / 64)

    def rotate(p: Value, q: Value) -> Value:
        with b.loop(0, m, 1, *[g.number(0)] * (2 + kind.parts)) as k:
            x, y = a[k.index, p], a[k.index, q]
            first, second, *product = k.carried
            together = el.multiply_add(b, conjugate(x), y, el.unflat(kind, product)[0])
            k.carry(squared(b, x, first), squared(b, y, second), *el.flat([together]))
        first, second, *product = k.carried
        both, phase = _size_and_phase(g, el.unflat(kind, product)[0])
        turns = (b.abs(both) > eps * b.sqrt(first) * b.sqrt(second)) & (b.abs(both) > nothing)
        with b.when(b.any(turns)):
            rotation = _Rotation(g, turns, (second - first) * 0.5, both, phase(turns))
            rotation.columns(a, m, p, q)
            if vectors:
                rotation.columns(v, n, p, q)
        return turns

    _sweeps(g, n, rotate)
    with b.loop(0, n, 1) as j:
        with b.loop(0, m, 1, g.number(0)) as i:
            i.carry(squared(b, a[i.index, j.index], i.carried[0]))
        s[j.index, 0] = b.sqrt(i.carried[0])
        with b.loop(0, m, 1) as i:  # a column that is nothing but errors has no direction that can be computed with
            a[i.index, j.index] = b.select(s[j.index, 0] < nothing, g.element(0), a[i.index, j.index])
    _sort(g, s, [(a, m), (v, n)] if vectors else [], n, descending=True)
    with b.loop(0, n, 1) as i:
        g.write(b.fma(s[i.index, 0], back, spoiled), "s", i.index)
    if not vectors:
        return
    u = g.matrix("u", g["columns"])
    _orthonormal(g, a, u, m, n)
    left, right = ("vh", "u") if wide else ("u", "vh")
    with b.loop(0, m, 1) as i, b.loop(0, g["columns"], 1) as j:
        x = spoiled_by(u[i.index, j.index], spoiled)
        g.write(x, left, *((j.index, i.index) if wide else (i.index, j.index)))
    with b.loop(0, n, 1) as i, b.loop(0, n, 1) as j:
        x = spoiled_by(conjugate(v[i.index, j.index]), spoiled)
        g.write(x, right, *((i.index, j.index) if wide else (j.index, i.index)))


def _orthonormal(g: Group, a: Piece, u: Piece, m: Value, n: Value) -> None:
    """Orthonormal columns whose first ones have the directions of those of a, which are nearly orthogonal."""
    b, tau, signs = g.b, g.matrix("tau"), g.matrix("signs", 1, dt.real_of(a.dtype))
    with b.loop(0, n, 1) as column:
        j = column.index
        tau[j, 0] = reflection(g, a, j, m)
        reflect(b, a, a, conjugate(tau[j, 0]), j, m, j + 1, n)
        signs[j, 0] = b.copysign(g.number(1), real(a[j, j]))
    with b.loop(0, m, 1) as i, b.loop(0, g["columns"], 1) as c:
        u[i.index, c.index] = b.select(g.integer(i.index).eq(g.integer(c.index)), g.element(1), g.element(0))
    with b.loop(0, n, 1) as step:
        j = n - 1 - step.index
        reflect(b, a, u, tau[j, 0], j, m, j, g["columns"])
    with b.loop(0, m, 1) as i, b.loop(0, n, 1) as c:
        parts = [x * signs[c.index, 0] for x in el.flat([u[i.index, c.index]])]
        u[i.index, c.index] = Complex(*parts) if len(parts) == 2 else parts[0]


# ---- lowering ----


def eigh(op: Eigh, operands: Sequence[Layout], w: Layout, v: Layout) -> Lowering:
    return _symmetric(op.upper, operands, [w, v])


def hermitian_eigenvalues(op: HermitianEigenvalues, operands: Sequence[Layout], w: Layout) -> Lowering:
    return _symmetric(op.upper, operands, [w])


def _symmetric(upper: bool, operands: Sequence[Layout], results: Sequence[Layout]) -> Lowering:
    n, vectors = operands[0].shape[-1], len(results) == 2
    work = Work(operands, results, operands[0].dtype)
    names = {"a": 0, "w": 1, **({"v": 2} if vectors else {})}
    pieces = {"a": n * n, "w": n, "v": n * n if vectors else 0, "more": 1}
    title = f"eigh upper={upper} vectors={vectors}"
    work.run(title, lambda g: _eigh(g, upper, vectors), names, {"n": n}, pieces, 60 * n * n * n)
    return work.lowering()


def svd(op: Svd, operands: Sequence[Layout], u: Layout, s: Layout, vh: Layout) -> Lowering:
    return _singular(operands, [u, s, vh])


def singular_values(op: SingularValues, operands: Sequence[Layout], s: Layout) -> Lowering:
    return _singular(operands, [s])


def _singular(operands: Sequence[Layout], results: Sequence[Layout]) -> Lowering:
    m, n = operands[0].shape[-2:]
    wide, vectors = m < n, len(results) == 3
    if wide:
        m, n = n, m
    work = Work(operands, results, operands[0].dtype)
    sizes, pieces = {"m": m, "n": n}, {"a": m * n, "s": n, "v": 0, "more": 1}
    names = {"a": 0, "s": 1}
    if vectors:
        columns = results[2].shape[-2] if wide else results[0].shape[-1]
        names = {"a": 0, "u": 1, "s": 2, "vh": 3}
        sizes["columns"] = columns
        pieces |= {"v": n * n, "u": m * columns, "tau": n, "signs": n}
    title = f"svd wide={wide} vectors={vectors}"
    work.run(title, lambda g: _svd(g, wide, vectors), names, sizes, pieces, 60 * m * n * n)
    return work.lowering()
