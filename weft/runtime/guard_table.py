"""The steps of guards (weft/transforms/guards.py), which Python takes in one form and machine code in another
(weft/runtime/guard_code.py).

A step is (operation, register, count, expected). Registers are the values that have been read so far, in order: those
that a pass is given, then what each step that reads adds to them. A value that is not what it has to be ends the pass.
"""

from __future__ import annotations

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
"""The items of a list, `count` of them."""
PARTS: Final = 14
"""The items of a tuple, `count` of them."""
VALUES: Final = 15
"""The values of a dict, whose keys are `expected`, in this order."""
MEMBERS: Final = 16
"""The items of a set, `count` of them; `expected` is `tuple`."""
STATE: Final = 17
"""The attributes of an object as a dict, or None; `expected` is their name."""
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

HEAD, STEP_WORDS = 3, 3
"""The words before the steps in machine code's form of them (how many there are, the address of a table for the
addresses of all that is seen, its size less one), and those of each step."""


class _Absent:
    """What stands for a value that is not there."""

    __slots__ = ()


ABSENT: Final = _Absent()
NO, READY, WAITING = 0, 1, 2
"""What a pass gives: something is not what it was; all is, and every array has a value that lies in memory row by row;
or some array has none yet, or one with strides."""
NOTED: Final = frozenset({ARRAY, OBJECT, APART})
"""The steps that note something that must be seen once."""
