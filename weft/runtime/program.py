"""Programs: tables of commands, run by one small native interpreter, so that a new program needs no compiler.

Codegen builds a `Program` once and calls `run` with the addresses of its operands; all else happens in native code,
without Python's lock. A program is data: a block of 64-bit argument words, relocations (words that get the address of
an operand when it runs) and commands, which point native functions at parts of that block. Python calls the
interpreter as it calls any builtin function, by CPython's stable ABI: that takes a third of the time of `ctypes`.

What a run finds in its workspace, each part aligned to 64 bytes:

    record (8 words)        see RECORD: what the interpreter leaves for Python, and Python for the interpreter
    buffers                 the addresses of this workspace, of inputs and of outputs, then the words of constants
    arguments               the block, copied from the program and relocated, so that commands may change it
    scratch                 one piece for each thread
    arena                   the program's temporaries; relocations against buffer 0 count from here
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import platform
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from string import Template
from typing import Any, Final, NamedTuple

from weft.runtime import engine, threads
from weft.runtime.buffer import ALIGNMENT, block_size, pool
from weft.runtime.code import Code
from weft.runtime.cpython import builtin
from weft.runtime.progress import Counter, watching


class Kind(IntEnum):
    """What a command does."""

    KERNEL = 0  # void fn(ptr args, i64 begin, i64 end, ptr scratch), over [0, args[0]), perhaps on several threads
    CALL = 1  # i64 fn(ptr block, ptr args, ptr scratch); anything but 0 ends the program
    LOOP = 2  # repeats the commands up to its NEXT, whose number is `fn`; arguments are those of `LOOP_FIELDS`
    NEXT = 3  # ends a step: back behind the LOOP whose number is `fn`, with its arguments, or on
    CHOOSE = 4  # goes to one of several commands: the address of an int32, then their numbers
    JUMP = 5  # goes to command number `fn`


LOOP_FIELDS: Final = (
    "most",  # steps at most; negative: any number
    "count",  # address of an int64, the number of steps; 0: as many as there may be
    "step", "steps",  # of this run: written by the interpreter
    "moves", "moves_at",  # words that change from step to step, see MOVE_FIELDS: how many, and where in the block
    "before", "before_at",  # copies made first: (target, source, bytes)
    "after", "after_at",  # copies made last
    "clears", "clears_at",  # pieces of memory that are zeroed first: (address, bytes)
    "go_on",  # address of a byte that a step leaves: 0 ends the loop; 0: none
    "made",  # where the number of steps made goes (int64); 0: nowhere
    "limited",  # 1: `most` is what there is room for, and a loop that wants more steps ends the program
)  # fmt: skip
MOVE_FIELDS: Final = (
    "word",  # its place in the block
    "first",  # at step 0 it is this, plus `back` for each further step that there will be
    "back",
    "by",  # what it moves by after each step
    "end", "start",  # when it reaches `end`, it is `start` again
)  # fmt: skip


class Command(NamedTuple):
    """One step. Its arguments begin at word `first_arg_word` of the block. `grain` is the least part of the extent that
    is worth a thread of its own, and chunks are multiples of it; 0 keeps the kernel on one thread. Who holds a command
    keeps its code in memory."""

    kind: int
    fn: int | Code
    first_arg_word: int
    grain: int = 0
    scratch_bytes_per_thread: int = 0


class Reloc(NamedTuple):
    """`block[word] = buffers[buffer] + byte_offset`; buffer 0 is the arena, then come the addresses given to `run`.

    Buffer `INLINE` is the table of those addresses itself (`byte_offset` counts from the first of them): a constant
    travels as a word of the call instead of through memory of its own.
    """

    word: int
    buffer: int
    byte_offset: int = 0


INLINE: Final = -1


class ProgramError(RuntimeError):
    """A command of a program ended it with a `status` that is not 0. Later commands did not run.

    `arguments` are the first words of the command's arguments as it left them: a CALL that fails says there what is
    wrong. `steps` are the numbers of the steps, from 0 on, at which the loops around the command were, outermost first.
    """

    def __init__(self, command: int, status: int, arguments: tuple[int, ...] = (), steps: tuple[int, ...] = ()) -> None:
        super().__init__(f"command {command} of a program failed with status {status}.")
        self.command, self.status = command, status
        self.arguments, self.steps = arguments, steps


# ---------------------------------------------------------------------------------------------------------------------
# Native code
# ---------------------------------------------------------------------------------------------------------------------

# What the interpreter itself returns. CALLs return positive numbers.
_MORE_THREADS: Final = -1  # there are more threads now than the scratch memory was laid out for; nothing has run
_FEW_ADDRESSES: Final = -2
_NOTHING_RAN: Final = (_MORE_THREADS, _FEW_ADDRESSES)
_UNKNOWN_KIND: Final = -3
FULL: Final = -5
"""The status of a program that a loop ended which had no room for the steps it wants."""
_INTERRUPTED: Final = -4  # a signal's handler raised an exception, which is set
CANCELLED: Final = -6
"""The status of a program that a signal's handler called off (`call_off`)."""

RECORD: Final = {
    "failed": 0,  # the command that ended the program
    "thread": 1,  # CPython's state of the thread that runs it
    "cancelled": 2,  # written by Python while the program runs: not 0 ends it at the next look at signals
}
_RECORD_BYTES: Final = 64
_FAILED_WORDS: Final = 8
"""Words of a failed command's arguments that are told."""
_COMMAND_WORDS: Final = 8
_RELOC_WORDS: Final = 3
_HEADER: Final = {
    name: word
    for word, name in enumerate(
        (
            "buffers",  # how many there are, the workspace included
            "slots",  # how many threads there is scratch memory for
            "commands", "relocs", "args",  # counts
            "relocs_at", "template_at",  # bytes from the start of the program; commands follow the header
            "block_at", "scratch_at", "scratch_stride",  # bytes, in the workspace
        )
    )
}  # fmt: skip
_HEADER_WORDS: Final = len(_HEADER)
_COMMAND: Final = {"kind": 0, "fn": 1, "first": 2, "grain": 3}
_RELOC: Final = {"word": 0, "buffer": 1, "offset": 2}

_X86_64: Final = {
    "save_float": "call void @llvm.x86.sse.stmxcsr(ptr %saved)",
    "restore_float": "call void @llvm.x86.sse.ldmxcsr(ptr %saved)",
    "more_declarations": "declare void @llvm.x86.sse.stmxcsr(ptr)",
    "clock": "readcyclecounter",
    "patience": str(1 << 26),  # ticks between two looks for signals inside a loop: some hundredths of a second
}
_AARCH64: Final = {
    "save_float": "%fpcr = call i64 @llvm.aarch64.get.fpcr()",
    "restore_float": "call void @llvm.aarch64.set.fpcr(i64 %fpcr)",
    "more_declarations": "declare i64 @llvm.aarch64.get.fpcr()",
    "clock": "readsteadycounter",  # counting cycles is not for user programs there
    "patience": str(1 << 20),
}
_MACHINES: Final = {
    "x86_64": {**threads.MACHINES["x86_64"], **_X86_64},
    "aarch64": {**threads.MACHINES["aarch64"], **_AARCH64},
}

_IR: Final = Template(r"""
$declarations
$more_declarations
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.$clock()

@context = internal global ptr null

; Copies a table of (target, source, bytes); what is in its place already stays there.
define internal void @copy_all(ptr %table, i64 %count) {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %done ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %end
one:
  %at = mul i64 %i, 3
  %target_at = getelementptr ptr, ptr %table, i64 %at
  %source_at = getelementptr ptr, ptr %target_at, i64 1
  %bytes_at = getelementptr ptr, ptr %target_at, i64 2
  %target = load ptr, ptr %target_at
  %source = load ptr, ptr %source_at
  %bytes = load i64, ptr %bytes_at
  %there = icmp eq ptr %target, %source
  br i1 %there, label %done, label %move
move:
  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %source, i64 %bytes, i1 false)
  br label %done
done:
  %i1 = add i64 %i, 1
  br label %next
end:
  ret void
}

; Makes a loop ready for its first step, if there is one.
define internal i1 @begin_loop(ptr %block, ptr %loop) {
entry:
  %before = get i64 %loop.before
  %before_at = get i64 %loop.before_at
  %copies = getelementptr i64, ptr %block, i64 %before_at
  call void @copy_all(ptr %copies, i64 %before)
  %clears = get i64 %loop.clears
  %clears_at = get i64 %loop.clears_at
  br label %clear
clear:
  %c = phi i64 [ 0, %entry ], [ %c1, %zero ]
  %more_clears = icmp slt i64 %c, %clears
  br i1 %more_clears, label %zero, label %count
zero:
  %twice = mul i64 %c, 2
  %clear_word = add i64 %clears_at, %twice
  %piece_at = getelementptr ptr, ptr %block, i64 %clear_word
  %piece = load ptr, ptr %piece_at
  %piece_bytes_at = getelementptr i64, ptr %piece_at, i64 1
  %piece_bytes = load i64, ptr %piece_bytes_at
  call void @llvm.memset.p0.i64(ptr %piece, i8 0, i64 %piece_bytes, i1 false)
  %c1 = add i64 %c, 1
  br label %clear
count:
  %given_most = get i64 %loop.most
  %unbounded = icmp slt i64 %given_most, 0
  %most = select i1 %unbounded, i64 9223372036854775807, i64 %given_most
  %count_at = get ptr %loop.count
  %counted = icmp ne ptr %count_at, null
  br i1 %counted, label %read, label %known
read:
  %asked = load i64, ptr %count_at
  %negative = icmp slt i64 %asked, 0
  %wanted = select i1 %negative, i64 0, i64 %asked
  br label %known
known:
  %limit = phi i64 [ %most, %count ], [ %wanted, %read ]
  %less = icmp slt i64 %limit, %most
  %steps = select i1 %less, i64 %limit, i64 %most
  set i64 %steps, %loop.steps
  set i64 0, %loop.step
  %others = sub i64 %steps, 1
  %moves = get i64 %loop.moves
  %moves_at = get i64 %loop.moves_at
  %moves_bytes = mul i64 %moves, ${move_bytes}
  %first_move = getelementptr i64, ptr %block, i64 %moves_at
  %moves_end = getelementptr i8, ptr %first_move, i64 %moves_bytes
  br label %next_move
next_move:
  %move = phi ptr [ %first_move, %known ], [ %move1, %one_move ]
  %more_moves = icmp ne ptr %move, %moves_end
  br i1 %more_moves, label %one_move, label %ready
one_move:
  %word = get i64 %move.word
  %first = get i64 %move.first
  %back = get i64 %move.back
  %all_back = mul i64 %back, %others
  %value = add i64 %first, %all_back
  %word_at = getelementptr i64, ptr %block, i64 %word
  store i64 %value, ptr %word_at
  %move1 = getelementptr i8, ptr %move, i64 ${move_bytes}
  br label %next_move
ready:
  %some = icmp sgt i64 %steps, 0
  ret i1 %some
}

; Ends a step: whether there is another one.
define internal i1 @next_step(ptr %block, ptr %loop) {
entry:
  %moves = get i64 %loop.moves
  %moves_at = get i64 %loop.moves_at
  %moves_bytes = mul i64 %moves, ${move_bytes}
  %first_move = getelementptr i64, ptr %block, i64 %moves_at
  %moves_end = getelementptr i8, ptr %first_move, i64 %moves_bytes
  br label %next
next:
  %move = phi ptr [ %first_move, %entry ], [ %move1, %one ]
  %more = icmp ne ptr %move, %moves_end
  br i1 %more, label %one, label %count
one:
  %word = get i64 %move.word
  %by = get i64 %move.by
  %end = get i64 %move.end
  %start = get i64 %move.start
  %word_at = getelementptr i64, ptr %block, i64 %word
  %value = load i64, ptr %word_at
  %moved = add i64 %value, %by
  %wraps = icmp eq i64 %moved, %end
  %new = select i1 %wraps, i64 %start, i64 %moved
  store i64 %new, ptr %word_at
  %move1 = getelementptr i8, ptr %move, i64 ${move_bytes}
  br label %next
count:
  %step = get i64 %loop.step
  %step1 = add i64 %step, 1
  set i64 %step1, %loop.step
  %steps = get i64 %loop.steps
  %within = icmp slt i64 %step1, %steps
  %go_on_at = get ptr %loop.go_on
  %free = icmp eq ptr %go_on_at, null
  br i1 %free, label %answer, label %ask
ask:
  %go_on = load i8, ptr %go_on_at
  %yes = icmp ne i8 %go_on, 0
  br label %answer
answer:
  %wanted = phi i1 [ true, %count ], [ %yes, %ask ]
  %both = and i1 %wanted, %within
  ret i1 %both
}

; Whether it ends only because there is no room for more steps.
define internal i1 @end_loop(ptr %block, ptr %loop) {
entry:
  %after = get i64 %loop.after
  %after_at = get i64 %loop.after_at
  %copies = getelementptr i64, ptr %block, i64 %after_at
  call void @copy_all(ptr %copies, i64 %after)
  %made = get ptr %loop.made
  %unasked = icmp eq ptr %made, null
  br i1 %unasked, label %end, label %tell
tell:
  %step = get i64 %loop.step
  store i64 %step, ptr %made
  br label %end
end:
  %limited = get i64 %loop.limited
  %unlimited = icmp eq i64 %limited, 0
  br i1 %unlimited, label %fine, label %compare
fine:
  ret i1 false
compare:
  %all = get i64 %loop.step
  %most = get i64 %loop.most
  %short = icmp slt i64 %all, %most
  br i1 %short, label %fine, label %asked
asked:
  %count_at = get ptr %loop.count
  %uncounted = icmp eq ptr %count_at, null
  br i1 %uncounted, label %flag, label %counted
counted:
  %count = load i64, ptr %count_at
  %enough = icmp sle i64 %count, %most
  br i1 %enough, label %fine, label %flag
flag:
  %go_on_at = get ptr %loop.go_on
  %unflagged = icmp eq ptr %go_on_at, null
  br i1 %unflagged, label %full, label %read
read:
  %go_on = load i8, ptr %go_on_at
  %more = icmp ne i8 %go_on, 0
  ret i1 %more
full:
  ret i1 true
}

define internal i64 @weft_run(ptr %context, ptr %program, ptr %buffers) {
entry:
  %saved = alloca i64
  %control = alloca i64
  %looked = alloca i64
  %started = call i64 @llvm.$clock()
  store i64 %started, ptr %looked
  %threads = get i64 %context.threads
  %slots = get i64 %program.slots
  %crowded = icmp sgt i64 %threads, %slots
  br i1 %crowded, label %refuse, label %begin
refuse:
  ret i64 $more_threads

begin:
  $save_float
  $default_float
  %workspace = load ptr, ptr %buffers
  %block_at = get i64 %program.block_at
  %block = getelementptr i8, ptr %workspace, i64 %block_at
  %scratch_at = get i64 %program.scratch_at
  %scratch = getelementptr i8, ptr %workspace, i64 %scratch_at
  %stride = get i64 %program.scratch_stride
  %template_at = get i64 %program.template_at
  %template = getelementptr i8, ptr %program, i64 %template_at
  %arg_count = get i64 %program.args
  %arg_bytes = mul i64 %arg_count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr align 8 %block, ptr align 8 %template, i64 %arg_bytes, i1 false)
  %relocs_at = get i64 %program.relocs_at
  %relocs = getelementptr i8, ptr %program, i64 %relocs_at
  %reloc_count = get i64 %program.relocs
  %reloc_bytes = mul i64 %reloc_count, ${reloc_bytes}
  %relocs_end = getelementptr i8, ptr %relocs, i64 %reloc_bytes
  %commands = getelementptr i64, ptr %program, i64 $header_words
  %command_count = get i64 %program.commands
  br label %relocate

relocate:
  %reloc = phi ptr [ %relocs, %begin ], [ %next_reloc, %relocated ]
  %more_relocs = icmp ne ptr %reloc, %relocs_end
  br i1 %more_relocs, label %relocated, label %next
relocated:
  %word = get i64 %reloc.word
  %buffer = get i64 %reloc.buffer
  %offset = get i64 %reloc.offset
  %base_at = getelementptr i64, ptr %buffers, i64 %buffer
  %base = load i64, ptr %base_at
  %address = add i64 %base, %offset
  %target = getelementptr i64, ptr %block, i64 %word
  store i64 %address, ptr %target
  %next_reloc = getelementptr i8, ptr %reloc, i64 ${reloc_bytes}
  br label %relocate

next:
  %number = phi i64 [ 0, %relocate ], [ %number1, %done ], [ %there, %go_to ]
  %more_commands = icmp slt i64 %number, %command_count
  br i1 %more_commands, label %dispatch, label %finish
dispatch:
  %command_word = mul i64 %number, $command_words
  %command = getelementptr i64, ptr %commands, i64 %command_word
  %kind = get i64 %command.kind
  %fn = get ptr %command.fn
  %first = get i64 %command.first
  %args = getelementptr i64, ptr %block, i64 %first
  switch i64 %kind, label %unknown [
    i64 0, label %kernel
    i64 1, label %call
    i64 2, label %loop
    i64 3, label %step
    i64 4, label %choose_one
    i64 5, label %jump
  ]

jump:
  %target_number = ptrtoint ptr %fn to i64
  br label %go_to

choose_one:
  %index_at = load ptr, ptr %args
  %index = load i32, ptr %index_at
  %index_wide = sext i32 %index to i64
  %entry_of = add i64 %index_wide, 1
  %chosen_at = getelementptr i64, ptr %args, i64 %entry_of
  %chosen = load i64, ptr %chosen_at
  br label %go_to

loop:
  %loop_end = ptrtoint ptr %fn to i64
  %some_steps = call i1 @begin_loop(ptr %block, ptr %args)
  br i1 %some_steps, label %done, label %past_loop
past_loop:
  %never_full = call i1 @end_loop(ptr %block, ptr %args)
  %behind_loop = add i64 %loop_end, 1
  br label %go_to

step:
  %loop_start = ptrtoint ptr %fn to i64
  %more_steps = call i1 @next_step(ptr %block, ptr %args)
  br i1 %more_steps, label %look, label %last_step
last_step:
  %full = call i1 @end_loop(ptr %block, ptr %args)
  br i1 %full, label %failed, label %done
look:
  %now = call i64 @llvm.$clock()
  %last_look = load i64, ptr %looked
  %waited = sub i64 %now, %last_look
  %impatient = icmp ugt i64 %waited, $patience
  br i1 %impatient, label %signals, label %again
signals:
  %thread = get ptr %workspace.thread
  %restore_thread = get ptr %context.PyEval_RestoreThread
  %check_signals = get ptr %context.PyErr_CheckSignals
  %save_thread = get ptr %context.PyEval_SaveThread
  call void %restore_thread(ptr %thread)
  %raised = call i32 %check_signals()
  %same_thread = call ptr %save_thread()
  %looked_at = call i64 @llvm.$clock()
  store i64 %looked_at, ptr %looked
  %interrupted = icmp ne i32 %raised, 0
  br i1 %interrupted, label %failed, label %wanted
wanted:
  %called_off = get i64 %workspace.cancelled
  %goes_on = icmp eq i64 %called_off, 0
  br i1 %goes_on, label %again, label %failed
again:
  %body_start = add i64 %loop_start, 1
  br label %go_to

go_to:
  %there = phi i64 [ %target_number, %jump ], [ %chosen, %choose_one ], [ %behind_loop, %past_loop ],
    [ %body_start, %again ]
  br label %next

kernel:
  %extent = load i64, ptr %args
  %some = icmp sgt i64 %extent, 0
  br i1 %some, label %choose, label %done
choose:
  %grain = get i64 %command.grain
  %parallel_kernel = icmp sgt i64 %grain, 0
  %rest = sub i64 %extent, %grain
  %long = icmp sge i64 %rest, %grain
  %team = icmp sgt i64 %threads, 1
  %worth = and i1 %long, %team
  %many = and i1 %worth, %parallel_kernel
  br i1 %many, label %parallel, label %serial
serial:
  call void %fn(ptr %args, i64 0, i64 %extent, ptr %scratch)
  br label %done
parallel:
  %region = get ptr %context.parallel
  call void %region(ptr %context, ptr %fn, ptr %args, i64 %extent, i64 %grain, ptr %scratch, i64 %stride, i64 %slots)
  br label %done

call:
  %status = call i64 %fn(ptr %block, ptr %args, ptr %scratch)
  %good = icmp eq i64 %status, 0
  br i1 %good, label %done, label %failed
unknown:
  br label %failed
failed:
  %failure = phi i64 [ %status, %call ], [ $unknown_kind, %unknown ], [ $interrupted, %signals ], [ $full, %last_step ],
    [ $cancelled, %wanted ]
  set i64 %number, %workspace.failed
  br label %finish
done:
  %number1 = add i64 %number, 1
  br label %next

finish:
  %result = phi i64 [ 0, %next ], [ %failure, %failed ]
  $restore_float
  ret i64 %result
}

; The builtin function execute(program, workspace, *addresses): a METH_FASTCALL function of CPython.
define internal ptr @execute(ptr %self, ptr %objects, i64 %count) {
entry:
  %context = load ptr, ptr @context
  %as_pointer = get ptr %context.PyLong_AsVoidPtr
  %occurred = get ptr %context.PyErr_Occurred
  %save_thread = get ptr %context.PyEval_SaveThread
  %restore_thread = get ptr %context.PyEval_RestoreThread
  %from_integer = get ptr %context.PyLong_FromLongLong
  %object0 = load ptr, ptr %objects
  %program = call ptr %as_pointer(ptr %object0)
  %object1_at = getelementptr ptr, ptr %objects, i64 1
  %workspace_object = load ptr, ptr %object1_at
  %workspace = call ptr %as_pointer(ptr %workspace_object)
  %buffers = getelementptr i8, ptr %workspace, i64 $record_bytes
  store ptr %workspace, ptr %buffers
  %buffer_count = get i64 %program.buffers
  %given = sub i64 %count, 1                     ; the workspace is one of them
  %enough = icmp sge i64 %given, %buffer_count
  br i1 %enough, label %convert, label %report
convert:
  %i = phi i64 [ 1, %entry ], [ %i1, %converted ]
  %more = icmp slt i64 %i, %buffer_count
  br i1 %more, label %one, label %go
one:
  %after = add i64 %i, 1
  %object_at = getelementptr ptr, ptr %objects, i64 %after
  %object = load ptr, ptr %object_at
  %address = call ptr %as_pointer(ptr %object)
  %address_at = getelementptr ptr, ptr %buffers, i64 %i
  store ptr %address, ptr %address_at
  %zero = icmp eq ptr %address, null
  br i1 %zero, label %doubt, label %converted
doubt:                                           ; an address of 0, or an object that is none
  %error = call ptr %occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %converted, label %raise
raise:
  ret ptr null
converted:
  %i1 = add i64 %i, 1
  br label %convert
go:
  %thread = call ptr %save_thread()
  set ptr %thread, %workspace.thread
  set i64 0, %workspace.cancelled
  %ran = call i64 @weft_run(ptr %context, ptr %program, ptr %buffers)
  call void %restore_thread(ptr %thread)
  %interrupted = icmp eq i64 %ran, $interrupted
  br i1 %interrupted, label %raise, label %report
report:
  %status = phi i64 [ $few_addresses, %entry ], [ %ran, %go ]
  %result = call ptr %from_integer(i64 %status)
  ret ptr %result
}

; Remember the context; the result is the address of the builtin function.
define ptr @weft_program(ptr %context) {
  store ptr %context, ptr @context
  ret ptr @execute
}
""")


def native_code(machine: str) -> str:
    """The LLVM IR of the interpreter for a machine as `platform.machine()` names it."""
    text = _IR.substitute(
        _MACHINES[machine],
        more_threads=_MORE_THREADS,
        few_addresses=_FEW_ADDRESSES,
        unknown_kind=_UNKNOWN_KIND,
        header_words=_HEADER_WORDS,
        command_words=_COMMAND_WORDS,
        reloc_bytes=8 * _RELOC_WORDS,
        record_bytes=_RECORD_BYTES,
        interrupted=_INTERRUPTED,
        full=FULL,
        cancelled=CANCELLED,
        move_bytes=8 * len(MOVE_FIELDS),
    )
    fields = {
        "context": threads.CONTEXT,
        "workspace": RECORD,
        "program": _HEADER,
        "command": _COMMAND,
        "reloc": _RELOC,
        "loop": {name: word for word, name in enumerate(LOOP_FIELDS)},
        "move": {name: word for word, name in enumerate(MOVE_FIELDS)},
    }
    return threads.expand(text, fields)


_execute: Callable[..., int] | None = None


def _load() -> Callable[..., int]:
    """The native `execute(program, workspace, *addresses) -> status`."""
    global _execute
    if _execute is None:
        machine = platform.machine()
        source = engine.Source(f"runtime:program:{machine}", "weft_program", lambda: native_code(machine))
        bind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(engine.load_for_good(source))
        _execute = builtin("execute", bind(threads.context()))
    return _execute


# ---------------------------------------------------------------------------------------------------------------------
# The Python side
# ---------------------------------------------------------------------------------------------------------------------


def call_off(workspace: int) -> None:
    """End the program that runs over this workspace. Only a signal's handler, which runs in the midst of it on the same
    thread, may do so."""
    ctypes.c_int64.from_address(workspace + 8 * RECORD["cancelled"]).value = 1


def _aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment


class Progress:
    """Whether a run that overwrites some of its inputs came to its end. One that did not has overwritten nothing: plans
    see to it that all steps that can fail come first (passes/memory.py).

    Ctrl-C that strikes meanwhile is raised the moment the run returns, before its status is seen: so that is kept where
    no signal's handler can come between.
    """

    __slots__ = ("_statuses", "results")

    def __init__(self) -> None:
        self._statuses: list[int] = []
        self.results: list[Any] = []
        """What the run makes, for those who find that it has finished."""

    def follow(self, execute: Callable[..., int], arguments: tuple[int, ...]) -> int:
        self._statuses.extend(itertools.starmap(execute, (arguments,)))  # one step of Python's, from call to list
        return self._statuses[-1]

    @property
    def finished(self) -> bool:
        """Whether all commands have run."""
        return bool(self._statuses) and self._statuses[-1] == 0


class Program:
    """Commands over a block of argument words; immutable, and any number of Python threads may run it at once.

    `args` is the initial contents of the block, `workspace_bytes` the size of the arena. `addresses` is how many
    a call gives; without it, as many as relocations name (the second word of an inline constant is named by none).
    """

    __slots__ = (
        "_addresses", "_args", "_commands", "_execute", "_layout", "_relocs", "_tables", "counters",
        "workspace_bytes",
    )  # fmt: skip

    def __init__(
        self,
        commands: Sequence[Command],
        args: Sequence[int],
        relocations: Sequence[Reloc],
        workspace_bytes: int,
        addresses: int = 0,
        counters: Sequence[Counter] = (),
    ) -> None:
        _check(commands, len(args), relocations, workspace_bytes)
        self._commands = tuple(commands)
        self._args = tuple(args)
        self._relocs = tuple(relocations)
        self._addresses = addresses
        self.workspace_bytes = workspace_bytes
        self.counters = tuple(counters)
        """The loops whose progress is shown."""
        self._tables: list[array[int]] = []
        self._execute = _load()
        self._layout = self._lay_out(threads.get_threads())

    def run(self, addresses: Sequence[int], progress: Progress | None = None) -> None:
        """Run all commands. `addresses` are what relocations count from 1; 0 for what no command uses. `progress`
        learns how far it came, whatever is raised."""
        table, size, idle = self._layout
        pool.active += size  # takes a block as `allocate` does, and gives it back as `Storage.__del__` does
        if pool.active > pool.high:
            pool.admit(size, size)
        try:
            workspace = idle.pop()
        except IndexError:
            workspace = pool.fresh(size, size)
        try:
            if self.counters:
                with watching(self.counters, workspace + self._block_at()):
                    status = (progress or Progress()).follow(self._execute, (table, workspace, *addresses))
            elif progress is not None:
                status = progress.follow(self._execute, (table, workspace, *addresses))
            else:
                status = self._execute(table, workspace, *addresses)
            if status == 0:
                return
            # No exception yet: a frame that holds one which holds the frame would keep the operands alive.
            found = self._failure(workspace) if status not in _NOTHING_RAN else None
        finally:
            pool.active -= size
            idle.append(workspace)
            if pool.active < pool.low:
                pool.trim_cache()
        if status == _MORE_THREADS:
            self._layout = self._lay_out(threads.get_threads())
            self.run(addresses, progress)
        elif status == _FEW_ADDRESSES:
            raise ValueError(f"[Program.run] {self._buffers() - 1} addresses are needed; got {len(addresses)}.")
        elif found is not None:
            command, arguments, steps = found
            raise ProgramError(command, status, arguments, steps)

    def _failure(self, workspace: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The command that ended a program early, the first of its arguments, and the steps of the loops around it, as
        they stand in the workspace."""
        block = workspace + self._block_at()

        def word(address: int, number: int) -> int:
            return ctypes.c_int64.from_address(address + 8 * number).value

        failed, commands = word(workspace, RECORD["failed"]), self._commands
        first, end = commands[failed].first_arg_word, len(self._args)
        arguments = tuple([word(block, at) for at in range(first, min(first + _FAILED_WORDS, end))])
        around = [c for i, c in enumerate(commands) if c.kind == Kind.LOOP and i < failed < operator.index(c.fn)]
        steps = tuple([word(block, c.first_arg_word + LOOP_FIELDS.index("step")) for c in around])
        return failed, arguments, steps

    @property
    def length(self) -> int:
        """The number of commands."""
        return len(self._commands)

    def only(self, first: int, end: int) -> Program:
        """The same program with all commands but [first, end) left out, over a workspace of the same layout as all
        other such parts: run one after the other they do what the program does, and each can be timed. Loops and
        branches are in it whole or not at all."""
        nothing = len(self._args)  # the extent of a kernel that has nothing to do
        commands = [
            c if first <= i < end else Command(Kind.KERNEL, 1, nothing, _kept_grain(c), c.scratch_bytes_per_thread)
            for i, c in enumerate(self._commands)
        ]
        return Program(commands, (*self._args, 0), self._relocs, self.workspace_bytes, self._addresses)

    def _block_at(self) -> int:
        """Where the words of a run lie in its workspace."""
        return _RECORD_BYTES + _aligned(8 * self._buffers())

    def _buffers(self) -> int:
        """The number of buffers that a call gives and relocations name, the workspace included."""
        last = [r.byte_offset // 8 + 1 if r.buffer == INLINE else r.buffer for r in self._relocs]
        return max([self._addresses, *last]) + 1

    def _lay_out(self, team: int) -> tuple[int, int, deque[int]]:
        """For that many threads: the address of the table, the size of a workspace, and idle blocks of that size."""
        stride, scratch = _scratch([(_kept_grain(c), c.scratch_bytes_per_thread) for c in self._commands], team)
        buffers = self._buffers()
        block_at = self._block_at()
        scratch_at = block_at + _aligned(8 * len(self._args))
        arena_at = scratch_at + scratch
        relocs_at = 8 * (_HEADER_WORDS + _COMMAND_WORDS * len(self._commands))
        header = {
            "buffers": buffers,
            "slots": team if stride else threads.MAX_THREADS,
            "commands": len(self._commands),
            "relocs": len(self._relocs),
            "args": len(self._args),
            "relocs_at": relocs_at,
            "template_at": relocs_at + 8 * _RELOC_WORDS * len(self._relocs),
            "block_at": block_at,
            "scratch_at": scratch_at,
            "scratch_stride": stride,
        }
        padding = (0,) * (_COMMAND_WORDS - len(Command._fields))
        table = array("q", (header[name] for name in _HEADER))
        for kind, fn, *others in self._commands:
            table.extend((kind, operator.index(fn), *others, *padding))
        for word, buffer, offset in self._relocs:
            if buffer == INLINE:
                buffer, offset = 0, offset + _RECORD_BYTES + 8
            elif buffer == 0:
                offset += arena_at
            table.extend((word, buffer, offset))
        table.extend(self._args)
        self._tables.append(table)  # another thread may be running an earlier one
        size = block_size(arena_at + self.workspace_bytes)
        return table.buffer_info()[0], size, pool.blocks(size)


def _scratch(needs: Iterable[tuple[int, int]], team: int) -> tuple[int, int]:
    """(bytes from one thread's scratch memory to the next one's, bytes of all of it) for commands with these (grain,
    scratch bytes). Only kernels that may run on several threads need some for each."""
    many = alone = 0
    for grain, nbytes in needs:
        if grain > 0:
            many = max(many, nbytes)
        else:
            alone = max(alone, nbytes)
    stride = _aligned(many, 2 * ALIGNMENT)
    return stride, _aligned(max(stride * team, alone))


class Pattern:
    """Programs that differ in some numbers only: the table of one of them, and where those numbers go in it.

    `holes` says which: the field of a command (grain, scratch), the offset of a relocation, a word of the block.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        args: Sequence[int],
        relocations: Sequence[Reloc],
        addresses: int,
        holes: Sequence[tuple[str, int]],
    ) -> None:
        self.model = Program(commands, args, relocations, 0, addresses)
        self._parts, self._holes = (commands, args, relocations, addresses), tuple(holes)
        relocs_at = _HEADER_WORDS + _COMMAND_WORDS * len(commands)
        offsets = range(relocs_at + _RELOC["offset"], relocs_at + _RELOC_WORDS * len(relocations), _RELOC_WORDS)
        words_at = relocs_at + _RELOC_WORDS * len(relocations)

        def field(number: int, name: str) -> int:
            return _HEADER_WORDS + _COMMAND_WORDS * number + Command._fields.index(name)

        self._places = [
            words_at + number if what == "word" else offsets[number] if what == "offset" else field(number, what)
            for what, number in holes
        ]
        self._arena = [at for at, relocation in zip(offsets, relocations, strict=True) if relocation.buffer == 0]
        self._table = self.model._tables[0][:]
        for at, relocation in zip(offsets, relocations, strict=True):
            if relocation.buffer == 0:
                self._table[at] = relocation.byte_offset
        hungry = {number for what, number in holes if what == "scratch_bytes_per_thread"}
        hungry |= {number for number, c in enumerate(commands) if c.scratch_bytes_per_thread}
        self._hungry = [
            (field(n, "grain") if commands[n].kind == Kind.KERNEL else None, field(n, "scratch_bytes_per_thread"))
            for n in sorted(hungry)
        ]

    def table(self, numbers: Sequence[int], team: int) -> tuple[array[int], int]:
        """The table with these numbers, for that many threads, and where the arena begins."""
        table = self._table[:]
        deque(map(table.__setitem__, self._places, numbers), 0)  # the fastest loop that Python has
        needs = [(0 if grain is None else table[grain], table[nbytes]) for grain, nbytes in self._hungry]
        stride, scratch = _scratch(needs, team) if needs else (0, 0)
        table[_HEADER["slots"]] = team if stride else threads.MAX_THREADS
        table[_HEADER["scratch_stride"]] = stride
        arena_at = table[_HEADER["scratch_at"]] + scratch
        for at in self._arena:
            table[at] += arena_at
        return table, arena_at

    def program(self, numbers: Sequence[int], workspace_bytes: int) -> Program:
        """The program with these numbers; the slow way to it."""
        given, words, relocations, addresses = self._parts
        commands, args, relocs = list(given), list(words), list(relocations)
        for (what, at), number in zip(self._holes, numbers, strict=True):
            if what == "word":
                args[at] = number
            elif what == "offset":
                relocs[at] = relocs[at]._replace(byte_offset=number)
            else:
                commands[at] = commands[at]._replace(**{what: number})
        return Program(commands, args, relocs, workspace_bytes, addresses)


class Filled(Program):
    """A program made from a pattern: what cannot be wrong with it was checked once, when the pattern was made."""

    __slots__ = ("_numbers", "_pattern")

    def __init__(self, pattern: Pattern, numbers: Sequence[int], workspace_bytes: int) -> None:
        self._pattern, self._numbers = pattern, numbers
        self.workspace_bytes = workspace_bytes
        self.counters = ()
        self._tables = []
        self._execute = pattern.model._execute
        self._layout = self._lay_out(threads.get_threads())

    @property
    def length(self) -> int:
        return self._pattern.model.length

    def only(self, first: int, end: int) -> Program:
        return self._pattern.program(self._numbers, self.workspace_bytes).only(first, end)

    def _buffers(self) -> int:
        return self._pattern.model._buffers()

    def _failure(self, workspace: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        return self._pattern.model._failure(workspace)

    def _lay_out(self, team: int) -> tuple[int, int, deque[int]]:
        table, arena_at = self._pattern.table(self._numbers, team)
        self._tables.append(table)
        size = block_size(arena_at + self.workspace_bytes)
        return table.buffer_info()[0], size, pool.blocks(size)


def _kept_grain(command: Command) -> int:
    """That of a kernel; calls have the caller's scratch memory, like kernels without grain."""
    return command.grain if command.kind == Kind.KERNEL else 0


def _check(commands: Sequence[Command], words: int, relocations: Sequence[Reloc], workspace_bytes: int) -> None:
    """Nothing that the interpreter could stumble over may reach it."""
    if workspace_bytes < 0:
        raise ValueError(f"[Program] workspace_bytes must not be negative; got {workspace_bytes}.")
    for number, command in enumerate(commands):
        if command.kind not in Kind.__members__.values():
            raise ValueError(f"[Program] command {number} has kind {command.kind}, which does not exist.")
        if not 0 <= command.first_arg_word < words:
            raise ValueError(
                f"[Program] command {number} has its arguments at word {command.first_arg_word} of a block of {words}."
            )
        if command.kind in (Kind.LOOP, Kind.NEXT, Kind.JUMP):
            if not 0 <= operator.index(command.fn) <= len(commands):
                raise ValueError(f"[Program] command {number} goes to command {command.fn} of {len(commands)}.")
            continue
        if command.kind == Kind.CHOOSE:
            continue
        if not command.fn or command.grain < 0 or command.scratch_bytes_per_thread < 0:
            raise ValueError(f"[Program] command {number} has no function, or a negative size: {command}.")
    for number, reloc in enumerate(relocations):
        if not 0 <= reloc.word < words or reloc.buffer < INLINE or (reloc.buffer == INLINE and reloc.byte_offset < 0):
            raise ValueError(f"[Program] relocation {number} is outside the block of {words} words: {reloc}.")
