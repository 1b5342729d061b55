"""The steps of guards (weft/transforms/guards.py), which Python takes in one form and machine code in another
(weft/runtime/guard_code.py).

A step is (operation, register, count, expected). Registers are the values that have been read so far, in order: those
that a pass is given, then what each step that reads adds to them. A value that is not what it has to be ends the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

Step = tuple[int, int, int, Any]

# What a value has to be.
SAME: Final = 0
"""This very object."""
EQUAL: Final = 1
"""Of the same class, and equal: numbers to the bit, strings, bytes, and tuples of these."""
TYPE: Final = 2
"""Of this class itself."""
FALSE: Final = 3
"""None, or empty."""
KNOWN: Final = 4
"""The array of this number, or with ~ the object."""

# What is also noted, in the order in which a walk notes it.
ARRAY: Final = 5
"""An array that has not been seen before."""
NUMBER: Final = 6
"""A number of this class, whatever it is."""
OBJECT: Final = 7
"""An object of this class that has not been seen before."""
APART: Final = 8
"""Neither an array nor an object that is seen anywhere."""
PLACE: Final = 9
"""A place whose changes are made again."""
FIXED_PLACE: Final = 10
"""`expected` is such a place; the register does not matter."""
MADE_PLACE: Final = 11
"""`expected` makes such a place of the value."""

# What is read.
CONSTANT: Final = 12
"""`expected` itself, one value."""
ITEMS: Final = 13
"""The items of a list, `count` of them. Those that have to be what `expected` has in their place (`EQUAL`) are
compared, and only the others (`VARIES`) are added."""
PARTS: Final = 14
"""The same of a tuple."""
VALUES: Final = 15
"""The same of the values of a dict; `expected` is its keys, in their order, and such values."""
MEMBERS: Final = 16
"""The same of a set, in the order of a loop over it."""
STATE: Final = 17
"""The attributes of an object as a dict, or None; `expected` is the class of that."""
FUNCTION: Final = 18
"""Of a function: its code, its cells, its defaults, those of keywords, its attributes, its globals: `FUNCTION_PARTS`
values, each None if there is none."""
CONTENTS: Final = 19
"""What a cell holds, or `ABSENT`."""
LOOK_UP: Final = 20
"""What a dict has under the string `expected`, or `ABSENT`."""
READ: Final = 21
"""What the function `expected` gives for the value, a tuple of `count`."""

FUNCTION_PARTS: Final = 6


def words_of(steps: Sequence[Step], seen: int, mask: int) -> list[int]:
    """The steps as machine code takes them. `HEAD` words come first: how many steps there are, the address of a table
    for the addresses of all that is seen, and its size less one. Each step has `STEP_WORDS`: operation, register,
    count, the address of what is expected, and where it goes on, behind all steps, with the addresses of the keys and
    items that it compares with."""
    words = [len(steps), seen, mask]
    items: list[int] = []
    behind = HEAD + STEP_WORDS * len(steps)
    for operation, at, count, expected in steps:
        words += [operation, at, count, id(expected), behind + len(items)]
        if operation == VALUES:
            items += [id(part) for pair in zip(*expected, strict=True) for part in pair]
        elif operation in (ITEMS, PARTS, MEMBERS):
            items += [id(part) for part in expected]
    return words + items


HEAD, STEP_WORDS = 3, 5


class _Mark:
    """What stands for something else than a value."""

    __slots__ = ()


ABSENT: Final = _Mark()
"""Nothing is there."""
VARIES: Final = _Mark()
"""Something is, which is looked at by a step of its own."""
NO, READY, WAITING = 0, 1, 2
"""What a pass gives: something is not what it was; all is, and every array has a value that lies in memory row by row;
or some array has none yet, or one with strides."""
NOTED: Final = frozenset({ARRAY, OBJECT, APART})
"""The steps that note something that must be seen once."""
