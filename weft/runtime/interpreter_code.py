"""The machine code of the interpreter, and of the builtin functions by which Python calls it. What its words mean is
said in `weft.runtime.interpreter`.

A run lets other threads of Python go on while it lasts, unless it is brief, and touches no object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from weft.dtypes import int8, int32, int64
from weft.llvm.builder import PTR, Value
from weft.llvm.functions import (
    Address,
    Addresses,
    Field,
    Int,
    Integers,
    Long,
    Native,
    Record,
    Truth,
    Typed,
    Void,
    native,
)
from weft.runtime import interpreter as words
from weft.runtime.interpreter import CommandKind
from weft.runtime.object_table import HEAD_WORDS
from weft.runtime.threads_code import Code, Context, Run, call_kernel, module

_UNLIMITED: Final = (1 << 63) - 1
_CLASS_WORD: Final = HEAD_WORDS - 1

# What `next_step` answers.
_LAST, _ANOTHER, _LOOK = 0, 1, 2


# ---- records ----


class Program(Record):
    words = words.HEADER
    buffers, slots, commands, relocs, args = Field(Long), Field(Long), Field(Long), Field(Long), Field(Long)
    relocs_at, template_at = Field(Long), Field(Long)
    block_at, scratch_at, scratch_stride = Field(Long), Field(Long), Field(Long)
    commit = Field(Long)
    plain, brief = Field(Long), Field(Long)


class Command(Record):
    words = {**words.COMMAND, "to": words.COMMAND["fn"]}
    kind, first, grain, back = Field(Long), Field(Long), Field(Long), Field(Long)
    fn = Field(Address)
    to = Field(Long)
    """The number of another command, in place of a function."""


class Relocation(Record):
    words = words.RELOC
    word, buffer, offset = Field(Long), Field(Long), Field(Long)


class Loop(Record):
    words = {name: word for word, name in enumerate(words.LOOP_FIELDS)}
    most, step, steps = Field(Long), Field(Long), Field(Long)
    count, made = Field(Integers), Field(Integers)
    go_on = Field(Address)
    moves, moves_at = Field(Long), Field(Long)
    before, before_at, after, after_at = Field(Long), Field(Long), Field(Long), Field(Long)
    clears, clears_at = Field(Long), Field(Long)
    limited = Field(Long)


class Move(Record):
    words = {name: word for word, name in enumerate(words.MOVE_FIELDS)}
    word, first, back, by, end, start = Field(Long), Field(Long), Field(Long), Field(Long), Field(Long), Field(Long)


class Copy(Record):
    words = {"target": 0, "source": 1, "bytes": 2}
    target, source = Field(Address), Field(Address)
    bytes = Field(Long)


class Clear(Record):
    words = {"target": 0, "bytes": 1}
    target = Field(Address)
    bytes = Field(Long)


class Arrays(Record):
    """What a call with arrays of NumPy is for."""

    words = {**words.ARRAYS, "cls": words.ARRAYS["class"]}
    program, workspace = Field(Address), Field(Address)
    busy, count, flags = Field(Long), Field(Long), Field(Long)
    cls = Field(Address)
    at_data, at_axes, at_sizes = Field(Long), Field(Long), Field(Long)
    at_dtype, at_flags = Field(Long), Field(Long)


class ArrayEntry(Record):
    """What one of them has to be; its sizes stand behind it."""

    words = {"buffer": 0, "element": 1, "axes": 2}
    buffer, axes = Field(Long), Field(Long)
    element = Field(Address)

    @property
    def sizes(self) -> Integers:
        return Integers.of(self.b.gep(self, 8 * len(self.words)))


def _each(c: Code, kind: type[Record], table: Value, count: Value, write: Callable[[Any], None]) -> None:
    """The code that `write` writes, for each of so many records that lie one behind the other."""
    size = 8 * len(kind.words)
    end = c.gep(table, count * size)
    with c.repeat(table) as records:
        (at,) = records.carried
        records.stop_when(at.eq(end))
        write(kind.of(at))
        records.carry(c.gep(at, size))


# ---- loops ----


@native(Void, table=Integers, count=Long)
def copy_all(c: Code, table: Integers, count: Value) -> None:
    """What is in its place already stays there."""

    def one(piece: Copy) -> None:
        target, source = piece.target, piece.source
        with c.when(target.ne(source)):
            c.call_void("llvm.memcpy.p0.p0.i64", target, source, piece.bytes, "i1 false")

    _each(c, Copy, table, count, one)


@native(Truth, block=Integers, loop=Loop)
def begin_loop(c: Code, block: Integers, loop: Loop) -> None:
    """Make a loop ready for its first step: whether there is one."""
    copy_all(c, block.past(loop.before_at), loop.before)

    def clear(piece: Clear) -> None:
        c.call_void("llvm.memset.p0.i64", piece.target, "i8 0", piece.bytes, "i1 false")

    _each(c, Clear, block.past(loop.clears_at), loop.clears, clear)
    most = loop.most
    loop.steps = c.choose(most < 0, _UNLIMITED, most)
    count = loop.count
    with c.when(count.exists()):
        wanted = count[0]
        with c.when(wanted < loop.steps):
            loop.steps = c.choose(wanted < 0, 0, wanted)
    loop.step = 0
    steps = loop.steps

    def start(move: Move) -> None:
        block[move.word] = move.first + move.back * (steps - 1)

    _each(c, Move, block.past(loop.moves_at), loop.moves, start)
    c.ret(steps > 0)


@native(Long, block=Integers, loop=Loop)
def next_step(c: Code, block: Integers, loop: Loop) -> None:
    """End a step: whether it was the last one, there is another, or it is time to look at the clock before that."""

    def go_on(move: Move) -> None:
        word = move.word
        moved = block[word] + move.by
        block[word] = c.choose(moved.eq(move.end), move.start, moved)

    _each(c, Move, block.past(loop.moves_at), loop.moves, go_on)
    step = loop.step + 1
    loop.step = step
    with c.when(step >= loop.steps):
        c.ret(c.i64(_LAST))
    flag = loop.go_on
    with c.when(flag.exists()), c.when(_is_clear(c, flag)):
        c.ret(c.i64(_LAST))
    c.ret(c.choose((step & _TURN).eq(0), c.i64(_LOOK), _ANOTHER))


@native(Truth, block=Integers, loop=Loop)
def end_loop(c: Code, block: Integers, loop: Loop) -> None:
    """Whether it ends only because there is no room for more steps."""
    copy_all(c, block.past(loop.after_at), loop.after)
    made = loop.made
    with c.when(made.exists()):
        made[0] = loop.step
    no, most = c.const(Truth.held_as, False), loop.most
    with c.when(loop.limited.eq(0) | (loop.step < most)):
        c.ret(no)
    count = loop.count
    with c.when(count.exists()), c.when(count[0] <= most):
        c.ret(no)
    flag = loop.go_on
    with c.when(flag.exists()), c.when(_is_clear(c, flag)):
        c.ret(no)
    c.ret(~no)


def _is_clear(c: Code, flag: Value) -> Value:
    byte = c.load(flag, int8, 1)
    assert isinstance(byte, Value)
    return byte.eq(0)


# ---- commands ----

_TURN: Final = words.COMMANDS_BETWEEN_LOOKS - 1


@native(Long, run=Run, at=Long, position=Long, begun=Long)
def pause(c: Code, run: Run, at: Value, position: Value, begun: Value) -> None:
    """Note where a run goes on: its status."""
    run.number, run.position = at, position
    commit = run.commit
    committed = (at > commit) | (at.eq(commit) & begun.ne(0))
    c.ret(c.choose(committed, c.i64(words.COMMITTED), words.PAUSED))


@native(Void, program=Program, run=Run, block=Integers)
def fill(c: Code, program: Program, run: Run, block: Integers) -> None:
    """Write the words of the call, with the addresses of its buffers."""
    c.copy(block, c.gep(program, program.template_at), program.args)
    buffers = Integers.of(run.buffers)

    def one(relocation: Relocation) -> None:
        block[relocation.word] = buffers[relocation.buffer] + relocation.offset

    _each(c, Relocation, c.gep(program, program.relocs_at), program.relocs, one)


@native(Long, context=Context, program=Program, run=Run, goes_on=Truth, team=Long)
def run_program(c: Code, context: Context, program: Program, run: Run, goes_on: Value, team: Value) -> None:
    """Run a program over a workspace, from its beginning or, if it goes on, from where it was paused."""
    before = c.rounding()
    c.default_rounding()
    status = follow(c, context, program, run, goes_on, team)
    c.restore_rounding(before)
    c.ret(status)


@native(Long, context=Context, program=Program, run=Run, goes_on=Truth, team=Long)
def follow(c: Code, context: Context, program: Program, run: Run, goes_on: Value, team: Value) -> None:
    """Follow the commands."""
    run.deadline = c.ticks() + context.patience
    due = context.due
    block, scratch = Integers.of(c.gep(run, program.block_at)), c.gep(run, program.scratch_at)
    stride, slots, count = program.scratch_stride, program.slots, program.commands
    commands = c.gep(program, 8 * words.HEADER_WORDS)
    with c.when(~goes_on):
        fill(c, program, run, block)
    first, begun = c.choose(goes_on, run.number, 0), c.choose(goes_on, run.position, 0)
    with c.repeat(first, begun) as command_loop:
        number, begin = command_loop.carried
        command_loop.stop_when(number >= count)
        command = Command.of(c.gep(commands, number * (8 * words.COMMAND_WORDS)))
        args = block.past(command.first)

        def go_to(there: Value) -> None:
            command_loop.again(there, c.i64(0))

        def pause_if_due(there: Value) -> None:
            with c.when(c.invoke(due.text, Truth, (Run,), (run,))):
                c.ret(pause(c, run, there, 0, 0))

        def fail(status: Value) -> None:
            run.failed = number
            c.ret(status)

        with c.switch(command.kind) as kinds:
            with kinds.case(CommandKind.KERNEL):
                extent = args[0]
                with c.when(extent > begin):
                    # What stopped in the middle of a unit does not do so again.
                    back = command.back
                    run.deaf = c.cast((back < 0) | (number < run.torn), int64)
                    kernel = (context, run, command, args, begin, extent, scratch, stride, slots, team)
                    reached = run_kernel(c, *kernel)
                    with c.when(run.stop.ne(0)):
                        run.stop, run.torn = 0, number + 1
                        c.ret(pause(c, run, number - back, 0, 1))
                    with c.when(reached.ne(extent)):
                        c.ret(pause(c, run, number, reached, reached))
            with kinds.case(CommandKind.CALL):
                status = c.invoke(command.fn.text, Long, (Integers, Integers, Address), (block, args, scratch))
                with c.when(status.ne(0)):
                    fail(status)
                pause_if_due(number + 1)
                go_to(number + 1)
            with kinds.case(CommandKind.LOOP), c.when(~begin_loop(c, block, Loop.of(args))):
                end_loop(c, block, Loop.of(args))
                go_to(command.to + 1)
            with kinds.case(CommandKind.NEXT):
                body = command.to + 1
                outcome = next_step(c, block, Loop.of(args))
                with c.when(outcome.eq(_LOOK)), c.when(c.ticks() >= run.deadline):
                    pause_if_due(body)
                with c.when(outcome.ne(_LAST)):
                    go_to(body)
                with c.when(end_loop(c, block, Loop.of(args))):
                    fail(c.i64(words.FULL))
            with kinds.case(CommandKind.CHOOSE):
                index = c.load(Addresses.of(args)[0], int32, 1)
                assert isinstance(index, Value)
                go_to(args[c.cast(index, int64) + 1])
            with kinds.case(CommandKind.JUMP):
                go_to(command.to)
            with kinds.otherwise():
                fail(c.i64(words.UNKNOWN_KIND))
        following = number + 1
        with c.when((following & _TURN).eq(0)):
            pause_if_due(following)
        go_to(following)
    run.number, run.position = count, 0  # to go on with a run that has finished does nothing
    c.ret(c.i64(0))


_Serial = (Run, Address, Integers, Long, Long, Long, Address)
_Parallel = (Context, *_Serial, Long, Long)


@native(
    Long, context=Context, run=Run, command=Command, args=Integers, begin=Long, extent=Long, scratch=Address,
    stride=Long, slots=Long, team=Long,
)  # fmt: skip
def run_kernel(
    c: Code, context: Context, run: Run, command: Command, args: Integers, begin: Value, extent: Value, scratch: Value,
    stride: Value, slots: Value, team: Value,
) -> None:  # fmt: skip
    """Run a kernel over [begin, extent), in pieces if it is long: how far it came."""
    fn, grain = command.fn, command.grain
    with c.when((grain <= 0) | (extent - begin - grain < grain)):
        call_kernel(c, fn, args, begin, extent, scratch, run)
        c.ret(extent)
    pieces = (run, fn, args, begin, extent, grain, scratch)
    with c.when(team > 1):
        c.ret(c.invoke(context.parallel.text, Long, _Parallel, (context, *pieces, stride, slots)))
    c.ret(c.invoke(context.serial.text, Long, _Serial, pieces))


# ---- builtin functions ----


def _context(c: Code) -> Context:
    return Context.of(c.op("load ptr, ptr @context, align 8", PTR, 1))


def _pointer(c: Code, context: Context, number: Value) -> Address:
    """The address that one of Python's numbers is."""
    return c.invoke(context.PyLong_AsVoidPtr.text, Address, (Address,), (number,))


def _number(c: Code, context: Context, status: Value) -> Address:
    return c.invoke(context.PyLong_FromLongLong.text, Address, (Long,), (status,))


class Objects(Addresses[Address]):
    """Arguments of a builtin function."""


def _program_and_run(c: Code, context: Context, objects: Objects) -> tuple[Program, Run]:
    return Program.of(_pointer(c, context, objects[0])), Run.of(_pointer(c, context, objects[1]))


def _builtin(write: Callable[..., None]) -> Native[Address]:
    """A METH_FASTCALL function of CPython's."""
    return Native(write, Address, {"self": Address, "objects": Objects, "count": Long})


@native(Long, program=Program, run=Run, overwrites=Truth)
def go(c: Code, program: Program, run: Run, overwrites: Value) -> None:
    """Run a program over a workspace that has the addresses of its buffers, without the interpreter's lock."""
    context = _context(c)
    with c.when(program.brief.ne(0) & ~overwrites):
        c.ret(run_briefly(c, context, program, run))
    team = context.threads
    with c.when(team > program.slots):
        c.ret(c.i64(words.MORE_THREADS))
    begun = c.ticks()
    run.commit = c.choose(overwrites, program.commit, _UNLIMITED)
    run.stop, run.torn, run.missed = 0, 0, 0
    run.look, run.context = context.look, context
    status = _without_lock(c, context, program, run, False, team)
    with c.when(program.plain.ne(0) & status.eq(0)), c.when(c.ticks() - begun < context.patience >> words.BRIEF):
        program.brief = 1
    c.ret(status)


@native(Long, context=Context, program=Program, run=Run)
def run_briefly(c: Code, context: Context, program: Program, run: Run) -> None:
    """Run a program whose commands are kernels of one piece, with the interpreter's lock, unless it turns out to take
    its time: what a loop of a user's kernel does depends on its data."""
    run.commit = _UNLIMITED
    run.stop, run.torn, run.missed, run.deadline = 0, 0, 0, 0
    run.look, run.context, run.thread = c.address_of(look_late), context, c.null
    before = c.rounding()
    c.default_rounding()
    fill(c, program, run, Integers.of(c.gep(run, program.block_at)))
    status = follow_briefly(c, program, run)
    c.restore_rounding(before)
    thread = run.thread
    with c.when(thread.exists()):
        program.brief = 0
        c.invoke(context.PyEval_RestoreThread.text, Void, (Address,), (thread,))
    c.ret(status)


@native(Long, program=Program, run=Run)
def follow_briefly(c: Code, program: Program, run: Run) -> None:
    """Follow the commands of such a program."""
    block, scratch = Integers.of(c.gep(run, program.block_at)), c.gep(run, program.scratch_at)
    commands = c.gep(program, 8 * words.HEADER_WORDS)
    with c.loop(0, program.commands, 1) as loop:
        command = Command.of(c.gep(commands, loop.index * (8 * words.COMMAND_WORDS)))
        args, back = block.past(command.first), command.back
        extent = args[0]
        with c.when(extent > 0):
            run.deaf = c.cast(back < 0, int64)
            call_kernel(c, command.fn, args, 0, extent, scratch, run)
            with c.when(run.stop.ne(0)):
                run.stop, run.torn = 0, loop.index + 1
                c.ret(pause(c, run, loop.index - back, 0, 1))
    run.number, run.position = program.commands, 0
    c.ret(c.i64(0))


@native(Truth, run=Run)
def look_late(c: Code, run: Run) -> None:
    """`look` in a run that has the interpreter's lock: if that takes long it lets go of it, and is as others are."""
    context, no = run.context, c.const(Truth.held_as, False)
    with c.when(run.thread.exists()):
        c.ret(c.invoke(context.look.text, Truth, (Run,), (run,)))
    time = c.ticks()
    with c.when(run.deadline.eq(0)):
        run.deadline = time + (context.patience >> words.BRIEF)
        c.ret(no)
    with c.when(time >= run.deadline):
        run.thread = c.invoke(context.PyEval_SaveThread.text, Address, (), ())
        run.deadline = time + context.patience
    c.ret(no)


def _without_lock(c: Code, context: Context, program: Program, run: Run, goes_on: bool, team: Value) -> Value:
    thread = c.invoke(context.PyEval_SaveThread.text, Address, (), ())
    run.thread = thread
    status = run_program(c, context, program, run, goes_on, team)
    c.invoke(context.PyEval_RestoreThread.text, Void, (Address,), (thread,))
    return status


@native(Address, objects=Objects, count=Long, overwrites=Truth)
def start(c: Code, objects: Objects, count: Value, overwrites: Value) -> None:
    """Run a program that is given as (program, workspace, *addresses)."""
    context = _context(c)
    program, run = _program_and_run(c, context, objects)
    buffers = run.buffers
    buffers[0] = run
    needed = program.buffers
    with c.when(count - 1 < needed):  # the workspace is one of them
        c.ret(_number(c, context, c.i64(words.FEW_ADDRESSES)))
    with c.loop(1, needed, 1) as loop:
        address = _pointer(c, context, objects[loop.index + 1])
        buffers[loop.index] = address
        with c.when(address.is_null()):  # an address of 0, or an object that is none
            error = c.invoke(context.PyErr_Occurred.text, Address, (), ())
            with c.when(error.exists()):
                c.ret(c.null)
    c.ret(_number(c, context, go(c, program, run, overwrites)))


@_builtin
def execute(c: Code, self: Value, objects: Objects, count: Value) -> None:
    """execute(program, workspace, *addresses): a run that overwrites nothing of the caller's."""
    c.ret(start(c, objects, count, False))


@_builtin
def execute_over(c: Code, self: Value, objects: Objects, count: Value) -> None:
    """The same for one that does."""
    c.ret(start(c, objects, count, True))


@_builtin
def proceed(c: Code, self: Value, objects: Objects, count: Value) -> None:
    """proceed(program, workspace): go on with a run that is paused."""
    context = _context(c)
    program, run = _program_and_run(c, context, objects)
    c.ret(_number(c, context, _without_lock(c, context, program, run, True, context.threads)))


@_builtin
def execute_arrays(c: Code, self: Value, objects: Objects, count: Value) -> None:
    """execute_arrays(record, *arrays): `execute` for arrays of NumPy, if they have the dtypes and sizes that the record
    says. Python's lock is held until the record says that it is busy."""
    context = _context(c)
    record = Arrays.of(_pointer(c, context, objects[0]))

    def needed(condition: Value) -> None:
        with c.when(~condition):
            c.ret(_number(c, context, c.i64(words.OTHERS)))

    def part(array: Value, at: Value, kind: type[Typed]) -> Value:
        found = c.load(c.gep(array, at), kind.held_as, 1)
        assert isinstance(found, Value)
        return kind.of(found)

    expected = record.count
    needed(count.eq(expected + 1) & record.busy.eq(0))
    cls, flags = record.cls, record.flags
    at_data, at_axes, at_sizes = record.at_data, record.at_axes, record.at_sizes
    at_dtype, at_flags = record.at_dtype, record.at_flags
    run = Run.of(record.workspace)
    buffers = run.buffers
    with c.repeat(c.i64(0), c.gep(record, 8 * len(words.ARRAYS))) as arrays:
        i, entry_at = arrays.carried
        arrays.stop_when(i >= expected)
        entry, array = ArrayEntry.of(entry_at), objects[i + 1]
        needed(c.word(array, _CLASS_WORD, PTR).eq(cls))
        needed(part(array, at_dtype, Address).eq(entry.element))
        needed((c.cast(part(array, at_flags, Int), int64) & flags).eq(flags))
        axes = entry.axes
        needed(c.cast(part(array, at_axes, Int), int64).eq(axes))
        sizes, wanted = Integers.of(part(array, at_sizes, Address)), entry.sizes
        with c.loop(0, axes, 1) as axis:
            needed(sizes[axis.index].eq(wanted[axis.index]))
        buffers[entry.buffer] = part(array, at_data, Address)
        arrays.carry(i + 1, wanted.past(axes))
    buffers[0] = run
    record.busy = 1
    status = go(c, Program.of(record.program), run, False)
    record.busy = c.cast(status.eq(words.PAUSED), int64)
    c.ret(_number(c, context, status))


@native(Long, program=Program, run=Run)
def run_plain(c: Code, program: Program, run: Run) -> None:
    """`execute` for machine code that has the addresses as numbers, in the workspace."""
    run.buffers[0] = run
    c.ret(go(c, program, run, False))


_FUNCTIONS: Final = {f.name: f for f in (execute, execute_over, proceed, execute_arrays, run_plain)}


@native(Void, context=Context, table=Addresses)
def weft_program(c: Code, context: Context, table: Addresses[Address]) -> None:
    """Remember the context; tell the addresses of the functions."""
    c.raw(f"store {context!r}, ptr @context, align 8")
    for place, name in enumerate(words.Interpreter._fields):
        table[place] = c.address_of(_FUNCTIONS[name])


def native_code(machine: str) -> str:
    """The LLVM IR of the interpreter for a machine."""

    return module(machine, "@context = internal global ptr null\n").export(weft_program)
