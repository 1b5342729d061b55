"""Eigenvalues and singular values by LAPACK.

The library may not come back from matrices with infinities or NaNs: it does not see them, and their results are NaNs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft import dtypes as dt
from weft.codegen.launch import Layout, Lowering
from weft.codegen.math.basics import inverse_power
from weft.dtypes import Dtype
from weft.graph.dims import dim_max, dim_min
from weft.llvm.builder import Builder, Complex, Value
from weft.passes.lower import to_int
from weft.primitives.linalg import Eig, Eigenvalues, Eigh, HermitianEigenvalues, SingularValues, Svd
from weft.records import replace
from weft.targets.cpu.lapack.calls import CallFrame, Calls, number
from weft.targets.cpu.lapack.factors import BLOCK


def guarded(
    f: CallFrame, operands: Sequence[str], results: Sequence[tuple[str, Value, Dtype]], call: Callable[[], None]
) -> None:
    """Make a call for matrices that are finite; for others all results (name, elements, dtype) are NaNs."""
    b, real = f.b, dt.real_of(f.dtype)
    parts = 2 if f.dtype.is_complex else 1
    zero = total = b.const(real, 0.0, 1)
    for a in operands:
        at = f.place(a)
        with b.loop(0, f["elements"] * parts, 1, total) as loop:
            x = number(b, b.gep(at, loop.index * real.size), real)
            loop.carry(loop.carried[0] + x * zero)  # NaN as soon as one of them is not finite
        (total,) = loop.carried
    finite = total.eq(zero)
    with b.when(finite):
        call()
    with b.when(~finite):
        b.store(b.const(dt.int32, 0, 1), f.place("info"))
        for name, count, dtype in results:
            fill_nan(b, f.place(name), count, dtype)


def fill_nan(b: Builder, at: Value, count: Value, dtype: Dtype) -> None:
    """NaNs in memory."""
    nan = b.const(dt.real_of(dtype), float("nan"), 1)
    with b.loop(0, count, 1) as loop:
        b.store(Complex(nan, nan) if dtype.is_complex else nan, b.gep(at, loop.index * dtype.size))


# ---- Hermitian matrices ----


def eigh(op: Eigh, operands: Sequence[Layout], w: Layout, v: Layout) -> Lowering:
    return _hermitian(op.upper, operands, [w, v])


def hermitian_eigenvalues(op: HermitianEigenvalues, operands: Sequence[Layout], w: Layout) -> Lowering:
    return _hermitian(op.upper, operands, [w])


def _hermitian(upper: bool, operands: Sequence[Layout], results: Sequence[Layout]) -> Lowering:
    calls, vectors = Calls(operands, results), len(results) == 2
    if 0 in operands[0].shape:
        return calls.lowering()
    n, dtype = operands[0].shape[-1], operands[0].dtype
    a, w, info = calls.given(0, columns=True), calls.room((n,), dt.real_of(dtype)), calls.info()
    sizes = {"n": n, "lwork": _hermitian_work(n, vectors, dtype), "liwork": 3 + 5 * n}
    scratch = {"work": sizes["lwork"] * dtype.size, "iwork": 4 * sizes["liwork"]}
    if dtype.is_complex:
        sizes["lrwork"] = 1 + 5 * n + 2 * n * n if vectors else n
        scratch["rwork"] = sizes["lrwork"] * w.dtype.size
    letters = "'V'" if vectors else "'N'", "'U'" if upper else "'L'"
    calls.run(
        f"eigh {letters}", lambda f: _eigh(f, letters), {"a": a, "w": w, "info": info}, sizes,
        9 * n * n * n, ["heevd" if dtype.is_complex else "syevd"], scratch, {"elements": n * n},
    )  # fmt: skip
    calls.check(info)
    calls.give(w, 0)
    if vectors:
        calls.give(a, 1)
    return calls.lowering()


def _hermitian_work(n: int, vectors: bool, dtype: Dtype) -> int:
    if dtype.is_complex:
        return (2 * n + n * n if vectors else n + 1) + BLOCK * n
    return (1 + 6 * n + 2 * n * n if vectors else 2 * n + 1) + BLOCK * n


def _eigh(f: CallFrame, letters: tuple[str, str]) -> None:
    results = [("w", f["n"], dt.real_of(f.dtype)), ("a", f["elements"], f.dtype)]

    def call() -> None:
        if f.dtype.is_complex:
            more = ["work", "lwork", "rwork", "lrwork", "iwork", "liwork"]
            f.call("heevd", *letters, "n", "a", "n", "w", *more, "info")
        else:
            f.call("syevd", *letters, "n", "a", "n", "w", "work", "lwork", "iwork", "liwork", "info")

    guarded(f, ["a"], results, call)


# ---- singular values ----


def svd(op: Svd, operands: Sequence[Layout], u: Layout, s: Layout, vh: Layout) -> Lowering:
    return _singular("'A'" if op.full else "'S'", operands, [u, s, vh])


def singular_values(op: SingularValues, operands: Sequence[Layout], s: Layout) -> Lowering:
    return _singular("'N'", operands, [s])


def _singular(letter: str, operands: Sequence[Layout], results: Sequence[Layout]) -> Lowering:
    calls, vectors = Calls(operands, results), len(results) == 3
    (m, n), dtype = operands[0].shape[-2:], operands[0].dtype
    if 0 in operands[0].shape:
        return _identities(calls) if vectors else calls.lowering()
    k, long = to_int(dim_min(m, n)), to_int(dim_max(m, n))
    a, s, info = calls.given(0, columns=True), calls.room((k,), dt.real_of(dtype)), calls.info()
    given = {"a": a, "s": s, "info": info}
    sizes = {"m": m, "n": n, "lwork": _singular_work(letter, k, long, dtype), "ldvt": 1}
    if vectors:
        u, _, vh = results
        given["u"] = calls.room(u.shape[-2:], dtype, columns=True)
        given["vt"] = calls.room(vh.shape[-2:], dtype, columns=True)
        sizes["ldvt"] = vh.shape[-2]
    else:
        given["u"] = given["vt"] = s  # which are not touched
    scratch = {"work": sizes["lwork"] * dtype.size, "iwork": 4 * 8 * k}
    if dtype.is_complex:
        most = to_int(dim_max(5 * k * k + 7 * k, 2 * long * k + 2 * k * k + k))
        scratch["rwork"] = (most if vectors else 7 * k) * s.dtype.size
    numbers = {"elements": m * n, "k": k}
    if vectors:
        numbers |= {"of_u": m * results[0].shape[-1], "of_vt": results[2].shape[-2] * n}
    calls.run(
        f"svd {letter}", lambda f: _svd(f, letter), given, sizes, 9 * m * n * k, ["gesdd"], scratch, numbers
    )  # fmt: skip
    calls.check(info)
    if vectors:
        calls.give(given["u"], 0)
        calls.give(given["vt"], 2)
    calls.give(s, 1 if vectors else 0)
    return calls.lowering()


def _singular_work(letter: str, k: int, long: int, dtype: Dtype) -> int:
    """What the library asks for at least, and room for blocks."""
    blocks = BLOCK * (k + long)
    if dtype.is_complex:
        return (2 * k + long if letter == "'N'" else k * k + 3 * k + long) + blocks
    return (3 * k + to_int(dim_max(long, 7 * k)) if letter == "'N'" else 4 * k * k + 7 * k + long) + blocks


def _svd(f: CallFrame, letter: str) -> None:
    results = [("s", f["k"], dt.real_of(f.dtype))]
    if letter != "'N'":
        results += [("u", f["of_u"], f.dtype), ("vt", f["of_vt"], f.dtype)]
    rwork = ["rwork"] if f.dtype.is_complex else []
    arguments = ["m", "n", "a", "m", "s", "u", "m", "vt", "ldvt", "work", "lwork", *rwork, "iwork", "info"]
    guarded(f, ["a"], results, lambda: f.call("gesdd", letter, *arguments))


def _identities(calls: Calls) -> Lowering:
    """Of a matrix without elements: whatever has some is an identity."""
    for k in (0, 2):
        result = calls.results[k]
        if 0 not in result.shape:
            n = result.shape[-1]
            out = calls.room((n, n), result.dtype)
            calls.run(f"identity {k}", _identity, {"out": out}, {}, n * n, numbers={"n": n})
            calls.give(out, k)
    return calls.lowering()


def _identity(f: CallFrame) -> None:
    b, n, real = f.b, f["n"], dt.real_of(f.dtype)
    zero, one = b.const(real, 0.0, 1), b.const(real, 1.0, 1)
    with b.loop(0, n * n, 1) as loop:
        quotient = b.op(f"udiv i64 {loop.index.text}, {(n + 1).text}", dt.int64, 1)
        x = b.choose((quotient * (n + 1)).eq(loop.index), one, zero)
        b.store(Complex(x, zero) if f.dtype.is_complex else x, b.gep(f.place("out"), loop.index * f.dtype.size))


# ---- any matrix ----


def eig(op: Eig, operands: Sequence[Layout], w: Layout, v: Layout) -> Lowering:
    return _general(operands, [w, v])


def eigenvalues(op: Eigenvalues, operands: Sequence[Layout], w: Layout) -> Lowering:
    return _general(operands, [w])


def _general(operands: Sequence[Layout], results: Sequence[Layout]) -> Lowering:
    calls, vectors = Calls(operands, results), len(results) == 2
    if 0 in operands[0].shape:
        return calls.lowering()
    n, dtype, real = operands[0].shape[-1], operands[0].dtype, dt.real_of(operands[0].dtype)
    a, w, info = calls.given(0, columns=True), calls.room((n,), results[0].dtype), calls.info()
    v = calls.room((n, n), results[0].dtype, columns=True) if vectors else replace(w, shape=(0, 0))
    sizes = {"n": n, "lwork": (4 + BLOCK) * n, "one": 1}
    scratch = {"work": sizes["lwork"] * dtype.size, "parts": 2 * n * real.size}
    if vectors and not dtype.is_complex:
        scratch["vectors"] = n * n * dtype.size
    calls.run(
        f"eig {vectors}", lambda f: _eig(f, vectors), {"a": a, "w": w, "v": v, "info": info}, sizes, 25 * n * n * n,
        ["geev"], scratch, {"elements": n * n, "imaginary": n * real.size},
    )  # fmt: skip
    calls.check(info)
    calls.give(w, 0)
    if vectors:
        calls.give(v, 1)
    return calls.lowering()


def _eig(f: CallFrame, vectors: bool) -> None:
    complex_, b, real = dt.complex_of(f.dtype), f.b, dt.real_of(f.dtype)
    results = [("w", f["n"], complex_), *([("v", f["elements"], complex_)] if vectors else [])]
    letter, leading = ("'V'", "n") if vectors else ("'N'", "one")
    parts = 2 if f.dtype.is_complex else 1

    def call() -> None:
        # Some libraries scale what they find too large or too small, and leave its eigenvalues so.
        power = inverse_power(b, _largest(b, f.place("a"), f["elements"] * parts, real))
        _multiply(b, f.place("a"), f["elements"] * parts, power)
        found()
        _multiply(b, f.place("w"), f["n"] * 2, 1.0 / power)

    def found() -> None:
        if f.dtype.is_complex:
            arguments = ["w", "work", "one", "v", leading, "work", "lwork", "parts", "info"]
            f.call("geev", "'N'", letter, "n", "a", "n", *arguments)
            return
        re = f.place("parts")
        im, packed = b.gep(re, f["imaginary"]), f.place("vectors") if vectors else re
        f.call("geev", "'N'", letter, "n", "a", "n", re, im, re, "one", packed, leading, "work", "lwork", "info")
        size = f.dtype.size
        with b.loop(0, f["n"], 1) as loop:
            value = Complex(*(number(b, b.gep(x, loop.index * size), f.dtype) for x in (re, im)))
            b.store(value, b.gep(f.place("w"), loop.index * 2 * size))
        if vectors:
            _unpack_pairs(f, im, packed)

    guarded(f, ["a"], results, call)


def _largest(b: Builder, at: Value, count: Value, dtype: Dtype) -> Value:
    """The largest modulus among numbers in memory."""
    with b.loop(0, count, 1, b.const(dtype, 0.0, 1)) as loop:
        size = b.abs(number(b, b.gep(at, loop.index * dtype.size), dtype))
        loop.carry(b.choose(size > loop.carried[0], size, loop.carried[0]))
    return loop.carried[0]


def _multiply(b: Builder, at: Value, count: Value, by: Value) -> None:
    """Numbers in memory times one."""
    with b.loop(0, count, 1) as loop:
        place = b.gep(at, loop.index * by.dtype.size)
        b.store(number(b, place, by.dtype) * by, place)


def _unpack_pairs(f: CallFrame, im: Value, packed: Value) -> None:
    """Vectors of a real matrix: those of a conjugate pair are x + iy and x - iy, where x is one column and y the
    next."""
    b, n, size = f.b, f["n"], f.dtype.size
    zero = b.const(f.dtype, 0.0, 1)
    with b.loop(0, n, 1) as column:
        imaginary = number(b, b.gep(im, column.index * size), f.dtype)
        first, second = imaginary > 0.0, imaginary < 0.0
        at_x = column.index - b.cast(second, dt.int64)
        at_y = b.choose(first, column.index + 1, column.index)
        sign = b.choose(first, 1.0, b.choose(second, -1.0, zero))
        with b.loop(0, n, 1) as row:
            x = number(b, b.gep(packed, (at_x * n + row.index) * size), f.dtype)
            y = number(b, b.gep(packed, (at_y * n + row.index) * size), f.dtype)
            paired = imaginary.ne(0.0)
            value = Complex(x, b.choose(paired, y * sign, zero))
            b.store(value, b.gep(f.place("v"), (column.index * n + row.index) * 2 * size))
