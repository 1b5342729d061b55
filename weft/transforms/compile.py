"""compile: a function traced once, then run as a program. It gives what the plain function gives, or traces again, or
says why it cannot.

A call walks its arguments and captured state (capture.py). Equal keys mean that a trace may hold: if its numbers and
sizes decide as they did, its program runs on the arrays as they are now, changes that the function made to arrays and
containers are made again, and the results are put together as the function returned them (variant.py, replay.py).
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from weft import tree
from weft.array import array, wrap
from weft.config import config
from weft.evaluate import close, evaluate
from weft.graph.dims import DimEnv
from weft.graph.node import ArrayType, Graph, Node, reachable
from weft.graph.overlay import HERE, Overlay
from weft.graph.placement import USED, current
from weft.graph.trace import finishing, is_tracing, trace
from weft.primitives.base import DATA, Placeholder
from weft.runtime.data import Buffer, numpy_view, to_buffer
from weft.runtime.guard_table import NO, WAITING
from weft.runtime.objects import MAKERS
from weft.runtime.run_layout import EXECUTABLE, MOST_ARGUMENTS
from weft.transforms import state
from weft.transforms.bindings import Bindings, closed_bindings
from weft.transforms.capture import Slot, Walk, number_key
from weft.transforms.computed import CURRENT, KnownSizes
from weft.transforms.drawing import DRAWING, RANDOM_STATE
from weft.transforms.guards import Guards, NoRecording, Recording
from weft.transforms.tracing import DRAWS, TRACES, Attempt, Snapshot, is_traced_elsewhere
from weft.transforms.variant import STALE, Planned, Variant

MOST_VARIANTS = 1024
"""Traces that one function keeps."""
MANY_VARIANTS = 32
"""Traces after which a function is said to keep retracing."""
MOST_SMALL = 1024
"""Kinds of arguments by which traces of few operations are found at once."""
MISSING = object()
"""The answer of `_known` where there is no trace."""
ELSEWHERE = "what another thread is tracing"
"""The answer of `_miss` where the function is to run plain, this once: plain is what any other moment gives, too."""
MOST_DECISIONS = 8
"""Traces that differ in how numbers were compared; beyond them the numbers themselves are looked up."""
MOST_GUARDS = 4
"""Walks that a function remembers."""
MOST_VAIN_GUARDS = 16
"""Walks that are remembered one after the other, and none of them comes again, until that is given up."""
MOST_REMEMBERED_AT_ONCE = 8
"""Traces whose walks are remembered when they are made; those of later ones when they come again."""
VERIFICATIONS = 3
"""Times that a walk which sees other than its guards is made again, with WEFT_CHECK."""


class Entry:
    """The traces for one key: by the numbers that they hold for, where they hold for certain numbers only."""

    __slots__ = ("by_value", "table")

    def __init__(self) -> None:
        self.by_value: tuple[int, ...] = ()
        """Which of a call's scalars are looked up."""
        self.table: dict[tuple[Any, ...], list[Variant]] = {}

    def key(self, scalars: Sequence[Any]) -> tuple[Any, ...]:
        return tuple([number_key(scalars[i]) for i in self.by_value])

    def look_up(self, more: Sequence[int]) -> int:
        """More scalars are to be looked up; traces that did not are forgotten. How many."""
        together = tuple(sorted({*self.by_value, *more}))
        if together == self.by_value:
            return 0
        dropped = sum(map(len, self.table.values()))
        self.by_value = together
        self.table.clear()
        return dropped

    def __iter__(self) -> Iterator[Variant]:
        return (variant for variants in self.table.values() for variant in variants)


class Seen(NamedTuple):
    """What one call sees."""

    walk: Walk
    key: tuple[Any, ...]
    buffers: list[Buffer]
    kinds: list[ArrayType]
    symbolic: int
    """How many arrays, the first ones, have symbols for sizes."""
    layouts: Sequence[Any]
    """(number, strides) of arrays that do not lie in memory row by row."""
    is_closed: bool
    """Whether it was enough to look at the arguments."""


class Compiled:
    """A function that `compile` was given. Call it as the function itself."""

    __slots__ = ("__dict__", "__weakref__", "_calls")

    def __init__(self, fun: Callable[..., Any], inputs: Any, outputs: Any, shapeless: bool) -> None:
        functools.update_wrapper(self, fun, updated=())
        self.__wrapped_function__ = fun
        self._roots = (fun, inputs, outputs)
        self._asked_shapeless = self._shapeless = shapeless
        self._variants: dict[tuple[Any, ...], Entry] = {}
        self._count = 0
        self._bindings: Bindings | None = None
        self._open: bool | None = None
        self._varying: frozenset[Slot] = frozenset()
        self._quick: dict[tuple[Any, ...], Entry] = {}
        """The same entries by shorter keys, for `_call_quickly`."""
        self._calls: tuple[tuple[Any, ...], dict[tuple[Any, ...], tuple[Any, ...]], list[Any]] | None = None
        """What machine code needs for the usual calls, by the same keys, and what the function is bound to."""
        self._small: dict[tuple[Any, ...], list[Variant]] = {}
        """Traces of few operations, for `_call_lazily`: by what tells them apart, and by kinds of arguments."""
        self._guards: tuple[tuple[int, tuple[str, ...], Guards], ...] = ()
        """Walks that were made, by the number of arguments and the names of those with names; the latest first."""
        self._vain_guards = 0
        self._numbers: dict[Slot, int | float] = {}
        self._last: tuple[tuple[Any, ...], Sequence[Any]] | None = None
        self._warned: set[str] = set()
        self.traces = 0
        """How often the function has been traced."""
        self.plain_because: str | None = None
        """What made the function run plain the last time that it did."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_tracing() or config.disable_compile:
            return self.__wrapped_function__(*args, **kwargs)
        if self._quick and not kwargs:
            answer = self._call_quickly(args)
            if answer is not _NOT_QUICK:
                return answer
        if self._small and not kwargs:
            answer = self._call_lazily(args)
            if answer is not _NOT_QUICK:
                return answer
        while True:
            answer = self._known(args, kwargs)
            if answer is MISSING:
                answer = self._first(args, kwargs)
            if answer is not STALE:
                return answer

    def _known(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer by a trace that there is; MISSING if there is none that holds. (Then nothing holds what was seen,
        as far as reference counts can tell.)"""
        recognized = self._recognize(args, kwargs) if self._guards else None
        if recognized is not None:
            seen, entry = recognized
        else:
            made = self._see(args, kwargs, self._remembers_at_once())
            if made is None:
                return STALE
            seen = made
            if seen.walk.opaque is not None:
                return self._plain(seen.walk.opaque, args, kwargs)
            known = self._variants.get(seen.key)
            if known is None:
                return MISSING
            entry = known
            if not self._remembers_at_once() and self._vain_guards < MOST_VAIN_GUARDS:  # it has come again
                made = self._see(args, kwargs)
                if made is None or made.key != seen.key:
                    return STALE
                seen = made
            self._remember(seen, entry, len(args), tuple(kwargs))
        walk = seen.walk
        if TRACES and is_traced_elsewhere(walk):
            return self.__wrapped_function__(*args, **kwargs)
        found = self._find(seen, entry)
        if found is None:
            return MISSING
        variant, recipe, numbers = found
        run = variant.update if variant.updates.candidates else variant.run
        return run(recipe, numbers, seen.buffers, walk)

    def _first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer by a new trace."""
        made = self._miss(args, kwargs)
        if made is ELSEWHERE:
            return self.__wrapped_function__(*args, **kwargs)
        if isinstance(made, str):
            return self._plain(made, args, kwargs)
        return STALE if made is None else _run_first(*made)

    def _find(self, seen: Seen, entry: Entry | None) -> tuple[Variant, Planned, Sequence[Any]] | None:
        """A trace that holds for a call, with its program and numbers."""
        if entry is None:
            return None
        scalars = seen.walk.scalars
        for variant in entry.table.get(entry.key(scalars) if entry.by_value else (), ()):
            numbers = _numbers(variant, scalars)
            if numbers is not None:
                recipe = variant.recipe_for(seen.kinds, seen.buffers, numbers)
                if recipe is not None:
                    return variant, recipe, numbers
        return None

    def _call_quickly(self, args: tuple[Any, ...]) -> Any:
        """The usual call, in few steps: a function that sees nothing but its arguments, which are arrays and numbers,
        and does nothing but return what it made. If they are arrays, machine code makes the next such call."""
        if USED and current() is not None:
            return _NOT_QUICK
        found = self._find_quickly(args)
        if found is None:
            return _NOT_QUICK
        key, variant, numbers, buffers = found
        answer = variant.run(variant.recipe, numbers, buffers, None)
        if MAKERS.runs and len(buffers) == len(args) <= MOST_ARGUMENTS:
            self._remember_call(key, variant)
        return answer

    def _find_quickly(self, args: tuple[Any, ...]) -> tuple[Any, Variant, Sequence[Any], list[Buffer]] | None:
        """The key of such a call, the trace that holds for it, its numbers, and where its arrays lie."""
        key: list[Any] = []
        buffers: list[Buffer] = []
        scalars: list[Any] = []
        for argument in args:
            cls = argument.__class__
            if cls is array:
                node = argument._node
                value = node.value
                if value.__class__ is not Buffer:
                    return None
                key += (node.kind, value.strides)
                buffers.append(value)
            elif cls is float or cls is int:
                key += (cls, None)
                scalars.append(argument)
            else:
                return None
        found = tuple(key)
        entry = self._quick.get(found)
        if entry is None or not self._bindings.hold():  # type: ignore[union-attr]
            return None
        if len(buffers) > 1 and len(set(map(id, args))) != len(args):
            return None  # one array in two places: `is` could tell
        for variant in entry.table.get(entry.key(scalars) if entry.by_value else (), ()):
            numbers = _numbers(variant, scalars)
            if numbers is not None:  # this is the trace that holds; others of the key may do more than return
                return (found, variant, numbers, buffers) if variant.effects.alone and not variant.is_cut else None
        return None

    def _remember_call(self, key: tuple[Any, ...], variant: Variant) -> None:
        """Machine code is to make calls with this key from now on, if it can."""
        if self._calls is None:
            self._calls = (self._bindings.parts(), {}, [(), None])  # type: ignore[union-attr]
        _, records, latest = self._calls
        known = records.get(key)
        if known is None or known[EXECUTABLE] is not variant.recipe.executable:
            record = variant.call_record()
            if record is not None:
                records[key] = record
                latest[:] = (), None

    def _verify_call(self, record: tuple[Any, ...], *args: Any) -> None:
        """Compare what machine code has found with what Python finds, unless another thread has changed something."""
        for _ in range(2):
            found = self._find_quickly(args)
            if found is not None and found[1].recipe.executable is record[EXECUTABLE]:
                return
            if any(x.__class__ is array and x._node.value.__class__ is not Buffer for x in args):
                return  # another thread is about to overwrite it
        raise AssertionError(f"[check] a call of {_name(self.__wrapped_function__)} is taken for another one.")

    def _call_lazily(self, args: tuple[Any, ...]) -> Any:
        """A call of a small function on arrays of which some have not been computed yet: its operations are made again
        for these arrays, to be computed with whatever needs them, instead of computing what the arrays are first."""
        if USED:
            return _NOT_QUICK
        nodes: list[Node] = []
        waits = False
        for argument in args:
            if argument.__class__ is not array:
                return _NOT_QUICK
            node = argument._node
            waits = waits or node.value is None
            nodes.append(node)
        if not waits:
            return _NOT_QUICK
        kinds = tuple([node.kind for node in nodes])
        variants = self._small.get(kinds) or self._small_ones(nodes, kinds)
        if variants is None or not self._bindings.hold() or len(set(map(id, args))) != len(args):  # type: ignore[union-attr]
            return _NOT_QUICK
        for variant in variants:
            made = variant.again(nodes, kinds)
            if made is not None:
                if variant.effects.single:
                    return wrap(made[0])
                return variant.effects.carry_out([wrap(node) for node in made], None, ())
        return _NOT_QUICK

    def _small_ones(self, nodes: Sequence[Node], kinds: tuple[ArrayType, ...]) -> list[Variant] | None:
        """The small traces that may hold for these arrays, to be found by their kinds the next time."""
        found = self._small.get(self._small_key(nodes))
        if found is not None and len(self._small) < MOST_SMALL:
            self._small[kinds] = found
        return found

    def _small_key(self, nodes: Sequence[Node]) -> tuple[Any, ...]:
        """What tells small traces apart: kinds, or, where sizes are open, what is fixed of them."""
        if not self._shapeless:
            return tuple([node.kind for node in nodes])
        return tuple([(node.dtype, *[n if n < 2 else -1 for n in node.shape]) for node in nodes])

    def _see(self, args: tuple[Any, ...], kwargs: dict[str, Any], record: bool = True) -> Seen | None:
        """Walk over all that a call can see. None if it has to be done again."""
        reads = Recording(len(self._roots) + 1 + len(args) + len(kwargs)) if record else NoRecording()
        walk = Walk(self._shapeless, self._varying, reads=reads)
        walk.random = list(RANDOM_STATE[0])
        symbolic, is_closed = self._visit(walk, args, kwargs)
        if walk.asks_type and self._shapeless:
            self._shapeless = False  # a size that is asked for its type must be an int
            self._guards = ()
            return None
        buffers, kinds, layouts = self._buffers(walk)
        walk.key.extend(layouts)
        if USED and current() is not None:
            walk.key.append(current())
        return Seen(walk, tuple(walk.key), buffers, kinds, symbolic, layouts, is_closed)

    def _buffers(self, walk: Walk) -> tuple[list[Buffer], list[ArrayType], list[Any]]:
        """Where the arrays of a call lie, what kinds they are, and strides of those that need them."""
        buffers: list[Buffer] = []
        kinds: list[ArrayType] = []
        layouts: list[Any] = []
        for i, (a, node) in enumerate(zip(walk.arrays, walk.nodes, strict=True)):
            value = node.value
            while value.__class__ is not Buffer:
                node = a._evaluated(node)
                value = node.value
            if value.strides is not None:
                if self._shapeless:
                    made = _contiguous(node)
                    a._exchange(node, made)
                    value = made.value
                else:
                    layouts.append((i, value.strides))
            buffers.append(value)
            kinds.append(node.kind)
        return buffers, kinds, layouts

    def _recognize(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Seen, Entry] | None:
        """What a call sees and the traces for it, if a walk that was made before finds all as it was."""
        if USED:
            return None
        is_closed = not self._open and self._bindings.hold()  # type: ignore[union-attr]
        for count, names, guards in self._guards:
            if count != len(args) or names != tuple(kwargs) or guards.is_closed is not is_closed:
                continue
            seen = self._look_again(guards, args, kwargs)
            entry = None if seen is None else guards.entries.get(guards.layout(seen.kinds, seen.layouts))
            if seen is not None and entry is not None:
                self._vain_guards = 0
                if config.check:
                    self._verify(seen, entry, guards, args, kwargs)
                return seen, entry
        return None

    def _look_again(self, guards: Guards, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Seen | None:
        """What a call sees, if that is what an earlier walk saw; without a key."""
        walk = Walk()
        walk.random = list(RANDOM_STATE[0])
        buffers: list[Buffer] = []
        kinds: list[ArrayType] = []
        layouts: list[Any] = []
        values = [*self._roots, RANDOM_STATE[0], *args, *kwargs.values()]
        held = guards.take(values, walk.arrays, walk.objects, [], walk.containers, walk.scalars, kinds, buffers)
        if held == NO:
            return None
        if held == WAITING:
            walk.nodes = [a._node for a in walk.arrays]
            buffers, kinds, layouts = self._buffers(walk)
        return Seen(walk, (), buffers, kinds, guards.symbolic, layouts, guards.is_closed)

    def _remembers_at_once(self) -> bool:
        """Whether walks are remembered when they are made. A function that was traced often meets what never comes
        again: then a walk is remembered when it does."""
        return self.traces < MOST_REMEMBERED_AT_ONCE

    def _remember(self, seen: Seen, entry: Entry, count: int, names: tuple[str, ...]) -> None:
        """Remember a walk that found traces."""
        if USED or self._vain_guards >= MOST_VAIN_GUARDS:
            return
        if not seen.walk.reads.is_complete:
            self._vain_guards += seen.walk.reads.records
            return
        made = Guards(seen.walk.reads.steps, seen.walk.reads.given, seen.symbolic, seen.is_closed)
        layout = made.layout(seen.kinds, seen.layouts)
        for known_count, known_names, known in self._guards:
            if known_count == count and known_names == names and known.is_like(made):
                known.entries[layout] = entry
                return
        self._vain_guards += 1
        made.entries[layout] = entry
        self._guards = ((count, names, made), *self._guards[: MOST_GUARDS - 1])

    def _verify(self, seen: Seen, entry: Entry, guards: Guards, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Make the walk that was not made, and compare. What another thread does meanwhile may show in one of them: a
        fault is what shows every time."""
        for _ in range(VERIFICATIONS):
            if self._is_walked(seen, entry, args, kwargs):
                return
            again = self._look_again(guards, args, kwargs)
            if again is None or not _is_alike(seen.walk, again.walk):
                return
            if _numbers_of(again.walk) != _numbers_of(seen.walk):
                return
        raise AssertionError(f"[check] guards of {_name(self.__wrapped_function__)} hold where a walk sees more.")

    def _is_walked(self, seen: Seen, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a walk sees the same now, and finds the same traces. A number that changes is a scalar to guards
        wherever it stands, and to a walk in the object that it changed in."""
        made = self._see(args, kwargs)
        if made is None or not _is_alike(seen.walk, made.walk):
            return False
        if self._varying and len(made.walk.scalars) != len(seen.walk.scalars):
            return True
        return self._variants.get(made.key) is entry and _numbers_of(made.walk) == _numbers_of(seen.walk)

    def _visit(
        self, walk: Walk, args: tuple[Any, ...], kwargs: dict[str, Any], whole: bool = False
    ) -> tuple[int, bool]:
        """Visit all that a call can see. How many arrays have symbols for sizes, and whether the arguments are all."""
        visit = walk.visit
        walk.live = True
        at = len(self._roots) + 1
        for i, argument in enumerate(args):
            visit(argument, args, i, at + i)
        if kwargs:
            walk.key.append(tuple(kwargs))
            for i, (name, argument) in enumerate(kwargs.items(), len(args)):
                visit(argument, kwargs, name, at + i)
        walk.live = False
        symbolic = len(walk.arrays) if self._shapeless else 0
        walk.shapeless = False
        if self._open is None:
            self._bindings = closed_bindings(self.__wrapped_function__) if self._roots[1:] == (None, None) else None
            self._open = self._bindings is None
        is_closed = not whole and not self._open and self._bindings.hold()  # type: ignore[union-attr]
        if not is_closed:
            fun, inputs, outputs = self._roots
            visit(fun, at=0)
            drawn_from = RANDOM_STATE[0]
            walk.reaches_random = id(drawn_from) in walk.seen
            if inputs is not None:
                visit(inputs, at=1)
            if outputs is not None:
                visit(outputs, at=2)
            visit(drawn_from, at=3)
        walk.end()
        return symbolic, is_closed

    def _miss(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Variant, Seen] | str | None:
        """Make a trace. None if the call should look again: captured numbers turned out to change, or there is a trace
        by now. ELSEWHERE while another thread traces a function that may change what this one sees."""
        if self._found_varying(args, kwargs):
            return None
        seen = self._see(args, kwargs, self._remembers_at_once())
        if seen is None or seen.walk.opaque is not None or self._find(seen, self._variants.get(seen.key)) is not None:
            return None  # another thread was faster
        if id(RANDOM_STATE[0]) in seen.walk.seen and not all(id(x) in seen.walk.seen for x in seen.walk.random):
            return None  # another thread has drawn meanwhile
        entry = self._variants.get(seen.key) or Entry()
        found = self._trace(seen, entry, args, kwargs)
        if found is None:
            return ELSEWHERE
        made, by_value = found
        if made is DRAWS:
            self._open = True  # which could not be seen
            self._calls = None
            return None
        if isinstance(made, str):
            return made
        with _BOOKS:
            if self._find(seen, self._variants.get(seen.key)) is not None:
                return None
            entry = self._variants.get(seen.key) or entry
            self._count -= entry.look_up(by_value)
            self._keep(seen, entry, made)
            self._remember(seen, entry, len(args), tuple(kwargs))
            quick = not self._open and self._bindings.hold()  # type: ignore[union-attr]
            if quick and not self._shapeless and not kwargs and made.effects.alone and not made.is_cut:
                self._remember_quickly(entry, args, seen.buffers)
            alike = all(a.__class__ is array for a in args) and len(set(map(id, args))) == len(args)
            if quick and not kwargs and made.is_small and alike:
                self._small.setdefault(self._small_key([a._node for a in args]), []).insert(0, made)
        self._say_retracing(seen)
        return made, seen

    def _keep(self, seen: Seen, entry: Entry, made: Variant) -> None:
        self._variants[seen.key] = entry
        known = entry.table.setdefault(entry.key(seen.walk.scalars), [])
        known.insert(0, made)
        self._count += 1
        self.traces += 1
        if len(known) > MOST_DECISIONS and seen.walk.scalars:
            self._count -= entry.look_up(range(len(seen.walk.scalars)))
        if self._count > MOST_VARIANTS:
            self._forget()

    def _remember_quickly(self, entry: Entry, args: tuple[Any, ...], buffers: Sequence[Buffer]) -> None:
        plain = all(a.__class__ in (array, int, float) for a in args) and len(set(map(id, args))) == len(args)
        if plain and current() is None:
            lies = iter(buffers)
            parts = [(a._node.kind, next(lies).strides) if a.__class__ is array else (a.__class__, None) for a in args]
            self._quick[tuple([x for part in parts for x in part])] = entry

    def _trace(
        self, seen: Seen, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Variant | str, Sequence[int]] | None:
        """The trace, and the scalars that it holds for certain numbers of only. If something cannot live with what
        stands for a number, the function is traced again on plain numbers."""
        everything = range(len(seen.walk.scalars))
        fixed = set(everything) if seen.walk.asks_type else set(entry.by_value)
        attempt = Attempt(self.__wrapped_function__, seen.walk, seen.buffers, seen.kinds, seen.symbolic)
        try:
            return attempt.run(args, kwargs, fixed)
        except Exception:
            if fixed == set(everything):
                raise
        return attempt.run(args, kwargs, set(everything))

    def _found_varying(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a captured number is not what it was at the last trace: it is a run-time scalar from now on."""
        walk = Walk(self._shapeless, self._varying, record=True, reads=NoRecording())
        self._visit(walk, args, kwargs, whole=True)
        numbers, before = walk.numbers or {}, self._numbers
        changed = {
            slot
            for slot, value in numbers.items()
            if slot in before and type(value) is type(before[slot]) and number_key(value) != number_key(before[slot])
        }
        self._numbers = numbers
        if changed:
            self._varying |= changed
            self._guards = ()
        return bool(changed)

    def _forget(self) -> None:
        """Drop the oldest traces."""
        self._quick.clear()
        self._calls = None
        self._small.clear()
        self._guards = ()
        key = next(iter(self._variants))
        table = self._variants[key].table
        if len(self._variants) > 1 or not table:
            self._count -= sum(map(len, table.values()))
            del self._variants[key]
        else:
            self._count -= len(table.pop(next(iter(table))))

    def _plain(self, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.plain_because = why
        self._warn(f"runs uncompiled: it captures {why}.")
        return self.__wrapped_function__(*args, **kwargs)

    def _say_retracing(self, seen: Seen) -> None:
        """Warn once if the function keeps retracing, with what was different this time."""
        before, self._last = self._last, (seen.key, tuple(seen.walk.scalars))
        if self._count >= MANY_VARIANTS and before is not None:
            cause, advice = _cause(before, self._last)
            self._warn(f"keeps retracing ({self._count} traces by now). The last time because {cause}. {advice}")

    def _warn(self, message: str) -> None:
        kind = message.partition(":")[0].partition("(")[0]
        if kind in self._warned:
            return
        self._warned.add(kind)
        warnings.warn(f"[compile] {_name(self.__wrapped_function__)} {message}", stacklevel=_user_level())

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: bound like the function."""
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        fun = self.__wrapped_function__
        found: Any = sys.modules.get(getattr(fun, "__module__", None) or "")
        for name in getattr(fun, "__qualname__", "").split("."):
            found = getattr(found, name, None)
        if found is self:  # a decorated function: its name means this
            return fun.__qualname__
        return Compiled, (*self._roots, self._asked_shapeless)


MAKERS.calls(Compiled, Compiled._verify_call)


def _numbers_of(walk: Walk) -> list[Any]:
    return list(map(number_key, walk.scalars))


def _is_alike(x: Walk, y: Walk) -> bool:
    """Whether two walks found the same, but for numbers."""
    return (
        list(map(id, x.arrays)) == list(map(id, y.arrays))
        and list(map(id, x.objects)) == list(map(id, y.objects))
        and len(x.containers) == len(y.containers)
        and all(map(state.is_same_place, x.containers, y.containers))
    )


def _numbers(variant: Variant, scalars: Sequence[Any]) -> Sequence[Any] | None:
    """The numbers that a trace needs of a call with these scalars; None if it does not hold for them."""
    if variant.numbers is None:
        return ()
    try:
        return variant.numbers(*scalars)
    except ArithmeticError:  # the plain function may raise that, or never come to it: a trace will tell
        return None


def _run_first(variant: Variant, seen: Seen) -> Any:
    """Run a new trace for the call that it was made for."""
    numbers = _numbers(variant, seen.walk.scalars)
    assert numbers is not None, "a trace holds for the numbers it was made for"
    recipe = variant.recipe_for(seen.kinds, seen.buffers, numbers)
    assert recipe is not None, "a trace holds for the sizes it was made for"
    run = variant.update if variant.updates.candidates else variant.run
    return run(recipe, numbers, seen.buffers, seen.walk)


_NOT_QUICK = object()
_BOOKS = threading.RLock()
"""Held while a trace is put among those that a function keeps."""
os.register_at_fork(before=_BOOKS.acquire, after_in_parent=_BOOKS.release, after_in_child=_BOOKS.release)


# ---- words ----


def _name(fun: Any) -> str:
    return getattr(fun, "__name__", type(fun).__name__)


def _user_level() -> int:
    """The `stacklevel` of a warning that points at the user's call."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "weft":
        level, frame = level + 1, frame.f_back
    return level


ADVICE = "What changes at every call should be an array, or a number that is used with arrays only."
ADVICE_ON_SIZES = "One trace serves all sizes of arrays that are arguments, with compile(..., shapeless=True)."


def _cause(old: tuple[Any, Sequence[Any]], new: tuple[Any, Sequence[Any]]) -> tuple[str, str]:
    """The first difference of two calls, in words, and what to do about it."""
    for x, y in zip(old[0], new[0], strict=False):
        if type(x) is not type(y) or x != y:
            sizes = isinstance(x, ArrayType) and isinstance(y, ArrayType) and (x.dtype, x.ndim) == (y.dtype, y.ndim)
            return f"{_words(x)} became {_words(y)}", ADVICE_ON_SIZES if sizes else ADVICE
    if len(old[0]) != len(new[0]):
        return "there are more or fewer captured values", ADVICE
    for x, y in zip(old[1], new[1], strict=True):
        if number_key(x) != number_key(y):
            return f"a number that is read as such (a branch, a size, an axis, `range`) was {x!r} and is {y!r}", ADVICE
    return "sizes differ in a way that the function looks at", ADVICE


def _words(part: Any) -> str:
    if isinstance(part, ArrayType):
        return f"an array {part!r}"
    if isinstance(part, tuple) and len(part) == 2 and isinstance(part[0], type):
        return f"a {part[0].__name__} of {part[1]}"
    return f"a value {part!r}"


def _contiguous(node: Node) -> Node:
    """The same values, row-major."""
    return Node(DATA, (), node.kind, to_buffer(numpy_view(node.value, tuple(map(int, node.shape)), node.dtype)))


def _closed(
    order: list[Node], outputs: list[Node], walk: Walk, inputs: list[Node]
) -> tuple[Graph, dict[Node, tuple[int, ...] | None]]:
    """The graph. Placeholders become parameters with the layouts that the arrays have now."""
    given = [(node, before.value) for node, before in zip(inputs, walk.nodes, strict=True)]
    for node, buffer in given:
        node.value = buffer
    try:
        return close(order, outputs)
    finally:
        for node, _ in given:
            node.value = None


class TraceRecord(NamedTuple):
    """What a call would compute: the graph, the layouts of its inputs that are not row-major, and where the inputs are
    now. `arrays` has None for what the function made while it was traced."""

    graph: Graph
    layouts: dict[Node, tuple[int, ...] | None]
    buffers: list[Buffer]
    arrays: list[array | None]


def graph_of(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> TraceRecord:
    """The graph of what a call of the function returns and of the arrays that it changes or stores somewhere; nothing
    is run or changed."""
    walk = Walk()
    for root in (*args, kwargs, getattr(fun, "__wrapped_function__", fun), RANDOM_STATE[0]):
        walk.visit(root)
    evaluate(walk.nodes)
    walk.nodes = [a._evaluated(node) for a, node in zip(walk.arrays, walk.nodes, strict=True)]
    walk.reaches_random = True
    inputs = [Node(Placeholder("explain"), (), node.kind) for node in walk.nodes]
    snapshot, overlay, outer = Snapshot(walk), Overlay(walk.arrays, inputs), HERE.overlay
    sizes, outside = KnownSizes(DimEnv(), [x.kind for x in inputs], [x.value for x in walk.nodes]), CURRENT.sizes
    sizes.begin(inputs)
    try:
        HERE.overlay, CURRENT.sizes = overlay, sizes
        with DRAWING:
            return _graph_of(walk, inputs, snapshot, fun, args, kwargs)
    finally:
        HERE.overlay = outer
        CURRENT.sizes = outside
        overlay.close()
        snapshot.restore()


def _graph_of(
    walk: Walk,
    inputs: list[Node],
    snapshot: Snapshot,
    fun: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> TraceRecord:
    with trace(), finishing("compile"):  # which does what the plain function does
        leaves = [x._node for x in tree.leaves(fun(*args, **kwargs)) if isinstance(x, array)]
        changed = [a._node for a, node in zip(walk.arrays, inputs, strict=True) if a._node is not node]
        known = set(inputs)
        stored = [x._node for x in snapshot.stored() if x._node not in known]
        outputs = list(dict.fromkeys([*leaves, *changed, *stored]))
        order = reachable(outputs)
        graph, layouts = _closed(order, outputs, walk, inputs)
        given = {id(node): (a, now) for node, a, now in zip(inputs, walk.arrays, walk.nodes, strict=True)}
        sources: list[tuple[array | None, Node]] = [
            given.get(id(n), (None, n)) for n in order if id(n) in given or isinstance(n.value, Buffer)
        ]
        return TraceRecord(graph, layouts, [n.value for _, n in sources], [a for a, _ in sources])
