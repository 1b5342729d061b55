"""Result dtypes beside MLX's own: every function that promotes, every pair of dtypes, every kind of Python number.

Where MLX refuses, Weft may know more; where MLX answers, Weft gives the same dtype. Two answers are Weft's own: it has
complex128, so float64 meets complex numbers there, and it refuses to floor complex quotients (MLX names a dtype and
fails when the value is asked for).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft.core as wx
from weft import dtypes as dt

mx = pytest.importorskip("mlx.core")

COMMON = tuple(d for d in dt.ALL if d is not dt.complex128)
BINARY = (
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "logaddexp", "equal", "not_equal", "less",
    "less_equal",
    "greater", "greater_equal", "floor_divide", "remainder", "arctan2", "bitwise_and", "bitwise_or", "bitwise_xor",
    "left_shift",
    "right_shift", "logical_and", "logical_or", "outer",
)  # fmt: skip
UNARY = (
    "negative", "abs", "sign", "square", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "log2", "log10", "tanh",
    "sin", "cos", "tan",
    "arcsin", "arccos", "arctan", "sinh", "cosh", "arcsinh", "arccosh", "arctanh", "erf", "erfinv", "sigmoid",
    "conjugate", "real",
    "imag", "floor", "ceil", "round", "reciprocal", "bitwise_invert", "logical_not", "isnan", "isinf", "isfinite",
    "sum", "prod", "max",
    "min", "mean", "var", "std", "argmax", "argmin", "logsumexp", "softmax", "all", "any", "cumsum", "cumprod",
    "degrees", "radians",
    "stop_gradient",
)  # fmt: skip
WITH_NUMBERS = BINARY[:18]


def theirs(dtype: dt.Dtype) -> Any:
    return mx.bool_ if dtype.is_bool else getattr(mx, dtype.name)


def dtype_of(function: Callable[..., Any], *operands: Any) -> str | None:
    """The name of the result's dtype; None if the function refuses the operands."""
    try:
        return str(function(*operands).dtype).rsplit(".", 1)[-1].removesuffix("_")
    except (ValueError, TypeError, RuntimeError):
        return None


def expected(name: str, mlx: str | None, *dtypes: dt.Dtype, complex_number: bool = False) -> str | None:
    """What Weft should say where MLX says `mlx`; None: whatever it likes."""
    whole = dt.complex64 in dtypes or complex_number
    if name == "floor_divide" and whole:
        return None
    return "complex128" if mlx == "complex64" and whole and dt.float64 in dtypes else mlx


@pytest.mark.parametrize("name", BINARY)
def test_pairs(name: str) -> None:
    ours, other = getattr(wx, name), getattr(mx, name)
    for a in COMMON:
        for b in COMMON:
            want = expected(name, dtype_of(other, mx.zeros((2,), theirs(a)), mx.zeros((2,), theirs(b))), a, b)
            if want is not None:
                assert dtype_of(ours, wx.zeros((2,), a), wx.zeros((2,), b)) == want, f"{a.name} and {b.name}"


@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name: str) -> None:
    ours, other = getattr(wx, name), getattr(mx, name)
    for a in COMMON:
        want = dtype_of(other, mx.zeros((2,), theirs(a)))
        if want is not None:
            assert dtype_of(ours, wx.zeros((2,), a)) == want, a.name


@pytest.mark.parametrize("number", [True, 1, 1.0, 1j], ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_python_numbers_are_weak(name: str, number: Any) -> None:
    """They change the kind of an array where they must, never its width; on either side."""
    ours, other = getattr(wx, name), getattr(mx, name)
    for a in COMMON:
        x, y = wx.zeros((2,), a), mx.zeros((2,), theirs(a))
        cases = (
            (dtype_of(ours, x, number), dtype_of(other, y, number)),
            (dtype_of(ours, number, x), dtype_of(other, number, y)),
        )
        for got, mlx in cases:
            want = expected(name, mlx, a, complex_number=isinstance(number, complex))
            assert want is None or got == want, a.name


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 2**40])
def test_numbers_too_large_for_int32(number: int) -> None:
    assert dtype_of(wx.array, number) == dtype_of(mx.array, number) == "int64"


@pytest.mark.parametrize(
    "operator", ["__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"]
)
def test_in_place_operators_promote(operator: str) -> None:
    """An array that is changed in place becomes what the operation gives."""
    for a in COMMON:
        if a.is_bool:
            continue
        for b in (dt.int32, dt.float32):
            want = dtype_of(getattr(mx.ones((2,), theirs(a)), operator), mx.ones((2,), theirs(b)))
            if want is not None and not (a.is_complex and operator == "__ifloordiv__"):
                assert dtype_of(getattr(wx.ones((2,), a), operator), wx.ones((2,), b)) == want, f"{a.name} and {b.name}"


def test_where() -> None:
    for a in COMMON:
        for b in COMMON:
            mlx = dtype_of(mx.where, mx.array([True]), mx.zeros((1,), theirs(a)), mx.zeros((1,), theirs(b)))
            got = dtype_of(wx.where, wx.array([True]), wx.zeros((1,), a), wx.zeros((1,), b))
            assert got == expected("where", mlx, a, b), f"{a.name} and {b.name}"
