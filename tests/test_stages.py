"""Long elementwise chains that are cut into stages: where they are cut, and that nobody sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from weft import dtypes as dt
from weft.codegen.kernel import Access, Kernel, Step, Store
from weft.primitives.elementwise import Add, Exp, Multiply, Tanh
from weft.targets.cpu.stages import STRIP, Stages

FULL = Access(dt.float32, "memory", "full", "unit")


def kernel(loads: int, steps: list[tuple[Any, tuple[int, ...]]], *stores: int) -> Kernel:
    made = tuple([Step(op, operands, dt.float32, "full") for op, operands in steps])
    return Kernel(0, (FULL,) * loads, made, tuple([Store(v, FULL) for v in stores]))


def test_a_function_of_a_chain_begins_a_stage() -> None:
    add, multiply, tanh = Add(), Multiply(), Tanh()
    chain = [(multiply, (0, 0)), (multiply, (1, 0)), (add, (0, 2))]
    stages = Stages(kernel(1, [*chain, (tanh, (3,)), (multiply, (4, 0))], 5))
    assert (stages.count, stages.kept, stages.pays) == (2, (3,), True)


def test_what_costs_much_is_not_computed_twice() -> None:
    """The first function is read by a later stage too, so it is kept beside the operand of the second."""
    stages = Stages(kernel(1, [(Exp(), (0,)), (Tanh(), (1,)), (Multiply(), (1, 2))], 3))
    assert (stages.count, stages.kept) == (2, (1,))


def test_functions_of_operands_are_one_stage() -> None:
    stages = Stages(kernel(2, [(Tanh(), (0,)), (Exp(), (1,)), (Add(), (2, 3))], 4))
    assert (stages.count, stages.kept, stages.pays) == (1, (), False)


def two(x: Any) -> Any:
    return mx.exp(mx.sin(x * x + x) * x - 1) * mx.sin(x * x + x)


def several(x: Any) -> Any:
    y = mx.tanh(x * x * x + x)
    return y, mx.exp(y + x) > 1, (y * 100).astype(mx.int32)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "gelu": lambda x: 0.5 * x * (1 + mx.tanh(0.8 * (x + 0.04 * x * x * x))),
    "two": two,
    "several": several,
    "truths": lambda x: mx.where((x > 0) & mx.isfinite(mx.exp(x * x * x * x)), mx.tanh(x * x * x + x), x),
}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float64, mx.float16, mx.bfloat16])
def test_stages_keep_the_bits(program: str, dtype: Any) -> None:
    """Around the sizes of vectors and strips, and along operands that are not walked one by one."""
    whole = mx.array(np.random.default_rng(3).standard_normal(3 * STRIP + 37), dtype)
    compiled = mx.compile(PROGRAMS[program])
    for x in (*(whole[:n] for n in (1, 15, 33, STRIP - 1, STRIP, STRIP + 17, 3 * STRIP + 37)), whole[::-1], whole[::3]):
        for ours, theirs in zip(as_list(compiled(x)), separately(PROGRAMS[program], x), strict=True):
            assert np.array_equal(bits(ours), bits(theirs)), (program, dtype, x.shape)


def test_results_take_the_place_of_operands_that_stages_read_again() -> None:
    x = np.random.default_rng(4).standard_normal(100_003).astype(np.float32)
    expected = np.array(PROGRAMS["gelu"](mx.array(x)))
    given = mx.array(x) + 0
    mx.eval(given)
    given = PROGRAMS["gelu"](given)
    assert np.array_equal(np.array(given), expected)


def separately(program: Callable[[Any], Any], x: Any) -> list[Any]:
    """The results element by element: single elements are too few for a second vector, let alone strips."""
    results = [as_list(program(x[i : i + 1])) for i in range(0, x.size, 41)]
    sample = [mx.concatenate(list(parts)) for parts in zip(*results, strict=True)]
    wholes = as_list(program(x))
    for part, whole in zip(sample, wholes, strict=True):
        assert np.array_equal(bits(part), bits(whole[::41]))
    return wholes


def as_list(x: Any) -> list[Any]:
    return list(x) if isinstance(x, tuple) else [x]


def bits(x: Any) -> Any:
    return np.array(x.view({1: mx.uint8, 2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[x.dtype.size]))
