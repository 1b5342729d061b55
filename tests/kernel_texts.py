"""Runs texts of custom kernels: by machine code, and by the interpreter of their tree, which must say the same."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft.core as mx
from weft.config import config


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + sum(shape)).normal(size=shape).astype(np.float32)


def run(
    source: str,
    inputs: dict[str, Any],
    shape: tuple[int, ...],
    *,
    dtype: Any = mx.float32,
    grid: tuple[int, int, int] | None = None,
    threadgroup: tuple[int, int, int] = (64, 1, 1),
    make: Any = mx.fast.metal_kernel,
    template: Any = None,
    init_value: float | None = None,
    close: float = 0,
    **options: Any,
) -> np.ndarray:
    """One output `out`, with a thread for each element unless told; the interpreter says the same (elementary functions
    aside, which are NumPy's there: `close`)."""
    kernel = make("test", list(inputs), ["out"], source, **options)

    def go() -> np.ndarray:
        (out,) = kernel(
            inputs=[mx.array(x) if isinstance(x, np.ndarray) else x for x in inputs.values()],
            grid=grid or (max(1, int(np.prod(shape))), 1, 1),
            threadgroup=threadgroup,
            output_shapes=[shape],
            output_dtypes=[dtype],
            template=template,
            init_value=init_value,
        )
        return np.array(out)

    native = go()
    config.backend = "reference"
    try:
        reference = go()
    finally:
        config.backend = "native"
    np.testing.assert_allclose(native, reference, rtol=close, atol=close)
    return native
