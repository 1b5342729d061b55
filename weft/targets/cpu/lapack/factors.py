"""Factorizations, inverses and triangular systems by LAPACK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from weft import dtypes as dt
from weft.codegen.launch import Layout, Lowering
from weft.llvm.builder import Value
from weft.primitives.linalg import Cholesky, Inverse, Lu, Qr, SolveTriangular
from weft.records import replace
from weft.targets.cpu.lapack.calls import CallFrame, Calls, clear, copy, number

BLOCK: Final = 64
"""Columns that the library works on at once, at most: that many rows of a work space."""


# ---- Cholesky ----


def cholesky(op: Cholesky, operands: Sequence[Layout], out: Layout) -> Lowering:
    """A Hermitian matrix row by row is its conjugate column by column, whose upper factor is, row by row, the lower one
    that is wanted: nothing is transposed."""
    calls = Calls(operands, [out])
    if 0 in out.shape:
        return calls.lowering()
    n, a, info = out.shape[-1], calls.given(0), calls.info()
    each = _upper_cholesky if op.upper else _lower_cholesky
    if op.quiet:
        each = _quiet_upper_cholesky if op.upper else _quiet_lower_cholesky
    calls.run(each.__name__, each, {"a": a, "info": info}, {"n": n}, n * n * n // 3, ["potrf"])
    if not op.quiet:
        calls.check(info)
    calls.give(a)
    return calls.lowering()


def _quiet_lower_cholesky(f: CallFrame) -> None:
    _lower_cholesky(f)
    _spoil(f)


def _quiet_upper_cholesky(f: CallFrame) -> None:
    _upper_cholesky(f)
    _spoil(f)


def _spoil(f: CallFrame) -> None:
    """NaNs in place of a factor that there is not: in every dtype, those are what all bits are set of."""
    b, n = f.b, f["n"]
    with b.when(number(b, f.place("info"), dt.int32).ne(0)):
        b.call_void("llvm.memset.p0.i64", f.place("a"), "i8 -1", n * n * f.dtype.size, "i1 false")


def _lower_cholesky(f: CallFrame) -> None:
    f.call("potrf", "'U'", "n", "a", "n", "info")
    b, a, n, size = f.b, f.place("a"), f["n"], f.dtype.size
    with b.loop(0, n, 1) as row:  # the other triangle is left as it was
        behind = row.index + 1
        clear(b, b.gep(a, (row.index * n + behind) * size), (n - behind) * size)


def _upper_cholesky(f: CallFrame) -> None:
    f.call("potrf", "'L'", "n", "a", "n", "info")
    b, a, n, size = f.b, f.place("a"), f["n"], f.dtype.size
    with b.loop(0, n, 1) as row:
        clear(b, b.gep(a, row.index * n * size), row.index * size)


# ---- QR ----


def qr(op: Qr, operands: Sequence[Layout], q: Layout, r: Layout) -> Lowering:
    calls = Calls(operands, [q, r])
    if 0 in operands[0].shape:
        return calls.lowering()
    (m, n), k, dtype = operands[0].shape[-2:], q.shape[-1], q.dtype
    a, upper, tau = calls.given(0, columns=True), calls.room((k, n), dtype, columns=True), calls.room((k,), dtype)
    calls.run(
        "qr", _qr, {"a": a, "r": upper, "tau": tau}, {"m": m, "n": n, "k": k, "lwork": BLOCK * n}, 4 * m * n * k,
        ["geqrf", _unpack(q)], {"work": BLOCK * n * dtype.size},
    )  # fmt: skip
    calls.give(replace(a, shape=(m, k)), 0)
    calls.give(upper, 1)
    return calls.lowering()


def _unpack(q: Layout | CallFrame) -> str:
    return "ungqr" if q.dtype.is_complex else "orgqr"


def _qr(f: CallFrame) -> None:
    f.call("geqrf", "m", "n", "a", "m", "tau", "work", "lwork", f.ignored)
    b, a, r, size = f.b, f.place("a"), f.place("r"), f.dtype.size
    with b.loop(0, f["n"], 1) as column:
        rows = b.intrinsic("smin", column.index + 1, f["k"])
        to = b.gep(r, column.index * f["k"] * size)
        copy(b, to, b.gep(a, column.index * f["m"] * size), rows * size)
        clear(b, b.gep(to, rows * size), (f["k"] - rows) * size)
    f.call(_unpack(f), "m", "k", "k", "a", "m", "tau", "work", "lwork", f.ignored)


# ---- LU ----


def lu(op: Lu, operands: Sequence[Layout], out: Layout, pivots: Layout, order: Layout) -> Lowering:
    calls = Calls(operands, [out, pivots, order])
    m, n = out.shape[-2:]
    if 0 in (*calls.lead, m):
        return calls.lowering()
    k = pivots.shape[-1]
    a, exchanges = calls.given(0, columns=True), calls.room((k,), dt.int32)
    places = calls.room((m,), dt.uint32)
    given = {"a": a, "pivots": exchanges, "order": places}
    calls.run("lu", _lu, given, {"m": m, "n": n, "k": k}, m * n * k * 2 // 3, ["getrf"])
    calls.give(a, 0)
    calls.give(replace(exchanges, dtype=dt.uint32), 1)
    calls.give(places, 2)
    return calls.lowering()


def _lu(f: CallFrame) -> None:
    """Factors, the exchanges of rows counted from 0, and where every row went."""
    f.call("getrf", "m", "n", "a", "m", "pivots", f.ignored)
    b, pivots, order = f.b, f.place("pivots"), f.place("order")
    with b.loop(0, f["m"], 1) as row:
        b.store(b.cast(row.index, dt.uint32), b.gep(order, row.index * 4))
    with b.loop(0, f["k"], 1) as row:
        at = b.gep(pivots, row.index * 4)
        place = number(b, at, dt.int32) - 1
        b.store(place, at)
        one, other = b.gep(order, row.index * 4), b.gep(order, b.cast(place, dt.int64) * 4)
        here, there = number(b, one, dt.uint32), number(b, other, dt.uint32)
        b.store(there, one)
        b.store(here, other)


# ---- inverses ----


def inverse(op: Inverse, operands: Sequence[Layout], out: Layout) -> Lowering:
    """The inverse of the transpose is the transpose of the inverse: nothing is transposed."""
    calls = Calls(operands, [out])
    if 0 in out.shape:
        return calls.lowering()
    n, a, info = out.shape[-1], calls.given(0), calls.info()
    scratch = {"pivots": 4 * n, "work": BLOCK * n * out.dtype.size}
    sizes = {"n": n, "lwork": BLOCK * n}
    calls.run("inverse", _inverse, {"a": a, "info": info}, sizes, 2 * n * n * n, ["getrf", "getri"], scratch)
    calls.check(info)
    calls.give(a)
    return calls.lowering()


def _inverse(f: CallFrame) -> None:
    f.call("getrf", "n", "n", "a", "n", "pivots", "info")
    with f.b.when(number(f.b, f.place("info"), dt.int32).eq(0)):
        f.call("getri", "n", "a", "n", "pivots", "work", "lwork", "info")


# ---- triangular systems ----


def solve_triangular(op: SolveTriangular, operands: Sequence[Layout], out: Layout) -> Lowering:
    """Row by row, everything is its transpose: x' t' = b', where an upper triangle is a lower one."""
    calls = Calls(operands, [out])
    if 0 in out.shape:
        return calls.lowering()
    n, k = out.shape[-2:]
    a, b = calls.given(0), calls.given(1)
    if not op.is_total:
        info = calls.info()
        calls.run("zero on the diagonal", _first_zero, {"a": a, "info": info}, {"n": n}, n)
        calls.check(info)
    letters = "'L'" if op.upper else "'U'", "'N'", "'U'" if op.unit else "'N'"
    name = f"solve upper={op.upper} unit={op.unit}"
    calls.run(name, lambda f: _solve(f, letters), {"a": a, "b": b}, {"n": n, "k": k}, n * n * k, ["trsm"])
    calls.give(b)
    return calls.lowering()


def _solve(f: CallFrame, letters: Sequence[str]) -> None:
    f.call("trsm", "'R'", *letters, "k", "n", f.constant(1), "a", "n", "b", "k")


def _first_zero(f: CallFrame) -> None:
    """Reports the first zero on the diagonal, counted from 1."""
    b, a, n = f.b, f.place("a"), f["n"]
    with b.loop(0, n, 1, b.i64(0)) as loop:
        x = b.load(b.gep(a, loop.index * (n + 1) * f.dtype.size), f.dtype, 1)
        zero = x.eq(0.0) if isinstance(x, Value) else x.re.eq(0.0) & x.im.eq(0.0)
        (found,) = loop.carried
        loop.carry(b.choose(zero & found.eq(0), loop.index + 1, found))
    b.store(b.cast(loop.carried[0], dt.int32), f.place("info"))
