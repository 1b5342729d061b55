"""What a call of a function can see: its arguments, and the state it captures through closures, globals, defaults,
bound objects, containers and modules.

A `Walk` goes over all of it in a fixed order. It yields a key (two calls with equal keys may run the same trace), the
arrays (inputs of the trace, read anew at each call), the numbers (run-time scalars) and the containers (whose changes a
trace records and a call replays). Other Python values are part of the key; what cannot be told apart reliably makes the
walk `opaque`, and the function then runs plain.
"""

from __future__ import annotations

import abc
import builtins
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from weft.array import array
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.graph.scalars import SCALARS
from weft.transforms.code import names_of
from weft.transforms.foreign import (
    all_changes,
    builtin_changes,
    changes,
    is_installed,
    is_numpy,
    is_ours,
    is_users,
    is_users_class,
    is_written_in_python,
    own_attribute,
)
from weft.transforms.state import Appended, ClassFields, Fields, Globals, is_class_field, items_of

MOST = 20_000
"""Objects that one walk looks at before it gives up."""
MOST_BYTES = 1 << 16
"""Bytes of a NumPy array that are compared at each call; a larger one makes the function run plain."""

_PLAIN = frozenset({type(None), bool, str, bytes, type(Ellipsis), Dtype, type(NotImplemented)})
_USUAL = _PLAIN | {
    types.FunctionType, types.GetSetDescriptorType, types.MemberDescriptorType, property, staticmethod, classmethod,
    dict, tuple,
}  # fmt: skip
"""What stands in classes beside data, and is no class of the user's."""
_CODE = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    np.ufunc,
    np.dtype,
)
_BY_IDENTITY = ("weft.core", "weft.primitives", "weft.transforms", "weft.graph", "weft.dtypes", "weft.array")
_Cached = type(functools.cache(lambda: None))
_MARKS = (
    operator.attrgetter,
    operator.itemgetter,
    operator.methodcaller,
)
"""Classes whose objects say something and hold nothing that changes; fields and defaults of dataclasses are like
them."""
_VALUES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, int.__pos__),
    (float, float.__repr__),
    (complex, complex.__repr__),
    (str, str.__str__),
    (bytes, bytes.__repr__),
)
"""Types whose subclasses have a value beside their attributes, and how to read it whatever the subclass says."""
_LIVE = {int: ("number", int), float: ("number", float)}

_MADE_AROUND = (
    types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial, type, dict, list, tuple, set,
    array, int, float, str, np.ndarray,
)  # fmt: skip
"""What a function of an installed package may hold of the user's."""

_ABSENT, _MISSING = object(), object()
_SETTLED: dict[tuple[types.ModuleType, tuple[str, ...]], Any] = {}
"""What attributes of modules that are not the user's are; it takes a program that replaces them to change that."""
_IDENTIFIED = (types.FunctionType, types.BuiltinFunctionType, np.ufunc)
"""What is equal to nothing but itself."""

Slot = tuple[Any, Any]
"""Where a number stands: the id of what holds it (the slot of a tuple, which is another one each time), and the name or
index there."""


class Same:
    """An object in a key, equal to nothing but itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return other.__class__ is Same and other.value is self.value  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return id(self.value)


class Walk:
    """One pass over everything that a call can see. Call `visit` for each root, then read the results."""

    __slots__ = (
        "arrays", "asks_type", "containers", "key", "live", "nodes", "numbers", "numpy", "objects", "opaque", "places",
        "random", "reaches_random", "repeats", "scalars", "seen", "shapeless", "tuples", "varying",
    )  # fmt: skip

    def __init__(self, shapeless: bool = False, varying: frozenset[Slot] = frozenset(), record: bool = False) -> None:
        self.shapeless = shapeless
        """Whether sizes of arrays are left out of the key (but for 0 and 1, which are never symbols)."""
        self.live = False
        """Whether numbers are run-time scalars: those in arguments are, captured ones if they are `varying`."""
        self.varying = varying
        self.key: list[Any] = []
        self.arrays: list[array] = []
        self.nodes: list[Node] = []
        """What each of these arrays was, when the walk came to it: other threads may overwrite them."""
        self.scalars: list[int | float] = []
        self.places: list[tuple[Any, Any]] = []
        """Of each scalar: what holds it, and where."""
        self.containers: list[Any] = []
        self.objects: list[Any] = []
        self.tuples: dict[int, tuple[Any, Any, Any]] = {}
        """Tuples by id, each with what holds it, and where: to replace a number in a tuple is to replace the tuple."""
        self.repeats: list[tuple[Any, Any, Any]] = []
        """Other places of tuples that have been seen already."""
        self.seen: dict[int, int] = {}
        """By id: the number of an array, or ~ the number of an object."""
        self.numbers: dict[Slot, int | float] | None = {} if record else None
        """Captured numbers that are part of the key."""
        self.random: list[Any] = []
        """What the global random state held before the walk."""
        self.reaches_random = False
        """Whether the function itself can reach the list of the global random state, and not only draw from it."""
        self.asks_type = False
        self.numpy = False
        """Whether the function may compute with NumPy, which raises, warns or does neither as `np.seterr` says."""
        self.opaque: str | None = None

    def visit(self, value: Any, holder: Any = None, name: Any = None) -> None:
        """Add one value to the key, and what it holds. `holder` has it under `name`, and it could be replaced there."""
        cls = value.__class__
        key = self.key
        if cls is array:
            node: Node = value._node
            place = self.seen.get(id(value))
            if place is None:
                self.seen[id(value)] = len(self.arrays)
                self.arrays.append(value)
                self.nodes.append(node)
                key.append(array)
            else:
                key.append(place)
            kind = node.kind
            key.append((kind.dtype, tuple(n if n < 2 else -1 for n in kind.shape)) if self.shapeless else kind)
        elif cls is float or cls is int:
            self._visit_number(value, cls, holder, name)
        elif cls in _PLAIN:
            key.append(cls)
            key.append(value)
        else:
            self._visit_object(value, cls, holder, name)

    def _visit_number(self, value: Any, cls: type, holder: Any, name: Any) -> None:
        if type(value) in SCALARS and not value.env.is_open():  # of a function that another thread is tracing
            value = value.hint
        if holder is not None and (self.live or (self.varying and self._slot(holder, name) in self.varying)):
            self.key.append(_LIVE[cls])
            self.scalars.append(value)
            self.places.append((holder, name))
            return
        self.key.append(cls)
        self.key.append(number_key(value))
        if self.numbers is not None and holder is not None:
            self.numbers[self._slot(holder, name)] = value

    def _slot(self, holder: Any, name: Any) -> Slot:
        if isinstance(holder, tuple):
            _, outer, place = self.tuples[id(holder)]
            return self._slot(outer, place), name
        return id(holder), name

    def end(self) -> None:
        """Add what all of it depends on, when everything has been visited."""
        if self.numpy:
            self.key.append((*np.geterr().values(), Same(np.geterrcall())))

    def by_value(self, value: Any) -> None:
        """Visit what may not be replaced: keys of dicts, bounds of slices."""
        live, self.live = self.live, False
        self.visit(value)
        self.live = live

    def _visit_object(self, value: Any, cls: type, holder: Any, name: Any) -> None:
        key = self.key
        place = self.seen.get(id(value))
        if place is not None:
            key.append(("again", place))
            if isinstance(value, tuple):
                self.repeats.append((value, holder, name))
            return
        if len(self.objects) > MOST:
            self.opaque = f"more than {MOST} objects"
            return
        self.seen[id(value)] = ~len(self.objects)
        self.objects.append(value)
        if isinstance(value, tuple):
            self._visit_tuple(value, cls, holder, name)
        elif cls is list or cls is dict or cls is set:
            self._visit_container(value, cls)
        elif cls is complex:
            key.append((cls, repr(value)))  # tells 0.0 from -0.0, and nan is equal to nan
        elif cls is slice or cls is range:
            key.append(cls)
            for part in (value.start, value.stop, value.step):
                self.by_value(part)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.ModuleType):
            self._visit_whole_module(value)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._visit_builtin(value)
        elif isinstance(value, type):
            self._visit_class(value)
        elif isinstance(value, np.ufunc):
            self.numpy = True
            key.append(value)
        elif (
            isinstance(value, _CODE)
            or cls in _MARKS
            or cls.__module__ == "dataclasses"
            or (isinstance(value, enum.Enum) and not is_users_class(cls))
        ):
            key.append(value)
        elif cls.__module__ == "typing" or cls in (types.GenericAlias, types.UnionType):
            self._visit_type_hint(value, cls)
        else:
            self._visit_wrapper(value, cls)

    def _visit_tuple(self, value: tuple[Any, ...], cls: type, holder: Any, name: Any) -> None:
        self.key.append((cls, len(value)))
        if cls is not tuple and is_users_class(cls):
            self.visit(cls)
            self._visit_attributes(value)
        if holder is not None:
            self.tuples[id(value)] = (value, holder, name)
        for i, item in enumerate(tuple.__iter__(value)):
            self.visit(item, value if holder is not None else None, i)

    def _visit_container(self, value: Any, cls: type) -> None:
        self.containers.append(value)
        self.key.append((cls, len(value)))
        if isinstance(value, dict):
            for name, item in list(items_of(value)):  # at once: another thread may change it
                if name.__class__ is str:
                    self.key.append(name)
                else:
                    self.by_value(name)
                self.visit(item, value, name)
        elif isinstance(value, list):
            for i, item in enumerate(list(list.__iter__(value))):
                self.visit(item, value, i)
        else:
            self._visit_set(value)

    def _visit_set(self, value: Iterable[Any]) -> None:
        """The items of a set, in the order in which a loop over it gets them: equal sets may differ in that."""
        for item in list(value):
            if item.__class__ is array:
                self.opaque = "a set of arrays"
                return
            self.by_value(item)

    # ---- code ----

    def _visit_function(self, function: types.FunctionType) -> None:
        code = function.__code__
        names = names_of(code)
        self.key.append(names)
        ours = is_ours(code.co_filename)
        if ours and _is_public(function):
            self.key.append(function)
            return
        if not ours and is_installed(code.co_filename):
            self._visit_installed(function)
            return
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if variable in names.written:
                self.containers.append(cell)
            try:
                self._visit_variable(cell.cell_contents, cell, variable, None, names.tails)
            except ValueError:  # not assigned yet
                self.key.append(None)
        for i, part in enumerate((function.__defaults__, function.__kwdefaults__, function.__dict__)):
            if part:
                self.key.append(i)
                self.visit(part)
        if ours:
            return
        self.asks_type |= names.asks_type
        if names.stores:
            self.containers.append(Globals(function.__globals__, names.stores))
        for module in imported(names.imports, function.__globals__):
            self.visit(module)
        self._visit_globals(function.__globals__, names.loads, names.tails)

    def _visit_installed(self, function: types.FunctionType) -> None:
        """A function of Python's or of an installed package: it may have been made around the user's functions and
        values (`contextmanager`, `wraps`, `singledispatch`); what else it holds is its own."""
        self.numpy |= is_numpy(function.__module__)
        if changes(function.__module__, function.__qualname__.partition(".")[0]):
            self.opaque = _says_else(f"{function.__module__}.{function.__qualname__}")
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if isinstance(value, _MADE_AROUND) or is_users_class(type(value)):
                self.visit(value)

    def _visit_globals(
        self, scope: dict[str, Any], loads: Iterable[tuple[str, tuple[str, ...]]], tails: Mapping[str, int]
    ) -> None:
        done = set()
        for name, attributes in loads:
            value = scope.get(name, _ABSENT)
            if name in done:
                continue
            if value is _ABSENT:
                if builtin_changes(name):
                    self.opaque = f"the builtin {name}, which sees what cannot be followed"
                self._visit_foreign(builtins, (name,))
                continue
            self.key.append(name)
            if value.__class__ is types.ModuleType:
                self._visit_module(value, attributes)
            else:
                done.add(name)
                self._visit_variable(value, scope, name, name, tails)

    def _visit_variable(self, value: Any, holder: Any, variable: str, name: Any, tails: Mapping[str, int]) -> None:
        """A global, or a variable of an enclosing function. Of a list that may grow only the end need be looked at."""
        if variable in tails and value.__class__ is list and id(value) not in self.seen:
            self.containers.append(Appended(value))
            length = min(tails[variable], len(value))
            self.key.append(("the end of a list", length))
            for item in value[len(value) - length :]:
                self.visit(item)
        else:
            self.visit(value, holder, name)

    def _visit_module(self, module: types.ModuleType, attributes: tuple[str, ...]) -> None:
        """What a function reads from a module; all of it if that cannot be told."""
        if not attributes:
            self.visit(module)
            return
        scope, first = vars(module), attributes[0]
        inner = scope.get(first)
        if isinstance(inner, types.ModuleType):
            self._visit_module(inner, attributes[1:])
        elif changes(module.__name__, first):
            self.key.append(module)
            self.opaque = _says_else(f"{module.__name__}.{first}")
        elif module.__name__ == "weft.core.random" and first == "state":
            self.visit(inner)
        elif not is_users(module):
            self.key.append(module)
            self._visit_foreign(module, attributes)
        elif first in scope:
            self.key.append(first)
            self.visit(inner, scope, first)
        elif "__getattr__" in scope:
            self.visit(scope["__getattr__"])

    def _visit_foreign(self, module: types.ModuleType, attributes: tuple[str, ...]) -> None:
        """An attribute of a module that is not the user's: what it always is adds nothing to the key."""
        self.numpy |= is_numpy(module.__name__)
        inner = vars(module).get(attributes[0], _ABSENT)
        if _SETTLED.get((module, attributes), _MISSING) is inner:
            return
        cls = type(inner)
        if cls is array or _is_made_by_user(inner):
            self.visit(inner, vars(module), attributes[0])
        elif changes(cls.__module__, cls.__name__) or changes(getattr(inner, "__module__", None), _name_of(inner)):
            self.opaque = _says_else(f"{module.__name__}.{attributes[0]}")
        elif _SETTLED.setdefault((module, attributes), inner) is not inner:
            self.key.append(inner if isinstance(inner, _IDENTIFIED) else Same(inner))

    def _visit_whole_module(self, module: types.ModuleType) -> None:
        self.key.append(module)
        self.numpy |= is_numpy(module.__name__)
        if module.__name__.startswith("weft."):  # any of its functions may have been replaced
            functions = [v for v in vars(module).values() if isinstance(v, types.FunctionType)]
            self.key.append(tuple(functions))
            for function in functions:
                if _is_made_by_user(function):
                    self.visit(function)
        if all_changes(module.__name__):
            self.opaque = _says_else(f"the module {module.__name__}")
        if not is_users(module):
            return
        for name, value in list(vars(module).items()):
            if not name.startswith("__") and not (isinstance(value, types.ModuleType) and not is_users(value)):
                self.key.append(name)
                self.visit(value, vars(module), name)

    def _visit_builtin(self, value: Any) -> None:
        """A function of Python's, or a method of a list, a dict or the like, which sees what that holds."""
        owner = value.__self__
        if (getattr(value, "__module__", None) or "").partition(".")[0] == "weft":  # has no state of the user's
            self.key.append(value)
            return
        if isinstance(owner, (types.ModuleType, type, type(None))):
            self.key.append(value)
            module, name = (owner.__module__, owner.__name__) if isinstance(owner, type) else (None, value.__name__)
            if changes(module or getattr(owner, "__name__", None), name):
                self.opaque = _says_else(value.__qualname__)
            return
        self.key.append(value.__name__)
        if owner.__class__ is list and value.__name__ == "append" and id(owner) not in self.seen:
            self.containers.append(Appended(owner))
        else:
            self.visit(owner)

    def _visit_class(self, cls: type) -> None:
        """A class of the user's: its attributes, the classes inside it, the code of its methods, its metaclass."""
        self.key.append(cls)
        self.numpy |= is_numpy(cls.__module__)
        if changes(cls.__module__, cls.__qualname__):
            self.opaque = _says_else(f"{cls.__module__}.{cls.__qualname__}")
        if is_users_class(type(cls)):
            self.visit(type(cls))
        if isinstance(cls, abc.ABCMeta):
            self.key.append(abc.get_cache_token())  # another one whenever a subclass is registered somewhere
        for base in cls.__mro__:
            if not is_users_class(base):
                continue
            self.containers.append(ClassFields(base))
            for name, value in list(vars(base).items()):
                for function in _functions_of(value):
                    self.visit(function)
                if is_class_field(name, value):
                    self.key.append(name)
                    self.visit(value, base, name)
                elif value.__class__ not in _USUAL and is_users_class(
                    value if isinstance(value, type) else type(value)
                ):
                    self.key.append(name)
                    self.visit(value)

    def _visit_class_fields(self, cls: type) -> None:
        """The attributes that objects of an installed package share. Its code stays as it is, as that of its functions
        does."""
        for base in cls.__mro__:
            if is_written_in_python(base) and not is_users_class(base):
                self.containers.append(ClassFields(base))
                for name, value in ClassFields(base).read().items():
                    self.key.append(name)
                    self.visit(value, base, name)

    def _visit_type_hint(self, value: Any, cls: type) -> None:
        """`Optional`, a type variable (annotations of variables capture it), or `Box[int]`, which can be called."""
        arguments = getattr(value, "__args__", None)
        self.key.append(value if arguments is None else cls)
        if arguments is not None:
            for part in (getattr(value, "__origin__", None), arguments, getattr(value, "__metadata__", None)):
                self.by_value(part)

    # ---- objects ----

    def _visit_wrapper(self, value: Any, cls: type) -> None:
        """What stands for a function or holds another value: bound methods, partials, compiled functions, numbers and
        arrays of NumPy."""
        key = self.key
        if isinstance(value, types.MethodType):
            key.append(types.MethodType)
            self.visit(value.__func__)
            self.visit(value.__self__)
        elif isinstance(value, functools.partial):
            key.append(functools.partial)
            for part in (value.func, value.args, value.keywords):
                self.by_value(part)
        elif cls is np.ndarray and value.nbytes <= MOST_BYTES and value.dtype.kind not in "OV":
            key.append((cls, value.dtype.str, value.shape, value.flags.c_contiguous, value.tobytes()))
            self.containers.append(value)
            self.numpy = True
        elif isinstance(value, np.generic) and value.dtype.kind not in "OV":
            key.append((cls, value.tobytes()))
            self.numpy = True
        elif cls is frozenset:
            key.append((cls, len(value)))
            self._visit_set(value)
        elif _is_ours(cls) and hasattr(value, "__wrapped_function__"):
            key.append(cls)
            self.visit(value.__wrapped_function__)
        else:
            self._visit_instance(value, cls)

    def _visit_instance(self, value: Any, cls: type) -> None:
        if isinstance(value, array):
            self.opaque = f"a subclass of array ({cls.__name__})"
            return
        holds = isinstance(value, (dict, list, set))
        if cls.__module__.startswith(_BY_IDENTITY) and not holds:
            self.key.append(value)
            return
        if not _is_ours(cls) and not holds and not is_users_class(cls) and not _is_namespace(cls):
            if not is_written_in_python(cls):
                self.opaque = f"an object of type {cls.__module__}.{cls.__qualname__}"
                return
            self._visit_class_fields(cls)
        self.visit(cls)
        if holds:
            self._visit_container(value, cls)
        elif isinstance(value, frozenset):
            self._visit_set(frozenset.__iter__(value))
        else:
            self.key.extend([read(value) for base, read in _VALUES if isinstance(value, base)])
        self._visit_attributes(value)

    def _visit_attributes(self, value: Any) -> None:
        state = own_attribute(value, "__dict__")
        fields = Fields(value)
        if fields.names:
            self._visit_fields(fields)
        if state is not None:
            self.containers.append(state)
            self.key.append(len(state))
            for name, item in list(state.items()):
                self.key.append(name)
                self.visit(item, state, name)

    def _visit_fields(self, fields: Fields) -> None:
        """Attributes in __slots__."""
        self.containers.append(fields)
        owner = None if isinstance(fields.owner, (dict, list, tuple)) else fields.owner
        for name, item in fields.read().items():
            self.key.append(name)
            self.visit(item, owner, name)


def number_key(value: int | float) -> Any:
    """A number in a key: tells 0.0 from -0.0, and nan is equal to nan."""
    if value.__class__ is float and (not value or value != value):
        return repr(value)
    return value


def _functions_of(value: Any) -> list[Any]:
    """The functions behind an attribute of a class: a method, a property, a compiled or otherwise wrapped function."""
    if isinstance(value, types.FunctionType):
        return [value]
    if not hasattr(type(value), "__get__") or is_users_class(type(value)):
        return []
    if isinstance(value, _Cached):
        return [value]  # which is itself what cannot be followed
    names = ("__func__", "fget", "fset", "fdel", "func", "args", "keywords", "dispatcher",
             "__wrapped_function__", "__wrapped__")  # fmt: skip
    found = [getattr(value, name, None) for name in names]
    return [part for part in found if part is not None and not isinstance(part, _CODE)]


def _is_made_by_user(value: Any) -> bool:
    """Whether what a module holds is the user's: a function, a class, an object of such a class, or what is made around
    one of them."""
    if isinstance(value, types.FunctionType):
        return not is_ours(value.__code__.co_filename) and not is_installed(value.__code__.co_filename)
    if isinstance(value, type):
        return is_users_class(value)
    if isinstance(value, types.MethodType):
        return _is_made_by_user(value.__func__) or is_users_class(type(value.__self__))
    if isinstance(value, functools.partial):
        return _is_made_by_user(value.func)
    return is_users_class(type(value)) or (_is_ours(type(value)) and hasattr(value, "__wrapped_function__"))


def _name_of(value: Any) -> str:
    return (getattr(value, "__qualname__", None) or "").partition(".")[0]


def _is_namespace(cls: type) -> bool:
    return cls is types.SimpleNamespace or (cls.__module__ == "argparse" and cls.__qualname__ == "Namespace")


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "weft"


def _says_else(what: str) -> str:
    return f"{what}, which gives something else at each call"


def imported(names: Iterable[tuple[str, int]], scope: dict[str, Any]) -> list[types.ModuleType]:
    """The modules that `import` statements give, those that exist by now: `import a.b` gives a, and b in it."""
    found = []
    for name, level in names:
        package = (scope.get("__package__") or "").split(".") if level else []
        parts = [*package[: len(package) - level + 1], *(name.split(".") if name else ())]
        for end in range(1, len(parts) + 1):
            module = sys.modules.get(".".join(parts[:end]))
            if module is not None and (end == len(parts) or not level):
                found.append(module)
    return found


class Bindings:
    """What a function that sees nothing but its arguments and things that never change (modules, functions of ours,
    builtins, numbers and texts, functions of the same kind) is bound to. That is compared with at each call."""

    __slots__ = ("absent", "cells", "functions", "scopes", "values")

    def __init__(self, found: _Found) -> None:
        self.functions = tuple((fun, fun.__code__, fun.__defaults__, fun.__kwdefaults__) for fun in found.functions)
        self.cells = tuple(found.cells)
        self.absent, values = [], []
        scopes: dict[int, tuple[dict[str, Any], list[str]]] = {}
        for (place, name), (scope, value) in found.names.items():
            if value is _ABSENT:
                self.absent.append((scope, name))
            elif _is_plain(value):
                values.append((scope, name, value))  # 1, 1.0 and True are equal
            else:
                scopes.setdefault(place, (scope, []))[1].append(name)
        self.values = tuple(values)
        # A getter of several names gives a tuple. Tuples of the same objects are equal without asking those.
        getters = [(scope, operator.itemgetter(*names, names[0])) for scope, names in scopes.values()]
        self.scopes = tuple((scope, get, get(scope)) for scope, get in getters)

    def hold(self) -> bool:
        """Whether they are what they were."""
        for fun, code, defaults, kwdefaults in self.functions:
            if fun.__code__ is not code or fun.__defaults__ is not defaults or fun.__kwdefaults__ is not kwdefaults:
                return False
            if fun.__dict__:
                return False
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
        value = scope.get(name, _ABSENT)
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
    if value is _ABSENT:
        return found.read(vars(builtins), name) is not _ABSENT and not builtin_changes(name)
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
    return cls in _PLAIN or cls is int or cls is float or (cls is tuple and all(map(_is_plain, value)))


def _is_users_function(value: Any) -> bool:
    return value.__class__ is types.FunctionType and _is_made_by_user(value)


def _is_layer(value: Any) -> bool:
    """Whether it is a function of weft.nn, which is written in terms of weft.core."""
    return (
        isinstance(value, types.FunctionType)
        and value.__module__.startswith("weft.nn.")
        and is_ours(value.__code__.co_filename)
    )


def _is_public(function: types.FunctionType) -> bool:
    """Whether a module has a function under its own name: it was not made around anything of the user's, and what it
    remembers for itself is no state of his."""
    module = sys.modules.get(function.__module__)
    return module is not None and vars(module).get(function.__name__) is function


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
