"""What a call of a function can see: its arguments, and the state it captures through closures, globals, defaults,
bound objects and containers.

A `Walk` goes over all of it in a fixed order. It yields a key (two calls with equal keys run the same trace), the
arrays (inputs of the trace, read anew at each call) and the containers (whose changes a trace records and a call
replays). Python values are part of the key; what cannot be told apart reliably makes the walk `opaque`, and the
function then runs plain.
"""

from __future__ import annotations

import builtins
import functools
import site
import sys
import sysconfig
import types
from collections.abc import Callable, Iterator
from typing import Any

from weft.array import array
from weft.dtypes import Dtype

MOST = 20_000
"""Objects that one walk looks at before it gives up."""

_PLAIN = frozenset({type(None), bool, int, str, bytes, type(Ellipsis), slice, range, Dtype, type(NotImplemented)})
_CODE = (
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
)
_INSTALLED = tuple(
    {*(sysconfig.get_paths()[kind] + "/" for kind in ("stdlib", "purelib", "platlib")),
     *(p + "/" for p in site.getsitepackages())}
)  # fmt: skip


class Walk:
    """One pass over everything that a call can see. Call `visit` for each root, then read the results."""

    __slots__ = ("arrays", "containers", "count", "key", "opaque", "seen", "shapeless")

    def __init__(self, shapeless: bool = False) -> None:
        self.shapeless = shapeless
        """Whether sizes of arrays are left out of the key (but for 0 and 1, which are never symbols)."""
        self.key: list[Any] = []
        self.arrays: list[array] = []
        self.containers: list[Any] = []
        self.seen: dict[int, int] = {}
        self.opaque: str | None = None
        self.count = 0

    def visit(self, value: Any) -> None:
        """Add one value to the key, and what it holds."""
        cls = value.__class__
        key = self.key
        if cls is array:
            place = self.seen.get(id(value))
            if place is None:
                self.seen[id(value)] = len(self.arrays)
                self.arrays.append(value)
                key.append(array)
            else:
                key.append(place)
            kind = value._node.kind
            key.append((kind.dtype, tuple(n if n < 2 else -1 for n in kind.shape)) if self.shapeless else kind)
            return
        if cls in _PLAIN:
            key.append(cls)
            key.append(value if cls is not slice else (value.start, value.stop, value.step))
            return
        if cls is float or cls is complex:
            key.append(cls)
            key.append(repr(value))  # tells 0.0 from -0.0, and nan is equal to nan
            return
        self._visit_object(value, cls)

    def _visit_object(self, value: Any, cls: type) -> None:
        key = self.key
        place = self.seen.get(id(value))
        if place is not None:
            key.append(("again", place))
            return
        self.count += 1
        if self.count > MOST:
            self.opaque = f"more than {MOST} captured objects"
            return
        self.seen[id(value)] = -len(self.seen) - 1
        if isinstance(value, tuple):
            key.append((cls, len(value)))
            for item in value:
                self.visit(item)
        elif cls is list or cls is dict:
            self._visit_container(value, cls)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value)
        elif isinstance(value, types.MethodType):
            key.append(types.MethodType)
            self.visit(value.__func__)
            self.visit(value.__self__)
        elif isinstance(value, functools.partial):
            key.append(functools.partial)
            for part in (value.func, value.args, value.keywords):
                self.visit(part)
        elif isinstance(value, _CODE):
            key.append(value)
        elif isinstance(value, type):
            self._visit_class(value)
        else:
            self._visit_instance(value, cls)

    def _visit_container(self, value: Any, cls: type) -> None:
        self.containers.append(value)
        self.key.append((cls, len(value)))
        if isinstance(value, dict):
            for name, item in value.items():
                self.visit(name)
                self.visit(item)
        else:
            for item in value:
                self.visit(item)

    def _visit_function(self, function: types.FunctionType) -> None:
        self.key.append(function.__code__)
        ours = function.__module__ is not None and function.__module__.partition(".")[0] == "weft"
        if not ours and _is_installed(function.__code__.co_filename):
            return
        for cell in function.__closure__ or ():
            try:
                self.visit(cell.cell_contents)
            except ValueError:  # not assigned yet
                self.key.append(None)
        for part in (function.__defaults__, function.__kwdefaults__):
            if part is not None:
                self.visit(part)
        if ours:
            return
        for name in global_names(function.__code__):
            if name in function.__globals__:
                self.key.append(name)
                self.visit(function.__globals__[name])

    def _visit_class(self, cls: type) -> None:
        self.key.append(cls)
        module = sys.modules.get(cls.__module__)
        if cls.__module__ in ("builtins", "weft") or cls.__module__.startswith("weft.") or module is None:
            return
        if _is_installed(getattr(module, "__file__", None) or ""):
            return
        for name, value in vars(cls).items():
            if (
                not name.startswith("__") and not callable(value) and not hasattr(type(value), "__get__")
            ):  # no methods or properties
                self.key.append(name)
                self.visit(value)

    def _visit_instance(self, value: Any, cls: type) -> None:
        fun = getattr(value, "__wrapped_function__", None)
        if fun is not None:
            self.key.append(cls)
            self.visit(fun)
            return
        if isinstance(value, array):
            self.opaque = f"a subclass of array ({cls.__name__})"
            return
        if isinstance(value, (set, frozenset)):
            self.key.append((cls, tuple(sorted(map(repr, value)))))
            return
        if cls.__module__.partition(".")[0] == "weft" and not isinstance(value, (dict, list)):
            self.key.append(value)
            return
        state = getattr(value, "__dict__", None)
        file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
        unknown = state is None or _is_installed(file) or cls.__module__ == "builtins"
        if unknown and not isinstance(value, (dict, list)):
            self.opaque = f"an object of type {cls.__module__}.{cls.__qualname__}"
            return
        self._visit_class(cls)
        if isinstance(value, (dict, list)):
            self._visit_container(value, cls)
        if state is not None:
            self.containers.append(state)
            self.key.append(len(state))
            for name, item in state.items():
                self.key.append(name)
                self.visit(item)


@functools.lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """Names that a function, or a function defined inside it, may read from its globals."""
    names: dict[str, None] = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(dict.fromkeys(global_names(constant)))
    return tuple(name for name in names if not hasattr(builtins, name))


@functools.lru_cache(maxsize=4096)
def _is_installed(filename: str) -> bool:
    """Code of Python or of an installed package: it does not change under us."""
    return filename.startswith(_INSTALLED) or filename.startswith("<frozen")


class Snapshot:
    """The state of containers and arrays before a trace, to be compared with and put back after it."""

    def __init__(self, walk: Walk) -> None:
        self.containers = [(c, c.copy() if isinstance(c, dict) else list(c)) for c in walk.containers]
        self.nodes = [(a, a._node) for a in walk.arrays]

    def changed_containers(self) -> Iterator[tuple[int, Any]]:
        """(position, contents) of containers that are not as they were."""
        for i, (container, before) in enumerate(self.containers):
            if isinstance(container, dict) and isinstance(before, dict):
                same = len(container) == len(before) and all(
                    k1 is k2 and v1 is v2 for (k1, v1), (k2, v2) in zip(container.items(), before.items(), strict=True)
                )
                if not same:
                    yield i, dict(container)
            elif len(container) != len(before) or any(x is not y for x, y in zip(container, before, strict=True)):
                yield i, list(container)

    def restore(self) -> None:
        for container, before in self.containers:
            put_back(container, before)
        for a, node in self.nodes:
            a._node = node


def put_back(container: Any, contents: Any) -> None:
    """Make a container hold exactly `contents`, in their order."""
    if isinstance(container, dict):
        dict.clear(container)
        dict.update(container, contents)
    else:
        list.__setitem__(container, slice(None), contents)


Function = Callable[..., Any]
