"""Sixteen rows turned round, from memory to memory: functions that kernels share, because LLVM takes its time to choose
instructions for shuffles.

The elements of 16 neighbouring rows lie in a square: for each column a vector of 16, one for each row. Rows have at
least as many elements as a vector has lanes, and are turned in blocks of so many columns, of which the last one begins
earlier, over the end of the one before it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Final

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.transposes import columns_of, rows_of
from weft.dtypes import Dtype
from weft.llvm.builder import PTR, Builder, Value
from weft.llvm.engine import Source
from weft.targets.cpu.features import features

_PARAMS: Final = [("rows", PTR), ("step", dt.int64), ("count", dt.int64), ("columns", dt.int64), ("square", PTR)]
_INTEGERS: Final = {1: dt.uint8, 2: dt.uint16, 4: dt.uint32, 8: dt.uint64}


def to_square(dtype: Dtype, lanes: int, some: bool) -> Source:
    """void(rows, step, count, columns, square): 16 rows, `step` bytes apart, of so many columns. If there may be only
    `some` of them, the last of `count` rows stands for those that are not there; that comes once for hundreds of rows,
    so it is cold."""
    return _source("to", _moved(dtype), lanes, some)


def from_square(dtype: Dtype, lanes: int, some: bool) -> Source:
    """The same the other way round."""
    return _source("from", _moved(dtype), lanes, some)


def _moved(dtype: Dtype) -> Dtype:
    """What is only moved needs no conversion, and functions of one size are the same."""
    return _INTEGERS.get(dtype.size, dtype)


@functools.cache
def _source(way: str, dtype: Dtype, lanes: int, some: bool) -> Source:
    name = f"weft_{way}_square{'_some' * some}_{dtype.name}_{lanes}"
    write = _write_to if way == "to" else _write_from
    key = f"{way}_square {dtype.name} {lanes}{' some' * some}"
    return Source(key, name, lambda: _ir(name, dtype, lanes, some, write), cold=some)


def _ir(name: str, dtype: Dtype, lanes: int, some: bool, write: Callable[[Builder, Dtype, int, bool], None]) -> str:
    b = Builder(name, _PARAMS, features())
    write(b, dtype, lanes, some)
    b.ret()
    return b.module()


def _write_to(b: Builder, dtype: Dtype, lanes: int, some: bool) -> None:
    rows, step, count, columns, square = b.params
    numbers = [b.intrinsic("smin", b.i64(i), count - 1) if some else b.i64(i) for i in range(LANES)]
    starts = [b.gep(rows, step * number) for number in numbers]
    for column in _blocks(b, columns, lanes):
        found = [b.load(b.gep(start, column * dtype.size), dtype, lanes) for start in starts]
        at = b.gep(square, column * (LANES * dtype.size))
        for i, x in enumerate(columns_of(b, found)):
            b.store(x, b.gep(at, i * LANES * dtype.size))


def _write_from(b: Builder, dtype: Dtype, lanes: int, some: bool) -> None:
    rows, step, count, columns, square = b.params
    for column in _blocks(b, columns, lanes):
        at = b.gep(square, column * (LANES * dtype.size))
        found = rows_of(b, [b.load(b.gep(at, i * LANES * dtype.size), dtype) for i in range(lanes)])
        start = b.gep(rows, column * dtype.size)
        for i, x in enumerate(found):
            with b.when(count > i) if some else nullcontext():
                b.store(x, b.gep(start, step * i))


def _blocks(b: Builder, columns: Value, lanes: int) -> Iterator[Value]:
    with b.loop(0, columns, lanes) as block:
        yield b.intrinsic("smin", block.index, columns - lanes)
