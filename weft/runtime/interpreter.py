"""The interpreter of programs: small, native, the same for all of them, so that a new program needs no compiler.

A program is a table of 64-bit words: a header, commands, relocations, and the initial contents of the block of argument
words (`program.py` makes it). Here is what its words mean; the code that follows it is in `interpreter_code.py`. Python
calls it as it calls any builtin function, by CPython's stable ABI: that takes a third of the time of `ctypes`.
Other threads of Python go on during a run, but for one so brief that to let them would take longer.

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
from typing import TYPE_CHECKING, Final, NamedTuple

from weft.lazy import lazy
from weft.llvm import engine
from weft.runtime import threads
from weft.runtime.cpython import builtin

if TYPE_CHECKING:
    from weft.runtime import interpreter_code
else:
    interpreter_code = lazy("weft.runtime.interpreter_code")  # written when its object is not in the cache


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
UNKNOWN_KIND: Final = -3
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
            "plain",  # 1: all commands are kernels of one piece, and there are few
            "brief",  # 1: it is plain, and has taken so little time that other threads need not go on meanwhile
        )
    )
}  # fmt: skip
HEADER_WORDS: Final = len(HEADER)

MOST_PLAIN: Final = 8
"""Commands of a program that is called plain."""
BRIEF: Final = 10
"""Binary logarithm of how many times the patience of a run (`threads.py`) is a time that is too short for other threads
to go on: that time is about that of a thousand instructions of Python's. How long most kernels take follows from their
sizes alone, so what was brief once is from then on; others look, and let go of the lock."""
COMMANDS_BETWEEN_LOOKS: Final = 8
"""At the clock, and steps of a loop; calls and kernels that are cut into pieces look themselves."""


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
        source = engine.Source(
            f"runtime:program:{machine}", "weft_program", lambda: interpreter_code.native_code(machine)
        )
        table = (ctypes.c_int64 * len(Interpreter._fields))()
        bind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(engine.load_for_good(source))
        bind(threads.context(), ctypes.addressof(table))
        functions = [builtin(name, at) for name, at in zip(Interpreter._fields, table[:_BUILTINS], strict=False)]
        _loaded = Interpreter(*functions, *table[_BUILTINS:])  # type: ignore[arg-type]
    return _loaded
