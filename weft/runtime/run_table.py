"""What machine code needs to know for a run (`weft.runtime.running_code`): the table of an executable, that of a call.

The table of an executable (`run_layout.py` says what stands where) holds the program, as it is laid out for a number of
threads: where there are more, the run is Python's, and a new table is made.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from weft.runtime.buffer import Storage, allocate, block_size, pool, take_block
from weft.runtime.data import Buffer
from weft.runtime.interpreter import PAUSED, interpreter
from weft.runtime.objects import MAKERS
from weft.runtime.program import Program, give_back
from weft.runtime.run_layout import ADDRESS, BLOCKS, SIZE

RunTable = tuple[Any, ...]


def run_table(
    program: Program | None,
    inputs: int,
    sizes: Sequence[int],
    words: int,
    results: Sequence[tuple[int, int, int, tuple[int, ...] | None]],
) -> RunTable | None:
    """The table of an executable whose results are (output or input, how, offset, strides); None if Python runs it."""
    if not MAKERS.runs or (program is not None and (program.counters or program.given != inputs + len(sizes) + words)):
        return None
    address, size, blocks = (0, 0, deque[int]()) if program is None else program.layout
    numbers = [address, inputs, len(sizes), words, len(results), size]
    numbers += [number for at, how, offset, _ in results for number in (at, how, offset)]
    stores = [x for n in sizes for x in (n, block_size(n), pool.blocks(block_size(n)))]
    code = struct.pack(f"{len(numbers)}q", *numbers)
    return (code, address, size, blocks, program, *stores, *[strides for _, _, _, strides in results])


def call_record(
    executable: object,
    picks: Sequence[int | Buffer],
    words: Sequence[int],
    kinds: Sequence[Any],
    shape: type | Callable[[list[Any]], Any] | None,
) -> tuple[Any, ...]:
    """The record of calls: each input of the executable is the buffer of an argument, or one that was captured."""
    captured = [pick for pick in picks if isinstance(pick, Buffer)]
    places, number = [], -1
    for pick in picks:
        if isinstance(pick, Buffer):
            places.append(number)
            number -= 1
        else:
            places.append(pick)
    numbers = [len(picks), len(words), *places]
    code = struct.pack(f"{len(numbers)}q", *numbers) + b"".join(
        [(word % (1 << 64)).to_bytes(8, "little") for word in words]
    )
    return (executable, code, tuple(kinds), shape, *captured)


def _go_on(table: RunTable, workspace: int) -> int:
    """Go on with a run that has paused, to its end: the status. Python runs the handlers of signals meanwhile."""
    try:
        status = PAUSED
        while status == PAUSED:
            status = interpreter().proceed(table[ADDRESS], workspace)
        return status
    finally:
        give_back(workspace, table[SIZE], table[BLOCKS])


def _run_buffers(table: RunTable, inputs: Sequence[Buffer], words: Sequence[int]) -> list[Buffer] | None:
    return None


run_buffers: Callable[[RunTable, Sequence[Buffer], Sequence[int]], list[Buffer] | None] = MAKERS.memory(
    _run_buffers, Buffer, Storage, pool, allocate, take_block, _go_on, lambda: interpreter().run_plain
)
"""Run what a table says on these inputs, with these words of constants; None if Python has to do it."""
