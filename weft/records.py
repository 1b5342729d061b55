"""Dataclasses whose methods are written when they are called for the first time.

The standard library writes and compiles five functions for each dataclass when its module is imported, which took a
third of the time of `import weft.core`; most programs make instances of a part of them, and compare, hash and show
fewer. The decorator here has the same meaning for what Weft uses of it, and `dataclasses.fields`, `replace` and the
like know its classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, dataclass_transform, overload

T = TypeVar("T")

MISSING: Final[Any] = object()
"""In place of a default that is not there."""


class FrozenInstanceError(AttributeError):
    """An attribute of an instance that does not change was set."""


class Field:
    """A field of a class: its default (or what makes one), and whether it is compared and shown."""

    __slots__ = ("compare", "default", "factory", "name", "repr", "type")

    def __init__(self, default: Any, factory: Any, compare: bool, repr: bool) -> None:
        self.default, self.factory, self.compare, self.repr = default, factory, compare, repr
        self.name, self.type = "", ""


def field(*, default: Any = MISSING, default_factory: Any = MISSING, compare: bool = True, repr: bool = True) -> Any:
    """What a field is beside its type, where the class gives its default."""
    return Field(default, default_factory, compare, repr)


@overload
def dataclass(cls: type[T], /) -> type[T]: ...


@overload
def dataclass(
    *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(field_specifiers=(field,))
def dataclass(
    cls: Any = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True, repr: bool = True
) -> Any:
    """A class with the fields that its annotations name, as `dataclasses.dataclass` makes it."""

    def decorated(cls: Any) -> Any:
        fields = _fields(cls)
        if slots:
            cls = _with_slots(cls, fields)
        _Methods(cls, fields, frozen, eq, repr).install()
        return cls

    return decorated if cls is None else decorated(cls)


def fields(made: Any) -> tuple[Field, ...]:
    """The fields of a class (or of an instance of it), in order."""
    return tuple(made.__record_fields__.values())


def replace(made: T, /, **changes: Any) -> T:
    """Another instance, with some fields changed."""
    for name in made.__record_fields__:  # type: ignore[attr-defined]
        if name not in changes:
            changes[name] = getattr(made, name)
    return type(made)(**changes)


def _fields(cls: Any) -> dict[str, Field]:
    """The fields of a class by name, those of its bases first. Their defaults stay as attributes of the class."""
    found: dict[str, Field] = {}
    for base in cls.__mro__[-1:0:-1]:
        found.update(vars(base).get("__record_fields__", {}))
    for name, note in cls.__annotations__.items():
        if str(note).startswith(("ClassVar", "typing.ClassVar")):
            continue
        given = vars(cls).get(name, MISSING)
        made = given if isinstance(given, Field) else Field(given, MISSING, True, True)
        made.name, made.type = name, note
        found[name] = made
        if made is given:
            if made.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, made.default)
    return found


def _with_slots(cls: Any, fields: dict[str, Field]) -> Any:
    """The class again, with its fields in `__slots__`, which a class has from the start or never."""
    inherited = {name for base in cls.__mro__[1:] for name in vars(base).get("__slots__", ())}
    namespace = {k: v for k, v in vars(cls).items() if k not in fields and k not in ("__dict__", "__weakref__")}
    namespace["__slots__"] = tuple(name for name in fields if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, namespace)
    made.__qualname__ = cls.__qualname__
    return made


class _Methods:
    """The methods of a class, on their way."""

    def __init__(self, cls: Any, fields: dict[str, Field], frozen: bool, eq: bool, repr: bool) -> None:
        self.cls, self.fields, self.frozen = cls, fields, frozen
        self.wanted = {"__init__", *(("__eq__",) if eq else ()), *(("__repr__",) if repr else ())} - vars(cls).keys()
        if eq and "__hash__" not in vars(cls):
            if frozen:
                self.wanted.add("__hash__")
            else:
                cls.__hash__ = None

    def install(self) -> None:
        """Everything, but that each wanted method is written by its first call."""
        cls, fields = self.cls, self.fields
        cls.__record_fields__ = fields
        for name in ("__dataclass_fields__", "__dataclass_params__"):
            setattr(cls, name, _Known(self, name))
        if "__match_args__" not in vars(cls):
            setattr(cls, "__match_args__", tuple(fields))  # noqa: B010
        if self.frozen:
            cls.__setattr__, cls.__delattr__ = _frozen(cls, fields, "assign to"), _frozen(cls, fields, "delete")
            if "__slots__" in vars(cls) and "__getstate__" not in vars(cls):
                cls.__getstate__, cls.__setstate__ = _getstate, _setstate
        for name in self.wanted:
            setattr(cls, name, self._unwritten(name))

    def _unwritten(self, name: str) -> Callable[..., Any]:
        """What stands for a method until it is called."""

        def first(instance: Any, *args: Any, **kwargs: Any) -> Any:
            self._write(name)
            return getattr(self.cls, name)(instance, *args, **kwargs)

        return first

    def _write(self, name: str) -> None:
        """Compile a method."""
        names: dict[str, Any] = {"MISSING": MISSING, "set": object.__setattr__}
        writers = {"__init__": self._init, "__eq__": self._eq, "__hash__": self._hash, "__repr__": self._repr}
        exec("\n".join(writers[name](names)), names)
        function = names[name]
        function.__qualname__ = f"{self.cls.__qualname__}.{name}"
        function.__module__ = self.cls.__module__
        setattr(self.cls, name, function)

    def _init(self, names: dict[str, Any]) -> Iterator[str]:
        parameters = ["self"]
        lines = []
        for name, made in self.fields.items():
            value = name
            if made.factory is not MISSING:
                names[f"make_{name}"] = made.factory
                parameters.append(f"{name}=MISSING")
                value = f"make_{name}() if {name} is MISSING else {name}"
            elif made.default is not MISSING:
                names[f"default_{name}"] = made.default
                parameters.append(f"{name}=default_{name}")
            else:
                parameters.append(name)
            place: Any = getattr(self.cls, name, None)
            if not self.frozen:
                lines.append(f" self.{name} = {value}")
            elif type(place) is _Slot:
                names[f"set_{name}"] = place.__set__
                lines.append(f" set_{name}(self, {value})")
            else:
                lines.append(f" set(self, {name!r}, {value})")
        yield f"def __init__({', '.join(parameters)}):"
        yield from lines or [" pass"]
        if hasattr(self.cls, "__post_init__"):
            yield " self.__post_init__()"

    def _compared(self, who: str) -> str:
        return "(" + "".join(f"{who}.{name}, " for name, made in self.fields.items() if made.compare) + ")"

    def _eq(self, names: dict[str, Any]) -> Iterator[str]:
        yield "def __eq__(self, other):"
        yield f" return {self._compared('self')} == {self._compared('other')} \\"
        yield "  if other.__class__ is self.__class__ else NotImplemented"

    def _hash(self, names: dict[str, Any]) -> Iterator[str]:
        yield "def __hash__(self):"
        yield f" return hash({self._compared('self')})"

    def _repr(self, names: dict[str, Any]) -> Iterator[str]:
        shown = ", ".join(f"{name}={{self.{name}!r}}" for name, made in self.fields.items() if made.repr)
        yield "def __repr__(self):"
        yield f" return f'{{self.__class__.__qualname__}}({shown})'"


class _Known:
    """What the standard library looks for in a class to know its fields: made when it looks."""

    def __init__(self, methods: _Methods, name: str) -> None:
        self.methods, self.name = methods, name

    def __get__(self, instance: object, owner: Any) -> Any:
        import dataclasses  # late: few programs look

        cls, theirs = self.methods.cls, {}
        for name, mine in self.methods.fields.items():
            default: Any = dataclasses.MISSING if mine.default is MISSING else mine.default
            factory: Any = dataclasses.MISSING if mine.factory is MISSING else mine.factory
            made: Any = dataclasses.field(
                default=default, default_factory=factory, compare=mine.compare, repr=mine.repr
            )
            made.name, made.type, made.kw_only = name, mine.type, False
            made._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
            theirs[name] = made
        empty: Any = dataclasses.dataclass(frozen=self.methods.frozen)(type("Empty", (), {}))
        cls.__dataclass_fields__, cls.__dataclass_params__ = theirs, vars(empty)["__dataclass_params__"]
        return vars(cls)[self.name]


class _Slotted:
    __slots__ = ("one",)


_Slot: Final = type(vars(_Slotted)["one"])


def _frozen(cls: Any, fields: dict[str, Field], what: str) -> Any:
    """`__setattr__` or `__delattr__` of a class whose instances do not change; those of subclasses may have more."""
    usual = "__setattr__" if what == "assign to" else "__delattr__"

    def refuse(self: Any, name: str, *value: Any) -> None:
        if type(self) is cls or name in fields:
            raise FrozenInstanceError(f"cannot {what} field {name!r}")
        getattr(super(cls, self), usual)(name, *value)

    return refuse


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__record_fields__]


def _setstate(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__record_fields__, state, strict=True):
        object.__setattr__(self, name, value)
