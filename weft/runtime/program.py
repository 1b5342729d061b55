"""Programs: tables of commands, run by one small native interpreter, so that a new program needs no compiler.

Codegen builds a `Program` once and calls `run` with the addresses of its operands; all else happens in native code
(`interpreter.py`), without Python's lock. A program is data: a block of 64-bit argument words, relocations (words that
get the address of an operand when it runs) and commands, which point native functions at parts of that block.

What a run finds in its workspace, each part aligned to 64 bytes:

    record                  RUN of threads.py: what the interpreter, kernels and Python tell each other
    buffers                 the addresses of this workspace, of inputs and of outputs, then the words of constants
    arguments               the block, copied from the program and relocated, so that commands may change it
    scratch                 one piece for each thread
    arena                   the program's temporaries; relocations against buffer 0 count from here
"""

from __future__ import annotations

import ctypes
import itertools
import operator
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from weft.llvm.code import Code
from weft.runtime import threads
from weft.runtime.buffer import ALIGNMENT, block_size, pool
from weft.runtime.interpreter import (
    COMMAND_WORDS,
    COMMITTED,
    FEW_ADDRESSES,
    FULL,
    HEADER,
    HEADER_WORDS,
    LOOP_FIELDS,
    MORE_THREADS,
    MOST_PLAIN,
    MOVE_FIELDS,
    PAUSED,
    RELOC,
    RELOC_WORDS,
    CommandKind,
    interpreter,
)
from weft.runtime.progress import Counter, watching
from weft.runtime.threads import RUN, RUN_BYTES

__all__ = ["FULL", "INLINE", "LOOP_FIELDS", "MOVE_FIELDS", "CommandKind"]  # others need these too

_FAILED_WORDS: Final = 8
"""Words of a failed command's arguments that are told."""
NOTHING_RAN: Final = (MORE_THREADS, FEW_ADDRESSES)
_PAUSES: Final = (PAUSED, COMMITTED)


class Command(NamedTuple):
    """One step. Its arguments begin at word `first_arg_word` of the block. `grain` is the least part of the extent that
    is worth a thread of its own, and chunks are multiples of it; 0 keeps the kernel on one thread. Who holds a command
    keeps its code in memory."""

    kind: int
    fn: int | Code
    first_arg_word: int
    grain: int = 0
    scratch_bytes_per_thread: int = 0
    back: int = -1
    """If a kernel stops in the middle of a unit, the run goes on so many commands before it, from where all can be done
    again. Negative: it must not stop so."""


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


def _aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment


class Cancelled(Exception):
    """A run was called off before it had overwritten anything."""


class Progress:
    """A run that overwrites something of the caller's, and how far it came.

    Python runs the handlers of signals where a run pauses (`interpreter.py`). If one raises (Ctrl-C), the run stops:
    before its first command that overwrites something it is given up, as if it had never begun. Behind that it stays
    *paused*: those who need its results go on with it (`hurry`), later, on whatever thread. A handler, or a finalizer,
    that needs the results or what is about to be overwritten does the same in the midst of the run, or calls it off.

    All that can happen between any two steps of Python's. So how far the run is stands in the list of statuses alone,
    to which one step adds what native code returns; and that is called for each entry of another list, which is empty
    once the run must not go on.
    """

    __slots__ = ("_calls", "_cancelled", "_held", "_statuses", "_thread", "_turn", "in_python", "keep", "results")

    def __init__(self) -> None:
        self._calls: list[tuple[int, ...]] = []
        """The arguments of the next native call, if there is to be one."""
        self._cancelled = False
        self._statuses: list[int] = []
        self._held: _Held | None = None
        """The memory of the run."""
        self._thread: int | None = threading.get_ident()
        """The thread whose run it is; none if it is paused for anyone to go on with."""
        self._turn = threading.RLock()
        self.results: list[Any] = []
        """What the run makes, for those who find that it has finished."""
        self.keep: list[Any] = []
        """What the run needs, for the time that it is paused."""
        self.in_python = False
        """Whether the run itself is Python's: then it does not pause, and handlers find it anywhere in the midst."""

    def hand_to(self, thread: int) -> None:
        """It will be the run of another thread."""
        self._thread = thread

    def begin(self, held: _Held, arguments: tuple[int, ...]) -> int:
        """Run to the end, over this memory. The status."""
        self._held = held
        return self.follow(interpreter().execute_over, arguments)

    def follow(self, execute: Callable[..., int], arguments: tuple[int, ...]) -> int:
        """Run to the end."""
        self._calls[:] = [arguments]
        self._advance(execute)
        while self._statuses[-1] in _PAUSES:
            self._calls[:] = [arguments[:2]]
            self._advance(interpreter().proceed)
        return self._statuses[-1]

    def _advance(self, function: Callable[..., int]) -> None:
        if not self._cancelled:
            self._statuses.extend(itertools.starmap(function, self._calls))
        if self._cancelled:
            raise Cancelled

    def holds(self, workspace: int) -> bool:
        """Whether the run has this memory."""
        return self._held is not None and self._held.workspace == workspace

    def let_go(self) -> None:
        """The run has returned. Its memory goes, unless it is paused."""
        if self.paused:
            self._thread = None
            return
        self._calls.clear()
        self.keep.clear()
        held, self._held = self._held, None
        if held is not None:
            held.give_back()

    @property
    def finished(self) -> bool:
        """Whether all commands have run."""
        return bool(self._statuses) and self._statuses[-1] == 0

    @property
    def paused(self) -> bool:
        """Whether the run has overwritten something, and can go on."""
        return bool(self._statuses) and self._statuses[-1] == COMMITTED

    def hurry(self) -> None:
        """For those who need what the run makes or is about to overwrite: a signal's handler or a finalizer in the
        midst of it, and any thread if it is paused. It runs to its end now, or never if it has overwritten nothing."""
        if self._thread == threading.get_ident():
            if self.in_python and not self.finished:
                raise RuntimeError(
                    "[eval] this array is being computed (or was, when a signal interrupted that): a signal's handler "
                    "or a finalizer cannot ask for it."
                )
            if self.paused:
                self._go_on()
            elif not self.finished:
                self._cancelled = True
                self._calls.clear()
            return
        with self._turn:
            if self.paused:  # else another thread was faster
                self._thread = threading.get_ident()
                try:
                    self._go_on()
                finally:
                    self.let_go()

    def _go_on(self) -> None:
        while self.paused:
            self._statuses.extend(itertools.starmap(interpreter().proceed, self._calls))

    def __del__(self) -> None:
        held = getattr(self, "_held", None)
        if held is not None:  # nobody needs the results of a run that was paused
            held.give_back()


class _Held(NamedTuple):
    """The memory of a run, and the program, which keeps its table."""

    program: Program
    workspace: int
    size: int
    idle: deque[int]

    def give_back(self) -> None:
        give_back(self.workspace, self.size, self.idle)


def give_back(workspace: int, size: int, idle: deque[int]) -> None:
    """The memory of a run is idle again."""
    pool.active -= size
    idle.append(workspace)
    if pool.active < pool.low:
        pool.trim_cache()


class Program:
    """Commands over a block of argument words; immutable, and any number of Python threads may run it at once.

    `args` is the initial contents of the block, `workspace_bytes` the size of the arena. `addresses` is how many
    a call gives; without it, as many as relocations name (the second word of an inline constant is named by none).
    `commit` is the first command that overwrites an operand of the caller's (without it the first of all).
    """

    __slots__ = (
        "_addresses", "_args", "_commands", "_commit", "_execute", "_layout", "_relocs", "_tables", "counters",
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
        commit: int = 0,
    ) -> None:
        _check(commands, len(args), relocations, workspace_bytes)
        self._commands = tuple(commands)
        self._args = tuple(args)
        self._relocs = tuple(relocations)
        self._addresses, self._commit = addresses, commit
        self.workspace_bytes = workspace_bytes
        self.counters = tuple(counters)
        """The loops whose progress is shown."""
        self._tables: list[array[int]] = []
        self._execute = interpreter().execute
        self._layout = self._lay_out(threads.get_threads())

    def run(self, addresses: Sequence[int], progress: Progress | None = None) -> None:
        """Run all commands. `addresses` are what relocations count from 1; 0 for what no command uses. `progress`
        learns how far it came, whatever is raised: it must be given if something of the caller's is overwritten."""
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
                    status = self._run((table, workspace, *addresses), size, idle, progress)
            elif progress is not None:
                status = self._run((table, workspace, *addresses), size, idle, progress)
            else:
                status = self._execute(table, workspace, *addresses)
                while status == PAUSED:  # Python runs the handlers of signals here
                    status = interpreter().proceed(table, workspace)
            if status == 0:
                return
            # No exception yet: a frame that holds one which holds the frame would keep the operands alive.
            found = self._failure(workspace) if status not in NOTHING_RAN else None
        finally:
            if progress is None:  # the usual way: `give_back` without a call
                pool.active -= size
                idle.append(workspace)
                if pool.active < pool.low:
                    pool.trim_cache()
            elif progress.holds(workspace):
                progress.let_go()
            else:
                give_back(workspace, size, idle)
        if status == MORE_THREADS:
            self.lay_out_again()
            self.run(addresses, progress)
        elif status == FEW_ADDRESSES:
            raise ValueError(f"[Program.run] {self.given} addresses are needed; got {len(addresses)}.")
        elif found is not None:
            command, arguments, steps = found
            raise ProgramError(command, status, arguments, steps)

    @property
    def layout(self) -> tuple[int, int, deque[int]]:
        """The address of the table, the size of a workspace, and idle ones."""
        return self._layout

    @property
    def given(self) -> int:
        """How many addresses a run needs."""
        return self._buffers() - 1

    def lay_out_again(self) -> None:
        """For as many threads as there are now."""
        self._layout = self._lay_out(threads.get_threads())

    def failed(self, workspace: int, status: int) -> ProgramError:
        """What a status other than 0 means, of a run over a workspace."""
        command, arguments, steps = self._failure(workspace)
        return ProgramError(command, status, arguments, steps)

    def _run(self, arguments: tuple[int, ...], size: int, idle: deque[int], progress: Progress | None) -> int:
        if progress is not None:
            return progress.begin(_Held(self, arguments[1], size, idle), arguments)
        status = self._execute(*arguments)
        while status == PAUSED:
            status = interpreter().proceed(*arguments[:2])
        return status

    def _failure(self, workspace: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The command that ended a program early, the first of its arguments, and the steps of the loops around it, as
        they stand in the workspace."""
        block = workspace + self._block_at()

        def word(address: int, number: int) -> int:
            return ctypes.c_int64.from_address(address + 8 * number).value

        failed, commands = word(workspace, RUN["failed"]), self._commands
        first, end = commands[failed].first_arg_word, len(self._args)
        arguments = tuple([word(block, at) for at in range(first, min(first + _FAILED_WORDS, end))])
        around = [c for i, c in enumerate(commands) if c.kind == CommandKind.LOOP and i < failed < operator.index(c.fn)]
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
            c._replace(back=-1)
            if first <= i < end
            else Command(CommandKind.KERNEL, 1, nothing, _kept_grain(c), c.scratch_bytes_per_thread)
            for i, c in enumerate(self._commands)
        ]
        return Program(
            commands, (*self._args, 0), self._relocs, self.workspace_bytes, self._addresses, commit=self._commit
        )

    def _block_at(self) -> int:
        """Where the words of a run lie in its workspace."""
        return RUN_BYTES + _aligned(8 * self._buffers())

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
        relocs_at = 8 * (HEADER_WORDS + COMMAND_WORDS * len(self._commands))
        header = {
            "buffers": buffers,
            "slots": team if stride else threads.MAX_THREADS,
            "commands": len(self._commands),
            "relocs": len(self._relocs),
            "args": len(self._args),
            "relocs_at": relocs_at,
            "template_at": relocs_at + 8 * RELOC_WORDS * len(self._relocs),
            "block_at": block_at,
            "scratch_at": scratch_at,
            "scratch_stride": stride,
            "commit": self._commit,
            "plain": 0,
            "brief": 0,
        }
        padding = (0,) * (COMMAND_WORDS - len(Command._fields))
        table = array("q", (header[name] for name in HEADER))
        for kind, fn, *others in self._commands:
            table.extend((kind, operator.index(fn), *others, *padding))
        for word, buffer, offset in self._relocs:
            if buffer == INLINE:
                buffer, offset = 0, offset + RUN_BYTES + 8
            elif buffer == 0:
                offset += arena_at
            table.extend((word, buffer, offset))
        table.extend(self._args)
        table[HEADER["plain"]] = _is_plain(table)
        self._tables.append(table)  # another thread may be running an earlier one
        size = block_size(arena_at + self.workspace_bytes)
        return table.buffer_info()[0], size, pool.blocks(size)


def _is_plain(table: array[int]) -> bool:
    """Whether all commands of a table are kernels that a run calls once each, and there are few."""
    count, relocs, relocs_at, words_at = (table[HEADER[n]] for n in ("commands", "relocs", "relocs_at", "template_at"))
    if count > MOST_PLAIN:
        return False
    first = relocs_at // 8 + RELOC["word"]
    moved = table[first : first + RELOC_WORDS * relocs : RELOC_WORDS]
    for at in range(HEADER_WORDS, HEADER_WORDS + COMMAND_WORDS * count, COMMAND_WORDS):
        kind, _, word, grain = table[at : at + 4]
        extent = table[words_at // 8 + word]
        if kind != CommandKind.KERNEL or word in moved or 0 < grain <= extent - grain:
            return False
    return True


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


MANY_NUMBERS: Final = 64
"""Numbers that are written into a table at once, because that is quicker than one by one."""


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
        commit: int = 0,
    ) -> None:
        self.model = Program(commands, args, relocations, 0, addresses, commit=commit)
        self._parts, self._holes = (commands, args, relocations, addresses), tuple(holes)
        relocs_at = HEADER_WORDS + COMMAND_WORDS * len(commands)
        offsets = range(relocs_at + RELOC["offset"], relocs_at + RELOC_WORDS * len(relocations), RELOC_WORDS)
        words_at = relocs_at + RELOC_WORDS * len(relocations)

        def field(number: int, name: str) -> int:
            return HEADER_WORDS + COMMAND_WORDS * number + Command._fields.index(name)

        self._places = [
            words_at + number if what == "word" else offsets[number] if what == "offset" else field(number, what)
            for what, number in holes
        ]
        self._arena = np.array(
            [at for at, relocation in zip(offsets, relocations, strict=True) if relocation.buffer == 0], np.intp
        )
        self._table = self.model._tables[0][:]
        for at, relocation in zip(offsets, relocations, strict=True):
            if relocation.buffer == 0:
                self._table[at] = relocation.byte_offset
        self._where = np.array(self._places, np.intp)
        hungry = {number for what, number in holes if what == "scratch_bytes_per_thread"}
        hungry |= {number for number, c in enumerate(commands) if c.scratch_bytes_per_thread}
        changing = {number for what, number in holes if what in ("grain", "scratch_bytes_per_thread")}
        self._needs = list(
            {(_kept_grain(c) > 0, c.scratch_bytes_per_thread) for n, c in enumerate(commands) if n in hungry - changing}
        )
        """What commands need whose numbers do not change, each once: whether that is for each thread, and bytes."""
        self._hungry = [
            (
                field(n, "grain") if commands[n].kind == CommandKind.KERNEL else None,
                field(n, "scratch_bytes_per_thread"),
            )
            for n in sorted(hungry & changing)
        ]

    def table(self, numbers: Sequence[int], team: int) -> tuple[array[int], int]:
        """The table with these numbers, for that many threads, and where the arena begins."""
        table = self._table[:]
        if len(numbers) < MANY_NUMBERS:
            deque(map(table.__setitem__, self._places, numbers), 0)  # the fastest loop that Python has
        else:
            np.frombuffer(table, np.int64)[self._where] = np.frombuffer(array("q", numbers), np.int64)
        needs = self._needs + [(0 if grain is None else table[grain], table[nbytes]) for grain, nbytes in self._hungry]
        stride, scratch = _scratch(needs, team) if needs else (0, 0)
        table[HEADER["slots"]] = team if stride else threads.MAX_THREADS
        table[HEADER["scratch_stride"]] = stride
        arena_at = table[HEADER["scratch_at"]] + scratch
        np.frombuffer(table, np.int64)[self._arena] += arena_at
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
        return Program(commands, args, relocs, workspace_bytes, addresses, commit=self.model._commit)


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
        table[HEADER["plain"]], table[HEADER["brief"]] = _is_plain(table), 0
        self._tables.append(table)
        size = block_size(arena_at + self.workspace_bytes)
        return table.buffer_info()[0], size, pool.blocks(size)


def _kept_grain(command: Command) -> int:
    """That of a kernel; calls have the caller's scratch memory, like kernels without grain."""
    return command.grain if command.kind == CommandKind.KERNEL else 0


def _check(commands: Sequence[Command], words: int, relocations: Sequence[Reloc], workspace_bytes: int) -> None:
    """Nothing that the interpreter could stumble over may reach it."""
    if workspace_bytes < 0:
        raise ValueError(f"[Program] workspace_bytes must not be negative; got {workspace_bytes}.")
    for number, command in enumerate(commands):
        if command.kind not in CommandKind.__members__.values():
            raise ValueError(f"[Program] command {number} has kind {command.kind}, which does not exist.")
        if not 0 <= command.first_arg_word < words:
            raise ValueError(
                f"[Program] command {number} has its arguments at word {command.first_arg_word} of a block of {words}."
            )
        if command.kind in (CommandKind.LOOP, CommandKind.NEXT, CommandKind.JUMP):
            if not 0 <= operator.index(command.fn) <= len(commands):
                raise ValueError(f"[Program] command {number} goes to command {command.fn} of {len(commands)}.")
            continue
        if command.kind == CommandKind.CHOOSE:
            continue
        if not command.fn or command.grain < 0 or command.scratch_bytes_per_thread < 0:
            raise ValueError(f"[Program] command {number} has no function, or a negative size: {command}.")
    for number, reloc in enumerate(relocations):
        if not 0 <= reloc.word < words or reloc.buffer < INLINE or (reloc.buffer == INLINE and reloc.byte_offset < 0):
            raise ValueError(f"[Program] relocation {number} is outside the block of {words} words: {reloc}.")
