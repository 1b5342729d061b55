"""How accurate the vector math library is: errors against mpmath, written as a table into docs/numerics.md.

    python benchmarks/accuracy.py                 every function, some minutes
    python benchmarks/accuracy.py exp log         these only; prints, writes nothing
    python benchmarks/accuracy.py --bits 32       every float32 there is, some hours

A unary float32 function is tried on 2**bits bit patterns, evenly spread; the others on random and awkward numbers. A
faster type (float64 for float32, the long double of x86 for float64) finds the worst of them, and mpmath says how bad
they are. `tests/test_math.py` uses the references and points of this file for its own, smaller, run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import mpmath
import numpy as np
import scipy.special
from mpmath import mp

from weft.codegen import math as vecmath
from weft.targets.cpu.evaluate import evaluate

DOCS = Path(__file__).resolve().parents[1] / "docs" / "numerics.md"
BEGIN, END = "<!-- accuracy table: begin -->", "<!-- accuracy table: end -->"

Interval = tuple[float, float]
Array = np.ndarray[Any, Any]

mp.prec = 200


def _erfinv(x: Any) -> Any:
    """mpmath's own converges to fewer digits near 1: one more Newton step, from the side that has them."""
    y = mpmath.erfinv(x)
    if not mpmath.isfinite(y):
        return y
    error = mpmath.erfc(y) - (1 - x) if x > 0.5 else x - mpmath.erf(y)
    return y + (-error if x > 0.5 else error) * mpmath.sqrt(mpmath.pi) / 2 * mpmath.exp(y * y) * (-1 if x > 0.5 else 1)


def _erfcx(x: Any) -> Any:
    if abs(x) < 100:
        return mpmath.exp(x * x) * mpmath.erfc(x)
    if x < 0:
        return mpmath.inf
    return _asymptotic(lambda k: -(2 * k - 1) / (2 * x * x)) / (x * mpmath.sqrt(mpmath.pi))


def _bessel(order: int, *, scaled: bool) -> Callable[[Any], Any]:
    def value(x: Any) -> Any:
        a = abs(x)
        if a < 1000:
            return mpmath.besseli(order, x) * (mpmath.exp(-a) if scaled else 1)
        size = _asymptotic(lambda k: ((2 * k - 1) ** 2 - 4 * order**2) / (8 * k * a)) / mpmath.sqrt(2 * mpmath.pi * a)
        return (mpmath.sign(x) if order else 1) * (size if scaled else mpmath.inf)

    return value


def _asymptotic(ratio: Callable[[int], Any]) -> Any:
    """1 + r(1) + r(1) r(2) + …"""
    total = term = mpmath.mpf(1)
    for k in range(1, 60):
        term *= ratio(k)
        total += term
    return total


def _log1mexp(x: Any) -> Any:
    return mpmath.log(-mpmath.expm1(x)) if x > -1 else mpmath.log1p(-mpmath.exp(x))


def _log1p(z: Any) -> Any:
    return mpmath.log1p(z) if isinstance(z, mpmath.mpf) else mpmath.log(1 + z)


def _logaddexp(x: Any, y: Any) -> Any:
    high, low = max(x, y), min(x, y)
    return high if mpmath.isinf(high) else high + mpmath.log1p(mpmath.exp(low - high))


REFERENCE: dict[str, Callable[..., Any]] = {
    "arccos": mpmath.acos,
    "arccosh": mpmath.acosh,
    "arcsin": mpmath.asin,
    "arcsinh": mpmath.asinh,
    "arctan": mpmath.atan,
    "arctan2": mpmath.atan2,
    "arctanh": mpmath.atanh,
    "cos": mpmath.cos,
    "cosh": mpmath.cosh,
    "digamma": mpmath.digamma,
    "divide": lambda x, y: x / y,
    "erf": mpmath.erf,
    "erfc": lambda x: mpmath.erfc(x) if x < 1000 else mpmath.mpf(0),
    "erfcx": _erfcx,
    "erfinv": _erfinv,
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "expm1": mpmath.expm1,
    "gammaln": mpmath.loggamma,
    "hypot": mpmath.hypot,
    "i0": _bessel(0, scaled=False),
    "i0e": _bessel(0, scaled=True),
    "i1": _bessel(1, scaled=False),
    "i1e": _bessel(1, scaled=True),
    "log": mpmath.log,
    "log1mexp": _log1mexp,
    "log1p": _log1p,
    "log2": lambda x: mpmath.log(x) / mpmath.ln2,
    "log10": lambda x: mpmath.log(x) / mpmath.ln10,
    "logaddexp": _logaddexp,
    "power": mpmath.power,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "sin": mpmath.sin,
    "sinh": mpmath.sinh,
    "sqrt": mpmath.sqrt,
    "tan": mpmath.tan,
    "tanh": mpmath.tanh,
    "xlogy": lambda x, y: x * mpmath.log(y),
}
"""What mpmath says; names of complex functions without their prefix."""

QUICK: dict[str, Callable[..., Any]] = {
    "log1mexp": lambda x: np.where(x > -0.7, np.log(-np.expm1(x)), np.log1p(-np.exp(x))),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: np.where(x < 0, np.exp(x), 1) / (1 + np.exp(-abs(x))),
    "xlogy": lambda x, y: np.where((x == 0) & (y == y), 0, x * np.log(y)),
}
"""Functions of whole arrays that neither NumPy nor SciPy has, or not in all types."""

SPECIAL = ("digamma", "erf", "erfc", "erfcx", "erfinv", "gammaln", "i0", "i0e", "i1", "i1e")
"""SciPy has them, but not in long double."""
POSITIVE = ("digamma", "gammaln")
"""Measured for positive numbers, where no terms cancel."""

BUSY: dict[str, tuple[Interval, ...]] = {
    "arccos": ((-1, 1), (0.45, 0.6)),
    "arccosh": ((1, 3), (1, 1.1)),
    "arcsin": ((-1, 1), (0.45, 0.6)),
    "arcsinh": ((-3, 3), (0.1, 0.6)),
    "arctan": ((-3, 3), (0.4, 0.55)),
    "arctan2": ((-3, 3),),
    "arctanh": ((-1, 1), (0.05, 0.4)),
    "cos": ((-10, 10), (-1e6, 1e6)),
    "cosh": ((-712, 712), (-20, 20)),
    "digamma": ((0, 10), (0.9, 2.2)),
    "erf": ((-6, 6), (0.85, 1.1)),
    "erfc": ((-6, 27), (-1, 2)),
    "erfcx": ((-26, 30), (-1, 2)),
    "erfinv": ((-1, 1), (0.98, 1)),
    "exp": ((-746, 710), (-2, 2)),
    "exp2": ((-1076, 1024), (-2, 2)),
    "expm1": ((-40, 710), (-1, 1)),
    "gammaln": ((0, 10), (0.9, 2.2)),
    "hypot": ((-10, 10),),
    "i0": ((-20, 20), (-700, 700)),
    "i0e": ((-20, 20), (-700, 700)),
    "i1": ((-20, 20), (-700, 700)),
    "i1e": ((-20, 20), (-700, 700)),
    "log": ((0.5, 2),),
    "log1mexp": ((-3, 0), (-700, 0)),
    "log1p": ((-0.6, 1.5),),
    "log2": ((0.5, 2),),
    "log10": ((0.5, 2),),
    "logaddexp": ((-20, 20),),
    "power": ((0, 10),),
    "rsqrt": ((0.25, 4),),
    "sigmoid": ((-746, 40), (-6, 6)),
    "sin": ((-10, 10), (-1e6, 1e6)),
    "sinh": ((-712, 712), (-20, 20)),
    "tan": ((-10, 10), (-1e6, 1e6)),
    "tanh": ((-20, 20), (-1.5, 1.5)),
    "xlogy": ((0, 10),),
}
"""Where a function's value changes, or its algorithm does: numbers are drawn from here besides those from all bit
patterns."""

BINARY = ("arctan2", "divide", "hypot", "logaddexp", "power", "xlogy")


class Worst(NamedTuple):
    """The largest error found, in units of the last place, and the operands that gave it."""

    error: float
    operands: tuple[Any, ...]


# ---- points ----


def patterns(dtype: Any, count: int, rng: np.random.Generator) -> Array:
    """Numbers from all over the type: one from each of `count` equal ranges of bit patterns, infinities and NaNs
    included."""
    bits = np.dtype(dtype).itemsize * 8
    step = 2**bits // count
    starts = np.arange(count, dtype=np.uint64) * np.uint64(step)
    return (starts + rng.integers(0, step, count, dtype=np.uint64)).astype(f"uint{bits}").view(dtype)


def awkward(dtype: Any) -> Array:
    """Zeros, infinities, NaN, limits of the type, whole and half numbers, multiples of π/4 and log 2, and their
    neighbours."""
    info = np.finfo(dtype)
    k = np.arange(0.0, 65.0)
    base = np.concatenate(
        [
            k,
            k / 2,
            k / 16,
            k * np.pi / 4,
            k * np.log(2) / 2,
            2.0**k,
            2.0**-k,
            [0.94, 0.98, 1 / 3, 2.236, 2.0**17, 2.0**30],
        ]
    ).astype(dtype)
    limits = [info.max, info.tiny, info.smallest_subnormal, info.eps, np.inf, np.nan]
    near = [base, np.nextafter(base, dtype(np.inf)), np.nextafter(base, dtype(0)), np.array(limits, dtype)]
    positive = np.concatenate(near)
    return np.concatenate([positive, -positive])


def points(name: str, dtype: Any, count: int, seed: int = 0) -> tuple[Array, ...]:
    """Operands for `name`: awkward ones, and about `count` that are spread over the type and over where it matters."""
    rng = np.random.default_rng(seed)
    spread = patterns(dtype, 2 ** max(8, (count // 2).bit_length()), rng)
    busy = [rng.uniform(low, high, count // (2 * len(BUSY[name]))).astype(dtype) for low, high in BUSY[name]]
    single = np.concatenate([awkward(dtype), spread, *busy])
    if name in POSITIVE:
        return (np.abs(single),)
    if name not in BINARY:
        return (single,)
    first, second = single, rng.permutation(single)
    if name != "power":
        return first, second
    # Bases of all sizes, with exponents that keep the result in range.
    base = np.abs(np.concatenate([patterns(dtype, 2 ** max(8, count.bit_length() - 1), rng), *busy]))
    with np.errstate(all="ignore"):
        largest = np.log2(float(np.finfo(dtype).max)) / np.log2(base.astype(np.float64))
        fitting = (largest * rng.uniform(-1.1, 1.1, base.size)).astype(dtype)
    return np.concatenate([first, base]), np.concatenate([second, fitting])


# ---- errors ----


def last_place(exact: Any, dtype: Any) -> Any:
    """The unit of the last place of `dtype` at `exact`."""
    info = np.finfo(dtype)
    exponent = int(mpmath.floor(mpmath.log(abs(exact), 2))) if exact else info.minexp
    if exact and mpmath.ldexp(1, exponent + 1) <= abs(exact):  # a logarithm that was rounded down
        exponent += 1
    return mpmath.ldexp(1, min(max(exponent, info.minexp), info.maxexp - 1) - info.nmant)


def ulps(name: str, operands: Sequence[Any], got: Any) -> float:
    """The error of `got` in units of the last place, by mpmath; infinite where it is not the right kind of number."""
    dtype = got.dtype.type
    exact = _exact(name, operands)
    if exact is None or mpmath.isnan(exact):
        return 0.0 if np.isnan(got) else np.inf
    if np.isnan(got):
        return np.inf
    top = mpmath.mpf(float(np.finfo(dtype).max))
    if abs(exact) >= top + last_place(top, dtype) / 2:
        return 0.0 if np.isinf(got) and (got > 0) == (exact > 0) else np.inf
    if np.isinf(got):
        return np.inf
    unit = last_place(exact, dtype)
    if name == "logaddexp":
        larger = mpmath.mpf(max(map(float, operands)))
        unit = max(unit, last_place(larger, dtype), last_place(exact - larger, dtype))
    return float(abs(mpmath.mpf(float(got)) - exact) / unit)


def _exact(name: str, operands: Sequence[Any]) -> Any:
    """mpmath's value, or None where there is no real one."""
    numbers = [float(x) for x in operands]
    if any(map(np.isnan, numbers)):
        return _of_nan(name, operands)
    if any(np.isinf(x) or x == 0 for x in numbers) and name[0] != "i":  # SciPy has no Bessel functions at infinity
        return _limit(name, numbers)
    try:
        value = REFERENCE[name](*map(mpmath.mpf, numbers))
    except (ValueError, ZeroDivisionError):
        return None
    return None if isinstance(value, mpmath.mpc) else value


def _of_nan(name: str, operands: Sequence[Any]) -> Any:
    if name == "power" and (operands[0] == 1 or operands[1] == 0):
        return mpmath.mpf(1)
    return mpmath.inf if name == "hypot" and np.isinf(operands).any() else None


def _limit(name: str, numbers: Sequence[Any]) -> Any:
    """Values at 0 and infinity, which NumPy has from C; mpmath may not have them, and knows no -0.0."""
    with np.errstate(all="ignore"):
        value = float(quick(name)(*numbers))
    if np.isnan(value):
        return None
    if not np.isfinite(value) or not value:
        return mpmath.mpf(value)
    exact = REFERENCE[name](*map(mpmath.mpf, numbers))
    return mpmath.sign(value) * abs(exact)


def quick(name: str) -> Callable[..., Any]:
    return QUICK.get(name) or getattr(scipy.special if name in SPECIAL else np, name)


def rough_ulps(name: str, operands: Sequence[Array], got: Array, wide: Any) -> Array:
    """The same for arrays, by arithmetic in the type `wide`: right to a few hundredths, and to say which are the
    worst."""
    with np.errstate(all="ignore"):
        exact = quick(name)(*(x.astype(wide) for x in operands))
        narrow = np.abs(exact).astype(got.dtype)
        size = narrow
        if name == "logaddexp":
            larger = np.maximum(*operands)
            size = np.maximum.reduce([size, np.abs(larger), np.abs(exact - larger).astype(got.dtype)])
        unit = np.spacing(np.minimum(size, np.finfo(got.dtype).max)).astype(wide)
        error = np.abs(got.astype(wide) - exact) / unit
    same_infinity = np.isinf(narrow) & np.isinf(got) & ((exact > 0) == (got > 0))
    error[(np.isnan(exact) & np.isnan(got)) | same_infinity] = 0
    return np.where(np.isnan(error), np.inf, error).astype(np.float64)


def measure(name: str, operands: Sequence[Array], suspects: int = 24) -> Worst:
    """The largest error among the operands."""
    got = evaluate(getattr(vecmath, name), *operands)
    dtype = got.dtype.type
    wide = np.float64 if dtype is np.float32 else np.longdouble
    if dtype is np.float64 and (name in SPECIAL or np.finfo(np.longdouble).nmant < 63):
        chosen = np.arange(got.size)
    else:
        rough = rough_ulps(name, operands, got, wide)
        chosen = np.argsort(rough)[-suspects:]
    worst = Worst(-1.0, ())
    for i in chosen:
        error = ulps(name, [x[i] for x in operands], got[i])
        if error > worst.error:
            worst = Worst(error, tuple(x[i] for x in operands))
    return worst


def chunks(name: str, dtype: Any, bits: int, count: int) -> Iterator[tuple[Array, ...]]:
    """All operands that `name` is tried on, in parts that fit into memory."""
    yield points(name, dtype, count)
    if dtype is not np.float32 or name in BINARY:
        return
    step, part = 2 ** (32 - bits), 2**22
    for first in range(0, 2**32, step * part):
        bits_of = np.arange(first, min(first + step * part, 2**32), step, dtype=np.uint64)
        numbers = bits_of.astype(np.uint32).view(np.float32)
        yield (np.abs(numbers) if name in POSITIVE else numbers,)


def survey(name: str, dtype: Any, bits: int) -> Worst:
    few = dtype is np.float64 and name in SPECIAL  # mpmath looks at every one of them
    count = (3_000 if name == "erfinv" else 20_000) if few else 2_000_000
    worsts = (measure(name, operands) for operands in chunks(name, dtype, bits, count))
    return max(worsts, key=lambda worst: worst.error)


# ---- complex ----


def complex_points(name: str, dtype: Any, count: int, seed: int = 0) -> tuple[Array, ...]:
    """Complex operands: around the unit circle, near the axes, and of sizes that keep results in range."""
    rng = np.random.default_rng(seed)
    wide = name in ("log", "log2", "log10", "log1p", "sqrt", "divide")

    def one() -> Array:
        re, im = rng.normal(size=(2, count))
        angle = np.exp(1j * rng.uniform(-np.pi, np.pi, count))
        size = np.exp(rng.uniform(-20, 30 if wide else 3.5, count))
        near = [re + 1j * im, angle, angle * size, re + 1e-8j * im, 1e-9 * re + 1j * im]
        return rng.permutation(np.concatenate(near)).astype(dtype)

    return (one(), one()) if name in BINARY else (one(),)


def complex_error(name: str, operands: Sequence[Any], got: Any) -> float:
    """The distance to mpmath's value as a multiple of epsilon times the value's modulus."""
    info = np.finfo(got.dtype)
    exact = REFERENCE[name](*(mpmath.mpc(complex(x)) for x in operands))
    if abs(exact) > float(info.max):
        return 0.0
    distance = abs(mpmath.mpc(complex(got)) - exact)
    return float(distance / max(abs(exact), float(info.tiny)) / float(info.eps))


def complex_survey(name: str, dtype: Any, count: int = 2_000) -> Worst:
    short = name.removeprefix("complex_")
    operands = complex_points(short, dtype, count)
    got = evaluate(getattr(vecmath, name), *operands)
    errors = [(complex_error(short, z, w), z) for z, w in zip(zip(*operands, strict=True), got, strict=True)]
    return Worst(*max(errors, key=lambda pair: pair[0]))


# ---- the table ----


def row(name: str, worsts: Sequence[Worst], bounds: Sequence[float]) -> str:
    cells = []
    for worst, bound in zip(worsts, bounds, strict=True):
        where = ", ".join(f"{x:.6g}" for x in worst.operands)
        cells.append(f"{worst.error:.3f} at {where} | {bound:g}")
    return f"| {name} | {' | '.join(cells)} |"


def table(names: Sequence[str], bits: int) -> list[str]:
    real = [name for name in names if name in vecmath.ULP]
    lines = []
    if real:
        lines += ["| function | float32: worst found | bound | float64: worst found | bound |", "|---|---|---|---|---|"]
    for name in real:
        lines.append(row(name, [survey(name, dtype, bits) for dtype in (np.float32, np.float64)], vecmath.ULP[name]))
        print(lines[-1], flush=True)
    others = [name for name in names if name in vecmath.COMPLEX_ULP]
    if others:
        lines += ["", "| function | complex64: worst found | bound | complex128: worst found | bound |"]
        lines += ["|---|---|---|---|---|"]
    for name in others:
        worsts = [complex_survey(name, dtype) for dtype in (np.complex64, np.complex128)]
        lines.append(row(name.removeprefix("complex_"), worsts, [vecmath.COMPLEX_ULP[name]] * 2))
        print(lines[-1], flush=True)
    return lines


def write(lines: Sequence[str]) -> None:
    text = DOCS.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    DOCS.write_text(before + "\n".join([BEGIN, *lines, END]) + after)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the errors of Weft's elementary functions.")
    parser.add_argument(
        "names", nargs="*", help="functions to measure; if none is named, all, and for docs/numerics.md"
    )
    parser.add_argument("--bits", type=int, default=24, help="try float32 functions on 2**BITS numbers, at most 2**32")
    options = parser.parse_args()
    lines = table(options.names or [*vecmath.ULP, *vecmath.COMPLEX_ULP], options.bits)
    if not options.names:
        write(lines)


if __name__ == "__main__":
    main()
