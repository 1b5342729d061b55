"""Programs: tables of commands, run by one small native interpreter, so that a new program needs no compiler.

Codegen builds a `Program` once and calls `run` with the addresses of its operands; all else happens in native code,
without Python's lock. A program is data: a block of 64-bit argument words, relocations (words that get the address of
an operand when it runs) and commands, which point native functions at parts of that block. Python calls the
interpreter as it calls any builtin function, by CPython's stable ABI: that takes a third of the time of `ctypes`.

What a run finds in its workspace, each part aligned to 64 bytes:

    record (8 words)        word 0: the command that failed
    buffers                 the addresses of this workspace, of inputs and of outputs, then the words of constants
    arguments               the block, copied from the program and relocated, so that commands may change it
    scratch                 one piece for each thread
    arena                   the program's temporaries; relocations against buffer 0 count from here
"""

from __future__ import annotations

import ctypes
import itertools
import platform
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from enum import IntEnum
from string import Template
from typing import Final, NamedTuple

from weft.runtime import engine, threads
from weft.runtime.buffer import ALIGNMENT, block_size, pool


class Kind(IntEnum):
    """What a command does. The kinds from 2 to 15 are kept for loops and branches over commands."""

    KERNEL = 0  # void fn(ptr args, i64 begin, i64 end, ptr scratch), over [0, args[0]), perhaps on several threads
    CALL = 1  # i64 fn(ptr block, ptr args, ptr scratch); anything but 0 ends the program


class Command(NamedTuple):
    """One step. Its arguments begin at word `first_arg_word` of the block. `grain` is the least part of the extent that
    is worth a thread of its own, and chunks are multiples of it; 0 keeps the kernel on one thread."""

    kind: int
    fn: int
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
    """A CALL command of a program returned something else than 0: its `status`. Later commands did not run."""

    def __init__(self, command: int, status: int) -> None:
        super().__init__(f"command {command} of a program failed with status {status}.")
        self.command = command
        self.status = status


# ---------------------------------------------------------------------------------------------------------------------
# Native code
# ---------------------------------------------------------------------------------------------------------------------

# What the interpreter itself returns. CALLs return positive numbers.
_MORE_THREADS: Final = -1  # there are more threads now than the scratch memory was laid out for; nothing has run
_FEW_ADDRESSES: Final = -2
_UNKNOWN_KIND: Final = -3

_RECORD_BYTES: Final = 64
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
}
_AARCH64: Final = {
    "save_float": "%fpcr = call i64 @llvm.aarch64.get.fpcr()",
    "restore_float": "call void @llvm.aarch64.set.fpcr(i64 %fpcr)",
    "more_declarations": "declare i64 @llvm.aarch64.get.fpcr()",
}
_MACHINES: Final = {
    "x86_64": {**threads.MACHINES["x86_64"], **_X86_64},
    "aarch64": {**threads.MACHINES["aarch64"], **_AARCH64},
}

_IR: Final = Template(r"""
$declarations
$more_declarations
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

@context = internal global ptr null

define internal i64 @weft_run(ptr %context, ptr %program, ptr %buffers) {
entry:
  %saved = alloca i64
  %control = alloca i64
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
  %number = phi i64 [ 0, %relocate ], [ %number1, %done ]
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
  ]

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
  %failure = phi i64 [ %status, %call ], [ $unknown_kind, %unknown ]
  store i64 %number, ptr %workspace
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
  %ran = call i64 @weft_run(ptr %context, ptr %program, ptr %buffers)
  call void %restore_thread(ptr %thread)
  br label %report
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
    )
    return threads.expand(text, {"context": threads.CONTEXT, "program": _HEADER, "command": _COMMAND, "reloc": _RELOC})


class _MethodDefinition(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_METH_FASTCALL: Final = 0x80
_definition = _MethodDefinition(b"execute", None, _METH_FASTCALL, None)  # must outlive the function that is made of it
_execute: Callable[..., int] | None = None


def _load() -> Callable[..., int]:
    """The native `execute(program, workspace, *addresses) -> status`."""
    global _execute
    if _execute is None:
        machine = platform.machine()
        source = engine.Source(f"runtime:program:{machine}", "weft_program", lambda: native_code(machine))
        bind = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(engine.load([source])[0])
        _definition.function = bind(threads.context())
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        _execute = make(ctypes.addressof(_definition), None, None)
    return _execute


# ---------------------------------------------------------------------------------------------------------------------
# The Python side
# ---------------------------------------------------------------------------------------------------------------------


def _aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    return -(-nbytes // alignment) * alignment


class Program:
    """Commands over a block of argument words; immutable, and any number of Python threads may run it at once.

    `args` is the initial contents of the block, `workspace_bytes` the size of the arena. `addresses` is how many
    a call gives; without it, as many as relocations name (the second word of an inline constant is named by none).
    """

    __slots__ = ("_addresses", "_args", "_commands", "_execute", "_layout", "_relocs", "_tables", "workspace_bytes")

    def __init__(
        self,
        commands: Sequence[Command],
        args: Sequence[int],
        relocations: Sequence[Reloc],
        workspace_bytes: int,
        addresses: int = 0,
    ) -> None:
        _check(commands, len(args), relocations, workspace_bytes)
        self._commands = tuple(commands)
        self._args = tuple(args)
        self._relocs = tuple(relocations)
        self._addresses = addresses
        self.workspace_bytes = workspace_bytes
        self._tables: list[array[int]] = []
        self._execute = _load()
        self._layout = self._lay_out(threads.get_threads())

    def run(self, addresses: Sequence[int]) -> None:
        """Run all commands. `addresses` are what relocations count from 1; 0 for what no command uses."""
        table, size, idle = self._layout
        pool.active += size  # takes a block as `allocate` does, and gives it back as `Storage.__del__` does
        if pool.active > pool.high:
            pool.admit(size, size)
        try:
            workspace = idle.pop()
        except IndexError:
            workspace = pool.fresh(size, size)
        try:
            status = self._execute(table, workspace, *addresses)
            if status == 0:
                return
            command = ctypes.c_int64.from_address(workspace).value
        finally:
            pool.active -= size
            idle.append(workspace)
            if pool.active < pool.low:
                pool.trim_cache()
        if status == _MORE_THREADS:
            self._layout = self._lay_out(threads.get_threads())
            self.run(addresses)
        elif status == _FEW_ADDRESSES:
            raise ValueError(f"[Program.run] {self._buffers() - 1} addresses are needed; got {len(addresses)}.")
        else:
            raise ProgramError(command, status)

    def _buffers(self) -> int:
        """The number of buffers that a call gives and relocations name, the workspace included."""
        last = [r.byte_offset // 8 + 1 if r.buffer == INLINE else r.buffer for r in self._relocs]
        return max([self._addresses, *last]) + 1

    def _lay_out(self, team: int) -> tuple[int, int, deque[int]]:
        """For that many threads: the address of the table, the size of a workspace, and idle blocks of that size."""
        # Only kernels that may run on several threads need scratch memory for each.
        scratch = [(c.kind == Kind.KERNEL and c.grain > 0, c.scratch_bytes_per_thread) for c in self._commands]
        stride = _aligned(max((nbytes for many, nbytes in scratch if many), default=0), 2 * ALIGNMENT)
        alone = max((nbytes for many, nbytes in scratch if not many), default=0)
        buffers = self._buffers()
        block_at = _RECORD_BYTES + _aligned(8 * buffers)
        scratch_at = block_at + _aligned(8 * len(self._args))
        arena_at = scratch_at + _aligned(max(stride * team, alone))
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
        table.extend(itertools.chain.from_iterable((*command, *padding) for command in self._commands))
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
        if not command.fn or command.grain < 0 or command.scratch_bytes_per_thread < 0:
            raise ValueError(f"[Program] command {number} has no function, or a negative size: {command}.")
    for number, reloc in enumerate(relocations):
        if not 0 <= reloc.word < words or reloc.buffer < INLINE or (reloc.buffer == INLINE and reloc.byte_offset < 0):
            raise ValueError(f"[Program] relocation {number} is outside the block of {words} words: {reloc}.")
