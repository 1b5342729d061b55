"""Eigenvalues and eigenvectors of small matrices of any kind, of which there are many: lanes are matrices of a batch
(small_matrices.py). By the QR algorithm: a matrix is balanced, made zero below its subdiagonal by rotations, and then
turned until that is zero as well, with shifts that are near an eigenvalue of its last rows.

Real matrices stay real: two shifts at once (Francis) leave pairs of rows for eigenvalues that are conjugate, exactly.
All lanes work on the same last row, each on its own block above it. A lane that is done waits, untouched by what others
need, so what a matrix gives depends on its elements only. Matrices with infinities or NaNs have NaNs for results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from weft import dtypes as dt
from weft.codegen.launch import Layout, Lowering
from weft.dtypes import Dtype
from weft.llvm.builder import Builder, Complex, Value
from weft.primitives.linalg import Eig, Eigenvalues
from weft.targets.cpu.matmul import elements as el
from weft.targets.cpu.small_matrices import Divisor, Group, Piece, Work, conjugate, squared
from weft.targets.cpu.small_spectra import scaled, set_identity, spoiled_by, takes

__all__ = ["eig", "eigenvalues", "takes"]

_STEPS: Final = 300
"""Steps for an eigenvalue. Three are needed, as a rule. Where many eigenvalues are equal all that is left of some rows
is what the last step rounded, and it may take as long as luck takes until that is small enough: 60 were not enough for
one of a million such matrices."""
_UNUSUAL: Final = 10
"""Every so many steps a shift is taken from elsewhere, because a matrix may be the same after a usual step."""
_LATE: Final = 30
"""The first step that takes for zero what is one beside the matrix: where eigenvalues are zero, all that is left of
rows and columns is what rounding left, and steps may not make it smaller."""
_SWEEPS: Final = 6
"""Times through all rows and columns for balance."""


# ---- elements ----


def _size(b: Builder, x: Any) -> Value:
    """The sum of the parts' moduli."""
    return b.abs(x.re) + b.abs(x.im) if isinstance(x, Complex) else b.abs(x)


def _largest_part(b: Builder, *values: Any) -> Value:
    first, *others = (b.abs(part) for part in el.flat(values))
    for other in others:
        first = b.choose(other > first, other, first)
    return first


def _by(x: Any, factor: Value) -> Any:
    """x * factor, of which the factor is real."""
    return Complex(x.re * factor, x.im * factor) if isinstance(x, Complex) else x * factor


def _select(b: Builder, where: Value, x: Any, y: Any) -> Any:
    return b.select(where, x, y)


class _Rotation:
    """[c, s; -s*, c] with a real c; in lanes that do not turn, nothing changes."""

    def __init__(self, b: Builder, turns: Value, c: Value, s: Any) -> None:
        self.b, self.turns, self.c, self.s = b, turns, c, s

    def _of(self, x: Any, y: Any, s: Any) -> tuple[Any, Any]:
        b = self.b
        first = el.multiply_add(b, s, y, _by(x, self.c))
        second = el.multiply_add(b, -conjugate(s), x, _by(y, self.c))
        return b.select(self.turns, first, x), b.select(self.turns, second, y)

    def rows(self, a: Piece, p: Value, first: Value | int, end: Value) -> None:
        """Rows p and p + 1, in columns from the first one on."""
        with self.b.loop(first, end, 1) as j:
            a[p, j.index], a[p + 1, j.index] = self._of(a[p, j.index], a[p + 1, j.index], self.s)

    def columns(self, a: Piece, p: Value, end: Value) -> None:
        """Columns p and p + 1, in rows before the last one: by the inverse, from the right."""
        with self.b.loop(0, end, 1) as i:
            a[i.index, p], a[i.index, p + 1] = self._of(a[i.index, p], a[i.index, p + 1], conjugate(self.s))


def _rotation(g: Group, x: Any, y: Any, turns: Value) -> _Rotation:
    """The one that makes (r, 0) of (x, y)."""
    b, one, zero = g.b, g.number(1), g.number(0)
    turns = turns & _size(b, y).ne(0.0)
    large = b.choose(turns, _largest_part(b, x, y), one)
    x, y = (Complex(v.re / large, v.im / large) if isinstance(v, Complex) else v / large for v in (x, y))
    length = b.choose(turns, b.sqrt(squared(b, x, squared(b, y, zero))), one)
    if not isinstance(x, Complex):
        return _Rotation(b, turns, x / length, y / length)
    size = b.sqrt(squared(b, x, zero))
    none = size.eq(0.0)
    divisor = b.choose(none, one, size)
    phase = Complex(b.choose(none, one, x.re / divisor), x.im / divisor)
    s = phase * conjugate(y)
    return _Rotation(b, turns, size / length, Complex(s.re / length, s.im / length))


# ---- what both have ----


def _given(g: Group, h: Piece, n: Value) -> tuple[Value, Value]:
    """Read the matrices, near 1; `scaled`. Those that are not finite are worked on as zeros."""
    b = g.b
    with b.loop(0, n, 1) as i, b.loop(0, n, 1) as j:
        h[i.index, j.index] = g.read("a", i.index, j.index)
    back, spoiled = scaled(g, h, n, n)
    with b.loop(0, n, 1) as i, b.loop(0, n, 1) as j:
        h[i.index, j.index] = b.select(spoiled.eq(0.0), h[i.index, j.index], g.element(0))
    return back, spoiled


def _power_near(g: Group, x: Value) -> Value:
    """A power of two next to a positive number."""
    b, kind = g.b, x.dtype
    words, digits = (dt.uint32, 23) if kind is dt.float32 else (dt.uint64, 52)
    return b.bitcast((b.bitcast(x * 1.4142135, words) >> digits) << digits, kind)


def _balanced(g: Group, h: Piece, d: Piece, n: Value) -> None:
    """Multiply columns by powers of two, and divide rows by them, so that both are about as large: what is small is not
    lost beside what is large. `d` keeps the factors."""
    b, more = g.b, g.matrix("more", 1, d.dtype)
    with b.loop(0, n, 1) as place:
        d[place.index, 0] = g.number(1)
    more[0, 0] = g.number(1)
    with b.loop(0, _SWEEPS, 1), b.when(b.any(more[0, 0].ne(0.0))):
        more[0, 0] = g.number(0)
        with b.loop(0, n, 1) as row:
            i = row.index
            with b.loop(0, n, 1, g.number(0), g.number(0)) as j:
                down, across = j.carried
                other = g.integer(i).ne(g.integer(j.index))
                here, there = _size(b, h[j.index, i]), _size(b, h[i, j.index])
                j.carry(b.choose(other, down + here, down), b.choose(other, across + there, across))
            down, across = j.carried
            both = (down > 0.0) & (across > 0.0)
            ratio = b.choose(both, across, 1.0) / b.choose(both, down, 1.0)
            ratio = b.choose(ratio > 2.0**40, 2.0**40, b.choose(ratio < 2.0**-40, 2.0**-40, ratio))
            factor = _power_near(g, b.sqrt(ratio))
            better = both & (down * factor + across / factor < (down + across) * 0.9375)
            with b.when(b.any(better)):
                factor = b.choose(better, factor, 1.0)
                more[0, 0] = b.choose(better, 1.0, more[0, 0])
                d[i, 0] = d[i, 0] * factor
                with b.loop(0, n, 1) as j:
                    h[j.index, i] = _by(h[j.index, i], factor)
                with b.loop(0, n, 1) as j:
                    h[i, j.index] = _by(h[i, j.index], 1.0 / factor)


def _hessenberg(g: Group, h: Piece, v: Piece | None, n: Value) -> None:
    """Zeros below the subdiagonal; `v` follows."""
    b = g.b
    always = g.number(0).eq(0.0)
    with b.loop(0, n - 2, 1) as column, b.loop(0, n - 2 - column.index, 1) as step:
        j, p = column.index, n - 2 - step.index
        rotation = _rotation(g, h[p, j], h[p + 1, j], always)
        rotation.rows(h, p, 0, n)
        h[p + 1, j] = b.select(rotation.turns, g.element(0), h[p + 1, j])
        rotation.columns(h, p, n)
        if v is not None:
            rotation.columns(v, p, n)


def _nothing(part: Dtype) -> float:
    """What counts as zero beside elements near 1, whatever it stands beside: its square is no number any more."""
    return 2.0 ** (-98 if part is dt.float32 else -965)


def _is_small(g: Group, h: Piece, i: Value, step: Value) -> Value:
    """Whether what is left of the diagonal in row i counts as zero, beside what stands next to it or, at a late step,
    beside the matrix, whose elements are near 1."""
    b, part, size = g.b, dt.real_of(h.dtype), _size(g.b, h[i, i - 1])
    beside = _size(b, h[i - 1, i - 1]) + _size(b, h[i, i])
    eps = float(dt.finfo(part).eps)
    late = (g.integer(step) >= _LATE) & (size <= eps)
    return (size <= b.choose(beside.eq(0.0), 1.0, beside) * eps) | (size < _nothing(part)) | late


def _is_unusual(g: Group, step: Value) -> Value:
    """Whether a shift is to be taken from elsewhere, in every lane."""
    _, rest = g.f.divide(step, _UNUSUAL)
    return g.integer(rest).eq(_UNUSUAL - 1)


# ---- complex matrices ----


def _root(g: Group, z: Complex) -> Complex:
    """The square root whose real part is not negative."""
    b, zero = g.b, g.number(0)
    size = b.sqrt(squared(b, z, zero))
    large = b.sqrt((size + b.abs(z.re)) * 0.5)
    small = b.choose(large.eq(0.0), zero, b.abs(z.im) * 0.5 / b.choose(large.eq(0.0), 1.0, large))
    left = z.re < 0.0
    return Complex(b.choose(left, small, large), b.copysign(b.choose(left, large, small), z.im))


def _shift(g: Group, h: Piece, last: Value, unusual: Value) -> Complex:
    """The eigenvalue of the last two rows that is next to the last element; or another number."""
    b = g.b
    a, d, upper, left = h[last - 1, last - 1], h[last, last], h[last - 1, last], h[last, last - 1]
    size = _size(b, a) + _size(b, d) + _size(b, upper) + _size(b, left)
    by = b.choose(size.eq(0.0), 1.0, size)  # squares of small numbers might not be numbers any more
    half = _by(a - d, 0.5 / by)
    product = _by(upper, 1.0 / by) * _by(left, 1.0 / by)
    root = _root(g, half * half + product)
    against = b.fma(half.re, root.re, half.im * root.im) < 0.0
    whole = half + Complex(b.choose(against, -root.re, root.re), b.choose(against, -root.im, root.im))
    none = _size(b, whole).eq(0.0)
    usual = d - _by(Divisor(b, b.select(none, g.element(1), whole)).under(product), by)
    other = Complex(d.re + _size(b, left), d.im)
    return b.select(unusual, other, b.select(none, d, usual))  # type: ignore[return-value]


def _complex_step(g: Group, h: Piece, v: Piece | None, last: Value, n: Value, going: Value, shift: Complex) -> None:
    """h - shift = QR, and RQ + shift in its place."""
    b, part = g.b, dt.real_of(h.dtype)
    turns, c, s = g.matrix("turns", 1, part), g.matrix("c", 1, part), g.matrix("s")
    with b.loop(0, last + 1, 1) as i:
        h[i.index, i.index] = b.select(going, h[i.index, i.index] - shift, h[i.index, i.index])
    with b.loop(0, last, 1) as step:
        k = step.index
        rotation = _rotation(g, h[k, k], h[k + 1, k], going)
        rotation.rows(h, k, k, n)
        h[k + 1, k] = b.select(rotation.turns, g.element(0), h[k + 1, k])
        turns[k, 0] = b.choose(rotation.turns, 1.0, g.number(0))
        c[k, 0], s[k, 0] = rotation.c, rotation.s
    with b.loop(0, last, 1) as step:
        k = step.index
        rotation = _Rotation(b, turns[k, 0].ne(0.0), c[k, 0], s[k, 0])
        rotation.columns(h, k, k + 2)
        if v is not None:
            rotation.columns(v, k, n)
    with b.loop(0, last + 1, 1) as i:
        h[i.index, i.index] = b.select(going, h[i.index, i.index] + shift, h[i.index, i.index])


def _complex_triangle(g: Group, h: Piece, v: Piece | None, n: Value) -> Value:
    """Make the matrices triangular; how many eigenvalues were not found."""
    b, more = g.b, g.matrix("more", 1, dt.real_of(h.dtype))
    with b.loop(0, n - 1, 1, g.integer(0)) as row:
        last = n - 1 - row.index
        more[0, 0] = g.number(1)
        with b.loop(0, _STEPS, 1) as step, b.when(b.any(more[0, 0].ne(0.0))):
            going = more[0, 0].ne(0.0) & ~_is_small(g, h, last, step.index)
            more[0, 0] = b.choose(going, 1.0, g.number(0))
            with b.when(b.any(going)):
                _complex_step(g, h, v, last, n, going, _shift(g, h, last, _is_unusual(g, step.index)))
        failed = more[0, 0].ne(0.0) & row.carried[0].eq(0)
        row.carry(b.choose(failed, g.integer(last + 1), row.carried[0]))
        done = more[0, 0].eq(0.0)
        h[last, last - 1] = b.select(done, g.element(0), h[last, last - 1])
    return row.carried[0]


# ---- real matrices ----

_Shifts = Sequence[Sequence[Value]]
"""Two rows whose eigenvalues are shifts."""


def _blocks(g: Group, h: Piece, last: Value, going: Value, number: Value) -> Value:
    """Where the block begins that ends with the last row, in each lane; what counts as zero above it becomes that.
    `number`: that of the step."""
    b = g.b
    with b.loop(0, last, 1, g.integer(0)) as step:
        i = last - step.index
        small = _is_small(g, h, i, number)
        h[i, i - 1] = b.choose(small & going, 0.0, h[i, i - 1])
        begin = step.carried[0]
        step.carry(b.choose(small & begin.eq(0), g.integer(i), begin))
    return step.carried[0]


class _Reflection:
    """1 - tau (1, y, z)' (1, y, z), which makes (left, 0, 0) of three numbers; in lanes where it does not, nothing
    changes."""

    def __init__(self, g: Group, x: Value, y: Value, z: Value, where: Value) -> None:
        b = self.b = g.b
        self.where = where & (y.ne(0.0) | z.ne(0.0))
        large = b.choose(self.where, _largest_part(b, x, y, z), 1.0)
        x, y, z = x / large, y / large, z / large
        length = b.sqrt(b.fma(x, x, b.fma(y, y, z * z)))
        beta = b.choose(self.where, -b.copysign(length, x), 1.0)
        divisor = b.choose(self.where, x - beta, 1.0)
        self.tau, self.y, self.z = (beta - x) / beta, y / divisor, z / divisor
        self.left = beta * large

    def of(self, a: Piece, places: Sequence[tuple[Value, Value]]) -> None:
        """Three elements; the last of them may be the second one, and is nothing then."""
        b = self.b
        x, y, z = (a[place] for place in places)
        total = b.fma(self.z, z, b.fma(self.y, y, x)) * self.tau
        changed = (x - total, b.fma(-self.y, total, y), b.fma(-self.z, total, z))
        for place, new, old in reversed(list(zip(places, changed, (x, y, z), strict=True))):
            a[place] = b.choose(self.where, new, old)


def _first_column(g: Group, h: Piece, k: Value, far: Value, shifts: _Shifts) -> tuple[Value, Value, Value]:
    """What a step begins with that starts at row k: a multiple of the first column of (h - one shift) (h - the other).
    The shifts are the eigenvalues of two rows. They are subtracted first: their product would hide how near they are.
    Small numbers are multiplied with quotients, since their products might not be numbers any more."""
    b = g.b
    (a, upper), (lower, d) = shifts
    here, right, left = h[k, k], h[k, k + 1], h[k + 1, k]
    p, q = here - a, here - d
    size = b.abs(p) + b.abs(q) + b.abs(left) + b.abs(lower)
    by = b.choose(size.eq(0.0), 1.0, size)
    x = b.fma(p, q / by, b.fma(right, left / by, -(upper * (lower / by))))
    return x, left * ((p + (h[k + 1, k + 1] - d)) / by), h[far, k + 1] * (left / by)


def _real_step(g: Group, h: Piece, v: Piece | None, last: Value, n: Value, going: Value, begin: Value,
               shifts: _Shifts) -> None:  # fmt: skip
    """Two steps of the QR algorithm at once: what the first column would be turned by begins it, and is chased down to
    the last row."""
    b = g.b
    with b.loop(0, last, 1) as step:
        k = step.index
        far = b.intrinsic("smin", k + 2, last)
        there = b.intrinsic("smax", k - 1, b.i64(0))
        first, inside = begin.eq(g.integer(k)), begin < g.integer(k)
        has_far = g.integer(k + 2) <= g.integer(last)
        p, q, r = (h[i, there] for i in (k, k + 1, far))
        begun = _first_column(g, h, k, far, shifts)
        x, y, z = (b.choose(first, new, old) for new, old in zip(begun, (p, q, r), strict=True))
        turn = _Reflection(g, x, y, b.choose(has_far, z, 0.0), going & (first | inside))
        with b.loop(b.choose(k.eq(0), 0, k - 1), n, 1) as j:
            turn.of(h, [(k, j.index), (k + 1, j.index), (far, j.index)])
        chased = turn.where & inside
        for place, value in ((far, g.number(0)), (k + 1, g.number(0)), (k, turn.left)):
            h[place, there] = b.choose(chased, value, h[place, there])
        with b.loop(0, b.intrinsic("smin", k + 4, last + 1), 1) as i:
            turn.of(h, [(i.index, k), (i.index, k + 1), (i.index, far)])
        if v is not None:
            with b.loop(0, n, 1) as i:
                turn.of(v, [(i.index, k), (i.index, k + 1), (i.index, far)])


def _real_blocks(g: Group, h: Piece, v: Piece | None, n: Value) -> Value:
    """Make the matrices triangular but for blocks of two rows; how many eigenvalues were not found."""
    b, more, paired = g.b, g.matrix("more"), g.matrix("paired")
    paired[0, 0] = g.number(0)
    with b.loop(0, n, 1, g.integer(0)) as row:
        last = n - 1 - row.index
        more[0, 0] = b.choose(paired[0, 0].eq(0.0), 1.0, g.number(0))
        paired[0, 0] = g.number(0)
        with b.loop(0, _STEPS, 1) as step, b.when(b.any(more[0, 0].ne(0.0))):
            going = more[0, 0].ne(0.0)
            begin = _blocks(g, h, last, going, step.index)
            pair = going & (begin + 1).eq(g.integer(last))
            paired[0, 0] = b.choose(pair, 1.0, paired[0, 0])
            going = going & ((begin + 1) < g.integer(last))
            more[0, 0] = b.choose(going, 1.0, g.number(0))
            with b.when(b.any(going)):
                above = b.intrinsic("smax", last - 2, b.i64(0))
                size = b.abs(h[last, last - 1]) + b.abs(h[last - 1, above])
                unusual = _is_unusual(g, step.index)
                x, y = h[last - 1, last - 1], h[last, last]
                other = b.fma(size, 0.75, y)
                usual = ((x, h[last - 1, last]), (h[last, last - 1], y))
                unusually = ((other, size * -0.4375), (size, other))
                shifts = [
                    [b.choose(unusual, new, old) for new, old in zip(*rows, strict=True)]
                    for rows in zip(unusually, usual, strict=True)
                ]
                _real_step(g, h, v, last, n, going, begin, shifts)
        failed = more[0, 0].ne(0.0) & row.carried[0].eq(0)
        row.carry(b.choose(failed, g.integer(last + 1), row.carried[0]))
    return row.carried[0]


def _real_pairs(g: Group, h: Piece, v: Piece | None, w: Piece, n: Value) -> None:
    """Eigenvalues of what is left. A block with two real ones is turned into a triangle."""
    b = g.b
    with b.loop(0, n, 1) as place:
        w[place.index, 0] = Complex(h[place.index, place.index], g.number(0))
    with b.loop(0, n - 1, 1) as row:
        i = row.index
        a, d, below = h[i, i], h[i + 1, i + 1], h[i + 1, i]
        pair = below.ne(0.0)
        with b.when(b.any(pair)):
            size = b.abs(a - d) + b.abs(h[i, i + 1]) + b.abs(below)
            by = b.choose(size.eq(0.0), 1.0, size)
            half, product = (a - d) * 0.5 / by, (h[i, i + 1] / by) * (below / by)
            inside = b.fma(half, half, product)
            real = pair & (inside >= 0.0)
            root = b.sqrt(b.abs(inside))
            far = half + b.copysign(root, half)
            none = far.eq(0.0)
            values = (d + far * by, b.choose(none, d, d - product / b.choose(none, 1.0, far) * by))
            middle = d + half * by
            for at, value, sign in ((i, values[0], 1.0), (i + 1, values[1], -1.0)):
                found = Complex(b.choose(real, value, middle), b.choose(real, 0.0, root * by * sign))
                w[at, 0] = _select(b, pair, found, w[at, 0])
            rotation = _rotation(g, far, below / by, real)
            rotation.rows(h, i, i, n)
            rotation.columns(h, i, i + 2)
            if v is not None:
                rotation.columns(v, i, n)
            for corner, value in (((i, i), values[0]), ((i + 1, i + 1), values[1]), ((i + 1, i), g.number(0))):
                h[corner] = b.choose(real, value, h[corner])


def _as_complex(g: Group, h: Piece, v: Piece, w: Piece, t: Piece, z: Piece, n: Value) -> None:
    """The triangle, and what turned the matrices into it, as complex numbers: blocks are turned too."""
    b, zero = g.b, g.number(0)
    with b.loop(0, n, 1) as down, b.loop(0, n, 1) as across:
        t[down.index, across.index] = Complex(h[down.index, across.index], zero)
        z[down.index, across.index] = Complex(v[down.index, across.index], zero)
    with b.loop(0, n - 1, 1) as row:
        i = row.index
        pair = h[i + 1, i].ne(0.0)
        with b.when(b.any(pair)):
            value = w[i, 0]
            rotation = _rotation(g, value - t[i + 1, i + 1], t[i + 1, i], pair)
            rotation.rows(t, i, i, n)
            rotation.columns(t, i, i + 2)
            rotation.columns(z, i, n)
            t[i, i], t[i + 1, i + 1] = (_select(b, pair, w[k, 0], t[k, k]) for k in (i, i + 1))
            t[i + 1, i] = _select(b, pair, Complex(zero, zero), t[i + 1, i])


# ---- vectors ----


def _vector(g: Group, t: Piece, x: Piece, k: Value) -> None:
    """The eigenvector of a triangle for its element k, by substitution. Elements are kept small on the way."""
    b, zero, one = g.b, g.number(0), g.number(1)
    part, value = dt.real_of(t.dtype), t[k, k]
    least, nothing = _size(b, value) * float(dt.finfo(part).eps), _nothing(part)
    least = b.choose(least > nothing, least, nothing)
    x[k, 0] = Complex(one, zero)
    with b.loop(0, k, 1) as step:
        i = k - 1 - step.index
        with b.loop(i + 1, k + 1, 1, zero, zero) as j:
            total = el.multiply_add(b, t[i, j.index], x[j.index, 0], Complex(*j.carried))
            j.carry(*el.flat([total]))
        distance = value - t[i, i]
        near = _size(b, distance) < least
        distance = _select(b, near, Complex(least, zero), distance)
        x[i, 0] = Divisor(b, distance).under(Complex(*j.carried))
        size = _largest_part(b, x[i, 0])
        large = size > 2.0**20
        with b.when(b.any(large)):
            factor = b.choose(large, 1.0 / b.choose(large, size, 1.0), 1.0)
            with b.loop(i, k + 1, 1) as j:
                x[j.index, 0] = _by(x[j.index, 0], factor)


def _unit_vector(g: Group, z: Piece, x: Piece, y: Piece, d: Piece, k: Value, n: Value, real: Value | None) -> None:
    """y, the vector of the matrices that x is of their triangles: of length 1, with a largest element that is real. Of
    real matrices and values it is `real` altogether: what else there is of it is a vector too."""
    b, zero, one = g.b, g.number(0), g.number(1)
    with b.loop(0, n, 1, zero) as i:
        with b.loop(0, k + 1, 1, zero, zero) as j:
            total = el.multiply_add(b, z[i.index, j.index], x[j.index, 0], Complex(*j.carried))
            j.carry(*el.flat([total]))
        y[i.index, 0] = _by(Complex(*j.carried), d[i.index, 0])
        here = _largest_part(b, y[i.index, 0])
        i.carry(b.choose(here > i.carried[0], here, i.carried[0]))
    size = b.choose(i.carried[0] > 0.0, i.carried[0], 1.0)
    with b.loop(0, n, 1, zero, one, zero) as i:
        best, re, im = i.carried
        value = Complex(y[i.index, 0].re / size, y[i.index, 0].im / size)
        y[i.index, 0] = value
        square = squared(b, value, zero)
        more = square > best
        i.carry(b.choose(more, square, best), b.choose(more, value.re, re), b.choose(more, value.im, im))
    best, re, im = i.carried
    modulus = b.sqrt(b.choose(best > 0.0, best, 1.0))
    phase = Complex(re / modulus, -im / modulus)
    with b.loop(0, n, 1, zero) as i:
        value = y[i.index, 0]
        flat = value.re.eq(re) & value.im.eq(im)
        turned = value * phase
        y[i.index, 0] = Complex(turned.re, b.choose(flat if real is None else flat | real, 0.0, turned.im))
        i.carry(squared(b, y[i.index, 0], i.carried[0]))
    length = b.sqrt(b.choose(i.carried[0] > 0.0, i.carried[0], 1.0))
    with b.loop(0, n, 1) as i:
        y[i.index, 0] = Complex(y[i.index, 0].re / length, y[i.index, 0].im / length)


# ---- kernels ----


def _values(g: Group, w: Piece, back: Value, spoiled: Value, n: Value) -> None:
    b = g.b
    with b.loop(0, n, 1) as i:
        value = w[i.index, 0]
        g.write(Complex(b.fma(value.re, back, spoiled), b.fma(value.im, back, spoiled)), "w", i.index)


def _real(g: Group, vectors: bool) -> None:
    b, n, kind = g.b, g["n"], dt.complex_of(g.kernel.dtype)
    h, d, w = g.matrix("h", n), g.matrix("d"), g.matrix("w", 1, kind)
    v = g.matrix("v", n) if vectors else None
    back, spoiled = _given(g, h, n)
    _balanced(g, h, d, n)
    if v is not None:
        set_identity(g, v, n)
    _hessenberg(g, h, v, n)
    g.write(_real_blocks(g, h, v, n), "info", 0)
    _real_pairs(g, h, v, w, n)
    _values(g, w, back, spoiled, n)
    if v is None:
        return
    t, z, x, y = g.matrix("t", n, kind), g.matrix("z", n, kind), g.matrix("x", 1, kind), g.matrix("y", 1, kind)
    _as_complex(g, h, v, w, t, z, n)
    with b.loop(0, n, 1) as column:
        k = column.index
        _vector(g, t, x, k)
        second = w[k, 0].im < 0.0
        # The vectors of a pair are conjugate: the second one is that of the column before.
        before = g.matrix("before", 1, kind)
        _unit_vector(g, z, x, y, d, k, n, w[k, 0].im.eq(0.0))
        with b.loop(0, n, 1) as i:
            value = _select(b, second, conjugate(before[i.index, 0]), y[i.index, 0])
            before[i.index, 0] = value
            g.write(spoiled_by(value, spoiled), "v", i.index, k)


def _complex(g: Group, vectors: bool) -> None:
    b, n, part = g.b, g["n"], dt.real_of(g.kernel.dtype)
    h, d, w = g.matrix("h", n), g.matrix("d", 1, part), g.matrix("w")
    v = g.matrix("v", n) if vectors else None
    back, spoiled = _given(g, h, n)
    _balanced(g, h, d, n)
    if v is not None:
        set_identity(g, v, n)
    _hessenberg(g, h, v, n)
    g.write(_complex_triangle(g, h, v, n), "info", 0)
    with b.loop(0, n, 1) as i:
        w[i.index, 0] = h[i.index, i.index]
    _values(g, w, back, spoiled, n)
    if v is None:
        return
    x, y = g.matrix("x"), g.matrix("y")
    with b.loop(0, n, 1) as column:
        _vector(g, h, x, column.index)
        _unit_vector(g, v, x, y, d, column.index, n, None)
        with b.loop(0, n, 1) as i:
            g.write(spoiled_by(y[i.index, 0], spoiled), "v", i.index, column.index)


# ---- lowering ----


def eig(op: Eig, operands: Sequence[Layout], w: Layout, v: Layout) -> Lowering:
    return _general(operands, [w, v])


def eigenvalues(op: Eigenvalues, operands: Sequence[Layout], w: Layout) -> Lowering:
    return _general(operands, [w])


def _general(operands: Sequence[Layout], results: Sequence[Layout]) -> Lowering:
    n, vectors, dtype = operands[0].shape[-1], len(results) == 2, operands[0].dtype
    work = Work(operands, results, dtype)
    names = {"a": 0, "w": 1, **({"v": 2} if vectors else {}), "info": work.info()}
    parts = 1 if dtype.is_complex else 2
    pieces = {"h": n * n, "d": n, "w": parts * n, "more": 1}
    if vectors:
        pieces |= {"v": n * n, "x": parts * n, "y": parts * n}
    if dtype.is_complex:
        pieces |= {"turns": n, "c": n, "s": n}
    else:
        pieces |= {"paired": 1}
        if vectors:
            pieces |= {"t": 2 * n * n, "z": 2 * n * n, "before": 2 * n}
    emit = _complex if dtype.is_complex else _real
    work.run(f"eig vectors={vectors}", lambda g: emit(g, vectors), names, {"n": n}, pieces, 100 * n * n * n)
    return work.lowering(check=True)
