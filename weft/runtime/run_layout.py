"""How what machine code needs for a run is laid out: the table of an executable, keys of single operations, records of
calls. `weft.runtime.run_table` makes them, `weft.runtime.running_code` reads them."""

from __future__ import annotations

from typing import Final

CODE, ADDRESS, SIZE, BLOCKS, _PROGRAM_ITSELF, STORED = range(6)
"""What stands where: numbers, the address of the program's table, the size of a workspace and idle blocks of that size,
the program; then of each output its bytes, the size of its block and idle blocks of that size; then the strides of each
result."""
STORE_ITEMS: Final = 3
PROGRAM, INPUTS, STORES, WORDS, RESULTS, WORKSPACE, HEAD = range(7)
"""The numbers: the address of the program's table (0: there is nothing to compute), how many inputs, outputs, words of
constants and results there are, the size of a workspace; then of each result which output or input it is, how, and by
how many bytes it is moved."""
RESULT_WORDS: Final = 3
FROM_OUTPUT, FROM_INPUT, AS_IS = range(3)

MOST_OPERANDS: Final = 4
"""Of a single operation that is evaluated without Python."""
OPERANDS: Final = 3
"""Where operands begin in the key of a single operation: behind what says that it is one, its operation and kind."""
OPERAND_ITEMS: Final = 3
"""What the key says of each: its operation, its kind, its strides."""

MOST_ARGUMENTS: Final = 8
"""Of a call that is made without Python."""
BINDINGS, RECORDS, LATEST = range(3)
"""What a compiled function has for its calls: what it is bound to, a record by the kinds of arguments, and a list of
those kinds and the record of the latest call, which is often as the next one."""
EXECUTABLE, PICKS, KINDS, SHAPE, CAPTURED = range(5)
"""A record: the executable; numbers; the kinds of results; None if the call returns the first of them, `tuple` or
`list` if it returns all, else what makes the answer of a list of arrays; then buffers that the function has captured.
The numbers are how many inputs and words of constants there are, which buffer of the call each input is (below 0: which
captured one), and the words."""
