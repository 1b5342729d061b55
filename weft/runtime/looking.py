"""The record of a run, and looking for signals in the midst of it: Ctrl-C stops native work within some hundredths of a
second, and no array loses its value.

A kernel's extent is cut into pieces of some hundred microseconds. Between two pieces, between commands, and inside of
kernels whose units may take long, the calling thread looks at the clock, and now and then for signals: if it is
Python's main thread, which alone gets them. Handlers run right there. What they raise stops the run:

- A run that has overwritten nothing that the caller wants back is given up: nothing has happened.
- Behind its first command that overwrites something of the caller's (`commit`), it is *paused*: those who need its
  results carry it to its end from where it stopped. A handler that needs them does so in the midst of the run.

The code here is part of that of the thread pool (`threads.py`); the interpreter of programs (`program.py`) and kernels
call it.
"""

from __future__ import annotations

from string import Template
from typing import Final

RUN: Final = {
    name: word
    for word, name in enumerate(
        (
            "failed",  # the command that ended the program
            "thread",  # CPython's state of the thread that runs it
            "cancelled",  # written by Python while the program runs: not 0 ends it at the next look at signals
            "state",  # RUNNING, ...
            "number", "position",  # the command at which a paused run goes on, and how much of it is done
            "looked",  # when signals were looked for last
            "stop",  # why the run is to stop: INTERRUPTED, ...; 0 if it is not
            "inside",  # what a kernel is given on the caller's thread: the address of a function to call now and then
            "torn",  # 1: some kernel has stopped in the middle of a unit
            "commit",  # the first command that overwrites what the caller wants back if the run is given up
            "context",
            "inside_worker",  # what a kernel is given on other threads
            "current",  # the command that is running
            "muted",  # 1: it overwrites its own operands, so it must not stop in the middle of a unit
            "region",  # 1: other threads may be working at it
            "carried_on",  # how often that was done to a run that was paused
        )
    )
}  # fmt: skip
"""The record of a run, in words: what the interpreter of programs, kernels and Python tell each other."""
RUN_BYTES: Final = 192

# States of a run.
RUNNING: Final = 0
PAUSED: Final = 1  # between two pieces, with something overwritten: it can be carried to its end from there
FINISHED: Final = 2
COMMITTED: Final = 3  # in the middle of a unit, with something overwritten
LOST: Final = 4  # like that, and cannot go on

# Why a run is to stop.
INTERRUPTED: Final = 1  # a signal's handler raised an exception, which is set
CANCELLED: Final = 2
OVERTAKEN: Final = 3  # a signal's handler needed the results, and carried the run to its end
FORKED: Final = 4  # this is a child that a signal's handler made, without the threads that were at work
_MOVED: Final = 5  # a signal's handler carried the run on, and was interrupted in that

COMMAND: Final = {"kind": 0, "fn": 1, "first": 2, "grain": 3, "scratch": 4, "over": 5, "piece": 6}
"""A command of a program, in words; `piece` is what of its extent takes some hundred microseconds, if that is known."""

PATIENCE: Final = {"x86_64": 1 << 26, "aarch64": 1 << 20}
"""Ticks between two looks for signals: some hundredths of a second."""
_CLOCKS: Final = {
    "x86_64": "readcyclecounter",
    "aarch64": "readsteadycounter",  # counting cycles is not for user programs there
}


def words(machine: str) -> dict[str, str | int]:
    """What stands in the code for a machine, as `platform.machine()` names it."""
    return {
        "clock": _CLOCKS[machine],
        "piece_ticks": PATIENCE[machine] >> 6,  # that a piece should take
        "running": RUNNING,
        "paused": PAUSED,
        "finished": FINISHED,
        "committed": COMMITTED,
        "by_signal": INTERRUPTED,
        "by_cancel": CANCELLED,
        "by_handler": OVERTAKEN,
        "by_fork": FORKED,
        "by_move": _MOVED,
        "inside_at": RUN["inside"],
        "inside_worker_at": RUN["inside_worker"],
    }


IR: Final = Template(r"""
declare i64 @llvm.$clock()

; Whether a run is to stop. Now and then signals are looked for, whose handlers run right here: on the main thread,
; which is the only one that gets any.
define internal i1 @look(ptr %run) {
entry:
  %before = get i64 %run.stop
  %stopped = icmp ne i64 %before, 0
  br i1 %stopped, label %yes, label %time
yes:
  ret i1 true
time:
  %context = get ptr %run.context
  %patience = get i64 %context.patience
  %now = call i64 @llvm.$clock()
  %last = get i64 %run.looked
  %waited = sub i64 %now, %last
  %impatient = icmp uge i64 %waited, %patience
  br i1 %impatient, label %whose, label %no
no:
  ret i1 false
whose:
  set i64 %now, %run.looked
  %who = get ptr %context.pthread_self
  %self = call i64 %who()
  %main = get i64 %context.main
  %mine = icmp eq i64 %self, %main
  br i1 %mine, label %signals, label %no
signals:
  %thread = get ptr %run.thread
  %restore_thread = get ptr %context.PyEval_RestoreThread
  %check_signals = get ptr %context.PyErr_CheckSignals
  %save_thread = get ptr %context.PyEval_SaveThread
  call void %restore_thread(ptr %thread)
  %raised = call i32 %check_signals()
  %same_thread = call ptr %save_thread()
  %then = call i64 @llvm.$clock()
  set i64 %then, %run.looked
  %interrupted = icmp ne i32 %raised, 0
  br i1 %interrupted, label %stop, label %forked
forked:                                        ; a child finds the state of the pool zeroed
  %region = get i64 %run.region
  %shared = icmp ne i64 %region, 0
  %state = get ptr %context.state
  %owner = get i64 %state.busy
  %unowned = icmp eq i64 %owner, 0
  %child = and i1 %shared, %unowned
  br i1 %child, label %stop, label %wanted
wanted:
  %called_off = get i64 %run.cancelled
  %unwanted = icmp ne i64 %called_off, 0
  br i1 %unwanted, label %stop, label %overtaken
overtaken:
  %stage = get i64 %run.state
  %over = icmp eq i64 %stage, $finished
  br i1 %over, label %stop, label %no
stop:
  %reason = phi i64 [ $by_signal, %signals ], [ $by_fork, %forked ], [ $by_cancel, %wanted ],
    [ $by_handler, %overtaken ]
  set i64 %reason, %run.stop
  ret i1 true
}

; The same between two pieces (`position` is how much of command `number` is done): a run that has overwritten something
; is paused there, and whoever needs its results can carry it to its end.
define internal i1 @look_between(ptr %run, i64 %number, i64 %position) {
entry:
  %commit = get i64 %run.commit
  %behind = icmp sgt i64 %number, %commit
  %at = icmp eq i64 %number, %commit
  %some = icmp sgt i64 %position, 0
  %within = and i1 %at, %some
  %committed = or i1 %behind, %within
  br i1 %committed, label %pause, label %plain
plain:
  %stop = call i1 @look(ptr %run)
  ret i1 %stop
pause:
  set i64 %number, %run.number
  set i64 %position, %run.position
  set i64 $paused, %run.state
  %before = get i64 %run.carried_on
  %stop_paused = call i1 @look(ptr %run)
  br i1 %stop_paused, label %yes, label %here
yes:
  ret i1 true
here:
  %after = get i64 %run.carried_on
  %same = icmp eq i64 %before, %after
  br i1 %same, label %no, label %elsewhere
elsewhere:
  set i64 $by_move, %run.stop
  ret i1 true
no:
  set i64 $running, %run.state
  ret i1 false
}

; The same in the middle of a unit, called by kernels. One that stops there leaves the unit unfinished.
define internal i1 @look_inside(ptr %inside) {
entry:
  %run = getelementptr i64, ptr %inside, i64 -$inside_at
  %number = get i64 %run.current
  %commit = get i64 %run.commit
  %committed = icmp sge i64 %number, %commit
  br i1 %committed, label %careful, label %plain
plain:
  %stop = call i1 @look(ptr %run)
  br i1 %stop, label %tear, label %no
careful:
  %muted = get i64 %run.muted
  %loud = icmp eq i64 %muted, 0
  br i1 %loud, label %committed_look, label %no
committed_look:
  set i64 $committed, %run.state
  %stop_committed = call i1 @look(ptr %run)
  set i64 $running, %run.state
  br i1 %stop_committed, label %tear, label %no
tear:
  set i64 1, %run.torn
  ret i1 true
no:
  ret i1 false
}

define internal i1 @look_of_worker(ptr %inside) {
entry:
  %run = getelementptr i64, ptr %inside, i64 -$inside_worker_at
  %stop = get i64 %run.stop
  %stops = icmp ne i64 %stop, 0
  br i1 %stops, label %tear, label %no
tear:
  set i64 1, %run.torn
  ret i1 true
no:
  ret i1 false
}

; What of the extent should be done at once, after so many ticks for a piece of this size: a whole number of grains.
define internal i64 @fitting(i64 %size, i64 %ticks, i64 %grain) {
entry:
  %half = lshr i64 %ticks, 1
  %long = icmp ugt i64 %half, $piece_ticks
  br i1 %long, label %less, label %longer
less:
  %times = udiv i64 %ticks, $piece_ticks
  %part = udiv i64 %size, %times
  %whole = udiv i64 %part, %grain
  %some = icmp ugt i64 %whole, 1
  %grains = select i1 %some, i64 %whole, i64 1
  %smaller = mul i64 %grains, %grain
  ret i64 %smaller
longer:
  %four = shl i64 %ticks, 2
  %short = icmp ult i64 %four, $piece_ticks
  %double = shl i64 %size, 1
  %larger = select i1 %short, i64 %double, i64 %size
  ret i64 %larger
}

; Run `fn` over [from, extent) on this thread. Returns where it stopped.
define internal i64 @serial(ptr %run, ptr %command, ptr %fn, ptr %args, i64 %from, i64 %extent, ptr %scratch) {
entry:
  %inside = at %run.inside
  %context = get ptr %run.context
  %patience = get i64 %context.patience
  %number = get i64 %run.current
  %grain = get i64 %command.grain
  %known = get i64 %command.piece
  %unknown = icmp eq i64 %known, 0
  %first = select i1 %unknown, i64 %grain, i64 %known
  %start = call i64 @llvm.$clock()
  br label %one
one:
  %position = phi i64 [ %from, %entry ], [ %end, %measured ], [ %end, %looked ]
  %piece = phi i64 [ %first, %entry ], [ %piece1, %measured ], [ %piece1, %looked ]
  %since = phi i64 [ %start, %entry ], [ %now, %measured ], [ %after, %looked ]
  %whole = add i64 %position, %piece
  %fits = icmp slt i64 %whole, %extent
  %end = select i1 %fits, i64 %whole, i64 %extent
  call void %fn(ptr %args, i64 %position, i64 %end, ptr %scratch, ptr %inside)
  %stop = get i64 %run.stop
  %stops = icmp ne i64 %stop, 0
  br i1 %stops, label %torn, label %more
torn:
  ret i64 %position
more:
  br i1 %fits, label %measure, label %done
done:
  ret i64 %extent
measure:
  %now = call i64 @llvm.$clock()
  %ticks = sub i64 %now, %since
  %piece1 = call i64 @fitting(i64 %piece, i64 %ticks, i64 %grain)
  set i64 %piece1, %command.piece
  %last = get i64 %run.looked
  %waited = sub i64 %now, %last
  %impatient = icmp uge i64 %waited, %patience
  br i1 %impatient, label %due, label %measured
measured:
  br label %one
due:
  %stop1 = call i1 @look_between(ptr %run, i64 %number, i64 %end)
  br i1 %stop1, label %stopped, label %looked
stopped:
  ret i64 %end
looked:
  %after = call i64 @llvm.$clock()
  br label %one
}
""")
