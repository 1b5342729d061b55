"""The interpreter of programs: small, native, the same for all of them, so that a new program needs no compiler.

A program is a table of 64-bit words: a header, commands, relocations, and the initial contents of the block of argument
words (`program.py` makes it). Here is what its words mean, and the code that follows it, as LLVM IR. Python calls it as
it calls any builtin function, by CPython's stable ABI: that takes a third of the time of `ctypes`.

Signals are for Python to look at, so a run on Python's main thread *pauses* every some hundredths of a second: it
returns, and goes on from there when it is called again. All threads are at rest then. It pauses between two commands,
between two steps of a loop, and between two pieces of a kernel (`serial`, `parallel` in `threads.py`). A kernel whose
units may take long looks for Ctrl-C in the middle of them too (`look`).
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from enum import IntEnum
from string import Template
from typing import Final, NamedTuple

from weft.llvm import engine
from weft.runtime import threads
from weft.runtime.cpython import builtin
from weft.runtime.object_table import HEAD_WORDS


class CommandKind(IntEnum):
    """What a command does."""

    KERNEL = 0  # void fn(ptr args, i64 begin, i64 end, ptr scratch, ptr run), over [0, args[0]), on several threads
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


# What the interpreter itself returns. CALLs return positive numbers.
MORE_THREADS: Final = -1  # there are more threads now than the scratch memory was laid out for; nothing has run
FEW_ADDRESSES: Final = -2
_UNKNOWN_KIND: Final = -3
PAUSED: Final = -4
"""The status of a run that Python shall look for signals in, and that has overwritten nothing of the caller's."""
FULL: Final = -5
"""The status of a program that a loop ended which had no room for the steps it wants."""
COMMITTED: Final = -6
"""The same, of one that has overwritten something."""
OTHERS: Final = -7
"""The status of a call with arrays that are not those it is for, or that came while another was running: nothing has
run."""

COMMAND_WORDS: Final = 8
COMMAND: Final = {"kind": 0, "fn": 1, "first": 2, "grain": 3, "scratch": 4, "back": 5}
RELOC: Final = {"word": 0, "buffer": 1, "offset": 2}
RELOC_WORDS: Final = len(RELOC)
ARRAYS: Final = {
    name: word
    for word, name in enumerate(
        (
            "program", "workspace",
            "busy",  # 1 while it runs
            "class",  # that of all arrays
            "at_data", "at_axes", "at_sizes", "at_dtype", "at_flags",  # where they have these, in bytes
            "flags",  # those that must be set
            "count",  # of arrays
        )
    )
}  # fmt: skip
"""The record of a call with arrays of NumPy. Behind it stand, for each array: the number of the buffer that it is (0:
none), its dtype, the number of its axes, and their sizes."""
HEADER: Final = {
    name: word
    for word, name in enumerate(
        (
            "buffers",  # how many there are, the workspace included
            "slots",  # how many threads there is scratch memory for
            "commands", "relocs", "args",  # counts
            "relocs_at", "template_at",  # bytes from the start of the program; commands follow the header
            "block_at", "scratch_at", "scratch_stride",  # bytes, in the workspace
            "commit",  # the first command that overwrites an operand of the caller's
        )
    )
}  # fmt: skip
HEADER_WORDS: Final = len(HEADER)

_X86_64: Final = {
    "save_float": "call void @llvm.x86.sse.stmxcsr(ptr %saved)",
    "restore_float": "call void @llvm.x86.sse.ldmxcsr(ptr %saved)",
    "more_declarations": "declare void @llvm.x86.sse.stmxcsr(ptr)",
}
_AARCH64: Final = {
    "save_float": "%fpcr = call i64 @llvm.aarch64.get.fpcr()",
    "restore_float": "call void @llvm.aarch64.set.fpcr(i64 %fpcr)",
    "more_declarations": "declare i64 @llvm.aarch64.get.fpcr()",
}
_MACHINES: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}

_COMMANDS_BETWEEN_LOOKS: Final = 8
"""At the clock, and steps of a loop; calls and kernels that are cut into pieces look themselves."""

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

; Ends a step: 0 if it was the last one, 1 if there is another, 2 if it is time to look at the clock before that, which
; takes as long as a small kernel.
define internal i64 @next_step(ptr %block, ptr %loop) {
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
  %turn = and i64 %step1, $between_looks
  %looks = icmp eq i64 %turn, 0
  %another = select i1 %looks, i64 2, i64 1
  %next_one = select i1 %both, i64 %another, i64 0
  ret i64 %next_one
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

; Run a program over a workspace, from its beginning or, if it is to go on, from where it was paused.
define internal i64 @weft_run(ptr %context, ptr %program, ptr %workspace, i1 %goes_on) {
entry:
  %saved = alloca i64
  %control = alloca i64
  %from_at = alloca i64
  %threads = get i64 %context.threads
  %slots = get i64 %program.slots
  %more_threads = icmp sgt i64 %threads, %slots
  %fresh = xor i1 %goes_on, true
  %crowded = and i1 %more_threads, %fresh
  br i1 %crowded, label %refuse, label %begin
refuse:
  ret i64 $more_threads

begin:
  $save_float
  $default_float
  %due = get ptr %context.due
  %patience = get i64 %context.patience
  %now = call i64 @llvm.$clock()
  %deadline = add i64 %now, %patience
  set i64 %deadline, %workspace.deadline
  %block_at = get i64 %program.block_at
  %block = getelementptr i8, ptr %workspace, i64 %block_at
  %scratch_at = get i64 %program.scratch_at
  %scratch = getelementptr i8, ptr %workspace, i64 %scratch_at
  %stride = get i64 %program.scratch_stride
  %commands = getelementptr i64, ptr %program, i64 $header_words
  %command_count = get i64 %program.commands
  store i64 0, ptr %from_at
  br i1 %goes_on, label %go_on, label %fill

fill:
  %buffers = getelementptr i8, ptr %workspace, i64 $record_bytes
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
  br label %relocate

relocate:
  %reloc = phi ptr [ %relocs, %fill ], [ %next_reloc, %relocated ]
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

go_on:                                           ; where it was paused
  %paused_at = get i64 %workspace.number
  %done_before = get i64 %workspace.position
  store i64 %done_before, ptr %from_at
  br label %next

next:
  %number = phi i64 [ 0, %relocate ], [ %paused_at, %go_on ], [ %number1, %done ], [ %number2, %looked ],
    [ %there, %go_to ]
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
  %body_start = add i64 %loop_start, 1
  %next_one = call i64 @next_step(ptr %block, ptr %args)
  switch i64 %next_one, label %last_step [
    i64 1, label %go_to
    i64 2, label %again
  ]
last_step:
  %full = call i1 @end_loop(ptr %block, ptr %args)
  br i1 %full, label %failed, label %done
again:
  %now_step = call i64 @llvm.$clock()
  %deadline_step = get i64 %workspace.deadline
  %late_step = icmp sge i64 %now_step, %deadline_step
  br i1 %late_step, label %look_step, label %go_to
look_step:
  %stop_step = call i1 %due(ptr %workspace)
  br i1 %stop_step, label %pause, label %go_to

go_to:
  %there = phi i64 [ %target_number, %jump ], [ %chosen, %choose_one ], [ %behind_loop, %past_loop ],
    [ %body_start, %step ], [ %body_start, %again ], [ %body_start, %look_step ]
  br label %next

kernel:
  %from = load i64, ptr %from_at
  store i64 0, ptr %from_at
  %extent = load i64, ptr %args
  %some = icmp sgt i64 %extent, %from
  br i1 %some, label %choose, label %done
choose:                                          ; what stopped in the middle of a unit does not do so again
  %back = get i64 %command.back
  %torn = get i64 %workspace.torn
  %fixed = icmp slt i64 %back, 0
  %before = icmp slt i64 %number, %torn
  %whole_units = or i1 %fixed, %before
  %deaf = zext i1 %whole_units to i64
  set i64 %deaf, %workspace.deaf
  %grain = get i64 %command.grain
  %divisible = icmp sgt i64 %grain, 0
  %length = sub i64 %extent, %from
  %rest = sub i64 %length, %grain
  %two_grains = icmp sge i64 %rest, %grain
  %long = and i1 %divisible, %two_grains
  br i1 %long, label %pieces, label %whole
whole:
  call void %fn(ptr %args, i64 %from, i64 %extent, ptr %scratch, ptr %workspace)
  br label %ran
pieces:
  %team = icmp sgt i64 %threads, 1
  br i1 %team, label %parallel, label %serial
serial:
  %alone = get ptr %context.serial
  %position_alone = call i64 %alone(ptr %workspace, ptr %fn, ptr %args, i64 %from, i64 %extent, i64 %grain,
    ptr %scratch)
  br label %ran
parallel:
  %region = get ptr %context.parallel
  %position_region = call i64 %region(ptr %context, ptr %workspace, ptr %fn, ptr %args, i64 %from, i64 %extent,
    i64 %grain, ptr %scratch, i64 %stride, i64 %slots)
  br label %ran
ran:
  %position = phi i64 [ %extent, %whole ], [ %position_alone, %serial ], [ %position_region, %parallel ]
  %stopped = get i64 %workspace.stop
  %intact = icmp eq i64 %stopped, 0
  br i1 %intact, label %how_far, label %tear
tear:
  set i64 0, %workspace.stop
  %past = add i64 %number, 1
  set i64 %past, %workspace.torn
  %anew = sub i64 %number, %back
  br label %pause
how_far:
  %all = icmp eq i64 %position, %extent
  br i1 %all, label %done, label %pause

call:
  %status = call i64 %fn(ptr %block, ptr %args, ptr %scratch)
  %good = icmp eq i64 %status, 0
  br i1 %good, label %look, label %failed
unknown:
  br label %failed
failed:
  %failure = phi i64 [ %status, %call ], [ $unknown_kind, %unknown ], [ $full, %last_step ]
  set i64 %number, %workspace.failed
  br label %end
done:
  %number1 = add i64 %number, 1
  %turn = and i64 %number1, $between_looks
  %time_to_look = icmp eq i64 %turn, 0
  br i1 %time_to_look, label %look, label %next
look:
  %number2 = add i64 %number, 1
  %stop_command = call i1 %due(ptr %workspace)
  br i1 %stop_command, label %pause, label %looked
looked:
  br label %next

pause:
  %at = phi i64 [ %body_start, %look_step ], [ %number2, %look ], [ %anew, %tear ], [ %number, %how_far ]
  %done_of_it = phi i64 [ 0, %look_step ], [ 0, %look ], [ 0, %tear ], [ %position, %how_far ]
  %begun = phi i64 [ 0, %look_step ], [ 0, %look ], [ 1, %tear ], [ %position, %how_far ]
  set i64 %at, %workspace.number
  set i64 %done_of_it, %workspace.position
  %commit = get i64 %workspace.commit
  %behind = icmp sgt i64 %at, %commit
  %there_now = icmp eq i64 %at, %commit
  %some_done = icmp ne i64 %begun, 0
  %within = and i1 %there_now, %some_done
  %committed = or i1 %behind, %within
  %stage = select i1 %committed, i64 $committed, i64 $paused
  br label %end

finish:                                          ; to go on with a run that has finished does nothing
  set i64 %command_count, %workspace.number
  set i64 0, %workspace.position
  br label %end
end:
  %result = phi i64 [ 0, %finish ], [ %failure, %failed ], [ %stage, %pause ]
  $restore_float
  ret i64 %result
}

; Run a program that is given as (program, workspace, *addresses).
define internal ptr @start(ptr %objects, i64 %count, i1 %overwrites) {
entry:
  %context = load ptr, ptr @context
  %as_pointer = get ptr %context.PyLong_AsVoidPtr
  %occurred = get ptr %context.PyErr_Occurred
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
  br i1 %enough, label %convert, label %too_few
too_few:
  %few = call ptr %from_integer(i64 $few_addresses)
  ret ptr %few
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
  %ran = call i64 @go(ptr %program, ptr %workspace, i1 %overwrites)
  %result = call ptr %from_integer(i64 %ran)
  ret ptr %result
}

; Run a program over a workspace that has the addresses of its buffers, without the interpreter's lock.
define internal i64 @go(ptr %program, ptr %workspace, i1 %overwrites) {
  %context = load ptr, ptr @context
  %save_thread = get ptr %context.PyEval_SaveThread
  %restore_thread = get ptr %context.PyEval_RestoreThread
  %first_over = get i64 %program.commit
  %commit = select i1 %overwrites, i64 %first_over, i64 9223372036854775807
  set i64 %commit, %workspace.commit
  set i64 0, %workspace.stop
  set i64 0, %workspace.torn
  set i64 0, %workspace.missed
  %look = get ptr %context.look
  set ptr %look, %workspace.look
  set ptr %context, %workspace.context
  %thread = call ptr %save_thread()
  set ptr %thread, %workspace.thread
  %ran = call i64 @weft_run(ptr %context, ptr %program, ptr %workspace, i1 false)
  call void %restore_thread(ptr %thread)
  ret i64 %ran
}

; The same for a program that overwrites nothing of the caller's: for machine code that has the addresses as numbers.
define internal i64 @run_plain(ptr %program, ptr %workspace) {
  %buffers = getelementptr i8, ptr %workspace, i64 $record_bytes
  store ptr %workspace, ptr %buffers
  %ran = call i64 @go(ptr %program, ptr %workspace, i1 false)
  ret i64 %ran
}

; The builtin functions, METH_FASTCALL functions of CPython. execute(program, workspace, *addresses): a run that
; overwrites nothing of the caller's.
define internal ptr @execute(ptr %self, ptr %objects, i64 %count) {
  %result = call ptr @start(ptr %objects, i64 %count, i1 false)
  ret ptr %result
}

; The same for one that does.
define internal ptr @execute_over(ptr %self, ptr %objects, i64 %count) {
  %result = call ptr @start(ptr %objects, i64 %count, i1 true)
  ret ptr %result
}

; proceed(program, workspace): go on with a run that is paused.
define internal ptr @proceed(ptr %self, ptr %objects, i64 %count) {
entry:
  %context = load ptr, ptr @context
  %as_pointer = get ptr %context.PyLong_AsVoidPtr
  %save_thread = get ptr %context.PyEval_SaveThread
  %restore_thread = get ptr %context.PyEval_RestoreThread
  %from_integer = get ptr %context.PyLong_FromLongLong
  %object0 = load ptr, ptr %objects
  %program = call ptr %as_pointer(ptr %object0)
  %object1_at = getelementptr ptr, ptr %objects, i64 1
  %object1 = load ptr, ptr %object1_at
  %workspace = call ptr %as_pointer(ptr %object1)
  %thread = call ptr %save_thread()
  set ptr %thread, %workspace.thread
  %ran = call i64 @weft_run(ptr %context, ptr %program, ptr %workspace, i1 true)
  call void %restore_thread(ptr %thread)
  %result = call ptr %from_integer(i64 %ran)
  ret ptr %result
}

; execute_arrays(record, *arrays): the same for arrays of NumPy, if they have the dtypes and sizes that the record says.
; Python's lock is held until the record says that it is busy.
define internal ptr @execute_arrays(ptr %self, ptr %objects, i64 %given) {
entry:
  %context = load ptr, ptr @context
  %as_pointer = get ptr %context.PyLong_AsVoidPtr
  %from_integer = get ptr %context.PyLong_FromLongLong
  %object0 = load ptr, ptr %objects
  %record = call ptr %as_pointer(ptr %object0)
  %class = get ptr %record.class
  %at_data = get i64 %record.at_data
  %at_axes = get i64 %record.at_axes
  %at_sizes = get i64 %record.at_sizes
  %at_dtype = get i64 %record.at_dtype
  %at_flags = get i64 %record.at_flags
  %flags = get i64 %record.flags
  %workspace = get ptr %record.workspace
  %buffers = getelementptr i8, ptr %workspace, i64 $record_bytes
  %first = getelementptr i64, ptr %record, i64 $arrays_words
  %count = get i64 %record.count
  %expected = add i64 %count, 1
  %as_many = icmp eq i64 %given, %expected
  %busy = get i64 %record.busy
  %idle = icmp eq i64 %busy, 0
  %ready = and i1 %as_many, %idle
  br i1 %ready, label %arrays, label %others
arrays:
  %i = phi i64 [ 0, %entry ], [ %i1, %fits ]
  %entry_at = phi ptr [ %first, %entry ], [ %next_entry, %fits ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %look, label %run
look:
  %i1 = add i64 %i, 1
  %object_at = getelementptr ptr, ptr %objects, i64 %i1
  %object = load ptr, ptr %object_at
  %class_at = getelementptr ptr, ptr %object, i64 $class_word
  %its_class = load ptr, ptr %class_at
  %is_array = icmp eq ptr %its_class, %class
  br i1 %is_array, label %an_array, label %others
an_array:
  %dtype_at = getelementptr i8, ptr %object, i64 %at_dtype
  %its_dtype = load ptr, ptr %dtype_at
  %dtype_entry = getelementptr i64, ptr %entry_at, i64 1
  %dtype = load ptr, ptr %dtype_entry
  %same_dtype = icmp eq ptr %its_dtype, %dtype
  %flags_at = getelementptr i8, ptr %object, i64 %at_flags
  %its_flags32 = load i32, ptr %flags_at
  %its_flags = zext i32 %its_flags32 to i64
  %set = and i64 %its_flags, %flags
  %all_set = icmp eq i64 %set, %flags
  %axes_at = getelementptr i8, ptr %object, i64 %at_axes
  %its_axes32 = load i32, ptr %axes_at
  %its_axes = zext i32 %its_axes32 to i64
  %axes_entry = getelementptr i64, ptr %entry_at, i64 2
  %axes = load i64, ptr %axes_entry
  %same_axes = icmp eq i64 %its_axes, %axes
  %same1 = and i1 %same_dtype, %all_set
  %same2 = and i1 %same1, %same_axes
  %sizes_at = getelementptr i8, ptr %object, i64 %at_sizes
  %its_sizes = load ptr, ptr %sizes_at
  %sizes = getelementptr i64, ptr %entry_at, i64 3
  br i1 %same2, label %axis, label %others
axis:
  %d = phi i64 [ 0, %an_array ], [ %d1, %size ]
  %more_axes = icmp slt i64 %d, %axes
  br i1 %more_axes, label %size, label %fits
size:
  %d1 = add i64 %d, 1
  %its_size_at = getelementptr i64, ptr %its_sizes, i64 %d
  %its_size = load i64, ptr %its_size_at
  %size_at = getelementptr i64, ptr %sizes, i64 %d
  %wanted_size = load i64, ptr %size_at
  %same_size = icmp eq i64 %its_size, %wanted_size
  br i1 %same_size, label %axis, label %others
fits:
  %data_at = getelementptr i8, ptr %object, i64 %at_data
  %data = load ptr, ptr %data_at
  %place = load i64, ptr %entry_at
  %buffer = getelementptr ptr, ptr %buffers, i64 %place
  store ptr %data, ptr %buffer
  %next_entry = getelementptr i64, ptr %sizes, i64 %axes
  br label %arrays
run:
  store ptr %workspace, ptr %buffers
  set i64 1, %record.busy
  %program = get ptr %record.program
  %ran = call i64 @go(ptr %program, ptr %workspace, i1 false)
  %paused = icmp eq i64 %ran, $paused
  %still = zext i1 %paused to i64
  set i64 %still, %record.busy
  %result = call ptr %from_integer(i64 %ran)
  ret ptr %result
others:
  %no = call ptr %from_integer(i64 $others)
  ret ptr %no
}

; Remember the context; tell the addresses of the builtin functions.
define void @weft_program(ptr %context, ptr %table) {
  store ptr %context, ptr @context
  store ptr @execute, ptr %table
  %second = getelementptr ptr, ptr %table, i64 1
  store ptr @execute_over, ptr %second
  %third = getelementptr ptr, ptr %table, i64 2
  store ptr @proceed, ptr %third
  %fourth = getelementptr ptr, ptr %table, i64 3
  store ptr @execute_arrays, ptr %fourth
  %fifth = getelementptr ptr, ptr %table, i64 4
  store ptr @run_plain, ptr %fifth
  ret void
}
""")


def native_code(machine: str) -> str:
    """The LLVM IR of the interpreter for a machine as `platform.machine()` names it."""
    text = _IR.substitute(
        threads.MACHINES[machine],
        **_MACHINES[machine],
        more_threads=MORE_THREADS,
        few_addresses=FEW_ADDRESSES,
        unknown_kind=_UNKNOWN_KIND,
        header_words=HEADER_WORDS,
        command_words=COMMAND_WORDS,
        reloc_bytes=8 * RELOC_WORDS,
        record_bytes=threads.RUN_BYTES,
        between_looks=_COMMANDS_BETWEEN_LOOKS - 1,
        paused=PAUSED,
        committed=COMMITTED,
        full=FULL,
        move_bytes=8 * len(MOVE_FIELDS),
        arrays_words=len(ARRAYS),
        class_word=HEAD_WORDS - 1,
        others=OTHERS,
    )
    fields = {
        "context": threads.CONTEXT,
        "record": ARRAYS,
        "workspace": threads.RUN,
        "program": HEADER,
        "command": COMMAND,
        "reloc": RELOC,
        "loop": {name: word for word, name in enumerate(LOOP_FIELDS)},
        "move": {name: word for word, name in enumerate(MOVE_FIELDS)},
    }
    return threads.expand(text, fields)


class Interpreter(NamedTuple):
    """Its builtin functions. Each gives a status, 0 if all went well."""

    execute: Callable[..., int]
    """execute(program, workspace, *addresses): a run that overwrites nothing of the caller's."""
    execute_over: Callable[..., int]
    """The same for one that does."""
    proceed: Callable[[int, int], int]
    """proceed(program, workspace): go on with a run that is paused."""
    execute_arrays: Callable[..., int]
    """execute_arrays(record, *arrays): `execute` for arrays of NumPy; `OTHERS` if they are not what the record says."""
    run_plain: int
    """The address of `i64 run_plain(ptr program, ptr workspace)`: `execute`, the addresses being in the workspace."""


_BUILTINS: Final = len(Interpreter._fields) - 1
"""How many of these are functions of Python's; the last is an address, for machine code."""
_loaded: Interpreter | None = None


def interpreter() -> Interpreter:
    """The interpreter of this machine."""
    global _loaded
    if _loaded is None:
        machine = platform.machine()
        source = engine.Source(f"runtime:program:{machine}", "weft_program", lambda: native_code(machine))
        table = (ctypes.c_int64 * len(Interpreter._fields))()
        bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.load_for_good(source))
        bind(threads.context(), ctypes.addressof(table))
        functions = [builtin(name, at) for name, at in zip(Interpreter._fields, table[:_BUILTINS], strict=False)]
        _loaded = Interpreter(*functions, *table[_BUILTINS:])  # type: ignore[arg-type]
    return _loaded
