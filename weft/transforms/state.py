"""Places that hold values: lists, dicts, sets, attributes, variables of enclosing functions, globals.

A trace may change what they hold. Here that is read, compared, undone after the trace, and done again by later calls.
"""

from __future__ import annotations

import operator
import types
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

Contents = Any
"""What a place holds: a dict of its items by their names where they have names, a list of them (of a set too, in its
order), the bytes of a NumPy array."""


class Fields:
    """The attributes of an object that are in `__slots__`."""

    __slots__ = ("names", "owner")

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.names = slots_of(type(owner))

    def read(self) -> dict[str, Any]:
        found = {}
        for name in self.names:
            try:
                found[name] = object.__getattribute__(self.owner, name)
            except AttributeError:  # not assigned: a `__getattr__` of the user's is not asked
                continue
        return found

    def write(self, contents: dict[str, Any]) -> None:
        now = self.read()
        for name in self.names:
            if name in contents:
                object.__setattr__(self.owner, name, contents[name])
            elif name in now:
                object.__delattr__(self.owner, name)


_SLOTS: dict[type, tuple[str, ...]] = {}
"""The slots of classes, which they have for good."""
_MOST_SLOTS = 512


def slots_of(cls: type) -> tuple[str, ...]:
    """The attributes of its objects that are in `__slots__`, of the class or of its bases."""
    found = _SLOTS.get(cls)
    if found is None:
        if len(_SLOTS) >= _MOST_SLOTS:
            _SLOTS.clear()
        found = _SLOTS[cls] = tuple(
            name
            for base in cls.__mro__
            for name, value in vars(base).items()
            if isinstance(value, types.MemberDescriptorType) and not name.startswith("__")
        )
    return found


class ClassFields:
    """The attributes of a class that are data."""

    __slots__ = ("owner",)

    def __init__(self, owner: type) -> None:
        self.owner = owner

    def read(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self.owner).items() if is_class_field(name, value)}

    def write(self, contents: dict[str, Any]) -> None:
        now = self.read()
        for name, value in contents.items():
            if name not in now or now[name] is not value:
                setattr(self.owner, name, value)
        for name in now:
            if name not in contents:
                delattr(self.owner, name)


def is_class_field(name: str, value: Any) -> bool:
    """Whether an attribute of a class is data: no method, no property, nothing of Python's own."""
    return (
        not name.startswith("__")
        and name != "_abc_impl"  # what Python keeps of abstract classes: who was registered as a subclass
        and not hasattr(type(value), "__get__")
        and not isinstance(value, type)
    )


class Globals:
    """Some names of a module, which a function sets."""

    __slots__ = ("names", "scope")

    def __init__(self, scope: dict[str, Any], names: Sequence[str]) -> None:
        self.scope, self.names = scope, names

    def read(self) -> dict[str, Any]:
        return {name: self.scope[name] for name in self.names if name in self.scope}

    def write(self, contents: dict[str, Any]) -> None:
        for name in self.names:
            if name in contents:
                self.scope[name] = contents[name]
            else:
                self.scope.pop(name, None)


class Appended:
    """A list that a function changes in no other way than to append to it: what it holds already stays."""

    __slots__ = ("length", "target")

    def __init__(self, target: list[Any]) -> None:
        self.target, self.length = target, len(target)

    def read(self) -> list[Any]:
        """What was appended since."""
        return self.target[self.length :]

    def write(self, contents: list[Any]) -> None:
        self.target[self.length :] = contents


_ADAPTERS = (Fields, ClassFields, Globals, Appended)


def items_of(container: dict[Any, Any]) -> Iterable[tuple[Any, Any]]:
    """The items of a dict, whatever its class makes of `items`."""
    return OrderedDict.items(container) if isinstance(container, OrderedDict) else dict.items(container)


def read(place: Any) -> Contents:
    """What a place holds now."""
    if isinstance(place, _ADAPTERS):
        return place.read()
    if isinstance(place, dict):
        return dict(items_of(place))
    if isinstance(place, types.CellType):
        try:
            return {None: place.cell_contents}
        except ValueError:  # not assigned yet
            return {}
    if isinstance(place, np.ndarray):
        return place.tobytes()
    return list(set.__iter__(place) if isinstance(place, set) else list.__iter__(place))


def write(place: Any, contents: Contents) -> None:
    """Make a place hold exactly `contents`, in their order."""
    if isinstance(place, _ADAPTERS):
        place.write(contents)
    elif isinstance(place, dict):
        _write_dict(place, contents, OrderedDict if isinstance(place, OrderedDict) else dict)
    elif isinstance(place, types.CellType):
        if contents:
            place.cell_contents = contents[None]
        else:
            del place.cell_contents
    elif isinstance(place, np.ndarray):
        place[...] = np.frombuffer(contents, place.dtype).reshape(place.shape)
    elif isinstance(place, set):
        set.clear(place)
        set.update(place, contents)
    else:
        list.__setitem__(place, slice(None), contents)


def _write_dict(place: dict[Any, Any], contents: dict[Any, Any], base: type[dict[Any, Any]]) -> None:
    """The usual change is in one step: no other thread finds the dict without what stays in it, and no signal's handler
    leaves it so."""
    gone = [name for name in base.keys(place) if name not in contents]
    for name in gone:
        base.__delitem__(place, name)
    base.update(place, contents)
    if not all(map(operator.is_, base.keys(place), contents)):  # another order, or other names that are equal
        base.clear(place)
        base.update(place, contents)


def set_item(place: Any, name: Any, value: Any) -> None:
    """Put one value into a dict, a list, a class, a slot of an object or a variable."""
    if isinstance(place, types.CellType):
        place.cell_contents = value
    elif isinstance(place, type):
        setattr(place, name, value)
    elif isinstance(place, dict):
        (OrderedDict if isinstance(place, OrderedDict) else dict).__setitem__(place, name, value)
    elif isinstance(place, list):
        list.__setitem__(place, name, value)
    else:
        object.__setattr__(place, name, value)


_ABSENT = object()


def get_item(place: Any, name: Any) -> Any:
    """One value of a place, or of a tuple; something else than any value if there is none of this name."""
    if isinstance(place, dict):
        return dict.get(place, name, _ABSENT)
    if isinstance(place, list):
        return list.__getitem__(place, name) if name < len(place) else _ABSENT
    if isinstance(place, tuple):
        return tuple.__getitem__(place, name) if name < len(place) else _ABSENT
    if isinstance(place, Globals):
        return place.scope.get(name, _ABSENT)
    return read(place).get(name, _ABSENT) if isinstance(place, (Fields, ClassFields, types.CellType)) else _ABSENT


def owner_of(place: Any) -> Any:
    """What holds the values of a place: two places may look at one object."""
    if isinstance(place, (Fields, ClassFields)):
        return place.owner
    return place.scope if isinstance(place, Globals) else place


def is_same_place(x: Any, y: Any) -> bool:
    """Whether two places are one, or look at one object in one way."""
    if x is y:
        return True
    if type(x) is not type(y) or not isinstance(x, _ADAPTERS):
        return False
    if isinstance(x, Appended):
        return x.target is y.target and x.length == y.length
    return owner_of(x) is owner_of(y) and getattr(x, "names", None) == getattr(y, "names", None)


def same(before: Contents, after: Contents) -> bool:
    """Whether a place holds what it held: the very same objects, in the same order."""
    if len(before) != len(after):
        return False
    if isinstance(before, dict):
        pairs: Iterator[tuple[Any, Any]] = zip(before.items(), after.items(), strict=True)
        return all(k is m and v is w for (k, v), (m, w) in pairs)
    if isinstance(before, list):
        return all(v is w for v, w in zip(before, after, strict=True))
    return bool(before == after)
