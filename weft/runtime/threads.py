"""The thread pool: one small team of native threads for the whole process, asleep when there is nothing to do.

The interpreter of programs (`program.py`) hands in kernels, whose outer dimension is cut into chunks for the team to
grab; nobody else comes here, except to ask for or change the number of threads. All of it is native code, written below
as LLVM IR, because a region has to cost less than a microsecond. How it works:

- A region is opened and closed by its caller on one atomic word, the *gate*: its upper half counts openings and
  closings (odd: open), its lower half the workers inside. Only an open gate can be entered, and the caller waits
  only for workers that did enter. So a worker that the system keeps away costs nothing: the others do its chunks.
- Idle workers spin on the gate for a moment and then sleep in a futex on its upper half. A woken one wakes two others.
- The pool serves one region at a time. A caller that finds it busy does its kernel alone; nobody waits for the pool.
- The state lies in memory that a forked child finds zeroed, which is the state of a pool that has not started yet.
- A region without a function dismisses the team: that is how the number of threads changes.
- What a thread grabs takes a millisecond at most, if a grain does. Between two of its pieces the caller looks at the
  clock. When it is time to look for signals it lets nobody grab any more, and tells how far the region came.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import operator
import os
import platform
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from string import Template
from typing import Final

from weft.config import config
from weft.errors import CompileError
from weft.llvm import engine

MAX_THREADS: Final = 1024
CHUNKS_PER_THREAD: Final = 4  # more even out threads of unequal speed, but each costs 0.05 µs
_SPIN_NS: Final = 200_000  # how long an idle worker stays awake: the time between two calls of a compiled function
_WAKE_NS: Final = 40_000  # work that is worth waking a worker for: that takes the caller 10 µs, the worker up to 50 µs
_STACK_BYTES: Final = 2 << 20

# The context is a table of 64-bit words through which native code reaches everything; it survives a fork. Functions
# that are not ours go by their own names: those of libc, and of CPython's stable ABI for the interpreter of programs.
_LIBC_FUNCTIONS: Final = (
    "syscall", "clock_gettime", "pthread_create", "pthread_join", "pthread_attr_init", "pthread_attr_setstacksize",
    "pthread_attr_destroy", "pthread_self",
)  # fmt: skip
_PYTHON_FUNCTIONS: Final = (
    "PyLong_AsVoidPtr", "PyLong_FromLongLong", "PyErr_Occurred", "PyErr_SetInterrupt", "PyOS_InterruptOccurred",
    "PyEval_SaveThread", "PyEval_RestoreThread",
)  # fmt: skip
_OWN_FUNCTIONS: Final = ("serial", "parallel", "due", "look")
CONTEXT: Final = {
    name: word
    for word, name in enumerate(
        (
            "threads",
            "state",
            "main",  # Python's main thread, which alone gets signals
            "patience",  # for how many ticks of the clock a run goes on before it lets Python look for signals
            "left",  # until when, in nanoseconds, a processor is left to Python, which goes on beside a run; or 0
            *_OWN_FUNCTIONS,
            *_LIBC_FUNCTIONS,
            *_PYTHON_FUNCTIONS,
        )
    )
}

RUN: Final = {
    name: word
    for word, name in enumerate(
        (
            "failed",  # the command that ended the program
            "number", "position",  # the command at which a paused run goes on, and how much of it is done
            "commit",  # the first command that overwrites something of the caller's
            "deadline",  # when it is time to look for signals, on the main thread
            "stop",  # 1: kernels stop as soon as they can, also in the middle of a unit
            "torn",  # commands before this one do not stop so, because one of them has already: no endless repetition
            "deaf",  # 1: this command must not stop so
            "look",  # i1 look(ptr run), which kernels call in the middle of long units: whether to stop
            "context", "thread",  # for `look`: the context, and CPython's state of the thread that runs it
            "missed",  # nanoseconds of work that sleeping workers were not woken for, one piece alone being too short
        )
    )
}  # fmt: skip
"""The record of a run of a program: what the interpreter, kernels and Python tell each other."""
RUN_BYTES: Final = 128

# The state of the pool, also in words. What different threads write at the same time is 128 bytes apart: some
# processors fetch cache lines in pairs.
_STATE: Final = {
    "busy": 0,  # 1 while a caller owns the pool
    "gate": 16,
    "sleepers": 32,  # workers that are in the futex or about to be
    "waiting": 33,  # 1 while the caller sleeps until the last worker has left
    "next": 48,  # the first index that nobody has grabbed yet
    "fn": 64, "args": 65, "extent": 66, "chunk": 67, "scratch": 68, "stride": 69, "slots": 70, "run": 71,  # the region
    "assembled": 80, "workers": 81,  # the team: whether it was tried to start it, and how many came
    "first_slot": 96,  # one line of 64 bytes per thread: its pthread_t, its index, the context
}  # fmt: skip
_STATE_BYTES: Final = 8 * (_STATE["first_slot"] + 8 * MAX_THREADS)

_MADV_WIPEONFORK: Final = 18
_FAR_AWAY: Final = 1 << 62  # an index that no kernel has, a time that never comes


# ---------------------------------------------------------------------------------------------------------------------
# Native code
# ---------------------------------------------------------------------------------------------------------------------

X86_DEFAULT_FLOAT: Final = 0x1F80
"""Round to nearest, keep subnormals, mask all exceptions."""

_X86_64: Final = {
    "sys_futex": 202, "sys_sigprocmask": 14, "sys_prctl": 157, "sys_yield": 24,
    "pause": "call void @llvm.x86.sse2.pause()",
    "default_float": f"store i32 {X86_DEFAULT_FLOAT}, ptr %control\n  call void @llvm.x86.sse.ldmxcsr(ptr %control)",
    "declarations": "declare void @llvm.x86.sse2.pause()\ndeclare void @llvm.x86.sse.ldmxcsr(ptr)",
    "clock": "readcyclecounter",
}  # fmt: skip
_AARCH64: Final = {
    "sys_futex": 98, "sys_sigprocmask": 135, "sys_prctl": 167, "sys_yield": 124,
    "pause": "call void @llvm.aarch64.isb(i32 15)",  # a yield is over at once on most cores
    "default_float": "call void @llvm.aarch64.set.fpcr(i64 0)",
    "declarations": "declare void @llvm.aarch64.isb(i32)\ndeclare void @llvm.aarch64.set.fpcr(i64)",
    "clock": "readsteadycounter",  # counting cycles is not for user programs there
}  # fmt: skip
MACHINES: Final = {"x86_64": _X86_64, "aarch64": _AARCH64}
_PATIENCE: Final = {"x86_64": 1 << 26, "aarch64": 1 << 20}  # ticks of the clock: some hundredths of a second
_PIECE: Final = 32  # a piece of a kernel should take this part of that
_GROWTH: Final = 8  # times which the next piece is larger, if the last one took that much too little time

# Workers leave signals to Python's threads, but not those that the faulting thread itself must get (SIGILL, SIGTRAP,
# SIGABRT, SIGBUS, SIGFPE, SIGSEGV) nor the three that C libraries keep for themselves (32 to 34).
_BLOCKED_SIGNALS: Final = ~sum(1 << (number - 1) for number in (4, 5, 6, 7, 8, 11, 32, 33, 34))

_IR: Final = Template(r"""
$declarations
declare i64 @llvm.$clock()

@name = private constant [12 x i8] c"weft-worker\00"
@moment = private constant [2 x i64] [i64 0, i64 10000000]

define internal i64 @now(ptr %context) {
  %time = alloca [2 x i64]
  %clock_gettime = get ptr %context.clock_gettime
  %r = call i32 %clock_gettime(i32 1, ptr %time)               ; CLOCK_MONOTONIC
  %seconds = load i64, ptr %time
  %second = getelementptr i64, ptr %time, i64 1
  %nanoseconds = load i64, ptr %second
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %nanoseconds
  ret i64 %sum
}

; Sleep until somebody wakes the futex, unless its value is no longer the expected one.
define internal void @sleep(ptr %context, ptr %futex, i32 %expected) {
  %syscall = get ptr %context.syscall
  %r = call i64 (i64, ...) %syscall(i64 $sys_futex, ptr %futex, i64 128, i32 %expected, ptr null, ptr null, i64 0)
  ret void
}

; The same, but for a moment at most.
define internal void @doze(ptr %context, ptr %futex, i32 %expected) {
  %syscall = get ptr %context.syscall
  %r = call i64 (i64, ...) %syscall(i64 $sys_futex, ptr %futex, i64 128, i32 %expected, ptr @moment, ptr null, i64 0)
  ret void
}

define internal void @wake(ptr %context, ptr %futex, i64 %count) {
  %syscall = get ptr %context.syscall
  %r = call i64 (i64, ...) %syscall(i64 $sys_futex, ptr %futex, i64 129, i64 %count, ptr null, ptr null, i64 0)
  ret void
}

define internal void @yield(ptr %context) {
  %syscall = get ptr %context.syscall
  %r = call i64 (i64, ...) %syscall(i64 $sys_yield)
  ret void
}

; Whether a run is to pause: it is time to look for signals, and this is the thread that gets them.
define internal i1 @due(ptr %run) {
entry:
  %deadline = get i64 %run.deadline
  %now = call i64 @llvm.$clock()
  %late = icmp sge i64 %now, %deadline
  br i1 %late, label %whose, label %no
whose:
  %context = get ptr %run.context
  %who = get ptr %context.pthread_self
  %self = call i64 %who()
  %main = get i64 %context.main
  %mine = icmp eq i64 %self, %main
  br i1 %mine, label %yes, label %other
yes:
  ret i1 true
other:
  set i64 $far_away, %run.deadline
  br label %no
no:
  ret i1 false
}

; Whether to stop in the middle of a unit: kernels ask whose units may take long. One that does is begun anew, so only
; Ctrl-C is worth that: it is put back for Python to find.
define internal i1 @look(ptr %run) {
entry:
  %stop = get i64 %run.stop
  %stops = icmp ne i64 %stop, 0
  br i1 %stops, label %yes, label %ask
ask:
  %deaf = get i64 %run.deaf
  %hears = icmp eq i64 %deaf, 0
  br i1 %hears, label %time, label %no
time:
  %deadline = get i64 %run.deadline
  %now = call i64 @llvm.$clock()
  %late = icmp sge i64 %now, %deadline
  br i1 %late, label %whose, label %no
whose:                                         ; another thread of the team asks in vain
  %context = get ptr %run.context
  %who = get ptr %context.pthread_self
  %self = call i64 %who()
  %main = get i64 %context.main
  %mine = icmp eq i64 %self, %main
  br i1 %mine, label %signals, label %no
signals:
  %thread = get ptr %run.thread
  %restore_thread = get ptr %context.PyEval_RestoreThread
  %interrupt_occurred = get ptr %context.PyOS_InterruptOccurred
  %save_thread = get ptr %context.PyEval_SaveThread
  call void %restore_thread(ptr %thread)
  %occurred = call i32 %interrupt_occurred()
  %interrupted = icmp ne i32 %occurred, 0
  br i1 %interrupted, label %put_back, label %later
put_back:
  %set_interrupt = get ptr %context.PyErr_SetInterrupt
  call void %set_interrupt()
  %t0 = call ptr %save_thread()
  set i64 1, %run.stop
  br label %yes
later:
  %t1 = call ptr %save_thread()
  %patience = get i64 %context.patience
  %then = call i64 @llvm.$clock()
  %deadline1 = add i64 %then, %patience
  set i64 %deadline1, %run.deadline
  br label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; How large the next piece of a kernel should be, after one of this size that took so many ticks: whole grains.
define internal i64 @fitting(ptr %context, i64 %size, i64 %ticks, i64 %grain) {
entry:
  %patience = get i64 %context.patience
  %wanted = udiv i64 %patience, $piece
  %growing = mul i64 %ticks, $growth
  %short = icmp sle i64 %growing, %wanted
  br i1 %short, label %larger, label %compare
larger:
  %more = mul i64 %size, $growth
  ret i64 %more
compare:
  %half = lshr i64 %ticks, 1
  %long = icmp sgt i64 %half, %wanted
  br i1 %long, label %smaller, label %same
smaller:
  %grains = udiv i64 %size, %grain
  %fewer = lshr i64 %grains, 1
  %some = icmp sgt i64 %fewer, 0
  %at_least_one = select i1 %some, i64 %fewer, i64 1
  %less = mul i64 %at_least_one, %grain
  ret i64 %less
same:
  ret i64 %size
}

; Run `fn` over [from, extent) on this thread. Returns how far it came.
define internal i64 @serial(ptr %run, ptr %fn, ptr %args, i64 %from, i64 %extent, i64 %grain, ptr %scratch) {
entry:
  %context = get ptr %run.context
  %start = call i64 @llvm.$clock()
  br label %one
one:
  %begin = phi i64 [ %from, %entry ], [ %end, %go_on ]
  %piece = phi i64 [ %grain, %entry ], [ %piece1, %go_on ]
  %since = phi i64 [ %start, %entry ], [ %now, %go_on ]
  %whole = add i64 %begin, %piece
  %fits = icmp slt i64 %whole, %extent
  %end = select i1 %fits, i64 %whole, i64 %extent
  call void %fn(ptr %args, i64 %begin, i64 %end, ptr %scratch, ptr %run)
  br i1 %fits, label %look, label %done
done:
  ret i64 %extent
look:
  %stopped = get i64 %run.stop
  %torn = icmp ne i64 %stopped, 0
  br i1 %torn, label %pause, label %time
time:
  %now = call i64 @llvm.$clock()
  %deadline = get i64 %run.deadline
  %late = icmp sge i64 %now, %deadline
  br i1 %late, label %ask, label %go_on
ask:
  %stop = call i1 @due(ptr %run)
  br i1 %stop, label %pause, label %go_on
pause:
  ret i64 %end
go_on:
  %ticks = sub i64 %now, %since
  %piece1 = call i64 @fitting(ptr %context, i64 %piece, i64 %ticks, i64 %grain)
  br label %one
}

; Do chunks until there are none left.
define internal void @work(ptr %state, i64 %index) {
entry:
  %fn = get ptr %state.fn
  %args = get ptr %state.args
  %extent = get i64 %state.extent
  %scratches = get ptr %state.scratch
  %stride = get i64 %state.stride
  %offset = mul i64 %stride, %index
  %scratch = getelementptr i8, ptr %scratches, i64 %offset
  %run = get ptr %state.run
  %next = at %state.next
  br label %grab
grab:
  %chunk = get i64 %state.chunk
  %begin = atomicrmw add ptr %next, i64 %chunk monotonic
  %some = icmp slt i64 %begin, %extent
  br i1 %some, label %one, label %done
one:
  %whole = add i64 %begin, %chunk
  %inside = icmp slt i64 %whole, %extent
  %end = select i1 %inside, i64 %whole, i64 %extent
  call void %fn(ptr %args, i64 %begin, i64 %end, ptr %scratch, ptr %run)
  br label %grab
done:
  ret void
}

; The caller's part of that: it finds out how large chunks should be, up to `most`, and looks at the clock. Returns how
; far the region will have come when all threads have left it.
define internal i64 @lead(ptr %context, ptr %state, ptr %run, i64 %grain, i64 %most) {
entry:
  %fn = get ptr %state.fn
  %args = get ptr %state.args
  %extent = get i64 %state.extent
  %scratch = get ptr %state.scratch
  %next = at %state.next
  %start = call i64 @llvm.$clock()
  br label %grab
grab:
  %since = phi i64 [ %start, %entry ], [ %now, %go_on ]
  %chunk = get i64 %state.chunk
  %begin = atomicrmw add ptr %next, i64 %chunk monotonic
  %some = icmp slt i64 %begin, %extent
  br i1 %some, label %one, label %all
all:
  ret i64 %extent
one:
  %whole = add i64 %begin, %chunk
  %inside = icmp slt i64 %whole, %extent
  %end = select i1 %inside, i64 %whole, i64 %extent
  call void %fn(ptr %args, i64 %begin, i64 %end, ptr %scratch, ptr %run)
  %stopped = get i64 %run.stop
  %torn = icmp ne i64 %stopped, 0
  br i1 %torn, label %close, label %time
time:
  %now = call i64 @llvm.$clock()
  %deadline = get i64 %run.deadline
  %late = icmp sge i64 %now, %deadline
  br i1 %late, label %ask, label %go_on
ask:
  %stop = call i1 @due(ptr %run)
  br i1 %stop, label %close, label %go_on
close:
  %there = atomicrmw xchg ptr %next, i64 $far_away monotonic
  %beyond = icmp sgt i64 %there, %extent
  %position = select i1 %beyond, i64 %extent, i64 %there
  ret i64 %position
go_on:
  %ticks = sub i64 %now, %since
  %fit = call i64 @fitting(ptr %context, i64 %chunk, i64 %ticks, i64 %grain)
  %too_much = icmp sgt i64 %fit, %most
  %chunk1 = select i1 %too_much, i64 %most, i64 %fit
  set i64 %chunk1, %state.chunk
  br label %grab
}

; The life of a worker.
define internal ptr @worker(ptr %slot) {
entry:
  %control = alloca i64
  %mask = alloca i64
  %index = get i64 %slot.index
  %context = get ptr %slot.context
  %state = get ptr %context.state
  %gate = at %state.gate
  %openings = getelementptr i8, ptr %gate, i64 4
  %sleepers = at %state.sleepers
  %syscall = get ptr %context.syscall
  store i64 $blocked_signals, ptr %mask
  %r0 = call i64 (i64, ...) %syscall(i64 $sys_sigprocmask, i64 0, ptr %mask, ptr null, i64 8)
  %r1 = call i64 (i64, ...) %syscall(i64 $sys_prctl, i64 15, ptr @name, i64 0, i64 0, i64 0)
  $default_float
  br label %idle

idle:                                          ; %seen: the opening that this worker has already answered
  %seen = phi i32 [ 0, %entry ], [ %number, %left ]
  br label %spin
spin:
  %woken = phi i1 [ false, %idle ], [ %woken, %pause ], [ %woken, %clock ], [ %woken, %enter ], [ true, %up ]
  %since = phi i64 [ 0, %idle ], [ %since, %pause ], [ %start, %clock ], [ %since, %enter ], [ 0, %up ]
  %round = phi i64 [ 0, %idle ], [ %round1, %pause ], [ 0, %clock ], [ %round, %enter ], [ 0, %up ]
  %now = load atomic i64, ptr %gate acquire, align 8
  %upper = lshr i64 %now, 32
  %number = trunc i64 %upper to i32
  %odd = trunc i64 %upper to i1
  %fresh = icmp ne i32 %number, %seen
  %opened = and i1 %odd, %fresh
  br i1 %opened, label %enter, label %pause
pause:
  $pause
  %round1 = add i64 %round, 1
  %look = icmp sge i64 %round1, 256
  br i1 %look, label %clock, label %spin
clock:                                         ; whoever is to open the gate may be waiting for our processor
  call void @yield(ptr %context)
  %time = call i64 @now(ptr %context)
  %first = icmp eq i64 %since, 0
  %start = select i1 %first, i64 %time, i64 %since
  %idled = sub i64 %time, %start
  %tired = icmp sgt i64 %idled, $spin_ns
  br i1 %tired, label %down, label %spin

down:                                          ; the caller opens, then looks for sleepers: one of us sees the other
  %s0 = atomicrmw add ptr %sleepers, i64 1 seq_cst
  %again = load atomic i64, ptr %gate seq_cst, align 8
  %same = icmp eq i64 %again, %now
  br i1 %same, label %asleep, label %up
asleep:
  call void @sleep(ptr %context, ptr %openings, i32 %number)
  br label %up
up:
  %s1 = atomicrmw sub ptr %sleepers, i64 1 seq_cst
  br label %spin

enter:
  %more = add i64 %now, 1
  %pair = cmpxchg ptr %gate, i64 %now, i64 %more acquire monotonic
  %entered = extractvalue { i64, i1 } %pair, 1
  br i1 %entered, label %inside, label %spin
inside:
  %fn = get ptr %state.fn
  %dismissed = icmp eq ptr %fn, null
  br i1 %dismissed, label %leave, label %help
help:                                          ; a sleeper that was woken wakes two others, if there is work for them
  %asleep_now = load atomic i64, ptr %sleepers monotonic, align 8
  %any = icmp sgt i64 %asleep_now, 0
  %next = at %state.next
  %position = load atomic i64, ptr %next monotonic, align 8
  %extent = get i64 %state.extent
  %remains = icmp slt i64 %position, %extent
  %useful = and i1 %any, %remains
  %call_others = and i1 %useful, %woken
  br i1 %call_others, label %wake_others, label %check
wake_others:
  call void @wake(ptr %context, ptr %openings, i64 2)
  br label %check
check:                                         ; a worker without scratch memory in this region leaves it to the others
  %slots = get i64 %state.slots
  %seated = icmp slt i64 %index, %slots
  br i1 %seated, label %do, label %leave
do:
  call void @work(ptr %state, i64 %index)
  br label %leave
leave:
  %before = atomicrmw sub ptr %gate, i64 1 seq_cst
  %count = trunc i64 %before to i32
  %last = icmp eq i32 %count, 1
  %waiting = at %state.waiting
  %awaited_word = load atomic i64, ptr %waiting seq_cst, align 8
  %awaited = icmp ne i64 %awaited_word, 0
  %tell = and i1 %last, %awaited
  br i1 %tell, label %tell_caller, label %left
tell_caller:
  call void @wake(ptr %context, ptr %gate, i64 1)
  br label %left
left:
  br i1 %dismissed, label %exit, label %idle
exit:
  ret ptr null
}

; Start the team that the context asks for. The caller owns the pool.
define internal void @assemble(ptr %context, ptr %state) {
entry:
  %attributes = alloca [16 x i64], align 16    ; a pthread_attr_t has 56 or 64 bytes
  %threads = get i64 %context.threads
  %init = get ptr %context.pthread_attr_init
  %set_stack = get ptr %context.pthread_attr_setstacksize
  %destroy = get ptr %context.pthread_attr_destroy
  %create = get ptr %context.pthread_create
  %r0 = call i32 %init(ptr %attributes)
  %r1 = call i32 %set_stack(ptr %attributes, i64 $stack_bytes)
  br label %loop
loop:
  %index = phi i64 [ 1, %entry ], [ %index1, %started ]
  %more = icmp slt i64 %index, %threads
  br i1 %more, label %start, label %done
start:
  %slot = call ptr @slot_of(ptr %state, i64 %index)
  set i64 %index, %slot.index
  set ptr %context, %slot.context
  %failed = call i32 %create(ptr %slot, ptr %attributes, ptr @worker, ptr %slot)
  %ok = icmp eq i32 %failed, 0
  br i1 %ok, label %started, label %done
started:
  %index1 = add i64 %index, 1
  br label %loop
done:                                          ; fewer than wanted, even none, is a smaller team and no error
  %workers = sub i64 %index, 1
  %r2 = call i32 %destroy(ptr %attributes)
  set i64 %workers, %state.workers
  set i64 1, %state.assembled
  ret void
}

define internal ptr @slot_of(ptr %state, i64 %index) {
  %slots = at %state.first_slot
  %line = mul i64 %index, 64
  %slot = getelementptr i8, ptr %slots, i64 %line
  ret ptr %slot
}

; Wait until no worker is inside the closed gate: awake at first, then asleep. Units of workers may take long, and the
; thread that gets signals may be the one that waits here: it looks for Ctrl-C on their behalf.
define internal void @drain(ptr %context, ptr %state, ptr %run) {
entry:
  %gate = at %state.gate
  %waiting = at %state.waiting
  br label %spin
spin:
  %round = phi i64 [ 0, %entry ], [ %round1, %pause ], [ %round1, %between ]
  %now = load atomic i64, ptr %gate acquire, align 8
  %inside = trunc i64 %now to i32
  %empty = icmp eq i32 %inside, 0
  br i1 %empty, label %done, label %pause
pause:
  $pause
  %round1 = add i64 %round, 1
  %low = and i64 %round1, 63
  %pausing = icmp ne i64 %low, 0
  br i1 %pausing, label %spin, label %between
between:
  call void @yield(ptr %context)
  %stops0 = call i1 @look(ptr %run)
  %tired = icmp sge i64 %round1, 2048
  br i1 %tired, label %wait, label %spin
wait:
  store atomic i64 1, ptr %waiting seq_cst, align 8
  br label %look
look:
  %now2 = load atomic i64, ptr %gate seq_cst, align 8
  %inside2 = trunc i64 %now2 to i32
  %empty2 = icmp eq i32 %inside2, 0
  br i1 %empty2, label %waited, label %asleep
asleep:
  call void @doze(ptr %context, ptr %gate, i32 %inside2)
  %stops = call i1 @look(ptr %run)
  br label %look
waited:
  store atomic i64 0, ptr %waiting monotonic, align 8
  br label %done
done:
  ret void
}

; Run `fn` over [from, extent), on several threads if the pool is free. There is scratch memory for `slots` threads.
; Chunks must not wait for each other: it is never certain that a second thread will come. Returns how far it came.
define internal i64 @parallel(ptr %context, ptr %run, ptr %fn, ptr %args, i64 %from, i64 %extent, i64 %grain,
                              ptr %scratch, i64 %stride, i64 %slots) {
entry:
  %all = get i64 %context.threads
  %left = get i64 %context.left
  %beside = icmp ne i64 %left, 0
  br i1 %beside, label %compare, label %choose
compare:
  %time0 = call i64 @now(ptr %context)
  %early = icmp slt i64 %time0, %left
  %others = sub i64 %all, 1
  %available = select i1 %early, i64 %others, i64 %all
  br label %choose
choose:
  %threads = phi i64 [ %all, %entry ], [ %available, %compare ]
  %fits = icmp slt i64 %threads, %slots
  %team = select i1 %fits, i64 %threads, i64 %slots
  %state = get ptr %context.state
  %busy = at %state.busy
  %alone = icmp slt i64 %team, 2
  br i1 %alone, label %serial, label %lock
lock:
  %pair = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %owned = extractvalue { i64, i1 } %pair, 1
  br i1 %owned, label %owner, label %serial
serial:
  %reached = call i64 @serial(ptr %run, ptr %fn, ptr %args, i64 %from, i64 %extent, i64 %grain, ptr %scratch)
  ret i64 %reached
owner:
  %assembled = get i64 %state.assembled
  %missing = icmp eq i64 %assembled, 0
  br i1 %missing, label %first, label %describe
first:
  call void @assemble(ptr %context, ptr %state)
  br label %describe
describe:                                      ; a chunk is a whole number of grains
  %length = sub i64 %extent, %from
  %below = sub i64 %length, 1
  %full = udiv i64 %below, %grain
  %grains = add i64 %full, 1
  %pieces = mul i64 %team, $chunks_per_thread
  %below2 = sub i64 %grains, 1
  %full2 = udiv i64 %below2, %pieces
  %grains_per_chunk = add i64 %full2, 1
  %most = mul i64 %grains_per_chunk, %grain
  set ptr %fn, %state.fn
  set ptr %args, %state.args
  set i64 %extent, %state.extent
  set i64 %grain, %state.chunk
  set ptr %scratch, %state.scratch
  set i64 %stride, %state.stride
  set i64 %team, %state.slots
  set ptr %run, %state.run
  %next = at %state.next
  store atomic i64 %from, ptr %next monotonic, align 8
  %gate = at %state.gate
  %opening = atomicrmw add ptr %gate, i64 4294967296 seq_cst
  %sleepers = at %state.sleepers
  %asleep = load atomic i64, ptr %sleepers seq_cst, align 8
  %any = icmp sgt i64 %asleep, 0
  br i1 %any, label %rouse, label %work
rouse:                                         ; do one grain first: is the rest, with what was missed, worth it?
  %position = atomicrmw add ptr %next, i64 %grain monotonic
  %remaining = sub i64 %extent, %position
  %rest = sub i64 %remaining, %grain
  %some_rest = icmp sgt i64 %rest, 0
  br i1 %some_rest, label %sample, label %tail
tail:                                          ; other threads have grabbed all but, perhaps, this last grain
  %left_over = icmp sgt i64 %remaining, 0
  br i1 %left_over, label %last, label %work
last:
  call void %fn(ptr %args, i64 %position, i64 %extent, ptr %scratch, ptr %run)
  br label %work
sample:
  %before = call i64 @now(ptr %context)
  %sample_end = add i64 %position, %grain
  call void %fn(ptr %args, i64 %position, i64 %sample_end, ptr %scratch, ptr %run)
  %after = call i64 @now(ptr %context)
  %time = sub i64 %after, %before
  %rest_grains = udiv i64 %rest, %grain
  %rest_time = mul i64 %rest_grains, %time
  %missed = get i64 %run.missed
  %in_all = add i64 %missed, %rest_time
  set i64 %in_all, %run.missed
  %worth = icmp sgt i64 %in_all, $wake_ns
  br i1 %worth, label %wake_some, label %work
wake_some:
  set i64 0, %run.missed
  %openings = getelementptr i8, ptr %gate, i64 4
  %pair_of_threads = icmp eq i64 %team, 2
  %count = select i1 %pair_of_threads, i64 1, i64 2
  call void @wake(ptr %context, ptr %openings, i64 %count)
  br label %work
work:
  %reached_by_all = call i64 @lead(ptr %context, ptr %state, ptr %run, i64 %grain, i64 %most)
  %closing = atomicrmw add ptr %gate, i64 4294967296 seq_cst
  call void @drain(ptr %context, ptr %state, ptr %run)
  store atomic i64 0, ptr %busy release, align 8
  ret i64 %reached_by_all
}

; Dismiss the team, and let the next region assemble one of another size.
define internal void @resize(ptr %context, i64 %threads) {
entry:
  %state = get ptr %context.state
  %join = get ptr %context.pthread_join
  %busy = at %state.busy
  br label %lock
lock:
  %pair = cmpxchg ptr %busy, i64 0, i64 1 acquire monotonic
  %owned = extractvalue { i64, i1 } %pair, 1
  br i1 %owned, label %owner, label %yield
yield:
  call void @yield(ptr %context)
  br label %lock
owner:
  set ptr null, %state.fn
  %workers = get i64 %state.workers
  %gate = at %state.gate
  %openings = getelementptr i8, ptr %gate, i64 4
  %opening = atomicrmw add ptr %gate, i64 4294967296 seq_cst
  call void @wake(ptr %context, ptr %openings, i64 2147483647)
  br label %loop
loop:
  %index = phi i64 [ 1, %owner ], [ %index1, %joined ]
  %more = icmp sle i64 %index, %workers
  br i1 %more, label %joined, label %done
joined:
  %slot = call ptr @slot_of(ptr %state, i64 %index)
  %thread = get i64 %slot.thread
  %r1 = call i32 %join(i64 %thread, ptr null)
  %index1 = add i64 %index, 1
  br label %loop
done:
  %closing = atomicrmw add ptr %gate, i64 4294967296 seq_cst
  set i64 0, %state.workers
  set i64 0, %state.assembled
  set i64 %threads, %context.threads
  store atomic i64 0, ptr %busy release, align 8
  ret void
}

; An engine source has one entry: this one tells the addresses of the others.
define void @weft_threads(ptr %context, ptr %table) {
  set ptr @serial, %context.serial
  set ptr @parallel, %context.parallel
  set ptr @due, %context.due
  set ptr @look, %context.look
  store ptr @resize, ptr %table
  ret void
}
""")


def expand(ir: str, records: Mapping[str, Mapping[str, int]]) -> str:
    """Write out the three shorthands for fields of records, which are tables of 64-bit words.

        %p = at %record.field          %v = get i64 %record.field          set i64 %v, %record.field

    The record's name is that of the variable that points to it. Reads and writes are atomic, which on 64-bit machines
    costs nothing and makes the values that threads tell each other well-defined.
    """
    fresh = itertools.count()

    def address(record: str, field: str) -> tuple[str, str]:
        name = f"%field.{next(fresh)}"
        return name, f"{name} = getelementptr i64, ptr %{record}, i64 {records[record][field]}"

    def read(match: re.Match[str]) -> str:
        value, kind, record, field = match.groups()
        name, line = address(record, field)
        return f"  {line}\n  {value} = load atomic {kind}, ptr {name} monotonic, align 8"

    def write(match: re.Match[str]) -> str:
        kind, value, record, field = match.groups()
        name, line = address(record, field)
        return f"  {line}\n  store atomic {kind} {value}, ptr {name} monotonic, align 8"

    def locate(match: re.Match[str]) -> str:
        value, record, field = match.groups()
        return f"  {value} = getelementptr i64, ptr %{record}, i64 {records[record][field]}"

    ir = re.sub(r"^  (%\w+) = get (i64|ptr) %(\w+)\.(\w+)", read, ir, flags=re.MULTILINE)
    ir = re.sub(r"^  set (i64|ptr) ([@%\w]+), %(\w+)\.(\w+)", write, ir, flags=re.MULTILINE)
    return re.sub(r"^  (%\w+) = at %(\w+)\.(\w+)", locate, ir, flags=re.MULTILINE)


def native_code(machine: str) -> str:
    """The LLVM IR of the pool for a machine as `platform.machine()` names it."""
    if machine not in MACHINES:
        raise CompileError(f"Weft makes machine code for {' and '.join(MACHINES)}, not for {machine}.")
    text = _IR.substitute(
        MACHINES[machine],
        blocked_signals=_BLOCKED_SIGNALS,
        spin_ns=_SPIN_NS,
        wake_ns=_WAKE_NS,
        stack_bytes=_STACK_BYTES,
        chunks_per_thread=CHUNKS_PER_THREAD,
        far_away=_FAR_AWAY,
        piece=_PIECE,
        growth=_GROWTH,
    )
    slot = {"thread": 0, "index": 1, "context": 2}
    return expand(text, {"context": CONTEXT, "state": _STATE, "run": RUN, "slot": slot})


# ---------------------------------------------------------------------------------------------------------------------
# The Python side
# ---------------------------------------------------------------------------------------------------------------------


class _Pool:
    """Owns the context and the state, which live as long as the process."""

    def __init__(self, threads: int) -> None:
        libc = ctypes.CDLL(None)
        self.state = _anonymous_memory(libc, _STATE_BYTES)
        self.context = (ctypes.c_int64 * len(CONTEXT))()
        table = (ctypes.c_int64 * 1)()
        machine = platform.machine()
        source = engine.Source(f"runtime:threads:{machine}", "weft_threads", lambda: native_code(machine))
        bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.load_for_good(source))
        bind(ctypes.addressof(self.context), ctypes.addressof(table))
        self.context[CONTEXT["threads"]] = min(threads, MAX_THREADS)
        self.context[CONTEXT["state"]] = self.state
        self.context[CONTEXT["main"]] = threading.main_thread().ident or 0
        self.context[CONTEXT["patience"]] = _PATIENCE[machine]
        for library, names in ((libc, _LIBC_FUNCTIONS), (ctypes.pythonapi, _PYTHON_FUNCTIONS)):
            for name in names:
                self.context[CONTEXT[name]] = ctypes.cast(library[name], ctypes.c_void_p).value or 0
        self.address = ctypes.addressof(self.context)
        self._resize = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(table[0])

    @property
    def threads(self) -> int:
        return self.context[CONTEXT["threads"]]

    def resize(self, threads: int) -> None:
        self._resize(self.address, threads)

    def reset(self) -> None:
        """A forked child has none of the workers, whatever its copy of the state says; what forked is its main
        thread."""
        ctypes.memset(self.state, 0, _STATE_BYTES)
        self.context[CONTEXT["main"]] = threading.get_ident()
        self.context[CONTEXT["left"]] = 0


def _anonymous_memory(libc: ctypes.CDLL, nbytes: int) -> int:
    """Zeroed memory that is zero again in a forked child, even one that Python does not know of."""
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    address = libc.mmap(None, nbytes, 3, 0x22, -1, 0)  # readable and writable; private and anonymous
    if address is None or address == 2**64 - 1:
        raise MemoryError(f"[threads] the operating system refused {nbytes} bytes for the state of the thread pool.")
    libc.madvise(address, nbytes, _MADV_WIPEONFORK)
    return address


_lock = threading.Lock()
_pool: _Pool | None = None


def context() -> int:
    """The address of the context. The first call loads native code; threads start with the first parallel region."""
    return pool().address


def pool() -> _Pool:
    """The pool of this process."""
    global _pool
    if _pool is None:
        with _lock:
            if _pool is None:
                _pool = _Pool(get_threads())
    return _pool


def leave_one(until: int) -> None:
    """Let kernels do without one of the threads until then (`time.monotonic_ns`), or from now on with all (0): Python
    goes on beside them, and needs a processor. Three threads that take turns on two would wait for each other."""
    pool().context[CONTEXT["left"]] = until


@contextmanager
def patience(ticks: int) -> Iterator[None]:
    """Let runs pause every so many ticks of the clock for a while: tests have less patience than people."""
    context, at = pool().context, CONTEXT["patience"]
    before, context[at] = context[at], ticks
    try:
        yield
    finally:
        context[at] = before


def get_threads() -> int:
    """The number of threads that may work on one kernel, its caller included."""
    return config.threads if _pool is None else _pool.threads


def set_threads(n: int) -> int:
    """Let kernels run on `n` threads from now on (1: no pool at all); the previous number is returned.

    Waits for a kernel that other threads are running at the moment.
    """
    n = operator.index(n)
    if not 1 <= n <= MAX_THREADS:
        raise ValueError(f"[set_threads] the number of threads must be between 1 and {MAX_THREADS}; got {n}.")
    previous = get_threads()
    config.threads = n
    if _pool is not None and n != previous:
        _pool.resize(n)
    return previous


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it
    if _pool is not None:
        _pool.reset()


def _at_exit() -> None:
    # A worker that still spins when the interpreter takes its memory apart would run code that is gone.
    if _pool is not None:
        _pool.resize(1)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
