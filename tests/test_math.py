"""The vector math library: special values, accuracy against mpmath, and the same bits however it is compiled.

References and operands come from `benchmarks/accuracy.py`, which measures the same functions at greater length.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks import accuracy
from weft.codegen import math as vecmath
from weft.config import config
from weft.errors import ConfigError
from weft.targets.cpu.evaluate import evaluate

INF, NAN = math.inf, math.nan
REAL = sorted(vecmath.ULP)
UNARY = [name for name in REAL if name not in accuracy.BINARY]
COMPLEX = sorted(vecmath.COMPLEX_ULP)
FLOATS = (np.float32, np.float64)
COMPLEXES = (np.complex64, np.complex128)

SPECIAL: dict[str, list[tuple[float, float]]] = {
    "arccos": [(1.0, 0.0), (1.5, NAN), (-1.5, NAN), (INF, NAN), (-INF, NAN)],
    "arccosh": [(1.0, 0.0), (0.5, NAN), (0.0, NAN), (-2.0, NAN), (INF, INF), (-INF, NAN)],
    "arcsin": [(0.0, 0.0), (-0.0, -0.0), (1.5, NAN), (-1.5, NAN), (INF, NAN), (-INF, NAN)],
    "arcsinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "arctan": [(0.0, 0.0), (-0.0, -0.0), (INF, math.pi / 2), (-INF, -math.pi / 2)],
    "arctanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (-1.5, NAN), (INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF)],
    "digamma": [(0.0, -INF), (-0.0, INF), (-1.0, NAN), (-7.0, NAN), (INF, INF), (-INF, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0)],
    "erfc": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (100.0, 0.0), (-100.0, 2.0)],
    "erfcx": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, INF), (-1e9, INF)],
    "erfinv": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (-1.5, NAN), (INF, NAN), (-INF, NAN)],
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e9, INF), (-1e9, 0.0)],
    "exp2": [
        (0.0, 1.0),
        (-0.0, 1.0),
        (1.0, 2.0),
        (10.0, 1024.0),
        (-3.0, 0.125),
        (INF, INF),
        (-INF, 0.0),
        (1e9, INF),
        (-1e9, 0.0),
    ],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (-1e9, -1.0)],
    "gammaln": [(1.0, 0.0), (2.0, 0.0), (0.0, INF), (-0.0, INF), (-1.0, INF), (-1e30, INF), (INF, INF), (-INF, INF)],
    "i0": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (-1e4, INF)],
    "i0e": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 0.0)],
    "i1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (-1e4, -INF)],
    "i1e": [(0.0, 0.0), (-0.0, -0.0), (INF, 0.0), (-INF, -0.0)],
    "log": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (-1.0, NAN), (INF, INF), (-INF, NAN)],
    "log1mexp": [(0.0, -INF), (-0.0, -INF), (1.0, NAN), (INF, NAN), (-INF, -0.0)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (-2.0, NAN), (INF, INF), (-INF, NAN)],
    "log2": [
        (0.0, -INF),
        (-0.0, -INF),
        (1.0, 0.0),
        (8.0, 3.0),
        (2.0**-20, -20.0),
        (-1.0, NAN),
        (INF, INF),
        (-INF, NAN),
    ],
    "log10": [(0.0, -INF), (-0.0, -INF), (1.0, 0.0), (1000.0, 3.0), (1e10, 10.0), (-1.0, NAN), (INF, INF), (-INF, NAN)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (4.0, 0.5), (-1.0, NAN), (INF, 0.0), (-INF, NAN)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e9, 1.0), (-1e9, 0.0)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e9, 1.0), (-1e9, -1.0)],
}

ODD = ("arcsin", "arcsinh", "arctan", "arctanh", "erf", "erfinv", "i1", "i1e", "sin", "sinh", "tan", "tanh")
EVEN = ("cos", "cosh", "i0", "i0e")
INCREASING = (
    "arcsin", "arcsinh", "arctan", "arctanh", "erf", "erfinv", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10",
    "sigmoid", "sinh", "tanh",
)  # fmt: skip
SAME_AS_IDENTITY_NEAR_ZERO = ("arcsin", "arcsinh", "arctan", "arctanh", "expm1", "log1p", "sin", "sinh", "tan", "tanh")


def run(name: str, *operands: Any, dtype: Any = np.float64, lanes: int = 16) -> np.ndarray[Any, Any]:
    return evaluate(getattr(vecmath, name), *(np.asarray(x, dtype) for x in operands), lanes=lanes)


def bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bit patterns; NaNs, whose payload and sign nobody promises, all alike."""
    parts = np.ascontiguousarray(array).view(array.real.dtype)
    return np.where(np.isnan(parts), parts.dtype.type(NAN), parts).view(f"u{parts.itemsize}")


def same(got: float, want: float) -> bool:
    """Equal, zeros with their signs; NaN equals NaN."""
    if math.isnan(got) or math.isnan(want):
        return math.isnan(got) and math.isnan(want)
    return got == want and math.copysign(1, got) == math.copysign(1, want)


# ---- real functions ----


def test_every_function_has_a_bound() -> None:
    functions = {name for name in vecmath.__all__ if name.islower()}
    assert functions == {*REAL, *COMPLEX, "complex_power"}
    assert set(SPECIAL) == set(UNARY)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", UNARY)
def test_special_values(name: str, dtype: Any) -> None:
    table = [*SPECIAL[name], (NAN, NAN)]
    got = run(name, [x for x, _ in table], dtype=dtype)
    wrong = [(x, float(y), want) for (x, want), y in zip(table, got, strict=True) if not same(float(y), dtype(want))]
    assert not wrong


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", SAME_AS_IDENTITY_NEAR_ZERO)
def test_tiny_numbers_stay(name: str, dtype: Any) -> None:
    """Subnormal numbers, and others whose square is nothing against 1, come back as they are."""
    info = np.finfo(dtype)
    tiny = np.array([info.smallest_subnormal, 3 * info.smallest_subnormal, info.tiny, 1e-20, 1e-15 * info.eps], dtype)
    numbers = np.concatenate([tiny, -tiny])
    np.testing.assert_array_equal(bits(run(name, numbers, dtype=dtype)), bits(numbers))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", REAL)
def test_accuracy(name: str, dtype: Any) -> None:
    """Awkward, random and extreme numbers, all of them against mpmath."""
    slow = name in accuracy.SPECIAL
    operands = accuracy.points(name, dtype, 200 if slow else 800)
    operands = tuple(x[:: 4 if slow else 1] for x in operands)
    got = evaluate(getattr(vecmath, name), *operands)
    errors = [accuracy.ulps(name, xs, y) for xs, y in zip(zip(*operands, strict=True), got, strict=True)]
    worst = int(np.argmax(errors))
    assert errors[worst] <= vecmath.ULP[name][dtype is np.float64], [x[worst] for x in operands]


@pytest.mark.parametrize("name", UNARY)
def test_float32_sweep(name: str) -> None:
    """A million numbers from all over float32: float64 finds the worst, mpmath judges them."""
    numbers = accuracy.patterns(np.float32, 2**20, np.random.default_rng(1))
    if name in accuracy.POSITIVE:
        numbers = np.abs(numbers)
    worst = accuracy.measure(name, (numbers,), suspects=4)
    assert worst.error <= vecmath.ULP[name][0], worst


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", INCREASING)
def test_neighbours_do_not_fall(name: str, dtype: Any) -> None:
    """Where pieces of an approximation meet, the next number's result is at most one unit lower."""
    seams = accuracy.awkward(dtype)
    seams = seams[np.abs(seams) < np.finfo(dtype).max / 2]
    steps = [seams]
    for _ in range(4):
        steps.append(np.nextafter(steps[-1], dtype(INF)))
    results = [run(name, x, dtype=dtype) for x in steps]
    for low, high in itertools.pairwise(results):
        known = np.isfinite(low) & np.isfinite(high)
        assert (high[known] >= np.nextafter(low[known], dtype(-INF))).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_symmetry(dtype: Any) -> None:
    for name in (*ODD, *EVEN):
        (numbers,) = accuracy.points(name, dtype, 1000)
        there, back = run(name, numbers, dtype=dtype), run(name, -numbers, dtype=dtype)
        np.testing.assert_array_equal(bits(back), bits(-there if name in ODD else there), err_msg=name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gamma_functions_of_negative_numbers(dtype: Any) -> None:
    """Small errors against the largest of the terms that the reflection adds up."""
    rng = np.random.default_rng(3)
    x = -np.concatenate([rng.uniform(0, 12, 150), 10.0 ** rng.uniform(-30, 2, 50)]).astype(dtype)
    for name in ("gammaln", "digamma"):
        for number, got in zip(x, run(name, x, dtype=dtype), strict=True):
            z = accuracy.mpmath.mpf(float(number))
            if name == "gammaln":
                exact = accuracy.mpmath.re(accuracy.mpmath.loggamma(z))
                largest = max(abs(accuracy.mpmath.loggamma(-z)), 2 * abs(accuracy.mpmath.log(-z)), 1)
            else:
                exact = accuracy.mpmath.digamma(z)
                largest = max(abs(accuracy.mpmath.digamma(-z)), -1 / z, abs(exact), 1)
            assert abs(float(got) - exact) <= 16 * np.finfo(dtype).eps * largest, (name, number)


# ---- two operands ----

POWERS: list[tuple[float, float, float]] = [
    *[(x, y, 1.0) for x in (0.0, -0.0, 2.5, -3.0, INF, -INF, NAN) for y in (0.0, -0.0)],
    *[(1.0, y, 1.0) for y in (2.5, -7.0, 1e30, INF, -INF, NAN)],
    *[(-1.0, y, 1.0) for y in (INF, -INF, 4.0, 2.0**60)],
    *[(x, INF, 0.0) for x in (0.0, -0.0, 0.5, -0.5)],
    *[(x, INF, INF) for x in (1.5, -1.5, INF, -INF)],
    *[(x, -INF, INF) for x in (0.0, -0.0, 0.5, -0.5)],
    *[(x, -INF, 0.0) for x in (1.5, -1.5, INF, -INF)],
    *[(x, y, NAN) for x, y in ((NAN, 1.5), (2.5, NAN), (NAN, NAN), (NAN, 3.0), (0.0, NAN))],
    *[(x, 0.5, NAN) for x in (-2.0, -0.25, -1e30)],
    (0.0, 3.0, 0.0), (-0.0, 3.0, -0.0), (0.0, 2.5, 0.0), (-0.0, 2.5, 0.0), (-0.0, 4.0, 0.0),
    (0.0, -3.0, INF), (-0.0, -3.0, -INF), (0.0, -2.5, INF), (-0.0, -2.5, INF), (-0.0, -4.0, INF),
    (INF, 2.5, INF), (INF, -2.5, 0.0), (INF, 1e-30, INF), (-INF, 3.0, -INF), (-INF, 4.0, INF), (-INF, 2.5, INF),
    (-INF, -3.0, -0.0), (-INF, -4.0, 0.0), (-INF, -2.5, 0.0),
    (-2.0, 3.0, -8.0), (-2.0, -3.0, -0.125), (-2.0, 4.0, 16.0), (2.0, 10.0, 1024.0), (4.0, 0.5, 2.0),
    (16.0, -0.5, 0.25),
]  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS)
def test_power_follows_c(dtype: Any) -> None:
    x, y, _ = (np.array(column) for column in zip(*POWERS, strict=True))
    got = run("power", x, y, dtype=dtype)
    wrong = [case for case, result in zip(POWERS, got, strict=True) if not same(float(result), float(dtype(case[2])))]
    assert not wrong


@pytest.mark.parametrize("dtype", FLOATS)
def test_power_is_exact_where_it_must_be(dtype: Any) -> None:
    x = accuracy.patterns(dtype, 2**14, np.random.default_rng(2))
    with np.errstate(all="ignore"):
        expected = {0.0: np.ones_like(x), 1.0: x, 2.0: x * x, -1.0: 1 / x}
    for y, want in expected.items():
        np.testing.assert_array_equal(
            bits(run("power", x, np.full_like(x, y), dtype=dtype)), bits(want), err_msg=str(y)
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_arctan2_knows_the_quadrants(dtype: Any) -> None:
    values = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, float(np.finfo(dtype).max), -float(np.finfo(dtype).tiny)]
    for y, x in itertools.product(values, values):
        (got,) = run("arctan2", [y], [x], dtype=dtype)
        assert same(float(got), float(dtype(math.atan2(y, x)))), (y, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_logaddexp_and_hypot_at_infinity(dtype: Any) -> None:
    values = [0.0, -0.0, 1.0, INF, -INF, NAN]
    x, y = np.array(list(itertools.product(values, values)), dtype).T
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(run("logaddexp", x, y, dtype=dtype), np.logaddexp(x, y), rtol=1e-6)
        np.testing.assert_allclose(run("hypot", x, y, dtype=dtype), np.hypot(x, y), rtol=1e-6)


@pytest.mark.parametrize("dtype", FLOATS)
def test_xlogy_of_zero(dtype: Any) -> None:
    got = run("xlogy", [0.0, 0.0, -0.0, 0.0, 1.0, NAN], [0.0, INF, 5.0, NAN, 0.0, 1.0], dtype=dtype)
    np.testing.assert_array_equal(got, [0.0, 0.0, 0.0, NAN, -INF, NAN])


# ---- complex functions ----


def complex_grid(dtype: Any) -> np.ndarray[Any, Any]:
    parts = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, INF, -INF, NAN]
    return np.array([complex(re, im) for re, im in itertools.product(parts, parts)], dtype)


def unsigned(z: complex) -> bool:
    """Whether Annex G leaves signs of the result open: beside a NaN, and where both parts are infinite."""
    return math.isnan(z.real) or math.isnan(z.imag) or (math.isinf(z.real) and math.isinf(z.imag))


@pytest.mark.parametrize("dtype", COMPLEXES)
@pytest.mark.parametrize("name", [name for name in COMPLEX if name != "complex_divide"])
def test_complex_special_values(name: str, dtype: Any) -> None:
    """Zeros of either sign, both sides of every cut, infinities and NaNs, against the C library that NumPy calls."""
    grid = complex_grid(dtype)
    got = evaluate(getattr(vecmath, name), grid)
    short = name.removeprefix("complex_")
    with np.errstate(all="ignore"):
        want = getattr(np, short)(grid)
    for z, ours, theirs in zip(grid, got, want, strict=True):
        if short == "log1p" and z == 0:  # NumPy adds 1 and loses the sign of zero
            theirs = z
        for part in ("real", "imag"):
            g, w = float(getattr(ours, part)), float(getattr(theirs, part))
            if unsigned(complex(z)) or unsigned(complex(theirs)):
                g, w = abs(g), abs(w)
            near = w != 0 and abs(g - w) <= 4 * np.finfo(dtype).eps * abs(complex(theirs))
            assert near or same(g, w), (complex(z), complex(ours), complex(theirs))


@pytest.mark.parametrize("dtype", COMPLEXES)
@pytest.mark.parametrize("name", COMPLEX)
def test_complex_accuracy(name: str, dtype: Any) -> None:
    worst = accuracy.complex_survey(name, dtype, 60)
    assert worst.error <= vecmath.COMPLEX_ULP[name], worst


@pytest.mark.parametrize("dtype", COMPLEXES)
@pytest.mark.parametrize("name", [name for name in COMPLEX if name != "complex_divide"])
def test_complex_conjugates(name: str, dtype: Any) -> None:
    """f(conj z) = conj f(z), on the cuts too: the sign of zero says which side of the cut is meant."""
    (z,) = accuracy.complex_points(name.removeprefix("complex_"), dtype, 50)
    z = np.concatenate([z, z.real + dtype(0), np.where(z.real < 0, -1, 1) * (2 + abs(z.real)) + dtype(0)])
    function = getattr(vecmath, name)
    np.testing.assert_array_equal(bits(evaluate(function, z.conj())), bits(evaluate(function, z).conj()))


def infinite(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.isinf(z.real) | np.isinf(z.imag)


def finite(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.isfinite(z.real) & np.isfinite(z.imag)


def zero(z: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return (z.real == 0) & (z.imag == 0)


@pytest.mark.parametrize("dtype", COMPLEXES)
def test_complex_division_by_annex_g(dtype: Any) -> None:
    grid = complex_grid(dtype)
    x, y = (np.array(column, dtype) for column in zip(*itertools.product(grid, grid), strict=True))
    q = evaluate(vecmath.complex_divide, x, y)
    assert infinite(q[infinite(x) & finite(y)]).all()
    assert zero(q[finite(x) & infinite(y)]).all()
    assert infinite(q[~zero(x) & ~(np.isnan(x.real) | np.isnan(x.imag)) & zero(y)]).all()
    both = finite(x) & finite(y) & ~zero(y)
    np.testing.assert_allclose(q[both], x[both] / y[both], rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", COMPLEXES)
def test_complex_division_does_not_overflow_on_the_way(dtype: Any) -> None:
    info = np.finfo(dtype)
    huge, tiny = float(info.max) / 4, float(info.tiny)
    x = np.array([huge * (1 + 1j), tiny * (1 - 2j), huge * (2 + 1j), tiny], dtype)
    y = np.array([huge * (1 - 1j), tiny * (2 + 1j), 2.0, huge], dtype)
    q = evaluate(vecmath.complex_divide, x, y)
    for a, c, got in zip(x, y, q, strict=True):
        assert accuracy.complex_error("divide", (a, c), got) <= vecmath.COMPLEX_ULP["complex_divide"]


@pytest.mark.parametrize("dtype", COMPLEXES)
def test_complex_power(dtype: Any) -> None:
    x, y = accuracy.complex_points("power", dtype, 40)
    x, y = np.clip(x.real, -3, 3) + 1j * np.clip(x.imag, -3, 3), np.clip(y.real, -3, 3) + 1j * np.clip(y.imag, -3, 3)
    x, y = x.astype(dtype), y.astype(dtype)
    got = evaluate(vecmath.complex_power, x, y)
    for a, c, z in zip(x, y, got, strict=True):
        limit = 3 + 2 * abs(complex(c)) * (abs(np.log(abs(complex(a)))) + math.pi)
        assert accuracy.complex_error("power", (a, c), z) <= limit, (a, c)
    one = np.ones_like(x)
    for exponent, want in (
        (0, one),
        (1, x),
        (2, evaluate(multiply, x, x)),
        (-1, evaluate(vecmath.complex_divide, one, x)),
    ):
        np.testing.assert_array_equal(bits(evaluate(vecmath.complex_power, x, exponent * one)), bits(want))


def multiply(b: Any, x: Any, y: Any) -> Any:
    return x * y


# ---- the same bits ----


def operands_of(name: str, dtype: Any, count: int) -> tuple[np.ndarray[Any, Any], ...]:
    if name.startswith("complex_"):
        kind = np.complex64 if dtype is np.float32 else np.complex128
        return accuracy.complex_points(name.removeprefix("complex_"), kind, count // 4)
    spread = accuracy.points(name, dtype, count)
    return tuple(x[:: max(1, x.size // count)] for x in spread)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [*REAL, *COMPLEX])
def test_same_bits_in_a_scalar_and_a_vector(name: str, dtype: Any) -> None:
    operands = operands_of(name, dtype, 400)
    function = getattr(vecmath, name)
    vector = evaluate(function, *operands, lanes=16)
    np.testing.assert_array_equal(bits(vector), bits(evaluate(function, *operands, lanes=1)))
    # The other lanes of its vector must not matter to an element, not even by sending it down a rare branch.
    alone = [np.repeat(x[:40], 16) for x in operands]
    np.testing.assert_array_equal(bits(vector[:40]), bits(evaluate(function, *alone)[::16]))


@pytest.fixture
def restored() -> Iterator[None]:
    level, cpu = config.llvm_level, config.cpu
    yield
    config.llvm_level, config.cpu = level, cpu


LEVELS_SLICE = (
    "arctan2",
    "erf",
    "erfinv",
    "exp",
    "log",
    "power",
    "sin",
    "tan",
    "tanh",
    "complex_divide",
    "complex_log",
)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", LEVELS_SLICE)
def test_same_bits_at_every_level(name: str) -> None:
    for dtype in FLOATS:
        operands = operands_of(name, dtype, 400)
        results = []
        for config.llvm_level in (0, 1, 2, 3):
            results.append(bits(evaluate(getattr(vecmath, name), *operands)))
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("name", LEVELS_SLICE)
def test_same_bits_on_every_processor(name: str, foreign_cpus: list[str]) -> None:
    """x86-64-v2 has no fma instruction: the C library's takes its place, and must not be noticed."""
    for dtype in FLOATS:
        operands = operands_of(name, dtype, 200)
        config.cpu = "native"
        native = bits(evaluate(getattr(vecmath, name), *operands))
        for config.cpu in foreign_cpus:
            np.testing.assert_array_equal(bits(evaluate(getattr(vecmath, name), *operands)), native)


@pytest.fixture(scope="module")
def foreign_cpus() -> list[str]:
    """The instruction sets of x86 that this machine can run; none elsewhere, and then there is nothing to compare."""
    level, found = config.cpu, []
    for cpu in ("x86-64-v2", "x86-64-v3", "x86-64-v4"):
        config.cpu = cpu
        try:
            run("exp", [1.0])
        except ConfigError:
            continue
        found.append(cpu)
    config.cpu = level
    if not found:
        pytest.skip("not an x86-64 processor")
    return found
