"""What a function is bound to that sees nothing but its arguments and things that never change."""

from __future__ import annotations

import builtins
import operator
import struct
import types
from collections.abc import Callable
from typing import Any

from weft.runtime.guard_table import ABSENT
from weft.transforms.capture import PLAIN, Walk, is_made_by_user
from weft.transforms.code import names_of
from weft.transforms.foreign import all_changes, builtin_changes, changes, is_ours, is_users


class Bindings:
    """What a function that sees nothing but its arguments and things that never change (modules, functions of ours,
    builtins, numbers and texts, functions of the same kind) is bound to. That is compared with at each call."""

    __slots__ = ("_alone", "_objects", "absent", "cells", "functions", "scopes", "values")

    def __init__(self, found: _Found) -> None:
        self.functions = tuple((fun, fun.__code__, fun.__defaults__, fun.__kwdefaults__) for fun in found.functions)
        self.cells = tuple(found.cells)
        self.absent, self._objects, values = [], [], []
        scopes: dict[int, tuple[dict[str, Any], list[str]]] = {}
        for (place, name), (scope, value) in found.names.items():
            if value is ABSENT:
                self.absent.append((scope, name))
            elif _is_plain(value):
                values.append((scope, name, value))  # 1, 1.0 and True are equal
            else:
                self._objects.append((scope, name, value))
                scopes.setdefault(place, (scope, []))[1].append(name)
        self.values = tuple(values)
        # A getter of several names gives a tuple. Tuples of the same objects are equal without asking those.
        getters = [(scope, operator.itemgetter(*names, names[0])) for scope, names in scopes.values()]
        self.scopes = tuple((scope, get, get(scope)) for scope, get in getters)
        self._alone = not (self.scopes or self.values or self.cells or self.absent)

    def parts(self) -> tuple[Any, ...]:
        """The same for machine code (weft/runtime/running_code.py): how many functions, names, cells and absent names
        there are, as bytes, and these. It finds out whether all are the same objects, and leaves the rest to `hold`."""
        named = (*self._objects, *self.values)
        counts = struct.pack("4q", len(self.functions), len(named), len(self.cells), len(self.absent))
        return (counts, *[x for each in (*self.functions, *named, *self.cells, *self.absent) for x in each])

    def hold(self) -> bool:
        """Whether they are what they were."""
        for fun, code, defaults, kwdefaults in self.functions:
            if fun.__code__ is not code or fun.__defaults__ is not defaults or fun.__kwdefaults__ is not kwdefaults:
                return False
            if fun.__dict__:
                return False
        if self._alone:
            return True
        try:
            for scope, get, objects in self.scopes:
                if get(scope) != objects:
                    return False
            for scope, name, value in self.values:
                if scope[name] is not value:
                    return False
            for cell, value in self.cells:
                if cell.cell_contents is not value:
                    return False
        except Exception:  # a name is gone, or a value cannot be compared with what it was
            return False
        return not self.absent or not any(name in scope for scope, name in self.absent)


class _Found:
    """What `_is_closed` has come across: functions, what names in scopes are bound to, variables of enclosing
    functions."""

    def __init__(self) -> None:
        self.functions: list[types.FunctionType] = []
        self.names: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self.cells: list[tuple[types.CellType, Any]] = []

    def read(self, scope: dict[str, Any], name: str) -> Any:
        value = scope.get(name, ABSENT)
        self.names[id(scope), name] = (scope, value)
        return value


def closed_bindings(fun: Callable[..., Any]) -> Bindings | None:
    """The bindings of such a function; None if it sees more."""
    found = _Found()
    return Bindings(found) if _is_closed(fun, found) else None


def _is_closed(fun: Any, found: _Found) -> bool:
    """Whether a function sees nothing else, and neither do the functions in Python that it calls; what they are bound
    to is added."""
    if not isinstance(fun, types.FunctionType):
        return False
    if any(fun is known for known in found.functions):
        return True
    found.functions.append(fun)
    if fun.__dict__ or _holds_state(fun):
        return False
    names = names_of(fun.__code__)
    if names.stores or names.imports or names.written or names.asks_type:
        return False
    return all(_is_closed_cell(cell, found) for cell in fun.__closure__ or ()) and all(
        _is_closed_name(fun.__globals__, name, attributes, found) for name, attributes in names.loads
    )


def _is_closed_cell(cell: types.CellType, found: _Found) -> bool:
    """Whether a variable of an enclosing function is such a function, or a number or text."""
    try:
        value = cell.cell_contents
    except ValueError:  # not assigned yet
        return False
    found.cells.append((cell, value))
    return _is_plain(value) or (_is_users_function(value) and _is_closed(value, found))


def _is_closed_name(scope: dict[str, Any], name: str, attributes: tuple[str, ...], found: _Found) -> bool:
    """Whether a global is, or what is read from the module that it is."""
    value = found.read(scope, name)
    if value is ABSENT:
        return found.read(vars(builtins), name) is not ABSENT and not builtin_changes(name)
    rest = list(attributes)
    while rest and isinstance(value, types.ModuleType):
        if changes(value.__name__, rest[0]) or not (_never_changes(value) or is_users(value)):
            return False
        value = found.read(vars(value), rest.pop(0))
    if _is_layer(value) or (_is_users_function(value) and not rest):
        return _is_closed(value, found)
    return _is_plain(value) or _never_changes(value)


def _is_plain(value: Any) -> bool:
    """Whether it is a number or a text, or a tuple of some: if it is the same object, it has the same value."""
    cls = value.__class__
    return cls in PLAIN or cls is int or cls is float or (cls is tuple and all(map(_is_plain, value)))


def _is_users_function(value: Any) -> bool:
    return value.__class__ is types.FunctionType and is_made_by_user(value)


def _is_layer(value: Any) -> bool:
    """Whether it is a function of weft.nn, which is written in terms of weft.core."""
    return (
        isinstance(value, types.FunctionType)
        and value.__module__.startswith("weft.nn.")
        and is_ours(value.__code__.co_filename)
    )


def _holds_state(fun: types.FunctionType) -> bool:
    walk = Walk()
    for part in (fun.__defaults__, fun.__kwdefaults__):
        if part is not None:
            walk.visit(tuple(part.values()) if isinstance(part, dict) else part)
    return bool(walk.opaque or walk.arrays or walk.containers or len(walk.objects) > 2)


def _never_changes(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return not is_users(value) and not all_changes(value.__name__) and value.__name__ != "weft.core.random"
    if isinstance(value, types.FunctionType) and not is_ours(value.__code__.co_filename):
        return False  # whatever module it says that it is from
    module = getattr(value, "__module__", None) or type(value).__module__
    if changes(module, getattr(value, "__name__", "")):
        return False
    if module == "math":
        return isinstance(value, types.BuiltinFunctionType)
    return module.startswith("weft.core") and not module.startswith("weft.core.random")
