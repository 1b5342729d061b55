"""Schur's form of a matrix and of a pair, and equations of such forms, by LAPACK.

Eigenvalues are put in order behind the iteration, by a choice that is made of them here: the library would call back
for it.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft import dtypes as dt
from weft.codegen.launch import Layout, Lowering
from weft.llvm.builder import Complex, Value
from weft.primitives.linalg import GeneralizedSchur, Schur, Sylvester
from weft.targets.cpu.lapack.calls import CallFrame, Calls, number
from weft.targets.cpu.lapack.factors import BLOCK
from weft.targets.cpu.lapack.spectral import fill_nan, guarded

Parts = tuple[Value, Value]


def schur(op: Schur, operands: Sequence[Layout], t: Layout, z: Layout) -> Lowering:
    calls = Calls(operands, [t, z])
    if 0 in t.shape:
        return calls.lowering()
    n, dtype, real = t.shape[-1], t.dtype, dt.real_of(t.dtype)
    a, vectors, info = calls.given(0, columns=True), calls.room((n, n), dtype, columns=True), calls.info()
    sizes = {"n": n, "lwork": (4 + BLOCK) * n, "one": 1}
    scratch = {
        "work": sizes["lwork"] * dtype.size, "values": 2 * n * real.size, "rwork": n * real.size, "flags": 4 * n,
        "some": 64, "more": 64,
    }  # fmt: skip
    calls.run(
        f"schur {op.sort}", lambda f: _schur(f, op.sort), {"a": a, "z": vectors, "info": info}, sizes, 25 * n * n * n,
        ["gees", *(["trsen"] if op.sort else [])], scratch, {"elements": n * n, "half": n * real.size},
    )  # fmt: skip
    if not op.quiet:
        calls.check(info)
    calls.give(a, 0)
    calls.give(vectors, 1)
    return calls.lowering()


def _schur(f: CallFrame, sort: str) -> None:
    results = [("a", f["elements"], f.dtype), ("z", f["elements"], f.dtype)]
    values = f.place("values")
    parts = [values] if f.dtype.is_complex else [values, f.b.gep(values, f["half"])]
    more = ["rwork"] if f.dtype.is_complex else []
    some = f.place("some")
    end = ["z", "n", "work", "lwork", *more, "flags", "info"]

    def call() -> None:
        f.call("gees", "'V'", "'N'", some, "n", "a", "n", some, *parts, *end)
        if sort:
            with f.b.when(_fine(f)):
                _choose(f, sort, strict=False)
                # Condition numbers are not asked for, so there is nothing to write them to.
                integers = [] if f.dtype.is_complex else ["more", "one"]
                before: list[Value | str] = ["'N'", "'V'", "flags", "n", "a", "n", "z", "n", *parts, some, some, some]
                f.call("trsen", *before, "work", "lwork", *integers, "info")
        _spoil(f, results)

    guarded(f, ["a"], results, call)


def _fine(f: CallFrame) -> Value:
    return number(f.b, f.place("info"), dt.int32).eq(0)


def _spoil(f: CallFrame, results: Sequence[tuple[str, Value, dt.Dtype]]) -> None:
    """NaNs in place of results that there are not."""
    with f.b.when(~_fine(f)):
        for name, count, dtype in results:
            fill_nan(f.b, f.place(name), count, dtype)


# ---- order ----


def _choose(f: CallFrame, sort: str, strict: bool, beta: str | None = None) -> None:
    """Flags for the eigenvalues that come first: alpha, or alpha / beta, of which there is none if beta is 0. Those
    that lie on the boundary belong to the closed left one of two halves only if it is not `strict`."""
    b, real = f.b, dt.real_of(f.dtype)
    with b.loop(0, f["n"], 1) as loop:
        re, im = _value(f, loop.index)
        zero = b.const(real, 0.0, 1)
        if beta is None:
            chosen = _is_chosen(f, sort, re, im, strict)
        else:
            step = f.dtype.size
            below = b.load(b.gep(f.place(beta), loop.index * step), f.dtype, 1)
            scale = below.re if isinstance(below, Complex) else below
            assert isinstance(scale, Value)
            infinite = scale.eq(zero)
            by = b.choose(infinite, b.const(real, 1.0, 1), scale)
            finite = ~infinite & _is_chosen(f, sort, re / by, im / by, strict)
            nothing = re.eq(zero) & im.eq(zero)
            chosen = finite | (infinite & ~nothing) if sort == "ouc" else finite
        b.store(b.cast(chosen, dt.int32), b.gep(f.place("flags"), loop.index * 4))


def _value(f: CallFrame, index: Value) -> Parts:
    """An eigenvalue: real and imaginary parts beside each other, or one half of the memory each."""
    b, real = f.b, dt.real_of(f.dtype)
    values = f.place("values")
    if f.dtype.is_complex:
        at = b.gep(values, index * (2 * real.size))
        return number(b, at, real), number(b, b.gep(at, b.i64(real.size)), real)
    at = b.gep(values, index * real.size)
    return number(b, at, real), number(b, b.gep(at, f["half"]), real)


def _is_chosen(f: CallFrame, sort: str, re: Value, im: Value, strict: bool) -> Value:
    b, real = f.b, dt.real_of(f.dtype)
    zero, one = b.const(real, 0.0, 1), b.const(real, 1.0, 1)
    if sort == "lhp":
        return re < zero
    if sort == "rhp":
        return re > zero if strict else re >= zero
    size = _modulus(f, re, im)
    if sort == "ouc":
        return size > one
    return size < one if strict else size <= one


def _modulus(f: CallFrame, re: Value, im: Value) -> Value:
    """The larger part times what the smaller one makes of it: no overflow."""
    b, real = f.b, dt.real_of(f.dtype)
    x, y = b.abs(re), b.abs(im)
    larger, smaller = b.choose(x > y, x, y), b.choose(x > y, y, x)
    zero, one = b.const(real, 0.0, 1), b.const(real, 1.0, 1)
    ratio = smaller / b.choose(larger.eq(zero), one, larger)
    return larger * b.intrinsic("sqrt", ratio * ratio + one)


# ---- pairs ----


def generalized_schur(
    op: GeneralizedSchur, operands: Sequence[Layout], s: Layout, t: Layout, q: Layout, z: Layout, alpha: Layout,
    beta: Layout,
) -> Lowering:  # fmt: skip
    calls = Calls(operands, [s, t, q, z, alpha, beta])
    if 0 in s.shape:
        return calls.lowering()
    n, dtype, real = s.shape[-1], s.dtype, dt.real_of(s.dtype)
    given = {"a": calls.given(0, columns=True), "b": calls.given(1, columns=True)}
    given |= {name: calls.room((n, n), dtype, columns=True) for name in ("q", "z")}
    given |= {"alpha": calls.room((n,), alpha.dtype), "beta": calls.room((n,), dtype), "info": calls.info()}
    sizes = {"n": n, "lwork": (8 + BLOCK) * n + 16, "one": 1, "none": 0}
    scratch = {
        "work": sizes["lwork"] * dtype.size, "values": 2 * n * real.size, "rwork": 8 * n * real.size, "flags": 4 * n,
        "some": 64, "more": 64 + 4 * n,
    }  # fmt: skip
    calls.run(
        f"generalized schur {op.sort}", lambda f: _pair(f, op.sort), given, sizes, 60 * n * n * n,
        ["gges", *(["tgsen"] if op.sort else [])], scratch, {"elements": n * n, "half": n * real.size},
    )  # fmt: skip
    if not op.quiet:
        calls.check(given["info"])
    for k, name in enumerate(("a", "b", "q", "z", "alpha", "beta")):
        calls.give(given[name], k)
    return calls.lowering()


def _pair(f: CallFrame, sort: str) -> None:
    n, elements, is_complex = f["n"], f["elements"], f.dtype.is_complex
    results = [(name, elements, f.dtype) for name in ("a", "b", "q", "z")]
    results += [("alpha", n, dt.complex_of(f.dtype)), ("beta", n, f.dtype)]
    values, some = f.place("values"), f.place("some")
    parts = [values] if is_complex else [values, f.b.gep(values, f["half"])]
    more = ["rwork"] if is_complex else []

    def call() -> None:
        vectors = ["q", "n", "z", "n"]
        before: list[Value | str] = ["'V'", "'V'", "'N'", some, "n", "a", "n", "b", "n", some, *parts, "beta", *vectors]
        f.call("gges", *before, "work", "lwork", *more, "flags", "info")
        if sort:
            with f.b.when(_fine(f)):
                _choose(f, sort, strict=True, beta="beta")
                chosen: list[Value | str] = [
                    "none",
                    "one",
                    "one",
                    "flags",
                    "n",
                    "a",
                    "n",
                    "b",
                    "n",
                    *parts,
                    "beta",
                    *vectors,
                ]
                f.call("tgsen", *chosen, some, some, some, some, "work", "lwork", "more", "one", "info")
        _store_values(f)
        _spoil(f, results)

    guarded(f, ["a", "b"], results, call)


def _store_values(f: CallFrame) -> None:
    b, size = f.b, dt.complex_of(f.dtype).size
    with b.loop(0, f["n"], 1) as loop:
        b.store(Complex(*_value(f, loop.index)), b.gep(f.place("alpha"), loop.index * size))


# ---- equations ----


def sylvester(op: Sylvester, operands: Sequence[Layout], out: Layout) -> Lowering:
    calls = Calls(operands, [out])
    if 0 in out.shape:
        return calls.lowering()
    m, n = out.shape[-2:]
    given = {name: calls.given(k, columns=True) for k, name in enumerate(("a", "b", "c"))}
    letter = ("'C'" if out.dtype.is_complex else "'T'") if op.turned else "'N'"
    calls.run(
        f"sylvester {letter}", lambda f: _sylvester(f, letter), given, {"m": m, "n": n, "one": 1}, m * n * (m + n),
        ["trsyl"], {"scale": 64}, {"elements": m * n},
    )  # fmt: skip
    calls.give(given["c"])
    return calls.lowering()


def _sylvester(f: CallFrame, letter: str) -> None:
    """The library solves a x + x b = scale c, where scale is less than 1 only if x would overflow."""
    if not f.dtype.is_complex:
        _clean(f, "a", f["m"])
        _clean(f, "b", f["n"])
    f.call("trsyl", letter, letter, "one", "m", "n", "a", "m", "b", "n", "c", "m", "scale", f.ignored)
    b, real = f.b, dt.real_of(f.dtype)
    scale = number(b, f.place("scale"), real)
    parts = 2 if f.dtype.is_complex else 1
    with b.when(scale.ne(1.0)), b.loop(0, f["elements"] * parts, 1) as loop:
        at = b.gep(f.place("c"), loop.index * real.size)
        b.store(number(b, at, real) / scale, at)


def _clean(f: CallFrame, name: str, n: Value) -> None:
    """Zeros below the diagonal right behind an element that counts: the library takes matrices for forms."""
    b, size = f.b, f.dtype.size
    zero = b.const(f.dtype, 0.0, 1)
    with b.loop(1, n, 1, b.i64(0)) as loop:
        at = b.gep(f.place(name), (loop.index + (loop.index - 1) * n) * size)
        (follows,) = loop.carried
        x = b.choose(follows.ne(0), zero, number(b, at, f.dtype))
        b.store(x, at)
        loop.carry(b.cast(x.ne(0.0), dt.int64))
