"""The machine code of the thread pool; see `weft.runtime.threads` for how it works. None of it touches an object, or
holds Python's lock, but for a look at signals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from weft.dtypes import bool_, int32, int64
from weft.llvm.builder import Value
from weft.llvm.functions import (
    Address,
    Addresses,
    Field,
    Function,
    Int,
    Integers,
    Long,
    Module,
    Place,
    Record,
    Truth,
    Typed,
    Void,
    native,
)
from weft.runtime import threads

_NAMES: Final = r"""
@name = private constant [12 x i8] c"weft-worker\00"
@moment = private constant [2 x i64] [i64 0, i64 10000000]
"""
_OPENING: Final = 1 << 32
"""What an opening or a closing adds to the gate."""
_EVERYBODY: Final = (1 << 31) - 1
_ROUNDS_BETWEEN_CLOCKS: Final = 256
_ROUNDS_BETWEEN_LOOKS: Final = 64
_ROUNDS_AWAKE: Final = 2048

# Linux: what is asked of a futex of this process alone, and others.
_WAIT, _WAKE = 128, 129
_SET_NAME = 15
_MONOTONIC = 1


class Code(Function):
    """A function for a machine as `platform.machine()` names it."""

    def __init__(
        self, machine: str, module: Module[Code], name: str, params: Mapping[str, type[Typed]], result: type[Typed]
    ) -> None:
        super().__init__(module, name, params, result)
        self.machine = threads.MACHINES[machine]

    def ticks(self) -> Value:
        """The clock, which takes as long as a small kernel."""
        return self.call(f"llvm.{self.machine.clock}", int64, 1)

    def pause(self) -> None:
        """Let the processor do something else for a moment."""
        intrinsic, *arguments = self.machine.pause
        self.call_void(intrinsic, *arguments)

    def default_rounding(self) -> None:
        """Round to nearest, keep subnormals, mask all exceptions."""
        if self.machine.has_fpcr:
            self.call_void("llvm.aarch64.set.fpcr", self.i64(0))
            return
        control = self.room(Address, 1)
        self.store(self.const(int32, threads.DEFAULT_MXCSR), control)
        self.call_void("llvm.x86.sse.ldmxcsr", control)

    def rounding(self) -> Value:
        """How this thread rounds, for `restore_rounding`."""
        if self.machine.has_fpcr:
            return self.call("llvm.aarch64.get.fpcr", int64, 1)
        saved = self.room(Address, 1)
        self.call_void("llvm.x86.sse.stmxcsr", saved)
        return saved

    def restore_rounding(self, saved: Value) -> None:
        self.call_void("llvm.aarch64.set.fpcr" if self.machine.has_fpcr else "llvm.x86.sse.ldmxcsr", saved)

    def system(self, context: Context, number: int, *arguments: Value | str) -> None:
        """A system call."""
        given = ", ".join([f"i64 {number}", *[a if isinstance(a, str) else repr(a) for a in arguments]])
        self.raw(f"{self.fresh()} = call i64 (i64, ...) {context.syscall.text}({given})")

    def quotient(self, a: Value, b: Value | int) -> Value:
        """That of positive numbers."""
        divisor = b.text if isinstance(b, Value) else b
        return self.op(f"udiv i64 {a.text}, {divisor}", int64, 1)

    def least(self, a: Value, b: Value) -> Value:
        return self.choose(a < b, a, b)


def module(machine: str, head: str) -> Module[Code]:
    """A module for a machine."""

    def frame(*given: Any) -> Code:
        return Code(machine, *given)

    return Module(frame, head)


# ---- records ----


class Context(Record):
    words = threads.CONTEXT
    threads, main, patience, left = Field(Long), Field(Long), Field(Long), Field(Long)
    serial, parallel, due, look = Field(Address), Field(Address), Field(Address), Field(Address)
    syscall, clock_gettime, pthread_self = Field(Address), Field(Address), Field(Address)
    pthread_create, pthread_join = Field(Address), Field(Address)
    pthread_attr_init, pthread_attr_setstacksize, pthread_attr_destroy = Field(Address), Field(Address), Field(Address)
    PyLong_AsVoidPtr, PyLong_FromLongLong, PyErr_Occurred = Field(Address), Field(Address), Field(Address)
    PyErr_SetInterrupt, PyOS_InterruptOccurred = Field(Address), Field(Address)
    PyEval_SaveThread, PyEval_RestoreThread = Field(Address), Field(Address)

    @property
    def state(self) -> State:
        return State.of(self.b.word(self, self.words["state"], Address.held_as))


class Run(Record):
    """A run, in its workspace; behind it stand the addresses of the buffers, of which the workspace is the first."""

    words = threads.RUN
    failed, number, position, commit = Field(Long), Field(Long), Field(Long), Field(Long)
    deadline, stop, torn, deaf, missed = Field(Long), Field(Long), Field(Long), Field(Long), Field(Long)
    look, thread = Field(Address), Field(Address)
    context = Field(Context)

    @property
    def buffers(self) -> Addresses[Address]:
        return Addresses.of(self.b.gep(self, threads.RUN_BYTES))


class State(Record):
    """That of the pool."""

    words = threads.STATE
    busy, gate, sleepers, waiting, next = Place(), Place(), Place(), Place(), Place()
    fn, scratch = Field(Address), Field(Address)
    args, run = Field(Integers), Field(Run)
    extent, chunk, stride, slots = Field(Long), Field(Long), Field(Long), Field(Long)
    grain, share = Field(Long), Field(Long)
    assembled, workers = Field(Long), Field(Long)
    first_slot = Place()

    def openings(self) -> Address:
        """The futex of the sleepers: the upper half of the gate."""
        return Address.of(self.b.gep(self.gate, 4))

    def slot(self, index: Value) -> Slot:
        return Slot.of(self.b.gep(self.first_slot, index << 6))


class Slot(Record):
    """What a worker knows of itself."""

    words = {"thread": 0, "index": 1, "context": 2}
    thread, index = Field(Long), Field(Long)
    context = Field(Context)


_Kernel = (Integers, Long, Long, Address, Run)


def call_kernel(
    c: Code, fn: Value, args: Value, begin: Value | int, end: Value, scratch: Value, run: Value
) -> None:  # fmt: skip
    """Call a kernel for [begin, end)."""
    c.invoke(fn.text, Void, _Kernel, (args, begin, end, scratch, run))


# ---- the system ----


@native(Long, context=Context)
def now(c: Code, context: Context) -> None:
    """The time in nanoseconds."""
    time = c.room(Integers, 2)
    c.invoke(context.clock_gettime.text, Int, (Int, Integers), (_MONOTONIC, time))
    c.ret(time[0] * 1_000_000_000 + time[1])


@native(Void, context=Context, futex=Address, expected=Int)
def sleep(c: Code, context: Context, futex: Value, expected: Value) -> None:
    """Until another thread wakes the futex, unless its value is no longer the expected one."""
    c.system(context, c.machine.futex, futex, f"i64 {_WAIT}", expected, "ptr null", "ptr null", "i64 0")


@native(Void, context=Context, futex=Address, expected=Int)
def doze(c: Code, context: Context, futex: Value, expected: Value) -> None:
    """The same, but for a moment at most."""
    c.system(context, c.machine.futex, futex, f"i64 {_WAIT}", expected, "ptr @moment", "ptr null", "i64 0")


@native(Void, context=Context, futex=Address, count=Long)
def wake(c: Code, context: Context, futex: Value, count: Value) -> None:
    c.system(context, c.machine.futex, futex, f"i64 {_WAKE}", count, "ptr null", "ptr null", "i64 0")


@native(Void, context=Context)
def step_aside(c: Code, context: Context) -> None:
    """Leave the processor to another thread."""
    c.system(context, c.machine.sched_yield)


# ---- signals ----


def _gets_signals(c: Code, context: Context) -> Value:
    return c.invoke(context.pthread_self.text, Long, (), ()).eq(context.main)


@native(Truth, run=Run)
def due(c: Code, run: Run) -> None:
    """Whether a run is to pause: it is time to look for signals, and this is the thread that gets them."""
    with c.when(c.ticks() >= run.deadline):
        with c.when(_gets_signals(c, run.context)):
            c.ret(c.const(bool_, True))
        run.deadline = threads.FAR_AWAY
    c.ret(c.const(bool_, False))


@native(Truth, run=Run)
def look(c: Code, run: Run) -> None:
    """Whether to stop in the middle of a unit: kernels ask whose units may take long. One that does is begun anew, so
    only Ctrl-C is worth that: it is put back for Python to find."""
    yes, no = c.const(bool_, True), c.const(bool_, False)
    with c.when(run.stop.ne(0)):
        c.ret(yes)
    with c.when(run.deaf.ne(0)):
        c.ret(no)
    with c.when(c.ticks() < run.deadline):
        c.ret(no)
    context = run.context
    with c.when(~_gets_signals(c, context)):  # another thread of the team asks in vain
        c.ret(no)
    c.invoke(context.PyEval_RestoreThread.text, Void, (Address,), (run.thread,))
    with c.when(c.invoke(context.PyOS_InterruptOccurred.text, Int, (), ()).ne(0)):
        c.invoke(context.PyErr_SetInterrupt.text, Void, (), ())
        c.invoke(context.PyEval_SaveThread.text, Address, (), ())
        run.stop = 1
        c.ret(yes)
    c.invoke(context.PyEval_SaveThread.text, Address, (), ())
    run.deadline = c.ticks() + context.patience
    c.ret(no)


@native(Truth, run=Run, time=Long)
def interrupts(c: Code, run: Run, time: Value) -> None:
    """Whether a run stops between two pieces of a kernel, at this time."""
    with c.when(run.stop.ne(0)):
        c.ret(c.const(bool_, True))
    with c.when(time < run.deadline):
        c.ret(c.const(bool_, False))
    c.ret(due(c, run))


# ---- pieces of a kernel ----


@native(Long, context=Context, size=Long, ticks=Long, grain=Long)
def fitting(c: Code, context: Context, size: Value, ticks: Value, grain: Value) -> None:
    """How large the next piece of a kernel should be, after one of this size that took so many ticks: whole grains."""
    wanted = c.quotient(context.patience, threads.PIECE)
    with c.when(ticks * threads.GROWTH <= wanted):
        c.ret(size * threads.GROWTH)
    with c.when((ticks >> 1) <= wanted):
        c.ret(size)
    fewer = c.quotient(size, grain) >> 1
    c.ret(c.choose(fewer > 0, fewer, 1) * grain)


@native(Long, run=Run, fn=Address, args=Integers, first=Long, extent=Long, grain=Long, scratch=Address)
def serial(
    c: Code, run: Run, fn: Value, args: Value, first: Value, extent: Value, grain: Value, scratch: Value
) -> None:  # fmt: skip
    """Run a kernel over [first, extent) on this thread: how far it came."""
    context = run.context
    with c.repeat(first, grain, c.ticks()) as pieces:
        begin, piece, since = pieces.carried
        end = c.least(begin + piece, extent)
        call_kernel(c, fn, args, begin, end, scratch, run)
        pieces.stop_when(end.eq(extent))
        time = c.ticks()
        with c.when(interrupts(c, run, time)):
            c.ret(end)
        pieces.carry(end, fitting(c, context, piece, time - since, grain), time)
    c.ret(extent)


def _chunk(c: Code, state: State) -> tuple[Value, Value, Value]:
    """The next chunk, which is this thread's now: where it begins and ends, and how large it was to be. The less is
    left, the smaller are chunks, so that threads finish together."""
    left = state.extent - state.next.read()
    grains = c.quotient(c.choose(left > 0, left, 0), state.share)
    chunk = c.least(state.chunk, c.choose(grains > 0, grains, 1) * state.grain)
    begin = state.next.add(chunk)
    return begin, c.least(begin + chunk, state.extent), chunk


@native(Void, state=State, index=Long)
def work(c: Code, state: State, index: Value) -> None:
    """Do chunks until there are none left."""
    fn, args, run, extent = state.fn, state.args, state.run, state.extent
    scratch = c.gep(state.scratch, state.stride * index)
    with c.repeat() as chunks:
        begin, end, _ = _chunk(c, state)
        chunks.stop_when(begin >= extent)
        call_kernel(c, fn, args, begin, end, scratch, run)


@native(Long, context=Context, state=State, run=Run, grain=Long, most=Long)
def lead(c: Code, context: Context, state: State, run: Run, grain: Value, most: Value) -> None:
    """The caller's part of that: it finds out how large chunks should be, up to `most`, and looks at the clock. How far
    the region will have come when all threads have left it."""
    fn, args, extent, scratch = state.fn, state.args, state.extent, state.scratch
    with c.repeat(c.ticks()) as chunks:
        (since,) = chunks.carried
        begin, end, chunk = _chunk(c, state)
        chunks.stop_when(begin >= extent)
        call_kernel(c, fn, args, begin, end, scratch, run)
        time = c.ticks()
        with c.when(interrupts(c, run, time)):
            c.ret(c.least(state.next.exchange(threads.FAR_AWAY), extent))
        state.chunk = c.least(fitting(c, context, chunk, time - since, grain), most)
        chunks.carry(time)
    c.ret(extent)


# ---- the team ----


@native(Address, slot=Slot)
def worker(c: Code, slot: Slot) -> None:
    """The life of a worker."""
    blocked = c.room(Integers, 1)
    index, context = slot.index, slot.context
    state = context.state
    gate, openings, sleepers = state.gate, state.openings(), state.sleepers
    blocked[0] = c.i64(threads.BLOCKED_SIGNALS)
    c.system(context, c.machine.sigprocmask, "i64 0", blocked, "ptr null", "i64 8")
    c.system(context, c.machine.prctl, f"i64 {_SET_NAME}", "ptr @name", "i64 0", "i64 0", "i64 0")
    c.default_rounding()
    with c.repeat(c.const(int32, 0)) as life:
        (seen,) = life.carried  # the opening that this worker has already answered
        opened, woken = _await_opening(c, context, state, seen)
        dismissed = state.fn.is_null()
        with c.when(~dismissed):
            # A sleeper that was woken wakes two others, if there is work for them.
            with c.when(woken & (sleepers.read() > 0) & (state.next.read() < state.extent)):
                wake(c, context, openings, 2)
            with c.when(index < state.slots):  # a worker without scratch memory leaves this region to the others
                work(c, state, index)
        inside = c.cast(gate.add(-1, "seq_cst"), int32)
        with c.when(inside.eq(1) & state.waiting.read("seq_cst").ne(0)):  # the last one tells the caller
            wake(c, context, gate, 1)
        life.stop_when(dismissed)
        life.carry(opened)
    c.ret(c.null)


def _await_opening(c: Code, context: Context, state: State, seen: Value) -> tuple[Value, Value]:
    """Enter at another opening than the one that was seen: its number, and whether this thread had to be woken."""
    gate, sleepers = state.gate, state.sleepers
    with c.repeat(c.const(bool_, False), c.i64(0), c.i64(0), seen) as spin:
        woken, since, rounds, before = spin.carried
        found = gate.read("acquire")
        number = c.cast(found >> 32, int32)
        is_open = (number & 1).ne(0)
        with c.when(~is_open | number.eq(seen)):
            c.pause()
            with c.when(rounds + 1 < _ROUNDS_BETWEEN_CLOCKS):
                spin.again(woken, since, rounds + 1, before)
            step_aside(c, context)  # the thread that is to open the gate may be waiting for our processor
            time = now(c, context)
            start = c.choose(since.eq(0) | number.ne(before), time, since)
            with c.when(time - start <= c.choose(is_open, c.i64(threads.LINGER_NS), threads.SPIN_NS)):
                spin.again(woken, start, c.i64(0), number)
            # The caller opens, then looks for sleepers: one of us sees the other.
            sleepers.add(1, "seq_cst")
            with c.when(gate.read("seq_cst").eq(found)):
                sleep(c, context, state.openings(), number)
            sleepers.add(-1, "seq_cst")
            spin.again(c.const(bool_, True), c.i64(0), c.i64(0), number)
        spin.stop_when(gate.replace(found, found + 1))
    return number, woken


@native(Void, context=Context, state=State)
def assemble(c: Code, context: Context, state: State) -> None:
    """Start the team that the context asks for. The caller owns the pool."""
    attributes = c.room(Address, 16)  # a pthread_attr_t has 56 or 64 bytes
    team, create = context.threads, context.pthread_create
    c.invoke(context.pthread_attr_init.text, Int, (Address,), (attributes,))
    c.invoke(context.pthread_attr_setstacksize.text, Int, (Address, Long), (attributes, threads.STACK_BYTES))
    with c.repeat(c.i64(1)) as workers:
        (index,) = workers.carried
        workers.stop_when(index >= team)
        slot = state.slot(index)
        slot.index, slot.context = index, context
        given = (slot, attributes, c.address_of(worker), slot)
        failed = c.invoke(create.text, Int, (Slot, Address, Address, Slot), given)
        workers.stop_when(failed.ne(0))  # fewer than wanted, even none, is a smaller team and no error
        workers.carry(index + 1)
    c.invoke(context.pthread_attr_destroy.text, Int, (Address,), (attributes,))
    state.workers, state.assembled = index - 1, 1


@native(Void, context=Context, state=State, run=Run)
def drain(c: Code, context: Context, state: State, run: Run) -> None:
    """Wait until no worker is inside the closed gate: awake at first, then asleep. Units of workers may take long, and
    the thread that gets signals may be the one that waits here: it looks for Ctrl-C on their behalf."""
    gate, waiting = state.gate, state.waiting
    with c.repeat(c.i64(1)) as spin:
        (rounds,) = spin.carried
        with c.when(c.cast(gate.read("acquire"), int32).eq(0)):
            c.ret()
        c.pause()
        with c.when((rounds & (_ROUNDS_BETWEEN_LOOKS - 1)).eq(0)):
            step_aside(c, context)
            look(c, run)
        spin.stop_when(rounds >= _ROUNDS_AWAKE)
        spin.carry(rounds + 1)
    waiting.write(1, "seq_cst")
    with c.repeat() as asleep:
        inside = c.cast(gate.read("seq_cst"), int32)
        asleep.stop_when(inside.eq(0))
        doze(c, context, gate, inside)
        look(c, run)
    waiting.write(0)


# ---- regions ----


@native(Long, context=Context)
def available(c: Code, context: Context) -> None:
    """How many threads a region may have."""
    team, left = context.threads, context.left
    with c.when(left.ne(0)), c.when(now(c, context) < left):
        c.ret(team - 1)
    c.ret(team)


@native(
    Long, context=Context, run=Run, fn=Address, args=Integers, first=Long, extent=Long, grain=Long, scratch=Address,
    stride=Long, slots=Long,
)  # fmt: skip
def parallel(
    c: Code, context: Context, run: Run, fn: Value, args: Value, first: Value, extent: Value, grain: Value,
    scratch: Value, stride: Value, slots: Value,
) -> None:  # fmt: skip
    """Run a kernel over [first, extent), on several threads if the pool is free. There is scratch memory for `slots`
    threads. Chunks must not wait for each other: it is never certain that a second thread will come. How far it
    came."""
    team = c.least(available(c, context), slots)
    state = context.state
    kernel = (run, fn, args, first, extent, grain, scratch)
    with c.when(team < 2):
        c.ret(serial(c, *kernel))
    with c.when(~state.busy.replace(c.i64(0), c.i64(1))):
        c.ret(serial(c, *kernel))
    with c.when(state.assembled.eq(0)):
        assemble(c, context, state)
    grains = c.quotient(extent - first - 1, grain) + 1  # a chunk is a whole number of them
    most = (c.quotient(grains - 1, team * threads.CHUNKS_PER_THREAD) + 1) * grain
    state.fn, state.args, state.run = fn, args, run
    state.extent, state.chunk = extent, grain
    state.grain, state.share = grain, team * threads.PARTS_PER_THREAD * grain
    state.scratch, state.stride, state.slots = scratch, stride, team
    state.next.write(first)
    state.gate.add(_OPENING, "seq_cst")
    with c.when(state.sleepers.read("seq_cst") > 0):
        rouse(c, context, state, run, grain, team)
    reached = lead(c, context, state, run, grain, most)
    state.gate.add(_OPENING, "seq_cst")
    drain(c, context, state, run)
    state.busy.write(0, "release")
    c.ret(reached)


@native(Void, context=Context, state=State, run=Run, grain=Long, team=Long)
def rouse(c: Code, context: Context, state: State, run: Run, grain: Value, team: Value) -> None:
    """Do one grain first, and wake sleeping workers if the rest, with what was missed, is worth it. A few units, each
    of which is worth a thread and has scratch memory, are: one of them may be half of the work."""
    fn, args, extent, scratch = state.fn, state.args, state.extent, state.scratch
    workers = c.choose(team.eq(2), c.i64(1), 2)
    units = extent - state.next.read()
    with c.when(grain.eq(1) & state.stride.ne(0) & (units > 1) & (units <= team * threads.PARTS_PER_THREAD)):
        wake(c, context, state.openings(), workers)
        c.ret()
    begin = state.next.add(grain)
    with c.when(begin >= extent):  # other threads have grabbed all of it
        c.ret()
    end = begin + grain
    with c.when(end >= extent):
        call_kernel(c, fn, args, begin, extent, scratch, run)
        c.ret()
    before = now(c, context)
    call_kernel(c, fn, args, begin, end, scratch, run)
    time = now(c, context) - before
    missed = run.missed + c.quotient(extent - end, grain) * time
    run.missed = missed
    with c.when(missed > threads.WAKE_NS):
        run.missed = 0
        wake(c, context, state.openings(), workers)


@native(Void, context=Context, count=Long)
def resize(c: Code, context: Context, count: Value) -> None:
    """Dismiss the team, and let the next region assemble one of another size."""
    state = context.state
    with c.repeat() as locked:
        locked.stop_when(state.busy.replace(c.i64(0), c.i64(1)))
        step_aside(c, context)
    state.fn = c.null
    workers, gate = state.workers, state.gate
    gate.add(_OPENING, "seq_cst")
    wake(c, context, state.openings(), _EVERYBODY)
    with c.loop(1, workers + 1, 1) as loop:
        thread = state.slot(loop.index).thread
        c.invoke(context.pthread_join.text, Int, (Long, Address), (thread, c.null))
    gate.add(_OPENING, "seq_cst")
    state.workers, state.assembled = 0, 0
    context.threads = count
    state.busy.write(0, "release")


@native(Void, context=Context, table=Addresses)
def weft_threads(c: Code, context: Context, table: Addresses[Address]) -> None:
    """An engine source has one entry: this one tells the addresses of the others."""
    context.serial, context.parallel = c.address_of(serial), c.address_of(parallel)
    context.due, context.look = c.address_of(due), c.address_of(look)
    table[0] = c.address_of(resize)


def native_code(machine: str) -> str:
    """The LLVM IR of the pool for a machine."""
    return module(machine, _NAMES).export(weft_threads)
