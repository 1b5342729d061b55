"""Derivatives and batches of functions of arrays, checked against finite differences, each other and loops, on the
reference back end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import weft.core as mx
from weft.config import config

Function = Callable[..., Any]
STEP = 1e-6


@contextmanager
def reference() -> Iterator[None]:
    """Evaluation by the NumPy references, where a new graph costs no compilation."""
    before = config.backend
    config.backend = "reference"
    try:
        yield
    finally:
        config.backend = before


def double(values: Any) -> Any:
    return mx.array(np.asarray(values, np.float64), dtype=mx.float64)


def check_derivatives(function: Function, *primals: np.ndarray, tolerance: float = 1e-6) -> None:
    """jvp against central differences, and <cotangent, jvp> = <vjp, tangent>, in float64."""
    rng = np.random.default_rng(7)
    tangents = [rng.normal(size=np.shape(p)) for p in primals]
    with reference():
        (out,), (tangent,) = mx.jvp(function, [double(p) for p in primals], [double(t) for t in tangents])
        high = np.array(function(*(double(p + STEP * t) for p, t in zip(primals, tangents, strict=True))))
        low = np.array(function(*(double(p - STEP * t) for p, t in zip(primals, tangents, strict=True))))
        cotangent = rng.normal(size=out.shape)
        _, found = mx.vjp(function, [double(p) for p in primals], [double(cotangent)])
        inner = sum(float((np.array(f) * t).sum()) for f, t in zip(found, tangents, strict=True))
        pushed = np.array(tangent)
    np.testing.assert_allclose(pushed, (high - low) / (2 * STEP), rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(inner, float((cotangent * pushed).sum()), rtol=1e-9, atol=1e-9)


def check_batch(function: Function, axes: Sequence[int | None], *values: np.ndarray) -> None:
    """vmap against a loop; `axes` says which axis of each value is mapped."""
    size = next(v.shape[a] for v, a in zip(values, axes, strict=True) if a is not None)
    with reference():
        together = np.array(mx.vmap(function, in_axes=tuple(axes))(*(_array(v) for v in values)))
        for k in range(size):
            one = [v if a is None else np.take(v, k, a) for v, a in zip(values, axes, strict=True)]
            np.testing.assert_array_equal(together[k], np.array(function(*(_array(v) for v in one))))


def _array(values: np.ndarray) -> Any:
    return double(values) if values.dtype == np.float64 else mx.array(values)
