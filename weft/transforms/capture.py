"""What a call of a function can see: its arguments, and the state it captures through closures, globals, defaults,
bound objects, containers and modules.

A `Walk` goes over all of it in a fixed order. It yields a key (two calls with equal keys may run the same trace), the
arrays (inputs of the trace, read anew at each call), the numbers (run-time scalars) and the containers (whose changes a
trace records and a call replays). Other Python values are part of the key; what cannot be told apart reliably makes the
walk `opaque`, and the function then runs plain. What it reads is recorded (guards.py), so that later calls can find out
whether they see the same without deciding what there is to see. So whatever adds to the key here says to the recording
where it was read, and what decides the way, too: `at` is the register of the value at hand.
"""

from __future__ import annotations

import abc
import builtins
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.array import array
from weft.dtypes import Dtype
from weft.graph.node import Node
from weft.graph.scalars import SCALARS
from weft.runtime import guard_table as step
from weft.runtime.guard_table import ABSENT
from weft.transforms import guards
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
from weft.transforms.guards import NOWHERE, Recording
from weft.transforms.state import Appended, ClassFields, Fields, Globals, is_class_field, items_of

MOST = 20_000
"""Objects that one walk looks at before it gives up."""
MOST_BYTES = 1 << 16
"""Bytes of a NumPy array that are compared at each call; a larger one makes the function run plain."""

PLAIN = frozenset({type(None), bool, str, bytes, type(Ellipsis), Dtype, type(NotImplemented)})
_USUAL = PLAIN | {
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

_MISSING = object()
_MADE_OF_FUNCTIONS = (property, staticmethod, classmethod)
"""Descriptors whose functions stay the same."""
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
        "random", "reaches_random", "reads", "repeats", "scalars", "seen", "shapeless", "tuples", "varying",
    )  # fmt: skip

    def __init__(
        self,
        shapeless: bool = False,
        varying: frozenset[Slot] = frozenset(),
        record: bool = False,
        reads: Recording | None = None,
    ) -> None:
        self.reads = Recording() if reads is None else reads
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

    def visit(self, value: Any, holder: Any = None, name: Any = None, at: int = NOWHERE) -> None:
        """Add one value to the key, and what it holds. `holder` has it under `name`, and it could be replaced there;
        `at` is its register."""
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
                self.reads.first_visit(step.ARRAY, at)
            else:
                key.append(place)
                self.reads.next_visit(at, place)
            kind = node.kind
            key.append((kind.dtype, tuple(n if n < 2 else -1 for n in kind.shape)) if self.shapeless else kind)
        elif cls is float or cls is int:
            self._visit_number(value, cls, holder, name, at)
        elif cls in PLAIN:
            key.append(cls)
            key.append(value)
            self.reads.check(step.EQUAL, at, value)
        else:
            self._visit_object(value, cls, holder, name, at)

    def _visit_number(self, value: Any, cls: type, holder: Any, name: Any, at: int) -> None:
        if type(value) in SCALARS and not value.env.is_open():  # of a function that another thread is tracing
            value = value.hint
        if holder is not None and (self.live or (self.varying and self._slot(holder, name) in self.varying)):
            self.key.append(_LIVE[cls])
            self.scalars.append(value)
            self.places.append((holder, name))
            self.reads.check(step.NUMBER, at, cls)
            return
        self.key.append(cls)
        self.key.append(number_key(value))
        self.reads.check(step.EQUAL, at, value)
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
            (errors, handler) = _numpy_errors(None)
            self.key.append((*errors, Same(handler)))
            first = self.reads.read(step.READ, self.reads.constant(None), 2, _numpy_errors)
            self.reads.check(step.EQUAL, first, errors)
            self.reads.check(step.SAME, first + 1, handler)

    def by_value(self, value: Any, at: int = NOWHERE) -> None:
        """Visit what may not be replaced: keys of dicts, bounds of slices."""
        live, self.live = self.live, False
        self.visit(value, at=at)
        self.live = live

    def _all_by_value(self, parts: Iterable[Any], first: int) -> None:
        for i, part in enumerate(parts):
            self.by_value(part, first + i)

    def _visit_object(self, value: Any, cls: type, holder: Any, name: Any, at: int) -> None:
        key, reads = self.key, self.reads
        place = self.seen.get(id(value))
        if place is not None:
            key.append(("again", place))
            reads.next_visit(at, place)
            if isinstance(value, tuple):
                self.repeats.append((value, holder, name))
            return
        if len(self.objects) > MOST:
            self.opaque = f"more than {MOST} objects"
            return
        self.seen[id(value)] = ~len(self.objects)
        self.objects.append(value)
        reads.first_visit(step.OBJECT, at, cls)  # which is never what its class says if that is not what it is
        if isinstance(value, tuple):
            self._visit_tuple(value, cls, holder, name, at)
        elif cls is list or cls is dict or cls is set:
            self._visit_container(value, cls, at)
        elif cls is complex:
            key.append((cls, repr(value)))  # tells 0.0 from -0.0, and nan is equal to nan
            reads.check(step.EQUAL, reads.read(step.READ, at, 1, guards.written_out), repr(value))
        elif cls is slice or cls is range:
            key.append(cls)
            self._all_by_value((value.start, value.stop, value.step), reads.read(step.READ, at, 3, guards.range_parts))
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, at)
        elif isinstance(value, types.ModuleType):
            self._visit_whole_module(value, at)
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            self._visit_builtin(value, at)
        elif isinstance(value, type):
            self._visit_class(value, at)
        elif isinstance(value, np.ufunc):
            self.numpy = True
            key.append(value)
            reads.check(step.SAME, at, value)
        elif (
            isinstance(value, _CODE)
            or cls in _MARKS
            or cls.__module__ == "dataclasses"
            or (isinstance(value, enum.Enum) and not is_users_class(cls))
        ):
            key.append(value)
            reads.check(step.SAME, at, value)
        elif cls.__module__ == "typing" or cls in (types.GenericAlias, types.UnionType):
            self._visit_type_hint(value, cls, at)
        else:
            self._visit_wrapper(value, cls, at)

    def _visit_tuple(self, value: tuple[Any, ...], cls: type, holder: Any, name: Any, at: int) -> None:
        self.key.append((cls, len(value)))
        if cls is not tuple and is_users_class(cls):
            self.visit(cls, at=self.reads.constant(cls))
            self._visit_attributes(value, at)
        if holder is not None:
            self.tuples[id(value)] = (value, holder, name)
        first = self.reads.read(step.PARTS, at, tuple.__len__(value))
        for i, item in enumerate(tuple.__iter__(value)):
            self.visit(item, value if holder is not None else None, i, first + i)

    def _visit_container(self, value: Any, cls: type, at: int) -> None:
        self._add_place(value, at)
        self.key.append((cls, len(value)))
        if isinstance(value, dict):
            self._visit_dict(value, at)
        elif isinstance(value, list):
            items = list(list.__iter__(value))  # at once: another thread may change it
            first = self.reads.read(step.ITEMS, at, len(items))
            for i, item in enumerate(items):
                self.visit(item, value, i, first + i)
        else:
            self._visit_set(list(value), at, *((step.MEMBERS,) if cls is set else (step.READ, tuple)))

    def _visit_dict(self, value: dict[Any, Any], at: int) -> None:
        items = list(items_of(value))
        at, words = self.reads.items(at, value, items)
        for name, item in items:
            if name.__class__ is not str:
                self.by_value(name, at - 1)
            else:
                self.key.append(name)
                if words > 1:
                    self.reads.check(step.EQUAL, at - 1, name)
            self.visit(item, value, name, at)
            at += words

    def _visit_set(self, items: list[Any], at: int, operation: int, read: Any = None) -> None:
        """The items of a set, in the order in which a loop over it gets them: equal sets may differ in that."""
        first = self.reads.read(operation, at, len(items), read)
        for i, item in enumerate(items):
            if item.__class__ is array:
                self.opaque = "a set of arrays"
                return
            self.by_value(item, first + i)

    def _add_place(self, place: Any, at: int) -> None:
        """A place that is read itself."""
        self.containers.append(place)
        self.reads.check(step.PLACE, at)

    def _add_fixed_place(self, place: Any) -> None:
        """A place that is the same for good."""
        self.containers.append(place)
        self.reads.check(step.FIXED_PLACE, 0, place)

    # ---- code ----

    def _visit_function(self, function: types.FunctionType, at: int) -> None:
        code, reads = function.__code__, self.reads
        names = names_of(code)
        self.key.append(names)
        ours = is_ours(code.co_filename)
        if ours and self._is_public(function):
            self.key.append(function)
            reads.check(step.SAME, at, function)
            return
        at = reads.read(step.FUNCTION, at, step.FUNCTION_PARTS)
        reads.check(step.SAME, at, code)
        cells = function.__closure__ or ()
        contents = self._read_cells(cells, at + 1)
        if not ours and is_installed(code.co_filename):
            self._visit_installed(function, contents)
            return
        for i, (variable, cell, (value, place)) in enumerate(zip(code.co_freevars, cells, contents, strict=True)):
            if variable in names.written:
                self._add_place(cell, contents[0][1] - len(cells) + i)
            if value is ABSENT:
                self.key.append(None)
                reads.check(step.SAME, place, ABSENT)
            else:
                self._visit_variable(value, cell, variable, None, names.tails, place)
        for i, part in enumerate((function.__defaults__, function.__kwdefaults__, function.__dict__)):
            if part:
                self.key.append(i)
                self.visit(part, at=at + 2 + i)
            else:
                reads.check(step.FALSE, at + 2 + i)
        if ours:
            return
        scope = function.__globals__
        reads.check(step.SAME, at + 5, scope)
        self.asks_type |= names.asks_type
        if names.stores:
            self._add_fixed_place(Globals(scope, names.stores))
        if names.imports:
            self._visit_imported(names.imports, scope)
        self._visit_globals(scope, names.loads, names.tails)

    def _is_public(self, function: types.FunctionType) -> bool:
        """Whether a module has a function under its own name: it was not made around anything of the user's, and what
        it remembers for itself is no state of his."""
        module = sys.modules.get(function.__module__)
        if module is None:
            return False
        found = vars(module).get(function.__name__, ABSENT)
        self.reads.check(step.SAME, self.reads.look_up(vars(module), function.__name__), found)
        return found is function

    def _read_cells(self, cells: Sequence[types.CellType], at: int) -> list[tuple[Any, int]]:
        """What cells of a function hold, each with its register. Those of the cells come before them."""
        if not cells:
            self.reads.check(step.SAME, at, None)
            return []
        first = self.reads.read(step.PARTS, at, len(cells))
        return [(_contents_of(cell), self.reads.read(step.CONTENTS, first + i, 1)) for i, cell in enumerate(cells)]

    def _visit_installed(self, function: types.FunctionType, contents: list[tuple[Any, int]]) -> None:
        """A function of Python's or of an installed package: it may have been made around the user's functions and
        values (`contextmanager`, `wraps`, `singledispatch`); what else it holds is its own."""
        self.numpy |= is_numpy(function.__module__)
        if changes(function.__module__, function.__qualname__.partition(".")[0]):
            self.opaque = _says_else(f"{function.__module__}.{function.__qualname__}")
        for value, at in contents:
            if value is not ABSENT and (isinstance(value, _MADE_AROUND) or is_users_class(type(value))):
                self.visit(value, at=at)
            else:
                self.reads.check(step.TYPE, at, type(value))

    def _visit_imported(self, imports: tuple[tuple[str, int], ...], scope: dict[str, Any]) -> None:
        modules = imported(imports, scope)
        first = self.reads.read(step.READ, self.reads.constant(scope), len(modules), _importing(imports))
        for i, module in enumerate(modules):
            self.reads.check(step.SAME, first + i, module)
            self.visit(module, at=first + i)

    def _visit_globals(
        self, scope: dict[str, Any], loads: Iterable[tuple[str, tuple[str, ...]]], tails: Mapping[str, int]
    ) -> None:
        done = set()
        for name, attributes in loads:
            value = scope.get(name, ABSENT)
            if name in done:
                continue
            at = self.reads.look_up(scope, name)
            if value is ABSENT:
                self.reads.check(step.SAME, at, ABSENT)
                if builtin_changes(name):
                    self.opaque = f"the builtin {name}, which sees what cannot be followed"
                self._visit_foreign(builtins, (name,))
                continue
            self.key.append(name)
            if value.__class__ is types.ModuleType:
                self.reads.check(step.SAME, at, value)
                self._visit_module(value, attributes, at)
            else:
                done.add(name)
                self._visit_variable(value, scope, name, name, tails, at)

    def _visit_variable(
        self, value: Any, holder: Any, variable: str, name: Any, tails: Mapping[str, int], at: int
    ) -> None:
        """A global, or a variable of an enclosing function. Of a list that may grow only the end need be looked at."""
        if variable in tails and value.__class__ is list and id(value) not in self.seen:
            self._visit_end(value, tails[variable], at)
        else:
            self.visit(value, holder, name, at)

    def _visit_end(self, value: list[Any], most: int, at: int) -> None:
        """The last items of a list, so many if there are as many."""
        self._add_appended(value, at)
        items = value[max(len(value) - most, 0) :]
        self.key.append(("the end of a list", len(items)))
        first = self.reads.read(step.READ, at, len(items), guards.tail(most))
        for i, item in enumerate(items):
            self.visit(item, at=first + i)

    def _add_appended(self, value: list[Any], at: int) -> None:
        """A list as a place to append to. Where it stands elsewhere too, it is a list like any other."""
        self.containers.append(Appended(value))
        for operation, expected in ((step.TYPE, list), (step.APART, None), (step.MADE_PLACE, Appended)):
            self.reads.check(operation, at, expected)

    def _visit_module(self, module: types.ModuleType, attributes: tuple[str, ...], at: int) -> None:
        """What a function reads from a module, which is what it was; all of it if that cannot be told."""
        if not attributes:
            self.visit(module, at=at)
            return
        scope, first = vars(module), attributes[0]
        inner = scope.get(first)
        at = self.reads.look_up(scope, first)
        if isinstance(inner, types.ModuleType):
            self.reads.check(step.SAME, at, inner)
            self._visit_module(inner, attributes[1:], at)
        elif changes(module.__name__, first):
            self.key.append(module)
            self.opaque = _says_else(f"{module.__name__}.{first}")
        elif module.__name__ == "weft.core.random" and first == "state":
            self.visit(inner, at=at)
        elif not is_users(module):
            self.key.append(module)
            self._visit_foreign(module, attributes)
        elif first in scope:
            self.key.append(first)
            self.visit(inner, scope, first, at)
        else:
            self.reads.check(step.SAME, at, ABSENT)
            at, last = self.reads.look_up(scope, "__getattr__"), scope.get("__getattr__", ABSENT)
            if last is ABSENT:
                self.reads.check(step.SAME, at, ABSENT)
            else:
                self.visit(last, at=at)

    def _visit_foreign(self, module: types.ModuleType, attributes: tuple[str, ...]) -> None:
        """An attribute of a module that is not the user's: what it always is adds nothing to the key."""
        self.numpy |= is_numpy(module.__name__)
        inner = vars(module).get(attributes[0], ABSENT)
        at = self.reads.look_up(vars(module), attributes[0])
        if _SETTLED.get((module, attributes), _MISSING) is inner:
            self.reads.check(step.SAME, at, inner)
            return
        cls = type(inner)
        if cls is array or is_made_by_user(inner):
            self.visit(inner, vars(module), attributes[0], at)
            return
        self.reads.check(step.SAME, at, inner)
        if changes(cls.__module__, cls.__name__) or changes(getattr(inner, "__module__", None), _name_of(inner)):
            self.opaque = _says_else(f"{module.__name__}.{attributes[0]}")
        elif _SETTLED.setdefault((module, attributes), inner) is not inner:
            self.key.append(inner if isinstance(inner, _IDENTIFIED) else Same(inner))

    def _visit_whole_module(self, module: types.ModuleType, at: int) -> None:
        self.key.append(module)
        self.reads.check(step.SAME, at, module)
        self.numpy |= is_numpy(module.__name__)
        if module.__name__.startswith("weft."):  # any of its functions may have been replaced
            self._visit_functions_of_ours(vars(module))
        if all_changes(module.__name__):
            self.opaque = _says_else(f"the module {module.__name__}")
        if not is_users(module):
            return
        for at, name, value in self._read_all(vars(module)):
            if isinstance(value, types.ModuleType) and not is_users(value):
                self.reads.check(step.SAME, at, value)
            elif not name.startswith("__"):
                self.key.append(name)
                self.visit(value, vars(module), name, at)

    def _visit_functions_of_ours(self, scope: dict[str, Any]) -> None:
        found = self._read_all(scope)
        functions = [(at, value) for at, _, value in found if isinstance(value, types.FunctionType)]
        self.key.append(tuple([function for _, function in functions]))
        if self.reads.records:
            for at, _, value in found:
                self.reads.check(step.TYPE, at, type(value))
            for at, function in functions:
                self.reads.check(step.SAME, at, function)
        for at, function in functions:
            if is_made_by_user(function):
                self.visit(function, at=at)

    def _visit_builtin(self, value: Any, at: int) -> None:
        """A function of Python's, or a method of a list, a dict or the like, which sees what that holds."""
        owner = value.__self__
        if (getattr(value, "__module__", None) or "").partition(".")[0] == "weft":  # has no state of the user's
            self.key.append(value)
            self.reads.check(step.SAME, at, value)
            return
        if isinstance(owner, (types.ModuleType, type, type(None))):
            self.key.append(value)
            self.reads.check(step.SAME, at, value)
            module, name = (owner.__module__, owner.__name__) if isinstance(owner, type) else (None, value.__name__)
            if changes(module or getattr(owner, "__name__", None), name):
                self.opaque = _says_else(value.__qualname__)
            return
        self.key.append(value.__name__)
        at = self.reads.read(step.READ, at, 2, guards.builtin_parts)
        self.reads.check(step.EQUAL, at, value.__name__)
        if owner.__class__ is list and value.__name__ == "append" and id(owner) not in self.seen:
            self._add_appended(owner, at + 1)
        else:
            self.visit(owner, at=at + 1)

    def _visit_class(self, cls: type, at: int) -> None:
        """A class of the user's: its attributes, the classes inside it, the code of its methods, its metaclass."""
        reads = self.reads
        self.key.append(cls)
        reads.check(step.SAME, at, cls)
        self.numpy |= is_numpy(cls.__module__)
        if changes(cls.__module__, cls.__qualname__):
            self.opaque = _says_else(f"{cls.__module__}.{cls.__qualname__}")
        at = reads.read(step.READ, reads.constant(cls), 2, guards.class_parts)
        reads.check(step.SAME, at, type(cls))
        reads.check(step.SAME, at + 1, cls.__mro__)
        if is_users_class(type(cls)):
            self.visit(type(cls), at=at)
        if isinstance(cls, abc.ABCMeta):
            self.key.append(abc.get_cache_token())  # another one whenever a subclass is registered somewhere
            reads.check(step.EQUAL, reads.read(step.READ, reads.constant(None), 1, _cache_token), abc.get_cache_token())
        for base in cls.__mro__:
            if not is_users_class(base):
                continue
            self._add_fixed_place(ClassFields(base))
            for at, name, value in self._read_all(guards.class_dict(base)):
                self._visit_functions(value, at)
                if is_class_field(name, value):
                    self.key.append(name)
                    self.visit(value, base, name, at)
                elif value.__class__ not in _USUAL and is_users_class(
                    value if isinstance(value, type) else type(value)
                ):
                    self.key.append(name)
                    self.visit(value, at=at)
                elif value.__class__ is not types.FunctionType:
                    reads.check(step.SAME, at, value)

    def _read_all(self, scope: Any) -> list[tuple[int, str, Any]]:
        """What stands in a dict that is always there: register, name and value of each."""
        items = list(scope.items())
        first = self.reads.read(step.VALUES, self.reads.constant(scope), len(items), tuple([name for name, _ in items]))
        return [(at, name, value) for at, (name, value) in enumerate(items, first)]

    def _visit_functions(self, value: Any, at: int) -> None:
        """The functions behind an attribute of a class."""
        if value.__class__ is types.FunctionType:
            self.visit(value, at=at)
            return
        functions = _functions_of(value)
        if not functions or value.__class__ in _MADE_OF_FUNCTIONS:
            for function in functions:
                self.visit(function, at=self.reads.constant(function))
            return
        first = self.reads.read(step.READ, at, len(functions), _functions_in)
        for i, function in enumerate(functions):
            self.visit(function, at=first + i)

    def _visit_class_fields(self, cls: type) -> None:
        """The attributes that objects of an installed package share. Its code stays as it is, as that of its functions
        does."""
        for base in cls.__mro__:
            if is_written_in_python(base) and not is_users_class(base):
                self._add_fixed_place(ClassFields(base))
                for at, name, value in self._read_all(guards.class_dict(base)):
                    if is_class_field(name, value):
                        self.key.append(name)
                        self.visit(value, base, name, at)
                    else:
                        self.reads.check(step.SAME, at, value)

    def _visit_type_hint(self, value: Any, cls: type, at: int) -> None:
        """`Optional`, a type variable (annotations of variables capture it), or `Box[int]`, which can be called."""
        arguments = getattr(value, "__args__", None)
        self.key.append(value if arguments is None else cls)
        self.reads.check(step.SAME, at, value)
        if arguments is not None:
            for part in (getattr(value, "__origin__", None), arguments, getattr(value, "__metadata__", None)):
                self.by_value(part, self.reads.constant(part))

    # ---- objects ----

    def _visit_wrapper(self, value: Any, cls: type, at: int) -> None:
        """What stands for a function or holds another value: bound methods, partials, compiled functions, numbers and
        arrays of NumPy."""
        key, reads = self.key, self.reads
        if isinstance(value, types.MethodType):
            key.append(types.MethodType)
            first = reads.read(step.READ, at, 2, guards.method_parts)
            self.visit(value.__func__, at=first)
            self.visit(value.__self__, at=first + 1)
        elif isinstance(value, functools.partial):
            key.append(functools.partial)
            self._all_by_value(
                (value.func, value.args, value.keywords), reads.read(step.READ, at, 3, guards.partial_parts)
            )
        elif cls is np.ndarray and value.nbytes <= MOST_BYTES and value.dtype.kind not in "OV":
            self._add_numpy(value, cls, at)
            self._add_place(value, at)
        elif isinstance(value, np.generic) and value.dtype.kind not in "OV":
            self._add_numpy(value, cls, at)
        elif cls is frozenset:
            key.append((cls, len(value)))
            self._visit_set(list(value), at, step.READ, tuple)
        elif _is_ours(cls) and hasattr(value, "__wrapped_function__"):
            key.append(cls)
            self.visit(value.__wrapped_function__, at=reads.read(step.READ, at, 1, guards.wrapped_parts))
        else:
            self._visit_instance(value, cls, at)

    def _add_numpy(self, value: Any, cls: type, at: int) -> None:
        """An array or a number of NumPy's."""
        self.numpy = True
        (content,) = _numpy_content(value)
        self.key.append((cls, *content))
        self.reads.check(step.EQUAL, self.reads.read(step.READ, at, 1, _numpy_content), content)

    def _visit_instance(self, value: Any, cls: type, at: int) -> None:
        if isinstance(value, array):
            self.opaque = f"a subclass of array ({cls.__name__})"
            return
        holds = isinstance(value, (dict, list, set))
        if cls.__module__.startswith(_BY_IDENTITY) and not holds:
            self.key.append(value)
            self.reads.check(step.SAME, at, value)
            return
        if not _is_ours(cls) and not holds and not is_users_class(cls) and not _is_namespace(cls):
            if not is_written_in_python(cls):
                self.opaque = f"an object of type {cls.__module__}.{cls.__qualname__}"
                return
            self._visit_class_fields(cls)
        self.visit(cls, at=self.reads.constant(cls))
        if holds:
            self._visit_container(value, cls, at)
        elif isinstance(value, frozenset):
            self._visit_set(list(frozenset.__iter__(value)), at, step.READ, guards.frozen_items)
        else:
            self._add_value(value, at)
        self._visit_attributes(value, at)

    def _add_value(self, value: Any, at: int) -> None:
        """What an object is beside its attributes, if its class is made of a number's or a string's."""
        found = _values_of(value)
        if found:
            self.key.extend(found)
            first = self.reads.read(step.READ, at, len(found), _values_of)
            for i, part in enumerate(found):
                self.reads.check(step.EQUAL, first + i, part)

    def _visit_attributes(self, value: Any, at: int) -> None:
        state = own_attribute(value, "__dict__")
        fields = Fields(value)
        if fields.names:
            self._visit_fields(fields, at)
        at = self.reads.state(at, state)
        if state is not None:
            self._add_place(state, at)
            items = list(state.items())
            self.key.append(len(items))
            at, words = self.reads.items(at, state, items)
            for name, item in items:
                self.key.append(name)
                if words > 1:
                    self.reads.check(step.EQUAL, at - 1, name)
                self.visit(item, state, name, at)
                at += words

    def _visit_fields(self, fields: Fields, at: int) -> None:
        """Attributes in __slots__."""
        self.containers.append(fields)
        self.reads.check(step.MADE_PLACE, at, Fields)
        owner = None if isinstance(fields.owner, (dict, list, tuple)) else fields.owner
        read = guards.slots(fields.names)
        found = read(fields.owner)
        first = self.reads.read(step.READ, at, len(found), read)
        for i, (name, item) in enumerate(zip(fields.names, found, strict=True)):
            if item is ABSENT:
                self.reads.check(step.SAME, first + i, ABSENT)
            else:
                self.key.append(name)
                self.visit(item, owner, name, first + i)


def number_key(value: int | float) -> Any:
    """A number in a key: tells 0.0 from -0.0, and nan is equal to nan."""
    if value.__class__ is float and (not value or value != value):
        return repr(value)
    return value


def _contents_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return ABSENT


def _values_of(value: Any) -> tuple[Any, ...]:
    return tuple([read(value) for base, read in _VALUES if isinstance(value, base)])


def _numpy_content(value: Any) -> tuple[Any, ...]:
    """What an array or a number of NumPy's is, as one plain value."""
    if isinstance(value, np.generic):
        return (("", value.tobytes()),)
    return ((value.dtype.str, value.shape, value.flags.c_contiguous, value.tobytes()),)


def _numpy_errors(_: Any) -> tuple[Any, ...]:
    """What NumPy does about errors, and what it calls."""
    return tuple(np.geterr().values()), np.geterrcall()


def _cache_token(_: Any) -> tuple[Any, ...]:
    return (abc.get_cache_token(),)


@functools.lru_cache(maxsize=512)
def _importing(names: tuple[tuple[str, int], ...]) -> Callable[[dict[str, Any]], tuple[types.ModuleType, ...]]:
    return lambda scope: tuple(imported(names, scope))


def _functions_in(value: Any) -> tuple[Any, ...]:
    return tuple(_functions_of(value))


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


def is_made_by_user(value: Any) -> bool:
    """Whether what a module holds is the user's: a function, a class, an object of such a class, or what is made around
    one of them."""
    if isinstance(value, types.FunctionType):
        return not is_ours(value.__code__.co_filename) and not is_installed(value.__code__.co_filename)
    if isinstance(value, type):
        return is_users_class(value)
    if isinstance(value, types.MethodType):
        return is_made_by_user(value.__func__) or is_users_class(type(value.__self__))
    if isinstance(value, functools.partial):
        return is_made_by_user(value.func)
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
