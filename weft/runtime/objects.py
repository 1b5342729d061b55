"""Nodes and arrays, made by machine code: what a trace does most is to make one node and one array for it.

CPython calls these functions as it calls any builtin. Each does what a few lines of Python do elsewhere, which stay the
definition: they are what runs on an interpreter that is not `KNOWN`, and while lines are recorded (`watch`). Where the
attributes of an object lie is found by looking at one. The code itself is in `weft.runtime.object_code`.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from weft.errors import CompileError, ConfigError
from weft.lazy import lazy
from weft.llvm import engine
from weft.runtime import guard_table
from weft.runtime.cpython import (
    builtin,
    called_with,
    ends_with,
    held_count,
    keep,
    keeps_attributes,
    method,
    operates_with,
)
from weft.runtime.object_table import (
    BUFFER_SLOTS,
    FUNCTIONS,
    HEAD_WORDS,
    MOST_ARRAYS,
    MOST_RECYCLED,
    MOST_SHELVED,
    NODE_SLOTS,
    OPERATORS,
    PLACES,
    RECYCLED,
    RUN_PLAIN,
    SHELF_ROW,
    SHELF_STEP,
    STORAGE_SLOTS,
    TABLE,
    references_at,
)

if TYPE_CHECKING:
    from weft.runtime import object_module
else:
    object_module = lazy("weft.runtime.object_module")  # written when its object is not in the cache

KNOWN: Final = ((3, 11), (3, 12), (3, 13))
"""The versions of CPython that the machine code has been tested with, each with one lock for all threads. On all others
(later ones, builds without the lock, other interpreters) Python's forms are used."""

Step = tuple[Any, Any, tuple[int, ...]]
"""(operation, kind of its result, places of its operands), or (None, a node to be used as it is, ())."""
_MOST_PLACES: Final = 1024

Kinds = dict[Any, Any]
Known = tuple[Kinds, Kinds, Kinds, dict[Any, dict[float, Any]], dict[Any, dict[int, Any]]]
"""What is known of an operation: the kind of its result by the kind of two arrays, of an array beside a float and of
one beside an int; and the nodes of floats and of ints, by the kind of the array that they stand beside."""


def attributes_of(cls: type, names: Iterable[str]) -> dict[str, int] | None:
    """How many bytes into an instance of a class with `__slots__` each of these attributes lies: found by giving an
    instance one object after the other. None if it is not laid out as CPython's objects are."""
    instance: Any = object.__new__(cls)
    mark = object()
    words = (ctypes.c_size_t * (cls.__basicsize__ // ctypes.sizeof(ctypes.c_size_t))).from_address(id(instance))
    if words[HEAD_WORDS - 1] != id(cls):
        return None
    places: dict[str, int] = {}
    for name in names:
        setattr(instance, name, mark)
        found = [i for i in range(HEAD_WORDS, len(words)) if words[i] == id(mark)]
        delattr(instance, name)
        if len(found) != 1:
            return None
        places[name] = found[0] * ctypes.sizeof(ctypes.c_size_t)
    return places


class Makers:
    """The functions, each in its native form once the classes are known, and in Python's as long as they are not."""

    def __init__(self) -> None:
        self._table = (ctypes.c_int64 * len(TABLE))()
        self._watchers = 0
        self._has_nodes = self._has_arrays = False
        self._array_type: type = object
        self.runs = False
        """Whether machine code runs programs."""

    def nodes(self, cls: type, counter: Iterator[int]) -> None:
        """Nodes are of this class, and get their numbers from `counter`."""
        places = attributes_of(cls, NODE_SLOTS) if is_known_interpreter() and self._load() else None
        if places is None:
            return
        for name, place in places.items():
            self._table[TABLE[f"at_{name}"]] = place
        self._hold("node_type", cls)
        self._hold("counter", counter)
        self._recycle("node", cls)
        self._has_nodes = True

    def arrays(self, cls: type, instead: Callable[..., Any]) -> Callable[..., Any]:
        """`wrap(node)` for arrays of a class, or `instead`, which does the same."""
        places = attributes_of(cls, ["_node"]) if self._has_nodes else None
        if places is None:
            return instead
        self._table[TABLE["at_node"]] = places["_node"]
        self._hold("array_type", cls)
        self._recycle("array", cls)
        self._array_type = cls
        self._has_arrays = True
        return self._function("wrap", instead)

    def unary(self, op: Any, kinds: dict[Any, Any], instead: Callable[..., Any]) -> Callable[..., Any]:
        """A function of one array: op of it, if `kinds` knows the kind of the result; else what `instead` gives."""
        return self._function("unary", (op, kinds, instead)) if self._has_arrays else instead

    def binary(self, op: Any, known: Known, instead: Callable[..., Any]) -> Callable[..., Any]:
        """A function of two arrays of one kind, or of an array and a number: op of them, or what `instead` gives."""
        return self._function("binary", (op, known[0], instead, *known[1:])) if self._has_arrays else instead

    def reflected(self, op: Any, known: Known, instead: Callable[..., Any]) -> Callable[..., Any]:
        """A function of an array and a number: op of the number and the array, or what `instead` gives."""
        return self._function("reflected", (op, known[0], instead, *known[1:])) if self._has_arrays else instead

    def operators(self, functions: dict[str, Callable[..., Any]]) -> None:
        """Operators of arrays are these functions of two operands, which `binary` has made, without a call of the
        methods. Those have to be there, and are called for all else."""
        for name, function in functions.items() if self._has_arrays else ():
            self._hold(f"known_{name}", function.__self__)  # type: ignore[attr-defined]
            place, method = OPERATORS[name]
            self._hold(f"forward_{name}", self._array_type.__dict__[f"__{method}__"])
            self._hold(f"reflected_{name}", self._array_type.__dict__[f"__r{method}__"])
            operates_with(self._array_type, place, self._table[TABLE[f"operator_{name}"]])

    def recipe(
        self, given: int, results: Sequence[Any], steps: Sequence[Step], instead: Callable[..., Any], adds: Any = None
    ) -> Callable[..., Any]:
        """A function of `given` nodes that makes others of them, step by step; operands and results are counted from
        the nodes given on. The node at the place `results[0]` is what it returns.

        With `adds`, the operation that adds two nodes: a function of a dict too, to which `results`, (place of a
        receiver, place of what it gets), are added."""
        if not self._has_nodes or given + len(steps) > _MOST_PLACES:
            return instead
        code = [given, len(steps)]
        code += results if adds is None else [len(results), *[place for pair in results for place in pair]]
        objects: list[Any] = []
        for op, what, operands in steps:
            code += [len(operands), *operands]
            objects += [op, what]
        bound = (struct.pack(f"{len(code)}q", *code), tuple(objects), instead)
        return self._function("forward", bound) if adds is None else self._function("backward", (*bound, adds))

    def spread(self, instead: Callable[..., Any]) -> Callable[..., Any]:
        """`spread(found, seen, oldest, start)`; see `instead`, which is the same."""
        return self._function("spread", instead) if self._has_nodes else instead

    def follow(self, instead: Callable[..., Any]) -> Callable[..., Any]:
        """`follow(found, seen, path, start)`; see `instead`, which is the same."""
        return self._function("follow", instead) if self._has_nodes else instead

    def by_age(self, instead: Callable[..., Any]) -> Callable[..., Any]:
        """`by_age(found)`; see `instead`, which is the same."""
        return self._function("by_age", instead) if self._has_nodes else instead

    def pull(self, rules: dict[Any, Any], cls: type, one: Any, instead: Callable[..., Any]) -> Callable[..., Any]:
        """`pull(path, gathered, active)`; see `instead`, which is the same. Rules, of a class `cls`, are found by (op,
        mask, *kinds of operands); the mask says which operands are active, and whether a cotangent is `one`."""
        places = attributes_of(cls, ["run"]) if self._has_nodes else None
        if places is None:
            return instead
        self._table[TABLE["at_run"]] = places["run"]
        return self._function("pull", (rules, one, instead))

    def recall(
        self, known: dict[Any, Any], cls: type, function: Any, arrays: int, wrap: Any, instead: Callable[..., Any]
    ) -> Callable[..., Any]:
        """`recall(*arguments)`; see `instead`, which is the same. What is known, of a class `cls`, is found by
        (function, *kinds of its first arguments, *classes of the others, *the others)."""
        places = attributes_of(cls, ["run"]) if self._has_arrays and arrays <= MOST_ARRAYS else None
        if places is None:
            return instead
        self._table[TABLE["at_run"]] = places["run"]
        return self._function("recall", (known, function, arrays, wrap, instead))

    def sweep(self, instead: Callable[..., Any], *known: Any) -> Callable[..., Any]:
        """`sweep(roots, order, bundles, updates)`; see `instead`, which is the same. `known` are the classes of slices,
        of slice updates, of nodes with several results and of tapes, and the function that finds the value of a
        slice."""
        return self._function("sweep", (instead, *known)) if self._has_nodes else instead

    def describe(self, instead: Callable[..., Any], buffer: type, *known: Any) -> Callable[..., Any]:
        """`describe(order, wanted, index, key, leaves, constants, results)`; see `instead`, which is the same. `known`
        are the class of constants, that of weak references, `has_handle`, what stands for data and for a result in a
        key, and the function that raises for other values than buffers and constants."""
        places = attributes_of(buffer, ["strides"]) if self._has_nodes else None
        if places is None:
            return instead
        self._table[TABLE["at_strides"]] = places["strides"]
        return self._function("describe", (instead, buffer, *known))

    def resembles(self, instead: Callable[..., Any], *known: Any) -> Callable[..., Any]:
        """`resembles(order, wanted, parts, numbers, found)`; see `instead`, which is the same. `known` is what
        `describe` is made with, which comes first."""
        return self._function("resembles", (instead, *known)) if self._has_nodes else instead

    def divide(self, instead: Callable[..., Any], known: dict[Any, Any], division: Callable[..., Any]) -> Any:
        """`divide(key, form, sizes)`; see `instead`, which is the same. `known` is what `division` has found."""
        return self._function("divide", (instead, known, division)) if self._has_nodes else instead

    def guards(
        self, steps: Sequence[guard_table.Step], buffer: type, instead: Callable[..., int]
    ) -> Callable[..., int]:
        """`take(values, arrays, objects, apart, places, scalars, kinds, buffers)`; see `instead`, which is the same,
        and gets the steps first. Values that lie in memory are of the class `buffer`."""
        places = attributes_of(buffer, ["strides"]) if self._has_arrays else None
        if places is None:
            return functools.partial(instead, steps)
        self._table[TABLE["at_strides"]] = places["strides"]
        noted = sum([step[0] in guard_table.NOTED for step in steps])
        seen = (ctypes.c_int64 * (2 << noted.bit_length()))()
        words = guard_table.words_of(steps, ctypes.addressof(seen), len(seen) - 1)
        code = struct.pack(f"{len(words)}q", *words)
        known = (guard_table.ABSENT, guard_table.VARIES, "__dict__", buffer)
        return self._function("take_steps", (instead, steps, code, *known, seen))

    def memory(
        self, instead: Callable[..., Any], buffer: type, storage: type, pool: Any,
        allocate: Callable[[int], Any], take_block: Callable[[int], int], go_on: Callable[..., int],
        run_plain: Callable[[], int],
    ) -> Callable[..., Any]:  # fmt: skip
        """`run_buffers(table, inputs, words)`; see `instead`. From here on storages give their memory back by machine
        code. `run_plain` gives the address of the interpreter's function, which is loaded for it."""
        classes = ((buffer, BUFFER_SLOTS, ""), (storage, STORAGE_SLOTS, "storage_"))
        if not self._has_nodes or not all(self._places(*each) for each in classes):
            return instead
        known = (
            ("buffer_type", buffer), ("storage_type", storage), ("idle", pool.idle),
            ("pop", deque.pop), ("append", deque.append), ("trim", pool.trim_cache), ("allocate", allocate),
            ("take_block", take_block), ("go_on", go_on),
        )  # fmt: skip
        for name, value in known:
            self._hold(name, value)
        shelf = (ctypes.c_int64 * (SHELF_ROW * (MOST_SHELVED // SHELF_STEP + 1)))()
        for name, place in (("counters", pool), ("shelf", shelf)):
            keep(place)
            self._table[TABLE[name]] = ctypes.addressof(place)
        if not self._recycle("storage", storage):
            return instead
        keeps_attributes(storage)  # or it would not know at its end what to give back
        del storage.__del__  # type: ignore[attr-defined]
        self._recycle("buffer", buffer)
        pool.unshelve = self._function("unshelve", None)
        self._table[TABLE[RUN_PLAIN]] = run_plain()
        self.runs = True
        return self._function("run_buffers", None)

    def executables(self, cls: type) -> None:
        """Executables are of this class, or one that inherits from it."""
        self.runs = self._places(cls, ["runs"]) and self.runs

    def evaluate_one(
        self, instead: Callable[..., Any], recipe: type, constant: type, config: Any, data: Any, traces: Any,
        devices: Any, lock: Any, entries: Any, *known: Any,
    ) -> Callable[..., Any]:  # fmt: skip
        """`evaluate_one(node)`; see `instead`, which is the same. Recipes and constants are of these classes, `config`
        has the settings, `data` is the operation of what has been computed, `traces` and `devices` are those that are
        open or used, `lock` and `entries` those of evaluation; `known` is what `running_code` says."""
        classes = ((recipe, ["quick"]), (constant, ["words"]), (type(config), ["disable_compile", "check"]))
        if not self._has_nodes or not all(self._places(*each) for each in classes):
            return instead
        for name, value in (("config", config), ("data", data), ("traces", traces), ("devices", devices)):
            self._hold(name, value)
        self._table[TABLE["turns"]], self._table[TABLE["entries"]] = held_count(lock), ctypes.addressof(entries)
        return self._function("evaluate_one", (instead, *known))

    def calls(self, cls: type, verify: Callable[..., None]) -> None:
        """Calls of compiled functions, which are of this class, are made by machine code; it calls what is the method
        `__call__` so far where it cannot. `verify(self, record, *arguments)` is called first where the settings say so.
        `evaluate_one` comes before it."""
        if not self._has_arrays or not self._table[TABLE["config"]]:
            return
        if not self._places(cls, ["calls"], slots=["_calls"]):
            return
        self._hold("call_compiled", cls.__dict__["__call__"])
        self._hold("verify_call", verify)
        setattr(cls, "__call__", method(cls, "__call__", self._table[TABLE["call_compiled_quickly"]]))  # noqa: B010
        called_with(cls, self._table[TABLE["call_compiled_with"]])

    def _recycle(self, name: str, cls: type) -> bool:
        """Let machine code end objects of a class, if they are laid out as `RECYCLED` says."""
        attributes, has_references = RECYCLED[name]
        at = references_at(attributes) if has_references else 0
        words = HEAD_WORDS + attributes + (at > 0)
        if (cls.__basicsize__, cls.__weakrefoffset__) != (8 * words, 8 * at):
            return False
        self._table[TABLE[f"room_{name}"]] = MOST_RECYCLED
        return ends_with(cls, self._table[TABLE[f"end_{name}"]])

    def _places(self, cls: type, names: Sequence[str], prefix: str = "", slots: Sequence[str] | None = None) -> bool:
        """Find where attributes lie, which are called `slots` if not by their names: whether they could be found."""
        places = attributes_of(cls, slots or names)
        if places is None:
            return False
        for name, place in zip(names, places.values(), strict=True):
            self._table[TABLE[f"at_{prefix}{name}"]] = place
        return True

    def watch(self, on: bool) -> None:
        """Somebody wants to see how nodes are made (or no longer does): Python's forms are used meanwhile."""
        self._watchers += 1 if on else -1
        self._table[TABLE["watched"]] = self._watchers

    def overlay(self, on: bool) -> None:
        """Arrays may have other nodes for some thread (graph/overlay.py), or no longer do: Python's forms are used
        wherever the node of an array is read."""
        self._table[TABLE["overlaid"]] = on

    def place(self, device: Any) -> None:
        """Nodes are computed on a device (None: the host) from now on, unless Python's forms make them."""
        if device is None:
            self._table[TABLE["device"]] = 0
        else:
            self._hold("device", device)

    def _load(self) -> bool:
        """Whether the machine code could be had; if not, evaluation will say why."""
        source = engine.Source(
            f"runtime:objects:{platform.machine()}:{sys.version_info[1]}",
            "weft_objects",
            lambda: object_module.native_code(),
        )
        try:
            for name in FUNCTIONS:
                self._table[TABLE[name]] = ctypes.cast(ctypes.pythonapi[name], ctypes.c_void_p).value or 0
            bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.load_for_good(source))
        except (AttributeError, CompileError, ConfigError, MemoryError, OSError):
            return False
        for name, value in (
            ("none", None), ("float_type", float), ("int_type", int), ("bool_type", bool), ("str_type", str),
            ("bytes_type", bytes), ("tuple_type", tuple), ("list_type", list), ("attribute_error", AttributeError),
            ("true", True), ("false", False), ("not_implemented", NotImplemented), ("no_operands", ()),
        ):  # fmt: skip
            self._hold(name, value)
        places = (ctypes.c_int64 * PLACES)()
        keep(places)
        self._table[TABLE["places"]] = ctypes.addressof(places)
        keep(self._table)
        bind(ctypes.addressof(self._table))
        return True

    def _hold(self, name: str, value: Any) -> None:
        keep(value)
        self._table[TABLE[name]] = id(value)

    def _function(self, entry: str, bound: Any) -> Callable[..., Any]:
        return builtin(entry, self._table[TABLE[entry]], bound)


def is_known_interpreter() -> bool:
    """Whether this is one of `KNOWN`; builds without the lock have a "t" among their flags, those for debugging, whose
    objects have more words, a "d"."""
    known = sys.implementation.name == "cpython" and sys.version_info[:2] in KNOWN
    return known and not {"t", "d"}.intersection(sys.abiflags) and sys.int_info.bits_per_digit == 30


MAKERS: Final = Makers()
