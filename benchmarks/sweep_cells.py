"""The cells of `weft bench sweep`: which operations meet which shapes, dtypes and layouts, and in which order.

All cells stand in one order that spreads over the whole space from its first cell on: a sweep that is cut short, by a
budget or by hand, is a fair sample. The order depends on the seed alone, so that a sweep can be taken up again.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

FLOATS = ("float32", "float64", "bfloat16", "float16")
REALS = (*FLOATS, "int8", "int32", "int64")
NUMBERS = (*REALS, "complex64")
ALL = (*NUMBERS, "bool")
SIZES = {"float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of an element; 1 for those that are not here."""

LAYOUTS = ("contiguous", "transposed", "sliced", "broadcast", "reversed")

INNER = (1, 2, 3, 4, 5, 7, 8, 16, 33, 1000)
ELEMENTS = 1_000_000
"""Of an array with many rows."""
FEW = 8
VECTORS = tuple(10**k for k in range(9))
SHAPES: tuple[tuple[int, ...], ...] = (
    *((FEW, n) for n in INNER),
    *((ELEMENTS // n, n) for n in INNER),
    *((n,) for n in VECTORS),
)


@dataclass(frozen=True)
class Family:
    """What an operation takes: its dtypes, the number of axes, the longest first and last axis that make sense."""

    dtypes: tuple[str, ...]
    axes: tuple[int, ...] = (1, 2)
    rows: int = ELEMENTS
    inner: int = max(VECTORS)
    arrays: int = 3
    """About how many arrays of the size of its operand it touches."""


OPERATIONS: dict[str, Family] = {
    # elementwise
    "add": Family(NUMBERS),
    "add_row": Family(NUMBERS, (2,)),
    "add_column": Family(NUMBERS, (2,)),
    "multiply_add": Family(NUMBERS, arrays=4),
    "where": Family(REALS),
    "cast": Family(ALL, arrays=2),
    "exp": Family((*FLOATS, "complex64"), arrays=2),
    "gelu": Family(FLOATS, arrays=2),
    "chain": Family(FLOATS),
    # along an axis
    "sum_last": Family(ALL, arrays=1),
    "sum_first": Family(ALL, (2,), arrays=1),
    "max_last": Family(REALS, arrays=1),
    "argmax_last": Family(REALS, arrays=1),
    "variance_first": Family(FLOATS, (2,), arrays=1),
    "softmax": Family(FLOATS, arrays=2),
    "layer_norm": Family(FLOATS, (2,), arrays=2),
    "cumsum": Family(REALS, arrays=2),
    "sort": Family(REALS, arrays=2, inner=10**7),
    "argsort": Family(REALS, arrays=2, inner=10**7),
    "partition": Family(REALS, arrays=2, inner=10**7),
    "topk": Family(("float32", "float64", "int32", "int64"), arrays=2, inner=10**7),
    # moves
    "permute": Family(ALL, (2,), arrays=2),
    "concatenate": Family(ALL, arrays=4),
    "stack": Family(ALL, (2,), arrays=4),
    "pad": Family(ALL, arrays=2),
    "roll": Family(ALL, arrays=2),
    "greater": Family(REALS, arrays=2),
    "take_rows": Family(ALL, (2,), arrays=2),
    "add_to_rows": Family(REALS, (2,)),
    # products
    "matmul": Family(FLOATS, (2,), rows=100_000),
    "matvec": Family(FLOATS, (2,)),
    "small_products": Family(("float32", "float64", "complex64"), (2,), inner=33),
    "pairwise": Family(FLOATS, (2,), rows=500, inner=33),
    # small programs
    "logistic_gradient": Family(("float32", "float64"), (2,), arrays=2),
    "adam": Family(FLOATS, arrays=7),
    "recurrence": Family(("float32", "float64"), (2,), rows=1000),
    "network_gradient": Family(("float32", "float64"), (2,), rows=1000),
    "eager": Family(("float32", "float64"), (1,), inner=1000),
}


@dataclass(frozen=True)
class Cell:
    """One measurement: an operation on one shape, dtype and layout."""

    operation: str
    shape: tuple[int, ...]
    dtype: str
    layout: str

    @property
    def name(self) -> str:
        return f"{self.operation}/{self.size}/{self.dtype}/{self.layout}"

    @property
    def size(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def nbytes(self) -> int:
        """About what it needs in memory."""
        return math.prod(self.shape) * SIZES.get(self.dtype, 1) * OPERATIONS[self.operation].arrays

    @classmethod
    def named(cls, name: str) -> Cell:
        operation, size, dtype, layout = name.split("/")
        return cls(operation, tuple(map(int, size.split("x"))), dtype, layout)


def cell_at(operation: str, shape: tuple[int, ...], dtype: str, layout: str) -> Cell | None:
    """The cell, or None where the operation makes no sense of it. Shapes that are too large are cut to size."""
    family = OPERATIONS[operation]
    if dtype not in family.dtypes or len(shape) not in family.axes or shape[-1] > family.inner:
        return None
    if len(shape) == 1 and layout == "transposed":
        return None
    return Cell(operation, (min(shape[0], family.rows), *shape[1:]) if len(shape) > 1 else shape, dtype, layout)


def ordered(
    operations: Sequence[str], dtypes: Sequence[str], layouts: Sequence[str], *, seed: int = 0, memory: float = math.inf
) -> list[Cell]:
    """Every cell once, those that need more than `memory` bytes left out: one of each operation, then another one."""
    of_each = [_spread(operation, dtypes, layouts, seed + k) for k, operation in enumerate(operations)]
    rounds = itertools.zip_longest(*of_each)
    return [cell for cells in rounds for cell in cells if cell is not None and cell.nbytes <= memory]


def _spread(operation: str, dtypes: Sequence[str], layouts: Sequence[str], seed: int) -> list[Cell]:
    """The cells of an operation, in the order of an additive recurrence with irrational steps: it leaves no large gaps
    at any length. What it has not met after several times the number of cells follows in random order."""
    axes = (SHAPES, [dtype for dtype in dtypes if dtype in OPERATIONS[operation].dtypes], layouts)
    chosen: dict[Cell, None] = {}
    for place in low_discrepancy(len(axes), 4 * math.prod(map(len, axes)), seed):
        cell = cell_at(operation, *(axis[int(p * len(axis))] for axis, p in zip(axes, place, strict=True)))
        if cell is not None:
            chosen[cell] = None
    rest = [cell for each in itertools.product(*axes) if (cell := cell_at(operation, *each)) is not None]
    random.Random(seed).shuffle(rest)
    return list(chosen | dict.fromkeys(rest))


def low_discrepancy(dimensions: int, count: int, seed: int) -> Iterable[tuple[float, ...]]:
    """Points of the unit cube, evenly spread: steps are square roots of primes, the start is random."""
    start = random.Random(seed)
    place = [start.random() for _ in range(dimensions)]
    steps = [math.sqrt(prime) for prime in (2, 3, 5, 7, 11)[:dimensions]]
    for _ in range(count):
        yield tuple(place)
        place = [(p + step) % 1.0 for p, step in zip(place, steps, strict=True)]
