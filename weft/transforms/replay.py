"""What a traced function returned and stored, as templates: a later call builds the same around its own arrays, numbers
and objects.

Containers and objects that the function made are made anew at each call; those that it got or captured are themselves.
"""

from __future__ import annotations

import enum
import functools
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from weft.array import array, wrap
from weft.graph.dims import Dim
from weft.graph.node import Node
from weft.graph.scalars import SCALARS, Scalars
from weft.transforms.capture import Walk
from weft.transforms.state import Contents, Fields, items_of


class Replay:
    """What templates are filled with: the arrays that the program made, those of the walk, its objects, numbers."""

    __slots__ = ("arrays", "built", "made", "numbers", "objects")

    def __init__(
        self, made: Sequence[array], arrays: Sequence[array], objects: Sequence[Any], numbers: Sequence[Any]
    ) -> None:
        self.made, self.arrays, self.objects, self.numbers = made, arrays, objects, numbers
        self.built: dict[int, Any] = {}


class Rebuilt:
    """A constant, unless a subclass says otherwise."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def build(self, call: Replay) -> Any:
        return self.value


class Made(Rebuilt):
    """The array made of output `value` of the program."""

    __slots__ = ()

    def build(self, call: Replay) -> Any:
        return call.made[self.value]


class KnownArray(Rebuilt):
    """Array number `value` of the walk itself."""

    __slots__ = ()

    def build(self, call: Replay) -> Any:
        return call.arrays[self.value]


class KnownObject(Rebuilt):
    """Object number `value` of the walk itself."""

    __slots__ = ()

    def build(self, call: Replay) -> Any:
        return call.objects[self.value]


class NumberOf(Rebuilt):
    """A number of this call."""

    __slots__ = ()

    def build(self, call: Replay) -> Any:
        return call.numbers[self.value]


class Copied(Rebuilt):
    """A copy of something mutable that holds no array."""

    __slots__ = ()

    def build(self, call: Replay) -> Any:
        return self.value.copy()


class Built(Rebuilt):
    """A container or object that the function made: `value(parts)`. It may stand in several places."""

    __slots__ = ("parts", "shared")

    def __init__(
        self, make: Callable[[list[Any]], Any], parts: Sequence[Rebuilt] | None = None, shared: bool = False
    ) -> None:
        super().__init__(make)
        self.parts = parts
        """None until they are known."""
        self.shared = shared

    def build(self, call: Replay) -> Any:
        if self.shared and id(self) in call.built:
            return call.built[id(self)]
        made = self.value([part.build(call) for part in self.parts])  # type: ignore[union-attr]
        if self.shared:
            call.built[id(self)] = made
        return made


_UNCHANGING = (
    type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, types.BuiltinFunctionType, enum.Enum,
    range, type(Ellipsis),
)  # fmt: skip


class Recorder:
    """Makes templates of what a traced function leaves behind."""

    def __init__(self, name: str, walk: Walk, scalars: Scalars, first: int, stand_ins: dict[int, int]) -> None:
        self.name, self.scalars, self.first = name, scalars, first
        self.seen = {**walk.seen, **stand_ins}
        """What was there before the call, by id: numbers of the walk, also for tuples that stand in for others."""
        self.outputs: list[Node] = []
        self.all_new = True
        """Whether nothing in the templates was there before the call."""
        self.kept: set[int] = set()
        """The numbers (of the walk) of arrays and objects in the templates that were there before the call."""
        self._output_of: dict[int, int] = {}
        self._built: dict[int, Built] = {}
        self._arrays: dict[int, Rebuilt] = {}
        self._kept: list[Any] = []  # so that no id is used twice

    def output(self, node: Node) -> int:
        """The number of the output that is this node."""
        place = self._output_of.get(id(node))
        if place is None:
            place = self._output_of[id(node)] = len(self.outputs)
            self.outputs.append(node)
        return place

    def is_output(self, node: Node) -> bool:
        """Whether this node is an output so far."""
        return id(node) in self._output_of

    def template(self, x: Any) -> Rebuilt:
        """A template of any value."""
        if type(x) in SCALARS:
            return NumberOf(self.scalars.want(x)) if x.env is self.scalars else Rebuilt(x.number)
        if type(x) is Dim:
            return Rebuilt(int(x))  # a size that leaves as a number is guarded
        place = self.seen.get(id(x))
        if isinstance(x, array):
            if place is None:
                return self._array(x)
            self.all_new = False
            self.kept.add(place)
            return KnownArray(place)
        if place is not None:
            self.all_new = False
            self.kept.add(place)
            return KnownObject(~place)
        if isinstance(x, _UNCHANGING):
            return Rebuilt(x)
        known = self._built.get(id(x))
        if known is not None:
            if known.parts is None:
                raise ValueError(
                    f"[compile] {self.name} returns or keeps {_a(type(x))} that holds itself, which cannot be made "
                    "anew at each call: return its parts."
                )
            known.shared = True
            return known
        self._kept.append(x)
        return self._made(x, type(x))

    def _array(self, x: array) -> Rebuilt:
        """An array that the function made. Several arrays may be one node (`y`, `y[:]`), and stay several."""
        known = self._arrays.get(id(x))
        if known is None:
            taken = id(x._node) in self._output_of
            known = Made(self.output(x._node))
            if taken:
                known = Built(_another, [known], shared=True)
            self._kept.append(x)
            self._arrays[id(x)] = known
        return known

    def contents(self, contents: Contents) -> Rebuilt:
        """A template of what a place holds (which is a container of our own, new at each call)."""
        return self._made(contents, type(contents))

    def _made(self, x: Any, cls: type) -> Rebuilt:
        """A template of what the function made itself."""
        parts: Sequence[Any]
        make: Callable[[list[Any]], Any]
        if isinstance(x, tuple):
            parts, make = x, (tuple if cls is tuple else functools.partial(tuple.__new__, cls))
        elif cls is list:
            parts, make = x, list
        elif isinstance(x, dict) and cls in (dict, OrderedDict, defaultdict):
            keys = [self._key(k) for k, _ in items_of(x)]
            parts, make = [v for _, v in items_of(x)], _dict_maker(x, cls, keys)
        elif cls is set or cls is frozenset:
            parts, make = list(x), cls
        elif isinstance(x, np.ndarray):
            return Copied(x.copy())
        elif isinstance(x, Iterator):
            raise ValueError(
                f"[compile] {self.name} returns or keeps {_a(cls)}, which would go on in a trace that is over: make a "
                "list of it."
            )
        elif cls is slice:
            parts, make = (x.start, x.stop, x.step), lambda parts: slice(*parts)
        elif isinstance(x, types.MethodType):
            function = x.__func__
            parts, make = [x.__self__], lambda parts: types.MethodType(function, parts[0])
        elif not _is_record(x):
            return self._constant(x)
        else:
            parts, make = _record_parts(x, cls)
        made = self._built[id(x)] = Built(make)
        made.parts = [self.template(part) for part in parts]
        return made

    def _key(self, key: Any) -> Any:
        return int(key) if type(key) is Dim else key.number if type(key) in SCALARS else key

    def _constant(self, x: Any) -> Rebuilt:
        """Something that cannot be taken apart: it may hold nothing that another call has another of."""
        inside = Walk()
        if isinstance(x, types.FunctionType):
            for part in (x.__closure__ and [c.cell_contents for c in x.__closure__], x.__defaults__, x.__kwdefaults__):
                inside.visit(part)
        else:
            inside.visit(x)
        mutable = type(x).__hash__ is None
        if mutable or inside.arrays or any(type(part) in SCALARS or type(part) is Dim for part in inside.key):
            raise ValueError(
                f"[compile] {self.name} returns or keeps {_a(type(x))} that holds, or may hold, arrays or "
                "numbers of this call: return those themselves, in a list, tuple, dict or dataclass."
            )
        return Rebuilt(x)


def _another(parts: list[Any]) -> array:
    """Another array of the same values."""
    return wrap(parts[0]._node)


def _a(cls: type) -> str:
    return f"an object of type {cls.__module__}.{cls.__qualname__}".replace("builtins.", "")


def _dict_maker(x: Any, cls: type, keys: list[Any]) -> Callable[[list[Any]], Any]:
    if cls is defaultdict:
        factory = x.default_factory
        return lambda parts: defaultdict(factory, zip(keys, parts, strict=True))
    return lambda parts: cls(zip(keys, parts, strict=True))


def _is_record(x: Any) -> bool:
    """Whether an object is its attributes (and items), so that it can be made anew from them."""
    plain = _native(type(x)) in (object, list, dict, types.SimpleNamespace)
    return plain and (hasattr(x, "__dict__") or bool(Fields(x).names))


def _native(cls: type) -> type:
    """The class of Python's that objects of a class are made as, whatever classes in between do in `__new__`."""
    return next(base for base in cls.__mro__ if isinstance(vars(base).get("__new__"), types.BuiltinFunctionType))


def _record_parts(x: Any, cls: type) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    items: list[Any] = list(list.__iter__(x)) if isinstance(x, list) else []
    keys: list[Any] = []
    if isinstance(x, dict):
        keys, items = list(dict.keys(x)), list(dict.values(x))
    state = {**getattr(x, "__dict__", {}), **Fields(x).read()}
    names = list(state)
    native: Any = _native(cls)

    def make(parts: list[Any]) -> Any:
        made = native.__new__(cls)
        held, fields = parts[: len(items)], parts[len(items) :]
        if isinstance(made, list):
            list.extend(made, held)
        elif isinstance(made, dict):
            dict.update(made, zip(keys, held, strict=True))
        for name, value in zip(names, fields, strict=True):
            object.__setattr__(made, name, value)
        return made

    return [*items, *state.values()], make
