"""Who holds an object: the one place where reference counts decide whether memory may be overwritten.

Every holder counts at CPython (a node, a view of the same storage, a program that runs on another thread, an array of
NumPy's), whether we thought of it or not. So a *rule* says how many holders of an object are known where it is asked
for, and any other reference is somebody else's: the object is not free then, and is copied.

Who asks has the objects in sequences, and in no variable. Variables of functions that have returned hold nothing: what
looks at objects one by one before they are asked for is a function of its own.

With WEFT_CHECK, what a rule finds free is looked for in all objects that the garbage collector knows. A holder that the
rule does not name means that the count was right by chance, and is an error.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from operator import eq
from sys import getrefcount
from typing import Any, Final

from weft.config import config


def owners(objects: Sequence[Any]) -> list[int]:
    """How many references there are to each object, without that of the sequence itself."""
    return [count - 2 for count in map(getrefcount, objects)]  # `map` holds one while it asks


def _variables_count() -> bool:
    held = object()
    return owners([held]) == [1]


COUNTED: Final = owners([object()]) == [0] and _variables_count() and getattr(sys, "_is_gil_enabled", lambda: True)()
"""Whether reference counts tell who holds an object: not where threads count on their own, or variables do not."""

OPERAND: Final = "an operand of one operation"
"""Its node is held by the tuple of operands and by the list of the evaluation, that tuple by the operation's node, its
buffer by its node and by the list of leaves, its storage by the buffer."""
PIECE: Final = "a node of an evaluation"
"""Each node is held by the list of the evaluation and by the tuples of operands of those that it computes, once for
each time that it stands there, and each tuple by its node."""
LEAF: Final = "a leaf of an evaluation"
"""Its buffer is held by its node and by the list of leaves, its storage by the buffer."""
BASE: Final = "the base of a slice update"
"""Its node is held by the tuple of operands, that tuple by the update's node, its buffer by its node, its storage by
the buffer."""
UPDATED: Final = "the base of a slice update in a program"
"""The same, but for the lists of the evaluation: that of its nodes, and that of its leaves."""
STATE: Final = "an array that a call overwrites"
"""Its node is held by the array and by the claim, its buffer by the claim and by the list of the call's buffers, its
storage by the buffer."""
REPLACED: Final = "an array, or a container, that a call replaces"
"""It is held by the slots that are replaced, by the list of the walk, and by the walk's list of containers."""

RESULT: Final = "a result that is handed to another library"
"""Its node is held by its array, its buffer by its node, its storage by the buffer."""


_LOOKS: Final = 4
"""How often a holder that no rule names must be found before it is one."""


class CountError(AssertionError):
    """A reference count explained holders that are not there, and left out one that is."""


def free(
    rule: str, objects: Sequence[Any], known: Sequence[int], holders: Callable[[], Sequence[set[int]]]
) -> list[bool]:
    """Whether each object has as many holders as are known by a rule, beside the sequence. `holders` gives their ids,
    for the check."""
    found = [*map(eq, owners(objects), known)]
    if config.check and any(found):
        _verify(rule, objects, known, found, holders())
    return found


def _verify(
    rule: str, objects: Sequence[Any], known: Sequence[int], found: Sequence[bool], holders: Sequence[set[int]]
) -> None:
    """Raise if something that the garbage collector knows holds a free object, and the rule does not name it. A holder
    that has come since, in another thread, counts one more, or is soon gone: the rule is not about that one."""
    numbers = [i for i, is_free in enumerate(found) if is_free]
    suspects: set[tuple[int, str]] | None = None
    for _ in range(_LOOKS):
        unknown = _unknown(objects, numbers, holders)
        counts = owners(objects)
        now = {(i, description) for i, description in unknown if counts[i] == known[i]}
        suspects = now if suspects is None else suspects & now
        if not suspects:
            return
        time.sleep(0.001)  # which lets other threads go on
    assert suspects is not None
    _, description = min(suspects)
    raise CountError(
        f"[check] {rule} was counted as free, but is held by {description} too, which the rule does not name."
    )


def _unknown(objects: Sequence[Any], numbers: Sequence[int], holders: Sequence[set[int]]) -> list[tuple[int, str]]:
    """The holders of some objects that no rule names, in words."""
    asked = tuple([objects[i] for i in numbers])  # which the call below hands on: of a list it would make another one
    ours = {id(objects), id(asked)}
    found = []
    for holder in gc.get_referrers(*asked):
        inside = set() if id(holder) in ours else {id(x) for x in gc.get_referents(holder)}
        names = {id(holder), id(_attributes(holder))}
        found += [(i, _described(holder)) for i in numbers if id(objects[i]) in inside and not names & holders[i]]
    return found


def _attributes(holder: Any) -> Any:
    """The dict of an object's attributes. From Python 3.13 on the object itself holds them, and the dict shows them."""
    try:
        return object.__getattribute__(holder, "__dict__")
    except AttributeError:
        return holder


def _described(holder: Any) -> str:
    return f"an object of type {type(holder).__name__} at {id(holder):#x}"
