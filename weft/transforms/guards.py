"""What a walk has read, to be read again in one go: whether a call sees what an earlier one saw.

A `Walk` (capture.py) decides at every value what there is to look at. While it does, a `Recording` writes down each
read and what it gave, as a flat list of steps (runtime/guard_table.py). To take those steps again is to make the same
walk without deciding anything: if every value is what it was, or an array where there was an array, then it would give
the same key, and the arrays, objects, numbers and places that it would list are listed on the way. If not, the walk is
made. Steps begin at the arguments and the function, and hold nothing of the caller's: no array, no container, no object
is kept alive by them.

On CPython machine code takes the steps (runtime/guard_code.py); `_take_by_python` defines what they mean.
"""

from __future__ import annotations

import functools
import gc
import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from weft.array import array
from weft.runtime.data import Buffer
from weft.runtime.guard_table import (
    ABSENT,
    APART,
    ARRAY,
    CONSTANT,
    CONTENTS,
    EQUAL,
    FALSE,
    FIXED_PLACE,
    FUNCTION,
    ITEMS,
    KNOWN,
    LOOK_UP,
    MADE_PLACE,
    MEMBERS,
    NO,
    NUMBER,
    OBJECT,
    PARTS,
    PLACE,
    READ,
    READY,
    SAME,
    STATE,
    TYPE,
    VALUES,
    VARIES,
    WAITING,
    Step,
)  # fmt: skip
from weft.runtime.objects import MAKERS
from weft.transforms.state import is_same_place, items_of

NOWHERE: Final = -1
"""The register of what is not read again: a walk with such a step can only be made."""
_STATE_NAME: Final = "__dict__"


class Recording:
    """The steps of one walk. Methods that read give the register of the first value."""

    __slots__ = ("_known", "_looked_up", "_visited", "given", "size", "steps")

    records: ClassVar[bool] = True

    def __init__(self, given: int = 0) -> None:
        self.steps: list[Step] = []
        self.given = self.size = given
        """The number of registers."""
        self._known: dict[int, int] = {}
        self._looked_up: dict[tuple[int, str], int] = {}
        self._visited: set[int] = set()

    def check(self, operation: int, at: int, expected: Any = None) -> None:
        """A step that reads nothing."""
        self.steps.append((operation, at, 0, expected))

    def read(self, operation: int, at: int, count: int, expected: Any = None) -> int:
        self.steps.append((operation, at, count, expected))
        self.size += count
        return self.size - count

    def first_visit(self, operation: int, at: int, expected: Any = None) -> None:
        """An array or an object that has not been seen before."""
        self.steps.append((operation, at, 0, expected))
        self._visited.add(at)

    def next_visit(self, at: int, number: int) -> None:
        """One that has; nothing has to be compared if it was read from the same place."""
        if at not in self._visited:
            self.steps.append((KNOWN, at, number, None))

    def constant(self, value: Any) -> int:
        """The register of something that is always there: a class, a module, or what belongs to one of them."""
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = self.read(CONSTANT, 0, 1, value)
        return found

    def look_up(self, scope: Any, name: str) -> int:
        """The register of what a dict that is always there has under a name."""
        found = self._looked_up.get((id(scope), name))
        if found is None:
            found = self._looked_up[id(scope), name] = self.read(LOOK_UP, self.constant(scope), 1, name)
        return found

    def state(self, at: int, state: Any) -> int:
        """The register of the attributes of an object."""
        return self.read(STATE, at, 1, type(state))

    def items(self, at: int, container: Any, items: Sequence[tuple[Any, Any]]) -> tuple[int, int]:
        """The register of the first value of a dict that has these items, and how many registers each of them takes: 1
        where all keys are strings, and compared here, and 2 where each stands before its value."""
        keys = tuple([key for key, _ in items])
        if not isinstance(container, OrderedDict) and all(type(key) is str for key in keys):
            return self.read(VALUES, at, len(keys), keys), 1
        return self.read(READ, at, 2 * len(keys), flat_items) + 1, 2

    @property
    def is_complete(self) -> bool:
        """Whether these are all reads of the walk."""
        return all(at >= 0 for _, at, _, _ in self.steps)


class NoRecording(Recording):
    """For walks that will not be taken again by steps."""

    __slots__ = ()

    records: ClassVar[bool] = False
    is_complete = False

    def check(self, operation: int, at: int, expected: Any = None) -> None:
        pass

    def read(self, operation: int, at: int, count: int, expected: Any = None) -> int:
        return 0

    def first_visit(self, operation: int, at: int, expected: Any = None) -> None:
        pass

    def next_visit(self, at: int, number: int) -> None:
        pass

    def constant(self, value: Any) -> int:
        return 0

    def look_up(self, scope: Any, name: str) -> int:
        return 0

    def items(self, at: int, container: Any, items: Sequence[tuple[Any, Any]]) -> tuple[int, int]:
        return 0, 1


# ---- what is read by functions ----


def flat_items(container: dict[Any, Any]) -> tuple[Any, ...]:
    """Keys and values of a dict in turn."""
    return tuple([part for item in items_of(container) for part in item])


def frozen_items(value: frozenset[Any]) -> tuple[Any, ...]:
    return tuple(frozenset.__iter__(value))


def class_parts(cls: type) -> tuple[Any, ...]:
    return type(cls), cls.__mro__


def method_parts(method: Any) -> tuple[Any, ...]:
    return method.__func__, method.__self__


def builtin_parts(function: Any) -> tuple[Any, ...]:
    return function.__name__, function.__self__


def partial_parts(value: Any) -> tuple[Any, ...]:
    return value.func, value.args, value.keywords


def range_parts(value: Any) -> tuple[Any, ...]:
    return value.start, value.stop, value.step


def wrapped_parts(value: Any) -> tuple[Any, ...]:
    return (value.__wrapped_function__,)


def written_out(value: Any) -> tuple[Any, ...]:
    return (repr(value),)


@functools.cache
def tail(most: int) -> Callable[[list[Any]], tuple[Any, ...]]:
    """What reads the last items of a list, so many if there are as many."""
    return lambda value: tuple(value[max(len(value) - most, 0) :])


@functools.lru_cache(maxsize=512)
def slots(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """What reads attributes that are in `__slots__`."""

    def read(owner: Any) -> tuple[Any, ...]:
        found = []
        for name in names:
            try:
                found.append(object.__getattribute__(owner, name))
            except AttributeError:  # not assigned
                found.append(ABSENT)
        return tuple(found)

    return read


def class_dict(cls: type) -> Any:
    """What `vars(cls)` shows: the dict itself on CPython, which is the same for good."""
    behind = gc.get_referents(vars(cls)) if hasattr(gc, "get_referents") else []
    return behind[0] if len(behind) == 1 and type(behind[0]) is dict else vars(cls)


# ---- taking the steps ----

_OF_ITEMS: Final = (ITEMS, PARTS, VALUES, MEMBERS)


def compact(steps: Sequence[Step], given: int) -> list[Step]:
    """The steps that `given` values are looked at with, in fewer: where all that is asked of an item of a container is
    to be some value, the step that reads the container compares it."""
    asked: dict[int, Step | None] = {}
    for step in steps:
        asked[step[1]] = None if step[1] in asked else step
    registers = {at: at for at in range(given)}
    """What each is now."""
    made: list[Step] = []
    compared: set[int] = set()
    before = size = given
    for operation, at, count, expected in steps:
        if at in compared:
            continue
        constants = []
        for register in range(before, before + count if operation >= CONSTANT else before):
            only = asked.get(register) if operation in _OF_ITEMS else None
            if only is not None and only[0] in (SAME, EQUAL):
                compared.add(register)
                constants.append(only[3])
            else:
                registers[register], size = size, size + 1
                constants.append(VARIES)
        before += count if operation >= CONSTANT else 0
        if operation in _OF_ITEMS:
            expected = (expected, tuple(constants)) if operation == VALUES else tuple(constants)
        made.append((operation, registers[at], count, expected))
    return made


def _take_items(items: Iterable[Any], expected: Sequence[Any], values: list[Any]) -> bool:
    """Whether items are what they have to be; those that have a step of their own are added."""
    for item, constant in zip(items, expected, strict=True):
        if constant is VARIES:
            values.append(item)
        elif item is not constant and not _equal(item, constant):
            return False
    return True


_PLAIN: Final = (str, bytes, tuple, int)


def _equal(x: Any, y: Any) -> bool:
    """Whether plain values are the same: zeros by their sign, and a NaN is like itself only."""
    cls = type(x)
    if cls is not type(y):
        return False
    if cls is float:
        return x is y or (x == y and (x != 0 or repr(x) == repr(y)))
    return x is y or (cls in _PLAIN and bool(x == y))


def _take_by_python(
    steps: Sequence[Step], values: list[Any], arrays: list[Any], objects: list[Any], apart: list[Any],
    places: list[Any], scalars: list[Any], kinds: list[Any], buffers: list[Any],
) -> int:  # fmt: skip
    """Take the steps, with `values` as the first registers; NO, READY or WAITING. What the walk would note is added to
    the other lists: arrays, with the kinds and values that they have now, objects, places, numbers."""
    is_ready = True
    for operation, at, count, expected in steps:
        if operation == CONSTANT:
            values.append(expected)
            continue
        value = values[at]
        if operation == SAME:
            if value is not expected:
                return NO
        elif operation == EQUAL:
            if not (value is expected or _equal(value, expected)):
                return NO
        elif operation == ARRAY:
            if type(value) is not array:
                return NO
            node = value._node
            arrays.append(value)
            kinds.append(node.kind)
            buffers.append(node.value)
            is_ready = is_ready and type(node.value) is Buffer and node.value.strides is None
        elif operation == OBJECT:
            if type(value) is not expected:
                return NO
            objects.append(value)
        elif operation == TYPE:
            if type(value) is not expected:
                return NO
        elif operation == LOOK_UP:
            values.append(value.get(expected, ABSENT))
        elif operation == VALUES:
            items = value if isinstance(value, dict) else dict(value)
            keys, (names, constants) = dict.keys(items), expected
            if len(items) != count or not (all(map(operator.is_, keys, names)) or tuple(keys) == names):
                return NO
            if not _take_items(dict.values(items), constants, values):
                return NO
        elif operation == PLACE:
            places.append(value)
        elif operation == FIXED_PLACE:
            places.append(expected)
        elif operation == STATE:
            state = _state_of(value)
            if type(state) is not expected:
                return NO
            values.append(state)
        elif operation == ITEMS:
            if list.__len__(value) != count or not _take_items(list.__iter__(value), expected, values):
                return NO
        elif operation == PARTS:
            if tuple.__len__(value) != count or not _take_items(tuple.__iter__(value), expected, values):
                return NO
        elif operation == MEMBERS:
            if set.__len__(value) != count or not _take_items(set.__iter__(value), expected, values):
                return NO
        elif operation == KNOWN:
            if value is not (arrays[count] if count >= 0 else objects[~count]):
                return NO
        elif operation == NUMBER:
            if type(value) is not expected:
                return NO
            scalars.append(value)
        elif operation == FUNCTION:
            values += (
                value.__code__, value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__,
                value.__globals__,
            )  # fmt: skip
        elif operation == CONTENTS:
            try:
                values.append(value.cell_contents)
            except ValueError:  # not assigned
                values.append(ABSENT)
        elif operation == FALSE:
            if value:
                return NO
        elif operation == APART:
            apart.append(value)
        elif operation == MADE_PLACE:
            places.append(expected(value))
        else:
            read = expected(value)
            if len(read) != count:
                return NO
            values.extend(read)
    noted = [*map(id, arrays), *map(id, objects), *map(id, apart)]
    if len(set(noted)) != len(noted):
        return NO
    return READY if is_ready else WAITING


def _state_of(value: Any) -> Any:
    try:
        return object.__getattribute__(value, _STATE_NAME)
    except AttributeError:
        return None


class Guards:
    """The steps of a walk, as they are taken at each call."""

    __slots__ = ("entries", "is_closed", "steps", "symbolic", "take")

    def __init__(self, steps: Sequence[Step], given: int, symbolic: int, is_closed: bool) -> None:
        self.steps = tuple(compact(steps, given))
        self.take: Callable[..., int] = MAKERS.guards(self.steps, Buffer, _take_by_python)
        self.symbolic = symbolic
        """How many arrays, the first ones, have symbols for sizes."""
        self.is_closed = is_closed
        """Whether the walk went over the arguments alone."""
        self.entries: dict[tuple[Any, ...], Any] = {}
        """What the caller keeps for calls that these hold for, by `layout`."""

    def layout(self, kinds: list[Any], strides: Sequence[Any]) -> tuple[Any, ...]:
        """What tells calls apart that these hold for: kinds of the arrays, or what is fixed of them, and strides."""
        if not self.symbolic:
            return (*kinds, *strides)
        known: dict[Any, Any] = {}
        first = []
        for kind in kinds[: self.symbolic]:
            found = known.get(kind)
            if found is None:
                found = known[kind] = (kind.dtype, *[n if n < 2 else -1 for n in kind.shape])
            first.append(found)
        return (*first, *kinds[self.symbolic :], *strides)

    def is_like(self, other: Guards) -> bool:
        """Whether the steps are the same ones."""
        return (
            len(self.steps) == len(other.steps)
            and (self.symbolic, self.is_closed) == (other.symbolic, other.is_closed)
            and all(x[:3] == y[:3] and _same_expected(x[3], y[3]) for x, y in zip(self.steps, other.steps, strict=True))
        )


def _same_expected(x: Any, y: Any) -> bool:
    if type(x) is tuple and type(y) is tuple:
        return len(x) == len(y) and all(map(_same_expected, x, y))
    return is_same_place(x, y) or _equal(x, y)
