"""What codegen hands to a program: launches of native functions over operands that do not yet have addresses.

A `Launch` names a kernel (an engine `Source`) and the words of its argument block; a word is a number or a `Pointer`
into one of the operands of the node or fused group that is being lowered. The program builder turns pointers into
relocations.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.dtypes import Dtype
from weft.runtime.engine import Source


@dataclass(frozen=True, slots=True)
class Pointer:
    """Operand number `value` (inputs first, then outputs, then temporaries of the lowering), moved by `offset`
    bytes."""

    value: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One command of a program. `words[0]` is the extent of the outer, parallel dimension; `grain` the least part of it
    that is worth a thread of its own (0: serial). A `call` is an `i64 fn(block, args, scratch)`, otherwise a kernel."""

    source: Source
    words: tuple[int | Pointer, ...]
    grain: int = 0
    scratch: int = 0
    call: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Where an operand's elements lie: strides in elements (any sign, 0 for broadcast axes); the pointer is at element
    (0, …, 0)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Dtype


@dataclass(frozen=True, slots=True)
class Lowering:
    """The launches of one node, in order, and the sizes in bytes of the temporaries that they share."""

    launches: tuple[Launch, ...]
    temporaries: tuple[int, ...] = field(default=())
