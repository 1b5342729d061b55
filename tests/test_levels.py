"""The same bits at every LLVM level and for every instruction set: optimisation may reorder instructions, never
arithmetic."""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
import pytest

import weft.core as mx
from tests import contract
from tests.contract import same_bits, settings, values_of
from weft import dtypes as dt
from weft import evaluate as evaluation
from weft.array import array
from weft.config import CPUS, LLVM_LEVELS, config
from weft.errors import ConfigError
from weft.llvm import engine


def leaf(*shape: int, dtype: dt.Dtype = dt.float32, layout: str = "contiguous", low: float = -2.0) -> array:
    values = contract.generator(f"{shape}{dtype.name}").uniform(low, 2.0, shape).astype(dtype.np)
    return contract.lay_out([values], layout)[0]


def chain(dtype: dt.Dtype) -> array:
    x, y = leaf(5, 37, dtype=dtype), leaf(37, dtype=dtype, low=0.5)
    return mx.tanh(x * y + 0.3) - mx.exp(x) / y + mx.sin(x) * mx.sqrt(y) * mx.log(y)


def norm(dtype: dt.Dtype) -> array:
    x = leaf(7, 100, dtype=dtype)
    center = x - mx.mean(x, axis=-1, keepdims=True)
    return center * mx.rsqrt(mx.mean(mx.square(center), axis=-1, keepdims=True) + 1e-5) + mx.softmax(x, axis=-1)


def sums(dtype: dt.Dtype) -> array:
    """Rows, columns, blocks and trees."""
    x = leaf(50, 129, dtype=dtype)
    return mx.sum(x, axis=0) * mx.max(x, axis=0) + mx.sum(mx.square(x)) + mx.sum(leaf(9000, dtype=dtype))


def tiles(dtype: dt.Dtype) -> array:
    return leaf(40, 50, dtype=dtype) * 0.7 + leaf(50, 40, dtype=dtype).T - leaf(40, 50, dtype=dtype, layout="reversed")


def products(dtype: dt.Dtype) -> array:
    return (
        mx.matmul(leaf(17, 23, dtype=dtype), leaf(23, 19, dtype=dtype))
        + mx.matmul(leaf(17, 23, dtype=dtype), leaf(23, dtype=dtype))[:, None]
    )


def conversions(dtype: dt.Dtype) -> array:
    x = leaf(6, 37, dtype=dtype)
    total = (x * 100).astype(dt.int8).astype(dt.float32)
    for to in (dt.float16, dt.bfloat16, dt.float64, dt.uint16):
        total = total + x.astype(to).astype(dt.float32)
    return total


PROGRAMS: dict[str, Callable[[dt.Dtype], array]] = {
    f.__name__: f for f in (chain, norm, sums, tiles, products, conversions)
}
DTYPES = (dt.float32, dt.float64, dt.float16, dt.bfloat16)


@pytest.fixture(autouse=True)
def _fresh_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are remembered without the level that their kernels were compiled at: a setting is for a process."""
    monkeypatch.setattr(evaluation.programs, "PROGRAMS", {})


def run(name: str, dtype: dt.Dtype) -> np.ndarray:
    evaluation.programs.PROGRAMS.clear()
    return values_of(PROGRAMS[name](dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("name", PROGRAMS)
def test_levels(name: str, dtype: dt.Dtype) -> None:
    own = config.llvm_level  # of which other tests may have loaded kernels already
    with settings(llvm_level=0):
        expected = run(name, dtype)
    for level in LLVM_LEVELS[1:]:
        before = engine.stats.loaded
        with settings(llvm_level=int(level)):
            got = run(name, dtype)
        assert engine.stats.loaded > before or int(level) == own, "this level has kernels of its own"
        assert same_bits(got, expected), f"level {level}: {contract.differences(got, expected)}"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
@pytest.mark.parametrize("cpu", [name for name in CPUS if name != "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_instruction_sets(name: str, cpu: str) -> None:
    """Wider vectors and fused instructions change the time only."""
    for dtype in DTYPES:
        expected = run(name, dtype)
        with settings(cpu=cpu):
            try:
                got = run(name, dtype)
            except ConfigError:
                pytest.skip(f"this machine has no {cpu}")
        assert same_bits(got, expected), f"{cpu}: {contract.differences(got, expected)}"
