"""What the tests against MLX share: the same elements in arrays of both libraries, in several layouts, and the one
definition of "the same result". Nothing here asserts anything about a particular function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

import weft.core as wx
from weft import dtypes as dt
from weft.dtypes import Dtype

mx = pytest.importorskip("mlx.core")

COMMON = tuple(d for d in dt.ALL if d is not dt.complex128)
REALS = tuple(d for d in COMMON if not d.is_complex)
SHAPES = ((), (0,), (5,), (1, 7), (3, 4), (2, 0, 3), (2, 3, 17))
FULL = tuple(shape for shape in SHAPES if shape and 0 not in shape)
LAYOUTS = ("plain", "transposed", "reversed", "strided")
inf, nan = math.inf, math.nan

# ---- operands ----


def theirs(values: Any, dtype: Dtype | None = None) -> Any:
    """An MLX array of the same elements."""
    if not isinstance(values, np.ndarray):
        return mx.array(values)
    if values.dtype == ml_dtypes.bfloat16:
        return mx.array(values.view(np.uint16)).view(mx.bfloat16)
    if values.dtype == np.float64:
        return mx.array(values.tolist(), mx.float64).reshape(values.shape)
    return mx.array(values)


def ours(values: Any) -> Any:
    return wx.array(values, dt.float64 if getattr(values, "dtype", None) == np.float64 else None)


def spread(library: Any, x: Any, layout: str) -> Any:
    """The same elements, reached in another way."""
    if layout == "transposed" and x.ndim > 1:
        return library.transpose(library.contiguous(library.transpose(x)))
    if layout == "reversed" and x.ndim:
        return library.flip(library.contiguous(library.flip(x)))
    if layout == "strided" and x.ndim:
        return library.contiguous(library.repeat(x, 2, axis=-1))[..., ::2]
    return x


def special(dtype: Dtype, low: float, high: float) -> list[Any]:
    """Numbers worth trying, those in [low, high], and NaN."""
    if dtype.is_bool:
        return [False, True]
    if dtype.is_integer:
        info = np.iinfo(dtype.np)
        numbers = {0, 1, 2, 3, 7, 20, -1, -2, -5, info.max, info.min}
        return sorted(n for n in numbers if info.min <= n <= info.max and low <= n <= high)
    reals = [0.0, -0.0, 0.25, 0.5, 1.0, -1.0, 1.5, -2.5, 3.0, 7.3, -9.6, 30.0, inf, -inf]
    allowed = [r for r in reals if low <= r <= high]
    if not dtype.is_complex:
        return [*allowed, nan] if high == inf else allowed
    finite = [r for r in allowed if math.isfinite(r)]
    return [complex(a, b) for a, b in zip(finite, [*finite[2:], *finite[:2]], strict=True)]


@st.composite
def operands(
    draw: st.DrawFn, count: int, dtypes: Sequence[Dtype], low: float = -inf, high: float = inf, mixed: bool = False,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
) -> list[tuple[np.ndarray, str]]:  # fmt: skip
    """Arrays that broadcast together (0-d ones and ones without elements too), in one or several dtypes and layouts."""
    shape = draw(st.sampled_from(shapes))
    dtype = draw(st.sampled_from(dtypes))
    found = []
    for _ in range(count):
        kind = draw(st.sampled_from(dtypes)) if mixed else dtype
        smaller = [shape, tuple(1 if i == 0 else n for i, n in enumerate(shape)), shape[1:]]
        own = shape if count == 1 else draw(st.sampled_from([shape, *smaller]))
        numbers = special(kind, low, high)
        pool = np.array(numbers, kind.np) if kind.is_integer else np.array(numbers).astype(kind.np)
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        found.append((rng.choice(pool, own), draw(st.sampled_from(LAYOUTS))))
    return found


# ---- comparison ----

LOOSE = {dt.float16: 4e-3, dt.bfloat16: 3e-2, dt.float32: 2e-5, dt.float64: 2e-5, dt.complex64: 1e-4}
"""MLX computes its float64 functions with polynomials that were made for float32."""


def numpy_of(x: Any) -> np.ndarray:
    if str(x.dtype).endswith("bfloat16") and not isinstance(x, wx.array):
        return np.array(x.view(mx.uint16)).view(ml_dtypes.bfloat16)
    return np.array(x)


def outcome(function: Callable[[], Any]) -> Any:
    """The result, evaluated, or the class of the error."""
    try:
        result = function()
        for x in result if isinstance(result, (list, tuple)) else [result]:
            if hasattr(x, "tolist"):
                x.tolist()
    except Exception as error:  # the class is what is compared
        return type(error)
    return result


def alike(mine: Any, other: Any, loose: bool = False) -> None:
    """The same class of error, or the same shape, dtype and elements."""
    if isinstance(other, type):
        # What MLX cannot convert is a RuntimeError from C++; ours says TypeError or ValueError.
        allowed = (RuntimeError, TypeError, ValueError) if other is RuntimeError else (other,)
        assert isinstance(mine, type), f"{mine} instead of {other.__name__}"
        assert issubclass(mine, allowed), f"{mine.__name__} instead of {other.__name__}"
        return
    assert not isinstance(mine, type), f"{mine.__name__} instead of {other}"
    if isinstance(other, (list, tuple)):
        assert type(mine) is type(other)
        assert len(mine) == len(other)
        for m, o in zip(mine, other, strict=True):
            alike(m, o, loose)
        return
    if not isinstance(other, mx.array):
        name = str(other).removeprefix("mlx.core.")
        assert str(mine).removeprefix("weft.core.") == name
        return
    assert mine.dtype.name == str(other.dtype).removeprefix("mlx.core.")
    assert mine.shape == other.shape
    same_elements(mine.dtype, numpy_of(mine), numpy_of(other), loose)


def same_elements(dtype: Dtype, got: np.ndarray, expected: np.ndarray, loose: bool) -> None:
    if not dtype.is_inexact:
        np.testing.assert_array_equal(got, expected)
        return
    wide = np.complex128 if dtype.is_complex else np.float64
    tolerance = LOOSE[dtype] if loose else 0.0
    np.testing.assert_allclose(got.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance, equal_nan=True)


def both(
    function: Callable[..., Any],
    *values: tuple[np.ndarray, str] | np.ndarray,
    loose: bool = False,
    answers: bool = False,
) -> None:
    """`function(library, arrays...)` does the same with both libraries; `answers`: where MLX has one."""
    laid = [v if isinstance(v, tuple) else (v, "plain") for v in values]
    other = outcome(lambda: function(mx, *(spread(mx, theirs(v), layout) for v, layout in laid)))
    if answers and isinstance(other, type):
        return
    mine = outcome(lambda: function(wx, *(spread(wx, ours(v), layout) for v, layout in laid)))
    alike(mine, other, loose)
