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

from weft.array import array
from weft.graph.dims import Dim
from weft.graph.node import Node
from weft.graph.scalars import SCALARS, Scalars
from weft.transforms.capture import Walk
from weft.transforms.state import Contents, Fields, items_of


class Call:
    """What templates are filled with: the arrays that the program made, those of the walk, its objects, numbers."""

    __slots__ = ("arrays", "built", "made", "numbers", "objects")

    def __init__(
        self, made: Sequence[array], arrays: Sequence[array], objects: Sequence[Any], numbers: Sequence[Any]
    ) -> None:
        self.made, self.arrays, self.objects, self.numbers = made, arrays, objects, numbers
        self.built: dict[int, Any] = {}


class Template:
    """A constant, unless a subclass says otherwise."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def build(self, call: Call) -> Any:
        return self.value


class Made(Template):
    """The array made of output `value` of the program."""

    __slots__ = ()

    def build(self, call: Call) -> Any:
        return call.made[self.value]


class KnownArray(Template):
    """Array number `value` of the walk itself."""

    __slots__ = ()

    def build(self, call: Call) -> Any:
        return call.arrays[self.value]


class KnownObject(Template):
    """Object number `value` of the walk itself."""

    __slots__ = ()

    def build(self, call: Call) -> Any:
        return call.objects[self.value]


class NumberOf(Template):
    """A number of this call."""

    __slots__ = ()

    def build(self, call: Call) -> Any:
        return call.numbers[self.value]


class Copied(Template):
    """A copy of something mutable that holds no array."""

    __slots__ = ()

    def build(self, call: Call) -> Any:
        return self.value.copy()


class Built(Template):
    """A container or object that the function made: `value(parts)`. It may stand in several places."""

    __slots__ = ("parts", "shared")

    def __init__(self, make: Callable[[list[Any]], Any]) -> None:
        super().__init__(make)
        self.parts: list[Template] = []
        self.shared = False

    def build(self, call: Call) -> Any:
        if self.shared and id(self) in call.built:
            return call.built[id(self)]
        made = self.value([part.build(call) for part in self.parts])
        if self.shared:
            call.built[id(self)] = made
        return made


_UNCHANGING = (
    type(None), bool, int, float, complex, str, bytes, type, types.ModuleType, types.BuiltinFunctionType, enum.Enum,
    range, slice, type(Ellipsis),
)  # fmt: skip


class Recorder:
    """Makes templates of what a traced function leaves behind."""

    def __init__(self, name: str, walk: Walk, scalars: Scalars, first: int) -> None:
        self.name, self.walk, self.scalars, self.first = name, walk, scalars, first
        self.outputs: list[Node] = []
        self.all_new = True
        """Whether nothing in the templates was there before the call."""
        self._output_of: dict[int, int] = {}
        self._built: dict[int, Built] = {}
        self._kept: list[Any] = []  # so that no id is used twice

    def output(self, node: Node) -> int:
        """The number of the output that is this node."""
        place = self._output_of.get(id(node))
        if place is None:
            place = self._output_of[id(node)] = len(self.outputs)
            self.outputs.append(node)
        return place

    def template(self, x: Any) -> Template:
        """A template of any value."""
        if type(x) in SCALARS:
            return NumberOf(self.scalars.want(x)) if x.env is self.scalars else Template(x.number)
        if type(x) is Dim:
            return Template(int(x))  # a size that leaves as a number is guarded
        place = self.walk.seen.get(id(x))
        if isinstance(x, array):
            if place is None:
                return Made(self.output(x._node))
            self.all_new = False
            return KnownArray(place)
        if isinstance(x, _UNCHANGING):
            return Template(x)
        if place is not None:
            self.all_new = False
            return KnownObject(~place)
        known = self._built.get(id(x))
        if known is not None:
            known.shared = True
            return known
        self._kept.append(x)
        return self._made(x, type(x))

    def contents(self, contents: Contents) -> Template:
        """A template of what a place holds (which is a container of our own, new at each call)."""
        return self._made(contents, type(contents))

    def _made(self, x: Any, cls: type) -> Template:
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

    def _constant(self, x: Any) -> Template:
        """Something that cannot be taken apart: it may hold nothing that another call has another of."""
        inside = Walk()
        if isinstance(x, types.FunctionType):
            for part in (x.__closure__ and [c.cell_contents for c in x.__closure__], x.__defaults__, x.__kwdefaults__):
                inside.visit(part)
        else:
            inside.visit(x)
        unknown = inside.opaque is not None and type(x).__hash__ is None
        if unknown or inside.arrays or any(type(part) in SCALARS for part in inside.key):
            raise ValueError(
                f"[compile] {self.name} returns or keeps {_a(type(x))} that holds arrays or numbers of this call: "
                "return those themselves, in a list, tuple, dict or dataclass."
            )
        return Template(x)


def _a(cls: type) -> str:
    return f"an object of type {cls.__module__}.{cls.__qualname__}".replace("builtins.", "")


def _dict_maker(x: Any, cls: type, keys: list[Any]) -> Callable[[list[Any]], Any]:
    if cls is defaultdict:
        factory = x.default_factory
        return lambda parts: defaultdict(factory, zip(keys, parts, strict=True))
    return lambda parts: cls(zip(keys, parts, strict=True))


def _is_record(x: Any) -> bool:
    """Whether an object is its attributes (and items), so that it can be made anew from them."""
    plain = type(x).__new__ in (object.__new__, list.__new__, dict.__new__)
    return plain and not isinstance(x, types.FunctionType) and (hasattr(x, "__dict__") or bool(Fields(x).names))


def _record_parts(x: Any, cls: type) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    items: list[Any] = list(list.__iter__(x)) if isinstance(x, list) else []
    keys: list[Any] = []
    if isinstance(x, dict):
        keys, items = list(dict.keys(x)), list(dict.values(x))
    state = {**getattr(x, "__dict__", {}), **Fields(x).read()}
    names = list(state)

    def make(parts: list[Any]) -> Any:
        made = cls.__new__(cls)  # type: ignore[call-overload]
        held, fields = parts[: len(items)], parts[len(items) :]
        if isinstance(made, list):
            list.extend(made, held)
        elif isinstance(made, dict):
            dict.update(made, zip(keys, held, strict=True))
        for name, value in zip(names, fields, strict=True):
            object.__setattr__(made, name, value)
        return made

    return [*items, *state.values()], make
