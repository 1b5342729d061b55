"""What every kernel of the CPU has: the form of its native function, a frame to be written in, and a way into a launch.

A kernel is data, whose text is its cache key. Its function is `void name(ptr args, i64 begin, i64 end, ptr scratch,
ptr run)`: the units [begin, end) of its parallel dimension, with the words at `args` (weft/codegen/words.py), memory of
the calling thread's own, and the record of the run (weft/runtime/threads.py).

A run that is interrupted stops between units. A kernel whose units may take longer than some milliseconds looks whether
it is to stop, too (`Frame.look`): every ten microseconds or more, because that takes some ten nanoseconds. The whole
operation is done again then, from its first kernel; where its result lies on an operand, kernels are not told to stop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Final

from weft import dtypes as dt
from weft.codegen.kernel import LANES
from weft.codegen.scope import State, flatten, unflatten
from weft.codegen.words import Words
from weft.config import config
from weft.llvm.builder import PTR, Builder, Loop, Value
from weft.llvm.digest import digest
from weft.llvm.engine import Source
from weft.runtime.threads import RUN
from weft.targets.cpu.features import features

Params = Sequence[tuple[str, dt.Dtype]]
PARAMS: Final[Params] = [("args", PTR), ("begin", dt.int64), ("end", dt.int64), ("scratch", PTR), ("run", PTR)]


class Frame(Words):
    """A kernel under construction, or a function that kernels call with what they are called with and some `more`."""

    def __init__(self, name: str, fields: Sequence[str], outer: int = 0, more: Params = ()) -> None:
        super().__init__(Builder(name, [*PARAMS, *more], features()), fields, outer)
        _, self.begin, self.end, self.scratch, self._run, *self.more = self.b.params

    def look(self) -> None:
        """Leave the kernel, in the middle of a unit, if the run is to stop."""
        b = self.b
        function = b.op(f"load ptr, ptr {b.gep(self._run, 8 * RUN['look']).text}", PTR, 1)
        b.leave_when(b.op(f"call i1 {function.text}(ptr {self._run.text})", dt.bool_, 1))

    @contextmanager
    def long_loop(self, start: Value | int, stop: Value, step: int, steps: int, *carried: Value) -> Iterator[Loop]:
        """`loop` of the builder, with a look every so many steps. Afterwards its `carried` are the final values."""
        b = self.b
        with b.loop(start, stop, step * steps, *carried) as part:
            end = b.intrinsic("smin", part.index + step * steps, stop)
            with b.loop(part.index, end, step, *part.carried) as loop:
                yield loop
            part.carry(*loop.carried)
            with b.when(end < stop):
                self.look()
        loop.carried = part.carried

    def module(self) -> str:
        self.b.ret()
        return self.b.module()


class NativeKernel(ABC):
    """A kernel of the CPU. Its text describes it completely."""

    __slots__ = ()
    title: ClassVar[str]
    """What it is called in profiles and reports."""
    outer: int

    @abstractmethod
    def fields(self) -> list[str]:
        """The names of its argument words."""

    @abstractmethod
    def emit(self, frame: Frame) -> None:
        """Its code, but for the return."""

    def as_written(self) -> bool:
        """Whether its loops are (weft/llvm/builder.py)."""
        return False

    def source(self) -> Source:
        """The engine's handle; equal kernels share one."""
        found = _SOURCES.get(self)
        if found is None:
            key = str(self)
            name = f"weft_{self.title}_{digest(key.encode()).hexdigest()[:16]}"
            if len(_SOURCES) >= config.programs:
                _SOURCES.clear()
            found = _SOURCES[self] = Source(key, name, lambda: self.text(name), self.calls())
        return found

    def calls(self) -> tuple[Source, ...]:
        """The functions that it calls, which other kernels may call too."""
        return ()

    def text(self, name: str) -> str:
        """LLVM IR of the function."""
        frame = Frame(name, self.fields(), self.outer)
        frame.b.as_written = self.as_written()
        self.emit(frame)
        return frame.module()


_SOURCES: dict[NativeKernel, Source] = {}


def vector_loop(
    b: Builder,
    start: Value,
    stop: Value,
    body: Callable[[Value, Value | None, State], State],
    state: State = (),
    lanes: int = LANES,
    once: bool = False,
    rest: int = 0,
) -> State:
    """Run `body(j, mask, state)` over [start, stop) in steps of a vector: whole vectors first, then a masked rest, in
    vectors of `rest` lanes if that is given. If the body shall be written only `once`, all are masked."""
    bits = lanes.bit_length() - 1
    whole = start if once else start + (((stop - start) >> bits) << bits)
    carried = tuple(flatten(state))
    if not once:
        with b.loop(start, whole, lanes, *carried) as loop:
            loop.carry(*flatten(body(loop.index, None, unflatten(state, loop.carried))))
        carried, lanes = loop.carried, rest or lanes
    with b.loop(whole, stop, lanes, *carried) as loop:
        left = b.cast(b.choose(stop - loop.index < lanes, stop - loop.index, lanes), dt.int32)
        mask = b.iota(dt.int32, lanes) < b.splat(left, lanes)
        loop.carry(*flatten(body(loop.index, mask, unflatten(state, loop.carried))))
    return unflatten(state, loop.carried)
