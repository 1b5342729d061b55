"""Kernels read and write nothing but their arrays: operations on rows of all lengths, in all layouts, in memory that
ends where the arrays do (tests/fenced.py). Those for short rows read whole vectors, which reach into the rows beside
theirs and must not reach further."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import weft.core as mx
from tests import contract, fenced
from tests.processes import run_alone

QUICK, MANY = 6, 60
"""Cases of each operation."""
ROWS = (1, 2, 5, 16, 17, 33, 64, 65, 81, 130, 300)
COLUMNS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 40, 64, 70)
DTYPES = (np.float32, np.int8, np.bool_, np.float64, np.int16, np.complex64, np.uint64, np.complex128)


def places(n: int) -> np.ndarray:
    return (np.arange(40) * 7 % n).astype(np.int32)


def added(m: Any, x: Any) -> Any:
    at = places(x.shape[0])
    if m is mx:
        return x.at[mx.array(at)].add(x[mx.array(at)])
    made = x.copy()
    np.add.at(made, at, x[at])
    return made


def taken(axis: int) -> Callable[[Any, Any], Any]:
    return lambda m, x: m.take(x, m.array(places(x.shape[axis])), axis=axis)


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "slices that are compared": lambda m, x: x[:, 1:] != x[:, :-1],
    "every second": lambda m, x: m.where(x[:, ::2] == x[:, :1], x[:, ::2], x[:1, ::2]),
    "every third": lambda m, x: x[:, ::3] == x[:, :1],
    "every fourth": lambda m, x: x[:, ::4] == x[:, :1],
    "every eighth": lambda m, x: x[:, 1::8] == x[:, :1],
    "columns of few": lambda m, x: (x[:, 0] == x[:, -1]) | (x[:, x.shape[1] // 2] == x[:, 0]),
    "backwards": lambda m, x: m.where(x[:, ::-1] == x, x[:, ::-1], x[:, :1]),
    "a row for all": lambda m, x: m.where(x[::-1] == x[0], x[0], x),
    "turned": lambda m, x: m.where(m.swapaxes(x, 0, 1) == x[0, 0], m.swapaxes(x, 0, 1), x[0, :1]),
    "joined": lambda m, x: m.concatenate([x, x[:, ::-1], x[:, :1]], axis=1),
    "joined rows": lambda m, x: m.concatenate([x[1:], x[::-1]], axis=0),
    "stacked": lambda m, x: m.stack([x, x[:, ::-1]], axis=2),
    "stacked with one row": lambda m, x: m.stack([m.broadcast_to(x[:1], x.shape), x], axis=-1),
    "padded": lambda m, x: m.pad(x, ((1, 2), (1, 0))),
    "rolled": lambda m, x: m.roll(x, 2, axis=1),
    "repeated": lambda m, x: m.repeat(x, 3, axis=1),
    "rows taken": taken(0),
    "columns taken": taken(1),
    "rows added to": added,
    "sums of rows": lambda m, x: m.sum(x, axis=1),
    "sums of columns": lambda m, x: m.sum(x, axis=0),
    "sums of rows backwards": lambda m, x: m.sum(x[:, ::-1], axis=1),
    "sums of parts of rows": lambda m, x: m.sum(x[:, 1:], axis=1),
    "largest": lambda m, x: m.max(m.real(x), axis=1),
    "where the smallest is": lambda m, x: m.argmin(m.real(x), axis=1),
    "running sums": lambda m, x: m.cumsum(x, axis=1),
    "running sums back": lambda m, x: m.cumsum(x[:, ::-1], axis=1)[:, ::-1],
    "running sums of columns": lambda m, x: m.cumsum(x, axis=0),
    "sorted": lambda m, x: m.sort(x, axis=1),
    "sorted columns": lambda m, x: m.sort(x, axis=0),
    "times a row": lambda m, x: m.matmul(x, x[0]),
    "times a matrix": lambda m, x: m.matmul(x, m.swapaxes(x[:3], 0, 1)),
}
NO_BOOLS = ("rows added to", "times a row", "times a matrix")


def check(name: str, rng: random.Random) -> None:
    """One case of an operation, against NumPy. Elements are small integers, so that sums are exact."""
    dtype = np.dtype(rng.choice([d for d in DTYPES if d is not np.bool_ or name not in NO_BOOLS]))
    shape = rng.choice(ROWS), rng.choice(COLUMNS)
    elements = np.random.default_rng(rng.randrange(1 << 30)).integers(0, 4, shape).astype(dtype)
    (x,) = contract.lay_out([elements], rng.choice(list(contract.LAYOUTS)))
    expected = np.asarray(OPERATIONS[name](np, contract.values_of(x)))
    result = OPERATIONS[name](mx, x)
    mx.eval(result)
    found = contract.values_of(result)
    np.testing.assert_array_equal(found, expected.astype(found.dtype), f"{name} of {dtype}{shape}")


def in_fences(cases: int) -> None:
    for side in fenced.SIDES:
        fenced.fence(side)
        for name in OPERATIONS:
            rng = random.Random(name)
            for _ in range(cases):
                check(name, rng)
                assert not fenced.TOUCHED, f"{name} wrote {side} an array"


def quick() -> None:
    in_fences(QUICK)


def many() -> None:
    in_fences(MANY)


def test_kernels_stay_within_their_arrays() -> None:
    run_alone(__file__, "quick")


@pytest.mark.slow
@pytest.mark.parametrize("threads", ["1", "3"])
def test_kernels_stay_within_their_arrays_in_many_cases(threads: str) -> None:
    run_alone(__file__, "many", WEFT_THREADS=threads)
