"""Programs that copy a value to where part of another one lies: what a slice update of computed data needs, wherever
the slice begins."""

from __future__ import annotations

from weft.codegen.launch import Layout, Pointer
from weft.graph.node import Kind
from weft.passes.views import Strides, contiguous
from weft.runtime import engine
from weft.runtime.program import INLINE, Command, Program, Reloc
from weft.runtime.program import Kind as CommandKind
from weft.targets.cpu import moves

_SOURCE, _TARGET, _WORDS = 0, 1, 2
"""What a call gives: two addresses, then the words of a constant."""


def copy_program(kind: Kind, source: Strides | None, target: Strides | None, is_constant: bool = False) -> Program:
    """See `Target.copy_program`."""
    shape = tuple(int(n) for n in kind.shape)
    plain = tuple(int(s) for s in contiguous(shape))
    given = (0,) * len(shape) if is_constant else plain if source is None else source
    x = Layout(shape, tuple(int(s) for s in given), kind.dtype)
    y = Layout(shape, plain if target is None else tuple(int(s) for s in target), kind.dtype)
    commands: list[Command] = []
    words: list[int] = []
    relocations: list[Reloc] = []
    launches = moves.copy(x, y, Pointer(_SOURCE), Pointer(_TARGET))
    for function, launch in zip(engine.load([launch.source for launch in launches]), launches, strict=True):
        commands.append(Command(CommandKind.KERNEL, function, len(words), launch.grain, launch.scratch))
        for word in launch.words:
            if isinstance(word, Pointer):
                relocations.append(_relocation(len(words), word, is_constant))
            words.append(word if isinstance(word, int) else 0)
    return Program(commands, words, relocations, 0, _WORDS + (-(-kind.dtype.size // 8) if is_constant else 0))


def _relocation(word: int, pointer: Pointer, is_constant: bool) -> Reloc:
    if is_constant and pointer.value == _SOURCE:
        return Reloc(word, INLINE, 8 * _WORDS + pointer.offset)
    return Reloc(word, 1 + pointer.value, pointer.offset)
